"""A member is stopped, and whoever looks sees who waits for it, since when and what comes next."""

from __future__ import annotations

import json
import re
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from terminals import Terminal, member, mistake, ringcast, told, until

from ringcast.aio.probe import CLIENTS_MAX, connect, probes
from ringcast.aio.sources import group_directory
from ringcast.cli.words import cells

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "watching.md"
ROOM = 16


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Terminal]]:
    """Three members, of which the first sends more than its window holds and the last is
    stopped."""
    directory = tmp_path_factory.mktemp("runtime")
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("XDG_RUNTIME_DIR", str(directory))  # private, as pytest makes it
        names = ("web-1", "web-2", "web-3")
        terminals = {}
        for name in names:
            terminals[name] = stack.enter_context(member(name, directory))
        terminals["web-1"].until("View 3: web-1, web-2, web-3")
        terminals["web-1"].type("hello\n")
        for terminal in terminals.values():
            terminal.until("web-1: hello")
        # Stopped only when what it has taken is known, so that the figures are the same each time.
        until(lambda: told("explain", "orders"), "^nothing waits$")
        terminals["web-3"].stop()
        terminals["web-1"].type("".join(f"order {number}\n" for number in range(2 * ROOM)))
        until(lambda: ringcast("explain", "orders").stdout, "blocked")
        yield terminals


def test_health_tells_who_is_ready_by_its_exit_status(group: dict[str, Terminal]) -> None:
    assert ringcast("health", "orders", "--member", "web-1").returncode == 0
    found = ringcast("health", "orders")
    assert found.returncode == 1
    assert re.search(r"^web-3: does not answer: process \d+ is stopped$", found.stdout, re.M)
    assert "web-2: ready" in found.stdout
    first, *_ = json.loads(ringcast("health", "orders", "--json").stdout)
    assert first == {"member": "web-1", "ready": True, "reasons": []}
    assert ringcast("health", "nobody").returncode == 2


def test_explain_names_who_pins_the_window_since_when_and_what_comes_next(
    group: dict[str, Terminal],
) -> None:
    text = until(lambda: told("explain", "orders"), "web-3 is silent")
    assert re.search(
        r"^web-1: send on fifo blocked for \d+\.\d s: window full \(16 of 16 messages, .* bytes\), "
        r"limited by web-3, which has delivered 1 of 17; last ack \d+\.\d s ago$",
        text,
        re.M,
    )
    assert re.search(
        r"^web-1: web-3 is silent for \d+\.\d s: if it stays so, it is asked in 5\d\d\.\d s and "
        r"excluded 0\.5 s later$",
        text,
        re.M,
    )
    pid = group["web-3"].process.pid
    assert f"web-3 does not answer: process {pid} is stopped\n" in text


def test_explain_for_programs_and_of_one_member(group: dict[str, Terminal]) -> None:
    (only,) = json.loads(told("explain", "orders", "--member", "web-1", "--json"))
    assert only["member"] == "web-1"
    assert any("limited by web-3" in reason for reason in only["reasons"])
    everybody = json.loads(told("explain", "orders", "--json"))
    assert [(one["member"], one["answers"]) for one in everybody] == [
        ("web-1", True),
        ("web-2", True),
        ("web-3", False),
    ]


def test_who_is_in_the_group(group: dict[str, Terminal]) -> None:
    pids = {name: terminal.process.pid for name, terminal in group.items()}
    title, *lines = told("members").splitlines()
    assert title == "orders: view 3, 3 members"
    words = [re.split(r"  +", line.strip()) for line in lines]
    assert [(name, process, state) for name, _, process, state in words] == [
        ("web-1", f"process {pids['web-1']}", "in the group"),
        ("web-2", f"process {pids['web-2']}", "in the group"),
        (
            "web-3",
            f"process {pids['web-3']}",
            f"does not answer: process {pids['web-3']} is stopped",
        ),
    ]
    (view,) = json.loads(told("members", "orders", "--json"))
    assert {one["name"]: one["pid"] for one in view["members"]} == pids


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (120, 40)])
def test_top_on_a_terminal_shows_it_and_the_manual_shows_such_a_terminal(
    group: dict[str, Terminal], columns: int, rows: int
) -> None:
    options = ("top", "orders", "--interval", "0.1")
    with Terminal(*options, screen=True, columns=columns, rows=rows) as terminal:
        terminal.until(r"does not answer for \d+\.[1-9] s")
        terminal.until(r"web-1, web-2: web-3 is silent[^H]*\x1b\[J")
        status, shown, errors = terminal.end(signal.SIGINT)
    assert (status, errors) == (130, "ringcast: interrupted\n")
    assert shown.startswith("\x1b[?25l\x1b[2J\x1b[H")
    assert shown.rstrip().endswith("\x1b[?25h")
    # Each look is drawn over the one before; the last may not have come to its end.
    looks = re.findall(r"\x1b\[H([^H]*)\x1b\[J", shown)
    assert len(looks) >= 2
    assert "\x1b[31mweb-3: full for" in looks[-1]  # red
    lines = click.unstyle(looks[-1]).split("\r\n")
    assert len(lines) < rows
    assert max(map(len, lines)) <= columns
    assert lines[3].endswith(" s")  # who waits for whom, and since when, is not cut off
    (capture,) = re.findall(r"```\n\$ ringcast top orders\n(.*?)```", PAGE.read_text(), re.S)
    assert shape("\n".join(lines)) == shape(capture)


def last_look(terminal: Terminal) -> list[str]:
    """The lines of the last look that came to its end."""
    return click.unstyle(re.findall(r"\x1b\[H([^H]*)\x1b\[J", terminal.shown)[-1]).split("\r\n")


@pytest.mark.parametrize(
    ("columns", "rows", "headings"),
    [
        (50, 10, ["MEMBER", "SENT/s", "WINDOW", "WAITS", "FOR"]),
        (34, 8, ["MEMBER", "WAITS", "FOR"]),
    ],
)
def test_a_terminal_that_is_too_small_shows_who_waits_for_whom(
    group: dict[str, Terminal], columns: int, rows: int, headings: list[str]
) -> None:
    options = ("top", "orders", "--interval", "0.1")
    with Terminal(*options, screen=True, columns=columns, rows=rows) as small:
        small.until(r"full for[^H]*1 more  every[^H]*\x1b\[J")
        assert small.end(signal.SIGTERM)[0] == 0
    lines = last_look(small)
    assert len(lines) < rows
    assert max(map(len, lines)) <= columns
    assert lines[2].split() == headings
    assert re.fullmatch(r"web-1 .* web-3: full for [\d.]+ s", lines[3])
    assert lines[4].startswith("web-3   does not answer for ")
    assert lines[-1].startswith("1 more  every 0.1 s  q quit")


def test_top_has_keys(group: dict[str, Terminal]) -> None:
    with Terminal("top", "orders", "--interval", "0.4", screen=True) as terminal:
        terminal.until("every 0.4 s  q quit")
        terminal.type("+")
        terminal.until("every 0.8 s")
        terminal.type("--")
        terminal.until("every 0.2 s")
        terminal.type(" ")
        terminal.until("paused  q quit")
        terminal.type("w")
        terminal.until(r"WAITS FOR\S*\s+web-3 [^H]*web-1 [^H]*web-2 ")
        terminal.type("q")
        while terminal.process.poll() is None:
            pass
        assert terminal.process.returncode == 0


def test_top_draws_anew_when_its_terminal_is_resized(group: dict[str, Terminal]) -> None:
    with Terminal("top", "orders", "--interval", "600", screen=True, columns=120) as terminal:
        terminal.until(r"DELIV/s[^H]*\x1b\[J")
        terminal.resize(50, 10)
        terminal.until(r"(?s)\x1b\[2J.*\x1b\[2J\x1b\[H[^H]*full for[^H]*\x1b\[J")
        lines = last_look(terminal)
    assert max(map(len, lines)) <= 50
    assert len(lines) < 10


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_that_nobody_wants_are_left_out(
    name: str, value: str, group: dict[str, Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with Terminal("top", "orders", "--interval", "0.1", screen=True) as terminal:
        terminal.until(r"full for[^H]*\x1b\[J")
    assert not re.search(r"\x1b\[[\d;]*m", terminal.shown)
    assert "\x1b[H" in terminal.shown  # it is drawn in its place all the same


def test_the_manual_shows_what_explain_says(group: dict[str, Terminal]) -> None:
    (capture,) = re.findall(r"```\n\$ ringcast explain orders\n(.*?)```", PAGE.read_text(), re.S)
    text = until(lambda: told("explain", "orders"), "web-2: web-3 is silent")
    assert sorted(map(shape, capture.splitlines())) == sorted(map(shape, text.splitlines()))


def shape(text: str) -> str:
    """Without what differs from time to time and from machine to machine: durations, processes and
    socket buffers; and with them widths and where lines end."""
    text = re.sub(r"\s+", " ", text).strip()
    text = re.sub(r"process \d+", "process #", text)
    text = re.sub(r"\d+ of \d+ bytes", "# bytes", text)
    return re.sub(r"\d+\.\d s", "# s", text)


def test_top_once(group: dict[str, Terminal]) -> None:
    lines = told("top", "orders", "--once", "--interval", "0.1").splitlines()
    assert lines[0] == "orders, view 3: web-1, web-2, web-3"
    assert re.split(" +", lines[3])[:7] == ["web-1", "0", "0", "0", "16/16", "0", "0"]
    assert lines[6] == ""
    assert lines[7].startswith("web-1: send on fifo blocked for ")
    (line,) = told("top", "orders", "--once", "--json", "--interval", "0.1").splitlines()
    first, second, third = json.loads(line)
    assert first["rates_per_s"] == {"sent": 0, "delivered": 0, "retransmitted": 0}
    fifo = first["sent"][0]
    assert (fifo["low"], fifo["high"], fifo["capacity"]) == (1, 17, 16)
    assert fifo["blocked_s"] > 0
    assert [one["name"] for one in fifo["waits_for"]] == ["web-3"]
    assert second["answers"] is True
    assert third["answers"] is False
    assert third["member"] == "web-3"


def test_stats(group: dict[str, Terminal]) -> None:
    result = ringcast("stats", "orders", "--json")
    assert result.returncode == 0
    assert re.fullmatch(r"web-3 does not answer: process \d+ is stopped\n", result.stderr)
    one, two = json.loads(result.stdout)
    assert one["stats"]["ViewStreams"]["sent"]["fifo"]["acks"]["web-3"] == [1, 1]
    assert two["member"]["name"] == "web-2"
    text = told("stats", "orders", "--member", "web-2")
    assert re.match(r"web-2, process \d+\n  member  web-2\n", text)
    assert "\n    received\n      web-1/fifo\n" in text


def test_stats_as_prometheus_reads_them(group: dict[str, Terminal]) -> None:
    text = told("stats", "orders", "--member", "web-1", "--prometheus")
    address = json.loads(told("members", "orders", "--json"))[0]["members"][0]["address"]
    own = f'group="orders",member="web-1",address="{address}"'
    assert f"ringcast_members{{{own}}} 3\n" in text
    assert f'ringcast_sent_total{{{own},stream="fifo"}} 17\n' in text
    assert f'ringcast_window_messages{{{own},stream="fifo"}} 16\n' in text
    blocked = re.search(rf'ringcast_blocked_seconds{{{own},stream="fifo"}} ([\d.]+)\n', text)
    assert blocked is not None
    assert float(blocked[1]) > 0
    typed = re.findall(r"^# TYPE (ringcast_\w+) (?:gauge|counter)$", text, re.M)
    assert len(set(typed)) == len(typed) >= 15
    sampled = re.findall(r"^(ringcast_\w+)\{.*\} [\d.e+-]+$", text, re.M)
    assert list(dict.fromkeys(sampled)) == typed
    assert len(text.splitlines()) == len(sampled) + 2 * len(typed)


def test_sync_of_what_has_never_spoken_is_no_mistake_of_others(group: dict[str, Terminal]) -> None:
    assert mistake("sync", "orders", "web-1", "--member", "web-2") == (
        "web-2 does not: nothing has come from web-1 yet: there is nothing to sync"
    )


def test_members_that_are_not_there(group: dict[str, Terminal]) -> None:
    pid = group["web-3"].process.pid
    assert mistake("explain", "orders", "--member", "web-9") == (
        "no member 'web-9' of group 'orders' here; here are web-1, web-2, web-3"
    )
    assert mistake("stats", "orders", "--member", "web-3") == (
        f"web-3 does not answer: process {pid} is stopped"
    )
    assert mistake("top", "bills") == (
        "no member of group 'bills' runs here; groups here: 'orders'"
    )
    assert "no member named 'web-9' in View 3" in mistake("sync", "orders", "web-9")


def test_who_is_asked_in_vain_for_long_is_named_all_the_same(group: dict[str, Terminal]) -> None:
    pid = group["web-3"].process.pid
    directory = group_directory("orders")
    (probe,) = (name for name in probes(directory) if name.endswith(f"-{pid}"))
    with ExitStack() as crowd:

        def ask_in_vain() -> None:
            for _ in range(4 * CLIENTS_MAX):
                sock = connect(directory, probe)
                assert sock is not None
                crowd.enter_context(sock)

        with pytest.raises(BlockingIOError):
            ask_in_vain()
    assert f"web-3 does not answer: process {pid} is stopped\n" in told("explain", "orders")


def test_it_goes_on_when_it_may(group: dict[str, Terminal]) -> None:
    """The last of these tests: after it there is nothing to see any more."""
    group["web-3"].process.send_signal(signal.SIGCONT)
    last = f"web-1: order {2 * ROOM - 1}"
    for terminal in group.values():
        terminal.until(last)
    assert until(lambda: told("explain", "orders"), "^nothing waits$")
    status, _, errors = group["web-1"].end()
    assert status == 0
    assert "waiting: send on fifo blocked" in errors
    assert "limited by web-3" in errors
    status, shown, errors = group["web-3"].end(signal.SIGTERM)
    assert (status, errors) == (0, "")
    assert shown.splitlines()[-1].startswith("-- View")


# Names


def test_long_names_and_wide_letters_fit_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # private, as pytest makes it
    long, wide = "orders-worker-" + "6" * 48, "注文処理係" * 4
    with member(long, tmp_path), member(wide, tmp_path) as last:
        last.until("View 2")
        for words in (["members"], ["top", "orders", "--once"], ["stats", "orders"]):
            with Terminal(*words, screen=True, columns=80) as terminal:
                _, shown, _ = terminal.end()
            lines = shown.replace("\r\n", "\n").splitlines()
            assert any(wide in line for line in lines)
            assert [line for line in lines if cells(line) > 80] == []
