"""Nodes that are broken on purpose: the simulator must catch each, and show it small."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from ringcast.cli.replay import replay
from ringcast.cli.simulate import simulate
from ringcast.events import Delivered
from ringcast.node import Node
from ringcast.protocols.multicast import ReliableMulticast
from ringcast.sim.options import from_json
from ringcast.sim.plan import expand
from ringcast.sim.runner import run
from ringcast.sim.shrink import Shrinker
from ringcast.wire.frames import Ack, Watermark

if TYPE_CHECKING:
    from pathlib import Path

    from ringcast.core.effects import Effects
    from ringcast.events import Event
    from ringcast.model import Member


class NeverTellsHighest(ReliableMulticast):
    """A lost last message stays lost (N-L1)."""

    def handle_timeout(self, now: int, out: Effects) -> None:
        super().handle_timeout(now, out)
        out.frames[:] = [item for item in out.frames if not isinstance(item[1], Watermark)]


class DeliversTwice(ReliableMulticast):
    """Now and then a message comes again (G2)."""

    takes = 0

    def take_ready(self, limit: int, now: int, out: Effects) -> list[Event]:
        events = super().take_ready(limit, now, out)
        self.takes += len(events)
        if self.takes > 10:
            self.takes = 0
            events += [event for event in events if isinstance(event, Delivered)][:1]
        return events


class AcksWhatItHolds(ReliableMulticast):
    """Says that its application has taken what it has only received (N6)."""

    def receive(self, source: Member, frames: object, now: int, out: Effects) -> None:
        super().receive(source, frames, now, out)  # type: ignore[arg-type]
        self._boast(out)

    def handle_timeout(self, now: int, out: Effects) -> None:
        super().handle_timeout(now, out)
        self._boast(out)

    @staticmethod
    def _boast(out: Effects) -> None:
        for _, frame in out.frames:
            if isinstance(frame, Ack):
                frame.delivered = frame.received


class Stumbles(ReliableMulticast):
    """Raises where it must not (G7)."""

    def take_ready(self, limit: int, now: int, out: Effects) -> list[Event]:
        events = super().take_ready(limit, now, out)
        if any(isinstance(event, Delivered) and event.run.last > 20 for event in events):
            raise ValueError("twenty is enough")
        return events


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (NeverTellsHighest, "N-L1"),
        (DeliversTwice, "G2"),
        (AcksWhatItHolds, "N6"),
        (Stumbles, "G7"),
    ],
)
def test_a_broken_node_is_caught(broken: type[ReliableMulticast], rule: str) -> None:
    factory = partial(Node, multicast=broken)
    for seed in range(30):
        failures = run(expand(seed), factory).failures
        if any(failure.rule == rule for failure in failures):
            return
    pytest.fail(f"30 seeds show no violation of {rule}")


def first_failing_seed(broken: type[ReliableMulticast]) -> int:
    factory = partial(Node, multicast=broken)
    return next(seed for seed in range(30) if run(expand(seed), factory).failures)


def test_the_command_prints_the_witness_and_how_to_replay_it() -> None:
    seed = first_failing_seed(DeliversTwice)
    factory = partial(Node, multicast=DeliversTwice)
    result = CliRunner().invoke(simulate, ["--seeds", f"{seed}:{seed + 1}"], obj=factory)
    assert result.exit_code == 1
    assert f"seed {seed}: G2 violated: " in result.output
    assert f"ringcast replay --protocol multicast --seed {seed}\n" in result.output
    assert "deliver " in result.output
    assert result.output.splitlines()[-1].startswith("1 seeds · ")


def test_shrinking_leaves_a_small_run_that_still_fails() -> None:
    factory = partial(Node, multicast=DeliversTwice)
    first = run(expand(first_failing_seed(DeliversTwice)), factory)
    shrinker = Shrinker(first, factory)
    small = shrinker.shrink()
    assert shrinker.rule in [failure.rule for failure in small.failures]
    assert small.options.faults == ()
    assert small.options.incidents == ()
    assert small.options.nodes <= 2
    assert len(small.options.senders) == 1
    assert small.options.messages <= 30
    again = run(from_json(small.options.to_json()), factory)
    assert again.summary.hash == small.summary.hash


def test_replay_shrinks_and_prints_options_that_replay_reads(tmp_path: Path) -> None:
    factory = partial(Node, multicast=DeliversTwice)
    seed = first_failing_seed(DeliversTwice)
    result = CliRunner().invoke(replay, ["--seed", str(seed), "--shrink"], obj=factory)
    assert result.exit_code == 1
    text = result.stdout[: result.stdout.index("\n}\n") + 2]
    assert json.loads(text)["seed"] == seed
    file = tmp_path / "small.json"
    file.write_text(text)
    again = CliRunner().invoke(replay, ["--options", str(file), "--limit", "5"], obj=factory)
    assert again.exit_code == 1
    assert "G2 violated" in again.output
    assert again.output.splitlines()[-1] == result.output.splitlines()[-1]
    whole = CliRunner().invoke(replay, ["--options", str(file)])
    assert whole.exit_code == 0, "the real node passes the same run"


def test_replay_tells_a_run_that_holds() -> None:
    seed = next(seed for seed in range(30) if not run(expand(seed)).failures)
    result = CliRunner().invoke(replay, ["--seed", str(seed), "--limit", "30"])
    assert result.exit_code == 0
    assert result.output.startswith(f"seed {seed}\n")
    assert "0.000        phase        warm" in result.output
    assert " 0 violations · " in result.output


def test_commands_refuse_what_makes_no_sense() -> None:
    for command, arguments in (
        (replay, []),
        (replay, ["--seed", "1", "--options", "/nonexistent"]),
        (simulate, ["--seeds", "5:5"]),
        (simulate, ["--seeds", "many"]),
        (simulate, ["--protocol", "carrier-pigeon"]),
    ):
        assert CliRunner().invoke(command, arguments).exit_code == 2, arguments


def test_simulate_reports_the_matrix_and_keeps_traces(tmp_path: Path) -> None:
    arguments = ["--seeds", "0:4", "--jobs", "2", "--matrix"]
    arguments += ["--json", str(tmp_path / "figures.json"), "--record", str(tmp_path / "traces")]
    result = CliRunner().invoke(simulate, arguments)
    assert "empty cells: " in result.output
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["seeds"] == [0, 4]
    assert figures["rules"]["N1"]["premises"] > 0
    names = {path.name for path in (tmp_path / "traces").iterdir()}
    assert names == {f"seed-{seed}{kind}" for seed in range(4) for kind in ("", ".jsonl.gz")}
    # A rule that had nothing to judge fails the run as a violation does.
    vacuous = any(not figure["premises"] for figure in figures["rules"].values())
    assert result.exit_code == int(vacuous or figures["violations"] > 0)
