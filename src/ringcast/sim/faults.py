"""What befalls datagrams on a virtual network.

A fault of a simulation has a name, "F1 0>2 17": its class, the link, and which packet of that link
it hit; `Options.only` keeps a run to a list of such names. Draws come from the link's generator,
as many for every datagram whatever becomes of it; so leaving out one fault moves no other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from ringcast.model import Address
from ringcast.sim.clock import ns
from ringcast.sim.mishaps import CUTS
from ringcast.sim.network import CHANGE_KINDS, frame_kinds
from ringcast.sim.options import RECEIVER, Incident, Options, slot_name
from ringcast.sim.world import Fault, Flight, Link, Network, Process
from ringcast.trace.observe.frames import DATA_KINDS
from ringcast.trace.rows import NET_CORRUPT, NET_DROP, NET_DUP

LOST, COPIED, LATE, SPOILED, SPIKED, STALE = range(6)
"""Which draw of a flight is for what."""

SETTLED_KINDS = tuple(kind for kind in CHANGE_KINDS if kind not in ("hello", "complain", "leave"))
"""Frames that mean nothing any more when the view has begun that they are about, or a later one."""
STALE_MAX = 30
"""So many are kept for later."""


class FaultLog:
    """What was injected: by class and frame kind, and by name."""

    def __init__(self, slot: Callable[[Address], int], only: frozenset[str] | None) -> None:
        """`only`: the faults that happen, by name; None: all."""
        self.matrix: Counter[tuple[str, str]] = Counter()
        self.total = 0
        self.names: list[str] = []
        self.partitions: Counter[str] = Counter()
        """Cuts, by what they are."""
        self._slot = slot
        self._only = only

    def count(self, fault: str, kinds: tuple[str, ...], name: str = "") -> None:
        self.total += 1
        if name:
            self.names.append(name)
        for kind in kinds:
            self.matrix[fault, kind] += 1

    def hits(self, fault: str, flight: Flight) -> bool:
        """Whether this fault happens: count it, unless it is left out."""
        name = f"{fault} {flight.link.name} {flight.link.sent}"
        if self._only is not None and name not in self._only:
            return False
        self.count(fault, flight.kinds, name)
        return True

    def tell(self, event: str, fault: str, flight: Flight) -> None:
        """The trace of its sender does."""
        if isinstance(flight.sender, Process):
            dest = slot_name(self._slot(flight.link.dest))
            flight.sender.resident.packet_fault(event, fault, flight.packet, dest)


class Loss:
    """F1, at random, and F2, of packets of one kind."""

    def __init__(self, options: Options, log: FaultLog) -> None:
        self._loss = options.loss if options.has("F1") else 0.0
        self._burst = options.loss_burst
        self._target = options.target if options.has("F2") else ""
        self._target_loss = options.target_loss
        self._log = log
        self._in_burst: dict[Link, bool] = {}
        self._data: Counter[Link] = Counter()

    def __call__(self, flight: Flight, dice: Random) -> list[Flight]:
        draw = flight.draws[LOST]
        fault = ""
        if self._loss and self._draws_loss(flight.link, draw):
            fault = "F1"
        elif self._target and self._is_target(flight, draw):
            fault = "F2"
        if not fault or not self._log.hits(fault, flight):
            return [flight]
        self._log.tell(NET_DROP, fault, flight)
        return []

    def _draws_loss(self, link: Link, draw: float) -> bool:
        """Independent, or Gilbert–Elliott: a good and a bad state with the same mean loss."""
        if not self._burst:
            return draw < self._loss
        if self._in_burst.get(link):
            is_lost = draw > 1.0 / self._burst
        else:
            is_lost = draw < self._loss / (self._burst * (1.0 - self._loss))
        self._in_burst[link] = is_lost
        return is_lost

    def _is_target(self, flight: Flight, draw: float) -> bool:
        packet = flight.packet
        if packet is None:
            return False
        has_data = any(kind in DATA_KINDS for kind in packet.kinds)
        self._data[flight.link] += has_data
        match self._target:
            case "every second data":
                return has_data and self._data[flight.link] % 2 == 0
            case "last data":
                return packet.is_last_data and draw < self._target_loss
            case "first data":
                is_first = any(f.kind in DATA_KINDS and f.seqno == 1 for f in packet.frames)
                return is_first and draw < self._target_loss
            case kind:
                return kind in packet.kinds and draw < self._target_loss


@dataclass
class Drawn:
    """What befalls a share of all datagrams: one draw says which, and how late."""

    fault: str
    draw: int
    share: float
    log: FaultLog
    late_ns: int = 0
    """The latest."""

    def __call__(self, flight: Flight, dice: Random) -> list[Flight]:
        is_hit = not flight.is_copy and flight.draws[self.draw] < self.share
        return self.hit(flight, dice) if is_hit and self.log.hits(self.fault, flight) else [flight]

    def hit(self, flight: Flight, dice: Random) -> list[Flight]:
        """F5: some take much longer, and all behind them. F4: some are overtaken."""
        flight.due += self.late(self.late_ns, flight)
        flight.keeps_order &= self.fault == "F5"
        return [flight]

    def late(self, most_ns: float, flight: Flight) -> int:
        return round(most_ns * flight.draws[self.draw] / self.share)


@dataclass
class Copies(Drawn):
    """F3: some arrive several times. F22: some once more, much later, when nobody expects them."""

    copies: int = 1
    kept: list[Flight] = field(default_factory=list)
    """F22: some of those of view changes, for when all is calm."""

    def hit(self, flight: Flight, dice: Random) -> list[Flight]:
        most = (self.late_ns * copy / self.copies for copy in range(1, self.copies + 1))
        dues = [flight.base + self.late(each, flight) for each in most]
        copies = [replace(flight, due=due, keeps_order=False, is_copy=True) for due in dues]
        if self.fault == "F3":
            self.log.tell(NET_DUP, "F3", flight)
        elif len(self.kept) < STALE_MAX and all(kind in SETTLED_KINDS for kind in flight.kinds):
            self.kept += copies
        return [*copies, flight]


@dataclass
class Corruption(Drawn):
    """F6: some have other bytes."""

    previous: dict[Link, bytes] = field(default_factory=dict)

    def __call__(self, flight: Flight, dice: Random) -> list[Flight]:
        whole = flight.datagram
        super().__call__(flight, dice)
        if not flight.is_copy:
            # As sent: spliced with a spoiled one, it might be whole.
            self.previous[flight.link] = whole
        return [flight]

    def hit(self, flight: Flight, dice: Random) -> list[Flight]:
        previous = self.previous.get(flight.link, b"")
        data = spoiled(flight.datagram, previous, dice)
        if data not in (flight.datagram, previous):  # by chance a whole datagram again
            self.log.tell(NET_CORRUPT, "F6", flight)
            flight.datagram = data
            if flight.packet is not None:
                flight.packet = replace(flight.packet, is_corrupted=True)
        return [flight]


class Conditions:
    """The network of one simulation: calm, or under the faults of its options."""

    def __init__(
        self,
        options: Options,
        network: Network,
        slot: Callable[[Address], int],
        happen: Callable[[Incident], None],
    ) -> None:
        self.log = FaultLog(slot, None if options.only is None else frozenset(options.only))
        self.cuts: Counter[tuple[int, int, str]] = Counter()
        """Links that are cut, and by which fault class."""
        self.severed: set[tuple[int, int]] = set()
        """Links that are cut for good, healing or not."""
        self.armed: list[Incident] = []
        """They wait for frames."""
        late = ns(options.stale_ms)
        self.stale = Copies("F22", STALE, options.stale, self.log, late)
        self._under_way: Counter[str] = Counter()
        """Frames, by their kind."""
        self._carried: Counter[str] = Counter()
        """The same, of all that ever were under way."""
        network.on_arrival = self._arrived
        self._options = options
        self._network = network
        self._slot = slot
        self._happen = happen
        self._kinds = frame_kinds(options.protocol, options.purge)
        self._storm = self._faults()
        self._calm = [self._calm_delay, self._cut, self._count]
        self.is_calm = True

    @property
    def is_calm(self) -> bool:
        """Short delays, no faults, order kept."""
        return self._network.faults is self._calm

    @is_calm.setter
    def is_calm(self, is_calm: bool) -> None:
        self._network.faults = self._calm if is_calm else self._storm

    def _faults(self) -> list[Fault]:
        options, log = self._options, self.log
        late = ns(options.copy_late_ms)
        drawn = (
            Drawn("F5", SPIKED, options.spikes, log, ns(options.spike_ms)),
            Drawn("F4", LATE, options.reorder, log, ns(options.reorder_ms)),
            Copies("F3", COPIED, options.duplicates, log, late, options.copies),
            self.stale,
            Corruption("F6", SPOILED, options.corruption, log),
        )
        faults: list[Fault] = [self._delay, self._trip, self._cut]
        faults.append(Loss(options, log))
        faults += [each for each in drawn if options.has(each.fault)]
        return [*faults, self._count]

    def _delay(self, flight: Flight, dice: Random) -> list[Flight]:
        """The usual delay of the link, of one of three shapes. It draws for all faults."""
        roll = dice.random
        flight.draws = roll(), roll(), roll(), roll(), roll(), roll()
        base = ns(self._options.delay_ms) * flight.link.factor
        match self._options.delay:
            case "uniform":
                base *= dice.uniform(0.5, 1.5)
            case "lognormal":
                base *= dice.lognormvariate(0.0, 0.7)
        flight.due = flight.base = flight.due + round(base)
        return [flight]

    def _calm_delay(self, flight: Flight, dice: Random) -> list[Flight]:
        """Short, and nothing else happens."""
        flight.due += round(ns(self._options.delta_ms) * dice.uniform(0.2, 1.0))
        return [flight]

    def _trip(self, flight: Flight, dice: Random) -> list[Flight]:
        """Let incidents happen with the frames that they wait for."""
        ends = self._slot(flight.link.source), self._slot(flight.link.dest)
        for incident in list(self.armed):
            if incident.when in flight.kinds:
                self.armed.remove(incident)
                if incident.after:
                    self.armed.append(replace(incident, after=incident.after - 1))
                else:
                    hit = ends[::-1] if incident.what == RECEIVER else ends
                    self._happen(replace(incident, nodes=incident.nodes or hit, when=""))
        return [flight]

    def _cut(self, flight: Flight, dice: Random) -> list[Flight]:
        """Nothing passes a link that is cut."""
        fault = self.cut_by(self._slot(flight.link.source), self._slot(flight.link.dest))
        if not fault:
            return [flight]
        self.log.count(fault, flight.kinds)
        self.log.tell(NET_DROP, fault, flight)
        return []

    def _count(self, flight: Flight, dice: Random) -> list[Flight]:
        self._under_way.update(flight.kinds)
        self._carried.update(flight.kinds)
        return [flight]

    def _arrived(self, flight: Flight) -> None:
        self._under_way.subtract(flight.kinds)

    def cut_by(self, source: int, dest: int) -> str:
        """The fault class that lets nothing pass from one slot to the other; empty: all passes."""
        if self.cuts or self.severed:
            for fault in CUTS:
                if self.cuts[source, dest, fault] > 0 or (source, dest) in self.severed:
                    return fault
        return ""

    def heal(self) -> None:
        """No faults from now on; but what is still under way may arrive."""
        self.is_calm = True
        self.cuts.clear()
        self.armed.clear()
        self._network.begin_era()

    def expire(self) -> None:
        """What was under way then never arrives."""
        self._network.expire()
        self._under_way.clear()

    def kinds_under_way(self) -> tuple[str, ...]:
        return tuple(kind for kind in self._kinds if self._under_way[kind] > 0)

    def kinds_carried(self) -> tuple[str, ...]:
        return tuple(kind for kind in self._kinds if self._carried[kind] > 0)

    def component(self, slot: int) -> int:
        """The first of those whom this node can hear in the end."""
        slots = range(self._options.nodes)
        return next(each for each in slots if (slot, each) not in self.severed)


def seeded_link(
    options: Options, slot: Callable[[Address], int], source: Address, dest: Address
) -> Link:
    """The link between two slots; some are slower than others."""
    name = f"{slot(source)}>{slot(dest)}"
    random = Random(f"{options.seed} {name}")
    asymmetry = options.asymmetry if options.has("F5") else 1.0
    return Link(source, dest, name, random, random.uniform(1.0, asymmetry))


def spoiled(data: bytes, previous: bytes, random: Random) -> bytes:
    """Flip bits, cut off, append, splice with another datagram, or zero the tail."""
    at = random.randrange(len(data))
    match random.randrange(5):
        case 0:
            flipped = bytearray(data)
            for _ in range(random.randint(1, 8)):
                flipped[random.randrange(len(data))] ^= 1 << random.randrange(8)
            return bytes(flipped)
        case 1:
            return data[:at]
        case 2:
            return data + random.randbytes(random.randint(1, 20))
        case 3:
            return data[:at] + previous[at:]
        case _:
            return data[:at] + bytes(len(data) - at)
