"""Names: addresses that are given as host names are looked up, without holding up the loop.

What a member listens at, and is known by, is looked up once: it must be there. Names where others
may be found are asked for again while the group lives, so a name that stands for whichever members
run (a headless service, a record with many addresses) is enough to find them. That one has no
address yet is no mistake: who comes first is alone. Protocols see numbers only.
"""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_address
from time import monotonic
from typing import TYPE_CHECKING

from ringcast.errors import UsageError
from ringcast.model import Address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.model import Member

AGAIN_S = 5.0
"""How long what was found counts. Resolvers keep it for longer, or ask."""


def is_name(address: Address) -> bool:
    """It has to be looked up."""
    try:
        ip_address(address.host)
    except ValueError:
        return True
    return False


async def look_up(address: Address, near: Address | None = None) -> list[Address]:
    """All that it stands for now; of the kind of `near`, or any, those of version 4 first."""
    if not is_name(address):
        return [address]
    family = socket.AF_UNSPEC
    if near is not None:
        family = socket.AF_INET6 if ":" in near.host else socket.AF_INET
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(
            address.host, address.port, family=family, type=socket.SOCK_DGRAM
        )
    except (OSError, UnicodeError):
        return []
    found.sort(key=lambda each: each[0] != socket.AF_INET)
    return list(dict.fromkeys(Address(str(each[4][0]), address.port) for each in found))


async def look_up_own(text: str) -> Address:
    """Where this member listens, or is known; UsageError: the name stands for no address."""
    address = Address.parse(text)
    found = await look_up(address)
    if not found:
        raise UsageError(f"no address was found for {address.host!r}: check the name")
    return found[0]


class NameSource:
    """Addresses of which some are names. They are looked up again while somebody asks here."""

    def __init__(self, addresses: Sequence[Address], near: Address) -> None:
        self._addresses = tuple(addresses)
        self._near = near
        self._found: list[Address] = []
        self._due = 0.0
        self._asking: asyncio.Task[list[Address]] | None = None

    async def look(self) -> list[Address]:
        """Look all of them up, and return what was found."""
        found = await asyncio.gather(*(look_up(each, self._near) for each in self._addresses))
        self._found = [address for each in found for address in each]
        self._due = monotonic() + AGAIN_S
        return self._found

    def register(self, me: Member) -> None:
        """Members that have the names know where to look."""

    def candidates(self) -> Sequence[Address]:
        if monotonic() >= self._due and (self._asking is None or self._asking.done()):
            self._asking = asyncio.get_running_loop().create_task(self.look())
        return self._found

    def unregister(self) -> None:
        if self._asking is not None:
            self._asking.cancel()

    def __str__(self) -> str:
        return ", ".join(map(str, self._addresses))
