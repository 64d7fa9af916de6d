"""What comes from other members by reliable unicast: windows, and how a lost one is found again.

On UnicastData: a datagram's runs are one batch. Only those of its newest connection count, and the
    one that opens a stream goes first. They go to the UnicastReceiver (unicast_receiver.py) of that
    connection. Without one: what comes of who is not in the view, and was not when its stream
    began, waits for a view with it (early.py); of a member the first message of a stream that
    is newer than all that is known opens it, and with it goes what overtook it (early.py). Anything
    else that is not older asks for a sync, and is kept if a first message may yet open its
    connection; it goes with the sync request. Older runs are late: nothing.
On SyncOk, if it answers the sync request that is outstanding: go on after `low`, or after what was
    delivered before if that is more (the tombstone knows), on the new connection. What the sender
    has purged in between is reported. Confirm with a SyncAck, also if the SyncOk comes again.
On Close of the current connection: forget it, but for a tombstone.
Every tick: ask what is to be asked. A sync request waits for the first tick, so that reordering
    alone asks nothing, and is given up after `SYNC_TICKS_MAX` ticks; new data then ask anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import auto
from typing import TYPE_CHECKING, ClassVar

from ringcast.core.effects import Effects, Layer
from ringcast.core.shared import Deadlines, GroupState, Named, Timers
from ringcast.errors import UsageError
from ringcast.events import Event, GapSkipped
from ringcast.model import FIRST_CONN_ID, SYSTEM_EPOCH, Conn, Member, Stream
from ringcast.protocols.early import Early, Strangers
from ringcast.protocols.stream import deliver, seconds
from ringcast.protocols.unicast_receiver import Tombstone, UnicastReceiver
from ringcast.protocols.unicast_sender import SYNC_TICKS_MAX
from ringcast.wire.frames import Close, Sync, SyncAck, SyncOk, UnicastData

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ringcast.config import UnicastConfig

WINDOWS_MAX = 256
SYNC_REQUESTS_MAX = 256
TOMBSTONES_MAX = 1024
"""Beyond these no window opens and no sync request is asked but for members of the view, and the
oldest tombstone goes: a flood of strangers' connections costs no more memory than this. Tombstones
do not expire: if our clock leaps ahead, the sender still remembers."""

EPOCH_LEAP_MAX = 1 << 32
"""How far an epoch may be above the last that is known of its sender."""

LOOPBACK_EPOCH = 1
"""The epoch of messages to oneself; those to others come after it."""


class Timer(Named):
    TICK = auto()
    """The retransmission task."""


@dataclass(slots=True)
class SyncRequest:
    """A sync that is outstanding: where does this sender stand?"""

    conn: Conn
    """What came and fitted no window; only its epoch matters for the answer."""
    nonce: int
    since: int
    asked: int = 0


class UnicastReceiving(Layer):
    """What comes to one member, from all its peers."""

    receiver: ClassVar[type[UnicastReceiver]] = UnicastReceiver

    def __init__(
        self,
        me: Member,
        config: UnicastConfig,
        datagram_bytes: int,
        max_message_bytes: int,
        *,
        is_system: bool,
    ) -> None:
        self.me = me
        self.config = config
        self.receive_buffer = config.window_bytes
        """Bytes that may be under way to this member. A transport sets it to what its socket
        buffer holds."""
        self.receivers: dict[Member, UnicastReceiver] = {}
        self.ready: set[Member] = set()
        """Of whom messages wait for the application."""
        self.tombstones: dict[Member, Tombstone] = {}
        self.sync_requests: dict[Member, SyncRequest] = {}
        self.early = Early()
        self.strangers = Strangers()
        self.stale = 0  # frames of connections that are over
        self.refused = 0  # acks for what was never sent; windows and sync requests beyond the bound
        self._datagram_bytes = datagram_bytes
        self._max_message_bytes = max_message_bytes
        self._tau = round(config.xmit_interval_s * 1e9)
        self._epoch = SYSTEM_EPOCH if is_system else LOOPBACK_EPOCH
        self._first_epoch = self._epoch
        self._is_system = is_system
        self._nonce = 0
        self._datagram = 0  # how many have come, as far as messages are in them

    def attach(self, group: GroupState, deadlines: Deadlines) -> None:
        super().attach(group, deadlines)
        self._timers: Timers[Timer] = deadlines.owner(self._owner("ticks"))

    def _owner(self, what: str, peer: Member | None = None) -> tuple[str, str, Member | None]:
        """The name of an owner of timers."""
        return "channel" if self._is_system else "unicast", what, peer

    # Inputs

    def sync(self, peer: Member, now: int) -> None:
        """An operator's wish: find out where this sender stands, and go on from there."""
        known = self._known(peer)
        if known is None:
            raise UsageError(f"nothing has come from {peer} yet: there is nothing to sync")
        self._ask(peer, known, now)

    def drop_from(self, peer: Member) -> None:
        """Forget the window for what comes from this peer, at once; a sync makes a new one."""
        self.early.forget(peer)
        if peer in self.receivers:
            self._bury(peer, is_final=False)

    def take_next(self, source: Member, conn: Conn, seqno: int, now: int) -> bool:
        """`receive` of one whole message and `take_all` in one step, in the usual case: it is the
        next of a peer that nothing is missing of. False: nothing has happened."""
        entry = self.receivers.get(source)  # closed, or replaced by another, it has none
        if entry is None or self.group.view is None or conn != entry.conn:
            return False
        return entry.take_next(seqno, now)

    # Outputs

    def stats(self) -> dict[str, object]:
        return {
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
        }

    def explain(self, now: int) -> list[str]:
        reasons = [reason for entry in self.receivers.values() for reason in entry.explain(now)]
        return reasons + [
            f"asking {peer} where its stream {request.conn.epoch} to this member stands, since "
            f"{seconds(now - request.since)}: asked {request.asked} of {SYNC_TICKS_MAX} times"
            for peer, request in self.sync_requests.items()
        ]

    def check_invariants(self) -> None:
        assert len(self.tombstones) <= TOMBSTONES_MAX
        for peer, receiver in self.receivers.items():
            assert peer not in self.tombstones
            receiver.check_invariants()
        for peer, sync_request in self.sync_requests.items():
            known = self._known(peer)
            assert known is None or sync_request.conn.epoch >= known.epoch
            assert sync_request.nonce <= self._nonce
        self.early.check_invariants()
        self.strangers.check_invariants()
        for peer, conn in self.early.conns().items():
            assert conn.epoch == self.sync_requests[peer].conn.epoch

    # Frames

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
            out.event(GapSkipped(source, entry.conn.epoch, entry.window.delivered + 1, ok.low))
        out.datagram(source, SyncAck(ok.conn, ok.nonce))
        entry.resume(ok, now, self._allowance(now), out)
        self._note_ready(entry)

    def _is_awaited(self, source: Member, ok: SyncOk) -> bool:
        """Whether this answers the outstanding sync request. Any other may have been on its way for
        long, and what it tells may be long out of date."""
        asked = self.sync_requests.get(source)
        return asked is not None and (asked.nonce, asked.conn.epoch) == (ok.nonce, ok.conn.epoch)

    def _reopen(self, source: Member, ok: SyncOk, now: int, out: Effects) -> UnicastReceiver:
        """A window where this stream stands: after what was delivered before, if that is known."""
        low, epoch, tombstone = ok.low, ok.conn.epoch, self._remembered(source, ok.conn.epoch)
        parts: tuple[bytes, ...] | None = None if ok.is_middle else ()
        if tombstone is not None and tombstone.delivered < low:
            out.event(GapSkipped(source, epoch, tombstone.delivered + 1, low))
        elif tombstone is not None:
            low, parts = tombstone.delivered, tombstone.parts
        return self._open(source, ok.conn, low, parts, now)

    def _remembered(self, source: Member, epoch: int) -> Tombstone | None:
        """How far this stream had come when its window was dropped; None: nobody knows."""
        tombstone = self.tombstones.get(source)
        return None if tombstone is None or tombstone.conn.epoch != epoch else tombstone

    # Windows

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
        # Halves of large messages are kept, but only so many bytes of them. Without its parts a
        # message that has begun can not be delivered.
        size = sum(tomb.size for tomb in tombs.values())
        for tomb in tombs.values():
            if size <= self._max_message_bytes:
                break
            size -= tomb.size
            if tomb.parts:
                tomb.parts, tomb.size = None, 0

    # Sync requests

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
        self._timers.arm_if_idle(Timer.TICK, now + self._tau)

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

    def _ask_again(self, out: Effects) -> None:
        for peer, sync_request in list(self.sync_requests.items()):
            if sync_request.asked >= SYNC_TICKS_MAX:
                self._drop_sync_request(peer)
            else:
                sync_request.asked += 1
                out.datagram(peer, Sync(sync_request.conn, sync_request.nonce))

    # Delivery

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

    def _acknowledge(self, now: int, out: Effects) -> None:
        """Now, and not after the usual delay."""
        allowance = self._allowance(now)
        for receiver in self.receivers.values():
            receiver.flush_ack(allowance, out)

    def _allowance(self, now: int) -> int:
        """An equal share of the receive buffer for each peer heard of late."""
        active = sum(entry.last_data > now - self._tau for entry in self.receivers.values())
        share = min(self.receive_buffer // max(1, active), self.config.in_flight_bytes)
        return max(share, self._datagram_bytes)

    def _forget_all(self) -> None:
        for receiver in self.receivers.values():
            receiver.remove()
        self.receivers.clear()
        self.ready.clear()
        self.tombstones.clear()
        self.sync_requests.clear()
        self.early.clear()
        self.strangers.clear()
        self._timers.disarm(Timer.TICK)
