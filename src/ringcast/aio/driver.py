"""Driver: one Node on one UDP socket in one event loop.

Its whole life is that of every driver: call an input, take the events, send the datagrams, wait
for the next deadline. Messages are not taken here: whoever reads the group pulls them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from ringcast.events import Closed, Delivered, FragmentsTaken, ViewInstalled, Writable

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator, Sequence

    from ringcast.aio.tap import Tap
    from ringcast.aio.udp import UdpSocket
    from ringcast.events import Event
    from ringcast.model import Stream, View
    from ringcast.node import Node

REFUSED_RECENTLY_NS = 5_000_000_000
"""How long a refused port is worth mentioning: somebody may have come to listen there since."""

DRAIN_MAX = 16
"""Datagrams read before anything else gets its turn."""


class Owner(Protocol):
    """Who is told what happens."""

    def on_event(self, event: Event) -> None:
        """A view, room to send again, or the end."""
        ...

    def on_input(self) -> None:
        """Something arrived, or a deadline came: there may be messages to take."""
        ...


class Driver:
    """Moves bytes and time into a Node, and datagrams and control events out of it."""

    def __init__(
        self,
        node: Node,
        sock: UdpSocket,
        loop: asyncio.AbstractEventLoop,
        owner: Owner,
        *,
        tap: Tap | None = None,
        lose: Callable[[], bool] | None = None,
    ) -> None:
        self.node = node
        self.sock = sock
        self._loop = loop
        self._owner = owner
        self._tap = tap
        self._lose = lose
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._is_flush_due = False
        self._is_open = True

    def start(self) -> None:
        self._loop.add_reader(self.sock.fileno(), self._on_readable)
        now = time.monotonic_ns()
        if self._tap is not None:
            self._tap.start(now)
        self.node.start(now)
        self._after_input(now)

    def send(self, payloads: Sequence[bytes], stream: Stream) -> int:
        """How many were accepted. Sends of one turn of the loop share datagrams."""
        now = time.monotonic_ns()
        accepted = self.node.send(payloads, now, stream=stream)
        if self._tap is not None:
            self._tap.look(now)
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush_later)
        return accepted

    def take(self, limit: int) -> list[Delivered]:
        """Up to `limit` messages, in runs. Calling this is delivery."""
        now = time.monotonic_ns()
        runs = self._take_events(limit, now)
        self._flush(now)
        return runs

    def install_view(self, view: View) -> None:
        """A view decided elsewhere."""
        now = time.monotonic_ns()
        self.node.install_view(view, now)
        self._after_input(now)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self.sock.fileno())
            if self._timer is not None:
                self._timer.cancel()
            now = time.monotonic_ns()
            if self._tap is not None:
                self._tap.stop(now)
                self._tap = None
            self.node.close(now)
            self._take_events(0, now)
            self._send_datagrams()
            self.sock.close()

    def explain(self) -> list[str]:
        now = time.monotonic_ns()
        reasons = self.node.explain(now)
        for address, heard in self.sock.refused.items():
            if now - heard < REFUSED_RECENTLY_NS:
                reasons.append(
                    f"nobody listens at {address}: told so {(now - heard) / 1e9:.1f} s ago"
                )
        return reasons

    def stats(self) -> dict[str, object]:
        return {
            **self.node.stats(),
            "transport": {
                "address": str(self.sock.address),
                "receive_buffer": self.sock.receive_buffer,
                "received": self.sock.received,
                "sent": self.sock.sent,
                "dropped": self.sock.dropped,
                "refused": list(map(str, self.sock.refused)),
            },
            "recorder": self._tap.stats() if self._tap is not None else None,
        }

    def _on_readable(self) -> None:
        now = time.monotonic_ns()
        self.node.receive_datagrams(self._arrived(), now)
        self._after_input(now)

    def _arrived(self) -> Iterator[memoryview]:
        if self._lose is None:
            return self.sock.drain(DRAIN_MAX)
        return (datagram for datagram in self.sock.drain(DRAIN_MAX) if not self._lose())

    def _on_timer(self) -> None:
        self._timer = None
        # Never early: the loop's clock and ours may differ by a rounding.
        now = max(time.monotonic_ns(), self._timer_at)
        self.node.handle_timeout(now)
        self._after_input(now)

    def _flush_later(self) -> None:
        self._is_flush_due = False
        if self._is_open:
            self._after_input(time.monotonic_ns())

    def _after_input(self, now: int) -> None:
        self._take_events(0, now)
        self._owner.on_input()
        self._flush(now)

    def _take_events(self, limit: int, now: int) -> list[Delivered]:
        runs = []
        tap = self._tap
        for event in self.node.take_events(limit, now):
            if tap is not None:
                tap.event(event, now)
            match event:
                case Delivered():
                    runs.append(event)
                case FragmentsTaken():
                    pass
                case ViewInstalled():
                    self.sock.refused.clear()  # those who are in it listen by now
                    self._owner.on_event(event)
                case Writable() | Closed():
                    self._owner.on_event(event)
        if tap is not None:
            tap.look(now)
        return runs

    def _flush(self, now: int) -> None:
        self._send_datagrams()
        self._arm(now)

    def _send_datagrams(self) -> None:
        for dest, datagram in self.node.take_datagrams():
            if dest is not None:
                self.sock.send(datagram, dest)
            elif self.node.view is not None:
                for member in self.node.view.members:
                    if member is not self.node.me and member != self.node.me:
                        self.sock.send(datagram, member.address)

    def _arm(self, now: int) -> None:
        deadline = self.node.next_timeout()
        if deadline is None or (self._timer is not None and self._timer_at <= deadline):
            return  # a timer that fires early finds nothing due and is armed again
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        delay = max(0, deadline - now) / 1e9
        self._timer = self._loop.call_later(delay, self._on_timer)
