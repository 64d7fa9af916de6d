"""Gathering: messages to the group that are sent one at a time, and leave as one run.

`await group.send(b)` is what people write, and a run of one costs as much as a run of a thousand.
So a message that surely has a place in the window is kept here, with others of the same turn of
the loop, by whatever task; to send it is to append it to a list. All get their seqnos together, at
the end of the turn, when they fill a datagram, and before anything else is asked of the node: so
nothing that happens in between can take the room that they were promised, and order is as it was
sent. What has no place for sure goes the longer way, which tells why. A run ends where messages
with headers follow others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.core.shared import Phase
from ringcast.model import Headed, Stream

if TYPE_CHECKING:
    from ringcast.aio.driver import Driver
    from ringcast.wire.codec import Buffer


class Gathering:
    """Of one member, for plain messages."""

    __slots__ = ("_driver", "_kind", "_largest", "_room", "_room_bytes", "run")

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.run: list[bytes] = []
        """What waits to be settled. Whoever looks here first saves a call."""
        self._room = self._room_bytes = 0  # for so many more messages, of so many bytes
        self._largest = 0
        self._kind: type[bytes] = bytes  # of the messages in the run

    def add(self, payload: Buffer) -> bool:
        """Whether it is sent; False: not here."""
        if type(payload) is not self._kind and not self._turn_to(type(payload)):
            return False
        size = len(payload)
        if not self._room or size > self._room_bytes or size > self._largest:
            self._open()
            if not self._room or size > self._room_bytes or size > self._largest:
                self._room = 0  # it may be taken by what goes another way
                return False
        self._room -= 1
        self._room_bytes -= size
        self.run.append(payload)  # type: ignore[arg-type]
        return True

    def settle(self) -> None:
        """All that was gathered gets its seqnos."""
        if self.run:
            run, self.run = self.run, []
            self._room = 0
            accepted = self._driver.send(run, Stream.FIFO, None)
            assert accepted == len(run), "there was room"

    def _turn_to(self, kind: type) -> bool:
        """The next run is of such messages; False: not here."""
        if kind is not bytes and kind is not Headed:
            return False
        self.settle()
        self._kind, self._room = kind, 0
        return True

    def _open(self) -> None:
        """Another run: as much as there is room for, and fits a datagram."""
        driver = self._driver
        if self.run:
            self.settle()
            driver.send_datagrams()
        self._room = 0
        node = driver.node
        sender, membership = node.multicast.senders.get(Stream.FIFO), node.membership
        is_in = membership is not None and membership.phase is Phase.MEMBER and driver.is_open
        if sender is not None and is_in and node.minimum.since is None:
            self._room, room_bytes, self._largest = sender.room()
            self._largest = min(self._largest, node.config.multicast.max_message_bytes)
            self._room_bytes = min(room_bytes, max(driver.transport.datagram_bytes, self._largest))
            if not driver.is_turn_due:
                driver.end_turn_soon()
