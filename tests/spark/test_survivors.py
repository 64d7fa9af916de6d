"""Who is compared by what it delivered of a departed member's uniform messages, and who is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cluster_traces import Cluster, members, read_traces
from ringcast.spark.survivors import compare_survivors

from ringcast.model import Origin, Stream, View, ViewId
from ringcast.spark.audit import audit
from ringcast.spark.recorded_run import RecordedRun
from ringcast.spark.summarize import summarize_segment
from ringcast.spark.summary import SegmentState
from ringcast.trace.rows import ESTATE, OPEN, RESOLVED, VIEW, naming
from ringcast.trace.segments import Segment, segment_paths

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cluster_traces import Traces
    from pyspark.sql import SparkSession
    from ringcast.spark.survivors import Compared

    from ringcast.model import Member

UNIFORM = Stream.UNIFORM


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Traces:
    """d sends 20 uniform messages and is killed; a, b and c deliver the last 4 of them after the
    view without it, and resolve it. e joins after that."""
    directory = tmp_path_factory.mktemp("survivors")
    a, b, c, d, e = members("abcde")
    cluster = Cluster(directory)
    cluster.install(a, b, c, d)
    cluster.send(d, 16, UNIFORM)
    cluster.kill(d)
    cluster.install(a, b, c)
    cluster.send(d, 4, UNIFORM)
    resolve(cluster, d)
    cluster.install(a, b, c, e)
    cluster.send(a, 4, UNIFORM)
    cluster.stop()
    return read_traces(directory)


def resolve(cluster: Cluster, departed: Member, stream: Stream = UNIFORM) -> None:
    """All members of the view say that nothing is left of this one to be delivered."""
    assert cluster.view is not None
    through = cluster.sent.get(Origin(departed, stream), 0)
    for member in cluster.view:
        cluster.recorders[member].write(
            *(ESTATE, cluster.now),
            **naming(Origin(departed, stream)),
            kind=RESOLVED,
            seqno=through,
            seqno2=through,
            hd=through,
            received=through,
            view=cluster.view.counter,
        )


def compare(traces: Traces, directory: Path) -> Compared:
    traces.write(directory)
    states = []
    for path in segment_paths(directory):
        with Segment(path) as segment:
            states.append(SegmentState(str(path), segment.info, summarize_segment(segment)))
    return compare_survivors(RecordedRun(states, []))


def lacking(traces: Traces, directory: Path) -> set[tuple[str, str, int, int]]:
    """(survivor, other, first, last)"""
    missed = compare(traces, directory).missed
    return {(each.survivor[0], each.other[0], each.first, each.last) for each in missed}


def forget_from(traces: Traces, name: str, seqno: int) -> None:
    """As if this member had never delivered d's messages from there on."""
    rows = []
    for row in traces.rows[name]:
        if row.event == "deliver" and (row.peer, row.stream) == ("d", UNIFORM):
            row = row._replace(seqno2=min(row.seqno2, seqno - 1))
        if row.event != "deliver" or row.seqno <= row.seqno2:
            rows.append(row)
    traces.rows[name] = rows
    traces.number(name)


def test_survivors_that_deliver_the_same_are_compared_and_found_equal(
    recorded: Traces, tmp_path: Path
) -> None:
    assert compare(recorded, tmp_path) == (3, 3, [])


def test_a_survivor_that_lacks_the_end_is_found(recorded: Traces, tmp_path: Path) -> None:
    traces = recorded.copy()
    forget_from(traces, "b", 19)
    assert lacking(traces, tmp_path) == {("b", "a", 19, 20), ("b", "c", 19, 20)}


def test_what_the_dead_sender_itself_delivered_counts(recorded: Traces, tmp_path: Path) -> None:
    traces = recorded.copy()
    for name in "abc":
        forget_from(traces, name, 15)
    assert lacking(traces, tmp_path) == {(name, "d", 15, 16) for name in "abc"}
    assert not any(each.is_survivor for each in compare(traces, tmp_path).missed)


def leave_before_it_is_resolved(traces: Traces) -> None:
    traces.rows["b"] = [row for row in traces.rows["b"] if row.event != ESTATE]
    traces.number("b")


def see_it_back_again(traces: Traces) -> None:
    traces.change("b", traces.find("b", event=ESTATE), kind="back")


def go_on_in_another_part(traces: Traces) -> None:
    for at, row in enumerate(traces.rows["b"]):
        if row.event == VIEW and row.view > 1:
            traces.change("b", at, view_creator="b#101")


def test_another_part_owes_only_what_was_delivered_before_they_parted(
    recorded: Traces, tmp_path: Path
) -> None:
    traces = recorded.copy()
    go_on_in_another_part(traces)
    forget_from(traces, "b", 17)
    assert lacking(traces, tmp_path / "enough") == set()
    forget_from(traces, "b", 16)
    assert lacking(traces, tmp_path / "too little") == {("b", "d", 16, 16)}


def skip_the_view_without_it(traces: Traces) -> None:
    """As if whoever made that view had died before b heard of it; b goes on with the next one."""
    at = traces.find("b", event=VIEW, view=2)
    del traces.rows["b"][at]
    traces.number("b")


def test_who_skipped_a_view_still_goes_on_with_the_others(recorded: Traces, tmp_path: Path) -> None:
    traces = recorded.copy()
    skip_the_view_without_it(traces)
    assert compare(traces, tmp_path / "whole") == (3, 3, [])
    forget_from(traces, "b", 19)
    assert lacking(traces, tmp_path / "torn") == {("b", "a", 19, 20), ("b", "c", 19, 20)}


def test_who_was_apart_in_between_owes_nothing(recorded: Traces, tmp_path: Path) -> None:
    traces = recorded.copy()
    at = traces.find("b", event=VIEW, view=2)
    traces.change("b", at, view_creator="b#101", members=("b#101",))
    forget_from(traces, "b", 17)
    assert lacking(traces, tmp_path) == set()


def record_parted(directory: Path, *, is_seen: bool) -> Traces:
    """d sends 16 uniform messages while b is apart, which b has seen for itself, or not. They come
    together again, and before b is told where to go on d is killed."""
    a, b, c, d = members("abcd")
    cluster = Cluster(directory)
    cluster.install(a, b, c, d)
    if is_seen:
        cluster.recorders[b].view(View(ViewId(b, 2), (b,)), cluster.now)
    cluster.install(a, c, d)
    cluster.send(d, 16, UNIFORM)
    cluster.install(a, b, c, d)
    cluster.kill(d)
    cluster.install(a, b, c)
    resolve(cluster, d)
    cluster.stop()
    return read_traces(directory)


@pytest.mark.parametrize("is_seen", [True, False])
@pytest.mark.parametrize("is_kept", [True, False])
def test_who_was_parted_from_the_sender_owes_nothing_of_that_time(
    tmp_path: Path, is_seen: bool, is_kept: bool
) -> None:
    """Whether or not the trace of the sender is there, which knows with whom it was."""
    traces = record_parted(tmp_path / "recorded", is_seen=is_seen)
    if not is_kept:
        del traces.rows["d"]
    assert compare(traces, tmp_path / "parted").missed == []
    forget_from(traces, "c", 9)  # who was with it all the time does
    others = {("c", "a", 9, 16)} | ({("c", "d", 9, 16)} if is_kept else set())
    assert lacking(traces, tmp_path / "torn") == others


def test_who_has_resolved_plain_messages_only_owes_no_uniform_ones(tmp_path: Path) -> None:
    """Where these are retained. b is killed in between, and does not live to deliver the rest."""
    a, b, c, d = members("abcd")
    cluster = Cluster(tmp_path / "recorded")
    cluster.install(a, b, c, d)
    cluster.kill(d)
    cluster.install(a, b, c)
    resolve(cluster, d, Stream.FIFO)
    cluster.kill(b)
    cluster.install(a, c)
    cluster.send(d, 4, UNIFORM)
    resolve(cluster, d)
    cluster.stop()
    traces = read_traces(tmp_path / "recorded")
    assert compare(traces, tmp_path / "whole") == (2, 2, [])
    forget_from(traces, "c", 3)
    assert lacking(traces, tmp_path / "torn") == {("c", "a", 3, 4)}


def begin_behind_it(traces: Traces) -> None:
    traces.change("b", traces.find("b", event=OPEN, peer="d", stream=int(UNIFORM)), seqno=20)


def begin_anew(traces: Traces) -> None:
    at = traces.find("b", event=OPEN, peer="d", stream=int(UNIFORM))
    traces.rows["b"].insert(at, traces.rows["b"][at])
    traces.number("b")


def never_begin(traces: Traces) -> None:
    del traces.rows["b"][traces.find("b", event=OPEN, peer="d", stream=int(UNIFORM))]
    traces.number("b")


def lose_a_row(traces: Traces) -> None:
    del traces.rows["b"][3]


@pytest.mark.parametrize(
    "excuse",
    [
        leave_before_it_is_resolved,
        see_it_back_again,
        begin_behind_it,
        begin_anew,
        never_begin,
        lose_a_row,
    ],
)
def test_who_owes_nothing_is_not_compared(
    recorded: Traces, tmp_path: Path, excuse: Callable[[Traces], None]
) -> None:
    traces = recorded.copy()
    forget_from(traces, "b", 1)
    excuse(traces)
    assert lacking(traces, tmp_path) == set()


def test_the_audit_shows_the_rows(spark: SparkSession, recorded: Traces, tmp_path: Path) -> None:
    traces = recorded.copy()
    forget_from(traces, "b", 19)
    traces.write(tmp_path)
    report = audit(spark, tmp_path)
    by_id = {verdict.id: verdict for verdict in report.verdicts}
    assert {name for name, verdict in by_id.items() if verdict.violation_count} == {"U1", "U6"}
    found = by_id["U6"]
    assert (found.status, found.premises) == ("violated", 3)
    assert by_id["U1"].violations == found.violations
    assert [violation.text for violation in found.violations] == [
        f"{other} delivers 19..20 of d (uniform), b does not and has resolved it"
        for other in ("a", "c")
    ]
    for violation in found.violations:
        shown = {(row.node, row.event) for row in violation.rows}
        assert ("b", ESTATE) in shown
        assert any(event == "deliver" for _, event in shown)
    assert report.exit_status == 1
