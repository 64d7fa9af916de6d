"""What comes out of a Node for its application, in one order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from ringcast.model import Member, Run, Stream, View, ViewId


@dataclass(slots=True)
class Delivered:
    """Messages of one sender, in order. Taking this event is delivery: it may now be acked.

    A message that travelled in fragments bears the seqno of its last one.
    """

    sender: Member
    run: Run
    view_id: ViewId


@dataclass(slots=True)
class FragmentsTaken:
    """Fragments first..last of a large message have left the window; the message is not whole."""

    sender: Member
    stream: Stream
    first: int
    last: int
    view_id: ViewId


@dataclass(frozen=True, slots=True)
class ViewInstalled:
    """The group changed. From here on nothing plain comes from members that are not in it."""

    view: View


@dataclass(frozen=True, slots=True)
class Writable:
    """A send that was cut short may be tried again: there is room."""


@dataclass(frozen=True, slots=True)
class Closed:
    """This member is out of the group. `reason` is a sentence for people.

    `half_sent` counts the bytes of a large message of which only the beginning had been sent:
    nobody will deliver it.
    """

    reason: str
    half_sent: int = 0


Event: TypeAlias = Delivered | FragmentsTaken | ViewInstalled | Writable | Closed
