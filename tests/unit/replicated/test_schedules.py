"""Spaces under random schedules of a total order: who orders what when, who is killed, who is away
and comes back, who joins. Histories are linearizable, and all end with the same."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from ringcast.errors import GroupClosed
from ringcast.replicated import machine as machines
from ringcast.replicated.encoding import Token
from ringcast.replicated.handles import Counter, Lock
from ringcast.replicated.space import Space
from ringcast.replicated.structures import DictState, LockState
from support.histories import History, Worker
from support.ordered import Order, member, settle

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.ordered import OrderedGroup

WORKERS = 3
ROUNDS = 5


class Schedule:
    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        slow = Random(seed)
        self.order = Order(is_prompt=False, lag=lambda: slow.choice((0, 0, 1, 9)))
        self.history = History()
        self.groups: dict[OrderedGroup, Worker] = {}
        self.tasks: dict[OrderedGroup, list[asyncio.Task[None]]] = {}
        self.done: set[OrderedGroup] = set()
        """Who has had an answer to all of its calls."""
        self.away: OrderedGroup | None = None
        self.kills = self.absences = 0

    async def add(self) -> None:
        worker = Worker(f"m{len(self.groups)}", self.history, timeout_s=86_400.0)
        joining = asyncio.create_task(self.order.join(member(len(self.groups)), worker.space))
        group = await joining
        self.groups[group] = worker

        async def serve() -> None:
            async with worker.space.serve(group):  # type: ignore[arg-type]
                works = [worker.work(Random(self.dice.random()), ROUNDS) for _ in range(2)]
                await asyncio.gather(*works)
                self.done.add(group)
                await asyncio.Event().wait()

        self.tasks[group] = [asyncio.create_task(serve())]
        await settle(lambda: worker.space._closed == "")

    @property
    def present(self) -> list[OrderedGroup]:
        return list(self.order.parts[0].groups)

    async def step(self) -> None:
        waiting = [group for group in self.present if self._untaken(group)]
        match self.dice.randrange(30):
            case 0 if len(self.groups) < WORKERS + 2 and not self.present[0].awaited:
                await self.add()
            case 1 if self.away is None and len(self.present) > 2:
                self.exclude()
            case 2 if self.away is not None and any(not each.awaited for each in self.present):
                self.bring_back()
            case 3 if len(self.present) > 2 and self.kills < 2:
                self.kill(self.dice.choice(self.present))
            case _ if waiting:
                self.order.order(self.dice.choice(waiting))
        for _ in range(self.dice.randrange(4)):
            await asyncio.sleep(0)
        self.check_places()

    def check_places(self) -> None:
        """Who is at one place of the order has one state."""
        found: dict[tuple[int, ...], bytes] = {}
        for group in self.present:
            worker = self.groups[group]
            assert found.setdefault(worker.place, worker.told()) == worker.told()

    def _untaken(self, group: OrderedGroup) -> bool:
        assert group.part is not None
        mark = group.part.marks.get(group.me, 0)
        return any(number > mark for number, *_ in group.pending)

    def exclude(self) -> None:
        """Before it is away the others order some of what it has sent, and it does not hear it."""
        ready = [each for each in self.present if each.awaited is None]
        if not ready:
            return
        group = self.away = self.dice.choice(ready)
        others = [each for each in self.present if each is not group]
        for _ in range(3):
            if self.dice.random() < 0.5 and self._untaken(group):
                self.order.order(group, at=others)
        self.order.divide(group)
        self.absences += 1

    def bring_back(self) -> None:
        assert self.away is not None
        assert self.away.part is not None
        self.order.merge(self.order.parts[0], self.away.part)
        self.away = None

    def kill(self, group: OrderedGroup) -> None:
        for task in self.tasks[group]:
            task.cancel()
        self.order.kill(group)
        group.close()
        self.kills += 1

    async def run(self) -> None:
        for _ in range(WORKERS):
            await self.add()
        for _ in range(150):
            await self.step()
        for _ in range(50):
            await asyncio.sleep(0)
        if self.away is not None:
            self.bring_back()
        for _ in range(2000):
            self.order.order_all()
            await asyncio.sleep(0)
        alive = [self.groups[group] for group in self.present]
        await settle(lambda: len({worker.told() for worker in alive}) == 1)
        await settle(lambda: self.done >= set(self.present))
        self.history.check(alive[0])
        for worker in alive:
            assert not worker.space._open
            assert not worker.diverged
            epochs = [epoch for _, epoch in worker.terms]
            assert epochs == sorted(set(epochs))
        assert alive[0].lock.holder is None
        self.order.is_prompt = True
        for tasks in self.tasks.values():
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError, GroupClosed):
                    await task


def play(seeds: range) -> list[Schedule]:
    done = []
    for seed in seeds:
        schedule = Schedule(seed)
        try:
            asyncio.run(schedule.run())
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        done.append(schedule)
    return done


def test_histories_are_linearizable() -> None:
    done = play(range(100))
    assert sum(schedule.kills for schedule in done) > 20
    assert sum(schedule.absences for schedule in done) > 20
    assert sum(schedule.history.answered for schedule in done) > 1000
    assert all(schedule.history.store.accepted for schedule in done if schedule.history.lock)


@pytest.mark.proof
def test_more_histories_are_linearizable() -> None:
    play(range(1000, 3000))


def _without_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """26: the client table is not in the state."""
    load = machines.Machine.load

    def broken(self: machines.Machine, record: list[bytes]) -> None:
        load(self, record)
        self.clients.clear()

    monkeypatch.setattr(machines.Machine, "load", broken)


def _freed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """25: a member frees the lock of a member that it suspects, before the view without it."""
    kill = Schedule.kill

    def broken(self: Schedule, group: OrderedGroup) -> None:
        other = next(each for each in self.present if each is not group)
        machine = self.groups[other].space._machine
        lock = machine.structures["lock"]
        assert isinstance(lock, LockState)
        if lock.holder is not None and lock.holder.origin == group.me:
            lock._stand(lock.line[1:], Token.at("lock", group.part.view.id, machine.position))
        kill(self, group)

    monkeypatch.setattr(Schedule, "kill", broken)


def _local_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh read that does not wait for its place."""

    async def broken(self: Counter, *, fresh: bool = False) -> int:
        return self._state.value

    monkeypatch.setattr(Counter, "get", broken)


def _not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are not kept at all."""
    monkeypatch.setattr(machines, "_keep", lambda *_: None)


def _swap_blindly(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = DictState.apply

    def broken(self: DictState, body: list[bytes], *where: Any) -> object:
        if body[0] == b"swap":
            body = [b"update", body[1], body[3]]
        return apply(self, body, *where)

    monkeypatch.setattr(DictState, "apply", broken)


def _views_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A joiner does not wait with a view until it has had the messages before it."""

    def broken(self: Space, position: int) -> None:
        until(self, 2**63)

    until = Space._install_until
    monkeypatch.setattr(Space, "_install_until", broken)


def _exile_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that a member asked for before it was away is not asked for anew."""
    monkeypatch.setattr(Lock, "_on_view", lambda _: None)


def _grants_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for the lock is not in the state."""
    load = LockState.load

    def broken(self: LockState, told: Any) -> None:
        token, line = told
        load(self, (token, line[:1]))

    monkeypatch.setattr(LockState, "load", broken)


def _low_too_high(monkeypatch: pytest.MonkeyPatch) -> None:
    """A space says that it has answers that it has not."""
    monkeypatch.setattr(Space, "_low", lambda self, operation: operation.number)


@pytest.mark.parametrize(
    "plant",
    [
        *(_without_table, _freed_at_once, _local_counts, _not_kept, _swap_blindly),
        *(_views_at_once, _exile_unnoticed, _grants_forgotten, _low_too_high),
    ],
)
def test_planted_defects_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, KeyError, ValueError)):
        play(range(100))
