"""Groups with one order of total messages: that rules judge them, and find what is broken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from seeded import Plan, check_caught

from ringcast.rules.table import ORDER, audit
from ringcast.sim.cluster import Cluster, node_factory_for
from ringcast.sim.options import Options
from ringcast.sim.plan import expand
from ringcast.sim.sequencers import (
    BY_A_CUT,
    BY_ALL,
    BY_NOBODY,
    BY_SOME,
    CARRIED,
    DEMOTED,
    LEAVES,
    LEFT_OUT,
    SEEN,
    sequencers,
)
from ringcast.trace import rows as trace
from ringcast.trace.rows import Row
from support.total_defects import DEFECTS

if TYPE_CHECKING:
    from collections.abc import Iterable

TOTAL, PARTED = Plan("total"), Plan("total", partitions=True)

BROKEN: dict[str, tuple[Plan, Iterable[int], set[str]]] = {
    "1 takes what is held": (TOTAL, range(3), {"O5"}),
    "2 goes on with its queues": (TOTAL, range(30), {"O2", "O3", "O4"}),
    "3 accepts and orders while frozen": (TOTAL, range(3), {"O8"}),
    "10 submits nothing anew": (TOTAL, range(12), {"O4"}),
    "cut at what each has": (TOTAL, range(40), {"O1", "O5", "O7"}),
}


SHOWN_SOON = ("1 takes what is held", "3 accepts and orders while frozen")


@pytest.mark.parametrize(
    "name",
    [
        name if name in SHOWN_SOON else pytest.param(name, marks=pytest.mark.proof)
        for name in BROKEN
    ],
)
def test_what_is_broken_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, seeds, rules = BROKEN[name]
    for owner, attribute, defect in DEFECTS[name]:
        monkeypatch.setattr(owner, attribute, defect)
    check_caught(plan, node_factory_for(plan.expand(0)), rules, seeds)


def test_without_faults_all_take_all_in_one_order() -> None:
    options = Options(seed=1, protocol="total", uniform=1.0, warm_ms=300.0, messages=20)
    cluster = Cluster(options)
    cluster.run()
    verdicts = {each.id: each for each in audit(cluster.trace)}
    assert {rule.id for rule in ORDER if verdicts[rule.id].status != "held"} == {"O5"}
    assert verdicts["O5"].status == "vacuous"  # nobody leaves a view
    assert not cluster.recorder.findings
    taken = [row for row in cluster.recorder.rows if row.event == trace.ORDER]
    assert sum(row.seqno2 - row.seqno + 1 for row in taken) == 3 * 3 * (20 + 3)
    assert max(row.low for row in taken if row.seqno == row.seqno2) <= 3 * (20 + 3)


def test_a_run_is_drawn_with_total_messages() -> None:
    drawn = expand(3, "total")
    assert drawn.second is not None
    assert expand(3, "group").second is None


# What befell sequencers


def of(event: str, who: str, view: int = 1, **columns: Any) -> Row:
    named = {"view": view, "view_creator": "A#1"}
    return Row(event, who, 1, 0, **{**named, **columns})


def placed(rows: Iterable[Row]) -> list[Row]:
    """In this order."""
    return [row._replace(idx=at, run_idx=at) for at, row in enumerate(rows)]


def happened(*rows: Row, has_parts: bool = False) -> set[str]:
    found = sequencers(placed(rows), has_parts=has_parts)
    return {name for name, count in found.items() if count}


ABC, BC = ("A#1", "B#1", "C#1"), ("B#1", "C#1")
FORMED = [of(trace.VIEW, who, members=ABC) for who in "ABC"]
ACCEPTED = of(trace.ACCEPT, "B", seqno=1, seqno2=1)


def taken(who: str, view: int = 1, detail: str = "") -> Row:
    return of(trace.ORDER, who, view, peer="B", peer_inc=1, seqno=1, seqno2=1, detail=detail)


@pytest.mark.parametrize(
    ("before", "after", "fate"),
    [
        ("", "B2 C2", BY_NOBODY),
        ("", "B1 C1", BY_A_CUT),
        ("B1", "C1", BY_SOME),
        ("B1 C1", "", BY_ALL),
        ("A1", "B1 C1", BY_A_CUT),
    ],
)
def test_what_a_dead_sequencer_had_is_counted_by_what_became_of_it(
    before: str, after: str, fate: str
) -> None:
    then, later = ([taken(w[0], int(w[1])) for w in each.split()] for each in (before, after))
    assert happened(*FORMED, ACCEPTED, *then, of(trace.CRASH, "A"), *later) == {fate}
    assert happened(*FORMED, ACCEPTED, *then, of(trace.CRASH, "C"), *later) == set()


def test_who_leaves_is_left_out_or_demoted_is_counted() -> None:
    without = [of(trace.VIEW, who, 2, members=BC) for who in "BC"]
    assert happened(*FORMED, of(trace.STOP, "A"), *without) == {LEAVES}
    assert happened(*FORMED, *without) == {LEFT_OUT}
    assert happened(*FORMED, of(trace.VIEW, "A", 2, members=(*BC, "A#1"))) == {DEMOTED}
    assert happened(*FORMED, of(trace.CRASH, "A"), *without) == set()


def test_what_is_carried_is_counted_and_what_is_seen_where_groups_fall_apart() -> None:
    rows = (*FORMED, ACCEPTED, taken("C", detail="carried"), taken("A", detail="carried seen"))
    assert happened(*rows) == {CARRIED}
    assert happened(*rows, has_parts=True) == {CARRIED, SEEN}
