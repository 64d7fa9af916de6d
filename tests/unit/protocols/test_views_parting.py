"""Groups that fall apart: each side goes on as one view; they heal by one change."""

from __future__ import annotations

import pytest

from support.view_group import ViewGroup, in_letters

SIDES = [("A", "B", "C"), ("ABC", "DE", "F"), ("AB", "CD", "E"), ("ABCD", "EFGH", "I", "J")]


@pytest.mark.parametrize("sides", SIDES)
def test_each_side_of_a_parted_group_is_one_view_by_one_change(sides: tuple[str, ...]) -> None:
    group = ViewGroup("".join(sides)).form()
    group.weather.part(*sides)
    group.run(6000)
    whole = {who: group.observed.views_of(group.node(who).me) for who in group.names}
    last = {who: [in_letters(view) for view in views[-2:]] for who, views in whole.items()}
    assert last == {who: [group.names, side] for side in sides for who in side}
    assert group.observed.violations() == []


@pytest.mark.parametrize("parted_ms", [6000, 6300, 6700, 9000])
@pytest.mark.parametrize("sides", SIDES)
def test_parts_that_hear_each_other_again_are_one_view_by_one_change(
    sides: tuple[str, ...], parted_ms: int
) -> None:
    """Whoever is first to say Hello, within an interval of them (VL4)."""
    group = ViewGroup("".join(sides)).form()
    group.weather.part(*sides)
    group.run(parted_ms)
    group.weather.cuts.clear()
    assert group.run_until(group.is_one, 1057)
    for process in group.living():
        last = [set(in_letters(view)) for view in group.observed.views_of(process.node.me)[-2:]]
        mine = next(side for side in sides if process.node.me.name in side)
        assert last == [set(mine), set(group.names)]
    assert group.observed.violations() == []
