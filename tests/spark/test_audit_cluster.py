"""Many members with many segments: merged on executors, also where one of them is lost."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

MEMBERS, SEGMENTS, TASKS = 40, 25, 16

ON_A_CLUSTER = f"""
import json, tempfile, threading, time
from pathlib import Path
from benchmarks.audit_traces import write_members
from benchmarks.usage import result_bytes
from ringcast.spark import reading, states
from ringcast.spark.audit import audit
from ringcast.spark.session import context, session, start_standalone, stop_group

reading.tasks_for = states.tasks_for = lambda *_: {TASKS}
states.MERGED_FILES = 100

def kill_in_the_middle(spark, worker):
    tracker = spark.statusTracker()
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None and 2 <= info.numCompletedTasks <= {TASKS} // 2:
                stop_group(worker)
                killed.append(info.numCompletedTasks)
                return
        time.sleep(0.02)

found, killed = [], []
with tempfile.TemporaryDirectory() as name:
    write_members(Path(name), {MEMBERS}, {SEGMENTS})
    with start_standalone(workers=2) as cluster:
        spark = context("ringcast proof", cluster.url)
        found.append(audit(spark, name))
        killer = threading.Thread(target=kill_in_the_middle, args=(spark, cluster.workers[0]))
        killer.start()
        found.append(audit(spark, name))
        killer.join()
        assert cluster.workers[0].poll() is not None
        assert cluster.workers[1].poll() is None
        spark.stop()
    spark = session("ringcast proof", "local[2]")
    before = result_bytes(spark)
    found.append(audit(spark, name))
    returned = result_bytes(spark) - before
    found.append(audit(None, name))
here = found[3]
print(json.dumps({{"killed": killed, "same": [each.to_json() == here.to_json() for each in found],
    "segments": here.segments, "exit_status": here.exit_status, "returned": returned}}))
"""


@pytest.mark.proof
def test_a_cluster_that_loses_a_worker_says_what_one_process_says() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ON_A_CLUSTER],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert len(said["killed"]) == 1  # while tasks were under way
    assert said["same"] == [True] * 4
    assert (said["segments"], said["exit_status"]) == (MEMBERS * SEGMENTS, 0)
    assert said["returned"] < 1500 * MEMBERS * MEMBERS  # some for each member and sender


@pytest.mark.proof
def test_two_hundred_members_are_audited_within_what_tasks_may_return() -> None:
    command = "from ringcast.cli import main; main(prog_name='ringcast')"
    done = subprocess.run(
        [sys.executable, "-c", command, "bench", "audit", "--members", "200", "--json"],
        capture_output=True,
        text=True,
        timeout=7200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (line,) = json.loads(done.stdout)
    assert line["segments"] == 200 * 300
    assert line["returned_mb"] < 50
    assert line["driver_mb"] > 0
