"""ringcast demo: a real cluster, real crashes, its orders on Spark, and Spark's verdict on it all.

Traders are processes of their own, with an archive among them; Spark reads what it keeps while they
trade (demo_market.py).

`ringcast demo uniform` tells what becomes of uniform messages whose sender dies (demo_uniform.py).
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ringcast.aio.sources import check_system
from ringcast.cli.words import conf_option, print_table
from ringcast.private import make_private

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ringcast.cli.demo_market import Revenue, Totals

KILL_AFTER_S = 3.0
QUICK_KILL_AFTER_S = 1.0
QUICK_GO_ON_S = 0.5
"""How long survivors trade on before they are asked what they have."""


@click.group(
    short_help="Four processes exchange orders, and two are killed.", invoke_without_command=True
)
@click.option(
    "--loss",
    type=click.FloatRange(0, 0.5),
    default=0.05,
    show_default=True,
    help="Share of datagrams to lose.",
)
@click.option("--seed", default=1, show_default=True, help="Which datagrams are lost.")
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep traces, messages and the report in this directory.",
)
@click.option("--quick", is_flag=True, help="Without Spark, in a few seconds.")
@conf_option
@click.pass_context
def demo(
    context: click.Context,
    loss: float,
    seed: int,
    keep: Path | None,
    *,
    quick: bool,
    conf: dict[str, str],
) -> None:
    """Four processes exchange orders, two are killed, Spark adds up and audits what happened.

    Exits with 1 if Spark and the members do not agree, or the verdicts are not as they should be.

    \b
    Examples:
      ringcast demo --quick
      ringcast demo --loss 0.2 --keep run
    """
    if context.invoked_subcommand is not None:
        return
    check_system()
    if quick:
        if keep is not None:
            raise click.BadParameter("--quick records nothing: leave it out", param_hint="--keep")
        if conf:
            raise click.BadParameter("--quick starts no Spark: leave it out", param_hint="--conf")
        _show_quickly(loss, seed)
        return
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise click.BadParameter(f"{keep} is not empty: name a new directory", param_hint="--keep")
    with ExitStack() as stack:
        base = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ringcast-")))
        make_private(base)
        report = _show(base, loss, seed, conf)
        # Unless all is kept, the page alone outlives the demo.
        if keep is None:
            report = report.rename(Path(tempfile.mkdtemp(prefix="ringcast-demo-")) / report.name)
        click.echo(f"   {report}")


REPEATED = ["G2 N2", "VS3"]
"""What a delivery that is written twice violates, and nothing else."""


@demo.command(short_help="A sender dies when one member alone has its messages.")
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
    from ringcast.cli.demo_uniform import lose_sender

    def tell(since_ns: int, sentence: str) -> None:
        click.echo(f"{since_ns / 1e6:8.1f} ms  {sentence}")

    delivered = lose_sender(tell, "" if reached == "nobody" else reached)
    found = {tuple(messages) for messages in delivered.values()}
    names = ", ".join(delivered)
    if len(found) != 1:
        raise click.ClickException(f"{names} have not delivered the same: please report this")
    click.secho(f"{names} have each delivered {len(found.pop())} messages of A.", bold=True)


def _show_quickly(loss: float, seed: int) -> None:
    """Members alone: they join, lose datagrams, lose members, and agree."""
    from ringcast.cli.demo_market import Market

    _step(1, f"Four processes join the group 'orders'; each loses {loss:.0%} of what arrives.")
    with (
        tempfile.TemporaryDirectory(prefix="ringcast-") as base,
        Market(Path(base), None, loss, seed) as market,
    ):
        _step(2, "All send orders to all, m3 with guarantee='uniform'.")
        market.open()
        time.sleep(QUICK_KILL_AFTER_S)
        _step(3, "kill -9 m2 and m3, in the middle of it.")
        killed_at = time.monotonic()
        market.kill()
        market.totals()  # told once all survivors are in the view without the dead
        took = time.monotonic() - killed_at
        _step(4, f"{took:.2f} s later the view is {', '.join(market.traders)}, and they go on.")
        time.sleep(QUICK_GO_ON_S)
        market.close()
        _agree(market.traders, market.totals())


def _show(base: Path, loss: float, seed: int, conf: Mapping[str, str]) -> Path:
    """The whole story; the page on it."""
    import ringcast.spark.stream  # noqa: F401 (what it needs is told before anything is begun)
    from ringcast.spark.session import session

    trace = base / "trace"
    with ThreadPoolExecutor(1) as pool:
        # Spark takes seconds to start: it does so while orders are exchanged.
        starting = pool.submit(session, "ringcast demo", conf=conf)
        _trade(base, trace, loss, seed, starting)
    with starting.result() as spark:
        return _audit(spark, base, trace)


def _trade(base: Path, trace: Path, loss: float, seed: int, starting: Future[SparkSession]) -> None:
    """Orders until Spark reads them; and what it makes of them, back to the group."""
    from ringcast.cli.demo_market import Market, Revenue

    lost = f"each loses {loss:.0%} of what arrives"
    _step(1, f"Four processes join the group 'orders'; {lost}. An archive keeps all messages.")
    with Market(base, trace, loss, seed) as market:
        _step(2, "All send orders to all while Spark starts, m3 with guarantee='uniform'.")
        market.open()
        time.sleep(KILL_AFTER_S)
        _step(3, "kill -9 m2 and m3, in the middle of it. The others go on.")
        market.kill()
        spark = starting.result()
        _step(4, "Spark is there, and reads the archive as a stream while orders come in.")
        revenue = Revenue(spark, trace, base / "checkpoint")
        click.echo(f"   {revenue.await_orders()} orders so far")
        market.close()
        totals = _agree(market.traders, market.totals())
        market.end_archive()
        _compare(revenue, totals)
        _step(7, "Spark's sums go back to the group, and a member that reads it prints them:")
        market.hear_of(
            revenue, lambda since, *sums: click.echo(f"   {since:%H:%M:%S}  {_sum(*sums)}")
        )


def _agree(traders: list[str], told: list[Totals]) -> Totals:
    """Print what each survivor has delivered; what is, and must be, the same at all of them."""
    _step(5, "What the survivors have delivered in all:")
    rows = [["sender", *traders, ""]]
    agreed: Totals = {}
    for sender, guarantee in sorted(set().union(*told)):
        found = [totals.get((sender, guarantee), (0, 0)) for totals in told]
        if sender not in traders and guarantee == "fifo":
            remark = click.style("may differ: it sent plain", "yellow")
        elif len(set(found)) > 1:
            raise click.ClickException(f"survivors differ on {sender}, {found}: please report this")
        else:
            agreed[sender, guarantee] = found[0]
            why = "" if sender in traders else ": it sent uniform"
            remark = click.style(f"the same{why}", "green")
        rows.append([sender, *(_sum(*each) for each in found), remark])
    print_table(rows, right=range(1, 1 + len(traders)), indent="   ")
    return agreed


def _compare(revenue: Revenue, totals: Totals) -> None:
    """Print what the stream has found; it must be what the members say."""
    from ringcast.cli.demo_market import WINDOW_S

    revenue.finish()
    _step(6, f"Orders and revenue in each {WINDOW_S} seconds, from the stream:")
    sums = [[f"{since:%H:%M:%S}", _sum(*sums)] for since, *sums in revenue.by_time()]
    print_table(sums, indent="   ", is_headed=False)
    found = revenue.by_sender()
    for key, expected in totals.items():
        if found.get(key) != expected:
            raise click.ClickException(
                f"Spark has {found.get(key)} of {key[0]}, the members {expected}: please report it"
            )
    names = ", ".join(sender for sender, _ in totals)
    click.echo(f"   Of {names} Spark has the same orders and revenue as the survivors.")


def _audit(spark: SparkSession, base: Path, trace: Path) -> Path:
    """Judge the traces, and a copy with a fault in it; the page on them."""
    from ringcast.cli.audit import print_report, print_verdicts
    from ringcast.spark.audit import audit
    from ringcast.spark.page import write_page

    _step(8, "Spark reads the traces of all members and judges what was promised.")
    clean = audit(spark, trace)
    print_report(clean)
    _step(9, "The same traces with one delivery written twice: the audit must find it.")
    planted = base / "planted"
    _plant_duplicate(trace, planted)
    broken = audit(spark, planted)
    print_verdicts(broken)
    violated = [verdict.id for verdict in broken.verdicts if verdict.violations]
    if clean.exit_status != 0 or violated != REPEATED:
        raise click.ClickException("the verdicts are not as they should be: please report this")
    _step(10, "The run as a page, with charts:")
    page = base / "report.html"
    write_page(spark, clean, page)
    return page


def _plant_duplicate(trace: Path, planted: Path) -> None:
    """Copy the traces, with one delivery of a trader repeated."""
    from ringcast.trace.segments import Segment, segment_paths, write_segment

    shutil.copytree(trace, planted)
    segments = {}
    for path in segment_paths(planted):
        with Segment(path) as segment:
            segments[path] = segment.info, segment.rows()
    # One that ended well with many rows, and is no archive: those have messages beside their rows.
    owner = max(
        (len(own), info.recording.node, info.recording)
        for info, own in segments.values()
        if info.is_last and not info.payloads
    )[2]
    rows = []
    for path, (info, own) in segments.items():
        if info.recording == owner:
            rows += own
            path.unlink()
    rows.sort(key=lambda row: row.idx)
    deliveries = [at for at, row in enumerate(rows) if row.event == "deliver"]
    at = deliveries[len(deliveries) // 2]
    rows = [*rows[: at + 1], *rows[at:]]
    rows = [row._replace(idx=place) for place, row in enumerate(rows)]
    write_segment(planted, owner, rows, is_last=True)


def _sum(orders: int, cents: int) -> str:
    return f"{orders:5} for {cents / 100:9,.2f}"


def _step(number: int, sentence: str) -> None:
    click.secho(f"{number}. {sentence}", bold=True)
