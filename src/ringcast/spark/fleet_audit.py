"""Simulated runs judged as if their members had recorded them: whatever is found is a false alarm.

A simulation that breaks no rule is written down as real members would have done it: nobody knows
the order of the whole run, nothing is told of faults, whoever lives to the end stops then, and the
last rows of a member that crashed are lost. Every other run is as level "deliveries" has it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ringcast.rules.replay import Entries, is_gone
from ringcast.spark.audit import audit
from ringcast.spark.pairs import PROMPT
from ringcast.spark.report import RECORDED, VIOLATED
from ringcast.trace import rows as trace
from ringcast.trace.footer import Recording
from ringcast.trace.rows import Facts, MemberKey, Row, Trace
from ringcast.trace.segments import write_segment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringcast.sim.runner import Result

DELIVERIES = {
    *(trace.START, trace.STOP, trace.CRASH, trace.FREEZE, trace.VIEW, trace.SHOWN, trace.OPEN),
    *(trace.SEND, trace.DELIVER, trace.HANDED, trace.BLOCK, trace.PURGE, trace.ACCEPT, trace.ORDER),
    *(trace.STATE_LOST, trace.STATE_RECEIVED, trace.STATE_WAIT),
}
"""What members record at that level, and how their traces end."""
NETWORK = {trace.NET_DROP, trace.NET_DUP, trace.NET_CORRUPT}
"""What befalls datagrams on their way."""
NOBODY_NOTICED = "the end of its trace is missing"
"""What is said of a member that crashed so late that no view went on without it."""
TAIL_ROWS_MAX = 50
SEGMENTS = 3
NEVER_NS = 1 << 62


class Alarms(NamedTuple):
    """What the audit of one run found: how often it had a case, and what is wrong."""

    premises: int
    found: list[tuple[str, str]]
    """Which guarantee, and why."""


def audit_as_recorded(result: Result) -> Alarms:
    with tempfile.TemporaryDirectory(prefix="ringcast-fleet-") as name:
        seed = result.options.seed
        write_as_recorded(Path(name), result.trace, seed, is_full=seed % 2 == 0)
        report = audit(None, name)
    found = []
    for verdict in report.verdicts:
        if verdict.id not in RECORDED:
            continue
        if verdict.status == VIOLATED:
            found.append((verdict.id, "; ".join(each.text for each in verdict.violations)))
        odd = [why for why in verdict.incomplete if not why.endswith(NOBODY_NOTICED)]
        found += [(verdict.id, why) for why in odd]
    return Alarms(sum(verdict.premises for verdict in report.verdicts), found)


def _given_up(rows: list[Row], now_ns: int) -> Iterator[Row]:
    """What a member that stops now tells of its connections."""
    entries: dict[MemberKey, Row] = {}
    for row in rows:
        if row.event in Entries.EVENTS and row.kind == "S":
            entries[row.peer_key] = row
    for row in entries.values():
        if not is_gone(row) and row.low < row.hr and row.peer_key != row.key:
            yield row._replace(
                event=trace.UNDELIVERABLE, seqno=row.low + 1, seqno2=row.hr, mono_ns=now_ns
            )


def _terms(facts: Facts) -> dict[str, Any]:
    """As footers tell them. Before the healing a simulated machine is late, and nothing says so."""
    unicast = {
        "xmit_interval_s": facts.tau_ns / 1e9,
        "ack_interval_s": facts.ack_interval_ns / 1e9,
        "expiry_s": facts.expiry_ns / 1e9,
        "close_s": facts.close_ns / 1e9,
        "max_retransmit_s": facts.max_retransmit_ns / 1e9,
    }
    prompt_ns = NEVER_NS if facts.gst_ns is None else facts.gst_ns
    return {"unicast": unicast, PROMPT: prompt_ns}


def write_as_recorded(directory: Path, run: Trace, seed: int, *, is_full: bool) -> None:
    """`seed`: how many of the last rows of who has crashed are lost; 0: none."""
    directory.mkdir(parents=True, exist_ok=True)
    facts, level = run.facts, "full" if is_full else "deliveries"
    members: dict[MemberKey, list[Row]] = {}
    for row in run.rows:
        if row.node and row.event not in NETWORK and (is_full or row.event in DELIVERIES):
            members.setdefault((row.node, row.inc), []).append(row)
    for at, ((node, inc), rows) in enumerate(members.items()):
        is_crashed = any(row.event == trace.CRASH for row in rows)
        lost = (seed // 2 + at) % TAIL_ROWS_MAX if is_crashed and seed else 0
        if rows[-1].event not in (trace.CRASH, trace.STOP):
            rows += _given_up(rows, facts.end_ns)
            rows.append(Row(trace.STOP, node, inc, 0, mono_ns=facts.end_ns))
        rows = [
            row._replace(idx=idx, run_idx=-1)
            for idx, row in enumerate(rows[: max(1, len(rows) - lost)])
        ]
        capacity = facts.capacity.get(f"{node}#{inc}", 0)
        recording = Recording(
            run_id=f"seed-{seed}",
            node=node,
            inc=inc,
            level=level,
            settings={"purge": facts.purge, "capacity": capacity, **_terms(facts)},
        )
        step = len(rows) // SEGMENTS + 1
        for start in range(0, len(rows), step):
            is_last = start + step >= len(rows) and not is_crashed
            write_segment(directory, recording, rows[start : start + step], is_last=is_last)
