"""Seeded runs of unicast: connections drop, close and open again."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from ringcast.sim.plan import expand
from ringcast.sim.runner import run
from ringcast.trace import rows as trace

if TYPE_CHECKING:
    from ringcast.trace.rows import Row

SEEDS = 100


def happenings(rows: list[Row]) -> set[str]:
    found = set()
    epochs: dict[tuple[object, ...], int] = {}
    for row in rows:
        match row.event:
            case trace.UNICAST_DROP:
                found.add("drop")
            case trace.CONN if row.kind == "S":
                pair = (row.node, row.inc, row.peer, row.peer_inc)
                if row.epoch > epochs.setdefault(pair, row.epoch):
                    found.add("reopened")
            case trace.CONN if row.kind == "R" and row.detail == "OPEN>CLOSING":
                found.add("closing")
            case trace.SYNC if row.detail == "answered":
                found.add("sync")
            case trace.CRASH:
                found.add("crash")
            case trace.UNDELIVERABLE:
                found.add("given up")
    return found


@pytest.mark.proof
def test_the_runs_drop_close_and_reopen() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        result = run(expand(seed, "unicast"))
        assert result.failures == ()
        seen.update(happenings(result.trace.rows))
    print(dict(seen))  # noqa: T201
    assert seen["drop"] >= 0.10 * SEEDS
    assert seen["closing"] >= 0.20 * SEEDS
    assert seen["reopened"] >= 0.20 * SEEDS
    assert seen["sync"] >= 0.10 * SEEDS
    assert seen["crash"] >= 0.30 * SEEDS
    assert seen["given up"] >= 0.10 * SEEDS
