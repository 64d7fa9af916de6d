"""No verdict by a rule that does not apply: footers say how a group purges, and the audit asks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from cluster_traces import Cluster, members, read_traces

from ringcast.spark.audit import audit
from ringcast.trace.rows import DELIVER, TX
from ringcast.trace.segments import Segment, segment_paths

if TYPE_CHECKING:
    from pathlib import Path

    from ringcast.spark.report import Report, Verdict

UNKNOWN = "plain messages of the departed are not compared: traces do not say how members purge"
DIFFERENT = (
    "plain messages of the departed are not compared: members name different purge rules: acks, "
    "retained"
)


def judge_departed(directory: Path, *settings: dict[str, Any], asks: bool = False) -> Report:
    """d is killed. a has delivered 16 messages of it, b seven; both go on."""
    a, b, d = members("abd")
    cluster = Cluster(directory / "recorded", level="full", settings=settings[0])
    cluster.install(a, b, d)
    cluster.send(d, 16)
    cluster.kill(d)
    cluster.install(a, b)
    if asks:
        whom = {"peer": "d", "peer_inc": d.incarnation}
        cluster.recorders[b].write(TX, cluster.now, kind="nack", stream=0, seqno=17, **whom)
    cluster.stop()
    traces = read_traces(directory / "recorded")
    traces.drop("b", lambda row: row.event == DELIVER and row.peer == "d" and row.seqno2 > 12)
    traces.recordings["a"] = replace(traces.recordings["a"], settings=settings[-1])
    traces.write(directory / "changed")
    return audit(None, directory / "changed")


def verdict(report: Report, id: str) -> Verdict:
    return next(verdict for verdict in report.verdicts if verdict.id == id)


def violated(report: Report) -> set[str]:
    return {verdict.id for verdict in report.verdicts if verdict.violation_count}


@pytest.mark.parametrize("purge", ["acks", "stability"])
def test_where_nothing_is_retained_survivors_may_have_less_of_the_departed(
    tmp_path: Path, purge: str
) -> None:
    report = judge_departed(tmp_path, {"purge": purge})
    assert violated(report) == set()
    assert verdict(report, "VS5").unjudged == ""


def test_where_messages_are_retained_all_who_go_on_have_the_same(tmp_path: Path) -> None:
    report = judge_departed(tmp_path, {"purge": "retained"})
    assert violated(report) == {"VS5"}
    (violation,) = verdict(report, "VS5").violations
    assert violation.text == "b goes from view 1 to 2 with 7 of d, a with 16"
    assert {row.node for row in violation.rows} == {"a", "b"}


@pytest.mark.parametrize("others", [{}, {"purge": "acks"}])
def test_where_not_all_say_so_it_is_not_judged(tmp_path: Path, others: dict[str, Any]) -> None:
    report = judge_departed(tmp_path, others, {"purge": "retained"})
    assert violated(report) == set()
    assert verdict(report, "VS5").unjudged == (DIFFERENT if others else UNKNOWN)


@pytest.mark.parametrize("purge", ["acks", "retained", ""])
def test_what_is_asked_of_the_departed_is_a_violation_in_any_case(
    tmp_path: Path, purge: str
) -> None:
    report = judge_departed(tmp_path, {"purge": purge} if purge else {}, asks=True)
    (violation,) = verdict(report, "N8").violations
    assert violation.text == "b asks for repair from d, not in view 2"


def test_windows_that_grow_are_judged_by_what_they_may_grow_to(tmp_path: Path) -> None:
    (a,) = members("a")
    cluster = Cluster(tmp_path, level="full", settings={"purge": "stability", "capacity": 8})
    cluster.install(a)
    window = {"kind": "send", "low": 0, "hd": 0, "received": 0, "hr": 0, "cap": 16, "stream": 0}
    cluster.recorders[a].write("win", cluster.now, peer="a", peer_inc=a.incarnation, **window)
    cluster.stop()
    report = audit(None, tmp_path)
    (violation,) = next(each for each in report.verdicts if each.id == "N4").violations
    assert violation.text == "a send window of a admits 16 messages, 8 is the most"


def test_every_footer_carries_them(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, settings={"purge": "retained", "capacity": 5})
    cluster.install(*members("ab"))
    cluster.stop()
    for path in segment_paths(tmp_path):
        with Segment(path) as segment:
            told = {"purge": "retained", "capacity": 5, "block_messages": 16}
            assert segment.info.settings == told
            assert segment.info.recording.settings == segment.info.settings
