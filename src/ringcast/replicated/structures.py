"""The structures as state machines: what an operation or a view does to each.

Nothing here looks at a clock or at chance: the same operations and views in the same order make the
same state at every member. An `apply` that raises leaves its structure as it was; what it raises is
the operation's result.
    dict      update: its keys get their values, or go. swap: the same for one key, if it has the
              expected value.
    lock      acquire: granted if nobody has it, else queued. release: by its holder, the first in
              the queue has it now; by who is queued, out of the queue. On view: whoever departed is
              out of the queue, and what it held is granted to the first of those that are left.
    counter   add.
    leader    on view: the first member that came with the leading part. The epoch begins with its
              leader; and again with the same one if it was gone, or where another part comes in
              that may have had a leader with a greater one.
    any       read: nothing, in its place of the order.
`load` takes what `records` has given. `notices` are what handles have not heard of yet.
"""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from ringcast.replicated.encoding import (
    Token,
    decode_number,
    decode_token,
    encode_json,
    encode_token,
    member_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ringcast.model import Member, View, ViewId
    from ringcast.replicated.encoding import Result

COUNTER_MAX = 2**63 - 1
PRESENT = b"+"
"""Before a value that is there; nothing is no value."""


class Caller(NamedTuple):
    """Which operation, and at which place of the order."""

    client: bytes
    number: int
    origin: Member
    view: ViewId
    position: int


ViewKey: TypeAlias = tuple[int, int]
"""What tells a view from others: its counter and who proposed it."""


def key_of(view: ViewId) -> ViewKey:
    return view.counter, view.creator.incarnation


class Departure(NamedTuple):
    """A view in its place of the order, as it is for members that come from the leading part."""

    view: View
    position: int
    gone: frozenset[Member]
    came: frozenset[Member]
    others: tuple[ViewKey, ...] = ()
    """The views that members came from, of other parts than the leading one."""


class Change(NamedTuple):
    """A key of a dict has another value, or none."""

    key: str
    value: bytes | None
    view: ViewId
    position: int


class Touched(NamedTuple):
    """What an operation would have to do again, if its history were lost."""

    keys: tuple[str, ...] = ()
    added: int = 0


NOTHING = Touched()


class Structure:
    """What all of them do; each says the rest."""

    kind: ClassVar[str]
    token: Token | None = None
    """Whoever has this one holds the lock, or leads."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.notices: list[Any] = []
        self.touched = NOTHING
        """By the last operation."""

    def apply(self, body: Sequence[bytes], caller: Caller) -> Result:
        match list(body):
            case [b"read"]:
                return None
        raise ValueError(f"a {self.kind} does not know the operation {bytes(body[0][:20])!r}")

    def install(self, departure: Departure) -> None:
        """A view, in its place."""

    def records(self) -> Iterator[list[bytes]]:
        """The state as it is now: copied before the first is asked for."""
        raise NotImplementedError

    def load(self, record: list[bytes]) -> None:
        raise NotImplementedError


class DictState(Structure):
    kind = "dict"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.items: dict[str, bytes] = {}

    def apply(self, body: Sequence[bytes], caller: Caller) -> Result:
        match list(body):
            case [b"update", *fields] if len(fields) % 2 == 0:
                keys = [key.decode() for key in fields[::2]]
                values = [_optional(value) for value in fields[1::2]]
                known = len(self.items.keys() & set(keys))
                self._change(zip(keys, values, strict=True), caller)
                return known
            case [b"swap", key, expected, value]:
                if self.items.get(name := key.decode()) != _optional(expected):
                    return False
                self._change([(name, _optional(value))], caller)
                return True
        return super().apply(body, caller)

    def _change(self, pairs: Any, caller: Caller) -> None:
        place = caller.view, caller.position
        for key, value in (pairs := dict(pairs)).items():
            if value is not None:
                self.items[key] = value
            elif self.items.pop(key, None) is None:
                continue
            self.notices.append(Change(key, value, *place))
        self.touched = Touched(tuple(pairs))

    def records(self) -> Iterator[list[bytes]]:
        items = dict(self.items)
        return ([key.encode(), value] for key, value in items.items())

    def load(self, record: list[bytes]) -> None:
        key, value = record
        self.items[key.decode()] = value


class Waiting(NamedTuple):
    """Who asks for a lock: the operation that did so tells it from others of the same member."""

    client: bytes
    number: int
    origin: Member


class LockState(Structure):
    kind = "lock"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.holder: Waiting | None = None
        self.queue: deque[Waiting] = deque()

    def apply(self, body: Sequence[bytes], caller: Caller) -> Result:
        match list(body):
            case [b"acquire"]:
                self.queue.append(Waiting(*caller[:3]))
                self._grant(caller.view, caller.position)
                return None
            case [b"release", field]:
                number = decode_number(field)
                if self.holder is not None and self.holder[:2] == (caller.client, number):
                    self.holder = self.token = None
                    self._grant(caller.view, caller.position)
                    return True
                self._withdraw(lambda each: each[:2] == (caller.client, number))
                return False
        return super().apply(body, caller)

    def install(self, departure: Departure) -> None:
        gone = departure.gone
        self._withdraw(lambda each: each.origin in gone)
        if self.holder is not None and self.holder.origin in gone:
            self.holder = self.token = None
        self._grant(departure.view.id, departure.position)

    def _withdraw(self, is_meant: Any) -> None:
        self.queue = deque(each for each in self.queue if not is_meant(each))

    def _grant(self, view: ViewId, position: int) -> None:
        if self.holder is None and self.queue:
            self.holder = self.queue.popleft()
            self.token = Token.at(self.name, view, position)
            self.notices.append((self.holder, self.token))

    def records(self) -> Iterator[list[bytes]]:
        holder = [] if self.holder is None else [self.holder]
        token = () if self.token is None else encode_token(self.token)
        fields = [part for each in (*holder, *self.queue) for part in _fields_of(each)]
        return iter([[encode_json(len(holder)), *token, *fields]])

    def load(self, record: list[bytes]) -> None:
        is_held, *fields = record
        if json.loads(is_held):
            name, data, *fields = fields
            self.token = decode_token(name, data)
        for at in range(0, len(fields), 3):
            client, number, origin = fields[at : at + 3]
            member = member_of(json.loads(origin))
            self.queue.append(Waiting(client, decode_number(number), member))
        if self.token is not None:
            self.holder = self.queue.popleft()


def _fields_of(waiting: Waiting) -> tuple[bytes, bytes, bytes]:
    return waiting.client, waiting.number.to_bytes(8), encode_json(waiting.origin)


class CounterState(Structure):
    kind = "counter"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.value = 0

    def apply(self, body: Sequence[bytes], caller: Caller) -> Result:
        match list(body):
            case [b"add", text]:
                added = int(text)
                if abs(self.value + added) > COUNTER_MAX:
                    raise OverflowError(f"{self.name} would be beyond {COUNTER_MAX}")
                self.value += added
                self.touched = Touched(added=added)
                return self.value
        return super().apply(body, caller)

    def records(self) -> Iterator[list[bytes]]:
        return iter([[str(self.value).encode()]])

    def load(self, record: list[bytes]) -> None:
        (text,) = record
        self.value = int(text)


class LeaderState(Structure):
    kind = "leader"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.member: Member | None = None

    def install(self, departure: Departure) -> None:
        view, came = departure.view, departure.came
        first = next((member for member in view if member not in came), view.coordinator)
        is_outdone = any(key > self.token[1:3] for key in departure.others if self.token)
        if first != self.member or first in departure.gone or is_outdone:
            self.member = first
            self.token = Token.at(self.name, view.id, departure.position)
            self.notices.append((first, self.token))

    def records(self) -> Iterator[list[bytes]]:
        if self.member is None or self.token is None:
            return iter(())
        return iter([[encode_json(self.member), *encode_token(self.token)]])

    def load(self, record: list[bytes]) -> None:
        member, name, data = record
        self.member = member_of(json.loads(member))
        self.token = decode_token(name, data)


def _optional(field: bytes) -> bytes | None:
    """ValueError: this is no value, and not none."""
    if field and not field.startswith(PRESENT):
        raise ValueError("a value begins with +")
    return field[1:] if field else None


States: TypeAlias = DictState | LockState | CounterState | LeaderState
