"""A member's figures over HTTP, asked for as Prometheus does, and as nobody should."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest
from loopback_groups import DEADLINE_S, FIRST, run

from ringcast import UsageError, join
from ringcast.aio.metrics import CLIENTS_MAX, REQUEST_BYTES_MAX, Metrics
from ringcast.aio.prometheus import METRICS
from ringcast.model import Address

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

LOOPBACK = Address("127.0.0.1", 0)


def test_a_member_tells_its_figures_while_it_is_in_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    async def main() -> None:
        async with join("orders", name="a", metrics="127.0.0.1:0", membership=FIRST) as group:
            await group.send(b"hello")
            stats = group.stats()["metrics"]
            assert isinstance(stats, dict)
            url = f"http://{stats['address']}/metrics"
            text = await asyncio.to_thread(_scrape, url)
            own = f'group="orders",member="a",address="{group.me.address}"'
            assert f"ringcast_members{{{own}}} 1\n" in text
            assert f'ringcast_sent_total{{{own},stream="fifo"}} 1\n' in text
            assert text.count("# TYPE ") >= 10
            assert {line.split()[2] for line in text.splitlines() if line.startswith("#")} <= {
                f"ringcast_{name}" for name in METRICS
            }
        with pytest.raises(OSError, match="refused"):
            await asyncio.to_thread(_scrape, url)

    run(main())


def _scrape(url: str) -> str:
    with urlopen(url, timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        content: bytes = answer.read()
        return content.decode()


def test_an_address_that_cannot_be_had_is_told_before_anything_else() -> None:
    async def main() -> None:
        with socket.create_server(LOOPBACK) as taken:
            address = "{}:{}".format(*taken.getsockname())
            with pytest.raises(UsageError) as caught:
                async with join("orders", metrics=address):
                    pass
        assert str(caught.value) == (f"cannot tell metrics on {address}: Address already in use")
        with pytest.raises(UsageError, match="is not a loopback address"):
            async with join("orders", metrics="192.0.2.1:9464"):
                pass

    run(main())


def with_metrics(
    exchange: Callable[[Metrics, Address], Awaitable[None]], patience_s: float = 60.0
) -> None:
    async def main() -> None:
        metrics = Metrics(lambda: "figures\n", patience_s=patience_s)
        await metrics.start(LOOPBACK)
        try:
            assert metrics.address is not None
            await asyncio.wait_for(exchange(metrics, metrics.address), DEADLINE_S)
        finally:
            metrics.close()

    run(main())


async def ask(address: Address, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(request)
        return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /metrics HTTP/1.1", b"200"),
        (b"GET /metrics?name[]=x HTTP/1.0", b"200"),
        (b"HEAD /metrics HTTP/1.1", b"200"),
        (b"GET / HTTP/1.1", b"404"),
        (b"POST /metrics HTTP/1.1", b"405"),
        (b"GET /metrics HTTP/2", b"400"),
        (b"\xff", b"400"),
        (b"GET /" + b"x" * REQUEST_BYTES_MAX, b"431"),
    ],
)
def test_what_is_answered(request_line: bytes, status: bytes) -> None:
    async def exchange(metrics: Metrics, address: Address) -> None:
        answer = await ask(address, request_line + b"\r\nHost: x\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.split(b" ")[1] == status
        length = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
        assert length > 0
        assert len(body) == (0 if request_line.startswith(b"HEAD") else length)
        assert (body == b"figures\n") == (request_line.startswith(b"GET") and status == b"200")
        assert (metrics.answered, metrics.refused) == ((1, 0) if status == b"200" else (0, 1))

    with_metrics(exchange)


def test_who_is_too_slow_or_gone_is_dropped() -> None:
    async def exchange(metrics: Metrics, address: Address) -> None:
        assert await ask(address, b"GET /met") == b""
        assert metrics.dropped == 1
        _, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /metrics")
        writer.write_eof()
        while metrics.dropped < 2:
            await asyncio.sleep(0)
        writer.close()

    with_metrics(exchange, patience_s=0.1)


def test_no_more_than_so_many_at_once() -> None:
    async def exchange(metrics: Metrics, address: Address) -> None:
        waiting = [await asyncio.open_connection(*address) for _ in range(CLIENTS_MAX)]
        while metrics.stats()["clients"] != CLIENTS_MAX:
            await asyncio.sleep(0)
        assert await ask(address, b"") == b""
        assert metrics.dropped == 1
        for reader, writer in waiting:
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert (await reader.read()).endswith(b"\r\n\r\nfigures\n")
            writer.close()

    with_metrics(exchange)
