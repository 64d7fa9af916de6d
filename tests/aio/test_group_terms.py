"""Members must agree on some settings: who joins takes those of its group, and whoever asked for
others is told at once, with both values."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from loopback_groups import DEADLINE_S, FIRST, PATIENT

from ringcast import MembershipConfig, MulticastConfig, UsageError, join
from ringcast.aio.loop import run
from ringcast.aio.sources import ListSource
from ringcast.config import StabilityConfig

LEAVE_IT_OUT = "leave it out, or give all members the same"

AT_ONCE_S = 2.0
"""Those who look are patient for much longer."""

ACKS = MulticastConfig()
VOTES = MulticastConfig(stability=StabilityConfig(retain_delivered=False))
RETAINED = MulticastConfig(stability=StabilityConfig())


def within(test: Any) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test, DEADLINE_S)

    run(bounded())


@pytest.mark.parametrize("must_exist", [False, True])
@pytest.mark.parametrize(
    ("theirs", "ours", "text", "seen"),
    [
        (
            {"multicast": ACKS},
            {"multicast": RETAINED},
            "purges by acks, and this member by stability with retained messages: give all "
            "members the same `stability` and `retain`",
            "purges by acks, and B",
        ),
        (
            {"multicast": RETAINED},
            {"multicast": VOTES},
            "purges by stability with retained messages, and this member by stability: give all "
            "members the same `stability` and `retain`",
            "purges by stability with retained messages, and B",
        ),
        (
            {"membership": replace(FIRST, suspect_after_s=1.0)},
            {"membership": replace(PATIENT, suspect_after_s=3.0)},
            f"has suspect_after_s = 1, and this member asked for 3: {LEAVE_IT_OUT}",
            "has suspect_after_s = 1, and B",
        ),
        (
            {"multicast": MulticastConfig(max_message_bytes=1000)},
            {"multicast": MulticastConfig(max_message_bytes=64 << 20)},
            f"has max_message_bytes = 1000, and this member asked for 67108864: {LEAVE_IT_OUT}",
            "has max_message_bytes = 1000, and B",
        ),
    ],
    ids=["acks", "retained", "times", "sizes"],
)
def test_who_asks_for_something_else_than_the_group_has_is_refused(
    theirs: Any, ours: Any, text: str, seen: str, must_exist: bool
) -> None:
    async def main() -> None:
        first = {"membership": FIRST, **theirs}
        async with join("orders", name="A", discovery=ListSource([]), **first) as a:
            view = a.view
            joining = join(
                "orders",
                name="B",
                discovery=ListSource([a.me.address]),
                must_exist=must_exist,
                **{"membership": PATIENT, **ours},
            )
            with pytest.raises(UsageError) as caught:
                async with asyncio.timeout(AT_ONCE_S), joining:
                    raise AssertionError("it must not begin")
            assert str(caught.value) == f"cannot join group 'orders': A at {a.me.address} {text}"
            assert a.view is view
            (line,) = [line for line in a.explain() if "left alone" in line]
            assert line.startswith(f"this group {seen} at 127.0.0.1:")
            membership = a.stats()["GroupViews"]
            assert isinstance(membership, dict)
            assert membership["incompatible_peers"] > 0

    within(main())


def test_who_asks_for_nothing_takes_what_the_group_has(caplog: pytest.LogCaptureFixture) -> None:
    """As a terminal does that joins with defaults: the others are not suspected any earlier."""
    caplog.set_level("INFO", "ringcast")
    given = MulticastConfig(
        stability=StabilityConfig(interval_s=0.02), max_message_bytes=100_000, capacity=100
    )

    async def main() -> None:
        first = replace(FIRST, slow_member_timeout_s=60.0)
        async with (
            join(
                "orders", name="A", discovery=ListSource([]), membership=first, multicast=given
            ) as a,
            join(
                "orders",
                name="B",
                discovery=ListSource([a.me.address]),
                membership=MembershipConfig(discovery_wait_s=DEADLINE_S, leave_timeout_s=1.0),
                multicast=MulticastConfig(capacity=200),
            ) as b,
        ):
            assert b.settings == a.settings
            assert b.settings["suspect_after_s"] == 600.0
            assert b.settings["purge"] == "stability with retained messages"
            await b.send(b"x" * 100_000)
            with pytest.raises(UsageError):
                await b.send(b"x" * 100_001)
            message = await anext(aiter(a))
            assert len(message.payload) == 100_000
            b.stabilize()  # as the group does

    within(main())
    told = [record.getMessage() for record in caplog.records]
    assert "B takes suspect_after_s = 600.0, as its group has it, not 2.0" in told
    assert "B takes purge = stability with retained messages, as its group has it, not acks" in told
    assert not [line for line in told if line.startswith("A takes")]


@pytest.mark.parametrize("config", [ACKS, VOTES, RETAINED], ids=["acks", "reports", "retained"])
def test_those_who_agree_are_let_in(config: MulticastConfig) -> None:
    async def main() -> None:
        async with (
            join(
                "orders", name="A", discovery=ListSource([]), membership=FIRST, multicast=config
            ) as a,
            join(
                "orders",
                name="B",
                discovery=ListSource([a.me.address]),
                membership=PATIENT,
                multicast=config,
            ) as b,
        ):
            assert str(b.view) == "View 2: A, B"
            assert not [line for line in a.explain() if "left alone" in line]

    within(main())
