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

from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Final, TypeAlias

from ringcast.checks import NAME_BYTES_MAX, check_whole
from ringcast.config import DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MIN
from ringcast.errors import ConfigError, DecodeError, Reject
from ringcast.model import CONN_ID_MAX, FIRST_CONN_ID, SEQNO_MAX, Conn, Member
from ringcast.wire.changes import InView, Want
from ringcast.wire.fields import CONN
from ringcast.wire.frames import Data, Messages, Nack, PeerRepairRequest, UnicastData, UnicastNack
from ringcast.wire.layout import FRAMES
from ringcast.wire.limits import (
    COUNTER_MAX,
    FRAMES_MAX,
    IDENTITIES_MAX,
    MESSAGES_MAX,
    NACK_RANGES_MAX,
)
from ringcast.wire.members import MEMBER_BYTES_MAX, decode_identity, encode_identity
from ringcast.wire.packing import (
    DATA,
    DATA_HEAD,
    FRAME,
    MESSAGE_HEAD,
    RUN_HEADS,
    UNICAST_DATA,
    UNICAST_DATA_HEAD,
    Packing,
    encode_frame,
)
from ringcast.wire.runs import EQUAL, HEADED, MORE, RUN, SIZE, decode_data, decode_run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
_NUMBER_BYTES: Final = 8

_TAGS_MAX: Final = 64
_IN_VIEW: Final = FRAMES[InView].kind
_ALONE: Final = {layout.kind for layout in FRAMES.values() if layout.is_alone}

_MESSAGE_BODY_MIN: Final = MESSAGE_HEAD.size - FRAME.size

_WITH_RANGES: Final = (Nack, UnicastNack, PeerRepairRequest, Want)

_IDENTITY_BYTES_MAX: Final = 1 + NAME_BYTES_MAX + MEMBER_BYTES_MAX
_TAG_FRAME_BYTES: Final = FRAME.size + 2 * _NUMBER_BYTES  # with what is purged
_PASSING_HEAD_MAX: Final = (
    _HEADER.size
    + _IDENTITY_BYTES_MAX
    + _ADDRESSEE.size
    + _TAG_FRAME_BYTES
    + 1  # flags of a Forwarded
    + _NUMBER_BYTES  # and the counter of its view
    + 3 * MEMBER_BYTES_MAX
    + DATA_HEAD.size
)
"""What may stand before the lengths in a datagram with messages that are passed on."""


def header_of(group: str, member: Member) -> bytes:
    """What each of this member's datagrams begins with."""
    identity = encode_identity(group, member)
    return _HEADER.pack(MAGIC, VERSION, 0, len(identity)) + identity


class Codec:
    """One member's datagrams in one group. Remembers how large they may be, and else nothing but
    what decoding again would give."""

    def __init__(self, group: str, me: Member, datagram_bytes: int, overhead: int = 0) -> None:
        """`overhead`: so many bytes are added to each datagram before it leaves."""
        check_whole("datagram_bytes", datagram_bytes, DATAGRAM_BYTES_MIN, DATAGRAM_BYTES_MAX)
        self._me = me
        self._group = group
        self._added = overhead
        self._header = header_of(group, me)
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
        return min(self._room - UNICAST_DATA_HEAD.size - SIZE.size, passed_on)

    @property
    def tag(self) -> int:
        """Of the view in which is said what depends on it; 0: that is not told."""
        return self._tag

    @tag.setter
    def tag(self, tag: int) -> None:
        self._tag = tag
        body = FRAMES[InView].encode(InView(tag, self._purged)) if tag else b""
        self._in_view = encode_frame(_IN_VIEW, body) if tag else b""

    def mark(self, purged: int) -> None:
        """Say in each datagram that everybody has delivered what is up to this."""
        if purged != self._purged:
            self._purged = purged
            self.tag = self._tag

    def resize(self, datagram_bytes: int) -> None:
        """Fill datagrams up to so many bytes from now on; but neither to more than at first, nor to
        less than is of use."""
        room_min = UNICAST_DATA_HEAD.size + SIZE.size + _PAYLOAD_BYTES_MIN
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
        lone = frames[0] if len(frames) == 1 else None
        if isinstance(lone, Data) and lone.count == 1 and lone.made:
            assert 1 <= lone.first <= SEQNO_MAX, lone.first
            size = len(payload := lone.made[0])
            length = DATA_HEAD.size - FRAME.size + SIZE.size + size
            if FRAME.size + length <= self._room:
                whose, flags = lone.whose, EQUAL | lone.more * MORE | lone.headed * HEADED
                head = DATA_HEAD.pack(DATA, length, whose, flags, lone.first, 1) + SIZE.pack(size)
                return [b"".join((header, self._in_view, head, payload))]
        largest = DATAGRAM_BYTES_MAX - self._overhead
        packing = Packing(header, self._room, self._room_max, largest, self._in_view)
        runs: list[Data | UnicastData] = []  # each continues the one before
        for frame in frames:
            if runs and not runs[-1].is_continued_by(frame):
                packing.add_runs(runs)
                runs = []
            match frame:
                case Data():
                    runs.append(frame)
                case UnicastData():
                    assert to is not None, frame
                    runs.append(frame)
                case _:
                    packing.add_frame(frame, to)
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
        head = MESSAGE_HEAD.pack(UNICAST_DATA, length, epoch, conn_id, EQUAL, seqno, 1, size)
        return self._header + _ADDRESSEE.pack(to.incarnation) + head + payload

    def unpack(self, datagram: Buffer, *, overhear: bool = False) -> tuple[Member, list[Frame]]:
        """Who sent it, and its frames; DecodeError if any byte of it is not as it must be.

        What is meant for another incarnation is refused, unless one only wants to overhear: an
        ack for the process that had this address before would purge what nobody has. So is what
        says to come from this member's address: it would be believed about itself. Runs refer
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
        payload = start + MESSAGE_HEAD.size
        if len(datagram) < payload or not datagram.startswith(head):
            return None
        kind, length, epoch, conn_id, flags, first, count, size = MESSAGE_HEAD.unpack_from(
            datagram, start
        )
        rest = len(datagram) - payload
        is_one = kind == UNICAST_DATA and count == 1 and flags == EQUAL
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
        is_ours = sender.address == self._me.address  # and nobody else is there
        if is_ours or addressee not in (_ANYONE, self._me.incarnation):
            if overhear:
                return sender, _DECODERS
            raise DecodeError(Reject.OURS if is_ours else Reject.ADDRESSEE)
        decoders = _DECODERS_FOR_ANYONE if addressee == _ANYONE else _DECODERS
        if len(self._senders) == IDENTITIES_MAX:
            del self._senders[next(iter(self._senders))]
        self._senders[bytes(view[:body])] = sender, decoders
        return sender, decoders


def _decode_frames(view: memoryview, offset: int, decoders: Decoders) -> list[Frame]:
    frames: list[Frame] = []
    messages = ranges = 0
    size = len(view)
    while offset < size:
        if len(frames) == FRAMES_MAX:
            raise DecodeError(Reject.COUNT)
        if size - offset < FRAME.size:
            raise DecodeError(Reject.FRAME_LENGTH)
        kind, body_bytes = FRAME.unpack_from(view, offset)
        start = offset + FRAME.size
        offset = start + body_bytes
        if offset > size:
            raise DecodeError(Reject.FRAME_LENGTH)
        decode = decoders.get(kind)
        if decode is None:
            raise DecodeError(Reject.ADDRESSEE if kind in _DECODERS else Reject.FRAME_KIND)
        # A tag is the first, and nothing but a tag is beside what has a datagram to itself.
        is_second = len(frames) == 1 and isinstance(frames[0], InView)
        is_beside = kind in _ALONE and (offset < size or (frames and not is_second))
        is_tag = kind == _IN_VIEW
        if is_beside or (is_tag and frames):
            raise DecodeError(Reject.COUNT)
        frame = _decode_tag(bytes(view[start:offset])) if is_tag else decode(view, start, offset)
        if isinstance(frame, Messages):
            messages += frame.count
        elif isinstance(frame, _WITH_RANGES):
            ranges += len(frame.missing)
        if messages > MESSAGES_MAX or ranges > NACK_RANGES_MAX:
            raise DecodeError(Reject.COUNT)
        frames.append(frame)
    return frames


def run_in(datagram: Buffer) -> tuple[int, int, int] | None:
    """Of a datagram that was decoded and says nothing but one run of equal messages, in the view or
    not: bytes before the first seqno, bytes of a message, how many. None: it says something else.
    """
    view = memoryview(datagram)
    start = _HEADER.size + view[_HEADER.size - 1] + _ADDRESSEE.size
    kind, body = FRAME.unpack_from(view, start)
    if kind == _IN_VIEW:
        start += FRAME.size + body
        if start == len(view):
            return None
        kind, body = FRAME.unpack_from(view, start)
    head = RUN_HEADS.get(kind)
    if head is None or start + FRAME.size + body != len(view):
        return None
    before = start + head - RUN.size + 1  # behind the flags
    flags, _, count = RUN.unpack_from(view, before - 1)
    if not flags & EQUAL:
        return None
    (size,) = SIZE.unpack_from(view, start + head)
    return before, size, count


def _decode_unicast_data(view: memoryview, start: int, stop: int) -> UnicastData:
    data = UnicastData.__new__(UnicastData)
    decode_run(data, view, start + CONN.struct.size, stop)
    data.whose = CONN.make(*CONN.struct.unpack_from(view, start))
    return data


@lru_cache(_TAGS_MAX)
def _decode_tag(body: bytes) -> Frame:
    """Nearly every datagram has one, and they are the same for long."""
    frame: InView = FRAMES[InView].decode(memoryview(body), 0, len(body))
    return frame


_DECODERS_FOR_ANYONE: Final[Decoders] = {
    **{layout.kind: layout.decode for layout in FRAMES.values() if layout.to_anyone},
    DATA: decode_data,
}

# A connection is between two incarnations. What is said about it to anyone could reach the process
# that has the address now, and be taken for news about one of its own.
_DECODERS: Final[Decoders] = {
    **{layout.kind: layout.decode for layout in FRAMES.values()},
    **_DECODERS_FOR_ANYONE,
    UNICAST_DATA: _decode_unicast_data,
}
