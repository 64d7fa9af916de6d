"""ringcast simulate: many seeded runs under faults, each judged by every rule."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

import click

from ringcast.cli.words import (
    SPARK_MASTER,
    Checked,
    conf_option,
    is_told,
    json_file_option,
    note,
    print_table,
    say,
)
from ringcast.private import make_private
from ringcast.sim.crowd import LOAD, PAYLOAD_BYTES, UNIFORM, Load, loads, uniform_cost
from ringcast.sim.grid import SETTINGS, grid_points, parse_setting
from ringcast.sim.network import frame_kinds
from ringcast.sim.options import DETECTING, FAULTS, PROTOCOLS, PURGES
from ringcast.sim.runner import Summary, Tally, run_seeds
from ringcast.sim.timeline import time_line
from ringcast.texts import counted

FAILED_SEEDS_SHOWN = 10
FAILURES_SHOWN = 3
TEXT_AT = 33
"""Where in a time line the text begins."""


def _seeds(text: str) -> range:
    """FIRST:STOP, or a single seed."""
    first, colon, stop = text.partition(":")
    try:
        seeds = range(int(first), int(stop)) if colon else range(int(first), int(first) + 1)
    except ValueError:
        raise ValueError(f"{text!r}: write FIRST:STOP, such as 0:500, or one seed") from None
    if not seeds or seeds[0] < 0 or seeds[-1] >= 2**64:
        raise ValueError(f"{text!r}: no seeds from 0 to 2**64 - 1 in it")
    return seeds


SEEDS = Checked("FIRST:STOP", _seeds)

protocol_option = click.option(
    "--protocol",
    type=click.Choice(PROTOCOLS),
    default="multicast",
    help="Messages to the group (if not given), between two members, a group on its own, or one "
    "that also sends uniform messages; total: one with one order of total messages.",
)
partitions_option = click.option(
    "--partitions",
    is_flag=True,
    help="Cut members off until their group falls apart; with --protocol group, uniform or total.",
)
purge_option = click.option(
    "--purge",
    type=click.Choice(PURGES),
    default="acks",
    help="How members learn what everybody has: by acks (if not given), or by stability rounds, in "
    "half of the seeds with messages retained until then.",
)


@click.command(short_help="Run groups on a virtual clock and a faulty network.")
@protocol_option
@partitions_option
@purge_option
@click.option("--seeds", type=SEEDS, default="0:100", help="Which seeds; 0:100 if not given.")
@click.option("--jobs", type=click.IntRange(1, 256), default=1, help="Processes to run them on.")
@json_file_option
@click.option(
    "--economy",
    type=click.IntRange(2, 200),
    metavar="MEMBERS",
    help="Instead of seeds: what acks and what reports cost so many members that all send.",
)
@click.option("--matrix", is_flag=True, help="Show which fault met which kind of frame, how often.")
@click.option(
    "--record",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep each seed's trace here; with ringcast[spark] also as `ringcast audit` reads it.",
)
@click.option("--spark", is_flag=True, help="Run them on Spark: a fleet, summed up.")
@click.option("--master", type=SPARK_MASTER, help="With --spark: where; local[*] if not given.")
@conf_option
@click.option(
    "--grid",
    multiple=True,
    metavar="NAME=V,V…",
    help="With --spark: every seed at each of these values; again for another name. "
    f"Names: {', '.join(SETTINGS)}.",
)
@click.option(
    "--audit",
    is_flag=True,
    help="With --spark: judge each run also as if its members had recorded it. What that finds is "
    "a false alarm.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="With --spark: keep a row for each run as Parquet here, and traces of failures; all "
    "workers must see this directory.",
)
@click.pass_context
def simulate(
    ctx: click.Context,
    protocol: str,
    partitions: bool,
    purge: str,
    seeds: range,
    jobs: int,
    json_file: Path | None,
    economy: int | None,
    matrix: bool,
    record: Path | None,
    spark: bool,
    master: str | None,
    conf: dict[str, str],
    grid: tuple[str, ...],
    audit: bool,
    out: Path | None,
) -> None:
    """Run groups of members on a virtual clock and a faulty virtual network.

    One seed decides everything about a run, so that a failure can be replayed. Exits with 1 if a
    rule was violated, or if one never had a case to judge.

    \b
    Examples:
      ringcast simulate --seeds 0:500 --jobs 2
      ringcast simulate --protocol group --seeds 0:500 --matrix
      ringcast simulate --protocol group --partitions --seeds 0:500
      ringcast simulate --protocol uniform --seeds 0:500 --jobs 2
      ringcast simulate --purge stability --seeds 0:500 --jobs 2
      ringcast simulate --economy 50
      ringcast simulate --seeds 0:500 --json
      ringcast simulate --spark --seeds 0:2000 --grid capacity=16,1024
      ringcast simulate --spark --seeds 0:1000 --protocol group --audit
    """
    if not spark and (master or conf or grid or audit or out):
        raise click.UsageError("--master, --conf, --grid, --audit and --out go with --spark")
    if audit and protocol == "unicast":
        raise click.UsageError("--audit is about messages to a group, which alone are recorded")
    if spark and (jobs > 1 or record or economy):
        raise click.UsageError("--jobs, --record and --economy do not go with --spark")
    if economy is not None:
        found = []
        for load in loads(economy):
            note(f"measured: {load.way}")
            found.append(load)
        if not is_told([load._asdict() for load in found], json_file):
            show_loads(found)
        return
    if partitions and protocol not in DETECTING:
        raise click.UsageError("--partitions needs --protocol group, uniform or total")
    if purge != "acks" and protocol == "unicast":
        raise click.UsageError("--purge stability is about messages to a group")
    if spark:
        points = grid_points([parse_setting(text) for text in grid])

        from ringcast.cli.fleet import simulate_fleet
        from ringcast.spark.fleet import Fleet

        fleet = Fleet(
            seeds=seeds,
            points=points,
            protocol=protocol,
            partitions=partitions,
            purge=purge,
            audit=audit,
            out=str(out.absolute()) if out else "",
            node_factory=ctx.obj,
        )
        where = master or "local[*]"
        ctx.exit(simulate_fleet(fleet, where, conf, json_file=json_file, matrix=matrix))
    if record is not None:
        make_private(record)
    tally = Tally()
    started = perf_counter()
    # Tests put another node there, which must be caught.
    results = run_seeds(
        seeds,
        protocol=protocol,
        partitions=partitions,
        purge=purge,
        jobs=jobs,
        record=record,
        node_factory=ctx.obj,
    )
    with _progress(results, len(seeds)) as counted:
        for summary in counted:
            tally.add(summary)
    seconds = perf_counter() - started
    if not is_told(figures(tally, protocol, purge, seeds, seconds), json_file):
        _show(tally, protocol, purge, partitions=partitions, matrix=matrix, seconds=seconds)
    ctx.exit(1 if tally.violations or tally.vacuous else 0)


def show_loads(found: list[Load]) -> None:
    each = "per message and member"
    rows = [["", "control frames", each, "as datagrams", each, "all datagrams", "bytes kept"]]
    for load in found:
        row: list[object] = [load.way]
        for count in (load.frames, load.datagrams):
            row += [count, f"{load.per_message(count):.4f}"]
        rows.append([*map(str, (*row, load.all_datagrams, load.retained))])
    say(
        f"{found[0].members} members; each sends {LOAD.runs} runs of {LOAD.messages} messages of "
        f"{PAYLOAD_BYTES} bytes, one every {LOAD.period_ms:.0f} ms; no faults"
    )
    print_table(rows, right=range(1, 7))


def _show(
    tally: Tally, protocol: str, purge: str, *, partitions: bool, matrix: bool, seconds: float
) -> None:
    which = which_runs(protocol, purge, partitions=partitions)
    for summary in tally.failed[:FAILED_SEEDS_SHOWN]:
        _show_failures(summary, which)
    if len(tally.failed) > FAILED_SEEDS_SHOWN:
        click.echo(f"… and {len(tally.failed) - FAILED_SEEDS_SHOWN} more failing seeds\n")
    show_rules(tally)
    show_happenings(tally)
    if protocol == "uniform":
        each, kinds = uniform_cost()
        counts = ", ".join(f"{kind} {count}" for kind, count in kinds.items())
        say(
            f"{each:.3f} control frames per uniform message and member without faults, in runs of "
            f"{UNIFORM.messages}: {counts}"
        )
    if matrix:
        show_matrix(tally, protocol, purge)
    click.echo(sum_of(tally, "seed", seconds))


def sum_of(tally: Tally, run: str, seconds: float) -> str:
    return (
        f"{counted(tally.seeds, run)} · {counted(tally.violations, 'violation')} · "
        f"{tally.deliveries} deliveries · {counted(tally.faults, 'fault')} · "
        f"{tally.seeds / max(seconds, 1e-9):.1f} {run}s/s"
    )


def which_runs(protocol: str, purge: str, *, partitions: bool) -> str:
    """As `ringcast replay` takes it."""
    which = f"--protocol {protocol}" + " --partitions" * partitions
    return which + f" --purge {purge}" * (purge != "acks")


def _progress(results: Iterator[Summary], count: int) -> AbstractContextManager[Iterator[Summary]]:
    """With a bar where somebody watches."""
    if not sys.stderr.isatty():
        return nullcontext(results)
    return click.progressbar(results, length=count, label="seeds", file=sys.stderr)


def _show_failures(summary: Summary, which: str) -> None:
    for failure in summary.failures[:FAILURES_SHOWN]:
        say(f"seed {summary.seed}: {failure.rule} violated: {failure.text}")
        for line in time_line(failure.rows, [row.run_idx for row in failure.rows]):
            say(f"  {line}", TEXT_AT + 2)
    if len(summary.failures) > FAILURES_SHOWN:
        click.echo(f"  … and {len(summary.failures) - FAILURES_SHOWN} more violations")
    click.echo(f"  ringcast replay {which} --seed {summary.seed}\n")


def show_rules(tally: Tally) -> None:
    rows = [["rule", "judged", "violated", "worst wait / bound"]]
    for rule, judged in tally.judged.items():
        worst = "" if judged.worst is None else f"{judged.worst:.2f}"
        if not judged.premises:
            worst = click.style("never had a case", "yellow")
        violated = click.style(str(judged.violations), "red" if judged.violations else None)
        rows.append([rule, str(judged.premises), violated, worst])
    print_table(rows, right={1, 2})
    if tally.vacuous:
        say("Nothing is shown about rules that never had a case: more seeds may have one.")


def show_happenings(tally: Tally) -> None:
    width = max(map(len, tally.happenings), default=0)
    for what, count in tally.happenings.items():
        click.echo(f"{what:{width}} {count:6}" + ("" if count else "  never happened"))


def show_matrix(tally: Tally, protocol: str, purge: str) -> None:
    kinds, counts = frame_kinds(protocol, purge), tally.matrix
    rows = [["fault", "", *kinds]]
    rows += [
        [fault, title, *(str(counts[fault, kind]) for kind in kinds)]
        for fault, title in FAULTS.items()
    ]
    click.echo()
    print_table(rows, right=range(2, len(rows[0])), repeated=2)
    empty = []
    for fault in FAULTS:
        missed = [kind for kind in kinds if not counts[fault, kind]]
        if missed:
            empty.append([fault, "all" if missed == [*kinds] else ", ".join(missed)])
    click.echo(f"empty cells:{'' if empty else ' none'}")
    print_table([*empty, ["", ""]], is_headed=False)


def figures(
    tally: Tally, protocol: str, purge: str, seeds: range, seconds: float
) -> dict[str, object]:
    kinds = frame_kinds(protocol, purge)
    return {
        "protocol": protocol,
        "purge": purge,
        "seeds": [seeds.start, seeds.stop],
        "violations": tally.violations,
        "deliveries": tally.deliveries,
        "faults": tally.faults,
        "rows": tally.rows,
        "seconds": round(seconds, 3),
        "rules": {rule: asdict(judged) for rule, judged in tally.judged.items()},
        "happenings": dict(tally.happenings),
        "matrix": {fault: {kind: tally.matrix[fault, kind] for kind in kinds} for fault in FAULTS},
        "failures": [
            {"seed": summary.seed, "rule": failure.rule, "text": failure.text}
            for summary in tally.failed
            for failure in summary.failures
        ],
    }
