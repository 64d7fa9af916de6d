"""What the application reads, in one order: the messages of a view, then the view after it.

A view is installed without waiting for the application. So a reader may be views behind: each that
it has not come to yet waits here, with how far every window is read before it. Windows of senders
that departed live on here until they are read up to their cut.

The event of a view also tells what members may lack for good that come back from another view. Of a
member that does not come along into a view it is known how far it holds each stream. What was sent
beyond that, until it is met again, was sent in views that it was not in, or at the end of the one
in which the two parted. Nobody sends it again: the view in which they meet tells it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringcast.events import Event, ViewInstalled
from ringcast.model import Member, Stream, View
from ringcast.texts import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Set

    from ringcast.core.view_change import Begin
    from ringcast.protocols.multicast_receiver import MulticastReceiver
    from ringcast.protocols.multicast_sender import MulticastSender
    from ringcast.protocols.total.reading import Start

    Half = MulticastSender | MulticastReceiver

UNREAD_VIEWS_MAX = 256
"""Views that an application may be behind."""

UNREAD_WINDOWS = 4
"""How many windows full of bytes of departed members may wait for a reader."""


@dataclass(slots=True)
class UnreadView:
    view: View
    events: list[Event]
    """ViewInstalled, and what follows on it at once."""
    cuts: Mapping[Half, int]
    """How far each stream is read before the event. What is not here opened in a later view."""
    has_new: bool
    """Somebody comes in who was not there: large messages that are under way start over."""
    pauses: bool = False
    """Nothing is to be read behind it until somebody says so."""
    start: Start | None = None
    """Where it stands in the one order of total messages."""


class Reading:
    """How far the application may read."""

    def __init__(self) -> None:
        self.unread: deque[UnreadView] = deque()

    def room(self, half: Half) -> int:
        """How many messages may be read of it before the next view."""
        ready = half.window.ready
        if not self.unread:
            return ready
        cut = self.unread[0].cuts.get(half)
        return 0 if cut is None else min(ready, cut - half.window.delivered)

    def end(self, half: Half) -> int:
        """How far it is read before the next view."""
        return self.unread[0].cuts.get(half, 0) if self.unread else half.window.high

    @property
    def is_due(self) -> bool:
        """Everything before the next view has been read."""
        return bool(self.unread) and all(
            half.window.delivered >= cut for half, cut in self.unread[0].cuts.items()
        )

    def announce(self) -> UnreadView | None:
        """The next view, if everything before it has been read."""
        if not self.is_due:
            return None
        head = self.unread.popleft()
        for half, cut in head.cuts.items():
            if head.has_new or half.origin.stream is Stream.TOTAL:
                half.assembler.skip(cut, is_middle=False)
        return head

    def ended_bytes(self, current: Iterable[Half]) -> int:
        """Bytes that wait in windows which have ended."""
        current = set(current)
        ended = {half: cut for unread in self.unread for half, cut in unread.cuts.items()}
        return sum(
            len(payload)
            for half, cut in ended.items()
            if half not in current
            for payload in half.window.read_run(range(half.window.delivered + 1, cut + 1))
        )

    def explain(self) -> list[str]:
        if not self.unread:
            return []
        what = counted(len(self.unread), "view waits", "views wait")
        return [f"{what} for this member's application to read what came before them"]

    @property
    def is_blocked(self) -> bool:
        """The reader is so far behind that no further view can wait for it."""
        return len(self.unread) >= UNREAD_VIEWS_MAX


def installed(
    begin: Begin,
    together: Set[Member],
    unconfirmed: tuple[tuple[Stream, int, int], ...],
    before: View | None,
) -> ViewInstalled:
    """What the application is told of this view. `together` come from this member's last view;
    nobody: it is its first. `before`: that last view."""
    view, lead = begin.view, begin.cut.lead
    # Told with the cut, where there are several parts: whoever comes to it does not know them.
    are_mine = before is not None and len(begin.cut.parts) == 1
    missing = before.members if before is not None and are_mine else begin.cut.gone
    before_all = dict.fromkeys((*missing, *lead.members))
    along_with = set(lead.members).intersection(view)
    gone = tuple(who for who in before_all if who not in along_with)
    came = tuple(who for who in view if who not in lead.members)
    # The views that groups come together from, as far as their members are in this one.
    parts = tuple(
        View(part.view, members)
        for part in begin.cut.parts
        if (members := tuple(who for who in part.members if who in view)) and together
    )
    along = tuple(who for who in view if who in together)
    return ViewInstalled(
        view, parts if len(parts) > 1 else (), along, unconfirmed, gone=gone, came=came
    )


PARTED_MAX = 1024
"""Members that are remembered: those who parted last."""


class Parted:
    """What one member remembers of those who parted from it."""

    def __init__(self) -> None:
        self._held: dict[Member, dict[Stream, int]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def part(self, senders: Mapping[Stream, MulticastSender], staying: Set[Member]) -> None:
        """A view begins in which only these of the last one are."""
        for stream, sending in _plain(senders):
            for member in sending.acks.members:
                if member not in staying:
                    self._held.setdefault(member, {})[stream] = sending.acks.received_by(member)
        while len(self._held) > PARTED_MAX:
            del self._held[next(iter(self._held))]

    def meet(
        self, members: Iterable[Member], senders: Mapping[Stream, MulticastSender]
    ) -> tuple[tuple[Stream, int, int], ...]:
        """These come from other views. What some of them may lack, by stream: from, to."""
        back = [self._held.pop(member) for member in members if member in self._held]
        found = []
        for stream, sending in _plain(senders):
            last = sending.window.high
            first = 1 + min((held.get(stream, last) for held in back), default=last)
            if first <= last:
                found.append((stream, first, last))
        return tuple(found)


def _plain(
    senders: Mapping[Stream, MulticastSender],
) -> list[tuple[Stream, MulticastSender]]:
    """Without the log of total messages: origins say what becomes of that."""
    return [(stream, each) for stream, each in senders.items() if stream is not Stream.TOTAL]
