"""The two ends of unicast connections as automata: what an exploration of unicast drives."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ringcast.config import GroupConfig, MulticastConfig, UnicastConfig
from ringcast.errors import Reject
from ringcast.explore.automata import DATAGRAM_BYTES, Automata
from ringcast.model import FIRST_CONN_ID, Address, Conn, Member, View, ViewId
from ringcast.node import Node, build_node
from ringcast.protocols.unicast import Timer
from ringcast.protocols.unicast_receiver import Timer as ReceiverTimer
from ringcast.protocols.unicast_sender import SYNC_TICKS_MAX
from ringcast.protocols.unicast_sender import Timer as SenderTimer
from ringcast.wire.frames import (
    Close,
    SyncAck,
    SyncOk,
    UnicastAck,
    UnicastData,
    UnicastNack,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping
    from enum import Enum

    from ringcast.explore.automata import Step
    from ringcast.protocols.unicast import ReliableUnicast
    from ringcast.wire.frames import Frame

End: TypeAlias = tuple[int, int]
"""(place, incarnation) of a member."""

ADDRESSES = [Address("explore", 1), Address("explore", 2)]

_ACKS: set[type[Frame]] = {UnicastAck, SyncAck}

_NOTHING_KNOWN = Conn(0, 0)


TICKS = ("unicast", "ticks", None)
"""Who owns the timer of the tick."""


class Armed(NamedTuple):
    """A timer that may fire."""

    owner: Hashable
    timer: Enum
    told: str
    """Whose it is."""
    peer: End | None
    """Towards whom, if it belongs to a connection."""

    @property
    def is_for_idle(self) -> bool:
        return self.timer in (SenderTimer.IDLE, ReceiverTimer.IDLE)

    @property
    def is_for_silent(self) -> bool:
        return self.timer is SenderTimer.GIVE_UP


class Sending(NamedTuple):
    conn: Conn
    low: int
    high: int
    is_answering: bool
    """It repeats an answer to a Sync."""


class Receiving(NamedTuple):
    conn: Conn
    delivered: int


class Facts(NamedTuple):
    """What the exploration asks about a node, read once."""

    me: End
    peer: End
    """The other one, as this one's view has it."""
    epoch: int
    """The last that it has begun."""
    armed: list[Armed]
    has_ready: bool
    senders: dict[End, Sending]
    receivers: dict[End, Receiving]
    known: dict[End, Conn]
    """The newest connection from each that there has been a window for."""
    sync_requests: list[End]
    is_quiet: bool
    """Left alone, it will send nothing but the end of a connection."""


class Ends(Automata[Facts]):
    """Two members that are in each other's view. Nothing goes to the whole group."""

    def __init__(self, *, capacity: int, unicast: type[ReliableUnicast]) -> None:
        super().__init__(ADDRESSES)
        self._unicast = unicast
        self._spent: dict[tuple[int, int], bool] = {}
        self._late: dict[tuple[int, int], bool] = {}
        self._config = GroupConfig(
            group="explore",
            multicast=MulticastConfig(
                capacity=1, datagram_bytes=DATAGRAM_BYTES, window_bytes=4 * DATAGRAM_BYTES
            ),
            # So small that an ack always allows a whole window: bytes do not count here.
            unicast=UnicastConfig(capacity=capacity, window_bytes=DATAGRAM_BYTES),
        )

    def fresh(self, me: End, incarnations: Mapping[int, int]) -> int:
        """A member that has just started, in the view of those that are alive."""
        node = build_node(self.member(me), self._config, membership=None, unicast=self._unicast)
        node.install_view(self._view(incarnations), 0)
        node.take_events(0, 0)
        return self._node_number(node, 0)

    def member(self, end: End) -> Member:
        place, incarnation = end
        return Member(ADDRESSES[place], incarnation, self.name(place))

    def end_of(self, member: Member) -> End:
        return (self._places[member.address], member.incarnation)

    # Inputs: what would become of the node. The node itself stays as it is.

    def send(self, number: int, payload: bytes, peer: End) -> Step:
        to = self.member(peer)
        return self._step(
            number, ("send", payload, peer), lambda node, now: node.send([payload], now, to=to)
        )

    def take(self, number: int) -> Step:
        return self._step(number, "take", lambda node, now: None, take=1)

    def install_view(self, number: int, incarnations: Mapping[int, int]) -> Step:
        view = self._view(incarnations)
        return self._step(
            number, ("view", view.members), lambda node, now: node.install_view(view, now)
        )

    def close_to(self, number: int, peer: End) -> Step:
        return self._towards(number, peer, Node.close_to)

    def drop_from(self, number: int, peer: End) -> Step:
        return self._towards(number, peer, Node.drop_from)

    def sync(self, number: int, peer: End) -> Step:
        return self._towards(number, peer, Node.sync)

    def _towards(self, number: int, peer: End, act: Callable[[Node, Member, int], None]) -> Step:
        member = self.member(peer)
        return self._step(number, (act.__name__, peer), lambda node, now: act(node, member, now))

    def give_up_sync_request(self, number: int, peer: End) -> Step:
        """So many ticks have passed without an answer: this is one too many."""
        member = self.member(peer)

        def tick(node: Node, now: int) -> None:
            node.unicast.sync_requests[member].asked = SYNC_TICKS_MAX
            node.handle_timeout(now)

        return self._step(number, ("give up the sync_request", peer), tick, due=(TICKS, Timer.TICK))

    def give_up_answer(self, number: int, peer: End) -> Step:
        """So many ticks have passed without a sign that the answer has arrived."""
        member = self.member(peer)

        def tick(node: Node, now: int) -> None:
            node.unicast.senders[member]._answer_ticks = SYNC_TICKS_MAX
            node.handle_timeout(now)

        return self._step(number, ("give up the answer", peer), tick, due=(TICKS, Timer.TICK))

    # What is over

    def is_spent(self, number: int, datagram: int) -> bool:
        """This datagram does nothing to this node, and never will: it is an ack, and acks only
        ever grow, or it is late."""
        found = self._spent.get((number, datagram))
        if found is None:
            is_ack = self.kinds[datagram] <= _ACKS
            found = (is_ack or self.is_late(number, datagram)) and self.is_idle(number, datagram)
            self._spent[number, datagram] = found
        return found

    def is_late(self, number: int, datagram: int) -> bool:
        """All that it carries belongs to connections that are over, as this node should know."""
        found = self._late.get((number, datagram))
        if found is None:
            facts = self.facts[number]
            source = self.end_of(self.senders[datagram])
            sending = facts.senders.get(source)
            current = sending.conn if sending else Conn(facts.epoch + 1, FIRST_CONN_ID)
            known = facts.known.get(source, _NOTHING_KNOWN)
            found = all(_is_late(frame, current, known) for frame in self.frames[datagram])
            self._late[number, datagram] = found
        return found

    # What is read from a node

    def _view(self, incarnations: Mapping[int, int]) -> View:
        members = [self.member(end) for end in sorted(incarnations.items())]
        return View(ViewId(members[0], sum(incarnations.values())), tuple(members))

    def _read(self, node: Node) -> Facts:
        unicast = node.unicast
        assert node.view is not None
        (peer,) = [self.end_of(member) for member in node.view if member != node.me]
        armed = list(self._armed_timers(node))
        return Facts(
            me=self.end_of(node.me),
            peer=peer,
            epoch=unicast._epoch,
            armed=armed,
            has_ready=unicast.has_ready,
            senders={
                self.end_of(member): Sending(
                    entry.conn, entry.window.low, entry.window.high, not entry._is_confirmed
                )
                for member, entry in unicast.senders.items()
            },
            receivers={
                self.end_of(member): Receiving(entry.conn, entry.window.delivered)
                for member, entry in unicast.receivers.items()
            },
            known={
                self.end_of(member): conn
                for member in (*unicast.receivers, *unicast.tombstones)
                if (conn := unicast._known(member)) is not None
            },
            sync_requests=[self.end_of(member) for member in unicast.sync_requests],
            is_quiet=all(timer.is_for_idle for timer in armed),
        )

    def _armed_timers(self, node: Node) -> Iterator[Armed]:
        for owner, timer in self.armed(node):
            assert isinstance(owner, tuple)
            _, what, peer = owner
            whose = {"to": f" towards {peer}", "from": f" for what comes from {peer}"}.get(what, "")
            yield Armed(owner, timer, timer.name + whose, peer and self.end_of(peer))

    def _has_timers(self, owner: Hashable) -> bool:
        return isinstance(owner, tuple) and owner[0] == "unicast"

    def _wrong_with(self, node: Node) -> Iterator[str]:
        yield from super()._wrong_with(node)
        if set(node.rejected) - {Reject.ADDRESSEE.value}:
            yield f"a datagram of a member was rejected: {sorted(node.rejected)}"
        if node.unicast.refused:
            yield "a frame of an honest member was refused"
        if any(entry.window.dropped_high for entry in node.unicast.receivers.values()):
            yield "a receiver dropped what the sender was allowed to send"


def _is_late(frame: Frame, current: Conn, known: Conn) -> bool:
    """Whether its connection is over: what comes back to a sender is older than its current one,
    what goes to a receiver is older than the one that it knows. A Sync is never too late."""
    match frame:
        case UnicastAck(conn) | UnicastNack(conn) | SyncAck(conn):
            return conn < current
        case UnicastData() | Close() | SyncOk():
            return frame.conn < known
        case _:
            return False
