"""What is planted in what members recorded of the one order, and which rule must find it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cluster_traces import check_found, judge, read_traces
from plants_order import FOUND, record_order

from ringcast.spark.report import OF_ORDER
from ringcast.spark.summarize import summarize_segment
from ringcast.spark.summary import BUCKET_POSITIONS, SegmentSummary
from ringcast.trace.segments import Segment

if TYPE_CHECKING:
    from pathlib import Path

    from cluster_traces import Traces


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Traces:
    directory = tmp_path_factory.mktemp("order")
    record_order(directory)
    return read_traces(directory)


def taken(traces: Traces) -> int:
    """Messages, at all members."""
    orders = (row for row in traces.all_rows() if row.event == "order")
    return sum(row.seqno2 - row.seqno + 1 for row in orders)


def test_the_clean_life_is_judged_and_has_nothing_to_be_found(life: Traces, tmp_path: Path) -> None:
    report, found = judge(life, tmp_path)
    assert report.exit_status == 0, report.to_json()
    assert {name: found[name].status for name in OF_ORDER} == dict.fromkeys(OF_ORDER, "ok")
    assert all(found[name].premises for name in OF_ORDER)
    alone = sum(row.seqno2 - row.seqno + 1 for row in life.rows["b"] if row.event == "order")
    goes_on = found["O1"].premises - (taken(life) - alone)
    assert 0 < goes_on <= 4  # views to which several go on; else each position is compared once


def test_all_that_is_planted_is_found_in_rows_that_were_changed(
    life: Traces, tmp_path: Path
) -> None:
    check_found(life, tmp_path, FOUND)


def test_stretches_are_compared_wherever_rows_are_cut(life: Traces, tmp_path: Path) -> None:
    """Positions far on, so that rows reach from one bucket into the next."""
    far = 3 * BUCKET_POSITIONS - 10

    def move(traces: Traces) -> None:
        for rows in traces.rows.values():
            for at, row in enumerate(rows):
                if row.event in ("order", "shown"):
                    rows[at] = row._replace(low=row.low + far)

    report, found = judge(life, tmp_path / "far", move)
    assert report.exit_status == 0, report.to_json()
    assert found["O1"].premises == judge(life, tmp_path / "near")[1]["O1"].premises


def test_who_recorded_nothing_may_have_taken_elsewhere_what_is_missing(
    life: Traces, tmp_path: Path
) -> None:
    """A message that is left out is a violation only if its sender's rows are all there."""

    def leave_out(traces: Traces) -> None:
        next(plant for plant in FOUND if plant.__name__ == "leave_a_message_out")(traces)
        del traces.rows["f"]

    report, found = judge(life, tmp_path, leave_out)
    assert not found["O3"].violation_count
    assert report.exit_status == 3


def test_a_row_of_more_messages_than_there_can_be_is_refused(life: Traces, tmp_path: Path) -> None:
    """Before anybody counts them."""

    def boast(traces: Traces) -> None:
        at = traces.find("c", event="order")
        traces.change("c", at, seqno2=2**60)

    report, _ = judge(life, tmp_path, boast)
    assert report.exit_status == 3
    assert "has a row of more messages than there can be" in report.to_json()


def test_what_is_kept_of_a_segment_is_the_same_from_json(life: Traces, tmp_path: Path) -> None:
    orders = 0
    for paths in life.copy().write(tmp_path).values():
        for path in paths:
            with Segment(path) as segment:
                summary = summarize_segment(segment)
                again = SegmentSummary.from_json(summary.to_json(), segment.info)
            assert (again.rows, again.orders) == (summary.rows, summary.orders)
            orders += sum(bucket.positions for bucket in summary.orders.values())
    assert orders == taken(life)
