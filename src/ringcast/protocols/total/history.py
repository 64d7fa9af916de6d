"""History: what has been taken of the one order, as a position and a mark for each origin.

The position counts the messages. The mark of an origin is the number of its last one: no number up
to there is ordered again. Those that come together from view to view have the same history; who
comes from elsewhere gets the position and the marks of the leading part with the Cut.

Marks of the departed stay, for they may come back as the same incarnation: of those that went last,
as many as a view has room for beside the members. Not of who has left, nor of an earlier life of a
member.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ringcast.core.view_change import OrderStanding
from ringcast.wire.batches import Head, read_head, size_of
from ringcast.wire.limits import VIEW_MEMBERS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringcast.model import Member, View
    from ringcast.protocols.multicast_receiver import MulticastReceiver
    from ringcast.protocols.multicast_sender import MulticastSender

    Log: TypeAlias = MulticastSender | MulticastReceiver


class History:
    def __init__(self) -> None:
        self.position = 0
        self.marks: dict[Member, int] = {}
        self.has_forgotten = False
        """Marks of some who may come back are not known any more."""

    def take(self, origin: Member, head: Head) -> None:
        if head.ends:
            self.position += head.ends
            self.marks[origin] = head.last

    @property
    def standing(self) -> OrderStanding:
        return OrderStanding(self.position, dict(self.marks), self.has_forgotten)

    def restore(self, standing: OrderStanding) -> None:
        """Go on as the leading part does, though one's own marks were higher."""
        self.position, marks, self.has_forgotten = standing
        self.marks = dict(marks)

    def depart(self, before: tuple[Member, ...], left: set[Member], view: View) -> None:
        """Of these members some are not in this view, and of them some have left for good."""
        lives = {member.address for member in view}
        for member in before:
            if member not in view and member in self.marks:
                self.marks[member] = self.marks.pop(member)  # the last to go
        gone = [member for member in self.marks if member not in view]
        kept = [who for who in gone if who not in left and who.address not in lives]
        room = VIEW_MEMBERS_MAX - len(view)
        self.has_forgotten |= len(kept) > room
        kept = kept[-room:] if room else []
        for member in set(gone).difference(kept):
            del self.marks[member]


class Entries:
    """The batches of one view's log, in their order, each with its seqno and its origin. A batch
    may have been cut into fragments, where the sequencer's datagrams hold less than the origin's:
    it counts with the last one."""

    def __init__(self, view: View, log: Log) -> None:
        self._view = view
        self.log = log
        self.seqno = log.window.gate
        """Up to here they were passed over."""
        self._begun: list[bytes] = []  # fragments of the next one

    def through(self, seqno: int) -> Iterator[tuple[int, Member, Head, int]]:
        """Those up to this seqno: the last is how many bytes of content it has."""
        begun, members = self._begun, self._view.members
        pieces = self.log.window.read_run(range(self.seqno + 1, seqno + 1))
        for at, piece in enumerate(pieces, self.seqno + 1):
            self.seqno = at
            if self.log.assembler.is_continued(at):
                begun.append(piece)
                continue
            batch = b"".join((*begun, piece)) if begun else piece
            begun.clear()
            head = read_head(batch)
            if head is not None and head.place < len(members):
                yield at, members[head.place], head, size_of(batch, head)

    def ahead(self, seqno: int) -> Iterator[tuple[Member, Head]]:
        """What would come up to this seqno; nothing is passed over."""
        other = Entries(self._view, self.log)
        other.seqno, other._begun = self.seqno, list(self._begun)
        for _, origin, head, _ in other.through(seqno):
            yield origin, head
