"""A build of tables that kills itself, and its JVM, just before its day would count: -9.

killed_build.py TRACES WAREHOUSE
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from ringcast.spark.session import session
from ringcast.spark.tables import Warehouse, build


class Doomed(Warehouse):
    def commit(self, partitions: object) -> None:
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    spark = session("a build to be killed", "local[2]")
    build(spark, Path(sys.argv[1]), Doomed(Path(sys.argv[2])))
