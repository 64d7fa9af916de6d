"""The virtual network: every packet from one node to another meets its faults here.

Each link draws from a generator of its own, so that leaving out one fault disturbs the others as
little as possible. A fault has a name, "F1 0>2 17": its class, the link, and which packet of that
link it hit; `Options.only` keeps a run to a list of such names.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Protocol

from ringcast.sim.agenda import ns
from ringcast.sim.partitions import CUTS
from ringcast.trace.observe.frames import DATA_KINDS
from ringcast.trace.rows import NET_CORRUPT, NET_DROP, NET_DUP

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringcast.model import Member
    from ringcast.sim.agenda import Agenda
    from ringcast.sim.options import Options
    from ringcast.trace.observe.frames import Seen

_GROUP_KINDS = (
    *("discover", "present", "join", "view_is", "view_ack", "welcome", "leave", "suspect"),
    *("merge", "merged", "begin", "begun", "beat", "probe", "alive", "data", "ack", "udata"),
)
KINDS = {
    "multicast": ("data", "ack", "nack", "highest"),
    "unicast": ("udata", "uack", "unack", "close", "sync", "sync_ok", "sync_ack"),
    "group": _GROUP_KINDS,
    "uniform": (*_GROUP_KINDS, "commit", "commit_wanted", "takeover", "standing", "system"),
}
"""The frames of each protocol, as traces name them."""
VOTE_KINDS = ("vote", "vote_wanted", "stable")
RETAINED_KINDS = ("repair_wanted", "relayed", "takeover", "standing", "system")


def frame_kinds(protocol: str, purge: str = "acks") -> tuple[str, ...]:
    """The frames of a run, as traces name them. Where members vote only uniform messages are
    acknowledged."""
    kinds = KINDS[protocol]
    if purge == "acks":
        return kinds
    if protocol != "uniform":
        kinds = tuple(kind for kind in kinds if kind != "ack")
    return tuple(dict.fromkeys((*kinds, *VOTE_KINDS, *RETAINED_KINDS)))


@dataclass(slots=True)
class Packet:
    """One datagram under way."""

    source: int
    sender: str
    incarnation: int
    data: bytes
    frames: list[Seen]
    kinds: tuple[str, ...]
    addressee: Member | None = None
    is_last_data: bool = False
    """The last one of those with new messages that left together."""
    is_corrupted: bool = False


class Witness(Protocol):
    """Who writes down what the network does."""

    def packet_fault(self, event: str, fault: str, packet: Packet, dest: int) -> None: ...


class FaultLog:
    """What was injected: by class and frame kind, and by name."""

    def __init__(self) -> None:
        self.matrix: Counter[tuple[str, str]] = Counter()
        self.total = 0
        self.names: list[str] = []
        self.partitions: Counter[str] = Counter()
        """Cuts, by what they are."""

    def count(self, fault: str, kinds: tuple[str, ...], name: str = "") -> None:
        self.total += 1
        if name:
            self.names.append(name)
        for kind in kinds:
            self.matrix[fault, kind] += 1


class _Link:
    """One direction between two nodes."""

    __slots__ = ("data", "factor", "in_burst", "last_arrival", "name", "previous", "random", "sent")

    def __init__(self, seed: int, source: int, dest: int, asymmetry: float) -> None:
        self.name = f"{source}>{dest}"
        self.random = Random(f"{seed} {self.name}")
        self.factor = self.random.uniform(1.0, asymmetry)
        self.sent = 0
        self.data = 0
        self.in_burst = False
        self.last_arrival = 0
        self.previous = b""


class Network:
    """Carries packets between slots. Calm: short delays, no faults, order kept."""

    def __init__(
        self,
        options: Options,
        agenda: Agenda,
        witness: Witness,
        deliver: Callable[[int, Packet], None],
    ) -> None:
        self.faults = FaultLog()
        self.is_calm = True
        self.cuts: Counter[tuple[int, int, str]] = Counter()
        """Links that are cut, and by which fault class."""
        self.severed: set[tuple[int, int]] = set()
        """Links that are cut for good, healing or not."""
        self._options = options
        self._kinds = frame_kinds(options.protocol, options.purge)
        self._agenda = agenda
        self._witness = witness
        self._deliver = deliver
        self._delta = ns(options.delta_ms)
        self._loss = options.loss if options.has("F1") else 0.0
        self._target = options.target if options.has("F2") else ""
        self._duplicates = options.duplicates if options.has("F3") else 0.0
        self._reorder = options.reorder if options.has("F4") else 0.0
        self._spikes = options.spikes if options.has("F5") else 0.0
        self._corruption = options.corruption if options.has("F6") else 0.0
        self._only = None if options.only is None else frozenset(options.only)
        asymmetry = options.asymmetry if options.has("F5") else 1.0
        slots = range(options.nodes)
        self._links = [
            [_Link(options.seed, source, dest, asymmetry) for dest in slots] for source in slots
        ]
        self._under_way: Counter[str] = Counter()
        self._carried: Counter[str] = Counter()
        self._era = 0

    def send(self, packet: Packet, dest: int) -> None:
        """One packet leaves for one node."""
        link = self._links[packet.source][dest]
        link.sent += 1
        if self.is_calm:
            delay = round(self._delta * link.random.uniform(0.2, 1.0))
            if not self._is_cut(packet, dest):
                self._travel(link, packet, dest, delay)
            return
        # The same number of draws for every packet, whatever happens to it.
        lost, copied, late, spoiled, spiked = (link.random.random() for _ in range(5))
        base = self._base_delay(link)
        if self._is_cut(packet, dest) or self._is_lost(link, packet, dest, lost):
            return
        delay = base
        if spiked < self._spikes and self._hits("F5", link, packet):
            delay += round(ns(self._options.spike_ms) * spiked / self._spikes)
        keeps_order = True
        if late < self._reorder and self._hits("F4", link, packet):
            delay += round(ns(self._options.reorder_ms) * late / self._reorder)
            keeps_order = False
        if copied < self._duplicates and self._hits("F3", link, packet):
            self._witness.packet_fault(NET_DUP, "F3", packet, dest)
            for copy in range(1, self._options.copies + 1):
                extra = ns(self._options.copy_late_ms) * copy / self._options.copies
                when = base + round(extra * copied / self._duplicates)
                self._travel(link, packet, dest, when, keeps_order=False)
        whole = packet.data
        if spoiled < self._corruption and self._hits("F6", link, packet):
            packet = self._spoil(link, packet, dest)
        link.previous = whole  # as it was sent: spliced with a spoiled one, it might be whole again
        self._travel(link, packet, dest, delay, keeps_order=keeps_order)

    def expire(self) -> None:
        """Whatever is still under way never arrives, and holds nothing up behind it."""
        self._era += 1
        self._under_way.clear()
        for links in self._links:
            for link in links:
                link.last_arrival = 0

    def kinds_under_way(self) -> tuple[str, ...]:
        return tuple(kind for kind in self._kinds if self._under_way[kind] > 0)

    def kinds_carried(self) -> tuple[str, ...]:
        return tuple(kind for kind in self._kinds if self._carried[kind] > 0)

    def _travel(
        self, link: _Link, packet: Packet, dest: int, delay: int, *, keeps_order: bool = True
    ) -> None:
        arrival = self._agenda.now + delay
        if keeps_order:
            arrival = link.last_arrival = max(arrival, link.last_arrival)
        for kind in packet.kinds:
            self._under_way[kind] += 1
            self._carried[kind] += 1
        self._agenda.at(arrival, self._arrive, packet, dest, self._era)

    def _arrive(self, packet: Packet, dest: int, era: int) -> None:
        if era != self._era:
            return
        for kind in packet.kinds:
            self._under_way[kind] -= 1
        self._deliver(dest, packet)

    def _hits(self, fault: str, link: _Link, packet: Packet) -> bool:
        """Whether this fault happens: count it, unless it is left out."""
        name = f"{fault} {link.name} {link.sent}"
        if self._only is not None and name not in self._only:
            return False
        self.faults.count(fault, packet.kinds, name)
        return True

    def _base_delay(self, link: _Link) -> int:
        base = ns(self._options.delay_ms) * link.factor
        match self._options.delay:
            case "uniform":
                base *= link.random.uniform(0.5, 1.5)
            case "lognormal":
                base *= link.random.lognormvariate(0.0, 0.7)
        return round(base)

    def _is_cut(self, packet: Packet, dest: int) -> bool:
        if not self.cuts and not self.severed:
            return False
        for fault in CUTS:
            if self.cuts[packet.source, dest, fault] > 0 or (packet.source, dest) in self.severed:
                self.faults.count(fault, packet.kinds)
                self._witness.packet_fault(NET_DROP, fault, packet, dest)
                return True
        return False

    def component(self, slot: int) -> int:
        """The first of those whom this node can hear in the end."""
        slots = range(self._options.nodes)
        return next(each for each in slots if (slot, each) not in self.severed)

    def _is_lost(self, link: _Link, packet: Packet, dest: int, draw: float) -> bool:
        fault = ""
        if self._loss and self._draws_loss(link, draw):
            fault = "F1"
        elif self._target and self._is_target(link, packet, draw):
            fault = "F2"
        if not fault or not self._hits(fault, link, packet):
            return False
        self._witness.packet_fault(NET_DROP, fault, packet, dest)
        return True

    def _draws_loss(self, link: _Link, draw: float) -> bool:
        """Independent, or Gilbert–Elliott: a good and a bad state with the same mean loss."""
        burst = self._options.loss_burst
        if not burst:
            return draw < self._loss
        if link.in_burst:
            link.in_burst = draw > 1.0 / burst
        else:
            link.in_burst = draw < self._loss / (burst * (1.0 - self._loss))
        return link.in_burst

    def _is_target(self, link: _Link, packet: Packet, draw: float) -> bool:
        has_data = any(kind in DATA_KINDS for kind in packet.kinds)
        link.data += has_data
        match self._target:
            case "every second data":
                return has_data and link.data % 2 == 0
            case "last data":
                return packet.is_last_data and draw < self._options.target_loss
            case "first data":
                is_first = any(f.kind in DATA_KINDS and f.seqno == 1 for f in packet.frames)
                return is_first and draw < self._options.target_loss
            case kind:
                return kind in packet.kinds and draw < self._options.target_loss

    def _spoil(self, link: _Link, packet: Packet, dest: int) -> Packet:
        data = _spoiled(packet.data, link.previous, link.random)
        if data in (packet.data, link.previous):
            return packet  # by chance a whole datagram again
        self._witness.packet_fault(NET_CORRUPT, "F6", packet, dest)
        return Packet(
            packet.source,
            packet.sender,
            packet.incarnation,
            data,
            packet.frames,
            packet.kinds,
            packet.addressee,
            is_corrupted=True,
        )


def _spoiled(data: bytes, previous: bytes, random: Random) -> bytes:
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
