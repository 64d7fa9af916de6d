"""T1–T5, T-L1: the application's state goes to who lacks it, and then all that is not in it, once.

What applications make of their messages is known to the trace: of each origin how many, the last,
and a hash that depends on their order. It is made so that the hash of a run follows from that of
its parts: so what a member must have can be computed from rows alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple
from zlib import crc32

from ringcast.rules import bounds
from ringcast.rules.evidence import Run, by
from ringcast.rules.findings import Findings, Need, Steps, rule, stepwise
from ringcast.rules.views import together
from ringcast.trace import rows as trace
from ringcast.trace.rows import Facts, MemberKey, OriginKey, Row

PRIME = (1 << 61) - 1
BASE = 0x9E3779B97F4A7C15 % PRIME

NO_RUN_ORDER = "who had which state when: no run order"


class Content(NamedTuple):
    """What a state has of one origin."""

    messages: int = 0  # whole ones
    last: int = 0  # the highest seqno that was handed on, fragments included
    hash: int = 0

    def then(self, count: int, last: int, hash: int) -> Content:
        """With a run of messages behind it."""
        return Content(self.messages + count, last, chain(self.hash, hash, count))


NOTHING = Content()


def chain(hash: int, more: int, count: int) -> int:
    """The hash of a sequence, from that of its beginning and that of its last `count` messages."""
    return (hash * pow(BASE, count, PRIME) + more) % PRIME


def run_hash(payloads: Iterable[bytes]) -> int:
    """The hash of messages, in order."""
    hash = 0
    for payload in payloads:
        hash = (hash * BASE + (crc32(payload) << 24) + len(payload) + 1) % PRIME
    return hash


def is_handed(row: Row) -> bool:
    """Whether the application gets these messages now."""
    return row.event == trace.HANDED or (row.event == trace.DELIVER and row.detail != trace.ASIDE)


class Statement(NamedTuple):
    """A row about a whole state, and the rows behind it: one for each origin."""

    row: Row
    entries: dict[OriginKey, Row]

    def content(self) -> dict[OriginKey, Content]:
        return {
            origin: Content(row.size, row.seqno, row.block_hash)
            for origin, row in self.entries.items()
        }


STATED = (
    trace.STATE_WANTED,
    trace.STATE_BEGUN,
    trace.STATE_RECEIVED,
    trace.STATE_END,
    trace.STATE_ENTRY,
)


def statements(rows: list[Row]) -> Iterator[Statement]:
    """Everything a member wrote; what is no statement has no entries."""
    at = 0
    while at < len(rows):
        told = Statement(rows[at], {})
        at += 1
        while at < len(rows) and rows[at].event == trace.STATE_ENTRY:
            told.entries[rows[at].origin] = rows[at]
            at += 1
        yield told


@rule("T1", "a state is its provider's, as it was at the cut of a view", Need.STATE)
def as_its_provider_had_it(run: Run, found: Findings) -> None:
    """Whoever takes a state gets what its provider had at the cut of a view: right behind that
    view, before any message of it. Both speak of the same view."""
    members = run.by_member(trace.SHOWN, trace.DELIVER, trace.HANDED, *STATED)
    told_by = {member: list(statements(rows)) for member, rows in members.items()}
    given: dict[tuple[MemberKey, int], tuple[Statement, Row | None]] = {}
    """The states that were given, by their number, with the view that each was cut at."""
    for member, mine in told_by.items():
        view: Row | None = None
        message: Row | None = None
        for told in mine:
            row = told.row
            if row.event == trace.SHOWN:
                view, message = row, None
            elif is_handed(row):
                message = row
            elif row.event == trace.STATE_WANTED:
                found.premises += 1
                given[member, row.seqno] = told, view
                if view is None or message is not None:
                    text = f"{row.member} gives its state to {row.peer} behind messages of its view"
                    found.violate(text, view, message, row)
    for member, mine in told_by.items():
        begun: Row | None = None
        for told in mine:
            if told.row.event == trace.STATE_BEGUN:
                begun = told.row
            elif told.row.event == trace.STATE_RECEIVED:
                found.premises += 1
                of = None if begun is None else given.get((begun.peer_key, begun.seqno))
                if of is None or of[0].row.peer_key != member:
                    text = f"{told.row.member} has a state that nobody gave it"
                    found.violate(text, begun, told.row)
                else:
                    _judge_received(told, *of, found)


def _judge_received(told: Statement, given: Statement, view: Row | None, found: Findings) -> None:
    if view is not None and view.view_key != told.row.view_key:
        takes = f"{told.row.member} takes the state at view {told.row.view}"
        gave = f"{view.member} gave it at view {view.view}"
        found.violate(f"{takes}; {gave}", view, given.row, told.row)
    _compare(told, given.content(), f"{given.row.member} gave", found)


def _compare(
    told: Statement, due: Mapping[OriginKey, Content], whose: str, found: Findings
) -> None:
    content = told.content()
    for origin in {**due, **content}:
        has, should = content.get(origin, NOTHING), due.get(origin, NOTHING)
        if has != should:
            text = f"{told.row.member} has of {origin[0]}#{origin[1]} {_text(has)}; {whose}"
            found.violate(f"{text} {_text(should)}", told.row, told.entries.get(origin))


def _text(content: Content) -> str:
    return f"{content.messages} messages through {content.last} ({content.hash:x})"


class _Taker:
    """What one member took out of its windows, and what of it its application was handed."""

    def __init__(self, found: Findings) -> None:
        self.found = found
        self.wait: Row | None = None
        """It waits for its state; or it has it, and what was put aside is yet to be handed on."""
        self._aside: list[Row] = []
        self._is_here = False

    def see(self, row: Row) -> None:
        if row.event == trace.STATE_WAIT:
            if self.wait is None or self._is_here:
                self.close()
            self.wait, self._is_here = row, False
        elif self.wait is None:
            return
        elif row.event in (trace.STATE_RECEIVED, trace.STATE_LOST):
            self._is_here = True
            self._aside = [each for each in self._aside if each.view >= row.view]
        elif row.event == trace.DELIVER and row.detail == trace.ASIDE:
            self._aside.append(row)
        elif row.event in (trace.DELIVER, trace.HANDED):
            self._hand(self.wait, row)

    def close(self) -> None:
        """Everything has been handed on that its state does not hold."""
        if self._is_here and self._aside:
            first = self._aside[0]
            text = f"{first.member} has put {_range(first)} aside, and its application never got it"
            self.found.violate(text, self.wait, first)
        self._aside = []

    def _hand(self, wait: Row, row: Row) -> None:
        self.found.premises += 1
        what = f"{row.member} is handed {_range(row)}"
        if not self._is_here:
            self.found.violate(f"{what} while its state is on its way", wait, row)
            return
        due = next((at for at, each in enumerate(self._aside) if each.origin == row.origin), None)
        if row.event == trace.DELIVER:
            if due is not None:
                first = self._aside[due]
                self.found.violate(f"{what} before {_range(first)}", wait, first, row)
            return
        if due is None or self._aside[due].seqno != row.seqno:
            self.found.violate(f"{what}, which is not what was put aside next", wait, row)
        self._take(row)

    def _take(self, row: Row) -> None:
        """What is handed on need not come in the pieces in which it was put aside."""
        left = []
        for each in self._aside:
            if each.origin == row.origin and each.seqno <= row.seqno2:
                if each.seqno2 <= row.seqno2:
                    continue
                each = each._replace(seqno=row.seqno2 + 1)
            left.append(each)
        self._aside = left


def _range(row: Row) -> str:
    return f"{row.peer}:{row.run}"


_TAKEN = (trace.DELIVER, trace.HANDED, trace.STATE_WAIT, trace.STATE_RECEIVED, trace.STATE_LOST)


@stepwise("T2", "behind a state comes what was sent since its cut, once", _TAKEN)
def _behind_a_state(facts: Facts, found: Findings) -> Steps:
    """Behind its state an application gets exactly what was sent in the view that the state was cut
    at, and in later ones: in order, once, and all that its member took. Before it, it gets nothing.
    The same if the state is lost: what was sent before the view that it was to be cut at is lost,
    too. Whether it has got all in the end only the whole run tells."""
    takers: dict[MemberKey, _Taker] = {}
    while row := (yield):
        taker = takers.get(row.key)
        if taker is None:
            taker = takers[row.key] = _Taker(found)
        taker.see(row)


def _once_behind_its_state(run: Run, found: Findings) -> None:
    for member, rows in run.by_member(*_TAKEN).items():
        taker = _Taker(found)
        for row in rows:
            taker.see(row)
        is_reading = rows[0].member not in run.facts.stopped_members
        if run.facts.gst_ns is not None and run.lives.is_live(member) and is_reading:
            taker.close()


once_behind_its_state = _behind_a_state._replace(judge=_once_behind_its_state)


@rule(
    "T3",
    "every state is made of exactly the messages that its chain of members was handed",
    Need.STATE,
)
def state_is_what_was_handed(run: Run, found: Findings) -> None:
    """Whenever a state is given, and at the end of the run, it is what follows from all that its
    member was handed, on top of the state that it got, which follows likewise, and so on."""
    members = run.by_member(trace.DELIVER, trace.HANDED, *STATED)
    told = [each for rows in members.values() for each in statements(rows)]
    if any(each.row.run_idx < 0 for each in told):
        found.unknown.add(NO_RUN_ORDER)
        return
    states: defaultdict[MemberKey, dict[OriginKey, Content]] = defaultdict(dict)
    given: dict[tuple[MemberKey, int], dict[OriginKey, Content]] = {}
    begun: dict[MemberKey, tuple[MemberKey, int]] = {}
    for each in sorted(told, key=lambda told: told.row.run_idx):
        row, member = each.row, (each.row.node, each.row.inc)
        state = states[member]
        if row.event == trace.STATE_BEGUN:
            begun[member] = row.peer_key, row.seqno
        elif row.event == trace.STATE_RECEIVED:
            states[member] = dict(given.get(begun[member], {})) if member in begun else {}
        elif row.event in (trace.STATE_WANTED, trace.STATE_END):
            found.premises += 1
            _compare(each, state, "from what it was handed follow", found)
            if row.event == trace.STATE_WANTED:
                given[member, row.seqno] = dict(state)
        elif is_handed(row):
            count = 0 if row.kind == "fragment" else row.seqno2 - row.seqno + 1
            before = state.get(row.origin, NOTHING)
            state[row.origin] = before.then(count, row.seqno2, row.block_hash)


@rule("T4", "a state is lost only if nobody in the view can give it", Need.STATE)
def lost_only_if_nobody_has_it(run: Run, found: Findings) -> None:
    """A state is called lost only in a view to which everybody else came without one, or where all
    who had one have refused it to somebody of the view."""
    members = run.by_member(
        *(trace.VIEW, trace.SHOWN),
        *(trace.STATE_WAIT, trace.STATE_RECEIVED, trace.STATE_LOST, trace.STATE_REFUSED),
    )
    for rows in members.values():
        view: Row | None = None
        for row in rows:
            if row.event == trace.VIEW:
                view = row
            elif row.event != trace.STATE_LOST or view is None:
                continue
            elif row.run_idx < 0:
                found.unknown.add(NO_RUN_ORDER)
            else:
                found.premises += 1
                for key in view.members:
                    others = members.get(trace.split_key(key), [])
                    if key != row.member and not _could_not(others, view, row):
                        text = f"{row.member} has lost its state, and {key} has one"
                        found.violate(text, view, row)


def _could_not(rows: list[Row], view: Row, lost: Row) -> bool:
    """Whether this one was without a state itself when it came to that view, or has refused.
    Founders have one from their first view on, others have to wait for theirs from there. That is
    told when the application sees the view, which may be later."""
    has_state = has_view = is_there = is_shown = False
    for row in rows:
        is_shown |= row.event == trace.SHOWN and row.view_key == view.view_key
        if row.run_idx > lost.run_idx:
            if is_shown:
                break
            has_state &= row.event != trace.STATE_WAIT
            continue
        is_there |= row.event == trace.VIEW and row.view_key == view.view_key
        if row.event == trace.STATE_REFUSED:
            if row.peer_member in view.members:
                return True
        elif is_there or row.event == trace.SHOWN:
            continue
        elif row.event != trace.VIEW:
            has_state = row.event != trace.STATE_WAIT
        elif not has_view:
            has_state = has_view = True
    return not has_state


@rule("T5", "members that end in one view have the same state", Need.STATE)
def same_in_one_view(run: Run, found: Findings) -> None:
    """Those whose last view is the same have the same state in the end, but for senders of whom
    some that went from view to view together have delivered less than others (N11). Not judged
    where a state was refused and then lost: those who refused it still have it."""
    refused = {row.peer_key for row in run.rows(trace.STATE_REFUSED)}
    if not refused.isdisjoint(row.key for row in run.rows(trace.STATE_LOST)):
        return
    uneven = {
        origin
        for origin, steps in together(run)
        if len({step.stay.through(origin) for step in steps}) > 1
    }
    ends = {
        row.key: Statement(row, {key: entries[key] for key in entries if key not in uneven})
        for rows in run.by_member(*STATED).values()
        for row, entries in statements(rows)
        if row.event == trace.STATE_END and row.key in run.lives.views
        if row.member not in run.facts.stopped_members
    }
    views = by(ends.values(), lambda end: run.lives.views[end.row.key][-1].view_key)
    for first, *others in views.values():
        for end in others:
            found.premises += 1
            _compare(end, first.content(), f"{first.row.member} has", found)


@rule("T-L1", "whoever takes a state has it, in time", Need.STATE)
def state_in_time(run: Run, found: Findings) -> None:
    """Whoever takes a state has it soon, or is told that nobody has it."""
    if run.phases.heal is None:
        return
    heal_ns = run.phases.heal.mono_ns
    states = run.by_member(trace.STATE_WAIT, trace.STATE_RECEIVED, trace.STATE_LOST)
    for member, rows in states.items():
        wait: Row | None = None
        for end in [*rows, *[None] * run.lives.is_live(member)]:
            if end is not None and end.event == trace.STATE_WAIT:
                wait = wait or end
                continue
            if wait is not None and run.until_ns(end) >= heal_ns:
                since_ns = max(wait.mono_ns, heal_ns)
                bound_ns = bounds.state_ns(run.facts, since_ns - wait.mono_ns)
                text = f"{wait.member} waits for its state for {{}} ns"
                found.wait(run.until_ns(end) - since_ns, bound_ns, end, text, wait, end)
            wait = None
