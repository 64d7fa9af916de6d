"""G8, N-L1–N-L3, N-L5, U5, U7, U-L1: what must come, and by when, once the network has healed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from operator import attrgetter

from ringcast.model import Stream
from ringcast.rules.evidence import NOWHERE, Progress, Run, by, progress
from ringcast.rules.findings import WITNESS_ROWS_MAX, Findings, Need, Steps, rule, stepwise
from ringcast.rules.flow import judge_drops
from ringcast.trace import rows as trace
from ringcast.trace.rows import Facts, OriginKey, PairKey, Row

REPORTS = ("stability_report", "stability_query", "stable", "peer_repair_request", "peer_repair")
"""What members that report say to each other, until all know what everybody has."""

NO_COMMON_CLOCK = "how long it took: members' clocks cannot be compared"


def quiet_since(run: Run, sends: list[Row], drained_ns: int, found: Findings) -> int | None:
    """From when on nothing may be left to do: in the `end` phase, and not before the last send's
    bound is over. None: it is not judged."""
    facts, ending = run.facts, run.phases.end
    if ending is None or facts.gst_ns is None:
        return None
    last_ns = max((row.mono_ns for row in sends), default=0)
    quiet_ns = max(ending.mono_ns, max(facts.gst_ns, last_ns) + drained_ns)
    if facts.end_ns <= quiet_ns:
        found.unknown.add("the run ended before it had to be quiet")
    else:
        found.premises = 1
    return quiet_ns


def late(rows: Iterable[Row], key: Callable[[Row], object], since_ns: int) -> Iterator[list[Row]]:
    """For each key, those after this time, of the last few."""
    for each in by(rows, key).values():
        noise = [row for row in each[1 - WITNESS_ROWS_MAX :] if row.mono_ns > since_ns]
        if noise:
            yield noise


@rule("G8", "an idle group repairs nothing", Need.CALM)
def quiet(run: Run, found: Findings) -> None:
    """Once everything is delivered and known to be, nobody asks for repair or repeats data, and
    where members report nobody reports; as long as nobody takes nothing."""
    facts = run.facts
    drained_ns = facts.drain_bound_ns(max(facts.capacity.values(), default=1))
    quiet_ns = quiet_since(run, run.rows(trace.SEND), drained_ns, found)
    if quiet_ns is None:
        return
    last_view_ns = max((row.mono_ns for row in run.rows(trace.VIEW)), default=0)
    # Each view makes members report twice.
    reported_ns = max(quiet_ns, last_view_ns + 2 * facts.round_bound_ns)
    said = run.rows(trace.TX)
    repairs = [row for row in said if row.kind == "nack" or (row.kind == "data" and row.again)]
    # Where an application takes nothing, something never becomes stable.
    kinds = () if facts.stopped_members else REPORTS
    reports = [row for row in said if row.kind in kinds]
    for kept, since_ns in ((repairs, quiet_ns), (reports, reported_ns)):
        for noise in late(kept, attrgetter("key"), since_ns):
            found.violate(f"{noise[0].member} still sends {noise[-1].kind}", run.phases.end, *noise)


class Journal:
    """Who sent, opened, delivered and purged what of one stream, and when. View changes hold
    messages up: so long as some of those that it takes were frozen, the time does not run."""

    def __init__(self, run: Run, stream: Stream = Stream.FIFO) -> None:
        def rows(event: str) -> list[Row]:
            return [row for row in run.rows(event) if row.stream == stream]

        own, pair, clock = attrgetter("own_origin"), attrgetter("pair"), attrgetter("mono_ns")
        self.run = run
        self.is_gated = stream is Stream.UNIFORM
        """Its messages wait for commits."""
        self.sent = by(rows(trace.SEND), own)
        self.opened: dict[PairKey, Row] = {row.pair: row for row in rows(trace.OPEN)}
        self.delivered: dict[PairKey, Progress] = progress(rows(trace.DELIVER), pair, clock)
        self.purged = progress(rows(trace.PURGE), own, clock, attrgetter("seqno"))

    def live_origins(self, found: Findings) -> Iterator[tuple[OriginKey, list[Row], list[Row]]]:
        """Each live sender's origin, its sends and its views, where it has both."""
        lives = self.run.lives
        for origin, sends in self.sent.items() if self.run.facts.gst_ns is not None else ():
            views = lives.views.get(origin[:2])
            if views and lives.is_live(origin[:2]):
                if sends[0].run_idx < 0:
                    found.unknown.add(NO_COMMON_CLOCK)
                else:
                    yield origin, sends, views

    def is_due(self, receiver: str, sender: str) -> bool:
        """Whether this member of the sender's view lives, takes, and sees the sender in its own."""
        lives, member = self.run.lives, trace.split_key(receiver)
        view = lives.last_view(member)
        if view is None or receiver in self.run.facts.stopped_members:
            return False
        return lives.is_live(member) and sender in view.members

    def are_due(self, view: Row, sender: str) -> bool:
        return all(self.is_due(member, sender) for member in view.members)

    def offset(self, pair: PairKey) -> int:
        opening = self.opened.get(pair)
        return opening.seqno if opening else 0

    def has(self, pair: PairKey, when_ns: int) -> int:
        """Up to where the receiver had delivered, or opened its window."""
        return max(self.delivered.get(pair, NOWHERE).at(when_ns), self.offset(pair))

    def owed_through(self, row: Row, taking: Collection[str], since_ns: int) -> int:
        """Up to where these have to hold what was sent. A member whose application does not read
        holds one window and no more."""
        through, facts = row.seqno2, self.run.facts
        for member in facts.stopped_members.intersection(taking) - {row.member}:
            low = self.has((*trace.split_key(member), *row.own_origin), since_ns)
            capacity = facts.capacity.get(member, 0) // (facts.growth if self.is_gated else 1)
            through = min(through, low + capacity)
        return through

    def arrival(self, pair: PairKey, through: int) -> Row | None:
        return self.delivered.get(pair, NOWHERE).reached(through)

    def waited_ns(self, members: Iterable[str], since_ns: int, end: Row | None) -> int:
        until_ns = self.run.until_ns(end)
        held_ns = self.run.freezes.held_ns(map(trace.split_key, members), since_ns, until_ns)
        return max(0, until_ns - since_ns - held_ns)


@rule("N-L1", "a message is delivered everywhere in time, the last one too", Need.CALM)
def delivered_in_time(run: Run, found: Findings) -> None:
    """Every message of a live sender reaches every live member of its view within the bound."""
    judge_deliveries(Journal(run), found)


def judge_deliveries(journal: Journal, found: Findings) -> None:
    """The time runs from the end of healing, from the send, or from when the receiver's window for
    this sender opened, whichever is last. Owed are messages sent while the receiver was in the
    sender's view for good, after the offset of its window; of each send as much as depends on no
    application that does not read."""
    for origin, sends, views in journal.live_origins(found):
        for receiver in views[-1].members:
            if journal.is_due(receiver, sends[0].member):
                owed = _sent_to(receiver, sends, views)
                # All have to hold what is gated.
                taking = views[-1].members if journal.is_gated else (receiver, sends[0].member)
                pair = (*trace.split_key(receiver), *origin)
                _judge_owed(journal, pair, owed, taking, found)


def _judge_owed(
    journal: Journal, pair: PairKey, owed: list[Row], taking: Collection[str], found: Findings
) -> None:
    facts, opening = journal.run.facts, journal.opened.get(pair)
    ready_ns = max(facts.gst_ns or 0, opening.mono_ns if opening else 0)
    is_late = False
    for row in owed:
        since_ns = max(ready_ns, row.mono_ns)
        through = journal.owed_through(row, taking, since_ns)
        if through <= max(journal.offset(pair), row.seqno - 1):
            continue
        lacking = max(0, through - journal.has(pair, since_ns))
        bound_ns = facts.delivery_bound_ns(lacking, is_gated=journal.is_gated)
        arrival = journal.arrival(pair, through)
        waited_ns = journal.waited_ns(taking, since_ns, arrival)
        text = f"{row.member}:{row.seqno}..{through} took {{}} ns to {pair[0]}"
        last = arrival or journal.delivered.get(pair, NOWHERE).row
        # What follows is late because this one is.
        is_late |= found.wait(waited_ns, bound_ns, arrival, text, row, last, is_told=is_late)


def _sent_to(receiver: str, sends: list[Row], views: list[Row]) -> list[Row]:
    """The sends since the receiver came into the sender's view for good."""
    since = views[-1]
    for view in reversed(views):
        if receiver not in view.members:
            break
        since = view
    return [row for row in sends if row.idx > since.idx]


@rule("N-L2", "a sender's window empties after its last send", Need.CALM)
def drained(run: Run, found: Findings) -> None:
    """After its last send a sender soon knows that all have delivered: its window is empty."""
    judge_drained(Journal(run), found)


def judge_drained(journal: Journal, found: Findings) -> None:
    """Owed where every member of the sender's last view lives and takes; the time runs from the end
    of healing, from the last send or from that view, whichever is last."""
    facts = journal.run.facts
    for origin, sends, views in journal.live_origins(found):
        last, view = sends[-1], views[-1]
        if not journal.are_due(view, last.member):
            continue
        since_ns = max(facts.gst_ns or 0, last.mono_ns, view.mono_ns)
        pairs = [(*trace.split_key(member), *origin) for member in view.members]
        lacking = max(max(0, last.seqno2 - journal.has(pair, since_ns)) for pair in pairs)
        purged = journal.purged.get(origin, NOWHERE)
        end = purged.reached(last.seqno2)
        waited_ns = journal.waited_ns(view.members, since_ns, end)
        bound_ns = facts.drain_bound_ns(lacking, is_gated=journal.is_gated)
        text = f"{last.member} keeps messages for {{}} ns after sending {last.seqno2}"
        found.wait(waited_ns, bound_ns, end, text, view, last, end or purged.row)


_GOING_ON = (trace.SEND, trace.SEND_BLOCK, trace.SEND_UNBLOCK, trace.SEND_FAIL)


@stepwise(
    "N-L3", "a sender goes on as soon as there is room", (*_GOING_ON, trace.PURGE, trace.STOP)
)
def _after_purges(facts: Facts, found: Findings) -> Steps:
    """The purge that makes room lets a blocked sender go on in the same input.

    Room for the rest of a large message goes to that first; then the next purge counts. A send that
    waits for a view is none of this (V-L5). Where members report what they have delivered of plain
    messages, a stability round tells a sender so: that needs the whole run. What a member recorded
    last before it was killed may lack what came of it.
    """
    waits: dict[OriginKey, _Wait] = {}
    while row := (yield):
        if row.event == trace.STOP:
            for origin, wait in waits.items():
                if origin[:2] == row.key:
                    wait.end()
        else:
            waits.setdefault(row.own_origin, _Wait(found)).see(row)
    for wait in waits.values():
        wait.end(is_cut_off=True)


def _unblocked(run: Run, found: Findings) -> None:
    _after_purges.judge(run, found)
    if run.facts.has_stability:
        _judge_rounds(Journal(run), found)


unblocked = _after_purges._replace(judge=_unblocked)


class _Wait:
    """One stream whose sender may be blocked."""

    def __init__(self, found: Findings) -> None:
        self._found = found
        self._block: Row | None = None
        self._room: Row | None = None
        """The purge that made room for what is blocked."""
        self._sent = 0

    def see(self, row: Row) -> None:
        if self._room is not None and row.mono_ns > self._room.mono_ns:
            self.end()
        if row.event == trace.SEND:
            self._sent, self._room = row.seqno2, None
        elif row.event != trace.PURGE:
            is_blocked = row.event == trace.SEND_BLOCK and row.detail != "change"
            self._block, self._room = (row if is_blocked else None), None
            self._sent = row.hr if is_blocked else 0
        elif self._block is not None and _has_room(self._sent, self._block, row):
            self._found.premises += self._room is None
            self._room = row

    def end(self, *, is_cut_off: bool = False) -> None:
        """What made room changed nothing. `is_cut_off`: unless it is not known what followed."""
        room, self._room = self._room, None
        if room is not None and not (is_cut_off and room.run_idx < 0):
            text = f"{room.member} is blocked though a purge made room"
            self._found.violate(text, self._block, room)


def _has_room(sent: int, block: Row, purge: Row) -> bool:
    """Whether what was blocked fits now; an empty window takes any number of bytes."""
    # How many messages are admitted may have changed since then: by a report, by a loss.
    cap = block.cap if purge.cap < 0 else purge.cap
    is_empty = purge.seqno >= sent
    fits_bytes = is_empty or purge.limit < 0 or purge.used + block.size <= purge.limit
    return sent - purge.seqno < cap and fits_bytes


def _judge_rounds(journal: Journal, found: Findings) -> None:
    """Once everybody has delivered all that a sender has sent, it goes on within a round. The time
    runs from the end of healing, from the last view, from when it was blocked or from the last
    delivery, whichever is last; where every member of the view lives and takes."""
    facts = journal.run.facts
    waits = journal.run.by(attrgetter("own_origin"), *_GOING_ON)
    for origin, sends, views in journal.live_origins(found):
        view = views[-1]
        if not journal.are_due(view, sends[-1].member):
            continue
        pairs = [(*trace.split_key(member), *origin) for member in view.members]
        for block, end in _blocked(waits.get(origin, [])):
            since_ns = max(facts.gst_ns or 0, view.mono_ns, block.mono_ns)
            arrivals = [
                journal.arrival(pair, block.hr) for pair in pairs if journal.offset(pair) < block.hr
            ]
            if journal.run.until_ns(end) < since_ns or None in arrivals:
                continue  # N-L1 sees to that
            since_ns = max(since_ns, *(row.mono_ns for row in arrivals if row), 0)
            waited_ns = journal.waited_ns(view.members, since_ns, end)
            text = f"{block.member} is blocked for {{}} ns after all have delivered {block.hr}"
            found.wait(waited_ns, facts.round_bound_ns, end, text, view, block, end)


def _blocked(rows: list[Row]) -> Iterator[tuple[Row, Row | None]]:
    """When a sender was blocked, and when it could go on: with the rest of a large message, or
    with more."""
    block: Row | None = None
    for row in rows:
        if row.event == trace.SEND_BLOCK:
            block = None if row.detail == "change" else row
        elif block is not None:
            yield block, row
            block = None
    if block is not None:
        yield block, None


@stepwise(
    "N-L5",
    "overload slows senders down and nothing else",
    (trace.SEND_BLOCK, trace.WIN, trace.DROP_HIGH),
)
def calm_under_overload(facts: Facts, found: Findings) -> Steps:
    """Where senders are blocked, windows keep their bound and no message is dropped for room.

    So there is no cycle of dropping and repeating, and the slowest receiver sets the pace.
    """
    drops: dict[tuple[str, int, str, int], Row] = {}
    while row := (yield):
        if row.event == trace.SEND_BLOCK:
            found.premises += 1
        elif row.event == trace.DROP_HIGH:
            drops.setdefault(row.pair[:4], row)
        elif row.hr - row.low > row.cap:
            found.violate(f"{row.member} buffers {row.hr - row.low} in a window of {row.cap}", row)
    judge_drops(drops.values(), facts, found)


# Uniform messages: that they come in order is N1


@rule("U5", "a uniform message of a live sender is delivered everywhere in time", Need.CALM)
def valid(run: Run, found: Findings) -> None:
    """A live sender's message is delivered by all live members of its view.

    All have to hold it first. A member whose application does not read holds one window and no
    more: where the sender's is larger, nothing is owed of what that member has no slot for.
    """
    judge_deliveries(Journal(run, Stream.UNIFORM), found)


@rule("U7", "in the end uniform windows are empty", Need.CALM)
def nothing_left(run: Run, found: Findings) -> None:
    """In the end no live sender keeps any uniform message."""
    judge_drained(Journal(run, Stream.UNIFORM), found)


@rule("U-L1", "without faults a uniform message takes three delays", Need.CALM)
def three_delays(run: Run, found: Findings) -> None:
    """Where nothing is amiss a message is delivered everywhere within three delays: it travels, is
    acknowledged, and is committed.

    Nothing is amiss from when all that was sent before the healing is delivered, and all are in
    their last view. Not judged where the sender's window is larger than a receiver's.
    """
    journal, facts = Journal(run, Stream.UNIFORM), run.facts
    bound_ns = 3 * facts.delta_ns
    for origin, sends, views in journal.live_origins(found):
        members, sender = views[-1].members, sends[0].member
        if not all(
            facts.capacity.get(sender, 1) <= facts.capacity.get(member, 0) for member in members
        ) or not journal.are_due(views[-1], sender):
            continue
        pairs = [(*trace.split_key(member), *origin) for member in members]
        since_ns = _calm_since(journal, pairs, sends)
        for row in sends:
            if since_ns is None or not since_ns < row.mono_ns <= facts.end_ns - bound_ns:
                continue
            for pair in pairs:
                arrival = journal.arrival(pair, row.seqno2)
                text = f"{row.member}:{row.run} took {{}} ns to {pair[0]}"
                waited_ns = run.until_ns(arrival) - row.mono_ns
                found.wait(waited_ns, bound_ns, arrival, text, row, arrival)


def _calm_since(journal: Journal, pairs: list[PairKey], sends: list[Row]) -> int | None:
    """None: something is amiss to the end."""
    since_ns = journal.run.facts.gst_ns or 0
    before = max((row.seqno2 for row in sends if row.mono_ns <= since_ns), default=0)
    for pair in pairs:
        begun = [journal.run.lives.last_view(pair[:2]), journal.opened.get(pair)]
        if journal.offset(pair) < before:
            begun.append(journal.arrival(pair, before))
            if begun[-1] is None:
                return None
        since_ns = max(since_ns, *(row.mono_ns for row in begun if row), 0)
    return since_ns
