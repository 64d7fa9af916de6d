"""TraceObserver: one real member, for its recorder.

Messages to the group are told as ranges at level "deliveries"; level "full" adds frames and
windows. A view stands in the trace where the node installs it, and again where the application is
told of it. While events wait to be taken nobody looks at windows, except before a view.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.core.effects import Left
from ringcast.core.view_change import Freeze
from ringcast.events import Delivered, FragmentsDelivered, StateLost, StateReceived, ViewInstalled
from ringcast.trace.observe.ranges import Ranges
from ringcast.trace.observe.views import columns_of
from ringcast.trace.observe.windows import Windows
from ringcast.trace.observe.wire import Wire
from ringcast.trace.rows import (
    FREEZE,
    LEFT_BEHIND,
    SHOWN,
    STATE_LOST,
    STATE_RECEIVED,
    VIEW,
    naming_id,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.core.view_change import Begin
    from ringcast.events import Event
    from ringcast.model import Address, Member, Stream
    from ringcast.node import Node
    from ringcast.trace.recorder import Recorder
    from ringcast.wire.codec import Buffer


class TraceObserver:
    """Tells a recorder what happens at a node."""

    def __init__(self, node: Node, recorder: Recorder) -> None:
        self._node = node
        self.recorder = recorder
        self._wire: Wire | None = None
        self._windows: Windows | None = None
        if recorder.level == "full":
            self._wire = Wire(node, recorder)
            self._windows = Windows(node, recorder, self._wire, None)
        self._ranges = Ranges(node, recorder, self._windows)
        self._taken_at: Begin | None = None
        """The view at whose cut the state is taken that this member waits for."""
        self._is_new_view = False
        self._is_sending = False
        self._is_behind = False  # it waits for its state, and what comes is put aside

    # What the driver tells

    def start(self, now: int) -> None:
        self.recorder.start(now)

    def stop(self, now: int, timeout_s: float = 5.0) -> None:
        """The member stops in good order. Wait so long for what is still to be written."""
        self._ranges.tell_purged(now)
        if self._is_behind:
            self.recorder.write(STATE_LOST, now, detail=LEFT_BEHIND)
        self.recorder.stopped(now)
        self.recorder.close(timeout_s)

    # What the node tells

    def received(self, datagram: Buffer, now: int) -> None:
        if self._wire is not None:
            self._wire.received(datagram, now)

    def transmitted(
        self, dest: Member | Address | None, datagrams: Sequence[bytes], now: int
    ) -> None:
        if self._wire is not None:
            self._wire.transmitted(dest, datagrams, now)

    def offered(
        self,
        to: Member | None,
        stream: Stream,
        payloads: Sequence[bytes],
        accepted: int,
        now: int,
    ) -> None:
        """What counts is what stands in the send window."""
        self._is_sending = True

    def before_change(self, change: Freeze | Begin | Left, now: int) -> None:
        """What was sent and purged up to here was in the view before."""
        if isinstance(change, Left):
            return
        self._look(now)
        columns = columns_of(change, self._node.me)
        if isinstance(change, Freeze):
            self.recorder.write(FREEZE, now, **columns)
            return
        self._ranges.tell_purged(now)
        self._is_new_view = True
        if self._wire is not None:
            self._wire.enter_view(change.view)
        self._ranges.enter_view(change)
        self.recorder.write(VIEW, now, **columns)
        if self._node.me in change.cut.takers:
            self._taken_at = change

    def before_take(self, now: int, *, buffered: bool) -> None:
        """Windows that have opened stand before what is taken out of them."""
        self._ranges.look_at_windows(now)

    def took(self, events: Sequence[Event], now: int, *, buffered: bool) -> None:
        if events and not buffered:
            for event in events:
                self._note(event, now)
            self._look(now)

    def after_input(self, now: int) -> None:
        if self._is_sending or not self._node.has_events:
            self._is_sending = False
            self._look(now)

    def _note(self, event: Event, now: int) -> None:
        if isinstance(event, Delivered):
            if not event.epoch:  # messages to this member alone are not recorded yet
                self._ranges.note_sent_before(event.sender, event.run.stream, event.run.last, now)
                self.recorder.delivered(event, now)
        elif isinstance(event, FragmentsDelivered):
            if not event.epoch:
                self._ranges.note_sent_before(event.sender, event.stream, event.last, now)
                self.recorder.delivered_fragments(event, now)
        elif isinstance(event, ViewInstalled):
            self.recorder.write(SHOWN, now, **naming_id(event.view.id))
            self._ranges.forget_ended(now)
        elif isinstance(event, StateReceived):
            assert self._taken_at is not None
            self.recorder.write(STATE_RECEIVED, now, **naming_id(self._taken_at.view.id))
            self._ranges.note_state(self._taken_at.cut.starts, self._taken_at.view.id, now)
        elif isinstance(event, StateLost):
            self.recorder.write(STATE_LOST, now)

    def _look(self, now: int) -> None:
        self._ranges.look(now)
        if self._wire is None or self._windows is None:
            self._ranges.look_at_purges(now)
        else:
            self._wire.look_at_refusals(now)
            self._windows.look(self._node.multicast.windows(), now)
            self._windows.look_at_acks(now, is_new_view=self._is_new_view)
        self._is_new_view = False
        state = self._node.state
        if state is not None and self._node.multicast.senders:  # none: this member is gone
            self._is_behind = state.is_behind
        self.recorder.tick(now)
