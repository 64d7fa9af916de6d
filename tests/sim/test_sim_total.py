"""Groups with one order of total messages: that rules judge them, and find what is broken."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from seeded import Plan, check_caught

from ringcast.rules.table import ORDER, audit
from ringcast.sim.cluster import Cluster, node_factory_for
from ringcast.sim.options import Options
from ringcast.sim.plan import expand
from ringcast.trace import rows as trace
from support.total_defects import DEFECTS

if TYPE_CHECKING:
    from collections.abc import Iterable

TOTAL, PARTED = Plan("total"), Plan("total", partitions=True)

BROKEN: dict[str, tuple[Plan, Iterable[int], set[str]]] = {
    "1 takes what is held": (TOTAL, range(3), {"O5"}),
    "2 goes on with its queues": (TOTAL, range(9, 30), {"O2", "O3", "O4"}),
    "3 accepts and orders while frozen": (TOTAL, range(3), {"O8"}),
    "10 submits nothing anew": (TOTAL, range(12), {"O4"}),
    "cut at what each has": (TOTAL, range(18, 40), {"O1", "O5", "O7"}),
}


@pytest.mark.parametrize("name", BROKEN)
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
