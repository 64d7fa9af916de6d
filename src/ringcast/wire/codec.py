"""Frames to datagrams and back: the only file that knows tags and byte layouts (docs/wire.md).

`pack` is for our own frames: what it cannot encode is our bug and fails an assertion. `unpack` is
for bytes that anybody may have sent: it raises DecodeError and nothing else, takes time linear in
the datagram and allocates at most 4 × its length + 96 KiB. Limits per datagram see to that:
FRAMES_MAX, MESSAGES_MAX and NACK_RANGES_MAX; a view has at most VIEW_MEMBERS_MAX, and a datagram of
its own. `pack` begins another datagram where a limit is reached.

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
from struct import unpack as struct_unpack
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, TypeAlias, assert_never

from ringcast.config import (
    CAPACITY_LIMIT,
    DATAGRAM_BYTES_MAX,
    DATAGRAM_BYTES_MIN,
    check_name,
    check_whole,
)
from ringcast.errors import ConfigError, DecodeError, Reject
from ringcast.model import (
    CONN_ID_MAX,
    FIRST_CONN_ID,
    INCARNATION_MAX,
    SEQNO_MAX,
    Address,
    Conn,
    Digest,
    Member,
    Origin,
    Stream,
    View,
    ViewId,
)
from ringcast.wire.frames import (
    Ack,
    Alive,
    Beat,
    Begin,
    Begun,
    Claim,
    Close,
    Commit,
    CommitWanted,
    Data,
    Discover,
    EstateRun,
    EstateWanted,
    Half,
    HalfWanted,
    HeldUp,
    Highest,
    Join,
    Leave,
    Merge,
    Merged,
    Messages,
    Nack,
    Present,
    Probe,
    Refusal,
    Share,
    Stage,
    Standing,
    StateAsk,
    StateBegin,
    StateEnd,
    StatePart,
    StateRefused,
    StateStop,
    StateTaken,
    Suspect,
    Sync,
    SyncAck,
    SyncOk,
    Takeover,
    UnicastAck,
    UnicastData,
    UnicastNack,
    ViewAck,
    ViewIs,
    Welcome,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringcast.wire.frames import Frame, SystemMessage

    Buffer: TypeAlias = bytes | bytearray | memoryview
    Decoders: TypeAlias = dict[int, Callable[[memoryview, int, int], Frame]]
    MessageDecoders: TypeAlias = dict[int, Callable[[memoryview], SystemMessage]]

VERSION: Final = 1

FRAMES_MAX: Final = 128
"""Frames in one datagram. Each costs a few hundred bytes once decoded, however short it is."""

MESSAGES_MAX: Final = 8192
"""Messages in one datagram, over all its runs. Messages may be empty, so the datagram's length
alone would not bound the lists that its receiver builds."""

NACK_RANGES_MAX: Final = 128
"""Ranges in one request, and in one datagram. Asking for more at once is our bug."""

ALLOWANCE_MAX: Final = 2**63 - 1
"""Bytes a sender may be allowed in flight: what a trace column holds."""

COUNTER_MAX: Final = 2**63 - 1
"""Epochs, nonces and views count from 1 to here: what a trace column holds."""

VIEW_MEMBERS_MAX: Final = 128
"""Members of one view. One may take as little as 16 bytes of a datagram and, with its part of a
digest, 800 once decoded. So few also fit one datagram, however long their names are."""

PARTS_MAX: Final = 64
"""Groups that come together in one view. Each is a view of its own once decoded."""

ESTATES_MAX: Final = 256
"""Departed senders that one frame speaks of."""

DIGEST_ENTRIES_MAX: Final = 1024
"""Entries of a digest in a message: of all members of a view, and of many that have departed."""

IDENTITIES_MAX: Final = 1024
"""Decoded senders kept. More may talk to us; the oldest is then decoded again."""

_RANGE_COUNT_MAX: Final = 2**32 - 1
"""Seqnos in one range: what its field holds, and far more than any window."""

_PAYLOAD_BYTES_MIN: Final = 64
"""Below this a seal leaves no useful room in a datagram."""

_STRUCT_COUNT_MAX: Final = 1024
_STRUCTS_MAX: Final = 64
"""Structs that cut equal payloads take 32 bytes per payload: 2 MB if all are of the longest."""

_VIEWS_MAX: Final = 4
"""Encoded views kept: the same one goes to every member, and is repeated until it has arrived."""

_MAGIC: Final = b"RC"
_HEADER: Final = Struct("<2sBBB")  # magic, version, flags, bytes of identity
_ADDRESSEE: Final = Struct("<Q")  # the incarnation of the member it is for
_ANYONE: Final = 0
_PORT_INCARNATION: Final = Struct("<HQ")

_DATA, _ACK, _NACK, _HIGHEST = range(1, 5)
_UNICAST_DATA, _UNICAST_ACK, _UNICAST_NACK, _CLOSE, _SYNC, _SYNC_OK, _SYNC_ACK = range(6, 13)
_DISCOVER, _PRESENT, _JOIN, _VIEW_IS, _VIEW_ACK, _WELCOME, _LEAVE, _SUSPECT = range(13, 21)
_BEAT, _PROBE, _ALIVE, _HALF_WANTED, _HALF, _MERGE, _MERGED, _BEGIN, _BEGUN = range(21, 30)
_STATE_ASK, _STATE_REFUSED, _STATE_BEGIN, _STATE_PART, _STATE_END = range(30, 35)
_STATE_TAKEN, _STATE_STOP, _HELD_UP, _ESTATE_WANTED, _ESTATE_RUN = range(35, 40)
# Kinds 30 to 39 are in messages to one member, never in a datagram of their own.
_COMMIT, _COMMIT_WANTED, _TAKEOVER, _STANDING = range(40, 44)
_WITH_VIEW: Final = frozenset([_VIEW_IS, _WELCOME, _MERGE, _MERGED, _TAKEOVER, _STANDING])
"""Frames that have a datagram to themselves: they name many members."""
_FRAME: Final = Struct("<BH")  # kind, bytes of body
_STREAM: Final = Struct("<B")
_CONN: Final = Struct("<QI")  # epoch, id
_RUN: Final = Struct("<BQH")  # flags, first, count
_SIZE: Final = Struct("<H")  # of one payload
_RANGE: Final = Struct("<QI")  # first, count
_WATERMARKS: Final = Struct("<BQQQ")  # stream, held, delivered, allowance
_STREAM_SEQNO: Final = Struct("<BQ")
_FLAGS: Final = Struct("<B")
_DELIVERED: Final = Struct("<QQ")  # delivered, allowance
_COUNTER: Final = Struct("<Q")
_ANSWER: Final = Struct("<QQQB")  # nonce, low, high, flags
_MEMBER_COUNT: Final = Struct("<H")
_ENTRY: Final = Struct("<HBQI")  # place of the sender in the view, stream, seqno, fragments
_PLACE: Final = Struct("<H")  # of a member in the view
_BEGINNING: Final = Struct("<BQQB")  # stream, counter, offset, flags
_BEGUN_AT: Final = Struct("<BQ")  # stream, counter
_COMMITTED: Final = Struct("<QQ")  # seqno, counter of the view
_CLAIM: Final = Struct("<BQ")  # stage, high
_SHARE: Final = Struct("<BQQ")  # flags, delivered, held
_SPAN: Final = Struct("<QQ")  # first, last
_FRAGMENT: Final = Struct("<QHBI")  # counter of the view, place of the sender, stream, index
_NUMBERS: Final = Struct("<QQ")  # of a transfer, and the index, count or attempt
_DATA_HEAD: Final = Struct("<BHBBQH")  # _FRAME, _STREAM and _RUN in one call
_UNICAST_DATA_HEAD: Final = Struct("<BHQIBQH")  # _FRAME, _CONN and _RUN in one call

_EQUAL, _MORE = 1, 2  # flags of a run
_MIDDLE: Final = 1  # flag of an answer
_SLOW: Final = 1  # flag of a suspicion
_OPEN: Final = 1  # flag of a standing
_WINDOW: Final = 1  # flag of a share
_LAST: Final = 1  # flag of a half
_GIVEN_UP: Final = 2**32 - 1  # in place of a count of fragments: nobody has them

_STREAMS: Final = {int(stream): stream for stream in Stream}
_STAGES: Final = {int(stage): stage for stage in Stage}


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
        """The largest payload that fits one datagram, be it for the group or for one member."""
        return self._room - _UNICAST_DATA_HEAD.size - _SIZE.size

    def pack(self, frames: Sequence[Frame], to: Member | None = None) -> list[bytes]:
        """As few datagrams as filling them in order gives, for one member or for anyone.

        Runs that continue each other become one; runs and requests for lost messages are cut
        where a datagram is full. What speaks of a connection is always for one member. A view has
        a datagram of its own, which may be larger than `datagram_bytes`: IP fragments it then.
        """
        addressee = _ADDRESSEE.pack(to.incarnation if to else _ANYONE)
        packing = _Packing(self._header + addressee, self._room)
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
                    packing.add_ranges(_NACK, _STREAM.pack(frame.stream), frame.missing)
                case Ack():
                    packing.add_body(_ACK, _encode_ack(frame))
                case Highest():
                    packing.add_body(_HIGHEST, _encode_highest(frame))
                case UnicastAck() | UnicastNack() | Close() | Sync() | SyncOk() | SyncAck():
                    assert to is not None, frame
                    packing.add_unicast_control(frame)
                case ViewIs():
                    packing.add_alone(_VIEW_IS, _encode_view(frame.view))
                case Welcome():
                    packing.add_alone(_WELCOME, _encode_welcome(frame))
                case Merge():
                    packing.add_alone(_MERGE, _encode_view(frame.view))
                case Merged():
                    packing.add_alone(_MERGED, _encode_merged(frame))
                case Takeover():
                    packing.add_alone(_TAKEOVER, _encode_takeover(frame))
                case Standing():
                    packing.add_alone(_STANDING, _encode_standing(frame))
                case Commit() | CommitWanted():
                    packing.add_body(*_encode_commitment(frame))
                case Begin() | Begun():
                    assert to is not None, frame
                    packing.add_body(*_encode_beginning(frame))
                case _:
                    packing.add_body(*_encode_membership(frame))
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
        if addressee == _ANYONE:
            decoders = _DECODERS_FOR_ANYONE
        elif addressee == self._incarnation or overhear:
            decoders = _DECODERS
        else:
            raise DecodeError(Reject.ADDRESSEE)
        return sender, _decode_frames(view, body, decoders)

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

    def add_alone(self, kind: int, body: bytes) -> None:
        """A frame in a datagram of its own, as large as it is."""
        if self._frames < FRAMES_MAX:
            self._close()
        self._packed.append(self._header + _FRAME.pack(kind, len(body)) + body)

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
                self.add_body(_SYNC, conn + _encode_counter(frame.nonce))
            case SyncOk():
                self.add_body(_SYNC_OK, conn + _encode_answer(frame))
            case SyncAck():
                self.add_body(_SYNC_ACK, conn + _encode_counter(frame.nonce))
            case _:
                assert_never(frame)

    def add_ranges(self, kind: int, whose: bytes, missing: list[range]) -> None:
        """A request for what is missing of the stream or connection that `whose` encodes."""
        assert 1 <= len(missing) <= NACK_RANGES_MAX, len(missing)
        assert all(gap.step == 1 for gap in missing), missing
        assert all(gap.start < gap.stop <= gap.start + _RANGE_COUNT_MAX for gap in missing), missing
        assert all(gap.stop <= after.start for gap, after in pairwise(missing)), missing
        assert 1 <= missing[0].start <= missing[-1].stop - 1 <= SEQNO_MAX, missing
        head_bytes = _FRAME.size + len(whose)
        start = 0
        while start < len(missing):
            fitting = min(self._ranges, (self._bytes - head_bytes) // _RANGE.size)
            if not self._frames or fitting < 1:
                self._close()
                continue
            cut = missing[start : start + fitting]
            pairs = [_RANGE.pack(gap.start, gap.stop - gap.start) for gap in cut]
            self._ranges -= len(cut)
            self.add_body(kind, whose + b"".join(pairs))
            start += len(cut)

    def add_runs(self, runs: list[Data | UnicastData]) -> None:
        """One run, in pieces that each continue the one before."""
        run = runs[0]
        if isinstance(run, Data):
            head_bytes = _DATA_HEAD.size
        else:
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
        if not all_equal and sum(lengths) + count * _SIZE.size > self._bytes - head_bytes:
            before = list(accumulate(lengths, initial=0))

        start = 0
        while start < count:
            room = self._bytes - head_bytes
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
            frame_bytes = head_bytes + len(sizes) + payload_bytes
            head = _encode_head(run, frame_bytes, flags | more * _MORE, first + start, stop - start)
            self._parts.append(head)
            self._parts.append(sizes)
            self._parts += payloads[start:stop]
            self._messages -= stop - start
            self._frames -= 1
            self._bytes -= frame_bytes
            start = stop


def _encode_head(
    run: Data | UnicastData, frame_bytes: int, flags: int, first: int, count: int
) -> bytes:
    """What stands before the lengths in a frame with a piece of this run."""
    body_bytes = frame_bytes - _FRAME.size
    if isinstance(run, Data):
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


def _encode_counter(counter: int) -> bytes:
    assert 1 <= counter <= COUNTER_MAX, counter
    return _COUNTER.pack(counter)


def _encode_answer(answer: SyncOk) -> bytes:
    assert 1 <= answer.nonce <= COUNTER_MAX, answer
    assert 0 <= answer.low <= answer.high <= SEQNO_MAX, answer
    return _ANSWER.pack(answer.nonce, answer.low, answer.high, answer.is_middle * _MIDDLE)


def _encode_membership(
    frame: Discover
    | Present
    | Join
    | ViewAck
    | Leave
    | Suspect
    | Beat
    | Probe
    | Alive
    | HalfWanted
    | Half,
) -> tuple[int, bytes]:
    """The kind and the body."""
    match frame:
        case Discover():
            return _DISCOVER, b""
        case Present():
            assert 0 <= frame.size <= VIEW_MEMBERS_MAX, frame
            coordinator = _encode_member(frame.coordinator) if frame.coordinator else b""
            return _PRESENT, _MEMBER_COUNT.pack(frame.size) + coordinator
        case Join():
            return _JOIN, b""
        case ViewAck():
            return _VIEW_ACK, _encode_view_id(frame.view_id)
        case Leave():
            return _LEAVE, b""
        case Suspect():
            flags = _FLAGS.pack(frame.is_slow * _SLOW)
            return _SUSPECT, flags + _encode_member(frame.member)
        case Beat():
            return _BEAT, _encode_counter(frame.counter)
        case Probe():
            return _PROBE, _encode_counter(frame.nonce)
        case Alive():
            return _ALIVE, _encode_counter(frame.nonce)
        case HalfWanted():
            return _HALF_WANTED, _encode_fragment(frame, frame.first)
        case Half():
            flags = _FLAGS.pack(frame.is_last * _LAST)
            return _HALF, _encode_fragment(frame, frame.index) + flags + frame.payload
        case _:
            assert_never(frame)


def _encode_fragment(frame: HalfWanted | Half, index: int) -> bytes:
    assert 1 <= frame.counter <= COUNTER_MAX, frame
    assert 0 <= frame.place < VIEW_MEMBERS_MAX, frame
    assert 0 <= index < _GIVEN_UP, frame
    return _FRAGMENT.pack(frame.counter, frame.place, frame.stream, index)


def _encode_welcome(welcome: Welcome) -> bytes:
    digest = welcome.digest
    assert not digest.partials, digest
    places = {member: place for place, member in enumerate(welcome.view.members)}
    assert all(origin.sender in places for origin in digest.entries), welcome
    assert welcome.halves.keys() <= digest.entries.keys(), welcome
    entries = sorted(
        (places[origin.sender], origin.stream, seqno, _encode_count(welcome.halves.get(origin, 0)))
        for origin, seqno in digest.entries.items()
    )
    return _encode_view(welcome.view) + b"".join([_ENTRY.pack(*entry) for entry in entries])


def _encode_merged(merged: Merged) -> bytes:
    places = {member: place for place, member in enumerate(merged.view.members)}
    placed = [member for part in merged.parts for member in part]
    assert 1 <= len(merged.parts) <= PARTS_MAX, len(merged.parts)
    assert len(set(placed)) == len(placed), merged
    assert set(placed) <= places.keys(), merged
    parts = [
        _encode_view_id(part.id)
        + _MEMBER_COUNT.pack(len(part))
        + b"".join([_PLACE.pack(places[member]) for member in part])
        for part in merged.parts
    ]
    return _encode_view(merged.view) + b"".join(parts)


def _encode_beginning(frame: Begin | Begun) -> tuple[int, bytes]:
    assert 1 <= frame.counter <= COUNTER_MAX, frame
    if isinstance(frame, Begun):
        return _BEGUN, _BEGUN_AT.pack(frame.stream, frame.counter)
    assert 0 <= frame.offset <= SEQNO_MAX, frame
    flags = frame.is_middle * _MIDDLE
    return _BEGIN, _BEGINNING.pack(frame.stream, frame.counter, frame.offset, flags)


def _encode_commitment(frame: Commit | CommitWanted) -> tuple[int, bytes]:
    if isinstance(frame, CommitWanted):
        return _COMMIT_WANTED, _encode_counter(frame.counter)
    assert 0 <= frame.seqno <= SEQNO_MAX, frame
    assert 1 <= frame.counter <= COUNTER_MAX, frame
    return _COMMIT, _COMMITTED.pack(frame.seqno, frame.counter)


def _encode_takeover(frame: Takeover) -> bytes:
    assert len(frame.claims) <= ESTATES_MAX, frame
    claims = [
        _CLAIM.pack(claim.stage, claim.high) + _encode_member(claim.sender)
        for claim in frame.claims
    ]
    return _encode_view_id(frame.view_id) + b"".join(claims)


def _encode_standing(frame: Standing) -> bytes:
    assert len(frame.shares) <= ESTATES_MAX, frame
    shares = [
        _SHARE.pack(share.has_window * _WINDOW, share.delivered, share.held)
        + _encode_member(share.sender)
        for share in frame.shares
    ]
    flags = _FLAGS.pack(frame.is_open * _OPEN)
    return flags + _encode_view_id(frame.view_id) + b"".join(shares)


def _encode_count(fragments: int | None) -> int:
    assert fragments is None or 0 <= fragments < _GIVEN_UP, fragments
    return _GIVEN_UP if fragments is None else fragments


@lru_cache(_VIEWS_MAX)
def _encode_view(view: View) -> bytes:
    assert len(view) <= VIEW_MEMBERS_MAX, len(view)
    assert _are_distinct(view.members), view
    members = b"".join(map(_encode_member, view.members))
    return _encode_view_id(view.id) + _MEMBER_COUNT.pack(len(view)) + members


def _encode_view_id(view_id: ViewId) -> bytes:
    return _encode_counter(view_id.counter) + _encode_member(view_id.creator)


def _are_distinct(members: Sequence[Member]) -> bool:
    """Whether each is another process. A name is only a label and tells no two apart."""
    return len({member[:2] for member in members}) == len(members)


def _encode_identity(group: str, me: Member) -> bytes:
    check_name("group", group)
    return _encode_text(group) + _encode_member(me)


def _encode_member(member: Member) -> bytes:
    (host, port), incarnation, name = member
    _check_member(member)
    check_whole("port", port, 0, 65535)
    return _encode_text(host) + _PORT_INCARNATION.pack(port, incarnation) + _encode_text(name)


def _encode_text(text: str) -> bytes:
    encoded = text.encode()
    return bytes([len(encoded)]) + encoded


def _decode_identity(identity: bytes) -> tuple[str, Member]:
    view = memoryview(identity)
    try:
        group, offset = _cut_text(view, 0)
        check_name("group", group)
        member, offset = _cut_member(view, offset)
    except _MALFORMED:
        raise DecodeError(Reject.IDENTITY) from None
    if offset != len(identity):
        raise DecodeError(Reject.IDENTITY)
    return group, member


_MALFORMED: Final = (IndexError, StructError, UnicodeDecodeError, ConfigError)
"""What cutting texts and members out of a stranger's bytes may raise."""


def _cut_member(view: memoryview, offset: int) -> tuple[Member, int]:
    """The member at the offset, and where it ends."""
    host, offset = _cut_text(view, offset)
    port, incarnation = _PORT_INCARNATION.unpack_from(view, offset)
    name, offset = _cut_text(view, offset + _PORT_INCARNATION.size)
    member = Member(Address(host, port), incarnation, name)
    _check_member(member)
    return member, offset


def _cut_text(view: memoryview, offset: int) -> tuple[str, int]:
    """The text at the offset, and where it ends."""
    start = offset + 1
    stop = start + view[offset]
    if stop > len(view):
        raise IndexError
    return str(view[start:stop], "utf-8"), stop


def _check_member(member: Member) -> None:
    check_name("host", member.address.host)
    check_whole("incarnation", member.incarnation, 1, INCARNATION_MAX)
    check_name("name", member.name, empty_allowed=True)


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
        if kind in _WITH_VIEW and (frames or offset < size):
            raise DecodeError(Reject.COUNT)
        frame = decode(view, start, offset)
        if isinstance(frame, Messages):
            messages += frame.count
        elif isinstance(frame, Nack | UnicastNack):
            ranges += len(frame.missing)
        if messages > MESSAGES_MAX or ranges > NACK_RANGES_MAX:
            raise DecodeError(Reject.COUNT)
        frames.append(frame)
    return frames


def _decode_data(view: memoryview, start: int, stop: int) -> Data:
    first, count, cut, more = _decode_run(view, start + _STREAM.size, stop)
    return Data.uncut(_stream(view[start]), first, count, cut, more=more)


def _decode_unicast_data(view: memoryview, start: int, stop: int) -> UnicastData:
    first, count, cut, more = _decode_run(view, start + _CONN.size, stop)
    return UnicastData.uncut(_decode_conn(view, start), first, count, cut, more=more)


def _decode_run(
    view: memoryview, start: int, stop: int
) -> tuple[int, int, Callable[[], list[bytes]], bool]:
    """The first seqno, the count, what cuts the payloads, and whether more follows."""
    sizes = start + _RUN.size
    if stop - sizes < _SIZE.size:  # either form has at least one size
        raise DecodeError(Reject.FRAME_LENGTH)
    flags, first, count = _RUN.unpack_from(view, start)
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
    return first, count, cut, bool(flags & _MORE)


def _decode_ack(view: memoryview, start: int, stop: int) -> Ack:
    if stop - start != _WATERMARKS.size:
        raise DecodeError(Reject.FRAME_LENGTH)
    stream, held, delivered, allowance = _WATERMARKS.unpack_from(view, start)
    if not delivered <= held <= SEQNO_MAX:
        raise DecodeError(Reject.SEQNO)
    if allowance > ALLOWANCE_MAX:
        raise DecodeError(Reject.COUNT)
    return Ack(_stream(stream), held, delivered, allowance)


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
    missing = _decode_ranges(view, start + _STREAM.size, stop)
    return Nack(_stream(view[start]), missing)


def _decode_unicast_nack(view: memoryview, start: int, stop: int) -> UnicastNack:
    missing = _decode_ranges(view, start + _CONN.size, stop)
    return UnicastNack(_decode_conn(view, start), missing)


def _decode_ranges(view: memoryview, pairs: int, stop: int) -> list[range]:
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
    return missing


def _decode_highest(view: memoryview, start: int, stop: int) -> Highest:
    if stop - start != _STREAM_SEQNO.size:
        raise DecodeError(Reject.FRAME_LENGTH)
    stream, seqno = _STREAM_SEQNO.unpack_from(view, start)
    if seqno > SEQNO_MAX:
        raise DecodeError(Reject.SEQNO)
    return Highest(_stream(stream), seqno)


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
    nonce = _decode_counter(view, start + _CONN.size, stop)
    return _decode_conn(view, start), nonce


def _decode_conn(view: memoryview, start: int) -> Conn:
    epoch, conn_id = _CONN.unpack_from(view, start)
    if not 1 <= epoch <= COUNTER_MAX or conn_id < FIRST_CONN_ID:
        raise DecodeError(Reject.SEQNO)
    return Conn(epoch, conn_id)


def _decode_bare(frame: Discover | Join | Leave, _view: memoryview, start: int, stop: int) -> Frame:
    """A frame that says all by its kind."""
    if start != stop:
        raise DecodeError(Reject.FRAME_LENGTH)
    return frame


def _decode_present(view: memoryview, start: int, stop: int) -> Present:
    rest = start + _MEMBER_COUNT.size
    if rest > stop:
        raise DecodeError(Reject.FRAME_LENGTH)
    (size,) = _MEMBER_COUNT.unpack_from(view, start)
    if size > VIEW_MEMBERS_MAX:
        raise DecodeError(Reject.COUNT)
    return Present(_decode_member(view, rest, stop) if rest < stop else None, size)


def _decode_view_is(view: memoryview, start: int, stop: int) -> ViewIs:
    decoded, end = _decode_view(view[:stop], start)
    if end != stop:
        raise DecodeError(Reject.FRAME_LENGTH)
    return ViewIs(decoded)


def _decode_merge(view: memoryview, start: int, stop: int) -> Merge:
    return Merge(_decode_view_is(view, start, stop).view)


def _decode_merged(view: memoryview, start: int, stop: int) -> Merged:
    merged, offset = _decode_view(view[:stop], start)
    parts: list[View] = []
    placed: set[int] = set()
    while offset < stop:
        if len(parts) == PARTS_MAX:
            raise DecodeError(Reject.COUNT)
        view_id, offset = _decode_view_id(view[:stop], offset)
        if stop - offset < _MEMBER_COUNT.size:
            raise DecodeError(Reject.FRAME_LENGTH)
        (count,) = _MEMBER_COUNT.unpack_from(view, offset)
        offset += _MEMBER_COUNT.size
        if not 1 <= count <= len(merged) - len(placed):
            raise DecodeError(Reject.COUNT)
        if stop - offset < count * _PLACE.size:
            raise DecodeError(Reject.FRAME_LENGTH)
        end = offset + count * _PLACE.size
        places = [place for (place,) in _PLACE.iter_unpack(view[offset:end])]
        offset = end
        placed.update(places)
        members = [merged.members[place] for place in places if place < len(merged)]
        if len(members) < count or len(placed) < sum(map(len, parts)) + count:
            raise DecodeError(Reject.VIEW)
        parts.append(View(view_id, tuple(members)))
    if not parts:
        raise DecodeError(Reject.FRAME_LENGTH)
    return Merged(merged, tuple(parts))


def _decode_begin(view: memoryview, start: int, stop: int) -> Begin:
    if stop - start != _BEGINNING.size:
        raise DecodeError(Reject.FRAME_LENGTH)
    stream, counter, offset, flags = _BEGINNING.unpack_from(view, start)
    if not 1 <= counter <= COUNTER_MAX or offset > SEQNO_MAX:
        raise DecodeError(Reject.SEQNO)
    if flags & ~_MIDDLE:
        raise DecodeError(Reject.FLAGS)
    return Begin(_stream(stream), counter, offset, bool(flags & _MIDDLE))


def _decode_begun(view: memoryview, start: int, stop: int) -> Begun:
    if stop - start != _BEGUN_AT.size:
        raise DecodeError(Reject.FRAME_LENGTH)
    stream, counter = _BEGUN_AT.unpack_from(view, start)
    if not 1 <= counter <= COUNTER_MAX:
        raise DecodeError(Reject.SEQNO)
    return Begun(_stream(stream), counter)


def _decode_commit(view: memoryview, start: int, stop: int) -> Commit:
    if stop - start != _COMMITTED.size:
        raise DecodeError(Reject.FRAME_LENGTH)
    seqno, counter = _COMMITTED.unpack_from(view, start)
    if seqno > SEQNO_MAX or not 1 <= counter <= COUNTER_MAX:
        raise DecodeError(Reject.SEQNO)
    return Commit(seqno, counter)


def _decode_commit_wanted(view: memoryview, start: int, stop: int) -> CommitWanted:
    return CommitWanted(_decode_counter(view, start, stop))


def _decode_takeover(view: memoryview, start: int, stop: int) -> Takeover:
    view_id, offset = _decode_view_id(view[:stop], start)
    claims = []
    for (stage, high), sender in _decode_of_members(view[:stop], offset, _CLAIM):
        if stage not in _STAGES:
            raise DecodeError(Reject.FLAGS)
        if high > SEQNO_MAX:
            raise DecodeError(Reject.SEQNO)
        claims.append(Claim(sender, _STAGES[stage], high))
    return Takeover(view_id, tuple(claims))


def _decode_standing(view: memoryview, start: int, stop: int) -> Standing:
    if start == stop:
        raise DecodeError(Reject.FRAME_LENGTH)
    (is_open,) = _FLAGS.unpack_from(view, start)
    view_id, offset = _decode_view_id(view[:stop], start + _FLAGS.size)
    shares = []
    for (flags, delivered, held), sender in _decode_of_members(view[:stop], offset, _SHARE):
        if flags & ~_WINDOW:
            raise DecodeError(Reject.FLAGS)
        if not delivered <= held <= SEQNO_MAX:
            raise DecodeError(Reject.SEQNO)
        shares.append(Share(sender, delivered, held, bool(flags & _WINDOW)))
    if is_open & ~_OPEN:
        raise DecodeError(Reject.FLAGS)
    return Standing(view_id, bool(is_open & _OPEN), tuple(shares))


def _decode_of_members(
    view: memoryview, offset: int, numbers: Struct
) -> list[tuple[tuple[int, ...], Member]]:
    """What is said of each of several members, each at most once, up to the end."""
    found: list[tuple[tuple[int, ...], Member]] = []
    while offset < len(view):
        if len(found) == ESTATES_MAX:
            raise DecodeError(Reject.COUNT)
        if len(view) - offset < numbers.size:
            raise DecodeError(Reject.FRAME_LENGTH)
        said = numbers.unpack_from(view, offset)
        try:
            member, offset = _cut_member(view, offset + numbers.size)
        except _MALFORMED:
            raise DecodeError(Reject.MEMBER) from None
        found.append((said, member))
    if not _are_distinct([member for _, member in found]):
        raise DecodeError(Reject.VIEW)
    return found


def _decode_view_ack(view: memoryview, start: int, stop: int) -> ViewAck:
    view_id, end = _decode_view_id(view[:stop], start)
    if end != stop:
        raise DecodeError(Reject.FRAME_LENGTH)
    return ViewAck(view_id)


def _decode_welcome(view: memoryview, start: int, stop: int) -> Welcome:
    decoded, table = _decode_view(view[:stop], start)
    if (stop - table) % _ENTRY.size:
        raise DecodeError(Reject.FRAME_LENGTH)
    if (stop - table) // _ENTRY.size > len(decoded) * len(_STREAMS):
        raise DecodeError(Reject.COUNT)
    entries: dict[Origin, int] = {}
    halves: dict[Origin, int | None] = {}
    before = (-1, -1)
    for place, stream, seqno, fragments in _ENTRY.iter_unpack(view[table:stop]):
        if place >= len(decoded) or (place, stream) <= before:
            raise DecodeError(Reject.VIEW)
        if seqno > SEQNO_MAX:
            raise DecodeError(Reject.SEQNO)
        before = (place, stream)
        origin = Origin(decoded.members[place], _stream(stream))
        entries[origin] = seqno
        if fragments:
            halves[origin] = None if fragments == _GIVEN_UP else fragments
    return Welcome(decoded, Digest(entries), halves)


def _decode_view(view: memoryview, start: int) -> tuple[View, int]:
    """The view at the start, and where it ends."""
    view_id, offset = _decode_view_id(view, start)
    if len(view) - offset < _MEMBER_COUNT.size:
        raise DecodeError(Reject.FRAME_LENGTH)
    (count,) = _MEMBER_COUNT.unpack_from(view, offset)
    offset += _MEMBER_COUNT.size
    if not 1 <= count <= VIEW_MEMBERS_MAX:
        raise DecodeError(Reject.COUNT)
    members = []
    try:
        for _ in range(count):
            member, offset = _cut_member(view, offset)
            members.append(member)
    except _MALFORMED:
        raise DecodeError(Reject.MEMBER) from None
    if not _are_distinct(members):
        raise DecodeError(Reject.VIEW)
    return View(view_id, tuple(members)), offset


def _decode_view_id(view: memoryview, start: int) -> tuple[ViewId, int]:
    """The id at the start, and where it ends."""
    creator_start = start + _COUNTER.size
    if creator_start > len(view):
        raise DecodeError(Reject.FRAME_LENGTH)
    counter = _decode_counter(view, start, creator_start)
    try:
        creator, end = _cut_member(view, creator_start)
    except _MALFORMED:
        raise DecodeError(Reject.MEMBER) from None
    return ViewId(creator, counter), end


def _decode_member(view: memoryview, start: int, stop: int) -> Member:
    """The member that takes all of it."""
    try:
        member, end = _cut_member(view[:stop], start)
    except _MALFORMED:
        raise DecodeError(Reject.MEMBER) from None
    if end != stop:
        raise DecodeError(Reject.FRAME_LENGTH)
    return member


def _decode_half_wanted(view: memoryview, start: int, stop: int) -> HalfWanted:
    if stop - start != _FRAGMENT.size:
        raise DecodeError(Reject.FRAME_LENGTH)
    return HalfWanted(*_decode_fragment(view, start))


def _decode_half(view: memoryview, start: int, stop: int) -> Half:
    payload = start + _FRAGMENT.size + _FLAGS.size
    if stop < payload:
        raise DecodeError(Reject.FRAME_LENGTH)
    (flags,) = _FLAGS.unpack_from(view, payload - _FLAGS.size)
    if flags & ~_LAST:
        raise DecodeError(Reject.FLAGS)
    return Half(*_decode_fragment(view, start), bytes(view[payload:stop]), bool(flags & _LAST))


def _decode_fragment(view: memoryview, start: int) -> tuple[int, int, Stream, int]:
    """Which fragment: counter of the view, place of its sender there, stream, index."""
    counter, place, stream, index = _FRAGMENT.unpack_from(view, start)
    if not 1 <= counter <= COUNTER_MAX:
        raise DecodeError(Reject.SEQNO)
    if place >= VIEW_MEMBERS_MAX or index == _GIVEN_UP:
        raise DecodeError(Reject.COUNT)
    return counter, place, _stream(stream), index


def _decode_suspect(view: memoryview, start: int, stop: int) -> Suspect:
    if start == stop:
        raise DecodeError(Reject.FRAME_LENGTH)
    (flags,) = _FLAGS.unpack_from(view, start)
    if flags & ~_SLOW:
        raise DecodeError(Reject.FLAGS)
    return Suspect(_decode_member(view, start + _FLAGS.size, stop), bool(flags & _SLOW))


def _decode_beat(view: memoryview, start: int, stop: int) -> Beat:
    return Beat(_decode_counter(view, start, stop))


def _decode_probe(view: memoryview, start: int, stop: int) -> Probe:
    return Probe(_decode_counter(view, start, stop))


def _decode_alive(view: memoryview, start: int, stop: int) -> Alive:
    return Alive(_decode_counter(view, start, stop))


def _decode_counter(view: memoryview, start: int, stop: int) -> int:
    if stop - start != _COUNTER.size:
        raise DecodeError(Reject.FRAME_LENGTH)
    (counter,) = _COUNTER.unpack_from(view, start)
    if not 1 <= counter <= COUNTER_MAX:
        raise DecodeError(Reject.SEQNO)
    return int(counter)


_DECODERS_FOR_ANYONE: Final[Decoders] = {
    _DATA: _decode_data,
    _ACK: _decode_ack,
    _NACK: _decode_nack,
    _HIGHEST: _decode_highest,
    _DISCOVER: partial(_decode_bare, Discover()),
    _PRESENT: _decode_present,
    _JOIN: partial(_decode_bare, Join()),
    _VIEW_IS: _decode_view_is,
    _VIEW_ACK: _decode_view_ack,
    _WELCOME: _decode_welcome,
    _LEAVE: partial(_decode_bare, Leave()),
    _SUSPECT: _decode_suspect,
    _BEAT: _decode_beat,
    _PROBE: _decode_probe,
    _ALIVE: _decode_alive,
    _HALF_WANTED: _decode_half_wanted,
    _HALF: _decode_half,
    _MERGE: _decode_merge,
    _MERGED: _decode_merged,
    _COMMIT: _decode_commit,
    _COMMIT_WANTED: _decode_commit_wanted,
    _TAKEOVER: _decode_takeover,
    _STANDING: _decode_standing,
}

# A connection is between two incarnations, and so is what begins with a merge. What is said about
# it to anyone could reach the process that has the address now, and be taken for news of its own.
_DECODERS: Final[Decoders] = {
    **_DECODERS_FOR_ANYONE,
    _UNICAST_DATA: _decode_unicast_data,
    _UNICAST_ACK: _decode_unicast_ack,
    _UNICAST_NACK: _decode_unicast_nack,
    _CLOSE: _decode_close,
    _SYNC: _decode_sync,
    _SYNC_OK: _decode_sync_ok,
    _SYNC_ACK: _decode_sync_ack,
    _BEGIN: _decode_begin,
    _BEGUN: _decode_begun,
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


# The system's own messages: payloads of connections that are not the application's


def encode_message(message: SystemMessage) -> bytes:
    """The payload that carries it to one member."""
    match message:
        case StateAsk():
            kind, head = _STATE_ASK, _encode_counter(message.attempt)
            body = _encode_view_id(message.view_id) + _encode_digest(message.opened)
        case StateRefused():
            kind, head = _STATE_REFUSED, _encode_counter(message.attempt)
            body = _FLAGS.pack(message.reason)
        case StateBegin():
            kind, head = _STATE_BEGIN, _encode_numbers(message.transfer, message.attempt)
            body = _encode_digest(message.cut)
        case StatePart():
            kind, head = _STATE_PART, _encode_numbers(message.transfer, message.index)
            body = message.payload
        case StateEnd():
            kind, head, body = _STATE_END, _encode_numbers(message.transfer, message.count), b""
        case StateTaken():
            kind, head, body = _STATE_TAKEN, _encode_numbers(message.transfer, message.taken), b""
        case StateStop():
            kind, head, body = _STATE_STOP, _encode_counter(message.attempt), b""
        case HeldUp():
            kind, head, body = _HELD_UP, b"", _FLAGS.pack(message.is_full)
        case EstateWanted():
            kind, head = _ESTATE_WANTED, _SPAN.pack(message.first, message.last)
            body = _encode_view_id(message.view_id) + _encode_member(message.sender)
        case EstateRun():
            kind, head = _ESTATE_RUN, _encode_member(message.sender)
            body = _encode_estate_run(message)
        case _:
            assert_never(message)
    return b"".join((bytes([kind]), head, body))


def _encode_estate_run(run: EstateRun) -> bytes:
    count = len(run.payloads)
    assert 1 <= count <= CAPACITY_LIMIT, count
    sizes = struct_pack(f"<{count}I", *map(len, run.payloads))
    return _RANGE.pack(run.first, count) + bytes(run.more) + sizes + b"".join(run.payloads)


def _encode_numbers(transfer: int, other: int) -> bytes:
    assert 1 <= transfer <= COUNTER_MAX, transfer
    assert 0 <= other <= COUNTER_MAX, other
    return _NUMBERS.pack(transfer, other)


def _encode_digest(digest: Digest) -> bytes:
    assert not digest.partials, digest
    assert len(digest.entries) <= DIGEST_ENTRIES_MAX, len(digest.entries)
    entries = [
        _STREAM_SEQNO.pack(stream, seqno) + _encode_member(sender)
        for (sender, stream), seqno in digest.entries.items()
    ]
    return b"".join(entries)


def decode_message(payload: bytes) -> SystemMessage:
    """What the payload says; DecodeError if any byte of it is not as it must be."""
    if not payload:
        raise DecodeError(Reject.TOO_SHORT)
    decode = _MESSAGE_DECODERS.get(payload[0])
    if decode is None:
        raise DecodeError(Reject.FRAME_KIND)
    return decode(memoryview(payload)[1:])


def _decode_estate_wanted(body: memoryview) -> EstateWanted:
    if len(body) < _SPAN.size:
        raise DecodeError(Reject.FRAME_LENGTH)
    first, last = _SPAN.unpack_from(body)
    if not 1 <= first <= last <= SEQNO_MAX:
        raise DecodeError(Reject.SEQNO)
    view_id, end = _decode_view_id(body, _SPAN.size)
    return EstateWanted(view_id, _decode_member(body, end, len(body)), first, last)


def _decode_estate_run(body: memoryview) -> EstateRun:
    try:
        sender, offset = _cut_member(body, 0)
    except _MALFORMED:
        raise DecodeError(Reject.MEMBER) from None
    if len(body) - offset < _RANGE.size:
        raise DecodeError(Reject.FRAME_LENGTH)
    first, count = _RANGE.unpack_from(body, offset)
    flags = offset + _RANGE.size
    sizes = flags + count
    blob = sizes + 4 * count
    if not 1 <= count <= CAPACITY_LIMIT:
        raise DecodeError(Reject.COUNT)
    if not 1 <= first <= SEQNO_MAX + 1 - count:
        raise DecodeError(Reject.SEQNO)
    if blob > len(body):
        raise DecodeError(Reject.FRAME_LENGTH)
    more = bytes(body[flags:sizes])
    if set(more) - {0, 1}:
        raise DecodeError(Reject.FLAGS)
    lengths = struct_unpack(f"<{count}I", body[sizes:blob])
    if blob + sum(lengths) != len(body):
        raise DecodeError(Reject.LENGTHS)
    payloads = tuple(map(BytesIO(body[blob:]).read, lengths))
    return EstateRun(sender, first, payloads, tuple(map(bool, more)))


def _decode_state_ask(body: memoryview) -> StateAsk:
    attempt = _decode_counter(body[: _COUNTER.size], 0, min(_COUNTER.size, len(body)))
    view_id, end = _decode_view_id(body, _COUNTER.size)
    return StateAsk(attempt, view_id, _decode_digest(body[end:]))


def _decode_state_refused(body: memoryview) -> StateRefused:
    if len(body) != _COUNTER.size + _FLAGS.size:
        raise DecodeError(Reject.FRAME_LENGTH)
    attempt = _decode_counter(body, 0, _COUNTER.size)
    (reason,) = _FLAGS.unpack_from(body, _COUNTER.size)
    if reason not in _REFUSALS:
        raise DecodeError(Reject.FLAGS)
    return StateRefused(attempt, _REFUSALS[reason])


def _decode_state_begin(body: memoryview) -> StateBegin:
    transfer, attempt, rest = _decode_numbers(body)
    if not attempt:
        raise DecodeError(Reject.SEQNO)
    return StateBegin(transfer, attempt, _decode_digest(rest))


def _decode_state_part(body: memoryview) -> StatePart:
    transfer, index, rest = _decode_numbers(body)
    return StatePart(transfer, index, bytes(rest))


def _decode_state_end(body: memoryview) -> StateEnd:
    transfer, count, rest = _decode_numbers(body)
    _check_end(rest)
    return StateEnd(transfer, count)


def _decode_state_taken(body: memoryview) -> StateTaken:
    transfer, taken, rest = _decode_numbers(body)
    _check_end(rest)
    return StateTaken(transfer, taken)


def _decode_state_stop(body: memoryview) -> StateStop:
    return StateStop(_decode_counter(body, 0, len(body)))


def _decode_held_up(body: memoryview) -> HeldUp:
    if len(body) != _FLAGS.size:
        raise DecodeError(Reject.FRAME_LENGTH)
    if body[0] > 1:
        raise DecodeError(Reject.FLAGS)
    return HeldUp(bool(body[0]))


def _decode_numbers(body: memoryview) -> tuple[int, int, memoryview]:
    """The number of the transfer, the other one, and what comes after them."""
    if len(body) < _NUMBERS.size:
        raise DecodeError(Reject.FRAME_LENGTH)
    transfer, other = _NUMBERS.unpack_from(body)
    if not 1 <= transfer <= COUNTER_MAX or other > COUNTER_MAX:
        raise DecodeError(Reject.SEQNO)
    return transfer, other, body[_NUMBERS.size :]


def _check_end(rest: memoryview) -> None:
    if rest:
        raise DecodeError(Reject.FRAME_LENGTH)


def _decode_digest(body: memoryview) -> Digest:
    """All of it; each origin at most once."""
    entries: dict[Origin, int] = {}
    offset = 0
    while offset < len(body):
        if len(entries) == DIGEST_ENTRIES_MAX:
            raise DecodeError(Reject.COUNT)
        if len(body) - offset < _STREAM_SEQNO.size:
            raise DecodeError(Reject.FRAME_LENGTH)
        stream, seqno = _STREAM_SEQNO.unpack_from(body, offset)
        if seqno > SEQNO_MAX:
            raise DecodeError(Reject.SEQNO)
        try:
            sender, offset = _cut_member(body, offset + _STREAM_SEQNO.size)
        except _MALFORMED:
            raise DecodeError(Reject.MEMBER) from None
        origin = Origin(sender, _stream(stream))
        if origin in entries:
            raise DecodeError(Reject.MEMBER)
        entries[origin] = seqno
    return Digest(entries)


_REFUSALS: Final = {int(reason): reason for reason in Refusal}

_MESSAGE_DECODERS: Final[MessageDecoders] = {
    _STATE_ASK: _decode_state_ask,
    _STATE_REFUSED: _decode_state_refused,
    _STATE_BEGIN: _decode_state_begin,
    _STATE_PART: _decode_state_part,
    _STATE_END: _decode_state_end,
    _STATE_TAKEN: _decode_state_taken,
    _STATE_STOP: _decode_state_stop,
    _HELD_UP: _decode_held_up,
    _ESTATE_WANTED: _decode_estate_wanted,
    _ESTATE_RUN: _decode_estate_run,
}
