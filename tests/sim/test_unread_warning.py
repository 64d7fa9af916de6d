"""Messages wait and nobody reads: that is said once, in time, with what can be done about it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ringcast import MulticastConfig
from ringcast.testing import cluster

if TYPE_CHECKING:
    from collections.abc import Awaitable

    import pytest

    from ringcast import Group

SMALL = MulticastConfig(capacity=8)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.message for one in caplog.records if "nobody has read" in one.message]


async def read_slowly(group: Group) -> None:
    async for _ in group:
        await asyncio.sleep(1.0)


def test_it_is_said_once_after_five_seconds_and_names_both_remedies(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with cluster(2) as c:
        m0, m1 = (process.group for process in c.members)
        m0_reads = c.members[0].start(read_slowly)
        c.run(m0.send(b"x"))
        c.run(asyncio.sleep(4.9))
        assert warnings(caplog) == []
        c.run(asyncio.sleep(0.2))
        (warning,) = warnings(caplog)
        c.run(asyncio.sleep(60.0))
        assert warnings(caplog) == [warning]
        assert not m0_reads.done()
        assert m1.me.name == "m1"
    assert warning == (
        "m1: messages wait and nobody has read them for 5 s; this blocks the senders of the group. "
        "Read with `async for message in group`, or join with receive=False to take and drop them."
    )


def test_who_holds_itself_up_is_told_too(caplog: pytest.LogCaptureFixture) -> None:
    """Alone in a group nothing ever arrives: there is only the one who sends."""
    with cluster(1, multicast=SMALL) as c:
        (m0,) = c.members
        sending = m0.start(lambda group: group.send_many([b"x"] * 9))
        c.run(asyncio.sleep(5.1))
        assert not sending.done()
        (warning,) = warnings(caplog)
        assert warning.startswith("m0: messages wait")


def test_nothing_is_said_of_who_reads_slowly_or_wants_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def send(group: Group) -> Awaitable[None]:
        return group.send_many([b"x"] * 60)

    with cluster(2, multicast=SMALL) as c:
        c.start(read_slowly)
        c.run(asyncio.wait_for(send(c.members[0].group), 120.0))
    with cluster(2, multicast=SMALL, receive=False) as c:
        c.run(asyncio.wait_for(send(c.members[0].group), 1.0))
        c.run(asyncio.sleep(60.0))
    assert warnings(caplog) == []
