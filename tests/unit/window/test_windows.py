"""The windows by example: pointers, bounds and purging, as a reader would try them out."""

from __future__ import annotations

import tracemalloc

import pytest

from ringcast.explore.abstraction import canonical, clone
from ringcast.window.receive import BoundedWindow, ReceiveWindow
from ringcast.window.send import DATAGRAM_OVERHEAD, SendWindow

FORGED = 2**63 - 1
PLENTY = 1 << 20
DATAGRAM = 1000


def messages(*seqnos: int) -> list[bytes]:
    """A payload of four bytes for each seqno that tells which one it is."""
    return [b"%4d" % seqno for seqno in seqnos]


def run(first: int, last: int) -> tuple[int, list[bytes]]:
    return first, messages(*range(first, last + 1))


def receiver(
    capacity: int = 8, *, offset: int = 0, max_bytes: int = PLENTY, retain: bool = False
) -> ReceiveWindow:
    return ReceiveWindow(capacity, offset=offset, max_bytes=max_bytes, retain=retain)


def sender(
    capacity: int = 8,
    *,
    max_bytes: int = PLENTY,
    datagram_bytes: int = DATAGRAM,
    offset: int = 0,
) -> SendWindow:
    return SendWindow(capacity, max_bytes=max_bytes, datagram_bytes=datagram_bytes, offset=offset)


def pointers(window: ReceiveWindow) -> tuple[int, int, int, int]:
    window.check_invariants()
    return window.low, window.delivered, window.received, window.high


def drops(window: ReceiveWindow) -> tuple[int, int, int, int]:
    return window.duplicates, window.dropped_low, window.dropped_high, window.dropped_bytes


# Receiving


def test_all_pointers_start_at_the_offset() -> None:
    window = receiver(offset=41)
    assert pointers(window) == (41, 41, 41, 41)
    assert window.add_run(*run(41, 41)) == 0
    assert window.add_run(*run(42, 42)) == 1
    assert pointers(window) == (41, 41, 42, 42)


def test_runs_in_order_are_taken_in_order() -> None:
    window = receiver()
    assert window.add_run(*run(1, 3)) == 3
    assert window.add_run(*run(4, 5)) == 2
    assert (window.ready, window.size, window.missing_count) == (5, 5, 0)
    assert window.take_ready(2) == messages(1, 2)
    assert pointers(window) == (2, 2, 5, 5)
    assert window.take_ready(100) == messages(3, 4, 5)
    assert pointers(window) == (5, 5, 5, 5)
    assert window.take_ready(100) == []
    assert drops(window) == (0, 0, 0, 0)


@pytest.mark.parametrize("limit", [0, -1])
def test_taking_nothing_delivers_nothing(limit: int) -> None:
    window = receiver()
    window.add_run(*run(1, 2))
    assert window.take_ready(limit) == []
    assert pointers(window) == (0, 0, 2, 2)


def test_an_empty_run_changes_nothing() -> None:
    window = receiver()
    window.add_run(*run(3, 3))
    for first in (0, 1, 3, 5, FORGED):
        assert window.add_run(first, []) == 0
    assert pointers(window) == (0, 0, 0, 3)
    assert drops(window) == (0, 0, 0, 0)


def test_nothing_is_taken_beyond_a_gap_until_it_closes() -> None:
    window = receiver()
    assert window.add_run(*run(1, 2)) == 2
    assert window.add_run(*run(5, 6)) == 2
    assert pointers(window) == (0, 0, 2, 6)
    assert (window.ready, window.size, window.missing_count) == (2, 4, 2)
    assert window.take_ready(100) == messages(1, 2)
    assert window.take_ready(100) == []
    assert window.size == 2
    assert window.add_run(*run(3, 3)) == 1
    assert pointers(window) == (2, 2, 3, 6)
    assert window.add_run(*run(4, 4)) == 1
    assert pointers(window) == (2, 2, 6, 6)
    assert window.take_ready(100) == messages(3, 4, 5, 6)


def test_a_run_fills_only_the_gaps_that_it_covers() -> None:
    window = receiver(capacity=16)
    window.add_run(4, [b"four"])
    window.add_run(7, [b"seven"])
    assert window.add_run(*run(3, 9)) == 5
    assert window.duplicates == 2
    assert window.missing(10) == [range(1, 3)]
    assert window.add_run(*run(1, 12)) == 5
    assert window.duplicates == 9
    expected = messages(*range(1, 13))
    expected[3], expected[6] = b"four", b"seven"
    assert window.take_ready(100) == expected


def test_a_duplicate_never_replaces_what_is_here() -> None:
    window = receiver()
    window.add_run(1, [b"one"])
    window.add_run(3, [b"three"])
    before = canonical(window)
    assert window.add_run(1, [b"forged"]) == 0
    assert window.add_run(3, [b"forged"]) == 0
    assert canonical(window) == before
    assert drops(window) == (2, 0, 0, 0)


def test_the_edges_of_the_window_are_exact() -> None:
    window = receiver(capacity=4, offset=10)
    assert window.add_run(*run(10, 10)) == 0
    assert window.add_run(*run(15, 15)) == 0
    assert drops(window) == (0, 1, 1, 0)
    assert pointers(window) == (10, 10, 10, 10)
    assert window.add_run(*run(14, 14)) == 1
    assert window.add_run(*run(8, 17)) == 3
    assert drops(window) == (1, 4, 4, 0)
    assert window.take_ready(100) == messages(11, 12, 13, 14)
    assert window.add_run(*run(13, 14)) == 0
    assert window.dropped_low == 6


def test_a_full_window_takes_the_next_lap_only_as_slots_are_freed() -> None:
    window = receiver(capacity=4)
    assert window.add_run(*run(1, 6)) == 4
    assert window.take_ready(1) == messages(1)
    assert window.add_run(*run(5, 6)) == 1
    assert window.take_ready(100) == messages(2, 3, 4, 5)
    assert pointers(window) == (5, 5, 5, 5)


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("capacity", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("offset", [0, 6, 2**63 - 60])
def test_wrapping_keeps_every_message_in_its_place(
    capacity: int, offset: int, retain: bool
) -> None:
    window = receiver(capacity, offset=offset, retain=retain)
    seqno = offset
    for length in (*range(1, capacity + 1), *range(capacity, 0, -1)):
        last = seqno + length
        for backwards in range(last, seqno, -1):
            assert window.add_run(*run(backwards, backwards)) == 1
            window.check_invariants()
        assert window.take_ready(length) == messages(*range(seqno + 1, last + 1))
        assert window.stable(last) == (length if retain else 0)
        assert pointers(window) == (last, last, last, last)
        seqno = last


def test_gaps_are_ranges_in_order_and_cut_at_the_limit() -> None:
    window = receiver(capacity=16)
    for seqno in (2, 3, 7, 9):
        window.add_run(*run(seqno, seqno))
    assert window.missing(10) == [range(1, 2), range(4, 7), range(8, 9)]
    assert window.missing(2) == [range(1, 2), range(4, 7)]
    assert window.missing(0) == []
    assert window.missing_count == 5


def test_a_lost_last_message_is_missed_once_somebody_tells_of_it() -> None:
    window = receiver(capacity=8)
    window.add_run(*run(1, 2))
    assert window.missing(10) == []
    assert window.missing_within(1, 4, 10) == [range(3, 5)]
    assert pointers(window) == (0, 0, 2, 2)


def test_gaps_may_be_looked_for_in_a_part_of_the_window() -> None:
    window = receiver(capacity=8)
    window.add_run(*run(1, 2))
    window.add_run(*run(5, 5))
    assert window.missing_within(1, 3, 10) == [range(3, 4)]
    assert window.missing_within(4, 7, 10) == [range(4, 5), range(6, 8)]
    assert window.missing_within(4, 7, 1) == [range(4, 5)]
    assert window.missing_within(5, 5, 10) == []
    assert window.missing_within(1, 2, 10) == []
    assert window.missing_within(0, FORGED, 10) == [range(3, 5), range(6, 9)]
    assert window.missing_within(9, FORGED, 10) == []


def test_runs_without_a_slot_are_turned_away_uncut() -> None:
    window = receiver(capacity=4, offset=10)
    assert not window.has_slot(8, 10)
    assert window.has_slot(8, 11)
    assert window.has_slot(14, 20)
    assert not window.has_slot(15, 16)
    assert drops(window) == (0, 3, 2, 0)


def test_forged_seqnos_cost_nothing() -> None:
    window = receiver(capacity=64)
    window.add_run(*run(1, 3))
    window.add_run(*run(6, 6))
    before = canonical(window)
    payloads = [b"x"] * 8
    huge = range(FORGED - 1, 2 * FORGED)
    tracemalloc.start()
    try:
        for first in (FORGED, 2**64, 10**30, 65, 0, -(10**30)):
            assert window.add_run(first, payloads[:1]) == 0
        assert window.add_run(FORGED, payloads) == 0
        window.missing_within(1, 10**30, 4)
        window.read_run(huge)
        window.stable(FORGED)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4096
    assert canonical(window) == before
    assert window.dropped_high == 12
    assert window.dropped_low == 2


def test_bytes_beyond_a_gap_are_bounded() -> None:
    window = receiver(capacity=16, max_bytes=12)
    assert window.add_run(*run(3, 7)) == 3
    assert (window.ahead_bytes, window.dropped_bytes) == (12, 2)
    assert pointers(window) == (0, 0, 0, 5)
    assert window.add_run(*run(8, 8)) == 0
    assert window.dropped_bytes == 3
    assert window.add_run(9, [b""]) == 1
    assert pointers(window) == (0, 0, 0, 9)


def test_the_next_in_order_is_never_refused_for_bytes() -> None:
    window = receiver(capacity=16, max_bytes=8)
    assert window.add_run(*run(3, 4)) == 2
    assert window.add_run(1, [bytes(1000), bytes(1000)]) == 2
    assert window.ahead_bytes == 0
    assert window.add_run(5, [bytes(1000)] * 4) == 4
    assert window.dropped_bytes == 0
    assert pointers(window) == (0, 0, 8, 8)


def test_a_run_cut_for_bytes_is_cut_once() -> None:
    """Small payloads behind a refused one wait too: a run keeps a prefix."""
    window = receiver(capacity=16, max_bytes=12)
    window.add_run(4, [b"4444"])
    window.add_run(6, [b"66"])
    assert window.add_run(3, [b"333", b"----", b"too long", b"--", b"7"]) == 1
    assert drops(window) == (2, 0, 0, 2)
    assert window.missing(10) == [range(1, 3), range(5, 6)]
    assert window.ahead_bytes == 9


def test_bytes_that_fit_exactly_do_not_cut_a_run() -> None:
    window = receiver(capacity=16, max_bytes=8)
    window.add_run(4, [b"4444"])
    assert window.add_run(3, [b"3333", b"----", b""]) == 2
    assert drops(window) == (1, 0, 0, 0)


def test_closing_the_first_gap_gives_back_only_what_became_contiguous() -> None:
    window = receiver(capacity=16, max_bytes=100)
    window.add_run(2, [b"22"])
    window.add_run(4, [b"4444"])
    window.add_run(6, [b"666666"])
    assert window.add_run(1, [b"1"]) == 1
    assert pointers(window) == (0, 0, 2, 6)
    assert window.ahead_bytes == 10


def test_a_retaining_window_keeps_messages_until_they_are_stable() -> None:
    window = receiver(retain=True)
    window.add_run(*run(1, 5))
    assert window.take_ready(3) == messages(1, 2, 3)
    assert pointers(window) == (0, 3, 5, 5)
    assert window.add_run(*run(2, 2)) == 0
    assert window.duplicates == 1
    assert window.read_run(range(2, 5)) == messages(2, 3, 4)
    assert window.stable(2) == 2
    assert pointers(window) == (2, 3, 5, 5)
    assert window.read_run(range(1, 4)) == messages(3)
    assert window.add_run(*run(2, 2)) == 0
    assert window.dropped_low == 1


def test_a_retaining_window_is_full_until_told_of_stability() -> None:
    window = receiver(capacity=3, retain=True)
    assert window.add_run(*run(1, 4)) == 3
    assert window.take_ready(3) == messages(1, 2, 3)
    assert window.add_run(*run(4, 4)) == 0
    assert window.stable(1) == 1
    assert window.add_run(*run(4, 5)) == 1
    assert window.take_ready(3) == messages(4)


def test_stability_never_passes_delivery_and_never_goes_back() -> None:
    window = receiver(retain=True)
    window.add_run(*run(1, 6))
    window.take_ready(4)
    assert window.stable(6) == 4
    assert pointers(window) == (4, 4, 6, 6)
    assert window.stable(2) == 0
    assert window.stable(FORGED) == 0
    assert pointers(window) == (4, 4, 6, 6)
    assert window.take_ready(10) == messages(5, 6)


def test_reading_gives_what_is_contiguous_and_still_here() -> None:
    window = receiver(retain=True)
    window.add_run(*run(1, 3))
    window.add_run(*run(5, 6))
    window.take_ready(3)
    window.stable(1)
    assert window.read_run(range(0, 100)) == messages(2, 3)
    assert window.read_run(range(3, 6)) == messages(3)
    assert window.read_run(range(5, 7)) == []
    assert window.read_run(range(3, 3)) == []
    assert window.read_run(range(0, 2)) == []


@pytest.mark.parametrize(
    ("through", "emptied", "after", "ready"),
    [
        (0, 0, (1, 1, 3, 8), (2, 3)),
        (2, 1, (2, 2, 3, 8), (3,)),
        (3, 2, (3, 3, 3, 8), ()),
        (4, 2, (4, 4, 6, 8), (5, 6)),
        (5, 3, (5, 5, 6, 8), (6,)),
        (6, 4, (6, 6, 6, 8), ()),
        (7, 4, (7, 7, 8, 8), (8,)),
        (FORGED, 5, (8, 8, 8, 8), ()),
    ],
)
def test_skipping_gives_up_gaps_and_whatever_lies_below(
    through: int, emptied: int, after: tuple[int, int, int, int], ready: tuple[int, ...]
) -> None:
    window = receiver()
    window.add_run(*run(1, 3))
    window.add_run(*run(5, 6))
    window.add_run(*run(8, 8))
    assert window.take_ready(1) == messages(1)
    assert window.skip(through) == emptied
    assert pointers(window) == after
    assert window.take_ready(10) == messages(*ready)


def test_skipping_in_a_retaining_window_keeps_delivered_at_least_at_low() -> None:
    window = receiver(retain=True)
    window.add_run(*run(1, 5))
    window.take_ready(3)
    assert window.skip(2) == 2
    assert pointers(window) == (2, 3, 5, 5)
    assert window.skip(4) == 2
    assert pointers(window) == (4, 4, 5, 5)
    assert window.skip(1) == 0
    assert pointers(window) == (4, 4, 5, 5)


# A gate: what is here may have to wait


def gated_receiver(capacity: int = 8, *, offset: int = 0) -> ReceiveWindow:
    return ReceiveWindow(capacity, offset=offset, max_bytes=PLENTY, gate=offset)


def test_nothing_is_ready_behind_a_closed_gate() -> None:
    window = gated_receiver()
    window.add_run(*run(1, 3))
    assert window.ready == 0
    assert window.take_ready(9) == []
    assert pointers(window) == (0, 0, 3, 3)


def test_what_is_up_to_the_gate_can_be_taken() -> None:
    window = gated_receiver(offset=10)
    window.add_run(*run(11, 14))
    assert window.open_gate(12)
    assert window.ready == 2
    assert window.take_ready(1) == messages(11)
    assert window.take_ready(9) == messages(12)
    assert window.take_ready(9) == []
    assert pointers(window) == (12, 12, 14, 14)


def test_a_gate_only_rises() -> None:
    window = gated_receiver()
    window.add_run(*run(1, 3))
    assert window.open_gate(2)
    assert not window.open_gate(1)
    assert not window.open_gate(2)
    assert window.ready == 2


def test_a_gate_may_be_open_for_what_is_yet_to_come() -> None:
    window = gated_receiver()
    window.open_gate(3)
    assert window.ready == 0
    window.add_run(*run(2, 3))
    assert window.ready == 0
    window.add_run(*run(1, 1))
    assert window.take_ready(9) == messages(1, 2, 3)


def test_what_waits_behind_a_gate_takes_its_slots() -> None:
    window = gated_receiver(2)
    assert window.add_run(*run(1, 3)) == 2
    assert window.dropped_high == 1
    window.open_gate(1)
    window.take_ready(9)
    assert window.add_run(*run(3, 3)) == 1


def test_what_is_given_up_opens_the_gate() -> None:
    window = gated_receiver()
    window.add_run(*run(1, 3))
    window.skip(2)
    assert window.gate == 2
    assert pointers(window) == (2, 2, 3, 3)
    assert window.take_ready(9) == []


def test_a_window_without_a_gate_lets_everything_through() -> None:
    window = receiver()
    window.add_run(*run(1, 3))
    assert window.ready == 3
    assert not window.open_gate(1)


def test_a_senders_own_application_waits_for_the_gate_too() -> None:
    window = SendWindow(8, max_bytes=PLENTY, datagram_bytes=DATAGRAM, gate=0)
    window.append_run(messages(1, 2, 3))
    assert window.ready == 0
    assert window.take_ready(9) == []
    window.gate = 2
    assert window.ready == 2
    assert window.take_ready(1) == messages(1)
    assert window.take_ready(9) == messages(2)
    assert window.take_ready(9) == []
    assert window.purge(3) == 2
    assert window.low == 2


def test_a_gate_is_part_of_the_state() -> None:
    window = gated_receiver()
    copy = clone(window)
    assert canonical(copy) == canonical(window)
    copy.open_gate(1)
    assert canonical(copy) != canonical(window)


# Sending


def test_seqnos_follow_each_other_and_own_messages_are_delivered() -> None:
    window = sender(offset=5)
    assert window.append_run(messages(6, 7)) == 2
    assert window.append_run(messages(8)) == 1
    window.check_invariants()
    assert (window.low, window.delivered, window.high, window.size) == (5, 5, 8, 3)
    assert window.ready == 3
    assert window.take_ready(2) == messages(6, 7)
    assert window.take_ready(2) == messages(8)
    assert window.take_ready(2) == []
    assert (window.low, window.delivered, window.high, window.size) == (5, 8, 8, 0)


@pytest.mark.parametrize("capacity", [1, 2, 3, 8])
def test_exactly_capacity_messages_are_in_flight(capacity: int) -> None:
    window = sender(capacity)
    for seqno in range(1, capacity + 1):
        assert not window.is_full
        assert window.room == capacity - seqno + 1
        assert window.append_run(messages(seqno)) == 1
    assert window.is_full
    assert window.room == 0
    before = canonical(window)
    assert window.append_run(messages(0)) == 0
    assert canonical(window) == before


def test_a_run_is_cut_where_the_window_is_full_and_the_rest_gets_no_seqno() -> None:
    window = sender(capacity=3)
    assert window.append_run(messages(1, 2, 3, 4, 5)) == 3
    assert window.high == 3
    window.take_ready(1)
    window.purge(1)
    assert window.append_run(messages(4, 5)) == 1
    assert window.read_run(range(0, 100)) == messages(2, 3, 4)


def test_an_empty_run_appends_nothing() -> None:
    window = sender()
    assert window.append_run([]) == 0
    window.max_bytes = 0
    assert window.append_run([]) == 0
    assert (window.high, window.charged) == (0, 0)
    window.check_invariants()


def test_purging_makes_room_and_never_passes_own_delivery() -> None:
    window = sender(capacity=4)
    window.append_run(messages(1, 2, 3, 4))
    assert window.purge(4) == 0
    window.take_ready(3)
    assert window.purge(FORGED) == 3
    assert (window.low, window.delivered, window.high) == (3, 3, 4)
    assert window.purge(1) == 0
    assert window.low == 3
    assert (window.room, window.is_full) == (3, False)
    assert window.append_run(messages(5, 6, 7, 8)) == 3
    assert window.read_run(range(4, 8)) == messages(4, 5, 6, 7)
    window.check_invariants()


@pytest.mark.parametrize("capacity", [1, 2, 3, 5])
@pytest.mark.parametrize("offset", [0, 2**63 - 60])
def test_a_sender_reads_the_right_slots_after_wrapping(capacity: int, offset: int) -> None:
    window = sender(capacity, offset=offset)
    last = offset
    for length in (*range(1, capacity + 1), *range(capacity, 0, -1)):
        first, last = last + 1, last + length
        assert window.append_run(messages(*range(first, last + 1))) == length
        for seqno in range(first, last + 1):
            assert window.read_run(range(seqno, seqno + 1)) == messages(seqno)
        assert window.take_ready(capacity) == messages(*range(first, last + 1))
        assert window.purge(last) == length
        window.check_invariants()


def test_reading_is_clipped_to_what_is_in_flight() -> None:
    window = sender()
    window.append_run(messages(1, 2, 3, 4))
    window.take_ready(1)
    window.purge(1)
    assert window.read_run(range(0, FORGED + 10)) == messages(2, 3, 4)
    assert window.read_run(range(0, 2)) == []
    assert window.read_run(range(5, 9)) == []
    assert window.read_run(range(3, 4)) == messages(3)


@pytest.mark.parametrize(
    ("sizes", "charge"),
    [
        ([0], DATAGRAM_OVERHEAD),
        ([1], DATAGRAM_OVERHEAD),
        ([DATAGRAM_OVERHEAD + 1], DATAGRAM_OVERHEAD + 1),
        ([DATAGRAM], DATAGRAM),
        ([DATAGRAM, 1], 2 * DATAGRAM_OVERHEAD),
        ([DATAGRAM, 536], 2 * DATAGRAM_OVERHEAD),
        ([DATAGRAM, 537], DATAGRAM + 537),
        ([DATAGRAM, 900], DATAGRAM + 900),
        ([500] * 5, 2500),
    ],
)
def test_a_run_is_charged_by_the_datagrams_that_it_fills(sizes: list[int], charge: int) -> None:
    window = sender()
    assert window.append_run([bytes(size) for size in sizes]) == len(sizes)
    assert window.charged == charge


def test_a_small_datagram_costs_the_overhead_each() -> None:
    window = sender(datagram_bytes=512)
    window.append_run([bytes(512), bytes(512), bytes(1)])
    assert window.charged == 3 * DATAGRAM_OVERHEAD


def test_the_byte_bound_admits_the_largest_prefix() -> None:
    window = sender(max_bytes=3000)
    assert window.append_run([bytes(900)]) == 1
    assert window.append_run([bytes(500)] * 5) == 4
    assert window.charged == 2900
    assert window.append_run([b""]) == 0
    assert window.is_full
    assert window.room == 3
    assert window.high == 5


def test_the_byte_bound_is_exact() -> None:
    window = sender(max_bytes=2000)
    window.append_run([bytes(1000)])
    assert not window.is_full
    assert window.append_run([bytes(1001)]) == 0
    assert window.append_run([bytes(1000)]) == 1
    assert (window.charged, window.is_full) == (2000, True)
    window.max_bytes = 2000 + DATAGRAM_OVERHEAD
    assert not window.is_full
    assert window.append_run([b"", b""]) == 2


def test_charges_return_with_what_is_purged() -> None:
    window = sender()
    window.append_run([bytes(800)] * 3)
    window.append_run([bytes(900)])
    assert window.charged == 3 * 800 + 900
    window.take_ready(4)
    window.purge(1)  # the first run was charged in two pieces, of one message and of two
    assert window.charged == 2 * 800 + 900
    window.purge(2)
    assert window.charged == 2 * 800 + 900
    window.purge(3)
    assert window.charged == 900
    window.purge(4)
    assert window.charged == 0
    window.check_invariants()


def test_an_empty_window_admits_one_datagram_whatever_the_bound() -> None:
    window = sender(max_bytes=10)
    assert not window.is_full
    assert window.append_run([bytes(400)] * 5) == 2
    assert window.is_full
    assert window.append_run([b""]) == 0
    window.take_ready(2)
    window.purge(1)
    assert window.append_run([b""]) == 0
    window.purge(2)
    assert window.append_run([bytes(5000), b""]) == 1
    window.check_invariants()


def test_shrinking_revokes_nothing_that_is_in_flight() -> None:
    window = sender(max_bytes=5000)
    window.append_run([bytes(1000)])
    window.append_run([bytes(1000)] * 3)
    window.max_bytes = 2000
    window.check_invariants()
    assert window.is_full
    assert window.append_run([b""]) == 0
    assert len(window.read_run(range(1, 5))) == 4
    window.take_ready(4)
    window.purge(4)
    assert window.append_run([bytes(1000)] * 3) == 2
    window.max_bytes = 3000
    assert window.append_run([bytes(1000)] * 3) == 1


# Both


def test_clones_live_their_own_lives() -> None:
    receiving = receiver()
    receiving.add_run(*run(1, 2))
    receiving.add_run(*run(4, 4))
    sending = sender()
    sending.append_run(messages(1, 2))
    for window in (receiving, sending):
        before = canonical(window)
        copy = clone(window)
        assert canonical(copy) == before
        assert copy.take_ready(1) == messages(1)
        assert canonical(copy) != before
        assert canonical(window) == before
    copied = clone(receiving)
    copied.add_run(*run(3, 3))
    assert receiving.missing(9) == [range(3, 4)]


def test_counters_do_not_tell_windows_apart() -> None:
    one, other = receiver(), receiver()
    one.add_run(*run(0, 0))
    one.add_run(*run(9, 9))
    assert drops(one) != drops(other)
    assert canonical(one) == canonical(other)


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("low", 0),
        ("delivered", 1),
        ("received", 4),
        ("high", 6),
        ("capacity", 2),
        ("ahead_bytes", 3),
        ("max_bytes", 3),
        ("_ahead", bytearray(b"\x01\x01")),
        ("_ahead", bytearray(b"\x00\x00")),
        ("_ahead", bytearray(b"\x00\x02")),
    ],
)
def test_broken_receive_windows_are_found_out(attribute: str, value: object) -> None:
    window = receiver()
    window.add_run(*run(1, 3))
    window.add_run(*run(5, 5))
    window.take_ready(2)
    window.check_invariants()
    setattr(window, attribute, value)
    with pytest.raises(AssertionError):
        window.check_invariants()


@pytest.mark.parametrize(
    ("attribute", "value"),
    [("low", 2), ("delivered", 4), ("high", 4), ("capacity", 1), ("charged", 1)],
)
def test_broken_send_windows_are_found_out(attribute: str, value: object) -> None:
    window = sender()
    window.append_run(messages(1))
    window.append_run(messages(2, 3))
    window.take_ready(2)
    window.purge(1)
    window.check_invariants()
    setattr(window, attribute, value)
    with pytest.raises(AssertionError):
        window.check_invariants()


def test_a_partly_purged_run_is_charged_at_least_for_its_bytes_in_flight() -> None:
    window = SendWindow(400, max_bytes=201_000, datagram_bytes=60_000)
    assert window.append_run([b"x"] * 100 + [bytes(2000)] * 100) == 200
    window.take_ready(200)
    window.purge(100)
    assert window.charged >= 200_000
    assert window.append_run([bytes(1000)] * 67) == 0


def test_a_long_run_gives_room_back_piece_by_piece() -> None:
    window = SendWindow(400, max_bytes=201_000, datagram_bytes=60_000)
    assert window.append_run([bytes(1000)] * 200) == 200
    window.take_ready(200)
    for purged, charged in [(65, 200_000), (66, 134_000), (131, 134_000), (132, 68_000)]:
        window.purge(purged)
        assert window.charged == charged
    window.purge(200)
    assert window.charged == 0


@pytest.mark.parametrize("size", [0, 1, 231, 232, 233, 500, 768, 769, 1000])
@pytest.mark.parametrize("other", [0, 1, 400, 768, 1000])
def test_two_runs_never_cost_less_than_one(size: int, other: int) -> None:
    together, apart = sender(), sender()
    together.append_run([bytes(size), bytes(other)])
    apart.append_run([bytes(size)])
    apart.append_run([bytes(other)])
    assert together.charged <= apart.charged


def test_one_message_costs_what_the_least_datagram_does() -> None:
    window = sender(max_bytes=3 * DATAGRAM_OVERHEAD + 1)
    assert window.append(b"x")
    assert window.charged == DATAGRAM_OVERHEAD
    assert window.append(bytes(DATAGRAM_OVERHEAD + 1))
    assert window.charged == 2 * DATAGRAM_OVERHEAD + 1
    assert window.append(b"y")
    assert not window.append(b"z")
    assert window.high == 3
    window.check_invariants()


def test_one_message_is_appended_where_there_is_a_slot_for_it() -> None:
    window = SendWindow(2, capacity_max=8, max_bytes=PLENTY, datagram_bytes=DATAGRAM)
    assert [window.append(b"x") for _ in range(3)] == [True, True, False]
    assert window.append_run([b"x"]) == 1  # this one grows
    window.ceiling = 4
    assert [window.append(b"x") for _ in range(2)] == [True, False]


def test_what_is_skipped_makes_room_in_a_bounded_window() -> None:
    window = BoundedWindow(8, 20, offset=0)
    assert window.add_run(*run(1, 5)) == 5
    assert window.add_run(*run(6, 6)) == 0
    assert (window.held, window.is_full) == (20, True)
    window.skip(3)
    window.check_invariants()
    assert (window.held, window.is_full) == (8, False)
    assert window.add_run(*run(6, 6)) == 1
