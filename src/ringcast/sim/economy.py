"""What uniform delivery costs where nothing goes wrong: control frames, counted, not timed."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from ringcast.model import Stream
from ringcast.sim.cluster import Cluster
from ringcast.sim.options import Options
from ringcast.trace.rows import DELIVER, SEND, TX

NODES = 4
RUN_MESSAGES = 50
RUNS = 40


class Economy(NamedTuple):
    """One run without faults, in which all members send runs of uniform messages."""

    messages: int
    deliveries: int
    frames: Counter[str]
    """Control frames of the uniform stream by kind; one to the group counts once per receiver."""

    @property
    def per_message(self) -> float:
        """Control frames for each message at each member."""
        return sum(self.frames.values()) / (self.messages * NODES)

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.frames.items()))
        return (
            f"{self.per_message:.3f} control frames per uniform message and member without faults, "
            f"in runs of {RUN_MESSAGES}: {kinds} for {self.messages} messages"
        )


def measure() -> Economy:
    """Run it. The same figures every time."""
    options = Options(
        seed=0,
        protocol="uniform",
        nodes=NODES,
        initial=NODES,
        capacities=(1024,) * NODES,
        tau_ms=(100.0,) * NODES,
        window_bytes=4 << 20,
        datagram_bytes=60_000,
        senders=tuple(range(NODES)),
        uniform=1.0,
        # Each spell is one run.
        messages=RUN_MESSAGES * RUNS - 1,
        spells=RUNS,
        burst=RUN_MESSAGES,
        late_messages=0,
        delay_ms=0.2,
        delta_ms=0.2,
        warm_ms=1000.0,
        safety_ms=1000.0,
    )
    cluster = Cluster(options)
    cluster.run()
    messages = deliveries = 0
    frames: Counter[str] = Counter()
    for row in cluster.recorder.rows:
        if row.stream != Stream.UNIFORM:
            continue
        if row.event == SEND:
            messages += row.seqno2 - row.seqno + 1
        elif row.event == DELIVER:
            deliveries += row.seqno2 - row.seqno + 1
        elif row.event == TX and row.kind != "data":
            frames[row.kind] += 1 if row.peer else NODES - 1
    return Economy(messages, deliveries, frames)
