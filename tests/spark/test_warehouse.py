"""A warehouse in which somebody dies at every step in turn: each day is the old one or the new."""

from __future__ import annotations

import shutil
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringcast.errors import UsageError
from ringcast.spark.tables import Warehouse
from ringcast.spark.tables.building import due_partitions
from ringcast.spark.tables.warehouse import Part, Partition, PartitionKey

if TYPE_CHECKING:
    from collections.abc import Callable

DAYS = (date(2026, 11, 14), date(2026, 11, 15))
RUN = "50 % [a/b]"
NAMES = ("silver.deliveries", "gold.verdicts")


class Died(BaseException):
    """As by kill -9: nobody tidies up."""


def stage(warehouse: Warehouse, says: str) -> None:
    """Both tables of both days, as Spark would have written them."""
    for table in NAMES:
        for day in DAYS:
            inside = f"group=g/date={day}/run=50 %25 %5Ba%2Fb%5D"
            for number in range(2):
                path = warehouse.staging / table / inside / f"part-{number}.parquet"
                path.parent.mkdir(parents=True, exist_ok=True)
                pq.write_table(pa.table({"says": [f"{says} {number}"]}), path)


def build(root: Path, says: str) -> None:
    warehouse = Warehouse(root)
    with warehouse.writing():
        stage(warehouse, says)
        number = warehouse.next_number()
        made = {day: Partition(PartitionKey("g", day, RUN), {"segment": [1, 2]}) for day in DAYS}
        for table in NAMES:
            for key, parts in warehouse.adopt(table, number).items():
                made[key.date].tables[table] = parts
        warehouse.commit(made.values())


def read(root: Path) -> dict[date, set[str]]:
    """What is said on each day, in whichever table and file."""
    found: dict[date, set[str]] = {}
    for partition in Warehouse(root).partitions():
        assert partition.key.run == RUN
        assert set(partition.tables) == set(NAMES)
        parts = [part for parts in partition.tables.values() for part in parts]
        assert len(parts) == 4
        tables = [pq.read_table(root / part.path, partitioning=None) for part in parts]
        assert [len(table) for table in tables] == [part.rows for part in parts]
        found[partition.key.date] = {
            row["says"].split()[0] for table in tables for row in table.to_pylist()
        }
    return found


def dying_at(step: int, patch: pytest.MonkeyPatch) -> None:
    """From now on the process lives for so many changes of the disk."""
    left = step

    def mortal(work: Callable[..., Any]) -> Callable[..., Any]:
        def done(*args: Any, **options: Any) -> Any:
            nonlocal left
            if left <= 0:
                raise Died
            left -= 1
            return work(*args, **options)

        return done

    for name in ("rename", "replace", "unlink", "rmdir", "mkdir"):
        patch.setattr(Path, name, mortal(getattr(Path, name)))
    patch.setattr(shutil, "rmtree", mortal(shutil.rmtree))


def test_whoever_dies_at_whichever_step_each_day_is_the_old_one_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path / "first", "old")
    seen = set()
    for step in range(500):
        root = tmp_path / str(step)
        shutil.copytree(tmp_path / "first", root)
        try:
            with monkeypatch.context() as patch:
                dying_at(step, patch)
                build(root, "new")
        except Died:
            said = read(root)
            assert set(said) == set(DAYS)
            seen.add(tuple(sorted(map(min, said.values()))))
            assert all(len(words) == 1 for words in said.values()), step
        else:
            break
        build(root, "newer")
        assert read(root) == {day: {"newer"} for day in DAYS}
        assert len(list(root.rglob("*.parquet"))) == 8  # nothing of the dead is left
    assert seen == {("old", "old"), ("new", "old"), ("new", "new")}
    assert step > 30
    assert read(root) == {day: {"new"} for day in DAYS}


def test_what_is_due_is_what_has_new_segments_and_the_day_that_has_the_verdicts(
    tmp_path: Path,
) -> None:
    eve, day = (PartitionKey("g", each, "r") for each in DAYS)
    other = PartitionKey("g", DAYS[1], "another")
    one, two, three = {"1": [1, 1]}, {"2": [2, 2]}, {"3": [3, 3]}
    warehouse = Warehouse(tmp_path / "tables")
    with warehouse.writing():
        verdicts = {"gold.verdicts": [Part("v.parquet", 1, 1)]}
        warehouse.commit([Partition(day, one | two, verdicts), Partition(other, one, verdicts)])
    assert due_partitions(warehouse, {day: one | two, other: one}) == []
    assert due_partitions(warehouse, {day: one, other: one}) == []  # one has been removed
    assert due_partitions(warehouse, {day: {"1": [9, 9]}, other: one}) == [day]
    # A day before the first: the verdicts move there.
    assert due_partitions(warehouse, {eve: three, day: one, other: one}) == [eve, day]
    warehouse.pruned_before = DAYS[1]
    assert due_partitions(warehouse, {eve: three, day: one, other: one}) == []
    assert due_partitions(warehouse, {eve: three, day: one}, only=DAYS[0]) == [eve]


def test_two_do_not_write_at_once(tmp_path: Path) -> None:
    build(tmp_path / "tables", "old")
    with (
        Warehouse(tmp_path / "tables").writing(),
        pytest.raises(UsageError, match="another process works here"),
    ):
        build(tmp_path / "tables", "new")
    build(tmp_path / "tables", "new")


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    build(tmp_path / "tables", "old")
    (tmp_path / "tables" / "_manifests" / f"{DAYS[0]}.json").write_text("{")
    with pytest.raises(UsageError, match=r"2026-11-14.json: damaged"):
        Warehouse(tmp_path / "tables").partitions()
