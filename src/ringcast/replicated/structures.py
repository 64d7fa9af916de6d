"""The structures as state machines: what an operation or a view does to each.

Nothing here looks at a clock or at chance: the same operations and views in the same order make the
same state at every member. An `apply` that raises leaves its structure as it was; what it raises is
the operation's result.
    dict      update: its keys get their values, or go. swap: the same for one key, if it has the
              expected value.
    lock      acquire: to the end of the line. release: out of the line; True if it was the first.
              On view: whoever departed is out of the line. The first in it has the lock, under the
              token of the place at which it became the first.
    counter   add.
    leader    on view: the first member that came with the leading part. The epoch begins with its
              leader; and again with the same one if it was gone, or where another part comes in
              that may have had a leader with a greater one.
    any       read: nothing, in its place of the order.
`load` takes what `told` has given, from JSON; a dict's items are records of their own.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from ringcast.replicated.encoding import Result, Token, member_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ringcast.model import Member, View, ViewId

COUNTER_MAX = 2**63 - 1
PRESENT = b"+"
"""Before a value that is there; nothing is no value."""

CHANGES_MAX = 1024
CHANGES_BYTES_MAX = 1 << 24
"""Changes of a dict that are kept for those who watch it."""


class Caller(NamedTuple):
    """Which operation: its space, its number there, and the member."""

    client: bytes
    number: int
    origin: Member


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


class Structure:
    """What all of them do; each says the rest."""

    kind: ClassVar[str]
    token: Token | None = None
    """Whoever has this one holds the lock, or leads."""
    touched: tuple[tuple[str, ...], int] | None = None
    """By the last operation: keys, and what was added."""

    def __init__(self, name: str) -> None:
        self.name = name

    def apply(self, body: Sequence[bytes], caller: Caller, at: Token) -> Result:
        if list(body) == [b"read"]:
            return None
        raise ValueError(f"a {self.kind} does not know the operation {b' '.join(body)[:20]!r}")

    def install(self, departure: Departure) -> None:
        """A view, in its place."""

    def told(self) -> Any:
        """The state as JSON has it."""

    def load(self, told: Any) -> None:
        """Into a structure that has nothing."""


class DictState(Structure):
    kind = "dict"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.items: dict[str, bytes] = {}
        self.is_watched = False
        self.changes: deque[tuple[str, bytes | None, Token]] = deque()
        """Keys that have other values, or none: the last ones, while somebody watches."""
        self.changed = 0
        """How many there were."""
        self._size = 0  # of their values

    def apply(self, body: Sequence[bytes], caller: Caller, at: Token) -> Result:
        match list(body):
            case [b"update", *fields] if len(fields) % 2 == 0:
                keys = [key.decode() for key in fields[::2]]
                values = [_optional(value) for value in fields[1::2]]
                known = len(self.items.keys() & set(keys))
                self._change(dict(zip(keys, values, strict=True)), at)
                return known
            case [b"swap", key, expected, value]:
                if self.items.get(name := key.decode()) != _optional(expected):
                    return False
                self._change({name: _optional(value)}, at)
                return True
        return super().apply(body, caller, at)

    def _change(self, pairs: dict[str, bytes | None], at: Token) -> None:
        for key, value in pairs.items():
            if value is not None:
                self.items[key] = value
            elif self.items.pop(key, None) is None:
                continue
            if self.is_watched:
                self.changes.append((key, value, at))
                self.changed += 1
                self._size += len(value or b"")
        while len(self.changes) > CHANGES_MAX or self._size > CHANGES_BYTES_MAX:
            self._size -= len(self.changes.popleft()[1] or b"")
        self.touched = tuple(pairs), 0

    def watch(self, *, is_watched: bool) -> None:
        self.is_watched, self._size = is_watched, 0
        self.changes.clear()


class LockState(Structure):
    kind = "lock"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.line: list[Caller] = []

    @property
    def holder(self) -> Caller | None:
        return self.line[0] if self.line else None

    def apply(self, body: Sequence[bytes], caller: Caller, at: Token) -> Result:
        match list(body):
            case [b"acquire"]:
                self._stand((*self.line, caller), at)
                return None
            case [b"release", number]:
                meant, holder = (caller.client, int(number)), self.holder
                self._stand([each for each in self.line if each[:2] != meant], at)
                return holder is not None and holder[:2] == meant
        return super().apply(body, caller, at)

    def install(self, departure: Departure) -> None:
        at = Token.at(self.name, departure.view.id, departure.position)
        self._stand([each for each in self.line if each.origin not in departure.gone], at)

    def _stand(self, line: Iterable[Caller], at: Token) -> None:
        before, self.line = self.holder, list(line)
        if self.holder is not before:
            self.token = at if self.line else None

    def told(self) -> Any:
        return self.token, [(each.client.hex(), *each[1:]) for each in self.line]

    def load(self, told: Any) -> None:
        token, line = told
        self.token = token and Token(*token)
        self.line = [
            Caller(bytes.fromhex(client), number, member_of(origin))
            for client, number, origin in line
        ]


class CounterState(Structure):
    kind = "counter"
    value = 0

    def apply(self, body: Sequence[bytes], caller: Caller, at: Token) -> Result:
        match list(body):
            case [b"add", text]:
                added = int(text)
                if abs(self.value + added) > COUNTER_MAX:
                    raise OverflowError(f"{self.name} would be beyond {COUNTER_MAX}")
                self.value += added
                self.touched = (), added
                return self.value
        return super().apply(body, caller, at)

    def told(self) -> Any:
        return self.value

    def load(self, told: Any) -> None:
        self.value = told


class LeaderState(Structure):
    kind = "leader"
    member: Member | None = None

    def install(self, departure: Departure) -> None:
        view, came = departure.view, departure.came
        first = next((member for member in view if member not in came), view.coordinator)
        is_outdone = any(key > self.token[1:3] for key in departure.others if self.token)
        if first != self.member or first in departure.gone or is_outdone:
            self.member = first
            self.token = Token.at(self.name, view.id, departure.position)

    def told(self) -> Any:
        return self.member, self.token

    def load(self, told: Any) -> None:
        member, token = told
        if token is not None:
            self.member, self.token = member_of(member), Token(*token)


def _optional(field: bytes) -> bytes | None:
    """ValueError: this is no value, and not none."""
    if field and not field.startswith(PRESENT):
        raise ValueError("a value begins with +")
    return field[1:] if field else None


States: TypeAlias = DictState | LockState | CounterState | LeaderState
