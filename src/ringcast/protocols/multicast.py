"""ReliableMulticast: every member delivers each sender's messages in order, once, without gaps.

A window per sender is freed when all have delivered what is in it. So flow control is built in: a
sender can be ahead of the slowest member by one window and no more. How it learns what all have
taken is for the group to choose (config.purge): from an ack of each, which JGroups calls NAKACK4,
or by report (stability.py), as in its NAKACK2 and NAKACK3.

What holds under loss, duplication, reordering, crashes and any sequence of views: per (sender,
stream) a member delivers offset+1, offset+2, … (N1), once each (N2); a sender keeps what some
current member has not delivered (N5); memory is bounded by the windows (G5). Once the network
works, all messages of a live sender reach all live members of its view, the last one too (N-L1),
and its window drains (N-L2). If a sender dies, survivors hold prefixes of its messages that may
differ in length (N11); not so where they retain messages (uniform.py).

Frames: Data and Watermark to the group; Ack and Nack to one sender; Data again to whoever asked, or
to all with `repair_to_all`.

On send, Ack, Nack: the MulticastSender of that stream (multicast_sender.py).
On Data, Watermark, take: the MulticastReceiver of that sender and stream (multicast_receiver.py).
    Data of a sender without a window waits in a small queue: the view or the digest that opens one
    may be on its way.
On view: forget the departed: their windows with what is in them (N8), unless they are taken over
    (uniform.py), their acks, their queue.
    New members count at every sender at once (the freeze). A view without oneself closes.
    With members that come from another group (a merge), or back to us, it is each sender who says
    where they begin (multicast_sender.py).
On digest: open windows for members that are new to me (N9). One that exists never moves.
On Begin of a member: open a window there; if there is one already, it stays. But a Begin from a
    later view than what opened it: the sender had lost sight of us meanwhile and has purged
    what we lack, so this window ends and another opens. One from before this sender last departed
    from us is late. Say Begun.
On PeerRepairRequest: send on what is retained here of somebody else's messages (PeerRepair).
On close: acknowledge what was taken, so that no sender waits for an ack that was only delayed. Who
    leaves takes before that what is its own and all others have delivered (`take_own`). It also
    acknowledges before it says goodbye (Flushed): after that its acks would count no more.

A frame counts only if its sender is in my view: the departed are deaf and mute (N7, N8).
"""

from __future__ import annotations

from collections import deque
from enum import auto
from typing import TYPE_CHECKING, ClassVar

from ringcast.config import CAPACITY_LIMIT
from ringcast.core.effects import (
    DigestTaken,
    DigestWanted,
    Flushed,
    Layer,
    NewerView,
    Reunited,
    Settled,
)
from ringcast.core.shared import Deadlines, GroupState, Named
from ringcast.errors import GroupClosed, UsageError
from ringcast.events import Closed
from ringcast.model import Digest, Origin, Purge, Stream
from ringcast.protocols.intake import deliver
from ringcast.protocols.multicast_receiver import MulticastReceiver
from ringcast.protocols.multicast_sender import MulticastSender
from ringcast.protocols.stability import StabilityRounds
from ringcast.protocols.uniform import Uniform
from ringcast.window.fragmenter import check_payloads
from ringcast.window.windows import room_of
from ringcast.wire.frames import (
    Ack,
    Begin,
    Begun,
    Commit,
    CommitWanted,
    Data,
    EstateRun,
    EstateWanted,
    Nack,
    PeerRepair,
    PeerRepairRequest,
    StabilityQuery,
    StabilityReport,
    Stable,
    Standing,
    Takeover,
    Watermark,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ringcast.config import MulticastConfig
    from ringcast.core.effects import Effects, Signal
    from ringcast.core.shared import Timers
    from ringcast.events import Event
    from ringcast.model import Member, View, ViewId
    from ringcast.window.acks import AckTable, AgreedMark
    from ringcast.window.windows import ReceiveWindow, SendWindow
    from ringcast.wire.frames import Frame

EARLY_MAX = 50
"""Data frames kept from senders without a window; beyond this, repair brings them again."""

ASK_NS = 40_000_000
"""How often senders are asked what they have committed, while a joiner waits for that."""


class Timer(Named):
    DIGEST_REQUEST = auto()
    """A digest is wanted, and not everybody has said yet what it has committed."""


class ReliableMulticast(Layer):
    """The state machine of one member."""

    frames: ClassVar[tuple[type[Frame], ...]] = (
        Data,
        Ack,
        Nack,
        Watermark,
        Begin,
        Begun,
        Commit,
        CommitWanted,
        Takeover,
        Standing,
        StabilityReport,
        StabilityQuery,
        Stable,
        PeerRepairRequest,
        PeerRepair,
    )
    sending: ClassVar[type[MulticastSender]] = MulticastSender
    receiver: ClassVar[type[MulticastReceiver]] = MulticastReceiver
    estates: ClassVar[type[Uniform]] = Uniform
    stability: ClassVar[type[StabilityRounds]] = StabilityRounds

    def __init__(
        self,
        me: Member,
        config: MulticastConfig,
        fragment_bytes: int,
        *,
        streams: tuple[Stream, ...] = (Stream.FIFO,),
        slow_member_timeout_s: float = 0.0,
    ) -> None:
        """`slow_member_timeout_s`: report who holds a sender up for so long; 0: nobody."""
        self.me = me
        self.config = config
        self.streams = streams
        self.receive_buffer = config.window_bytes
        """Bytes that may be under way to this member, from all senders together. A transport
        sets it to what its socket buffer holds."""
        self.generation = 0
        """Rises whenever a window opens or is dropped: whoever watches need not look each time."""
        self.refused = 0  # frames of strangers, and acks for what was never sent
        self.early_dropped = 0
        self.peer_repaired = 0  # messages of others retransmitted
        self._peer_repaired_to: dict[Member, int] = {}  # to each, since the last report
        self._fragment_bytes = fragment_bytes
        self._datagram_bytes = config.datagram_bytes
        self._datagram_room = room_of(config.datagram_bytes, config.bulk_bytes)
        self._slow_member_timeout_s = slow_member_timeout_s
        self._in_flight_bytes = config.in_flight_bytes
        self._tau = round(config.xmit_interval_s * 1e9)
        self._is_closed = False
        self._senders: dict[Stream, MulticastSender] = {}
        self._last_sent: dict[Stream, int] = {}  # once there are none
        self._receivers: dict[Origin, MulticastReceiver] = {}
        self._ready: set[Origin] = set()  # in whose windows messages wait for the application
        self._early: deque[tuple[Member, Data]] = deque()
        self.uniform = self.estates(me, config)
        """What departed senders have left on the uniform stream,"""
        self.retained = Uniform(me, config, Stream.FIFO)
        """and on the other, if it is retained."""
        self.inherited = tuple(
            stream
            for stream in streams
            if stream is Stream.UNIFORM or config.purge is Purge.RETAINED
        )
        self._left = [self._left_on(stream) for stream in self.inherited]
        self.rounds = None if config.stability is None else self.stability(me, config)
        self._joiners: tuple[Member, ...] | None = None  # who waits for a digest,
        self._promised: Digest | None = None  # and for which one, if that is known
        self._was_settled = True
        self._reunited: tuple[Member, ...] = ()  # in the view that is about to be installed
        self._turn = 0  # who is first to be taken from, so that nobody starves
        self._datagram = 0  # how many have come
        self.attach(GroupState(me), Deadlines())

    def attach(self, group: GroupState, deadlines: Deadlines) -> None:
        super().attach(group, deadlines)
        self._timers: Timers[Timer] = deadlines.owner("multicast")
        for left in (self.uniform, self.retained):
            left.attach(group, deadlines)
        if self.rounds is not None:
            self.rounds.attach(group, deadlines)

    # Inputs

    def resize(self, fragment_bytes: int, datagram_bytes: int) -> None:
        """Datagrams hold more or less from now on."""
        self._fragment_bytes, self._datagram_bytes = fragment_bytes, datagram_bytes
        self._datagram_room = room_of(datagram_bytes, self.config.bulk_bytes)
        for sending in self._senders.values():
            sending.fragments.resize(fragment_bytes, datagram_bytes)

    def send(self, payloads: Sequence[bytes], stream: Stream, now: int, out: Effects) -> int:
        """Send to the group; return how many messages were accepted, from the first on.

        Fewer than all: the window is full, and a Writable event follows when there is room.
        """
        if self._is_closed:
            raise GroupClosed("this member has left its group")
        sending = self._senders.get(stream)
        if sending is None:
            why = "not in a view yet" if self.group.view is None else "not a stream of this group"
            raise UsageError(f"cannot send on {stream.name.lower()}: {why}")
        check_payloads(payloads, self.config.max_message_bytes)
        if self.rounds is not None and stream is Stream.FIFO:
            self.rounds.on_data(now)
        if not payloads:
            return 0
        accepted = sending.send(payloads, now, out)
        self._note_ready(sending)
        return accepted

    def receive(self, source: Member, frames: Sequence[Frame], now: int, out: Effects) -> None:
        self._datagram += 1
        for frame in frames:
            match frame:
                case Data():
                    self._on_data(source, frame, now, out)
                case Ack():
                    self._on_ack(source, frame, now, out)
                case Nack():
                    self._on_nack(source, frame, out)
                case Watermark():
                    self._on_watermark(source, frame, now, out)
                case Begin():
                    self._on_begin(source, frame, now, out)
                case Begun():
                    self._on_begun(source, frame)
                case Commit():
                    self._on_commit(source, frame, now)
                case CommitWanted():
                    self._on_commit_wanted(source, frame, out)
                case Takeover() if not self._is_closed:
                    self._left_on(frame.stream).on_takeover(source, frame, now, out)
                case Standing():
                    self._left_on(frame.stream).on_standing(source, frame, now, out)
                case PeerRepair():
                    self._on_peer_repair(source, frame, now, out)
                case _:
                    self._on_rounds(source, frame, now, out)
        self._answer_digest_request(now, out)

    def receive_message(
        self, source: Member, message: EstateWanted | EstateRun, now: int, out: Effects
    ) -> None:
        """What travels from one member to another in its turn and once."""
        match message:
            case EstateWanted():
                self._left_on(message.stream).on_wanted(source, message, out)
            case EstateRun():
                self._left_on(message.stream).on_run(source, message, now, out)
        self._answer_digest_request(now, out)

    def install_view(self, view: View, now: int, out: Effects) -> None:
        if self._is_closed:
            return
        if self.me not in view:
            self._shut(f"{view} goes on without this member", out)
            return
        departed = [member for member in self.group.previous or () if member not in view]
        self._forget(departed, view, now)
        self._joiners = self._promised = None
        reunited = [member for member in self._reunited if member in view]
        self._reunited = ()
        self.generation += 1
        for stream in self.streams:
            if stream in self._senders:
                self._senders[stream].set_members(view, reunited, now, out)
                self._note_ready(self._senders[stream])
            else:
                sending = self._senders[stream] = self.sending(
                    self.me,
                    stream,
                    self.config,
                    view,
                    self._fragment_bytes,
                    self.deadlines.owner(("sent", stream)),
                    self._slow_member_timeout_s,
                    self._share(len(view) - 1),
                )
                sending.fragments.resize(self._fragment_bytes, self._datagram_bytes)
        for receiver in self._receivers.values():
            self._enter_view(receiver, view, now)
        for left in self._left:
            left.install_view(view, now, out)
        if self.rounds is not None:
            self.rounds.install_view()
        self._answer_digest_request(now, out)

    def install_digest(self, digest: Digest, now: int, out: Effects) -> None:
        for origin, offset in digest.entries.items():
            is_new = origin.stream in self.streams and origin not in self._receivers
            if is_new and self._is_peer(origin.sender):
                parts = digest.partials.get(origin, ())
                assert self.group.view is not None
                self._open(origin, offset, parts, self.group.view.counter, now)
        self._replay_early(now, out)

    def handle_signal(self, signal: Signal, now: int, out: Effects) -> None:
        match signal:
            case DigestWanted(joiners):
                self._joiners = joiners
                self._promised = None
                self._timers.arm(Timer.DIGEST_REQUEST, now)
                self._answer_digest_request(now, out)
            case Reunited(members):
                self._reunited = members
            case Flushed():
                self._acknowledge(now, out)

    def take_ready(
        self, limit: int, now: int, out: Effects, *, only_own: bool = False
    ) -> list[Event]:
        """Up to `limit` messages, from all senders in turn: calling this is delivery. `only_own`:
        one's own and no others."""
        events: list[Event] = []
        boxes = [*self._senders.values()] if only_own else self._in_turn()
        for box in boxes:
            if limit <= 0:
                break
            self._turn += 1
            if box.origin in self._ready:
                limit -= self._take_from(box, limit, now, events, out)
        for left in () if only_own else self._left:
            if left.estates:
                limit = left.take_ready(limit, now, events, out)
        self._answer_digest_request(now, out)
        return events

    def _take_from(
        self,
        box: MulticastSender | MulticastReceiver,
        limit: int,
        now: int,
        events: list[Event],
        out: Effects,
    ) -> int:
        """How many messages were taken."""
        first = box.window.delivered + 1
        if isinstance(box, MulticastReceiver):
            payloads = box.take_ready(limit, now, self._allowance(now), out)
        else:
            payloads = box.take_ready(limit, now, out)
        self._note_ready(box)
        if payloads:
            assert self.group.view is not None
            deliver(*box.origin, box.assembler, first, payloads, self.group.view.id, events)
            if self.rounds is not None and box.origin.stream is Stream.FIFO:
                size = sum(map(len, payloads))
                last = box.window.delivered
                self.rounds.delivered(box.origin.sender, last, size, self.receive_buffer, now)
        return len(payloads)

    def take_inherited(self, now: int, out: Effects) -> list[Event]:
        """All that departed senders have left and that is ready, however much it is."""
        events: list[Event] = []
        for left in self._left:
            left.take_ready(CAPACITY_LIMIT, now, events, out)
        if events:
            self._answer_digest_request(now, out)
        return events

    def take_own(self) -> list[Event]:
        """One's own messages that all others have delivered, however many: for who is about to
        go."""
        events: list[Event] = []
        for stream, sending in self._senders.items():
            first = sending.window.delivered + 1
            payloads = sending.take_acked()
            if payloads:
                view = self.group.view
                assert view is not None
                deliver(self.me, stream, sending.assembler, first, payloads, view.id, events)
                self._note_ready(sending)
        return events

    def handle_timeout(self, now: int, out: Effects) -> None:
        for sending in self._senders.values():
            sending.handle_timeout(now, out)
        allowance = self._allowance(now)
        for receiver in self._receivers.values():
            receiver.handle_timeout(now, allowance, out)
        for left in self._left:
            left.handle_timeout(now, out)
        if self._timers.take(Timer.DIGEST_REQUEST, now):
            self._ask_what_is_awaited(now, out)
        if self.rounds is not None:
            self.rounds.handle_timeout(now)
            self._answer_digest_request(now, out)

    def close(self, reason: str, now: int, out: Effects) -> None:
        if not self._is_closed:
            self._acknowledge(now, out)
            self._shut(reason, out)

    def _acknowledge(self, now: int, out: Effects) -> None:
        """Now, and not after the usual delay."""
        allowance = self._allowance(now)
        for receiver in self._receivers.values():
            receiver.close(allowance, out)

    def ask_receipt(self, number: int, stream: Stream, *, is_flush: bool) -> int | None:
        """Confirmed follows, under the number that is returned, when all other members of the view
        have delivered what was sent so far. None: they have."""
        sending = self._senders.get(stream)
        return None if sending is None else sending.ask_receipt(number, is_flush=is_flush)

    def stabilize(self, now: int, out: Effects) -> None:
        """Find out now what everybody has, without waiting for the interval."""
        if self.rounds is None:
            raise UsageError(
                "this group acknowledges messages: give it `stability` to report on them"
            )
        self.rounds.want(out)
        self._answer_digest_request(now, out)

    # Outputs

    def digest(self) -> Digest:
        """What this member has delivered of everybody: itself, and those who departed and are not
        resolved, included."""
        entries: dict[Origin, int] = {}
        partials: dict[Origin, tuple[bytes, ...] | None] = {}
        for stream, sending in self._senders.items():
            entries[Origin(self.me, stream)] = sending.window.delivered
            partials[Origin(self.me, stream)] = sending.assembler.parts
        for origin, receiver in self._receivers.items():
            entries[origin] = receiver.window.delivered
            partials[origin] = receiver.assembler.parts
        for left in self._left:
            for sender, estate in left.estates.items():
                if estate.is_mine:
                    entries[Origin(sender, left.stream)] = estate.delivered
        return Digest(entries, {origin: parts for origin, parts in partials.items() if parts != ()})

    def windows(self) -> dict[Origin, SendWindow | ReceiveWindow]:
        """Every window, to be read only: for traces, statistics and tests."""
        found: dict[Origin, SendWindow | ReceiveWindow] = {
            Origin(self.me, stream): sending.window for stream, sending in self._senders.items()
        }
        found.update((origin, receiver.window) for origin, receiver in self._receivers.items())
        return found

    def ack_tables(self) -> dict[Stream, AckTable | AgreedMark]:
        """Who has taken what of mine, to be read only."""
        return {stream: sending.acks for stream, sending in self._senders.items()}

    @property
    def senders(self) -> Mapping[Stream, MulticastSender]:
        """What is sent here, to be read only."""
        return self._senders

    @property
    def receivers(self) -> Mapping[Origin, MulticastReceiver]:
        """What comes from others, to be read only."""
        return self._receivers

    def highest_sent(self, stream: Stream) -> int:
        """The last seqno given to one of my messages."""
        sending = self._senders.get(stream)
        return self._last_sent.get(stream, 0) if sending is None else sending.window.high

    def is_blocked(self, stream: Stream) -> bool:
        """A send was cut short, and no Writable has followed yet."""
        sending = self._senders.get(stream)
        return sending is not None and sending.is_blocked

    @property
    def has_ready(self) -> bool:
        """Some message could be taken now."""
        if self._ready:
            return True
        if not self.uniform.estates and not self.retained.estates:
            return False
        return self.uniform.has_ready or self.retained.has_ready

    @property
    def has_own_ready(self) -> bool:
        """Some message of one's own could be taken now."""
        return bool(self._ready) and any(
            sending.origin in self._ready for sending in self._senders.values()
        )

    @property
    def is_flushed(self) -> bool:
        """Every other member of the view has delivered everything that was sent here."""
        return all(sending.is_flushed for sending in self._senders.values())

    def stats(self) -> dict[str, object]:
        return {
            "view": str(self.group.view),
            "early": len(self._early),
            "early_dropped": self.early_dropped,
            "peer_repaired": self.peer_repaired,
            "refused": self.refused,
            "sent": {
                stream.name.lower(): sending.stats() for stream, sending in self._senders.items()
            },
            "received": {
                str(origin): receiver.stats() for origin, receiver in self._receivers.items()
            },
            **self.uniform.stats(),
            "retained": self.retained.stats(),
            "rounds": {} if self.rounds is None else self.rounds.stats(),
        }

    def explain(self, now: int) -> list[str]:
        reasons = [reason for box in self._boxes() for reason in box.explain(now)]
        if self._joiners is not None:
            names = ", ".join(map(str, self._joiners))
            reasons += [f"{names} cannot be let in yet: {why}" for why in self._unsettled()]
            if self._promised is not None:
                behind = ", ".join(map(str, self._without(self._promised)))
                reasons.append(f"{names} cannot be let in yet: {behind} lacks what is before")
        if self.rounds is not None:
            reasons += self.rounds.explain()
        return reasons + [why for left in self._left for why in left.explain(now)]

    def check_invariants(self) -> None:
        assert len(self._early) <= EARLY_MAX
        if self.group.view is not None:
            for sending in self._senders.values():
                sending.check_invariants(self.group.view)
        for origin, receiver in self._receivers.items():
            assert self._is_peer(origin.sender)
            receiver.check_invariants()
        assert self._ready == {box.origin for box in self._boxes() if box.window.ready}
        self.uniform.check_invariants()
        self.retained.check_invariants()

    # From and to the boxes

    def _boxes(self) -> list[MulticastSender | MulticastReceiver]:
        return [*self._senders.values(), *self._receivers.values()]

    def _is_peer(self, member: Member) -> bool:
        """Another member of my view: its frames count. Mine do not: I know what I sent."""
        return self.group.view is not None and member in self.group.view and member != self.me

    def _on_data(self, source: Member, data: Data, now: int, out: Effects) -> None:
        receiver = self._receivers.get(Origin(source, data.stream))
        if receiver is not None:
            receiver.on_data(data, now, self._allowance(now), out, self._datagram)
            self._note_ready(receiver)
            if self.rounds is not None and data.stream is Stream.FIFO:
                self.rounds.on_data(now)
        elif (
            self._is_closed
            or source == self.me
            or (source in self.group.departed and not self._is_peer(source))
            or data.stream not in self.streams
        ):
            self.refused += 1
        elif len(self._early) < EARLY_MAX:
            # Cut into payloads now: the datagram's buffer may be used again.
            kept = Data(data.stream, data.first, data.payloads, more=data.more)
            self._early.append((source, kept))
        else:
            self.early_dropped += 1

    def _open(
        self,
        origin: Origin,
        offset: int,
        parts: tuple[bytes, ...] | None,
        counter: int,
        now: int,
    ) -> None:
        is_gated = origin.stream is Stream.UNIFORM
        timers = self.deadlines.owner(("received", origin))
        receiver = self.receiver(
            origin, self.config, offset, parts, now, timers, counter, is_gated=is_gated
        )
        self._ready.discard(origin)
        self._receivers[origin] = receiver
        assert self.group.view is not None
        self._enter_view(receiver, self.group.view, now)
        if self.rounds is not None:
            self.rounds.stir(now)
        self.generation += 1

    def _enter_view(self, receiver: MulticastReceiver, view: View, now: int) -> None:
        receiver.enter_view(view.id, now)
        self._note_ready(receiver)
        if receiver.window.retain:
            sender = receiver.origin.sender
            receiver.helpers = tuple(who for who in view if who not in (self.me, sender))

    def _forget(self, departed: Sequence[Member], view: View, now: int) -> None:
        """Their windows with what is in them, but for those that are taken over. A Begin that they
        may have sent by now is late."""
        for member in departed:
            since = view.counter
            for stream in self.streams:
                receiver = self._receivers.pop(Origin(member, stream), None)
                if receiver is not None:
                    receiver.remove()
                    self._ready.discard(receiver.origin)
                    since = max(since, receiver.counter)
                if stream in self.inherited:
                    self._left_on(stream).take_over(member, receiver, now)
            if member in self.group.departed:
                self.group.departed[member] = since
        self._early = deque(entry for entry in self._early if entry[0] not in departed)

    def _on_begin(self, source: Member, begin: Begin, now: int, out: Effects) -> None:
        origin = Origin(source, begin.stream)
        is_late = begin.counter <= self.group.departed.get(source, 0)
        if not self._is_peer(source) or is_late or begin.stream not in self.streams:
            self.refused += 1
            return
        receiver = self._receivers.get(origin)
        if receiver is None or begin.counter > receiver.counter:
            parts = None if begin.is_middle else ()
            self._open(origin, begin.offset, parts, begin.counter, now)
            self._replay_early(now, out)
        out.datagram(source, Begun(begin.stream, begin.counter))

    def _on_begun(self, source: Member, begun: Begun) -> None:
        sending = self._senders.get(begun.stream)
        if sending is not None:
            sending.on_begun(source, begun.counter)

    def _on_commit(self, source: Member, commit: Commit, now: int) -> None:
        receiver = self._receivers.get(Origin(source, Stream.UNIFORM))
        if receiver is None or self.group.view is None:
            self.refused += 1
        else:
            receiver.on_commit(commit, self.group.view.id, now)
            self._note_ready(receiver)

    def _on_commit_wanted(self, source: Member, wanted: CommitWanted, out: Effects) -> None:
        sending = self._senders.get(Stream.UNIFORM)
        view = self.group.view
        if view is None and self._is_uniform and not self._is_closed:
            # Who let us in has died on it, and the next one takes us for a member. There is nothing
            # yet, nor will there be from a view before this one.
            out.signal(NewerView(wanted.view_id))
            out.datagram(source, Commit(0, wanted.view_id))
        elif sending is None or view is None or wanted.view_id.counter > view.counter:
            self.refused += 1
        elif self._is_peer(source):
            out.datagram(source, sending.commitment())

    # Reports, and what is retained

    def _on_rounds(self, source: Member, frame: Frame, now: int, out: Effects) -> None:
        if self.rounds is None or not self._is_peer(source):
            if isinstance(frame, StabilityQuery) and self.rounds is not None:
                self._say_not_open(source, frame.view_id, out)
            self.refused += 1
            return
        match frame:
            case StabilityReport():
                self.rounds.on_report(source, frame, now, out)
            case StabilityQuery():
                self.rounds.on_wanted(source, frame, out)
            case Stable():
                self.rounds.on_stable(source, frame)
            case PeerRepairRequest():
                self._on_peer_repair_request(source, frame, out)

    def _say_not_open(self, source: Member, view_id: ViewId, out: Effects) -> None:
        """Who let us in has died on it, and the next one takes us for a member."""
        if self.group.view is None and not self._is_closed:
            out.signal(NewerView(view_id))
            out.datagram(source, Standing(view_id, False, (), Stream.FIFO))

    def _on_peer_repair_request(
        self, source: Member, wanted: PeerRepairRequest, out: Effects
    ) -> None:
        receiver = self._receivers.get(Origin(wanted.sender, Stream.FIFO))
        if receiver is None or not receiver.window.retain:
            return
        quota = receiver.window.capacity_max - self._peer_repaired_to.get(source, 0)
        for seqnos in wanted.missing:
            for data in receiver.pieces(seqnos, quota):
                out.datagram(source, PeerRepair(wanted.sender, data))
                quota -= data.count
                self.peer_repaired += data.count
        self._peer_repaired_to[source] = receiver.window.capacity_max - quota

    def _on_peer_repair(
        self, source: Member, peer_repaired: PeerRepair, now: int, out: Effects
    ) -> None:
        receiver = self._receivers.get(Origin(peer_repaired.sender, peer_repaired.data.stream))
        if receiver is None or not receiver.window.retain or not self._is_peer(source):
            self.refused += 1
        else:
            receiver.on_data(peer_repaired.data, now, self._allowance(now), out, self._datagram)
            self._note_ready(receiver)

    def _report(self, now: int, out: Effects) -> None:
        """Do what the stability rounds ask for."""
        rounds, view = self.rounds, self.group.view
        if rounds is None or view is None:
            return
        if rounds.is_due:
            self._peer_repaired_to.clear()
            rounds.report(self._delivered_by_me(view), self._allowance(now), now, out)
            rounds.rest_or_go_on(self._known(view), now)
        if rounds.news is not None:
            stable, rounds.news = rounds.news, None
            mine = stable.marks[view.members.index(self.me)]
            sending = self._senders[Stream.FIFO]
            if mine.by_others > sending.window.high:
                self.refused += 1  # nobody has what was never sent
                return
            for place, mark in enumerate(stable.marks):
                receiver = self._receivers.get(Origin(view.members[place], Stream.FIFO))
                if receiver is not None:
                    receiver.on_stable(mark.by_all, now)
            sending.on_stable(stable, mine, view.members[mine.slowest], now, out)
            self._note_ready(sending)
            rounds.rest_or_go_on(self._known(view), now)

    def _delivered_by_me(self, view: View) -> tuple[int, ...]:
        """How far this member's application has come with each member's plain messages. What it
        has no window for yet may all be needed."""
        windows = self._plain_windows(view)
        return tuple(0 if window is None else window.delivered for window in windows)

    def _known(self, view: View) -> list[int]:
        """Up to where each member's plain messages are known to exist, and are for this member."""
        return [0 if window is None else window.high for window in self._plain_windows(view)]

    def _plain_windows(self, view: View) -> list[SendWindow | ReceiveWindow | None]:
        found: list[SendWindow | ReceiveWindow | None] = []
        for member in view:
            if member == self.me:
                found.append(self._senders[Stream.FIFO].window)
            else:
                receiver = self._receivers.get(Origin(member, Stream.FIFO))
                found.append(None if receiver is None else receiver.window)
        return found

    def _left_on(self, stream: Stream) -> Uniform:
        return self.uniform if stream is Stream.UNIFORM else self.retained

    # Letting joiners in

    @property
    def _is_uniform(self) -> bool:
        return Stream.UNIFORM in self.streams

    def _answer_digest_request(self, now: int, out: Effects) -> None:
        """A digest may be given once there is a window for everybody, whatever is committed has
        been delivered here, and whatever the departed have left is resolved: a joiner begins after
        that, and needs none of it."""
        if self.rounds is not None:
            self._report(now, out)
        is_settled = not self.uniform.estates and not self.retained.estates
        if is_settled != self._was_settled:
            self._was_settled = is_settled
            out.signal(Settled(is_settled))
        if self._joiners is not None and not self._unsettled():
            if self._promised is None:
                self._promised = self.digest()
            if not self._without(self._promised):
                self._joiners = None
                self._timers.disarm(Timer.DIGEST_REQUEST)
                out.signal(DigestTaken(self._promised, self.digest()))

    def _unsettled(self) -> list[str]:
        """What stands between a joiner and its digest, in words."""
        view = self.group.view
        if view is None:
            return []
        reasons = [f"{who} has not said where it begins" for who in self._unopened()]
        left = [*self.uniform.estates, *self.retained.estates]
        reasons += [f"{sender} is not resolved" for sender in dict.fromkeys(left)]
        if not self._is_uniform:
            return reasons
        reasons += [f"{who} has not said what it has committed" for who in self._uncommitted()]
        boxes = [box for box in self._boxes() if box.is_gated]
        if any(box.window.delivered < box.window.gate for box in boxes):
            reasons.append("this member has not taken all that is committed")
        return reasons

    def _without(self, promised: Digest) -> list[Member]:
        """Where messages are retained: old members that have not taken, as far as their reports in
        this view tell, what joiners would begin after. If its sender died now nobody could ask a
        joiner for it."""
        view, rounds, joiners = self.group.view, self.rounds, self._joiners or ()
        if rounds is None or view is None or self.config.purge is not Purge.RETAINED:
            return []
        needed = [promised.entries.get(Origin(who, Stream.FIFO), 0) for who in view]
        return [
            who
            for who in view
            if who not in (self.me, *joiners, *self.retained.not_open)
            and not rounds.has_reported(who, needed)
        ]

    def _unopened(self) -> list[Member]:
        """Old members, come from another group, that this one has no window for yet: a joiner's
        could not open at any place that is known here."""
        new = (self.me, *(self._joiners or ()))
        others = (who for who in self.group.view or () if who not in new)
        return [
            who
            for who in others
            if any(Origin(who, stream) not in self._receivers for stream in self.streams)
        ]

    def _uncommitted(self) -> list[Member]:
        """Old members of whom it is not known what they have committed in this view."""
        view, joiners = self.group.view, self._joiners or ()
        assert view is not None
        found = []
        for member in view:
            receiver = self._receivers.get(Origin(member, Stream.UNIFORM))
            is_told = receiver is not None and receiver.committed_in == view.id
            if member != self.me and member not in joiners and not is_told:
                found.append(member)
        return found

    def _ask_what_is_awaited(self, now: int, out: Effects) -> None:
        view = self.group.view
        if self._joiners is None or view is None:
            return
        for member in self._uncommitted() if self._is_uniform else ():
            out.datagram(member, CommitWanted(view.id))
        for member in () if self._promised is None else self._without(self._promised):
            out.datagram(member, StabilityQuery(view.id, 0))
        self._timers.arm(Timer.DIGEST_REQUEST, now + ASK_NS)

    def _replay_early(self, now: int, out: Effects) -> None:
        """A window has opened: perhaps for something that came before it."""
        early, self._early = self._early, deque()
        for sender, data in early:
            self._datagram += 1
            self._on_data(sender, data, now, out)

    def _on_ack(self, source: Member, ack: Ack, now: int, out: Effects) -> None:
        sending = self._senders.get(ack.stream)
        if sending is None or not self._is_peer(source) or ack.received > sending.window.high:
            self.refused += 1
        else:
            sending.on_ack(source, ack, now, out)
            self._note_ready(sending)

    def _on_nack(self, source: Member, nack: Nack, out: Effects) -> None:
        sending = self._senders.get(nack.stream)
        if sending is None or not self._is_peer(source):
            self.refused += 1
        else:
            sending.on_nack(source, nack, out)

    def _on_watermark(self, source: Member, watermark: Watermark, now: int, out: Effects) -> None:
        receiver = self._receivers.get(Origin(source, watermark.stream))
        if receiver is None:
            self.refused += 1
        else:
            receiver.on_watermark(watermark.seqno, now, self._allowance(now), out)

    def _note_ready(self, box: MulticastSender | MulticastReceiver) -> None:
        """Messages may have come into this window, or gone from it."""
        if box.window.ready:
            self._ready.add(box.origin)
        else:
            self._ready.discard(box.origin)

    def _in_turn(self) -> list[MulticastSender | MulticastReceiver]:
        """All streams; whoever was not reached last time comes first."""
        boxes: list[MulticastSender | MulticastReceiver] = [
            *self._senders.values(),
            *self._receivers.values(),
        ]
        start = self._turn = self._turn % len(boxes) if boxes else 0
        return boxes[start:] + boxes[:start]

    def _allowance(self, now: int) -> int:
        """An equal share of the receive buffer for each sender heard of late, and a datagram at the
        least."""
        horizon = now - self._tau
        active = 0
        for receiver in self._receivers.values():
            if receiver.last_data is not None and receiver.last_data > horizon:
                active += 1
        return max(self._share(active), self._datagram_room)

    def _share(self, senders: int) -> int:
        return min(self.receive_buffer // max(1, senders), self._in_flight_bytes)

    def _shut(self, reason: str, out: Effects) -> None:
        self._is_closed = True
        unsent_bytes = sum(sending.fragments.rest_bytes for sending in self._senders.values())
        unacked = tuple(
            (stream, sending.acked_by_others + 1, sending.window.high)
            for stream, sending in self._senders.items()
            if not sending.is_flushed
        )
        self._last_sent = {stream: box.window.high for stream, box in self._senders.items()}
        for box in self._boxes():
            box.remove()
        self._senders.clear()
        self._receivers.clear()
        self._ready.clear()
        self._early.clear()
        for left in (self.uniform, self.retained):
            left.close()
        if self.rounds is not None:
            self.rounds.close()
        self._joiners = None
        self._timers.disarm(Timer.DIGEST_REQUEST)
        out.event(Closed(reason, unsent_bytes, unacked))
