"""ringcast members, explain, stats and sync: members that run here, asked through their probes."""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ringcast.aio.probe import ANSWER_BYTES_MAX, connect, credentials, probes
from ringcast.aio.prometheus import exposition
from ringcast.aio.sources import group_directory, runtime_directory
from ringcast.checks import check_name
from ringcast.cli.words import is_told, json_file_option, print_table, safe, say
from ringcast.errors import UsageError
from ringcast.texts import counted

ANSWER_S = 1.0
"""A member that lives answers in milliseconds."""

LOOK_MS = 100
ASKED_MAX = 512
GROUPS_MAX = 1024


@dataclass(slots=True)
class Reply:
    """What came from one probe."""

    probe: str  # its name: incarnation and process
    pid: int = 0  # of the process that listens; 0: not known
    answer: dict[str, Any] | None = None  # None: it did not answer, or said no
    error: str = ""  # why it said no
    name: str = ""  # of a member that does not answer: as others have it in their view

    @property
    def incarnation(self) -> str:
        return self.probe.partition("-")[0]

    @property
    def is_silent(self) -> bool:
        return self.answer is None and not self.error

    @property
    def who(self) -> str:
        if self.answer is not None:
            return safe(str(self.answer["member"]["name"]))
        return safe(self.name) or f"a member in process {self.pid}"

    @property
    def why_not(self) -> str:
        """Why there is no answer; empty: there is."""
        return "" if self.answer is not None else self.error or self.silence

    @property
    def silence(self) -> str:
        """Why it may be that nothing comes."""
        if not self.pid:
            return "it lets nobody in"
        return f"process {self.pid} is {'stopped' if _is_stopped(self.pid) else 'busy'}"


def ask(directory: Path, question: dict[str, object], names: Sequence[str]) -> list[Reply]:
    """All at once, and those who live: the sockets of the dead are removed."""
    replies: list[Reply] = []
    asked: dict[int, tuple[socket.socket, Reply, bytearray]] = {}
    line = json.dumps(question).encode() + b"\n"
    deadline = time.monotonic() + ANSWER_S
    poll = select.poll()
    with ExitStack() as sockets:
        for name in names[:ASKED_MAX]:
            try:
                sock = connect(directory, name)
            except BlockingIOError:
                # So many have asked in vain that there is no room to wait in any more.
                pid = name.partition("-")[2]
                replies.append(Reply(name, int(pid) if pid.isdecimal() else 0))
                continue
            except OSError as error:
                raise UsageError(f"cannot ask at {directory}: {error.strerror}") from None
            if sock is not None:
                sockets.enter_context(sock)
                reply = Reply(name, credentials(sock)[0])
                replies.append(reply)
                asked[sock.fileno()] = sock, reply, bytearray()
                poll.register(sock, select.POLLIN)
                with suppress(OSError):  # then it is gone again: reading will tell
                    sock.send(line)
        while asked and time.monotonic() < deadline:
            ready = poll.poll(LOOK_MS)
            if not ready and all(_is_stopped(reply.pid) for _, reply, _ in asked.values()):
                break  # there is nothing to wait for
            for fd, _ in ready:
                if _hear(*asked[fd]):
                    poll.unregister(fd)
                    del asked[fd]
    _name_the_silent(replies)
    return sorted(replies, key=lambda reply: reply.who)


def ask_group(group: str, question: dict[str, object], member: str | None = None) -> list[Reply]:
    """Those of a group, or one of them; UsageError if there is none here, or none answers."""
    check_name("group", group)
    directory = group_directory(group)
    names = probes_in(directory)
    replies = ask(directory, {"ask": "view"} if member else question, names)
    if not replies:
        left = f" ({len(names)} left behind by crashes)" if names else ""
        others = ", ".join(repr(other) for other in groups_here() if other != group)
        hint = f"; groups here: {others}" if others else ""
        raise UsageError(f"no member of group {group!r} runs here{left}{hint}")
    if member is not None:
        found = [reply for reply in replies if _is_named(reply, member)]
        if len(found) != 1:
            names_here = ", ".join(reply.who for reply in replies)
            what = "no member" if not found else f"{len(found)} members"
            hint = "; give an address" if found else f"; here are {names_here}"
            raise UsageError(f"{what} {member!r} of group {group!r} here{hint}")
        if not found[0].is_silent:
            found = ask(directory, question, [found[0].probe])
        replies = found
    if all(reply.is_silent for reply in replies):
        silent = "; ".join(f"{reply.who} does not answer: {reply.silence}" for reply in replies)
        raise UsageError(silent or f"{member} of group {group!r} has just left")
    return replies


def groups_here() -> list[str]:
    """By asking who is there: directories do not bear the names of groups."""
    asked = [reply.answer for replies in _all_groups({"ask": "view"}) for reply in replies]
    return sorted({str(answer["group"]) for answer in asked if answer is not None})


def _all_groups(question: dict[str, object]) -> list[list[Reply]]:
    return [ask(path, question, probes_in(path)) for path in group_directories()]


def group_directories() -> list[Path]:
    top = runtime_directory()
    try:
        with os.scandir(top) as files:
            some = zip(files, range(GROUPS_MAX), strict=False)
            return sorted(Path(file.path) for file, _ in some if file.is_dir(follow_symlinks=False))
    except OSError as error:
        raise UsageError(f"cannot look into {top}: {error.strerror}") from None


def answers(group: str, question: dict[str, object], member: str | None = None) -> list[Reply]:
    """The same; UsageError also if all who answered said no."""
    replies = ask_group(group, question, member)
    if not any(reply.answer for reply in replies):
        raise UsageError("; ".join(f"{reply.who}: {reply.error}" for reply in replies))
    return replies


def probes_in(directory: Path) -> list[str]:
    try:
        return probes(directory)
    except OSError as error:
        raise UsageError(f"cannot look into {directory}: {error.strerror}") from None


def _hear(sock: socket.socket, reply: Reply, came: bytearray) -> bool:
    """Whether there is nothing more to come."""
    try:
        chunk = sock.recv(1 << 16)
    except BlockingIOError:
        return False
    except OSError:
        chunk = b""
    came += chunk
    if chunk and not came.endswith(b"\n") and len(came) <= ANSWER_BYTES_MAX:
        return False
    try:
        content = json.loads(came)
    except (ValueError, RecursionError):
        content = None
    match content:
        case {"answer": {"member": {}} as answer}:
            reply.answer = answer
        case {"error": str(error)}:
            reply.error = safe(error)
        case _:
            reply.error = "what it answers makes no sense" if came else "it turned us away"
    return True


def _is_named(reply: Reply, name: str) -> bool:
    if reply.answer is None:
        return reply.name == name
    member = reply.answer["member"]
    return name in (member["name"], member["address"])


def _name_the_silent(replies: Sequence[Reply]) -> None:
    seen = {
        member["incarnation"]: member["name"]
        for reply in replies
        if reply.answer is not None
        for member in reply.answer.get("members", ())
    }
    for reply in replies:
        if reply.answer is None:
            reply.name = seen.get(reply.incarnation, "")


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except (OSError, IndexError):
        return False


# The commands

member_option = click.option("--member", metavar="NAME", help="Only this one, by name or address.")


@click.command(short_help="Who is in a group, or in all groups of this machine.")
@click.argument("group", required=False)
@json_file_option
def members(group: str | None, json_file: Path | None) -> None:
    """Who is in a group, or in all groups that have members of this user on this machine.

    Members that are in different views, because they do not hear each other or have not yet, are
    shown apart.

    \b
    Examples:
      ringcast members
      ringcast members orders --json
    """
    question: dict[str, object] = {"ask": "view"}
    gatherings = [ask_group(group, question)] if group is not None else _all_groups(question)
    views = [view for replies in gatherings for view in _views(replies)]
    if is_told(views, json_file):
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
    click.echo(f"{safe(view['group']) or '?'}: {what}{counted(count, 'member')}")
    rows = []
    for member in view["members"]:
        process = "" if member["pid"] is None else f"process {member['pid']}"
        rows.append((f"  {safe(member['name'])}", member["address"], process, member["state"]))
    print_table(rows, is_headed=False)


@click.command(short_help="What waits in a group, for whom, and since when.")
@click.argument("group")
@member_option
@json_file_option
def explain(group: str, member: str | None, json_file: Path | None) -> None:
    """What waits in a group, for whom, and since when: a sentence for each.

    All members of this user on this machine are asked. One that does not answer is named, too.

    \b
    Examples:
      ringcast explain orders
      ringcast explain orders --member web-1
    """
    replies = answers(group, {"ask": "explain"}, member)
    told = [
        {
            "member": reply.who,
            "pid": reply.pid,
            "reasons": None if reply.answer is None else reply.answer["reasons"],
            "answers": reply.answer is not None,
            "why_not": reply.why_not,
        }
        for reply in replies
    ]
    if not is_told(told, json_file):
        lines = []
        for reply in replies:
            if reply.answer is None:
                lines.append(f"{reply.who} does not answer: {reply.why_not}")
            else:
                lines += [f"{reply.who}: {safe(reason)}" for reason in reply.answer["reasons"]]
        for line in lines or ["nothing waits"]:
            say(line)


@click.command(short_help="Every counter, and the size of every table.")
@click.argument("group")
@member_option
@json_file_option
@click.option("--prometheus", is_flag=True, help="The main figures in Prometheus' text format.")
def stats(group: str, member: str | None, json_file: Path | None, prometheus: bool) -> None:
    """Every table with its size, and every counter, of the members of a group here.

    What is listed grows and shrinks with versions; what --prometheus prints keeps its names.

    \b
    Examples:
      ringcast stats orders
      ringcast stats orders --member web-1 --json
      ringcast stats orders --prometheus > /var/lib/node_exporter/ringcast.prom
    """
    if json_file and prometheus:
        raise UsageError("--json or --prometheus, not both")
    replies = answers(group, {"ask": "top" if prometheus else "stats"}, member)
    found = [reply.answer for reply in replies if reply.answer is not None]
    for reply in replies:
        if reply.answer is None:
            click.echo(f"{reply.who} does not answer: {reply.why_not}", err=True)
    if prometheus:
        click.echo(exposition(found), nl=False)
    elif not is_told(found, json_file):
        for answer in found:
            click.echo(f"{safe(answer['member']['name'])}, process {answer['pid']}")
            for line in _tree(answer["stats"], "  "):
                say(line, len(line) - len(line.lstrip()) + 4)


def _tree(content: dict[str, object], indent: str) -> Iterator[str]:
    for key, value in content.items():
        if isinstance(value, dict) and value:
            yield f"{indent}{safe(key)}"
            yield from _tree(value, indent + "  ")
        else:
            shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield f"{indent}{safe(key)}  {safe(shown)}"


@click.command(short_help="Have members here ask PEER where its messages stand.")
@click.argument("group")
@click.argument("peer")
@click.option("--member", metavar="NAME", help="Only this one asks, by name or address.")
@json_file_option
def sync(group: str, peer: str, member: str | None, json_file: Path | None) -> None:
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
    asked = [
        (reply.who, reply.why_not or safe((reply.answer or {})["refusal"]))
        for reply in answers(group, {"ask": "sync", "peer": peer}, member)
    ]
    lines = [f"{who} does not: {why}" if why else f"{who} asks {safe(peer)}" for who, why in asked]
    if all(why for _, why in asked):
        raise UsageError("; ".join(lines))
    told = [{"member": who, "asks": not why, "why_not": why} for who, why in asked]
    if not is_told(told, json_file):
        click.echo("\n".join(lines))
