"""Many members: all in one view soon, at a cost that grows with the group and no faster; and for
hours, without anybody being suspected by mistake."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import NamedTuple

import pytest

from ringcast.config import MembershipConfig
from ringcast.sim.crowd import DATAGRAM_BYTES, Crowd

DISCOVERY_MS = MembershipConfig().discovery_wait_s * 1000
JOIN_MS = 100.0
"""Once somebody is there: a question, an answer, a request, a view, its acks and a welcome."""
HOUR_MS = 3_600_000.0


class Join(NamedTuple):
    """What it took to let one more in, or all of them."""

    members: int
    ms: float
    datagrams: int
    bytes: int
    largest: int


def all_at_once(count: int) -> Join:
    crowd = Crowd(count)
    for place in range(count):
        crowd.start(place)
    ms = crowd.run_until_one_view(10 * DISCOVERY_MS)
    assert crowd.is_one
    return report("at once", Join(count, ms, crowd.datagrams, crowd.bytes, crowd.largest))


def the_last_of(counts: tuple[int, ...]) -> list[Join]:
    """One starts when the other is in; what it took for those with these numbers."""
    crowd = Crowd(max(counts))
    joins = []
    for place in range(max(counts)):
        crowd.reset_counters()
        crowd.start(place)
        ms = crowd.run_until_one_view(10 * DISCOVERY_MS)
        assert crowd.is_one
        assert ms <= (JOIN_MS if place else DISCOVERY_MS + JOIN_MS)
        if place + 1 in counts:
            join = Join(place + 1, ms, crowd.datagrams, crowd.bytes, crowd.largest)
            joins.append(report("one more", join))
    return joins


def report(how: str, join: Join) -> Join:
    print(  # noqa: T201
        f"{join.members:4} members, {how}: {join.ms:.0f} ms, {join.datagrams} datagrams, "
        f"{join.bytes} bytes, the largest {join.largest}"
    )
    return join


def check_growth(joins: list[Join]) -> None:
    """Twice the members: at most twice the datagrams of a join (and twice as long views in them),
    with a tenth for the beats that happen to fall into that time."""
    for small, large in pairwise(joins):
        factor = large.members / small.members
        assert large.datagrams <= 1.1 * factor * small.datagrams
        assert large.bytes <= 1.1 * factor**2 * small.bytes


def check_start(join: Join) -> None:
    """Nobody searches for longer than once, and views of any size travel in pieces."""
    assert join.ms <= DISCOVERY_MS + JOIN_MS
    assert join.largest <= DATAGRAM_BYTES


@pytest.mark.proof
def test_a_hundred_that_start_at_once_are_one_group() -> None:
    check_start(all_at_once(100))


def test_one_more_costs_no_more_than_in_proportion() -> None:
    check_growth(the_last_of((12, 25, 50)))


@pytest.mark.proof
def test_a_hundred_join_one_after_the_other() -> None:
    joins = the_last_of((25, 50, 100))
    check_growth(joins)
    assert joins[-1].largest <= DATAGRAM_BYTES


def run_for_hours(nodes: int, hours: float, loss: float) -> Crowd:
    """Idle, but for a message every ten seconds or so."""
    crowd = Crowd(nodes, loss=loss)
    for place in range(nodes):
        crowd.start(place)
    crowd.run_until_one_view(60_000.0)
    assert crowd.is_one
    random = Random(1)
    while crowd.clock.now < hours * HOUR_MS * 1e6:
        crowd.run_for(random.uniform(0, 20_000))
        crowd.send(random.randrange(nodes), b"still here")
    return crowd


def check_trust(crowd: Crowd) -> None:
    found = (node.detector for node in crowd.nodes.values())
    detectors = [each for each in found if each is not None]
    print(  # noqa: T201
        f"{len(detectors)} members, {crowd.clock.now / HOUR_MS / 1e6:.1f} h: "
        f"{sum(each.verifications for each in detectors)} asked, "
        f"{sum(each.suspicions for each in detectors)} suspected"
    )
    assert sum(each.heartbeats_sent for each in detectors) > 0
    assert sum(each.suspicions for each in detectors) == 0
    assert crowd.is_one


def test_nobody_is_suspected_by_mistake_for_minutes() -> None:
    check_trust(run_for_hours(5, 0.05, 0.05))


@pytest.mark.proof
def test_nobody_is_suspected_by_mistake_in_twenty_hours() -> None:
    check_trust(run_for_hours(8, 2.5, 0.05))
