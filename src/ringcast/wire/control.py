"""Control frames on the wire: signs of life, leaving, commits and stability rounds.

What is encoded here is our own; what is decoded may come from anybody, and raises DecodeError.
"""

from __future__ import annotations

from struct import Struct
from struct import pack as struct_pack
from struct import unpack as struct_unpack
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

from ringcast.errors import DecodeError, Reject
from ringcast.model import SEQNO_MAX
from ringcast.wire.frames import (
    Commit,
    Heartbeat,
    Leave,
    Mark,
    Ping,
    Pong,
    StabilityQuery,
    StabilityReport,
    Stable,
)
from ringcast.wire.limits import ALLOWANCE_MAX, COUNTER_MAX, VIEW_MEMBERS_MAX
from ringcast.wire.members import (
    decode_counter,
    decode_view_id,
    encode_counter,
    encode_view_id,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringcast.model import ViewId
    from ringcast.wire.frames import Frame

    Decoders: TypeAlias = dict[int, Callable[[memoryview, int, int], Frame]]
    ControlFrame: TypeAlias = (
        Pong | Heartbeat | Commit | Leave | Ping | Stable | StabilityReport | StabilityQuery
    )

_LEAVE = 19
_HEARTBEAT, _PING, _PONG = range(21, 24)
_COMMIT, _STABILITY_REPORT, _STABILITY_QUERY, _STABLE = 40, 44, 45, 46
ALONE: Final = frozenset([_STABILITY_REPORT, _STABLE])
"""Frames that have a datagram to themselves: they speak of many members."""
SAID_IN_VIEW: Final = frozenset([_HEARTBEAT, _COMMIT, _STABILITY_REPORT, _STABILITY_QUERY, _STABLE])
"""Frames that mean something only in the view that they were said in."""

_NUMBER: Final = Struct("<Q")
_ROUND: Final = Struct("<QQ")  # number, allowance
_MARK: Final = Struct("<QQH")  # by all, by others, place of the slowest
_SEQNO_BYTES: Final = 8


def encode_control(frame: ControlFrame) -> tuple[int, bytes]:
    """The kind and the body."""
    match frame:
        case Leave():
            return _LEAVE, b""
        case Heartbeat():
            return _HEARTBEAT, encode_counter(frame.counter)
        case Ping():
            return _PING, encode_counter(frame.nonce)
        case Pong():
            return _PONG, encode_counter(frame.nonce)
        case Commit():
            assert 0 <= frame.seqno <= SEQNO_MAX, frame
            return _COMMIT, _NUMBER.pack(frame.seqno)
        case StabilityReport():
            return _STABILITY_REPORT, _encode_stability_report(frame)
        case StabilityQuery():
            return _STABILITY_QUERY, _encode_in_view(frame.number, frame.view_id)
        case Stable():
            return _STABLE, _encode_stable(frame)
        case _:
            assert_never(frame)


def _encode_in_view(number: int, view_id: ViewId) -> bytes:
    assert 0 <= number <= SEQNO_MAX, number
    return _NUMBER.pack(number) + encode_view_id(view_id)


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


def _decode_leave(_view: memoryview, start: int, stop: int) -> Leave:
    if start != stop:
        raise DecodeError(Reject.FRAME_LENGTH)
    return Leave()


def _decode_commit(view: memoryview, start: int, stop: int) -> Commit:
    if stop - start != _NUMBER.size:
        raise DecodeError(Reject.FRAME_LENGTH)
    (seqno,) = _NUMBER.unpack_from(view, start)
    if seqno > SEQNO_MAX:
        raise DecodeError(Reject.SEQNO)
    return Commit(seqno)


def _decode_in_view(view: memoryview, start: int, stop: int) -> tuple[int, ViewId]:
    """A number that is said in some view, and which one that is."""
    if stop - start < _NUMBER.size:
        raise DecodeError(Reject.FRAME_LENGTH)
    (number,) = _NUMBER.unpack_from(view, start)
    if number > SEQNO_MAX:
        raise DecodeError(Reject.SEQNO)
    return number, _decode_one_view_id(view, start + _NUMBER.size, stop)


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


def _decode_one_view_id(view: memoryview, start: int, stop: int) -> ViewId:
    """The id that takes all of it."""
    view_id, end = decode_view_id(view[:stop], start)
    if end != stop:
        raise DecodeError(Reject.FRAME_LENGTH)
    return view_id


def _decode_heartbeat(view: memoryview, start: int, stop: int) -> Heartbeat:
    return Heartbeat(decode_counter(view, start, stop))


def _decode_ping(view: memoryview, start: int, stop: int) -> Ping:
    return Ping(decode_counter(view, start, stop))


def _decode_pong(view: memoryview, start: int, stop: int) -> Pong:
    return Pong(decode_counter(view, start, stop))


FOR_ANYONE: Final[Decoders] = {
    _LEAVE: _decode_leave,
    _HEARTBEAT: _decode_heartbeat,
    _PING: _decode_ping,
    _PONG: _decode_pong,
    _COMMIT: _decode_commit,
    _STABLE: _decode_stable,
}

# A report is between two incarnations: said to anyone it could reach the process that has the
# address now, and be taken for news of its own.
FOR_ONE: Final[Decoders] = {
    _STABILITY_REPORT: _decode_stability_report,
    _STABILITY_QUERY: _decode_stability_query,
}
