"""The ring buffer under every interleaving: small scenarios, all schedules, all rules.

The operations explored are those of `RingBuffer` itself, the very generators that threads drive.
Every message is its own seqno, so a wrong one shows. For a Python without a GIL the steps are
divided further (ring_variants.py), and the lock is what makes them whole again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Any, TypeAlias

from ringcast.errors import GroupClosed, UsageError
from ringcast.explore.explorer import Interleavings, Report, explore
from ringcast.explore.ring_variants import (
    LockedDividedRing,
    NaiveRing,
    NoteRing,
    UnlockedDividedRing,
)
from ringcast.window.concurrent import FIND, GilRingBuffer, Steps, drive
from ringcast.window.threads import Turn

Ring: TypeAlias = GilRingBuffer[int]
"""In `memory`, a filled slot is named slot[...]."""
Pending: TypeAlias = "Sequence[str | Event | None]"
"""Each operation's next step, None where it has ended."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Operations that run at the same time, on a buffer with some messages in it."""

    name: str
    description: str
    capacity: int
    programs: str  # operations of `RingPrograms`, each with a seqno, or how many
    offset: int = 0
    present: tuple[int, ...] = ()
    nullify: bool = True
    real_only: bool = False  # the comparisons lack an operation of it

    @property
    def operations(self) -> list[tuple[str, int]]:
        pairs = [program.split() for program in self.programs.split(", ")]
        return [(what, int(argument)) for what, argument in pairs]


# fmt: off
RINGS = {scenario.name: scenario for scenario in (
    Scenario("A", "HD=4 and 5 is present: add(5) while remove() takes 5",
             10, "add 5, remove 1", offset=4, present=(5,)),
    Scenario("B", "HD=4 and 5 is absent: 5 and its retransmission on two threads, one remover",
             10, "add 5, add 5, remove 1", offset=4),
    Scenario("C", "capacity 2, next lap: 1 twice, 2 and 3 on four threads, one remover takes three",
             2, "add 1, add 1, add 2, add 3, remove 3"),
    Scenario("D", "capacity 2, next lap with 3 never sent: 1 twice, 2 and 4; remover wants three",
             2, "add 1, add 1, add 2, add 4, remove 3"),
    Scenario("E", "1 and 2 are present: two threads want to remove one each",
             2, "remove_guarded 1, remove_guarded 1", present=(1, 2)),
    Scenario("K", "capacity 1 and full: an adder waits for room, another thread closes the buffer",
             1, "add_until_closed 2, close 0", present=(1,), real_only=True),
    Scenario("M", "capacity 2 and 1 is present: missing() beside the adders of 2 and 3, and the "
             "remover", 2, "add 2, add 3, remove 2, missing 2", present=(1,), real_only=True),
    Scenario("S", "retaining, capacity 2: 1, 2 and, waiting, 3; remover calls stable() after each",
             2, "add 1, add 2, add_waiting 3, remove_stable 3", nullify=False, real_only=True),
    Scenario("W", "capacity 1 and full: two adders wait for room for 2, one remover takes two",
             1, "add_waiting 2, add_waiting 2, remove 2", present=(1,), real_only=True),
)}
UNGUARDED_E = Scenario(
    "E", "1 and 2 are present: two threads remove one each, and nothing refuses the second",
    2, "remove 1, remove 1", present=(1, 2),
)
# fmt: on

COMPLETE: dict[str, type[Ring]] = {
    "real": GilRingBuffer,
    "locked": LockedDividedRing,
    "unlocked": UnlockedDividedRing,
}
"""Those that have every operation; the others are for comparison."""
VARIANTS: dict[str, type[Ring]] = {**COMPLETE, "note": NoteRing, "naive": NaiveRing}


def explore_ring(scenario: Scenario, kind: type[Ring] = GilRingBuffer, **limits: Any) -> Report:
    """Every schedule of the scenario on a ring of this kind."""
    system = Interleavings(partial(RingPrograms, scenario, kind))
    return explore(system, goal=system.goal, **limits)


class RingPrograms:
    """A scenario's operations on a fresh ring, what they brought about, and what must hold."""

    def __init__(self, scenario: Scenario, kind: type[Ring]) -> None:
        self._scenario = scenario
        self._ring = kind(scenario.capacity, offset=scenario.offset, nullify=scenario.nullify)
        for seqno in scenario.present:
            drive(self._ring.whole(self._ring.add_steps(seqno, seqno)))
        self._accepted = Counter(scenario.present)
        self._delivered: list[int] = []
        self._refused_by_close: list[int] = []
        self._wrong_answers: list[str] = []
        self._has_one_remover = scenario.programs.count("remove") == 1
        self.operations = {
            f"T{number} {what}({argument})": self._operation(what, argument)
            for number, (what, argument) in enumerate(scenario.operations)
        }

    def memory(self) -> dict[str, object]:
        return {
            **self._ring.memory(),
            "accepted": sorted(self._accepted.elements()),
            "delivered": list(self._delivered),
            "refused by close": list(self._refused_by_close),
            "wrong answers": list(self._wrong_answers),
        }

    def is_goal(self, pending: Pending) -> bool:
        """All has ended, or only removers remain and what they want has not been added."""
        if not self._is_between_operations(pending):
            return False
        is_over = all(step is None for step in pending)
        return is_over or self._ring.hd + 1 not in self._accepted

    def violations(self, pending: Pending) -> Iterator[str]:
        yield from self._wrong_answers
        yield from self._always()
        if self._is_between_operations(pending):
            yield from self._between_operations(pending)

    def _is_between_operations(self, pending: Pending) -> bool:
        """All have ended, but removers that are about to look for the next message."""
        return all(
            step is None or step == FIND or (isinstance(step, Turn) and what.startswith("remove"))
            for (what, _), step in zip(self._scenario.operations, pending, strict=True)
        )

    def _always(self) -> Iterator[str]:
        low, hd, hr = self._ring.low, self._ring.hd, self._hr()
        highest = max(self._accepted, default=hd)
        expected = range(
            self._scenario.offset + 1, self._scenario.offset + 1 + len(self._delivered)
        )
        if any(times > 1 for times in self._accepted.values()):
            yield "add() accepted one seqno twice (RB7)"
        if len(set(self._delivered)) < len(self._delivered):
            yield "one message was delivered twice (RB7)"
        if self._has_one_remover and self._delivered != list(expected):
            yield "remove() returned something else than the message of HD + 1 (RB5)"
        if not low <= hd <= hr:
            yield "LOW <= HD <= HR does not hold (RB1)"
        if max(hr, highest) - low > self._scenario.capacity:
            yield "HR - LOW exceeds the capacity (RB2)"
        if hr < highest:
            yield "HR is below a seqno that was accepted (RB4)"
        if any(item <= low for item in self._items()):
            yield "a slot holds a message that is not above LOW (RB3)"

    def _between_operations(self, pending: Pending) -> Iterator[str]:
        """What need not hold while an operation is under way."""
        scenario, ring = self._scenario, self._ring
        items = self._items()
        gone = ring.hd if scenario.nullify else ring.low
        if any(seqno > gone and seqno not in items for seqno in self._accepted):
            yield "an accepted message has vanished from the buffer"
        if any(s not in self._delivered for s in range(scenario.offset + 1, ring.hd + 1)):
            yield "HD passed a message that nobody received (RB5)"
        if any(self._accepted[seqno] == 0 for seqno in self._surely_admissible(pending)):
            yield "add() refused a seqno that was free (RB4)"

    def _surely_admissible(self, pending: Pending) -> Iterator[int]:
        """Seqnos with an ended adder that had room from the start, or waited for it."""
        scenario = self._scenario
        for (what, seqno), step in zip(scenario.operations, pending, strict=True):
            had_room = 0 < seqno - scenario.offset <= scenario.capacity
            if step is None and ((what == "add" and had_room) or what == "add_waiting"):
                yield seqno

    def _hr(self) -> int:
        """As it is at this moment, whoever holds the lock."""
        hd, marks = drive(self._ring.look_steps())
        return hd + len(marks)

    def _items(self) -> list[int]:
        memory = self._ring.memory().items()
        return [v for name, v in memory if name.startswith("slot[") and isinstance(v, int)]

    # The operations, as programs for the explorer.

    def _operation(self, what: str, argument: int) -> Steps[None]:
        operation = getattr(self, f"_{what}", None)
        if operation is None:
            raise UsageError(f"unknown operation {what!r}")
        return operation(argument)  # type: ignore[no-any-return]

    def _add(self, seqno: int) -> Steps[None]:
        if (yield from self._ring.whole(self._ring.add_steps(seqno, seqno))):
            self._accepted[seqno] += 1

    def _add_waiting(self, seqno: int) -> Steps[None]:
        if (yield from self._ring.whole(self._ring.add_waiting_steps(seqno, seqno))):
            self._accepted[seqno] += 1

    def _add_until_closed(self, seqno: int) -> Steps[None]:
        try:
            yield from self._add_waiting(seqno)
        except GroupClosed:
            self._refused_by_close.append(seqno)

    def _close(self, _: int) -> Steps[None]:
        yield from self._ring.whole(self._ring.close_steps())

    def _remove(self, wanted: int, *, stable: bool = False) -> Steps[None]:
        while wanted > 0:
            items = yield from self._ring.whole(self._ring.take_steps(1))
            self._delivered += items
            wanted -= len(items)
            if stable and items:
                yield from self._ring.whole(self._ring.stable_steps(items[0]))

    def _remove_stable(self, wanted: int) -> Steps[None]:
        return self._remove(wanted, stable=True)

    def _remove_guarded(self, wanted: int) -> Steps[None]:
        try:
            yield from self._ring.whole(self._ring.handle_steps())
        except UsageError:
            return
        yield from self._remove(wanted)

    def _missing(self, _: int) -> Steps[None]:
        yield "call missing()"
        before = sorted(self._accepted)
        hd, marks = yield from self._ring.whole(self._ring.look_steps())
        reported = [hd + 1 + i for i, mark in enumerate(marks) if not mark]
        if any(seqno in before for seqno in reported):
            self._wrong_answers.append("missing() named a seqno that was there before (RB8)")
        if marks and hd + len(marks) not in self._accepted:
            self._wrong_answers.append("HR named a seqno that nobody had added (RB4)")
        known = range(hd + 1, max(before, default=hd))
        if any(s not in self._accepted and s not in reported for s in known):
            self._wrong_answers.append("missing() left out a seqno (RB8)")
