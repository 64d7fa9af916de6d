"""What a Spark session takes: memory and CPU time of its processes, bytes that it shuffles.

They are all descendants of this one: the JVMs, and the Python workers that these start. The system
tells of them in /proc: Linux only.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from ringcast.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession

_EVERY_S = 0.1
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_MB = resource.getpagesize() / 2**20


class Process(NamedTuple):
    parent: int
    cpu_s: float
    resident_mb: float


class Usage:
    """Of this process's descendants, and the CPU time of its own, between enter and exit.

    Memory is resident memory, looked at ten times a second: what processes share counts for each.
    """

    def __enter__(self) -> Self:
        self.peak_mb = 0.0
        self._is_over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self.cpu_s = -cpu_s()
        self.seconds = -time.perf_counter()
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter()
        self._is_over.set()
        self._watcher.join()
        self.cpu_s += cpu_s()

    def _watch(self) -> None:
        is_over = False
        while not is_over:
            resident = sum(process.resident_mb for process in _descendants())
            self.peak_mb = max(self.peak_mb, resident)
            is_over = self._is_over.wait(_EVERY_S)


def in_turns(
    jobs: Sequence[Callable[[int], object]], rounds: int = 3, warm_ups: int = 2
) -> list[list[Usage]]:
    """What each job takes in each round, those to warm up left out. They take turns, so that all
    meet the same machine; the best round counts, as others there can only slow it down."""
    used: list[list[Usage]] = [[] for _ in jobs]
    for turn in range(warm_ups + rounds):
        for job, usages in zip(jobs, used, strict=True):
            with Usage() as usage:
                job(turn)
            usages.append(usage)
    return [usages[warm_ups:] for usages in used]


def shuffled_bytes(spark: SparkSession) -> int:
    """Written to be shuffled by all stages so far, as Spark's own status store has it."""
    return sum(stage.shuffleWriteBytes() for stage in _stages(spark))


def result_bytes(spark: SparkSession) -> int:
    """What tasks of all stages so far have returned to the driver."""
    return sum(stage.resultSize() for stage in _stages(spark))


def _stages(spark: SparkSession) -> Iterator[Any]:
    context = spark.sparkContext
    gateway = context._gateway
    assert gateway is not None
    assert context._jsc is not None
    no_quantiles = gateway.new_array(gateway.jvm.double, 0)
    stages = context._jsc.sc().statusStore().stageList(None, False, False, no_quantiles, None)
    for at in range(stages.size()):
        yield stages.apply(at)


def cpu_s() -> float:
    """Of this process and its descendants, so far."""
    return time.process_time() + sum(process.cpu_s for process in _descendants())


def peak_mb() -> float:
    """The most that was resident of this process. What getrusage says would count its parent's,
    before exec."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(peak) / 1024


def cpu_ns(pid: int) -> int:
    """Of another process, so far: by its own clock, as its ticks are too coarse for who idles."""
    return time.clock_gettime_ns(~pid << 3 | 2)


def wakeups(pid: int) -> int:
    """How often a process has slept so far, all its threads."""
    count = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        count += int(fields["voluntary_ctxt_switches"])
    return count


def processes() -> dict[int, Process]:
    """All of the machine, by their number."""
    found: dict[int, Process] = {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # It may have ended meanwhile.
            # The name in parentheses may have spaces.
            fields = Path(place, "stat").read_text().rpartition(")")[2].split()
            parent, user, system, pages = (int(fields[at]) for at in (1, 11, 12, 21))
            cpu_s = (user + system) / _TICKS_PER_S
            found[int(place.name)] = Process(parent, cpu_s, pages * _PAGE_MB)
    if not found:
        raise UsageError("memory of other processes is read from /proc: use Linux")
    return found


def _descendants() -> list[Process]:
    running = processes()
    children: defaultdict[int, list[int]] = defaultdict(list)
    for pid, process in running.items():
        children[process.parent].append(pid)
    found, waiting = [], list(children[os.getpid()])
    while waiting:
        pid = waiting.pop()
        found.append(running[pid])
        waiting += children[pid]
    return found
