"""Did each guarantee hold in this run of this cluster? Judged from its segments, on Spark.

Each file is read once, where Spark puts it, and becomes a summary (`ringcast.spark.summary`); those
that follow each other are merged there (`ringcast.spark.states`). What members recorded for
themselves is judged from them (`ringcast.spark.recorded`); only what is flagged is read again, for
the rows that show it. A simulation is judged whole (`ringcast.spark.judged`). What each
guarantee means is defined by the rules in `ringcast.rules`.
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from ringcast.errors import UsageError
from ringcast.spark.judged import judge_simulations
from ringcast.spark.recorded import judge_recorded
from ringcast.spark.recorded_run import RecordedRun, choose_run
from ringcast.spark.report import Report, Verdict
from ringcast.spark.states import Read, Refused, read_states
from ringcast.trace.segments import TEMPORARY_SUFFIX, segment_paths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.spark.reading import Workers
    from ringcast.spark.summary import SegmentState

LISTINGS_MAX = 5
"""How often everything is read while files vanish."""


def audit(spark: Workers, directory: Path | str, run_id: str | None = None) -> Report:
    """Judge the run whose segments are under the directory (shared with the executors). Without
    Spark it is judged in this process, one file after the other."""
    return audit_states(spark, directory, *_read(spark, directory), run_id)


def audit_states(
    spark: Workers,
    directory: Path | str,
    states: list[SegmentState],
    refused: list[Refused],
    run_id: str | None = None,
) -> Report:
    """The same, from what was read of the segments before."""
    run = RecordedRun(choose_run(states, run_id, refused), refused)
    unfinished = sum(1 for _ in Path(directory).rglob(f"*{TEMPORARY_SUFFIX}"))
    if unfinished:
        run.notes.append(f"{unfinished} unfinished files, left by members that were killed: unread")
    return _reports(spark, [run])[0]


def audit_all(spark: Workers, directory: Path | str) -> list[Report]:
    """Judge every run whose segments are under the directory, by the order of their ids. Files that
    cannot be read and are of none of these are one more, without a name and a verdict."""
    states, refused = _read(spark, directory)
    of_run: defaultdict[str, list[SegmentState]] = defaultdict(list)
    for state in states:
        of_run[state.info.run_id].append(state)
    runs = [RecordedRun(group, refused) for _, group in sorted(of_run.items())]
    unclaimed = [each for each in refused if all(each in run.of_others for run in runs)]
    return _reports(spark, [*runs, *([RecordedRun([], unclaimed)] if unclaimed else [])])


def _read(spark: Workers, directory: Path | str) -> Read:
    """Once more if files have vanished since they were listed: they may be merged into others."""
    for _ in range(LISTINGS_MAX):
        states, refused = read_states(spark, find_segments(directory))
        if all(os.path.lexists(each.path) for each in refused):
            break
    return states, refused


def find_segments(directory: Path | str) -> list[Path]:
    """All that there are; UsageError: there is none."""
    paths = segment_paths(directory)
    if not paths:
        why = "no segments (*.parquet) in it"
        raise UsageError(f"{directory}: {why}: members write them with record=")
    return paths


def _reports(spark: Workers, runs: Sequence[RecordedRun]) -> list[Report]:
    """Whole simulations are judged by the rules, all at once; other runs from their summaries."""
    whole = judge_simulations(spark, [run for run in runs if run.is_whole_simulation])
    return [
        _report(run, next(whole) if run.is_whole_simulation else judge_recorded(spark, run))
        for run in runs
    ]


def _report(run: RecordedRun, verdicts: list[Verdict]) -> Report:
    states = run.segments
    return Report(
        run_id=run.id,
        members=len(run.members),
        segments=sum(len(state.paths) for state in states),
        rows=sum(state.info.rows for state in states),
        verdicts=verdicts,
        notes=run.notes,
        names=run.names,
        paths=[path for state in states for path in state.paths],
        settings={
            run.names.of(member): {**trace.settings, "level": trace.states[0].info.level}
            for member, trace in run.members.items()
        },
    )
