"""Reliable unicast under every order of events: two real nodes, A and B.

What must hold always: the nodes' own invariants; order, once, and content (S1, Y3); a sender
purges only what that very receiver has delivered (S2, Y1); on the same connection it still has all
that the receiver waits for (Y2); nobody asks for a new connection without need (Y4); what ends
undelivered is reported (S8). And from every state the goal stays reachable: all is sent and
delivered, or reported where the receiver is gone; nothing is unacknowledged, no sync request is
outstanding, and no timer runs that would send something.

What keeps it small:
    Idle connections time out only so often; only the dead are given up as silent.
    Ticks are not counted: that a sync request is given up after so many is a fault.
    What is late (of a connection that its receiver knows to be over) and does nothing is gone from
    the flight. That it will never do anything is checked in the end, on every node with everything
    that was ever sent (S7).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ringcast.events import Delivered, GapSkipped, Undeliverable
from ringcast.explore.abstraction import canonical, clone
from ringcast.explore.automata import NAMES
from ringcast.explore.explorer import Violation
from ringcast.explore.system import GONE, Fault, NodeSystem, replaced
from ringcast.model import FIRST_CONN_ID, Conn, View, ViewId
from ringcast.node import Node
from ringcast.protocols.stream import Timer as ReceiverTimer
from ringcast.protocols.unicast import ReliableUnicast, Timer
from ringcast.protocols.unicast_sender import SYNC_TICKS_MAX
from ringcast.protocols.unicast_sender import Timer as SenderTimer
from ringcast.wire.frames import Close, Sync, SyncAck, SyncOk, UnicastAck, UnicastData, UnicastNack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from enum import Enum

    from ringcast.explore.automata import Step
    from ringcast.explore.system import Scenario, State
    from ringcast.model import Member, Run
    from ringcast.protocols.unicast_receiver import UnicastReceiver
    from ringcast.protocols.unicast_sender import UnicastSender
    from ringcast.wire.frames import Frame

Now: TypeAlias = "State[Streams]"
Move: TypeAlias = "tuple[str, Now]"
Moves: TypeAlias = "Iterator[Move]"

LATE_EFFECT = "something that was late had an effect (S7)"
A, B = 0, 1
End: TypeAlias = tuple[int, int]
"""(place, incarnation) of a member."""
Towards: TypeAlias = "Callable[[Node, Member, int], None]"
TICK = (("unicast", "ticks", None), Timer.TICK)
IDLE = (SenderTimer.IDLE, ReceiverTimer.IDLE)
ACKS: set[type[Frame]] = {UnicastAck, SyncAck}


class Facts(NamedTuple):
    """What is read from a node. Nodes that are kept do not change any more."""

    me: End
    peer: End
    """The other one, as this one's view has it."""
    epoch: int
    """The last that it has begun."""
    senders: dict[End, UnicastSender]
    receivers: dict[End, UnicastReceiver]
    known: dict[End, Conn]
    """The newest connection from each that there has been a window for."""
    sync_requests: list[End]


class Channel(NamedTuple):
    """One stream as the applications count: what was sent on it, and what came out."""

    sender: End
    receiver: End
    epoch: int
    before: int
    """How many messages the sender's application had sent before this stream began."""
    sent: int = 0
    delivered: int = 0
    reported: int = 0
    """From this seqno on all are reported as undeliverable; 0: none is."""

    @property
    def kept(self) -> int:
        """Up to here the sender owes delivery."""
        return self.reported - 1 if self.reported else self.sent


class Streams(NamedTuple):
    channels: tuple[Channel, ...] = ()
    uninformed: tuple[bool, ...] = (False, False)
    """By end: a view is on its way to it."""
    asking: tuple[bool, ...] = (False, False)
    """By receiving end: it has asked since its window was last in order."""
    occasions: tuple[int, ...] = (0, 0)
    """By receiving end: how often there was a reason to ask."""


class UnicastSystem(NodeSystem[Facts, Streams]):
    protocol = ReliableUnicast
    timers = frozenset(["unicast"])
    ids = ("S1", "S1, Y3")

    def __init__(self, scenario: Scenario, protocol: type | None = None) -> None:
        super().__init__(scenario, protocol)
        self._is_late = cache(self._carries_what_is_over)

    def initial(self) -> Now:
        return self.at_rest(
            [self._fresh((place, 1), [(A, 1), (B, 1)]) for place in (A, B)], Streams()
        )

    def _fresh(self, me: End, both: list[End]) -> int:
        """A member that has just started, in the view of those that are alive."""
        node = self.build(*me, unicast=self.protocol, streams=())
        node.install_view(self._view(both), 0)
        node.take_events(0, 0)
        return self.number(node)

    def _view(self, ends: list[End]) -> View:
        members = tuple(self.member(*end) for end in sorted(ends))
        return View(ViewId(members[0], sum(incarnation for _, incarnation in ends)), members)

    def _end(self, member: Member) -> End:
        return self.place_of(member), member.incarnation

    def read(self, node: Node) -> Facts:
        unicast, end = node.unicast, self._end
        assert node.view is not None
        (peer,) = [end(member) for member in node.view if member != node.me]
        return Facts(
            me=end(node.me),
            peer=peer,
            epoch=unicast._epoch,
            senders={end(member): each for member, each in unicast.senders.items()},
            receivers={end(member): each for member, each in unicast.receivers.items()},
            known={
                end(member): conn
                for member in (*unicast.receivers, *unicast.tombstones)
                if (conn := unicast._known(member)) is not None
            },
            sync_requests=[end(member) for member in unicast.sync_requests],
        )

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
        facts, source = self.facts[number], self._end(self.datagrams[datagram].sender)
        sending = facts.senders.get(source)
        current = sending.conn if sending else Conn(facts.epoch + 1, FIRST_CONN_ID)
        known = facts.known.get(source, Conn(0, 0))
        return all(_is_late(frame, current, known) for frame in self.datagrams[datagram].frames)

    def arrival(self, state: Now, datagram: int, how: str) -> Move:
        label, after = super().arrival(state, datagram, how)
        node = state.nodes[self.datagrams[datagram].dest]
        if self._is_late(node, datagram) and not self.is_idle(node, datagram):
            after = after._replace(wrong=(*after.wrong, LATE_EFFECT))
        return label, after

    def afterthoughts(self) -> Iterator[Violation]:
        """Each datagram that would change a node for which it is late, and how that node stands."""
        for datagram, (_, dest, content, *_, told) in enumerate(self.datagrams):
            for number, facts in enumerate(self.facts):
                if facts.me[0] == dest and self._is_late(number, datagram):
                    before, now = self.nodes[number]
                    node = clone(before)
                    node.receive_datagrams([content], now)
                    is_silent = not node.take_datagrams() and not node.take_events(0, now)
                    if not is_silent or canonical(node) != canonical(before):
                        yield Violation(
                            LATE_EFFECT,
                            [f"{told} arrives at {NAMES[dest]}, which knows {facts.known}"],
                        )

    # What may happen

    def key(self, state: Now) -> object:
        channels, *rest = state.more
        return (*state[:6], list(map(tuple, channels)), *rest, state.wrong)

    def may_fire(self, state: Now, place: int, timer: Enum, busy: set[int]) -> bool:
        may_fire = super().may_fire(state, place, timer, busy)
        return may_fire and timer not in IDLE and timer is not SenderTimer.GIVE_UP

    def messages(self, state: Now, place: int) -> int:
        """One more for each restart."""
        restarts = sum(self.facts[node].me[1] - 1 for _, node in self.alive(state))
        return self.scenario.messages + restarts

    def send(self, number: int, payload: bytes) -> Step:
        to = self.member(*self.facts[number].peer)
        return self.step(number, payload, lambda node, now: node.send([payload], now, to=to))

    def on_sent(self, state: Now, i: int, step: Step) -> Now:
        me, peer = self.facts[step.after].me, self.facts[step.after].peer
        epoch = self.facts[step.after].senders[peer].conn.epoch
        channel = _find(state, me, peer, epoch) or Channel(me, peer, epoch, state.sent[i] - 1)
        return _updated(state, channel._replace(sent=channel.sent + 1))

    def more_moves(self, state: Now) -> Moves:
        """After a restart both are in the same view again, one after the other. In the end
        everybody gives up on the dead, and on answers nobody waits for."""
        facts_of = [(place, self.facts[node]) for place, node in self.alive(state)]
        alive = {facts.me: facts for _, facts in facts_of}
        for place, _ in facts_of:
            if state.more.uninformed[place]:
                step = self.install_view(state.nodes[place], self._view(list(alive)))
                uninformed = replaced(state.more.uninformed, place, False)
                informed = state._replace(more=state.more._replace(uninformed=uninformed))
                yield self.acts(informed, place, "installs the view with the restarted", step)
        for place, facts in facts_of:
            for peer in facts.sync_requests:
                if peer not in alive:
                    yield self._towards(state, place, "GIVES UP asking", _give_up_asking, peer)
            for owner, timer in self.armed[state.nodes[place]]:
                if timer is SenderTimer.GIVE_UP and self._end(owner[2]) not in alive:  # type: ignore[index]
                    yield self.firing(state, place, owner, timer)
            for peer, entry in facts.senders.items():
                is_answering = not entry._is_confirmed
                if is_answering and not _is_waiting(alive.get(peer), facts.me, entry.conn):
                    yield self._towards(state, place, "GIVES UP answering", _give_up_answer, peer)

    def strike(self, fault: Fault, state: Now) -> Moves:
        yield from super().strike(fault, state)
        for place, node in self.alive(state):
            if fault is Fault.RESTART:
                yield f"RESTART of {NAMES[place]}", self._restart(state, place)
            elif fault is Fault.IDLE:
                for owner, timer in self.armed[node]:
                    if timer in IDLE:
                        yield self.firing(state, place, owner, timer)
            elif fault in TOWARDS:
                told, act, whom = TOWARDS[fault]
                for peer in getattr(self.facts[node], whom):
                    yield self._towards(state, place, told, act, peer)

    def _towards(self, state: Now, place: int, told: str, act: Towards, peer: End) -> Move:
        member = self.member(*peer)
        due = TICK if act in (_give_up_asking, _give_up_answer) else None
        step = self.step(
            state.nodes[place], (act, peer), lambda node, now: act(node, member, now), due=due
        )
        label, after = self.acts(state, place, f"{told} {NAMES[peer[0]]}", step)
        if act is _give_up_asking:
            asking = replaced(after.more.asking, place, False)
            after = after._replace(more=after.more._replace(asking=asking))
        return label, after

    def _restart(self, state: Now, place: int) -> Now:
        """A new member at the same address; the other end hears of it by a view, later."""
        ends = [self.facts[node].me for _, node in self.alive(state)]
        me = (place, dict(ends)[place] + 1)
        both = [end for end in ends if end[0] != place]
        senders = self.scenario.senders
        uninformed = replaced(state.more.uninformed, 1 - place, True)
        return state._replace(
            nodes=replaced(state.nodes, place, self._fresh(me, [*both, me])),
            waiting=tuple(w and senders[i] != place for i, w in enumerate(state.waiting)),
            more=state.more._replace(uninformed=uninformed, asking=(False, False)),
        )

    # What a step leads to

    def after(self, state: Now, place: int, step: Step) -> Now:
        before, facts = self.facts[state.nodes[place]], self.facts[step.after]
        asking, occasions = state.more.asking, state.more.occasions
        state = super().after(state, place, step)
        if not asking[place] and any(Sync in self.datagrams[n].kinds for n in step.datagrams):
            asking = replaced(asking, place, True)
            occasions = replaced(occasions, place, occasions[place] + 1)
        if asking[place] and facts.receivers and not facts.sync_requests:
            asking = replaced(asking, place, False)
        wrong = []
        if any(facts.known.get(peer, conn) < conn for peer, conn in before.known.items()):
            wrong.append("a receiver went back to an older connection (S6)")
        for peer, entry in before.senders.items():
            remaining = facts.senders.get(peer)
            if remaining is None or remaining.conn.epoch != entry.conn.epoch:
                channel = _find(state, before.me, peer, entry.conn.epoch)
                if channel is not None and channel.kept > channel.delivered:
                    wrong.append("a connection ended, and what it left undone is not told (S8)")
        if wrong or asking != state.more.asking:  # occasions do not change alone
            more = state.more._replace(asking=asking, occasions=occasions)
            state = state._replace(more=more, wrong=(*state.wrong, *wrong))
        return state

    def on_event(self, state: Now, place: int, node: int, event: object) -> Now:
        me, wrong = self.facts[node].me, []
        match event:
            case Delivered():
                channel = _find(state, self._end(event.sender), me, event.epoch)
                wrong = [*self._wrong_on(channel, event.run)]
                if channel is not None:
                    state = _updated(state, channel._replace(delivered=event.run.last))
            case Undeliverable():
                channel = _find(state, me, self._end(event.to), event.epoch)
                if channel is None or event.last != channel.sent or channel.reported:
                    wrong = ["something else than what was sent is reported (S8)"]
                else:
                    state = _updated(state, channel._replace(reported=event.first))
            case GapSkipped():
                wrong = ["a receiver skipped messages that the sender purged (Y1)"]
            case _:
                return super().on_event(state, place, node, event)
        return state._replace(wrong=(*state.wrong, *wrong))

    def _wrong_on(self, channel: Channel | None, run: Run) -> Iterator[str]:
        if channel is None or run.last > channel.sent:
            return iter(["a message was delivered that nobody sent (S1)"])
        return self.wrong_delivery(run, channel.delivered, channel.sender[0], channel.before)

    # What must hold

    def violations(self, state: Now) -> Iterator[str]:
        yield from state.wrong
        alive = {(facts := self.facts[node]).me: facts for _, node in self.alive(state)}
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
            if entry.conn.id - FIRST_CONN_ID > state.more.occasions[channel.receiver[0]]:
                yield "more new connections than reasons to ask for one (Y4)"

    def goal(self, state: Now) -> bool:
        """All is sent, and delivered or reported; everybody knows; nothing more will be sent."""
        if any(state.more.uninformed) or (state.flight and not self.scenario.lasting):
            return False
        alive = self.alive(state)
        if not all(timer in IDLE for _, node in alive for _, timer in self.armed[node]):
            return False
        for place, sent in zip(self.scenario.senders, state.sent, strict=True):
            if state.nodes[place] != GONE and sent < self.messages(state, place):
                return False
        ends = [self.facts[node].me for _, node in alive]
        for channel in state.more.channels:
            # Nobody but the dead may be given up.
            owed = channel.sent if channel.receiver in ends else channel.kept
            if channel.sender in ends and channel.delivered < owed:
                return False
        return True


def _give_up_asking(node: Node, peer: Member, now: int) -> None:
    """So many ticks have passed without an answer: this is one too many."""
    node.unicast.sync_requests[peer].asked = SYNC_TICKS_MAX
    node.handle_timeout(now)


def _give_up_answer(node: Node, peer: Member, now: int) -> None:
    """So many ticks have passed without a sign that the answer has arrived."""
    node.unicast.senders[peer]._answer_ticks = SYNC_TICKS_MAX
    node.handle_timeout(now)


TOWARDS: dict[Fault, tuple[str, Towards, str]] = {
    Fault.CLOSE: ("CLOSES", Node.close_to, "senders"),
    Fault.DROP: ("DROPS its window for", Node.drop_from, "receivers"),
    Fault.SYNC: ("OPERATOR wants a sync with", Node.sync, "known"),
    Fault.GIVE_UP: ("GIVES UP asking", _give_up_asking, "sync_requests"),
}
"""In words, what is done, and towards whom, of `Facts`."""


def _is_late(frame: Frame, current: Conn, known: Conn) -> bool:
    """Whether its connection is over: what comes back to a sender is older than its current one,
    what goes to a receiver is older than the one that it knows. A Sync is never too late."""
    match frame:
        case UnicastAck(conn) | UnicastNack(conn) | SyncAck(conn):
            return conn < current
        case UnicastData() | Close() | SyncOk():
            return frame.conn < known
    return False


def _is_waiting(receiver: Facts | None, sender: End, conn: Conn) -> bool:
    """Whether the answer to a Sync still means something to whoever asked."""
    if receiver is None:
        return False
    window = receiver.receivers.get(sender)
    return sender in receiver.sync_requests or (window is not None and window.conn == conn)


def _find(state: Now, sender: End, receiver: End, epoch: int) -> Channel | None:
    for channel in state.more.channels:
        if channel[:3] == (sender, receiver, epoch):
            return channel
    return None


def _updated(state: Now, changed: Channel) -> Now:
    """With this channel in place of its former self; sorted."""
    others = [channel for channel in state.more.channels if channel[:3] != changed[:3]]
    return state._replace(more=state.more._replace(channels=tuple(sorted([*others, changed]))))
