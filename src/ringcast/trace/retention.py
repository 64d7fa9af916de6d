"""Which files of an archive may go: old ones that no query still has to read.

Each streaming query has a file in the archive's directory, under queries/, with the position that
it has committed. A file of messages stays until every query is behind it. A query that is gone for
good is forgotten by command. Up to where each origin's messages were removed stands there too, so
that what was pruned is told from what is lost, or out of sight: of those that queries or files
speak of, and of some that were the last to go.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ringcast.errors import UsageError
from ringcast.private import make_private, open_private
from ringcast.trace.archive import File, Holding, Index
from ringcast.trace.held import Position, origin_text
from ringcast.trace.segments import TEMPORARY_SUFFIX
from ringcast.trace.told import PRUNED
from ringcast.trace.whole import patiently, write_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ringcast.trace.rows import OriginKey

QUERIES = "queries"
PRUNED_MAX = 10_000
"""Origins that are noted as pruned though no query and no file speaks of them."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


class Query:
    """The committed position of one query, kept in the archive that it reads."""

    def __init__(self, directory: Path | str, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"a query's name has up to 64 letters, digits, dots and dashes: not {name[:80]!r}"
            )
        self.name = name
        self.path = Path(directory, QUERIES, f"{name}.json")
        self._written = ""

    def begin(self, start: Mapping[OriginKey, int] | None = None) -> None:
        """It starts here, or from the beginning: from now on nothing is removed behind it that it
        has not read. Nor behind what was noted before, which its first step may have begun at."""
        with _locked(self.path.parent):
            wanted = dict(start or {})
            is_known = bool(wanted) and patiently(self.path.exists)
            noted = self.committed.digest if is_known else wanted
            least = {
                origin: min(seqno, noted[origin])
                for origin, seqno in wanted.items()
                if origin in noted
            }
            self._write(Position(least))

    def ensure(self) -> None:
        """It goes on: as before, or from the beginning if it was forgotten."""
        if not patiently(self.path.exists):
            self.begin()

    def commit(self, position: Position) -> None:
        """It will never again ask for what is up to here."""
        if self._written and self._text() != self._written:
            raise UsageError(
                f"another query commits as {self.name!r}, or it was forgotten: give each query a "
                'name of its own with .option("query", …)'
            )
        self._write(position)

    @property
    def committed(self) -> Position:
        try:
            return Position.from_dict(json.loads(self._text())["committed"])
        except (ValueError, LookupError, TypeError) as error:
            raise UsageError(f"{self.path} is damaged: {error}") from error

    @property
    def committed_at(self) -> float:
        return self.path.stat().st_mtime

    def forget(self) -> None:
        """It will not run again."""
        try:
            self.path.unlink()
        except FileNotFoundError:
            known = ", ".join(query.name for query in queries(self.path.parent.parent)) or "none"
            raise UsageError(f"no query {self.name!r} here; there are: {known}") from None

    def _text(self) -> str:
        try:
            return patiently(self.path.read_text)
        except FileNotFoundError:
            return ""

    def _write(self, position: Position) -> None:
        """Whole or not at all, and there after a crash."""
        text = json.dumps({"committed": position.to_dict()})
        suffix = f".{os.getpid()}{TEMPORARY_SUFFIX}"
        patiently(lambda: write_whole(self.path, text, suffix))
        self._written = text


def queries(directory: Path | str) -> list[Query]:
    """All that have registered, by name."""
    return [Query(directory, path.stem) for path in sorted(Path(directory, QUERIES).glob("*.json"))]


@dataclass(slots=True)
class Pruned:
    """What was removed, and how many old files are still needed, by query."""

    removed: list[File] = field(default_factory=list)
    kept_for: dict[str, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.removed)


def prune(directory: Path | str, before: float, *, is_trial: bool = False) -> Pruned:
    """Remove the files that became visible before this time and that every query is behind."""
    index = Index(directory)
    index.refresh()
    pruned = Pruned()
    with keeping_prune_out(directory):  # and no query begins meanwhile
        old = {path: file for path, file in index.files.items() if file.visible_at < before}
        needed: set[str] = set()
        for query in queries(directory):
            unread = _unread(index, query.committed) & old.keys()
            if unread:
                pruned.kept_for[query.name] = len(unread)
                needed |= unread
        pruned.removed = [old[path] for path in sorted(old.keys() - needed)]
        if not is_trial:
            _note_pruned(index, pruned.removed)  # first: whoever misses a file finds it noted
            for file in pruned.removed:
                with suppress(FileNotFoundError):  # somebody else was faster
                    os.unlink(file.path)
            _remove_leftovers(Path(directory), before)
    return pruned


def _note_pruned(index: Index, files: Iterable[File]) -> None:
    """Up to where the messages of each origin go with these files."""
    paths = {file.path for file in files}
    last = dict(index.pruned)
    for origin, holding in _holdings(index):
        if holding.file.path in paths:
            last[origin] = max(holding.last, last.pop(origin, 0))
    known = index.mentioned.union(*(query.committed.digest for query in queries(index.directory)))
    for origin in [origin for origin in last if origin not in known][:-PRUNED_MAX]:
        del last[origin]
    text = json.dumps({origin_text(origin): seqno for origin, seqno in last.items()})
    write_whole(Path(index.directory, PRUNED), text)


def _unread(index: Index, committed: Position) -> set[str]:
    """The files with something that is not committed."""
    return {
        holding.file.path
        for origin, holding in _holdings(index)
        if holding.last > committed.digest.get(origin, 0)
    }


def _holdings(index: Index) -> Iterator[tuple[OriginKey, Holding]]:
    for origin in index.origins:
        for _, held in index.holdings(origin):
            yield from ((origin, holding) for holding in held)


def _remove_leftovers(directory: Path, before: float) -> None:
    """What writers that were killed had begun."""
    for path in directory.rglob(f"*{TEMPORARY_SUFFIX}"):
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < before:
                path.unlink()


def keeping_prune_out(directory: Path | str) -> AbstractContextManager[None]:
    """While it is entered, nothing else is removed, and no query begins."""
    return _locked(Path(directory, QUERIES))


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    patiently(lambda: make_private(directory))
    with patiently(lambda: open_private(directory / ".lock", old="ab")) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
