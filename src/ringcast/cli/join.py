"""ringcast join: be a member from a terminal, or from a pipe."""

from __future__ import annotations

import asyncio
import base64
import os
import sys
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any, get_args

import click

from ringcast.aio.group import Group
from ringcast.aio.joining import join as join_group
from ringcast.aio.loop import run
from ringcast.aio.read_queue import Guarantee, Notice
from ringcast.cli.setting import config_options, settings
from ringcast.cli.stopping import joined
from ringcast.cli.words import are_lines_told, file_mode_option, json_file_option, safe
from ringcast.config import GroupConfig
from ringcast.errors import UsageError
from ringcast.events import Closed, Delivered, GapSkipped, StateLost, Undeliverable, ViewInstalled

STDIN = 0
CHUNK_BYTES = 1 << 16

STALL_S = 3.0
"""When the messages of this member have waited for so long, somebody should be told why."""


@click.command(short_help="Join GROUP, or start it: send lines, print messages.")
@click.argument("group", required=False)
@settings("name", "listen", "advertise", "members", "transport")
@settings("must_exist", "key_file", "insecure", "min_members")
@click.option(
    "--guarantee",
    type=click.Choice(get_args(Guarantee)),
    default="fifo",
    show_default=True,
    help="uniform: all take a message, or none; total: and in one order for all senders.",
)
@config_options
@settings("record")
@file_mode_option
@settings("metrics", "memory_limit", "spin_s")
@json_file_option
def join(config: GroupConfig, guarantee: Guarantee, json_file: Path | None, **place: Any) -> None:
    """Join GROUP, or start it: lines typed are sent to everybody, messages and views are printed as
    they come. At the end of the input, wait until the others have delivered everything, and leave.

    Options go before what stands in the file, and GROUP too. Ctrl-C leaves too; once more, it
    is gone at once.

    \b
    Examples:
      ringcast join orders --name web-1
      ringcast join --config orders.toml --name web-2
      ringcast join orders --set membership.suspect_after_s=10 --must-exist
      tail -f orders.log | ringcast join orders --metrics 127.0.0.1:9464
    """
    joining = join_group(config=config, when_few="wait", **place)
    run(_Terminal(guarantee, json_file).member(joining))


class _Terminal:
    """One member whose application is a person, or a pipe."""

    def __init__(self, guarantee: Guarantee, json_file: Path | None) -> None:
        self._guarantee = guarantee
        self._json_file = json_file
        self._sent = 0
        """Messages of this member, and how many of them have been printed here."""
        self._own_printed = 0
        self._progress = asyncio.Event()

    async def member(self, joining: AbstractAsyncContextManager[Group]) -> None:
        printing: asyncio.Task[None] | None = None
        try:
            async with joined(joining) as (group, stopped):
                printing = asyncio.create_task(self._print_events(group))
                sending = asyncio.create_task(self._send_lines(group))
                stopping = asyncio.create_task(stopped.wait())
                tasks = {printing, sending, stopping}
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in (sending, stopping):
                    task.cancel()
                with suppress(asyncio.CancelledError):
                    await sending
            await printing  # what had arrived before the end
            stopped.conclude()
        finally:
            if printing is not None:
                printing.cancel()

    # In

    async def _send_lines(self, group: Group) -> None:
        async for lines in _lines(group.settings["max_message_bytes"]):
            await self._patiently(group, group.send_many(lines, guarantee=self._guarantee))
            self._sent += len(lines)
        await self._patiently(group, group.flush())
        await self._patiently(group, self._until_printed())

    async def _until_printed(self) -> None:
        while self._own_printed < self._sent:
            self._progress.clear()
            await self._progress.wait()

    async def _patiently(self, group: Group, awaitable: Coroutine[Any, Any, None]) -> None:
        """Never a silent stall: say what is waited for, once for each time that it takes long."""
        task = asyncio.ensure_future(awaitable)
        try:
            done, _ = await asyncio.wait({task}, timeout=STALL_S)
            if not done:
                for reason in group.explain():
                    click.echo(f"waiting: {safe(reason)}", err=True)
            await task
        finally:
            task.cancel()

    # Out

    async def _print_events(self, group: Group) -> None:
        async for event in group.events():
            if isinstance(event, Delivered):
                self._show(*_messages(event))
                if event.sender == group.me and not event.epoch:
                    self._own_printed += len(event.run.payloads)
                    self._progress.set()
            elif not isinstance(event, Closed):
                self._show(_notice(event))

    def _show(self, *shown: tuple[str, dict[str, object]]) -> None:
        """For people, and for programs a line each."""
        if not are_lines_told(self._json_file, *(content for _, content in shown)):
            click.echo("\n".join(text for text, _ in shown))


def _messages(event: Delivered) -> Iterator[tuple[str, dict[str, object]]]:
    sender, to_me = str(event.sender), event.epoch > 0
    who = safe(sender) + " (to me)" * to_me
    run = event.run
    for at, payload in enumerate(run.payloads):
        content: dict[str, object] = {
            "event": "message",
            "sender": sender,
            "seqno": run.first + at,
            "to_me": to_me,
            "guarantee": run.stream.name.lower(),
            **_payload(payload),
        }
        if event.position:
            content["position"] = event.position + at
        if run.headers is not None:
            content |= {"headers": dict(run.headers[at]), "channel": run.headers[at].channel}
        yield f"{who}: {safe(payload.decode(errors='backslashreplace'))}", content


def _notice(notice: Notice) -> tuple[str, dict[str, object]]:
    what: dict[str, object]
    match notice:
        case ViewInstalled(view):
            text = str(view)
            what = {"view": view.counter, "members": list(map(str, view))}
        case Undeliverable():
            text = f"{notice.first}..{notice.last} to {notice.to} given up: {notice.reason}"
            what = {"to": str(notice.to), "first": notice.first, "last": notice.last}
        case GapSkipped():
            text = f"{notice.first}..{notice.last} of {notice.sender} to me are lost"
            what = {"from": str(notice.sender), "first": notice.first, "last": notice.last}
        case StateLost(reason):
            text = f"without the state: {reason}"
            what = {"reason": reason}
    kind = "view" if isinstance(notice, ViewInstalled) else type(notice).__name__.lower()
    return f"-- {safe(text)}", {"event": kind, **what}


def _payload(payload: bytes) -> dict[str, str]:
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}


async def _lines(limit: int) -> AsyncIterator[list[bytes]]:
    """Lines of the standard input as they come, without their ends."""
    rest = bytearray()
    while sys.stdin is not None and (chunk := await _read()):
        rest += chunk
        if b"\n" in chunk:
            *lines, last = bytes(rest).split(b"\n")
            rest = bytearray(last)
            yield lines
        elif len(rest) > limit:
            raise UsageError(f"a line has more than {limit} bytes: that is no message")
    if rest:
        yield [bytes(rest)]


async def _read() -> bytes:
    """Terminals, pipes and files alike, and none of them in the event loop. The thread does not
    delay the end of the program, as those of a pool would."""
    loop = asyncio.get_running_loop()
    came: asyncio.Future[bytes] = loop.create_future()

    def tell(chunk: bytes) -> None:
        if not came.done():
            came.set_result(chunk)

    def read() -> None:
        try:
            chunk = os.read(STDIN, CHUNK_BYTES)
        except OSError:
            chunk = b""  # a terminal that is gone has come to its end
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(tell, chunk)

    threading.Thread(target=read, daemon=True).start()
    return await came
