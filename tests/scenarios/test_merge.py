"""Groups that fall apart and come together: cuts that are not clean, who is out and who is parted,
what is sent meanwhile, and who dies of it. Whole members, one story per test."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from random import Random
from typing import TYPE_CHECKING

import pytest

from ringcast.config import MembershipConfig
from ringcast.core.effects import Suspected
from ringcast.errors import TooFewMembers
from ringcast.events import Delivered, Undeliverable, ViewInstalled, Writable
from ringcast.model import Origin, Stream
from ringcast.protocols.multicast import ReliableMulticast
from ringcast.wire.frames import Begin, Merged, MergeRequest, Sync
from support.membership import Town

if TYPE_CHECKING:
    from ringcast.core.effects import Effects
    from ringcast.model import Member
    from support.membership import Sent

NOTICED = 8.0
"""Seconds in which whoever is not heard has been left out, and the others know."""


def members(town: Town) -> dict[str, Member]:
    return {name: node.me for name, node in town.nodes.items()}


def merged_views(town: Town, member: Member) -> list[ViewInstalled]:
    events = town.events[member]
    return [event for event in events if isinstance(event, ViewInstalled) and event.parts]


def part_all(town: Town, *sides: str) -> None:
    for one, other in combinations(sides, 2):
        town.part(one, other)


def send_and_check(town: Town, names: str) -> None:
    """Everybody sends, everybody gets it, and every sender knows."""
    for name in names:
        assert town.send(name, b"last of " + name.encode()) == 1
    town.run(1)
    for name in names:
        for other in names:
            got = town.delivered(town.nodes[other].me, town.nodes[name].me)
            assert got[-1:] == [b"last of " + name.encode()], (name, other)
        assert town.is_drained(name)


def until_they_merge(seed: int, one: str, other: str) -> Town:
    """What was one group is two, which hear each other again: the first asks for a merge."""
    town = Town(seed, capacity=8)
    town.form(one + other)
    town.part(one, other)
    town.run(NOTICED)
    for name in one + other:
        town.send(name, b"apart")
    town.heal()
    town.run_until(lambda: town.sent[-1].has(MergeRequest), within=20)
    return town


def steps_of_the_merge(seed: int, one: str, other: str) -> int:
    town = until_they_merge(seed, one, other)
    steps = 0
    while not town.agree(one + other):
        town.step()
        steps += 1
    assert steps > 5
    return steps


# Clean cuts


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.proof) for seed in (1, 2))]
)
def test_three_components_with_messages_all_the_time(seed: int) -> None:
    """What is sent apart is for one's own component; once together it is for all."""
    random = Random(seed)
    town = Town(seed, capacity=16)
    town.form("ABCDEF")
    before = members(town)
    part_all(town, "AB", "CD", "EF")
    sides = {name: side for side in ("AB", "CD", "EF") for name in side}
    numbers = dict.fromkeys("ABCDEF", 0)
    last_apart: dict[str, int] = {}

    def send_a_little() -> None:
        for name in "ABCDEF":
            is_apart = not merged_views(town, before[name])
            if random.random() < 0.5 and town.send(name, b"%d" % (numbers[name] + 1)):
                numbers[name] += 1
                if is_apart and town.group(name) == sides[name]:
                    last_apart[name] = numbers[name]

    for _ in range(20):
        send_a_little()
        town.run(0.4)
    assert [town.group(name) for name in "ACE"] == ["AB", "CD", "EF"]
    town.lose = lambda sent: random.random() < 0.1
    town.cut.clear()
    for _ in range(60):
        send_a_little()
        town.run(0.1)
    town.heal()
    town.run_until_agreed("ABCDEF", within=20)
    assert members(town) == before
    send_and_check(town, "ABCDEF")
    for name, sender in before.items():
        for other, receiver in before.items():
            got = town.delivered(receiver, sender)[:-1]
            if other in sides[name]:
                assert got == [b"%d" % number for number in range(1, numbers[name] + 1)]
            else:
                # A beginning from before anybody noticed the cut, and all from some place on.
                after = [int(text) for text in got if int(text) > last_apart[name]]
                assert after == list(range(numbers[name] - len(after) + 1, numbers[name] + 1))
                assert after


def test_a_part_of_one_in_a_group_of_many() -> None:
    town = Town()
    town.form("ABCDE")
    before = members(town)
    town.part("A", "BCDE")
    town.run(NOTICED)
    assert (town.group("A"), town.group("B")) == ("A", "BCDE")
    town.heal()
    town.run_until_agreed("ABCDE", within=20)
    assert members(town) == before
    assert town.group("E") == "BCDEA"
    send_and_check(town, "ABCDE")


def test_parted_again_before_the_merge_is_known_to_all() -> None:
    """At every step of a merge the network breaks as before; when it heals all is well."""
    for steps in range(0, steps_of_the_merge(2, "AB", "CD") + 8, 3):
        town = until_they_merge(2, "AB", "CD")
        before = members(town)
        for _ in range(steps):
            town.step()
        town.part("AB", "CD")
        town.run(8)
        assert {town.group(name) for name in "ABCD"} == {"AB", "CD"}, steps
        town.heal()
        town.run_until_agreed("ABCD", within=30)
        assert members(town) == before, steps
        send_and_check(town, "ABCD")


def test_the_leader_of_a_merge_crashes_at_every_step_with_messages_under_way() -> None:
    for steps in range(0, steps_of_the_merge(5, "ABC", "DE") + 10, 2):
        town = until_they_merge(5, "ABC", "DE")
        assert town.sent[-1].dest == "A"  # it leads
        for _ in range(steps):
            town.step()
            town.send("B", b"%d" % len(town.sent))
            town.send("D", b"%d" % len(town.sent))
        before = members(town)
        town.crash("A")
        town.run_until_agreed("BCDE", within=30)
        assert {name: node.me for name, node in town.nodes.items()} == {
            name: me for name, me in before.items() if name != "A"
        }, steps
        send_and_check(town, "BCDE")


# Cuts that are not clean


@pytest.mark.parametrize("seed", range(3))
def test_overlapping_views(seed: int) -> None:
    """A and B hear each other, B and C do, A and C do not."""
    town = Town(seed)
    town.form("ABC")
    town.part("A", "C")
    town.run(20)
    for name in "ABC":
        if town.group(name):
            town.send(name, b"meanwhile")
    town.run(5)
    for one, other in combinations("ABC", 2):
        # Who is in the same view says so; nobody believes in a view that its members do not have.
        if other in town.group(one) and town.nodes[one].view == town.nodes[other].view:
            assert one in town.group(other)
    town.heal()
    town.run_until_agreed("ABC", within=30)
    send_and_check(town, "ABC")


def test_a_star_whose_centre_dies() -> None:
    town = Town()
    town.form("ABCD")
    part_all(town, "A", "C", "D")  # each hears B alone
    town.run(NOTICED)
    town.crash("B")
    town.run(NOTICED)
    assert [town.group(name) for name in "ACD"] == ["A", "C", "D"]
    town.heal()
    town.run_until_agreed("ACD", within=30)
    send_and_check(town, "ACD")


@pytest.mark.parametrize(("deaf", "others"), [("A", "BC"), ("C", "AB"), ("B", "AC")])
def test_a_member_that_is_heard_and_hears_nobody(deaf: str, others: str) -> None:
    town = Town()
    town.form("ABC")
    town.cut = {(other, deaf) for other in others}
    town.run(10)
    town.heal()
    town.run_until_agreed("ABC", within=30)
    send_and_check(town, "ABC")


def test_the_asymmetric_split() -> None:
    """C is not heard by the others, who go on without it. It hears that, and comes back as another
    incarnation; what it could not send to one of them is reported, and nothing comes twice."""
    town = Town()
    town.form("ABC")
    first, receiver = town.nodes["C"].me, town.nodes["A"].me
    node = town.nodes["C"]
    assert node.send([b"heard"], town.now, to=receiver) == 1
    town._turn("C")
    town.run(0.5)
    town.cut = {("C", "A"), ("C", "B")}
    assert node.send([b"not heard"], town.now, to=receiver) == 1
    town._turn("C")
    town.run(NOTICED)
    assert town.group("A") == "AB"
    assert town.closed(first)[0].reason.endswith("goes on without this member")
    lost = [event for event in town.events[first] if isinstance(event, Undeliverable)]
    assert [(event.to, event.first, event.last) for event in lost] == [(receiver, 2, 2)]
    town.heal()
    town.run_until_agreed("ABC", within=20)
    assert town.nodes["C"].me != first
    unicast = [e for e in town.events[receiver] if isinstance(e, Delivered) and e.sender == first]
    assert [payload for event in unicast for payload in event.run.payloads] == [b"heard"]
    send_and_check(town, "ABC")


def test_unicast_goes_on_by_sync_after_a_merge() -> None:
    """Both have had each other out of their views and have kept their incarnations. The receiver
    has no window any more, the sender goes on: the receiver asks where they stand."""
    town = Town()
    town.form("ABCD")
    a, c = town.nodes["A"].me, town.nodes["C"].me

    def send(*payloads: bytes) -> None:
        assert town.nodes["A"].send(payloads, town.now, to=c) == len(payloads)
        town._turn("A")

    send(b"before")
    town.run(0.5)
    town.part("AB", "CD")
    town.run(NOTICED)
    town.heal()
    town.run_until_agreed("ABCD", within=20)
    syncs = town.count(Sync)
    send(b"after 1", b"after 2")
    town.run(2)
    got = [e.run.payloads for e in town.events[c] if isinstance(e, Delivered) and e.sender == a]
    assert [text for texts in got for text in texts] == [b"before", b"after 1", b"after 2"]
    assert members(town)["A"] == a
    assert town.count(Sync) >= syncs


# Who is out, and who is parted


@pytest.mark.parametrize(
    ("away", "is_out"),
    [("E", True), ("DE", True), ("CDE", False), ("BCDE", False)],
)
def test_excluded_or_partitioned(away: str, is_out: bool) -> None:
    """Some sleep, cut off from the others, who go on without them; then they hear of that. Where
    most others of theirs are there, it is they who are out and come back anew. Where most are not,
    those have parted from them: they go on as they were, and come together."""
    town = Town()
    town.form("ABCDE")
    before = members(town)
    stay = "".join(name for name in "ABCDE" if name not in away)
    town.part(stay, away)
    town.paused.update(away)
    town.run(NOTICED)
    assert town.group("A") == stay
    town.heal()
    for name in away:
        town.pause(name, 0.0)  # and wakes
    town.run_until_agreed("ABCDE", within=30)
    after = members(town)
    assert {name for name in "ABCDE" if after[name] != before[name]} == set(away if is_out else "")
    assert bool(merged_views(town, before["A"])) is not is_out
    send_and_check(town, "ABCDE")


def test_both_sides_have_excluded_each_other() -> None:
    """Then nobody is out, however few are on one side."""
    town = Town()
    town.form("ABCDE")
    before = members(town)
    town.part("AB", "CDE")
    town.run(NOTICED)
    town.heal()
    town.run_until_agreed("ABCDE", within=20)
    assert members(town) == before
    assert all(not town.closed(member) for member in before.values())


def test_a_coordinator_that_nobody_left_watches_is_missed_all_the_same() -> None:
    """Of five, each watches three. If the other four die at once, the one that is not watched is
    whom the last member would ask to leave the others out."""
    town = Town()
    town.form("ABCDE")
    town.crash("ABCD")
    town.run_until(lambda: town.group("E") == "E", within=20)
    send_and_check(town, "E")


def test_a_member_whose_group_has_gone_two_ways() -> None:
    """B and C have gone on together, A is not heard any more and nobody that E still hears watches
    it: E must not wait for A to see to that."""
    town = Town()
    town.form("ABCDE")
    before = members(town)
    part_all(town, "A", "BC", "D", "E")
    town.run(1.0)
    town.cut = {pair for pair in town.cut if pair not in {("B", "E"), ("E", "B")}}
    town.run(10)
    assert "A" not in town.group("E")
    town.heal()
    town.run_until_agreed("ABCDE", within=30)
    assert members(town)["A"] == before["A"]
    send_and_check(town, "ABCDE")


def suspect(town: Town, name: str, other: str) -> None:
    """Its failure detector has found out."""
    node = town.nodes[name]
    node._out.signal(Suspected(town.nodes[other].me, "not heard"))
    node.handle_timeout(town.now)
    town._turn(name)


def test_a_view_of_another_line_brings_nobody_back() -> None:
    """E alone hears all. A leaves D out, which E installs; at the same time B leaves A out. When B
    then makes a view with E and D, these two have no windows for each other any more."""
    town = Town(capacity=8)
    town.form("ABCDE")
    before = members(town)
    town.part("AC", "BD")
    suspect(town, "A", "D")
    town.run_until(lambda: town.group("E") == "ABCE", within=1)
    suspect(town, "B", "A")
    town.run_until(lambda: town.group("D") == "BCDE", within=1)
    assert town.group("E") == "ABCE"
    suspect(town, "B", "C")
    town.run_until(lambda: town.group("D") == "BDE", within=1)
    town.run(0.01)
    assert town.group("E") == "ABCE"
    town.run(NOTICED)
    assert [town.group(name) for name in "ABCDE"] == ["ACE", "BD", "ACE", "BD", "ACE"]
    town.heal()
    town.run_until_agreed("ABCDE", within=30)
    assert members(town) == before
    send_and_check(town, "ABCDE")


# A Begin that comes too late


class WithoutCounter(ReliableMulticast):
    """To it one Begin is as good as another: the first that comes opens the window."""

    def _on_begin(self, source: Member, begin: Begin, now: int, out: Effects) -> None:
        self.group.departed.pop(source, None)
        receiver = self._receivers.get(Origin(source, begin.stream))
        known = begin if receiver is None else replace(begin, counter=receiver.counter)
        super()._on_begin(source, known, now, out)


def begin_again(multicast: type[ReliableMulticast]) -> Town:
    """A and B come together, part, and come together. Of B's words about where to begin, those of
    the second time are lost, and the ones of the first time come once more."""
    town = Town(multicast=multicast)
    town.form("AB")
    begins: list[Begin] = []

    def overhear(sent: Sent) -> bool:
        found = [f for f in sent.frames if sent.source == "B" and isinstance(f, Begin)]
        begins.extend(found)
        return bool(found) and found[0].counter > begins[0].counter

    for _ in range(2):
        town.part("A", "B")
        town.run(NOTICED)
        town.heal()
        town.lose = overhear
        town.run_until_agreed("AB", within=20)
        assert town.send("B", b"1", b"2", b"3") == 3
        town.run(0.2)
    a, b = (town.nodes[name] for name in "AB")
    assert begins[-1].offset == 3 > begins[0].offset
    assert Origin(b.me, Stream.FIFO) not in a.multicast.windows()
    for datagram in b.codec.pack(begins[:1], a.me):
        a.receive_datagrams([datagram], town.now)
        town._turn("A")
    return town


def test_a_begin_from_an_earlier_time_together_opens_nothing() -> None:
    town = begin_again(ReliableMulticast)
    a, b = (town.nodes[name] for name in "AB")
    assert Origin(b.me, Stream.FIFO) not in a.multicast.windows()
    town.heal()
    town.run(1)
    assert town.delivered(a.me, b.me) == [b"1", b"2", b"3"] * 2


def test_without_its_counter_a_late_begin_opens_a_window_that_nobody_can_fill() -> None:
    town = begin_again(WithoutCounter)
    a, b = (town.nodes[name] for name in "AB")
    origin = Origin(b.me, Stream.FIFO)
    opened_at, kept_from = a.multicast.windows()[origin].low, b.multicast.windows()[origin].low
    assert opened_at < kept_from  # against N9
    town.heal()
    town.run(20)
    assert town.delivered(a.me, b.me) == [b"1", b"2", b"3"]  # the others never come: against N-L1
    assert not town.is_drained("B")


# Groups that are too small


def test_majority_and_minority_of_five() -> None:
    """The smaller side sends nothing to the group; the larger does, and after the merge both."""
    town = Town(membership=MembershipConfig(min_members=3))
    town.form("ABCDE")
    town.part("AB", "CDE")
    town.run(NOTICED)
    assert town.send("C", b"by the majority") == 1
    for name in "AB":
        with pytest.raises(TooFewMembers, match="2 of 3 members"):
            town.send(name, b"by the minority")
    town.heal()
    town.run_until_agreed("ABCDE", within=20)
    waiting = town.events[town.nodes["A"].me]
    assert any(isinstance(event, Writable) and event.to is None for event in waiting)
    send_and_check(town, "ABCDE")
    for name in "ABDE":
        got = town.delivered(town.nodes[name].me, town.nodes["C"].me)
        assert (b"by the majority" in got) is (name in "DE")


def test_who_joins_in_the_middle_of_a_merge_hears_of_it_once() -> None:
    """At every step of a merge somebody starts: it gets in, nobody is lost, no window is moved."""
    for steps in range(0, 45, 4):
        town = until_they_merge(7, "AB", "CD")
        before = members(town)
        for _ in range(steps):
            town.step()
        town.start("E")
        town.run_until_agreed("ABCDE", within=30)
        assert {name: me for name, me in members(town).items() if name != "E"} == before, steps
        assert town.count(Merged) > 0
        send_and_check(town, "ABCDE")
