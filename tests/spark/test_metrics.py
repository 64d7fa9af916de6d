"""Metrics against rows that were written by hand, and against sums done in plain Python."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ringcast.errors import UsageError
from ringcast.sim.runner import run_seeds
from ringcast.spark import metrics
from ringcast.trace.footer import Recording
from ringcast.trace.rows import Row
from ringcast.trace.segments import Segment, SegmentWriter, segment_paths, write_segment

if TYPE_CHECKING:
    from typing import Any

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "report.md"
MS = 1_000_000
WALL = 1_790_000_000 * 1_000_000_000
"""When the run began; more than a double can count nanoseconds to."""


class Hand:
    """Rows written by hand: who, what, when."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Row]] = {}
        self.boots: dict[str, str] = {}

    def write(self, node: str, event: str, at_ms: float, **columns: Any) -> None:
        own = self.rows.setdefault(node, [])
        if columns.get("peer"):
            columns["peer_inc"] = 7
        at_ns = WALL + int(at_ms * MS)
        own.append(Row(event, node, 7, len(own), mono_ns=at_ns, **columns))

    def read(self, spark: SparkSession, directory: Path) -> DataFrame:
        directory.mkdir(exist_ok=True)
        for node, rows in self.rows.items():
            boot = self.boots.get(node, "one machine")
            recording = Recording(run_id="run", node=node, inc=7, boot_id=boot)
            write_segment(directory, recording, rows)
        return metrics.read_rows(spark, directory)


def expect(found: DataFrame, schema: StructType, rows: list[tuple[Any, ...]]) -> None:
    assert [(item.name, item.dataType) for item in found.schema] == [
        (item.name, item.dataType) for item in schema
    ]
    assert sorted(map(tuple, found.collect()), key=repr) == sorted(rows, key=repr)


def with_keys(schema: StructType, *keys: str) -> StructType:
    from ringcast.spark.metrics import keyed

    return keyed(keys, schema)


def test_throughput_by_window_and_pair(spark: SparkSession, tmp_path: Path) -> None:
    hand = Hand()
    for at_ms, first, last in ((0, 1, 10), (999, 11, 12), (1000, 13, 20)):
        hand.write("b", "deliver", at_ms, peer="a", stream=0, seqno=first, seqno2=last)
    hand.write("b", "deliver", 2500, peer="a", stream=1, seqno=1, seqno2=3)
    # A large message: its fragments are not messages.
    hand.write("a", "deliver", 0, peer="a", stream=0, seqno=1, seqno2=4, kind="fragment")
    hand.write("a", "deliver", 0, peer="a", stream=0, seqno=5, seqno2=5)
    rows = hand.read(spark, tmp_path)
    expect(
        metrics.throughput(rows, 0.5),
        with_keys(metrics.THROUGHPUT, *metrics.PAIR),
        [
            ("run", WALL, "a#7", "b#7", 0, 10, 20.0),
            ("run", WALL + 500 * MS, "a#7", "b#7", 0, 2, 4.0),
            ("run", WALL + 1000 * MS, "a#7", "b#7", 0, 8, 16.0),
            ("run", WALL + 2500 * MS, "a#7", "b#7", 1, 3, 6.0),
            ("run", WALL, "a#7", "a#7", 0, 1, 2.0),
        ],
    )
    expect(
        metrics.throughput(rows, None, ("receiver",)),
        with_keys(metrics.THROUGHPUT, "receiver"),
        [("run", None, "b#7", 23, None), ("run", None, "a#7", 1, None)],
    )


def test_latency_is_sampled_where_both_times_are_exact(spark: SparkSession, tmp_path: Path) -> None:
    hand = Hand()
    hand.write("a", "send", 0, stream=0, seqno=1, seqno2=10)
    hand.write("a", "send", 20, stream=0, seqno=11, seqno2=20)
    hand.write("b", "deliver", 3, peer="a", stream=0, seqno=1, seqno2=4)
    hand.write("b", "deliver", 5, peer="a", stream=0, seqno=5, seqno2=10)  # sent 0 to 10 ms before
    hand.write("b", "deliver", 27, peer="a", stream=0, seqno=11, seqno2=25)
    hand.write("b", "deliver", 40, peer="a", stream=0, seqno=26, seqno2=26)  # its send is missing
    at = ("a#7", "b#7", 0)
    expect(
        metrics.latency_samples(hand.read(spark, tmp_path / "deliveries")),
        metrics.SAMPLES,
        [
            ("run", WALL + 3 * MS, *at, 1, 3 * MS, None),
            ("run", WALL + 27 * MS, *at, 11, 7 * MS, None),
        ],
    )
    # At level "full" every row is one input: all of its messages have its time.
    hand.write("a", "ackmap", 50, stream=0, members=("a#7", "b#7"))
    expect(
        metrics.latency_samples(hand.read(spark, tmp_path / "full")),
        metrics.SAMPLES,
        [
            ("run", WALL + 3 * MS, *at, 1, 3 * MS, None),
            ("run", WALL + 5 * MS, *at, 5, 5 * MS, None),
            ("run", WALL + 27 * MS, *at, 11, 7 * MS, None),
        ],
    )


def test_total_messages_count_from_when_they_are_accepted_until_they_are_taken(
    spark: SparkSession, tmp_path: Path
) -> None:
    hand = Hand()
    hand.write("a", "accept", 1, stream=2, seqno=1, seqno2=10)
    hand.write("b", "order", 5, peer="a", stream=2, seqno=1, seqno2=4, low=7)
    hand.write("b", "tx", 6, stream=2, kind="ack")
    rows = hand.read(spark, tmp_path)
    at = ("a#7", "b#7", 2)
    (sample,) = metrics.latency_samples(rows).collect()
    assert tuple(sample) == ("run", WALL + 5 * MS, *at, 1, 4 * MS, None)
    (rate,) = metrics.throughput(rows, 1.0).collect()
    assert tuple(rate)[2:] == (*at, 4, 4.0)
    (cost,) = metrics.control_cost(rows).collect()
    assert cost.delivered == 4


def test_a_long_send_meets_its_deliveries_in_every_bucket(
    spark: SparkSession, tmp_path: Path
) -> None:
    hand = Hand()
    hand.write("a", "ackmap", 0, stream=0, members=("a#7", "b#7"))
    hand.write("a", "send", 0, stream=0, seqno=1, seqno2=200_000)
    for at_ms, first in ((1, 1), (2, 65_536), (3, 131_073), (4, 200_000)):
        hand.write("b", "deliver", at_ms, peer="a", stream=0, seqno=first, seqno2=first)
    found = metrics.latency_samples(hand.read(spark, tmp_path)).orderBy("seqno").collect()
    assert [row.latency_ns for row in found] == [1 * MS, 2 * MS, 3 * MS, 4 * MS]


def test_clocks_of_different_machines_are_not_compared(spark: SparkSession, tmp_path: Path) -> None:
    hand = Hand()
    hand.boots = {"c": "another machine", "d": ""}
    hand.write("a", "send", 0, stream=0, seqno=1, seqno2=10)
    for receiver, at_ms in (("b", 4), ("c", 6), ("d", 8)):
        hand.write(receiver, "deliver", at_ms, peer="a", stream=0, seqno=1, seqno2=10)
    samples = metrics.latency_samples(hand.read(spark, tmp_path))
    expect(
        metrics.latency(samples, None, ("receiver",)),
        with_keys(metrics.LATENCY, "receiver"),
        [
            ("run", None, "b#7", 1, 4.0, 4.0, 4.0, 4.0, None),
            ("run", None, "c#7", 0, None, None, None, None, metrics.NO_COMMON_CLOCK),
            ("run", None, "d#7", 0, None, None, None, None, metrics.NO_COMMON_CLOCK),
        ],
    )


def test_percentiles_per_window(spark: SparkSession, tmp_path: Path) -> None:
    hand = Hand()
    for number in range(1, 101):
        hand.write("a", "send", 10 * number, stream=0, seqno=number, seqno2=number)
        took_ms = number if number < 50 else 7
        at_ms = 10 * number + took_ms
        hand.write("b", "deliver", at_ms, peer="a", stream=0, seqno=number, seqno2=number)
    samples = metrics.latency_samples(hand.read(spark, tmp_path))
    found = metrics.latency(samples, 10.0, ()).collect()
    took = sorted([*range(1, 50), *[7] * 51])
    assert [(row.samples, row.p50_ms, row.p90_ms, row.p99_ms, row.max_ms) for row in found] == [
        (100, took[49], took[89], took[98], 49.0)
    ]
    by_window: defaultdict[int, list[int]] = defaultdict(list)
    for number in range(1, 101):
        took_ms = number if number < 50 else 7
        by_window[(10 * number + took_ms) // 500].append(took_ms)
    late = metrics.latency(samples, 0.5, ()).collect()
    assert {(row.at_ns - WALL) // (500 * MS): (row.samples, row.max_ms) for row in late} == {
        slot: (len(times), max(times)) for slot, times in by_window.items()
    }


def test_what_was_sent_again_to_whom(spark: SparkSession, tmp_path: Path) -> None:
    hand = Hand()
    hand.write("a", "tx", 0, kind="data", stream=0, seqno=1, seqno2=9, size=900)
    for seqno, last in ((1, 3), (5, 5)):
        hand.write(
            *("a", "tx", 1), peer="b", kind="data", stream=0, seqno=seqno, seqno2=last, size=100,
            again=1,
        )  # fmt: skip
    hand.write("a", "tx", 2, kind="data", stream=0, seqno=7, seqno2=8, size=200, again=1)
    hand.write("b", "tx", 1, peer="a", kind="nack", stream=0, seqno=1, seqno2=5)
    hand.write("c", "tx", 1, peer="a", kind="nack", stream=0, seqno=1, seqno2=5)
    hand.write("a", "rx", 1, peer="c", kind="nack", stream=0, seqno=1, seqno2=5)
    expect(
        metrics.retransmissions(hand.read(spark, tmp_path)),
        metrics.RETRANSMISSIONS,
        [
            ("run", "a#7", "b#7", 2, 4, 200, 1),
            ("run", "a#7", None, 1, 2, 200, 0),
            ("run", "a#7", "c#7", 0, 0, 0, 1),
        ],
    )


def test_what_control_costs(spark: SparkSession, tmp_path: Path) -> None:
    hand = Hand()
    for at_ms in range(3):
        hand.write("b", "tx", at_ms, peer="a", kind="ack", stream=0)
    hand.write("b", "tx", 4, kind="beat")
    hand.write("b", "tx", 5, kind="data", stream=0, seqno=1, seqno2=1)
    hand.write("b", "deliver", 6, peer="a", stream=0, seqno=1, seqno2=12)
    hand.write("a", "tx", 6, kind="beat")  # and delivers nothing
    expect(
        metrics.control_cost(hand.read(spark, tmp_path)),
        metrics.CONTROL_COST,
        [
            ("run", "b#7", "ack", 3, 12, 0.25),
            ("run", "b#7", "beat", 1, 12, 1 / 12),
            ("run", "a#7", "beat", 1, 0, None),
        ],
    )


def test_who_pinned_a_window(spark: SparkSession, tmp_path: Path) -> None:
    """b is slow, then c says nothing for two windows of time, then it has gone."""
    hand = Hand()

    def window(at_ms: int, low: int, high: int, size: int = 0) -> None:
        marks = {"low": low, "hd": high, "hr": high, "cap": 100}
        hand.write("a", "win", at_ms, peer="a", kind="send", stream=0, size=size, **marks)

    def ack(at_ms: int, receiver: str, delivered: int) -> None:
        hand.write("a", "rx", at_ms, peer=receiver, kind="ack", stream=0, hd=delivered)

    hand.write("a", "ackmap", 0, stream=0, members=("a#7", "b#7", "c#7"))
    hand.write("a", "ackmap", 0, stream=1, members=("a#7", "b#7", "c#7"))  # nothing sent on it
    window(10, 0, 40)
    ack(20, "c", 40)
    ack(30, "b", 15)
    window(31, 15, 40)
    ack(110, "b", 40)  # all have all
    window(110, 40, 40)
    window(120, 40, 90, size=1000)
    ack(150, "b", 90)
    hand.write("a", "purge", 400, stream=0, seqno=40, used=1000, limit=1000)
    hand.write("a", "ackmap", 410, stream=0, members=("a#7", "b#7"))
    window(411, 90, 90)
    at = [WALL + 100 * MS * slot for slot in range(5)]
    expect(
        metrics.window_occupancy(hand.read(spark, tmp_path), 0.1),
        metrics.OCCUPANCY,
        [
            ("run", at[0], "a#7", 0, 40, 100, 0.4, 25, "b#7"),
            ("run", at[1], "a#7", 0, 50, 100, 0.5, 50, "c#7"),
            ("run", at[2], "a#7", 0, 50, 100, 0.5, 50, "c#7"),
            ("run", at[3], "a#7", 0, 50, 100, 0.5, 50, "c#7"),
            ("run", at[4], "a#7", 0, 50, 100, 1.0, 0, None),
        ],
    )


def test_without_acks_nobody_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """Where members report, the sender hears no acks: who is behind cannot be told."""
    hand = Hand()
    hand.write("a", "ackmap", 0, stream=0, members=("a#7", "b#7", "c#7"))
    hand.write("a", "win", 1, peer="a", kind="send", stream=0, low=3, hd=9, hr=9, cap=10)
    found = metrics.window_occupancy(hand.read(spark, tmp_path), 1.0).collect()
    assert [(row.used, row.behind, row.limited_by) for row in found] == [(6, 6, None)]


def test_views_and_lives(spark: SparkSession, tmp_path: Path) -> None:
    hand = Hand()
    first = {"view": 1, "view_creator": "a#7", "members": ("a#7", "b#7")}
    second = {"view": 2, "view_creator": "a#7", "members": ("a#7", "c#7")}
    hand.write("a", "start", 0)
    hand.write("a", "view", 1, **first)
    hand.write("b", "view", 3, **first)
    hand.write("a", "tx", 4, kind="complain", peer="a", members=("b#7",), detail="silent")
    hand.write("a", "view", 5, **second)
    hand.write("c", "view", 6, **second)
    hand.write("c", "ackmap", 6, stream=0)
    hand.write("a", "stop", 9)
    rows = hand.read(spark, tmp_path)
    expect(
        metrics.views(rows),
        metrics.VIEWS,
        [
            ("run", WALL + MS, WALL + 3 * MS, 1, "a#7", ["a#7", "b#7"], [], []),
            ("run", WALL + 5 * MS, WALL + 6 * MS, 2, "a#7", ["a#7", "c#7"], ["c#7"], ["b#7"]),
        ],
    )
    expect(
        metrics.suspicions(rows),
        metrics.SUSPICIONS,
        [("run", WALL + 4 * MS, "a#7", "b#7", "silent")],
    )
    one = "one machine"
    expect(
        metrics.members(rows),
        metrics.MEMBERS,
        [
            ("run", "a#7", "", one, WALL, WALL + 9 * MS, "stopped", True, 5),
            ("run", "b#7", "", one, WALL + 3 * MS, WALL + 3 * MS, None, False, 1),
            ("run", "c#7", "", one, WALL + 6 * MS, WALL + 6 * MS, None, True, 2),
        ],
    )
    expect(metrics.incidents(rows), metrics.INCIDENTS, [])


def test_a_clock_that_is_set_does_not_tear_the_run_apart(
    spark: SparkSession, tmp_path: Path
) -> None:
    recording = Recording(run_id="run", node="a", inc=7, boot_id="one machine")
    for first, last, ahead_ns in ((0, 4, WALL), (4, 5, 3600 * 1000 * MS), (5, 9, WALL + 1)):
        writer = SegmentWriter(tmp_path, recording)
        writer.add([Row("start", "a", 7, at, mono_ns=at) for at in range(first, last)], ahead_ns)
        writer.finish()
    rows = metrics.read_rows(spark, tmp_path)
    offsets = {row.machine: row.offset_ns for row in metrics.clocks(rows).collect()}
    assert offsets == {"one machine": WALL}
    steady = metrics.steady(rows, offsets).orderBy("idx").collect()
    assert [row.wall_ns for row in steady] == [WALL + at for at in range(9)]


def test_the_notebook_of_the_docs_runs(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    hand = Hand()
    hand.write("a", "send", 0, stream=0, seqno=1, seqno2=9)
    hand.write("b", "deliver", 2, peer="a", stream=0, seqno=1, seqno2=9)
    hand.read(spark, tmp_path / "traces")
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    exec(program.replace('"traces/"', repr(str(tmp_path / "traces"))), {})
    shown = capsys.readouterr().out
    assert "messages_per_s" in shown
    assert "p99_ms" in shown
    assert "limited_by" in shown


def test_a_window_of_no_length_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    hand = Hand()
    hand.write("a", "start", 0)
    rows = hand.read(spark, tmp_path)
    for window_s in (0.0, -1.0, float("nan")):
        with pytest.raises(UsageError, match="window_s"):
            metrics.throughput(rows, window_s)
    with pytest.raises(UsageError, match="no segments"):
        metrics.read_rows(spark)


def test_names_and_paths_that_spark_would_take_for_something_else(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A file must not be hidden by its member's name, nor a directory be read as a pattern."""
    directory = tmp_path / "a[b]{c,d}"
    directory.mkdir()
    hand = Hand()
    for name in ("<script>", "_x", ".y", "*"):
        hand.write(name, "start", 0)
    found = hand.read(spark, directory).select("node").collect()
    assert sorted(row.node for row in found) == ["*", ".y", "<script>", "_x"]
    hidden = segment_paths(directory)[0].rename(directory / "_hidden.parquet")
    with pytest.raises(UsageError, match="hidden"):
        metrics.read_rows(spark, hidden)


@pytest.mark.proof
def test_simulated_traces(spark: SparkSession, tmp_path: Path) -> None:
    """Against the same sums in plain Python, message by message."""
    (summary,) = run_seeds(range(1, 2), record=tmp_path)
    directory = tmp_path / f"seed-{summary.seed}"
    rows = []
    for path in segment_paths(directory):
        with Segment(path) as segment:
            rows += segment.rows()
    frame = metrics.read_rows(spark, directory)
    delivered: Counter[tuple[str, str]] = Counter()
    sent: dict[tuple[str, int, int], int] = {}
    took: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for row in rows:
        if row.event == "send":
            for seqno in range(row.seqno, row.seqno2 + 1):
                sent[f"{row.node}#{row.inc}", row.stream, seqno] = row.mono_ns
    for row in rows:
        if row.event == "deliver" and row.kind != "fragment":
            pair = f"{row.peer}#{row.peer_inc}", row.member
            delivered[pair] += row.seqno2 - row.seqno + 1
            took[pair].append(row.mono_ns - sent[pair[0], row.stream, row.seqno])
    assert len(delivered) >= 4
    found = metrics.throughput(frame, None, ("sender", "receiver")).collect()
    assert {(row.sender, row.receiver): row.messages for row in found} == delivered
    by_pair: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for row in metrics.latency_samples(frame).collect():
        by_pair[row.sender, row.receiver].append(row.latency_ns)
    assert {pair: sorted(times) for pair, times in by_pair.items()} == {
        pair: sorted(times) for pair, times in took.items()
    }
    again = Counter(
        row.member
        for row in rows
        if row.event == "tx" and row.kind in ("data", "forwarded") and row.again
        for _ in range(row.seqno, row.seqno2 + 1)
    )
    assert again
    sums: Counter[str] = Counter()
    for row in metrics.retransmissions(frame).collect():
        sums[row.sender] += row.messages
    assert +sums == again
    acks = Counter(row.member for row in rows if row.event == "tx" and row.kind == "ack")
    economy = metrics.control_cost(frame).where("kind = 'ack'").collect()
    assert {row.member: row.frames for row in economy} == acks
    crashes = sorted((row.mono_ns, row.member) for row in rows if row.event == "crash")
    told = metrics.incidents(frame).where("what = 'crash'").collect()
    assert sorted((row.at_ns, row.member) for row in told) == crashes
    assert crashes
