"""Options of all commands that are members: where they are, whom they look for, what they agree on.
What is not given comes from the environment and the file (ringcast/config_file.py)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from ringcast.config import TransportName
from ringcast.config_file import PRESETS

if TYPE_CHECKING:
    from collections.abc import Callable

C = TypeVar("C", bound="Callable[..., Any]")


def member_options(name: str | None = None) -> Callable[[C], C]:
    """All of them; `name` is what the member is called by default."""
    called = click.option(
        "--name", default=name, show_default=name is not None, help="What to call this member."
    )

    def decorate(command: C) -> C:
        for option in reversed([called, *_OPTIONS]):
            command = option(command)
        return command

    return decorate


_OPTIONS: list[Callable[[Any], Any]] = [
    click.option("--listen", metavar="HOST:PORT", help="Address to use.  [default: 127.0.0.1:0]"),
    click.option("--advertise", metavar="HOST:PORT", help="Where others reach it, if elsewhere."),
    click.option(
        *("--member", "--members", "members"),
        multiple=True,
        metavar="HOST:PORT",
        help="Where others may be found; may be given more than once.",
    ),
    click.option(
        "--transport",
        type=click.Choice(get_args(TransportName)),
        help="How datagrams travel: the same for all members.  [default: udp]",
    ),
    click.option(
        *("--key-file", "key"),
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="The key of the group: see `ringcast keygen`.  [default: your own, on this machine]",
    ),
    click.option(
        "--insecure",
        is_flag=True,
        default=None,
        help="Use no key, and allow addresses beyond this machine: nothing is encrypted.",
    ),
    click.option(
        "--config",
        "config_file",
        type=click.Path(path_type=Path),
        metavar="FILE.toml",
        help="Sections [group], [multicast], [multicast.stability], [unicast], [membership].",
    ),
    click.option(
        "--preset", type=click.Choice(list(PRESETS)), help="Values for a kind of network."
    ),
    click.option(
        *("--set", "options"),
        multiple=True,
        metavar="SECTION.KEY=VALUE",
        help="What could stand in the file; may be given more than once.",
    ),
]

must_exist_option = click.option(
    "--must-exist", is_flag=True, default=None, help="Do not start the group if nobody is there."
)
