"""`ringcast explore`: exhaustive exploration, with a schedule for everything that goes wrong."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from ringcast.explore.ablations import ABLATIONS
from ringcast.explore.ring import COMPLETE, RINGS, UNGUARDED_E, VARIANTS, explore_ring
from ringcast.explore.scenarios import SCENARIOS
from ringcast.explore.system import explore_scenario
from ringcast.explore.view_ablations import ABLATIONS as VIEW_ABLATIONS
from ringcast.explore.view_scenarios import SCENARIOS as VIEW_CHANGES
from ringcast.explore.view_scenarios import explore_views
from ringcast.explore.view_world import Scenario as ViewScenario

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ringcast.explore.explorer import Report
    from ringcast.explore.ring import Scenario as RingScenario
    from ringcast.explore.system import Scenario
    from ringcast.explore.view_steps import Script

Described: TypeAlias = "RingScenario | Scenario | ViewScenario | Script"
INCOMPLETE = "NOT COMPLETE: silence proves nothing"


def _option(*names: str, **terms: Any) -> Callable[[Any], Any]:
    return click.option(*names, show_default="default" in terms, **terms)


def _scenario_option(
    names: Iterable[str], help_text: str = "What may happen; each is described in the output."
) -> Callable[[Any], Any]:
    choice = click.Choice([*names, "all"])
    return _option("--scenario", "name", type=choice, default="all", help=help_text)


_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@click.group()
def explore() -> None:
    """Run every possible interleaving of a small scenario, and report what goes wrong.

    Example: ringcast explore ring
    """


@explore.command()
@_scenario_option(RINGS, "Which threads run at the same time; each is described in the output.")
@_option(
    "--variant",
    type=click.Choice(list(VARIANTS)),
    default="real",
    help="The buffer ringcast uses; with the steps that a Python without a GIL may divide, behind "
    "its lock or without one; or, to compare, the RingBuffer note's, or a naive one.",
)
@click.option("--unguarded", is_flag=True, help="Let scenario E have its second remover.")
@_json_option
def ring(name: str, variant: str, unguarded: bool, as_json: bool) -> None:
    """Explore the concurrent ring buffer: many adders, one remover.

    Exits with 1 if a violation was found or an exploration was cut short.

    \b
    Examples:
      ringcast explore ring
      ringcast explore ring --variant locked
      ringcast explore ring --variant note --scenario B
      ringcast explore ring --scenario E --unguarded
    """
    scenarios = _chosen_rings(name, variant, unguarded)
    # Without its lock it goes wrong in thousands of ways: the first is enough.
    is_unlocked = variant == "unlocked"
    reports = _explore_each(
        scenarios,
        lambda scenario: explore_ring(scenario, VARIANTS[variant], stop_at_violation=is_unlocked),
        as_json,
    )
    if as_json:
        _print_json({"variant": variant}, scenarios, reports, {})
    if any(report.violations or not report.complete for report in reports):
        sys.exit(1)


def _chosen_rings(name: str, variant: str, unguarded: bool) -> list[RingScenario]:
    if unguarded:
        if name != "E":
            raise click.UsageError("--unguarded is for --scenario E only")
        return [UNGUARDED_E]
    if variant in COMPLETE:
        return list(RINGS.values()) if name == "all" else [RINGS[name]]
    if name == "all":
        comparable = RINGS.values()
        return [s for s in comparable if s.name != "E" and not s.real_only]
    if name == "E":
        raise click.UsageError(f"the {variant} variant refuses nobody: add --unguarded")
    if RINGS[name].real_only:
        raise click.UsageError(f"scenario {name} needs operations the {variant} variant lacks")
    return [RINGS[name]]


_capacity_option = _option(
    "--capacity",
    type=click.IntRange(1, 2),
    help="Messages in a window, for all scenarios. Two take many times longer: raise --seconds.",
)

_COMMANDS: dict[str, tuple[str, str, list[Callable[[Any], Any]]]] = {
    "multicast": (
        "Explore reliable multicast in one view: small groups of real members, every order of "
        "events.",
        "; --scenario loss --capacity 2 --seconds 3600; --without reack",
        [
            _scenario_option(SCENARIOS["multicast"]),
            _option(
                "--capacity",
                type=click.IntRange(1, 2),
                default=1,
                help="Messages in a window. Two take many times longer: raise --seconds.",
            ),
            _option(
                "--messages",
                type=click.IntRange(2, 4),
                default=2,
                help="How many are sent, by all senders together.",
            ),
        ],
    ),
    "unicast": (
        "Explore reliable unicast: two real members, every order of events.",
        "; --scenario restart; --without ack-conn",
        [_scenario_option(SCENARIOS["unicast"]), _capacity_option],
    ),
    "sync": (
        "Explore what happens when a receiver has lost its window and asks the sender.",
        "; --scenario operator; --without tombstone",
        [_scenario_option(SCENARIOS["sync"]), _capacity_option],
    ),
}
"""What each is for, arguments for examples, and its own options."""


def _add_command(command: str) -> None:
    summary, examples, options = _COMMANDS[command]
    without_help = "Take a rule away on purpose, to see what it prevents."

    def run(without: str | None, seconds: float, as_json: bool, **terms: Any) -> None:
        chosen = _chosen(command, without, **terms)
        changed = ABLATIONS[command][without].protocol if without else None
        _explore_all(chosen, explore_scenario, changed, without, seconds, as_json)

    run.__doc__ = (
        f"{summary}\n\nExits with 1 if a violation was found or an exploration was not completed."
        "\n\n\b\nExamples:"
        + "".join(f"\n  ringcast explore {command}{each}" for each in examples.split(";"))
    )
    for option in reversed(
        [
            *options,
            _option("--without", type=click.Choice([*ABLATIONS[command]]), help=without_help),
            _option("--seconds", type=click.FloatRange(min=0), default=300, help="For all."),
            _json_option,
        ]
    ):
        run = option(run)
    explore.command(command)(run)


for _command in _COMMANDS:
    _add_command(_command)


@explore.command("views")
@_scenario_option(VIEW_CHANGES)
@click.option(
    "--proposals",
    type=click.IntRange(1, 3),
    help="How many views are proposed where anybody may, instead of what the scenario says. Each "
    "more takes a hundred times longer.",
)
@click.option(
    "--crashes", type=click.IntRange(0, 2), help="How many members may crash there, instead."
)
@click.option(
    "--without",
    type=click.Choice([*VIEW_ABLATIONS]),
    help="Take a rule away on purpose, to see what it prevents.",
)
@_option("--seconds", type=click.FloatRange(min=0), default=900, help="For all.")
@_json_option
def views(
    name: str,
    proposals: int | None,
    crashes: int | None,
    without: str | None,
    seconds: float,
    as_json: bool,
) -> None:
    """Explore how views change: crashes, joins, merges, leaves, at every step.

    In the first scenarios any member proposes any set at any time, and every order of events is
    tried. In the others whole nodes go through one change, which is tried again for every datagram
    and everything that may befall it.

    Exits with 1 if a violation was found or an exploration was not completed.

    \b
    Examples:
      ringcast explore views --proposals 1
      ringcast explore views --scenario "state transfer"
      ringcast explore views --without freeze
    """
    rule = VIEW_ABLATIONS[without] if without else None
    chosen = list(VIEW_CHANGES.values()) if name == "all" else [VIEW_CHANGES[name]]
    if rule is not None and name == "all":
        chosen = [rule.scenario]
    bounds = {"proposals": proposals, "crashes": crashes}
    given = {term: bound for term, bound in bounds.items() if bound is not None}
    chosen = [
        each._replace(**given) if isinstance(each, ViewScenario) else each  # type: ignore[arg-type]
        for each in chosen
    ]
    changed = rule.parts if rule else None
    _explore_all(chosen, explore_views, changed, without, seconds, as_json)


def _chosen(
    command: str,
    without: str | None,
    name: str = "all",
    capacity: int | None = None,
    messages: int | None = None,
) -> list[Scenario]:
    """A rule taken away is missed in one scenario, unless another is asked for."""
    if name != "all":
        chosen = [SCENARIOS[command][name]]
    elif without:
        chosen = [ABLATIONS[command][without].scenario]
    else:
        chosen = [*SCENARIOS[command].values()]
    return [
        replace(
            each,
            capacity=capacity or each.capacity,
            messages=messages // len(each.senders) if messages else each.messages,
        )
        for each in chosen
    ]


def _explore_each(
    scenarios: Sequence[Any], explore_one: Callable[[Any], Report], as_json: bool
) -> list[Report]:
    reports = []
    for scenario in scenarios:
        reports.append(explore_one(scenario))
        if not as_json:
            _print_report(scenario, reports[-1])
    return reports


def _explore_all(
    scenarios: Sequence[Described],
    explore_one: Callable[..., Report],
    changed: object,
    without: str | None,
    seconds: float,
    as_json: bool,
) -> None:
    """One after the other, as long as there is time; `changed` is what a rule taken away leaves.
    The total, and the exit status."""
    ends_at = monotonic() + seconds
    reports = _explore_each(
        scenarios,
        lambda scenario: explore_one(
            scenario,
            changed,
            max_seconds=max(0.0, ends_at - monotonic()),
            stop_at_violation=without is not None,
        ),
        as_json,
    )
    states = sum(report.states for report in reports)
    total = {
        "states": states,
        "states_per_s": round(states / max(sum(report.seconds for report in reports), 1e-9)),
        "violations": sum(len(report.violations) for report in reports),
        "complete": all(report.complete for report in reports),
    }
    if as_json:
        _print_json({"without": without}, scenarios, reports, total)
    else:
        click.echo(
            f"total: {states} states, {total['states_per_s']} states/s; violations: "
            f"{total['violations']}; {'complete' if total['complete'] else INCOMPLETE}"
        )
    if total["violations"] or not total["complete"]:
        sys.exit(1)


def _print_report(scenario: Described, report: Report) -> None:
    click.echo(f"{scenario.name}  {scenario.description}")
    verdict = "no violation" if report.complete else INCOMPLETE
    if report.violations:
        verdict = f"kinds of violation: {len(report.violations)}"
    counts = f"{report.states} states, {report.transitions} transitions"
    if report.runs:
        counts = f"{report.runs} runs of together {report.states} steps"
    pace = f"{report.seconds:.1f} s, {report.states_per_s:.0f} states/s"
    click.echo(f"   {counts}, {pace}; {verdict}")
    if report.premises:
        judged = (f"{rule} {count}" for rule, count in sorted(report.premises.items()))
        click.echo(f"   judged: {', '.join(judged)}")
    for violation in report.violations:
        click.echo(f"   VIOLATION {violation.kind}")
        for number, label in enumerate(violation.witness, 1):
            click.echo(f"   {number:4}  {label}")


def _print_json(
    what: dict[str, object],
    scenarios: Sequence[Described],
    reports: Sequence[Report],
    total: dict[str, int | bool],
) -> None:
    rows = [
        {
            "scenario": scenario.name,
            "description": scenario.description,
            "states": report.states,
            "transitions": report.transitions,
            "seconds": round(report.seconds, 3),
            "states_per_s": round(report.states_per_s),
            "runs": report.runs,
            "premises": dict(report.premises),
            "complete": report.complete,
            "violations": [{"kind": v.kind, "witness": v.witness} for v in report.violations],
        }
        for scenario, report in zip(scenarios, reports, strict=True)
    ]
    click.echo(json.dumps({**what, "scenarios": rows, **total}, indent=2))
