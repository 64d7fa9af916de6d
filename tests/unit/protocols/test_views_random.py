"""Groups with the new view change under random faults: safe always, and whole when the network is.

A dozen seeds on every commit, hundreds in a proof. Whatever fails names the command that replays it
(support/view_runs.py).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from support.view_runs import command, run
from support.virtual_synchrony import RULES

if TYPE_CHECKING:
    from collections.abc import Iterable

FEW = range(12)
MANY = range(100, 600)
SELDOM = {"VS7"}
"""Nobody is parted from a view that it should have come to know: that takes a rule to be broken."""


def judge(seeds: Iterable[int]) -> None:
    failures = []
    premises: Counter[str] = Counter()
    for seed in seeds:
        done = run(seed)
        premises.update(done.premises)
        failures += [f"{command(seed)}   {done.wrong[0]}"] if done.wrong else []
    assert not failures, "\n".join(failures)
    assert [rule for rule in RULES if not premises[rule] and rule not in SELDOM] == []


def test_a_few_seeds() -> None:
    judge(FEW)


@pytest.mark.proof
@pytest.mark.parametrize("start", MANY[::50])
def test_many_seeds(start: int) -> None:
    judge(range(start, start + 50))
