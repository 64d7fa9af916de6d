"""One sender entry on its own: what each input makes it send and say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ringcast.config import UnicastConfig
from ringcast.core.effects import Effects
from ringcast.core.shared import Deadlines
from ringcast.events import Undeliverable, Writable
from ringcast.model import Address, Conn, Member
from ringcast.protocols.connection import State
from ringcast.protocols.unicast_sender import SYNC_TICKS_MAX, UnicastSender
from ringcast.wire.frames import Close, Sync, SyncOk, UnicastAck, UnicastData, UnicastNack

if TYPE_CHECKING:
    from ringcast.events import Event
    from ringcast.wire.frames import Frame

B = Member(Address("127.0.0.1", 7801), 2, "B")
S = 1_000_000_000
ONE, TWO = Conn(1, 1), Conn(1, 2)


class Entry:
    """A's entry for B and what came out of it."""

    def __init__(self, **config: Any) -> None:
        options = {"capacity": 8, "window_bytes": 1 << 16, "expiry_s": 10.0, "close_s": 5.0}
        self.deadlines = Deadlines()
        timers = self.deadlines.owner("to")
        terms = UnicastConfig(**(options | config))
        self.entry = UnicastSender(B, ONE, terms, 900, 1000, 0, timers)
        self.out = Effects()

    def send(self, count: int, now: int = 0) -> int:
        first = self.entry.window.high + 1
        payloads = [b"%d" % n for n in range(first, first + count)]
        return self.entry.send(payloads, now, self.out)

    def ack(self, delivered: int, now: int = 0, allowance: int = 1 << 16) -> None:
        self.entry.heard(now)
        self.entry.on_ack(UnicastAck(self.entry.conn, delivered, allowance), now, self.out)

    def sync(self, nonce: int, now: int = 0) -> None:
        self.entry.on_sync(Sync(self.entry.conn, nonce), now, self.out)

    def tick(self) -> list[Frame]:
        self.taken()
        self.entry.tick(self.out)
        return self.taken()

    def at(self, now: int) -> None:
        self.entry.handle_timeout(now, self.out)

    def is_in(self, state: State) -> bool:
        return self.entry.state is state

    def taken(self) -> list[Frame]:
        """The frames since the last call; all are for B."""
        frames = [frame for _, frame in self.out.frames]
        assert {dest for dest, _ in self.out.frames} <= {B}
        self.out.frames.clear()
        if self.entry.state is not State.CLOSED:
            self.entry.check_invariants()
        return frames

    def events(self) -> list[Event]:
        events = list(self.out.events)
        self.out.events.clear()
        return events

    @property
    def marks(self) -> tuple[int, int]:
        return self.entry.window.low, self.entry.window.high


def data(first: int, *payloads: bytes, conn: Conn = ONE, more: bool = False) -> UnicastData:
    return UnicastData(conn, first, list(payloads), more=more)


# Sending and acks


def test_what_finds_room_goes_out() -> None:
    e = Entry(capacity=2)
    assert e.send(3) == 2
    assert e.taken() == [data(1, b"1", b"2")]
    assert e.entry.stream.is_blocked
    assert e.send(1) == 0
    assert e.taken() == []
    assert e.marks == (0, 2)  # what was refused has no seqno


def test_an_ack_makes_room() -> None:
    e = Entry(capacity=2)
    e.send(3)
    e.ack(0)
    assert e.events() == []
    e.ack(1)
    assert e.events() == [Writable(B)]
    assert e.marks == (1, 2)
    e.ack(2)
    assert e.events() == []  # once
    assert e.entry.is_acked


def test_an_older_ack_lowers_nothing() -> None:
    e = Entry()
    e.send(5)
    e.ack(4)
    e.ack(2)
    assert e.marks == (4, 5)


def test_the_peers_allowance_bounds_what_is_in_flight() -> None:
    e = Entry()
    assert e.entry.send([bytes(800)], 0, e.out) == 1
    e.ack(1, allowance=0)
    assert e.entry.window.max_bytes == 1000  # at least a datagram
    assert e.entry.send([bytes(800), bytes(800)], 0, e.out) == 1
    e.ack(1, allowance=1 << 40)
    assert e.entry.window.max_bytes == 1 << 16  # at most what was configured
    assert e.events() == [Writable(B)]  # a larger allowance is room, too
    assert e.marks == (1, 2)


def test_a_large_message_goes_as_room_appears() -> None:
    e = Entry(capacity=2)
    large = bytes(2000)
    assert e.entry.send([large, b"next"], 0, e.out) == 1
    assert e.taken() == [data(1, large[:900], large[:900], more=True)]
    e.ack(1)
    assert e.taken() == [data(3, large[:200])]
    assert e.events() == []
    e.ack(3)
    assert e.events() == [Writable(B)]


# Resending


def test_the_highest_is_resent_on_the_second_tick_without_change() -> None:
    """S3: HA = 45, HS = 50."""
    e = Entry(capacity=64)
    e.send(50)
    e.ack(45)
    assert e.tick() == []
    assert e.entry.marked == (45, 50)
    assert e.tick() == [data(50, b"50")]
    assert e.tick() == [data(50, b"50")]
    assert e.entry.stream.retransmitted == 2
    e.ack(50)
    assert e.tick() == []
    assert e.entry.marked is None


@pytest.mark.parametrize("change", ["send", "ack"])
def test_a_change_of_either_mark_starts_over(change: str) -> None:
    e = Entry()
    e.send(3)
    e.tick()
    e.send(1) if change == "send" else e.ack(1)
    assert e.tick() == []
    assert e.tick() == [data(e.marks[1], b"%d" % e.marks[1])]


def test_the_same_marks_after_a_pause_are_not_the_same_standstill() -> None:
    e = Entry()
    e.send(1)
    e.tick()
    e.ack(1)
    e.tick()
    e.send(1)
    assert e.tick() == []


def test_a_request_is_answered_from_the_window() -> None:
    e = Entry()
    e.send(5)
    e.ack(2)
    e.taken()
    e.entry.on_nack(UnicastNack(ONE, [range(1, 4), range(5, 99)]), e.out)
    assert e.taken() == [data(3, b"3"), data(5, b"5")]
    e.entry.on_nack(UnicastNack(ONE, [range(1, 3), range(6, 9)]), e.out)
    assert e.taken() == []
    assert e.entry.stream.retransmitted == 2


def test_requests_are_answered_up_to_one_window_per_tick() -> None:
    e = Entry(capacity=4)
    e.send(4)
    e.taken()
    for _ in range(3):
        e.entry.on_nack(UnicastNack(ONE, [range(1, 4)]), e.out)
    assert [frame.count for frame in e.taken() if isinstance(frame, UnicastData)] == [3, 1]
    e.tick()
    e.entry.on_nack(UnicastNack(ONE, [range(1, 4)]), e.out)
    assert e.taken() == [data(1, b"1", b"2", b"3")]


def test_fragments_are_resent_as_fragments() -> None:
    e = Entry()
    e.entry.send([b"1", bytes(1000), b"4"], 0, e.out)
    e.taken()
    e.entry.on_nack(UnicastNack(ONE, [range(1, 5)]), e.out)
    assert e.taken() == [
        data(1, b"1"),
        data(2, bytes(900), more=True),
        data(3, bytes(100), b"4"),
    ]


# Syncs


def test_a_question_moves_the_connection_on() -> None:
    e = Entry()
    e.send(5)
    e.ack(2)
    e.taken()
    e.sync(1)
    assert e.taken() == [SyncOk(TWO, 1, 2, 5, is_middle=False)]
    assert not e.entry.is_current(ONE)
    assert e.entry.is_current(TWO)
    e.send(1)
    assert e.taken() == [data(6, b"6", conn=TWO)]


def test_the_same_question_gets_the_same_answer_once_per_tick() -> None:
    e = Entry()
    e.send(3)
    e.sync(7)
    (answer,) = [frame for frame in e.taken() if isinstance(frame, SyncOk)]
    e.sync(7)
    assert e.taken() == []
    assert e.tick() == [answer]  # it was asked for again: here it is
    e.ack(2)
    e.sync(7)
    assert e.taken() == []
    assert answer in e.tick()
    assert answer not in e.tick()
    assert e.entry.conn == TWO


def test_a_new_question_does_not_starve_behind_the_repeated_answer_to_an_old_one() -> None:
    e = Entry()
    e.sync(1)
    e.tick()
    e.tick()  # nothing has confirmed it: repeated
    e.taken()
    e.sync(2)
    (answer,) = [frame for frame in e.tick() if isinstance(frame, SyncOk)]
    assert (answer.conn, answer.nonce) == (Conn(1, 3), 2)


def test_an_older_question_is_not_answered() -> None:
    e = Entry()
    e.sync(7)
    e.tick()
    e.taken()
    e.sync(6)
    assert e.taken() == []
    assert (e.entry.conn, e.entry.nonce) == (TWO, 7)


def test_a_newer_question_within_the_tick_waits_for_its_repetition() -> None:
    e = Entry()
    e.sync(1)
    e.taken()
    e.sync(2)
    assert e.taken() == []
    assert e.entry.conn == TWO
    e.tick()
    e.sync(2)
    assert [frame.conn for frame in e.taken() if isinstance(frame, SyncOk)] == [Conn(1, 3)]


def test_an_answer_is_repeated_until_something_comes_back() -> None:
    e = Entry()
    e.sync(1)
    (answer,) = e.taken()
    assert e.entry.is_busy
    repeats = [e.tick() for _ in range(5)]
    assert repeats == [[], [answer], [], [answer], []]
    e.entry.heard(0)
    assert e.tick() == []
    assert not e.entry.is_busy


def test_an_answer_is_not_repeated_for_ever() -> None:
    e = Entry()
    e.sync(1)
    e.taken()
    repeats = [frame for _ in range(3 * SYNC_TICKS_MAX) for frame in e.tick()]
    assert 1 <= len(repeats) <= SYNC_TICKS_MAX
    assert not e.entry.is_busy


# Closing and giving up


def test_idle_closing_gone() -> None:
    e = Entry()
    e.send(1)
    e.ack(1, now=1 * S)
    assert e.deadlines.next() == 11 * S  # S9: an ack that raises HA is use
    e.at(11 * S)
    assert e.is_in(State.CLOSING)
    assert e.deadlines.next() == 16 * S
    e.taken()
    e.at(16 * S)
    assert e.is_in(State.CLOSED)
    assert e.taken() == [Close(ONE)]
    assert e.events() == []


def test_a_send_takes_it_up_again() -> None:
    e = Entry()
    e.entry.end(0)
    e.entry.end(1)
    assert e.deadlines.next() == 5 * S
    e.send(1, now=3 * S)
    assert e.is_in(State.OPEN)
    e.ack(1, now=3 * S)
    assert e.deadlines.next() == 13 * S


def test_an_ack_while_closing_does_not_reopen() -> None:
    e = Entry()
    e.send(1)
    e.entry.end(0)
    e.ack(1, now=1 * S)
    assert e.is_in(State.CLOSING)
    assert e.deadlines.next() == 5 * S


def test_what_is_not_acked_is_flushed_before_it_is_gone() -> None:
    e = Entry(max_retransmit_s=60.0)
    e.send(1)
    e.entry.end(0)
    e.at(5 * S)
    assert e.is_in(State.CLOSING)
    e.ack(1, now=9 * S)
    e.at(14 * S)
    assert e.is_in(State.CLOSED)


@pytest.mark.parametrize("is_closing", [False, True])
def test_who_answers_nothing_is_given_up(is_closing: bool) -> None:
    e = Entry(max_retransmit_s=8.0, capacity=2)
    e.entry.send([b"1", bytes(2000)], 0, e.out)
    if is_closing:
        e.entry.end(0)
    e.taken()
    for at in range(1, 8):
        e.tick()
        e.at(at * S)
    e.taken()
    e.at(8 * S)
    assert e.is_in(State.CLOSED)
    (lost,) = e.events()
    assert lost == Undeliverable(B, 1, 1, 2, "B has answered nothing for 8.0 s", 1100)
    assert e.taken() == [Close(ONE)]


@pytest.mark.parametrize("sign", ["heard", "sync"])
def test_any_sign_is_patience_anew(sign: str) -> None:
    e = Entry(max_retransmit_s=8.0, expiry_s=0.0, ack_interval_s=0.25)  # too slow for a tail timer
    e.send(1)
    assert e.deadlines.next() == 8 * S
    e.entry.heard(3 * S) if sign == "heard" else e.sync(1, now=3 * S)
    assert e.deadlines.next() == 11 * S
    assert e.entry.heard_at == 3 * S
    e.ack(1, now=4 * S)
    assert e.deadlines.next() is None


def test_giving_up_what_is_acked_says_nothing() -> None:
    e = Entry()
    e.send(1)
    e.ack(1)
    e.entry.give_up("why", e.out)
    assert e.events() == []


def test_giving_up_ends_the_wait_for_room() -> None:
    """Whoever waited to send may try again: the next send begins anew."""
    e = Entry(capacity=1)
    e.send(2)
    e.entry.give_up("why", e.out)
    assert e.events() == [Undeliverable(B, 1, 1, 1, "why"), Writable(B)]


# For people


def test_explain() -> None:
    e = Entry(capacity=2)
    assert e.entry.explain(0) == []
    e.send(1)
    (waiting,) = e.entry.explain(0)
    assert (
        waiting == "sent to B and not yet delivered: 1 message from 1 on; nothing heard from it yet"
    )
    e.send(2, now=1 * S)
    e.entry.heard(2 * S)
    (blocked,) = e.entry.explain(3 * S)
    assert blocked.startswith("send to B blocked for 2.0 s: window full (2 of 2 messages, ")
    assert blocked.endswith("not yet delivered: 2 messages from 1 on; heard 1.0 s ago")


def test_stats() -> None:
    e = Entry(capacity=2)
    e.send(2)
    e.ack(1)
    e.sync(4)
    stats = e.entry.stats()
    assert {name: stats[name] for name in ("connection", "state", "acked", "sent")} == {
        "connection": "1.2",
        "state": "OPEN",
        "acked": 1,
        "sent": 2,
    }
    assert (stats["sync_nonce"], stats["sync_confirmed"]) == (4, False)


# What seeds have found


def test_an_answer_asked_for_twice_is_not_repeated_once_it_is_known_to_have_come() -> None:
    e = Entry()
    e.send(1)
    e.sync(1)
    e.sync(1)
    e.ack(0)  # on the new connection: B has the answer
    assert not [frame for frame in e.tick() if isinstance(frame, SyncOk)]


def test_a_refused_send_does_not_keep_the_connection_open() -> None:
    e = Entry(capacity=1, expiry_s=10.0)
    e.send(1, now=0)
    assert e.send(1, now=9_000_000_000) == 0
    e.at(10_000_000_000)
    assert e.is_in(State.CLOSING)


def test_an_ack_that_makes_no_room_wakes_nobody() -> None:
    e = Entry(window_bytes=4000)
    assert e.entry.send([bytes(900)] * 3, 0, e.out) == 2  # 2000 bytes under way
    e.ack(0, allowance=2000)
    assert e.events() == []
    e.ack(2, allowance=2000)
    assert e.events() == [Writable(B)]
