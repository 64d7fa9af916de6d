"""What the parts of an observer write to, and what a simulated run lends them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping

    from ringcast.events import Event
    from ringcast.model import Member, Origin
    from ringcast.rules.state import Content
    from ringcast.trace.rows import OriginKey


class Sink(Protocol):
    """Takes the rows of one member, in order."""

    def write(self, event: str, now: int, /, **columns: Any) -> None: ...


class Contents(Protocol):
    """What was really sent in a simulated run: all its members' observers share it."""

    sent: dict[Origin, dict[int, bytes]]
    """Whole messages by the seqno of their last fragment."""
    sent_to: dict[tuple[Member, Member, int], dict[int, bytes]]
    """The same for what one member sent to another: by sender, receiver and epoch."""
    pieces: dict[Origin, dict[int, tuple[bytes, bool]]]
    """Fragments as they left their sender for the first time, and whether more follow."""
    happenings: Counter[str]
    deliveries: int
    last_send: int

    @property
    def now(self) -> int: ...

    def find(self, rule: str, text: str) -> None:
        """An observer saw a violation that rows cannot tell."""
        ...


class Keeper(Protocol):
    """A simulated application that has a state."""

    @property
    def entries(self) -> Mapping[OriginKey, Content]:
        """What is in it."""
        ...

    def see(self, event: Event) -> None:
        """ValueError: a state came that is none."""
        ...
