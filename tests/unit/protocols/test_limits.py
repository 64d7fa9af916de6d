"""A window that fits the path: when it is doubled, and when it is not."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from ringcast.config import GROWN_CAPACITY, DefaultSize, MulticastConfig
from ringcast.model import Address, Member, View, ViewId
from ringcast.protocols.limits import REST_ROUNDS, Limits
from ringcast.window.send import SendWindow

A, B, C = (Member(Address("127.0.0.1", 7800 + n), n, name) for n, name in enumerate("ABC", 1))
MS = 1_000_000
BASE = 2000
"""Bytes that may be under way by configuration."""


def view(*members: Member, counter: int = 1) -> View:
    return View(ViewId(A, counter), (A, *members))


class Path:
    """A sender that always waits for room; all deliver what it has out at once, so often."""

    def __init__(self, *others: Member, kind: type[Limits] = Limits, **config: Any) -> None:
        given = {"capacity": DefaultSize(1000), "datagram_bytes": 1000, "window_bytes": 2 * BASE}
        self.config = MulticastConfig(**(given | config))
        self.window = SendWindow(
            self.config.capacity,
            capacity_max=self.config.grown_capacity,
            max_bytes=self.config.in_flight_bytes,
            datagram_bytes=1000,
        )
        members = view(*(others or (B,)))
        self.limits = kind(A, self.window, self.config, members, None, is_acked=True)
        self.now = 0
        self.delay_ns, self.per_byte_ns = 100 * MS, 0
        self.most_at_once = 0

    def tell(self, member: Member, widest: int) -> None:
        self.limits.widest[member] = widest
        self.limits.apply()

    def rounds(self, count: int, *, pieces: int = 1) -> int:
        """How many bytes may be out after so many, each purged in so many pieces."""
        window = self.window
        for _ in range(count):
            self.fill()
            high, size = window.high, window.high - window.low
            window.take_ready(1 << 20)
            self.now += self.delay_ns + self.per_byte_ns * window.charged
            for piece in range(1, pieces + 1):
                window.purge(high - size + size * piece // pieces)
                if window.low >= self.limits.look_at:
                    self.limits.on_purge(self.now)
                before = window.high
                self.fill()
                self.most_at_once = max(self.most_at_once, window.high - before)
                window.check_invariants()
        return window.max_bytes

    def fill(self) -> None:
        while self.window.append_run([bytes(1000)]):
            pass


def told(**config: Any) -> Path:
    path = Path(**config)
    path.tell(B, 1 << 20)
    return path


def test_a_window_is_doubled_while_rounds_take_no_longer() -> None:
    path = told()
    sizes = [path.rounds(1) for _ in range(12)]
    assert sizes[:6] == [2000, 2000, 4000, 4000, 4000, 8000]
    assert path.rounds(60) == path.config.grown_bytes == 8 * BASE
    assert path.window.limit == GROWN_CAPACITY
    assert "widened, for messages take 100 ms" in path.limits.explain()


def test_a_capacity_that_was_set_stays() -> None:
    path = told(capacity=1000)
    assert path.rounds(50) == BASE
    assert (path.window.limit, path.limits.explain(), path.limits.stats()) == (1000, "", {})


def test_on_one_machine_windows_stay() -> None:
    assert told(bulk_bytes=1 << 14).rounds(50) == BASE


def test_no_window_is_wider_than_every_receiver_has_memory_for() -> None:
    path = Path(B, C)
    path.tell(B, 1 << 20)
    assert path.rounds(50) == BASE
    assert path.window.limit == path.config.capacity
    assert "no wider: C has not told of memory for more" in path.limits.explain()
    path.tell(C, 5000)
    assert max(path.rounds(1) for _ in range(100)) == 5000


def test_what_brings_no_more_through_is_taken_back() -> None:
    """Where each byte takes its time, twice as many take twice as long."""
    path = told()
    path.delay_ns, path.per_byte_ns = 0, 10_000
    sizes = [path.rounds(1) for _ in range(400)]
    assert (max(sizes), sizes[-1]) == (2 * BASE, BASE)
    # From trial to trial the pause doubles.
    trials = [n for n, pair in enumerate(pairwise(sizes)) if pair == (BASE, 2 * BASE)]
    assert [later - sooner for sooner, later in pairwise(trials)] == [
        pytest.approx(REST_ROUNDS, abs=5),
        pytest.approx(2 * REST_ROUNDS, abs=5),
        pytest.approx(4 * REST_ROUNDS, abs=5),
    ]


def test_short_rounds_need_no_wider_window() -> None:
    path = told()
    path.delay_ns = MS
    assert path.rounds(100) == BASE


def test_a_loss_halves_the_window_and_never_below_its_base() -> None:
    path = told()
    assert path.rounds(60) == 8 * BASE
    path.fill()
    path.limits.on_loss(path.window.high)
    assert (path.window.max_bytes, path.window.limit) == (4 * BASE, GROWN_CAPACITY // 2)
    assert "lost" in path.limits.explain()
    path.limits.on_loss(path.window.high)  # asked for again, or by another receiver
    path.limits.on_loss(path.window.high + 1000)  # there is nothing beyond
    assert path.window.max_bytes == 4 * BASE
    for _ in range(9):
        path.rounds(2)
        path.limits.on_loss(path.window.high)
    assert (path.window.max_bytes, path.window.limit) == (BASE, path.config.capacity)


def test_after_a_loss_the_window_rests_and_then_tries_again() -> None:
    path = told()
    path.rounds(60)
    path.limits.on_loss(path.window.high)
    assert path.rounds(REST_ROUNDS - 2) == 4 * BASE
    assert path.rounds(5) == 8 * BASE


def test_a_window_widens_by_what_was_purged() -> None:
    """A burst is no longer than twice what an ack makes room for."""
    path = told(window_bytes=100_000)
    path.rounds(1)
    path.most_at_once = 0
    path.rounds(20, pieces=10)
    assert path.window.max_bytes == path.config.grown_bytes
    assert path.most_at_once <= 2 * (path.config.grown_bytes // 1000 // 2 // 10) + 2


def test_a_round_counts_only_while_a_sender_waits() -> None:
    path = told()
    path.rounds(2)
    for _ in range(50):
        path.rounds(1)
        path.limits.is_timed = False  # as a purge does while nobody waits
    assert path.window.max_bytes == BASE * 2  # it was being widened


def test_in_a_new_view_nothing_is_known() -> None:
    path = told()
    assert path.rounds(60) == 8 * BASE
    path.fill()
    path.limits.begin(view(B, counter=2))
    assert path.window.max_bytes == BASE
    assert path.window.is_full  # what is under way stays
    path.window.check_invariants()
    assert path.rounds(60) == BASE
    path.tell(B, 1 << 20)
    assert path.rounds(60) == 8 * BASE


class NeverJudges(Limits):
    """Whatever a round takes, twice as much has paid."""

    def _end_round(self, took: int) -> None:
        super()._end_round(100 * MS)


def test_without_judging_a_window_grows_where_that_helps_nobody() -> None:
    path = Path(kind=NeverJudges)
    path.tell(B, 1 << 20)
    path.delay_ns, path.per_byte_ns = 0, 10_000
    assert path.rounds(60) == 8 * BASE
