"""Many small files of an archive become few larger ones, while others write and read there.

Files of one archive are merged where each continues the one before, row by row. The merged file is
written and synced under a temporary name. Then, with `prune` kept out and if all that went into it
is still there, it gets its name, is read once more, and what went into it is removed.

A file tells what the one before it holds. So the newest one of an archive that may go on stays by
itself, because the next one tells of it; and a file that tells of one that was merged is written
anew, to tell of the merged one.

Who is killed in between leaves messages in two files. Readers take each message once, so nothing is
lost or doubled; the merged file says in its name from which row to which it goes, and the next
compaction removes what lies within it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from ringcast.trace.columns import ARCHIVE_SCHEMA
from ringcast.trace.footer import Before, SegmentInfo
from ringcast.trace.retention import keeping_prune_out
from ringcast.trace.sealed import Unreadable
from ringcast.trace.segments import Segment, SegmentWriter, segment_paths
from ringcast.trace.whole import held_alone

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ringcast.trace.held import Holdings

MERGED_BYTES = 64 << 20
"""A merged file is no larger, and one of half of it is left as it is."""
_LOCK = ".compact"


class Source(NamedTuple):
    """A file that may be merged with others."""

    path: Path
    info: SegmentInfo
    holdings: Holdings
    before: Before | None
    size: int
    visible_at: float
    mode: int


@dataclass(slots=True)
class Compacted:
    """What was done."""

    merged: int = 0
    """Files that are no more."""
    made: list[Path] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """What is wrong with files that were left as they are."""


def compact(directory: Path, bytes_max: int = MERGED_BYTES) -> Compacted:
    """Merge what can be merged below the directory; UsageError if somebody else does."""
    done = Compacted()
    with held_alone(directory / _LOCK):
        for sources in _archives(directory, done):
            kept = _without_merged(directory, sources, done)
            previous: Source | None = None
            for batch in _batches(kept, bytes_max):
                try:
                    is_due = len(batch) > 1 or _is_outdated(batch[0], previous)
                    merged = _merge(directory, batch, previous, done) if is_due else None
                except Unreadable as error:
                    done.left_out.append(str(error))
                    merged = None
                previous = merged or batch[-1]
    return done


def _archives(directory: Path, done: Compacted) -> Iterator[list[Source]]:
    """The files of each archive in each folder, in order."""
    found: defaultdict[tuple[Path, object], list[Source]] = defaultdict(list)
    for path in segment_paths(directory):
        try:
            with Segment(path) as segment:
                about = path.stat()
                info = segment.info
                source = Source(
                    *(path, info, segment.holdings, segment.before, about.st_size),
                    about.st_ctime if info.visible_at is None else info.visible_at,
                    about.st_mode,
                )
        except Unreadable as error:
            done.left_out.append(str(error))
            continue
        if info.payloads:
            found[path.parent, info.recording].append(source)
    for sources in found.values():
        yield sorted(sources, key=lambda one: (one.info.first_idx, -one.info.last_idx))


def _without_merged(directory: Path, sources: list[Source], done: Compacted) -> list[Source]:
    """Remove what lies within a merged file, which somebody made and did not live to tidy up."""
    kept: list[Source] = []
    within: list[Source] = []
    for source in sources:
        if kept and kept[-1].info.is_merged_from(source.info):
            within.append(source)
        else:
            kept.append(source)
    if within:
        with keeping_prune_out(directory):
            for merged in kept:
                covered = [one for one in within if merged.info.is_merged_from(one.info)]
                if covered:
                    _replace(merged.path, covered, done)
    return kept


def _is_outdated(source: Source, previous: Source | None) -> bool:
    """Whether it tells of another file than the one that comes before it now."""
    if previous is None or source.before is None or source.info.visible_at is not None:
        return False
    is_next = previous.info.last_idx + 1 == source.info.first_idx
    return is_next and source.before.name != previous.path.name


def _batches(sources: list[Source], bytes_max: int) -> Iterator[list[Source]]:
    """Files that continue each other and are not too large together; of one, what is left."""
    batch: list[Source] = []
    for source in sources:
        is_next = bool(batch) and batch[-1].info.last_idx + 1 == source.info.first_idx
        sizes = [one.size for one in (*batch, source)]
        fits = sum(sizes) <= bytes_max and max(sizes) < bytes_max // 2
        fits = fits and (source is not sources[-1] or source.info.is_last)
        if batch and not (is_next and fits):
            yield batch
            batch = []
        batch.append(source)
    if batch:
        yield batch


def _merge(
    directory: Path, batch: list[Source], previous: Source | None, done: Compacted
) -> Source | None:
    """One file in the place of these; None if they were pruned meanwhile. It tells of the one
    before it as that is called now. Who may read all of these may read it."""
    first, last = batch[0].info, batch[-1].info
    before = batch[0].before
    if previous is not None and previous.info.last_idx + 1 == first.first_idx:
        before = Before(previous.path.name, previous.holdings)
    name = f"{first.file_stem}-{first.first_idx:012d}-{last.last_idx:012d}"
    mode = 0o664
    for source in batch:
        mode &= source.mode
    writer = SegmentWriter(batch[0].path.parent, first.recording, before, name=name, mode=mode)
    try:
        for source in batch:
            with Segment(source.path) as segment:
                for rows in segment.batches(ARCHIVE_SCHEMA.names):
                    writer.add_batch(rows)
            for origin, held in source.holdings:
                writer.holdings.add_range(origin, held)
        with keeping_prune_out(directory):
            if not all(source.path.exists() for source in batch):
                writer.abandon()  # what was pruned must not come back
                return None
            visible_at = max(source.visible_at for source in batch)
            path = writer.finish(lost=last.lost, is_last=last.is_last, visible_at=visible_at)
            try:
                _replace(path, batch, done)
            except Unreadable:
                path.unlink()
                raise
    except BaseException:
        writer.abandon()
        raise
    done.made.append(path)
    info = replace(first, last_idx=last.last_idx)
    return Source(path, info, writer.holdings, before, path.stat().st_size, visible_at, mode)


def _replace(merged: Path, sources: list[Source], done: Compacted) -> None:
    """Remove these, once it is seen that all of them is in the merged file. With nobody else."""
    with Segment(merged) as segment:
        segment.check_all()
        holdings = segment.holdings
    for source in sources:
        for origin, held in source.holdings:
            ranges = holdings.ranges.get(origin, ())
            if not any(mine.first <= held.first and held.last <= mine.last for mine in ranges):
                raise Unreadable(merged, f"lacks messages of {source.path.name}")
    for source in sources:
        source.path.unlink(missing_ok=True)
        done.merged += 1
