"""Dice: the draws of one seed. The same on every machine, and for ever."""

from __future__ import annotations

from math import exp, log
from random import Random


class Dice(Random):
    """A generator with the draws that options need."""

    def log_uniform(self, low: float, high: float) -> float:
        """As likely between 1 and 2 as between 10 and 20."""
        return round(exp(self.uniform(log(low), log(high))), 3)

    def between(self, low: float, high: float) -> float:
        return round(self.uniform(low, high), 3)

    def side(self, nodes: int) -> tuple[int, ...]:
        """Some of the nodes, and not all."""
        return tuple(sorted(self.sample(range(nodes), self.randint(1, nodes - 1))))
