"""A take-over in virtual time: the sender of uniform messages dies when one member alone has them.

Four real nodes, membership and failure detection included, speak real datagrams over a network of
one millisecond. Whatever is told here was read off those datagrams and off what the nodes deliver.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from ringcast.config import GroupConfig
from ringcast.errors import DecodeError
from ringcast.events import Delivered, ViewInstalled
from ringcast.model import Address, Member, Stream
from ringcast.node import build_node
from ringcast.wire.frames import (
    Ack,
    Commit,
    Data,
    EstateRun,
    EstateWanted,
    Stage,
    Standing,
    Takeover,
    UnicastData,
)
from ringcast.wire.messages import decode_message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringcast.events import Event
    from ringcast.node import Node
    from ringcast.wire.frames import Frame

NAMES = "ABCD"
DELAY_NS = 1_000_000
STREAMS = (Stream.FIFO, Stream.UNIFORM)
PAYLOADS = (b"debit 100", b"credit 100", b"close")
SECOND = 1_000_000_000
TAKE_MAX = 100


@dataclass(slots=True)
class Town:
    """The members by name, the network between them, and what is told of both."""

    tell: Callable[[int, str], None]
    """(nanoseconds since the telling began, a sentence)"""
    nodes: dict[str, Node] = field(default_factory=dict)
    delivered: dict[str, list[bytes]] = field(default_factory=dict)
    reached: str = NAMES
    """Who hears the sender."""
    now: int = SECOND
    began: int | None = None
    _agenda: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=count)
    _told: set[str] = field(default_factory=set)

    def form(self) -> None:
        """All of them in one view, the sender first."""
        for name in NAMES:
            me = Member(_address(name), 1, name)
            config = GroupConfig(group="accounts", name=name)
            node = self.nodes[name] = build_node(me, config, streams=STREAMS)
            self.delivered[name] = []
            node.start(self.now)
            node.add_candidates(map(_address, NAMES), self.now)
            self._serve(name)
            self.run_until(partial(self._is_in, name))
        self.began = self.now

    def send(self, name: str, payloads: tuple[bytes, ...]) -> None:
        self.nodes[name].send(payloads, self.now, stream=Stream.UNIFORM)
        self._serve(name)

    def kill(self, name: str) -> None:
        del self.nodes[name]

    def run_until(self, condition: Callable[[], bool], within_s: float = 10.0) -> bool:
        """Let time pass until it is so; False if it is not so in time."""
        stop = self.now + round(within_s * SECOND)
        while not condition():
            if not self._agenda or self._agenda[0][0] > stop:
                return False
            when, _, act = heappop(self._agenda)
            self.now = max(self.now, when)
            act()
        return True

    def _is_in(self, name: str) -> bool:
        node = self.nodes[name]
        return node.membership is not None and node.membership.is_member and self._agree()

    def _agree(self) -> bool:
        return {node.view for node in self.nodes.values()} == {self.nodes[NAMES[0]].view}

    # What drivers and networks do

    def _serve(self, name: str) -> None:
        """After any input: take what came of it, send, and come back in time."""
        node = self.nodes[name]
        for event in node.take_events(TAKE_MAX, self.now):
            self._tell_event(name, event)
        for dest, datagram in node.take_datagrams():
            others = [member.address for member in node.view or () if member != node.me]
            for address in others if dest is None else [dest]:
                self._at(self.now + DELAY_NS, partial(self._arrive, node, address, datagram))
        deadline = node.next_timeout()
        if deadline is not None:
            self._at(deadline, partial(self._wake, name))

    def _arrive(self, source: Node, address: Address, datagram: bytes) -> None:
        node = self.nodes.get(_name(address))
        if node is None:
            if source.me.name in self.nodes:  # nobody listens there, and a system says so
                source.transport_hint(address, self.now)
                self._serve(source.me.name)
        elif source.me.name != NAMES[0] or node.me.name in self.reached:
            _, frames = source.codec.unpack(datagram, overhear=True)
            for frame in frames:
                self._tell_frame(source.me.name, node.me.name, frame)
            node.receive_datagrams([datagram], self.now)
            self._serve(node.me.name)

    def _wake(self, name: str) -> None:
        node = self.nodes.get(name)
        if node is not None:
            deadline = node.next_timeout()
            if deadline is not None and deadline <= self.now:
                node.handle_timeout(self.now)
                self._serve(name)

    def _at(self, when: int, act: Callable[[], None]) -> None:
        heappush(self._agenda, (when, next(self._numbers), act))

    # In words

    def say(self, sentence: str) -> None:
        """Once: what is repeated on the wire is not repeated here."""
        if self.began is not None and sentence not in self._told:
            self._told.add(sentence)
            self.tell(self.now - self.began, sentence)

    def _tell_event(self, name: str, event: Event) -> None:
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
            case Ack(Stream.UNIFORM, held, _) if held:
                self.say(f"{source} tells {dest} that it holds {_run(1, held)}.")
            case Commit(seqno) if seqno:
                self.say(f"{source} tells all: everybody holds {_run(1, seqno)}.")
            case Takeover():
                for claim in frame.claims:
                    self.say(f"{source} to {dest}: {_claim(claim.sender, claim.stage, claim.high)}")
            case Standing():
                for share in frame.shares:
                    of = f"of {share.sender}"
                    what = f"I hold {_run(1, share.held)} {of}" if share.held else f"nothing {of}"
                    taken = f", and have delivered {share.delivered}" * (share.delivered > 0)
                    self.say(f"{source} to {dest}: {what}{taken}.")
            case UnicastData():
                for payload in frame.payloads:
                    self._tell_message(source, dest, payload)

    def _tell_message(self, source: str, dest: str, payload: bytes) -> None:
        try:
            message = decode_message(payload)
        except DecodeError:
            return
        match message:
            case EstateWanted(_, sender, first, last):
                self.say(f"{source} to {dest}: give me {_run(first, last)} of {sender}.")
            case EstateRun(sender, first, payloads):
                last = first + len(payloads) - 1
                self.say(f"{source} hands {dest} {_run(first, last)} of {sender}.")


def take_over(tell: Callable[[int, str], None], reached: str) -> dict[str, list[bytes]]:
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
    town.run_until(lambda: False, within_s=0.0025)
    town.say(f"{sender} dies. It has delivered {len(town.delivered[sender])} of them itself.")
    town.kill(sender)
    survivors = list(town.nodes.values())
    town.run_until(
        lambda: all(
            len(node.view or ()) == len(survivors) and node.multicast.uniform.is_settled
            for node in survivors
        )
    )
    return {name: town.delivered[name] for name in town.nodes}


def _address(name: str) -> Address:
    return Address("127.0.0.1", 7000 + NAMES.index(name))


def _name(address: Address) -> str:
    return NAMES[address.port - 7000]


def _run(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}..{last}"


def _claim(sender: Member, stage: Stage, high: int) -> str:
    match stage:
        case Stage.COLLECT:
            return f"{sender} is gone and I see to what it left. What do you hold of it?"
        case Stage.HOLD:
            return f"get hold of what is up to {high} of {sender}; I have it."
        case Stage.COMMIT:
            return f"all hold what is up to {high} of {sender}: deliver it."
        case Stage.RESOLVED:
            return f"{sender} is resolved, let go of the rest."
