"""Options of commands that join a group: as the settings are declared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Any

import click

from ringcast.config import GroupConfig, MembershipConfig
from ringcast.config_file import PRESETS, load_config

DECLARED = {field.name: field for kind in (GroupConfig, MembershipConfig) for field in fields(kind)}


def setting(name: str, default: str | None = None) -> Callable[[Any], Any]:
    """The option for this setting. What is not given is as the file and the environment say."""
    field = DECLARED[name]
    kind, text = field.metadata["kind"], field.metadata["help"]
    if field.default and isinstance(field.default, str) and default is None:
        text += f"  [default: {field.default}]"
    flag = f"--{name.replace('_', '-')}"
    names = [flag.removesuffix("s"), flag, name] if kind.word == "list" else [flag]
    more: dict[str, Any] = {"is_flag": kind.word == "flag"}
    if kind.word != "flag":
        more = {"metavar": kind.metavar, "multiple": kind.word == "list", "type": kind.type}
    if kind.type is Path:
        more["type"] = click.Path(path_type=Path, file_okay=kind.metavar == "FILE")
    elif isinstance(kind.type, tuple):
        more["type"] = click.Choice(kind.type)
    names += [field.metadata["name"]] if "name" in field.metadata else []
    return click.option(
        *names, default=default, show_default=default is not None, help=text, **more
    )


def settings(*names: str) -> Callable[[Any], Any]:
    """Those for these, in this order."""

    def declare(command: Any) -> Any:
        for name in reversed(names):
            command = setting(name)(command)
        return command

    return declare


def config_options(command: Any) -> Any:
    """Where the settings may stand that have no option. Instead of them, its group and its name the
    command gets the configuration that all of this comes to."""

    @wraps(command)
    def configured(*, group: str | None, name: str | None, **given: Any) -> None:
        terms = {key: given.pop(key) for key in ("preset", "options")}
        config = load_config(given.pop("config_file"), group=group, name=name, **terms)
        command(config=config, **given)

    preset = click.option(
        "--preset", type=click.Choice(list(PRESETS)), help="Values for a kind of network."
    )
    file = click.option(
        "--config",
        "config_file",
        type=click.Path(path_type=Path),
        metavar="FILE.toml",
        help="Sections [group], [multicast], [multicast.stability], [unicast], [membership].",
    )
    one = click.option(
        *("--set", "options"),
        multiple=True,
        metavar="SECTION.KEY=VALUE",
        help="What could stand in the file; may be given more than once.",
    )
    return file(preset(one(configured)))
