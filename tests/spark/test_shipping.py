"""What tasks need of ringcast, and what a session without a SparkContext is told."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from pyspark.errors import PySparkAttributeError

import ringcast
from ringcast.errors import UsageError
from ringcast.spark.audit import audit
from ringcast.spark.fleet import Fleet, tasks_for
from ringcast.spark.tables import Warehouse, build

if TYPE_CHECKING:
    from cluster_traces import Traces

SOURCE = Path(ringcast.__file__).parent
TASK = """
import json, sys
import ringcast.spark.stream, ringcast.spark.stream_sink, ringcast.trace.staging
files = {name: module.__file__ or "" for name, module in sys.modules.items()
         if hasattr(module, "__file__") and "." not in name}
print(json.dumps([ringcast.__file__, sorted(files)]))
"""


class Remote:
    """A session of Spark Connect, as far as it lacks what others have."""

    def __getattr__(self, name: str) -> NoReturn:
        raise PySparkAttributeError(
            errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": name}
        )


def test_a_zip_is_enough_for_tasks(tmp_path: Path) -> None:
    """As `--py-files` hands it to executors; beside it they need xxhash, and no cryptography."""
    shipped = tmp_path / "ringcast.zip"
    with zipfile.ZipFile(shipped, "w") as archive:
        for path in SOURCE.rglob("*.py"):
            archive.write(path, Path("ringcast", path.relative_to(SOURCE)))
    program = f"import sys; sys.path.insert(0, {str(shipped)!r})\n{TASK}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    place, loaded = json.loads(done.stdout)
    assert place.startswith(str(shipped))
    assert "xxhash" in loaded
    assert {"cryptography", "click"}.isdisjoint(loaded)


def test_a_session_without_a_context_is_told_so(traces: Traces, tmp_path: Path) -> None:
    recorded = tmp_path / "traces"
    traces.write(recorded)
    spark: Any = Remote()
    for work in (
        lambda: audit(spark, recorded),
        lambda: build(spark, recorded, Warehouse(tmp_path / "warehouse")),
        lambda: tasks_for(spark, Fleet(seeds=range(1), protocol="multicast")),
    ):
        with pytest.raises(UsageError, match="needs a SparkContext, and Spark Connect has none"):
            work()
