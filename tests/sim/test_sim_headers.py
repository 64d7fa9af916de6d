"""Groups in which some messages have headers, under seeded faults: all guarantees hold, the flag is
the sender's at every receiver, and what would lose it is found."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, ClassVar

import pytest

from ringcast.model import Headed
from ringcast.sim import cluster as simulation
from ringcast.sim.plan import expand
from ringcast.sim.runner import run
from ringcast.sim.workload import Payloads
from ringcast.testing import cluster
from ringcast.window import assembler, fragmenter
from ringcast.wire.headers import encode_headers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ringcast.testing import Cluster

PLANS = [("multicast", {}), ("uniform", {}), ("unicast", {}), ("group", {"partitions": True})]


class Chatty(Payloads):
    """Three messages of four have headers, of any length."""

    made: ClassVar[Counter[type]] = Counter()

    def make(self, origin: str, counter: int, size: int) -> bytes:
        payload = super().make(origin, counter, size)
        if counter % 4:
            payload = Headed(encode_headers({origin: "x" * (counter % 3)}) + payload)
        self.made[type(payload)] += 1
        return payload


@pytest.fixture(autouse=True)
def chatty(monkeypatch: pytest.MonkeyPatch) -> None:
    Chatty.made.clear()
    monkeypatch.setattr(simulation, "Payloads", Chatty)


@pytest.mark.parametrize(("protocol", "how"), PLANS, ids=[plan for plan, _ in PLANS])
def test_guarantees_hold(protocol: str, how: dict[str, bool]) -> None:
    for seed in range(6):
        assert run(expand(seed, protocol, **how)).failures == (), seed
    assert min(Chatty.made[bytes], Chatty.made[Headed]) > 100


def test_with_rounds_whoever_has_it_repairs_it_as_it_was_sent() -> None:
    for seed in range(6):
        assert run(expand(seed, "multicast", purge="stability")).failures == (), seed


def test_in_virtual_time_the_time_of_sending_is_virtual() -> None:
    async def scenario(c: Cluster) -> None:
        a, b = (member.group for member in c.members)
        await asyncio.sleep(100)
        await a.send(b"one", headers={"k": "v"})
        async for message in b:
            assert message.sent_at is not None
            assert 100 <= message.sent_at < 110
            assert message.headers == {"k": "v"}
            break

    with cluster(2, send_time=True) as c:
        c.run(scenario(c), limit_s=200)


def as_one(first: int, payloads: Iterable[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    yield first, list(payloads)


@pytest.mark.parametrize("place", [fragmenter, assembler], ids=["sent again", "delivered"])
def test_a_run_that_is_not_cut_is_found(place: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "alike", as_one)
    found: Counter[str] = Counter()
    for seed in range(12):
        found += Counter(failure.rule for failure in run(expand(seed, "multicast")).failures)
        if found:
            break
    assert found
