"""What protocols without one of their rules are made of."""

from __future__ import annotations

from typing import Any, NamedTuple

from ringcast.protocols.views.reading import Reading
from ringcast.protocols.views.streams import ViewStreams


def broken(base: type, **parts: object) -> type:
    """A class with these attributes in place of its own."""
    return type(f"Broken{base.__name__}", (base,), parts)


def reading_ahead(self: ViewStreams, *shared: Any) -> None:
    """To be attached so: a view is shown before what came in the last one is read."""
    ViewStreams.attach(self, *shared)
    self.reading = broken(Reading, is_due=property(lambda self: bool(self.unread)))()


def nothing(*_: object) -> None:
    """What this method does is taken away."""


def always(*_: object) -> bool:
    return True


class Ablation(NamedTuple):
    parts: dict[str, Any]
    """What is explored in place of a scenario's own."""
    scenario: Any
    """Where the rule is missed."""
    finding: str = ""
    """What is found there, where that is always the same."""


def without(place: str, base: type, scenario: Any, finding: str = "", **parts: object) -> Ablation:
    """In this scenario, a class with these parts instead of its own, at this place."""
    return Ablation({place: broken(base, **parts)}, scenario, finding)
