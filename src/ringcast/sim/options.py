"""Options: everything that decides a simulated run, expanded from one seed.

Each fault class is on or off by the toss of a coin and has an intensity of its own: a run with
every fault all the time would hide what needs a quiet channel. Faults that hit a member or the
whole group at a certain time are listed one by one (`incidents`), so that a failing run can be
made smaller by leaving some out; faults of single packets are drawn on the way.

Nodes are slots 0, 1, …, shown as A, B, …. A restart is another member in the same slot.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from math import exp, log
from random import Random
from typing import Any

from ringcast.config import MulticastConfig
from ringcast.errors import UsageError

FAULTS = {
    "F1": "loss",
    "F2": "loss of one kind",
    "F3": "duplication",
    "F4": "reordering",
    "F5": "delay spikes, slow links",
    "F6": "corruption",
    "F7": "partition",
    "F8": "one-way partition",
    "F9": "cut between two nodes",
    "F10": "crash",
    "F11": "crash and restart",
    "F12": "pause",
    "F13": "wrong clock",
    "F14": "slow application",
    "F18": "view chaos",
    "F19": "wrong timers",
    "F20": "mixed configuration",
}
"""The fault classes, by the numbers that docs/howto/simulate.md explains."""

PACKET_FAULTS = ("F1", "F2", "F3", "F4", "F5", "F6")
TARGETS = ("ack", "nack", "highest", "every second data", "last data")
NODES_MAX = 6


def slot_name(slot: int) -> str:
    """How people see a node."""
    return "ABCDEF"[slot]


@dataclass(frozen=True, kw_only=True, slots=True)
class Incident:
    """One fault at one time. Which fields matter depends on the fault class."""

    fault: str
    at_ms: float
    """After the start of the safety phase."""
    ms: float = 0.0
    """How long it lasts, or how long a node stays down."""
    nodes: tuple[int, ...] = ()
    what: str = ""
    amount: float = 0.0

    def __str__(self) -> str:
        names = "".join(map(slot_name, self.nodes))
        lasting = f" for {self.ms:.0f} ms" if self.ms else ""
        what = f" {self.what}" if self.what else ""
        amount = f" {self.amount:g}" if self.amount else ""
        title = FAULTS.get(self.fault, "a node joins")
        return f"{self.at_ms:8.1f} ms  {self.fault:4} {title}{what}{amount} {names}{lasting}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """One run. `expand(seed)` makes them; `replay --options` reads them from a file."""

    seed: int
    # The members
    nodes: int = 3
    initial: int = 3
    """How many nodes are in the first view; the others join later."""
    capacities: tuple[int, ...] = (16, 16, 16)
    datagram_bytes: int = 1400
    window_bytes: int = 64_000
    tau_ms: tuple[float, ...] = (100.0, 100.0, 100.0)
    ack_delay_ms: float = 5.0
    ack_threshold: int | None = None
    repair_to_all: bool = False
    # The applications
    senders: tuple[int, ...] = (0, 1, 2)
    messages: int = 50
    """Per sender, in the safety phase."""
    burst: int = 5
    """At most so many at once; if not fewer than `messages`, all of them from the start."""
    sizes: tuple[int, ...] = (100,)
    """Each message has one of these sizes, in bytes."""
    late_messages: int = 3
    """Per node, in the liveness phase."""
    take_limit: int = 1000
    stopped: int = -1
    """The node whose application stops taking for good; -1: none does."""
    # The network
    delay: str = "const"
    delay_ms: float = 1.0
    delta_ms: float = 2.0
    """The longest delay once the network is healed."""
    detect_ms: float = 20.0
    """From a crash until the others know."""
    view_ms: float = 5.0
    """The longest that a view is on its way."""
    # Phases
    warm_ms: float = 50.0
    safety_ms: float = 500.0
    # Faults
    faults: tuple[str, ...] = ()
    loss: float = 0.0
    loss_burst: float = 0.0
    """Mean length of bursts of losses, in packets; 0: losses are independent."""
    target: str = ""
    target_loss: float = 0.0
    duplicates: float = 0.0
    copies: int = 1
    copy_late_ms: float = 0.0
    reorder: float = 0.0
    reorder_ms: float = 0.0
    spikes: float = 0.0
    spike_ms: float = 0.0
    asymmetry: float = 1.0
    """How many times slower the slowest link is."""
    corruption: float = 0.0
    incidents: tuple[Incident, ...] = ()
    # What drivers may do, and switches for experiments
    hold_ms: float = 0.0
    """A driver may keep datagrams back this long, to send them with later ones."""
    poll_ms: float = 0.0
    """A driver may hand arrivals over in batches of this length."""
    only: tuple[str, ...] | None = None
    """If given, only these packet faults happen ("F1 0>2 17": the 17th packet from A to C)."""
    digest_before_freeze: bool = False
    """Break the order of a join on purpose."""

    def __post_init__(self) -> None:
        if not 1 <= self.initial <= self.nodes <= NODES_MAX:
            raise UsageError(f"1 ≤ initial ≤ nodes ≤ {NODES_MAX}: {self.initial}, {self.nodes}")
        if len(self.capacities) != self.nodes or len(self.tau_ms) != self.nodes:
            raise UsageError("one capacity and one tau_ms for each node")
        slots = [*self.senders, *(slot for incident in self.incidents for slot in incident.nodes)]
        if not all(0 <= slot < self.nodes for slot in slots):
            raise UsageError(f"nodes are numbered 0 to {self.nodes - 1}")
        for fault in self.faults:
            if fault not in FAULTS:
                raise UsageError(f"{fault!r} is not a fault class: {', '.join(FAULTS)}")
        if not self.sizes or self.burst < 1 or self.take_limit < 1:
            raise UsageError("sizes, burst and take_limit must not be empty")

    def has(self, fault: str) -> bool:
        return fault in self.faults

    def config(self, slot: int) -> MulticastConfig:
        """What a node in this slot runs with."""
        threshold = self.ack_threshold
        if threshold is not None:
            threshold = min(threshold, max(1, self.capacities[slot] // 4))
        return MulticastConfig(
            capacity=self.capacities[slot],
            window_bytes=self.window_bytes,
            ack_threshold=threshold,
            ack_delay_s=self.ack_delay_ms / 1000,
            xmit_interval_s=self.tau_ms[slot] / 1000,
            datagram_bytes=self.datagram_bytes,
            max_message_bytes=1 << 22,
            repair_to_all=self.repair_to_all,
        )

    def without(self, fault: str) -> Options:
        """The same run with one fault class off."""
        return replace(
            self,
            faults=tuple(name for name in self.faults if name != fault),
            incidents=tuple(item for item in self.incidents if item.fault != fault),
        )

    def with_nodes(self, nodes: int) -> Options:
        """The same run with the last nodes left out."""
        return replace(
            self,
            nodes=nodes,
            initial=min(self.initial, nodes),
            capacities=self.capacities[:nodes],
            tau_ms=self.tau_ms[:nodes],
            senders=tuple(slot for slot in self.senders if slot < nodes),
            stopped=self.stopped if self.stopped < nodes else -1,
            incidents=tuple(
                item for item in self.incidents if all(slot < nodes for slot in item.nodes)
            ),
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)

    def __str__(self) -> str:
        """A block for people."""
        names = [slot_name(slot) for slot in range(self.nodes)]
        taus = "/".join(f"{tau:.0f}" for tau in dict.fromkeys(self.tau_ms))
        capacities = "/".join(map(str, dict.fromkeys(self.capacities)))
        lines = [
            f"seed {self.seed}",
            f"  nodes      {' '.join(names)}; {self.initial} from the start",
            f"  windows    {capacities} messages, {self.window_bytes} bytes; "
            f"datagrams {self.datagram_bytes} bytes",
            f"  timing     tau {taus} ms, ack delay {self.ack_delay_ms:.1f} ms, "
            f"ack threshold {self.ack_threshold or 'capacity / 4'}, "
            f"repair to {'all' if self.repair_to_all else 'whoever asks'}",
            f"  load       {self.messages} messages from each of "
            f"{' '.join(slot_name(slot) for slot in self.senders)} in bursts of {self.burst}; "
            f"sizes {', '.join(map(str, self.sizes))} bytes",
            f"  take       {self.take_limit} at a time"
            + (f"; {slot_name(self.stopped)} stops for good" if self.stopped >= 0 else ""),
            f"  network    {self.delay} delay {self.delay_ms:.2f} ms, at most "
            f"{self.delta_ms:.2f} ms once healed; views up to {self.view_ms:.1f} ms, "
            f"crashes known after {self.detect_ms:.1f} ms",
            f"  phases     warm {self.warm_ms:.0f} ms, safety {self.safety_ms:.0f} ms",
            f"  faults     {', '.join(self.faults) or 'none'}",
        ]
        details = {
            "F1": f"loss {self.loss:.3f}"
            + (f" in bursts of {self.loss_burst:.0f}" if self.loss_burst else ""),
            "F2": f"loses {self.target}, {self.target_loss:.2f}",
            "F3": f"duplicates {self.duplicates:.3f}, {self.copies} copies up to "
            f"{self.copy_late_ms:.0f} ms late",
            "F4": f"reorders {self.reorder:.3f} by up to {self.reorder_ms:.1f} ms",
            "F5": f"spikes {self.spikes:.4f} of up to {self.spike_ms:.0f} ms, slowest link "
            f"× {self.asymmetry:.1f}",
            "F6": f"corrupts {self.corruption:.4f}",
        }
        lines += [
            f"             {fault:4} {details[fault]}" for fault in self.faults if fault in details
        ]
        lines += [f"             {incident}" for incident in self.incidents]
        if self.only is not None:
            lines.append(f"             only these packet faults: {', '.join(self.only) or 'none'}")
        if self.digest_before_freeze:
            lines.append("             joins take the digest before the freeze")
        return "\n".join(lines)


def from_json(text: str) -> Options:
    """Options as `to_json` wrote them; UsageError names what is wrong."""
    try:
        values: dict[str, Any] = json.loads(text)
        incidents = tuple(
            Incident(**{**item, "nodes": tuple(item.get("nodes", ()))})
            for item in values.pop("incidents", ())
        )
        values = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
        }
        return Options(**values, incidents=incidents)
    except (ValueError, TypeError, AttributeError) as error:
        known = ", ".join(item.name for item in fields(Options))
        raise UsageError(f"not the options of a run: {error}. Options are: {known}") from None


def expand(seed: int) -> Options:
    """The options of this seed. The same on every machine."""
    return _Dice(seed).options()


class _Dice:
    """Draws one seed's options."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random = Random(seed)

    def _log_uniform(self, low: float, high: float) -> float:
        return round(exp(self._random.uniform(log(low), log(high))), 6)

    def _between(self, low: float, high: float) -> float:
        return round(self._random.uniform(low, high), 3)

    def options(self) -> Options:
        random = self._random
        faults = tuple(fault for fault in FAULTS if random.random() < 0.5)
        nodes = random.choice((2, 3, 3, 4, 4, 5, 6))
        initial = max(1, nodes - random.choice((0, 0, 0, 1, 2)))
        datagram = random.choice((512, 512, 900, 1400))
        tau = self._log_uniform(20, 400)
        taus = (tau,) * nodes
        if "F20" in faults:
            taus = tuple(round(tau * self._between(0.5, 1.0), 3) for _ in range(nodes))
        capacity = self._capacity()
        capacities = (capacity,) * nodes
        if "F20" in faults:
            capacities = tuple(random.choice((capacity, self._capacity())) for _ in range(nodes))
        safety = self._between(250, 900)
        delay = self._log_uniform(0.05, 4)
        return Options(
            seed=self._seed,
            nodes=nodes,
            initial=initial,
            capacities=capacities,
            datagram_bytes=datagram,
            window_bytes=datagram * random.choice((4, 8, 16, 64, 64)),
            tau_ms=taus,
            ack_delay_ms=round(min(taus) * random.choice((0.0, 0.025, 0.1, 0.49)), 3),
            ack_threshold=random.choice((None, None, 1)),
            repair_to_all=random.random() < 0.3,
            senders=self._senders(nodes),
            messages=random.choice((30, 80, 150, 250, 300)),
            burst=random.choice((2, 5, 20, 50, 100)),
            sizes=self._sizes(datagram),
            late_messages=random.choice((1, 3, 10)),
            take_limit=random.choice((1, 3, 1000, 1000)),
            stopped=random.randrange(nodes) if random.random() < 0.04 else -1,
            delay=random.choice(("const", "uniform", "lognormal")),
            delay_ms=delay,
            delta_ms=self._between(0.5, 8),
            detect_ms=self._log_uniform(2, 100),
            view_ms=self._log_uniform(0.5, 100),
            warm_ms=self._between(20, 100),
            safety_ms=safety,
            faults=faults,
            loss=self._log_uniform(0.02, 0.5),
            loss_burst=random.choice((0.0, 0.0, self._log_uniform(2, 50))),
            target=random.choice(TARGETS),
            target_loss=random.choice((1.0, self._between(0.3, 1.0))),
            duplicates=self._log_uniform(0.01, 0.5),
            copies=random.choice((1, 1, 2, 5)),
            copy_late_ms=self._log_uniform(0.1, 300),
            reorder=self._log_uniform(0.02, 0.6),
            reorder_ms=self._log_uniform(0.5, 50),
            spikes=self._log_uniform(0.001, 0.05),
            spike_ms=self._log_uniform(10, 300),
            asymmetry=self._log_uniform(1, 10),
            corruption=self._log_uniform(0.005, 0.1),
            incidents=self._incidents(faults, nodes, initial, safety, tau),
            hold_ms=random.choice((0.0, 0.0, self._log_uniform(0.01, 1))),
            poll_ms=random.choice((0.0, 0.0, self._log_uniform(0.01, 1))),
        )

    def _capacity(self) -> int:
        if self._random.random() < 0.3:
            return self._random.randint(1, 4)
        return self._random.choice((5, 8, 16, 31, 32, 64, 64))

    def _senders(self, nodes: int) -> tuple[int, ...]:
        count = self._random.choice((1, nodes, nodes, self._random.randint(1, nodes)))
        return tuple(sorted(self._random.sample(range(nodes), count)))

    def _sizes(self, datagram: int) -> tuple[int, ...]:
        return self._random.choice(
            (
                (0, 1),
                (100,),
                (100,),
                (0, 1, 10, 100, 300),
                (1, 100, 100, 100, 100, 100, 100, 3 * datagram),
                (datagram, 10),
            )
        )

    def _incidents(
        self, faults: tuple[str, ...], nodes: int, initial: int, safety: float, tau: float
    ) -> tuple[Incident, ...]:
        random = self._random
        found = [
            Incident(fault="join", at_ms=self._between(0, safety * 0.7), nodes=(slot,))
            for slot in range(initial, nodes)
        ]

        def at() -> float:
            return self._between(0, safety * 0.9)

        def some(fault: str, most: int) -> range:
            return range(random.randint(1, most) if fault in faults else 0)

        def node() -> int:
            return random.randrange(nodes)

        for _ in some("F7", 3):
            side = tuple(sorted(random.sample(range(nodes), random.randint(1, nodes - 1))))
            found.append(Incident(fault="F7", at_ms=at(), ms=self._log_uniform(5, 300), nodes=side))
        for _ in some("F8", 2):
            side = tuple(sorted(random.sample(range(nodes), random.randint(1, nodes - 1))))
            found.append(Incident(fault="F8", at_ms=at(), ms=self._log_uniform(5, 300), nodes=side))
        for _ in some("F9", 2):
            pair = tuple(random.sample(range(nodes), 2))
            found.append(Incident(fault="F9", at_ms=at(), ms=self._log_uniform(5, 300), nodes=pair))
        for _ in some("F10", max(1, nodes - 2)):
            copies = random.randint(0, nodes)
            found.append(Incident(fault="F10", at_ms=at(), nodes=(node(),), amount=copies))
        for _ in some("F11", 2):
            down = random.choice((0.0, self._log_uniform(1, 200)))
            found.append(Incident(fault="F11", at_ms=at(), ms=down, nodes=(node(),), amount=node()))
        found += [
            Incident(fault="F12", at_ms=at(), ms=self._log_uniform(1, 300), nodes=(node(),))
            for _ in some("F12", 3)
        ]
        for _ in some("F13", 3):
            what = random.choice(("drift", "jump", "freeze"))
            amount = {"drift": random.choice((0.9, 1.1)), "jump": self._log_uniform(1, 60_000)}
            found.append(
                Incident(
                    fault="F13",
                    at_ms=at(),
                    ms=0.0 if what == "jump" else self._log_uniform(10, 400),
                    nodes=(node(),),
                    what=what,
                    amount=amount.get(what, 0.0),
                )
            )
        for _ in some("F14", 2):
            rate = random.choice((0.0, self._log_uniform(10, 1000)))
            found.append(
                Incident(
                    fault="F14",
                    at_ms=at(),
                    ms=self._log_uniform(20, 500),
                    nodes=(node(),),
                    what="takes per s",
                    amount=rate,
                )
            )
        for _ in some("F18", 3):
            what = random.choice(("again", "exclude", "swap", "flap"))
            found.append(
                Incident(
                    fault="F18",
                    at_ms=at(),
                    ms=self._log_uniform(1, 200),
                    nodes=(node(),),
                    what=what,
                    amount=random.randint(1, 5) if what == "flap" else 0.0,
                )
            )
        for _ in some("F19", 3):
            what = random.choice(("late", "twice", "bursts", "never"))
            found.append(
                Incident(
                    fault="F19",
                    at_ms=at(),
                    ms=self._log_uniform(10, 400),
                    nodes=(node(),),
                    what=what,
                    amount=round(tau * self._between(0.1, 2.0), 3) if what == "late" else 0.0,
                )
            )
        return tuple(sorted(found, key=lambda incident: incident.at_ms))
