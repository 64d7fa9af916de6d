"""ringcast sync: have members ask one of them where its messages to them stand."""

from __future__ import annotations

import click

from ringcast.cli.local import ask_group, refusals
from ringcast.cli.words import safe
from ringcast.errors import UsageError


@click.command()
@click.argument("group")
@click.argument("peer")
@click.option("--member", metavar="NAME", help="Only this one asks, by name or address.")
def sync(group: str, peer: str, member: str | None) -> None:
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
    lines = []
    for reply in replies:
        if reply.answer is None:
            lines.append(f"{reply.who} does not: {reply.error or reply.silence}")
        elif reply.answer["refusal"]:
            lines.append(f"{reply.who} does not: {safe(reply.answer['refusal'])}")
        else:
            lines.append(f"{reply.who} asks {safe(reply.answer['peer']['name'])}")
    if not any(reply.answer and reply.answer["peer"] for reply in replies):
        raise UsageError("; ".join(lines))
    click.echo("\n".join(lines))
