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
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return step

    before = sys.gettrace()
    sys.settrace(step)
    try:
        act()
    finally:
        sys.settrace(before)
    return count
