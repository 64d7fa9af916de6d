"""Tables built from segments: only the days and runs whose segments have changed.

A run's day is built from all segments that have rows of it, so one that comes late is folded in by
building that day again. Bronze has all that could be read; silver leaves out copies; gold is made
from silver, and its verdicts from the whole run: they stand on its first day.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from ringcast.errors import UsageError
from ringcast.private import make_private, open_private
from ringcast.spark.audit import audit_states
from ringcast.spark.columns import member_key, read_rows, typed
from ringcast.spark.kept import KeptDigests
from ringcast.spark.metrics import latency, latency_samples, retransmissions, throughput
from ringcast.spark.reading import damaged_files
from ringcast.spark.tables import layout
from ringcast.spark.tables.layout import LAYERS, TABLES, at, whole_schema
from ringcast.spark.tables.survey import Quarantined, Survey, survey_files, take_survey
from ringcast.spark.tables.warehouse import Part, Partition, PartitionKey, Warehouse, read_parts
from ringcast.trace.segments import segment_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import date
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession

    from ringcast.spark.report import Report

FILE_BYTES = 128 << 20
"""Files become about so large; smaller ones of one partition become one."""
WINDOW_S = 60.0
"""What gold's throughput and latency are gathered over. A day has a whole number of these."""


class Built(NamedTuple):
    """What a build did."""

    partitions: list[PartitionKey]
    """Built, anew or for the first time."""
    unchanged: int
    quarantined: list[Quarantined]


def build(
    spark: SparkSession,
    traces: Path,
    warehouse: Warehouse,
    *,
    only: date | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Built:
    """Build what has changed; with `only` that day, changed or not, even if it was removed."""
    traces = traces.resolve()
    if warehouse.root.is_relative_to(traces) or traces.is_relative_to(warehouse.root):
        raise UsageError(f"{warehouse.root}: tables and traces cannot be one inside the other")
    if not segment_paths(traces):
        raise UsageError(f"{traces}: no segments (*.parquet) in it")
    with warehouse.writing(), KeptDigests.opened(warehouse.state, traces, survey_files) as kept:
        tell("reading the segments …")
        survey = take_survey(spark, traces, kept)
        wanted = survey.partitions()
        due = due_partitions(warehouse, wanted, only)
        # What was whole when it was read may have been damaged since, and Spark reads it now.
        damaged = damaged_files(spark, {path for key in due for path in wanted[key]})
        if damaged:
            survey = take_survey(spark, traces, kept, again=damaged)
            wanted = survey.partitions()
            due = due_partitions(warehouse, wanted, only)
        if due:
            _Build(spark, traces, warehouse, survey, due, tell).run()
        made = [Partition(key, wanted[key]) for key in due]
        _commit(warehouse, made)
        _write_quarantine(warehouse, survey)
    return Built(due, len(wanted) - len(due), survey.quarantine)


def due_partitions(
    warehouse: Warehouse, wanted: dict[PartitionKey, dict[str, list[int]]], only: date | None = None
) -> list[PartitionKey]:
    """What is to be built; `wanted` are all partitions that there are segments of, with these."""
    if only is not None:
        found = sorted(key for key in wanted if key.date == only)
        if not found:
            raise UsageError(f"no segment has rows of {only}")
        return found
    built = {partition.key: partition for partition in warehouse.partitions()}
    open_keys = sorted(key for key in wanted if key.date >= warehouse.pruned_before)
    # Segments that have been removed since are no reason: what was made of them stays.
    changed = {
        key
        for key in open_keys
        if key not in built or not wanted[key].items() <= built[key].sources.items()
    }
    # Verdicts are of a whole run: whatever changes in it, the day they stand on is built too.
    first = {key.of_run: key for key in reversed(open_keys)}
    runs = {key.of_run for key in changed}
    judged = {key for key, partition in built.items() if "gold.verdicts" in partition.tables}
    return [
        key
        for key in open_keys
        if key in changed or (key.of_run in runs and (key == first[key.of_run] or key in judged))
    ]


@dataclass(frozen=True, slots=True)
class _Build:
    """Stages all tables of the partitions that are due."""

    spark: SparkSession
    traces: Path
    warehouse: Warehouse
    survey: Survey
    due: list[PartitionKey]
    tell: Callable[[str], None]

    def run(self) -> None:
        groups = defaultdict(list)
        for key in self.due:
            groups[key.group].append(key)
        for group, keys in groups.items():
            days = sorted({str(key.date) for key in keys})
            self.tell(f"{group}: {len(keys)} partitions, {days[0]} to {days[-1]} …")
            self._stage_rows(group, keys)
            self._stage_verdicts(group, keys)

    def _stage_rows(self, group: str, keys: list[PartitionKey]) -> None:
        everything = self._rows(group, keys, is_silver=False)
        # One pass for all of bronze: to Spark the table is one more column to part it by.
        staged = self.warehouse.staging / "bronze"
        bronze = typed(everything, whole_schema("bronze.views"))
        bronze = bronze.withColumn("table", layout.row_table())
        columns = ("table", "group", "date", "run")
        bronze.write.mode("append").partitionBy(*columns).parquet(str(staged))
        for name in layout.ROW_TABLES:
            found = staged / f"table={name}"
            if found.exists():
                target = self.warehouse.staging / f"bronze.{name}"
                make_private(target)
                for inside in found.iterdir():
                    inside.rename(target / inside.name)
        rows = self._rows(group, keys, is_silver=True)
        for name in layout.ROW_TABLES:
            self._stage(f"silver.{name}", layout.silver_rows(rows, name))
        self._stage_figures(group, rows)

    def _stage_figures(self, group: str, rows: DataFrame) -> None:
        """Figures of each day by itself: what the next day brings does not change them."""
        activity = rows.groupBy(
            *("group", "date", "run"), member_key().alias("member"), "event"
        ).agg(
            F.count("*").alias("rows"),
            F.sum(layout.messages()).alias("messages"),
            F.min(at("wall_ns")).alias("first_at"),
            F.max(at("wall_ns")).alias("last_at"),
        )
        self._stage("gold.activity", activity)
        by_day = rows.withColumn("run_id", F.concat_ws("/", "date", "run"))
        figures = {
            "gold.throughput": throughput(by_day, WINDOW_S),
            "gold.latency": latency(latency_samples(by_day), WINDOW_S),
            "gold.repairs": retransmissions(by_day),
        }
        for table, found in figures.items():
            partition = {
                "group": F.lit(group),
                "date": F.to_date(F.substring_index("run_id", "/", 1)),
                "run": F.expr("substring(run_id, 12)"),
            }
            if "at_ns" in found.columns:
                partition["at"] = at("at_ns")
            self._stage(table, found.withColumns(partition))

    def _stage_verdicts(self, group: str, keys: list[PartitionKey]) -> None:
        rows = []
        for key in keys:
            run = self.survey.runs[key.of_run]
            if key.date != run.first_day(self.warehouse.pruned_before):
                continue
            self.tell(f"{group}: judging {key.run} …")
            report = audit_states(self.spark, self.traces, run.states, self.survey.refused)
            rows += _verdict_rows(report, key)
        frame = self.spark.createDataFrame(rows, whole_schema("gold.verdicts"))
        self._stage("gold.verdicts", frame.coalesce(1))

    def _rows(self, group: str, keys: list[PartitionKey], *, is_silver: bool) -> DataFrame:
        """The rows of these runs' days, from the segments that have any."""
        paths = sorted(
            {
                path
                for key in keys
                for path in self.survey.runs[key.of_run].of_day(key.date)
                if not is_silver or path in self.survey.runs[key.of_run].kept
            }
        )
        due = self.spark.createDataFrame(
            [(key.date, key.run) for key in keys], "date date, run string"
        )
        rows = read_rows(self.spark, *paths).withColumns(
            {
                "file": _file_name(),
                "group": F.lit(group),
                "date": layout.day("wall_ns"),
                "run": F.col("run_id"),
            }
        )
        return rows.join(F.broadcast(due), ["date", "run"], "left_semi")

    def _stage(self, table: str, frame: DataFrame) -> None:
        """In the order that rows were recorded in, if they were."""
        found = typed(frame, whole_schema(table))
        order = [name for name in ("member", "idx", "at") if name in TABLES[table].names]
        if order:
            found = found.sortWithinPartitions("group", "date", "run", *order)
        path = str(self.warehouse.staging / table)
        found.write.mode("append").partitionBy("group", "date", "run").parquet(path)


def _file_name() -> Column:
    """Of the segment that a row is read from. Spark gives it as a URI, where a plus is a plus."""
    path = F.url_decode(F.replace(F.input_file_name(), F.lit("+"), F.lit("%2B")))
    return F.element_at(F.split(path, "/"), -1)


def _verdict_rows(report: Report, key: PartitionKey) -> list[tuple[object, ...]]:
    return [
        (
            *(verdict.id, verdict.title, verdict.status),
            *(verdict.premises, verdict.violation_count, verdict.detail),
            verdict.violations[0].text if verdict.violations else None,
            *(report.members, report.segments, report.rows),
            *key,
        )
        for verdict in report.verdicts
    ]


def _commit(warehouse: Warehouse, made: list[Partition]) -> None:
    number = warehouse.next_number()
    by_key = {partition.key: partition for partition in made}
    for table in TABLES:
        for key, parts in warehouse.adopt(table, number).items():
            by_key[key].tables[table] = parts
    warehouse.commit(made)


def _write_quarantine(warehouse: Warehouse, survey: Survey) -> None:
    """All that is in quarantine now, in the place of what was."""
    directory = warehouse.root / "quarantine"
    make_private(directory)
    rows = [found._asdict() for found in survey.quarantine]
    schema = pa.schema([("file", pa.string()), ("size", pa.int64()), ("reason", pa.string())])
    staged = directory / "_quarantine.staged"
    with open_private(staged) as file:
        pq.write_table(pa.Table.from_pylist(rows, schema), file)
    staged.replace(directory / "quarantine.parquet")


# Upkeep: few large files instead of many small ones, and no days that nobody needs


def compact(
    spark: SparkSession, warehouse: Warehouse, *, tell: Callable[[str], None] = lambda _: None
) -> int:
    """Rewrite partitions that have more files than they need; how many files are gone."""
    with warehouse.writing():
        due: defaultdict[str, list[Partition]] = defaultdict(list)
        partitions = warehouse.partitions()
        before = _count(partitions)
        for partition in partitions:
            for table, parts in partition.tables.items():
                if len(parts) > _files_needed(parts):
                    due[table].append(partition)
        number = warehouse.next_number()
        for table, found in due.items():
            tell(f"{table}: {len(found)} partitions …")
            for partition in found:
                parts = partition.tables[table]
                rows = read_parts(spark, warehouse, table, parts).coalesce(_files_needed(parts))
                staged = str(warehouse.staging / table)
                rows.write.mode("append").partitionBy("group", "date", "run").parquet(staged)
            for key, parts in warehouse.adopt(table, number).items():
                next(one for one in found if one.key == key).tables[table] = parts
        warehouse.commit({id(one): one for found in due.values() for one in found}.values())
        return before - _count(partitions)


def prune(warehouse: Warehouse, before: date, layers: Sequence[str] = LAYERS) -> list[date]:
    """Remove these layers of all days before this one; the days that had any."""
    with warehouse.writing():
        return warehouse.forget_before(before, layers)


def _files_needed(parts: Sequence[Part]) -> int:
    return 1 + sum(part.bytes for part in parts) // FILE_BYTES


def _count(partitions: Sequence[Partition]) -> int:
    return sum(len(parts) for partition in partitions for parts in partition.tables.values())
