"""Staging: batches of messages on disk, on their way from a stream to a group.

    DIR/publisher.json     whose batches these are, and whether a stream or tables make them
    DIR/staged/*.parquet   messages, a file for each partition of a batch, as an archive keeps them;
                           of each how it is sent, and to whom, if to one member
    DIR/batch-N.json       the files of batch N, in order: with it the batch is there, whole
    DIR/published.json     the last batch that the group has, and the members that have sent any
    DIR/lock               held by the publisher

A task stages a file. The driver commits the batch: its manifest gets its name once, so a batch
that is repeated, perhaps partitioned otherwise, changes nothing and its files go. The publisher
reads the manifests in order. When the group has a batch, it notes that; a while later it removes
the manifest, then the files. So whatever dies when, what is known of a batch only grows. Files that
no manifest names are of tasks and drivers that failed: they count for nothing, and go after a day.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from uuid import uuid4

from ringcast.errors import UsageError
from ringcast.model import Headed, Stream, alike
from ringcast.private import make_private
from ringcast.trace.columns import PAYLOADS
from ringcast.trace.footer import Recording
from ringcast.trace.rows import HEADED, SEND, Row
from ringcast.trace.segments import Segment, SegmentWriter
from ringcast.trace.whole import STAGED_SUFFIX, sync, write_whole

J = TypeVar("J", dict[str, Any], list[str])

ROW_MESSAGES: Final = 1024
"""Messages of one row of a file."""

ORPHAN_S: Final = 86_400.0
"""So old a file without a manifest is nobody's."""

SWEEP_S: Final = 3600.0
"""How often such files are looked for."""


class Batch(NamedTuple):
    """A manifest."""

    number: int
    files: tuple[str, ...]
    """A file for each partition, in order; those of partitions without messages are left out."""


class Stretch(NamedTuple):
    """Consecutive messages that are sent alike."""

    messages: Sequence[bytes]
    stream: Stream = Stream.UNIFORM
    to: str = ""
    """The name of the one member that gets them; "": all do."""


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
        self._sweep_at = 0.0

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

    def stage(self, publisher: str, stretches: Iterable[Stretch]) -> tuple[str, int]:
        """A file with these messages, those with headers among them; its name, and how many there
        are. It has no name if there are none."""
        writer = SegmentWriter(
            *(self.files, Recording(run_id=publisher, node=publisher, inc=1, payloads=True)),
            name=uuid4().hex,
        )
        count = 0
        try:
            for messages, stream, to in _short(stretches):
                for first, run in alike(count, messages):
                    kind = HEADED if type(run[0]) is Headed else ""
                    row = Row(SEND, publisher, 1, first, seqno=first, kind=kind, peer=to)
                    row = row._replace(seqno2=first + len(run) - 1, stream=stream.value)
                    writer.add([row], 0, [run])
                count += len(messages)
            if not count:
                return "", 0
            return writer.finish().name, count
        except BaseException:
            writer.abandon()
            raise

    def commit(self, number: int | None, files: Sequence[str]) -> bool:
        """Make these files the batch of this number; None: the next one. False: it is there, and
        the files are not wanted. UsageError: it was there long ago."""
        last = self.last
        if number is not None and number < last:
            raise UsageError(
                f"{self.path}: batch {number} comes after batch {last}. A query that begins anew, "
                "with another checkpoint, needs another publisherId and directory"
            )
        number = last + 1 if number is None else number
        manifest = self._manifest(number)
        staged = self.path / f"{manifest.name}.{uuid4().hex}{STAGED_SUFFIX}"
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
        """Of all files of batches that are not published."""
        through, found = self.progress().through, 0
        for number, path in self._manifests():
            with suppress(FileNotFoundError):  # the publisher has removed it meanwhile
                for name in _read(path, list) if number > through else ():
                    found += (self.files / name).stat().st_size
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

    @property
    def has_batches(self) -> bool:
        """That wait, or are kept."""
        return bool(self._manifests())

    @property
    def last(self) -> int:
        """The last batch that there ever was."""
        return max([number for number, _ in self._manifests()] + [self.progress().through])

    @property
    def gone(self) -> int:
        """The last that is kept no more."""
        return min([number - 1 for number, _ in self._manifests()] + [self.progress().through])

    def next_batch(self, first: int) -> Batch | None:
        """The next that is here, from this number on."""
        for number, path in self._manifests():
            if number >= first:
                return Batch(number, tuple(_read(path, list)))
        return None

    def progress(self) -> Progress:
        try:
            return Progress(**_read(self.path / "published.json", dict))
        except FileNotFoundError:
            return Progress()

    def note(self, progress: Progress) -> None:
        about = {"through": progress.through, "incarnations": progress.incarnations}
        write_whole(self.path / "published.json", json.dumps(about))

    def finish(self, batch: Batch) -> bool:
        """The group has all of it. Whether that is news."""
        progress = self.progress()
        if batch.number <= progress.through:
            return False
        progress.through = batch.number
        self.note(progress)
        os.utime(self._manifest(batch.number))
        return True

    def forget(self, keep_s: float) -> None:
        """What has been published for so long goes; now and then, what no batch has. A publisher
        that dies between manifest and files leaves such."""
        if time.monotonic() >= self._sweep_at:
            self._sweep_at = time.monotonic() + SWEEP_S
            self._sweep()
        through, before = self.progress().through, time.time() - keep_s
        for number, path in self._manifests():
            if number > through or path.stat().st_mtime > before:
                break
            files = _read(path, list)
            path.unlink()
            self.drop(files)

    def messages(self, name: str) -> Iterator[tuple[int, list[bytes], Stream, str]]:
        """Those of a file in order, in stretches: the number of the first, the messages, how they
        are sent, and to whom."""
        columns = ["kind", "seqno", "peer", "stream", PAYLOADS]
        with Segment(self.files / name) as segment:
            for group in segment.groups:
                for row in segment.group(group, columns).to_pylist():
                    kind = Headed if row["kind"] == HEADED else bytes
                    found = list(map(kind, row[PAYLOADS]))
                    yield row["seqno"], found, Stream(row["stream"]), row["peer"]

    def _sweep(self) -> None:
        """Remove what tasks that failed have left, and drivers before a manifest had its name."""
        named = {name for _, path in self._manifests() for name in _read(path, list)}
        before = time.time() - ORPHAN_S
        for path in (*self.files.iterdir(), *self.path.glob(f"*{STAGED_SUFFIX}")):
            with suppress(FileNotFoundError):
                if path.name not in named and path.stat().st_mtime < before:
                    path.unlink()

    def _manifest(self, number: int) -> Path:
        return self.path / f"batch-{number:012d}.json"

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


def _short(stretches: Iterable[Stretch]) -> Iterator[Stretch]:
    for messages, stream, to in stretches:
        for at in range(0, len(messages), ROW_MESSAGES):
            yield Stretch(messages[at : at + ROW_MESSAGES], stream, to)
