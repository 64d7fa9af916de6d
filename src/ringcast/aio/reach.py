"""Reach: which addresses a member may use. Nothing leaves the machine unless the group is given a
key, or the application says `insecure`.

Peers, files and applications may name any host. Addresses are in numbers here: what an application
gives as a name was looked up before, and no name that a peer says ever is.
"""

from __future__ import annotations

import logging
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING

from ringcast.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.model import Address

BROADCAST = IPv4Address("255.255.255.255")

log = logging.getLogger("ringcast")


def is_loopback(address: Address) -> bool:
    """An address on this machine, in numbers."""
    ip = _parse(address)
    return ip is not None and ip.is_loopback


def admits(own: Address, dest: Address, *, insecure: bool) -> bool:
    """Whether who listens at `own` may send to `dest`."""
    ip = _parse(dest)
    if ip is None or (":" in dest.host) != (":" in own.host):
        return False
    return ip.is_loopback or (insecure and _is_one_host(ip))


def check_address(address: Address, *, insecure: bool) -> None:
    """Raise UsageError unless a member may be there."""
    ip = _parse(address)
    if ip is not None and ip.is_loopback:
        return
    if not insecure:
        raise UsageError(
            f"{address} is not a loopback address: without a key ringcast stays on one machine; "
            f"make one with `ringcast keygen FILE` and say key=Path(FILE) (--key-file), or use "
            f"127.0.0.1 or [::1]; or say insecure=True (--insecure) if whoever is on that network "
            f"may read and forge messages"
        )
    if ip is None:
        raise UsageError(f"{address} is a name, and only numbers count here")
    if not _is_one_host(ip):
        raise UsageError(f"{address} is no address of one machine")


def check_own(
    listen: Address, advertise: Address | None, members: Sequence[Address], *, insecure: bool
) -> None:
    """Raise UsageError unless a member may listen there, be known by that and look for these."""
    is_anywhere = listen.host in ("0.0.0.0", "::") and insecure
    if is_anywhere and advertise is None:
        raise UsageError(
            f"others cannot reach a member at {listen}: listen at one address of this machine, or "
            f"say with advertise= where they find it"
        )
    own = [listen] if advertise is None else [listen, advertise]
    for address in (*own[is_anywhere:], *members):
        check_address(address, insecure=insecure)
    away = [address for address in members if not is_loopback(address)]
    if away and is_loopback(listen):
        raise UsageError(
            f"{away[0]} cannot be reached from {listen}: listen at an address of this machine on "
            f"that network"
        )


def warn_of_exposure(own: Address) -> None:
    """Say what is open where a member has no key."""
    who = "all users of this machine" if is_loopback(own) else "its network"
    log.warning(
        "%s is open to %s, and nothing is encrypted: whoever is there can read the group's "
        "messages, forge some, and join",
        *(own, who),
    )


def _parse(address: Address) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(address.host)
    except ValueError:
        return None


def _is_one_host(ip: IPv4Address | IPv6Address) -> bool:
    return not (ip.is_multicast or ip.is_unspecified or ip == BROADCAST)
