"""What an application that is behind reads: views in order, each behind all that came before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ringcast.events import Closed, Delivered, ViewInstalled
from ringcast.model import Origin, Stream
from ringcast.protocols.views.reading import UNREAD_VIEWS_MAX, Reading
from support.view_group import ViewGroup, in_letters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.events import Event

FIFO, UNIFORM = Stream.FIFO, Stream.UNIFORM


class Reader:
    """What the application of one member reads, in a few letters each."""

    def __init__(self, group: ViewGroup, name: str) -> None:
        self._group = group
        self._name = name
        group.read(name, 0)

    def read(self, limit: int = 1000) -> list[str]:
        """What came since the last time, and up to so many messages."""
        process = self._group.process(self._name)
        events = process.node.take_events(limit, process.now)
        process.turn()
        return described(events)


def described(events: Sequence[Event]) -> list[str]:
    found = []
    for event in events:
        match event:
            case Delivered(run=run):
                found += words(run.payloads)
            case ViewInstalled(view):
                found.append(in_letters(view))
            case Closed(reason):
                found.append(reason)
    return found


def words(payloads: Sequence[bytes]) -> list[str]:
    return [payload.decode().strip() for payload in payloads]


def test_nothing_waits_before_there_is_a_view() -> None:
    reading = Reading()
    assert not reading.is_due
    assert reading.announce() is None


def test_several_views_are_read_each_behind_the_messages_of_the_one_before() -> None:
    group = ViewGroup("ABCDE").form("ABCD")
    reader = Reader(group, "B")
    first = group.send("D", 2) + group.send("A", 1, UNIFORM)
    group.run(20)
    group.crash("D")
    assert group.run_until(group.is_one, 1000)
    second = group.send("C", 2)
    group.run(20)
    group.leave("C")
    group.run(20)
    third = group.send("A", 1)
    group.start("E")
    assert group.run_until(group.is_one, 1000)
    fourth = group.send("E", 1)
    group.run(20)
    assert "3 views wait for this member's application" in " ".join(
        group.node("B").explain(group.process("B").now)
    )
    assert group.node("B").multicast.stats()["views_unread"] == 3
    read = reader.read(1)
    assert group.node("B").has_ready
    read += reader.read(1)
    assert len(read) == 2
    read += reader.read()
    assert sorted(read[:3]) == sorted(words(first))
    assert read[3:] == ["ABC", *words(second), "AB", *words(third), "ABE", *words(fourth)]
    assert not group.node("B").has_ready
    group.run(1000)
    assert group.is_quiet()
    assert group.observed.violations() == []


def test_a_sender_that_left_and_came_back_is_read_from_two_windows() -> None:
    group = ViewGroup("ABC").form()
    reader = Reader(group, "B")
    before = group.send("C", 2)
    group.run(20)
    group.weather.part("AB", "C")
    assert group.run_until(lambda: len(group.node("A").view or ()) == 2, 5000)
    group.run(2000)
    group.weather.cuts.clear()
    assert group.run_until(group.is_one, 5000)
    after = group.send("C", 2)
    group.run(20)
    assert reader.read() == [*words(before), "AB", "ABC", *words(after)]
    assert group.observed.violations() == []


def test_own_messages_are_read_before_others_only_up_to_the_next_view() -> None:
    group = ViewGroup("ABC").form()
    reader = Reader(group, "A")
    own, other = group.send("A", 1), group.send("C", 1)
    group.run(20)
    group.crash("C")
    assert group.run_until(group.is_one, 1000)
    later = group.send("A", 1)
    group.run(20)
    node, now = group.node("A"), group.process("A").now
    assert node.has_own_ready
    assert [
        e.run.payloads for e in node.take_events(10, now, only_own=True) if isinstance(e, Delivered)
    ] == [own]
    assert not node.has_own_ready
    assert node.multicast.take_own() == []
    assert reader.read() == [*words(other), "AB", *words(later)]


@pytest.mark.parametrize("is_other_read", [True, False])
def test_who_leaves_gets_its_own_up_to_a_view_that_others_messages_come_before(
    is_other_read: bool,
) -> None:
    group = ViewGroup("ABC").form()
    reader = Reader(group, "A")
    other = group.send("C", 1)
    group.run(20)
    assert not is_other_read or reader.read() == words(other)
    own = group.send("A", 1)
    group.crash("C")
    assert group.run_until(group.is_one, 1000)
    later = group.send("A", 1)
    group.run(20)
    seen: list[Event] = []
    group.process("A").resident._see = lambda _, event: seen.append(event)
    group.leave("A")
    group.run(20)
    rest = ["AB", *words(later)] if is_other_read else []
    assert described(seen) == [*words(own), *rest, "left"]


def test_who_does_not_read_through_256_views_closes_itself() -> None:
    group = ViewGroup("ABC").form("AB")
    group.read("B", 0)
    group.send("A", 1)
    group.run(20)
    me = group.node("B").me
    for n in range(UNREAD_VIEWS_MAX):
        if me in group.observed.closed:
            break
        if n % 2 == 0:
            group.start("C")
            assert group.run_until(lambda: len(group.node("A").view or ()) == 3, 5000)
        else:
            group.leave("C")
            assert group.run_until(lambda: len(group.node("A").view or ()) < 3, 5000)
        group.run(60)
        assert len(group.observed.views_of(me)) == 1
    group.run(100)
    assert group.observed.closed[me] == f"not read through {UNREAD_VIEWS_MAX} views"
    origin = Origin(group.node("A").me, FIFO)
    assert group.observed.got(me, group.observed.views_of(me)[-1].id, origin) == []
