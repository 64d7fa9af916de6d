"""What the rules about views and uniform messages do not ask for: cases in which a protocol that
does as it is specified would be blamed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ringcast.model import Stream
from ringcast.rules import bounds
from ringcast.rules.evidence import Run
from ringcast.rules.findings import verdict_of
from ringcast.rules.liveness import valid
from ringcast.rules.membership import changes_end, one_view
from ringcast.trace.rows import (
    CRASH,
    DELIVER,
    FREEZE,
    OPEN,
    PHASE,
    SEND,
    START,
    STATE_LOST,
    STATE_RECEIVED,
    STATE_WAIT,
    VIEW,
    Facts,
    Row,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ringcast.rules.findings import Rule, Verdict

MS = 1_000_000
SECOND = 1_000 * MS
FACTS = Facts(
    delta_ns=MS,
    tau_ns=10 * MS,
    nack_messages_max=2,
    capacity={"a#1": 8, "b#1": 8, "c#1": 2},
    stopped_members=frozenset({"c#1"}),
    nodes=3,
    suspect_ns=SECOND,
    gst_ns=10 * SECOND,
    end_ns=200 * SECOND,
)


class Rows(list[Row]):
    """Of one run, in its order; times in milliseconds."""

    def add(self, ms: float, event: str, node: str, **columns: Any) -> None:
        inc = 1 if node else 0
        self.append(Row(event, node, inc, len(self), len(self), round(ms * MS), **columns))

    def about(self, ms: float, event: str, node: str, peer: str, **columns: Any) -> None:
        columns |= {"peer": peer, "peer_inc": 1, "stream": int(Stream.UNIFORM)}
        self.add(ms, event, node, **columns)

    def view(self, ms: float, nodes: str, counter: int, members: str, part: str = "") -> None:
        for node in nodes:
            named = {"members": keys(members), "part": keys(part or members)}
            self.add(ms, VIEW, node, view=counter, view_creator="a#1", **named)

    def freeze(self, ms: float, node: str, counter: int, members: str) -> None:
        self.add(ms, FREEZE, node, view=counter, view_creator="a#1", members=keys(members))

    def heal(self, ms: float) -> None:
        self.add(0, PHASE, "", kind="safety")
        self.add(ms, PHASE, "", kind="heal")


def keys(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{name}#1" for name in names)


def judge(rule: Rule, rows: Rows, facts: Facts = FACTS) -> Verdict:
    return verdict_of(rule, Run(rows, facts))


def texts(rule: Rule, rows: Rows, facts: Facts = FACTS) -> list[str]:
    return [violation.text for violation in judge(rule, rows, facts).violations]


# U5: who does not read has one window


def sent(*, count: int, delivered: int, read: int = 0) -> Rows:
    """a sends so many, and a and b deliver so many; c has read so many before that."""
    rows = Rows()
    rows.view(0, "abc", 1, "abc")
    for node, peer in (("b", "a"), ("c", "a")):
        rows.about(0, OPEN, node, peer, seqno=0)
    if read:
        rows.add(1000, SEND, "a", stream=int(Stream.UNIFORM), seqno=1, seqno2=read)
        for node in "abc":
            rows.about(1001, DELIVER, node, "a", seqno=1, seqno2=read, view=1)
    rows.add(11_000, SEND, "a", stream=int(Stream.UNIFORM), seqno=read + 1, seqno2=read + count)
    if delivered:
        for node in "ab":
            place = {"seqno": read + 1, "seqno2": read + delivered}
            rows.about(11_001, DELIVER, node, "a", **place, view=1)
    return rows


@pytest.mark.parametrize("read", [0, 3])
def test_what_a_member_that_does_not_read_has_no_slot_for_is_not_owed(read: int) -> None:
    rows = sent(count=7, delivered=2, read=read)
    found = judge(valid, rows)
    assert found.status == "held"
    assert found.premises == 2 + 2 * bool(read)
    assert len(texts(valid, rows, replace(FACTS, stopped_members=frozenset()))) == 3


def test_what_it_has_slots_for_is_owed_to_the_others() -> None:
    rows = sent(count=7, delivered=1)
    took = 189 * SECOND
    bound = FACTS.delivery_bound_ns(2, is_gated=True)
    assert texts(valid, rows) == [
        f"a#1:1..2 took {took} ns to {node}, the bound is {bound}" for node in "ab"
    ]
    assert len(texts(valid, sent(count=2, delivered=1))) == 2


def test_of_a_sender_with_no_larger_window_everything_is_owed() -> None:
    facts = replace(FACTS, capacity=dict.fromkeys(FACTS.capacity, 8))
    assert len(texts(valid, sent(count=7, delivered=2), facts)) == 2


def test_a_sender_that_does_not_read_holds_what_it_has_sent() -> None:
    facts = replace(FACTS, stopped_members=frozenset({"a#1"}), capacity={"a#1": 2})
    found = texts(valid, sent(count=7, delivered=2), facts)
    assert [text.split()[0] for text in found] == ["a#1:1..7"] * 2  # to b and c


# V-L5: who died while this one was frozen


def frozen(*, died_ms: float, asked: str, waited_ms: float) -> Rows:
    """b is frozen, c dies, the network heals, and b asks these before it goes on alone."""
    rows = Rows()
    rows.heal(10_000)
    rows.view(0, "b", 1, "abc")
    rows.freeze(9_000, "b", 2, "abc")
    rows.add(died_ms, CRASH, "c")
    rows.freeze(10_600, "b", 3, asked)
    rows.freeze(10_000 + waited_ms, "b", 4, "b")
    rows.view(10_000 + waited_ms, "b", 4, "b")
    return rows


LONG_MS = bounds.frozen_ns(FACTS) / MS + 1


@pytest.mark.parametrize("died_ms", [9_900, 8_900], ids=["while frozen", "just before"])
def test_who_died_before_the_healing_and_is_asked_behind_it_costs_its_time(died_ms: float) -> None:
    rows = frozen(died_ms=died_ms, asked="bc", waited_ms=LONG_MS)
    assert texts(changes_end, rows) == []
    longest_ms = bounds.frozen_ns(FACTS, 1) / MS
    rows = frozen(died_ms=died_ms, asked="bc", waited_ms=longest_ms + 1)
    assert len(texts(changes_end, rows)) == 1


def test_who_died_before_the_healing_and_is_not_asked_again_costs_nothing() -> None:
    assert len(texts(changes_end, frozen(died_ms=9_900, asked="b", waited_ms=LONG_MS))) == 1


# V-L1: views for somebody's state

LATE_MS = 10_000 + bounds.one_view_ns(FACTS) / MS + 1


def settled(members: str = "abc", part: str = "") -> Rows:
    """All are in one view, and much later in another."""
    rows = Rows()
    for node in "abc":
        rows.add(0, START, node)
    rows.view(1, "abc", 2, members)
    rows.heal(10_000)
    rows.view(LATE_MS, "abc", 3, "abc", part)
    return rows


def waits(rows: Rows, ms: float, event: str) -> Rows:
    rows.add(ms, event, "c")
    rows.sort(key=lambda row: row.mono_ns)
    return rows


def test_views_of_the_same_members_for_somebodys_state_unsettle_nobody() -> None:
    assert len(texts(one_view, settled())) == 1
    found = judge(one_view, waits(settled(), 2, STATE_WAIT))
    assert found.status == "held"
    assert found.worst == 0
    received = waits(waits(settled(), 2, STATE_WAIT), LATE_MS + 1, STATE_RECEIVED)
    assert texts(one_view, received) == []


@pytest.mark.parametrize("event", [STATE_RECEIVED, STATE_LOST])
def test_nobody_waits_for_a_state_any_more(event: str) -> None:
    rows = waits(waits(settled(), 2, STATE_WAIT), 3, event)
    assert len(texts(one_view, rows)) == 1


@pytest.mark.parametrize(("members", "part"), [("ab", "abc"), ("abcd", "abc"), ("abc", "ab")])
def test_a_view_that_brings_somebody_or_leaves_somebody_out_counts(members: str, part: str) -> None:
    assert len(texts(one_view, waits(settled(members, part), 2, STATE_WAIT))) == 1
