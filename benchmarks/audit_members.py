"""The audit of many members with many small segments each: what the driver gets, and what it needs.

Traces are those of a large group at its usual pace: all members send all the time, and each writes
a segment every two seconds, with a row for what each sender's messages did in that time. What is
counted is one audit in a new session, with Spark's own bound on what tasks may return.
"""

from __future__ import annotations

import resource
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.audit_traces import EVENTS, KINDS, Member
from benchmarks.printing import tell
from benchmarks.usage import Usage, result_bytes
from ringcast.errors import RingcastError
from ringcast.spark.audit import audit
from ringcast.spark.session import session
from ringcast.trace.content import BLOCK_MESSAGES, HASHED_EVERY
from ringcast.trace.rows import BLOCK, DELIVER, PURGE, SEND, STOP

if TYPE_CHECKING:
    from benchmarks.audit_traces import Numbers
    from benchmarks.printing import Row

MESSAGES = 100
"""Of each sender, in the time of one segment."""
WRITERS = 32
MASTER = "local[2]"


def bench_members(members: int, segments: int) -> Row:
    """One line of figures."""
    with tempfile.TemporaryDirectory(prefix="ringcast-bench-") as name:
        directory = Path(name)
        tell(f"{members} members, {segments} segments each: writing them …")
        size = write_members(directory, members, segments)
        tell("judging them …")
        before = _own_peak_mb()
        with session("ringcast bench audit", MASTER) as spark:
            with Usage() as usage:
                report = audit(spark, directory)
            returned = result_bytes(spark)
    if report.exit_status:
        raise RingcastError(f"clean traces are not found so: {report.summary}")
    return {
        "members": members,
        "segments": report.segments,
        "rows": report.rows,
        "mb": round(size / 1e6, 1),
        "seconds": round(usage.seconds, 1),
        "cpu_s": round(usage.cpu_s, 1),
        "returned_mb": round(returned / 1e6, 2),
        "driver_mb": round(_own_peak_mb() - before),
        "peak_mb": round(usage.peak_mb),
    }


def _own_peak_mb() -> float:
    """Of this process, which is the driver's Python half."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def write_members(directory: Path, members: int, segments: int) -> int:
    """Their size in bytes. A segment waits for the disk before it is there: so do many at once."""
    size = 0
    with ThreadPoolExecutor(WRITERS) as pool:
        write = partial(_write_member, directory, members, segments)
        for at, written in enumerate(pool.map(write, range(members)), 1):
            size += written
            if at % 20 == 0:
                tell(f"{at} of {members} members …")
    return size


def _write_member(directory: Path, members: int, segments: int, at: int) -> int:
    member = Member(directory, at, 1, settings={"purge": "acks", "capacity": 4096})
    member.install(1, range(members), np.zeros((members, 1), np.int64))
    for number in range(segments):
        member.add(_segment_rows(at, number, members))
        if number + 1 < segments:
            member.finish()
    member.add_row(PURGE, stream=0, seqno=segments * MESSAGES)
    member.add_row(STOP)
    member.finish(is_last=True)
    return sum(path.stat().st_size for path in member.paths)


def _segment_rows(at: int, number: int, members: int) -> dict[str, Numbers]:
    """What is sent, then what is delivered of each sender, then the blocks that end with that."""
    first, last = number * MESSAGES + 1, (number + 1) * MESSAGES
    ended = last // BLOCK_MESSAGES if last // BLOCK_MESSAGES > (first - 1) // BLOCK_MESSAGES else 0
    block = ended - 1 if ended and (ended - 1) % HASHED_EVERY == 0 else -1
    block_last = (block + 1) * BLOCK_MESSAGES
    peers = np.append(at, np.arange(members))
    is_own = np.arange(members + 1) == 0
    runs = {
        "event": np.where(is_own, EVENTS.index(SEND), EVENTS.index(DELIVER)),
        "kind": np.zeros_like(peers),
        "peer": peers,
        "stream": np.zeros_like(peers),
        "seqno": np.full_like(peers, first),
        "seqno2": np.full_like(peers, last),
        "block": np.full_like(peers, -1),
        "block_hash": np.zeros_like(peers),
    }
    if block < 0:
        return runs
    blocks = runs | {
        "event": np.full_like(peers, EVENTS.index(BLOCK)),
        "kind": np.where(is_own, KINDS.index("sent"), KINDS.index("delivered")),
        "seqno": np.full_like(peers, block_last - BLOCK_MESSAGES + 1),
        "seqno2": np.full_like(peers, block_last),
        "block": np.full_like(peers, block),
        "block_hash": block_last * (peers + 7),
    }
    return {name: np.append(runs[name], blocks[name]) for name in runs}
