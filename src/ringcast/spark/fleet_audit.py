"""Simulated runs judged as if their members had recorded them: whatever is found is a false alarm.

A simulation that breaks no rule is written down as real members would have done it: nobody knows
the order of the whole run, nothing is told of faults, and the last rows of a member that crashed
are lost. A delivery stands where the application gets the message: those who take the state begin
behind its cut, and who leaves before it came says so. Every other run is as level "deliveries" has
it.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ringcast.spark.audit import audit
from ringcast.spark.report import RECORDED, VIOLATED
from ringcast.trace.rows import (
    ASIDE,
    BLOCK,
    CRASH,
    DELIVER,
    DROP_WINDOW,
    FREEZE,
    HANDED,
    LEFT_BEHIND,
    OPEN,
    PURGE,
    SEND,
    SHOWN,
    START,
    STATE_LOST,
    STATE_RECEIVED,
    STATE_WAIT,
    STOP,
    VIEW,
    Row,
)
from ringcast.trace.segments import Recording, write_segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ringcast.sim.runner import Result
    from ringcast.trace.rows import MemberKey, OriginKey, ViewKey

    Starts = dict[tuple[OriginKey, ViewKey], int]
    """What each origin had sent when it installed each view."""

DELIVERIES = frozenset(
    {START, STOP, CRASH, FREEZE, VIEW, SHOWN, OPEN, SEND, DELIVER, BLOCK, PURGE}
    | {STATE_LOST, STATE_RECEIVED}
)
"""What members record at that level, and how their traces end."""
NOBODY_NOTICED = "the end of its trace is missing"
"""What is said of a member that crashed so late that no view went on without it."""
TAIL_ROWS_MAX = 50
SEGMENTS = 3


class Alarms(NamedTuple):
    """What the audit of one run found: how often it had a case, and what is wrong."""

    premises: int
    found: list[tuple[str, str]]
    """Which guarantee, and why."""


def audit_as_recorded(result: Result) -> Alarms:
    with tempfile.TemporaryDirectory(prefix="ringcast-fleet-") as name:
        write_as_recorded(Path(name), result)
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


def write_as_recorded(directory: Path, result: Result) -> None:
    seed, facts = result.options.seed, result.trace.facts
    level = "deliveries" if seed % 2 else "full"
    members: dict[MemberKey, list[Row]] = {}
    for row in result.trace.rows:
        if row.node:
            members.setdefault((row.node, row.inc), []).append(row)
    starts = _starts(result.trace.rows)
    for at, ((node, inc), rows) in enumerate(members.items()):
        is_crashed = any(row.event == CRASH for row in rows)
        lost = (seed // 2 + at) % TAIL_ROWS_MAX if is_crashed else 0
        told = [
            row._replace(idx=idx, run_idx=-1)
            for idx, row in enumerate(
                row
                for row in _as_recorded(rows, starts)
                if level == "full" or row.event in DELIVERIES
            )
        ]
        del told[max(1, len(told) - lost) :]
        recording = Recording(
            run_id=f"seed-{seed}",
            node=node,
            inc=inc,
            level=level,
            settings={"purge": facts.purge, "capacity": facts.capacity.get(f"{node}#{inc}", 0)},
        )
        step = len(told) // SEGMENTS + 1
        for start in range(0, len(told), step):
            is_last = start + step >= len(told) and not is_crashed
            write_segment(directory, recording, told[start : start + step], is_last=is_last)


def _starts(rows: Iterable[Row]) -> Starts:
    found: Starts = {}
    sent: defaultdict[MemberKey, dict[OriginKey, int]] = defaultdict(dict)
    for row in rows:
        own = sent[row.node, row.inc]
        if row.event == SEND:
            own[row.own_origin] = row.seqno2
        elif row.event == VIEW:
            found |= {(origin, row.view_key): last for origin, last in own.items()}
    return found


def _as_recorded(rows: list[Row], starts: Starts) -> Iterator[Row]:
    """What a recorder of this member would have written."""
    opened: dict[OriginKey, int] = {}
    is_behind = False
    last = rows[-1]
    if last.event not in (CRASH, STOP):
        rows = [*rows, Row(STOP, last.node, last.inc, 0, mono_ns=last.mono_ns)]
    for row in rows:
        if row.event == OPEN:
            opened[row.origin] = row.seqno
        elif row.event == DROP_WINDOW:
            opened.pop(row.origin, None)
        elif row.event in (STATE_WAIT, STATE_RECEIVED, STATE_LOST):
            is_behind = row.event == STATE_WAIT
        if row.event == STOP and is_behind:
            yield row._replace(event=STATE_LOST, detail=LEFT_BEHIND)
        if row.event == HANDED:
            yield row._replace(event=DELIVER)
        elif row.event != DELIVER or row.detail != ASIDE:
            yield row
        if row.event == STATE_RECEIVED:
            for (peer, inc, stream), offset in opened.items():
                start = starts.get(((peer, inc, stream), row.view_key), 0)
                if start > offset:
                    window = row._replace(event=OPEN, peer=peer, peer_inc=inc, stream=stream)
                    yield window._replace(seqno=start, seqno2=start)
