"""A million rows through the sink, while all that takes part in it is killed: each arrives once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from executor_kills import DEADLINE_S, kill_executor, tell_losses, until

from ringcast.spark.session import start_standalone, stop_group
from ringcast.trace.staging import Staging

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ringcast.spark.session import Standalone

HERE = Path(__file__).parent
RINGCAST = (sys.executable, "-c", "from ringcast.cli import main; main(prog_name='ringcast')")
DYING = (sys.executable, str(HERE / "killed_publisher.py"))
BATCHES, ROWS = 20, 50_000
AHEAD = "30000000"
"""So many bytes may be staged before the stream waits: those of six batches."""
WORK_S = "1"
"""Of each task: so that an executor that is found at work still is when it is killed."""
ROW = np.dtype([("batch", ">u4"), ("row", ">u4"), ("content", "V92")])
PATIENT = """
[membership]
suspect_after_s = 600.0
"""
"""Who is killed refuses datagrams; nobody is to be missed because the machine is busy."""

DRIVERS = (
    (True, "staged/staged/*.parquet"),
    (False, "staged/batch-*.json"),
    (True, "staged/batch-*.json"),
    (False, "checkpoint/commits/*"),
    (False, "staged/staged/*.parquet"),
)
"""For each that is killed: whether it loses an executor before, and what shows how far it is. A
task has staged, a batch is committed, the stream knows it."""

KILLS = {
    "driver": len(DRIVERS),
    "executor in a task": sum(loses for loses, _ in DRIVERS),
    "publisher in a batch": 4,
    "publisher before its note": 2,
    "member": 1,
}


class Reader(NamedTuple):
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def taken(self) -> int:
        return self.log.stat().st_size // ROW.itemsize if self.log.exists() else 0

    def has_written(self, row: bytes) -> bool:
        """It is the last one."""
        with self.log.open("rb") as file:
            file.seek(-min(len(row), self.log.stat().st_size), os.SEEK_END)
            return file.read() == row


class Story:
    """A cluster of Spark, the drivers that use it, and a group with the publishers that come."""

    def __init__(self, directory: Path, cluster: Standalone) -> None:
        self.directory = directory
        self.staging = Staging(directory / "staged")
        self.kills: Counter[str] = Counter()
        self.readers: dict[str, Reader] = {}
        self._cluster = cluster
        self._started = ExitStack()
        (directory / "files").mkdir()
        (directory / "patient.toml").write_text(PATIENT)
        self._talking = tell_losses(directory / "conf")
        self.rows = write_rows(directory / "files")

    def __enter__(self) -> Story:
        for name in "abc":
            self.start_member(name)
        return self

    def __exit__(self, *_: object) -> None:
        self._started.close()

    # The group

    def start_member(self, name: str, life: str = "") -> None:
        log = self.directory / f"{name}{life}.rows"
        command = (sys.executable, str(HERE / "sink_member.py"), name)
        process = self._start(name, *command, str(self.directory / "patient.toml"), str(log))
        self.readers[name + life] = Reader(process, log)

    def start_publisher(
        self, program: Sequence[str] = RINGCAST, keep: str = "1h"
    ) -> subprocess.Popen[bytes]:
        words = ("publish", str(self.staging.path), "rows", "--keep", keep)
        config = ("--config", str(self.directory / "patient.toml"))
        return self._start("publisher", *program, *words, *config)

    @property
    def taken(self) -> int:
        """By each of those who stay."""
        return min(self.readers[name].taken for name in "ab")

    def await_middle(self, publisher: subprocess.Popen[bytes]) -> None:
        """Of a batch: the one that is under way, or the next."""
        due = (self.taken + ROWS // 2) // ROWS * ROWS + ROWS // 2
        until(lambda: self.taken >= due, publisher)

    def kill_in_the_middle(self, publisher: subprocess.Popen[bytes]) -> None:
        self.await_middle(publisher)
        publisher.kill()
        publisher.wait()
        begun = self.taken // ROWS
        self.kills["publisher in a batch"] += self.staging.progress().through < begun

    def lose_one_before_its_note(self) -> None:
        publisher = self.start_publisher(DYING)
        assert publisher.wait(DEADLINE_S) == -signal.SIGKILL
        unnoted = self.staging.progress().through + 1
        until(lambda: self.taken == (unnoted + 1) * ROWS)  # they may have yet to write it down
        self.kills["publisher before its note"] += 1

    def publish(self) -> subprocess.Popen[bytes]:
        """Until one of them goes on alone; one member joins meanwhile, and one is started again."""
        until((self.staging.path / "publisher.json").exists)
        self.kill_in_the_middle(self.start_publisher())
        self.lose_one_before_its_note()
        publisher = self.start_publisher()
        self.await_middle(publisher)
        self.start_member("d")
        self.kill_in_the_middle(publisher)
        self.lose_one_before_its_note()
        publisher = self.start_publisher()
        self.await_middle(publisher)
        victim = self.readers["c"].process
        victim.kill()
        victim.wait()
        self.kills["member"] += 1
        self.start_member("c", " again")
        self.kill_in_the_middle(publisher)
        self.kill_in_the_middle(self.start_publisher())
        return self.start_publisher()

    # Spark

    def start_driver(self) -> subprocess.Popen[bytes]:
        places = [str(self.directory / name) for name in ("files", "staged", "checkpoint")]
        where = (*places, self._cluster.url, AHEAD, WORK_S)
        return self._start(
            "driver", sys.executable, str(HERE / "sink_driver.py"), *where, **self._talking
        )

    def stage(self) -> None:
        """All that there is, by a driver at a time."""
        for loses_executor, point in DRIVERS:
            driver = self.start_driver()
            if loses_executor:
                kill_executor(self._cluster, driver, self.directory / "driver.log")
                self.kills["executor in a task"] += 1
            before = set(self.directory.glob(point))
            until(lambda: bool(set(self.directory.glob(point)) - before), driver)  # noqa: B023
            stop_group(driver)
            self.kills["driver"] += 1
        assert self.start_driver().wait(DEADLINE_S) == 0

    # At the end

    def check(self) -> None:
        """Each row once, in the order of the batches, their partitions and rows."""
        names = self.names()
        runs = (messages for name in names for _, messages, _, _ in self.staging.messages(name))
        expected = b"".join(chain.from_iterable(runs))
        staged = np.frombuffer(expected, ROW)
        order = np.argsort(staged["batch"].astype(np.int64) * ROWS + staged["row"])
        assert same(staged[order].tobytes(), self.rows.tobytes())
        going = [reader for name, reader in self.readers.items() if name != "c"]
        until(lambda: all(reader.has_written(staged[-1].tobytes()) for reader in going))
        time.sleep(1)  # and nothing more
        got = {name: reader.log.read_bytes() for name, reader in self.readers.items()}
        assert same(got["a"], expected)
        assert same(got["b"], expected)
        assert same(got["c"], expected[: len(got["c"])])  # until it was killed
        for name in ("d", "c again"):  # what came since
            assert same(got[name], expected[-len(got[name]) :])
            assert len(got[name]) >= ROW.itemsize * 2 * ROWS

    def names(self) -> list[str]:
        """Of the files of all batches."""
        found = [self.staging.next_batch(number) for number in range(BATCHES)]
        return [name for batch in found if batch for name in batch.files]

    def clean(self) -> int:
        """Publish nothing more, and keep nothing. How many files tasks that were killed have left,
        which a day makes everybody's."""
        left = [path for path in self.staging.files.iterdir() if path.name not in self.names()]
        for path in left:
            os.utime(path, (0, 0))
        publisher = self.start_publisher(keep="0s")
        until(lambda: not self.staging.has_batches, publisher)
        until(lambda: not any(self.staging.files.iterdir()), publisher)
        publisher.terminate()
        assert publisher.wait(DEADLINE_S) == 0
        assert {path.name for path in self.staging.path.iterdir()} <= {
            *("publisher.json", "published.json", "lock", "staged")
        }
        return len(left)

    def _start(self, name: str, *command: str, **more: str) -> subprocess.Popen[bytes]:
        with (self.directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **more},
            )
        self._started.callback(stop_group, process)
        return process


def write_rows(directory: Path) -> NDArray[np.void]:
    """A file for each batch."""
    rows = np.zeros(BATCHES * ROWS, ROW)
    rows["batch"], rows["row"] = np.divmod(np.arange(len(rows)), ROWS)
    noise = np.random.default_rng(1).bytes(len(rows) * ROW["content"].itemsize)
    rows["content"] = np.frombuffer(noise, ROW["content"])
    for batch, part in enumerate(np.split(rows, BATCHES)):
        buffers = [None, pa.py_buffer(part.tobytes())]
        payload = pa.FixedSizeBinaryArray.from_buffers(pa.binary(ROW.itemsize), ROWS, buffers)
        table = pa.table({"payload": payload.cast(pa.binary())})
        pq.write_table(table, directory / f"{batch:03d}.parquet")
    return rows


def same(got: bytes, expected: bytes) -> bool:
    """Where they are not, pytest would look for a long time."""
    return got == expected


@pytest.mark.proof
def test_a_million_rows_and_fourteen_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    started = time.monotonic()
    with (
        start_standalone(workers=2) as cluster,
        ThreadPoolExecutor(1) as pool,
        Story(tmp_path, cluster) as story,  # its end ends what the thread waits for
    ):
        publishing = pool.submit(story.publish)
        story.stage()
        staged_s = time.monotonic() - started
        publisher = publishing.result(DEADLINE_S)
        until(lambda: story.staging.progress().through == BATCHES - 1, publisher)
        published_s = time.monotonic() - started
        publisher.terminate()
        assert publisher.wait(DEADLINE_S) == 0
        story.check()
        left = story.clean()
    took = {name: reader.taken for name, reader in story.readers.items()}
    with capsys.disabled():
        kills = ", ".join(f"{count} of a {what}" for what, count in story.kills.items())
        print(f"\n{len(story.rows)} rows in {BATCHES} batches; killed: {kills}")  # noqa: T201
        print(  # noqa: T201
            f"staged after {staged_s:.0f} s, published after {published_s:.0f} s; rows at members: "
            f"{took}; {left} files of killed tasks swept"
        )
    assert story.kills == KILLS
