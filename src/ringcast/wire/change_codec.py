"""Frames on the wire by which members find their group and change its view.

What is encoded here is our own; what is decoded may come from anybody, and raises DecodeError.
"""

from __future__ import annotations

from functools import lru_cache, partial
from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

from ringcast.errors import DecodeError, Reject
from ringcast.model import SEQNO_MAX
from ringcast.wire.change_lists import (
    check_seqno,
    cut_departed,
    cut_listed,
    cut_marks,
    cut_places,
    cut_settings,
    encode_departed,
    encode_list,
    encode_listed,
    encode_marks,
    encode_members,
    encode_places,
    encode_settings,
)
from ringcast.wire.changes import (
    SECRET_BYTES,
    Complain,
    Cookie,
    Cut,
    Finish,
    Flushable,
    Flushed,
    Forwarded,
    Hello,
    Holding,
    Install,
    Installed,
    InView,
    PartMarks,
    Piece,
    Propose,
    Refuse,
    State,
    Want,
)
from ringcast.wire.cutter import Cutter
from ringcast.wire.limits import CHANGE_BYTES_MAX, COUNTER_MAX, FLUSHED_MAX, VIEW_MEMBERS_MAX
from ringcast.wire.members import (
    MEMBER_BYTES_MAX,
    MEMBER_BYTES_MIN,
    STREAMS,
    decode_stream,
    encode_member,
    encode_view_id,
)
from ringcast.wire.runs import STREAM, decode_data, decode_ranges

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringcast.model import Member, ViewId
    from ringcast.wire.changes import ChangeFrame
    from ringcast.wire.frames import Frame

    Decoders: TypeAlias = dict[int, Callable[[memoryview, int, int], Frame]]

_HELLO, _PROPOSE, _STATE, _REFUSE, _FINISH, _CUT, _WANT, _FORWARDED = range(64, 72)
_FLUSHED, _INSTALL, _INSTALLED, _COMPLAIN, IN_VIEW, PIECE, _COOKIE = range(72, 79)
LONG: Final = frozenset([_HELLO, _PROPOSE, _STATE, _CUT])
"""Frames that speak of many members, and travel in pieces if they fit no datagram."""
ALONE: Final = LONG | {_FORWARDED, PIECE}
"""Frames that have a datagram to themselves: these, and what is passed on."""

_FLAGS: Final = Struct("<B")
_GREETING: Final = Struct("<QHQQ")  # highest, size, cookie, echo
_SECRET: Final = Struct("<Q")
_COOKIES: Final = Struct("<QQ")  # cookie, echo
_PLACE: Final = Struct("<H")
_STREAM_SEQNO: Final = Struct("<BQ")
_TAG: Final = Struct("<Q")
_PIECE: Final = Struct("<BQHH")  # kind, number, index, count

_ASKING, _HAS_STATE, _HAS_COORDINATOR, _HAS_VIEW, _PERMITS = 1, 2, 4, 8, 16  # flags of a hello
_HAS_BASE, _IS_STATED, _HAS_PERMIT = 1, 2, 4  # flags of a proposal
_HAS_PROVIDER, _HAS_UNLISTED, _IS_BASED = 1, 2, 4  # flags of a state, the last of a cut, too
_HAS_PROMISED, _HAS_OTHER = 1, 2  # flags of a refusal: a proposal, a coordinator
_HAS_ASKER: Final = 1  # flag of what is wanted or passed on
_SLOW, _WANTS_STATE = 1, 2  # flags of a complaint

_NOBODY: Final = 2**16 - 1  # in place of a place
TAG_MAX: Final = 2**64 - 1
SECRET_MAX: Final = 2 ** (8 * SECRET_BYTES) - 1
TAG_BYTES: Final = _TAG.size
_TAGS_MAX: Final = 64
PIECE_HEAD: Final = _PIECE.size
_PIECES_MAX: Final = 2**16 - 1

HELLO_BYTES_MIN: Final = _COOKIES.size + MEMBER_BYTES_MAX - MEMBER_BYTES_MIN
"""A hello is padded to so many bytes: no cookie that answers it is longer, whoever sends that."""

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
        case Cookie():
            assert 1 <= frame.cookie <= SECRET_MAX, frame
            assert 0 <= frame.echo <= SECRET_MAX, frame
            return _COOKIE, _COOKIES.pack(frame.cookie, frame.echo)
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
        case Piece():
            return PIECE, _encode_piece(frame)
        case InView():
            assert 1 <= frame.tag <= TAG_MAX, frame
            mark = b"" if frame.purged is None else _TAG.pack(frame.purged)
            return IN_VIEW, _TAG.pack(frame.tag) + mark
        case _:
            assert_never(frame)


def _encode_hello(hello: Hello) -> bytes:
    assert 0 <= hello.highest <= COUNTER_MAX, hello
    assert 0 <= hello.size <= VIEW_MEMBERS_MAX, hello
    flags = (
        hello.is_asking * _ASKING
        | hello.has_state * _HAS_STATE
        | (hello.coordinator is not None) * _HAS_COORDINATOR
        | (hello.view_id is not None) * _HAS_VIEW
        | (hello.permit != 0) * _PERMITS
    )
    head = _FLAGS.pack(flags) + encode_settings(hello.settings)
    assert max(hello.cookie, hello.echo, hello.permit) <= SECRET_MAX, hello
    head += _GREETING.pack(hello.highest, hello.size, hello.cookie, hello.echo)
    head += _SECRET.pack(hello.permit) if hello.permit else b""
    coordinator = encode_member(hello.coordinator) if hello.coordinator else b""
    view_id = encode_view_id(hello.view_id) if hello.view_id else b""
    body = head + coordinator + view_id + encode_members(hello.members)
    return body.ljust(HELLO_BYTES_MIN, b"\0")


def _encode_propose(propose: Propose) -> bytes:
    assert propose.members, propose
    assert len(set(propose.leaving)) == len(propose.leaving), propose
    assert 0 <= propose.size <= VIEW_MEMBERS_MAX, propose
    flags = (propose.base is not None) * _HAS_BASE | propose.has_state * _IS_STATED
    flags |= (propose.permit != 0) * _HAS_PERMIT
    base = encode_view_id(propose.base) if propose.base else b""
    assert 0 <= propose.permit <= SECRET_MAX, propose
    permit = _SECRET.pack(propose.permit) if propose.permit else b""
    head = _FLAGS.pack(flags) + _PLACE.pack(propose.size) + permit + encode_view_id(propose.id)
    head += encode_settings(propose.settings) + base
    return head + encode_listed(propose.members) + encode_places(propose.leaving)


def _encode_state(state: State) -> bytes:
    assert len(state.own) <= len(STREAMS), state
    assert all(0 <= seqno <= SEQNO_MAX for _, seqno in state.own), state
    assert len(state.flushed) <= FLUSHED_MAX, len(state.flushed)
    flags = (state.provider is not None) * _HAS_PROVIDER
    flags |= (state.unlisted is not None) * _HAS_UNLISTED | state.is_based * _IS_BASED
    provider = encode_member(state.provider) if state.provider else b""
    holding = _FLAGS.pack(state.holding) + provider + encode_members(state.refused)
    unlisted = encode_view_id(state.unlisted) if state.unlisted else b""
    head = _FLAGS.pack(flags) + encode_view_id(state.id) + encode_view_id(state.view_id) + unlisted
    own = encode_list([_STREAM_SEQNO.pack(*own) for own in state.own])
    flushed = [encode_view_id(each.id) + encode_listed(each.members) for each in state.flushed]
    lists = encode_listed(state.members) + own + encode_marks(state.held)
    return head + lists + encode_list(flushed) + holding


def _encode_refuse(refuse: Refuse) -> bytes:
    flags = (refuse.promised is not None) * _HAS_PROMISED
    flags |= (refuse.coordinator is not None) * _HAS_OTHER
    promised = encode_view_id(refuse.promised) if refuse.promised else b""
    coordinator = encode_member(refuse.coordinator) if refuse.coordinator else b""
    return _FLAGS.pack(flags) + encode_view_id(refuse.id) + promised + coordinator


def _encode_cut(cut: Cut) -> bytes:
    assert len(cut.parts) <= VIEW_MEMBERS_MAX, len(cut.parts)
    parts = [
        encode_view_id(part.view_id) + encode_places(part.places) + encode_departed(part.departed)
        for part in cut.parts
    ]
    assert cut.provider is not None or not cut.takers, cut
    assert cut.provider is None or 0 <= cut.provider < VIEW_MEMBERS_MAX, cut
    provider = _PLACE.pack(_NOBODY if cut.provider is None else cut.provider)
    takers = provider + encode_places(cut.takers)
    assert 0 <= cut.secret <= SECRET_MAX, cut
    head = _FLAGS.pack(cut.is_based * _IS_BASED) + encode_view_id(cut.id)
    head += _SECRET.pack(cut.secret)
    return head + encode_list(parts) + encode_marks(cut.starts) + takers


def _encode_piece(piece: Piece) -> bytes:
    assert piece.kind in LONG, piece
    assert 0 <= piece.index < piece.count <= _PIECES_MAX, piece
    assert piece.content, piece
    return _PIECE.pack(piece.kind, piece.number, piece.index, piece.count) + piece.content


def cut_into_pieces(kind: int, body: bytes, size: int) -> list[Piece]:
    """A frame that fits no datagram, so many bytes in each."""
    assert kind in LONG, kind
    assert len(body) <= CHANGE_BYTES_MAX, len(body)
    digest = blake2b(bytes([kind]) + body, digest_size=_TAG.size).digest()
    number, count = int.from_bytes(digest, "little"), -(-len(body) // size)
    return [
        Piece(kind, number, index, count, body[index * size : (index + 1) * size])
        for index in range(count)
    ]


def decode_pieces(kind: int, body: bytes) -> Frame:
    """What was cut into pieces."""
    decode = FOR_ONE.get(kind) or FOR_ANYONE[kind]
    return decode(memoryview(body), 0, len(body))


def _encode_asked(frame: Want | Forwarded) -> bytes:
    """In which change, whose messages, and who wants them."""
    asker = encode_member(frame.asker) if frame.asker else b""
    flags = _FLAGS.pack((frame.asker is not None) * _HAS_ASKER)
    return flags + encode_view_id(frame.id) + encode_member(frame.sender) + asker


def _decode_hello(cut: Cutter) -> Hello:
    start = cut.offset
    flags = cut.flags(_ASKING | _HAS_STATE | _HAS_COORDINATOR | _HAS_VIEW | _PERMITS)
    settings = cut_settings(cut)
    highest, size, cookie, echo = cut.numbers(_GREETING)
    permit = _cut_permit(cut) if flags & _PERMITS else 0
    if highest > COUNTER_MAX:
        raise DecodeError(Reject.SEQNO)
    if size > VIEW_MEMBERS_MAX:
        raise DecodeError(Reject.COUNT)
    hello = Hello(
        settings,
        bool(flags & _ASKING),
        bool(flags & _HAS_STATE),
        highest,
        cut.member() if flags & _HAS_COORDINATOR else None,
        cut.view_id() if flags & _HAS_VIEW else None,
        size,
        cut.members(VIEW_MEMBERS_MAX),
        *(cookie, echo, permit),
    )
    length, padding = cut.offset - start, cut.rest()
    if any(padding) or len(padding) != max(0, HELLO_BYTES_MIN - length):
        raise DecodeError(Reject.FRAME_LENGTH)
    return hello


def _cut_permit(cut: Cutter) -> int:
    (permit,) = cut.numbers(_SECRET)
    if not permit:
        raise DecodeError(Reject.SEQNO)
    return int(permit)


def _decode_cookie(cut: Cutter) -> Cookie:
    cookie, echo = cut.numbers(_COOKIES)
    if not cookie:
        raise DecodeError(Reject.SEQNO)
    return Cookie(cookie, echo)


def _decode_propose(cut: Cutter) -> Propose:
    flags = cut.flags(_HAS_BASE | _IS_STATED | _HAS_PERMIT)
    (size,) = cut.numbers(_PLACE)
    if size > VIEW_MEMBERS_MAX:
        raise DecodeError(Reject.COUNT)
    permit = _cut_permit(cut) if flags & _HAS_PERMIT else 0
    id, settings = cut.view_id(), cut_settings(cut)
    base = cut.view_id() if flags & _HAS_BASE else None
    members, leaving = cut_listed(cut), cut_places(cut)
    if not members:
        raise DecodeError(Reject.COUNT)
    is_told = base is None and any(isinstance(each, range) for each in members)
    if is_told or len(set(leaving)) < len(leaving):
        raise DecodeError(Reject.VIEW)
    return Propose(id, members, settings, leaving, base, bool(flags & _IS_STATED), size, permit)


def _decode_state(cut: Cutter) -> State:
    flags = cut.flags(_HAS_PROVIDER | _HAS_UNLISTED | _IS_BASED)
    id = cut.view_id()
    view_id = cut.view_id()
    unlisted = cut.view_id() if flags & _HAS_UNLISTED else None
    members = cut_listed(cut)
    own = [
        (decode_stream(stream), check_seqno(seqno))
        for stream, seqno in cut.table(_STREAM_SEQNO, len(STREAMS))
    ]
    held = cut_marks(cut)
    flushed = [Flushable(cut.view_id(), cut_listed(cut)) for _ in range(cut.count(FLUSHED_MAX))]
    holding = Holding(cut.flags(max(Holding)))
    provider = cut.member() if flags & _HAS_PROVIDER else None
    refused = cut.members(VIEW_MEMBERS_MAX)
    return State(
        *(id, view_id, members, tuple(own), held, tuple(flushed), unlisted),
        *(holding, provider, refused, bool(flags & _IS_BASED)),
    )


def _decode_refuse(cut: Cutter) -> Refuse:
    flags = cut.flags(_HAS_PROMISED | _HAS_OTHER)
    return Refuse(
        cut.view_id(),
        cut.view_id() if flags & _HAS_PROMISED else None,
        cut.member() if flags & _HAS_OTHER else None,
    )


def _decode_cut(cut: Cutter) -> Cut:
    flags = cut.flags(_IS_BASED)
    id = cut.view_id()
    (secret,) = cut.numbers(_SECRET)
    parts, left = [], VIEW_MEMBERS_MAX
    for _ in range(cut.count(VIEW_MEMBERS_MAX)):
        parts.append(PartMarks(cut.view_id(), cut_places(cut, left), cut_departed(cut)))
        left -= len(parts[-1].places)
    starts = cut_marks(cut)
    (provider,) = cut.numbers(_PLACE)
    takers = cut_places(cut)
    if provider != _NOBODY and provider >= VIEW_MEMBERS_MAX:
        raise DecodeError(Reject.VIEW)
    if provider == _NOBODY and takers:
        raise DecodeError(Reject.VIEW)
    giver = None if provider == _NOBODY else provider
    return Cut(id, tuple(parts), starts, giver, takers, bool(flags & _IS_BASED), secret)


def _decode_piece(cut: Cutter) -> Piece:
    kind, number, index, count = cut.numbers(_PIECE)
    content = cut.rest()
    if kind not in LONG:
        raise DecodeError(Reject.FRAME_KIND)
    if index >= count or not content:
        raise DecodeError(Reject.COUNT)
    return Piece(kind, number, index, count, content)


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
    PIECE: partial(_decode_whole, _decode_piece),
    _COOKIE: partial(_decode_whole, _decode_cookie),
}
