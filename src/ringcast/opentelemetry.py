"""Traces that go on where a message is read: their context travels in its headers.

    await group.send(b"...", headers=inject())

    async for message in group:
        with attached(message.headers):
            ...

Needs `pip install opentelemetry-api`. Its propagators say which headers there are: `traceparent`
and others. They count as any: 1 KiB at most.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from opentelemetry import context, propagate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opentelemetry.context import Context

__all__ = ["attached", "extract", "inject"]


def inject(headers: Mapping[str, str] | None = None) -> dict[str, str]:
    """These headers and the current context, to be sent with a message."""
    carrier = dict(headers or {})
    propagate.inject(carrier)
    return carrier


def extract(headers: Mapping[str, str]) -> Context:
    """The context in the headers of a message: to start a span in, or to link to."""
    return propagate.extract(headers)


@contextmanager
def attached(headers: Mapping[str, str]) -> Iterator[Context]:
    """In this block the context in the headers of a message is the current one."""
    found = extract(headers)
    token = context.attach(found)
    try:
        yield found
    finally:
        context.detach(token)
