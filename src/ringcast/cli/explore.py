"""`ringcast explore`: exhaustive exploration, with a schedule for everything that goes wrong."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from ringcast.explore.ring import SCENARIOS, UNGUARDED_E, VARIANTS, explore_ring

if TYPE_CHECKING:
    from ringcast.explore.explorer import Report
    from ringcast.explore.ring import Scenario


@click.group()
def explore() -> None:
    """Run every possible interleaving of a small scenario, and report what goes wrong.

    Example: ringcast explore ring
    """


@explore.command()
@click.option(
    "--scenario",
    "name",
    type=click.Choice([*SCENARIOS, "all"]),
    default="all",
    show_default=True,
    help="Which threads run at the same time; each is described in the output.",
)
@click.option(
    "--variant",
    type=click.Choice(list(VARIANTS)),
    default="real",
    show_default=True,
    help="The buffer ringcast uses; or, to compare, the RingBuffer note's, or a naive one.",
)
@click.option("--unguarded", is_flag=True, help="Let scenario E have its second remover.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def ring(name: str, variant: str, unguarded: bool, as_json: bool) -> None:
    """Explore the concurrent ring buffer: many adders, one remover.

    Exits with 1 if a violation was found or an exploration was cut short.

    \b
    Examples:
      ringcast explore ring
      ringcast explore ring --variant note --scenario B
      ringcast explore ring --scenario E --unguarded
    """
    scenarios = _chosen(name, variant, unguarded)
    reports = []
    for scenario in scenarios:
        report = explore_ring(scenario, VARIANTS[variant])
        reports.append(report)
        if not as_json:
            _print_report(scenario, report)
    if as_json:
        rows = [_as_row(*pair) for pair in zip(scenarios, reports, strict=True)]
        click.echo(json.dumps({"variant": variant, "scenarios": rows}, indent=2))
    if any(report.violations or not report.complete for report in reports):
        sys.exit(1)


def _chosen(name: str, variant: str, unguarded: bool) -> list[Scenario]:
    if unguarded:
        if name != "E":
            raise click.UsageError("--unguarded is for --scenario E only")
        return [UNGUARDED_E]
    if variant == "real":
        return list(SCENARIOS.values()) if name == "all" else [SCENARIOS[name]]
    if name == "all":
        comparable = SCENARIOS.values()
        return [s for s in comparable if s.name != "E" and not s.real_only]
    if name == "E":
        raise click.UsageError(f"the {variant} variant refuses nobody: add --unguarded")
    if SCENARIOS[name].real_only:
        raise click.UsageError(f"scenario {name} needs operations the {variant} variant lacks")
    return [SCENARIOS[name]]


def _print_report(scenario: Scenario, report: Report) -> None:
    click.echo(f"{scenario.name}  {scenario.description}")
    verdict = "no violation" if report.complete else "cut short: proves nothing"
    if report.violations:
        verdict = f"kinds of violation: {len(report.violations)}"
    counts = f"{report.states} states, {report.transitions} transitions"
    click.echo(f"   {counts}, {report.states_per_s:.0f} states/s; {verdict}")
    for violation in report.violations:
        click.echo(f"   VIOLATION {violation.kind}")
        for number, label in enumerate(violation.witness, 1):
            click.echo(f"   {number:4}  {label}")


def _as_row(scenario: Scenario, report: Report) -> dict[str, object]:
    return {
        "scenario": scenario.name,
        "description": scenario.description,
        "states": report.states,
        "transitions": report.transitions,
        "seconds": round(report.seconds, 3),
        "states_per_s": round(report.states_per_s),
        "complete": report.complete,
        "violations": [{"kind": v.kind, "witness": v.witness} for v in report.violations],
    }
