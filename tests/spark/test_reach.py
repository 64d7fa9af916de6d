"""Receivers compared with what senders purged: who lacks a message is found, and nobody else."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from cluster_traces import Cluster, members, read_traces

from ringcast.spark.audit import audit
from ringcast.trace.rows import BLOCK, DELIVER, OPEN, PURGE, VIEW

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cluster_traces import Traces

    from ringcast.spark.report import Report, Verdict
    from ringcast.trace.rows import Row

TEXT = "b has delivered a through {}, which had purged through 120 with b in its view"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Traces:
    """a sends 40 messages to a, b and c; then c is not in the view, and a sends 60 to b; c comes
    back, and a sends 20 to both; then b leaves."""
    directory = tmp_path_factory.mktemp("reach")
    a, b, c = members("abc")
    cluster = Cluster(directory)
    for view, runs in (((a, b, c), 4), ((a, b), 6), ((a, b, c), 2)):
        cluster.install(*view)
        for _ in range(runs):
            cluster.send(a, 10)
    cluster.install(a, c)
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
    assert (verdict.status, verdict.premises) == ("ok", 3 + 2 + 3 + 2)
    assert verdict.detail.startswith("each member delivered 100 % of what each sent while both")


def test_a_member_that_delivers_nothing_in_its_last_view_is_found(
    traces: Traces, tmp_path: Path
) -> None:
    """It leaves, and goes on with nobody: only what was purged tells."""
    traces.drop("b", lambda row: is_of_a(row, 101))
    report = judged(traces, tmp_path)
    assert violated(report) == {"N5"}
    (violation,) = reach(report).violations
    assert violation.text == TEXT.format(100)
    shown = {(row.node, row.event, row.seqno2) for row in violation.rows}
    assert {("a", PURGE, 0), ("b", OPEN, 0), ("b", DELIVER, 100)} == shown
    assert "b delivered 83 % of what a sent while both were in the view" in reach(report).detail


def test_a_member_that_stops_half_way_is_found(traces: Traces, tmp_path: Path) -> None:
    traces.drop("b", lambda row: is_of_a(row, 112))
    report = judged(traces, tmp_path)
    assert violated(report) == {"N5"}
    (violation,) = reach(report).violations
    assert violation.text.startswith("b has delivered a through 11")
    assert {row.node for row in violation.rows if row.event == DELIVER} == {"b"}


@pytest.mark.parametrize("purge", ["stability", "retained", ""])
def test_it_is_so_however_the_group_purges(traces: Traces, tmp_path: Path, purge: str) -> None:
    traces.recordings = {
        name: replace(recording, settings={"purge": purge} if purge else {})
        for name, recording in traces.recordings.items()
    }
    assert judged(traces, tmp_path / "whole").exit_status == 0
    traces.drop("b", lambda row: is_of_a(row, 101))
    assert violated(judged(traces, tmp_path / "torn")) == {"N5"}


def test_who_lacks_what_was_purged_in_an_earlier_view_is_found(
    traces: Traces, tmp_path: Path
) -> None:
    """Though it has a window since that begins behind it."""
    traces.drop("c", lambda row: is_of_a(row, 30) and row.view == 1)
    assert violated(judged(traces, tmp_path)) == {"N5"}


def test_who_goes_on_without_it_is_found_by_that_too(traces: Traces, tmp_path: Path) -> None:
    traces.drop("c", lambda row: is_of_a(row, 101))
    assert violated(judged(traces, tmp_path)) == {"N5", "VS4", "VS5"}


@pytest.mark.parametrize(("capacity", "is_found"), [(19, True), (20, False)])
def test_what_has_no_room_in_the_window_was_purged(
    traces: Traces, tmp_path: Path, capacity: int, is_found: bool
) -> None:
    """Though no row tells of it: b lacks the last twenty that a sent in a view with it."""
    traces.recordings = {
        name: replace(recording, settings={"purge": "acks", "capacity": capacity})
        for name, recording in traces.recordings.items()
    }
    traces.drop("b", lambda row: is_of_a(row, 101))
    purge_nothing(traces)
    found = reach(judged(traces, tmp_path)).violations
    assert [each.text for each in found] == [TEXT.format(100).replace("120", "101")] * is_found


@pytest.mark.parametrize("through", [0, 20])
def test_who_lacks_what_nobody_purged_is_shown(tmp_path: Path, through: int) -> None:
    a, b, c = members("abc")
    cluster = Cluster(tmp_path / "whole")
    cluster.install(a, b, c)
    for _ in range(5):
        cluster.send(a, 10)
    cluster.sent, sent = {}, cluster.sent  # it says nothing of purges
    cluster.stop()
    assert sum(sent.values()) == 50
    traces = read_traces(tmp_path / "whole")
    assert "N5" in judged(traces.copy(), tmp_path / "all").unseen()["there was nothing to judge"]
    traces.drop("b", lambda row: row.event in (DELIVER, BLOCK) and row.seqno2 > through)
    report = judged(traces, tmp_path / "less")
    assert report.exit_status == 0
    told = f"b delivered {2 * through} % of what a sent while both were in the view"
    assert told in reach(report).detail
    assert told in report.summary
    assert (reach(report).status, reach(report).is_unseen) == ("undecidable", False)


def test_a_sender_that_lacks_its_own_is_found(traces: Traces, tmp_path: Path) -> None:
    traces.drop("a", lambda row: is_of_a(row, 110))
    assert violated(judged(traces, tmp_path)) == {"N5", "VS4", "VS5"}


# Nothing is owed


def purge_nothing(traces: Traces) -> None:
    """What was on its way when the view ended was nobody's yet."""
    at = traces.find("a", event=VIEW, view=3)
    traces.drop("a", lambda row: row.event == PURGE and row.idx > at)


def leave_the_view_before(traces: Traces) -> None:
    """What a purged later it purged without b."""
    for name in "ac":
        at = traces.find(name, event=VIEW, view=3)
        traces.change(name, at, members=("a#100", "c#102"))
    end = traces.find("b", event=VIEW, view=3)
    traces.drop("b", lambda row: end <= row.idx < len(traces.rows["b"]) - 1)


def begin_behind_it(traces: Traces) -> None:
    at = traces.find("b", event=VIEW, view=3)
    opened = traces.rows["b"][traces.find("b", event=OPEN, peer="a", stream=0)]
    traces.insert("b", at + 1, opened._replace(seqno=120, seqno2=120, view=3))


@pytest.mark.parametrize("excuse", [purge_nothing, leave_the_view_before, begin_behind_it])
def test_who_owes_nothing_is_not_accused(
    traces: Traces, tmp_path: Path, excuse: Callable[[Traces], None]
) -> None:
    traces.drop("b", lambda row: is_of_a(row, 101))
    excuse(traces)
    assert reach(judged(traces, tmp_path)).violation_count == 0


def test_who_comes_from_another_part_owes_what_is_sent_since(
    traces: Traces, tmp_path: Path
) -> None:
    at = traces.find("c", event=VIEW, view=3)
    traces.drop("c", lambda row: row.idx > at and (row.event == OPEN or is_of_a(row)))
    (violation,) = reach(judged(traces, tmp_path / "all")).violations
    assert violation.text.startswith("c has delivered a through 40, which had purged through 120")
    at, end = (traces.find("a", event=VIEW, view=view) for view in (3, 4))
    traces.drop("a", lambda row: row.event == PURGE and row.idx > end)
    for place, row in enumerate(traces.rows["a"]):
        if row.event == PURGE and place > at:
            traces.change("a", place, seqno=100, hd=100)
    assert reach(judged(traces, tmp_path / "before")).violation_count == 0


def test_the_end_of_a_killed_receiver_is_unknown(traces: Traces, tmp_path: Path) -> None:
    traces.drop("b", lambda row: is_of_a(row, 101))
    traces.stopped.remove("b")
    report = judged(traces, tmp_path)
    assert reach(report).status == "unknown tail"
    assert reach(report).unknown == {"b"}
    assert report.exit_status == 0


def test_lost_rows_excuse_what_they_may_have_had(traces: Traces, tmp_path: Path) -> None:
    at = max(at for at, row in enumerate(traces.rows["b"]) if is_of_a(row))
    del traces.rows["b"][at]
    traces.lost["b"] = 1
    assert reach(judged(traces, tmp_path)).status == "incomplete"
