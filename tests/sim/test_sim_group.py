"""Single runs of groups that find each other, part and come together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ringcast.sim.incidents import cut_links
from ringcast.sim.options import Incident, Options
from ringcast.sim.runner import run
from ringcast.trace import rows as trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.sim.runner import Result
    from ringcast.trace.rows import Row


def quiet(**changes: object) -> Options:
    """Three nodes that start at once, and no faults."""
    options = Options(seed=1, protocol="group", warm_ms=300.0, messages=10)
    return replace(options, **changes)  # type: ignore[arg-type]


def rows_of(rows: Sequence[Row], event: str, node: str) -> list[Row]:
    return [row for row in rows if row.event == event and row.node == node]


def last_views(result: Result) -> dict[str, tuple[str, ...]]:
    return {row.node: row.members for row in result.trace.rows if row.event == trace.VIEW}


def test_messages_to_all_and_to_one_are_delivered() -> None:
    result = run(quiet(messages=40, late_messages=2, pairs=((0, 1),)))
    assert result.failures == ()
    # All to all, and one to one; late messages go both ways.
    assert result.summary.deliveries == 3 * 3 * (40 + 2) + 40 + 2 + 2


def test_whoever_leaves_is_out_and_said_so() -> None:
    leave = Incident(fault="leave", at_ms=50.0, nodes=(1,))
    result = run(quiet(incidents=(leave,)))
    assert result.failures == ()
    (stop,) = rows_of(result.trace.rows, trace.STOP, "B")
    assert stop.detail == "left"
    assert last_views(result)["A"] == ("A#1", "C#1")


def test_whoever_leaves_waits_for_no_reader() -> None:
    leave = Incident(fault="leave", at_ms=700.0, nodes=(1,))
    options = quiet(stopped=2, senders=(1,), messages=200, safety_ms=1000.0, incidents=(leave,))
    result = run(options)
    assert result.failures == ()
    (stop,) = rows_of(result.trace.rows, trace.STOP, "B")
    assert stop.detail == "left"
    assert stop.mono_ns < 1050e6


def test_whoever_sleeps_for_too_long_comes_back_as_it_is() -> None:
    options = quiet(faults=("F12",), safety_ms=2000.0)
    pause = Incident(fault="F12", at_ms=50.0, ms=1000.0, nodes=(2,))
    result = run(replace(options, incidents=(pause,)))
    assert result.failures == ()
    assert any(row.members == ("A#1", "B#1") for row in rows_of(result.trace.rows, trace.VIEW, "A"))
    assert {frozenset(view) for view in last_views(result).values()} == {
        frozenset({"A#1", "B#1", "C#1"})
    }
    assert result.summary.happenings["excluded, and back"] == 4  # it, for two; they, for it


def test_a_refused_port_is_noticed_sooner() -> None:
    crash = Incident(fault="F10", at_ms=50.0, nodes=(2,))
    slow = quiet(faults=("F10",), incidents=(crash,), safety_ms=1000.0)

    def gone_after(options: Options) -> int:
        rows = run(options).trace.rows
        (death,) = rows_of(rows, trace.CRASH, "C")
        views = [row for row in rows_of(rows, trace.VIEW, "A") if row.mono_ns > death.mono_ns]
        view = next(row for row in views if "C#1" not in row.members)
        return view.mono_ns - death.mono_ns

    assert gone_after(replace(slow, hints=True)) < gone_after(slow) / 2


# Partitions


def links(fault: str, nodes: tuple[int, ...], what: str = "", count: int = 4) -> set[str]:
    incident = Incident(fault=fault, at_ms=0.0, nodes=nodes, what=what)
    found = cut_links(incident, count)
    assert len(set(found)) == len(found)
    return {f"{'ABCDEF'[a]}{'ABCDEF'[b]}" for a, b in found}


def both(*pairs: str) -> set[str]:
    return {link for pair in pairs for link in (pair, pair[::-1])}


def test_which_links_are_cut() -> None:
    assert links("F7", (0, 1)) == both("AC", "AD", "BC", "BD")
    assert links("F7", (3, 0, 1), "1+2", 6) == both(
        *("DA", "DB", "DC", "DE", "DF", "AC", "AE", "AF", "BC", "BE", "BF")
    )
    assert links("F8", (0,)) == {"AB", "AC", "AD"}
    assert links("F9", (0, 3)) == both("AD")
    assert links("F9", (1, 0), "bridge") == both("AC", "AD")
    assert links("F9", (1,), "star") == both("AC", "AD", "CD")
    assert links("F7", (0,), "for good", 2) == both("AB")


def parted(**changes: object) -> Options:
    """Four nodes that start at once; two of them are cut off for a while."""
    cut = Incident(fault="F7", at_ms=300.0, ms=1500.0, nodes=(2, 3))
    options = Options(
        seed=1,
        protocol="group",
        partitions=True,
        nodes=4,
        initial=4,
        capacities=(16,) * 4,
        tau_ms=(50.0,) * 4,
        senders=(0, 2),
        messages=40,
        heartbeat_ms=40.0,
        suspect_ms=200.0,
        verify_ms=50.0,
        warm_ms=400.0,
        safety_ms=2500.0,
        faults=("F7",),
        incidents=(cut,),
    )
    return replace(options, **changes)  # type: ignore[arg-type]


def test_two_sides_go_on_apart_and_merge() -> None:
    result = run(parted())
    assert result.failures == ()
    rows = result.trace.rows
    sides = {frozenset({"A#1", "B#1"}), frozenset({"C#1", "D#1"})}
    assert sides < {frozenset(row.members) for row in rows if row.event == trace.VIEW}
    assert {len(view) for view in last_views(result).values()} == {4}
    assert len(set(last_views(result).values())) == 1
    together = {row.node: frozenset(row.part) for row in rows if row.event == trace.VIEW}
    assert {together[node] for node in "ABCD"} == sides
    assert result.summary.happenings["merges"] == 1
    # Each has a window for each of the other side a second time, further on.
    again = [row for row in rows if row.event == trace.OPEN and row.seqno]
    assert {row.node + row.peer for row in again} == {"AC", "BC", "CA", "DA"}


def test_who_is_cut_off_for_good_ends_in_a_view_of_its_own() -> None:
    cut = Incident(fault="F7", at_ms=300.0, nodes=(3,), what="for good")
    result = run(parted(incidents=(cut,)))
    assert result.failures == ()
    views = last_views(result)
    assert views.pop("D") == ("D#1",)
    assert {frozenset(view) for view in views.values()} == {frozenset({"A#1", "B#1", "C#1"})}
    (one_view,) = (verdict for verdict in result.verdicts if verdict.id == "V-L1")
    assert one_view.premises == 2


def test_a_cut_that_comes_and_goes() -> None:
    cut = Incident(fault="F9", at_ms=100.0, ms=2000.0, nodes=(0, 1), amount=4.0)
    result = run(parted(faults=("F9",), incidents=(cut,)))
    assert result.failures == ()
    dropped = [row.mono_ns / 1e6 - 500 for row in result.trace.rows if row.event == trace.NET_DROP]
    assert dropped
    assert all(0 <= at < 2000 for at in dropped)
    assert all(at % 250 <= 125 for at in dropped)
    ended = [row for row in result.trace.rows if row.event == trace.FAULT_OFF]
    assert len(ended) == 8


@pytest.mark.parametrize("nodes", [(0,), (3,)])
def test_a_link_that_works_one_way_only_tears_nobody_else_away(nodes: tuple[int, ...]) -> None:
    """Whoever is not heard is left out, once, and comes back when the link works again."""
    cut = Incident(fault="F8", at_ms=300.0, ms=1500.0, nodes=nodes)
    result = run(parted(faults=("F8",), incidents=(cut,)))
    assert result.failures == ()
    who = f"{'ABCD'[nodes[0]]}#1"
    views = [row.members for row in result.trace.rows if row.event == trace.VIEW]
    assert {len(view) for view in last_views(result).values()} == {4}
    others = frozenset({"A#1", "B#1", "C#1", "D#1"} - {who})
    small = {frozenset(view) for view in views if 1 < len(view) < 4}
    assert others in small
    late = [row for row in result.trace.rows if row.event == trace.VIEW and row.mono_ns > 700e6]
    assert all(others <= set(row.members) for row in late if row.member != who)
