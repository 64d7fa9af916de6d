"""Files for their owner alone (0600, in directories with 0700), or for whom `file_mode=` and
RINGCAST_FILE_MODE say. What is there already stays as it is: who made it has said for whom.

Nobody but the owner and a group may write, whatever is asked for: who writes what is read here
decides what an audit finds and what a query counts.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, BinaryIO, Literal

from ringcast.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

VARIABLE = "RINGCAST_FILE_MODE"
FILE_MODES = (0o600, 0o640, 0o644, 0o660, 0o664)


def file_mode(said: int | str | None = None) -> int:
    """What is said, or else what the environment says; text is octal, as for chmod."""
    name = "file_mode"
    if said is None:
        name, said = VARIABLE, os.environ.get(VARIABLE) or "600"
    try:
        mode = int(said, 8) if isinstance(said, str) else said
    except ValueError:
        mode = -1
    if mode not in FILE_MODES:
        raise ConfigError(name, said, "0o600, 0o640, 0o644, 0o660 or 0o664")
    return mode


def directory_mode(mode: int) -> int:
    """Who may read files may look for them."""
    return mode | (mode & 0o444) >> 2


def make_private(directory: Path, mode: int | None = None) -> None:
    """Make the directory, and those above it, if it is not there."""
    if directory.is_dir():
        return
    mode = file_mode() if mode is None else mode
    if not directory.parent.exists():
        make_private(directory.parent, mode)
    allowed = directory_mode(mode)
    directory.mkdir(allowed, exist_ok=True)
    if allowed & ~directory.stat().st_mode:
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            _allow(handle, allowed)
        finally:
            os.close(handle)


def open_private(
    path: Path, mode: int | None = None, *, old: Literal["ab", "wb"] | None = None
) -> BinaryIO:
    """A new file, in the place of an old one; or that, opened with the mode `old`."""
    allowed = file_mode() if mode is None else mode
    if old is None:
        path.unlink(missing_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, allowed)
    except FileExistsError:
        if old is None:
            raise
        return open(path, old)
    _allow(handle, allowed)
    return open(handle, "wb")


def _allow(handle: int, mode: int) -> None:
    """Give back what the umask has taken."""
    found = os.fstat(handle).st_mode
    if mode & ~found:
        os.fchmod(handle, found & 0o7777 | mode)
