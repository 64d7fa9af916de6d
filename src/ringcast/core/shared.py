"""What all layers of one member share: which group it is in, and one table of deadlines.

The stack alone writes the group state, before layers hear of a view and after they have closed; no
layer keeps a view of its own.

A layer arms and disarms timers of its own; the table keeps when the first of all is due, so nobody
asks the layers. There are no callbacks: the owner of a timer looks at its state when one is due.

Timers may be served late: a busy machine, SIGSTOP. Then several are due at once, and serving one
may disarm another or set a later deadline for it: what is not due any more is not served.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence

    from ringcast.core.effects import Effects, Layer
    from ringcast.model import Member, View

    Armed: TypeAlias = tuple[Hashable, Any]

K = TypeVar("K")

NEVER = 1 << 64
"""Later than any deadline."""


class Named(Enum):
    """What names timers and states. An Enum hashes its name, in Python; this hashes as any object
    does, in C, and every message looks some up. So no order may come from a set of them."""

    __hash__ = object.__hash__


class Phase(Enum):
    """Where a member stands towards its group."""

    IDLE = "not started"
    LOOKING = "looking for the group"
    MEMBER = "in the group"
    LEAVING = "leaving"
    OUT = "out of the group"


class GroupState:
    """Which group a member is in. The stack writes, layers read."""

    __slots__ = ("is_over", "me", "previous", "view")

    def __init__(self, me: Member) -> None:
        self.me = me
        self.view: View | None = None
        """None: in none, before the first view and after the last."""
        self.previous: View | None = None
        """The one before."""
        self.is_over = False
        """This member has left, or was excluded: no view counts any more."""

    def accepts(self, view: View) -> bool:
        """Whether this is the next view: an older one than the current changes nothing."""
        return not self.is_over and (self.view is None or view.counter > self.view.counter)

    def change(self, view: View, layers: Sequence[Layer], now: int, out: Effects) -> None:
        """The group is this now: all layers hear of it, in order."""
        self.previous, self.view = self.view, view
        for layer in layers:
            layer.install_view(view, now, out)

    def close(self, reason: str, layers: Sequence[Layer], now: int, out: Effects) -> None:
        """This member is out: all layers close, the last first."""
        for layer in reversed(layers):
            layer.close(reason, now, out)
        self.is_over = True
        self.view = None


class Deadlines:
    """The timers of one member, by owner, in the order in which owners were added."""

    __slots__ = ("_owners", "first", "is_stale", "waiting")

    def __init__(self) -> None:
        self.first = NEVER
        """No deadline is before this; unless `is_stale`, some deadline is this."""
        self.is_stale = False
        self.waiting: dict[Timers[Any], None] = {}
        """Those of them that have a deadline, as a set: of the many windows hardly any."""
        self._owners: dict[Hashable, Timers[Any]] = {}

    def owner(self, name: Hashable) -> Timers[Any]:
        """Timers for a new owner. If it takes the place of another, that one's are gone."""
        if name in self._owners:
            self._forget(self._owners[name])
        self._owners[name] = Timers(name, self)
        return self._owners[name]

    def remove(self, timers: Timers[Any]) -> None:
        """Their owner is gone, unless another has its place by now."""
        if self._owners.get(timers.name) is timers:
            del self._owners[timers.name]
            self._forget(timers)

    def _forget(self, timers: Timers[Any]) -> None:
        """Whatever their owner does, none of them counts here any more."""
        self.waiting.pop(timers, None)
        self.is_stale = True
        timers._table = Deadlines()

    def is_due(self, kind: str, now: int) -> bool:
        """Whether a timer of some owner `(kind, …)` is due."""
        for timers in self.waiting:
            match timers.name:
                case (owner, *_) if owner == kind and min(timers.by_key.values()) <= now:
                    return True
        return False

    def next(self) -> int | None:
        """When the first timer of all is due; None: none is armed."""
        if self.is_stale:
            self.is_stale = False
            self.first = NEVER
            for timers in self.waiting:
                for deadline in timers.by_key.values():
                    self.first = min(self.first, deadline)
        return None if self.first == NEVER else self.first

    def peek(self) -> int | None:
        """The same for who observes: nothing changes."""
        if not self.is_stale:
            return None if self.first == NEVER else self.first
        return min((at for timers in self.waiting for at in timers.by_key.values()), default=None)

    def armed(self) -> list[Armed]:
        """(owner, key) of each armed timer: owners in their order, keys in order of their names."""
        return [
            (name, key)
            for name, timers in self._owners.items()
            for key in sorted(timers.by_key, key=str)
        ]

    def make_due(self, chosen: Armed, others: Iterable[Armed], now: int) -> int:
        """For whoever explores all orders: the time at which the chosen timer is due, and none of
        the others.

        Deadlines are never brought forward: whoever armed a timer may compare clocks when it fires.
        What would be due before is put off.
        """
        name, key = chosen
        now = max(now, self._owners[name].by_key[key])
        for name, key in others:
            timers = self._owners[name]
            if timers.by_key[key] <= now and (name, key) != chosen:
                timers.arm(key, now + 1)
        return now

    def check_invariants(self) -> None:
        found = [at for timers in self._owners.values() for at in timers.by_key.values()]
        assert all(at >= self.first for at in found)
        assert self.is_stale or self.first == min(found, default=NEVER)
        assert {*self.waiting} == {timers for timers in self._owners.values() if timers.by_key}


class Timers(Generic[K]):
    """Deadlines of one owner by key, in nanoseconds. A key is armed at most once."""

    __slots__ = ("_table", "by_key", "name")

    def __init__(self, name: Hashable, table: Deadlines) -> None:
        self.name = name
        self.by_key: dict[K, int] = {}
        """To be read only."""
        self._table = table

    def arm(self, key: K, deadline: int) -> None:
        """Set the deadline, replacing an earlier or later one."""
        table = self._table
        if deadline <= table.first:
            table.first = deadline
            table.is_stale = False
        elif self.by_key.get(key) == table.first:
            table.is_stale = True
        if not self.by_key:
            table.waiting[self] = None
        self.by_key[key] = deadline

    def arm_if_idle(self, key: K, deadline: int) -> None:
        """Set the deadline unless one is set: repeated causes do not push it back."""
        if key not in self.by_key:
            table = self._table
            if not self.by_key:
                table.waiting[self] = None
            self.by_key[key] = deadline
            if deadline <= table.first:
                table.first = deadline
                table.is_stale = False

    def disarm(self, key: K) -> None:
        deadline = self.by_key.pop(key, None)
        if deadline is None:
            return
        table = self._table
        if not self.by_key:
            table.waiting.pop(self, None)
        if deadline == table.first:
            table.is_stale = True

    def disarm_all(self) -> None:
        self.by_key.clear()
        self._table.waiting.pop(self, None)
        self._table.is_stale = True

    def release(self) -> None:
        """The owner is gone."""
        self._table.remove(self)

    def is_armed(self, key: K) -> bool:
        return key in self.by_key

    def until(self, key: K, now: int) -> int:
        """How long until this one is due; 0 if it is, or is not armed."""
        return max(0, self.by_key.get(key, now) - now)

    def lateness(self, key: K, now: int) -> int:
        """For how long this one has been due; 0 if it is not, or is not armed."""
        return max(0, now - self.by_key.get(key, now))

    def due(self, now: int) -> list[K]:
        """The keys whose deadline has come, earliest first."""
        if self._table.first > now:
            return []
        due = [key for key, deadline in self.by_key.items() if deadline <= now]
        if len(due) > 1:
            due.sort(key=self.by_key.__getitem__)
        return due

    def take(self, key: K, now: int) -> bool:
        """Disarm this key if its deadline has come; whether it has."""
        is_due = self.by_key.get(key, NEVER) <= now
        if is_due:
            self.disarm(key)
        return is_due

    def take_due(self, now: int) -> Iterator[K]:
        """The keys whose deadline has come, each disarmed just before the caller gets it. A key
        that the caller has disarmed or put off meanwhile is left out, and none comes twice. If the
        caller stops, the others stay armed."""
        for key in self.due(now):
            if self.take(key, now):
                yield key
