"""Metrics: a member's figures for Prometheus, at an address of their own.

The least of HTTP/1.1 that a scraper needs: `GET /metrics` on a connection that ends with the
answer. Whoever asks is a stranger: the request is bounded, and so are the time that it may take and
the number of those who ask at once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress

from ringcast.errors import UsageError
from ringcast.model import Address

REQUEST_BYTES_MAX = 8192
CLIENTS_MAX = 16

PATIENCE_S = 5.0
"""From a client's coming to its having the answer."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OK = "200 OK"


class Metrics:
    """Listens for one member. `tell` makes the text."""

    def __init__(self, tell: Callable[[], str], *, patience_s: float = PATIENCE_S) -> None:
        self.answered = 0
        self.refused = 0
        """Requests for something else, or that were none."""
        self.dropped = 0
        """Clients that were too slow, gone, or too many."""
        self._tell = tell
        self._patience_s = patience_s
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    async def start(self, address: Address) -> None:
        """UsageError: the address cannot be had."""
        try:
            self._server = await asyncio.start_server(
                self._on_client, *address, limit=REQUEST_BYTES_MAX
            )
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)
            raise UsageError(f"cannot tell metrics on {address}: {why}") from error

    @property
    def address(self) -> Address | None:
        """None: it does not listen."""
        if self._server is None or not self._server.sockets:
            return None
        return Address(*self._server.sockets[0].getsockname()[:2])

    def stats(self) -> dict[str, object]:
        return {
            "address": str(self.address),
            "clients": len(self._clients),
            "answered": self.answered,
            "refused": self.refused,
            "dropped": self.dropped,
        }

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for client in self._clients:
            client.cancel()

    def _on_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._clients) >= CLIENTS_MAX:
            self.dropped += 1
            writer.transport.abort()
            return
        client = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._clients.add(client)
        client.add_done_callback(self._clients.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self._patience_s):
                writer.write(self._reply(await _head(reader)))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, asyncio.IncompleteReadError):  # and what takes too long is an OSError
            self.dropped += 1
        finally:
            writer.transport.abort()  # which changes nothing where all is said

    def _reply(self, head: bytes | None) -> bytes:
        status, text = self._answer(head)
        if status == OK:
            self.answered += 1
        else:
            self.refused += 1
        body = text.encode()
        more = "Allow: GET, HEAD\r\n" if status.startswith("405") else ""
        lines = (
            f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\n"
            f"Content-Length: {len(body)}\r\n{more}Connection: close\r\n\r\n"
        )
        is_head = head is not None and head.startswith(b"HEAD ")
        return lines.encode() + (b"" if is_head else body)

    def _answer(self, head: bytes | None) -> tuple[str, str]:
        """Status, and what to say."""
        if head is None:
            return "431 Request Header Fields Too Large", "a request is shorter\n"
        match head.partition(b"\r\n")[0].split(b" "):
            case [b"GET" | b"HEAD", target, b"HTTP/1.1" | b"HTTP/1.0"]:
                if target.partition(b"?")[0] != b"/metrics":
                    return "404 Not Found", "the figures are at /metrics\n"
                return OK, self._tell()
            case [_, _, b"HTTP/1.1" | b"HTTP/1.0"]:
                return "405 Method Not Allowed", "the figures can only be read\n"
        return "400 Bad Request", "this is no HTTP/1.1 request\n"


async def _head(reader: asyncio.StreamReader) -> bytes | None:
    """A request up to its empty line; None: it is too long."""
    with suppress(asyncio.LimitOverrunError):
        return await reader.readuntil(b"\r\n\r\n")
    return None
