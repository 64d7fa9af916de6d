"""Load: slow applications, loss and large messages, in virtual time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ringcast.config import MulticastConfig
from ringcast.sim.cluster import Cluster
from ringcast.sim.options import Incident, Options
from ringcast.sim.runner import run
from ringcast.trace import rows as trace

if TYPE_CHECKING:
    from ringcast.trace.rows import Row

BASE = Options(seed=3, senders=(0,), late_messages=1, warm_ms=20.0)


def of(rows: list[Row], event: str, node: str = "") -> list[Row]:
    return [row for row in rows if row.event == event and (not node or row.node == node)]


def delivered_of_a(rows: list[Row], node: str) -> int:
    return max((row.seqno2 for row in of(rows, trace.DELIVER, node) if row.peer == "A"), default=0)


def test_an_application_at_one_percent_slows_the_sender_and_nothing_grows() -> None:
    """A wants to send 1000 messages per second, C takes 10 per second, for 60 seconds."""
    slow = Incident(fault="F14", at_ms=0, ms=60_000, nodes=(2,), what="takes per s", amount=10.0)
    options = replace(
        BASE, messages=60_000, burst=1000, safety_ms=60_100.0, faults=("F14",), incidents=(slow,)
    )
    result = run(options)
    rows = result.trace.rows
    assert result.failures == ()
    assert not of(rows, trace.DROP_HIGH)
    assert of(rows, trace.SEND_BLOCK, "A")
    assert max(row.hr - row.low for row in of(rows, trace.WIN)) <= 16
    heal = next(row for row in of(rows, trace.PHASE) if row.kind == "heal")
    sent = max(row.seqno2 for row in of(rows[: heal.run_idx], trace.SEND, "A"))
    # Before the slowdown, 600 in a minute, and one window after it has ended.
    assert 590 <= sent <= 60_000
    taken = [row for row in of(rows, trace.DELIVER, "C") if 1e9 < row.mono_ns < 59e9]
    assert 570 <= len(taken) <= 590
    everything = max(row.seqno2 for row in of(rows, trace.SEND, "A"))
    assert [delivered_of_a(rows, node) for node in "ABC"] == [everything] * 3


def test_an_application_that_stops_for_good_is_named_by_the_sender_it_blocks() -> None:
    cluster = Cluster(replace(BASE, messages=500, stopped=2))
    cluster.run()
    assert cluster.recorder.findings == []
    sender = cluster.processes[0]
    reasons = sender.node.explain(sender.clock.read(cluster.clock.now))
    blocked = [reason for reason in reasons if "blocked" in reason]
    assert len(blocked) == 1
    assert "limited by C" in blocked[0]
    stuck = cluster.processes[2].node.explain(cluster.clock.now)
    assert any("ready for this member's application" in reason for reason in stuck)
    assert not of(cluster.recorder.rows, trace.DROP_HIGH)


def goodput(loss: float) -> tuple[int, int, int]:
    """What the slowest member delivered in a fifth of a second; bytes lost and sent again.

    The configuration is the default one; the sender always has more to send.
    """
    config = MulticastConfig()
    options = replace(
        BASE,
        capacities=(config.capacity,) * 3,
        window_bytes=config.window_bytes,
        datagram_bytes=config.datagram_bytes,
        tau_ms=(config.xmit_interval_s * 1000,) * 3,
        ack_delay_ms=config.ack_delay_s * 1000,
        sizes=(1000,),
        messages=500_000,
        burst=500_000,
        delay_ms=1.0,
        delta_ms=1.0,
        safety_ms=200.0,
        faults=("F1",) if loss else (),
        loss=loss,
    )
    rows = run(options).trace.rows
    start, stop = (
        next(row.run_idx for row in of(rows, trace.PHASE) if row.kind == kind)
        for kind in ("safety", "heal")
    )
    busy = rows[start:stop]
    delivered = min(delivered_of_a(busy, node) for node in "ABC")
    lost = sum(row.size for row in of(busy, trace.NET_DROP) if row.kind == "data")
    again = sum(row.size for row in of(busy, trace.TX) if row.kind == "data" and row.again)
    return delivered, lost, again


@pytest.mark.proof
def test_goodput_under_loss() -> None:
    calm, lost, again = goodput(0.0)
    assert (lost, again) == (0, 0)
    for loss, share in ((0.01, 0.7), (0.1, 0.4)):
        delivered, lost, again = goodput(loss)
        figures = (
            f"{loss:.0%} loss: {delivered} of {calm} messages ({delivered / calm:.2f}), "
            f"sent again {again / lost:.2f} × the bytes lost"
        )
        print(figures)  # noqa: T201
        assert delivered >= share * calm, figures
        assert again <= 3 * lost, figures


def test_a_large_message_passes_through_a_small_window() -> None:
    options = replace(
        BASE,
        capacities=(64,) * 3,
        window_bytes=64_000,
        sizes=(1_000_000,),
        messages=1,
        burst=1,
        late_messages=0,
        safety_ms=5000.0,
        faults=("F1",),
        loss=0.1,
    )
    result = run(options)
    assert result.failures == ()
    rows = result.trace.rows
    whole = [row for row in of(rows, trace.DELIVER) if not row.kind]
    assert sorted(row.node for row in whole) == ["A", "B", "C"]
    assert result.summary.deliveries == 3
    assert of(rows, trace.NET_DROP)
    assert max(row.size for row in of(rows, trace.WIN)) <= 64_000
