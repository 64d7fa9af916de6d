"""Groups whose kernels grant small receive buffers: no sender stands still until a timer comes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from ringcast import GroupConfig, MulticastConfig, StabilityConfig
from ringcast.model import Stream
from ringcast.testing import cluster as virtual_cluster
from support.cluster import Cluster, cluster

if TYPE_CHECKING:
    from ringcast import Group

GRANTED = 212_992
"""What most kernels give an unprivileged process."""
SENT_BYTES = 2_000_000
LOOPBACK = 1 << 14


def granted(names: str, stream: Stream, bulk_bytes: int | None) -> Cluster:
    """Everybody's buffer is small, and everybody has said so."""
    sizes = {"datagram_bytes": 35_000, "window_bytes": 4 << 20, "bulk_bytes": bulk_bytes}
    c = Cluster(names, streams=(Stream.FIFO, Stream.UNIFORM), **sizes)
    for node in c.nodes.values():
        node.set_receive_buffer(GRANTED)
        node.send([b"first"], c.now, stream=stream)
    c.run(0.1)
    return c


@pytest.mark.parametrize("size", [100, 1000, 10_000, 100_000])
@pytest.mark.parametrize("bulk_bytes", [None, LOOPBACK])
@pytest.mark.parametrize("stream", [Stream.FIFO, Stream.UNIFORM])
def test_all_is_sent_without_any_time_passing(
    stream: Stream, bulk_bytes: int | None, size: int
) -> None:
    c = granted("ABC", stream, bulk_bytes)
    rest = dict.fromkeys(c.nodes, SENT_BYTES // size)
    while any(rest.values()):
        before = dict(rest)
        for name, node in c.nodes.items():
            if rest[name]:
                rest[name] -= node.send([bytes(size)] * rest[name], c.now, stream=stream)
        c.exchange()
        assert rest != before, "everybody waits for a timer"


def test_who_has_heard_nobody_yet_sends_no_more_than_it_could_take_itself() -> None:
    c = cluster(3, datagram_bytes=35_000, window_bytes=4 << 20)
    newcomer = c.start("D")
    newcomer.set_receive_buffer(GRANTED)
    c.install("ABCD")
    assert newcomer.send([bytes(1000)] * 4000, c.now) == GRANTED // 3 // 1000


def seconds_to_send(size: int) -> float:
    """How long three members that report take until each has what all of them have sent."""
    count, members, spent = SENT_BYTES // size, 3, 0.0

    async def app(group: Group) -> None:
        nonlocal spent
        await asyncio.sleep(0.5)  # everybody has said how much it can take
        start = asyncio.get_running_loop().time()
        sending = asyncio.create_task(group.send_many([bytes(size)] * count))
        came = 0
        async for batch in group.batches():
            came += len(batch.run.payloads)
            if came == members * count:
                break
        spent = max(spent, asyncio.get_running_loop().time() - start)
        await sending

    reports = MulticastConfig(stability=StabilityConfig())
    config = GroupConfig(group="small", multicast=reports, receive_buffer_bytes=GRANTED)
    with virtual_cluster(members, delay_s=0.001, config=config) as c:
        c.run(asyncio.wait(c.start(app)))
    return spent


@pytest.mark.parametrize("size", [1000, 10_000])
def test_rounds_of_votes_keep_up_with_small_windows(size: int) -> None:
    windows = SENT_BYTES / (GRANTED / 2)
    assert seconds_to_send(size) <= windows * 0.010  # five round trips for each
