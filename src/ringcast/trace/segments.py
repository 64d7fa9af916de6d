"""Traces of real members as files: Parquet segments, each a stretch of one member's rows.

A segment becomes visible whole or not at all: it is written under a temporary name, synced and
renamed, and the directory is synced. Its footer says whose rows it has, from which idx to which,
how many rows its recorder had lost by then, and whether the member stopped cleanly with it; so a
reader knows what is missing without reading the rows. Versions only add columns: a reader takes
those it knows and gives missing ones their default.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import xxhash

from ringcast.errors import UsageError
from ringcast.trace.rows import CRASH, Row

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
except ImportError as error:
    raise UsageError('Parquet traces need pyarrow: pip install "ringcast[spark]"') from error

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

SCHEMA_VERSION = 1
SUFFIX = ".parquet"
TEMPORARY_SUFFIX = ".part"
ROW_GROUP_ROWS = 16_384
"""How many rows a writer holds before they go to the file."""
READ_ROWS = 65_536
"""How many rows a reader takes at a time."""

STORAGE_ERRORS = (OSError, pa.ArrowException, OverflowError)
"""What writing may raise: the disk refuses, or a value does not fit its column."""

_INFO_KEY = b"ringcast"
pa.array([0])  # Loads what pyarrow loads at first use: now, not while a member is busy.
_FOOTER_ERRORS = (ValueError, TypeError, LookupError, RecursionError)
"""What reading a footer that others wrote may raise."""
_TEXT = pa.dictionary(pa.int32(), pa.string())
_UNSIGNED = frozenset({"inc", "peer_inc", "block_hash"})
"""64 bits in full: incarnations and hashes. Spark reads these as decimal(20, 0)."""
_CONSTANT = ("run_id", "host", "boot_id", "node", "inc")
_RANDOM = frozenset({"block_hash"})


def _column_type(name: str) -> pa.DataType:
    if name in _UNSIGNED:
        return pa.uint64()
    default = Row._field_defaults.get(name, 0)
    if name in ("event", "node") or isinstance(default, str):
        return _TEXT
    return pa.list_(pa.string()) if isinstance(default, tuple) else pa.int64()


SCHEMA = pa.schema(
    [
        *((name, _TEXT) for name in ("run_id", "host", "boot_id")),
        ("wall_ns", pa.int64()),
        *((name, _column_type(name)) for name in Row._fields),
    ]
)
"""What a run of a real cluster adds to the columns of a row: where and when in the world."""

_DELTA = [item.name for item in SCHEMA if item.type == pa.int64()]
_DICTIONARY = [
    item.name
    for item in SCHEMA
    if item.name not in _DELTA and item.name not in _RANDOM and not pa.types.is_list(item.type)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Whose rows a file has: the same for all segments of one member."""

    run_id: str
    node: str
    inc: int
    level: str = "deliveries"
    host: str = ""
    boot_id: str = ""
    group: str = ""
    """Empty: written before this was recorded, or by nobody's group."""

    @property
    def file_stem(self) -> str:
        """A file name that is unique for the member and safe whatever it is called."""
        name = re.sub(r"[^A-Za-z0-9_]", "_", self.node)[:32]
        identity = xxhash.xxh3_64_hexdigest(json.dumps([self.run_id, self.node]).encode())
        return f"{name}-{identity}-{self.inc:016x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo(Recording):
    """The footer of a segment."""

    schema: int
    rows: int
    first_idx: int
    last_idx: int
    lost: int
    """Rows this member's recorder had lost when the segment was closed."""
    is_last: bool
    """The member stopped cleanly and this is its end."""


class SegmentWriter:
    """One segment while it grows. Nothing is visible before `finish` returns.

    Every method may raise OSError; then `abandon` it: what it had is lost.
    """

    def __init__(self, directory: Path, recording: Recording) -> None:
        self.recording = recording
        self.rows = 0
        self.first_idx = -1
        self.last_idx = -1
        self._directory = directory
        self._batches: list[pa.RecordBatch] = []
        self._buffered = 0
        self._path: Path | None = None
        self._file: BinaryIO | None = None
        self._writer: pq.ParquetWriter | None = None

    def add(self, rows: Sequence[Row], wall_offset_ns: int = 0) -> None:
        """Append rows in the order of idx. Their wall clock is mono_ns + `wall_offset_ns`."""
        if not rows:
            return
        if not self.rows:
            self.first_idx = rows[0].idx
        self.rows += len(rows)
        self.last_idx = rows[-1].idx
        self._batches.append(_batch(self.recording, rows, wall_offset_ns))
        self._buffered += len(rows)
        if self._buffered >= ROW_GROUP_ROWS:
            self._write_group()

    def finish(self, *, lost: int = 0, is_last: bool = False) -> Path:
        """Make the segment visible, for good, and return where it is."""
        self._write_group()
        assert self._writer is not None
        assert self._file is not None
        assert self._path is not None
        info = SegmentInfo(
            **asdict(self.recording),
            schema=SCHEMA_VERSION,
            rows=self.rows,
            first_idx=self.first_idx,
            last_idx=self.last_idx,
            lost=lost,
            is_last=is_last,
        )
        self._writer.add_key_value_metadata({_INFO_KEY: json.dumps(asdict(info)).encode()})
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        path = self._path.with_suffix(SUFFIX)
        self._path.rename(path)
        _sync_directory(self._directory)
        return path

    def abandon(self) -> None:
        """Leave nothing behind, as far as the disk allows. Never raises OSError."""
        for opened in (self._writer, self._file):
            if opened is not None:
                with suppress(*STORAGE_ERRORS):  # Closing tries to write what was refused before.
                    opened.close()
        if self._path is not None:
            with suppress(OSError):  # A leftover under a temporary name is never read.
                self._path.unlink(missing_ok=True)

    def _write_group(self) -> None:
        if self._writer is None:
            self._open()
        assert self._writer is not None
        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches, SCHEMA))
        self._batches = []
        self._buffered = 0

    def _open(self) -> None:
        stem = f"{self.recording.file_stem}-{max(self.first_idx, 0):012d}"
        self._path = self._directory / f"{stem}{TEMPORARY_SUFFIX}"
        self._file = self._path.open("wb")
        self._writer = pq.ParquetWriter(
            self._file,
            SCHEMA,
            compression="zstd",
            use_dictionary=_DICTIONARY,
            column_encoding=dict.fromkeys(_DELTA, "DELTA_BINARY_PACKED"),
        )


def write_segment(
    directory: Path,
    recording: Recording,
    rows: Sequence[Row],
    *,
    lost: int = 0,
    is_last: bool = False,
) -> Path:
    """Write one whole segment."""
    writer = SegmentWriter(directory, recording)
    for start in range(0, len(rows), ROW_GROUP_ROWS):
        writer.add(rows[start : start + ROW_GROUP_ROWS])
    return writer.finish(lost=lost, is_last=is_last)


def write_trace_segments(directory: Path, run_id: str, rows: Iterable[Row]) -> None:
    """Write a whole simulation's rows as if each member had recorded its own.

    A member that did not crash has a whole trace: the simulation ended, not the member.
    """
    directory.mkdir(parents=True, exist_ok=True)
    by_member: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        if row.node:
            by_member.setdefault((row.node, row.inc), []).append(row)
    for (node, inc), own in by_member.items():
        has_crashed = any(row.event == CRASH for row in own)
        recording = Recording(run_id=run_id, node=node, inc=inc, level="full")
        write_segment(directory, recording, own, is_last=not has_crashed)


class Segment:
    """A segment opened for reading; UsageError where it is not one, or is torn."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        try:
            self._file = pq.ParquetFile(self.path)
            self.info = _info(self._file.metadata.metadata)
            whole = self._file.metadata.num_rows == self.info.rows
        except (*_FOOTER_ERRORS, OSError, pa.ArrowException) as error:
            raise UsageError(
                f"{self.path.name}: not a whole segment: {_one_line(error)}"
            ) from error
        if not whole:
            raise UsageError(f"{self.path.name}: not a whole segment: rows are missing")

    def __enter__(self) -> Segment:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def batches(self, columns: Sequence[str] = SCHEMA.names) -> Iterator[pa.RecordBatch]:
        """The rows in order, these columns of them; what this version lacks has its default."""
        known = set(self._file.schema_arrow.names)
        schema = pa.schema([SCHEMA.field(name) for name in columns])
        try:
            for batch in self._file.iter_batches(
                READ_ROWS, columns=[name for name in columns if name in known]
            ):
                arrays = [
                    _as_stored(name, batch.column(name))
                    if name in known
                    else _constant(name, Row._field_defaults.get(name, ""), len(batch))
                    for name in columns
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        except (OSError, pa.ArrowException) as error:
            raise UsageError(f"{self.path.name}: damaged: {_one_line(error)}") from error

    def rows(self) -> list[Row]:
        """All rows, as the in-process predicates take them."""
        return list(self.iter_rows())

    def iter_rows(self, events: Collection[str] = ()) -> Iterator[Row]:
        """The rows of these events, or all: few are in memory at a time."""
        members = Row._fields.index("members")
        wanted = pa.array(sorted(events), pa.string())
        for batch in self.batches(Row._fields):
            if events:
                batch = batch.filter(pc.is_in(batch["event"].cast(pa.string()), wanted))
            columns = [column.to_pylist() for column in batch.columns]
            columns[members] = list(map(tuple, columns[members]))
            yield from map(Row._make, zip(*columns, strict=True))


def segment_paths(directory: Path | str) -> list[Path]:
    """Every visible segment under the directory, by name."""
    return sorted(Path(directory).rglob(f"*{SUFFIX}"))


def _info(metadata: dict[bytes, bytes]) -> SegmentInfo:
    """The footer's own key; what later versions add to it is ignored."""
    values = json.loads(metadata[_INFO_KEY])
    names = (item.name for item in fields(SegmentInfo))
    return SegmentInfo(**{name: values[name] for name in names if name in values})


def _batch(recording: Recording, rows: Sequence[Row], wall_offset_ns: int) -> pa.RecordBatch:
    columns = dict(zip(Row._fields, zip(*rows, strict=True), strict=True))
    count = len(rows)
    arrays = []
    for item in SCHEMA:
        if item.name in _CONSTANT:
            arrays.append(_constant(item.name, getattr(recording, item.name), count))
        elif item.name == "wall_ns":
            arrays.append(pa.array([at + wall_offset_ns for at in columns["mono_ns"]], item.type))
        else:
            arrays.append(_column(item.name, columns[item.name]))
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _column(name: str, values: Sequence[object]) -> pa.Array:
    """Most columns have one value in most stretches; counting it is cheaper than converting."""
    if values.count(values[0]) == len(values):
        return _constant(name, values[0], len(values))
    kind = SCHEMA.field(name).type
    return (
        pa.array(values, pa.string()).dictionary_encode()
        if kind == _TEXT
        else pa.array(values, kind)
    )


def _as_stored(name: str, column: pa.Array) -> pa.Array:
    """The type we write; files that others have rewritten may have a wider one."""
    kind = SCHEMA.field(name).type
    return column if column.type == kind else column.cast(kind)


def _constant(name: str, value: object, count: int) -> pa.Array:
    kind = SCHEMA.field(name).type
    if kind == _TEXT:
        indices = pa.repeat(pa.scalar(0, pa.int32()), count)
        return pa.DictionaryArray.from_arrays(indices, pa.array([value], pa.string()))
    return pa.repeat(pa.scalar(value, kind), count)


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
