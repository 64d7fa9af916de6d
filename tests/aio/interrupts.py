"""Interrupts of a call at each point at which CPython lets one in, one after the other.

Signal handlers run, and exceptions set by other threads are raised, where a function of Python
begins or a generator goes on, after a call, and where a loop goes back; nowhere else. Here a trace
function raises at the n-th such point, so that every run of a test meets every one of them.
"""

from __future__ import annotations

import dis
import gc
import inspect
import sys
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

AFTER = {
    code
    for name, code in dis.opmap.items()
    if name.startswith(("CALL", "JUMP_BACKWARD")) and name != "CALL_INTRINSIC_1"
}
"""Instructions after which it is looked if an interrupt has come."""


class Interrupted(BaseException):
    """Comes at any time, as KeyboardInterrupt does to the main thread."""


class Interrupter:
    """Raises at the point with this number, of those in frames that are meant; and then, if it is
    given, at a second one, counted from there: where a function begins or one of C returns."""

    def __init__(
        self,
        point: int,
        second: int | None = None,
        *,
        where: Callable[[FrameType], bool] = lambda _: True,
    ) -> None:
        self.raised = 0
        self._left = point
        self._left_then = second
        self._where = where
        self._last: dict[FrameType, int] = {}  # which instruction each frame was at

    def run(self, call: Callable[[], Any]) -> bool:
        """True if it came to its end. In a generator, which handles exceptions apart: after some
        interrupts CPython 3.11 takes what was being handled for still being handled."""
        return next(self._run(call))

    def _run(self, call: Callable[[], Any]) -> Iterator[bool]:
        is_done = False
        tracing, profiling = sys.gettrace(), sys.getprofile()
        sys._getframe().f_trace_opcodes = True  # 3.12 asks whether any frame wants them, just once
        sys.settrace(self._trace)
        try:
            call()
            is_done = True
        except Interrupted:
            pass
        finally:
            sys.setprofile(profiling)
            sys.settrace(tracing)
            self._last.clear()  # with what the frames hold
        yield is_done

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "call":  # in this order, from 3.13 on, which forgets what it was asked before
            frame.f_trace, frame.f_trace_opcodes, frame.f_trace_lines = self._trace, False, False
            frame.f_trace_opcodes = True
        last = self._last.get(frame)
        if event == "opcode":
            self._last[frame] = frame.f_code.co_code[frame.f_lasti]
        elif event == "return":
            self._last.pop(frame, None)
        if (event == "call" or (event == "opcode" and last in AFTER)) and self._where(frame):
            if not self._left:
                if self._left_then is not None:
                    sys.setprofile(self._profile)  # who raises is not asked to trace any more
                self._raise()
            self._left -= 1
        return self._trace

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        assert self._left_then is not None
        is_generator = frame.f_code.co_flags & inspect.CO_GENERATOR  # going on, or being closed
        if event in ("call", "c_return") and not is_generator and self._where(frame):
            if not self._left_then:
                self._raise()
            self._left_then -= 1

    def _raise(self) -> NoReturn:
        self.raised += 1
        raise Interrupted


def interrupted_everywhere(call: Callable[[], Any]) -> Iterator[bool]:
    """Call it again and again, each time interrupted at the next point, until it comes to its end
    before that; each time say if it did so. Whoever iterates looks what is left behind."""
    for point in count():
        interrupter = Interrupter(point)
        yield interrupter.run(call)
        if not interrupter.raised:
            return


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """In a function that the collector calls, Python ignores an exception: it would be lost."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
