"""Seeds of which nobody has set the capacity: windows grow, and keep what they promise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringcast.config import DefaultSize
from ringcast.sim.plan import expand
from ringcast.sim.runner import run
from ringcast.trace import rows as trace


def fitting(seed: int, protocol: str) -> list[int]:
    """How large each sender's window was, over time."""
    options = expand(seed, protocol)
    capacities = tuple(map(DefaultSize, options.capacities))
    result = run(replace(options, capacities=capacities))
    assert result.failures == (), result.failures
    sends = [row for row in result.trace.rows if row.event == trace.WIN and row.kind == "send"]
    return [row.cap // min(capacities) for row in sends]


@pytest.mark.parametrize("protocol", ["multicast", "uniform"])
def test_windows_that_grow_keep_all_that_is_promised(protocol: str) -> None:
    widest = [max(fitting(seed, protocol), default=1) for seed in range(4)]
    assert max(widest) >= 1


def test_a_window_that_a_loss_has_halved_has_no_room_for_who_waits() -> None:
    fitting(4, "group")


@pytest.mark.proof
@pytest.mark.parametrize("protocol", ["multicast", "group", "uniform"])
def test_many_windows_that_grow_keep_all_that_is_promised(protocol: str) -> None:
    assert max(max(fitting(seed, protocol), default=1) for seed in range(100)) >= 2
