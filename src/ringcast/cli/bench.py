"""ringcast bench: the benchmarks of the repository, which are not installed with the library."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ringcast.errors import UsageError

ROOT = Path(__file__).resolve().parents[3]


class _Benchmarks(click.Group):
    """Commands come from the table in benchmarks/, which is imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _commands().get(cmd_name)


def _commands() -> dict[str, click.Command]:
    if not (ROOT / "benchmarks" / "table.py").is_file():
        raise UsageError("benchmarks come with the repository: run this in a checkout of it")
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    from benchmarks.table import COMMANDS

    return COMMANDS


@click.group(cls=_Benchmarks)
def bench() -> None:
    """Measure parts and whole groups. Figures move with the machine; ratios in one run count.

    Example: ringcast bench codec
    """
