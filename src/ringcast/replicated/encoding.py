"""Operations, tokens and fields as bytes. Nothing here can run what it reads.

A structure has a channel of its own among the total messages of its group, and each message in it
is an operation: the space that it comes from, its number there, the lowest number that is not
answered there, whether it was sent before, and its body. A body is fields, each behind its length.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from struct import Struct, error
from typing import Any, Final, NamedTuple, TypeAlias

from ringcast.model import Address, Member, ViewId

CHANNEL: Final = "replicated:"
"""Before a structure's name; other channels are the application's own."""

_LENGTH = Struct(">I")
_TOKEN = Struct(">QQQ")
_HEADER = Struct(">8sQQ?")


class Failure(NamedTuple):
    """The result of an operation that its structure refused: the same at every member."""

    kind: str
    text: str


Result: TypeAlias = bool | int | Failure | None


class Codec(NamedTuple):
    """How values become bytes and come back. Equal values have to become equal bytes."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


_compact: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
).encode

JSON = Codec(lambda value: _compact(value).encode(), json.loads)
BYTES = Codec(lambda value: bytes(memoryview(value)), bytes)


class Token(NamedTuple):
    """A place in the order as a number to compare: of two for one name the greater is the later.

    `bytes(token)` are 24 bytes that sort in the same way, for a store that is not in Python.
    """

    name: str
    counter: int
    proposer: int
    position: int

    @classmethod
    def at(cls, name: str, view: ViewId, position: int) -> Token:
        return cls(name, view.counter, view.creator.incarnation, position)

    @classmethod
    def of(cls, name: bytes, data: bytes) -> Token:
        """ValueError: this is no token."""
        if len(data) != _TOKEN.size:
            raise ValueError("no token")
        return cls(name.decode(), *_TOKEN.unpack(data))

    def __bytes__(self) -> bytes:
        return _TOKEN.pack(*self[1:])

    def __str__(self) -> str:
        return f"{self.counter}.{self.proposer:x}.{self.position}"


class Op(NamedTuple):
    """One operation, as it stands in the order."""

    client: bytes
    """Of the space that it comes from: eight bytes of its own."""
    number: int
    low: int
    """Below this number that space has an answer to all of its operations."""
    is_again: bool
    body: Sequence[bytes]

    def __bytes__(self) -> bytes:
        return _HEADER.pack(*self[:4]) + pack(*self.body)

    @classmethod
    def of(cls, data: bytes) -> Op:
        """ValueError: this is no operation."""
        if len(data) < _HEADER.size:
            raise ValueError("no operation")
        client, number, low, is_again = _HEADER.unpack_from(data)
        return cls(client, number, low, is_again, unpack(data, _HEADER.size))


def pack(*fields: bytes) -> bytes:
    return b"".join([part for field in fields for part in (_LENGTH.pack(len(field)), field)])


def unpack(data: bytes, at: int = 0) -> list[bytes]:
    """ValueError: these are no fields."""
    fields = []
    try:
        while at < len(data):
            (length,) = _LENGTH.unpack_from(data, at)
            at += 4 + length
            fields.append(data[at - length : at])
    except error:
        raise ValueError("fields that have no end") from None
    if at > len(data):
        raise ValueError("fields that have no end")
    return fields


def take_records(buffer: bytearray) -> list[list[bytes]]:
    """Those that are whole, off the front: each is fields, and a field itself."""
    records, at = [], 0
    while at + 4 <= len(buffer):
        end = at + 4 + _LENGTH.unpack_from(buffer, at)[0]
        if end > len(buffer):
            break
        records.append(unpack(bytes(buffer[at + 4 : end])))
        at = end
    del buffer[:at]
    return records


def member_of(fields: Any) -> Member:
    """As JSON has it."""
    address, incarnation, name = fields
    return Member(Address(*address), incarnation, name)
