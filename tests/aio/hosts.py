"""Hosts of their own for a test's processes: a network of the benchmarks, or the test is skipped.

For tests that are `@in_own_network`.
"""

from __future__ import annotations

from namespace import give_up

from benchmarks.network import Network
from ringcast.errors import UsageError


class Hosts(Network):
    """So many, until the block ends."""

    def __init__(self, count: int) -> None:
        super().__init__(count, 1500)

    def __enter__(self) -> Hosts:
        try:
            super().__enter__()
        except UsageError as error:
            give_up(str(error))
        return self
