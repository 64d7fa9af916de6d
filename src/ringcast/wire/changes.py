"""What members say to each other to find their group and to change its view.

A proposal's id is the id of the view that it makes: one id has one list of members and one cut for
ever. Where a frame speaks of members it names their places: in the list of the proposal, or in the
view that it is about, which whoever gets it knows. So what one member says does not grow with the
group, but with what there is to say. What fits no datagram all the same travels in pieces.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from ringcast.model import Member, Stream, ViewId
    from ringcast.settings import Settings
    from ringcast.wire.frames import Data

SECRET_BYTES: Final = 8
"""Of a cookie, of a permit, and of the secret of a view."""

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


Listed: TypeAlias = "tuple[Member | range, ...]"
"""Members in their order: themselves, or runs of places in a list that whoever gets it knows."""


class Mark(NamedTuple):
    """How far one sender's stream has come. `place` is where that sender stands in a list."""

    place: int
    stream: Stream
    seqno: int


class Flushable(NamedTuple):
    """A proposal whose cut a member holds: somebody may have installed it."""

    id: ViewId
    members: Listed
    """By their places in the proposal that is answered, as far as they are in it."""


class CutMark(NamedTuple):
    """Up to where the members of a part deliver a sender that does not come along; `place` is its
    place in the view of that part."""

    place: int
    stream: Stream
    seqno: int
    """Or OWN."""
    source: int
    """Who holds it, by its place in the proposal."""


class PartMarks(NamedTuple):
    """Those members of a proposal who are in one view, by their places in the proposal."""

    view_id: ViewId
    places: tuple[int, ...]
    departed: tuple[CutMark, ...]
    """Of your own part: senders of its view that are not among them. The others are cut where they
    start."""


@dataclass(frozen=True, slots=True)
class Hello:
    """I am here: to whoever may be in the group, and to the coordinator of another part of it."""

    settings: Settings
    """Of the view that I am in; while I look for one, what I would have."""
    is_asking: bool
    """Say Hello to me, too."""
    has_state: bool
    highest: int
    """The highest counter of a view that was heard of."""
    coordinator: Member | None = None
    """Of the view that I am in; None: of none yet, I am looking for one."""
    view_id: ViewId | None = None
    size: int = 0
    members: tuple[Member, ...] = ()
    """Of that view; none: not told."""
    cookie: int = 0
    """Bring me this: it shows that you hear me. 0: none is asked for."""
    echo: int = 0
    """The cookie that you gave me. 0: I have none."""
    permit: int = 0
    """With this you may propose to the members of my view. 0: you may not."""


@dataclass(frozen=True, slots=True)
class Cookie:
    """To who says Hello and is not in my view: say so again, with this."""

    cookie: int
    echo: int
    """The cookie of that Hello."""


@dataclass(frozen=True, slots=True)
class Propose:
    """Let these members be the next view, in this order, without those who are leaving."""

    id: ViewId
    members: Listed
    """By their places in `base`, as far as they are in it."""
    settings: Settings
    """Of the view."""
    leaving: tuple[int, ...] = ()
    """Places, among these, of those who are asked and do not come along."""
    base: ViewId | None = None
    """The view that you are in, as far as I know: its members need not be told. None: all are."""
    has_state: bool = False
    """In the view that I am in somebody has the application's state."""
    size: int = 0
    """Of that view; 0: I look for a group."""
    permit: int = 0
    """Of the view that you are in: who coordinates it has given it to me."""


@dataclass(frozen=True, slots=True)
class State:
    """I promise this proposal: the view that I am in, and what I have."""

    id: ViewId
    view_id: ViewId
    members: Listed = ()
    """Of that view, by their places in the proposal as far as they are in it; none: it is the
    `base` of the proposal."""
    own: tuple[tuple[Stream, int], ...] = ()
    """The last seqno that I have given, by stream."""
    held: tuple[Mark, ...] = ()
    """How far I hold others of my view without a gap; places are those in it. Of streams of which
    nobody keeps what a departed member has sent, nothing is told."""
    flushed: tuple[Flushable, ...] = ()
    """Since that view, in the order of their ids."""
    unlisted: ViewId | None = None
    """Those up to this one are not listed any more; each may be flushed."""
    holding: Holding = Holding.NONE
    provider: Member | None = None
    """Who is giving me the state that I lack."""
    refused: tuple[Member, ...] = ()
    """Who could not."""
    is_based: bool = False
    """The proposer is in my view, too: what is not told of `held` is as that began; else 0."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """I have promised a higher one; or a coordinator of mine lives, and it is on that one. Both: I
    am in a view without you, and that one coordinates it. Neither: I do not know the view that your
    proposal is based on."""

    id: ViewId
    promised: ViewId | None = None
    coordinator: Member | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """Install that one first, which another member has installed, and say State again."""

    id: ViewId
    first: ViewId


@dataclass(frozen=True, slots=True)
class Cut:
    """Get what you lack up to the cut of your part."""

    id: ViewId
    parts: tuple[PartMarks, ...]
    starts: tuple[Mark, ...]
    """Where each member's streams go on, by its place in the proposal."""
    provider: int | None = None
    """Who gives its state, as it is at the cut, to those who take it; by its place."""
    takers: tuple[int, ...] = ()
    is_based: bool = False
    """I was in your view, too: what is not told of `starts` is as that began; else 0, as it is for
    those who were not in it."""
    secret: int = 0
    """Of the view: what permits are made of."""


@dataclass(frozen=True, slots=True)
class Want:
    """Give me these of that sender; the cut says that you hold them. If you do not, ask who does,
    and pass them on."""

    id: ViewId
    sender: Member
    stream: Stream
    missing: tuple[range, ...]
    asker: Member | None = None
    """Who wants them, if it is not who says so."""


@dataclass(frozen=True, slots=True)
class Forwarded:
    """Messages of that sender, as wanted."""

    id: ViewId
    sender: Member
    data: Data
    asker: Member | None = None


@dataclass(frozen=True, slots=True)
class Flushed:
    """I hold everything up to the cut."""

    id: ViewId


@dataclass(frozen=True, slots=True)
class Install:
    """All have flushed: the view begins."""

    id: ViewId


@dataclass(frozen=True, slots=True)
class Installed:
    """It has begun here."""

    id: ViewId


@dataclass(frozen=True, slots=True)
class Complain:
    """To the coordinator: see to this member."""

    member: Member
    is_slow: bool = False
    """It lives, but holds me up for too long."""
    wants_state: bool = False
    """It does not give me the state: let another do it. Neither: I do not hear it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Of a frame that fits no datagram, as it is on the wire."""

    kind: int
    """Of that frame."""
    number: int
    """Which one it is: the same as often as it is repeated."""
    index: int
    count: int
    content: bytes


@dataclass(frozen=True, slots=True)
class InView:
    """What follows in this datagram was said in the view with this tag: see `tag_of`. Where
    receivers retain and acknowledge: everybody has delivered the sender's plain messages up to
    `purged`."""

    tag: int
    purged: int | None = None


ChangeFrame: TypeAlias = (
    Hello
    | Cookie
    | Propose
    | State
    | Refuse
    | Finish
    | Cut
    | Want
    | Forwarded
    | Flushed
    | Install
    | Installed
    | Complain
    | Piece
    | InView
)
