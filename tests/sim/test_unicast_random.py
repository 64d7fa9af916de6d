"""Two members, and anything at all in between: whatever was accepted arrives once and in order.

The network keeps every packet that was ever sent and may hand over any of them at any time, again
and again, or never. Windows are dropped, syncs asked for, connections closed and expired in the
midst of it. Then it heals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ringcast.events import GapSkipped, Undeliverable
from ringcast.wire.frames import Sync, SyncOk, UnicastData, UnicastNack
from support.pair import TAU, Pair

if TYPE_CHECKING:
    from support.cluster import Packet

NOISE = (UnicastData, UnicastNack, Sync, SyncOk)
"""What nobody sends any more when all is delivered; connections may still end (G8)."""

ways = st.sampled_from(["AB", "BA"])


class Storm(RuleBasedStateMachine):
    """A conversation that hypothesis makes as hard as it can."""

    @initialize(capacity=st.sampled_from([1, 2, 5]), expiry_s=st.sampled_from([0.0, 2.0, 100.0]))
    def begin(self, capacity: int, expiry_s: float) -> None:
        self.c = Pair(
            capacity=capacity,
            expiry_s=expiry_s,
            close_s=1.0,
            max_retransmit_s=1e6 - 1,
            ack_interval_s=0.01,
        )
        self.accepted: dict[str, list[bytes]] = {"AB": [], "BA": []}
        self.packets: list[Packet] = []

    @rule(way=ways, count=st.integers(1, 4), size=st.sampled_from([1, 1, 2000]))
    def send(self, way: str, count: int, size: int) -> None:
        name, peer = tuple(way)
        start = len(self.accepted[way])
        payloads = [b"%s %d " % (way.encode(), start + n) + bytes(size) for n in range(count)]
        self.accepted[way] += payloads[: self.c.send(name, peer, payloads)]

    @rule(name=st.sampled_from("AB"), limit=st.integers(1, 5))
    def take(self, name: str, limit: int) -> None:
        self.c.take(name, limit)

    @rule(place=st.floats(0, 1), count=st.integers(1, 5))
    def hand_over(self, place: float, count: int) -> None:
        """Some that lie together, the newest or long past."""
        self.packets += self.c.collect()
        start = round(place * len(self.packets))
        self.c.hand_over(self.packets[start : start + count])
        self.check()

    @rule()
    def hand_over_the_newest(self) -> None:
        newest = self.c.collect()
        self.packets += newest
        self.c.hand_over(newest)
        self.check()

    @rule(ticks=st.sampled_from([0.01, 0.5, 1.0, 1.0, 3.0, 7.0]))
    def wait(self, ticks: float) -> None:
        """Deadlines pass; what is sent then may arrive later."""
        stop = self.c.now + round(ticks * TAU * 1e9)
        while (at := self.c.next_timeout()) is not None and at <= stop:
            self.c.now = max(self.c.now, at)
            for node in self.c.nodes.values():
                node.handle_timeout(self.c.now)
            self.packets += self.c.collect()
        self.c.now = stop
        self.check()

    @rule(way=ways)
    def drop(self, way: str) -> None:
        name, peer = tuple(way)
        self.c.nodes[name].drop_from(self.c.nodes[peer].me, self.c.now)

    @precondition(lambda self: self.c.nodes["B"].unicast.receivers)
    @rule()
    def sync(self) -> None:
        self.c.nodes["B"].sync(self.c.nodes["A"].me, self.c.now)

    @rule(way=ways)
    def close(self, way: str) -> None:
        name, peer = tuple(way)
        self.c.nodes[name].close_to(self.c.nodes[peer].me, self.c.now)

    def check(self) -> None:
        for name, node in self.c.nodes.items():
            node.check_invariants()
            other = "B" if name == "A" else "A"
            if self.c.has_sender(name, other) and self.c.has_receiver(other, name):
                sender, receiver = self.c.sender(name, other), self.c.receiver(other, name)
                # Y2: what its receiver waits for, a sender still has.
                is_same = sender.conn == receiver.conn
                assert not is_same or sender.window.low <= receiver.window.delivered

    def teardown(self) -> None:
        if not hasattr(self, "c"):
            return
        for _ in range(40):  # large messages may need several rounds through a small window
            self.c.run(2 * TAU)
        for way, accepted in self.accepted.items():
            name, peer = tuple(way)
            got = [payload for _, payload in self.c.delivered(peer, name)]
            assert got == accepted
            bad = (GapSkipped, Undeliverable)
            assert not any(isinstance(event, bad) for event in self.c.events[peer])
        before = len(self.c.sent)
        self.c.run(1.5)
        assert not any(isinstance(sent.frame, NOISE) for sent in self.c.sent[before:])


TestStorm = Storm.TestCase
TestStorm.settings = settings(max_examples=30, stateful_step_count=40)
