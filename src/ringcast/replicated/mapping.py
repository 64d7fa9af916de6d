"""Dict: what an application holds of a dict, and what those hear who watch it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from ringcast.errors import UsageError
from ringcast.replicated.encoding import Codec, Token
from ringcast.replicated.handle import Handle
from ringcast.replicated.structures import PRESENT, DictState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from ringcast.replicated.space import Space
    from ringcast.replicated.structures import Change

VALUE_BYTES_MAX = 1 << 20
CHANGES_MAX = 1024
"""Changes that wait for a watcher; beyond this it gets a Reset."""


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


class Watcher:
    """What waits for one who watches a dict."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.changes: deque[Change] = deque()
        self.is_reset = True
        self.woken = asyncio.Event()

    def add(self, change: Change) -> None:
        if not self.is_reset and change.key.startswith(self.prefix):
            self.changes.append(change)
            self.woken.set()
            if len(self.changes) > CHANGES_MAX:
                self.reset()

    def reset(self) -> None:
        self.changes.clear()
        self.is_reset = True
        self.woken.set()


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
        self._watchers: set[Watcher] = set()

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
        pairs = [(self._key(key), self._encode(key, value)) for key, value in items.items()]
        known: int = await self._order(b"update", *chain.from_iterable(pairs), token=token)
        return known

    async def compare_and_set(
        self, key: str, expected: Any, value: Any, *, token: Token | None = None
    ) -> bool:
        """Set the key to `value` if it has the `expected` one, either of which may be ABSENT;
        False, and nothing has changed, if it has not. Values are equal if their bytes are."""
        both = self._encode(key, expected), self._encode(key, value)
        return bool(await self._order(b"swap", self._key(key), *both, token=token))

    async def watch(self, prefix: str = "") -> AsyncIterator[Reset | Changed | Removed]:
        """A Reset with all keys that begin so, then each change once, in the order of all members.

        A Reset comes again where this member's history was replaced by that of others, and where so
        many changes wait that they are not kept. It ends with the space.
        """
        watcher = Watcher(prefix)
        self._watchers.add(watcher)
        try:
            while True:
                watcher.woken.clear()
                if watcher.is_reset:
                    watcher.is_reset = False
                    yield Reset(dict(self.items(prefix)))
                elif watcher.changes:
                    yield self._told(watcher.changes.popleft())
                elif self._space._is_over():
                    return
                else:
                    await watcher.woken.wait()
        finally:
            self._watchers.remove(watcher)

    def _key(self, key: str) -> bytes:
        """UsageError: this cannot be a key."""
        try:
            return key.encode()
        except (AttributeError, UnicodeEncodeError):
            raise UsageError(f"keys of {self.name} are texts, not {key!r:.100}") from None

    def _encode(self, key: str, value: Any) -> bytes:
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

    def _told(self, change: Change) -> Changed | Removed:
        key, value, view, position = change
        at = Token.at(self.name, view, position)
        return Removed(key, at) if value is None else Changed(key, self._codec.decode(value), at)

    def _on_notices(self) -> None:
        for change in self._state.notices if self._watchers else ():
            for watcher in self._watchers:
                watcher.add(change)
        self._state.notices.clear()

    def _on_state(self, state: DictState) -> None:
        super()._on_state(state)
        for watcher in self._watchers:
            watcher.reset()

    def _on_close(self) -> None:
        for watcher in self._watchers:
            watcher.woken.set()
