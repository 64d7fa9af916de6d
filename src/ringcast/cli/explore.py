"""`ringcast explore`: exhaustive exploration, with a schedule for everything that goes wrong."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Protocol, TypeVar

import click

from ringcast.explore.ablations import ABLATIONS
from ringcast.explore.join import SCENARIOS as JOINS
from ringcast.explore.join import WithoutFreeze, explore_join
from ringcast.explore.multicast import SCENARIOS as GROUPS
from ringcast.explore.multicast import explore_multicast
from ringcast.explore.ring import COMPLETE, SCENARIOS, UNGUARDED_E, VARIANTS, explore_ring
from ringcast.explore.unicast import SYNC_SCENARIOS, UNICAST_SCENARIOS, explore_unicast
from ringcast.explore.unicast_ablations import UNICAST_ABLATIONS
from ringcast.explore.uniform import SCENARIOS as UNIFORM
from ringcast.explore.uniform import explore_uniform
from ringcast.explore.uniform_ablations import UNIFORM_ABLATIONS
from ringcast.protocols.membership import Membership
from ringcast.protocols.multicast import ReliableMulticast
from ringcast.protocols.unicast import ReliableUnicast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ringcast.explore.explorer import Report
    from ringcast.explore.multicast import Scenario as Group
    from ringcast.explore.ring import Scenario
    from ringcast.explore.unicast import Scenario as Connection


class Described(Protocol):
    """A scenario, whatever it is a scenario of."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...


D = TypeVar("D", bound=Described)
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
@_scenario_option(SCENARIOS, "Which threads run at the same time; each is described in the output.")
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
    scenarios = _chosen(name, variant, unguarded)
    reports = []
    for scenario in scenarios:
        # Without its lock it goes wrong in thousands of ways: the first is enough.
        is_unlocked = variant == "unlocked"
        report = explore_ring(scenario, VARIANTS[variant], stop_at_violation=is_unlocked)
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
    if variant in COMPLETE:
        return list(SCENARIOS.values()) if name == "all" else [SCENARIOS[name]]
    if name == "all":
        comparable = SCENARIOS.values()
        return [s for s in comparable if s.name != "E" and not s.real_only]
    if name == "E":
        raise click.UsageError(f"the {variant} variant refuses nobody: add --unguarded")
    if SCENARIOS[name].real_only:
        raise click.UsageError(f"scenario {name} needs operations the {variant} variant lacks")
    return [SCENARIOS[name]]


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
@_without_option([*ABLATIONS, "freeze"])
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
    groups = [
        replace(group, capacity=capacity, messages=messages)
        for group in _chosen_groups(joiner, without)
    ]
    protocol = ABLATIONS.get(without or "", ReliableMulticast)
    _explore_all(
        groups,
        lambda group, left: explore_multicast(group, protocol, max_seconds=left),
        without=without,
        seconds=seconds,
        as_json=as_json,
    )


def _chosen_groups(joiner: bool | None, without: str | None) -> list[Group]:
    """A rule taken away is missed in one scenario; nothing is learned from the others."""
    if without is None:
        is_wanted = (True, False) if joiner is None else (joiner,)
        return [group for group in GROUPS.values() if group.has_joiner in is_wanted]
    if joiner is not None and joiner != (without == "freeze"):
        raise click.UsageError(f"--without {without} needs the opposite of that joiner option")
    if without == "freeze":
        return [replace(GROUPS["join"], digest_first=True)]
    return [GROUPS["loss"]]


@explore.command()
@_scenario_option(JOINS)
@click.option(
    "--messages",
    type=click.IntRange(1, 4),
    default=2,
    show_default=True,
    help="How many are sent meanwhile. Each more takes several times longer.",
)
@_without_option(["freeze"], "Take the digest before all have the view, to see what that does.")
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
    if name == "all" and without:
        name = "quiet"  # it goes wrong even then
    chosen = list(JOINS.values()) if name == "all" else [JOINS[name]]
    protocol = WithoutFreeze if without else Membership
    _explore_all(
        [replace(scenario, messages=messages) for scenario in chosen],
        lambda scenario, left: explore_join(scenario, protocol, max_seconds=left),
        without=without,
        seconds=seconds,
        as_json=as_json,
    )


@explore.command()
@_scenario_option(UNICAST_SCENARIOS)
@_window_option
@_without_option(UNICAST_ABLATIONS)
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
    _explore_ends(UNICAST_SCENARIOS, name, capacity, without, seconds, as_json)


@explore.command()
@_scenario_option(SYNC_SCENARIOS)
@_window_option
@_without_option(UNICAST_ABLATIONS)
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
    _explore_ends(SYNC_SCENARIOS, name, capacity, without, seconds, as_json)


def _explore_ends(
    scenarios: Mapping[str, Connection],
    name: str,
    capacity: int | None,
    without: str | None,
    seconds: float,
    as_json: bool,
) -> None:
    """A rule taken away is missed in one scenario, unless another is asked for."""
    protocol = ReliableUnicast
    chosen = list(scenarios.values()) if name == "all" else [scenarios[name]]
    if without is not None:
        ablation = UNICAST_ABLATIONS[without]
        protocol = ablation.unicast
        if name == "all":
            chosen = [ablation.scenario]
    if capacity is not None:
        chosen = [replace(scenario, capacity=capacity) for scenario in chosen]
    _explore_all(
        chosen,
        lambda scenario, left: explore_unicast(
            scenario, protocol, max_seconds=left, stop_at_violation=without is not None
        ),
        without=without,
        seconds=seconds,
        as_json=as_json,
    )


@explore.command()
@_scenario_option(UNIFORM)
@_without_option(UNIFORM_ABLATIONS)
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
    protocol = ReliableMulticast
    chosen = list(UNIFORM.values()) if name == "all" else [UNIFORM[name]]
    if without is not None:
        protocol, scenario = UNIFORM_ABLATIONS[without]
        if name == "all":
            chosen = [scenario]  # it is missed in one scenario; nothing is learned from the others
    _explore_all(
        chosen,
        lambda scenario, left: explore_uniform(
            scenario, protocol, max_seconds=left, stop_at_violation=without is not None
        ),
        without=without,
        seconds=seconds,
        as_json=as_json,
    )


def _explore_all(
    scenarios: Sequence[D],
    explore_one: Callable[[D, float], Report],
    *,
    without: str | None,
    seconds: float,
    as_json: bool,
) -> None:
    """One after the other, as long as there is time; then the total, and the exit status."""
    ends_at = monotonic() + seconds
    reports = []
    for scenario in scenarios:
        report = explore_one(scenario, max(0.0, ends_at - monotonic()))
        reports.append(report)
        if not as_json:
            _print_report(scenario, report)
    total = _total(reports)
    if as_json:
        rows = [_as_row(*pair) for pair in zip(scenarios, reports, strict=True)]
        click.echo(json.dumps({"without": without, "scenarios": rows, **total}, indent=2))
    else:
        click.echo(
            f"total: {total['states']} states, {total['states_per_s']} states/s; "
            f"violations: {total['violations']}; "
            + ("complete" if total["complete"] else "NOT COMPLETE: silence proves nothing")
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
    verdict = "no violation" if report.complete else "NOT COMPLETE: silence proves nothing"
    if report.violations:
        verdict = f"kinds of violation: {len(report.violations)}"
    counts = f"{report.states} states, {report.transitions} transitions"
    click.echo(f"   {counts}, {report.states_per_s:.0f} states/s; {verdict}")
    for violation in report.violations:
        click.echo(f"   VIOLATION {violation.kind}")
        for number, label in enumerate(violation.witness, 1):
            click.echo(f"   {number:4}  {label}")


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
