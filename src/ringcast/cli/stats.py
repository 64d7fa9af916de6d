"""ringcast stats: every table of every member here with its size, and every counter."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from ringcast.aio.prometheus import exposition
from ringcast.cli.local import ask_group, refusals
from ringcast.cli.words import safe
from ringcast.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator


@click.command()
@click.argument("group")
@click.option("--member", metavar="NAME", help="Only this one, by name or address.")
@click.option("--json", "as_json", is_flag=True, help="For programs: an object per member.")
@click.option("--prometheus", is_flag=True, help="The main figures in Prometheus' text format.")
def stats(group: str, member: str | None, as_json: bool, prometheus: bool) -> None:
    """Every table with its size, and every counter, of the members of a group here.

    What is listed grows and shrinks with versions; what --prometheus prints keeps its names.

    \b
    Examples:
      ringcast stats orders
      ringcast stats orders --member web-1 --json
      ringcast stats orders --prometheus > /var/lib/node_exporter/ringcast.prom
    """
    if as_json and prometheus:
        raise UsageError("--json or --prometheus, not both")
    replies = ask_group(group, {"ask": "top" if prometheus else "stats"}, member)
    refusals(replies)
    answers = [reply.answer for reply in replies if reply.answer is not None]
    for reply in replies:
        if reply.answer is None:
            click.echo(f"{reply.who} does not answer: {reply.error or reply.silence}", err=True)
    if prometheus:
        click.echo(exposition(answers), nl=False)
    elif as_json:
        click.echo(json.dumps(answers))
    else:
        for answer in answers:
            click.echo(f"{safe(answer['member']['name'])}, process {answer['pid']}")
            click.echo("\n".join(_tree(answer["stats"], "  ")))


def _tree(content: dict[str, object], indent: str) -> Iterator[str]:
    for key, value in content.items():
        if isinstance(value, dict) and value:
            yield f"{indent}{safe(key)}"
            yield from _tree(value, indent + "  ")
        else:
            shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield f"{indent}{safe(key)}  {safe(shown)}"
