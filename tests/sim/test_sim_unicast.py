"""Seeded runs of unicast: none may violate anything, and broken nodes are caught."""

from __future__ import annotations

import os
from collections import Counter
from functools import cache, partial
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from seeded import MANY, check_determinism, check_nothing_failed, share, tally_of

from ringcast.cli.replay import replay
from ringcast.cli.simulate import simulate
from ringcast.node import Node
from ringcast.protocols.unicast import ReliableUnicast
from ringcast.protocols.unicast_receiver import UnicastReceiver
from ringcast.protocols.unicast_sender import UnicastSender
from ringcast.sim.fleet import Tally, run_seeds
from ringcast.sim.options import FAULTS, from_json
from ringcast.sim.plan import UNICAST_TARGETS, expand
from ringcast.sim.runner import run
from ringcast.sim.shrink import Shrinker
from ringcast.trace import rows as trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringcast.core.effects import Effects
    from ringcast.model import Conn
    from ringcast.sim.options import Options
    from ringcast.trace.rows import Row


def check(tally: Tally) -> None:
    check_nothing_failed(tally, "--protocol unicast")
    assert not tally.vacuous


SEEDS = 60


@cache
def first_seeds() -> tuple[Tally, Counter[str]]:
    """What the runs said, and in how many of them what happened."""
    tally = Tally()
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        result = run(expand(seed, "unicast"))
        tally.add(result.summary)
        seen.update(happenings(result.trace.rows))
    return tally, seen


def happenings(rows: list[Row]) -> set[str]:
    found = set()
    epochs: dict[tuple[object, ...], int] = {}
    for row in rows:
        match row.event:
            case trace.UNICAST_DROP:
                found.add("drop")
            case trace.VIEW if row.view_creator == row.member != row.members[0]:
                found.add("split")  # nothing else makes a view of one's own
            case trace.CONN if row.kind == "S":
                pair = (row.node, row.inc, row.peer, row.peer_inc)
                if row.epoch > epochs.setdefault(pair, row.epoch):
                    found.add("reopened")
            case trace.SYNC if row.detail == "answered":
                found.add("sync")
            case trace.CRASH:
                found.add("crash")
            case trace.UNDELIVERABLE:
                found.add("given up")
    return found


def test_the_first_seeds_violate_nothing() -> None:
    tally, _ = first_seeds()
    check(tally)


def test_the_runs_drop_split_close_and_reopen() -> None:
    _, seen = first_seeds()
    print(dict(seen))  # noqa: T201
    assert seen["drop"] >= 0.10 * SEEDS
    assert seen["split"] >= 0.10 * SEEDS
    assert seen["reopened"] >= 0.20 * SEEDS
    assert seen["sync"] >= 0.20 * SEEDS
    assert seen["crash"] >= 0.30 * SEEDS
    assert seen["given up"] >= 0.10 * SEEDS


@pytest.mark.proof
def test_many_seeds_violate_nothing() -> None:
    tally = tally_of(run_seeds(MANY, protocol="unicast", jobs=os.cpu_count() or 1))
    check(tally)
    assert tally.deliveries / tally.seeds >= 200


# The same trace everywhere


def test_a_seed_gives_the_same_trace_under_any_hash_seed() -> None:
    check_determinism(6, "unicast")


@pytest.mark.proof
def test_many_seeds_give_the_same_traces_under_any_hash_seed() -> None:
    check_determinism(50, "unicast")


# What the seeds cover


def test_the_seeds_cover_what_they_should() -> None:
    options = [expand(seed, "unicast") for seed in range(1000)]

    def has_incident(option: Options, *faults: str) -> bool:
        return any(incident.fault in faults for incident in option.incidents)

    def has_chaos(option: Options, *kinds: str) -> bool:
        return any(incident.what in kinds for incident in option.incidents)

    assert share([has_incident(option, "F10", "F11") for option in options]) >= 0.30
    assert share([has_incident(option, "F7", "F8", "F9") for option in options]) >= 0.20
    assert share([has_chaos(option, "drop", "split") for option in options]) >= 0.20
    assert share([has_incident(option, "close") for option in options]) >= 0.20
    assert share([has_incident(option, "sync") for option in options]) >= 0.20
    assert share([option.expiry_ms * 2 < option.safety_ms for option in options]) >= 0.20
    assert share([option.expiry_ms == 0 for option in options]) >= 0.10
    assert share([min(option.capacities) <= 4 for option in options]) >= 0.25
    assert share([any(a == b for a, b in option.pairs) for option in options]) >= 0.10
    assert share([len(option.pairs) == 1 for option in options]) >= 0.10
    assert {option.target for option in options} == set(UNICAST_TARGETS)
    for fault in FAULTS:
        assert 0.4 < share([option.has(fault) for option in options]) < 0.6


def test_options_survive_json() -> None:
    for seed in range(50):
        options = expand(seed, "unicast")
        assert from_json(options.to_json()) == options
        assert f"seed {seed} of unicast\n" in str(options)


# Broken on purpose


class AcksWhatItHolds(UnicastReceiver):
    """Says that its application has taken what it has only received (S2)."""

    def _ack(self, allowance: int, out: Effects) -> None:
        super()._ack(allowance, out)
        out.frames[-1][1].delivered = self.window.received  # type: ignore[union-attr]


class BelievesEveryAck(UnicastSender):
    """Whatever connection it speaks of (S2, Y1)."""

    def is_current(self, conn: Conn) -> bool:
        return conn.epoch == self.conn.epoch


class NeverSendsAgain(UnicastSender):
    """A lost last message stays lost (S3, S-L1)."""

    def tick(self, out: Effects) -> None:
        frames = len(out.frames)
        super().tick(out)
        del out.frames[frames:]


class SendsTooMuchAgain(UnicastSender):
    """All that is unacknowledged, at every tick (S3)."""

    def tick(self, out: Effects) -> None:
        super().tick(out)
        if not self.is_acked:
            window = self.window
            self._send_out(self.fragments.pieces(range(window.low + 1, window.high + 1)), out)


class GivesUpInSilence(UnicastSender):
    """Nobody hears what was lost (S8)."""

    def give_up(self, reason: str, out: Effects) -> None:
        events = len(out.events)
        super().give_up(reason, out)
        while len(out.events) > events:
            out.events.pop()


class Stumbles(UnicastReceiver):
    """Raises where it must not (G7)."""

    def take_ready(self, limit: int, now: int) -> list[bytes]:
        if self.window.delivered >= 10:
            raise ValueError("ten is enough")
        return super().take_ready(limit, now)


class Spoils(UnicastReceiver):
    """Hands out other bytes than came (G1)."""

    def take_ready(self, limit: int, now: int) -> list[bytes]:
        return [payload[:-1] for payload in super().take_ready(limit, now)]


def broken(entry: type[UnicastSender | UnicastReceiver]) -> Callable[..., Node]:
    """Nodes whose unicast has this entry instead of its own."""
    side = "sender" if issubclass(entry, UnicastSender) else "receiver"
    return partial(Node, unicast=type("Broken", (ReliableUnicast,), {side: entry}))


@pytest.mark.parametrize(
    ("entry", "rules"),
    [
        (AcksWhatItHolds, {"S2"}),
        (BelievesEveryAck, {"S2", "S7", "Y1", "Y2"}),
        (NeverSendsAgain, {"S3", "S-L1"}),
        (SendsTooMuchAgain, {"S3"}),
        (GivesUpInSilence, {"S8"}),
        (Stumbles, {"G7"}),
        (Spoils, {"G1"}),
    ],
)
def test_a_broken_node_is_caught(
    entry: type[UnicastSender | UnicastReceiver], rules: set[str]
) -> None:
    factory = broken(entry)
    for seed in range(40):
        failures = run(expand(seed, "unicast"), factory).failures
        if any(failure.rule in rules for failure in failures):
            return
    pytest.fail(f"40 seeds show no violation of {rules}")


class LosesTheSixth(UnicastReceiver):
    """Delivers all but the sixth message of each stream (S1)."""

    def take_ready(self, limit: int, now: int) -> list[bytes]:
        if self.window.delivered == 5 and self.window.ready:
            self.window.take_ready(1)
            self._ack_later(now)
        return super().take_ready(limit, now)


@cache
def first_failing_seed() -> int:
    factory = broken(LosesTheSixth)
    return next(seed for seed in range(30) if run(expand(seed, "unicast"), factory).failures)


@pytest.mark.proof  # test_sim_broken_nodes shrinks one on every commit
def test_shrinking_leaves_a_small_run_that_still_fails() -> None:
    factory = broken(LosesTheSixth)
    first = run(expand(first_failing_seed(), "unicast"), factory)
    shrinker = Shrinker(first, factory)
    small = shrinker.shrink()
    assert shrinker.rule in [failure.rule for failure in small.failures]
    assert small.options.faults == ()
    assert small.options.nodes <= 2
    assert len(small.options.pairs) == 1
    assert small.options.messages <= 12
    again = run(from_json(small.options.to_json()), factory)
    assert again.summary.hash == small.summary.hash


def test_the_commands_speak_of_unicast() -> None:
    seed = first_failing_seed()
    arguments = ["--protocol", "unicast", "--seeds", f"{seed}:{seed + 1}", "--matrix"]
    result = CliRunner().invoke(simulate, arguments, obj=broken(LosesTheSixth))
    assert result.exit_code == 1
    assert f"ringcast replay --protocol unicast --seed {seed}\n" in result.output
    assert "sync_ok" in result.output
    result = CliRunner().invoke(
        replay, ["--protocol", "unicast", "--seed", str(seed), "--limit", "100"]
    )
    assert result.exit_code == 0
    assert result.output.startswith(f"seed {seed} of unicast\n")
    assert " udata " in result.output
    assert " 0 violations · " in result.output
