"""Members that start at the same instant make one group, however little they wait."""

from __future__ import annotations

import pytest

from ringcast.config import DISCOVERY_WAIT_MIN_S, MembershipConfig
from support.membership import Town

SHORTEST = MembershipConfig(discovery_wait_s=DISCOVERY_WAIT_MIN_S)


@pytest.mark.parametrize("seed", range(10))
def test_the_shortest_wait_is_long_enough(seed: int) -> None:
    town = Town(seed, membership=SHORTEST)
    town.start("ABCDEF")
    assert town.run_until_agreed("ABCDEF", within=2) < 0.5
    founders = [view for who in town.events for view in town.views(who) if len(view) == 1]
    assert len(founders) == 1  # and not several groups that had to find each other
