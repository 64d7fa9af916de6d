"""The source, on a file system that fails every twentieth time, wherever Spark runs it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringcast.spark.options import Options
from ringcast.spark.source import ArchiveReader, RingcastSource
from ringcast.spark.stream import ArchiveStreamReader
from support.shaky_disk import ShakyDisk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

LOG = "failures"
EVERY = 20


class ShakySource(RingcastSource):
    @classmethod
    def name(cls) -> str:
        return "shaky"

    def reader(self, schema: StructType) -> ShakyReader:
        return ShakyReader(Options.parse(self.options, is_stream=False, columns=schema))

    def streamReader(self, schema: StructType) -> ShakyStreamReader:
        options = Options.parse(self.options, is_stream=True, columns=schema)
        return ShakyStreamReader(options)


def shaky(options: Options) -> ShakyDisk:
    return ShakyDisk(options.path, EVERY, Path(options.path).with_name(LOG))


class ShakyReader(ArchiveReader):
    def partitions(self) -> Sequence[InputPartition]:
        with shaky(self._options):
            return super().partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with shaky(self._options):
            yield from super().read(partition)


class ShakyStreamReader(ArchiveStreamReader):
    def initialOffset(self) -> dict[str, Any]:
        with shaky(self._options):
            return super().initialOffset()

    def prepareForTriggerAvailableNow(self) -> None:
        with shaky(self._options):
            super().prepareForTriggerAvailableNow()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with shaky(self._options):
            return super().latestOffset(start, limit)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with shaky(self._options):
            return super().partitions(start, end)

    def commit(self, end: dict[str, Any]) -> None:
        with shaky(self._options):
            super().commit(end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with shaky(self._options):
            yield from super().read(partition)
