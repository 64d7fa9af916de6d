"""What the documents say is there: commands with help, links with targets, code that runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from ringcast.bench.cluster import free_ports
from ringcast.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


@pytest.mark.parametrize("path", list(commands(main)), ids=" ".join)
def test_every_command_has_help_with_an_example(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, [*path, "--help"])
    assert result.exit_code == 0
    assert f"ringcast {path[0]}" in result.output.split("Example", 1)[1]


def test_an_unknown_command_is_refused() -> None:
    result = CliRunner().invoke(main, ["explode"])
    assert result.exit_code == 2
    assert "No such command" in result.output


def test_no_placeholder_is_left() -> None:
    for page in PAGES:
        assert not re.findall(r"^[A-Z]+_[A-Z_]+$", page.read_text(), re.M), page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        assert "://" in target or (page.parent / target).exists(), target


def test_the_first_program_of_the_readme_runs_in_two_terminals(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    first, second = (f"127.0.0.1:{port}" for port in free_ports(2))
    text = program.replace("127.0.0.1:7801", first).replace("127.0.0.1:7802", second)
    (tmp_path / "hello.py").write_text(text)
    terminals = [
        subprocess.Popen(
            [sys.executable, "-u", tmp_path / "hello.py", mine], stdout=subprocess.PIPE, text=True
        )
        for mine in (first, second)
    ]
    try:
        for terminal in terminals:
            assert terminal.stdout is not None
            lines = [terminal.stdout.readline().strip() for _ in range(3)]
            assert lines[0] == f"View 1: {first}, {second}"
            assert set(lines[1:]) == {f"{who} 1 b'hello from {who}'" for who in (first, second)}
    finally:
        for terminal in terminals:
            terminal.kill()
            terminal.communicate()
