"""Sources: where a member looks for the others of its group.

A source only names addresses; who is really there shows by answering. So a stale address costs a
datagram and nothing else, and a source may be as simple as a list. It is asked often while a
member looks for its group, and once a second by a coordinator afterwards; it is called in the
event loop and must not block.

By default members meet in a directory that belongs to the user, with one small file for each.

Addresses that are given as host names are looked up, without holding up the loop. What a member
listens at, and is known by, is looked up once: it must be there. Names where others may be found
are asked for again while the group lives, so a name that stands for whichever members run (a
headless service, a record with many addresses) is enough to find them. A name such as
_ringcast._udp.orders.example stands for SRV records, which have the ports too (srv.py). That one
has no address yet is no mistake: who comes first is alone. Protocols see numbers only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from time import monotonic

from ringcast.aio.srv import Resolver
from ringcast.errors import UsageError
from ringcast.model import Address, Member

FILES_MAX = 4096
"""Member files looked at; whoever fills a directory with more is not helped by reading them."""

FILE_BYTES_MAX = 1024
SUFFIX = ".member"


class ListSource:
    """A list of addresses that never changes."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = tuple(addresses)

    def register(self, me: Member) -> None:
        """Whoever has the list knows where to look."""

    def candidates(self) -> Sequence[Address]:
        return self._addresses

    def unregister(self) -> None:
        """Nothing was written anywhere."""

    def __str__(self) -> str:
        return ", ".join(map(str, self._addresses))


@dataclass(frozen=True, slots=True)
class _Entry:
    """What a member file says."""

    address: Address
    pid: int
    machine: str

    @property
    def is_dead(self) -> bool:
        """Its process ran here, and runs no more. Of other machines nothing is known."""
        return bool(self.machine) and self.machine == _machine() and not _is_alive(self.pid)


class DirectorySource:
    """A directory with a file for each member: the user's own, or one that machines share.

    Files of processes that died are harmless. They are removed by whoever looks next, if the
    process ran on this machine since it was started.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._own: Path | None = None
        self._content = b""
        self._entries: dict[str, _Entry | None] = {}
        """Files that were read, by name: what one says never changes. None: nothing useful."""

    def register(self, me: Member) -> None:
        if self._own is not None:
            raise UsageError(f"{self} is in use by another member: make one for each member")
        content = {
            "address": str(me.address),
            "incarnation": me.incarnation,
            "pid": os.getpid(),
            "name": me.name,
            "machine": _machine(),
        }
        self._content = json.dumps(content).encode()
        # The incarnation alone is as good as unique; no name given by a user is part of a path.
        self._own = self._path / f"{me.incarnation:016x}{SUFFIX}"
        try:
            self._write()
        except (OSError, UsageError) as error:
            self._own = None
            why = error.strerror if isinstance(error, OSError) else error
            raise UsageError(f"cannot write to {self._path}: {why}") from error

    def candidates(self) -> list[Address]:
        self._keep_own()
        found: dict[str, _Entry | None] = {}
        for name in self._names():
            entry = self._entries[name] if name in self._entries else _read(self._path / name)
            if entry is not None and entry.is_dead:
                with contextlib.suppress(OSError):
                    (self._path / name).unlink()
            else:
                found[name] = entry
        self._entries = found
        return [entry.address for entry in found.values() if entry is not None]

    def unregister(self) -> None:
        if self._own is not None:
            with contextlib.suppress(OSError):
                self._own.unlink()
            self._own = None

    def __str__(self) -> str:
        return str(self._path)

    def _names(self) -> list[str]:
        try:
            with os.scandir(self._path) as files:
                return [
                    file.name
                    for file, _ in zip(files, range(FILES_MAX), strict=False)
                    if file.name.endswith(SUFFIX)
                ]
        except OSError:
            return []

    def _keep_own(self) -> None:
        """Runtime directories are swept of what nobody has touched for hours."""
        if self._own is None:
            return
        with contextlib.suppress(OSError, UsageError):
            try:
                os.utime(self._own)
            except FileNotFoundError:
                self._write()

    def _write(self) -> None:
        """Whole or not at all: others may look at any time."""
        assert self._own is not None
        self._make_directory()
        draft = self._own.with_suffix(".draft")
        draft.unlink(missing_ok=True)
        with draft.open("xb") as file:  # never through a link: others may write here too
            file.write(self._content)
        draft.replace(self._own)

    def _make_directory(self) -> None:
        self._path.mkdir(parents=True, exist_ok=True)


class _RuntimeSource(DirectorySource):
    """In the user's own directory, which may be swept as a whole."""

    def _make_directory(self) -> None:
        make_group_directory(self._path)


def runtime_source(group: str) -> DirectorySource:
    """Where the members of a group meet if nothing else is said: for one user on one machine."""
    return _RuntimeSource(group_directory(group))


def group_directory(group: str) -> Path:
    """What members of this group leave for others of the same user to find."""
    from hashlib import sha256  # takes milliseconds, which not every command needs

    # The name of a group may be any text, and none of it shall be a path.
    return runtime_directory() / sha256(group.encode()).hexdigest()[:32]


def make_group_directory(path: Path) -> None:
    """Make it if it is not there, and the user's own directory around it if that was swept;
    UsageError if others may look into that."""
    _make_own(path.parent)
    _make_private(path)


def check_system() -> None:
    """UsageError: this is no Linux.

    Members meet and answer with what only Linux has: /proc, and sockets that tell who is at the
    other end. UDP and multicast set options by Linux's numbers, which mean something else on other
    systems: errors of single datagrams, path MTUs, filters.
    """
    if sys.platform != "linux":
        others = "simulate, replay, explore" + (", audit" if sys.platform != "win32" else "")
        raise UsageError(
            f"members of real groups need Linux, and this is {sys.platform}: "
            f"ringcast.testing works here, and so do ringcast {others}"
        )


def runtime_directory() -> Path:
    """The user's own directory, made if it is not there; UsageError if others may write to it."""
    check_system()
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    if given and _is_own(Path(given)):
        path = Path(given) / "ringcast"
    else:
        import tempfile

        path = Path(tempfile.gettempdir()) / f"ringcast-{os.getuid()}"
    _make_own(path)
    return path


def _make_own(path: Path) -> None:
    try:
        _make_private(path)
    except OSError as error:
        raise UsageError(f"cannot make {path}: {error.strerror}") from error
    if not _is_own(path):
        raise UsageError(
            f"{path} is not a directory that belongs to this user alone (mode 0700): remove it, "
            f"or say where members meet (discovery=, members=) and with which key (key=)"
        )


def _make_private(path: Path) -> None:
    """For this user alone, whatever the umask."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        path.chmod(0o700)


def _is_own(path: Path) -> bool:
    """A real directory, not a link to one, that nobody else may look into."""
    try:
        status = path.lstat()
    except OSError:
        return False
    is_private = not stat.S_IMODE(status.st_mode) & 0o077
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and is_private


def _read(path: Path) -> _Entry | None:
    """What the file says; None if it is not one of ours."""
    try:
        # Neither a link nor a pipe may lead us astray.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        content = json.loads(os.read(fd, FILE_BYTES_MAX))
        address, pid, machine = (content[key] for key in ("address", "pid", "machine"))
        is_text = isinstance(address, str) and isinstance(machine, str)
        if not is_text or not isinstance(pid, int) or pid <= 0:
            return None
        return _Entry(Address.parse(address), pid, machine)
    except (OSError, ValueError, TypeError, LookupError, RecursionError, UsageError):
        return None
    finally:
        os.close(fd)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass  # somebody else's process is a process too
    return True


@cache
def _machine() -> str:
    """What pids mean something in: one boot of a kernel, and the process namespace in it. Empty
    where the system does not tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


AGAIN_S = 5.0
"""How long what was found counts. Resolvers keep it for longer, or ask."""


def is_name(address: Address) -> bool:
    """It has to be looked up."""
    try:
        ip_address(address.host)
    except ValueError:
        return True
    return False


async def look_up(address: Address, near: Address | None = None) -> list[Address]:
    """All that it stands for now; of the kind of `near`, or any, those of version 4 first."""
    if not is_name(address):
        return [address]
    if address.is_service:
        places = await Resolver.of_system().services(address.host)
        found = await asyncio.gather(*(look_up(place, near) for place in places))
        return list(dict.fromkeys(each for some in found for each in some))
    family = socket.AF_UNSPEC
    if near is not None:
        family = socket.AF_INET6 if ":" in near.host else socket.AF_INET
    loop = asyncio.get_running_loop()
    try:
        resolved = await loop.getaddrinfo(
            address.host, address.port, family=family, type=socket.SOCK_DGRAM
        )
    except (OSError, UnicodeError):
        return []
    resolved.sort(key=lambda each: each[0] != socket.AF_INET)
    return list(dict.fromkeys(Address(str(each[4][0]), address.port) for each in resolved))


async def look_up_own(text: str) -> Address:
    """Where this member listens, or is known; UsageError: the name stands for no address."""
    address = Address.parse(text)
    found = await look_up(address)
    if not found:
        raise UsageError(f"no address was found for {address.host!r}: check the name")
    return found[0]


class NameSource(ListSource):
    """Addresses of which some are names. They are looked up again while somebody asks here."""

    def __init__(self, addresses: Sequence[Address], near: Address) -> None:
        super().__init__(addresses)
        self._near = near
        self._found: list[Address] = []
        self._due = 0.0
        self._asking: asyncio.Task[list[Address]] | None = None

    async def look(self) -> list[Address]:
        """Look all of them up, and return what was found."""
        found = await asyncio.gather(*(look_up(each, self._near) for each in self._addresses))
        self._found = [address for each in found for address in each]
        self._due = monotonic() + AGAIN_S
        return self._found

    def candidates(self) -> Sequence[Address]:
        if monotonic() >= self._due and (self._asking is None or self._asking.done()):
            self._asking = asyncio.get_running_loop().create_task(self.look())
        return self._found

    def unregister(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
