"""The command line: one file per command, gathered here."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any

import click

from ringcast.errors import RingcastError

COMMANDS = {
    "archive": "ringcast.cli.archive",
    "audit": "ringcast.cli.audit",
    "bench": "ringcast.cli.bench",
    "demo": "ringcast.cli.demo",
    "explain": "ringcast.cli.local",
    "explore": "ringcast.cli.explore",
    "health": "ringcast.cli.health",
    "join": "ringcast.cli.join",
    "keygen": "ringcast.cli.keygen",
    "members": "ringcast.cli.local",
    "publish": "ringcast.cli.publish",
    "replay": "ringcast.cli.replay",
    "simulate": "ringcast.cli.simulate",
    "stats": "ringcast.cli.local",
    "sync": "ringcast.cli.local",
    "tables": "ringcast.cli.tables",
    "top": "ringcast.cli.top",
}
"""Command → the module that defines it under its name. Imported when used: `ringcast
--help` must not wait for what one command needs."""

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks" / "table.py"
"""Not installed with the library."""

SPARK = {"pyspark", "pyarrow", "pandas", "numpy", "duckdb"}
"""What ringcast alone does not bring."""

UNIX = {"fcntl", "resource", "termios"}
"""What comes with Python, but not on Windows."""

_NO_ARGUMENTS: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""How newer versions of click show the help when nothing is asked for: that is no mistake."""


class Mistake(click.ClickException):
    """What was asked cannot be done: one line says why."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"ringcast: {' '.join(self.format_message().splitlines())}", file=file, err=True)


@contextmanager
def _mistakes() -> Iterator[None]:
    try:
        yield
    except _NO_ARGUMENTS:
        raise
    except click.UsageError as error:
        path = "ringcast" if error.ctx is None else error.ctx.command_path
        raise Mistake(f"{error.format_message()} (see {path} --help)") from error
    except RingcastError as error:
        raise Mistake(str(error)) from error
    except ModuleNotFoundError as error:
        if error.name in UNIX:
            raise Mistake(
                f"this works on Unix alone: {sys.platform} has no {error.name}"
            ) from error
        if (error.name or "").partition(".")[0] not in SPARK:
            raise
        what = f"this needs {error.name}, which is not installed"
        raise Mistake(f'{what}: pip install "ringcast[spark]"') from error
    except KeyboardInterrupt:
        click.echo("ringcast: interrupted", err=True)
        sys.exit(130)
    except OSError as error:
        # A file or directory that was asked for; whatever else the system says is our bug.
        if error.filename is None:
            raise
        raise Mistake(f"{error.filename}: {error.strerror}") from error


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS if BENCHMARKS.is_file() else COMMANDS.keys() - {"bench"})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(COMMANDS[cmd_name]), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and (near := get_close_matches(args[0], COMMANDS, 1)):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with _mistakes():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        with _mistakes():
            return super().invoke(ctx)


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ringcast")
@click.pass_context
def main(context: click.Context) -> None:
    """Reliable group messaging, and the tools that prove what it promises.

    Each command has --help with an example.
    """
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        context.color = False
