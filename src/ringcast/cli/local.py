"""The members that run here, asked through their probes."""

from __future__ import annotations

import json
import os
import select
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringcast.aio.probe import ANSWER_BYTES_MAX, connect, credentials, probes
from ringcast.aio.sources import group_directory, runtime_directory
from ringcast.cli.words import safe
from ringcast.config import check_name
from ringcast.errors import UsageError

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

ANSWER_S = 1.0
"""A member that lives answers in milliseconds."""

LOOK_MS = 100
ASKED_MAX = 512
GROUPS_MAX = 1024


@dataclass(slots=True)
class Reply:
    """What came from one probe."""

    probe: str
    """Its name: incarnation and process."""
    pid: int = 0
    """Of the process that listens; 0: not known."""
    answer: dict[str, Any] | None = None
    """None: it did not answer, or said no."""
    error: str = ""
    """Why it said no."""
    name: str = ""
    """Of a member that does not answer: as others have it in their view."""

    @property
    def incarnation(self) -> str:
        return self.probe.partition("-")[0]

    @property
    def is_silent(self) -> bool:
        return self.answer is None and not self.error

    @property
    def who(self) -> str:
        if self.answer is not None:
            return safe(str(self.answer["member"]["name"]))
        return safe(self.name) or f"a member in process {self.pid}"

    @property
    def silence(self) -> str:
        """Why it may be that nothing comes."""
        if not self.pid:
            return "it lets nobody in"
        return f"process {self.pid} is {'stopped' if _is_stopped(self.pid) else 'busy'}"


def ask(directory: Path, question: dict[str, object], names: Sequence[str]) -> list[Reply]:
    """All at once, and those who live: the sockets of the dead are removed."""
    replies: list[Reply] = []
    asked: dict[int, tuple[socket.socket, Reply, bytearray]] = {}
    line = json.dumps(question).encode() + b"\n"
    deadline = time.monotonic() + ANSWER_S
    poll = select.poll()
    with ExitStack() as sockets:
        for name in names[:ASKED_MAX]:
            try:
                sock = connect(directory, name)
            except BlockingIOError:
                # So many have asked in vain that there is no room to wait in any more.
                pid = name.partition("-")[2]
                replies.append(Reply(name, int(pid) if pid.isdecimal() else 0))
                continue
            except OSError as error:
                raise UsageError(f"cannot ask at {directory}: {error.strerror}") from None
            if sock is not None:
                sockets.enter_context(sock)
                reply = Reply(name, credentials(sock)[0])
                replies.append(reply)
                asked[sock.fileno()] = sock, reply, bytearray()
                poll.register(sock, select.POLLIN)
                with suppress(OSError):  # then it is gone again: reading will tell
                    sock.send(line)
        while asked and time.monotonic() < deadline:
            ready = poll.poll(LOOK_MS)
            if not ready and all(_is_stopped(reply.pid) for _, reply, _ in asked.values()):
                break  # there is nothing to wait for
            for fd, _ in ready:
                if _hear(*asked[fd]):
                    poll.unregister(fd)
                    del asked[fd]
    _name_the_silent(replies)
    return sorted(replies, key=lambda reply: reply.who)


def ask_group(group: str, question: dict[str, object], member: str | None = None) -> list[Reply]:
    """Those of a group, or one of them; UsageError if there is none here, or none answers."""
    check_name("group", group)
    directory = group_directory(group)
    names = probes_in(directory)
    replies = ask(directory, {"ask": "view"} if member else question, names)
    if not replies:
        left = f" ({len(names)} left behind by crashes)" if names else ""
        others = ", ".join(repr(other) for other in groups_here() if other != group)
        hint = f"; groups here: {others}" if others else ""
        raise UsageError(f"no member of group {group!r} runs here{left}{hint}")
    if member is not None:
        found = [reply for reply in replies if _is_named(reply, member)]
        if len(found) != 1:
            names_here = ", ".join(reply.who for reply in replies)
            what = "no member" if not found else f"{len(found)} members"
            hint = "; give an address" if found else f"; here are {names_here}"
            raise UsageError(f"{what} {member!r} of group {group!r} here{hint}")
        if not found[0].is_silent:
            found = ask(directory, question, [found[0].probe])
        replies = found
    if all(reply.is_silent for reply in replies):
        silent = "; ".join(f"{reply.who} does not answer: {reply.silence}" for reply in replies)
        raise UsageError(silent or f"{member} of group {group!r} has just left")
    return replies


def groups_here() -> list[str]:
    """By asking who is there: directories do not bear the names of groups."""
    found = {
        str(reply.answer["group"])
        for directory in group_directories()
        for reply in ask(directory, {"ask": "view"}, probes_in(directory))
        if reply.answer is not None
    }
    return sorted(found)


def group_directories() -> list[Path]:
    top = runtime_directory()
    try:
        with os.scandir(top) as files:
            some = zip(files, range(GROUPS_MAX), strict=False)
            return sorted(Path(file.path) for file, _ in some if file.is_dir(follow_symlinks=False))
    except OSError as error:
        raise UsageError(f"cannot look into {top}: {error.strerror}") from None


def refusals(replies: Sequence[Reply]) -> None:
    """UsageError if all who answered said no."""
    if not any(reply.answer for reply in replies):
        raise UsageError("; ".join(f"{reply.who}: {reply.error}" for reply in replies))


def probes_in(directory: Path) -> list[str]:
    try:
        return probes(directory)
    except OSError as error:
        raise UsageError(f"cannot look into {directory}: {error.strerror}") from None


def _hear(sock: socket.socket, reply: Reply, came: bytearray) -> bool:
    """Whether there is nothing more to come."""
    try:
        chunk = sock.recv(1 << 16)
    except BlockingIOError:
        return False
    except OSError:
        chunk = b""
    came += chunk
    if chunk and not came.endswith(b"\n") and len(came) <= ANSWER_BYTES_MAX:
        return False
    try:
        content = json.loads(came)
    except (ValueError, RecursionError):
        content = None
    match content:
        case {"answer": {"member": {}} as answer}:
            reply.answer = answer
        case {"error": str(error)}:
            reply.error = safe(error)
        case _:
            reply.error = "what it answers makes no sense" if came else "it turned us away"
    return True


def _is_named(reply: Reply, name: str) -> bool:
    if reply.answer is None:
        return reply.name == name
    member = reply.answer["member"]
    return name in (member["name"], member["address"])


def _name_the_silent(replies: Sequence[Reply]) -> None:
    seen = {
        member["incarnation"]: member["name"]
        for reply in replies
        if reply.answer is not None
        for member in reply.answer.get("members", ())
    }
    for reply in replies:
        if reply.answer is None:
            reply.name = seen.get(reply.incarnation, "")


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except (OSError, IndexError):
        return False
