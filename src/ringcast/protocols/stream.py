"""What senders have in common, and what receivers have, whoever the messages are for.

SendStream: what finds room gets the next seqnos and goes out; the rest is not accepted, takes no
seqno, and whoever sends is blocked until there is room again. What is asked for goes out once more,
as far as its owner allows.

ReceiveStream: a run goes into the window, as far as that has room, and shows what is missing;
repair.py says when to ask for that. The application takes it out in order and without gaps.

Multicast and unicast hold a stream each for what they send and for what they receive. They say who
is to have the messages, what an ack means and when one is due.

Receipts: when the members that a message was sent to have delivered it. A receipt stands for all
messages of a stream up to the last one that was accepted when it was asked for, and names the
members that have not delivered them.
On ask: note the seqno of that message, and who is behind it. A large message that has not all its
    seqnos yet is noted as open, until its last fragment has one.
On a watermark that rises: look at the oldest receipt first. Seqnos only grow, and a receipt waits
    for all members that older ones wait for, so none is ready before an older one is.
On view: a member that has departed delivers nothing more. A receipt that waits for it ends at once
    and names it; a flush goes on without it.
There is at most one receipt and one flush for each seqno, so never more than the window holds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import auto
from typing import TYPE_CHECKING, TypeAlias

from ringcast.core.effects import Effects, StartsOver
from ringcast.core.shared import Named, Timers
from ringcast.events import Confirmed, Delivered, Event, FragmentsDelivered, Writable
from ringcast.model import SEQNO_MAX, Member, Run, Stream, ViewId
from ringcast.protocols.repair import Repair
from ringcast.texts import counted
from ringcast.window.fragmenter import Fragmenter, Piece
from ringcast.window.send import DATAGRAM_OVERHEAD, SendWindow
from ringcast.wire.limits import NACK_RANGES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence

    from ringcast.window.assembler import Assembler
    from ringcast.window.receive import ReceiveWindow
    from ringcast.wire.frames import Data, UnicastData

    HasDelivered: TypeAlias = Callable[[Member, int], bool]

OPEN = SEQNO_MAX + 1
"""Stands for the seqno of a message that has not got its last one yet."""


class Timer(Named):
    """Of receivers."""

    ACK = auto()
    """Acknowledge what was taken, or came again, since the last ack."""
    REPAIR = auto()
    """Some gap is due to be asked for."""


@dataclass(slots=True)
class _Pending:
    number: int
    seqno: int
    waiting: list[Member]
    is_flush: bool


class Receipts:
    """Those of one stream that are pending, oldest first."""

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending: deque[_Pending] = deque()

    def __len__(self) -> int:
        return len(self._pending)

    def ask(self, number: int, seqno: int, waiting: list[Member], *, is_flush: bool) -> int:
        """The number under which Confirmed follows: this one, or that of an equal receipt."""
        for pending in reversed(self._pending):
            if pending.seqno != seqno:
                break
            if pending.is_flush and is_flush:
                return pending.number
        self._pending.append(_Pending(number, seqno, waiting, is_flush))
        return number

    def close(self, seqno: int) -> None:
        """The message that was open ends with this seqno."""
        for pending in reversed(self._pending):
            if pending.seqno != OPEN:
                break
            pending.seqno = seqno

    def look(self, has_delivered: HasDelivered, out: Effects) -> None:
        """Confirm those that nobody is behind any more."""
        pending = self._pending
        while pending:
            first = pending[0]
            # The last one stands for all: each member is asked until it is past, and then no more.
            while first.waiting and has_delivered(first.waiting[-1], first.seqno):
                first.waiting.pop()
            if first.waiting:
                return
            out.event(Confirmed(pending.popleft().number))

    def depart(
        self, staying: Container[Member], has_delivered: HasDelivered, reason: str, out: Effects
    ) -> None:
        """Members that are not `staying` deliver nothing more; `reason` is for people."""
        kept: deque[_Pending] = deque()
        for pending in self._pending:
            waiting = [who for who in pending.waiting if not has_delivered(who, pending.seqno)]
            gone = tuple(who for who in waiting if who not in staying)
            if gone and not pending.is_flush:
                out.event(Confirmed(pending.number, gone, reason))
            else:
                pending.waiting = [who for who in waiting if who in staying]
                kept.append(pending)
        self._pending = kept
        self.look(has_delivered, out)

    def clear(self) -> None:
        """This member is out: nobody is told anything by it."""
        self._pending.clear()


class SendStream:
    """Messages that go out, until all they are for have them."""

    def __init__(
        self,
        window: SendWindow,
        fragment_bytes: int,
        dest: Member | None,
        frame: Callable[..., Data | UnicastData],
        own: Assembler | None = None,
    ) -> None:
        """`frame` makes one of seqno, payloads and `more`; `dest`: None is the group. `own` is for
        an application that gets its own messages, too, put together again."""
        self.window = window
        self.fragments = Fragmenter(window, fragment_bytes)
        self.receipts = Receipts()
        self.frame = frame
        self.is_blocked = False
        """A send was cut short, and no Writable has followed yet."""
        self.blocked_since = 0
        self.retransmitted = 0
        self.emits_writable = True
        """The application waits for room here, and `Writable` tells it that there is some."""
        self._dest = dest
        self._own = own

    def room(self) -> tuple[int, int, int]:
        """For how many more messages there surely is room, of how many bytes together, and of how
        many each. None, while somebody waits for room."""
        if self.is_blocked or self.fragments.rest:
            return 0, 0, 0
        window, size = self.window, self.window.datagram_bytes
        # However they share datagrams, all but the last are full, and charged so much at the least.
        room_bytes = window.max_bytes - window.charged - DATAGRAM_OVERHEAD
        if size < DATAGRAM_OVERHEAD:
            room_bytes = room_bytes // DATAGRAM_OVERHEAD * size
        return window.room, room_bytes, self.fragments.largest

    def send(self, payloads: Sequence[bytes], now: int, out: Effects) -> int:
        """How many messages were accepted, from the first on."""
        accepted, pieces = self.fragments.admit(payloads)
        self.send_out(pieces, out)
        if accepted < len(payloads):
            self.block(now)
        return accepted

    def block(self, now: int) -> None:
        if not self.is_blocked:
            self.is_blocked = True
            self.blocked_since = now

    def send_out(self, pieces: list[Piece], out: Effects) -> None:
        for first, payloads, more in pieces:
            frame = self.frame(first, payloads, more=more)
            if (more or frame.headed) and self._own is not None:
                seqnos = range(first, first + len(payloads))
                self._own.mark(seqnos, more=more, headed=frame.headed)
            out.frames.append((self._dest, frame))

    def use_room(self, out: Effects) -> bool:
        """Room may have appeared: for the rest of a large message first, then for the sender.
        Whether there was such a rest."""
        has_rest = bool(self.fragments.rest)
        if has_rest:
            starts_often = self.fragments.starts_often
            self.send_out(self.fragments.admit_rest(), out)
            if not self.fragments.rest:
                self.receipts.close(self.window.high)
                if starts_often:
                    out.signal(StartsOver(is_through=True))
        if self.is_blocked and not self.fragments.rest and not self.window.is_full:
            self.release(out)
        return has_rest

    def release(self, out: Effects) -> None:
        """Let who waits for room try again: a send either finds room, or fails and says why."""
        if self.is_blocked:
            self.is_blocked = False
            if self.emits_writable:
                out.event(Writable(self._dest))

    def retransmit(
        self, missing: Iterable[range], quota: int, dest: Member | None, out: Effects
    ) -> int:
        """Send again what is still here, at most so many messages; how many these were."""
        count = 0
        for seqnos in missing:
            start = max(seqnos.start, self.window.low + 1)
            stop = min(seqnos.stop, start + quota - count)
            for first, payloads, more in self.fragments.pieces(range(start, stop)):
                out.datagram(dest, self.frame(first, payloads, more=more))
                count += len(payloads)
        self.retransmitted += count
        return count

    def ask_receipt(
        self, number: int, others: Iterable[Member], has_delivered: HasDelivered, *, is_flush: bool
    ) -> int | None:
        """Confirmed follows, under the number that is returned, when these have delivered what was
        accepted so far. None: they have."""
        seqno = OPEN if self.fragments.rest else self.window.high
        behind = [who for who in others if not has_delivered(who, seqno)]
        return self.receipts.ask(number, seqno, behind, is_flush=is_flush) if behind else None

    def stats(self) -> dict[str, object]:
        window = self.window
        return {
            "capacity": window.capacity,
            "bytes": window.charged,
            "bytes_max": window.max_bytes,
            "fragments_waiting": len(self.fragments.rest),
            "retransmitted": self.retransmitted,
        }

    def explain_block(self, now: int) -> str:
        """For how long a sender waits, and for what."""
        window = self.window
        return (
            f"blocked for {seconds(now - self.blocked_since)}: window full "
            f"({window.high - window.low} of {window.limit} messages, "
            f"{window.charged} of {window.max_bytes} bytes)"
        )

    def check_invariants(self) -> None:
        self.window.check_invariants()
        self.fragments.check_invariants()


class ReceiveStream:
    """Messages that come, until the application has delivered them."""

    def __init__(
        self, window: ReceiveWindow, assembler: Assembler, tau: int, timers: Timers[Timer]
    ) -> None:
        self.window = window
        self.assembler = assembler
        self.repair = Repair(window.received, tau)
        self.is_frozen = False
        """What is missing is not asked for: somebody else sees to it."""
        self.nack_sent = 0  # seqnos asked for
        self._timers = timers

    def accept(self, data: Data | UnicastData, now: int, datagram: int | None) -> int:
        """Offer a run of this datagram to the window and note what it shows to be missing; how many
        were new."""
        window, repair = self.window, self.repair
        first, last = data.first, data.first + data.count - 1
        if data.more or data.headed:
            acceptable_last = min(last, window.low + window.capacity_max)
            acceptable = range(max(first, window.delivered + 1), acceptable_last + 1)
            self.assembler.mark(acceptable, more=data.more, headed=data.headed)
        new = 0
        if window.has_slot(first, last):
            new = window.add_run(first, data.payloads)
        repair.saw_data(window, first, last, now, datagram)
        if Timer.REPAIR in self._timers.by_key or window.received < repair.known:
            self.arm_repair()
        return new

    def take(self, limit: int, now: int) -> list[bytes]:
        """What is ready, in order, up to so many."""
        payloads = self.window.take_ready(limit)
        if payloads and self.repair.announced > self.repair.known and not self.is_frozen:
            self.repair.window_moved(self.window, now)
            self.arm_repair()
        return payloads

    def saw_watermark(self, seqno: int, now: int) -> None:
        """All up to this exists."""
        self.repair.saw_watermark(self.window, seqno, now)
        self.arm_repair()

    def take_missing(self, now: int) -> list[list[range]]:
        """What to ask for now, if anything: as many ranges at a time as a frame names."""
        due = self.repair.take_due(self.window, now)
        self.nack_sent += sum(map(len, due))
        self.arm_repair()
        return [due[n : n + NACK_RANGES_MAX] for n in range(0, len(due), NACK_RANGES_MAX)]

    def arm_repair(self) -> None:
        if self.is_frozen:
            return
        at = self.repair.next_ask()
        if at is None:
            self._timers.disarm(Timer.REPAIR)
        else:
            self._timers.arm(Timer.REPAIR, at)

    def stats(self) -> dict[str, object]:
        window = self.window
        return {
            "delivered": window.delivered,
            "received": window.received,
            "high": window.high,
            "capacity": window.capacity,
            "gaps": self.repair.gap_count,
            "gap_tick_ms": self.repair.gap_tick / 1e6,
            "fragment_bytes": self.assembler.size,
            "oversized": self.assembler.oversized,
            "duplicates": window.duplicates,
            "dropped_low": window.dropped_low,
            "dropped_high": window.dropped_high,
            "dropped_bytes": window.dropped_bytes,
            "nack_sent": self.nack_sent,
        }

    def explain(self, what: str, now: int) -> list[str]:
        """Why messages that have arrived are not delivered yet."""
        reasons, window = [], self.window
        at = self.repair.next_ask()
        if at is not None:
            gap = self.repair.gap_of(window.received + 1)
            (missing,) = window.missing_within(gap.first, gap.last, 1)
            first, last = missing[0], missing[-1]
            seqnos = f"{first}" if first == last else f"{first}..{last}"
            later = window.size - window.ready
            reasons.append(
                f"{what}: {seqnos} missing for {seconds(now - gap.since)}, asked "
                f"{counted(gap.asked, 'time')}, next in {seconds(max(0, at - now))}; "
                f"{counted(later, 'later message waits', 'later messages wait')} for it"
            )
        if window.ready:
            ready = f"{counted(window.ready, 'message')} from {window.delivered + 1} on"
            reasons.append(f"{what}: {ready}, ready for this member's application")
        return reasons

    def check_invariants(self) -> None:
        self.window.check_invariants()
        if not self.is_frozen:
            self.repair.check_invariants(self.window)
            assert self._timers.is_armed(Timer.REPAIR) == self.repair.has_gaps


def deliver(
    sender: Member,
    stream: Stream,
    assembler: Assembler,
    first: int,
    payloads: list[bytes],
    view_id: ViewId,
    events: list[Event],
    epoch: int = 0,
) -> None:
    """Whole messages as they are; fragments are put together first."""
    if not (assembler.continued or assembler.begun or assembler.headed):
        events.append(Delivered(sender, Run(stream, first, payloads), view_id, epoch))
        return
    last = first + len(payloads) - 1
    for start, messages in assembler.assemble(first, payloads):
        if start > first:
            events.append(FragmentsDelivered(sender, stream, first, start - 1, view_id, epoch))
        events.append(Delivered(sender, Run(stream, start, messages), view_id, epoch))
        first = start + len(messages)
    if first <= last:
        events.append(FragmentsDelivered(sender, stream, first, last, view_id, epoch))


def seconds(duration: int) -> str:
    """Nanoseconds for people."""
    return f"{duration / 1e9:.1f} s"
