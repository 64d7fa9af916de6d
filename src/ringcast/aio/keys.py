"""The key of a group: where it comes from, and what its file must be like.

A key file holds one or two keys, a line of 64 hexadecimal digits each: the first seals, all open.
So a key is exchanged without a stop: add the new one as the second everywhere, make it the first
everywhere, remove the old one everywhere. Members read their file again when it has changed, and on
SIGHUP (termination.py); to exchange it at once, write another beside it and rename that.

Only its owner may read or write a key file: another one is refused, with the line that repairs it.
Keys stand in no log, text or exception. There are no passphrases: what people can remember others
can guess.

On one machine a group needs no set-up: its first member makes a key, in the directory where members
of one user meet. Members keep that file from being swept: whoever finds it gone puts it back.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakSet

from ringcast.aio.refusals import TOLD, Refusals
from ringcast.aio.sources import make_group_directory
from ringcast.aio.termination import READERS
from ringcast.errors import DecodeError, UsageError
from ringcast.wire.codec import header_of
from ringcast.wire.envelope import KEY_BYTES, KEYS_MAX, SALT_BYTES, Envelope, Key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.aio.host import Host
    from ringcast.aio.transport import Transport
    from ringcast.model import View

Stamp: TypeAlias = tuple[int, ...]
"""What tells a file from what it was."""

FILE_BYTES_MAX = 4096
_HEX = re.compile(r"[0-9a-fA-F]{64}")
OWN_FILE = "group.key"
TOUCH_NS = 3_600_000_000_000
"""How often a key of the user's own is touched: directories are swept of what looks unused."""

log = logging.getLogger("ringcast")


class DamagedKey(UsageError):
    """What stands there is no key."""


class KeyRing:
    """The keys of one member's group, as they are now."""

    def __init__(
        self, keys: Sequence[Key], path: Path | None = None, stamp: Stamp | None = None
    ) -> None:
        """`stamp`: of the file as it was read."""
        self.keys = tuple(keys)
        self.path = path
        self.stamp = stamp
        self.is_own = False
        """The file is where members of one user meet, and they keep it."""
        self.refusals = Refusals()
        self._failed: Stamp | None = None
        self._touched_at: int | None = None

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(key.id.hex() for key in self.keys)})"

    @property
    def id(self) -> str:
        """Of the key that seals, for people."""
        return self.keys[0].id.hex()

    def lock(self, group: str, host: Host, transport: Transport) -> Lock:
        """For a new incarnation of a member."""
        return Lock(group, self, host, transport)

    def look(self) -> bool:
        """Whether there are other keys in the file now. If it cannot be read: UsageError, and those
        that were in it go on."""
        if self.path is None or _stamp_of(self.path) in (self.stamp, self._failed):
            return False
        try:
            found = read_key_file(self.path)
        except UsageError:
            self._failed = _stamp_of(self.path)  # told once
            raise
        before, self.keys, self.stamp = self.keys, found.keys, found.stamp
        self._failed = None
        return [key.id for key in before] != [key.id for key in self.keys]

    def forget(self) -> None:
        """How the file was when it was read."""
        self.stamp = self._failed = None

    def keep(self, now: int) -> None:
        """Now and again: the user's own key stays where it is."""
        if not self.is_own or self.path is None:
            return
        with suppress(OSError, UsageError):
            if not self.path.exists():
                make_group_directory(self.path.parent)
                place(self.path, self.keys)
            elif self._touched_at is None or now >= self._touched_at + TOUCH_NS:
                self._touched_at = now
                os.utime(self.path, follow_symlinks=False)


class Lock:
    """The envelope of one member, with the keys as they are now."""

    def __init__(self, group: str, keys: KeyRing, host: Host, transport: Transport) -> None:
        self.envelope = Envelope(group, keys.keys, host.random_bytes(SALT_BYTES))
        self.keys = keys
        self._group = group
        self._host = host
        self._transport = transport
        self._is_watching = False  # somebody was refused since the last look
        _LOCKS.add(self)
        if keys.path is not None:
            self._loop = host.loop()
            READERS.add(self)

    def renew(self) -> None:
        """This process is a copy: what it seals must differ."""
        self.envelope.renew(self._host.random_bytes(SALT_BYTES))

    def enter_view(self, view: View) -> None:
        """Nobody passes for these by another salt, whatever else comes."""
        self.envelope.keep({header_of(self._group, member) for member in view}, len(view))

    def refuse(self, error: DecodeError) -> None:
        """A datagram that came just now was not opened."""
        if error.reason in TOLD:
            self.keys.refusals.note(error.reason, self.envelope.foreign, self._transport.source)
            self._transport.notes_sources = self._is_watching = True

    def ask(self) -> None:
        """Read the file, even if it looks as before."""
        self.keys.forget()
        with suppress(RuntimeError):  # its loop has ended
            self._loop.call_soon_threadsafe(lambda: self.look(self._host.now()))

    def look(self, now: int) -> None:
        """Now and again: are there other keys, and does somebody have another, or none?"""
        self.keys.keep(now)
        try:
            if self.keys.look():
                self.envelope.use_keys(self.keys.keys)
                log.info("the key of the group has changed: %r", self.keys)
        except UsageError as error:
            log.warning("the keys are as they were: %s", error)
        for sentence in self.keys.refusals.to_tell(self.keys.id, now):
            log.warning("%s", sentence)
        self._transport.notes_sources, self._is_watching = self._is_watching, False

    def explain(self) -> list[str]:
        """What was refused in the last minute or two."""
        return self.keys.refusals.explain(self.keys.id)


_LOCKS: WeakSet[Lock] = WeakSet()


def _renew_all() -> None:
    for lock in _LOCKS:
        lock.renew()


if hasattr(os, "register_at_fork"):  # there is fork
    os.register_at_fork(after_in_child=_renew_all)


def keys_of(key: bytes | str | Path) -> KeyRing:
    """The key itself, or where it is."""
    if isinstance(key, str) and _HEX.fullmatch(key):  # and nobody is told what it is
        raise UsageError(
            "this names a file, and looks like a key itself: give key=bytes.fromhex(...), or "
            "RINGCAST_KEY"
        )
    if key == "":
        raise UsageError("the name of a key file is empty: give one, or none at all")
    if isinstance(key, str | Path):
        return read_key_file(Path(key))
    if not isinstance(key, bytes):
        raise UsageError(f"key= is a {type(key).__name__}: give bytes, or the path of a key file")
    if len(key) != KEY_BYTES:
        raise UsageError(f"key= has {len(key)} bytes: a key has {KEY_BYTES}")
    return KeyRing([Key(key)])


def keys_in(text: str, what: str) -> KeyRing:
    """As they stand in a file."""
    return KeyRing(_parse(text.encode(), what))


def read_key_file(path: Path) -> KeyRing:
    """UsageError if it is not there, holds something else, or others can read it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise UsageError(f"no key file {path}: make one with `ringcast keygen {path}`") from None
    except (OSError, ValueError) as error:
        is_link = isinstance(error, OSError) and error.errno == errno.ELOOP
        why = "it is a link: name the file itself" if is_link else _why(error)
        raise UsageError(f"cannot read key file {path}: {why}") from None
    try:
        about = os.fstat(descriptor)
        _check(path, about)
        text = os.read(descriptor, FILE_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"cannot read key file {path}: {_why(error)}") from None
    finally:
        os.close(descriptor)
    if len(text) > FILE_BYTES_MAX:
        raise DamagedKey(f"key file {path} is longer than {FILE_BYTES_MAX} bytes: is it one?")
    return KeyRing(_parse(text, f"key file {path}"), path, _stamp(about))


def own_keys(directory: Path) -> KeyRing:
    """The user's own key for the group whose members meet here. The first makes it."""
    path = directory / OWN_FILE
    try:
        make_group_directory(directory)
        if not path.exists():
            place(path, [Key(secrets.token_bytes(KEY_BYTES))])
    except OSError as error:
        raise UsageError(f"cannot make key file {path}: {_why(error)}") from None
    try:
        keys = read_key_file(path)
    except DamagedKey as error:
        raise DamagedKey(f"{error}: `rm {path}`, and the next member makes another") from None
    keys.is_own = True
    return keys


def place(path: Path, keys: Sequence[Key]) -> None:
    """Put the file there whole, unless there is one: of many who do so at once, one does."""
    draft = path.with_suffix(f".{secrets.token_hex(8)}")
    _write(draft, keys)
    try:
        os.link(draft, path, follow_symlinks=False)
    except FileExistsError:
        pass  # somebody was faster
    finally:
        draft.unlink()


def write_key_file(path: Path) -> Key:
    """A new key in a new file, for its owner alone."""
    key = Key(secrets.token_bytes(KEY_BYTES))
    try:
        _write(path, [key])
    except FileExistsError:
        raise UsageError(
            f"{path} is there already: a key is not written over, name another file"
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot make key file {path}: {_why(error)}") from None
    return key


def _write(path: Path, keys: Sequence[Key]) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    with open(descriptor, "w") as file:
        os.fchmod(descriptor, 0o600)
        lines = "".join(f"{key.reveal()}\n" for key in keys)
        file.write(f"# a key of ringcast: keep it secret\n{lines}")
        file.flush()
        os.fsync(descriptor)


def _check(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise UsageError(f"key file {path} is no file")
    if found.st_uid != os.geteuid():
        raise UsageError(
            f"key file {path} is another user's: copy it with `install -m 600 {path} FILE`"
        )
    if found.st_mode & 0o077:
        raise UsageError(f"others can read key file {path}: `chmod 600 {path}`")


def _parse(text: bytes, what: str) -> list[Key]:
    lines = [line.split(b"#")[0].strip() for line in text.splitlines()]
    found: list[Key] = []
    for number, line in enumerate(lines, 1):
        if line:
            try:
                secret = bytes.fromhex(line.decode("ascii"))
            except ValueError:  # which would tell what stands there
                secret = b""
            if len(secret) != KEY_BYTES:
                raise DamagedKey(f"{what}, line {number}: a key is {2 * KEY_BYTES} hex digits")
            found.append(Key(secret))
    if not 1 <= len(found) <= KEYS_MAX or len({key.id for key in found}) < len(found):
        raise DamagedKey(f"{what} holds {len(found)} keys: one, or two that differ")
    return found


def _stamp(found: os.stat_result) -> Stamp:
    return found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size


def _stamp_of(path: Path) -> Stamp:
    """(): it is not there."""
    try:
        return _stamp(os.stat(path, follow_symlinks=False))
    except OSError:
        return ()


def _why(error: OSError | ValueError) -> str:
    return str(getattr(error, "strerror", None) or "no file has such a name")
