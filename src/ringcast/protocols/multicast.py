"""ReliableMulticast: every member delivers each sender's messages in order, once, without gaps.

A window per sender is freed when all have delivered what is in it. So flow control is built in: a
sender can be ahead of the slowest member by one window and no more. How it learns what all have
taken is for the group to choose (config.purge): from an ack of each, which JGroups calls NAKACK4,
or by report (stability.py), as in its NAKACK2 and NAKACK3.

What holds in one view, under loss, duplication and reordering: per (sender, stream) a member
delivers the next seqno and the next (N1), once each (N2); a sender keeps what some member of its
view has not delivered (N5); memory is bounded by the windows (G5). Once the network works, all
messages of a live sender reach all live members of its view, the last one too (N-L1), and its
window drains (N-L2). From one view to the next: views/streams.py.

Frames: Data and Watermark to the group; Ack and Nack to one sender; Data again to whoever asked, or
to all with `repair_to_all`.

On send, Ack, Nack: the MulticastSender of that stream (multicast_sender.py).
On Data, Watermark, take: the MulticastReceiver of that sender and stream (multicast_receiver.py).
    Data of a view that is about to begin waits in a small queue.
On PeerRepairRequest: send on what is retained here of somebody else's messages (PeerRepair).
On close: acknowledge what was taken, so that no sender waits for an ack that was only delayed. Who
    leaves takes before that what is its own and all others have delivered (`take_own`). It also
    acknowledges before it says goodbye (Flushed): after that its acks would count no more.

A frame counts only if its sender is in my view: the departed are deaf and mute (N7, N8).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, ClassVar

from ringcast.core.effects import Effects, Layer
from ringcast.core.shared import Deadlines, GroupState
from ringcast.errors import GroupClosed, UsageError
from ringcast.events import Closed
from ringcast.model import Member, Origin, Stream, View
from ringcast.protocols.multicast_receiver import MulticastReceiver
from ringcast.protocols.multicast_sender import MulticastSender
from ringcast.protocols.stability import StabilityRounds
from ringcast.window.fragmenter import check_payloads
from ringcast.window.send import SendWindow, room_of
from ringcast.wire.frames import (
    LogCommit,
    PeerRepair,
    PeerRepairRequest,
    StabilityQuery,
    StabilityReport,
    Stable,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.config import MulticastConfig
    from ringcast.settings import Settings
    from ringcast.window.receive import ReceiveWindow
    from ringcast.wire.frames import Ack, Commit, Data, Frame, Nack, Watermark


class ReliableMulticast(Layer):
    """The state machine of one member."""

    sending: ClassVar[type[MulticastSender]] = MulticastSender
    receiver: ClassVar[type[MulticastReceiver]] = MulticastReceiver
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
        self.has_handed_over = False
        """Everybody who goes on has all that was sent here."""
        self.early_dropped = 0
        self.peer_repaired = 0  # messages of others retransmitted
        self._peer_repaired_to: dict[Member, int] = {}  # to each, since the last report
        self._fragment_bytes = fragment_bytes
        self._datagram_bytes = config.datagram_bytes
        self._datagram_room = room_of(config.datagram_bytes, config.bulk_bytes)
        self._slow_member_timeout_s = slow_member_timeout_s
        self.allowed_bytes = config.allowed_bytes
        self._tau = round(config.xmit_interval_s * 1e9)
        self._is_closed = False
        self.senders: dict[Stream, MulticastSender] = {}
        """What is sent here, to be read only."""
        self._last_sent: dict[Stream, int] = {}  # once there are none
        self.receivers: dict[Origin, MulticastReceiver] = {}
        """What comes from others, to be read only."""
        self.ready: set[Origin] = set()
        """In whose windows messages wait for the application."""
        self.early: deque[tuple[Member, Data]] = deque()
        self.rounds = None if config.stability is None else self.stability(me, config)
        self._turn = 0  # who is first to be taken from, so that nobody starves
        self._datagram = 0  # how many have come
        self._said_in = 0  # the tag of the one that is being received
        self.attach(GroupState(me), Deadlines())

    def attach(self, group: GroupState, deadlines: Deadlines) -> None:
        super().attach(group, deadlines)
        if self.rounds is not None:
            self.rounds.attach(group, deadlines)

    # Inputs

    def resize(self, fragment_bytes: int, datagram_bytes: int) -> None:
        """Datagrams hold more or less from now on."""
        self._fragment_bytes, self._datagram_bytes = fragment_bytes, datagram_bytes
        self._datagram_room = room_of(datagram_bytes, self.config.bulk_bytes)
        for sending in self.senders.values():
            sending.fragments.resize(fragment_bytes, datagram_bytes)

    def configure(self, settings: Settings) -> None:
        """This is how the group does it from the view on that begins. How it purges can only change
        before there is anything to purge."""
        self.config = config = settings.apply_to_multicast(self.config)
        self._tau = round(config.xmit_interval_s * 1e9)
        self._slow_member_timeout_s = settings.values["slow_member_timeout_s"]
        self.rounds = None if config.stability is None else self.stability(self.me, config)
        if self.rounds is not None:
            self.rounds.attach(self.group, self.deadlines)
        for box in self._boxes():
            box.configure(config, self._slow_member_timeout_s)

    def send(self, payloads: Sequence[bytes], stream: Stream, now: int, out: Effects) -> int:
        """Send to the group; return how many messages were accepted, from the first on.

        Fewer than all: the window is full, and a Writable event follows when there is room.
        """
        if self._is_closed:
            raise GroupClosed("this member has left its group")
        sending = self.senders.get(stream)
        if sending is None:
            why = "not in a view yet" if self.group.view is None else "not a stream of this group"
            raise UsageError(f"cannot send on {stream.name.lower()}: {why}")
        check_payloads(payloads, self.config.max_message_bytes)
        if self.rounds is not None and stream is Stream.FIFO:
            self.rounds.on_data(now)
        if not payloads:
            return 0
        accepted = sending.send(payloads, now, out)
        if sending.window.ready:
            self.ready.add(sending.origin)
        return accepted

    def handle_timeout(self, now: int, out: Effects) -> None:
        for sending in self.senders.values():
            sending.handle_timeout(now, out)
        if self.deadlines.is_due("received", now):  # else a beat would ask every window
            allowance = self._allowance(now)
            for receiver in self.receivers.values():
                receiver.handle_timeout(now, allowance, out)
        if self.rounds is not None:
            self.rounds.handle_timeout(now)
            self._report(now, out)

    def close(self, reason: str, now: int, out: Effects) -> None:
        if not self._is_closed:
            self._acknowledge(now, out)
            self._shut(reason, out)

    def _acknowledge(self, now: int, out: Effects) -> None:
        """Now, and not after the usual delay."""
        allowance = self._allowance(now)
        for receiver in self.receivers.values():
            receiver.close(allowance, out)

    def ask_receipt(
        self, number: int, stream: Stream, now: int, out: Effects, *, is_flush: bool
    ) -> int | None:
        """Confirmed follows, under the number that is returned, when all other members of the view
        have delivered what was sent so far. None: they have."""
        sending = self.senders.get(stream)
        return None if sending is None else sending.ask_receipt(number, is_flush=is_flush)

    def stabilize(self, now: int, out: Effects) -> None:
        """Find out now what everybody has, without waiting for the interval."""
        if self.rounds is None:
            raise UsageError(
                "this group has acks and no stability rounds: nothing waits for a report"
            )
        self.rounds.want(out)
        self._report(now, out)

    # Outputs

    @property
    def purged(self) -> int:
        """Up to here every member of the view has delivered what this one has sent."""
        sending = self.senders.get(Stream.FIFO)
        return 0 if sending is None else sending.window.low

    def windows(self) -> dict[Origin, SendWindow | ReceiveWindow]:
        """Every window, to be read only: for traces, statistics and tests."""
        found: dict[Origin, SendWindow | ReceiveWindow] = {
            Origin(self.me, stream): sending.window for stream, sending in self.senders.items()
        }
        found.update((origin, receiver.window) for origin, receiver in self.receivers.items())
        return found

    def highest_sent(self, stream: Stream) -> int:
        """The last seqno given to one of my messages."""
        sending = self.senders.get(stream)
        return self._last_sent.get(stream, 0) if sending is None else sending.window.high

    def is_blocked(self, stream: Stream) -> bool:
        """A send was cut short, and no Writable has followed yet."""
        sending = self.senders.get(stream)
        return sending is not None and sending.stream.is_blocked

    def stats(self) -> dict[str, object]:
        return {
            "view": str(self.group.view),
            "early": len(self.early),
            "early_dropped": self.early_dropped,
            "peer_repaired": self.peer_repaired,
            "refused": self.refused,
            "sent": {
                stream.name.lower(): sending.stats() for stream, sending in self.senders.items()
            },
            "received": {
                str(origin): receiver.stats() for origin, receiver in self.receivers.items()
            },
            "rounds": {} if self.rounds is None else self.rounds.stats(),
        }

    def explain(self, now: int) -> list[str]:
        reasons = [reason for box in self._boxes() for reason in box.explain(now)]
        return reasons if self.rounds is None else reasons + self.rounds.explain()

    def check_invariants(self) -> None:
        if self.group.view is not None:
            for sending in self.senders.values():
                sending.check_invariants(self.group.view)
        for origin, receiver in self.receivers.items():
            assert self._is_peer(origin.sender)
            receiver.check_invariants()
        assert self.ready == {box.origin for box in self._boxes() if box.window.ready}

    # From and to the boxes

    def _boxes(self) -> list[MulticastSender | MulticastReceiver]:
        return [*self.senders.values(), *self.receivers.values()]

    def _is_peer(self, member: Member) -> bool:
        """Another member of my view: its frames count. Mine do not: I know what I sent."""
        return self.group.view is not None and member in self.group.view and member != self.me

    def _on_data(self, source: Member, data: Data, now: int, out: Effects) -> None:
        receiver = self.receivers.get(Origin(source, data.stream))
        if receiver is None:
            self.refused += 1
            return
        receiver.on_data(data, now, self._allowance(now), out, self._datagram)
        if receiver.window.ready:
            self.ready.add(receiver.origin)
        if self.rounds is not None and data.stream is Stream.FIFO:
            self.rounds.on_data(now)

    def _open(self, origin: Origin, offset: int, now: int) -> None:
        is_gated = origin.stream is not Stream.FIFO
        timers = self.deadlines.owner(("received", origin))
        receiver = self.receiver(origin, self.config, offset, timers, is_gated=is_gated)
        self.ready.discard(origin)
        self.receivers[origin] = receiver
        assert self.group.view is not None
        self._find_helpers(receiver, self.group.view)
        if self.rounds is not None:
            self.rounds.stir(now)
        self.generation += 1

    def _find_helpers(self, receiver: MulticastReceiver, view: View) -> None:
        self._note_ready(receiver)
        if receiver.window.retain and self.rounds is not None:
            sender = receiver.origin.sender
            receiver.helpers = tuple(who for who in view if who not in (self.me, sender))

    def _on_commit(self, source: Member, commit: Commit | LogCommit, now: int) -> None:
        stream = Stream.TOTAL if isinstance(commit, LogCommit) else Stream.UNIFORM
        receiver = self.receivers.get(Origin(source, stream))
        if receiver is None:
            self.refused += 1
        else:
            receiver.on_commit(commit.seqno, now)
            self._note_ready(receiver)

    # Reports, and what is retained

    def _on_rounds(self, source: Member, frame: Frame, now: int, out: Effects) -> None:
        if self.rounds is None:
            self.refused += 1
            return
        match frame:
            case StabilityReport():
                assert self.group.view is not None
                mine = self._delivered_by_me(self.group.view)
                self.rounds.on_report(source, frame, mine, now, out)
            case StabilityQuery():
                self.rounds.on_wanted(source, frame, out)
            case Stable():
                self.rounds.on_stable(source, frame)
            case PeerRepairRequest():
                self._on_peer_repair_request(source, frame, out)

    def _on_peer_repair_request(
        self, source: Member, wanted: PeerRepairRequest, out: Effects
    ) -> None:
        receiver = self.receivers.get(Origin(wanted.sender, Stream.FIFO))
        if receiver is None or not receiver.window.retain:
            return
        quota = receiver.window.capacity_max - self._peer_repaired_to.get(source, 0)
        for seqnos in wanted.missing:
            for data in receiver.pieces(seqnos, quota):
                out.datagram(source, PeerRepair(wanted.sender, data))
                quota -= data.count
                self.peer_repaired += data.count
        self._peer_repaired_to[source] = receiver.window.capacity_max - quota

    def _on_peer_repair(self, repair: PeerRepair, now: int, out: Effects) -> None:
        receiver = self.receivers.get(Origin(repair.sender, repair.data.stream))
        if receiver is None or not receiver.window.retain:
            self.refused += 1
        else:
            receiver.on_data(repair.data, now, self._allowance(now), out, self._datagram)
            self._note_ready(receiver)

    def _report(self, now: int, out: Effects) -> None:
        """Do what the stability rounds ask for."""
        rounds, view = self.rounds, self.group.view
        assert rounds is not None
        if view is None:
            return
        if rounds.is_due:
            self._peer_repaired_to.clear()
            rounds.report(self._delivered_by_me(view), self._allowance(now), now, out)
            rounds.rest_or_go_on(self._known(view), now)
        if rounds.news is not None:
            stable, rounds.news = rounds.news, None
            mine = stable.marks[view.members.index(self.me)]
            sending = self.senders[Stream.FIFO]
            if mine.by_others > sending.window.high:
                self.refused += 1  # nobody has what was never sent
                return
            for place, mark in enumerate(stable.marks):
                receiver = self.receivers.get(Origin(view.members[place], Stream.FIFO))
                if receiver is not None:
                    receiver.on_stable(mark.by_all, now)
            sending.on_stable(stable, mine, view.members[mine.slowest], now, out)
            self._note_ready(sending)
            rounds.rest_or_go_on(self._known(view), now)

    def _delivered_by_me(self, view: View) -> tuple[int, ...]:
        """How far this member's application has come with each member's plain messages."""
        return tuple(window.delivered for window in self._plain_windows(view))

    def _known(self, view: View) -> list[int]:
        """Up to where each member's plain messages are known to exist, and are for this member."""
        return [window.high for window in self._plain_windows(view)]

    def _plain_windows(self, view: View) -> list[SendWindow | ReceiveWindow]:
        windows = self.windows()
        return [windows[Origin(member, Stream.FIFO)] for member in view]

    def _on_ack(self, source: Member, ack: Ack, now: int, out: Effects) -> None:
        sending = self.senders.get(ack.stream)
        if sending is None or ack.received > sending.window.high:
            self.refused += 1
        else:
            sending.on_ack(source, ack, now, out)
            self._note_ready(sending)

    def _on_nack(self, source: Member, nack: Nack, out: Effects) -> None:
        sending = self.senders.get(nack.stream)
        if sending is None:
            self.refused += 1
        else:
            sending.on_nack(source, nack, out)

    def _on_watermark(self, source: Member, watermark: Watermark, now: int, out: Effects) -> None:
        receiver = self.receivers.get(Origin(source, watermark.stream))
        if receiver is None:
            self.refused += 1
        else:
            receiver.on_watermark(watermark.seqno, now, self._allowance(now), out)

    def _note_ready(self, box: MulticastSender | MulticastReceiver) -> None:
        """Messages may have come into this window, or gone from it."""
        if box.window.ready:
            self.ready.add(box.origin)
        else:
            self.ready.discard(box.origin)

    def _in_turn(self) -> list[MulticastSender | MulticastReceiver]:
        """All streams; whoever was not reached last time comes first."""
        boxes = self._boxes()
        start = self._turn = self._turn % len(boxes) if boxes else 0
        return boxes[start:] + boxes[:start]

    def _allowance(self, now: int) -> int:
        """An equal share of the receive buffer for each sender heard of late, and a datagram at the
        least."""
        horizon = now - self._tau
        active = 0
        for receiver in self.receivers.values():
            if receiver.last_data is not None and receiver.last_data > horizon:
                active += 1
        share = self.receive_buffer // max(1, active)
        return max(min(share, self.allowed_bytes), self._datagram_room)

    def _unacked(self) -> tuple[tuple[Stream, int, int], ...]:
        """Own messages that somebody may not have got."""
        return tuple(
            (stream, sending.acked_by_others + 1, sending.window.high)
            for stream, sending in self.senders.items()
            if stream is not Stream.TOTAL and not sending.is_flushed and not self.has_handed_over
        )

    def _shut(self, reason: str, out: Effects) -> None:
        self._is_closed = True
        unsent_bytes = sum(sending.fragments.rest_bytes for sending in self.senders.values())
        unacked = self._unacked()
        self._last_sent = {stream: box.window.high for stream, box in self.senders.items()}
        for box in self._boxes():
            box.remove()
        self.senders.clear()
        self.receivers.clear()
        self.ready.clear()
        self.early.clear()
        if self.rounds is not None:
            self.rounds.close()
        out.event(Closed(reason, unsent_bytes, unacked))
