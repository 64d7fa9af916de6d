"""ringcast demo: a real cluster, a real crash, and Spark's verdict on what was delivered.

`ringcast demo uniform` tells what becomes of uniform messages whose sender dies (takeover.py).
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ringcast.spark.report import Report

VICTIM = 2
TRADE = {"op": "trade", "seconds": 6.0, "batch": 20, "rate": 2000}
KILL_AFTER_S = 3.5


@click.group(invoke_without_command=True)
@click.option("--loss", default=0.05, show_default=True, help="Share of datagrams to lose.")
@click.option("--seed", default=1, show_default=True, help="Which datagrams are lost.")
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the traces in this directory.",
)
@click.pass_context
def demo(context: click.Context, loss: float, seed: int, keep: Path | None) -> None:
    """Four processes exchange orders, one is killed, Spark audits what happened.

    Example: ringcast demo --loss 0.2 --keep traces
    """
    if context.invoked_subcommand is None:
        _show_cluster(loss, seed, keep)


@demo.command()
@click.option(
    "--reached",
    type=click.Choice(["B", "C", "D", "nobody"]),
    default="D",
    show_default=True,
    help="Who has the messages when their sender dies.",
)
def uniform(reached: str) -> None:
    """A sender dies when one member alone has its uniform messages: what the others do.

    Four members in virtual time. Each line was read off a datagram or a delivery.

    Example: ringcast demo uniform --reached nobody
    """
    from ringcast.cli.takeover import take_over

    delivered = take_over(_tell, "" if reached == "nobody" else reached)
    found = {tuple(messages) for messages in delivered.values()}
    names = ", ".join(delivered)
    if len(found) != 1:
        raise click.ClickException(f"{names} have not delivered the same: please report this")
    click.secho(f"{names} have each delivered {len(found.pop())} messages of A.", bold=True)


def _tell(since_ns: int, sentence: str) -> None:
    click.echo(f"{since_ns / 1e6:8.1f} ms  {sentence}")


def _show_cluster(loss: float, seed: int, keep: Path | None) -> None:
    from ringcast.spark.session import session

    with ExitStack() as stack:
        base = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ringcast-")))
        # Spark takes seconds to start: it does so while the cluster runs.
        starting = stack.enter_context(ThreadPoolExecutor(1)).submit(session, "ringcast demo")
        trace = base / "trace"
        _run_cluster(trace, loss, seed)
        planted = base / "planted"
        _plant_duplicate(trace, planted)
        _step(4, "Spark reads the traces of all members and judges what was promised.")
        clean, broken = _audit(starting.result(), trace, planted)
    if clean.exit_status != 0 or broken.exit_status != 1:
        raise click.ClickException("the verdicts are not as they should be: please report this")


def _run_cluster(trace: Path, loss: float, seed: int) -> None:
    from ringcast.bench.cluster import Cluster

    _step(
        1, f"Four processes join the group 'orders' on loopback; {loss:.0%} of datagrams are lost."
    )
    with Cluster(members=4, group="orders", loss=loss, seed=seed, record=trace) as cluster:
        _step(
            2, f"Each sends up to {TRADE['rate']} orders a second to all. Spark starts meanwhile."
        )
        cluster.tell_all(TRADE)
        time.sleep(KILL_AFTER_S)
        _step(3, f"kill -9 {cluster.names[VICTIM]}, in the middle of it. The others notice.")
        cluster.kill(VICTIM)
        sent = dict(zip(cluster.names, cluster.hear_all(), strict=True))
        expect = {name: answer["sent"] for name, answer in sent.items()}
        cluster.tell_all({"op": "finish", "expect": expect})
        for name, answer in zip(cluster.names, cluster.hear_all(), strict=True):
            counts = ", ".join(f"{count} of {who}" for who, count in sorted(answer["read"].items()))
            click.echo(f"   {name} sent {expect[name]} and delivered {counts}")
        click.echo(f"   the group is now {', '.join(answer['view'])}")


def _plant_duplicate(trace: Path, planted: Path) -> None:
    """Copy the trace, with one delivery repeated in one segment."""
    from ringcast.trace.segments import Recording, Segment, segment_paths, write_segment

    shutil.copytree(trace, planted)
    for path in segment_paths(planted):
        with Segment(path) as segment:
            info, rows = segment.info, segment.rows()
        deliveries = [at for at, row in enumerate(rows) if row.event == "deliver"]
        if not info.is_last or not deliveries:
            continue
        at = deliveries[len(deliveries) // 2]
        rows = [*rows[: at + 1], *rows[at:]]
        rows = [row._replace(idx=info.first_idx + place) for place, row in enumerate(rows)]
        owner = Recording(
            run_id=info.run_id,
            node=info.node,
            inc=info.inc,
            level=info.level,
            host=info.host,
            boot_id=info.boot_id,
        )
        path.unlink()
        write_segment(planted, owner, rows, is_last=True)
        return
    raise click.ClickException("no member has a whole trace: nothing to plant a duplicate in")


def _audit(spark: SparkSession, trace: Path, planted: Path) -> tuple[Report, Report]:
    from ringcast.cli.audit import print_report
    from ringcast.spark.audit import audit

    try:
        clean = audit(spark, trace)
        print_report(clean)
        _step(5, "The same trace with one delivery written twice: the audit must find it.")
        broken = audit(spark, planted)
        print_report(broken)
    finally:
        spark.stop()
    return clean, broken


def _step(number: int, sentence: str) -> None:
    click.secho(f"{number}. {sentence}", bold=True)
    sys.stdout.flush()
