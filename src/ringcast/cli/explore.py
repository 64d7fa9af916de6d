"""`ringcast explore`: exhaustive exploration, with a schedule for everything that goes wrong."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import click

from ringcast.cli.words import SCREEN, is_told, json_file_option, note
from ringcast.explore.ablations import ABLATIONS
from ringcast.explore.explorer import Report
from ringcast.explore.ring import COMPLETE, RINGS, UNGUARDED_E, VARIANTS, explore_ring
from ringcast.explore.ring import Scenario as RingScenario
from ringcast.explore.scenarios import SCENARIOS
from ringcast.explore.view_steps import Script
from ringcast.texts import counted

NOTE_EVERY_S = 5.0
INCOMPLETE = "NOT COMPLETE: silence proves nothing"


def _option(*names: str, **terms: Any) -> Callable[[Any], Any]:
    return click.option(*names, show_default="default" in terms, **terms)


def _scenario_option(
    names: Iterable[str], help_text: str = "What may happen; each is described in the output."
) -> Callable[[Any], Any]:
    return _one_of("--scenario", "name", names=[*names, "all"], default="all", help_text=help_text)


def _one_of(
    *flags: str, names: Sequence[str], help_text: str, **terms: Any
) -> Callable[[Any], Any]:
    """Many names stand in the help, which is folded, and not behind the option."""
    text = f"{help_text} One of: {'; '.join(names)}."
    return _option(*flags, type=click.Choice(names), metavar="NAME", help=text, **terms)


@click.group(short_help="Try every order of events in small scenarios.")
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
@json_file_option
def ring(name: str, variant: str, unguarded: bool, json_file: Path | None) -> None:
    """Explore the concurrent ring buffer: many adders, one remover.

    Exits with 1 if a violation was found or an exploration was cut short.

    \b
    Examples:
      ringcast explore ring
      ringcast explore ring --variant locked
      ringcast explore ring --variant note --scenario B
      ringcast explore ring --scenario E --unguarded
    """
    # Without its lock it goes wrong in thousands of ways: the first is enough.
    is_unlocked = variant == "unlocked"
    _explore_each(
        {"variant": variant},
        _chosen_rings(name, variant, unguarded),
        lambda scenario, **watched: explore_ring(
            scenario, VARIANTS[variant], stop_at_violation=is_unlocked, **watched
        ),
        json_file,
        is_summed=False,
    )


def _chosen_rings(name: str, variant: str, unguarded: bool) -> list[RingScenario]:
    if unguarded:
        if name != "E":
            raise click.UsageError("--unguarded is for --scenario E only")
        return [UNGUARDED_E]
    if variant in COMPLETE:
        return list(RINGS.values()) if name == "all" else [RINGS[name]]
    if name == "all":
        return [each for each in RINGS.values() if each.name != "E" and not each.real_only]
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


def _change_options(command: str, least: int, what: str) -> list[Callable[[Any], Any]]:
    often = f"{what}, instead of what the scenario says. Each more takes a hundred times longer."
    crashes = "How many members may crash there, instead."
    return [
        _scenario_option(SCENARIOS[command]),
        _option("--proposals", type=click.IntRange(least, 3), help=often),
        _option("--crashes", type=click.IntRange(0, 2), help=crashes),
    ]


_COMMANDS: dict[str, tuple[str, str, int, list[Callable[[Any], Any]]]] = {
    "multicast": (
        "Explore reliable multicast in one view: small groups of real members, every order of "
        "events.",
        "; --scenario loss --capacity 2 --seconds 3600; --without reack",
        300,
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
        300,
        [_scenario_option(SCENARIOS["unicast"]), _capacity_option],
    ),
    "sync": (
        "Explore a receiver that has lost its window and asks the sender.",
        "; --scenario operator; --without tombstone",
        300,
        [_scenario_option(SCENARIOS["sync"]), _capacity_option],
    ),
    "views": (
        "Explore how views change: crashes, joins, merges, leaves, at every step.\n\nIn the first "
        "scenarios any member proposes any set at any time, and every order of events is tried. In "
        "the others whole nodes go through one change, which is tried again for every datagram and "
        "everything that may befall it.",
        ' --proposals 1; --scenario "state transfer"; --without freeze',
        900,
        _change_options("views", 1, "How many views are proposed where anybody may"),
    ),
    "total": (
        "Explore one order of total messages: crashes and view changes at every step.\n\nIn the "
        "first scenarios any members change their view at any time, and every order of events is "
        "tried. In the others whole nodes go through one change, which is tried again for every "
        "datagram and everything that may befall it.",
        ' --scenario "one origin"; --scenario "sequencer dies"; --without gate',
        1800,
        _change_options("total", 0, "How often views change where anybody may change them"),
    ),
}
"""What each is for, arguments for examples, how long it may take, and its own options."""


def _add_command(command: str) -> None:
    summary, examples, most_s, options = _COMMANDS[command]
    without_help = "Take a rule away on purpose, to see what it prevents."

    def run(without: str | None, seconds: float, json_file: Path | None, **terms: Any) -> None:
        ends_at = monotonic() + seconds  # for all together
        parts = ABLATIONS[command][without].parts if without else {}
        _explore_each(
            {"without": without},
            _chosen(command, without, **terms),
            lambda scenario, **watched: scenario.explore(
                **parts,
                **watched,
                max_seconds=max(0.0, ends_at - monotonic()),
                stop_at_violation=without is not None,
            ),
            json_file,
            ends_at=ends_at,
            is_everything=without is None and terms["name"] == "all",
        )

    run.__doc__ = (
        f"{summary}\n\nExits with 1 if a violation was found, an exploration was not completed, or "
        "all scenarios together gave some rule nothing to judge."
        "\n\n\b\nExamples:"
        + "".join(f"\n  ringcast explore {command}{each}" for each in examples.split(";"))
    )
    for option in reversed(
        [
            *options,
            _one_of("--without", names=[*ABLATIONS[command]], help_text=without_help),
            _option("--seconds", type=click.FloatRange(min=0), default=most_s, help="For all."),
            json_file_option,
        ]
    ):
        run = option(run)
    explore.command(command, short_help=summary.partition(":")[0].rstrip(".") + ".")(run)


for _command in _COMMANDS:
    _add_command(_command)


def _chosen(
    command: str, without: str | None, name: str, messages: int | None = None, **terms: int | None
) -> list[Any]:
    """A rule taken away is missed in one scenario, unless another is asked for."""
    chosen = [*SCENARIOS[command].values()]
    if name != "all":
        chosen = [SCENARIOS[command][name]]
    elif without:
        chosen = [ABLATIONS[command][without].scenario]
    if messages:
        chosen = [replace(each, messages=messages // len(each.senders)) for each in chosen]
    given: dict[str, Any] = {term: each for term, each in terms.items() if each is not None}
    return [each if isinstance(each, Script) else replace(each, **given) for each in chosen]


def _explore_each(
    what: dict[str, object],
    scenarios: Sequence[Any],
    explore_one: Callable[..., Report],
    json_file: Path | None,
    *,
    is_summed: bool = True,
    ends_at: float | None = None,
    is_everything: bool = False,
) -> None:
    """One after the other, each with its report; then the total, and the exit status. In everything
    that a command explores each rule has to have something to judge."""
    reports: list[Report] = []
    for at, scenario in enumerate(scenarios, 1):
        note(f"exploring {at} of {len(scenarios)}: {scenario.name} …")
        reports.append(explore_one(scenario, on_progress=_Progress(ends_at)))
        if json_file != SCREEN:
            _print_report(scenario, reports[-1])
    states = sum(report.states for report in reports)
    total = {
        "states": states,
        "states_per_s": round(states / max(sum(report.seconds for report in reports), 1e-9)),
        "violations": sum(len(report.violations) for report in reports),
        "complete": all(report.complete for report in reports),
    }
    judged = Counter({rule: 0 for report in reports for rule in report.premises})
    for report in reports:
        judged.update(report.premises)
    unjudged = [rule for rule, count in sorted(judged.items()) if is_everything and not count]
    rows = list(map(_in_json, scenarios, reports))
    told = {**what, "scenarios": rows, **(total if is_summed else {})}
    if not is_told(told, json_file) and is_summed:
        click.echo(
            f"total: {counted(states, 'state')}, {total['states_per_s']} states/s; violations: "
            f"{total['violations']}; {'complete' if total['complete'] else INCOMPLETE}"
        )
        if unjudged:
            click.echo(f"never judged: {', '.join(unjudged)}")
    if total["violations"] or not total["complete"] or unjudged:
        sys.exit(1)


class _Progress:
    """Tells every few seconds how far an exploration is, where somebody watches. Nobody knows how
    many states there are before all are found: those that are known take so long at least, at the
    pace so far. When it ends at the latest is known."""

    def __init__(self, ends_at: float | None) -> None:
        self._ends_at = ends_at
        self._began_at = monotonic()
        self._next_at = self._began_at + NOTE_EVERY_S

    def __call__(self, done: int, known: int) -> None:
        now = monotonic()
        if now < self._next_at:
            return
        self._next_at = now + NOTE_EVERY_S
        least_s = known * (now - self._began_at) / max(done, 1)
        left = f"about {least_s:.0f} s or more to go"
        if self._ends_at is not None:
            most_s = self._ends_at - now
            left = f"about {min(least_s, most_s):.0f} to {most_s:.0f} s to go"
        note(f"   {done} done, {known} more known so far; {left}")


def _print_report(scenario: Any, report: Report) -> None:
    click.echo(f"{scenario.name}  {scenario.description}")
    verdict = "no violation" if report.complete else INCOMPLETE
    if report.violations:
        verdict = f"kinds of violation: {len(report.violations)}"
    counts = f"{counted(report.states, 'state')}, {counted(report.transitions, 'transition')}"
    if report.runs:
        counts = f"{counted(report.runs, 'run')} of together {counted(report.states, 'step')}"
    pace = f"{report.seconds:.1f} s, {report.states_per_s:.0f} states/s"
    click.echo(f"   {counts}, {pace}; {verdict}")
    if report.premises:
        judged = (f"{rule} {count}" for rule, count in sorted(report.premises.items()))
        click.echo(f"   judged: {', '.join(judged)}")
    for violation in report.violations:
        click.echo(f"   VIOLATION {violation.kind}")
        for number, label in enumerate(violation.witness, 1):
            click.echo(f"   {number:4}  {label}")


def _in_json(scenario: Any, report: Report) -> dict[str, object]:
    return {
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
