"""Partitions: which links are cut, in which ways, and for how long.

A cut that outlasts suspicion makes a group fall apart. It may be clean (two sides, or more), or
not: one way only, between two members that a third still hears, or around a centre that dies. It
may come and go, last until the faults end, or for good.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from ringcast.sim.options import STEPS, Incident

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ringcast.sim.dice import Dice
    from ringcast.sim.options import Options

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

LONG_MS = 30_000.0
"""A link that flaps for so long must not make views for so long."""


def cut_links(incident: Incident, nodes: int) -> list[tuple[int, int]]:
    """(source, dest) of every link on which nothing arrives."""
    slots, named = range(nodes), incident.nodes
    rest = [slot for slot in slots if slot not in named]
    match incident.fault, incident.what:
        case "F9", "bridge":
            return _both_ways((a, b) for a in named[1:] for b in rest)
        case "F9", "star":
            return _both_ways((a, b) for a in rest for b in rest if a < b)
        case "F9", _:
            return _both_ways([(named[0], named[1])])
        case "F8", _:
            return [(a, b) for a in named for b in rest]
    sides = [*_sides(incident), rest]
    side_of = {slot: place for place, side in enumerate(sides) for slot in side}
    return [(a, b) for a in slots for b in slots if side_of[a] != side_of[b]]


def kinds_of(incident: Incident, safety_ms: float) -> Iterator[str]:
    """What this cut counts as."""
    match incident.fault:
        case "F7":
            yield "more sides" if "+" in incident.what else "two sides"
        case "F8":
            yield "one way"
        case _:
            yield incident.what or "one link"
    if incident.amount:
        yield "flapping"
    if incident.what == FOR_GOOD:
        yield FOR_GOOD
    elif incident.at_ms + incident.ms >= safety_ms:
        yield "until the end"


def _both_ways(links: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    return [link for a, b in links for link in ((a, b), (b, a))]


def _sides(incident: Incident) -> list[tuple[int, ...]]:
    """All but the last: "2+1" are two and one of the nodes that are named."""
    if "+" not in incident.what:
        return [incident.nodes]
    stops = [0]
    for size in incident.what.split("+"):
        stops.append(stops[-1] + int(size))
    return [incident.nodes[start:stop] for start, stop in pairwise(stops)]


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
            replace(incident, at_ms=round(incident.at_ms * self._safety / options.safety_ms, 3))
            for incident in options.incidents
            if incident.fault not in (*dropped, *CUTS)
            and not (incident.fault == "leave" and dice.random() < 0.7)
        ]
        return replace(
            options,
            partitions=True,
            messages=dice.choice((20, 40, 80)),
            safety_ms=round(self._safety, 3),
            faults=(*faults, *dict.fromkeys(cut.fault for cut in cuts)),
            incidents=tuple(sorted((*cuts, *others), key=lambda incident: incident.at_ms)),
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
            found.append(Incident(fault="F7", at_ms=at, nodes=self._side(), what=FOR_GOOD))
        return found

    def _flapping(self, cuts: list[Incident]) -> list[Incident]:
        hertz = self._dice.log_uniform(0.1, 10)
        # At least two periods, so that it comes back.
        return [replace(cut, ms=max(cut.ms, 2000 / hertz), amount=hertz) for cut in cuts]

    def _cut(self, at: float, ms: float) -> list[Incident]:
        """One partition, of any kind that so many nodes can have."""
        dice, nodes = self._dice, self._options.nodes
        match dice.randrange(7 if nodes > 2 else 3):
            case 0:
                return [Incident(fault="F7", at_ms=at, ms=ms, nodes=self._side())]
            case 1:
                return [Incident(fault="F8", at_ms=at, ms=ms, nodes=self._side())]
            case 2:
                pair = tuple(dice.sample(range(nodes), 2))
                return [Incident(fault="F9", at_ms=at, ms=ms, nodes=pair)]
            case 3 | 4:
                return [self._more_sides(at, ms)]
            case 5:
                named = tuple(dice.sample(range(nodes), dice.randint(2, nodes - 1)))
                return [Incident(fault="F9", at_ms=at, ms=ms, nodes=named, what=BRIDGE)]
        centre = (dice.randrange(nodes),)
        star = Incident(fault="F9", at_ms=at, ms=ms, nodes=centre, what=STAR)
        half = round(min(ms, self._safety - at) / 2, 3)
        gone = Incident(fault="F7", at_ms=round(at + half, 3), ms=half, nodes=centre)
        return [star, gone]  # half-way through, the centre is not heard either

    def _more_sides(self, at: float, ms: float) -> Incident:
        dice, nodes = self._dice, self._options.nodes
        count = dice.randint(3, nodes)
        stops = [0, *sorted(dice.sample(range(1, nodes), count - 1))]
        sizes = [stop - start for start, stop in pairwise(stops)]
        named = tuple(dice.sample(range(nodes), sum(sizes)))
        return Incident(fault="F7", at_ms=at, ms=ms, nodes=named, what="+".join(map(str, sizes)))

    def _side(self) -> tuple[int, ...]:
        return self._dice.side(self._options.nodes)
