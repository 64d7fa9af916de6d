"""No verdict by a rule that does not apply: footers say how a group purges, and the audit asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from cluster_traces import Cluster, members

from ringcast.spark.audit import audit
from ringcast.trace.rows import TX
from ringcast.trace.segments import Segment, segment_paths

if TYPE_CHECKING:
    from pathlib import Path

    from ringcast.spark.report import Verdict

HALF = "nothing is asked of a member that has left the view"


def judge_departed(directory: Path, settings: dict[str, Any], *, asks: bool = False) -> Verdict:
    """d is killed, and a, b and c deliver what it left in the view without it."""
    a, b, c, d = members("abcd")
    cluster = Cluster(directory, level="full", settings=settings)
    cluster.install(a, b, c, d)
    cluster.send(d, 16)
    cluster.kill(d)
    cluster.install(a, b, c)
    cluster.send(d, 4)
    if asks:
        whom = {"peer": "d", "peer_inc": d.incarnation}
        cluster.recorders[b].write(TX, cluster.now, kind="nack", stream=0, seqno=17, **whom)
    cluster.stop()
    report = audit(None, directory)
    return next(verdict for verdict in report.verdicts if verdict.id == "N8")


@pytest.mark.parametrize("purge", ["acks", "stability"])
def test_where_nothing_is_retained_what_comes_of_the_departed_is_a_violation(
    tmp_path: Path, purge: str
) -> None:
    verdict = judge_departed(tmp_path, {"purge": purge})
    assert verdict.violations[0].text.endswith("delivers from d#103, not in view 2")
    assert verdict.title != HALF


def test_where_messages_are_retained_it_is_none(tmp_path: Path) -> None:
    verdict = judge_departed(tmp_path, {"purge": "retained"})
    assert (verdict.status, verdict.title) == ("ok", HALF)
    assert verdict.premises > 0
    assert verdict.detail == "what is delivered of it is not judged: members retain it"


def test_where_nobody_knows_it_is_none(tmp_path: Path) -> None:
    verdict = judge_departed(tmp_path, {})
    assert (verdict.status, verdict.title) == ("ok", HALF)
    assert verdict.detail == (
        "what is delivered of it is not judged: traces do not say how they purge"
    )


@pytest.mark.parametrize("purge", ["acks", "retained", ""])
def test_what_is_asked_of_the_departed_is_a_violation_in_any_case(
    tmp_path: Path, purge: str
) -> None:
    verdict = judge_departed(tmp_path, {"purge": purge} if purge else {}, asks=True)
    assert any("asks for repair from d" in found.text for found in verdict.violations)


def test_windows_that_grow_are_judged_by_what_they_may_grow_to(tmp_path: Path) -> None:
    (a,) = members("a")
    cluster = Cluster(tmp_path, level="full", settings={"purge": "stability", "capacity": 8})
    cluster.install(a)
    window = {"kind": "send", "low": 0, "hd": 0, "received": 0, "hr": 0, "cap": 16, "stream": 0}
    cluster.recorders[a].write("win", cluster.now, peer="a", peer_inc=a.incarnation, **window)
    cluster.stop()
    report = audit(None, tmp_path)
    (violation,) = next(each for each in report.verdicts if each.id == "N4").violations
    assert violation.text == "a send window of a#100 admits 16 messages, 8 is the most"


def test_every_footer_carries_them(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, settings={"purge": "retained", "capacity": 5})
    cluster.install(*members("ab"))
    cluster.stop()
    for path in segment_paths(tmp_path):
        with Segment(path) as segment:
            assert segment.info.settings == {"purge": "retained", "capacity": 5}
            assert segment.info.recording.settings == segment.info.settings
