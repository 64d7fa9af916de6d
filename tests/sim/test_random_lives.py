"""Groups live at random, through the public API and in virtual time.

Members join, leave, crash, pause and are cut off while each of them sends in every way there is,
asks and reads. What the README promises is then judged by what the applications have seen alone.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise, permutations
from typing import TYPE_CHECKING

import pytest

import ringcast
from ringcast import Delivered, MulticastConfig, ViewInstalled
from ringcast.testing import cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringcast import Group, Member
    from ringcast.model import ViewId
    from ringcast.testing import Cluster, Process

QUIET_S = 30.0
"""After the last fault: how long it takes at most until all are in one view and nothing waits."""

WAYS = (
    *("send", "send", "uniform", "many", "many uniform", "try", "cancel", "receipt", "flush"),
    *("to one", "request", "request all"),
)
FAULTS = ("crash", "silence", "join", "join", "leave", "pause", "late timers")
CUTS = ("cut off", "cut one way", "heal")


@dataclass
class InView:
    """What one member has read in one view."""

    event: ViewInstalled
    read: list[tuple[Member, str, int]] = field(default_factory=list)


class Life:
    """One member's application."""

    def __init__(self, process: Process, dice: random.Random) -> None:
        self.process = process
        self.group = process.group
        self.views: dict[ViewId, InView] = {}
        self.delivered_by_all: list[tuple[str, int]] = []  # as receipts say
        self.is_over = False
        self.is_leaving = False
        self._dice = dice
        self._sent: Counter[str] = Counter()
        self._tasks = 0

    def start(self) -> None:
        for app in (self._read, self._serve, self._send, self._send):
            self.process.start(app)

    async def _read(self, group: Group) -> None:
        view: InView | None = None
        async for event in group.events():
            match event:
                case ViewInstalled():
                    assert event.view.id not in self.views
                    view = self.views[event.view.id] = InView(event)
                case Delivered(epoch=0):
                    assert view is not None
                    assert event.view_id == view.event.view.id
                    for payload in event.run.payloads:
                        stream, number, size, *rest = payload.split(b" ", 3)
                        assert len(rest[0]) == int(size)
                        view.read.append((event.sender, stream.decode(), int(number)))

    async def _serve(self, group: Group) -> None:
        await group.serve(lambda request: request.payload[::-1])

    async def _send(self, group: Group) -> None:
        self._tasks += 1
        task, dice = self._tasks, random.Random(self._dice.random())
        with suppress(ringcast.GroupClosed):  # it leaves
            while not self.is_over:
                await asyncio.sleep(dice.expovariate(20))
                with suppress(ringcast.Undeliverable, ringcast.RequestFailed, ringcast.TimedOut):
                    await self._once(group, dice, task)
        assert self.is_over or self.is_leaving

    def _next(self, stream: str, size: int) -> bytes:
        """The next message of this stream; each task has streams of its own."""
        self._sent[stream] += 1
        return b"%s %d %d " % (stream.encode(), self._sent[stream], size) + bytes(size)

    async def _once(self, group: Group, dice: random.Random, task: int) -> None:
        way = dice.choice(WAYS)
        size = dice.choice([0, 100, 1500, 9000] * 10 + [70_000, 300_000])
        plain, uniform = f"plain-{task}", f"uniform-{task}"
        other = dice.choice([member for member in group.view if member != group.me] or [group.me])
        match way:
            case "send":
                await group.send(self._next(plain, size))
            case "uniform":
                await group.send(self._next(uniform, size), guarantee="uniform")
            case "many":
                await group.send_many([self._next(plain, 10) for _ in range(dice.randint(1, 30))])
            case "many uniform":
                run = [self._next(uniform, 10) for _ in range(dice.randint(1, 30))]
                await group.send_many(run, guarantee="uniform")
            case "try":
                if not group.try_send(self._next(plain, size)):
                    self._sent[plain] -= 1
            case "cancel":
                sending = asyncio.ensure_future(group.send(self._next(plain, size)))
                await asyncio.sleep(0)
                if sending.cancel():
                    await asyncio.wait([sending])
                    self._sent[plain] -= 1
            case "receipt":
                receipt = await group.send(self._next(plain, size), receipt=True)
                number = self._sent[plain]
                with suppress(ringcast.NotDelivered):
                    await receipt.delivered()
                    self.delivered_by_all.append((plain, number))
            case "flush":
                await group.flush()
            case "to one":
                await group.send(b"for you", to=other)
            case "request" if other != group.me:
                assert await group.request(other, b"abc", timeout=5) == b"cba"
            case "request all":
                replies = await group.request_all(b"abc", timeout=5)
                assert set(replies.replies.values()) <= {b"cba"}

    async def say_goodbye(self) -> None:
        """What everybody must have read at the end."""
        await self.group.send(self._next("plain-0", 10))
        await self.group.send(self._next("uniform-0", 10), guarantee="uniform")
        await self.group.flush()


class World:
    """A group and what befalls it."""

    def __init__(
        self, c: Cluster, dice: random.Random, faults: tuple[str, ...], config: MulticastConfig
    ) -> None:
        self.lives: list[Life] = []
        self._c = c
        self._dice = dice
        self._faults = faults
        self._config = config
        self._pending: list[asyncio.Task[None]] = []

    @property
    def living(self) -> list[Life]:
        return [life for life in self.lives if life.process.is_running and not life.is_leaving]

    async def run(self) -> None:
        dice = self._dice
        for _ in range(dice.randint(2, 4)):
            await self._join()
        for _ in range(dice.randint(3, 9)):
            await asyncio.sleep(dice.choice([0.001, 0.02, 0.5, 2.0]) * dice.random())
            self._strike(dice.choice(self._faults))
        self._c.heal()
        await asyncio.gather(*self._pending)
        for life in self.living:
            life.process.delay_timers(0)
        await asyncio.sleep(5)
        for life in self.lives:
            life.is_over = True
        await asyncio.sleep(QUIET_S)
        await self._end_well()

    def _strike(self, fault: str) -> None:
        dice, living = self._dice, self.living
        one = dice.choice(living)
        match fault:
            case "join":
                self._pending.append(asyncio.ensure_future(self._join()))
            case "late timers":
                one.process.delay_timers(dice.choice([0, 0.05, 0.3]))
            case "pause":
                self._pending.append(asyncio.ensure_future(self._pause(one.process)))
            case "heal":
                self._c.heal()
            case _ if len(living) == 1:
                pass
            case "crash" | "silence":
                one.process.crash(silently=fault == "silence")
            case "leave":
                one.is_leaving = True
                self._pending.append(asyncio.ensure_future(one.process.leave()))
            case "cut off":
                few = dice.sample(living, dice.randint(1, len(living) - 1))
                self._c.partition([life.process for life in few])
            case "cut one way":
                source, dest = dice.sample(living, 2)
                self._c.cut([source.process], [dest.process])

    async def _join(self) -> None:
        life = Life(await self._c.join(multicast=self._config), self._dice)
        self.lives.append(life)
        life.start()

    async def _pause(self, process: Process) -> None:
        process.pause()
        await asyncio.sleep(self._dice.choice([0.1, 1.0, 4.0]))
        process.resume()

    async def _end_well(self) -> None:
        """All are in one view, and what each sends from there on reaches everybody."""
        members = {life.group.me for life in self.living}
        for life in self.living:
            assert set(life.group.view) == members
        for life in self.living:
            async with asyncio.timeout(QUIET_S):
                await life.say_goodbye()
        await asyncio.sleep(1)
        for life in self.living:
            last = list(life.views.values())[-1].read
            for sender in members:
                assert {(sender, "plain-0", 1), (sender, "uniform-0", 1)} <= set(last)


def check_each(life: Life) -> None:
    """In order, once, and within a view without gaps; nothing of who is not in the view."""
    last: dict[tuple[Member, str], int] = {}
    for in_view in life.views.values():
        seen_here = set()
        for sender, stream, number in in_view.read:
            assert sender in in_view.event.view
            before = last.get((sender, stream), 0)
            assert number > before
            assert number == before + 1 or (sender, stream) not in seen_here
            last[sender, stream] = number
            seen_here.add((sender, stream))


def steps(life: Life) -> Iterator[tuple[InView, InView]]:
    views = list(life.views.values())
    return pairwise(views)


def check_together(one: Life, other: Life, *, is_retained: bool) -> int:
    """Who goes from view to view together has delivered the same. How often that was so."""
    count = 0
    theirs = {(a.event.view.id, b.event.view.id): a for a, b in steps(other)}
    for mine, following in steps(one):
        together = following.event.together
        both = theirs.get((mine.event.view.id, following.event.view.id))
        if both is None or other.group.me not in together:
            continue
        count += 1
        counts = [
            {
                message
                for message in in_view.read
                if is_retained or message[1].startswith("uniform") or message[0] in together
            }
            for in_view in (mine, both)
        ]
        assert counts[0] == counts[1]
    return count


def check_receipts(world: World) -> int:
    """What a receipt says was delivered has been read by everybody of that view who lived on."""
    count = 0
    for life in world.lives:
        for stream, number in life.delivered_by_all:
            message = (life.group.me, stream, number)
            (view,) = [id for id, in_view in life.views.items() if message in in_view.read]
            for other in world.living:
                if view in other.views:
                    assert message in other.views[view].read
                    count += 1
    return count


def live(seed: int, faults: tuple[str, ...]) -> Counter[str]:
    dice = random.Random(seed)
    retain = dice.random() < 0.3
    config = MulticastConfig(capacity=dice.choice([8, 32, 4096]), retain=retain)
    loss, delay_s = dice.choice([0.0, 0.02, 0.1]), dice.choice([0.0005, 0.001, 0.02])
    with cluster(0, seed=seed, loss=loss, duplicates=0.01, delay_s=delay_s, group="lives") as c:
        world = World(c, dice, faults, config)
        c.run(world.run(), limit_s=900)
        for life in world.lives:
            check_each(life)
        pairs = permutations(world.lives, 2)
        together = sum(check_together(*pair, is_retained=retain) for pair in pairs)
        return Counter(together=together, receipts=check_receipts(world))


def live_often(seeds: range, faults: tuple[str, ...]) -> None:
    counts: Counter[str] = Counter(together=0, receipts=0)
    for seed in seeds:
        try:
            counts += live(seed, faults)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    assert counts["together"]
    assert counts["receipts"]


@pytest.mark.parametrize("faults", [FAULTS, FAULTS + CUTS], ids=["crashes", "partitions"])
def test_promises_hold_whatever_befalls_a_group(faults: tuple[str, ...]) -> None:
    live_often(range(3), faults)


@pytest.mark.proof
@pytest.mark.parametrize("faults", [FAULTS, FAULTS + CUTS], ids=["crashes", "partitions"])
@pytest.mark.parametrize("first", range(3, 103, 25))
def test_promises_hold_in_many_lives(first: int, faults: tuple[str, ...]) -> None:
    live_often(range(first, first + 25), faults)
