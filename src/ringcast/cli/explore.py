"""`ringcast explore`: exhaustive exploration, with a schedule for everything that goes wrong."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Protocol, TypeVar

import click

from ringcast.explore.ablations import ABLATIONS
from ringcast.explore.ring import COMPLETE, RINGS, UNGUARDED_E, VARIANTS, explore_ring
from ringcast.explore.scenarios import SCENARIOS
from ringcast.explore.system import explore_scenario

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ringcast.explore.explorer import Report
    from ringcast.explore.ring import Scenario as RingScenario
    from ringcast.explore.system import Scenario

INCOMPLETE = "NOT COMPLETE: silence proves nothing"


class Described(Protocol):
    """A scenario, whatever it is a scenario of."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...


F = TypeVar("F", bound="Callable[..., object]")


_seconds_option = click.option(
    "--seconds", type=click.FloatRange(min=0), default=300, show_default=True, help="For all."
)
_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
_window_option = click.option(
    "--capacity",
    type=click.IntRange(1, 2),
    help="Messages in a window, for all scenarios. Two take many times longer: raise --seconds.",
)


def _scenario_option(
    names: Iterable[str], help_text: str = "What may happen; each is described in the output."
) -> Callable[[F], F]:
    choice = click.Choice([*names, "all"])
    return click.option(
        "--scenario", "name", type=choice, default="all", show_default=True, help=help_text
    )


def _without_option(
    rules: Iterable[str], help_text: str = "Take a rule away on purpose, to see what it prevents."
) -> Callable[[F], F]:
    return click.option("--without", type=click.Choice(list(rules)), help=help_text)


@click.group()
def explore() -> None:
    """Run every possible interleaving of a small scenario, and report what goes wrong.

    Example: ringcast explore ring
    """


@explore.command()
@_scenario_option(RINGS, "Which threads run at the same time; each is described in the output.")
@click.option(
    "--variant",
    type=click.Choice(list(VARIANTS)),
    default="real",
    show_default=True,
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
    reports = []
    for scenario in scenarios:
        # Without its lock it goes wrong in thousands of ways: the first is enough.
        is_unlocked = variant == "unlocked"
        report = explore_ring(scenario, VARIANTS[variant], stop_at_violation=is_unlocked)
        reports.append(report)
        if not as_json:
            _print_report(scenario, report)
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


@explore.command()
@click.option(
    "--capacity",
    type=click.IntRange(1, 2),
    default=1,
    show_default=True,
    help="Messages in a window. Two take many times longer: raise --seconds.",
)
@click.option(
    "--messages",
    type=click.IntRange(2, 4),
    default=2,
    show_default=True,
    help="How many are sent, by all senders together.",
)
@click.option("--joiner/--no-joiner", default=None, help="Only with, or only without a join.")
@_without_option(ABLATIONS["multicast"])
@_seconds_option
@_json_option
def multicast(
    capacity: int,
    messages: int,
    joiner: bool | None,
    without: str | None,
    seconds: float,
    as_json: bool,
) -> None:
    """Explore reliable multicast: small groups of real members, every order of events.

    Exits with 1 if a violation was found or an exploration was not completed.

    \b
    Examples:
      ringcast explore multicast
      ringcast explore multicast --no-joiner --capacity 2 --seconds 3600
      ringcast explore multicast --without reack
    """
    if without and joiner not in (None, without == "freeze"):
        raise click.UsageError(f"--without {without} needs the opposite of that joiner option")
    chosen = [
        replace(group, capacity=capacity, messages=messages // len(group.senders))
        for group in _chosen("multicast", "all", without)
        if joiner in (None, bool(group.joiners))
    ]
    _explore_all("multicast", chosen, without, seconds, as_json)


@explore.command()
@_scenario_option(SCENARIOS["join"])
@click.option(
    "--messages",
    type=click.IntRange(1, 4),
    default=2,
    show_default=True,
    help="How many are sent meanwhile. Each more takes several times longer.",
)
@_without_option(
    ABLATIONS["join"], "Take the digest before all have the view, to see what that does."
)
@_seconds_option
@_json_option
def join(name: str, messages: int, without: str | None, seconds: float, as_json: bool) -> None:
    """Explore how a member joins: views made by real members, every order of events.

    Exits with 1 if a violation was found or an exploration was not completed.

    \b
    Examples:
      ringcast explore join
      ringcast explore join --scenario coordinator --messages 1
      ringcast explore join --without freeze
    """
    chosen = [replace(each, messages=messages) for each in _chosen("join", name, without)]
    _explore_all("join", chosen, without, seconds, as_json)


@explore.command()
@_scenario_option(SCENARIOS["unicast"])
@_window_option
@_without_option(ABLATIONS["unicast"])
@_seconds_option
@_json_option
def unicast(
    name: str, capacity: int | None, without: str | None, seconds: float, as_json: bool
) -> None:
    """Explore reliable unicast: two real members, every order of events.

    Exits with 1 if a violation was found or an exploration was not completed.

    \b
    Examples:
      ringcast explore unicast
      ringcast explore unicast --scenario restart
      ringcast explore unicast --without ack-conn
    """
    _explore_pair("unicast", name, capacity, without, seconds, as_json)


@explore.command()
@_scenario_option(SCENARIOS["sync"])
@_window_option
@_without_option(ABLATIONS["unicast"])
@_seconds_option
@_json_option
def sync(
    name: str, capacity: int | None, without: str | None, seconds: float, as_json: bool
) -> None:
    """Explore what happens when a receiver has lost its window and asks the sender.

    Exits with 1 if a violation was found or an exploration was not completed.

    \b
    Examples:
      ringcast explore sync
      ringcast explore sync --scenario operator
      ringcast explore sync --without tombstone
    """
    _explore_pair("sync", name, capacity, without, seconds, as_json)


def _explore_pair(
    command: str,
    name: str,
    capacity: int | None,
    without: str | None,
    seconds: float,
    as_json: bool,
) -> None:
    chosen = _chosen(command, name, without)
    if capacity is not None:
        chosen = [replace(scenario, capacity=capacity) for scenario in chosen]
    _explore_all(command, chosen, without, seconds, as_json)


@explore.command()
@_scenario_option(SCENARIOS["uniform"])
@_without_option(ABLATIONS["uniform"])
@_seconds_option
@_json_option
def uniform(name: str, without: str | None, seconds: float, as_json: bool) -> None:
    """Explore uniform delivery: members that crash, join and leave at any step.

    Exits with 1 if a violation was found or an exploration was not completed.

    \b
    Examples:
      ringcast explore uniform
      ringcast explore uniform --scenario "two crashes"
      ringcast explore uniform --without restart
    """
    _explore_all("uniform", _chosen("uniform", name, without), without, seconds, as_json)


def _chosen(command: str, name: str, without: str | None) -> list[Scenario]:
    """A rule taken away is missed in one scenario, unless another is asked for."""
    if name != "all":
        return [SCENARIOS[command][name]]
    return [ABLATIONS[command][without].scenario] if without else [*SCENARIOS[command].values()]


def _explore_all(
    command: str, scenarios: Sequence[Scenario], without: str | None, seconds: float, as_json: bool
) -> None:
    """One after the other, as long as there is time; then the total, and the exit status."""
    ends_at = monotonic() + seconds
    protocol = ABLATIONS[command][without].protocol if without else None
    reports = []
    for scenario in scenarios:
        left = max(0.0, ends_at - monotonic())
        is_enough = without is not None
        report = explore_scenario(scenario, protocol, max_seconds=left, stop_at_violation=is_enough)
        reports.append(report)
        if not as_json:
            _print_report(scenario, report)
    total = _total(reports)
    if as_json:
        _print_json({"without": without}, scenarios, reports, total)
    else:
        click.echo(
            f"total: {total['states']} states, {total['states_per_s']} states/s; "
            f"violations: {total['violations']}; "
            + ("complete" if total["complete"] else INCOMPLETE)
        )
    if total["violations"] or not total["complete"]:
        sys.exit(1)


def _total(reports: Sequence[Report]) -> dict[str, int | bool]:
    states = sum(report.states for report in reports)
    seconds = sum(report.seconds for report in reports)
    return {
        "states": states,
        "states_per_s": round(states / max(seconds, 1e-9)),
        "violations": sum(len(report.violations) for report in reports),
        "complete": all(report.complete for report in reports),
    }


def _print_report(scenario: Described, report: Report) -> None:
    click.echo(f"{scenario.name}  {scenario.description}")
    verdict = "no violation" if report.complete else INCOMPLETE
    if report.violations:
        verdict = f"kinds of violation: {len(report.violations)}"
    counts = f"{report.states} states, {report.transitions} transitions"
    click.echo(f"   {counts}, {report.states_per_s:.0f} states/s; {verdict}")
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
    rows = [_as_row(*pair) for pair in zip(scenarios, reports, strict=True)]
    click.echo(json.dumps({**what, "scenarios": rows, **total}, indent=2))


def _as_row(scenario: Described, report: Report) -> dict[str, object]:
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
