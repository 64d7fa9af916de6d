"""Who sees one Node from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.core.effects import Left
    from ringcast.core.view_change import Begin, Freeze
    from ringcast.events import Event
    from ringcast.model import Address, Member, Stream
    from ringcast.wire.codec import Buffer


class Observer(Protocol):
    """Sees one Node from outside, and changes nothing. Only the Node and its parts call it."""

    def received(self, datagram: Buffer, now: int) -> None:
        """A datagram arrived. Its bytes are not to be kept."""
        ...

    def transmitted(
        self, dest: Member | Address | None, datagrams: Sequence[bytes], now: int
    ) -> None:
        """Datagrams leave for one destination; None: every other member of the view."""
        ...

    def offered(
        self, to: Member | None, stream: Stream, payloads: Sequence[bytes], accepted: int, now: int
    ) -> None:
        """The application sent these, and the first `accepted` of them have their seqnos. What
        follows from that happens next, up to `after_input`."""
        ...

    def before_change(self, change: Freeze | Begin | Left, now: int) -> None:
        """Layers are about to freeze for a proposal, or to install a view, or the member is about
        to close its windows: in the middle of an input or of a take."""
        ...

    def before_take(self, now: int, *, buffered: bool) -> None:
        """The application is about to take events; or (`buffered`) messages are about to leave
        their windows while the application waits for its state."""
        ...

    def took(self, events: Sequence[Event], now: int, *, buffered: bool) -> None:
        """The application was handed these; or (`buffered`) they left their windows, and the
        application takes them after its state, or has them in it."""
        ...

    def after_input(self, now: int) -> None:
        """An input ran to completion: windows, connections and orphaned streams may differ."""
        ...
