"""Lengths of time as people write them: 5s, 90m, 12h, 30d."""

from __future__ import annotations

import re

import click

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Duration(click.ParamType[float]):
    """Seconds, from a number and a unit."""

    name = "duration"

    def __init__(self, *, may_be_zero: bool = False) -> None:
        self._may_be_zero = may_be_zero

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|[smhd])", str(value))
        if found is None or not (float(found[1]) or self._may_be_zero):
            self.fail(f"{value!r} is no length of time: write 5s, 90m, 12h or 30d", param, ctx)
        return float(found[1]) * _UNITS[found[2]]
