"""ringcast archive: keep a group's messages, for Spark to read; and remove old ones."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ringcast.aio.joining import join
from ringcast.aio.loop import run
from ringcast.cli.setting import config_options, setting, settings
from ringcast.cli.stopping import joined, until_first
from ringcast.cli.words import (
    are_lines_told,
    duration,
    file_mode_option,
    is_told,
    json_file_option,
    note,
    print_table,
    safe,
)
from ringcast.config import GroupConfig
from ringcast.events import Closed, Delivered, ViewInstalled
from ringcast.texts import counted

if TYPE_CHECKING:
    from ringcast.aio.group import Group
    from ringcast.trace.archive import Holding, Index

STATUS_S = 10.0
"""How often one line tells how it goes, if anything has happened."""
CHECK_S = 0.5
"""How often it is seen to that the disk takes everything."""
SHOWN = 3
"""Gaps, and archives, of each sender."""


directory_argument = click.argument(
    "directory", type=click.Path(path_type=Path, exists=True, file_okay=False)
)


class _Archive(click.Group):
    """`ringcast archive GROUP DIR` means `ringcast archive keep GROUP DIR`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["keep", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Archive, subcommand_metavar="GROUP DIR | compact | prune | show | forget")
def archive() -> None:
    """Keep a group's messages in DIR, and look after what is kept.

    \b
    Examples:
      ringcast archive orders archive/
      ringcast archive show archive/
      ringcast archive compact archive/
      ringcast archive prune archive/ --older-than 7d
    """


@archive.command(short_help="Join GROUP and keep its messages in files in DIR.")
@click.argument("group")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@setting("name", "archive")
@settings("listen", "advertise", "members", "transport", "must_exist", "key_file", "insecure")
@config_options
@click.option("--run-id", default="", metavar="ID", help="As the group's members say, for audits.")
@click.option(
    "--interval",
    "record_interval_s",
    type=duration(),
    default="2s",
    show_default=True,
    metavar="TIME",
    help="How often a file is closed, and its messages safe; from 200ms to 60s.",
)
@file_mode_option
@json_file_option
def keep(config: GroupConfig, directory: Path, json_file: Path | None, **place: Any) -> None:
    """Join GROUP and keep every message that is sent to it, in files in DIR. Several archives may
    write into the same DIR: Spark reads each message once.

    Messages are safe when their file is there, two seconds or --interval after they came. With a
    --run-id, which members give to `join`, an audit of that run takes the archive as one of them:
    by default both go by the name of the group. An archive whose disk is slow blocks those who
    send; one whose disk refuses leaves, with exit status 1. Ctrl-C or SIGTERM ends it in good
    order.

    Example: ringcast archive orders archive/ --name archive-1
    """
    joining = join(config=config, record=directory, record_payloads=True, **place)
    keeper = _Keeper(directory, json_file)
    run(keeper.member(joining))
    if keeper.error:
        click.echo(f"ringcast: {safe(keeper.error)}", err=True)
        sys.exit(1)


class _Keeper:
    """A member that reads, and nothing else: what it reads is recorded."""

    def __init__(self, directory: Path, json_file: Path | None) -> None:
        self.error = ""
        self._directory = directory
        self._json_file = json_file
        self._messages = 0
        self._told = 0, time.monotonic()

    async def member(self, joining: AbstractAsyncContextManager[Group]) -> None:
        async with joined(joining) as (group, stopped):
            await until_first(self._read(group), self._watch(group), stopped.wait())
            self._tell(group, "leaving")
        if not self.error:
            stopped.conclude()

    async def _read(self, group: Group) -> None:
        async for event in group.events():
            if isinstance(event, Delivered):
                self._messages += len(event.run.payloads)
            elif isinstance(event, Closed):
                self.error = f"out of the group: {event.reason}"
            else:
                self._tell(group, "view" if isinstance(event, ViewInstalled) else str(event))

    async def _watch(self, group: Group) -> None:
        due_s = STATUS_S
        while True:
            await asyncio.sleep(CHECK_S)
            recorder = _recorder(group)
            if recorder["lost"]:
                why = recorder["last_error"] or "rows came faster than they could be written"
                self.error = f"cannot keep everything in {self._directory}, so it leaves: {why}"
                return
            due_s -= CHECK_S
            if due_s <= 0 and self._messages != self._told[0]:
                self._tell(group, "keeping")
                due_s = STATUS_S

    def _tell(self, group: Group, what: str) -> None:
        recorder = _recorder(group)
        (before, since), now = self._told, time.monotonic()
        self._told = self._messages, now
        rate = (self._messages - before) / max(now - since, 1e-3)
        about = {
            "event": what,
            "view": group.view.counter,
            "members": list(map(str, group.view)),
            "messages": self._messages,
            "segments": recorder["segments"],
            "queued_bytes": recorder["queued_bytes"],
        }
        if are_lines_told(self._json_file, about):
            return
        click.echo(
            f"{what}: {safe(str(group.view))}; {counted(self._messages, 'message')} "
            f"({rate:.0f}/s) in {counted(recorder['segments'], 'file')}, "
            f"{recorder['queued_bytes']} bytes to be written"
        )


def _recorder(group: Group) -> dict[str, Any]:
    recorder = group.stats()["recorder"]
    assert isinstance(recorder, dict)
    return recorder


@archive.command()
@directory_argument
@click.option(
    "--older-than",
    "age_s",
    type=duration(may_be_zero=True),
    required=True,
    metavar="AGE",
    help="Such as 90m, 12h or 7d.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
def prune(directory: Path, age_s: float, dry_run: bool) -> None:
    """Remove files of messages that are older than AGE. What a streaming query has not read and
    committed yet stays, however old it is.

    Example: ringcast archive prune archive/ --older-than 7d
    """
    from ringcast.trace.retention import prune as prune_files

    before = time.time() - age_s
    pruned = prune_files(directory, before, is_trial=dry_run)
    done = "would remove" if dry_run else "removed"
    click.echo(f"{done} {counted(len(pruned.removed), 'file')}, {pruned.size / 1e6:.1f} MB")
    for query, count in pruned.kept_for.items():
        click.echo(
            f"kept {count} old files for query {query}, which has not read them; if it is gone for "
            f"good: ringcast archive forget {directory} {query}"
        )


@archive.command(short_help="Merge small files of DIR into few large ones.")
@directory_argument
def compact(directory: Path) -> None:
    """Merge small files of DIR into few large ones, which are read faster. Archives may write and
    queries may read there meanwhile: each message is read once. It may be killed at any time.

    Example: ringcast archive compact archive/
    """
    from ringcast.trace.compaction import compact as compact_files

    note(f"merging small files of {directory} …")
    done = compact_files(directory)
    click.echo(f"merged {done.merged} files into {len(done.made)}")
    for reason in done.left_out:
        click.echo(f"left as it is: {safe(reason)}")


@archive.command(short_help="What is kept, by whom, of whom, and what is missing.")
@directory_argument
@json_file_option
def show(directory: Path, json_file: Path | None) -> None:
    """What is kept in DIR: by whom, of whom, what is missing, and how far each query has read.

    Example: ringcast archive show archive/
    """
    from ringcast.trace.archive import Index
    from ringcast.trace.retention import queries

    index = Index(directory)
    index.refresh()
    troubles = [*index.unreadable.values(), *index.absent.values()]
    size = sum(file.size for file in index.files.values())
    head, *senders = _senders(index)
    left = {
        query: sum(
            piece.length for piece in index.pieces(query.committed.digest, time.time()).pieces
        )
        for query in queries(directory)
    }
    about = {
        "files": len(index.files),
        "bytes": size,
        "senders": [dict(zip(head, row, strict=True)) for row in senders],
        "queries": [
            {"name": query.name, "to_read": count, "committed_at": query.committed_at}
            for query, count in left.items()
        ],
        "left_out": [trouble.reason for trouble in troubles],
    }
    if is_told(about, json_file):
        return
    click.echo(f"{counted(len(index.files), 'file')}, {size / 1e6:.1f} MB")
    print_table([head, *senders], right={1, 2})
    for query, count in left.items():
        minutes = (time.time() - query.committed_at) / 60
        click.echo(f"query {query.name}: {count} to read, committed {minutes:.0f} min ago")
    for trouble in troubles:
        click.echo(f"not read: {safe(trouble.reason)}")


@archive.command(short_help="Say that a streaming query will not run again.")
@directory_argument
@click.argument("query")
def forget(directory: Path, query: str) -> None:
    """A streaming query will not run again: files are no longer kept for it.

    Example: ringcast archive forget archive/ revenue
    """
    from ringcast.trace.retention import Query

    Query(directory, query).forget()
    click.echo(f"files are no longer kept for query {query}")


def _senders(index: Index) -> list[list[str]]:
    from ringcast.trace.held import origin_text

    rows = [["sender", "first", "last", "missing", "newest archives"]]
    for origin in index.origins:
        held = list(index.holdings(origin))
        if not held:
            continue  # all of it is in files that are not read
        first = min(own[0].first for _, own in held)
        last = max(own[-1].last for _, own in held)
        plan = index.pieces({origin: first - 1}, time.time())
        gaps = [f"{gap.first}..{gap.last}" for gap in plan.gaps.get(origin, ())]
        more = [f"and {len(gaps) - SHOWN} more"] if len(gaps) > SHOWN else []
        newest = sorted(held, key=lambda item: item[1][-1].file.visible_at)[-SHOWN:]
        archives = [f"{name} {_tail(own)}..{own[-1].last}" for (name, _), own in newest]
        missing = " ".join(gaps[:SHOWN] + more) or "-"
        names = safe(", ".join(archives))
        rows.append([safe(origin_text(origin)), str(first), str(last), missing, names])
    return rows


def _tail(held: list[Holding]) -> int:
    """From where on an archive has all up to its last."""
    first = held[-1].first
    for holding in reversed(held):
        if holding.last + 1 >= first:
            first = min(first, holding.first)
    return first
