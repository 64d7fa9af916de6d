"""Real processes that record everything: the audit judges frames and windows too."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from cluster_traces import read_traces

from ringcast.sim.processes import Cluster
from ringcast.spark.audit import audit
from ringcast.spark.report import (
    IF_ANY,
    NEED_FULL,
    OF_ORDER,
    OF_PAIRS,
    RECORDED,
    UNDECIDABLE_IF_RECORDED,
)
from ringcast.trace.rows import XMIT_MISMATCH
from support.events import EVENTS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cluster_traces import Traces
    from pyspark.sql import SparkSession

    from ringcast.trace.rows import Row

ROUND = {"op": "round", "send": 3000, "expect": 9000, "size": 100}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Traces:
    """Three members, then two, with loss: some messages are sent again, and one member leaves."""
    directory = tmp_path_factory.mktemp("full")
    small = {"datagram_bytes": 4096}
    with Cluster(
        members=3, loss=0.05, seed=7, record=directory, record_level="full", config=small
    ) as cluster:
        for _ in range(2):
            cluster.tell_all(ROUND)
            assert [answer["lost"] for answer in cluster.hear_all()] == [0, 0, 0]
        cluster.leave(2)
        cluster.tell_all({**ROUND, "expect": 6000})
        assert [answer["lost"] for answer in cluster.hear_all()] == [0, 0]
    return read_traces(directory)


@pytest.fixture
def traces(whole: Traces) -> Traces:
    return whole.copy()


def test_everything_is_judged_and_held(spark: SparkSession, traces: Traces, tmp_path: Path) -> None:
    traces.write(tmp_path)
    report = audit(spark, tmp_path)
    assert report.exit_status == 0, report.to_json()
    assert report.to_json() == audit(None, tmp_path).to_json()
    judged = [verdict for verdict in report.verdicts if verdict.id in RECORDED]
    idle = {verdict.id for verdict in judged if verdict.status != "ok"}
    # Nobody was killed, no message was uniform, nobody missed a view; nobody asked or told another
    # anything, and whether a send was blocked depends on the machine.
    assert {"N11", "VS6", "VS7", "T2"} <= idle
    assert idle <= {"N11", "VS6", "VS7", "T2", "N-L3", "N-L5", *OF_PAIRS, *OF_ORDER}
    judged = [verdict for verdict in judged if verdict.id not in idle]
    assert all(verdict.premises > 0 for verdict in judged)
    others = {
        verdict.id: verdict.status for verdict in report.verdicts if verdict.id not in RECORDED
    }
    assert others == dict.fromkeys(UNDECIDABLE_IF_RECORDED, "undecidable")
    found = {verdict.id: verdict for verdict in report.verdicts}
    assert found["content"].share is not None
    assert found["content"].share > 0.9
    total = len(RECORDED) + len(UNDECIDABLE_IF_RECORDED)
    received = sum(verdict.status == "ok" for verdict in judged)
    assert report.summary.startswith(f"{received} of {total} guarantees were judged and held, ")
    assert "not recorded" not in report.summary


def test_every_row_is_one_that_the_simulator_writes(traces: Traces) -> None:
    rows = traces.all_rows()
    assert {row.event for row in rows} <= set(EVENTS)
    assert {"tx", "rx", "win", "purge", "ackmap"} <= {row.event for row in rows}
    kinds = {row.kind for row in rows if row.event in ("tx", "rx")}
    assert {"data", "ack", "nack"} <= kinds
    repeated = [row for row in rows if row.event == "tx" and row.again]
    assert {(row.kind, row.stream) for row in repeated} == {("data", 0)}


def test_one_member_that_records_less_leaves_the_rest_inconclusive(
    traces: Traces, tmp_path: Path
) -> None:
    less = replace(traces.recordings["m1"], level="deliveries")
    traces.recordings = {**traces.recordings, "m1": less}
    traces.write(tmp_path)
    report = audit(None, tmp_path)
    needing = [verdict for verdict in report.verdicts if verdict.id in NEED_FULL]
    assert {verdict.status for verdict in needing} == {"inconclusive"}
    assert all(verdict.premises for verdict in needing if verdict.id not in IF_ANY)
    assert 'needs record_level="full", which m1 did not use' in needing[0].detail
    assert report.exit_status == 0


def last(traces: Traces, name: str, **columns: object) -> int:
    """The place of the last row of this member with these values."""
    places = [
        at
        for at, row in enumerate(traces.rows[name])
        if all(getattr(row, column) == value for column, value in columns.items())
    ]
    return places[-1]


def span_more_than_fits(traces: Traces) -> None:
    at = last(traces, "m0", event="win", kind="send")
    row = traces.rows["m0"][at]
    traces.change("m0", at, hr=row.low + row.cap + 1)


def hold_what_has_no_slot(traces: Traces) -> None:
    at = last(traces, "m1", event="win", kind="receive")
    traces.change("m1", at, hd=traces.rows["m1"][at].hr + 1)


def ack_what_was_not_taken(traces: Traces) -> None:
    at = last(traces, "m2", event="tx", kind="ack")
    row = traces.rows["m2"][at]
    traces.change("m2", at, hd=row.hd + 1, received=row.received + 1)


def wait_for_a_stranger(traces: Traces) -> None:
    at = last(traces, "m0", event="ackmap")
    traces.change("m0", at, members=(*traces.rows["m0"][at].members, "m9#9"))


def ask_somebody_who_is_gone(traces: Traces) -> None:
    at = last(traces, "m1", event="tx", kind="nack")
    traces.change("m1", at, peer_inc=99)


def repeat_other_bytes(traces: Traces) -> None:
    at = last(traces, "m0", event="tx", kind="data", again=1)
    traces.change("m0", at, event=XMIT_MISMATCH)


ALSO = {"G5": {"N-L5"}}
"""A window that is too large is no bound under overload either."""


@pytest.mark.parametrize(
    ("plant", "violated"),
    [
        (span_more_than_fits, "G5"),
        (hold_what_has_no_slot, "N4"),
        (ack_what_was_not_taken, "N6"),
        (wait_for_a_stranger, "N7"),
        (ask_somebody_who_is_gone, "N8"),
        (repeat_other_bytes, "N10"),
    ],
)
def test_what_is_planted_is_found_in_its_row(
    whole: Traces,
    traces: Traces,
    tmp_path: Path,
    plant: Callable[[Traces], None],
    violated: str,
) -> None:
    plant(traces)
    changed = set(traces.all_rows()) - set(whole.all_rows())
    traces.write(tmp_path)
    report = audit(None, tmp_path)
    found = {verdict.id for verdict in report.verdicts if verdict.violation_count}
    assert found - ALSO.get(violated, set()) == {violated}
    shown: set[Row] = set()
    for verdict in report.verdicts:
        for violation in verdict.violations:
            shown |= set(violation.rows)
    assert changed & shown
    assert report.exit_status == 1
