"""Groups of whole members in which two do not hear each other."""

from __future__ import annotations

import pytest

from support.view_group import SMALL, ViewGroup, in_letters

SUSPECT_AFTER_MS = 1000 * SMALL.membership.suspect_after_s
BROKEN_MS = 12_000.0
ALL_WAYS = [(pair, way) for pair in ("BC", "BD", "AB", "AD") for way in ("both", "to", "from")]
BROKEN_LINKS = [
    *(("ABCD", *pair, way) for pair, way in ALL_WAYS),
    ("ABCDEFGHI", "B", "F", "both"),
]


@pytest.mark.parametrize(("names", "source", "dest", "way"), BROKEN_LINKS)
def test_of_two_that_do_not_hear_each_other_the_later_one_stays_out_until_they_do(
    names: str, source: str, dest: str, way: str
) -> None:
    group = ViewGroup(names).form()
    links = {"to": [(source, dest)], "from": [(dest, source)]}
    group.weather.cuts = {*links.get(way, links["to"] + links["from"])}
    loser, rest = dest, names.replace(dest, "")
    assert longest_wait(group, SUSPECT_AFTER_MS + 4000) <= SUSPECT_AFTER_MS + 3000
    assert {group.view(name) for name in rest} == {rest}
    assert group.view(loser) == loser

    promised = [group.layer(name).change.follower.promised for name in names]
    assert longest_wait(group, BROKEN_MS) == 0
    assert [group.layer(name).change.follower.promised for name in names] == promised

    group.weather.cuts.clear()
    assert group.run_until(group.is_one, 6000), group.waits()
    group.run(1000)
    assert group.undelivered() == []
    assert group.observed.violations() == []


def test_who_comes_in_for_a_try_while_the_link_is_broken_does_so_once_a_minute() -> None:
    group = ViewGroup("ABCD").form()
    group.weather.cuts = {("B", "C")}
    before = len(group.observed.views_of(group.node("C").me))
    group.run(120_000)
    seen = group.observed.views_of(group.node("C").me)[before:]
    assert list(map(in_letters, seen)) == ["C", "ABDC", "C"]


def longest_wait(group: ViewGroup, milliseconds: float) -> float:
    """All send, again and again: for how long nothing was accepted of one, at the worst."""
    since = dict.fromkeys(group.names, group.now_ms)
    longest, stop = 0.0, group.now_ms + milliseconds
    while group.now_ms < stop:
        for name in group.names:
            if group.send(name):
                since[name] = group.now_ms
            longest = max(longest, group.now_ms - since[name])
        group.run(100)
    return longest
