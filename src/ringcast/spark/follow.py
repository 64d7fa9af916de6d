"""The audit of a run while it goes on: segments are read as they come, and judged again after each
batch.

A batch's segments are read by tasks and their summaries kept (`ringcast.spark.kept`); then all that
is kept is judged, by the code that judges a directory at once. So both say the same of the same
files, whatever order these came in and wherever the follower was killed.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from ringcast.errors import UsageError
from ringcast.spark.audit import audit_states
from ringcast.spark.kept import KeptDigests
from ringcast.spark.states import parse_states, summarize_files
from ringcast.trace.segments import SUFFIX, segment_paths

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ringcast.spark.reading import Workers
    from ringcast.spark.report import Report
    from ringcast.spark.states import Read

STATE = ".audit"
"""Where the state is, below the segments, if nothing else is said. No reader takes it for one."""
FILES_PER_BATCH = 1000


class Step(NamedTuple):
    """What one batch brought, and what is to be said of the run since."""

    batch: int
    """-1: there was nothing new."""
    new: int
    """Segments read."""
    segments: int
    """Segments known."""
    report: Report


def follow(
    spark: Workers,
    directory: Path,
    *,
    state: Path | None = None,
    run_id: str | None = None,
    every_s: float | None = 5.0,
    files_per_batch: int = FILES_PER_BATCH,
    stop: threading.Event | None = None,
) -> Iterator[Step]:
    """Judge the run whose segments are, and will be, under the directory; a step for each batch.

    Looks for new segments `every_s` until `stop` is set; None: takes what is there, and ends. What
    was done is remembered in `state`, and not done again.
    """
    directory = directory.resolve()
    stop = stop or threading.Event()
    with KeptDigests.opened(state or directory / STATE, directory, summarize_files) as kept:
        is_judged = False
        while not stop.is_set():
            due = kept.due(segment_paths(directory))
            for start in range(0, len(due), files_per_batch):
                paths = due[start : start + files_per_batch]
                batch = _keep(spark, kept, paths)
                if run_id is None or _has(kept, run_id):
                    yield _judge(spark, directory, kept, run_id, batch, len(paths))
                    is_judged = True
                if stop.is_set():
                    return
            if every_s is None:
                break
            stop.wait(every_s)
        if every_s is None and not is_judged:
            yield _judge(spark, directory, kept, run_id, -1, 0)


def _keep(spark: Workers, kept: KeptDigests, paths: list[str]) -> int:
    try:
        return kept.read(spark, paths)
    except OSError as error:
        raise UsageError(f"what was read cannot be kept: {error}") from error


def _has(kept: KeptDigests, run_id: str) -> bool:
    """Whether anything of this run has come."""
    return any(state.info.run_id == run_id for state in _states(kept)[0])


def _judge(
    spark: Workers, directory: Path, kept: KeptDigests, run_id: str | None, batch: int, new: int
) -> Step:
    states, refused = _states(kept)
    if not states and not refused:
        raise UsageError(f"{directory}: no segments (*{SUFFIX}) in it")
    report = audit_states(spark, directory, states, refused, run_id)
    return Step(batch, new, len(states), report)


def _states(kept: KeptDigests) -> Read:
    return parse_states((each.path, each.said) for each in kept.current())
