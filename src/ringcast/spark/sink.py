"""`write` and `writeStream` into a group: rows are staged, and a publisher sends them.

A task stages its rows in a file and joins no group: a view change for each would be dear, and a
task may run twice. The driver commits what all tasks have staged with one manifest
(trace/staging.py); `ringcast publish` sends it. Where a publisher is slower than the stream, the
stream's next batch waits until less is staged than `stagedBytes`.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType

from ringcast.aio.published import Offset, header_of
from ringcast.aio.publisher import bearing, check_publisher
from ringcast.errors import UsageError
from ringcast.model import Headed, Stream
from ringcast.private import open_private
from ringcast.trace.staging import Staging, Stretch
from ringcast.trace.whole import held_alone
from ringcast.wire.headers import CHANNEL, encode_headers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

STAGED_BYTES = 1 << 30
LOOK_S = 0.2
"""How often it is looked whether less is staged."""

_LONGEST = Offset(10**12, 10**7, 10**12)

log = logging.getLogger("ringcast")


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What may be said with `.option(…)`, checked."""

    path: str
    publisher: str
    group: str = ""
    """For which a publisher is started, if none works in the directory; empty: none is."""
    staged_bytes: int = STAGED_BYTES

    @classmethod
    def parse(cls, options: Mapping[str, str], schema: StructType) -> SinkOptions:
        names = ["path", "publisherId", "group", "stagedBytes", "checkpointLocation"]
        unknown = {name.lower() for name in options} - {name.lower() for name in names}
        if unknown:
            raise UsageError(f"no option {', '.join(sorted(unknown))}; there are {names}")
        if "path" not in options:
            raise UsageError("where is it staged? .start(a directory), or .save(a directory)")
        if "publisherId" not in options:
            raise UsageError(
                "a publisher needs a name that stays the same when it is started again, so that "
                'its group knows what it has of it: .option("publisherId", "revenue")'
            )
        check_columns(schema)
        try:
            staged_bytes = int(options.get("stagedBytes", STAGED_BYTES))
        except ValueError:
            staged_bytes = 0
        if staged_bytes < 1:
            raise UsageError(f"stagedBytes is a number of bytes, not {options['stagedBytes']!r}")
        publisher = check_publisher(options["publisherId"])
        return cls(options["path"], publisher, options.get("group", ""), staged_bytes)


COLUMNS: dict[str, DataType] = {
    "payload": BinaryType(),
    "headers": MapType(StringType(), StringType()),
    "to": StringType(),
    "guarantee": StringType(),
}

STREAMS = {
    None: Stream.UNIFORM,
    "plain": Stream.FIFO,
    "fifo": Stream.FIFO,
    "uniform": Stream.UNIFORM,
    "total": Stream.TOTAL,
}
"""By what a row says in `guarantee`. As the source tells it, plain messages are of `fifo`."""


def check_columns(schema: StructType) -> None:
    """UsageError unless rows like these can be sent."""
    all_of_them = ", ".join(f"{name} {kind.simpleString()}" for name, kind in COLUMNS.items())
    kinds = {field.name: field.dataType for field in schema.fields}
    for name in kinds.keys() - COLUMNS.keys():
        raise UsageError(f"there is no column {name!r}: columns are {all_of_them}; drop it")
    if "payload" not in kinds:
        raise UsageError(f"the column payload is missing: columns are {all_of_them}")
    for name, kind in kinds.items():
        if kind.simpleString() != COLUMNS[name].simpleString():
            wanted = COLUMNS[name].simpleString()
            raise UsageError(
                f"the column {name} is {kind.simpleString()}: it has to be {wanted}, "
                f"such as CAST({name} AS {wanted.upper()})"
            )


@dataclass
class Staged(WriterCommitMessage):
    """What a task has staged."""

    partition: int
    file: str


def _stage(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> Staged:
    staging = Staging(options.path)
    name, _ = staging.stage(options.publisher, _stretches(options.publisher, batches))
    context = TaskContext.get()
    assert context is not None
    return Staged(context.partitionId(), name)


def _stretches(publisher: str, batches: Iterator[pa.RecordBatch]) -> Iterator[Stretch]:
    """UsageError in the task that has a row which cannot be sent."""
    for batch in batches:
        messages = _messages(publisher, batch)
        if not {"to", "guarantee"}.intersection(batch.schema.names):
            yield Stretch(messages)
            continue
        nothing = [None] * len(messages)
        ways = [
            batch[name].to_pylist() if name in batch.schema.names else nothing
            for name in ("to", "guarantee")
        ]
        at = 0
        for way, rows in groupby(map(_sent, *ways)):
            end = at + sum(1 for _ in rows)
            yield Stretch(messages[at:end], *way)
            at = end


def _sent(to: str | None, guarantee: str | None) -> tuple[Stream, str]:
    """How, and to whom, if to one member alone."""
    if guarantee not in STREAMS:
        raise UsageError(
            f"the column guarantee is plain, uniform or total, or NULL for uniform; not "
            f"{guarantee!r}"
        )
    if to is None:
        return STREAMS[guarantee], ""
    if not to:
        raise UsageError("the column to is the name of a member, or NULL for all; not ''")
    if guarantee is not None and STREAMS[guarantee] is not Stream.FIFO:
        raise UsageError(
            f"a row to {to!r} alone cannot be {guarantee}: that is for messages to all; leave "
            "its guarantee NULL"
        )
    return Stream.FIFO, to


def _messages(publisher: str, batch: pa.RecordBatch) -> list[bytes]:
    """Payloads, behind their headers where they have some."""
    payloads: list[bytes] = batch["payload"].to_pylist()
    if None in payloads:
        raise UsageError("a row has no payload: NULL cannot be sent")
    if "headers" not in batch.schema.names:
        return payloads
    longest, messages = header_of(publisher, _LONGEST), []
    for payload, headers in zip(payloads, batch["headers"].to_pylist(), strict=True):
        message = payload
        if headers:
            own = dict(headers)
            channel = own.pop(CHANNEL, "")
            message = Headed(encode_headers(own, channel) + payload)
            bearing(longest, message)  # with its place they must not be too long either
        messages.append(message)
    return messages


def _commit(options: SinkOptions, messages: Sequence[object], number: int | None) -> None:
    staging = Staging(options.path)
    staged = sorted(
        (each for each in messages if isinstance(each, Staged)), key=lambda each: each.partition
    )
    is_new = staging.commit(number, [each.file for each in staged])
    if not is_new:
        log.info("batch %s of %s was committed before", number, options.publisher)
    if options.group:
        start_publisher(options)
    is_told = False
    while staging.waiting_bytes > options.staged_bytes:
        if not is_told:
            is_told = True
            log.warning(
                "%s: %d bytes wait to be published, more than stagedBytes = %d: this batch waits "
                "for `ringcast publish`",
                *(options.path, staging.waiting_bytes, options.staged_bytes),
            )
        time.sleep(LOOK_S)


def start_publisher(options: SinkOptions) -> None:
    """If none works there. It goes on when the query ends, and ends with SIGTERM."""
    try:
        with held_alone(Path(options.path)):
            pass
    except UsageError:
        return
    command = [sys.executable, "-m", "ringcast", "publish", options.path, options.group]
    with open_private(Path(options.path) / "publish.log", old="ab") as file:
        files = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            *[(os.POSIX_SPAWN_DUP2, file.fileno(), number) for number in (1, 2)],
        ]
        os.posix_spawn(command[0], command, os.environ, file_actions=files, setsid=True)


class Writer:
    """What writers of tables and of streams share."""

    kind: str

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        Staging(options.path).claim(options.publisher, self.kind)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _stage(self._options, iterator)

    def commit(
        self, messages: list[WriterCommitMessage | None], batchId: int | None = None
    ) -> None:
        _commit(self._options, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:
        staged = [each.file for each in messages if isinstance(each, Staged)]
        Staging(self._options.path).drop(staged)


class TableWriter(Writer, DataSourceArrowWriter):
    """`df.write`: one batch, the next of its publisher. That of streams: stream_sink.py."""

    kind = "tables"
