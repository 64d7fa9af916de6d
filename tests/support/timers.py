"""Timers that are due at once, in an order that a test chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringcast.core.shared import Timers

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


def reorder_due(monkeypatch: pytest.MonkeyPatch, order: Callable[[list[Any]], list[Any]]) -> None:
    """Every table of timers gives those that are due in the order that `order` makes of them."""
    earliest_first = Timers.due

    def due(timers: Timers[Any], now: int) -> list[Any]:
        return order(earliest_first(timers, now))

    monkeypatch.setattr(Timers, "due", due)


def first_due(machine: Any) -> int | None:
    """When the first timer is due that this machine has armed itself."""
    return min(machine._timers.by_key.values(), default=None)
