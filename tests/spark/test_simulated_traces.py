"""The audit of what the simulator records: clean seeds raise no alarm, and each verdict is the one
that the simulator's own rules gave when the run was made."""

from __future__ import annotations

from collections import defaultdict
from itertools import count
from typing import TYPE_CHECKING

import pytest

from ringcast.sim.runner import Judged, run_seeds
from ringcast.spark.audit import audit, audit_all
from ringcast.spark.fleet_audit import NETWORK
from ringcast.spark.report import RECORDED, verdict_id
from ringcast.trace.segments import Segment, segment_paths, write_segment, write_trace_segments

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from ringcast.trace.rows import MemberKey

PROTOCOLS = [
    ("multicast", "acks"),
    ("multicast", "stability"),
    ("unicast", "acks"),
    ("group", "acks"),
    ("uniform", "acks"),
    ("total", "acks"),
]
NOBODY_NOTICED = "the end of its trace is missing"
"""What is said of a member that crashed so late that no view went on without it."""


def check_clean(spark: SparkSession | None, directory: Path, seeds: range) -> None:
    for protocol, purge in PROTOCOLS:
        record = directory / f"{protocol}-{purge}"
        record.mkdir()
        summaries = {
            f"seed-{summary.seed}": summary
            for summary in run_seeds(seeds, protocol=protocol, purge=purge, record=record)
        }
        reports = audit_all(spark, record)
        assert {report.run_id for report in reports} == set(summaries)
        for report in reports:
            found = {
                verdict.id: Judged(verdict.premises, verdict.violation_count, verdict.worst)
                for verdict in report.verdicts
            }
            judged = summaries[report.run_id].judged
            judged = {verdict_id(name): each for name, each in judged.items()}
            assert set(judged) - set(found) <= {"G1", "G7"}  # where the harness itself compares
            assert found == {name: judged[name] for name in found}, report.run_id
            assert report.exit_status == 0, report.to_json()
        # A small run gives rules little to judge, but something; an average one hundreds of cases.
        premises = [sum(verdict.premises for verdict in report.verdicts) for report in reports]
        assert min(premises) > 0
        assert sum(premises) > 500 * len(premises)


def test_clean_seeds_raise_no_alarm(tmp_path: Path) -> None:
    """In one process; of some of them test_planted asks Spark."""
    check_clean(None, tmp_path, range(2))


@pytest.mark.proof
def test_two_hundred_clean_seeds_raise_no_alarm(spark: SparkSession, tmp_path: Path) -> None:
    check_clean(spark, tmp_path, range(40))


def check_digests(spark: SparkSession | None, directory: Path, protocol: str, seeds: range) -> None:
    """The same, as if members had recorded for themselves."""
    from ringcast.sim.plan import expand
    from ringcast.sim.runner import run

    for seed in seeds:
        places: defaultdict[MemberKey, Iterator[int]] = defaultdict(count)
        own = [
            row._replace(run_idx=-1, idx=next(places[row.key]))
            for row in run(expand(seed, protocol)).trace.rows
            if row.node and row.event not in NETWORK
        ]
        write_trace_segments(directory / str(seed), f"seed-{seed}", own)
    premises = []
    for report in audit_all(spark, directory):
        judged = [verdict for verdict in report.verdicts if verdict.id in RECORDED]
        alarms = [
            (verdict.id, verdict.detail)
            for verdict in judged
            if verdict.status == "violated"
            or not all(why.endswith(NOBODY_NOTICED) for why in verdict.incomplete)
        ]
        assert alarms == [], report.run_id
        premises.append(sum(verdict.premises for verdict in judged))
    assert min(premises) > 0  # as above
    assert sum(premises) > 50 * len(premises)


@pytest.mark.parametrize("protocol", ["multicast", "uniform", "total"])
def test_clean_seeds_raise_no_alarm_from_digests(tmp_path: Path, protocol: str) -> None:
    check_digests(None, tmp_path, protocol, range(2))


@pytest.mark.proof
@pytest.mark.parametrize("protocol", ["multicast", "group", "uniform", "total"])
def test_forty_clean_seeds_raise_no_alarm_from_digests(
    spark: SparkSession, tmp_path: Path, protocol: str
) -> None:
    check_digests(spark, tmp_path, protocol, range(40))


def test_where_rows_are_missing_nothing_of_the_whole_run_is_judged(tmp_path: Path) -> None:
    """Rules would take what is not there for what was not done."""
    list(run_seeds([1], record=tmp_path))
    for path in segment_paths(tmp_path):
        with Segment(path) as segment:
            rows, info = segment.rows(), segment.info
        if info.node == "A":
            path.unlink()
            write_segment(path.parent, info.recording, rows[: len(rows) // 2])
    report = audit(None, tmp_path)
    found = {verdict.id: verdict for verdict in report.verdicts}
    assert found["N-L1"].status == found["N5"].status == found["N1"].status == "incomplete"
    assert "A: the end of its trace is missing" in found["N-L1"].detail
    assert "violated" not in {verdict.status for verdict in report.verdicts}
    assert report.exit_status == 3


def test_a_simulation_is_cut_into_segments_as_one_likes(tmp_path: Path) -> None:
    list(run_seeds([3], record=tmp_path))
    whole = audit(None, tmp_path)
    for path in segment_paths(tmp_path):
        with Segment(path) as segment:
            rows, info = segment.rows(), segment.info
        path.unlink()
        middle = len(rows) // 2
        write_segment(path.parent, info.recording, rows[:middle], facts=info.facts)
        write_segment(path.parent, info.recording, rows[middle:], is_last=True, facts=info.facts)
    cut = audit(None, tmp_path)
    assert cut.segments == 2 * whole.segments
    assert cut.verdicts == whole.verdicts
