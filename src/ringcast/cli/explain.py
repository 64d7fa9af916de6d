"""ringcast explain: what waits in a group, for whom, since when, and what happens next."""

from __future__ import annotations

import json

import click

from ringcast.cli.local import ask_group, refusals
from ringcast.cli.words import safe


@click.command()
@click.argument("group")
@click.option("--member", metavar="NAME", help="Only this one, by name or address.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def explain(group: str, member: str | None, as_json: bool) -> None:
    """What waits in a group, for whom, and since when: a sentence for each.

    All members of this user on this machine are asked. One that does not answer is named, too.

    \b
    Examples:
      ringcast explain orders
      ringcast explain orders --member web-1
    """
    replies = ask_group(group, {"ask": "explain"}, member)
    refusals(replies)
    if as_json:
        lines = [
            {
                "member": reply.who,
                "pid": reply.pid,
                "reasons": None if reply.answer is None else reply.answer["reasons"],
                "answers": reply.answer is not None,
                "why_not": "" if reply.answer is not None else reply.error or reply.silence,
            }
            for reply in replies
        ]
        click.echo(json.dumps(lines))
        return
    waits = False
    for reply in replies:
        if reply.answer is None:
            waits = True
            click.echo(f"{reply.who} does not answer: {reply.error or reply.silence}")
        else:
            for reason in reply.answer["reasons"]:
                waits = True
                click.echo(f"{reply.who}: {safe(reason)}")
    if not waits:
        click.echo("nothing waits")
