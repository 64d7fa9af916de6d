"""The multicast benchmark: what it compares, and what it refuses to compare at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.workload import Workload
from ringcast.cli import main
from ringcast.errors import UsageError

SHORT = ["--members", "2", "--size", "10000", "--seconds", "0.05", "--runs", "1"]


def bench(*options: str) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["bench", "multicast", *SHORT, *options, "--json", "-"])
    assert result.exit_code == 0, result.output
    (report,) = json.loads(result.stdout)
    found: dict[str, Any] = report
    return found


def test_one_order_is_measured_where_one_member_alone_has_a_window() -> None:
    report = bench("--guarantee", "total")
    assert (report["guarantee"], report["lost"]) == ("total", 0)


@pytest.mark.proof
def test_votes_are_measured_beside_acks() -> None:
    report = bench("--purge", "stability", "--no-retain")
    assert report["purge"] == "stability"
    assert report["lost"] == 0
    (rate,), (plain_rate,) = report["rates"], report["plain_rates"]
    assert report["stability_ratio"] == pytest.approx(rate / plain_rate, abs=0.002)
    assert report["record_ratio"] is report["uniform_ratio"] is None
    assert report["reports_per_1000"] > 0
    assert report["plain_reports_per_1000"] > 0


@pytest.mark.proof
@pytest.mark.parametrize("how", [["--purge", "stability"], ["--guarantee", "uniform"], []])
def test_a_small_receive_buffer_is_measured_beside_the_usual_one(how: list[str]) -> None:
    report = bench("--receive-buffer", "212992", *how)
    assert (report["receive_buffer"], report["lost"]) == (212_992, 0)
    (rate,), (plain_rate,) = report["rates"], report["plain_rates"]
    assert report["buffer_ratio"] == pytest.approx(rate / plain_rate, abs=0.002)
    assert report["plain_rate_per_member"] == plain_rate
    assert report["uniform_ratio"] is report["stability_ratio"] is None


@pytest.mark.proof
def test_both_rates_and_their_ratio_are_printed() -> None:
    result = CliRunner().invoke(main, ["bench", "multicast", *SHORT, "--receive-buffer", "212992"])
    assert result.exit_code == 0, result.output
    for column in ("receive buffer", "rate per member", "plain rate per member", "buffer ratio"):
        assert column in result.stdout.splitlines()[0]


def test_members_ask_for_the_buffer_that_they_are_told_to() -> None:
    with Workload(members=2, receive_buffer=100_000).cluster() as cluster:
        cluster.tell_all({"op": "stats"})
        for stats in cluster.hear_all():
            assert stats["transport"]["receive_buffer"] == 100_000


@pytest.mark.proof
def test_acks_are_measured_alone() -> None:
    report = bench()
    assert report["purge"] == "acks"
    assert report["stability_ratio"] is report["plain_rates"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"purge": "stability", "guarantee": "uniform"},
            "what uniform costs and what stability costs: one at a time",
        ),
        (
            {"purge": "stability", "record": Path("traces")},
            "what recording costs and what stability costs: one at a time",
        ),
        (
            {"guarantee": "uniform", "record": Path("traces")},
            "what recording costs and what uniform costs: one at a time",
        ),
        (
            {"receive_buffer": 212_992, "record": Path("traces")},
            "what recording costs and what a receive buffer costs: one at a time",
        ),
        ({"receive_buffer": 1}, "receive_buffer = 1: must be a whole number from 16384 to"),
        ({"receive_buffer": 212_992, "transport": "tcp"}, "datagrams have one"),
        ({"retain": False}, "groups that acknowledge keep nothing; add purge = stability"),
    ],
)
def test_what_cannot_be_compared_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Workload(**options)


def test_the_command_says_so() -> None:
    options = ["--purge", "stability", "--guarantee", "uniform"]
    result = CliRunner().invoke(main, ["bench", "multicast", *options])
    assert result.exit_code == 2
    assert "one at a time" in result.output


@pytest.mark.parametrize("purge", ["acks", "stability"])
def test_members_vote_if_they_are_told_to(purge: str) -> None:
    with Workload(members=2, purge=purge).cluster() as cluster:
        cluster.tell_all({"op": "stats"})
        for stats in cluster.hear_all():
            assert bool(stats["ViewStreams"]["rounds"]) == (purge == "stability")


@pytest.mark.parametrize(
    ("retain", "expected"),
    [(None, {}), (True, {"retain_delivered": True}), (False, {"retain_delivered": False})],
)
def test_members_are_told_what_to_keep(retain: bool | None, expected: dict[str, bool]) -> None:
    assert Workload(purge="stability", retain=retain).stability == expected
