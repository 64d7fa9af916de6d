"""SIGHUP: members read their key files again, at once and whatever the files look like.

Only in the main thread, only while SIGHUP has its default action, which would end the process, and
only while a block is open (termination.py) of a member that has its key from a file.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet

if TYPE_CHECKING:
    from types import FrameType


class Reader(Protocol):
    def ask(self) -> None:
        """Read again. Called between any two instructions of the main thread."""
        ...


READERS: WeakSet[Reader] = WeakSet()
"""Of this process, in whatever thread."""


def listen() -> None:
    if READERS and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, _on_signal)


def stop() -> None:
    if signal.getsignal(signal.SIGHUP) is _on_signal:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _on_signal(_signal: int, _frame: FrameType | None) -> None:
    for reader in list(READERS):
        reader.ask()
