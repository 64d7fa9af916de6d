"""What the tests of seeded runs share: no seed may fail, and each gives the same trace anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from ringcast.sim.fleet import Tally

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ringcast.sim.runner import Summary

MANY = range(400)
"""Seeds of a proof. A fleet judges others, and `make golden` compares 2000 with their records."""
HASHES = """
import sys
from ringcast.sim.plan import expand
from ringcast.sim.runner import run
count, protocol, partitions = sys.argv[1:]
for seed in range(int(count)):
    print(run(expand(seed, protocol, partitions=partitions == "True")).summary.hash)
"""


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


def check_determinism(count: int, protocol: str, *, partitions: bool = False) -> None:
    first, second = (_hashes(count, protocol, partitions, salt) for salt in ("1", "4242"))
    assert first == second
    assert len(set(first)) == count


def _hashes(count: int, protocol: str, partitions: bool, salt: str) -> list[str]:
    """Of the traces of so many seeds, in a process that hashes its own way."""
    done = subprocess.run(
        [sys.executable, "-c", HASHES, str(count), protocol, str(partitions)],
        env={**os.environ, "PYTHONHASHSEED": salt},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def share(holds: Sequence[bool]) -> float:
    return sum(holds) / len(holds)
