"""Traces of real members as files: Parquet segments, each a stretch of one member's rows.

A segment becomes visible whole or not at all: it is written under a temporary name, synced and
renamed, and the directory is synced. Its footer says whose rows it has, from which idx to which,
how many rows its recorder had lost by then, and whether the member stopped cleanly with it; so a
reader knows what is missing without reading the rows. A simulation has one more, of the run itself:
faults and phases, and in its footer the facts. Columns may be added to a version: a reader gives
missing ones their default. Other versions are refused.

Every byte is covered by checksums (`ringcast.trace.sealed`), and every reader opens segments with
`Segment`, which verifies them: a damaged file is named, and its rows are never taken for others.

An archive's segments have one column more, the messages of each row, and their footer says which
messages they hold; and which the one before holds, to be looked for elsewhere if it cannot be read.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringcast.errors import UsageError
from ringcast.private import make_private, open_private
from ringcast.trace.columns import (
    ARCHIVE_SCHEMA,
    DELTA,
    DICTIONARY,
    PAYLOADS,
    SCHEMA,
    bounds_of,
    constant_column,
    is_among,
    known_values,
    rows_to_batch,
    unbounded_bytes,
)
from ringcast.trace.disks import LOCAL, SUFFIX, Disk, one_line
from ringcast.trace.files import facts_to_values
from ringcast.trace.footer import FOOTER_ERRORS, THE_RUN, Before, Footer, Recording, SegmentInfo
from ringcast.trace.held import Holdings, Range
from ringcast.trace.rows import CRASH, LISTS, Facts, MemberKey, Row
from ringcast.trace.sealed import VERSION, SealedFile, SealingFile, Unreadable
from ringcast.trace.whole import sync

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as error:
    raise UsageError('Parquet files need pyarrow: pip install "ringcast[spark]"') from error

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from ringcast.trace.columns import Bounds

TEMPORARY_SUFFIX = ".part"
ROW_GROUP_ROWS = 16_384
"""How many rows a writer holds before they go to the file."""
ROW_GROUP_BYTES = 8 << 20
"""Or how many bytes, about: a reader has a whole row group in memory."""
GROUP_BYTES_MAX = 512 << 20
GROUP_ROWS_MAX = 1 << 20
"""No row group is larger, with one huge message in it: more is not written, and not read."""
STORAGE_ERRORS = (OSError, pa.ArrowException, OverflowError)
"""What writing may raise: the disk refuses, or a value does not fit its column."""
_NO_EVENTS: Mapping[str, Sequence[str]] = {}


class SegmentWriter:
    """One segment while it grows. Nothing is visible before `finish` returns.

    Every method may raise OSError; then `abandon` it: what it had is lost.
    """

    def __init__(
        self,
        directory: Path,
        recording: Recording,
        before: Before | None = None,
        *,
        name: str = "",
        mode: int | None = None,
    ) -> None:
        self.recording = recording
        self.holdings = Holdings()
        """The messages in it."""
        self.rows = 0
        self.first_idx = -1
        self.last_idx = -1
        self.payload_bytes = 0
        self._schema = ARCHIVE_SCHEMA if recording.payloads else SCHEMA
        self._before = before
        self._name = name
        self._mode = mode
        self._directory = directory
        self._batches: list[pa.RecordBatch] = []
        self._buffered = 0
        self._buffered_bytes = 0
        self._path: Path | None = None
        self._file: SealingFile | None = None
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
        batch = rows_to_batch(self.recording, rows, wall_offset_ns)
        if payloads is not None:
            kept = pa.array(payloads, ARCHIVE_SCHEMA.field(PAYLOADS).type)
            batch = pa.RecordBatch.from_arrays([*batch.columns, kept], schema=ARCHIVE_SCHEMA)
            self.payload_bytes += kept.nbytes
            self.holdings.add(rows)
        self._append(batch)

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Append rows that are columns already, as `SCHEMA` or `ARCHIVE_SCHEMA` has them. What an
        archive holds is to be added to `holdings`."""
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
        size = sum(map(unbounded_bytes, batch.columns))
        if size > GROUP_BYTES_MAX - ROW_GROUP_BYTES:
            raise OverflowError(f"{size} bytes at once: a row group has {GROUP_BYTES_MAX} at most")
        self._batches.append(batch)
        self._buffered += len(batch)
        self._buffered_bytes += size
        if self._buffered >= ROW_GROUP_ROWS or self._buffered_bytes >= ROW_GROUP_BYTES:
            self._write_group()

    def finish(
        self,
        *,
        lost: int = 0,
        is_last: bool = False,
        facts: dict[str, Any] | None = None,
        visible_at: float | None = None,
    ) -> Path:
        """Make the segment visible, for good, and return where it is."""
        self._write_group()
        assert self._writer is not None
        assert self._file is not None
        assert self._path is not None
        info = SegmentInfo(
            **asdict(self.recording),
            schema=VERSION,
            rows=self.rows,
            first_idx=self.first_idx,
            last_idx=self.last_idx,
            lost=lost,
            is_last=is_last,
            facts=facts,
            visible_at=visible_at,
        )
        footer = Footer(info, self.holdings, self._before)
        self._writer.add_key_value_metadata(footer.to_metadata())
        self._file.begin_footer()
        self._writer.close()
        self._file.seal()
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
        stem = self._name or f"{self.recording.file_stem}-{max(self.first_idx, 0):012d}"
        self._path = self._directory / f"{stem}{TEMPORARY_SUFFIX}"
        self._file = SealingFile(open_private(self._path, self._mode))
        self._writer = pq.ParquetWriter(
            self._file,
            self._schema,
            compression="zstd",
            use_dictionary=DICTIONARY,
            write_statistics=SCHEMA.names,  # there is no least message
            column_encoding=dict.fromkeys(DELTA, "DELTA_BINARY_PACKED"),
            write_page_checksum=True,
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
    make_private(directory)
    by_member: dict[MemberKey, list[Row]] = {THE_RUN: []}
    for row in rows:
        by_member.setdefault(row.key, []).append(row)
    of_the_run = by_member.pop(THE_RUN)
    owner = partial(Recording, run_id=run_id, level="full", settings=settings or {})
    for (node, inc), own in by_member.items():
        has_end = facts is not None or not any(row.event == CRASH for row in own)
        write_segment(directory, owner(node=node, inc=inc), own, is_last=has_end)
    if facts is not None:
        values = facts_to_values(facts)
        node, inc = THE_RUN
        write_segment(directory, owner(node=node, inc=inc), of_the_run, is_last=True, facts=values)


class Segment:
    """A segment opened for reading; Unreadable where it is not one, or not whole."""

    def __init__(self, path: Path | str, disk: Disk = LOCAL, *, is_patient: bool = True) -> None:
        self.path = Path(path)
        self._sealed = SealedFile(path, disk, is_patient=is_patient)
        try:
            self._metadata = pq.read_metadata(pa.BufferReader(self._sealed.footer))
            footer = Footer.from_metadata(self._metadata.metadata)
            self.info, self.holdings, self.before = footer
            if self._metadata.num_rows != self.info.rows:
                raise ValueError("rows are missing")
        except (*FOOTER_ERRORS, OSError, pa.ArrowException) as error:
            self._sealed.close()
            raise Unreadable(path, f"not a whole segment: {one_line(error)}") from error

    def __enter__(self) -> Segment:
        return self

    def __exit__(self, *_: object) -> None:
        self._sealed.close()

    @cached_property
    def _file(self) -> pq.ParquetFile:
        """Its pages, which pyarrow gets to see once they are verified."""
        return pq.ParquetFile(pa.PythonFile(self._sealed, mode="r"), metadata=self._metadata)

    @cached_property
    def _places(self) -> dict[str, int]:
        """Of each column that is stored, among those of Parquet; lists have one below them."""
        schema = self._metadata.schema
        paths = (schema.column(at).path for at in range(len(schema)))
        return {path.partition(".")[0]: at for at, path in enumerate(paths)}

    @cached_property
    def _without_dictionary(self) -> list[int]:
        schema = self._metadata.schema
        return [at for at in range(len(schema)) if schema.column(at).path not in DICTIONARY]

    @property
    def size(self) -> int:
        """How many bytes the file has."""
        return self._sealed.size

    @property
    def groups(self) -> range:
        """Its row groups, by number."""
        return range(self._metadata.num_row_groups)

    def batches(
        self,
        columns: Sequence[str] = SCHEMA.names,
        only_for: Mapping[str, Sequence[str]] = _NO_EVENTS,
    ) -> Iterator[pa.RecordBatch]:
        """The rows in order, these columns of them, a row group at a time."""
        return (self.group(number, columns, only_for) for number in self.groups)

    def group(
        self,
        number: int,
        columns: Sequence[str],
        only_for: Mapping[str, Sequence[str]] = _NO_EVENTS,
    ) -> pa.RecordBatch:
        """These columns of a row group. What this version lacks has its default, and so may have a
        column that is wanted for rows of some events `only_for`, where there are none: then "event"
        must be among them. What the footer tells is not read."""
        schema = pa.schema([ARCHIVE_SCHEMA.field(name) for name in columns])
        missing = (name for name in columns if name not in self._places)
        known = {name: Row._field_defaults.get(name, "") for name in missing}
        known |= known_values(self._bounds(number, columns), only_for)
        # One column at least counts the rows.
        read = [name for name in columns if name not in known] or ["idx"]
        count = self._check_size(number)
        try:
            # Whoever wants more cores reads more files.
            found = self._file.read_row_group(number, read, use_threads=False).combine_chunks()
            if len(found) != count:
                raise Unreadable(self.path, "damaged: rows are missing")
            if not count:
                return pa.RecordBatch.from_pylist([], schema)
            arrays = [
                constant_column(name, known[name], count) if name in known else found[name].chunk(0)
                for name in columns
            ]
            self._check_bytes(sum(map(unbounded_bytes, arrays)), count)
            return pa.RecordBatch.from_arrays(arrays, schema=schema)
        except (*STORAGE_ERRORS, TypeError, ValueError) as error:
            raise Unreadable(self.path, f"damaged: {one_line(error)}") from error

    def may_have(self, group: int, numbers: Range, lower: str, upper: str) -> bool:
        """Whether the row group may have a row whose numbers, from the column `lower` to `upper`,
        are among these."""
        bounds = self._bounds(group, (lower, upper))
        low, high = bounds.get(lower), bounds.get(upper)
        is_beyond = low is not None and low.least > numbers.last
        return not (is_beyond or (high is not None and high.greatest < numbers.first))

    def may_name(self, group: int, column: str, names: Collection[str]) -> bool:
        """Whether the row group may have a row with one of these texts in the column."""
        bounds = self._bounds(group, (column,)).get(column)
        return bounds is None or any(bounds.least <= name <= bounds.greatest for name in names)

    def span(self, column: str) -> Range | None:
        """The least and the greatest number that the column has; None: the file does not tell."""
        found = [self._bounds(group, (column,)).get(column) for group in self.groups]
        told = [bounds for bounds in found if bounds is not None]
        if not told or len(told) < len(found):
            return None
        return Range(min(each.least for each in told), max(each.greatest for each in told))

    def _bounds(self, group: int, columns: Sequence[str]) -> dict[str, Bounds | None]:
        """Of these columns; what is told of a list's elements is not told of the lists."""
        about = self._metadata.row_group(group)
        stored = {
            name: about.column(self._places[name]) for name in columns if name in self._places
        }
        return {
            name: bounds_of(column)
            for name, column in stored.items()
            if column.path_in_schema == name
        }

    def check_rows(self) -> None:
        """Verify the bytes of all columns but the messages: who reads some of them now, and others
        later, is to find damage now. Unreadable if there is some."""
        for group in self.groups:
            about = self._metadata.row_group(group)
            chunks = [about.column(at) for at in range(about.num_columns)]
            own = (chunk for chunk in chunks if chunk.path_in_schema.split(".")[0] != PAYLOADS)
            spans = [_span(chunk) for chunk in own]
            if spans:
                self._sealed.check(min(start for start, _ in spans), max(stop for _, stop in spans))

    def check_all(self) -> None:
        """Verify every byte; Unreadable if one is not as it was written."""
        self._sealed.check_all()

    def _check_size(self, group: int) -> int:
        """How many rows a row group has; Unreadable if it would need more memory than one should.

        Lists and messages must be stored as they are: an entry of a dictionary may be long, and
        stand for millions of values. Of other texts the entries are measured when they are read.
        """
        about = self._metadata.row_group(group)
        hides = any(about.column(at).has_dictionary_page for at in self._without_dictionary)
        is_long = hides or about.num_rows > GROUP_ROWS_MAX
        self._check_bytes(GROUP_BYTES_MAX + 1 if is_long else about.total_byte_size, about.num_rows)
        return int(about.num_rows)

    def _check_bytes(self, size: int, rows: int) -> None:
        if size > GROUP_BYTES_MAX:
            found = f"a row group of {rows} rows and {size} bytes, or more once it is unpacked"
            raise Unreadable(self.path, f"{found}: no recorder writes over {GROUP_BYTES_MAX}")

    def rows(self) -> list[Row]:
        """All rows, as the in-process rules take them."""
        return list(self.iter_rows())

    def iter_rows(self, events: Collection[str] = ()) -> Iterator[Row]:
        """The rows of these events, or all: few are in memory at a time."""
        lists = tuple(map(Row._fields.index, LISTS))
        for batch in self.batches(Row._fields):
            if events:
                batch = batch.filter(is_among(batch["event"], events))
            columns = [column.to_pylist() for column in batch.columns]
            for at in lists:
                columns[at] = list(map(tuple, columns[at]))
            yield from map(Row._make, zip(*columns, strict=True))


def segment_paths(directory: Path | str) -> list[Path]:
    """Every visible segment under the directory, by name; UsageError: what is in it is not told."""
    return sorted(map(Path, LOCAL.listing(str(directory)).paths))


def _span(chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Where a column's pages are, half-open."""
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    return start, start + chunk.total_compressed_size
