"""ReliableUnicast: one member gets another's messages to it in order, once, without gaps.

JGroups calls this UNICAST3, with the SYNC protocol that was designed for it and never built. It
carries messages between any two members, also between members of different views.

What holds under loss, duplication, reordering, crashes, and one side forgetting the other: per
stream a receiver delivers 1, 2, 3, … of what was sent, once each (S1); a sender purges only
what its receiver has taken (S2, Y1); what is given up is reported (S8). Once the network works,
everything sent to a live member is delivered (S-L1), and then silence (G8).

A stream is (sender, receiver, epoch), its connections are numbered. Both numbers only grow and
stand in every frame, so "newer" is decidable and what is late can do no harm.

On send: through the UnicastSender of that peer (unicast_sender.py); without one, begin a new epoch.
    Messages to oneself wait in a window of their own for the application. To a peer that is not in
    the view nobody waits to send: what finds no room, or would begin a new epoch, is Undeliverable.
On UnicastData: a datagram's runs are one batch. Only those of its newest connection count, and the
    one that opens a stream goes first. They go to the UnicastReceiver (unicast_receiver.py) of that
    connection. Without one: what comes of who is not in the view, and was not when its stream
    began, waits for a view with it (early.py); of a member the first message of a stream that
    is newer than all that is known opens it, and with it goes what overtook it (early.py). Anything
    else that is not older asks for a sync, and is kept if a first message may yet open its
    connection; it goes with the sync request. Older runs are late: nothing.
On UnicastAck, UnicastNack, SyncAck: to the UnicastSender, if it is on that connection.
On Sync: to the UnicastSender of that epoch. If there is none, the stream has ended: Close says so.
On SyncOk, if it answers the sync request that is outstanding: go on after `low`, or after what was
    delivered before if that is more (the tombstone knows), on the new connection. What the sender
    has purged in between is reported. Confirm with a SyncAck, also if the SyncOk comes again.
On Close of the current connection: forget it, but for a tombstone.
Every tick (τ) while there is anything to wait for: the SenderEntries' ticks; ask what is to be
    asked. A sync request waits for the first tick, so that reordering alone asks nothing, and is
    given up after `SYNC_TICKS_MAX` ticks; new data then ask anew.
On view: connections with members that are not in it begin to close, and who waits for room there
    is told to try again: that is then Undeliverable. They may go on if both sides use them; but a
    peer whose address another incarnation has taken is gone.
On close: acknowledge what was taken, report what is not acknowledged. Who leaves takes before that
    what it has sent to itself (`take_own`), and acknowledges before it says goodbye (Flushed).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import auto
from typing import TYPE_CHECKING, ClassVar, Final, get_args

from ringcast.core.effects import Flushed, Layer
from ringcast.core.shared import Deadlines, GroupState, Named
from ringcast.core.view_change import Begin
from ringcast.errors import GroupClosed, Undeliverable, UsageError
from ringcast.events import Delivered, GapSkipped, Writable
from ringcast.model import FIRST_CONN_ID, SEQNO_MAX, SYSTEM_EPOCH, Conn, Run, Stream
from ringcast.protocols.connection import State
from ringcast.protocols.early import Early, Strangers
from ringcast.protocols.stream import Receipts, deliver, seconds
from ringcast.protocols.unicast_receiver import UnicastReceiver
from ringcast.protocols.unicast_sender import SYNC_TICKS_MAX, UnicastSender
from ringcast.window.fragmenter import check_payloads
from ringcast.window.send import SendWindow
from ringcast.wire.frames import (
    Close,
    Sync,
    SyncAck,
    SyncOk,
    UnicastAck,
    UnicastData,
    UnicastFrame,
    UnicastNack,
)
from ringcast.wire.members import is_no_longer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ringcast.config import UnicastConfig
    from ringcast.core.effects import Effects, Signal
    from ringcast.core.shared import Timers
    from ringcast.events import Event
    from ringcast.model import Member, View
    from ringcast.protocols.unicast_receiver import Tombstone
    from ringcast.wire.frames import Frame

WINDOWS_MAX = 256
SYNC_REQUESTS_MAX = 256
TOMBSTONES_MAX = 1024
"""Beyond these no window opens and no sync request is asked but for members of the view, and the
oldest tombstone goes: a flood of strangers' connections costs no more memory than this. Tombstones
do not expire: if our clock leaps ahead, the sender still remembers."""

REPLACED_MAX = 256
"""Members whose address another incarnation has taken: what still comes of them is late."""

EPOCH_LEAP_MAX = 1 << 32
"""How far an epoch may be above the last that is known of its sender."""

SYNC_SPARE = 8
"""Bytes that a Sync has more than the Close that answers it."""

LOOPBACK_EPOCH = 1
"""The epoch of messages to oneself; those to others come after it."""


class Timer(Named):
    TICK = auto()
    """The retransmission task."""


_TICK: Final = Timer.TICK  # to look up a member of an Enum takes Python a while


@dataclass(slots=True)
class SyncRequest:
    """A sync that is outstanding: where does this sender stand?"""

    conn: Conn
    """What came and fitted no window; only its epoch matters for the answer."""
    nonce: int
    since: int
    asked: int = 0


class ReliableUnicast(Layer):
    """The state machine of one member: both directions, all peers."""

    frames: ClassVar[tuple[type[Frame], ...]] = get_args(UnicastFrame)
    sender: ClassVar[type[UnicastSender]] = UnicastSender
    receiver: ClassVar[type[UnicastReceiver]] = UnicastReceiver

    def __init__(
        self,
        me: Member,
        config: UnicastConfig,
        *,
        fragment_bytes: int,
        datagram_bytes: int,
        max_message_bytes: int,
        is_system: bool = False,
    ) -> None:
        """`is_system`: what it carries is not the application's, which its epochs show."""
        self.me = me
        self.config = config
        self.receive_buffer = config.window_bytes
        """Bytes that may be under way to this member. A transport sets it to what its socket
        buffer holds."""
        self.senders: dict[Member, UnicastSender] = {}
        self.receivers: dict[Member, UnicastReceiver] = {}
        self.ready: set[Member] = set()
        """Of whom messages wait for the application."""
        self.tombstones: dict[Member, Tombstone] = {}
        self.sync_requests: dict[Member, SyncRequest] = {}
        self.early = Early()
        self.strangers = Strangers()
        self.loopback = SendWindow(
            config.capacity, max_bytes=config.window_bytes, datagram_bytes=datagram_bytes
        )
        """Messages to oneself."""
        self._receipts = Receipts()
        """For those."""
        self.ticks = 0
        self.stale = 0  # frames of connections that are over
        self.refused = 0  # acks for what was never sent; windows and sync requests beyond the bound
        self._fragment_bytes = fragment_bytes
        self._datagram_bytes = datagram_bytes
        self._max_message_bytes = max_message_bytes
        self._tau = round(config.xmit_interval_s * 1e9)
        self._replaced: dict[Member, None] = {}
        self._is_closed = False
        self._epoch = SYSTEM_EPOCH if is_system else LOOPBACK_EPOCH
        self._first_epoch = self._epoch
        self._is_system = is_system
        self._nonce = 0
        self._is_loopback_blocked = False
        self._turn = 0  # who is first to be taken from, so that nobody starves
        self._datagram = 0  # how many have come, as far as messages are in them
        self.attach(GroupState(me), Deadlines())

    def attach(self, group: GroupState, deadlines: Deadlines) -> None:
        super().attach(group, deadlines)
        self._timers: Timers[Timer] = deadlines.owner(self._owner("ticks"))

    def _owner(self, what: str, peer: Member | None = None) -> tuple[str, str, Member | None]:
        """The name of an owner of timers."""
        return "channel" if self._is_system else "unicast", what, peer

    # Inputs

    def resize(self, fragment_bytes: int, datagram_bytes: int) -> None:
        """Datagrams hold more or less from now on."""
        self._fragment_bytes, self._datagram_bytes = fragment_bytes, datagram_bytes
        for sender in self.senders.values():
            sender.fragments.resize(fragment_bytes, datagram_bytes)

    def send(self, payloads: Sequence[bytes], to: Member, now: int, out: Effects) -> int:
        """Send to one member; return how many messages were accepted, from the first on.

        Fewer than all: the window is full, and Writable(to) follows when there is room.
        Undeliverable: `to` is not in the view, and nothing was accepted.
        """
        if self._is_closed:
            raise GroupClosed("this member has left its group")
        if self.group.view is None:
            raise UsageError(f"cannot send to {to}: not in a view yet")
        check_payloads(payloads, self._max_message_bytes)
        if not payloads:
            return 0
        if to == self.me:
            return self._send_to_self(payloads)
        entry = self.senders.get(to)
        if entry is None:
            if to not in self.group.view:
                raise Undeliverable(to, 0, 1, 0, f"{to} is not in the view: nothing was sent to it")
            self._epoch += 1
            conn = Conn(self._epoch, FIRST_CONN_ID)
            sizes = self._fragment_bytes, self._datagram_bytes
            timers = self.deadlines.owner(self._owner("to", to))
            entry = self.senders[to] = self.sender(to, conn, self.config, *sizes, now, timers)
        accepted = entry.send(payloads, now, out)
        if accepted < len(payloads) and to not in self.group.view:
            if not accepted:
                entry.stream.is_blocked = False
                raise entry.undeliverable(
                    f"{to} is not in the view, and {entry.backlog} wait for it: no more is sent to "
                    f"it until it is back"
                )
            entry.stream.release(out)  # whoever tries again is told
        if accepted:  # else the tick is armed, for what fills the window
            self._timers.arm_if_idle(Timer.TICK, now + self._tau)
        return accepted

    def ask_receipt(self, number: int, to: Member, *, is_flush: bool) -> int | None:
        """Confirmed follows, under the number that is returned, when that member has delivered what
        was sent to it so far, or departs, or is given up. None: it has."""
        if to == self.me:
            if self.me not in self.ready:
                return None
            return self._receipts.ask(number, self.loopback.high, [to], is_flush=is_flush)
        entry = self.senders.get(to)
        return None if entry is None else entry.ask_receipt(number, is_flush=is_flush)

    def send_next(self, payload: bytes, to: Member, now: int, out: Effects) -> bool:
        """The fast path for one message: over an open connection that has room for it. False:
        nothing has happened, and `send` is to be called."""
        entry = self.senders.get(to)
        if entry is None or len(payload) > self._max_message_bytes:
            return False
        if not entry.send_next(payload, now, out):
            return False
        if _TICK not in self._timers.by_key:
            self._timers.arm(_TICK, now + self._tau)
        return True

    def receive(self, source: Member, frames: Sequence[Frame], now: int, out: Effects) -> None:
        if self._is_closed or source == self.me or source in self._replaced:
            self.stale += len(frames)
            return
        batch: list[UnicastData] = []
        for frame in frames:
            match frame:
                case UnicastData():
                    batch.append(frame)
                case UnicastAck() | UnicastNack() | SyncAck():
                    self._on_said(source, frame, now, out)
                case Close():
                    self._on_close(source, frame)
                case Sync():
                    self._on_sync(source, frame, now, out)
                case SyncOk():
                    self._on_sync_ok(source, frame, now, out)
        if batch:
            self._on_batch(source, batch, now, out)

    def install_view(self, view: View, now: int, out: Effects) -> None:
        if self._is_closed:
            return
        addresses, before = {member.address for member in view}, self.group.previous
        for peer in (*(before or ()), *self.senders, *self.receivers, *self.sync_requests):
            if peer not in view and peer.address in addresses:
                self._replaced[peer] = None
        while len(self._replaced) > REPLACED_MAX:
            del self._replaced[next(iter(self._replaced))]
        for peer in [*self.senders, *self.receivers]:
            if peer in view:
                continue
            is_replaced = peer in self._replaced
            sender, receiver = self.senders.get(peer), self.receivers.get(peer)
            if sender is not None:
                sender.end(now)
                if peer in (before or ()):
                    sender.depart(view, str(view), out)
                if is_replaced:
                    sender.give_up(f"{peer} has been restarted", out)
                    self.drop_to(peer)
                else:
                    sender.stream.release(out)
            if receiver is not None:
                receiver.end(now)
                if is_replaced:
                    self._bury(peer, is_final=True)
        for peer in view:
            for data in self.strangers.take(peer, now):
                self._on_data(peer, data, now, out)
        # Nobody is left to answer; and an answer that is under way would open a window in vain.
        for peer in [peer for peer in self.sync_requests if peer in self._replaced]:
            self._drop_sync_request(peer)

    def sync(self, peer: Member, now: int) -> None:
        """An operator's wish: find out where this sender stands, and go on from there."""
        known = self._known(peer)
        if known is None:
            raise UsageError(f"nothing has come from {peer} yet: there is nothing to sync")
        self._ask(peer, known, now)

    def close_to(self, peer: Member, now: int) -> None:
        """Begin to close what goes to this peer; a send takes it up again."""
        if peer in self.senders:
            self.senders[peer].end(now)

    def drop_to(self, peer: Member) -> None:
        """Forget what goes to this peer, without a word; a send begins anew."""
        if peer in self.senders:
            self.senders.pop(peer).remove()

    def drop_from(self, peer: Member) -> None:
        """Forget the window for what comes from this peer, at once; a sync makes a new one."""
        self.early.forget(peer)
        if peer in self.receivers:
            self._bury(peer, is_final=False)

    def handle_signal(self, signal: Signal, now: int, out: Effects) -> None:
        if isinstance(signal, Flushed):
            self._acknowledge(now, out)
        elif isinstance(signal, Begin) and signal.settings is not None:
            self._max_message_bytes = signal.settings.max_message_bytes
            for receiver in self.receivers.values():
                receiver.assembler.allow(self._max_message_bytes)

    def take_ready(self, limit: int, now: int, out: Effects) -> list[Event]:
        """Up to `limit` messages, from all peers in turn: calling this is delivery."""
        if not self.ready:
            self._turn = 0
            return []
        events: list[Event] = []
        for peer in self._in_turn():
            if limit <= 0:
                break
            self._turn += 1
            if peer == self.me:
                limit -= self._take_own(limit, events, out)
            else:
                limit -= self._take_from(self.receivers[peer], limit, now, events, out)
        return events

    def take_own(self, out: Effects) -> list[Event]:
        """What this member has sent to itself, however much: for who is about to go."""
        events: list[Event] = []
        if self.me in self.ready:
            self._take_own(self.loopback.ready, events, out)
        return events

    def take_next(self, source: Member, conn: Conn, seqno: int, now: int) -> bool:
        """`receive` of one whole message and `take_all` in one step, in the usual case: it is the
        next of a peer that nothing is missing of. False: nothing has happened."""
        entry = self.receivers.get(source)  # closed, or replaced by another, it has none
        if entry is None or self.group.view is None or conn != entry.conn:
            return False
        return entry.take_next(seqno, now)

    def take_all(self, now: int, out: Effects) -> list[tuple[Member, bytes]]:
        """Every message that is ready, with its sender: for who needs to know no more."""
        self._turn = 0
        events = self.take_ready(SEQNO_MAX, now, out)
        runs = [event for event in events if isinstance(event, Delivered)]
        return [(event.sender, payload) for event in runs for payload in event.run.payloads]

    def handle_timeout(self, now: int, out: Effects) -> None:
        for peer, sender in list(self.senders.items()):
            sender.handle_timeout(now, out)
            if sender.state is State.CLOSED:
                self.drop_to(peer)
        allowance = self._allowance(now)
        for peer, receiver in list(self.receivers.items()):
            receiver.handle_timeout(now, allowance, out)
            if receiver.state is State.CLOSED:
                self._bury(peer, is_final=False)
        if self._timers.take(_TICK, now):
            self._tick(now, out)

    def close(self, reason: str, now: int, out: Effects) -> None:
        if not self._is_closed:
            self._acknowledge(now, out)
            for sender in self.senders.values():
                if sender.is_acked:
                    out.datagram(sender.peer, Close(sender.conn))
            self._shut(reason, out)

    def _acknowledge(self, now: int, out: Effects) -> None:
        """Now, and not after the usual delay."""
        allowance = self._allowance(now)
        for receiver in self.receivers.values():
            receiver.flush_ack(allowance, out)

    # Outputs

    @property
    def is_flushed(self) -> bool:
        """Every other member of the view has taken everything that was sent to it. Who is not in
        it may be dead: nobody is to wait for that one, and what it lacks is reported."""
        view = self.group.view or ()
        return all(sender.is_acked for peer, sender in self.senders.items() if peer in view)

    def is_blocked(self, to: Member) -> bool:
        """A send was cut short, and no Writable has followed yet."""
        if to == self.me:
            return self._is_loopback_blocked
        entry = self.senders.get(to)
        return entry is not None and entry.stream.is_blocked

    def stats(self) -> dict[str, object]:
        return {
            "epoch": self._epoch,
            "ticks": self.ticks,
            "stale": self.stale,
            "refused": self.refused,
            "to": {str(peer): sender.stats() for peer, sender in self.senders.items()},
            "from": {str(peer): entry.stats() for peer, entry in self.receivers.items()},
            "sync_requests": {
                str(peer): {"connection": str(q.conn), "nonce": q.nonce, "asked": q.asked}
                for peer, q in self.sync_requests.items()
            },
            "tombstones": {
                str(peer): {
                    "connection": str(tomb.conn),
                    "delivered": tomb.delivered,
                    "final": tomb.is_final,
                }
                for peer, tomb in self.tombstones.items()
            },
            "early": {"runs": self.early.runs, "bytes": self.early.size},
            "strangers": {
                "members": len(self.strangers),
                "bytes": self.strangers.size,
                "refused": self.strangers.refused,
            },
            "loopback": self.loopback.size,
        }

    def explain(self, now: int) -> list[str]:
        entries: list[UnicastSender | UnicastReceiver] = [*self.senders.values()]
        entries += self.receivers.values()
        reasons = [reason for entry in entries for reason in entry.explain(now)]
        reasons += [
            f"asking {peer} where its stream {request.conn.epoch} to this member stands, since "
            f"{seconds(now - request.since)}: asked {request.asked} of {SYNC_TICKS_MAX} times"
            for peer, request in self.sync_requests.items()
        ]
        if own := self.loopback.ready:
            reasons.append(f"{own} messages of this member to itself wait for its application")
        return reasons

    def check_invariants(self) -> None:
        self.loopback.check_invariants()
        assert (self._epoch >= SYSTEM_EPOCH) == self._is_system
        assert len(self.tombstones) <= TOMBSTONES_MAX
        for peer, sender in self.senders.items():
            assert sender.conn.epoch <= self._epoch
            assert peer != self.me
            sender.check_invariants()
        for peer, receiver in self.receivers.items():
            assert peer not in self.tombstones
            receiver.check_invariants()
        ready = {peer for peer, receiver in self.receivers.items() if receiver.window.ready}
        own = {self.me} if self.loopback.ready else set()
        assert self._is_closed or self.ready == ready | own
        for peer, sync_request in self.sync_requests.items():
            known = self._known(peer)
            assert known is None or sync_request.conn.epoch >= known.epoch
            assert sync_request.nonce <= self._nonce
        self.early.check_invariants()
        self.strangers.check_invariants()
        for peer, conn in self.early.conns().items():
            assert conn.epoch == self.sync_requests[peer].conn.epoch
        assert self._timers.is_armed(Timer.TICK) or not self._is_busy

    # Frames for a sender

    def _on_said(
        self, source: Member, said: UnicastAck | UnicastNack | SyncAck, now: int, out: Effects
    ) -> None:
        """It counts on the current connection alone."""
        entry = self.senders.get(source)
        if entry is None or not entry.is_current(said.conn):
            self.stale += 1
            return
        entry.heard(now)
        if isinstance(said, UnicastNack):
            entry.on_nack(said, out)
        elif isinstance(said, UnicastAck):
            if said.delivered > entry.window.high:
                self.refused += 1
            else:
                entry.on_ack(said, now, out)

    def _on_sync(self, source: Member, sync: Sync, now: int, out: Effects) -> None:
        entry = self.senders.get(source)
        if entry is not None and entry.conn.epoch == sync.conn.epoch:
            entry.on_sync(sync, now, out)
            self._arm_tick(now)
        elif sync.conn.epoch <= self._epoch:
            self.stale += 1
            if self._is_member(source) or is_no_longer(self.me, source, SYNC_SPARE):
                out.datagram(source, Close(sync.conn))
        else:
            self.refused += 1

    # Frames for a receiver

    def _on_batch(self, source: Member, batch: list[UnicastData], now: int, out: Effects) -> None:
        if len(batch) > 1:  # most datagrams are one run
            newest = max(data.conn for data in batch)
            current = [data for data in batch if data.conn == newest]
            self.stale += len(batch) - len(current)
            batch = sorted(current, key=lambda data: not data.opens)
        self._datagram += 1
        for data in batch:
            self._on_data(source, data, now, out)

    def _on_data(self, source: Member, data: UnicastData, now: int, out: Effects) -> None:
        entry = self.receivers.get(source)
        if entry is not None and data.conn == entry.conn:
            entry.on_data(data, now, self._datagram)
            self._note_ready(entry)
            return
        known = self._known(source)
        before = self._first_epoch if known is None else known.epoch
        if data.conn.epoch > before + EPOCH_LEAP_MAX:
            self.refused += 1
        elif known is None and not self._is_member(source):
            self.strangers.keep(source, data, now)  # a view with it may be about to begin
        elif known is None or data.conn > known:
            if not data.opens:
                self._ask(source, data.conn, now)
                self._keep(source, data)
            elif self._has_room(self.receivers, WINDOWS_MAX, source):
                overtakers = self.early.take(source, data.conn)
                entry = self._open(source, data.conn, 0, (), now)
                entry.on_data(data, now, self._datagram)
                for run in overtakers:
                    entry.on_data(run, now)
                self._note_ready(entry)
            else:
                self.refused += 1
        elif entry is None and data.conn == known and not self.tombstones[source].is_final:
            self._ask(source, data.conn, now)
        else:
            self.stale += 1

    def _on_close(self, source: Member, close: Close) -> None:
        entry = self.receivers.get(source)
        tombstone = self.tombstones.get(source)
        sync_request = self.sync_requests.get(source)
        if sync_request is not None and sync_request.conn == close.conn:
            self._drop_sync_request(source)
        if entry is not None and entry.conn == close.conn:
            self._bury(source, is_final=True)
        elif tombstone is not None and tombstone.conn == close.conn:
            tombstone.is_final = True
        else:
            self.stale += 1

    def _on_sync_ok(self, source: Member, ok: SyncOk, now: int, out: Effects) -> None:
        if not self._is_awaited(source, ok):
            entry = self.receivers.get(source)
            if entry is not None and entry.conn == ok.conn:
                out.datagram(source, SyncAck(ok.conn, ok.nonce))  # the first one may be lost
            else:
                self.stale += 1
            return
        if not self._has_room(self.receivers, WINDOWS_MAX, source):
            self.refused += 1
            return
        self._drop_sync_request(source)
        entry = self.receivers.get(source)
        if entry is None or entry.conn.epoch < ok.conn.epoch:
            entry = self._reopen(source, ok, now, out)
        elif ok.low > entry.window.received:
            self._report_gap(source, entry.conn.epoch, entry.window.delivered + 1, ok.low, out)
        out.datagram(source, SyncAck(ok.conn, ok.nonce))
        entry.resume(ok, now, self._allowance(now), out)
        self._note_ready(entry)

    def _is_awaited(self, source: Member, ok: SyncOk) -> bool:
        """Whether this answers the outstanding sync request. Any other may have been on its way for
        long, and what it tells may be long out of date."""
        sync_request = self.sync_requests.get(source)
        return (
            sync_request is not None
            and sync_request.nonce == ok.nonce
            and sync_request.conn.epoch == ok.conn.epoch
        )

    def _reopen(self, source: Member, ok: SyncOk, now: int, out: Effects) -> UnicastReceiver:
        """A window where this stream stands: after what was delivered before, if that is known."""
        low, epoch, tombstone = ok.low, ok.conn.epoch, self._remembered(source, ok.conn.epoch)
        parts: tuple[bytes, ...] | None = None if ok.is_middle else ()
        if tombstone is not None and tombstone.delivered < low:
            self._report_gap(source, epoch, tombstone.delivered + 1, low, out)
        elif tombstone is not None:
            low, parts = tombstone.delivered, tombstone.parts
        return self._open(source, ok.conn, low, parts, now)

    def _report_gap(self, peer: Member, epoch: int, first: int, last: int, out: Effects) -> None:
        out.event(GapSkipped(peer, epoch, first, last))

    def _remembered(self, source: Member, epoch: int) -> Tombstone | None:
        """How far this stream had come when its window was dropped; None: nobody knows."""
        tombstone = self.tombstones.get(source)
        return None if tombstone is None or tombstone.conn.epoch != epoch else tombstone

    # Entries

    def _known(self, peer: Member) -> Conn | None:
        """The newest connection from this peer that there has been a window for."""
        entry = self.receivers.get(peer)
        if entry is not None:
            return entry.conn
        tombstone = self.tombstones.get(peer)
        return None if tombstone is None else tombstone.conn

    def _has_room(self, table: Mapping[Member, object], limit: int, peer: Member) -> bool:
        """Whether this peer may be entered: strangers must not keep members of the view out."""
        return len(table) < limit or peer in table or self._is_member(peer)

    def _is_member(self, peer: Member) -> bool:
        return self.group.view is not None and peer in self.group.view

    def _open(
        self, peer: Member, conn: Conn, offset: int, parts: tuple[bytes, ...] | None, now: int
    ) -> UnicastReceiver:
        """A new receive window. One of an older epoch goes: its sender has ended it."""
        sync_request = self.sync_requests.get(peer)
        if sync_request is not None:
            is_same = sync_request.conn.epoch == conn.epoch and not sync_request.asked
            if is_same or sync_request.conn.epoch < conn.epoch:
                self._drop_sync_request(peer)
        self.tombstones.pop(peer, None)
        self.ready.discard(peer)
        timers = self.deadlines.owner(self._owner("from", peer))
        entry = self.receivers[peer] = self.receiver(
            peer, conn, self.config, self._max_message_bytes, offset, parts, now, timers
        )
        return entry

    def _bury(self, peer: Member, *, is_final: bool) -> None:
        """Remove the entry; a tombstone stays, so that nothing is delivered twice."""
        tombs = self.tombstones
        entry = self.receivers.pop(peer)
        entry.remove()
        self.ready.discard(peer)
        tombs[peer] = entry.tombstone(is_final=is_final)
        while len(tombs) > TOMBSTONES_MAX:
            del tombs[next(iter(tombs))]
        # Halves of large messages are kept, but only so many bytes of them.
        size = sum(tomb.size for tomb in tombs.values())
        for tomb in tombs.values():
            if size <= self._max_message_bytes:
                break
            size -= tomb.size
            tomb.lose_parts()

    def _ask(self, peer: Member, conn: Conn, now: int) -> None:
        """Find out where this sender stands, at the next tick."""
        sync_request = self.sync_requests.get(peer)
        if sync_request is not None and sync_request.conn.epoch >= conn.epoch:
            return
        if not self._has_room(self.sync_requests, SYNC_REQUESTS_MAX, peer):
            self.refused += 1
            return
        self._nonce += 1
        self.early.forget(peer)
        self.sync_requests[peer] = SyncRequest(conn, self._nonce, now)
        self._arm_tick(now)

    def _keep(self, peer: Member, data: UnicastData) -> None:
        """It may have overtaken the first message, which then need not wait for a repair."""
        sync_request = self.sync_requests.get(peer)
        is_open_to_first = data.conn.id == FIRST_CONN_ID and data.last <= self.config.capacity
        if sync_request is not None and sync_request.conn == data.conn and is_open_to_first:
            self.early.keep(peer, data, is_member=self._is_member(peer))

    def _drop_sync_request(self, peer: Member) -> None:
        """It is answered, given up, or nobody is left to answer it."""
        del self.sync_requests[peer]
        self.early.forget(peer)

    # The tick

    @property
    def _is_busy(self) -> bool:
        return bool(self.sync_requests) or any(sender.is_busy for sender in self.senders.values())

    def _arm_tick(self, now: int) -> None:
        if self._is_busy:
            self._timers.arm_if_idle(Timer.TICK, now + self._tau)

    def _tick(self, now: int, out: Effects) -> None:
        self.ticks += 1
        for sender in self.senders.values():
            sender.tick(out)
        for peer, sync_request in list(self.sync_requests.items()):
            if sync_request.asked >= SYNC_TICKS_MAX:
                self._drop_sync_request(peer)
            else:
                sync_request.asked += 1
                out.datagram(peer, Sync(sync_request.conn, sync_request.nonce))
        self._arm_tick(now)

    # Delivery

    def _in_turn(self) -> list[Member]:
        """Whoever has something ready; who was not reached last time comes first."""
        peers = [peer for peer in (*self.receivers, self.me) if peer in self.ready]
        start = self._turn = self._turn % len(peers)
        return peers[start:] + peers[:start]

    def _take_from(
        self, entry: UnicastReceiver, limit: int, now: int, events: list[Event], out: Effects
    ) -> int:
        """How many messages were taken."""
        assert self.group.view is not None
        first = entry.window.delivered + 1
        payloads = entry.take_ready(limit, now)
        if entry.is_ack_due:
            entry.flush_ack(self._allowance(now), out)
        self._note_ready(entry)
        view_id, epoch = self.group.view.id, entry.conn.epoch
        deliver(entry.peer, Stream.FIFO, entry.assembler, first, payloads, view_id, events, epoch)
        lost = entry.assembler.take_given_up()
        events += [GapSkipped(entry.peer, epoch, seqno, seqno) for seqno in lost]
        return len(payloads)

    def _note_ready(self, entry: UnicastReceiver) -> None:
        """Messages may have come into this window, or gone from it."""
        if entry.window.ready:
            self.ready.add(entry.peer)
        else:
            self.ready.discard(entry.peer)

    def _send_to_self(self, payloads: Sequence[bytes]) -> int:
        accepted = self.loopback.append_run(payloads)
        self._is_loopback_blocked |= accepted < len(payloads)
        self.ready.add(self.me)
        return accepted

    def _take_own(self, limit: int, events: list[Event], out: Effects) -> int:
        """How many messages to oneself were taken."""
        assert self.group.view is not None
        window = self.loopback
        run = Run(Stream.FIFO, window.delivered + 1, window.take_ready(limit))
        events.append(Delivered(self.me, run, self.group.view.id, LOOPBACK_EPOCH))
        window.purge(window.delivered)
        if not window.ready:
            self.ready.discard(self.me)
        self._receipts.look(lambda _, seqno: seqno <= window.low, out)
        if self._is_loopback_blocked and not window.is_full:
            self._is_loopback_blocked = False
            out.event(Writable(self.me))
        return len(run.payloads)

    def _allowance(self, now: int) -> int:
        """An equal share of the receive buffer for each peer heard of late."""
        active = sum(entry.last_data > now - self._tau for entry in self.receivers.values())
        share = min(self.receive_buffer // max(1, active), self.config.in_flight_bytes)
        return max(share, self._datagram_bytes)

    def _shut(self, reason: str, out: Effects) -> None:
        self._is_closed = True
        for receiver in self.receivers.values():
            receiver.remove()
        for sender in self.senders.values():
            sender.remove()
            sender.stream.receipts.clear()  # it is not the peer that is gone
            sender.give_up(reason, out)
        self.senders.clear()
        self.receivers.clear()
        self.ready.clear()
        self.tombstones.clear()
        self.sync_requests.clear()
        self.early.clear()
        self.strangers.clear()
        self._timers.disarm(Timer.TICK)
