"""The command line: one file per command, gathered here."""

from __future__ import annotations

import importlib

import click

from ringcast.errors import UsageError

COMMANDS = {
    "audit": "ringcast.cli.audit",
    "bench": "ringcast.cli.bench",
    "demo": "ringcast.cli.demo",
    "explore": "ringcast.cli.explore",
    "replay": "ringcast.cli.replay",
    "simulate": "ringcast.cli.simulate",
}
"""Command → the module that defines it under the same name. Imported when used: `ringcast
--help` must not wait for what one command needs."""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(COMMANDS[cmd_name]), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except UsageError as error:
            raise click.UsageError(str(error), ctx) from error


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ringcast")
def main() -> None:
    """Reliable group messaging, and the tools that prove what it promises.

    Each command has --help with an example.
    """
