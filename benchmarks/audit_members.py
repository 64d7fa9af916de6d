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
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from benchmarks.audit_traces import batch_of
from benchmarks.printing import tell
from benchmarks.usage import Usage, result_bytes
from ringcast.errors import RingcastError
from ringcast.spark.audit import audit
from ringcast.spark.session import session
from ringcast.trace.content import BLOCK_MESSAGES, HASHED_EVERY
from ringcast.trace.rows import BLOCK, DELIVER, OPEN, PURGE, SEND, START, STOP, VIEW, Row
from ringcast.trace.segments import Recording, SegmentWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.printing import Row as Report

MESSAGES = 100
"""Of each sender, in the time of one segment."""
WRITERS = 32
MASTER = "local[2]"


def bench_members(members: int, segments: int) -> Report:
    """One line of figures."""
    with tempfile.TemporaryDirectory(prefix="ringcast-bench-") as name:
        directory = Path(name)
        tell(f"{members} members, {segments} segments each: writing them …")
        size = write_members(directory, members, segments)
        tell("judging them …")
        before = _own_peak_mb()
        spark = session("ringcast bench audit", MASTER)
        try:
            with Usage() as usage:
                report = audit(spark, directory)
            returned = result_bytes(spark)
        finally:
            spark.stop()
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
    keys = tuple(f"m{peer}#{peer + 1}" for peer in range(members))
    settings = {"purge": "acks", "capacity": 4096}
    recording = Recording(run_id="bench", node=f"m{at}", inc=at + 1, settings=settings)
    size = idx = 0
    for number in range(segments):
        writer = SegmentWriter(directory, recording)
        if not number:
            rows = list(_first_rows(at, keys))
            writer.add(rows)
            idx += len(rows)
        batch = _segment_rows(recording, at, number, members, idx)
        writer.add_batch(batch)
        idx += len(batch)
        is_last = number + 1 == segments
        if is_last:
            purged = _row(PURGE, at, idx, stream=0, seqno=segments * MESSAGES)
            writer.add([purged, _row(STOP, at, idx + 1)])
        size += writer.finish(is_last=is_last).stat().st_size
    return size


def _first_rows(at: int, keys: tuple[str, ...]) -> Iterator[Row]:
    yield _row(START, at, 0)
    yield _row(VIEW, at, 1, view=1, view_creator=keys[0], members=keys)
    others = (peer for peer in range(len(keys)) if peer != at)
    for idx, peer in enumerate(others, 2):
        yield _row(OPEN, at, idx, peer=f"m{peer}", peer_inc=peer + 1, stream=0)


def _row(event: str, at: int, idx: int, **columns: Any) -> Row:
    return Row(event, f"m{at}", at + 1, idx)._replace(**columns)


def _segment_rows(
    recording: Recording, at: int, number: int, members: int, idx: int
) -> pa.RecordBatch:
    """What is sent, then what is delivered of each sender, then the blocks that end with that."""
    first, last = number * MESSAGES + 1, (number + 1) * MESSAGES
    ended = last // BLOCK_MESSAGES if last // BLOCK_MESSAGES > (first - 1) // BLOCK_MESSAGES else 0
    hashed = ended - 1 if ended and (ended - 1) % HASHED_EVERY == 0 else -1
    senders = np.arange(members)
    parts = [(SEND, "", np.array([at])), (DELIVER, "", senders)]
    if hashed >= 0:
        parts += [(BLOCK, "sent", np.array([at])), (BLOCK, "delivered", senders)]
    counts = [len(peers) for _, _, peers in parts]
    peers = np.concatenate([peers for _, _, peers in parts])
    is_block = np.repeat([event == BLOCK for event, _, _ in parts], counts)
    is_delivery = np.repeat([event == DELIVER for event, _, _ in parts], counts)
    block_last = (hashed + 1) * BLOCK_MESSAGES
    filled = {
        "event": _texts([event for event, _, _ in parts], counts),
        "kind": _texts([kind for _, kind, _ in parts], counts),
        "idx": pa.array(np.arange(idx, idx + len(peers))),
        "peer": pa.array([f"m{peer}" for peer in peers.tolist()]).dictionary_encode(),
        "peer_inc": pa.array((peers + 1).astype(np.uint64)),
        "stream": pa.array(np.zeros(len(peers), np.int64)),
        "seqno": pa.array(np.where(is_block, block_last - BLOCK_MESSAGES + 1, first)),
        "seqno2": pa.array(np.where(is_block, block_last, last)),
        "view": pa.array(is_delivery.astype(np.int64)),
        "view_creator": _texts(["m0#1" * (event == DELIVER) for event, _, _ in parts], counts),
        "block": pa.array(np.where(is_block, hashed, -1)),
        "block_hash": pa.array(np.where(is_block, block_last * (peers + 7), 0).astype(np.uint64)),
    }
    return batch_of(recording, filled, len(peers))


def _texts(values: list[str], counts: list[int]) -> pa.Array:
    return pa.array(np.repeat(values, counts).tolist(), pa.string()).dictionary_encode()
