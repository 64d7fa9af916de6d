"""Of a departed sender's uniform messages all survivors deliver the same: who does not?

Each survivor that has resolved what a sender left must have everything of it that was delivered by
whoever goes on with it, and by whoever was with it in the sender's last view and went no further:
the sender itself, and others that died. Two members go on together when they come to a view without
the sender and have not lost sight of each other since they had it: one of them may have skipped
views, which a coordinator that died had sent to some. Members of another part of a parted group are
not compared.

A window ends when its member and the sender are parted: the member was in a view without the
sender, or the sender in one without the member. If they come together again the sender says where
the member goes on, and if it dies before that is heard no row tells: what was sent meanwhile was
for others. Who had such a window owes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ringcast.model import Stream
from ringcast.spark.summary import Track

if TYPE_CHECKING:
    from ringcast.spark.recorded_run import RecordedRun
    from ringcast.spark.summary import Installed, MemberTrace, ViewKey
    from ringcast.trace.rows import MemberKey, OriginKey


class Share(NamedTuple):
    """What one member had of a sender, and with whom it was when that one departed."""

    member: MemberKey
    offset: int
    opened_in: int
    """The counter of the view in which the window for the sender opened."""
    last: int
    with_sender: list[Installed]
    """All views with the sender."""
    without: list[Installed]
    """Those that came after; none: this member went no further."""
    is_resolved: bool

    @property
    def together(self) -> Installed:
        """The last view with the sender."""
        return self.with_sender[-1]

    def is_left_out_by(self, other: Share) -> bool:
        """Whether that one was with the sender, and without this member, while this member's
        window was open."""
        name = _name(self.member)
        return any(
            self.opened_in < view.counter <= self.together.counter and name not in view.members
            for view in other.with_sender
        )

    def sees(self, other: Share, through: ViewKey) -> bool:
        """Whether that one is in each view from the last with the sender to this one."""
        name = _name(other.member)
        for view in (self.together, *self.without):
            if name not in view.members:
                return False
            if view.key == through:
                break
        return True


class Missed(NamedTuple):
    """One survivor lacks what another member has delivered."""

    origin: OriginKey
    survivor: MemberKey
    other: MemberKey
    first: int
    last: int
    is_survivor: bool
    """The other one has gone on too, with the same view."""


class Compared(NamedTuple):
    """How many survivors were compared, over all senders; and what they lack."""

    with_anybody: int
    with_survivors: int
    missed: list[Missed]


def compare_survivors(run: RecordedRun) -> Compared:
    with_anybody, with_survivors = 0, 0
    missed: list[Missed] = []
    senders = {sender for trace in run.members.values() for sender in trace.resolved}
    for sender in sorted(senders):
        shares = [
            share
            for member, trace in run.members.items()
            if (share := _share(member, trace, sender)) is not None
        ]
        own = next((share for share in shares if share.member == sender), None)
        for survivor in shares:
            if not survivor.is_resolved or (own is not None and survivor.is_left_out_by(own)):
                continue
            others = [share for share in shares if _goes_on_with(survivor, share)]
            with_anybody += bool(others)
            with_survivors += any(other.without for other in others)
            for other in others:
                first = max(survivor.last, survivor.offset) + 1
                if other.last >= first:
                    origin = (*sender, int(Stream.UNIFORM))
                    is_survivor = bool(other.without)
                    missed.append(
                        Missed(
                            *(origin, survivor.member, other.member),
                            *(first, other.last, is_survivor),
                        )
                    )
    return Compared(with_anybody, with_survivors, missed)


def _goes_on_with(survivor: Share, other: Share) -> bool:
    if other.member == survivor.member or survivor.is_left_out_by(other):
        return False
    if not other.without:
        return other.together.key == survivor.together.key
    theirs = {view.key for view in other.without}
    meeting = next((view.key for view in survivor.without if view.key in theirs), None)
    if meeting is None:
        return False
    return survivor.sees(other, meeting) and other.sees(survivor, meeting)


def _share(member: MemberKey, trace: MemberTrace, sender: MemberKey) -> Share | None:
    stretches = trace.tracks.get(Track("delivered", *sender, int(Stream.UNIFORM)), [])
    opened = [stretch for stretch in stretches if stretch.is_opened]
    with_sender = [view for view in trace.views if _name(sender) in view.members]
    is_begun = len(opened) == 1 or (not opened and member == sender)  # one's own need no window
    if not with_sender or not is_begun:
        return None
    opened_idx = opened[0].first_idx if opened else -1
    last_idx = with_sender[-1].idx
    apart = [view for view in trace.views if _name(sender) not in view.members]
    if any(opened_idx < view.idx < last_idx for view in apart):
        return None
    before = [view.counter for view in trace.views if view.idx < opened_idx]
    return Share(
        member,
        opened[0].first - 1 if opened else 0,
        before[-1] if before else with_sender[-1].counter,
        max((stretch.last for stretch in stretches), default=0),
        with_sender,
        [view for view in apart if view.idx > last_idx],
        sender in trace.resolved and not trace.holes,
    )


def _name(member: MemberKey) -> str:
    return f"{member[0]}#{member[1]}"
