"""A fleet on a standalone cluster, also with a worker killed in the middle; and its benchmark."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

SEEDS, TASKS = 24, 16

ON_A_CLUSTER = f"""
import json, sys, threading, time
from operator import itemgetter
from ringcast.sim.grid import grid_points, parse_setting
from ringcast.spark.fleet import Fleet, fleet_rows
from ringcast.spark.session import session, start_standalone, stop_group

def kill_in_the_middle(spark, worker):
    tracker = spark.sparkContext.statusTracker()
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None and 2 <= info.numCompletedTasks <= {TASKS} // 2:
                stop_group(worker)
                killed.append(info.numCompletedTasks)
                return
        time.sleep(0.02)

def verdicts(spark):
    rows = fleet_rows(spark, fleet, {TASKS}).drop("wall_s").collect()
    return sorted((row.asDict(recursive=True) for row in rows), key=itemgetter("seed", "point"))

fleet = Fleet(seeds=range({SEEDS}), points=grid_points([parse_setting("loss=0,0.05")]))
found, killed = [], []
with start_standalone(workers=2) as cluster:
    spark = session("ringcast proof", cluster.url)
    found.append(verdicts(spark))
    killer = threading.Thread(target=kill_in_the_middle, args=(spark, cluster.workers[0]))
    killer.start()
    found.append(verdicts(spark))
    killer.join()
    assert cluster.workers[0].poll() is not None
    assert cluster.workers[1].poll() is None
    spark.stop()
found.append(verdicts(session("ringcast proof", "local[2]")))
print(json.dumps({{"killed": killed, "same": [each == found[2] for each in found],
    "runs": len(found[2]), "violations": sum(row["violations"] for row in found[2])}}))
"""


@pytest.mark.proof
def test_a_cluster_that_loses_a_worker_says_what_one_machine_says() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ON_A_CLUSTER],
        capture_output=True,
        text=True,
        env=dict(os.environ),
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert len(said["killed"]) == 1  # while tasks were under way
    assert said["same"] == [True, True, True]
    assert said["runs"] == 2 * SEEDS
    assert said["violations"] == 0


@pytest.mark.proof
def test_the_benchmark_measures_both_ways() -> None:
    command = "from ringcast.cli import main; main(prog_name='ringcast')"
    done = subprocess.run(
        [sys.executable, "-c", command, "bench", "fleet", "--seeds", "20", "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (report,) = json.loads(done.stdout)
    assert report["seeds"] == 20
    assert report["tasks"] == 8
    assert report["ratio"] > 0
    assert report["spark_seeds_per_s"] > 0
