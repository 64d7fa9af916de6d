"""Groups whose members talk by TCP: as an application sees them, and as real processes."""

from __future__ import annotations

import asyncio
import os
import random
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from loopback_groups import (
    DEADLINE_S,
    FIRST,
    PATIENT,
    exclude,
    numbered,
    read,
    until,
    vanish,
    with_members,
)
from stream_proxy import StreamProxy

from benchmarks.multicast import measure
from benchmarks.workload import Workload
from ringcast import ConfigError, JoinTimeout, MulticastConfig, UsageError, join
from ringcast.aio.loop import run
from ringcast.aio.sources import ListSource
from ringcast.cli import main as command_line
from ringcast.config import DISCOVERY_WAIT_MIN_S
from ringcast.protocols import failure
from ringcast.sim.processes import Cluster, hear, tell

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ringcast import Group, MembershipConfig


def transport_of(group: Group) -> Any:
    return group.stats()["transport"]


def bounded(main: Awaitable[None]) -> None:
    async def run_it() -> None:
        await asyncio.wait_for(main, DEADLINE_S)

    run(run_it())


# As an application sees them


def test_everybody_gets_everything_in_each_senders_order() -> None:
    async def exchange(*groups: Group) -> None:
        names = [group.me.name for group in groups]
        sending = [
            asyncio.create_task(group.send_many(numbered(group.me.name, 2000))) for group in groups
        ]
        for found in await asyncio.gather(*(read(group, 8000) for group in groups)):
            for name in names:
                assert [p for sender, p in found if sender == name] == numbered(name, 2000)
        await asyncio.gather(*sending)
        for group in groups:
            stats = transport_of(group)
            assert (stats["kind"], stats["connections"], len(stats["peers"])) == ("tcp", 3, 3)
            assert (stats["dropped"], stats["malformed"], stats["refused"]) == (0, 0, [])
            for peer in stats["peers"].values():
                assert (peer["connection"], peer["reconnects"], peer["dropped"]) == (
                    "connected",
                    0,
                    0,
                )
            await until(lambda group=group: group.explain() == [])

    with_members(4, transport="tcp")(exchange)


def test_large_messages_and_messages_to_one_member() -> None:
    async def exchange(a: Group, b: Group, c: Group) -> None:
        large = os.urandom(5_000_000)
        sending = asyncio.create_task(a.send(large))
        alone = asyncio.create_task(c.send(large[::-1], to=b.view["B"]))
        by_a, by_b, by_c = await asyncio.gather(read(a, 1), read(b, 2), read(c, 1))
        assert set(by_b) == {("A", large), ("C", large[::-1])}
        assert by_a == by_c == [("A", large)]
        await asyncio.gather(sending, alone)
        await a.send(b"all or none", guarantee="uniform")
        for group in (a, b, c):
            assert await read(group, 1) == [("A", b"all or none")]

    with_members(3, transport="tcp")(exchange)


def test_who_is_gone_is_missed_at_once() -> None:
    """Nobody is suspected for silence here: that nobody listens is what tells."""

    async def exchange(a: Group, b: Group, c: Group) -> None:
        started = time.monotonic()
        vanish(a)
        for group in (b, c):
            view = await group.wait_for_view(lambda view: len(view) == 2)
            assert [member.name for member in view] == ["B", "C"]
        assert time.monotonic() - started < PATIENT.verify_s / 2
        await b.send(b"we go on")
        assert await read(c, 1) == [("B", b"we go on")]

    with_members(3, transport="tcp")(exchange)


def test_who_has_no_connection_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure, "REFUSALS", 1_000_000)  # or it would be out of the view at once

    async def exchange(a: Group, b: Group, c: Group) -> None:
        vanish(b)
        expected = "no connection to B: refused, next try in "
        await until(lambda: any(reason.startswith(expected) for reason in a.explain()))
        stats = transport_of(a)
        assert stats["refused"] == [str(b.me.address)]
        assert stats["peers"][str(b.me.address)]["trouble"] == "refused"
        assert not any("to C" in reason for reason in a.explain())
        await c.send(b"others are reached")
        assert await read(a, 1) == [("C", b"others are reached")]

    with_members(3, transport="tcp", membership=replace(PATIENT, leave_timeout_s=0.1))(exchange)


def test_who_was_left_out_comes_back_by_the_same_connections() -> None:
    async def exchange(a: Group, b: Group) -> None:
        was = b.me
        exclude(was, by=a)
        await b.wait_for_view(lambda view: len(view) == 1)
        for group in (a, b):
            await group.wait_for_view(lambda view: len(view) == 2)
        assert b.me == was
        await b.send(b"after")
        assert await read(a, 1) == await read(b, 1) == [("B", b"after")]
        assert transport_of(b)["connections"] == 1

    with_members(2, transport="tcp")(exchange)


@pytest.mark.parametrize("kinds", [("udp", "tcp"), ("tcp", "udp")])
def test_members_with_different_transports_do_not_meet(kinds: tuple[Any, Any]) -> None:
    async def main() -> None:
        async with join("test", name="A", membership=FIRST, transport=kinds[0]) as a:
            hasty = replace(PATIENT, discovery_wait_s=0.2)
            with pytest.raises(JoinTimeout, match=f"nobody answered at {a.me.address}: is group"):
                async with join(
                    "test",
                    members=[str(a.me.address)],
                    membership=hasty,
                    must_exist=True,
                    transport=kinds[1],
                ):
                    pass
            assert str(a.view) == "View 1: A"

    bounded(main())


def test_a_transport_that_there_is_not_is_refused() -> None:
    async def main() -> None:
        kind: Any = "pigeon"
        async with join("test", transport=kind):
            pass

    with pytest.raises(
        ConfigError, match="transport = 'pigeon': must be 'udp', 'multicast' or 'tcp'"
    ):
        bounded(main())


def test_a_port_in_use_is_said() -> None:
    async def exchange(a: Group) -> None:
        address = str(a.me.address)
        with pytest.raises(UsageError, match=f"cannot listen on {address}"):
            async with join("test", listen=address, members=[address], transport="tcp"):
                pass

    with_members(1, transport="tcp")(exchange)


def test_among_many_that_refuse_who_answers_is_heard() -> None:
    async def exchange(a: Group) -> None:
        dead = [f"127.0.0.1:{port}" for port in range(1, 40)]
        members = [*dead, str(a.me.address), *reversed(dead)]
        async with join(
            "test", name="B", members=members, membership=PATIENT, transport="tcp"
        ) as b:
            assert str(b.view) == "View 2: A, B"
            await until(lambda: b.explain() == [])  # who is in waits for none of these

    with_members(1, transport="tcp")(exchange)


# Through a network that breaks

QUICK = MulticastConfig(xmit_interval_s=0.1, ack_delay_s=0.01)


SOON = replace(PATIENT, heartbeat_s=0.1, suspect_after_s=0.8, verify_s=0.5)


def behind_proxies(
    count: int, membership: MembershipConfig = PATIENT
) -> Callable[[Callable[..., Awaitable[None]]], None]:
    """Run a coroutine function on so many groups and the proxies before them."""

    def start(test: Callable[..., Awaitable[None]]) -> None:
        async def main() -> None:
            groups: list[Group] = []
            proxies: list[StreamProxy] = []
            async with AsyncExitStack() as stack:
                for at in range(count):
                    proxies.append(await stack.enter_async_context(StreamProxy()))
                    wait_s = DISCOVERY_WAIT_MIN_S if at == 0 else DEADLINE_S
                    joining = join(
                        "test",
                        name="ABC"[at],
                        transport="tcp",
                        listen=proxies[at].listen,
                        advertise=proxies[at].advertise,
                        discovery=ListSource([group.me.address for group in groups]),
                        multicast=QUICK,
                        membership=replace(membership, discovery_wait_s=wait_s),
                    )
                    groups.append(await stack.enter_async_context(joining))
                assert [str(group.me.address) for group in groups] == [
                    proxy.advertise for proxy in proxies
                ]
                await test(groups, proxies)

        bounded(main())

    return start


async def check_traffic(
    groups: list[Group], count: int, disturb: Callable[[int], None] = lambda _: None
) -> None:
    """Everybody sends so many, one at a time, and reads all of all; it is disturbed meanwhile."""

    async def send(group: Group) -> None:
        for payload in numbered(group.me.name, count):
            await group.send(payload)
            await asyncio.sleep(0)

    async def receive(group: Group) -> list[tuple[str, bytes]]:
        found = []
        for number in range(count):
            found += await read(group, len(groups))
            if group is groups[0]:
                disturb(number)
        return found

    sending = [asyncio.create_task(send(group)) for group in groups]
    view = groups[0].view
    for found in await asyncio.gather(*map(receive, groups)):
        for group in groups:
            name = group.me.name
            assert [payload for sender, payload in found if sender == name] == numbered(name, count)
    await asyncio.gather(*sending)
    assert {group.view for group in groups} == {view}  # nobody was missed


def total(groups: list[Group], counter: str) -> int:
    return sum(int(transport_of(group)[counter]) for group in groups)


def reconnects(groups: list[Group]) -> int:
    peers = [peer for group in groups for peer in transport_of(group)["peers"].values()]
    return sum(int(peer["reconnects"]) for peer in peers)


def test_bytes_may_come_one_by_one() -> None:
    async def exchange(groups: list[Group], proxies: list[StreamProxy]) -> None:
        for proxy in proxies:
            proxy.piece_bytes = 1
        await check_traffic(groups, 30)
        assert total(groups, "malformed") == total(groups, "dropped") == reconnects(groups) == 0

    behind_proxies(3)(exchange)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_connections_that_are_cut_are_made_again(seed: int) -> None:
    async def exchange(groups: list[Group], proxies: list[StreamProxy]) -> None:
        dice = random.Random(seed)

        def disturb(number: int) -> None:
            if number % 20 == 5:
                dice.choice(proxies).cut()

        await check_traffic(groups, 100, disturb)
        assert reconnects(groups) > 0
        assert total(groups, "malformed") == 0
        assert sum(proxy.accepted for proxy in proxies) > 3

    behind_proxies(3)(exchange)


@pytest.mark.parametrize("seed", [1, 2])
def test_what_was_garbled_is_never_delivered(seed: int) -> None:
    async def exchange(groups: list[Group], proxies: list[StreamProxy]) -> None:
        dice = random.Random(seed)

        def disturb(number: int) -> None:
            if number % 20 == 5:
                dice.choice(proxies).garble_next = 1

        await check_traffic(groups, 100, disturb)
        assert total(groups, "malformed") > 0
        assert reconnects(groups) > 0
        rejected = [group.stats()["rejected"] for group in groups]
        assert rejected == [{}] * 3  # none of it got so far

    behind_proxies(3)(exchange)


def test_a_link_that_stalls_holds_up_and_loses_nothing() -> None:
    async def exchange(groups: list[Group], proxies: list[StreamProxy]) -> None:
        a = groups[0]
        for proxy in proxies:
            proxy.stall()
        sending = asyncio.create_task(a.send_many([bytes(50_000)] * 1000))
        await until(lambda: any("blocked" in reason for reason in a.explain()))
        assert transport_of(a)["dropped"] == 0
        for proxy in proxies:
            proxy.go_on()
        for found in await asyncio.gather(*(read(group, 1000) for group in groups)):
            assert len(found) == 1000
        await sending
        assert reconnects(groups) == 0

    behind_proxies(3)(exchange)


def test_both_sides_of_a_link_that_is_silent_go_on_and_become_one_again() -> None:
    async def exchange(groups: list[Group], proxies: list[StreamProxy]) -> None:
        a, b = groups
        before = {a.me, b.me}
        for proxy in proxies:
            proxy.stall()
        for group in groups:
            await group.wait_for_view(lambda view: len(view) == 1)
        await a.send(b"apart")
        assert await read(a, 1) == [("A", b"apart")]
        for proxy in proxies:
            proxy.go_on()
        for group in groups:
            await group.wait_for_view(lambda view: len(view) == 2)
        assert {a.me, b.me} == before  # nobody was excluded
        await a.send(b"together")
        assert await read(a, 1) == await read(b, 1) == [("A", b"together")]

    behind_proxies(2, SOON)(exchange)


# Real processes

LONG = {"suspect_after_s": 600.0, "verify_s": 60.0}
"""Nobody is missed but by refused connections."""

TRADE = {"op": "trade", "seconds": 2.0, "batch": 20, "rate": 2000}


def test_processes_trade_and_two_are_killed_in_the_middle() -> None:
    with Cluster(members=4, transport="tcp", membership=LONG) as cluster:
        cluster.tell_all(TRADE)
        for at in (0, 1):  # the first coordinates
            await_sending(cluster, at)
            cluster.kill(at)
        sent = [answer["sent"] for answer in cluster.hear_all()]
        expect = dict(zip(cluster.names, sent, strict=True))
        assert min(sent) > 200
        cluster.tell_all({"op": "finish", "expect": expect})
        for answer in cluster.hear_all():
            assert {name: answer["read"][name] for name in expect} == expect
            assert answer["view"] == cluster.names == ["m1", "m3"]


def await_sending(cluster: Cluster, at: int) -> None:
    """Return when this member has sent 200 messages more. Each look is a round trip to it."""
    before = None
    while True:
        tell(cluster.processes[at], {"op": "stats"})
        stats = hear(cluster.processes[at])
        assert "sent" not in stats, "the trade was over before the kill"
        assert stats["transport"]["kind"] == "tcp"
        high = stats["ViewStreams"]["sent"]["fifo"]["high"]
        before = high if before is None else before
        if high >= before + 200:
            return


def test_a_process_that_restarts_on_its_port_is_let_in_again() -> None:
    with Cluster(members=2, transport="tcp", membership=LONG) as cluster:
        listen = cluster.enter(cluster.start())["listen"]
        for name in ("m3", "m4"):
            cluster.kill(2)
            again = cluster.enter(cluster.start(listen=listen))
            assert again["listen"] == listen
            assert [answer["view"] for answer in cluster.await_view()] == [["m0", "m1", name]] * 3


@pytest.mark.proof
def test_the_bench_measures_it() -> None:
    workload = Workload(members=2, seconds=0.1, runs=1, transport="tcp")
    with workload.cluster() as cluster:
        report = measure(workload, cluster)
    assert (report["transport"], report["lost"]) == ("tcp", 0)
    assert report["rate_per_member"] > 0
    result = CliRunner().invoke(command_line, ["bench", "multicast", "--transport", "pigeon"])
    assert result.exit_code == 2
    assert "'udp', 'multicast', 'tcp'" in result.output
