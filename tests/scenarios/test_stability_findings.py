"""Groups that report, and retain what not everybody has: what went wrong in them once, each in as
few members as it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ringcast.config import MulticastConfig, StabilityConfig
from ringcast.core.effects import DigestTaken, DigestWanted, Effects, Reunited
from ringcast.events import Delivered
from ringcast.model import Address, Digest, Member, Origin, Stream, View, ViewId
from ringcast.protocols.multicast import ASK_NS, ReliableMulticast
from ringcast.wire.frames import (
    Ack,
    Begin,
    Data,
    EstateRun,
    EstateWanted,
    Mark,
    PeerRepair,
    PeerRepairRequest,
    StabilityQuery,
    StabilityReport,
    Stable,
    Stage,
    Standing,
    Takeover,
)
from support.state import StateTown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringcast.events import Event
    from ringcast.node import Node
    from ringcast.protocols.uniform import Uniform
    from ringcast.window.windows import ReceiveWindow, SendWindow
    from ringcast.wire.frames import Frame
    from support.membership import Sent

    Loss = Callable[[Member, Member, object], bool]
    """Whether what one member tells another is lost: source, destination and what it is."""

A, B, C, D, X = (
    Member(Address("127.0.0.1", 7800 + n), n, name) for n, name in enumerate("ABCDX", 1)
)
FIFO, UNIFORM = Stream.FIFO, Stream.UNIFORM
BOTH = (FIFO, UNIFORM)
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


def data(first: int, *payloads: bytes, stream: Stream = FIFO) -> Data:
    return Data(stream, first, list(payloads))


class Machine:
    """One member's machine in a view of these, all windows open, and what its application got."""

    def __init__(
        self,
        me: Member,
        *members: Member,
        streams: tuple[Stream, ...] = (FIFO,),
        settings: MulticastConfig | None = None,
    ) -> None:
        self.me = me
        self.layer = ReliableMulticast(me, settings or config(), 900, streams=streams)
        self.out = Effects()
        self.now = 0
        self.members: tuple[Member, ...] = ()
        self.got: list[tuple[Member, bytes]] = []
        if members:
            self.view(*members)
            origins = (Origin(who, stream) for who in members for stream in streams)
            self.layer.install_digest(Digest(dict.fromkeys(origins, 0)), 0, self.out)
        self.out.frames.clear()

    def view(self, *members: Member, counter: int = 1) -> ViewId:
        """Install this one. What was said in the last is lost."""
        self.out.frames.clear()
        self.members = members
        installed = View(ViewId(members[0], counter), members)
        self.layer.group.change(installed, [self.layer], self.now, self.out)
        return installed.id

    def open(self, **offsets: int) -> None:
        """Windows, by a digest."""
        of = {member.name: Origin(member, FIFO) for member in self.members}
        digest = Digest({of[name]: offset for name, offset in offsets.items()})
        self.layer.install_digest(digest, self.now, self.out)

    def receive(self, source: Member, *frames: Frame) -> None:
        self.layer.receive(source, frames, self.now, self.out)

    def send(self, *payloads: bytes) -> int:
        return self.layer.send(payloads, FIFO, self.now, self.out)

    def take(self) -> None:
        for event in self.layer.take_ready(1000, self.now, self.out):
            if isinstance(event, Delivered):
                self.got += [(event.sender, payload) for payload in event.run.payloads]

    def timeout(self, now: int) -> None:
        self.now = max(self.now, now)
        deadline = self.layer.deadlines.next()
        if deadline is not None and deadline <= self.now:
            self.layer.handle_timeout(self.now, self.out)

    def of(self, sender: Member) -> list[bytes]:
        return [payload for who, payload in self.got if who == sender]

    def sent(self, *kinds: type[Frame]) -> list[tuple[Member | Address | None, Frame]]:
        frames = [pair for pair in self.out.frames if isinstance(pair[1], kinds)]
        self.out.frames.clear()
        return frames

    def window(self, sender: Member) -> SendWindow | ReceiveWindow:
        return self.layer.windows()[Origin(sender, FIFO)]

    def left_on(self, stream: Stream) -> Uniform:
        return self.layer.uniform if stream is UNIFORM else self.layer.retained


def nothing_is_lost(source: Member, dest: Member, said: object) -> bool:
    return False


def exchange(machines: Sequence[Machine], lose: Loss = nothing_is_lost) -> bool:
    """Hand over what was said, and let applications take; whether anything was."""
    is_any = False
    for machine in machines:
        machine.take()
        frames, messages = list(machine.out.frames), list(machine.out.messages)
        machine.out.frames.clear()
        machine.out.messages.clear()
        for dest, frame in frames:
            for other in machines:
                is_for_it = other is not machine and dest in (None, other.me)
                if is_for_it and not lose(machine.me, other.me, frame):
                    is_any = True
                    other.receive(machine.me, frame)
        for member, message in messages:
            for other in machines:
                if other.me == member and not lose(machine.me, member, message):
                    assert isinstance(message, EstateWanted | EstateRun)
                    is_any = True
                    other.layer.receive_message(machine.me, message, other.now, other.out)
        machine.take()
    return is_any


def run(machines: Sequence[Machine], seconds: float = 0.0, lose: Loss = nothing_is_lost) -> None:
    """Nothing takes time but waiting: so many seconds of that."""
    stop = machines[0].now + round(seconds * 1e9)
    while True:
        for _ in range(EXCHANGES_MAX):
            if not exchange(machines, lose):
                break
        for machine in machines:
            machine.layer.check_invariants()
        deadline = next_timeout(machines)
        if deadline is None or deadline > stop:
            return
        for machine in machines:
            machine.timeout(deadline)


def next_timeout(machines: Sequence[Machine]) -> int | None:
    deadlines = (machine.layer.deadlines.next() for machine in machines)
    return min((at for at in deadlines if at is not None), default=None)


def is_resolved(said: object) -> bool:
    """Whether it tells that what somebody left is resolved."""
    return isinstance(said, Takeover) and any(
        claim.stage is Stage.RESOLVED for claim in said.claims
    )


# What a departed sender left is resolved


@pytest.mark.parametrize("is_late", [False, True])
def test_a_taker_that_began_late_or_never_gives_all_that_somebody_lacks(is_late: bool) -> None:
    """A has merged with the others, and X died before its Begin came there, or after: it says 3. B
    has less than C has delivered, and gets the rest by way of A."""
    a, b, c = machines = [Machine(A, A), Machine(B, B, C, X), Machine(C, B, C, X)]
    b.receive(X, data(1, b"1"))
    c.receive(X, data(1, b"1", b"2", b"3"))
    for m in machines:
        m.take()
        m.view(A, B, C, X, counter=5)
    if is_late:
        a.receive(X, Begin(FIFO, 5, 3, is_middle=False))
    for m in machines:
        m.view(A, B, C, counter=6)
    run(machines, 20)
    assert b.of(X) == c.of(X) == [b"1", b"2", b"3"]
    assert a.of(X) == []
    assert all(m.layer.retained.is_settled for m in machines), a.layer.explain(a.now)


def test_nobody_waits_for_what_a_joiner_never_had() -> None:
    """Its window opened at 3 by the digest of somebody who has crashed; C has 1 of X, and nobody
    has 2 and 3."""
    c = Machine(C, A, X, C)
    c.receive(X, data(1, b"1"))
    c.take()
    d = Machine(D)
    for m in (c, d):
        m.view(A, X, C, D, counter=2)
    c.open(D=0)
    d.open(X=3, A=0, C=0)
    for m in (c, d):
        m.view(C, D, counter=3)
    run([c, d], 20)
    assert c.layer.retained.is_settled, c.layer.explain(c.now)
    assert d.layer.retained.is_settled
    assert (c.of(X), d.of(X)) == ([b"1"], [])


@pytest.mark.parametrize("stream", BOTH, ids=["fifo", "uniform"])
def test_nobody_waits_for_what_came_before_a_begin(stream: Stream) -> None:
    """After a merge X had D begin at 3, C lacks 2 and 3, and X has crashed."""
    c, d = machines = [Machine(C, C, X, streams=BOTH), Machine(D, D, streams=BOTH)]
    c.receive(X, data(1, b"1", stream=stream))
    for m in machines:
        m.take()
        m.view(C, X, D, counter=5)
    d.receive(X, Begin(stream, 5, 3, is_middle=False))
    for m in machines:
        m.view(C, D, counter=6)
    run(machines, 20)
    assert c.left_on(stream).is_settled, c.layer.explain(c.now)
    assert d.left_on(stream).is_settled
    assert (c.of(X), d.of(X)) == ([b"1"], [])


def test_two_parts_that_have_resolved_a_sender_with_different_ends_come_together() -> None:
    """A and B have resolved X at 1. With C and D it went on to 3, which became stable, and was
    resolved as well. B and D have not heard so, and say what they have once more: B has less, and
    what it lacks is retained by nobody."""
    a, b = Machine(A, A, B, X), Machine(B, A, B, X)
    c, d = Machine(C, C, D, X), Machine(D, C, D, X)
    v1 = ViewId(C, 1)
    for m in (a, b, c, d):
        m.receive(X, data(1, b"1"))
    for m in (c, d):
        m.receive(X, data(2, b"2", b"3"))
        m.take()
    d.receive(C, Stable(v1, 1, ALLOWANCE, (NONE, NONE, Mark(3, 3, 0))))
    for reporter in (D, X):
        c.receive(reporter, StabilityReport(v1, 0, ALLOWANCE, (0, 0, 3)))
    c.layer.stabilize(c.now, c.out)
    assert (c.window(X).low, d.window(X).low) == (3, 3)
    for part in ((a, b), (c, d)):
        for m in part:
            m.take()
            m.view(*(other.me for other in part), counter=2)
        run(part, lose=lambda source, dest, said: is_resolved(said))
    assert [m.layer.retained.is_settled for m in (a, b, c, d)] == [True, False, True, False]
    for m in (a, b, c, d):
        m.view(A, B, C, D, counter=5)
    run([a, b, c, d], 20)
    assert all(m.layer.retained.is_settled for m in (a, b, c, d)), a.layer.explain(a.now)
    assert a.of(X) == b.of(X) == [b"1"]
    assert c.of(X) == d.of(X) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("stream", BOTH, ids=["fifo", "uniform"])
def test_what_lay_beyond_a_gap_does_not_come_back_in_the_next_view(stream: Stream) -> None:
    """B holds 1 and, beyond a gap, 3 and 4. It fetches 2 and all deliver that; but in the next view
    B, which has not heard that X is resolved, has no more of it than the others delivered."""
    a, b, c = machines = [Machine(me, A, B, C, X, streams=BOTH) for me in (A, B, C)]
    for m in machines:
        m.receive(X, data(1, b"1", stream=stream))
    for m in (a, c):
        m.receive(X, data(2, b"2", stream=stream))
    b.receive(X, data(3, b"3", b"4", stream=stream))
    for m in machines:
        m.take()
        m.view(A, B, C, counter=2)
    run(machines, lose=lambda source, dest, said: dest == B and is_resolved(said))
    assert a.left_on(stream).is_settled
    assert not b.left_on(stream).is_settled
    for m in (a, b):
        m.view(A, B, counter=3)
    run([a, b], 20)
    assert b.left_on(stream).is_settled
    assert a.of(X) == b.of(X) == c.of(X) == [b"1", b"2"]


# Stability rounds


@pytest.mark.parametrize("retain", [True, False])
def test_whose_window_opens_after_two_rounds_votes_for_it(retain: bool) -> None:
    """After a merge two rounds end before X's Begin comes to B, which knows of nothing until then
    and has settled. Its window opens at 3: X lets go of that once B has reported again."""
    settings = config(retain_delivered=retain)
    a, b = Machine(A, A, B, settings=settings), Machine(B, A, B, settings=settings)
    x = Machine(X, X, D, settings=settings)
    x.send(b"1", b"2", b"3")
    x.take()
    machines = [a, b, x]
    for m in machines:
        m.layer.handle_signal(Reunited((A, B) if m is x else (X,)), m.now, m.out)
        m.view(A, B, X, counter=5)

    def is_begin_for_b(source: Member, dest: Member, said: object) -> bool:
        return isinstance(said, Begin) and (source, dest) == (X, B)

    run(machines, 0.2, is_begin_for_b)
    assert Origin(X, FIFO) not in b.layer.windows()
    assert x.window(X).low == 0
    run(machines, 30)
    assert b.window(X).low == 3
    assert (x.window(X).low, x.window(X).high) == (3, 3), x.layer.explain(x.now)


def test_a_stable_beyond_what_was_sent_is_refused() -> None:
    """If it were believed, whatever is sent later would be let go as soon as it is taken here,
    whoever lacks it (N5)."""
    b = Machine(B, A, B, C)
    b.receive(A, Stable(V1, 1, ALLOWANCE, (NONE, Mark(1000, 1000, 0), NONE)))
    assert b.layer.refused == 1
    b.send(b"1", b"2")
    b.take()
    b.receive(A, Stable(V1, 2, ALLOWANCE, (NONE, Mark(1001, 1001, 0), NONE)))
    assert b.layer.refused == 2
    assert b.window(B).low == 0
    b.layer.check_invariants()


def test_who_asks_for_a_vote_over_and_over_has_everybody_asked_once() -> None:
    members = tuple(Member(Address("10.0.0.1", 1000 + n), n, f"m{n}") for n in range(50))
    m = Machine(members[0], *members)
    for _ in range(100):
        m.receive(members[1], StabilityQuery(ViewId(members[0], 1), 0))
    asked = [dest for dest, _ in m.sent(StabilityQuery)]
    assert asked == list(members[1:])


def test_who_asks_for_repair_over_and_over_gets_one_window() -> None:
    """Until this member reports again: by then what it sent may have been lost."""
    m = Machine(B, A, B, C, settings=config(capacity_max=1024))
    m.receive(A, data(1, *[bytes(60)] * 1000))
    m.take()
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
    b.take()
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
    b.out.frames.clear()
    while a.send(b"0123456789"):
        pass
    for _, frame in a.sent(Data):
        b.receive(A, frame)
        b.take()
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
    assert len(b.of(A)) == accepted
    assert a.now == begun


# Joiners


def before_a_join() -> tuple[Machine, ViewId]:
    """A has taken 3 of X, lets C in, and knows that X is there."""
    a = Machine(A, A, B, X)
    a.receive(X, data(1, b"1", b"2", b"3"))
    a.take()
    v2 = a.view(A, B, X, C, counter=2)
    a.layer.handle_signal(DigestWanted((C,)), a.now, a.out)
    a.receive(X, StabilityReport(v2, 0, ALLOWANCE, (0, 0, 3, 0)))
    return a, v2


def taken(m: Machine) -> list[DigestTaken]:
    return [signal for signal in m.out.signals if isinstance(signal, DigestTaken)]


def test_a_joiner_begins_after_what_all_old_members_have_taken() -> None:
    """If A and X died now, nobody could give B what came before."""
    a, v2 = before_a_join()
    a.receive(B, StabilityReport(v2, 0, ALLOWANCE, (0, 0, 1, 0)))
    assert taken(a) == []
    for _ in range(3):
        a.out.frames.clear()
        a.timeout(a.now + ASK_NS)
        assert a.sent(StabilityQuery) == [(B, StabilityQuery(v2, 0))]
    assert taken(a) == []
    a.receive(X, data(4, b"4"))
    a.take()
    a.receive(B, StabilityReport(v2, 0, ALLOWANCE, (0, 0, 3, 0)))
    (told,) = taken(a)
    of_x = Origin(X, FIFO)
    assert told.digest.entries[of_x] == 3, "what came meanwhile is not waited for"
    assert told.taken is not None
    assert told.taken.entries[of_x] == 4
    a.out.frames.clear()
    a.timeout(a.now + ASK_NS)
    assert a.sent(StabilityQuery) == []


def test_a_joiner_does_not_wait_for_an_old_member_that_is_not_open() -> None:
    """Whoever let B in has died on it: B is in the view, and has never begun."""
    a, v2 = before_a_join()
    assert taken(a) == []
    a.receive(B, Standing(v2, False, (), FIFO))
    (told,) = taken(a)
    assert told.digest.entries[Origin(X, FIFO)] == 3


class RetainingTown(StateTown):
    """A town in which messages may come after their sender has departed."""

    def __init__(self) -> None:
        super().__init__(stability=StabilityConfig())

    def _check(self, node: Node, event: Event) -> None:
        view = node.view
        if isinstance(event, Delivered) and view is not None and event.sender not in view:
            key = (node.me, Origin(event.sender, event.run.stream))
            self._check_order(key, event.run.first, event.run.last)
        else:
            super()._check(node, event)


@pytest.mark.parametrize("first", ["the sender departs", "the state comes"])
def test_a_joiner_gets_nothing_twice(first: str) -> None:
    """C lacks what E has said since C came. A, which was to give the state, crashes, and so does E.
    B gives a state that has all of E in it, before what E left is resolved."""
    town = RetainingTown()
    town.form("ABE")
    sender = town.nodes["E"].me
    town.send("E", b"early")
    town.run(0.5)
    town.mute = {"A", "B"} if first == "the state comes" else {"A"}
    town.start("C")
    town.run_until(lambda: town.state("C").is_catching_up, within=2)
    town.run(0.5)

    def is_for_c(sent: Sent) -> bool:
        return sent.dest == "C" and (sent.has(Data) or sent.has(PeerRepair))

    town.lose = is_for_c
    town.send("E", b"late")
    town.run(0.1)
    town.lose = lambda sent: sent.has(Takeover) or sent.has(Standing) or is_for_c(sent)
    if first == "the state comes":
        town.crash("A")
        town.run_until_agreed("BEC", within=30)
        town.mute.clear()
        town._turn("B")
        town.run_until(lambda: town.is_up_to_date("C"), within=30)
        town.crash("E")
        town.run_until_agreed("BC", within=30)
    else:
        town.crash("AE")
        town.run_until_agreed("BC", within=30)
        town.run_until(lambda: town.is_up_to_date("C"), within=30)
    town.heal()
    town.run(5)
    assert town.application("B").of(sender) == ["early", "late"]
    assert town.application("C").of(sender) == ["early", "late"]
