"""Members that purge in different ways never share a group, and whoever comes last is told why."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import pytest
from ringcast.protocols.membership import (
    INCOMPATIBLE_RECENTLY_NS,
    JOIN_PATIENCE_NS,
    Membership,
    Phase,
)
from support.membership import SECOND, Town, address_of

from ringcast.config import MembershipConfig, StabilityConfig
from ringcast.core.effects import Effects, Left
from ringcast.model import Address, Digest, Member, Purge, View, ViewId
from ringcast.node import build_node
from ringcast.protocols.views.discovery import GATHER_NS, IncompatiblePeer
from ringcast.wire.frames import Discover, DiscoverReply, Join, Merged, MergeRequest, Welcome

if TYPE_CHECKING:
    from ringcast.wire.frames import Frame

ACKS, STABILITY, RETAINED = Purge
CONFIGS = {
    ACKS: None,
    STABILITY: StabilityConfig(retain_delivered=False),
    RETAINED: StabilityConfig(),
}
OTHERWISE = [(ours, theirs) for ours, theirs in product(Purge, Purge) if ours is not theirs]
WAIT_NS = round(MembershipConfig().discovery_wait_s * SECOND)


def member(name: str) -> Member:
    return Member(Address("h", ord(name)), 1, name)


A, B, C, D = map(member, "ABCD")


class Desk:
    """One machine, a clock, and all that came out of it since it was last looked at."""

    def __init__(
        self, me: Member = B, purge: Purge = RETAINED, *, must_exist: bool = False
    ) -> None:
        self.layer = Membership(me, MembershipConfig(), must_exist=must_exist, purge=purge)
        self.out = Effects()
        self.now = SECOND
        self.layer.start(self.now, self.out)

    def coordinator(self) -> Desk:
        """In a group of its own."""
        self.wait(2 * WAIT_NS)
        assert self.layer.view is not None
        self.sent()
        return self

    def receive(self, source: Member, *frames: Frame) -> None:
        self.layer.receive(source, frames, self.now, self.out)
        self.layer.check_invariants()

    def wait(self, duration: int) -> None:
        """Let time pass, with every deadline in it."""
        stop = self.now + duration
        while (at := self.layer.deadlines.next()) is not None and at <= stop and not self.reasons:
            self.now = at
            self.layer.handle_timeout(at, self.out)
            self.layer.check_invariants()
        self.now = stop

    def sent(self) -> list[tuple[object, Frame]]:
        frames: list[tuple[object, Frame]] = [*self.out.frames]
        self.out.frames.clear()
        return frames

    @property
    def reasons(self) -> list[str]:
        """Why it has gone."""
        return [signal.reason for signal in self.out.signals if isinstance(signal, Left)]

    def explained(self) -> list[str]:
        return [line for line in self.layer.explain(self.now) if "purges" in line]


# What is said


@pytest.mark.parametrize("purge", Purge)
def test_whoever_looks_and_whoever_answers_says_how_it_purges(purge: Purge) -> None:
    desk = Desk(purge=purge)
    desk.layer.add_candidates([A.address], desk.now, desk.out)
    desk.receive(C, Discover(purge))
    assert desk.sent() == [(A.address, Discover(purge)), (C, DiscoverReply(None, 0, purge))]
    desk.coordinator()
    desk.wait(SECOND)
    assert (A.address, Discover(purge)) in desk.sent()
    desk.receive(C, Discover(purge))
    desk.receive(C, DiscoverReply(C, 1, purge))  # it is for that one to come to us
    desk.receive(D, Join())
    desk.receive(A, MergeRequest(View(ViewId(A, 1), (A, C))))  # and for us to go to this one
    answers = [frame for _, frame in desk.sent() if isinstance(frame, DiscoverReply)]
    assert answers == [DiscoverReply(B, 1, purge)] * 3 + [DiscoverReply(B, 2, purge)]


@pytest.mark.parametrize(
    ("who", "theirs", "ours", "text"),
    [
        (A, ACKS, RETAINED, "A at h:65 purges by acks, and this member by stability with retained"),
        (A, RETAINED, STABILITY, "A at h:65 purges by stability with retained messages, and this"),
        (A._replace(name=""), STABILITY, ACKS, "h:65 purges by stability, and this member by acks"),
    ],
)
def test_what_does_not_fit_is_said_in_words(
    who: Member, theirs: Purge, ours: Purge, text: str
) -> None:
    said = IncompatiblePeer(who, theirs).against(ours)
    assert said.startswith(text)
    assert said.endswith(": give all members the same `stability`")


# Looking


@pytest.mark.parametrize(("ours", "theirs"), OTHERWISE)
@pytest.mark.parametrize("must_exist", [False, True])
def test_a_group_that_purges_otherwise_cannot_be_joined(
    ours: Purge, theirs: Purge, must_exist: bool
) -> None:
    desk = Desk(purge=ours, must_exist=must_exist)
    desk.receive(C, DiscoverReply(D, 3, theirs))
    assert desk.reasons == []
    desk.wait(GATHER_NS)
    assert desk.reasons == [IncompatiblePeer(C, theirs).against(ours)]
    assert desk.layer.refusal == desk.reasons[0]
    assert desk.layer.phase is Phase.OUT
    assert not desk.layer.may_rejoin
    assert desk.sent() == []


@pytest.mark.parametrize("is_first", [True, False])
def test_of_two_groups_the_one_that_fits_is_joined(is_first: bool) -> None:
    desk = Desk()
    answers = [(C, DiscoverReply(C, 1, RETAINED)), (D, DiscoverReply(D, 9, ACKS))]
    for source, answer in answers if is_first else answers[::-1]:
        desk.receive(source, answer)
    desk.wait(GATHER_NS)
    assert desk.sent() == [(C, Join())]
    assert desk.reasons == []


def test_answers_of_one_group_are_not_waited_for_longer_the_more_there_are() -> None:
    desk = Desk()
    desk.receive(C, DiscoverReply(D, 3, ACKS))
    desk.wait(GATHER_NS // 2)
    desk.receive(D, DiscoverReply(D, 3, ACKS))
    desk.wait(GATHER_NS // 2)
    assert desk.reasons == [IncompatiblePeer(D, ACKS).against(RETAINED)]


def test_a_group_where_our_predecessor_is_believed_in_does_not_wait_for_us_either() -> None:
    desk = Desk()
    desk.receive(C, DiscoverReply(B._replace(incarnation=9), 3, ACKS))
    desk.wait(GATHER_NS)
    assert desk.reasons == [IncompatiblePeer(C, ACKS).against(RETAINED)]


@pytest.mark.parametrize("frame", [Discover(ACKS), DiscoverReply(None, 0, ACKS)])
def test_a_rival_that_ranks_behind_us_changes_nothing(frame: Frame) -> None:
    desk = Desk()
    desk.receive(C, frame)
    desk.wait(WAIT_NS)
    assert desk.layer.started_alone
    assert desk.layer.incompatible_peers == 1


@pytest.mark.parametrize("frame", [Discover(ACKS), DiscoverReply(None, 0, ACKS)])
def test_a_rival_that_ranks_before_us_may_start_the_group_and_then_we_give_up(frame: Frame) -> None:
    desk = Desk()
    desk.receive(A, frame)
    desk.wait(WAIT_NS)
    assert desk.layer.phase is Phase.LOOKING
    desk.receive(A, DiscoverReply(A, 1, ACKS))
    desk.wait(GATHER_NS)
    assert desk.reasons == [IncompatiblePeer(A, ACKS).against(RETAINED)]


@pytest.mark.parametrize("frame", [Discover(ACKS), DiscoverReply(None, 0, ACKS)])
def test_a_rival_that_is_gone_was_not_worth_giving_up_for(frame: Frame) -> None:
    desk = Desk()
    desk.receive(A, frame)
    desk.wait(2 * WAIT_NS)
    assert desk.layer.started_alone
    assert desk.reasons == []


def test_a_rival_is_answered_and_explained() -> None:
    desk = Desk()
    desk.receive(A, Discover(ACKS))
    assert desk.sent() == [(A, DiscoverReply(None, 0, RETAINED))]
    desk.wait(SECOND // 10)
    said = f"{IncompatiblePeer(A, ACKS).against(RETAINED)}; left alone, heard 0.1 s ago"
    assert desk.explained() == [said]


def test_a_search_forgets_what_the_one_before_has_heard() -> None:
    """It was joining a group that fits when it heard of another, and then that one fell silent."""
    desk = Desk()
    desk.receive(D, DiscoverReply(D, 9, ACKS))
    desk.receive(C, DiscoverReply(C, 1, RETAINED))
    desk.wait(GATHER_NS)
    assert desk.layer.phase is Phase.JOINING
    desk.wait(JOIN_PATIENCE_NS + WAIT_NS)
    assert desk.layer.started_alone
    assert desk.reasons == []


# Joining


def test_a_joiner_is_not_sent_on_to_a_group_that_purges_otherwise() -> None:
    desk = Desk()
    desk.receive(C, DiscoverReply(C, 1, RETAINED))
    desk.wait(GATHER_NS)
    desk.sent()
    desk.receive(C, DiscoverReply(D, 9, ACKS))
    desk.receive(D, DiscoverReply(D, 9, ACKS))
    assert (desk.sent(), desk.reasons) == ([], [])
    assert desk.layer.phase is Phase.JOINING
    desk.receive(C, Welcome(View(ViewId(C, 2), (C, B)), Digest({})))
    assert desk.layer.is_member
    assert desk.layer.incompatible_peers == 2


# In a group


@pytest.mark.parametrize(("ours", "theirs"), OTHERWISE)
def test_a_member_answers_and_otherwise_leaves_it_alone(ours: Purge, theirs: Purge) -> None:
    desk = Desk(purge=ours).coordinator()
    view = desk.layer.view
    for size in (0, 1, 99):  # a group to come to, or one that would come to us
        desk.receive(A, DiscoverReply(A if size else None, size, theirs))
        assert desk.sent() == []
    desk.receive(A, Discover(theirs))
    assert desk.sent() == [(A, DiscoverReply(B, 1, ours))]
    assert desk.layer.reunion.leader is None
    assert (desk.layer.view, desk.reasons) == (view, [])
    assert desk.layer.stats()["incompatible_peers"] == 4


def test_the_last_of_them_is_explained_and_not_for_ever() -> None:
    desk = Desk().coordinator()
    assert desk.explained() == []
    for source in (A, C, D):
        desk.receive(source, Discover(ACKS))
    desk.wait(3 * SECOND)
    said = f"{IncompatiblePeer(D, ACKS).against(RETAINED)}; left alone, heard 3.0 s ago"
    assert desk.explained() == [said]
    desk.wait(INCOMPATIBLE_RECENTLY_NS - 3 * SECOND)
    assert desk.explained() == []
    assert desk.layer.stats()["incompatible_peers"] == 3


def test_whoever_fits_is_not_mentioned() -> None:
    desk = Desk().coordinator()
    desk.receive(A, Discover(RETAINED), DiscoverReply(A, 9, RETAINED))
    assert desk.explained() == []
    assert desk.layer.stats()["incompatible_peers"] == 0
    assert [frame for _, frame in desk.sent()][1:] == [MergeRequest(View(ViewId(B, 1), (B,)))]


# Whole members


class TermsTown(Town):
    """Processes that purge each in its own way."""

    def begin(self, names: str, *purges: Purge) -> None:
        for name, purge in zip(names, purges, strict=True):
            me = Member(address_of(name), next(self._incarnations), name)
            multicast = replace(self._config.multicast, stability=CONFIGS[purge])
            config = replace(self._config, name=name, multicast=multicast)
            self.nodes[name] = build_node(me, config, streams=self._streams)
            self.nodes[name].start(self.now)
            self.nodes[name].add_candidates(map(address_of, "ABCDEF"), self.now)
            self._turn(name)

    def refusals(self) -> dict[str, str]:
        """Who has gone, and why."""
        return {who.name: closed.reason for who in list(self.events) for closed in self.closed(who)}


def test_a_joiner_gives_up_and_the_group_goes_on() -> None:
    town = TermsTown()
    town.begin("B", ACKS)
    town.run(1)
    view, begun = town.nodes["B"].view, town.now
    town.begin("A", RETAINED)
    town.run_until(lambda: "A" in town.refusals(), within=0.1)
    assert town.refusals() == {
        "A": "B at 10.0.0.1:7801 purges by acks, and this member by stability with retained "
        "messages: give all members the same `stability`"
    }
    town.run(3)
    assert town.nodes["B"].view is view
    (line,) = town.explain()["B"]
    assert line.startswith("A at 10.0.0.1:7800 purges by stability with retained messages, and")
    assert town.now - begun > 3 * SECOND
    assert town.count(Join) == 0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("one", "other"), OTHERWISE)
def test_of_two_that_start_together_one_gives_up(one: Purge, other: Purge, seed: int) -> None:
    town = TermsTown(seed)
    town.begin("AB", one, other)
    town.run(3)
    assert town.refusals().keys() == {"B"}
    assert town.group("A") == "A"
    assert town.membership("A").purge is one


@pytest.mark.parametrize("purges", list(product([ACKS, RETAINED], repeat=3)))
def test_of_three_that_start_together_those_who_agree_with_the_first_meet(
    purges: tuple[Purge, ...],
) -> None:
    town = TermsTown()
    town.begin("ABC", *purges)
    town.run(3)
    agreeing = "".join(
        name for name, purge in zip("ABC", purges, strict=True) if purge is purges[0]
    )
    assert town.agree(agreeing)
    assert town.refusals().keys() == set("ABC") - set(agreeing)


def test_who_fits_joins_though_one_that_does_not_starts_with_it() -> None:
    """The one that does not fit ranks before it, and gives up itself."""
    town = TermsTown()
    town.begin("C", RETAINED)
    town.run(1)
    town.begin("AB", ACKS, RETAINED)
    town.run(3)
    assert town.group("C") == "CB"
    assert town.refusals().keys() == {"A"}


def test_two_groups_never_come_together_and_hardly_speak() -> None:
    town = TermsTown()
    town.part("AB", "CD")
    town.begin("A", ACKS)
    town.begin("C", STABILITY)
    town.run(1)
    town.begin("B", ACKS)
    town.begin("D", STABILITY)
    town.run(2)
    assert (town.group("A"), town.group("C")) == ("AB", "CD")
    views = {name: node.view for name, node in town.nodes.items()}
    town.heal()
    town.sent.clear()
    town.run(20)
    assert {name: node.view for name, node in town.nodes.items()} == views
    assert town.count(MergeRequest) == town.count(Merged) == 0
    apart = [sent for sent in town.sent if {sent.source, sent.dest} & {"A", "B"}]
    apart = [sent for sent in apart if {sent.source, sent.dest} & {"C", "D"}]
    # Each coordinator asks both of the others once per second, and is answered.
    assert 0 < len(apart) <= 2 * 2 * 2 * 21
    assert town.membership("A").incompatible_peers > 0
    assert town.membership("C").incompatible_peers > 0
    assert town.refusals() == {}


@pytest.mark.parametrize("purge", Purge)
def test_those_who_agree_meet_and_meet_again(purge: Purge) -> None:
    town = TermsTown()
    town.begin("ABC", purge, purge, purge)
    town.run_until_agreed("ABC")
    town.part("A", "BC")
    town.run_until(lambda: (town.group("A"), town.group("B")) == ("A", "BC"), within=20)
    town.heal()
    town.run_until_agreed("ABC")
    assert [town.membership(name).incompatible_peers for name in "ABC"] == [0, 0, 0]
    assert town.refusals() == {}
