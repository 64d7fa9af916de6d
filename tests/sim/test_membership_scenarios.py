"""Groups that form, change and heal by themselves: one story per test, whole members."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from ringcast.protocols.admission import HALVES_AT_ONCE
from support.membership import NAMES, SECOND, Town, lose_once

from ringcast.config import MembershipConfig
from ringcast.core.shared import Phase
from ringcast.errors import GroupClosed
from ringcast.events import ViewInstalled
from ringcast.model import Origin, Stream
from ringcast.protocols.multicast import ReliableMulticast
from ringcast.wire.frames import (
    Begin,
    Begun,
    Data,
    Discover,
    DiscoverReply,
    Half,
    HalfWanted,
    Join,
    Leave,
    Merged,
    MergeRequest,
    Suspect,
    ViewAck,
    ViewIs,
    Welcome,
)

if TYPE_CHECKING:
    from support.membership import Sent

    from ringcast.model import Member
    from ringcast.wire.frames import Frame

DETECTED = 2.75 + 0.1
"""Seconds from a crash to the suspicion, with delays."""


def texts(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


def merges(town: Town, member: Member) -> list[ViewInstalled]:
    """The views in which it has come together with others, as its application saw them."""
    events = town.events[member]
    return [event for event in events if isinstance(event, ViewInstalled) and event.parts]


def parts(town: Town, member: Member) -> list[str]:
    """Of the one merge that it has seen."""
    (event,) = merges(town, member)
    return ["".join(who.name for who in part) for part in event.parts]


# Beginnings


@pytest.mark.parametrize("seed", range(5))
def test_five_that_start_together_form_one_group(seed: int) -> None:
    town = Town(seed)
    town.start("ABCDE")
    town.run_until_agreed("ABCDE", within=2)
    assert [name for name in NAMES[:5] if town.membership(name).started_alone] == ["A"]
    assert all(not town.closed(node.me) for node in town.nodes.values())


def test_nobody_there() -> None:
    town = Town()
    town.start("A")
    assert 0.3 <= town.run_until_agreed("A", within=1) < 0.31
    assert town.membership("A").started_alone


def test_a_group_that_must_exist_and_does_not() -> None:
    town = Town()
    town.start("A", must_exist=True)
    me = town.nodes["A"].me
    town.run(1)
    assert "A" not in town.nodes  # nor has it come back
    assert town.closed(me)[0].reason == "nobody answered at 5 addresses"


def test_a_group_that_must_exist_and_does() -> None:
    town = Town()
    town.form("A")
    town.start("B", must_exist=True)
    town.run_until_agreed("AB", within=1)
    assert not town.membership("B").started_alone


def test_two_of_whom_both_need_a_group_that_exists() -> None:
    town = Town()
    town.start("AB", must_exist=True)
    town.run(3)
    assert town.nodes == {}


def test_two_lone_founders_meet() -> None:
    town = Town()
    town.part("A", "B")
    town.start("AB")
    town.run(1)
    assert (town.group("A"), town.group("B")) == ("A", "B")
    founders = [town.nodes[name].me for name in "AB"]
    town.heal()
    town.run_until_agreed("AB", within=5)
    assert [town.nodes[name].me for name in "AB"] == founders
    assert town.group("A") == "AB"
    assert parts(town, founders[0]) == parts(town, founders[1]) == ["A", "B"]


def test_a_lone_founder_comes_to_the_larger_group_whatever_its_address() -> None:
    town = Town()
    town.part("A", "BC")
    town.start("A")
    town.form("BC")
    founder = town.nodes["A"].me
    town.heal()
    town.run_until_agreed("ABC", within=5)
    assert town.group("A") == "BCA"
    assert town.nodes["A"].me == founder


def test_addresses_that_come_later_are_asked_at_once() -> None:
    town = Town()
    town.form("A")
    town.start("B", candidates=None)
    town.nodes["B"].add_candidates([town.nodes["A"].me.address], town.now)
    town._turn("B")
    town.run_until_agreed("AB", within=0.1)


# Joins


def test_everybody_delivers_what_is_sent_from_the_join_on() -> None:
    town = Town(capacity=8)
    town.form("AB")
    town.start("C")
    sent: list[bytes] = []
    while not town.agree("ABC"):
        text = b"%d" % len(sent)
        if town.send("B", text):
            sent.append(text)
        for _ in range(3):
            town.step()
    town.run(1)
    sent.append(b"last")
    assert town.send("B", b"last") == 1
    town.run(1)
    sender = town.nodes["B"].me
    assert town.delivered(town.nodes["A"].me, sender) == sent
    got = town.delivered(town.nodes["C"].me, sender)
    assert got
    assert got == sent[-len(got) :]
    assert town.is_drained("B")


def steps_of_a_join(seed: int) -> int:
    town = Town(seed)
    town.form("ABC")
    town.start("D")
    steps = 0
    while not town.agree("ABCD"):
        town.step()
        steps += 1
    return steps


@pytest.mark.parametrize("victims", ["A", "AB"])
def test_the_coordinator_crashes_at_any_step_of_a_join(victims: str) -> None:
    total = steps_of_a_join(seed=3)
    assert total > 10
    survivors = "".join(name for name in "ABCD" if name not in victims)
    for steps in range(total + 1):
        town = Town(seed=3)
        town.form("ABC")
        town.start("D")
        for _ in range(steps):
            town.step()
        town.crash(victims)
        town.run_until_agreed(survivors, within=15)
        town.send("C", b"after")
        town.run(1)
        for name in survivors:
            got = town.delivered(town.nodes[name].me, town.nodes["C"].me)
            assert got == [b"after"], (steps, name)
        assert town.is_drained("C"), steps


def test_a_joiner_that_dies_at_any_step_leaves_nothing_behind() -> None:
    for steps in range(steps_of_a_join(seed=4) + 1):
        town = Town(seed=4)
        town.form("ABC")
        town.start("D")
        for _ in range(steps):
            town.step()
        town.crash("D")
        town.run(5)
        assert town.agree("ABC"), steps
        for node in town.nodes.values():
            assert node.explain(town.now) == [], steps
            membership = node.membership
            assert membership is not None
            stats = membership.stats()
            assert (stats["joiners_waiting"], stats["leavers"], stats["suspects"]) == (0, 0, {})
            assert {o.sender for o in node.multicast.windows()} == set(town.nodes["A"].view or ())


def test_two_joins_and_a_leave_at_once() -> None:
    town = Town()
    town.form("ABC")
    leaver = town.nodes["C"].me
    town.start("DE")
    town.leave("C")
    town.run_until_agreed("ABDE", within=2)
    assert town.closed(leaver)[0].reason == "left"
    views = [view for view in town.views(town.nodes["A"].me) if view.counter > 3]
    assert len(views) <= 3  # nobody is let in by a view of one's own


@pytest.mark.parametrize("victims", ["AB", "BC", "ABC"])
def test_a_coordinator_and_the_next_ones_crash_together(victims: str) -> None:
    town = Town()
    town.form("ABCDE")
    town.crash(victims)
    survivors = "".join(name for name in "ABCDE" if name not in victims)
    assert town.run_until_agreed(survivors, within=10) < 2 * DETECTED + 1


def test_a_coordinator_dies_when_only_one_has_heard_of_its_view() -> None:
    """The next one makes another with the same number, which that one does not install: told so, it
    makes one above both. Or it would wait for an acknowledgement until they part."""
    town = Town()
    town.form("ABCDE")
    before = town.nodes["E"].view
    town.lose = lambda sent: (
        sent.has(ViewIs) and sent.dest in "CD" and town.nodes["D"].view == before
    )
    town.crash("A")
    town.run_until(lambda: town.nodes["E"].view != before, within=2 * DETECTED)
    town.crash("BC")
    town.run_until(lambda: town.nodes["D"].view != before, within=2 * DETECTED)
    theirs, other = town.nodes["D"].view, town.nodes["E"].view
    assert theirs is not None
    assert other is not None
    assert theirs.counter == other.counter
    assert theirs != other
    town.run_until_agreed("DE", within=0.1)
    assert not merges(town, town.nodes["E"].me)


# Restarts


@pytest.mark.parametrize("name", ["C", "B"])
def test_a_member_restarts_before_it_is_missed(name: str) -> None:
    town = Town()
    town.form("ABC")
    before = town.nodes[name].me
    town.crash(name)
    town.run(0.05)
    town.start(name)
    took = town.run_until_agreed("ABC", within=5)
    assert took < 1.5  # long before its silence alone would have been noticed
    assert before not in (town.nodes["A"].view or ())


def test_the_coordinator_restarts_before_it_is_missed() -> None:
    town = Town()
    town.form("ABC")
    town.crash("A")
    town.run(0.05)
    town.start("A")
    assert town.run_until_agreed("ABC", within=5) < 2.5
    assert town.group("A") == "BCA"
    assert not town.membership("A").started_alone


def test_a_lone_coordinator_restarts() -> None:
    town = Town()
    town.form("A")
    town.crash("A")
    town.start("A")
    town.run_until_agreed("A", within=1)


def test_a_joiner_that_restarts_while_it_is_let_in_is_let_in_once() -> None:
    for steps in range(steps_of_a_join(seed=5) + 1):
        town = Town(seed=5)
        town.form("ABC")
        town.start("D")
        for _ in range(steps):
            town.step()
        town.crash("D")
        town.start("D")
        town.run_until_agreed("ABCD", within=8)


# Links that work one way, or now and then


def test_two_members_and_a_link_that_works_one_way() -> None:
    """A hears B; B does not hear A."""
    town = Town()
    town.form("AB")
    town.cut.add(("A", "B"))
    first = town.nodes["A"].me
    town.run(30)
    assert town.closed(first)[0].reason == "View 3: B goes on without this member"
    assert (town.group("A"), town.group("B")) == ("A", "B")
    assert len(town.views(town.nodes["B"].me)) == 2
    town.heal()
    town.run_until_agreed("AB", within=10)


def test_three_members_and_a_link_that_works_one_way() -> None:
    """A hears B; B does not hear A; C hears both."""
    town = Town()
    town.form("ABC")
    town.cut.add(("A", "B"))
    town.run_until_agreed("BC", within=5)
    town.run(30)
    assert town.group("B") == town.group("C") == "BC"
    assert town.group("A") == ""  # B cannot hear it ask, and it starts no group of its own
    assert town.membership("A").phase in (Phase.LOOKING, Phase.JOINING)
    town.heal()
    town.run_until_agreed("ABC", within=10)


def test_a_flapping_link_makes_a_bounded_number_of_views() -> None:
    """Half a second up, half a second down: nobody is silent for long enough to be left out."""
    town = Town()
    town.form("ABC")
    before = len(town.views(town.nodes["B"].me))
    for _ in range(30):
        town.part("C", "AB")
        town.run(0.5)
        town.heal()
        town.run(0.5)
    assert town.agree("ABC")
    assert len(town.views(town.nodes["B"].me)) == before


def test_a_slowly_flapping_link_costs_two_views_each_time() -> None:
    town = Town()
    town.form("ABC")
    rounds = 4
    before = len(town.views(town.nodes["B"].me))
    for _ in range(rounds):
        town.part("C", "AB")
        town.run(5)
        town.heal()
        town.run(10)
        assert town.agree("ABC")
    assert len(town.views(town.nodes["B"].me)) - before <= 2 * rounds


# Partitions


def halves(town: Town) -> list[Member]:
    """Two groups of what was one: A and B; C, D and E."""
    town.form("ABCDE")
    members = [node.me for node in town.nodes.values()]
    town.part("AB", "CDE")
    town.run(10)
    assert (town.group("A"), town.group("C")) == ("AB", "CDE")
    return members


def test_parted_groups_come_together_again() -> None:
    town = Town()
    members = halves(town)
    town.heal()
    town.run_until_agreed("ABCDE", within=20)
    assert town.group("A") == "CDEAB"  # the larger one led
    assert [town.nodes[name].me for name in "ABCDE"] == members  # nobody had to start anew
    assert all(parts(town, member) == ["CDE", "AB"] for member in members)
    assert all(not town.closed(member) for member in members)


@pytest.mark.parametrize("seed", range(5))
def test_what_was_sent_apart_stays_apart_and_what_comes_after_reaches_all(seed: int) -> None:
    town = Town(seed, capacity=8)
    town.form("ABCD")
    members = {name: node.me for name, node in town.nodes.items()}
    for name in "ABCD":
        town.send(name, b"together")
    town.run(1)
    town.part("AB", "CD")
    town.run(10)
    for name in "ABCD":
        town.send(name, b"apart 1", b"apart 2")
    town.heal()
    during: dict[str, list[bytes]] = {name: [] for name in "ABCD"}
    while not town.agree("ABCD"):
        for name in "ABCD":
            text = b"during %d" % len(during[name])
            if town.send(name, text):
                during[name].append(text)
        town.run(0.02)
    town.run(1)
    for name in "ABCD":
        assert town.send(name, b"after") == 1
    town.run(1)
    for name, sender in members.items():
        assert town.is_drained(name)
        for receiver in members.values():
            got = town.delivered(receiver, sender)
            apart = [b"apart 1", b"apart 2"]
            is_near = {receiver.name, name} in ({"A", "B"}, {"C", "D"}, {name})
            if is_near:
                assert got == [b"together", *apart, *during[name], b"after"]
            else:
                assert got[0] == b"together"
                assert got[-1] == b"after"
                since = got[1:-1]
                assert since == during[name][len(during[name]) - len(since) :]


def until_they_merge(seed: int) -> Town:
    """A and B; C and D; and A has just made one view of both."""
    town = Town(seed)
    town.form("ABCD")
    town.part("AB", "CD")
    town.run_until(lambda: town.agree("AB") and town.agree("CD"), within=5)
    town.heal()
    town.run_until(lambda: any(sent.has(Merged) for sent in town.sent[-9:]), within=5)
    return town


@pytest.mark.parametrize("victims", ["A", "C", "BC"])
def test_whoever_crashes_at_any_step_of_a_merge_the_others_become_one(victims: str) -> None:
    town = until_they_merge(seed=3)
    total = 0
    while not town.agree("ABCD"):
        town.step()
        total += 1
    assert total >= 3  # three others hear of it
    survivors = "".join(name for name in "ABCD" if name not in victims)
    for steps in range(total + 12):  # acks and beginnings too
        town = until_they_merge(seed=3)
        for _ in range(steps):
            town.step()
        town.crash(victims)
        town.run_until_agreed(survivors, within=30)
        assert town.send("D", b"after") == 1
        town.run(1)
        for name in survivors:
            got = town.delivered(town.nodes[name].me, town.nodes["D"].me)
            assert got == [b"after"], (steps, name)
        assert town.is_drained("D"), steps


def test_who_joins_while_groups_merge_gets_in() -> None:
    for steps in range(0, 24, 3):
        town = until_they_merge(seed=4)
        for _ in range(steps):
            town.step()
        members = [town.nodes[name].me for name in "ABCD"]
        town.start("E")
        town.run_until_agreed("ABCDE", within=20)
        assert [town.nodes[name].me for name in "ABCD"] == members, steps


def test_three_parts_become_one() -> None:
    town = Town()
    town.form("ABCDEF")
    members = [node.me for node in town.nodes.values()]
    for one, other in (("AB", "CD"), ("AB", "EF"), ("CD", "EF")):
        town.part(one, other)
    town.run(10)
    assert [town.group(name) for name in "ACE"] == ["AB", "CD", "EF"]
    town.heal()
    town.run_until_agreed("ABCDEF", within=20)
    assert [town.nodes[name].me for name in "ABCDEF"] == members


def test_a_link_that_comes_and_goes_makes_and_breaks_the_group_ever_less_often() -> None:
    town = Town()
    town.form("ABCD")
    before = len(town.views(town.nodes["B"].me))
    for _ in range(20):
        town.part("AB", "CD")
        town.run(3.5)
        town.heal()
        town.run(3.5)
    times = [len(merges(town, node.me)) for node in town.nodes.values()]
    assert 2 <= max(times) <= 10  # not at each of the twenty
    assert len(town.views(town.nodes["B"].me)) - before <= 30
    town.run_until_agreed("ABCD", within=30)


def test_a_window_that_is_full_for_the_other_side_does_not_keep_them_from_merging() -> None:
    town = Town(capacity=4)
    town.form("ABCD")
    town.part("AB", "CD")
    town.stopped.add("B")
    town.send("A", *texts(1, 9))
    town.run(10)
    town.heal()
    town.run_until_agreed("ABCD", within=20)
    assert town.delivered(town.nodes["C"].me, town.nodes["A"].me) == []
    town.stopped.clear()
    town._turn("B")
    town.run(1)
    assert town.send("A", b"after") == 1
    town.run(1)
    assert town.delivered(town.nodes["B"].me, town.nodes["A"].me) == [*texts(1, 4), b"after"]
    assert town.delivered(town.nodes["C"].me, town.nodes["A"].me) == [b"after"]


# Pauses


def test_a_pause_of_a_minute() -> None:
    town = Town()
    town.form("ABC")
    town.rejoins = False
    paused = town.nodes["C"].me
    town.lose = lambda sent: sent.source == "C" and sent.has(Data)
    town.send("C", b"nobody", b"gets this")
    town.pause("C", 60)
    assert town.agree("AB")
    town.run(1)
    assert "C" not in town.nodes
    (closed,) = town.closed(paused)
    assert closed.reason == "View 4: A, B goes on without this member"
    assert closed.unacked == ((Stream.FIFO, 1, 2),)


def test_who_was_excluded_comes_back_as_another() -> None:
    town = Town()
    town.form("ABC")
    paused = town.nodes["C"].me
    town.pause("C", 60)
    town.run_until_agreed("ABC", within=3)
    assert town.nodes["C"].me != paused
    assert town.closed(paused)[0].unacked == ()


def test_the_coordinator_pauses_for_a_minute() -> None:
    town = Town()
    town.form("ABC")
    town.pause("A", 60)
    town.run_until_agreed("ABC", within=3)
    assert town.group("A") == "BCA"


def test_all_pause_at_once_and_nobody_is_suspected() -> None:
    town = Town()
    town.form("ABC")
    before = town.nodes["A"].view
    town.now += 60 * SECOND  # as if the machine had slept
    town.run(5)
    assert {node.view for node in town.nodes.values()} == {before}
    detectors = [node.detector for node in town.nodes.values()]
    assert [detector.sleeps for detector in detectors if detector is not None] == [1, 1, 1]


# Windows and views


def test_a_full_window_does_not_keep_a_view_from_passing() -> None:
    """N12: the view that frees the sender does not wait for room in its window."""
    town = Town(capacity=4)
    town.form("ABC")
    town.crash("C")
    for name in "AB":
        assert town.send(name, *texts(1, 9)) == 4
        assert town.nodes[name].multicast.is_blocked(Stream.FIFO)
    town.run_until_agreed("AB", within=4)
    town.run(0.5)
    for name in "AB":
        assert not town.nodes[name].multicast.is_blocked(Stream.FIFO)
        assert town.is_drained(name)


def test_a_full_window_does_not_keep_a_joiner_out() -> None:
    town = Town(capacity=4)
    town.form("ABC")
    town.stopped.add("C")
    town.send("B", *texts(1, 9))
    town.run(1)
    assert town.nodes["B"].multicast.is_blocked(Stream.FIFO)
    town.start("D")
    town.run_until_agreed("ABCD", within=1)
    town.stopped.clear()
    town._turn("C")
    town.run(1)
    assert town.is_drained("B")
    assert town.delivered(town.nodes["C"].me, town.nodes["B"].me) == texts(1, 4)
    # Its coordinator had delivered all four: the joiner begins behind them.
    assert town.delivered(town.nodes["D"].me, town.nodes["B"].me) == []


LARGE = bytes(range(256)) * 40  # 11 fragments of at most 972 bytes


def with_a_joiner_in_the_middle_of_a_message(**options: Any) -> Town:
    """B has sent a part of a large message; the rest waits for C, whose application is stopped."""
    town = Town(capacity=8, **options)
    town.form("ABC")
    town.stopped.add("C")
    town.send("B", LARGE)
    town.run(0.5)
    taken = town.nodes["A"].digest().entries[Origin(town.nodes["B"].me, Stream.FIFO)]
    assert 0 < taken <= 8
    town.start("D")
    return town


def assert_it_arrives_whole(town: Town) -> None:
    town.run_until_agreed("ABCD", within=10)
    town.stopped.clear()
    town._turn("C")
    town.run(1)
    for name in "ABCD":
        assert town.delivered(town.nodes[name].me, town.nodes["B"].me) == [LARGE], name
    assert town.is_drained("B")


def test_a_joiner_in_the_middle_of_a_large_message_gets_it_whole() -> None:
    town = with_a_joiner_in_the_middle_of_a_message()
    assert_it_arrives_whole(town)
    assert town.count(Half) >= 1


@pytest.mark.parametrize("kind", [Half, HalfWanted, Welcome])
def test_a_joiner_gets_the_first_half_whatever_is_lost(kind: type[Frame]) -> None:
    town = with_a_joiner_in_the_middle_of_a_message()
    assert_it_arrives_whole(town)
    total = town.count(kind)
    assert total >= 1
    for number in range(total):
        town = with_a_joiner_in_the_middle_of_a_message()
        town.lose = lose_once(kind, after=number)
        assert_it_arrives_whole(town)


def test_more_halves_than_are_sent_at_once() -> None:
    payload = bytes(972 * 3 * HALVES_AT_ONCE)
    town = Town(capacity=2 * HALVES_AT_ONCE + 3)
    town.form("ABC")
    town.stopped.add("C")
    town.send("B", payload)
    town.run(0.5)
    town.start("D")
    town.run_until_agreed("ABCD", within=10)
    assert town.count(HalfWanted) == 3
    town.stopped.clear()
    town._turn("C")
    town.run(1)
    assert town.delivered(town.nodes["D"].me, town.nodes["B"].me) == [payload]


def test_fetching_may_take_longer_than_silence_is_borne() -> None:
    """A slow link to the joiner: each request is answered late, but each is answered."""
    payload = bytes(972 * 200)
    town = Town(capacity=160)
    town.form("ABC")
    town.stopped.add("C")
    town.send("B", payload)
    town.run(0.5)
    asked: list[int] = []

    def is_lost(sent: Sent) -> bool:
        """One request a second gets through."""
        if not sent.has(HalfWanted):
            return False
        if asked and town.now - asked[-1] < SECOND:
            return True
        asked.append(town.now)
        return False

    town.lose = is_lost
    town.start("D")
    took = town.run_until_agreed("ABCD", within=20)
    assert took > town.membership("A")._overdue / SECOND
    assert len(town.views(town.nodes["A"].me)) == 4  # it was never left out


# Single losses


def join_of_c(town: Town) -> None:
    town.form("AB")
    town.start("C")
    town.run_until_agreed("ABC", within=5)


def leave_of_c(town: Town) -> None:
    town.form("ABC")
    town.leave("C")
    town.run_until_agreed("AB", within=5)


def merge_of_two(town: Town) -> None:
    town.part("A", "B")
    town.start("AB")
    town.run(1)
    town.cut.clear()
    town.run_until_agreed("AB", within=5)
    for name in "AB":
        assert town.send(name, b"after") == 1
    town.run_until(lambda: town.is_drained("A") and town.is_drained("B"), within=5)


def crash_of_c(town: Town) -> None:
    town.form("ABC")
    town.crash("C")
    town.run_until_agreed("AB", within=5)


STORIES = {
    "join": join_of_c,
    "leave": leave_of_c,
    "crash": crash_of_c,
    "merge_request": merge_of_two,
}
KINDS: dict[str, tuple[type[Frame], ...]] = {
    "join": (Discover, DiscoverReply, Join, ViewIs, ViewAck, Welcome),
    "leave": (Leave, ViewIs, ViewAck),
    "crash": (Suspect, ViewIs, ViewAck),
    "merge_request": (MergeRequest, Merged, ViewAck, Begin, Begun),
}


@pytest.mark.parametrize(
    ("story", "kind"), [(story, kind) for story, kinds in KINDS.items() for kind in kinds]
)
def test_each_single_loss_is_repaired(story: str, kind: type[Frame]) -> None:
    town = Town(seed=2)
    STORIES[story](town)
    total = town.count(kind)
    assert total >= 1
    for number in range(total):
        town = Town(seed=2)
        town.lose = lose_once(kind, after=number)
        STORIES[story](town)
        town.run(6)  # whoever was told for the first time is told again
        assert town.agree()
        assert all(not node.explain(town.now) for node in town.nodes.values())


# Leaving


@pytest.mark.parametrize("name", ["A", "B", "C"])
def test_a_member_leaves(name: str) -> None:
    town = Town()
    town.form("ABC")
    leaver = town.nodes[name].me
    town.send(name, *texts(1, 3))
    town.leave(name)
    with pytest.raises(GroupClosed):
        town.nodes[name].send([b"late"], town.now)
    rest = "ABC".replace(name, "")
    assert town.run_until_agreed(rest, within=1) < 0.2
    town.run(1)
    assert name not in town.nodes
    (closed,) = town.closed(leaver)
    assert (closed.reason, closed.unacked, closed.unsent_bytes) == ("left", (), 0)
    for other in rest:
        assert town.delivered(town.nodes[other].me, leaver) == texts(1, 3)


def test_the_last_member_leaves() -> None:
    town = Town()
    town.form("A")
    me = town.nodes["A"].me
    town.leave("A")
    assert town.nodes == {}
    assert town.closed(me)[0].reason == "left"


def test_all_leave_at_once() -> None:
    town = Town()
    town.form("ABCD")
    for name in "ABCD":
        town.leave(name)
    town.run(12)
    assert town.nodes == {}


def test_leaving_waits_for_others_to_take_what_was_sent() -> None:
    town = Town()
    town.form("ABC")
    town.stopped.add("B")
    leaver = town.nodes["C"].me
    town.send("C", *texts(1, 3))
    town.leave("C")
    town.run(3)
    assert town.membership("C").is_leaving
    town.stopped.clear()
    town._turn("B")
    town.run_until_agreed("AB", within=1)
    assert town.delivered(town.nodes["B"].me, leaver) == texts(1, 3)


def test_leaving_ends_by_time_if_others_take_nothing() -> None:
    town = Town()
    town.form("ABC")
    town.stopped.add("B")
    leaver = town.nodes["C"].me
    town.send("C", *texts(1, 3))
    town.leave("C")
    took = town.run_until_agreed("AB", within=6)
    assert 3.75 <= took < 3.85  # a quarter of the time is kept for the goodbye
    town.run(0.1)
    assert town.closed(leaver)[0].unacked == ((Stream.FIFO, 1, 3),)


@pytest.mark.parametrize("name", ["A", "C"])
def test_leaving_ends_when_all_others_are_gone(name: str) -> None:
    town = Town()
    town.form("ABC")
    leaver = town.nodes[name].me
    rest = "ABC".replace(name, "")
    town.part(name, rest)
    town.leave(name)
    assert town.run_until(lambda: name not in town.nodes, within=4) < DETECTED
    assert town.closed(leaver)[0].reason == "left"
    town.run_until_agreed(rest, within=5)


@pytest.mark.parametrize(
    ("name", "kinds", "reason"),
    [("C", [Leave], "left without an answer"), ("A", [ViewAck, ViewIs], "left")],
    ids=["member", "coordinator"],
)
def test_leaving_ends_by_time_if_nobody_answers(
    name: str, kinds: list[type[Frame]], reason: str
) -> None:
    town = Town()
    town.form("ABC")
    leaver = town.nodes[name].me
    town.lose = lambda sent: sent.dest == "A" and any(map(sent.has, kinds))
    town.leave(name)
    assert 4.5 <= town.run_until(lambda: name not in town.nodes, within=11) < 5.1
    assert town.closed(leaver)[0].reason == reason
    town.heal()
    town.run_until_agreed("ABC".replace(name, ""), within=5)


def test_a_coordinator_leaves_though_a_member_is_silent() -> None:
    """It must not come back into the view that it has already left to the others."""
    town = Town()
    town.form("ABC")
    town.part("C", "AB")
    town.leave("A")
    town.run_until_agreed("B", within=12)
    assert "A" not in town.nodes
    assert all("A" not in str(view) for view in town.views(town.nodes["B"].me)[2:])


def test_a_joiner_that_gives_up_says_so() -> None:
    town = Town()
    town.form("AB")
    town.lose = lambda sent: sent.has(Welcome)
    town.start("C")
    town.run_until(lambda: town.group("A") == "ABC", within=1)
    me = town.nodes["C"].me
    town.leave("C")
    assert town.run_until_agreed("AB", within=1) < 0.1
    assert town.closed(me)[0].reason == "left before it was in"


# Silence


def test_a_member_that_never_acknowledges_a_view_is_left_out() -> None:
    """Pong as far as the detector sees, but it holds up a join."""
    town = Town()
    town.form("ABC")
    town.lose = lambda sent: sent.source == "C" and sent.has(ViewAck)
    silent = town.nodes["C"].me
    town.start("D")
    took = town.run_until(lambda: town.group("D") != "", within=10)
    assert 4.5 <= took < 5
    assert silent not in (town.nodes["D"].view or ())
    assert town.closed(silent)[0].reason.endswith("goes on without this member")
    town.heal()
    town.run_until_agreed("ABCD", within=10)


def test_a_joiner_that_never_answers_does_not_keep_others_out() -> None:
    town = Town()
    town.form("AB")
    town.lose = lambda sent: sent.dest == "C" and sent.has(Welcome)
    town.start("C")
    town.run(0.5)
    town.start("D")
    town.run_until(lambda: "D" in town.group("D"), within=10)


class Impatient(ReliableMulticast):
    """Complains whatever was agreed."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **(options | {"slow_member_timeout_s": 2.0}))


AGREED = MembershipConfig(slow_member_timeout_s=2.0)


@pytest.mark.parametrize(("slow", "sender"), [("C", "A"), ("C", "B"), ("A", "B")])
def test_a_slow_member_is_left_out_where_that_was_agreed(slow: str, sender: str) -> None:
    town = Town(capacity=4, membership=AGREED)
    town.form("ABC")
    town.stopped.add(slow)
    member = town.nodes[slow].me
    assert town.send(sender, *texts(1, 9)) == 4
    took = town.run_until(lambda: member not in (town.nodes[sender].view or ()), within=4)
    assert 2 <= took < 2.6
    assert not town.nodes[sender].multicast.is_blocked(Stream.FIFO)
    town.run(1)
    (closed,) = town.closed(member)
    assert closed.reason in ("held the others up", "View 4: A, B goes on without this member")
    assert town.agree("ABC")  # it is back, as another


def test_a_slow_member_is_borne_with_by_default() -> None:
    town = Town(capacity=4)
    town.form("ABC")
    town.stopped.add("C")
    assert town.send("B", *texts(1, 9)) == 4
    town.run(60)
    assert town.agree("ABC")
    assert town.nodes["B"].multicast.is_blocked(Stream.FIFO)
    (reason,) = [why for why in town.nodes["B"].explain(town.now) if "blocked" in why]
    assert "limited by C" in reason


def test_a_complaint_is_not_acted_upon_where_it_was_not_agreed() -> None:
    """The sender would have C left out; its coordinator would not."""
    town = Town(capacity=4, multicast=Impatient)
    town.form("ABC")
    town.stopped.add("C")
    town.send("B", *texts(1, 9))
    town.run(30)
    assert town.count(Suspect) >= 1
    assert town.agree("ABC")


def test_a_lost_complaint_is_repeated() -> None:
    town = Town(capacity=4, membership=AGREED)
    town.form("ABC")
    town.stopped.add("C")
    town.lose = lose_once(Suspect)
    slow = town.nodes["C"].me
    town.send("B", *texts(1, 9))
    took = town.run_until(lambda: slow not in (town.nodes["B"].view or ()), within=6)
    assert 4 <= took < 5.1


def test_a_member_that_gets_on_is_not_too_slow() -> None:
    """One message a second is less than the sender would like, but no standstill."""
    town = Town(capacity=4, membership=AGREED)
    town.form("ABC")
    town.stopped.add("C")
    for _ in range(20):
        town.send("B", *texts(1, 9))
        town.run(1)
        node = town.nodes["C"]
        town.events[node.me] += node.take_events(1, town.now)
        town._turn("C")
    assert town.count(Suspect) == 0
    assert town.agree("ABC")


def test_who_is_held_up_by_himself_complains_about_nobody() -> None:
    town = Town(capacity=4, membership=AGREED)
    town.form("ABC")
    town.stopped |= {"B", "C"}
    town.send("B", *texts(1, 9))
    town.run(10)
    assert town.count(Suspect) == 0
    assert town.agree("ABC")


# Whoever is behind is told


def test_a_member_that_missed_a_view_hears_of_it_by_its_beats() -> None:
    """The maker of the view does not repeat it here: only the answer to a beat gets through."""
    town = Town()
    town.form("ABCD")
    missed = town.nodes["D"].me
    town.lose = lambda sent: sent.dest == "D" and sent.source != "B"
    before = town.nodes["A"].view
    town.leave("C")
    town.run_until(lambda: town.nodes["D"].view != before, within=1)
    assert town.nodes["D"].me == missed
    assert town.group("D") == "ABD"


# Reasons


def only(reasons: list[str], word: str) -> str:
    (reason,) = [reason for reason in reasons if word in reason]
    return reason


def test_every_wait_is_explained() -> None:
    town = Town()
    town.form("AB")
    assert town.explain() == {"A": [], "B": []}

    town.lose = lambda sent: sent.dest == "C" and sent.has(DiscoverReply)
    town.start("C")
    town.run(0.1)
    looking = only(town.explain()["C"], "looking")
    assert looking == "looking for the group for 0.1 s: 5 addresses asked; decided in 0.2 s"

    town.lose = lambda sent: sent.source == "B" and sent.has(ViewAck)
    town.run_until(lambda: town.membership("C").phase is Phase.JOINING, within=2)
    town.run(1)
    pattern = r"join pending: A has not let us in for 1\.\d s; if it is silent for [12]\.\d s more"
    assert re.match(pattern, only(town.explain()["C"], "pending"))
    change = only(town.explain()["A"], "acknowledged")
    assert re.fullmatch(
        r"View 3: A, B, C is not acknowledged by B for 1\.\d s; left out in 3\.\d s", change
    )
    town.start("D")
    town.run(0.5)
    assert only(town.explain()["A"], "to be let in").startswith("D to be let in")

    town.lose = lambda sent: sent.has(Welcome)
    town.run(0.5)
    told = only(town.explain()["A"], "no answer yet")
    assert re.fullmatch(r"C let in \d\.\d s ago, no answer yet; left out in \d\.\d s", told)

    town.heal()
    town.run_until_agreed("ABCD", within=10)
    town.stopped.add("A")
    town.send("B", b"x")
    town.leave("B")
    town.run(1)
    leaving = only(town.explain()["B"], "leaving")
    assert leaving == "leaving for 1.0 s: waits for others to take what was sent; gone in 4.0 s"
    town.stopped.clear()
    town.lose = lambda sent: sent.has(Leave)
    town._turn("A")
    town.run(0.5)
    leaving = only(town.explain()["B"], "leaving")
    assert "waits for the others' goodbye" in leaving

    town.heal()
    town.run_until_agreed("ACD", within=5)
    town.part("C", "AD")
    town.cut |= {("D", "A")}
    town.run(2.6)
    suspected = [why for reasons in town.explain().values() for why in reasons if "suspect" in why]
    assert any("no sign of life" in why for why in suspected)
