"""A group of whole nodes with the view change of views/, on the virtual world, and watched.

Members are single letters. What befalls them is said by methods, at once or planned; `Weather` says
what befalls datagrams. One seed, one run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from random import Random
from string import ascii_uppercase
from typing import TYPE_CHECKING

from ringcast.config import GroupConfig, MulticastConfig
from ringcast.core.effects import Suspected
from ringcast.core.shared import Phase
from ringcast.errors import GroupClosed, UsageError
from ringcast.events import Delivered
from ringcast.explore.view_watch import watch
from ringcast.model import Address, Member, Origin, Stream
from ringcast.node import build_node
from ringcast.protocols.views.layer import GroupViews
from ringcast.protocols.views.streams import ViewStreams
from ringcast.sim.plain import TAKE_MAX, LoseWhere, begin, plain_world
from ringcast.wire.codec import Codec
from support.virtual_synchrony import Observed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from ringcast.core.effects import Signal
    from ringcast.events import Event
    from ringcast.model import View
    from ringcast.node import Node
    from ringcast.sim.plain import PlainMember
    from ringcast.sim.world import Flight, Process
    from ringcast.wire.frames import Frame

NAMES = ascii_uppercase
BOTH = (Stream.FIFO, Stream.UNIFORM)
SMALL = GroupConfig(
    group="views", multicast=MulticastConfig(capacity=16, datagram_bytes=1000, window_bytes=1 << 16)
)
FORM_MS = 5_000.0
STRANGER = Member(Address("10.0.0.2", 1), 9, "?")
TURNS_MAX = 1000
"""At one moment, of all members."""


def address_of(name: str) -> Address:
    return Address("10.0.0.1", 7800 + NAMES.index(name))


def name_of(address: Address) -> str:
    place = address.port - 7800
    return NAMES[place] if 0 <= place < len(NAMES) else STRANGER.name


class Weather:
    """What befalls datagrams; all of it may change at any time."""

    def __init__(self, seed: int = 0, *, delay_ms: float = 1.0) -> None:
        self.loss = 0.0
        self.copies = 0.0
        self.delay_ms = delay_ms
        self.jitter_ms = 0.0
        self.reorders = False
        self.cuts: set[tuple[str, str]] = set()
        """From whom nothing comes to whom."""
        self._random = Random(seed)

    def part(self, *sides: Collection[str]) -> None:
        """These do not hear each other."""
        side = {name: n for n, names in enumerate(sides) for name in names}
        self.cuts |= {(a, b) for a in side for b in side if side[a] != side[b]}

    def __call__(self, flight: Flight, dice: Random) -> list[Flight]:
        link = name_of(flight.link.source), name_of(flight.link.dest)
        if link in self.cuts or self._is(self.loss):
            return []
        found = [flight]
        if self._is(self.copies):
            found.append(replace(flight, is_copy=True))
        for each in found:
            each.due += round((self.delay_ms + self.jitter_ms * self._random.random()) * 1e6)
            each.keeps_order = not self.reorders
        return found

    def _is(self, share: float) -> bool:
        return share > 0 and self._random.random() < share


class ViewGroup:
    """Some members, and what happens to them."""

    def __init__(
        self,
        names: str,
        *,
        seed: int = 0,
        config: GroupConfig = SMALL,
        streams: tuple[Stream, ...] = BOTH,
        hint_ms: float | None = 0.0,
        multicast: type[ViewStreams] = ViewStreams,
    ) -> None:
        """`hint_ms`: so long after a datagram came to nobody its sender learns it; None: never."""
        self.names = names
        self.config = config
        self.streams = streams
        self.observed = Observed(config.multicast.purge)
        self.weather = Weather(seed)
        self.world = plain_world(hint_ms=hint_ms, start=1_000_000_000)
        self.world.driving.random = Random(seed)
        self.world.network.faults = [self.weather, LoseWhere(self._is_lost)]
        self.is_lost: Callable[[str, str, set[type[Frame]]], bool] | None = None
        """Whether a datagram of one to another with such frames is lost."""
        self._stranger = Codec(config.group, STRANGER, 60_000)
        self.before_sending: Callable[[Node], None] = self.count_turn
        self._turns = (0, 0)  # when, and how many there were
        self._multicast = multicast
        self.events: defaultdict[Member, list[Event]] = defaultdict(list)
        """What each application has taken."""
        self._incarnations: Counter[str] = Counter()
        self._sent = 0

    # What befalls members

    def start(self, name: str, config: GroupConfig | None = None) -> Node:
        """Also again, as another incarnation."""
        self._incarnations[name] += 1
        me = Member(address_of(name), self._incarnations[name], name)
        node = self.build(me, replace(config or self.config, name=name))
        member = watch(node, self.observed.rows, self.see)
        member.before_sending = self.before_sending
        begin(self.world, member, [address_of(each) for each in self.names])
        return node

    def build(self, me: Member, config: GroupConfig) -> Node:
        node = build_node(
            *(me, config),
            multicast=self._multicast,
            streams=self.streams,
        )
        return node

    def see(self, me: Member, event: Event) -> None:
        self.observed.see(me, event)
        self.events[me].append(event)

    def form(self, names: str | None = None) -> ViewGroup:
        """One view of these."""
        for name in names or self.names:
            self.start(name)
            assert self.run_until(self.is_one, FORM_MS), f"{name} is not let in"
        self.run(500)
        return self

    def crash(self, name: str) -> None:
        self.process(name).crash()

    def leave(self, name: str, within_s: float | None = None) -> None:
        process = self.process(name)
        if process.can_act and self.layer(name).phase is Phase.MEMBER:
            by = None if within_s is None else process.now + round(within_s * 1e9)
            process.node.leave(process.now, by)
            process.turn()

    def send(
        self, name: str, count: int = 1, stream: Stream = Stream.FIFO, size: int = 0
    ) -> list[bytes]:
        """What was accepted, each unlike any other."""
        process = self.process(name)
        if not process.can_act or process.node.view is None:
            return []
        payloads = []
        for _ in range(count):
            self._sent += 1
            payloads.append((b"%s%d " % (name.encode(), self._sent)).ljust(size, b"."))
        try:
            accepted = process.node.send(payloads, process.now, stream=stream)
        except (GroupClosed, UsageError):
            return []
        process.turn()
        return payloads[:accepted]

    def read(self, name: str, limit: int = TAKE_MAX) -> None:
        """So many messages in a turn from now on."""
        process = self.process(name)
        process.resident.take_limit = limit
        process.turn()

    def inject(self, name: str, *frames: Frame, source: Member = STRANGER) -> None:
        """Somebody says this to it: a member, or one that nobody has ever heard of."""
        process = self.process(name)
        codec = Codec(self.config.group, source, 60_000)
        process.node.receive_datagrams(codec.pack(frames, process.node.me), process.now)
        process.turn()

    def signal(self, name: str, *signals: Signal) -> None:
        """A layer of this member says this to the others."""
        process = self.process(name)
        for signal in signals:
            process.node.effects.signal(signal)
        process.node._stack.run_to_completion(process.now)
        process.turn()

    def suspect(self, name: str, others: Iterable[str]) -> None:
        self.signal(name, *(Suspected(self.node(other).me, "a test") for other in others))

    def propose(self, name: str) -> None:
        """A change that nobody needs: to a view of the same members."""
        process = self.process(name)
        self.layer(name).change.propose(
            *(self.layer(name).change.view, set(), (), process.now, process.node.effects)
        )
        self.signal(name)

    def count_turn(self, node: Node) -> None:
        """A timer that is due and stays so would be served for ever."""
        now = self.world.clock.now
        when, count = self._turns
        self._turns = (now, count + 1 if when == now else 0)
        assert count < TURNS_MAX, f"{node.me} spins: {node.deadlines.armed()}"

    def _is_lost(self, flight: Flight) -> bool:
        if self.is_lost is None:
            return False
        _, frames = self._stranger.unpack(flight.datagram, overhear=True)
        link = flight.link
        return self.is_lost(name_of(link.source), name_of(link.dest), set(map(type, frames)))

    # Time

    @property
    def now_ms(self) -> float:
        return self.world.clock.now / 1e6

    def run(self, milliseconds: float) -> None:
        self.world.run_for(milliseconds)

    def run_until(self, condition: Callable[[], bool], within_ms: float) -> bool:
        return self.world.run_until(condition, within_ms)

    # What there is

    def process(self, name: str) -> Process[PlainMember]:
        return self.world.processes[address_of(name)]

    def node(self, name: str) -> Node:
        return self.process(name).node

    def layer(self, name: str) -> GroupViews:
        layer = self.node(name).membership
        assert isinstance(layer, GroupViews)
        return layer

    def living(self) -> list[Process[PlainMember]]:
        return [process for process in self.world.processes.values() if process.is_up]

    def delivered(self, who: Member, sender: Member) -> list[bytes]:
        """To all, or to that one alone."""
        return [
            payload
            for event in self.events[who]
            if isinstance(event, Delivered) and event.sender == sender
            for payload in event.run.payloads
        ]

    def view(self, name: str) -> str:
        """Who is in it, by their names; `'` for each restart."""
        return in_letters(self.node(name).view)

    def is_one(self) -> bool:
        """All that live are in one view, with nobody else."""
        nodes = [process.node for process in self.living()]
        view = nodes[0].view if nodes else None
        if view is None or any(node.view != view for node in nodes):
            return not nodes
        return set(view) == {node.me for node in nodes}

    def is_quiet(self) -> bool:
        """They are, and nothing waits."""
        return self.is_one() and not any(map(self.reasons, self.living()))

    def reasons(self, process: Process[PlainMember]) -> list[str]:
        """What waits there. A round of reports that has begun is no reason: when all is stable a
        report may come late, and nobody else has anything to say."""
        explained = process.node.explain(process.now)
        return [why for why in explained if "of reports waits for" not in why]

    def undelivered(self) -> list[str]:
        """What was sent in the view that all are in and has not reached everybody."""
        nodes = [process.node for process in self.living()]
        sent = {
            Origin(node.me, stream): sending.window.high
            for node in nodes
            for stream, sending in node.multicast.senders.items()
        }
        return [
            f"{node.me} has {window.delivered} of {sent[origin]} of {origin}"
            for node in nodes
            for origin, window in node.multicast.windows().items()
            if window.delivered < sent[origin]
        ]

    def waits(self) -> list[str]:
        """Why it is not quiet."""
        found = [f"{process.node.me} is in {process.node.view}" for process in self.living()]
        for process in self.living():
            found += [f"{process.node.me} waits: {why}" for why in self.reasons(process)]
        return found


def in_letters(view: View | Sequence[Member] | None) -> str:
    return "".join(who.name + "'" * (who.incarnation - 1) for who in view or ())
