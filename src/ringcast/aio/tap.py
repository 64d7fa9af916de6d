"""Tap: what a member does, for its recorder. It looks at a Node from outside and changes nothing.

So a protocol that is wrong cannot lie in its own trace: what counts as sent is what stands in the
send window, what counts as delivered is what was really taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.events import Delivered, FragmentsTaken, ViewInstalled
from ringcast.model import Stream
from ringcast.window.assembler import Assembler

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ringcast.events import Event
    from ringcast.model import Origin
    from ringcast.node import Node
    from ringcast.trace.recorder import Recorder
    from ringcast.window.windows import ReceiveWindow, SendWindow
    from ringcast.wire.frames import Data


class Tap:
    """Tells a recorder what happens at a node."""

    def __init__(self, node: Node, recorder: Recorder) -> None:
        self._node = node
        self._recorder = recorder
        self._sent = dict.fromkeys(Stream, 0)
        limit = node.config.multicast.max_message_bytes
        self._assemblers = {stream: Assembler(limit) for stream in Stream}
        self._open: set[Origin] = set()
        self._generation = -1

    def start(self, now: int) -> None:
        self._recorder.start(now)

    def event(self, event: Event, now: int) -> None:
        """An event left the node: for messages this is delivery."""
        if isinstance(event, Delivered | FragmentsTaken):
            self._recorder.delivered(event, now)
        elif isinstance(event, ViewInstalled):
            self._recorder.view(event.view, now)

    def look(self, now: int) -> None:
        """After each input: which windows there are, and what was sent."""
        multicast = self._node.multicast
        if multicast.generation != self._generation:
            self._generation = multicast.generation
            self._note_windows(multicast.windows(), now)
        for stream in multicast.streams:
            if multicast.highest_sent(stream) > self._sent[stream]:
                self._note_sent(stream, now)
        self._recorder.tick(now)

    def stop(self, now: int) -> None:
        """The member stops in good order."""
        self._recorder.stopped(now)
        self._recorder.close()

    def stats(self) -> dict[str, object]:
        return self._recorder.stats()

    def _note_windows(self, windows: Mapping[Origin, SendWindow | ReceiveWindow], now: int) -> None:
        for origin, window in windows.items():
            if origin.sender != self._node.me and origin not in self._open:
                self._open.add(origin)
                self._recorder.opened(origin, window.delivered, now)
        for origin in [origin for origin in self._open if origin not in windows]:
            self._open.discard(origin)
            self._recorder.dropped(origin)

    def _note_sent(self, stream: Stream, now: int) -> None:
        for data in self._node.multicast.sent_since(stream, self._sent[stream] + 1):
            self._sent[stream] = data.last
            self._note_frame(stream, data, now)

    def _note_frame(self, stream: Stream, data: Data, now: int) -> None:
        """Whole messages as they are; a large one counts where its last fragment stands."""
        assembler = self._assemblers[stream]
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
