"""OrderedStreams: reliable multicast, with one order of all total messages where the group has it.

The log of a view travels on a stream of its own, beside what its sequencer sends on others: with
the same windows, repair, commits and cut. To applications it is no window: what they read of it is
total messages of their origins.

After each input: what the gate has passed is taken, then the sequencer relays what has room.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ringcast.core.view_change import NOTHING_ORDERED, Begin, OrderStanding
from ringcast.errors import GroupClosed, UsageError
from ringcast.model import Member, Origin, Stream
from ringcast.protocols.multicast import ReliableMulticast
from ringcast.protocols.total.order import TotalOrder
from ringcast.window.fragmenter import check_payloads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ringcast.core.effects import Effects
    from ringcast.core.shared import Deadlines, GroupState
    from ringcast.events import ViewInstalled
    from ringcast.protocols.total.history import Entries, Log
    from ringcast.protocols.total.reading import Start
    from ringcast.window.receive import ReceiveWindow
    from ringcast.window.send import SendWindow
    from ringcast.wire.frames import OrderMessage


class OrderedStreams(ReliableMulticast):
    """The state machine of one member."""

    total: TotalOrder | None = None
    """None: the group has no total messages."""
    entries: Entries | None = None
    """Of the log of the view, if the group has one."""
    is_ordering = False
    """Total messages may have more to do than take what the commit gate passes. `ViewStreams`
    looks at this and at the gate, and so saves a call for each datagram of others."""

    def attach(self, group: GroupState, deadlines: Deadlines) -> None:
        super().attach(group, deadlines)
        if Stream.TOTAL in self.streams:
            self.total = TotalOrder(self.me, self.config.capacity, self._fragment_bytes)
            self.total.attach(deadlines.owner("total"))

    # Inputs

    def resize(self, fragment_bytes: int, datagram_bytes: int) -> None:
        super().resize(fragment_bytes, datagram_bytes)
        if self.total is not None:
            self.total.resize(fragment_bytes)

    def send(self, payloads: Sequence[bytes], stream: Stream, now: int, out: Effects) -> int:
        total = self.total
        if stream is not Stream.TOTAL or total is None:
            return super().send(payloads, stream, now, out)
        if self._is_closed:
            raise GroupClosed("this member has left its group")
        if self.group.view is None:
            raise UsageError("cannot send on total: not in a view yet")
        check_payloads(payloads, self.config.max_message_bytes)
        accepted = total.send(payloads, now, out)
        self._go_on_total(now, out)
        return accepted

    def receive_message(
        self, source: Member, message: OrderMessage, now: int, out: Effects
    ) -> None:
        """Of the layer of another member."""
        if self.total is not None:
            self.total.receive(source, message, now, out)
            self._go_on_total(now, out)

    def handle_timeout(self, now: int, out: Effects) -> None:
        if self.total is not None and self.total.timers.by_key:
            self.total.handle_timeout(now, out)
        super().handle_timeout(now, out)

    def ask_receipt(
        self, number: int, stream: Stream, now: int, out: Effects, *, is_flush: bool
    ) -> int | None:
        total = self.total
        if stream is not Stream.TOTAL or total is None:
            return super().ask_receipt(number, stream, now, out, is_flush=is_flush)
        asked = total.ask_receipt(number, now, out, is_flush=is_flush)
        self._go_on_total(now, out)
        return asked

    # Outputs

    def windows(self) -> dict[Origin, SendWindow | ReceiveWindow]:
        found = super().windows()
        if self.total is not None:
            return {origin: found[origin] for origin in found if origin.stream is not Stream.TOTAL}
        return found

    def highest_sent(self, stream: Stream) -> int:
        if stream is Stream.TOTAL and self.total is not None:
            return self.total.pending.high
        return super().highest_sent(stream)

    def is_blocked(self, stream: Stream) -> bool:
        if stream is Stream.TOTAL and self.total is not None:
            return self.total.is_blocked
        return super().is_blocked(stream)

    def stats(self) -> dict[str, object]:
        told = {} if self.total is None else {"total": self.total.stats()}
        return {**super().stats(), **told}

    def explain(self, now: int) -> list[str]:
        ordering = [] if self.total is None else self.total.explain(now)
        return super().explain(now) + ordering

    def check_invariants(self) -> None:
        super().check_invariants()
        if self.total is not None:
            self.total.check_invariants()

    # For whoever goes from view to view

    @property
    def _is_ordered(self) -> bool:
        """Everything that was accepted has its place in the order."""
        return self.total is None or not len(self.total.pending)

    def _go_on_total(self, now: int, out: Effects) -> None:
        """The gate may have passed more of the log, and there may be room in it."""
        total = self.total
        if total is None or total.entries is None:
            return
        log = total.entries.log
        total.take(log.window.delivered + log.window.ready, now, out)
        while total.relay(now, out):
            total.take(log.window.delivered + log.window.ready, now, out)
        self._note_ready(log)
        total.tell(out)
        self.is_ordering = total.has_more_to_do

    def _freeze_total(self, tag: int, held: Mapping[Origin, int]) -> OrderStanding:
        total = self.total
        if total is None:
            return NOTHING_ORDERED
        total.freeze(tag)
        return total.standing(0 if total.entries is None else held[total.entries.log.origin])

    def _begin_total(
        self, begin: Begin, event: ViewInstalled, now: int, out: Effects
    ) -> tuple[ViewInstalled, Start | None]:
        """The log is open. What the application is told, and where it reads on."""
        total = self.total
        if total is None:
            return event, None
        start, unconfirmed = total.begin(begin.view, begin.cut, self._log_of(begin), now, out)
        self.entries = total.entries
        told = event.unconfirmed + unconfirmed
        return replace(event, position=start.position, unconfirmed=told), start

    def _open_new(self, origin: Origin, begin: Begin, now: int) -> None:
        """Open the window of a stream at the place where the Cut says that it goes on. Of total
        streams only these have one: the log of the view, and the streams of earlier sequencers."""
        start = begin.cut.starts.get(origin, 0)
        is_known = origin.sender == self.me or origin in self.receivers
        is_log = start > 0 or origin.sender == begin.view.coordinator
        if origin.stream is not Stream.TOTAL or (is_log and not is_known):
            self._open(origin, start, now)

    def _log_of(self, begin: Begin) -> Log:
        first = begin.view.coordinator
        if first == self.me:
            return self.senders[Stream.TOTAL]
        return self.receivers[Origin(first, Stream.TOTAL)]

    def _unacked(self) -> tuple[tuple[Stream, int, int], ...]:
        return super()._unacked() + (() if self.total is None else self.total.unacked)

    def _shut(self, reason: str, out: Effects) -> None:
        if self.total is not None:
            self.total.close(out)
            self.entries = None
        super()._shut(reason, out)
