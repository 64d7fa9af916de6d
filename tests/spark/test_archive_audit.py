"""A member of a group that retains is killed, with and without an archive in the same run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from test_kills import PATIENT, TRADE, await_segment, await_trading

from ringcast.sim.processes import Cluster
from ringcast.spark.audit import audit
from ringcast.trace.archive import Index

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RINGCAST = (sys.executable, "-c", "from ringcast.cli import main; main(prog_name='ringcast')")
RETAINS = """
[multicast.stability]

[membership]
suspect_after_s = 60.0
"""
DEADLINE_S = 60.0


def group_that_retains(directory: Path) -> Cluster:
    """Three members that record everything, with a run id of their own."""
    return Cluster(
        members=3,
        group="orders",
        loss=0.02,
        record=directory,
        record_level="full",
        config={"stability": {}},
        membership=PATIENT,
        run_id="tuesday",
    )


def kill_one(cluster: Cluster) -> None:
    """All trade, m1 is killed, and the others deliver everything of each other."""
    cluster.tell_all({**TRADE, "seconds": 1.5})
    await_trading(cluster, 1, None)
    assert cluster.kill(1) == "m1"
    sent = [answer["sent"] for answer in cluster.hear_all()]
    expect = dict(zip(cluster.names, sent, strict=True))
    cluster.tell_all({"op": "finish", "expect": expect})
    cluster.hear_all()


@contextmanager
def archive_of(directory: Path, listen: str) -> Iterator[None]:
    """An archive is in the group, and leaves in good order."""
    config = directory / "retains.toml"
    config.write_text(RETAINS)
    options = ("--name", "keep", "--config", str(config), "--run-id", "tuesday", "--json")
    with subprocess.Popen(
        [*RINGCAST, "archive", "orders", str(directory), *options, "--member", listen],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert len(json.loads(process.stdout.readline())["members"]) == 4
            yield
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=DEADLINE_S)
            assert process.returncode == 0
        finally:
            process.kill()


def test_what_survivors_deliver_of_a_killed_member_violates_nothing(tmp_path: Path) -> None:
    with group_that_retains(tmp_path) as cluster:
        kill_one(cluster)
    report = audit(None, tmp_path)
    assert report.exit_status == 0, report.to_json()
    found = {verdict.id: verdict for verdict in report.verdicts}
    for name in ("N8", "VS5"):  # of the killed member too: all of it is judged
        assert (found[name].status, found[name].violations) == ("ok", []), name
        assert found[name].premises > 0, name
        assert found[name].detail == "", name


@pytest.mark.proof
def test_an_archive_with_the_run_id_of_the_members_is_one_of_them(tmp_path: Path) -> None:
    with group_that_retains(tmp_path) as cluster:
        listen = cluster.await_view()[0]["listen"]
        with archive_of(tmp_path, listen):
            await_segment(cluster, 1, tmp_path)
            kill_one(cluster)
    report = audit(None, tmp_path)
    assert report.exit_status == 0, report.to_json()
    assert (report.run_id, report.members) == ("tuesday", 4)
    found = {verdict.id: verdict for verdict in report.verdicts}
    assert found["G1"].unknown == {"m1"}  # and not the archive
    assert found["N8"].violations == []
    index = Index(tmp_path)
    index.refresh()
    assert {origin[0] for origin in index.origins} == {"m0", "m1", "m2"}
