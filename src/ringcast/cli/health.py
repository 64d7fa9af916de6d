"""ringcast health: whether the members of a group that run here are ready, as an exit status."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ringcast.cli.local import answers, member_option
from ringcast.cli.words import is_told, json_file_option, safe


@click.command(short_help="Whether members are ready; for probes and scripts.")
@click.argument("group")
@member_option
@json_file_option
def health(group: str, member: str | None, json_file: Path | None) -> None:
    """Whether members are ready: in the group, with enough others, and with their state.

    All members of this user on this machine are asked, each for a second at the most. Exits with 0
    if all of them are ready, with 1 if one is not or does not answer, with 2 if none runs here.

    \b
    Examples:
      ringcast health orders
      ringcast health orders --member web-1
    """
    replies = answers(group, {"ask": "health"}, member)
    found = {
        reply.who: [f"does not answer: {reply.why_not}"]
        if reply.answer is None
        else reply.answer["reasons"]
        for reply in replies
    }
    told = [{"member": who, "ready": not why, "reasons": why} for who, why in found.items()]
    if not is_told(told, json_file):
        for who, reasons in found.items():
            click.echo(f"{who}: {safe('; '.join(reasons)) or 'ready'}")
    sys.exit(any(found.values()))
