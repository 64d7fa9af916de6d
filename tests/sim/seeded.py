"""What the tests of seeded runs share: which runs there are, and that each is the same anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import pytest

from ringcast.sim.plan import expand
from ringcast.sim.runner import Tally, run, run_seeds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ringcast.sim.cluster import NodeFactory
    from ringcast.sim.options import Options
    from ringcast.sim.runner import Summary

HASHES = """
import sys
from ringcast.sim.plan import expand
from ringcast.sim.runner import run
count, protocol, purge, partitions = sys.argv[1:]
for seed in range(int(count)):
    print(run(expand(seed, protocol, partitions=partitions == "True", purge=purge)).summary.hash)
"""


class Plan(NamedTuple):
    """Runs of one kind."""

    protocol: str
    purge: str = "acks"
    partitions: bool = False
    first: int = 0
    """So many run in `make proof`, and two of them on every commit."""
    kept: tuple[int, ...] = ()
    """Others that have found something: they run on every commit."""

    def __str__(self) -> str:
        """As the commands take it."""
        found = f"--protocol {self.protocol}" + " --partitions" * self.partitions
        return found + f" --purge {self.purge}" * (self.purge != "acks")

    def expand(self, seed: int) -> Options:
        return expand(seed, self.protocol, partitions=self.partitions, purge=self.purge)

    def run(self, seeds: Sequence[int]) -> Tally:
        return tally_of(
            run_seeds(
                seeds,
                protocol=self.protocol,
                partitions=self.partitions,
                purge=self.purge,
            )
        )


PLANS = (
    Plan("multicast", first=10, kept=(1093,)),
    Plan("multicast", "stability", first=8, kept=(292, 465, 596)),
    Plan("unicast", first=12),
    Plan("group", first=8, kept=(266, 505, 1151, 1813, 1907, 1928)),
    Plan("group", "stability", first=6),
    Plan("group", partitions=True, first=6, kept=(24, 160, 1737)),
    Plan("uniform", first=6, kept=(316, 335, 548, 1042)),
    Plan("uniform", "stability", first=4, kept=(335,)),
    Plan("uniform", partitions=True, first=4, kept=(287,)),
    Plan("total", first=6, kept=(106, 1498, 1896)),
    Plan("total", partitions=True, first=4, kept=(709, 994)),
)


def seeds(few: int, many: int) -> list[object]:
    """As parameters: a few on every commit, all of them in `make proof`."""
    rest = (pytest.param(seed, marks=pytest.mark.proof) for seed in range(few, many))
    return [*range(few), *rest]


def tally_of(summaries: Iterable[Summary]) -> Tally:
    tally = Tally()
    for summary in summaries:
        tally.add(summary)
    return tally


def check_nothing_failed(tally: Tally, options: str) -> None:
    """Whatever failed is named by the command that replays it."""
    failures = [
        f"ringcast replay {options} --seed {summary.seed}   "
        f"{summary.failures[0].rule}: {summary.failures[0].text}"
        for summary in tally.failed
    ]
    assert not failures, "\n".join(failures)


def check_caught(
    plan: Plan, factory: NodeFactory, rules: set[str], seeds: Iterable[int] = range(30)
) -> None:
    """A node that is broken on purpose violates one of these."""
    found = set()
    for seed in seeds:
        found |= {failure.rule for failure in run(plan.expand(seed), factory).failures}
        if found & rules:
            return
    pytest.fail(f"no seed shows a violation of {rules}; of others: {found}")


def check_determinism(plan: Plan, count: int) -> None:
    first, second = (_hashes(plan, count, salt) for salt in ("1", "4242"))
    assert first == second
    assert len(set(first)) == count


def _hashes(plan: Plan, count: int, salt: str) -> list[str]:
    """Of the traces of so many seeds, in a process that hashes its own way."""
    done = subprocess.run(
        [sys.executable, "-c", HASHES, str(count), *map(str, plan[:3])],
        env={**os.environ, "PYTHONHASHSEED": salt},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def share(holds: Sequence[bool]) -> float:
    return sum(holds) / len(holds)
