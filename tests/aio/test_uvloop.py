"""Groups on uvloop, over each transport: messages, requests, a view without who has left."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from loopback_groups import FIRST

import ringcast

if TYPE_CHECKING:
    from pathlib import Path

    from ringcast.config import TransportName

uvloop = pytest.importorskip(
    "uvloop", reason="`make proof` installs it where only this test sees it"
)

COUNT = 5000


@pytest.mark.proof
@pytest.mark.parametrize("transport", ["udp", "multicast", "tcp"])
def test_a_group_does_its_work_on_uvloop(
    transport: TransportName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # private, as pytest makes it
    options: dict[str, Any] = {"transport": transport, "membership": FIRST}

    async def read(group: ringcast.Group) -> list[bytes]:
        return [(await anext(aiter(group))).payload for _ in range(COUNT)]

    async def main() -> None:
        assert type(asyncio.get_running_loop()).__module__ == "uvloop"
        async with ringcast.join("orders", name="a", **options) as a:
            async with (
                ringcast.join("orders", name="b", **options) as b,
                asyncio.TaskGroup() as tasks,
            ):
                await a.wait_for_view(lambda view: len(view) == 2)
                reading = [tasks.create_task(read(group)) for group in (a, b)]
                sent = [b"%d" % number for number in range(COUNT)]
                await a.send_many(sent)
                assert await asyncio.gather(*reading) == [sent, sent]
                serving = tasks.create_task(b.serve(lambda request: request.payload.upper()))
                assert await a.request(a.view["b"], b"price") == b"PRICE"
                serving.cancel()
            await a.wait_for_view(lambda view: len(view) == 1)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(main(), 60.0))
