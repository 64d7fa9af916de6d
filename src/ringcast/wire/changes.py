"""What members say to each other to find their group and to change its view.

A proposal's id is the id of the view that it makes: one id has one list of members and one cut for
ever. Where a frame speaks of members it names their places: in the list of the proposal, or in the
view that it is about, which whoever gets it knows. So what one member says does not grow with the
group, but with what there is to say. What fits no datagram all the same travels in pieces.

Frames are declared as in frames.py.
"""

# Annotations are read when this is imported: there is no `from __future__ import annotations`.

from enum import IntEnum
from functools import lru_cache
from hashlib import blake2b
from typing import Annotated, Final, NamedTuple, TypeAlias

from ringcast.errors import Reject
from ringcast.model import SEQNO_MAX, Stream, ViewId
from ringcast.wire.fields import (
    SEQNO,
    STREAM,
    U16,
    U64,
    CounterOr0,
    ListedField,
    MemberField,
    MembersField,
    Not0,
    Place,
    PlacesField,
    Ranges,
    Rest,
    RunField,
    Seqno,
    SettingsField,
    Size,
    StreamId,
    ViewIdField,
)
from ringcast.wire.layout import FRAMES, Layout, frame, record_of
from ringcast.wire.limits import CHANGE_BYTES_MAX, FLUSHED_MAX, VIEW_MEMBERS_MAX
from ringcast.wire.members import MEMBER_BYTES_MAX, MEMBER_BYTES_MIN, encode_view_id
from ringcast.wire.schema import Flag, If, Item, List, Number, Record, Table

SECRET_BYTES: Final = 8
"""Of a cookie, of a permit, and of the secret of a view."""

HELLO_BYTES_MIN: Final = 2 * SECRET_BYTES + MEMBER_BYTES_MAX - MEMBER_BYTES_MIN
"""A hello is padded to so many bytes: no cookie that answers it is longer, whoever sends that."""

_TAG_BYTES: Final = 8
_TAGS_MAX: Final = 64
_MARKS_MAX: Final = len(Stream) * VIEW_MEMBERS_MAX

OWN: Final = -1
"""In place of a seqno of a cut: each member keeps what it has of this sender."""


class Holding(IntEnum):
    """What a member has of the application's state."""

    NONE = 0
    """Its application has no such thing: it neither gives nor takes one."""
    LACKS = 1
    HOLDS = 2
    KEEPS = 3
    """The same; and where parts come together it does not take that of another."""


class Mark(NamedTuple):
    """How far one sender's stream has come. `place` is where that sender stands in a list."""

    place: Place
    stream: StreamId
    seqno: Seqno


Marks: TypeAlias = Annotated[tuple[Mark, ...], Table(record_of(Mark), _MARKS_MAX)]


class OrderMarks(NamedTuple):
    """How far somebody has come in the one order of total messages."""

    position: Seqno
    origins: ListedField
    """Who has a mark, by their places in a list as far as they are in it, then the departed."""
    marks: Annotated[tuple[int, ...], List(Record([SEQNO], int), VIEW_MEMBERS_MAX)]
    """The highest number of each of them that is in the history."""
    gone: MembersField = ()
    """Of a Cut: members of the leading part's view that are not in it."""
    has_forgotten: Annotated[bool, Flag(1)] = False
    """Marks of some who may come back are not known any more."""


_ORDER: Final = Layout(OrderMarks)


class Flushable(NamedTuple):
    """A proposal whose cut a member holds: somebody may have installed it."""

    id: ViewIdField
    members: ListedField
    """By their places in the proposal that is answered, as far as they are in it."""


class CutMark(NamedTuple):
    """Up to where the members of a part deliver a sender that does not come along; `place` is its
    place in the view of that part."""

    place: Place
    stream: StreamId
    seqno: Annotated[int, Number("q", OWN, SEQNO_MAX, Reject.SEQNO)]
    """Or OWN."""
    source: Place
    """Who holds it, by its place in the proposal."""


class PartMarks(NamedTuple):
    """Those members of a proposal who are in one view, by their places in the proposal."""

    view_id: ViewIdField
    places: PlacesField
    departed: Annotated[tuple[CutMark, ...], Table(record_of(CutMark), _MARKS_MAX)]
    """Of your own part: senders of its view that are not among them. The others are cut where they
    start."""


@frame(
    64,
    wire_order="flags settings highest size cookie echo permit coordinator view_id members",
    pad=HELLO_BYTES_MIN,
    to_anyone=True,
    long=True,
)
class Hello:
    """I am here: to whoever may be in the group, and to the coordinator of another part of it."""

    settings: SettingsField
    """Of the view that I am in; while I look for one, what I would have."""
    is_asking: Annotated[bool, Flag(1)]
    """Say Hello to me, too."""
    has_state: Annotated[bool, Flag(2)]
    highest: CounterOr0
    """The highest counter of a view that was heard of."""
    coordinator: Annotated[MemberField | None, If(4)] = None
    """Of the view that I am in; None: of none yet, I am looking for one."""
    view_id: Annotated[ViewIdField | None, If(8)] = None
    size: Size = 0
    members: MembersField = ()
    """Of that view; none: not told."""
    cookie: U64 = 0
    """Bring me this: it shows that you hear me. 0: none is asked for."""
    echo: U64 = 0
    """The cookie that you gave me. 0: I have none."""
    permit: Annotated[Not0, If(16, 0)] = 0
    """With this you may propose to the members of my view. 0: you may not."""


@frame(78)
class Cookie:
    """To who says Hello and is not in my view: say so again, with this."""

    cookie: Not0
    echo: U64
    """The cookie of that Hello."""


@frame(65, wire_order="flags size permit id settings base members leaving", long=True)
class Propose:
    """Let these members be the next view, in this order, without those who are leaving."""

    id: ViewIdField
    members: ListedField
    """By their places in `base`, as far as they are in it."""
    settings: SettingsField
    """Of the view."""
    leaving: PlacesField = ()
    """Places, among these, of those who are asked and do not come along."""
    base: Annotated[ViewIdField | None, If(1)] = None
    """The view that you are in, as far as I know: its members need not be told. None: all are."""
    has_state: Annotated[bool, Flag(2)] = False
    """In the view that I am in somebody has the application's state."""
    size: Size = 0
    """Of that view; 0: I look for a group."""
    permit: Annotated[Not0, If(4, 0)] = 0
    """Of the view that you are in: who coordinates it has given it to me."""

    def fault(self) -> Reject | None:
        if not self.members:
            return Reject.COUNT
        is_untold = self.base is None and any(isinstance(each, range) for each in self.members)
        is_twice = len(set(self.leaving)) < len(self.leaving)
        return Reject.VIEW if is_untold or is_twice else None


@frame(
    66,
    wire_order="flags id view_id unlisted members own held flushed holding provider refused order",
    long=True,
)
class State:
    """I promise this proposal: the view that I am in, and what I have."""

    id: ViewIdField
    view_id: ViewIdField
    members: ListedField = ()
    """Of that view, by their places in the proposal as far as they are in it; none: it is the
    `base` of the proposal."""
    own: Annotated[tuple[tuple[Stream, int], ...], Table(Record([STREAM, SEQNO]), len(Stream))] = ()
    """The last seqno that I have given, by stream."""
    held: Marks = ()
    """How far I hold others of my view without a gap; places are those in it. Of streams of which
    nobody keeps what a departed member has sent, nothing is told."""
    flushed: Annotated[tuple[Flushable, ...], List(Layout(Flushable), FLUSHED_MAX)] = ()
    """Since that view, in the order of their ids."""
    unlisted: Annotated[ViewIdField | None, If(2)] = None
    """Those up to this one are not listed any more; each may be flushed."""
    holding: Annotated[Holding, Number("B", 0, max(Holding), Reject.FLAGS, Holding)] = Holding.NONE
    provider: Annotated[MemberField | None, If(1)] = None
    """Who is giving me the state that I lack."""
    refused: MembersField = ()
    """Who could not."""
    is_based: Annotated[bool, Flag(4)] = False
    """The proposer is in my view, too: what is not told of `held` is as that began; else 0."""
    order: Annotated[OrderMarks | None, _ORDER, If(8)] = None
    """With all that I hold; places are those in my view. None: I hold nothing of it."""


@frame(67)
class Refuse:
    """I have promised a higher one; or a coordinator of mine lives, and it is on that one. Both: I
    am in a view without you, or go on without you, and that one coordinates it. Neither: I do not
    know the view that your proposal is based on."""

    id: ViewIdField
    promised: Annotated[ViewIdField | None, If(1)] = None
    coordinator: Annotated[MemberField | None, If(2)] = None


@frame(68)
class Finish:
    """Install that one first, which another member has installed, and say State again."""

    id: ViewIdField
    first: ViewIdField


Parts: TypeAlias = Annotated[
    tuple[PartMarks, ...],
    List(Layout(PartMarks), VIEW_MEMBERS_MAX, weigh=lambda part: len(part.places)),
]
_NOBODY: Final = -1
_PLACE: Final = Record([Number("h", _NOBODY, VIEW_MEMBERS_MAX - 1, Reject.VIEW)], int)
_PLACE_OR_NOBODY: Final = Item(
    lambda place: _PLACE.encode(_NOBODY if place is None else place),
    lambda cut: None if (place := _PLACE.cut(cut)) == _NOBODY else place,
)


@frame(69, wire_order="flags id secret parts starts provider takers order", long=True)
class Cut:
    """Get what you lack up to the cut of your part."""

    id: ViewIdField
    parts: Parts
    starts: Marks
    """Where each member's streams go on, by its place in the proposal."""
    provider: Annotated[int | None, _PLACE_OR_NOBODY] = None
    """Who gives its state, as it is at the cut, to those who take it; by its place."""
    takers: PlacesField = ()
    is_based: Annotated[bool, Flag(4)] = False
    """I was in your view, too: what is not told of `starts` is as that began; else 0, as it is for
    those who were not in it."""
    secret: U64 = 0
    """Of the view: what permits are made of."""
    order: Annotated[OrderMarks | None, _ORDER, If(8)] = None
    """Of the leading part at its cut, where there are several; places are those in the proposal.
    None: nothing was said in it, and nobody has gone."""

    def fault(self) -> Reject | None:
        return Reject.VIEW if self.provider is None and self.takers else None


@frame(70, wire_order="stream flags id sender asker missing")
class Want:
    """Give me these of that sender; the cut says that you hold them. If you do not, ask who does,
    and pass them on."""

    id: ViewIdField
    sender: MemberField
    stream: StreamId
    missing: Ranges
    asker: Annotated[MemberField | None, If(1)] = None
    """Who wants them, if it is not who says so."""


@frame(71, wire_order="flags id sender asker data", alone=True)
class Forwarded:
    """Messages of that sender, as wanted."""

    id: ViewIdField
    sender: MemberField
    data: RunField
    asker: Annotated[MemberField | None, If(1)] = None


@frame(72)
class Flushed:
    """I hold everything up to the cut."""

    id: ViewIdField


@frame(73)
class Install:
    """All have flushed: the view begins."""

    id: ViewIdField


@frame(74)
class Installed:
    """It has begun here."""

    id: ViewIdField


@frame(75)
class Complain:
    """To the coordinator: see to this member."""

    member: MemberField
    is_slow: Annotated[bool, Flag(1)] = False
    """It lives, but blocks me for too long."""
    wants_state: Annotated[bool, Flag(2)] = False
    """It does not give me the state: let another do it."""
    starts_over: Annotated[bool, Flag(4)] = False
    """A large message of it, that is of mine, starts over whenever somebody comes in."""
    is_through: Annotated[bool, Flag(8)] = False
    """It has got through. None of these: I do not hear that member."""


LONG: Final = frozenset(layout.kind for layout in FRAMES.values() if layout.is_long)
"""Kinds of frames that speak of many members, and travel in pieces if they fit no datagram."""


@frame(77, alone=True)
class Piece:
    """Of a frame that fits no datagram, as it is on the wire."""

    kind: Annotated[int, Number("B", min(LONG), max(LONG), Reject.FRAME_KIND, only=LONG)]
    """Of that frame."""
    number: U64
    """Which one it is: the same as often as it is repeated."""
    index: U16
    count: U16
    content: Rest

    def fault(self) -> Reject | None:
        return None if self.index < self.count and self.content else Reject.COUNT


_SEQNO: Final = Record([SEQNO], int)
_SEQNO_OR_END: Final = Item(
    lambda seqno: b"" if seqno is None else _SEQNO.encode(seqno),
    lambda cut: _SEQNO.cut(cut) if cut.left else None,
)


@frame(76, to_anyone=True)
class InView:
    """What follows in this datagram was said in the view with this tag: see `tag_of`. Where
    receivers retain and acknowledge: everybody has delivered the sender's plain messages up to
    `purged`."""

    tag: Not0
    purged: Annotated[int | None, _SEQNO_OR_END] = None


_Meeting: TypeAlias = Hello | Cookie | Complain
_Proposing: TypeAlias = Propose | State | Refuse | Finish
_Flushing: TypeAlias = Cut | Flushed | Install | Installed
ViewFrame: TypeAlias = _Meeting | _Proposing | _Flushing | Piece
FlushFrame: TypeAlias = Want | Forwarded | InView
ChangeFrame: TypeAlias = ViewFrame | FlushFrame


@lru_cache(_TAGS_MAX)
def tag_of(view_id: ViewId) -> int:
    """What stands for this view in a datagram: never 0."""
    return _digest(encode_view_id(view_id)) or 1


def cut_into_pieces(kind: int, body: bytes, size: int) -> list[Piece]:
    """A frame that fits no datagram, so many bytes in each."""
    assert kind in LONG, kind
    assert len(body) <= CHANGE_BYTES_MAX, len(body)
    number, count = _digest(bytes([kind]) + body), -(-len(body) // size)
    return [
        Piece(kind, number, index, count, body[index * size : (index + 1) * size])
        for index in range(count)
    ]


def decode_pieces(kind: int, body: bytes) -> ChangeFrame:
    """What was cut into pieces."""
    (layout,) = [layout for layout in FRAMES.values() if layout.kind == kind]
    decoded: ChangeFrame = layout.decode(memoryview(body), 0, len(body))
    return decoded


def _digest(content: bytes) -> int:
    return int.from_bytes(blake2b(content, digest_size=_TAG_BYTES).digest(), "little")
