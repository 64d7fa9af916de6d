"""The audit that follows a run says what the audit of the whole directory says."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from click.testing import CliRunner

from ringcast.cli import main
from ringcast.cli.audit import ENVIRONMENT, Alarm, Changes, follow_audit
from ringcast.errors import UsageError
from ringcast.spark import kept, states, summarize, summary
from ringcast.spark.audit import audit
from ringcast.spark.follow import STATE, follow
from ringcast.spark.kept import KeptDigests
from ringcast.spark.reading import NOT_READ
from ringcast.trace import columns, footer, sealed, segments

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from cluster_traces import Traces
    from pyspark.sql import SparkSession

    from ringcast.spark.follow import Step
    from ringcast.spark.report import Report

KILLED = Path(__file__).with_name("killed_follower.py")


def catch_up(spark: SparkSession, directory: Path, files_per_batch: int = 100) -> list[Step]:
    return list(follow(spark, directory, every_s=None, files_per_batch=files_per_batch))


def assert_same(report: Report, directory: Path) -> None:
    """In one process: that Spark says the same of a directory, test_audit shows."""
    assert report.to_json() == audit(None, directory).to_json()


def deliver_again(traces: Traces) -> None:
    at = traces.find("b", event="deliver", peer="a", stream=0, seqno=12)
    traces.rows["b"].insert(at + 2, traces.rows["b"][at])
    traces.number("b")


def test_it_reads_each_segment_once_and_says_what_the_whole_audit_says(
    spark: SparkSession, traces: Traces, tmp_path: Path
) -> None:
    deliver_again(traces)
    segments = sum(map(len, traces.write(tmp_path).values()))
    steps = catch_up(spark, tmp_path, files_per_batch=8)
    assert [step.batch for step in steps] == [0, 1, 2]
    assert sum(step.new for step in steps) == steps[-1].segments == segments
    assert steps[-1].report.exit_status == 1
    assert_same(steps[-1].report, tmp_path)
    (again,) = catch_up(spark, tmp_path)
    assert (again.batch, again.new, again.segments) == (-1, 0, segments)
    assert_same(again.report, tmp_path)


def test_segments_that_come_late_twice_torn_or_go_change_it_as_they_change_the_whole(
    spark: SparkSession, traces: Traces, tmp_path: Path
) -> None:
    directory, aside = tmp_path / "a run [1]", tmp_path / "aside"
    aside.mkdir()
    written = traces.write(directory / "below")
    late, torn, twice = written["a"][1], written["b"][1], written["c"][0]
    os.utime(late, (1, 1))  # It has been on its way for years.
    late.rename(aside / late.name)
    whole = torn.read_bytes()
    torn.write_bytes(whole[: len(whole) // 2])
    (first,) = catch_up(spark, directory)
    assert "not a whole segment" in first.report.verdicts[0].detail
    assert first.report.exit_status == 3
    assert_same(first.report, directory)

    (aside / late.name).rename(late)
    shutil.copy(twice, directory / "copy.parquet")
    torn.write_bytes(whole)  # Spark has handed it out already, and will not again.
    (second,) = catch_up(spark, directory)
    assert second.new == 3
    assert second.report.exit_status == 0
    assert second.report.notes == [f"a copy of {twice.name} is ignored"]
    assert_same(second.report, directory)

    late.unlink()
    (third,) = catch_up(spark, directory)
    assert third.report.exit_status == 3
    assert_same(third.report, directory)


def test_it_goes_on_while_segments_come(
    spark: SparkSession, traces: Traces, tmp_path: Path
) -> None:
    directory, stop = tmp_path / "live", threading.Event()
    written = [path for paths in traces.write(tmp_path / "all").values() for path in paths]
    directory.mkdir()
    steps = follow(spark, directory, state=tmp_path / "state", every_s=0.05, stop=stop)
    for arrived in (10, len(written)):
        for path in written[:arrived]:
            if path.exists():
                path.rename(directory / path.name)
        step = next(step for step in steps if step.segments == arrived)
        assert_same(step.report, directory)
    stop.set()
    assert list(steps) == []
    assert not (directory / STATE).exists()
    list(follow(spark, directory, state=tmp_path / "state", every_s=None))  # The lock is free.


def test_a_run_that_has_not_come_yet_is_waited_for(
    spark: SparkSession, traces: Traces, tmp_path: Path
) -> None:
    traces.write(tmp_path)
    stop = threading.Event()
    steps = follow(spark, tmp_path, run_id="tuesday", every_s=0.05, stop=stop)
    traces.rename("tuesday")

    def write_later() -> None:
        traces.write(tmp_path / "later")

    timer = threading.Timer(0.0, write_later)
    timer.start()
    step = next(steps)
    timer.join()
    assert step.report.run_id == "tuesday"
    stop.set()
    assert list(steps) == []
    with pytest.raises(UsageError, match=r"^2 runs are here \('[\w ]+', '[\w ]+'\): choose"):
        catch_up(spark, tmp_path)


def test_kept_digests_are_put_together_and_forget_what_is_gone(
    spark: SparkSession, traces: Traces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "FILES_MAX", 1)
    written = traces.write(tmp_path)
    files = tmp_path / STATE / "summaries"
    gone = written["e"][-1]
    content = gone.read_bytes()
    catch_up(spark, tmp_path, files_per_batch=8)
    assert names(files) == ["000000000001.whole.jsonl", "000000000002.jsonl"]
    gone.unlink()
    shutil.copy(written["a"][0], tmp_path / "copy-0.parquet")
    catch_up(spark, tmp_path)
    assert names(files) == ["000000000002.whole.jsonl", "000000000003.jsonl"]
    # That there was one is known, and nothing of what it said.
    assert json.dumps([gone.name, [-1, -1], ""]) in (files / names(files)[0]).read_text()
    gone.write_bytes(content)
    shutil.copy(written["a"][0], tmp_path / "copy-1.parquet")
    (step,) = catch_up(spark, tmp_path)
    assert step.new == 2
    assert_same(step.report, tmp_path)


def test_a_renamed_folder_goes_on_where_it_was(
    spark: SparkSession, traces: Traces, tmp_path: Path
) -> None:
    written = traces.write(tmp_path / "before")
    late = written["a"][-1].rename(tmp_path / "late.parquet")
    catch_up(spark, tmp_path / "before")
    moved = (tmp_path / "before").rename(tmp_path / "after")
    late.rename(moved / written["a"][-1].name)
    (step,) = catch_up(spark, moved)
    assert step.new == 1  # of the others it is known
    assert_same(step.report, moved)
    assert step.report.exit_status == 0


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_state_is_for_one_directory_one_follower_and_one_way_to_make_digests(
    spark: SparkSession, traces: Traces, tmp_path: Path
) -> None:
    traces.write(tmp_path / "one")
    state = tmp_path / "state"
    steps = follow(spark, tmp_path / "one", state=state, every_s=None)
    next(steps)
    with pytest.raises(UsageError, match="another process works here"):
        next(follow(spark, tmp_path / "one", state=state, every_s=None))
    assert list(steps) == []
    with pytest.raises(UsageError, match=r"is for segments in .*one: choose"):
        next(follow(spark, tmp_path, state=state, every_s=None))
    (tmp_path / "one").rename(tmp_path / "two")
    (step,) = list(follow(spark, tmp_path / "two", state=state, every_s=None))
    assert (step.new, step.report.exit_status) == (0, 0)
    (tmp_path / "two").rename(tmp_path / "one")
    about = json.loads((state / "about.json").read_text())
    (state / "about.json").write_text(json.dumps(about | {"code": "older"}))
    (step,) = list(follow(spark, tmp_path / "one", state=state, every_s=None))
    assert step.new == step.segments


@pytest.mark.parametrize("module", [summary, summarize, columns, footer, sealed, segments, states])
def test_digests_are_made_anew_when_what_makes_them_changes(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = kept._code_hash(states.summarize_files)
    assert module.__file__ is not None
    changed = tmp_path / "changed.py"
    changed.write_text(Path(module.__file__).read_text() + "# changed")
    monkeypatch.setattr(module, "__file__", str(changed))
    assert kept._code_hash(states.summarize_files) != before


def test_what_could_not_be_read_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "segment.parquet"
    path.write_bytes(b"whatever")
    reads: list[str] = []

    def read_files(_: object, paths: Sequence[Path]) -> dict[str, str]:
        said = NOT_READ if not reads else {}
        reads.extend(map(str, paths))
        return {str(path): json.dumps([said, "busy"]) for path in paths}

    with KeptDigests.opened(tmp_path / "state", tmp_path, read_files) as summaries:
        summaries.read(cast("SparkSession", None), 0, [str(path)])
        assert summaries.stale() == [str(path)]
        summaries.read(cast("SparkSession", None), 1, summaries.stale())
        assert summaries.stale() == []
    assert len(reads) == 2


def test_hidden_segments_are_told_of(spark: SparkSession, traces: Traces, tmp_path: Path) -> None:
    hidden = traces.write(tmp_path)["c"][0]
    hidden.rename(hidden.with_name("_c.parquet"))
    (step,) = catch_up(spark, tmp_path)
    assert "_c.parquet: Spark takes what begins with _" in step.report.verdicts[0].detail
    assert step.report.exit_status == 3


def test_an_empty_directory_has_nothing_to_judge(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no segments"):
        catch_up(spark, tmp_path)


# Killed


def kill_follower(directory: Path, point: str, times: int) -> None:
    done = subprocess.run(
        [sys.executable, KILLED, directory, point, str(times)],
        start_new_session=True,
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


@pytest.mark.proof
def test_killed_before_spark_knows_that_a_batch_is_done_it_takes_that_batch_again(
    spark: SparkSession, traces: Traces, tmp_path: Path
) -> None:
    deliver_again(traces)
    traces.write(tmp_path)
    kill_follower(tmp_path, "judged", 2)
    files = tmp_path / STATE / "summaries"
    before = {path.name: path.read_text() for path in files.iterdir()}
    assert "000000000001.jsonl" in before
    steps = catch_up(spark, tmp_path)
    assert steps[0].batch == 1  # again, and it says the same
    found = (files / "000000000001.jsonl").read_text()
    assert sorted(found.splitlines()) == sorted(before["000000000001.jsonl"].splitlines())
    assert_same(steps[-1].report, tmp_path)


@pytest.mark.proof
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("point", ["read", "staged", "kept", "judged", "put together"])
def test_wherever_it_is_killed_it_says_the_same_in_the_end(
    spark: SparkSession, traces: Traces, tmp_path: Path, point: str, times: int
) -> None:
    deliver_again(traces)
    written = traces.write(tmp_path / "run")
    shutil.copy(written["a"][0], tmp_path / "run" / "copy.parquet")
    late = written["c"][2].rename(tmp_path / "late.parquet")
    kill_follower(tmp_path / "run", point, times)
    late.rename(written["c"][2])
    *_, last = catch_up(spark, tmp_path / "run", files_per_batch=4)
    assert last.report.exit_status == 1
    assert_same(last.report, tmp_path / "run")


# The command


def test_the_command_prints_what_changes_a_line_each(traces: Traces, tmp_path: Path) -> None:
    clean = tmp_path / "clean"
    traces.write(clean)
    deliver_again(traces)
    traces.write(tmp_path / "planted")
    changes = Changes()
    first = list(changes.lines(audit(None, clean)))
    assert first[0].startswith("G1: ")
    assert "guarantees were judged and held" in first[-1]
    assert list(changes.lines(audit(None, clean))) == []
    told = list(changes.lines(audit(None, tmp_path / "planted")))
    assert told[-1] == "2 guarantees violated."
    assert [line.split(":")[0] for line in told[:-1]] == ["G2 N2", "VS3"]
    assert all("ok → " in line for line in told[:-1])
    last = max(row.seqno2 for row in traces.rows["b"] if row.peer == "a" and row.view == 1)
    assert f"b delivers a:12..{last}, some of it again; 1 in all" in told[0]
    assert f"b delivers a:12..{last}, out of order; 1 in all" in told[1]


def test_a_command_runs_once_for_each_violation_that_is_new(
    spark: SparkSession,
    traces: Traces,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    said = tmp_path / "said"
    monkeypatch.setenv("SAID", str(said))
    words = "|".join(f"${{{name}}}" for name in ENVIRONMENT)
    command = f'echo "{words}" >> "$SAID"; test "$RINGCAST_VIOLATION_ID" != VS3'

    deliver_again(traces)
    directory = tmp_path / "traces"
    traces.write(directory)
    how = {"state": None, "run_id": None, "every_s": None, "json_file": None}
    assert follow_audit(spark, directory, command=command, **how) == 1
    report = audit(None, directory)
    Alarm(command, directory / STATE).tell(report)  # the next call finds what this one has found
    found = [line.split("|") for line in said.read_text().splitlines()]
    assert found == [
        [report.run_id, verdict.id, verdict.title, violation.text]
        for verdict in report.verdicts
        for violation in verdict.violations
    ]
    assert len(found) == 2
    told = [line for line in capfd.readouterr().err.splitlines() if "--on-violation" in line]
    assert told == ["--on-violation: the command ended with status 1 for VS3"]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--once"], "--once, --state and --on-violation go with --follow"),
        (["--state", "x"], "--once, --state and --on-violation go with --follow"),
        (["--on-violation", "x"], "--once, --state and --on-violation go with --follow"),
        (["--conf", "spark.a"], "'spark.a': write spark.executor.memory=4g"),
        (["--conf", "a=b"], "'a=b': write spark.executor.memory=4g"),
        (["--follow", "--every", "soon"], "'soon' is no length of time: write 5s"),
        (["--follow", "--every", "0s"], "'0s' is no length of time"),
    ],
)
def test_mistakes_are_told_before_spark_starts(
    tmp_path: Path, options: list[str], complaint: str
) -> None:
    result = CliRunner().invoke(main, ["audit", str(tmp_path), *options])
    assert result.exit_code == 2
    assert complaint in result.output
