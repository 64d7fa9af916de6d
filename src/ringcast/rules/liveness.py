"""G8, N-L1–N-L3, N-L5: what must come, and by when, once the network has healed."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING, NamedTuple

from ringcast.model import Stream
from ringcast.rules.algebra import NOWHERE, Lives, Progress, merge_progress
from ringcast.rules.changes import Freezes
from ringcast.rules.findings import WITNESS_ROWS_MAX, Findings
from ringcast.rules.flow import HighDrops
from ringcast.rules.sequential import Rule
from ringcast.trace.rows import (
    DELIVER,
    DROP_HIGH,
    OPEN,
    PHASE,
    PURGE,
    SEND,
    SEND_BLOCK,
    SEND_FAIL,
    SEND_UNBLOCK,
    TX,
    VIEW,
    WIN,
    split_key,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from typing import ClassVar, Self

    from ringcast.rules.findings import Verdict
    from ringcast.trace.rows import Facts, MemberKey, OriginKey, PairKey, Row

STABILITY_KINDS = (
    "stability_report",
    "stability_query",
    "stable",
    "peer_repair_request",
    "peer_repair",
)
"""What members that report say to each other, until all know what everybody has."""

NO_COMMON_CLOCK = "how long it took: members' clocks cannot be compared"


class Quiet:
    """Once everything is delivered and known to be, nobody asks for repair or repeats data, and
    where members report nobody reports; as long as nobody takes nothing.

    Judged in the `end` phase, and not before the last send's drain bound is over.
    """

    id = "G8"
    title = "an idle group repairs nothing"
    events = (PHASE, SEND, TX, VIEW)

    def __init__(self) -> None:
        self.ending: Row | None = None
        self.last_send_ns = 0
        self.last_view_ns = 0
        self.repairs: defaultdict[MemberKey, deque[Row]] = defaultdict(latest_rows)
        self.reports: defaultdict[MemberKey, deque[Row]] = defaultdict(latest_rows)

    def feed(self, row: Row) -> None:
        if row.event == TX:
            if row.kind == "nack" or (row.kind == "data" and row.again):
                self.repairs[row.node, row.inc].append(row)
            elif row.kind in STABILITY_KINDS:
                self.reports[row.node, row.inc].append(row)
        elif row.event == SEND:
            self.last_send_ns = max(self.last_send_ns, row.mono_ns)
        elif row.event == VIEW:
            self.last_view_ns = max(self.last_view_ns, row.mono_ns)
        elif row.kind == "end":
            self.ending = row

    def merge(self, other: Quiet) -> None:
        self.ending = self.ending or other.ending
        self.last_send_ns = max(self.last_send_ns, other.last_send_ns)
        self.last_view_ns = max(self.last_view_ns, other.last_view_ns)
        for member, rows in other.repairs.items():
            self.repairs[member] += rows
        for member, rows in other.reports.items():
            self.reports[member] += rows

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        if self.ending is None or facts.gst_ns is None:
            return found.verdict(self.id, self.title)
        longest = facts.drain_bound_ns(max(facts.capacity.values(), default=1))
        drained_ns = max(facts.gst_ns, self.last_send_ns) + longest
        quiet_ns = max(self.ending.mono_ns, drained_ns)
        if facts.end_ns <= quiet_ns:
            found.unknown.add("the run ended before it had to be quiet")
        else:
            found.premises = 1
        self._judge(self.repairs, quiet_ns, found)
        if not facts.stopped_members:  # else something never becomes stable
            # Each view makes members report twice.
            reported_ns = self.last_view_ns + 2 * facts.round_bound_ns
            self._judge(self.reports, max(quiet_ns, reported_ns), found)
        return found.verdict(self.id, self.title)

    def _judge(self, said: Mapping[MemberKey, deque[Row]], quiet_ns: int, found: Findings) -> None:
        for rows in said.values():
            late = [row for row in rows if row.mono_ns > quiet_ns]
            if late:
                found.violate(f"{late[0].member} still sends {late[-1].kind}", self.ending, *late)


def latest_rows() -> deque[Row]:
    return deque(maxlen=WITNESS_ROWS_MAX - 1)


class Journal:
    """Who sent, opened, delivered and purged what of one stream, and when; and when members were
    frozen."""

    EVENTS = tuple(dict.fromkeys((SEND, OPEN, DELIVER, PURGE, *Lives.EVENTS, *Freezes.EVENTS)))

    __slots__ = ("_stream", "delivered", "freezes", "lives", "opened", "purged", "sent")

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.sent: defaultdict[OriginKey, list[Row]] = defaultdict(list)
        self.opened: dict[PairKey, Row] = {}
        self.delivered: defaultdict[PairKey, Progress] = defaultdict(Progress)
        self.purged: defaultdict[OriginKey, Progress] = defaultdict(Progress)
        self.lives = Lives()
        self.freezes = Freezes()

    def feed(self, row: Row) -> None:
        if row.event in Lives.EVENTS:
            self.lives.feed(row)
        if row.event in Freezes.EVENTS:
            self.freezes.feed(row)
        if row.stream != self._stream:
            return
        if row.event == DELIVER:
            self.delivered[row.pair].rise(row.mono_ns, row.seqno2, row)
        elif row.event == SEND:
            self.sent[row.own_origin].append(row)
        elif row.event == PURGE:
            self.purged[row.own_origin].rise(row.mono_ns, row.seqno, row)
        else:
            self.opened[row.pair] = row

    def merge(self, other: Journal) -> None:
        for origin, rows in other.sent.items():
            self.sent[origin] += rows
        self.opened |= other.opened
        merge_progress(self.delivered, other.delivered)
        merge_progress(self.purged, other.purged)
        self.lives.merge(other.lives)
        self.freezes.merge(other.freezes)

    def live_origins(self) -> Iterator[tuple[OriginKey, list[Row], list[Row]]]:
        """Each live sender's origin, its sends and its views, where it has both."""
        for origin, sends in self.sent.items():
            views = self.lives.views.get(origin[:2])
            if views and self.lives.is_live(origin[:2]):
                yield origin, sends, views

    def is_due(self, receiver: str, sender: str, facts: Facts) -> bool:
        """Whether this member of the sender's view lives, takes, and sees the sender in its own."""
        member = split_key(receiver)
        view = self.lives.last_view(member)
        return (
            self.lives.is_live(member)
            and receiver not in facts.stopped_members
            and view is not None
            and sender in view.members
        )

    def offset(self, pair: PairKey) -> int:
        opening = self.opened.get(pair)
        return opening.seqno if opening else 0

    def lacking(self, pair: PairKey, through: int, when_ns: int) -> int:
        """How many messages up to `through` the receiver had yet to deliver."""
        delivered = self.delivered.get(pair, NOWHERE).at(when_ns)
        return max(0, through - max(delivered, self.offset(pair)))


class OnStream:
    """A rule about how soon messages of one stream come. View changes hold them up: so long as some
    of those that it takes were frozen, the time does not run."""

    id: ClassVar[str]
    title: ClassVar[str]
    events = Journal.EVENTS
    stream: ClassVar[Stream] = Stream.FIFO

    def __init__(self) -> None:
        self.journal = Journal(self.stream)

    def feed(self, row: Row) -> None:
        self.journal.feed(row)

    def merge(self, other: Self) -> None:
        self.journal.merge(other.journal)

    @property
    def is_gated(self) -> bool:
        """Its messages wait for commits."""
        return self.stream is Stream.UNIFORM

    def waited_ns(self, members: Iterable[str], since_ns: int, until_ns: int) -> int:
        held_ns = self.journal.freezes.held_ns(map(split_key, members), since_ns, until_ns)
        return max(0, until_ns - since_ns - held_ns)


class DeliveredInTime(OnStream):
    """Every message of a live sender reaches every live member of its view within the bound.

    The time runs from the end of healing, from the send, or from when the receiver's window for
    this sender opened, whichever is last. Owed are messages sent while the receiver was in the
    sender's view for good, after the offset of its window.
    """

    id = "N-L1"
    title = "a message is delivered everywhere in time, the last one too"

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        if facts.gst_ns is not None:
            for origin, sends, views in self.journal.live_origins():
                if sends[0].run_idx < 0:
                    found.unknown.add(NO_COMMON_CLOCK)
                    continue
                for receiver in views[-1].members:
                    if self.journal.is_due(receiver, sends[0].member, facts):
                        owed = _sent_to(receiver, sends, views)
                        # All have to hold what is gated.
                        taking = views[-1].members if self.is_gated else (receiver, sends[0].member)
                        pair = (*split_key(receiver), *origin)
                        self._judge(pair, owed, taking, facts, found)
        return found.verdict(self.id, self.title)

    def _judge(
        self,
        pair: PairKey,
        owed: list[Row],
        taking: Collection[str],
        facts: Facts,
        found: Findings,
    ) -> None:
        assert facts.gst_ns is not None
        delivered = self.journal.delivered.get(pair, NOWHERE)
        opening = self.journal.opened.get(pair)
        ready_ns = max(facts.gst_ns, opening.mono_ns if opening else 0)
        offset = self.journal.offset(pair)
        is_reported = False
        for row in owed:
            since_ns = max(ready_ns, row.mono_ns)
            through = self.owed_through(row, taking, since_ns, facts)
            if through <= max(offset, row.seqno - 1):
                continue
            lacking = self.journal.lacking(pair, through, since_ns)
            bound_ns = facts.delivery_bound_ns(lacking, is_gated=self.is_gated)
            arrival = delivered.reached(through)
            until_ns = arrival.mono_ns if arrival else facts.end_ns
            waited_ns = self.waited_ns(taking, since_ns, until_ns)
            if arrival is None and waited_ns <= bound_ns:
                continue  # the run ended while there was still time
            found.premises += 1
            found.waited(waited_ns, bound_ns)
            if waited_ns > bound_ns and not is_reported:
                is_reported = True  # what follows is late because this one is
                found.violate(
                    f"{row.member}:{row.seqno}..{through} took {waited_ns} ns to "
                    f"{pair[0]}, the bound is {bound_ns}",
                    *(row, arrival or delivered.row),
                )

    def owed_through(self, row: Row, taking: Collection[str], since_ns: int, facts: Facts) -> int:
        """How much of what was sent then depends on no application that does not read."""
        return row.seqno2


def _sent_to(receiver: str, sends: list[Row], views: list[Row]) -> list[Row]:
    """The sends since the receiver came into the sender's view for good."""
    since = views[-1]
    for view in reversed(views):
        if receiver not in view.members:
            break
        since = view
    return [row for row in sends if row.idx > since.idx]


class Drained(OnStream):
    """After its last send a sender soon knows that all have delivered: its window is empty.

    Owed where every member of the sender's last view lives and takes; the time runs from the end
    of healing, from the last send or from that view, whichever is last.
    """

    id = "N-L2"
    title = "a sender's window empties after its last send"

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        if facts.gst_ns is not None:
            for origin, sends, views in self.journal.live_origins():
                if sends[-1].run_idx < 0:
                    found.unknown.add(NO_COMMON_CLOCK)
                    continue
                sender, view = sends[-1].member, views[-1]
                if all(self.journal.is_due(member, sender, facts) for member in view.members):
                    since_ns = max(facts.gst_ns, sends[-1].mono_ns, view.mono_ns)
                    self._judge(origin, sends[-1], view, since_ns, facts, found)
        return found.verdict(self.id, self.title)

    def _judge(
        self, origin: OriginKey, last: Row, view: Row, since_ns: int, facts: Facts, found: Findings
    ) -> None:
        pairs = [(*split_key(member), *origin) for member in view.members]
        lacking = max(self.journal.lacking(pair, last.seqno2, since_ns) for pair in pairs)
        bound_ns = facts.drain_bound_ns(lacking, is_gated=self.is_gated)
        purged = self.journal.purged.get(origin, NOWHERE)
        drained = purged.reached(last.seqno2)
        until_ns = drained.mono_ns if drained else facts.end_ns
        waited_ns = self.waited_ns(view.members, since_ns, until_ns)
        if drained is None and waited_ns <= bound_ns:
            return
        found.premises += 1
        found.waited(waited_ns, bound_ns)
        if waited_ns > bound_ns:
            found.violate(
                f"{last.member} keeps messages for {waited_ns} ns after sending {last.seqno2}, "
                f"the bound is {bound_ns}",
                *(view, last, drained or purged.row),
            )


class Waiting(NamedTuple):
    """A sender that is blocked, and the purge that made room for it."""

    block: Row | None
    hr: int
    room: Row | None


class UnblockedAtOnce(Rule[Waiting]):
    """The purge that makes room lets a blocked sender go on in the same input.

    Room for the rest of a large message goes to that first; then the next purge counts. A send that
    waits for a view is none of this (V-L5).
    """

    id = "N-L3"
    title = "a sender goes on as soon as there is room"
    events = (SEND, SEND_BLOCK, SEND_UNBLOCK, SEND_FAIL, PURGE)
    initial = Waiting(None, 0, None)

    def key(self, row: Row) -> OriginKey:
        return row.own_origin

    def settle(self, head: list[Row]) -> Waiting | None:
        if head[-1].event in (SEND_BLOCK, SEND_UNBLOCK, SEND_FAIL):
            return self.step(self.initial, head[-1], Findings())
        return None

    def step(self, state: Waiting, row: Row, found: Findings) -> Waiting:
        if state.room is not None and row.mono_ns > state.room.mono_ns:
            self._report(state, found)
            state = state._replace(room=None)
        if row.event == SEND_BLOCK:
            return self.initial if row.detail == "change" else Waiting(row, row.hr, None)
        if row.event == SEND:
            return state._replace(hr=row.seqno2, room=None)
        if row.event != PURGE:
            return self.initial
        if state.block is not None and _has_room(state, state.block, row):
            found.premises += state.room is None
            return state._replace(room=row)
        return state

    def close(self, state: Waiting, facts: Facts, found: Findings) -> None:
        if state.room is not None:
            self._report(state, found)

    @staticmethod
    def _report(state: Waiting, found: Findings) -> None:
        assert state.room is not None
        found.violate(
            f"{state.room.member} is blocked though a purge made room", state.block, state.room
        )


def _has_room(state: Waiting, block: Row, purge: Row) -> bool:
    """Whether what was blocked fits now; an empty window takes any number of bytes."""
    # Where members report, how many messages are admitted may have changed since then.
    cap = block.cap if purge.cap < 0 else purge.cap
    is_empty = purge.seqno >= state.hr
    fits_bytes = is_empty or purge.limit < 0 or purge.used + block.size <= purge.limit
    return state.hr - purge.seqno < cap and fits_bytes


class CalmUnderOverload:
    """Where senders are blocked, windows keep their bound and no message is dropped for room.

    So there is no cycle of dropping and repeating, and the slowest receiver sets the pace.
    """

    id = "N-L5"
    title = "overload slows senders down and nothing else"
    events = (SEND_BLOCK, WIN, DROP_HIGH)

    def __init__(self) -> None:
        self.found = Findings()
        self.drops = HighDrops()

    def feed(self, row: Row) -> None:
        if row.event == SEND_BLOCK:
            self.found.premises += 1
        elif row.event == DROP_HIGH:
            self.drops.feed(row)
        elif row.hr - row.low > row.cap:
            self.found.violate(
                f"{row.member} buffers {row.hr - row.low} in a window of {row.cap}", row
            )

    def merge(self, other: CalmUnderOverload) -> None:
        self.found.merge(other.found)
        self.drops.merge(other.drops)

    def finish(self, facts: Facts) -> Verdict:
        found = self.found.copy()
        self.drops.judge(facts, found)
        return found.verdict(self.id, self.title)
