"""Node: the protocols made one member. All that transports and the simulator drive.

A driver's whole life: call an input, `take_events`, `take_datagrams`, re-arm on `next_timeout`.
Inputs run to completion: effects of protocols are drained as a worklist, never by recursion, so
nothing is re-entered and the same inputs give the same outputs. Time comes in as `now`, in
nanoseconds of a clock that never goes back. `take_events` needs it too: taking is delivery, and
delivery makes acks due.

An `Observer` sees what crosses this edge. No layer knows of it: a wrong protocol cannot lie to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.core.effects import Layer, Left
from ringcast.core.view_change import Begin, Freeze, cut_between
from ringcast.datagrams import Datagrams
from ringcast.errors import GroupClosed, Reject, UsageError
from ringcast.model import Address, Member, Origin, Stream, View
from ringcast.protocols.failure import FailureDetector
from ringcast.protocols.memory import Memory
from ringcast.protocols.stack import Stack
from ringcast.protocols.unicast import ReliableUnicast
from ringcast.protocols.views.layer import GroupViews
from ringcast.protocols.views.streams import ViewStreams
from ringcast.settings import settings_of
from ringcast.wire.changes import tag_of
from ringcast.wire.codec import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ringcast.config import GroupConfig
    from ringcast.core.observer import Observer
    from ringcast.events import Event
    from ringcast.protocols.views.state import StateTransfer
    from ringcast.wire.codec import Buffer
    from ringcast.wire.frames import Frame
    from ringcast.wire.seal import DatagramSeal


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
        has_total = Stream.TOTAL in streams
        plain = len(streams) - has_total
        self.memory = Memory(config, plain, has_state=state, has_total=has_total)
        config = self.memory.config
        self.view: View | None = None
        self.datagrams = Datagrams(me, config, seal)
        self.codec = self.datagrams.codec
        self.config = config
        """What this member was given, with what its group agrees on once it is in it."""
        self._stack = stack = Stack(
            *(me, config, self.codec.payload_bytes_max, self._before_change, self.datagrams.reject),
            divide=self.memory.divide,
            multicast=multicast,
            unicast=unicast,
            layers=layers,
            state=state,
            streams=streams,
        )
        self.datagrams.stack = stack
        self._receipts_asked = 0
        self.group, self.deadlines = stack.group, stack.deadlines
        self.effects = stack.out
        """What waits to be taken, to be read only: a driver looks here before it takes."""
        self.multicast, self.unicast = stack.multicast, stack.unicast
        self.minimum = stack.minimum
        self.membership, self.detector = stack.membership, stack.detector
        """None: views, suspicions come from outside."""
        self.state = stack.state
        """Who gets and gives the application's state, to be read only: for traces and tests."""
        self.channel = stack.channel
        self.unsaid = {} if stack.channel is None else stack.channel.waiting
        """What was asked or answered, and waits for that member to take what was before it."""

    @property
    def observer(self) -> Observer | None:
        return self._stack.observer

    @observer.setter
    def observer(self, observer: Observer | None) -> None:
        self._stack.observer = observer

    def set_receive_buffer(self, size: int) -> None:
        """So many bytes of others may wait for this member to read them: its socket buffer."""
        self.multicast.receive_buffer = self.unicast.receive_buffer = size
        if self.channel is not None:
            self.channel.unicast.receive_buffer = size // 2  # it is the application's first

    # Inputs

    def start(self, now: int) -> None:
        """Begin. Only membership has something to do then."""
        for layer in self._stack.layers:
            layer.start(now, self.effects)
        self._stack.run_to_completion(now)

    def receive_datagrams(self, datagrams: Iterable[Buffer], now: int) -> None:
        """Datagrams, opened. Their bytes are not needed after this returns."""
        self.datagrams.receive(((datagram,) for datagram in datagrams), now)

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
        stack = self._stack
        if stack.has_said_goodbye and stack.is_leaving:
            raise GroupClosed("this member is leaving its group")
        if to is None:
            if stack.minimum.since is not None:
                stack.minimum.check(now)
            accepted = self.multicast.send(payloads, stream, now, self.effects)
        elif stream is Stream.FIFO:
            accepted = self.unicast.send(payloads, to, now, self.effects)
        else:
            raise UsageError(f"{stream.name.lower()} is for messages to the group: leave out to=")
        if stack.observer is not None:
            stack.observer.offered(to, stream, payloads, accepted, now)
        self._stack.run_to_completion(now)
        return accepted

    def provide_state(
        self, transfer: int, chunks: Sequence[bytes], now: int, *, is_last: bool = False
    ) -> int:
        """The next chunks of the state that StateWanted asked for; return how many were accepted,
        in order from the first. `is_last`: with these it is complete, if all are accepted.

        Fewer than all: StateWritable follows when there is room for more, or StateAbandoned.
        """
        accepted = self._with_state().giving.provide(
            transfer, chunks, self.effects, is_last=is_last
        )
        self._stack.run_to_completion(now)
        return accepted

    def refuse_state(self, transfer: int, now: int) -> None:
        """This member cannot provide the state, or not the rest of it: another is to do it."""
        self._with_state().giving.give_up(transfer, self.effects)
        self._stack.run_to_completion(now)

    def say(self, message: bytes, to: Member, now: int, *, is_awaited: bool = False) -> None:
        """What the application asks that of a member of the view (`encode_ask`): ReplyReceived
        follows, or that member departs. Or what it answers (`encode_answer`), once, to a member
        that has RequestReceived: that `is_awaited` by who leaves.

        There is no telling if it never answers: whoever asks waits for so long, and for so many
        answers at once. It changes nothing else here, unless it is to itself.
        """
        channel = self.channel
        if channel is None:
            raise UsageError("this node has no membership: nobody can be asked here")
        channel.send(message, to, now, self.effects, is_awaited=is_awaited)
        if to == self.me:
            self._stack.run_to_completion(now)

    def ask_receipt(
        self,
        now: int,
        *,
        stream: Stream = Stream.FIFO,
        to: Member | None = None,
        is_flush: bool = False,
    ) -> int | None:
        """Ask when the last message that was sent there has been delivered: by all other members of
        the view, or by that member. Confirmed follows, under the number that is returned, or
        Closed; of a total message Ordered comes before. None: it has been. `is_flush`: who departs
        meanwhile is not waited for."""
        self._receipts_asked += 1
        number = self._receipts_asked
        if to is not None:
            return self.unicast.ask_receipt(number, to, is_flush=is_flush)
        streams = self.multicast
        asked = streams.ask_receipt(number, stream, now, self.effects, is_flush=is_flush)
        self._stack.run_to_completion(now)
        return asked

    def ask_flush(self, now: int) -> list[int]:
        """Ask the same of all that was sent so far. For each number Confirmed follows when the
        members of the view have delivered; those that depart meanwhile are not waited for."""
        view, streams = self.view or (), self.multicast.streams
        asked = [self.ask_receipt(now, stream=stream, is_flush=True) for stream in streams]
        peers = [peer for peer in self.unicast.senders if peer in view]
        asked += [self.ask_receipt(now, to=peer, is_flush=True) for peer in peers]
        return [number for number in asked if number is not None]

    def stabilize(self, now: int) -> None:
        """In a group with stability rounds: find out at once what everybody has, and purge it."""
        self.multicast.stabilize(now, self.effects)
        self._stack.run_to_completion(now)

    def sync(self, peer: Member, now: int) -> None:
        """Ask a sender where its messages to this member stand, and go on from there."""
        self.unicast.sync(peer, now)
        self._stack.run_to_completion(now)

    def close_to(self, peer: Member, now: int) -> None:
        """Begin to close the connection to this peer, once everything is acknowledged."""
        self.unicast.close_to(peer, now)
        self._stack.run_to_completion(now)

    def drop_from(self, peer: Member, now: int) -> None:
        """Forget the window for what this peer sends to us alone."""
        self.unicast.drop_from(peer)
        self._stack.run_to_completion(now)

    def transport_hint(self, address: Address, now: int, *, is_local: bool = True) -> None:
        """A datagram was refused: nobody listened there, or (not `is_local`) so somebody says."""
        detector = self.detector
        if detector is not None:
            detector.transport_hint(address, now, self.effects, is_local=is_local)
            self._stack.run_to_completion(now)

    def install_view(
        self, view: View, now: int, starts: Mapping[Origin, int] | None = None
    ) -> None:
        """For a node without membership: this view begins, without a flush. Whoever was in the last
        one as well goes on; streams of others begin behind `starts`, or at their first message.
        Older views than the current one change nothing; one without this member ends it all."""
        if not self.group.accepts(view):
            return
        if self.me in view:
            self.effects.signal(Begin(view, cut_between(self.view, view, self.me, starts or {})))
        else:
            self.effects.signal(Left(f"{view} goes on without this member"))
        self._stack.run_to_completion(now)

    def handle_timeout(self, now: int) -> None:
        """Some deadline has come. Harmless when none has."""
        for layer in self._stack.layers:
            layer.handle_timeout(now, self.effects)
        self._stack.run_to_completion(now)

    def leave(self, now: int, by: int | None = None) -> None:
        """Go in good order: no more sends; Closed follows when the others have delivered everything
        and know, or `by` then; if that is not given, after `leave_timeout_s`. One's own messages
        that they have taken, and one's own application has not, come before it."""
        self._joined_by_name().leave(now, self.effects, by)
        self._stack.has_said_goodbye = True
        if self.config.multicast.stability is not None:
            self.multicast.stabilize(now, self.effects)  # not after the interval: somebody waits
        self._stack.run_to_completion(now)

    def add_candidates(self, addresses: Iterable[Address], now: int) -> None:
        """Addresses where members of the group may be found."""
        self._joined_by_name().add_candidates(addresses, now, self.effects)
        self._stack.run_to_completion(now)

    def close(self, now: int) -> None:
        """Be gone at once. Sends raise GroupClosed from now on, and views change nothing."""
        self.effects.signal(Left("closed"))
        self._stack.run_to_completion(now)

    # Outputs

    def next_timeout(self) -> int | None:
        """When handle_timeout is due; None: nothing waits."""
        return self.deadlines.next()

    def take_datagrams(self, now: int = 0) -> list[tuple[Address | None, bytes]]:
        """What to send, in order; None means to every other member of the view."""
        return self.datagrams.take(now)

    def take_events(self, limit: int, now: int, *, only_own: bool = False) -> list[Event]:
        """What happened, and up to `limit` messages: pulled, and this is delivery. It may make room
        for more of one's own: whether anything is left to take, `has_ready` says. With a limit of 0
        nothing moves: what has happened is told, no more. Only who leaves gets, whatever the limit,
        the rest of its own messages that the others have delivered, and then Closed.

        `only_own`: of messages only one's own to the group, for an application that does not read
        them, and would hold its own sends up."""
        out, observer = self.effects, self._stack.observer
        if observer is not None:
            observer.before_take(now, buffered=False)
        events: list[Event] = list(out.events)
        out.events.clear()
        if only_own:
            moves = self.has_own_ready
        else:  # without it no message moves: all that inputs have changed is settled
            moves = limit > 0 or (self.state is not None and self.state.is_behind)
        if moves:
            if only_own:
                events += self.multicast.take_ready(limit, now, out, only_own=True)
            else:
                self._stack.take_ready(limit, now, events)
            self._stack.run_to_completion(now, is_input=False)
            events += out.events  # taking one's own messages may have made room to send
            out.events.clear()
        if observer is not None:
            observer.took(events, now, buffered=False)
        return events

    @property
    def has_ready(self) -> bool:
        """Some message could be taken now."""
        state = self.state
        if state is not None and state.is_behind:
            return state.has_ready
        streams = self.multicast
        if streams.is_paused or streams.reading.unread:
            return bool(self.unicast.ready) or streams.has_ready
        return bool(self.unicast.ready or streams.ready)

    @property
    def has_own_ready(self) -> bool:
        """Some message of one's own to the group could be taken now."""
        is_behind = self.state is not None and self.state.is_behind
        return self.multicast.has_own_ready and not is_behind

    @property
    def is_flushed(self) -> bool:
        """The others of the view have taken everything that was sent here, to all or to one, and
        have the answers to what they asked."""
        return self._stack.is_flushed

    def pending(self) -> list[tuple[Member | Address | None, Frame]]:
        """What waits to be sent, to be read only: for traces and tests."""
        return self.datagrams.pending()

    @property
    def rejected(self) -> dict[str, int]:
        """Datagrams refused, by reason."""
        return self.datagrams.rejected

    def stats(self) -> dict[str, object]:
        """Every table of every protocol with its size, and every counter."""
        return {
            "member": str(self.me),
            "rejected": dict(self.rejected),
            "memory": self.memory.stats(self._stack.layers),
            **{type(layer).__name__: layer.stats() for layer in self._stack.layers},
        }

    def explain(self, now: int) -> list[str]:
        """One sentence for each thing that waits. Nothing waits: an empty list."""
        reasons = [reason for layer in self._stack.layers for reason in layer.explain(now)]
        others = self.rejected.get(Reject.VERSION.value)
        if others:
            reasons.append(
                f"{others} datagrams of another wire version than {VERSION} were refused: all "
                "members of a group run the same release"
            )
        reasons += self._stack.minimum.explain(now)
        return reasons + self.memory.explain(self._stack.layers)

    def check_invariants(self) -> None:
        """Assert what must hold between two inputs. Costly: simulation and tests only."""
        for layer in self._stack.layers:
            layer.check_invariants()
        self.deadlines.check_invariants()

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

    def _before_change(self, change: Freeze | Begin | Left, now: int) -> None:
        """Layers are about to hear of this."""
        if isinstance(change, Begin):
            self.datagrams.pack_before(now)
            self.view = change.view
            if change.settings is not None:
                self.config = change.settings.apply_to(self.config)
                self.datagrams.follow(self.config)
                self._stack.minimum.least = self.config.membership.min_members
        if self._stack.observer is not None:
            self._stack.observer.before_change(change, now)
        if isinstance(change, Begin):
            self.codec.tag = tag_of(change.view.id)


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
