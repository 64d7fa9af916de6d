"""Traces as files: JSON Lines, gzipped where the name ends in .gz.

The first line is an object with the schema version, the column names and the facts of the run;
every other line is one row as an array in that order. Columns may be added to a version; what a
reader would misread takes a new one.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from ringcast.private import open_private
from ringcast.trace.rows import Facts, Row, Trace

SCHEMA_VERSION = 3

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


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
    with open_private(Path(path)) as file:
        file.write(data)


def trace_hash(trace: Trace) -> str:
    """The sha256 of the rows alone: equal exactly when the rows are, on any interpreter (G6)."""
    digest = hashlib.sha256()
    for start in range(0, len(trace.rows), 4096):
        lines = "\n".join([*map(_encode, trace.rows[start : start + 4096]), ""])
        digest.update(lines.encode("ascii"))
    return digest.hexdigest()


def facts_to_values(facts: Facts) -> dict[str, Any]:
    """As JSON has them."""
    values = {item.name: getattr(facts, item.name) for item in fields(facts)}
    return {
        name: sorted(value) if isinstance(value, frozenset) else value
        for name, value in values.items()
    }


def facts_from_values(values: Mapping[str, Any]) -> Facts:
    """Unknown ones are ignored, missing ones keep their default."""
    picked: dict[str, Any] = {}
    for item in fields(Facts):
        if item.name in values:
            value = values[item.name]
            is_set = item.default is not MISSING and isinstance(item.default, frozenset)
            picked[item.name] = frozenset(value) if is_set else value
    return Facts(**picked)
