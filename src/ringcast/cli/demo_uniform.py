"""The sender of uniform messages dies when one member alone has them; the flush of the view without
it brings them to all.

Four real nodes, membership and failure detection included, speak real datagrams over a network of
one millisecond. Whatever is told here was read off those datagrams and off what the nodes deliver.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ringcast.config import GroupConfig
from ringcast.events import Delivered, Event, ViewInstalled
from ringcast.model import Address, Member, Stream
from ringcast.node import Node, build_node
from ringcast.sim.plain import FixedDelay, LoseWhere, PlainMember, begin, plain_world
from ringcast.sim.world import Flight
from ringcast.wire import changes
from ringcast.wire.frames import Ack, Commit, Data, Frame

NAMES = "ABCD"
DELAY_NS = 1_000_000
STREAMS = (Stream.FIFO, Stream.UNIFORM)
PAYLOADS = (b"debit 100", b"credit 100", b"close")
SECOND = 1_000_000_000
WITHIN_MS = 10_000.0


class Town:
    """The members by name, on a virtual network, and what is told of both."""

    def __init__(self, tell: Callable[[int, str], None]) -> None:
        """`tell` gets nanoseconds since the telling began, and a sentence."""
        self.delivered: dict[str, list[bytes]] = {name: [] for name in NAMES}
        self.reached = NAMES
        """Who hears the sender."""
        self.world = plain_world(hint_ms=0.0, start=SECOND)
        self.world.network.faults = [LoseWhere(self._is_lost), FixedDelay(DELAY_NS)]
        self.world.network.on_arrival = self._overhear
        self.nodes: dict[str, Node] = {}
        """Of those that live."""
        self._tell = tell
        self._began: int | None = None
        self._told: set[str] = set()

    def form(self) -> None:
        """All of them in one view, the sender first."""
        for name in NAMES:
            me = Member(_address(name), 1, name)
            config = GroupConfig(group="accounts", name=name)
            node = self.nodes[name] = build_node(me, config, streams=STREAMS)
            begin(self.world, PlainMember(node, self._tell_event), list(map(_address, NAMES)))
            self.world.run_until(partial(self._is_in, name), WITHIN_MS)
        self._began = self.world.clock.now

    def send(self, name: str, payloads: tuple[bytes, ...]) -> None:
        self.nodes[name].send(payloads, self.world.clock.now, stream=Stream.UNIFORM)
        self.world.processes[_address(name)].turn()

    def kill(self, name: str) -> None:
        del self.nodes[name]
        self.world.processes[_address(name)].crash()

    def _is_in(self, name: str) -> bool:
        node = self.nodes[name]
        return node.membership is not None and node.membership.is_member and self._agree()

    def _agree(self) -> bool:
        return {node.view for node in self.nodes.values()} == {self.nodes[NAMES[0]].view}

    def _is_lost(self, flight: Flight) -> bool:
        return _name(flight.link.source) == NAMES[0] and _name(flight.link.dest) not in self.reached

    def _overhear(self, flight: Flight) -> None:
        source, dest = _name(flight.link.source), _name(flight.link.dest)
        if dest in self.nodes:
            codec = self.world.processes[flight.link.source].node.codec
            _, frames = codec.unpack(flight.datagram, overhear=True)
            for frame in frames:
                self._tell_frame(source, dest, frame)

    # In words

    def say(self, sentence: str) -> None:
        """Once: what is repeated on the wire is not repeated here."""
        if self._began is not None and sentence not in self._told:
            self._told.add(sentence)
            self._tell(self.world.clock.now - self._began, sentence)

    def _tell_event(self, me: Member, event: Event) -> None:
        name = me.name
        match event:
            case Delivered(sender, run):
                self.delivered[name] += run.payloads
                self.say(f"{name} delivers {_run(run.first, run.last)} of {sender}.")
            case ViewInstalled(view):
                self.say(f"{name} installs {view}.")

    def _tell_frame(self, source: str, dest: str, frame: Frame) -> None:
        match frame:
            case Data(stream=Stream.UNIFORM):
                self.say(f"{dest} gets {_run(frame.first, frame.last)} of {source}, and keeps it.")
            case Ack(Stream.UNIFORM, received, _) if received:
                self.say(f"{source} tells {dest} that it holds {_run(1, received)}.")
            case Commit(seqno) if seqno:
                self.say(f"{source} tells all: everybody holds {_run(1, seqno)}.")
            case _ if dest != NAMES[0]:
                self._tell_change(source, dest, frame)

    def _tell_change(self, source: str, dest: str, frame: Frame) -> None:
        said = f"{source} to {dest}"
        members = list(self.nodes[source].view or ())
        match frame:
            case changes.Propose():
                runs = [run for run in frame.members if isinstance(run, range)]
                names = ", ".join(str(members[place]) for run in runs for place in run)
                self.say(f"{said}: let {names} be view {frame.id.counter}. What do you hold?")
            case changes.State():
                held = [
                    f"{_run(1, seqno)} of {members[place]}"
                    for place, stream, seqno in frame.held
                    if stream is Stream.UNIFORM and members
                ]
                self.say(f"{said}: I hold {', '.join(held) or 'nothing of others'}.")
            case changes.Cut():
                for mark in frame.parts[0].departed:
                    if mark.stream is Stream.UNIFORM:
                        what = f"{members[mark.place]} up to {mark.seqno}"
                        self.say(f"{said}: before view {frame.id.counter} all deliver {what}.")
            case changes.Want():
                lacking = ", ".join(_run(run.start, run.stop - 1) for run in frame.missing)
                self.say(f"{said}: give me {lacking} of {frame.sender}.")
            case changes.Forwarded(data=data):
                self.say(f"{source} hands {dest} {_run(data.first, data.last)} of {frame.sender}.")
            case changes.Flushed():
                self.say(f"{said}: I hold it.")
            case changes.Install():
                self.say(f"{said}: all hold it. View {frame.id.counter} begins.")


def lose_sender(tell: Callable[[int, str], None], reached: str) -> dict[str, list[bytes]]:
    """Let the sender die when only these members have its messages; what each survivor has
    delivered in the end."""
    sender = NAMES[0]
    town = Town(tell)
    town.form()
    town.say(f"The group is {', '.join(NAMES)}. {sender} sends {len(PAYLOADS)} uniform messages.")
    town.reached = reached
    lost = [name for name in NAMES[1:] if name not in reached]
    if lost:
        town.say(f"The network loses what {sender} sends to {', '.join(lost)}.")
    town.send(sender, PAYLOADS)
    town.world.run_until(lambda: False, within_ms=2.5)
    town.say(f"{sender} dies. It has delivered {len(town.delivered[sender])} of them itself.")
    town.kill(sender)
    survivors = list(town.nodes.values())
    town.world.run_until(
        lambda: all(len(node.view or ()) == len(survivors) for node in survivors), WITHIN_MS
    )
    return {name: town.delivered[name] for name in town.nodes}


def _address(name: str) -> Address:
    return Address("127.0.0.1", 7000 + NAMES.index(name))


def _name(address: Address) -> str:
    return NAMES[address.port - 7000]


def _run(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}..{last}"
