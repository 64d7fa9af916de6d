"""What strangers cost a member at the most, and that no bound hides a loss."""

from __future__ import annotations

from ringcast.config import UnicastConfig
from ringcast.core.effects import Effects
from ringcast.events import Delivered, GapSkipped
from ringcast.model import Address, Conn, Member, View, ViewId
from ringcast.protocols.unicast import REPLACED_MAX, ReliableUnicast
from ringcast.protocols.unicast_receiving import (
    SYNC_REQUESTS_MAX,
    TOMBSTONES_MAX,
    WINDOWS_MAX,
)
from ringcast.wire.frames import Close, SyncOk, UnicastData

A, B = (Member(Address("127.0.0.1", 7800 + n), n, name) for n, name in enumerate("AB", 1))
TAU = 500_000_000
ONE, TWO = Conn(2, 1), Conn(2, 2)


def stranger(n: int) -> Member:
    return Member(Address("127.0.0.2", 1000 + n), n, f"s{n}")


def machine(
    *members: Member, capacity: int = 8, max_message_bytes: int = 10_000
) -> ReliableUnicast:
    layer = ReliableUnicast(
        A,
        UnicastConfig(capacity=capacity, window_bytes=1 << 16),
        fragment_bytes=900,
        datagram_bytes=1000,
        max_message_bytes=max_message_bytes,
    )
    layer.group.change(View(ViewId(A, 1), (A, *members)), [layer], 0, Effects())
    return layer


def acquaint(layer: ReliableUnicast, who: Member) -> None:
    """It has begun a stream while it was in the view, and is in it no more."""
    before = layer.group.view
    assert before is not None
    layer.group.view = View(before.id, (*before.members, who))
    layer.receive(who, [UnicastData(Conn(1, 1), 1, [b"x"])], 0, Effects())
    layer.drop_from(who)
    layer.group.view = before


def opening(first: int = 1, *payloads: bytes, more: bool = False) -> UnicastData:
    return UnicastData(ONE, first, list(payloads) or [b"x"], more=more)


def filled_with_strangers(layer: ReliableUnicast) -> ReliableUnicast:
    for n in range(WINDOWS_MAX):
        acquaint(layer, stranger(n))
        layer.receive(stranger(n), [opening()], 0, Effects())
    assert len(layer.receivers) == WINDOWS_MAX
    assert layer.refused == 0
    return layer


def test_strangers_open_only_so_many_windows() -> None:
    layer = filled_with_strangers(machine(B))
    acquaint(layer, stranger(WINDOWS_MAX))
    layer.receive(stranger(WINDOWS_MAX), [opening()], 0, Effects())
    assert len(layer.receivers) == WINDOWS_MAX
    assert layer.refused == 1


def test_strangers_keep_no_member_out() -> None:
    layer = filled_with_strangers(machine(B))
    layer.receive(B, [opening()], 0, Effects())
    assert B in layer.receivers


def test_who_has_a_window_may_begin_a_new_stream() -> None:
    layer = filled_with_strangers(machine(B))
    layer.receive(stranger(0), [UnicastData(Conn(9, 1), 1, [b"x"])], 0, Effects())
    assert layer.receivers[stranger(0)].conn == Conn(9, 1)


def test_the_answer_to_a_question_opens_no_window_beyond_the_bound() -> None:
    layer, late = machine(B), stranger(WINDOWS_MAX)
    acquaint(layer, late)
    layer.receive(late, [opening(2)], 0, Effects())
    layer.handle_timeout(TAU, Effects())
    filled_with_strangers(layer)
    layer.receive(late, [SyncOk(TWO, 1, 0, 2, False)], TAU, Effects())
    assert late not in layer.receivers
    assert layer.refused == 1
    layer.drop_from(stranger(0))
    layer.receive(late, [SyncOk(TWO, 1, 0, 2, False)], TAU, Effects())
    assert layer.receivers[late].conn == TWO


def test_strangers_questions_keep_no_member_from_asking() -> None:
    layer = machine(B)
    for n in range(SYNC_REQUESTS_MAX + 1):
        acquaint(layer, stranger(n))
        layer.receive(stranger(n), [opening(2)], 0, Effects())
    assert len(layer.sync_requests) == SYNC_REQUESTS_MAX
    layer.receive(B, [opening(2)], 0, Effects())
    assert B in layer.sync_requests


def test_empty_fragments_in_tombstones_are_bounded() -> None:
    """They have no bytes, but each takes a place."""
    layer = machine(B, max_message_bytes=6400)
    for n in range(100):
        acquaint(layer, stranger(n))
        layer.receive(stranger(n), [opening(1, *[b""] * 8, more=True)], 0, Effects())
        layer.take_ready(8, 0, Effects())
        layer.receive(stranger(n), [Close(ONE)], 0, Effects())
    assert len(layer.tombstones) == 100 < TOMBSTONES_MAX
    kept = sum(len(tomb.parts or ()) for tomb in layer.tombstones.values())
    assert kept == 96
    assert layer.tombstones[stranger(87)].parts is None
    assert layer.tombstones[stranger(88)].parts == (b"",) * 8


def test_every_message_that_is_given_up_is_told_of() -> None:
    """However many there are in one take."""
    layer = machine(B, capacity=256, max_message_bytes=100)
    for first in range(1, 256, 2):
        layer.receive(B, [opening(first, bytes(60), more=True)], 0, Effects())
        layer.receive(B, [opening(first + 1, bytes(60))], 0, Effects())
    events = layer.take_ready(256, 0, Effects())
    told = [event.first for event in events if isinstance(event, GapSkipped)]
    assert told == list(range(2, 257, 2))
    layer.receive(B, [opening(257, b"next")], 0, Effects())
    (event,) = layer.take_ready(1, 0, Effects())
    assert isinstance(event, Delivered)  # and nothing is told of twice


def test_only_so_many_replaced_members_are_remembered() -> None:
    layer = machine(B)
    for n in range(REPLACED_MAX + 2):
        again = Member(B.address, 100 + n, "B")
        layer.group.change(View(ViewId(A, 2 + n), (A, again)), [layer], 0, Effects())
    layer.receive(Member(B.address, 100 + REPLACED_MAX, "B"), [opening()], 0, Effects())
    assert layer.receivers == {}
    acquaint(layer, B)
    layer.receive(B, [opening()], 0, Effects())
    assert list(layer.receivers) == [B]
