"""What comes out of a Node for its application, in one order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from ringcast.model import Member, Run, Stream, View, ViewId


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


@dataclass(slots=True)
class FragmentsTaken:
    """Fragments first..last of a large message have left the window; the message is not whole."""

    sender: Member
    stream: Stream
    first: int
    last: int
    view_id: ViewId
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class ViewInstalled:
    """The group changed. From here on nothing plain comes from members that are not in it."""

    view: View


@dataclass(frozen=True, slots=True)
class Writable:
    """A send that was cut short may be tried again: there is room. `to` is None for the group."""

    to: Member | None = None


@dataclass(frozen=True, slots=True)
class Undeliverable:
    """Messages first..last to one member were given up: it may or may not have got them.

    `half_sent` counts the bytes of a large message that had not been sent at all.
    """

    to: Member
    epoch: int
    first: int
    last: int
    reason: str
    half_sent: int = 0


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

    `half_sent` counts the bytes of a large message of which only the beginning had been sent:
    nobody will deliver it. `unacked` are this member's own messages to the group, as (stream,
    first, last), that somebody may not have got.
    """

    reason: str
    half_sent: int = 0
    unacked: tuple[tuple[Stream, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Excluded:
    """The group went on without this member, which is on its way back as another incarnation.

    `half_sent` and `unacked` are as in Closed. What others sent while it was out, and what had
    arrived and was not taken, is not delivered here. Its next ViewInstalled says that it is back.
    """

    reason: str
    half_sent: int = 0
    unacked: tuple[tuple[Stream, int, int], ...] = ()


Event: TypeAlias = (
    Delivered | FragmentsTaken | ViewInstalled | Writable | Undeliverable | GapSkipped | Closed
)
