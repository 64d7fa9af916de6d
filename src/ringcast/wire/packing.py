"""Packing: our own frames as bytes, in datagrams that are filled in order.

What cannot be encoded is our bug and fails an assertion. Layouts stand in docs/wire.md; codec.py
reads them.
"""

from __future__ import annotations

from itertools import accumulate, chain, pairwise
from struct import Struct
from struct import pack as struct_pack
from typing import TYPE_CHECKING, Final

from ringcast.model import CONN_ID_MAX, FIRST_CONN_ID, SEQNO_MAX, Conn, Member
from ringcast.wire.changes import Forwarded, InView, Piece, Want, cut_into_pieces
from ringcast.wire.frames import Data, Nack, PeerRepair, PeerRepairRequest, UnicastNack
from ringcast.wire.layout import FRAMES
from ringcast.wire.limits import COUNTER_MAX, FRAMES_MAX, MESSAGES_MAX, NACK_RANGES_MAX
from ringcast.wire.runs import (
    EQUAL,
    HEADED,
    MORE,
    RANGE,
    RANGE_COUNT_MAX,
    RUN,
    SIZE,
    STREAM,
    fill_datagrams,
    fitting_stop,
    is_equal,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.wire.frames import Frame, UnicastData

DATA, UNICAST_DATA = 1, 6
SAID_IN_VIEW: Final = {DATA, *(layout.kind for layout in FRAMES.values() if layout.in_view)}

FRAME: Final = Struct("<BH")  # kind, bytes of body
DATA_HEAD: Final = Struct("<BHBBQH")  # FRAME, STREAM and RUN in one call
UNICAST_DATA_HEAD: Final = Struct("<BHQIBQH")  # FRAME, connection and RUN in one call
MESSAGE_HEAD: Final = Struct("<BHQIBQHH")  # all of it, and the SIZE of the only message

_PIECE_HEAD: Final = len(FRAMES[Piece].encode(Piece(64, 0, 0, 1, b"x"))) - 1

RUN_HEADS: Final = {DATA: DATA_HEAD.size, UNICAST_DATA: UNICAST_DATA_HEAD.size}

_FILLED_MAX: Final = 1 << 14
"""Datagrams up to this are filled by a template. That copies messages twice, which does not pay for
larger ones."""


class Packing:
    """Datagrams being filled, one after the other. What does not fit closes the open one."""

    __slots__ = (
        *("_bytes", "_frames", "_frames_max", "_header", "_in_view", "_largest"),
        *("_messages", "_packed", "_parts", "_ranges", "_room", "_room_max"),
    )

    def __init__(
        self, header: bytes, room: int, room_max: int, largest: int, in_view: bytes
    ) -> None:
        self._header = header
        self._room = room
        self._room_max = room_max
        self._largest = largest  # room in a datagram that may be larger than ours are
        self._in_view = in_view
        self._frames_max = FRAMES_MAX - bool(in_view)
        self._packed: list[bytes] = []
        self._begin()

    def _begin(self) -> None:
        self._parts = [self._header, b""]
        self._bytes = self._room  # what is left in the open datagram, as all below
        self._frames = self._frames_max
        self._messages = MESSAGES_MAX
        self._ranges = NACK_RANGES_MAX

    @property
    def _is_empty(self) -> bool:
        return self._frames == self._frames_max

    def _close(self) -> None:
        assert not self._is_empty, "larger than a datagram"
        self._packed.append(b"".join(self._parts))
        self._begin()

    def _close_any(self) -> None:
        if not self._is_empty:
            self._close()

    def _make_room(self, needed: int, most: int) -> None:
        """An empty datagram becomes larger than ours are, up to `most`; any other is closed."""
        if self._is_empty and needed <= most:
            self._bytes = needed
        else:
            self._close()

    def finish(self) -> list[bytes]:
        if self._frames < self._frames_max:
            self._packed.append(b"".join(self._parts))
        return self._packed

    def add_body(self, kind: int, body: bytes) -> None:
        frame = encode_frame(kind, body)
        if not self._frames or len(frame) > self._bytes:
            self._close()
        if kind in SAID_IN_VIEW:
            self._parts[1] = self._in_view
        self._parts.append(frame)
        self._frames -= 1
        self._bytes -= len(frame)

    def add_alone(self, kind: int, body: bytes) -> None:
        """A frame in a datagram of its own, as large as it is."""
        assert FRAME.size + len(body) <= self._largest, "larger than any datagram"
        self._close_any()
        self._bytes = self._largest
        self.add_body(kind, body)
        self._close()

    def add_frame(self, frame: Frame, to: Member | None) -> None:
        """Any frame that is no run."""
        layout = FRAMES[type(frame)]
        kind, body = layout.kind, layout.encode(frame)
        assert to is not None or layout.to_anyone, frame
        if layout.is_plain:  # and so it is short
            self.add_body(kind, body)
            return
        is_too_long = FRAME.size + len(body) > self._room
        match frame:
            case Nack() | UnicastNack() | PeerRepairRequest() | Want():
                self.add_ranges(kind, body, frame.missing)
            case PeerRepair() | Forwarded():
                self.add_passed_on(kind, body, frame.data)
            case InView():
                assert not self._in_view, "it is told already"
                self._close_any()
                self.add_body(kind, body)
            case _ if is_too_long and layout.is_long and to is not None:
                for piece in cut_into_pieces(kind, body, self._room - FRAME.size - _PIECE_HEAD):
                    self.add_frame(piece, to)
            case _ if is_too_long or layout.is_alone:
                self.add_alone(kind, body)  # if it is too long, it names members with long names
            case _:
                self.add_body(kind, body)

    def add_ranges(self, kind: int, whose: bytes, missing: Sequence[range]) -> None:
        """A request for what is missing of what `whose` encodes: a stream, connection or sender. If
        that leaves no room for a range, it goes in a larger datagram."""
        assert 1 <= len(missing) <= NACK_RANGES_MAX, len(missing)
        assert all(gap.step == 1 for gap in missing), missing
        assert all(gap.start < gap.stop <= gap.start + RANGE_COUNT_MAX for gap in missing), missing
        assert all(gap.stop <= after.start for gap, after in pairwise(missing)), missing
        assert 1 <= missing[0].start <= missing[-1].stop - 1 <= SEQNO_MAX, missing
        head_bytes = FRAME.size + len(whose)
        start = 0
        while start < len(missing):
            fitting = min(self._ranges, (self._bytes - head_bytes) // RANGE.size)
            if not self._frames or fitting < 1:
                self._make_room(head_bytes + RANGE.size * len(missing), self._largest)
                continue
            cut = missing[start : start + fitting]
            pairs = [RANGE.pack(gap.start, gap.stop - gap.start) for gap in cut]
            self._ranges -= len(cut)
            self.add_body(kind, whose + b"".join(pairs))
            start += len(cut)

    def add_passed_on(self, kind: int, whose: bytes, data: Data) -> None:
        """A run of another sender, in datagrams of its own."""
        self._close_any()
        self.add_runs([data], kind, whose)

    def add_runs(
        self, runs: list[Data | UnicastData], kind: int = DATA, whose: bytes = b""
    ) -> None:
        """One run, in pieces in order. `whose`: passed on, in frames of `kind` that begin so."""
        run, first, payloads = runs[0], runs[0].first, runs[0].payloads
        if isinstance(run, Data):
            head_bytes = DATA_HEAD.size + len(whose)
        else:
            kind, head_bytes = UNICAST_DATA, UNICAST_DATA_HEAD.size
            _check_conn(run.conn)
        if len(runs) > 1:
            payloads = list(chain.from_iterable([run.payloads for run in runs]))
        lengths = list(map(len, payloads))
        start, count = 0, len(lengths)
        assert payloads, "a run has at least one message"
        assert 1 <= first <= SEQNO_MAX + 1 - count, first
        all_equal = lengths.count(lengths[0]) == count
        before: list[int] = []  # payload bytes before each message, if mixed lengths must be cut
        if not all_equal and sum(lengths) + count * SIZE.size > self._bytes - head_bytes:
            before = list(accumulate(lengths, initial=0))

        while start < count:
            room = self._bytes - head_bytes
            size = lengths[start]
            most = min(count, start + self._messages)
            stop = min(most, start + (room - SIZE.size) // size) if size else most
            if not self._frames or room < SIZE.size or stop <= start:
                # It may have been cut for larger datagrams than we build now, and goes in one.
                most = self._largest if whose else self._room_max
                self._make_room(head_bytes + SIZE.size + size, most)
                continue
            # The last datagram stays open, as something else may find room in it.
            is_plain = all_equal and self._is_empty and not whose and room <= _FILLED_MAX
            full = (count - start - 1) // (stop - start) if is_plain else 0
            if full > 1:
                per_datagram, stop = stop - start, start + full * (stop - start)
                self._fill(run, kind, first + start, payloads[start:stop], per_datagram)
                start = stop
                continue
            # A run of mixed lengths may well have long stretches of equal ones.
            if all_equal or (before and is_equal(lengths, before, start, stop)):
                flags, sizes = EQUAL, SIZE.pack(size)
                payload_bytes = size * (stop - start)
            else:
                stop = min(most, fitting_stop(before, start, room)) if before else most
                cut = lengths[start:stop]
                flags, sizes = 0, struct_pack(f"<{len(cut)}H", *cut)
                payload_bytes = sum(cut)
            frame_bytes = head_bytes + len(sizes) + payload_bytes
            flags |= run.more * MORE | run.headed * HEADED
            head = _encode_head(run, kind, whose, frame_bytes, flags, first + start, stop - start)
            if kind in SAID_IN_VIEW:
                self._parts[1] = self._in_view
            self._parts += (head, sizes, *payloads[start:stop])
            self._messages -= stop - start
            self._frames -= 1
            self._bytes -= frame_bytes
            start = stop
            if whose:
                self._close()

    def _fill(
        self, run: Data | UnicastData, kind: int, first: int, payloads: list[bytes], count: int
    ) -> None:
        """Datagrams with so many of these messages each, which are of one length."""
        assert self._is_empty
        size, flags = len(payloads[0]), EQUAL | run.more * MORE | run.headed * HEADED
        in_view = self._in_view if kind in SAID_IN_VIEW else b""
        frame_bytes = RUN_HEADS[kind] + SIZE.size + size * count
        head = _encode_head(run, kind, b"", frame_bytes, flags, first, count)
        before = self._header + in_view + head[: -RUN.size + 1]
        after = head[-SIZE.size :] + SIZE.pack(size)
        self._packed += fill_datagrams(before, first, after, payloads, count)


def encode_frame(kind: int, body: bytes) -> bytes:
    return FRAME.pack(kind, len(body)) + body


def _encode_head(
    run: Data | UnicastData,
    kind: int,
    whose: bytes,
    frame_bytes: int,
    flags: int,
    first: int,
    count: int,
) -> bytes:
    """What stands before the lengths in a frame with a piece of this run."""
    body_bytes = frame_bytes - FRAME.size
    if isinstance(run, Data):
        if whose:
            head = FRAME.pack(kind, body_bytes) + whose + STREAM.pack(run.stream)
            return head + RUN.pack(flags, first, count)
        return DATA_HEAD.pack(DATA, body_bytes, run.stream, flags, first, count)
    epoch, conn_id = run.conn
    return UNICAST_DATA_HEAD.pack(UNICAST_DATA, body_bytes, epoch, conn_id, flags, first, count)


def _check_conn(conn: Conn) -> None:
    assert 1 <= conn.epoch <= COUNTER_MAX, conn
    assert FIRST_CONN_ID <= conn.id <= CONN_ID_MAX, conn
