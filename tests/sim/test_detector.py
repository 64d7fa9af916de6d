"""The failure detector alone, in virtual time, on links that lose: how often is it wrong, and how
soon is it right?

Real detectors, and nothing else: no other traffic vouches for anybody, which is the worst case.
Datagrams arrive at once or are lost, each independently of the others; delays that are short
against the beat change nothing.

How often it is wrong. Let p be the loss, h the heartbeat, s the time to suspicion, v the time to
verify. A watcher that looks every h finds a link silent for s if m = ⌈s / h⌉ beats in a row are
lost. Such a run begins after one that arrived, so per beat and link the chance of a timeout is

    (1 - p) pᵐ         (a run of 2m counts twice: pᵐ of the whole, left out here)

The verification fails if all r probes or their answers are lost, and the ⌊v / h⌋ beats meanwhile:

    q = (1 - (1 - p)²)ʳ p^⌊v / h⌋

In T hours of each of N nodes, each watched by k others, there are N k 3600 T / h beats; so expect
N k 3600 T / h (1 - p) pᵐ timeouts, of which a part q becomes Suspected. At 5 % that is next to
nothing, so the formula itself is tested where losses are frequent.
"""

from __future__ import annotations

from heapq import heapify, heapreplace
from math import ceil, floor, log, sqrt
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import pytest

from ringcast.config import MembershipConfig
from ringcast.config_file import load_config
from ringcast.core.effects import Effects, Suspected, Trusted
from ringcast.model import Address, Member, View, ViewId
from ringcast.protocols.failure import PINGS, WATCHERS, FailureDetector
from ringcast.wire.frames import Ping

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringcast.core.effects import Signal

CONFIG = MembershipConfig()
ALERT = load_config(preset="alert", group="ring").membership
HEARTBEAT = round(CONFIG.heartbeat_s * 1e9)
BOUND = round((CONFIG.suspect_after_s + CONFIG.heartbeat_s + CONFIG.verify_s) * 1e9)
SECOND = 1_000_000_000
HOUR = 3600 * SECOND
NODES = 8
"""More than twice WATCHERS: no two watch each other, so no verification vouches for two links."""


class Verdict(NamedTuple):
    at: int
    by: Member
    signal: Signal
    probes: int
    """How many its maker had sent by then."""


class Ring:
    """Detectors in one view, each with its own phase of the beat, and the links between them."""

    def __init__(
        self,
        seed: int,
        loss: float,
        *,
        refuses: bool = False,
        config: MembershipConfig = CONFIG,
    ) -> None:
        self.random = Random(seed)
        self.members = [Member(Address("ring", 1 + n), 1, f"N{n}") for n in range(NODES)]
        self.detectors = {member: FailureDetector(member, config) for member in self.members}
        self.verdicts: list[Verdict] = []
        self.probes = dict.fromkeys(self.members, 0)
        self.dead: set[Member] = set()
        """They get nothing and do nothing, for as long as they are in here. If this ring `refuses`,
        whoever sends to them is told so."""
        self._refuses = refuses
        self._heartbeat = round(config.heartbeat_s * 1e9)
        self._lose = losses(self.random, loss)
        self._out = Effects()
        view = View(ViewId(self.members[0], 1), tuple(self.members))
        self._heap: list[tuple[int, int]] = []
        for place, detector in enumerate(self.detectors.values()):
            detector.group.change(
                view, [detector], self.random.randrange(1, self._heartbeat), self._out
            )
            at = detector.deadlines.next()
            assert at is not None
            self._heap.append((at, place))
        heapify(self._heap)

    def run_until(self, time: int) -> None:
        heap, members, detectors, out = self._heap, self.members, self.detectors, self._out
        while heap[0][0] <= time:
            now, place = heap[0]
            me = members[place]
            if me in self.dead:
                heapreplace(heap, (now + self._heartbeat, place))
                continue
            detector = detectors[me]
            detector.handle_timeout(now, out)
            if out.frames:
                self._carry(me, now)
            self._note(me, now)
            at = detector.deadlines.next()
            assert at is not None
            # Others' deadlines are looked at when theirs come: a sign of life only ends waits.
            heapreplace(heap, (max(at, now), place))

    def total(self, counter: str) -> int:
        return sum(getattr(detector, counter) for detector in self.detectors.values())

    def _carry(self, source: Member, now: int) -> None:
        """Frames to their destinations, then the answers back, until nothing is under way."""
        out, lose, detectors = self._out, self._lose, self.detectors
        frames, out.frames = out.frames, []
        for dest, frame in frames:
            assert isinstance(dest, Member)
            is_probe = type(frame) is Ping
            self.probes[source] += is_probe
            if dest in self.dead:
                if self._refuses:
                    detectors[source].transport_hint(dest.address, now, out)
                    self._note(source, now)
                    self._carry(source, now)
            elif not lose():
                detectors[dest].receive(source, (frame,), now, out)
                if is_probe:
                    self._carry(dest, now)

    def _note(self, member: Member, now: int) -> None:
        while self._out.signals:
            signal = self._out.signals.popleft()
            self.verdicts.append(Verdict(now, member, signal, self.probes[member]))


def losses(random: Random, loss: float) -> Callable[[], bool]:
    """Whether the next datagram is lost. How many arrive before the next loss is drawn at once,
    which says the same as a draw for each."""
    scale = 1 / log(1 - loss)
    left = floor(log(1 - random.random()) * scale)

    def lose() -> bool:
        nonlocal left
        left -= 1
        if left >= 0:
            return False
        left = floor(log(1 - random.random()) * scale)
        return True

    return lose


def expected(
    node_hours: float, loss: float, config: MembershipConfig = CONFIG
) -> tuple[float, float]:
    """Timeouts and suspicions, by the formula above."""
    beats = node_hours * WATCHERS * 3600 / config.heartbeat_s
    timeouts = beats * (1 - loss) * loss ** ceil(config.suspect_after_s / config.heartbeat_s)
    is_unanswered = (1 - (1 - loss) ** 2) ** PINGS
    is_unheard = loss ** floor(config.verify_s / config.heartbeat_s)
    return timeouts, timeouts * is_unanswered * is_unheard


def measure(node_hours: float, loss: float, seed: int, config: MembershipConfig = CONFIG) -> Ring:
    ring = Ring(seed, loss, config=config)
    ring.run_until(round(node_hours / NODES * HOUR))
    beats = node_hours * WATCHERS * 3600 / config.heartbeat_s
    assert ring.total("heartbeats_sent") == pytest.approx(beats, rel=1e-3)
    timeouts, suspicions = expected(node_hours, loss, config)
    print(  # noqa: T201
        f"{node_hours:g} node-hours at {loss:.0%} loss: {ring.total('verifications')} timeouts "
        f"({timeouts:.4g} expected), {ring.total('suspicions')} suspected ({suspicions:.3g})"
    )
    return ring


@pytest.mark.proof
@pytest.mark.parametrize("config", [CONFIG, ALERT], ids=["lan", "alert"])
def test_nobody_alive_is_suspected_in_1000_node_hours_at_5_percent_loss(
    config: MembershipConfig,
) -> None:
    ring = measure(1000, 0.05, seed=2, config=config)
    assert ring.verdicts == []
    assert ring.total("verifications") <= 1


def test_the_formula_holds_where_losses_are_frequent() -> None:
    ring = measure(10, 0.5, seed=3)
    timeouts, suspicions = expected(10, 0.5)
    assert abs(ring.total("verifications") - timeouts) <= 4 * sqrt(timeouts)
    assert abs(ring.total("suspicions") - suspicions) <= 4 * sqrt(suspicions)
    # All of them live: each suspicion is taken back, but for those of the last moments.
    assert 0 <= ring.total("suspicions") - ring.total("taken_back") <= 2


class Crash:
    """Somebody crashes at some moment; then everybody has the time of the bound."""

    def __init__(self, seed: int, *, refuses: bool = False) -> None:
        self.ring = ring = Ring(seed, 0.05, refuses=refuses)
        self.at = 10 * SECOND + ring.random.randrange(2 * HEARTBEAT)
        ring.run_until(self.at)
        assert ring.verdicts == []
        ring.probes = dict.fromkeys(ring.members, 0)
        place = ring.random.randrange(NODES)
        self.victim = ring.members[place]
        around = ring.members[place + 1 :] + ring.members[:place]
        self.watchers = around[:WATCHERS]
        self.watched = around[-WATCHERS:]
        ring.dead.add(self.victim)
        ring.run_until(self.at + BOUND)

    def delay_by(self, member: Member) -> int:
        """From the crash until this member suspected whoever crashed: once, and nobody else."""
        (verdict,) = (verdict for verdict in self.ring.verdicts if verdict.by == member)
        assert isinstance(verdict.signal, Suspected)
        assert verdict.signal.member == self.victim
        return verdict.at - self.at


def test_a_crash_is_noticed_by_every_watcher_within_the_bound() -> None:
    delays: list[int] = []
    for seed in range(60):
        crash = Crash(seed)
        assert {verdict.by for verdict in crash.ring.verdicts} == set(crash.watchers)
        delays += map(crash.delay_by, crash.watchers)
    assert max(delays) <= BOUND
    assert max(delays) > BOUND - HEARTBEAT  # it is no wider than it must be
    print(f"crash to Suspected: {min(delays) / 1e9:.2f} to {max(delays) / 1e9:.2f} s")  # noqa: T201


def test_a_refused_port_is_noticed_with_the_next_beat_and_two_probes_at_most() -> None:
    delays: list[int] = []
    for seed in range(60):
        crash = Crash(seed, refuses=True)
        # Those it watched send to it, and so are told; its watchers have to miss it first.
        assert {v.by for v in crash.ring.verdicts} == {*crash.watched, *crash.watchers}
        assert max(verdict.probes for verdict in crash.ring.verdicts) <= 2
        delays += map(crash.delay_by, crash.watched)
    assert max(delays) <= HEARTBEAT
    print(f"refused port to Suspected: {max(delays) / 1e9:.2f} s at most")  # noqa: T201


def test_who_was_stopped_for_a_minute_suspects_nobody_and_is_trusted_again() -> None:
    crash = Crash(seed=1)
    ring, sleeper = crash.ring, crash.victim
    ring.run_until(crash.at + 60 * SECOND)
    ring.dead.discard(sleeper)
    ring.run_until(crash.at + 70 * SECOND)
    assert ring.detectors[sleeper].sleeps == 1
    assert ring.total("sleeps") == 1
    for watcher in crash.watchers:
        kinds = [type(verdict.signal) for verdict in ring.verdicts if verdict.by == watcher]
        assert kinds == [Suspected, Trusted]
    assert {verdict.by for verdict in ring.verdicts} == set(crash.watchers)
