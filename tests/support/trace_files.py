"""Reads traces that are JSON Lines. Other versions are refused, and so is what is no trace; of a
file that ends in the middle of a row, what is whole is read."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringcast.errors import UsageError
from ringcast.trace.files import SCHEMA_VERSION, facts_from_values
from ringcast.trace.rows import LISTS, Row, Trace

_LISTS = tuple(map(Row._fields.index, LISTS))


@dataclass(frozen=True, slots=True)
class TornTrace:
    """The file ends in the middle of a row: its writer died. What is whole was read."""

    rows: int
    """Whole rows before the tear."""
    bytes_lost: int


@dataclass(slots=True)
class ReadTrace(Trace):
    torn: TornTrace | None = None


class OtherVersion(UsageError):
    """A file of a version that this reader does not know."""

    def __init__(self, path: Path | str, version: int) -> None:
        super().__init__(
            f"{Path(path).name}: a trace of version {version}; this ringcast reads version "
            f"{SCHEMA_VERSION}: use the ringcast that wrote it"
        )


def read_trace(path: Path | str) -> ReadTrace:
    """Read what is whole; `torn` tells if the last line is not. UsageError if it is no trace."""
    lines, tail = _lines(Path(path))
    if not lines:
        raise UsageError(f"{path}: no whole line: not a trace, or its writer died at once")
    try:
        header = json.loads(lines[0])
        if int(header["schema"]) != SCHEMA_VERSION:
            raise OtherVersion(path, header["schema"])
        picks = _picks(header["columns"])
        facts = facts_from_values(header["facts"])
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(f"{path}: line 1 is not the header of a trace: {error}") from None
    rows = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            rows.append(_row(json.loads(line), picks))
        except (ValueError, LookupError, TypeError) as error:
            raise UsageError(f"{path}: line {number} is not a row: {error}") from None
    return ReadTrace(rows, facts, TornTrace(len(rows), len(tail)) if tail else None)


def _picks(columns: list[str]) -> list[tuple[int, Any]]:
    """For each column of ours, where it stands in the file, or -1 and its default."""
    places = {name: at for at, name in enumerate(columns)}
    defaults = Row._field_defaults
    missing = [name for name in Row._fields if name not in places and name not in defaults]
    if missing:
        raise LookupError(f"no column {', '.join(missing)}")
    return [(places.get(name, -1), defaults.get(name)) for name in Row._fields]


def _row(values: list[Any], picks: list[tuple[int, Any]]) -> Row:
    cells = [default if at < 0 else values[at] for at, default in picks]
    for at in _LISTS:
        cells[at] = tuple(cells[at])
    return Row._make(cells)


def _lines(path: Path) -> tuple[list[bytes], bytes]:
    """The whole lines, and what stands after the last one (nothing, unless torn)."""
    data = path.read_bytes()
    tear = b""
    if path.suffix == ".gz":
        unpacker = zlib.decompressobj(wbits=31)
        try:
            data = unpacker.decompress(data)
        except zlib.error as error:
            raise UsageError(f"{path}: damaged: {error}") from None
        if not unpacker.eof:
            tear = b"\0"  # even where the text happens to end with a line, the file does not
    *lines, tail = data.split(b"\n")
    return lines, tail or tear
