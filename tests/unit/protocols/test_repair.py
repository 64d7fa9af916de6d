"""When to ask for what is missing."""

from __future__ import annotations

import pytest

from ringcast.protocols.repair import (
    GAP_TICK_MIN_NS,
    GAP_TICK_START_NS,
    LATER_DATAGRAMS,
    Repair,
)
from ringcast.window.windows import ReceiveWindow

TAU = 500_000_000
TICK = GAP_TICK_START_NS


class Stream:
    """A window and its repair, fed as an inbox feeds them."""

    def __init__(self, capacity: int = 64, max_bytes: int = 1 << 20) -> None:
        self.window = ReceiveWindow(capacity, max_bytes=max_bytes)
        self.repair = Repair(0, TAU)

    def data(self, *seqnos: int, now: int = 0) -> None:
        self.window.add_run(seqnos[0], [b"x"] * len(seqnos))
        self.repair.saw_data(self.window, seqnos[0], seqnos[-1], now)

    def due(self, now: int, ranges_max: int = 128, messages_max: int = 1024) -> list[range]:
        return self.repair.take_due(self.window, now, ranges_max, messages_max)


def test_nothing_is_asked_for_without_a_gap() -> None:
    s = Stream()
    s.data(1, 2, 3)
    assert s.repair.next_ask() is None
    assert s.due(10 * TAU) == []


def test_a_gap_is_asked_for_after_one_gap_tick_and_not_before() -> None:
    s = Stream()
    s.data(1)
    s.data(4, 5, now=100)
    assert s.repair.next_ask() == 100 + TICK
    assert s.due(100) == []  # not at first sight
    assert s.due(99 + TICK) == []
    assert s.due(100 + TICK) == [range(2, 4)]


def pauses_of(s: Stream, count: int, now: int) -> list[int]:
    """How long it takes to each of the next requests."""
    pauses = []
    for _ in range(count):
        at = s.repair.next_ask()
        assert at is not None
        pauses.append(at - now)
        now = at
        assert s.due(now) != []
    return pauses


def test_pauses_double_up_to_tau_while_there_is_no_answer() -> None:
    s = Stream()
    s.data(2)
    # One gap-tick, one answer time; from the first repeat on each pause is twice the last.
    pauses = pauses_of(s, 18, 0)
    assert pauses == [TICK, TICK, *(min(TICK << n, TAU) for n in range(16))]
    assert pauses[-5:] == [TAU] * 5
    assert s.repair._patience <= TAU // GAP_TICK_MIN_NS  # what makes τ of any answer time


def test_many_gaps_in_one_request_double_the_pause_once() -> None:
    s = Stream()
    for seqno in range(2, 20, 2):
        s.data(seqno)
    assert pauses_of(s, 5, 0) == [TICK, TICK, TICK, 2 * TICK, 4 * TICK]


def test_any_answer_ends_the_doubling() -> None:
    s = Stream()
    s.data(2)
    s.data(4)
    pauses = pauses_of(s, 8, 0)
    assert pauses[-1] == 32 * TICK
    now = sum(pauses)
    s.data(1, now=now)  # 64 ms after the first request: so long may an answer take
    assert pauses_of(s, 2, now) == [64 * TICK, 80 * TICK]  # 3, asked for already, and again


def test_a_request_is_repeated_after_a_round_trip_and_a_quarter() -> None:
    s = Stream()
    s.data(2)
    s.due(TICK)
    s.data(1, now=TICK + 4_000_000)
    s.data(4, now=100_000_000)
    s.due(108_000_000)
    assert s.due(108_000_000 + 4_999_999) == []
    assert s.due(108_000_000 + 5_000_000) == [range(3, 4)]


def test_the_third_later_datagram_proves_a_loss() -> None:
    s = Stream()
    s.data(2)  # shows the gap: not later than itself
    for count, seqno in enumerate(range(3, 3 + LATER_DATAGRAMS), 1):
        assert not s.repair.has_proof
        s.data(seqno)
        assert s.repair.has_proof == (count == LATER_DATAGRAMS)
    assert s.due(0) == [range(1, 2)]
    assert not s.repair.has_proof
    # Once asked for, later datagrams prove nothing new: the answer is on its way.
    for seqno in range(10, 20):
        s.data(seqno)
    assert range(1, 2) not in s.due(0)


def asked_for_1_3_5() -> Stream:
    """Three gaps, all in one request."""
    s = Stream()
    for seqno in (2, 4, 6):
        s.data(seqno)
    assert s.due(TICK) == [range(1, 2), range(3, 4), range(5, 6)]
    return s


def test_an_answer_proves_that_those_due_before_it_are_lost() -> None:
    s = asked_for_1_3_5()
    s.data(3, now=TICK)
    assert s.repair.has_proof
    assert s.due(TICK) == [range(1, 2)]  # at once, and not 5: its answer may be on its way
    assert not s.repair.has_proof
    assert s.due(TICK) == []
    s.data(5, now=TICK)  # answers the first request; 1 has been asked for again since
    assert s.due(TICK) == []


def test_an_answer_to_a_later_request_proves_the_same() -> None:
    s = Stream()
    s.data(2)
    assert s.due(TICK) == [range(1, 2)]
    s.data(4, now=TICK)
    s.repair.gaps[0].ask_at = 10 * TICK  # as with a long round trip
    assert s.due(2 * TICK) == [range(3, 4)]
    s.data(3, now=2 * TICK)
    assert s.repair.has_proof
    assert s.due(2 * TICK) == [range(1, 2)]


def test_what_was_not_asked_for_is_not_proved_by_an_answer() -> None:
    s = Stream()
    s.data(2)
    s.data(4)
    s.repair.gaps[1].ask_at = 0
    assert s.due(0) == [range(3, 4)]
    s.data(3)
    assert not s.repair.has_proof


def test_a_gap_that_fills_unasked_proves_nothing() -> None:
    s = Stream()
    s.data(2)
    s.due(TICK)
    s.data(4, now=TICK)
    s.data(3, now=TICK)  # late, not lost
    assert not s.repair.has_proof


def test_asking_again_upon_proof_does_not_lengthen_the_pause() -> None:
    s = asked_for_1_3_5()
    s.data(5, now=TICK + 4_000_000)  # a round trip of 4 ms
    assert s.due(TICK + 4_000_000) == [range(1, 2), range(3, 4)]
    at = TICK + 4_000_000 + 5_000_000
    assert s.due(at) == [range(1, 2), range(3, 4)]
    assert s.repair.next_ask() == at + 5_000_000


def test_duplicates_and_repairs_are_not_later_datagrams() -> None:
    s = Stream()
    s.data(2)
    for _ in range(5):
        s.data(2)
    assert not s.repair.has_proof


def test_each_gap_counts_its_own_later_datagrams() -> None:
    s = Stream()
    s.data(2)
    s.data(4)
    s.data(6)
    s.data(7)
    assert s.due(0) == [range(1, 2)]
    s.data(8)
    assert s.due(0) == [range(3, 4)]


def test_a_filled_gap_is_forgotten() -> None:
    s = Stream()
    s.data(3)
    s.data(1, 2)
    assert s.repair.next_ask() is None
    assert s.repair.gaps == []
    assert s.due(TAU) == []


def test_a_gap_that_filled_out_of_order_is_not_asked_for() -> None:
    s = Stream()
    s.data(2)
    s.data(4)
    s.data(3)  # the second gap, while the first is still open
    assert s.due(TICK) == [range(1, 2)]
    assert len(s.repair.gaps) == 1


def test_what_is_left_of_a_gap_is_asked_for() -> None:
    s = Stream()
    s.data(10)
    s.data(1, 2)
    s.data(5)
    assert s.due(TICK) == [range(3, 5), range(6, 10)]


def test_highest_shows_a_lost_last_message() -> None:
    s = Stream()
    s.data(1)
    s.repair.saw_highest(s.window, 3, now=50)
    assert s.due(50 + TICK) == [range(2, 4)]
    s.repair.saw_highest(s.window, 3, now=60)
    s.repair.saw_highest(s.window, 2, now=60)
    assert len(s.repair.gaps) == 1  # told again, it is the same gap


def test_nothing_beyond_the_window_is_asked_for_until_it_moves() -> None:
    s = Stream(capacity=4)
    s.data(1)
    s.repair.saw_highest(s.window, 100, now=0)
    assert s.due(TICK) == [range(2, 5)]
    s.data(2, 3, 4)
    s.window.take_ready(4)
    s.repair.window_moved(s.window, TICK)
    assert s.due(3 * TICK) == [range(5, 9)]


def test_a_window_that_moves_with_nothing_announced_shows_no_gap() -> None:
    s = Stream(capacity=4)
    s.data(1, 2)
    s.window.take_ready(4)
    s.repair.window_moved(s.window, 0)
    assert s.repair.gaps == []


def test_what_the_window_refused_for_its_bytes_is_still_missing() -> None:
    s = Stream(max_bytes=2)
    s.data(2, 3, 4, 5)  # two of them are kept
    assert (s.window.high, s.window.dropped_bytes) == (3, 2)
    s.repair.saw_highest(s.window, 5, now=0)
    assert s.due(TICK) == [range(1, 2), range(4, 6)]


def test_the_gap_tick_follows_the_round_trip() -> None:
    s = Stream()
    s.data(2)
    assert s.due(TICK) == [range(1, 2)]
    s.data(1, now=TICK + 3_000_000)
    assert s.repair.gap_tick == 6_000_000  # the first sample counts in full
    s.data(4, now=TICK)
    s.due(100_000_000)
    s.data(3, now=100_000_000 + 7_000_000)
    assert s.repair.gap_tick == 10_000_000  # a longer one by half: 3 + (7 − 3) / 2 = 5 ms
    s.data(6, now=200_000_000)
    s.due(300_000_000)
    s.data(5, now=300_000_000 + 2_000_000)
    assert s.repair.gap_tick == 4_000_000  # a shorter one at once: nothing makes samples short


def test_an_answer_to_a_repeated_request_raises_the_round_trip_slowly() -> None:
    s = Stream()
    s.data(2)
    s.due(TICK)
    s.data(1, now=TICK + 4_000_000)
    s.data(4, now=100_000_000)
    s.due(200_000_000)
    s.due(210_000_000)
    s.data(3, now=200_000_000 + 20_000_000)  # to the second request, or late to the first
    assert s.repair.gap_tick == 2 * (4_000_000 + (20_000_000 - 4_000_000) // 8)


def test_an_answer_to_the_second_asking_is_measured_from_the_first() -> None:
    s = Stream()
    s.data(2)
    s.due(TICK)
    s.due(2 * TICK)
    s.data(1, now=5 * TICK)
    assert s.repair.gap_tick == 2 * 4 * TICK


@pytest.mark.parametrize(("answer", "tick"), [(0, GAP_TICK_START_NS), (1, GAP_TICK_MIN_NS)])
def test_the_gap_tick_has_a_floor(answer: int, tick: int) -> None:
    s = Stream()
    s.data(2)
    s.due(TICK)
    s.data(1, now=TICK + answer)
    assert s.repair.gap_tick == tick


def test_the_gap_tick_has_a_ceiling() -> None:
    s = Stream()
    s.data(2)
    s.due(TICK)
    s.data(1, now=100 * TAU)
    assert s.repair.gap_tick == TAU


def test_no_round_trip_counts_for_more_than_tau() -> None:
    s = Stream()
    s.data(2)
    s.due(TICK)
    s.data(1, now=TICK + 4_000_000)
    s.data(4, now=TAU)
    s.due(2 * TAU)
    s.due(4 * TAU)
    s.data(3, now=1000 * TAU)
    assert s.repair.gap_tick == 2 * (4_000_000 + (TAU - 4_000_000) // 8)


def test_an_unasked_gap_that_fills_teaches_nothing() -> None:
    s = Stream()
    s.data(2)
    s.data(1, now=123_456)
    assert s.repair.gap_tick == GAP_TICK_START_NS


def test_requests_are_cut_in_messages() -> None:
    s = Stream()
    s.repair.saw_highest(s.window, 50, now=0)
    assert s.due(TICK, messages_max=10) == [range(1, 11)]
    s.data(*range(1, 11), now=TICK)
    at = s.repair.next_ask()
    assert at is not None
    assert s.due(at, messages_max=10) == [range(11, 21)]


def test_requests_are_cut_in_ranges() -> None:
    s = Stream()
    for seqno in range(2, 40, 2):
        s.data(seqno)
    due = s.due(TICK, ranges_max=3)
    assert due == [range(1, 2), range(3, 4), range(5, 6)]
    # The others are paced: due at their next gap-tick, and not before.
    assert s.repair.next_ask() == 2 * TICK
    assert s.due(2 * TICK, ranges_max=6)[3:] == [range(7, 8), range(9, 10), range(11, 12)]


def test_one_gap_with_many_holes_is_cut_in_ranges_and_messages() -> None:
    s = Stream()
    s.repair.saw_highest(s.window, 40, now=0)
    for seqno in range(2, 40, 2):
        s.window.add_run(seqno, [b"x"])
    assert len(s.due(TICK, ranges_max=5)) == 5
    assert sum(map(len, s.due(3 * TICK, messages_max=4))) == 4


def test_the_cut_counts_the_ranges_of_all_gaps() -> None:
    s = Stream()
    s.repair.saw_highest(s.window, 5, now=0)
    s.window.add_run(3, [b"x"])
    s.repair.saw_highest(s.window, 20, now=0)
    for seqno in range(8, 20, 2):
        s.window.add_run(seqno, [b"x"])
    assert s.due(TICK, ranges_max=3) == [range(1, 3), range(4, 6), range(6, 8)]


def test_nothing_is_asked_for_twice_in_one_request() -> None:
    s = Stream()
    s.data(3)
    s.repair.saw_highest(s.window, 9, now=0)
    s.data(6)
    asked = [seqno for seqnos in s.due(TICK) for seqno in seqnos]
    assert asked == [1, 2, 4, 5, 7, 8, 9]
