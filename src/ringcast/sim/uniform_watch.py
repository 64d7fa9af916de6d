"""What a harness sees of uniform delivery: commits on the wire, and the estates of the departed;
also of plain messages, where these are retained."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ringcast.model import Origin, Stream
from ringcast.sim.network import Seen
from ringcast.trace import rows as trace
from ringcast.wire.frames import Commit, CommitWanted, Standing, Takeover

if TYPE_CHECKING:
    from ringcast.node import Node
    from ringcast.protocols.uniform import Estate
    from ringcast.sim.recorder import Scribe
    from ringcast.wire.frames import Frame


class _State(NamedTuple):
    """One estate as it was last seen."""

    stage: str
    goal: int
    delivered: int
    received: int
    detail: str

    @classmethod
    def of(cls, estate: Estate) -> _State:
        detail = "forwarder" if estate.is_forwarder else "" if estate.is_mine else "no window"
        stage = estate.stage.name.lower()
        return cls(stage, estate.goal or 0, estate.delivered, estate.received, detail)


class UniformWatch:
    """Turns what becomes of estates at one node into rows."""

    def __init__(self, node: Node, scribe: Scribe) -> None:
        self._node = node
        self._scribe = scribe
        self._states: dict[Origin, _State] = {}

    def look_at(self, frame: Frame) -> Seen | None:
        """What leaves; None if it is no frame of this protocol."""
        stream = int(Stream.UNIFORM)
        match frame:
            case Commit(seqno, view_id):
                return Seen("commit", stream, seqno, seqno, view=view_id.counter)
            case CommitWanted(view_id):
                return Seen("commit_wanted", stream, view=view_id.counter)
            case Takeover(view_id):
                return Seen("takeover", int(frame.stream), view=view_id.counter)
            case Standing(view_id):
                return Seen("standing", int(frame.stream), view=view_id.counter)
        return None

    def observe(self) -> None:
        multicast = self._node.multicast
        estates = {
            Origin(sender, left.stream): estate
            for left in (multicast.uniform, multicast.retained)
            for sender, estate in left.estates.items()
        }
        if not estates and not self._states:
            return
        if Origin(self._node.me, Stream.FIFO) not in multicast.windows():
            self._states.clear()  # it has left, and they with it
            return
        for origin in [origin for origin in self._states if origin not in estates]:
            state = self._states.pop(origin)
            is_back = self._node.view is not None and origin.sender in self._node.view
            self._write(origin, state._replace(stage=trace.BACK if is_back else trace.RESOLVED))
        for origin, estate in estates.items():
            state = _State.of(estate)
            if state != self._states.get(origin):
                self._states[origin] = state
                self._write(origin, state)

    def _write(self, origin: Origin, state: _State) -> None:
        assert self._node.view is not None
        self._scribe.write_about(
            trace.ESTATE,
            origin.sender,
            stream=int(origin.stream),
            kind=state.stage,
            seqno=state.goal,
            seqno2=state.goal,
            hd=state.delivered,
            received=state.received,
            view=self._node.view.counter,
            detail=state.detail,
        )
