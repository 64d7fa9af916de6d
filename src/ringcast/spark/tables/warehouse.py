"""A directory of Parquet tables in which a day is replaced whole, or not at all.

    silver/deliveries/group=orders/date=2026-11-15/run=tuesday/000003-000.parquet
    _manifests/2026-11-15.json      which files are in the tables of that day

New files are written under other names than the old ones; they count from when the day's manifest
names them, which is put in place by one rename. What no manifest names is left by somebody who was
killed, or was replaced: the next to write removes it.
"""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import pyarrow.parquet as pq

from ringcast.errors import UsageError
from ringcast.private import make_private
from ringcast.spark.columns import literally
from ringcast.spark.tables.layout import LAYERS, QUARANTINE, TABLES, VERSION, whole_schema
from ringcast.trace.whole import held_alone, sync, write_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_PARQUET = ".parquet"


class Part(NamedTuple):
    """One file of a table; the path is below the warehouse."""

    path: str
    rows: int
    bytes: int


class RunKey(NamedTuple):
    group: str
    run: str


class PartitionKey(NamedTuple):
    group: str
    date: date
    run: str

    @property
    def of_run(self) -> RunKey:
        return RunKey(self.group, self.run)


@dataclass(slots=True)
class Partition:
    """One run's day in all tables."""

    key: PartitionKey
    sources: dict[str, list[int]]
    """The segments it was made from, and by what they are known to be the same."""
    tables: dict[str, list[Part]] = field(default_factory=dict)


class Warehouse:
    """Tables, as the manifests name their files."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.staging = self.root / "_staging"
        self.state = self.root / "_state"
        """What is known of the segments that tables are built from."""
        self._manifests = self.root / "_manifests"
        self._about = self.root / "_ringcast.json"
        values = _read_json(self._about)
        self.pruned_before = date.fromisoformat(values.get("pruned_before", "0001-01-01"))
        """Days before this one were removed, and are not built again by themselves."""

    @classmethod
    def existing(cls, root: Path) -> Warehouse:
        """UsageError if there is none."""
        if not (root / "_ringcast.json").is_file():
            raise UsageError(
                f"{root}: no tables here: build them with ringcast tables build TRACES {root}"
            )
        return cls(root)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Nobody else may write meanwhile. What others left half done is removed."""
        if not self._about.is_file() and self.root.is_dir() and any(self.root.iterdir()):
            raise UsageError(f"{self.root}: has other things in it: choose a directory of its own")
        with held_alone(self.root):
            make_private(self._manifests)
            if not self._about.is_file():
                self._write_about()
            self.sweep()
            yield
            self.sweep()

    # Reading

    def days(self) -> list[date]:
        return sorted(date.fromisoformat(path.stem) for path in self._manifests.glob("*.json"))

    def partitions(self, day: date | None = None) -> list[Partition]:
        """Of this day, or all."""
        days = self.days() if day is None else [day]
        return [found for each in days for found in self._read_day(each).values()]

    def parts(self, table: str) -> list[Part]:
        return [part for found in self.partitions() for part in found.tables.get(table, [])]

    # Writing

    def adopt(self, table: str, number: int) -> dict[PartitionKey, list[Part]]:
        """Move what was staged of this table to where it will stay. No manifest names it yet."""
        staged = self.staging / table
        found: dict[PartitionKey, list[Part]] = {}
        for path in sorted(staged.rglob(f"*{_PARQUET}")):
            inside = path.parent.relative_to(staged)
            parts = found.setdefault(_key_of(inside), [])
            place = self.root / table.replace(".", "/") / inside
            make_private(place)
            target = place / f"{number:06d}-{len(parts):03d}{_PARQUET}"
            path.rename(target)
            sync(target)
            sync(place)
            rows = pq.read_metadata(target).num_rows
            relative = target.relative_to(self.root).as_posix()
            parts.append(Part(relative, rows, target.stat().st_size))
        return found

    def commit(self, partitions: Iterable[Partition]) -> None:
        """Put these in the place of what was there of the same runs and days: day by day."""
        by_day: dict[date, list[Partition]] = {}
        for partition in partitions:
            by_day.setdefault(partition.key.date, []).append(partition)
        for day, found in sorted(by_day.items()):
            known = self._read_day(day) | {partition.key: partition for partition in found}
            write_whole(self._manifest(day), _to_text(day, known.values()))

    def next_number(self) -> int:
        """For the names of new files: no file has it."""
        parts = (part for found in self.partitions() for part in _all_parts(found))
        return max((int(Path(part.path).name[:6]) for part in parts), default=0) + 1

    def forget_before(self, day: date, layers: Iterable[str]) -> list[date]:
        """Drop these layers of all days before this one; the days that had any."""
        chosen = tuple(f"{layer}." for layer in layers)
        is_all = set(layers) == set(LAYERS)
        if is_all and day > self.pruned_before:
            self.pruned_before = day
            self._write_about()
        touched = []
        for each in self.days():
            if each >= day:
                continue
            found = self.partitions(each)
            if is_all:
                self._manifest(each).unlink()
                touched.append(each)
            elif any(name.startswith(chosen) for one in found for name in one.tables):
                for one in found:
                    one.tables = {
                        name: parts
                        for name, parts in one.tables.items()
                        if not name.startswith(chosen)
                    }
                self.commit(found)
                touched.append(each)
        return touched

    def sweep(self) -> None:
        """Remove every file that no manifest names."""
        if self.staging.exists():
            shutil.rmtree(self.staging)
        named = {part.path for found in self.partitions() for part in _all_parts(found)}
        for layer in LAYERS:
            for path in sorted((self.root / layer).rglob("*"), reverse=True):
                if path.is_dir():
                    with suppress(OSError):  # It is not empty.
                        path.rmdir()
                elif path.relative_to(self.root).as_posix() not in named:
                    path.unlink()

    def _write_about(self) -> None:
        values = {"version": VERSION, "pruned_before": self.pruned_before.isoformat()}
        write_whole(self._about, json.dumps(values))

    def _manifest(self, day: date) -> Path:
        return self._manifests / f"{day.isoformat()}.json"

    def _read_day(self, day: date) -> dict[PartitionKey, Partition]:
        return {
            (key := PartitionKey(one["group"], day, one["run"])): Partition(
                key,
                one["sources"],
                {name: [Part(*part) for part in parts] for name, parts in one["tables"].items()},
            )
            for one in _read_json(self._manifest(day)).get("partitions", [])
        }


def _all_parts(partition: Partition) -> Iterator[Part]:
    for parts in partition.tables.values():
        yield from parts


def _to_text(day: date, partitions: Iterable[Partition]) -> str:
    found = [
        {
            "group": partition.key.group,
            "run": partition.key.run,
            "sources": partition.sources,
            "tables": partition.tables,
        }
        for partition in sorted(partitions, key=lambda partition: partition.key)
    ]
    return json.dumps({"version": VERSION, "date": day.isoformat(), "partitions": found})


def _read_json(path: Path) -> dict[str, Any]:
    """Nothing, where there is no file; UsageError for a version that we do not know."""
    try:
        values: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UsageError(f"{path}: damaged: {error}") from error
    if values["version"] > VERSION:
        raise UsageError(
            f"{path}: tables of version {values['version']}; this ringcast knows {VERSION}: "
            "use a newer one"
        )
    return values


def _key_of(inside: Path) -> PartitionKey:
    """From the directories that Spark made: group=…/date=…/run=…, with marks escaped as %XX."""
    values = dict(part.split("=", 1) for part in inside.parts)
    return PartitionKey(
        unquote(values["group"]), date.fromisoformat(values["date"]), unquote(values["run"])
    )


# Tables as DataFrames: just the files that the manifests name


def read_table(spark: SparkSession, warehouse: Path, table: str) -> DataFrame:
    """One table, such as "silver.deliveries"; or "quarantine"."""
    found = Warehouse.existing(warehouse)
    if table == "quarantine":
        return _read(spark, QUARANTINE, found.root, ["quarantine/quarantine.parquet"])
    if table not in TABLES:
        raise UsageError(f"no table {table!r}; there are {', '.join([*TABLES, 'quarantine'])}")
    return read_parts(spark, found, table, found.parts(table))


def read_parts(
    spark: SparkSession, warehouse: Warehouse, table: str, parts: Sequence[Part]
) -> DataFrame:
    """These files of a table."""
    base = warehouse.root / table.replace(".", "/")
    paths = [str(warehouse.root / part.path) for part in parts]
    return _read(spark, whole_schema(table), base, paths)


def register_tables(spark: SparkSession, warehouse: Path) -> list[str]:
    """A temporary view for each table, called silver_deliveries and so on; their names."""
    names = []
    for table in (*TABLES, "quarantine"):
        names.append(table.replace(".", "_"))
        read_table(spark, warehouse, table).createOrReplaceTempView(names[-1])
    return names


def _read(spark: SparkSession, schema: StructType, base: Path, paths: Sequence[str]) -> DataFrame:
    if not paths:
        return spark.createDataFrame([], schema)
    reader = spark.read.schema(schema).option("basePath", str(base))
    return reader.parquet(*(literally(str(base / path)) for path in paths))
