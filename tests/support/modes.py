"""For whom files are."""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PRIVATE = {0o700}, {0o600}


def modes_below(root: Path) -> tuple[set[int], set[int]]:
    """Those of the directory and all directories below it, and those of all files."""
    found = [path.lstat().st_mode for path in (root, *root.rglob("*"))]
    return tuple(
        {stat.S_IMODE(mode) for mode in found if is_kind(mode)}
        for is_kind in (stat.S_ISDIR, stat.S_ISREG)
    )


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
