"""Tables of traces: each row in its place and once, each day whole or as it was."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from pyspark.testing import assertDataFrameEqual

from ringcast.cli import main
from ringcast.errors import UsageError
from ringcast.spark.audit import audit
from ringcast.spark.tables import (
    LAYERS,
    QUARANTINE,
    TABLES,
    Warehouse,
    build,
    compact,
    prune,
    read_table,
    register_tables,
    warehouse,
)
from ringcast.spark.tables.layout import DAY_NS, PARTITION
from ringcast.trace.segments import segment_paths

if TYPE_CHECKING:
    from cluster_traces import Traces
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "tables.md"
EVE, DAY = date(2026, 11, 14), date(2026, 11, 15)
MIDNIGHT_NS = (DAY - date(1970, 1, 1)).days * DAY_NS
RUN = "test run"


@pytest.fixture(scope="module")
def built(
    spark: SparkSession, recorded: Traces, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Traces, Path]:
    """A run over midnight, with a segment twice and one torn; and `tables` beside its `traces`."""
    base = tmp_path_factory.mktemp("built")
    traces = recorded.copy()
    times = sorted(row.mono_ns for row in traces.all_rows())
    shift = MIDNIGHT_NS - times[len(times) // 2]
    for name, rows in traces.rows.items():
        traces.rows[name] = [row._replace(mono_ns=row.mono_ns + shift) for row in rows]
    written = traces.write(base / "traces")
    shutil.copy(written["a"][0], base / "traces" / "copy.parquet")
    (base / "traces" / "torn.parquet").write_bytes(b"PAR1 and no more")
    build(spark, base / "traces", Warehouse(base / "tables"))
    return traces, base


@pytest.fixture
def base(built: tuple[Traces, Path], tmp_path: Path) -> Path:
    """A copy to be changed."""
    return shutil.copytree(built[1] / "tables", tmp_path / "tables").parent


def rebuild(spark: SparkSession, traces: Path, into: Path) -> list[date]:
    return [key.date for key in build(spark, traces, Warehouse(into)).partitions]


def assert_same_tables(spark: SparkSession, one: Path, other: Path) -> None:
    for table in TABLES:
        assertDataFrameEqual(read_table(spark, one, table), read_table(spark, other, table))


def test_every_row_is_in_one_table_once_on_its_day(
    spark: SparkSession, built: tuple[Traces, Path]
) -> None:
    traces, base = built
    rows = traces.all_rows()
    found: Counter[tuple[object, ...]] = Counter()
    bronze = 0
    for table in TABLES:
        if table.startswith("silver"):
            frame = read_table(spark, base / "tables", table)
            columns = ("member", "idx", "event", "wall_ns", "date", "run", "group")
            found.update(tuple(row) for row in frame.select(*columns).collect())
        elif table.startswith("bronze"):
            bronze += read_table(spark, base / "tables", table).count()
    day = {True: DAY, False: EVE}
    assert found == Counter(
        (row.member, row.idx, row.event, row.mono_ns, day[row.mono_ns >= MIDNIGHT_NS], RUN, RUN)
        for row in rows
    )
    assert bronze == len(rows) + 50  # what is there twice is there twice
    deliveries = read_table(spark, base / "tables", "silver.deliveries")
    assert deliveries.where("event = 'deliver'").groupBy().sum("messages").collect()[0][0] == sum(
        row.seqno2 - row.seqno + 1
        for row in rows
        if row.event == "deliver" and row.kind != "fragment"
    )
    (torn,) = read_table(spark, base / "tables", "quarantine").collect()
    assert torn.file == str(base / "traces" / "torn.parquet")
    assert torn.reason.startswith("torn.parquet: not a whole segment")


def test_verdicts_are_the_audits_on_the_first_day(
    spark: SparkSession, built: tuple[Traces, Path]
) -> None:
    base = built[1]
    report = audit(spark, base / "traces")
    found = read_table(spark, base / "tables", "gold.verdicts").collect()
    assert {(row.guarantee, row.verdict, row.checks, row.detail) for row in found} == {
        (verdict.id, verdict.status, verdict.premises, verdict.detail)
        for verdict in report.verdicts
    }
    assert {(row.date, row.run, row.rows) for row in found} == {(EVE, RUN, report.rows)}
    taken = read_table(spark, base / "tables", "gold.throughput")
    assert taken.groupBy().sum("messages").collect()[0][0] > 1000
    assert {row.date for row in taken.collect()} == {EVE, DAY}


def test_late_segments_are_folded_in_as_if_they_had_been_there(
    spark: SparkSession, built: tuple[Traces, Path], tmp_path: Path
) -> None:
    source, traces = built[1] / "traces", tmp_path / "traces"
    shutil.copytree(source, traces)
    last = max(traces.glob("e-*"), key=lambda path: path.name)
    late = last.rename(tmp_path / last.name)
    assert rebuild(spark, traces, tmp_path / "tables") == [EVE, DAY]
    assert rebuild(spark, traces, tmp_path / "tables") == []
    late.rename(last)
    assert rebuild(spark, traces, tmp_path / "tables") == [EVE, DAY]  # it is of the last day
    assert_same_tables(spark, tmp_path / "tables", built[1] / "tables")
    # What is built stays, though its segments go.
    for path in segment_paths(traces)[1:]:
        path.unlink()
    assert rebuild(spark, traces, tmp_path / "tables") == []


@pytest.mark.parametrize("renames", [0, 4])
def test_a_build_that_dies_leaves_each_day_as_it_was(
    spark: SparkSession,
    built: tuple[Traces, Path],
    base: Path,
    monkeypatch: pytest.MonkeyPatch,
    renames: int,
) -> None:
    """Before any file is in its place; with some there; and between two days."""

    class Died(BaseException):
        pass

    left = renames

    def sync_or_die(path: Path) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Died

    tables = Warehouse(base / "tables")
    with monkeypatch.context() as patched, pytest.raises(Died):
        patched.setattr(warehouse, "sync", sync_or_die)
        build(spark, built[1] / "traces", tables, only=DAY)
    assert_same_tables(spark, base / "tables", built[1] / "tables")
    files = {path for path in tables.root.rglob("*.parquet") if "_staging" not in path.parts}
    with tables.writing():
        pass
    assert (len(files) > len(set(tables.root.rglob("*.parquet")))) == (renames > 0)
    assert_same_tables(spark, base / "tables", built[1] / "tables")


def test_a_day_built_again_replaces_that_day(
    spark: SparkSession, built: tuple[Traces, Path], base: Path
) -> None:
    before = {part.path for table in TABLES for part in Warehouse(base / "tables").parts(table)}
    again = build(spark, built[1] / "traces", Warehouse(base / "tables"), only=DAY)
    assert [key.date for key in again.partitions] == [DAY]
    after = {part.path for table in TABLES for part in Warehouse(base / "tables").parts(table)}
    assert {path for path in before if "2026-11-14" in path} == before & after
    on_disk = {
        path.relative_to(base / "tables").as_posix()
        for layer in LAYERS
        for path in (base / "tables" / layer).rglob("*.parquet")
    }
    assert on_disk == after
    with pytest.raises(UsageError, match="no segment has rows of 2020-01-01"):
        build(spark, built[1] / "traces", Warehouse(base / "tables"), only=date(2020, 1, 1))


def test_compaction_changes_files_and_no_rows(
    spark: SparkSession, built: tuple[Traces, Path], base: Path
) -> None:
    tables = Warehouse(base / "tables")
    before = sum(len(tables.parts(table)) for table in TABLES)
    gone = compact(spark, tables)
    parts = [parts for found in tables.partitions() for parts in found.tables.values()]
    assert {len(one) for one in parts} == {1}
    assert gone == before - len(parts) > 0
    assert_same_tables(spark, base / "tables", built[1] / "tables")
    assert compact(spark, tables) == 0


def test_pruned_days_are_gone_and_not_built_again(
    spark: SparkSession, built: tuple[Traces, Path], base: Path
) -> None:
    tables = Warehouse(base / "tables")
    assert prune(tables, EVE) == []
    assert prune(tables, DAY, ["bronze"]) == [EVE]
    assert {part.path.split("/date=")[1][:10] for part in tables.parts("bronze.deliveries")} == {
        str(DAY)
    }
    assert len({found.key.date for found in tables.partitions()}) == 2
    assert prune(tables, DAY) == [EVE]
    assert tables.days() == [DAY]
    assert not list(tables.root.rglob("*date=2026-11-14*"))
    assert rebuild(spark, built[1] / "traces", base / "tables") == []


# The page and the command


def test_the_pages_queries_run_and_its_columns_are_the_tables(
    spark: SparkSession, built: tuple[Traces, Path]
) -> None:
    text = PAGE.read_text()
    names = register_tables(spark, built[1] / "tables")
    queries = re.findall(r"```sql\n(.*?)```", text, re.S)
    assert len(queries) >= 5
    for query in queries:
        assert spark.sql(query).collect(), query
    documented = {
        name: re.findall(r"`(\w+)`", columns)
        for name, columns in re.findall(r"^\| `([a-z_]+)` \| (.*?) \|", text, re.M)
    }
    assert set(documented) == set(names)
    common = PARTITION.names
    for table in TABLES:
        assert documented[table.replace(".", "_")] == [*TABLES[table].names, *common], table
    assert documented["quarantine"] == QUARANTINE.names


def test_the_command_shows_and_refuses(
    built: tuple[Traces, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def say(*arguments: object) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["tables", *map(str, arguments)])
        return result.exit_code, result.output

    status, text = say("show", built[1] / "tables", "--json")
    assert status == 0
    shown = {row["table"]: row for row in json.loads(text)}
    assert shown["silver.deliveries"]["rows"] > 800
    assert (shown["gold.verdicts"]["first"], shown["gold.verdicts"]["days"]) == (str(EVE), 1)
    assert "silver.deliveries" in say("show", built[1] / "tables")[1]
    for command in (["show"], ["compact"], ["prune", "--older-than", "1d"]):
        status, text = say(command[0], tmp_path, *command[1:])
        assert status == 2
        assert "no tables here: build them with ringcast tables build" in text
    assert "is no length of time" in say("prune", tmp_path, "--older-than", "long")[1]


def test_only_a_directory_of_its_own_is_written_in(
    spark: SparkSession, built: tuple[Traces, Path], tmp_path: Path
) -> None:
    traces = built[1] / "traces"
    (tmp_path / "gold").mkdir()
    with pytest.raises(UsageError, match="has other things in it"):
        build(spark, traces, Warehouse(tmp_path))
    for inside in (traces / "tables", traces.parent):
        with pytest.raises(UsageError, match="one inside the other"):
            build(spark, traces, Warehouse(inside))
    with pytest.raises(UsageError, match="no segments"):
        build(spark, tmp_path / "gold", Warehouse(tmp_path / "new"))
    (tmp_path / "_ringcast.json").write_text('{"version": 2}')
    with pytest.raises(UsageError, match="tables of version 2; this ringcast knows 1"):
        Warehouse(tmp_path)
