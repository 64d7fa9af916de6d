"""Operations, results and states as bytes. Nothing here can run what it reads.

A payload of a space begins with its channel: the length of a structure's name in two bytes, and the
name. The empty name is the application's own message. What follows for a structure is an operation:
the space that it comes from, its number there, the lowest number that is not answered there,
whether it was sent before, and its body. Bodies and records of a state are fields, each behind its
length.
"""

from __future__ import annotations

import json
from collections.abc import Callable  # noqa: TC003 (get_type_hints reads it)
from struct import Struct, error
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from ringcast.errors import UsageError
from ringcast.model import Address, Member

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.model import ViewId


_SHORT = Struct(">H")
_LENGTH = Struct(">I")
_NUMBER = Struct(">Q")
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


def _dumps(value: Any) -> bytes:
    return _compact(value).encode()


_compact: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
).encode

JSON = Codec(_dumps, json.loads)
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


def frame(channel: str, payload: bytes) -> bytes:
    name = channel.encode()
    return _SHORT.pack(len(name)) + name + payload


def unframe(data: bytes) -> tuple[str, bytes]:
    """ValueError: no space has sent this."""
    try:
        end = 2 + _SHORT.unpack_from(data)[0]
    except error:
        raise ValueError("no channel") from None
    if end > len(data):
        raise ValueError("no channel")
    return data[2:end].decode(), data[end:]


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


def encode_op(op: Op) -> bytes:
    return _HEADER.pack(*op[:4]) + pack(*op.body)


def decode_op(data: bytes) -> Op:
    """ValueError: this is no operation."""
    if len(data) < _HEADER.size:
        raise ValueError("no operation")
    client, number, low, is_again = _HEADER.unpack_from(data)
    return Op(client, number, low, is_again, unpack(data, _HEADER.size))


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


def encode_number(number: int) -> bytes:
    return _NUMBER.pack(number)


def decode_number(data: bytes) -> int:
    """ValueError: this is no number."""
    if len(data) != _NUMBER.size:
        raise ValueError("no number")
    return int.from_bytes(data)


def encode_token(token: Token) -> tuple[bytes, bytes]:
    """UsageError: nobody was granted that."""
    if not isinstance(token, Token):
        raise UsageError(f"a token is what a lock grants or a leader has, not {token!r:.100}")
    return token.name.encode(), bytes(token)


def decode_token(name: bytes, data: bytes) -> Token:
    """ValueError: this is no token."""
    if len(data) != _TOKEN.size:
        raise ValueError("no token")
    return Token(name.decode(), *_TOKEN.unpack(data))


def encode_json(value: Any) -> bytes:
    """Members become lists, and so do results; `member_of` and `result_of` are the way back."""
    return _dumps(value)


def member_of(fields: Any) -> Member:
    (host, port), incarnation, name = fields
    return Member(Address(host, port), incarnation, name)


def result_of(value: Any) -> Result:
    if isinstance(value, list):
        kind, text = value
        return Failure(kind, text)
    assert value is None or isinstance(value, int)
    return value
