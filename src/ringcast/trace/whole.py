"""Files that are there whole or not at all, whenever their writer dies; one writer at a time; and
disks that are busy: what fails for a moment is tried again, a few times.

Messages are in some of them: their owner alone reads those. Where the directory hands its group on
(`chmod g+s`), that group reads them too: so Spark may run as another user.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from ringcast.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import BinaryIO

Result = TypeVar("Result")

STAGED_SUFFIX = ".staged"
PAUSES_S = (0.01, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Between tries: two seconds in all. A disk that takes longer is not busy but broken."""

TRANSIENT = frozenset(
    {
        *(errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS),
        *(errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ETIMEDOUT, errno.ESTALE),
        *(errno.ECONNRESET, errno.ECONNABORTED, errno.EHOSTDOWN, errno.EHOSTUNREACH),
        *(errno.ENETDOWN, errno.ENETUNREACH, errno.ENOTCONN, errno.EPIPE, errno.EREMOTEIO),
    }
)
"""Errors of a system or a network file system that may be over at the next try."""


def write_whole(path: Path, text: str, suffix: str = STAGED_SUFFIX) -> None:
    """Put this text in the place of what was there before: staged beside it, synced, renamed."""
    staged = path.with_name(path.name + suffix)
    with staged.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    staged.replace(path)
    sync(path.parent)


def make_private(directory: Path) -> None:
    """Make the directory, for its owner alone, if it is not there."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)


def open_private(path: Path) -> BinaryIO:
    """A new file, or the old one emptied, as the directory allows."""
    is_shared = path.parent.stat().st_mode & stat.S_ISGID
    mode = 0o640 if is_shared else 0o600
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode), "wb")


def sync(path: Path) -> None:
    """Make what is in the file last; of a directory, renames and removals."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def held_alone(directory: Path) -> Iterator[None]:
    """Make the directory and keep others from writing in it; UsageError if one does already.

    The system purges it when the process ends, however it ends.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / "lock").open("w")
    except OSError as error:
        raise UsageError(f"{directory}: cannot be written in: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UsageError(f"{directory}: another process works here: wait for it") from error
        yield


def patiently(work: Callable[[], Result]) -> Result:
    """What `work` returns; an OSError that may pass is raised only if it does not."""
    for pause_s in PAUSES_S:
        try:
            return work()
        except OSError as error:
            if error.errno not in TRANSIENT:
                raise
        time.sleep(pause_s)
    return work()
