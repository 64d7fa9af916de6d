"""Gathering: messages that are sent one at a time, and leave as one run.

`await group.send(b)` is what people write, and a run of one costs as much as a run of a thousand.
So a message that surely has a place in the window waits here, with others of the same turn of the
loop, by whatever task; to send it is to append it to a list. What has no place for sure goes the
longer way, which tells why. What is for the group waits in one place, what is for one member in
another. A run ends where messages with headers follow others.

All get their seqnos together, at the end of the turn, when they fill a datagram or a burst of small
    ones, and before each input of the node: any may take the room that they were promised.
What finds no room all the same is kept, for its sender believes it sent. It is offered again before
    each further input, and nothing that comes later goes before it: `add` refuses, and the longer
    way offers nothing. While the group has too few members it waits for more. If the member that
    it is for has departed, Undeliverable tells of it.
On flush and leave: these wait until nothing is kept; leaving, for a time.
On the end of this member: what is kept then is lost. Closed counts it; Undeliverable tells of what
    was for one member.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ringcast.aio.gate import Gate
from ringcast.aio.payloads import as_bytes
from ringcast.core.shared import Phase
from ringcast.errors import RingcastError, Undeliverable
from ringcast.model import Member, Stream, View
from ringcast.wire.bursts import BURST_BYTES_MAX

if TYPE_CHECKING:
    from ringcast.aio.driver import Driver
    from ringcast.wire.codec import Buffer

MEMBER: Final = Phase.MEMBER  # to look up a member of an Enum takes Python a while


class Gathering:
    """Of one member, for plain messages to one destination."""

    __slots__ = ("_all", "_kind", "_largest", "_room_bytes", "room", "run", "to")

    def __init__(self, all_of_it: Gatherings, to: Member | None) -> None:
        self._all = all_of_it
        self.to = to
        self.run: list[bytes] = []
        """What waits to be settled."""
        self.room = self._room_bytes = 0  # for so many more messages, of so many bytes
        self._largest = 0
        self._kind: type[bytes] = bytes  # of the messages in the run

    def add(self, payload: Buffer) -> bool:
        """Whether it is sent; False: not here."""
        if type(payload) is not self._kind:
            payload = as_bytes(payload)
            if type(payload) is not self._kind and not self._turn_to(type(payload)):
                return False
        size = len(payload)
        if not self.room or size > self._room_bytes or size > self._largest:
            self._open()
            if not self.room or size > self._room_bytes or size > self._largest:
                self.room = 0  # it may be taken by what goes another way
                return False
            all_of_it = self._all
            all_of_it.waiting.append(self)
            if not all_of_it.driver.is_turn_due:
                all_of_it.driver.end_turn_soon()
        self.room -= 1
        self._room_bytes -= size
        self.run.append(payload)
        return True

    def _turn_to(self, kind: type[bytes]) -> bool:
        """The next run is of such messages; False: what is kept goes before it."""
        if self.run:
            self._all.settle()
            if self.run:
                return False
        self._kind, self.room = kind, 0
        return True

    def _open(self) -> None:
        """Another run: as much as there is room for, and leaves in one burst."""
        driver = self._all.driver
        if self.run:
            self._all.settle()
            driver.send_datagrams()
            if self.run:
                return
        self.room = 0
        node, stream = driver.node, None
        if not driver.is_open or node.membership is None or node.membership.phase is not MEMBER:
            return
        if self.to is not None:
            to_one = node.unicast.senders.get(self.to)
            stream = None if to_one is None else to_one.stream
        elif node.minimum.since is None:
            sender = node.multicast.senders.get(Stream.FIFO)
            stream = None if sender is None or sender.is_frozen else sender.stream
        if stream is not None:
            self.room, room_bytes, self._largest = stream.room()
            self._largest = min(self._largest, node.config.multicast.max_message_bytes)
            size = driver.transport.datagram_bytes
            self._room_bytes = min(room_bytes, max(1, BURST_BYTES_MAX // size) * size)


class Gatherings:
    """All of one member."""

    __slots__ = ("_gate", "_nowhere", "_to_one", "driver", "to_all", "waiting")
    stream = Stream.FIFO

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.to_all = Gathering(self, None)
        self._to_one: dict[Member, Gathering] = {}
        self._nowhere = Gathering(self, driver.node.me)  # on no connection is there any room
        self.waiting: list[Gathering] = []
        """Those that have something to settle. Whoever looks here first saves a call."""
        self._gate: Gate | None = None  # where those wait who wait until nothing is kept

    def to(self, member: Member | None) -> Gathering:
        """For this one alone, or all. What is no other member of the view has no room there."""
        if member is None:
            return self.to_all
        found = self._to_one.get(member) if type(member) is Member else None
        return found or self._nowhere

    def enter_view(self, view: View) -> None:
        """Who has departed is sent to the longer way."""
        others = [member for member in view if member != self.driver.node.me]
        self._to_one = {who: self._to_one.get(who) or Gathering(self, who) for who in others}

    def settle(self) -> None:
        """All that was gathered gets its seqnos; what finds no room is kept."""
        waiting, self.waiting = self.waiting, []
        lost: list[Undeliverable] = []
        try:
            for each in waiting:
                run, each.run, each.room = each.run, [], 0
                try:
                    accepted = self.driver.offer(run, Stream.FIFO, each.to)
                except RingcastError as error:
                    accepted = 0  # too few members for now; or it is over, and that tells of them
                    if each.to is not None:
                        accepted = len(run)
                        lost.append(Undeliverable(each.to, 0, 1, accepted, str(error)))
                each.run = run[accepted:]
        finally:
            self.waiting += [each for each in waiting if each.run]
        for event in lost:
            self.driver.tell(event)
        if self._gate is not None:
            self._gate.open()

    def keeps(self, stream: Stream, to: Member | None) -> bool:
        """Whether something waits here that goes before what is sent there now."""
        return stream is self.stream and any(each.to == to for each in self.waiting)

    async def until_settled(self, within_s: float | None = None) -> None:
        """Wait until nothing is kept, or it is lost; or for so long."""
        self.settle()
        if self.waiting:
            gate = self._gate = self._gate or Gate()
            with suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    while self.waiting:
                        await gate.wait()

    def stop(self, reason: str) -> int:
        """It is over; how many messages to the group are lost here."""
        self.settle()
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            if each.to is not None:
                self.driver.tell(Undeliverable(each.to, 0, 1, len(each.run), reason))
        lost = sum(len(each.run) for each in waiting if each.to is None)
        for each in waiting:
            each.run = []
        if self._gate is not None:
            self._gate.open()
        return lost
