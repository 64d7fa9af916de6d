"""Windows that grow and shrink between two bounds, by example."""

from __future__ import annotations

import tracemalloc

import pytest

from ringcast.explore.abstraction import canonical, clone
from ringcast.window.receive import ReceiveWindow
from ringcast.window.send import SendWindow

FORGED = 2**63 - 1
PLENTY = 1 << 30
NO_GATE = FORGED
OFFSETS = [0, 3, 13, 2**63 - 200]  # 13: the slots of a small window wrap in the midst of a run


def messages(first: int, last: int) -> list[bytes]:
    """A payload for each seqno that tells which one it is."""
    return [b"%d" % seqno for seqno in range(first, last + 1)]


def run(first: int, last: int) -> tuple[int, list[bytes]]:
    return first, messages(first, last)


def receiver(
    capacity: int = 4,
    capacity_max: int | None = 32,
    *,
    offset: int = 0,
    max_bytes: int = PLENTY,
    retain: bool = False,
    gate: int = NO_GATE,
) -> ReceiveWindow:
    return ReceiveWindow(
        capacity,
        capacity_max=capacity_max,
        offset=offset,
        max_bytes=max_bytes,
        retain=retain,
        gate=gate,
    )


def sender(
    capacity: int = 4,
    capacity_max: int | None = 32,
    *,
    offset: int = 0,
    max_bytes: int = PLENTY,
    gate: int = NO_GATE,
) -> SendWindow:
    return SendWindow(
        capacity,
        capacity_max=capacity_max,
        offset=offset,
        max_bytes=max_bytes,
        datagram_bytes=1000,
        gate=gate,
    )


def capacity_of(window: ReceiveWindow | SendWindow) -> int:
    window.check_invariants()
    return window.capacity


# Receiving


def test_a_window_without_an_upper_bound_is_fixed() -> None:
    window = receiver(4, None)
    assert (window.capacity_min, window.capacity, window.capacity_max) == (4, 4, 4)
    assert window.add_run(*run(1, 5)) == 4
    assert capacity_of(window) == 4
    assert window.dropped_high == 1


def test_a_window_starts_at_its_lower_bound() -> None:
    window = receiver(5, 32)
    assert (window.capacity_min, window.capacity, window.capacity_max) == (5, 5, 32)
    assert window.add_run(*run(1, 5)) == 5
    assert capacity_of(window) == 5


def test_the_upper_bound_is_not_below_the_lower_one() -> None:
    with pytest.raises(AssertionError):
        receiver(5, 4)
    with pytest.raises(AssertionError):
        sender(5, 4)


@pytest.mark.parametrize("offset", OFFSETS)
def test_what_arrives_in_order_makes_a_window_grow_by_doubling(offset: int) -> None:
    window = receiver(4, 32, offset=offset)
    capacities = []
    for seqno in range(offset + 1, offset + 33):
        assert window.add_run(*run(seqno, seqno)) == 1
        capacities.append(capacity_of(window))
    assert capacities == [4] * 4 + [8] * 4 + [16] * 8 + [32] * 16
    assert window.take_ready(99) == messages(offset + 1, offset + 32)


@pytest.mark.parametrize("offset", OFFSETS)
def test_a_long_run_makes_a_window_grow_at_once(offset: int) -> None:
    window = receiver(4, 64, offset=offset)
    assert window.add_run(*run(offset + 1, offset + 33)) == 33
    assert capacity_of(window) == 64
    assert window.take_ready(99) == messages(offset + 1, offset + 33)


@pytest.mark.parametrize("taken", range(5))
def test_content_that_wraps_is_kept_when_a_window_grows(taken: int) -> None:
    window = receiver(4, 32)
    window.add_run(*run(1, 4))
    assert window.take_ready(taken) == messages(1, taken)
    window.add_run(*run(5, 4 + taken))
    assert capacity_of(window) == 4
    assert window.add_run(*run(5 + taken, 6 + taken)) == 2
    assert capacity_of(window) == 8
    assert window.take_ready(99) == messages(taken + 1, taken + 6)


@pytest.mark.parametrize("offset", OFFSETS)
def test_gaps_stay_gaps_when_a_window_grows(offset: int) -> None:
    window = receiver(4, 64, offset=offset)
    window.add_run(*run(offset + 2, offset + 3))
    assert window.add_run(*run(offset + 10, offset + 11)) == 2
    assert capacity_of(window) == 16
    assert window.add_run(*run(offset + 40, offset + 40)) == 1
    assert capacity_of(window) == 64
    gaps = [(1, 2), (4, 10), (12, 40)]
    assert window.missing(9) == [range(offset + first, offset + stop) for first, stop in gaps]
    for first, stop in gaps:
        assert window.add_run(*run(offset + first, offset + stop - 1)) == stop - first
    assert window.take_ready(99) == messages(offset + 1, offset + 40)


def test_one_run_may_close_gaps_and_grow() -> None:
    window = receiver(4, 64)
    window.add_run(*run(2, 2))
    window.add_run(*run(4, 4))
    assert window.add_run(*run(1, 20)) == 18
    assert (capacity_of(window), window.duplicates) == (32, 2)
    assert window.take_ready(99) == messages(1, 20)


def test_a_window_does_not_grow_for_what_has_a_slot() -> None:
    window = receiver(4, 32)
    assert window.add_run(*run(4, 4)) == 1
    assert capacity_of(window) == 4
    assert window.add_run(*run(5, 5)) == 1
    assert capacity_of(window) == 8
    assert window.add_run(*run(8, 8)) == 1
    assert capacity_of(window) == 8


@pytest.mark.parametrize("capacity_max", [4, 5, 8, 20, 32])
@pytest.mark.parametrize("offset", OFFSETS)
def test_a_window_grows_exactly_to_its_bound(capacity_max: int, offset: int) -> None:
    window = receiver(4, capacity_max, offset=offset)
    last = offset + capacity_max
    assert window.add_run(*run(last + 1, last + 1)) == 0
    assert (capacity_of(window), window.dropped_high) == (4, 1)
    assert window.add_run(*run(last, last)) == 1
    assert capacity_of(window) == capacity_max
    assert window.add_run(*run(offset + 1, last + 3)) == capacity_max - 1
    assert (capacity_of(window), window.dropped_high) == (capacity_max, 4)
    assert window.take_ready(99) == messages(offset + 1, last)


def test_what_would_have_a_slot_in_a_grown_window_has_one() -> None:
    window = receiver(4, 20)
    assert window.has_slot(20, 25)
    assert not window.has_slot(21, 25)
    assert window.missing_within(1, FORGED, 9) == [range(1, 21)]
    assert capacity_of(window) == 4


def test_what_is_refused_for_bytes_does_not_make_a_window_grow() -> None:
    window = receiver(4, 32, max_bytes=3)
    assert window.add_run(30, [b"four"]) == 0
    assert capacity_of(window) == 4
    assert window.add_run(7, [b"x"] * 9) == 3
    assert (capacity_of(window), window.high, window.dropped_bytes) == (16, 9, 7)


def test_forged_seqnos_do_not_make_a_window_grow() -> None:
    window = receiver(4, 1 << 20)
    window.add_run(*run(1, 3))
    before = canonical(window)
    tracemalloc.start()
    try:
        for first in ((1 << 20) + 1, FORGED, 10**30, 0, -(10**30)):
            assert window.add_run(first, [b"x"]) == 0
            window.has_slot(first, first)
        window.missing_within(1, 10**30, 4)
        window.stable(FORGED)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4096
    assert canonical(window) == before


def test_the_farthest_seqno_costs_what_the_bound_says() -> None:
    window = receiver(4, 65_536)
    tracemalloc.start()
    try:
        assert window.add_run(65_536, [b"far"]) == 1
        current, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert window.capacity == 65_536
    assert current < 600_000
    assert peak < 1_200_000


@pytest.mark.parametrize("offset", OFFSETS)
def test_a_window_shrinks_when_a_quarter_is_in_use(offset: int) -> None:
    window = receiver(4, 64, offset=offset)
    window.add_run(*run(offset + 1, offset + 64))
    assert capacity_of(window) == 64
    assert window.take_ready(47) == messages(offset + 1, offset + 47)
    assert capacity_of(window) == 64
    assert window.take_ready(1) == messages(offset + 48, offset + 48)
    assert capacity_of(window) == 32
    assert window.take_ready(7) == messages(offset + 49, offset + 55)
    assert capacity_of(window) == 32
    assert window.take_ready(4) == messages(offset + 56, offset + 59)
    assert capacity_of(window) == 16
    assert window.take_ready(99) == messages(offset + 60, offset + 64)
    assert capacity_of(window) == 4


def test_a_bound_that_is_no_power_of_two_has_its_own_quarter() -> None:
    window = receiver(4, 20)
    window.add_run(*run(1, 20))
    assert window.take_ready(14) == messages(1, 14)
    assert capacity_of(window) == 20
    assert window.take_ready(1) == messages(15, 15)
    assert capacity_of(window) == 16
    assert window.take_ready(99) == messages(16, 20)


@pytest.mark.parametrize("behind", range(8))
def test_content_that_wraps_is_kept_when_a_window_shrinks(behind: int) -> None:
    """With three messages left the ring gets 8 slots: they lie astride its end for some starts."""
    window = receiver(2, 32, offset=behind)
    last = behind + 32
    window.add_run(*run(behind + 1, last))
    assert window.take_ready(29) == messages(behind + 1, last - 3)
    assert capacity_of(window) == 8
    assert window.add_run(*run(last + 1, last + 5)) == 5
    assert capacity_of(window) == 8
    assert window.take_ready(99) == messages(last - 2, last + 5)


def test_gaps_stay_gaps_when_a_window_shrinks() -> None:
    window = receiver(4, 64)
    window.add_run(*run(1, 50))
    window.add_run(*run(53, 54))
    window.add_run(*run(58, 58))
    assert window.take_ready(99) == messages(1, 50)
    assert capacity_of(window) == 16
    assert window.missing(9) == [range(51, 53), range(55, 58)]
    assert window.add_run(*run(51, 57)) == 5
    assert window.take_ready(99) == messages(51, 58)


@pytest.mark.parametrize("capacity", [1, 3, 4, 5, 8])
def test_a_window_never_shrinks_below_its_lower_bound(capacity: int) -> None:
    window = receiver(capacity, 40)
    window.add_run(*run(1, 40))
    assert capacity_of(window) == 40
    for seqno in range(1, 41):
        assert window.take_ready(1) == messages(seqno, seqno)
        assert capacity_of(window) >= capacity
    assert window.capacity == capacity


def test_a_window_grows_again_after_it_shrank() -> None:
    window = receiver(4, 32)
    for lap in range(5):
        first = 1 + 31 * lap
        assert window.add_run(*run(first, first + 30)) == 31
        assert capacity_of(window) == 32
        assert window.take_ready(99) == messages(first, first + 30)
        assert capacity_of(window) == 4


def test_slots_are_moved_seldom() -> None:
    """At the edge where a window has just grown or shrunk a few messages do not turn it back."""
    window = receiver(4, 64)
    window.add_run(*run(1, 17))
    assert capacity_of(window) == 32
    for _ in range(40):
        assert len(window.take_ready(8)) == 8
        assert capacity_of(window) == 32
        assert window.add_run(*run(window.received + 1, window.received + 8)) == 8
        assert capacity_of(window) == 32
    assert len(window.take_ready(7)) == 7
    assert window.add_run(*run(window.received + 1, window.received + 1)) == 1
    assert capacity_of(window) == 32  # more than a quarter is in use


@pytest.mark.parametrize("offset", OFFSETS)
def test_a_retaining_window_shrinks_when_told_of_stability(offset: int) -> None:
    window = receiver(4, 32, offset=offset, retain=True)
    window.add_run(*run(offset + 1, offset + 20))
    assert window.take_ready(99) == messages(offset + 1, offset + 20)
    assert capacity_of(window) == 32
    assert window.read_run(range(offset + 1, offset + 21)) == messages(offset + 1, offset + 20)
    assert window.stable(offset + 11) == 11
    assert capacity_of(window) == 32
    assert window.stable(offset + 12) == 1
    assert capacity_of(window) == 16
    assert window.read_run(range(offset + 1, offset + 21)) == messages(offset + 13, offset + 20)
    assert window.stable(FORGED) == 8
    assert capacity_of(window) == 4


def test_a_retaining_window_is_full_at_its_upper_bound() -> None:
    window = receiver(2, 6, retain=True)
    assert window.add_run(*run(1, 7)) == 6
    assert window.take_ready(99) == messages(1, 6)
    assert window.add_run(*run(7, 7)) == 0
    assert window.stable(1) == 1
    assert window.add_run(*run(7, 8)) == 1
    assert (capacity_of(window), window.dropped_high) == (6, 3)


def test_skipping_shrinks_a_window_and_keeps_what_lies_beyond() -> None:
    window = receiver(4, 64, offset=13)
    window.add_run(*run(20, 30))
    window.add_run(*run(70, 72))
    window.add_run(*run(75, 75))
    assert capacity_of(window) == 64
    assert window.skip(69) == 11
    assert capacity_of(window) == 16
    assert window.missing(9) == [range(73, 75)]
    assert window.take_ready(99) == messages(70, 72)
    assert window.skip(FORGED) == 1
    assert capacity_of(window) == 4


def test_what_waits_behind_a_gate_makes_a_window_grow() -> None:
    window = receiver(4, 16, gate=0)
    assert window.add_run(*run(1, 20)) == 16
    assert (capacity_of(window), window.ready) == (16, 0)
    window.open_gate(12)
    assert window.take_ready(99) == messages(1, 12)
    assert capacity_of(window) == 8
    assert window.add_run(*run(17, 20)) == 4
    window.open_gate(20)
    assert window.take_ready(99) == messages(13, 20)
    assert capacity_of(window) == 4


# Sending


def test_a_sender_without_an_upper_bound_is_fixed() -> None:
    window = sender(4, None)
    assert (window.capacity_min, window.capacity, window.capacity_max) == (4, 4, 4)
    assert window.append_run(messages(1, 5)) == 4
    assert (capacity_of(window), window.is_full) == (4, True)


@pytest.mark.parametrize("capacity_max", [4, 5, 8, 20, 32])
@pytest.mark.parametrize("offset", OFFSETS)
def test_a_sender_is_full_at_its_upper_bound(capacity_max: int, offset: int) -> None:
    window = sender(4, capacity_max, offset=offset)
    last = offset + capacity_max
    for seqno in range(offset + 1, last + 1):
        assert not window.is_full
        assert window.room == last + 1 - seqno
        assert window.append_run(messages(seqno, seqno)) == 1
        window.check_invariants()
    assert (window.capacity, window.room, window.is_full) == (capacity_max, 0, True)
    before = canonical(window)
    assert window.append_run([b"one too many"]) == 0
    assert canonical(window) == before
    assert window.take_ready(99) == messages(offset + 1, last)


@pytest.mark.parametrize("offset", OFFSETS)
def test_a_sender_grows_with_messages_in_flight_that_wrap(offset: int) -> None:
    window = sender(4, 32, offset=offset)
    window.append_run(messages(offset + 1, offset + 4))
    window.take_ready(3)
    window.purge(offset + 3)
    assert window.append_run(messages(offset + 5, offset + 7)) == 3
    assert capacity_of(window) == 4
    assert window.append_run(messages(offset + 8, offset + 12)) == 5
    assert capacity_of(window) == 16
    assert window.read_run(range(offset, offset + 99)) == messages(offset + 4, offset + 12)


def test_a_run_beyond_the_upper_bound_is_cut_there() -> None:
    window = sender(4, 20)
    assert window.append_run(messages(1, 30)) == 20
    assert (window.high, capacity_of(window)) == (20, 20)


def test_what_bytes_do_not_admit_does_not_make_a_sender_grow() -> None:
    window = sender(4, 32, max_bytes=3000)
    assert window.append_run([bytes(1000)] * 9) == 3
    assert capacity_of(window) == 4
    assert window.is_full
    window.max_bytes = 6000
    assert window.append_run([bytes(1000)] * 9) == 3
    assert capacity_of(window) == 8


@pytest.mark.parametrize("offset", OFFSETS)
def test_purging_shrinks_a_sender(offset: int) -> None:
    window = sender(3, 64, offset=offset)
    window.append_run(messages(offset + 1, offset + 64))
    assert window.take_ready(60) == messages(offset + 1, offset + 60)
    assert capacity_of(window) == 64
    assert window.purge(offset + 47) == 47
    assert capacity_of(window) == 64
    assert window.purge(offset + 59) == 12
    assert capacity_of(window) == 16
    assert window.read_run(range(offset, offset + 99)) == messages(offset + 60, offset + 64)
    assert window.append_run(messages(offset + 65, offset + 75)) == 11
    assert capacity_of(window) == 16
    assert window.take_ready(99) == messages(offset + 61, offset + 75)
    assert window.purge(FORGED) == 16
    assert (capacity_of(window), window.charged) == (3, 0)


def test_a_forced_purge_shrinks_a_sender_too() -> None:
    window = sender(4, 32, gate=0)
    window.append_run(messages(1, 30))
    assert window.purge(26) == 0
    assert capacity_of(window) == 32
    assert window.purge(26, forced=True) == 26
    assert capacity_of(window) == 8
    assert window.read_run(range(0, 99)) == messages(27, 30)


def test_a_senders_gate_does_not_keep_it_from_growing() -> None:
    window = sender(4, 16, gate=0)
    assert window.append_run(messages(1, 20)) == 16
    assert (window.ready, window.take_ready(99)) == (0, [])
    window.gate = 13
    assert window.take_ready(99) == messages(1, 13)
    assert window.purge(16) == 13
    assert capacity_of(window) == 8


def test_a_ceiling_cuts_a_run_before_the_upper_bound_does() -> None:
    window = sender(4, 32)
    window.ceiling = 6
    assert window.room == 6
    assert window.append_run(messages(1, 9)) == 6
    assert (capacity_of(window), window.room, window.is_full) == (8, 0, True)
    window.take_ready(99)
    assert window.purge(6) == 6
    assert (window.room, window.is_full) == (0, True)
    assert window.append_run(messages(7, 7)) == 0
    window.ceiling = 7
    assert not window.is_full
    assert window.append_run(messages(7, 8)) == 1
    assert (window.high, window.is_full) == (7, True)
    window.ceiling = 6
    with pytest.raises(AssertionError):
        window.check_invariants()


# Both


def test_a_clone_grows_alone() -> None:
    window = receiver(4, 32)
    window.add_run(*run(1, 4))
    before = canonical(window)
    copy = clone(window)
    copy.add_run(*run(5, 12))
    assert (capacity_of(copy), capacity_of(window)) == (16, 4)
    assert canonical(window) == before


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("capacity", 32),  # the ring is smaller
        ("capacity", 8),  # the ring is larger, and there is more here
        ("capacity_max", 15),
        ("capacity_min", 17),
    ],
)
@pytest.mark.parametrize("kind", ["receiver", "sender"])
def test_broken_capacities_are_found_out(kind: str, attribute: str, value: int) -> None:
    window: ReceiveWindow | SendWindow
    if kind == "receiver":
        window = receiver(4, 64)
        window.add_run(*run(1, 9))
    else:
        window = sender(4, 64)
        window.append_run(messages(1, 9))
    assert capacity_of(window) == 16
    setattr(window, attribute, value)
    with pytest.raises(AssertionError):
        window.check_invariants()


def test_more_messages_than_slots_are_found_out() -> None:
    window = receiver(4, 64)
    window.add_run(*run(1, 7))
    assert capacity_of(window) == 8
    window.capacity = 5  # the same ring would do
    with pytest.raises(AssertionError):
        window.check_invariants()


def test_slots_that_were_not_given_back_are_found_out() -> None:
    window = receiver(16, 64)
    window.add_run(*run(1, 4))
    assert capacity_of(window) == 16
    window.capacity_min = 4
    with pytest.raises(AssertionError):
        window.check_invariants()


def test_a_ring_that_finds_only_some_of_its_slots_is_found_out() -> None:
    window = receiver(4, 64)
    window.check_invariants()
    window._ring.mask = 1
    with pytest.raises(AssertionError):
        window.check_invariants()
