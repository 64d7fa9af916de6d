"""Receivers compared with what senders purged: who lacks a message is found, and nobody else."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from cluster_traces import Cluster, members, read_traces

from ringcast.spark.audit import audit
from ringcast.trace.rows import (
    DELIVER,
    LEFT_BEHIND,
    OPEN,
    PURGE,
    STATE_LOST,
    STATE_RECEIVED,
    VIEW,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cluster_traces import Traces

    from ringcast.spark.report import Report, Verdict
    from ringcast.trace.rows import Row

TEXT = "b has delivered a through {}, which purged through 100 with b in its view"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Traces:
    """a sends 40 messages to a, b and c; then c leaves the view, and a sends 60 more to b."""
    directory = tmp_path_factory.mktemp("reach")
    a, b, c = members("abc")
    cluster = Cluster(directory)
    cluster.install(a, b, c)
    for _ in range(4):
        cluster.send(a, 10)
    cluster.install(a, b)
    for _ in range(6):
        cluster.send(a, 10)
    cluster.stop()
    return read_traces(directory)


@pytest.fixture
def traces(whole: Traces) -> Traces:
    return whole.copy()


def judged(traces: Traces, directory: Path) -> Report:
    traces.write(directory)
    return audit(None, directory)


def reach(report: Report) -> Verdict:
    return next(verdict for verdict in report.verdicts if verdict.id == "N5")


def violated(report: Report) -> set[str]:
    return {verdict.id for verdict in report.verdicts if verdict.violation_count}


def is_of_a(row: Row, first: int = 1) -> bool:
    return row.event == DELIVER and row.peer == "a" and row.seqno2 >= first


def test_who_has_everything_is_judged_and_ok(traces: Traces, tmp_path: Path) -> None:
    report = judged(traces, tmp_path)
    assert report.exit_status == 0, report.to_json()
    verdict = reach(report)
    assert (verdict.status, verdict.premises) == ("ok", 3 + 2)
    assert verdict.detail.startswith("each member delivered 100 % of what each sent while both")


def test_a_member_that_delivers_nothing_of_a_live_sender_is_found(
    traces: Traces, tmp_path: Path
) -> None:
    traces.drop("b", is_of_a)
    report = judged(traces, tmp_path)
    assert violated(report) == {"N5"}
    (violation,) = reach(report).violations
    assert violation.text == TEXT.format(0)
    assert {(row.node, row.event) for row in violation.rows} == {("a", PURGE), ("b", OPEN)}
    assert "b delivered 0 % of what a sent while both were in the view" in reach(report).detail


def test_a_member_that_stops_half_way_is_found(traces: Traces, tmp_path: Path) -> None:
    traces.drop("b", lambda row: is_of_a(row, 50))
    report = judged(traces, tmp_path)
    assert violated(report) == {"N5"}
    (violation,) = reach(report).violations
    assert violation.text == TEXT.format(49)
    assert {row.node for row in violation.rows if row.event == DELIVER} == {"b"}
    assert "b delivered 49 % of what a sent while both were in the view" in reach(report).detail


@pytest.mark.parametrize("purge", ["stability", "retained", ""])
def test_it_is_so_however_the_group_purges(traces: Traces, tmp_path: Path, purge: str) -> None:
    traces.recordings = {
        name: replace(recording, settings={"purge": purge} if purge else {})
        for name, recording in traces.recordings.items()
    }
    assert judged(traces, tmp_path / "whole").exit_status == 0
    traces.drop("b", is_of_a)
    assert violated(judged(traces, tmp_path / "torn")) == {"N5"}


def test_who_lacks_what_was_purged_in_an_earlier_view_is_found(
    traces: Traces, tmp_path: Path
) -> None:
    traces.drop("c", lambda row: is_of_a(row, 30))
    assert violated(judged(traces, tmp_path)) == {"N5"}


def test_a_sender_that_lacks_its_own_is_found(traces: Traces, tmp_path: Path) -> None:
    traces.drop("a", lambda row: is_of_a(row, 50))
    assert violated(judged(traces, tmp_path)) == {"N5"}


# Nothing is owed


def purge_nothing(traces: Traces) -> None:
    """What was on its way when the trace ended was nobody's yet."""
    traces.drop("a", lambda row: row.event == PURGE)


def leave_the_view_before(traces: Traces) -> None:
    """As c did: what a purged later it purged without b."""
    at = traces.find("a", event=VIEW, view=2)
    traces.change("a", at, members=("a#100",))
    traces.drop("a", lambda row: row.event == PURGE and row.idx < at)
    traces.drop("b", lambda row: row.event == VIEW and row.view == 2)


def begin_behind_it(traces: Traces) -> None:
    traces.change("b", traces.find("b", event=OPEN, peer="a", stream=0), seqno=100)


def never_begin(traces: Traces) -> None:
    """It may have been let in, and never heard where a's messages begin."""
    traces.drop("b", lambda row: row.event == OPEN and row.peer == "a" and row.stream == 0)


def be_apart_and_not_begin_again(traces: Traces) -> None:
    """a and b lost sight of each other, and b left before its window opened again."""
    at = traces.find("a", event=VIEW, view=2)
    apart = traces.rows["a"][at]._replace(view=2, members=("a#100",))
    traces.change("a", at, view=3)
    traces.insert("a", at, apart)
    traces.change("b", traces.find("b", event=VIEW, view=2), view=3)
    traces.drop("a", lambda row: row.event == PURGE and row.idx < at)


def lose_sight_and_not_begin_again(traces: Traces) -> None:
    """The same, but only b saw a gone."""
    at = traces.find("b", event=VIEW, view=2)
    apart = traces.rows["b"][at]._replace(view=2, view_creator="b#101", members=("b#101",))
    traces.change("b", at, view=3)
    traces.insert("b", at, apart)
    at = traces.find("a", event=VIEW, view=2)
    traces.change("a", at, view=3)
    traces.drop("a", lambda row: row.event == PURGE and row.idx < at)


def leave_before_its_state_came(traces: Traces) -> None:
    """What it had put aside counts as taken, and is gone with it."""
    last = traces.rows["b"][-1]
    row = last._replace(event=STATE_LOST, detail=LEFT_BEHIND)
    traces.insert("b", len(traces.rows["b"]) - 1, row)


def have_a_state_without_a_departed_sender(traces: Traces) -> None:
    """What it had put aside of a does not follow on the state, and a is gone: it is left out."""
    end = len(traces.rows["b"]) - 1
    last = traces.rows["b"][-1]
    view = traces.rows["b"][traces.find("b", event=VIEW, view=2)]
    gone = view._replace(view=9, view_creator="b#101", members=("b#101",))
    traces.insert("b", end, gone, last._replace(event=STATE_RECEIVED))


@pytest.mark.parametrize(
    "excuse",
    [
        purge_nothing,
        leave_the_view_before,
        begin_behind_it,
        never_begin,
        be_apart_and_not_begin_again,
        lose_sight_and_not_begin_again,
        leave_before_its_state_came,
        have_a_state_without_a_departed_sender,
    ],
)
def test_who_owes_nothing_is_not_accused(
    traces: Traces, tmp_path: Path, excuse: Callable[[Traces], None]
) -> None:
    traces.drop("b", is_of_a)
    excuse(traces)
    assert violated(judged(traces, tmp_path)) == set()


def test_who_was_apart_owes_what_comes_after_its_new_window(traces: Traces, tmp_path: Path) -> None:
    be_apart_and_not_begin_again(traces)
    at = traces.find("b", event=VIEW, view=3)
    again = traces.rows["b"][traces.find("b", event=OPEN, peer="a", stream=0)]
    traces.insert("b", at + 1, again._replace(seqno=40, seqno2=40))
    assert violated(judged(traces, tmp_path / "whole")) == set()
    traces.drop("b", lambda row: is_of_a(row, 50))
    assert violated(judged(traces, tmp_path / "torn")) == {"N5"}


def test_the_end_of_a_killed_receiver_is_unknown(traces: Traces, tmp_path: Path) -> None:
    traces.drop("c", lambda row: is_of_a(row, 30))
    traces.stopped.remove("c")
    report = judged(traces, tmp_path)
    assert reach(report).status == "unknown tail"
    assert reach(report).unknown == {"c"}
    assert report.exit_status == 0


def test_lost_rows_excuse_what_they_may_have_had(traces: Traces, tmp_path: Path) -> None:
    at = max(at for at, row in enumerate(traces.rows["b"]) if is_of_a(row))
    del traces.rows["b"][at]
    traces.lost["b"] = 1
    assert reach(judged(traces, tmp_path)).status == "incomplete"
