"""TotalOrder: one order of all total messages, at one member.

The first member of a view is its sequencer. What members submit to it, it relays, as it is, on a
stream of its own, the *log* of the view; that is gated as uniform streams are. A batch is *taken*
when the gate passes it here, whether or not the application has read it.

    standing   send     Submit of my view   Submit of the view promised   the log
    OPEN       accept   queue, if first     drop                          take
    FROZEN     wait     drop                keep for the view             take

On send: accept what finds room among what is pending, and submit it (pending.py).
On Submit, where this member is the sequencer: queue it (queues.py), relay as the log has room.
On take: position and marks go on (history.py); what is mine is pending no longer.
Every probe interval while something is under way, and nothing of it comes back: ask the sequencer
    where it stands. If it lacks something, submit from there on.
At the end of a view: take up to the cut.
On a view: position and marks are those of the leading part. The sequencer begins with empty queues.
    Everybody submits anew what is pending, from the lowest number on. Who comes from elsewhere, in
    another part than the leading one, drops first what the marks know; the rest is carried. What
    it took before, and the marks do not know, it has seen, in whatever view it comes again.
    If marks were forgotten, and none of it is known, what was ever submitted is dropped, too:
    nobody can say what has become of it.
On close: what is pending is not ordered, as far as is known.
"""

from __future__ import annotations

from enum import auto
from typing import TYPE_CHECKING, NamedTuple

from ringcast.core.shared import Named, Timers
from ringcast.events import Writable
from ringcast.model import Member, Place, Stream, View, ViewId
from ringcast.protocols.multicast_sender import MulticastSender
from ringcast.protocols.stream import seconds
from ringcast.protocols.total.history import Entries, History
from ringcast.protocols.total.pending import TOTAL_BYTES, Pending
from ringcast.protocols.total.queues import Queues
from ringcast.protocols.total.reading import OrderReader, Start
from ringcast.protocols.total.receipts import Deliveries, OrderReceipts
from ringcast.wire.batches import read_head
from ringcast.wire.changes import tag_of
from ringcast.wire.frames import OrderMessage, Submit, SubmitFrom, SubmitQuery
from ringcast.wire.limits import VIEW_MEMBERS_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ringcast.core.effects import Effects
    from ringcast.core.view_change import Cut, OrderStanding
    from ringcast.protocols.total.history import Log

SUBMIT_BYTES = 10
"""Of a Submit, besides the batch."""

PROBE_START_NS = 40_000_000
PROBE_MAX_NS = 500_000_000

RELAYED_AT_ONCE = 32
"""Batches that are offered to the log at a time."""

EARLY_BYTES_MAX = 4 * TOTAL_BYTES
"""Of batches for a view that is about to begin; what is beyond is submitted again."""
EARLY_OVERHEAD = 64
"""Of each of them: empty ones are not for nothing."""


class Timer(Named):
    PROBE = auto()
    """Nothing of what was submitted comes back."""


class Begun(NamedTuple):
    """Of a view that begins."""

    start: Start
    unconfirmed: tuple[tuple[Stream, int, int], ...]
    """Own messages that are not in the history, or of which nobody knows."""


class TotalOrder:
    """The state machine of one member."""

    def __init__(self, me: Member, capacity: int, fragment_bytes: int) -> None:
        self.me = me
        self.pending = Pending(capacity)
        self.history = History()
        self.reader = OrderReader()
        self.receipts = OrderReceipts()
        self.deliveries = Deliveries()
        self.queues: Queues | None = None
        """Of the view, if this member is its sequencer."""
        self.entries: Entries | None = None
        """Of the log of the view."""
        self.view: View | None = None
        self.is_open = False
        self.is_blocked = False
        self.refused = 0
        """Messages of other views, of strangers, or that no member writes."""
        self._fragment_bytes = fragment_bytes
        self._blocked_since = self._sent_at = 0
        self._tag = self._next_tag = 0
        self._interval = PROBE_START_NS
        self._early: list[tuple[Member, Submit]] = []
        self._early_bytes = 0
        self._place = Place(ViewId(me, 1), 0)  # of the last own message that was taken
        self._seen: dict[Member, int] = {}  # taken in histories that ended, and not in this one
        self._wanted = 0  # what receipts wait for, as was asked last
        self._queued = 0  # own batches that wait at the sequencer, as it has said last

    def attach(self, timers: Timers[Timer]) -> None:
        self.timers = timers

    # Inputs

    def resize(self, fragment_bytes: int) -> None:
        self._fragment_bytes = fragment_bytes

    def send(self, payloads: Sequence[bytes], now: int, out: Effects) -> int:
        """How many messages were accepted, from the first on."""
        accepted = self.pending.accept(payloads) if self.is_open and not self.is_blocked else 0
        if accepted < len(payloads) and not self.is_blocked:
            self.is_blocked, self._blocked_since = True, now
        self._submit(now, out)
        return accepted

    def receive(self, source: Member, message: OrderMessage, now: int, out: Effects) -> None:
        is_early = message.tag == self._next_tag and isinstance(message, Submit)
        if is_early and self._early_bytes < EARLY_BYTES_MAX:
            assert isinstance(message, Submit)
            self._early.append((source, message))
            self._early_bytes += len(message.batch) + EARLY_OVERHEAD
            return
        view = self.view
        if message.tag != self._tag or not self.is_open or view is None or source not in view:
            self.refused += 1
            return
        match message:
            case Submit():
                self._on_submit(source, message, view)
            case SubmitQuery(_, delivered):
                self.deliveries.ask(source, delivered)
                if self.queues is not None:
                    at = self.queues.next[source]
                    out.message(source, SubmitFrom(self._tag, *at, self.queues.waiting(source)))
            case SubmitFrom():
                self._on_submit_from(source, message, now, out)

    def handle_timeout(self, now: int, out: Effects) -> None:
        if self.timers.take(Timer.PROBE, now) and self._is_awaiting:
            assert self.view is not None
            self._wanted = self.receipts.wanted
            out.message(self.view.coordinator, SubmitQuery(self._tag, self._wanted))
            self._interval = min(2 * self._interval, PROBE_MAX_NS)
            self._expect(now)

    def freeze(self, next_tag: int) -> None:
        """Nothing is submitted and nothing ordered until a view begins."""
        self.is_open = False
        self._next_tag = next_tag
        self._early, self._early_bytes = [], 0
        self.timers.disarm_all()

    def take(self, through: int, now: int, out: Effects) -> None:
        """The gate has passed the log up to here."""
        entries, view = self.entries, self.view
        if entries is None or view is None or through <= entries.seqno:
            return
        history, is_mine = self.history, False
        for seqno, origin, head, size in entries.through(through):
            history.take(origin, head)
            if self.queues is not None and head.ends:
                self.deliveries.sent(seqno, origin, head.last)
            if origin == self.me:
                is_mine = True
                self.pending.take(head, size)
                if head.ends:
                    self._place = Place(view.id, history.position)
                    self.receipts.taken(head.last, self._place, view, out)
        if is_mine and self.is_open:
            self._go_on(now, out)

    def relay(self, now: int, out: Effects) -> bool:
        """What has been submitted goes into the log, as far as that has room. Whether some has."""
        if self.queues is None or self.entries is None or not self.is_open:
            return False
        log, queues, accepted = self._own_log(), self.queues, 0
        while queues and not log.stream.is_blocked:
            taken = queues.take(RELAYED_AT_ONCE)
            count = log.send([batch for _, batch in taken], now, out)
            queues.put_back(taken[count:])
            accepted += count
        return accepted > 0

    def tell(self, out: Effects) -> None:
        """The others may have delivered more of the log."""
        if self.queues is None or not self.is_open:
            return
        for origin, through in self.deliveries.look(self._own_log()):
            if origin == self.me:
                self.receipts.delivered(through, out)
            else:
                out.message(origin, SubmitFrom(self._tag, delivered=through))

    def begin(self, view: View, cut: Cut, log: Log, now: int, out: Effects) -> Begun:
        """All up to the cut of the last view is taken."""
        before, marks = self.view, self.history.marks
        part, lead = cut.part_of(self.me), cut.lead
        is_led = part is lead
        if len(cut.parts) > 1:
            self.history.restore(cut.order)
        left = {who for who in lead.members if who not in view}
        known = (*cut.gone, *lead.members) if before is None or not is_led else before.members
        self.history.depart(known, left, view)
        self.view, self._tag, self._next_tag = view, tag_of(view.id), 0
        self.entries = Entries(view, log)
        self.queues = Queues(view, self.history.marks) if view.coordinator == self.me else None
        self.is_open = True
        self.deliveries.begin(view, is_mine=self.queues is not None)
        self.receipts.begin(view, set(part.members).intersection(view), out)
        self._wanted = self._queued = 0
        unconfirmed: list[tuple[Stream, int, int]] = []
        if not is_led:
            unconfirmed = self._come_from_elsewhere(marks.get(self.me, 0), view, out)
        self.pending.restart()
        early, self._early, self._early_bytes = self._early, [], 0
        for source, message in early:
            self.receive(source, message, now, out)
        self._go_on(now, out)
        self._see({} if is_led else marks)
        return Begun(Start(self.history.position, self._seen), tuple(unconfirmed))

    def _see(self, taken: Mapping[Member, int]) -> None:
        """This was taken in a history that ends here: what of it, or of what was seen before, comes
        again, in whatever view, is told to be seen."""
        marks, seen = self.history.marks, dict(self._seen)
        for origin, number in taken.items():
            seen[origin] = max(number, seen.pop(origin, 0))
        ahead = [(who, number) for who, number in seen.items() if number > marks.get(who, 0)]
        self._seen = dict(ahead[-VIEW_MEMBERS_MAX:])

    def _come_from_elsewhere(
        self, taken: int, view: View, out: Effects
    ) -> list[tuple[Stream, int, int]]:
        """Of my own messages up to `taken` I have taken all in a history that ends here."""
        pending, mark = self.pending, self.history.marks.get(self.me, 0)
        unconfirmed = [(Stream.TOTAL, mark + 1, taken)] if taken > mark else []
        if mark >= pending.low:
            self.receipts.drop(mark, Place(view.id, 0), out)
            pending.drop(mark)
        is_forgotten = self.history.has_forgotten and not mark
        if is_forgotten and pending.submitted >= pending.low:
            first, last = pending.low, pending.submitted
            self.receipts.drop(last, None, out)
            pending.drop(last)
            unconfirmed.append((Stream.TOTAL, first, last))
        pending.carried = pending.high
        return unconfirmed

    def close(self, out: Effects) -> None:
        self.receipts.close(self.pending.submitted, out)
        self.is_open = False
        self.queues = self.entries = None
        self.timers.disarm_all()

    # Outputs

    @property
    def has_more_to_do(self) -> bool:
        """This member is the sequencer, and batches wait for room, or for who asked of them."""
        return self.queues is not None and (len(self.queues) > 0 or len(self.deliveries) > 0)

    def ask_receipt(self, number: int, now: int, out: Effects, *, is_flush: bool) -> int | None:
        """Confirmed follows, under the number that is returned, when all others have delivered what
        was accepted so far, and before it Ordered. None: nothing was."""
        last, view = self.pending.high, self.view
        if not last or view is None:
            return None
        self.receipts.ask(number, last, is_flush=is_flush)
        if not len(self.pending):
            self.receipts.taken(last, self._place, view, out)
            self._want(out)
        self._expect(now)
        return number

    def standing(self, held: int) -> OrderStanding:
        """As it is when everything that is held of the log is taken."""
        ahead = History()
        ahead.restore(self.history.standing)
        if self.entries is not None:
            for origin, head in self.entries.ahead(held):
                ahead.take(origin, head)
        return ahead.standing

    @property
    def unacked(self) -> tuple[tuple[Stream, int, int], ...]:
        """Own messages that were not taken here."""
        pending = self.pending
        return ((Stream.TOTAL, pending.low, pending.high),) if len(pending) else ()

    @property
    def size(self) -> int:
        """Bytes that are kept here."""
        queued = 0 if self.queues is None else self.queues.size
        return self.pending.size + queued + self._early_bytes

    def stats(self) -> dict[str, object]:
        queues = self.queues
        return {
            "position": self.history.position,
            "pending": len(self.pending),
            "pending_bytes": self.pending.size,
            "marks": len(self.history.marks),
            "queued": 0 if queues is None else len(queues),
            "queued_bytes": 0 if queues is None else queues.size,
            "overdrawn": 0 if queues is None else queues.overdrawn,
            "receipts": len(self.receipts),
            "refused": self.refused,
        }

    def explain(self, now: int) -> list[str]:
        pending, view = self.pending, self.view
        if not len(pending) or view is None or not self.is_open:
            return []
        blocked = f"send on total blocked for {seconds(now - self._blocked_since)}: "
        first = "this member" if self.queues is not None else str(view.coordinator)
        queued = self.queues.waiting(self.me) if self.queues is not None else self._queued
        return [
            f"{blocked * self.is_blocked}{len(pending)} messages sent on total are not yet taken; "
            f"{first}, the sequencer of {view}, has {queued} datagrams of them queued; nothing "
            f"came back for {seconds(now - self._sent_at)}"
        ]

    def check_invariants(self) -> None:
        self.pending.check_invariants()
        if self.queues is not None:
            self.queues.check_invariants()
        is_probing = self.timers.is_armed(Timer.PROBE)
        assert not is_probing or self.is_open
        assert is_probing or not self._is_awaiting

    # Inside

    def _go_on(self, now: int, out: Effects) -> None:
        """Something was taken, or a view begins: there is room, and more may be under way."""
        self.timers.disarm(Timer.PROBE)
        self._interval = PROBE_START_NS
        self._sent_at = now
        if self.is_blocked and not self.pending.is_full:
            self.is_blocked = False
            out.event(Writable())
        self._submit(now, out)
        self._want(out)

    def _want(self, out: Effects) -> None:
        """Receipts wait for more than the sequencer knows."""
        wanted, view = self.receipts.wanted, self.view
        if wanted > self._wanted and view is not None:
            self._wanted = wanted
            if self.queues is not None:
                self.deliveries.ask(self.me, wanted)
            else:
                out.message(view.coordinator, SubmitQuery(self._tag, wanted))

    def _submit(self, now: int, out: Effects) -> None:
        view = self.view
        if view is None or not self.is_open:
            return
        place, largest = view.members.index(self.me), self._fragment_bytes - SUBMIT_BYTES
        for batch, is_lowest in self.pending.submit(place, largest):
            message = Submit(self._tag, batch, is_lowest=is_lowest)
            if self.queues is not None:
                self._on_submit(self.me, message, view)
            else:
                out.message(view.coordinator, message)
        self._expect(now)

    def _expect(self, now: int) -> None:
        if self._is_awaiting:
            self.timers.arm_if_idle(Timer.PROBE, now + self._interval)

    @property
    def _is_awaiting(self) -> bool:
        """The sequencer is to say or relay something."""
        is_another = self.is_open and self.queues is None
        return is_another and (self.pending.is_under_way or bool(self.receipts))

    def _on_submit(self, source: Member, submit: Submit, view: View) -> None:
        head = read_head(submit.batch)
        if self.queues is None or head is None or view.members[head.place :][:1] != (source,):
            self.refused += 1
        else:
            self.queues.offer(source, head, submit.batch, is_lowest=submit.is_lowest)

    def _on_submit_from(self, source: Member, message: SubmitFrom, now: int, out: Effects) -> None:
        assert self.view is not None
        if source != self.view.coordinator:
            self.refused += 1
            return
        self.receipts.delivered(message.delivered, out)
        if message.number:
            self._queued = message.queued
            self.pending.go_back(message.number, message.offset)
            self._submit(now, out)

    def _own_log(self) -> MulticastSender:
        assert self.entries is not None
        log = self.entries.log
        assert isinstance(log, MulticastSender)
        return log
