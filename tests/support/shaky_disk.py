"""A file system that fails now and then, as busy ones do: below one directory, in this process. And
one that refuses, or hangs, in the place of a file."""

from __future__ import annotations

import errno
import itertools
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_ERRORS = (errno.EIO, errno.EMFILE, errno.ESTALE)


class ShakyDisk:
    """While it is entered, every so many-th `open`, `read`, `stat` or listing below the root
    fails."""

    def __init__(self, root: Path | str, every: int, log: Path | None = None) -> None:
        self.failed = 0
        self._root = str(root)
        self._every = every
        self._log = log
        self._handles: set[int] = set()
        self._real = {name: getattr(os, name) for name in ("open", "pread", "scandir", "stat")}

    def __enter__(self) -> ShakyDisk:
        os.open = self._shaken("open")
        os.pread = self._shaken("pread")
        os.scandir = self._shaken("scandir")
        os.stat = self._shaken("stat")  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        for name, real in self._real.items():
            setattr(os, name, real)

    def _shaken(self, name: str) -> Callable[..., Any]:
        real = self._real[name]

        def call(place: Any, *rest: Any, **named: Any) -> Any:
            if place in self._handles or str(place).startswith(self._root):
                self._count(place)
                found = real(place, *rest, **named)
                if name == "open":
                    self._handles.add(found)
                return found
            if name == "open":
                return self._opened_elsewhere(real(place, *rest, **named))
            return real(place, *rest, **named)

        return call

    def _count(self, place: Any) -> None:
        # Of the process, however often this module comes into it.
        number = next(vars(sys).setdefault("shaky_calls", itertools.count(1)))
        if number % self._every == 0:
            self.failed += 1
            if self._log is not None:
                with self._log.open("a") as log:
                    print(place, file=log)
            code = _ERRORS[number // self._every % len(_ERRORS)]
            raise OSError(code, os.strerror(code), str(place))

    def _opened_elsewhere(self, handle: int) -> int:
        self._handles.discard(handle)
        return handle


@contextmanager
def standing_in(other: str | Path, path: Path) -> Iterator[None]:
    """While it is entered, who opens this file gets the other one: a device, or a pipe."""
    real = os.open

    def call(place: Any, flags: int, *rest: Any, **named: Any) -> int:
        if str(place) == str(path):
            return real(other, os.O_WRONLY)
        return real(place, flags, *rest, **named)

    os.open = call
    try:
        yield
    finally:
        os.open = real
