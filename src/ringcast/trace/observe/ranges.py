"""Ranges for a recorder: which windows opened where, what was sent, how far all have delivered it.

What counts as sent is what stands in the send window. The recorder makes rows of what continues.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringcast.trace.rows import PURGE
from ringcast.window.assembler import Assembler
from ringcast.window.windows import SendWindow

if TYPE_CHECKING:
    from ringcast.model import Member, Origin, Stream, ViewId
    from ringcast.node import Node
    from ringcast.protocols.multicast_sender import MulticastSender
    from ringcast.trace.observe.orphans import Orphans
    from ringcast.trace.observe.windows import Windows
    from ringcast.trace.recorder import Recorder
    from ringcast.window.windows import ReceiveWindow
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
    purged_in: ViewId | None = None
    """The view in which all have delivered so much; None: that has been told."""
    told_at: int = 0


class Ranges:
    """Tells a recorder of the streams of messages to the group at one node."""

    def __init__(
        self, node: Node, recorder: Recorder, orphans: Orphans, windows: Windows | None
    ) -> None:
        """`windows`: at level "full", whose rows tell of each purge."""
        self._node = node
        self._multicast = node.multicast
        self._recorder = recorder
        self._orphans = orphans
        self._windows = windows
        self._sent: dict[Stream, _Sent] = {}
        self._open: dict[Origin, ReceiveWindow] = {}
        self._offsets: dict[Origin, int] = {}  # where those opened
        self._generation = -1
        self._told_view: ViewId | None = None

    def look(self, now: int) -> None:
        """After each input: which windows there are, and what was sent."""
        if self._multicast.generation != self._generation:
            self._generation = self._multicast.generation
            self._look_at_windows(now)
        for sent in self._sent.values():
            if sent.sending.window.high > sent.through:
                self._note_sent(sent, now)

    def enter_view(self, view_id: ViewId) -> None:
        """The view's row has been written."""
        self._told_view = view_id

    def drop(self, origin: Origin, now: int) -> None:
        if self._open.pop(origin, None) is not None:
            del self._offsets[origin]
            self._recorder.dropped(origin, now)
            if self._windows is not None:
                self._windows.forget(origin)

    def look_at_purges(self, now: int) -> None:
        """What a sender purges, all members of its view have delivered: it counts their acks, or
        reports, in that view."""
        view = self._node.view
        if view is None:
            return
        for sent in self._sent.values():
            low = sent.sending.window.low
            if low > sent.purged:
                if sent.purged_in != view.id:
                    self.tell_purged(now)
                sent.purged, sent.purged_in = low, view.id
                if now - sent.told_at >= PURGES_NS:
                    self.tell_purged(now)

    def tell_purged(self, now: int) -> None:
        """It stands behind its view's row and before the next one's. The application may not have
        heard of that view yet: then it is told with the next, or at the end."""
        for sent in self._sent.values():
            if sent.purged_in is not None and sent.purged_in == self._told_view:
                seqno = sent.purged
                self._recorder.write(PURGE, now, stream=int(sent.stream), seqno=seqno, hd=seqno)
                sent.purged_in, sent.told_at = None, now

    def note_cut(self, now: int) -> None:
        """The state has come, and may reach further than the place where the windows opened."""
        assert self._node.state is not None
        assert self._node.state.cut is not None
        for origin, seqno in self._node.state.cut.entries.items():
            if origin in self._open and seqno > self._offsets[origin]:
                self._recorder.dropped(origin, now)
                self._note_open(origin, seqno, now)

    def note_sent_before(self, sender: Member, stream: Stream, last: int, now: int) -> None:
        """Whoever leaves may have sent and taken its last messages in one step."""
        sent = self._sent.get(stream)
        if sent is not None and last > sent.through and sender == self._node.me:
            self._note_sent(sent, now)

    def _look_at_windows(self, now: int) -> None:
        windows = self._multicast.windows()
        kept = self._orphans.kept()
        # One may have taken another's place since the last look: for a sender that was away.
        gone = [
            origin
            for origin, window in self._open.items()
            if windows.get(origin) is not window and window not in kept
        ]
        for origin in gone:
            self.drop(origin, now)
        for origin, window in windows.items():
            if isinstance(window, SendWindow):
                if origin.stream not in self._sent:
                    assembler = Assembler(self._node.config.multicast.max_message_bytes)
                    sending = self._multicast.senders[origin.stream]
                    self._sent[origin.stream] = _Sent(origin.stream, sending, assembler)
            elif origin not in self._open:
                self._open[origin] = window
                self._note_open(origin, self._offset(origin, window), now)

    def _offset(self, origin: Origin, window: ReceiveWindow) -> int:
        """Where the window opened. While a state is on its way, what came since may have been
        taken out of it already, and kept."""
        catch_up = None if self._node.state is None else self._node.state.catch_up
        at = window.delivered
        return at if catch_up is None else catch_up.opened.get(origin, at)

    def _note_open(self, origin: Origin, offset: int, now: int) -> None:
        self._offsets[origin] = offset
        self._recorder.opened(origin, offset, now)

    def _note_sent(self, sent: _Sent, now: int) -> None:
        for data in sent.sending.sent_since(sent.through + 1):
            sent.through = data.last
            self._note_frame(sent, data, now)

    def _note_frame(self, sent: _Sent, data: Data, now: int) -> None:
        """Whole messages as they are; a large one counts where its last fragment stands."""
        stream, assembler = sent.stream, sent.assembler
        if assembler.is_idle and not data.more:
            self._recorder.sent(stream, data.first, data.payloads, now)
            return
        if data.more:
            assembler.mark(range(data.first, data.last + 1))
        first = data.first
        for start, messages in assembler.assemble(data.first, data.payloads):
            if start > first:
                self._recorder.sent_fragments(stream, first, start - 1, now)
            self._recorder.sent(stream, start, messages, now)
            first = start + len(messages)
        if first <= data.last:
            self._recorder.sent_fragments(stream, first, data.last, now)
