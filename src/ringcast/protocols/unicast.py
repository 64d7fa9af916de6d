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
On UnicastData, SyncOk, Close: what comes from others (unicast_receiving.py).
On UnicastAck, UnicastNack, SyncAck: to the UnicastSender, if it is on that connection.
On Sync: to the UnicastSender of that epoch. If there is none, the stream has ended: Close says so.
Every tick (τ) while there is anything to wait for: the ticks of senders; sync requests.
On view: connections with members that are not in it begin to close, and who waits for room there
    is told to try again: that is then Undeliverable. They may go on if both sides use them; but a
    peer whose address another incarnation has taken is gone.
On close: acknowledge what was taken, report what is not acknowledged. Who leaves takes before that
    what it has sent to itself (`take_own`), and acknowledges before it says goodbye (Flushed).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, get_args

from ringcast.core.effects import Effects, Flushed, Signal
from ringcast.core.shared import Deadlines, GroupState
from ringcast.core.view_change import Begin
from ringcast.errors import GroupClosed, Undeliverable, UsageError
from ringcast.events import Delivered, Event, Writable
from ringcast.model import FIRST_CONN_ID, SEQNO_MAX, SYSTEM_EPOCH, Conn, Run, Stream, alike
from ringcast.protocols.connection import State
from ringcast.protocols.stream import Receipts
from ringcast.protocols.unicast_receiving import LOOPBACK_EPOCH, Timer, UnicastReceiving
from ringcast.protocols.unicast_sender import UnicastSender
from ringcast.texts import counted
from ringcast.window.fragmenter import check_payloads
from ringcast.window.send import SendWindow
from ringcast.wire import frames as wire
from ringcast.wire.members import is_no_longer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.config import UnicastConfig
    from ringcast.model import Member, View
    from ringcast.wire.frames import Frame

    Said = wire.UnicastAck | wire.UnicastNack | wire.SyncAck

REPLACED_MAX = 256
"""Members whose address another incarnation has taken: what still comes of them is late."""

SYNC_SPARE = 8
"""Bytes that a Sync has more than the Close that answers it."""

_TICK: Final = Timer.TICK  # to look up a member of an Enum takes Python a while


class ReliableUnicast(UnicastReceiving):
    """The state machine of one member: both directions, all peers."""

    frames: ClassVar[tuple[type[Frame], ...]] = get_args(wire.UnicastFrame)
    sender: ClassVar[type[UnicastSender]] = UnicastSender

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
        super().__init__(me, config, datagram_bytes, max_message_bytes, is_system=is_system)
        self.senders: dict[Member, UnicastSender] = {}
        self.loopback = SendWindow(
            config.capacity, max_bytes=config.window_bytes, datagram_bytes=datagram_bytes
        )
        """Messages to oneself."""
        self._receipts = Receipts()
        """For those."""
        self.ticks = 0
        self._fragment_bytes = fragment_bytes
        self._replaced: dict[Member, None] = {}
        self._is_closed = False
        self._is_loopback_blocked = False
        self._turn = 0  # who is first to be taken from, so that nobody starves
        self.attach(GroupState(me), Deadlines())

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
            accepted = self.loopback.append_run(payloads)
            self._is_loopback_blocked |= accepted < len(payloads)
            self.ready.add(self.me)
            return accepted
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
                    f"{to} is not in the view, with {entry.backlog} waiting for it: no more is "
                    f"sent to it until it is back"
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
        batch: list[wire.UnicastData] = []
        for frame in frames:
            match frame:
                case wire.UnicastData():
                    batch.append(frame)
                case wire.UnicastAck() | wire.UnicastNack() | wire.SyncAck():
                    self._on_said(source, frame, now, out)
                case wire.Close():
                    self._on_close(source, frame)
                case wire.Sync():
                    self._on_sync(source, frame, now, out)
                case wire.SyncOk():
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

    def close_to(self, peer: Member, now: int) -> None:
        """Begin to close what goes to this peer; a send takes it up again."""
        if peer in self.senders:
            self.senders[peer].end(now)

    def drop_to(self, peer: Member) -> None:
        """Forget what goes to this peer, without a word; a send begins anew."""
        if peer in self.senders:
            self.senders.pop(peer).remove()

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
                    out.datagram(sender.peer, wire.Close(sender.conn))
            self._shut(reason, out)

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
            **super().stats(),
            "loopback": self.loopback.size,
        }

    def explain(self, now: int) -> list[str]:
        reasons = [reason for entry in self.senders.values() for reason in entry.explain(now)]
        reasons += super().explain(now)
        if own := self.loopback.ready:
            of = "of this member to itself"
            what = counted(own, f"message {of} waits", f"messages {of} wait")
            reasons.append(f"{what} for its application")
        return reasons

    def check_invariants(self) -> None:
        super().check_invariants()
        self.loopback.check_invariants()
        assert (self._epoch >= SYSTEM_EPOCH) == self._is_system
        for peer, sender in self.senders.items():
            assert sender.conn.epoch <= self._epoch
            assert peer != self.me
            sender.check_invariants()
        ready = {peer for peer, receiver in self.receivers.items() if receiver.window.ready}
        own = {self.me} if self.loopback.ready else set()
        assert self._is_closed or self.ready == ready | own
        assert self._timers.is_armed(Timer.TICK) or not self._is_busy

    # Frames for a sender

    def _on_said(self, source: Member, said: Said, now: int, out: Effects) -> None:
        """It counts on the current connection alone."""
        entry = self.senders.get(source)
        if entry is None or not entry.is_current(said.conn):
            self.stale += 1
            return
        entry.heard(now)
        if isinstance(said, wire.UnicastNack):
            entry.on_nack(said, out)
        elif isinstance(said, wire.UnicastAck):
            if said.delivered > entry.window.high:
                self.refused += 1
            else:
                entry.on_ack(said, now, out)

    def _on_sync(self, source: Member, sync: wire.Sync, now: int, out: Effects) -> None:
        entry = self.senders.get(source)
        if entry is not None and entry.conn.epoch == sync.conn.epoch:
            entry.on_sync(sync, now, out)
            self._arm_tick(now)
        elif sync.conn.epoch <= self._epoch:
            self.stale += 1
            if self._is_member(source) or is_no_longer(self.me, source, SYNC_SPARE):
                out.datagram(source, wire.Close(sync.conn))
        else:
            self.refused += 1

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
        self._ask_again(out)
        self._arm_tick(now)

    # Delivery

    def _in_turn(self) -> list[Member]:
        """Whoever has something ready; who was not reached last time comes first."""
        peers = [peer for peer in (*self.receivers, self.me) if peer in self.ready]
        start = self._turn = self._turn % len(peers)
        return peers[start:] + peers[:start]

    def _take_own(self, limit: int, events: list[Event], out: Effects) -> int:
        """How many messages to oneself were taken."""
        assert self.group.view is not None
        window = self.loopback
        first, payloads = window.delivered + 1, window.take_ready(limit)
        for at, messages in alike(first, payloads):
            run = Run(Stream.FIFO, at, messages)
            events.append(Delivered(self.me, run, self.group.view.id, LOOPBACK_EPOCH))
        window.purge(window.delivered)
        if not window.ready:
            self.ready.discard(self.me)
        self._receipts.look(lambda _, seqno: seqno <= window.low, out)
        if self._is_loopback_blocked and not window.is_full:
            self._is_loopback_blocked = False
            out.event(Writable(self.me))
        return len(payloads)

    def _shut(self, reason: str, out: Effects) -> None:
        self._is_closed = True
        for sender in self.senders.values():
            sender.remove()
            sender.stream.receipts.clear()  # it is not the peer that is gone
            sender.give_up(reason, out)
        self.senders.clear()
        self._forget_all()
