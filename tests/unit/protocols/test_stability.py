"""Reports instead of acks: rounds at one member, and what a group does with their results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ringcast.config import MulticastConfig, StabilityConfig
from ringcast.core.effects import Effects
from ringcast.core.shared import Deadlines, GroupState
from ringcast.errors import UsageError
from ringcast.events import Writable
from ringcast.model import Address, Member, Stream, View, ViewId
from ringcast.protocols.stability import CROSSING_NS, StabilityRounds
from ringcast.wire.frames import (
    Ack,
    Data,
    Mark,
    Nack,
    PeerRepair,
    PeerRepairRequest,
    StabilityQuery,
    StabilityReport,
    Stable,
    Watermark,
)
from support.streams import Streams

if TYPE_CHECKING:
    from ringcast.wire.frames import Frame

A, B, C, D = (Member(Address("127.0.0.1", 7800 + n), n, name) for n, name in enumerate("ABCD", 1))
FIFO = Stream.FIFO
INTERVAL = 50_000_000
TAU = 500_000_000
BUFFER = 1 << 20
ALLOWANCE = 1 << 16


def view(*members: Member, counter: int = 1) -> View:
    return View(ViewId(members[0], counter), members)


def config(**stability: Any) -> MulticastConfig:
    return MulticastConfig(
        capacity=8,
        datagram_bytes=1000,
        window_bytes=1 << 16,
        stability=StabilityConfig(**({"capacity_max": 16} | stability)),
    )


def data(first: int, *payloads: bytes, more: bool = False) -> Data:
    return Data(FIFO, first, list(payloads), more=more)


class Rounds:
    """The reports of one member, and what has come out of them."""

    def __init__(self, me: Member, *members: Member, **stability: Any) -> None:
        self.machine = StabilityRounds(me, config(**stability))
        self.deadlines = Deadlines()
        self.machine.attach(GroupState(me), self.deadlines)
        self.out = Effects()
        self.now = 0
        self.mine: tuple[int, ...] = ()
        """How far this member is."""
        self.view = view(*members)
        self.machine.group.view = self.view
        self.machine.install_view()

    def enter(self, *members: Member, counter: int) -> None:
        self.view = view(*members, counter=counter)
        self.machine.group.view = self.view
        self.machine.install_view()

    def report(self, *delivered: int) -> None:
        assert self.machine.is_due
        self.mine = delivered
        self.machine.report(delivered, ALLOWANCE, self.now, self.out)
        self.machine.rest_or_go_on(delivered, self.now)

    def hear_vote(
        self, source: Member, *delivered: int, number: int = 0, allowance: int = ALLOWANCE
    ) -> None:
        report = StabilityReport(self.view.id, number, allowance, delivered)
        self.machine.on_report(source, report, self.mine, self.now, self.out)

    def hear_stable(self, number: int, *by_all: int, allowance: int = ALLOWANCE) -> None:
        marks = tuple(Mark(seqno, seqno, 0) for seqno in by_all)
        stable = Stable(self.view.id, number, allowance, marks)
        self.machine.on_stable(self.view.coordinator, stable)

    def take_news(self) -> Stable | None:
        news, self.machine.news = self.machine.news, None
        return news

    def sent(self) -> list[tuple[Member | Address | None, Frame]]:
        frames = list(self.out.frames)
        self.out.frames.clear()
        return frames

    def timeout(self) -> int:
        """Run the next timer; how long that took."""
        before = self.now
        deadline = self.deadlines.next()
        assert deadline is not None
        self.now = deadline
        self.machine.handle_timeout(self.now)
        return self.now - before


# Whoever reports


def test_a_view_begins_with_a_vote_for_the_coordinator() -> None:
    r = Rounds(B, A, B)
    r.report(3, 4)
    assert r.sent() == [(A, StabilityReport(r.view.id, 0, ALLOWANCE, (3, 4)))]


def test_votes_are_repeated_ever_more_slowly_until_something_is_stable() -> None:
    r = Rounds(B, A, B)
    r.report(1, 1)
    pauses = []
    for _ in range(6):
        pauses.append(r.timeout())
        r.report(1, 1)
    assert pauses == [INTERVAL, 2 * INTERVAL, 4 * INTERVAL, 8 * INTERVAL, TAU, TAU]
    assert len(r.sent()) == 7


def test_whoever_has_something_new_to_say_waits_one_interval_again() -> None:
    r = Rounds(B, A, B)
    r.report(1, 1)
    r.timeout()
    r.report(1, 1)
    r.timeout()
    r.report(2, 1)
    assert r.timeout() == INTERVAL


def test_where_senders_are_allowed_little_votes_come_sooner() -> None:
    r = Rounds(B, A, B)  # a window of 64 KiB for both together is ample
    pauses = []
    for number, allowance in enumerate((1 << 15, 1 << 14, 1 << 13, 1 << 12, 1), 1):
        r.machine.is_due = True
        r.report(number, 1)
        r.hear_stable(number, number - 1, 0, allowance=allowance)
        r.machine.delivered(A, number, 1, BUFFER, r.now)
        pauses.append(r.timeout())
    assert pauses == [INTERVAL, INTERVAL // 2, INTERVAL // 4, INTERVAL // 8, 1_000_000]


def test_silence_follows_the_second_round_in_which_all_is_stable() -> None:
    r = Rounds(B, A, B)
    r.report(1, 1)
    r.hear_stable(1, 1, 1)
    r.machine.rest_or_go_on((1, 1), r.now)
    assert r.deadlines.next() is not None
    r.hear_stable(2, 1, 1)
    r.machine.rest_or_go_on((1, 1), r.now)
    assert r.deadlines.next() is None


def test_what_became_stable_in_the_last_round_needs_another() -> None:
    """Else a sender would not learn that all have heard of it, and might have no room."""
    r = Rounds(B, A, B)
    r.report(5, 0)
    r.hear_stable(1, 0, 0)  # somebody had no window yet
    r.hear_stable(2, 5, 0)
    r.machine.rest_or_go_on((5, 0), r.now)
    assert r.deadlines.next() is not None
    r.hear_stable(3, 5, 0)
    r.machine.rest_or_go_on((5, 0), r.now)
    assert r.deadlines.next() is None


def test_what_was_taken_is_voted_on_within_the_interval() -> None:
    r = Rounds(B, A, B)
    r.report(0, 0)
    r.hear_stable(1, 0, 0)
    r.hear_stable(2, 0, 0)
    r.machine.rest_or_go_on((0, 0), r.now)
    r.machine.delivered(A, 1, 10, BUFFER, r.now)
    assert not r.machine.is_due
    assert r.timeout() == INTERVAL
    assert r.machine.is_due


@pytest.mark.parametrize(
    ("delivered", "size", "buffer", "is_due"),
    [(1, 99, BUFFER, False), (1, 100, BUFFER, True), (2, 0, BUFFER, True), (1, 10, 40, True)],
    ids=["little", "bytes", "messages of one sender", "a small socket buffer"],
)
def test_much_is_voted_on_at_once(delivered: int, size: int, buffer: int, *, is_due: bool) -> None:
    r = Rounds(B, A, B, threshold_bytes=100)
    r.report(0, 0)
    r.machine.delivered(A, delivered, size, buffer, r.now)
    assert r.machine.is_due == is_due


def test_bytes_count_from_the_last_vote() -> None:
    r = Rounds(B, A, B, threshold_bytes=100)
    r.machine.delivered(A, 1, 60, BUFFER, r.now)
    r.report(1, 0)
    r.machine.delivered(A, 2, 60, BUFFER, r.now)
    assert not r.machine.is_due
    r.machine.delivered(B, 1, 60, BUFFER, r.now)
    assert not r.machine.is_due  # 120 bytes, but of two senders
    r.machine.delivered(B, 1, 80, BUFFER, r.now)
    assert r.machine.is_due


def test_a_stable_counts_from_the_coordinator_about_this_view_and_once() -> None:
    r = Rounds(B, A, B, C)
    marks = (Mark(1, 1, 0),) * 3
    for source, view_id, number, said in (
        (C, r.view.id, 1, marks),
        (A, ViewId(A, 2), 1, marks),
        (A, r.view.id, 1, marks[:2]),
    ):
        r.machine.on_stable(source, Stable(view_id, number, ALLOWANCE, said))
    assert r.take_news() is None
    stable = Stable(r.view.id, 1, ALLOWANCE, marks)
    r.machine.on_stable(A, stable)
    assert r.take_news() == stable
    r.machine.on_stable(A, stable)
    assert r.take_news() is None


# The coordinator


def test_a_round_ends_when_everybody_has_voted() -> None:
    r = Rounds(A, A, B, C)
    r.hear_vote(B, 5, 9, 2, allowance=500)
    r.report(6, 8, 3)
    assert r.sent() == []
    r.hear_vote(C, 7, 7, 4)
    marks = (Mark(5, 5, 1), Mark(7, 7, 2), Mark(2, 2, 1))
    stable = Stable(r.view.id, 1, 500, marks)
    assert r.sent() == [(None, stable)]
    assert r.take_news() == stable


def test_a_mark_tells_how_far_the_others_are_when_the_sender_itself_is_slow() -> None:
    r = Rounds(A, A, B, C)
    r.hear_vote(B, 5, 1, 5)
    r.hear_vote(C, 6, 4, 5)
    r.report(2, 3, 5)
    stable = r.take_news()
    assert stable is not None
    assert stable.marks == (Mark(2, 5, 0), Mark(1, 3, 1), Mark(5, 5, 0))


def test_the_next_round_needs_everybody_again() -> None:
    r = Rounds(A, A, B, C)
    for source in (B, C):
        r.hear_vote(source, 0, 0, 0)
    r.report(0, 0, 0)
    assert r.take_news() is not None
    r.hear_vote(B, 1, 1, 1, number=1)
    r.machine.want(r.out)
    r.report(1, 1, 1)
    assert r.take_news() is None
    r.hear_vote(B, 2, 2, 2, number=1)
    assert r.take_news() is None
    assert r.machine.explain() == ["round 2 of reports waits for C"]
    r.hear_vote(C, 1, 1, 1, number=1)
    stable = r.take_news()
    assert stable is not None
    assert [mark.by_all for mark in stable.marks] == [1, 1, 1]
    assert r.machine.explain() == []


def test_of_two_votes_the_higher_counts_though_it_came_first() -> None:
    r = Rounds(A, A, B)
    r.hear_vote(B, 5, 2)
    r.hear_vote(B, 3, 4)
    r.report(9, 9)
    stable = r.take_news()
    assert stable is not None
    assert [mark.by_all for mark in stable.marks] == [5, 4]


def test_a_lost_stable_is_sent_again_to_whoever_votes_without_it() -> None:
    r = Rounds(A, A, B, C)
    for source in (B, C):
        r.hear_vote(source, 1, 1, 1)
    r.report(1, 1, 1)
    stable = r.take_news()
    r.sent()
    r.hear_vote(B, 2, 2, 2)
    assert r.sent() == []  # they may have crossed
    r.now += CROSSING_NS
    r.hear_vote(B, 2, 2, 2)
    assert r.sent() == [(B, stable), (B, StabilityQuery(r.view.id, 1))]
    r.hear_vote(B, 2, 2, 2)
    assert r.sent() == []  # late copies of reports are no reason
    r.now += INTERVAL // 2
    r.hear_vote(B, 2, 2, 2)
    assert r.sent() == [(B, stable), (B, StabilityQuery(r.view.id, 1))]
    # And until it has heard of it, its report does not count: it may not have purged anything.
    r.hear_vote(C, 2, 2, 2, number=1)
    r.machine.want(r.out)
    r.report(2, 2, 2)
    assert r.take_news() is None


@pytest.mark.parametrize(
    ("source", "report"),
    [
        (B, StabilityReport(ViewId(A, 2), 0, 1, (9, 9))),
        (B, StabilityReport(ViewId(B, 1), 0, 1, (9, 9))),
        (C, StabilityReport(ViewId(A, 1), 0, 1, (9, 9))),
        (B, StabilityReport(ViewId(A, 1), 0, 1, (9,))),
        (B, StabilityReport(ViewId(A, 1), 1, 1, (9, 9))),
    ],
    ids=["later view", "other view", "a stranger", "too few places", "a round to come"],
)
def test_a_vote_that_is_not_for_this_round_of_this_view_is_nothing(
    source: Member, report: StabilityReport
) -> None:
    r = Rounds(A, A, B)
    r.report(0, 0)
    r.machine.on_report(source, report, r.mine, r.now, r.out)
    assert r.take_news() is None
    assert r.sent() == []


def test_a_round_ends_with_what_the_coordinator_has_delivered_by_then() -> None:
    """It reports early in the round, and what it delivers afterwards must not wait for the next."""
    r = Rounds(A, A, B)
    r.report(3, 3)
    r.mine = (7, 7)
    r.hear_vote(B, 7, 7)
    stable = r.take_news()
    assert stable is not None
    assert [mark.by_all for mark in stable.marks] == [7, 7]


def test_only_the_coordinator_counts_votes() -> None:
    r = Rounds(B, A, B, C)
    r.hear_vote(A, 1, 1, 1)
    r.hear_vote(C, 1, 1, 1)
    r.report(1, 1, 1)
    assert r.take_news() is None


def test_a_round_does_not_reach_across_a_view() -> None:
    r = Rounds(A, A, B, C)
    r.hear_vote(B, 5, 5, 5)
    r.report(5, 5, 5)
    late = StabilityReport(r.view.id, 0, ALLOWANCE, (5, 5, 5))
    r.enter(A, B, D, counter=2)
    r.machine.on_report(C, late, r.mine, r.now, r.out)
    assert r.take_news() is None
    r.report(6, 6, 0)
    r.hear_vote(B, 6, 6, 0)
    assert r.take_news() is None
    r.hear_vote(D, 4, 4, 0)
    stable = r.take_news()
    assert stable is not None
    assert stable.number == 1
    assert [mark.by_all for mark in stable.marks] == [4, 4, 0]


def test_whoever_is_alone_agrees_with_itself() -> None:
    r = Rounds(A, A)
    r.report(3)
    stable = r.take_news()
    assert stable is not None
    assert stable.marks == (Mark(3, 3, 0),)


# By hand


def test_a_vote_by_hand_has_everybody_vote() -> None:
    r = Rounds(B, A, B, C)
    r.report(0, 0, 0)
    r.sent()
    r.machine.want(r.out)
    assert r.machine.is_due
    assert r.sent() == [(A, StabilityQuery(r.view.id, 0))]
    a = Rounds(A, A, B, C)
    a.report(0, 0, 0)
    a.machine.on_wanted(B, StabilityQuery(a.view.id, 0), a.out)
    assert a.machine.is_due
    assert a.sent() == [(B, StabilityQuery(a.view.id, 0)), (C, StabilityQuery(a.view.id, 0))]


def test_a_round_by_hand_ends_with_nothing_from_before() -> None:
    r = Rounds(A, A, B)
    r.hear_vote(B, 4, 4)  # it has taken more since then
    r.machine.on_wanted(B, StabilityQuery(r.view.id, 0), r.out)
    r.sent()
    r.report(9, 9)
    assert r.take_news() is not None
    assert [frame for dest, frame in r.sent() if dest == B] == [StabilityQuery(r.view.id, 1)]
    assert r.machine.is_due
    r.report(9, 9)
    r.hear_vote(B, 9, 9, number=1)
    stable = r.take_news()
    assert stable is not None
    assert [mark.by_all for mark in stable.marks] == [9, 9]
    assert not r.machine.is_due


def test_only_the_coordinator_of_this_view_can_make_one_vote() -> None:
    r = Rounds(B, A, B, C)
    r.report(0, 0, 0)
    r.hear_stable(1, 0, 0, 0)
    for source, view_id in ((C, r.view.id), (A, ViewId(A, 2)), (D, r.view.id)):
        r.machine.on_wanted(source, StabilityQuery(view_id, 1), r.out)
        assert not r.machine.is_due
    r.machine.on_wanted(A, StabilityQuery(r.view.id, 1), r.out)
    assert r.machine.is_due


def test_who_is_asked_before_the_stable_has_come_votes_when_it_has() -> None:
    r = Rounds(B, A, B)
    r.report(1, 1)
    r.machine.on_wanted(A, StabilityQuery(r.view.id, 1), r.out)
    assert not r.machine.is_due  # it could only repeat itself, and would be asked again
    r.hear_stable(1, 1, 1)
    assert r.machine.is_due
    r.report(1, 1)
    r.hear_stable(2, 1, 1)
    assert not r.machine.is_due


def test_late_copies_cause_no_votes_and_no_answers() -> None:
    b = Rounds(B, A, B)
    b.hear_stable(1, 0, 0)
    b.report(1, 1)
    b.machine.on_wanted(A, StabilityQuery(b.view.id, 1), b.out)
    assert not b.machine.is_due  # it has reported since that Stable
    a = Rounds(A, A, B)
    a.hear_vote(B, 0, 0)
    a.report(0, 0)
    a.hear_vote(B, 1, 1, number=1)
    a.sent()
    a.now += TAU
    a.hear_vote(B, 0, 0)  # it has reported in this round
    assert a.sent() == []


def test_rounds_in_which_nothing_changes_come_ever_more_slowly() -> None:
    r = Rounds(B, A, B)
    pauses = []
    for number in range(1, 7):
        r.report(5, 0)  # something is taken by this member, and not by the other
        r.hear_stable(number, 3, 0)
        r.machine.rest_or_go_on((5, 0), r.now)
        pauses.append(r.timeout())
    assert pauses[-3:] == [8 * INTERVAL, TAU, TAU]
    r.report(5, 0)
    r.machine.delivered(A, 6, 1, BUFFER, r.now)
    assert r.timeout() == INTERVAL


def test_who_has_left_votes_on_nothing() -> None:
    r = Rounds(B, A, B)
    r.machine.group.view = None
    r.machine.close()
    r.machine.want(r.out)
    r.machine.on_wanted(A, StabilityQuery(r.view.id, 0), r.out)
    assert not r.machine.is_due
    assert r.deadlines.next() is None


# A member of a group with stability rounds


class Machine(Streams):
    """One member's streams in a view of these, and what came out of them."""

    def __init__(self, me: Member, *members: Member, **stability: Any) -> None:
        super().__init__(me, config(**stability), *members)
        self.sent()

    def stable(self, view_id: ViewId, number: int, *marks: Mark, source: Member = A) -> None:
        self.receive(source, Stable(view_id, number, ALLOWANCE, marks))


V1 = ViewId(A, 1)


def test_nothing_is_acknowledged() -> None:
    m = Machine(B, A, B)
    m.receive(A, data(1, b"1", b"2"), Watermark(FIFO, 2), data(1, b"1"))
    assert m.payloads() == [b"1", b"2"]
    for _ in range(5):
        m.timeout()
    frames = m.sent()
    assert not any(isinstance(frame, Ack) for _, frame in frames)
    assert (A, StabilityReport(V1, 0, m.layer._allowance(0), (2, 0))) in frames


def test_what_everybody_has_leaves_the_senders_window_and_the_receivers() -> None:
    a, b = Machine(A, A, B), Machine(B, A, B)
    a.send(b"1", b"2", b"3")
    b.receive(A, data(1, b"1", b"2", b"3"))
    a.payloads()
    assert b.payloads(2) == [b"1", b"2"]
    assert (b.window(A).low, b.window(A).delivered) == (0, 2)
    for m in (a, b):
        m.stable(V1, 1, Mark(2, 2, 1), Mark(0, 0, 0))
    assert a.window(A).low == 0, "the coordinator hears from nobody"
    assert b.window(A).low == 2
    a.receive(B, StabilityReport(V1, 0, ALLOWANCE, (2, 0)))
    a.layer.stabilize(a.now, a.out)
    assert a.window(A).low == 2
    assert a.layer.explain(0)[0].startswith("1 message sent on fifo, not yet delivered by B")
    assert a.layer.explain(0)[0].endswith("so they have reported")


def test_a_receiver_that_retains_nothing_lets_go_when_its_application_takes() -> None:
    m = Machine(B, A, B, retain_delivered=False)
    m.receive(A, data(1, b"1", b"2"))
    m.payloads()
    assert m.window(A).low == 2


def test_a_full_window_is_one_that_has_grown_to_its_bound() -> None:
    m = Machine(A, A, B, retain_delivered=False)
    assert m.send(*[b"x"] * 20) == 16
    m.payloads()
    m.receive(B, StabilityReport(V1, 0, ALLOWANCE, (10, 0)))
    m.layer.stabilize(m.now, m.out)
    assert m.window(A).low == 10
    assert m.events() == [Writable()]


def test_whoever_does_not_take_goes_on_voting_and_is_named() -> None:
    m = Machine(C, A, B, C)
    for number in (1, 2):
        m.stable(V1, number, *[Mark(0, 0, 0)] * 3)
    m.receive(B, data(1, b"1"))
    m.sent()
    m.timeout()
    assert m.sent(StabilityReport) == [
        (A, StabilityReport(V1, 2, m.layer._allowance(m.now), (0, 0, 0)))
    ]
    b = Machine(B, A, B, C)
    for number in (1, 2):
        b.stable(V1, number, *[Mark(0, 0, 0)] * 3)
    b.send(b"1")
    b.payloads()
    (why,) = b.layer.explain(0)
    assert why == "1 message sent on fifo, not yet delivered by somebody: " + (
        "the next stability round will tell"
    )
    b.stable(V1, 3, Mark(0, 0, 0), Mark(0, 0, 2), Mark(0, 0, 0))
    (why,) = b.layer.explain(0)
    assert "not yet delivered by C, which has delivered 0 of 1" in why


def test_a_joiner_counts_from_the_view_on() -> None:
    m = Machine(A, A, B)
    m.send(b"1", b"2")
    m.payloads()
    v2 = m.view(A, B, C, counter=2)
    m.receive(B, StabilityReport(V1, 0, ALLOWANCE, (2, 0)))
    m.receive(B, StabilityReport(v2, 0, ALLOWANCE, (2, 0, 0)))
    m.layer.stabilize(m.now, m.out)
    assert m.window(A).low == 0
    m.receive(C, StabilityReport(v2, 0, ALLOWANCE, (1, 0, 0)))
    assert m.window(A).low == 1


def test_the_sender_goes_no_further_than_everybody_is_known_to_have_room() -> None:
    """A receiver that retains may have missed what was stable in the last view."""
    m = Machine(B, A, B)
    taken = 0
    for counter in range(1, 5):
        # In each view one round ends, and the next view comes before anybody shows to have heard.
        v = m.view(A, B, counter=counter)
        m.send(*[b"x"] * 100)
        m.payloads()
        taken = m.window(B).high
        m.stable(v, 1, Mark(0, 0, 0), Mark(taken, taken, 0))
        assert m.window(B).low == taken
    assert taken == 32
    assert m.send(b"x") == 0
    m.stable(v, 2, Mark(0, 0, 0), Mark(taken, taken, 0))
    assert m.send(*[b"x"] * 100) == 16
    assert Writable() in m.events()


def test_a_group_that_acknowledges_does_not_report() -> None:
    m = Streams(A, MulticastConfig(), A, B)
    with pytest.raises(UsageError, match="stability"):
        m.layer.stabilize(0, m.out)
    report = StabilityReport(V1, 0, 1, (9, 9))
    m.receive(B, report, StabilityQuery(V1, 0), PeerRepairRequest(B, ()))
    assert m.layer.refused == 3


# Repair by others


def test_whoever_retains_repairs_for_others() -> None:
    m = Machine(B, A, B, C)
    m.receive(A, data(1, b"1"), data(2, b"2a", more=True), data(3, b"2b"), data(4, b"4"))
    m.payloads()
    m.receive(C, PeerRepairRequest(A, (range(1, 3), range(4, 9))))
    assert m.sent(PeerRepair) == [
        (C, PeerRepair(A, data(1, b"1"))),
        (C, PeerRepair(A, data(2, b"2a", more=True))),
        (C, PeerRepair(A, data(4, b"4"))),
    ]
    m.stable(V1, 1, Mark(2, 2, 2), Mark(0, 0, 0), Mark(0, 0, 0))
    m.receive(C, PeerRepairRequest(A, (range(1, 4),)))
    assert m.sent(PeerRepair) == [(C, PeerRepair(A, data(3, b"2b")))]
    m.receive(C, PeerRepairRequest(D, (range(1, 4),)))
    m.receive(D, PeerRepairRequest(A, (range(1, 4),)))
    assert m.sent(PeerRepair) == []
    assert m.layer.stats()["peer_repaired"] == 4


def test_somebody_else_is_asked_from_the_second_time_on() -> None:
    m = Machine(C, A, B, C)
    m.receive(A, data(2, b"2"))
    asked: list[tuple[object, type[Frame]]] = []
    while len(asked) < 3:
        m.timeout()
        asked += [(dest, type(frame)) for dest, frame in m.sent(Nack, PeerRepairRequest)]
    assert asked == [(A, Nack), (A, Nack), (B, PeerRepairRequest)]
    m.receive(B, PeerRepair(A, data(1, b"1")))
    assert m.payloads() == [b"1", b"2"]


def test_only_members_relay_and_only_what_is_retained() -> None:
    m = Machine(C, A, B, C)
    m.receive(D, PeerRepair(A, data(1, b"1")))
    m.receive(B, PeerRepair(D, data(1, b"1")))
    m.receive(B, PeerRepair(A, Data(Stream.UNIFORM, 1, [b"1"])))
    assert m.payloads() == []
    assert m.layer.refused == 3
    m = Machine(C, A, B, C, retain_delivered=False)
    m.receive(B, PeerRepair(A, data(1, b"1")))
    assert m.layer.refused == 1
