"""Members that start at the same instant make one group, however little they wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringcast.config import DISCOVERY_WAIT_MIN_S, MembershipConfig
from ringcast.events import ViewInstalled
from support.view_group import SMALL, ViewGroup

SHORTEST = MembershipConfig(discovery_wait_s=DISCOVERY_WAIT_MIN_S)


@pytest.mark.parametrize("seed", range(10))
def test_the_shortest_wait_is_long_enough(seed: int) -> None:
    group = ViewGroup("ABCDEF", seed=seed, config=replace(SMALL, membership=SHORTEST))
    group.weather.jitter_ms = 2.0
    for name in "ABCDEF":
        group.start(name)
    assert group.run_until(group.is_one, 500), group.waits()
    views = [event for told in group.events.values() for event in told]
    sizes = [len(event.view) for event in views if isinstance(event, ViewInstalled)]
    assert sizes.count(1) <= 1  # and not several groups that had to find each other
