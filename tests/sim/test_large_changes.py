"""View changes of many members: datagrams and bytes grow with the group, and no faster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ringcast.core.effects import VerifyWanted
from tools.view_changes import assemble, measure

if TYPE_CHECKING:
    from tools.view_changes import Assembly, Cost

DATAGRAMS_EACH = 7.0
"""To and from each member: a proposal, what it has, the cut, that it is flushed, the view, that it
has begun; and of who joins the greetings."""

BYTES_EACH = 1100


def costs(*counts: int) -> list[Cost]:
    found = [cost for count in counts for cost in measure(count)]
    for cost in found:
        print(cost)  # noqa: T201
    return found


def check_growth(found: list[Cost]) -> None:
    for cost in found:
        assert cost.ms <= 20.0, cost
        assert cost.datagrams <= DATAGRAMS_EACH * cost.members, cost
        assert cost.bytes <= BYTES_EACH * cost.members, cost
        assert cost.largest <= 1400, cost


def test_a_change_costs_in_proportion_to_the_group() -> None:
    check_growth(costs(10, 30, 60))


@pytest.mark.proof
def test_a_change_costs_in_proportion_to_a_group_of_500() -> None:
    check_growth(costs(10, 100, 500))


def after_the_proposer_crashed(count: int) -> int:
    """Datagrams until the others are in a view without it: it has just asked them all."""
    assembly: Assembly = assemble(count)
    first, *_ = assembly.nodes
    process = assembly.world.processes[first]
    layer = process.node.membership
    assert layer is not None
    layer.change.propose(layer.change.view, set(), (), process.now, process.node.effects)
    process.node.handle_timeout(process.now)
    process.turn()
    process.crash()
    del assembly.nodes[first]
    assembly.datagrams = 0
    assert assembly.world.run_until(assembly.is_one, 10_000.0)
    return assembly.datagrams


def test_a_proposer_that_crashes_is_asked_for_by_all_and_not_all_by_all() -> None:
    """Its members verify who comes before them, but no more than so many each."""
    few, many = after_the_proposer_crashed(40), after_the_proposer_crashed(120)
    print(f"{few} datagrams of 40 members, {many} of 120")  # noqa: T201
    assert many <= 5 * few


def test_nobody_verifies_more_than_so_many() -> None:
    assembly = assemble(50)
    *_, last = assembly.nodes
    process = assembly.world.processes[last]
    layer = process.node.membership
    assert layer is not None
    layer.change._on_stalled(process.now, process.node.effects)
    asked = [each for each in process.node.effects.signals if isinstance(each, VerifyWanted)]
    assert len(asked) == 33  # and the proposer
