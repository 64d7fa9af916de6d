"""The facts of a run as JSON has them, in files beside its rows."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from ringcast.trace.rows import Facts

if TYPE_CHECKING:
    from collections.abc import Mapping


def facts_to_values(facts: Facts) -> dict[str, Any]:
    values = {item.name: getattr(facts, item.name) for item in fields(facts)}
    return {
        name: sorted(value) if isinstance(value, frozenset) else value
        for name, value in values.items()
    }


def facts_from_values(values: Mapping[str, Any]) -> Facts:
    """Unknown ones are ignored, missing ones keep their default."""
    picked: dict[str, Any] = {}
    for item in fields(Facts):
        if item.name in values:
            value = values[item.name]
            is_set = item.default is not MISSING and isinstance(item.default, frozenset)
            picked[item.name] = frozenset(value) if is_set else value
    return Facts(**picked)
