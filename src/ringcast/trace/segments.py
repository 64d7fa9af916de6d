"""Traces of real members as files: Parquet segments, each a stretch of one member's rows.

A segment becomes visible whole or not at all: it is written under a temporary name, synced and
renamed, and the directory is synced. Its footer says whose rows it has, from which idx to which,
how many rows its recorder had lost by then, and whether the member stopped cleanly with it; so a
reader knows what is missing without reading the rows. A simulation has one more, of the run itself:
faults and phases, and in its footer the facts. Columns may be added to a version: a reader takes
those it knows and gives missing ones their default. A newer version is refused.

An archive's segments have one column more, the messages of each row, and their footer says which
messages they hold. Nothing else tells them from other segments.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import xxhash

from ringcast.errors import UsageError
from ringcast.trace.facts import facts_to_values
from ringcast.trace.files import TooNew
from ringcast.trace.footers import bounds_of, known_values
from ringcast.trace.held import Holdings
from ringcast.trace.rows import CRASH, Row
from ringcast.trace.whole import sync

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
except ImportError as error:
    raise UsageError('Parquet traces need pyarrow: pip install "ringcast[spark]"') from error

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from ringcast.trace.footers import Bounds
    from ringcast.trace.held import Range
    from ringcast.trace.rows import Facts

SCHEMA_VERSION = 1
THE_RUN = ("", 0)
"""Under this name and incarnation stand the rows that are of no member."""
SUFFIX = ".parquet"
TEMPORARY_SUFFIX = ".part"
ROW_GROUP_ROWS = 16_384
"""How many rows a writer holds before they go to the file."""
ROW_GROUP_BYTES = 8 << 20
"""Or how many bytes of messages, about: a reader has all those of a row group in memory."""
READ_ROWS = 65_536
"""How many rows a reader takes at a time."""

STORAGE_ERRORS = (OSError, pa.ArrowException, OverflowError)
"""What writing may raise: the disk refuses, or a value does not fit its column."""

_INFO_KEY = b"ringcast"
_HELD_KEY = b"ringcast.held"
pa.array([0])  # Loads what pyarrow loads at first use: now, not while a member is busy.
_FOOTER_ERRORS = (ValueError, TypeError, LookupError, RecursionError)
"""What reading a footer that others wrote may raise."""
_TEXT = pa.dictionary(pa.int32(), pa.string())
_UNSIGNED = frozenset({"inc", "peer_inc", "block_hash"})
"""64 bits in full: incarnations and hashes. Spark reads these as decimal(20, 0)."""
_NO_EVENTS: Mapping[str, str] = {}
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

PAYLOADS = "payloads"
ARCHIVE_SCHEMA = SCHEMA.append(pa.field(PAYLOADS, pa.list_(pa.binary())))
"""An archive's rows also have the messages that they speak of, in order."""

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
    payloads: bool = False
    """It is an archive: the messages themselves are kept."""
    group: str = ""
    """Empty: written before this was recorded, or by nobody's group."""
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What the rules that judge the rows depend on: how the group purges ("purge"), the most
    messages that a send window may have ("capacity"), and as what else the member was configured.
    Empty: nobody knows."""

    @property
    def file_stem(self) -> str:
        """A file name that is unique for the member and safe whatever it is called."""
        # Spark and Hadoop take a file whose name begins with an underscore for hidden.
        name = re.sub(r"[^A-Za-z0-9_]", "_", self.node)[:32].lstrip("_") or "run"
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
    facts: dict[str, Any] | None = None
    """Of a simulation, beside the rows of the run itself."""

    @property
    def recording(self) -> Recording:
        """Whose it is."""
        return Recording(**{item.name: getattr(self, item.name) for item in fields(Recording)})


class SegmentWriter:
    """One segment while it grows. Nothing is visible before `finish` returns.

    Every method may raise OSError; then `abandon` it: what it had is lost.
    """

    def __init__(self, directory: Path, recording: Recording) -> None:
        self.recording = recording
        self.rows = 0
        self.first_idx = -1
        self.last_idx = -1
        self.payload_bytes = 0
        self._schema = ARCHIVE_SCHEMA if recording.payloads else SCHEMA
        self._holdings = Holdings()
        self._directory = directory
        self._batches: list[pa.RecordBatch] = []
        self._buffered = 0
        self._buffered_bytes = 0
        self._path: Path | None = None
        self._file: BinaryIO | None = None
        self._writer: pq.ParquetWriter | None = None

    def add(
        self,
        rows: Sequence[Row],
        wall_offset_ns: int = 0,
        payloads: Sequence[Sequence[bytes]] | None = None,
    ) -> None:
        """Append rows in the order of idx. Their wall clock is mono_ns + `wall_offset_ns`. An
        archive's come with the messages of each, none where it tells of no delivery."""
        if not rows:
            return
        self._count(len(rows), rows[0].idx, rows[-1].idx)
        batch = _batch(self.recording, rows, wall_offset_ns)
        if payloads is not None:
            kept = pa.array(payloads, ARCHIVE_SCHEMA.field(PAYLOADS).type)
            size = kept.nbytes
            batch = pa.RecordBatch.from_arrays([*batch.columns, kept], schema=ARCHIVE_SCHEMA)
            self.payload_bytes += size
            self._buffered_bytes += size
            self._holdings.add(rows)
        self._append(batch)

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Append rows that are columns already, as `SCHEMA` has them."""
        if len(batch):
            self._count(len(batch), batch["idx"][0].as_py(), batch["idx"][-1].as_py())
            self._append(batch)

    def _count(self, rows: int, first_idx: int, last_idx: int) -> None:
        """Before anything can go wrong with them: who gives up knows how many are lost."""
        if not self.rows:
            self.first_idx = first_idx
        self.rows += rows
        self.last_idx = last_idx

    def _append(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._buffered += len(batch)
        if self._buffered >= ROW_GROUP_ROWS or self._buffered_bytes >= ROW_GROUP_BYTES:
            self._write_group()

    def finish(
        self, *, lost: int = 0, is_last: bool = False, facts: dict[str, Any] | None = None
    ) -> Path:
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
            facts=facts,
        )
        footer = {_INFO_KEY: json.dumps(asdict(info)).encode()}
        if self.recording.payloads:
            footer[_HELD_KEY] = self._holdings.to_json().encode()
        self._writer.add_key_value_metadata(footer)
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        path = self._path.with_suffix(SUFFIX)
        self._path.rename(path)
        sync(self._directory)
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
            self._writer.write_table(pa.Table.from_batches(self._batches, self._schema))
        self._batches = []
        self._buffered = self._buffered_bytes = 0

    def _open(self) -> None:
        stem = f"{self.recording.file_stem}-{max(self.first_idx, 0):012d}"
        self._path = self._directory / f"{stem}{TEMPORARY_SUFFIX}"
        self._file = self._path.open("wb")
        self._writer = pq.ParquetWriter(
            self._file,
            self._schema,
            compression="zstd",
            use_dictionary=_DICTIONARY,
            write_statistics=SCHEMA.names,  # there is no least message
            column_encoding=dict.fromkeys(_DELTA, "DELTA_BINARY_PACKED"),
        )


def write_segment(
    directory: Path,
    recording: Recording,
    rows: Sequence[Row],
    *,
    lost: int = 0,
    is_last: bool = False,
    facts: dict[str, Any] | None = None,
) -> Path:
    """Write one whole segment."""
    writer = SegmentWriter(directory, recording)
    for start in range(0, len(rows), ROW_GROUP_ROWS):
        writer.add(rows[start : start + ROW_GROUP_ROWS])
    return writer.finish(lost=lost, is_last=is_last, facts=facts)


def write_trace_segments(
    directory: Path,
    run_id: str,
    rows: Iterable[Row],
    facts: Facts | None = None,
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Write a whole simulation: each member's rows, and beside the facts those of the run itself.

    Without facts it is as if members had recorded for themselves: nothing is said of the run, and
    the end of a member that crashed may be missing.
    """
    directory.mkdir(parents=True, exist_ok=True)
    by_member: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        by_member.setdefault((row.node, row.inc), []).append(row)
    of_the_run = by_member.pop(THE_RUN, [])
    for (node, inc), own in by_member.items():
        has_end = facts is not None or not any(row.event == CRASH for row in own)
        recording = Recording(
            run_id=run_id, node=node, inc=inc, level="full", settings=settings or {}
        )
        write_segment(directory, recording, own, is_last=has_end)
    if facts is not None:
        node, inc = THE_RUN
        recording = Recording(run_id=run_id, node=node, inc=inc, level="full")
        values = facts_to_values(facts)
        write_segment(directory, recording, of_the_run, is_last=True, facts=values)


class Segment:
    """A segment opened for reading; UsageError where it is not one, or is torn."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        try:
            self._file = pq.ParquetFile(self.path)
            self.info = _info(self._file.metadata.metadata, self.path)
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

    @property
    def groups(self) -> range:
        """Its row groups, by number."""
        return range(self._file.metadata.num_row_groups)

    def bounds(self, group: int, columns: Collection[str]) -> dict[str, Bounds | None]:
        """The least and the greatest of these columns in a row group, as far as is known."""
        return bounds_of(self._file.metadata, group, columns)

    def batches(
        self,
        columns: Sequence[str] = SCHEMA.names,
        only_for: Mapping[str, str] = _NO_EVENTS,
        groups: Iterable[int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The rows in order, these columns of them; what this version lacks has its default, and
        so may have a column that is wanted for rows of one event `only_for`, where there are none:
        then "event" must be among them. What the footer tells is not read."""
        schema = pa.schema([ARCHIVE_SCHEMA.field(name) for name in columns])
        stored = set(self._file.schema_arrow.names)
        missing = {
            name: Row._field_defaults.get(name, "") for name in columns if name not in stored
        }
        try:
            for group in self.groups if groups is None else groups:
                known = missing | known_values(
                    self._file.metadata, group, columns, only_for, Row._field_defaults
                )
                left = self._file.metadata.row_group(group).num_rows
                # Whoever wants more cores reads more files. One column at least counts the rows.
                for batch in self._file.iter_batches(
                    READ_ROWS,
                    row_groups=[group],
                    columns=[name for name in columns if name not in known] or ["idx"],
                    use_threads=False,
                ):
                    arrays = [
                        _many(name, known[name]).slice(0, len(batch))
                        if name in known
                        else _as_stored(name, batch.column(name))
                        for name in columns
                    ]
                    left -= len(batch)
                    rows = pa.RecordBatch.from_arrays(arrays, schema=schema)
                    if only_for and not self._is_as_told(group, rows["event"]):
                        raise UsageError(f"{self.path.name}: damaged: its footer leaves out events")
                    yield rows
                if left:
                    raise UsageError(f"{self.path.name}: damaged: rows are missing")
        except (*STORAGE_ERRORS, TypeError) as error:
            raise UsageError(f"{self.path.name}: damaged: {_one_line(error)}") from error

    def _is_as_told(self, group: int, events: pa.DictionaryArray) -> bool:
        """Whether there are no events but those between the least and the greatest."""
        told = self.bounds(group, ("event",)).get("event")
        names = events.dictionary.to_pylist()
        others = [at for at, name in enumerate(names) if told and not told.may_have(name)]
        # A dictionary may list more than there is.
        return (
            not others or not pc.any(pc.is_in(events.indices, pa.array(others, pa.int32()))).as_py()
        )

    def row_groups(self, columns: Sequence[str], seqnos: Range) -> Iterator[pa.RecordBatch]:
        """These columns of all rows that may speak of these seqnos, as much at a time as was
        written at once. The file must have the columns."""
        names = self._file.schema_arrow.names
        metadata = self._file.metadata
        try:
            for group in range(metadata.num_row_groups):
                about = metadata.row_group(group)
                low = about.column(names.index("seqno")).statistics
                high = about.column(names.index("seqno2")).statistics
                if low.min > seqnos.last or high.max < seqnos.first:
                    continue
                table = self._file.read_row_group(group, list(columns))
                yield from table.combine_chunks().to_batches()
        except (OSError, pa.ArrowException, ValueError) as error:
            raise UsageError(f"{self.path.name}: damaged: {_one_line(error)}") from error

    @property
    def holdings(self) -> Holdings:
        """Which messages are in it; none if it is not an archive's. UsageError: no sense in it."""
        text = self._file.metadata.metadata.get(_HELD_KEY)
        try:
            return Holdings() if text is None else Holdings.from_json(text)
        except _FOOTER_ERRORS as error:
            raise UsageError(
                f"{self.path.name}: what it holds is not to be read: {_one_line(error)}"
            ) from error

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


def _info(metadata: dict[bytes, bytes], path: Path) -> SegmentInfo:
    """The footer's own key; what it says beyond what we know is ignored."""
    values = json.loads(metadata[_INFO_KEY])
    if values["schema"] > SCHEMA_VERSION:
        raise TooNew(path, values["schema"], SCHEMA_VERSION)
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
    kind = ARCHIVE_SCHEMA.field(name).type
    return column if column.type == kind else column.cast(kind)


@lru_cache(maxsize=64)
def _many(name: str, value: object) -> pa.Array:
    """As many as a reader takes at a time, to be sliced: row groups have much in common."""
    return _constant(name, value, READ_ROWS)


def _constant(name: str, value: object, count: int) -> pa.Array:
    kind = SCHEMA.field(name).type
    if kind == _TEXT:
        indices = pa.repeat(pa.scalar(0, pa.int32()), count)
        return pa.DictionaryArray.from_arrays(indices, pa.array([value], pa.string()))
    if value == ():  # Repeating an empty list appends it so many times.
        offsets = pa.repeat(pa.scalar(0, pa.int32()), count + 1)
        return pa.ListArray.from_arrays(offsets, pa.array([], kind.value_type))
    return pa.repeat(pa.scalar(value, kind), count)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
