"""Spaces with a structure of each kind, on a model of total order."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from ringcast.replicated import BYTES, Space
from support.ordered import OrderedGroup, member, settle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from ringcast import replicated
    from ringcast.model import Member
    from ringcast.replicated import Diverged
    from support.ordered import Order


class App:
    """One member with a structure of each kind."""

    def __init__(self, number: int, on_leader: Any = None, **options: Any) -> None:
        self.me = member(number)
        self.diverged: list[Diverged] = []
        self.terms: list[tuple[Member, bytes]] = []
        self.space = Space(**{"on_diverged": self.diverged.append, **options})
        self.prices = self.space.dict("prices")
        self.blobs = self.space.dict("blobs", BYTES)
        self.lock = self.space.lock("job")
        self.sold = self.space.counter("sold")
        self.leader = self.space.leader("boss", on_leader=on_leader or self._on_leader)

    def _on_leader(self, member: Member, epoch: replicated.Token) -> None:
        self.terms.append((member, bytes(epoch)))

    @property
    def group(self) -> OrderedGroup:
        group = self.space.group
        assert isinstance(group, OrderedGroup)
        return group

    def told(self) -> bytes:
        return b"".join(self.space.give_state())


@asynccontextmanager
async def serving(order: Order, app: App) -> AsyncIterator[App]:
    group = await order.join(app.me, app.space)
    async with app.space.serve(group):  # type: ignore[arg-type]
        yield app


@asynccontextmanager
async def apps(order: Order, *numbers: int, **options: Any) -> AsyncIterator[list[App]]:
    """That have joined one after the other, all in the last view."""
    async with AsyncExitStack() as stack:
        found = []
        for number in numbers:
            app = App(number, **options)
            found.append(await stack.enter_async_context(serving(order, app)))
        await settle(lambda: len({len(app.space.view) for app in found}) <= 1)
        yield found


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(main())


async def same(*members: App) -> None:
    await settle(lambda: len({app.told() for app in members}) == 1)
