"""Which event loop our own commands run on: uvloop where it is installed, asyncio's otherwise."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def loop_name() -> str:
    return "uvloop" if importlib.util.find_spec("uvloop") else "asyncio"


def run(main: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if loop_name() == "uvloop":
        factory = importlib.import_module("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)
