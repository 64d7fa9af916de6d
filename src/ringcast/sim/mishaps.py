"""Mishaps: which incidents befall the members of one run, and when.

Some wait for a certain frame (`Incident.when`): a cut, a pause or a crash in the middle of a view
change, before or after any of its datagrams.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ringcast.sim.options import RECEIVER, STEPS, Incident
from ringcast.sim.partitions import CUTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.sim.dice import Dice


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
        """All so far, in the order of their time."""
        return tuple(sorted(self.found, key=lambda incident: incident.at_ms))

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
        self.found.append(
            Incident(fault=fault, at_ms=at, ms=ms, nodes=named, what=what, amount=amount)
        )

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
            self._torn_view()

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

    def _torn_view(self) -> None:
        """Whoever makes a view dies when some have heard that it begins; and for a while no two of
        the others hear each other."""
        dice = self.dice
        at, after = dice.between(0, self.safety_ms * 0.4), dice.randint(1, 2)
        dies = Incident(fault="F10", at_ms=at, when="install", after=after)
        all_apart = "+".join("1" * (self.nodes - 1))
        apart = Incident(
            fault="F7",
            at_ms=at,
            ms=dice.log_uniform(10, 300),
            nodes=tuple(range(self.nodes - 1)),
            what=all_apart,
            when="install",
            after=after,
        )
        self.found += [dies, apart]
