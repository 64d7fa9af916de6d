"""Where delivery begins: each range that a member delivers begins where a window of it opened.

N9 says that of every window, U2 of uniform messages, which are also delivered once, and N11 of the
messages of whoever was killed, which also end within what it sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ringcast.model import Stream
from ringcast.spark.reading import at_idx, at_seqnos
from ringcast.trace.rows import DELIVER, SEND

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ringcast.spark.reading import Look
    from ringcast.spark.recorded_run import RecordedRun
    from ringcast.spark.summary import MemberTrace, Stretch, Track
    from ringcast.trace.rows import MemberKey

SeqnoRange = tuple[int, int]


class Finding(NamedTuple):
    """One way in which a rule failed, and where to look for the rows that show it."""

    id: str
    text: str
    looks: list[Look]


class Begun(NamedTuple):
    """What one member delivered of one origin, and where its windows opened."""

    member: MemberKey
    trace: MemberTrace
    track: Track
    stretches: list[Stretch]

    @property
    def opened(self) -> list[Stretch]:
        return [stretch for stretch in self.stretches if stretch.is_opened]

    @property
    def is_own(self) -> bool:
        return self.track.origin[:2] == self.member

    def is_of_a_dead_sender(self, run: RecordedRun) -> bool:
        has_any = any(stretch.first <= stretch.last for stretch in self.stretches)
        is_dead = self.track.origin[:2] in run.prefixes
        return has_any and is_dead and self.member not in run.prefixes

    def misplaced(self, starts: set[int]) -> list[SeqnoRange]:
        """The ranges that begin elsewhere. Where rows are missing, an opening may be among them."""
        if self.trace.holes or self.trace.cut:
            return []
        return [each for each in joined(ranges(self.stretches)) if each[0] not in starts]


class Judged(NamedTuple):
    """How often each of N9, N11 and U2 had a case to judge, and what was found."""

    premises: dict[str, int]
    found: list[Finding]
    unknown: set[MemberKey]
    """Killed members of whom more was delivered than they had time to record."""


def judge_offsets(run: RecordedRun) -> Judged:
    premises = dict.fromkeys(("N9", "N11", "U2"), 0)
    found: list[Finding] = []
    unknown: set[MemberKey] = set()
    for begun in (Begun(*each) for each in run.tracks("delivered")):
        starts = {stretch.first for stretch in begun.opened}
        if starts:
            premises["N9"] += len(begun.opened)
            found += _begin_elsewhere("N9", run, begun, starts)
        if begun.track.stream == Stream.UNIFORM:
            premises["U2"] += sum(last - first + 1 for first, last in ranges(begun.stretches))
            found += _begin_elsewhere("U2", run, begun, {1} if begun.is_own else starts)
        if begun.is_of_a_dead_sender(run):
            premises["N11"] += 1
            found += _begin_elsewhere("N11", run, begun, starts or {1})
            sent = _sent_by(run, begun.track)
            for first, last in minus(ranges(begun.stretches), sent):
                if sent and first <= sent[-1][1]:
                    found += _between_sends(run, begun, sent, (first, last))
                else:
                    unknown.add(begun.track.origin[:2])
    return Judged(premises, found, unknown)


def _begin_elsewhere(
    id: str, run: RecordedRun, begun: Begun, starts: set[int]
) -> Iterator[Finding]:
    origin = begun.track.origin
    windows = ", ".join(str(start - 1) for start in sorted(starts)) or "no place"
    for first, _ in begun.misplaced(starts):
        yield Finding(
            id,
            f"{run.names.of(begun.member)} delivers {run.names.of_origin(origin)} from {first}, "
            f"its windows opened at {windows}",
            [
                *(at_idx(begun.trace, stretch.first_idx) for stretch in begun.opened),
                at_seqnos(begun.trace, DELIVER, origin, first, first),
            ],
        )


def _sent_by(run: RecordedRun, delivered: Track) -> list[SeqnoRange]:
    source = run.members.get(delivered.origin[:2])
    track = delivered._replace(role="sent")
    return joined(ranges(source.tracks.get(track, []))) if source is not None else []


def _between_sends(
    run: RecordedRun, begun: Begun, sent: list[SeqnoRange], lacking: SeqnoRange
) -> Iterator[Finding]:
    """Between two sends that the killed member recorded, it sent nothing else."""
    origin = begun.track.origin
    source = run.members[origin[:2]]
    if source.holes:
        return
    first, last = lacking
    after = next(start for start, _ in sent if start > first)
    yield Finding(
        "N11",
        f"{run.names.of(begun.member)} delivers {first}..{last} of "
        f"{run.names.of_origin(origin)}, which sent {after} without them",
        [
            at_seqnos(source, SEND, origin, after, after),
            at_seqnos(begun.trace, DELIVER, origin, first, last),
        ],
    )


# Ranges of seqnos


def ranges(stretches: Iterable[Stretch]) -> list[SeqnoRange]:
    """The seqnos covered, ascending; ranges may overlap."""
    return sorted((at.first, at.last) for at in stretches if at.first <= at.last)


def joined(ascending: Iterable[SeqnoRange]) -> list[SeqnoRange]:
    """Those that overlap or touch as one."""
    found: list[SeqnoRange] = []
    for first, last in ascending:
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return found


def minus(ascending: list[SeqnoRange], taken: list[SeqnoRange]) -> Iterator[SeqnoRange]:
    """What of the first is not in the second; both ascending."""
    for first, last in ascending:
        at = first
        for low, high in taken:
            if low > last:
                break
            if high >= at:
                if low > at:
                    yield at, low - 1
                at = high + 1
        if at <= last:
            yield at, last
