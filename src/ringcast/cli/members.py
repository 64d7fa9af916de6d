"""ringcast members: which groups have members here, and who is in them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from ringcast.cli.local import ask, ask_group, group_directories, probes_in
from ringcast.cli.words import safe, table

if TYPE_CHECKING:
    from ringcast.cli.local import Reply

VIEW = {"ask": "view"}


@click.command()
@click.argument("group", required=False)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def members(group: str | None, as_json: bool) -> None:
    """Who is in a group, or in all groups that have members of this user on this machine.

    Members that are in different views, because they do not hear each other or have not yet, are
    shown apart.

    \b
    Examples:
      ringcast members
      ringcast members orders --json
    """
    if group is not None:
        gatherings = [ask_group(group, dict(VIEW))]
    else:
        gatherings = [ask(path, dict(VIEW), probes_in(path)) for path in group_directories()]
    views = [view for replies in gatherings for view in _views(replies)]
    if as_json:
        click.echo(json.dumps(views))
        return
    if not views:
        click.echo("no group has a member here", err=True)
    for view in views:
        _print_view(view)


def _views(replies: list[Reply]) -> list[dict[str, Any]]:
    """Each view that somebody is in, with what is known of its members here."""
    here = {reply.incarnation: reply for reply in replies}
    views: dict[tuple[object, ...], dict[str, Any]] = {}
    for reply in replies:
        if reply.answer is None:
            continue
        answer = reply.answer
        key = (answer["view"], *(member["incarnation"] for member in answer["members"]))
        if not answer["members"]:
            key = (reply.incarnation,)  # it is still looking for its group, by itself
        if key not in views:
            those = answer["members"] or [answer["member"]]
            views[key] = {
                "group": answer["group"],
                "view": answer["view"],
                "members": [_known(member, here.get(member["incarnation"])) for member in those],
            }
    seen = {member["incarnation"] for view in views.values() for member in view["members"]}
    strangers = [reply for reply in replies if reply.is_silent and reply.incarnation not in seen]
    for reply in strangers:
        blank = {"name": reply.who, "address": "", "incarnation": reply.incarnation}
        views[reply.incarnation,] = {"group": "", "view": 0, "members": [_known(blank, reply)]}
    return list(views.values())


def _known(member: dict[str, Any], reply: Reply | None) -> dict[str, Any]:
    if reply is None:
        state, pid = "not on this machine, or another user's", None
    else:
        pid = reply.pid or None
        phase = "" if reply.answer is None else reply.answer["phase"]
        state = phase or reply.error or f"does not answer: {reply.silence}"
    return {**member, "pid": pid, "state": state}


def _print_view(view: dict[str, Any]) -> None:
    count = len(view["members"])
    what = f"view {view['view']}, " if view["view"] else "in no view, "
    click.echo(f"{safe(view['group']) or '?'}: {what}{count} member{'s' * (count != 1)}")
    rows = []
    for member in view["members"]:
        process = "" if member["pid"] is None else f"process {member['pid']}"
        rows.append((f"  {safe(member['name'])}", member["address"], process, member["state"]))
    click.echo("\n".join(table(rows)))
