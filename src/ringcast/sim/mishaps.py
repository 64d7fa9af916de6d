"""Mishaps: which incidents befall the members of one run, and when.

Some wait for a certain frame (`Incident.when`): a cut, a pause or a crash in the middle of a view
change, before or after any of its datagrams.

A cut that outlasts suspicion makes a group fall apart. It may be clean (two sides, or more), or
not: one way only, between two members that a third still hears, or around a centre that dies. It
may come and go, last until the faults end, or for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import exp, log
from random import Random

from ringcast.sim.options import RECEIVER, STEPS, Incident, Options

CUTS = ("F7", "F8", "F9")
BRIDGE = "bridge"
"""The first node hears both sides: the other ones that are named, and the rest."""
STAR = "star"
"""Only the node that is named hears the others."""
FOR_GOOD = "for good"
"""Two sides, also after all other faults have ended."""

KINDS = (
    *("two sides", "more sides", "one way", "one link", BRIDGE, STAR),
    *("flapping", "until the end", FOR_GOOD),
)
"""What is counted. A cut is of one of the first six kinds, and may be of others too."""

TORN = 0.3
"""How often a view is torn where the network parts, and another is proposed before members hear of
it from each other."""

LONG_MS = 30_000.0
"""A link that flaps for so long must not make views for so long."""


class Dice(Random):
    """The draws of one seed: the same on every machine, and for ever."""

    def log_uniform(self, low: float, high: float) -> float:
        """As likely between 1 and 2 as between 10 and 20."""
        return round(exp(self.uniform(log(low), log(high))), 3)

    def between(self, low: float, high: float) -> float:
        return round(self.uniform(low, high), 3)

    def side(self, nodes: int) -> tuple[int, ...]:
        """Some of the nodes, and not all."""
        return tuple(sorted(self.sample(range(nodes), self.randint(1, nodes - 1))))


def in_order(*incidents: Incident) -> tuple[Incident, ...]:
    """By their time."""
    return tuple(sorted(incidents, key=lambda incident: incident.at_ms))


def stretched(options: Options, safety_ms: float) -> list[Incident]:
    """The incidents of a run, in a safety phase of another length."""
    return [
        replace(incident, at_ms=round(incident.at_ms * safety_ms / options.safety_ms, 3))
        for incident in options.incidents
    ]


@dataclass
class Mishaps:
    """The incidents of one run, as they are drawn."""

    dice: Dice
    faults: tuple[str, ...]
    nodes: int
    safety_ms: float
    suspect_ms: float
    """How long a member may be silent."""
    tau_ms: float
    found: list[Incident] = field(default_factory=list)

    def drawn(self) -> tuple[Incident, ...]:
        """All so far."""
        return in_order(*self.found)

    def add(
        self,
        fault: str,
        ms: float = 0.0,
        nodes: Sequence[int] = (),
        what: str = "",
        amount: float = 0.0,
    ) -> None:
        """At any time; if nobody is named, to anybody."""
        at = self.dice.between(0, self.safety_ms * 0.9)
        named = tuple(nodes) or (self.dice.randrange(self.nodes),)
        self.found.append(Incident(fault, at, ms, named, what, amount))

    def some(self, fault: str, most: int) -> range:
        """So many of this class, if it is on."""
        return range(self.dice.randint(1, most) if fault in self.faults else 0)

    def usual(self, initial: int) -> None:
        """What befalls members of any group."""
        dice, nodes = self.dice, self.nodes
        for slot in range(initial, nodes):
            self.add("join", nodes=(slot,))
        for _ in range(dice.choice((0, 0, 1, 1, 2))):
            # Some come back, at the same address.
            self.add("leave", dice.choice((0.0, dice.log_uniform(1, 1000))), what=self._whom())
        for fault, most in (("F7", 3), ("F8", 2)):
            for _ in self.some(fault, most):
                self.add(fault, dice.log_uniform(5, 300), dice.side(nodes))
        for _ in self.some("F9", 2):
            self.add("F9", dice.log_uniform(5, 300), dice.sample(range(nodes), 2))
        for _ in self.some("F10", max(1, nodes - 2)):
            self.add("F10", what=self._whom(), amount=dice.randint(0, nodes))
        for _ in self.some("F11", 2):
            down = dice.choice((0.0, dice.log_uniform(1, 2 * self.suspect_ms)))
            self.add("F11", down, what=self._whom(), amount=dice.randint(0, nodes))
        for _ in self.some("F12", 3):
            # Shorter and longer than they are waited for.
            self.add("F12", dice.log_uniform(1, 4 * self.suspect_ms), what=self._whom())
        self._slow()
        self._needless_views()
        self._in_the_middle()
        if "F10" in self.faults and nodes > 2 and dice.random() < 0.6:
            self.found += _torn_view(dice, nodes, self.safety_ms)

    def _whom(self) -> str:
        return self.dice.choice(("", "", "coordinator"))

    def _slow(self) -> None:
        dice = self.dice
        for _ in self.some("F13", 3):
            what = dice.choice(("drift", "jump", "freeze"))
            amount = {"drift": dice.choice((0.9, 1.1)), "jump": dice.log_uniform(1, 60_000)}
            ms = 0.0 if what == "jump" else dice.log_uniform(10, 400)
            self.add("F13", ms, what=what, amount=amount.get(what, 0.0))
        for _ in self.some("F14", 2):
            rate = dice.choice((0.0, dice.log_uniform(10, 1000)))
            self.add("F14", dice.log_uniform(20, 500), what="takes per s", amount=rate)
        for _ in self.some("F19", 3):
            what = dice.choice(("late", "twice", "bursts", "never"))
            late = round(self.tau_ms * dice.between(0.1, 2.0), 3) if what == "late" else 0.0
            self.add("F19", dice.log_uniform(10, 400), what=what, amount=late)

    def _needless_views(self) -> None:
        """Some at any time, some in each other's way."""
        dice, nodes = self.dice, self.nodes
        for _ in self.some("F18", 4):
            if dice.random() < 0.3:
                self.add("F18", dice.log_uniform(1, 300), dice.sample(range(nodes), 2), "suspect")
                continue
            self.add("F18", dice.log_uniform(1, 300), self._any_set(), "propose")
            while dice.random() < 0.5:
                later = self.found[-1].at_ms + dice.choice((0.0, dice.log_uniform(0.1, 50)))
                again = dice.choice((self.found[-1].nodes, self._any_set()))
                self.found.append(replace(self.found[-1], at_ms=round(later, 3), nodes=again))

    def _any_set(self) -> tuple[int, ...]:
        """Who proposes, and who else is in it."""
        slots = range(self.nodes)
        return tuple(self.dice.sample(slots, self.dice.randint(1, self.nodes)))

    def _in_the_middle(self) -> None:
        """Part of what could hit a change waits for one."""
        dice = self.dice
        for place, incident in enumerate(self.found):
            is_crash = incident.fault in ("F10", "F11")
            may_wait = is_crash or incident.fault in (*CUTS, "F12")
            if not may_wait or dice.random() < 0.6:
                continue
            step = dice.choice(STEPS)
            waits = replace(incident, when=step, after=dice.choice((0, 0, 1, 2)))
            if is_crash:
                waits = replace(waits, amount=dice.randint(0, 2))
            if dice.random() < 0.6:  # whoever sends it, or gets it
                hits_receiver = incident.fault not in CUTS and dice.random() < 0.4
                waits = replace(waits, nodes=(), what=RECEIVER if hits_receiver else "")
            self.found[place] = waits


def _torn_view(dice: Dice, nodes: int, safety_ms: float) -> list[Incident]:
    """The proposer of a view dies when some have heard that it begins; and for a while no two of
    the others hear each other."""
    at, after = dice.between(0, safety_ms * 0.4), dice.randint(1, 2)
    alone = tuple(range(nodes - 1)), "+".join("1" * (nodes - 1))
    apart = Incident("F7", at, dice.log_uniform(10, 300), *alone, when="install", after=after)
    return [Incident("F10", at, when="install", after=after), apart]


# Partitions


def with_partitions(options: Options, dice: Dice) -> Options:
    """A run of a group, made longer and with partitions; fewer of its other faults."""
    return _Draw(options, dice).options()


class _Draw:
    """What one seed's partitions are."""

    def __init__(self, options: Options, dice: Dice) -> None:
        self._options = options
        self._dice = dice
        self._is_long = dice.random() < 0.06
        self._suspect = options.suspect_ms
        longest = LONG_MS + dice.between(1000, 4000)
        self._safety = longest if self._is_long else options.safety_ms * dice.between(1.2, 2)

    def options(self) -> Options:
        options, dice = self._options, self._dice
        dropped = [fault for fault in options.faults if dice.random() < self._fewer(fault)]
        faults = [fault for fault in options.faults if fault not in (*dropped, *CUTS)]
        cuts = self._cuts()
        others = [
            incident
            for incident in stretched(options, self._safety)
            if incident.fault not in (*dropped, *CUTS)
            and not (incident.fault == "leave" and dice.random() < 0.7)
        ]
        if options.nodes > 2 and not self._is_long and dice.random() < TORN:
            dies, apart = _torn_view(dice, options.nodes, self._safety)
            nodes = tuple(dice.sample(range(options.nodes), options.nodes))
            again = replace(dies, fault="F18", nodes=nodes, what="propose")
            cuts += [dies, apart, again]
        return replace(
            options,
            partitions=True,
            messages=dice.choice((20, 40, 80)),
            safety_ms=round(self._safety, 3),
            faults=(*faults, *dict.fromkeys(cut.fault for cut in cuts)),
            incidents=in_order(*cuts, *others),
        )

    def _fewer(self, fault: str) -> float:
        """How often a fault of a group's run is left out: partitions are to be seen apart."""
        if self._is_long:
            return 1.0
        return 0.7 if fault in ("F10", "F11", "F12") else 0.5

    def _cuts(self) -> list[Incident]:
        dice = self._dice
        if self._is_long:
            return self._flapping(self._cut(at=100.0, ms=LONG_MS))
        found = []
        for _ in range(dice.choice((1, 1, 2, 3))):
            at = dice.between(0, self._safety * 0.7)
            # From shorter than anybody notices to longer than the run; mostly long enough.
            outlasting = self._suspect * dice.uniform(2, 10)
            ms = dice.choice((dice.log_uniform(20, 2000), outlasting, outlasting, self._safety))
            cuts = self._cut(at=at, ms=round(ms, 3))
            if dice.random() < 0.25:
                cuts = self._flapping(cuts)
            elif dice.random() < 0.3:  # in the middle of a view change
                cuts[0] = replace(cuts[0], when=dice.choice(STEPS), after=dice.randrange(3))
            found += cuts
        if dice.random() < 0.12:
            at = dice.between(0, self._safety * 0.9)
            found.append(Incident("F7", at, nodes=self._side(), what=FOR_GOOD))
        return found

    def _flapping(self, cuts: list[Incident]) -> list[Incident]:
        hertz = self._dice.log_uniform(0.1, 10)
        # At least two periods, so that it comes back.
        return [replace(cut, ms=max(cut.ms, 2000 / hertz), amount=hertz) for cut in cuts]

    def _cut(self, at: float, ms: float) -> list[Incident]:
        """One partition, of any kind that so many nodes can have."""
        dice, nodes = self._dice, self._options.nodes
        match dice.randrange(7 if nodes > 2 else 3):
            case 0 | 1 as way:
                return [Incident(CUTS[way], at, ms, self._side())]
            case 2:
                return [Incident("F9", at, ms, tuple(dice.sample(range(nodes), 2)))]
            case 3 | 4:
                return [self._more_sides(at, ms)]
            case 5:
                named = tuple(dice.sample(range(nodes), dice.randint(2, nodes - 1)))
                return [Incident("F9", at, ms, named, BRIDGE)]
        centre = (dice.randrange(nodes),)
        half = round(min(ms, self._safety - at) / 2, 3)
        gone = Incident("F7", round(at + half, 3), half, centre)
        # Half-way through, the centre is not heard either.
        return [Incident("F9", at, ms, centre, STAR), gone]

    def _more_sides(self, at: float, ms: float) -> Incident:
        dice, nodes = self._dice, self._options.nodes
        count = dice.randint(3, nodes)
        stops = [0, *sorted(dice.sample(range(1, nodes), count - 1))]
        sizes = [stop - start for start, stop in pairwise(stops)]
        named = tuple(dice.sample(range(nodes), sum(sizes)))
        return Incident("F7", at, ms, named, "+".join(map(str, sizes)))

    def _side(self) -> tuple[int, ...]:
        return self._dice.side(self._options.nodes)
