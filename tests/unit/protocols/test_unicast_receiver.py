"""One receiver entry on its own: when it acks, asks and closes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ringcast.config import UnicastConfig
from ringcast.core.effects import Effects
from ringcast.core.shared import Deadlines
from ringcast.model import Address, Conn, Member
from ringcast.protocols.connection import State
from ringcast.protocols.unicast_receiver import Tombstone, UnicastReceiver
from ringcast.wire.frames import SyncOk, UnicastAck, UnicastData, UnicastNack

if TYPE_CHECKING:
    from ringcast.wire.frames import Frame

A = Member(Address("127.0.0.1", 7800), 1, "A")
MS, S = 1_000_000, 1_000_000_000
ONE, TWO = Conn(1, 1), Conn(1, 2)
ROOM = 1 << 16


class Entry:
    """B's entry for A and what came out of it. Acks wait for 2 ms."""

    def __init__(self, offset: int = 0, parts: tuple[bytes, ...] = (), **config: Any) -> None:
        options = {"capacity": 8, "window_bytes": ROOM, "expiry_s": 10.0, "close_s": 5.0}
        unicast = UnicastConfig(**(options | config))
        self.deadlines = Deadlines()
        timers = self.deadlines.owner("from")
        self.entry = UnicastReceiver(A, ONE, unicast, 1 << 20, offset, parts, 0, timers)
        self.out = Effects()

    def data(self, *seqnos: int, now: int = 0, more: bool = False) -> None:
        payloads = [b"%d" % seqno for seqno in seqnos]
        self.entry.on_data(UnicastData(ONE, seqnos[0], payloads, more=more), now)

    def take(self, limit: int = 100, now: int = 0) -> list[bytes]:
        return self.entry.take_ready(limit, now)

    def resume(self, low: int, high: int, now: int = 0, *, is_middle: bool = False) -> None:
        self.entry.resume(SyncOk(TWO, 1, low, high, is_middle), now, ROOM, self.out)

    def at(self, now: int) -> list[Frame]:
        self.entry.handle_timeout(now, ROOM, self.out)
        return self.taken()

    def is_in(self, state: State) -> bool:
        return self.entry.state is state

    def taken(self) -> list[Frame]:
        """The frames since the last call; all are for A."""
        frames = [frame for _, frame in self.out.frames]
        assert {dest for dest, _ in self.out.frames} <= {A}
        self.out.frames.clear()
        if self.entry.state is not State.CLOSED:
            self.entry.check_invariants()
        return frames


def ack(delivered: int, allowance: int = ROOM, conn: Conn = ONE) -> UnicastAck:
    return UnicastAck(conn, delivered, allowance)


# Acks


def test_one_ack_for_all_that_was_taken_in_the_interval() -> None:
    e = Entry()
    e.data(1, 2, 3)
    assert e.deadlines.next() == 10 * S  # nothing is taken yet, so nothing is to be acked
    assert e.take(limit=1, now=1 * MS) == [b"1"]
    assert e.deadlines.next() == 3 * MS  # from the first cause on
    e.take(limit=1, now=2 * MS)
    assert e.at(2 * MS) == []
    assert e.at(3 * MS) == [ack(2)]
    assert e.entry.acks_sent == 1
    assert e.at(9 * MS) == []
    assert e.deadlines.next() == 10 * S


def test_taking_nothing_acks_nothing() -> None:
    e = Entry()
    assert e.take() == []
    assert e.deadlines.next() == 10 * S


def test_a_duplicate_makes_an_ack_due() -> None:
    e = Entry()
    e.data(1)
    e.take()
    e.at(2 * MS)
    e.data(1, now=5 * MS)
    e.data(1, now=6 * MS)
    assert e.at(7 * MS) == [ack(1)]


def test_what_waits_behind_a_gap_is_room_again() -> None:
    e = Entry()
    e.data(1)
    e.data(3, 4)
    e.take()
    assert ack(1, allowance=ROOM + 2) in e.at(2 * MS)


def test_the_last_ack_goes_at_once_if_there_is_one() -> None:
    e = Entry()
    e.entry.flush_ack(ROOM, e.out)
    assert e.taken() == []
    e.data(1)
    e.take()
    e.entry.flush_ack(ROOM, e.out)
    assert e.taken() == [ack(1)]


# Repair


def test_a_gap_is_asked_for_after_a_gap_tick() -> None:
    e = Entry()
    e.data(1)
    e.data(3)
    assert e.deadlines.next() == 1 * MS
    assert e.at(1 * MS) == [UnicastNack(ONE, [range(2, 3)])]
    assert e.entry.stream.nack_sent == 1


def test_three_later_datagrams_prove_a_loss() -> None:
    e = Entry()
    e.data(1)
    for seqno in (3, 4, 5):
        e.data(seqno)
        assert e.at(0) == []
    e.data(6)
    assert e.at(0) == [UnicastNack(ONE, [range(2, 3)])]  # at the end of the turn


def test_no_gap_no_question() -> None:
    e = Entry()
    e.data(2)
    e.data(1)
    e.take()
    assert e.at(1 * S) == [ack(2)]
    assert e.entry.stream.nack_sent == 0


def test_what_had_no_slot_is_asked_for_when_there_is_one() -> None:
    e = Entry(capacity=2)
    e.data(1, 2, 3, 4)
    assert e.take() == [b"1", b"2"]
    assert UnicastNack(ONE, [range(3, 5)]) in e.at(5 * MS)


# A new connection


def test_resume_where_it_stood() -> None:
    e = Entry()
    e.data(1, 2)
    e.data(5)
    e.take()
    e.taken()
    e.resume(low=1, high=6, now=3 * MS)
    assert (e.entry.conn, e.entry.window.delivered, e.entry.window.high) == (TWO, 2, 5)
    assert e.taken() == [ack(2, ROOM + 1, TWO)]
    (nack,) = e.at(1 * S)
    assert nack == UnicastNack(TWO, [range(3, 5), range(6, 7)])


def test_resume_behind_what_is_lost() -> None:
    e = Entry()
    e.data(1)
    e.data(4)
    e.take()
    e.resume(low=3, high=4)
    assert e.take() == [b"4"]  # kept
    assert e.taken() == [ack(3, ROOM, TWO)]
    assert e.at(5 * MS) == [ack(4, ROOM, TWO)]
    assert e.entry.stream.nack_sent == 0


def test_resume_far_behind_what_is_lost() -> None:
    e = Entry()
    e.data(1)
    e.data(4)
    e.resume(low=1000, high=1002)
    assert e.taken() == [ack(1000, ROOM, TWO)]
    assert e.at(1 * MS) == [UnicastNack(TWO, [range(1001, 1003)])]


# Closing


def test_idle_closing_gone() -> None:
    e = Entry()
    e.data(1, now=1 * S)
    e.take(now=1 * S)
    e.at(2 * S)
    assert e.deadlines.next() == 11 * S
    e.at(11 * S)
    assert e.is_in(State.CLOSING)
    e.at(15 * S)
    assert e.is_in(State.CLOSING)
    e.at(16 * S)
    assert e.is_in(State.CLOSED)


def test_new_data_take_it_up_again_and_duplicates_do_not() -> None:
    e = Entry()
    e.data(1)
    e.take()
    e.entry.end(0)
    e.entry.end(1)
    e.data(1, now=3 * S)
    assert e.is_in(State.CLOSING)
    assert e.entry.used_at == 0
    e.data(2, now=4 * S)
    assert e.is_in(State.OPEN)
    assert e.entry.used_at == 4 * S
    e.at(13 * S)
    assert e.is_in(State.OPEN)


def test_it_stays_while_messages_wait_for_the_application() -> None:
    e = Entry()
    e.data(1, 2)
    e.entry.end(0)
    e.at(60 * S)
    assert e.is_in(State.CLOSING)
    e.take(limit=1, now=61 * S)
    e.at(70 * S)
    assert e.is_in(State.CLOSING)
    e.take(now=80 * S)
    e.at(81 * S)
    assert e.is_in(State.CLOSING)
    e.at(85 * S)
    assert e.is_in(State.CLOSED)


def test_who_goes_acks_what_was_taken() -> None:
    e = Entry(close_s=0.001)
    e.data(1)
    e.entry.end(0)
    e.take()
    assert e.at(1 * MS) == [ack(1)]
    assert e.is_in(State.CLOSED)


def test_what_was_taken_at_last_is_acked_if_the_end_is_served_late() -> None:
    e = Entry()
    e.data(1)
    e.at(10 * S)
    assert e.is_in(State.CLOSING)
    e.take(now=15 * S - 1 * MS)
    assert e.at(20 * S) == [ack(1)]  # the ack was due as well, but later
    assert e.is_in(State.CLOSED)


def test_without_expiry_it_only_closes_when_told() -> None:
    e = Entry(expiry_s=0.0)
    assert e.deadlines.next() is None
    e.entry.end(0)
    assert e.deadlines.next() == 5 * S
    e.data(1, now=1)
    assert e.deadlines.next() is None


def test_a_tombstone_says_how_far_it_came() -> None:
    e = Entry(offset=3)
    e.data(4, 5, more=True)
    payloads = e.take()
    e.entry.assembler.assemble(4, payloads)
    stone = e.entry.tombstone(is_final=True)
    assert stone == Tombstone(ONE, 5, (b"4", b"5"), True)


# For people


def test_explain_and_stats() -> None:
    e = Entry()
    assert e.entry.explain(0) == []
    e.data(1)
    e.data(3)
    missing, ready = e.entry.explain(2 * S)
    assert missing.startswith("A to this member: 2 missing for 2.0 s, asked 0 times")
    assert ready.startswith("A to this member: 1 message from 1 on, ready")
    e.take()
    stats = e.entry.stats()
    assert {name: stats[name] for name in ("connection", "state", "delivered", "high")} == {
        "connection": "1.1",
        "state": "OPEN",
        "delivered": 1,
        "high": 3,
    }
    assert stats["ack_pending"] is True


# Messages that come alone


def test_the_next_message_need_not_go_through_the_window() -> None:
    e = Entry()
    assert e.entry.take_next(1, 1 * MS)
    assert e.entry.take_next(2, 2 * MS)
    assert e.entry.window.delivered == e.entry.window.low == 2
    assert e.entry.used_at == 2 * MS
    assert e.taken() == []


def test_any_other_must() -> None:
    e = Entry()
    assert not e.entry.take_next(2, 0)  # out of order
    e.data(1)
    assert not e.entry.take_next(2, 0)  # one before it has not been taken
    assert e.take() == [b"1"]
    assert not e.entry.take_next(1, 0)  # late
    e.data(4)
    assert not e.entry.take_next(2, 0)  # another is missing
    e.entry.end(0)
    assert not e.entry.take_next(2, 0)  # it is to be open again first
    assert e.entry.window.delivered == 1


def test_the_last_part_of_a_message_must_too() -> None:
    e = Entry(parts=(b"begun",))
    assert not e.entry.take_next(1, 0)


def test_it_is_acknowledged_as_any_other() -> None:
    e = Entry()
    for seqno in range(1, 6):
        assert e.entry.take_next(seqno, seqno * MS // 4)
    assert e.deadlines.next() == MS // 4 + 2 * MS
    assert e.at(3 * MS) == [ack(5)]


# Acks of a busy stream


@pytest.mark.parametrize(
    ("capacity", "size", "per_run", "due"),
    [
        (4096, 10, 256, 1024),  # a quarter of the window
        (4096, 10_000, 4, 56),  # of the bytes that may be under way: 2 MiB
        (4096, 10, 1, 683),  # of what so many small datagrams are charged
        (100, 10, 10, 70),  # no less than 64 messages
        (32, 10, 8, None),  # so a small window waits for the clock
    ],
)
def test_a_quarter_of_the_window_is_acknowledged_at_once(
    capacity: int, size: int, per_run: int, due: int | None
) -> None:
    e = Entry(capacity=capacity, window_bytes=4 << 20)
    seqno = 1
    while not e.entry.is_ack_due and seqno + per_run <= capacity:
        e.entry.on_data(UnicastData(ONE, seqno, [bytes(size)] * per_run), 0)
        assert len(e.take(per_run)) == per_run
        seqno += per_run
    assert e.entry.is_ack_due == (due is not None)
    if due is not None:
        assert seqno - 1 == due
        e.entry.flush_ack(ROOM, e.out)
        assert e.taken() == [ack(due)]
        assert not e.entry.is_ack_due
    else:
        assert e.at(2 * MS) == [ack(seqno - 1)]


def test_where_little_is_allowed_less_is_much() -> None:
    e = Entry(capacity=4096, window_bytes=4 << 20)
    e.data(1)
    e.take()
    e.entry.flush_ack(400_000, e.out)
    e.taken()
    e.entry.on_data(UnicastData(ONE, 2, [bytes(9_000)] * 11), 0)
    e.take()
    assert not e.entry.is_ack_due
    e.entry.on_data(UnicastData(ONE, 13, [bytes(9_000)]), 0)
    assert not e.entry.is_ack_due  # it was not taken
    e.take()
    assert e.entry.is_ack_due


@pytest.mark.parametrize("peers", [1, 2, 3, 4, 8])
def test_half_of_what_is_allowed_is_acknowledged_at_once_however_little_that_is(peers: int) -> None:
    """With the receive buffer that most machines grant, shared by so many."""
    allowed = 212_992 // peers
    e = Entry(capacity=4096, window_bytes=4 << 20)
    e.data(1)
    e.take()
    e.entry.flush_ack(allowed, e.out)
    e.taken()
    seqno = 2
    while not e.entry.is_ack_due:
        e.entry.on_data(UnicastData(ONE, seqno, [bytes(1000)]), 0)
        e.take()
        seqno += 1
    assert (seqno - 2) * 1000 <= allowed // 2 + 1000
    assert peers > 1 or (seqno - 2) * 1000 >= allowed // 4
