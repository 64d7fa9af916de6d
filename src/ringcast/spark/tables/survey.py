"""What there is to build tables from: the segments, whose they are, and of which days."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow.compute as pc

from ringcast.errors import RingcastError
from ringcast.spark.follow import hidden, is_hidden
from ringcast.spark.reading import over_items, size_of
from ringcast.spark.recorded_run import RecordedRun
from ringcast.spark.states import Refused, parse_states, summarize_files
from ringcast.spark.tables.layout import DAY_NS
from ringcast.spark.tables.warehouse import PartitionKey, RunKey
from ringcast.trace.columns import SCHEMA
from ringcast.trace.segments import Segment, segment_paths

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import SparkSession

    from ringcast.spark.kept import Kept, KeptDigests
    from ringcast.spark.summary import SegmentState

_EPOCH = date(1970, 1, 1)


class Quarantined(NamedTuple):
    """A segment that is not in the tables, and why."""

    file: str
    size: int
    reason: str


@dataclass(slots=True)
class SurveyedRun:
    """The segments of one run."""

    states: list[SegmentState]
    """All that are whole."""
    kept: set[str]
    """Paths of those that have each row once."""
    days: dict[str, list[date]]
    """The days of each, by path."""

    def first_day(self, since: date) -> date | None:
        """Of those that are not before `since`."""
        return min(
            (day for days in self.days.values() for day in days if day >= since), default=None
        )

    def of_day(self, day: date) -> list[str]:
        return [path for path, days in self.days.items() if day in days]


@dataclass(slots=True)
class Survey:
    runs: dict[RunKey, SurveyedRun] = field(default_factory=dict)
    quarantine: list[Quarantined] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    """What an audit is to know of segments that cannot be read."""
    sources: dict[str, list[int]] = field(default_factory=dict)
    """By what each segment is known to be the same."""

    def partitions(self) -> dict[PartitionKey, dict[str, list[int]]]:
        """Every run's days, and the segments with rows of them."""
        found: defaultdict[PartitionKey, dict[str, list[int]]] = defaultdict(dict)
        for (group, run), surveyed in self.runs.items():
            for path, days in surveyed.days.items():
                for day in days:
                    found[PartitionKey(group, day, run)][path] = self.sources[path]
        return found


def take_survey(
    spark: SparkSession, directory: Path, kept: KeptDigests, again: Iterable[str] = ()
) -> Survey:
    """Read the segments that are new or were replaced, and those that are to be read `again`; of
    the others it is known."""
    paths = {str(path) for path in segment_paths(directory)}
    new = {path for path in paths if path not in kept} | {*kept.stale(), *again}
    if new:
        kept.read(spark, kept.next_batch, sorted(new), anew=True)
    return _put_together(kept.current(), directory)


def survey_files(spark: SparkSession, paths: Sequence[Path]) -> dict[str, str]:
    """As JSON for each file: what the audit's reader says of it, and its first and last day, or
    what is wrong with its rows."""
    items = [(str(path), size_of(str(path))) for path in paths]
    spans = dict(over_items(spark, items, _span_of))
    said = summarize_files(spark, paths)
    return {path: json.dumps([said[path], spans[path]]) for path, _ in items}


def _span_of(path: str) -> list[tuple[str, str | list[int]]]:
    """Every column is read once: whoever reads the file later must not fail half-way."""
    days: list[int] = []
    try:
        with Segment(path) as segment:
            for batch in segment.batches(SCHEMA.names):
                if len(batch):
                    found = pc.min_max(batch["wall_ns"]).as_py()
                    days += [found["min"] // DAY_NS, found["max"] // DAY_NS]
    except RingcastError as error:
        return [(path, str(error))]
    return [(path, [min(days), max(days)] if days else [])]


def _put_together(kept: Iterable[Kept], directory: Path) -> Survey:
    survey = Survey()
    by_run: defaultdict[RunKey, list[SegmentState]] = defaultdict(list)
    days: dict[str, list[date]] = {}
    for each in sorted(kept):
        said, span = json.loads(each.said)
        states, refused = parse_states([(each.path, said)])
        wrong = [found.reason for found in refused]
        if isinstance(span, str):
            wrong.append(span)
        if is_hidden(Path(each.path), directory):
            wrong.append(hidden(Path(each.path)))
        if wrong:
            survey.refused.append(Refused(each.path, wrong[0]))
            survey.quarantine.append(Quarantined(each.path, each.stamp.size, wrong[0]))
            continue
        (state,) = states
        survey.sources[each.path] = list(each.stamp)
        days[each.path] = _days(span)
        info = state.info
        by_run[RunKey(info.group or info.run_id, info.run_id)].append(state)
    for key, states in sorted(by_run.items()):
        run = RecordedRun(states, [])
        chosen = {state.path for state in run.segments}
        own_days = {state.path: days[state.path] for state in states}
        survey.runs[key] = SurveyedRun(states, chosen, own_days)
        survey.quarantine += [
            Quarantined(path, size_of(path), "has rows that another segment has otherwise")
            for path in sorted(state.path for state in run.overlapping)
        ]
    return survey


def _days(span: list[int]) -> list[date]:
    if not span:
        return []
    return [_EPOCH + timedelta(days=number) for number in range(span[0], span[1] + 1)]
