"""Runs: options in, verdicts out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ringcast.node import Node
from ringcast.sim.cluster import Cluster
from ringcast.sim.options import expand

if TYPE_CHECKING:
    from ringcast.sim.cluster import NodeFactory
    from ringcast.sim.options import Options
    from ringcast.trace.rows import Trace
