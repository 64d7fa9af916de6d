"""Messages of a live group through two archives and Spark into a table: each once, whoever is
killed on the way. One archive at a time is down, and the other has all since before."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from stream_driver import STEP, copy

from ringcast.spark.session import stop_group
from ringcast.trace.archive import Index

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

DEADLINE_S = 300.0
LOOK_S = 0.005
HERE = Path(__file__).parent
RINGCAST = (sys.executable, "-c", "from ringcast.cli import main; main(prog_name='ringcast')")
PATIENT = """
[membership]
suspect_after_s = 600.0
"""
"""Who is killed refuses datagrams; nobody is to be missed because the machine is busy."""

POINTS = ("checkpoint/offsets", "table", "table/_spark_metadata", "checkpoint/commits")
"""Where the next file shows that a step was planned, has written, is in the table, is over."""


@pytest.mark.parametrize("seed", [1])
def test_a_driver_and_an_archive_are_killed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # private, as pytest makes it
    check_kills(spark, tmp_path, seed, drivers=1, archives=1, steps=1)


@pytest.mark.proof
@pytest.mark.parametrize("seed", [2])
def test_ten_drivers_and_four_archives_are_killed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    check_kills(spark, tmp_path, seed, drivers=10, archives=4, steps=3)


def check_kills(
    spark: SparkSession, directory: Path, seed: int, *, drivers: int, archives: int, steps: int
) -> None:
    dice = random.Random(seed)
    doomed = set(dice.sample(range(drivers), archives))
    with Story(directory) as story:
        for number in range(drivers):
            driver = story.start_driver()
            kill_at = dice.choice(POINTS), dice.randint(1, steps)
            if number in doomed:
                story.replace_archive(dice.randrange(2))
            story.kill_driver(driver, *kill_at)
        delivered = story.end()
    arguments = [str(directory / name) for name in ("archive", "table", "checkpoint")]
    query = copy(spark, *arguments, is_last=True)
    assert query.awaitTermination(DEADLINE_S)
    rows = spark.read.parquet(str(directory / "table")).collect()
    copied = Counter(map(tuple, rows))
    assert max(copied.values()) == 1
    assert copied == delivered
    assert {stream for _, _, stream, _, _ in copied} == {"fifo", "uniform"}
    assert len({name for name, *_ in copied}) == 2


class Story:
    """Two members that send, two archives, and a driver at a time."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.archive = directory / "archive"
        self.config = directory / "patient.toml"
        self.config.write_text(PATIENT)
        self.archives: list[tuple[str, subprocess.Popen[str]]] = []
        self.senders: list[subprocess.Popen[str]] = []
        self._index = Index(self.archive)
        self._made = 0
        self._processes = ExitStack()

    def __enter__(self) -> Story:
        try:
            for _ in range(2):
                self.archives.append(self.start_archive())
            for name in ("web", "app"):
                sender = self._start(sys.executable, str(HERE / "archive_sender.py"))
                self.senders.append(sender)
                assert tell(sender, f"{self.config}\n{name}") == "sending"
        except BaseException:
            self._processes.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.close()

    def start_archive(self) -> tuple[str, subprocess.Popen[str]]:
        """One that is in the group when this returns."""
        self._made += 1
        name = f"keep-{self._made}"
        options = ("--name", name, "--config", str(self.config), "--json")
        process = self._start(*RINGCAST, "archive", "orders", str(self.archive), *options)
        assert process.stdout is not None
        assert name in json.loads(process.stdout.readline())["members"]
        return name, process

    def replace_archive(self, at: int) -> None:
        """Kill one once the other has all since before, and start another in its place."""
        (victim, process), (other, _) = self.archives[at], self.archives[1 - at]
        until(process, lambda: self._has_all_since(other, victim))
        process.kill()
        process.wait()
        self.archives[at] = self.start_archive()

    def _has_all_since(self, other: str, victim: str) -> bool:
        """What the victim's last visible file ends with, or what is next, the other has."""
        index = self._index
        index.refresh()
        if len(index.origins) < 4:  # two senders, two streams
            return False
        for origin in index.origins:
            held = {writer[0]: ranges for writer, ranges in index.holdings(origin)}
            if victim not in held or other not in held:
                return False
            if held[other][0].first > held[victim][-1].last + 1:
                return False
        return True

    def start_driver(self) -> subprocess.Popen[str]:
        names = (
            str(self.archive),
            str(self.directory / "table"),
            str(self.directory / "checkpoint"),
        )
        driver = (sys.executable, str(HERE / "stream_driver.py"))
        return self._start(*driver, *names, "local[1]", str(STEP))

    def kill_driver(self, driver: subprocess.Popen[str], point: str, steps: int) -> None:
        """Python, Java and all, as soon as it has come so much further there."""
        place = self.directory / point
        enough = progress(place) + steps
        until(driver, lambda: progress(place) >= enough)
        stop_group(driver)

    def end(self) -> Counter[tuple[str, str, str, int, str]]:
        """What the members delivered, both the same; the archives have gone in good order."""
        for sender in self.senders:
            assert sender.stdin is not None
            print("stop", file=sender.stdin, flush=True)
        for sender in self.senders:
            assert sender.stdout is not None
            assert sender.stdout.readline() == "flushed\n"
        told = []
        for at, sender in enumerate(self.senders):
            path = self.directory / f"delivered-{at}"
            assert tell(sender, str(path)) == "written"
            told.append(Counter(tuple(json.loads(line)) for line in path.read_text().splitlines()))
        for _, process in self.archives:
            process.send_signal(signal.SIGTERM)
        for _, process in self.archives:
            process.communicate(timeout=DEADLINE_S)
            assert process.returncode == 0
        # Who joined later has not what the first had sent by then.
        assert told[1] <= told[0]
        return told[0]

    def _start(self, *command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._processes.callback(end, process)
        return process


def end(process: subprocess.Popen[str]) -> None:
    stop_group(process)
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with suppress(BrokenPipeError):
            pipe.close()


def tell(process: subprocess.Popen[str], line: str) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    print(line, file=process.stdin, flush=True)
    return process.stdout.readline().rstrip("\n")


def progress(place: Path) -> int:
    """The last step in a log, of which old ones are removed; or how many files a table has."""
    names = [path.name for path in place.iterdir()] if place.is_dir() else []
    files = [name for name in names if not name.startswith((".", "_"))]
    steps = [int(name.removesuffix(".compact")) for name in files if name[0].isdecimal()]
    return max(steps) + 1 if steps else len(files)


def until(process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    """Look again and again; the process goes on meanwhile."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        with suppress(subprocess.TimeoutExpired):
            process.wait(LOOK_S)
            raise AssertionError("it ended by itself")
