"""Traces as a busy cluster writes them, of as many rows as are asked for, made in columns.

Members m0 to m3 start together, m4 joins when a third is over, and m3 is killed after two thirds:
the last of its rows are lost. All send plain and uniform messages, in runs of uneven length that
every receiver cuts elsewhere, and all but m3 stop in good order. A row is a run of messages.

Another kind is that of a large group at its usual pace: all members send all the time, and each
writes a segment every two seconds, with a row for what each sender's messages did in that time.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from benchmarks.workload import progress
from ringcast.trace import rows as trace
from ringcast.trace.columns import SCHEMA
from ringcast.trace.content import BLOCK_MESSAGES, HASHED_EVERY
from ringcast.trace.footer import Recording
from ringcast.trace.rows import BLOCK, DELIVER, OPEN, SEND, Row
from ringcast.trace.segments import ROW_GROUP_ROWS, SegmentWriter

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

MEMBERS = 5
JOINER, KILLED = 4, 3
EVEN = (1.0, 1.0, 1.0, 1.0, 1.0)
SKEWED = (0.99, 0.0025, 0.0025, 0.0025, 0.0025)
"""How much of all that is sent is whose: with the second, one sender has 99 % of the rows."""

STREAM_SHARES = (0.8, 0.2)
RUN_MEDIAN, RUN_MAX = 100, 2000
"""Messages to a row: some ten milliseconds of a sender, now fast and now slow."""
RUN_MEAN = 160
SEGMENT_ROWS = 100_000
"""Where a recorder begins another file."""
ROUND_ROWS = 50_000
"""Rows of a member that are made at once."""

_STEP_NS = 10_000
_HASHED = BLOCK_MESSAGES * HASHED_EVERY
EVENTS = (SEND, DELIVER, BLOCK)
KINDS = ("", "sent", "delivered")
"""Of rows that are made in columns: these have their places here."""


class Written(NamedTuple):
    """What was made."""

    directory: Path
    rows: int
    messages: int
    """Delivered, over all members."""
    bytes: int
    segments: int


def _inc(at: int) -> int:
    return 0x9E3779B97F4A7C15 * (at + 1) % 2**64


def _key(at: int) -> str:
    return f"m{at}#{_inc(at)}"


class Piece(NamedTuple):
    """Messages first..last of one origin, which all members take in one round."""

    sender: int
    stream: int
    first: int
    last: int


def write_traces(directory: Path, rows: int, shares: Sequence[float] = EVEN) -> Written:
    """About so many rows, in a new directory."""
    directory.mkdir()
    rounds = max(3, round(rows / (ROUND_ROWS * (MEMBERS - 2 / 3))))
    away = {JOINER: range(rounds // 3), KILLED: range(rounds - rounds // 3, rounds)}
    present = [
        [at for at in range(MEMBERS) if number not in away.get(at, ())] for number in range(rounds)
    ]
    due = rows / sum(map(len, present))
    machine = {"host": "bench", "boot_id": "bench"}
    writers = [Member(directory, at, len(STREAM_SHARES), **machine) for at in range(MEMBERS)]
    sent = np.zeros((MEMBERS, len(STREAM_SHARES)), dtype=np.int64)
    counter = 0
    for number, members in enumerate(present):
        if not number or members != present[number - 1]:
            counter += 1
            for at in members:
                writers[at].install(counter, members, sent)
        pieces = _pieces(members, shares, due, sent)
        for at in members:
            is_end = number + 1 == rounds or at not in present[number + 1]
            _live(writers[at], pieces, np.random.default_rng((number, at)), is_end=is_end)
    for at, writer in enumerate(writers):
        writer.finish(is_last=at != KILLED)
    paths = [path for writer in writers for path in writer.paths]
    return Written(
        directory,
        sum(writer.idx for writer in writers),
        sum(writer.delivered for writer in writers),
        sum(path.stat().st_size for path in paths),
        len(paths),
    )


def _pieces(
    members: Sequence[int], shares: Sequence[float], due: float, sent: Numbers
) -> list[Piece]:
    """What is sent in one round, so that members have as many rows of it as are due on average."""
    rows_per_message = (1 + 1 / len(members)) * (1 / RUN_MEAN + 1 / _HASHED)
    whole = sum(shares[at] for at in members)
    pieces = []
    for sender in members:
        for stream, share in enumerate(STREAM_SHARES):
            count = max(1, round(due / rows_per_message * shares[sender] / whole * share))
            first = int(sent[sender, stream]) + 1
            sent[sender, stream] += count
            pieces.append(Piece(sender, stream, first, first + count - 1))
    return pieces


class Member:
    """One member's rows, from its first to its last, in segments."""

    def __init__(self, directory: Path, at: int, streams: int, **about: Any) -> None:
        self.at = at
        self.idx = self.delivered = 0
        self.paths: list[Path] = []
        self.offsets: dict[tuple[int, int], int] = {}
        """Of each sender and stream: where the window opened."""
        self._streams = range(streams)
        self._now = 1 + at
        self._directory = directory
        self._recording = Recording(run_id="bench", node=f"m{at}", inc=_inc(at), **about)
        self._view, self._creator = 0, ""
        self._members: set[int] = set()
        self._segment = SegmentWriter(directory, self._recording)

    def install(self, counter: int, members: Sequence[int], sent: Numbers) -> None:
        """A view: those who were in the one before come together, and windows for the others
        open."""
        if not self._members:
            self.add_row(trace.START)
        self._view, self._creator = counter, _key(members[0])
        view: dict[str, Any] = {"view": counter, "view_creator": self._creator}
        keys = tuple(map(_key, members))
        together = [at for at in members if at in self._members] or [self.at]
        cut = tuple(
            f"{_key(at)} {stream} {sent[at, stream] if at in together or stream else -1}"
            for at in sorted(self._members)
            for stream in self._streams
        )
        self.add_row(trace.FREEZE, members=keys, **view)
        self.add_row(trace.VIEW, members=keys, part=tuple(map(_key, together)), cut=cut, **view)
        for peer in sorted(set(members) - self._members):
            for stream in self._streams:
                offset = self.offsets[peer, stream] = int(sent[peer, stream])
                if self.at != peer:
                    self.add_row(OPEN, peer, stream=stream, seqno=offset, seqno2=offset, **view)
        self.add_row(trace.SHOWN, **view)
        self._members = set(members)

    def add(self, columns: dict[str, Numbers]) -> None:
        """Rows in columns: event and kind as places in EVENTS and KINDS, peers as numbers."""
        count = len(columns["event"])
        is_delivery = columns["event"] == EVENTS.index(DELIVER)
        is_run = columns["event"] != EVENTS.index(BLOCK)
        self.delivered += int((columns["seqno2"] - columns["seqno"] + 1)[is_delivery].sum())
        mono_ns = self._now + _STEP_NS * np.arange(count)
        peers = range(int(columns["peer"].max()) + 1)
        filled = {
            "wall_ns": pa.array(mono_ns),
            "event": _texts(columns["event"], EVENTS),
            "idx": pa.array(self.idx + np.arange(count)),
            "mono_ns": pa.array(mono_ns),
            "peer": _texts(columns["peer"], [f"m{peer}" for peer in peers]),
            "peer_inc": pa.array(np.array([_inc(at) for at in peers], np.uint64)[columns["peer"]]),
            "view": pa.array(np.where(is_run, self._view, 0)),
            "view_creator": _texts(is_run, ("", self._creator)),
            "kind": _texts(columns["kind"], KINDS),
            "block_hash": pa.array(columns["block_hash"].view(np.uint64)),
            **{name: pa.array(columns[name]) for name in ("stream", "seqno", "seqno2", "block")},
        }
        for item in SCHEMA:
            if item.name not in filled:
                default = Row._field_defaults.get(item.name)
                value = getattr(self._recording, item.name, default)
                filled[item.name] = pa.repeat(pa.scalar(value, item.type), count)
        arrays = [filled[item.name] for item in SCHEMA]
        self._segment.add_batch(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))
        self._now = int(mono_ns[-1]) + _STEP_NS
        self._count(count)

    def add_row(self, event: str, peer: int | None = None, **columns: Any) -> None:
        """A row that there are few of."""
        if peer is not None:
            columns |= {"peer": f"m{peer}", "peer_inc": _inc(peer)}
        row = Row(event, f"m{self.at}", _inc(self.at), self.idx)
        self._segment.add([row._replace(mono_ns=self._now, **columns)])
        self._now += _STEP_NS
        self._count(1)

    def _count(self, rows: int) -> None:
        self.idx += rows
        if self._segment.rows >= SEGMENT_ROWS:
            self.finish()

    def finish(self, *, is_last: bool = False) -> None:
        """End a segment."""
        if self._segment.rows:
            self.paths.append(self._segment.finish(is_last=is_last))
        self._segment = SegmentWriter(self._directory, self._recording)


def _live(
    member: Member, pieces: Sequence[Piece], dice: np.random.Generator, *, is_end: bool
) -> None:
    """Send one's own pieces and take all of them."""
    parts = [
        _rows_of(piece, is_sent, member.offsets[piece.sender, piece.stream], is_end, dice)
        for piece in pieces
        for is_sent in ((True, False) if piece.sender == member.at else (False,))
    ]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.argsort(columns.pop("when"), kind="stable")
    if is_end and member.at == KILLED:  # and some rows with it
        order = order[: -1 - len(order) // 50]
    for start in range(0, len(order), ROW_GROUP_ROWS):
        chosen = order[start : start + ROW_GROUP_ROWS]
        member.add({name: column[chosen] for name, column in columns.items()})
    if is_end and member.at != KILLED:
        member.add_row(trace.STOP)


def _rows_of(
    piece: Piece, is_sent: bool, offset: int, is_end: bool, dice: np.random.Generator
) -> dict[str, Numbers]:
    """One side's rows of a piece: its runs, and the blocks that end in them. `when` orders them
    among the rows of other pieces: a run is taken when it has come, and sent before."""
    count = piece.last - piece.first + 1
    lasts = piece.first - 1 + _cuts(count, dice)
    firsts = np.append(piece.first, lasts[:-1] + 1)
    blocks, block_firsts, block_lasts = _blocks(piece, offset, is_end)
    ended_in = np.searchsorted(lasts, block_lasts)
    when = (firsts if is_sent else lasts) - (piece.first - 1)
    when = (when + (0 if is_sent else RUN_MAX)) / count
    of_runs, of_blocks = np.zeros_like(firsts), np.ones_like(blocks)
    return {
        "when": np.append(when, when[ended_in]),
        "event": np.append(
            of_runs + EVENTS.index(SEND if is_sent else DELIVER), of_blocks * EVENTS.index(BLOCK)
        ),
        "peer": np.full(len(firsts) + len(blocks), piece.sender),
        "stream": np.full(len(firsts) + len(blocks), piece.stream),
        "seqno": np.append(firsts, block_firsts),
        "seqno2": np.append(lasts, block_lasts),
        "kind": np.append(of_runs, of_blocks * KINDS.index("sent" if is_sent else "delivered")),
        "block": np.append(of_runs - 1, blocks),
        "block_hash": np.append(of_runs, _hash(piece, block_lasts)),
    }


def _cuts(count: int, dice: np.random.Generator) -> Numbers:
    """Where the runs of so many messages end."""
    lengths = np.clip(
        dice.lognormal(np.log(RUN_MEDIAN), 1.0, 2 * count // RUN_MEAN + 8), 1, RUN_MAX
    )
    ends = np.cumsum(lengths.astype(np.int64))
    ends = ends[: np.searchsorted(ends, count)]
    return np.append(ends, count)


def _blocks(piece: Piece, offset: int, is_end: bool) -> tuple[Numbers, Numbers, Numbers]:
    """Those to be hashed that end in this piece, and with the end of the trace what has begun."""
    whole = np.arange(-(-offset // _HASHED), piece.last // BLOCK_MESSAGES // HASHED_EVERY + 1)
    blocks = whole * HASHED_EVERY
    firsts = blocks * BLOCK_MESSAGES + 1
    lasts = blocks * BLOCK_MESSAGES + BLOCK_MESSAGES
    if is_end:
        lasts = np.minimum(lasts, piece.last)
    ends = (lasts >= piece.first) & (lasts <= piece.last) & (firsts <= piece.last)
    return blocks[ends], firsts[ends], lasts[ends]


def _hash(piece: Piece, lasts: Numbers) -> Numbers:
    """Of a block's bytes: the same wherever it is taken."""
    mixed = lasts.astype(np.uint64) * np.uint64(0xD6E8FEB86659FD93)
    mixed ^= np.uint64(_inc(piece.sender) >> piece.stream)
    return (mixed ^ mixed >> np.uint64(29)).view(np.int64)


def _texts(codes: NDArray[Any], values: Sequence[str]) -> pa.DictionaryArray:
    """A dictionary of what is there, as a recorder makes it."""
    used, indices = np.unique(codes, return_inverse=True)
    return pa.DictionaryArray.from_arrays(
        pa.array(indices.astype(np.int32)), pa.array([values[int(at)] for at in used], pa.string())
    )


# Many members with many small segments

MESSAGES = 100
"""Of each sender, in the time of one segment."""
WRITERS = 32


def write_members(directory: Path, members: int, segments: int) -> int:
    """Their size in bytes. A segment waits for the disk before it is there: so do many at once."""
    size = 0
    with ThreadPoolExecutor(WRITERS) as pool:
        write = partial(_write_member, directory, members, segments)
        for at, written in enumerate(pool.map(write, range(members)), 1):
            size += written
            if at % 20 == 0:
                progress(f"{at} of {members} members …")
    return size


def _write_member(directory: Path, members: int, segments: int, at: int) -> int:
    member = Member(directory, at, 1, settings={"purge": "acks", "capacity": 4096})
    member.install(1, range(members), np.zeros((members, 1), np.int64))
    for number in range(segments):
        member.add(_segment_rows(at, number, members))
        if number + 1 < segments:
            member.finish()
    member.add_row(trace.PURGE, stream=0, seqno=segments * MESSAGES)
    member.add_row(trace.STOP)
    member.finish(is_last=True)
    return sum(path.stat().st_size for path in member.paths)


def _segment_rows(at: int, number: int, members: int) -> dict[str, Numbers]:
    """What is sent, then what is delivered of each sender, then the blocks that end with that."""
    first, last = number * MESSAGES + 1, (number + 1) * MESSAGES
    block = last // BLOCK_MESSAGES - 1
    block_last = (block + 1) * BLOCK_MESSAGES
    peers = np.append(at, np.arange(members))
    is_own = np.arange(members + 1) == 0
    event = np.where(is_own, EVENTS.index(SEND), EVENTS.index(DELIVER))
    rows: list[tuple[Any, ...]] = [(event, 0, first, last, -1, 0)]
    if block_last >= first and block % HASHED_EVERY == 0:
        kind = np.where(is_own, KINDS.index("sent"), KINDS.index("delivered"))
        seqnos = block_last - BLOCK_MESSAGES + 1, block_last
        rows.append((EVENTS.index(BLOCK), kind, *seqnos, block, block_last * (peers + 7)))
    names = ("event", "kind", "seqno", "seqno2", "block", "block_hash", "peer", "stream")
    columns = zip(*((*values, peers, 0) for values in rows), strict=True)
    return {
        name: np.concatenate([np.broadcast_to(part, peers.shape) for part in parts])
        for name, parts in zip(names, columns, strict=True)
    }
