"""The benchmarks of `ringcast bench`. They lie beside the source and are not installed with it."""

from __future__ import annotations

import os
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parent.parent)

# Processes that benchmarks start, Spark's workers among them, import this package too.
_paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
if _ROOT not in _paths:
    os.environ["PYTHONPATH"] = os.pathsep.join([_ROOT, *_paths])
