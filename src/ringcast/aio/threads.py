"""What threads have in place of tasks: the receipt of a message, for which they wait, and the state
of an application, which threads of their own give and take."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeAlias

from ringcast.aio.state import CHUNK_BYTES
from ringcast.checks import check_seconds
from ringcast.errors import GroupClosed, TimedOut

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator

    from ringcast.aio import receipts
    from ringcast.aio.engine import Engine
    from ringcast.model import Place

    GiveState: TypeAlias = Callable[[], Iterable[bytes]]
    TakeState: TypeAlias = Callable[[Iterator[bytes]], None]

TIMEOUT_S_MAX = 86_400.0


def check_timeout(timeout: float | None) -> None:
    if timeout is not None:
        check_seconds("timeout", timeout, 0.0, TIMEOUT_S_MAX)


class Receipt:
    """Of one message. Made by `send`; any number of threads may wait for it, at any time."""

    def __init__(self, engine: Engine, receipt: receipts.Receipt) -> None:
        self._engine = engine
        self._receipt = receipt

    def delivered(self, *, timeout: float | None = None) -> None:
        """Wait until every other member of the view that the message was sent in has delivered it;
        or the member that it was sent to. TimedOut after `timeout` seconds; what else is raised is
        as with asyncio."""
        check_timeout(timeout)
        try:
            self._engine.call(self._receipt.delivered, timeout)
        except TimedOut:
            raise TimedOut(f"not everybody has delivered it within {timeout:g} s") from None
        except GroupClosed:
            if not self.is_delivered():  # it was known before the end
                raise

    def ordered(self, *, timeout: float | None = None) -> Place:
        """Of a total message: wait until it has its place in the one order. TimedOut after
        `timeout` seconds; what else is raised is as with asyncio."""
        check_timeout(timeout)
        try:
            return self._engine.call(self._receipt.ordered, timeout)
        except TimedOut:
            raise TimedOut(f"the message has no place within {timeout:g} s") from None

    def is_delivered(self) -> bool:
        """What `delivered` would return or raise, without waiting; False: it would wait."""
        return self._receipt.is_delivered()


def giving(give: GiveState) -> Callable[[], AsyncIterator[bytes]]:
    """As `ringcast.join` wants it."""

    async def chunks() -> AsyncIterator[bytes]:
        state = await asyncio.to_thread(lambda: iter(give()))
        while some := await asyncio.to_thread(_pull, state):
            for chunk in some:
                yield chunk

    return chunks


def _pull(state: Iterator[bytes]) -> list[bytes]:
    """Enough chunks to be worth a change of threads."""
    some: list[bytes] = []
    size = 0
    for chunk in state:
        some.append(chunk)
        size += len(chunk)
        if size >= CHUNK_BYTES:
            break
    return some


def taking(
    take: TakeState, engine: Engine
) -> Callable[[AsyncIterator[bytes]], Coroutine[Any, Any, None]]:
    """As `ringcast.join` wants it."""

    async def run(chunks: AsyncIterator[bytes]) -> None:
        async def pull() -> bytes | None:
            return await anext(chunks, None)

        def each() -> Iterator[bytes]:
            while (chunk := engine.call(pull)) is not None:
                yield chunk

        await asyncio.to_thread(take, each())

    return run
