"""Pieces: frames that fit no datagram, put together again.

Each piece says which frame it is of. Whoever asks for something repeats it whole, so what was lost
comes with the next copy. Few such frames are under way at a time; should somebody send too many,
the oldest are forgotten.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ringcast.errors import DecodeError
from ringcast.wire.change_codec import decode_pieces
from ringcast.wire.limits import CHANGE_BYTES_MAX, VIEW_MEMBERS_MAX

if TYPE_CHECKING:
    from ringcast.model import Member
    from ringcast.wire.changes import Piece
    from ringcast.wire.frames import Frame

FRAMES_MAX = VIEW_MEMBERS_MAX
BYTES_MAX = 16 * CHANGE_BYTES_MAX
"""Frames that are not whole yet, and what has come of all of them."""


class Pieces:
    """What has come to one member."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes that wait for the rest."""
        self._frames: dict[tuple[Member, Piece], dict[int, bytes]] = {}

    def __len__(self) -> int:
        return len(self._frames)

    def add(self, source: Member, piece: Piece) -> Frame | None:
        """The frame, if that was the last piece of it."""
        key = source, replace(piece, index=0, content=b"")
        found = self._frames.setdefault(key, {})
        if piece.index not in found:
            found[piece.index] = piece.content
            self.size += len(piece.content)
        if sum(map(len, found.values())) > CHANGE_BYTES_MAX:
            self._forget(key)
            return None
        if len(found) < piece.count:
            while len(self._frames) > FRAMES_MAX or self.size > BYTES_MAX:
                self._forget(next(iter(self._frames)))
            return None
        self._forget(key)
        try:
            return decode_pieces(piece.kind, b"".join(found[n] for n in range(piece.count)))
        except DecodeError:
            return None

    def _forget(self, key: tuple[Member, Piece]) -> None:
        self.size -= sum(map(len, self._frames.pop(key).values()))
