"""Axes: ticks at round numbers, places in per cent, and figures as people read them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_STEPS = (1.0, 2.0, 5.0, 10.0)
_UNITS = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"))


@dataclass(frozen=True, slots=True)
class Axis:
    """Values from `low` to `high`, as places from 0 to 100 along an axis."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    is_log: bool = False

    def place(self, value: float) -> float:
        """In per cent of the axis; what lies beyond is put at its end."""
        low, high = self.low, self.high
        if self.is_log:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, low))
        return round(100 * min(1.0, max(0.0, (value - low) / (high - low))), 2)


def round_up(value: float) -> float:
    """The next of … 0.1, 0.2, 0.5, 1, 2, 5, 10 …"""
    power = 10.0 ** math.floor(math.log10(value))
    step = next(step for step in _STEPS if step * power >= value * (1 - 1e-9))
    # Division keeps the small ones exact: 2 / 10, not 2 * 0.1.
    return step * power if power >= 1 else step / round(1 / power)


def linear(high: float, say: Callable[[float], str], ticks: int = 4) -> Axis:
    """From 0 to the first round number that is not below `high`."""
    step = round_up(max(high, 1e-9) / ticks)
    count = max(1, math.ceil(high / step - 1e-9))
    places = [at * step for at in range(count + 1)]
    return Axis(0.0, places[-1], tuple((place, say(place)) for place in places))


def logarithmic(values: Iterable[float], say: Callable[[float], str], decades: int = 2) -> Axis:
    """Whole decades around these values; ticks at 1, 10, 100, and up to so many also at 2 and 5."""
    above = [value for value in values if value > 0] or [1.0]
    first = math.floor(math.log10(min(above)) + 1e-9)
    last = max(first + 1, math.ceil(math.log10(max(above)) - 1e-9))
    factors = (1.0, 2.0, 5.0) if last - first <= decades else (1.0,)
    places = [factor * 10.0**at for at in range(first, last) for factor in factors]
    places.append(10.0**last)
    return Axis(places[0], places[-1], tuple((place, say(place)) for place in places), is_log=True)


def time_axis(span_s: float, ticks: int = 8) -> Axis:
    """From 0 to the end of the run, in one unit."""
    size, unit = next((at for at in _UNITS if span_s >= 2 * at[0]), _UNITS[-1])
    step = round_up(span_s / size / ticks)
    count = math.floor(span_s / size / step + 1e-9)
    marks = tuple((at * step * size, f"{plain(at * step)} {unit}") for at in range(count + 1))
    return Axis(0.0, span_s, marks)


def plain(value: float) -> str:
    """Three figures, without an exponent or trailing zeros; thousands apart."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    shown = f"{value:,.{digits}f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def short(value: float) -> str:
    """1,200,000 as 1.2 M."""
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return plain(value / size) + letter
    return plain(value)


def milliseconds(value: float) -> str:
    if value >= 1000:
        return f"{plain(value / 1000)} s"
    return f"{plain(value)} ms" if value >= 0.1 or value == 0 else f"{plain(value * 1000)} µs"


def seconds(value: float) -> str:
    """A time on the page's clock, to a thousandth."""
    return f"{value:,.3f} s"


def per_cent(share: float) -> str:
    return f"{100 * share:.0f} %"
