"""Single runs of groups with the uniform stream, and what it costs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ringcast.model import Stream
from ringcast.sim.cluster import Cluster
from ringcast.sim.crowd import uniform_cost
from ringcast.sim.options import Incident, Options
from ringcast.sim.runner import run
from ringcast.trace import rows as trace

if TYPE_CHECKING:
    from ringcast.trace.rows import Row


def quiet(**changes: object) -> Options:
    """Three nodes that start at once, and no faults."""
    options = Options(seed=1, protocol="uniform", uniform=1.0, warm_ms=300.0, messages=20)
    return replace(options, **changes)  # type: ignore[arg-type]


def of_uniform(rows: list[Row], event: str) -> list[Row]:
    return [row for row in rows if row.event == event and row.stream == Stream.UNIFORM]


def test_without_faults_every_message_is_delivered_by_everybody() -> None:
    result = run(quiet(late_messages=2))
    assert result.failures == ()
    taken = of_uniform(result.trace.rows, trace.DELIVER)
    assert sum(row.seqno2 - row.seqno + 1 for row in taken) == 3 * 3 * (20 + 2)


def test_who_is_alone_takes_a_large_message_in_the_instant_in_which_it_is_sent() -> None:
    """Its window has room for two fragments of seven: taking these makes room for the next."""
    alone = quiet(nodes=1, initial=1, capacities=(2,), tau_ms=(100.0,), senders=(0,))
    result = run(replace(alone, sizes=(7 * alone.datagram_bytes,), messages=1, late_messages=0))
    sent = of_uniform(result.trace.rows, trace.SEND)
    taken = of_uniform(result.trace.rows, trace.DELIVER)
    assert result.summary.deliveries == 1
    assert sent[-1].seqno2 == taken[-1].seqno2 > 6
    assert len({row.mono_ns for row in (*sent, *taken)}) == 1


def test_who_is_out_in_the_middle_of_taking_has_held_what_it_committed() -> None:
    """It leaves once the last fragment has found room, which taking the others makes."""
    alone = quiet(nodes=1, initial=1, capacities=(2,), tau_ms=(100.0,), senders=(0,))
    cluster = Cluster(alone)
    member = cluster.boot(0).resident
    now = 0
    member.call(member.node.start, now)
    while member.node.view is None:
        now = member.node.next_timeout() or now
        member.handle_timeout(now)
    assert member.send([bytes(3 * alone.datagram_bytes)], now, stream=Stream.UNIFORM) == 1
    member.leave(now)
    while not member.is_closed:
        assert member.take(1, now)
    member.take_datagrams()
    rows = cluster.recorder.rows
    commits = [row for row in of_uniform(rows, trace.TX) if row.kind == "commit"]
    windows = of_uniform(rows[: commits[-1].run_idx], trace.WIN)
    assert (
        windows[-1].hd == windows[-1].received == commits[-1].seqno == 4
    )  # its own it gets in time
    taken = [(row.seqno, row.seqno2) for row in of_uniform(rows, trace.DELIVER)]
    assert taken == [(1, 1), (2, 2), (3, 3), (4, 4)]
    sent, last = of_uniform(rows, trace.SEND)[-1], of_uniform(rows, trace.DELIVER)[-1]
    assert sent.seqno2 == 4
    assert sent.run_idx < last.run_idx


def crash_after(copies: int) -> tuple[int, int]:
    """A dies after so many copies of what it sends: how many of its messages B and C deliver."""
    crash = Incident(fault="F10", at_ms=100.0, nodes=(0,), what="sending", amount=copies)
    options = quiet(senders=(), faults=("F10",), incidents=(crash,), safety_ms=1500.0)
    result = run(options)
    assert result.failures == ()
    taken = [row for row in of_uniform(result.trace.rows, trace.DELIVER) if row.peer == "A"]
    counts = [max([row.seqno2 for row in taken if row.node == node], default=0) for node in "BC"]
    return counts[0], counts[1]


def test_whoever_dies_while_it_sends_is_heard_by_all_or_by_none() -> None:
    assert crash_after(0) == (0, 0)
    assert crash_after(1) == (3, 3)  # one has it, and hands it on
    assert crash_after(2) == (3, 3)  # both have it, and no commit
    assert crash_after(3) == (3, 3)  # and one has heard of the commit


def test_a_small_window_takes_what_only_a_larger_one_holds() -> None:
    """Where B and C have not heard the same of A, B finds room for what only C has."""
    crash = Incident(fault="F10", at_ms=500.0, nodes=(0,))
    options = quiet(
        capacities=(64, 2, 64),
        senders=(0,),
        messages=300,
        burst=300,
        faults=("F10", "F14"),
        incidents=(Incident(fault="F14", at_ms=10.0, ms=400.0, nodes=(1,)), crash),
        safety_ms=1500.0,
    )
    result = run(options)
    assert result.failures == ()
    frozen = next(r for r in result.trace.rows if r.event == trace.FREEZE and r.mono_ns > 800e6)
    before = of_uniform(result.trace.rows[: frozen.run_idx], trace.WIN)
    received = {row.node: row.received for row in before if row.peer == "A"}
    assert received["C"] - received["B"] > 2
    delivered = of_uniform(result.trace.rows, trace.DELIVER)
    taken = {row.node: row.seqno2 for row in delivered if row.peer == "A"}
    assert taken["B"] == taken["C"] >= received["C"]


# What it costs


def test_control_frames_are_few() -> None:
    per_message, frames = uniform_cost()
    assert frames["Nack"] == 0
    assert min(frames["Commit"], frames["Ack"]) > 0
    assert per_message <= 0.2
