"""What a recorded member has with each other member, at level "full": connections of its
application, and of the system, which carry requests; blocked sends; and what its machine makes of
time.

Frames may leave a little later than the input that made them. Rows of an input that come before
those frames have left bear a `held` row in front. An input that comes later than the first deadline
of the member is `late`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.trace import rows as trace
from ringcast.trace.observe.connections import Connections
from ringcast.trace.observe.messages import block_columns

if TYPE_CHECKING:
    from ringcast.model import Member, Stream
    from ringcast.node import Node
    from ringcast.trace.recorder import Recorder

LATE_NS = 1_000_000
"""Less than this is told of no timer."""


class Pairs:
    """Turns it into rows."""

    def __init__(self, node: Node, recorder: Recorder) -> None:
        self._node = node
        self._recorder = recorder
        self.connections = Connections(node, recorder, None)
        self.system: Connections | None = None
        if node.channel is not None:
            self.system = Connections(node, recorder, None, node.channel.unicast)
        self.has_left = False
        """Its connections end with it, when it stops."""
        self._now = 0
        self._due: int | None = None
        """The first deadline, as the last input left it."""
        self._late_told = 0
        """Up to when it is told how late the member is."""
        self._has_waiting = False
        """Frames of the last input."""
        self._offer: tuple[Member | None, Stream, bytes | None] | None = None
        self._blocked: set[Stream] = set()

    def begin(self, now: int) -> None:
        """Before any row of an input, or of frames that leave."""
        if now == self._now:
            return
        if self._has_waiting:
            self._recorder.write(trace.HELD, now)
        since = max(self._due or now, self._late_told)
        if now - since > LATE_NS:
            self._recorder.write(trace.LATE, now, size=now - since)
            self._late_told = now
        self._now = now

    def end_input(self, now: int) -> None:
        effects = self._node.effects
        self._has_waiting = bool(
            effects.frames or effects.lone is not None or self._node.datagrams.packed
        )
        self._due = self._node.deadlines.peek()

    def offered(self, to: Member | None, stream: Stream, refused: bytes | None) -> None:
        self._offer = to, stream, refused

    def look(self, now: int, *, is_end: bool = False) -> None:
        if self.has_left and not is_end:
            return
        for connections in filter(None, (self.connections, self.system)):
            connections.look_at_timers(now)
            connections.look(now)
            connections.note_timers()
            connections.input_ended()

    def leave(self, now: int) -> None:
        """All frames that wait are about to leave. Whoever asks or answers has told nobody."""
        self._has_waiting = False
        self.look_at_system(now)

    def look_at_system(self, now: int) -> None:
        """A request may have been taken, or a frame have left, and nothing else tells of it."""
        if self.system is not None and not self.has_left:
            self.system.look(now)
        self._due = self._node.deadlines.peek()

    def tell_blocked(self, now: int) -> None:
        """What was offered and not accepted; and what may go on."""
        is_blocked = self._node.multicast.is_blocked
        for stream in [each for each in self._blocked if not is_blocked(each)]:
            self._blocked.remove(stream)
            self._recorder.write(trace.SEND_UNBLOCK, now, stream=int(stream))
        if self._offer is None:
            return
        (to, stream, refused), self._offer = self._offer, None
        if refused is None:
            return
        if to is not None:
            self.connections.blocked(to, refused, now)
        elif columns := block_columns(self._node, stream, refused):
            self._recorder.write(trace.SEND_BLOCK, now, **columns)
            self._blocked.add(stream)
