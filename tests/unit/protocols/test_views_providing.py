"""Provider: how far a state is given ahead of its taker, and when it is given no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ringcast.core.effects import Effects
from ringcast.errors import UsageError
from ringcast.events import StateAbandoned, StateWanted, StateWritable
from ringcast.model import Address, Digest, Member, View, ViewId
from ringcast.protocols.views.providing import CHUNK_BYTES_MAX, CHUNK_OVERHEAD, WINDOW, Provider
from ringcast.wire.frames import (
    StateAck,
    StateBegin,
    StateCancel,
    StateData,
    StateEnd,
    StateRefused,
)

if TYPE_CHECKING:
    from ringcast.events import Event
    from ringcast.wire.frames import SystemMessage

A, B, C = (Member(Address("h", n), 1, name) for n, name in enumerate("ABC", 1))
CUT = Digest({})
NOTHING: list[object] = []


class Giving:
    """A gives its state to B, cut at view 7."""

    def __init__(self) -> None:
        self.provider = Provider()
        self.out = Effects()
        self.cut(B, 7)

    def cut(self, taker: Member, counter: int) -> list[Event]:
        return self.provider.cut_at(taker, CUT, counter, 0, self.out)

    def provide(self, number: int, *chunks: bytes, is_last: bool = False) -> int:
        accepted = self.provider.provide(number, chunks, self.out, is_last=is_last)
        self.provider.check_invariants()
        return accepted

    def ack(self, taken: int, source: Member = B, number: int = 1) -> list[Event]:
        self.provider.on_state_ack(source, StateAck(number, taken), self.out)
        return self.told()

    def told(self) -> list[Event]:
        events = list(self.out.events)
        self.out.events.clear()
        return events

    def said(self) -> list[tuple[Member, SystemMessage]]:
        messages, self.out.messages = self.out.messages, []
        return messages


def test_chunks_follow_in_order_and_then_their_number() -> None:
    g = Giving()
    assert g.provide(1, b"one", b"two", is_last=True) == 2
    assert g.said() == [
        (B, StateBegin(1, 7, CUT)),
        (B, StateData(1, 0, b"one")),
        (B, StateData(1, 1, b"two")),
        (B, StateEnd(1, 2)),
    ]
    assert g.ack(2 * CHUNK_OVERHEAD + 6) == NOTHING
    assert g.provider.transfers == {}


@pytest.mark.parametrize("size", [0, 1000, CHUNK_BYTES_MAX])
def test_a_large_state_is_ahead_by_a_window_and_the_chunk_that_passes_it(size: int) -> None:
    g = Giving()
    most = -(-WINDOW // (size + CHUNK_OVERHEAD))
    assert g.provide(1, *[bytes(size)] * (most + 5)) == most
    assert g.provide(1, b"x", is_last=True) == 0  # and is not complete by that
    assert g.ack(most * (size + CHUNK_OVERHEAD) - WINDOW) == NOTHING
    assert g.ack(most * (size + CHUNK_OVERHEAD) - WINDOW + 1) == [StateWritable(1)]
    assert g.provide(1, b"x") == 1
    assert g.provider.stats()["ignored"] == 0


def test_whoever_is_given_a_state_anew_gets_no_more_of_the_one_before() -> None:
    g = Giving()
    assert g.cut(B, 8) == [StateAbandoned(1, "B begins anew"), StateWanted(2, B)]
    assert g.cut(C, 8) == [StateWanted(3, C)]
    assert g.provide(1, b"x") == 0  # who provides it may not have heard yet
    assert [g.provide(number, b"x") for number in (2, 3)] == [1, 1]


def test_who_gets_it_elsewhere_or_is_gone_or_stays_alone_needs_no_more() -> None:
    g = Giving()
    g.cut(C, 8)
    for stop in (StateCancel(8), StateCancel(7)):
        g.provider.on_stop(B, stop, g.out)
    assert g.told() == [StateAbandoned(1, "B gets it from somebody else")]
    g.provider.on_stop(B, StateCancel(7), g.out)
    assert g.provider.ignored == 2
    g.provider.set_members(View(ViewId(A, 9), (A, C)), g.out)
    assert g.told() == NOTHING
    g.provider.set_members(View(ViewId(A, 10), (A, B)), g.out)
    assert g.told() == [StateAbandoned(2, "C is gone")]
    g.cut(B, 11)
    g.provide(3, is_last=True)
    g.provider.close("left", g.out)
    assert g.told() == NOTHING  # all of it was given


def test_who_cannot_give_it_says_so_once() -> None:
    g = Giving()
    g.said()
    for _ in range(2):
        g.provider.give_up(1, g.out)
    assert g.said() == [(B, StateRefused(7))]
    assert g.provide(1, b"x") == 0


def test_acks_that_cannot_be_meant_are_ignored() -> None:
    g = Giving()
    g.provide(1, b"one")
    for taken, source, number in ((CHUNK_OVERHEAD + 4, B, 1), (1, C, 1), (1, B, 2)):
        assert g.ack(taken, source, number) == NOTHING
    assert g.provider.ignored == 3
    assert g.ack(CHUNK_OVERHEAD + 3) == NOTHING  # it may be more


def test_chunks_that_cannot_be_right_are_refused() -> None:
    g = Giving()
    with pytest.raises(UsageError, match="chunks of a state are bytes, not str"):
        g.provide(1, "text")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a chunk of a state has 1048577 bytes"):
        g.provide(1, bytes(CHUNK_BYTES_MAX + 1))
    for number in (0, 2):
        with pytest.raises(UsageError, match=f"there is no state transfer {number}"):
            g.provide(number, b"x")
    g.provide(1, is_last=True)
    with pytest.raises(UsageError, match="state transfer 1 has been provided to its end"):
        g.provide(1, b"x")


def test_what_waits_is_explained() -> None:
    g = Giving()
    g.provide(1, bytes(100))
    assert g.provider.explain(2_000_000_000) == [
        "B gets the state from here for 2.0 s: 100 bytes so far"
    ]
    g.provide(1, is_last=True)
    (why,) = g.provider.explain(0)
    assert why.endswith("its application has yet to take them")
    assert g.provider.stats()["transfers"] == {
        1: {"to": "B", "chunks": 1, "bytes": 100, "untaken": 100 + CHUNK_OVERHEAD}
    }
