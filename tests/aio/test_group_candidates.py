"""Who is left out looks for others wherever it has ever heard of members."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from loopback_groups import DEADLINE_S, FIRST, PATIENT, exclude, vanish

from ringcast import join
from ringcast.aio.loop import run
from ringcast.aio.sources import ListSource

if TYPE_CHECKING:
    from ringcast import Address, Member


class Forgetful:
    """A source that may lose what it knows."""

    def __init__(self, addresses: list[Address]) -> None:
        self.addresses = addresses

    def register(self, me: Member) -> None:
        """It knows others only."""

    def candidates(self) -> list[Address]:
        return self.addresses

    def unregister(self) -> None:
        """Nothing was written anywhere."""


def test_addresses_known_before_a_member_is_left_out_are_asked_after_it() -> None:
    """The source has forgotten them, and nobody of the last view is left to name them."""

    async def main() -> None:
        is_deaf = True
        async with (
            join("test", name="A", discovery=ListSource([]), membership=FIRST) as a,
            join(
                "test",
                name="D",
                discovery=ListSource([]),
                membership=FIRST,
                lose=lambda: is_deaf,
            ) as d,
        ):
            source = Forgetful([a.me.address, d.me.address])
            async with join("test", name="B", discovery=source, membership=PATIENT) as b:
                was = b.me
                assert str(b.view) == "View 2: A, B"
                source.addresses = []
                exclude(was, by=a)
                vanish(a)
                is_deaf = False
                view = await b.wait_for_view(lambda view: d.me in view)
                assert {member.name for member in view} == {"D", "B"}
                assert b.me == was

    async def bounded() -> None:
        await asyncio.wait_for(main(), DEADLINE_S)

    run(bounded())
