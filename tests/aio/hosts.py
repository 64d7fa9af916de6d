"""Hosts of their own for a test's processes: a network of the benchmarks, or the test is skipped.

For tests that are `@in_own_network`.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from namespace import give_up

from benchmarks.network import Network, run_ip
from ringcast.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable


class Hosts(Network):
    """So many, until the block ends. Between two that are cut off, one way or both, all that is
    sent is lost in silence, but for what is sent to a multicast address."""

    def __init__(self, count: int) -> None:
        super().__init__(count, 1500)
        self._cuts: list[tuple[int, tuple[str, ...]]] = []

    def __enter__(self) -> Hosts:
        try:
            super().__enter__()
            for at in range(len(self.addresses)):
                with self.inside(at):
                    run_ip("rule", "add", "pref", "100", "lookup", "local")  # behind those of cuts
                    run_ip("rule", "del", "pref", "0")
        except (UsageError, subprocess.CalledProcessError) as error:
            self.__exit__()
            give_up(str(error))
        return self

    def cut(self, sources: Iterable[int], dests: Iterable[int]) -> None:
        """Nothing gets from any of these to any of those; the other way it does."""
        dests = list(dests)
        for source in sources:
            for dest in dests:
                self._cuts.append((dest, ("pref", "10", "from", self.addresses[source])))
                self._rule("add", *self._cuts[-1])

    def heal(self) -> None:
        """All cuts are over."""
        while self._cuts:
            self._rule("del", *self._cuts.pop())

    def _rule(self, change: str, dest: int, rule: tuple[str, ...]) -> None:
        with self.inside(dest):
            run_ip("rule", change, *rule, "blackhole")
