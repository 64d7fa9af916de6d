"""Datagrams: one member's bytes. What comes is decoded and goes to its layers; what layers want to
send is packed when it is asked for.

A request or a reply that comes alone and next in turn concerns no layer but the channel, and the
application at once: a run of one takes the same way as any other, and stops there.

Bytes of peers never raise: what cannot be decoded is counted by reason and dropped.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

from ringcast.config import DATAGRAM_BYTES_MIN, GroupConfig
from ringcast.errors import DecodeError
from ringcast.model import Address, Member, Purge
from ringcast.wire.bursts import unpack_burst
from ringcast.wire.codec import Codec
from ringcast.wire.frames import Frame, UnicastData
from ringcast.wire.seal import DatagramSeal, Passage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ringcast.events import ReplyReceived, RequestReceived
    from ringcast.protocols.stack import Stack
    from ringcast.wire.codec import Buffer


class Datagrams:
    """Of one member, between its driver and its stack."""

    stack: Stack
    """Where frames go, and come from. It is made behind this: layers have to know what fits."""

    def __init__(self, me: Member, config: GroupConfig, seal: DatagramSeal | None) -> None:
        self.rejected: dict[str, int] = {}
        """Datagrams refused, by reason."""
        self.passage = Passage(seal, self.reject)
        self._bytes_max = config.multicast.datagram_bytes
        self.codec = Codec(config.group, me, self._bytes_max, self.passage.overhead)
        self._tells_purged = False
        self.packed: list[tuple[Address | None, bytes]] = []  # before the view began
        self.follow(config)

    def follow(self, config: GroupConfig) -> None:
        """The group has agreed on this."""
        self._tells_purged = config.multicast.purge is Purge.ACKS_RETAINED

    def resize(self, size: int) -> None:
        """Build datagrams of at most so many bytes from now on; never larger ones than
        configured."""
        size = max(DATAGRAM_BYTES_MIN, min(size, self._bytes_max))
        self.codec.resize(size)
        stack = self.stack
        channels = () if stack.channel is None else (stack.channel.unicast,)
        for layer in (stack.multicast, stack.unicast, *channels):
            layer.resize(self.codec.payload_bytes_max, size)

    def reject(self, error: DecodeError) -> None:
        reason = error.reason._value_
        self.rejected[reason] = self.rejected.get(reason, 0) + 1

    def receive(
        self, bursts: Iterable[Sequence[Buffer]], now: int, *, stops_at_request: bool = False
    ) -> RequestReceived | ReplyReceived | None:
        """What so many system calls brought, opened. Its bytes are not needed after this returns.

        `stops_at_request`: if the first that comes is a request or a reply for the application, and
        nothing waits to be told before it, it is returned at once; what is behind it has not been
        looked at. It has changed nothing else here.
        """
        stack, codec = self.stack, self.codec
        out, detector, observer = stack.out, stack.detector, stack.observer
        reject, stops = self.reject, stops_at_request and not out.events
        for burst in bursts:
            is_alone = len(burst) == 1
            if is_alone and (message := codec.unpack_message(burst[0])) is not None:
                channel, source = stack.channel, message[0]
                request = None if channel is None else channel.take_request(*message, now)
                if request is not None:  # else nothing has happened: it is decoded as any other
                    if detector is not None:
                        detector.heard(source, now)
                    if observer is not None:
                        observer.received(burst[0], now)
                    if stops:
                        return request
                    out.event(request)
                    continue
            stops = False
            if observer is not None:
                for datagram in burst:
                    observer.received(datagram, now)
            try:
                found = [codec.unpack(burst[0])] if is_alone else unpack_burst(codec, burst, reject)
            except DecodeError as error:
                reject(error)
                continue
            for source, frames in found:
                if detector is not None:
                    detector.heard(source, now)
                stack.route(source, frames, now)
                if out.signals:
                    stack.run_to_completion(now, is_input=False)
        stack.run_to_completion(now)
        return None

    def take(self, now: int = 0) -> list[tuple[Address | None, bytes]]:
        """What to send, in order, to be sealed; None means to every other member of the view.

        Frames for the same destination share datagrams; so do sends that were made since the
        last call. `now` is for the observer.
        """
        effects, observer = self.stack.out, self.stack.observer
        waiting, lone = effects.frames, effects.lone
        datagrams, self.packed = self.packed, []
        if lone is not None:
            effects.lone = None
            datagrams.append((lone[0].address, self.codec.pack_message(*lone)))
            if observer is not None:
                observer.transmitted(lone[0], [datagrams[-1][1]], now)
        if not waiting:
            return datagrams
        if self._tells_purged:
            self.codec.mark(self.stack.multicast.purged)
        by_dest: dict[Member | Address | None, list[Frame]] = {}
        for dest, frame in waiting:
            by_dest.setdefault(dest, []).append(frame)
        waiting.clear()
        for dest, frames in by_dest.items():
            to, address = (dest, dest.address) if isinstance(dest, Member) else (None, dest)
            packed = self.codec.pack(frames, to)
            datagrams += zip(repeat(address), packed, strict=False)
            if observer is not None:
                observer.transmitted(dest, packed, now)
        return datagrams

    def pack_before(self, now: int) -> None:
        """Another view is about to begin: what waits was said in the one that ends."""
        self.packed = self.take(now)

    def pending(self) -> list[tuple[Member | Address | None, Frame]]:
        """What waits to be sent, to be read only."""
        effects = self.stack.out
        if effects.lone is None:
            return list(effects.frames)
        to, conn, seqno, payload = effects.lone
        return [(to, UnicastData(conn, seqno, [payload])), *effects.frames]
