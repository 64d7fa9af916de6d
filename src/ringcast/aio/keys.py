"""The key of a group: where it comes from, and what its file must be like.

A key file holds one or two keys, a line of 64 hexadecimal digits each: the first seals, all open.
So a key is exchanged without a stop: add the new one as the second everywhere, make it the first
everywhere, remove the old one everywhere. Members read their file again when it has changed.

Only its owner may read or write a key file: another one is refused, with the line that repairs it.
Keys stand in no log, text or exception. There are no passphrases: what people can remember others
can guess.
"""

from __future__ import annotations

import logging
import os
import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet

from ringcast.errors import Reject, UsageError
from ringcast.wire.envelope import KEY_BYTES, KEYS_MAX, SALT_BYTES, Envelope, Key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ringcast.aio.host import Host

FILE_BYTES_MAX = 4096
TELL_NS = 60_000_000_000
"""How often it is told, at the most, that somebody has another key."""

log = logging.getLogger("ringcast")


class KeyRing:
    """The keys of one member's group, as they are now."""

    def __init__(self, keys: Sequence[Key], path: Path | None = None) -> None:
        self.keys = tuple(keys)
        self.path = path
        self._stamp = None if path is None else _stamp(path)

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(key.id.hex() for key in self.keys)})"

    @property
    def id(self) -> str:
        """Of the key that seals, for people."""
        return self.keys[0].id.hex()

    def lock(self, group: str, host: Host) -> Lock:
        """For a new incarnation of a member."""
        return Lock(group, self, host)

    def look(self) -> bool:
        """Whether there are other keys in the file now. If it cannot be read: UsageError, and those
        that were in it go on."""
        stamp = None if self.path is None else _stamp(self.path)
        if self.path is None or stamp == self._stamp:
            return False
        self._stamp = stamp
        before, self.keys = self.keys, read_key_file(self.path).keys
        return [key.id for key in before] != [key.id for key in self.keys]


class Lock:
    """The envelope of one member, with the keys as they are now."""

    def __init__(self, group: str, keys: KeyRing, host: Host) -> None:
        self.envelope = Envelope(group, keys.keys, host.random_bytes(SALT_BYTES))
        self.keys = keys
        self._host = host
        self._told_at = -TELL_NS
        self._told = 0
        _LOCKS.add(self)

    def renew(self) -> None:
        """This process is a copy: what it seals must differ."""
        self.envelope.renew(self._host.random_bytes(SALT_BYTES))

    def look(self, rejected: Mapping[str, int], now: int) -> None:
        """Now and again: are there other keys, and does somebody have others?"""
        try:
            if self.keys.look():
                self.envelope.use_keys(self.keys.keys)
                log.info("the key of the group has changed: %r", self.keys)
        except UsageError as error:
            log.warning("the keys are as they were: %s", error)
        refused = rejected.get(Reject.KEY.value, 0)
        if refused > self._told and now >= self._told_at + TELL_NS:
            log.warning(
                "refused %d datagrams that were sealed with another key: id %s, and ours is %s",
                *(refused - self._told, self.envelope.foreign.hex(), self.keys.id),
            )
            self._told, self._told_at = refused, now

    def explain(self, rejected: Mapping[str, int]) -> list[str]:
        refused = rejected.get(Reject.KEY.value, 0)
        if not refused:
            return []
        foreign = self.envelope.foreign.hex()
        return [f"refused {refused} datagrams with key id {foreign}: ours is {self.keys.id}"]


_LOCKS: WeakSet[Lock] = WeakSet()


def _renew_all() -> None:
    for lock in _LOCKS:
        lock.renew()


if hasattr(os, "register_at_fork"):  # there is fork
    os.register_at_fork(after_in_child=_renew_all)


def keys_of(key: bytes | str | Path) -> KeyRing:
    """The key itself, or where it is; text in which a key stands is not given as an argument."""
    if not isinstance(key, bytes):
        return read_key_file(Path(key))
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
    except OSError as error:
        link = " (it is a link: name the file itself)" if path.is_symlink() else ""
        raise UsageError(f"cannot read key file {path}: {error.strerror}{link}") from None
    try:
        _check(path, os.fstat(descriptor))
        text = os.read(descriptor, FILE_BYTES_MAX)
    finally:
        os.close(descriptor)
    return KeyRing(_parse(text, f"key file {path}"), path)


def write_key_file(path: Path) -> Key:
    """A new key in a new file, for its owner alone."""
    secret = secrets.token_bytes(KEY_BYTES)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileExistsError:
        raise UsageError(f"{path} is there already: a key is not written over") from None
    except OSError as error:
        raise UsageError(f"cannot make key file {path}: {error.strerror}") from None
    with open(descriptor, "w") as file:
        os.fchmod(descriptor, 0o600)
        file.write(f"# a key of ringcast: keep it secret\n{secret.hex()}\n")
        file.flush()
        os.fsync(descriptor)
    return Key(secret)


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
                raise UsageError(f"{what}, line {number}: a key is {2 * KEY_BYTES} hex digits")
            found.append(Key(secret))
    if not 1 <= len(found) <= KEYS_MAX or len({key.id for key in found}) < len(found):
        raise UsageError(f"{what} holds {len(found)} keys: one, or two that differ")
    return found


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size
