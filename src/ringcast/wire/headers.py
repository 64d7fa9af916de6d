"""Headers: what a sender says of a message besides its payload, and their bytes.

A run of messages with headers bears a flag. Each of its payloads begins with a block: its length,
then for each header its name and its value, each behind its own length. Lengths are varints; text
is UTF-8. So windows, fragments and repair treat a block as part of its message, and whoever reads
the message cuts it off. `channel`, `sent_at` and `published` are the system's own
names.

A peer's block may be anything: where it cannot be read, its message is delivered as it came.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from ringcast.errors import UsageError
from ringcast.model import NO_HEADERS, Headers

HEADERS_BYTES_MAX: Final = 1024
"""Of a block, behind its length."""

CHANNEL: Final = "channel"
SENT_AT: Final = "sent_at"
PUBLISHED: Final = "published"
"""What stands in these is given and read in another way."""

_OWN: Final = {
    CHANNEL: "send with channel=",
    SENT_AT: "join with send_time=True",
    PUBLISHED: "ringcast publish says it",
}

_TIME_DIGITS_MAX: Final = 20

_BLOCKS_MAX: Final = 256
"""Blocks kept, of those sent and of those read: many messages have the same."""


def encode_headers(
    headers: Mapping[str, str] | None,
    channel: str = "",
    sent_ns: int | None = None,
    published: str = "",
) -> bytes:
    """The block; UsageError if these cannot be headers. Empty: there are none."""
    try:
        given = () if headers is None else tuple(headers.items())
        body = _encode(given, channel)
    except (AttributeError, TypeError):  # what cannot be hashed is no text
        raise UsageError(f"headers are a dict of texts by name, not {headers!r:.100}") from None
    if sent_ns is not None:
        body += _encode_item(SENT_AT, str(sent_ns))
    if published:
        body += _encode_item(PUBLISHED, published)
    if len(body) > HEADERS_BYTES_MAX:
        raise UsageError(
            f"headers of {len(body)} bytes: {HEADERS_BYTES_MAX} at most; "
            "put the rest into the payload"
        )
    return _varint(len(body)) + body if body else b""


@lru_cache(_BLOCKS_MAX)
def _encode(given: tuple[tuple[str, str], ...], channel: str) -> bytes:
    items = [_encode_item(*item) for item in given]
    for name, _ in given:
        if name in _OWN:
            raise UsageError(f"the header {name!r} is the system's own: {_OWN[name]}")
    if not isinstance(channel, str):
        raise UsageError(f"channel is a text, not {channel!r:.100}")
    return b"".join(items) + (_encode_item(CHANNEL, channel) if channel else b"")


def _encode_item(name: str, value: str) -> bytes:
    if not isinstance(name, str) or not isinstance(value, str):
        raise UsageError(
            f"names and values of headers are texts, not {name!r:.100}: {value!r:.100}"
        )
    try:
        texts = name.encode(), value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"the header {name!r}: {value!r} is not Unicode text") from None
    if not name:
        raise UsageError(f"a header has a name; that of {value!r:.100} is empty")
    return b"".join(_varint(len(text)) + text for text in texts)


def split_headers(message: bytes) -> tuple[Mapping[str, str], bytes]:
    """All headers of a message, the system's own among them, and its payload; ValueError: it does
    not begin with a block."""
    block, payload = _cut(message)
    return _decode(block)[0], payload


def read_headers(messages: Iterable[bytes]) -> tuple[list[Headers], list[bytes], int]:
    """Headers and payloads of messages that have some. Of a peer's message whose block cannot be
    read all is payload; how many of these there were."""
    found, payloads, unread = [], [], 0
    for message in messages:
        try:
            block, payload = _cut(message)
            headers = _decode(block)[1]
        except ValueError:
            headers, payload = NO_HEADERS, bytes(message)
            unread += 1
        found.append(headers)
        payloads.append(payload)
    return found, payloads, unread


def _cut(message: bytes) -> tuple[bytes, bytes]:
    """The block behind its length, and what follows it."""
    size, start = _cut_varint(message, 0)
    stop = start + size
    if size > HEADERS_BYTES_MAX or stop > len(message):
        raise ValueError("no block of this length")
    return message[start:stop], message[stop:]


@lru_cache(_BLOCKS_MAX)
def _decode(block: bytes) -> tuple[Mapping[str, str], Headers]:
    """All headers; and as a reader is told."""
    texts = []
    at = 0
    while at < len(block):
        size, start = _cut_varint(block, at)
        at = start + size
        if at > len(block):
            raise ValueError("a text without an end")
        texts.append(block[start:at].decode())
    names = texts[::2]
    named = dict(zip(names, texts[1::2], strict=True))
    if "" in named or len(named) < len(names):
        raise ValueError("a name is missing, or stands there twice")
    given = {name: value for name, value in named.items() if name not in _OWN}
    sent_at = None
    if SENT_AT in named:
        if len(named[SENT_AT]) > _TIME_DIGITS_MAX:
            raise ValueError("no time")
        sent_at = int(named[SENT_AT]) / 1e9
    return MappingProxyType(named), Headers(given, named.get(CHANNEL, ""), sent_at)


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; all bytes but the last have the eighth."""
    low, high = number & 127, number >> 7
    return bytes([low | 128, high]) if high else bytes([low])


def _cut_varint(block: bytes, at: int) -> tuple[int, int]:
    """The number, and where what follows it begins. Two bytes hold any length here, and the second
    is there only if it says something."""
    low, *more = block[at : at + 2] or [128]
    if low < 128:
        return low, at + 1
    if not more or not 0 < more[0] < 128:
        raise ValueError("no length")
    return low & 127 | more[0] << 7, at + 2
