"""T1–T4, T-L1: the application's state goes to whoever joins, and then all that is not in it, once.

What applications make of their messages is known to the trace: of each origin how many, the last,
and a hash that depends on their order. It is made so that the hash of a run follows from that of
its parts: so what a member must have can be computed from rows alone.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from ringcast.protocols.state import PATIENCE_NS
from ringcast.rules.algebra import Lives
from ringcast.rules.findings import Findings
from ringcast.rules.membership import GroupFacts
from ringcast.trace.rows import (
    ASIDE,
    DELIVER,
    HANDED,
    OPEN,
    PHASE,
    STATE_BEGUN,
    STATE_DIGEST,
    STATE_END,
    STATE_ENTRY,
    STATE_LOST,
    STATE_RECEIVED,
    STATE_REFUSED,
    STATE_WAIT,
    STATE_WANTED,
    VIEW,
    split_key,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ringcast.rules.findings import Verdict
    from ringcast.trace.rows import Facts, MemberKey, OriginKey, Row

PRIME = (1 << 61) - 1
BASE = 0x9E3779B97F4A7C15 % PRIME

NO_RUN_ORDER = "who had which state when: no run order"


class Content(NamedTuple):
    """What a state has of one origin."""

    messages: int = 0
    """Whole ones."""
    last: int = 0
    """The highest seqno that was handed on, fragments included."""
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
    return row.event == HANDED or (row.event == DELIVER and row.detail != ASIDE)


class Statement(NamedTuple):
    """A row about a whole state, and the rows behind it: one for each origin."""

    row: Row
    entries: dict[OriginKey, Row]

    def content(self) -> dict[OriginKey, Content]:
        return {
            origin: Content(row.size, row.seqno, row.block_hash)
            for origin, row in self.entries.items()
        }


class Chronicle:
    """Rows of all members, in order for each, with statements put together."""

    HEADINGS = (STATE_WANTED, STATE_BEGUN, STATE_RECEIVED, STATE_END)
    EVENTS = (*HEADINGS, STATE_ENTRY, STATE_DIGEST)

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows: defaultdict[MemberKey, list[Row]] = defaultdict(list)

    def feed(self, row: Row) -> None:
        self.rows[row.node, row.inc].append(row)

    def merge(self, other: Chronicle) -> None:
        for member, rows in other.rows.items():
            self.rows[member] += rows

    def statements(self, member: MemberKey) -> Iterator[Statement]:
        """Everything this member wrote; what is no statement has no entries."""
        rows = self.rows[member]
        at = 0
        while at < len(rows):
            told = Statement(rows[at], {})
            at += 1
            while at < len(rows) and rows[at].event in (STATE_ENTRY, STATE_DIGEST):
                told.entries[rows[at].origin] = rows[at]
                at += 1
            yield told


class _Given(NamedTuple):
    """A state as its provider had it, and where that stood by its own rows."""

    told: Statement
    reached: dict[OriginKey, int]
    opened: dict[OriginKey, tuple[int, ...]]

    def is_cut(self, origin: OriginKey, seqno: int) -> bool:
        """Whether the provider's application had come there: it was handed all up to this; or its
        window opened there, for a sender that was away, and it had nothing of it yet."""
        reached = self.reached.get(origin, 0)
        return seqno == reached or (seqno > reached and seqno in self.opened.get(origin, ()))


class AsItsProviderHadIt:
    """A joiner gets the state that its provider had when it came to the place of the cut. The cut
    that the joiner is told is what the provider had been handed by then."""

    id = "T1"
    title = "a joiner gets its provider's state, of the cut that it is told"
    events = (OPEN, DELIVER, HANDED, *Chronicle.EVENTS)

    def __init__(self) -> None:
        self.chronicle = Chronicle()

    def feed(self, row: Row) -> None:
        self.chronicle.feed(row)

    def merge(self, other: AsItsProviderHadIt) -> None:
        self.chronicle.merge(other.chronicle)

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        given: dict[tuple[MemberKey, int], _Given] = {}
        for member in self.chronicle.rows:
            for each in self._given_by(member):
                given[member, each.told.row.seqno] = each
        for member in self.chronicle.rows:
            begun: Statement | None = None
            for told in self.chronicle.statements(member):
                if told.row.event == STATE_BEGUN:
                    begun = told
                    self._judge_cut(told, given.get(_transfer(told.row)), found)
                elif told.row.event == STATE_RECEIVED:
                    of = None if begun is None else given.get(_transfer(begun.row))
                    self._judge_content(told, of, found)
        return found.verdict(self.id, self.title)

    def _given_by(self, member: MemberKey) -> Iterator[_Given]:
        reached: dict[OriginKey, int] = {}
        opened: defaultdict[OriginKey, list[int]] = defaultdict(list)
        begun: dict[OriginKey, Row] = {}
        for told in self.chronicle.statements(member):
            row = told.row
            if row.event == OPEN:
                opened[row.origin].append(row.seqno)
            elif row.event == STATE_BEGUN:
                begun = told.entries
            elif row.event == STATE_RECEIVED:
                reached = {origin: cut.seqno for origin, cut in begun.items()}
            elif row.event == STATE_WANTED:
                places = {origin: tuple(offsets) for origin, offsets in opened.items()}
                yield _Given(told, dict(reached), places)
            elif is_handed(row):
                reached[row.origin] = row.seqno2

    def _judge_cut(self, told: Statement, given: _Given | None, found: Findings) -> None:
        found.premises += 1
        if given is None or (given.told.row.peer, given.told.row.peer_inc) != (
            told.row.node,
            told.row.inc,
        ):
            found.violate(
                f"{told.row.member} is told of state {told.row.seqno} of {told.row.peer}, which "
                f"does not give it",
                told.row,
            )
            return
        for origin in {**given.reached, **told.entries}:
            cut = told.entries.get(origin)
            seqno = 0 if cut is None else cut.seqno
            if not given.is_cut(origin, seqno):
                found.violate(
                    f"{told.row.member} is told that its state has {origin[0]} through {seqno}; "
                    f"{told.row.peer} had come to {given.reached.get(origin, 0)}",
                    *(given.told.row, told.row, cut),
                )

    def _judge_content(self, told: Statement, given: _Given | None, found: Findings) -> None:
        found.premises += 1
        if given is None:
            found.violate(f"{told.row.member} has a state that nobody gave", told.row)
        else:
            _compare(told, given.told.content(), f"{given.told.row.member} gave", found)


def _transfer(begun: Row) -> tuple[MemberKey, int]:
    return (begun.peer, begun.peer_inc), begun.seqno


def _compare(
    told: Statement, due: Mapping[OriginKey, Content], whose: str, found: Findings
) -> None:
    content = told.content()
    for origin in {**due, **content}:
        has, should = content.get(origin, NOTHING), due.get(origin, NOTHING)
        if has != should:
            found.violate(
                f"{told.row.member} has of {origin[0]}#{origin[1]} {_text(has)}; {whose} "
                f"{_text(should)}",
                *(told.row, told.entries.get(origin)),
            )


def _text(content: Content) -> str:
    return f"{content.messages} messages through {content.last} ({content.hash:x})"


class _Window:
    """What a joiner took out of one window."""

    __slots__ = ("is_first", "offset", "taken")

    def __init__(self, offset: int, *, is_first: bool) -> None:
        self.offset = self.taken = offset
        self.is_first = is_first
        """It opened when its member was let in."""

    def has_more(self, reached: int) -> bool:
        """Whether something was taken out of it that comes after this."""
        return self.taken > max(reached, self.offset)


class _Joiner:
    """What one joiner took, and what of it its application was handed."""

    def __init__(self, found: Findings) -> None:
        self.found = found
        self.wait: Row | None = None
        self.reached: dict[OriginKey, int] | None = None
        """How far the application has come; None: it has no state yet."""
        self.view: Row | None = None
        self._cut: dict[OriginKey, Row] = {}
        self._windows: defaultdict[OriginKey, list[_Window]] = defaultdict(list)

    def see(self, told: Statement) -> None:
        row = told.row
        if row.event == VIEW:
            self.view = row
        elif row.event == OPEN:
            self._windows[row.origin].append(_Window(row.seqno, is_first=self.wait is None))
        elif row.event == STATE_WAIT:
            self.wait = row
        elif row.event == STATE_BEGUN:
            self._cut = told.entries
        elif row.event == STATE_RECEIVED:
            self.reached = {origin: cut.seqno for origin, cut in self._cut.items()}
        elif row.event == STATE_LOST:
            # All that came since it was let in: there is no state that it would have to follow on.
            self._cut = {}
            self.reached = {
                origin: windows[0].offset
                for origin, windows in self._windows.items()
                if windows[0].is_first
            }
        elif row.event in (DELIVER, HANDED):
            if row.event == DELIVER:
                self._take(row)
            if self.wait is not None and is_handed(row):
                self._hand(row)

    def close(self) -> None:
        """It lives, and takes: everything has been handed on that does not precede its state."""
        for origin, windows in self._windows.items():
            reached = (self.reached or {}).get(origin, 0)
            is_gone = self.view is None or f"{origin[0]}#{origin[1]}" not in self.view.members
            for window in windows:
                is_over = is_gone or window is not windows[-1]
                if window.has_more(reached) and not (
                    is_over and self._may_be_left_out(origin, window, reached)
                ):
                    assert self.wait is not None
                    self.found.violate(
                        f"{self.wait.member} has taken {origin[0]} through {window.taken}; its "
                        f"application got it through {reached}",
                        self.wait,
                    )

    def _take(self, row: Row) -> None:
        windows = self._windows[row.origin]
        if not windows:
            windows.append(_Window(0, is_first=True))  # its own stream
        windows[-1].taken = max(windows[-1].taken, row.seqno2)

    def _hand(self, row: Row) -> None:
        self.found.premises += 1
        what = f"{row.member} is handed {row.peer}:{row.seqno}..{row.seqno2}"
        if self.reached is None:
            self.found.violate(f"{what} while its state is on its way", self.wait, row)
            return
        due = self.reached.get(row.origin, 0) + 1
        if row.seqno < due:
            self.found.violate(f"{what}, which it has had through {due - 1}", self.wait, row)
        elif row.seqno > due and not self._begins_anew(row, due):
            self.found.violate(f"{what}, due was {due}", self.wait, row)
        self.reached[row.origin] = max(due - 1, row.seqno2)

    def _begins_anew(self, row: Row, due: int) -> bool:
        """Whether a window opened there, for a sender that was away or is new to the group, and
        nothing was lost of the windows before."""
        for window in self._windows[row.origin]:
            if window.offset == row.seqno - 1 and not window.is_first:
                return True
            if window.has_more(due - 1) and not self._may_be_left_out(row.origin, window, due - 1):
                return False
        return False

    def _may_be_left_out(self, origin: OriginKey, window: _Window, reached: int) -> bool:
        """If its sender has departed: whether the provider had less of it than would have to
        precede this. Nothing precedes a later window, nor the first one of a sender that came
        after this member and that the state knows nothing of."""
        used = (each for each in self._windows[origin] if each.is_first or each.has_more(0))
        is_behind_state = window.is_first or origin in self._cut
        return window.offset > reached and is_behind_state and window is next(used, None)


class OnceBehindItsState:
    """Behind its state a joiner's application gets of each origin exactly what follows on the cut:
    in order, once, and all that was taken.

    A sender that was away begins anew where its window opens. One that has departed may have left
    messages here that do not follow on the state, because its provider had fewer: all of them are
    left out. One that came after this member, and that the state knows nothing of, follows on
    nothing: of it all is handed on. Before its state the application gets nothing.
    """

    id = "T2"
    title = "behind its state a joiner is handed what follows on the cut, once"
    events = (OPEN, DELIVER, HANDED, STATE_WAIT, STATE_LOST, *Chronicle.EVENTS, *Lives.EVENTS)

    def __init__(self) -> None:
        self.chronicle = Chronicle()
        self.lives = Lives()

    def feed(self, row: Row) -> None:
        if row.event in Lives.EVENTS:
            self.lives.feed(row)
        if row.event == VIEW or row.event not in Lives.EVENTS:
            self.chronicle.feed(row)

    def merge(self, other: OnceBehindItsState) -> None:
        self.chronicle.merge(other.chronicle)
        self.lives.merge(other.lives)

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        for member, rows in self.chronicle.rows.items():
            joiner = _Joiner(found)
            for told in self.chronicle.statements(member):
                joiner.see(told)
            if (
                joiner.reached is not None
                and facts.gst_ns is not None
                and self.lives.is_live(member)
                and rows[0].member not in facts.stopped_members
            ):
                joiner.close()
        return found.verdict(self.id, self.title)


class StateIsWhatWasHanded:
    """Whenever a state is given, and at the end of the run, it is what follows from all that its
    member was handed, on top of the state that it got, which follows likewise, and so on."""

    id = "T3"
    title = "every state is made of exactly the messages that its chain of members was handed"
    events = (DELIVER, HANDED, *Chronicle.EVENTS)

    def __init__(self) -> None:
        self.chronicle = Chronicle()

    def feed(self, row: Row) -> None:
        self.chronicle.feed(row)

    def merge(self, other: StateIsWhatWasHanded) -> None:
        self.chronicle.merge(other.chronicle)

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        told = [
            each for member in self.chronicle.rows for each in self.chronicle.statements(member)
        ]
        if any(each.row.run_idx < 0 for each in told):
            found.unknown.add(NO_RUN_ORDER)
            return found.verdict(self.id, self.title)
        states: defaultdict[MemberKey, dict[OriginKey, Content]] = defaultdict(dict)
        given: dict[tuple[MemberKey, int], dict[OriginKey, Content]] = {}
        begun: dict[MemberKey, Row] = {}
        for each in sorted(told, key=_run_idx):
            row, member = each.row, (each.row.node, each.row.inc)
            state = states[member]
            if row.event == STATE_BEGUN:
                begun[member] = row
            elif row.event == STATE_RECEIVED:
                got = given.get(_transfer(begun[member])) if member in begun else None
                states[member] = dict(got or {})
            elif row.event in (STATE_WANTED, STATE_END):
                found.premises += 1
                _compare(each, state, "from what it was handed follow", found)
                if row.event == STATE_WANTED:
                    given[member, row.seqno] = dict(state)
            elif is_handed(row):
                count = 0 if row.kind == "fragment" else row.seqno2 - row.seqno + 1
                before = state.get(row.origin, NOTHING)
                state[row.origin] = before.then(count, row.seqno2, row.block_hash)
        return found.verdict(self.id, self.title)


def _run_idx(told: Statement) -> int:
    return told.row.run_idx


class LostOnlyIfNobodyHasIt:
    """A state is called lost only where everybody else in the view waits for its own, is yet to
    hear that it has been let in, or has refused."""

    id = "T4"
    title = "a state is lost only if nobody in the view can give it"
    events = (VIEW, STATE_WAIT, STATE_RECEIVED, STATE_LOST, STATE_REFUSED)

    def __init__(self) -> None:
        self.chronicle = Chronicle()

    def feed(self, row: Row) -> None:
        self.chronicle.feed(row)

    def merge(self, other: LostOnlyIfNobodyHasIt) -> None:
        self.chronicle.merge(other.chronicle)

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        for rows in self.chronicle.rows.values():
            view: Row | None = None
            for row in rows:
                if row.event == VIEW:
                    view = row
                elif row.event == STATE_LOST and view is not None:
                    self._judge(view, row, found)
        return found.verdict(self.id, self.title)

    def _judge(self, view: Row, lost: Row, found: Findings) -> None:
        if lost.run_idx < 0:
            found.unknown.add(NO_RUN_ORDER)
            return
        found.premises += 1
        for key in view.members:
            if key != lost.member and not self._could_not(split_key(key), view, lost):
                found.violate(f"{lost.member} has lost its state, and {key} has one", view, lost)

    def _could_not(self, member: MemberKey, view: Row, lost: Row) -> bool:
        """Whether this one was without a state itself, at some time in that view, or has refused.
        Founders have one from their first view on, joiners have to wait for theirs from there."""
        has_state = has_view = False
        for row in self.chronicle.rows.get(member, []):
            if row.run_idx > lost.run_idx:
                break
            if row.event == VIEW and not has_view:
                has_state = has_view = True
            elif row.event == STATE_WAIT:
                has_state = False
            elif row.event in (STATE_RECEIVED, STATE_LOST):
                has_state = True
                if row.run_idx > view.run_idx:
                    return True
            elif row.event == STATE_REFUSED and (row.peer, row.peer_inc) == (lost.node, lost.inc):
                return True
        return not has_state


def state_bound_ns(facts: GroupFacts, waited_ns: int = 0) -> int:
    """How long after the end of the faults a joiner may still wait for its state, if it has waited
    for so long by then.

    There is one view. If its provider's words are lost, it waits for as long as it has patience:
    so long at first, and never more than twice what it has waited. Then it asks one after the
    other, and gets it.
    """
    patience = max(PATIENCE_NS, 2 * waited_ns)
    return facts.one_view_bound_ns + patience + facts.nodes * facts.round_ns + facts.state_ns


class StateInTime:
    """Whoever joins has its state soon, or is told that nobody has it."""

    id = "T-L1"
    title = "whoever joins has its state, in time"
    events = (STATE_WAIT, STATE_RECEIVED, STATE_LOST, PHASE, *Lives.EVENTS)

    def __init__(self) -> None:
        self.waits: dict[MemberKey, Row] = {}
        self.ends: dict[MemberKey, Row] = {}
        self.heal: Row | None = None
        self.lives = Lives()

    def feed(self, row: Row) -> None:
        if row.event == STATE_WAIT:
            self.waits[row.node, row.inc] = row
        elif row.event in (STATE_RECEIVED, STATE_LOST):
            self.ends[row.node, row.inc] = row
        elif row.event != PHASE:
            self.lives.feed(row)
        elif row.kind == "heal":
            self.heal = row

    def merge(self, other: StateInTime) -> None:
        self.waits |= other.waits
        self.ends |= other.ends
        self.heal = self.heal or other.heal
        self.lives.merge(other.lives)

    def finish(self, facts: Facts) -> Verdict:
        found = Findings()
        if isinstance(facts, GroupFacts) and self.heal is not None:
            for member, wait in self.waits.items():
                end = self.ends.get(member)
                is_over = end is not None and end.mono_ns < self.heal.mono_ns
                if not is_over and self.lives.is_live(member):
                    self._judge(wait, end, self.heal.mono_ns, facts, found)
        return found.verdict(self.id, self.title)

    @staticmethod
    def _judge(
        wait: Row, end: Row | None, heal_ns: int, facts: GroupFacts, found: Findings
    ) -> None:
        since_ns = max(wait.mono_ns, heal_ns)
        bound_ns = state_bound_ns(facts, since_ns - wait.mono_ns)
        waited_ns = (facts.end_ns if end is None else end.mono_ns) - since_ns
        if end is None and waited_ns <= bound_ns:
            return  # the run ended while there was still time
        found.premises += 1
        found.waited(waited_ns, bound_ns)
        if waited_ns > bound_ns:
            found.violate(
                f"{wait.member} waits for its state for {waited_ns} ns, the bound is {bound_ns}",
                *(wait, end),
            )
