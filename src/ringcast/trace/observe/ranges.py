"""Ranges for a recorder: which windows opened where, what was sent, how far all have delivered it.

What counts as sent is what stands in the send window. The recorder makes rows of what continues.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringcast.protocols.views.streams import ViewStreams
from ringcast.trace.observe.frames import brings_others
from ringcast.trace.rows import PURGE
from ringcast.window.assembler import Assembler
from ringcast.window.send import SendWindow

if TYPE_CHECKING:
    from ringcast.core.view_change import Begin
    from ringcast.model import Member, Origin, Stream, ViewId
    from ringcast.node import Node
    from ringcast.protocols.multicast_sender import MulticastSender
    from ringcast.trace.observe.windows import Windows
    from ringcast.trace.recorder import Recorder
    from ringcast.window.receive import ReceiveWindow
    from ringcast.wire.frames import Data

PURGES_NS = 1_000_000_000
"""How often a member says how far all have delivered its messages; and at each view, and its end.
At level "full" it says so each time."""


@dataclass(slots=True)
class _Sent:
    """One stream of the member's own messages, as far as it has been told."""

    stream: Stream
    sending: MulticastSender
    assembler: Assembler
    through: int = 0
    purged: int = 0
    purged_told: int = 0
    told_at: int = 0


class Ranges:
    """Tells a recorder of the streams of messages to the group at one node.

    A sender that was away may be back before what it had sent is read: its new window is told when
    the application has come to it.
    """

    def __init__(self, node: Node, recorder: Recorder, windows: Windows | None) -> None:
        """`windows`: at level "full", whose rows tell of each purge."""
        self.view_id: ViewId | None = None if node.view is None else node.view.id
        """Of the view in which messages get their seqnos."""
        self._node = node
        self._multicast = node.multicast
        self._recorder = recorder
        self._windows = windows
        self._sent: dict[Stream, _Sent] = {}
        self._open: dict[Origin, ReceiveWindow] = {}
        self._next: dict[Origin, tuple[ReceiveWindow, int, ViewId]] = {}
        """To be told when what came before is read, and where it opened in which view."""
        self._generation = -1

    def enter_view(self, begin: Begin) -> None:
        """A large message that is under way starts over if somebody new comes in."""
        self.view_id = begin.view.id
        if brings_others(begin, self._node.me):
            for sent in self._sent.values():
                sent.assembler.skip(sent.through, is_middle=False)

    def look_at_sends(self, now: int) -> None:
        for sent in self._sent.values():
            if sent.sending.window.high > sent.through:
                self._note_sent(sent, now)

    def look_at_windows(self, now: int) -> None:
        if self._multicast.generation != self._generation:
            self._generation = self._multicast.generation
            self._look_at_windows(now)

    def forget_ended(self, now: int) -> None:
        """The application is told of a view: what ended with it has been read."""
        windows, unread = self._multicast.windows(), self._unread()
        for origin, window in list(self._open.items()):
            if window not in unread and windows.get(origin) is not window:
                self._drop(origin, now)
                if origin in self._next:
                    self._note_open(origin, *self._next.pop(origin), now)

    def look_at_purges(self, now: int) -> None:
        """What a sender purges, all members of its view have delivered: it counts their acks, or
        reports, in that view."""
        for sent in self._sent.values():
            sent.purged = sent.sending.window.low
        self.tell_purged(now, PURGES_NS)

    def tell_purged(self, now: int, every: int = 0) -> None:
        """It stands behind its view's row and before the next one's."""
        for sent in self._sent.values():
            if sent.purged > sent.purged_told and now - sent.told_at >= every:
                sent.purged_told, sent.told_at = sent.purged, now
                place = {"stream": int(sent.stream), "seqno": sent.purged, "hd": sent.purged}
                self._recorder.write(PURGE, now, **place)

    def note_sent_before(self, sender: Member, stream: Stream, last: int, now: int) -> None:
        """Whoever leaves may have sent and taken its last messages in one step."""
        sent = self._sent.get(stream)
        if sent is not None and last > sent.through and sender == self._node.me:
            self._note_sent(sent, now)

    def _unread(self) -> set[ReceiveWindow | SendWindow]:
        """Windows that have ended, and still deliver."""
        streams = self._multicast
        if not isinstance(streams, ViewStreams):
            return set()
        return {half.window for unread in streams.reading.unread for half in unread.cuts}

    def _look_at_windows(self, now: int) -> None:
        windows, unread = self._multicast.windows(), self._unread()
        for origin, window in list(self._open.items()):
            if windows.get(origin) is not window and window not in unread:
                self._drop(origin, now)
        for origin, found in windows.items():
            if isinstance(found, SendWindow):
                if origin.stream not in self._sent:
                    assembler = Assembler(self._node.config.multicast.max_message_bytes)
                    sending = self._multicast.senders[origin.stream]
                    self._sent[origin.stream] = _Sent(origin.stream, sending, assembler)
                continue
            assert self.view_id is not None
            if origin not in self._open:
                self._note_open(origin, found, found.delivered, self.view_id, now)
            elif self._open[origin] is not found:
                known = self._next.get(origin)
                if known is None or known[0] is not found:
                    self._next[origin] = found, found.delivered, self.view_id

    def _drop(self, origin: Origin, now: int) -> None:
        del self._open[origin]
        self._recorder.dropped(origin, now)
        if self._windows is not None:
            self._windows.forget(origin)

    def _note_open(
        self, origin: Origin, window: ReceiveWindow, offset: int, view_id: ViewId, now: int
    ) -> None:
        self._open[origin] = window
        self._recorder.opened(origin, offset, view_id, now)

    def _note_sent(self, sent: _Sent, now: int) -> None:
        assert self.view_id is not None
        if (low := sent.sending.window.low) > sent.through:
            # Whoever is alone sends, delivers and purges in one take.
            self._recorder.sent_fragments(sent.stream, sent.through + 1, low, self.view_id, now)
            self._recorder.forget_sent(sent.stream, low)
            sent.assembler.skip(low, is_middle=sent.sending.fragments.is_middle)
            sent.through = low
        for data in sent.sending.sent_since(sent.through + 1):
            sent.through = data.last
            self._note_frame(sent, data, self.view_id, now)

    def _note_frame(self, sent: _Sent, data: Data, view_id: ViewId, now: int) -> None:
        """Whole messages as they are; a large one counts where its last fragment stands."""
        stream, assembler = sent.stream, sent.assembler
        if assembler.is_idle and not data.more:
            self._recorder.sent(stream, data.first, data.payloads, view_id, now)
            return
        if data.more:
            assembler.mark(range(data.first, data.last + 1))
        first = data.first
        for start, messages in assembler.assemble(data.first, data.payloads):
            if start > first:
                self._recorder.sent_fragments(stream, first, start - 1, view_id, now)
            self._recorder.sent(stream, start, messages, view_id, now)
            first = start + len(messages)
        if first <= data.last:
            self._recorder.sent_fragments(stream, first, data.last, view_id, now)
