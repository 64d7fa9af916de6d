"""Frames on their way, for level "full" and simulated runs.

Frames are decoded from the very bytes that leave and arrive, by a codec of its own: the node is not
asked what it said. What is retransmitted is compared with what was sent first (N10, S4).
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any

from ringcast.errors import DecodeError
from ringcast.model import Address, Conn, Member, Origin, Stream, View
from ringcast.trace.observe.frames import FIFO, Seen, describe, is_system, recorded_columns, told
from ringcast.trace.rows import REJECT, RX, STABILITY_REPORT, TX, XMIT_MISMATCH, about, naming
from ringcast.wire.changes import Forwarded, InView, tag_of
from ringcast.wire.codec import Codec
from ringcast.wire.frames import Commit, Data, PeerRepair, StabilityReport, SyncOk, UnicastData

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ringcast.node import Node
    from ringcast.trace.observe.connections import Connections
    from ringcast.trace.observe.sink import Contents, Sink
    from ringcast.wire.codec import Buffer
    from ringcast.wire.frames import Frame


class Wire:
    """Turns the datagrams of one member into rows."""

    def __init__(
        self,
        node: Node,
        sink: Sink,
        codec: Codec | None = None,
        contents: Contents | None = None,
        connections: Connections | None = None,
    ) -> None:
        self._node = node
        self._sink = sink
        config = node.config
        self._codec = codec or Codec(config.group, node.me, config.multicast.datagram_bytes)
        self._contents = contents
        self._connections = connections
        self.system: Connections | None = None
        """Of a recorded member: the system's own; `connections` are its application's."""
        self.has_fast_message = False
        """Of a recorded member: something came for the system, which may have taken it at once."""
        self.peers: dict[Address, Member] = {}
        """Who was last seen where, in a view."""
        self.left: list[tuple[Member | None, bytes, list[Seen]]] = []
        """In a simulated run: the datagrams that have left, for whom, and what is in them."""
        self._named: dict[Address, Member] = {}  # whom something else of the same flush is for
        self._view: View | None = None
        self._rejected: dict[str, int] = {}
        self._originals: dict[Stream, dict[int, Any]] = {}
        """Of what is in the send window: each message as it left first, or its hash."""
        self._highest: dict[Stream, int] = {}
        if contents is not None:
            for stream in node.multicast.streams:
                pieces = contents.pieces.setdefault(Origin(node.me, stream), {})
                self._originals[stream] = pieces

    def enter_view(self, view: View) -> None:
        if self._contents is None:
            # What is on its way to somebody who has just left still names its addressee.
            known = (*(self._view or ()), *view)
            self.peers = {member.address: member for member in known}
        elif self._node.me in view:
            self.peers.update((member.address, member) for member in view)
        self._view = view

    def received(self, datagram: Buffer, now: int) -> None:
        try:
            source, frames = self._codec.unpack(datagram, overhear=True)
        except DecodeError:
            return  # the node refuses it too, and counts it: see `look_at_refusals`
        for frame in told(frames):
            self._sink.write(RX, now, **about(source), **recorded_columns(frame))
            if isinstance(frame, SyncOk) and (of := self._of_conn(frame.conn)):
                of.answered(frame, source)
            self.has_fast_message |= isinstance(frame, UnicastData) and is_system(frame.conn)

    def arrived(self, name: str, incarnation: int, frames: Iterable[Seen], now: int) -> None:
        """In a simulated run the packet tells how its sender saw it."""
        for frame in frames:
            self._write(RX, {"peer": name, "peer_inc": incarnation}, frame, now)

    def transmitted(
        self, dest: Member | Address | None, datagrams: Sequence[bytes], now: int
    ) -> None:
        peer = dest if isinstance(dest, Member) else self._member_at(dest)
        whom = {} if peer is None else about(peer)
        for datagram in datagrams:
            _, frames = self._codec.unpack(datagram, overhear=True)
            if self._contents is None:
                for frame in told(frames):
                    again = self._again(frame, peer, now)
                    self._sink.write(TX, now, again=again, **whom, **recorded_columns(frame))
                continue
            view = self._said_in(frames)
            seen = [self._see(frame, peer, view, now) for frame in told(frames)]
            self.left.append((peer, datagram, seen))
            for each in seen:
                self._write(TX, whom, each, now)
            for frame in frames:
                if isinstance(frame, StabilityReport):
                    self._write_vote(frame, now)

    def _said_in(self, frames: Iterable[Frame]) -> int:
        """The counter of the view that these bear the tag of; 0: none that this member is in."""
        tags = [frame.tag for frame in frames if isinstance(frame, InView)]
        if self._view is None or tags != [tag_of(self._view.id)]:
            return 0
        return self._view.counter

    def _of_conn(self, conn: Conn) -> Connections | None:
        return self.system if is_system(conn) else self._connections

    def before_flush(self) -> None:
        """In a simulated run: all that waits is about to leave."""
        self._named = {
            dest.address: dest
            for dest, _ in reversed(self._node.pending())
            if isinstance(dest, Member)
        }

    def _member_at(self, address: Address | None) -> Member | None:
        """Whom a datagram to an address is for: who is sent something else by name, or who was
        last seen there."""
        if address is None:
            return None
        return self._named.get(address) or self.peers.get(address)

    def _see(self, frame: Frame, peer: Member | None, view: int, now: int) -> Seen:
        seen = describe(frame)
        if isinstance(frame, Commit):
            return seen._replace(view=view)
        if isinstance(frame, Data | UnicastData):
            return seen._replace(again=self._again(frame, peer, now))
        if isinstance(frame, PeerRepair | Forwarded):
            assert self._contents is not None
            origin = Origin(frame.sender, frame.data.stream)
            originals = self._contents.pieces.get(origin, {})
            self._compare(seen.kind, frame.data, originals, now, **naming(origin))
        return seen

    def _again(self, frame: Frame, peer: Member | None, now: int) -> int:
        """Whether what is in it has left before: 1, or 0."""
        if isinstance(frame, Data):
            return int(self._is_again(frame, now))
        if peer is None or not isinstance(frame, UnicastData):
            return 0
        of = self._of_conn(frame.conn)
        return int(of is not None and of.is_again(frame, peer, now))

    def look_at_refusals(self, now: int) -> None:
        rejected = self._node.rejected
        if rejected != self._rejected:
            for reason, count in rejected.items():
                for _ in range(count - self._rejected.get(reason, 0)):
                    self._sink.write(REJECT, now, detail=reason)
            self._rejected = dict(rejected)

    def purged(self, stream: Stream, seqnos: range) -> None:
        """Nobody can ask their sender for these again. In a simulated run others may still send
        them."""
        if self._contents is None:
            originals = self._originals.get(stream, {})
            for seqno in seqnos:
                originals.pop(seqno, None)

    def _is_again(self, data: Data, now: int) -> bool:
        originals = self._originals.setdefault(data.stream, {})
        highest = self._highest.get(data.stream, 0)
        self._highest[data.stream] = max(highest, data.last)
        contents: Iterable[Any] = zip(data.payloads, repeat((data.more, data.headed)))
        if self._contents is None:
            contents = map(hash, contents)
        for seqno, content in enumerate(contents, data.first):
            if originals.setdefault(seqno, content) != content:
                self._write_mismatch("data", seqno, now, stream=int(data.stream))
        return data.first <= highest

    def _compare(
        self, kind: str, data: Data, originals: dict[int, Any], now: int, **columns: Any
    ) -> None:
        """Somebody else sends what another has sent first."""
        for seqno, payload in enumerate(data.payloads, data.first):
            if originals.get(seqno) != (payload, (data.more, data.headed)):
                self._write_mismatch(kind, seqno, now, **columns)

    def _write_mismatch(self, kind: str, seqno: int, now: int, **columns: Any) -> None:
        self._sink.write(XMIT_MISMATCH, now, kind=kind, seqno=seqno, seqno2=seqno, **columns)

    def _write(self, event: str, whom: dict[str, Any], frame: Seen, now: int) -> None:
        self._sink.write(event, now, again=frame.again, **whom, **frame.columns)

    def _write_vote(self, report: StabilityReport, now: int) -> None:
        """A report that leaves says something of each member; one of an earlier view nothing."""
        view = self._view
        if view is None or view.id != report.view_id:
            return
        for member, delivered in zip(view, report.delivered, strict=True):
            marks = {"received": delivered, "hd": delivered}
            self._sink.write(
                STABILITY_REPORT, now, **about(member), stream=FIFO, view=view.counter, **marks
            )
