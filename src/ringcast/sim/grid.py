"""What may be set for all seeds alike, to see what depends on it: `capacity=16,1024`.

A seed's own draw of that one thing is replaced; everything else stays as the seed has it. Setting
how often a packet fault happens turns its class on, and setting it to 0 turns it off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any, NamedTuple, TypeAlias

from ringcast.errors import UsageError
from ringcast.sim.options import FAULT_OPTIONS, FAULTS, Options

Point: TypeAlias = "tuple[tuple[str, float], ...]"
"""One value for each name; empty: all as the seeds have it."""

POINTS_MAX = 1000


class Setting(NamedTuple):
    """What one name may be."""

    low: float
    high: float
    is_whole: bool = False


SHARES = {names[0]: fault for fault, names in FAULT_OPTIONS.items() if fault not in ("F2", "F22")}
"""How often a fault happens: the fault class."""
SETTINGS = {
    "capacity": Setting(1, 1 << 15, is_whole=True),
    "messages": Setting(1, 100_000, is_whole=True),
    "burst": Setting(1, 100_000, is_whole=True),
    **dict.fromkeys(SHARES, Setting(0, 0.9)),
}


def parse_setting(text: str) -> tuple[str, tuple[float, ...]]:
    """NAME=VALUE,VALUE; UsageError says what is wrong with it."""
    name, equals, values = text.partition("=")
    if name not in SETTINGS or not equals:
        raise UsageError(f"{text!r}: write NAME=VALUE; names are {', '.join(SETTINGS)}")
    found = tuple(_value(name, value) for value in values.split(","))
    if len(set(found)) < len(found):
        raise UsageError(f"{text!r}: a value stands there twice")
    return name, found


def grid_points(settings: Sequence[tuple[str, tuple[float, ...]]]) -> tuple[Point, ...]:
    """Every combination of the values; of nothing, the one in which nothing is set."""
    names = [name for name, _ in settings]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{name} is set twice: write {name}=VALUE,VALUE")
    count = prod(len(values) for _, values in settings)
    if count > POINTS_MAX:
        raise UsageError(f"a grid of {count} points; at most {POINTS_MAX} are allowed")
    return tuple(
        tuple(zip(names, values, strict=True)) for values in product(*(v for _, v in settings))
    )


def place(options: Options, point: Point) -> Options:
    """The same run at this point of the grid."""
    for name, value in point:
        setting = SETTINGS[name]
        if name == "capacity":
            changes: dict[str, Any] = {"capacities": (int(value),) * options.nodes}
        elif setting.is_whole:
            changes = {name: int(value)}
        else:
            others = {*options.faults} - {SHARES[name]}
            wanted = others | {SHARES[name]} if value else others
            changes = {name: value, "faults": tuple(f for f in FAULTS if f in wanted)}
        options = replace(options, **changes)
    return options


def point_words(point: Point) -> list[str]:
    """NAME=VALUE of each, as it is read again."""
    return [f"{name}={int(v) if v == int(v) else repr(v)}" for name, v in point]


def _value(name: str, text: str) -> float:
    setting = SETTINGS[name]
    kind = "a whole number" if setting.is_whole else "a number"
    refusal = UsageError(f"{name}={text}: {kind} from {setting.low:g} to {setting.high:g}")
    try:
        value = int(text) if setting.is_whole else float(text)
    except ValueError:
        raise refusal from None
    if not setting.low <= value <= setting.high:  # neither is what is not a number
        raise refusal
    return value
