"""The columns of segments: their types, rows as columns, and what a file's footer tells of them, so
that they need not be read."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ringcast.errors import UsageError
from ringcast.trace.rows import Row

try:
    import pyarrow as pa
except ImportError as error:
    raise UsageError('Parquet files need pyarrow: pip install "ringcast[spark]"') from error

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import pyarrow.parquet as pq

    from ringcast.trace.footer import Recording

READ_ROWS = 65_536
"""More than recorders put into a row group."""

_MUCH = 1 << 20  # bytes
TEXT = pa.dictionary(pa.int32(), pa.string())
_UNSIGNED = frozenset({"inc", "peer_inc", "block_hash"})
"""64 bits in full: incarnations and hashes. Spark reads these as decimal(20, 0)."""
_CONSTANT = ("run_id", "host", "boot_id", "node", "inc")
_RANDOM = frozenset({"block_hash"})


def load_pandas() -> None:
    """pyarrow does at first use, for most of a second: be it now, not while a member is busy."""
    import pyarrow.compute  # noqa: F401

    pa.array([0])


def _column_type(name: str) -> pa.DataType:
    if name in _UNSIGNED:
        return pa.uint64()
    default = Row._field_defaults.get(name, 0)
    if name in ("event", "node") or isinstance(default, str):
        return TEXT
    return pa.list_(pa.string()) if isinstance(default, tuple) else pa.int64()


SCHEMA = pa.schema(
    [
        *((name, TEXT) for name in ("run_id", "host", "boot_id")),
        ("wall_ns", pa.int64()),
        *((name, _column_type(name)) for name in Row._fields),
    ]
)
"""What a run of a real cluster adds to the columns of a row: where and when in the world."""

PAYLOADS = "payloads"
ARCHIVE_SCHEMA = SCHEMA.append(pa.field(PAYLOADS, pa.list_(pa.binary())))
"""An archive's rows also have the messages that they speak of, in order."""

DELTA = [item.name for item in SCHEMA if item.type == pa.int64()]
DICTIONARY = [
    item.name
    for item in SCHEMA
    if item.name not in DELTA and item.name not in _RANDOM and not pa.types.is_list(item.type)
]
"""Columns that are stored as differences, and by dictionary."""


def rows_to_batch(recording: Recording, rows: Sequence[Row], wall_offset_ns: int) -> pa.RecordBatch:
    """Rows as columns. Their wall clock is mono_ns + `wall_offset_ns`."""
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
        if kind == TEXT
        else pa.array(values, kind)
    )


def constant_column(name: str, value: object, count: int) -> pa.Array:
    """A column of one value: often a slice of what is known, as row groups have much in common."""
    if count > READ_ROWS:
        return _constant(name, value, count)
    return _known_column(name, value).slice(0, count)


@lru_cache(maxsize=64)
def _known_column(name: str, value: object) -> pa.Array:
    return _constant(name, value, READ_ROWS)


def _constant(name: str, value: object, count: int) -> pa.Array:
    kind = SCHEMA.field(name).type
    if kind == TEXT:
        indices = pa.repeat(pa.scalar(0, pa.int32()), count)
        return pa.DictionaryArray.from_arrays(indices, pa.array([value], pa.string()))
    if value == ():  # Repeating an empty list appends it so many times.
        offsets = pa.repeat(pa.scalar(0, pa.int32()), count + 1)
        return pa.ListArray.from_arrays(offsets, pa.array([], kind.value_type))
    return pa.repeat(pa.scalar(value, kind), count)


def unbounded_bytes(column: pa.Array) -> int:
    """How many bytes it takes beyond those that the number of rows bounds: of a list, or of texts,
    each row with its own, where that may be much."""
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes) if pa.types.is_list(column.type) else 0
    if column.dictionary.nbytes * len(column) < _MUCH:
        return 0
    import pyarrow.compute as pc

    lengths = pc.binary_length(column.dictionary)
    return int(pc.sum(lengths.take(column.indices)).as_py() or 0)


def is_among(column: pa.DictionaryArray, values: Collection[str]) -> pa.BooleanArray:
    """Which rows have one of these texts. Each text is looked at once, not each row."""
    import pyarrow.compute as pc

    names = column.dictionary.to_pylist()
    codes = [at for at, name in enumerate(names) if name in values]
    return pc.is_in(column.indices, value_set=pa.array(codes, column.indices.type))


class Bounds(NamedTuple):
    """The least and the greatest value of a column."""

    least: Any
    greatest: Any


def known_values(
    bounds: Mapping[str, Bounds | None], only_for: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """Those of the columns whose every value is known, and the value.

    All rows have the same by the statistics; or there is no row of the events that `only_for`
    says the column is wanted for, and the default will do.
    """
    events = bounds.get("event")
    known = {}
    for name, found in bounds.items():
        if found is not None and found.least == found.greatest:
            known[name] = found.least
        elif name in only_for and all(_lacks(events, each) for each in only_for[name]):
            known[name] = Row._field_defaults[name]
    return known


def _lacks(bounds: Bounds | None, value: str) -> bool:
    return bounds is not None and not bounds.least <= value <= bounds.greatest


def bounds_of(column: pq.ColumnChunkMetaData) -> Bounds | None:
    """None where the file does not tell, there may be rows without a value, or values are neither
    numbers nor text. Its seal says that the file is as it was written."""
    statistics = column.statistics
    if statistics is None or not statistics.has_min_max:
        return None
    if not statistics.has_null_count or statistics.null_count:
        return None
    bounds = Bounds(statistics.min, statistics.max)
    return bounds if type(bounds.least) in (int, str) else None
