"""Windows that fit the path: how much of a link comes through, at so many milliseconds one way."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from ringcast.config import DefaultSize, MulticastConfig
from ringcast.model import Stream
from ringcast.protocols.limits import Limits
from ringcast.wire.frames import Data
from support.cluster import Cluster
from support.delays import Delays

if TYPE_CHECKING:
    from collections.abc import Iterable

    from support.cluster import Packet

LINK = 125_000_000
"""Bytes per second from one member to another: one gigabit."""

QUEUE_NS = 100_000_000
"""What would wait for longer until it is sent is dropped, as routers do."""

SIZE = 10_000
DEFAULT = MulticastConfig()


class Links(Delays):
    """A always has something to send, over links that take their time for every byte."""

    def __init__(
        self, delay_ms: float, loss: float, capacity: int, size: int = SIZE, **config: Any
    ) -> None:
        given = {"datagram_bytes": DEFAULT.datagram_bytes, "window_bytes": DEFAULT.window_bytes}
        given |= {"capacity": capacity} | config
        super().__init__(Cluster("ABC", checked=False, **given), delay_ms / 1000)
        self.overflowed = 0
        self._payloads = [bytes(size)] * 2000
        self.loss = loss
        self._dice = Random(1)
        self._free_at: dict[str, int] = {}

    def run(self, seconds: float) -> float:
        """Bytes per second that the slowest member delivers, as far as the sender knows."""
        window, now = self.members.sending("A").window, self.members.now
        before, stop = window.low, now + round(seconds * 1e9)
        self.run_until(lambda: self.members.now >= stop, seconds + 1)
        return (window.low - before) * len(self._payloads[0]) / seconds

    def carry(self, packets: Iterable[Packet]) -> None:
        now = self.members.now
        for packet in packets:
            data = [frame for frame in packet.frames if isinstance(frame, Data)]
            size = sum(sum(map(len, frame.payloads)) for frame in data)
            start = now
            if packet.source.name == "A":
                start = max(now, self._free_at.get(packet.dest, 0))
                if start - now > QUEUE_NS:
                    self.overflowed += 1
                    continue
                self._free_at[packet.dest] = start + round(size * 1e9 / LINK)
            if not size or self._dice.random() >= self.loss:
                self.put(start, packet)

    def _send(self) -> None:
        node = self.members.nodes["A"]
        if not node.multicast.is_blocked(Stream.FIFO):
            node.send(self._payloads, self.members.now)

    def _turn(self) -> None:
        self._send()
        super()._turn()
        for events in self.members.events.values():
            events.clear()


def goodput(delay_ms: float, loss: float, *, warm_s: float, seconds: float) -> tuple[float, float]:
    """In MB/s with a window that was set, and with one that was not."""
    found = []
    for capacity in (int(DEFAULT.capacity), DEFAULT.capacity):
        links = Links(delay_ms, loss, capacity)
        links.run(warm_s)
        found.append(links.run(seconds) / 1e6)
    return found[0], found[1]


@pytest.mark.proof
def test_goodput_before_and_after() -> None:
    for delay_ms in (1, 10, 50):
        for loss in (0.0, 0.0001, 0.01):
            before, after = goodput(delay_ms, loss, warm_s=2, seconds=2)
            print(f"{delay_ms} ms, {loss:.2%} loss: {before:.1f} → {after:.1f} MB/s")  # noqa: T201
            assert after >= 0.95 * before
            assert loss or after >= 0.9 * LINK / 1e6


def test_at_50_ms_a_window_that_nobody_has_set_fills_the_link() -> None:
    before, after = goodput(50, 0.0, warm_s=1.5, seconds=0.5)
    assert after >= 0.7 * LINK / 1e6, (before, after)
    assert after >= 4 * before


class Alone(Links):
    """A sends one large message, and the next when all have delivered it: it waits for none."""

    large = bytes(30_000_000)

    def run(self, seconds: float) -> float:
        return super().run(seconds) * self.members.sending("A").fragments.largest

    def _send(self) -> None:
        sending, now = self.members.sending("A"), self.members.now
        if not sending.is_behind and not sending.fragments.rest:
            self.members.nodes["A"].send([self.large], now)


def test_at_50_ms_a_large_message_widens_the_window_as_many_small_ones_do() -> None:
    links = Alone(50, 0.0, DEFAULT.capacity, size=1, max_message_bytes=64 << 20)
    links.run(1.5)
    assert links.run(1.0) >= 0.4 * LINK  # a third of the time it waits for acks alone


class NeverHalves(Limits):
    def on_loss(self, last: int) -> None:
        pass


class AsksNobody(Limits):
    """What receivers have memory for does not matter."""

    @property
    def _most_bytes(self) -> int:
        return self.config.grown_bytes


def with_limits(kind: type[Limits], links: Links) -> Links:
    """The same, but that A's sender has limits of this kind."""
    node = links.members.nodes["A"]
    sending = links.members.sending("A")
    assert node.view is not None
    sending.limits = kind(
        *(node.me, sending.window, sending.limits.config, node.view, None), is_acked=True
    )
    return links


def out_on_a_lossy_path(kind: type[Limits]) -> int:
    """Bytes that may be out a while after the path has begun to lose some."""
    links = with_limits(kind, Links(50, 0.0, DEFAULT.capacity))
    links.run(1.2)
    links.loss = 0.005
    links.run(0.4)
    return links.members.sending("A").window.max_bytes


def test_a_window_that_is_never_halved_takes_more_than_its_share() -> None:
    assert out_on_a_lossy_path(NeverHalves) == DEFAULT.grown_bytes
    assert out_on_a_lossy_path(Limits) <= DEFAULT.grown_bytes // 2


def dropped(kind: type[Limits]) -> int:
    """Messages that C has no slot for: its capacity was set."""
    configs = {"C": MulticastConfig(capacity=64, datagram_bytes=DEFAULT.datagram_bytes)}
    links = Links(10, 0.0, DefaultSize(64), size=100, configs=configs)
    with_limits(kind, links).run(1)
    return links.members.receiver("C", "A").window.dropped_high


def test_a_window_that_asks_nobody_outgrows_a_receiver() -> None:
    assert dropped(Limits) == 0
    assert dropped(AsksNobody) > 0
