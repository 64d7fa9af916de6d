"""What comes out of a Node for its application, in one order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ringcast.errors import Undeliverable as Undeliverable  # it is raised, too

if TYPE_CHECKING:
    from ringcast.model import Digest, Member, Place, Run, Stream, View, ViewId


@dataclass(slots=True)
class Delivered:
    """Messages of one sender, in order. Taking this event is delivery: it may now be acked.

    A message that travelled in fragments bears the seqno of its last one. `epoch` is 0 for what
    was sent to the group; messages to this member alone bear the epoch of their unicast stream.
    """

    sender: Member
    run: Run
    view_id: ViewId
    epoch: int = 0
    position: int = 0
    """Of the first of them in the one order of total messages; 0 for all others."""
    carried: bool = False
    """Total: accepted before its sender came to the history that this is, from another one."""
    seen: bool = False
    """Total: this member has taken it before, in a history that is not this one."""


@dataclass(slots=True)
class FragmentsDelivered:
    """Fragments first..last of a large message have left the window; the message is not whole."""

    sender: Member
    stream: Stream
    first: int
    last: int
    view_id: ViewId
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class ViewInstalled:
    """The group changed. From here on nothing plain comes from members that are not in it.

    `parts` are the views that groups of the same name were in until they came together in this
    one, as far as their members are in it; empty if it is no merge. Of members from another part,
    what they sent before they knew of this one is not delivered here.

    `together` are the members, this one among them, that come from this member's last view: they
    have delivered the same in it. It is empty in the first view. `unconfirmed` are this member's
    own messages to the group, as (stream, first, last), that some member of this view may lack for
    good: that one was in a view with this member before, and comes back from another. Of total
    messages: that are not in the history with which this view begins, or of which nobody knows.

    In the one order of total messages it stands at the same place for all of a part: behind the
    message of this `position`. `gone` are the members of the leading part's last view that do not
    come along with that part, `came` those of this view that were not in it: both are the same at
    all members of the view. Who has skipped a view is in both.
    """

    view: View
    parts: tuple[View, ...] = ()
    together: tuple[Member, ...] = ()
    unconfirmed: tuple[tuple[Stream, int, int], ...] = ()
    position: int = 0
    gone: tuple[Member, ...] = ()
    came: tuple[Member, ...] = ()


@dataclass(frozen=True, slots=True)
class Writable:
    """A send that was cut short may be tried again: there is room. `to` is None for the group."""

    to: Member | None = None


@dataclass(frozen=True, slots=True)
class GapSkipped:
    """Messages first..last of a sender to this member are lost: the sender no longer has them."""

    sender: Member
    epoch: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Closed:
    """This member is out of the group. `reason` is a sentence for people.

    `unsent_bytes` counts the bytes of a large message of which only the beginning had been sent:
    nobody will deliver it. `unacked` are this member's own messages to the group, as (stream,
    first, last), that somebody may not have got. The last `unsent` of them, over all streams, were
    accepted, mostly from threads, and have not been sent to anybody; each counts as one seqno.
    """

    reason: str
    unsent_bytes: int = 0
    unacked: tuple[tuple[Stream, int, int], ...] = ()
    unsent: int = 0


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The receipt of this number is due: every member that it waited for has delivered, or those
    that are `missing` departed before they had. `reason` says how, for people."""

    number: int
    missing: tuple[Member, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Ordered:
    """The total message of the receipt of this number stands at this place of the one order; with
    position 0, somewhere before that view. None: it is not ordered, as far as is known here; if it
    `is_submitted`, it may be all the same."""

    number: int
    place: Place | None
    is_submitted: bool = False


# Requests: not frozen, which would take longer than all else that is done to make one


@dataclass(slots=True)
class RequestReceived:
    """A member asks this member's application something. Node.answer takes what it says."""

    sender: Member
    number: int
    payload: bytes
    is_inquiry: bool = False
    """It is not the application that is asked, but ringcast at its edge (aio/published.py)."""


@dataclass(slots=True)
class ReplyReceived:
    """What a member says to the request of this number; if it `is_refused`, why it says nothing."""

    sender: Member
    number: int
    payload: bytes
    is_refused: bool


# State transfer: at who provides the state


@dataclass(frozen=True, slots=True)
class StateWanted:
    """This joiner wants the state as it is here: with all that came before this event, and nothing
    that comes after it. Node.provide_state takes it, under this number, in chunks."""

    transfer: int
    joiner: Member


@dataclass(frozen=True, slots=True)
class StateWritable:
    """A provide_state that was cut short may go on: there is room for more chunks."""

    transfer: int


@dataclass(frozen=True, slots=True)
class StateAbandoned:
    """This transfer is over before its end: nobody wants the rest. `reason` is for people."""

    transfer: int
    reason: str


# State transfer: at who joins. Until StateReceived or StateLost it gets views and these alone;
# then, first, the messages that came meanwhile. Their senders may have departed by then, and they
# bear the id of the view that they came in.


@dataclass(frozen=True, slots=True)
class StateBegun:
    """A state of this provider follows, with all that is up to `cut`: chunks, then StateReceived.
    It may come again, if another has to provide it: forget the chunks that came before."""

    provider: Member
    cut: Digest


@dataclass(frozen=True, slots=True)
class StateChunk:
    """The next chunk of the state, as it was given."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class StateReceived:
    """The state is complete. What comes from here on is not in it."""

    provider: Member
    chunks: int
    size: int


@dataclass(frozen=True, slots=True)
class StateLost:
    """Nobody can give the state; chunks that came are worth nothing. What comes from here on is all
    that came since this member joined. `reason` is for people."""

    reason: str


StateEvent: TypeAlias = (
    StateWanted
    | StateWritable
    | StateAbandoned
    | StateBegun
    | StateChunk
    | StateReceived
    | StateLost
)

Event: TypeAlias = (
    Delivered
    | FragmentsDelivered
    | ViewInstalled
    | Writable
    | Undeliverable
    | GapSkipped
    | Closed
    | Confirmed
    | Ordered
    | RequestReceived
    | ReplyReceived
    | StateEvent
)
