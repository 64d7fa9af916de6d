"""What a joiner keeps: in order, bounded, and without what is in the state."""

from __future__ import annotations

from ringcast.events import Delivered, FragmentsDelivered, StateWanted
from ringcast.model import Address, Member, Origin, Run, Stream, View, ViewId
from ringcast.protocols.views.catch_up import MESSAGE_OVERHEAD, CatchUp

A, B, C = (Member(Address("h", n), n, name) for n, name in enumerate("ABC", 1))
V1 = ViewId(A, 1)
ALL = View(V1, (A, B, C))
RETAINED = frozenset({Stream.FIFO, Stream.UNIFORM})
"""Streams on which messages of the departed still come, where plain ones are retained, too."""


def of(member: Member) -> Origin:
    return Origin(member, Stream.FIFO)


def run(sender: Member, first: int, *payloads: bytes, epoch: int = 0) -> Delivered:
    return Delivered(sender, Run(Stream.FIFO, first, list(payloads)), V1, epoch)


def fragments(sender: Member, first: int, last: int) -> FragmentsDelivered:
    return FragmentsDelivered(sender, Stream.FIFO, first, last, V1)


def origins(**opened: int) -> dict[Origin, int]:
    members = {"a": A, "b": B, "c": C}
    return {of(members[name]): n for name, n in opened.items()}


def buffer(max_bytes: int = 10_000, **opened: int) -> CatchUp:
    return CatchUp(origins(**opened), max_bytes, 100)


def retaining(**opened: int) -> CatchUp:
    return CatchUp(origins(**opened), 10_000, 100, inherited=RETAINED)


def test_what_is_kept_comes_out_in_order_and_by_the_piece() -> None:
    kept = buffer(a=0)
    kept.keep([run(A, 1, b"1", b"2", b"3"), fragments(B, 5, 6), run(B, 7, b"big")])
    assert kept.accepted == {of(A): 3, of(B): 7}
    assert kept.opened == {of(A): 0, of(B): 4}
    kept.append(StateWanted(1, C))
    assert kept.take(0) == []
    assert kept.take(2) == [run(A, 1, b"1", b"2")]
    assert kept.size == 3 * MESSAGE_OVERHEAD + 1 + MESSAGE_OVERHEAD + 3
    assert kept.take(1) == [run(A, 3, b"3"), fragments(B, 5, 6)]
    assert kept.take(9) == [run(B, 7, b"big"), StateWanted(1, C)]
    assert (len(kept), kept.size) == (0, 0)


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
    kept.keep([fragments(A, 7, 7)])
    kept.depart(View(V1, (B,)))
    assert kept.room == (1000 - 4 * MESSAGE_OVERHEAD - 550) // (100 + MESSAGE_OVERHEAD)
    assert buffer(0).room == 0


def test_what_is_in_the_state_is_left_out_now_and_later() -> None:
    kept = buffer(a=10, b=20, c=30)
    kept.keep([run(A, 11, b"11", b"12"), run(B, 21, b"21"), fragments(C, 31, 33), run(C, 34, b"")])
    assert kept.cut({of(A): 11, of(B): 25, of(C): 32}, ALL) == []
    assert kept.take(9) == [run(A, 12, b"12"), fragments(C, 33, 33), run(C, 34, b"")]
    assert kept.skips == {of(B): 25}
    coming = [run(B, 22, b"22", b"23"), run(A, 13, b"13"), run(B, 3, b"mine", epoch=2)]
    assert kept.sift(coming) == coming[1:]
    assert kept.skips
    assert kept.sift([fragments(B, 24, 24), run(B, 25, b"25", b"26")]) == [run(B, 26, b"26")]
    assert kept.skips == {}
    assert kept.sift([run(B, 27, b"27")]) == [run(B, 27, b"27")]


def test_a_skip_ends_also_where_the_next_window_begins_behind_it() -> None:
    kept = buffer(a=0)
    kept.cut({of(A): 5}, ALL)
    assert kept.sift([run(A, 8, b"8")]) == [run(A, 8, b"8")]
    assert kept.skips == {}


def test_whoever_has_departed_has_nothing_more_to_come() -> None:
    kept = buffer(a=0, b=0)
    kept.cut({of(A): 5, of(B): 5, of(C): 5}, View(V1, (A, B)))
    assert kept.skips == {of(A): 5, of(B): 5}
    kept.depart(View(V1, (A,)))
    assert kept.skips == {of(A): 5}


def test_what_does_not_follow_on_the_state_is_left_out() -> None:
    kept = buffer(a=10, b=10, c=10)
    kept.keep([run(A, 11, b"a11"), run(B, 11, b"b11"), run(C, 11, b"c11", b"c12")])
    kept.depart(View(V1, (A,)))
    assert kept.cut({of(A): 10, of(B): 9, of(C): 11}, View(V1, (A,))) == [of(B)]
    assert kept.take(9) == [run(A, 11, b"a11"), run(C, 12, b"c12")]


def test_of_whom_the_state_knows_nothing_only_a_beginning_follows_on_it() -> None:
    kept = buffer(b=0, c=10)
    kept.keep([run(B, 1, b"b1"), run(C, 11, b"c11")])
    kept.depart(View(V1, (A,)))
    assert kept.cut({}, View(V1, (A,))) == [of(C)]
    assert kept.take(9) == [run(B, 1, b"b1")]


def test_who_came_and_went_while_the_state_was_on_its_way_is_kept() -> None:
    kept = buffer(a=0)
    kept.keep([run(B, 1, b"b1"), run(C, 14, b"c14")])  # B is a joiner, C was in another group
    kept.depart(View(V1, (A,)))
    kept.keep([run(C, 21, b"c21")])  # and comes back
    kept.depart(View(V1, (A,)))
    assert kept.cut({of(A): 0}, View(V1, (A,))) == []
    assert kept.take(9) == [run(B, 1, b"b1"), run(C, 14, b"c14"), run(C, 21, b"c21")]


def test_who_came_later_and_whom_the_provider_had_before_must_follow_all_the_same() -> None:
    kept = buffer(a=0)
    kept.keep([run(C, 14, b"c14")])
    kept.depart(View(V1, (A,)))
    assert kept.cut({of(C): 12}, View(V1, (A,))) == [of(C)]
    assert kept.take(9) == []


def test_only_what_came_before_the_departure_is_left_out_then() -> None:
    kept = buffer(b=10)
    kept.keep([run(B, 11, b"11")])
    kept.depart(View(V1, (A,)))
    kept.keep([run(B, 15, b"15")])  # it has come back
    kept.depart(View(V1, (A,)))
    assert kept.cut({of(B): 9}, View(V1, (A,))) == [of(B)]
    assert kept.take(9) == [run(B, 15, b"15")]


def test_who_is_forgotten_leaves_nothing() -> None:
    kept = buffer(a=0)
    kept.keep([run(B, 1, b"b1"), run(C, 1, b"c1")])
    kept.depart(View(V1, (A, C)))
    kept.forget(of(B))
    kept.forget(of(C))  # it has not departed
    assert kept.opened.keys() == kept.accepted.keys() == {of(A), of(C)}
    assert kept.ends == {}
    assert kept.take(9) == [run(C, 1, b"c1")]
    assert kept.size == 0


# Where plain messages are retained


def test_what_is_taken_over_after_the_state_has_come_may_be_in_it() -> None:
    """The sender departs, the state comes, then what was taken over."""
    kept = retaining(c=0)
    kept.keep([run(C, 1, b"1")])
    kept.depart(View(V1, (A, B)))
    assert kept.cut({of(C): 3}, View(V1, (A, B))) == []
    assert kept.take(9) == []
    assert kept.sift([run(C, 2, b"2", b"3", b"4")]) == [run(C, 4, b"4")]


def test_what_is_in_the_state_is_left_out_also_after_its_sender_has_departed() -> None:
    """The state comes, the sender departs, then what was taken over."""
    kept = retaining(c=0)
    kept.keep([run(C, 1, b"1")])
    assert kept.cut({of(C): 3}, ALL) == []
    kept.depart(View(V1, (A, B)))
    assert kept.sift([run(C, 2, b"2", b"3", b"4")]) == [run(C, 4, b"4")]


def test_what_does_not_follow_on_the_state_is_left_out_to_its_very_end() -> None:
    """With what was taken over after its sender had departed."""
    kept = retaining(c=2)
    kept.keep([run(C, 3, b"3")])
    kept.depart(View(V1, (A, B)))
    kept.keep([run(C, 4, b"4")])
    assert kept.cut({of(C): 1}, View(V1, (A, B))) == [of(C)]
    assert kept.take(9) == []
