"""--json wherever a machine may read it. What asks members is tested where there are some, the
audit where there is Spark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click
import pytest
from terminals import ringcast

from ringcast.cli import main
from ringcast.cli.words import OUTPUT_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FOR_PEOPLE = {"demo", "replay"}
"""Stories, to be read."""


DOERS = {"forget", "prune", "build", "compact"}
"""They change files, and say in a line that they did."""


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[click.Command]:
    if not isinstance(command, click.Group):
        yield command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        if name not in FOR_PEOPLE | DOERS:
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, (*path, name))


def test_every_command_has_it() -> None:
    found = list(commands(main))
    assert len(found) > 15
    for command in found:
        assert any("--json" in option.opts for option in command.params), command.name


def test_it_takes_the_same_argument_in_every_command() -> None:
    """None, - or a file."""
    for command in commands(main):
        (option,) = (each for each in command.params if "--json" in each.opts)
        assert option.type is OUTPUT_FILE, command.name


@pytest.mark.parametrize("group", ["orders", "orders.eu"])
def test_a_word_for_the_command_is_no_file(group: str) -> None:
    result = ringcast("members", "--json", group)
    assert result.returncode == 2
    assert f"{group} is no JSON file" in result.stderr


@pytest.mark.parametrize(
    ("args", "keys"),
    [
        ("simulate --seeds 0:2 --json", {"protocol", "seeds", "violations", "rules"}),
        ("simulate --economy 2 --json", {"members", "way"}),
        ("explore ring --scenario A --json -", {"variant", "scenarios"}),
        ("explore sync --seconds 0 --json", {"states", "complete", "violations"}),
        ("bench ring --elements 200 --json -", {"elements", "adders"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_all_that_is_printed_is_json(args: str, keys: set[str]) -> None:
    result = ringcast(*args.split())
    assert result.returncode in (0, 1)  # 1: so few seeds prove nothing
    found = json.loads(result.stdout)
    first = found[0] if isinstance(found, list) else found
    assert keys <= first.keys()
    assert result.stderr == ""


def test_figures_in_a_file_leave_the_table_on_the_screen(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    result = ringcast("simulate", "--json", str(path), "--seeds", "0:2")
    assert result.stdout.startswith("rule ")
    assert json.loads(path.read_text())["seeds"] == [0, 2]


def test_a_member_writes_a_line_for_each_event_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # private, as pytest makes it
    path = tmp_path / "events.jsonl"
    result = ringcast("join", "x", "--name", "a", "--json", str(path))
    assert (result.returncode, result.stdout) == (0, "-- View 1: a\n")
    assert json.loads(path.read_text()) == {"event": "view", "view": 1, "members": ["a"]}
