"""Frames on the wire by which members find their group and change its view.

What is encoded here is our own; what is decoded may come from anybody, and raises DecodeError. A
list begins with how many there are of it: two bytes, and no more than its limit.
"""

from __future__ import annotations

from functools import lru_cache, partial
from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

from ringcast.config import GroupConfig
from ringcast.errors import ConfigError, DecodeError, Reject
from ringcast.model import SEQNO_MAX
from ringcast.settings import NAMES, TIMES, Settings
from ringcast.wire.changes import (
    OWN,
    Complain,
    Cut,
    CutMark,
    Finish,
    Flushable,
    Flushed,
    Forwarded,
    Hello,
    Holding,
    Install,
    Installed,
    InView,
    Mark,
    PartMarks,
    Propose,
    Refuse,
    State,
    Want,
)
from ringcast.wire.cutter import Cutter
from ringcast.wire.limits import CHANGE_MEMBERS_MAX, COUNTER_MAX, FLUSHED_MAX
from ringcast.wire.members import (
    MEMBER_BYTES_MAX,
    MEMBER_COUNT,
    STREAMS,
    are_distinct,
    decode_purge,
    decode_stream,
    encode_member,
    encode_view_id,
)
from ringcast.wire.runs import STREAM, decode_data, decode_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringcast.model import Member, ViewId
    from ringcast.wire.changes import ChangeFrame
    from ringcast.wire.frames import Frame

    Decoders: TypeAlias = dict[int, Callable[[memoryview, int, int], Frame]]

_HELLO, _PROPOSE, _STATE, _REFUSE, _FINISH, _CUT, _WANT, _FORWARDED = range(64, 72)
_FLUSHED, _INSTALL, _INSTALLED, _COMPLAIN, IN_VIEW = range(72, 77)
ALONE: Final = frozenset([_HELLO, _PROPOSE, _STATE, _CUT, _FORWARDED])
"""Frames that have a datagram to themselves: they speak of many members, or pass messages on."""

_FLAGS: Final = Struct("<B")
_GREETING: Final = Struct("<QH")  # highest, size
_SETTINGS: Final = Struct(f"<BBB{len(TIMES)}QQ")  # purge, streams, given, times, max_message_bytes
_PLACE: Final = Struct("<H")
_STREAM_SEQNO: Final = Struct("<BQ")
_MARK: Final = Struct("<HBQ")  # place, stream, seqno
_CUT_MARK: Final = Struct("<HBQH")  # place, stream, seqno, source
_TAG: Final = Struct("<Q")

_ASKING, _HAS_STATE, _HAS_COORDINATOR, _HAS_VIEW = 1, 2, 4, 8  # flags of a hello
_HAS_PROVIDER, _HAS_UNLISTED = 1, 2  # flags of a state
_HAS_PROMISED, _HAS_OTHER = 1, 2  # flags of a refusal: a proposal, a coordinator
_HAS_ASKER: Final = 1  # flag of what is wanted or passed on
_SLOW, _WANTS_STATE = 1, 2  # flags of a complaint

_OWN: Final = 2**64 - 1  # in place of a seqno
TAG_MAX: Final = 2**64 - 1
TAG_BYTES: Final = _TAG.size
_MARKS_MAX: Final = len(STREAMS) * CHANGE_MEMBERS_MAX
_TAGS_MAX: Final = 64
_SETTINGS_MAX: Final = 16
_ANY_MEMBER: Final = GroupConfig(group="any")
_LISTS_MAX: Final = 4
"""Encoded lists of members kept: the same one goes to every member, until it has arrived."""

FORWARDED_HEAD_MAX: Final = _FLAGS.size + _TAG.size + 3 * MEMBER_BYTES_MAX
"""What may stand before the messages that are passed on in a change."""


@lru_cache(_TAGS_MAX)
def tag_of(view_id: ViewId) -> int:
    """What stands for this view in a datagram: never 0."""
    digest = blake2b(encode_view_id(view_id), digest_size=_TAG.size).digest()
    return int.from_bytes(digest, "little") or 1


def encode_change(frame: ChangeFrame) -> tuple[int, bytes]:
    """The kind and the body; of a Want or Forwarded what stands before its ranges or messages."""
    match frame:
        case Hello():
            return _HELLO, _encode_hello(frame)
        case Propose():
            return _PROPOSE, _encode_propose(frame)
        case State():
            return _STATE, _encode_state(frame)
        case Refuse():
            return _REFUSE, _encode_refuse(frame)
        case Finish():
            return _FINISH, encode_view_id(frame.id) + encode_view_id(frame.first)
        case Cut():
            return _CUT, _encode_cut(frame)
        case Want():
            return _WANT, STREAM.pack(frame.stream) + _encode_asked(frame)
        case Forwarded():
            return _FORWARDED, _encode_asked(frame)
        case Flushed():
            return _FLUSHED, encode_view_id(frame.id)
        case Install():
            return _INSTALL, encode_view_id(frame.id)
        case Installed():
            return _INSTALLED, encode_view_id(frame.id)
        case Complain():
            flags = frame.is_slow * _SLOW | frame.wants_state * _WANTS_STATE
            return _COMPLAIN, _FLAGS.pack(flags) + encode_member(frame.member)
        case InView():
            assert 1 <= frame.tag <= TAG_MAX, frame
            mark = b"" if frame.purged is None else _TAG.pack(frame.purged)
            return IN_VIEW, _TAG.pack(frame.tag) + mark
        case _:
            assert_never(frame)


def _encode_hello(hello: Hello) -> bytes:
    assert 0 <= hello.highest <= COUNTER_MAX, hello
    assert 0 <= hello.size <= CHANGE_MEMBERS_MAX, hello
    flags = (
        hello.is_asking * _ASKING
        | hello.has_state * _HAS_STATE
        | (hello.coordinator is not None) * _HAS_COORDINATOR
        | (hello.view_id is not None) * _HAS_VIEW
    )
    head = _FLAGS.pack(flags) + _encode_settings(hello.settings)
    head += _GREETING.pack(hello.highest, hello.size)
    coordinator = encode_member(hello.coordinator) if hello.coordinator else b""
    view_id = encode_view_id(hello.view_id) if hello.view_id else b""
    return head + coordinator + view_id + _encode_members(hello.members)


def _encode_propose(propose: Propose) -> bytes:
    assert propose.members, propose
    assert len(set(propose.leaving)) == len(propose.leaving), propose
    assert len(propose.known) <= CHANGE_MEMBERS_MAX, len(propose.known)
    members = _encode_members(propose.members)
    leaving = _encode_places(propose.leaving, len(propose.members))
    known = _encode_list([encode_view_id(view_id) for view_id in propose.known])
    head = encode_view_id(propose.id) + _encode_settings(propose.settings)
    return head + members + leaving + known


def _encode_state(state: State) -> bytes:
    assert len(state.own) <= len(STREAMS), state
    assert all(0 <= seqno <= SEQNO_MAX for _, seqno in state.own), state
    assert len(state.flushed) <= FLUSHED_MAX, len(state.flushed)
    flags = (state.provider is not None) * _HAS_PROVIDER
    flags |= (state.unlisted is not None) * _HAS_UNLISTED
    provider = encode_member(state.provider) if state.provider else b""
    holding = _FLAGS.pack(state.holding) + provider + _encode_members(state.refused)
    unlisted = encode_view_id(state.unlisted) if state.unlisted else b""
    head = _FLAGS.pack(flags) + encode_view_id(state.id) + encode_view_id(state.view_id) + unlisted
    own = _encode_list([_STREAM_SEQNO.pack(*own) for own in state.own])
    held = _encode_marks(state.held, len(state.members) or CHANGE_MEMBERS_MAX)
    flushed = [encode_view_id(each.id) + _encode_members(each.members) for each in state.flushed]
    return head + _encode_members(state.members) + own + held + _encode_list(flushed) + holding


def _encode_refuse(refuse: Refuse) -> bytes:
    flags = (refuse.promised is not None) * _HAS_PROMISED
    flags |= (refuse.coordinator is not None) * _HAS_OTHER
    promised = encode_view_id(refuse.promised) if refuse.promised else b""
    coordinator = encode_member(refuse.coordinator) if refuse.coordinator else b""
    return _FLAGS.pack(flags) + encode_view_id(refuse.id) + promised + coordinator


def _encode_cut(cut: Cut) -> bytes:
    assert len(cut.parts) <= CHANGE_MEMBERS_MAX, len(cut.parts)
    parts = [
        encode_view_id(part.view_id)
        + _encode_places(part.places, CHANGE_MEMBERS_MAX)
        + _encode_departed(part.departed)
        for part in cut.parts
    ]
    starts = _encode_marks(cut.starts, CHANGE_MEMBERS_MAX)
    assert cut.provider is not None or not cut.takers, cut
    provider = CHANGE_MEMBERS_MAX if cut.provider is None else cut.provider
    takers = _PLACE.pack(provider) + _encode_places(cut.takers, CHANGE_MEMBERS_MAX)
    return encode_view_id(cut.id) + _encode_list(parts) + starts + takers


def _encode_settings(settings: Settings) -> bytes:
    streams = sum(1 << stream for stream in settings.streams)
    given = sum(1 << NAMES.index(name) for name in settings.given)
    return _SETTINGS.pack(
        settings.purge, streams, given, *settings.times, settings.max_message_bytes
    )


def _encode_departed(departed: Sequence[CutMark]) -> bytes:
    assert len(departed) <= _MARKS_MAX, len(departed)
    packed = []
    for place, stream, seqno, source in departed:
        assert 0 <= place < CHANGE_MEMBERS_MAX, place
        assert 0 <= source < CHANGE_MEMBERS_MAX, source
        assert seqno == OWN or 0 <= seqno <= SEQNO_MAX, seqno
        packed.append(_CUT_MARK.pack(place, stream, _OWN if seqno == OWN else seqno, source))
    return _encode_list(packed)


def _encode_asked(frame: Want | Forwarded) -> bytes:
    """In which change, whose messages, and who wants them."""
    asker = encode_member(frame.asker) if frame.asker else b""
    flags = _FLAGS.pack((frame.asker is not None) * _HAS_ASKER)
    return flags + encode_view_id(frame.id) + encode_member(frame.sender) + asker


@lru_cache(_LISTS_MAX)
def _encode_members(members: tuple[Member, ...]) -> bytes:
    assert len(members) <= CHANGE_MEMBERS_MAX, len(members)
    assert are_distinct(members), members
    return _encode_list(list(map(encode_member, members)))


def _encode_places(places: Sequence[int], size: int) -> bytes:
    """Places in a list of this size."""
    assert len(places) <= size, len(places)
    assert all(0 <= place < size for place in places), places
    return _encode_list(list(map(_PLACE.pack, places)))


def _encode_marks(marks: Sequence[Mark], size: int) -> bytes:
    """Marks of members in a list of this size."""
    assert len(marks) <= _MARKS_MAX, len(marks)
    assert all(0 <= mark.place < size for mark in marks), marks
    assert all(0 <= mark.seqno <= SEQNO_MAX for mark in marks), marks
    return _encode_list([_MARK.pack(*mark) for mark in marks])


def _encode_list(parts: Sequence[bytes]) -> bytes:
    return MEMBER_COUNT.pack(len(parts)) + b"".join(parts)


def _decode_hello(cut: Cutter) -> Hello:
    flags = cut.flags(_ASKING | _HAS_STATE | _HAS_COORDINATOR | _HAS_VIEW)
    settings = _cut_settings(cut)
    highest, size = cut.numbers(_GREETING)
    if highest > COUNTER_MAX:
        raise DecodeError(Reject.SEQNO)
    if size > CHANGE_MEMBERS_MAX:
        raise DecodeError(Reject.COUNT)
    return Hello(
        settings,
        bool(flags & _ASKING),
        bool(flags & _HAS_STATE),
        highest,
        cut.member() if flags & _HAS_COORDINATOR else None,
        cut.view_id() if flags & _HAS_VIEW else None,
        size,
        cut.members(CHANGE_MEMBERS_MAX),
    )


def _decode_propose(cut: Cutter) -> Propose:
    id = cut.view_id()
    settings = _cut_settings(cut)
    members = cut.members(CHANGE_MEMBERS_MAX)
    if not members:
        raise DecodeError(Reject.COUNT)
    leaving = _cut_places(cut, len(members))
    if len(set(leaving)) < len(leaving):
        raise DecodeError(Reject.VIEW)
    known = [cut.view_id() for _ in range(cut.count(CHANGE_MEMBERS_MAX))]
    return Propose(id, members, settings, leaving, tuple(known))


def _decode_state(cut: Cutter) -> State:
    flags = cut.flags(_HAS_PROVIDER | _HAS_UNLISTED)
    id = cut.view_id()
    view_id = cut.view_id()
    unlisted = cut.view_id() if flags & _HAS_UNLISTED else None
    members = cut.members(CHANGE_MEMBERS_MAX)
    own = [
        (decode_stream(stream), _check_seqno(seqno))
        for stream, seqno in cut.table(_STREAM_SEQNO, len(STREAMS))
    ]
    held = _cut_marks(cut, len(members) or CHANGE_MEMBERS_MAX)
    flushed = [
        Flushable(cut.view_id(), cut.members(CHANGE_MEMBERS_MAX))
        for _ in range(cut.count(FLUSHED_MAX))
    ]
    holding = Holding(cut.flags(max(Holding)))
    provider = cut.member() if flags & _HAS_PROVIDER else None
    refused = cut.members(CHANGE_MEMBERS_MAX)
    return State(
        *(id, view_id, members, tuple(own), held, tuple(flushed), unlisted),
        *(holding, provider, refused),
    )


def _decode_refuse(cut: Cutter) -> Refuse:
    flags = cut.flags(_HAS_PROMISED | _HAS_OTHER)
    return Refuse(
        cut.view_id(),
        cut.view_id() if flags & _HAS_PROMISED else None,
        cut.member() if flags & _HAS_OTHER else None,
    )


def _decode_cut(cut: Cutter) -> Cut:
    id = cut.view_id()
    parts = [
        PartMarks(cut.view_id(), _cut_places(cut, CHANGE_MEMBERS_MAX), _cut_departed(cut))
        for _ in range(cut.count(CHANGE_MEMBERS_MAX))
    ]
    starts = _cut_marks(cut, CHANGE_MEMBERS_MAX)
    (provider,) = cut.numbers(_PLACE)
    takers = _cut_places(cut, CHANGE_MEMBERS_MAX)
    if provider > CHANGE_MEMBERS_MAX or (provider == CHANGE_MEMBERS_MAX and takers):
        raise DecodeError(Reject.VIEW)
    is_none = provider == CHANGE_MEMBERS_MAX
    return Cut(id, tuple(parts), starts, None if is_none else provider, takers)


def _cut_settings(cut: Cutter) -> Settings:
    purge, streams, given, *times, size = cut.numbers(_SETTINGS)
    if streams >= 1 << len(STREAMS) or given >= 1 << len(NAMES):
        raise DecodeError(Reject.FLAGS)
    settings = Settings(
        decode_purge(purge),
        tuple(stream for stream in STREAMS.values() if streams & 1 << stream),
        tuple(times),
        size,
        frozenset(name for n, name in enumerate(NAMES) if given & 1 << n),
    )
    _check_settings(settings)
    return settings


@lru_cache(_SETTINGS_MAX)
def _check_settings(settings: Settings) -> None:
    """A member could have been configured so."""
    try:
        settings.apply_to(_ANY_MEMBER)
    except ConfigError:
        raise DecodeError(Reject.SETTINGS) from None


def _decode_want(view: memoryview, start: int, stop: int) -> Want:
    cut = Cutter(view[:stop], start)
    (stream,) = cut.numbers(STREAM)
    id, sender, asker = _cut_asked(cut)
    missing = tuple(decode_ranges(view, cut.offset, stop))
    return Want(id, sender, decode_stream(stream), missing, asker)


def _decode_forwarded(view: memoryview, start: int, stop: int) -> Forwarded:
    cut = Cutter(view[:stop], start)
    id, sender, asker = _cut_asked(cut)
    return Forwarded(id, sender, decode_data(view, cut.offset, stop), asker)


def _decode_complain(cut: Cutter) -> Complain:
    flags = cut.flags(_SLOW | _WANTS_STATE)
    return Complain(cut.member(), bool(flags & _SLOW), bool(flags & _WANTS_STATE))


def _decode_in_view(cut: Cutter) -> InView:
    (tag,) = cut.numbers(_TAG)
    if not tag:
        raise DecodeError(Reject.SEQNO)
    if not cut.is_at_end:
        (purged,) = cut.numbers(_TAG)
        if purged > SEQNO_MAX:
            raise DecodeError(Reject.SEQNO)
        return InView(tag, purged)
    return InView(tag)


def _cut_asked(cut: Cutter) -> tuple[ViewId, Member, Member | None]:
    """In which change, whose messages, and who wants them."""
    flags = cut.flags(_HAS_ASKER)
    return cut.view_id(), cut.member(), cut.member() if flags & _HAS_ASKER else None


def _cut_places(cut: Cutter, size: int) -> tuple[int, ...]:
    """Places in a list of this size."""
    places = tuple([place for (place,) in cut.table(_PLACE, size)])
    if places and max(places) >= size:
        raise DecodeError(Reject.VIEW)
    return places


def _cut_marks(cut: Cutter, size: int) -> tuple[Mark, ...]:
    """Marks of members in a list of this size."""
    marks = []
    for place, stream, seqno in cut.table(_MARK, _MARKS_MAX):
        if place >= size:
            raise DecodeError(Reject.VIEW)
        marks.append(Mark(place, decode_stream(stream), _check_seqno(seqno)))
    return tuple(marks)


def _cut_departed(cut: Cutter) -> tuple[CutMark, ...]:
    marks = []
    for place, stream, seqno, source in cut.table(_CUT_MARK, _MARKS_MAX):
        if max(place, source) >= CHANGE_MEMBERS_MAX:
            raise DecodeError(Reject.VIEW)
        through = OWN if seqno == _OWN else _check_seqno(seqno)
        marks.append(CutMark(place, decode_stream(stream), through, source))
    return tuple(marks)


def _check_seqno(seqno: int) -> int:
    if seqno > SEQNO_MAX:
        raise DecodeError(Reject.SEQNO)
    return seqno


def _decode_whole(
    decode: Callable[[Cutter], Frame], view: memoryview, start: int, stop: int
) -> Frame:
    """A frame that says nothing after what is decoded."""
    cut = Cutter(view[:stop], start)
    frame = decode(cut)
    cut.finish()
    return frame


FOR_ANYONE: Final[Decoders] = {
    _HELLO: partial(_decode_whole, _decode_hello),
    IN_VIEW: partial(_decode_whole, _decode_in_view),
}

# A change is between incarnations: said to anyone it could reach the process that has the address
# now, and be taken for news of its own.
FOR_ONE: Final[Decoders] = {
    _PROPOSE: partial(_decode_whole, _decode_propose),
    _STATE: partial(_decode_whole, _decode_state),
    _REFUSE: partial(_decode_whole, _decode_refuse),
    _FINISH: partial(_decode_whole, lambda cut: Finish(cut.view_id(), cut.view_id())),
    _CUT: partial(_decode_whole, _decode_cut),
    _WANT: _decode_want,
    _FORWARDED: _decode_forwarded,
    _FLUSHED: partial(_decode_whole, lambda cut: Flushed(cut.view_id())),
    _INSTALL: partial(_decode_whole, lambda cut: Install(cut.view_id())),
    _INSTALLED: partial(_decode_whole, lambda cut: Installed(cut.view_id())),
    _COMPLAIN: partial(_decode_whole, _decode_complain),
}
