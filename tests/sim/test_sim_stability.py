"""Single runs of groups that report on what everybody has, what that costs, and why some of its
rules are needed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from ringcast.cli.simulate import show_loads, simulate
from ringcast.node import build_node
from ringcast.protocols.multicast_receiver import MulticastReceiver
from ringcast.protocols.stability import StabilityRounds
from ringcast.protocols.views.streams import ViewStreams
from ringcast.sim.crowd import LOAD, loads
from ringcast.sim.options import Incident, Options
from ringcast.sim.runner import run
from ringcast.trace import rows as trace
from ringcast.trace.observe.windows import GREW, SHRANK
from ringcast.wire.frames import StabilityReport

if TYPE_CHECKING:
    from ringcast.core.effects import Effects
    from ringcast.model import Member
    from ringcast.sim.runner import Result

PURGE = "stability"


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


# What it costs


def test_votes_cost_less_the_more_members_send(capsys: pytest.CaptureFixture[str]) -> None:
    small, large = list(loads(4)), list(loads(10))
    for found in (small, large):
        for load in found:
            assert load.messages == load.members * LOAD.runs * LOAD.messages
        acks, reports, retained = found
        assert reports.frames == retained.frames < acks.frames / 4
        assert acks.retained <= reports.retained < retained.retained
        assert reports.all_datagrams < acks.all_datagrams
    # Per message acks cost the same in any group, reports less in a larger one.
    assert large[0].per_message(large[0].frames) > 0.8 * small[0].per_message(small[0].frames)
    assert large[1].per_message(large[1].frames) < 0.6 * small[1].per_message(small[1].frames)
    show_loads(large)
    assert "10 members" in capsys.readouterr().out


# Broken on purpose


class CountsStaleVotes(StabilityRounds):
    """Who has not heard the end of the last round may report in this one."""

    def on_report(
        self,
        source: Member,
        report: StabilityReport,
        mine: tuple[int, ...],
        now: int,
        out: Effects,
    ) -> None:
        if self.group.view is not None and report.view_id == self.group.view.id:
            report = StabilityReport(
                report.view_id, self._number, report.allowance, report.delivered
            )
        super().on_report(source, report, mine, now, out)


class LetsGoAtDelivery(MulticastReceiver):
    """What was taken is gone, though it is to be retained."""

    def take_ready(self, limit: int, now: int, allowance: int, out: Effects) -> list[bytes]:
        payloads = super().take_ready(limit, now, allowance, out)
        self.window.stable(self.window.delivered)
        return payloads


def broken(**parts: type) -> partial[object]:
    streams = type("Broken", (ViewStreams,), parts)
    return partial(build_node, multicast=streams, detector=None)


def violated(result: Result) -> set[str]:
    return {failure.rule for failure in result.failures}


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
    factory = broken(stability=CountsStaleVotes)
    assert "N4" in violated(run(options, factory))


def test_what_was_delivered_must_be_kept_for_those_who_lack_it() -> None:
    factory = broken(receiver=LetsGoAtDelivery)
    assert "N5" in violated(run(sending_crash(1, retain=True), factory))


def test_the_economy_of_a_group_is_a_table() -> None:
    result = CliRunner().invoke(simulate, ["--economy", "3"])
    assert result.exit_code == 0
    names = [line.split("  ")[0] for line in result.output.splitlines()]
    assert [name for name in names if name] == [names[0], "acks", "reports", "reports, retained"]
