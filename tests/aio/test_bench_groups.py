"""The benchmarks of whole groups: each in its smallest form, and what they make of figures."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from contextlib import suppress
from signal import SIGKILL
from typing import TYPE_CHECKING, Any
from unittest.mock import NonCallableMock

import pytest
from click.testing import CliRunner
from hosts import Hosts
from namespace import in_own_network

from benchmarks import multicast
from benchmarks.aims import (
    MULTICAST,
    at_least,
    at_most,
    has_collapsed,
    matrix_aims,
    multicast_aims,
)
from benchmarks.groups import slope_of
from benchmarks.multicast import SHAPES, SIZES, matrix_cells, measure_cells
from benchmarks.peers import compare
from benchmarks.structures import Redis
from benchmarks.workload import TRANSPORTS, Size, Workload
from ringcast.cli import main
from ringcast.errors import RingcastError, UsageError
from ringcast.sim.member_process import SEND_BATCH, lost, payloads_of
from ringcast.sim.processes import Cluster, tell

if TYPE_CHECKING:
    from pathlib import Path

SHORT = ["--seconds", "0.02", "--runs", "1"]

OTHERS = [pytest.param(name, marks=pytest.mark.proof) for name in TRANSPORTS if name != "tcp"]
FEW = [["tcp"], pytest.param([*TRANSPORTS], marks=pytest.mark.proof)]
"""One transport on every commit, all of them when there is time."""


def each(transports: list[str]) -> list[str]:
    return [word for transport in transports for word in ("--transport", transport)]


def run(*arguments: str, status: int = 0) -> tuple[str, str]:
    """What the command prints, and what it tells meanwhile."""
    result = CliRunner().invoke(main, ["bench", *arguments])
    assert result.exit_code == status, result.output
    return result.stdout, result.stderr


def report(*arguments: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows and aims."""
    found = json.loads(run(*arguments)[0])
    assert found["compared_with"].startswith("JGroups 5.6")
    assert {aim["verdict"] for aim in found["aims"]} <= {"met", "missed"}
    return found["rows"], found["aims"]


# The matrix


def test_the_matrix_has_every_cell_once() -> None:
    cells = matrix_cells(Workload())
    whole = [cell for cell in cells if not cell.loss and not cell.receive_buffer]
    assert len(set(whole)) == len(whole) == len(TRANSPORTS) * len(SHAPES) * len(SIZES) == 90
    assert [str(cell) for cell in cells if cell.receive_buffer] == [
        "udp, 3 all, 1000 B, receive buffer 212992 B",
        "udp, 3 all, 10000 B, receive buffer 212992 B",
    ]
    assert [str(cell) for cell in cells if cell.loss] == [
        "udp, 3 all, 1000 B, 1% lost",
        "udp, 3 all, 1000 B, 10% lost",
    ]


def test_a_part_of_the_matrix() -> None:
    wanted = {"transports": ["tcp"], "members": [3], "senders": ["1"]}
    cells = matrix_cells(Workload(), **wanted, sizes=[Size(0), Size(100, is_mixed=True)])
    assert list(map(str, cells)) == ["tcp, 1 → 2, 0 B", "tcp, 1 → 2, 100-mixed B"]
    with pytest.raises(UsageError, match="members and senders of the matrix are 3 1, 4 1, 3 all"):
        matrix_cells(Workload(), members=[8], senders=["1"])


def test_a_cell_of_the_matrix_over_multicast() -> None:
    part = ["--transport", "multicast", "--members", "3", "--senders", "1", "--size", "100-mixed"]
    (row,), aims = report("multicast", "--matrix", *part, *SHORT, "--json", "-")
    assert (row["transport"], row["workload"], row["size"]) == ("multicast", "1 → 2", 100)
    assert (row["mixed"], row["lost"], row["failed"]) == (True, 0, None)
    assert min(row["rate_per_member"], row["ceiling_mb_per_s"], row["cpu_us_per_delivery"]) > 0
    assert [aim["aim"] for aim in aims] == ["cells that collapsed, lost messages or did not end"]


@pytest.mark.proof
def test_cells_are_printed_with_aims_and_progress() -> None:
    part = ["--transport", "udp", "--members", "3", "--senders", "1", "--size", "1000"]
    screen, told = run("multicast", "--matrix", *part, *SHORT)
    assert told == "measuring 1 of 1: udp, 1 → 2, 1000 B\n"
    assert "cpu us per delivery" in screen
    assert "1 → 2, 1000 B: messages/s, 1.1 × 725,000" in screen
    assert "compared figures: JGroups 5.6, tuned, on the same kind of machine" in screen


@pytest.mark.proof
def test_the_whole_matrix_ends_and_loses_nothing() -> None:
    rows, aims = report("multicast", "--matrix", *SHORT, "--json", "-")
    assert len(rows) == 94
    assert not [row["failed"] for row in rows if row["failed"]]
    assert {aim["aim"] for aim in aims} >= {
        "3 all, 100 B: CPU-µs per delivery",
        "3 all, 1000 B: goodput with 10% lost",
    }


@pytest.mark.proof
def test_messages_of_no_bytes_and_of_many_over_tcp() -> None:
    cells = ["--members", "2", "--size", "0", "--size", "1000000", "--transport", "tcp"]
    empty, large = json.loads(run("multicast", *cells, *SHORT, "--json", "-")[0])
    assert (empty["size"], empty["ceiling_ratio"], empty["lost"]) == (0, None, 0)
    assert (large["size"], large["lost"]) == (1_000_000, 0)
    assert large["ceiling_ratio"] > 0


@pytest.mark.proof
def test_a_cell_that_does_not_end_is_named_and_the_next_one_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stuck = Workload(members=2, seconds=0.02, runs=1, deadline_s=0.001)
    whole = Workload(members=2, seconds=0.02, runs=1)
    first, second = measure_cells([stuck, whole])
    assert re.search(r"^measuring 2 of 2, about \d+ s left: udp", capsys.readouterr().err, re.M)
    assert first["failed"].startswith("udp, 2 all, 1000 B: m")
    assert "messages after 0.001 s: " in first["failed"]
    assert second["failed"] is None
    monkeypatch.setattr(multicast, "DEADLINE_S", 0.001)
    part = ["--transport", "udp", "--members", "3", "--senders", "1", "--size", "1000"]
    _, told = run("multicast", "--matrix", *part, *SHORT, status=1)
    assert "1 of 1 cells failed" in told
    assert "udp, 1 → 2, 1000 B: m" in told


def test_a_process_that_says_nothing_is_killed() -> None:
    with (
        Cluster(members=2) as cluster,
        cluster.within(0.05),
        pytest.raises(RingcastError, match="a member process ended with status -9"),
    ):
        cluster.hear_all()


def test_nobody_waits_for_processes_of_a_command_that_is_interrupted() -> None:
    cluster = Cluster(members=1)
    with suppress(KeyboardInterrupt), cluster:
        (process,) = cluster.processes
        tell(process, {"op": "view", "names": ["m0", "never comes"]})
        raise KeyboardInterrupt
    assert process.returncode == -SIGKILL


@pytest.mark.parametrize("size", ["many", "100-mixd", "-5", "1e3"])
def test_a_size_that_is_none(size: str) -> None:
    _, told = run("multicast", "--size", size, status=2)
    assert f"'{size}' is not a size: write 1000, or 100-mixed" in told


# What the others print


@pytest.mark.parametrize("transports", FEW)
def test_unicast(transports: list[str]) -> None:
    rows, aims = report("unicast", *each(transports), "--size", "1000", *SHORT, "--json")
    assert [row["transport"] for row in rows] == transports
    for row in rows:
        assert (row["workload"], row["lost"]) == ("1 → 1", 0)
        assert min(row["rate_per_member"], row["ceiling_ratio"], row["cpu_us_per_delivery"]) > 0
    assert [aim["aim"] for aim in aims] == ["1 → 1, 1000 B: messages/s, 1 × 880,000"]


@pytest.mark.proof
@pytest.mark.parametrize("transports", [[*TRANSPORTS]])
def test_round_trips(transports: list[str]) -> None:
    rows, aims = report("rtt", *each(transports), "--count", "100", "--runs", "1", "--json")
    assert [(row["transport"], row["spin_ms"]) for row in rows] == [
        (transport, spin_ms) for transport in transports for spin_ms in (0.0, 1.0)
    ]
    for row in rows:
        assert row["what"] == "request and reply"
        assert 0 < row["p50_us"] <= row["p99_us"]
        assert 0 < row["raw_p50_us"] <= row["raw_p99_us"]
        assert 0 < row["raw_p50_least_us"] <= row["raw_p50_us"] <= row["raw_p50_most_us"]
        assert row["asyncio_p50_us"] > 0
        assert row["p50_to_raw"] == pytest.approx(row["p50_us"] / row["raw_p50_us"], rel=0.05)
        by_loop = row["p50_us"] / row["asyncio_p50_us"]
        assert row["p50_to_asyncio"] == pytest.approx(by_loop, rel=0.05)
    assert len(aims) == 4 * len(rows)
    assert {", spinning: " in aim["aim"] for aim in aims} == {True, False}


def test_memory() -> None:
    options = ["--members", "2", "--minutes", "0.01", "--every", "0.1"]
    screen, told = run("memory", *options, "--json")
    assert "minute 0.0 of 0.01: " in told
    (row,) = json.loads(screen)["rows"]
    assert 5 < row["idle_mb"] < row["most_mb"] + 5
    assert len(row["samples"]) >= 3
    assert {len(sample["resident_mb"]) for sample in row["samples"]} == {2}
    assert row["is_flat"] == (row["mb_per_minute"] <= row["flat_mb_per_minute"])


@pytest.mark.parametrize("transport", ["tcp", *OTHERS])
def test_joins(transport: str) -> None:
    options = ["--members", "1", "--runs", "1", "--transport", transport]
    rows, aims = report("join", *options, "--json")
    assert [(row["transport"], row["what"]) for row in rows] == [
        (transport, "join 1 members"),
        (None, "start of python"),
        (None, "import asyncio"),
        (None, "import ringcast"),
    ]
    assert all(row["median_s"] > 0 for row in rows)
    assert next(aim["aim"] for aim in aims) == f"by {transport}: join 1 members, s"
    assert {"held_p50_ms", "held_p99_ms"} <= rows[0].keys()


@pytest.mark.parametrize("transport", ["tcp", *OTHERS])
def test_crashes(transport: str) -> None:
    options = ["--members", "2", "--runs", "1", "--transport", transport]
    rows, aims = report("crash", *options, "--json")
    assert [(row["transport"], row["what"]) for row in rows] == [
        (transport, "kill a member"),
        (transport, "kill the coordinator"),
    ]
    assert len(aims) == 2


@pytest.mark.proof
@in_own_network
def test_a_host_that_vanishes() -> None:
    with Hosts(1):  # or it is skipped
        pass
    options = ["--cut", "--members", "2", "--runs", "1", "--transport", "udp"]
    rows, aims = report("crash", *options, "--json")
    assert [row["what"] for row in rows] == ["cut off a member", "cut off the coordinator"]
    assert min(row["least_s"] for row in rows) > 0
    assert [aim["wanted"] for aim in aims if aim["aim"].endswith(", s")] == ["≤ 1", "≤ 1"]


@pytest.mark.proof
@in_own_network
def test_sealed_and_insecure_groups_take_turns_where_packets_are_small() -> None:
    with Hosts(1):  # or it is skipped
        pass
    cell = ["--members", "2", "--senders", "1", "--size", "1000"]
    screen, told = run("multicast", "--mtu", "1500", *cell, *SHORT, "--json")
    rows = json.loads(screen)
    assert [(row["network"], row["sealed"]) for row in rows] == [
        (network, sealed)
        for network in ("MTU 65535", "MTU 1500", "interfaces cut nothing", "no offload")
        for sealed in (True, False)
    ]
    for sealed, insecure in zip(rows[::2], rows[1::2], strict=True):
        share = sealed["rate_per_member"] / insecure["rate_per_member"]
        assert sealed["sealed_share"] == pytest.approx(share, abs=0.01)
        assert insecure["sealed_share"] is None
    starts = [at for at, line in enumerate(told.splitlines()) if line.startswith("starting ")]
    assert told.splitlines()[starts[-1] + 1 :].count("measuring them in turn") == 1
    assert len(starts) == 8  # all are there before the first is measured
    assert [aim["aim"] for aim in rows[0]["aims"]] == [
        "1 → 1, 1000 B, MTU 65535: sealed to insecure",
        "1 → 1, 1000 B, MTU 1500: rate to that at 65535",
        "1 → 1, 1000 B, MTU 1500: sealed to insecure",
    ]


def network_row(size: int, network: str, rate: float, sealed: float | None) -> dict[str, Any]:
    return {
        **{"transport": "udp", "workload": "3 all", "size": size, "network": network},
        **{"sealed": sealed is not None, "rate_share": rate, "sealed_share": sealed},
    }


def test_the_aims_of_small_packets() -> None:
    rows = [
        network_row(1000, "MTU 65535", 1.0, 0.6),
        network_row(1000, "MTU 1500", 0.39, 0.59),
        network_row(1000, "MTU 1500", 0.2, None),
        network_row(10_000, "MTU 1500", 0.3, 0.7),
        network_row(100, "no offload", 0.1, 0.1),
    ]
    found = [(aim["aim"], aim["wanted"], aim["verdict"]) for aim in multicast_aims(rows)]
    assert found == [
        ("3 all, 1000 B, MTU 65535: sealed to insecure", "≥ 0.6", "met"),
        ("3 all, 1000 B, MTU 1500: rate to that at 65535", "≥ 0.4", "missed"),
        ("3 all, 1000 B, MTU 1500: sealed to insecure", "≥ 0.6", "missed"),
        ("3 all, 10000 B, MTU 1500: rate to that at 65535", "≥ 0.3", "met"),
        ("3 all, 10000 B, MTU 1500: sealed to insecure", "≥ 0.6", "met"),
    ]


def test_idle_members() -> None:
    (row,) = json.loads(run("idle", "--members", "2", "--seconds", "1", "--json")[0])
    (aim,) = row["aims"]
    assert aim["aim"] == "by udp, 2 members: % of a core each"
    assert 0 < row["cpu_percent"] <= row["most_cpu_percent"]
    assert min(row["wakeups_per_s"], row["datagrams_per_s"]) > 0
    assert 5 < row["resident_mb"] <= row["most_resident_mb"]


# Peers


def test_peers_that_are_not_installed_are_named_and_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compare, "PLACE", tmp_path)
    monkeypatch.setattr(compare, "find_spec", lambda name: None)
    screen, told = run("peers")
    assert screen == "\nno peer is installed: nothing to compare\n"
    assert told.splitlines() == [
        "pyzmq is left out: no zmq; have it by: make peers",
        "nats is left out: no nats; have it by: make peers, and apt-get install nats-server",
        "redis is left out: no redis; have it by: make peers, and apt-get install redis-server",
    ]


@pytest.mark.parametrize("peer", compare.PEERS)
def test_a_peer_in_turn_with_ours(peer: str) -> None:
    options = ["--peer", peer, "--size", "1000", "--count", "100", "--workload", "1 → 1", *SHORT]
    rows = json.loads(run("peers", *options, "--json")[0])
    if not rows:
        pytest.skip(f"{peer} is not installed")
    ways = [row["way"] for row in rows]
    assert ways == [way for way in ("single", "batched", "round trip") if way in ways]
    assert {"single", "round trip"} <= {*ways}
    assert all(row["peer"] == peer and row["ratio"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["rtt", "--size", "0"], "size = 0: must be from 1 to 60000 bytes"),
        (["rtt", "--count", "9"], "count = 9: must be from 100 to 1000000"),
        (["join", "--runs", "0"], "runs = 0: must be from 1 to 1000"),
        (["crash", "--members", "1"], "members = 1: must be from 2 to 16"),
        (["idle", "--members", "999"], "members = 999: must be from 1 to 200"),
        (["peers", "--count", "0"], "count = 0: must be from 1 to 1000000"),
        (["memory", "--minutes", "0"], "minutes = 0.0: must be more than 0, at most 1440"),
        (["memory", "--minutes", "0.1"], "every = 5.0: must be from 0.05 to a third of the time"),
        (["unicast", "--size", "2000000"], "size = 2000000: must be from 0 to 1048576 bytes"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments: list[str], complaint: str) -> None:
    _, told = run(*arguments, status=2)
    assert complaint in told


# What they make of it


def test_lost_messages_are_counted_whatever_came_in_their_place() -> None:
    assert lost({"a": 10, "b": 10}, 20, 2) == 0
    assert lost({"a": 12, "b": 8}, 20, 2) == 2
    assert lost({"a": 10}, 20, 2) == 10


def test_mixed_sizes_are_spread_around_their_average() -> None:
    sizes = sorted(map(len, payloads_of(100, is_mixed=True)))
    assert (sizes[0], sizes[-1]) == (0, 199)
    assert sum(sizes) / SEND_BATCH == pytest.approx(100, abs=1)
    assert set(map(len, payloads_of(100, is_mixed=False))) == {100}


def cell(transport: str, rate: int, **figures: Any) -> dict[str, Any]:
    return {
        "transport": transport,
        "workload": "4 all",
        "size": 1000,
        "mixed": False,
        "loss": 0.0,
        "receive_buffer": None,
        "rate_per_member": rate,
        "mb_per_s": rate / 1000,
        "cpu_us_per_delivery": 1.0,
        "ceiling_ratio": 0.5,
        "failed": None,
        **figures,
    }


def test_the_best_transport_counts_and_the_default_one_is_told() -> None:
    wanted, fallen = matrix_aims([cell("udp", 500_000), cell("tcp", 610_000)])
    assert (wanted["wanted"], wanted["measured"], wanted["verdict"]) == (
        "≥ 600,000",
        "610,000",
        "met",
    )
    assert wanted["why"] == "by tcp at 0.50 of raw sockets; udp: 500,000"
    assert fallen["verdict"] == "met"
    missed, _ = matrix_aims([cell("udp", 250_000, ceiling_ratio=0.9)])
    assert missed["verdict"] == "missed"
    assert missed["why"].endswith("which moved less than is wanted")


def test_what_remains_with_loss_is_compared_with_what_there_was() -> None:
    rows = [cell("udp", 100_000), cell("udp", 69_000, loss=0.01), cell("udp", 41_000, loss=0.1)]
    verdicts = {aim["aim"]: aim["verdict"] for aim in matrix_aims(rows)}
    assert verdicts["4 all, 1000 B: goodput with 1% lost"] == "missed"
    assert verdicts["4 all, 1000 B: goodput with 10% lost"] == "met"


def test_what_remains_with_a_small_receive_buffer_counts_by_itself() -> None:
    small = {"receive_buffer": 212_992, "plain_rate_per_member": 400_000}
    rows = [
        cell("udp", 400_000),
        cell("udp", 90_000, **small, buffer_ratio=0.24),
        cell("udp", 100_000, **small, buffer_ratio=0.25, cpu_us_per_delivery=0.1),
    ]
    aims = [*matrix_aims(rows)]
    name = "4 all, 1000 B: rate with a receive buffer of 212992 B"
    assert [aim["verdict"] for aim in aims if aim["aim"] == name] == ["missed", "met"]
    assert aims[0]["measured"] == "400,000"  # that of no cell with a small buffer
    assert len(aims) == 4


def test_a_cell_that_failed_or_crawls_has_collapsed() -> None:
    failed = {
        key: cell("tcp", 0)[key]
        for key in ("transport", "workload", "size", "mixed", "loss", "receive_buffer")
    }
    failed["failed"] = "tcp, 4 all, 1000 B: m1 has 3 of 4 messages after 30 s"
    rows = [cell("udp", 9000, ceiling_ratio=0.01), failed, cell("multicast", 9000)]
    assert [has_collapsed(row) for row in rows] == [True, True, False]
    *_, aim = matrix_aims(rows)
    assert (aim["measured"], aim["verdict"]) == ("2", "missed")
    assert aim["why"] == "udp 4 all 1000 B, tcp 4 all 1000 B"


def test_aims_are_met_at_their_limit() -> None:
    assert at_least("a", 2.0, 2.0)["verdict"] == at_most("a", 2.0, 2.0)["verdict"] == "met"
    assert at_least("a", 2.0, 1.9)["verdict"] == at_most("a", 2.0, 2.1)["verdict"] == "missed"
    assert len(set(MULTICAST)) == 12


def test_growth_is_the_slope_of_the_line_through_the_samples() -> None:
    assert slope_of([0, 1, 2, 3], [50, 52, 54, 56]) == pytest.approx(2)
    assert slope_of([0, 1, 2, 3], [50, 53, 47, 50]) == pytest.approx(-0.6)
    assert slope_of([1, 1], [50, 60]) == 0


def test_a_dict_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    said, told = run("dict", "--members", "2", "--size", "10", *SHORT, "--json")
    (row,) = json.loads(said)
    assert "no redis-server; have it by: apt-get install redis-server" in told
    assert not any(name.startswith("redis") for name in row)
    assert row["size"] == 10
    assert row["reads_per_s"] > row["writes_per_s"] > 0
    assert row["fresh_reads_per_s"] > 0
    assert 0 < row["p50_us"] <= row["p99_us"]


REDIS = """
import asyncio, sys

store = {}

async def serve(reader, writer):
    while line := await reader.readline():
        words = []
        for _ in range(int(line[1:])):
            size = int((await reader.readline())[1:])
            words.append((await reader.readexactly(size + 2))[:-2])
        match words:
            case b"SET", key, value:
                store[key] = value
                writer.write(b"+OK\\r\\n")
            case b"GET", key if key in store:
                writer.write(b"$%d\\r\\n%b\\r\\n" % (len(store[key]), store[key]))
            case b"GET", _:
                writer.write(b"$-1\\r\\n")

async def main():
    port = int(sys.argv[sys.argv.index("--port") + 1])
    async with await asyncio.start_server(serve, "127.0.0.1", port) as server:
        await server.serve_forever()

asyncio.run(main())
"""
"""As much of a server as the benchmark asks."""


def test_a_dict_is_measured_beside_redis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = tmp_path / "redis-server"
    server.write_text(f"#!{sys.executable}\n{REDIS}")
    server.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (row,) = json.loads(run("dict", "--members", "2", "--size", "10", *SHORT, "--json")[0])
    for name in ("writes_per_s", "p50_us", "redis_writes_per_s", "redis_p50_us"):
        assert row[name] > 0
    assert row["redis_reads_per_s"] > 0


def test_what_redis_refuses_ends_the_measurement() -> None:
    async def main() -> None:
        reader = asyncio.StreamReader()
        client = Redis(reader, NonCallableMock(spec=asyncio.StreamWriter))
        setting = asyncio.create_task(client.set("k", b"v"))
        await asyncio.sleep(0)
        reader.feed_data(b"-OOM no memory\r\n")
        reader.feed_eof()
        with pytest.raises(RingcastError, match="OOM"):
            await setting

    asyncio.run(main())
