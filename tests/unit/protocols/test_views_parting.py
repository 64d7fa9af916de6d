"""Groups that fall apart: each side goes on as one view."""

from __future__ import annotations

import pytest

from support.view_group import ViewGroup, in_letters


@pytest.mark.parametrize(
    "sides", [("ABC", "DE", "F"), ("AB", "CD"), ("AB", "CD", "E"), ("ABCD", "EFGH", "I", "J")]
)
def test_each_side_of_a_parted_group_is_one_view_by_one_change(sides: tuple[str, ...]) -> None:
    group = ViewGroup("".join(sides)).form()
    group.weather.part(*sides)
    group.run(6000)
    whole = {who: group.observed.views_of(group.node(who).me) for who in group.names}
    last = {who: [in_letters(view) for view in views[-2:]] for who, views in whole.items()}
    assert last == {who: [group.names, side] for side in sides for who in side}
    assert group.observed.violations() == []
