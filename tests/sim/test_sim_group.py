"""Seeded runs of whole nodes that find each other: none may violate anything, each is the same
everywhere, and broken nodes are caught."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from ringcast.protocols.membership import Membership, Timer
from seeded import MANY, check_determinism, check_nothing_failed, share, tally_of

from ringcast.cli.replay import replay
from ringcast.cli.simulate import simulate
from ringcast.model import View
from ringcast.node import build_node
from ringcast.protocols.multicast import ReliableMulticast
from ringcast.protocols.multicast_receiver import MulticastReceiver
from ringcast.protocols.multicast_sender import MulticastSender
from ringcast.rules.membership import LEAVE
from ringcast.sim.fleet import Tally, run_seeds
from ringcast.sim.options import FAULTS, Incident, Options, from_json
from ringcast.sim.plan import GROUP_TARGETS, expand
from ringcast.sim.runner import run
from ringcast.sim.shrink import Shrinker
from ringcast.trace import rows as trace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ringcast.core.effects import Effects
    from ringcast.model import Member
    from ringcast.node import Node
    from ringcast.trace.rows import Row

SEEDS = 40


def check(tally: Tally) -> None:
    check_nothing_failed(tally, "--protocol group")
    assert not tally.vacuous


@cache
def first_seeds() -> tuple[Tally, Counter[str]]:
    """What the runs said, and in how many of them what happened."""
    tally = Tally()
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        result = run(expand(seed, "group"))
        tally.add(result.summary)
        seen.update(happenings(result.trace.rows))
    return tally, seen


def happenings(rows: list[Row]) -> set[str]:
    found = set()
    views: dict[tuple[str, int], Row] = {}
    last: dict[tuple[str, int], str] = {}
    for row in rows:
        member = (row.node, row.inc)
        before = views.get(member)
        match row.event:
            case trace.VIEW:
                if before is not None and set(row.members) - set(before.members):
                    found.add("join")
                views[member] = row
            case trace.CRASH:
                found.add("crash")
                if before is not None and before.members[0] == row.member != before.members[-1]:
                    found.add("coordinator crash")
                last[member] = "crash"
            case trace.START if last.get((row.node, row.inc - 1)) == "crash":
                found.add("restart")
            case trace.PAUSE:
                last[member] = "pause"
            case trace.STOP if row.detail == "excluded":
                found.add("excluded")
                if last.get(member) == "pause":
                    found.add("pause and rejoin")
            case trace.STOP if last.get(member) == LEAVE and before is not None:
                found.add("leave")
            case event if event == LEAVE:
                last[member] = LEAVE
            case trace.OPEN if row.seqno:
                found.add("late window")
            case trace.TX if row.kind == "half":
                found.add("half a message fetched")
    return found


def test_the_first_seeds_violate_nothing() -> None:
    tally, _ = first_seeds()
    check(tally)


def test_members_join_leave_crash_and_come_back() -> None:
    _, seen = first_seeds()
    print(dict(seen))  # noqa: T201
    assert seen["join"] >= 0.50 * SEEDS
    assert seen["crash"] >= 0.30 * SEEDS
    assert seen["leave"] >= 0.20 * SEEDS
    for rare in ("coordinator crash", "restart", "pause and rejoin", "excluded", "late window"):
        assert seen[rare] >= 0.05 * SEEDS, rare


@pytest.mark.proof
def test_many_seeds_violate_nothing() -> None:
    tally = tally_of(run_seeds(MANY, protocol="group", jobs=os.cpu_count() or 1))
    check(tally)
    assert tally.deliveries / tally.seeds >= 200


# The same trace everywhere


def test_a_seed_gives_the_same_trace_under_any_hash_seed() -> None:
    check_determinism(3, "group")


@pytest.mark.proof
def test_many_seeds_give_the_same_traces_under_any_hash_seed() -> None:
    check_determinism(50, "group")


# What the seeds cover


def test_the_seeds_cover_what_they_should() -> None:
    options = [expand(seed, "group") for seed in range(1000)]

    def has(option: Options, *faults: str, what: str | None = None) -> bool:
        return any(
            incident.fault in faults and what in (None, incident.what)
            for incident in option.incidents
        )

    assert share([has(option, "F10", "F11") for option in options]) >= 0.30
    assert share([has(option, "F10", "F11", what="coordinator") for option in options]) >= 0.10
    assert share([has(option, "leave") for option in options]) >= 0.30
    assert share([option.initial < option.nodes or has(option, "F11") for option in options]) >= 0.5
    assert share([option.start_ms == 0 for option in options]) >= 0.20
    assert share([option.told < 1 for option in options]) >= 0.20
    assert share([option.hints for option in options]) >= 0.20
    assert share([option.warm_ms < 10 for option in options]) >= 0.20
    for option in options:
        assert not option.has("F18")
        for incident in option.incidents:
            if incident.fault in ("F7", "F8", "F9"):
                assert incident.ms <= option.suspect_ms / 2
    pauses = [
        incident.ms > option.suspect_ms + option.verify_ms
        for option in options
        for incident in option.incidents
        if incident.fault == "F12"
    ]
    assert 0.2 < share(pauses) < 0.8
    assert {option.target for option in options} == {*GROUP_TARGETS, "system"}
    for fault in FAULTS:
        if fault != "F18":
            assert 0.4 < share([option.has(fault) for option in options]) < 0.6


def test_options_survive_json() -> None:
    for seed in range(50):
        options = expand(seed, "group")
        assert from_json(options.to_json()) == options
        assert f"seed {seed} of group\n" in str(options)


# Single runs


def quiet(**changes: object) -> Options:
    """Three nodes that start at once, and no faults."""
    options = Options(seed=1, protocol="group", warm_ms=300.0, messages=10)
    return replace(options, **changes)  # type: ignore[arg-type]


def test_without_faults_every_message_is_delivered_by_everybody() -> None:
    result = run(quiet(messages=40, late_messages=2, pairs=((0, 1),)))
    assert result.failures == ()
    # All to all, and one to one; late messages go both ways.
    assert result.summary.deliveries == 3 * 3 * (40 + 2) + 40 + 2 + 2


def rows_of(result_rows: Sequence[Row], event: str, node: str) -> list[Row]:
    return [row for row in result_rows if row.event == event and row.node == node]


def test_whoever_leaves_is_out_and_said_so() -> None:
    leave = Incident(fault="leave", at_ms=50.0, nodes=(1,))
    rows = run(quiet(incidents=(leave,))).trace.rows
    (stop,) = rows_of(rows, trace.STOP, "B")
    assert stop.detail == "left"
    assert rows_of(rows, trace.VIEW, "A")[-1].members == ("A#1", "C#1")


def test_whoever_sleeps_for_too_long_comes_back_as_another() -> None:
    options = quiet(faults=("F12",), safety_ms=2000.0)
    pause = Incident(fault="F12", at_ms=50.0, ms=1000.0, nodes=(2,))
    result = run(replace(options, incidents=(pause,)))
    assert result.failures == ()
    rows = result.trace.rows
    assert [row.detail for row in rows_of(rows, trace.STOP, "C")] == ["excluded"]
    assert rows_of(rows, trace.VIEW, "A")[-1].members == ("A#1", "B#1", "C#2")


def test_a_refused_port_is_noticed_sooner() -> None:
    crash = Incident(fault="F10", at_ms=50.0, nodes=(2,))
    slow = quiet(faults=("F10",), incidents=(crash,), safety_ms=1000.0)

    def gone_after(options: Options) -> int:
        rows = run(options).trace.rows
        (death,) = rows_of(rows, trace.CRASH, "C")
        views = [row for row in rows_of(rows, trace.VIEW, "A") if row.mono_ns > death.mono_ns]
        view = next(row for row in views if "C#1" not in row.members)
        return view.mono_ns - death.mono_ns

    assert gone_after(replace(slow, hints=True)) < gone_after(slow) / 2


# Broken on purpose


class DigestBeforeAcks(Membership):
    """Lets joiners in before all old members hold on to what they will need (N9)."""

    def _spread(
        self,
        view: View,
        parts: tuple[View, ...],
        old: View,
        joiners: dict[Member, None],
        now: int,
        out: Effects,
    ) -> None:
        super()._spread(view, parts, old, joiners, now, out)
        if self.change is not None and self.change.joiners:
            self.change.awaiting.clear()
            self._progress(now, out)


class AcksOnce(Membership):
    """A lost acknowledgement is never made good."""

    def _on_view(
        self, source: Member, view: View, parts: tuple[View, ...], now: int, out: Effects
    ) -> None:
        if self.view is None or view.id != self.view.id:
            super()._on_view(source, view, parts, now, out)


class TurnsTheOrderRound(Membership):
    """Makes views in which the oldest member is not the first (V1)."""

    def _make_view(
        self,
        gone: set[Member],
        now: int,
        out: Effects,
        new: Sequence[Member] = (),
        parts: tuple[View, ...] | None = None,
    ) -> None:
        if self.view is not None:
            self.view = View(self.view.id, self.view.members[::-1])
        super()._make_view(gone, now, out, new, parts)


class NeverMeets(Membership):
    """Two groups that find each other stay apart (V-L1)."""

    def _meet(self, other: Member, size: int, now: int, out: Effects) -> None:
        return


class LooksForEver(Membership):
    """Neither joins nor starts a group (V-L2)."""

    def _decide(self, now: int, out: Effects) -> None:
        self._look(now, out)


class WaitsForEver(Membership):
    """Does not leave as long as somebody has not taken what it sent (V-L3)."""

    def _lose_patience(self, now: int, out: Effects) -> None:
        if self.is_leaving:
            self._timers.arm(Timer.PATIENCE, now + 10**9)
        else:
            super()._lose_patience(now, out)


class CountsJoinersAsServed(MulticastSender):
    """Lets go of messages though a joiner may still need them: no freeze (N5, N9)."""

    def set_members(self, view: View, reunited: Collection[Member], now: int, out: Effects) -> None:
        known = {member for member, _, _ in self.acks.entries()}
        super().set_members(view, reunited, now, out)
        for member in view:
            if member not in known:
                self.acks.update(member, self.window.high, self.window.high)


class WithoutFreeze(ReliableMulticast):
    sending = CountsJoinersAsServed


odd_node = build_node


@pytest.mark.parametrize(
    ("factory", "rules", "first_seed"),
    [
        (partial(odd_node, membership=DigestBeforeAcks), {"N9"}, 54),
        (partial(odd_node, multicast=WithoutFreeze), {"N5", "N9"}, 0),
        (partial(odd_node, membership=TurnsTheOrderRound), {"V1"}, 0),
        (partial(odd_node, membership=NeverMeets), {"V-L1"}, 0),
        (partial(odd_node, membership=LooksForEver), {"V-L2"}, 0),
    ],
)
def test_a_broken_node_is_caught(
    factory: Callable[..., Node], rules: set[str], first_seed: int
) -> None:
    for seed in range(first_seed, first_seed + 40):
        failures = run(expand(seed, "group"), factory).failures
        if any(failure.rule in rules for failure in failures):
            return
    pytest.fail(f"40 seeds show no violation of {rules}")


def excluded(options: Options, factory: Callable[..., Node] | None = None) -> int:
    rows = run(options, factory).trace.rows
    return sum(row.event == trace.STOP and row.detail == "excluded" for row in rows)


def test_a_lost_acknowledgement_costs_nobody_its_place() -> None:
    """Whoever does not say that it has a view is left out in the end; so it is said again."""
    join = Incident(fault="join", at_ms=100.0, nodes=(3,))
    options = [
        replace(
            quiet(nodes=4, capacities=(16,) * 4, tau_ms=(100.0,) * 4, safety_ms=1500.0),
            seed=seed,
            faults=("F2",),
            target="view_ack",
            target_loss=0.3,
            incidents=(join,),
        )
        for seed in range(6)
    ]
    assert not any(map(excluded, options))
    assert any(excluded(each, partial(odd_node, membership=AcksOnce)) for each in options)


def test_whoever_leaves_does_not_wait_for_ever() -> None:
    """Where an application takes nothing, not everything that was sent will be taken."""
    leave = Incident(fault="leave", at_ms=700.0, nodes=(1,))
    options = quiet(stopped=2, senders=(1,), messages=200, safety_ms=1000.0, incidents=(leave,))
    assert run(options).failures == ()
    failures = run(options, partial(odd_node, membership=WaitsForEver)).failures
    assert "V-L3" in [failure.rule for failure in failures]


class LosesTheSixth(ReliableMulticast):
    """Delivers all but the sixth message of each sender (N1)."""

    class receiver(MulticastReceiver):
        def take_ready(self, limit: int, now: int, allowance: int, out: Effects) -> list[bytes]:
            if self.window.delivered == 5 and self.window.ready:
                self.window.take_ready(1)
            return super().take_ready(limit, now, allowance, out)


@cache
def first_failing_seed() -> int:
    factory = partial(odd_node, multicast=LosesTheSixth)
    return next(seed for seed in range(30) if run(expand(seed, "group"), factory).failures)


@pytest.mark.proof  # test_sim_broken_nodes shrinks one on every commit
def test_shrinking_leaves_a_small_run_that_still_fails() -> None:
    factory = partial(odd_node, multicast=LosesTheSixth)
    faulty = quiet(faults=("F1", "F3"), loss=0.1, duplicates=0.1, told=0.5, told_ms=50.0)
    shrinker = Shrinker(run(faulty, factory), factory)
    small = shrinker.shrink()
    assert shrinker.rule in [failure.rule for failure in small.failures]
    assert small.options.faults == ()
    assert small.options.told == 1
    again = run(from_json(small.options.to_json()), factory)
    assert again.summary.hash == small.summary.hash


def test_the_commands_speak_of_groups() -> None:
    seed = first_failing_seed()
    arguments = ["--protocol", "group", "--seeds", f"{seed}:{seed + 1}", "--matrix"]
    factory = partial(odd_node, multicast=LosesTheSixth)
    result = CliRunner().invoke(simulate, arguments, obj=factory)
    assert result.exit_code == 1
    assert f"ringcast replay --protocol group --seed {seed}\n" in result.output
    assert "view_ack" in result.output
    result = CliRunner().invoke(
        replay, ["--protocol", "group", "--seed", str(seed), "--limit", "2000"]
    )
    assert result.exit_code == 0
    assert result.output.startswith(f"seed {seed} of group\n")
    assert " welcome " in result.output
    assert " 0 violations · " in result.output
