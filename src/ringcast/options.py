"""How a setting is declared: once, where it stands (config.py; arguments.py for what only `join`
takes), with its default, what it may be, and the help of its option if commands have one:

    listen: str = setting("127.0.0.1:0", ADDRESS, "Address to use.")

What files, the environment and the command line may say follows from that; and with the docstring
below it the table in docs/howto/configure.md.
"""

from __future__ import annotations

from dataclasses import Field, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

from ringcast.checks import (
    check_address,
    check_flag,
    check_function,
    check_name,
    check_seconds,
    check_whole,
)
from ringcast.errors import ConfigError
from ringcast.model import Address

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Bound: TypeAlias = float | Callable[[Any], float]
    """What it is, or what follows from the other settings."""


class Kind(NamedTuple):
    """What a setting may be."""

    check: Callable[[str, Any, Any], None]
    """Takes its name, the value, and all settings; raises ConfigError."""
    word: Literal["flag", "list", "number", "section", "text"] = "text"
    """How it is written where all is text; a section has settings of its own."""
    metavar: str | None = None
    type: Any = None
    """What an option holds: int, float, Path, or one of some words."""
    is_bounded: bool = False
    """By other settings: those are checked first."""


def setting(default: Any, kind: Kind | None = None, help: str = "", **more: Any) -> Any:
    """A field; without a kind nothing is checked here, without help no command has an option. It
    may be called there as `name` says."""
    return field(default=default, metadata={"kind": kind, "help": help, **more})


def internal(default: Any, kind: Kind | None = None) -> Any:
    """A field that is none of the settings."""
    return setting(default, kind, internal=True)


def section(kind: type[Any]) -> Any:
    """A field that has settings of its own."""
    return field(default_factory=kind, metadata={"kind": instance(kind)})


def check_all(declared: Mapping[str, Field[Any]], values: Any) -> None:
    """Raise ConfigError unless these attributes are what they may be. None is allowed where it is
    the default."""
    kinds = [(name, one.metadata.get("kind"), one.default) for name, one in declared.items()]
    for is_late in (False, True):
        for name, kind, default in kinds:
            value = getattr(values, name)
            if kind and kind.is_bounded is is_late and not (value is default is None):
                kind.check(name, value, values)


def _is(check: Callable[[str, Any], None], *more: Any) -> Kind:
    return Kind(lambda name, value, _: check(name, value), *more)


def _bounded(
    check: Callable[[str, object, Any, Any], None],
    type: Any,
    metavar: str,
    low: Bound,
    high: Bound,
    *,
    or_zero: bool = False,
) -> Kind:
    def check_bounded(name: str, value: object, settings: Any) -> None:
        if not (or_zero and value == 0):
            at = (bound(settings) if callable(bound) else bound for bound in (low, high))
            check(name, value, *at)

    return Kind(check_bounded, "number", metavar, type, callable(low) or callable(high))


whole = partial(_bounded, check_whole, int, "N")
size = partial(_bounded, check_whole, int, "BYTES")
seconds = partial(_bounded, check_seconds, float, "SECONDS")


def path(allowed: str, metavar: str, *, is_secret: bool = False) -> Kind:
    """`is_secret`: what is no path may be what nobody is to see."""

    def check(name: str, value: object) -> None:
        if not isinstance(value, str | Path):
            raise ConfigError(name, type(value).__name__ if is_secret else value, allowed)

    return _is(check, "text", metavar, Path)


def one_of(words: Any) -> Kind:
    """The words of a Literal."""
    *others, last = map(repr, get_args(words))
    allowed = f"{', '.join(others)} or {last}"

    def check(name: str, value: object) -> None:
        if value not in get_args(words):
            raise ConfigError(name, value, allowed)

    return _is(check, "text", None, get_args(words))


def instance(kind: type[Any], allowed: str = "") -> Kind:
    def check(name: str, value: object) -> None:
        if not isinstance(value, kind):
            raise ConfigError(name, value, allowed or f"a {kind.__name__}")

    return _is(check, "section")


def _check_places(name: str, value: Any) -> None:
    if not isinstance(value, list | tuple):
        raise ConfigError(name, value, "a list of addresses: ['127.0.0.1:7800']")
    for each in value:
        check_address(name, each, Address.parse_place)


FLAG = _is(check_flag, "flag", None, bool)
NAME = _is(check_name)
LABEL = _is(partial(check_name, empty_allowed=True))
ADDRESS = _is(check_address, "text", "HOST:PORT")
PLACES = _is(_check_places, "list", "HOST:PORT")
FUNCTION = _is(check_function)
