"""How much work something takes, whatever the machine: bytecodes of Python that are executed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


def steps(act: Callable[[], object]) -> int:
    """How many bytecodes this executes, in all that it calls."""
    count = 0

    def step(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace, frame.f_trace_opcodes = step, True  # in this order, from 3.13 on
        count += event == "opcode"
        return step

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # 3.12 asks whether any frame wants them, just once
    sys.settrace(step)
    try:
        act()
    finally:
        sys.settrace(before)
    return count
