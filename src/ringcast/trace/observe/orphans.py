"""Orphaned streams: what is left of the messages of departed senders, and how far it has come."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ringcast.model import Origin, Stream
from ringcast.trace.rows import BACK, ESTATE, RESOLVED, naming

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringcast.node import Node
    from ringcast.protocols.uniform import Estate
    from ringcast.trace.observe.sink import Sink
    from ringcast.window.windows import ReceiveWindow


class _State(NamedTuple):
    """One orphaned stream as it was last seen."""

    estate: Estate
    stage: str
    goal: int = 0
    delivered: int = 0
    received: int = 0
    detail: str = ""

    @classmethod
    def of(cls, estate: Estate) -> _State:
        detail = "forwarder" if estate.is_forwarder else "" if estate.is_mine else "no window"
        stage = estate.stage.name.lower()
        return cls(estate, stage, estate.goal or 0, estate.delivered, estate.received, detail)


class Orphans:
    """Turns what becomes of orphaned streams at one node into rows."""

    def __init__(self, node: Node, sink: Sink, *, is_run: bool) -> None:
        """A simulated run also tells of plain messages, where these are retained, and of every
        step; a recorded member of each stage."""
        self._node = node
        self._sink = sink
        self._is_run = is_run
        uniform, retained = node.multicast.uniform, node.multicast.retained
        self._left = (uniform, retained) if is_run else (uniform,)
        self._states: dict[Origin, _State] = {}

    def kept(self) -> set[ReceiveWindow | None]:
        """Windows that are gone from the node's table, and still deliver."""
        return {state.estate.window for state in self._states.values()}

    def look(self, now: int, resolved: Callable[[Origin, int], None] | None = None) -> None:
        """Turn what changed into rows. `resolved` is told what needs its window no more."""
        if not self._states and not any(left.estates for left in self._left):
            return
        if self._node.view is None or self._has_left():
            self._states.clear()  # this member has left, and resolves nothing any more
            return
        estates = {
            Origin(sender, left.stream): estate
            for left in self._left
            for sender, estate in left.estates.items()
        }
        for origin in [origin for origin in self._states if origin not in estates]:
            state = self._states.pop(origin)
            if not self._is_run:
                state = _State.of(state.estate)
            stage = BACK if origin.sender in self._node.view else RESOLVED
            self._write(origin, state._replace(stage=stage), now)
            if resolved is not None:
                resolved(origin, now)
        for origin, estate in estates.items():
            state, before = _State.of(estate), self._states.get(origin)
            self._states[origin] = state
            if before is None or self._is_news(before, state):
                self._write(origin, state, now)

    def _is_news(self, before: _State, state: _State) -> bool:
        if self._is_run:
            return before[1:] != state[1:]
        return before.stage != state.stage or before.estate is not state.estate

    def _has_left(self) -> bool:
        windows = self._node.multicast.windows()
        return Origin(self._node.me, Stream.FIFO) not in windows

    def _write(self, origin: Origin, state: _State, now: int) -> None:
        assert self._node.view is not None
        marks = {"hd": state.delivered, "received": state.received, "view": self._node.view.counter}
        columns = {"seqno": state.goal, "seqno2": state.goal, "detail": state.detail}
        self._sink.write(ESTATE, now, **naming(origin), **marks, **columns, kind=state.stage)
