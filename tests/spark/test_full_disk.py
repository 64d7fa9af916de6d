"""Members whose disk is full go on; rows they cannot write are counted, and the audit says so."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ringcast.spark.audit import audit

SCRIPT = Path(__file__).with_name("small_disk.py")


@pytest.mark.skipif(shutil.which("unshare") is None, reason="there is no unshare(1)")
def test_a_full_disk_costs_rows_and_no_message(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    saved = tmp_path / "saved"
    done = subprocess.run(
        ["unshare", "-rm", sys.executable, str(SCRIPT), str(disk), str(saved)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode and "unshare failed" in done.stderr:
        pytest.skip("a mount namespace cannot be made here")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    if "skip" in said:
        pytest.skip(said["skip"])
    assert all(member["lost"] == 0 for answers in said["rounds"] for member in answers)
    for recorder in said["recorders"]:
        assert recorder["lost_to_disk"] > 0
        assert "No space left on device" in recorder["last_error"]
    report = audit(None, saved)
    judged = [verdict for verdict in report.verdicts if not verdict.is_excused]
    assert {verdict.status for verdict in judged} == {"incomplete"}
    for verdict in judged:
        assert len([why for why in verdict.incomplete if "its recorder lost" in why]) == 3
    assert report.exit_status == 3
