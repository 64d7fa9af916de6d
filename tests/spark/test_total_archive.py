"""Archives hold total messages as any others: each once, with its position."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from cluster_traces import members

from ringcast.events import Delivered
from ringcast.model import Headed, Run, Stream, View, ViewId
from ringcast.spark.messages import SCHEMA, read_messages, tasks_of
from ringcast.spark.source import register
from ringcast.trace.archive import Index
from ringcast.trace.compaction import compact
from ringcast.trace.recorder import STRETCH_NS, Recorder
from ringcast.trace.rows import ORDER
from ringcast.trace.segments import Segment
from ringcast.trace.starts import taken_before
from ringcast.wire.headers import encode_headers
from support.archives import WEB, WEB_TOTAL, Kept, write_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from ringcast.model import Member
    from ringcast.trace.rows import OriginKey

A, B, KEEPER, OTHER = members("abko")
VIEW = View(ViewId(A, 1), (A, B, KEEPER, OTHER))


def total(
    sender: Member, first: int, payloads: Sequence[bytes], position: int, **said: bool
) -> Any:
    return Delivered(sender, Run(Stream.TOTAL, first, [*payloads]), VIEW.id, 0, position, **said)


def plain(sender: Member, first: int, *payloads: bytes) -> Delivered:
    return Delivered(sender, Run(Stream.FIFO, first, [*payloads]), VIEW.id)


TAKEN = (
    total(A, 1, [b"a1", b"a2"], 1),
    plain(B, 1, b"plain"),
    total(B, 1, [b"b1"], 3),
    total(A, 3, [b"a3", b"a4", b"a5"], 4),
    total(B, 2, [b"b2"], 7, carried=True),
)


def archive(directory: Path, keeper: Member, *taken: Delivered) -> None:
    """What a member keeps of these, each in a row of its own."""
    recorder = Recorder(directory, "run", keeper, payloads=True)
    ticks = count(2 * STRETCH_NS, 2 * STRETCH_NS)
    recorder.start(next(ticks))
    for event in taken:
        now = next(ticks)
        (recorder.ordered if event.position else recorder.delivered)(event, now)
        recorder.tick(now + STRETCH_NS + 1)
    recorder.stopped(next(ticks))
    assert recorder.close(30.0)


def read(directory: Path, *names: str, firsts: dict[OriginKey, int] | None = None) -> list[Any]:
    """All that is there, or what is behind these, by these columns."""
    index = Index(directory)
    index.refresh()
    plan = index.pieces(firsts or {}, 1e12)
    assert not plan.gaps
    files = [file for task in tasks_of(plan.pieces) for file in task]
    columns = pa.schema([SCHEMA.field(name) for name in names])
    batches = read_messages(str(directory), files, columns=columns)
    return sorted(tuple(row.values()) for batch in batches for row in batch.to_pylist())


ALL = [
    (1, b"a1"),
    (2, b"a2"),
    (3, b"b1"),
    (4, b"a3"),
    (5, b"a4"),
    (6, b"a5"),
    (7, b"b2"),
]


def test_each_total_message_is_held_once_with_its_position(tmp_path: Path) -> None:
    archive(tmp_path, KEEPER, *TAKEN)
    archive(tmp_path, OTHER, *TAKEN)
    found = read(tmp_path, "stream", "position", "payload")
    assert found == [("fifo", None, b"plain"), *(("total", *each) for each in ALL)]
    found = read(tmp_path, "sender", "seqno", "view")
    numbers = [("a", 1), ("a", 2), ("a", 3), ("a", 4), ("a", 5), ("b", 1), ("b", 1), ("b", 2)]
    assert found == [(*each, 1) for each in numbers]


def test_positions_are_right_behind_the_middle_of_a_row(tmp_path: Path) -> None:
    archive(tmp_path, KEEPER, *TAKEN)
    behind: dict[OriginKey, int] = {("a", A.incarnation, 2): 3, ("b", B.incarnation, 2): 2}
    found = read(tmp_path, "position", "payload", firsts={**behind, ("b", B.incarnation, 0): 1})
    assert found == [(5, b"a4"), (6, b"a5")]


def test_what_is_taken_again_in_another_history_is_kept_once(tmp_path: Path) -> None:
    again = total(B, 1, [b"b1", b"b2"], 20, seen=True)
    archive(tmp_path, KEEPER, *TAKEN, again, total(B, 3, [b"b3"], 22))
    found = [each for each in read(tmp_path, "stream", "position", "payload") if each[1]]
    assert found == [("total", *each) for each in [*ALL, (22, b"b3")]]


def test_a_start_by_time_minds_only_what_was_new_then(tmp_path: Path) -> None:
    again = total(B, 1, [b"b1", b"b2"], 20, seen=True)  # of what another archive has lost
    archive(tmp_path, KEEPER, total(A, 1, [b"a1"], 1), again, total(A, 2, [b"a2"], 22))
    index = Index(tmp_path)
    index.refresh()
    (file,) = index.files.values()
    with Segment(file.path) as segment:
        times = segment.group(0, ["wall_ns", "event"]).to_pydict()
    first, *_ = (at for at, event in zip(*times.values(), strict=True) if event == ORDER)
    assert taken_before(index, first + 1) == {("a", A.incarnation, 2): 1}


def test_headers_are_split_off_and_positions_stay(tmp_path: Path) -> None:
    headed = Headed(encode_headers({"trace": "7"}) + b"payload")
    archive(tmp_path, KEEPER, total(A, 1, [headed], 1), total(A, 2, [b"plain"], 2))
    assert read(tmp_path, "position", "payload") == [(1, b"payload"), (2, b"plain")]


def test_merged_files_have_the_same(tmp_path: Path) -> None:
    first = write_file(tmp_path, "one", 0, [Kept(WEB_TOTAL, 1, 7, position=10), Kept(WEB, 1, 4)])
    more = [Kept(WEB_TOTAL, 8, 9, position=30)]
    write_file(tmp_path, "one", 6, more, before=first, is_last=True)
    before = read(tmp_path, "stream", "seqno", "position")
    assert before[4:] == [
        *(("total", seqno, seqno + 9) for seqno in range(1, 8)),
        ("total", 8, 30),
        ("total", 9, 31),
    ]
    assert len(compact(tmp_path).made) == 1
    assert read(tmp_path, "stream", "seqno", "position") == before


def test_a_table_on_spark_has_the_order(spark: SparkSession, tmp_path: Path) -> None:
    archive(tmp_path, KEEPER, *TAKEN)
    archive(tmp_path, OTHER, *TAKEN)
    register(spark)
    messages = spark.read.format("ringcast").load(str(tmp_path))
    ordered = messages.where("stream = 'total'").orderBy("view", "position")
    assert [(row.position, bytes(row.payload)) for row in ordered.collect()] == ALL
    (plain,) = messages.where("stream = 'fifo'").collect()
    assert plain.position is None
    assert messages.columns[-1] == "position"
