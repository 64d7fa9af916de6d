"""Windows for messages to the group: how they move, whom their senders count, who is blocked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringcast.trace import rows as trace
from ringcast.trace.rows import member_key, naming
from ringcast.window.send import SendWindow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ringcast.model import Origin, Stream
    from ringcast.node import Node
    from ringcast.trace.observe.messages import Messages
    from ringcast.trace.observe.sink import Sink
    from ringcast.trace.observe.wire import Wire
    from ringcast.window.receive import ReceiveWindow

GREW = "a window grows"
SHRANK = "a window shrinks"


class Windows:
    """Turns what changed in the windows of one member into rows."""

    def __init__(self, node: Node, sink: Sink, wire: Wire, messages: Messages | None) -> None:
        """`messages`: of a simulated run, whose rows tell of openings and sends here too."""
        self._node = node
        self._sink = sink
        self._wire = wire
        self._messages = messages
        self._states: dict[Origin, tuple[int, ...]] = {}
        self._seen: dict[Origin, ReceiveWindow] = {}  # the window that each state is of
        self._slots: dict[Origin, int] = {}  # of windows that grow
        self._ackers: dict[Stream, int] = {}
        self._has_stability = node.config.multicast.stability is not None

    def look(self, windows: Mapping[Origin, SendWindow | ReceiveWindow], now: int) -> None:
        for origin, window in windows.items():
            if self._messages is not None and self._has_stability:
                self._note_growth(origin, window, self._messages)
            if isinstance(window, SendWindow):
                self.look_at_send(origin, window, now)
            else:
                self._look_at_receive(origin, window, now)

    def look_for_dropped(self, windows: Mapping[Origin, object], now: int) -> None:
        for origin in [origin for origin in self._states if origin not in windows]:
            self._drop(origin, now)

    def has_more_than(self, windows: Mapping[Origin, object]) -> bool:
        return len(windows) < len(self._states)

    def sent_through(self, origin: Origin) -> int:
        """Up to where rows tell of what was sent."""
        state = self._states.get(origin)
        return 0 if state is None else state[2]

    def forget(self, origin: Origin) -> None:
        """Its window is gone."""
        self._states.pop(origin, None)

    def look_at_acks(self, now: int, *, is_new_view: bool) -> None:
        unknown = -1 if self._messages is None else 0
        for stream, sending in self._node.multicast.senders.items():
            if is_new_view or len(sending.acks) != self._ackers.get(stream, unknown):
                self._ackers[stream] = len(sending.acks)
                keys = tuple(map(member_key, sending.acks.members))
                self._sink.write(trace.ACKMAP, now, stream=int(stream), members=keys)

    def look_at_sends(self, windows: Mapping[Origin, SendWindow | ReceiveWindow], now: int) -> None:
        """What was sent, and nothing else: what is purged is told behind the deliveries."""
        assert self._messages is not None
        for origin, window in windows.items():
            before = self._states.get(origin)
            if isinstance(window, SendWindow) and before and window.high > before[2]:
                self._messages.sent(origin, before[2], window, now)
                self._states[origin] = (*before[:2], window.high, *before[3:])

    def look_at_send(self, origin: Origin, window: SendWindow, now: int) -> None:
        state = (window.low, window.delivered, window.high, window.charged, window.max_bytes)
        before = self._states.get(origin)
        if state == before:
            return
        self._states[origin] = state
        if before is None:
            before = (0,) * len(state)
            if self._messages is not None:
                self._messages.opened(origin, 0)
        if window.low > before[0]:
            self._write_purge(origin, window, now)
            self._wire.purged(origin.stream, range(before[0] + 1, window.low + 1))
        if self._messages is not None and window.high > before[2]:
            self._messages.sent(origin, before[2], window, now)
        self._write_window(origin, window, now, received=window.high, size=window.charged)

    def _write_purge(self, origin: Origin, window: SendWindow, now: int) -> None:
        columns = {"stream": int(origin.stream), "cap": slots_of(window)}
        columns |= {"seqno": window.low, "hd": window.delivered}
        self._sink.write(trace.PURGE, now, **columns, used=window.charged, limit=window.max_bytes)

    def _look_at_receive(self, origin: Origin, window: ReceiveWindow, now: int) -> None:
        marks = (window.low, window.delivered, window.received, window.high, window.ahead_bytes)
        state = (window.dropped_high, window.dropped_low, *marks)
        if self._messages is not None and self._seen.get(origin, window) is not window:
            self._drop(origin, now)  # another one has taken its place
        before = self._states.get(origin)
        if state == before:
            return
        named = naming(origin)
        self._states[origin] = state
        if before is None:
            before = (0, 0, window.low)
            if self._messages is not None:
                self._seen[origin] = window
                self._messages.opened(origin, window.delivered)
                self._sink.write(
                    trace.OPEN, now, seqno=window.delivered, **named, **self._messages.naming_view()
                )
        if self._messages is not None and window.retain and window.low > before[2]:
            self._sink.write(trace.RELEASE, now, seqno=window.low, hd=window.delivered, **named)
        for event, count, known in (
            (trace.DROP_HIGH, window.dropped_high, before[0]),
            (trace.DROP_LOW, window.dropped_low, before[1]),
        ):
            if count > known:
                self._sink.write(event, now, seqno=count - known, **named)
        bounds = {"size": window.ahead_bytes, "limit": window.max_bytes}
        self._write_window(origin, window, now, received=window.received, **bounds)

    def _write_window(
        self, origin: Origin, window: SendWindow | ReceiveWindow, now: int, **columns: Any
    ) -> None:
        cap = slots_of(window) if self._messages is not None else window.capacity_max
        if isinstance(window, SendWindow) and window.limit < cap:
            cap = max(window.limit, window.high - window.low)
        marks = {"low": window.low, "hd": window.delivered, "hr": window.high, "cap": cap}
        kind = "send" if isinstance(window, SendWindow) else "receive"
        self._sink.write(trace.WIN, now, **naming(origin), **marks, **columns, kind=kind)

    def _note_growth(
        self, origin: Origin, window: SendWindow | ReceiveWindow, messages: Messages
    ) -> None:
        before = self._slots.get(origin, window.capacity_min)
        self._slots[origin] = window.capacity
        messages.contents.happenings[GREW] += window.capacity > before
        messages.contents.happenings[SHRANK] += window.capacity < before

    def _drop(self, origin: Origin, now: int) -> None:
        assert self._messages is not None
        del self._states[origin]
        self._slots.pop(origin, None)
        self._messages.dropped(origin)
        if origin.sender != self._node.me:
            del self._seen[origin]
            self._sink.write(trace.DROP_WINDOW, now, **naming(origin))


def slots_of(window: SendWindow | ReceiveWindow) -> int:
    """How many messages the window admits, as it is now."""
    if isinstance(window, SendWindow):
        return window.high - window.low + window.room
    return window.capacity_max
