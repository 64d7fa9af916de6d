"""What only level "full" shows: how members hold, acknowledge and repeat.

Each of these guarantees is judged from one member's rows alone, by the same rules that judge
simulations. A task takes one member's segments in order, up to the first row that is missing: what
a prefix shows is shown, whatever came after it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from ringcast.rules.delivery import InItsView
from ringcast.rules.everywhere import BoundedMemory
from ringcast.rules.findings import Findings
from ringcast.rules.flow import (
    AckersAreMembers,
    AckHonesty,
    SameBytesAgain,
    WindowHonoured,
)
from ringcast.spark.folding import from_text, to_text
from ringcast.spark.reading import over_items
from ringcast.trace.rows import Facts
from ringcast.trace.segments import Segment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringcast.rules.findings import Verdict
    from ringcast.rules.stepwise import Stepwise
    from ringcast.spark.reading import Workers
    from ringcast.spark.summary import MemberTrace

RULES: tuple[type[Stepwise], ...] = (
    BoundedMemory,
    WindowHonoured,
    AckHonesty,
    AckersAreMembers,
    InItsView,
    SameBytesAgain,
)


def judge_details(
    spark: Workers, traces: list[MemberTrace], capacity: dict[str, int]
) -> Iterator[Verdict]:
    """What each rule says of each of these members; `capacity` is by member key."""
    sizes = {}
    for trace in traces:
        stop = trace.holes[0].idx if trace.holes else None
        paths = [path for state in trace.states for path in state.paths]
        size = sum(Path(path).stat().st_size for path in paths)
        sizes[json.dumps([paths, stop, capacity, trace.purge])] = size
    yield from map(from_text, over_items(spark, sizes, _judge_member))


def _judge_member(item: str) -> Iterator[str]:
    """One member's segments as JSON, one line for each rule."""
    paths, stop, capacity, purge = json.loads(item)
    facts = Facts(capacity=capacity, purge=purge or "acks")
    rules = [rule(facts, Findings()) for rule in RULES]
    routes = {
        event: [rule.feed for rule in rules if event in rule.events]
        for event in {event for rule in rules for event in rule.events}
    }
    for path in paths:
        with Segment(path) as segment:
            for row in segment.iter_rows(set(routes)):
                if stop is None or row.idx < stop:
                    for feed in routes[row.event]:
                        feed(row)
    for rule in rules:
        rule.close()
        yield to_text(rule.found.verdict(rule.id, rule.title))
