"""Reliable unicast under every order of events: two real nodes, A and B. What may happen, and what
must hold, says docs/howto/explore.md.

What keeps it small:
    Idle connections time out only so often; only the dead are given up as silent.
    Ticks are not counted: that a sync request is given up after so many is a fault.
    What is late (of a connection that its receiver knows to be over) and does nothing is gone from
    the flight. That it will never do anything is checked in the end, on every node with everything
    that was ever sent (S7).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import cache
from typing import Any, NamedTuple, TypeAlias

from ringcast.events import Delivered, GapSkipped, Undeliverable
from ringcast.explore.abstraction import canonical, clone
from ringcast.explore.automata import NAMES, Step
from ringcast.explore.explorer import Violation
from ringcast.explore.system import GONE, Fault, Move, Moves, NodeSystem, Scenario, State, replaced
from ringcast.model import FIRST_CONN_ID, Conn, Member, Run, View, ViewId
from ringcast.node import Node
from ringcast.protocols.connection import Timer as Idle
from ringcast.protocols.unicast import ReliableUnicast
from ringcast.protocols.unicast_receiving import Timer
from ringcast.protocols.unicast_sender import SYNC_TICKS_MAX
from ringcast.protocols.unicast_sender import Timer as SenderTimer
from ringcast.wire.frames import (
    Close,
    Frame,
    Sync,
    SyncAck,
    SyncOk,
    UnicastAck,
    UnicastData,
    UnicastNack,
)

LATE_EFFECT = "something that was late had an effect (S7)"
A, B = 0, 1
Towards: TypeAlias = "Callable[[Node, Member, int], None]"
TICK = (("unicast", "ticks", None), Timer.TICK)
ACKS: set[type[Frame]] = {UnicastAck, SyncAck}


class Channel(NamedTuple):
    """One stream as the applications count: what was sent on it, and what came out."""

    sender: Member
    receiver: Member
    epoch: int
    before: int  # how many messages the sender's application had sent before this stream began
    sent: int = 0
    delivered: int = 0
    reported: int = 0  # from this seqno on all are reported as undeliverable; 0: none is

    @property
    def kept(self) -> int:
        """Up to here the sender owes delivery."""
        return self.reported - 1 if self.reported else self.sent


class Streams(NamedTuple):
    """What is added to a state."""

    channels: tuple[Channel, ...] = ()  # sorted
    asking: tuple[bool, ...] = (False, False)  # by receiving end: since its window was in order
    occasions: tuple[int, ...] = (0, 0)  # by receiving end: how often there was a reason to ask

    def find(self, sender: Member, receiver: Member, epoch: int) -> Channel | None:
        wanted = (sender, receiver, epoch)
        return next((channel for channel in self.channels if channel[:3] == wanted), None)

    def update(self, changed: Channel) -> Streams:
        """With this channel in place of its former self."""
        others = [channel for channel in self.channels if channel[:3] != changed[:3]]
        return self._replace(channels=tuple(sorted([*others, changed])))


class UnicastSystem(NodeSystem):
    protocol = ReliableUnicast
    timers = frozenset(["unicast"])
    ids = ("S1", "S1, Y3")

    def __init__(self, scenario: Scenario, protocol: type | None = None) -> None:
        super().__init__(scenario, protocol)
        self._is_late = cache(self._carries_what_is_over)
        self._known = cache(self._read_known)

    def initial(self) -> State:
        both = [self.member(A), self.member(B)]
        return self.at_rest([self._started(me, both) for me in both], Streams())

    def _started(self, me: Member, alive: Iterable[Member]) -> int:
        return self.fresh(me, _view_of(alive), unicast=self.protocol, streams=())

    # What is read from nodes

    def _alive(self, state: State) -> dict[Member, ReliableUnicast]:
        return {(node := self.nodes[each]).me: node.unicast for _, each in self.alive(state)}

    def _peer(self, number: int) -> Member:
        """The other one, as this one's view has it."""
        node = self.nodes[number]
        return next(member for member in node.view or () if member != node.me)

    def _read_known(self, number: int) -> dict[Member, Conn]:
        """The newest connection from each that there has been a window for."""
        unicast = self.nodes[number].unicast
        peers = (*unicast.receivers, *unicast.tombstones)
        return {peer: conn for peer in peers if (conn := unicast._known(peer)) is not None}

    def wrong_with(self, node: Node) -> Iterator[str]:
        yield from super().wrong_with(node)
        if node.unicast.refused:
            yield "a frame of an honest member was refused"
        if any(entry.window.dropped_high for entry in node.unicast.receivers.values()):
            yield "a receiver dropped what the sender was allowed to send"

    # What is late

    def is_over(self, number: int, datagram: int) -> bool:
        """It is an ack, and acks only ever grow, or it is late."""
        is_last = self.datagrams[datagram].kinds <= ACKS or self._is_late(number, datagram)
        return is_last and self.is_idle(number, datagram)

    def _carries_what_is_over(self, number: int, datagram: int) -> bool:
        """All that is in it belongs to connections that are over, as this node should know."""
        source = self.datagrams[datagram].sender
        unicast = self.nodes[number].unicast
        sending = unicast.senders.get(source)
        current = sending.conn if sending else Conn(unicast._epoch + 1, FIRST_CONN_ID)
        known = self._known(number).get(source, Conn(0, 0))
        return all(_is_late(frame, current, known) for frame in self.datagrams[datagram].frames)

    def arrival(self, state: State, datagram: int, how: str) -> Move:
        label, after = super().arrival(state, datagram, how)
        node = state.nodes[self.datagrams[datagram].dest]
        if self._is_late(node, datagram) and not self.is_idle(node, datagram):
            after = after._replace(wrong=(*after.wrong, LATE_EFFECT))
        return label, after

    def afterthoughts(self) -> Iterator[Violation]:
        """Each datagram that would change a node for which it is late, and how that node stands."""
        for datagram, (_, dest, content, *_, told) in enumerate(self.datagrams):
            for number, before in enumerate(self.nodes):
                if self.place_of(before.me) == dest and self._is_late(number, datagram):
                    node, now = clone(before), self.clocks[number]
                    node.receive_datagrams([content], now)
                    is_silent = not node.take_datagrams() and not node.take_events(0, now)
                    if not is_silent or canonical(node) != canonical(before):
                        known = {str(m): conn for m, conn in self._known(number).items()}
                        at = f"{told} arrives at {before.me}, which knows {known}"
                        yield Violation(LATE_EFFECT, [at])

    # What may happen

    def key(self, state: State) -> object:
        channels, *rest = state.more
        named = [(each.sender.name, each.receiver.name, *each[2:]) for each in channels]
        return (*state[:5], named, *rest, state.wrong)

    def may_fire(self, state: State, place: int, timer: Enum, busy: set[int]) -> bool:
        may_fire = super().may_fire(state, place, timer, busy)
        return may_fire and timer is not Idle.IDLE and timer is not SenderTimer.GIVE_UP

    def messages(self, state: State, place: int) -> int:
        """One more for each restart."""
        restarts = sum(member.incarnation - 1 for member in self._alive(state))
        return self.scenario.messages + restarts

    def where(self, number: int) -> dict[str, Any]:
        return {"to": self._peer(number)}

    def on_sent(self, state: State, i: int, step: Step) -> State:
        node, peer = self.nodes[step.after], self._peer(step.after)
        epoch = node.unicast.senders[peer].conn.epoch
        found = state.more.find(node.me, peer, epoch)
        channel = found or Channel(node.me, peer, epoch, state.sent[i] - 1)
        return state._replace(more=state.more.update(channel._replace(sent=channel.sent + 1)))

    def more_moves(self, state: State) -> Moves:
        """After a restart both are in the same view again, one after the other. In the end
        everybody gives up on the dead, and on answers nobody waits for."""
        alive = self._alive(state)
        for place in self._uninformed(state):
            step = self.install_view(state.nodes[place], _view_of(alive))
            yield self.acts(state, place, "installs the view with the restarted", step)
        for place, number in self.alive(state):
            node = self.nodes[number]
            for peer in node.unicast.sync_requests:
                if peer not in alive:
                    yield self._towards(state, place, "GIVES UP asking", _give_up_asking, peer)
            for armed in self.armed[number]:
                if armed[1] is SenderTimer.GIVE_UP and armed[0][2] not in alive:  # type: ignore[index]
                    yield self.firing(state, place, armed)
            for peer, entry in node.unicast.senders.items():
                is_answering = not entry._is_confirmed
                if is_answering and not _is_waiting(alive.get(peer), node.me, entry.conn):
                    yield self._towards(state, place, "GIVES UP answering", _give_up_answer, peer)

    def _uninformed(self, state: State) -> list[int]:
        """Whose view still has a former incarnation of the other one."""
        alive = self._alive(state)
        is_both = len(alive) == self.scenario.size
        return [p for p, node in self.alive(state) if is_both and self._peer(node) not in alive]

    def strike(self, fault: Fault, state: State) -> Moves:
        yield from super().strike(fault, state)
        for place, number in self.alive(state):
            if fault is Fault.RESTART:
                yield f"RESTART of {NAMES[place]}", self._restart(state, place)
            elif fault is Fault.IDLE:
                for armed in self.armed[number]:
                    if armed[1] is Idle.IDLE:
                        yield self.firing(state, place, armed)
            elif fault in TOWARDS:
                told, act, whom = TOWARDS[fault]
                for peer in whom(self, number):
                    yield self._towards(state, place, told, act, peer)

    def _towards(self, state: State, place: int, told: str, act: Towards, peer: Member) -> Move:
        due = TICK if act in (_give_up_asking, _give_up_answer) else None
        step = self.step(
            state.nodes[place], (act, peer), lambda node, now: act(node, peer, now), due=due
        )
        label, after = self.acts(state, place, f"{told} {NAMES[self.place_of(peer)]}", step)
        if act is _give_up_asking:
            asking = replaced(after.more.asking, place, False)
            after = after._replace(more=after.more._replace(asking=asking))
        return label, after

    def _restart(self, state: State, place: int) -> State:
        """A new member at the same address; the other end hears of it by a view, later."""
        me = self.nodes[state.nodes[place]].me
        again = self.member(place, me.incarnation + 1)
        alive = [again, *(member for member in self._alive(state) if member != me)]
        senders = self.scenario.senders
        return state._replace(
            nodes=replaced(state.nodes, place, self._started(again, alive)),
            waiting=tuple(w and senders[i] != place for i, w in enumerate(state.waiting)),
            more=state.more._replace(asking=(False, False)),
        )

    # What a step leads to

    def after(self, state: State, place: int, step: Step) -> State:
        before, known = state.nodes[place], self._known(step.after)
        me, unicast = self.nodes[step.after].me, self.nodes[step.after].unicast
        asking, occasions = state.more.asking, state.more.occasions
        state = super().after(state, place, step)
        if not asking[place] and any(Sync in self.datagrams[n].kinds for n in step.datagrams):
            asking = replaced(asking, place, True)
            occasions = replaced(occasions, place, occasions[place] + 1)
        if asking[place] and unicast.receivers and not unicast.sync_requests:
            asking = replaced(asking, place, False)
        wrong = []
        if any(known.get(peer, conn) < conn for peer, conn in self._known(before).items()):
            wrong.append("a receiver went back to an older connection (S6)")
        for peer, entry in self.nodes[before].unicast.senders.items():
            remaining = unicast.senders.get(peer)
            if remaining is None or remaining.conn.epoch != entry.conn.epoch:
                channel = state.more.find(me, peer, entry.conn.epoch)
                if channel is not None and channel.kept > channel.delivered:
                    wrong.append("a connection ended, and what it left undone is not told (S8)")
        if wrong or asking != state.more.asking:  # occasions do not change alone
            more = state.more._replace(asking=asking, occasions=occasions)
            state = state._replace(more=more, wrong=(*state.wrong, *wrong))
        return state

    def on_event(self, state: State, place: int, node: int, event: object) -> State:
        me, more = self.nodes[node].me, state.more
        wrong: list[str] = []
        match event:
            case Delivered():
                channel = more.find(event.sender, me, event.epoch)
                wrong = [*self._wrong_on(channel, event.run)]
                if channel is not None:
                    more = more.update(channel._replace(delivered=event.run.last))
            case Undeliverable():
                channel = more.find(me, event.to, event.epoch)
                if channel is None or event.last != channel.sent or channel.reported:
                    wrong = ["something else than what was sent is reported (S8)"]
                else:
                    more = more.update(channel._replace(reported=event.first))
            case GapSkipped():
                wrong = ["a receiver skipped messages that the sender purged (Y1)"]
            case _:
                return super().on_event(state, place, node, event)
        return state._replace(more=more, wrong=(*state.wrong, *wrong))

    def _wrong_on(self, channel: Channel | None, run: Run) -> Iterator[str]:
        if channel is None or run.last > channel.sent:
            return iter(["a message was delivered that nobody sent (S1)"])
        sender = self.place_of(channel.sender)
        return self.wrong_delivery(run, channel.delivered, sender, channel.before)

    # What must hold

    def violations(self, state: State) -> Iterator[str]:
        yield from state.wrong
        alive = self._alive(state)
        for channel in state.more.channels:
            sender, receiver = alive.get(channel.sender), alive.get(channel.receiver)
            entry = sender.senders.get(channel.receiver) if sender else None
            end = receiver.receivers.get(channel.sender) if receiver else None
            counted = end.window.delivered if end and end.conn.epoch == channel.epoch else 0
            if counted > channel.delivered:
                yield "a receiver counts as delivered what its application never got (S2)"
            if entry is None or entry.conn.epoch != channel.epoch:
                continue
            low = entry.window.low
            if entry.window.high != channel.sent:
                yield "a message that was accepted has no seqno, or one that was not has (S1)"
            if low > channel.delivered:
                yield "a sender purged what the receiver has not delivered (S2, Y1)"
            if end is not None and end.conn == entry.conn and low > end.window.delivered:
                yield "on one connection, the receiver waits for what the sender purged (Y2)"
            occasions = state.more.occasions[self.place_of(channel.receiver)]
            if entry.conn.id - FIRST_CONN_ID > occasions:
                yield "more new connections than reasons to ask for one (Y4)"

    def goal(self, state: State) -> bool:
        """All is sent, and delivered or reported; everybody knows; nothing more will be sent."""
        if self._uninformed(state) or (state.flight and not self.scenario.lasting):
            return False
        nodes = [node for _, node in self.alive(state)]
        if not all(timer is Idle.IDLE for node in nodes for _, timer in self.armed[node]):
            return False
        for place, sent in zip(self.scenario.senders, state.sent, strict=True):
            if state.nodes[place] != GONE and sent < self.messages(state, place):
                return False
        alive = self._alive(state)
        for channel in state.more.channels:
            # Nobody but the dead may be given up.
            owed = channel.sent if channel.receiver in alive else channel.kept
            if channel.sender in alive and channel.delivered < owed:
                return False
        return True


def _view_of(members: Iterable[Member]) -> View:
    """Each restart makes another one."""
    ordered = tuple(sorted(members))
    return View(ViewId(ordered[0], sum(member.incarnation for member in ordered)), ordered)


def _give_up_asking(node: Node, peer: Member, now: int) -> None:
    """So many ticks have passed without an answer: this is one too many."""
    node.unicast.sync_requests[peer].asked = SYNC_TICKS_MAX
    node.handle_timeout(now)


def _give_up_answer(node: Node, peer: Member, now: int) -> None:
    """So many ticks have passed without a sign that the answer has arrived."""
    node.unicast.senders[peer]._answer_ticks = SYNC_TICKS_MAX
    node.handle_timeout(now)


TOWARDS: dict[Fault, tuple[str, Towards, Callable[[UnicastSystem, int], Iterable[Member]]]] = {
    Fault.CLOSE: ("CLOSES", Node.close_to, lambda s, n: s.nodes[n].unicast.senders),
    Fault.DROP: ("DROPS its window for", Node.drop_from, lambda s, n: s.nodes[n].unicast.receivers),
    Fault.SYNC: ("OPERATOR wants a sync with", Node.sync, lambda s, n: s._known(n)),
    Fault.GIVE_UP: (
        "GIVES UP asking",
        _give_up_asking,
        lambda s, n: s.nodes[n].unicast.sync_requests,
    ),
}
"""In words, what is done, and towards whom."""


def _is_late(frame: Frame, current: Conn, known: Conn) -> bool:
    """Whether its connection is over: what comes back to a sender is older than its current one,
    what goes to a receiver is older than the one that it knows. A Sync is never too late."""
    match frame:
        case UnicastAck(conn) | UnicastNack(conn) | SyncAck(conn):
            return conn < current
        case UnicastData() | Close() | SyncOk():
            return frame.conn < known
    return False


def _is_waiting(receiver: ReliableUnicast | None, sender: Member, conn: Conn) -> bool:
    """Whether the answer to a Sync still means something to whoever asked."""
    if receiver is None:
        return False
    window = receiver.receivers.get(sender)
    return sender in receiver.sync_requests or (window is not None and window.conn == conn)
