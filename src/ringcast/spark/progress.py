"""How far Spark is, told while it works."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

_POLL_S = 3.0


@contextmanager
def watched(spark: SparkSession, tell: Callable[[int, int], None]) -> Iterator[None]:
    """Call `tell` with the tasks done and all tasks of what runs, when that has changed."""
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(spark, tell, over), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(spark: SparkSession, tell: Callable[[int, int], None], over: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    told = (0, 0)
    while not over.wait(_POLL_S):
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        running = [stage for stage in stages if stage is not None]
        now = sum(s.numCompletedTasks for s in running), sum(s.numTasks for s in running)
        if now[0] and now != told:
            tell(*now)
            told = now
