"""Being recorded changes nothing about how a member runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyarrow", reason="needs ringcast[spark]")

from ringcast.testing import cluster

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType

    import ringcast
    from ringcast.testing import Cluster


class Calls:
    """Lists the calls of ringcast's functions, without those that an observer makes."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._observing = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event not in ("call", "return"):
            return
        _, _, path = frame.f_code.co_filename.partition("/ringcast/")
        if self._observing:
            self._observing += 1 if event == "call" else -1
        elif event == "call" and path.startswith("trace/"):
            self._observing = 1
        elif event == "call" and path and frame.f_code.co_name not in ("<listcomp>", "<genexpr>"):
            self.names.append(f"{path}:{frame.f_code.co_name}")


async def answer(group: ringcast.Group) -> None:
    async for request in group.requests():
        request.reply(request.payload)


async def ask(group: ringcast.Group) -> None:
    for number in range(20):
        for member in group.view:
            if member != group.me:
                assert await group.request(member, b"%d" % number) == b"%d" % number
                await group.send(b"%d" % number, to=member)
        await group.send(b"%d" % number)


async def read(group: ringcast.Group) -> None:
    async for _ in group:
        pass


def busy(c: Cluster) -> float:
    c.start(read)
    c.start(answer)
    for task in [member.start(ask) for member in c.members]:
        c.run(task)
    return c.now_s


def calls_of(run: Callable[[Cluster], float], **options: Any) -> tuple[list[str], float]:
    calls = Calls()
    with cluster(3, seed=7, **options) as c:
        before = sys.getprofile()
        sys.setprofile(calls)
        try:
            ended_s = run(c)
        finally:
            sys.setprofile(before)
    return calls.names, ended_s


@pytest.mark.parametrize("level", ["deliveries", "full"])
def test_a_recorded_member_takes_the_same_path(tmp_path: Path, level: str) -> None:
    calls_of(busy)  # fills caches
    plain, plain_s = calls_of(busy)
    recorded, recorded_s = calls_of(busy, record=tmp_path, record_level=level)
    assert (
        "protocols/unicast_receiver.py:take_next" in plain
    )  # requests that come alone go the fast path
    for at, (one, other) in enumerate(zip(plain, recorded, strict=False)):
        assert one == other, f"call {at}: {one}, recorded {other}"
    assert len(plain) == len(recorded)
    assert recorded_s == plain_s
