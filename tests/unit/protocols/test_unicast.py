"""The machine of one member: which frames count, sync requests, tombstones, views, taking in
turn."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ringcast.config import UnicastConfig
from ringcast.core.effects import Effects
from ringcast.errors import GroupClosed, RingcastError, UsageError
from ringcast.events import Delivered, FragmentsDelivered, GapSkipped, Undeliverable, Writable
from ringcast.explore.abstraction import canonical
from ringcast.model import Address, Conn, Member, Run, Stream, View, ViewId
from ringcast.protocols.connection import State
from ringcast.protocols.unicast import ReliableUnicast
from ringcast.protocols.unicast_receiving import (
    LOOPBACK_EPOCH,
    SYNC_REQUESTS_MAX,
    TOMBSTONES_MAX,
    SyncRequest,
)
from ringcast.protocols.unicast_sender import SYNC_TICKS_MAX
from ringcast.window.assembler import PART_BYTES_MIN
from ringcast.wire.frames import (
    Close,
    Sync,
    SyncAck,
    SyncOk,
    UnicastAck,
    UnicastData,
    UnicastNack,
)

if TYPE_CHECKING:
    from ringcast.events import Event
    from ringcast.wire.frames import Frame

A, B, C, X = (Member(Address("127.0.0.1", 7800 + n), n, name) for n, name in enumerate("ABCX", 1))
MS, S = 1_000_000, 1_000_000_000
TAU = 500 * MS
FIRST = LOOPBACK_EPOCH + 1
"""The epoch of A's first stream."""
ONE, TWO = Conn(2, 1), Conn(2, 2)
"""Connections of a stream to A."""


def view(*members: Member, counter: int = 1) -> View:
    return View(ViewId(members[0], counter), members)


def stranger(n: int) -> Member:
    return Member(Address("127.0.0.2", 1000 + n), n, f"s{n}")


class Machine:
    """A's machine and what came out of it."""

    def __init__(self, *others: Member, max_message_bytes: int = 10_000, **config: Any) -> None:
        options = {"capacity": 8, "window_bytes": 1 << 16, "expiry_s": 10.0, "close_s": 5.0}
        self.layer = ReliableUnicast(
            A,
            UnicastConfig(**(options | config)),
            fragment_bytes=900,
            datagram_bytes=1000,
            max_message_bytes=max_message_bytes,
        )
        self.out = Effects()
        self.now = 0
        if others:
            self.view(A, *others)

    def view(self, *members: Member, counter: int = 1) -> None:
        self.layer.group.change(view(*members, counter=counter), [self.layer], self.now, self.out)
        self.layer.check_invariants()

    def acquaint(self, who: Member) -> None:
        """It has begun a stream while it was in the view, and is in it no more."""
        before = self.layer.group.view
        assert before is not None
        self.layer.group.view = View(before.id, (*before.members, who))
        self.receive(who, UnicastData(Conn(1, 1), 1, [b"x"]))
        self.layer.drop_from(who)
        self.layer.group.view = before

    def send(self, to: Member, *payloads: bytes) -> int:
        return self.layer.send(payloads, to, self.now, self.out)

    def receive(self, source: Member, *frames: Frame) -> None:
        self.layer.receive(source, frames, self.now, self.out)
        self.layer.check_invariants()

    def take(self, limit: int = 1000) -> list[Event]:
        return self.layer.take_ready(limit, self.now, self.out)

    def payloads(self) -> list[bytes]:
        """Of the messages that can be taken."""
        delivered = [event for event in self.take() if isinstance(event, Delivered)]
        return [payload for event in delivered for payload in event.run.payloads]

    def at(self, now: int) -> None:
        self.now = now
        self.layer.handle_timeout(now, self.out)
        self.layer.check_invariants()

    def frames(self) -> list[tuple[Member | Address | None, Frame]]:
        frames = list(self.out.frames)
        self.out.frames.clear()
        return frames

    def events(self) -> list[Event]:
        events = list(self.out.events)
        self.out.events.clear()
        return events


def data(first: int, *payloads: bytes, conn: Conn = ONE, more: bool = False) -> UnicastData:
    return UnicastData(conn, first, list(payloads), more=more)


# Sending


def test_one_must_be_in_a_view_to_send() -> None:
    m = Machine()
    with pytest.raises(UsageError, match="cannot send to B: not in a view yet"):
        m.send(B, b"1")
    assert m.take() == []
    assert not m.layer.ready


def test_sending_nothing_opens_nothing() -> None:
    m = Machine(B)
    assert m.send(B) == 0
    assert m.layer.senders == {}


def test_what_cannot_be_sent_opens_nothing() -> None:
    m = Machine(B, max_message_bytes=10)
    with pytest.raises(UsageError, match="max_message_bytes is 10"):
        m.send(B, b"ok", bytes(11))
    with pytest.raises(UsageError, match="messages are bytes, not str"):
        m.layer.send(["text"], B, 0, m.out)  # type: ignore[list-item]
    assert m.layer.senders == {}


def test_epochs_grow_over_all_peers() -> None:
    m = Machine(B, C)
    m.send(B, b"1")
    m.send(C, b"1")
    assert m.layer.senders[B].conn == Conn(FIRST, 1)
    assert m.layer.senders[C].conn == Conn(FIRST + 1, 1)
    assert m.frames() == [
        (B, data(1, b"1", conn=Conn(FIRST, 1))),
        (C, data(1, b"1", conn=Conn(FIRST + 1, 1))),
    ]


def test_blocked_and_flushed() -> None:
    m = Machine(B, capacity=1)
    assert m.layer.is_flushed
    assert not m.layer.is_blocked(B)
    assert m.send(B, b"1", b"2") == 1
    assert m.layer.is_blocked(B)
    assert not m.layer.is_flushed
    m.receive(B, UnicastAck(Conn(FIRST, 1), 1, 1 << 16))
    assert m.events() == [Writable(B)]
    assert not m.layer.is_blocked(B)
    assert m.layer.is_flushed


# Who is not in the view


def test_a_new_stream_to_who_is_not_in_the_view_is_refused() -> None:
    m = Machine(B)
    with pytest.raises(Undeliverable, match="X is not in the view") as refused:
        m.send(X, b"1")
    assert (refused.value.to, refused.value.sent) == (X, 0)
    assert refused.value.last < refused.value.first  # nothing is under way to it
    assert X not in m.layer.senders
    assert m.layer.deadlines.next() is None


def test_undeliverable_is_an_event_and_an_error() -> None:
    lost = Undeliverable(B, FIRST, 1, 2, "B has been restarted", sent=3)
    assert str(lost) == "B has been restarted"
    assert pickle.loads(pickle.dumps(lost)) == lost
    assert replace(lost, last=1) != lost
    assert len({lost, replace(lost)}) == 1
    assert isinstance(lost, RingcastError)


def test_a_view_releases_whoever_waits_for_who_is_not_in_it() -> None:
    m = Machine(B, C, capacity=2)
    for peer in (B, C):
        assert m.send(peer, b"1", b"2", b"3") == 2
    m.view(A, B, counter=2)
    assert m.events() == [Writable(C)]  # B may yet make room
    assert not m.layer.is_blocked(C)
    with pytest.raises(Undeliverable, match="C is not in the view, with 2 messages") as refused:
        m.send(C, b"3")
    assert (refused.value.to, refused.value.first, refused.value.last) == (C, 1, 2)
    assert not m.layer.is_blocked(C)
    assert m.events() == []
    assert m.send(B, b"3") == 0
    assert m.layer.is_blocked(B)


def test_an_open_stream_to_who_has_left_the_view_takes_what_it_has_room_for() -> None:
    m = Machine(B, C, capacity=3)
    m.send(C, b"1")
    m.view(A, B, counter=2)
    m.events()
    assert m.send(C, b"2", b"3", b"4") == 2
    assert m.events() == [Writable(C)]  # whoever tries again is told
    with pytest.raises(Undeliverable):
        m.send(C, b"4")
    m.receive(C, UnicastAck(Conn(FIRST, 1), 3, 1 << 16))  # it is there after all
    assert m.send(C, b"4") == 1


def test_who_waits_for_a_member_that_was_restarted_is_released_once() -> None:
    m = Machine(B, capacity=1)
    m.send(B, b"1", b"2")
    m.view(A, Member(B.address, 9, "B"), counter=2)
    assert m.events() == [Undeliverable(B, FIRST, 1, 1, "B has been restarted"), Writable(B)]
    with pytest.raises(Undeliverable, match="B is not in the view"):
        m.send(B, b"2")


# To oneself


def test_to_oneself() -> None:
    m = Machine(B, capacity=2)
    assert m.send(A, b"1", b"2", b"3") == 2
    assert m.layer.is_blocked(A)
    assert m.layer.ready
    assert m.layer.explain(0) == ["2 messages of this member to itself wait for its application"]
    (event,) = m.take(limit=1)
    assert event == Delivered(A, Run(Stream.FIFO, 1, [b"1"]), ViewId(A, 1), LOOPBACK_EPOCH)
    assert m.events() == [Writable(A)]
    assert not m.layer.is_blocked(A)
    assert m.send(A, b"3") == 1
    (event,) = m.take()
    assert event == Delivered(A, Run(Stream.FIFO, 2, [b"2", b"3"]), ViewId(A, 1), LOOPBACK_EPOCH)
    assert m.frames() == []
    assert m.layer.deadlines.next() is None


def test_frames_in_ones_own_name_are_nothing() -> None:
    m = Machine(B)
    m.receive(A, data(1, b"1"))
    assert m.layer.receivers == {}
    assert m.layer.stale == 1


# Taking


def test_all_peers_are_taken_from_in_turn() -> None:
    m = Machine(B, C)
    m.receive(B, data(1, *[b"b"] * 4))
    m.receive(C, data(1, *[b"c"] * 4))
    m.send(A, *[b"a"] * 4)
    taken = [m.take(limit=2) for _ in range(6)]
    senders = [event.sender for events in taken for event in events if isinstance(event, Delivered)]
    assert all(len(events) == 1 for events in taken)
    assert sorted(senders[:3], key=str) == [A, B, C]
    assert {member: senders.count(member) for member in (A, B, C)} == {A: 2, B: 2, C: 2}
    assert m.take() == []
    assert m.take(limit=0) == []


def test_the_limit_holds_over_all_peers() -> None:
    m = Machine(B, C)
    m.receive(B, data(1, b"1", b"2"))
    m.receive(C, data(1, b"1", b"2"))
    events = m.take(limit=3)
    assert [len(e.run.payloads) for e in events if isinstance(e, Delivered)] == [2, 1]


def test_fragments_become_messages() -> None:
    m = Machine(B)
    m.receive(B, data(1, b"ab", b"cd", more=True))
    assert m.take() == [FragmentsDelivered(B, Stream.FIFO, 1, 2, ViewId(A, 1), 2)]
    m.receive(B, data(3, b"e"))
    assert m.take() == [Delivered(B, Run(Stream.FIFO, 3, [b"abcde"]), ViewId(A, 1), 2)]


def test_a_message_beyond_the_limit_is_told_of() -> None:
    """Its sender has another limit: it is skipped, never given in part."""
    m = Machine(B, max_message_bytes=3)
    m.receive(B, data(1, b"ab", b"cd", more=True), data(3, b"e", b"next"))
    events = m.take()
    assert Delivered(B, Run(Stream.FIFO, 4, [b"next"]), ViewId(A, 1), 2) in events
    assert GapSkipped(B, 2, 3, 3) in events


# Which frames count


def test_frames_for_nobody() -> None:
    m = Machine(B)
    conn = Conn(2, 1)
    m.receive(
        B,
        UnicastAck(conn, 1, 0),
        UnicastNack(conn, [range(1, 2)]),
        Close(conn),
        SyncOk(conn, 1, 0, 1, is_middle=False),
        SyncAck(conn, 1),
    )
    assert m.layer.stale == 5
    assert m.frames() == []
    assert (m.layer.senders, m.layer.receivers, m.layer.tombstones) == ({}, {}, {})


def test_an_ack_for_what_was_never_sent_is_refused() -> None:
    m = Machine(B)
    m.send(B, b"1")
    m.receive(B, UnicastAck(Conn(FIRST, 1), 2, 1 << 16))
    assert m.layer.refused == 1
    assert m.layer.senders[B].window.low == 0


def test_older_connections_of_a_stream_are_late() -> None:
    m = Machine(B)
    m.receive(B, data(1, b"1", conn=Conn(5, 1)))
    m.receive(B, data(1, b"old", conn=Conn(4, 9)), data(2, b"old", conn=Conn(4, 9)))
    assert m.layer.stale == 2
    assert m.layer.sync_requests == {}
    assert m.layer.receivers[B].conn == Conn(5, 1)


def test_data_of_a_newer_connection_asks() -> None:
    m = Machine(B)
    m.receive(B, data(1, b"1"))
    m.receive(B, data(2, b"2", conn=Conn(2, 2)))
    sync_request = m.layer.sync_requests[B]
    assert (sync_request.conn, sync_request.nonce, sync_request.asked) == (Conn(2, 2), 1, 0)
    m.receive(B, data(3, b"3", conn=Conn(2, 2)))
    assert m.layer.sync_requests == {B: sync_request}  # once
    assert m.layer.receivers[B].conn == Conn(2, 1)
    assert m.layer.deadlines.next() == TAU


# Questions about what I send


def test_a_question_about_a_stream_that_has_ended() -> None:
    m = Machine(B)
    m.send(B, b"1")
    m.frames()
    m.receive(B, Sync(Conn(FIRST - 1, 1), 1))
    assert m.frames() == [(B, Close(Conn(FIRST - 1, 1)))]
    m.receive(B, Sync(Conn(FIRST + 1, 1), 1))
    assert m.frames() == []
    assert m.layer.refused == 1
    assert m.layer.senders[B].conn == Conn(FIRST, 1)


def test_an_answer_is_repeated_by_the_tick() -> None:
    m = Machine(B)
    m.send(B, b"1")
    m.receive(B, UnicastAck(Conn(FIRST, 1), 1, 1 << 16))
    m.at(TAU)
    m.frames()
    assert m.layer.deadlines.next() == 10 * S  # idle
    m.receive(B, Sync(Conn(FIRST, 1), 1))
    answer = SyncOk(Conn(FIRST, 2), 1, 1, 1, is_middle=False)
    assert m.frames() == [(B, answer)]
    m.at(2 * TAU)
    m.at(3 * TAU)
    assert m.frames() == [(B, answer)]
    m.receive(B, SyncAck(Conn(FIRST, 2), 1))
    for n in range(4, 10):
        m.at(n * TAU)
    assert m.frames() == []
    assert m.layer.deadlines.next() == 10 * S


# My own sync requests


def asking(**config: Any) -> Machine:
    """A machine that has dropped B's window after 3 and asks where B stands."""
    m = Machine(B, **config)
    m.receive(B, data(1, b"1", b"2", b"3"))
    m.take()
    m.layer.drop_from(B)
    m.receive(B, data(4, b"4"))
    m.at(TAU)
    assert m.frames() == [(B, Sync(Conn(2, 1), 1))]
    return m


def ok(low: int, high: int = 4, nonce: int = 1, conn: Conn = TWO) -> SyncOk:
    return SyncOk(conn, nonce, low, high, is_middle=False)


def test_the_answer_opens_a_window() -> None:
    m = asking()
    m.receive(B, ok(low=1))
    entry = m.layer.receivers[B]
    assert (entry.conn, entry.window.delivered) == (Conn(2, 2), 3)
    assert (m.layer.sync_requests, m.layer.tombstones) == ({}, {})
    assert m.frames() == [(B, SyncAck(Conn(2, 2), 1)), (B, UnicastAck(Conn(2, 2), 3, 1 << 15))]
    m.receive(B, ok(low=1))
    assert m.frames() == [(B, SyncAck(Conn(2, 2), 1))]
    assert m.layer.receivers[B] is entry


@pytest.mark.parametrize(
    "late", [ok(0, nonce=0), ok(0, nonce=2), ok(0, conn=Conn(3, 1)), ok(0, conn=Conn(1, 2))]
)
def test_only_the_answer_to_this_question_counts(late: SyncOk) -> None:
    m = asking()
    m.receive(B, late)
    assert m.layer.receivers == {}
    assert m.layer.sync_requests[B].nonce == 1
    assert m.frames() == []


def test_a_question_is_repeated_and_given_up() -> None:
    m = asking()
    assert m.layer.explain(m.now) == [
        "asking B where its stream 2 to this member stands, since 0.5 s: asked 1 of 10 times"
    ]
    for n in range(2, SYNC_TICKS_MAX + 1):
        m.at(n * TAU)
    assert m.frames() == [(B, Sync(Conn(2, 1), 1))] * (SYNC_TICKS_MAX - 1)
    m.at((SYNC_TICKS_MAX + 1) * TAU)
    assert m.frames() == []
    assert m.layer.sync_requests == {}
    m.receive(B, data(4, b"4"))
    assert m.layer.sync_requests[B].nonce == 2


def test_the_close_of_a_stream_answers_the_question_too() -> None:
    m = asking()
    m.receive(B, Close(Conn(2, 1)))
    assert m.layer.sync_requests == {}
    assert m.layer.tombstones[B].is_final
    m.receive(B, data(4, b"4"))  # late
    assert m.layer.sync_requests == {}


def test_a_close_for_another_connection_answers_nothing() -> None:
    m = asking()
    m.receive(B, Close(Conn(2, 2)))
    assert B in m.layer.sync_requests
    assert not m.layer.tombstones[B].is_final


def test_a_new_stream_overtakes_the_question() -> None:
    m = asking()
    m.receive(B, data(1, b"new", conn=Conn(3, 1)))
    assert m.layer.sync_requests == {}
    m.receive(B, ok(low=3))
    assert m.layer.receivers[B].conn == Conn(3, 1)


def test_a_question_about_a_newer_stream_replaces_the_older() -> None:
    m = asking()
    m.receive(B, data(2, b"new", conn=Conn(3, 1)))
    sync_request = m.layer.sync_requests[B]
    assert (sync_request.conn, sync_request.nonce) == (Conn(3, 1), 2)
    m.receive(B, ok(low=0, nonce=2, conn=Conn(3, 2)))
    assert m.layer.receivers[B].window.delivered == 0  # B's 3 was another stream's


def test_an_answer_about_a_newer_stream_replaces_the_window() -> None:
    m = Machine(B)
    m.receive(B, data(1, b"1"))
    m.receive(B, data(2, b"new", conn=Conn(3, 1)))
    m.receive(B, ok(low=0, high=2, conn=Conn(3, 2)))
    assert m.layer.receivers[B].conn == Conn(3, 2)
    assert m.layer.receivers[B].window.high == 0


def test_reordering_asks_nothing() -> None:
    m = Machine(B)
    m.receive(B, data(2, b"2"))
    assert B in m.layer.sync_requests
    m.receive(B, data(1, b"1"))
    assert m.layer.sync_requests == {}
    m.at(TAU)
    assert not any(isinstance(frame, Sync) for _, frame in m.frames())


# What overtakes the first message


def overtaken(*firsts: int, conn: Conn = ONE) -> Machine:
    """These have come to A from B, and the first message has not."""
    m = Machine(B)
    for first in firsts:
        m.receive(B, data(first, b"%d" % first, conn=conn))
    assert m.layer.early.runs == len(firsts)
    return m


def test_what_overtook_the_first_message_is_taken_with_it() -> None:
    m = overtaken(4, 2, 3)
    m.receive(B, data(2, b"2"))  # twice
    m.receive(B, data(1, b"1"))
    assert m.payloads() == [b"1", b"2", b"3", b"4"]
    assert m.layer.early.runs == m.layer.early.size == 0
    assert m.layer.sync_requests == {}
    m.layer.check_invariants()


def test_fragments_that_overtook_the_first_one_are_put_together() -> None:
    m = Machine(B)
    m.receive(B, data(2, b"b", more=True), data(3, b"c"))
    m.receive(B, data(1, b"a", more=True))
    assert m.payloads() == [b"abc"]


def test_what_is_kept_goes_with_the_close_of_its_connection() -> None:
    m = overtaken(2, 3)
    m.receive(B, Close(TWO))
    assert m.layer.early.runs == 2
    m.receive(B, Close(ONE))
    assert m.layer.early.runs == 0


def test_what_is_kept_goes_when_a_newer_stream_comes() -> None:
    m = overtaken(2, 3)
    newer = Conn(ONE.epoch + 1, 1)
    m.receive(B, data(2, b"new", conn=newer))
    assert m.layer.early.conns() == {B: newer}
    m.receive(B, data(4, b"old"))  # late
    assert (m.layer.early.conns(), m.layer.early.runs) == ({B: newer}, 1)
    m.receive(B, data(1, b"old"))  # late too, but nothing newer is open yet
    assert m.layer.early.conns() == {B: newer}
    m.receive(B, data(1, b"first", conn=newer))
    assert m.payloads() == [b"first", b"new"]


def test_what_is_kept_of_an_older_stream_goes_when_a_newer_one_opens() -> None:
    m = overtaken(2, 3)
    m.receive(B, data(1, b"1", conn=Conn(ONE.epoch + 1, 1)))
    assert m.layer.early.runs == 0
    assert m.payloads() == [b"1"]


def test_what_is_kept_of_a_member_goes_when_another_incarnation_takes_its_place() -> None:
    for is_member in (True, False):
        m = overtaken(2, 3) if is_member else Machine(C)
        if not is_member:
            m.receive(B, data(2, b"2"))
        m.view(A, Member(B.address, 9, "B"), counter=2)
        assert m.layer.early.runs == 0
        m.receive(B, data(1, b"1"))
        assert m.payloads() == []


def test_what_is_kept_goes_when_the_window_is_dropped() -> None:
    m = overtaken(2, 3)
    m.layer.drop_from(B)
    assert m.layer.early.runs == 0


def test_what_is_kept_goes_when_the_question_is_answered_or_given_up() -> None:
    m = overtaken(2, 3)
    for n in range(1, SYNC_TICKS_MAX + 2):
        assert m.layer.early.runs == 2
        m.at(n * TAU)
    assert m.layer.early.runs == 0
    m = overtaken(2, 3)
    m.at(TAU)
    m.receive(B, ok(0, 3))
    assert m.layer.early.runs == 0


def test_what_is_kept_goes_when_all_ends() -> None:
    m = overtaken(2, 3)
    m.layer.group.close("why", [m.layer], 0, m.out)
    assert m.layer.early.runs == 0


def test_only_what_a_first_message_may_open_is_kept() -> None:
    """After a sync no first message opens; beyond the window nothing could be taken."""
    m = Machine(B, capacity=8)
    m.receive(B, data(3, b"3", conn=TWO))
    assert m.layer.early.runs == 0
    m = Machine(B, capacity=8)
    m.receive(B, data(9, b"9"))
    assert m.layer.early.runs == 0
    m = asking()  # it had a window, which was dropped
    m.receive(B, data(5, b"5"))
    assert m.layer.early.runs == 0


def test_a_question_that_was_asked_outlives_the_opening() -> None:
    """Its answer is on its way, and will change the connection."""
    m = Machine(B)
    m.receive(B, data(2, b"2"))
    m.at(TAU)
    m.receive(B, data(1, b"1"))
    assert m.layer.sync_requests[B].nonce == 1
    m.receive(B, ok(low=0, high=2))
    assert m.layer.receivers[B].conn == Conn(2, 2)
    assert m.layer.sync_requests == {}


def test_what_the_sender_let_go_of_is_told() -> None:
    m = asking()
    m.receive(B, ok(low=5, high=6))
    assert m.events() == [GapSkipped(B, 2, 4, 5)]
    assert m.layer.receivers[B].window.delivered == 5


def test_a_fragment_that_lost_its_beginning_is_not_delivered() -> None:
    m = Machine(B)
    m.receive(B, data(5, b"end", conn=Conn(2, 7)))
    m.at(TAU)
    m.receive(B, SyncOk(Conn(2, 8), 1, 4, 6, is_middle=True))
    m.receive(B, data(5, b"end", b"whole", conn=Conn(2, 8)))
    events = m.take()
    delivered = [e.run for e in events if isinstance(e, Delivered)]
    assert delivered == [Run(Stream.FIFO, 6, [b"whole"])]
    assert GapSkipped(B, 2, 5, 5) in events


def test_what_was_taken_of_a_large_message_outlives_its_window() -> None:
    m = Machine(B)
    m.receive(B, data(1, b"be", more=True))
    m.take()
    m.layer.drop_from(B)
    m.receive(B, data(2, b"gin"))
    m.at(TAU)
    m.receive(B, SyncOk(Conn(2, 2), 1, 0, 2, is_middle=False))
    m.receive(B, data(2, b"gin", conn=Conn(2, 2)))
    (event,) = m.take()
    assert isinstance(event, Delivered)
    assert event.run == Run(Stream.FIFO, 2, [b"begin"])


def test_questions_are_bounded() -> None:
    m = Machine(B)
    for n in range(SYNC_REQUESTS_MAX + 5):
        m.acquaint(stranger(n))
        m.receive(stranger(n), data(2, b"2"))
    assert len(m.layer.sync_requests) == SYNC_REQUESTS_MAX
    assert m.layer.refused == 5


def test_questions_are_alike_however_often_they_were_asked() -> None:
    sync_requests = [
        SyncRequest(Conn(2, 1), 1, since, asked) for since, asked in ((0, 1), (5, 3), (5, 0))
    ]
    first, again, never = map(canonical, sync_requests)
    assert first == again != never


# Tombstones


def test_tombstones_are_bounded() -> None:
    m = Machine(B)
    for n in range(TOMBSTONES_MAX + 5):
        m.acquaint(stranger(n))
        m.receive(stranger(n), data(1, b"1"))
        m.layer.drop_from(stranger(n))
    assert len(m.layer.tombstones) == TOMBSTONES_MAX
    assert stranger(4) not in m.layer.tombstones
    assert stranger(5) in m.layer.tombstones


def test_tombstones_do_not_expire() -> None:
    """The clock may leap while the sender still remembers; their number is bounded."""
    m = Machine(B, C)
    m.receive(B, data(1, b"1"))
    m.layer.drop_from(B)
    m.now = 10_000 * S
    m.receive(C, data(1, b"1"))
    m.layer.drop_from(C)
    assert [*m.layer.tombstones] == [B, C]


def test_halves_of_messages_in_tombstones_are_bounded() -> None:
    """The oldest half is given up; what remains of its message is skipped and told of."""
    m = Machine(B, C, max_message_bytes=100)
    for peer in (B, C):
        m.receive(peer, data(1, bytes(60), more=True))
        m.take()
        m.layer.drop_from(peer)
    assert m.layer.tombstones[B].parts is None
    assert m.layer.tombstones[C].parts == (bytes(60),)


def test_nothing_to_drop() -> None:
    m = Machine(B)
    m.layer.drop_from(B)
    assert m.layer.tombstones == {}


def test_an_operators_sync() -> None:
    m = Machine(B)
    with pytest.raises(UsageError, match="nothing has come from B yet"):
        m.layer.sync(B, 0)
    m.receive(B, data(1, b"1"))
    m.layer.sync(B, 0)
    m.layer.sync(B, 0)
    m.at(TAU)
    assert [frame for _, frame in m.frames() if isinstance(frame, Sync)] == [Sync(Conn(2, 1), 1)]


def test_an_operators_sync_without_a_window() -> None:
    m = Machine(B)
    m.receive(B, data(1, b"1"))
    m.take()
    m.layer.drop_from(B)
    m.layer.sync(B, 0)
    assert m.layer.sync_requests[B].conn == Conn(2, 1)


# Views and closing


def test_members_that_are_not_in_the_view_begin_to_close() -> None:
    m = Machine(B, C)
    for peer in (B, C):
        m.send(peer, b"1")
        m.receive(peer, data(1, b"1"))
    m.view(A, B, counter=2)
    assert m.layer.senders[C].state is m.layer.receivers[C].state is State.CLOSING
    assert m.layer.senders[B].state is m.layer.receivers[B].state is State.OPEN
    assert m.events() == []


def test_a_member_whose_address_is_taken_is_gone() -> None:
    m = Machine(B)
    again = Member(B.address, 9, "B")
    m.send(B, b"1", b"2")
    m.receive(B, data(1, b"1"), UnicastAck(Conn(FIRST, 1), 1, 1 << 16))
    m.view(A, again, counter=2)
    assert (m.layer.senders, m.layer.receivers) == ({}, {})
    assert m.layer.tombstones[B].is_final
    (lost,) = m.events()
    assert lost == Undeliverable(B, FIRST, 2, 2, "B has been restarted")
    m.receive(again, data(1, b"new"))
    assert m.layer.receivers[again].window.high == 1


@pytest.mark.parametrize("how", ["send", "receive"])
def test_a_one_way_peer_whose_address_is_taken_is_gone(how: str) -> None:
    m = Machine(B)
    if how == "send":
        m.send(B, b"1")
    else:
        m.receive(B, data(1, b"1"))
    m.view(A, Member(B.address, 9, "B"), counter=2)
    assert (m.layer.senders, m.layer.receivers) == ({}, {})


def test_who_is_out_delivers_and_sends_no_more() -> None:
    m = Machine(B)
    m.send(B, b"1")
    m.receive(B, data(1, b"1"))
    m.layer.group.close("out", [m.layer], 0, m.out)
    (lost,) = m.events()
    assert isinstance(lost, Undeliverable)
    assert m.layer.deadlines.next() is None
    assert m.take() == []
    with pytest.raises(GroupClosed):
        m.send(B, b"2")
    m.view(A, B, counter=3)  # too late
    with pytest.raises(GroupClosed):
        m.send(B, b"2")


def test_close_says_goodbye_once() -> None:
    m = Machine(B, C)
    m.send(B, b"1")
    m.send(C, b"1", b"2")
    m.receive(B, UnicastAck(Conn(FIRST, 1), 1, 1 << 16), data(1, b"1"))
    m.take()
    m.frames()
    m.layer.group.close("this member has left", [m.layer], 0, m.out)
    assert m.frames() == [(B, UnicastAck(Conn(2, 1), 1, 1 << 15)), (B, Close(Conn(FIRST, 1)))]
    assert m.events() == [Undeliverable(C, FIRST + 1, 1, 2, "this member has left")]
    m.layer.group.close("this member has left", [m.layer], 0, m.out)
    assert (m.frames(), m.events()) == ([], [])
    m.receive(B, data(2, b"2"))
    assert m.layer.receivers == {}
    assert m.layer.deadlines.next() is None


def test_closing_what_is_not_open() -> None:
    m = Machine(B)
    m.layer.close_to(B, 0)
    assert m.layer.senders == {}


def test_what_does_not_concern_unicast() -> None:
    m = Machine(B)
    m.layer.start(0, m.out)
    assert (m.frames(), m.events()) == ([], [])


# For people


def test_stats_show_every_table() -> None:
    m = asking()
    m.view(A, B, C, counter=2)
    m.send(C, b"1")
    m.send(A, b"1")
    m.receive(C, data(1, b"1"))
    m.acquaint(X)
    m.receive(X, data(2, b"22"))
    stats = m.layer.stats()
    assert stats["sync_requests"] == {
        "B": {"connection": "2.1", "nonce": 1, "asked": 1},
        "X": {"connection": "2.1", "nonce": 2, "asked": 0},
    }
    assert stats["early"] == {"runs": 1, "bytes": PART_BYTES_MIN + 2}
    assert stats["tombstones"] == {
        "B": {"connection": "2.1", "delivered": 3, "final": False},
        "X": {"connection": "1.1", "delivered": 0, "final": False},
    }
    assert stats["strangers"] == {"members": 0, "bytes": 0, "refused": 0}
    assert (stats["loopback"], stats["ticks"]) == (1, 1)
    assert isinstance(stats["to"], dict)
    assert isinstance(stats["from"], dict)
    assert list(stats["to"]) == list(stats["from"]) == ["C"]


def test_explain_speaks_of_every_peer() -> None:
    m = Machine(B, C)
    m.send(B, b"1")
    m.receive(C, data(1, b"1"))
    to_b, from_c = m.layer.explain(0)
    assert "sent to B and not yet delivered" in to_b
    assert "C to this member: 1 message from 1 on, ready" in from_c


def test_the_receive_buffer_is_shared_by_who_was_heard_of_late() -> None:
    m = Machine(B, C)
    m.layer.receive_buffer = 30_000
    m.receive(B, data(1, b"1"))
    m.receive(C, data(1, b"1"))
    m.take()
    m.at(2 * MS)
    acks = [frame for _, frame in m.frames() if isinstance(frame, UnicastAck)]
    assert [ack.allowance for ack in acks] == [15_000, 15_000]
    m.now = 1 * S
    m.receive(B, data(2, b"2"))
    m.take()
    m.at(1 * S + 2 * MS)
    acks = [frame for _, frame in m.frames() if isinstance(frame, UnicastAck)]
    assert [ack.allowance for ack in acks] == [30_000]
