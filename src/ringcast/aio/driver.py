"""Driver: one Node on a transport in an event loop.

Its whole life is that of every driver: call an input, take the events, send the datagrams, wait
for the next deadline. Messages are not taken here: whoever reads the group pulls them. Besides it
keeps asking where other members may be found.
"""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from ringcast.aio.gathering import Gatherings
from ringcast.aio.reach import is_loopback
from ringcast.aio.spinner import Spinner
from ringcast.core.shared import Phase
from ringcast.errors import Reject
from ringcast.events import Event, RequestReceived
from ringcast.model import Address, Member, Stream, View
from ringcast.protocols.views.layer import GroupViews
from ringcast.wire.bursts import bursts_of
from ringcast.wire.seal import SHORT_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ringcast.aio.keys import Lock
    from ringcast.aio.transport import Transport
    from ringcast.arguments import Source
    from ringcast.node import Node
    from ringcast.trace.observe.observer import TraceObserver

DRAIN_MAX = 16
"""Bursts read before anything else gets its turn."""

ROOM_S = 0.25
"""How long to wait for the disk before looking what else has happened."""

LOOK_S = 0.05
LOOK_AGAIN_S = 1.0
"""How often the source is asked: by who looks for the group, and by who is in it."""


class Owner(NamedTuple):
    """Who is told what happens."""

    on_event: Callable[[Event], None]
    """What the node has to tell, messages among it, in its order."""
    on_request: Callable[..., None]
    on_reply: Callable[..., None]
    """A reply came. `at_once`: no event has to be told before it; the task that waits goes on."""
    on_input: Callable[[], None]
    """Something arrived, or a deadline came: there may be messages to take."""


class Driver:
    """Moves bytes and time into a Node, and datagrams and control events out of it."""

    def __init__(
        self,
        node: Node,
        transport: Transport,
        loop: asyncio.AbstractEventLoop,
        owner: Owner,
        source: Source,
        *,
        clock: Callable[[], int],
        observer: TraceObserver | None = None,
        lose: Callable[[], bool] | None = None,
        spin_s: float = 0.0,
        lock: Lock | None = None,
    ) -> None:
        self.node = node
        self._lock = lock
        if lock is not None:
            node.datagrams.passage.on_refused = lock.refuse
        self.transport = transport
        self.loop = loop
        self._owner = owner
        self._source = source
        self.now = clock
        """What the node's time is."""
        self._observer = node.observer = observer
        self._lose = lose
        self._spinner = Spinner(loop, transport.inputs, spin_s) if spin_s else None
        self._datagram_bytes = 0
        self._view: View | None = None  # that the transport knows of
        self._dests: list[Address] = []  # where what is for all others is sent
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._look_timer: asyncio.TimerHandle | None = None
        self.is_turn_due = False
        self._has_spoken = False  # asked or answered, in this turn
        self._is_look_due = False  # there may be messages that the owner has not been told of
        self.is_open = True
        self.gathered = Gatherings(self)

    @property
    def membership(self) -> GroupViews:
        membership = self.node.membership
        assert isinstance(membership, GroupViews)  # who joins has one
        return membership

    def start(self) -> None:
        """Begin to look for the group."""
        self.transport.start(self.loop, self._on_readable)
        now = self.now()
        if self._observer is not None:
            self._observer.start(now)
        self.node.start(now)
        self._source.register(self.node.me)
        self._look()

    def send(self, payloads: Sequence[bytes], stream: Stream, to: Member | None) -> int:
        """How many were accepted. Sends of one turn of the loop share datagrams."""
        gathered = self.gathered
        if gathered.waiting:
            gathered.settle()
            if gathered.waiting and gathered.keeps(stream, to):
                payloads = payloads[:0]  # those that are kept come first
        return self.offer(payloads, stream, to)

    def offer(self, payloads: Sequence[bytes], stream: Stream, to: Member | None) -> int:
        """The same, of what was gathered: before all else."""
        now = self.now()
        accepted = self.node.send(payloads, now, stream=stream, to=to)
        self._is_look_due = True
        if not self.is_turn_due:
            self.end_turn_soon()
        return accepted

    def tell(self, event: Event) -> None:
        """Of what was gathered here."""
        self._owner.on_event(event)

    def last_total(self, stream: Stream) -> int:
        """The number of the last total message that was sent, if that is the stream; else 0."""
        return self.node.multicast.highest_sent(stream) if stream is Stream.TOTAL else 0

    def ask_receipt(self, stream: Stream, to: Member | None) -> int | None:
        """Of what was sent there last: see Node.ask_receipt."""
        self._is_look_due = True
        self.end_turn_soon()
        return self.node.ask_receipt(self.now(), stream=stream, to=to)

    def say(self, message: bytes, to: Member, *, is_awaited: bool = False) -> None:
        """Ask the application of a member of the view, or answer it. The first of a turn goes at
        once: somebody waits. Those that follow share datagrams."""
        if to == self.node.me:
            self.gathered.settle()
        now = self.now()
        self.node.say(message, to, now, is_awaited=is_awaited)
        if not self._has_spoken:
            self._has_spoken = True
            self._send_datagrams(now)
        if not self.is_turn_due:
            self.end_turn_soon()

    def take(self, limit: int, *, only_own: bool = False, is_looking: bool = False) -> None:
        """Tell the owner up to `limit` messages, in runs; or of this member's own to the group
        alone. Calling this is delivery. `is_looking`: called from `on_input`, while nothing else
        waits for the end of this turn."""
        if self.gathered.waiting:
            self.gathered.settle()  # the room that this makes may come with an allowance of less
        now = self.now()
        for event in self.node.take_events(limit, now, only_own=only_own):
            self._owner.on_event(event)
        if self.is_open:
            self._send_datagrams(now)
            if not is_looking:
                self._is_look_due = True
                self.end_turn_soon()

    @property
    def has_room(self) -> bool:
        """Whether what is taken can be kept, where it must be."""
        return self._observer is None or self._observer.recorder.has_room

    async def wait_for_room(self) -> None:
        """For a while: until the disk has caught up, or somebody should look again."""
        if self._observer is not None:
            await asyncio.to_thread(self._observer.recorder.wait_for_room, ROOM_S)

    def provide_state(self, transfer: int, chunks: Sequence[bytes], *, is_last: bool) -> int:
        """The next chunks of a state; how many were accepted."""
        self.gathered.settle()
        now = self.now()
        accepted = self.node.provide_state(transfer, chunks, now, is_last=is_last)
        self._after_input(now)
        return accepted

    def refuse_state(self, transfer: int) -> None:
        """This state, or the rest of it, is not to be had here."""
        self.gathered.settle()
        now = self.now()
        self.node.refuse_state(transfer, now)
        if self.is_open:
            self._after_input(now)

    def sync(self, peer: Member) -> None:
        """Ask this sender where its messages to us stand."""
        self.gathered.settle()
        now = self.now()
        if self._observer is not None:
            self._observer.asked_sync(peer, now)
        self.node.sync(peer, now)
        self._after_input(now)

    def stabilize(self) -> None:
        """Find out at once what everybody has delivered, and purge that."""
        self.gathered.settle()
        self.node.stabilize(self.now())
        self.take(0)

    def leave(self, within_s: float) -> None:
        """Go in good order; Closed follows within that time."""
        self.gathered.settle()
        now = self.now()
        self.node.leave(now, now + round(within_s * 1e9))
        self._after_input(now)

    def close(self) -> None:
        """Be gone at once. Whoever has opened the transport closes it."""
        if self.is_open:
            self.gathered.settle()
            self.is_open = False
            self._source.unregister()
            self.transport.stop()
            if self._spinner is not None:
                self._spinner.close()
            for timer in (self._timer, self._look_timer):
                if timer is not None:
                    timer.cancel()
            now = self.now()
            self.node.close(now)
            for event in self.node.take_events(0, now):
                self._owner.on_event(event)
            self._send_datagrams(now)
            if self._observer is not None:
                self._observer.stop(now, timeout_s=0.0)  # a disk may be slow: not in the event loop

    def explain(self) -> list[str]:
        self.gathered.settle()
        now = self.now()
        reasons = self.node.explain(now)
        if not self.has_room:
            reasons.append("messages wait here until the disk has taken those before them")
        if self._lock is not None:
            reasons += self._lock.explain()
        elif sealed := self.node.rejected.get(Reject.SEALED.value):
            reasons.append(f"sealed datagrams refused: {sealed}; their senders have a key")
        return reasons + self.transport.explain(self._awaited(), now)

    def _awaited(self) -> Mapping[Address, str]:
        """Whose answers matter now: who looks for its group hopes for any, who is in it counts on
        its members."""
        membership = self.membership
        if membership.is_member:
            return {member.address: str(member) for member in self.node.view or ()}
        is_looking = membership.phase is Phase.LOOKING
        candidates = membership.discovery.candidates if is_looking else ()
        return {address: str(address) for address in candidates}

    @property
    def rejected(self) -> dict[str, int]:
        """What was refused, by reason: datagrams, and who opened a connection."""
        found = dict(self.node.rejected)
        for reason, count in self.transport.rejected.items():
            found[reason] = found.get(reason, 0) + count
        return found

    def stats(self) -> dict[str, object]:
        self.gathered.settle()
        return {
            **self.node.stats(),
            "rejected": self.rejected,
            "transport": self.transport.stats(),
            "recorder": self._observer.recorder.stats() if self._observer is not None else None,
        }

    # Inputs

    def _on_readable(self) -> None:
        if self.gathered.waiting:
            self.gathered.settle()
        now = self.now()
        bursts = self.transport.drain(DRAIN_MAX)
        lose = self._lose
        if lose is not None:
            bursts = ([one for one in burst if not lose()] for burst in bursts)
        datagrams = self.node.datagrams
        opened = datagrams.passage.open_bursts(bursts, now)
        request = datagrams.receive(opened, now, stops_at_request=True)
        if request is None:
            self._after_input(now)
        else:
            # Whoever waits for it goes on at once, before anybody looks what else has arrived. It
            # brings no message: if nothing else has, little is left to be done.
            is_turn_due, self.is_turn_due = self.is_turn_due, True
            try:
                if isinstance(request, RequestReceived):
                    self._owner.on_request(request, at_once=True)
                else:
                    self._owner.on_reply(request, at_once=True)
            finally:
                self.is_turn_due = is_turn_due
                other = next(opened, None) if self.is_open else None
                if other is not None:
                    self.gathered.settle()  # what whoever waited has sent
                    now = self.now()
                    datagrams.receive(chain((other,), opened), now)
                    self._after_input(now)
                elif not is_turn_due:
                    self._end_turn()  # whoever waited has had its turn
        if self._spinner is not None:
            self._spinner.stay_awake()

    def _on_timer(self) -> None:
        self._timer = None
        self.gathered.settle()
        # Never early: the loop's clock and ours may differ by a rounding.
        now = max(self.now(), self._timer_at)
        self.node.handle_timeout(now)
        self._after_input(now)

    def _look(self) -> None:
        """Who is in the group asks seldom, and only its coordinator: it alone looks further."""
        self.gathered.settle()
        membership = self.membership
        delay = LOOK_AGAIN_S if membership.is_member else LOOK_S
        self._look_timer = self.loop.call_later(delay, self._look)
        if self._lock is not None:
            self._lock.look(self.now())
        if not membership.is_member or membership.coordinator == self.node.me:
            now = self.now()
            self.node.add_candidates(self._source.candidates(), now)
            self._after_input(now)

    def end_turn_soon(self) -> None:
        """Whoever waits goes first; then what is left to do is done, once for all of this turn."""
        if not self.is_turn_due:
            self.is_turn_due = True
            self.loop.call_soon(self._end_turn)

    def send_datagrams(self) -> None:
        """What is ready to leave does."""
        if self.is_open:
            self._send_datagrams(self.now())

    def _end_turn(self) -> None:
        if self.gathered.waiting:
            self.is_turn_due = True  # what is sent now leaves now
            self.gathered.settle()
        self.is_turn_due = self._has_spoken = False
        if self.is_open:
            now = self.now()
            waiting = self.node.effects
            has_news = bool(waiting.events or self.transport.hints)
            if has_news:
                self._tell_news(now)
            if waiting.frames or waiting.lone is not None:
                self._send_datagrams(now)  # before what can wait: somebody may wait for these
            if self._is_look_due or has_news:
                self._is_look_due = False
                self._owner.on_input()
            deadlines = self.node.deadlines
            if self._timer is None or deadlines.is_stale or deadlines.first < self._timer_at:
                self._arm(now)

    # Outputs

    def _after_input(self, now: int) -> None:
        if self.gathered.waiting:
            self.gathered.settle()
        self._tell_news(now)
        self._is_look_due = False
        self._owner.on_input()
        self._send_datagrams(now)
        if not self.is_turn_due:
            self.end_turn_soon()

    def _tell_news(self, now: int) -> None:
        if self.transport.hints:
            hints, self.transport.hints = self.transport.hints, set()
            for address in hints:
                self.node.transport_hint(address, now, is_local=is_loopback(address))
        for event in self.node.take_events(0, now):
            self._owner.on_event(event)

    def _send_datagrams(self, now: int) -> None:
        view = self.node.view
        if view is not self._view and view is not None:
            self._view = view
            self.gathered.enter_view(view)
            self.transport.enter_view(view)
            if self._lock is not None:
                self._lock.enter_view(view)
            group, me = self.transport.group_address, self.node.me
            others = [member.address for member in view if member != me]
            self._dests = others if group is None else [group]
        if self.transport.datagram_bytes != self._datagram_bytes:
            self.gathered.settle()  # it was measured by what datagrams took
            self._datagram_bytes = self.transport.datagram_bytes
            self.node.datagrams.resize(self._datagram_bytes)
        waiting, outgoing = self.node.effects, self.node.datagrams
        if not (waiting.frames or waiting.lone is not None or outgoing.packed):
            return
        datagrams = outgoing.take(now)
        if self._spinner is not None:
            self._spinner.stay_awake()
        passage = outgoing.passage
        if len(datagrams) == 1 and len(datagrams[0][1]) <= SHORT_BYTES_MAX:  # as most times
            dest, sealed = datagrams[0][0], passage.seal(datagrams[0][1])
            for address in self._dests if dest is None else (dest,):
                self.transport.send(sealed, address)
            return
        for dest, unsealed in bursts_of(datagrams, passage.overhead):
            burst = passage.seal_burst(unsealed)
            for address in self._dests if dest is None else (dest,):
                if len(burst) == 1:
                    self.transport.send(burst[0], address)
                else:
                    self.transport.send_burst(burst, address)

    def _arm(self, now: int) -> None:
        deadline = self.node.deadlines.next()
        if deadline is None or (self._timer is not None and self._timer_at <= deadline):
            return  # a timer that fires early finds nothing due and is armed again
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        delay = max(0, deadline - now) / 1e9
        self._timer = self.loop.call_later(delay, self._on_timer)
