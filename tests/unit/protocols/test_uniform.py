"""Uniform delivery at one member: gates while a sender lives, and what it leaves behind."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from ringcast.config import MulticastConfig
from ringcast.core.effects import DigestTaken, DigestWanted, Effects, NewerView, Reunited, Settled
from ringcast.events import Delivered, FragmentsDelivered
from ringcast.model import Address, Digest, Member, Origin, Stream, View, ViewId
from ringcast.protocols.multicast import ASK_NS, ReliableMulticast
from ringcast.protocols.multicast_sender import WATERMARK_PROBE_START_NS
from ringcast.protocols.uniform import REPEAT_START_NS, RESOLVED_MAX, RUN_BYTES
from ringcast.wire.frames import (
    Ack,
    Begin,
    Begun,
    Commit,
    CommitWanted,
    Data,
    EstateRun,
    EstateWanted,
    Nack,
    ReceivedRange,
    RecoveryTarget,
    Stage,
    Standing,
    Takeover,
    Watermark,
)
from ringcast.wire.limits import ESTATES_MAX
from support.timers import first_due

if TYPE_CHECKING:
    from ringcast.core.effects import Signal
    from ringcast.wire.frames import Frame, SystemMessage

A, B, C, D, X = (
    Member(Address("127.0.0.1", 7800 + n), n, name) for n, name in enumerate("ABCDX", 1)
)
UNIFORM = Stream.UNIFORM
ALLOWANCE = 1 << 20
TAU = 500_000_000
COLLECT, HOLD, COMMIT, RESOLVED = Stage


def view(*members: Member, counter: int = 1) -> View:
    return View(ViewId(members[0], counter), members)


def data(first: int, *payloads: bytes, more: bool = False) -> Data:
    return Data(UNIFORM, first, list(payloads), more=more)


def ack(received: int, delivered: int = 0) -> Ack:
    return Ack(UNIFORM, received, delivered, ALLOWANCE)


class Machine:
    """One member's machine in a view of these, all windows open, and what came out of it."""

    def __init__(
        self, me: Member, *members: Member, fragment_bytes: int = 900, **config: Any
    ) -> None:
        defaults: dict[str, Any] = {"datagram_bytes": 1000, "window_bytes": 1 << 16}
        options = MulticastConfig(**(defaults | config))
        streams = (Stream.FIFO, UNIFORM)
        self.layer = ReliableMulticast(me, options, fragment_bytes, streams=streams)
        self.out = Effects()
        self.now = 0
        self.members: tuple[Member, ...] = ()
        if members:
            self.view(*members)
            self.digest(*members)

    @property
    def estates(self) -> list[Member]:
        return list(self.layer.uniform.estates)

    def view(self, *members: Member, counter: int = 1) -> ViewId:
        self.members = members
        installed = view(*members, counter=counter)
        self.layer.group.change(installed, [self.layer], self.now, self.out)
        self.layer.check_invariants()
        return installed.id

    def digest(self, *members: Member, offset: int = 0) -> None:
        origins = [Origin(member, stream) for member in members for stream in self.layer.streams]
        digest = Digest(dict.fromkeys(origins, offset))
        self.layer.install_digest(digest, self.now, self.out)

    def receive(self, source: Member, *frames: Frame) -> None:
        self.layer.receive(source, frames, self.now, self.out)
        self.layer.check_invariants()

    def message(self, source: Member, message: EstateWanted | EstateRun) -> None:
        self.layer.receive_message(source, message, self.now, self.out)
        self.layer.check_invariants()

    def signal(self, signal: Signal) -> None:
        self.layer.handle_signal(signal, self.now, self.out)

    def send(self, *payloads: bytes) -> int:
        return self.layer.send(payloads, UNIFORM, self.now, self.out)

    def take(self, limit: int = 1000) -> list[bytes]:
        """The messages that the application gets."""
        events = self.layer.take_ready(limit, self.now, self.out)
        self.layer.check_invariants()
        return [
            payload
            for event in events
            if isinstance(event, Delivered)
            for payload in event.run.payloads
        ]

    def timeout(self, after: int) -> None:
        self.now += after
        self.layer.handle_timeout(self.now, self.out)
        self.layer.check_invariants()

    def sent(self, *kinds: type[Frame]) -> list[tuple[Member | Address | None, Frame]]:
        """Since the last time; of these kinds, or all."""
        frames = [pair for pair in self.out.frames if isinstance(pair[1], kinds or object)]
        self.out.frames.clear()
        return frames

    def messages(self) -> list[tuple[Member, SystemMessage]]:
        messages, self.out.messages = self.out.messages, []
        return messages

    def signals(self) -> list[Signal]:
        signals = list(self.out.signals)
        self.out.signals.clear()
        return signals

    def received(self, sender: Member) -> int:
        estate = self.layer.uniform.estates[sender]
        return estate.received


def standing(view_id: ViewId, *shares: ReceivedRange) -> Standing:
    return Standing(view_id, True, shares)


def share(
    sender: Member, received: int = 0, delivered: int = 0, *, has_window: bool = True
) -> ReceivedRange:
    return ReceivedRange(sender, delivered, received, has_window, delivered)


def takeover(view_id: ViewId, *claims: RecoveryTarget) -> Takeover:
    return Takeover(view_id, claims)


# The sender: what all hold is committed


def test_nothing_is_delivered_before_all_hold_it_not_even_at_its_sender() -> None:
    m = Machine(A, A, B, C)
    assert m.send(b"1", b"2") == 2
    assert m.sent(Data, Commit) == [(None, data(1, b"1", b"2"))]
    m.receive(B, ack(2))
    m.receive(C, ack(1))
    assert m.sent(Commit) == [(None, Commit(1, ViewId(A, 1)))]
    assert m.take() == [b"1"]
    m.receive(C, ack(2))
    assert m.sent(Commit) == [(None, Commit(2, ViewId(A, 1)))]
    assert m.take() == [b"2"]
    m.receive(C, ack(2))
    assert m.sent(Commit) == []


def test_whoever_is_alone_commits_what_it_sends() -> None:
    m = Machine(A, A)
    m.send(b"1")
    assert m.take() == [b"1"]


def test_the_rest_of_a_large_message_is_held_as_it_goes_out() -> None:
    m = Machine(A, A, B, capacity=2, fragment_bytes=2)
    m.send(b"012345")
    m.receive(B, ack(2))
    m.take()
    m.sent()
    m.receive(B, ack(2, 2))
    assert m.sent(Data, Commit) == [(None, data(3, b"45"))]
    m.receive(B, ack(3, 2))
    assert m.sent(Commit) == [(None, Commit(3, ViewId(A, 1)))]
    assert m.take() == [b"012345"]


def test_a_commit_is_told_again_with_every_probe() -> None:
    m = Machine(A, A, B)
    m.send(b"1")
    m.receive(B, ack(1))
    m.sent()
    m.timeout(WATERMARK_PROBE_START_NS)
    assert m.sent() == [(None, Watermark(UNIFORM, 1)), (None, Commit(1, ViewId(A, 1)))]


def test_the_departed_are_not_waited_for() -> None:
    m = Machine(A, A, B, C)
    m.send(b"1")
    m.receive(B, ack(1))
    m.sent()
    m.view(A, B, counter=2)
    assert m.sent(Commit) == [(None, Commit(1, ViewId(A, 2)))]
    assert m.take() == [b"1"]


def test_joiners_are_waited_for_as_soon_as_they_are_in_the_view() -> None:
    m = Machine(A, A, B)
    m.send(b"1")
    m.view(A, B, C, counter=2)
    m.receive(B, ack(1))
    assert m.sent(Commit) == []
    assert m.take() == []
    m.receive(C, ack(1))
    assert m.take() == [b"1"]


# The receiver: a gate


def test_what_has_arrived_waits_for_its_commit_and_is_acknowledged_at_once() -> None:
    m = Machine(A, A, B)
    m.receive(B, data(1, b"1", b"2"))
    assert m.sent(Ack)[-1] == (B, Ack(UNIFORM, 2, 0, m.layer._allowance(0)))
    assert not m.layer.has_ready
    assert m.take() == []
    m.receive(B, Commit(1, ViewId(A, 1)))
    assert m.layer.has_ready
    assert m.take() == [b"1"]
    m.receive(B, Commit(0, ViewId(A, 1)))
    assert m.take() == []
    m.receive(B, Commit(2, ViewId(A, 1)))
    assert m.take() == [b"2"]


def test_a_commit_shows_what_is_missing() -> None:
    m = Machine(A, A, B)
    m.receive(B, Commit(2, ViewId(A, 1)))
    deadline = m.layer.deadlines.next()
    assert deadline is not None
    while not (asked := m.sent(Nack)):
        deadline = m.layer.deadlines.next()
        assert deadline is not None
        m.timeout(deadline - m.now)
    assert asked == [(B, Nack(UNIFORM, [range(1, 3)]))]
    m.receive(B, data(1, b"1", b"2"))
    assert m.take() == [b"1", b"2"]


def test_a_commit_in_a_view_to_come_waits_for_it() -> None:
    m = Machine(A, A, B, C)
    m.receive(B, data(1, b"1", b"2"), Commit(2, ViewId(A, 3)), Commit(1, ViewId(A, 2)))
    assert m.take() == []
    m.view(A, B, counter=2)
    assert m.take() == []
    m.view(A, B, D, counter=3)
    assert m.take() == [b"1", b"2"]


def test_a_commit_counts_only_in_the_view_that_it_names() -> None:
    m = Machine(A, A, B, C)
    m.receive(B, data(1, b"1"), Commit(1, ViewId(B, 1)))  # another view of the same number
    assert m.take() == []
    m.receive(B, Commit(1, ViewId(B, 2)))  # and one that others install
    m.view(A, B, C, counter=2)
    assert m.take() == []
    m.receive(B, Commit(1, ViewId(A, 1)))  # one that has come late: it will be told again
    assert m.take() == []
    m.receive(B, Commit(1, ViewId(A, 2)))
    assert m.take() == [b"1"]


def test_what_is_committed_and_not_taken_by_all_is_told_again_in_a_new_view() -> None:
    m = Machine(A, A, B)
    m.send(b"1")
    m.receive(B, ack(1))
    m.sent()
    m.view(A, B, C, counter=2)
    assert m.sent(Commit) == [(None, Commit(1, ViewId(A, 2)))]
    m.receive(B, ack(1, 1))
    m.take()
    m.receive(C, ack(1, 1))
    m.view(A, B, counter=3)
    assert m.sent(Commit) == []


def test_nobody_else_commits_what_a_sender_has_sent() -> None:
    m = Machine(A, A, B)
    m.receive(B, data(1, b"1"))
    m.receive(X, Commit(1, ViewId(A, 1)))
    m.receive(A, Commit(1, ViewId(A, 1)))
    assert m.layer.refused == 2
    assert m.take() == []


def test_other_streams_have_no_gate() -> None:
    m = Machine(A, A, B)
    m.receive(B, Data(Stream.FIFO, 1, [b"f"]))
    assert m.take() == [b"f"]


# What stands between a joiner and its digest


def test_who_is_asked_what_it_has_committed_says_so() -> None:
    m = Machine(A, A, B)
    m.send(b"1")
    m.receive(B, ack(1))
    m.sent()
    m.receive(B, CommitWanted(ViewId(A, 1)))
    assert m.sent() == [(B, Commit(1, ViewId(A, 1)))]
    m.receive(B, CommitWanted(ViewId(A, 2)))  # in a view that is not here yet
    m.receive(X, CommitWanted(ViewId(A, 1)))
    assert m.sent() == []
    assert m.layer.refused == 1


def test_without_a_uniform_stream_nobody_is_asked() -> None:
    m = Machine(A)
    m.layer = ReliableMulticast(A, MulticastConfig(), 900)
    m.view(A, B)
    m.receive(B, CommitWanted(ViewId(A, 1)))
    assert m.layer.refused == 1
    m.signal(DigestWanted((B,)))
    assert [type(signal) for signal in m.signals()] == [DigestTaken]
    m.timeout(ASK_NS)
    assert m.sent(CommitWanted) == []


def test_a_digest_waits_for_what_is_committed_and_not_taken() -> None:
    m = Machine(A, A, B)
    m.receive(B, data(1, b"1"))
    m.view(A, B, C, counter=2)
    m.signal(DigestWanted((C,)))
    m.sent()
    m.timeout(0)
    assert m.sent() == [(B, CommitWanted(ViewId(A, 2)))]
    m.timeout(ASK_NS)
    assert m.sent(CommitWanted) == [(B, CommitWanted(ViewId(A, 2)))]
    assert "C cannot be let in yet: B has not said what it has committed" in m.layer.explain(0)
    m.receive(B, Commit(1, ViewId(A, 2)))
    assert m.signals() == []
    assert m.layer.explain(0)[-1] == (
        "C cannot be let in yet: this member has not taken all that is committed"
    )
    assert m.take() == [b"1"]
    (taken,) = m.signals()
    assert isinstance(taken, DigestTaken)
    assert taken.digest.entries[Origin(B, UNIFORM)] == 1
    m.sent()
    m.timeout(ASK_NS)
    assert m.sent(CommitWanted) == []


def test_what_was_committed_in_an_earlier_view_is_asked_for_again() -> None:
    m = Machine(A, A, B)
    m.receive(B, Commit(0, ViewId(A, 1)))
    m.view(A, B, C, counter=2)
    m.signal(DigestWanted((C,)))
    assert m.signals() == []
    m.receive(B, Commit(0, ViewId(A, 2)))
    assert [type(signal) for signal in m.signals()] == [DigestTaken]


def test_a_digest_waits_until_the_departed_are_resolved() -> None:
    m = Machine(A, A, B, C)
    v2 = m.view(A, B, D, counter=2)
    m.signal(DigestWanted((D,)))
    m.receive(B, Commit(0, ViewId(A, 2)))
    assert m.signals() == [Settled(False)]
    assert "D cannot be let in yet: C is not resolved" in m.layer.explain(0)
    m.receive(B, standing(v2, share(C)))
    m.receive(D, Standing(v2, False, ()))
    settled, taken = m.signals()
    assert settled == Settled(True)
    assert isinstance(taken, DigestTaken)


def test_a_digest_waits_until_everybody_has_said_where_it_begins() -> None:
    m = Machine(A, A)
    m.signal(Reunited((B,)))
    m.view(A, B, counter=2)
    m.view(A, B, C, counter=3)
    m.signal(DigestWanted((C,)))
    m.receive(B, Begin(UNIFORM, 2, 0, is_middle=False), Commit(0, ViewId(A, 3)))
    assert "C cannot be let in yet: B has not said where it begins" in m.layer.explain(0)
    assert m.signals() == []
    m.receive(B, Begin(Stream.FIFO, 2, 0, is_middle=False))
    assert [type(signal) for signal in m.signals()] == [DigestTaken]


def test_a_digest_knows_of_those_who_departed_and_are_not_resolved() -> None:
    m, _ = bereaved(b"1")
    assert m.layer.digest().entries[Origin(D, UNIFORM)] == 0
    m, _ = forwarder()
    assert Origin(D, UNIFORM) not in m.layer.digest().entries


def test_another_view_ends_the_question() -> None:
    m = Machine(A, A, B)
    m.view(A, B, C, counter=2)
    m.signal(DigestWanted((C,)))
    m.view(A, B, counter=3)
    m.receive(B, Commit(0, ViewId(A, 3)), standing(ViewId(A, 3), share(C)))
    assert not any(isinstance(signal, DigestTaken) for signal in m.signals())
    m.sent()
    m.timeout(ASK_NS)
    assert m.sent(CommitWanted) == []


# The taker


def bereaved(*messages: bytes, me: Member = A, **config: Any) -> tuple[Machine, ViewId]:
    """A, B and C without D, whose messages have come to me and were not committed."""
    m = Machine(me, A, B, C, D, **config)
    m.receive(D, *(data(n, payload) for n, payload in enumerate(messages, 1)))
    m.sent()
    view_id = m.view(A, B, C, counter=2)
    m.signals()
    return m, view_id


def test_who_is_left_alone_delivers_what_it_holds() -> None:
    m = Machine(A, A, B)
    m.receive(B, data(1, b"1", b"2"))
    m.view(A, counter=2)
    assert m.layer.has_ready
    assert m.estates == [B]
    assert m.take() == [b"1", b"2"]
    assert m.estates == []
    assert not m.layer.has_ready
    assert m.signals() == [Settled(False), Settled(True)]


def test_a_taker_asks_everybody_and_goes_on_when_all_have_answered() -> None:
    m, v2 = bereaved(b"1")
    asked = takeover(v2, RecoveryTarget(D, COLLECT, 0))
    assert m.sent(Takeover) == [(B, asked), (C, asked)]
    m.receive(B, standing(v2, share(D, received=1)))
    assert m.sent(Takeover) == []
    m.receive(C, standing(v2, share(D)))
    told = takeover(v2, RecoveryTarget(D, HOLD, 1))
    assert m.sent(Takeover) == [(B, told), (C, told)]
    assert m.take() == []
    m.receive(C, standing(v2, share(D, received=1)))
    told = takeover(v2, RecoveryTarget(D, COMMIT, 1))
    assert m.sent(Takeover) == [(B, told), (C, told)]
    assert m.take() == [b"1"]
    m.receive(C, standing(v2, share(D, received=1, delivered=1)))
    assert m.estates == [D]
    m.sent()
    m.receive(B, standing(v2, share(D, received=1, delivered=1)))
    told = takeover(v2, RecoveryTarget(D, RESOLVED, 0))
    assert m.sent(Takeover) == [(B, told), (C, told)]
    assert m.estates == []
    assert first_due(m.layer.uniform) is None


def test_a_taker_waits_for_its_own_application() -> None:
    m, v2 = bereaved(b"1")
    for who in (B, C):
        m.receive(who, standing(v2, share(D, received=1, delivered=1)))
    assert m.estates == [D]
    assert m.take() == [b"1"]
    assert m.estates == []


def test_a_taker_fetches_what_it_lacks_before_it_passes_anything_on() -> None:
    m, v2 = bereaved(b"1")
    m.receive(B, standing(v2, share(D, received=2)))
    m.sent()
    m.receive(C, standing(v2, share(D, received=3)))
    assert m.messages() == [(C, EstateWanted(v2, D, 2, 3))]
    told = takeover(v2, RecoveryTarget(D, COLLECT, 3))
    assert m.sent(Takeover) == [(B, told), (C, told)]
    m.receive(C, standing(v2, share(D, received=3)))
    assert m.messages() == []
    m.message(C, EstateRun(D, 2, (b"2",), (False,)))
    assert m.sent(Takeover) == []
    m.message(C, EstateRun(D, 3, (b"3",), (False,)))
    assert m.received(D) == 3
    told = takeover(v2, RecoveryTarget(D, HOLD, 3))
    assert m.sent(Takeover) == [(B, told), (C, told)]
    m.message(B, EstateWanted(v2, D, 3, 3))
    assert m.messages() == [(B, EstateRun(D, 3, (b"3",), (False,)))]


def test_who_is_not_open_does_not_count() -> None:
    m, v2 = bereaved(b"1")
    m.receive(B, Standing(v2, False, ()))
    m.receive(C, standing(v2, share(D, received=1, delivered=1)))
    m.sent()
    assert m.take() == [b"1"]
    assert m.sent(Takeover) == [(C, takeover(v2, RecoveryTarget(D, RESOLVED, 0)))]


def test_who_opens_after_all_counts_again() -> None:
    m, v2 = bereaved(b"1")
    m.receive(B, Standing(v2, False, ()))
    m.receive(B, standing(v2, share(D)))
    m.receive(C, standing(v2, share(D, received=1)))
    assert m.take() == []


@pytest.mark.parametrize(
    ("source", "view_id"),
    [(X, ViewId(A, 2)), (D, ViewId(A, 2)), (B, ViewId(A, 1)), (B, ViewId(B, 2))],
    ids=["stranger", "departed", "old view", "other view"],
)
def test_an_answer_of_others_or_to_another_question_does_not_count(
    source: Member, view_id: ViewId
) -> None:
    m, _ = bereaved(b"1")
    m.receive(source, standing(view_id, share(D)))
    assert m.layer.stats()["standings"] == 0


def test_an_answer_to_somebody_who_is_no_taker_does_not_count() -> None:
    m, v2 = bereaved(b"1", me=B)
    m.receive(C, standing(v2, share(D)))
    assert m.layer.stats()["standings"] == 0


def test_two_that_have_departed_are_seen_to_each_for_itself() -> None:
    m = Machine(A, A, B, C, D)
    m.receive(C, data(1, b"c"))
    m.receive(D, data(1, b"d"))
    m.sent()
    v2 = m.view(A, B, counter=2)
    m.receive(B, standing(v2, share(C, received=1), share(D)))
    assert m.sent(Takeover)[-1] == (
        B,
        takeover(v2, RecoveryTarget(C, COMMIT, 1), RecoveryTarget(D, HOLD, 1)),
    )
    assert m.take() == [b"c"]
    m.receive(B, standing(v2, share(C, received=1, delivered=1), share(D, received=1)))
    assert m.estates == [D]
    assert m.sent(Takeover)[-1] == (
        B,
        takeover(v2, RecoveryTarget(D, COMMIT, 1), RecoveryTarget(C, RESOLVED, 0)),
    )


def test_every_view_begins_anew() -> None:
    m, v2 = bereaved(b"1")
    m.receive(B, standing(v2, share(D)))
    m.receive(C, standing(v2, share(D, received=3)))
    assert len(m.messages()) == 1
    m.sent()
    v3 = m.view(A, B, counter=3)
    collects = [RecoveryTarget(D, COLLECT, 0), RecoveryTarget(C, COLLECT, 0)]
    assert m.sent(Takeover) == [(B, takeover(v3, *collects))]
    m.receive(B, standing(v2, share(D)))
    assert m.sent(Takeover) == []
    m.receive(B, standing(v3, share(D), share(C)))
    assert m.sent(Takeover)[-1] == (
        B,
        takeover(v3, RecoveryTarget(D, HOLD, 1), RecoveryTarget(C, RESOLVED, 0)),
    )


def test_nothing_is_said_again_once_all_is_resolved_and_less_and_less_often_before() -> None:
    m, v2 = bereaved(b"1")
    m.sent()
    asked = (B, takeover(v2, RecoveryTarget(D, COLLECT, 0)))
    times = []
    while m.now < 3 * TAU:
        deadline = first_due(m.layer.uniform)
        assert deadline is not None
        m.timeout(deadline - m.now)
        times += [m.now] * (asked in m.sent())
    pauses = [after - before for before, after in pairwise(times)]
    assert times[0] == REPEAT_START_NS
    assert pauses[:2] == [2 * REPEAT_START_NS, 4 * REPEAT_START_NS]
    assert pauses[-1] == TAU
    for who in (B, C):
        m.receive(who, standing(v2, share(D, received=1, delivered=1)))
    m.take()
    assert first_due(m.layer.uniform) is None


def test_what_gets_on_is_said_soon_again() -> None:
    m, v2 = bereaved(b"1")
    for _ in range(4):
        deadline = first_due(m.layer.uniform)
        assert deadline is not None
        m.timeout(deadline - m.now)
    m.receive(B, standing(v2, share(D)))
    m.receive(C, standing(v2, share(D)))
    assert first_due(m.layer.uniform) == m.now + REPEAT_START_NS


def test_who_has_not_heard_that_all_is_resolved_is_told() -> None:
    m, v2 = bereaved()
    for who in (B, C):
        m.receive(who, standing(v2, share(D)))
    assert m.estates == []
    m.sent()
    m.receive(C, standing(v2, share(D)))
    assert m.sent() == [(C, takeover(v2, RecoveryTarget(D, RESOLVED, 0)))]


def test_a_taker_learns_of_a_departed_sender_from_whoever_knows_it() -> None:
    m = Machine(A, A, B, C)
    m.receive(B, standing(ViewId(A, 1), share(X, received=2)))
    asked = takeover(ViewId(A, 1), RecoveryTarget(X, COLLECT, 0))
    assert m.sent(Takeover) == [(B, asked), (C, asked)]
    m.receive(C, standing(ViewId(A, 1)))
    assert m.messages() == []  # C has yet to hear of X
    m.receive(C, standing(ViewId(A, 1), share(X, has_window=False)))
    assert m.messages() == [(B, EstateWanted(ViewId(A, 1), X, 1, 2))]


def test_what_does_not_come_is_asked_for_again() -> None:
    m, v2 = bereaved(b"1")
    m.receive(B, standing(v2, share(D, received=3)))
    m.receive(C, standing(v2, share(D)))
    wanted = (B, EstateWanted(v2, D, 2, 3))
    assert m.messages() == [wanted]
    waited = 0
    while not (asked := m.messages()):
        deadline = m.layer.deadlines.next()
        assert deadline is not None
        waited += deadline - m.now
        m.timeout(deadline - m.now)
    assert asked == [wanted]
    assert TAU <= waited <= 4 * TAU
    m.message(B, EstateRun(D, 2, (b"2",), (False,)))
    m.timeout(TAU)
    assert m.messages() == []  # some of it has come
    m.timeout(TAU)
    assert m.messages() == [(B, EstateWanted(v2, D, 3, 3))]


def test_nobody_who_is_in_the_view_has_an_estate() -> None:
    m = Machine(A, A, B, C)
    m.receive(B, standing(ViewId(A, 1), share(C)))
    assert m.estates == []
    assert m.sent(Takeover) == []


def test_estates_are_bounded() -> None:
    m = Machine(A, A, B, C)
    strangers = [X._replace(incarnation=n) for n in range(10, 12 + ESTATES_MAX)]
    m.receive(B, standing(ViewId(A, 1), *map(share, strangers[:200])))
    m.receive(B, standing(ViewId(A, 1), *map(share, strangers[200:])))
    assert len(m.estates) == ESTATES_MAX
    sent = [frame for _, frame in m.sent(Takeover)]
    assert max(len(frame.claims) for frame in sent if isinstance(frame, Takeover)) == ESTATES_MAX


def test_of_many_that_are_resolved_the_oldest_are_forgotten_and_resolved_again() -> None:
    m = Machine(A, A, B)
    v1 = ViewId(A, 1)
    strangers = [X._replace(incarnation=n) for n in range(10, 11 + RESOLVED_MAX)]
    m.receive(B, standing(v1, *map(share, strangers)))
    claims = [frame.claims for _, frame in m.sent() if isinstance(frame, Takeover)][-1]
    assert claims == tuple(RecoveryTarget(who, RESOLVED, 0) for who in strangers[1:])
    m.receive(B, standing(v1, share(strangers[0])))
    claims = [frame.claims for _, frame in m.sent() if isinstance(frame, Takeover)][-1]
    assert claims[-1] == RecoveryTarget(strangers[0], RESOLVED, 0)


def test_a_window_too_small_for_what_others_hold_is_made_larger() -> None:
    m, v2 = bereaved(b"1", b"2", me=B, capacity=2)
    m.receive(A, takeover(v2, RecoveryTarget(D, HOLD, 4)))
    assert m.messages() == [(A, EstateWanted(v2, D, 3, 4))]
    m.message(A, EstateRun(D, 3, (b"3", b"4"), (False, False)))
    m.receive(A, takeover(v2, RecoveryTarget(D, COMMIT, 4)))
    assert m.take() == [b"1", b"2", b"3", b"4"]


# A taker that has no window of its own


def forwarder() -> tuple[Machine, ViewId]:
    """A, whose group B and D came to; D never said where to begin, and has died."""
    m = Machine(A, A)
    m.signal(Reunited((B, D)))
    m.view(A, B, D, counter=2)
    m.receive(B, Begin(UNIFORM, 2, 0, is_middle=False))
    assert (B, Begun(UNIFORM, 2)) in m.sent()
    v3 = m.view(A, B, counter=3)
    m.sent()
    return m, v3


def test_who_never_began_passes_on_and_delivers_nothing() -> None:
    m, v3 = forwarder()
    m.receive(B, standing(v3, share(D, received=3, delivered=1)))
    assert m.messages() == [(B, EstateWanted(v3, D, 2, 3))]
    m.message(B, EstateRun(D, 2, (b"2", b"3"), (False, False)))
    assert m.sent(Takeover)[-1] == (B, takeover(v3, RecoveryTarget(D, COMMIT, 3)))
    assert not m.layer.has_ready
    assert m.take() == []
    m.receive(B, standing(v3, share(D, received=3, delivered=3)))
    assert m.estates == []


def test_who_never_began_knows_nothing_in_the_next_view_either() -> None:
    m, v3 = forwarder()
    m.receive(B, standing(v3, share(D, received=3, delivered=1)))
    m.message(B, EstateRun(D, 2, (b"2", b"3"), (False, False)))
    m.view(B, A, counter=4)
    assert m.sent(Standing) == [
        (B, standing(ViewId(B, 4), ReceivedRange(D, 3, 3, has_window=False, low=1)))
    ]
    m.receive(B, takeover(ViewId(B, 4), RecoveryTarget(D, COMMIT, 3)))
    assert m.take() == []


def test_where_nobody_began_there_is_nothing_to_do() -> None:
    m, v3 = forwarder()
    m.receive(B, standing(v3, share(D, has_window=False)))
    assert m.estates == []


# The others


def test_who_has_an_estate_tells_the_taker_and_tells_it_again() -> None:
    m, v2 = bereaved(b"1", b"2", me=B)
    told = (A, standing(v2, share(D, received=2)))
    assert m.sent(Standing) == [told]
    m.timeout(REPEAT_START_NS)
    assert m.sent(Standing) == [told]


def test_a_member_holds_and_delivers_as_the_taker_says() -> None:
    m, v2 = bereaved(b"1", me=B)
    m.sent()
    m.receive(A, takeover(v2, RecoveryTarget(D, COLLECT, 0)))
    assert m.sent() == [(A, standing(v2, share(D, received=1)))]
    m.receive(A, takeover(v2, RecoveryTarget(D, HOLD, 2)))
    assert m.messages() == [(A, EstateWanted(v2, D, 2, 2))]
    m.receive(A, takeover(v2, RecoveryTarget(D, HOLD, 2)))
    assert m.messages() == []
    m.sent()
    m.message(A, EstateRun(D, 2, (b"2",), (False,)))
    assert m.sent() == [(A, standing(v2, share(D, received=2)))]
    assert m.take() == []
    m.receive(A, takeover(v2, RecoveryTarget(D, COMMIT, 2)))
    m.sent()
    assert m.take(1) == [b"1"]
    assert m.take() == [b"2"]
    assert m.sent()[-1] == (A, standing(v2, share(D, received=2, delivered=2)))
    m.receive(A, takeover(v2, RecoveryTarget(D, RESOLVED, 0)))
    assert m.estates == []
    assert m.sent() == [(A, standing(v2))]
    assert first_due(m.layer.uniform) is None


def test_the_application_takes_no_more_than_it_asks_for() -> None:
    m = Machine(A, A, B, C)
    m.receive(B, data(1, b"1", b"2"))
    m.receive(C, data(1, b"3", b"4"))
    m.view(A, counter=2)
    assert m.take(3) == [b"1", b"2", b"3"]
    assert m.estates == [C]
    assert m.take(0) == []
    assert m.take(3) == [b"4"]


def test_who_holds_all_fetches_nothing() -> None:
    m, v2 = bereaved(b"1", me=B)
    m.receive(A, takeover(v2, RecoveryTarget(D, COMMIT, 1)))
    assert m.messages() == []
    assert m.take() == [b"1"]


def test_a_member_hears_of_a_departed_sender_that_it_never_knew() -> None:
    m = Machine(B, A, B)
    v1 = ViewId(A, 1)
    m.sent()
    m.receive(A, takeover(v1, RecoveryTarget(X, HOLD, 3)))
    assert m.sent() == [(A, standing(v1, share(X, has_window=False)))]
    assert m.messages() == []
    m.timeout(REPEAT_START_NS)
    assert m.sent(Standing) == [(A, standing(v1, share(X, has_window=False)))]
    m.receive(A, takeover(v1, RecoveryTarget(X, RESOLVED, 0)))
    assert m.estates == []


def test_a_claim_to_somebody_in_the_view_is_not_heard() -> None:
    m = Machine(B, A, B, C)
    m.receive(A, takeover(ViewId(A, 1), RecoveryTarget(C, COLLECT, 0)))
    assert m.estates == []


@pytest.mark.parametrize(
    ("source", "view_id"),
    [(C, ViewId(A, 2)), (A, ViewId(A, 1)), (D, ViewId(A, 2)), (B, ViewId(A, 2))],
    ids=["no taker", "old view", "departed", "myself"],
)
def test_nobody_else_takes_over(source: Member, view_id: ViewId) -> None:
    m, _ = bereaved(b"1", me=B)
    m.sent()
    m.receive(source, takeover(view_id, RecoveryTarget(D, COMMIT, 1)))
    assert m.take() == []
    assert m.sent() == []


def test_a_taker_does_not_follow_itself() -> None:
    m, v2 = bereaved(b"1")
    m.sent()
    m.receive(A, takeover(v2, RecoveryTarget(D, COMMIT, 1)))
    assert m.take() == []
    assert m.sent() == []


def test_who_is_in_no_view_says_so_and_wants_no_older_one_any_more() -> None:
    m = Machine(B)
    m.receive(A, takeover(ViewId(A, 2), RecoveryTarget(D, COLLECT, 0)))
    assert m.sent() == [(A, Standing(ViewId(A, 2), False, ()))]
    assert m.signals() == [NewerView(ViewId(A, 2))]
    m.receive(A, standing(ViewId(A, 2), share(D)))
    m.message(A, EstateRun(D, 1, (b"1",), (False,)))
    m.message(A, EstateWanted(ViewId(A, 2), D, 1, 1))
    assert m.sent() == []
    assert m.messages() == []


def test_who_has_closed_says_nothing() -> None:
    m, v2 = bereaved(b"1", me=B)
    m.layer.group.close("over", [m.layer], 0, m.out)
    m.sent()
    m.receive(A, takeover(v2, RecoveryTarget(D, COLLECT, 0)))
    assert m.sent() == []
    assert m.estates == []
    assert m.layer.deadlines.next() is None


def test_a_sender_that_is_back_is_not_taken_over_any_more() -> None:
    m, _ = bereaved(b"1", me=B)
    m.view(A, B, C, D, counter=3)
    assert m.estates == []
    assert first_due(m.layer.uniform) is None
    assert m.signals() == [Settled(True)]


def test_the_departed_are_deaf() -> None:
    m, v2 = bereaved(b"1")
    m.receive(D, data(2, b"2"), Commit(1, ViewId(A, 1)))
    assert m.take() == []
    assert m.received(D) == 1
    m.receive(D, standing(v2, share(D, received=2)))
    assert m.layer.stats()["standings"] == 0


# Handing over


def test_only_what_is_here_is_handed_over_and_only_in_this_view() -> None:
    m, v2 = bereaved(b"1", b"2")
    m.message(B, EstateWanted(v2, D, 1, 9))
    assert m.messages() == [(B, EstateRun(D, 1, (b"1", b"2"), (False, False)))]
    m.message(B, EstateWanted(v2, D, 3, 9))
    m.message(B, EstateWanted(ViewId(A, 1), D, 1, 2))
    m.message(B, EstateWanted(v2, X, 1, 2))
    assert m.messages() == []


def test_who_has_no_window_hands_over_nothing() -> None:
    m, v3 = forwarder()
    m.message(B, EstateWanted(v3, D, 1, 2))
    m.message(B, EstateRun(D, 1, (b"1",), (False,)))
    assert m.messages() == []
    assert m.received(D) == 0


def test_much_is_handed_over_in_several_messages() -> None:
    size = 60_000
    count = RUN_BYTES // size + 3
    many = [bytes(size)] * count
    m, v2 = bereaved(*many, datagram_bytes=60_100, window_bytes=1 << 22)
    m.message(B, EstateWanted(v2, D, 1, count))
    runs = [run for _, run in m.messages() if isinstance(run, EstateRun)]
    assert [run.first for run in runs] == [1, RUN_BYTES // size + 2]
    assert sum(len(run.payloads) for run in runs) == count
    assert all(len(run.payloads) == len(run.more) for run in runs)


def test_fragments_stay_fragments_on_their_way() -> None:
    giver = Machine(A, A, B, C, D)
    giver.receive(D, data(1, b"whole"), data(2, b"one ", more=True), data(3, b"message"))
    v2 = giver.view(A, B, C, counter=2)
    giver.message(B, EstateWanted(v2, D, 1, 3))
    ((_, run),) = giver.messages()
    assert run == EstateRun(D, 1, (b"whole", b"one ", b"message"), (False, True, False))
    taker, _ = bereaved(me=B)
    taker.receive(A, takeover(v2, RecoveryTarget(D, HOLD, 3)))
    assert isinstance(run, EstateRun)
    taker.message(A, run)
    taker.receive(A, takeover(v2, RecoveryTarget(D, COMMIT, 3)))
    assert taker.take() == [b"whole", b"one message"]


def test_a_message_that_its_sender_never_finished_is_not_delivered() -> None:
    m = Machine(A, A, B)
    m.receive(B, data(1, b"half of ", more=True))
    m.view(A, counter=2)
    events = m.layer.take_ready(9, 0, m.out)
    assert [type(event) for event in events] == [FragmentsDelivered]
    assert m.estates == []


@pytest.mark.parametrize(
    ("source", "sender"), [(X, D), (D, D), (A, X)], ids=["stranger", "departed", "unknown"]
)
def test_a_run_of_a_stranger_or_about_one_does_not_count(source: Member, sender: Member) -> None:
    m, v2 = bereaved(b"1", me=B)
    m.receive(A, takeover(v2, RecoveryTarget(D, HOLD, 2)))
    m.message(source, EstateRun(sender, 2, (b"x",), (False,)))
    assert m.received(D) == 1


def test_a_run_that_was_asked_for_in_an_earlier_view_does_not_count() -> None:
    m, v2 = bereaved(b"1", me=B)
    m.receive(A, takeover(v2, RecoveryTarget(D, HOLD, 2)))
    m.view(A, B, counter=3)
    m.message(A, EstateRun(D, 2, (b"2",), (False,)))
    assert m.received(D) == 1


def test_fragments_beyond_the_window_are_not_marked() -> None:
    m, v2 = bereaved(b"1", me=B, capacity=2)
    m.receive(A, takeover(v2, RecoveryTarget(D, HOLD, 2)))
    m.message(A, EstateRun(D, 1, (b"1", b"2", b"3"), (True, True, True)))
    assembler = m.layer.uniform.estates[D].assembler
    assert [assembler.is_continued(seqno) for seqno in (1, 2, 3)] == [False, True, False]


# For people


def waits(m: Machine) -> str:
    (reason,) = m.layer.uniform.explain(2_000_000_000)
    return reason


def test_what_an_estate_waits_for_is_said_in_words() -> None:
    m, v2 = bereaved(b"1")
    begun = "D has departed and its uniform messages after 0 are not resolved for 2.0 s: "
    assert waits(m) == begun + "no answer from B, C"
    m.receive(B, standing(v2, share(D, received=2)))
    m.receive(C, standing(v2, share(D)))
    assert waits(m) == begun + "C fetches what is up to 2"
    m.receive(C, standing(v2, share(D, received=2)))
    assert waits(m) == begun + "this member fetches what is up to 2"
    m.message(B, EstateRun(D, 2, (b"2",), (False,)))
    assert waits(m) == begun + "B, C has not taken 2"
    for who in (B, C):
        m.receive(who, standing(v2, share(D, received=2, delivered=2)))
    assert waits(m) == begun + "this member has not taken 2"
    assert m.layer.stats()["estates"] == {"D": [0, 2, "commit"]}


def test_who_is_no_taker_waits_for_the_taker() -> None:
    m, _ = bereaved(b"1", me=B)
    assert waits(m).endswith("A sees to it")
