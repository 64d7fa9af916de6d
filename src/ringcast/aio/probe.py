"""Probe: a member answers what the user who runs it asks, on a Unix socket.

The socket stands in the user's own runtime directory, one for each member, and belongs to nobody
else: the directory is private, and who asks must be the same user. A question is one line of JSON
and so is its answer; both are bounded, and so are the number of those who ask at once and the time
that each of them has. Nothing here waits: a client that is slow is dropped.

Sockets of processes that died refuse connections, and are removed by whoever looks next.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from ringcast.aio.sources import make_group_directory
from ringcast.errors import RingcastError, UsageError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ringcast.model import Member

SUFFIX = ".probe"
FILES_MAX = 4096
QUESTION_BYTES_MAX = 1024
ANSWER_BYTES_MAX = 1 << 20

CLIENTS_MAX = 16
"""Who comes while so many are being served is turned away."""

PATIENCE_S = 5.0
"""From a client's coming to its having read the answer."""

KEEP_S = 3600.0
"""Directories are swept of what nobody has touched for days: touch it so often."""

REST_S = 1.0
"""How long nobody is let in after the system had no descriptor left for it."""

_CREDENTIALS = struct.Struct("=iII")  # pid, uid, gid: Linux's struct ucred
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}

Question: TypeAlias = "dict[str, object]"


@dataclass(slots=True, eq=False)
class _Client:
    sock: socket.socket
    timer: asyncio.TimerHandle | None = None
    question: bytearray = field(default_factory=bytearray)
    answer: memoryview = field(default_factory=lambda: memoryview(b""))


class Probe:
    """Listens for one member. `answer` gets a question and returns what can stand in JSON; a
    RingcastError is told to who asked."""

    def __init__(
        self,
        directory: Path,
        name: str,
        loop: asyncio.AbstractEventLoop,
        answer: Callable[[Question], object],
        *,
        uid: int | None = None,
        patience_s: float = PATIENCE_S,
        keep_s: float = KEEP_S,
    ) -> None:
        """OSError, UsageError: there is no place for it. `uid`: who may ask, if not this user."""
        self.refused = 0
        """Clients of other users."""
        self.turned_away = 0
        """Clients that came while too many were there."""
        self.dropped = 0
        """Clients that were too slow, or had asked and were gone before they had their answer."""
        self._loop = loop
        self._answer = answer
        self._uid = os.getuid() if uid is None else uid
        self._patience_s = patience_s
        self._keep_s = keep_s
        self._clients: set[_Client] = set()
        self._rest: asyncio.TimerHandle | None = None
        make_group_directory(directory)
        sweep(directory)
        self._path = directory / (name + SUFFIX)
        self._listener = _listen(self._path)
        try:
            self._loop.add_reader(self._listener, self._on_clients)
        except BaseException:  # a loop that has no place for real sockets
            self._path.unlink()
            self._listener.close()
            raise
        self._keep_timer = loop.call_later(keep_s, self._keep)

    def stats(self) -> dict[str, object]:
        return {
            "clients": len(self._clients),
            "refused": self.refused,
            "turned_away": self.turned_away,
            "dropped": self.dropped,
        }

    def close(self) -> None:
        if self._listener.fileno() < 0:
            return
        with contextlib.suppress(OSError):
            self._path.unlink()
        self._stop_listening()
        self._keep_timer.cancel()
        for client in list(self._clients):
            self._part_with(client)

    def _keep(self) -> None:
        """If it was swept all the same, there is another."""
        self._keep_timer = self._loop.call_later(self._keep_s, self._keep)
        with contextlib.suppress(OSError, UsageError):
            try:
                os.utime(self._path)
            except FileNotFoundError:
                make_group_directory(self._path.parent)
                listener = _listen(self._path)
                self._stop_listening()
                self._listener = listener
                self._loop.add_reader(listener, self._on_clients)

    def _stop_listening(self) -> None:
        self._loop.remove_reader(self._listener)
        if self._rest is not None:
            self._rest.cancel()
        self._listener.close()

    def _on_clients(self) -> None:
        for _ in range(CLIENTS_MAX):
            try:
                sock, _address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._take_a_rest()
                return
            self._let_in(sock)

    def _let_in(self, sock: socket.socket) -> None:
        if not is_of_user(sock, self._uid):
            self.refused += 1
            sock.close()
        elif len(self._clients) >= CLIENTS_MAX:
            self.turned_away += 1
            sock.close()
        else:
            sock.setblocking(False)
            client = _Client(sock)
            client.timer = self._loop.call_later(self._patience_s, self._drop, client)
            self._clients.add(client)
            self._loop.add_reader(sock, self._on_question, client)

    def _take_a_rest(self) -> None:
        """Whoever waits keeps the listener readable: not to look is the only way not to spin."""
        self._loop.remove_reader(self._listener)
        self._rest = self._loop.call_later(
            REST_S, self._loop.add_reader, self._listener, self._on_clients
        )

    def _on_question(self, client: _Client) -> None:
        try:
            came = client.sock.recv(QUESTION_BYTES_MAX + 1 - len(client.question))
        except BlockingIOError:
            return
        except OSError:
            came = b""
        client.question += came
        if b"\n" in client.question or len(client.question) > QUESTION_BYTES_MAX:
            self._loop.remove_reader(client.sock)
            client.answer = memoryview(self._reply(bytes(client.question)))
            self._on_writable(client)
        elif not came and client.question:
            self._drop(client)
        elif not came:
            self._part_with(client)  # who only wanted to know whether anybody is here

    def _reply(self, line: bytes) -> bytes:
        try:
            answer = json.dumps({"answer": self._answer(_parse(line))}, default=str).encode()
            if len(answer) >= ANSWER_BYTES_MAX:
                raise UsageError(f"the answer has more than {ANSWER_BYTES_MAX} bytes")
        except RingcastError as error:
            answer = json.dumps({"error": str(error)}).encode()
        return answer + b"\n"

    def _on_writable(self, client: _Client) -> None:
        try:
            client.answer = client.answer[client.sock.send(client.answer) :]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(client)
            return
        if client.answer:
            self._loop.add_writer(client.sock, self._on_writable, client)
        else:
            self._part_with(client)

    def _drop(self, client: _Client) -> None:
        self.dropped += 1
        self._part_with(client)

    def _part_with(self, client: _Client) -> None:
        self._clients.discard(client)
        if client.timer is not None:
            client.timer.cancel()
        self._loop.remove_reader(client.sock)
        self._loop.remove_writer(client.sock)
        client.sock.close()


def probe_name(me: Member) -> str:
    """Whoever sees a view can tell whose probe it is, and in which process, though nobody answers
    there."""
    return f"{me.incarnation:016x}-{os.getpid()}"


def probes(directory: Path) -> list[str]:
    """The names of the members that have a socket here, alive or not."""
    try:
        with os.scandir(directory) as files:
            return sorted(
                file.name.removesuffix(SUFFIX)
                for file, _ in zip(files, range(FILES_MAX), strict=False)
                if file.name.endswith(SUFFIX)
            )
    except FileNotFoundError:
        return []


def connect(directory: Path, name: str) -> socket.socket | None:
    """A socket that does not block; None if nobody listens there any more, and then it is removed.
    BlockingIOError: somebody does, and lets nobody in."""
    sock = socket.socket(socket.AF_UNIX)
    sock.setblocking(False)
    try:
        with _short(directory / (name + SUFFIX)) as path:
            sock.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        sock.close()
        with contextlib.suppress(OSError):
            (directory / (name + SUFFIX)).unlink()
        return None
    except BaseException:
        sock.close()
        raise
    return sock


def sweep(directory: Path) -> None:
    """Remove what crashes have left behind."""
    for name in probes(directory):
        with contextlib.suppress(OSError):
            sock = connect(directory, name)
            if sock is not None:
                sock.close()


def credentials(sock: socket.socket) -> tuple[int, int]:
    """The process and the user at the other end, as the kernel knows them."""
    size = _CREDENTIALS.size
    pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return pid, uid


def is_of_user(sock: socket.socket, uid: int) -> bool:
    """Whether a process of this user is at the other end."""
    try:
        return credentials(sock)[1] == uid
    except OSError:
        return False


def _parse(line: bytes) -> Question:
    try:
        question = json.loads(line) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        question = None
    if not isinstance(question, dict):
        raise UsageError(
            f"a question is a JSON object in one line of at most {QUESTION_BYTES_MAX} bytes"
        )
    return question


def _listen(path: Path) -> socket.socket:
    """It listens before it bears its name: one that does not yet would be taken for a dead one."""
    listener = socket.socket(socket.AF_UNIX)
    draft = path.with_suffix(".draft")
    try:
        listener.setblocking(False)
        with _short(draft) as address:
            listener.bind(address)
        draft.chmod(0o600)
        listener.listen(CLIENTS_MAX)
        draft.replace(path)
    except BaseException:
        listener.close()
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    return listener


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """The same place by a short name: the address of a Unix socket holds 107 bytes."""
    fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield f"/proc/self/fd/{fd}/{path.name}"
    finally:
        os.close(fd)
