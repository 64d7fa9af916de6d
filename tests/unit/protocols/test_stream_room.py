"""The room that a stream promises: whatever fits it is accepted."""

from __future__ import annotations

from random import Random

import pytest

from ringcast.core.effects import Effects
from ringcast.model import Address, Conn, Member
from ringcast.protocols.stream import SendStream
from ringcast.window.send import SendWindow
from ringcast.wire.frames import UnicastData

PEER = Member(Address("127.0.0.1", 7801), 1, "B")


def stream(dice: Random) -> SendStream:
    size = dice.choice([512, 548, 767, 768, 800, 1472, 4096, 60_000])
    most = dice.choice([4 * size, 9 * size, 1 << 18, 1 << 21])
    capacity = dice.choice([1, 8, 64, 512])
    window = SendWindow(capacity, capacity_max=1024, max_bytes=most, datagram_bytes=size)
    window.limit = dice.choice([capacity, 1024])
    window.bulk_bytes = dice.choice([None, 1 << 14])
    largest = size - dice.choice([40, 60, 100])
    return SendStream(
        window,
        largest,
        PEER,
        lambda first, payloads, more: UnicastData(Conn(1, 1), first, payloads),
    )


def fitting(room: tuple[int, int, int], dice: Random) -> list[bytes]:
    """Messages that take all of it, or stop early."""
    count, size, largest = room
    run: list[bytes] = []
    while len(run) < min(count, 600) and dice.random() > 0.02:
        payload = bytes(dice.choice([0, 1, dice.randrange(100), dice.randrange(largest), largest]))
        if len(payload) > size:
            break
        size -= len(payload)
        run.append(payload)
    return run


@pytest.mark.parametrize("seed", range(8))
def test_what_fits_the_room_is_accepted(seed: int) -> None:
    dice, offered = Random(seed), 0
    for _ in range(200):
        sending, out = stream(dice), Effects()
        for _ in range(6):
            run = fitting(sending.room(), dice)
            if run:
                assert sending.send(run, 0, out) == len(run)
                offered += len(run)
            window = sending.window
            if dice.random() < 0.5 and window.high > window.delivered:
                window.take_ready(dice.randrange(1, window.high - window.delivered + 1))
                window.purge(window.delivered)
    assert offered > 1000


def test_nothing_is_promised_while_somebody_waits() -> None:
    sending = stream(Random(1))
    sending.block(0)
    assert sending.room() == (0, 0, 0)
