"""Frames to datagrams and back. Byte layouts (docs/wire.md) are known to this directory alone.

`pack` is for our own frames: what it cannot encode is our bug and fails an assertion. `unpack` is
for bytes that anybody may have sent: it raises DecodeError and nothing else, takes time linear in
the datagram and allocates at most 4 × its length + 96 KiB; 24 × its length in a view change, whose
lists are longer. Limits per datagram see to that: FRAMES_MAX, MESSAGES_MAX and NACK_RANGES_MAX; a
list of members has at most VIEW_MEMBERS_MAX, and a frame with such lists a datagram of its own, as
has what was passed on for another sender. `pack` begins another datagram where a limit is reached,
and cuts a frame of a view change into pieces if it fits no datagram.

There is one header per datagram and per run, none per message.
"""

from __future__ import annotations

from itertools import accumulate, chain, pairwise
from struct import Struct
from struct import pack as struct_pack
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

from ringcast.config import DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MIN, NAME_BYTES_MAX, check_whole
from ringcast.errors import ConfigError, DecodeError, Reject
from ringcast.model import CONN_ID_MAX, FIRST_CONN_ID, SEQNO_MAX, Conn, Stream
from ringcast.wire import change_codec, control
from ringcast.wire.change_codec import IN_VIEW, LONG, PIECE_HEAD, cut_into_pieces, encode_change
from ringcast.wire.changes import ChangeFrame, Forwarded, InView, Want
from ringcast.wire.control import encode_control
from ringcast.wire.cutter import Cutter
from ringcast.wire.frames import (
    Ack,
    Close,
    Data,
    Messages,
    Nack,
    PeerRepair,
    PeerRepairRequest,
    StabilityQuery,
    StabilityReport,
    Sync,
    SyncAck,
    SyncOk,
    UnicastAck,
    UnicastData,
    UnicastNack,
    Watermark,
)
from ringcast.wire.limits import (
    ALLOWANCE_MAX,
    COUNTER_MAX,
    FRAMES_MAX,
    IDENTITIES_MAX,
    MESSAGES_MAX,
    NACK_RANGES_MAX,
)
from ringcast.wire.members import (
    MEMBER_BYTES_MAX,
    decode_counter,
    decode_identity,
    decode_stream,
    encode_counter,
    encode_identity,
    encode_member,
)
from ringcast.wire.runs import (
    EQUAL,
    MORE,
    RANGE,
    RANGE_COUNT_MAX,
    RUN,
    SIZE,
    STREAM,
    decode_data,
    decode_ranges,
    decode_run,
    fitting_stop,
    is_equal,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringcast.model import Member
    from ringcast.wire.frames import Frame

    Buffer: TypeAlias = bytes | bytearray | memoryview
    Decoders: TypeAlias = dict[int, Callable[[memoryview, int, int], Frame]]

VERSION: Final = 2

_PAYLOAD_BYTES_MIN: Final = 64
"""Below this a seal leaves no useful room in a datagram."""

_SHORT: Final = 1500
"""Bytes of a datagram that may be copied before anything is known of it."""

MAGIC: Final = b"RC"
_HEADER: Final = Struct("<2sBBB")  # magic, version, flags, bytes of identity
SEALED: Final = 1  # flag: an envelope is around it
_ADDRESSEE: Final = Struct("<Q")  # the incarnation of the member it is for
_ANYONE: Final = 0

_DATA, _ACK, _NACK, _WATERMARK = range(1, 5)
_UNICAST_DATA, _UNICAST_ACK, _UNICAST_NACK, _CLOSE, _SYNC, _SYNC_OK, _SYNC_ACK = range(6, 13)
_PEER_REPAIR_REQUEST, _PEER_REPAIR = range(47, 49)
_ALONE: Final = control.ALONE | change_codec.ALONE | {_PEER_REPAIR}
_SAID_IN_VIEW: Final = control.SAID_IN_VIEW.union(
    (_DATA, _ACK, _NACK, _WATERMARK, _PEER_REPAIR_REQUEST, _PEER_REPAIR)
)
_PLACED: Final = _ALONE | {IN_VIEW}

_FRAME: Final = Struct("<BH")  # kind, bytes of body
_CONN: Final = Struct("<QI")  # epoch, id
_WATERMARKS: Final = Struct("<BQQQ")  # stream, received, delivered, allowance
_STREAM_SEQNO: Final = Struct("<BQ")
_DELIVERED: Final = Struct("<QQ")  # delivered, allowance
_ANSWER: Final = Struct("<QQQB")  # nonce, low, high, flags
_DATA_HEAD: Final = Struct("<BHBBQH")  # _FRAME, STREAM and RUN in one call
_UNICAST_DATA_HEAD: Final = Struct("<BHQIBQH")  # _FRAME, _CONN and RUN in one call
_MESSAGE_HEAD: Final = Struct("<BHQIBQHH")  # all of it, and the SIZE of the only message

_MESSAGE_BODY_MIN: Final = _MESSAGE_HEAD.size - _FRAME.size

_WITH_RANGES: Final = (Nack, UnicastNack, PeerRepairRequest, Want)

_IDENTITY_BYTES_MAX: Final = 1 + NAME_BYTES_MAX + MEMBER_BYTES_MAX
_TAG_FRAME_BYTES: Final = _FRAME.size + 2 * change_codec.TAG_BYTES  # with what is purged
_PASSING_HEAD_MAX: Final = (
    _HEADER.size
    + _IDENTITY_BYTES_MAX
    + _ADDRESSEE.size
    + _TAG_FRAME_BYTES
    + change_codec.FORWARDED_HEAD_MAX
    + _DATA_HEAD.size
)
"""What may stand before the lengths in a datagram with messages that are passed on."""

_MIDDLE: Final = 1  # flag of an answer


class Codec:
    """One member's datagrams in one group. Remembers how large they may be, and else nothing but
    what decoding again would give."""

    def __init__(
        self,
        group: str,
        me: Member,
        datagram_bytes: int,
        overhead: int = 0,
    ) -> None:
        """`overhead`: so many bytes are added to each datagram before it leaves."""
        check_whole("datagram_bytes", datagram_bytes, DATAGRAM_BYTES_MIN, DATAGRAM_BYTES_MAX)
        identity = encode_identity(group, me)
        self._group = group
        self._added = overhead
        self._header = _HEADER.pack(MAGIC, VERSION, 0, len(identity)) + identity
        self._incarnation = me.incarnation
        self._tag, self._in_view = 0, b""
        self._purged: int | None = None
        header_bytes = len(self._header) + _ADDRESSEE.size + _TAG_FRAME_BYTES
        self._overhead = header_bytes + overhead
        self._room = self._room_max = datagram_bytes - self._overhead
        self._senders: dict[bytes, tuple[Member, Decoders]] = {}  # by what begins their datagrams
        self._last: tuple[bytes, Member] | None = None  # of these, to this member alone
        self._last_conn = Conn(1, FIRST_CONN_ID)
        if self.payload_bytes_max < _PAYLOAD_BYTES_MIN:
            lowest = datagram_bytes + _PAYLOAD_BYTES_MIN - self.payload_bytes_max
            raise ConfigError("datagram_bytes", datagram_bytes, f"{lowest} or more with this seal")

    @property
    def payload_bytes_max(self) -> int:
        """The largest payload that fits one datagram, be it for the group or for one member. It
        also fits when another member passes it on, in a datagram that may be larger."""
        passed_on = DATAGRAM_BYTES_MAX - self._added - _PASSING_HEAD_MAX - SIZE.size
        return min(self._room - _UNICAST_DATA_HEAD.size - SIZE.size, passed_on)

    @property
    def tag(self) -> int:
        """Of the view in which is said what depends on it; 0: that is not told."""
        return self._tag

    @tag.setter
    def tag(self, tag: int) -> None:
        self._tag = tag
        self._in_view = _encode_frame(*encode_change(InView(tag, self._purged))) if tag else b""

    def mark(self, purged: int) -> None:
        """Say in each datagram that everybody has delivered what is up to this."""
        if purged != self._purged:
            self._purged = purged
            self.tag = self._tag

    def resize(self, datagram_bytes: int) -> None:
        """Fill datagrams up to so many bytes from now on; but neither to more than at first, nor to
        less than is of use."""
        room_min = _UNICAST_DATA_HEAD.size + SIZE.size + _PAYLOAD_BYTES_MIN
        self._room = min(max(datagram_bytes - self._overhead, room_min), self._room_max)

    def pack(self, frames: Sequence[Frame], to: Member | None = None) -> list[bytes]:
        """As few datagrams as filling them in order gives, for one member or for anyone.

        Runs that continue each other become one; runs and requests for lost messages are cut
        where a datagram is full. What speaks of a connection is always for one member. A view has
        a datagram of its own, which may be larger than `datagram_bytes`: IP fragments it then. So
        does a message that was cut for larger ones: by another member, or before `resize`. With a
        `tag`, a datagram that says something which counts in a view only begins with it.
        """
        header = self._header + _ADDRESSEE.pack(_ANYONE if to is None else to.incarnation)
        largest = DATAGRAM_BYTES_MAX - self._overhead
        packing = _Packing(header, self._room, self._room_max, largest, self._in_view)
        runs: list[Data | UnicastData] = []  # each continues the one before
        for frame in frames:
            if runs and not _continues(frame, runs[-1]):
                packing.add_runs(runs)
                runs = []
            match frame:
                case Data():
                    runs.append(frame)
                case UnicastData():
                    assert to is not None, frame
                    runs.append(frame)
                case Nack():
                    packing.add_ranges(_NACK, STREAM.pack(frame.stream), frame.missing)
                case Ack():
                    packing.add_body(_ACK, _encode_ack(frame))
                case Watermark():
                    packing.add_body(_WATERMARK, _encode_watermark(frame))
                case UnicastAck() | UnicastNack() | Close() | Sync() | SyncOk() | SyncAck():
                    assert to is not None, frame
                    packing.add_unicast_control(frame)
                case PeerRepairRequest():
                    assert to is not None, frame
                    packing.add_ranges(
                        _PEER_REPAIR_REQUEST, encode_member(frame.sender), frame.missing
                    )
                case PeerRepair():
                    assert to is not None, frame
                    assert frame.data.stream is Stream.FIFO, frame
                    packing.add_passed_on(_PEER_REPAIR, encode_member(frame.sender), frame.data)
                case StabilityReport() | StabilityQuery():
                    assert to is not None, frame
                    packing.add_control(*encode_control(frame))
                case _ if isinstance(frame, ChangeFrame):
                    packing.add_change(frame, to)
                case _:
                    packing.add_control(*encode_control(frame))
        if runs:
            packing.add_runs(runs)
        return packing.finish()

    def pack_message(self, to: Member, conn: Conn, seqno: int, payload: bytes) -> bytes:
        """The fast path for what a round trip waits for: a datagram with one whole message."""
        epoch, conn_id = conn
        assert 1 <= epoch <= COUNTER_MAX, conn
        assert FIRST_CONN_ID <= conn_id <= CONN_ID_MAX, conn
        assert 1 <= seqno <= SEQNO_MAX, seqno
        size = len(payload)
        length = _MESSAGE_BODY_MIN + size
        head = _MESSAGE_HEAD.pack(_UNICAST_DATA, length, epoch, conn_id, EQUAL, seqno, 1, size)
        return self._header + _ADDRESSEE.pack(to.incarnation) + head + payload

    def unpack(self, datagram: Buffer, *, overhear: bool = False) -> tuple[Member, list[Frame]]:
        """Who sent it, and its frames; DecodeError if any byte of it is not as it must be.

        What is meant for another incarnation is refused, unless one only wants to overhear: an
        ack for the process that had this address before would purge what nobody has. Runs refer
        to the buffer until their payloads are read: read them before reusing it.
        """
        if len(datagram) > DATAGRAM_BYTES_MAX:
            raise DecodeError(Reject.TOO_LONG)
        view = memoryview(datagram)
        if len(view) < _HEADER.size:
            raise DecodeError(Reject.TOO_SHORT)
        body = _HEADER.size + view[_HEADER.size - 1] + _ADDRESSEE.size
        head = bytes(view[:body])
        known = self._senders.get(head)  # what was checked once is not checked again
        if known is None or len(view) <= body:
            known = self._decode_head(view, overhear=overhear)
        sender, decoders = known
        if decoders is _DECODERS and head in self._senders:
            self._last = head, sender
        return sender, _decode_frames(view, body, decoders)

    def unpack_message(self, datagram: Buffer) -> tuple[Member, Conn, int, bytes] | None:
        """The fast path for what a round trip waits for: one whole message to this member alone, of
        whoever was the last to say anything to it alone. The sender, connection, seqno and payload;
        None: it is something else, or wrong, and `unpack` tells."""
        if self._last is None or len(datagram) > _SHORT:
            return None
        datagram = bytes(datagram)
        head, sender = self._last
        start = len(head)
        payload = start + _MESSAGE_HEAD.size
        if len(datagram) < payload or not datagram.startswith(head):
            return None
        kind, length, epoch, conn_id, flags, first, count, size = _MESSAGE_HEAD.unpack_from(
            datagram, start
        )
        rest = len(datagram) - payload
        is_one = kind == _UNICAST_DATA and count == 1 and flags == EQUAL
        is_whole = size == rest and length == _MESSAGE_BODY_MIN + size
        if not (is_one and is_whole and 1 <= first <= SEQNO_MAX):
            return None
        conn = self._last_conn
        if conn.id != conn_id or conn.epoch != epoch:
            if not 1 <= epoch <= COUNTER_MAX or conn_id < FIRST_CONN_ID:
                return None
            conn = self._last_conn = Conn(epoch, conn_id)
        return sender, conn, first, datagram[payload:]

    def _decode_head(self, view: memoryview, *, overhear: bool) -> tuple[Member, Decoders]:
        """Who sent it, and what it may say to this member. That is remembered."""
        magic, version, flags, identity_bytes = _HEADER.unpack_from(view)
        if magic != MAGIC:
            raise DecodeError(Reject.NOT_OURS)
        if version != VERSION:
            raise DecodeError(Reject.VERSION)
        if flags == SEALED:
            raise DecodeError(Reject.SEALED)
        if flags:
            raise DecodeError(Reject.FLAGS)
        identity_stop = _HEADER.size + identity_bytes
        body = identity_stop + _ADDRESSEE.size
        if len(view) <= body:  # a datagram without frames says nothing: nobody sends one
            raise DecodeError(Reject.TOO_SHORT)
        group, sender = decode_identity(bytes(view[_HEADER.size : identity_stop]))
        if group != self._group:
            raise DecodeError(Reject.GROUP)
        (addressee,) = _ADDRESSEE.unpack_from(view, identity_stop)
        if addressee not in (_ANYONE, self._incarnation):
            if overhear:
                return sender, _DECODERS
            raise DecodeError(Reject.ADDRESSEE)
        decoders = _DECODERS_FOR_ANYONE if addressee == _ANYONE else _DECODERS
        if len(self._senders) == IDENTITIES_MAX:
            del self._senders[next(iter(self._senders))]
        self._senders[bytes(view[:body])] = sender, decoders
        return sender, decoders


class _Packing:
    """Datagrams being filled, one after the other. What does not fit closes the open one."""

    __slots__ = (
        "_bytes",
        "_frames",
        "_frames_max",
        "_header",
        "_in_view",
        "_largest",
        "_messages",
        "_packed",
        "_parts",
        "_ranges",
        "_room",
        "_room_max",
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

    def finish(self) -> list[bytes]:
        if self._frames < self._frames_max:
            self._packed.append(b"".join(self._parts))
        return self._packed

    def add_body(self, kind: int, body: bytes) -> None:
        frame = _encode_frame(kind, body)
        if not self._frames or len(frame) > self._bytes:
            self._close()
        if kind in _SAID_IN_VIEW:
            self._parts[1] = self._in_view
        self._parts.append(frame)
        self._frames -= 1
        self._bytes -= len(frame)

    def add_alone(self, kind: int, body: bytes) -> None:
        """A frame in a datagram of its own, as large as it is."""
        assert _FRAME.size + len(body) <= self._largest, "larger than any datagram"
        self._close_any()
        self._bytes = self._largest
        self.add_body(kind, body)
        self._close()

    def add_control(self, kind: int, body: bytes) -> None:
        if kind in _ALONE:
            self.add_alone(kind, body)
        else:
            self.add_body(kind, body)

    def add_change(self, frame: ChangeFrame, to: Member | None) -> None:
        kind, body = encode_change(frame)
        assert to is not None or kind in change_codec.FOR_ANYONE, frame
        match frame:
            case Want():
                self.add_ranges(kind, body, frame.missing)
            case Forwarded():
                self.add_passed_on(kind, body, frame.data)
            case InView():
                assert not self._in_view, "it is told already"
                self._close_any()
                self.add_body(kind, body)
            case _ if _FRAME.size + len(body) > self._room and kind in LONG and to is not None:
                for piece in cut_into_pieces(kind, body, self._room - _FRAME.size - PIECE_HEAD):
                    self.add_alone(*encode_change(piece))
            case _ if _FRAME.size + len(body) > self._room:
                self.add_alone(kind, body)  # it names some members that have long names
            case _:
                self.add_control(kind, body)

    def add_unicast_control(
        self, frame: UnicastAck | UnicastNack | Close | Sync | SyncOk | SyncAck
    ) -> None:
        conn = _encode_conn(frame.conn)
        match frame:
            case UnicastAck():
                self.add_body(_UNICAST_ACK, conn + _encode_delivered(frame))
            case UnicastNack():
                self.add_ranges(_UNICAST_NACK, conn, frame.missing)
            case Close():
                self.add_body(_CLOSE, conn)
            case Sync():
                self.add_body(_SYNC, conn + encode_counter(frame.nonce))
            case SyncOk():
                self.add_body(_SYNC_OK, conn + _encode_answer(frame))
            case SyncAck():
                self.add_body(_SYNC_ACK, conn + encode_counter(frame.nonce))
            case _:
                assert_never(frame)

    def add_ranges(self, kind: int, whose: bytes, missing: Sequence[range]) -> None:
        """A request for what is missing of what `whose` encodes: a stream, connection or sender. If
        that leaves no room for a range, it goes in a larger datagram."""
        assert 1 <= len(missing) <= NACK_RANGES_MAX, len(missing)
        assert all(gap.step == 1 for gap in missing), missing
        assert all(gap.start < gap.stop <= gap.start + RANGE_COUNT_MAX for gap in missing), missing
        assert all(gap.stop <= after.start for gap, after in pairwise(missing)), missing
        assert 1 <= missing[0].start <= missing[-1].stop - 1 <= SEQNO_MAX, missing
        head_bytes = _FRAME.size + len(whose)
        start = 0
        while start < len(missing):
            fitting = min(self._ranges, (self._bytes - head_bytes) // RANGE.size)
            if not self._frames or fitting < 1:
                if self._is_empty:
                    self._bytes = head_bytes + RANGE.size * len(missing)
                else:
                    self._close()
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
        self, runs: list[Data | UnicastData], kind: int = _DATA, whose: bytes = b""
    ) -> None:
        """One run, in pieces that each continue the one before. `whose`: it is passed on, in frames
        of this kind which begin so."""
        run = runs[0]
        if isinstance(run, Data):
            head_bytes = _DATA_HEAD.size + len(whose)
        else:
            kind = _UNICAST_DATA
            head_bytes = _UNICAST_DATA_HEAD.size
            _check_conn(run.conn)
        first, more, payloads = run.first, run.more, run.payloads
        if len(runs) > 1:
            payloads = list(chain.from_iterable([run.payloads for run in runs]))
        assert payloads, "a run has at least one message"
        assert 1 <= first <= SEQNO_MAX + 1 - len(payloads), first
        lengths = list(map(len, payloads))
        count = len(lengths)
        all_equal = lengths.count(lengths[0]) == count
        before: list[int] = []  # payload bytes before each message, if mixed lengths must be cut
        if not all_equal and sum(lengths) + count * SIZE.size > self._bytes - head_bytes:
            before = list(accumulate(lengths, initial=0))

        start = 0
        while start < count:
            room = self._bytes - head_bytes
            size = lengths[start]
            most = min(count, start + self._messages)
            stop = min(most, start + (room - SIZE.size) // size) if size else most
            if not self._frames or room < SIZE.size or stop <= start:
                alone = head_bytes + SIZE.size + size
                if self._is_empty and alone <= (self._largest if whose else self._room_max):
                    # It was cut for larger datagrams than we build now, and goes in one.
                    self._bytes = alone
                else:
                    self._close()
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
            flags |= more * MORE
            head = _encode_head(run, kind, whose, frame_bytes, flags, first + start, stop - start)
            if kind in _SAID_IN_VIEW:
                self._parts[1] = self._in_view
            self._parts.append(head)
            self._parts.append(sizes)
            self._parts += payloads[start:stop]
            self._messages -= stop - start
            self._frames -= 1
            self._bytes -= frame_bytes
            start = stop
            if whose:
                self._close()


def _encode_frame(kind: int, body: bytes) -> bytes:
    return _FRAME.pack(kind, len(body)) + body


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
    body_bytes = frame_bytes - _FRAME.size
    if isinstance(run, Data):
        if whose:
            head = _FRAME.pack(kind, body_bytes) + whose + STREAM.pack(run.stream)
            return head + RUN.pack(flags, first, count)
        return _DATA_HEAD.pack(_DATA, body_bytes, run.stream, flags, first, count)
    epoch, conn_id = run.conn
    return _UNICAST_DATA_HEAD.pack(_UNICAST_DATA, body_bytes, epoch, conn_id, flags, first, count)


def _continues(frame: Frame, run: Data | UnicastData) -> bool:
    if isinstance(frame, Data) and isinstance(run, Data):
        same = frame.stream == run.stream
    elif isinstance(frame, UnicastData) and isinstance(run, UnicastData):
        same = frame.conn == run.conn
    else:
        return False
    return same and frame.first == run.last + 1 and frame.more == run.more


def _encode_ack(ack: Ack) -> bytes:
    assert 0 <= ack.delivered <= ack.received <= SEQNO_MAX, ack
    assert 0 <= ack.allowance <= ALLOWANCE_MAX, ack
    return _WATERMARKS.pack(ack.stream, ack.received, ack.delivered, ack.allowance)


def _encode_watermark(watermark: Watermark) -> bytes:
    assert 0 <= watermark.seqno <= SEQNO_MAX, watermark
    return _STREAM_SEQNO.pack(watermark.stream, watermark.seqno)


def _check_conn(conn: Conn) -> None:
    assert 1 <= conn.epoch <= COUNTER_MAX, conn
    assert FIRST_CONN_ID <= conn.id <= CONN_ID_MAX, conn


def _encode_conn(conn: Conn) -> bytes:
    _check_conn(conn)
    return _CONN.pack(*conn)


def _encode_delivered(ack: UnicastAck) -> bytes:
    assert 0 <= ack.delivered <= SEQNO_MAX, ack
    assert 0 <= ack.allowance <= ALLOWANCE_MAX, ack
    return _DELIVERED.pack(ack.delivered, ack.allowance)


def _encode_answer(answer: SyncOk) -> bytes:
    assert 1 <= answer.nonce <= COUNTER_MAX, answer
    assert 0 <= answer.low <= answer.high <= SEQNO_MAX, answer
    return _ANSWER.pack(answer.nonce, answer.low, answer.high, answer.is_middle * _MIDDLE)


def _decode_frames(view: memoryview, offset: int, decoders: Decoders) -> list[Frame]:
    frames: list[Frame] = []
    messages = ranges = 0
    size = len(view)
    while offset < size:
        if len(frames) == FRAMES_MAX:
            raise DecodeError(Reject.COUNT)
        if size - offset < _FRAME.size:
            raise DecodeError(Reject.FRAME_LENGTH)
        kind, body_bytes = _FRAME.unpack_from(view, offset)
        start = offset + _FRAME.size
        offset = start + body_bytes
        if offset > size:
            raise DecodeError(Reject.FRAME_LENGTH)
        decode = decoders.get(kind)
        if decode is None:
            raise DecodeError(Reject.ADDRESSEE if kind in _DECODERS else Reject.FRAME_KIND)
        if kind in _PLACED and not _is_placed(kind, frames, is_last=offset == size):
            raise DecodeError(Reject.COUNT)
        frame = decode(view, start, offset)
        if isinstance(frame, Messages):
            messages += frame.count
        elif isinstance(frame, _WITH_RANGES):
            ranges += len(frame.missing)
        if messages > MESSAGES_MAX or ranges > NACK_RANGES_MAX:
            raise DecodeError(Reject.COUNT)
        frames.append(frame)
    return frames


def _is_placed(kind: int, before: list[Frame], *, is_last: bool) -> bool:
    """Whether a tag is the first, and nothing but a tag beside what has a datagram to itself."""
    if kind == IN_VIEW:
        return not before
    return is_last and (not before or (len(before) == 1 and isinstance(before[0], InView)))


def _decode_unicast_data(view: memoryview, start: int, stop: int) -> UnicastData:
    first, count, cut, more = decode_run(view, start + _CONN.size, stop)
    return UnicastData.uncut(_decode_conn(view, start), first, count, cut, more=more)


def _decode_peer_repair(view: memoryview, start: int, stop: int) -> PeerRepair:
    cut = Cutter(view[:stop], start)
    sender = cut.member()
    data = decode_data(view, cut.offset, stop)
    if data.stream is not Stream.FIFO:
        raise DecodeError(Reject.STREAM)
    return PeerRepair(sender, data)


def _decode_peer_repair_request(view: memoryview, start: int, stop: int) -> PeerRepairRequest:
    cut = Cutter(view[:stop], start)
    return PeerRepairRequest(cut.member(), tuple(decode_ranges(view, cut.offset, stop)))


def _decode_ack(view: memoryview, start: int, stop: int) -> Ack:
    if stop - start != _WATERMARKS.size:
        raise DecodeError(Reject.FRAME_LENGTH)
    stream, received, delivered, allowance = _WATERMARKS.unpack_from(view, start)
    if not delivered <= received <= SEQNO_MAX:
        raise DecodeError(Reject.SEQNO)
    if allowance > ALLOWANCE_MAX:
        raise DecodeError(Reject.COUNT)
    return Ack(decode_stream(stream), received, delivered, allowance)


def _decode_unicast_ack(view: memoryview, start: int, stop: int) -> UnicastAck:
    if stop - start != _CONN.size + _DELIVERED.size:
        raise DecodeError(Reject.FRAME_LENGTH)
    delivered, allowance = _DELIVERED.unpack_from(view, start + _CONN.size)
    if delivered > SEQNO_MAX:
        raise DecodeError(Reject.SEQNO)
    if allowance > ALLOWANCE_MAX:
        raise DecodeError(Reject.COUNT)
    return UnicastAck(_decode_conn(view, start), delivered, allowance)


def _decode_nack(view: memoryview, start: int, stop: int) -> Nack:
    missing = decode_ranges(view, start + STREAM.size, stop)
    return Nack(decode_stream(view[start]), missing)


def _decode_unicast_nack(view: memoryview, start: int, stop: int) -> UnicastNack:
    missing = decode_ranges(view, start + _CONN.size, stop)
    return UnicastNack(_decode_conn(view, start), missing)


def _decode_watermark(view: memoryview, start: int, stop: int) -> Watermark:
    if stop - start != _STREAM_SEQNO.size:
        raise DecodeError(Reject.FRAME_LENGTH)
    stream, seqno = _STREAM_SEQNO.unpack_from(view, start)
    if seqno > SEQNO_MAX:
        raise DecodeError(Reject.SEQNO)
    return Watermark(decode_stream(stream), seqno)


def _decode_close(view: memoryview, start: int, stop: int) -> Close:
    if stop - start != _CONN.size:
        raise DecodeError(Reject.FRAME_LENGTH)
    return Close(_decode_conn(view, start))


def _decode_sync(view: memoryview, start: int, stop: int) -> Sync:
    return Sync(*_decode_conn_nonce(view, start, stop))


def _decode_sync_ok(view: memoryview, start: int, stop: int) -> SyncOk:
    if stop - start != _CONN.size + _ANSWER.size:
        raise DecodeError(Reject.FRAME_LENGTH)
    nonce, low, high, flags = _ANSWER.unpack_from(view, start + _CONN.size)
    if flags & ~_MIDDLE:
        raise DecodeError(Reject.FLAGS)
    if not 1 <= nonce <= COUNTER_MAX or not low <= high <= SEQNO_MAX:
        raise DecodeError(Reject.SEQNO)
    return SyncOk(_decode_conn(view, start), nonce, low, high, bool(flags & _MIDDLE))


def _decode_sync_ack(view: memoryview, start: int, stop: int) -> SyncAck:
    return SyncAck(*_decode_conn_nonce(view, start, stop))


def _decode_conn_nonce(view: memoryview, start: int, stop: int) -> tuple[Conn, int]:
    nonce = decode_counter(view, start + _CONN.size, stop)
    return _decode_conn(view, start), nonce


def _decode_conn(view: memoryview, start: int) -> Conn:
    epoch, conn_id = _CONN.unpack_from(view, start)
    if not 1 <= epoch <= COUNTER_MAX or conn_id < FIRST_CONN_ID:
        raise DecodeError(Reject.SEQNO)
    return Conn(epoch, conn_id)


_DECODERS_FOR_ANYONE: Final[Decoders] = {
    _DATA: decode_data,
    _ACK: _decode_ack,
    _NACK: _decode_nack,
    _WATERMARK: _decode_watermark,
    **control.FOR_ANYONE,
    **change_codec.FOR_ANYONE,
}

# A connection is between two incarnations. What is said about it to anyone could reach the process
# that has the address now, and be taken for news about one of its own.
_DECODERS: Final[Decoders] = {
    **_DECODERS_FOR_ANYONE,
    _UNICAST_DATA: _decode_unicast_data,
    _UNICAST_ACK: _decode_unicast_ack,
    _UNICAST_NACK: _decode_unicast_nack,
    _CLOSE: _decode_close,
    _SYNC: _decode_sync,
    _SYNC_OK: _decode_sync_ok,
    _SYNC_ACK: _decode_sync_ack,
    _PEER_REPAIR_REQUEST: _decode_peer_repair_request,
    _PEER_REPAIR: _decode_peer_repair,
    **control.FOR_ONE,
    **change_codec.FOR_ONE,
}
