"""What a reader takes from local files: bytes, row groups, listings. In this process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ringcast.trace.segments import Segment

if TYPE_CHECKING:
    from collections.abc import Callable


class Reads:
    """While it is entered, it counts what is read below the root."""

    def __init__(self, root: object) -> None:
        self.bytes = 0
        self.groups = 0
        self.opened = 0
        self.listings = 0
        self._root = str(root)
        self._handles: set[int] = set()
        self._real = {name: getattr(os, name) for name in ("open", "pread", "scandir")}
        self._group = Segment.group

    def __enter__(self) -> Reads:
        os.open = self._open
        os.pread = self._pread
        os.scandir = self._scandir
        Segment.group = self._counted(self._group)  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        for name, real in self._real.items():
            setattr(os, name, real)
        Segment.group = self._group  # type: ignore[method-assign]

    def _open(self, path: Any, *rest: Any, **named: Any) -> int:
        handle: int = self._real["open"](path, *rest, **named)
        self._handles.discard(handle)
        if str(path).startswith(self._root):
            self.opened += 1
            self._handles.add(handle)
        return handle

    def _pread(self, handle: int, length: int, start: int) -> bytes:
        found: bytes = self._real["pread"](handle, length, start)
        self.bytes += len(found) if handle in self._handles else 0
        return found

    def _scandir(self, path: Any) -> Any:
        self.listings += str(path).startswith(self._root)
        return self._real["scandir"](path)

    def _counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def group(*rest: Any, **named: Any) -> Any:
            self.groups += 1
            return real(*rest, **named)

        return group
