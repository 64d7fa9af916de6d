"""ControlChannel: what the layers of one member say to those of another, in order and once.

It is reliable unicast (unicast.py) on epochs of its own, so that it shares neither windows nor
events with the application's messages. It takes what arrives at once: whoever may send much over
it waits for answers before sending more, and is never blocked by somebody else's messages.

On send: into the connection to that member, or, while its window is full, behind it. Who leaves
    waits until what it is said to wait for has been taken.
On view: what is for members that are not in it is forgotten, and so are their connections.

A connection may break (a member that answers nothing for long, and yet is not excluded). Messages
are then lost; whoever counts on them numbers them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from ringcast.core.effects import Effects, Layer
from ringcast.core.shared import Deadlines, GroupState
from ringcast.errors import DecodeError
from ringcast.events import ReplyReceived, RequestReceived, Writable
from ringcast.model import SYSTEM_EPOCH, Conn, Member, View
from ringcast.protocols.unicast import ReliableUnicast
from ringcast.wire.messages import decode_request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.config import UnicastConfig
    from ringcast.wire.frames import Frame

MESSAGE_BYTES_MAX = 2 << 20
"""The largest message of a layer: a chunk of state, with its heading."""

WINDOW_BYTES = 1 << 20
"""Bytes in flight to one member: few enough not to be in the way of the application's."""

RECEIVE_BUFFER = 256 << 10
"""Bytes that may be under way to this member if nobody says how large its socket buffer is."""

TICK_S = 0.1
"""The repair tick, at most: somebody always waits for what is said here."""

WAITING_MAX = 1024
"""Messages for one member that wait for room in its window. Layers keep far below it."""


def channel_config(config: UnicastConfig, datagram_bytes: int) -> UnicastConfig:
    """What it goes by, in a group whose unicast goes by `config`."""
    return replace(
        config,
        window_bytes=max(WINDOW_BYTES, 4 * datagram_bytes),
        xmit_interval_s=min(config.xmit_interval_s, TICK_S),
        ack_interval_s=min(config.ack_interval_s, TICK_S / 2),
    )


class ControlChannel(Layer):
    """Both directions, all members of the view."""

    def __init__(
        self, me: Member, config: UnicastConfig, *, fragment_bytes: int, datagram_bytes: int
    ) -> None:
        self.waiting: dict[Member, deque[bytes]] = {}
        self._awaited: set[Member] = set()  # who must have taken all of it before we leave
        self.dropped = 0  # beyond WAITING_MAX
        self._me = me
        self.unicast = ReliableUnicast(
            *(me, channel_config(config, datagram_bytes)),
            fragment_bytes=fragment_bytes,
            datagram_bytes=datagram_bytes,
            max_message_bytes=MESSAGE_BYTES_MAX,
            is_system=True,
        )
        self.unicast.receive_buffer = RECEIVE_BUFFER
        self._inner = Effects()
        self.may_be_ready = False
        """There may be messages in windows."""
        self.attach(GroupState(me), Deadlines())

    def attach(self, group: GroupState, deadlines: Deadlines) -> None:
        super().attach(group, deadlines)
        self.unicast.attach(group, deadlines)

    # Inputs

    def send(
        self, payload: bytes, to: Member, now: int, out: Effects, *, is_awaited: bool = False
    ) -> None:
        """Send to a member of the view. There is no telling whether it is."""
        if self.group.view is None or to not in self.group.view.members:
            self.dropped += 1
            return
        if is_awaited:
            self._awaited.add(to)
        if not self.waiting and self.unicast.send_next(payload, to, now, out):
            return
        self.may_be_ready |= to == self._me
        waiting = self.waiting.get(to)
        if waiting is None:
            if self.unicast.send([payload], to, now, self._inner):
                self._forward_effects(now, out)
            else:
                self.waiting[to] = deque([payload])  # Writable follows
        elif len(waiting) < WAITING_MAX:
            waiting.append(payload)
        else:
            self.dropped += 1

    def take_request(
        self, source: Member, conn: Conn, seqno: int, payload: bytes, now: int
    ) -> RequestReceived | ReplyReceived | None:
        """One whole message that came alone, if it is the application's affair and next in turn.
        None: nothing has happened, and it is to be received."""
        if conn.epoch < SYSTEM_EPOCH:
            return None  # it is the application's
        try:
            request = decode_request(source, payload)
        except DecodeError:
            return None
        is_next = request is not None and self.unicast.take_next(source, conn, seqno, now)
        return request if is_next else None

    def receive(self, source: Member, frames: Sequence[Frame], now: int, out: Effects) -> None:
        self.may_be_ready = True
        self.unicast.receive(source, frames, now, self._inner)
        self._forward_effects(now, out)

    def install_view(self, view: View, now: int, out: Effects) -> None:
        self.may_be_ready = True  # what came before the first view
        for peer in [peer for peer in self.waiting if peer not in view]:
            del self.waiting[peer]
        self._awaited.intersection_update(view)
        for peer in [peer for peer in self.unicast.senders if peer not in view]:
            self.unicast.drop_to(peer)
        self.unicast.install_view(view, now, self._inner)
        self._forward_effects(now, out)

    def take_messages(self, now: int, out: Effects) -> list[tuple[Member, bytes]]:
        """What has arrived, each message with its sender."""
        self.may_be_ready = False
        messages = self.unicast.take_all(now, self._inner)
        self._forward_effects(now, out)
        return messages

    def handle_timeout(self, now: int, out: Effects) -> None:
        self.unicast.handle_timeout(now, self._inner)
        self._forward_effects(now, out)

    def close(self, reason: str, now: int, out: Effects) -> None:
        self.waiting.clear()
        self._awaited.clear()
        self.unicast.close(reason, now, self._inner)
        self._forward_effects(now, out)

    # Outputs

    @property
    def is_flushed(self) -> bool:
        """Whoever must have taken all that was sent to it has done so."""
        senders = self.unicast.senders
        return all(
            peer not in self.waiting and (peer not in senders or senders[peer].is_acked)
            for peer in self._awaited
        )

    def stats(self) -> dict[str, object]:
        return {
            "waiting": {str(peer): len(waiting) for peer, waiting in self.waiting.items()},
            "dropped": self.dropped,
            **self.unicast.stats(),
        }

    def check_invariants(self) -> None:
        assert all(0 < len(waiting) <= WAITING_MAX for waiting in self.waiting.values())
        self.unicast.check_invariants()

    # Helpers

    def _send_waiting(self, to: Member, now: int, out: Effects) -> None:
        self.may_be_ready |= to == self._me
        waiting = self.waiting[to]
        accepted = self.unicast.send(list(waiting), to, now, self._inner)
        for _ in range(accepted):
            waiting.popleft()
        if not waiting:
            del self.waiting[to]
        self._forward_effects(now, out)

    def _forward_effects(self, now: int, out: Effects) -> None:
        """Datagrams go out. Of the events one matters: there is room for what waits."""
        inner = self._inner
        if inner.frames:
            out.frames += inner.frames
            inner.frames.clear()
        while inner.events:
            event = inner.events.popleft()
            if isinstance(event, Writable) and event.to in self.waiting:
                self._send_waiting(event.to, now, out)
