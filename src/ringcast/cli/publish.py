"""ringcast publish: send what a stream or a table has staged to a group, each message once."""

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
from ringcast.cli.words import are_lines_told, duration, json_file_option, safe
from ringcast.config import GroupConfig
from ringcast.errors import GroupClosed
from ringcast.texts import counted

if TYPE_CHECKING:
    from ringcast.aio.group import Group
    from ringcast.trace.staging import Staging

STATUS_S = 10.0
"""How often one line tells how it goes, if anything has happened."""

JOIN_TIMEOUT_S = 86_400.0
"""It waits for its group as long as there is none."""


@click.command(short_help="Send to GROUP what Spark has staged in DIRECTORY.")
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("group")
@setting("name", "publisher")
@settings("listen", "advertise", "members", "transport", "key_file", "insecure")
@config_options
@click.option(
    "--least",
    type=click.IntRange(min=2),
    default=2,
    show_default=True,
    metavar="MEMBERS",
    help="Publish only while the group has so many, this one among them.",
)
@click.option(
    "--keep",
    type=duration(may_be_zero=True),
    default="60s",
    show_default=True,
    help="Keep what is published so long, for members that were parted and come back.",
)
@json_file_option
def publish(
    config: GroupConfig,
    directory: Path,
    least: int,
    keep: float,
    json_file: Path | None,
    **place: Any,
) -> None:
    """Join GROUP and send it what Spark has staged in DIRECTORY, batch by batch, each message once
    at every member, also if this process or the stream is killed and started again.

    Messages are uniform, if their rows say nothing else. One publisher works in a directory at a
    time. Ctrl-C or SIGTERM ends it in good order.

    Example: ringcast publish staged/ orders
    """
    from ringcast.trace.staging import Staging
    from ringcast.trace.whole import held_alone

    staging = Staging(directory)
    staging.check()
    with held_alone(directory):
        joining = join(config=config, receive=False, join_timeout_s=JOIN_TIMEOUT_S, **place)
        error = run(_publish(joining, staging, least, keep, json_file))
    if error:
        click.echo(f"ringcast: {safe(error)}", err=True)
        sys.exit(1)


async def _publish(
    joining: AbstractAsyncContextManager[Group],
    staging: Staging,
    least: int,
    keep_s: float,
    json_file: Path | None,
) -> str:
    """Why it ended, unless it was told to."""
    from ringcast.aio.publisher import Publisher

    async with joined(joining) as (group, stopped):
        publisher = Publisher(staging, group, least, keep_s=keep_s)
        telling = _tell(publisher, group, json_file)
        try:
            await until_first(publisher.run(), telling, stopped.wait())
        except GroupClosed as closed:
            return str(closed)
    stopped.conclude()
    return ""


async def _tell(publisher: Any, group: Group, json_file: Path | None) -> None:
    told, since = -1, time.monotonic()
    while True:
        if publisher.sent != told:
            rate = (publisher.sent - max(told, 0)) / max(time.monotonic() - since, 1e-3)
            told, since = publisher.sent, time.monotonic()
            about = {
                "event": "publishing",
                "publisher": publisher.name,
                "view": group.view.counter,
                "members": list(map(str, group.view)),
                "messages": publisher.sent,
                "unsent": publisher.unsent,
                "batches": publisher.batches,
            }
            unsent = f", {publisher.unsent} to who was not there" if publisher.unsent else ""
            if not are_lines_told(json_file, about):
                click.echo(
                    f"publishing {safe(publisher.name)}: {safe(str(group.view))}; "
                    f"{counted(publisher.sent, 'message')} ({rate:.0f}/s) in "
                    f"{publisher.batches} whole batches{unsent}"
                )
        await asyncio.sleep(STATUS_S)
