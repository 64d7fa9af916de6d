"""Batches: what a member submits to the sequencer, which relays it to the group as it is.

    flags   1 byte    CARRIED, PART, MORE, HEADED; other bits are 0
    place   2 bytes   of the origin among the members of the view
    first   8 bytes   the number of the first message, which the origin has given
    extent  4 bytes   how many messages; of a PART, at which byte of its message it begins
    sizes   2 bytes   of each message but the last; a PART has none
    content           the messages, one behind the other

A batch fits a datagram. A message that does not is cut into parts: MORE says that another follows.
HEADED: the messages, all of them, begin with their headers.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from struct import Struct
from struct import pack as struct_pack
from typing import Final, NamedTuple

from ringcast.model import SEQNO_MAX, Headed
from ringcast.wire.limits import MESSAGES_MAX
from ringcast.wire.runs import decode_lengths

_HEAD: Final = Struct("<BHQI")
HEAD_BYTES: Final = _HEAD.size
SIZE_BYTES: Final = 2
CARRIED, PART, MORE, HEADED = 1, 2, 4, 8
_KNOWN: Final = CARRIED | PART | MORE | HEADED


class Head(NamedTuple):
    flags: int
    place: int
    first: int
    extent: int
    """How many messages; of a part, at which byte of its message it begins."""

    @property
    def is_part(self) -> bool:
        return bool(self.flags & PART)

    @property
    def last(self) -> int:
        """The number of its last message."""
        return self.first if self.flags & PART else self.first + self.extent - 1

    @property
    def ends(self) -> int:
        """How many messages end in it."""
        return 1 - bool(self.flags & MORE) if self.flags & PART else self.extent


def encode_batch(flags: int, place: int, first: int, payloads: Sequence[bytes]) -> bytes:
    """Whole messages."""
    sizes = map(len, payloads[:-1])
    head = _HEAD.pack(flags, place, first, len(payloads))
    return b"".join((head, struct_pack(f"<{len(payloads) - 1}H", *sizes), *payloads))


def encode_part(flags: int, place: int, number: int, offset: int, content: bytes) -> bytes:
    """A part of one large message."""
    return _HEAD.pack(flags | PART, place, number, offset) + content


def read_head(batch: bytes) -> Head | None:
    """None: these bytes are no batch."""
    if len(batch) < HEAD_BYTES:
        return None
    head = Head._make(_HEAD.unpack_from(batch))
    flags, _, first, extent = head
    if flags & ~_KNOWN or not 1 <= first <= SEQNO_MAX - MESSAGES_MAX:
        return None
    if flags & PART:
        return head
    if flags & MORE or not 1 <= extent <= MESSAGES_MAX:
        return None
    start = content_at(head)
    if start > len(batch) or start + sum(decode_lengths(batch[HEAD_BYTES:start])) > len(batch):
        return None
    return head


def content_at(head: Head) -> int:
    """Where its content begins."""
    return HEAD_BYTES if head.flags & PART else HEAD_BYTES + SIZE_BYTES * (head.extent - 1)


def count_in(batch: bytes) -> int:
    """How many messages it says it has; 1 of a part, and of bytes that are no batch."""
    if len(batch) < HEAD_BYTES:
        return 1
    flags, _, _, extent = _HEAD.unpack_from(batch)
    return 1 if flags & PART else max(1, extent)


def size_of(batch: bytes, head: Head) -> int:
    """Bytes of its messages."""
    return len(batch) - content_at(head)


def payloads_of(batch: bytes, head: Head) -> list[bytes]:
    """The messages; of a part, its content."""
    start = content_at(head)
    content = BytesIO(batch)
    content.seek(start)
    return [*map(content.read, decode_lengths(batch[HEAD_BYTES:start])), content.read()]


def as_sent(messages: list[bytes], head: Head) -> list[bytes]:
    """Whole ones, by their class if they have headers."""
    return list(map(Headed, messages)) if head.flags & HEADED else messages
