"""Asking everybody, and answering with a handler: both on `Group.request` and `Group.requests`."""

from __future__ import annotations

import asyncio
import inspect
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ringcast.errors import GroupClosed, RingcastError, UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ringcast.aio.group import Group
    from ringcast.aio.requests import Request
    from ringcast.model import Member
    from ringcast.wire.codec import Buffer

    Handler: TypeAlias = Callable[[Request], Buffer | Awaitable[Buffer]]

log = logging.getLogger("ringcast")


class Replies(NamedTuple):
    """What the other members of the view said to one request. Each stands in one of the two."""

    replies: dict[Member, bytes]
    """By member, in the order of the view."""
    failed: dict[Member, RingcastError]
    """Who did not reply, and why: RequestFailed or TimedOut."""


async def request_all(group: Group, payload: Buffer, timeout_s: float) -> Replies:
    """Ask all other members of the view at once. GroupClosed: this member is out of its group."""
    asked = [member for member in group.view if member != group.me]
    said = await asyncio.gather(
        *(group.request(member, payload, timeout=timeout_s) for member in asked),
        return_exceptions=True,
    )
    found = Replies({}, {})
    for member, each in zip(asked, said, strict=True):
        if isinstance(each, bytes):
            found.replies[member] = each
        elif isinstance(each, RingcastError) and not isinstance(each, GroupClosed):
            found.failed[member] = each
        else:
            raise each
    return found


async def serve(group: Group, handler: Handler) -> None:
    """Answer requests until this member is out of its group, each in a task of its own."""
    async with asyncio.TaskGroup() as tasks:
        async for request in group.requests():
            tasks.create_task(_answer(request, handler))


async def _answer(request: Request, handler: Handler) -> None:
    try:
        said = handler(request)
        request.reply(await said if inspect.isawaitable(said) else said)
    except Exception as error:  # of the application
        _refuse(request, error)


def answer_with(request: Request, handler: Callable[[Request], bytes]) -> None:
    """The same for a thread."""
    try:
        request.reply(handler(request))
    except Exception as error:  # of the application
        _refuse(request, error)


def _refuse(request: Request, error: Exception) -> None:
    """At once: nobody has to wait for its time to be over."""
    log.exception("the handler of requests raised, asked by %s", request.sender)
    with suppress(UsageError):  # it has answered by itself
        request.refuse(f"{type(error).__name__}: {error}")
