"""Tap: what a member does, for its recorder. It looks at a Node from outside and changes nothing.

So a protocol that is wrong cannot lie in its own trace: what counts as sent is what stands in the
send window, what counts as delivered is what was really taken. At level "full" it also shows
frames and windows (detail.py); at level "deliveries" no datagram is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringcast.aio.detail import Detail
from ringcast.events import Delivered, FragmentsDelivered, StateLost, StateReceived, ViewInstalled
from ringcast.model import Origin, Stream
from ringcast.trace.rows import BACK, LEFT_BEHIND, RESOLVED, STATE_LOST, STATE_RECEIVED
from ringcast.window.assembler import Assembler
from ringcast.window.windows import SendWindow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ringcast.events import Event
    from ringcast.model import Address, Member, ViewId
    from ringcast.node import Node
    from ringcast.protocols.multicast_sender import MulticastSender
    from ringcast.protocols.uniform import Estate
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


class Tap:
    """Tells a recorder what happens at a node."""

    def __init__(self, node: Node, recorder: Recorder) -> None:
        self._node = node
        self._recorder = recorder
        self._detail = Detail(node, recorder) if recorder.level == "full" else None
        self._multicast = node.multicast
        self._sent: dict[Stream, _Sent] = {}
        self._open: dict[Origin, ReceiveWindow] = {}
        self._offsets: dict[Origin, int] = {}  # where those opened
        self._estates: dict[Member, tuple[Estate, str]] = {}  # and how far each had come
        self._generation = -1
        self._told_view: ViewId | None = None
        self._is_behind = False  # it waits for its state, and what comes is put aside

    @property
    def recorder(self) -> Recorder:
        return self._recorder

    def start(self, now: int) -> None:
        self._recorder.start(now)

    @property
    def is_full(self) -> bool:
        """Datagrams are to be shown too: by `received` and `transmitted`."""
        return self._detail is not None

    def received(self, datagrams: Iterable[memoryview], now: int) -> Iterator[memoryview]:
        """The same datagrams, each seen on its way to the node."""
        assert self._detail is not None
        return self._detail.received(datagrams, now)

    def transmitted(self, datagrams: Iterable[tuple[Address | None, bytes]], now: int) -> None:
        """These datagrams left the node."""
        assert self._detail is not None
        self._detail.transmitted(datagrams, now)

    def event(self, event: Event, now: int) -> None:
        """An event left the node: for messages this is delivery."""
        if isinstance(event, Delivered):
            if not event.epoch:  # messages to this member alone are not recorded yet
                self._note_sent_before(event.sender, event.run.stream, event.run.last, now)
                self._recorder.delivered(event, now)
        elif isinstance(event, FragmentsDelivered):
            if not event.epoch:
                self._note_sent_before(event.sender, event.stream, event.last, now)
                self._recorder.delivered_fragments(event, now)
        elif isinstance(event, ViewInstalled):
            self._tell_purged(now)
            self._recorder.view(event.view, now)
            self._told_view = event.view.id
        elif isinstance(event, StateReceived):
            self._recorder.state(STATE_RECEIVED, now)
            self._note_cut(now)
        elif isinstance(event, StateLost):
            self._recorder.state(STATE_LOST, now)

    def look(self, now: int) -> None:
        """After each input: which windows there are, and what was sent."""
        if self._multicast.uniform.estates or self._estates:
            self._note_estates(now)
        if self._multicast.generation != self._generation:
            self._generation = self._multicast.generation
            self._note_windows(now)
        for sent in self._sent.values():
            if sent.sending.window.high > sent.through:
                self._note_sent(sent, now)
        if self._detail is not None:
            self._detail.look(now)
        else:
            self._note_purged(now)
        state = self._node.state
        if state is not None and self._multicast.senders:  # none: this member is gone
            self._is_behind = state.is_behind
        self._recorder.tick(now)

    def stop(self, now: int, timeout_s: float = 5.0) -> None:
        """The member stops in good order. Wait so long for what is still to be written."""
        self._tell_purged(now)
        if self._is_behind:
            self._recorder.state(STATE_LOST, now, LEFT_BEHIND)
        self._recorder.stopped(now)
        self._recorder.close(timeout_s)

    def stats(self) -> dict[str, object]:
        return self._recorder.stats()

    def _note_purged(self, now: int) -> None:
        """What a sender purges, all members of its view have delivered: it counts their acks, or
        reports, in that view."""
        view = self._node.view
        if view is None:
            return
        for sent in self._sent.values():
            low = sent.sending.window.low
            if low > sent.purged:
                if sent.purged_in != view.id:
                    self._tell_purged(now)
                sent.purged, sent.purged_in = low, view.id
                if now - sent.told_at >= PURGES_NS:
                    self._tell_purged(now)

    def _tell_purged(self, now: int) -> None:
        """It stands behind its view's row and before the next one's. The application may not have
        heard of that view yet: then it is told with the next, or at the end."""
        for sent in self._sent.values():
            if sent.purged_in is not None and sent.purged_in == self._told_view:
                self._recorder.purged(sent.stream, sent.purged, now)
                sent.purged_in, sent.told_at = None, now

    def _note_estates(self, now: int) -> None:
        """Which departed senders are not resolved, and who has just been."""
        estates, view = self._multicast.uniform.estates, self._node.view
        if view is None or not self._multicast.windows():
            self._estates.clear()  # this member has left, and resolves nothing any more
            return
        for sender in [sender for sender in self._estates if sender not in estates]:
            estate, _ = self._estates.pop(sender)
            self._write_estate(sender, estate, BACK if sender in view else RESOLVED, now)
            self._drop(Origin(sender, Stream.UNIFORM), now)
        for sender, estate in estates.items():
            stage = estate.stage.name.lower()
            if self._estates.get(sender) != (estate, stage):
                self._estates[sender] = estate, stage
                self._write_estate(sender, estate, stage, now)

    def _write_estate(self, sender: Member, estate: Estate, kind: str, now: int) -> None:
        assert self._node.view is not None
        self._recorder.estate(
            *(Origin(sender, Stream.UNIFORM), now),
            kind=kind,
            seqno=estate.goal or 0,
            seqno2=estate.goal or 0,
            hd=estate.delivered,
            received=estate.received,
            view=self._node.view.counter,
            detail="forwarder" if estate.is_forwarder else "" if estate.is_mine else "no window",
        )

    def _note_windows(self, now: int) -> None:
        windows = self._multicast.windows()
        kept = {estate.window for estate, _ in self._estates.values()}
        # One may have taken another's place since the last look: for a sender that was away.
        gone = [
            origin
            for origin, window in self._open.items()
            if windows.get(origin) is not window and window not in kept
        ]
        for origin in gone:
            self._drop(origin, now)
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

    def _note_cut(self, now: int) -> None:
        """The state has come, and may reach further than the place where the windows opened."""
        assert self._node.state is not None
        assert self._node.state.cut is not None
        for origin, seqno in self._node.state.cut.entries.items():
            if origin in self._open and seqno > self._offsets[origin]:
                self._recorder.dropped(origin, now)
                self._note_open(origin, seqno, now)

    def _drop(self, origin: Origin, now: int) -> None:
        if self._open.pop(origin, None) is not None:
            del self._offsets[origin]
            self._recorder.dropped(origin, now)
            if self._detail is not None:
                self._detail.forget(origin)

    def _note_sent_before(self, sender: Member, stream: Stream, last: int, now: int) -> None:
        """Whoever leaves may have sent and taken its last messages in one step."""
        sent = self._sent.get(stream)
        if sent is not None and last > sent.through and sender == self._node.me:
            self._note_sent(sent, now)

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
