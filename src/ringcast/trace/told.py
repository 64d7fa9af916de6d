"""What files of an archive tell of each other, and what `prune` notes: so that a file which is not
there, or cannot be read, is missed for what was in it.

Each file names the one that its archive wrote before, and tells what is in it. That one is absent
if it is not there, and no file that is there was merged from it. What it had is lost, unless
`prune` has removed it: that notes of each origin up to where, before it removes a file.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, NamedTuple

from ringcast.errors import UsageError
from ringcast.trace.disks import Disk, read_whole
from ringcast.trace.footer import Before, NamedRows, SegmentInfo
from ringcast.trace.held import Holdings, Position
from ringcast.trace.whole import patiently

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ringcast.trace.rows import OriginKey

PRUNED = "queries/pruned"
"""Up to where the messages of each origin were removed, below the archive's directory."""


class Told(NamedTuple):
    """What a file tells of the one before it."""

    name: str
    holdings: Holdings
    teller: str
    """The path of the file that tells."""
    until: int
    """The first row of that one."""


class Tellers:
    """What the files that can be read tell."""

    def __init__(self) -> None:
        self._before: dict[str, Told] = {}
        """By the path of who tells."""
        self._told: dict[str, Told] = {}
        """By the name of what it is told of."""
        self._merged: dict[str, NamedRows] = {}
        """The rows of each file that others were merged into, by path."""

    @property
    def origins(self) -> set[OriginKey]:
        """All that is told of."""
        return {origin for told in self._before.values() for origin, _ in told.holdings}

    def add(self, path: str, info: SegmentInfo, before: Before | None) -> None:
        if before is not None:
            self._before[path] = Told(*before, path, info.first_idx)
        if info.visible_at is not None:
            self._merged[path] = NamedRows(info.file_stem, info.first_idx, info.last_idx)

    def drop(self, path: str) -> None:
        self._before.pop(path, None)
        self._merged.pop(path, None)

    def holdings_of(self, path: str) -> Holdings | None:
        """What is in this file; None: nobody tells. Of a merged one it is enough what is told of
        a file with the same rows."""
        name = os.path.basename(path)
        told, rows = self._told.get(name), NamedRows.of(name)
        if told is None and rows is not None and rows.last is not None:
            told = self._told.get(f"{rows.stem}-{rows.first:012d}.parquet")
            if told is not None and told.until <= rows.last:
                return None  # more was merged into it
        return None if told is None else told.holdings

    def absent(self, there: Iterable[str], unreadable: Iterable[str]) -> list[Told]:
        """The files that are told of and not `there`, nor merged into one that is; `unreadable`
        ones tell by their names what was merged."""
        self._told = {told.name: told for told in self._before.values()}
        named = (NamedRows.of(os.path.basename(path)) for path in unreadable)
        merged = [*self._merged.values(), *(rows for rows in named if rows and rows.last)]
        absent = []
        for name in sorted(self._told.keys() - set(map(os.path.basename, there))):
            rows = NamedRows.of(name)
            if rows is None or not any(rows.is_within(other) for other in merged):
                absent.append(self._told[name])
        return absent


def read_pruned(disk: Disk, directory: str, absent: Iterable[Told]) -> dict[OriginKey, int]:
    """Up to where `prune` has removed what each origin sent; who was pruned last comes last."""
    path = f"{directory}/{PRUNED}"
    try:
        values = json.loads(patiently(lambda: read_whole(disk, path)))
        if not isinstance(values, list):
            return Position.from_dict(dict(values)).digest
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, UsageError) as error:
        raise UsageError(f"{path} is damaged: {error}") from error
    # Version 0.2 did not note up to where: all that is absent was pruned.
    return dict(sorted((origin, held.last) for told in absent for origin, held in told.holdings))
