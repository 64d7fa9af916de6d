"""A cluster records on a disk that fills up, and goes on. Run in a mount namespace of its own.

Usage: small_disk.py MOUNT_POINT SAVE_TO. What was recorded is copied out of the namespace; what
the members say is printed as JSON.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from ringcast.sim.processes import Cluster

DISK_BYTES = 512 * 1024
ROUND = {"op": "round", "send": 2000, "expect": 6000, "size": 100}


def main(disk: Path, saved: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        say({"skip": "a small tmpfs cannot be mounted here"})
        return
    trace = disk / "trace"
    with Cluster(members=3, record=trace) as cluster:
        rounds = [ask(cluster, ROUND)]
        while len(list(trace.glob("*.parquet"))) < 3:
            rounds.append(ask(cluster, ROUND))
        filler = disk / "filler"
        fill(filler)
        while not all(recorder["lost"] for recorder in recorders(cluster)):
            rounds.append(ask(cluster, ROUND))
        full = recorders(cluster)
        filler.unlink()
        rounds.append(ask(cluster, ROUND))
    shutil.copytree(trace, saved)
    say({"rounds": rounds, "recorders": full})


def ask(cluster: Cluster, task: dict[str, Any]) -> list[dict[str, Any]]:
    cluster.tell_all(task)
    return cluster.hear_all()


def recorders(cluster: Cluster) -> list[dict[str, Any]]:
    return [member["recorder"] for member in ask(cluster, {"op": "stats"})]


def say(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")


def fill(path: Path) -> None:
    """Take all the room there is."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
