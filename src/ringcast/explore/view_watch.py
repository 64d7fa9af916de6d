"""What the members of a small group do, as rows for the rules of views, and what else must hold of
it: that all in the group in the end have what was sent in their view, and one state."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ringcast.events import (
    Closed,
    Delivered,
    Event,
    FragmentsDelivered,
    StateBegun,
    StateChunk,
    ViewInstalled,
)
from ringcast.explore.view_world import RULES, judge
from ringcast.model import Member, Origin, Stream, ViewId
from ringcast.node import Node
from ringcast.rules.evidence import Run
from ringcast.rules.history import History
from ringcast.rules.table import ORDER
from ringcast.sim.plain import PlainMember
from ringcast.trace import rows as trace
from ringcast.trace.observe.messages import origin_of, range_of
from ringcast.trace.observe.observer import TraceObserver
from ringcast.trace.observe.order import order_of
from ringcast.trace.rows import Facts, Row, member_key, naming, naming_id

STREAMS = (Stream.FIFO, Stream.UNIFORM)
ORDERED = (Stream.FIFO, Stream.TOTAL)


class Rows:
    """In place of a recorder: the rows of one member, in one order with those of the others."""

    level = "deliveries"

    def __init__(self, me: Member, rows: list[Row]) -> None:
        self._me = me
        self._rows = rows
        self._idx = 0

    def write(self, event: str, now: int, **columns: Any) -> None:
        me, rows = self._me, self._rows
        rows.append(Row(event, str(me), me.incarnation, self._idx, len(rows), now, **columns))
        self._idx += 1

    def opened(self, origin: Origin, offset: int, view_id: ViewId, now: int) -> None:
        place = {"seqno": offset, "seqno2": offset, **naming_id(view_id)}
        self.write(trace.OPEN, now, **naming(origin), **place)

    def sent(
        self, stream: Stream, first: int, payloads: Sequence[bytes], view_id: ViewId, now: int
    ) -> None:
        self.sent_fragments(stream, first, first + len(payloads) - 1, view_id, now)

    def sent_fragments(
        self, stream: Stream, first: int, last: int, view_id: ViewId, now: int
    ) -> None:
        place = {"seqno": first, "seqno2": last, **naming_id(view_id)}
        self.write(trace.SEND, now, **naming(Origin(self._me, stream)), **place)

    def delivered(self, event: Delivered | FragmentsDelivered, now: int, detail: str = "") -> None:
        named = naming(origin_of(event))
        self.write(trace.DELIVER, now, **named, **range_of(event), detail=detail)

    delivered_fragments = delivered

    def accepted(self, first: int, last: int, view_id: ViewId, now: int) -> None:
        numbers = {"seqno": first, "seqno2": last, "stream": int(Stream.TOTAL)}
        self.write(trace.ACCEPT, now, **numbers, **naming_id(view_id))

    def ordered(self, event: Delivered, now: int) -> None:
        self.write(trace.ORDER, now, **order_of(event))

    def forget_sent(self, *_: object) -> None: ...
    def dropped(self, *_: object) -> None: ...
    def tick(self, *_: object) -> None: ...


def watch(node: Node, rows: list[Row], see: Callable[[Member, Event], None]) -> PlainMember:
    """This node, with rows of what it does, as recorded members write them. `see` is told each
    event that the application takes."""
    written = Rows(node.me, rows)
    node.observer = TraceObserver(node, written)  # type: ignore[arg-type]

    def take(me: Member, event: Event) -> None:
        if isinstance(event, Closed):
            written.write(trace.STOP, 0, detail=event.reason)
        see(me, event)

    return PlainMember(node, take)


class Applications:
    """Of a whole group: what they want to send, what they get, and the state of each."""

    def __init__(self, streams: tuple[Stream, ...], *, retains: bool) -> None:
        self.wrong: list[str] = []
        self.rows: list[Row] = []
        self.backlog: defaultdict[Member, dict[Stream, deque[bytes]]] = defaultdict(
            lambda: {stream: deque() for stream in streams}
        )
        self.state: defaultdict[Member, set[bytes]] = defaultdict(set)
        self._retains = retains
        self._has_order = Stream.TOTAL in streams
        self._places: dict[bytes, tuple[Origin, int]] = {}
        """Of each message: its stream, and its number there."""
        self._wanted: Counter[Origin] = Counter()
        self._got: defaultdict[tuple[Member, ViewId], dict[Origin, range]] = defaultdict(dict)
        """By member and view: the numbers of the messages that were delivered."""
        self._last: defaultdict[Member, dict[Origin, int]] = defaultdict(dict)
        self._given: set[Member] = set()  # who has got a state
        self._views: dict[Member, ViewId] = {}
        """The last that each application was told of."""
        self._left: list[Member] = []

    def want(self, member: Member, stream: Stream, size: int) -> None:
        """One more message, unlike any other."""
        origin = Origin(member, stream)
        self._wanted[origin] += 1
        number = self._wanted[origin]
        payload = f"{member}{stream.name}{number}".encode().ljust(size, b".")
        self._places[payload] = origin, number
        self.backlog[member][stream].append(payload)

    def see(self, me: Member, event: Event) -> None:
        """What the application of this member is told."""
        match event:
            case ViewInstalled(view):
                self._views[me] = view.id
            case Delivered():
                self.state[me].update(event.run.payloads)
                for payload in event.run.payloads:
                    if payload not in self._places:
                        self.wrong.append("G1: delivered what nobody has sent")
                        continue
                    origin, number = self._places[payload]
                    got = self._got[me, event.view_id]
                    # Of its own it gets every one, unless some are in a state that it was given.
                    is_every = origin.sender == me and me not in self._given
                    due = self._last[me].get(origin, 0) + 1 if is_every else number
                    before = got.setdefault(origin, range(due, due))
                    if number != before.stop:
                        self.wrong.append("VS3: delivered twice, or one before it was not")
                    got[origin] = range(before.start, number + 1)
                    self._last[me][origin] = number
            case StateBegun():
                self.state[me].clear()
                self._given.add(me)
            case StateChunk(payload):
                self.state[me].update(filter(None, payload.split(b"\n")))
            case Closed():
                self._left.append(me)

    # What must hold

    def judge(self, living: Sequence[Member], premises: Counter[str], *, has_state: bool) -> None:
        """After a run, at whose end these are in the group. With a state theirs are the same, but
        for what the departed have sent and nobody retains."""
        facts = Facts(purge="acks_retained" if self._retains else "acks")
        rules, rows = list(RULES.values()), self.rows
        if self._has_order:  # nothing uniform is sent; who misses a view is explored elsewhere
            rules = [rule for rule in rules if rule.id not in ("VS6", "VS7")]
            self.wrong += judge([*rows, *self._ends(living)], facts, premises, ORDER)
        self.wrong += judge(rows, facts, premises, rules)
        history, keys = Run(self.rows, facts).history, [*map(member_key, living)]
        self.wrong += self._left_out(history, keys, premises)
        self.wrong += self._left_behind(history, keys, premises)
        gots = [self._got[member, self._views[member]] for member in living]
        ends = {origin: last for origin, last in self._wanted.items() if origin.sender in living}
        if any(
            got != gots[0] or ends.items() - self._last[who].items()
            for who, got in zip(living, gots, strict=True)
        ):
            self.wrong.append("N-L1: not all that was sent in the last view was delivered")
        lost = {
            payload
            for payload, (origin, _) in self._places.items()
            if origin.sender not in living
            and not (self._retains or origin.stream is not Stream.FIFO)
        }
        states = [self.state[member] - lost for member in living]
        if has_state:
            premises["T1"] += 1
            if any(state != states[0] for state in states):
                self.wrong.append("T1: members have not the same state")

    def _ends(self, living: Sequence[Member]) -> Iterator[Row]:
        """Who is dead, and that all is calm: what some rules of one order go by."""
        for who in {row.key for row in self.rows} - {(str(who), who.incarnation) for who in living}:
            yield Row(trace.CRASH, *who, len(self.rows))
        yield Row(trace.PHASE, "", 0, 0, kind="end")

    def _left_out(
        self, history: History, living: Sequence[str], premises: Counter[str]
    ) -> Iterator[str]:
        for before, after in history.steps():
            if before.view.member not in living:
                continue
            premises["VL"] += 1
            if not set(living).intersection(before.view.members) <= set(after.view.members):
                yield "VL: a member goes on without another that lives and was with it"

    def _left_behind(
        self, history: History, living: Sequence[str], premises: Counter[str]
    ) -> Iterator[str]:
        left = {member_key(member) for member in self._left}
        lives = [*filter(None, map(history.life, living))]
        for (name, inc), sender in history.lives.items():
            for stay in sender.stays.values() if f"{name}#{inc}" in left else ():
                for stream, sent in stay.sent.items():
                    for there in (life.stays.get(stay.key) for life in lives):
                        premises["R8"] += there is not None
                        if there is not None and there.through((name, inc, stream)) < sent.last:
                            yield "R8: a member left, and not all that it sent was delivered"
