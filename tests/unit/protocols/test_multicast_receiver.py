"""The receiving half, alone: when it acks and what it asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ringcast.config import DefaultSize, MulticastConfig
from ringcast.core.effects import Effects
from ringcast.core.shared import Deadlines
from ringcast.model import Address, Member, Origin, Stream
from ringcast.protocols.multicast_receiver import MulticastReceiver
from ringcast.protocols.repair import GAP_TICK_START_NS, NACK_MESSAGES_MAX
from ringcast.window.send import DATAGRAM_OVERHEAD, SendWindow
from ringcast.wire.frames import Ack, Data, Nack
from ringcast.wire.limits import NACK_RANGES_MAX

if TYPE_CHECKING:
    from ringcast.wire.frames import Frame

A = Member(Address("127.0.0.1", 7800), 1, "A")
ACK_DELAY = 20_000_000
ALLOWANCE = 12_345
ACK_EVERY_THIRD: dict[str, Any] = {"datagram_bytes": 1000, "window_bytes": 24_000}
"""Twelve datagrams may be under way; a quarter of them makes an ack due."""


class Receiver:
    """A receiver for A's messages and what came out of it."""

    def __init__(self, offset: int = 0, **config: Any) -> None:
        options = MulticastConfig(**({"capacity": 4096} | config))
        self.deadlines = Deadlines()
        timers = self.deadlines.owner("received")
        self.box = MulticastReceiver(Origin(A, Stream.FIFO), options, offset, timers)
        self.out = Effects()

    def data(self, first: int, count: int = 1, *, now: int = 0, more: bool = False) -> None:
        payloads = [b"%d" % n for n in range(first, first + count)]
        self.box.on_data(Data(Stream.FIFO, first, payloads, more=more), now, ALLOWANCE, self.out)

    def highest(self, seqno: int, now: int = 0) -> None:
        self.box.on_watermark(seqno, now, ALLOWANCE, self.out)

    def take(self, limit: int = 10_000, now: int = 0) -> list[bytes]:
        return self.box.take_ready(limit, now, ALLOWANCE, self.out)

    def timeout(self, now: int) -> None:
        self.box.handle_timeout(now, ALLOWANCE, self.out)

    def sent(self) -> list[Frame]:
        assert all(dest == A for dest, _ in self.out.frames)
        frames = [frame for _, frame in self.out.frames]
        self.out.frames.clear()
        self.box.check_invariants()
        return frames


def test_of_a_new_window_nothing_is_told() -> None:
    """The cut has told its sender where it stands."""
    r = Receiver(offset=7)
    assert r.deadlines.next() is None


@pytest.mark.parametrize("delivered", [0, 2])
def test_of_a_stream_that_was_used_its_sender_is_told_in_the_next_view(delivered: int) -> None:
    r = Receiver()
    r.data(1, 2)
    r.take(delivered)
    r.timeout(ACK_DELAY)
    r.sent()
    r.box.freeze()
    r.box.begin(ACK_DELAY)
    assert r.deadlines.next() == 2 * ACK_DELAY
    r.timeout(2 * ACK_DELAY)
    assert r.sent() == [Ack(Stream.FIFO, 2, delivered, ALLOWANCE)]
    r.box.freeze()
    r.box.begin(3 * ACK_DELAY)
    assert r.deadlines.next() is None  # of one that was not, it is not


def test_a_window_opens_right_after_its_offset() -> None:
    r = Receiver(offset=7)
    r.data(7)
    assert r.take() == []
    r.data(8)
    assert r.take() == [b"8"]


def test_messages_come_in_order_without_gaps() -> None:
    r = Receiver()
    r.data(3)
    assert r.take() == []
    r.data(1)
    assert r.take() == [b"1"]
    r.data(2)
    assert r.take(limit=1) == [b"2"]
    assert r.take() == [b"3"]


def test_an_ack_tells_what_is_held_and_what_is_taken_apart() -> None:
    r = Receiver()
    r.data(1, 3)
    r.data(5)
    r.take(limit=2)
    r.timeout(2 * ACK_DELAY)
    assert [f for f in r.sent() if isinstance(f, Ack)] == [Ack(Stream.FIFO, 3, 2, ALLOWANCE + 1)]


def test_received_but_not_taken_is_held_and_not_delivered() -> None:
    r = Receiver()
    r.data(1, 3, now=100)
    assert r.deadlines.next() == 100 + ACK_DELAY
    r.timeout(100 + ACK_DELAY)
    assert r.sent() == [Ack(Stream.FIFO, 3, 0, ALLOWANCE)]


def test_taking_enough_acks_at_once_and_less_acks_later() -> None:
    r = Receiver(capacity=16)  # ack every 4
    r.data(1, 7)
    r.take(limit=3, now=50)
    assert r.sent() == []
    assert r.deadlines.next() == ACK_DELAY  # since the data came, at 0
    r.take(limit=1, now=60)
    assert r.sent() == [Ack(Stream.FIFO, 7, 4, ALLOWANCE)]
    assert r.deadlines.next() is None
    r.take(now=70)
    assert r.sent() == []
    r.timeout(70 + ACK_DELAY)
    assert r.sent() == [Ack(Stream.FIFO, 7, 7, ALLOWANCE)]


def test_enough_datagrams_ack_at_once_too() -> None:
    r = Receiver(**ACK_EVERY_THIRD)
    for n in (1, 2):
        r.data(n)
        r.take()
        assert r.sent() == []
    r.data(3)
    assert r.sent() == []  # the application may take at once: that says more
    r.take()
    assert r.sent() == [Ack(Stream.FIFO, 3, 3, ALLOWANCE)]
    r.data(4)
    r.take()
    assert r.sent() == []  # the count begins anew


def test_behind_a_gap_every_few_datagrams_are_acked_with_room_for_as_much_again() -> None:
    r = Receiver(**ACK_EVERY_THIRD)
    r.data(1)
    r.data(3)
    assert r.sent() == []
    r.data(4, 5)
    assert r.sent() == [Ack(Stream.FIFO, 1, 0, ALLOWANCE + 6)]  # six payloads of one byte wait
    r.data(9)
    r.data(10)
    assert [frame for frame in r.sent() if isinstance(frame, Ack)] == []
    r.data(11)
    acks = [frame for frame in r.sent() if isinstance(frame, Ack)]
    assert acks == [Ack(Stream.FIFO, 1, 0, ALLOWANCE + 11)]  # and 9, 10, 11: five more bytes


def test_when_the_last_gap_has_closed_what_is_taken_is_acked_at_once() -> None:
    r = Receiver()
    r.data(2)
    r.data(4)
    r.data(1)
    r.take()
    assert r.sent() == []  # 3 is missing still
    r.data(3)
    assert r.sent() == []
    r.take(limit=1)
    assert r.sent() == [Ack(Stream.FIFO, 4, 3, ALLOWANCE)]
    r.take()
    assert r.sent() == []  # once


def test_the_last_word_acks_what_was_not_acked_and_nothing_else() -> None:
    r = Receiver()
    r.box.close(ALLOWANCE, r.out)
    assert r.sent() == []
    r.data(1, 2)
    r.take(limit=1)
    assert r.sent() == []
    r.box.close(ALLOWANCE, r.out)
    assert r.sent() == [Ack(Stream.FIFO, 2, 1, ALLOWANCE)]


@pytest.mark.parametrize("count", [1, 2])
def test_a_duplicate_is_acked_again_later_and_once(count: int) -> None:
    r = Receiver(capacity=4)
    r.data(1, 2)
    r.take()
    r.sent()
    for now in range(1000, 1010):
        r.data(1, count, now=now)
    assert r.sent() == []
    assert r.deadlines.next() == 1000 + ACK_DELAY
    r.timeout(1000 + ACK_DELAY)
    assert r.sent() == [Ack(Stream.FIFO, 2, 2, ALLOWANCE)]
    assert r.deadlines.next() is None


def test_a_duplicate_beyond_a_gap_is_acked_again() -> None:
    r = Receiver()
    r.data(2)
    r.data(2, now=10)
    assert len(r.box._timers.due(10 + ACK_DELAY)) == 2  # the ack and the repair


def test_highest_is_acked_at_once_even_when_it_tells_nothing_new() -> None:
    r = Receiver()
    for now in (500, 501):
        r.highest(0, now)
        assert r.sent() == [Ack(Stream.FIFO, 0, 0, ALLOWANCE)]
    assert r.deadlines.next() is None


def test_an_ack_for_highest_makes_a_later_one_needless() -> None:
    r = Receiver()
    r.data(1, 2)
    r.take(limit=1)
    r.highest(2)
    assert r.sent() == [Ack(Stream.FIFO, 2, 1, ALLOWANCE)]
    assert r.deadlines.next() is None


def test_highest_shows_a_lost_last_message() -> None:
    r = Receiver()
    r.data(1)
    r.highest(3)
    assert r.sent() == [Ack(Stream.FIFO, 1, 0, ALLOWANCE)]
    r.timeout(GAP_TICK_START_NS)
    assert r.sent() == [Nack(Stream.FIFO, [range(2, 4)])]
    assert r.box.stream.nack_sent == 2


def test_a_gap_is_not_asked_for_at_first_sight() -> None:
    r = Receiver()
    r.data(2, now=100)
    assert r.sent() == []
    assert r.deadlines.next() == 100 + GAP_TICK_START_NS
    r.timeout(100 + GAP_TICK_START_NS)
    assert r.sent() == [Nack(Stream.FIFO, [range(1, 2)])]


def test_three_later_datagrams_ask_at_once() -> None:
    r = Receiver()
    r.data(2)
    r.data(3)
    r.data(4)
    r.timeout(0)
    assert r.sent() == []
    r.data(5)
    assert r.deadlines.next() == 0  # at the end of this turn: others may be proved in it
    r.timeout(0)
    assert r.sent() == [Nack(Stream.FIFO, [range(1, 2)])]


def test_an_answer_that_overtakes_another_asks_for_that_at_once() -> None:
    r = Receiver()
    r.data(2)
    r.data(4)
    r.timeout(GAP_TICK_START_NS)
    assert r.sent() == [Nack(Stream.FIFO, [range(1, 2), range(3, 4)])]
    r.data(3, now=2 * GAP_TICK_START_NS)
    r.timeout(2 * GAP_TICK_START_NS)
    assert r.sent() == [Nack(Stream.FIFO, [range(1, 2)])]
    assert r.box.stream.nack_sent == 3


def test_a_closed_gap_needs_no_timer() -> None:
    r = Receiver()
    r.data(2)
    r.data(1)
    r.take()
    r.timeout(10 * ACK_DELAY)
    assert all(isinstance(frame, Ack) for frame in r.sent())
    assert r.deadlines.next() is None


def test_requests_are_bounded() -> None:
    r = Receiver(capacity=1 << 16)
    r.highest(60_000)
    r.timeout(GAP_TICK_START_NS)
    (nack,) = (frame for frame in r.sent() if isinstance(frame, Nack))
    assert nack.missing == [range(1, 1 + NACK_MESSAGES_MAX)]
    r = Receiver(capacity=1 << 16)
    for n in range(2, 4 * NACK_RANGES_MAX, 2):
        r.box.window.add_run(n, [b"x"])
    r.highest(4 * NACK_RANGES_MAX)
    r.timeout(GAP_TICK_START_NS)
    nacks = [frame for frame in r.sent() if isinstance(frame, Nack)]
    assert [len(nack.missing) for nack in nacks] == [NACK_RANGES_MAX] * 2


def test_what_found_no_slot_is_asked_for_when_the_window_moves() -> None:
    r = Receiver(capacity=2)
    r.data(1, 4)
    assert r.box.window.dropped_high == 2
    r.take(now=ACK_DELAY)
    r.sent()
    r.timeout(ACK_DELAY + GAP_TICK_START_NS)
    assert Nack(Stream.FIFO, [range(3, 5)]) in r.sent()


def test_late_and_forged_runs_are_not_even_cut() -> None:
    r = Receiver(capacity=4)
    r.data(1, 2)
    r.take()

    def cut() -> list[bytes]:
        raise AssertionError("cut for nothing")

    for first in (1, 7, 2**62):
        data = Data.uncut(Stream.FIFO, first, 2, cut, more=False)
        r.box.on_data(data, 0, ALLOWANCE, r.out)
    assert (r.box.window.dropped_low, r.box.window.dropped_high) == (2, 4)


def test_marks_of_fragments_stay_within_the_window() -> None:
    r = Receiver(capacity=4)
    r.data(1, 2)
    r.take()
    for first in (1, 2**62):
        r.data(first, 2, more=True)
    assert r.box.assembler.is_idle  # neither what is gone nor what has no slot is marked
    r.data(5, 3, more=True)
    assert r.box.assembler.continued == {5, 6}


def test_stats_and_explain_tell_of_gaps_and_of_the_application() -> None:
    r = Receiver()
    r.data(1, 2)
    r.data(5)
    assert r.box.stats()["gaps"] == 1
    gap, application = r.box.explain(1_500_000_000)
    assert gap.startswith("A/fifo: 3..4 missing for 1.5 s, asked 0 times, next in 0.0 s; 1 later")
    assert application.startswith("A/fifo: 2 messages from 1 on, ready")
    r.take()
    r.data(3, 2)
    r.take()
    assert r.box.explain(0) == []


# Small receive buffers


def send_through(
    r: Receiver, allowance: int, size: int, *, lost: int | None = None
) -> tuple[int, int]:
    """Datagrams of one message from a sender with that many bytes out, as it is told; those that
    it could send before it stood still, 200 at the most, and the acks that there were."""
    window = SendWindow(4096, max_bytes=allowance, datagram_bytes=60_000)
    acks = 0
    for seqno in range(1, 201):
        if not window.append_run([bytes(size)]):
            return seqno - 1, acks
        if seqno != lost:
            r.box.on_data(Data(Stream.FIFO, seqno, [bytes(size)]), 0, allowance, r.out)
            r.box.take_ready(4096, 0, allowance, r.out)
        for ack in r.sent():
            if isinstance(ack, Ack):
                acks += 1
                window.max_bytes = ack.allowance
                window.purge(ack.delivered, forced=True)
    return 200, acks


@pytest.mark.parametrize(
    ("allowance", "size"),
    [
        *((212_992, 60_000), (106_496, 53_000), (106_496, 35_000), (106_496, 10_000)),
        *((71_000, 1400), (71_000, 100), (30_000, 1), (4000, 2000), (900_000, 60_000)),
    ],
)
def test_acks_come_before_a_small_allowance_is_used_up(allowance: int, size: int) -> None:
    sent, acks = send_through(Receiver(), allowance, size)
    assert sent == 200
    charged = sent * max(size, DATAGRAM_OVERHEAD)
    assert acks <= charged // (allowance // 2)


@pytest.mark.parametrize("datagram_bytes", [60_000, 1400])
def test_where_the_allowance_is_ample_datagrams_are_counted(datagram_bytes: int) -> None:
    in_flight = 2 << 20
    config: dict[str, Any] = {"window_bytes": 2 * in_flight, "datagram_bytes": datagram_bytes}
    every = in_flight // datagram_bytes // 4
    for allowance in (in_flight // 2, in_flight):
        assert send_through(Receiver(**config), allowance, datagram_bytes) == (200, 200 // every)


def test_behind_a_gap_a_sender_with_a_small_allowance_goes_on() -> None:
    sent, acks = send_through(Receiver(), 106_496, 35_000, lost=2)
    assert sent > 50  # until the window has no room for more behind the gap
    assert acks <= sent // 2 + 1


def test_what_is_taken_bit_by_bit_is_acknowledged_by_its_bytes() -> None:
    r = Receiver()
    r.box.on_data(Data(Stream.FIFO, 1, [bytes(1000)] * 106), 0, 106_496, r.out)
    for _ in range(106):
        r.box.take_ready(1, 0, 106_496, r.out)
    assert [ack.delivered for ack in r.sent() if isinstance(ack, Ack)] == [54]


def test_an_ack_tells_what_there_is_memory_for_unless_a_capacity_was_set() -> None:
    r = Receiver(capacity=DefaultSize(8), window_bytes=1 << 20)
    r.data(1)
    r.take()
    r.box.close(ALLOWANCE, r.out)
    assert r.sent() == [Ack(Stream.FIFO, 1, 1, ALLOWANCE, 4 << 20)]
    assert r.box.window.capacity == 8
    r.data(2, 100)  # there are slots for more than the base
    assert r.box.window.received == 101
