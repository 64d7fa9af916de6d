"""Is a recorded history linearizable: could each call have happened at once, between its beginning
and its end, so that all results are right? The search of Wing and Gong, with a memo (Lowe): calls
that are done, and the state they lead to, are not looked at twice.

A call that has not returned may have happened at any time since it began, or never. The order in
which calls ended is tried first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

STEPS_MAX = 1_000_000

Model: TypeAlias = Callable[[Any, tuple[Any, ...]], tuple[Any, Any]]
"""From a state and what is called to the result and the state behind it."""


@dataclass(slots=True)
class Call:
    what: tuple[Any, ...]
    begun: float
    ended: float = inf
    result: Any = None
    place: tuple[int, ...] = ()
    """Where in the order of views it had ended."""


class TooLong(Exception):
    """No answer within STEPS_MAX: take a shorter history."""


def is_linearizable(calls: Iterable[Call], model: Model, state: Hashable) -> bool:
    """A place on the way: how many of the calls that have ended are done from the first on, which
    of those behind them, and which of those that never ended."""
    matter = [call for call in calls if call.ended < inf or call.what[0] != "get"]
    history = sorted(matter, key=lambda call: call.begun)
    ended = [call for call in history if call.ended < inf]
    never = [call for call in history if call.ended == inf]
    start = (0, 0, 0, state)
    seen, paths = {start}, [start]
    while paths:
        first, behind, others, state = paths.pop()
        if first == len(ended):
            return True
        possible: list[tuple[float, int]] = []
        first_end, at = inf, first
        while at < len(ended) and ended[at].begun <= first_end:  # none had ended before
            if not behind >> at - first & 1:
                first_end = min(first_end, ended[at].ended)
                possible.append((-ended[at].ended, at))
            at += 1
        for at, call in enumerate(never):  # tried last: mostly others happened
            if not others >> at & 1 and call.begun <= first_end:
                _, after = model(state, call.what)
                if after != state:  # else it may as well never have happened
                    _note((first, behind, others | 1 << at, after), seen, paths)
        for _, at in sorted(possible):
            result, after = model(state, ended[at].what)
            if result == ended[at].result:
                through, done = first, behind | 1 << at - first
                while done & 1:
                    through, done = through + 1, done >> 1
                _note((through, done, others, after), seen, paths)
        if len(seen) > STEPS_MAX:
            raise TooLong(f"{len(history)} calls")
    return False


def _note(place: Any, seen: set[Any], paths: list[Any]) -> None:
    if place not in seen:
        seen.add(place)
        paths.append(place)


def dict_model(state: tuple[tuple[str, Any], ...], what: tuple[Any, ...]) -> tuple[Any, Any]:
    """State: its items, sorted."""
    items = dict(state)
    match what:
        case ("get", key):
            result: Any = items.get(key)
        case ("set", key, value):
            result, items[key] = None, value
        case ("delete", key):
            result = items.pop(key, None) is not None
        case ("compare_and_set", key, expected, value):
            result = items.get(key) == expected
            if result:
                items[key] = value
        case ("update", pairs):
            result = sum(key in items for key, _ in pairs)
            items.update(pairs)
        case _:
            raise AssertionError(what)
    return result, tuple(sorted(items.items()))


def counter_model(state: int, what: tuple[Any, ...]) -> tuple[Any, Any]:
    match what:
        case ("add", number):
            return state + number, state + number
        case ("get",):
            return state, state
    raise AssertionError(what)


def lock_model(state: tuple[str, Any], what: tuple[Any, ...]) -> tuple[Any, Any]:
    """State: the holder and the greatest token. An acquisition has its token with it, because the
    order decides it; it does not happen while there is a holder."""
    holder, greatest = state
    match what:
        case ("acquire", who, token):
            is_right = not holder and (greatest is None or token > greatest)
            return is_right, ((who, token) if is_right else state)
        case ("release", who):
            return holder == who, (("" if holder == who else holder), greatest)
    raise AssertionError(what)
