"""Hosts of their own for a test's processes, with links between any two that can be cut one way.

What a cut link drops is lost in silence, but not what is sent to a multicast address: `Neighbours`
can be cut off from that too. For tests that are `@in_own_network`; they are skipped where there is
no network to be had.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from namespace import give_up

from benchmarks.network import Network, run_ip
from ringcast.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable


class Hosts(Network):
    """So many, until the block ends."""

    def __init__(self, count: int) -> None:
        super().__init__(count, 1500)
        self._cuts: list[tuple[int, tuple[str, ...]]] = []

    def __enter__(self) -> Hosts:
        try:
            super().__enter__()
        except UsageError as error:
            give_up(str(error))
        for at in range(len(self.addresses)):
            with self.inside(at):  # what arrives is to meet the rules of cuts first
                run_ip("rule", "add", "pref", "100", "lookup", "local")
                run_ip("rule", "del", "pref", "0")
        return self

    def cut(self, sources: Iterable[int], dests: Iterable[int]) -> None:
        """Nothing gets from any of these to any of those; the other way it does."""
        dests = list(dests)
        for source in sources:
            for dest in dests:
                self._cuts.append((dest, ("pref", "10", "from", self.addresses[source])))
                self._rule("add", *self._cuts[-1])

    def heal(self) -> None:
        """All links are whole again."""
        while self._cuts:
            self._rule("del", *self._cuts.pop())

    def _rule(self, change: str, dest: int, rule: tuple[str, ...]) -> None:
        with self.inside(dest):
            run_ip("rule", change, *rule, "blackhole")


class Neighbours(Hosts):
    """Those that are cut hear none of the others that are, by the switch itself."""

    def cut(self, sources: Iterable[int], dests: Iterable[int]) -> None:
        """Nothing gets from any of these to any other, either way."""
        for at in {*sources, *dests}:
            self._isolate(at, "on")

    def heal(self) -> None:
        for at in range(len(self.addresses)):
            self._isolate(at, "off")

    def _isolate(self, at: int, how: str) -> None:
        run_ip("link", "set", "dev", f"port{at}", "type", "bridge_slave", "isolated", how)
