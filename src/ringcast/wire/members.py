"""Who and where on the wire: members, views and counters, as all frames and messages write them."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError
from typing import Final

from ringcast.checks import NAME_BYTES_MAX, check_name, check_whole
from ringcast.errors import ConfigError, DecodeError, Reject
from ringcast.model import INCARNATION_MAX, Address, Member, ViewId
from ringcast.wire.limits import COUNTER_MAX

COUNTER: Final = Struct("<Q")
_PORT_INCARNATION: Final = Struct("<HQ")
MEMBER_BYTES_MAX: Final = 2 * (1 + NAME_BYTES_MAX) + _PORT_INCARNATION.size
MEMBER_BYTES_MIN: Final = 1 + 1 + _PORT_INCARNATION.size + 1
MALFORMED: Final = (IndexError, StructError, UnicodeDecodeError, ConfigError)
"""What cutting texts and members out of a stranger's bytes may raise."""


def encode_view_id(view_id: ViewId) -> bytes:
    assert 1 <= view_id.counter <= COUNTER_MAX, view_id
    return COUNTER.pack(view_id.counter) + encode_member(view_id.creator)


def are_distinct(members: Sequence[Member]) -> bool:
    """Whether each is another process. A name is only a label and tells no two apart."""
    return len({member[:2] for member in members}) == len(members)


def encode_identity(group: str, me: Member) -> bytes:
    check_name("group", group)
    return encode_text(group) + encode_member(me)


def encode_member(member: Member) -> bytes:
    (host, port), incarnation, name = member
    check_member(member)
    check_whole("port", port, 0, 65535)
    return encode_text(host) + _PORT_INCARNATION.pack(port, incarnation) + encode_text(name)


def is_no_longer(me: Member, other: Member, spare: int = 0) -> bool:
    """Whether what I say is no longer than the same that the other one says, which has so many
    bytes to spare. Who is not known is told no more than it tells."""
    return len(encode_member(me)) <= len(encode_member(other)) + spare


def encode_text(text: str) -> bytes:
    encoded = text.encode()
    return bytes([len(encoded)]) + encoded


def decode_identity(identity: bytes) -> tuple[str, Member]:
    view = memoryview(identity)
    try:
        group, offset = cut_text(view, 0)
        check_name("group", group)
        member, offset = cut_member(view, offset)
    except MALFORMED:
        raise DecodeError(Reject.IDENTITY) from None
    if offset != len(identity):
        raise DecodeError(Reject.IDENTITY)
    return group, member


def cut_member(view: memoryview, offset: int) -> tuple[Member, int]:
    """The member at the offset, and where it ends."""
    host, offset = cut_text(view, offset)
    port, incarnation = _PORT_INCARNATION.unpack_from(view, offset)
    name, offset = cut_text(view, offset + _PORT_INCARNATION.size)
    member = Member(Address(host, port), incarnation, name)
    check_member(member)
    return member, offset


def cut_text(view: memoryview, offset: int) -> tuple[str, int]:
    """The text at the offset, and where it ends."""
    start = offset + 1
    stop = start + view[offset]
    if stop > len(view):
        raise IndexError
    return str(view[start:stop], "utf-8"), stop


def check_member(member: Member) -> None:
    check_name("host", member.address.host)
    check_whole("incarnation", member.incarnation, 1, INCARNATION_MAX)
    check_name("name", member.name, empty_allowed=True)
