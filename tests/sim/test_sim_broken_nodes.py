"""Nodes that are broken on purpose: the simulator must catch each, and show it small."""

from __future__ import annotations

import json
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from seeded import Plan, check_caught

from ringcast.cli.replay import replay
from ringcast.cli.simulate import simulate
from ringcast.events import Delivered
from ringcast.model import Stream
from ringcast.node import build_node
from ringcast.protocols.multicast_receiver import MulticastReceiver
from ringcast.protocols.multicast_sender import MulticastSender
from ringcast.protocols.stability import StabilityRounds, Timer
from ringcast.protocols.stream import Timer as StreamTimer
from ringcast.protocols.unicast import ReliableUnicast
from ringcast.protocols.unicast_receiver import UnicastReceiver
from ringcast.protocols.unicast_sender import UnicastSender
from ringcast.protocols.views.streams import ViewStreams
from ringcast.sim.options import from_json
from ringcast.sim.plan import expand
from ringcast.sim.runner import run
from ringcast.sim.shrink import Shrinker
from ringcast.wire.frames import Ack, Data, Watermark
from support.modes import PRIVATE, modes_below, umask

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ringcast.core.effects import Effects
    from ringcast.events import Event
    from ringcast.model import Conn, Member, View
    from ringcast.node import Node
    from ringcast.sim.cluster import NodeFactory
    from ringcast.wire.frames import StabilityReport

MULTICAST, UNICAST = Plan("multicast"), Plan("unicast")
GROUP, UNIFORM = Plan("group"), Plan("uniform")
ROUNDS = Plan("multicast", "stability")


# Messages to the group


class NeverTellsHighest(ViewStreams):
    """A lost last message stays lost (N-L1, N-L2)."""

    def handle_timeout(self, now: int, out: Effects) -> None:
        super().handle_timeout(now, out)
        out.frames[:] = [item for item in out.frames if not isinstance(item[1], Watermark)]


class DeliversTwice(ViewStreams):
    """Now and then a message comes again (G2)."""

    takes = 0

    def take_ready(
        self, limit: int, now: int, out: Effects, *, only_own: bool = False
    ) -> list[Event]:
        events = super().take_ready(limit, now, out, only_own=only_own)
        self.takes += len(events)
        if self.takes > 10:
            self.takes = 0
            events += [event for event in events if isinstance(event, Delivered)][:1]
        return events


class AcksWhatItHolds(ViewStreams):
    """Says that its application has taken what it has only received (N6)."""

    def receive(self, source: Member, frames: Any, now: int, out: Effects) -> None:
        super().receive(source, frames, now, out)
        self._boast(out)

    def handle_timeout(self, now: int, out: Effects) -> None:
        super().handle_timeout(now, out)
        self._boast(out)

    @staticmethod
    def _boast(out: Effects) -> None:
        for _, frame in out.frames:
            if isinstance(frame, Ack):
                frame.delivered = frame.received


class Stumbles(ViewStreams):
    """Raises where it must not (G7)."""

    def take_ready(
        self, limit: int, now: int, out: Effects, *, only_own: bool = False
    ) -> list[Event]:
        events = super().take_ready(limit, now, out, only_own=only_own)
        if any(isinstance(event, Delivered) and event.run.last > 20 for event in events):
            raise ValueError("twenty is enough")
        return events


class LosesTheSixth(ViewStreams):
    """Delivers all but the sixth message of each sender (N1)."""

    class receiver(MulticastReceiver):
        def take_ready(self, limit: int, now: int, allowance: int, out: Effects) -> list[bytes]:
            if self.window.delivered == 5 and self.window.ready:
                self.window.take_ready(1)
            return super().take_ready(limit, now, allowance, out)


# Stability rounds


class EndsRoundsEarly(StabilityRounds):
    """The last one need not report: it is taken to have what the others have."""

    def _count(self, source: Member, report: StabilityReport, now: int, out: Effects) -> None:
        assert self.group.view is not None
        missing = [who for who in self.group.view if who not in (source, *self._reported)]
        if len(missing) == 1:
            self._reports[missing[0]] = report
            self._reported.add(missing[0])
        super()._count(source, report, now, out)


class ReportsOnce(StabilityRounds):
    """A report, or a Stable, that was lost is lost."""

    def rest_or_go_on(self, known: Sequence[int], now: int) -> None:
        self._timers.disarm(Timer.REPORT)


class RelaysOtherBytes(MulticastReceiver):
    """What is sent on for another is not what came."""

    def pieces(self, seqnos: range, limit: int) -> list[Data]:
        return [
            Data(data.stream, data.first, [p[::-1] for p in data.payloads], more=data.more)
            for data in super().pieces(seqnos, limit)
        ]


class GrowsWithoutBound(MulticastSender):
    """A send window has no upper bound."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self.is_gated:
            self.window.capacity_max = self.window.limit = 1 << 16
            self.window.ceiling = 1 << 40

    def _limit_messages(self) -> bool:
        return False


class ReportsWhatItHolds(ViewStreams):
    """Says that its application has taken what it has only received."""

    def _delivered_by_me(self, view: View) -> tuple[int, ...]:
        windows = self._plain_windows(view)
        return tuple(0 if window is None else window.high for window in windows)


# Uniform messages


class CommitsAtOnce(ViewStreams):
    """A sender commits what it has sent, whoever holds it (U3)."""

    class sending(MulticastSender):
        def _commit(self, out: Effects, **how: Any) -> None:
            if self.is_gated and self.window.high > self.window.gate:
                self.acks.min_received = self.window.high
            super()._commit(out, **how)


class NeedsNoCommit(ViewStreams):
    """A receiver delivers what it holds (U3)."""

    def take_ready(
        self, limit: int, now: int, out: Effects, *, only_own: bool = False
    ) -> list[Event]:
        for receiver in self.receivers.values():
            receiver.window.open_gate(receiver.window.received)
        return super().take_ready(limit, now, out, only_own=only_own)


# Messages to one member


class AcksWhatItReceives(UnicastReceiver):
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
            self.stream.send_out(self.fragments.pieces(range(window.low + 1, window.high + 1)), out)


class GivesUpInSilence(UnicastSender):
    """Nobody hears what was lost (S8)."""

    def give_up(self, reason: str, out: Effects) -> None:
        events = len(out.events)
        super().give_up(reason, out)
        while len(out.events) > events:
            out.events.pop()


class StumblesAtTen(UnicastReceiver):
    """Raises where it must not (G7)."""

    def take_ready(self, limit: int, now: int) -> list[bytes]:
        if self.window.delivered >= 10:
            raise ValueError("ten is enough")
        return super().take_ready(limit, now)


class Spins(UnicastReceiver):
    """An ack is due again as soon as it was sent (G7)."""

    def handle_timeout(self, now: int, allowance: int, out: Effects) -> None:
        super().handle_timeout(now, allowance, out)
        self._timers.arm(StreamTimer.ACK, now)


class Spoils(UnicastReceiver):
    """Hands out other bytes than came (G1)."""

    def take_ready(self, limit: int, now: int) -> list[bytes]:
        return [payload[:-1] for payload in super().take_ready(limit, now)]


def streams(**parts: type) -> type[ViewStreams]:
    return type("Broken", (ViewStreams,), parts)


def broken(part: type) -> NodeFactory:
    """Nodes with this in place of their own."""
    if issubclass(part, ViewStreams):
        return partial(build_node, multicast=part)
    if issubclass(part, StabilityRounds):
        return partial(build_node, multicast=streams(stability=part))
    if issubclass(part, MulticastReceiver):
        return partial(build_node, multicast=streams(receiver=part))
    if issubclass(part, MulticastSender):
        return partial(build_node, multicast=streams(sending=part))
    side = "sender" if issubclass(part, UnicastSender) else "receiver"
    return partial(build_node, unicast=type("Broken", (ReliableUnicast,), {side: part}))


def factory_of(plan: Plan, part: type) -> NodeFactory:
    """As the plan's own nodes are, but for this part."""
    made = broken(part)

    def factory(*args: Any, **kwargs: Any) -> Node:
        if plan.protocol == "uniform":
            kwargs["streams"] = (Stream.FIFO, Stream.UNIFORM)
        if plan.protocol in ("multicast", "unicast"):
            kwargs["detector"] = None
        return made(*args, **kwargs)

    return factory


@pytest.mark.proof
@pytest.mark.parametrize(
    ("plan", "part", "rules"),
    [
        (MULTICAST, NeverTellsHighest, {"N-L1", "N-L2"}),
        (MULTICAST, DeliversTwice, {"G2"}),
        (MULTICAST, AcksWhatItHolds, {"N6"}),
        (MULTICAST, Stumbles, {"G7"}),
        (MULTICAST, LosesTheSixth, {"N1"}),
        (ROUNDS, EndsRoundsEarly, {"N5"}),
        (ROUNDS, ReportsOnce, {"N-L2"}),
        (ROUNDS, RelaysOtherBytes, {"N10"}),
        (ROUNDS, GrowsWithoutBound, {"N4"}),
        (ROUNDS, ReportsWhatItHolds, {"N6"}),
        (UNIFORM, CommitsAtOnce, {"U3"}),
        (UNIFORM, NeedsNoCommit, {"U3"}),
        (UNICAST, AcksWhatItReceives, {"S2"}),
        (UNICAST, BelievesEveryAck, {"S2", "S7", "Y1", "Y2"}),
        (UNICAST, NeverSendsAgain, {"S3", "S-L1"}),
        (UNICAST, SendsTooMuchAgain, {"S3"}),
        (UNICAST, GivesUpInSilence, {"S8"}),
        (UNICAST, StumblesAtTen, {"G7"}),
        (UNICAST, Spoils, {"G1"}),
    ],
)
def test_a_broken_node_is_caught(plan: Plan, part: type, rules: set[str]) -> None:
    check_caught(plan, factory_of(plan, part), rules)


def test_a_node_that_spins_ends_its_run() -> None:
    check_caught(UNICAST, factory_of(UNICAST, Spins), {"G7"})


# The commands

TWICE = factory_of(MULTICAST, DeliversTwice)


@cache
def first_failing_seed() -> int:
    return next(seed for seed in range(30) if run(expand(seed), TWICE).failures)


def test_the_command_prints_the_witness_and_how_to_replay_it() -> None:
    seed = first_failing_seed()
    result = CliRunner().invoke(simulate, ["--seeds", f"{seed}:{seed + 1}"], obj=TWICE)
    assert result.exit_code == 1
    assert f"seed {seed}: G2 violated: " in result.output
    assert f"ringcast replay --protocol multicast --seed {seed}\n" in result.output
    assert "deliver " in result.output
    assert result.output.splitlines()[-1].startswith("1 seed · ")


def test_shrinking_leaves_a_small_run_that_still_fails() -> None:
    first = run(expand(first_failing_seed()), TWICE)
    shrinker = Shrinker(first, TWICE)
    small = shrinker.shrink()
    assert shrinker.rule in [failure.rule for failure in small.failures]
    assert small.options.faults == ()
    assert small.options.incidents == ()
    assert small.options.nodes <= 2
    assert len(small.options.senders) == 1
    assert small.options.messages <= 30
    again = run(from_json(small.options.to_json()), TWICE)
    assert again.summary.hash == small.summary.hash


def test_replay_shrinks_and_prints_options_that_replay_reads(tmp_path: Path) -> None:
    seed = first_failing_seed()
    result = CliRunner().invoke(replay, ["--seed", str(seed), "--shrink"], obj=TWICE)
    assert result.exit_code == 1
    text = result.stdout[: result.stdout.index("\n}\n") + 2]
    assert json.loads(text)["seed"] == seed
    file = tmp_path / "small.json"
    file.write_text(text)
    again = CliRunner().invoke(replay, ["--options", str(file), "--limit", "5"], obj=TWICE)
    assert again.exit_code == 1
    assert "G2 violated" in again.output
    assert again.output.splitlines()[-1] == result.output.splitlines()[-1]
    whole = CliRunner().invoke(replay, ["--options", str(file)])
    assert whole.exit_code == 0, "the real node passes the same run"


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        (MULTICAST, " propose "),
        (UNICAST, " udata "),
        (GROUP, " hello "),
        (UNIFORM, " commit "),
        (Plan("group", partitions=True), " install "),
        (ROUNDS, " stability_report "),
    ],
    ids=str,
)
def test_replay_tells_a_run_that_holds(plan: Plan, told: str) -> None:
    seed = next(seed for seed in range(30) if plan.expand(seed).initial > 2)
    arguments = [*str(plan).split(), "--seed", str(seed), "--limit", "100000"]
    result = CliRunner().invoke(replay, arguments)
    assert result.exit_code == 0
    assert result.output.startswith(f"seed {seed}")
    assert "0.000        phase        warm" in result.output
    assert told in result.output
    assert " 0 violations · " in result.output


def test_commands_refuse_what_makes_no_sense() -> None:
    for command, arguments in (
        (replay, []),
        (replay, ["--seed", "1", "--options", "/nonexistent"]),
        (simulate, ["--seeds", "5:5"]),
        (simulate, ["--seeds", "many"]),
        (simulate, ["--protocol", "carrier-pigeon"]),
        (simulate, ["--partitions", "--seeds", "1"]),
        (simulate, ["--purge", "stability", "--protocol", "unicast"]),
    ):
        assert CliRunner().invoke(command, arguments).exit_code == 2, arguments


def test_simulate_reports_the_matrix_and_keeps_traces(tmp_path: Path) -> None:
    arguments = ["--seeds", "0:4", "--jobs", "2", "--matrix"]
    arguments += ["--json", str(tmp_path / "figures.json"), "--record", str(tmp_path / "traces")]
    with umask(0):
        result = CliRunner().invoke(simulate, arguments)
    assert modes_below(tmp_path) == PRIVATE  # as pytest makes its own directory, too
    assert "empty cells:\n" in result.output
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["seeds"] == [0, 4]
    assert figures["rules"]["N1"]["premises"] > 0
    names = {path.name for path in (tmp_path / "traces").iterdir()}
    assert names == {f"seed-{seed}{kind}" for seed in range(4) for kind in ("", ".jsonl.gz")}
    # A rule that had nothing to judge fails the run as a violation does.
    vacuous = any(not figure["premises"] for figure in figures["rules"].values())
    never = any(not count for count in figures["happenings"].values())
    assert result.exit_code == int(vacuous or never or figures["violations"] > 0)
