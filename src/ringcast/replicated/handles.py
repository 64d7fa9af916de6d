"""Dict, Lock, Counter and Leader: what an application holds of a structure.

Reading is of the copy that is here. What changes something takes its place in the order of all
members, and returns its result when it has had it here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar

from ringcast.checks import check_function
from ringcast.errors import (
    GroupClosed,
    LockLost,
    OutcomeUnknown,
    RingcastError,
    TooFewMembers,
    UsageError,
)
from ringcast.replicated.encoding import Codec, Token
from ringcast.replicated.structures import (
    PRESENT,
    CounterState,
    DictState,
    LeaderState,
    LockState,
    States,
)

if TYPE_CHECKING:
    from ringcast.model import Member
    from ringcast.replicated.space import Space

VALUE_BYTES_MAX = 1 << 20
RETRY_S = 0.5

S = TypeVar("S", bound=States)


class Handle(Generic[S]):
    """What all of them do. Made by a space."""

    _kind: ClassVar[Any]

    def __init__(self, space: Space, name: str) -> None:
        self.name = name
        self._space = space
        self._state: S = self._kind(name)
        self._news = asyncio.Event()

    async def _order(self, *body: bytes, token: Token | None = None) -> Any:
        if token is not None:
            if not isinstance(token, Token):
                raise UsageError(
                    f"a token is what a lock grants or a leader has, not {token!r:.100}"
                )
            body = (b"with", token.name.encode(), bytes(token), *body)
        return await self._space._new(self.name, body).run(self._space.timeout_s)

    async def _next_news(self) -> bool:
        """Wait for some; False: there is nothing more to come. SpaceClosed: because something went
        wrong."""
        if self._space._is_over():
            return False
        await self._news.wait()
        return True

    def _on_operation(self) -> None:
        """One has been done."""
        self._news.set()  # whoever waits is woken
        self._news.clear()

    def _on_view(self) -> None:
        """A view has been installed, the state is another member's, or the space is closed."""
        self._on_operation()

    def _on_exile(self) -> None:
        """The others have been without this member."""


class Absent:
    """The type of ABSENT."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = Absent()
"""Stands for the value of a key that is not there; not None, which may be a value."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Begin with these items: the first thing that a watcher hears, and what it hears where other
    changes cannot be told one by one."""

    items: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Changed:
    """A key has this value now. `at` is the place of the change in the order."""

    key: str
    value: Any
    at: Token


@dataclass(frozen=True, slots=True)
class Removed:
    """A key is not there any more."""

    key: str
    at: Token


class Dict(Handle[DictState]):
    """A dict of texts and values that all members have. Made by `space.dict(name)`.

    `d[key]`, `key in d`, `len(d)`, `items()` and iteration read the copy that is here: it has all
    writes of this member that have returned, and never goes back while it stays with the others.
    `items()` and iteration are of one moment, whatever happens meanwhile.

    Writes may carry the `token` of a lock or leader of the same space. StaleToken: that is not the
    present one, and nothing was changed. OutcomeUnknown: no answer within the space's `timeout_s`;
    `await error.again()` asks for it, and does it if it was not done.
    """

    _kind = DictState

    def __init__(self, space: Space, name: str, codec: Codec) -> None:
        super().__init__(space, name)
        if not isinstance(codec, Codec):
            raise UsageError(f"a codec is a Codec(encode, decode), not {codec!r:.100}")
        self._codec = codec
        self._watchers = 0

    def __getitem__(self, key: str) -> Any:
        return self._codec.decode(self._state.items[key])

    def __contains__(self, key: object) -> bool:
        return key in self._state.items

    def __len__(self) -> int:
        return len(self._state.items)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._state.items))

    def items(self, prefix: str = "") -> list[tuple[str, Any]]:
        """Keys that begin so, with their values: a copy."""
        decode, items = self._codec.decode, self._state.items.items()
        return [(key, decode(value)) for key, value in items if key.startswith(prefix)]

    async def get(self, key: str, default: Any = None, *, fresh: bool = False) -> Any:
        """The value, or `default`. `fresh=True` reads behind all writes that had returned, at
        whatever member of this part of the group, before this was called: it takes as long as a
        write."""
        if fresh:
            await self._order(b"read")
        value = self._state.items.get(key)
        return default if value is None else self._codec.decode(value)

    async def set(self, key: str, value: Any, *, token: Token | None = None) -> None:
        """`d[key]` is `value`, at all members."""
        await self.update({key: value}, token=token)

    async def delete(self, key: str, *, token: Token | None = None) -> bool:
        """The key is not there any more; True if it was."""
        return await self.update({key: ABSENT}, token=token) == 1

    async def update(self, items: Mapping[str, Any], *, token: Token | None = None) -> int:
        """Several keys at once: nobody ever sees some of it. ABSENT as a value removes its key.
        Returns how many of the keys were there before."""
        if not isinstance(items, Mapping):
            raise UsageError(f"update takes a dict of values by key, not {items!r:.100}")
        pairs = [(self._key(key), self._value(key, value)) for key, value in items.items()]
        known: int = await self._order(b"update", *chain.from_iterable(pairs), token=token)
        return known

    async def compare_and_set(
        self, key: str, expected: Any, value: Any, *, token: Token | None = None
    ) -> bool:
        """Set the key to `value` if it has the `expected` one, either of which may be ABSENT;
        False, and nothing has changed, if it has not. Values are equal if their bytes are."""
        fields = self._key(key), self._value(key, expected), self._value(key, value)
        return bool(await self._order(b"swap", *fields, token=token))

    async def watch(self, prefix: str = "") -> AsyncIterator[Reset | Changed | Removed]:
        """A Reset with all keys that begin so, then each change once, in the order of all members.

        A Reset comes again where this member's history was replaced by that of others, and where so
        many changes wait that they are not kept. It ends with the space.
        """
        known, at = None, 0
        self._watchers += 1
        try:
            while True:
                state = self._state
                if known is not state or state.changed - at > len(state.changes):
                    if not state.is_watched:
                        state.watch(is_watched=True)
                    known, at = state, state.changed
                    yield Reset(dict(self.items(prefix)))
                elif at < state.changed:
                    key, value, place = state.changes[at - state.changed]
                    at += 1
                    if key.startswith(prefix):
                        yield self._told(key, value, place)
                elif not await self._next_news():
                    return
        finally:
            self._watchers -= 1
            if not self._watchers:
                self._state.watch(is_watched=False)

    def _told(self, key: str, value: bytes | None, at: Token) -> Changed | Removed:
        return Removed(key, at) if value is None else Changed(key, self._codec.decode(value), at)

    def _key(self, key: str) -> bytes:
        """UsageError: this cannot be a key."""
        try:
            return key.encode()
        except (AttributeError, UnicodeError):
            raise UsageError(f"keys of {self.name} are texts, not {key!r:.100}") from None

    def _value(self, key: str, value: Any) -> bytes:
        """UsageError: this cannot be a value."""
        if value is ABSENT:
            return b""
        try:
            encoded = self._codec.encode(value)
        except Exception as error:  # whatever a codec of the application's raises
            raise UsageError(f"{self.name}[{key!r}] cannot be {value!r:.100}: {error}") from error
        if not isinstance(encoded, bytes):
            kind = type(encoded).__name__
            raise UsageError(f"the codec of {self.name} makes {kind} of a value: make bytes of it")
        if len(encoded) > VALUE_BYTES_MAX:
            size = f"{len(encoded)} bytes, and {VALUE_BYTES_MAX} are the most"
            raise UsageError(f"{self.name}[{key!r}] would have {size}: keep the rest elsewhere")
        return PRESENT + encoded


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
        self._asking: dict[int, asyncio.Event] = {}
        """By the operation that asks for it: there may be an answer."""
        self._holds: dict[Token, tuple[int, asyncio.Event]] = {}
        """What this member has had granted, and not released: by which operation, and `lost`."""
        self._entered: dict[asyncio.Task[Any] | None, Token] = {}

    @property
    def holder(self) -> Member | None:
        """Who has it, as far as is known here."""
        return None if self._state.holder is None else self._state.holder.origin

    async def acquire(self) -> Token:
        """Wait until this lock is granted here; who is cancelled does not wait any more."""
        space = self._space
        while True:
            operation = space._new(self.name, (b"acquire",))
            me = space.client, operation.number
            news = self._asking[operation.number] = asyncio.Event()
            try:
                await operation.run(None)
                while any(each[:2] == me for each in self._state.line):
                    holder, token = self._state.holder, self._state.token
                    if not space._is_due and holder and token and holder[:2] == me:
                        self.lost = asyncio.Event()
                        self._holds[token] = operation.number, self.lost
                        return token
                    news.clear()
                    await news.wait()
                    space._check_open()
            except BaseException:
                if operation.is_sent:
                    space._post(self._withdraw(operation.number))
                raise
            finally:
                del self._asking[operation.number]

    async def release(self, token: Token) -> None:
        """The next who asked has it. LockLost: it was freed before."""
        if token not in self._holds:
            raise UsageError(f"{token} of {self.name} is not held here: release what acquire gave")
        number, lost = self._holds.pop(token)
        try:
            is_held = await self._order(b"release", b"%d" % number)
        except BaseException:
            self._space._post(self._withdraw(number))  # whatever becomes of this one
            raise
        if not is_held or lost.is_set():
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
        with suppress(GroupClosed, OutcomeUnknown):  # it is on its way, or nobody has it any more
            while True:
                try:  # each time as another operation: this one was not sent
                    await self._space._new(self.name, (b"release", b"%d" % number)).run(None)
                    return
                except TooFewMembers:  # there may be more later
                    await asyncio.sleep(RETRY_S)

    def _on_operation(self) -> None:
        if self._state.holder is not None and self._state.holder.number in self._asking:
            self._asking[self._state.holder.number].set()

    def _on_view(self) -> None:
        for news in self._asking.values():
            news.set()

    def _on_exile(self) -> None:
        for _, lost in self._holds.values():
            lost.set()


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
        value: int = await self._order(b"add", b"%d" % number, token=token)
        return value


OnLeader: TypeAlias = "Callable[[Member, Token], object]"


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
        self._told: Token | None = None

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
            member, epoch = self.member, self.epoch
            if member is not None and epoch is not None and epoch != told:
                told = epoch
                yield member, epoch
            elif not await self._next_news():
                return

    def _on_view(self) -> None:
        before, self._told = self._told, self.epoch
        if self._on_leader is not None and self._told not in (None, before):
            self._space._call(self._on_leader, self.member, self._told)
        super()._on_view()
