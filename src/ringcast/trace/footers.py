"""What the footer of a Parquet file tells of a row group, so that it need not be read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence
    from typing import Any

    import pyarrow.parquet as pq


class Bounds(NamedTuple):
    """The least and the greatest value of a column."""

    least: Any
    greatest: Any

    @property
    def is_one_value(self) -> bool:
        return bool(self.least == self.greatest)

    def may_have(self, value: Any) -> bool:
        return bool(self.least <= value <= self.greatest)


def known_values(
    metadata: pq.FileMetaData,
    group: int,
    columns: Sequence[str],
    only_for: Mapping[str, str],
    defaults: Mapping[str, Any],
) -> dict[str, Any]:
    """Those of the columns whose every value is known, and the value.

    All rows have the same by the statistics; or there is no row of the event that `only_for` says
    the column is wanted for, and the default will do.
    """
    bounds = bounds_of(metadata, group, columns)
    events = bounds.get("event")
    known = {}
    for name in columns:
        found = bounds.get(name)
        if found is not None and found.is_one_value:
            known[name] = found.least
        elif name in only_for and events is not None and not events.may_have(only_for[name]):
            known[name] = defaults[name]
    return known


def bounds_of(
    metadata: pq.FileMetaData, group: int, columns: Container[str]
) -> dict[str, Bounds | None]:
    """Of these columns, as far as the file tells."""
    about, schema = metadata.row_group(group), metadata.schema
    return {
        path: _bounds(about.column(at))
        for at in range(about.num_columns)
        if (path := schema.column(at).path) in columns
    }


def _bounds(column: pq.ColumnChunkMetaData) -> Bounds | None:
    """None where the file does not tell, there may be rows without a value, or values are neither
    numbers nor text. Its seal says that the file is as it was written."""
    statistics = column.statistics
    if statistics is None or not statistics.has_min_max:
        return None
    if not statistics.has_null_count or statistics.null_count:
        return None
    bounds = Bounds(statistics.min, statistics.max)
    return bounds if type(bounds.least) in (int, str) else None
