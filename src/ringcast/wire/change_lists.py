"""Lists and settings in frames of a view change, on the wire.

What is encoded here is our own; what is decoded may come from anybody, and raises DecodeError. A
list begins with how many there are of it: two bytes, and no more than its limit. Places that follow
each other are told as one run.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Final

from ringcast.config import GroupConfig
from ringcast.errors import ConfigError, DecodeError, Reject
from ringcast.model import SEQNO_MAX
from ringcast.settings import NAMES, TIMES, Settings
from ringcast.wire.changes import OWN, CutMark, Mark
from ringcast.wire.limits import VIEW_MEMBERS_MAX
from ringcast.wire.members import (
    MEMBER_COUNT,
    STREAMS,
    are_distinct,
    decode_purge,
    decode_stream,
    encode_member,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ringcast.model import Member
    from ringcast.wire.changes import Listed
    from ringcast.wire.cutter import Cutter

_SETTINGS: Final = Struct(f"<BBB{len(TIMES)}QQ")  # purge, streams, given, times, max_message_bytes
_RUN: Final = Struct("<HH")  # first place, how many
_MARK: Final = Struct("<HBQ")  # place, stream, seqno
_CUT_MARK: Final = Struct("<HBQH")  # place, stream, seqno, source

_OWN: Final = 2**64 - 1  # in place of a seqno
_IS_RUN: Final = 0  # in place of the length of a host
_MARKS_MAX: Final = len(STREAMS) * VIEW_MEMBERS_MAX
_SETTINGS_MAX: Final = 16
_ANY_MEMBER: Final = GroupConfig(group="any")
_LISTS_MAX: Final = 8
"""Encoded lists of members kept: the same one goes to many members, until it has arrived."""


def encode_list(parts: Sequence[bytes]) -> bytes:
    return MEMBER_COUNT.pack(len(parts)) + b"".join(parts)


@lru_cache(_LISTS_MAX)
def encode_members(members: tuple[Member, ...]) -> bytes:
    assert len(members) <= VIEW_MEMBERS_MAX, len(members)
    assert are_distinct(members), members
    return encode_list(list(map(encode_member, members)))


@lru_cache(_LISTS_MAX)
def encode_listed(listed: Listed) -> bytes:
    """Members, and runs of places in a list that the receiver knows."""
    assert len(listed) <= VIEW_MEMBERS_MAX, len(listed)
    return encode_list([_encode_listed(each) for each in listed])


def _encode_listed(each: Member | range) -> bytes:
    if not isinstance(each, range):
        return encode_member(each)
    assert 0 <= each.start < each.stop <= VIEW_MEMBERS_MAX, each
    assert each.step == 1, each
    return bytes([_IS_RUN]) + _RUN.pack(each.start, len(each))


def cut_listed(cut: Cutter) -> Listed:
    listed: list[Member | range] = []
    for _ in range(cut.count(VIEW_MEMBERS_MAX)):
        if cut.is_next(_IS_RUN):
            start, count = cut.numbers(_RUN)
            _check_run(start, count, VIEW_MEMBERS_MAX)
            listed.append(range(start, start + count))
        else:
            listed.append(cut.member())
    if not are_distinct([each for each in listed if not isinstance(each, range)]):
        raise DecodeError(Reject.VIEW)
    return tuple(listed)


def encode_places(places: Iterable[int]) -> bytes:
    """In the order in which they are."""
    runs: list[list[int]] = []
    for place in places:
        assert 0 <= place < VIEW_MEMBERS_MAX, place
        if runs and place == sum(runs[-1]):
            runs[-1][1] += 1
        else:
            runs.append([place, 1])
    assert len(runs) <= VIEW_MEMBERS_MAX, len(runs)
    return encode_list([_RUN.pack(*run) for run in runs])


def cut_places(cut: Cutter, most: int = VIEW_MEMBERS_MAX) -> tuple[int, ...]:
    """At most so many: a run takes few bytes, however many places it has."""
    places: list[int] = []
    for start, count in cut.table(_RUN, VIEW_MEMBERS_MAX):
        _check_run(start, count, VIEW_MEMBERS_MAX)
        if len(places) + count > most:
            raise DecodeError(Reject.COUNT)
        places += range(start, start + count)
    return tuple(places)


def _check_run(start: int, count: int, size: int) -> None:
    if not count:
        raise DecodeError(Reject.COUNT)
    if start + count > size:
        raise DecodeError(Reject.VIEW)


def encode_marks(marks: Sequence[Mark]) -> bytes:
    assert len(marks) <= _MARKS_MAX, len(marks)
    assert all(0 <= mark.place < VIEW_MEMBERS_MAX for mark in marks), marks
    assert all(0 <= mark.seqno <= SEQNO_MAX for mark in marks), marks
    return encode_list([_MARK.pack(*mark) for mark in marks])


def cut_marks(cut: Cutter) -> tuple[Mark, ...]:
    marks = []
    for place, stream, seqno in cut.table(_MARK, _MARKS_MAX):
        if place >= VIEW_MEMBERS_MAX:
            raise DecodeError(Reject.VIEW)
        marks.append(Mark(place, decode_stream(stream), check_seqno(seqno)))
    return tuple(marks)


def encode_departed(departed: Sequence[CutMark]) -> bytes:
    assert len(departed) <= _MARKS_MAX, len(departed)
    packed = []
    for place, stream, seqno, source in departed:
        assert 0 <= place < VIEW_MEMBERS_MAX, place
        assert 0 <= source < VIEW_MEMBERS_MAX, source
        assert seqno == OWN or 0 <= seqno <= SEQNO_MAX, seqno
        packed.append(_CUT_MARK.pack(place, stream, _OWN if seqno == OWN else seqno, source))
    return encode_list(packed)


def cut_departed(cut: Cutter) -> tuple[CutMark, ...]:
    marks = []
    for place, stream, seqno, source in cut.table(_CUT_MARK, _MARKS_MAX):
        if max(place, source) >= VIEW_MEMBERS_MAX:
            raise DecodeError(Reject.VIEW)
        through = OWN if seqno == _OWN else check_seqno(seqno)
        marks.append(CutMark(place, decode_stream(stream), through, source))
    return tuple(marks)


def check_seqno(seqno: int) -> int:
    if seqno > SEQNO_MAX:
        raise DecodeError(Reject.SEQNO)
    return seqno


def encode_settings(settings: Settings) -> bytes:
    streams = sum(1 << stream for stream in settings.streams)
    given = sum(1 << NAMES.index(name) for name in settings.given)
    return _SETTINGS.pack(
        settings.purge, streams, given, *settings.times, settings.max_message_bytes
    )


def cut_settings(cut: Cutter) -> Settings:
    return _decode_settings(cut.numbers(_SETTINGS))


@lru_cache(_SETTINGS_MAX)
def _decode_settings(numbers: tuple[int, ...]) -> Settings:
    """A member could have been configured so."""
    purge, streams, given, *times, size = numbers
    if streams >= 1 << len(STREAMS) or given >= 1 << len(NAMES):
        raise DecodeError(Reject.FLAGS)
    settings = Settings(
        decode_purge(purge),
        tuple(stream for stream in STREAMS.values() if streams & 1 << stream),
        tuple(times),
        size,
        frozenset(name for n, name in enumerate(NAMES) if given & 1 << n),
    )
    try:
        settings.apply_to(_ANY_MEMBER)
    except ConfigError:
        raise DecodeError(Reject.SETTINGS) from None
    return settings
