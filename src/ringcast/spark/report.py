"""What an audit says: a verdict for each guarantee, its witnesses, and one sentence for all."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ringcast.model import Stream
from ringcast.rules.findings import Need
from ringcast.rules.sync import NO_RUN_ORDER
from ringcast.rules.table import BY_PROTOCOL
from ringcast.trace.held import STREAMS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ringcast.trace.rows import MemberKey, OriginKey, Row

OK = "ok"
VIOLATED = "violated"
INCOMPLETE = "incomplete"
INCONCLUSIVE = "inconclusive"
UNDECIDABLE = "undecidable"
UNKNOWN_TAIL = "unknown tail"

_RECORDED_TITLES = {
    "G1": "only what was sent is delivered",
    "G3": "nothing comes from a member after its stop",
    "N3": "each send takes the next number",
    "N5": "what a sender has purged, every member of its view has delivered",
    "N4": "receivers buffer only what has a slot",
    "content": "what is delivered has the bytes that were sent",
}
"""What is judged of members that record for themselves is here less than of a simulation, which
shows more."""

OF_PAIRS = (
    *("S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8", "S9", "S-L3", "S-L4", "S-L5", "S-L6"),
    *("Y1", "Y3", "Y4", "Y5", "Y-L2", "Y-L3"),
)
"""About messages to one member."""

OF_ORDER = ("O1", "O2", "O3", "O5", "O6", "O7", "O8", "O9")
"""About total messages."""

NEED_FULL = ("G5", "N4", "N6", "N7", "N10", "N-L3", "N-L5", "T2", *OF_PAIRS)
"""Judged from what only members that record at level "full" write down: frames, windows, blocked
sends, and all about messages to one member."""

RECORDED = (
    *("G1", "G2 N2", "G3", "N1", "N3", "N5", "N8", "N11", "content"),
    *("VS1", "VS2", "VS3", "VS4", "VS5", "VS6", "VS7", "VS9"),
    *OF_ORDER,
    *NEED_FULL,
)
"""What is judged of members that record for themselves. N2 is G2 for multicast, and members record
nothing else that is delivered."""


def verdict_id(rule_id: str) -> str:
    """Under which id the audit reports what this rule judges."""
    return "G2 N2" if rule_id == "G2" else rule_id


TITLES = {
    verdict_id(rule.id): rule.title for rules in BY_PROTOCOL.values() for rule in rules
} | _RECORDED_TITLES
"""Of all guarantees that traces can show, by id."""

IF_ANY = (
    *("G3", "N5", "N11", "N-L3", "N-L5", "T2", "VS4", "VS5", "VS6", "VS7", "VS9"),
    *OF_ORDER,
    *OF_PAIRS,
)
"""No reason to fail where there is nothing to judge: in many runs nobody dies, no view follows on
another while messages are sent, and no message is uniform or total."""

ALONE = ("G2 N2", "G3", "N1", "N3", "N8", "O8", "O9", "VS9", *NEED_FULL)
"""Judged of each member by its own rows alone: of those who recorded, whoever did not."""

HALVES = {
    "G3": Need.DEATHS.value,
    "N5": "that they had when it was purged is not judged, as members' rows have no common order",
    "N-L3": "how soon stability rounds tell a blocked sender needs a clock that all members go by",
    "T2": "whether it was handed all in the end is not judged",
    "Y1": NO_RUN_ORDER,
}
"""What of a guarantee is not judged where members record for themselves. The rest is: an "ok" of
these is of half a rule."""

UNDECIDABLE_IF_RECORDED = {
    verdict_id(rule.id): need.value
    for need in Need
    for rules in BY_PROTOCOL.values()
    for rule in rules
    if rule.needs is need is not Need.NOTHING and verdict_id(rule.id) not in RECORDED
}
"""Why traces of real members cannot show it, by id. Each member records for itself: nothing orders
the rows of two members, their clocks differ, and nobody knows when the network had healed. A
simulation's harness knows all of that."""

VIOLATIONS_SHOWN_MAX = 10
"""With their rows, for each rule; the rest are counted."""
REACHES_SHOWN_MAX = 20


class Reach(NamedTuple):
    """How much a receiver delivered of what a sender sent while both were in the view."""

    receiver: str
    sender: str
    delivered: int
    sent: int

    @property
    def text(self) -> str:
        share = _percent(self.delivered / self.sent)
        return (
            f"{self.receiver} delivered {share} of what {self.sender} sent while both were in the "
            "view"
        )


class Names:
    """What to call members: by name alone, unless the run has two incarnations of that name."""

    def __init__(self, members: Iterable[MemberKey]) -> None:
        known = set(members)
        counts = Counter(name for name, _ in known)
        self._shared = {name for name, count in counts.items() if count > 1}
        keys = {f"{name}#{inc}": name for name, inc in known if name not in self._shared}
        self._keys = dict(sorted(keys.items(), key=lambda item: -len(item[0])))

    def of(self, member: MemberKey) -> str:
        name, incarnation = member
        return f"{name}#{incarnation}" if name in self._shared else name

    def of_key(self, key: str) -> str:
        """The same for a member key, `name#incarnation`."""
        name = key.rpartition("#")[0]
        return key if name in self._shared else name

    def shorten(self, text: str) -> str:
        """The same for all member keys in a text."""
        for key, name in self._keys.items():
            text = text.replace(key, name)
        return text

    def of_origin(self, origin: OriginKey) -> str:
        name, incarnation, stream = origin
        name = self.of((name, incarnation))
        if stream == Stream.FIFO:
            return name
        return f"{name} ({STREAMS.get(stream, f'stream {stream}')})"


@dataclass(slots=True)
class Violation:
    """One way in which a rule failed, and the rows that show it."""

    text: str
    rows: list[Row] = field(default_factory=list)


@dataclass(slots=True)
class Verdict:
    """What one rule says of the run."""

    id: str
    premises: int = 0
    """How often it had a case to judge."""
    violations: list[Violation] = field(default_factory=list)
    violation_count: int = 0
    incomplete: list[str] = field(default_factory=list)
    inconclusive: list[str] = field(default_factory=list)
    undecidable: list[str] = field(default_factory=list)
    """Why traces like these cannot show it, or not all of it."""
    unknown: set[str] = field(default_factory=set)
    """Members whose missing end it hangs on."""
    share: float | None = None
    """How much of what it speaks of was compared; None: all."""
    is_beyond_level: bool = False
    """Not judged, or not of all members, because they did not record what it needs."""
    is_optional: bool = False
    """Not every run has a case for it."""
    worst: float | None = None
    """The longest wait, as a share of its bound."""
    unjudged: str = ""
    """What of the guarantee is not judged, whatever the traces show."""
    without: list[str] = field(default_factory=list)
    """Members that it is not judged of: they recorded nothing."""
    reaches: list[Reach] | None = None
    """Pairs of members of which not all messages came from one to the other, the least first; None:
    that is not what it speaks of."""
    title: str = ""
    """If not given, what it is called of members that record for themselves."""

    def __post_init__(self) -> None:
        self.title = self.title or TITLES[self.id]

    @property
    def status(self) -> str:
        if self.violation_count:
            return VIOLATED
        if self.incomplete:
            return INCOMPLETE
        if self.undecidable:
            return UNDECIDABLE
        if self.inconclusive:
            return INCONCLUSIVE
        return UNKNOWN_TAIL if self.unknown else OK

    @property
    def is_excused(self) -> bool:
        """It was not judged, or not all of it, and that is no reason to fail."""
        if self.violation_count or self.incomplete:
            return False
        is_idle = self.is_optional and not self.premises
        return self.is_beyond_level or is_idle or bool(self.undecidable)

    @property
    def is_unseen(self) -> bool:
        """Nothing was there to judge it by, as was to be expected."""
        return self.is_excused and not self.premises and not self.reaches

    @property
    def detail(self) -> str:
        """The reason for the status, and what was compared, in one line."""
        return "; ".join(self.remarks)

    @property
    def remarks(self) -> list[str]:
        """The same in its parts."""
        parts = self._reasons()
        if self.share is not None:
            parts = [*parts, f"{_percent(self.share)} of the messages compared"]
        if self.worst is not None:
            parts = [*parts, f"the longest wait took {self.worst:.2f} of its bound"]
        if self.premises or self.reaches:
            parts = [*parts, *self._reservations()]
        return parts

    def _reservations(self) -> Iterator[str]:
        """What it does not speak of, though it was judged."""
        if self.reaches:
            yield self.reaches[0].text
            if len(self.reaches) > 1:
                yield f"{len(self.reaches)} pairs of members have less than all"
        elif self.reaches is not None:
            yield "each member delivered 100 % of what each sent while both were in the view"
        if self.without:
            yield f"not judged of those who did not record ({', '.join(self.without)})"
        if self.unjudged and self.premises:
            yield self.unjudged

    def _reasons(self) -> list[str]:
        match self.status:
            case "violated":
                return [f"{self.violation_count} found"]
            case "incomplete":
                return self.incomplete
            case "inconclusive":
                return self.inconclusive
            case "undecidable":
                return self.undecidable
            case "unknown tail" if len(self.unknown) == 1:
                return [f"ok as far as {_listed(self.unknown)}'s trace goes (killed)"]
            case "unknown tail":
                return [f"ok as far as the traces of {_listed(self.unknown)} go (killed)"]
            case _:
                return []


@dataclass(slots=True)
class Report:
    """The audit of one run."""

    run_id: str
    members: int
    segments: int
    rows: int
    verdicts: list[Verdict]
    notes: list[str]
    """What was odd and changed nothing."""
    names: Names
    paths: list[str] = field(default_factory=list)
    """The segments that were judged, copies left out."""
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What each member ran with, as it recorded it."""

    @property
    def exit_status(self) -> int:
        """What the members' level does not show is no reason to fail."""
        found = Counter(verdict.status for verdict in self._judged)
        if found[VIOLATED]:
            return 1
        return 3 if found[INCOMPLETE] or found[INCONCLUSIVE] else 0

    @property
    def summary(self) -> str:
        """The whole in one sentence; never more than was judged."""
        found = Counter(verdict.status for verdict in self._judged)
        if found[VIOLATED]:
            return f"{found[VIOLATED]} guarantee{'s' * (found[VIOLATED] > 1)} violated."
        if found[INCOMPLETE]:
            why = "but rows are missing from the traces"
            return f"No violation was found, {why}: {self._held()}."
        if found[INCONCLUSIVE]:
            return f"No violation was found, but not everything could be judged: {self._held()}."
        return f"{'; '.join([self._held(), *self._reservations()])}."

    def _held(self) -> str:
        """How many of how many."""
        held = [
            verdict
            for verdict in self.verdicts
            if verdict.status in (OK, UNKNOWN_TAIL) and not verdict.is_excused
        ]
        in_part = sum(bool(verdict.unjudged) for verdict in held)
        if len(held) == len(self.verdicts) and not in_part:
            return f"All {len(held)} guarantees were judged and held"
        some = f"{len(held)} of {len(self.verdicts)} guarantees were judged and held"
        return f"{some}, {in_part} of them in part" if in_part else some

    def unseen(self) -> dict[str, list[str]]:
        """Which guarantees were not judged, by the reason: one line says so of all such."""
        unseen: dict[str, list[str]] = {}
        for verdict in self.verdicts:
            if verdict.is_unseen:
                unseen.setdefault(verdict.detail, []).append(verdict.id)
        return unseen

    def shared(self) -> dict[str, list[str]]:
        """Remarks on several guarantees that were judged: said once, with which they are."""
        found: dict[str, list[str]] = {}
        for verdict in self.verdicts:
            if not verdict.is_unseen and not verdict.violation_count:
                for remark in verdict.remarks:
                    found.setdefault(remark, []).append(verdict.id)
        return {remark: names for remark, names in found.items() if len(names) > 1}

    def own(self, verdict: Verdict) -> str:
        """The verdict's detail without what is said of others, too."""
        shared = self.shared()
        return "; ".join(
            remark for remark in verdict.remarks if verdict.id not in shared.get(remark, ())
        )

    @property
    def _judged(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if not verdict.is_excused]

    def _reservations(self) -> Iterator[str]:
        killed = set[str]().union(*(verdict.unknown for verdict in self.verdicts))
        if len(killed) == 1:
            yield f"the end of {_listed(killed)}'s trace is unknown because it was killed"
        elif killed:
            yield f"the traces of {_listed(killed)} have unknown ends because they were killed"
        for verdict in self.verdicts:
            if verdict.share is not None:
                yield f"bytes were compared of {_percent(verdict.share)} of the messages"
            told = [each.text for each in verdict.reaches or () if each.receiver not in killed]
            yield from told[:1]
        if any(verdict.is_beyond_level for verdict in self.verdicts):
            yield "frames and windows were not recorded"

    def to_json(self) -> str:
        verdicts = [
            {
                "id": verdict.id,
                "title": verdict.title,
                "verdict": verdict.status,
                "premises": verdict.premises,
                "detail": verdict.detail,
                "share": verdict.share,
                "not_judged": verdict.unjudged,
                "reach": [reach._asdict() for reach in (verdict.reaches or ())[:REACHES_SHOWN_MAX]],
                "worst": verdict.worst,
                "violations": verdict.violation_count,
                "witnesses": [
                    {"text": found.text, "rows": [row._asdict() for row in found.rows]}
                    for found in verdict.violations
                ],
            }
            for verdict in self.verdicts
        ]
        values = {
            "run_id": self.run_id,
            "members": self.members,
            "segments": self.segments,
            "rows": self.rows,
            "verdicts": verdicts,
            "notes": self.notes,
            "summary": self.summary,
            "exit_status": self.exit_status,
        }
        return json.dumps(values, indent=2)


def readable(row: Row, names: Names) -> str:
    """One row of a witness, as people read it."""
    words = [f"{names.of((row.node, row.inc))} row {row.idx}:", row.event]
    if row.peer:
        words.append(f"{names.of_origin(row.origin)} {row.seqno}..{row.seqno2}")
    if row.view:
        words.append(str(row.view) if row.event == "view" else f"view {row.view}")
    if row.members:
        words.append("[" + ", ".join(map(names.of_key, row.members)) + "]")
    if row.block >= 0:
        words.append(f"block {row.block} {row.kind} {row.block_hash:016x}")
    return " ".join(words)


def _percent(share: float) -> str:
    """Rounded down: what was not compared is never said to be."""
    return f"{int(100 * share)} %"


def _listed(names: Iterable[str]) -> str:
    """Names as a sentence has them: a; a and b; a, b and c."""
    *first, last = sorted(names)
    return f"{', '.join(first)} and {last}" if first else last
