"""When to ask for what is missing."""

from __future__ import annotations

from random import Random

import pytest

from ringcast.protocols import repair
from ringcast.protocols.repair import (
    ANSWER_TIME_START_NS,
    GAP_TICK_MIN_NS,
    GAP_TICK_START_NS,
    LATER_DATAGRAMS,
    LONG_PATIENCE,
    NACK_MESSAGES_MAX,
    Repair,
)
from ringcast.window.receive import ReceiveWindow

TAU = 500_000_000
TICK = GAP_TICK_START_NS
ANSWER = ANSWER_TIME_START_NS
MS = 1_000_000


class Stream:
    """A window and its repair, fed as an receiver feeds them."""

    def __init__(self, capacity: int = 64, max_bytes: int = 1 << 20) -> None:
        self.window = ReceiveWindow(capacity, max_bytes=max_bytes)
        self.repair = Repair(0, TAU)

    def data(self, *seqnos: int, now: int = 0, datagram: int | None = None) -> None:
        self.window.add_run(seqnos[0], [b"x"] * len(seqnos))
        self.repair.saw_data(self.window, seqnos[0], seqnos[-1], now, datagram)
        self.repair.check_invariants(self.window)

    def highest(self, seqno: int, now: int = 0) -> None:
        self.repair.saw_watermark(self.window, seqno, now)

    def due(self, now: int) -> list[range]:
        due = self.repair.take_due(self.window, now)
        self.repair.check_invariants(self.window)
        return due

    def is_due(self, now: int) -> bool:
        at = self.repair.next_ask()
        return at is not None and at <= now


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


# Patience


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
    pauses = pauses_of(s, 18, 0)
    assert pauses == [TICK, *(min(ANSWER << n, TAU) for n in range(17))]
    assert pauses[-5:] == [TAU] * 5
    assert s.repair._patience <= TAU // GAP_TICK_MIN_NS  # what makes τ of any answer time


def test_many_gaps_in_one_request_double_the_pause_once() -> None:
    s = Stream()
    for seqno in range(2, 9, 2):
        s.data(seqno)
    assert len(s.due(TICK)) == 4
    assert pauses_of(s, 4, TICK) == [ANSWER, 2 * ANSWER, 4 * ANSWER, 8 * ANSWER]


def test_an_answer_ends_the_doubling() -> None:
    s = Stream()
    s.data(2)
    s.data(4)
    pauses = pauses_of(s, 6, 0)
    assert pauses[-1] == 16 * ANSWER
    now = sum(pauses) + 4 * MS
    s.data(1, now=now)
    assert s.repair._patience == 1
    assert pauses_of(s, 2, now) == [5 * MS, 10 * MS]  # 3, asked for with it, and again


def test_a_sign_of_the_sender_ends_the_doubling() -> None:
    """It is within reach again, as after an outage: what is overdue is asked for at once."""
    s = Stream()
    s.data(2)
    now = sum(pauses_of(s, 10, 0)) + 2 * ANSWER
    assert s.due(now) == []
    s.highest(2, now)
    assert s.due(now) == [range(1, 2)]


def test_the_last_message_again_is_a_sign_too() -> None:
    s = Stream()
    s.data(2)
    now = sum(pauses_of(s, 10, 0)) + 2 * ANSWER
    s.data(2, now=now)
    assert s.due(now) == [range(1, 2)]


def test_a_request_is_repeated_after_a_round_trip_and_a_quarter() -> None:
    s = Stream()
    s.data(2)
    s.due(TICK)
    s.data(1, now=TICK + 4 * MS)
    s.data(4, now=100 * MS)
    s.due(108 * MS)
    assert s.due(113 * MS - 1) == []
    assert s.due(113 * MS) == [range(3, 4)]
    assert s.repair.is_repeated


def test_nothing_is_repeated_by_time_while_answers_come() -> None:
    """Their order tells what is lost, and the rest is on its way."""
    s = asked_for_1_3_5()
    s.data(1, now=2 * TICK)  # a round trip of one tick
    s.data(3, now=3 * TICK)
    assert s.due(4 * TICK) == []
    assert s.due(3 * TICK + s.repair._answer_time) == [range(5, 6)]


# Proof


def test_the_third_later_datagram_proves_a_loss() -> None:
    s = Stream()
    s.data(2)  # shows the gap: not later than itself
    for count, seqno in enumerate(range(3, 3 + LATER_DATAGRAMS), 1):
        assert not s.is_due(0)
        s.data(seqno)
        assert s.is_due(0) == (count == LATER_DATAGRAMS)
    assert s.due(0) == [range(1, 2)]
    # Once asked for, later datagrams prove nothing new: the answer is on its way.
    for seqno in range(6, 20):
        s.data(seqno)
    assert s.due(TICK) == []


def test_runs_of_one_datagram_count_once() -> None:
    s = Stream()
    s.data(2, datagram=1)
    for datagram in range(2, 2 + LATER_DATAGRAMS):
        assert not s.is_due(0)
        for run in range(5):
            s.data(datagram * 10 + 2 * run, datagram=datagram)
    assert s.due(0) == [range(1, 2)]


def test_a_datagram_counts_by_its_highest_run() -> None:
    """What was asked for and what is new may come in one datagram, in this order."""
    s = Stream()
    s.data(4, datagram=1)
    for datagram in range(2, 2 + LATER_DATAGRAMS):
        s.data(1, datagram=datagram)
        s.data(datagram + 3, datagram=datagram)
    assert s.due(0) == [range(2, 4)]


def test_a_gap_between_runs_of_one_datagram_is_not_older_than_it() -> None:
    s = Stream()
    s.data(1, datagram=1)
    s.data(3, datagram=1)
    for datagram in range(2, 1 + LATER_DATAGRAMS):
        s.data(2 + datagram, datagram=datagram)
    assert not s.is_due(0)
    s.data(10, datagram=9)
    assert s.due(0) == [range(2, 3)]


def test_duplicates_and_repairs_are_not_later_datagrams() -> None:
    s = Stream()
    s.data(2)
    for _ in range(5):
        s.data(2)
    assert not s.is_due(0)


def test_each_gap_counts_its_own_later_datagrams() -> None:
    s = Stream()
    s.data(2)
    s.data(4)
    s.data(6)
    s.data(7)
    assert s.due(0) == [range(1, 2)]
    s.data(8)
    assert s.due(TICK - 1) == [range(3, 4)]


def test_gaps_that_are_proved_together_share_a_request() -> None:
    s = Stream(capacity=512)
    for seqno in range(2, 500, 2):
        s.data(seqno)
    # All but the last three, of which fewer later datagrams have come.
    assert s.due(0) == [range(seqno, seqno + 1) for seqno in range(1, 493, 2)]


def test_requests_are_an_eighth_of_a_round_trip_apart() -> None:
    s = Stream()
    s.data(2)
    s.due(TICK)
    s.data(1, now=TICK + 8 * MS)  # a round trip of 8 ms
    now = 100 * MS
    for seqno in (4, 5, 6, 7):
        s.data(seqno, now=now)
    assert s.due(now) == [range(3, 4)]
    for seqno in (9, 11, 12, 13, 14):
        s.data(seqno, now=now + 1)
    assert s.due(now + MS - 1) == []
    assert s.due(now + MS) == [range(8, 9), range(10, 11)]


def asked_for_1_3_5() -> Stream:
    """Three gaps, all in one request."""
    s = Stream()
    s.data(2)
    s.data(4)
    s.data(6)
    assert s.due(TICK) == [range(1, 2), range(3, 4), range(5, 6)]
    return s


def test_an_answer_proves_that_those_due_before_it_are_lost() -> None:
    s = asked_for_1_3_5()
    s.data(3, now=2 * TICK)
    assert s.due(2 * TICK) == [range(1, 2)]  # at once, and not 5: its answer may be on its way
    s.data(5, now=2 * TICK)  # answers the first request; 1 has been asked for again since
    assert not s.is_due(3 * TICK)


def test_an_answer_to_a_later_request_proves_the_same() -> None:
    s = Stream()
    s.data(2)
    assert s.due(TICK) == [range(1, 2)]
    s.data(4, now=TICK)
    assert s.due(2 * TICK) == [range(3, 4)]
    s.data(3, now=3 * TICK)
    assert s.due(3 * TICK) == [range(1, 2)]


def test_an_answer_in_doubt_proves_nothing_about_other_requests() -> None:
    """It may be to the first request: then the second, made in between, is yet to be answered."""
    s = Stream()
    s.data(2)
    assert s.due(TICK) == [range(1, 2)]
    s.data(4, now=TICK + ANSWER - 2 * TICK)
    assert s.due(TICK + ANSWER - TICK) == [range(3, 4)]
    assert s.due(TICK + ANSWER) == [range(1, 2)]
    s.data(1, now=2 * TICK + ANSWER)
    assert not s.is_due(3 * TICK + ANSWER)


def test_what_is_lost_of_a_wide_gap_before_an_answer_is_asked_for_again() -> None:
    s = Stream()
    s.data(20)
    assert s.due(TICK) == [range(1, 20)]
    s.data(5, 6, now=2 * TICK)
    assert s.due(2 * TICK) == [range(1, 5)]
    s.data(10, 11, now=2 * TICK)
    assert s.due(3 * TICK - 1) == [range(7, 10)]


def test_a_gap_that_fills_unasked_proves_nothing() -> None:
    s = Stream()
    s.data(2)
    s.due(TICK)
    s.data(4, now=TICK)
    s.data(3, now=TICK)  # late, not lost
    assert s.repair.next_ask() == 2 * TICK  # when 3 would have been due
    assert s.due(2 * TICK) == []
    assert s.repair.next_ask() == TICK + ANSWER


def test_asking_again_upon_proof_does_not_lengthen_the_pause() -> None:
    s = asked_for_1_3_5()
    s.data(5, now=TICK + 4 * MS)  # a round trip of 4 ms
    assert s.due(TICK + 4 * MS) == [range(1, 2), range(3, 4)]
    assert not s.repair.is_repeated
    at = TICK + 4 * MS + 5 * MS
    assert s.due(at) == [range(1, 2), range(3, 4)]
    assert s.repair.next_ask() == at + 10 * MS


# What is missing


def test_a_filled_gap_is_forgotten() -> None:
    s = Stream()
    s.data(3)
    s.data(1, 2)
    assert s.repair.next_ask() is None
    assert not s.repair.has_gaps
    assert s.due(TAU) == []


def test_a_gap_that_filled_out_of_order_is_not_asked_for() -> None:
    s = Stream()
    s.data(2)
    s.data(4)
    s.data(3)  # the second gap, while the first is still open
    assert s.due(TICK) == [range(1, 2)]
    assert s.repair.gap_count == 1


def test_what_filled_after_it_was_asked_for_is_not_asked_for_again() -> None:
    s = asked_for_1_3_5()
    s.window.add_run(5, [b"x"])  # in a run of something else
    assert s.due(TICK + ANSWER) == [range(1, 2), range(3, 4)]


def test_what_is_left_of_a_gap_is_asked_for() -> None:
    s = Stream()
    s.data(10)
    s.data(1, 2)
    s.data(5)
    assert s.due(TICK) == [range(3, 5), range(6, 10)]


def test_highest_shows_a_lost_last_message() -> None:
    s = Stream()
    s.data(1)
    s.highest(3, now=50)
    assert s.due(50 + TICK) == [range(2, 4)]
    s.highest(3, now=60)
    s.highest(2, now=60)
    assert s.repair.gap_count == 1  # told again, it is the same gap


def test_nothing_beyond_the_window_is_asked_for_until_it_moves() -> None:
    s = Stream(capacity=4)
    s.data(1)
    s.highest(100)
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
    assert not s.repair.has_gaps


def test_what_the_window_refused_for_its_bytes_is_still_missing() -> None:
    s = Stream(max_bytes=2)
    s.data(2, 3, 4, 5)  # two of them are kept
    assert (s.window.high, s.window.dropped_bytes) == (3, 2)
    s.highest(5)
    assert s.due(TICK) == [range(1, 2), range(4, 6)]


def test_an_answer_that_the_window_refused_is_asked_for_again() -> None:
    s = Stream(max_bytes=2)
    s.data(2, 3)
    s.highest(5)
    assert s.due(TICK) == [range(1, 2), range(4, 6)]
    s.data(4, 5, now=2 * TICK)
    assert s.window.dropped_bytes == 2
    assert s.due(2 * TICK) == [range(1, 2), range(4, 6)]


# The round trip


def test_the_gap_tick_follows_the_round_trip() -> None:
    s = Stream()
    s.data(2)
    assert s.due(TICK) == [range(1, 2)]
    s.data(1, now=TICK + 3 * MS)
    assert s.repair.gap_tick == 6 * MS  # the first sample counts in full
    s.data(4, now=TICK + 3 * MS)
    s.due(100 * MS)
    s.data(3, now=107 * MS)
    assert s.repair.gap_tick == 10 * MS  # a longer one by half: 3 + (7 − 3) / 2 = 5 ms
    s.data(6, now=200 * MS)
    s.due(300 * MS)
    s.data(5, now=303 * MS)
    assert s.repair.gap_tick == 6 * MS  # a shorter one at once,
    s.data(8, now=400 * MS)
    s.due(500 * MS)
    s.data(7, now=500 * MS + 1)
    assert s.repair.gap_tick == 3 * MS  # but not below half: it may be late, and no answer


def test_each_request_for_a_part_of_a_gap_is_timed_by_itself() -> None:
    """Timed from the first one, the round trip would seem to grow with the gap."""
    s = Stream(capacity=8192)
    s.highest(8192)
    now, step = TICK, NACK_MESSAGES_MAX // 2
    while s.window.received < 8192:
        s.due(now)
        now += 2 * MS
        s.data(*range(s.window.received + 1, s.window.received + step + 1), now=now)
    assert s.repair.gap_tick <= 8 * MS  # half of each request is answered with the next one


def test_an_answer_to_a_repeated_request_is_in_doubt() -> None:
    """To the second request, or late to the first: the round trip is not less than it seems."""
    s = Stream()
    s.data(2)
    s.due(TICK)
    s.data(1, now=TICK + 4 * MS)
    s.data(4, now=100 * MS)
    s.due(200 * MS)
    s.due(205 * MS)
    assert s.repair._patience == 2
    s.data(3, now=206 * MS)
    assert s.repair.gap_tick == 8 * MS
    # Be patient, so that the next answer leaves no doubt.
    s.data(6, now=300 * MS)
    s.due(308 * MS)
    assert s.repair.next_ask() == 318 * MS
    s.data(5, now=314 * MS)
    assert s.repair.gap_tick == 10 * MS
    assert s.repair._patience == 1


def test_an_answer_in_doubt_raises_the_round_trip() -> None:
    s = Stream()
    s.data(2)
    s.due(TICK)
    s.data(1, now=TICK + 4 * MS)
    s.data(4, now=100 * MS)
    s.due(200 * MS)
    s.due(205 * MS)
    s.data(3, now=213 * MS)
    assert s.repair.gap_tick == 2 * (4 + (8 - 4) // 2) * MS


def test_after_a_long_silence_there_is_no_doubt() -> None:
    """As after an outage: what was asked for before it has no answer any more, and the time to
    the answer says nothing about the round trip."""
    s = Stream()
    s.data(2)
    now = sum(pauses_of(s, 3 + LONG_PATIENCE.bit_length(), 0)) + 4 * MS
    s.data(1, now=now)
    assert s.repair.gap_tick == 8 * MS
    assert s.repair._patience == 1


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
    s.data(1, now=TICK + 4 * MS)
    s.data(4, now=TAU)
    s.due(2 * TAU)
    s.data(3, now=1000 * TAU)
    assert s.repair._round_trip == 4 * MS + (TAU - 4 * MS) // 2


def test_an_unasked_gap_that_fills_teaches_nothing() -> None:
    s = Stream()
    s.data(2)
    s.data(1, now=123_456)
    assert s.repair.gap_tick == GAP_TICK_START_NS


# Pacing


def test_requests_are_cut_in_messages_and_answers_bring_the_next() -> None:
    s = Stream(capacity=4096)
    s.highest(4000)
    half = NACK_MESSAGES_MAX // 2
    assert s.due(TICK) == [range(1, 2 * half + 1)]
    assert s.repair.next_ask() == TICK + ANSWER
    s.data(*range(1, half), now=2 * TICK)
    assert not s.is_due(2 * TICK)
    s.data(half, now=2 * TICK)
    assert s.due(2 * TICK) == [range(2 * half + 1, 3 * half + 1)]


def test_one_gap_with_many_holes_is_cut_in_messages() -> None:
    s = Stream(capacity=8192)
    s.highest(8000)
    for seqno in range(2, 8000, 2):
        s.window.add_run(seqno, [b"x"])
    due = s.due(TICK)
    assert due == [range(seqno, seqno + 1) for seqno in range(1, 2 * NACK_MESSAGES_MAX, 2)]
    for seqnos in due:
        s.window.add_run(seqnos[0], [b"x"])
        s.repair.saw_data(s.window, seqnos[0], seqnos[0], 2 * TICK)
    assert s.due(2 * TICK)[0] == range(2 * NACK_MESSAGES_MAX + 1, 2 * NACK_MESSAGES_MAX + 2)


def test_what_is_lost_goes_before_what_was_not_asked_for() -> None:
    s = Stream(capacity=4096)
    s.highest(3000)
    s.due(TICK)
    s.data(*range(101, NACK_MESSAGES_MAX + 1), now=2 * TICK)
    due = s.due(2 * TICK)
    assert due == [range(1, 101), range(NACK_MESSAGES_MAX + 1, 2 * NACK_MESSAGES_MAX - 99)]
    assert sum(map(len, due)) == NACK_MESSAGES_MAX


def test_nothing_is_asked_for_twice_in_one_request() -> None:
    s = Stream()
    s.data(3)
    s.highest(9)
    s.data(6)
    asked = [seqno for seqnos in s.due(TICK) for seqno in seqnos]
    assert asked == [1, 2, 4, 5, 7, 8, 9]


def test_a_wide_gap_with_late_arrivals_in_it_is_asked_for_whole() -> None:
    """There is no room for all of it at once, and it has holes that are filled."""
    s = Stream(capacity=4096)
    s.data(2000)
    s.data(1500)
    s.data(1600)
    assert s.due(TICK) == [range(1, 1 + NACK_MESSAGES_MAX)]
    for seqno in range(1, 1 + NACK_MESSAGES_MAX):
        s.data(seqno, now=TICK + MS)
    missing = [range(1 + NACK_MESSAGES_MAX, 1500), range(1501, 1600), range(1601, 2000)]
    assert s.due(TICK + 2 * MS) == missing


@pytest.mark.parametrize("most", [8, NACK_MESSAGES_MAX])
def test_whatever_is_lost_is_asked_for_until_it_has_come(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loss both ways, reordering, copies, and an application that falls behind."""
    monkeypatch.setattr(repair, "NACK_MESSAGES_MAX", most)
    for seed in range(60):
        _send_over_a_bad_network(Random(seed))


def _send_over_a_bad_network(dice: Random, count: int = 200) -> None:
    s = Stream()
    now, sent, under_way = 0, 0, list[range]()
    for step in range(10_000):
        if s.window.delivered == count:
            return
        is_bad = step < 400
        now += dice.randrange(2 * MS)
        room = min(count, s.window.low + s.window.capacity_max) - sent
        if room > 0:
            run = range(sent + 1, sent + 1 + min(room, dice.randint(1, 3)))
            sent = run[-1]
            under_way.append(run)
        elif s.window.received < sent and step % 20 == 0:
            s.highest(sent, now)
        under_way += s.due(now) if not is_bad or dice.random() < 0.7 else []
        dice.shuffle(under_way)
        while under_way and (not is_bad or dice.random() < 0.6):
            run = under_way.pop()
            if not is_bad or dice.random() < 0.7:
                s.data(*run, now=now)
                under_way += [run] * (is_bad and dice.random() < 0.1)
        s.window.take_ready(dice.randint(0, 20))
        s.repair.window_moved(s.window, now)
        assert (s.repair.next_ask() is None) == (not s.repair.has_gaps)
    raise AssertionError(f"{s.window.delivered} of {count} have come")
