"""The concurrent ring buffer, without a lock and with one: by example, against a naive model, and
under threads.

Every interleaving of small scenarios is in tests/unit/explore/test_explore_ring.py.
"""

from __future__ import annotations

import gc
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from runpy import run_path
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import ref

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.parts import bench_ring, stress
from ringcast.errors import ConfigError, GroupClosed, UsageError
from ringcast.window import threads
from ringcast.window.concurrent import Bell, GilRingBuffer
from ringcast.window.threads import HAS_GIL, LockedRingBuffer, RingBuffer

if TYPE_CHECKING:
    from collections.abc import Iterator

Kind: TypeAlias = type[GilRingBuffer[Any]]
both_kinds = pytest.mark.parametrize("kind", [GilRingBuffer, LockedRingBuffer])


def pointers(ring: GilRingBuffer[int]) -> tuple[int, int, int]:
    return ring.low, ring.hd, ring.hr


def bells(ring: GilRingBuffer[int]) -> object:
    return ring.memory()["bells"]


@both_kinds
def test_a_new_buffer_is_empty_after_its_offset(kind: Kind) -> None:
    ring: GilRingBuffer[int] = kind(4, offset=9)
    assert pointers(ring) == (9, 9, 9)
    assert (ring.capacity, ring.size, ring.missing(9)) == (4, 0, [])
    assert ring.consumer().remove() is None


@both_kinds
def test_adding_is_refused_outside_the_window_and_for_duplicates(kind: Kind) -> None:
    ring: GilRingBuffer[int] = kind(4, offset=10)
    consumer = ring.consumer()
    before = ring.memory()
    assert not any(ring.add(seqno, seqno) for seqno in (-5, 0, 10, 15, 2**63))
    assert ring.memory() == before
    assert ring.add(14, 14)
    assert ring.add(11, 11)
    before = ring.memory()
    assert not ring.add(11, 99)
    assert not ring.add(14, 99)
    assert ring.memory() == before
    assert consumer.remove() == 11
    assert not ring.add(11, 11)
    assert pointers(ring) == (11, 11, 14)


@both_kinds
def test_what_is_removed_is_kept_no_longer(kind: Kind) -> None:
    class Item:
        pass

    ring: GilRingBuffer[Item] = kind(4)
    item = Item()
    kept = ref(item)
    assert ring.add(1, item)
    del item
    assert kept() is not None
    assert ring.consumer().remove() is kept()
    gc.collect()
    assert kept() is None


@both_kinds
def test_removal_never_skips_a_gap(kind: Kind) -> None:
    ring: GilRingBuffer[int] = kind(8)
    consumer = ring.consumer()
    for seqno in (1, 2, 4, 7):
        ring.add(seqno, seqno)
    assert ring.missing(9) == [range(3, 4), range(5, 7)]
    assert ring.missing(1) == [range(3, 4)]
    assert ring.missing(0) == []
    assert ring.size == 4
    assert consumer.remove_run(9) == [1, 2]
    assert consumer.remove() is None
    assert (ring.size, ring.missing(9)) == (2, [range(3, 4), range(5, 7)])
    ring.add(3, 3)
    assert consumer.remove_run(1) == [3]
    assert consumer.remove_run(0) == []
    assert consumer.remove_run(9) == [4]
    assert pointers(ring) == (4, 4, 7)


@both_kinds
@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_laps(kind: Kind, capacity: int) -> None:
    ring: GilRingBuffer[int] = kind(capacity)
    consumer = ring.consumer()
    out = []
    for first in range(1, 6 * capacity, capacity):
        lap = range(first, first + capacity)
        assert all(ring.add(seqno, seqno) for seqno in reversed(lap))
        assert not ring.add(first + capacity, 0)
        assert pointers(ring) == (first - 1, first - 1, first + capacity - 1)
        out += consumer.remove_run(capacity)
    assert out == list(range(1, len(out) + 1))


@both_kinds
def test_a_run_is_removed_across_the_end_of_the_array(kind: Kind) -> None:
    ring: GilRingBuffer[int] = kind(3)
    consumer = ring.consumer()
    for seqno in (1, 2):
        ring.add(seqno, seqno)
    consumer.remove_run(2)
    for seqno in (3, 4, 5):
        ring.add(seqno, seqno)
    assert consumer.remove_run(3) == [3, 4, 5]


@both_kinds
def test_a_retaining_buffer_keeps_what_was_removed_until_it_is_stable(kind: Kind) -> None:
    ring: GilRingBuffer[int] = kind(3, nullify=False)
    consumer = ring.consumer()
    for seqno in (1, 2, 3):
        ring.add(seqno, seqno * 10)
    assert consumer.remove_run(9) == [10, 20, 30]
    assert consumer.remove() is None  # not the first lap again
    assert pointers(ring) == (0, 3, 3)
    assert not ring.add(4, 40)
    assert consumer.retained(2) == 20
    assert consumer.stable(2) == 2
    assert (consumer.retained(2), consumer.retained(3), consumer.retained(4)) == (None, 30, None)
    assert consumer.stable(1) == 0
    assert pointers(ring) == (2, 3, 3)
    assert ring.add(4, 40)
    assert consumer.retained(4) == 40
    assert consumer.stable(99) == 1  # 4 is not delivered
    assert pointers(ring) == (3, 3, 4)


@both_kinds
def test_stable_frees_across_the_end_of_the_array(kind: Kind) -> None:
    ring: GilRingBuffer[int] = kind(3, offset=2, nullify=False)
    consumer = ring.consumer()
    for seqno in (3, 4, 5):
        ring.add(seqno, seqno)
    consumer.remove_run(9)
    assert consumer.stable(5) == 3
    assert all(ring.add(seqno, seqno) for seqno in (6, 7, 8))


@both_kinds
def test_stable_has_nothing_to_free_in_a_nullifying_buffer(kind: Kind) -> None:
    ring: GilRingBuffer[int] = kind(2)
    ring.add(1, 1)
    consumer = ring.consumer()
    assert consumer.stable(1) == 0
    assert consumer.remove() == 1
    assert consumer.stable(1) == 0
    assert pointers(ring) == (1, 1, 1)


@both_kinds
def test_a_second_consumer_is_refused(kind: Kind) -> None:
    ring: GilRingBuffer[int] = kind(2)
    ring.consumer()
    with pytest.raises(UsageError, match="already taken"):
        ring.consumer()


@both_kinds
def test_of_many_threads_that_want_the_consumer_one_gets_it(kind: Kind) -> None:
    ring: GilRingBuffer[int] = kind(2)

    def try_once() -> bool:
        try:
            ring.consumer()
        except UsageError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        outcomes = [pool.submit(try_once) for _ in range(64)]
    assert sum(outcome.result() for outcome in outcomes) == 1


@both_kinds
def test_mistakes_are_refused_at_once(kind: Kind) -> None:
    with pytest.raises(ConfigError, match="capacity = 0"):
        kind(0)
    ring: GilRingBuffer[object] = kind(1)
    with pytest.raises(UsageError, match="None cannot be added"):
        ring.add(1, None)
    with pytest.raises(UsageError, match="None cannot be added"):
        ring.add_waiting(1, None)
    assert ring.add(1, 0)


@both_kinds
def test_tickets_are_handed_out_once(kind: Kind) -> None:
    ring: GilRingBuffer[int] = kind(2, offset=5)
    with ThreadPoolExecutor(8) as pool:
        tickets = list(pool.map(lambda _: ring.ticket(), range(1000)))
    assert sorted(tickets) == list(range(6, 1006))


# A blocked adder. Step by step first, so that nothing depends on when a thread runs.


@both_kinds
def test_a_ticket_is_where_it_was_asked_for(kind: Kind) -> None:
    ring: GilRingBuffer[int] = kind(4, offset=7)
    held = [0]
    ring.take_ticket(held)
    ring.take_ticket(held)
    assert (held, ring.ticket()) == ([0, 8, 9], 10)


@both_kinds
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4])
def test_the_gap_of_an_adder_that_died_is_filled_once(kind: Kind, steps: int) -> None:
    """It has taken so many steps. Whatever it has done, the others go on."""
    ring: GilRingBuffer[int] = kind(2)
    consumer = ring.consumer()
    dying = ring.add_steps(1, 100)
    for _ in range(steps):
        next(dying, None)
    dying.close()
    ring.add(2, 2)
    ring.close()
    assert not consumer.fill(3, 300)  # there is no room yet
    assert consumer.fill(1, 1)
    assert consumer.fill(1, -1)
    assert consumer.remove_run(9) == [100 if steps == 4 else 1, 2]
    assert consumer.fill(1, -3)  # what is gone stays gone
    assert pointers(ring) == (2, 2, 2)
    assert consumer.fill(3, 300)
    assert consumer.remove_run(9) == [300]


def blocked(ring: GilRingBuffer[int], seqno: int) -> tuple[Iterator[str | Event], Bell]:
    steps = ring.whole(ring.add_waiting_steps(seqno, seqno))
    bell = next(step for step in steps if isinstance(step, Bell))
    return steps, bell


@both_kinds
def test_a_blocked_adder_is_woken_by_the_removal_that_makes_room(kind: Kind) -> None:
    ring: GilRingBuffer[int] = kind(1)
    consumer = ring.consumer()
    ring.add(1, 1)
    nearer, near_bell = blocked(ring, 2)
    _farther, far_bell = blocked(ring, 3)
    assert consumer.remove() == 1
    assert (near_bell.is_set(), far_bell.is_set()) == (True, False)
    assert list(nearer)[-1] == "mark it present"
    assert bells(ring) == [(3, False)]
    assert consumer.remove() == 2
    assert far_bell.is_set()


@both_kinds
def test_a_blocked_adder_is_woken_by_stable(kind: Kind) -> None:
    ring: GilRingBuffer[int] = kind(1, nullify=False)
    consumer = ring.consumer()
    ring.add(1, 1)
    steps, bell = blocked(ring, 2)
    assert consumer.remove() == 1
    assert not bell.is_set()
    assert consumer.stable(1) == 1
    assert bell.is_set()
    assert list(steps)[-1] == "mark it present"
    assert consumer.remove() == 2


@both_kinds
def test_a_blocked_adder_is_woken_by_close(kind: Kind) -> None:
    ring: GilRingBuffer[int] = kind(1)
    ring.add(1, 1)
    steps, bell = blocked(ring, 2)
    ring.close()
    assert bell.is_set()
    with pytest.raises(GroupClosed):
        list(steps)
    assert bells(ring) == []


@both_kinds
def test_a_closed_buffer_refuses_items_and_gives_out_what_it_has(kind: Kind) -> None:
    ring: GilRingBuffer[int] = kind(2)
    ring.add(1, 1)
    ring.close()
    with pytest.raises(GroupClosed):
        ring.add(2, 2)
    with pytest.raises(GroupClosed):
        ring.add_waiting(2, 2)
    assert ring.consumer().remove() == 1


@both_kinds
@pytest.mark.parametrize("how", ["remove", "stable", "close"])
def test_a_blocked_thread_is_woken(kind: Kind, how: str) -> None:
    ring: GilRingBuffer[int] = kind(1, nullify=how != "stable")
    consumer = ring.consumer()
    ring.add(1, 1)
    with ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(ring.add_waiting, 2, 2, 30.0)
        deadline = monotonic() + 30
        while not bells(ring) and monotonic() < deadline:
            pass
        assert bells(ring) == [(2, False)]
        if how == "close":
            ring.close()
            assert isinstance(outcome.exception(), GroupClosed)
            return
        assert consumer.remove() == 1
        consumer.stable(1)
        assert outcome.result() is True
    assert consumer.remove() == 2
    assert bells(ring) == []


@both_kinds
def test_waiting_ends_after_the_timeout_and_leaves_nothing_behind(kind: Kind) -> None:
    ring: GilRingBuffer[int] = kind(1)
    ring.add(1, 1)
    before = ring.memory()
    assert ring.add_waiting(2, 2, timeout=0.001) is False
    assert ring.memory() == before


@both_kinds
def test_waiting_for_a_duplicate_does_not_wait(kind: Kind) -> None:
    ring: GilRingBuffer[int] = kind(1)
    assert ring.add_waiting(1, 1) is True
    assert ring.add_waiting(1, 1) is False
    assert ring.add_waiting(0, 0) is False


@both_kinds
def test_an_abandoned_wait_takes_its_bell_down(kind: Kind) -> None:
    ring: GilRingBuffer[int] = kind(1)
    ring.add(1, 1)
    steps = ring.whole(ring.add_waiting_steps(2, 2))
    assert any(isinstance(step, Bell) for step in steps)
    assert bells(ring) == [(2, False)]
    steps.close()
    assert bells(ring) == []


# Against a model that is too simple to be wrong.

ACTIONS = st.lists(
    st.tuples(st.sampled_from(["add", "add", "add", "remove", "stable"]), st.integers(-2, 9)),
    max_size=80,
)


@both_kinds
@example(3, 0, False, [("add", 1), ("remove", -1)])
@given(st.integers(1, 5), st.integers(0, 7), st.booleans(), ACTIONS)
def test_it_agrees_with_a_dict(
    kind: Kind, capacity: int, offset: int, nullify: bool, actions: list[tuple[str, int]]
) -> None:
    ring: GilRingBuffer[int] = kind(capacity, offset=offset, nullify=nullify)
    consumer = ring.consumer()
    held: dict[int, int] = {}
    low = hd = hr = offset
    for action, number in actions:
        if action == "add":
            seqno = low + number
            expected = low < seqno <= low + capacity and seqno > hd and seqno not in held
            assert ring.add(seqno, seqno) is expected
            if expected:
                held[seqno] = seqno
                hr = max(hr, seqno)
        elif action == "remove":
            run: list[int] = []
            while len(run) < number and hd + 1 in held:
                hd += 1
                run.append(held[hd])
            assert consumer.remove_run(number) == run
            if nullify:
                low = hd
        else:
            stable = min(max(low, low + number), hd)
            assert consumer.stable(low + number) == stable - low
            low = stable
        held = {seqno: item for seqno, item in held.items() if seqno > low}
        gaps = [seqno for seqno in range(hd + 1, hr + 1) if seqno not in held]
        assert (ring.low, ring.hd, ring.hr) == (low, hd, hr)
        assert [seqno for gap in ring.missing(99) for seqno in gap] == gaps
        assert ring.size == hr - hd - len(gaps)
        assert [consumer.retained(s) for s in range(low, low + capacity + 2)] == [
            held.get(s) for s in range(low, low + capacity + 2)
        ]


# Under threads.


@pytest.fixture
def _hectic_scheduler() -> Iterator[None]:
    """Threads are interrupted as often as the interpreter can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def check_exactly_once_in_order(kind: Kind, capacity: int, elements: int, adders: int) -> None:
    ring: GilRingBuffer[int] = kind(capacity)
    removed, accepted = stress(ring, elements, adders)
    assert removed == list(range(1, elements + 1))
    assert accepted == elements
    assert pointers(ring) == (elements, elements, elements)
    assert bells(ring) == []


@pytest.mark.usefixtures("_hectic_scheduler")
@pytest.mark.parametrize(("capacity", "elements"), [(1024, 50_000), (7, 5_000), (1, 2_000)])
def test_threads_with_duplicates_deliver_exactly_once_in_order(
    capacity: int, elements: int
) -> None:
    check_exactly_once_in_order(GilRingBuffer, capacity, elements, adders=8)


@pytest.mark.usefixtures("_hectic_scheduler")
@pytest.mark.parametrize(("capacity", "elements"), [(1024, 20_000), (7, 2_000), (1, 1_000)])
def test_threads_behind_a_lock_deliver_exactly_once_in_order(capacity: int, elements: int) -> None:
    check_exactly_once_in_order(LockedRingBuffer, capacity, elements, adders=8)


@both_kinds
@pytest.mark.proof
@pytest.mark.usefixtures("_hectic_scheduler")
def test_a_million_elements_exactly_once_in_order(kind: Kind) -> None:
    check_exactly_once_in_order(kind, 1024, 1_000_000, adders=12)


# Which of the two it is.


@pytest.mark.parametrize("has_gil", [True, False])
def test_the_interpreter_decides(has_gil: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: has_gil, raising=False)
    chosen = run_path(str(threads.__file__))
    name = "GilRingBuffer" if has_gil else "LockedRingBuffer"
    assert chosen["RingBuffer"] is chosen[name]
    assert chosen["HAS_GIL"] is has_gil


def test_an_interpreter_that_does_not_say_has_a_gil(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys, "_is_gil_enabled", raising=False)
    assert run_path(str(threads.__file__))["HAS_GIL"]
    assert RingBuffer is (GilRingBuffer if HAS_GIL else LockedRingBuffer)


def test_who_sleeps_does_not_keep_the_lock_and_who_works_does() -> None:
    ring: LockedRingBuffer[int] = LockedRingBuffer(1)
    ring.add(1, 1)
    steps = ring.whole(ring.add_waiting_steps(2, 2))
    seen = [(step, ring.memory()["LOCK"]) for step in takewhile(is_awake, steps)]
    assert [is_held for _, is_held in seen] == [not isinstance(step, Event) for step, _ in seen]
    assert len(seen) > 1
    assert ring.memory()["LOCK"] is False  # it sleeps


def is_awake(step: str | Event) -> bool:
    return not isinstance(step, Bell)


def test_the_benchmark_measures_both() -> None:
    (figures,) = bench_ring(elements=2_000, adders=3)
    assert figures.keys() == {"elements", "adders", "ns_per_element", "comparison_ns", "ratio"}
    assert float(str(figures["ns_per_element"])) > 0
