"""Runs: options in, verdicts out. Many seeds, on one core or several: in the order of the seeds."""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from signal import SIG_IGN, SIGINT, signal
from typing import Any

from ringcast.rules.findings import Verdict
from ringcast.rules.table import audit
from ringcast.sim.cluster import Cluster, NodeFactory
from ringcast.sim.facts import happenings
from ringcast.sim.harness import Failure
from ringcast.sim.options import Options
from ringcast.sim.plan import expand
from ringcast.trace.files import trace_hash, write_trace
from ringcast.trace.rows import PHASE, Trace

STATE_CHARACTERS_MAX = 160
_MEMBER = re.compile(r"\b[A-J](#\d+)?\b")
_NUMBER = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True, slots=True)
class Judged:
    """What one rule said, over one run or many."""

    premises: int
    violations: int
    worst: float | None = None

    def plus(self, other: Judged) -> Judged:
        shares = [share for share in (self.worst, other.worst) if share is not None]
        counts = self.premises + other.premises, self.violations + other.violations
        return Judged(*counts, max(shares, default=None))


@dataclass(frozen=True, slots=True)
class Summary:
    """One run without its trace: small enough to send between processes."""

    seed: int
    hash: str
    judged: Mapping[str, Judged]
    failures: tuple[Failure, ...]
    matrix: Mapping[tuple[str, str], int]  # faults injected, by class and kind of frame
    faults: int
    deliveries: int
    rows: int
    happenings: Mapping[str, int]  # what befell views, senders, windows and rounds: how often


@dataclass(frozen=True, slots=True)
class Result:
    """One run with everything about it."""

    options: Options
    trace: Trace
    verdicts: list[Verdict]
    summary: Summary
    fault_names: tuple[str, ...]  # every packet fault, as `Options.only` names them

    @property
    def failures(self) -> tuple[Failure, ...]:
        return self.summary.failures


@contextmanager
def _uncollected() -> Iterator[None]:
    """Rows stay, and the garbage collector would look through them again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def run(options: Options, node_factory: NodeFactory | None = None) -> Result:
    """Simulate one run and judge it."""
    cluster = Cluster(options, node_factory)
    with _uncollected():
        cluster.run()
        trace = cluster.trace
        verdicts = audit(trace)
    findings = cluster.recorder.findings
    violations = [
        Failure(verdict.id, violation.text, violation.rows)
        for verdict in verdicts
        for violation in verdict.violations
    ]
    # The earliest comes first: later ones may follow from it.
    failures = sorted(
        [*findings, *violations], key=lambda each: each.rows[-1].run_idx if each.rows else 0
    )
    judged = {
        verdict.id: Judged(verdict.premises, verdict.violation_count, verdict.worst)
        for verdict in verdicts
    }
    # The harness alone judges G7. What else it sees counts under the rule that it breaks.
    judged["G7"] = Judged(len(trace.rows), 0)
    # Only multicast's rows bear hashes of content; every delivery was compared by an observer.
    judged.setdefault("G1", Judged(cluster.recorder.deliveries, 0))
    for finding in findings:
        judged[finding.rule] = judged.get(finding.rule, Judged(0, 0)).plus(Judged(0, 1))
    summary = Summary(
        seed=options.seed,
        hash=trace_hash(trace),
        judged=judged,
        failures=tuple(failures),
        matrix=dict(cluster.conditions.log.matrix),
        faults=cluster.conditions.log.total,
        deliveries=cluster.recorder.deliveries,
        rows=len(trace.rows),
        happenings=happenings(cluster),
    )
    return Result(options, trace, verdicts, summary, tuple(cluster.conditions.log.names))


def state_of(failure: Failure, trace: Trace) -> str:
    """What this failure has in common with others of its rule: the phase of the run and its words,
    without whose it was and which numbers it met. Of a thousand failing seeds a handful is left."""
    seen = failure.rows[-1].run_idx if failure.rows else len(trace.rows)
    phase = "start"
    for row in trace.rows[: seen + 1]:
        if row.event == PHASE:
            phase = row.kind
    words = _NUMBER.sub("n", _MEMBER.sub("M", failure.text))
    return f"{phase}: {' '.join(words.split())}"[:STATE_CHARACTERS_MAX]


# Many seeds

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
        # Ctrl-C is for the process that began them, and ends them.
        with get_context("spawn").Pool(min(jobs, len(seeds)), signal, (SIGINT, SIG_IGN)) as pool:
            yield from pool.imap(work, seeds, chunksize=SEEDS_PER_TASK)


def _run_one(
    seed: int, *, record: Path | None, node_factory: NodeFactory | None = None, **terms: Any
) -> Summary:
    result = run(expand(seed, **terms), node_factory)
    if record is not None:
        name = f"seed-{seed}"
        write_trace(record / f"{name}.jsonl.gz", result.trace)
        if find_spec("pyarrow"):
            from ringcast.trace.segments import write_trace_segments

            write_trace_segments(record / name, name, result.trace.rows, result.trace.facts)
    return result.summary
