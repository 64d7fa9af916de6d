"""Members that do not want their own messages: those count as delivered without a reader."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from ringcast import MulticastConfig, StabilityConfig
from ringcast.testing import cluster

if TYPE_CHECKING:
    from ringcast import Group
    from ringcast.aio.read_queue import Guarantee

WINDOW = 8
ACKS = MulticastConfig(capacity=WINDOW)
VOTES = MulticastConfig(capacity=WINDOW, stability=StabilityConfig(capacity_max=WINDOW))
LARGE = bytes(200_000)
"""More than a datagram holds."""


@pytest.mark.parametrize("config", [ACKS, VOTES], ids=["acks", "reports"])
@pytest.mark.parametrize("guarantee", ["fifo", "uniform"])
@pytest.mark.parametrize("others", [0, 1])
def test_nobody_need_read_ones_own_messages(
    config: MulticastConfig, guarantee: Guarantee, others: int
) -> None:
    async def scenario(a: Group) -> None:
        payloads = [b"x"] * (3 * WINDOW)
        await a.send_many([*payloads, LARGE, *payloads], guarantee=guarantee)
        await a.flush()

    with cluster(others, multicast=config, receive=False) as c:
        process = c.run(c.join("a", multicast=config, receive_own=False))
        c.run(scenario(process.group), limit_s=10)


def test_what_others_have_sent_still_waits_for_a_reader() -> None:
    async def scenario(a: Group, b: Group) -> None:
        await a.send_many([b"mine"] * (3 * WINDOW))
        sending = asyncio.create_task(b.send_many([b"theirs"] * (3 * WINDOW)))
        await asyncio.sleep(1)
        assert not sending.done()  # nobody has read it: its sender is blocked
        count = 0
        async for message in a:
            assert message.payload == b"theirs"
            count += 1
            if count == 3 * WINDOW:
                break
        await sending

    with cluster(1, multicast=ACKS, receive_own=False) as c:
        other = c.run(c.join("b", multicast=ACKS, receive=False))
        c.run(scenario(c.members[0].group, other.group), limit_s=10)
