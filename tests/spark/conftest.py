"""One Spark session for all tests here: starting one takes longer than most tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cluster_traces import Traces
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from ringcast.spark.session import session

    made = session("ringcast tests", "local[2]")
    # Queries here have few rows: to compile each takes longer than to interpret it.
    made.conf.set("spark.sql.codegen.wholeStage", "false")
    made.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    yield made
    if _jvm_status() is None:
        made.stop()


def _jvm_status() -> int | None:
    """How the JVM of this process ended; None: it lives."""
    from pyspark import SparkContext

    return SparkContext._gateway.proc.poll()


@pytest.fixture(autouse=True)
def jvm_lives(request: pytest.FixtureRequest) -> Iterator[None]:
    """Without its JVM every test that follows would fail, and hide which one lost it, and how."""
    yield
    if "spark" in request.fixturenames and (status := _jvm_status()) is not None:
        pytest.exit(f"Spark's JVM ended with status {status} in {request.node.name}", 1)


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Traces:
    """A clean run, as recorders wrote it. Copy before changing it."""
    from cluster_traces import read_traces, record_cluster

    directory = tmp_path_factory.mktemp("recorded")
    record_cluster(directory)
    return read_traces(directory)


@pytest.fixture
def traces(recorded: Traces) -> Traces:
    return recorded.copy()
