"""ringcast sync, where there is something to ask."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from terminals import DEADLINE_S, told

from ringcast import MembershipConfig, join
from ringcast.aio.loop import run

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

PATIENT = MembershipConfig(suspect_after_s=600.0, verify_s=60.0)


def test_members_ask_one_that_has_sent_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # private, as pytest makes it

    async def main() -> None:
        async with (
            join("orders", name="a", membership=PATIENT) as a,
            join("orders", name="b", membership=PATIENT) as b,
        ):
            await a.wait_for_view(lambda view: len(view) == 2)
            await b.send(b"x", to=a.me)
            async for message in a:
                assert message.to_me
                break
            shown = await asyncio.to_thread(told, "sync", "orders", "b")
            assert shown == "a asks b\nb does not: it is the one that is meant\n"
            for_programs = await asyncio.to_thread(told, "sync", "orders", "b", "--json")
            assert json.loads(for_programs) == [
                {"member": "a", "asks": True, "why_not": ""},
                {"member": "b", "asks": False, "why_not": "it is the one that is meant"},
            ]
            await b.send(b"y", to=a.me)  # and all goes on
            async for message in a:
                assert message.payload == b"y"
                break

    async def limited() -> None:
        await asyncio.wait_for(main(), DEADLINE_S)

    run(limited())
