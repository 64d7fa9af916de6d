"""Digests that are kept on disk: a segment that was read once need not be read again.

Each batch leaves one file, which is there whole or not at all, and which the same batch replaces if
it is run again. From time to time all are put together into one. What is kept of a segment counts
while the segment is as it was read: one that is gone, or another in its place, is as if never read.
Segments are known by where they are below their directory, which may be renamed or moved.

A summary takes some hundred bytes, and a hundred more for each sender in the segment and each break
in the order, up to the bounds in `ringcast.spark.summarize`: it does not grow with the rows.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import xxhash

from ringcast.errors import UsageError
from ringcast.private import make_private
from ringcast.rules import history
from ringcast.spark import order, summarize, summary
from ringcast.spark.reading import NOT_READ
from ringcast.trace import columns, footer, sealed, segments
from ringcast.trace.whole import held_alone, write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

    ReadFiles = Callable[[SparkSession, Sequence[Path]], dict[str, str]]
    """Says something of each file, by its path."""

FILES_MAX = 32
"""Batches that have a file each. With one more, all before it become one file."""

_ABOUT = "about.json"
_WHOLE = ".whole.jsonl"


class Stamp(NamedTuple):
    """By which a file is known to be the one that was read."""

    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: str) -> Stamp | None:
        """None: there is no such file."""
        with suppress(OSError):
            about = Path(path).stat()
            return cls(about.st_size, about.st_mtime_ns)
        return None


NO_FILE = Stamp(-1, -1)


class Kept(NamedTuple):
    """One segment as it was read."""

    path: str
    stamp: Stamp
    said: str
    """What a task said of it: its footer and summary, or what is wrong with it."""

    @property
    def is_current(self) -> bool:
        return Stamp.of(self.path) == self.stamp

    @property
    def is_read(self) -> bool:
        return NOT_READ not in self.said


class KeptDigests:
    """The summaries of the segments of one directory."""

    def __init__(self, root: Path, directory: Path, read_files: ReadFiles) -> None:
        self.checkpoint = root / "checkpoint"
        """For Spark: which files it has handed out. It is of no use without the summaries."""
        self._files = root / "summaries"
        self._directory = directory
        self._read_files = read_files
        self._kept: dict[str, Kept] = {}

    @classmethod
    @contextmanager
    def opened(cls, root: Path, directory: Path, read_files: ReadFiles) -> Iterator[KeptDigests]:
        """Those in `root`, held alone. Begun anew if other code made them."""
        with held_alone(root):
            kept = cls(root, directory, read_files)
            kept._claim(root / _ABOUT)
            kept._load()
            yield kept

    def __contains__(self, path: str) -> bool:
        return path in self._kept

    def stale(self) -> list[str]:
        """Segments that have been replaced since they were read, or could not be read then."""
        now = ((kept, Stamp.of(kept.path)) for kept in self._kept.values())
        return sorted(
            kept.path
            for kept, stamp in now
            if stamp is not None and (stamp != kept.stamp or not kept.is_read)
        )

    def read(
        self, spark: SparkSession, batch: int, paths: Iterable[str], *, anew: bool = False
    ) -> list[Kept]:
        """Keep what these segments say, in the place of what the batch said before; return those
        that had to be read: all of them, if they are to be read `anew`.

        A batch that begins tells that all before it are done with: these may become one file.
        """
        self._put_together(batch - 1)
        stamps = {path: Stamp.of(path) or NO_FILE for path in paths}
        known = {path: self._kept.get(path) for path in stamps}
        found = {
            path: kept
            for path, kept in known.items()
            if kept and kept.is_read and kept.stamp == stamps[path] and not anew
        }
        there = [Path(path) for path in stamps if path not in found and stamps[path] != NO_FILE]
        said = self._read_files(spark, there)
        read = [
            Kept(path, stamp, said.get(path, ""))
            for path, stamp in stamps.items()
            if path not in found
        ]
        found |= {kept.path: kept for kept in read}
        write_whole(self._file(batch), self._to_text(found.values()))
        self._kept |= found
        return read

    def current(self) -> list[Kept]:
        """What is known of the segments that are there."""
        return [kept for kept in self._kept.values() if kept.is_current]

    @property
    def next_batch(self) -> int:
        """A number for who takes batches by itself, not from a stream."""
        return max((int(path.name[:12]) + 1 for path in self._files.glob("*.jsonl")), default=0)

    # On disk

    def _claim(self, about: Path) -> None:
        """UsageError if these are of another directory. It is known by where it is from here: so
        both may be moved. If there is none any more, this is what has become of it."""
        directory = os.path.relpath(self._directory, about.parent)
        mine = {"directory": directory, "code": _code_hash(self._read_files)}
        found = json.loads(about.read_text()) if about.exists() else mine | {"code": ""}
        other = Path(os.path.normpath(about.parent / found["directory"]))
        if found["directory"] != directory and other.exists():
            raise UsageError(f"{about.parent}: is for segments in {other}: choose another")
        if found == mine:
            return
        if found["code"] == mine["code"]:
            write_whole(about, json.dumps(mine))
            return
        for old in (self.checkpoint, self._files):
            if old.exists():
                shutil.rmtree(old)
        make_private(self._files)
        # Last: whoever dies before this begins anew once more.
        write_whole(about, json.dumps(mine))

    def _load(self) -> None:
        found = sorted(self._files.glob("*.jsonl"), reverse=True)
        through = next((at for at, path in enumerate(found) if path.name.endswith(_WHOLE)), -1)
        if through >= 0:
            for path in found[through + 1 :]:
                path.unlink()
            del found[through + 1 :]
        for path in reversed(found):
            self._kept |= {kept.path: kept for kept in self._from_text(path.read_text())}

    def _put_together(self, through: int) -> None:
        files = sorted(self._files.glob("*.jsonl"))
        if len(files) <= FILES_MAX:
            return
        # Of one that is gone only that is known: should it come back, nobody else would tell.
        self._kept = {
            path: kept if kept.is_current else Kept(path, NO_FILE, "")
            for path, kept in self._kept.items()
        }
        whole = self._file(through, _WHOLE)
        write_whole(whole, self._to_text(self._kept.values()))
        for path in files:
            if path < whole:
                path.unlink()

    def _file(self, batch: int, suffix: str = ".jsonl") -> Path:
        """Names sort in the order of batches, and after the batch that a whole reaches to."""
        return self._files / f"{batch:012d}{suffix}"

    def _to_text(self, kept: Iterable[Kept]) -> str:
        below = (each._replace(path=os.path.relpath(each.path, self._directory)) for each in kept)
        return "".join(json.dumps(each) + "\n" for each in below)

    def _from_text(self, text: str) -> Iterator[Kept]:
        for line in text.splitlines():
            path, stamp, said = json.loads(line)
            yield Kept(str(self._directory / path), Stamp(*stamp), said)


def _code_hash(read_files: ReadFiles) -> str:
    """Of what summaries are made by: if it changes they are made anew."""
    hasher = xxhash.xxh3_64()
    reader = sys.modules[read_files.__module__]
    for module in (history, order, summary, summarize, columns, footer, sealed, segments, reader):
        assert module.__file__ is not None
        hasher.update(Path(module.__file__).read_bytes())
    return hasher.hexdigest()
