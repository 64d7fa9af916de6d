"""Tap: what a member does, for its recorder. It looks at a Node from outside and changes nothing.

So a protocol that is wrong cannot lie in its own trace: what counts as sent is what stands in the
send window, what counts as delivered is what was really taken. At level "full" it also shows
frames and windows (detail.py); at level "deliveries" no datagram is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringcast.aio.detail import Detail
from ringcast.events import Delivered, FragmentsTaken, ViewInstalled
from ringcast.window.assembler import Assembler
from ringcast.window.windows import SendWindow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ringcast.events import Event
    from ringcast.model import Address, Origin, Stream
    from ringcast.node import Node
    from ringcast.trace.recorder import Recorder
    from ringcast.window.windows import ReceiveWindow
    from ringcast.wire.frames import Data


@dataclass(slots=True)
class _Sent:
    """One stream of the member's own messages, as far as it has been told."""

    stream: Stream
    window: SendWindow
    assembler: Assembler
    through: int = 0


class Tap:
    """Tells a recorder what happens at a node."""

    def __init__(self, node: Node, recorder: Recorder) -> None:
        self._node = node
        self._recorder = recorder
        self._detail = Detail(node, recorder) if recorder.level == "full" else None
        self._multicast = node.multicast
        self._sent: dict[Stream, _Sent] = {}
        self._open: dict[Origin, ReceiveWindow] = {}
        self._generation = -1

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
                self._recorder.delivered(event, now)
        elif isinstance(event, FragmentsTaken):
            if not event.epoch:
                self._recorder.delivered_fragments(event, now)
        elif isinstance(event, ViewInstalled):
            self._recorder.view(event.view, now)

    def look(self, now: int) -> None:
        """After each input: which windows there are, and what was sent."""
        if self._multicast.generation != self._generation:
            self._generation = self._multicast.generation
            self._note_windows(self._multicast.windows(), now)
        for sent in self._sent.values():
            if sent.window.high > sent.through:
                self._note_sent(sent, now)
        if self._detail is not None:
            self._detail.look(now)
        self._recorder.tick(now)

    def stop(self, now: int, timeout_s: float = 5.0) -> None:
        """The member stops in good order. Wait so long for what is still to be written."""
        self._recorder.stopped(now)
        self._recorder.close(timeout_s)

    def stats(self) -> dict[str, object]:
        return self._recorder.stats()

    def _note_windows(self, windows: Mapping[Origin, SendWindow | ReceiveWindow], now: int) -> None:
        # One may have taken another's place since the last look: for a sender that was away.
        gone = [
            origin for origin, window in self._open.items() if windows.get(origin) is not window
        ]
        for origin in gone:
            del self._open[origin]
            self._recorder.dropped(origin, now)
            if self._detail is not None:
                self._detail.forget(origin)
        for origin, window in windows.items():
            if isinstance(window, SendWindow):
                if origin.stream not in self._sent:
                    assembler = Assembler(self._node.config.multicast.max_message_bytes)
                    self._sent[origin.stream] = _Sent(origin.stream, window, assembler)
            elif origin not in self._open:
                self._open[origin] = window
                self._recorder.opened(origin, window.delivered, now)

    def _note_sent(self, sent: _Sent, now: int) -> None:
        for data in self._multicast.sent_since(sent.stream, sent.through + 1):
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
