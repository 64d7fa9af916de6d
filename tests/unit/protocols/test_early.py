"""What overtook the first message of a stream is bounded, for each peer and in all."""

from __future__ import annotations

import pytest

from ringcast.explore.abstraction import canonical
from ringcast.model import Address, Conn, Member
from ringcast.protocols.early import (
    ALL_BYTES_MAX,
    ALL_RUNS_MAX,
    BYTES_MAX,
    ITEM_BYTES,
    RUNS_MAX,
    STRANGER_BYTES_MAX,
    Early,
    Strangers,
)
from ringcast.window.assembler import PART_BYTES_MIN
from ringcast.wire.frames import UnicastData

ONE = Conn(2, 1)


def peer(n: int) -> Member:
    return Member(Address("127.0.0.1", 1000 + n), n, f"p{n}")


def run(first: int, *payloads: bytes, conn: Conn = ONE) -> UnicastData:
    return UnicastData(conn, first, list(payloads or (b"",)))


def filled(size: int, *, is_member: bool) -> Early:
    """As many runs of so many bytes as find room, of as many peers as it takes."""
    early = Early()
    for n in range(2 * ALL_RUNS_MAX // RUNS_MAX):
        for first in range(2, RUNS_MAX + 3):
            early.keep(peer(n), run(first, bytes(size)), is_member=is_member)
    early.check_invariants()
    return early


@pytest.mark.parametrize("size", [0, 60_000])
def test_one_peer_has_so_much_room(size: int) -> None:
    early = Early()
    kept = [early.keep(peer(1), run(n, bytes(size)), is_member=True) for n in range(2, 1000)]
    most = RUNS_MAX if not size else BYTES_MAX // (size + PART_BYTES_MIN)
    assert kept == [True] * most + [False] * (998 - most)
    early.check_invariants()


def test_empty_messages_count() -> None:
    early = Early()
    data = UnicastData.uncut(ONE, 2, 65_000, lambda: pytest.fail("it was cut"), more=False)
    assert not early.keep(peer(1), data, is_member=True)


@pytest.mark.parametrize("size", [0, 60_000])
def test_all_have_so_much_room_and_strangers_half_of_it(size: int) -> None:
    of_members, of_strangers = (filled(size, is_member=is_member) for is_member in (True, False))
    bound, used = (ALL_BYTES_MAX, "size") if size else (ALL_RUNS_MAX, "runs")
    slack = size + PART_BYTES_MIN if size else 0
    assert bound - slack <= getattr(of_members, used) <= bound
    assert bound // 2 - slack <= getattr(of_strangers, used) <= bound // 2
    assert of_strangers.keep(peer(999), run(2, bytes(size)), is_member=True)


def test_room_comes_back() -> None:
    early = filled(0, is_member=True)
    assert not early.keep(peer(999), run(2), is_member=True)
    early.forget(peer(1))
    assert early.keep(peer(999), run(2), is_member=True)
    early.clear()
    assert (early.runs, early.size, early.conns()) == (0, 0, {})


def test_a_run_is_kept_once_and_given_back_in_order() -> None:
    early = Early()
    assert early.keep(peer(1), run(3, b"3"), is_member=True)
    assert early.keep(peer(1), run(2, b"2"), is_member=True)
    assert not early.keep(peer(1), run(3, b"3"), is_member=True)
    assert early.take(peer(1), ONE) == [run(2, b"2"), run(3, b"3")]
    assert early.take(peer(1), ONE) == []


def test_an_older_connection_is_not_kept_beside_a_newer_one() -> None:
    early = Early()
    newer = Conn(3, 1)
    assert early.keep(peer(1), run(2), is_member=True)
    assert early.keep(peer(1), run(5, conn=newer), is_member=True)
    assert not early.keep(peer(1), run(3), is_member=True)
    assert early.conns() == {peer(1): newer}
    assert early.take(peer(1), ONE) == []  # what is newer stays
    assert early.runs == 1
    assert early.take(peer(1), Conn(4, 1)) == []  # what is older goes
    assert early.runs == 0


def test_the_order_in_which_runs_came_does_not_matter() -> None:
    one, other = Early(), Early()
    for early, firsts in ((one, (2, 3)), (other, (3, 2))):
        for first in firsts:
            early.keep(peer(1), run(first), is_member=True)
    assert canonical(one) == canonical(other)


# Strangers


def test_what_a_stranger_repeats_takes_no_more_room() -> None:
    """Else a message that it sends again and again keeps out what it sends next."""
    strangers = Strangers()
    size = ITEM_BYTES + PART_BYTES_MIN + 1
    for _ in range(2 * STRANGER_BYTES_MAX // size):
        strangers.keep(peer(1), run(1, b"a"), 0)
    assert (strangers.size, strangers.refused) == (size, 0)
    others = [run(2, b"b"), run(1, b"a", b"b"), run(1, b"c", conn=Conn(3, 1))]
    for data in others:
        strangers.keep(peer(1), data, 0)
    assert strangers.take(peer(1), 0) == [run(1, b"a"), *others]
