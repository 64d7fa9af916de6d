"""Members must agree on how their group purges: who does not is told at once, with the reason."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from loopback_groups import DEADLINE_S, FIRST, PATIENT

from ringcast import MulticastConfig, UsageError, join
from ringcast.aio.loop import run
from ringcast.aio.sources import ListSource
from ringcast.config import StabilityConfig

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
    ("theirs", "ours", "text"),
    [
        (ACKS, RETAINED, "acks, and this member by stability with retained messages"),
        (RETAINED, VOTES, "stability with retained messages, and this member by stability"),
        (VOTES, ACKS, "stability, and this member by acks"),
    ],
    ids=["acks", "retained", "reports"],
)
def test_a_group_that_purges_otherwise_refuses_to_be_joined(
    theirs: MulticastConfig, ours: MulticastConfig, text: str, must_exist: bool
) -> None:
    async def main() -> None:
        async with join(
            "orders", name="A", discovery=ListSource([]), membership=FIRST, config=theirs
        ) as a:
            view = a.view
            joining = join(
                "orders",
                name="B",
                discovery=ListSource([a.me.address]),
                membership=PATIENT,
                config=ours,
                must_exist=must_exist,
            )
            with pytest.raises(UsageError) as caught:
                async with asyncio.timeout(AT_ONCE_S), joining:
                    raise AssertionError("it must not begin")
            assert str(caught.value) == (
                f"cannot join group 'orders': A at {a.me.address} purges by {text}: give all "
                "members the same `stability`"
            )
            assert a.view is view
            (line,) = [line for line in a.explain() if "purges" in line]
            assert line.startswith("B at 127.0.0.1:")
            membership = a.stats()["Membership"]
            assert isinstance(membership, dict)
            assert membership["incompatible_peers"] > 0

    within(main())


@pytest.mark.parametrize("config", [ACKS, VOTES, RETAINED], ids=["acks", "reports", "retained"])
def test_those_who_agree_are_let_in(config: MulticastConfig) -> None:
    async def main() -> None:
        async with (
            join(
                "orders", name="A", discovery=ListSource([]), membership=FIRST, config=config
            ) as a,
            join(
                "orders",
                name="B",
                discovery=ListSource([a.me.address]),
                membership=PATIENT,
                config=config,
            ) as b,
        ):
            assert str(b.view) == "View 2: A, B"
            assert not [line for line in a.explain() if "purges" in line]

    within(main())
