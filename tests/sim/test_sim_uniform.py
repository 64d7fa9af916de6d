"""Seeded runs of groups with the uniform stream: senders die of what they send, and takers of what
they take over. None may violate anything, and broken nodes are caught."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from ringcast.protocols.uniform import Uniform
from ringcast.sim.departures import CRASHED_SENDERS
from seeded import MANY, check_nothing_failed, share, tally_of

from ringcast.cli.simulate import simulate
from ringcast.model import Stream
from ringcast.node import build_node
from ringcast.protocols.multicast import ReliableMulticast
from ringcast.protocols.multicast_sender import MulticastSender
from ringcast.sim.cluster import Cluster
from ringcast.sim.control_cost import NODES, RUN_MESSAGES, RUNS, measure
from ringcast.sim.fleet import Tally, run_seeds
from ringcast.sim.nodes import STREAMS
from ringcast.sim.options import Incident, Options, from_json
from ringcast.sim.plan import UNIFORM_TARGETS, expand
from ringcast.sim.runner import run
from ringcast.trace import rows as trace

if TYPE_CHECKING:
    from ringcast.core.effects import Effects
    from ringcast.events import Event
    from ringcast.model import Member
    from ringcast.protocols.multicast_receiver import MulticastReceiver
    from ringcast.trace.rows import Row

SEEDS = 40

OWN_PART = 796
"""A member makes a view of its own and asks to come back, while its coordinator merges with others:
that one left itself out."""

REST = (987, 1536, 1580)
"""Who is alone takes part of a large message, and the rest is ready at once: the driver let it wait
for the next input."""

LAST_WORD = 1733
"""Who leaves is out in the middle of taking: what its windows were then was not written down."""

PARTED_BEFORE = 741
"""A sender that was away is back, and dies before it has begun with a member: the judge counted on
the window that this one had in earlier days."""

KEPT = (OWN_PART, *REST, LAST_WORD, PARTED_BEFORE, 110, 754)
"""Seeds beyond the first forty that have found something."""


def check(tally: Tally) -> None:
    check_nothing_failed(tally, "--protocol uniform")
    assert not tally.vacuous
    assert tally.happenings[CRASHED_SENDERS] >= 0.20 * tally.seeds


@cache
def forty() -> Tally:
    tally = Tally()
    for seed in range(SEEDS):
        tally.add(run(expand(seed, "uniform")).summary)
    return tally


def test_forty_seeds_violate_nothing_and_senders_die_in_a_fifth_of_them() -> None:
    check(forty())


def test_seeds_that_have_found_something_violate_nothing() -> None:
    tally = Tally()
    for seed in KEPT:
        tally.add(run(expand(seed, "uniform")).summary)
    assert [(summary.seed, summary.failures[0]) for summary in tally.failed] == []


def test_the_seeds_judge_every_predicate_of_uniform_delivery() -> None:
    uniform = {id for id in forty().judged if id.startswith("U")}
    numbers = {f"U{number}" for number in range(1, 8)}
    assert uniform == numbers | {"U-L1", "U-L2", "U-L3"}
    for id in ("U-L1", "U-L2", "U-L3", "U5"):
        worst = forty().judged[id].worst
        assert worst is not None
        assert 0 < worst <= 1


@pytest.mark.proof
def test_many_seeds_violate_nothing() -> None:
    tally = tally_of(run_seeds(MANY, protocol="uniform", jobs=os.cpu_count() or 1))
    check(tally)
    assert tally.deliveries / tally.seeds >= 200


# What the seeds cover


def test_the_seeds_cover_what_they_should() -> None:
    options = [expand(seed, "uniform") for seed in range(1000)]

    def dies(option: Options, what: str) -> bool:
        return any(each.fault == "F10" and each.what == what for each in option.incidents)

    assert share([dies(option, "sending") for option in options]) >= 0.35
    assert share([dies(option, "sending coordinator") for option in options]) >= 0.15
    assert share([dies(option, "coordinator") for option in options]) >= 0.30
    assert share([option.late_leaver >= 0 for option in options]) >= 0.15
    assert {option.uniform for option in options} == {0.3, 0.6, 1.0}
    assert {option.target for option in options} == set(UNIFORM_TARGETS)
    assert all(option.stopped == -1 for option in options)
    for option in options:
        assert option.has("F10") or not dies(option, "sending")


def test_options_survive_json() -> None:
    for seed in range(50):
        options = expand(seed, "uniform")
        assert from_json(options.to_json()) == options
        assert f"seed {seed} of uniform\n" in str(options)


# Single runs


def quiet(**changes: object) -> Options:
    """Three nodes that start at once, and no faults."""
    options = Options(seed=1, protocol="uniform", uniform=1.0, warm_ms=300.0, messages=20)
    return replace(options, **changes)  # type: ignore[arg-type]


def of_uniform(rows: list[Row], event: str) -> list[Row]:
    return [row for row in rows if row.event == event and row.stream == Stream.UNIFORM]


def test_without_faults_every_message_is_delivered_by_everybody() -> None:
    result = run(quiet(late_messages=2))
    assert result.failures == ()
    taken = of_uniform(result.trace.rows, trace.DELIVER)
    assert sum(row.seqno2 - row.seqno + 1 for row in taken) == 3 * 3 * (20 + 2)


def test_who_is_alone_takes_a_large_message_in_the_instant_in_which_it_is_sent() -> None:
    """Its window has room for two fragments of seven: taking these makes room for the next."""
    alone = quiet(nodes=1, initial=1, capacities=(2,), tau_ms=(100.0,), senders=(0,))
    result = run(replace(alone, sizes=(7 * alone.datagram_bytes,), messages=1, late_messages=0))
    sent = of_uniform(result.trace.rows, trace.SEND)
    taken = of_uniform(result.trace.rows, trace.DELIVER)
    assert result.summary.deliveries == 1
    assert sent[-1].seqno2 == taken[-1].seqno2 > 6
    assert len({row.mono_ns for row in (*sent, *taken)}) == 1


def test_who_is_out_in_the_middle_of_taking_has_held_what_it_committed() -> None:
    """It leaves once the last fragment has found room, which taking the others makes."""
    alone = quiet(nodes=1, initial=1, capacities=(2,), tau_ms=(100.0,), senders=(0,))
    cluster = Cluster(alone)
    harness = cluster.boot(0).resident.harness
    now = 0
    harness.start(now)
    while harness.node.view is None:
        now = harness.node.next_timeout() or now
        harness.handle_timeout(now)
    assert harness.send([bytes(3 * alone.datagram_bytes)], now, stream=Stream.UNIFORM) == 1
    harness.leave(now)
    while not harness.is_closed:
        assert harness.take(1, now)
    harness.take_packets()
    rows = cluster.recorder.rows
    commits = [row for row in of_uniform(rows, trace.TX) if row.kind == "commit"]
    windows = of_uniform(rows[: commits[-1].run_idx], trace.WIN)
    assert (
        windows[-1].hd == windows[-1].received == commits[-1].seqno == 4
    )  # its own it gets in time
    taken = [(row.seqno, row.seqno2) for row in of_uniform(rows, trace.DELIVER)]
    assert taken == [(1, 1), (2, 2), (3, 3), (4, 4)]
    sent, last = of_uniform(rows, trace.SEND)[-1], of_uniform(rows, trace.DELIVER)[-1]
    assert sent.seqno2 == 4
    assert sent.run_idx < last.run_idx


def crash_after(copies: int) -> tuple[int, int]:
    """A dies after so many copies of what it sends: how many of its messages B and C deliver."""
    crash = Incident(fault="F10", at_ms=100.0, nodes=(0,), what="sending", amount=copies)
    options = quiet(senders=(), faults=("F10",), incidents=(crash,), safety_ms=1500.0)
    result = run(options)
    assert result.failures == ()
    taken = [row for row in of_uniform(result.trace.rows, trace.DELIVER) if row.peer == "A"]
    counts = [max([row.seqno2 for row in taken if row.node == node], default=0) for node in "BC"]
    return counts[0], counts[1]


def test_whoever_dies_while_it_sends_is_heard_by_all_or_by_none() -> None:
    assert crash_after(0) == (0, 0)
    assert crash_after(1) == (3, 3)  # one has it, and hands it on
    assert crash_after(2) == (3, 3)  # both have it, and no commit
    assert crash_after(3) == (3, 3)  # and one has heard of the commit


def test_windows_of_different_sizes_take_over_from_each_other() -> None:
    """Where B and C have not heard the same of A, B must find room for what only C has."""
    crash = Incident(fault="F10", at_ms=500.0, nodes=(0,))
    options = quiet(
        capacities=(64, 2, 64),
        senders=(0,),
        messages=300,
        burst=300,
        faults=("F10", "F14"),
        incidents=(Incident(fault="F14", at_ms=10.0, ms=400.0, nodes=(1,)), crash),
        safety_ms=1500.0,
    )
    result = run(options)
    assert result.failures == ()
    received = {row.node: row.received for row in of_uniform(result.trace.rows, trace.ESTATE)[:2]}
    assert received["C"] - received["B"] > 2


# What it costs


def test_control_frames_are_few() -> None:
    economy = measure()
    assert economy.messages == NODES * RUNS * RUN_MESSAGES
    assert economy.deliveries == NODES * economy.messages
    assert economy.frames["nack"] == 0
    assert min(economy.frames["commit"], economy.frames["ack"]) > 0
    assert economy.per_message <= 0.2


# Broken on purpose


class CommitsAtOnce(ReliableMulticast):
    """A sender commits what it has sent, whoever holds it (U3)."""

    class sending(MulticastSender):
        def _commit(self, out: Effects, *, is_view_new: bool = False) -> None:
            if self.is_gated and self.window.high > self.window.gate:
                self.window.gate = self.window.high
                out.datagram(None, self.commitment())


class NeedsNoCommit(ReliableMulticast):
    """A receiver delivers what it holds (U3)."""

    def take_ready(self, limit: int, now: int, out: Effects) -> list[Event]:
        for receiver in self._receivers.values():
            receiver.window.open_gate(receiver.window.received)
        return super().take_ready(limit, now, out)


class DropsEstates(ReliableMulticast):
    """What the departed left is gone with them, as on the other stream (U1, U6)."""

    class estates(Uniform):
        def take_over(self, sender: Member, receiver: MulticastReceiver | None, now: int) -> None:
            super().take_over(sender, None, now)


class NeverTakesOver(ReliableMulticast):
    """A taker asks, and does nothing with the answers (U-L2, U7)."""

    class estates(Uniform):
        def _step(self, sender: Member, out: Effects) -> bool:
            return False


class CommitsSlowly(ReliableMulticast):
    """Commits are told with the next probe, not at once (U-L1)."""

    class sending(MulticastSender):
        def _commit(self, out: Effects, *, is_view_new: bool = False) -> None:
            if self.is_gated:
                self.window.gate = max(self.window.gate, self.acks.min_received)


@pytest.mark.parametrize(
    ("multicast", "rules", "first_seed"),
    [
        (CommitsAtOnce, {"U3"}, 0),
        (NeedsNoCommit, {"U3"}, 0),
        (DropsEstates, {"U1", "U6"}, 12),
        (NeverTakesOver, {"U-L2", "U7"}, 0),
        (CommitsSlowly, {"U-L1"}, 0),
    ],
)
def test_a_broken_node_is_caught(
    multicast: type[ReliableMulticast], rules: set[str], first_seed: int
) -> None:
    factory = partial(build_node, multicast=multicast, streams=STREAMS["uniform"])
    for seed in range(first_seed, first_seed + 20):
        failures = run(expand(seed, "uniform"), factory).failures
        if any(failure.rule in rules for failure in failures):
            return
    pytest.fail(f"20 seeds show no violation of {rules}")


def test_the_command_speaks_of_uniform_delivery() -> None:
    factory = partial(build_node, multicast=NeverTakesOver, streams=STREAMS["uniform"])
    arguments = ["--protocol", "uniform", "--seeds", "0:2", "--matrix"]
    result = CliRunner().invoke(simulate, arguments, obj=factory)
    assert result.exit_code == 1
    assert "ringcast replay --protocol uniform --seed" in result.output
    assert "takeover" in result.output
    assert CRASHED_SENDERS in result.output
    assert "control frames per uniform message and member" in result.output
