"""Datagrams and bytes of a view change in groups of many members, counted in virtual time.

.venv/bin/python tools/view_changes.py 10 100 500
"""

from __future__ import annotations

import sys

from ringcast.sim.change_cost import measure

COUNTS = (10, 100)


def main() -> None:
    for count in map(int, sys.argv[1:] or COUNTS):
        for cost in measure(count):
            print(cost, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
