"""Files that are there whole or not at all, whenever their writer dies; one writer at a time; and
disks that are busy: what fails for a moment is tried again, a few times.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import time
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from ringcast.errors import UsageError
from ringcast.private import make_private, open_private

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

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

log = logging.getLogger("ringcast")


@cache
def warn_once(text: str) -> None:
    """However often it is met."""
    log.warning("%s", text)


def write_whole(path: Path, text: str, suffix: str = STAGED_SUFFIX) -> None:
    """Put this text in the place of what was there before: staged beside it, synced, renamed."""
    staged = path.with_name(path.name + suffix)
    with open_private(staged) as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
    staged.replace(path)
    sync(path.parent)


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
        make_private(directory)
        file = open_private(directory / "lock", old="ab")
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
