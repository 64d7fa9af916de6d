"""Detail: the frames and windows of one member, for a recorder at level "full".

Frames are decoded from the very bytes that leave and arrive, by a codec of its own: the node is
not asked what it said. What is retransmitted is compared with what was sent first (N10).
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

from ringcast.errors import DecodeError
from ringcast.trace.recorder import naming
from ringcast.trace.rows import (
    ACKMAP,
    DROP_HIGH,
    DROP_LOW,
    PURGE,
    REJECT,
    RX,
    TX,
    WIN,
    XMIT_MISMATCH,
    member_key,
)
from ringcast.window.windows import SendWindow
from ringcast.wire.codec import Codec
from ringcast.wire.frames import Ack, Data, Nack, Suspect, Watermark

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from ringcast.model import Address, Member, Origin, Stream, View
    from ringcast.node import Node
    from ringcast.trace.recorder import Recorder
    from ringcast.window.windows import ReceiveWindow
    from ringcast.wire.codec import DatagramSeal
    from ringcast.wire.frames import Frame


class Detail:
    """Looks at a node after each input, and at its datagrams on their way."""

    def __init__(self, node: Node, recorder: Recorder, seal: DatagramSeal | None = None) -> None:
        self._node = node
        self._recorder = recorder
        config = node.config
        self._codec = Codec(config.group, node.me, config.multicast.datagram_bytes, seal)
        self._view: View | None = None
        self._peers: dict[Address, Member] = {}
        self._windows: dict[Origin, tuple[int, ...]] = {}
        self._ackers: dict[Stream, int] = {}
        self._rejected: dict[str, int] = {}
        self._first_sent: dict[Stream, dict[int, int]] = {}
        """Of what is in the send window: each message's hash, as it left for the first time."""

    # Datagrams

    def received(self, datagrams: Iterable[memoryview], now: int) -> Iterator[memoryview]:
        """The same datagrams. Each is looked at before the next one takes its buffer."""
        for datagram in datagrams:
            try:
                source, frames = self._codec.unpack(datagram, overhear=True)
            except DecodeError:
                pass  # the node refuses it too, and counts it: see `look`
            else:
                for frame in frames:
                    self._write_frame(RX, frame, source, now)
            yield datagram

    def transmitted(self, datagrams: Iterable[tuple[Address | None, bytes]], now: int) -> None:
        for dest, datagram in datagrams:
            peer = None if dest is None else self._peers.get(dest)
            _, frames = self._codec.unpack(datagram, overhear=True)
            for frame in frames:
                again = self._is_again(frame, now) if isinstance(frame, Data) else False
                self._write_frame(TX, frame, peer, now, again=again)

    def _write_frame(
        self, event: str, frame: Frame, peer: Member | None, now: int, *, again: bool = False
    ) -> None:
        columns: dict[str, Any]
        match frame:
            case Data():
                size = sum(map(len, frame.payloads))
                columns = {"seqno": frame.first, "seqno2": frame.last, "size": size}
            case Ack():
                columns = {"received": frame.received, "hd": frame.delivered}
            case Nack():
                missing = frame.missing
                columns = {"seqno": missing[0].start, "seqno2": missing[-1].stop - 1}
            case Watermark():
                columns = {"seqno": frame.seqno, "seqno2": frame.seqno}
            case Suspect():
                why = "slow" if frame.is_slow else "silent"
                columns = {"members": (member_key(frame.member),), "detail": why}
            case _:
                columns = {}
        if isinstance(frame, Data | Ack | Nack | Watermark):
            columns["stream"] = int(frame.stream)
        if peer is not None:
            columns["peer"], columns["peer_inc"] = str(peer), peer.incarnation
        kind = type(frame).__name__.lower()
        self._recorder.detail(event, now, kind=kind, again=int(again), **columns)

    def _is_again(self, data: Data, now: int) -> bool:
        first_sent = self._first_sent.setdefault(data.stream, {})
        is_again = data.first in first_sent
        contents = map(hash, zip(data.payloads, repeat(data.more)))
        for seqno, content in enumerate(contents, data.first):
            if first_sent.setdefault(seqno, content) != content:
                self._recorder.detail(
                    *(XMIT_MISMATCH, now),
                    kind="data",
                    stream=int(data.stream),
                    seqno=seqno,
                    seqno2=seqno,
                )
        return is_again

    # Windows

    def look(self, now: int) -> None:
        """What has changed since the last look."""
        node = self._node
        is_new_view = node.view is not self._view
        if is_new_view and node.view is not None:
            # What is on its way to somebody who has just left still names its addressee.
            known = (*(self._view or ()), *node.view)
            self._peers = {member.address: member for member in known}
            self._view = node.view
        self._look_at_refusals(now)
        for origin, window in node.multicast.windows().items():
            if isinstance(window, SendWindow):
                self._look_at_sent(origin, window, now)
            else:
                self._look_at_received(origin, window, now)
        self._look_at_acks(now, is_new_view=is_new_view)

    def forget(self, origin: Origin) -> None:
        """Its window is gone."""
        self._windows.pop(origin, None)

    def _look_at_refusals(self, now: int) -> None:
        rejected = self._node.rejected
        if rejected != self._rejected:
            for reason, count in rejected.items():
                for _ in range(count - self._rejected.get(reason, 0)):
                    self._recorder.detail(REJECT, now, detail=reason)
            self._rejected = dict(rejected)

    def _look_at_sent(self, origin: Origin, window: SendWindow, now: int) -> None:
        state = (window.low, window.delivered, window.high, window.charged, window.max_bytes)
        before = self._windows.get(origin)
        if state == before:
            return
        self._windows[origin] = state
        before = before or (0,) * len(state)
        if window.low > before[0]:
            self._recorder.detail(
                *(PURGE, now),
                stream=int(origin.stream),
                seqno=window.low,
                hd=window.delivered,
                used=window.charged,
                limit=window.max_bytes,
                **self._in_view(),
            )
            first_sent = self._first_sent.get(origin.stream, {})
            for seqno in range(before[0] + 1, window.low + 1):
                first_sent.pop(seqno, None)
        self._write_window(origin, window, now, received=window.high, size=window.charged, limit=-1)

    def _in_view(self) -> dict[str, Any]:
        """The view in which something was purged. Its row may follow: it is written when the
        application hears of it."""
        view = self._node.view
        if view is None:
            return {}
        return {"view": view.counter, "view_creator": member_key(view.id.creator)}

    def _look_at_received(self, origin: Origin, window: ReceiveWindow, now: int) -> None:
        marks = (window.low, window.delivered, window.received, window.high, window.ahead_bytes)
        state = (window.dropped_high, window.dropped_low, *marks)
        before = self._windows.get(origin)
        if state == before:
            return
        self._windows[origin] = state
        before = before or (0,) * len(state)
        for event, count, known in (
            (DROP_HIGH, window.dropped_high, before[0]),
            (DROP_LOW, window.dropped_low, before[1]),
        ):
            if count > known:
                self._recorder.detail(event, now, **naming(origin), seqno=count - known)
        bounds = {"size": window.ahead_bytes, "limit": window.max_bytes}
        self._write_window(origin, window, now, received=window.received, **bounds)

    def _write_window(
        self,
        origin: Origin,
        window: SendWindow | ReceiveWindow,
        now: int,
        *,
        received: int,
        size: int,
        limit: int,
    ) -> None:
        self._recorder.detail(
            *(WIN, now),
            **naming(origin),
            kind="send" if isinstance(window, SendWindow) else "receive",
            low=window.low,
            hd=window.delivered,
            received=received,
            hr=window.high,
            cap=window.capacity_max,
            size=size,
            limit=limit,
        )

    def _look_at_acks(self, now: int, *, is_new_view: bool) -> None:
        for stream, table in self._node.multicast.ack_tables().items():
            if is_new_view or len(table) != self._ackers.get(stream):
                self._ackers[stream] = len(table)
                keys = tuple(map(member_key, table.members))
                self._recorder.detail(ACKMAP, now, stream=int(stream), members=keys)
