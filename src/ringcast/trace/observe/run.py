"""RunObserver: one member of a simulated run. Everything is written at its place in the one order.

Views, closes and takes happen in the middle of an input: what the node did before them is written
before them. What happens in the middle of a take is written behind the deliveries, which are known
only when it ends; what follows from a send behind the send.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.core.effects import Left
from ringcast.core.view_change import Begin, Freeze
from ringcast.events import Delivered, FragmentsDelivered, GapSkipped, Undeliverable, ViewInstalled
from ringcast.model import Address, Member, Origin, Stream
from ringcast.trace.observe.connections import Connections
from ringcast.trace.observe.frames import brings_others, columns_of
from ringcast.trace.observe.messages import (
    Messages,
    deliveries_to_group,
    origin_of,
    place_of,
)
from ringcast.trace.observe.order import is_total, order_of, shown_of
from ringcast.trace.observe.transfers import Transfers
from ringcast.trace.observe.windows import Windows
from ringcast.trace.observe.wire import Wire
from ringcast.trace.rows import ASIDE, FREEZE, ORDER, SHOWN, VIEW, about, naming_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ringcast.events import Event
    from ringcast.node import Node
    from ringcast.trace.observe.sink import Contents, Keeper, Sink
    from ringcast.window.receive import ReceiveWindow
    from ringcast.window.send import SendWindow
    from ringcast.wire.codec import Buffer, Codec


class RunObserver:
    """Turns what a simulated member does into rows."""

    def __init__(
        self,
        node: Node,
        sink: Sink,
        *,
        codec: Codec,
        contents: Contents,
        keeper: Keeper | None,
        flush: Callable[[], None],
    ) -> None:
        """`keeper`: the application, if it has a state. `flush`: take the datagrams that wait; a
        driver does so before a view."""
        self._node = node
        self._sink = sink
        self._flush = flush
        self.connections = Connections(node, sink, contents)
        self.wire = Wire(node, sink, codec, contents, self.connections)
        self._messages = Messages(node, sink, contents)
        self._windows = Windows(node, sink, self.wire, self._messages)
        self.transfers: Transfers | None = None
        if keeper is not None and node.state is not None:
            self.transfers = Transfers(node.state, keeper, sink, contents)
        self._is_new_view = False
        self._is_taking = False
        self._offer: tuple[Member | None, Stream, bytes | None] | None = None
        """The send that runs to completion, and the first payload that was not accepted."""
        self._asked: tuple[str, Member] | None = None
        self._changes: list[Freeze | Begin] = []  # while events were being taken
        self._taken: list[
            Delivered | FragmentsDelivered
        ] = []  # out of windows, in the middle of a take or send
        self._aside: dict[Origin, int] = {}  # what the application got, or will get, later
        self._last: Mapping[Origin, SendWindow | ReceiveWindow] = {}
        """Windows that the node has closed since it was last looked at."""

    # What the driver tells

    def asked(self, event: str, peer: Member | None) -> None:
        """An operator is about to ask for this; None: it was not done."""
        self._asked = None if peer is None else (event, peer)

    # What the node tells

    def received(self, datagram: Buffer, now: int) -> None:
        """`arrived` has told more."""

    def transmitted(
        self, dest: Member | Address | None, datagrams: Sequence[bytes], now: int
    ) -> None:
        self.wire.transmitted(dest, datagrams, now)

    def offered(
        self, to: Member | None, stream: Stream, payloads: Sequence[bytes], accepted: int, now: int
    ) -> None:
        self._offer = (to, stream, payloads[accepted] if accepted < len(payloads) else None)
        if to is None:
            self._messages.offered(stream, payloads[:accepted], now)
        else:
            self.connections.offered(to, payloads[:accepted])

    def before_change(self, change: Freeze | Begin | Left, now: int) -> None:
        """What the node did and wanted to send up to here was in the view before."""
        if not self._is_taking:
            self.connections.after_timeout(now)
            self._look_at_parts(now)
        elif isinstance(change, Left):
            self._last = self._node.multicast.windows()
        else:
            self._windows.look_at_sends(self._node.multicast.windows(), now)
        if isinstance(change, Begin):
            self._start_over(change)
        if self._is_taking and not isinstance(change, Left):
            self._changes.append(change)
        elif isinstance(change, Begin):
            self._flush()
            self._enter(change, now)
        elif isinstance(change, Freeze):
            self._enter(change, now)

    def _start_over(self, begin: Begin) -> None:
        me = self._node.me
        if brings_others(begin, me):
            for stream in {*self._node.multicast.senders} - {Stream.TOTAL}:
                self._messages.start_over(stream, self._windows.sent_through(Origin(me, stream)))

    def before_take(self, now: int, *, buffered: bool) -> None:
        if not buffered:
            self._is_taking = True
        elif not self._is_taking and self._offer is None:
            self._look_at_parts(now)  # windows may have opened in this very input

    def took(self, events: Sequence[Event], now: int, *, buffered: bool) -> None:
        if not buffered:
            self._is_taking = False
            self._end_take(events, now)
            return
        taken = list(deliveries_to_group(events))
        if self._is_taking or self._offer is not None:
            self._taken += taken
        else:
            self._put_aside(taken, now)

    def after_input(self, now: int) -> None:
        self.wire.look_at_refusals(now)
        if self._asked is not None:
            event, peer = self._asked
            self._asked = None
            self._sink.write(event, now, **about(peer))
        self.connections.after_timeout(now)
        self._look_at_parts(now)
        if self._taken:
            taken, self._taken = self._taken, []
            self._put_aside(taken, now)
            self._look_at_parts(now)
        if self._offer is not None:
            (to, stream, refused), self._offer = self._offer, None
            if refused is not None and to is None:
                self._messages.blocked(stream, refused, now)
            elif refused is not None and to is not None:
                self.connections.blocked(to, refused, now)
        self.connections.input_ended()

    # Takes

    def _end_take(self, events: Sequence[Event], now: int) -> None:
        """What left its window and was not handed on is put aside."""
        taken, self._taken = self._taken, []
        handed = set(map(id, events))
        for event in events:
            match event:
                case Delivered() if is_total(event):
                    self._sink.write(ORDER, now, **order_of(event))
                    self._messages.compare(event)
                case Delivered() | FragmentsDelivered():
                    self._write_delivery(event, now)
                case Undeliverable() | GapSkipped():
                    self.connections.lost(event, now)
                case ViewInstalled(view):
                    is_ordered = Stream.TOTAL in self._node.multicast.streams
                    columns = shown_of(event) if is_ordered else naming_id(view.id)
                    self._sink.write(SHOWN, now, **columns)
            if self.transfers is not None:
                self.transfers.see(event, now)
        changes, self._changes = self._changes, []
        for change in changes:
            self._enter(change, now)
        aside = [event for event in taken if id(event) not in handed]
        if aside and self.transfers is not None:
            self.transfers.look(now)
            self._put_aside(aside, now)
        if (
            changes
            or aside
            or any(isinstance(each, Delivered | FragmentsDelivered) for each in events)
        ):
            self._look_at_parts(now)

    def _put_aside(self, events: Iterable[Delivered | FragmentsDelivered], now: int) -> None:
        """The application gets these after its state."""
        for event in events:
            self._look_at_sent_before(event, now)
            self._messages.delivered(event, now, detail=ASIDE)
            self._aside[origin_of(event)] = place_of(event).last

    def _write_delivery(self, event: Delivered | FragmentsDelivered, now: int) -> None:
        if event.epoch:
            self.connections.delivered(event, now)
        elif self.transfers is None:
            self._look_at_sent_before(event, now)
            self._messages.delivered(event, now)
        elif place_of(event).first <= self._aside.get(origin_of(event), 0):
            self.transfers.handed(event, now)
        else:
            self._look_at_sent_before(event, now)
            self._messages.delivered(event, now, block_hash=self.transfers.hash_of(event))

    def _look_at_sent_before(self, event: Delivered | FragmentsDelivered, now: int) -> None:
        """Whoever is alone, or leaves, may have sent and taken messages in one step."""
        last = place_of(event).last
        if event.sender == self._node.me and last > self._windows.sent_through(origin_of(event)):
            self._windows.look_at_sends(self._last or self._node.multicast.windows(), now)

    # Looks

    def _look_at_parts(self, now: int) -> None:
        """Turn what changed in the node into rows."""
        last, self._last = self._last, {}
        self._windows.look(last, now)
        windows = self._node.multicast.windows()
        if self._is_new_view or self._windows.has_more_than(windows):
            self._windows.look_for_dropped(windows, now)
        self._windows.look(windows, now)
        self._windows.look_at_acks(now, is_new_view=self._is_new_view)
        self._messages.look_for_room(now)
        self.connections.look(now)
        if self.transfers is not None:
            self.transfers.look(now)
        self._is_new_view = False

    def _enter(self, change: Freeze | Begin, now: int) -> None:
        if isinstance(change, Freeze):
            self._sink.write(FREEZE, now, **columns_of(change, self._node.me))
            return
        self._is_new_view = True
        self._messages.view_id = change.view.id
        self.wire.enter_view(change.view)
        if self.transfers is not None and self._node.me in change.cut.takers:
            self.transfers.taken_at = change.view.id
        self._sink.write(VIEW, now, **columns_of(change, self._node.me))
