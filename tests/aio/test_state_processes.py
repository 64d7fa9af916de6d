"""Real processes: a state on its way while everybody sends, and its provider killed in between."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.groups import PROGRAM, bench_state, check_known
from ringcast.errors import RingcastError, UsageError
from ringcast.sim.processes import Cluster, hear, tell

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE = 6_000_000
MESSAGE_BYTES = 1000


def test_two_joiners_get_their_state_though_the_provider_is_killed() -> None:
    with Cluster(members=3, program=PROGRAM, state_bytes=SIZE) as cluster:
        cluster.tell_all({"op": "send", "rate": 1000, "size": MESSAGE_BYTES})
        newcomers = [cluster.start(pause_at=SIZE // 2) for _ in range(2)]
        for newcomer in newcomers:
            tell(newcomer, {"op": "join"})
        for newcomer in newcomers:
            assert SIZE // 2 <= hear(newcomer)["came"] < SIZE
        assert cluster.kill(0) == "m0"
        for newcomer in newcomers:
            tell(newcomer, {"op": "go on"})
        for newcomer in newcomers:
            joined = hear(newcomer)
            assert joined["is_ballast_right"]
            assert joined["state_lost"] is None
            assert joined["calls"] >= 2
        cluster.await_view()
        for sender in cluster.processes[:2]:
            tell(sender, {"op": "stop"})
        sent = {name: hear(cluster.processes[at])["sent"] for at, name in enumerate(("m1", "m2"))}
        assert min(sent.values()) > 0
        cluster.tell_all({"op": "finish", "expect": sent})
        known: dict[str, Any] = {
            name: end["known"] for name, end in zip(cluster.names, cluster.hear_all(), strict=True)
        }
        for name, rules in known.items():
            check_known(name, rules, sent, MESSAGE_BYTES)
        # Of the dead, survivors may know more or less; a joiner what some survivor does.
        survivors = [known["m1"]["m0"], known["m2"]["m0"]]
        assert known["m3"]["m0"] in survivors
        assert known["m4"]["m0"] in survivors


@pytest.mark.parametrize("kill", [pytest.param(0.0, marks=pytest.mark.proof), 0.5])
def test_the_bench_says_how_it_went(kill: float) -> None:
    (report,) = bench_state(size=SIZE, kill=kill, rate=500)
    assert report["providers"] == 1 + (kill > 0)
    assert report["messages"] > 500
    assert report["mb_per_s"] > 0
    assert report["joiner_grew_mb"] < 100


def test_the_bench_notices_what_is_missing() -> None:
    with pytest.raises(RingcastError, match="m3 does not know what it must: it has 1 messages"):
        check_known("m3", {"m0": (1, 0)}, {"m0": 2}, MESSAGE_BYTES)
    with pytest.raises(RingcastError, match="which sent no one knows"):
        check_known("m3", {"m0": (1, 0)}, {}, MESSAGE_BYTES)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": -1}, "size = -1: must be from 0"),
        ({"size": 10, "kill": 1.0}, "kill = 1.0: must be a share"),
        ({"size": 2_000_000, "kill": 0.5}, "more than 2097152 bytes must be on their way"),
        ({"size": 10, "rate": -1}, "rate = -1: must be from 0"),
        ({"size": 10, "message_bytes": 1}, "message size = 1: must be from 32"),
    ],
)
def test_the_bench_refuses_what_makes_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        bench_state(**options)


def test_the_example_of_the_manual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "howto" / "state.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.S)
    (tmp_path / "stock.py").write_text(program)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # private, as pytest makes it
    terminals: list[subprocess.Popen[str]] = []

    def start(*changes: str) -> Callable[[int], list[str]]:
        command = [sys.executable, "-u", tmp_path / "stock.py", *changes]
        terminals.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        screen = terminals[-1].stdout
        assert screen is not None
        return lambda count: [screen.readline().rstrip() for _ in range(count)]

    try:
        first = start("apples 5", "pears 3")
        shown = first(3)
        second = start("apples -2")
        assert second(2) == ["joined with {'apples': 5, 'pears': 3}", "{'apples': 3, 'pears': 3}"]
        shown += first(1)
        for line in shown:
            assert line in page
        assert shown[0] == "joined with {}"
    finally:
        for terminal in terminals:
            terminal.kill()
            terminal.communicate()
