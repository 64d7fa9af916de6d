"""Pieces: frames that fit no datagram, put together again.

Each piece says which frame it is of. Whoever asks for something repeats it whole, so what was lost
comes with the next copy. Few such frames are under way at a time; should somebody send too many,
the oldest are forgotten, those of strangers first.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from ringcast.errors import DecodeError
from ringcast.protocols.early import STRANGER_BYTES_MAX, STRANGER_NS, STRANGERS_MAX
from ringcast.window.assembler import PART_BYTES_MIN
from ringcast.wire.changes import Piece, decode_pieces
from ringcast.wire.limits import CHANGE_BYTES_MAX, VIEW_MEMBERS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringcast.model import Member
    from ringcast.wire.frames import Frame

FRAMES_MAX = VIEW_MEMBERS_MAX
BYTES_MAX = 16 * CHANGE_BYTES_MAX
"""Frames that are not whole yet, and what has come of all of them."""


class Pieces:
    """What has come to one member."""

    def __init__(self, is_known: Callable[[Member], bool] = lambda _: True) -> None:
        """`is_known`: it is no stranger."""
        self.size = 0
        """Bytes that wait for the rest, each piece charged PART_BYTES_MIN more than it has."""
        self.refused = 0  # of strangers
        self._is_known = is_known
        self._strangers: dict[Member, int] = {}  # since when pieces of each are kept
        self._frames: dict[tuple[Member, Piece], dict[int, bytes]] = {}
        self._sizes: Counter[tuple[Member, Piece]] = Counter()

    def __len__(self) -> int:
        return len(self._frames)

    def add(self, source: Member, piece: Piece, now: int = 0) -> Frame | None:
        """The frame, if that was the last piece of it. Of strangers little is kept."""
        size = len(piece.content) + PART_BYTES_MIN
        if not self._is_known(source) and not self._admit(source, size, now):
            return None
        key = source, replace(piece, index=0, content=b"")
        found = self._frames.setdefault(key, {})
        if piece.index not in found:
            found[piece.index] = piece.content
            self.size += size
            self._sizes[key] += size
        if self._sizes[key] > CHANGE_BYTES_MAX + piece.count * PART_BYTES_MIN:
            self._forget(key)
            return None
        if len(found) < piece.count:
            while len(self._frames) > FRAMES_MAX or self.size > BYTES_MAX:
                of_strangers = (key for key in self._frames if key[0] in self._strangers)
                self._forget(next(of_strangers, next(iter(self._frames))))
            return None
        self._forget(key)
        try:
            return decode_pieces(piece.kind, b"".join(found[n] for n in range(piece.count)))
        except DecodeError:
            return None

    def _admit(self, source: Member, size: int, now: int) -> bool:
        for who in [who for who, since in self._strangers.items() if now - since > STRANGER_NS]:
            del self._strangers[who]
            for key in [key for key in self._frames if key[0] == who]:
                self._forget(key)
        size += sum(kept for key, kept in self._sizes.items() if key[0] == source)
        is_few = source in self._strangers or len(self._strangers) < STRANGERS_MAX
        if not is_few or size > STRANGER_BYTES_MAX:
            self.refused += 1
            return False
        self._strangers.setdefault(source, now)
        return True

    def _forget(self, key: tuple[Member, Piece]) -> None:
        del self._frames[key]
        self.size -= self._sizes.pop(key)
