"""Checks of what a caller gives. Each raises ConfigError: which field, and what it may be."""

from __future__ import annotations

from collections.abc import Callable

from ringcast.errors import ConfigError, UsageError
from ringcast.model import Address

NAME_BYTES_MAX = 64
"""Names stand in every datagram and in every log line; longer ones help nobody."""


def check_name(field_name: str, value: str, *, empty_allowed: bool = False) -> None:
    """Raise ConfigError unless the value may stand in datagrams, logs and file listings."""
    allowed = f"1 to {NAME_BYTES_MAX} bytes of printable text"
    if not isinstance(value, str):
        raise ConfigError(field_name, value, allowed)
    if not value and empty_allowed:
        return
    if not value or not value.isprintable() or "\ufffd" in value:
        raise ConfigError(field_name, value, allowed)
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ConfigError(field_name, value, allowed) from None
    if size > NAME_BYTES_MAX:
        raise ConfigError(field_name, value[:20] + "…", f"{allowed}; this has {size}")


def check_whole(field_name: str, value: object, low: int, high: int) -> None:
    """Raise ConfigError unless the value is a whole number in low..high."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(field_name, value, f"a whole number from {low} to {high}")


def check_seconds(field_name: str, value: object, low: float, high: float) -> None:
    """Raise ConfigError unless the value is a time in low..high seconds (NaN is not)."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(field_name, value, f"from {low:g} to {high:g} seconds")


def check_flag(field_name: str, value: object) -> None:
    """Raise ConfigError unless the value is a truth value."""
    if not isinstance(value, bool):
        raise ConfigError(field_name, value, "True or False")


def check_function(field_name: str, value: object) -> None:
    """Raise ConfigError unless the value can be called."""
    if not callable(value):
        raise ConfigError(field_name, value, "a function")


def check_address(
    field_name: str, value: object, parse: Callable[[str], Address] = Address.parse
) -> None:
    """Raise ConfigError unless the value is an address; which ones may be used is for `join`."""
    try:
        parse(value if isinstance(value, str) else "")
    except UsageError:
        raise ConfigError(field_name, value, "host:port, such as 127.0.0.1:7800") from None
