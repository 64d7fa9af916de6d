"""What a datagram costs a receiver does not grow with the number of open gaps."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

import pytest

from ringcast.config import MulticastConfig, UnicastConfig
from ringcast.core.effects import Effects
from ringcast.core.shared import Deadlines
from ringcast.model import Address, Conn, Member, Origin, Stream
from ringcast.protocols.multicast_receiver import MulticastReceiver
from ringcast.protocols.unicast_receiver import UnicastReceiver
from ringcast.wire.frames import Data, Nack, UnicastData, UnicastNack
from support.steps import steps

if TYPE_CHECKING:
    from collections.abc import Callable

A = Member(Address("127.0.0.1", 7800), 1, "A")
CAPACITY = 1 << 16
MANY_BYTES = 1 << 30
APART = 10_000
"""Nanoseconds between two datagrams."""


class Receiver(Protocol):
    """An end that takes runs and asks for what is missing."""

    out: Effects
    now: int

    def data(self, seqno: int) -> None: ...

    def turn(self) -> None: ...


class Multicast:
    def __init__(self) -> None:
        config = MulticastConfig(capacity=CAPACITY, window_bytes=MANY_BYTES)
        timers = Deadlines().owner("received")
        self.box = MulticastReceiver(Origin(A, Stream.FIFO), config, 0, timers)
        self.out = Effects()
        self.now = 0

    def data(self, seqno: int) -> None:
        self.box.on_data(Data(Stream.FIFO, seqno, [b"x"]), self.now, 0, self.out)

    def turn(self) -> None:
        self.box.handle_timeout(self.now, 0, self.out)


class Unicast:
    def __init__(self) -> None:
        config = UnicastConfig(capacity=CAPACITY, window_bytes=MANY_BYTES)
        timers = Deadlines().owner("from")
        self.entry = UnicastReceiver(A, Conn(1, 1), config, 1 << 20, 0, (), 0, timers)
        self.out = Effects()
        self.now = 0

    def data(self, seqno: int) -> None:
        self.entry.on_data(UnicastData(self.entry.conn, seqno, [b"x"]), self.now)

    def turn(self) -> None:
        self.entry.handle_timeout(self.now, 0, self.out)


RECEIVERS = pytest.mark.parametrize("receiver", [Multicast, Unicast])


def with_gaps(receiver: type[Multicast | Unicast], count: int) -> Multicast | Unicast:
    """So many single messages are missing, and nothing is answered."""
    r = receiver()
    r.data(1)
    for seqno in range(3, 2 * count + 2, 2):
        r.now += APART
        r.data(seqno)
        r.turn()
    return r


def next_datagrams(r: Receiver, gaps: int) -> None:
    """Each shows another gap."""
    for seqno in range(2 * gaps + 3, 2 * gaps + 203, 2):
        r.now += APART
        r.data(seqno)
        r.turn()


def late_datagrams(r: Receiver, gaps: int) -> None:
    """They close the last gaps of all, which nobody asked for."""
    for seqno in range(2 * gaps, 2 * gaps - 200, -2):
        r.now += APART
        r.data(seqno)
        r.turn()


def answers(r: Receiver, gaps: int) -> None:
    """Every second is lost: those are asked for again, and others for the first time."""
    for seqno in range(2, 402, 4):
        r.now += APART
        r.data(seqno)
        r.turn()


@RECEIVERS
@pytest.mark.parametrize("act", [next_datagrams, late_datagrams, answers])
def test_many_gaps_do_not_make_a_datagram_cost_more(
    receiver: type[Multicast | Unicast], act: Callable[[Receiver, int], None]
) -> None:
    few, many = (steps(partial(act, with_gaps(receiver, gaps), gaps)) for gaps in (1_000, 16_000))
    assert many <= 2 * few, f"{few / 100:.0f} steps at 1000 gaps, {many / 100:.0f} at 16 000"


@RECEIVERS
def test_gaps_that_are_proved_in_one_turn_leave_in_one_request(
    receiver: type[Multicast | Unicast],
) -> None:
    r = receiver()
    r.data(1)
    for seqno in range(3, 203, 2):
        r.data(seqno)
    r.turn()
    (nack,) = (frame for _, frame in r.out.frames if isinstance(frame, Nack | UnicastNack))
    assert nack.missing == [range(seqno, seqno + 1) for seqno in range(2, 196, 2)]
