"""A follower of the audit that kills itself, and its JVM, where it is told to: -9.

    killed_follower.py DIRECTORY POINT TIMES

dies when it comes to the point for so many times. Points are the moments between which a batch
leaves something on disk.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringcast.spark import follow as following
from ringcast.spark import kept
from ringcast.spark.session import session

if TYPE_CHECKING:
    from collections.abc import Callable

FILES_PER_BATCH = 4


def main(directory: Path, point: str, times: int) -> None:
    left = times

    def come_to(reached: str) -> None:
        nonlocal left
        left -= reached == point
        if left == 0:
            os.killpg(0, signal.SIGKILL)

    def after(work: Callable[..., Any], reached: str) -> Callable[..., Any]:
        @wraps(work)
        def done(*args: Any) -> Any:
            result = work(*args)
            come_to(reached)
            return result

        return done

    def before(work: Callable[..., Any], reached: str, suffix: str) -> Callable[..., Any]:
        def begun(path: Path, *args: Any, **options: Any) -> Any:
            if path.name.endswith(suffix):
                come_to(reached)
            return work(path, *args, **options)

        return begun

    kept.FILES_MAX = 1
    following.summarize_files = after(following.summarize_files, "read")
    kept.write_whole = after(kept.write_whole, "kept")
    following.audit_states = after(following.audit_states, "judged")
    Path.replace = before(Path.replace, "staged", ".staged")  # type: ignore[method-assign]
    Path.unlink = before(Path.unlink, "put together", ".jsonl")  # type: ignore[method-assign]
    spark = session("a follower to be killed", "local[2]")
    for _ in following.follow(spark, directory, every_s=None, files_per_batch=FILES_PER_BATCH):
        pass


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
