"""The first audit of a process: what a command takes, from its start to the verdicts.

Run as a program with a directory of traces, and what Spark is configured with as JSON: it prints
the CPU seconds of each part as JSON, and of an audit once all that is done.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

MASTER = "local[2]"


def measure_cold(directory: Path, conf: Mapping[str, str]) -> dict[str, Any]:
    """In a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", __name__, directory, json.dumps(conf)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _measure(directory: str, conf: Mapping[str, str]) -> dict[str, float]:
    started = time.perf_counter()
    from benchmarks.usage import cpu_s
    from ringcast.spark.audit import audit
    from ringcast.spark.session import context, start_gateway

    found: dict[str, float] = {}

    def note(name: str, work: Callable[[], Any]) -> Any:
        before = cpu_s()
        result = work()
        found[name] = round(cpu_s() - before, 2)
        return result

    found["imports_cpu_s"] = round(cpu_s(), 2)
    note("jvm_cpu_s", lambda: start_gateway(MASTER, conf))
    spark = note("spark_cpu_s", lambda: context("ringcast bench audit", MASTER, conf))
    note("first_task_cpu_s", lambda: spark.parallelize([0, 1], 2).map(abs).collect())
    note("first_audit_cpu_s", lambda: audit(spark, directory))
    found["cold_cpu_s"] = round(cpu_s(), 2)
    found["cold_s"] = round(time.perf_counter() - started, 2)
    note("next_audit_cpu_s", lambda: audit(spark, directory))
    spark.stop()
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_measure(sys.argv[1], json.loads(sys.argv[2]))))
