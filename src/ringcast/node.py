"""Node: the protocols made one member. All that transports and the simulator drive.

A driver's whole life: call an input, `take_events`, `take_datagrams`, re-arm on `next_timeout`.
A request that came alone may be had from `take_request` at once, if no event waits before it.
Inputs run to completion: effects of protocols are drained as a worklist, never by recursion, so
nothing is re-entered and the same inputs give the same outputs. Time comes in as `now`, in
nanoseconds of a clock that never goes back. `take_events` needs it too: taking is delivery, and
delivery makes acks due.

Bytes of peers never raise: what cannot be decoded is counted by reason and dropped.

An `Observer` sees what crosses this edge. No layer knows of it: a wrong protocol cannot lie to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ringcast.config import CAPACITY_LIMIT, DATAGRAM_BYTES_MIN
from ringcast.core.effects import Effects, Flushed, Left, owners_of
from ringcast.core.shared import Deadlines, GroupState
from ringcast.core.view_change import Begin, Freeze, cut_between
from ringcast.errors import DecodeError, GroupClosed, Reject, TooFewMembers, UsageError
from ringcast.events import (
    Delivered,
    ReplyReceived,
    RequestReceived,
    StateChunk,
    Writable,
)
from ringcast.model import SYSTEM_EPOCH, Member, Purge, Stream
from ringcast.protocols.channel import ControlChannel
from ringcast.protocols.failure import FailureDetector
from ringcast.protocols.intake import seconds
from ringcast.protocols.unicast import ReliableUnicast
from ringcast.protocols.views.layer import GroupViews
from ringcast.protocols.views.state import StateTransfer
from ringcast.protocols.views.streams import ViewStreams
from ringcast.settings import settings_of
from ringcast.wire.bursts import unpack_burst
from ringcast.wire.changes import tag_of
from ringcast.wire.codec import VERSION, Codec
from ringcast.wire.frames import (
    Close,
    Sync,
    SyncAck,
    SyncOk,
    UnicastAck,
    UnicastData,
    UnicastNack,
)
from ringcast.wire.messages import decode_message, encode_message
from ringcast.wire.requests import decode_request, encode_answer, encode_ask
from ringcast.wire.seal import Passage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ringcast.config import GroupConfig
    from ringcast.core.effects import Layer, Signal
    from ringcast.core.observer import Observer
    from ringcast.events import Event
    from ringcast.model import Address, Digest, Origin, View
    from ringcast.wire.codec import Buffer
    from ringcast.wire.frames import Frame
    from ringcast.wire.seal import DatagramSeal

L = TypeVar("L")

UNICAST = 1
"""The place of the application's unicast in the stack."""

UNICAST_FRAMES = (UnicastData, UnicastAck, UnicastNack, Close, Sync, SyncOk, SyncAck)


class Node:
    """One member of one group, without sockets, clock or threads."""

    def __init__(
        self,
        me: Member,
        config: GroupConfig,
        *,
        seal: DatagramSeal | None = None,
        multicast: type[ViewStreams] = ViewStreams,
        unicast: type[ReliableUnicast] = ReliableUnicast,
        layers: Sequence[Layer] = (),
        state: bool = False,
        streams: tuple[Stream, ...] = (Stream.FIFO,),
    ) -> None:
        """`state`: the application gives its state to joiners, and wants it when it joins; in a
        group all should agree on that. Where there is a membership layer only."""
        self.me = me
        self.config = config
        """What this member was given, with what its group agrees on once it is in it."""
        self.view: View | None = None
        self.observer: Observer | None = None
        self.passage, size = Passage(seal, self._reject), config.multicast.datagram_bytes
        self.codec = Codec(config.group, me, size, self.passage.overhead)
        self.rejected: dict[str, int] = {}
        """Datagrams refused, by reason."""
        group = multicast(
            me,
            config.multicast,
            self.codec.payload_bytes_max,
            streams=streams,
            slow_member_timeout_s=config.membership.slow_member_timeout_s,
        )
        one = unicast(
            me,
            config.unicast,
            fragment_bytes=self.codec.payload_bytes_max,
            datagram_bytes=config.multicast.datagram_bytes,
            max_message_bytes=config.multicast.max_message_bytes,
        )
        self._layers: list[Layer] = [group, one, *layers]
        has_membership = any(isinstance(layer, GroupViews) for layer in layers)
        if has_membership:
            self._layers += [
                ControlChannel(
                    me,
                    config.unicast,
                    fragment_bytes=self.codec.payload_bytes_max,
                    datagram_bytes=config.multicast.datagram_bytes,
                ),
                StateTransfer(
                    me,
                    config.membership.join_buffer_bytes,
                    self.codec.payload_bytes_max,
                    has_state=state,
                ),
            ]
        elif state:
            raise UsageError("state transfer needs a membership layer: it is who lets joiners in")
        self.group = GroupState(me)
        self.deadlines = Deadlines()
        for layer in self._layers:
            layer.attach(self.group, self.deadlines)
        self._owner = owners_of(self._layers)
        self._places: dict[type, int] = {
            kind: place
            for kind in (GroupViews, FailureDetector, ControlChannel, StateTransfer)
            for place, layer in enumerate(self._layers)
            if isinstance(layer, kind)
        }
        self._is_closed = False
        self._has_said_goodbye = False  # before that nobody asks whether all is flushed
        self._few_since: int | None = None  # when the view became too small to send to
        self._has_refused = False  # a send since then: it is told when the group is whole
        self._turn = 0
        self._receipts_asked = 0
        self._packed: list[tuple[Address | None, bytes]] = []  # before the view began
        self._out = self.effects = Effects()
        """What waits to be taken, to be read only: a driver looks here before it takes."""
        self.multicast = group
        self.unicast = one
        self.membership = self._find(GroupViews)
        """None: views come from outside."""
        self.detector = self._find(FailureDetector)
        self.state = self._find(StateTransfer)
        """Who gets and gives the application's state, to be read only: for traces and tests."""
        self._channel = self._find(ControlChannel)

    def set_receive_buffer(self, size: int) -> None:
        """So many bytes of others may wait for this member to read them: its socket buffer."""
        self.multicast.receive_buffer = self.unicast.receive_buffer = size
        if self._channel is not None:
            self._channel.receive_buffer = size // 2  # it is the application's first

    def set_datagram_bytes(self, size: int) -> None:
        """Build datagrams of at most so many bytes from now on, as the paths to others allow; never
        larger ones than configured. IP has to fragment messages that were cut for larger ones."""
        size = max(DATAGRAM_BYTES_MIN, min(size, self.config.multicast.datagram_bytes))
        self.codec.resize(size)
        for layer in (self.multicast, self.unicast, self._channel):
            if layer is not None:
                layer.resize(self.codec.payload_bytes_max, size)

    def _find(self, kind: type[L]) -> L | None:
        place = self._places.get(kind)
        if place is None:
            return None
        layer = self._layers[place]
        assert isinstance(layer, kind)
        return layer

    # Inputs

    def start(self, now: int) -> None:
        """Begin. Only membership has something to do then."""
        for layer in self._layers:
            layer.start(now, self._out)
        self._run_to_completion(now)

    def take_request(self, datagram: Buffer, now: int) -> RequestReceived | ReplyReceived | None:
        """The fast path for a request or an answer that comes alone and next in turn: it concerns
        no layer but the channel, and the application at once. None: nothing has happened, and it is
        for `receive_datagrams`."""
        if (request := self._take_request(datagram, now)) and self.observer is not None:
            self.observer.received(datagram, now)
        return request

    def _take_request(self, datagram: Buffer, now: int) -> RequestReceived | ReplyReceived | None:
        message = self.codec.unpack_message(datagram)
        unicast = None if self._channel is None else self._channel.unicast
        if message is None or unicast is None:
            return None
        source, conn, seqno, payload = message
        if conn.epoch < SYSTEM_EPOCH:
            return None  # it is the application's
        try:
            request = decode_request(source, payload)
        except DecodeError:
            return None
        if request is None or not unicast.take_next(source, conn, seqno, now):
            return None
        if self.detector is not None:
            self.detector.heard(source, now)
        return request

    def receive_datagrams(self, datagrams: Iterable[Buffer], now: int) -> None:
        """Datagrams, opened. Their bytes are not needed after this returns."""
        self.receive_bursts(((datagram,) for datagram in datagrams), now)

    def receive_bursts(self, bursts: Iterable[Sequence[Buffer]], now: int) -> None:
        """The same, of so many system calls."""
        detector, observer = self.detector, self.observer
        for burst in bursts:
            if observer is not None:
                for datagram in burst:
                    observer.received(datagram, now)
            if len(burst) == 1 and (request := self._take_request(burst[0], now)):
                self._out.event(request)
                continue
            for source, frames in unpack_burst(self.codec, burst, self._reject):
                if detector is not None:
                    detector.heard(source, now)
                self._route(source, frames, now)
                if self._out.signals:
                    self._complete(now)
        self._run_to_completion(now)

    def send(
        self,
        payloads: Sequence[bytes],
        now: int,
        *,
        stream: Stream = Stream.FIFO,
        to: Member | None = None,
    ) -> int:
        """Send to the group, or to one member; return how many were accepted, in order from the
        first (0: full).

        TooFewMembers: the view has fewer than `min_members`. Writable follows when it has enough.
        Undeliverable: `to` is not in the view, and there is no connection with room to it.
        """
        if self._is_leaving:
            raise GroupClosed("this member is leaving its group")
        if to is None:
            self._check_members(now)
            accepted = self.multicast.send(payloads, stream, now, self._out)
        elif stream is Stream.FIFO:
            accepted = self.unicast.send(payloads, to, now, self._out)
        else:
            raise UsageError(f"{stream.name.lower()} is for messages to the group: leave out to=")
        if self.observer is not None:
            self.observer.offered(to, stream, payloads, accepted, now)
        self._run_to_completion(now)
        return accepted

    def provide_state(
        self, transfer: int, chunks: Sequence[bytes], now: int, *, is_last: bool = False
    ) -> int:
        """The next chunks of the state that StateWanted asked for; return how many were accepted,
        in order from the first. `is_last`: with these it is complete, if all are accepted.

        Fewer than all: StateWritable follows when there is room for more, or StateAbandoned.
        """
        accepted = self._with_state().provide(transfer, chunks, self._out, is_last=is_last)
        self._run_to_completion(now)
        return accepted

    def refuse_state(self, transfer: int, now: int) -> None:
        """This member cannot provide the state, or not the rest of it: another is to do it."""
        self._with_state().give_up(transfer, self._out)
        self._run_to_completion(now)

    def ask(self, to: Member, number: int, payload: bytes, now: int) -> None:
        """Ask the application of a member of the view; ReplyReceived follows, or that member
        departs.

        There is no telling if it never answers: whoever asks waits for so long, and for so many
        answers at once.
        """
        self._say(encode_ask(number, payload), to, now)

    def backlog(self, to: Member) -> int:
        """How much that was asked or answered waits for that member to take what was before it."""
        channel = self._channel
        return 0 if channel is None or not channel.waiting else channel.backlog(to)

    def answer(
        self, to: Member, number: int, payload: bytes, now: int, *, is_refused: bool = False
    ) -> None:
        """What the application says to a member that has RequestReceived, once."""
        said = encode_answer(number, payload, is_refused=is_refused)
        self._say(said, to, now, is_awaited=True)

    def ask_receipt(self, *, stream: Stream = Stream.FIFO, to: Member | None = None) -> int | None:
        """Ask when the last message that was sent there has been delivered: by all other members of
        the view, or by that member. Confirmed follows, under the number that is returned, or
        Closed. None: it has been."""
        return self._ask_receipt(stream, to, is_flush=False)

    def ask_flush(self) -> list[int]:
        """Ask the same of all that was sent so far. For each number Confirmed follows when the
        members of the view have delivered; those that depart meanwhile are not waited for."""
        asked = [
            self._ask_receipt(stream, None, is_flush=True) for stream in self.multicast.streams
        ]
        view = self.view or ()
        peers = [peer for peer in self.unicast.senders if peer in view]
        asked += [self._ask_receipt(Stream.FIFO, peer, is_flush=True) for peer in peers]
        return [number for number in asked if number is not None]

    def _ask_receipt(self, stream: Stream, to: Member | None, *, is_flush: bool) -> int | None:
        self._receipts_asked += 1
        number = self._receipts_asked
        if to is None:
            return self.multicast.ask_receipt(number, stream, is_flush=is_flush)
        return self.unicast.ask_receipt(number, to, is_flush=is_flush)

    def stabilize(self, now: int) -> None:
        """In a group with stability rounds: find out at once what everybody has, and purge it."""
        self.multicast.stabilize(now, self._out)
        self._run_to_completion(now)

    def sync(self, peer: Member, now: int) -> None:
        """Ask a sender where its messages to this member stand, and go on from there."""
        self.unicast.sync(peer, now)
        self._run_to_completion(now)

    def close_to(self, peer: Member, now: int) -> None:
        """Begin to close the connection to this peer, once everything is acknowledged."""
        self.unicast.close_to(peer, now)
        self._run_to_completion(now)

    def drop_from(self, peer: Member, now: int) -> None:
        """Forget the window for what this peer sends to us alone."""
        self.unicast.drop_from(peer, now)
        self._run_to_completion(now)

    def transport_hint(self, address: Address, now: int, *, is_local: bool = True) -> None:
        """A datagram was refused: nobody listened there, or (not `is_local`) so somebody says."""
        detector = self.detector
        if detector is not None:
            detector.transport_hint(address, now, self._out, is_local=is_local)
            self._run_to_completion(now)

    def install_view(
        self, view: View, now: int, starts: Mapping[Origin, int] | None = None
    ) -> None:
        """For a node without membership: this view begins, without a flush. Whoever was in the last
        one as well goes on; streams of others begin behind `starts`, or at their first message.
        Older views than the current one change nothing; one without this member ends it all."""
        if not self.group.accepts(view):
            return
        if self.me in view:
            self._out.signal(Begin(view, cut_between(self.view, view, self.me, starts or {})))
        else:
            self._out.signal(Left(f"{view} goes on without this member"))
        self._run_to_completion(now)

    def handle_timeout(self, now: int) -> None:
        """Some deadline has come. Harmless when none has."""
        for layer in self._layers:
            layer.handle_timeout(now, self._out)
        self._run_to_completion(now)

    def leave(self, now: int, by: int | None = None) -> None:
        """Go in good order: no more sends; Closed follows when the others have delivered everything
        and know, or `by` then; if that is not given, after `leave_timeout_s`. One's own messages
        that they have taken, and one's own application has not, come before it."""
        self._joined_by_name().leave(now, self._out, by)
        self._has_said_goodbye = True
        if self.config.multicast.stability is not None:
            self.multicast.stabilize(now, self._out)  # not after the interval: somebody waits
        self._run_to_completion(now)

    def add_candidates(self, addresses: Iterable[Address], now: int) -> None:
        """Addresses where members of the group may be found."""
        self._joined_by_name().add_candidates(addresses, now, self._out)
        self._run_to_completion(now)

    def close(self, now: int) -> None:
        """Be gone at once. Sends raise GroupClosed from now on, and views change nothing."""
        self._out.signal(Left("closed"))
        self._run_to_completion(now)

    # Outputs

    def next_timeout(self) -> int | None:
        """When handle_timeout is due; None: nothing waits."""
        return self.deadlines.next()

    def take_datagrams(self, now: int = 0) -> list[tuple[Address | None, bytes]]:
        """What to send, in order, to be sealed; None means to every other member of the view.

        Frames for the same destination share datagrams; so do sends that were made since the
        last call. `now` is for the observer.
        """
        waiting, lone, observer = self._out.frames, self._out.lone, self.observer
        datagrams, self._packed = self._packed, []
        if lone is not None:
            self._out.lone = None
            datagrams.append((lone[0].address, self.codec.pack_message(*lone)))
            if observer is not None:
                observer.transmitted(lone[0], [datagrams[-1][1]], now)
        if not waiting:
            return datagrams
        if self.config.multicast.purge is Purge.ACKS_RETAINED:
            self.codec.mark(self.multicast.purged)
        by_dest: dict[Member | Address | None, list[Frame]] = {}
        for dest, frame in waiting:
            by_dest.setdefault(dest, []).append(frame)
        waiting.clear()
        for dest, frames in by_dest.items():
            to, address = (dest, dest.address) if isinstance(dest, Member) else (None, dest)
            packed = self.codec.pack(frames, to)
            datagrams += [(address, datagram) for datagram in packed]
            if observer is not None:
                observer.transmitted(dest, packed, now)
        return datagrams

    def take_events(self, limit: int, now: int) -> list[Event]:
        """What happened, and up to `limit` messages: pulled, and this is delivery. It may make room
        for more of one's own: whether anything is left to take, `has_ready` says. With a limit of 0
        nothing moves: what has happened is told, no more. Only who leaves gets, whatever the limit,
        the rest of its own messages that the others have delivered, and then Closed."""
        observer = self.observer
        if observer is None:
            return self._take_events(limit, now)
        observer.before_take(now, buffered=False)
        events = self._take_events(limit, now)
        observer.took(events, now, buffered=False)
        return events

    def _take_events(self, limit: int, now: int) -> list[Event]:
        events: list[Event] = list(self._out.events)
        self._out.events.clear()
        state = self.state
        is_behind = state is not None and state.is_behind
        if limit <= 0 and not is_behind:
            return events  # no message moves: all that inputs have changed is settled
        if state is not None and is_behind:
            events += state.take_ready(limit, now, self._out)
            limit -= sum(map(_count, events))
        if state is None or not state.is_behind:
            self._turn ^= 1  # both kinds in turn: a busy group must not starve the other
            for layer in (self._layers[self._turn], self._layers[1 - self._turn]):
                ready = layer.take_ready(limit, now, self._out)
                self._come_to_cut()
                if state is not None and self.observer is not None:
                    self.observer.took(ready, now, buffered=True)  # some are in the state already
                if ready:
                    limit -= sum(map(_count, ready))
                    events += ready if state is None else state.sift(ready)
        self._complete(now)
        events += self._out.events  # taking one's own messages may have made room to send
        self._out.events.clear()
        return events

    def take_own(self, limit: int, now: int) -> list[Event]:
        """As `take_events`, but of messages only one's own to the group: for an application that
        does not read them, and would hold its own sends up."""
        observer = self.observer
        if observer is not None:
            observer.before_take(now, buffered=False)
        events: list[Event] = list(self._out.events)
        self._out.events.clear()
        if self.has_own_ready:
            ready = self.multicast.take_ready(limit, now, self._out, only_own=True)
            events += ready if self.state is None else self.state.sift(ready)
            self._complete(now)
            events += self._out.events
            self._out.events.clear()
        if observer is not None:
            observer.took(events, now, buffered=False)
        return events

    @property
    def has_events(self) -> bool:
        """Something has happened that is no message, and has not been told."""
        return bool(self._out.events)

    @property
    def has_ready(self) -> bool:
        """Some message could be taken now."""
        state = self.state
        if state is not None and state.is_behind:
            return state.has_ready
        return self.multicast.has_ready or self.unicast.has_ready

    @property
    def has_own_ready(self) -> bool:
        """Some message of one's own to the group could be taken now."""
        is_behind = self.state is not None and self.state.is_behind
        return self.multicast.has_own_ready and not is_behind

    def too_few(self, now: int) -> TooFewMembers | None:
        """What a send to the group would raise now. May be asked by any thread."""
        since, view = self._few_since, self.view
        if since is None or view is None:
            return None
        return TooFewMembers(len(view), self._min_members, (now - since) / 1e9)

    @property
    def is_flushed(self) -> bool:
        """The others of the view have taken everything that was sent here, to all or to one, and
        have the answers to what they asked."""
        channel = self._channel
        is_answered = channel is None or channel.is_flushed
        return self.multicast.is_flushed and self.unicast.is_flushed and is_answered

    def pending(self) -> list[tuple[Member | Address | None, Frame]]:
        """What waits to be sent, to be read only: for traces and tests."""
        lone = self._out.lone
        if lone is None:
            return list(self._out.frames)
        to, conn, seqno, payload = lone
        return [(to, UnicastData(conn, seqno, [payload])), *self._out.frames]

    def digest(self) -> Digest:
        """What this member has delivered of everybody."""
        return self.multicast.digest()

    def stats(self) -> dict[str, object]:
        """Every table of every protocol with its size, and every counter."""
        return {
            "member": str(self.me),
            "rejected": dict(self.rejected),
            **{type(layer).__name__: layer.stats() for layer in self._layers},
        }

    def explain(self, now: int) -> list[str]:
        """One sentence for each thing that waits. Nothing waits: an empty list."""
        reasons = [reason for layer in self._layers for reason in layer.explain(now)]
        others = self.rejected.get(Reject.VERSION.value)
        if others:
            reasons.append(
                f"{others} datagrams of another wire version than {VERSION} were refused: all "
                "members of a group run the same release"
            )
        if self._few_since is not None:
            assert self.view is not None
            reasons.append(
                f"sends are refused: {len(self.view)} of {self._min_members} members "
                f"since {seconds(now - self._few_since)}"
            )
        return reasons

    def check_invariants(self) -> None:
        """Assert what must hold between two inputs. Costly: simulation and tests only."""
        for layer in self._layers:
            layer.check_invariants()
        self.deadlines.check_invariants()

    # Groups that are too small

    @property
    def _min_members(self) -> int:
        return self.config.membership.min_members

    def _check_members(self, now: int) -> None:
        few = self.too_few(now)
        if few is not None:
            self._has_refused = True
            raise few

    def _count_members(self, view: View, now: int) -> None:
        if self.me not in view:
            self._few_since = None  # sends are refused for another reason now
        elif len(view) < self._min_members:
            self._few_since = now if self._few_since is None else self._few_since
        else:
            self._few_since = None
            if self._has_refused:
                self._has_refused = False
                self._out.event(Writable())

    # Run to completion

    def _route(self, source: Member, frames: list[Frame], now: int) -> None:
        """Hand each stretch of frames of one layer to it, in order."""
        start, count = 0, len(frames)
        while start < count:
            owner = self._place_of(frames[start])
            stop = start + 1
            while stop < count and self._place_of(frames[stop]) == owner:
                stop += 1
            if owner is not None:
                stretch = frames if stop - start == count else frames[start:stop]
                self._layers[owner].receive(source, stretch, now, self._out)
            start = stop

    def _place_of(self, frame: Frame) -> int | None:
        """Whose it is. The system's own connections are told by their epochs."""
        place = self._owner.get(type(frame))
        if place == UNICAST and isinstance(frame, UNICAST_FRAMES):
            return place if frame.conn.epoch < SYSTEM_EPOCH else self._places.get(ControlChannel)
        return place

    def _run_to_completion(self, now: int) -> None:
        """After every input but `take_request`: that concerns no layer but the channel."""
        self._complete(now)
        if self.observer is not None:
            self.observer.after_input(now)

    def _complete(self, now: int) -> None:
        out = self._out
        if out.signals:
            self._drain(now)
        # After the view that these may have brought: whoever held us up may not be in it.
        if self._has_said_goodbye and self._is_leaving and self.is_flushed:
            out.signal(Flushed())
            self._drain(now)
        channel = self._channel
        if channel is None:
            return
        state = self.state
        while True:
            if channel.may_be_ready:
                self._take_messages(channel, now)
            if out.signals:
                self._drain(now)
            if state is not None and state.is_catching_up:
                self._catch_up(state, now)
            if not out.messages or not self._send_messages(channel, now):
                return

    def _drain(self, now: int) -> None:
        while self._out.signals:
            self._react(self._out.signals.popleft(), now)

    def _take_messages(self, channel: ControlChannel, now: int) -> None:
        """What layers of other members have to say."""
        is_more = True
        while is_more:
            is_more = False
            for source, payload in channel.take_messages(now, self._out):
                is_more |= source == self.me  # of one's own more may have waited behind it
                self._take_message(source, payload, now)

    def _take_message(self, source: Member, payload: bytes, now: int) -> None:
        """For the application of this member, or for a layer."""
        try:
            message = decode_request(source, payload) or decode_message(payload)
        except DecodeError as error:
            self._reject(error)
            return
        if isinstance(message, RequestReceived | ReplyReceived):
            self._out.event(message)
        elif self.state is not None:
            self.state.receive_message(source, message, now, self._out)

    def _send_messages(self, channel: ControlChannel, now: int) -> bool:
        """Whether some were for this member itself."""
        messages, self._out.messages = self._out.messages, []
        for dest, message in messages:
            channel.send(encode_message(message), dest, now, self._out)
        return any(dest == self.me for dest, _ in messages)

    def _say(self, message: bytes, to: Member, now: int, *, is_awaited: bool = False) -> None:
        """What the application says. It changes nothing else here, unless it is to itself."""
        channel = self._channel
        if channel is None:
            raise UsageError("this node has no membership: nobody can be asked here")
        channel.send(message, to, now, self._out, is_awaited=is_awaited)
        if to == self.me:
            self._run_to_completion(now)

    def _reject(self, error: DecodeError) -> None:
        reason = error.reason._value_
        self.rejected[reason] = self.rejected.get(reason, 0) + 1

    def _catch_up(self, state: StateTransfer, now: int) -> None:
        """Messages to the group go aside until the state is here, as long as there is room."""
        observer = self.observer
        while self.multicast.has_ready and (state.room or state.is_dropping):
            if observer is not None:
                observer.before_take(now, buffered=True)
            limit = state.room or CAPACITY_LIMIT  # what is dropped needs no room
            events = self.multicast.take_ready(limit, now, self._out)
            if observer is not None:
                observer.took(events, now, buffered=True)
            state.keep(events)
            self._come_to_cut()
        state.note_full(self.multicast.has_ready, self._out)

    def _follow_view(self) -> None:
        """What the application finds behind the view that has begun."""
        state, streams = self.state, self.multicast
        if state is not None:
            events, pauses = state.take_behind_view()
            streams.follow_view(events, pauses=pauses)
        if state is None or not state.is_behind:
            streams.announce(self._out)
            self._come_to_cut()

    def _come_to_cut(self) -> None:
        """If the application's state comes next, what follows is kept until that is here."""
        if self.multicast.is_paused:
            assert self.state is not None
            self.state.come_to_cut(self.multicast.go_on())

    def _hand_over(self) -> None:
        """Whoever leaves gets the rest of its own messages, as if its application had taken them
        just before: later there is nobody to ask for them. What others have sent stays where it is:
        they would be told that it was taken, and perhaps nobody reads any more."""
        state = self.state
        if state is not None and state.is_behind:
            return  # the application does not have what comes before them
        own = [*self.multicast.take_own(), *self.unicast.take_own(self._out)]
        self._out.events.extend(own if state is None else state.sift(own))

    @property
    def _is_leaving(self) -> bool:
        membership = self.membership
        return membership is not None and membership.is_leaving

    def _with_state(self) -> StateTransfer:
        state = self.state
        if state is None:
            raise UsageError("this node has no membership: nobody wants its state")
        return state

    def _joined_by_name(self) -> GroupViews:
        membership = self.membership
        if membership is None:
            raise UsageError("this node has no membership: its views come from outside")
        return membership

    def _react(self, signal: Signal, now: int) -> None:
        match signal:
            case Left(reason, is_flushed):
                if not self._is_closed:
                    self.multicast.has_handed_over = is_flushed
                    if self._has_said_goodbye:
                        self._hand_over()
                    self._is_closed = True
                    self._few_since = None
                    for layer in reversed(self._layers[1:]):
                        layer.close(reason, now, self._out)
                    if self.observer is not None:
                        self.observer.before_change(signal, now)
                    # Closed, of the first layer, is the last event.
                    self.group.close(reason, self._layers[:1], now, self._out)
            case Begin(view):
                self._packed = self.take_datagrams(now)  # said in the view that ends
                self.view = view
                if signal.settings is not None:
                    self.config = signal.settings.apply_to(self.config)
                if self.observer is not None:
                    self.observer.before_change(signal, now)
                self.codec.tag = tag_of(view.id)
                self.group.change(view, self._layers, now, self._out)
                for layer in self._layers:
                    layer.handle_signal(signal, now, self._out)
                self._follow_view()
                self._count_members(view, now)
            case _:
                if isinstance(signal, Freeze) and self.observer is not None:
                    self.observer.before_change(signal, now)
                for layer in self._layers:
                    layer.handle_signal(signal, now, self._out)


def build_node(
    me: Member,
    config: GroupConfig,
    *,
    seal: DatagramSeal | None = None,
    membership: type[GroupViews] | None = GroupViews,
    detector: type[FailureDetector] | None = FailureDetector,
    multicast: type[ViewStreams] = ViewStreams,
    unicast: type[ReliableUnicast] = ReliableUnicast,
    streams: tuple[Stream, ...] = (Stream.FIFO,),
    must_exist: bool = False,
    state: bool = False,
    secret: bytes = b"",
) -> Node:
    """A node with all its layers: it finds its group, agrees on views and detects failures.
    `membership` None: views come from outside. `detector` None: suspicions do. `must_exist`: it
    joins a group, and founds none. `secret`: random bytes for cookies; none where nobody forges
    anything. Tests and explorations pass classes with one rule changed."""
    layers: list[Layer] = []
    if membership is not None:
        agreed, given = settings_of(config, streams), (me, config.membership)
        views = membership(*given, must_exist=must_exist, settings=agreed, secret=secret)
        layers.append(views)
        if detector is not None:
            layers.append(detector(me, config.membership))
    return Node(
        *(me, config),
        seal=seal,
        multicast=multicast,
        unicast=unicast,
        layers=layers,
        state=state,
        streams=streams,
    )


def _count(event: Event) -> int:
    """How many messages it is for who takes so many at a time."""
    is_chunk = isinstance(event, StateChunk)
    return len(event.run.payloads) if isinstance(event, Delivered) else is_chunk
