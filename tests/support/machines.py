"""A machine of each structure, and operations for it: what a script of an order is made of."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ringcast.model import View, ViewId
from ringcast.replicated.encoding import Op, take_records
from ringcast.replicated.machine import Machine
from ringcast.replicated.structures import (
    CounterState,
    Departure,
    DictState,
    LeaderState,
    LockState,
)
from support.ordered import member

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ringcast.model import Member
    from ringcast.replicated.encoding import Result
    from ringcast.replicated.structures import States

KINDS = (DictState, LockState, CounterState, LeaderState)


def machine() -> Machine:
    """With one of each kind, named by it."""
    return Machine({kind.kind: kind(kind.kind) for kind in KINDS})


class Script:
    """One order, and machines that go through it."""

    def __init__(self, *machines: Machine) -> None:
        self.machines = list(machines) or [machine()]
        self.position = 0
        self.counter = 0
        self.members: tuple[Member, ...] = ()
        self.lows: dict[bytes, int] = {}

    @property
    def first(self) -> Machine:
        return self.machines[0]

    @property
    def view(self) -> View:
        return View(ViewId(self.members[0], self.counter), self.members)

    def install(
        self,
        *numbers: int,
        gone: Iterable[int] = (),
        came: Iterable[int] | None = None,
        others: tuple[tuple[int, int], ...] = (),
    ) -> None:
        """A view of these. `gone` and `came` are what lists say, and more."""
        before, self.members = self.members, tuple(member(number) for number in numbers)
        self.counter += 1
        departed = {each for each in before if each not in self.members}
        arrived = {each for each in self.members if each not in before}
        gones = frozenset(departed | {member(each) for each in gone})
        cames = frozenset(arrived if came is None else {member(each) for each in came})
        for each in self.machines:
            each.install(Departure(self.view, self.position, gones, cames, others))

    def do(
        self,
        number: int,
        structure: str,
        *body: bytes,
        by: int = 0,
        low: int | None = None,
        again: bool = False,
    ) -> Result:
        """Operation `number` of this member's space; the result is the same at all machines."""
        client = b"client%02d" % by
        op = Op(client, number, number if low is None else low, again, body)
        self.position += 1
        origin, view = member(by), self.view.id
        results = [each.apply(structure, op, origin, view, self.position) for each in self.machines]
        assert all(one == other for one, other in pairwise(results))
        return results[0]


def copied(source: Machine) -> Machine:
    """What a joiner has: the state in pieces, and nothing else."""
    other, buffer = source.anew(), bytearray()
    for chunk in source.records():
        for start in range(0, len(chunk), 7):
            buffer += chunk[start : start + 7]
            for record in take_records(buffer):
                other.load(record)
    assert not buffer
    return other


def told(source: Machine) -> bytes:
    """All of its state."""
    return b"".join(source.records())


def contents(source: States) -> Any:
    """All of the state of a structure."""
    return {**source.items} if isinstance(source, DictState) else source.told()


def acquire(script: Script, number: int, by: int) -> None:
    script.do(number, "lock", b"acquire", by=by)


def release(script: Script, number: int, of: int, by: int) -> Result:
    return script.do(number, "lock", b"release", b"%d" % of, by=by)
