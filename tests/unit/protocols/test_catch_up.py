"""What a joiner keeps while its state is on its way: in order, and bounded."""

from __future__ import annotations

import pytest

from ringcast.events import Delivered, FragmentsDelivered, StateWanted, ViewInstalled
from ringcast.model import Address, Member, Run, Stream, View, ViewId
from ringcast.protocols.views.taking import MESSAGE_OVERHEAD, CatchUp

A, B, C = (Member(Address("h", n), n, name) for n, name in enumerate("ABC", 1))
V1 = ViewId(A, 1)


def run(sender: Member, first: int, *payloads: bytes, epoch: int = 0) -> Delivered:
    return Delivered(sender, Run(Stream.FIFO, first, list(payloads)), V1, epoch)


def fragments(sender: Member, first: int, last: int) -> FragmentsDelivered:
    return FragmentsDelivered(sender, Stream.FIFO, first, last, V1)


def buffer(max_bytes: int = 10_000) -> CatchUp:
    return CatchUp(max_bytes, 100)


def test_what_is_kept_comes_out_in_order_and_by_the_piece() -> None:
    kept = buffer()
    wanted = StateWanted(1, C)
    kept.keep([run(A, 1, b"1", b"2", b"3"), fragments(B, 5, 6), run(B, 7, b"big"), wanted])
    assert kept.take(0) == []
    assert kept.take(2) == [run(A, 1, b"1", b"2")]
    assert kept.size == 4 * MESSAGE_OVERHEAD + 1 + 3
    assert kept.take(1) == [run(A, 3, b"3"), fragments(B, 5, 6)]
    assert kept.take(9) == [run(B, 7, b"big"), wanted]
    assert (len(kept), kept.size) == (0, 0)


def test_messages_that_another_state_will_have_are_dropped_and_events_are_not() -> None:
    kept = buffer()
    installed = ViewInstalled(View(V1, (A, B, C)))
    kept.keep([run(A, 1, b"1"), installed, fragments(B, 1, 2)])
    kept.drop_messages()
    assert (len(kept), kept.size) == (1, MESSAGE_OVERHEAD)
    assert kept.room == (10_000 - MESSAGE_OVERHEAD) // (100 + MESSAGE_OVERHEAD)
    assert kept.take(9) == [installed]


def test_room_is_for_the_largest_there_may_be() -> None:
    cost = 100 + MESSAGE_OVERHEAD
    kept = buffer(3 * cost)
    assert kept.room == 3
    kept.keep([run(A, 1, bytes(100))])
    assert kept.room == 2
    kept.keep([run(A, 2, b"")])
    assert kept.room == 1
    kept.keep([run(A, 3, bytes(100))])
    assert kept.room == 0


def test_parts_of_a_message_that_is_not_whole_take_room_too() -> None:
    kept = buffer(1000)
    kept.keep([fragments(A, 1, 3)])
    assert kept.room == (1000 - MESSAGE_OVERHEAD - 300) // (100 + MESSAGE_OVERHEAD)
    kept.keep([fragments(A, 4, 5)])
    assert kept.room == (1000 - 2 * MESSAGE_OVERHEAD - 500) // (100 + MESSAGE_OVERHEAD)
    kept.keep([run(A, 6, bytes(550))])
    assert kept.room == (1000 - 3 * MESSAGE_OVERHEAD - 550) // (100 + MESSAGE_OVERHEAD)
    assert buffer(0).room == 0


@pytest.mark.parametrize(
    ("members", "is_merge", "is_kept"),
    [((A, B), False, True), ((B, C), False, False), ((A, B, C), True, False)],
    ids=["stays", "departs", "somebody comes"],
)
def test_what_never_becomes_whole_or_starts_over_takes_no_room(
    members: tuple[Member, ...], is_merge: bool, is_kept: bool
) -> None:
    kept = buffer(1000)
    view = View(ViewId(B, 2), members)
    parts = (View(V1, members[:2]), View(V1, members[2:])) if is_merge else ()
    kept.keep([fragments(A, 1, 3), ViewInstalled(view, parts)])
    used = 2 * MESSAGE_OVERHEAD + 300 * is_kept
    assert kept.room == (1000 - used) // (100 + MESSAGE_OVERHEAD)
