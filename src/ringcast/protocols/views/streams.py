"""The streams of one member in views that begin and end at a cut.

    state      Data of the view   Data of the next   Nack     Commit   Ack, Watermark, reports
    OPEN       as ever            kept for Begin     answer   as ever  as ever
    FROZEN     set aside          kept for Begin     answer   counts   dropped
    FLUSHING   up to the cut      kept for Begin     answer   counts   dropped
    FLUSHED    dropped            kept for Begin     answer   counts   dropped

    Freeze: → FROZEN, and answer what is held. Flush: → FLUSHING, and ask for what is lacking.
    Everything up to the cut is here: → FLUSHED. Begin: → OPEN.

What bears the tag of any other view is dropped: its sender is somewhere else, or it is late.

A Commit counts while frozen: its sender has seen that all members of the view hold what is up to
it, so all had it when they froze.

Flush: what a window lacks up to the cut is fetched (fetch.py). Nothing that a flush brings is
delivered or acknowledged before Begin: should the proposal come to nothing, it was not there.

Begin: the windows of those who came along go on; on a uniform stream all up to the cut may be
delivered. Windows of who did not come along end at the cut. Whoever comes from elsewhere gets
windows where its streams go on. The event follows when all before it is read (reading.py).
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, get_args

from ringcast.core.effects import Effects, Flushed, Left, Signal
from ringcast.core.view_change import (
    OWN,
    Begin,
    CutReached,
    Flush,
    Freeze,
    Frozen,
    SawView,
    Snapshot,
)
from ringcast.model import Member, Origin, Stream, View, ViewId
from ringcast.protocols.multicast_receiver import MulticastReceiver
from ringcast.protocols.stream import deliver
from ringcast.protocols.total.reading import count_messages
from ringcast.protocols.total.streams import OrderedStreams
from ringcast.protocols.views.fetch import Fetch
from ringcast.protocols.views.reading import UNREAD_WINDOWS, Parted, Reading, UnreadView, installed
from ringcast.wire.changes import Forwarded, InView, Want, tag_of
from ringcast.wire.frames import (
    Ack,
    Commit,
    Data,
    LogCommit,
    Nack,
    PeerRepair,
    StreamFrame,
    Watermark,
)

if TYPE_CHECKING:
    from collections.abc import Sequence, Set

    from ringcast.core.shared import Deadlines, GroupState
    from ringcast.core.view_change import Part
    from ringcast.events import Event
    from ringcast.protocols.views.reading import Half
    from ringcast.wire.frames import Frame

EARLY_MAX = 50
"""Data frames kept for a view that is about to begin; beyond this, repair brings them again."""


class Standing(Enum):
    OPEN = "open"
    FROZEN = "frozen"
    FLUSHING = "flushing"
    FLUSHED = "flushed"


class ViewStreams(OrderedStreams):
    """The state machine of one member."""

    frames: ClassVar[tuple[type[Frame], ...]] = get_args(StreamFrame)
    standing = Standing.OPEN
    is_paused = False
    """Nothing is to be read for now: what the view begins with is not here."""
    _tag = 0  # of the view
    _next_tag = 0  # of the one that was proposed; 0: none is

    def attach(self, group: GroupState, deadlines: Deadlines) -> None:
        super().attach(group, deadlines)
        self.reading = Reading()
        self.aside: deque[tuple[Member, Data]] = deque()
        self._reading_in: View | None = None
        self._parted = Parted()
        self.fetch = Fetch(self.me, self._half_of, deadlines.owner("flush"))

    # Inputs

    def receive(self, source: Member, frames: Sequence[Frame], now: int, out: Effects) -> None:
        self._datagram += 1
        for frame in frames:
            match frame:
                case InView(tag, purged):
                    self._said_in = tag
                    if purged is not None:
                        self._on_purged(source, purged, now)
                    if tag == self._next_tag:
                        out.signal(SawView(source, tag))
                case Want():
                    self.refused += not self.fetch.on_want(source, frame, out)
                case Forwarded():
                    self.refused += not self.fetch.on_forwarded(source, frame, now, out)
                    self._note_progress(now, out)
                case Data() if self._said_in == self._next_tag != 0 and self.fetch.includes(source):
                    self._keep(self.early, source, frame)
                case Data() if self._said_in == self._tag and self.standing is Standing.OPEN:
                    self._on_data(source, frame, now, out)  # who has a window is a peer
                case _ if self._said_in != self._tag or not self._is_peer(source):
                    self.refused += 1
                case Data():
                    self._on_late(source, frame, now, out)
                case Nack():
                    self._on_nack(source, frame, out)
                case Commit() | LogCommit():
                    self._on_commit(source, frame, now)
                case _ if self.standing is not Standing.OPEN:
                    self.refused += 1
                case Ack():
                    self._on_ack(source, frame, now, out)
                case Watermark():
                    self._on_watermark(source, frame, now, out)
                case PeerRepair():
                    self._on_peer_repair(frame, now, out)
                case _:
                    self._on_rounds(source, frame, now, out)
        log = self.entries
        if log is not None and (self.is_ordering or log.log.window.gate != log.seqno):
            self._go_on_total(now, out)
        if self.rounds is not None:
            self._report(now, out)

    def _on_purged(self, source: Member, purged: int, now: int) -> None:
        """Every member of the view has delivered its messages up to this."""
        receiver = self.receivers.get(Origin(source, Stream.FIFO))
        if receiver is not None and self._said_in == self._tag and self.standing is Standing.OPEN:
            receiver.on_stable(purged, now)

    def handle_signal(self, signal: Signal, now: int, out: Effects) -> None:
        match signal:
            case _ if self._is_closed:
                pass
            case Freeze(id, members):
                self._freeze(id, members, out)
            case Flush(_, part):
                self._flush(part, now, out)
            case Begin():
                self._begin(signal, now, out)
            case Flushed():
                self._acknowledge(now, out)

    def handle_timeout(self, now: int, out: Effects) -> None:
        if self.fetch.is_due(now):
            self._fetch(now, out)
        if self.standing is Standing.OPEN:
            super().handle_timeout(now, out)
        elif self.rounds is not None:
            self.rounds.handle_timeout(now)  # what is due is reported in the next view

    def take_ready(
        self, limit: int, now: int, out: Effects, *, only_own: bool = False
    ) -> list[Event]:
        events: list[Event] = []
        unread = self.reading.unread
        while not self.is_paused and (self.ready or unread):
            for half in list(unread[0].cuts) if unread else self._in_turn():
                is_ready = unread or half.origin in self.ready
                if not is_ready or (only_own and not self._is_own(half)):
                    continue
                room = min(limit, self.reading.room(half)) if unread else limit
                if room > 0:
                    self._turn += 1
                    limit -= self._take_from(half, room, now, events, out)
            read = self._announce() if unread else None
            if read is None:
                break
            events += read
        log = self.entries
        if log is not None and (self.is_ordering or log.log.window.gate != log.seqno):
            self._go_on_total(now, out)
        if self.rounds is not None:
            self._report(now, out)
        return events

    def _is_own(self, half: Half) -> bool:
        """In the one order one's own are not to be read before those of others."""
        return half.origin.sender == self.me and half.origin.stream is not Stream.TOTAL

    def take_own(self) -> list[Event]:
        """For a member that leaves: all its own messages that the others have delivered, or
        deliver whatever happens. It stops at a view that comes behind unread messages of others."""
        events: list[Event] = []
        read: list[Event] | None = []
        while read is not None and self._reading_in is not None:
            events += read
            for sending in filter(self._is_own, self.senders.values()):
                first, end = sending.window.delivered + 1, self.reading.end(sending)
                own = sending.take_last(end, is_handed_over=self.has_handed_over)
                if own:
                    view_id = self._reading_in.id
                    deliver(*sending.origin, sending.assembler, first, own, view_id, events)
                    self._note_ready(sending)
            read = self._announce()
        return events

    # Outputs

    @property
    def has_ready(self) -> bool:
        if self.is_paused:
            return False
        unread = self.reading.unread
        if not unread:
            return bool(self.ready)
        return self.reading.is_due or any(self.reading.room(half) > 0 for half in unread[0].cuts)

    @property
    def has_own_ready(self) -> bool:
        halves = () if self.is_paused else filter(self._is_own, self.senders.values())
        return any(self.reading.room(half) > 0 for half in halves)

    @property
    def is_flushed(self) -> bool:
        """Everything that was accepted has its seqnos: the flush before the next view brings it to
        all who go on, whether their applications have read it or not."""
        has_rest = any(sending.fragments.rest for sending in self.senders.values())
        return self._is_ordered and not has_rest

    def stats(self) -> dict[str, object]:
        return {
            **super().stats(),
            "standing": self.standing.value,
            "views_unread": len(self.reading.unread),
            "set_aside": len(self.aside),
        }

    def explain(self, now: int) -> list[str]:
        return super().explain(now) + self.fetch.explain() + self.reading.explain()

    def check_invariants(self) -> None:
        if self.standing is Standing.OPEN:
            super().check_invariants()
        assert max(len(self.aside), len(self.early)) <= EARLY_MAX
        self.fetch.check_invariants(is_flushing=self.standing is Standing.FLUSHING)

    # A change

    def _freeze(self, id: ViewId, members: tuple[Member, ...], out: Effects) -> None:
        self.fetch.promise(id, members)
        self._next_tag = tag_of(id)
        self.early.clear()
        self.standing = Standing.FROZEN
        for half in self._boxes():
            half.freeze()
        own = dict.fromkeys(self.streams, 0)
        own.update({stream: sending.window.high for stream, sending in self.senders.items()})
        held = {origin: half.window.received for origin, half in self.receivers.items()}
        held.update({Origin(self.me, stream): seqno for stream, seqno in own.items()})
        order = self._freeze_total(self._next_tag, held)
        out.signal(Frozen(id, Snapshot(own, held, order)))

    def _flush(self, part: Part, now: int, out: Effects) -> None:
        self.standing = Standing.FLUSHING
        self.fetch.start(part)
        aside, self.aside = self.aside, deque()
        for source, data in aside:
            self.fetch.add(Origin(source, data.stream), data, now)
        self._fetch(now, out)

    def _fetch(self, now: int, out: Effects) -> None:
        """Ask for what is lacking; if nothing is, say so."""
        assert self.fetch.proposal is not None
        if self.fetch.ask(now, out):
            self.standing = Standing.FLUSHED
            out.signal(CutReached(self.fetch.proposal))

    def _note_progress(self, now: int, out: Effects) -> None:
        if self.standing is Standing.FLUSHING and not self.fetch.lacking():
            self._fetch(now, out)

    def _report(self, now: int, out: Effects) -> None:
        """While frozen nothing is purged; everybody reports when the next view begins."""
        if self.standing is Standing.OPEN:
            super()._report(now, out)

    def _on_late(self, source: Member, data: Data, now: int, out: Effects) -> None:
        """Of the view that we are in; we have promised another."""
        if self.standing is Standing.FLUSHING:
            self.fetch.add(Origin(source, data.stream), data, now)
            self._note_progress(now, out)
        elif self.standing is Standing.FROZEN:
            self._keep(self.aside, source, data)

    def _begin(self, begin: Begin, now: int, out: Effects) -> None:
        if begin.settings is not None:
            self.configure(begin.settings)
        view, part = begin.view, begin.cut.part_of(self.me)
        is_first, together = not self.senders, frozenset(part.members)
        cuts: dict[Half, int] = {each: each.window.high for each in self.senders.values()}
        for origin, receiver in list(self.receivers.items()):
            cut = part.cuts.get(origin, OWN)
            cuts[receiver] = receiver.window.received if cut == OWN else cut
            receiver.window.open_gate(cuts[receiver])
            if origin.sender not in together or origin.sender not in view:
                receiver.remove()
                del self.receivers[origin]
                self.ready.discard(origin)
        if self.total is not None and self.total.entries is not None:
            self.total.take(cuts[self.total.entries.log], now, out)
        self.standing = Standing.OPEN
        self.fetch.end()
        self._tag, self._next_tag = tag_of(view.id), 0
        self.aside.clear()
        self.generation += 1
        self._parted.part(self.senders, together.intersection(view))
        self._enter(view, together, now, out)
        new = [member for member in view if member not in together]
        for origin in (Origin(member, stream) for member in view for stream in self.streams):
            if origin.sender in new or origin.stream is Stream.TOTAL:
                self._open_new(origin, begin, now)
        event = installed(
            begin,
            frozenset() if is_first else together,
            self._parted.meet(new, self.senders),
            self.group.previous,
        )
        event, start = self._begin_total(begin, event, now, out)
        self.reading.unread.append(UnreadView(view, [event], cuts, bool(new), start=start))
        if self.reading.is_blocked:
            out.signal(Left(f"not read through {len(self.reading.unread)} views"))
        elif self.reading.ended_bytes(self._boxes()) > UNREAD_WINDOWS * self.config.grown_bytes:
            out.signal(Left("not read: too much waits of members that have departed"))
        early, self.early = self.early, deque()
        for sender, data in early:  # a window may have opened for it
            self._datagram += 1
            self._on_data(sender, data, now, out)
        self._go_on_total(now, out)

    def follow_view(self, events: Sequence[Event], *, pauses: bool) -> None:
        """Behind the view that has just begun these are to be read; and, if it `pauses`, nothing
        more until `go_on`."""
        last = self.reading.unread[-1]
        last.events += events
        last.pauses = pauses

    def announce(self, out: Effects) -> None:
        """Tell of the views before which nothing is left to be read."""
        read = self._announce()
        while read is not None:
            out.events.extend(read)
            read = self._announce()

    def go_on(self) -> int:
        """What follows on the view that was announced last may be read; the counter of that."""
        self.is_paused = False
        assert self._reading_in is not None
        return self._reading_in.counter

    def _enter(self, view: View, together: Set[Member], now: int, out: Effects) -> None:
        """Those who come along from the view before."""
        if self.rounds is not None:
            self.rounds.install_view()
        for stream in self.streams:
            sending = self.senders.get(stream)
            if sending is None and stream is Stream.TOTAL and view.coordinator != self.me:
                continue  # nobody else relays
            if sending is None:
                timers = self.deadlines.owner(("sent", stream))
                share = self.receive_buffer // max(1, len(view) - 1)
                sending = self.senders[stream] = self.sending(
                    *(self.me, stream, self.config, view, self._fragment_bytes, timers),
                    self._slow_member_timeout_s,
                    min(share, self.allowed_bytes),
                )
                sending.fragments.resize(self._fragment_bytes, self._datagram_bytes)
            sending.begin(view, together, now, out)
            self._note_ready(sending)
        for receiver in self.receivers.values():
            receiver.begin(now)
            self._find_helpers(receiver, view)

    def _announce(self) -> list[Event] | None:
        """What follows on all that was read."""
        unread = None if self.is_paused else self.reading.announce()
        if unread is None:
            return None
        self._reading_in = unread.view
        if self.total is not None and unread.start is not None:
            self.total.reader.begin(unread.start)
        self.is_paused = unread.pauses
        return unread.events

    def _take_from(self, box: Half, limit: int, now: int, events: list[Event], out: Effects) -> int:
        first, taken = box.window.delivered + 1, 0
        is_ordered = box.origin.stream is Stream.TOTAL
        if is_ordered:
            limit, taken = count_messages(box, limit)
        if isinstance(box, MulticastReceiver):
            payloads = box.take_ready(limit, now, self._allowance(now), out)
            is_current = self.receivers.get(box.origin) is box  # its window has not ended
        else:
            payloads = box.take_ready(limit, now, out)
            is_current = True
        if is_current and not box.window.ready:
            self.ready.discard(box.origin)
        if payloads:
            assert self._reading_in is not None
            if is_ordered:
                assert self.total is not None
                self.total.reader.read(first, payloads, box.assembler, self._reading_in, events)
                return taken
            deliver(*box.origin, box.assembler, first, payloads, self._reading_in.id, events)
            if self.rounds is not None and is_current and box.origin.stream is Stream.FIFO:
                size = sum(map(len, payloads))
                last = box.window.delivered
                self.rounds.delivered(box.origin.sender, last, size, self.receive_buffer, now)
        return len(payloads)

    def _half_of(self, origin: Origin) -> Half | None:
        if origin.sender == self.me:
            return self.senders.get(origin.stream)
        return self.receivers.get(origin)

    def _shut(self, reason: str, out: Effects) -> None:
        super()._shut(reason, out)
        self.standing = Standing.OPEN
        self.is_paused = False
        self.reading.unread.clear()
        self.aside.clear()
        self.fetch.end()

    def _keep(self, kept: deque[tuple[Member, Data]], source: Member, data: Data) -> None:
        if len(kept) < EARLY_MAX:
            kept.append((source, data.kept()))
        else:
            self.early_dropped += 1
