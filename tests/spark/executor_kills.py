"""Executors of a cluster that are killed while they work at a task."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import ringcast.spark
from benchmarks.usage import processes

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from ringcast.spark.session import Standalone

DEADLINE_S = 3000.0
"""Of each wait; a busy machine takes long."""
LOOK_S = 0.02
BUSY_S = 0.015
"""Who has used so much CPU time is at work: the system counts in steps of 10 ms."""
LOST, LOST_WITH_A_TASK = "Lost executor", "ExecutorLostFailure"


def until(condition: Callable[[], bool], *going: subprocess.Popen[bytes]) -> None:
    """While these are running."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        assert [process.poll() for process in going] == [None] * len(going)
        time.sleep(LOOK_S)


def tell_losses(directory: Path) -> dict[str, str]:
    """What a driver is to find in its environment, so that it says what it loses."""
    directory.mkdir()
    quiet = Path(ringcast.spark.__file__).parent / "conf" / "log4j2.properties"
    (directory / quiet.name).write_text(quiet.read_text().replace("= error", "= warn"))
    return {"SPARK_CONF_DIR": str(directory)}


def kill_executor(cluster: Standalone, driver: subprocess.Popen[bytes], log: Path) -> None:
    """Java, Python and all, until one had a task: the driver tells so in its log."""

    def count(words: str) -> int:
        return log.read_text().count(words)

    lost, with_tasks = count(LOST), count(LOST_WITH_A_TASK)
    while count(LOST_WITH_A_TASK) == with_tasks:
        for pid in _find_busy(cluster, driver):
            with suppress(ProcessLookupError):  # it has noticed that its parent is gone
                os.kill(pid, signal.SIGKILL)
        lost += 1
        until(lambda: count(LOST) >= lost, driver)  # noqa: B023
        time.sleep(1)  # of its tasks it tells later


def _find_busy(cluster: Standalone, driver: subprocess.Popen[bytes]) -> list[int]:
    """An executor whose Python worker has just worked, the daemon that started that, and the
    worker."""
    workers = {worker.pid for worker in cluster.workers}
    known: dict[int, float] = {}
    found: list[int] = []

    def is_found() -> bool:
        running = processes()
        for pid, process in running.items():
            line = [pid]
            while line[0] in running and running[line[0]].parent not in workers:
                line.insert(0, running[line[0]].parent)
            is_python = line[0] in running and len(line) == 3
            if is_python and process.cpu_s > known.setdefault(pid, process.cpu_s) + BUSY_S:
                found.extend(line)
                return True
        return False

    until(is_found, driver)
    return found
