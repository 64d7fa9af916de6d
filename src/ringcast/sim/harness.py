"""Harness: drives one Node and writes down what it does. The node does not know.

Every input goes through here, every output comes out here. After each of them the node's windows
are read and their changes become rows, and the node's own invariants are checked. What a node
delivers is compared byte for byte with what was sent under that seqno (G1), what it sends again
with what it sent before (N10). Whatever it raises, beyond the errors of its API, ends the run (G7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ParamSpec, TypeVar

from ringcast.errors import DecodeError, GroupClosed, Reject, RingcastError, UsageError
from ringcast.events import (
    Closed,
    Delivered,
    FragmentsTaken,
    GapSkipped,
    Undeliverable,
    ViewInstalled,
)
from ringcast.model import Member, Stream
from ringcast.sim import membership_watch
from ringcast.sim.multicast_watch import MulticastWatch
from ringcast.sim.network import Packet
from ringcast.sim.recorder import Scribe
from ringcast.sim.state_watch import StateWatch
from ringcast.sim.unicast_watch import UnicastWatch
from ringcast.sim.uniform_watch import UniformWatch
from ringcast.trace import rows as trace
from ringcast.trace.predicates.membership import LEAVE
from ringcast.trace.rows import member_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ringcast.events import Event
    from ringcast.model import Address, Digest, View
    from ringcast.node import Node
    from ringcast.sim.application import Keeper
    from ringcast.sim.network import Seen
    from ringcast.sim.recorder import Recorder
    from ringcast.wire.codec import Buffer, Codec

P = ParamSpec("P")
T = TypeVar("T")


class NodeFailure(Exception):
    """A node raised what it must not, or broke an invariant (G7). The run ends here."""


class Harness:
    """One member, watched."""

    def __init__(
        self,
        node: Node,
        slot: int,
        recorder: Recorder,
        wiretap: Codec,
        codec_of: Callable[[Member], Codec],
        keeper: Keeper | None = None,
    ) -> None:
        """`keeper`: the application, if it has a state."""
        self.node = node
        self.me = node.me
        self.slot = slot
        self.is_closed = False
        self._recorder = recorder
        self._wiretap = wiretap
        self._codec_of = codec_of
        self._name = str(node.me)
        self._inc = node.me.incarnation
        self._scribe = Scribe(recorder, node.me)
        self._multicast = MulticastWatch(node, self._scribe, recorder)
        self._unicast = UnicastWatch(node, self._scribe, recorder)
        self._uniform = UniformWatch(node, self._scribe)
        self._state: StateWatch | None = None
        if keeper is not None and node.state is not None:
            self._state = StateWatch(node.state, keeper, self._scribe, recorder)
        self._view: View | None = None
        self._peers: dict[Address, Member] = {}
        self._last_word = ""
        self._is_new_view = False
        self._is_taking = False
        self._is_sending = False
        self._views_taken: list[View] = []  # installed while events were being taken
        self._taken: list[Event] = []  # out of windows, in the middle of taking or sending
        self._outgoing: list[tuple[Address | None, Packet]] = []  # from before the last view
        node.observer = self
        self._scribe.write(trace.START)

    def member_at(self, port: int) -> Member | None:
        """Whom this member has last seen there in a view."""
        return next((peer for at, peer in self._peers.items() if at.port == port), None)

    @property
    def has_own_views(self) -> bool:
        """Its node makes views in the middle of any input: look after each datagram."""
        return self.node.membership is not None

    @property
    def may_rejoin(self) -> bool:
        """Out of its group without having asked for it."""
        membership = self.node.membership
        return membership is not None and membership.may_rejoin

    # Inputs

    def receive(self, packets: Sequence[Packet], now: int) -> None:
        for packet in packets:
            # What speaks of a connection with a predecessor at this address is for nobody here.
            is_for_me = packet.addressee in (None, self.me)
            for frame in packet.frames if not packet.is_corrupted else ():
                if is_for_me or not frame.epoch:
                    self._write_frame(trace.RX, packet.sender, packet.incarnation, frame)
        rejected = dict(self.node.rejected)
        self._unicast.heard(packets)
        self._call(self.node.receive_datagrams, [packet.data for packet in packets], now)
        spoiled = sum(packet.is_corrupted for packet in packets)
        refused = 0
        for reason, count in self.node.rejected.items():
            for _ in range(count - rejected.get(reason, 0)):
                # Late packets for a predecessor at this address are refused too, and rightly.
                refused += reason != Reject.ADDRESSEE.value
                self._scribe.write(trace.REJECT, detail=reason)
        if refused != spoiled:
            self._recorder.find(
                "G1", f"{self._name} got {spoiled} corrupted datagrams and refused {refused}"
            )
        self._observe()
        self._unicast.heard(())

    def send(
        self,
        payloads: Sequence[bytes],
        now: int,
        to: Member | None = None,
        stream: Stream = Stream.FIFO,
    ) -> int:
        """How many were accepted; 0 also where the node is closed."""
        self._is_sending = True
        try:
            accepted = self._call(self.node.send, payloads, now, to=to, stream=stream)
        except GroupClosed:
            if to is None:
                self._scribe.write(trace.SEND_FAIL, stream=int(stream), detail="closed")
            else:
                self._scribe.write_about(trace.SEND_FAIL, to, detail="closed")
            return 0
        finally:
            self._is_sending = False
        if to is None:
            self._multicast.sent(stream, payloads[:accepted])
        else:
            self._unicast.sent(to, payloads[:accepted])
        self._observe()
        if self._taken:
            taken, self._taken = self._taken, []
            self._put_aside(taken)
            self._observe()
        if accepted < len(payloads):
            if to is None:
                self._multicast.blocked(stream, payloads[accepted])
            else:
                self._unicast.blocked(to, payloads[accepted])
        return accepted

    def close_to(self, peer: Member, now: int) -> None:
        self._call(self.node.close_to, peer, now)
        self._observe()

    def drop_from(self, peer: Member, now: int) -> None:
        self._call(self.node.drop_from, peer, now)
        self._scribe.write_about(trace.UNICAST_DROP, peer)
        self._observe()

    def sync(self, peer: Member, now: int) -> None:
        try:
            self._call(self.node.sync, peer, now)
        except UsageError:
            return  # nothing has come from there yet
        self._scribe.write_about(trace.SYNC_CALL, peer)
        self._observe()

    def install_view(self, view: View, now: int) -> None:
        self._write_view(trace.VIEW_INPUT, view)
        self._call(self.node.install_view, view, now)
        self._observe()

    def install_digest(self, digest: Digest, now: int) -> None:
        self._call(self.node.install_digest, digest, now)
        self._observe()

    def start(self, now: int) -> None:
        self._call(self.node.start, now)
        self._observe()

    def add_candidates(self, addresses: Iterable[Address], now: int) -> None:
        self._call(self.node.add_candidates, addresses, now)
        self._observe()

    def transport_hint(self, address: Address, now: int) -> None:
        self._call(self.node.transport_hint, address, now)
        self._observe()

    def leave(self, now: int) -> None:
        self._scribe.write(LEAVE)
        self._call(self.node.leave, now)
        self._observe()

    def provide_state(self, transfer: int, limit: int, now: int) -> bool:
        """Give up to `limit` chunks of this state. Whether it may go on at once."""
        assert self._state is not None
        left = self._state.keeper.giving.get(transfer, [])
        chunks, is_last = left[:limit], len(left) <= limit
        accepted = self._call(self.node.provide_state, transfer, chunks, now, is_last=is_last)
        del left[:accepted]
        self._observe()
        return accepted == len(chunks) and not is_last

    def refuse_state(self, transfer: int, now: int) -> None:
        assert self._state is not None
        self._state.refuse(transfer)
        self._call(self.node.refuse_state, transfer, now)
        self._observe()

    def handle_timeout(self, now: int) -> None:
        self._unicast.before_timeout()
        self._call(self.node.handle_timeout, now)
        self._unicast.after_timeout()
        self._observe()

    def close(self, now: int) -> None:
        self._call(self.node.close, now)
        self._observe()

    def vote_now(self, now: int) -> None:
        self._call(self.node.vote_now, now)
        self._observe()

    def check_invariants(self) -> None:
        """To be called after every input."""
        try:
            self.node.check_invariants()
        except AssertionError as error:
            raise NodeFailure(
                f"{self._name}: an invariant is broken: {_place_of(error)}"
            ) from error

    def note(self, event: str) -> None:
        """The member crashes, pauses or resumes."""
        self._scribe.write(event)

    def end(self) -> None:
        """The run is over, and the member lives."""
        if self._state is not None:
            self._state.end()

    # Outputs

    def take(self, limit: int, now: int) -> list[Event]:
        """What happened, and up to `limit` messages."""
        is_behind = self._state is not None and self._state.is_behind
        self._is_taking = True
        events = self._call(self.node.take_events, limit, now)
        self._is_taking = False
        taken, self._taken = self._taken, []
        has_messages = bool(taken)
        if is_behind and not self._is_catching_up:
            self._put_aside(taken)
        for event in events:
            match event:
                case Delivered() | FragmentsTaken():
                    has_messages = True
                    self._write_delivery(event, is_behind=is_behind)
                case Undeliverable() | GapSkipped():
                    self._unicast.lost(event)
                case ViewInstalled(view, parts):
                    self._write_parts(view, parts)
                case Closed(reason):
                    self.is_closed = True
                    self._last_word = "excluded" if self.may_rejoin else reason
            if self._state is not None:
                self._state.see(event)
        views, self._views_taken = self._views_taken, []
        for view in views:
            self._enter_view(view)
        if self._is_catching_up:
            self._put_aside(taken)
        if has_messages or views:
            self._observe()
        return events

    def take_packets(self) -> list[tuple[Address | None, Packet]]:
        """What the node sends, as packets that tell what is in them."""
        found, self._outgoing = self._outgoing, []
        found += self._next_packets()
        if self._last_word:  # acks of what was taken may go with it
            self._scribe.write(trace.STOP, detail=self._last_word)
            self._last_word = ""
        return found

    def _next_packets(self) -> list[tuple[Address | None, Packet]]:
        found: list[tuple[Address | None, Packet]] = []
        last_new: dict[Member | None, Packet] = {}
        dests = dict.fromkeys(dest for dest, _ in self.node.pending())
        members = [dest for dest in dests if isinstance(dest, Member)]
        for dest, datagram in self._call(self.node.take_datagrams):
            peer = None if dest is None else self._addressee(dest, datagram, members)
            try:
                _, frames = self._wiretap.unpack(datagram, overhear=True)
            except DecodeError as error:
                raise NodeFailure(f"{self._name} sends what cannot be decoded: {error}") from error
            seen = [
                self._multicast.look_at(frame)
                or membership_watch.look_at(frame)
                or self._uniform.look_at(frame)
                or self._unicast.look_at(frame, peer)
                for frame in frames
            ]
            kinds = tuple(dict.fromkeys(frame.kind for frame in seen))
            packet = Packet(self.slot, self._name, self._inc, datagram, seen, kinds, peer)
            if any(frame.is_new_data for frame in seen):
                last_new[peer] = packet
            for frame in seen:
                if peer is None:
                    self._write_frame(trace.TX, "", 0, frame)
                else:
                    self._write_frame(trace.TX, str(peer), peer.incarnation, frame)
            for sent in frames:
                self._multicast.left(sent, self._view)
            found.append((dest, packet))
        for packet in last_new.values():
            packet.is_last_data = True
        return found

    def packet_fault(self, event: str, fault: str, packet: Packet, peer: str) -> None:
        """The network lost, copied or spoiled a packet of this member."""
        for frame in packet.frames:
            self._scribe.write(event, peer=peer, detail=fault, **frame.columns)

    # Watching

    def _call(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except RingcastError:
            raise
        except Exception as error:
            raise NodeFailure(f"{self._name}: {method.__name__} raised {error!r}") from error

    def _write_frame(self, event: str, peer: str, peer_inc: int, frame: Seen) -> None:
        self._scribe.write(event, peer=peer, peer_inc=peer_inc, again=frame.again, **frame.columns)

    def _addressee(self, dest: Address, datagram: bytes, members: list[Member]) -> Member | None:
        """Which member at this address it is for: after a restart there may be two."""
        found = [member for member in members if member.address == dest]
        if len(found) > 1:
            for member in found:
                try:
                    self._codec_of(member).unpack(datagram)
                except DecodeError:
                    continue
                return member
        return found[0] if found else self._peers.get(dest)

    def _observe(self) -> None:
        """Turn what changed in the node into rows."""
        view = self.node.view
        if view is not None and view is not self._view:
            self._enter_view(view)
        self._observe_windows()

    def _observe_windows(self) -> None:
        self._multicast.observe(is_new_view=self._is_new_view)
        self._unicast.observe()
        self._uniform.observe()
        if self._state is not None:
            self._state.observe()
        self._is_new_view = False

    def _enter_view(self, view: View) -> None:
        self._view = view
        self._is_new_view = True
        if self.me in view:
            for member in view:
                self._peers[member.address] = member
            self._write_view(trace.VIEW, view)

    # What the node says of itself

    def received(self, datagram: Buffer, now: int) -> None:
        """The packet says more."""

    def transmitted(
        self, dest: Member | Address | None, datagrams: Sequence[bytes], now: int
    ) -> None:
        """So does what `take_packets` makes of it."""

    def offered(
        self,
        to: Member | None,
        stream: Stream,
        payloads: Sequence[bytes],
        accepted: int,
        now: int,
    ) -> None:
        """`send` is told what was accepted."""

    def after_input(self, now: int) -> None:
        """Whoever has called looks."""

    def before_change(self, view: View | None, now: int) -> None:
        """What the node did and wanted to send up to here was in the view before."""
        if self._is_taking and view is not None:
            self._views_taken.append(view)  # behind the deliveries, which are not known yet
        elif self._is_taking:
            self._multicast.before_close()  # behind the deliveries
        elif self.has_own_views:  # else whoever hands in views and closes looks after it
            self._unicast.after_timeout()
            self._observe_windows()
            if view is not None:
                self._outgoing += self._next_packets()
                self._enter_view(view)

    def before_take(self, now: int, *, buffered: bool) -> None:
        """Windows may have opened in this very input: they do so before something is taken."""
        if buffered and not self._is_taking and not self._is_sending:
            self._observe_windows()

    def took(self, events: Sequence[Event], now: int, *, buffered: bool) -> None:
        if not buffered or self._state is None:
            return
        if self._is_taking or self._is_sending:
            self._taken += [event for event in events if not _is_unicast(event)]
        else:
            self._put_aside(events)

    # State on its way: what is taken is not what the application gets

    @property
    def _is_catching_up(self) -> bool:
        return self._state is not None and self._state.is_catching_up

    def _put_aside(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Delivered | FragmentsTaken):
                self._multicast.delivered(event, detail=trace.ASIDE)

    def _write_delivery(self, event: Delivered | FragmentsTaken, *, is_behind: bool) -> None:
        if event.epoch:
            self._unicast.delivered(event)
        elif self._state is None:
            self._multicast.delivered(event)
        elif is_behind:
            self._state.handed(event)
        else:
            self._multicast.delivered(event, block_hash=self._state.hash_of(event))

    def _write_parts(self, view: View, parts: tuple[View, ...]) -> None:
        for part in parts:
            self._scribe.write_about(
                trace.PART,
                part.id.creator,
                seqno=part.counter,
                view=view.counter,
                view_creator=member_key(view.id.creator),
                members=tuple(map(member_key, part.members)),
            )

    def _write_view(self, event: str, view: View) -> None:
        self._scribe.write(
            event,
            view=view.counter,
            view_creator=member_key(view.id.creator),
            members=tuple(map(member_key, view.members)),
        )


def _is_unicast(event: Event) -> bool:
    return isinstance(event, Delivered | FragmentsTaken) and event.epoch > 0


def _place_of(error: AssertionError) -> str:
    """Where an assertion stands, and its text if it has one."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return str(error)
    code = last.tb_frame.f_code
    return f"{code.co_filename.rpartition('/')[2]}:{last.tb_lineno} {error}".rstrip()
