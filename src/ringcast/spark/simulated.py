"""A simulation judged whole: every rule of its protocol, by the rules that define them.

A simulation's observers write every event, in one order and by one clock, so there is nothing that
its traces cannot show. Much of that compares members with each other, at the same moment; so one
task takes a whole run, its members' rows merged in the order of the run, and has them in memory.
Runs are small, and there are many: they go to as many tasks as are useful.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from heapq import merge
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from ringcast.rules.table import BY_PROTOCOL, verdicts
from ringcast.spark.folding import from_text, to_text
from ringcast.spark.reading import over_items
from ringcast.spark.report import Verdict, Violation, verdict_id
from ringcast.trace.facts import facts_from_values
from ringcast.trace.segments import Segment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ringcast.rules.findings import Verdict as Folded
    from ringcast.spark.reading import Workers
    from ringcast.spark.recorded_run import RecordedRun


def judge_simulations(spark: Workers, runs: Sequence[RecordedRun]) -> Iterator[list[Verdict]]:
    """What each rule says of each of these whole runs, in their order."""
    sizes = {}
    for number, run in enumerate(runs):
        paths = [[path for state in states for path in state.paths] for states in run.parts]
        size = sum(Path(path).stat().st_size for path in chain.from_iterable(paths))
        sizes[json.dumps([number, run.facts, paths])] = size
    found: list[list[Folded]] = [[] for _ in runs]
    for text in over_items(spark, sizes, _judge_run) if sizes else ():
        number, said = json.loads(text)
        found[number].append(from_text(said))
    return map(_verdicts, found)


def _verdicts(found: list[Folded]) -> list[Verdict]:
    """As the audit reports them. Not every run has a case for each rule, but for one."""
    is_anything_judged = any(each.premises for each in found)
    return [_verdict(each, is_optional=is_anything_judged) for each in found]


def _verdict(found: Folded, *, is_optional: bool) -> Verdict:
    return Verdict(
        verdict_id(found.id),
        found.premises,
        [Violation(text, list(rows)) for text, rows in found.violations],
        found.violation_count,
        undecidable=[] if found.undecidable is None else [found.undecidable],
        inconclusive=[] if found.premises else ["there was nothing to judge"],
        is_optional=is_optional,
        worst=found.worst,
        title=found.title,
    )


def _judge_run(item: str) -> Iterator[str]:
    """One run as JSON, one line for each rule."""
    number, values, parts = json.loads(item)
    facts = facts_from_values(values)
    with ExitStack() as opened:
        members = [
            chain.from_iterable(opened.enter_context(Segment(path)).iter_rows() for path in paths)
            for paths in parts
        ]
        rows = merge(*members, key=attrgetter("run_idx"))
        found = verdicts(BY_PROTOCOL[facts.protocol], rows, facts)
    yield from (json.dumps([number, to_text(verdict)]) for verdict in found)
