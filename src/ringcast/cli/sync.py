"""ringcast sync: have members ask one of them where its messages to them stand."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from ringcast.cli.local import ask_group, refusals
from ringcast.cli.words import safe
from ringcast.errors import UsageError

if TYPE_CHECKING:
    from ringcast.cli.local import Reply


@click.command()
@click.argument("group")
@click.argument("peer")
@click.option("--member", metavar="NAME", help="Only this one asks, by name or address.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def sync(group: str, peer: str, member: str | None, as_json: bool) -> None:
    """Have the members here ask PEER where its messages to each of them alone stand, and go on from
    there. For when they are stuck; it changes nothing where all is well.

    PEER is a member of their view, by name or address. It is asked by each member of this user on
    this machine that has had a message from it. `ringcast explain` shows the question until it is
    answered.

    \b
    Examples:
      ringcast sync orders web-3
      ringcast sync orders web-3 --member web-1
    """
    replies = ask_group(group, {"ask": "sync", "peer": peer}, member)
    refusals(replies)
    asked = [(reply.who, _why_not(reply)) for reply in replies]
    lines = [f"{who} does not: {why}" if why else f"{who} asks {safe(peer)}" for who, why in asked]
    if all(why for _, why in asked):
        raise UsageError("; ".join(lines))
    if as_json:
        told = [{"member": who, "asks": not why, "why_not": why} for who, why in asked]
        click.echo(json.dumps(told))
    else:
        click.echo("\n".join(lines))


def _why_not(reply: Reply) -> str:
    if reply.answer is None:
        return reply.error or reply.silence
    return safe(reply.answer["refusal"])
