"""A group's figures in a registry of prometheus_client, from whatever thread asks."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from loopback_groups import FIRST, run

import ringcast
from ringcast.aio.prometheus import METRICS

if TYPE_CHECKING:
    from pathlib import Path

client = pytest.importorskip("prometheus_client", reason="comes with ringcast[dev]")

from ringcast.prometheus import Collector  # noqa: E402 (it needs the client)


@pytest.fixture(autouse=True)
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def scraped(registry: object) -> str:
    return client.generate_latest(registry).decode()


def test_a_registry_has_the_figures_of_two_groups_while_they_last() -> None:
    registry = client.CollectorRegistry(auto_describe=True)
    client.Counter("orders", "The application's own.", registry=registry)

    async def main() -> None:
        async with (
            ringcast.join("orders", name="a", membership=FIRST) as orders,
            ringcast.join("prices", name="b", membership=FIRST) as prices,
        ):
            registry.register(Collector(orders, prices))
            await orders.send(b"hello")
            own = f'address="{orders.me.address}",group="orders",member="a"'
            for text in (scraped(registry), await asyncio.to_thread(scraped, registry)):
                assert f"ringcast_members{{{own}}} 1.0\n" in text
                assert f'ringcast_sent_total{{{own},stream="fifo"}} 1.0\n' in text
                assert 'group="prices"' in text
                families = [line.split()[2] for line in text.splitlines() if "# TYPE ring" in line]
                assert len(families) == len(set(families))
                assert set(families) <= {f"ringcast_{name}" for name in METRICS}
        assert "ringcast" not in scraped(registry)

    run(main())
    assert "ringcast" not in scraped(registry)
    assert "orders_total 0.0" in scraped(registry)


def test_it_has_the_figures_of_a_group_for_threads() -> None:
    registry = client.CollectorRegistry()
    with ringcast.blocking.join("orders", name="a", membership=FIRST) as group:
        registry.register(Collector(group))
        assert "ringcast_members{" in scraped(registry)
        group.wait_for_view(lambda _: "ringcast_members{" in scraped(registry))  # in its own thread
    assert scraped(registry) == ""


def test_a_busy_loop_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringcast.prometheus.WAIT_S", 0.01)

    async def main() -> None:
        async with ringcast.join("orders", membership=FIRST) as group:
            collector = Collector(group)
            with ThreadPoolExecutor() as pool:
                asked = pool.submit(lambda: list(collector.collect()))
                assert asked.result() == []  # this waits where the loop runs
            assert list(collector.collect())
            with pytest.raises(ringcast.UsageError, match="where its event loop runs"):
                await asyncio.to_thread(Collector, group)

    run(main())
