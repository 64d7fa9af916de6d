"""What rules say in Spark's tasks, where the rows are.

A simulation is judged whole, every rule of its protocol. Its observers write every event, in one
order and by one clock, so there is nothing that its traces cannot show. Much of that compares
members with each other, at the same moment; so one task takes a whole run, its members' rows merged
in the order of the run, and has them in memory. Runs are small, and there are many: they go to as
many tasks as are useful.

What only level "full" shows of real members (how they hold, acknowledge and repeat) is judged from
one member's rows alone, by the same rules. A task takes one member's segments in order, up to the
first row that is missing: what a prefix shows is shown, whatever came after it.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from dataclasses import replace
from heapq import merge
from itertools import chain, takewhile
from operator import attrgetter
from typing import TYPE_CHECKING

from ringcast.rules import findings
from ringcast.rules.instants import EVENTS
from ringcast.rules.table import BY_PROTOCOL, MULTICAST, STATE, verdicts
from ringcast.spark.pairs import Pairs, terms_of
from ringcast.spark.reading import Workers, over_items, size_of
from ringcast.spark.report import VIOLATIONS_SHOWN_MAX, Verdict, Violation, verdict_id
from ringcast.trace.files import facts_from_values
from ringcast.trace.rows import Facts, MemberKey, Row
from ringcast.trace.segments import Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ringcast.spark.recorded_run import RecordedRun
    from ringcast.spark.summary import MemberTrace


def judge_details(
    spark: Workers, traces: list[MemberTrace], capacity: dict[str, int]
) -> tuple[list[findings.Verdict], list[Row]]:
    """What each rule says of each of these members, and what they sent to and delivered of each
    other one, condensed; `capacity` is by member key."""
    items = []
    for trace in traces:
        stop = trace.holes[0].idx if trace.holes else None
        paths = [path for state in trace.states for path in state.paths]
        purge = trace.purge or "acks"
        facts = [replace(each, capacity=capacity, purge=purge) for each in terms_of(trace)]
        item = paths, stop, trace.member, facts, trace.is_whole
        items.append((item, size_of(*paths)))
    said = over_items(spark, items, _judge_member)
    rows = [each for each in said if isinstance(each, Row)]
    return [each for each in said if isinstance(each, findings.Verdict)], rows


def _judge_member(
    item: tuple[list[str], int | None, MemberKey, list[Facts], bool],
) -> Iterator[findings.Verdict | Row]:
    """One member's segments, by each rule."""
    paths, stop, member, facts, is_whole = item
    found = [(rule, findings.Findings()) for rule in (*MULTICAST, *STATE) if rule.steps]
    feeds = [findings.begin(rule.steps(facts[0], into)) for rule, into in found if rule.steps]
    routes: defaultdict[str, list[Callable[[Row | None], None]]] = defaultdict(list)
    for (rule, _), feed in zip(found, feeds, strict=True):
        for event in rule.events:
            routes[event].append(feed)
    pairs = Pairs(member, *facts, is_whole=is_whole)
    with ExitStack() as opened:
        segments = (opened.enter_context(Segment(path)) for path in paths)
        rows = chain.from_iterable(each.iter_rows({*routes, *EVENTS}) for each in segments)
        for row in takewhile(lambda row: stop is None or row.idx < stop, rows):
            for feed in routes.get(row.event, ()):
                feed(row)
            pairs.feed(row)
    pairs.end()
    for feed in feeds:
        findings.end(feed)
    for rule, into in (*found, *pairs.found):
        yield _shown(into.verdict(rule.id, rule.title))
    yield from pairs.rows


def judge_simulations(spark: Workers, runs: Sequence[RecordedRun]) -> Iterator[list[Verdict]]:
    """What each rule says of each of these whole runs, in their order."""
    items = []
    for number, run in enumerate(runs):
        paths = [[path for state in states for path in state.paths] for states in run.parts]
        size = size_of(*chain.from_iterable(paths))
        items.append(((number, facts_from_values(run.facts or {}), paths), size))
    found: list[list[findings.Verdict]] = [[] for _ in runs]
    for number, verdict in over_items(spark, items, _judge_run):
        found[number].append(verdict)
    return map(_verdicts, found)


def _verdicts(found: list[findings.Verdict]) -> list[Verdict]:
    """As the audit reports them. Not every run has a case for each rule, but for one."""
    is_anything_judged = any(each.premises for each in found)
    return [_verdict(each, is_optional=is_anything_judged) for each in found]


def _verdict(found: findings.Verdict, *, is_optional: bool) -> Verdict:
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


def _judge_run(item: tuple[int, Facts, list[list[str]]]) -> Iterator[tuple[int, findings.Verdict]]:
    """One run, by each rule."""
    number, facts, parts = item
    with ExitStack() as opened:
        members = [
            chain.from_iterable(opened.enter_context(Segment(path)).iter_rows() for path in paths)
            for paths in parts
        ]
        rows = merge(*members, key=attrgetter("run_idx"))
        found = verdicts(BY_PROTOCOL[facts.protocol], rows, facts)
    yield from ((number, _shown(verdict)) for verdict in found)


def _shown(verdict: findings.Verdict) -> findings.Verdict:
    """Without the violations that are only counted."""
    return replace(verdict, violations=verdict.violations[:VIOLATIONS_SHOWN_MAX])
