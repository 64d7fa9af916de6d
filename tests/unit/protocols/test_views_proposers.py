"""Several that propose at once: nobody is frozen for long, and there is one view in the end."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ringcast.core.effects import Suspected
from support.view_group import ViewGroup

FROZEN_MS_MAX = 1014
"""Twice the patience, and 14 times a millisecond on the way (VL3)."""


def suspect(group: ViewGroup, name: str, whom: str) -> None:
    process = group.process(name)
    for member in process.node.view or ():
        if member.name in whom:
            process.node.effects.signal(Suspected(member, "as the test says"))
    process.node.handle_timeout(process.now)
    process.turn()


def longest_freeze(group: ViewGroup, milliseconds: int) -> dict[str, int]:
    """How long each was frozen without a view, at the most."""
    longest = dict.fromkeys(group.names, 0)
    frozen = dict.fromkeys(group.names, 0)
    for _ in range(milliseconds):
        group.run(1)
        for name in group.names:
            frozen[name] = frozen[name] + 1 if group.layer(name).change.is_frozen else 0
            longest[name] = max(longest[name], frozen[name])
    return longest


@pytest.mark.parametrize(
    "suspicions",
    [
        {"A": "D", "B": "A"},
        {"A": "B", "B": "A"},
        {"A": "C", "C": "AB"},
        {"B": "A", "C": "AB", "D": "ABC"},
        {"A": "BCD", "B": "ACD", "C": "ABD", "D": "ABC"},
    ],
    ids=lambda suspicions: " ".join(f"{name}:{whom}" for name, whom in suspicions.items()),
)
@pytest.mark.parametrize("delay_ms", [1, 30])
def test_proposers_in_each_others_way(suspicions: dict[str, str], delay_ms: float) -> None:
    group = ViewGroup("ABCD")
    group.weather.delay_ms = delay_ms
    group.form()
    for name, whom in suspicions.items():
        group.send(name, 2)
        suspect(group, name, whom)
    frozen = longest_freeze(group, 3000)
    assert max(frozen.values()) <= FROZEN_MS_MAX + 14 * (delay_ms - 1), frozen
    assert group.run_until(group.is_quiet, 40_000)
    for name in group.names:
        counters = [view.counter for view in group.observed.views_of(group.node(name).me)]
        assert all(a < b for a, b in pairwise(counters))
    assert group.observed.violations() == []
