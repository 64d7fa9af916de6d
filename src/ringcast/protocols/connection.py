"""The life of one side of a unicast connection: open, closing, gone.

There is no handshake to open or to end one. An entry that has been idle for `expiry` begins to
close; it then lingers for `close`, during which it serves as before and any use takes it up again.
Only after that is it removed, in the same step in which it becomes CLOSED: nobody ever meets a
CLOSED entry.
"""

from __future__ import annotations

from enum import auto

from ringcast.core.shared import Named


class State(Named):
    OPEN = auto()
    CLOSING = auto()
    CLOSED = auto()


class Input(Named):
    USED = auto()
    """The sender's application sends; new data reach the receiver."""
    ENDED = auto()
    """Idle for too long, asked to close, or the peer has left the view."""
    LINGERED = auto()
    """Nobody has used it while it was closing."""
    GONE = auto()
    """The other side has closed it, or will never answer."""


TRANSITIONS: dict[tuple[State, Input], State] = {
    (State.OPEN, Input.USED): State.OPEN,
    (State.OPEN, Input.ENDED): State.CLOSING,
    (State.OPEN, Input.GONE): State.CLOSED,
    (State.CLOSING, Input.USED): State.OPEN,
    (State.CLOSING, Input.ENDED): State.CLOSING,
    (State.CLOSING, Input.LINGERED): State.CLOSED,
    (State.CLOSING, Input.GONE): State.CLOSED,
}
"""What is not here cannot happen, and raises."""
