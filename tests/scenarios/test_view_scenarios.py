"""Whole members, and something that happens at every step of something else.

Virtual synchrony holds; whoever lives is in one view in the end, nothing waits, and what is sent
then reaches everybody.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ringcast.config import MembershipConfig
from ringcast.errors import TooFewMembers
from ringcast.model import Origin, Stream
from ringcast.wire.frames import Ack, Commit, Data
from support.view_group import SMALL, ViewGroup, name_of

if TYPE_CHECKING:
    from ringcast.wire.frames import Frame

STEPS_MS = [0.5, 1.5, 2.5, 3.5, 5.5]
"""Between the datagrams of a uniform message, which take a millisecond each."""

QUIET_MS = 40_000.0


def come_to_rest(group: ViewGroup) -> None:
    assert group.run_until(group.is_quiet, QUIET_MS), group.waits()
    group.is_lost = None
    for process in group.living():
        for stream in group.streams:
            assert group.send(name_of(process.address), 1, stream)
    group.run(1000)
    assert group.undelivered() == []
    assert group.observed.violations() == []


def got_in_first_view(group: ViewGroup, name: str, origin: Origin) -> list[bytes]:
    """What it has delivered of this one in the view of all."""
    me = group.node(name).me
    view = next(view for view in group.observed.views_of(me) if len(view) == len(group.names))
    return group.observed.got(me, view.id, origin)


# Uniform messages


def test_it_takes_three_delays() -> None:
    """To all, back from all, and to all again (U-L1); two at the sender."""
    group = ViewGroup("ABC").form()
    sent = group.send("B", 3, Stream.UNIFORM)
    b = group.node("B").me
    for after_ms, names in ((2.0, "B"), (1.0, "ABC")):
        group.run(after_ms)
        having = [name for name in "ABC" if group.delivered(group.node(name).me, b) == sent]
        assert having == list(names)


def test_a_few_control_frames_stand_for_any_number_of_messages() -> None:
    config = replace(SMALL, multicast=replace(SMALL.multicast, capacity=512))
    group = ViewGroup("ABC", config=config).form()
    said: list[type[Frame]] = []

    def listen(_source: str, _dest: str, kinds: set[type[Frame]]) -> bool:
        said.extend(kinds)
        return False

    group.is_lost = listen
    assert len(group.send("B", 500, Stream.UNIFORM)) == 500
    group.run(100)
    assert said.count(Commit) <= 12
    assert said.count(Ack) <= 24


@pytest.mark.parametrize("at_ms", STEPS_MS)
@pytest.mark.parametrize("victim", "ABC")
@pytest.mark.parametrize("how", ["crashes", "leaves", "crashes, and little arrives"])
def test_anybody_goes_at_any_step_of_a_message(how: str, victim: str, at_ms: float) -> None:
    group = ViewGroup("ABC").form()
    origin = Origin(group.node("B").me, Stream.UNIFORM)
    if "little" in how:
        group.is_lost = lambda source, dest, kinds: (source, dest) == ("B", "C") and Data in kinds
    sent = group.send("B", 3, Stream.UNIFORM)
    group.run(at_ms)
    if how == "leaves":
        group.leave(victim)
    else:
        group.crash(victim)
    others = "ABC".replace(victim, "")
    come_to_rest(group)
    got = [got_in_first_view(group, name, origin) for name in others]
    assert got[0] == got[1]
    if how == "leaves" or victim != "B":
        assert got[0] == sent


@pytest.mark.parametrize("after_ms", range(8, 20))
def test_somebody_joins_at_any_step_of_a_message(after_ms: int) -> None:
    group = ViewGroup("ABC").form("AB")
    group.start("C")
    group.run(after_ms)
    for name in "AB":
        for stream in (Stream.FIFO, Stream.UNIFORM):
            group.send(name, 3, stream)
    come_to_rest(group)


def test_a_cascade_down_to_the_last_survivor() -> None:
    """What one member alone has of a dead sender reaches the last of all, whoever dies of it."""
    group = ViewGroup("ABCDE", hint_ms=None).form()
    group.is_lost = lambda source, dest, kinds: source == "A" and dest != "B" and Data in kinds
    sent = group.send("A", 3, Stream.UNIFORM)
    origin = Origin(group.node("A").me, Stream.UNIFORM)
    group.run(1.5)
    group.crash("A")
    for victim, after in (("B", "BCDE"), ("C", "CDE"), ("D", "DE")):
        assert group.run_until(lambda now=after: group.view("E") == now, 10_000)  # type: ignore[misc]
        group.crash(victim)
    assert group.run_until(lambda: group.view("E") == "E", 10_000)
    assert got_in_first_view(group, "E", origin) == sent
    come_to_rest(group)


# Parts


def parted() -> ViewGroup:
    """AB and CD, each in a view of its own; E has not started."""
    group = ViewGroup("ABCDE", hint_ms=None).form("ABCD")
    group.weather.part("AB", "CDE")
    assert group.run_until(lambda: (group.view("A"), group.view("C")) == ("AB", "CD"), 10_000)
    group.run(20_000)  # nobody waits to meet any more
    return group


@pytest.mark.parametrize("what", ["sends", "A dies", "C dies", "D leaves", "E joins", "parts"])
@pytest.mark.parametrize("at_step", range(0, 10, 2))
def test_something_happens_at_any_step_as_parts_come_together(what: str, at_step: int) -> None:
    group = parted()
    for name in "AC":
        group.send(name, 2)
        group.send(name, 2, Stream.UNIFORM)
    group.weather.cuts.clear()
    assert group.run_until(lambda: group.layer("C").change.is_frozen, 5_000)
    group.run(0.5 * at_step)
    match what:
        case "sends":
            for name in "ABCD":
                group.send(name, 2, Stream.UNIFORM)
        case "A dies" | "C dies":
            group.crash(what[0])
        case "D leaves":
            group.leave("D")
        case "E joins":
            group.start("E")
        case "parts":
            group.weather.part("AB", "CD")
            group.run(10_000)
            group.weather.cuts.clear()
    come_to_rest(group)


def test_unicast_goes_on_after_parts_have_come_together() -> None:
    """Both have had each other out of their views, and are who they were."""
    group = ViewGroup("ABCD", hint_ms=None).form()
    a, c = group.node("A"), group.node("C").me

    def send(*payloads: bytes) -> None:
        assert a.send(payloads, group.world.clock.now, to=c) == len(payloads)
        group.signal("A")

    send(b"before")
    group.run(500)
    group.weather.part("AB", "CD")
    group.run(10_000)
    group.weather.cuts.clear()
    assert group.run_until(group.is_one, 30_000)
    send(b"after 1", b"after 2")
    group.run(2000)
    assert group.delivered(c, a.me) == [b"before", b"after 1", b"after 2"]


def test_only_the_larger_side_sends_if_so_many_members_are_wanted() -> None:
    config = replace(SMALL, membership=MembershipConfig(min_members=3))
    group = ViewGroup("ABCDE", config=config, hint_ms=None).form("ABC")
    group.form("DE")
    group.weather.part("AB", "CDE")
    assert group.run_until(lambda: (group.view("A"), group.view("C")) == ("AB", "CDE"), 10_000)
    with pytest.raises(TooFewMembers):
        group.send("A")
    assert group.send("C")
    group.weather.cuts.clear()
    come_to_rest(group)


def test_a_star_whose_centre_dies() -> None:
    """B, C and D hear A alone: they are in views with it, one at a time; and then with nobody."""
    group = ViewGroup("ABCD", hint_ms=None).form()
    group.weather.part("B", "C", "D")
    group.run(5_000)
    group.crash("A")
    assert group.run_until(lambda: all(group.view(name) == name for name in "BCD"), 20_000)
    group.weather.cuts.clear()
    come_to_rest(group)


def test_a_coordinator_that_nobody_left_watches_is_missed_all_the_same() -> None:
    """Of five each watches three: the last member does not watch all that die at once."""
    group = ViewGroup("ABCDE", hint_ms=None).form()
    for name in "ABCD":
        group.crash(name)
    assert group.run_until(lambda: group.view("E") == "E", 20_000)
    come_to_rest(group)
