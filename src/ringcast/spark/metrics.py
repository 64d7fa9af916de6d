"""How a run went, in figures: functions from a DataFrame of trace rows to a small DataFrame.

`read_rows` gives the rows of segments; every other function takes them and aggregates, so that they
go together in a notebook as well as in the report. A member is called by its key, name#incarnation.
`at_ns` is the wall clock at which a window of time begins; in simulations it is virtual.

Level "deliveries" shows throughput, latency, views and members. The others are read off frames and
windows: of members that did not record at level "full" they have no rows, and `members` says who.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from ringcast.errors import UsageError
from ringcast.model import SYSTEM_EPOCH
from ringcast.spark.columns import LONG, member_key, messages, of_event, peer_key, schema, typed
from ringcast.spark.columns import read_rows as read_rows
from ringcast.trace import rows as trace

CLOCKS = schema("text machine", "long offset_ns")
"""How far the wall clock of each machine was ahead of its monotonic one, for most of the time."""


def clocks(rows: DataFrame) -> DataFrame:
    """CLOCKS: one row for each machine, or for each member where machines are not told apart."""
    ahead = F.col("wall_ns") - F.col("mono_ns")
    found = rows.groupBy(_machine().alias("machine")).agg(
        F.percentile_approx(ahead, 0.5, 1000).alias("offset_ns")
    )
    return typed(found, CLOCKS)


def steady(rows: DataFrame, offsets: Mapping[str, int]) -> DataFrame:
    """The same rows with `wall_ns` as it would be had nobody set a clock during the run.

    `offsets` are CLOCKS by machine. A clock that is set in the middle of a run would tear its time
    axis apart.
    """
    if not offsets:
        return rows
    known = F.create_map(*(F.lit(value) for item in offsets.items() for value in item))
    return rows.withColumn("wall_ns", F.col("mono_ns") + known[_machine()])


def _machine() -> Column:
    return F.when(F.col("boot_id") != "", F.col("boot_id")).otherwise(member_key())


def _clock() -> Column:
    """What `mono_ns` counts from: the start of one machine, or a simulation. Null: nobody knows."""
    return F.when(F.col("run_idx") >= 0, "simulation").when(
        F.col("boot_id") != "", F.col("boot_id")
    )


def _of_pairs(delivered: DataFrame) -> DataFrame:
    """Deliveries, with who sent and who took them."""
    return delivered.withColumns({"sender": peer_key(), "receiver": member_key()})


def _nanoseconds(window_s: float) -> int:
    """The length of a window of time; UsageError if it is none."""
    if not 1e-6 <= window_s < 1e9:
        raise UsageError(f"window_s={window_s!r}: write seconds, at least 0.000001, such as 1.0")
    return round(window_s * 1e9)


def _window_start(window_s: float | None, at: str = "wall_ns") -> Column:
    """When the window begins that this time is in; null where the whole run is one."""
    if window_s is None:
        return F.lit(None).cast(LONG)
    # Whole numbers: a double cannot tell today's nanoseconds apart.
    return F.col(at) - F.pmod(F.col(at), F.lit(_nanoseconds(window_s)).cast(LONG))


def keyed(by: Sequence[str], measures: StructType) -> StructType:
    """The run, the time and these keys, then what is measured."""
    keys = (f"{'long' if name == 'stream' else 'text'} {name}" for name in by)
    return StructType([*schema("text run_id", "long at_ns", *keys), *measures])


# Messages: how many came through, and how long they took. Any level shows it.

SENT, DELIVERED = (trace.SEND, trace.ACCEPT), (trace.DELIVER, trace.ORDER)
"""Plain and uniform messages, and total ones."""

PAIR = ("sender", "receiver", "stream")
NO_COMMON_CLOCK = "the sender and the receiver have different clocks"
PERCENTILES = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99}

_SAMPLE_SEQNOS = 1 << 16
"""Sends and deliveries of so many messages of one sender meet in one task: however much a single
sender sends, its messages are spread over all cores."""

THROUGHPUT = schema("long messages", "float messages_per_s")
"""What follows `run_id`, `at_ns` and the keys: messages delivered. Large ones count once."""

SAMPLES = keyed(PAIR, schema("long seqno latency_ns", "text reason"))
"""One message's way from `send` to delivery; null, with the reason, where no clock can tell."""

LATENCY = schema("long samples", "float p50_ms p90_ms p99_ms max_ms", "text reason")
"""What follows `run_id`, `at_ns` and the keys. Without samples there is a reason instead."""


def throughput(
    rows: DataFrame, window_s: float | None = 1.0, by: Sequence[str] = PAIR
) -> DataFrame:
    """Messages delivered per window and pair (or other keys); without a window, in the whole run.

    Columns: `run_id`, `at_ns`, the keys, then THROUGHPUT.
    """
    delivered = _of_pairs(rows.where(of_event(*DELIVERED)))
    found = delivered.groupBy("run_id", _window_start(window_s).alias("at_ns"), *by).agg(
        F.sum(messages()).alias("messages")
    )
    rate = F.lit(None) if window_s is None else F.col("messages") / F.lit(window_s)
    return typed(found.withColumn("messages_per_s", rate), keyed(by, THROUGHPUT))


def latency_samples(rows: DataFrame) -> DataFrame:
    """SAMPLES: how long messages took from their send to a delivery.

    A row has the time of its first message, and at level "deliveries" may gather later ones: so
    sampled are the messages that begin a delivery's row and, at that level, a send's row too.
    """
    # Sends and deliveries in the order of their seqnos: the send that a delivery belongs to is the
    # last one before it. That is one sort, where a join over ranges would try every pair.
    exact = rows.where(of_event(trace.ACKMAP)).select(
        "run_id", member_key().alias("sender"), F.lit(True).alias("is_full")
    )
    sends = rows.where(of_event(*SENT) & (F.col("seqno") <= F.col("seqno2"))).select(
        *("run_id", "stream", "seqno"),
        member_key().alias("sender"),
        F.struct("seqno", "seqno2", "mono_ns", _clock().alias("clock")).alias("send"),
        F.explode(F.sequence(_bucket("seqno"), _bucket("seqno2"))).alias("bucket"),
    )
    deliveries = _of_pairs(rows.where(of_event(*DELIVERED))).select(
        *("run_id", "stream", "seqno", "sender", "receiver"),
        _bucket("seqno").alias("bucket"),
        F.col("wall_ns").alias("at_ns"),
        F.col("mono_ns").alias("taken_ns"),
        _clock().alias("clock"),
    )
    in_order = Window.partitionBy("run_id", "sender", "stream", "bucket").orderBy(
        "seqno", F.col("receiver").asc_nulls_first()
    )
    send = F.last("send", ignorenulls=True).over(in_order)
    matched = (
        sends.unionByName(deliveries, allowMissingColumns=True)
        .withColumn("send", send)
        .where(F.col("receiver").isNotNull() & (F.col("send.seqno2") >= F.col("seqno")))
        .join(F.broadcast(exact.distinct()), ["run_id", "sender"], "left")
        .where((F.col("send.seqno") == F.col("seqno")) | F.col("is_full"))
    )
    is_same_clock = F.coalesce(F.col("clock") == F.col("send.clock"), F.lit(False))
    return typed(
        matched.withColumn(
            "latency_ns", F.when(is_same_clock, F.col("taken_ns") - F.col("send.mono_ns"))
        ).withColumn("reason", F.when(~is_same_clock, NO_COMMON_CLOCK)),
        SAMPLES,
    )


def latency(
    samples: DataFrame, window_s: float | None = 1.0, by: Sequence[str] = PAIR
) -> DataFrame:
    """Percentiles of what `latency_samples` gives, per window and pair (or other keys).

    Columns: `run_id`, `at_ns`, the keys, then LATENCY.
    """
    at = _window_start(window_s, "at_ns")
    measured = F.col("latency_ns") / 1e6
    ranks = list(PERCENTILES.values())
    found = samples.groupBy("run_id", at.alias("at_ns"), *by).agg(
        F.count("latency_ns").alias("samples"),
        F.percentile_approx(measured, ranks, 10_000).alias("percentiles"),
        F.max(measured).alias("max_ms"),
        F.max("reason").alias("reason"),
    )
    for at_rank, name in enumerate(PERCENTILES):
        found = found.withColumn(name, F.col("percentiles")[at_rank])
    found = found.withColumn("reason", F.when(F.col("samples") == 0, F.col("reason")))
    return typed(found, keyed(by, LATENCY))


def _bucket(seqno: str) -> Column:
    return F.shiftright(seqno, _SAMPLE_SEQNOS.bit_length() - 1)


# Frames: what was retransmitted, and what acknowledging costs. Of members at level "full".

_PAYLOAD_KINDS = ("data", "peer_repair", "udata", "statedata", "forwarded")

RETRANSMISSIONS = schema("text run_id sender receiver", "long frames messages bytes requests")
"""What was retransmitted to whom, and how often it was asked for. No receiver: to the whole
group."""

CONTROL_COST = schema(
    "text run_id member kind", "long frames delivered", "float frames_per_message"
)
"""Frames without payload that a member sent, against the messages it delivered meanwhile."""


def retransmissions(rows: DataFrame) -> DataFrame:
    """RETRANSMISSIONS: the hot spots, sender by receiver."""
    is_data = F.col("kind").isin("data", "peer_repair", "forwarded")
    is_again = is_data & (F.col("again") > 0)
    is_request = F.col("kind").isin("nack", "want", "peer_repair_request")
    sent = rows.where(of_event(trace.TX) & (is_again | is_request))
    count = F.when(is_again, F.col("seqno2") - F.col("seqno") + 1)
    found = sent.groupBy(
        "run_id",
        F.when(is_again, member_key()).otherwise(peer_key()).alias("sender"),
        F.when(is_again, peer_key()).otherwise(member_key()).alias("receiver"),
    ).agg(
        F.count(count).alias("frames"),
        F.coalesce(F.sum(count), F.lit(0)).alias("messages"),
        F.coalesce(F.sum(F.when(is_again, F.col("size"))), F.lit(0)).alias("bytes"),
        F.count(F.when(is_request, 1)).alias("requests"),
    )
    return typed(found, RETRANSMISSIONS)


def control_cost(rows: DataFrame) -> DataFrame:
    """CONTROL_COST: what a delivered message costs in frames that carry none."""
    is_system = F.col("epoch") >= SYSTEM_EPOCH
    kind = F.when(is_system, "system").otherwise(F.col("kind")).alias("kind")
    control = (
        rows.where(of_event(trace.TX) & (is_system | ~F.col("kind").isin(*_PAYLOAD_KINDS)))
        .groupBy("run_id", member_key().alias("member"), kind)
        .agg(F.count("*").alias("frames"))
    )
    delivered = (
        rows.where(of_event(*DELIVERED))
        .groupBy("run_id", member_key().alias("member"))
        .agg(F.sum(messages()).alias("delivered"))
    )
    found = control.join(delivered, ["run_id", "member"], "left").fillna(0, ["delivered"])
    per_message = F.try_divide(F.col("frames").cast("double"), F.col("delivered"))
    return typed(found.withColumn("frames_per_message", per_message), CONTROL_COST)


# Send windows: how full they were and who kept them so. Of members at level "full".

_KEY = ("run_id", "sender", "stream")

OCCUPANCY = keyed(
    ("sender", "stream"),
    schema("long used capacity", "float occupancy", "long behind", "text limited_by"),
)
"""The fullest that a send window was, in messages and as a share of what it may hold, of messages
or bytes, whichever is fuller; more than 1 where its bound in bytes was lowered meanwhile. Then, as
the time ends, how far the slowest member is behind and who that is. Null: nothing is outstanding,
or all are equally far."""


def window_occupancy(rows: DataFrame, window_s: float = 1.0) -> DataFrame:
    """OCCUPANCY: how full send windows were, and whose missing ack kept them so.

    A window that is stuck writes no rows, so what was known last holds until something new is.
    """
    at = _window_start(window_s).alias("at_ns")
    is_own = (F.col("event") == trace.WIN) & (F.col("kind") == "send")
    is_told = of_event(trace.PURGE, trace.ACKMAP)
    used = F.col("hr") - F.col("low")
    marks = {"charged": "size", "capacity": "cap", "high": "hr", "low": "low", "own": "hd"}
    sides = (
        rows.where(is_own | is_told)
        .groupBy("run_id", member_key().alias("sender"), "stream", at)
        .agg(
            F.max(F.when(is_own, used)).alias("used"),
            *(F.max(F.when(is_own, F.col(name))).alias(alias) for alias, name in marks.items()),
            F.max(F.when(F.col("limit") > 0, F.col("limit"))).alias("limit"),
            # What is used as the time ends, for the times in which nothing changes.
            F.max_by(
                F.when(is_own, F.struct(used.alias("used"), "size")), F.when(is_own, F.col("idx"))
            ).alias("left"),
            F.max_by("members", F.when(F.col("event") == trace.ACKMAP, F.col("idx"))).alias(
                "members"
            ),
        )
    )
    # Those that never sent have nothing to show.
    bounds = (
        sides.groupBy(*_KEY)
        .agg(F.min("at_ns").alias("first"), F.max("at_ns").alias("last"), F.max("high").alias("n"))
        .where("n > 0")
    )
    times = F.explode(F.sequence("first", "last", F.lit(_nanoseconds(window_s)).cast(LONG)))
    grid = bounds.select(*_KEY, times.alias("at_ns")).join(sides, [*_KEY, "at_ns"], "left")
    since = Window.partitionBy(*_KEY).orderBy("at_ns")
    before = since.rowsBetween(Window.unboundedPreceding, -1)
    lasting = ("capacity", "limit", "high", "low", "own", "members")
    grid = grid.withColumns(
        {name: F.last(name, ignorenulls=True).over(since) for name in lasting}
        | {"carried": F.last("left", ignorenulls=True).over(before)}
    )
    # A window is at least as full in this time as it was when the last one ended.
    grid = grid.withColumns(
        {
            "used": F.greatest("used", "carried.used"),
            "charged": F.greatest("charged", "carried.size"),
        }
    ).where(F.col("used").isNotNull())
    by_count = F.col("used") / F.col("capacity")
    by_bytes = F.try_divide(F.col("charged").cast("double"), F.col("limit"))  # null: not bounded
    known = grid.withColumn("occupancy", F.greatest(by_count, by_bytes))
    slowest = _slowest(rows, known, at)
    return typed(known.join(slowest, [*_KEY, "at_ns"], "left"), OCCUPANCY)


def _slowest(rows: DataFrame, grid: DataFrame, at: Column) -> DataFrame:
    """Of each time in the grid: who of the members that count is furthest behind, and how far."""
    acks = (
        rows.where((F.col("event") == trace.RX) & (F.col("kind") == "ack"))
        .groupBy("run_id", member_key().alias("sender"), "stream", peer_key().alias("receiver"), at)
        .agg(F.max("hd").alias("acked"))
    )
    waiting = grid.select(
        *(*_KEY, "at_ns", "high", "low", "own"), F.explode("members").alias("receiver")
    ).join(acks, [*_KEY, "at_ns", "receiver"], "left")
    since = Window.partitionBy(*_KEY, "receiver").orderBy("at_ns")
    is_other = F.col("receiver") != F.col("sender")
    told = F.when(is_other, F.last("acked", ignorenulls=True).over(since)).otherwise(F.col("own"))
    # Who has said nothing yet counts from where the window begins. Where members report instead,
    # nobody says anything to the sender, and nobody is named.
    waiting = waiting.withColumns(
        {"told": told, "acked": F.coalesce(told, F.col("low")), "is_other": is_other}
    )
    found = waiting.groupBy(*_KEY, "at_ns").agg(
        F.min(F.struct("acked", "receiver")).alias("least"),
        F.max("acked").alias("most"),
        F.max("high").alias("high"),
        F.count(F.when(F.col("is_other"), F.col("told"))).alias("acks"),
    )
    acked = F.least("least.acked", "high")
    is_limited = (acked < F.col("high")) & (acked < F.col("most")) & (F.col("acks") > 0)
    return found.select(
        *_KEY,
        "at_ns",
        (F.col("high") - acked).alias("behind"),
        F.when(is_limited, F.col("least.receiver")).alias("limited_by"),
    )


# Members: their lives, their views, and what befell them

VIEWS = schema(
    "text run_id", "long at_ns settled_ns view", "text creator", "texts members joined departed"
)
"""When the first and the last of its members installed a view, and what it changed for those who
had one before."""

SUSPICIONS = schema("text run_id", "long at_ns", "text by suspect why")
"""Who told the coordinator that somebody is silent or slow. The coordinator's own suspicions show
as views only; who is suspected is null in traces that do not say."""

MEMBERS = schema(
    "text run_id member host clock",
    "long started_ns last_ns",
    "text end",
    "flag is_full",
    "long rows",
)
"""Each member's recorded life. `end` is `stopped`, `crashed` (simulations), or null: its trace just
ends. Latency is measured between members of one `clock`."""

INCIDENTS = schema("text run_id", "long at_ns", "text member what")
"""What befell a member, as simulations write it down: `crash`, `pause`, `resume`."""


def views(rows: DataFrame) -> DataFrame:
    """VIEWS: each view once, with what it changed."""
    own = Window.partitionBy("run_id", "node", "inc").orderBy("idx")
    installed = rows.where(of_event(trace.VIEW)).withColumn("before", F.lag("members").over(own))
    found = installed.groupBy("run_id", F.col("view"), F.col("view_creator").alias("creator")).agg(
        F.min("wall_ns").alias("at_ns"),
        F.max("wall_ns").alias("settled_ns"),
        F.min("members").alias("members"),
        _all_of(F.array_except("members", "before")).alias("joined"),
        _all_of(F.array_except("before", "members")).alias("departed"),
    )
    return typed(found, VIEWS)


def _all_of(lists: Column) -> Column:
    return F.array_sort(F.array_distinct(F.flatten(F.collect_set(lists))))


def suspicions(rows: DataFrame) -> DataFrame:
    """SUSPICIONS: who told whom to go on without somebody."""
    told = rows.where(of_event(trace.TX) & (F.col("kind") == "complain"))
    found = told.select(
        "run_id",
        F.col("wall_ns").alias("at_ns"),
        member_key().alias("by"),
        F.get("members", F.lit(0)).alias("suspect"),
        F.when(F.col("detail") != "", F.col("detail")).alias("why"),
    )
    return typed(found, SUSPICIONS)


def members(rows: DataFrame) -> DataFrame:
    """MEMBERS: each member's life, as far as it is recorded."""
    event = F.col("event")
    end = F.max(F.when(event == trace.STOP, "stopped").when(event == trace.CRASH, "crashed"))
    found = (
        rows.where(F.col("node") != "")
        .groupBy("run_id", member_key().alias("member"))
        .agg(
            F.max("host").alias("host"),
            F.max(_clock()).alias("clock"),
            F.min("wall_ns").alias("started_ns"),
            F.max("wall_ns").alias("last_ns"),
            end.alias("end"),
            F.max(event.isin(trace.ACKMAP, trace.TX)).alias("is_full"),
            F.count("*").alias("rows"),
        )
    )
    return typed(found, MEMBERS)


def incidents(rows: DataFrame) -> DataFrame:
    """INCIDENTS: crashes and pauses that a simulation made."""
    found = rows.where(of_event(trace.CRASH, trace.PAUSE, trace.RESUME)).select(
        "run_id",
        F.col("wall_ns").alias("at_ns"),
        member_key().alias("member"),
        F.col("event").alias("what"),
    )
    return typed(found, INCIDENTS)
