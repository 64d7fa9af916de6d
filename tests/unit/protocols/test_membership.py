"""Membership, one machine at a time: what it answers, what it ignores, what it remembers."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from ringcast.config import MembershipConfig
from ringcast.core.effects import (
    DigestAgreed,
    DigestTaken,
    DigestWanted,
    Effects,
    Flushed,
    Left,
    LetIn,
    NonMember,
    Reunited,
    Suspected,
    TooSlow,
    Trusted,
    VerifyWanted,
    ViewAgreed,
)
from ringcast.model import Address, Digest, Member, Origin, Stream, View, ViewId
from ringcast.protocols.admission import HALVES_AT_ONCE
from ringcast.protocols.change import REPEAT_MAX_NS, REPEAT_START_NS
from ringcast.protocols.views.discovery import GATHER_NS
from ringcast.protocols.membership import (
    DEPARTED_MAX,
    JOIN_PATIENCE_NS,
    Membership,
    Phase,
    Timer,
)
from ringcast.protocols.reunion import FRESH_NS, PATIENCE_NS
from ringcast.wire.frames import (
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
from ringcast.wire.limits import VIEW_MEMBERS_MAX
from support.timers import reorder_due

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ringcast.core.effects import Signal
    from ringcast.wire.frames import Frame

FIFO, UNIFORM = Stream.FIFO, Stream.UNIFORM
SECOND = 1_000_000_000


def member(name: str, incarnation: int = 1) -> Member:
    return Member(Address("h", ord(name)), incarnation, name)


A, B, C, D, E, X, Y, Z = map(member, "ABCDEXYZ")


def view(counter: int, *members: Member, by: Member | None = None) -> View:
    return View(ViewId(by or members[0], counter), members)


class Desk:
    """One machine, a clock, and all that came out of it since it was last looked at."""

    def __init__(
        self,
        me: Member = A,
        *,
        must_exist: bool = False,
        config: MembershipConfig | None = None,
        streams: tuple[Stream, ...] = (FIFO,),
    ) -> None:
        self.layer = Membership(
            me, config or MembershipConfig(), must_exist=must_exist, streams=streams
        )
        self.out = Effects()
        self.now = SECOND

    # States to begin with

    def looking(self, *candidates: Member) -> Desk:
        self.layer.start(self.now, self.out)
        self.layer.add_candidates([who.address for who in candidates], self.now, self.out)
        self.forget()
        return self

    def joining(self, coordinator: Member = B) -> Desk:
        self.looking(coordinator)
        self.receive(coordinator, DiscoverReply(coordinator, 1))
        self.wait(GATHER_NS)
        assert self.layer.phase is Phase.JOINING
        self.forget()
        return self

    def member(self, *members: Member) -> Desk:
        """In view 5 of these, made by the first."""
        self.joining(members[0] if members[0] != self.layer.me else members[1])
        welcome = Welcome(view(5, *members), Digest({}))
        self.receive(members[0] if members[0] != self.layer.me else members[1], welcome)
        assert self.layer.view == welcome.view
        self.forget()
        return self

    def coordinator(self, *others: Member) -> Desk:
        """In a view that it has made itself, of itself and these."""
        self.looking()
        self.wait(SECOND)
        for other in others:
            self.receive(other, Join())
        if others:
            self.answer()
        assert self.layer.change is None
        self.forget()
        return self

    def answer(self, *silent: Member) -> None:
        """Everybody but these acknowledges; joiners are told where to begin, and are in."""
        while (change := self.layer.change) is not None:
            if change.welcome is None and not change.awaiting:
                self.signal(DigestTaken(Digest({})))
            answering = sorted((change.awaiting or change.joiners.keys()) - {*silent})
            if not answering:
                return
            for who in answering:
                self.receive(who, ViewAck(change.view.id))

    # Inputs

    def receive(self, source: Member, *frames: Frame) -> None:
        self.layer.receive(source, frames, self.now, self.out)
        self.layer.check_invariants()

    def signal(self, signal: Signal) -> None:
        self.layer.handle_signal(signal, self.now, self.out)
        self.layer.check_invariants()

    def leave(self) -> None:
        self.layer.leave(self.now, self.out)

    def wait(self, duration: int) -> None:
        """Let time pass, with every deadline in it."""
        stop = self.now + duration
        while (at := self.layer.deadlines.next()) is not None and at <= stop:
            self.now = at
            self.layer.handle_timeout(at, self.out)
            self.layer.check_invariants()
        self.now = stop

    def late(self, duration: int) -> None:
        """Let time pass, and see to what is due only then."""
        self.now += duration
        self.layer.handle_timeout(self.now, self.out)
        self.layer.check_invariants()

    # Outputs

    @property
    def view(self) -> View:
        assert self.layer.view is not None
        return self.layer.view

    @property
    def members(self) -> str:
        """Of its view, by name; empty: it is in none."""
        return "".join(who.name for who in self.layer.view or ())

    def forget(self) -> None:
        self.out.frames.clear()
        self.out.signals.clear()

    def sent(self) -> list[tuple[str, Frame]]:
        names = [dest.name for dest, _ in self.out.frames if isinstance(dest, Member)]
        assert len(names) == len(self.out.frames), "to an address"
        sent = list(zip(names, (frame for _, frame in self.out.frames), strict=True))
        self.out.frames.clear()
        return sent

    def said(self) -> list[Signal]:
        signals = list(self.out.signals)
        self.out.signals.clear()
        return signals

    def reasons(self) -> list[str]:
        return [signal.reason for signal in self.said() if isinstance(signal, Left)]


def to_all(names: str, frame: Frame) -> list[tuple[str, Frame]]:
    return [(name, frame) for name in names]


# Timers that are served late, in any order


@pytest.mark.parametrize("first", [Timer.CHANGE, Timer.OVERDUE, Timer.ASK])
def test_a_late_coordinator_gives_up_a_joiner_and_goes_on_looking(
    first: Timer, monkeypatch: pytest.MonkeyPatch
) -> None:
    reorder_due(monkeypatch, lambda due: sorted(due, key=lambda timer: timer is not first))
    desk = Desk().coordinator()
    desk.receive(X, Join())
    desk.signal(DigestTaken(Digest({})))
    desk.late(SECOND * 60)
    assert desk.members == "A"
    assert desk.layer.change is None
    assert desk.layer._timers.is_armed(Timer.ASK)


@pytest.mark.parametrize("first", [Timer.PATIENCE, Timer.OVERDUE])
def test_whoever_has_left_makes_no_view_any_more(
    first: Timer, monkeypatch: pytest.MonkeyPatch
) -> None:
    reorder_due(monkeypatch, lambda due: sorted(due, key=lambda timer: timer is not first))
    desk = Desk().coordinator(B, C)
    desk.leave()
    desk.signal(Flushed())
    farewell = desk.layer.change
    assert farewell is not None
    desk.receive(B, ViewAck(farewell.view.id))
    desk.forget()
    desk.late(SECOND * 60)
    assert desk.reasons() == ["left without an answer"]
    is_spread = first is Timer.OVERDUE
    assert any(isinstance(frame, ViewIs) for _, frame in desk.sent()) == is_spread
    assert desk.layer.deadlines.next() is None


def test_a_joiner_that_has_a_group_of_its_own_by_now_is_left_out() -> None:
    """All have acknowledged the view, and the digest takes long: nothing is overdue then."""
    desk = Desk().coordinator(B)
    desk.receive(X, Join())
    desk.receive(B, ViewAck(desk.view.id))
    assert desk.members == "ABX"
    assert not desk.layer._timers.is_armed(Timer.OVERDUE)
    desk.receive(X, MergeRequest(view(1, X)))
    assert desk.members == "AB"
    desk.answer()
    desk.receive(X, MergeRequest(view(1, X)))
    assert desk.members == "ABX"  # as another group now


def test_members_that_went_on_without_us_and_would_merge_have_parted() -> None:
    """Nobody who beats to this one is among them: their MergeRequest is all that is heard of it."""
    desk = Desk().coordinator(B, C)
    desk.receive(C, MergeRequest(view(desk.view.counter + 1, C)))
    assert desk.members == "AB"


# Looking


def test_a_start_asks_every_candidate_and_again_ever_less_often() -> None:
    desk = Desk()
    desk.layer.start(desk.now, desk.out)
    desk.layer.add_candidates([B.address, C.address, A.address], desk.now, desk.out)
    assert desk.out.frames == [(B.address, Discover()), (C.address, Discover())]
    desk.forget()
    desk.layer.add_candidates([C.address], desk.now, desk.out)
    assert desk.out.frames == []
    desk.wait(SECOND // 5)
    assert [dest for dest, _ in desk.out.frames] == [B.address, C.address]


def test_who_looks_answers_who_looks() -> None:
    desk = Desk().looking()
    desk.receive(B, Discover())
    assert desk.sent() == [("B", DiscoverReply(None, 0))]
    assert desk.layer.stats()["rivals"] == 1
    assert desk.layer.stats()["candidates"] == 1


def test_a_rival_that_is_lower_starts_and_one_that_is_gone_is_forgotten() -> None:
    desk = Desk(B).looking()
    desk.receive(A, DiscoverReply(None, 0))
    desk.wait(SECOND * 3 // 10)
    assert desk.layer.phase is Phase.LOOKING
    desk.wait(SECOND * 3 // 10)
    assert desk.layer.started_alone
    assert ViewAgreed(view(1, B)) in desk.said()


def test_offers_of_a_few_moments_are_compared() -> None:
    desk = Desk().looking(B, C)
    desk.receive(B, DiscoverReply(B, 1))
    desk.receive(C, DiscoverReply(C, 2))
    desk.wait(GATHER_NS)
    assert desk.sent() == [("C", Join())]
    assert desk.layer.phase is Phase.JOINING


def test_the_predecessor_at_the_own_address_is_not_asked() -> None:
    desk = Desk().looking(B)
    desk.wait(SECOND // 10)
    desk.receive(B, DiscoverReply(member("A", 9), 2))
    desk.wait(SECOND * 29 // 100)
    assert desk.members == ""  # they will notice; do not start alone meanwhile
    desk.receive(B, DiscoverReply(B, 1))
    desk.wait(GATHER_NS)
    assert desk.layer.phase is Phase.JOINING


def test_a_group_that_must_exist() -> None:
    desk = Desk(must_exist=True).looking(B, C)
    desk.wait(SECOND)
    assert desk.reasons() == ["nobody answered at 2 addresses"]
    assert not desk.layer.may_rejoin


def test_before_the_start_and_after_the_end_nothing_is_heard() -> None:
    desk = Desk()
    desk.receive(B, Discover(), Join())
    assert (desk.sent(), desk.layer.ignored) == ([], 2)
    desk.coordinator(B)
    desk.layer.group.close("closed", [desk.layer], desk.now, desk.out)
    desk.receive(C, Discover(), Join(), Suspect(B, is_slow=False))
    assert (desk.sent(), desk.layer.ignored) == ([], 5)
    assert desk.layer.deadlines.next() is None
    assert desk.layer.phase is Phase.OUT


# Joining


def test_a_joiner_asks_again_then_looks_again() -> None:
    desk = Desk().joining(B)
    desk.wait(REPEAT_START_NS)
    assert desk.sent() == [("B", Join())]
    desk.wait(JOIN_PATIENCE_NS)
    assert not desk.layer.is_member
    assert (B.address, Discover()) in desk.out.frames


def test_a_sign_of_the_coordinator_is_worth_waiting() -> None:
    desk = Desk().joining(B)
    for _ in range(5):
        desk.wait(JOIN_PATIENCE_NS * 3 // 4)
        desk.receive(B, DiscoverReply(B, 3))
    assert desk.layer.phase is Phase.JOINING


def test_a_joiner_is_sent_on_to_the_next_coordinator_but_only_by_the_one_it_asked() -> None:
    desk = Desk().joining(B)
    desk.receive(X, DiscoverReply(X, 9))
    assert desk.sent() == []
    desk.receive(B, DiscoverReply(C, 3))
    assert desk.sent() == [("C", Join())]
    desk.receive(B, DiscoverReply(D, 3))
    assert desk.sent() == []


def test_a_joiner_is_in_when_it_is_told_where_to_begin() -> None:
    desk = Desk().joining(B)
    digest = Digest({Origin(B, FIFO): 7, Origin(A, FIFO): 0})
    desk.receive(B, Welcome(view(3, B, A), digest))
    assert desk.said() == [ViewAgreed(view(3, B, A)), DigestAgreed(digest), LetIn(B, digest)]
    assert desk.sent() == [("B", ViewAck(ViewId(B, 3)))]
    assert desk.layer.is_member
    desk.receive(B, Welcome(view(3, B, A), digest))  # the ack was lost
    assert desk.said() == []
    assert desk.sent() == [("B", ViewAck(ViewId(B, 3)))]


@pytest.mark.parametrize(
    "welcome",
    [Welcome(view(3, B, C), Digest({})), Welcome(view(3, B, A), Digest({}))],
    ids=["to a view without me", "of somebody who is not in it"],
)
def test_a_welcome_that_cannot_be_meant_is_ignored(welcome: Welcome) -> None:
    desk = Desk().joining(B)
    desk.receive(B if A not in welcome.view else X, welcome)
    assert (desk.said(), desk.sent(), desk.layer.ignored) == ([], [], 1)
    assert desk.layer.phase is Phase.JOINING


def test_a_welcome_to_an_older_view_than_mine_is_too_late() -> None:
    desk = Desk(C).member(A, B, C)
    desk.receive(A, Welcome(view(4, A, C), Digest({})))
    assert desk.said() == []
    assert desk.sent() == [("A", ViewIs(view(5, A, B, C)))]


def halves_of(count: int | None) -> Welcome:
    origins = [Origin(B, FIFO), Origin(C, FIFO), Origin(A, FIFO)]
    halves = {Origin(B, FIFO): count, Origin(C, FIFO): None}
    return Welcome(view(3, B, C, A), Digest(dict.fromkeys(origins, 9)), halves)


def half(index: int, *, is_last: bool = False, place: int = 0, counter: int = 3) -> Half:
    return Half(counter, place, FIFO, index, b"%d" % index, is_last)


def partials(desk: Desk) -> object:
    (digest,) = [said.digest for said in desk.said() if isinstance(said, DigestAgreed)]
    return digest.partials


def test_what_was_taken_of_a_large_message_is_fetched_first() -> None:
    desk = Desk().joining(B)
    desk.receive(B, halves_of(HALVES_AT_ONCE + 1))
    assert desk.sent() == [("B", HalfWanted(3, 0, FIFO, 0))]
    for index in range(HALVES_AT_ONCE):
        assert desk.sent() == []
        desk.receive(B, half(index, is_last=index == HALVES_AT_ONCE - 1))
    assert desk.sent() == [("B", HalfWanted(3, 0, FIFO, HALVES_AT_ONCE))]
    assert desk.said() == []
    desk.receive(B, half(HALVES_AT_ONCE, is_last=True))
    parts = tuple(b"%d" % index for index in range(HALVES_AT_ONCE + 1))
    assert partials(desk) == {Origin(B, FIFO): parts, Origin(C, FIFO): None}
    assert desk.sent() == [("B", ViewAck(ViewId(B, 3)))]


def test_halves_may_overtake_each_other() -> None:
    desk = Desk().joining(B)
    desk.receive(B, halves_of(3))
    desk.forget()
    for each in (half(2, is_last=True), half(0), half(0), half(1)):
        assert desk.said() == []
        desk.receive(B, each)
    assert partials(desk) == {Origin(B, FIFO): (b"0", b"1", b"2"), Origin(C, FIFO): None}


def test_a_lost_half_is_asked_for_again() -> None:
    desk = Desk().joining(B)
    desk.receive(B, halves_of(3))
    desk.receive(B, half(0), half(2, is_last=True))
    desk.forget()
    desk.wait(REPEAT_START_NS)
    assert desk.sent() == [("B", HalfWanted(3, 0, FIFO, 1))]
    desk.receive(B, half(1))
    assert partials(desk) == {Origin(B, FIFO): (b"0", b"1", b"2"), Origin(C, FIFO): None}


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        (X, half(0, is_last=True)),
        (B, half(0, is_last=True, counter=4)),
        (B, half(0, is_last=True, place=1)),
        (B, half(0, is_last=True, place=3)),
        (B, half(HALVES_AT_ONCE, is_last=True)),
        (B, Half(3, 0, UNIFORM, 0, b"x", is_last=True)),
    ],
    ids=["stranger", "other view", "other sender", "nobody", "far ahead", "other stream"],
)
def test_halves_that_were_not_asked_for_change_nothing(source: Member, wrong: Half) -> None:
    desk = Desk().joining(B)
    desk.receive(B, halves_of(1))
    desk.forget()
    desk.receive(source, wrong)
    assert (desk.sent(), desk.said()) == ([], [])
    assert desk.layer._admission is not None
    assert desk.layer._admission.early == {}
    desk.receive(B, half(0, is_last=True))
    assert partials(desk) == {Origin(B, FIFO): (b"0",), Origin(C, FIFO): None}
    ignored = desk.layer.ignored
    desk.receive(B, half(1, is_last=True))  # nothing is wanted any more
    assert desk.layer.ignored == ignored + 1


def test_more_halves_than_there_are_is_no_more() -> None:
    desk = Desk().joining(B)
    desk.receive(B, halves_of(2))
    desk.receive(B, half(2, is_last=True), half(0), half(1), half(2, is_last=True), half(3))
    assert desk.layer._admission is not None
    assert desk.layer._admission.halves == {Origin(B, FIFO): [b"0", b"1"]}
    assert desk.layer._admission.early == {}


def test_the_same_welcome_twice_does_not_start_over() -> None:
    desk = Desk().joining(B)
    desk.receive(B, halves_of(3))
    desk.receive(B, half(0))
    desk.receive(B, halves_of(3))
    assert desk.layer._admission is not None
    assert desk.layer._admission.wanted() == (Origin(B, FIFO), 1)


def test_another_welcome_does() -> None:
    desk = Desk().joining(B)
    desk.receive(B, halves_of(3))
    desk.receive(B, half(0))
    desk.receive(C, Welcome(view(4, C, A), Digest({})))
    assert desk.layer.view == view(4, C, A)


def test_a_joiner_that_was_left_out_again_may_come_back() -> None:
    desk = Desk().joining(B)
    desk.receive(C, ViewIs(view(4, C)))
    assert (desk.said(), desk.layer.ignored) == ([], 1)
    desk.receive(B, ViewIs(view(4, B)))
    assert desk.reasons() == ["View 4: B goes on without this member"]
    assert desk.layer.may_rejoin


def test_a_joiner_whose_coordinator_died_on_it_asks_the_one_that_takes_it_for_a_member() -> None:
    desk = Desk().joining(B)
    desk.receive(B, halves_of(3))
    desk.forget()
    desk.receive(C, ViewIs(view(4, C, A)))
    assert desk.sent() == [("C", ViewAck(ViewId(C, 4))), ("C", Join())]
    assert desk.layer._admission is None
    assert not desk.layer.is_member
    desk.receive(C, ViewIs(view(4, C, A)))  # it has not heard the ack
    assert desk.sent() == [("C", ViewAck(ViewId(C, 4)))]
    desk.receive(C, Welcome(view(3, C, A), Digest({})))  # older than what we have heard of
    assert not desk.layer.is_member
    desk.receive(C, Welcome(view(4, C, A), Digest({})))
    assert desk.members == "CA"


def test_who_gives_up_joining_says_so() -> None:
    desk = Desk().joining(B)
    desk.leave()
    assert desk.sent() == [("B", Leave())]
    assert desk.reasons() == ["left before it was in"]
    assert not desk.layer.may_rejoin
    desk = Desk().looking(B)
    desk.leave()
    assert desk.sent() == []
    assert desk.reasons() == ["left before it was in"]


# Views as a member


def test_a_newer_view_of_a_member_is_installed_and_acknowledged() -> None:
    desk = Desk(C).member(A, B, C)
    desk.receive(B, ViewIs(view(6, B, C, D)))
    assert desk.said() == [
        ViewAgreed(view(6, B, C, D)),
        DigestAgreed(Digest({Origin(D, FIFO): 0})),
    ]
    assert desk.sent() == [("B", ViewAck(ViewId(B, 6)))]
    desk.receive(B, ViewIs(view(6, B, C, D)))
    assert (desk.said(), desk.sent()) == ([], [("B", ViewAck(ViewId(B, 6)))])


def test_every_stream_of_a_joiner_opens_at_its_beginning() -> None:
    desk = Desk(C, streams=(FIFO, UNIFORM)).member(A, C)
    desk.receive(A, ViewIs(view(6, A, C, D)))
    assert desk.said()[1:] == [DigestAgreed(Digest({Origin(D, FIFO): 0, Origin(D, UNIFORM): 0}))]


@pytest.mark.parametrize(
    ("source", "strange", "ignored"),
    [
        (A, view(6, X, C), 1),
        (A, view(5, B, C), 1),
        (X, view(6, X, C), 0),
        (X, view(6, X), 0),
        (X, view(6, A, B, C, X), 0),
        (X, view(6, A, B), 0),
        (X, view(5, X, C), 0),
    ],
    ids=[
        "of a stranger",
        "member's as new",
        "stranger's",
        "stranger's without me",
        "hearsay",
        "hearsay without me",
        "stranger's as new",
    ],
)
def test_a_view_that_does_not_count_changes_nothing(
    source: Member, strange: View, ignored: int
) -> None:
    """A stranger's is a sign of another group: for the coordinator to see to."""
    desk = Desk(C).member(A, B, C)
    desk.receive(source, ViewIs(strange))
    assert (desk.said(), desk.sent(), desk.layer.ignored) == ([], [], ignored)
    assert desk.layer.view == view(5, A, B, C)


def test_a_view_with_somebody_who_has_departed_is_of_those_who_have_parted() -> None:
    """A has made a view without B, and D the next one of another line, with it."""
    desk = Desk(C).member(A, B, C, D)
    desk.receive(A, ViewIs(view(6, A, C, D)))
    desk.forget()
    desk.receive(D, ViewIs(view(7, D, B, C)))
    assert desk.view == view(6, A, C, D)
    assert desk.said() == [VerifyWanted(A)]  # it is for A to leave D out, if A is there
    assert desk.sent() == []
    desk.signal(Suspected(A, "not heard"))
    assert desk.view == view(8, C)
    desk.receive(D, Merged(view(9, D, B, C), (view(7, D, B), view(8, C))))
    assert desk.view == view(9, D, B, C)
    assert desk.said()[-2:] == [
        Reunited((D, B)),
        ViewAgreed(view(9, D, B, C), (view(7, D, B), view(8, C))),
    ]


def test_a_coordinator_makes_a_view_above_one_with_somebody_who_has_departed() -> None:
    desk = Desk(A).coordinator(B, C, D)
    desk.signal(Suspected(B, "not heard"))
    desk.answer()
    before = desk.view.counter
    desk.receive(D, ViewIs(view(before + 1, D, B, A)))
    assert desk.view == view(before + 2, A, D)


@pytest.mark.parametrize("source", [A, X])
def test_whoever_is_behind_is_told(source: Member) -> None:
    desk = Desk(C).member(A, B, C)
    desk.receive(source, ViewIs(view(4, source, C)))
    assert desk.sent() == [(source.name, ViewIs(view(5, A, B, C)))]
    desk.signal(NonMember(source))
    assert desk.sent() == [(source.name, ViewIs(view(5, A, B, C)))]
    assert desk.said() == []


def test_nobody_is_told_before_there_is_a_view() -> None:
    desk = Desk().looking()
    desk.signal(NonMember(B))
    desk.receive(B, Leave(), ViewIs(view(3, B)), Suspect(C, is_slow=False), Join())
    desk.signal(Suspected(B, "silent"))
    desk.signal(TooSlow(B))
    assert (desk.sent(), desk.said()) == ([], [])
    assert desk.layer.coordinator is None


@pytest.mark.parametrize("maker", [A, X], ids=["member", "one I do not know"])
def test_a_view_without_me_ends_it(maker: Member) -> None:
    desk = Desk(C).member(A, B, C)
    desk.receive(B, ViewIs(view(6, A, B, by=maker)))
    assert desk.reasons() == ["View 6: A, B goes on without this member"]
    assert desk.layer.may_rejoin


def test_the_address_of_every_member_is_remembered() -> None:
    desk = Desk(C).member(A, C)
    desk.receive(A, ViewIs(view(6, A, B, C)))
    assert {A.address, B.address} <= desk.layer.discovery.candidates.keys()


# Two views of two makers


def test_a_coordinator_makes_a_view_above_one_that_it_does_not_know() -> None:
    """A died making view 6, which B got and C did not; C is next."""
    desk = Desk(C).member(A, C, B)
    desk.signal(Suspected(A, "silent"))
    assert desk.layer.view == view(6, C, B)
    desk.forget()
    desk.receive(B, ViewIs(view(6, A, C, B, D)))
    assert desk.layer.view == view(7, C, B)
    assert ("B", ViewIs(view(7, C, B))) in desk.sent()


def test_who_was_left_out_there_is_left_out_here() -> None:
    desk = Desk(A).coordinator(B, C)
    counter = desk.layer.view.counter if desk.layer.view else 0
    desk.receive(B, ViewIs(view(counter + 4, B, A)))
    assert desk.layer.view == view(counter + 4, B, A)  # made by a member: simply installed
    desk = Desk(A).coordinator(B, C)
    desk.receive(B, ViewIs(view(counter, B, A)))
    assert desk.layer.view is not None
    assert (desk.layer.view.counter, desk.layer.view.members) == (counter + 1, (A, B))


def test_a_view_of_another_maker_ends_a_change_of_mine() -> None:
    desk = Desk(A).coordinator(B, C)
    desk.receive(D, Join())
    assert desk.layer.change is not None
    after = view(desk.layer.change.view.counter + 1, B, C, A)
    desk.receive(B, ViewIs(after))
    assert desk.view == after
    assert desk.layer.stats()["view_not_acked_by"] == []
    desk.wait(10 * SECOND)
    assert desk.layer.view == after


def test_who_has_left_me_out_is_left_out() -> None:
    desk = Desk(A).coordinator(B, C)
    assert desk.layer.view is not None
    desk.receive(B, ViewIs(view(desk.layer.view.counter, B, C)))
    assert desk.members == "AC"


def test_a_coordinator_tells_a_member_that_is_behind() -> None:
    desk = Desk(A).coordinator(B, C)
    mine = desk.layer.view
    assert mine is not None
    desk.receive(B, ViewIs(view(1, B, A)))
    assert desk.sent() == [("B", ViewIs(mine))]
    assert desk.layer.view == mine


# Making views


def test_a_join_is_a_view_then_its_acks_then_the_digest() -> None:
    desk = Desk(A).coordinator(B, C)
    assert desk.layer.view is not None
    old = desk.layer.view.counter
    desk.receive(D, Join())
    made = view(old + 1, A, B, C, D)
    assert desk.sent() == [("D", DiscoverReply(A, 3)), *to_all("BC", ViewIs(made))]
    desk.receive(B, ViewAck(made.id))
    assert not any(isinstance(signal, DigestWanted) for signal in desk.said())
    desk.receive(C, ViewAck(made.id))
    assert desk.said() == [DigestWanted((D,))]
    digest = Digest(
        {Origin(B, FIFO): 3, Origin(X, FIFO): 9},
        {Origin(B, FIFO): (b"x", b"y"), Origin(C, FIFO): None, Origin(X, FIFO): (b"z",)},
    )
    desk.signal(DigestTaken(digest))
    entries = {Origin(who, FIFO): 3 if who == B else 0 for who in made}
    halves = {Origin(B, FIFO): 2, Origin(C, FIFO): None}
    assert desk.sent() == [("D", Welcome(made, Digest(entries), halves))]
    desk.receive(D, ViewAck(made.id))
    assert desk.layer.change is None


def test_a_view_is_repeated_to_those_who_have_not_acknowledged_it() -> None:
    desk = Desk(A).coordinator(B, C)
    desk.receive(D, Join())
    assert desk.layer.change is not None
    made = desk.layer.change.view
    desk.receive(B, ViewAck(made.id))
    desk.forget()
    desk.wait(REPEAT_START_NS)
    assert desk.sent() == [("C", ViewIs(made))]
    desk.receive(C, ViewAck(made.id))
    desk.signal(DigestTaken(Digest({})))
    (welcome,) = desk.sent()
    desk.wait(REPEAT_MAX_NS // 2)
    assert desk.sent() == [welcome] * 2
    desk.wait(4 * REPEAT_MAX_NS)
    assert 4 <= len(desk.sent()) <= 5


@pytest.mark.parametrize(
    ("source", "view_id"),
    [(X, None), (B, ViewId(A, 99)), (B, ViewId(X, 3))],
    ids=["stranger", "another view", "another maker"],
)
def test_acks_that_do_not_count(source: Member, view_id: ViewId | None) -> None:
    desk = Desk(A).coordinator(B)
    desk.receive(D, Join())
    assert desk.layer.change is not None
    desk.receive(source, ViewAck(view_id or desk.layer.change.view.id))
    assert desk.layer.change.awaiting == {B}
    assert not any(isinstance(signal, DigestWanted) for signal in desk.said())


def test_an_ack_of_a_joiner_before_its_welcome_does_not_count() -> None:
    desk = Desk(A).coordinator(B)
    desk.receive(D, Join())
    assert desk.layer.change is not None
    desk.receive(D, ViewAck(desk.layer.change.view.id))
    assert desk.layer.change.joiners == {D: None}


def test_an_ack_of_no_change() -> None:
    desk = Desk(A).coordinator(B)
    assert desk.layer.view is not None
    desk.receive(B, ViewAck(desk.layer.view.id))
    assert desk.layer.ignored == 1


def test_a_digest_that_nobody_waits_for() -> None:
    desk = Desk(A).coordinator(B)
    desk.signal(DigestTaken(Digest({})))
    desk.receive(D, Join())
    desk.forget()
    desk.signal(DigestTaken(Digest({})))
    assert desk.sent() == []
    assert desk.layer.change is not None
    assert desk.layer.change.welcome is None


def test_one_join_at_a_time_and_those_who_wait_share_the_next() -> None:
    desk = Desk(A).coordinator()
    desk.receive(B, Join())
    desk.receive(C, Join())
    desk.receive(D, Join())
    desk.receive(D, Join())
    assert desk.layer.stats()["joiners_waiting"] == 2
    assert desk.layer.stats()["joiners_not_in"] == ["B"]
    desk.answer()
    assert desk.members == "ABCD"
    assert desk.view.counter == 3
    assert desk.layer.stats()["joiners_waiting"] == 0


def test_who_is_missed_while_a_join_is_under_way_is_left_out_at_once() -> None:
    desk = Desk(A).coordinator(B, C)
    desk.receive(D, Join())
    desk.signal(Suspected(C, "silent"))
    assert desk.layer.change is not None
    assert desk.layer.change.view.members == (A, B, D)
    assert desk.layer.change.joiners == {D: None}
    desk.answer()
    assert desk.layer.view == view(desk.layer.view.counter if desk.layer.view else 0, A, B, D)


def test_who_never_acknowledges_is_left_out_and_so_is_a_silent_joiner() -> None:
    desk = Desk(A).coordinator(B, C)
    desk.receive(D, Join())
    desk.answer(B)
    assert desk.layer.stats()["view_not_acked_by"] == ["B"]
    desk.wait(desk.layer._overdue)
    assert desk.members == "ACD"
    desk.answer(D)
    desk.wait(desk.layer._overdue)
    assert desk.members == "AC"
    desk.answer()
    assert desk.layer.change is None


def test_joiners_are_bounded_by_the_size_of_a_view() -> None:
    desk = Desk(A).coordinator()
    joiners = [Member(Address("j", port), 1, "") for port in range(VIEW_MEMBERS_MAX + 9)]
    for joiner in joiners:
        desk.receive(joiner, Join())
    assert len(desk.layer._joiners) <= VIEW_MEMBERS_MAX - 2
    desk.answer()
    assert desk.layer.view is not None
    assert len(desk.layer.view) == VIEW_MEMBERS_MAX
    desk.receive(joiners[-1], Join())
    assert desk.layer.stats()["joiners_waiting"] == 0


def test_the_departed_are_bounded_and_told_that_they_were_left_out() -> None:
    desk = Desk(A).coordinator(B)
    desk.signal(Suspected(B, "silent"))
    desk.forget()
    desk.receive(B, Join())
    assert desk.layer.view is not None
    assert desk.sent() == [("B", ViewIs(desk.layer.view))]
    for incarnation in range(2, DEPARTED_MAX + 9):
        other = member("B", incarnation)
        desk.receive(other, Join())
        desk.answer()
        desk.signal(Suspected(other, "silent"))
    assert len(desk.layer._departed) == DEPARTED_MAX


def test_a_restarted_member_takes_the_place_of_the_one_before() -> None:
    desk = Desk(A).coordinator(B, C)
    again = member("B", 2)
    desk.receive(again, Discover())
    assert desk.said() == [VerifyWanted(B)]
    desk.receive(again, Join())
    assert desk.layer.view is not None
    assert desk.layer.view.members == (A, C, again)


def test_a_restarted_joiner_takes_the_place_of_the_one_before() -> None:
    desk = Desk(A).coordinator(B)
    desk.receive(C, Join())
    desk.receive(D, Join())
    again = member("D", 2)
    desk.receive(again, Join())
    assert list(desk.layer._joiners) == [again]
    reborn = member("C", 2)
    desk.receive(reborn, Join())  # the one before is in the view that is being made
    assert desk.members == "AB"
    desk.answer()
    assert desk.view.members == (A, B, again, reborn)


def test_a_joiner_whose_welcome_was_lost_with_its_maker_is_told_by_the_next() -> None:
    desk = Desk(B).member(A, B, C)
    desk.signal(Suspected(A, "silent"))
    assert desk.layer.stats()["view_not_acked_by"] == ["C"]  # which does not know the view
    desk.forget()
    desk.receive(C, Join())  # a copy from before it was let in, for all that is known
    assert desk.said() == []
    desk.receive(C, ViewAck(desk.view.id))
    assert desk.layer.change is None
    desk.receive(C, Join())
    assert desk.said() == [DigestWanted((C,))]
    desk.signal(DigestTaken(Digest({})))
    assert Welcome(desk.view, Digest(dict.fromkeys([Origin(B, FIFO), Origin(C, FIFO)], 0))) in [
        frame for _, frame in desk.sent()
    ]
    desk.answer()
    assert desk.layer.change is None


def test_a_member_that_asks_again_is_told_again() -> None:
    desk = Desk(A).coordinator(B, C)
    desk.receive(C, Join())  # a copy that was long under way, or its Welcome was lost
    assert desk.sent() == [("C", DiscoverReply(A, 3)), ("B", ViewIs(desk.view))]
    desk.receive(B, ViewAck(desk.view.id))
    desk.signal(DigestTaken(Digest({})))
    desk.receive(C, ViewAck(desk.view.id))
    assert desk.layer.change is None


def test_a_welcome_to_a_newer_view_is_a_view_to_who_is_in_already() -> None:
    desk = Desk(C).member(A, B, C)
    desk.receive(A, Welcome(view(6, A, C), Digest({Origin(A, FIFO): 9})))
    assert desk.said() == [ViewAgreed(view(6, A, C))]
    assert desk.sent() == [("A", ViewAck(ViewId(A, 6)))]


def test_only_the_coordinator_lets_in() -> None:
    desk = Desk(B).member(A, B)
    desk.receive(C, Join())
    assert desk.sent() == [("C", DiscoverReply(A, 2))]
    desk.receive(C, Discover())
    assert desk.sent() == [("C", DiscoverReply(A, 2))]
    assert desk.layer.change is None


# Halves, for a joiner


def test_halves_are_sent_in_portions() -> None:
    desk = Desk(A).coordinator(B)
    desk.receive(D, Join())
    assert desk.layer.change is not None
    made = desk.layer.change.view
    desk.receive(B, ViewAck(made.id))
    parts = tuple(b"%d" % index for index in range(HALVES_AT_ONCE + 2))
    desk.signal(DigestTaken(Digest({Origin(B, FIFO): 99}, {Origin(B, FIFO): parts})))
    desk.forget()
    desk.receive(D, HalfWanted(made.counter, 1, FIFO, 0))
    first = desk.sent()
    assert [frame.index for _, frame in first if isinstance(frame, Half)] == [*range(16)]
    assert [frame.is_last for _, frame in first if isinstance(frame, Half)][-2:] == [False, True]
    desk.receive(D, HalfWanted(made.counter, 1, FIFO, 16))
    assert desk.sent() == [
        ("D", Half(made.counter, 1, FIFO, 16, b"16", is_last=False)),
        ("D", Half(made.counter, 1, FIFO, 17, b"17", is_last=True)),
    ]
    for source, wrong in (
        (D, HalfWanted(made.counter, 1, FIFO, 18)),
        (D, HalfWanted(made.counter, 0, FIFO, 0)),
        (D, HalfWanted(made.counter + 1, 1, FIFO, 0)),
        (D, HalfWanted(made.counter, 3, FIFO, 0)),
        (B, HalfWanted(made.counter, 1, FIFO, 0)),
        (X, HalfWanted(made.counter, 1, FIFO, 0)),
    ):
        desk.receive(source, wrong)
        assert desk.sent() == []
    desk.receive(D, ViewAck(made.id))
    desk.receive(D, HalfWanted(made.counter, 1, FIFO, 0))
    assert desk.sent() == []


def test_a_joiner_that_gets_on_is_waited_for_and_one_that_does_not_is_not() -> None:
    desk = Desk(A).coordinator()
    desk.receive(D, Join())
    assert desk.layer.change is not None
    made = desk.layer.change.view
    parts = (b"x",) * 100
    desk.signal(DigestTaken(Digest({Origin(A, FIFO): 99}, {Origin(A, FIFO): parts})))
    for first in range(0, 96, 16):
        desk.wait(desk.layer._overdue - 1)
        desk.receive(D, HalfWanted(made.counter, 0, FIFO, first))
    assert desk.layer.view == made
    desk.wait(desk.layer._overdue - 1)
    desk.receive(D, HalfWanted(made.counter, 0, FIFO, 0))
    desk.wait(1)
    assert desk.members == "A"


# Suspicion


def test_a_suspicion_is_told_to_the_coordinator_until_it_has_acted() -> None:
    desk = Desk(C).member(A, B, C, D)
    desk.signal(Suspected(D, "silent"))
    assert desk.sent() == [("A", Suspect(D, is_slow=False))]
    assert desk.said() == []
    desk.wait(REPEAT_START_NS)
    assert desk.sent() == [("A", Suspect(D, is_slow=False))]
    assert desk.said() == [VerifyWanted(A)]  # it does not answer: is it there?
    desk.signal(Trusted(D))
    desk.wait(SECOND)
    assert desk.sent() == []
    desk.signal(Trusted(D))  # once is enough
    assert desk.layer.suspects == {}


def test_if_the_coordinator_is_suspected_the_next_acts() -> None:
    desk = Desk(C).member(A, B, C)
    desk.signal(Suspected(A, "silent"))
    assert desk.sent() == [("B", Suspect(A, is_slow=False))]
    assert desk.layer.coordinator == B
    desk.signal(Suspected(B, "silent"))
    assert desk.members == "C"
    desk.wait(SECOND)
    assert desk.layer.suspects == {}


@pytest.mark.parametrize("who", [X, C], ids=["stranger", "oneself"])
def test_who_cannot_be_suspected(who: Member) -> None:
    desk = Desk(C).member(A, C)
    desk.signal(Suspected(who, "silent"))
    desk.signal(TooSlow(who))
    assert (desk.sent(), desk.said(), desk.layer.suspects) == ([], [], {})


def test_what_another_suspects_is_verified() -> None:
    desk = Desk(A).coordinator(B, C)
    desk.receive(B, Suspect(C, is_slow=False))
    assert desk.said() == [VerifyWanted(C)]
    assert desk.layer.change is None


def test_suspicions_that_do_not_count() -> None:
    desk = Desk(A).coordinator(B, C)
    desk.receive(X, Suspect(C, is_slow=False), Suspect(C, is_slow=True))
    desk.receive(B, Suspect(A, is_slow=False))
    assert (desk.said(), desk.sent(), desk.layer.ignored) == ([], [], 3)
    desk.receive(B, Suspect(C, is_slow=True), Suspect(A, is_slow=True))  # not agreed upon
    assert (desk.said(), desk.sent()) == ([], [])
    desk.receive(B, Suspect(X, is_slow=False))  # it has not heard of the view yet
    assert desk.layer.view is not None
    assert desk.sent() == [("B", ViewIs(desk.layer.view))]


SLOW = MembershipConfig(slow_member_timeout_s=5.0)


def test_a_member_that_is_too_slow() -> None:
    desk = Desk(A, config=SLOW).coordinator(B, C)
    desk.receive(B, Suspect(C, is_slow=True))
    assert desk.members == "AB"
    desk = Desk(A, config=SLOW).coordinator(B, C)
    desk.signal(TooSlow(C))
    assert desk.members == "AB"


def test_a_member_complains_to_its_coordinator() -> None:
    desk = Desk(C, config=SLOW).member(A, B, C)
    desk.signal(TooSlow(B))
    assert desk.sent() == [("A", Suspect(B, is_slow=True))]
    desk.receive(A, Suspect(B, is_slow=True))  # a complaint is for the coordinator
    assert (desk.sent(), desk.said()) == ([], [])


def test_a_coordinator_that_is_too_slow_itself_goes() -> None:
    desk = Desk(A, config=SLOW).coordinator(B, C)
    desk.receive(B, Suspect(A, is_slow=True))
    assert desk.layer.change is not None
    assert desk.layer.change.view.members == (B, C)
    desk.answer()
    assert desk.reasons() == ["held the others up"]
    assert desk.layer.may_rejoin


# Other groups


def test_a_coordinator_keeps_looking() -> None:
    desk = Desk(B).coordinator(C)
    desk.layer.add_candidates([A.address], desk.now, desk.out)
    assert desk.out.frames == []
    desk.wait(2 * SECOND)
    assert {dest for dest, frame in desk.out.frames if frame == Discover()} == {A.address}


def test_a_member_does_not() -> None:
    desk = Desk(B).member(A, B)
    desk.layer.add_candidates([X.address], desk.now, desk.out)
    desk.wait(5 * SECOND)
    assert desk.sent() == []


# Groups come together


@pytest.mark.parametrize(
    ("coordinator", "size", "answer"),
    [
        (X, 3, MergeRequest(view(2, B, C))),
        (A, 2, MergeRequest(view(2, B, C))),
        (X, 2, DiscoverReply(B, 2)),
        (A, 1, DiscoverReply(B, 2)),
        (C, 9, None),
        (None, 0, None),
    ],
    ids=["larger", "as large and lower", "as large", "smaller", "my own", "no group"],
)
def test_the_lesser_group_asks_and_the_greater_says_that_it_leads(
    coordinator: Member | None, size: int, answer: Frame | None
) -> None:
    desk = Desk(B).coordinator(C)
    desk.receive(D, DiscoverReply(coordinator, size))
    expected = [] if coordinator is None or answer is None else [(coordinator.name, answer)]
    assert desk.sent() == expected
    assert desk.layer.phase is Phase.MEMBER
    assert desk.view == view(2, B, C)


def test_only_a_coordinator_compares_groups() -> None:
    desk = Desk(B).member(A, B)
    desk.receive(X, DiscoverReply(X, 99), ViewIs(view(9, X, Y, Z)))
    assert (desk.sent(), desk.said()) == ([], [])
    assert desk.layer.phase is Phase.MEMBER


def test_who_leaves_meets_nobody() -> None:
    desk = Desk(B).coordinator(C)
    desk.leave()
    desk.receive(X, DiscoverReply(X, 99), DiscoverReply(X, 1), MergeRequest(view(9, X)))
    assert (desk.sent(), desk.layer.ignored) == ([], 1)
    assert desk.members == "BC"


def test_a_view_of_another_group_is_heard_as_its_presence() -> None:
    desk = Desk(B).coordinator(C)
    desk.receive(Y, ViewIs(view(9, X, Y)))
    assert desk.sent() == [("X", DiscoverReply(B, 2))]
    desk.receive(Y, ViewIs(view(9, X, Y, Z)))
    assert desk.sent() == [("X", MergeRequest(view(2, B, C)))]


def asked(desk: Desk) -> list[str]:
    """Who was asked to merge since this was last looked at."""
    frames, desk.out.frames = desk.out.frames, []
    return [str(dest) for dest, frame in frames if isinstance(frame, MergeRequest)]


def test_another_group_is_asked_ever_less_often_and_not_for_ever() -> None:
    desk = Desk(B).coordinator(C)
    desk.receive(X, DiscoverReply(X, 3))
    times = []
    while desk.now < 2 * SECOND + PATIENCE_NS:
        times += [desk.now] * len(asked(desk))
        desk.wait(SECOND // 100)
    steps = [(after - before) * 1000 // SECOND for before, after in pairwise(times)]
    assert steps == [40, 80, 160, 320, 500, 500]
    assert times[-1] < times[0] + PATIENCE_NS
    desk.wait(5 * SECOND)
    assert asked(desk) == []
    assert desk.layer.reunion.leader is None
    desk.receive(X, DiscoverReply(X, 3))  # heard of anew
    assert asked(desk) == ["X"]


def test_one_group_is_asked_at_a_time() -> None:
    desk = Desk(B).coordinator(C)
    desk.receive(X, DiscoverReply(X, 3))
    desk.receive(Y, DiscoverReply(Y, 9))
    desk.wait(SECOND)
    assert set(asked(desk)) == {"X"}


def test_who_is_asked_is_explained() -> None:
    desk = Desk(B).coordinator(C)
    desk.receive(X, DiscoverReply(X, 3))
    desk.wait(SECOND // 2)
    told = "X is asked to make one group of its own and this one; given up in 1.5 s"
    assert reason_of(desk) == told


def test_nobody_is_asked_while_a_view_is_made() -> None:
    desk = Desk(B).coordinator(C)
    desk.receive(D, Join())
    desk.receive(X, DiscoverReply(X, 9))
    desk.wait(SECOND)
    assert asked(desk) == []
    assert desk.layer.reunion.leader == X
    desk.answer()
    desk.forget()
    desk.wait(REPEAT_MAX_NS)
    assert ("X", MergeRequest(desk.view)) in desk.sent()
    assert desk.members == "BCD"


def test_who_begins_to_leave_asks_no_more() -> None:
    desk = Desk(B).coordinator(C)
    desk.receive(X, DiscoverReply(X, 3))
    desk.leave()
    desk.forget()
    desk.wait(SECOND)
    assert asked(desk) == []
    assert desk.layer.reunion.leader is None


def test_who_is_out_asks_no_more() -> None:
    desk = Desk(B).coordinator(C)
    desk.receive(X, DiscoverReply(X, 3))
    desk.layer.group.close("closed", [desk.layer], desk.now, desk.out)
    assert desk.layer.reunion.leader is None
    assert desk.layer.deadlines.next() is None


def test_who_no_longer_coordinates_asks_no_more() -> None:
    desk = Desk(B).coordinator(C)
    desk.receive(X, DiscoverReply(X, 3))
    desk.receive(C, ViewIs(view(9, C, B)))
    desk.forget()
    desk.wait(SECOND)
    assert asked(desk) == []
    assert desk.layer.reunion.leader is None


def test_who_has_come_over_is_asked_no_more() -> None:
    desk = Desk(B).coordinator(C)
    desk.receive(X, DiscoverReply(X, 3))
    desk.receive(X, MergeRequest(view(4, X)))  # it has lost the others and is the lesser now
    assert desk.members == "BCX"
    desk.forget()
    desk.wait(SECOND)
    assert asked(desk) == []
    assert desk.layer.reunion.leader is None


# A view of both


def test_on_merge_one_view_above_both_is_made_and_told_to_all() -> None:
    desk = Desk(A).coordinator(B)
    desk.receive(X, MergeRequest(view(7, X, Y)))
    made, parts = view(8, A, B, X, Y), (view(2, A, B), view(7, X, Y))
    assert desk.said() == [Reunited((X, Y)), ViewAgreed(made, parts)]
    assert desk.sent() == to_all("BXY", Merged(made, parts))
    assert desk.layer.stats()["view_not_acked_by"] == ["B", "X", "Y"]
    desk.wait(REPEAT_START_NS)
    assert desk.sent() == to_all("BXY", Merged(made, parts))
    desk.answer()
    assert desk.said() == []  # nobody has joined: no digest is wanted
    assert desk.layer.change is None


def test_once_all_have_it_the_parts_are_of_the_past() -> None:
    desk = Desk(A).coordinator(B)
    desk.receive(X, MergeRequest(view(7, X, Y)))
    desk.answer()
    desk.forget()
    desk.receive(Y, Leave())
    assert desk.sent() == to_all("BXY", ViewIs(view(9, A, B, X)))


def test_whoever_is_left_out_of_a_merge_is_left_out_of_its_parts() -> None:
    desk = Desk(A).coordinator(B)
    desk.receive(X, MergeRequest(view(7, X, Y)))
    desk.forget()
    desk.signal(Suspected(Y, "silent"))
    parts = (view(2, A, B), view(7, X))
    assert desk.sent() == to_all("BXY", Merged(view(9, A, B, X), parts))
    desk.signal(Suspected(X, "silent"))
    assert desk.sent() == to_all("BX", Merged(view(10, A, B), parts[:1]))


@pytest.mark.parametrize(
    ("source", "theirs"),
    [(X, view(9, X, Y, Z)), (member("@"), view(9, member("@"), Y))],
    ids=["larger", "as large and lower"],
)
def test_who_should_lead_is_not_led(source: Member, theirs: View) -> None:
    desk = Desk(A).coordinator(B)
    desk.receive(source, MergeRequest(theirs))
    assert desk.sent() == [(source.name, DiscoverReply(A, 2))]
    assert desk.members == "AB"


def test_who_does_not_coordinate_says_who_does() -> None:
    desk = Desk(B).member(A, B)
    desk.receive(X, MergeRequest(view(9, X)))
    assert desk.sent() == [("X", DiscoverReply(A, 2))]
    assert desk.layer.view == view(5, A, B)


@pytest.mark.parametrize(
    "theirs", [view(9, Y), view(9, A, X), view(9, X, A)], ids=["without", "mine", "with me"]
)
def test_a_merge_that_cannot_be_meant_is_ignored(theirs: View) -> None:
    desk = Desk(A).coordinator(B)
    desk.receive(X, MergeRequest(theirs))
    assert (desk.sent(), desk.said(), desk.layer.ignored) == ([], [], 1)
    assert desk.members == "AB"


def test_a_merge_before_there_is_a_view_is_ignored() -> None:
    desk = Desk(A).looking()
    desk.receive(X, MergeRequest(view(9, X)))
    assert (desk.sent(), desk.layer.ignored) == ([], 1)


def test_groups_that_ask_while_a_view_is_made_share_the_next() -> None:
    desk = Desk(A).coordinator(B)
    desk.receive(D, Join())
    desk.receive(X, MergeRequest(view(3, X)))
    desk.receive(Y, MergeRequest(view(9, Y, Z)))
    assert desk.layer.stats()["groups_that_would_merge"] == 2
    assert desk.members == "ABD"
    before = desk.view
    desk.answer()
    assert desk.members == "ABDXYZ"
    parts = (before, view(3, X), view(9, Y, Z))
    assert ViewAgreed(desk.view, parts) in desk.said()
    assert desk.view.counter == 10
    assert desk.layer.stats()["groups_that_would_merge"] == 0


@pytest.mark.parametrize(("age", "members"), [(FRESH_NS - 1, "ABDX"), (FRESH_NS, "ABD")])
def test_a_request_that_was_not_repeated_gets_stale(age: int, members: str) -> None:
    desk = Desk(A).coordinator(B)
    desk.receive(D, Join())
    desk.receive(X, MergeRequest(view(3, X)))
    desk.wait(age)
    desk.answer()
    assert desk.members == members


def test_joiners_come_before_groups() -> None:
    desk = Desk(A).coordinator(B)
    desk.receive(C, Join())
    desk.receive(X, MergeRequest(view(3, X)))
    desk.receive(D, Join())
    desk.answer(D)
    assert desk.members == "ABCD"
    desk.answer()
    assert desk.members == "ABCDX"


def full_group(desk: Desk, count: int) -> Desk:
    """So many members, all let in."""
    for port in range(1, count):
        desk.receive(Member(Address("j", port), 1, f"j{port}"), Join())
    desk.answer()
    assert len(desk.view) == count
    desk.forget()
    return desk


def test_groups_that_are_too_large_together_stay_apart() -> None:
    desk = full_group(Desk(A).coordinator(), VIEW_MEMBERS_MAX - 1)
    mine = desk.view
    desk.receive(X, MergeRequest(view(9, X, Y)))
    assert desk.view == mine
    assert desk.sent() == []
    desk.receive(X, MergeRequest(view(10, X)))
    assert len(desk.view) == VIEW_MEMBERS_MAX


# Parts that overlap, or change meanwhile


def test_of_whoever_is_in_both_the_older_view_lets_go() -> None:
    desk = Desk(A).coordinator(B, C)
    desk.receive(X, MergeRequest(view(9, X, C)))
    assert desk.view == view(10, A, B)
    assert desk.sent() == to_all("BC", ViewIs(view(10, A, B)))
    desk.answer()
    desk.receive(X, MergeRequest(view(9, X, C)))
    assert desk.members == "ABXC"


def test_if_theirs_is_older_they_are_told() -> None:
    desk = Desk(A).coordinator(B, C)
    mine = desk.view
    desk.receive(X, MergeRequest(view(mine.counter, X, C)))
    assert desk.sent() == [("X", ViewIs(mine))]
    assert desk.view == mine


def test_who_asks_lets_go_of_whom_the_other_has_in_a_newer_view() -> None:
    desk = Desk(B).coordinator(C)
    desk.receive(X, DiscoverReply(X, 3))
    desk.forget()
    desk.receive(X, ViewIs(view(1, X, Y, C)))  # older: it will let go itself
    assert (desk.sent(), desk.members) == ([], "BC")
    desk.receive(X, ViewIs(view(9, X, Y, C)))
    assert desk.view == view(10, B)
    assert desk.sent() == [("C", ViewIs(view(10, B)))]
    desk.wait(REPEAT_START_NS)
    assert asked(desk) == ["X"]


def test_nobody_is_let_go_of_because_of_a_group_that_was_not_asked() -> None:
    desk = Desk(B).coordinator(C)
    desk.receive(X, ViewIs(view(9, X, C)))
    assert desk.members == "BC"
    assert desk.sent() == [("X", DiscoverReply(B, 2))]


def merging(*theirs: Member) -> Desk:
    """A is about to make one group of A and B (view 2), and of these (7)."""
    desk = Desk(A).coordinator(B)
    desk.receive(theirs[0], MergeRequest(view(7, *theirs)))
    assert desk.view == view(8, A, B, *theirs)
    desk.forget()
    return desk


def test_if_somebody_leaves_the_other_group_meanwhile_the_merged_view_changes() -> None:
    desk = merging(X, Y)
    desk.receive(X, MergeRequest(view(8, X)))
    parts = (view(2, A, B), view(8, X))
    assert desk.sent() == to_all("BXY", Merged(view(9, A, B, X), parts))
    desk.answer()
    assert desk.members == "ABX"


def test_if_somebody_joins_it_meanwhile_the_merged_view_changes_too() -> None:
    desk = merging(X)
    desk.receive(X, MergeRequest(view(12, X, Y)))
    parts = (view(2, A, B), view(12, X, Y))
    assert desk.said() == [Reunited((Y,)), ViewAgreed(view(13, A, B, X, Y), parts)]
    assert desk.sent() == to_all("BXY", Merged(view(13, A, B, X, Y), parts))


def test_a_merge_that_is_repeated_is_answered_with_what_was_made() -> None:
    desk = merging(X)
    answer = [("X", Merged(view(8, A, B, X), (view(2, A, B), view(7, X))))]
    desk.receive(X, MergeRequest(view(7, X)))
    assert desk.sent() == answer
    desk.answer()
    desk.forget()
    desk.receive(X, MergeRequest(view(8, X)))  # it has acknowledged: this was long under way
    assert desk.sent() == answer
    assert desk.members == "ABX"


def test_a_member_of_mine_that_asks_is_told() -> None:
    desk = Desk(A).coordinator(B, C)
    desk.receive(D, Join())
    desk.forget()
    desk.receive(C, MergeRequest(view(99, C)))
    assert desk.sent() == [("C", ViewIs(desk.view))]
    assert desk.members == "ABCD"


def test_a_member_of_my_own_part_that_asks_has_parted_from_us() -> None:
    """B has made a view of its own while A made one of both groups: A goes on, and without B."""
    desk = merging(X)
    desk.receive(B, MergeRequest(view(3, B)))
    assert desk.sent() == [("B", Merged(view(8, A, B, X), (view(2, A, B), view(7, X))))]
    assert desk.view == view(8, A, B, X)
    desk.answer(B)
    desk.wait(desk.layer._overdue)
    assert desk.view == view(9, A, X)
    desk.answer()
    desk.wait(SECOND)  # after a loss
    desk.receive(B, MergeRequest(view(3, B)))
    assert desk.view == view(10, A, X, B)


def test_a_group_that_has_become_too_large_meanwhile_is_left_alone() -> None:
    desk = full_group(Desk(A).coordinator(), VIEW_MEMBERS_MAX - 1)
    desk.receive(X, MergeRequest(view(99, X)))
    assert len(desk.view) == VIEW_MEMBERS_MAX
    desk.receive(X, MergeRequest(view(100, X, Y)))
    assert len(desk.view) == VIEW_MEMBERS_MAX - 1
    assert X not in desk.view


def test_a_group_that_has_merged_with_another_meanwhile_is_asked_again_as_one() -> None:
    desk = Desk(A).coordinator(B)
    desk.receive(D, Join())
    desk.receive(X, MergeRequest(view(7, X)))
    desk.receive(Y, MergeRequest(view(7, Y)))
    desk.answer(X, Y)
    assert desk.members == "ABDXY"
    desk.receive(X, MergeRequest(view(8, X, Y)))  # Y would be in two parts
    assert desk.members == "ABD"
    desk.answer()
    desk.receive(X, MergeRequest(view(8, X, Y)))
    assert desk.members == "ABDXY"


def test_a_merge_with_what_my_group_was_before_is_asked_for_again() -> None:
    desk = Desk(A).coordinator(B)
    desk.receive(X, DiscoverReply(X, 3))
    desk.receive(C, Join())
    desk.forget()
    late = Merged(view(9, X, Y, Z, A, B), (view(8, X, Y, Z), view(2, A, B)))
    desk.receive(X, late)
    assert desk.view == view(3, A, B, C)
    assert (desk.sent(), desk.said()) == ([], [])  # not while a view is made
    desk.answer()
    desk.forget()
    desk.receive(X, late)
    assert desk.sent() == [("X", MergeRequest(view(3, A, B, C)))]
    desk.receive(B, late)  # which has followed it: to be told apart from a view of mine
    desk.receive(X, late)
    assert desk.sent() == []  # it has been told; answering each answer at once has no end
    assert desk.view == view(3, A, B, C)
    assert desk.layer.phase is Phase.MEMBER


# On Merged


FAR = view(8, X, Y)


def test_a_view_that_was_made_from_mine_and_others_is_installed() -> None:
    desk = Desk(C).member(A, B, C)
    merged = view(9, X, Y, A, B, C)
    parts = (FAR, view(5, A, B, C))
    for _ in range(2):
        desk.receive(X, Merged(merged, parts))
        assert desk.sent() == [("X", ViewAck(merged.id))]
    assert desk.said() == [Reunited((X, Y)), ViewAgreed(merged, parts)]
    assert desk.view == merged


@pytest.mark.parametrize(
    "part",
    [view(4, A, B, C), view(6, A, B, C), view(5, B, A, C), view(5, X)],
    ids=["older", "newer", "of another maker", "theirs alone"],
)
def test_a_view_that_was_not_made_from_mine_is_not(part: View) -> None:
    desk = Desk(C).member(A, B, C)
    desk.receive(X, Merged(view(9, X, Y, A, B, C), (FAR, part)))
    assert (desk.sent(), desk.said()) == ([], [])
    assert desk.view == view(5, A, B, C)


def test_nor_one_that_is_not_newer_or_is_without_me() -> None:
    desk = Desk(C).member(A, B, C)
    desk.receive(X, Merged(view(5, X, A, B, C), (FAR, view(5, A, B, C))))
    desk.receive(X, Merged(view(9, X, A, B), (FAR, view(5, A, B))))
    assert (desk.sent(), desk.said()) == ([], [])
    assert desk.view == view(5, A, B, C)


def test_who_comes_from_another_part_says_itself_where_it_begins_and_a_joiner_begins_at_0() -> None:
    desk = Desk(C, streams=(FIFO, UNIFORM)).member(A, B, C)
    merged = view(9, A, B, C, X, D)
    desk.receive(A, Merged(merged, (view(5, A, B, C), view(8, X))))
    assert desk.said() == [
        Reunited((X,)),
        ViewAgreed(merged, (view(5, A, B, C), view(8, X))),
        DigestAgreed(Digest({Origin(D, FIFO): 0, Origin(D, UNIFORM): 0})),
    ]


def test_the_next_coordinator_tells_of_the_parts_as_well() -> None:
    desk = Desk(B).member(A, B)
    desk.receive(A, Merged(view(9, A, B, X, Y), (view(5, A, B), FAR)))
    desk.forget()
    desk.signal(Suspected(A, "silent"))
    after = view(10, B, X, Y)
    told = Merged(after, (View(ViewId(A, 5), (B,)), FAR))
    assert desk.sent() == to_all("AXY", told)
    assert desk.said() == [ViewAgreed(after)]  # nobody is new here
    desk.receive(X, ViewAck(after.id))
    desk.wait(REPEAT_START_NS)
    assert desk.sent() == [("Y", told)]
    desk.answer()
    desk.receive(X, Leave())
    assert desk.sent() == to_all("XY", ViewIs(view(11, B, Y)))


def test_whoever_missed_the_merge_installs_the_view_after_it() -> None:
    desk = Desk(Y).member(X, Y)
    after, parts = view(10, B, X, Y), (view(4, B), view(5, X, Y))
    desk.receive(B, Merged(after, parts))
    assert desk.said() == [Reunited((B,)), ViewAgreed(after, parts)]
    assert desk.sent() == [("B", ViewAck(after.id))]


def test_whoever_is_behind_is_told_of_the_parts() -> None:
    desk = Desk(C).member(A, C)
    merged = Merged(view(9, A, C, X, Y), (view(5, A, C), FAR))
    desk.receive(A, merged)
    desk.forget()
    desk.signal(NonMember(Y))
    assert desk.sent() == [("Y", merged)]


# Excluded or parted


@pytest.mark.parametrize(
    ("others", "is_out"),
    [([B], False), ([B, C], False), ([B, C, D], True), ([B, C, X], False)],
    ids=["one", "half", "most", "half and a stranger"],
)
def test_if_most_of_my_others_are_there_it_is_i_who_am_out(
    others: list[Member], is_out: bool
) -> None:
    desk = Desk(A).coordinator(B, C, D, E)
    desk.receive(B, ViewIs(view(9, *others)))
    if is_out:
        assert desk.reasons() == ["View 9: B, C, D goes on without this member"]
        assert desk.layer.may_rejoin
    else:
        staying = [who for who in (A, B, C, D, E) if who not in others]
        assert desk.view == view(10, *staying)
        assert desk.layer.reunion.waits(desk.now) == SECOND
        assert desk.layer.phase is Phase.MEMBER


def test_of_two_the_one_that_was_left_out_is_out() -> None:
    desk = Desk(A).coordinator(B)
    desk.receive(B, ViewIs(view(9, B)))
    assert desk.reasons() == ["View 9: B goes on without this member"]


def test_that_others_have_parted_is_for_the_coordinator_to_see_to() -> None:
    desk = Desk(C).member(A, B, C, D, E)
    desk.receive(D, ViewIs(view(6, D, E)))
    assert desk.said() == [VerifyWanted(A)]  # if it is there
    desk.receive(D, ViewIs(view(6, D, E)))  # nothing new
    assert (desk.sent(), desk.said()) == ([], [])
    desk.wait(REPEAT_START_NS)
    assert desk.said() == [VerifyWanted(A)]
    assert desk.layer.coordinator == A
    assert desk.members == "ABCDE"
    desk.receive(A, ViewIs(view(9, A, B, C)))  # it has seen to it
    desk.forget()
    desk.wait(SECOND)
    assert desk.said() == []


def test_if_the_coordinator_is_among_those_who_have_parted_the_next_acts() -> None:
    desk = Desk(C).member(A, B, C, D, E)
    desk.receive(B, ViewIs(view(8, A, B)))
    assert desk.view == view(9, C, D, E)
    assert desk.sent() == to_all("ABDE", ViewIs(view(9, C, D, E)))
    assert desk.layer.reunion.waits(desk.now) == SECOND


def test_if_the_coordinator_is_gone_when_others_have_parted_the_next_acts() -> None:
    desk = Desk(C).member(A, B, C, D, E)
    desk.receive(D, ViewIs(view(8, D, E)))
    desk.signal(Suspected(A, "silent"))
    assert desk.layer.coordinator == B
    desk.signal(Suspected(B, "silent"))
    assert desk.view == view(9, C)


def test_who_leaves_takes_any_view_without_it_for_the_goodbye() -> None:
    desk = Desk(C).member(A, B, C, D, E)
    desk.leave()
    desk.receive(D, ViewIs(view(6, D, E)))
    assert desk.reasons() == ["left"]


def test_who_was_left_out_may_come_back_as_the_same_incarnation() -> None:
    desk = Desk(A).coordinator(B, C)
    desk.signal(Suspected(C, "silent"))
    desk.answer()
    desk.wait(SECOND)
    desk.receive(C, MergeRequest(view(9, C)))
    assert desk.view.members == (A, B, C)
    desk.answer()
    assert desk.layer.suspects == {}
    desk.forget()
    desk.receive(C, Join())  # it is a member again, and not one that has departed
    assert ("C", DiscoverReply(A, 3)) in desk.sent()


# The wait after a loss


def test_after_a_loss_no_group_is_asked_for_a_while() -> None:
    desk = Desk(B).coordinator(C, D)
    desk.signal(Suspected(D, "silent"))
    desk.answer()
    desk.forget()
    desk.wait(SECOND - 1)
    desk.receive(X, DiscoverReply(X, 9))
    assert asked(desk) == []
    desk.wait(1)
    desk.receive(X, DiscoverReply(X, 9))
    assert asked(desk) == ["X"]


def test_after_a_loss_no_group_is_let_in_for_a_while_and_that_is_explained() -> None:
    desk = Desk(A).coordinator(B, C)
    desk.signal(Suspected(C, "silent"))
    desk.answer()
    desk.wait(SECOND // 2)
    desk.receive(C, MergeRequest(view(9, C)))
    assert desk.members == "AB"
    told = "the group of C would come back; not for 0.5 s, since the link to it has failed of late"
    assert reason_of(desk) == told
    desk.wait(SECOND // 2)
    assert desk.layer.explain(desk.now) == []
    desk.receive(C, MergeRequest(view(9, C)))
    assert desk.members == "ABC"


def test_a_merge_that_breaks_again_is_waited_for_longer() -> None:
    desk = merging(X)
    desk.answer()
    for wait in (1, 2, 4):
        desk.signal(Suspected(X, "silent"))
        desk.answer()
        assert desk.layer.reunion.waits(desk.now) == wait * SECOND
        desk.wait(wait * SECOND)
        desk.receive(X, MergeRequest(view(desk.view.counter, X)))
        desk.answer()
        assert desk.members == "ABX"


def test_who_says_goodbye_is_no_loss() -> None:
    desk = Desk(A).coordinator(B, C)
    desk.receive(C, Leave())
    desk.answer()
    desk.receive(X, MergeRequest(view(9, X)))
    assert desk.members == "ABX"


def test_a_group_that_does_not_acknowledge_the_merge_is_a_loss() -> None:
    desk = merging(X, Y)
    desk.answer(X, Y)
    desk.wait(desk.layer._overdue)
    assert desk.members == "AB"
    assert desk.layer.reunion.waits(desk.now) == SECOND
    desk = Desk(A).coordinator(B)
    desk.receive(C, Join())
    desk.answer(C)
    desk.wait(desk.layer._overdue)
    assert desk.members == "AB"
    assert desk.layer.reunion.waits(desk.now) == 0  # a joiner was never here


# Leaving


def test_a_member_leaves_when_all_is_taken() -> None:
    desk = Desk(C).member(A, B, C)
    desk.signal(Flushed())  # nobody asked
    assert desk.layer.phase is Phase.MEMBER
    desk.leave()
    desk.leave()
    assert (desk.sent(), desk.layer.is_leaving) == ([], True)
    desk.signal(Flushed())
    assert desk.sent() == [("A", Leave())]
    desk.signal(Flushed())
    assert desk.sent() == []
    desk.wait(REPEAT_START_NS)
    assert desk.sent() == [("A", Leave())]
    desk.receive(X, Discover())
    assert desk.sent() == [("X", DiscoverReply(A, 3))]
    desk.receive(A, ViewIs(view(6, A, B)))
    assert desk.reasons() == ["left"]
    assert not desk.layer.may_rejoin
    desk.leave()
    assert not desk.layer.may_rejoin


def test_a_member_leaves_by_time() -> None:
    desk = Desk(C).member(A, B, C)
    desk.leave()
    desk.wait(SECOND * 15 // 4 - 1)
    assert desk.sent() == []
    desk.wait(1)  # a quarter of the time is kept for the goodbye
    assert desk.sent() == [("A", Leave())]
    desk.wait(SECOND * 5 // 4 - 1)
    assert desk.reasons() == []
    desk.wait(1)
    assert desk.reasons() == ["left without an answer"]


def test_a_coordinator_that_has_said_goodbye_leaves_the_rest_to_the_others() -> None:
    desk = Desk(A).coordinator(B, C)
    desk.leave()
    desk.signal(Flushed())
    assert desk.layer.change is not None
    made = desk.layer.change.view
    desk.forget()
    desk.receive(C, Leave())
    assert desk.sent() == [("C", ViewIs(made))]
    assert desk.layer.change.view == made
    desk.signal(Suspected(B, "silent"))  # but it does not wait for the dead
    assert desk.layer.change.view.members == (C,)


def test_a_coordinator_leaves() -> None:
    desk = Desk(A).coordinator(B, C)
    assert desk.layer.view is not None
    made = view(desk.layer.view.counter + 1, B, C, by=A)
    desk.leave()
    desk.receive(X, Discover(), Join())
    assert desk.layer.change is not None  # until it is set out it lets in
    desk.answer()
    desk.forget()
    desk.signal(Flushed())
    assert desk.layer.change is not None
    assert desk.layer.change.view.members == (B, C, X)
    desk.receive(D, Join())
    assert ("D", DiscoverReply(B, 4)) in desk.sent()
    desk.answer()
    assert desk.reasons() == ["left"]
    assert made.counter < desk.layer._highest


def test_who_leaves_after_the_coordinator_has_said_goodbye_is_told_who_goes_on() -> None:
    desk = Desk(A).coordinator(B, C)
    desk.leave()
    desk.signal(Flushed())
    assert desk.layer.change is not None
    made = desk.layer.change.view
    desk.forget()
    desk.receive(C, Leave())
    assert desk.sent() == [("C", ViewIs(made))]
    assert desk.layer.change.view == made


def test_a_coordinator_that_leaves_does_not_come_back_because_somebody_is_silent() -> None:
    desk = Desk(A).coordinator(B, C)
    desk.leave()
    desk.signal(Flushed())
    desk.answer(C)
    desk.wait(desk.layer._overdue)
    assert desk.layer.change is not None
    assert desk.layer.change.view.members == (B,)
    desk.answer()
    assert desk.reasons() == ["left"]


def test_the_last_one_leaves_at_once() -> None:
    desk = Desk(A).coordinator()
    desk.leave()
    desk.signal(Flushed())
    assert desk.reasons() == ["left"]
    desk.receive(B, Join())
    assert desk.layer.change is None


def test_who_is_alone_and_going_has_nobody_to_send_a_joiner_to() -> None:
    desk = Desk(A).coordinator(B)
    desk.leave()
    desk.signal(Flushed())
    desk.layer.suspects[B] = "silent"
    desk.forget()
    desk.receive(C, Join())
    assert desk.sent() == []


def test_a_leave_of_a_member_a_joiner_and_a_stranger() -> None:
    desk = Desk(A).coordinator(B, C)
    desk.receive(B, Leave())
    assert desk.members == "AC"
    desk.receive(D, Join())
    desk.forget()
    desk.receive(D, Leave())
    assert desk.sent() == [("D", ViewIs(desk.view))]
    desk.answer()
    assert desk.members == "AC"
    desk = Desk(B).member(A, B, C)
    desk.receive(C, Leave())  # that is for the coordinator to hear
    assert (desk.sent(), desk.said()) == ([], [])


# Statistics and reasons


def test_nothing_waits_nothing_is_explained() -> None:
    assert Desk(A).coordinator(B).layer.explain(SECOND) == []
    assert Desk(A).layer.explain(SECOND) == []


def reason_of(desk: Desk) -> str:
    (reason,) = desk.layer.explain(desk.now)
    return reason


def test_a_suspect_is_explained() -> None:
    desk = Desk(C).member(A, B, C)
    desk.signal(Suspected(B, "no sign of life for 2.5 s"))
    told = "B is suspected: no sign of life for 2.5 s; A is to leave it out"
    assert reason_of(desk) == told
    assert desk.layer.stats()["suspects"] == {"B": "no sign of life for 2.5 s"}


def test_looking_joining_and_leaving_are_explained() -> None:
    desk = Desk(A).looking(B, C)
    desk.wait(SECOND // 10)
    told = "looking for the group for 0.1 s: 2 addresses asked; decided in 0.2 s"
    assert reason_of(desk) == told
    desk = Desk(A).joining(B)
    desk.wait(SECOND)
    told = "join pending: B has not let us in for 1.0 s; if it is silent for 1.0 s more, look for"
    assert reason_of(desk) == f"{told} another"
    desk = Desk(C).member(A, B, C)
    desk.leave()
    desk.wait(SECOND)
    told = "leaving for 1.0 s: waits for others to take what was sent; gone in 4.0 s"
    assert reason_of(desk) == told
    desk.signal(Flushed())
    told = "leaving for 1.0 s: waits for the others' goodbye; gone in 4.0 s"
    assert reason_of(desk) == told


def test_joiners_that_wait_are_explained() -> None:
    desk = Desk(A).coordinator(B)
    desk.receive(C, Join())
    desk.receive(D, Join())
    _, told = desk.layer.explain(desk.now)
    assert told == "D to be let in, once no other view is being made"


def test_a_change_that_others_hold_up_is_explained() -> None:
    desk = Desk(A).coordinator(B)
    desk.receive(C, Join())
    desk.wait(SECOND)
    told = "View 3: A, B, C is not acknowledged by B for 1.0 s; left out in 3.5 s"
    assert reason_of(desk) == told
    desk.answer(C)
    desk.wait(SECOND)
    assert reason_of(desk) == "C let in 2.0 s ago, no answer yet; left out in 3.5 s"


def test_timers_are_known_by_name() -> None:
    desk = Desk().looking(B)
    assert set(desk.layer._timers.by_key) == {Timer.ASK, Timer.DECIDE}


def test_views_and_digests_come_from_here() -> None:
    desk = Desk(A).coordinator()
    desk.layer.group.change(view(9, X), [desk.layer], desk.now, desk.out)
    desk.layer.install_digest(Digest({}), desk.now, desk.out)
    assert desk.layer.view == view(1, A)
    assert desk.layer.take_ready(9, desk.now, desk.out) == []


def every_frame_of(source: Member, about: Iterable[Member]) -> list[Frame]:
    """What a stranger may say, about these."""
    frames: list[Frame] = [DiscoverReply(None, 0), Leave()]
    for who in about:
        frames += [
            DiscoverReply(who, 1),
            ViewIs(view(9, who)),
            ViewIs(view(9, source, who) if who != source else view(9, who)),
            ViewAck(ViewId(who, 9)),
            Welcome(view(9, who), Digest({})),
            HalfWanted(9, 0, FIFO, 0),
            Half(9, 0, FIFO, 0, b"x", is_last=True),
            Suspect(who, is_slow=True),
            Suspect(who, is_slow=False),
            Merged(view(9, who), (view(8, who),)),
        ]
        if who != source:
            frames += [
                MergeRequest(view(9, who)),
                Merged(view(9, source, who), (view(8, source, who),)),
            ]
    return frames


def test_a_stranger_changes_nothing_by_what_it_says() -> None:
    desk = Desk(A, config=SLOW).coordinator(B, C)
    mine = desk.layer.view
    for frame in every_frame_of(X, [X, A, B, C, D]):
        desk.receive(X, frame)
        assert desk.layer.view == mine, frame
        assert desk.layer.phase is Phase.MEMBER, frame
        assert desk.layer.change is None, frame
        assert desk.layer.suspects == {}, frame
