"""What befalls datagrams of `ringcast.testing`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

    from ringcast.sim.world import Flight

LOST, COPIED, LATE, COPY_LATE = range(4)
"""Which draw of a flight is for what."""


class Jitter:
    """Half of the mean delay at the least, and one and a half of it at the most; so datagrams
    overtake each other. It draws for the others."""

    def __init__(self, mean_ns: float, least_ns: int) -> None:
        self._mean = mean_ns
        self._least = least_ns

    def apply(self, flight: Flight, dice: Random) -> list[Flight]:
        flight.base = flight.due
        flight.draws = self.draw(dice)
        flight.due += self.delay(flight.draws[LATE])
        flight.keeps_order = False
        return [flight]

    def draw(self, dice: Random) -> tuple[float, ...]:
        return tuple(dice.random() for _ in range(4))

    def delay(self, draw: float) -> int:
        return max(self._least, round(self._mean * (0.5 + draw)))


class RandomLoss:
    """Each is lost with the same probability."""

    def __init__(self, share: float) -> None:
        self._share = share

    def apply(self, flight: Flight, dice: Random) -> list[Flight]:
        return [] if flight.draws[LOST] < self._share else [flight]


class Copies:
    """Some arrive twice."""

    def __init__(self, share: float, jitter: Jitter) -> None:
        self._share = share
        self._jitter = jitter

    def apply(self, flight: Flight, dice: Random) -> list[Flight]:
        if flight.draws[COPIED] >= self._share:
            return [flight]
        due = flight.base + self._jitter.delay(flight.draws[COPY_LATE])
        return [flight, replace(flight, due=due)]
