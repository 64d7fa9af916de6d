"""ringcast bench: the benchmarks of the repository, which are not installed with the library."""

from __future__ import annotations

import sys

import click

from ringcast import cli
from ringcast.errors import UsageError


class _Benchmarks(click.Group):
    """Commands come from the table in benchmarks/, which is imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_commands() if cli.BENCHMARKS.is_file() else ())  # --help has that to say

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _commands().get(cmd_name)


def _commands() -> dict[str, click.Command]:
    if not cli.BENCHMARKS.is_file():
        raise UsageError("benchmarks come with the repository: run this in a checkout of it")
    root = str(cli.BENCHMARKS.parents[1])
    if root not in sys.path:
        sys.path.insert(0, root)
    from benchmarks.table import COMMANDS

    return COMMANDS


@click.group(short_help="Measure parts and whole groups; in a checkout.", cls=_Benchmarks)
def bench() -> None:
    """Measure parts and whole groups. Figures move with the machine; ratios in one run count.
    What measures comes with the repository, not with the library.

    Example: ringcast bench codec
    """
