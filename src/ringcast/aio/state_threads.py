"""The state of an application without asyncio: given and taken by threads of their own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeAlias

from ringcast.aio.state import CHUNK_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator

    from ringcast.aio.engine import Engine

    GiveState: TypeAlias = Callable[[], Iterable[bytes]]
    TakeState: TypeAlias = Callable[[Iterator[bytes]], None]


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
