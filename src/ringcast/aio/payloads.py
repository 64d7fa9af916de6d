"""Payloads: what an application may hand over as messages, and the bytes that are sent of it.

A message is any object with the buffer protocol: it is copied when it is handed over: what
the application changes later changes nothing that was sent. With headers it is sent behind their
block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringcast.errors import UsageError
from ringcast.model import Headed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ringcast.wire.codec import Buffer


def as_bytes(payload: Buffer) -> bytes:
    """One message."""
    if type(payload) is bytes or type(payload) is Headed:
        return payload
    try:
        return memoryview(payload).tobytes()
    except TypeError:
        hint = ": encode it first, as text.encode()" if isinstance(payload, str) else ""
        kind = type(payload).__name__
        raise UsageError(f"messages are bytes or other buffers, not {kind}{hint}") from None


def as_messages(payloads: Iterable[Buffer]) -> Sequence[bytes]:
    """Several. One alone in place of several is a mistake."""
    if isinstance(payloads, (str, bytes, bytearray, memoryview)):
        kind = type(payloads).__name__
        raise UsageError(f"send_many takes messages, not {kind}: write send(payload) for one")
    try:
        each = iter(payloads)
    except TypeError:
        kind = type(payloads).__name__
        hint = ": write [payload async for payload in …]" if hasattr(payloads, "__aiter__") else ""
        raise UsageError(f"send_many takes an iterable of messages, not {kind}{hint}") from None
    found: Any = payloads if isinstance(payloads, (list, tuple)) else list(each)
    is_bytes = set(map(type, found)) <= {bytes}
    return found if is_bytes else list(map(as_bytes, found))


def with_block(payload: Buffer, block: bytes) -> Buffer:
    """The same behind the block of its headers, if it has any."""
    return Headed(block + as_bytes(payload)) if block else payload
