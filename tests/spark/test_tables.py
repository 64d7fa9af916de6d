"""Tables of traces: each row in its place and once, each day whole or as it was."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from cluster_traces import PIECE_ROWS, make_newer

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
)
from ringcast.spark.tables.layout import DAY_NS, PARTITION
from ringcast.trace.footer import Recording
from ringcast.trace.rows import Row
from ringcast.trace.segments import segment_paths, write_segment
from support.modes import PRIVATE, modes_below

if TYPE_CHECKING:
    from cluster_traces import Traces
    from pyspark.sql import SparkSession

KILLED = Path(__file__).with_name("killed_build.py")
PAGE = Path(__file__).parents[2] / "docs" / "howto" / "tables.md"
EVE, DAY = date(2026, 11, 14), date(2026, 11, 15)
MIDNIGHT_NS = (DAY - date(1970, 1, 1)).days * DAY_NS
RUN = "test run"
COPY = "a copy+1 é 5%.parquet"
OTHER, OTHER_ROWS = "50 % [a/b]", 30
VIEW = {"view": 3, "view_creator": "f#1"}
OF_F = {"peer": "f", "peer_inc": 1, "stream": 2}


@pytest.fixture(scope="module")
def built(
    spark: SparkSession, recorded: Traces, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Traces, Path]:
    """A run over midnight, with a segment twice and one torn, and one that came late, as did
    another run; and `tables` beside its `traces`."""
    base = tmp_path_factory.mktemp("built")
    traces = recorded.copy()
    times = sorted(row.mono_ns for row in traces.all_rows())
    shift = MIDNIGHT_NS - times[len(times) // 2]
    for name, rows in traces.rows.items():
        traces.rows[name] = [row._replace(mono_ns=row.mono_ns + shift) for row in rows]
    for name, recording in traces.recordings.items():
        traces.recordings[name] = replace(recording, group="orders")
    written = traces.write(base / "traces")
    shutil.copy(written["a"][0], base / "traces" / COPY)
    (base / "traces" / "torn.parquet").write_bytes(b"PAR1 and no more")
    make_newer(Path(shutil.copy(written["a"][0], base / "traces" / "newer.parquet")))
    late = written["b"][-1].rename(base / "late.parquet")
    assert rebuild(spark, base / "traces", base / "tables") == [EVE, DAY]
    late.rename(written["b"][-1])
    other = Recording(run_id=OTHER, node="f", inc=1)  # It does not say of which group it is.
    write_segment(base / "traces", other, other_rows(traces))
    assert rebuild(spark, base / "traces", base / "tables") == [EVE, EVE, DAY]
    return traces, base


def other_rows(traces: Traces) -> list[Row]:
    """Of another run; in the end there are three total messages."""
    rows = [row._replace(node="f", inc=1) for row in traces.rows["a"][:OTHER_ROWS]]
    last = rows[-1].idx
    for event, columns in {
        "accept": {"seqno": 5, "seqno2": 7, "stream": 2},
        "shown": {"low": 40, "members": (), "part": ()},
        "order": {**OF_F, "seqno": 5, "seqno2": 7, "low": 41, "detail": "carried"},
    }.items():
        last += 1
        rows.append(Row(event, "f", 1, last, mono_ns=rows[-1].mono_ns, **VIEW, **columns))
    return rows


@pytest.fixture
def base(built: tuple[Traces, Path], tmp_path: Path) -> Path:
    """A copy to be changed."""
    return shutil.copytree(built[1] / "tables", tmp_path / "tables").parent


def rebuild(spark: SparkSession, traces: Path, into: Path) -> list[date]:
    return [key.date for key in build(spark, traces, Warehouse(into)).partitions]


def content(warehouse: Path) -> dict[str, list[str]]:
    """The rows of each table, whatever files they are in."""
    found = Warehouse(warehouse)
    return {
        table: sorted(
            f"{Path(part.path).parent} {row}"
            for part in found.parts(table)
            for row in pq.read_table(found.root / part.path, partitioning=None).to_pylist()
        )
        for table in TABLES
    }


def test_tables_are_their_owners_alone(built: tuple[Traces, Path]) -> None:
    assert modes_below(built[1] / "tables") == PRIVATE


def test_every_row_is_in_one_table_once_on_its_day(
    spark: SparkSession, built: tuple[Traces, Path]
) -> None:
    traces, base = built
    rows = traces.all_rows()
    others = other_rows(traces)
    found: Counter[tuple[object, ...]] = Counter()
    bronze: Counter[str] = Counter()
    for table in TABLES:
        if table.startswith("silver"):
            frame = read_table(spark, base / "tables", table)
            columns = ("member", "idx", "event", "wall_ns", "date", "run", "group")
            found.update(tuple(row) for row in frame.select(*columns).collect())
        elif table.startswith("bronze"):
            files = read_table(spark, base / "tables", table).select("file").collect()
            bronze.update(row.file for row in files)
    day = {True: DAY, False: EVE}
    assert found == Counter(
        (row.member, row.idx, row.event, row.mono_ns, day[row.mono_ns >= MIDNIGHT_NS], run, group)
        for own, run, group in ((rows, RUN, "orders"), (others, OTHER, OTHER))
        for row in own
    )
    refused = {"newer.parquet", "torn.parquet"}
    assert set(bronze) == {path.name for path in segment_paths(base / "traces")} - refused
    assert bronze[COPY] == PIECE_ROWS  # what is there twice is there twice
    assert sum(bronze.values()) == len(rows) + PIECE_ROWS + len(others)
    deliveries = read_table(spark, base / "tables", "silver.deliveries")
    assert deliveries.where("event = 'deliver' AND group = 'orders'").groupBy().sum(
        "messages"
    ).collect()[0][0] == sum(
        row.seqno2 - row.seqno + 1
        for row in rows
        if row.event == "deliver" and row.kind != "fragment"
    )
    newer, torn = sorted(read_table(spark, base / "tables", "quarantine").collect())
    assert {newer.file, torn.file} == {str(base / "traces" / name) for name in refused}
    assert newer.reason.startswith("newer.parquet: a segment of version ")
    assert torn.reason.startswith("torn.parquet: not a whole segment")


def test_total_messages_have_a_table_of_their_own(
    spark: SparkSession, built: tuple[Traces, Path]
) -> None:
    """With the place in the one order, which is a view and a position."""
    tables = built[1] / "tables"
    order = read_table(spark, tables, "silver.order").where(f"run = '{OTHER}'").orderBy("idx")
    place = ("event", "peer", "seqno", "seqno2", "view", "creator", "position", "messages")
    assert [tuple(row) for row in order.select(*place, "detail").collect()] == [
        ("accept", None, 5, 7, 3, "f#1", None, 3, ""),
        ("order", "f#1", 5, 7, 3, "f#1", 41, 3, "carried"),
    ]
    shown = read_table(spark, tables, "silver.views").where("position is not null")
    assert [(row.event, row.creator, row.position) for row in shown.collect()] == [
        ("shown", "f#1", 40)
    ]
    rates = read_table(spark, tables, "gold.throughput").where("stream = 2").collect()
    assert [(row.sender, row.receiver, row.messages) for row in rates] == [("f#1", "f#1", 3)]


def test_verdicts_are_the_audits_on_the_first_day(
    spark: SparkSession, built: tuple[Traces, Path]
) -> None:
    base = built[1]
    report = audit(spark, base / "traces", RUN)
    verdicts = read_table(spark, base / "tables", "gold.verdicts")
    assert {(row.run, row.date) for row in verdicts.collect()} == {(RUN, EVE), (OTHER, EVE)}
    found = verdicts.where("group = 'orders'").collect()
    assert {(row.guarantee, row.verdict, row.checks, row.detail) for row in found} == {
        (verdict.id, verdict.status, verdict.premises, verdict.detail)
        for verdict in report.verdicts
    }
    assert {row.rows for row in found} == {report.rows}
    taken = read_table(spark, base / "tables", "gold.throughput")
    assert taken.groupBy().sum("messages").collect()[0][0] > 1000
    assert {row.date for row in taken.collect()} == {EVE, DAY}


@pytest.mark.proof
def test_what_is_built_stays_though_its_segments_go(
    spark: SparkSession, built: tuple[Traces, Path], tmp_path: Path
) -> None:
    base = shutil.copytree(built[1], tmp_path / "base")
    (base / "tables" / "_state" / "about.json").unlink()  # the traces are elsewhere now
    for path in segment_paths(base / "traces")[3:]:
        path.unlink()
    tables = Warehouse(base / "tables")
    for partition in tables.partitions():
        partition.sources = {**stamps(base / "traces"), "one that is gone": [1, 1]}
        tables.commit([partition])
    assert rebuild(spark, base / "traces", base / "tables") == []
    assert content(base / "tables") == content(built[1] / "tables")


def stamps(directory: Path) -> dict[str, list[int]]:
    found = {str(path): path.stat() for path in segment_paths(directory)}
    return {path: [about.st_size, about.st_mtime_ns] for path, about in found.items()}


@pytest.mark.proof
def test_a_day_built_again_replaces_that_day_and_no_other(
    spark: SparkSession, built: tuple[Traces, Path], base: Path
) -> None:
    tables = Warehouse(base / "tables")
    before = {part.path for table in TABLES for part in tables.parts(table)}
    again = build(spark, built[1] / "traces", tables, only=DAY)
    assert [key.date for key in again.partitions] == [DAY]
    after = {part.path for table in TABLES for part in tables.parts(table)}
    assert {path for path in before if str(EVE) in path} == before & after
    on_disk = {
        path.relative_to(tables.root).as_posix()
        for layer in LAYERS
        for path in (tables.root / layer).rglob("*.parquet")
    }
    assert on_disk == after
    assert content(tables.root) == content(built[1] / "tables")
    with pytest.raises(UsageError, match="no segment has rows of 2020-01-01"):
        build(spark, built[1] / "traces", tables, only=date(2020, 1, 1))


@pytest.mark.proof
def test_a_segment_that_was_damaged_since_it_was_read_is_left_out(
    spark: SparkSession, built: tuple[Traces, Path], base: Path
) -> None:
    path = segment_paths(built[1] / "traces")[3]
    whole, about = path.read_bytes(), path.stat()
    damaged = bytearray(whole)
    damaged[len(whole) // 3] ^= 1
    try:
        path.write_bytes(damaged)
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))  # nobody would look again
        again = build(spark, built[1] / "traces", Warehouse(base / "tables"), only=DAY)
    finally:
        path.write_bytes(whole)
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert path.name in {Path(found.file).name for found in again.quarantined}


@pytest.mark.proof
def test_a_build_that_is_killed_changes_nothing_and_the_next_one_all(
    spark: SparkSession, built: tuple[Traces, Path], tmp_path: Path
) -> None:
    """And built in one go it is the same as with a segment that came late."""
    traces = built[1] / "traces"
    killed = tmp_path / "tables"
    done = subprocess.run(
        [sys.executable, KILLED, traces, killed], start_new_session=True, timeout=300
    )
    assert done.returncode == -signal.SIGKILL
    assert list(killed.rglob("*.parquet"))
    assert Warehouse(killed).partitions() == []
    assert rebuild(spark, traces, killed) == [EVE, EVE, DAY]
    assert content(killed) == content(built[1] / "tables")


@pytest.mark.proof
def test_compaction_changes_files_and_no_rows(
    spark: SparkSession, built: tuple[Traces, Path], base: Path
) -> None:
    tables = Warehouse(base / "tables")
    before = sum(len(tables.parts(table)) for table in TABLES)
    gone = compact(spark, tables)
    parts = [parts for found in tables.partitions() for parts in found.tables.values()]
    assert {len(one) for one in parts} == {1}
    assert gone == before - len(parts) > 0
    assert content(base / "tables") == content(built[1] / "tables")
    assert compact(spark, tables) == 0
    assert modes_below(tables.root) == PRIVATE


@pytest.mark.proof
def test_pruned_days_are_gone_and_not_built_again(
    spark: SparkSession, built: tuple[Traces, Path], base: Path
) -> None:
    tables = Warehouse(base / "tables")
    assert prune(tables, EVE) == []
    assert prune(tables, DAY, ["bronze"]) == [EVE]
    assert {part.path.split("/date=")[1][:10] for part in tables.parts("bronze.deliveries")} == {
        str(DAY)
    }
    assert tables.days() == [EVE, DAY]
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
        found = documented[table.replace(".", "_")] or documented["bronze_deliveries"]
        assert found == [*TABLES[table].names, *common], table
    assert documented["quarantine"] == QUARANTINE.names


def test_the_command_shows_and_refuses(built: tuple[Traces, Path], tmp_path: Path) -> None:
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
