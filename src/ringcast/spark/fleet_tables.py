"""What a fleet comes to: functions from its rows (`ringcast.spark.fleet.SCHEMA`) to small tables.

Each table is as small as the grid, the rules or the kinds of failures, however many runs there
were.
"""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F

from ringcast.sim.options import FAULTS
from ringcast.sim.runner import VACUOUS, Judged, Tally

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CLUSTERS_MAX = 100
_SUMS = ("deliveries", "faults", "rows", "wall_s")


def by_point(rows: DataFrame) -> DataFrame:
    """For each point of the grid: what it amounts to."""
    return rows.groupBy("point").agg(
        F.count("*").alias("runs"),
        F.sum((F.col("violations") > 0).cast("long")).alias("failed"),
        *(F.sum(name).alias(name) for name in _SUMS),
    )


def by_rule(rows: DataFrame) -> DataFrame:
    """For each point and rule: how often it was judged and violated, and the worst wait as a
    share of its bound. `place` is where it stands among the others."""
    return (
        rows.select("point", F.posexplode("judged").alias("place", "rule", "judged"))
        .groupBy("point", "rule")
        .agg(
            F.sum("judged.premises").alias("premises"),
            F.sum("judged.violations").alias("violations"),
            F.max("judged.worst").alias("worst"),
            F.min("place").alias("place"),
        )
    )


def counts(rows: DataFrame, column: str) -> DataFrame:
    """The sum of each count in a map: `happenings` or `matrix`."""
    return (
        rows.select(F.posexplode(column).alias("place", "what", "count"))
        .groupBy("what")
        .agg(F.sum("count").alias("count"), F.min("place").alias("place"))
    )


def clusters(rows: DataFrame) -> DataFrame:
    """Failures that are alike: in how many runs, which fault classes were on in all of them, and
    the run with the shortest trace, which is the one to look at."""
    shortest = F.min(F.struct("rows", "seed", "point", "text", "kept"))
    return (
        rows.where("violations > 0")
        .select("*", F.explode("failures").alias("failure"), _fault_bits().alias("bits"))
        .select("*", "failure.rule", "failure.state", "failure.text")
        .groupBy("rule", "state")
        .agg(F.count("*").alias("runs"), F.bit_and("bits").alias("bits"), shortest.alias("example"))
    )


def _fault_bits() -> Column:
    """The fault classes of a run as one number, so that those of many can be intersected."""
    return reduce(
        add,
        (
            F.array_contains("fault_classes", fault).cast("long") * (1 << at)
            for at, fault in enumerate(FAULTS)
        ),
    )


class Cluster(NamedTuple):
    """Failures that are alike, and one of them."""

    rule: str
    state: str
    runs: int
    faults: tuple[str, ...]
    """Classes that were on in every one of the runs."""
    seed: int
    point: str
    text: str
    kept: str


class AtPoint(NamedTuple):
    """What the runs at one point of the grid come to."""

    point: str
    runs: int
    failed: int
    deliveries: int
    wall_s: float
    judged: dict[str, Judged]


class Outcome(NamedTuple):
    """All that is said of a fleet."""

    tally: Tally
    points: list[AtPoint]
    clusters: list[Cluster]
    clusters_left_out: int


def outcome(rows: DataFrame) -> Outcome:
    """Sum the fleet up. `rows` are read several times: they should be stored, or cached."""
    tally = Tally()
    verdicts = by_rule(rows).orderBy("place", "rule").collect()
    totals = by_point(rows).collect()
    judged: dict[str, dict[str, Judged]] = {row.point: {} for row in totals}
    for row in verdicts:
        said = Judged(row.premises, row.violations, row.worst)
        judged[row.point][row.rule] = said
        tally.judged[row.rule] = tally.judged.get(row.rule, VACUOUS).plus(said)
    for row in totals:
        tally.seeds += row.runs
        tally.deliveries += row.deliveries
        tally.faults += row.faults
        tally.rows += row.rows
    for row in counts(rows, "happenings").orderBy("place", "what").collect():
        tally.happenings[row.what] = row["count"]
    for row in counts(rows, "matrix").collect():
        fault, _, kind = row.what.partition(" ")
        tally.matrix[fault, kind] = row["count"]
    points = [
        AtPoint(row.point, row.runs, row.failed, row.deliveries, row.wall_s, judged[row.point])
        for row in totals
    ]
    found, left_out = _clusters(rows) if tally.violations else ([], 0)
    return Outcome(tally, points, found, left_out)


def _clusters(rows: DataFrame) -> tuple[list[Cluster], int]:
    """The most frequent ones, and how many others there are."""
    every = clusters(rows)
    first = every.orderBy(F.desc("runs"), "rule", "state").limit(CLUSTERS_MAX).collect()
    left_out = every.count() - CLUSTERS_MAX if len(first) == CLUSTERS_MAX else 0
    found = [
        Cluster(
            *(row.rule, row.state, row.runs),
            tuple(fault for at, fault in enumerate(FAULTS) if row.bits >> at & 1),
            *(row.example.seed, row.example.point, row.example.text, row.example.kept),
        )
        for row in first
    ]
    return found, left_out
