"""Files that are there whole or not at all, whenever their writer dies; one writer at a time."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ringcast.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STAGED_SUFFIX = ".staged"


def write_whole(path: Path, text: str, suffix: str = STAGED_SUFFIX) -> None:
    """Put this text in the place of what was there before: staged beside it, synced, renamed."""
    staged = path.with_name(path.name + suffix)
    with staged.open("w", encoding="utf-8") as file:
        file.write(text)
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
