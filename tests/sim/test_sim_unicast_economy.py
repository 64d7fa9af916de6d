"""What unicast costs: acks of a quiet stream, and the questions of who has lost its place."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ringcast.rules.table import audit
from ringcast.sim.cluster import Cluster
from ringcast.sim.options import Incident, Options
from ringcast.trace import rows as trace

if TYPE_CHECKING:
    from ringcast.trace.rows import Row

BATCH = 50
BATCHES = 200
PAUSE_MS = 5.0

BASE = Options(
    seed=1,
    protocol="unicast",
    nodes=2,
    initial=2,
    capacities=(4096, 4096),
    window_bytes=4 << 20,
    datagram_bytes=60_000,
    tau_ms=(100.0, 100.0),
    senders=(),
    pairs=((0, 1),),
    messages=0,
    late_messages=0,
    warm_ms=20.0,
    safety_ms=BATCHES * PAUSE_MS + 500,
)


def run_batches(options: Options) -> list[Row]:
    """The rows of a run in which A sends to B in even batches."""
    cluster = Cluster(options)
    for number in range(BATCHES):
        cluster.clock.after(20 + number * PAUSE_MS, send_batch, cluster)
    cluster.run()
    assert cluster.recorder.findings == []
    assert [verdict.id for verdict in audit(cluster.trace) if verdict.violations] == []
    rows = cluster.recorder.rows
    taken = sum(row.seqno2 - row.seqno + 1 for row in rows if row.event == trace.UNICAST_DELIVER)
    assert taken == BATCH * BATCHES
    return rows


def send_batch(cluster: Cluster) -> None:
    sender = cluster.process_in(0)
    assert sender is not None
    sender.resident.want(1, BATCH)


def sent(rows: list[Row], kind: str) -> list[Row]:
    return [row for row in rows if row.event == trace.TX and row.kind == kind]


def test_acks_are_few_and_nothing_is_sent_twice() -> None:
    for interval_ms in (2.0, 20.0, 50.0):
        rows = run_batches(replace(BASE, ack_delay_ms=interval_ms))
        acks = sent(rows, "uack")
        data = sent(rows, "udata")
        busy_ms = (acks[-1].mono_ns - data[0].mono_ns) / 1e6
        most = min(BATCHES, busy_ms / interval_ms + 1)
        figures = f"ack interval {interval_ms:g} ms: {len(acks)} acks for {BATCHES} batches"
        print(f"{figures} of {BATCH} in {busy_ms:.0f} ms, bound {most:.0f}")  # noqa: T201
        assert 0 < len(acks) <= most, figures
        assert not any(row.again for row in data)
        assert sent(rows, "unack") == []


def test_who_has_forgotten_a_connection_asks_now_and_then_and_not_for_each_packet() -> None:
    """B forgets where A's messages stand, and is not heard for a while; A notices nothing.

    Before there was SYNC a receiver asked for the first seqno at each packet that it could not
    place: so many requests the same run would have seen.
    """
    incidents = (
        Incident(fault="F8", at_ms=95, ms=300.0, nodes=(1,)),
        Incident(fault="F18", at_ms=100, nodes=(1, 0), what="drop"),
    )
    options = replace(BASE, faults=("F8", "F18"), incidents=incidents, ack_delay_ms=2.0)
    rows = run_batches(options)
    strays = 0
    windows = 0
    has_window = True
    for row in (row for row in rows if row.node == "B"):
        if row.event == trace.CONN and row.kind == "R":
            has_window = not row.detail.endswith("NONE")
            windows += has_window and row.detail.startswith("NONE")
        elif row.event == trace.RX and row.kind == "udata":
            strays += not has_window
    questions, answers = len(sent(rows, "sync")), len(sent(rows, "sync_ok"))
    print(  # noqa: T201
        f"a forgotten connection: {questions} SYNC and {answers} SYNC-OK; get-first-seqno would "
        f"have sent {strays} requests"
    )
    assert windows == 2, "the first one, and the one after it was forgotten"
    assert 1 <= questions <= 5
    assert 1 <= answers <= 2
    assert strays >= 10 * questions
