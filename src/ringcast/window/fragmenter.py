"""Fragmenter: whole messages in, numbered fragments out. The counterpart of the Assembler.

A message that fits a datagram is one payload with one seqno. A larger one is cut; each fragment
has its own seqno and is admitted as the send window has room, so a message may be larger than the
window. It counts as accepted once its beginning is; until its last fragment has a seqno nothing
else is admitted, or order would be lost.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from ringcast.errors import UsageError
from ringcast.model import Headed, alike

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.window.send import SendWindow


def check_payloads(payloads: Sequence[bytes], max_bytes: int) -> None:
    """Raise UsageError unless these can be sent. All have headers, or none has."""
    kinds = set(map(type, payloads))
    if not (kinds <= {bytes} or kinds == {Headed}):
        names = sorted({kind.__name__ for kind in kinds} - {"bytes"})
        raise UsageError(f"messages are bytes, not {', '.join(names)}")
    largest = max(map(len, payloads), default=0)
    if largest > max_bytes:
        raise UsageError(f"a message of {largest} bytes: max_message_bytes is {max_bytes}")


STARTS_MAX = 3


class Piece(NamedTuple):
    """Payloads that have seqnos from `first` on, headed throughout or not at all. `more`: each is
    continued by the next seqno."""

    first: int
    payloads: list[bytes]
    more: bool


class Fragmenter:
    """Fills one send window, and knows which of its seqnos are continued by the next."""

    __slots__ = ("_continued", "_whole", "is_middle", "largest", "rest", "starts", "window")

    def __init__(self, window: SendWindow, fragment_bytes: int) -> None:
        self.window = window
        self.rest: deque[bytes] = deque()
        """Fragments of the one large message that has begun and found no more room yet."""
        self.is_middle = False
        """The last message that left the window was a fragment, and the next continues it."""
        self.largest = fragment_bytes
        """Bytes of a message that is not cut."""
        self.starts = 0
        """How often it has started over."""
        self._continued: set[int] = set()  # seqnos in the window whose message goes on
        self._whole = b""  # the message that `rest` is the rest of

    @property
    def starts_often(self) -> bool:
        """It needs a time in which nobody comes in."""
        return self.starts >= STARTS_MAX

    @property
    def rest_bytes(self) -> int:
        return sum(map(len, self.rest))

    def resize(self, fragment_bytes: int, datagram_bytes: int) -> None:
        """Datagrams hold more or less from now on. What has a seqno stays as it was cut."""
        self.window.datagram_bytes = datagram_bytes
        self.largest = fragment_bytes
        self.rest = deque(part for piece in self.rest for part in _cut(piece, fragment_bytes))

    def admit(self, payloads: Sequence[bytes]) -> tuple[int, list[Piece]]:
        """How many messages were accepted, from the first on, and what got seqnos for them."""
        if self.rest:
            return 0, []
        if max(map(len, payloads)) > self.largest:
            return self._admit_each(payloads)
        first = self.window.high + 1
        accepted = self.window.append_run(payloads)
        return accepted, [Piece(first, list(payloads[:accepted]), False)] if accepted else []

    def start_over(self) -> None:
        """Send the message that has begun from its beginning: somebody new is to get it, too."""
        if self.rest:
            self.rest = deque(_cut(self._whole, self.largest))
            self.starts += 1

    def abandon(self) -> None:
        """The rest of the message that has begun is not sent."""
        self.rest.clear()
        self._whole, self.starts = b"", 0

    def admit_rest(self) -> list[Piece]:
        """Fragments for which there is room now."""
        first, parts = self.window.high + 1, list(self.rest)
        accepted = self.window.append_run(parts) if parts else 0
        is_all = accepted == len(parts)
        go_on = parts[: accepted - is_all]
        self.rest = deque(parts[accepted:])
        pieces = [Piece(first, go_on, True)] if go_on else []
        self._continued.update(range(first, first + len(go_on)))
        if is_all and parts:
            pieces.append(Piece(first + len(go_on), parts[-1:], False))
        if is_all:
            self._whole, self.starts = b"", 0
        return pieces

    def pieces(self, seqnos: range) -> list[Piece]:
        """Those of `seqnos` that are still in the window, to be retransmitted."""
        first = max(seqnos.start, self.window.low + 1)
        payloads = self.window.read_run(seqnos)
        if not self._continued:
            return [Piece(at, run, False) for at, run in alike(first, payloads)]
        flags = [seqno in self._continued for seqno in range(first, first + len(payloads))]
        pieces: list[Piece] = []
        start = 0
        for stop in range(1, len(flags) + 1):
            if stop == len(flags) or flags[stop] != flags[start]:
                runs = alike(first + start, payloads[start:stop])
                pieces += [Piece(at, run, flags[start]) for at, run in runs]
                start = stop
        return pieces

    def purged(self, low: int) -> None:
        """Everything after `low` that is no longer in the window has been purged."""
        if self.window.low > low:
            self.is_middle = self.window.low in self._continued
            if self._continued:
                self._continued.difference_update(range(low + 1, self.window.low + 1))

    def explain(self) -> str:
        times = f"{self.starts} time{'s' * (self.starts > 1)}"
        return f" (a large one has started over {times}, for new members)" * bool(self.starts)

    def check_invariants(self) -> None:
        assert all(self.window.low < seqno <= self.window.high for seqno in self._continued)
        assert not self.rest or self.window.high > self.window.low or not self.window.room

    def _admit_each(self, payloads: Sequence[bytes]) -> tuple[int, list[Piece]]:
        """One message at a time; a large one is accepted as soon as its beginning is."""
        pieces: list[Piece] = []
        for accepted, payload in enumerate(payloads):
            self.rest.extend(_cut(payload, self.largest))
            admitted = self.admit_rest()
            pieces += admitted
            if not admitted:
                self.rest.clear()
                return accepted, pieces
            if self.rest:
                self._whole = payload
                return accepted + 1, pieces
        return len(payloads), pieces


def _cut(payload: bytes, size: int) -> list[bytes]:
    """At least one part, though it may be empty. Those of a message with headers are headed."""
    kind = type(payload)
    return [kind(payload[at : at + size]) for at in range(0, len(payload) or 1, size)]
