"""S-L1–S-L6, and G8 for unicast: what must come, and by when.

Waits are judged from the end of healing on, when clocks run true and frames leave at once; what
began before counts from there.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from ringcast.rules.algebra import NOWHERE, Lives, Progress, merge_progress
from ringcast.rules.connections import Uses
from ringcast.rules.findings import Findings
from ringcast.rules.liveness import NO_COMMON_CLOCK, latest_rows
from ringcast.rules.replay import (
    NONE,
    ROUNDING_NS,
    Entries,
    Presence,
    Watch,
    arrived,
    conn_of,
    delivered_stream,
    is_prompt,
    sent_stream,
    side_of,
)
from ringcast.trace.rows import (
    CONN,
    PHASE,
    RX,
    STOP,
    SYNC,
    TX,
    UNDELIVERABLE,
    UNICAST_DELIVER,
    UNICAST_SEND,
    UNICAST_WIN,
    VIEW,
)

if TYPE_CHECKING:
    from collections import deque

    from ringcast.rules.findings import Verdict
    from ringcast.rules.replay import Side, Stream
    from ringcast.trace.rows import Facts, MemberKey, Row


def delivery_bound_ns(facts: Facts, missing: int, *, with_sync: bool) -> int:
    """The longest that `missing` messages may take to be repaired and delivered (S-L1).

    A receiver whose window is smaller than the sender's must take what one request brought before
    it can ask for more: each further request costs a tick and a round trip. Where the receiver
    must first ask where the stream stands: two ticks until something is retransmitted, then Y-L1.
    """
    requests = max(1, -(-missing // facts.nack_messages_max))
    more_ns = (requests - 1) * (facts.tau_ns + 2 * facts.delta_ns)
    if with_sync:
        return 2 * facts.tau_ns + facts.delta_ns + sync_bound_ns(facts) + more_ns
    return 4 * facts.tau_ns + 4 * facts.delta_ns + more_ns


def sync_bound_ns(facts: Facts) -> int:
    """The longest from the first message that finds no window until data flow again (Y-L1)."""
    return 3 * facts.tau_ns + 4 * facts.delta_ns


def ack_bound_ns(facts: Facts) -> int:
    """The longest until a sender knows that all was taken, if acks were lost (S-L2)."""
    return 2 * facts.tau_ns + 2 * facts.delta_ns + facts.ack_interval_ns


def quiet_bound_ns(facts: Facts) -> int:
    """The longest after the last send until nothing is left to be sent (G8): a full window."""
    capacity = max(facts.capacity.values(), default=1)
    return delivery_bound_ns(facts, capacity, with_sync=True) + ack_bound_ns(facts)


class SyncRequest(NamedTuple):
    """A sync from the receiver's side: asked, and how it ended."""

    asked: Row
    ended: Row | None


class Journal:
    """What was sent, delivered, acknowledged, given up and asked on each stream, and when."""

    EVENTS = (
        *(UNICAST_SEND, UNICAST_DELIVER, UNICAST_WIN, CONN),
        *(UNDELIVERABLE, SYNC, *Lives.EVENTS),
    )

    __slots__ = ("acked", "conns", "delivered", "lives", "lost", "sent", "syncs")

    def __init__(self) -> None:
        self.sent: defaultdict[Stream, list[Row]] = defaultdict(list)
        self.delivered: defaultdict[Stream, Progress] = defaultdict(Progress)
        self.acked: defaultdict[Stream, Progress] = defaultdict(Progress)
        self.lost: dict[Stream, Row] = {}
        self.syncs: defaultdict[Stream, list[Row]] = defaultdict(list)
        self.conns: defaultdict[tuple[str, Stream], list[Row]] = defaultdict(list)
        self.lives = Lives()

    def feed(self, row: Row) -> None:
        if row.event == UNICAST_DELIVER:
            self.delivered[delivered_stream(row)].rise(row.mono_ns, row.seqno2, row)
        elif row.event == UNICAST_SEND:
            self.sent[sent_stream(row)].append(row)
        elif row.event == UNDELIVERABLE:
            self.lost.setdefault(sent_stream(row), row)
        elif row.event == SYNC:
            self.syncs[delivered_stream(row)].append(row)
        elif row.event in (UNICAST_WIN, CONN):
            stream = sent_stream(row) if row.kind == "S" else delivered_stream(row)
            if row.kind == "S":
                self.acked[stream].rise(row.mono_ns, row.low, row)
            if row.event == CONN:
                self.conns[row.kind, stream].append(row)
        else:
            self.lives.feed(row)

    def merge(self, other: Journal) -> None:
        for stream, rows in other.sent.items():
            self.sent[stream] += rows
        merge_progress(self.delivered, other.delivered)
        merge_progress(self.acked, other.acked)
        self.lost = other.lost | self.lost
        for stream, rows in other.syncs.items():
            self.syncs[stream] += rows
        for key, rows in other.conns.items():
            self.conns[key] += rows
        self.lives.merge(other.lives)

    def is_due(self, stream: Stream, facts: Facts) -> bool:
        """Whether both sides live to the end, and the receiver's application takes."""
        receiver = stream[2:4]
        return (
            self.lives.is_live(stream[:2])
            and self.lives.is_live(receiver)
            and receiver in self.lives.views
            and f"{receiver[0]}#{receiver[1]}" not in facts.stopped_members
        )

    def joined_ns(self, stream: Stream) -> int:
        """When the receiver could first deliver: with its first view."""
        return self.lives.views[stream[2:4]][0].mono_ns

    def sync_requests(self, stream: Stream) -> list[SyncRequest]:
        ends = {row.seqno: row for row in self.syncs.get(stream, ()) if row.detail != "asked"}
        return [
            SyncRequest(row, ends.get(row.seqno))
            for row in self.syncs.get(stream, ())
            if row.detail == "asked"
        ]

    def has_sync(self, stream: Stream, since_ns: int, until_ns: int) -> bool:
        """Whether the receiver was asking in that time."""
        return any(
            asked.mono_ns <= until_ns and (ended is None or ended.mono_ns >= since_ns)
            for asked, ended in self.sync_requests(stream)
        )

    def is_given_up(self, stream: Stream, seqno: int) -> bool:
        lost = self.lost.get(stream)
        return lost is not None and seqno >= lost.seqno

    def lacking(self, stream: Stream, through: int, when_ns: int) -> int:
        return max(0, through - self.delivered.get(stream, NOWHERE).at(when_ns))


class DeliveredToOne:
    """Every message to a live member is delivered in time, and its sender soon knows.

    The time runs from the end of healing, from the send or from the receiver's first view,
    whichever is last. Where the receiver has to ask where the stream stands, that is added. What
    its sender has given up and reported is not owed.
    """

    id = "S-L1"
    title = "a message to a live member is delivered and acknowledged in time"
    events = Journal.EVENTS

    def __init__(self) -> None:
        self.journal = Journal()

    def feed(self, row: Row) -> None:
        self.journal.feed(row)

    def merge(self, other: DeliveredToOne) -> None:
        self.journal.merge(other.journal)

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        journal = self.journal
        for stream, sends in journal.sent.items():
            if facts.gst_ns is None or not journal.is_due(stream, facts):
                continue
            if sends[0].run_idx < 0:
                found.unknown.add(NO_COMMON_CLOCK)
                continue
            owed = [row for row in sends if not journal.is_given_up(stream, row.seqno2)]
            delivered = journal.delivered.get(stream, NOWHERE)
            is_late = any(
                self._is_late(stream, row, delivered, 0, "delivered", facts, found) for row in owed
            )
            if owed and not is_late and stream[:2] != stream[2:4]:
                more_ns = facts.ack_interval_ns + 2 * facts.tau_ns
                acked = journal.acked.get(stream, NOWHERE)
                self._is_late(stream, owed[-1], acked, more_ns, "acknowledged", facts, found)
        return found.verdict(self.id, self.title)

    def _is_late(
        self,
        stream: Stream,
        row: Row,
        progress: Progress,
        more_ns: int,
        what: str,
        facts: Facts,
        found: Findings,
    ) -> bool:
        """Judge one send; whether it came too late, or not at all."""
        assert facts.gst_ns is not None
        journal = self.journal
        since_ns = max(facts.gst_ns, row.mono_ns, journal.joined_ns(stream))
        arrival = progress.reached(row.seqno2)
        until_ns = arrival.mono_ns if arrival else facts.end_ns
        with_sync = journal.has_sync(stream, since_ns, until_ns)
        missing = journal.lacking(stream, row.seqno2, since_ns)
        bound_ns = delivery_bound_ns(facts, missing, with_sync=with_sync) + more_ns
        if arrival is None and until_ns <= since_ns + bound_ns:
            return False  # the run ended while there was still time
        waited_ns = max(0, until_ns - since_ns)
        found.premises += 1
        found.waited(waited_ns, bound_ns)
        if waited_ns <= bound_ns:
            return False
        found.violate(
            f"{row.member} to {row.peer}: {row.seqno}..{row.seqno2} of epoch {row.epoch} not "
            f"{what} for {waited_ns} ns, the bound is {bound_ns}",
            *(row, arrival or progress.row),
        )
        return True


class AckedInTime:
    """Once everything was delivered, the sender knows it in time, however many acks were lost.

    The time runs from the end of healing, from the last delivery or from the last change of the
    connection, whichever is last.
    """

    id = "S-L2"
    title = "lost acknowledgements are made good in time"
    events = Journal.EVENTS

    def __init__(self) -> None:
        self.journal = Journal()

    def feed(self, row: Row) -> None:
        self.journal.feed(row)

    def merge(self, other: AckedInTime) -> None:
        self.journal.merge(other.journal)

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        journal = self.journal
        for stream, sends in journal.sent.items():
            last = sends[-1]
            delivery = journal.delivered.get(stream, NOWHERE).reached(last.seqno2)
            is_own = stream[:2] == stream[2:4]
            if facts.gst_ns is None or delivery is None or is_own:
                continue
            if journal.is_due(stream, facts) and not journal.is_given_up(stream, last.seqno2):
                if delivery.run_idx < 0:
                    found.unknown.add(NO_COMMON_CLOCK)
                else:
                    self._judge(stream, last, delivery, facts, found)
        return found.verdict(self.id, self.title)

    def _judge(
        self, stream: Stream, last: Row, delivery: Row, facts: Facts, found: Findings
    ) -> None:
        assert facts.gst_ns is not None
        acked = self.journal.acked.get(stream, NOWHERE)
        arrival = acked.reached(last.seqno2)
        until_ns = arrival.mono_ns if arrival else facts.end_ns
        moves = [
            row.mono_ns
            for kind in "SR"
            for row in self.journal.conns.get((kind, stream), ())
            if row.mono_ns < until_ns
        ]
        since_ns = max(facts.gst_ns, delivery.mono_ns, *moves)
        bound_ns = ack_bound_ns(facts)
        if self.journal.has_sync(stream, since_ns, until_ns):
            bound_ns += sync_bound_ns(facts)
        if arrival is None and until_ns <= since_ns + bound_ns:
            return
        waited_ns = max(0, until_ns - since_ns)
        found.premises += 1
        found.waited(waited_ns, bound_ns)
        if waited_ns > bound_ns:
            found.violate(
                f"{last.member} does not know for {waited_ns} ns that {last.peer} has delivered "
                f"{last.seqno2}, the bound is {bound_ns}",
                *(last, delivery, arrival or acked.row),
            )


class AcksSoon(Watch):
    """What was taken, or came again, is acknowledged within the ack interval.

    While the connection stands: when it ends or moves, nothing is owed on it.
    """

    id = "S-L3"
    title = "a message is acknowledged within the ack interval"
    events = (*Entries.EVENTS, RX, TX, UNICAST_DELIVER, *Presence.EVENTS)

    def __init__(self, found: Findings, facts: Facts) -> None:
        self.found = found
        self.facts = facts
        self.entries = Entries()
        self.presence = Presence()
        self.waiting: dict[Side, list[tuple[int, Row]]] = {}
        """What an ack must reach, and since when, for each sender."""

    def see(self, rows: list[Row]) -> None:
        for row in rows:
            side = side_of("R", row)
            if row.event in Presence.EVENTS:
                self.presence.see(row)
            elif row.event == UNICAST_DELIVER:
                self._wait(side, row.seqno2, row)
            elif row.event == RX:
                entry = self.entries.now(side)
                is_current = entry is not None and entry.conn == conn_of(row)
                if row.kind == "udata" and entry and is_current and row.seqno2 <= entry.row.hd:
                    self._wait(side, row.seqno2, row)
            elif row.event == TX:
                if row.kind == "uack":
                    self._settle(side, row)
            else:
                if row.event == CONN and row.kind == "R":
                    entry = self.entries.now(side)
                    if row.detail.endswith(NONE) or (entry and entry.conn != conn_of(row)):
                        self.waiting.pop(side, None)
                self.entries.update(row)

    def close(self) -> None:
        if self.presence.is_live:
            for waiting in self.waiting.values():
                self._judge(waiting[0][1], self.facts.end_ns, None)

    def _wait(self, side: Side, through: int, row: Row) -> None:
        if is_prompt(row, self.facts):
            self.waiting.setdefault(side, []).append((through, row))

    def _settle(self, side: Side, ack: Row) -> None:
        waiting = self.waiting.pop(side, [])
        for through, row in waiting:
            if through <= ack.hd:
                self.found.premises += 1
                self._judge(row, ack.mono_ns, ack)
        rest = [(through, row) for through, row in waiting if through > ack.hd]
        if rest:
            self.waiting[side] = rest

    def _judge(self, row: Row, now_ns: int, ack: Row | None) -> None:
        waited_ns, bound_ns = now_ns - row.mono_ns, self.facts.ack_interval_ns
        if ack is not None:
            self.found.waited(waited_ns, bound_ns)
        if waited_ns > bound_ns + ROUNDING_NS:
            self.found.violate(
                f"{row.member} does not acknowledge {row.peer}:{row.seqno2} for {waited_ns} ns, "
                f"the bound is {bound_ns}",
                *(row, ack),
            )


class IdleIsGone(Watch):
    """An idle connection is gone, on either side, after expiry and closing time and two ticks.

    A sender's with unacknowledged messages, and a receiver's with messages that its application
    does not take, stay longer.
    """

    id = "S-L4"
    title = "an idle connection is gone in time"
    events = (*Uses.EVENTS, UNICAST_DELIVER, *Presence.EVENTS)

    def __init__(self, found: Findings, facts: Facts) -> None:
        self.found = found
        self.facts = facts
        self.uses = Uses()
        self.presence = Presence()
        self.taken: dict[Side, Row] = {}

    def see(self, rows: list[Row]) -> None:
        for row in rows:
            if row.event in Presence.EVENTS:
                self.presence.see(row)
            elif row.event == UNICAST_DELIVER:
                self.taken[side_of("R", row)] = row
            elif row.event == CONN and row.detail.endswith(NONE):
                self._judge(side_of(row.kind, row), row.mono_ns, row)
                self.taken.pop(side_of(row.kind, row), None)
            self.uses.see(row)

    def close(self) -> None:
        if self.presence.is_live:
            for side, _ in self.uses.entries:
                self._judge(side, self.facts.end_ns, None)

    def _judge(self, side: Side, now_ns: int, gone: Row | None) -> None:
        used, entry = self.uses.used.get(side), self.uses.entries.now(side)
        gst_ns = self.facts.gst_ns
        if gst_ns is None or not self.facts.expiry_ns or used is None or entry is None:
            return
        row = entry.row
        if now_ns <= gst_ns or (row.low < row.hr if side[0] == "S" else row.hd < row.received):
            return
        last = max(used.perhaps, self.taken.get(side, used.perhaps), key=lambda row: row.mono_ns)
        waited_ns = now_ns - max(last.mono_ns, gst_ns)
        bound_ns = self.facts.expiry_ns + self.facts.close_ns + 2 * self.facts.tau_ns
        if gone is not None:
            self.found.premises += 1
            self.found.waited(waited_ns, bound_ns)
        if waited_ns > bound_ns:
            self.found.violate(
                f"{row.member} still has the idle connection with {side[1]} after {waited_ns} ns, "
                f"the bound is {bound_ns}",
                *(last, gone),
            )


class GivenUpInTime(Watch):
    """A member that answers nothing is given up after the retransmission time, within a tick, and
    not before."""

    id = "S-L5"
    title = "a member that never answers is given up in time"
    events = (*Entries.EVENTS, RX, VIEW, *Presence.EVENTS)

    def __init__(self, found: Findings, facts: Facts) -> None:
        self.found = found
        self.facts = facts
        self.entries = Entries()
        self.presence = Presence()
        self.waiting: dict[Side, Row] = {}
        """Since when something is unacknowledged and nothing was heard."""

    def see(self, rows: list[Row]) -> None:
        is_told = any(row.event in (VIEW, STOP) for row in rows)
        for row in arrived(rows, "uack", "unack", "sync", "sync_ack"):
            if side_of("S", row) in self.waiting:
                self.waiting[side_of("S", row)] = row
        for row in rows:
            if row.event in Presence.EVENTS:
                self.presence.see(row)
            elif row.event in Entries.EVENTS and row.kind == "S":
                self._follow(row, is_told=is_told)

    def close(self) -> None:
        if self.presence.is_live and self.facts.gst_ns is not None:
            for since in self.waiting.values():
                self._judge(since, self.facts.end_ns, None)

    def _follow(self, row: Row, *, is_told: bool) -> None:
        side = side_of("S", row)
        self.entries.update(row)
        if row.event == CONN and row.detail.endswith(NONE):
            since = self.waiting.pop(side, None)
            if since is not None and not is_told and is_prompt(row, self.facts):
                self.found.premises += 1
                self._judge(since, row.mono_ns, row)
        elif row.low < row.hr:
            self.waiting.setdefault(side, row)
        else:
            self.waiting.pop(side, None)

    def _judge(self, since: Row, now_ns: int, gone: Row | None) -> None:
        assert self.facts.gst_ns is not None
        patience_ns = self.facts.max_retransmit_ns
        waited_ns = now_ns - max(since.mono_ns, self.facts.gst_ns)
        bound_ns = patience_ns + self.facts.tau_ns
        if gone is not None:
            self.found.waited(waited_ns, bound_ns)
        if waited_ns > bound_ns:
            self.found.violate(
                f"{since.member} has heard nothing from {since.peer} for {waited_ns} ns, the bound "
                f"is {bound_ns}",
                *(since, gone),
            )
        elif (
            gone is not None
            and since.mono_ns > self.facts.gst_ns
            and waited_ns < patience_ns - ROUNDING_NS
        ):
            self.found.violate(
                f"{since.member} gives {since.peer} up after {waited_ns} ns, it may be silent for "
                f"{patience_ns}",
                *(since, gone),
            )


class HighestSoonAgain(Watch):
    """While something is unacknowledged, the highest message is retransmitted two ticks after the
    last progress at the latest."""

    id = "S-L6"
    title = "the last message is repeated in time while it is not acknowledged"
    events = (*Entries.EVENTS, TX, *Presence.EVENTS)

    def __init__(self, found: Findings, facts: Facts) -> None:
        self.found = found
        self.facts = facts
        self.entries = Entries()
        self.presence = Presence()
        self.waiting: dict[Side, Row] = {}
        """The last progress, where the highest message has not been repeated since."""

    def see(self, rows: list[Row]) -> None:
        if self.facts.gst_ns is None:
            return
        now_ns = rows[0].mono_ns
        for row in rows:
            if row.event in Presence.EVENTS:
                self.presence.see(row)
            elif row.event == TX:
                side = side_of("S", row)
                waiting = self.waiting.get(side)
                if waiting and row.kind == "udata" and row.again and row.seqno2 >= waiting.hr:
                    self._judge(side, now_ns, row)
            elif row.kind == "S":
                self._follow(row)

    def close(self) -> None:
        if self.presence.is_live and self.facts.gst_ns is not None:
            for side in list(self.waiting):
                self._judge(side, self.facts.end_ns, None)

    def _follow(self, row: Row) -> None:
        side = side_of("S", row)
        entry = self.entries.now(side)
        self.entries.update(row)
        is_gone = row.event == CONN and row.detail.endswith(NONE)
        if not is_gone and entry is not None and _acked_and_sent(entry.row) == _acked_and_sent(row):
            return
        if side in self.waiting:
            self._judge(side, row.mono_ns, None)
        if not is_gone and row.low < row.hr:
            self.waiting[side] = row

    def _judge(self, side: Side, now_ns: int, again: Row | None) -> None:
        """Something has ended the wait: the repeat, progress, or the end of the run."""
        row = self.waiting[side]
        assert self.facts.gst_ns is not None
        if now_ns <= self.facts.gst_ns and again is not None:
            return  # what counts is the first one after healing
        del self.waiting[side]
        waited_ns = now_ns - max(row.mono_ns, self.facts.gst_ns)
        bound_ns = 2 * self.facts.tau_ns
        if again is not None:
            self.found.premises += 1
            self.found.waited(waited_ns, bound_ns)
        if waited_ns > bound_ns + ROUNDING_NS:
            self.found.violate(
                f"{row.member} does not send {row.hr} to {row.peer} again for {waited_ns} ns, the "
                f"bound is {bound_ns}",
                *(row, again),
            )


def _acked_and_sent(row: Row) -> tuple[int, int, int]:
    return row.epoch, row.low, row.hr


class QuietPairs:
    """Once everything is delivered and known to be, nothing is sent but acks and goodbyes.

    Judged in the `end` phase, for frames to members that live and take, and not before the last
    send's bounds are over. What goes to others ends when they are given up (S-L5).
    """

    id = "G8"
    title = "idle connections are silent"
    events = (PHASE, UNICAST_SEND, TX, *Lives.EVENTS)
    KINDS = frozenset({"udata", "unack", "sync", "sync_ok"})

    def __init__(self) -> None:
        self.ending: Row | None = None
        self.last_send_ns = 0
        self.noise: defaultdict[tuple[MemberKey, MemberKey], deque[Row]] = defaultdict(latest_rows)
        self.lives = Lives()

    def feed(self, row: Row) -> None:
        if row.event == TX:
            if row.kind in self.KINDS:
                self.noise[(row.node, row.inc), (row.peer, row.peer_inc)].append(row)
        elif row.event == UNICAST_SEND:
            self.last_send_ns = max(self.last_send_ns, row.mono_ns)
        elif row.event != PHASE:
            self.lives.feed(row)
        elif row.kind == "end":
            self.ending = row

    def merge(self, other: QuietPairs) -> None:
        self.ending = self.ending or other.ending
        self.last_send_ns = max(self.last_send_ns, other.last_send_ns)
        for pair, rows in other.noise.items():
            self.noise[pair] += rows
        self.lives.merge(other.lives)

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        if self.ending is None or facts.gst_ns is None:
            return found.verdict(self.id, self.title)
        drained_ns = max(facts.gst_ns, self.last_send_ns) + quiet_bound_ns(facts)
        quiet_ns = max(self.ending.mono_ns, drained_ns)
        if facts.end_ns <= quiet_ns:
            found.unknown.add("the run ended before it had to be quiet")
        else:
            found.premises = 1
        for (_, peer), rows in self.noise.items():
            late = [row for row in rows if row.mono_ns > quiet_ns]
            is_due = (
                self.lives.is_live(peer) and f"{peer[0]}#{peer[1]}" not in facts.stopped_members
            )
            if late and is_due:
                found.violate(
                    f"{late[0].member} still sends {late[-1].kind} to {late[-1].peer}",
                    *(self.ending, *late),
                )
        return found.verdict(self.id, self.title)
