"""An archive: a directory of segments that hold messages, written by one or more members.

Archives that run at the same time hold the same messages, each in segments of its own. A position
in the archive is a digest: for each origin, the last seqno that has been read. From a position on,
`Index.pieces` says which file to read for which messages, so that each comes once, however many
files have it. A member's file is left for another's only where it ends: whole files are read.

Where no file has a message that one behind it is there of, there is a gap. It may be closed yet, by
an archive that is slower to write; so a reader waits at a gap before it passes over it.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ringcast.errors import UsageError
from ringcast.trace.held import Range
from ringcast.trace.segments import SUFFIX, Segment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from ringcast.trace.rows import MemberKey, OriginKey

Digest: TypeAlias = "Mapping[OriginKey, int]"
Gaps: TypeAlias = "Mapping[OriginKey, Sequence[Range]]"

GAPS_MAX = 1000
"""Passed over at once in what one origin sent; so a position stays small."""

log = logging.getLogger("ringcast")


@dataclass(frozen=True, slots=True)
class File:
    """A segment of an archive, as its footer tells."""

    path: str
    writer: MemberKey
    size: int
    visible_at: float
    """When it got its name, in seconds since the epoch."""
    messages: int
    """How many it holds, fragments among them."""


class Holding(NamedTuple):
    """Consecutive messages of one origin in one file."""

    first: int
    last: int
    file: File


class Piece(NamedTuple):
    """Messages to be read from one file."""

    origin: OriginKey
    first: int
    last: int
    file: File

    @property
    def length(self) -> int:
        return self.last - self.first + 1


@dataclass(slots=True)
class Plan:
    """What is to be read behind a position, the longest visible first; and what is passed over."""

    pieces: list[Piece] = field(default_factory=list)
    gaps: dict[OriginKey, list[Range]] = field(default_factory=dict)

    def first_messages(self, count: int) -> Plan:
        """No more than so many messages of it."""
        kept: list[Piece] = []
        for piece in self.pieces:
            last = min(piece.last, piece.first + count - 1)
            if last < piece.first:
                break
            kept.append(piece._replace(last=last))
            count -= kept[-1].length
        return self._only(kept)

    def first_files(self, count: int) -> Plan:
        """No more than so many files of it."""
        paths: set[str] = set()
        kept: list[Piece] = []
        for piece in self.pieces:
            paths.add(piece.file.path)
            if len(paths) > count:
                break
            kept.append(piece)
        return self._only(kept)

    def after(self, start: Digest) -> dict[OriginKey, int]:
        """The position behind all of it, for who was at `start`."""
        return dict(start) | {piece.origin: piece.last for piece in self.pieces}

    def _only(self, kept: list[Piece]) -> Plan:
        last = {piece.origin: piece.last for piece in kept}
        gaps = {
            origin: before
            for origin, ranges in self.gaps.items()
            if (before := [gap for gap in ranges if gap.last < last.get(origin, 0)])
        }
        return Plan(kept, gaps)


class Index:
    """What the visible files of a directory hold. Footers are read once, rows never."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = str(directory)
        self.files: dict[str, File] = {}
        self.unreadable: dict[str, str] = {}
        """Files that are no segments, or torn: path and what is wrong. They count as missing."""
        self._others: set[str] = set()  # segments of members that keep no messages
        self._held: dict[OriginKey, dict[MemberKey, list[Holding]]] = {}

    def refresh(self) -> None:
        """Take in what has become visible, and let go of what is no longer there."""
        if not os.path.isdir(self.directory):
            raise UsageError(f"{self.directory}: no such directory: where does the archive write?")
        there = set(_segment_paths(self.directory))
        gone = self.files.keys() - there
        if gone:
            self._drop(gone)
        for path in sorted(there - self.files.keys() - self.unreadable.keys() - self._others):
            self._add(path)

    def holdings(self, origin: OriginKey) -> Iterator[tuple[MemberKey, list[Holding]]]:
        """What each writer holds of it, in order."""
        yield from sorted(self._held.get(origin, {}).items())

    @property
    def origins(self) -> list[OriginKey]:
        return sorted(self._held)

    def pieces(self, start: Digest, passed_before: float) -> Plan:
        """All that is behind `start`, up to gaps that became visible later than `passed_before`."""
        plan = Plan()
        ordered: list[tuple[float, Piece]] = []
        for origin in self.origins:
            newest = 0.0
            for item in self._walk(origin, start.get(origin, 0)):
                if isinstance(item, Piece):
                    # Never before what the same origin sent earlier.
                    newest = max(newest, item.file.visible_at)
                    ordered.append((newest, item))
                    continue
                gap, seen_at = item
                passed = plan.gaps.setdefault(origin, [])
                if seen_at > passed_before or len(passed) == GAPS_MAX:
                    break
                passed.append(gap)
        ordered.sort(key=lambda item: item[0])
        plan.pieces = [piece for _, piece in ordered]
        plan.gaps = {origin: ranges for origin, ranges in plan.gaps.items() if ranges}
        return plan

    def pieces_between(self, start: Digest, end: Digest, gaps: Gaps) -> list[Piece]:
        """Exactly what lies behind `start` up to `end`, but for these gaps: the same messages
        whenever it is asked. UsageError if one of them is not there any more."""
        found: list[Piece] = []
        for origin, through in end.items():
            at = start.get(origin, 0)
            for gap in (*gaps.get(origin, ()), Range(through + 1, through + 1)):
                if at + 1 < gap.first:
                    found += self._whole(origin, at, gap.first - 1)
                at = gap.last
        return found

    def _whole(self, origin: OriginKey, at: int, through: int) -> Iterator[Piece]:
        for item in self._walk(origin, at, through):
            if not isinstance(item, Piece):
                break
            yield item
            at = item.last
        if at < through:
            raise UsageError(
                f"messages {at + 1}..{through} of {origin[0]} are gone from {self.directory}, and "
                "this query has not read them: were files removed by hand?"
            )

    def _walk(
        self, origin: OriginKey, at: int, through: int | None = None
    ) -> Iterator[Piece | tuple[Range, float]]:
        """What is held of an origin behind `at`, once each, and the gaps between with the time
        since when they show."""
        writers = self._held.get(origin, {})
        current: MemberKey | None = None
        while through is None or at < through:
            holding = None if current is None else _holding_at(writers[current], at + 1)
            if holding is None:
                covering = [
                    (found.last, writer, found)
                    for writer, held in writers.items()
                    if (found := _holding_at(held, at + 1)) is not None
                ]
                if covering:
                    _, current, holding = max(covering, key=lambda item: item[:2])
            if holding is not None:
                last = holding.last if through is None else min(holding.last, through)
                yield Piece(origin, at + 1, last, holding.file)
                at = last
                continue
            behind = [
                held[place]
                for held in writers.values()
                if (place := bisect_right(held, at + 1, key=attrgetter("first"))) < len(held)
            ]
            if not behind:
                return
            following = min(behind, key=lambda held: (held.first, held.file.visible_at))
            yield Range(at + 1, following.first - 1), following.file.visible_at
            at = following.first - 1

    def _add(self, path: str) -> None:
        try:
            about = os.stat(path)
            with Segment(path) as segment:
                info, holdings = segment.info, segment.holdings
        except FileNotFoundError:
            return  # removed since it was listed
        except UsageError as error:
            if os.path.exists(path):
                self.unreadable[path] = str(error)
                log.warning("left out of the archive: %s", error)
            return
        if not info.payloads:
            self._others.add(path)
            return
        writer = info.node, info.inc
        messages = sum(held.length for _, held in holdings)
        file = File(path, writer, about.st_size, about.st_ctime, messages)
        self.files[path] = file
        for origin, held in holdings:
            mine = self._held.setdefault(origin, {}).setdefault(writer, [])
            mine.append(Holding(*held, file))
            if len(mine) > 1 and mine[-2].last >= mine[-1].first:
                mine[:] = _in_order(mine)

    def _drop(self, paths: set[str]) -> None:
        for path in paths:
            del self.files[path]
        for origin, writers in list(self._held.items()):
            for writer, held in list(writers.items()):
                writers[writer] = [holding for holding in held if holding.file.path not in paths]
                if not writers[writer]:
                    del writers[writer]
            if not writers:
                del self._held[origin]


def _in_order(held: list[Holding]) -> list[Holding]:
    """Without those that lie within another: copies of files. Firsts and lasts both grow then."""
    kept: list[Holding] = []
    for holding in sorted(held, key=lambda holding: (holding.first, -holding.last)):
        if not kept or holding.last > kept[-1].last:
            kept.append(holding)
    return kept


def _holding_at(held: list[Holding], seqno: int) -> Holding | None:
    """The one that has this seqno and the most behind it."""
    place = bisect_right(held, seqno, key=attrgetter("first")) - 1
    return held[place] if place >= 0 and held[place].last >= seqno else None


def _segment_paths(directory: str) -> Iterator[str]:
    for root, _, names in os.walk(directory):
        for name in names:
            if name.endswith(SUFFIX):
                yield os.path.join(root, name)
