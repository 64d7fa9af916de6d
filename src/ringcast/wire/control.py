"""Control frames on the wire: who is in the group, merges, what departed senders leave behind, and
stability rounds.

What is encoded here is our own; what is decoded may come from anybody, and raises DecodeError.
"""

from __future__ import annotations

from functools import partial
from struct import Struct
from struct import pack as struct_pack
from struct import unpack as struct_unpack
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

from ringcast.errors import DecodeError, Reject
from ringcast.model import SEQNO_MAX, Digest, Origin, View
from ringcast.wire.frames import (
    Begin,
    Begun,
    Commit,
    CommitWanted,
    Discover,
    DiscoverReply,
    Half,
    HalfWanted,
    Heartbeat,
    Join,
    Leave,
    Mark,
    Merged,
    MergeRequest,
    Ping,
    Pong,
    ReceivedRange,
    RecoveryTarget,
    StabilityQuery,
    StabilityReport,
    Stable,
    Stage,
    Standing,
    Suspect,
    Takeover,
    ViewAck,
    ViewIs,
    Welcome,
)
from ringcast.wire.limits import (
    ALLOWANCE_MAX,
    COUNTER_MAX,
    ESTATES_MAX,
    PARTS_MAX,
    VIEW_MEMBERS_MAX,
)
from ringcast.wire.members import (
    MALFORMED,
    MEMBER_COUNT,
    STREAMS,
    are_distinct,
    cut_member,
    decode_counter,
    decode_member,
    decode_purge,
    decode_stream,
    decode_view,
    decode_view_id,
    encode_counter,
    encode_member,
    encode_view,
    encode_view_id,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringcast.model import Member, Stream, ViewId
    from ringcast.wire.frames import Frame

    Decoders: TypeAlias = dict[int, Callable[[memoryview, int, int], Frame]]
    ControlFrame: TypeAlias = (
        Pong
        | Heartbeat
        | Begin
        | Begun
        | Commit
        | CommitWanted
        | Discover
        | Half
        | HalfWanted
        | Join
        | Leave
        | MergeRequest
        | Merged
        | DiscoverReply
        | Ping
        | Stable
        | Standing
        | Suspect
        | Takeover
        | ViewAck
        | ViewIs
        | StabilityReport
        | StabilityQuery
        | Welcome
    )

_DISCOVER, _DISCOVER_REPLY, _JOIN, _VIEW_IS, _VIEW_ACK, _WELCOME, _LEAVE, _SUSPECT = range(13, 21)
_HEARTBEAT, _PING, _PONG, _HALF_WANTED, _HALF, _MERGE_REQUEST, _MERGED, _BEGIN, _BEGUN = range(
    21, 30
)
_COMMIT, _COMMIT_WANTED, _TAKEOVER, _STANDING, _STABILITY_REPORT, _STABILITY_QUERY, _STABLE = range(
    40, 47
)
ALONE: Final = frozenset(
    [_VIEW_IS, _WELCOME, _MERGE_REQUEST, _MERGED, _TAKEOVER, _STANDING, _STABILITY_REPORT, _STABLE]
)
"""Frames that have a datagram to themselves: they speak of many members."""
SAID_IN_VIEW: Final = frozenset([_HEARTBEAT, _COMMIT, _STABILITY_REPORT, _STABILITY_QUERY, _STABLE])
"""Frames that mean something only in the view that they were said in."""

_FLAGS: Final = Struct("<B")
_ENTRY: Final = Struct("<HBQI")  # place of the sender in the view, stream, seqno, fragments
_PLACE: Final = Struct("<H")  # of a member in the view
_BEGINNING: Final = Struct("<BQQB")  # stream, counter, offset, flags
_BEGUN_AT: Final = Struct("<BQ")  # stream, counter
_NUMBER: Final = Struct("<Q")
_RECOVERY_TARGET: Final = Struct("<BQ")  # stage, high
_RECEIVED_RANGE: Final = Struct("<BQQQ")  # flags, low, delivered, received
_FRAGMENT: Final = Struct("<QHBI")  # counter of the view, place of the sender, stream, index
_STREAM: Final = Struct("<B")
_STREAM_FLAGS: Final = Struct("<BB")
_PURGE: Final = Struct("<B")
_ROUND: Final = Struct("<QQ")  # number, allowance
_MARK: Final = Struct("<QQH")  # by all, by others, place of the slowest
_SEQNO_BYTES: Final = 8

_MIDDLE: Final = 1  # flag of a beginning
_SLOW: Final = 1  # flag of a suspicion
_OPEN: Final = 1  # flag of a standing
_WINDOW: Final = 1  # flag of a share
_LAST: Final = 1  # flag of a half
_GIVEN_UP: Final = 2**32 - 1  # in place of a count of fragments: nobody has them
_STAGES: Final = {int(stage): stage for stage in Stage}


def encode_control(frame: ControlFrame) -> tuple[int, bytes]:
    """The kind and the body."""
    match frame:
        case ViewIs():
            return _VIEW_IS, encode_view(frame.view)
        case Welcome():
            return _WELCOME, _encode_welcome(frame)
        case MergeRequest():
            return _MERGE_REQUEST, encode_view(frame.view)
        case Merged():
            return _MERGED, _encode_merged(frame)
        case Takeover():
            return _TAKEOVER, _encode_takeover(frame)
        case Standing():
            return _STANDING, _encode_standing(frame)
        case StabilityReport():
            return _STABILITY_REPORT, _encode_stability_report(frame)
        case Stable():
            return _STABLE, _encode_stable(frame)
        case StabilityQuery():
            return _STABILITY_QUERY, _encode_in_view(frame.number, frame.view_id)
        case Commit() | CommitWanted():
            return _encode_commitment(frame)
        case Begin() | Begun():
            return _encode_beginning(frame)
        case _:
            return _encode_membership(frame)


def _encode_membership(
    frame: Discover
    | DiscoverReply
    | Join
    | ViewAck
    | Leave
    | Suspect
    | Heartbeat
    | Ping
    | Pong
    | HalfWanted
    | Half,
) -> tuple[int, bytes]:
    """The kind and the body."""
    match frame:
        case Discover():
            return _DISCOVER, _PURGE.pack(frame.purge)
        case DiscoverReply():
            assert 0 <= frame.size <= VIEW_MEMBERS_MAX, frame
            coordinator = encode_member(frame.coordinator) if frame.coordinator else b""
            return _DISCOVER_REPLY, _PURGE.pack(frame.purge) + MEMBER_COUNT.pack(
                frame.size
            ) + coordinator
        case Join():
            return _JOIN, b""
        case ViewAck():
            return _VIEW_ACK, encode_view_id(frame.view_id)
        case Leave():
            return _LEAVE, b""
        case Suspect():
            flags = _FLAGS.pack(frame.is_slow * _SLOW)
            return _SUSPECT, flags + encode_member(frame.member)
        case Heartbeat():
            return _HEARTBEAT, encode_counter(frame.counter)
        case Ping():
            return _PING, encode_counter(frame.nonce)
        case Pong():
            return _PONG, encode_counter(frame.nonce)
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
    return encode_view(welcome.view) + b"".join([_ENTRY.pack(*entry) for entry in entries])


def _encode_merged(merged: Merged) -> bytes:
    places = {member: place for place, member in enumerate(merged.view.members)}
    placed = [member for part in merged.parts for member in part]
    assert 1 <= len(merged.parts) <= PARTS_MAX, len(merged.parts)
    assert len(set(placed)) == len(placed), merged
    assert set(placed) <= places.keys(), merged
    parts = [
        encode_view_id(part.id)
        + MEMBER_COUNT.pack(len(part))
        + b"".join([_PLACE.pack(places[member]) for member in part])
        for part in merged.parts
    ]
    return encode_view(merged.view) + b"".join(parts)


def _encode_beginning(frame: Begin | Begun) -> tuple[int, bytes]:
    assert 1 <= frame.counter <= COUNTER_MAX, frame
    if isinstance(frame, Begun):
        return _BEGUN, _BEGUN_AT.pack(frame.stream, frame.counter)
    assert 0 <= frame.offset <= SEQNO_MAX, frame
    flags = frame.is_middle * _MIDDLE
    return _BEGIN, _BEGINNING.pack(frame.stream, frame.counter, frame.offset, flags)


def _encode_commitment(frame: Commit | CommitWanted) -> tuple[int, bytes]:
    if isinstance(frame, CommitWanted):
        return _COMMIT_WANTED, encode_view_id(frame.view_id)
    return _COMMIT, _encode_in_view(frame.seqno, frame.view_id)


def _encode_in_view(number: int, view_id: ViewId) -> bytes:
    assert 0 <= number <= SEQNO_MAX, number
    return _NUMBER.pack(number) + encode_view_id(view_id)


def _encode_takeover(frame: Takeover) -> bytes:
    assert len(frame.claims) <= ESTATES_MAX, frame
    assert all(0 <= claim.high <= SEQNO_MAX for claim in frame.claims), frame
    claims = [
        _RECOVERY_TARGET.pack(claim.stage, claim.high) + encode_member(claim.sender)
        for claim in frame.claims
    ]
    return _STREAM.pack(frame.stream) + encode_view_id(frame.view_id) + b"".join(claims)


def _encode_standing(frame: Standing) -> bytes:
    assert len(frame.shares) <= ESTATES_MAX, frame
    for share in frame.shares:
        assert 0 <= share.low <= share.delivered <= share.received <= SEQNO_MAX, share
    shares = [
        _RECEIVED_RANGE.pack(share.has_window * _WINDOW, share.low, share.delivered, share.received)
        + encode_member(share.sender)
        for share in frame.shares
    ]
    head = _STREAM_FLAGS.pack(frame.stream, frame.is_open * _OPEN)
    return head + encode_view_id(frame.view_id) + b"".join(shares)


def _encode_stability_report(report: StabilityReport) -> bytes:
    delivered = report.delivered
    assert 0 <= report.number <= COUNTER_MAX, report
    assert 1 <= len(delivered) <= VIEW_MEMBERS_MAX, len(delivered)
    assert 0 <= min(delivered) <= max(delivered) <= SEQNO_MAX, report
    return _encode_round(report) + struct_pack(f"<{len(delivered)}Q", *delivered)


def _encode_stable(stable: Stable) -> bytes:
    marks = stable.marks
    assert 1 <= stable.number <= COUNTER_MAX, stable
    assert 1 <= len(marks) <= VIEW_MEMBERS_MAX, len(marks)
    assert all(0 <= mark.by_all <= mark.by_others <= SEQNO_MAX for mark in marks), stable
    assert all(0 <= mark.slowest < len(marks) for mark in marks), stable
    return _encode_round(stable) + b"".join([_MARK.pack(*mark) for mark in marks])


def _encode_round(frame: StabilityReport | Stable) -> bytes:
    assert 0 <= frame.allowance <= ALLOWANCE_MAX, frame
    return encode_view_id(frame.view_id) + _ROUND.pack(frame.number, frame.allowance)


def _encode_count(fragments: int | None) -> int:
    assert fragments is None or 0 <= fragments < _GIVEN_UP, fragments
    return _GIVEN_UP if fragments is None else fragments


def _decode_bare(frame: Join | Leave, _view: memoryview, start: int, stop: int) -> Frame:
    """A frame that says all by its kind."""
    if start != stop:
        raise DecodeError(Reject.FRAME_LENGTH)
    return frame


def _decode_discover(view: memoryview, start: int, stop: int) -> Discover:
    if stop - start != _PURGE.size:
        raise DecodeError(Reject.FRAME_LENGTH)
    return Discover(decode_purge(view[start]))


def _decode_discover_reply(view: memoryview, start: int, stop: int) -> DiscoverReply:
    count = start + _PURGE.size
    rest = count + MEMBER_COUNT.size
    if rest > stop:
        raise DecodeError(Reject.FRAME_LENGTH)
    (size,) = MEMBER_COUNT.unpack_from(view, count)
    if size > VIEW_MEMBERS_MAX:
        raise DecodeError(Reject.COUNT)
    coordinator = decode_member(view, rest, stop) if rest < stop else None
    return DiscoverReply(coordinator, size, decode_purge(view[start]))


def _decode_view_is(view: memoryview, start: int, stop: int) -> ViewIs:
    decoded, end = decode_view(view[:stop], start)
    if end != stop:
        raise DecodeError(Reject.FRAME_LENGTH)
    return ViewIs(decoded)


def _decode_merge_request(view: memoryview, start: int, stop: int) -> MergeRequest:
    return MergeRequest(_decode_view_is(view, start, stop).view)


def _decode_merged(view: memoryview, start: int, stop: int) -> Merged:
    merged, offset = decode_view(view[:stop], start)
    parts: list[View] = []
    placed: set[int] = set()
    while offset < stop:
        if len(parts) == PARTS_MAX:
            raise DecodeError(Reject.COUNT)
        view_id, offset = decode_view_id(view[:stop], offset)
        if stop - offset < MEMBER_COUNT.size:
            raise DecodeError(Reject.FRAME_LENGTH)
        (count,) = MEMBER_COUNT.unpack_from(view, offset)
        offset += MEMBER_COUNT.size
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
    return Begin(decode_stream(stream), counter, offset, bool(flags & _MIDDLE))


def _decode_begun(view: memoryview, start: int, stop: int) -> Begun:
    if stop - start != _BEGUN_AT.size:
        raise DecodeError(Reject.FRAME_LENGTH)
    stream, counter = _BEGUN_AT.unpack_from(view, start)
    if not 1 <= counter <= COUNTER_MAX:
        raise DecodeError(Reject.SEQNO)
    return Begun(decode_stream(stream), counter)


def _decode_commit(view: memoryview, start: int, stop: int) -> Commit:
    return Commit(*_decode_in_view(view, start, stop))


def _decode_in_view(view: memoryview, start: int, stop: int) -> tuple[int, ViewId]:
    """A number that is said in some view, and which one that is."""
    if stop - start < _NUMBER.size:
        raise DecodeError(Reject.FRAME_LENGTH)
    (number,) = _NUMBER.unpack_from(view, start)
    if number > SEQNO_MAX:
        raise DecodeError(Reject.SEQNO)
    return number, _decode_one_view_id(view, start + _NUMBER.size, stop)


def _decode_commit_wanted(view: memoryview, start: int, stop: int) -> CommitWanted:
    return CommitWanted(_decode_one_view_id(view, start, stop))


def _decode_takeover(view: memoryview, start: int, stop: int) -> Takeover:
    if start == stop:
        raise DecodeError(Reject.FRAME_LENGTH)
    stream = decode_stream(view[start])
    view_id, offset = decode_view_id(view[:stop], start + _STREAM.size)
    claims = []
    for (stage, high), sender in _decode_of_members(view[:stop], offset, _RECOVERY_TARGET):
        if stage not in _STAGES:
            raise DecodeError(Reject.FLAGS)
        if high > SEQNO_MAX:
            raise DecodeError(Reject.SEQNO)
        claims.append(RecoveryTarget(sender, _STAGES[stage], high))
    return Takeover(view_id, tuple(claims), stream)


def _decode_standing(view: memoryview, start: int, stop: int) -> Standing:
    if stop - start < _STREAM_FLAGS.size:
        raise DecodeError(Reject.FRAME_LENGTH)
    stream, is_open = _STREAM_FLAGS.unpack_from(view, start)
    view_id, offset = decode_view_id(view[:stop], start + _STREAM_FLAGS.size)
    shares = []
    for (flags, low, delivered, received), sender in _decode_of_members(
        view[:stop], offset, _RECEIVED_RANGE
    ):
        if flags & ~_WINDOW:
            raise DecodeError(Reject.FLAGS)
        if not low <= delivered <= received <= SEQNO_MAX:
            raise DecodeError(Reject.SEQNO)
        shares.append(ReceivedRange(sender, delivered, received, bool(flags & _WINDOW), low))
    if is_open & ~_OPEN:
        raise DecodeError(Reject.FLAGS)
    return Standing(view_id, bool(is_open & _OPEN), tuple(shares), decode_stream(stream))


def _decode_stability_report(view: memoryview, start: int, stop: int) -> StabilityReport:
    view_id, number, allowance, rest = _decode_round(view[:stop], start)
    count = _count_entries(rest, _SEQNO_BYTES)
    delivered = struct_unpack(f"<{count}Q", rest)
    if max(delivered) > SEQNO_MAX:
        raise DecodeError(Reject.SEQNO)
    return StabilityReport(view_id, number, allowance, delivered)


def _decode_stability_query(view: memoryview, start: int, stop: int) -> StabilityQuery:
    number, view_id = _decode_in_view(view, start, stop)
    return StabilityQuery(view_id, number)


def _decode_stable(view: memoryview, start: int, stop: int) -> Stable:
    view_id, number, allowance, rest = _decode_round(view[:stop], start)
    count = _count_entries(rest, _MARK.size)
    marks = tuple(map(Mark._make, _MARK.iter_unpack(rest)))
    # What everybody has is no more than what everybody but one has.
    if not number or not all(mark.by_all <= mark.by_others <= SEQNO_MAX for mark in marks):
        raise DecodeError(Reject.SEQNO)
    if max(mark.slowest for mark in marks) >= count:
        raise DecodeError(Reject.VIEW)
    return Stable(view_id, number, allowance, marks)


def _decode_round(view: memoryview, start: int) -> tuple[ViewId, int, int, memoryview]:
    """The view, the number and the allowance of a stability round, and what comes after them."""
    view_id, offset = decode_view_id(view, start)
    if len(view) - offset < _ROUND.size:
        raise DecodeError(Reject.FRAME_LENGTH)
    number, allowance = _ROUND.unpack_from(view, offset)
    if number > COUNTER_MAX:
        raise DecodeError(Reject.SEQNO)
    if allowance > ALLOWANCE_MAX:
        raise DecodeError(Reject.COUNT)
    return view_id, number, allowance, view[offset + _ROUND.size :]


def _count_entries(entries: memoryview, size: int) -> int:
    """How many of this size there are: one for each member of some view."""
    count, left_over = divmod(len(entries), size)
    if left_over:
        raise DecodeError(Reject.FRAME_LENGTH)
    if not 1 <= count <= VIEW_MEMBERS_MAX:
        raise DecodeError(Reject.COUNT)
    return count


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
            member, offset = cut_member(view, offset + numbers.size)
        except MALFORMED:
            raise DecodeError(Reject.MEMBER) from None
        found.append((said, member))
    if not are_distinct([member for _, member in found]):
        raise DecodeError(Reject.VIEW)
    return found


def _decode_view_ack(view: memoryview, start: int, stop: int) -> ViewAck:
    return ViewAck(_decode_one_view_id(view, start, stop))


def _decode_one_view_id(view: memoryview, start: int, stop: int) -> ViewId:
    """The id that takes all of it."""
    view_id, end = decode_view_id(view[:stop], start)
    if end != stop:
        raise DecodeError(Reject.FRAME_LENGTH)
    return view_id


def _decode_welcome(view: memoryview, start: int, stop: int) -> Welcome:
    decoded, table = decode_view(view[:stop], start)
    if (stop - table) % _ENTRY.size:
        raise DecodeError(Reject.FRAME_LENGTH)
    if (stop - table) // _ENTRY.size > len(decoded) * len(STREAMS):
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
        origin = Origin(decoded.members[place], decode_stream(stream))
        entries[origin] = seqno
        if fragments:
            halves[origin] = None if fragments == _GIVEN_UP else fragments
    return Welcome(decoded, Digest(entries), halves)


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
    return counter, place, decode_stream(stream), index


def _decode_suspect(view: memoryview, start: int, stop: int) -> Suspect:
    if start == stop:
        raise DecodeError(Reject.FRAME_LENGTH)
    (flags,) = _FLAGS.unpack_from(view, start)
    if flags & ~_SLOW:
        raise DecodeError(Reject.FLAGS)
    return Suspect(decode_member(view, start + _FLAGS.size, stop), bool(flags & _SLOW))


def _decode_heartbeat(view: memoryview, start: int, stop: int) -> Heartbeat:
    return Heartbeat(decode_counter(view, start, stop))


def _decode_ping(view: memoryview, start: int, stop: int) -> Ping:
    return Ping(decode_counter(view, start, stop))


def _decode_pong(view: memoryview, start: int, stop: int) -> Pong:
    return Pong(decode_counter(view, start, stop))


FOR_ANYONE: Final[Decoders] = {
    _DISCOVER: _decode_discover,
    _DISCOVER_REPLY: _decode_discover_reply,
    _JOIN: partial(_decode_bare, Join()),
    _VIEW_IS: _decode_view_is,
    _VIEW_ACK: _decode_view_ack,
    _WELCOME: _decode_welcome,
    _LEAVE: partial(_decode_bare, Leave()),
    _SUSPECT: _decode_suspect,
    _HEARTBEAT: _decode_heartbeat,
    _PING: _decode_ping,
    _PONG: _decode_pong,
    _HALF_WANTED: _decode_half_wanted,
    _HALF: _decode_half,
    _MERGE_REQUEST: _decode_merge_request,
    _MERGED: _decode_merged,
    _COMMIT: _decode_commit,
    _COMMIT_WANTED: _decode_commit_wanted,
    _TAKEOVER: _decode_takeover,
    _STANDING: _decode_standing,
    _STABLE: _decode_stable,
}

# What begins with a merge is between two incarnations, and so is a report: said to anyone it could
# reach the process that has the address now, and be taken for news of its own.
FOR_ONE: Final[Decoders] = {
    _BEGIN: _decode_begin,
    _BEGUN: _decode_begun,
    _STABILITY_REPORT: _decode_stability_report,
    _STABILITY_QUERY: _decode_stability_query,
}
