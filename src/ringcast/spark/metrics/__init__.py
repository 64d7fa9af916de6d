"""How a run went, in figures: functions from a DataFrame of trace rows to a small DataFrame.

`read_rows` gives the rows of segments; every other function takes them and aggregates, so that they
go together in a notebook as well as in the report. A member is called by its key, name#incarnation.
`at_ns` is the wall clock at which a window of time begins; in simulations it is virtual.

Level "deliveries" shows throughput, latency, views and members. The others are read off frames and
windows: of members that did not record at level "full" they have no rows, and `members` says who.
"""

from ringcast.spark.metrics.columns import CLOCKS, clocks, read_rows, steady
from ringcast.spark.metrics.frames import (
    CONTROL_COST,
    RETRANSMISSIONS,
    control_cost,
    retransmissions,
)
from ringcast.spark.metrics.lives import (
    INCIDENTS,
    MEMBERS,
    SUSPICIONS,
    VIEWS,
    incidents,
    members,
    suspicions,
    views,
)
from ringcast.spark.metrics.messages import (
    LATENCY,
    NO_COMMON_CLOCK,
    PAIR,
    SAMPLES,
    THROUGHPUT,
    latency,
    latency_samples,
    throughput,
)
from ringcast.spark.metrics.occupancy import OCCUPANCY, window_occupancy

__all__ = [
    "CLOCKS",
    "CONTROL_COST",
    "INCIDENTS",
    "LATENCY",
    "MEMBERS",
    "NO_COMMON_CLOCK",
    "OCCUPANCY",
    "PAIR",
    "RETRANSMISSIONS",
    "SAMPLES",
    "SUSPICIONS",
    "THROUGHPUT",
    "VIEWS",
    "clocks",
    "control_cost",
    "incidents",
    "latency",
    "latency_samples",
    "members",
    "read_rows",
    "retransmissions",
    "steady",
    "suspicions",
    "throughput",
    "views",
    "window_occupancy",
]
