"""Many seeds, on one core or several: results come in the order of the seeds."""

from __future__ import annotations

from collections import Counter
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from typing import TYPE_CHECKING

from ringcast.sim.plan import expand
from ringcast.sim.runner import Judged, run
from ringcast.trace.files import write_trace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ringcast.sim.cluster import NodeFactory
    from ringcast.sim.runner import Summary

SEEDS_PER_TASK = 4
VACUOUS = Judged(0, 0)


class Tally:
    """What all runs said together."""

    def __init__(self) -> None:
        self.seeds = 0
        self.judged: dict[str, Judged] = {}
        self.matrix: Counter[tuple[str, str]] = Counter()
        self.happenings: Counter[str] = Counter()
        self.deliveries = 0
        self.faults = 0
        self.rows = 0
        self.failed: list[Summary] = []

    def add(self, summary: Summary) -> None:
        self.seeds += 1
        for rule, judged in summary.judged.items():
            self.judged[rule] = self.judged.get(rule, VACUOUS).plus(judged)
        self.matrix.update(summary.matrix)
        self.happenings.update(summary.happenings)
        self.deliveries += summary.deliveries
        self.faults += summary.faults
        self.rows += summary.rows
        if summary.failures:
            self.failed.append(summary)

    @property
    def violations(self) -> int:
        return sum(judged.violations for judged in self.judged.values())

    @property
    def vacuous(self) -> list[str]:
        """Rules whose premise never came true, and what should have happened and has not:
        they have shown nothing."""
        never = [rule for rule, judged in self.judged.items() if not judged.premises]
        return never + [what for what, count in self.happenings.items() if not count]


def run_seeds(
    seeds: Sequence[int],
    *,
    protocol: str = "multicast",
    partitions: bool = False,
    purge: str = "acks",
    jobs: int = 1,
    record: Path | None = None,
    node_factory: NodeFactory | None = None,
) -> Iterator[Summary]:
    """Run the seeds; `record` keeps their traces as files. Another node runs in this process."""
    work = partial(_run_one, protocol=protocol, partitions=partitions, purge=purge, record=record)
    if node_factory is not None:
        yield from (work(seed, node_factory=node_factory) for seed in seeds)
    elif jobs <= 1 or len(seeds) == 1:
        yield from map(work, seeds)
    else:
        # Spawned, not forked: the same on every system, and nothing is inherited by accident.
        with get_context("spawn").Pool(min(jobs, len(seeds))) as pool:
            yield from pool.imap(work, seeds, chunksize=SEEDS_PER_TASK)


def _run_one(
    seed: int,
    *,
    protocol: str,
    partitions: bool,
    purge: str,
    record: Path | None,
    node_factory: NodeFactory | None = None,
) -> Summary:
    options = expand(seed, protocol, partitions=partitions, purge=purge)
    result = run(options, node_factory)
    if record is not None:
        write_trace(record / f"seed-{seed}.jsonl.gz", result.trace)
        if find_spec("pyarrow"):
            from ringcast.trace.segments import write_trace_segments

            name = f"seed-{seed}"
            write_trace_segments(record / name, name, result.trace.rows, result.trace.facts)
    return result.summary
