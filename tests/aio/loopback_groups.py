"""Groups on real sockets for tests: several members in one event loop."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ringcast import MembershipConfig
from ringcast.aio.joining import join
from ringcast.aio.loop import run
from ringcast.aio.sources import ListSource
from ringcast.config import DISCOVERY_WAIT_MIN_S
from ringcast.core.effects import Suspected

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from ringcast import Group, Member

DEADLINE_S = 30.0

PATIENT = MembershipConfig(
    discovery_wait_s=DEADLINE_S, suspect_after_s=600.0, verify_s=60.0, leave_timeout_s=1.0
)
"""Nobody is suspected because the machine is busy; who is really gone refuses datagrams."""

FIRST = replace(PATIENT, discovery_wait_s=DISCOVERY_WAIT_MIN_S)
"""For whoever is the first: nobody is there to wait for."""


class Losing:
    """For `lose=`: a fifth of all datagrams, while it is on. Who joins and leaves meanwhile only
    takes longer."""

    def __init__(self, seed: int) -> None:
        self.is_on = False
        self._dice = random.Random(seed)

    def __call__(self) -> bool:
        return self.is_on and self._dice.random() < 0.2

    def __enter__(self) -> None:
        self.is_on = True

    def __exit__(self, *_: object) -> None:
        self.is_on = False


def waits(group: Group) -> list[str]:
    """What it says that it waits for, whatever this machine grants."""
    return [reason for reason in group.explain() if "net.core.rmem_max" not in reason]


def with_members(count: int, **options: Any) -> Callable[[Callable[..., Awaitable[None]]], None]:
    """Run a coroutine function on so many joined groups, which are in the view in their order;
    options by name or per member."""
    per_member = options.pop("per_member", [{}] * count)
    membership = options.pop("membership", PATIENT)

    def start(test: Callable[..., Awaitable[None]]) -> None:
        async def main() -> None:
            groups: list[Group] = []
            async with AsyncExitStack() as stack:
                for at in range(count):
                    wait_s = DISCOVERY_WAIT_MIN_S if at == 0 else DEADLINE_S
                    found = [group.me.address for group in groups]
                    joining = join(
                        "test",
                        name="ABCDEF"[at],
                        discovery=ListSource(found),
                        membership=replace(membership, discovery_wait_s=wait_s),
                        **options,
                        **per_member[at],
                    )
                    groups.append(await stack.enter_async_context(joining))
                for group in groups:
                    await group.wait_for_view(lambda view: len(view) == count)
                await asyncio.wait_for(test(*groups), DEADLINE_S)

        run(main())

    return start


async def read(group: Group, count: int) -> list[tuple[str, bytes]]:
    """The next so many messages: who sent what."""
    found = []
    async for message in group:
        found.append((message.sender.name, message.payload))
        if len(found) == count:
            break
    return found


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


def numbered(name: str, count: int) -> list[bytes]:
    return [f"{name}{number}".encode() for number in range(count)]


def exclude(whom: Member, by: Group) -> None:
    """As if `by` had found out that this member is dead, which it is not."""
    driver = by._driver
    driver.node.effects.signal(Suspected(whom, "said so by a test"))
    now = time.monotonic_ns()
    driver.node.handle_timeout(now)
    driver._after_input(now)


def vanish(group: Group) -> None:
    """Be gone without a goodbye, as after a crash: its port is closed."""
    group._close()


def restart(group: Group, known: Group) -> AbstractAsyncContextManager[Group]:
    """Who has vanished once more, as another incarnation at its address."""
    me = group.me
    found = ListSource([known.me.address])
    return join("test", name=me.name, listen=str(me.address), discovery=found, membership=PATIENT)
