"""Where segments are read: on a disk of this machine, or on any file system that pyarrow reads.

`disk_at` tells both apart. A path is local, and so is what file:// names: the system's own calls
read it. Another URI, such as s3://bucket/archive, goes to pyarrow, with all that it understands in
one, options behind a question mark among them. Nothing is written there, because a segment becomes
visible by a rename, and retention needs a lock.

What they do raises OSError: FileNotFoundError where there is nothing, and an error that may pass
(`ringcast.trace.whole`) wherever pyarrow gives no number.

A directory is listed whole. Who looks often asks first whether all is as it was listed: as the
times of local directories tell, and as they tell it for a second at most, because some file systems
set no times. Other disks tell nothing, and are listed once a second.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote

from ringcast.errors import UsageError
from ringcast.trace.whole import patiently, warn_once

SUFFIX = ".parquet"
STATE = {".audit", ".compact"}
"""Directories of those who work here, and nobody else's: no segment is in them."""
RELIST_S = 1.0
"""So long what was listed may stand without being looked at again."""
SETTLED_S = 0.1
"""A directory that changed this short before it was listed may have changed again unseen: file
systems count its times in steps of some milliseconds."""

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_FILE = re.compile(r"file:(?://)?(?=/)")


class Opened(Protocol):
    """A file, to be read anywhere."""

    def size(self) -> int: ...

    def read_at(self, length: int, start: int) -> bytes: ...

    def close(self) -> None: ...


class Listing(NamedTuple):
    """The segments below a directory, as they were found."""

    paths: frozenset[str]
    changed_at: dict[str, int]
    """When each local directory last changed, in its file system's nanoseconds."""
    since: float
    """When the listing began, in seconds since the epoch."""

    @property
    def is_recent(self) -> bool:
        return 0 <= time.time() - self.since < RELIST_S


class Disk(Protocol):
    """What reading an archive takes."""

    is_local: bool

    def open(self, path: str) -> Opened: ...

    def changed_at(self, path: str, *, is_link_itself: bool = False) -> float:
        """When the file got its name, or was last written, in seconds since the epoch."""
        ...

    def listing(self, directory: str) -> Listing:
        """UsageError: what is in a directory is not told."""
        ...

    def is_as_listed(self, listing: Listing) -> bool:
        """Whether listing it again can wait."""
        ...


class LocalDisk:
    """What the system mounts."""

    is_local = True

    def open(self, path: str) -> Opened:
        return _LocalFile(path)

    def changed_at(self, path: str, *, is_link_itself: bool = False) -> float:
        return os.stat(path, follow_symlinks=not is_link_itself).st_ctime

    def listing(self, directory: str) -> Listing:
        since = time.time()
        found, changed_at, due = list[str](), dict[str, int](), [directory]
        while due:
            place = due.pop()
            try:
                changed, entries = patiently(partial(_entries, place))
            except (FileNotFoundError, NotADirectoryError):
                continue  # removed since it was listed
            except OSError as error:
                raise _untold(place, error) from error
            changed_at[place] = changed
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    due += [entry.path] if entry.name not in STATE else []
                elif entry.name.endswith(SUFFIX):
                    found.append(entry.path)
                elif entry.is_symlink() and os.path.isdir(entry.path):
                    warn_once(f"{entry.path} is a link to a directory: what is in it is left out")
        return Listing(frozenset(found), changed_at, since)

    def is_as_listed(self, listing: Listing) -> bool:
        settled = int((listing.since - SETTLED_S) * 1e9)
        try:
            return listing.is_recent and all(
                changed < settled and os.stat(place).st_mtime_ns == changed
                for place, changed in listing.changed_at.items()
            )
        except OSError:
            return False


class _LocalFile:
    def __init__(self, path: str) -> None:
        self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def size(self) -> int:
        return os.fstat(self._handle).st_size

    def read_at(self, length: int, start: int) -> bytes:
        return os.pread(self._handle, length, start)

    def close(self) -> None:
        os.close(self._handle)


class ArrowDisk:
    """A file system as pyarrow has it. Paths on it are its own, without scheme and options."""

    is_local = False

    def __init__(self, files: Any) -> None:
        self._files = files

    def open(self, path: str) -> Opened:
        with _as_os_errors():
            return _ArrowFile(self._files.open_input_file(path))

    def changed_at(self, path: str, *, is_link_itself: bool = False) -> float:
        with _as_os_errors():
            found = self._files.get_file_info(path)
        if found.type.name == "NotFound":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return float(found.mtime_ns or 0) / 1e9

    def listing(self, directory: str) -> Listing:
        since = time.time()
        try:
            found = patiently(partial(self._below, directory))
        except FileNotFoundError:
            found = []
        except OSError as error:
            raise _untold(directory, error) from error
        return Listing(frozenset(found), {}, since)

    def is_as_listed(self, listing: Listing) -> bool:
        return listing.is_recent

    def _below(self, directory: str) -> list[str]:
        from pyarrow.fs import FileSelector

        with _as_os_errors():
            infos = self._files.get_file_info(FileSelector(directory, recursive=True))
        return [
            info.path
            for info in infos
            if info.is_file
            and info.path.endswith(SUFFIX)
            and STATE.isdisjoint(info.path[len(directory) :].split("/"))
        ]


class _ArrowFile:
    def __init__(self, file: Any) -> None:
        self._file = file

    def size(self) -> int:
        with _as_os_errors():
            return int(self._file.size())

    def read_at(self, length: int, start: int) -> bytes:
        with _as_os_errors():
            return bytes(self._file.read_at(length, start))

    def close(self) -> None:
        with _as_os_errors():
            self._file.close()


LOCAL: Disk = LocalDisk()


def disk_at(place: Path | str) -> tuple[Disk, str]:
    """The disk of this path or URI, and what the place is called there; UsageError: there is no
    such disk."""
    text = str(place)
    if scheme := _FILE.match(text):
        return LOCAL, unquote(text[scheme.end() :])
    if isinstance(place, Path) or not _URI.match(text):
        return LOCAL, text
    files, path = _file_system(text)
    return ArrowDisk(files), path


def without_secrets(uri: str) -> str:
    """For people: no key, and no options, which may be keys too."""
    return re.sub(r"(?<=//)[^/@]*@", "", uri.partition("?")[0])


def read_whole(disk: Disk, path: str) -> bytes:
    """All of a small file."""
    file = disk.open(path)
    try:
        return file.read_at(file.size(), 0)
    finally:
        file.close()


@lru_cache(maxsize=16)
def _file_system(uri: str) -> tuple[Any, str]:
    import pyarrow as pa
    from pyarrow.fs import FileSystem

    try:
        files, path = FileSystem.from_uri(uri)
    except (OSError, pa.ArrowException, ImportError) as error:
        why = f"pyarrow cannot read there: {one_line(error)}"
        raise UsageError(f"{without_secrets(uri)}: {why}") from error
    return files, path.rstrip("/")


def _entries(place: str) -> tuple[int, list[os.DirEntry[str]]]:
    """When the directory last changed, asked first, and what is in it."""
    changed = os.stat(place).st_mtime_ns
    with os.scandir(place) as entries:
        return changed, list(entries)


def _untold(place: str, error: OSError) -> UsageError:
    return UsageError(f"{place}: what is in it cannot be read: {error.strerror}")


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """Errors with a number, as the system's have one."""
    import pyarrow as pa

    try:
        yield
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        if isinstance(error, FileNotFoundError):
            raise FileNotFoundError(errno.ENOENT, one_line(error)) from error
        raise OSError(errno.EIO, one_line(error)) from error


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
