"""Traces as files: JSON Lines, gzipped where the name ends in .gz.

The first line is an object with the schema version, the column names and the facts of the run;
every other line is one row as an array in that order. A reader takes the columns it knows by name:
others are ignored and missing ones keep their default, so columns may be added to a version. What
an older reader would misread takes a new version, and that one refuses it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from pathlib import Path
from typing import Any

from ringcast.errors import UsageError
from ringcast.trace.facts import facts_from_values, facts_to_values
from ringcast.trace.rows import LISTS, Row, TornTrace, Trace

SCHEMA_VERSION = 3

_LISTS = tuple(map(Row._fields.index, LISTS))
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class OtherVersion(UsageError):
    """A file of a version that this reader does not know."""

    def __init__(self, path: Path | str, version: int) -> None:
        super().__init__(
            f"{Path(path).name}: a trace of version {version}; this ringcast reads version "
            f"{SCHEMA_VERSION}: use the ringcast that wrote it"
        )


def write_trace(path: Path | str, trace: Trace) -> None:
    """Write the whole trace. The same trace gives the same bytes."""
    header = {
        "schema": SCHEMA_VERSION,
        "columns": Row._fields,
        "facts": facts_to_values(trace.facts),
    }
    text = "\n".join([_encode(header), *map(_encode, trace.rows), ""])
    data = text.encode("ascii")
    if Path(path).suffix == ".gz":
        data = gzip.compress(data, compresslevel=6, mtime=0)
    Path(path).write_bytes(data)


def read_trace(path: Path | str) -> Trace:
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
    return Trace(rows, facts, TornTrace(len(rows), len(tail)) if tail else None)


def trace_hash(trace: Trace) -> str:
    """The sha256 of the rows alone: equal exactly when the rows are, on any interpreter (G6)."""
    digest = hashlib.sha256()
    for start in range(0, len(trace.rows), 4096):
        lines = "\n".join([*map(_encode, trace.rows[start : start + 4096]), ""])
        digest.update(lines.encode("ascii"))
    return digest.hexdigest()


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
