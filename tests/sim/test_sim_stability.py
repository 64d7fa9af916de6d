"""Seeded runs of groups that report on what everybody has: none may violate anything, what a dead
sender left is torn only where nobody retains it, and each rule of the rounds is shown necessary."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from ringcast.sim.rounds import ALL_HAVE_THEM, SOME_LACK_THEM, TORN, TORN_RETAINED
from seeded import MANY, check_nothing_failed, share, tally_of

from ringcast.cli.replay import replay as replay_command
from ringcast.cli.simulate import simulate
from ringcast.errors import UsageError
from ringcast.node import Node
from ringcast.protocols.multicast import ReliableMulticast
from ringcast.protocols.multicast_receiver import MulticastReceiver
from ringcast.protocols.multicast_sender import MulticastSender
from ringcast.protocols.stability import StabilityRounds, Timer
from ringcast.rules.table import feed_all, rules_for
from ringcast.sim.control_cost import LOAD_RUN_MESSAGES, LOAD_RUNS, load_table, loads
from ringcast.sim.fleet import run_seeds
from ringcast.sim.network import RETAINED_KINDS, STABILITY_KINDS, frame_kinds
from ringcast.sim.options import Incident, Options, from_json
from ringcast.sim.plan import expand
from ringcast.sim.runner import run
from ringcast.trace import rows as trace
from ringcast.trace.observe.windows import GREW, SHRANK
from ringcast.wire.frames import Data, StabilityReport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.core.effects import Effects
    from ringcast.model import Member, View
    from ringcast.sim.fleet import Tally
    from ringcast.sim.runner import Result

PURGE = "stability"


def check(tally: Tally, protocol: str) -> None:
    check_nothing_failed(tally, f"--protocol {protocol} --purge stability")
    assert tally.happenings[ALL_HAVE_THEM] == tally.happenings[TORN_RETAINED]


@cache
def seeds(protocol: str, count: int) -> Tally:
    return tally_of(run_seeds(range(count), protocol=protocol, purge=PURGE))


def test_sixty_seeds_of_multicast_violate_nothing() -> None:
    tally = seeds("multicast", 60)
    check(tally, "multicast")
    assert not tally.vacuous


def test_fifteen_seeds_of_a_group_violate_nothing() -> None:
    check(seeds("group", 15), "group")


def test_who_came_back_and_was_never_told_where_a_sender_goes_on_lacks_nothing_of_it() -> None:
    """Cut off from C since before they merged, B has no window for it when C crashes."""
    tally = tally_of(run_seeds([320], protocol="group", partitions=True, purge=PURGE))
    check(tally, "group --partitions")


def test_where_messages_are_not_retained_what_was_torn_is_missed() -> None:
    happened = seeds("multicast", 60).happenings
    assert happened[SOME_LACK_THEM] >= 0.9 * happened[TORN]
    assert happened[TORN_RETAINED] > 0


@pytest.mark.proof
@pytest.mark.parametrize("protocol", ["multicast", "group", "uniform"])
def test_many_seeds_violate_nothing(protocol: str) -> None:
    jobs = os.cpu_count() or 1
    tally = tally_of(run_seeds(MANY, protocol=protocol, purge=PURGE, jobs=jobs))
    check(tally, protocol)
    assert not tally.vacuous


@pytest.mark.proof
def test_many_seeds_with_partitions_violate_nothing() -> None:
    jobs = os.cpu_count() or 1
    tally = tally_of(
        run_seeds(MANY[:150], protocol="group", partitions=True, purge=PURGE, jobs=jobs)
    )
    check(tally, "group --partitions")


@pytest.mark.proof
@pytest.mark.parametrize("seed", [691, 701, 1080, 1097, 1280, 1392, 1452, 1721, 1827])
def test_a_joiner_and_a_stability_round_wait_for_each_other(seed: int) -> None:
    """A known defect of joining, the only one in seeds 0:2000: the coordinator lets a joiner in
    when all others have reported what was sent before, and their round ends when the joiner has
    reported. Nobody can join any more. This fails when that is repaired: then it goes."""
    rules = {each.rule for each in run(expand(seed, "group", purge=PURGE)).failures}
    assert {"V-L2"} <= rules <= {"V-L1", "V-L2", "U-L2"}


# What the seeds cover


def test_the_seeds_cover_what_they_should() -> None:
    options = [expand(seed, purge=PURGE) for seed in range(1000)]
    assert 0.4 <= share([option.retain for option in options]) <= 0.6
    assert {option.grow for option in options} == {1, 2, 4}
    assert all(5 <= option.stability_ms <= 60 for option in options)
    assert all(option.stability_ms >= option.delta_ms for option in options)
    assert share([option.threshold_bytes is not None for option in options]) >= 0.3
    assert {*STABILITY_KINDS, *RETAINED_KINDS} <= {option.target for option in options}
    assert "ack" not in {option.target for option in options}
    calls = [any(each.fault == "stabilize" for each in option.incidents) for option in options]
    assert share(calls) >= 0.3
    crashes = [any(each.what == "sending plain" for each in item.incidents) for item in options]
    assert share(crashes) >= 0.4


@pytest.mark.parametrize("protocol", ["multicast", "group", "uniform"])
def test_a_seed_with_acks_is_not_changed_by_what_votes_need(protocol: str) -> None:
    for seed in range(20):
        plain = expand(seed, protocol)
        assert plain.purge == "acks"
        assert plain.multicast_config(0).stability is None
        reports = expand(seed, protocol, purge=PURGE)
        config = reports.multicast_config(0)
        assert config.capacity_max == reports.capacities[0] * reports.grow
        same = {"purge", "retain", "stability_ms", "threshold_bytes", "grow"}
        same |= {"faults", "target", "incidents", "stopped"}
        changed = {
            name
            for name in Options.__dataclass_fields__
            if getattr(plain, name) != getattr(reports, name)
        }
        assert changed <= same


def test_options_survive_json_and_say_what_they_are() -> None:
    for seed in range(30):
        options = expand(seed, purge=PURGE)
        assert from_json(options.to_json()) == options
        assert f"reports      within {options.stability_ms:.1f} ms" in str(options)


def test_options_that_make_no_sense_are_refused() -> None:
    for changes in (
        {"purge": "never"},
        {"purge": PURGE, "protocol": "unicast", "senders": ()},
        {"retain": True},
        {"grow": 2},
        {"purge": PURGE, "grow": 0},
    ):
        with pytest.raises(UsageError):
            quiet(**{"purge": "acks", **changes})


# Single runs


def quiet(**changes: object) -> Options:
    """Three nodes and no faults."""
    options = Options(seed=1, purge=PURGE, stability_ms=10.0, messages=20)
    return replace(options, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("retain", [False, True])
def test_without_faults_every_message_is_delivered_and_let_go_of(retain: bool) -> None:
    result = run(quiet(late_messages=2, retain=retain))
    assert result.failures == ()
    assert result.summary.deliveries == 3 * 3 * (20 + 2)
    rows = result.trace.rows
    kinds = {row.kind for row in rows if row.event == trace.TX}
    assert "ack" not in kinds
    assert {"stability_report", "stable"} <= kinds
    for sender in "ABC":
        gone = [row for row in rows if row.event == trace.PURGE and row.node == sender]
        assert gone[-1].seqno == 22
        release = [row for row in rows if row.event == trace.RELEASE and row.peer == sender]
        assert {row.node for row in release if row.seqno == 22} == (
            set("ABC") - {sender} if retain else set()
        )


def sending_crash(copies: int, *, retain: bool) -> Options:
    """A dies after so many copies of what it sends."""
    crash = Incident(fault="F10", at_ms=100.0, nodes=(0,), what="sending plain", amount=copies)
    return quiet(senders=(), faults=("F10",), incidents=(crash,), retain=retain)


def crash_after(copies: int, *, retain: bool) -> tuple[int, int]:
    """How many of its messages B and C deliver then."""
    result = run(sending_crash(copies, retain=retain))
    assert result.failures == ()
    taken = [row for row in result.trace.rows if row.event == trace.DELIVER and row.peer == "A"]
    counts = [max([row.seqno2 for row in taken if row.node == node], default=0) for node in "BC"]
    return counts[0], counts[1]


def test_whoever_dies_while_it_sends_is_heard_by_all_or_none_if_that_is_retained() -> None:
    assert crash_after(0, retain=True) == (0, 0)
    assert crash_after(1, retain=True) == (3, 3)
    assert crash_after(2, retain=True) == (3, 3)
    assert crash_after(0, retain=False) == (0, 0)
    assert sorted(crash_after(1, retain=False)) == [0, 3]
    assert crash_after(2, retain=False) == (3, 3)


def test_windows_grow_under_a_burst_and_shrink_again() -> None:
    options = quiet(capacities=(4, 4, 4), messages=100, burst=100, senders=(0,))
    fixed = run(options).summary
    grown = run(replace(options, grow=4)).summary
    for summary in (fixed, grown):
        assert summary.failures == ()
    assert fixed.happenings[GREW] == fixed.happenings[SHRANK] == 0
    assert grown.happenings[GREW] == grown.happenings[SHRANK] > 0


def test_another_member_repairs_where_no_request_reaches_the_sender() -> None:
    options = quiet(
        senders=(0,),
        capacities=(64,) * 3,
        faults=("F1", "F2"),
        loss=0.3,
        target="nack",
        target_loss=1.0,
        safety_ms=450.0,
    )
    for retain in (True, False):
        result = run(replace(options, retain=retain))
        assert result.failures == ()
        peer_repair = [
            r for r in result.trace.rows if r.event == trace.RX and r.kind == "peer_repair"
        ]
        assert bool(peer_repair) == retain


def test_segments_of_a_trace_are_judged_like_the_whole() -> None:
    for retain in (True, False):
        options = replace(sending_crash(1, retain=retain), senders=(1, 2), capacities=(4,) * 3)
        whole = run(replace(options, messages=60, grow=2))
        assert whole.failures == ()
        rows, facts = whole.trace.rows, whole.trace.facts
        for cut in (len(rows) // 3, len(rows) // 2):
            first, second = rules_for(facts), rules_for(facts)
            feed_all(first, rows[:cut])
            feed_all(second, rows[cut:])
            for mine, other in zip(first, second, strict=True):
                mine.merge(other)
            assert [fold.finish(facts) for fold in first] == whole.verdicts


# What it costs


def test_votes_cost_less_the_more_members_send() -> None:
    small, large = loads(4), loads(10)
    for found in (small, large):
        for load in found:
            assert load.messages == load.members * LOAD_RUNS * LOAD_RUN_MESSAGES
        acks, reports, retained = found
        assert reports.frames == retained.frames < acks.frames / 4
        assert acks.retained <= reports.retained < retained.retained
        assert reports.all_datagrams < acks.all_datagrams
    # Per message acks cost the same in any group, reports less in a larger one.
    assert large[0].per_message(large[0].frames) > 0.8 * small[0].per_message(small[0].frames)
    assert large[1].per_message(large[1].frames) < 0.6 * small[1].per_message(small[1].frames)
    assert "10 members" in load_table(large)


# Broken on purpose


class CountsVotesOfAnyView(StabilityRounds):
    """Places in an old report are read as places in this view."""

    def on_report(self, source: Member, report: StabilityReport, now: int, out: Effects) -> None:
        if self.group.view is not None:
            report = StabilityReport(
                self.group.view.id, self._number, report.allowance, report.delivered
            )
        super().on_report(source, report, now, out)


class EndsRoundsEarly(StabilityRounds):
    """The last one need not report: it is taken to have what the others have."""

    def _count(self, source: Member, report: StabilityReport, now: int, out: Effects) -> None:
        assert self.group.view is not None
        missing = [who for who in self.group.view if who not in (source, *self._reported)]
        if len(missing) == 1:
            self._reports[missing[0]] = report
            self._reported.add(missing[0])
        super()._count(source, report, now, out)


class ForgetsNewMembers(StabilityRounds):
    """Who is new need not report: it is taken to have everything."""

    new: tuple[Member, ...] = ()

    def install_view(self) -> None:
        old, view = self.group.previous, self.group.view
        assert view is not None
        self.new = tuple(who for who in view if who not in old) if old else ()
        super().install_view()

    def _count(self, source: Member, report: StabilityReport, now: int, out: Effects) -> None:
        everything = StabilityReport(
            report.view_id, report.number, report.allowance, (1 << 40,) * len(report.delivered)
        )
        for member in self.new:
            if member not in self._reports and member != source:
                self._reports[member] = everything
                self._reported.add(member)
        super()._count(source, report, now, out)


class CountsStaleVotes(StabilityRounds):
    """Who has not heard the end of the last round may report in this one."""

    def on_report(self, source: Member, report: StabilityReport, now: int, out: Effects) -> None:
        if self.group.view is not None and report.view_id == self.group.view.id:
            report = StabilityReport(
                report.view_id, self._number, report.allowance, report.delivered
            )
        super().on_report(source, report, now, out)


class VotesOnce(StabilityRounds):
    """A report, or a Stable, that was lost is lost."""

    def rest_or_go_on(self, known: Sequence[int], now: int) -> None:
        self._timers.disarm(Timer.REPORT)


class LetsGoAtDelivery(MulticastReceiver):
    """What was taken is gone, though it is to be retained."""

    def take_ready(self, limit: int, now: int, allowance: int, out: Effects) -> list[bytes]:
        payloads = super().take_ready(limit, now, allowance, out)
        self.window.stable(self.window.delivered)
        return payloads


class RelaysOtherBytes(MulticastReceiver):
    """What is sent on for another is not what came."""

    def pieces(self, seqnos: range, limit: int) -> list[Data]:
        return [
            Data(
                data.stream,
                data.first,
                [payload[::-1] for payload in data.payloads],
                more=data.more,
            )
            for data in super().pieces(seqnos, limit)
        ]


class GrowsWithoutBound(MulticastSender):
    """A send window has no upper bound."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        if not self.is_gated:
            self.window.capacity_max = 1 << 16
            self.window.ceiling = 1 << 40

    def _limit_messages(self) -> bool:
        return False


class ReportsWhatItHolds(ReliableMulticast):
    """Says that its application has taken what it has only received."""

    def _delivered_by_me(self, view: View) -> tuple[int, ...]:
        windows = self._plain_windows(view)
        return tuple(0 if window is None else window.high for window in windows)


def broken(
    *,
    rounds: type[StabilityRounds] = StabilityRounds,
    receiver: type[MulticastReceiver] = MulticastReceiver,
    sending: type[MulticastSender] = MulticastSender,
) -> type[ReliableMulticast]:
    members = {"stability": rounds, "receiver": receiver, "sending": sending}
    return type("Broken", (ReliableMulticast,), members)


def violated(result: Result) -> set[str]:
    return {failure.rule for failure in result.failures}


@pytest.mark.parametrize(
    ("multicast", "rules"),
    [
        (broken(rounds=EndsRoundsEarly), {"N5"}),
        (broken(rounds=ForgetsNewMembers), {"N5", "N9"}),
        (broken(rounds=VotesOnce), {"N-L2"}),
        (broken(receiver=RelaysOtherBytes), {"N10"}),
        (broken(sending=GrowsWithoutBound), {"N4"}),
        (ReportsWhatItHolds, {"N6"}),
    ],
)
def test_a_broken_node_is_caught(multicast: type[ReliableMulticast], rules: set[str]) -> None:
    factory = partial(Node, multicast=multicast)
    for seed in range(60):
        if violated(run(expand(seed, purge=PURGE), factory)) & rules:
            return
    pytest.fail(f"60 seeds show no violation of {rules}")


def test_votes_of_another_view_must_not_count() -> None:
    """B leaves and comes back, last in the view. What D says of B in late copies of its reports is
    read as said of C, from whom D is cut off."""
    swap = Incident(fault="F18", at_ms=100.0, nodes=(1,), what="swap")
    cut = Incident(fault="F9", at_ms=50.0, ms=500.0, nodes=(2, 3))
    options = quiet(
        nodes=4,
        initial=4,
        capacities=(64,) * 4,
        tau_ms=(100.0,) * 4,
        senders=(1, 2, 3),
        messages=60,
        burst=3,
        view_ms=100.0,
        faults=("F3", "F9", "F18"),
        duplicates=0.5,
        copies=5,
        copy_late_ms=400.0,
        incidents=(cut, swap),
        safety_ms=600.0,
    )
    assert run(options).failures == ()
    factory = partial(Node, multicast=broken(rounds=CountsVotesOfAnyView))
    assert "N5" in violated(run(options, factory))


def test_whoever_has_missed_a_round_must_not_count_in_the_next() -> None:
    """Nobody hears what is stable but the coordinator, which sends. Receivers keep everything: it
    must not go on as if they had released it."""
    options = quiet(
        retain=True,
        senders=(0,),
        messages=200,
        burst=20,
        faults=("F2",),
        target="stable",
        target_loss=1.0,
    )
    assert run(options).failures == ()
    factory = partial(Node, multicast=broken(rounds=CountsStaleVotes))
    assert "N4" in violated(run(options, factory))


def test_what_was_delivered_must_be_kept_for_those_who_lack_it() -> None:
    factory = partial(Node, multicast=broken(receiver=LetsGoAtDelivery))
    assert {"N5", "N11"} <= violated(run(sending_crash(1, retain=True), factory))


# The commands


def test_the_commands_know_about_votes() -> None:
    arguments = ["--purge", PURGE, "--seeds", "0:2", "--matrix"]
    result = CliRunner().invoke(simulate, arguments)
    assert TORN_RETAINED in result.output
    header = next(line for line in result.output.splitlines() if line.startswith("fault "))
    assert header.split()[1:] == list(frame_kinds("multicast", PURGE))
    factory = partial(Node, multicast=broken(rounds=VotesOnce))
    seed = next(seed for seed in range(60) if run(expand(seed, purge=PURGE), factory).failures)
    failing = CliRunner().invoke(simulate, ["--purge", PURGE, "--seeds", str(seed)], obj=factory)
    assert failing.exit_code == 1
    told = f"ringcast replay --protocol multicast --purge stability --seed {seed}\n"
    assert told in failing.output
    again = CliRunner().invoke(
        replay_command, ["--purge", PURGE, "--seed", str(seed), "--limit", "5"], obj=factory
    )
    assert again.exit_code == 1


def test_the_economy_of_a_group_is_a_table() -> None:
    result = CliRunner().invoke(simulate, ["--economy", "3"])
    assert result.exit_code == 0
    names = [line.split("  ")[0] for line in result.output.splitlines()]
    assert [name for name in names if name] == [names[0], "acks", "reports", "reports, retained"]


def test_votes_are_for_groups() -> None:
    arguments = ["--purge", PURGE, "--protocol", "unicast"]
    assert CliRunner().invoke(simulate, arguments).exit_code == 2
