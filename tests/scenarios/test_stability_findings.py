"""Groups that report, and retain what not everybody has: what went wrong in them once, each in as
few members as it takes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ringcast.config import MulticastConfig, StabilityConfig
from ringcast.model import Address, Member, Origin, Stream, ViewId
from ringcast.wire.frames import (
    Ack,
    Data,
    Mark,
    PeerRepairRequest,
    StabilityQuery,
    StabilityReport,
    Stable,
)
from support.streams import Streams
from support.view_group import SMALL, ViewGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

A, B, C = (Member(Address("127.0.0.1", 7800 + n), n, name) for n, name in enumerate("ABC", 1))
FIFO = Stream.FIFO
V1 = ViewId(A, 1)
ALLOWANCE = 1 << 16
NONE = Mark(0, 0, 0)
EXCHANGES_MAX = 60


def config(**stability: Any) -> MulticastConfig:
    return MulticastConfig(
        capacity=8,
        datagram_bytes=1000,
        window_bytes=1 << 16,
        stability=StabilityConfig(**({"capacity_max": 16} | stability)),
    )


def small_messages(purge: str) -> MulticastConfig:
    return MulticastConfig(stability=StabilityConfig() if purge == "reports" else None)


def data(first: int, *payloads: bytes) -> Data:
    return Data(FIFO, first, list(payloads))


class Machine(Streams):
    """One member's streams in a view of these, and what its application got."""

    def __init__(
        self, me: Member, *members: Member, settings: MulticastConfig | None = None
    ) -> None:
        super().__init__(me, settings or config(), *members)
        self.is_checked = False
        self.got: list[bytes] = []
        self.sent()

    def read(self) -> None:
        self.got += self.payloads()


def exchange(machines: Sequence[Machine]) -> bool:
    """Hand over what was said, and let applications take; whether anything was."""
    is_any = False
    for machine in machines:
        machine.read()
        for dest, frame in machine.sent():
            for other in machines:
                if other is not machine and dest in (None, other.layer.me):
                    is_any = True
                    other.receive(machine.layer.me, frame)
        machine.read()
    return is_any


def run(machines: Sequence[Machine], seconds: float = 0.0) -> None:
    """Nothing takes time but waiting: so many seconds of that."""
    stop = machines[0].now + round(seconds * 1e9)
    while True:
        for _ in range(EXCHANGES_MAX):
            if not exchange(machines):
                break
        for machine in machines:
            machine.layer.check_invariants()
        deadlines = [machine.layer.deadlines.next() for machine in machines]
        deadline = min((at for at in deadlines if at is not None), default=None)
        if deadline is None or deadline > stop:
            return
        for machine in machines:
            machine.now = max(machine.now, deadline)
            machine.layer.handle_timeout(machine.now, machine.out)


# Stability rounds


def test_a_stable_beyond_what_was_sent_is_refused() -> None:
    """If it were believed, whatever is sent later would be let go as soon as it is taken here,
    whoever lacks it (N5)."""
    b = Machine(B, A, B, C)
    b.receive(A, Stable(V1, 1, ALLOWANCE, (NONE, Mark(1000, 1000, 0), NONE)))
    assert b.layer.refused == 1
    b.send(b"1", b"2")
    b.read()
    b.receive(A, Stable(V1, 2, ALLOWANCE, (NONE, Mark(1001, 1001, 0), NONE)))
    assert b.layer.refused == 2
    assert b.window(B).low == 0
    b.layer.check_invariants()


def test_who_asks_for_a_vote_over_and_over_has_everybody_asked_once() -> None:
    members = tuple(Member(Address("10.0.0.1", 1000 + n), 1, f"m{n}") for n in range(50))
    m = Machine(members[0], *members)
    for _ in range(100):
        m.receive(members[1], StabilityQuery(ViewId(members[0], 1), 0))
    asked = [dest for dest, _ in m.sent(StabilityQuery)]
    assert asked == list(members[1:])


def test_who_asks_for_repair_over_and_over_gets_one_window() -> None:
    """Until this member reports again: by then what it sent may have been lost."""
    m = Machine(B, A, B, C, settings=config(capacity_max=1024))
    m.receive(A, data(1, *[bytes(60)] * 1000))
    m.read()
    for _ in range(100):
        m.receive(C, PeerRepairRequest(A, (range(1, 1001),)))
    most = m.layer.receivers[Origin(A, FIFO)].window.capacity_max
    assert m.layer.peer_repaired == most
    m.layer.stabilize(m.now, m.out)
    m.receive(C, PeerRepairRequest(A, (range(1, 1001),)))
    assert m.layer.peer_repaired == most + 1000


def test_what_has_a_slot_since_something_became_stable_is_asked_for() -> None:
    """A has a larger window than B: not all that it has sent has a slot there at first."""
    b = Machine(B, A, B, settings=config(capacity_max=8))
    b.receive(A, data(1, *[b"x"] * 40))
    b.read()
    assert len(b.got) == 16
    repair = b.layer.receivers[Origin(A, FIFO)].repair
    assert repair.announced == 40
    assert not repair.has_gaps
    b.receive(A, Stable(V1, 1, ALLOWANCE, (Mark(16, 16, 0), NONE)))
    assert b.window(A).low == 16
    assert repair.has_gaps


# Small messages, each in a datagram of its own


@pytest.mark.parametrize("purge", ["acks", "reports"])
def test_a_busy_receiver_answers_by_count_and_not_by_the_clock(purge: str) -> None:
    """Each datagram is charged more than the bytes in it: the sender stands still after far fewer
    than a receiver that counts those alone would wait for."""
    a, b = machines = [Machine(me, A, B, settings=small_messages(purge)) for me in (A, B)]
    b.layer.receive_buffer = 16 << 20
    run(machines, 3)
    b.sent()
    while a.send(b"0123456789"):
        pass
    for _, frame in a.sent(Data):
        b.receive(A, frame)
        b.read()
    assert b.sent(StabilityReport, Ack)


@pytest.mark.parametrize("purge", ["acks", "reports"])
def test_small_messages_go_out_as_fast_as_they_are_taken(purge: str) -> None:
    """With a socket buffer of the usual size, and no latency: nobody waits for the clock."""
    a, b = machines = [Machine(me, A, B, settings=small_messages(purge)) for me in (A, B)]
    for m in machines:
        m.layer.receive_buffer = 212_992
    run(machines, 3)
    begun, accepted = a.now, 0
    while accepted < 10_000:
        burst = sum(a.send(b"0123456789") for _ in range(200))
        assert burst, f"the sender stands still after {accepted} messages"
        accepted += burst
        run(machines)
    assert len(b.got) == accepted
    assert a.now == begun


# What a departed sender left


@pytest.mark.parametrize("retain", [True, False])
def test_what_one_survivor_holds_of_a_dead_sender_all_deliver_where_it_is_retained(
    retain: bool,
) -> None:
    """Nobody delivers what lies beyond a gap that nobody can close."""
    stability = StabilityConfig(retain_delivered=retain)
    settings = replace(SMALL, multicast=replace(SMALL.multicast, stability=stability))
    group = ViewGroup("ABC", config=settings, streams=(FIFO,)).form()
    group.send("C")
    group.run(5)
    group.is_lost = lambda source, dest, kinds: source == "C" and dest == "B" and Data in kinds
    group.send("C", 2)
    group.run(5)
    group.is_lost = lambda source, dest, kinds: source == "C" and Data in kinds
    group.send("C")
    group.run(1)
    group.is_lost = lambda source, dest, kinds: source == "C" and dest == "B" and Data in kinds
    group.send("C")
    group.run(1.1)
    old, dead = group.node("A").view, group.node("C").me
    assert old is not None
    group.crash("C")
    assert group.run_until(group.is_quiet, 5_000), group.waits()
    of_c = Origin(dead, FIFO)
    got = [group.observed.got(group.node(name).me, old.id, of_c) for name in "AB"]
    assert [len(each) for each in got] == ([3, 3] if retain else [3, 1])
    assert not group.observed.violations()
