"""Random runs of a group with the view change of views/: faults of all kinds, then a calm network.

    PYTHONPATH=src:tests python -m support.view_runs 17      what happens with this seed

Safety (virtual_synchrony.py) must hold always; after healing all that live are in one view, nothing
waits, and everything that is sent then reaches everybody.
"""

from __future__ import annotations

import sys
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from ringcast.config import GroupConfig, MembershipConfig, MulticastConfig, StabilityConfig
from ringcast.model import Stream
from ringcast.protocols.views.layer import GroupViews
from support.view_group import NAMES, ViewGroup

if TYPE_CHECKING:
    from ringcast.node import Node

FAULTS_MS = 8_000.0
CALM_MS = 40_000.0
"""Back-off may take 16 s, twice."""
REST_MS = 3_000.0
"""What all have may be told at intervals of half a second."""
LARGE = 5_000
FAULTS = ("crash", "restart", "part", "part", "one way", "pause", "leave", "reader", "timers")
STRIKES = ("restart", "part", "one way", "one way", "pause", "pause", "leave")


class Run(NamedTuple):
    wrong: list[str]
    premises: dict[str, int]
    told: list[str]
    """What was done, and which views there were."""


def run(seed: int) -> Run:
    return RandomRun(seed).run()


def command(seed: int) -> str:
    return f"PYTHONPATH=src:tests python -m support.view_runs {seed}"


class RandomRun:
    def __init__(self, seed: int) -> None:
        self._random = random = Random(seed)
        self._names = NAMES[: random.randint(2, 7)]
        self._is_calm = False
        stability = random.choice([None, None, None, True, False])
        config = GroupConfig(
            group="views",
            multicast=MulticastConfig(
                capacity=random.choice([4, 16, 64]),
                datagram_bytes=1000,
                window_bytes=1 << 16,
                stability=None
                if stability is None
                else StabilityConfig(retain_delivered=stability),
            ),
            membership=MembershipConfig(suspect_after_s=random.choice([0.6, 1.0, 2.0])),
        )
        hint_ms = random.choice([None, 0.0])
        self._group = ViewGroup(self._names, seed=seed, config=config, hint_ms=hint_ms)
        self._group.before_sending = self._strike
        self._strikes = random.choice([0, 0.005, 0.02])
        self._told: list[str] = [
            f"seed {seed}: {len(self._names)} members, purge {config.multicast.purge.name}"
        ]
        weather = self._group.weather
        weather.loss = random.choice([0, 0, 0.02, 0.1, 0.2])
        weather.copies = random.choice([0, 0, 0.05])
        weather.delay_ms = random.choice([0.1, 1, 5, 30])
        weather.jitter_ms = random.choice([0, 1, 10, 50])
        weather.reorders = random.random() < 0.5

    def run(self) -> Run:
        group, random = self._group, self._random
        for name in self._names:
            self._at(random.uniform(0, 1000), group.start, name)
        for _ in range(random.randint(20, 120)):
            self._at(random.uniform(300, FAULTS_MS), self._send, random.choice(self._names))
        for _ in range(random.randint(0, 12)):
            name = random.choice(self._names)
            self._at(random.uniform(500, FAULTS_MS), self._fault, name, random.choice(FAULTS))
        group.run(FAULTS_MS)
        self._calm()
        is_quiet = group.run_until(group.is_quiet, CALM_MS)
        wrong = [] if is_quiet else ["not quiet again", *group.waits()]
        for name in self._names if is_quiet else ():
            for stream in group.streams:
                group.send(name, 2, stream)
        group.run(2000)
        if is_quiet:
            wrong += group.undelivered()
            if not group.run_until(group.is_quiet, REST_MS):
                wrong += ["not quiet in the end", *group.waits()]
        wrong += group.observed.violations()
        for process in group.living():
            process.node.check_invariants()
        told = [*self._told, *group.observed.in_words()]
        return Run(wrong, dict(group.observed.premises), told)

    # What befalls it

    def _at(self, milliseconds: float, action: object, *arguments: object) -> None:
        assert callable(action)
        self._group.world.clock.after(milliseconds, action, *arguments)

    def _send(self, name: str) -> None:
        random = self._random
        size = LARGE if random.random() < 0.1 else 0
        stream = random.choice([Stream.FIFO, Stream.UNIFORM])
        count = random.randint(1, 3 if size else 8)
        if self._is_up(name):
            self._group.send(name, count, stream, size)

    def _strike(self, node: Node) -> None:
        """Some faults come just when a member is in the middle of a change."""
        self._group.count_turn(node)
        layer, random = node.membership, self._random
        assert isinstance(layer, GroupViews)
        may = layer.change.is_frozen or layer.change.proposer.proposal is not None
        if may and not self._is_calm and random.random() < self._strikes:
            self._at(0, self._fault, node.me.name, random.choice(STRIKES))

    def _fault(self, name: str, kind: str) -> None:
        if self._is_calm:
            return
        random = self._random
        lasts = random.choice([50, 300, 600, 2000, 5000])
        self._tell(f"{kind} {name} {lasts}")
        match kind:
            case "crash" | "restart" if self._is_up(name):
                self._group.crash(name)
                if kind == "restart" or random.random() < 0.5:
                    self._at(random.choice([0, 100, 1000, 4000]), self._restart, name)
            case "part":
                self._part(lasts)
            case "one way" if len(self._names) > 1:
                other = random.choice(self._names.replace(name, ""))
                self._cut({(name, other)}, lasts)
            case "pause" if self._is_up(name):
                process = self._group.process(name)
                process.pause()
                self._at(lasts, process.resume)
            case "leave" if self._is_up(name):
                self._group.leave(name)
            case "reader" if self._is_up(name):
                self._group.process(name).resident.take_limit = random.choice([0, 1, 3])
            case "timers" if self._is_up(name):
                process = self._group.process(name)
                process.timer_fault = random.choice(["late", "bursts", "twice"])
                process.timer_late = random.randint(0, 300_000_000)

    def _part(self, lasts: float) -> None:
        random = self._random
        names = random.sample(self._names, len(self._names))
        sides = random.choice([2, 2, 3])
        places = sorted(random.sample(range(1, len(names)), min(sides, len(names)) - 1))
        cuts = [names[a:b] for a, b in zip([0, *places], [*places, len(names)], strict=True)]
        side = {name: n for n, part in enumerate(cuts) for name in part}
        self._cut({(a, b) for a in names for b in names if side[a] != side[b]}, lasts)

    def _cut(self, links: set[tuple[str, str]], lasts: float) -> None:
        self._group.weather.cuts |= links
        self._at(lasts, self._group.weather.cuts.difference_update, links)

    def _restart(self, name: str) -> None:
        if not self._is_calm and not self._group.process(name).is_up:
            self._tell(f"{name} starts again")
            self._group.start(name)

    def _is_up(self, name: str) -> bool:
        return name in self._started() and self._group.process(name).is_up

    def _started(self) -> set[str]:
        return {process.node.me.name for process in self._group.world.processes.values()}

    def _calm(self) -> None:
        self._is_calm = True
        weather = self._group.weather
        weather.cuts.clear()
        weather.loss = weather.copies = 0.0
        for process in self._group.living():
            process.timer_fault = ""
            process.resident.take_limit = 1000
            process.resume()
        self._tell("calm")

    def _tell(self, what: str) -> None:
        self._told.append(f"{self._group.world.clock.now / 1e9 - 1:8.3f} {what}")


def main() -> int:
    done = run(int(sys.argv[1]))
    sys.stdout.write("\n".join([*done.told, *map("WRONG {}".format, done.wrong), ""]))
    return bool(done.wrong)


if __name__ == "__main__":
    sys.exit(main())
