"""Of a departed sender's uniform messages all survivors deliver the same: who does not?

Each survivor that has resolved what a sender left must have everything of it that was delivered by
whoever saw the sender depart with the same view, and by whoever was with it in the sender's last
view and went no further: the sender itself, and others that died. Members of another part of a
parted group are not compared, nor is who lost sight of the sender and saw it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ringcast.model import Stream
from ringcast.spark.digest import Track

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringcast.spark.digest import Installed, MemberTrace
    from ringcast.spark.run import Run
    from ringcast.trace.rows import MemberKey, OriginKey

ViewKey = tuple[str, int]
"""A view's creator and counter."""


class Share(NamedTuple):
    """What one member had of a sender, and with whom it was when that one departed."""

    member: MemberKey
    offset: int
    last: int
    together: ViewKey
    """The last view with the sender."""
    without: ViewKey | None
    """The next one; None: this member went no further."""
    is_resolved: bool


class Missed(NamedTuple):
    """One survivor lacks what another member has delivered."""

    origin: OriginKey
    survivor: MemberKey
    other: MemberKey
    first: int
    last: int


def compare_survivors(run: Run) -> tuple[int, list[Missed]]:
    """How many survivors were compared with anybody, over all senders; and what they lack."""
    compared, missed = 0, []
    senders = {sender for trace in run.members.values() for sender in trace.resolved}
    for sender in sorted(senders):
        shares = [
            share
            for member, trace in run.members.items()
            if (share := _share(member, trace, sender)) is not None
        ]
        for survivor in shares:
            if not survivor.is_resolved:
                continue
            others = [share for share in shares if _goes_on_with(survivor, share)]
            compared += bool(others)
            for other in others:
                first = max(survivor.last, survivor.offset) + 1
                if other.last >= first:
                    origin = (*sender, int(Stream.UNIFORM))
                    missed.append(Missed(origin, survivor.member, other.member, first, other.last))
    return compared, missed


def _goes_on_with(survivor: Share, other: Share) -> bool:
    if other.member == survivor.member or other.together != survivor.together:
        return False
    return other.without in (None, survivor.without)


def _share(member: MemberKey, trace: MemberTrace, sender: MemberKey) -> Share | None:
    stretches = trace.tracks.get(Track("delivered", *sender, int(Stream.UNIFORM)), [])
    opened = [stretch for stretch in stretches if stretch.is_opened]
    together, without = _parting(trace, sender)
    is_begun = len(opened) == 1 or (not opened and member == sender)  # one's own need no window
    if together is None or not is_begun:
        return None
    return Share(
        member,
        opened[0].first - 1 if opened else 0,
        max((stretch.last for stretch in stretches), default=0),
        _key(together),
        None if without is None else _key(without),
        sender in trace.resolved and not trace.holes,
    )


def _parting(trace: MemberTrace, sender: MemberKey) -> tuple[Installed | None, Installed | None]:
    """The last view with the sender, and the one after it."""
    name = f"{sender[0]}#{sender[1]}"
    views: Iterator[Installed] = reversed(trace.views)
    without = None
    for view in views:
        if name in view.members:
            return view, without
        without = view
    return None, None


def _key(view: Installed) -> ViewKey:
    return view.creator, view.counter
