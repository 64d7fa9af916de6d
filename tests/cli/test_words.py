"""Tables on terminals: no wider than those are, and no word is broken."""

from __future__ import annotations

import click
import pytest
from terminals import Terminal, ringcast

from ringcast.cli import words
from ringcast.cli.words import counted, print_table

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
