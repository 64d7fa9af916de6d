"""TraceObserver: one real member, for its recorder.

Messages to the group are told as ranges at level "deliveries"; level "full" adds frames, windows,
blocked sends, and all that is about one peer (`pairs`). A view stands in the trace where the node
installs it, and again where the application is told of it. While events wait to be taken nobody
looks at windows for messages to the group, except before a view.

A member that waits for its state takes messages out of its windows and puts them aside: these are
delivered then, and handed to the application later, unless they are in the state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.core.effects import Left
from ringcast.core.view_change import Begin, Freeze
from ringcast.events import (
    Delivered,
    FragmentsDelivered,
    GapSkipped,
    StateLost,
    StateReceived,
    Undeliverable,
    ViewInstalled,
)
from ringcast.model import Address, Member, Origin, Stream, ViewId
from ringcast.trace import rows as trace
from ringcast.trace.observe.frames import columns_of
from ringcast.trace.observe.messages import deliveries_to_group, origin_of, range_of
from ringcast.trace.observe.order import is_total, shown_of
from ringcast.trace.observe.pairs import Pairs
from ringcast.trace.observe.ranges import Ranges
from ringcast.trace.observe.windows import Windows
from ringcast.trace.observe.wire import Wire
from ringcast.trace.rows import about, naming, naming_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.events import Event
    from ringcast.node import Node
    from ringcast.trace.recorder import Recorder
    from ringcast.wire.codec import Buffer


class TraceObserver:
    """Tells a recorder what happens at a node."""

    def __init__(self, node: Node, recorder: Recorder) -> None:
        self._node = node
        self.recorder = recorder
        self._pairs: Pairs | None = None
        self._wire: Wire | None = None
        self._windows: Windows | None = None
        if recorder.level == "full":
            self._pairs = Pairs(node, recorder)
            self._wire = Wire(node, recorder, connections=self._pairs.connections)
            self._wire.system = self._pairs.system
            self._windows = Windows(node, recorder, self._wire, None)
        self._ranges = Ranges(node, recorder, self._windows)
        self._aside: dict[Origin, int] = {}
        """Up to where messages were put aside."""
        self._is_new_view = False
        self._is_sending = False
        self._is_waiting = False
        """For its state."""
        self._state_view: ViewId | None = None
        """At whose cut its state is taken."""

    # What the driver tells

    def start(self, now: int) -> None:
        self.recorder.start(now)

    def stop(self, now: int, timeout_s: float = 5.0) -> None:
        """The member stops in good order. Wait so long for what is still to be written."""
        self._ranges.tell_purged(now)
        if self._pairs is not None:
            self._pairs.begin(now)
            self._pairs.look(now, is_end=True)
        self.recorder.stopped(now)
        self.recorder.close(timeout_s)

    def asked_sync(self, peer: Member, now: int) -> None:
        """An operator asks for one."""
        if self._pairs is not None:
            self._pairs.begin(now)
            self.recorder.write(trace.SYNC_CALL, now, **about(peer))

    # What the node tells

    def received(self, datagram: Buffer, now: int) -> None:
        if self._wire is not None and self._pairs is not None:
            self._pairs.begin(now)
            self._wire.received(datagram, now)
            if self._wire.has_fast_message:
                self._wire.has_fast_message = False
                self._pairs.look_at_system(now)

    def transmitted(
        self, dest: Member | Address | None, datagrams: Sequence[bytes], now: int
    ) -> None:
        if self._wire is not None and self._pairs is not None:
            self._pairs.begin(now)
            self._pairs.leave(now)
            self._wire.transmitted(dest, datagrams, now)

    def offered(
        self, to: Member | None, stream: Stream, payloads: Sequence[bytes], accepted: int, now: int
    ) -> None:
        """What counts is what stands in the send window; of total messages, what was accepted."""
        self._is_sending = True
        if self._pairs is not None:
            self._pairs.begin(now)
        view = self._node.view
        if stream is Stream.TOTAL and view is not None:
            if accepted:
                last = self._node.multicast.highest_sent(stream)
                self.recorder.accepted(last - accepted + 1, last, view.id, now)
        elif self._pairs is not None:
            refused = payloads[accepted] if accepted < len(payloads) else None
            self._pairs.offered(to, stream, refused)

    def before_change(self, change: Freeze | Begin | Left, now: int) -> None:
        """What was sent and purged up to here was in the view before."""
        if self._pairs is not None:
            self._pairs.begin(now)
            self._pairs.look(now)
            self._pairs.has_left |= isinstance(change, Left)
        if isinstance(change, Left):
            return
        self._look(now)
        columns = columns_of(change, self._node.me)
        if isinstance(change, Freeze):
            self.recorder.write(trace.FREEZE, now, **columns)
            return
        self._ranges.tell_purged(now)
        self._is_new_view = True
        if self._node.me in change.cut.takers:
            self._state_view = change.view.id
        if self._wire is not None:
            self._wire.enter_view(change.view)
        self._ranges.enter_view(change)
        self.recorder.write(trace.VIEW, now, **columns)

    def before_take(self, now: int, *, buffered: bool) -> None:
        """Windows that have opened stand before what is taken out of them."""
        if self._pairs is not None:
            self._pairs.begin(now)
        self._ranges.look_at_windows(now)

    def took(self, events: Sequence[Event], now: int, *, buffered: bool) -> None:
        state = self._node.state
        if not buffered:
            for event in events:
                self._note(event, now)
            if events:
                self._look(now)
                if self._pairs is not None:
                    self._pairs.look(now)
            if self._pairs is not None:
                self._pairs.end_input(now)
        elif state is not None and state.is_behind:
            self._look_at_state(now)
            for event in deliveries_to_group(events):
                self._deliver(event, now, trace.ASIDE)

    def after_input(self, now: int) -> None:
        if self._pairs is not None:
            self._pairs.begin(now)
            self._pairs.look(now)
        if self._is_sending or not self._node.effects.events:
            self._is_sending = False
            self._look(now)
        if self._pairs is not None:
            self._pairs.tell_blocked(now)
            self._pairs.end_input(now)

    def _note(self, event: Event, now: int) -> None:
        if is_total(event):
            self.recorder.ordered(event, now)
        elif isinstance(event, Delivered | FragmentsDelivered):
            if not event.epoch:
                self._deliver(event, now)
            elif self._pairs is not None:
                self._pairs.connections.delivered(event, now)
        elif isinstance(event, Undeliverable | GapSkipped):
            if self._pairs is not None:
                self._pairs.connections.lost(event, now)
        elif isinstance(event, ViewInstalled):
            is_ordered = Stream.TOTAL in self._node.multicast.streams
            columns = shown_of(event) if is_ordered else naming_id(event.view.id)
            self.recorder.write(trace.SHOWN, now, **columns)
            self._ranges.forget_ended(now)
        elif isinstance(event, StateReceived | StateLost):
            kind = trace.STATE_LOST if isinstance(event, StateLost) else trace.STATE_RECEIVED
            at = {} if self._state_view is None else naming_id(self._state_view)
            self.recorder.write(kind, now, **at)

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

    def _look_at_state(self, now: int) -> None:
        state = self._node.state
        is_waiting = state is not None and state.is_behind
        if is_waiting and not self._is_waiting:
            self.recorder.write(trace.STATE_WAIT, now)
        self._is_waiting = is_waiting

    def _look(self, now: int) -> None:
        if self._is_new_view or self._is_waiting:
            self._look_at_state(now)
        self._ranges.look_at_windows(now)
        if self._wire is None or self._windows is None:
            self._ranges.look_at_sends(now)
            self._ranges.look_at_purges(now)
        else:
            self._wire.look_at_refusals(now)
            self._windows.look(self._node.multicast.windows(), now)
            self._windows.look_at_acks(now, is_new_view=self._is_new_view)
            self._ranges.look_at_sends(now)  # behind the purge that made room for it
        self._is_new_view = False
        self.recorder.tick(now)
