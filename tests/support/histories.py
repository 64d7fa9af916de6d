"""Members that use a space at random, and what of it is recorded and judged afterwards."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

from ringcast.errors import LockLost, RingcastError
from ringcast.replicated import Space
from support.linearizable import Call, counter_model, dict_model, is_linearizable, lock_model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from ringcast.replicated import Diverged, Token

KEYS = ("a", "b")


class Store:
    """What a lock protects: it keeps the greatest token that it has seen, and refuses others."""

    def __init__(self) -> None:
        self.greatest = b""
        self.accepted: list[str] = []
        self.refused = 0

    def write(self, who: str, token: Token) -> bool:
        if bytes(token) < self.greatest:
            self.refused += 1
            return False
        self.greatest = bytes(token)
        self.accepted.append(who)
        return True


class History:
    """What all members have called, by a clock that never stands still."""

    def __init__(self) -> None:
        self.dict: list[Call] = []
        self.counter: list[Call] = []
        self.lock: list[Call] = []
        self.store = Store()
        self.lost = 0
        """Calls that were answered in a history that does not count."""
        self._now = 0.0

    def now(self) -> float:
        self._now += 1
        return self._now

    def check(self, worker: Worker) -> None:
        """That what is in the history of this worker is linearizable. What was answered in another
        one may be in this one, too, or not."""
        self.lost = sum(call.ended < inf and not worker.has_had(call.place) for call in self.calls)
        assert is_linearizable(_had_by(worker, self.dict), dict_model, ())
        assert is_linearizable(_had_by(worker, self.counter), counter_model, 0)
        assert is_linearizable(_had_by(worker, self.lock), lock_model, ("", None))

    @property
    def calls(self) -> list[Call]:
        return [*self.dict, *self.counter, *self.lock]

    @property
    def answered(self) -> int:
        return sum(call.ended < inf for call in self.calls)


def _had_by(worker: Worker, calls: list[Call]) -> list[Call]:
    """As they are in the history of this worker."""
    found = []
    for call in calls:
        if call.ended < inf and not worker.has_had(call.place):
            # The view freed what was not released, at any time before.
            begun = 0.0 if call.what[0] == "release" else call.begun
            call = replace(call, begun=begun, ended=inf)
        found.append(call)
    return found


class Worker:
    """One member, and a space with a structure of each kind."""

    def __init__(self, name: str, history: History, **options: Any) -> None:
        self.name = name
        self.history = history
        self.diverged: list[Diverged] = []
        self.terms: list[tuple[str, bytes]] = []
        self.space = Space(**{"on_diverged": self.diverged.append, **options})
        self.items = self.space.dict("items")
        self.lock = self.space.lock("lock")
        self.counter = self.space.counter("counter")
        self.leader = self.space.leader(
            "leader", on_leader=lambda who, epoch: self.terms.append((who.name, bytes(epoch)))
        )

    def told(self) -> bytes:
        return b"".join(self.space.give_state())

    @property
    def place(self) -> tuple[int, ...]:
        machine = self.space._machine
        return (*machine.view_key, machine.position)

    def has_had(self, place: tuple[int, ...]) -> bool:
        """Whether this place is in the history of this worker."""
        *mark, position = place
        views = self.space._machine.views
        marks = [list(each) for each, _ in views]
        if mark not in marks:
            return False
        later = [base for _, base in views][marks.index(mark) + 1 :]
        return position <= (later[0] if later else self.space._machine.position)

    @contextmanager
    def _calling(self, calls: list[Call], *what: Any) -> Iterator[Call]:
        """Ended if the block says what the result is; else it may have been done, or not."""
        call = Call(what, self.history.now())
        calls.append(call)
        yield call
        call.ended, call.place = self.history.now(), self.place

    async def work(self, dice: Random, rounds: int, pause_s: float = 0.0) -> None:
        """What is not answered stays so; the next is called all the same."""
        for number in range(rounds):
            try:
                await self._do(dice, f"{self.name}/{number}")
            except RingcastError:
                return
            await asyncio.sleep(dice.random() * pause_s)

    async def _do(self, dice: Random, value: str) -> None:
        key, history = dice.choice(KEYS), self.history
        match dice.randrange(8):
            case 0:
                with self._calling(history.dict, "get", key) as call:
                    call.result = await self.items.get(key, fresh=True)
            case 1:
                with self._calling(history.dict, "set", key, value):
                    await self.items.set(key, value)
            case 2:
                with self._calling(history.dict, "delete", key) as call:
                    call.result = await self.items.delete(key)
            case 3:
                expected = await self.items.get(key, "none")
                what = "compare_and_set", key, expected, value
                with self._calling(history.dict, *what) as call:
                    call.result = await self.items.compare_and_set(*what[1:])
            case 4:
                pairs = tuple((each, value) for each in KEYS)
                with self._calling(history.dict, "update", pairs) as call:
                    call.result = await self.items.update(dict(pairs))
            case 5:
                added = dice.randrange(-3, 9)
                with self._calling(history.counter, "add", added) as call:
                    call.result = await self.counter.add(added)
            case 6:
                with self._calling(history.counter, "get") as call:
                    call.result = await self.counter.get(fresh=True)
            case _:
                await self._hold(value)

    async def _hold(self, value: str) -> None:
        history = self.history
        begun = history.now()
        token = await self.lock.acquire()
        # Unless it is released it may have been lost at any time, even before it was known to be
        # had; or have been granted in the history of a lesser part alone.
        acquire = Call(("acquire", value, bytes(token)), begun, result=True, place=self.place)
        release = Call(("release", value), begun, result=True)
        history.lock += [acquire, release]
        granted = history.now()
        for _ in range(3):
            history.store.write(value, token)
            await asyncio.sleep(0)
        begun = history.now()
        with suppress(LockLost):
            await self.lock.release(token)
            acquire.ended, release.begun, release.ended = granted, begun, history.now()
            release.place = self.place
