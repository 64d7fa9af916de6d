"""The parent of Spark's Python workers, which has imported what they need before it forks them.

Each core has a worker, and each would import pyarrow, numpy, pandas and ringcast for itself, which
takes a second. A worker that is forked behind that has them already.
"""

from __future__ import annotations

from pyspark.daemon import manager

import ringcast.spark.states  # noqa: F401
from ringcast.trace.columns import load_pandas

load_pandas()
if __name__ == "__main__":
    manager()
