"""Staging: batches of messages on disk, on their way from a stream to a group.

    DIR/publisher.json     whose batches these are, and whether a stream or tables make them
    DIR/staged/*.parquet   messages, a file for each partition of a batch, as an archive keeps them
    DIR/batch-N.json       the files of batch N, in order: with it the batch is there, whole
    DIR/published.json     the last batch that the group has, and the members that have sent any
    DIR/lock               held by the publisher

A task stages a file. The driver commits the batch: its manifest gets its name once, so a batch
that is repeated, perhaps partitioned otherwise, changes nothing and its files go. The publisher
reads the manifests in order. When the group has a batch, it notes that, then removes the manifest,
then the files; so whatever dies when, what is known of a batch only grows. Files that no manifest
names are of tasks that failed: they go after a day.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from uuid import uuid4

from ringcast.errors import UsageError
from ringcast.model import Headed, alike
from ringcast.private import make_private
from ringcast.trace.columns import PAYLOADS
from ringcast.trace.footer import Recording
from ringcast.trace.rows import HEADED, SEND, Row
from ringcast.trace.segments import Segment, SegmentWriter
from ringcast.trace.whole import sync, write_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

J = TypeVar("J", dict[str, Any], list[str])

ROW_MESSAGES: Final = 1024
"""Messages of one row of a file."""

ORPHAN_S: Final = 86_400.0
"""So old a file without a manifest is nobody's."""


class Batch(NamedTuple):
    """A manifest."""

    number: int
    files: tuple[str, ...]
    """A file for each partition, in order; those of partitions without messages are left out."""


@dataclass(slots=True)
class Progress:
    """What the publisher notes."""

    through: int = -1
    """The last batch that the group has."""
    incarnations: list[int] = field(default_factory=list)
    """Of the members that have published, and may still be in the group."""


class Staging:
    """One directory."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.files = self.path / "staged"

    # What writes

    def claim(self, publisher: str, kind: str) -> None:
        """These batches are made by this publisher and no other, by a stream or by tables."""
        make_private(self.files)
        about = self.path / "publisher.json"
        if not about.exists():
            write_whole(about, json.dumps({"publisher": publisher, "kind": kind}))
        found = _read(about, dict)
        if found != {"publisher": publisher, "kind": kind}:
            raise UsageError(
                f"{self.path} is for {found.get('kind')} of publisherId "
                f"{found.get('publisher')!r}, not for {kind} of {publisher!r}: each has a "
                "directory of its own"
            )

    def stage(self, publisher: str, messages: Iterable[bytes]) -> tuple[str, int]:
        """A file with these, those with headers among them; its name, and how many there are. It
        has no name if there are none."""
        writer = SegmentWriter(
            *(self.files, Recording(run_id=publisher, node=publisher, inc=1, payloads=True)),
            name=uuid4().hex,
        )
        count = 0
        try:
            for chunk in _chunks(messages):
                for first, run in alike(count, chunk):
                    kind = HEADED if type(run[0]) is Headed else ""
                    row = Row(SEND, publisher, 1, first, seqno=first, kind=kind)
                    writer.add([row._replace(seqno2=first + len(run) - 1)], 0, [run])
                count += len(chunk)
            if not count:
                return "", 0
            return writer.finish().name, count
        except BaseException:
            writer.abandon()
            raise

    def commit(self, number: int | None, files: Sequence[str]) -> bool:
        """Make these files the batch of this number; None: the next one. False: it is there, and
        the files are not wanted. UsageError: it was there long ago."""
        last = max([batch for batch, _ in self._manifests()], default=-1)
        last = max(last, self.progress().through)
        if number is not None and number < last:
            raise UsageError(
                f"{self.path}: batch {number} comes after batch {last}. A query that begins anew, "
                "with another checkpoint, needs another publisherId and directory"
            )
        number = last + 1 if number is None else number
        manifest = self.path / f"batch-{number:012d}.json"
        staged = self.path / f"{manifest.name}.{uuid4().hex}.staged"
        write_whole(staged, json.dumps([name for name in files if name]))
        try:
            if number == last:
                raise FileExistsError
            os.link(staged, manifest)
            sync(self.path)
        except FileExistsError:
            self.drop(files)
            return False
        finally:
            staged.unlink()
        return True

    def drop(self, files: Iterable[str]) -> None:
        """These are not wanted."""
        for name in filter(None, files):
            (self.files / name).unlink(missing_ok=True)

    @property
    def waiting_bytes(self) -> int:
        """Of all files that are staged."""
        found = 0
        for entry in os.scandir(self.files):
            with suppress(FileNotFoundError):
                found += entry.stat().st_size
        return found

    # What publishes

    def check(self) -> None:
        """UsageError: nothing can be published from here."""
        assert self.publisher
        self.progress()
        for _, path in self._manifests():
            _read(path, list)

    @property
    def publisher(self) -> str:
        """UsageError: nobody has staged anything here."""
        try:
            about = _read(self.path / "publisher.json", dict)
        except FileNotFoundError:
            raise UsageError(f"{self.path}: no stream or table was written here yet") from None
        if "publisher" not in about or not self.files.is_dir():
            raise UsageError(f"{self.path} is not what a stream or a table was written to")
        return str(about["publisher"])

    def next_batch(self) -> Batch | None:
        """The first that the group may not have."""
        through = self.progress().through
        for number, path in self._manifests():
            if number > through:
                return Batch(number, tuple(_read(path, list)))
            self._remove(path)
        return None

    def progress(self) -> Progress:
        try:
            return Progress(**_read(self.path / "published.json", dict))
        except FileNotFoundError:
            return Progress()

    def note(self, progress: Progress) -> None:
        about = {"through": progress.through, "incarnations": progress.incarnations}
        write_whole(self.path / "published.json", json.dumps(about))

    def finish(self, batch: Batch) -> None:
        """The group has all of it."""
        progress = self.progress()
        progress.through = batch.number
        self.note(progress)
        for number, path in self._manifests():
            if number <= batch.number:
                self._remove(path)

    def messages(self, name: str) -> Iterator[tuple[int, bytes]]:
        """Those of a file in order, each with its number."""
        with Segment(self.files / name) as segment:
            for group in segment.groups:
                for row in segment.group(group, ["kind", "seqno", PAYLOADS]).to_pylist():
                    kind = Headed if row["kind"] == HEADED else bytes
                    yield from enumerate(map(kind, row[PAYLOADS]), row["seqno"])

    def sweep(self) -> None:
        """Remove what tasks that failed have left."""
        named = {name for _, path in self._manifests() for name in _read(path, list)}
        before = time.time() - ORPHAN_S
        for entry in os.scandir(self.files):
            with suppress(FileNotFoundError):
                if entry.name not in named and entry.stat().st_mtime < before:
                    os.unlink(entry.path)

    def _remove(self, path: Path) -> None:
        """A manifest, and then its files: a publisher that dies in between leaves orphans."""
        files = _read(path, list)
        path.unlink()
        self.drop(files)

    def _manifests(self) -> list[tuple[int, Path]]:
        found = [path for path in self.path.glob("batch-*.json") if path.suffix == ".json"]
        return sorted((int(path.stem.removeprefix("batch-")), path) for path in found)


def _read(path: Path, kind: type[J]) -> J:
    """UsageError: nobody here has written that."""
    try:
        found = json.loads(path.read_text())
    except ValueError:
        found = None
    if not isinstance(found, kind):
        raise UsageError(
            f"{path} is damaged, or no stream or table has written it: name the directory that "
            "the query stages in"
        )
    return found


def _chunks(messages: Iterable[bytes]) -> Iterator[list[bytes]]:
    chunk: list[bytes] = []
    for message in messages:
        chunk.append(message)
        if len(chunk) == ROW_MESSAGES:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
