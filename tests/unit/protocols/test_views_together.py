"""With each view a member is told who came along from its last one, and which of its messages those
who come back may lack."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ringcast.config import StabilityConfig
from ringcast.events import ViewInstalled
from ringcast.model import Stream
from ringcast.protocols.views.reading import PARTED_MAX, Parted
from ringcast.window.acks import AckTable
from support.view_group import ViewGroup, in_letters
from support.view_side import A, B, C

if TYPE_CHECKING:
    from ringcast.events import Event
    from ringcast.model import Member

FIFO, UNIFORM = Stream.FIFO, Stream.UNIFORM


class Told:
    """What the application of each member is told of views."""

    def __init__(self, group: ViewGroup) -> None:
        self.events: dict[str, list[ViewInstalled]] = {}
        for name in group.names:
            self.follow(group, name)

    def follow(self, group: ViewGroup, name: str) -> None:
        resident, seen = group.process(name).resident, self.events.setdefault(name, [])

        def see(me: Member, event: Event) -> None:
            if isinstance(event, ViewInstalled):
                seen.append(event)

        resident._see = see

    def together(self, name: str) -> list[str]:
        return [in_letters(event.together) for event in self.events[name]]

    def unconfirmed(self, name: str) -> list[tuple[tuple[Stream, int, int], ...]]:
        return [event.unconfirmed for event in self.events[name]]


def test_who_comes_along_is_told() -> None:
    group = ViewGroup("ABCD").form("ABC")
    group.start("D")
    told = Told(group)
    assert group.run_until(group.is_one, 5000)
    group.run(100)
    group.crash("B")
    assert group.run_until(group.is_one, 10_000)
    group.run(100)
    assert told.together("A") == told.together("C") == ["ABC", "ACD"]
    assert told.together("D") == ["", "ACD"]
    assert told.unconfirmed("A") == [(), ()]


@pytest.mark.parametrize("is_reporting", [False, True])
def test_who_was_left_out_is_told_what_others_may_lack(*, is_reporting: bool) -> None:
    """C is cut off: what it sends then, in two views, reaches nobody, and is told when it is back.
    What the others send meanwhile is told to them."""
    group = ViewGroup("ABC")
    if is_reporting:
        multicast = replace(group.config.multicast, stability=StabilityConfig())
        group.config = replace(group.config, multicast=multicast)
    group.form()
    told = Told(group)
    group.send("C", 3)
    group.send("A", 2)
    group.run(500)
    group.weather.part("AB", "C")
    group.send("C", 2)  # in the view of all, to nobody
    assert group.run_until(lambda: group.view("C") == "C", 10_000)
    group.send("C", 4)
    group.send("A", 1)
    group.send("C", 1, UNIFORM)
    group.run(200)
    group.weather.cuts.clear()
    assert group.run_until(group.is_one, 30_000)
    group.run(100)
    assert told.together("C") == ["C", "C"]
    assert told.together("A") == ["AB", "AB"]
    assert told.unconfirmed("C") == [(), ((FIFO, 4, 9), (UNIFORM, 1, 1))]
    assert told.unconfirmed("A") == [(), ((FIFO, 3, 3),)]
    assert told.unconfirmed("B") == [(), ()]
    group.send("C", 1)
    assert group.run_until(group.is_quiet, 5000), group.waits()


def test_those_who_were_together_all_the_time_lack_nothing() -> None:
    group = ViewGroup("ABC").form()
    told = Told(group)
    for name in "ABC":
        group.send(name, 5)
        group.send(name, 5, UNIFORM)
    group.propose("A")
    assert group.run_until(group.is_quiet, 5000), group.waits()
    assert [told.unconfirmed(name) for name in "ABC"] == [[()]] * 3
    assert [told.together(name) for name in "ABC"] == [["ABC"]] * 3


# What is remembered


class Sending:
    """As much of a sender as counts here."""

    def __init__(self, high: int, **held: int) -> None:
        names = {"A": A, "B": B, "C": C}
        self.acks = AckTable(names.values(), 0)
        for name, received in held.items():
            self.acks.update(names[name], received, 0)
        self.window = self
        self.high = high


def test_of_several_who_come_back_the_one_counts_that_held_least() -> None:
    parted = Parted()
    parted.part({FIFO: Sending(5, A=5, B=3, C=4)}, {A})  # type: ignore[dict-item]
    later = {FIFO: Sending(7, A=7)}
    assert parted.meet([C], later) == ((FIFO, 5, 7),)  # type: ignore[arg-type]
    assert parted.meet([B, C], later) == ((FIFO, 4, 7),)  # type: ignore[arg-type]
    assert parted.meet([B, C], later) == ()  # type: ignore[arg-type]
    assert len(parted) == 0


def test_those_who_parted_last_are_remembered() -> None:
    parted, sending = Parted(), Sending(5)
    for incarnation in range(2, PARTED_MAX + 10):
        sending.acks.set_members([A, B._replace(incarnation=incarnation)], 0)
        parted.part({FIFO: sending}, {A})  # type: ignore[dict-item]
    assert len(parted) == PARTED_MAX
