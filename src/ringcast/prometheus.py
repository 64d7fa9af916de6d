"""A member's figures in a registry of `prometheus_client`, beside those of the application.

    REGISTRY.register(Collector(group))

They are those of `join(..., metrics=…)`, without an address of their own. Needs `pip install
prometheus-client`.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TookTooLong
from typing import TYPE_CHECKING, Any, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ringcast import blocking
from ringcast.aio.answers import answer
from ringcast.aio.prometheus import METRICS, samples_of
from ringcast.errors import GroupClosed, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringcast.aio.group import Group

    Answer: TypeAlias = dict[str, Any]

WAIT_S = 5.0
"""How long a scrape waits for an event loop that is busy."""

__all__ = ["Collector"]


class Collector:
    """For one registry. It has all groups of this process whose figures are wanted there, asyncio's
    or `ringcast.blocking`'s; a group that is left has none. Any thread may collect."""

    def __init__(self, *groups: Group | blocking.Group) -> None:
        self._asking = [_asking(group) for group in groups]

    def describe(self) -> list[Metric]:
        """Nothing: a registry would collect to find out, before anybody asks."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The figures as they are now, by name."""
        found: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for ask in self._asking:
            told = ask()
            for name, labels, value in () if told is None else samples_of(told):
                if name not in found:
                    kind, meaning = METRICS[name]
                    family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
                    found[name] = family(f"ringcast_{name}", meaning, labels=list(labels))
                found[name].add_metric(list(labels.values()), value)
        yield from found.values()


def _asking(group: Group | blocking.Group) -> Callable[[], Answer | None]:
    """What asks this group, in whatever thread; None: it is closed, or too busy."""
    if isinstance(group, blocking.Group):
        loop, inner = group._engine.loop, group._group
    else:
        loop, inner = asyncio._get_running_loop(), group
    if loop is None:
        raise UsageError("make the Collector of an asyncio group where its event loop runs")

    def ask() -> Answer:
        if asyncio._get_running_loop() is loop:
            return _answer(inner)
        asked: Future[Answer] = Future()

        def reply() -> None:
            try:
                asked.set_result(_answer(inner))
            except Exception as error:
                asked.set_exception(error)

        loop.call_soon_threadsafe(reply)
        return asked.result(WAIT_S)

    return lambda: _told(ask)


def _answer(group: Group) -> Answer:
    if group._presence.closed is not None:
        raise GroupClosed(group._presence.closed.reason)
    return answer({"ask": "top"}, group, group._driver)


def _told(ask: Callable[[], Answer]) -> Answer | None:
    try:
        return ask()
    except (GroupClosed, TookTooLong, RuntimeError):  # asyncio's word for a loop that is closed
        return None
