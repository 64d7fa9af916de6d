"""What Spark takes at most from any source in Python: the archive's, but for the reading.

Each task hands over the first batch of its share, again and again, until there were as many rows as
it should have read. All that remains is Spark's own: to start the task, to get the batches out of
Python, to make rows of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.spark.messages import read_messages
from ringcast.spark.source import ArchiveReader, MessagesPartition, Options, RingcastSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceReader, InputPartition
    from pyspark.sql.types import StructType


class ReadySource(RingcastSource):
    """`format("ringcast-ready")`: as many rows as the archive has."""

    @classmethod
    def name(cls) -> str:
        return "ringcast-ready"

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyReader(Options.parse(self.options, is_stream=False))


class ReadyReader(ArchiveReader):
    """The same tasks, and batches that are there already."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, MessagesPartition)
        left = sum(part.last - part.first + 1 for file in partition.files for part in file.wanted)
        batch = next(read_messages(self._options.path, partition.files))
        while left > 0:
            yield batch.slice(0, left)
            left -= len(batch)
