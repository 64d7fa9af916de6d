"""Receipts and flush of whole groups, in virtual time: what they say is true, and they say it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from seeded import seeds

from ringcast import (
    GroupClosed,
    MembershipConfig,
    MulticastConfig,
    NotDelivered,
    StabilityConfig,
    UnicastConfig,
)
from ringcast.testing import cluster

if TYPE_CHECKING:
    from ringcast import Group, Receipt
    from ringcast.testing import Cluster

ACKS = {"multicast": MulticastConfig(capacity=16), "unicast": UnicastConfig(capacity=16)}
VOTES: dict[str, Any] = {"multicast": MulticastConfig(capacity=16, stability=StabilityConfig())}
HOW: dict[str, dict[str, Any]] = {
    "fifo": {},
    "uniform": {"guarantee": "uniform"},
    "to one": {"to": "m1"},
}


def options_for(how: str, group: Group) -> dict[str, Any]:
    return {key: group.view["m1"] if key == "to" else value for key, value in HOW[how].items()}


class Application:
    """Reads all that comes, and keeps it."""

    def __init__(self) -> None:
        self.got: set[tuple[str, bytes]] = set()

    async def follow(self, group: Group) -> None:
        async for message in group:
            self.got.add((message.sender.name, message.payload))


def chatter(group: Group, **options: Any) -> asyncio.Task[None]:
    async def send() -> None:
        while True:
            await group.send_many([b"more"] * 5, **options)
            await asyncio.sleep(0)

    return asyncio.create_task(send())


# Flush


@pytest.mark.parametrize("config", [ACKS, VOTES], ids=["acks", "reports"])
@pytest.mark.parametrize("how", HOW)
def test_a_flush_does_not_wait_for_what_is_sent_after_it(how: str, config: dict[str, Any]) -> None:
    async def scenario(c: Cluster, a: Group) -> None:
        options = options_for(how, a)
        sending = chatter(a, **options)
        await asyncio.sleep(0.1)
        await a.flush()
        sending.cancel()

    with cluster(3, receive=False, **config) as c:
        c.run(scenario(c, c.members[0].group), limit_s=5)


def test_a_flush_waits_for_what_every_task_has_sent_before_it() -> None:
    async def scenario(a: Group, app: Application) -> None:
        sent = [b"%d" % number for number in range(100)]
        await asyncio.gather(*(a.send(payload) for payload in sent))
        await a.flush()
        assert app.got == {("m0", payload) for payload in sent}

    app = Application()
    with cluster(1, receive=False) as c:
        c.run(c.join("reads")).start(app.follow)
        c.run(scenario(c.members[0].group, app))


# Receipts


@pytest.mark.parametrize("config", [ACKS, VOTES], ids=["acks", "reports"])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("seed", seeds(1, 2))
def test_what_a_receipt_says_is_true(seed: int, how: str, config: dict[str, Any]) -> None:
    """Under loss, with large messages among small ones, and a member that crashes in between."""

    async def check(a: Group, payload: bytes, apps: dict[str, Application]) -> bool:
        options = options_for(how, a)
        receipt = await a.send(payload, receipt=True, **options)
        names = ["m1"] if how == "to one" else [who.name for who in a.view if who != a.me]
        try:
            await receipt.delivered()
        except NotDelivered as error:
            missing = [who.name for who in error.missing]
        else:
            missing = []
            assert all(("m0", payload) in apps[name].got for name in names)
        assert missing in ([], ["m2"])
        return not missing

    async def scenario(c: Cluster) -> tuple[int, int]:
        apps = {process.name: Application() for process in c.members}
        for process in c.members:
            process.start(apps[process.name].follow)
        a = c.members[0].group
        payloads = [b"%d " % n + bytes(150_000 if n % 10 == 9 else 10) for n in range(60)]
        checks = []
        for at, payload in enumerate(payloads):
            checks.append(asyncio.create_task(check(a, payload, apps)))
            await asyncio.sleep(0.003)
            if at == 30:
                c.members[2].crash(silently=True)
        outcomes = await asyncio.gather(*checks)
        assert a.stats()["receipts"] == {"pending": 0}
        return sum(outcomes), len(outcomes)

    with cluster(4, seed=seed, loss=0.05, duplicates=0.05, **config) as c:
        delivered, total = c.run(scenario(c), limit_s=60)
    assert delivered > 10
    assert (delivered == total) == (how == "to one")


def test_a_receipt_tells_who_has_left_without_reading() -> None:
    async def scenario(c: Cluster) -> None:
        a, b = (process.group for process in c.members[:2])
        receipt = await a.send(b"x", receipt=True)
        waiting = [asyncio.create_task(receipt.delivered()) for _ in range(2)]
        await asyncio.sleep(1)
        assert not receipt.is_delivered()
        await c.members[1].leave()
        for task in waiting:
            with pytest.raises(NotDelivered, match="m1 left, or was excluded") as caught:
                await task
            assert caught.value.missing == (b.me,)
        with pytest.raises(NotDelivered):
            await receipt.delivered()  # also later

    with cluster(2) as c:
        c.run(scenario(c), limit_s=20)


def test_who_leaves_after_it_has_delivered_is_not_missing() -> None:
    async def scenario(c: Cluster, a: Group) -> None:
        for _ in range(20):
            process = await c.join("leaver", receive=False)
            await a.wait_for_view(lambda view: len(view) == 2)
            receipt = await a.send(b"x", receipt=True)
            await asyncio.sleep(0.002)
            await process.leave()
            await receipt.delivered()

    with cluster(1, receive=False, delay_s=0.001) as c:
        c.run(scenario(c, c.members[0].group), limit_s=60)


@pytest.mark.parametrize("how", HOW)
def test_a_receipt_fails_if_this_member_is_out_first(how: str) -> None:
    async def leave(a: Group) -> Receipt:
        receipt = await a.send(b"x", receipt=True, **options_for(how, a))
        waiting = asyncio.create_task(receipt.delivered())
        await a.leave()
        with pytest.raises(GroupClosed):
            await waiting
        return receipt

    with cluster(2, membership=MembershipConfig(leave_timeout_s=1.0)) as c:
        receipt = c.run(leave(c.members[0].group), limit_s=20)
        with pytest.raises(GroupClosed):
            receipt.is_delivered()


def test_a_receipt_of_a_former_incarnation_fails_with_it() -> None:
    async def scenario(c: Cluster) -> None:
        a = c.members[0].group
        receipt = await a.send(b"x", receipt=True)
        c.partition(c.members[:1], c.members[1:])
        others = c.members[1].group
        await others.wait_for_view(lambda view: len(view) == 2)
        with pytest.raises((NotDelivered, GroupClosed)):
            await receipt.delivered()
        c.heal()
        await a.wait_for_view(lambda view: len(view) == 3)
        assert (await a.send(b"y", receipt=True)).is_delivered() is False

    with cluster(3) as c:
        c.run(scenario(c), limit_s=120)


def test_alone_there_is_nobody_to_wait_for() -> None:
    async def scenario(a: Group) -> None:
        receipt = await a.send(b"x", receipt=True)
        assert receipt.is_delivered()
        await receipt.delivered()
        assert await a.send(b"y") is None  # type: ignore[func-returns-value]

    with cluster(1) as c:
        c.run(scenario(c.members[0].group))
