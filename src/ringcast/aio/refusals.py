"""Refusals: what a member of a sealed group did not let in, for people: how often, from where.

A reason is told with its addresses, because who has the wrong key must be found to be helped. Both
are bounded: whoever sends from many addresses, or with many keys, is counted all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ringcast.errors import Reject
from ringcast.texts import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringcast.model import Address

KINDS_MAX = 16
ADDRESSES_MAX = 64
MINUTE_NS = 60_000_000_000

TOLD = (Reject.KEY, Reject.UNSEALED, Reject.SALTS)
"""What somebody can do something about."""

Kind: TypeAlias = tuple[str, bytes]
"""The reason, and with another key its id. Not as a Reject: that takes longer to look up, and
strangers may send many."""


class _Count:
    __slots__ = ("addresses", "total")

    def __init__(self) -> None:
        self.total = 0
        self.addresses: dict[Address, None] = {}


class Refusals:
    """Of the last minute or two."""

    def __init__(self) -> None:
        self._now: dict[Kind, _Count] = {}
        self._before: dict[Kind, _Count] = {}
        self._since = 0
        self._told_at: int | None = None
        self._is_waiting = False

    def note(self, reason: Reject, key_id: bytes = b"", source: Address | None = None) -> None:
        if reason not in TOLD:
            return
        kind = (reason._value_, key_id if reason is Reject.KEY else b"")
        count = self._now.get(kind)
        if count is None:
            if len(self._now) >= KINDS_MAX:
                kind = next(iter(self._now))
            count = self._now.setdefault(kind, _Count())
        count.total += 1
        if source is not None and len(count.addresses) < ADDRESSES_MAX:
            count.addresses[source] = None

    def to_tell(self, own_id: str, now: int) -> list[str]:
        """Now and again: what to log, at the most once a minute. What is new waits for the next
        time: addresses are noted once somebody was refused."""
        told: list[str] = []
        was_waiting, self._is_waiting = self._is_waiting, bool(self._now)
        if was_waiting and (self._told_at is None or now >= self._told_at + MINUTE_NS):
            told, self._told_at = self.explain(own_id), now
        if now >= self._since + MINUTE_NS:
            self._since, self._before, self._now = now, self._now, {}
        return told

    def explain(self, own_id: str) -> list[str]:
        return list(self._sentences(own_id))

    def _sentences(self, own_id: str) -> Iterator[str]:
        for kind in self._before | self._now:
            value, key_id = kind
            reason = Reject(value)
            counts = [each[kind] for each in (self._before, self._now) if kind in each]
            addresses = list({at: None for count in counts for at in count.addresses})
            where = f" from {addresses[0]}" if addresses else ""
            if len(addresses) > 1:
                where += f" and {len(addresses) - 1} other address" + "es" * (len(addresses) > 2)
            total = sum(count.total for count in counts)
            what = {
                Reject.KEY: f"with key id {key_id.hex()} (ours is {own_id})",
                Reject.UNSEALED: f"that were not sealed (this group has a key, id {own_id})",
                Reject.SALTS: "of too many unknown senders: somebody may make them up",
            }[reason]
            yield f"refused {counted(total, 'datagram')}{where} {what}"
