"""Lock, Counter and Leader: what an application holds of them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from ringcast.checks import check_function
from ringcast.errors import (
    GroupClosed,
    LockLost,
    OutcomeUnknown,
    RingcastError,
    TooFewMembers,
    UsageError,
)
from ringcast.replicated.encoding import encode_number
from ringcast.replicated.handle import Handle
from ringcast.replicated.structures import CounterState, LeaderState, LockState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from ringcast.model import Member
    from ringcast.replicated.encoding import Token
    from ringcast.replicated.space import Space


RETRY_S = 0.5


@dataclass(slots=True)
class Hold:
    """A lock that this member has had granted, and not released."""

    number: int
    lost: asyncio.Event = field(default_factory=asyncio.Event)


class Lock(Handle[LockState]):
    """A lock of the whole group, granted in the order of those who ask. Made by `space.lock(name)`.

        async with lock as token:
            store.write(data, fence=bytes(token))

    `token` is greater than that of every holder before, also across parts that have merged: what
    the lock protects keeps the greatest that it has seen, and refuses lower ones. That is what
    protects it. A member that is cut off believes that it holds the lock until it learns better;
    `lost` is set then, and the end of the block raises LockLost. Others have the lock as soon as
    they are in a view without its holder.
    """

    _kind = LockState

    def __init__(self, space: Space, name: str) -> None:
        super().__init__(space, name)
        self.lost = asyncio.Event()
        """Set when this member has lost the lock that it was granted last. A new one each time."""
        self._grants: dict[int, asyncio.Future[Token | None]] = {}
        """What tasks wait for, by the operation that asks for it."""
        self._holds: dict[Token, Hold] = {}
        self._entered: dict[asyncio.Task[Any] | None, Token] = {}

    @property
    def holder(self) -> Member | None:
        """Who has it, as far as is known here."""
        return None if self._state.holder is None else self._state.holder.origin

    async def acquire(self) -> Token:
        """Wait until this lock is granted here; who is cancelled does not wait any more."""
        token: Token | None = None
        while token is None:  # excluded meanwhile: it asks anew
            operation = self._space._new(self.name, (b"acquire",))
            number = operation.number
            granted = self._grants[number] = asyncio.get_running_loop().create_future()
            try:
                await operation.run(None)
                token = await granted
            except BaseException:
                for held in [held for held, hold in self._holds.items() if hold.number == number]:
                    del self._holds[held]  # granted at the last moment
                self._space._post(self._withdraw(number))
                raise
            finally:
                del self._grants[number]
        self.lost = self._holds[token].lost
        return token

    async def release(self, token: Token) -> None:
        """The next who asked has it. LockLost: it was freed before."""
        hold = self._holds.pop(token, None)
        if hold is None:
            raise UsageError(f"{token} of {self.name} is not held here: release what acquire gave")
        try:
            is_held = await self._order(b"release", encode_number(hold.number))
        except BaseException:
            self._space._post(self._withdraw(hold.number))  # whatever becomes of this one
            raise
        if not is_held or hold.lost.is_set():
            raise LockLost(f"the others were without {self._space.me}, which held {self.name!r}")

    async def __aenter__(self) -> Token:
        task = asyncio.current_task()
        if task in self._entered:
            raise UsageError(f"this task holds {self.name!r} already, and would wait for itself")
        token = await self.acquire()
        self._entered[task] = token
        return token

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        token = self._entered.pop(asyncio.current_task())
        with suppress(*((RingcastError,) if kind is not None else ())):  # the first error counts
            await self.release(token)

    async def _withdraw(self, number: int) -> None:
        with suppress(GroupClosed):  # who is gone holds nothing
            operation = self._space._new(self.name, (b"release", encode_number(number)))
            while True:
                try:
                    await operation.run(None)
                    return
                except TooFewMembers:  # there may be more later
                    await asyncio.sleep(RETRY_S)
                except OutcomeUnknown:
                    return  # it is on its way, or nobody has the lock any more

    def _on_notices(self) -> None:
        for waiting, token in self._state.notices:
            if waiting.client == self._space.client:
                self._grant(waiting.number, token)
        self._state.notices.clear()

    def _on_state(self, state: LockState) -> None:
        super()._on_state(state)
        holder, client = state.holder, self._space.client
        if holder is not None and holder.client == client and state.token is not None:
            self._grant(holder.number, state.token)
        waiting = {each.number for each in state.queue if each.client == client}
        for number in self._grants:
            if number not in waiting and number not in self._space._open:
                self._grant(number, None)

    def _grant(self, number: int, token: Token | None) -> None:
        granted = self._grants.get(number)
        if granted is not None and not granted.done():
            granted.set_result(token)
            if token is not None:
                self._holds[token] = Hold(number)

    def _on_exile(self) -> None:
        for hold in self._holds.values():
            hold.lost.set()

    def _on_close(self) -> None:
        self._on_exile()
        for number in self._grants:
            self._grant(number, None)  # who asks anew is told


class Counter(Handle[CounterState]):
    """A whole number that all members have, and add to. Made by `space.counter(name)`."""

    _kind = CounterState

    @property
    def value(self) -> int:
        """As it is known here."""
        return self._state.value

    async def get(self, *, fresh: bool = False) -> int:
        """The value; `fresh=True` as for a Dict."""
        if fresh:
            await self._order(b"read")
        return self._state.value

    async def add(self, number: int = 1, *, token: Token | None = None) -> int:
        """Add to it, once; returns the value that this gave. OperationFailed: it would be beyond
        63 bits."""
        if type(number) is not int:
            raise UsageError(f"{self.name} counts in whole numbers, not {number!r:.100}")
        value: int = await self._order(b"add", str(number).encode(), token=token)
        return value


OnLeader: TypeAlias = "Callable[[Member, Token], None]"


class Leader(Handle[LeaderState]):
    """One member of each part of the group. Made by `space.leader(name)`.

    `epoch` is greater than that of every leader before, also of other parts, and goes along as the
    token of a lock does: what a leader does something to refuses lower ones. A leader that was cut
    off and came back leads with a new epoch.
    """

    _kind = LeaderState

    def __init__(self, space: Space, name: str, on_leader: OnLeader | None) -> None:
        super().__init__(space, name)
        if on_leader is not None:
            check_function("on_leader", on_leader)
        self._on_leader = on_leader
        self._woken = asyncio.Event()

    @property
    def member(self) -> Member | None:
        """Who leads, as far as is known here."""
        return self._state.member

    @property
    def epoch(self) -> Token | None:
        return self._state.token

    @property
    def is_me(self) -> bool:
        return self.member == self._space.me

    async def terms(self) -> AsyncIterator[tuple[Member, Token]]:
        """Who leads, and with which epoch: now, and whenever it is another. Who reads slowly gets
        the latest."""
        told = None
        while True:
            woken, (member, epoch) = self._woken, (self.member, self.epoch)
            if member is not None and epoch is not None and epoch != told:
                told = epoch
                yield member, epoch
            elif self._space._is_over():
                return
            else:
                await woken.wait()

    def _on_notices(self) -> None:
        notices = list(self._state.notices)
        self._state.notices.clear()
        for member, epoch in notices:
            self._tell(member, epoch)

    def _on_state(self, state: LeaderState) -> None:
        is_another = state.token != self._state.token
        super()._on_state(state)
        if is_another and state.member is not None and state.token is not None:
            self._tell(state.member, state.token)

    def _tell(self, member: Member, epoch: Token) -> None:
        self._wake()
        if self._on_leader is not None:
            self._on_leader(member, epoch)

    def _wake(self) -> None:
        self._woken.set()
        self._woken = asyncio.Event()

    def _on_close(self) -> None:
        self._wake()
