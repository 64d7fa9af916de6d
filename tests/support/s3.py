"""An object store on loopback, as far as reading takes one: S3's listings and ranges of objects,
out of a directory. It may fail every so many-th request, as busy ones do."""

from __future__ import annotations

import itertools
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STAMP = "2026-11-19T12:00:00.000Z"


class Store(ThreadingHTTPServer):
    """Its buckets are the directories in `root`."""

    daemon_threads = True

    def __init__(self, root: Path, every: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.root = root
        self.lists = 0
        self.sent_bytes = 0
        self.failed = 0
        self.every = every
        self.numbers = itertools.count(1)

    def uri(self, path: str) -> str:
        """How pyarrow gets there."""
        host = f"127.0.0.1:{self.server_port}"
        return f"s3://key:word@{path}?endpoint_override={host}&scheme=http&region=us-east-1"


@contextmanager
def store(root: Path, every: int = 0) -> Iterator[Store]:
    with Store(root, every) as server:
        worker = threading.Thread(target=server.serve_forever)
        worker.start()
        try:
            yield server
        finally:
            server.shutdown()
            worker.join()


class _Request(BaseHTTPRequestHandler):
    server: Store
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        bucket, _, key = unquote(url.path).lstrip("/").partition("/")
        if self.server.every and next(self.server.numbers) % self.server.every == 0:
            self.server.failed += 1
            self._answer(500, b"<Error><Code>InternalError</Code></Error>")
        elif not key and self.command == "GET":
            self._list(bucket, {name: some[0] for name, some in parse_qs(url.query).items()})
        elif not key or (self.server.root / bucket / key).is_file():
            self._send(self.server.root / bucket / key)
        else:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

    def _send(self, path: Path) -> None:
        data = path.read_bytes() if path.is_file() else b""
        span = self.headers.get("Range")
        if span is None:
            self._answer(200, data)
            return
        first, _, last = span.removeprefix("bytes=").partition("-")
        part = data[int(first) : int(last) + 1]
        self._answer(206, part, f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}")

    def _list(self, bucket: str, asked: dict[str, str]) -> None:
        self.server.lists += 1
        root, prefix = self.server.root / bucket, asked.get("prefix", "")
        keys = sorted(
            path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()
        )
        found = [key for key in keys if key.startswith(prefix)][: int(asked.get("max-keys", 1000))]
        objects = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{STAMP}</LastModified>"
            f"<Size>{(root / key).stat().st_size}</Size></Contents>"
            for key in found
        )
        about = f"<Name>{bucket}</Name><KeyCount>{len(found)}</KeyCount>"
        listing = f"<ListBucketResult>{about}<IsTruncated>false</IsTruncated>{objects}"
        self._answer(200, f"{listing}</ListBucketResult>".encode())

    def _answer(self, status: int, body: bytes, span: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Thu, 19 Nov 2026 12:00:00 GMT")
        self.send_header("Content-Type", "application/xml" if status != 206 else "binary/octet")
        if span:
            self.send_header("Content-Range", span)
        self.end_headers()
        if self.command == "GET":
            self.server.sent_bytes += len(body)
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""
