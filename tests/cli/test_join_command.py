"""ringcast join in terminals and pipes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner
from terminals import (
    COMMAND,
    DEADLINE_S,
    PATIENT,
    Terminal,
    member,
    mistake,
    ringcast,
    told,
    until,
)

from ringcast import GroupConfig, blocking
from ringcast.aio.sources import group_directory
from ringcast.cli import main
from ringcast.cli.archive import keep
from ringcast.cli.join import join
from ringcast.cli.local import ask, probes_in
from ringcast.cli.publish import publish
from ringcast.config import settings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # private, as pytest makes it
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_pipe_sends_its_lines_and_leaves(runtime: Path) -> None:
    with member("web-1", runtime) as first:
        lines = "".join(f"line {number}\n" for number in range(200)) + "no end"
        piped = subprocess.run(
            [*COMMAND, "join", "orders", "--name", "pipe", "--must-exist"],
            input=lines.encode() + b" \xff\x1b[2J",
            capture_output=True,
            timeout=DEADLINE_S,
            check=True,
        )
        assert piped.stderr == b""
        shown = piped.stdout.decode().splitlines()
        first.until("View 3: web-1\n")
        assert told("members").startswith("orders: view 3, 1 member\n")
        heard = re.sub("^-- View 1: web-1\n", "", first.shown).splitlines()
    assert shown[0] == "-- View 2: web-1, pipe"
    # It has its own messages too, and what a terminal would obey is shown.
    expected = [f"pipe: line {number}" for number in range(200)] + [r"pipe: no end \xff\x1b[2J"]
    assert shown[1:202] == expected
    assert heard == ["-- View 2: web-1, pipe", *expected, "-- View 3: web-1"]


def test_a_terminal_is_left_with_ctrl_c_or_the_end_of_the_input(runtime: Path) -> None:
    with member("a", runtime) as a, member("b", runtime) as b:
        a.until("View 2: a, b")
        a.type("hi\n")
        b.until("a: hi")
        b.type("ho\n")
        a.until("b: ho")
        status, _, errors = a.end(signal.SIGINT)
        assert (status, errors.splitlines()[-1]) == (130, "ringcast: interrupted")
        b.until("View 3: b")
        assert b.end()[0] == 0
    left = [path.name for path in group_directory("orders").iterdir()]
    assert left == ["group.key"]


def test_a_second_ctrl_c_ends_the_leaving_and_says_what_is_lost(runtime: Path) -> None:
    with member("a", runtime) as a:
        directory = group_directory("orders")
        names = probes_in(directory)
        with member("b", runtime) as b:
            a.until("View 2: a, b")
            b.stop()
            a.type("hi\n")
            a.until("a: hi")
            a.process.send_signal(signal.SIGINT)
            # It waits for half a second for b to let it go.
            until(lambda: str(ask(directory, {"ask": "explain"}, names)), "leaving for")
            status, _, errors = a.end(signal.SIGINT)
    assert status != 0
    assert "a leaves before everybody has delivered its messages: 1..1" in errors


def test_a_real_terminal(runtime: Path) -> None:
    with member("a", runtime, screen=True) as a:
        a.type("hi\n")
        a.until("a: hi")
        a.type("not sent yet")
        status, shown, errors = a.end(signal.SIGTERM)
        assert (status, errors) == (0, "")
        assert "a: not sent yet" not in shown
    with member("a", runtime, screen=True) as a:
        a.type("hi\n")
        status, shown, errors = a.end()
    assert (status, errors) == (0, "")
    assert "a: hi" in shown


def test_uniform_messages_for_programs(runtime: Path) -> None:
    with member("a", runtime, "--json", "--guarantee", "uniform", "--min-members", "2") as a:
        a.type("early\n")  # waits for the second
        with member("b", runtime, "--json") as b:
            b.until('"payload": "early"')
            b.type("\n")
            shown = a.until('"payload": ""')
    events = [json.loads(line) for line in shown.splitlines()]
    assert {"event": "view", "view": 2, "members": ["a", "b"]} in events
    early = {"event": "message", "sender": "a", "seqno": 1, "to_me": False, "guarantee": "uniform"}
    assert {**early, "payload": "early"} in events


def test_total_messages_and_headers_for_programs(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGCAST_GROUP", "orders")
    command = [*COMMAND, "join", "--json", "--guarantee", "total", "--name", "a"]
    with (
        blocking.join("orders", name="b", receive=False) as b,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as a,
    ):
        b.wait_for_view(lambda view: "a" in view, timeout=DEADLINE_S)
        b.send(b"kept", headers={"order": "17"}, channel="shop")
        b.flush(timeout=DEADLINE_S)
        shown = a.communicate(b"first\nsecond\n", timeout=DEADLINE_S)[0]
    events = [json.loads(line) for line in shown.splitlines()]
    messages = [event for event in events if event["event"] == "message"]
    about = {"event": "message", "to_me": False}
    own = {**about, "sender": "a", "guarantee": "total"}
    kept = {**about, "sender": "b", "guarantee": "fifo", "seqno": 1, "payload": "kept"}
    assert messages == [
        {**kept, "headers": {"order": "17"}, "channel": "shop"},
        {**own, "seqno": 1, "position": 1, "payload": "first"},
        {**own, "seqno": 2, "position": 2, "payload": "second"},
    ]


def test_bytes_that_are_no_text_for_programs(runtime: Path) -> None:
    piped = subprocess.run(
        [*COMMAND, "join", "orders", "--json"],
        input=b"\xff\n",
        capture_output=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert json.loads(piped.stdout.splitlines()[-1])["payload_base64"] == "/w=="


def test_a_file_as_the_input_and_the_group_from_a_file(runtime: Path) -> None:
    (runtime / "lines.txt").write_text("one\ntwo\n")
    (runtime / "orders.toml").write_text('[group]\ngroup = "orders"\nname = "c"\n' + PATIENT)
    with (runtime / "lines.txt").open("rb") as lines:
        result = subprocess.run(
            [*COMMAND, "join", "--config", "orders.toml", "--preset", "wan"],
            stdin=lines,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=True,
        )
    assert result.stdout == "-- View 1: c\nc: one\nc: two\n"


def test_options_go_before_the_file(runtime: Path) -> None:
    (runtime / "orders.toml").write_text('[group]\ngroup = "orders"\nname = "c"\n' + PATIENT)
    result = ringcast("join", "bills", "--config", "orders.toml", "--name", "d")
    assert (result.returncode, result.stdout) == (0, "-- View 1: d\n")


def test_members_that_are_told_where_to_look(runtime: Path) -> None:
    with member("a", runtime, "--listen", "127.0.0.1:0") as a:
        (view,) = json.loads(told("members", "orders", "--json"))
        address = view["members"][0]["address"]
        with member("b", runtime, "--member", address, "--must-exist") as b:
            assert "View 2: a, b" in b.shown
            a.until("View 2: a, b")
            # Somebody who found the group otherwise is found here all the same.
            assert "orders: view 2, 2 members" in told("members")


def refused(*args: str) -> str:
    """As `mistake`, in this process: that saves a second for each."""
    result = CliRunner().invoke(main, args, prog_name="ringcast")
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("ringcast: ")
    return line.removeprefix("ringcast: ")


def test_mistakes(runtime: Path) -> None:
    (runtime / "bad.toml").write_text("[multicast]\ncapcity = 3\n")
    assert refused("join", "x", "--config", "bad.toml") == (
        "bad.toml: no such key in [multicast]: 'capcity'; did you mean 'capacity'?"
    )
    assert refused("join", "x", "--config", "none.toml").startswith(
        "cannot read none.toml: No such"
    )
    assert refused("join").startswith("which group?")
    assert refused("join", "x" * 65).startswith(
        "[group] group = 'xxxxxxxxxxxxxxxxxxxx…': must be 1"
    )
    assert refused("join", "x", "--listen", "nowhere").startswith("listen = 'nowhere': must be")
    assert "is not a loopback address" in refused("join", "x", "--listen", "192.0.2.1:0")
    assert refused("join", "x", "--must-exist").startswith("nobody answered at ")
    assert refused("join", "x", "--transport", "carrier-pigeon").endswith(
        "(see ringcast join --help)"
    )
    assert refused("join", "x", "--min-members", "0").startswith("min_members = 0: must be")
    assert refused("stats", "x", "--nonsense") == (
        "No such option '--nonsense'. (see ringcast stats --help)"
    )
    assert refused("stats", "x", "--json", "--prometheus").startswith("--json or --prometheus")
    assert refused("stats").startswith("Missing argument 'GROUP'")
    assert refused("explode").startswith("No such command 'explode'")
    assert refused("--explode").startswith("No such option '--explode'")
    assert refused("members", "x" * 65).startswith("group = ")
    assert refused("top", "x", "--interval", "0").startswith("Invalid value for '--interval'")


def test_two_of_one_name_are_told_apart_by_address(runtime: Path) -> None:
    with member("a", runtime) as a, member("a", runtime, "--must-exist"):
        a.until("View 2: a, a")
        assert refused("explain", "orders", "--member", "a") == (
            "2 members 'a' of group 'orders' here; give an address"
        )
        (view,) = json.loads(told("members", "orders", "--json"))
        address = view["members"][1]["address"]
        (one,) = json.loads(told("stats", "orders", "--member", address, "--json"))
        assert one["member"]["address"] == address
        assert "2 members named 'a' in View 2: a, a: give the address" in refused(
            "sync", "orders", "a", "--member", address
        )


def test_no_members_at_all(runtime: Path) -> None:
    result = ringcast("members")
    assert (result.returncode, result.stdout) == (0, "")
    assert result.stderr == "no group has a member here\n"
    assert mistake("members", "orders") == "no member of group 'orders' runs here"


def test_a_socket_that_a_crash_left_behind(runtime: Path) -> None:
    with member("a", runtime) as a:
        (left,) = group_directory("orders").glob("*.probe")
        a.process.kill()
        a.process.wait()
        assert left.exists()
        assert mistake("explain", "orders") == (
            "no member of group 'orders' runs here (1 left behind by crashes)"
        )
        assert not left.exists()


def test_a_socket_that_answers_nothing_of_use(runtime: Path) -> None:
    directory = group_directory("orders")
    directory.mkdir()
    with socket.socket(socket.AF_UNIX) as fake:
        fake.bind(str((directory / "f.probe").relative_to(runtime)))
        fake.listen()
        assert mistake("top", "orders") == (
            f"a member in process {os.getpid()} does not answer: process {os.getpid()} is busy"
        )


def test_a_runtime_directory_that_others_may_look_into(runtime: Path) -> None:
    (runtime / "ringcast").mkdir(mode=0o755)
    for command in ("members", "explain", "stats", "top", "join"):
        told_so = refused(command, "orders")
        assert "is not a directory that belongs to this user alone (mode 0700)" in told_so


def test_a_line_that_is_no_message(runtime: Path) -> None:
    (runtime / "small.toml").write_text(PATIENT.replace("16", "16\nmax_message_bytes = 10"))
    with Terminal("join", "orders", "--config", "small.toml") as terminal:
        terminal.type("x" * 11)
        status, _, errors = terminal.end()
    assert status == 2
    assert errors == "ringcast: a line has more than 10 bytes: that is no message\n"


def test_what_stands_in_a_file_has_the_same_name_everywhere() -> None:
    options = {name for option in join.params for name in option.opts}
    for key in settings(GroupConfig):
        assert key == "group" or f"--{key.replace('_', '-')}" in options


@pytest.mark.parametrize("command", [join, keep, publish], ids=lambda command: command.name)
def test_what_is_no_option_of_the_call_is_left_to_the_file(command: click.Command) -> None:
    """A default of the command would go before what the file and the environment say."""
    keys = {*settings(GroupConfig), "key", "min_members"} - {"group", "name"}
    options = [param for param in command.params if param.name in keys and not param.required]
    assert {"listen", "members", "key", "insecure"} <= {option.name for option in options}
    context = click.Context(command)
    assert {option.get_default(context) for option in options} <= {None, ()}
