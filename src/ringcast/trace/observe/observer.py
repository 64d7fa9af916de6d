"""TraceObserver: one real member, for its recorder.

Messages to the group are told as ranges at level "deliveries"; level "full" adds frames and
windows. A view stands in the trace where the node installs it, and again where the application is
told of it. While events wait to be taken nobody looks at windows, except before a view.

A member that waits for its state takes messages out of its windows and puts them aside: these are
delivered then, and handed to the application later, unless they are in the state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.core.effects import Left
from ringcast.core.view_change import Freeze
from ringcast.events import Delivered, FragmentsDelivered, StateLost, StateReceived, ViewInstalled
from ringcast.model import Stream
from ringcast.trace import rows as trace
from ringcast.trace.observe.frames import columns_of
from ringcast.trace.observe.messages import deliveries_to_group, origin_of, range_of
from ringcast.trace.observe.order import is_total, order_of, shown_of
from ringcast.trace.observe.ranges import Ranges
from ringcast.trace.observe.windows import Windows
from ringcast.trace.observe.wire import Wire
from ringcast.trace.rows import naming, naming_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.core.view_change import Begin
    from ringcast.events import Event
    from ringcast.model import Address, Member, Origin
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
        self._aside: dict[Origin, int] = {}
        """Up to where messages were put aside."""
        self._is_new_view = False
        self._is_sending = False

    # What the driver tells

    def start(self, now: int) -> None:
        self.recorder.start(now)

    def stop(self, now: int, timeout_s: float = 5.0) -> None:
        """The member stops in good order. Wait so long for what is still to be written."""
        self._ranges.tell_purged(now)
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
        self, to: Member | None, stream: Stream, payloads: Sequence[bytes], accepted: int, now: int
    ) -> None:
        """What counts is what stands in the send window; of total messages, what was accepted."""
        self._is_sending = True
        view = self._node.view
        if stream is Stream.TOTAL and accepted and view is not None:
            last = self._node.multicast.highest_sent(stream)
            numbers = {"seqno": last - accepted + 1, "seqno2": last, "stream": int(stream)}
            self.recorder.write(trace.ACCEPT, now, **numbers, **naming_id(view.id))

    def before_change(self, change: Freeze | Begin | Left, now: int) -> None:
        """What was sent and purged up to here was in the view before."""
        if isinstance(change, Left):
            return
        self._look(now)
        columns = columns_of(change, self._node.me)
        if isinstance(change, Freeze):
            self.recorder.write(trace.FREEZE, now, **columns)
            return
        self._ranges.tell_purged(now)
        self._is_new_view = True
        if self._wire is not None:
            self._wire.enter_view(change.view)
        self._ranges.enter_view(change)
        self.recorder.write(trace.VIEW, now, **columns)

    def before_take(self, now: int, *, buffered: bool) -> None:
        """Windows that have opened stand before what is taken out of them."""
        self._ranges.look_at_windows(now)

    def took(self, events: Sequence[Event], now: int, *, buffered: bool) -> None:
        state = self._node.state
        if not buffered:
            for event in events:
                self._note(event, now)
            if events:
                self._look(now)
        elif state is not None and state.is_behind:
            for event in deliveries_to_group(events):
                self._deliver(event, now, trace.ASIDE)

    def after_input(self, now: int) -> None:
        if self._is_sending or not self._node.effects.events:
            self._is_sending = False
            self._look(now)

    def _note(self, event: Event, now: int) -> None:
        if is_total(event):
            self.recorder.write(trace.ORDER, now, **order_of(event))
        elif isinstance(event, Delivered | FragmentsDelivered):
            if not event.epoch:  # messages to this member alone are not recorded yet
                self._deliver(event, now)
        elif isinstance(event, ViewInstalled):
            is_ordered = Stream.TOTAL in self._node.multicast.streams
            columns = shown_of(event) if is_ordered else naming_id(event.view.id)
            self.recorder.write(trace.SHOWN, now, **columns)
            self._ranges.forget_ended(now)
        elif isinstance(event, StateReceived):
            self.recorder.write(trace.STATE_RECEIVED, now)
        elif isinstance(event, StateLost):
            self.recorder.write(trace.STATE_LOST, now)

    def _deliver(self, event: Delivered | FragmentsDelivered, now: int, detail: str = "") -> None:
        place = event.run if isinstance(event, Delivered) else event
        if detail:
            self._aside[origin_of(event)] = place.last
        elif self._aside and place.first <= self._aside.get(origin_of(event), 0):
            self.recorder.write(trace.HANDED, now, **naming(origin_of(event)), **range_of(event))
            return
        self._ranges.note_sent_before(event.sender, place.stream, place.last, now)
        if isinstance(event, Delivered):
            self.recorder.delivered(event, now, detail)
        else:
            self.recorder.delivered_fragments(event, now, detail)

    def _look(self, now: int) -> None:
        self._ranges.look(now)
        if self._wire is None or self._windows is None:
            self._ranges.look_at_purges(now)
        else:
            self._wire.look_at_refusals(now)
            self._windows.look(self._node.multicast.windows(), now)
            self._windows.look_at_acks(now, is_new_view=self._is_new_view)
        self._is_new_view = False
        self.recorder.tick(now)
