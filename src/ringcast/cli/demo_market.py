"""The group of `ringcast demo`: four traders, and an archive that keeps what they send if their
traces are kept, too. Spark reads that as a stream, and adds orders up; the sums go back to
the group, where a member prints them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from ringcast import MembershipConfig, blocking
from ringcast.errors import RingcastError
from ringcast.sim.processes import Cluster, hear, tell

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Totals: TypeAlias = "dict[tuple[str, str], tuple[int, int]]"
"""By sender and guarantee: how many orders, and for how many cents."""

GROUP = "orders"
ARCHIVE = "archive"
DESK = "desk"
"""Who prints what Spark has found."""
TRADERS = 4
PLAIN_VICTIM, UNIFORM_VICTIM = 2, 3

DEADLINE_S = 300.0
"""Traders that take longer are stuck, and killed."""
LOOK_S = 0.05

SUSPECT_AFTER_S = 10.0
"""Who is killed is noticed at once; nobody is to be missed because Spark keeps the machine busy."""
BATCH, RATE = 10, 500
"""Orders at once, and in a second."""


class Market:
    """Processes that trade, until the block ends."""

    def __init__(self, directory: Path, trace: Path | None, loss: float, seed: int) -> None:
        """`trace` None: nothing is recorded, and there is no archive."""
        self._trace = trace
        self._archive: subprocess.Popen[str] | None = None
        self._settings = directory / "settings.toml"
        self._settings.write_text(f"[membership]\nsuspect_after_s = {SUSPECT_AFTER_S}\n")
        self._cluster = Cluster(
            members=TRADERS,
            group=GROUP,
            loss=loss,
            seed=seed,
            record=trace,
            membership={"suspect_after_s": SUSPECT_AFTER_S},
        )
        self._stack = ExitStack()

    def __enter__(self) -> Market:
        with ExitStack() as stack:
            stack.enter_context(self._cluster)
            stack.enter_context(self._cluster.within(DEADLINE_S))
            if self._trace is not None:
                self._archive = stack.enter_context(self._start_archive(self._trace))
                stack.callback(self._archive.kill)
                hear(self._archive)  # it is in
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def traders(self) -> list[str]:
        """Who is alive."""
        return self._cluster.names

    def open(self) -> None:
        """Orders from now on."""
        task = {"op": "trade", "names": self._everybody, "batch": BATCH, "rate": RATE}
        for at, process in enumerate(self._cluster.processes):
            guarantee = "uniform" if at == UNIFORM_VICTIM else "fifo"
            tell(process, {**task, "guarantees": [guarantee]})

    def kill(self) -> None:
        """kill -9 the sender of uniform messages, and one of plain ones."""
        for victim in (UNIFORM_VICTIM, PLAIN_VICTIM):
            self._cluster.kill(victim)

    def close(self) -> None:
        """No more orders: return when all have delivered all, and what the dead left is settled."""
        self._cluster.tell_all({"op": "stop"})
        self._cluster.hear_all()
        while any(answer["waits"] for answer in self._look()):
            time.sleep(LOOK_S)

    def totals(self) -> list[Totals]:
        """What each of the traders has delivered so far."""
        return [
            {(sender, guarantee): (orders, cents) for sender, guarantee, orders, cents in rows}
            for rows in (answer["totals"] for answer in self._look())
        ]

    def end_archive(self) -> None:
        """Let it write what it has, and leave."""
        assert self._archive is not None
        self._archive.terminate()
        if self._archive.wait() != 0:
            raise RingcastError(f"the archive ended with status {self._archive.returncode}")

    def hear_of(self, revenue: Revenue, tell: Callable[[datetime, int, int], None]) -> None:
        """Spark's sums go through the sink and a publisher to all members; one of them tells when
        each window began, its orders and cents."""
        staged, trace = self._settings.with_name("staged"), self._trace
        windows = revenue.publish(staged)
        address = self._cluster.await_view()[0]["listen"]
        settings = self._settings.with_name("publisher.toml")
        settings.write_text(f'[group]\nrecord = "{trace}"\n{self._settings.read_text()}')
        command = [sys.executable, "-m", "ringcast", "publish", str(staged), GROUP]
        command += ["--config", str(settings), "--member", address]
        patient = MembershipConfig(suspect_after_s=SUSPECT_AFTER_S)
        with (
            blocking.join(
                GROUP, name=DESK, members=[address], membership=patient, record=trace
            ) as desk,
            subprocess.Popen(command, stdout=subprocess.DEVNULL, process_group=0) as publisher,
        ):
            try:
                for _, message in zip(range(windows), desk, strict=False):
                    found = json.loads(message.payload)
                    since = datetime.fromtimestamp(found["since"], UTC).astimezone()
                    tell(since, found["orders"], found["cents"])
                publisher.terminate()
                publisher.wait(DEADLINE_S)
            finally:
                publisher.kill()

    @property
    def _everybody(self) -> list[str]:
        return self.traders if self._archive is None else [*self.traders, ARCHIVE]

    def _look(self) -> list[dict[str, Any]]:
        """Once all survivors are in a view of those who live."""
        self._cluster.tell_all({"op": "totals", "names": self._everybody})
        return self._cluster.hear_all()

    def _start_archive(self, trace: Path) -> subprocess.Popen[str]:
        address = self._cluster.await_view()[0]["listen"]
        command = [sys.executable, "-m", "ringcast", "archive", GROUP, str(trace), "--json"]
        command += ["--name", ARCHIVE, "--config", str(self._settings)]
        command += ["--member", address, "--must-exist"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0)


# On Spark

WINDOW_S = 2
TABLE = "revenue"
FIRST_ORDERS_S = 120.0

REVENUE = f"""
    SELECT window.start AS since, sender, stream, count(*) AS orders, sum(cents) AS cents
    FROM (SELECT sender, stream, delivered_at,
                 from_json(CAST(payload AS STRING), 'cents BIGINT').cents AS cents
          FROM messages)
    GROUP BY window(delivered_at, '{WINDOW_S} seconds'), sender, stream
"""


class Revenue:
    """A streaming query over an archive, and what has come out of it."""

    def __init__(self, spark: SparkSession, archive: Path, checkpoint: Path) -> None:
        from ringcast.spark import register

        register(spark)
        messages = spark.readStream.format("ringcast").option("query", "revenue").load(str(archive))
        messages.createOrReplaceTempView("messages")
        self._spark = spark
        self._query: StreamingQuery = (
            spark.sql(REVENUE)
            .writeStream.format("memory")
            .queryName(TABLE)
            .outputMode("complete")
            .option("checkpointLocation", str(checkpoint))
            .trigger(processingTime="1 second")
            .start()
        )

    def await_orders(self) -> int:
        """Return when it has read some: how many."""
        deadline = time.monotonic() + FIRST_ORDERS_S
        while not (read := sum(step.numInputRows for step in self._query.recentProgress)):
            failed = self._query.exception()
            if failed is not None:
                raise click.ClickException(f"the stream has failed: {failed}")
            if time.monotonic() > deadline:
                raise click.ClickException(f"Spark has read no order within {FIRST_ORDERS_S:g} s")
            time.sleep(2 * LOOK_S)
        return read

    def finish(self) -> None:
        """Read all that is in the archive now, and end."""
        self._query.processAllAvailable()
        self._query.stop()

    def by_sender(self) -> Totals:
        """Orders and cents of each sender by each guarantee."""
        rows = self._sums("sender, stream")
        return {(sender, stream): (orders, cents) for sender, stream, orders, cents in rows}

    def by_time(self) -> list[tuple[datetime, int, int]]:
        """When each window began, its orders and cents."""
        return [(since, orders, cents) for since, orders, cents in self._sums("since")]

    def publish(self, staged: Path) -> int:
        """Through the sink, the sums of each window as a message; how many there are."""
        found = [
            (json.dumps({"since": since.timestamp(), "orders": orders, "cents": cents}).encode(),)
            for since, orders, cents in self.by_time()
        ]
        # This makes the session that of this thread, too: sinks are looked up there.
        rows = self._spark.createDataFrame(found, "payload BINARY").coalesce(1)
        writer = rows.write.format("ringcast").option("publisherId", TABLE).mode("append")
        writer.save(str(staged))
        return len(found)

    def _sums(self, keys: str) -> list[Row]:
        found = self._spark.sql(
            f"SELECT {keys}, sum(orders), sum(cents) FROM {TABLE} GROUP BY {keys} ORDER BY {keys}"
        )
        return found.collect()
