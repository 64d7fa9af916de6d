"""Seeded runs in which whoever leaves takes nothing any more: what it has sent at last it gets all
the same, once, in order, and no earlier than it may."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import count, islice
from typing import TYPE_CHECKING

import pytest
from seeded import check_nothing_failed

from ringcast.protocols.stack import Stack
from ringcast.rules.membership import LEAVE
from ringcast.sim.plan import expand
from ringcast.sim.runner import Tally, run
from ringcast.trace import rows as trace

if TYPE_CHECKING:
    from ringcast.trace.rows import OriginKey, Row

RUNS = 6


def play(protocol: str) -> tuple[Tally, Counter[str]]:
    """What the first runs in which somebody leaves said, and what happened to them."""
    tally = Tally()
    seen: Counter[str] = Counter()
    every = (expand(seed, protocol) for seed in count())
    leaving = (each for each in every if any(what.fault == "leave" for what in each.incidents))
    for options in islice(leaving, RUNS):
        result = run(replace(options, deaf_leavers=True))
        tally.add(result.summary)
        seen += leavers(result.trace.rows)
    return tally, seen


def leavers(rows: list[Row]) -> Counter[str]:
    leaving: set[tuple[str, int]] = set()
    sent: dict[OriginKey, int] = {}
    taken: dict[OriginKey, int] = {}
    seen: Counter[str] = Counter()
    for row in rows:
        life = row.node, row.inc
        match row.event:
            case trace.SEND:
                sent[row.own_origin] = row.seqno2
            case trace.DELIVER if row.origin == row.own_origin:
                taken[row.origin] = row.seqno2
                seen["handed over"] += life in leaving
            case _ if row.event == LEAVE:
                leaving.add(life)
            case trace.STOP if row.detail == "left" and life in leaving:
                own = [origin for origin in sent if origin[:2] == life]
                seen["left"] += 1
                seen["with all of its own"] += all(sent[o] == taken.get(o) for o in own)
    return seen


@pytest.mark.parametrize("protocol", ["group", "uniform"])
def test_whoever_leaves_gets_its_own_messages(protocol: str) -> None:
    tally, seen = play(protocol)
    check_nothing_failed(tally, f"--protocol {protocol}")
    assert seen["handed over"] >= RUNS // 2, seen
    assert seen["with all of its own"] >= 0.8 * seen["left"], seen


def test_without_that_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stack, "hand_over", lambda _: None)
    _, seen = play("group")
    assert not seen["handed over"]
    assert seen["with all of its own"] < seen["left"]
