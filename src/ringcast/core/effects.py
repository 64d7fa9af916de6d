"""What every protocol speaks: it takes inputs and appends its wishes to `Effects`.

A protocol is a value with methods. Bytes, time and randomness come in as arguments; what it wants
done comes out as data. It never calls another protocol and holds no reference to one: `Stack`
routes frames by their class and drains effects as a worklist, so nothing is ever re-entered and
a trace has one order. Time is `now`: whole nanoseconds of a clock that never goes back.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from ringcast.core.view_change import (
    Begin,
    CutReached,
    Flush,
    Freeze,
    Frozen,
    SawView,
    StateChanged,
)
from ringcast.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.core.shared import Deadlines, GroupState
    from ringcast.events import Event
    from ringcast.model import Address, Conn, Member, View
    from ringcast.wire.frames import Frame, SystemMessage


@dataclass(frozen=True, slots=True)
class Suspected:
    """A member of the view answers nothing, not even when asked directly."""

    member: Member
    reason: str


@dataclass(frozen=True, slots=True)
class TooSlow:
    """A member lives, but its application has held a sender up for longer than is borne."""

    member: Member


@dataclass(frozen=True, slots=True)
class StartsOver:
    """A large message of this member starts over again and again, because members come in; or the
    whole of it is on its way at last."""

    is_through: bool = False


@dataclass(frozen=True, slots=True)
class Unreachable:
    """A member of the view acknowledges nothing, not even when asked, for so long (ns)."""

    member: Member
    silence: int


@dataclass(frozen=True, slots=True)
class NonMember:
    """A member that is not in the view, or is in an older one, sends signs of life: it does not
    know yet."""

    member: Member


@dataclass(frozen=True, slots=True)
class MemberAhead:
    """A member of the view is in a later one by now, with this counter."""

    member: Member
    counter: int


@dataclass(frozen=True, slots=True)
class Left:
    """This member is out of its group, for this reason: every layer closes."""

    reason: str
    is_flushed: bool = False
    """Everybody who goes on has all that this member has sent."""


@dataclass(frozen=True, slots=True)
class Trusted:
    """A member that was suspected has been heard again."""

    member: Member


@dataclass(frozen=True, slots=True)
class VerifyWanted:
    """Somebody else suspects this member: is it there?"""

    member: Member


@dataclass(frozen=True, slots=True)
class Flushed:
    """The others have received what this leaver sent to all, and delivered what it sent to one."""


Signal: TypeAlias = (
    Suspected
    | TooSlow
    | StartsOver
    | Unreachable
    | NonMember
    | MemberAhead
    | Left
    | Trusted
    | VerifyWanted
    | Flushed
    | Freeze
    | Frozen
    | Flush
    | CutReached
    | Begin
    | SawView
    | StateChanged
)
"""What one protocol tells the rest of its node. A closed union."""


class Effects:
    """Wishes of protocols, in the order they were made. Appended by layers, drained by Stack."""

    __slots__ = ("events", "frames", "lone", "messages", "signals")

    def __init__(self) -> None:
        self.frames: list[tuple[Member | Address | None, Frame]] = []
        self.lone: tuple[Member, Conn, int, bytes] | None = None
        """One whole message on a connection, with its seqno, that goes before all frames: somebody
        waits for it, and to make a frame of it would take longer than to send it."""
        self.messages: list[tuple[Member, SystemMessage]] = []
        self.signals: deque[Signal] = deque()
        self.events: deque[Event] = deque()

    def datagram(self, dest: Member | Address | None, frame: Frame) -> None:
        """Send once, best effort: to a member, to whoever is at an address, or (None) to every
        other member of the view."""
        self.frames.append((dest, frame))

    def message(self, dest: Member, message: SystemMessage) -> None:
        """Send to a member of the view: it comes there once, after what was sent to it before. Who
        sends much waits for answers: what finds no room yet is kept here."""
        self.messages.append((dest, message))

    def signal(self, signal: Signal) -> None:
        """Tell the other layers of this node."""
        self.signals.append(signal)

    def event(self, event: Event) -> None:
        """Tell the application."""
        self.events.append(event)


class Layer:
    """One state machine of a node. What it does not say it does not do."""

    frames: ClassVar[tuple[type[Frame], ...]] = ()
    """The frame classes this layer owns; nobody else receives them."""

    def attach(self, group: GroupState, deadlines: Deadlines) -> None:
        """It is part of a node: it reads there which group this is, and arms its timers there.
        Comes before any other input; until then a layer has a group and a table of its own."""
        self.group = group
        self.deadlines = deadlines

    def start(self, now: int, out: Effects) -> None:
        """The node begins to run."""

    def receive(self, source: Member, frames: Sequence[Frame], now: int, out: Effects) -> None:
        """Frames of this layer from one datagram, in order."""

    def install_view(self, view: View, now: int, out: Effects) -> None:
        """The group is this now, as `group` says; or this member is not in it any more, and `group`
        still says what it was."""

    def handle_signal(self, signal: Signal, now: int, out: Effects) -> None:
        """What another layer of this node has found out; views come as above."""

    def take_ready(self, limit: int, now: int, out: Effects) -> list[Event]:
        """Up to `limit` messages for the application. Calling this is delivery."""
        return []

    def handle_timeout(self, now: int, out: Effects) -> None:
        """Timers may be due."""

    def close(self, reason: str, now: int, out: Effects) -> None:
        """The member is out of its group."""

    def stats(self) -> dict[str, object]:
        """Every table with its size and every counter, for people and machines to read."""
        return {}

    def explain(self, now: int) -> list[str]:
        """One sentence for each thing that waits: for whom, since when, until when."""
        return []

    def check_invariants(self) -> None:
        """Assert what must hold between two inputs. Costly: simulation and tests only."""


def owners_of(layers: Sequence[Layer]) -> dict[type[Frame], int]:
    """Which layer, by its place in the stack, receives which frame; no frame has two owners."""
    owners: dict[type[Frame], int] = {}
    for place, layer in enumerate(layers):
        for frame in layer.frames:
            if frame in owners:
                names = f"{type(layers[owners[frame]]).__name__} and {type(layer).__name__}"
                raise UsageError(f"{frame.__name__} frames have two owners: {names}")
            owners[frame] = place
    return owners
