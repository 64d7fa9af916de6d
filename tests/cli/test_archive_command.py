"""ringcast archive in terminals: it keeps what is sent, and goes well."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyarrow", reason="needs ringcast[spark]")

from click.testing import CliRunner
from terminals import PATIENT, Terminal, member, told

from ringcast.cli import main
from ringcast.trace.archive import Index
from ringcast.trace.held import Position
from ringcast.trace.retention import Query
from ringcast.trace.segments import Segment, segment_paths
from support.archives import APP, WEB, Kept, write_file
from support.modes import modes_below

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # private, as pytest makes it
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("number", "end"),
    [(signal.SIGINT, (130, "ringcast: interrupted\n")), (signal.SIGTERM, (0, ""))],
)
def test_it_keeps_what_is_sent_and_leaves_with_all_of_it(
    runtime: Path, number: signal.Signals, end: tuple[int, str]
) -> None:
    with member("web-1", runtime) as web:
        (runtime / "patient.toml").write_text(PATIENT)
        options = ("--name", "keep-1", "--config", "patient.toml", "--must-exist", "--json")
        more = ("--run-id", "tuesday", "--interval", "200ms", "--file-mode", "640")
        with Terminal("archive", "orders", "archive", *options, *more) as archive:
            archive.until("keep-1")
            web.type("one\ntwo\nthree\n")
            web.until("web-1: three")
            status, shown, errors = wait_for_messages(archive, runtime, 3, number)
        web.until("View 3: web-1")
    assert (status, errors) == end
    last = json.loads(shown.splitlines()[-1])
    assert (last["event"], last["messages"], last["queued_bytes"]) == ("leaving", 3, 0)
    index = Index(runtime / "archive")
    index.refresh()
    assert [origin[0] for origin in index.origins] == ["web-1"]
    assert index.pieces({}, 4e9).after({}) == {index.origins[0]: 3}
    for path in index.files:
        with Segment(path) as segment:
            assert segment.info.run_id == "tuesday"
    assert modes_below(runtime / "archive") == ({0o750}, {0o640})


def wait_for_messages(
    archive: Terminal, runtime: Path, count: int, number: signal.Signals
) -> tuple[int, str, str]:
    """End it once its files have so many."""
    index = Index(runtime / "archive")
    while sum(file.messages for file in index.files.values()) < count:
        told("members")  # a look of others, which takes its time
        index.refresh()
    return archive.end(number)


def test_a_disk_that_refuses_ends_it_with_a_reason(runtime: Path) -> None:
    with Terminal("archive", "orders", "archive") as archive:
        archive.until("View 1: archive")
        (runtime / "archive").rename(runtime / "away")
        while archive._look_once():
            pass
        _, errors = archive.process.communicate()
    assert archive.process.returncode == 1
    assert "cannot keep everything in archive, so it leaves: FileNotFoundError" in errors.decode()


def test_how_often_files_are_closed_has_bounds(runtime: Path) -> None:
    for interval, seconds in (("100ms", "0.1"), ("61s", "61.0")):
        told = refused("archive", "orders", "archive", "--interval", interval)
        expected = f"record_interval_s = {seconds}: must be from 0.2 to 60 seconds"
        assert told.endswith(expected)


def test_for_whom_files_may_be_has_bounds(runtime: Path) -> None:
    told = refused("archive", "orders", "archive", "--file-mode", "666")
    assert told.endswith("file_mode = '666': must be 0o600, 0o640, 0o644, 0o660 or 0o664")


def done(*args: str) -> str:
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*args: str) -> str:
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 2
    (line,) = result.output.splitlines()
    return line


def test_old_files_go_unless_a_query_needs_them(runtime: Path) -> None:
    archive = runtime / "archive"
    write_file(archive, "one", 0, [Kept(WEB, 3, 9), Kept(WEB, 12, 20), Kept(APP, 1, 4)])
    Query(archive, "revenue").begin()
    Query(archive, "revenue").commit(Position({WEB: 15, APP: 4}))
    shown = done("archive", "show", "archive")
    assert "1 file," in shown
    assert f"web#{2**64 - 1}/fifo      3    20  10..11   one 12..20\n" in shown
    assert "query revenue: 5 to read" in shown
    about = json.loads(done("archive", "show", "archive", "--json"))
    assert [row["last"] for row in about["senders"]] == ["4", "20"]
    assert [(query["name"], query["to_read"]) for query in about["queries"]] == [("revenue", 5)]
    assert done("archive", "prune", "archive", "--older-than", "1d") == "removed 0 files, 0.0 MB\n"
    shown = done("archive", "prune", "archive", "--older-than", "0s")
    assert shown.startswith("removed 0 files")
    assert "kept 1 old files for query revenue" in shown
    assert "ringcast archive forget archive revenue" in shown
    done("archive", "forget", "archive", "revenue")
    assert "would remove 1" in done(
        "archive", "prune", "archive", "--older-than", "0s", "--dry-run"
    )
    assert len(segment_paths(archive)) == 1
    assert "removed 1 file" in done("archive", "prune", "archive", "--older-than", "0s")
    assert segment_paths(archive) == []


def test_what_is_absent_is_shown(runtime: Path) -> None:
    first = write_file(runtime / "archive", "one", 0, [Kept(APP, 1, 3)])
    write_file(runtime / "archive", "one", 2, [Kept(WEB, 4, 6)], before=first)
    first.unlink()
    shown = done("archive", "show", "archive")
    assert f"not read: {first.name}: it is not there, and" in shown
    assert "app" not in shown
    (told,) = json.loads(done("archive", "show", "archive", "--json"))["left_out"]
    assert told.startswith(first.name)


def test_mistakes_are_one_line(runtime: Path) -> None:
    (runtime / "archive").mkdir()
    assert "write 5s, 90m, 12h or 30d" in refused(
        "archive", "prune", "archive", "--older-than", "soon"
    )
    assert "no query 'x'" in refused("archive", "forget", "archive", "x")
    assert "Missing argument 'DIRECTORY'" in refused("archive", "orders")
    assert "prune" in done("archive", "--help")


def test_small_files_are_merged(runtime: Path) -> None:
    archive = runtime / "archive"
    write_file(archive, "one", 0, [Kept(WEB, 1, 3)])
    write_file(archive, "one", 2, [Kept(WEB, 4, 6)], is_last=True)
    torn = archive / "torn.parquet"
    torn.write_bytes(b"PAR1")
    output = done("archive", "compact", "archive")
    assert output.startswith("merged 2 files into 1\nleft as it is: torn.parquet: not a whole")
    torn.unlink()
    assert done("archive", "show", "archive").startswith("1 file,")
