"""ringcast bench peers: our workloads through other systems, each in turn with ours in one run.

pyzmq needs nothing else, nats and redis a server that is started here. A peer that is not installed
is named, with how to have it, and left out.
"""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.workload import Rounds, Row, Size, Workload, check, percentile, progress, take_turns
from ringcast.errors import RingcastError
from ringcast.sim.processes import Cluster, hear, tell

SERVER_S = 10.0
NOWHERE = subprocess.DEVNULL
WARM_UP = 200
SHAPES = {"1 → 2": (3, "1", False), "3 all": (3, "all", False), "1 → 1": (2, "1", True)}
"""Members, who sends, and whether to one."""

PYTHON = "make peers"
"""Where it installs to; a process looks there if its own environment has none."""
PLACE = Path(__file__).resolve().parents[2] / "build" / "peers"


class Peer(NamedTuple):
    module: str
    """Of Python that it needs."""
    server: str | None
    """Program that it needs."""
    has_batches: bool
    how: str
    """How to have it."""

    def missing(self) -> str | None:
        """What is not here."""
        if find_spec(self.module) is None:
            return f"no {self.module}"
        if self.server is not None and shutil.which(self.server) is None:
            return f"no {self.server}"
        return None


PEERS = {
    "pyzmq": Peer("zmq", None, True, PYTHON),
    "nats": Peer("nats", "nats-server", False, f"{PYTHON}, and apt-get install nats-server"),
    "redis": Peer("redis", "redis-server", True, f"{PYTHON}, and apt-get install redis-server"),
}


def bench_peers(
    *,
    peers: Sequence[str],
    sizes: Sequence[int],
    workloads: Sequence[str],
    seconds: float,
    runs: int,
    count: int,
) -> Iterator[Row]:
    """A row for each peer that is here, each workload, size and way of sending."""
    check("count", count, 1, 1_000_000)
    if PLACE.is_dir() and str(PLACE) not in sys.path:
        sys.path.append(str(PLACE))
        os.environ["PYTHONPATH"] = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(PLACE)])
    found = []
    for name in peers:
        if (missing := PEERS[name].missing()) is None:
            found.append(name)
        else:
            progress(f"{name} is left out: {missing}; have it by: {PEERS[name].how}")
    for shape in workloads if found else ():
        members, senders, is_unicast = SHAPES[shape]
        with ExitStack() as stack:
            clusters = _start(found, members, stack)
            for size, is_single in product(sizes, (True, False)):
                workload = Workload(
                    members=members,
                    senders=senders,
                    size=Size(size),
                    is_unicast=is_unicast,
                    is_single=is_single,
                    seconds=seconds,
                    runs=runs,
                )
                yield from _rates(workload, clusters)
            if is_unicast:
                for size in sizes:
                    yield from _round_trips(size, count, runs, clusters)


def _start(peers: Sequence[str], members: int, stack: ExitStack) -> dict[str, Cluster]:
    """A group of ours, and one of each peer."""
    clusters = {"ringcast": stack.enter_context(Cluster(members=members))}
    names = [f"m{at}" for at in range(members)]
    for peer in peers:
        progress(f"starting {members} of {peer}")
        cluster = Cluster(
            members=members,
            program=("benchmarks.peers.worker", peer),
            names=names,
            servers=stack.enter_context(SERVERS[peer](names)),
        )
        clusters[peer] = stack.enter_context(cluster)
        cluster.await_view()
    return clusters


def _rates(workload: Workload, clusters: dict[str, Cluster]) -> Iterator[Row]:
    way = "single" if workload.is_single else "batched"
    taking = [
        name
        for name in clusters
        if workload.is_single or name == "ringcast" or PEERS[name].has_batches
    ]
    if len(taking) == 1:
        return
    progress(f"measuring {workload.shape}, {workload.size} B, {way}")
    rounds = {name: Rounds(clusters[name], workload) for name in taking}
    take_turns([*rounds.values()], workload.runs)
    figures = {name: each.figures() for name, each in rounds.items()}
    for name in taking[1:]:
        if figures[name]["lost"]:
            raise RingcastError(f"{name} lost {figures[name]['lost']} messages: nothing to compare")
        rates = [figures[each]["rate_per_member"] for each in ("ringcast", name)]
        costs = [figures[each]["cpu_us_per_delivery"] for each in ("ringcast", name)]
        yield _row(name, workload.shape, workload.size.size, way, "messages/s", *rates) | {
            "ratio": round(rates[0] / rates[1], 2),
            "ringcast_cpu_us": costs[0],
            "peer_cpu_us": costs[1],
        }


def _round_trips(size: int, count: int, runs: int, clusters: dict[str, Cluster]) -> Iterator[Row]:
    """Of a message to another and its answer; of ours a request."""
    progress(f"measuring round trips, {size} B")
    times: dict[str, list[float]] = {name: [] for name in clusters}
    with Cluster(
        members=2, program=("benchmarks.worker", "asker"), transport="udp", spin_s=0.0
    ) as asking:
        tell(asking.processes[1], {"op": "reply"})
        for turn in range(runs + 1):
            for name, cluster in ({**clusters, "ringcast": asking}).items():
                first, second = cluster.processes
                task = {"size": size, "count": count if turn else WARM_UP}
                if name != "ringcast":
                    tell(second, {"op": "reply", "to": "m0", **task})
                tell(first, {"op": "ask", "to": "m1", **task})
                answer = hear(first)["times_ns"]
                if turn:
                    times[name].append((percentile(answer, 50) or 0) / 1e3)
    medians = {name: round(statistics.median(each), 1) for name, each in times.items()}
    ours = medians.pop("ringcast")
    for name, theirs in medians.items():
        row = _row(name, "1 → 1", size, "round trip", "µs", ours, theirs)
        yield row | {"ratio": round(theirs / ours, 2)}


def _row(peer: str, shape: str, size: int, way: str, unit: str, ours: float, theirs: float) -> Row:
    return {
        **{"peer": peer, "workload": shape, "size": size, "way": way, "unit": unit},
        **{"ringcast": ours, "theirs": theirs, "ratio": None},
        **{"ringcast_cpu_us": None, "peer_cpu_us": None},
    }


# Servers


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def _ports(names: Sequence[str]) -> Iterator[dict[str, list[int]]]:
    """Two for each member."""
    ports = _free_ports(2 * len(names))
    yield {name: ports[2 * at : 2 * at + 2] for at, name in enumerate(names)}


@contextmanager
def _server(words: Callable[[int, str], list[str]]) -> Iterator[int]:
    """A server on a port of its own, until the block ends; that port."""
    (port,) = _free_ports(1)
    with tempfile.TemporaryDirectory() as directory:
        command = words(port, directory)
        with subprocess.Popen(command, stdout=NOWHERE, stderr=NOWHERE, cwd=directory) as server:
            try:
                _await(server, port, command[0])
                yield port
            finally:
                server.terminate()


def _await(server: subprocess.Popen[bytes], port: int, name: str) -> None:
    until = time.monotonic() + SERVER_S
    while server.poll() is None and time.monotonic() < until:
        with socket.socket() as sock:
            if not sock.connect_ex(("127.0.0.1", port)):
                return
        time.sleep(0.02)
    raise RingcastError(f"{name} does not start")


def _redis(port: int, _: str) -> list[str]:
    no_limit = ["--client-output-buffer-limit", "pubsub 0 0 0"]
    return ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", *no_limit]


def _nats(port: int, directory: str) -> list[str]:
    path = Path(directory, "nats.conf")
    path.write_text(f"listen: 127.0.0.1:{port}\nmax_pending: 1GB\nwrite_deadline: '60s'\n")
    return ["nats-server", "-c", str(path)]


SERVERS: dict[str, Callable[[Sequence[str]], Any]] = {
    "pyzmq": _ports,
    "nats": lambda _: _server(_nats),
    "redis": lambda _: _server(_redis),
}
