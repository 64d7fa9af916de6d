"""Gathering: messages to the group that are sent one at a time, and leave as one run.

`await group.send(b)` is what people write, and a run of one costs as much as a run of a thousand.
So a message that surely has a place in the window waits here, with others of the same turn of the
loop, by whatever task; to send it is to append it to a list. What has no place for sure goes the
longer way, which tells why.

All get their seqnos together, at the end of the turn, when they fill a datagram or a burst of small
    ones, and before each input of the node: any may take the room that they were promised.
What finds no room all the same is kept, for its sender believes it sent. It is offered again before
    each further input, and nothing that comes later goes before it: `add` refuses, and the longer
    way offers nothing. While the group has too few members it waits for more.
On flush and leave: these wait until nothing is kept; leaving, for a time.
On the end of this member: what is kept then is lost, and counted in Closed.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from ringcast.aio.gate import Gate
from ringcast.core.shared import Phase
from ringcast.errors import RingcastError
from ringcast.model import Stream
from ringcast.wire.bursts import BURST_BYTES_MAX

if TYPE_CHECKING:
    from ringcast.aio.driver import Driver
    from ringcast.wire.codec import Buffer


class Gathering:
    """Of one member, for plain messages."""

    __slots__ = ("_driver", "_gate", "_largest", "_room", "_room_bytes", "run")
    stream = Stream.FIFO

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.run: list[bytes] = []
        """What waits to be settled. Whoever looks here first saves a call."""
        self._room = self._room_bytes = 0  # for so many more messages, of so many bytes
        self._largest = 0
        self._gate: Gate | None = None  # where those wait who wait until nothing is kept

    def add(self, payload: Buffer) -> bool:
        """Whether it is sent; False: not here."""
        if type(payload) is not bytes:
            return False
        size = len(payload)
        if not self._room or size > self._room_bytes or size > self._largest:
            self._open()
            if not self._room or size > self._room_bytes or size > self._largest:
                self._room = 0  # it may be taken by what goes another way
                return False
        self._room -= 1
        self._room_bytes -= size
        self.run.append(payload)
        return True

    def settle(self) -> None:
        """All that was gathered gets its seqnos; what finds no room is kept."""
        if not self.run:
            return
        run, self.run = self.run, []
        self._room = 0
        try:
            accepted = self._driver.offer(run, Stream.FIFO, None)
        except RingcastError:  # too few members for now; or it is over, and that tells of them
            accepted = 0
        self.run = run[accepted:]
        if self._gate is not None:
            self._gate.open()

    async def until_settled(self, within_s: float | None = None) -> None:
        """Wait until nothing is kept, or it is lost; or for so long."""
        self.settle()
        if self.run:
            gate = self._gate = self._gate or Gate()
            with suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    while self.run:
                        await gate.wait()

    def stop(self, _: str) -> int:
        """It is over; how many messages are lost here."""
        self.settle()
        lost, self.run = len(self.run), []
        if self._gate is not None:
            self._gate.open()
        return lost

    def _open(self) -> None:
        """Another run: as much as there is room for, and leaves in one burst."""
        driver = self._driver
        if self.run:
            self.settle()
            driver.send_datagrams()
            if self.run:
                return
        self._room = 0
        node = driver.node
        sender, membership = node.multicast.senders.get(Stream.FIFO), node.membership
        is_in = membership is not None and membership.phase is Phase.MEMBER and driver.is_open
        if sender is not None and is_in and not sender.is_frozen and node.minimum.since is None:
            self._room, room_bytes, self._largest = sender.stream.room()
            self._largest = min(self._largest, node.config.multicast.max_message_bytes)
            size = driver.transport.datagram_bytes
            self._room_bytes = min(room_bytes, max(1, BURST_BYTES_MAX // size) * size)
            if not driver.is_turn_due:
                driver.end_turn_soon()
