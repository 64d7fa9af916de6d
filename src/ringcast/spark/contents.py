"""Does everybody have the same bytes? Blocks of messages, compared by their hashes.

What a member delivered is compared with what the sender hashed. Where the sender has no hash of a
block (it was killed, it does not record, rows are lost) its receivers are compared with each other:
whatever it sent, it was the same for all. A span of blocks that differs is looked into block by
block, and where blocks are not known one by one their rows are read again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ringcast.spark import summary
from ringcast.spark.reading import Workers, at_span, fetch_rows
from ringcast.spark.summary import NOT_ONE, SPAN_BLOCKS, MemberTrace, Span, Track, block_numbers
from ringcast.trace.content import hashed_every
from ringcast.trace.rows import DELIVER, OPEN, SEND, MemberKey, OriginKey, Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ringcast.spark.recorded_run import RecordedRun

SeqnoRange: TypeAlias = tuple[int, int]
"""Both inclusive."""

SPANS_REREAD_MAX = 4096
"""Spans of blocks compared one by one. A clean run has a few for each joiner."""


class Unsure(NamedTuple):
    """A span whose rows tell: at these members, and at the sender or among themselves."""

    origin: OriginKey
    at: int
    members: tuple[MemberKey, ...]
    is_by_sender: bool
    known: int = 0
    """Blocks that the sender has, as bits: these are not compared among receivers."""


@dataclass(slots=True)
class Content:
    """What was compared."""

    blocks: int = 0
    """As delivered, that were compared with the sender's or another member's."""
    messages: int = 0
    delivered: int = 0
    """Messages in all."""
    unknown: set[MemberKey] = field(default_factory=set)
    """Killed senders without all hashes."""
    differing: list[tuple[str, list[Row]]] = field(default_factory=list)
    """One block has other bytes at one member than elsewhere: in words, and the rows."""
    left_out: int = 0
    """Spans that were not compared: there were too many."""

    @property
    def share(self) -> float | None:
        return min(1.0, self.messages / self.delivered) if self.delivered else None

    def count(self, blocks: int, messages: int) -> None:
        self.blocks += blocks
        self.messages += messages


class _Holder(NamedTuple):
    """One member's blocks of one span."""

    member: MemberKey
    trace: MemberTrace
    track: Track
    span: Span

    def block(self, number: int) -> Span:
        return self.trace.blocks.get(self.track, {}).get(number, NOT_ONE)


def compare_content(spark: Workers, run: RecordedRun) -> Content:
    found = Content()
    unsure = [
        doubt
        for origin, spans in _delivered(run).items()
        for at, holders in sorted(spans.items())
        for doubt in _compare_span(run, origin, at, holders, found)
    ]
    found.left_out = max(0, len(unsure) - SPANS_REREAD_MAX)
    del unsure[SPANS_REREAD_MAX:]
    for doubt, rows in _read_again(spark, run, unsure):
        judge = _judge_by_sender if doubt.is_by_sender else _judge_by_receivers
        judge(run, doubt, rows, found)
    found.delivered = sum(
        last - first + 1 for _, _, _, rows in run.runs("delivered") for first, last in ranges(rows)
    )
    return found


def _delivered(run: RecordedRun) -> dict[OriginKey, dict[int, list[_Holder]]]:
    """Who delivered what of each origin, span by span."""
    found: dict[OriginKey, dict[int, list[_Holder]]] = {}
    for member, trace in run.members.items():
        for track, spans in sorted(trace.content.items()):
            if not track.is_sent:
                holders = found.setdefault(track.origin, defaultdict(list))
                for at, span in spans.items():
                    holders[at].append(_Holder(member, trace, track, span))
    return found


def _compare_span(
    run: RecordedRun, origin: OriginKey, at: int, holders: list[_Holder], found: Content
) -> Iterator[Unsure]:
    sender = run.members.get(origin[:2])
    original = summary.NO_SPAN
    if sender is not None:
        sent = holders[0].track._replace(role="sent")
        original = sender.content.get(sent, {}).get(at, summary.NO_SPAN)
    hashed = _hashed_by(sender)
    for holder in holders:
        common = original.present & holder.span.present
        if common != holder.span.present & hashed and origin[:2] in run.prefixes:
            found.unknown.add(origin[:2])
        if common and holder.span == original:
            found.count(common.bit_count(), holder.span.messages)
        elif common:
            assert sender is not None
            alike = summary.equal_blocks(sender, holder.trace, holder.track, at, common)
            if alike is None:
                yield Unsure(origin, at, (holder.member,), is_by_sender=True)
            else:
                found.count(len(alike), sum(block.messages for block in alike))
    others = [holder for holder in holders if holder.span.present & ~original.present]
    if len(others) > 1 and not _are_alike(at, others, original.present, found):
        members = tuple(holder.member for holder in others)
        yield Unsure(origin, at, members, is_by_sender=False, known=original.present)


def _are_alike(at: int, holders: list[_Holder], known: int, found: Content) -> bool:
    """Whether these have the same blocks, of those that the sender lacks; no, also if that is not
    to be seen. One that a stop cut short is another block."""
    if not known and len({holder.span for holder in holders}) == 1:
        span = holders[0].span
        found.count(len(holders) * span.present.bit_count(), len(holders) * span.messages)
        return True
    seen: Counter[Span] = Counter()
    for holder in holders:
        for number in block_numbers(at, holder.span.present & ~known):
            block = holder.block(number)
            if block == NOT_ONE:
                return False
            seen[block] += 1
    if len({(block.present, block.messages) for block in seen}) < len(seen):
        return False
    for block, count in seen.items():
        if count > 1:
            found.count(count, count * block.messages)
    return True


def _hashed_by(sender: MemberTrace | None) -> int:
    """Which blocks of a span it hashes, as bits: one it does not hash is not missing."""
    every = 1 if sender is None else hashed_every(sender.level)
    return sum(1 << at for at in range(0, SPAN_BLOCKS, every))


# Rows


def _read_again(
    spark: Workers, run: RecordedRun, unsure: list[Unsure]
) -> Iterator[tuple[Unsure, list[Row]]]:
    looks = []
    for number, doubt in enumerate(unsure):
        senders = [doubt.origin[:2]] * doubt.is_by_sender
        for member in dict.fromkeys([*senders, *doubt.members]):
            trace, want = at_span(run.members[member], doubt.origin, doubt.at)
            looks.append((trace, want._replace(finding=number)))
    found: defaultdict[int, list[Row]] = defaultdict(list)
    for number, row in fetch_rows(spark, looks):
        found[number].append(row)
    for number, rows in sorted(found.items()):
        yield unsure[number], rows


def _blocks(rows: Iterable[Row]) -> Iterator[tuple[int, list[Row]]]:
    """By number. One that its sender's or receiver's stop cut short ends elsewhere: another one."""
    found: defaultdict[tuple[int, int], set[Row]] = defaultdict(set)
    for row in rows:
        found[row.block, row.seqno2].add(row)
    for (number, _), block in sorted(found.items()):
        yield number, sorted(block, key=lambda row: (row.node, row.inc, row.idx))


def _judge_by_sender(run: RecordedRun, doubt: Unsure, rows: list[Row], found: Content) -> None:
    (member,) = doubt.members
    theirs = (row for row in rows if row.kind == "sent" or (row.node, row.inc) == member)
    for number, block in _blocks(theirs):
        if len({row.kind for row in block}) < 2:
            continue
        found.count(1, max(row.seqno2 - row.seqno + 1 for row in block))
        if len({row.block_hash for row in block}) > 1:
            name, origin = run.names.of(member), run.names.of_origin(doubt.origin)
            text = f"block {number} of {origin} has other bytes at {name}"
            found.differing.append((text, block))


def _judge_by_receivers(run: RecordedRun, doubt: Unsure, rows: list[Row], found: Content) -> None:
    delivered = (
        row for row in rows if row.kind != "sent" and not doubt.known >> row.block % SPAN_BLOCKS & 1
    )
    for number, block in _blocks(delivered):
        at: defaultdict[int, list[str]] = defaultdict(list)
        for row in block:
            at[row.block_hash].append(run.names.of((row.node, row.inc)))
        members = {(row.node, row.inc) for row in block}
        if len(members) > 1:
            each = max(row.seqno2 - row.seqno + 1 for row in block)
            found.count(len(members), len(members) * each)
        if len(at) > 1:
            one, *others = sorted(at.values(), key=lambda names: (-len(names), names))
            text = (
                f"block {number} of {run.names.of_origin(doubt.origin)} has other bytes at "
                f"{', '.join(name for names in others for name in names)} than at {', '.join(one)}"
            )
            found.differing.append((text, block))


# Hashes that are not there


def missing_hashes(trace: MemberTrace) -> dict[Track, list[int]]:
    """The blocks, by number, of each track that a member must have hashed, and has not. Which they
    are follows from what it sent and delivered: each that it has from its first message on, of
    those that its level asks for. Only a trace that is whole tells."""
    found: dict[Track, list[int]] = {}
    if not trace.block_messages or not trace.is_whole:
        return found
    for track, first, last in _stretches(trace):
        spans = trace.content.get(track, {})
        for number in _hashed_within(trace, first, last):
            at, bit = divmod(number, SPAN_BLOCKS)
            if at not in spans or not spans[at].present >> bit & 1:
                found.setdefault(track, []).append(number)
    return found


def _hashed_within(trace: MemberTrace, first: int, last: int) -> Iterator[int]:
    """That are all within these seqnos, and hashed."""
    size, every = trace.block_messages, hashed_every(trace.level)
    begin = -(-(first - 1) // size)
    begin += -begin % every
    return (number for number in range(begin, last // size, every))


def _stretches(trace: MemberTrace) -> Iterator[tuple[Track, int, int]]:
    """Seqnos that follow each other, from where hashing may have begun."""
    ends: dict[Track, tuple[int, int]] = {}
    is_beginning: set[Track] = set()  # perhaps in the middle of a large message
    for row in trace.rows:
        if row.event == OPEN:
            track = Track("delivered", *row.origin)
            if track in ends:
                yield track, *ends.pop(track)
            is_beginning.discard(track)
            is_beginning |= {track} if row.seqno else set()
        elif row.event in (SEND, DELIVER):
            track = Track(summary.ROLES[row.event], *row.origin)
            begun = ends.get(track)
            is_next = begun is not None and row.seqno == begun[1] + 1
            if begun is not None and not is_next:
                yield track, *begun
            if row.size < row.seqno2 - row.seqno + 1 and _is_unsure(row, track, is_beginning):
                if begun is not None and is_next:
                    yield track, *begun
                ends.pop(track, None)
                continue
            is_beginning.discard(track)
            ends[track] = (begun[0] if begun is not None and is_next else row.seqno), row.seqno2
    for track, stretch in ends.items():
        yield track, *stretch


def _is_unsure(row: Row, track: Track, is_beginning: set[Track]) -> bool:
    """Some of these are fragments, or what an only member has sent and purged at once: nobody knows
    where hashing went on."""
    return row.event == SEND or track in is_beginning


# Ranges of seqnos


def ranges(runs: Iterable[Row]) -> list[SeqnoRange]:
    """The seqnos covered, ascending; those that overlap or touch are one range."""
    found: list[SeqnoRange] = []
    for first, last in sorted((run.seqno, run.seqno2) for run in runs if run.seqno <= run.seqno2):
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
