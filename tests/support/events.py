"""All events that a row may tell of."""

from __future__ import annotations

from ringcast.trace import rows

EVENTS = tuple(
    value
    for name, value in vars(rows).items()
    if name.isupper() and isinstance(value, str) and name != "ASIDE"
)
