"""Frames to datagrams and back: the only file that knows tags and byte layouts (docs/wire.md).

`pack` is for our own frames: what it cannot encode is our bug and fails an assertion. `unpack` is
for bytes that anybody may have sent: it raises DecodeError and nothing else, takes time linear in
the datagram and allocates at most 4 × its length + 96 KiB. Three limits per datagram see to that:
FRAMES_MAX, MESSAGES_MAX and NACK_RANGES_MAX. `pack` begins another datagram where one is reached.

There is one header per datagram and per run, none per message. Payloads are cut out of a datagram
in one call into C, and only when somebody reads them.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from functools import lru_cache, partial
from io import BytesIO
from itertools import accumulate, chain, pairwise, repeat
from struct import Struct
from struct import error as StructError
from struct import pack as struct_pack
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, TypeAlias, assert_never

from ringcast.config import (
    DATAGRAM_BYTES_MAX,
    DATAGRAM_BYTES_MIN,
    check_name,
    check_whole,
)
from ringcast.errors import ConfigError, DecodeError, Reject
from ringcast.model import INCARNATION_MAX, SEQNO_MAX, Address, Member, Stream
from ringcast.wire.frames import Ack, Data, Hello, Highest, Nack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringcast.wire.frames import Frame

    Buffer: TypeAlias = bytes | bytearray | memoryview

VERSION: Final = 1

FRAMES_MAX: Final = 128
"""Frames in one datagram. Each costs a few hundred bytes once decoded, however short it is."""

MESSAGES_MAX: Final = 8192
"""Messages in one datagram, over all its runs. Messages may be empty, so the datagram's length
alone would not bound the lists that its receiver builds."""

NACK_RANGES_MAX: Final = 128
"""Ranges in one Nack, and in one datagram. Asking for more at once is our bug."""

ALLOWANCE_MAX: Final = 2**63 - 1
"""Bytes a sender may be allowed in flight: what a trace column holds."""

IDENTITIES_MAX: Final = 1024
"""Decoded senders kept. More may talk to us; the oldest is then decoded again."""

_RANGE_COUNT_MAX: Final = 2**32 - 1
"""Seqnos in one range: what its field holds, and far more than any window."""

_PAYLOAD_BYTES_MIN: Final = 64
"""Below this a seal leaves no useful room in a datagram."""

_STRUCT_COUNT_MAX: Final = 1024
_STRUCTS_MAX: Final = 64
"""Structs that cut equal payloads take 32 bytes per payload: 2 MB if all are of the longest."""

_MAGIC: Final = b"RC"
_HEADER: Final = Struct("<2sBBB")  # magic, version, flags, bytes of identity
_ADDRESSEE: Final = Struct("<Q")  # the incarnation of the member it is for
_ANYONE: Final = 0
_PORT_INCARNATION: Final = Struct("<HQ")

_DATA, _ACK, _NACK, _HIGHEST, _HELLO = 1, 2, 3, 4, 5
_FRAME: Final = Struct("<BH")  # kind, bytes of body
_RUN: Final = Struct("<BBQH")  # stream, flags, first, count
_SIZE: Final = Struct("<H")  # of one payload
_WATERMARKS: Final = Struct("<BQQQ")  # stream, held, delivered, allowance
_STREAM: Final = Struct("<B")
_RANGE: Final = Struct("<QI")  # first, count
_STREAM_SEQNO: Final = Struct("<BQ")
_FLAGS: Final = Struct("<B")
_FRAME_RUN: Final = Struct("<BHBBQH")  # _FRAME and _RUN in one call

_EQUAL, _MORE = 1, 2  # flags of a run
_RUN_BYTES: Final = _FRAME_RUN.size
_NACK_BYTES: Final = _FRAME.size + _STREAM.size

_STREAMS: Final = {int(stream): stream for stream in Stream}


class DatagramSeal(Protocol):
    """Protects whole datagrams: what encryption or authentication plugs into."""

    overhead: int
    """Bytes that sealing adds."""

    def seal(self, datagram: bytes) -> bytes: ...

    def open(self, datagram: bytes) -> bytes:
        """What was sealed; DecodeError(Reject.SEAL) unless it comes from a holder of the key."""
        ...


class Codec:
    """One member's datagrams in one group. Remembers nothing but what decoding again would give."""

    stateless: ClassVar[bool] = True

    def __init__(
        self, group: str, me: Member, datagram_bytes: int, seal: DatagramSeal | None = None
    ) -> None:
        check_whole("datagram_bytes", datagram_bytes, DATAGRAM_BYTES_MIN, DATAGRAM_BYTES_MAX)
        identity = _encode_identity(group, me)
        self._group = group
        self._seal = seal
        self._header = _HEADER.pack(_MAGIC, VERSION, 0, len(identity)) + identity
        self._incarnation = me.incarnation
        header_bytes = len(self._header) + _ADDRESSEE.size
        self._room = datagram_bytes - header_bytes - (seal.overhead if seal else 0)
        self._senders: dict[bytes, Member] = {}
        if self.payload_bytes_max < _PAYLOAD_BYTES_MIN:
            lowest = datagram_bytes + _PAYLOAD_BYTES_MIN - self.payload_bytes_max
            raise ConfigError("datagram_bytes", datagram_bytes, f"{lowest} or more with this seal")

    @property
    def payload_bytes_max(self) -> int:
        """The largest payload that fits one datagram."""
        return self._room - _RUN_BYTES - _SIZE.size

    def pack(self, frames: Sequence[Frame], to: Member | None = None) -> list[bytes]:
        """As few datagrams as filling them in order gives, for one member or for anyone.

        Runs that continue each other become one; runs and Nacks are cut where a datagram is full.
        """
        addressee = _ADDRESSEE.pack(to.incarnation if to else _ANYONE)
        packing = _Packing(self._header + addressee, self._room)
        runs: list[Data] = []  # each continues the one before
        for frame in frames:
            if runs and not _continues(frame, runs[-1]):
                packing.add_runs(runs)
                runs = []
            match frame:
                case Data():
                    runs.append(frame)
                case Nack():
                    packing.add_nack(frame)
                case Ack():
                    packing.add_body(_ACK, _encode_ack(frame))
                case Highest():
                    packing.add_body(_HIGHEST, _encode_highest(frame))
                case Hello():
                    packing.add_body(_HELLO, _FLAGS.pack(frame.is_question))
                case _:
                    assert_never(frame)
        if runs:
            packing.add_runs(runs)
        datagrams = packing.finish()
        if self._seal is not None:
            datagrams = [self._seal.seal(datagram) for datagram in datagrams]
        return datagrams

    def unpack(self, datagram: Buffer, *, overhear: bool = False) -> tuple[Member, list[Frame]]:
        """Who sent it, and its frames; DecodeError if any byte of it is not as it must be.

        What is meant for another incarnation is refused, unless one only wants to overhear: an
        ack for the process that had this address before would purge what nobody has. Runs refer
        to the buffer until their payloads are read: read them before reusing it.
        """
        if len(datagram) > DATAGRAM_BYTES_MAX:
            raise DecodeError(Reject.TOO_LONG)
        if self._seal is not None:
            datagram = self._seal.open(bytes(datagram))
        view = memoryview(datagram)
        if len(view) < _HEADER.size:
            raise DecodeError(Reject.TOO_SHORT)
        magic, version, flags, identity_bytes = _HEADER.unpack_from(view)
        if magic != _MAGIC:
            raise DecodeError(Reject.NOT_OURS)
        if version != VERSION:
            raise DecodeError(Reject.VERSION)
        if flags:
            raise DecodeError(Reject.FLAGS)
        identity_stop = _HEADER.size + identity_bytes
        body = identity_stop + _ADDRESSEE.size
        if len(view) <= body:  # a datagram without frames says nothing: nobody sends one
            raise DecodeError(Reject.TOO_SHORT)
        identity = bytes(view[_HEADER.size : identity_stop])
        sender = self._senders.get(identity) or self._learn(identity)
        (addressee,) = _ADDRESSEE.unpack_from(view, identity_stop)
        if addressee not in (_ANYONE, self._incarnation) and not overhear:
            raise DecodeError(Reject.ADDRESSEE)
        return sender, _decode_frames(view, body)

    def _learn(self, identity: bytes) -> Member:
        group, sender = _decode_identity(identity)
        if group != self._group:
            raise DecodeError(Reject.GROUP)
        if len(self._senders) == IDENTITIES_MAX:
            del self._senders[next(iter(self._senders))]
        self._senders[identity] = sender
        return sender


class _Packing:
    """Datagrams being filled, one after the other. What does not fit closes the open one."""

    __slots__ = (
        "_bytes",
        "_frames",
        "_header",
        "_messages",
        "_packed",
        "_parts",
        "_ranges",
        "_room",
    )

    def __init__(self, header: bytes, room: int) -> None:
        self._header = header
        self._room = room
        self._packed: list[bytes] = []
        self._begin()

    def _begin(self) -> None:
        self._parts = [self._header]
        self._bytes = self._room  # what is left in the open datagram, as all below
        self._frames = FRAMES_MAX
        self._messages = MESSAGES_MAX
        self._ranges = NACK_RANGES_MAX

    def _close(self) -> None:
        assert self._frames < FRAMES_MAX, "larger than a datagram"
        self._packed.append(b"".join(self._parts))
        self._begin()

    def finish(self) -> list[bytes]:
        if self._frames < FRAMES_MAX:
            self._close()
        return self._packed

    def add_body(self, kind: int, body: bytes) -> None:
        frame = _FRAME.pack(kind, len(body)) + body
        if not self._frames or len(frame) > self._bytes:
            self._close()
        self._parts.append(frame)
        self._frames -= 1
        self._bytes -= len(frame)

    def add_nack(self, nack: Nack) -> None:
        missing = nack.missing
        assert 1 <= len(missing) <= NACK_RANGES_MAX, len(missing)
        assert all(gap.step == 1 for gap in missing), missing
        assert all(gap.start < gap.stop <= gap.start + _RANGE_COUNT_MAX for gap in missing), missing
        assert all(gap.stop <= after.start for gap, after in pairwise(missing)), missing
        assert 1 <= missing[0].start <= missing[-1].stop - 1 <= SEQNO_MAX, missing
        stream = _STREAM.pack(nack.stream)
        start = 0
        while start < len(missing):
            fitting = min(self._ranges, (self._bytes - _NACK_BYTES) // _RANGE.size)
            if not self._frames or fitting < 1:
                self._close()
                continue
            cut = missing[start : start + fitting]
            pairs = [_RANGE.pack(gap.start, gap.stop - gap.start) for gap in cut]
            self._ranges -= len(cut)
            self.add_body(_NACK, stream + b"".join(pairs))
            start += len(cut)

    def add_runs(self, runs: list[Data]) -> None:
        """One run, in pieces that each continue the one before."""
        stream, first, more = runs[0].stream, runs[0].first, runs[0].more
        payloads = runs[0].payloads
        if len(runs) > 1:
            payloads = list(chain.from_iterable([run.payloads for run in runs]))
        assert payloads, "a run has at least one message"
        assert 1 <= first <= SEQNO_MAX + 1 - len(payloads), first
        lengths = list(map(len, payloads))
        count = len(lengths)
        all_equal = lengths.count(lengths[0]) == count
        before: list[int] = []  # payload bytes before each message, if mixed lengths must be cut
        if not all_equal and sum(lengths) + count * _SIZE.size > self._bytes - _RUN_BYTES:
            before = list(accumulate(lengths, initial=0))

        start = 0
        while start < count:
            room = self._bytes - _RUN_BYTES
            size = lengths[start]
            most = min(count, start + self._messages)
            stop = min(most, start + (room - _SIZE.size) // size) if size else most
            if not self._frames or room < _SIZE.size or stop <= start:
                self._close()
                continue
            # A run of mixed lengths may well have long stretches of equal ones.
            if all_equal or (before and _is_equal(lengths, before, start, stop)):
                flags, sizes = _EQUAL, _SIZE.pack(size)
                payload_bytes = size * (stop - start)
            else:
                stop = min(most, _fitting_stop(before, start, room)) if before else most
                cut = lengths[start:stop]
                flags, sizes = 0, struct_pack(f"<{len(cut)}H", *cut)
                payload_bytes = sum(cut)
            body_bytes = _RUN.size + len(sizes) + payload_bytes
            self._parts.append(
                _FRAME_RUN.pack(
                    _DATA, body_bytes, stream, flags | more * _MORE, first + start, stop - start
                )
            )
            self._parts.append(sizes)
            self._parts += payloads[start:stop]
            self._messages -= stop - start
            self._frames -= 1
            self._bytes -= _FRAME.size + body_bytes
            start = stop


def _continues(frame: Frame, run: Data) -> bool:
    return (
        isinstance(frame, Data)
        and frame.first == run.last + 1
        and frame.stream == run.stream
        and frame.more == run.more
    )


def _is_equal(lengths: list[int], before: list[int], start: int, stop: int) -> bool:
    count = stop - start
    size = lengths[start]
    # The sum settles nearly every case without looking at each length.
    return before[stop] - before[start] == size * count == size * lengths[start:stop].count(size)


def _fitting_stop(before: list[int], start: int, room: int) -> int:
    """Where a mixed run from `start` on must end to fit the room with its table of lengths.

    `before[i]` is how many payload bytes stand before message i.
    """

    def bytes_through(stop: int) -> int:
        return before[stop] - before[start] + _SIZE.size * (stop - start)

    return bisect_right(range(len(before)), room, lo=start, key=bytes_through) - 1


def _encode_ack(ack: Ack) -> bytes:
    assert 0 <= ack.delivered <= ack.held <= SEQNO_MAX, ack
    assert 0 <= ack.allowance <= ALLOWANCE_MAX, ack
    return _WATERMARKS.pack(ack.stream, ack.held, ack.delivered, ack.allowance)


def _encode_highest(highest: Highest) -> bytes:
    assert 0 <= highest.seqno <= SEQNO_MAX, highest
    return _STREAM_SEQNO.pack(highest.stream, highest.seqno)


def _encode_identity(group: str, member: Member) -> bytes:
    address, incarnation, name = member
    _check_identity(group, member)
    check_whole("port", address.port, 0, 65535)
    check_whole("incarnation", incarnation, 1, INCARNATION_MAX)
    numbers = _PORT_INCARNATION.pack(address.port, incarnation)
    return _encode_text(group) + _encode_text(address.host) + numbers + _encode_text(name)


def _encode_text(text: str) -> bytes:
    encoded = text.encode()
    return bytes([len(encoded)]) + encoded


def _decode_identity(identity: bytes) -> tuple[str, Member]:
    try:
        group, offset = _decode_text(identity, 0)
        host, offset = _decode_text(identity, offset)
        port, incarnation = _PORT_INCARNATION.unpack_from(identity, offset)
        name, offset = _decode_text(identity, offset + _PORT_INCARNATION.size)
        member = Member(Address(host, port), incarnation, name)
        _check_identity(group, member)
        check_whole("incarnation", incarnation, 1, INCARNATION_MAX)
    except (IndexError, StructError, UnicodeDecodeError, ConfigError):
        raise DecodeError(Reject.IDENTITY) from None
    if offset != len(identity):
        raise DecodeError(Reject.IDENTITY)
    return group, member


def _decode_text(identity: bytes, offset: int) -> tuple[str, int]:
    """The text at the offset and where it ends, which the caller holds against the length."""
    start = offset + 1
    stop = start + identity[offset]
    return str(identity[start:stop], "utf-8"), stop


def _check_identity(group: str, member: Member) -> None:
    check_name("group", group)
    check_name("host", member.address.host)
    check_name("name", member.name, empty_allowed=True)


def _decode_frames(view: memoryview, offset: int) -> list[Frame]:
    frames: list[Frame] = []
    messages = ranges = 0
    while offset < len(view):
        if len(frames) == FRAMES_MAX:
            raise DecodeError(Reject.COUNT)
        if len(view) - offset < _FRAME.size:
            raise DecodeError(Reject.FRAME_LENGTH)
        kind, body_bytes = _FRAME.unpack_from(view, offset)
        start = offset + _FRAME.size
        offset = start + body_bytes
        if offset > len(view):
            raise DecodeError(Reject.FRAME_LENGTH)
        decode = _DECODERS.get(kind)
        if decode is None:
            raise DecodeError(Reject.FRAME_KIND)
        frame = decode(view, start, offset)
        if isinstance(frame, Data):
            messages += frame.count
        elif isinstance(frame, Nack):
            ranges += len(frame.missing)
        if messages > MESSAGES_MAX or ranges > NACK_RANGES_MAX:
            raise DecodeError(Reject.COUNT)
        frames.append(frame)
    return frames


def _decode_data(view: memoryview, start: int, stop: int) -> Data:
    sizes = start + _RUN.size
    if stop - sizes < _SIZE.size:  # either form has at least one size
        raise DecodeError(Reject.FRAME_LENGTH)
    stream, flags, first, count = _RUN.unpack_from(view, start)
    if flags & ~(_EQUAL | _MORE):
        raise DecodeError(Reject.FLAGS)
    if not 1 <= count <= MESSAGES_MAX:
        raise DecodeError(Reject.COUNT)
    if not 1 <= first <= SEQNO_MAX + 1 - count:
        raise DecodeError(Reject.SEQNO)
    cut: Callable[[], list[bytes]]
    if flags & _EQUAL:
        blob = sizes + _SIZE.size
        (size,) = _SIZE.unpack_from(view, sizes)
        if stop - blob != size * count:
            raise DecodeError(Reject.LENGTHS)
        cut = partial(_cut_equal, view, blob, size, count)
    else:
        blob = sizes + _SIZE.size * count
        if blob > stop:
            raise DecodeError(Reject.LENGTHS)
        lengths = _decode_lengths(view[sizes:blob])
        if stop - blob != sum(lengths):
            raise DecodeError(Reject.LENGTHS)
        cut = partial(_cut_mixed, view, blob, stop, lengths)
    return Data.uncut(_stream(stream), first, count, cut, more=bool(flags & _MORE))


def _decode_ack(view: memoryview, start: int, stop: int) -> Ack:
    if stop - start != _WATERMARKS.size:
        raise DecodeError(Reject.FRAME_LENGTH)
    stream, held, delivered, allowance = _WATERMARKS.unpack_from(view, start)
    if not delivered <= held <= SEQNO_MAX:
        raise DecodeError(Reject.SEQNO)
    if allowance > ALLOWANCE_MAX:
        raise DecodeError(Reject.COUNT)
    return Ack(_stream(stream), held, delivered, allowance)


def _decode_nack(view: memoryview, start: int, stop: int) -> Nack:
    pairs = start + _STREAM.size
    if pairs > stop or (stop - pairs) % _RANGE.size:
        raise DecodeError(Reject.FRAME_LENGTH)
    if not 1 <= (stop - pairs) // _RANGE.size <= NACK_RANGES_MAX:
        raise DecodeError(Reject.COUNT)
    missing = []
    lowest = 1
    for first, count in _RANGE.iter_unpack(view[pairs:stop]):
        if not count:
            raise DecodeError(Reject.COUNT)
        if first > SEQNO_MAX + 1 - count or not first:
            raise DecodeError(Reject.SEQNO)
        if first < lowest:
            raise DecodeError(Reject.RANGES)
        lowest = first + count
        missing.append(range(first, lowest))
    return Nack(_stream(view[start]), missing)


def _decode_highest(view: memoryview, start: int, stop: int) -> Highest:
    if stop - start != _STREAM_SEQNO.size:
        raise DecodeError(Reject.FRAME_LENGTH)
    stream, seqno = _STREAM_SEQNO.unpack_from(view, start)
    if seqno > SEQNO_MAX:
        raise DecodeError(Reject.SEQNO)
    return Highest(_stream(stream), seqno)


def _decode_hello(view: memoryview, start: int, stop: int) -> Hello:
    if stop - start != _FLAGS.size:
        raise DecodeError(Reject.FRAME_LENGTH)
    (flags,) = _FLAGS.unpack_from(view, start)
    if flags > 1:
        raise DecodeError(Reject.FLAGS)
    return Hello(is_question=bool(flags))


_DECODERS: Final[dict[int, Callable[[memoryview, int, int], Frame]]] = {
    _DATA: _decode_data,
    _ACK: _decode_ack,
    _NACK: _decode_nack,
    _HIGHEST: _decode_highest,
    _HELLO: _decode_hello,
}


def _stream(number: int) -> Stream:
    stream = _STREAMS.get(number)
    if stream is None:
        raise DecodeError(Reject.STREAM)
    return stream


def _decode_lengths(table: memoryview) -> array[int]:
    """The table in two bytes per entry: a tuple of ints would take twenty times the datagram."""
    lengths = array("H")
    lengths.frombytes(table)
    if sys.byteorder == "big":  # pragma: no cover (little-endian machines test this)
        lengths.byteswap()
    return lengths


def _cut_equal(view: memoryview, start: int, size: int, count: int) -> list[bytes]:
    if count <= _STRUCT_COUNT_MAX:
        return list(_struct_of(size, count).unpack_from(view, start))
    return list(map(BytesIO(view[start : start + size * count]).read, repeat(size, count)))


def _cut_mixed(view: memoryview, start: int, stop: int, lengths: array[int]) -> list[bytes]:
    # To read a file in memory is to slice by a table of lengths without running bytecode.
    return list(map(BytesIO(view[start:stop]).read, lengths))


@lru_cache(_STRUCTS_MAX)
def _struct_of(size: int, count: int) -> Struct:
    return Struct("<" + f"{size}s" * count)
