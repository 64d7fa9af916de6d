"""Tables on terminals: no wider than those are, and no word is broken."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click
import pytest
from terminals import Terminal, ringcast

from ringcast.cli import main, words
from ringcast.cli.words import cells, cut, print_table
from ringcast.texts import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

PROSE = [
    ["", "verdict", "guarantee"],
    ["G1", "ok", "only what was sent is delivered, and nothing else ever is"],
    ["VS3", "unknown tail", "short"],
]
FIGURES = [
    ["transport", "rate per member", "control frames", "lost"],
    ["udp", "205514", "3.2", "0"],
    ["multicast", "98", "11.25", "0"],
]


def printed(
    rows: list[list[str]],
    columns: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    right: tuple[int, ...] = (),
) -> list[str]:
    with monkeypatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        patch.setattr(words.sys.stdout, "isatty", lambda: True, raising=False)
        print_table(rows, right)
    return capsys.readouterr().out.splitlines()


def test_sentences_go_on_below(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert printed(PROSE, 50, capsys, monkeypatch) == [
        "     verdict       guarantee",
        "G1   ok            only what was sent is",
        "                   delivered, and nothing else",
        "                   ever is",
        "VS3  unknown tail  short",
    ]


def test_headings_break_first_and_then_columns_move_below(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = (1, 2, 3)
    wide = printed(FIGURES, 80, capsys, monkeypatch, right)
    assert wide[0] == "transport  rate per member  control frames  lost"
    assert printed(FIGURES, 40, capsys, monkeypatch, right) == [
        "             rate",
        "              per  control",
        "transport  member   frames  lost",
        "udp        205514      3.2     0",
        "multicast      98    11.25     0",
    ]
    assert printed(FIGURES, 24, capsys, monkeypatch, right) == [
        "             rate",
        "              per",
        "transport  member",
        "udp        205514",
        "multicast      98",
        "",
        "           control",
        "transport   frames  lost",
        "udp            3.2     0",
        "multicast    11.25     0",
    ]


@pytest.mark.parametrize("columns", [1, 12, 30])
def test_no_terminal_is_too_narrow(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for rows in (PROSE, FIGURES):
        shown = " ".join(printed(rows, columns, capsys, monkeypatch)).split()
        assert set(" ".join(" ".join(row) for row in rows).split()) == set(shown)


def test_in_a_pipe_each_row_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(PROSE)
    assert len(capsys.readouterr().out.splitlines()) == len(PROSE)


def test_letters_may_be_two_cells_wide(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [cells(text) for text in ("abc", "注文", "e\u0301", "\x1b[31mab\x1b[0m")] == [3, 4, 1, 2]
    assert [cut("注文処理", room) for room in (8, 7, 4, 1)] == ["注文処理", "注文処…", "注…", "…"]
    rows = [["member", "state"], ["注文", "here"], ["web-1", "注文 処理 注文 処理"]]
    assert printed(rows, 20, capsys, monkeypatch) == [
        "member  state",
        "注文    here",
        "web-1   注文 処理",
        "        注文 処理",
    ]


def test_a_row_goes_on_below_if_its_name_leaves_no_room(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "n" * 22
    rows = [["member", "address", "process"], [name, "10.0.0.1:7800", "process 7"]]
    assert printed(rows, 24, capsys, monkeypatch) == [
        "member address process",
        name,
        "    10.0.0.1:7800",
        "    process 7",
    ]


def commands(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    """By its words: the help of this command, and of those below it."""
    context.terminal_width = 80
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, click.Context(below, context, name))


HELP = dict(commands(main, click.Context(main, info_name="ringcast")))


@pytest.mark.parametrize("command", HELP)
def test_help_fits_a_terminal(command: str) -> None:
    assert [line for line in HELP[command].splitlines() if cells(line) > 80] == []


def test_no_sentence_of_a_list_of_commands_is_cut() -> None:
    cut_short = re.compile(r"^  [a-z]+ .*\.\.\.$", re.MULTILINE)
    assert {name: found for name, text in HELP.items() if (found := cut_short.findall(text))} == {}


@pytest.mark.parametrize("command", ["simulate --economy 2", "replay --seed 7"])
def test_runs_fit_a_terminal(command: str) -> None:
    with Terminal(*command.split(), screen=True, columns=80) as terminal:
        terminal.until(r"reports, retained .*\n|trace \w+")
    lines = click.unstyle(terminal.shown).split("\r\n")
    assert [line for line in lines if cells(line) > 80] == []


def test_one_is_one() -> None:
    assert [counted(count, "row") for count in (0, 1, 2)] == ["0 rows", "1 row", "2 rows"]


@pytest.mark.parametrize("columns", [80, 120])
def test_simulations_fit_a_terminal(columns: int) -> None:
    options = ("simulate", "--seeds", "0", "--matrix")
    with Terminal(*options, screen=True, columns=columns) as terminal:
        terminal.until(r"1 seed · 0 violations · ")
    lines = click.unstyle(terminal.shown).split("\r\n")
    assert max(map(len, lines)) <= columns
    assert "\x1b[33mnever had a case\x1b[0m" in terminal.shown
    assert "\x1b[" not in ringcast(*options).stdout
