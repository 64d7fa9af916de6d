"""What may be said of a table or a stream: `.option(…)`, `.schema(…)` and filters, checked.

What is chosen by them is read, and nothing else is: files, then row groups, then rows. Filters do
what the options of the same meaning do; whoever says both gets what both choose.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from ringcast.errors import UsageError
from ringcast.spark.messages import COLUMNS, SCHEMA
from ringcast.trace.disks import disk_at, without_secrets
from ringcast.trace.held import ALL, STREAMS, Position, Range

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql.types import StructType

    from ringcast.trace.archive import Piece
    from ringcast.trace.rows import OriginKey

GAP_WAIT_S = 30.0
"""By default; archives that run make their files visible every two seconds."""
EARLIEST, LATEST = "earliest", "latest"

_TABLE = (
    *("path", "sender", "stream", "firstSeqno", "lastSeqno"),
    *("deliveredSince", "deliveredBefore", "failOnGap"),
)
_STREAM = (
    *("query", "startingOffsets", "maxMessagesPerTrigger", "maxFilesPerTrigger"),
    "gapWaitSeconds",
)
_A_TIME = "a time with its zone, as in 2026-11-19T12:00:00Z"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which messages."""

    senders: frozenset[str] | None = None
    streams: frozenset[str] | None = None
    """Whose messages, and which; None: all."""
    seqnos: Range = ALL
    times: Range = ALL
    """When they were taken, in nanoseconds since the epoch."""

    def wants(self, origin: OriginKey) -> bool:
        sender, _, stream = origin
        return (self.senders is None or sender in self.senders) and (
            self.streams is None or STREAMS[stream] in self.streams
        )

    def of(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """What is to be read of these: none of a file with nothing of the time."""
        for piece in pieces:
            wanted = self.seqnos.within(Range(piece.first, piece.last))
            times = self.times if piece.file.times is None else piece.file.times.within(self.times)
            if wanted.length > 0 and times.length > 0 and self.wants(piece.origin):
                yield piece._replace(first=wanted.first, last=wanted.last)

    def only(self, other: Chosen) -> Chosen:
        """What both choose."""
        return Chosen(
            _both(self.senders, other.senders),
            _both(self.streams, other.streams),
            self.seqnos.within(other.seqnos),
            self.times.within(other.times),
        )


def _both(some: frozenset[str] | None, others: frozenset[str] | None) -> frozenset[str] | None:
    return others if some is None else some if others is None else some & others


@dataclass(frozen=True, slots=True)
class Options:
    """All that may be said, checked."""

    path: str
    columns: pa.Schema = SCHEMA
    chosen: Chosen = Chosen()
    query: str = ""
    start: str | datetime | Position = EARLIEST
    max_messages: int | None = None
    max_files: int | None = None
    gap_wait_s: float = GAP_WAIT_S
    fail_on_gap: bool = True

    @classmethod
    def parse(
        cls, options: Mapping[str, str], *, is_stream: bool, columns: StructType | None = None
    ) -> Options:
        names = _TABLE + _STREAM if is_stream else _TABLE
        unknown = {name.lower() for name in options} - {name.lower() for name in names}
        if unknown:
            raise UsageError(f"no option {', '.join(sorted(unknown))}; there are {list(names)}")
        if "path" not in options:
            raise UsageError(
                "where is the archive? .load(its directory); Spark passes on no options of a table "
                "that names its columns: CREATE TABLE … without columns"
            )
        is_local = disk_at(options["path"])[0].is_local
        if is_stream and is_local and "query" not in options:
            raise UsageError(
                "a stream needs a name that stays the same when it is started again, so that what "
                'it has not read is not removed: .option("query", "revenue")'
            )
        if "query" in options and not is_local:
            raise UsageError(
                "query is for archives on a disk of this machine: nothing can be noted in "
                f"{without_secrets(options['path'])}, so leave it out"
            )
        messages = _positive(options, "maxMessagesPerTrigger")
        files = _positive(options, "maxFilesPerTrigger")
        if messages and files:
            raise UsageError("maxMessagesPerTrigger or maxFilesPerTrigger, not both")
        return cls(
            path=options["path"],
            columns=SCHEMA if columns is None else _columns(columns),
            chosen=_chosen(options),
            query=options.get("query", ""),
            start=_start(options.get("startingOffsets", EARLIEST)),
            max_messages=messages,
            max_files=files,
            gap_wait_s=_seconds(options.get("gapWaitSeconds", str(GAP_WAIT_S))),
            fail_on_gap=_flag(options.get("failOnGap", "true")),
        )

    def only(self, other: Chosen) -> Options:
        return replace(self, chosen=self.chosen.only(other))


def nanoseconds(time: datetime) -> int:
    """Since the epoch, as far as 64 bits go."""
    since = (time - _EPOCH) // timedelta(microseconds=1) * 1000
    return max(ALL.first, min(since, ALL.last))


def _chosen(options: Mapping[str, str]) -> Chosen:
    streams = _names(options, "stream")
    if streams is not None and not streams <= set(STREAMS.values()):
        raise _wrong("stream", " or ".join(STREAMS.values()), options["stream"])
    seqnos = Range(
        _positive(options, "firstSeqno") or ALL.first, _positive(options, "lastSeqno") or ALL.last
    )
    since, before = _time(options, "deliveredSince"), _time(options, "deliveredBefore")
    times = Range(
        ALL.first if since is None else nanoseconds(since),
        ALL.last if before is None else nanoseconds(before) - 1,
    )
    return Chosen(_names(options, "sender"), streams, seqnos, times)


def _columns(wanted: StructType) -> pa.Schema:
    """These columns, as messages have them; those that may be null by Spark's schema may be."""
    if not wanted.fields:
        raise UsageError(f"no column is asked for; there are {list(COLUMNS)}")
    for field in wanted.fields:
        if field.name not in COLUMNS:
            raise UsageError(f"no column {field.name!r}; there are {list(COLUMNS)}")
        kind, known = field.dataType.simpleString(), COLUMNS[field.name][0]
        if kind != known:
            raise UsageError(f"{field.name} is {known.upper()}, not {kind.upper()}")
    return pa.schema(
        [SCHEMA.field(field.name).with_nullable(field.nullable) for field in wanted.fields]
    )


def _start(text: str) -> str | datetime | Position:
    text = text.strip()
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    try:
        if text.startswith("{"):
            return Position.from_dict(json.loads(text))
        return _parse_time(text)
    except (ValueError, UsageError) as error:
        right = f"earliest, latest, {_A_TIME}, or an offset as a stream's progress shows it"
        raise _wrong("startingOffsets", right, text) from error


def _time(options: Mapping[str, str], name: str) -> datetime | None:
    if name not in options:
        return None
    try:
        return _parse_time(options[name])
    except ValueError as error:
        raise _wrong(name, _A_TIME, options[name]) from error


def _parse_time(text: str) -> datetime:
    """ValueError: it is none, or does not say its zone."""
    time = datetime.fromisoformat(text.strip())
    if time.tzinfo is None:
        raise ValueError("no zone")
    return time


def _wrong(name: str, right: str, text: str) -> UsageError:
    return UsageError(f"{name} is {right}, not {text!r}")


def _names(options: Mapping[str, str], what: str) -> frozenset[str] | None:
    if what not in options:
        return None
    names = frozenset(name.strip() for name in options[what].split(","))
    if "" in names:
        raise _wrong(what, "a name, or several with commas between", options[what])
    return names


def _positive(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise _wrong(name, "a number of at least 1", text)
    return int(text)


def _seconds(text: str) -> float:
    try:
        if 0 <= float(text) < float("inf"):
            return float(text)
    except ValueError:
        pass
    raise _wrong("gapWaitSeconds", "a number of at least 0", text)


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise _wrong("failOnGap", "true or false", text)
    return text.lower() == "true"
