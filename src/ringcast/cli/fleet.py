"""`ringcast simulate --spark`: the same runs on Spark, at every point of a grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import click

from ringcast.cli import simulate
from ringcast.cli.words import is_told, print_table, spark_session
from ringcast.errors import UsageError
from ringcast.private import make_private
from ringcast.sim.grid import point_words
from ringcast.spark.fleet import SCHEMA, Fleet, fleet_rows, tasks_for, watched
from ringcast.spark.fleet_tables import AtPoint, Cluster, Outcome, outcome
from ringcast.texts import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


RUNS = "runs"
"""Where the rows are, below --out."""


def simulate_fleet(
    fleet: Fleet, master: str, conf: Mapping[str, str], *, json_file: Path | None, matrix: bool
) -> int:
    """Run it on Spark there, say what it comes to, and return the exit status."""
    if fleet.out:
        if Path(fleet.out, RUNS).exists():
            raise UsageError(f"{fleet.out} has runs of a fleet already: choose another directory")
        make_private(Path(fleet.out))
    with spark_session("ringcast simulate", master, conf) as spark:
        return run_fleet(spark, fleet, json_file=json_file, matrix=matrix)


def run_fleet(
    spark: SparkSession, fleet: Fleet, *, json_file: Path | None = None, matrix: bool = False
) -> int:
    """The same, in a session that is there and stays."""
    started = perf_counter()
    tasks = tasks_for(spark, fleet)
    click.echo(f"{counted(fleet.runs, 'run')} in {counted(tasks, 'task')} …", err=True)
    rows = fleet_rows(spark, fleet, tasks)

    def tell(done: int, every: int) -> None:
        click.echo(f"{done} of {every} tasks, {perf_counter() - started:.0f} s", err=True)

    with watched(spark, tell):
        if fleet.out:
            rows.write.parquet(f"{fleet.out}/{RUNS}")
            rows = spark.read.schema(SCHEMA).parquet(f"{fleet.out}/{RUNS}")
        else:
            rows = rows.persist()
            rows.count()
    seconds = perf_counter() - started
    found = outcome(rows)
    rows.unpersist()
    order = {" ".join(point_words(point)): at for at, point in enumerate(fleet.points)}
    found.points.sort(key=lambda at_point: order[at_point.point])
    if not is_told(_figures(fleet, found, seconds), json_file):
        _show(fleet, found, seconds, matrix=matrix)
        if fleet.out:
            click.echo(f"a row for each: {fleet.out}/{RUNS}")
    return 1 if found.tally.violations or found.tally.vacuous else 0


def _show(fleet: Fleet, found: Outcome, seconds: float, *, matrix: bool) -> None:
    for cluster in found.clusters:
        _show_cluster(fleet, cluster)
    if found.clusters_left_out:
        click.echo(f"… and {found.clusters_left_out} more kinds of failures\n")
    tally = found.tally
    simulate.show_rules(tally)
    simulate.show_happenings(tally)
    if matrix:
        simulate.show_matrix(tally, fleet.protocol, fleet.purge)
    click.echo()
    _show_points(found.points)
    click.echo(f"\n{simulate.sum_of(tally, 'run', seconds)}")


def _show_cluster(fleet: Fleet, cluster: Cluster) -> None:
    click.echo(f"{cluster.rule} violated in {counted(cluster.runs, 'run')}; {cluster.state}")
    if cluster.runs > 1 and cluster.faults:
        click.echo(f"  in all of them: {', '.join(cluster.faults)}")
    click.echo(f"  seed {cluster.seed}: {cluster.text}")
    if cluster.kept:
        click.echo(f"  trace: {Path(fleet.out, cluster.kept)}")
    click.echo(f"  {_replay(fleet, cluster)}\n")


def _replay(fleet: Fleet, cluster: Cluster) -> str:
    which = simulate.which_runs(fleet.protocol, fleet.purge, partitions=fleet.partitions)
    settings = "".join(f" --set {word}" for word in cluster.point.split())
    return f"ringcast replay {which} --seed {cluster.seed}{settings}"


def _show_points(points: list[AtPoint]) -> None:
    """A line for each point; of each liveness rule the worst wait as a share of its bound."""
    bounded = [
        rule
        for rule in dict.fromkeys(name for at in points for name in at.judged)
        if any(rule in at.judged and at.judged[rule].worst is not None for at in points)
    ]
    titles = ["runs", "failed", "violations", "judged", "deliveries", "per core-s", *bounded]
    lines = [["point", *titles]]
    for at in points:
        worst = [at.judged[name].worst if name in at.judged else None for name in bounded]
        lines.append(
            [
                *(at.point or "as drawn", str(at.runs), str(at.failed)),
                str(sum(judged.violations for judged in at.judged.values())),
                str(sum(judged.premises for judged in at.judged.values())),
                *(str(at.deliveries), f"{at.deliveries / max(at.wall_s, 1e-9):.0f}"),
                *("-" if share is None else f"{share:.2f}" for share in worst),
            ]
        )
    print_table(lines, right=range(1, len(lines[0])))


def _figures(fleet: Fleet, found: Outcome, seconds: float) -> dict[str, object]:
    """As plain simulate has them; failures by kind, and what there is at each point."""
    tally = found.tally
    return {
        **simulate.figures(tally, fleet.protocol, fleet.purge, fleet.seeds, seconds),
        "runs": tally.seeds,
        "failures": [
            {**cluster._asdict(), "replay": _replay(fleet, cluster)} for cluster in found.clusters
        ],
        "points": [
            {**at._asdict(), "judged": {name: asdict(judged) for name, judged in at.judged.items()}}
            for at in found.points
        ],
    }
