"""Stack: the layers of one member, and what goes on between them.

Frames go to the layer that owns their class, signals to all layers, in order. What layers want of
each other is drained as a worklist, never by recursion, so nothing is re-entered and the same
inputs give the same outputs. What layers say to those of other members goes over the channel.

What the application takes: its state first, if it has to come before; messages to the group that
come meanwhile are kept (views/state.py). Then messages to the group and to this member alone, in
turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ringcast.config import CAPACITY_LIMIT, GroupConfig
from ringcast.core.effects import Effects, Flushed, Layer, Left, Signal, owners_of
from ringcast.core.shared import Deadlines, GroupState
from ringcast.core.view_change import Begin, Freeze
from ringcast.errors import DecodeError, TooFewMembers, UsageError
from ringcast.events import Delivered, Event, ReplyReceived, RequestReceived, StateChunk, Writable
from ringcast.model import SYSTEM_EPOCH, Member, Stream, View
from ringcast.protocols.channel import ControlChannel
from ringcast.protocols.failure import FailureDetector
from ringcast.protocols.stream import seconds
from ringcast.protocols.views.layer import GroupViews
from ringcast.protocols.views.state import StateTransfer
from ringcast.wire.frames import Frame, Submit, SubmitFrom, SubmitQuery
from ringcast.wire.messages import decode_message, decode_request, encode_message

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringcast.core.observer import Observer
    from ringcast.protocols.unicast import ReliableUnicast
    from ringcast.protocols.views.streams import ViewStreams

L = TypeVar("L")

UNICAST = 1
"""The place of the application's unicast in the stack."""


class MinMembers:
    """Groups that are too small to send to, if somebody says how large they have to be."""

    def __init__(self, me: Member, least: int) -> None:
        self.least = least
        self.since: int | None = None
        """When the view became too small."""
        self._me = me
        self._size = 0
        self._has_refused = False  # a send since then: it is told when the group is whole

    def too_few(self, now: int) -> TooFewMembers | None:
        """What a send to the group would raise now. May be asked by any thread."""
        since = self.since
        return None if since is None else TooFewMembers(self._size, self.least, (now - since) / 1e9)

    def check(self, now: int) -> None:
        """Before a send to the group."""
        few = self.too_few(now)
        if few is not None:
            self._has_refused = True
            raise few

    def count(self, view: View, now: int, out: Effects) -> None:
        """This view is installed."""
        self._size = len(view)
        if self._me not in view:
            self.since = None  # sends are refused for another reason now
        elif len(view) < self.least:
            self.since = now if self.since is None else self.since
        else:
            self.since = None
            if self._has_refused:
                self._has_refused = False
                out.event(Writable())

    def explain(self, now: int) -> list[str]:
        if self.since is None:
            return []
        few = f"{self._size} of {self.least} members since {seconds(now - self.since)}"
        return [f"sends are refused: {few}"]


class Stack:
    """The layers of one member, run to completion."""

    def __init__(
        self,
        me: Member,
        config: GroupConfig,
        payload_bytes: int,
        before_change: Callable[[Freeze | Begin | Left, int], None],
        reject: Callable[[DecodeError], None],
        *,
        divide: Callable[[View, Sequence[Layer]], None],
        multicast: type[ViewStreams],
        unicast: type[ReliableUnicast],
        layers: Sequence[Layer],
        state: bool,
        streams: tuple[Stream, ...],
    ) -> None:
        """`before_change` hears of a view or an end that layers are about to hear of, `reject` of
        bytes that cannot be decoded; `divide` gives the layers of a new view their room."""
        self.me = me
        self.multicast = multicast(
            *(me, config.multicast, payload_bytes),
            streams=streams,
            slow_member_timeout_s=config.membership.slow_member_timeout_s,
        )
        datagram_bytes = config.multicast.datagram_bytes
        self.unicast = unicast(
            *(me, config.unicast),
            fragment_bytes=payload_bytes,
            datagram_bytes=datagram_bytes,
            max_message_bytes=config.multicast.max_message_bytes,
        )
        self.layers: list[Layer] = [self.multicast, self.unicast, *layers]
        if any(isinstance(layer, GroupViews) for layer in layers):
            sizes = {"fragment_bytes": payload_bytes, "datagram_bytes": datagram_bytes}
            kept = config.membership.join_buffer_bytes
            self.layers += [
                ControlChannel(me, config.unicast, **sizes),
                StateTransfer(me, kept, payload_bytes, has_state=state),
            ]
        elif state:
            raise UsageError("state transfer needs a membership layer: it is who lets joiners in")
        elif Stream.TOTAL in streams:
            raise UsageError("total messages need a membership layer: members submit through it")
        self.group = GroupState(me)
        self.deadlines = Deadlines()
        for layer in self.layers:
            layer.attach(self.group, self.deadlines)
        self.out = Effects()
        self.observer: Observer | None = None
        self.minimum = MinMembers(me, config.membership.min_members)
        self.has_said_goodbye = False
        """Before that nobody asks whether all is flushed."""
        self.is_closed = False
        self.membership = self._find(GroupViews)
        self.detector = self._find(FailureDetector)
        self.state = self._find(StateTransfer)
        self.channel = self._find(ControlChannel)
        self._owner = owners_of(self.layers)
        self._channel_at = None if self.channel is None else self.layers.index(self.channel)
        self._turn = 0
        self._before_change, self._divide = before_change, divide
        self._reject = reject

    def _find(self, kind: type[L]) -> L | None:
        return next((layer for layer in self.layers if isinstance(layer, kind)), None)

    @property
    def is_leaving(self) -> bool:
        membership = self.membership
        return membership is not None and membership.is_leaving

    @property
    def is_flushed(self) -> bool:
        """The others of the view have taken everything that was sent here, to all or to one, and
        have the answers to what they asked."""
        is_answered = self.channel is None or self.channel.is_flushed
        return self.multicast.is_flushed and self.unicast.is_flushed and is_answered

    # Frames, signals, messages

    def route(self, source: Member, frames: list[Frame], now: int) -> None:
        """Hand each stretch of frames of one layer to it, in order. The system's own connections
        are told by their epochs."""
        owner: int | None = None
        stretch: list[Frame] = []
        for frame in frames:
            place = self._owner.get(type(frame))
            if place == UNICAST and frame.conn.epoch >= SYSTEM_EPOCH:  # type: ignore[union-attr]
                place = self._channel_at
            if place != owner:
                if owner is not None:
                    self.layers[owner].receive(source, stretch, now, self.out)
                owner, stretch = place, []
            stretch.append(frame)
        if owner is not None:
            self.layers[owner].receive(source, stretch, now, self.out)

    def run_to_completion(self, now: int, *, is_input: bool = True) -> None:
        """Do all that layers want of each other, after an input or in the middle of something."""
        out, channel, state = self.out, self.channel, self.state
        if out.signals:
            self._drain(now)
        # After the view that these may have brought: whoever held us up may not be in it.
        if self.has_said_goodbye and self.is_leaving and self.is_flushed:
            out.signal(Flushed())
            self._drain(now)
        while channel is not None:
            if channel.may_be_ready:
                self._take_messages(channel, now)
            if out.signals:
                self._drain(now)
            if state is not None and state.is_catching_up:
                self._catch_up(state, now)
            if not out.messages or not self._send_messages(channel, now):
                break
        if is_input and self.observer is not None:
            self.observer.after_input(now)

    def _drain(self, now: int) -> None:
        while self.out.signals:
            self._react(self.out.signals.popleft(), now)

    def _react(self, signal: Signal, now: int) -> None:
        match signal:
            case Left(reason, is_flushed):
                if not self.is_closed:
                    self.multicast.has_handed_over = is_flushed
                    if self.has_said_goodbye:
                        self.hand_over()
                    self.is_closed = True
                    self.minimum.since = None
                    for layer in reversed(self.layers[1:]):
                        layer.close(reason, now, self.out)
                    self._before_change(signal, now)
                    # Closed, of the first layer, is the last event.
                    self.group.close(reason, self.layers[:1], now, self.out)
            case Begin(view):
                self._before_change(signal, now)
                self.group.change(view, self.layers, now, self.out)
                for layer in self.layers:
                    layer.handle_signal(signal, now, self.out)
                self._divide(view, self.layers)
                self._follow_view()
                self.minimum.count(view, now, self.out)
            case _:
                if isinstance(signal, Freeze):
                    self._before_change(signal, now)
                for layer in self.layers:
                    layer.handle_signal(signal, now, self.out)

    def _take_messages(self, channel: ControlChannel, now: int) -> None:
        """What layers of other members have to say."""
        is_more = True
        while is_more:
            is_more = False
            for source, payload in channel.take_messages(now, self.out):
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
            self.out.event(message)
        elif isinstance(message, Submit | SubmitQuery | SubmitFrom):
            self.multicast.receive_message(source, message, now, self.out)
        elif self.state is not None:
            self.state.receive_message(source, message, now, self.out)

    def _send_messages(self, channel: ControlChannel, now: int) -> bool:
        """Whether some were for this member itself."""
        messages, self.out.messages = self.out.messages, []
        for dest, message in messages:
            channel.send(encode_message(message), dest, now, self.out)
        return any(dest == self.me for dest, _ in messages)

    # What the application takes

    def take_ready(self, limit: int, now: int, events: list[Event]) -> None:
        """Up to so many messages, behind what has happened."""
        state, observer = self.state, self.observer
        if state is not None and state.is_behind:
            events += state.take_ready(limit, now, self.out)
            limit -= sum(map(_count, events))
            if state.is_behind:
                return
        self._turn ^= 1  # both kinds in turn: a busy group must not starve the other
        for layer in (self.layers[self._turn], self.layers[1 - self._turn]):
            ready = layer.take_ready(limit, now, self.out)
            if self.multicast.is_paused:
                self._come_to_cut()
            if state is not None and observer is not None:
                observer.took(ready, now, buffered=True)  # some are in the state already
            if ready:
                limit -= sum(map(_count, ready))
                events += ready

    def _catch_up(self, state: StateTransfer, now: int) -> None:
        """Messages to the group go aside until the state is here, as long as there is room."""
        streams, observer = self.multicast, self.observer
        while streams.has_ready and (state.room or state.is_dropping):
            if observer is not None:
                observer.before_take(now, buffered=True)
            limit = state.room or CAPACITY_LIMIT  # what is dropped needs no room
            events = streams.take_ready(limit, now, self.out)
            if observer is not None:
                observer.took(events, now, buffered=True)
            state.keep(events)
            self._come_to_cut()
        state.note_full(streams.has_ready, self.out)

    def _follow_view(self) -> None:
        """What the application finds behind the view that has begun."""
        state, streams = self.state, self.multicast
        if state is not None:
            events, pauses = state.take_behind_view()
            streams.follow_view(events, pauses=pauses)
        if state is None or not state.is_behind:
            streams.announce(self.out)
            self._come_to_cut()

    def _come_to_cut(self) -> None:
        """If the application's state comes next, what follows is kept until that is here."""
        if self.multicast.is_paused:
            assert self.state is not None
            self.state.come_to_cut(self.multicast.go_on())

    def hand_over(self) -> None:
        """Whoever leaves gets the rest of its own messages, as if its application had taken them
        just before: later there is nobody to ask for them. What others have sent stays where it is:
        they would be told that it was taken, and perhaps nobody reads any more."""
        if self.state is None or not self.state.is_behind:  # else it lacks what comes before them
            own = [*self.multicast.take_own(), *self.unicast.take_own(self.out)]
            self.out.events.extend(own)


def _count(event: Event) -> int:
    """How many messages it is for who takes so many at a time."""
    is_chunk = isinstance(event, StateChunk)
    return len(event.run.payloads) if isinstance(event, Delivered) else is_chunk
