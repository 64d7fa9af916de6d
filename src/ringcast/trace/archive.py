"""An archive: a directory of segments that hold messages, written by one or more members.

Archives that run at the same time hold the same messages, each in segments of its own. A position
in the archive is a digest: for each origin, the last seqno that has been read. From a position on,
`Index.pieces` says which file to read for which messages, so that each comes once, however many
files have it. A member's file is left for another's only where it ends: whole files are read.

There is a gap where no file has a message, and some file has a later one of the same origin. An
archive that is slower to write may still close it; so a reader waits at a gap before it passes on.

A file that cannot be read is tried again whenever the index is refreshed. The file that its archive
wrote next tells what it holds: other archives stand in for it, and what none of them has is a gap
with that file's name. Of a file that nobody tells of yet it is not known what is missing. The same
goes for a file that is absent (`ringcast.trace.told`).
"""

from __future__ import annotations

import logging
import os
import time
from bisect import bisect_right
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ringcast.errors import UsageError
from ringcast.trace.disks import Listing, disk_at
from ringcast.trace.held import Holdings, Range, origin_text
from ringcast.trace.sealed import Unreadable
from ringcast.trace.segments import Segment
from ringcast.trace.told import Tellers, read_pruned
from ringcast.trace.whole import patiently

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from ringcast.trace.rows import MemberKey, OriginKey

Digest: TypeAlias = "Mapping[OriginKey, int]"
Gaps: TypeAlias = "Mapping[OriginKey, Sequence[Range]]"

GAPS_MAX = 1000
"""Passed over at once in what one origin sent; so a position stays small."""
LISTINGS_MAX = 20
"""How often the directory is listed while files vanish before they are opened."""

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
    times: Range | None
    """Between which times its archive took them, in nanoseconds; None: the file does not tell."""


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

    def only_passed(self) -> Plan:
        """With only those gaps behind which something is read."""
        return self._only(self.pieces)

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


class Trouble(NamedTuple):
    """A file that cannot be read, or is absent."""

    reason: str
    """With its name."""
    since: float
    """When it got its name, or was first met or missed, in seconds since the epoch."""


class Index:
    """What the visible files of a directory hold. Footers are read once, rows never."""

    def __init__(self, directory: Path | str) -> None:
        self.disk, self.directory = disk_at(directory)
        self.files: dict[str, File] = {}
        self.unreadable: dict[str, Trouble] = {}
        """By path."""
        self._listing: Listing | None = None  # the last one
        self._others: set[str] = set()  # segments of members that keep no messages
        self._holdings: dict[str, Holdings] = {}
        """What is in each file, by its footer."""
        self.pruned: dict[OriginKey, int] = {}
        """Up to where `prune` has removed what each origin sent."""
        self._tellers = Tellers()
        self.absent: dict[str, Trouble] = {}
        """Files whose messages are missed, by name."""
        self._held: dict[OriginKey, dict[MemberKey, list[Holding]]] = {}
        self._lost: dict[OriginKey, list[tuple[Range, Trouble]]] = {}
        """What is known to be in files that cannot be read or are absent."""

    def refresh(self) -> None:
        """Take in what has become visible or readable, and drop what is no longer there. If a file
        vanishes before it is opened, list again: what it was merged into is not in that listing.

        UsageError: the directory is not there, does not tell what is in it, or does not keep still.
        """
        try:
            patiently(lambda: self.disk.changed_at(self.directory))
        except OSError as error:
            raise UsageError(
                f"{self.directory}: no such directory ({error.strerror}): where does the archive "
                "write?"
            ) from error
        for _ in range(LISTINGS_MAX):
            there = self._listed()
            self._drop(self.files.keys() - there)
            for path in self.unreadable.keys() - there:
                del self.unreadable[path]
                self._holdings.pop(path, None)
            new = sorted(there - self.files.keys() - self._others)
            vanished = [path for path in new if not self._add(path)]
            if not vanished:
                break
        else:
            raise UsageError(f"{vanished[0]}: it is listed, and gone whenever it is opened")
        self._tell_lost()

    def follow(self) -> None:
        """Refresh, unless nothing has changed: what a query asks for again and again."""
        listing = self._listing
        if listing is None or self.unreadable or not self.disk.is_as_listed(listing):
            self.refresh()

    def _listed(self) -> frozenset[str]:
        """The paths of all files. Where one has vanished, or none is known, as they are found
        twice: else the file that others were just merged into may be missed, and those too."""
        before, found = self._listing, self.disk.listing(self.directory)
        if before is None or not before.paths <= found.paths:
            while before is None or before.paths != found.paths:
                before, found = found, self.disk.listing(self.directory)
        self._listing = found
        return found.paths

    def leave_out(self, path: str, reason: str) -> None:
        """This file cannot be read after all: others stand in for it."""
        if path in self.files:
            holdings = self._holdings[path]
            self._drop({path})
            self._holdings[path] = holdings
        self.unreadable[path] = Trouble(reason, time.time())
        self._tell_lost()

    def untold(self, before: float) -> list[str]:
        """What is wrong with files that cannot be read, are there since before this time, and may
        have messages that nobody tells of."""
        return [
            trouble.reason
            for path, trouble in sorted(self.unreadable.items())
            if self._known(path) is None and trouble.since < before
        ]

    def lost_in(self, origin: OriginKey, gap: Range) -> list[str]:
        """What is wrong with the files that have messages of this gap and cannot be read."""
        return [trouble.reason for trouble in self._troubles(origin, gap)]

    def is_before_all(self, origin: OriginKey, gap: Range) -> bool:
        """Whether these messages were sent before there was an archive, or pruned, as far as is
        known here."""
        is_first = gap.first == 1 and gap.last <= self.pruned.get(origin, gap.last)
        return is_first and not self._troubles(origin, gap)

    def _troubles(self, origin: OriginKey, gap: Range) -> list[Trouble]:
        return [
            trouble
            for held, trouble in self._lost.get(origin, ())
            if held.first <= gap.last and held.last >= gap.first
        ]

    def holdings(self, origin: OriginKey) -> Iterator[tuple[MemberKey, list[Holding]]]:
        """What each writer holds of it, in order."""
        yield from sorted(self._held.get(origin, {}).items())

    def last(self, origin: OriginKey) -> int:
        """The last message of it that is held, or known to be lost."""
        held = (ranges[-1].last for ranges in self._held.get(origin, {}).values())
        return max([*held, *(lost.last for lost, _ in self._lost.get(origin, ()))], default=0)

    def lost_from(self, origin: OriginKey) -> int | None:
        """The first message of it that is known to be lost."""
        return min((lost.first for lost, _ in self._lost.get(origin, ())), default=None)

    @property
    def origins(self) -> list[OriginKey]:
        return sorted(self._held.keys() | self._lost.keys())

    @property
    def mentioned(self) -> set[OriginKey]:
        """These, and all that files tell of."""
        return self._tellers.origins | self._held.keys() | self._lost.keys()

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

    def stand_ins(self, wanted: Iterable[tuple[OriginKey, int, int]]) -> Iterator[Piece]:
        """Where these ranges of messages are to be read; UsageError if nobody has one of them."""
        for origin, first, last in wanted:
            yield from self._whole(origin, first - 1, last)

    def _whole(self, origin: OriginKey, at: int, through: int) -> Iterator[Piece]:
        for item in self._walk(origin, at, through):
            if not isinstance(item, Piece):
                break
            yield item
            at = item.last
        if at < through:
            lost = self.lost_in(origin, Range(at + 1, through))
            lost = lost or [trouble.reason for trouble in self.unreadable.values()]
            raise UsageError(
                f"messages {at + 1}..{through} of {origin_text(origin)} are not to be read in "
                f"{self.directory}, and this query has not read them: "
                + ("; ".join(lost) or "were files removed by hand?")
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
            if behind:
                following = min(behind, key=lambda held: (held.first, held.file.visible_at))
                gap, since = Range(at + 1, following.first - 1), following.file.visible_at
            else:
                last = max((held.last for held, _ in self._lost.get(origin, ())), default=0)
                if last <= at:
                    return
                gap, since = Range(at + 1, last), 0.0
            yield gap, max([since, *(lost.since for lost in self._troubles(origin, gap))])
            at = gap.last

    def _add(self, path: str) -> bool:
        """Whether the file is still there."""
        known = self.unreadable.pop(path, None)
        try:
            # Who was waited for in vain is not waited for every time.
            with Segment(path, self.disk, is_patient=known is None) as segment:
                changed_at = patiently(lambda: self.disk.changed_at(path))
                info, holdings, before = segment.info, segment.holdings, segment.before
                size, times = segment.size, segment.span("wall_ns")
        except (Unreadable, OSError) as error:
            return self._meet(path, error, known)
        if not info.payloads:
            self._others.add(path)
            return True
        messages = sum(held.length for _, held in holdings)
        visible_at = changed_at if info.visible_at is None else info.visible_at
        about = path, (info.node, info.inc), size, visible_at, messages, times
        self.files[path] = File(*about)
        self._holdings[path] = holdings
        self._tellers.add(path, info, before)
        self._hold(self.files[path])
        return True

    def _meet(self, path: str, error: Exception, known: Trouble | None) -> bool:
        """Note a file that cannot be read; False: it was removed since it was listed."""
        since = time.time()
        try:
            since = patiently(lambda: self.disk.changed_at(path, is_link_itself=True))
        except FileNotFoundError:
            return False
        except OSError:
            pass
        reason = str(error)
        if known is None or known.reason != reason:
            log.warning("not to be read in the archive: %s", reason)
        self.unreadable[path] = Trouble(reason, since if known is None else known.since)
        return True

    def _hold(self, file: File) -> None:
        for origin, held in self._holdings[file.path]:
            mine = self._held.setdefault(origin, {}).setdefault(file.writer, [])
            mine.append(Holding(*held, file))
            if len(mine) > 1 and mine[-2].last >= mine[-1].first:
                mine[:] = _in_order(mine)

    def _drop(self, paths: set[str]) -> None:
        if not paths:
            return
        for path in paths:
            del self.files[path], self._holdings[path]
            self._tellers.drop(path)
        # What lay within one of these counts again.
        self._held.clear()
        for file in self.files.values():
            self._hold(file)

    def _tell_lost(self) -> None:
        there = () if self._listing is None else self._listing.paths
        absent = self._tellers.absent(there, self.unreadable)
        self.pruned = read_pruned(self.disk, self.directory, absent)
        self._lost = {}
        for path, trouble in sorted(self.unreadable.items()):
            for origin, held in self._known(path) or ():
                self._lost.setdefault(origin, []).append((held, trouble))
        known, self.absent = self.absent, {}
        for name, holdings, teller, _ in absent:
            why = f"{name}: it is not there, and {os.path.basename(teller)} comes after it"
            trouble = known.get(name, Trouble(why, time.time()))
            for origin, held in holdings:
                if held.last > self.pruned.get(origin, 0):
                    self.absent[name] = trouble
                    self._lost.setdefault(origin, []).append((held, trouble))

    def _known(self, path: str) -> Holdings | None:
        """What is in a file that cannot be read, if anybody tells."""
        return self._holdings.get(path) or self._tellers.holdings_of(path)


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
