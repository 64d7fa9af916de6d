"""A member with a limit, among members without, on real sockets."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
from loopback_groups import until, with_members

from ringcast import MulticastConfig, UsageError, join
from ringcast.aio.loop import run

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringcast import Group

SMALL = MulticastConfig(max_message_bytes=100_000, datagram_bytes=10_000)
LIMIT = 64 << 20
MESSAGES = 200


def kept(group: Group) -> int:
    stats: Any = group.stats()
    return int(stats["memory"]["taken"] + stats["read_queue"]["bytes"])


async def take_all(group: Group, measure: Callable[[Group], int] = lambda _: 0) -> int:
    """The most that it kept between two runs."""
    most = count = 0
    async for delivered in group.batches():
        most, count = max(most, measure(group)), count + len(delivered.run.payloads)
        if count == 2 * MESSAGES:
            break
    return most


def test_a_member_keeps_no_more_than_its_limit_and_gets_everything() -> None:
    @with_members(3, multicast=SMALL, per_member=[{"memory_limit": LIMIT}, {}, {}])
    async def test(a: Group, b: Group, c: Group) -> None:
        memory: Any = [each.stats()["memory"] for each in (a, b)]
        assert memory[0]["limit"] == LIMIT < memory[1]["limit"]
        sending = [each.send_many([bytes(50_000)] * MESSAGES) for each in (b, c)]
        tasks = [asyncio.create_task(each) for each in (*sending, take_all(b), take_all(c))]
        await until(lambda: kept(a) > 1 << 20)  # nobody reads there
        assert any("MB are taken: " in why for why in a.explain())
        assert 1 << 20 < await take_all(a, kept) <= LIMIT
        await asyncio.gather(*tasks)


def test_a_limit_that_cannot_be_kept_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def main(limit: int) -> None:
        async with join("test", memory_limit=limit):
            pass

    with pytest.raises(
        UsageError, match=r"memory_limit = 1000: must be at least \d+ for 2 members"
    ):
        run(main(1000))
    with pytest.raises(UsageError) as caught:
        run(main(2000))
    least = int(str(caught.value).split("at least ")[1].split()[0])
    limited = {"memory_limit": least}

    @with_members(3, per_member=[limited, {}, {}])
    async def test(a: Group, *_: Group) -> None:
        assert any("and cannot be kept: give at least" in why for why in a.explain())

    warnings = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert sum("cannot be kept" in each for each in warnings) == 1
