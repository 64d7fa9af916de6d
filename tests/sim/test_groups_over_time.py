"""Groups of whole nodes in virtual time: who comes, goes, sleeps and holds others up.

What a view change does step by step is in tests/scripts/views and in the tests of its parts.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringcast.config import MembershipConfig, MulticastConfig
from ringcast.events import Closed
from ringcast.model import Stream
from ringcast.wire.changes import Complain, Propose
from support.view_group import SMALL, ViewGroup, address_of

MINUTE_MS = 60_000.0
TINY = replace(SMALL, multicast=MulticastConfig(capacity=4, datagram_bytes=1000))
AGREED = replace(TINY, membership=MembershipConfig(slow_member_timeout_s=2.0))


# Coming and going


def test_addresses_that_come_later_are_asked_at_once() -> None:
    group = ViewGroup("AB").form("A")
    group.names = "B"  # it knows of nobody
    group.start("B")
    group.run(10)
    group.node("B").add_candidates([address_of("A")], group.process("B").now)
    group.process("B").turn()
    assert group.run_until(group.is_one, 100)


def test_two_join_and_one_leaves_at_once() -> None:
    group = ViewGroup("ABCDE").form("ABC")
    group.start("D")
    group.start("E")
    group.leave("B")
    assert group.run_until(lambda: group.is_one() and sorted(group.view("A")) == [*"ACDE"], 1000)
    assert group.observed.violations() == []


@pytest.mark.parametrize("victims", ["AB", "ABC", "BC", "AD"])
@pytest.mark.parametrize("hint_ms", [0.0, None])
def test_a_coordinator_and_the_next_ones_crash_together(
    victims: str, hint_ms: float | None
) -> None:
    group = ViewGroup("ABCDE", hint_ms=hint_ms).form()
    for victim in victims:
        group.crash(victim)
    assert group.run_until(group.is_one, 10_000)
    sent = group.send(group.view("E")[0], 3)
    group.run(1000)
    assert len(sent) == 3
    assert group.undelivered() == []


def test_all_leave_at_once() -> None:
    group = ViewGroup("ABC").form()
    for name in "ABC":
        group.send(name, 3)
        group.leave(name)
    group.run(6000)
    assert group.living() == []


@pytest.mark.parametrize("name", ["A", "B"])
def test_leaving_ends_when_all_others_are_gone(name: str) -> None:
    group = ViewGroup("ABC").form()
    for other in "ABC".replace(name, ""):
        group.crash(other)
    group.leave(name)
    assert group.run_until(lambda: group.living() == [], 5100)


# Pauses


@pytest.mark.parametrize("name", ["A", "C"])
def test_who_sleeps_for_a_minute_comes_back_as_it_is(name: str) -> None:
    group = ViewGroup("ABC").form()
    before = group.node(name).me
    process = group.process(name)
    process.pause()
    group.run(MINUTE_MS)
    others = "ABC".replace(name, "")
    assert sorted(group.view(others[0])) == [*others]
    process.resume()
    assert group.run_until(group.is_one, 5000)
    assert sorted(group.view("A")) == [*"ABC"]
    assert group.node(name).me == before
    sent = group.send(name, 2)
    group.run(500)
    assert len(sent) == 2
    assert group.undelivered() == []


def test_all_pause_at_once_and_nobody_is_suspected() -> None:
    group = ViewGroup("ABC").form()
    before = group.node("A").view
    processes = [group.process(name) for name in "ABC"]
    for process in processes:
        process.pause()
    group.run(MINUTE_MS)  # as if the machine had slept
    for process in processes:
        process.resume()
    group.run(5000)
    assert {process.node.view for process in processes} == {before}


# Who holds others up


def closed(group: ViewGroup, name: str) -> list[Closed]:
    return [event for event in group.events[group.node(name).me] if isinstance(event, Closed)]


@pytest.mark.parametrize(("slow", "sender"), [("C", "A"), ("C", "B"), ("A", "B")])
def test_a_slow_member_is_left_out_where_that_was_agreed(slow: str, sender: str) -> None:
    group = ViewGroup("ABC", config=AGREED).form()
    group.read(slow, 0)
    assert len(group.send(sender, 9)) == 4
    began = group.now_ms
    assert group.run_until(lambda: slow not in group.view(sender), 4000)
    assert 2000 <= group.now_ms - began < 2600
    assert not group.node(sender).multicast.is_blocked(Stream.FIFO)
    group.run(1000)
    assert len(closed(group, slow)) == 1


@pytest.mark.parametrize("is_agreed", [False, True])
def test_others_are_borne_with(is_agreed: bool) -> None:
    """Where nothing was agreed; and whoever gets on, if slowly."""
    group = ViewGroup("ABC", config=AGREED if is_agreed else TINY).form()
    group.read("C", 0)
    for _ in range(20):
        group.send("B", 9)
        group.run(1000)
        if is_agreed:
            group.read("C", 1)
            group.read("C", 0)
    assert group.is_one()
    group.send("B", 9)
    assert group.node("B").multicast.is_blocked(Stream.FIFO)
    reasons = [why for why in group.node("B").explain(group.process("B").now) if "blocked" in why]
    assert "limited by C" in " ".join(reasons)


def test_who_is_held_up_by_itself_complains_of_nobody() -> None:
    group = ViewGroup("ABC", config=AGREED).form()
    complaints: list[str] = []
    group.is_lost = lambda source, _, kinds: Complain in kinds and not complaints.append(source)
    group.read("B", 0)
    group.read("C", 0)
    group.send("B", 9)
    group.run(10_000)
    assert complaints == []
    assert group.is_one()


def test_a_lost_complaint_is_repeated() -> None:
    group = ViewGroup("ABC", config=AGREED).form()
    lost: list[str] = []

    def is_lost(source: str, dest: str, kinds: set[type]) -> bool:
        if Complain in kinds and not lost:
            lost.append(source)
            return True
        return False

    group.is_lost = is_lost
    group.read("C", 0)
    group.send("B", 9)
    assert group.run_until(lambda: "C" not in group.view("B"), 8000)
    assert lost == ["B"]


# Who is behind is told


def test_a_member_that_missed_a_view_hears_of_it_by_its_beats() -> None:
    """Nothing of the change reaches D, nor does anything else but what B answers to its beats."""
    group = ViewGroup("ABCD").form()
    group.is_lost = lambda source, dest, kinds: dest == "D" and (source != "B" or Propose in kinds)
    group.suspect("A", "D")
    assert group.run_until(lambda: group.view("A") == "ABC", 3000)
    assert group.run_until(lambda: group.view("D") == "D", 3000)
    group.is_lost = None
    assert group.run_until(group.is_one, 10_000)
