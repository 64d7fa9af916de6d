"""What options may hold, beyond what click knows: mistakes are told before any work begins."""

from __future__ import annotations

import re
from pathlib import Path

import click

SCREEN = Path("-")

MASTERS = re.compile(r"local(\[[^]]+\])?|local-cluster\[[^]]+\]|(spark|k8s)://.+|yarn")


class OutputFile(click.ParamType[Path]):
    """A file that can be written; - is the screen."""

    name = "FILE"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path:
        path = Path(str(value))
        if path != SCREEN and path.is_dir():
            self.fail(f"{path} is a directory", param, ctx)
        if not path.parent.is_dir():
            self.fail(f"{path.parent} is not a directory", param, ctx)
        return path


class SparkMaster(click.ParamType[str]):
    """Where Spark runs."""

    name = "URL"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        if not MASTERS.fullmatch(str(value)):
            self.fail(f"{value!r}: write local[*], or such as spark://host:7077", param, ctx)
        return str(value)


json_file_option = click.option(
    *("--json", "json_file"),
    is_flag=False,
    flag_value=str(SCREEN),
    type=OutputFile(),
    metavar="[FILE]",
    help="Print JSON instead; with a FILE, write it there as well.",
)
"""`--json` at the end of a command, as everywhere; or with a file."""
