"""Groups on real sockets that report on what everybody has, instead of acknowledging it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from loopback_groups import PATIENT, Losing, numbered, read, until, vanish, with_members

from ringcast import GroupClosed, MulticastConfig, StabilityConfig, Stream, UsageError
from ringcast.model import Origin
from support.proxy import Link, Proxy

if TYPE_CHECKING:
    from pathlib import Path

    from ringcast import Group

RETAIN = pytest.mark.parametrize("retain", [True, False], ids=["retain", "no_retain"])

LONG_S = 60.0
"""An interval that no test lives to see the end of."""

VOTING = MulticastConfig(stability=StabilityConfig(interval_s=0.01))

SELDOM = MulticastConfig(stability=StabilityConfig(interval_s=LONG_S))

UP_TO_16 = MulticastConfig(capacity=8, stability=StabilityConfig(interval_s=0.01, capacity_max=16))


class Deafness:
    """For `lose=`: whether a member hears anything, as a switch."""

    def __init__(self) -> None:
        self.is_on = False

    def __call__(self) -> bool:
        return self.is_on


def multicast(group: Group) -> dict[str, Any]:
    stats: Any = group.stats()["ViewStreams"]
    entries: dict[str, Any] = stats
    return entries


def sent(group: Group, guarantee: str = "fifo") -> dict[str, Any]:
    window: dict[str, Any] = multicast(group)["sent"][guarantee]
    return window


def received(group: Group, sender: Group, stream: Stream = Stream.FIFO) -> dict[str, Any]:
    window: dict[str, Any] = multicast(group)["received"][str(Origin(sender.me, stream))]
    return window


def kept(*groups: Group) -> int:
    """How many plain messages members of this group keep, their own and each other's."""
    windows = [sent(group) for group in groups]
    windows += [received(at, by) for at in groups for by in groups if at is not by]
    return sum(window["high"] - window["low"] for window in windows)


async def agree(*groups: Group, rounds: int = 1) -> None:
    """Wait until so many stability rounds have ended in their view."""
    await until(lambda: all(multicast(group)["rounds"]["round"] >= rounds for group in groups))


async def exchange_all(*groups: Group, count: int) -> None:
    """Everybody sends so many plain messages, and reads everybody's."""
    sending = asyncio.gather(*(g.send_many(numbered(g.me.name, count)) for g in groups))
    results = await asyncio.gather(*(read(group, count * len(groups)) for group in groups))
    await sending
    for got in results:
        for name in (group.me.name for group in groups):
            assert [payload for sender, payload in got if sender == name] == numbered(name, count)


# What is sent, and what is kept


@RETAIN
def test_everybody_gets_everything_and_then_keeps_nothing(retain: bool) -> None:
    async def exchange(*groups: Group) -> None:
        await exchange_all(*groups, count=2000)
        await until(lambda: kept(*groups) == 0)
        for group in groups:
            assert sent(group)["low"] == 2000
            assert multicast(group)["rounds"]["round"] > 0

    reports = StabilityConfig(retain_delivered=retain)
    with_members(3, multicast=MulticastConfig(stability=reports))(exchange)


@RETAIN
def test_receivers_keep_what_was_taken_if_they_are_to(retain: bool) -> None:
    async def exchange(*groups: Group) -> None:
        a, b, _ = groups
        await a.send_many(numbered("A", 5))
        assert len(await read(b, 5)) == 5
        # C has not taken them, so they are not stable.
        assert received(b, a)["low"] == (0 if retain else 5)
        assert sent(a)["low"] == 0

    reports = StabilityConfig(retain_delivered=retain)
    with_members(3, multicast=MulticastConfig(stability=reports))(exchange)


def test_votes_go_out_and_acks_only_for_uniform_messages(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs ringcast[spark]")
    from ringcast.trace.rows import TX
    from ringcast.trace.segments import Segment, segment_paths

    async def exchange(*groups: Group) -> None:
        await exchange_all(*groups, count=500)
        await groups[1].send_many(numbered("u", 50), guarantee="uniform")
        for group in groups:
            assert await read(group, 50) == [("B", payload) for payload in numbered("u", 50)]
        await until(lambda: kept(*groups) == 0 and sent(groups[1], "uniform")["low"] == 50)
        for group in (groups[0], groups[2]):
            assert received(group, groups[1])["acks_sent"] == 0
            assert received(group, groups[1], Stream.UNIFORM)["acks_sent"] > 0

    with_members(3, multicast=VOTING, record=tmp_path, record_level="full")(exchange)
    said: Counter[tuple[str, int]] = Counter()
    for path in segment_paths(tmp_path):
        with Segment(path) as segment:
            said.update((row.kind, row.stream) for row in segment.rows() if row.event == TX)
            settings = segment.info.settings
            assert settings["purge"] == VOTING.purge.name.lower()
            assert settings["capacity"] == VOTING.capacity_max
            assert settings["multicast"]["xmit_interval_s"] == VOTING.xmit_interval_s
    kinds = {kind for kind, _ in said}
    assert {"data", "stability_report", "stable"} <= kinds
    assert said["ack", Stream.FIFO] == 0
    assert said["ack", Stream.UNIFORM] > 0


def test_a_large_message_travels_in_pieces_and_is_let_go() -> None:
    large = bytes(range(256)) * 4000

    async def exchange(*groups: Group) -> None:
        _, *got = await asyncio.gather(
            groups[0].send_many([b"before", large, b"after"]), *(read(g, 3) for g in groups)
        )
        assert got == [[("A", b"before"), ("A", large), ("A", b"after")]] * 3
        await until(lambda: kept(*groups) == 0)

    with_members(3, multicast=VOTING)(exchange)


@RETAIN
def test_a_fifth_of_all_datagrams_is_lost_and_still_nothing_is_kept(retain: bool) -> None:
    losing = Losing(7)

    async def exchange(*groups: Group) -> None:
        with losing:
            await exchange_all(*groups, count=300)
            await until(lambda: kept(*groups) == 0)

    reports = StabilityConfig(interval_s=0.01, retain_delivered=retain)
    config = MulticastConfig(datagram_bytes=600, xmit_interval_s=0.05, stability=reports)
    with_members(3, multicast=config, lose=losing)(exchange)


def test_a_member_that_does_not_read_holds_the_sender_back_at_the_largest_window() -> None:
    async def exchange(a: Group, b: Group, c: Group) -> None:
        await agree(a, b, c, rounds=2)  # so that nobody has anything to report about
        sending = asyncio.create_task(b.send_many(numbered("B", 40)))
        reading = asyncio.gather(read(a, 40), read(b, 40))
        await until(lambda: any("limited by C" in reason for reason in b.explain()))
        assert sent(b)["high"] == 16
        assert not b.try_send(b"no room")
        assert not sending.done()
        assert [payload for _, payload in await read(c, 40)] == numbered("B", 40)
        await sending
        await reading

    with_members(3, multicast=UP_TO_16)(exchange)


def test_who_is_too_slow_is_left_out_and_nobody_else() -> None:
    async def exchange(a: Group, b: Group, c: Group) -> None:
        await agree(a, b, c, rounds=2)
        slow = c.me
        sending = asyncio.create_task(b.send_many(numbered("B", 40)))
        reading = asyncio.gather(read(a, 40), read(b, 40))
        await b.wait_for_view(lambda view: len(view) < 3)
        assert slow not in b.view
        assert a.me in b.view
        await sending
        await reading

    membership = replace(PATIENT, slow_member_timeout_s=0.3)
    with_members(3, multicast=UP_TO_16, membership=membership)(exchange)


# Voting by hand


@pytest.mark.parametrize("asks", [0, 1, 2], ids="ABC")
def test_voting_now_frees_the_windows_long_before_the_interval(asks: int) -> None:
    async def exchange(*groups: Group) -> None:
        await agree(*groups)  # the view alone makes everybody report
        await exchange_all(*groups, count=10)
        assert kept(*groups) > 0
        groups[asks].stabilize()
        await until(lambda: kept(*groups) == 0)

    with_members(3, multicast=SELDOM)(exchange)


@pytest.mark.parametrize("asks", [0, 1, 2], ids="ABC")
def test_voting_now_does_not_go_by_what_somebody_said_before(asks: int) -> None:
    """B reports after each fourth message, and not again after the next two."""

    async def exchange(*groups: Group) -> None:
        a, b, c = groups
        await agree(*groups)
        await a.send_many(numbered("A", 4))
        assert len(await read(b, 4)) == 4
        await until(lambda: any("reports waits for A, C" in reason for reason in a.explain()))
        await a.send_many([b"more", b"and more"])
        await asyncio.gather(read(a, 6), read(b, 2), read(c, 6))
        groups[asks].stabilize()
        await until(lambda: kept(*groups) == 0)

    often = {"multicast": replace(SELDOM, ack_threshold=4)}
    with_members(3, per_member=[{"multicast": SELDOM}, often, {"multicast": SELDOM}])(exchange)


def test_voting_now_keeps_what_somebody_has_not_taken() -> None:
    async def exchange(*groups: Group) -> None:
        a, b, c = groups
        await agree(*groups)
        await a.send_many(numbered("A", 10))
        await asyncio.gather(read(a, 10), read(b, 10))
        before = multicast(a)["rounds"]["round"]
        b.stabilize()
        await agree(*groups, rounds=before + 1)
        assert sent(a)["low"] == 0
        assert received(b, a)["low"] == 0
        assert len(await read(c, 10)) == 10
        b.stabilize()
        await until(lambda: kept(*groups) == 0)

    with_members(3, multicast=SELDOM)(exchange)


def test_whoever_waits_for_all_to_have_it_need_not_wait_for_the_interval() -> None:
    async def exchange(*groups: Group) -> None:
        a, b, _ = groups
        await agree(*groups)
        await b.send(b"x")
        flushing = asyncio.create_task(b.flush())
        for group in groups:
            assert await read(group, 1) == [("B", b"x")]
        assert not flushing.done()
        a.stabilize()
        await flushing

    with_members(3, multicast=SELDOM)(exchange)


def test_who_leaves_does_not_wait_for_the_interval(caplog: pytest.LogCaptureFixture) -> None:
    async def exchange(*groups: Group) -> None:
        b = groups[1]
        await agree(*groups)
        await b.send_many(numbered("B", 10))
        for group in groups:
            assert len(await read(group, 10)) == 10
        await b._presence.leave(10.0)

    with caplog.at_level(logging.WARNING, "ringcast"):
        with_members(3, multicast=SELDOM)(exchange)
    assert caplog.messages == []  # nothing of "leaves before everybody has delivered its messages"


def test_alone_one_has_it_all() -> None:
    async def exchange(a: Group) -> None:
        await a.send(b"x")
        assert await read(a, 1) == [("A", b"x")]
        a.stabilize()
        assert kept(a) == 0

    with_members(1, multicast=SELDOM)(exchange)


def test_a_group_that_acknowledges_has_no_votes() -> None:
    async def exchange(a: Group) -> None:
        with pytest.raises(UsageError, match="has acks and no stability rounds"):
            a.stabilize()

    with_members(1)(exchange)


def test_who_is_gone_does_not_vote() -> None:
    async def exchange(a: Group, b: Group) -> None:
        await b._presence.leave(10.0)
        with pytest.raises(GroupClosed):
            b.stabilize()

    with_members(2, multicast=VOTING)(exchange)


# What retaining is for


def with_deaf_third(test: Any, config: MulticastConfig) -> None:
    """Run it on three members, of which the last can be made deaf."""
    deafness = Deafness()
    per_member: list[dict[str, Any]] = [{}, {}, {"lose": deafness}]
    with_members(3, per_member=per_member, multicast=config)(lambda *g: test(*g, deafness))


@RETAIN
def test_what_a_dead_sender_has_left_reaches_all_survivors_if_it_is_retained(retain: bool) -> None:
    async def exchange(a: Group, b: Group, c: Group, deafness: Deafness) -> None:
        deafness.is_on = True
        await a.send_many(numbered("A", 5))
        assert await read(b, 5) == [("A", payload) for payload in numbered("A", 5)]
        gone = a.me
        vanish(a)
        deafness.is_on = False
        for group in (b, c):
            await group.wait_for_view(lambda view: gone not in view)
        await b.send(b"after")
        assert await read(b, 1) == [("B", b"after")]
        left = [("A", payload) for payload in numbered("A", 5)] if retain else []
        assert sorted(await read(c, len(left) + 1)) == [*left, ("B", b"after")]
        await until(lambda: kept(b, c) == 0)

    reports = StabilityConfig(interval_s=0.01, retain_delivered=retain)
    with_deaf_third(exchange, MulticastConfig(stability=reports))


def test_who_cannot_reach_the_sender_is_repaired_by_another() -> None:
    async def exchange(a: Group, b: Group, c: Group) -> None:
        await agree(a, b, c, rounds=2)
        proxy.part("A", "C")
        await a.send_many(numbered("A", 5))
        assert len(await read(b, 5)) == 5
        dropped = proxy.dropped["A", "C"]
        await until(lambda: proxy.dropped["A", "C"] > dropped)  # with what went to B, or after it
        proxy.set("A", "C", Link())  # A can tell C what there is; what C lacks it cannot tell A
        assert await read(c, 5) == [("A", payload) for payload in numbered("A", 5)]
        assert multicast(b)["peer_repaired"] >= 5
        assert sent(a)["retransmitted"] == 0
        proxy.heal()
        assert len(await read(a, 5)) == 5
        await until(lambda: kept(a, b, c) == 0)

    with Proxy("ABC") as proxy:
        places = [
            {"listen": proxy.listen[name], "advertise": proxy.advertise[name]} for name in "ABC"
        ]
        with_members(3, per_member=places, multicast=VOTING)(exchange)
