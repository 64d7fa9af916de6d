"""The ring buffer under every interleaving, and broken ones that the explorer must tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pytest

from ringcast.errors import GroupClosed, UsageError
from ringcast.explore.explorer import STALL
from ringcast.explore.ring import RINGS, UNGUARDED_E, RingPrograms, Scenario, explore_ring
from ringcast.explore.ring_variants import (
    LockedDividedRing,
    NaiveRing,
    NoteRing,
    UnlockedDividedRing,
)
from ringcast.window.concurrent import (
    CLAIM,
    COPY_BELLS,
    COPY_MARKS,
    EMPTY,
    FILL,
    FIND,
    HANG_BELL,
    MARK,
    PUT_TOKENS,
    READ_CLOSED,
    READ_HD,
    READ_LOW,
    READ_ROOM,
    TAKE,
    WIPE,
    WRITE_CLOSED,
    WRITE_HD,
    WRITE_LOW,
    WRITE_ROOM,
    Bell,
    GilRingBuffer,
)

if TYPE_CHECKING:
    from ringcast.explore.explorer import Report
    from ringcast.window.concurrent import Steps

R = TypeVar("R")

TWICE_ACCEPTED = "add() accepted one seqno twice (RB7)"
TWICE_DELIVERED = "one message was delivered twice (RB7)"
WRONG_MESSAGE = "remove() returned something else than the message of HD + 1 (RB5)"
NOT_RECEIVED = "HD passed a message that nobody received (RB5)"
POINTERS = "LOW <= HD <= HR does not hold (RB1)"
OVERFULL = "HR - LOW exceeds the capacity (RB2)"
STALE = "a slot holds a message that is not above LOW (RB3)"
HR_TOO_LOW = "HR is below a seqno that was accepted (RB4)"
REFUSED = "add() refused a seqno that was free (RB4)"
VANISHED = "an accepted message has vanished from the buffer"


def kinds(report: Report) -> set[str]:
    assert report.complete
    return {violation.kind for violation in report.violations}


@pytest.mark.parametrize("name", RINGS)
def test_the_real_buffer_holds_under_every_interleaving(name: str) -> None:
    report = explore_ring(RINGS[name])
    assert kinds(report) == set()
    assert report.states >= 20


def test_the_note_holds_with_one_adder() -> None:
    assert kinds(explore_ring(RINGS["A"], NoteRing)) == set()


def test_the_note_admits_a_seqno_twice_with_two_adders() -> None:
    report = explore_ring(RINGS["B"], NoteRing)
    assert kinds(report) == {TWICE_ACCEPTED, STALE}
    assert len(report.violations[0].witness) == 13
    assert kinds(explore_ring(RINGS["C"], NoteRing)) == {TWICE_ACCEPTED, STALE}


def test_the_note_delivers_a_message_twice_in_place_of_another() -> None:
    found = kinds(explore_ring(RINGS["D"], NoteRing))
    assert {TWICE_DELIVERED, WRONG_MESSAGE, NOT_RECEIVED} < found


def test_the_naive_buffer_has_the_defect_the_note_describes() -> None:
    report = explore_ring(RINGS["A"], NaiveRing)
    assert TWICE_ACCEPTED in kinds(report)
    assert report.violations[0].witness[-1].startswith("T0 add(5): compare-and-set")


def test_two_removers_deliver_one_message_twice_and_lose_another() -> None:
    assert {TWICE_DELIVERED, NOT_RECEIVED} <= kinds(explore_ring(UNGUARDED_E))


def test_an_unknown_operation_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown operation 'juggle'"):
        RingPrograms(Scenario("X", "", 1, "juggle 1"), GilRingBuffer)


# Without a GIL: the parts of each step, with the lock and without.


@pytest.mark.parametrize("name", RINGS)
def test_the_lock_makes_divided_steps_whole(name: str) -> None:
    report = explore_ring(RINGS[name], LockedDividedRing)
    assert kinds(report) == set()
    assert report.states >= 20


@pytest.mark.parametrize(
    ("name", "found"),
    [("B", TWICE_ACCEPTED), ("C", TWICE_ACCEPTED), ("S", REFUSED), ("W", TWICE_ACCEPTED)],
)
def test_without_the_lock_divided_steps_go_wrong(name: str, found: str) -> None:
    report = explore_ring(RINGS[name], UnlockedDividedRing, stop_at_violation=True)
    assert found in {violation.kind for violation in report.violations}


class WholeClaim(UnlockedDividedRing):
    """Even if each token is taken at once: of the rest enough goes wrong."""

    add_steps = GilRingBuffer.add_steps


def test_without_the_lock_an_adder_sleeps_for_ever() -> None:
    assert STALL in kinds(explore_ring(RINGS["W"], WholeClaim))


class SleepsWithTheLock(LockedDividedRing):
    def whole(self, steps: Steps[R]) -> Steps[R]:
        yield self._turn
        with self._lock:
            return (yield from steps)


# Planted defects: each is a small slip in one operation, and each must be found.


def freeing(*order: str) -> type[GilRingBuffer[int]]:
    """A buffer that frees slots by these steps, in this order."""

    def free_steps(self: GilRingBuffer[int], freed: int) -> Steps[None]:
        start, low = self._low % self._capacity, self._low + freed
        room = low + self._capacity
        for step in order:
            yield step
            if step == WIPE:
                self._present[start : start + freed] = bytes(freed)
            elif step == EMPTY:
                self._slots[start : start + freed] = [None] * freed
            elif step == WRITE_LOW:
                self._low = low
            elif step == PUT_TOKENS:
                self._tokens.update(dict.fromkeys(range(room - freed + 1, room + 1), True))
            elif step == COPY_BELLS:
                self._ring(self._bells.copy(), room)
            else:
                self._room = room

    return type("Freeing", (GilRingBuffer,), {"free_steps": free_steps})


TokenBeforeSlotIsFreed = freeing(PUT_TOKENS, WIPE, EMPTY, WRITE_LOW, WRITE_ROOM)
TokenBeforeLow = freeing(WIPE, EMPTY, PUT_TOKENS, WRITE_LOW, WRITE_ROOM)
BellsLookedForBeforeRoom = freeing(WIPE, EMPTY, WRITE_LOW, PUT_TOKENS, COPY_BELLS, WRITE_ROOM)


class SlotNotEmptied(GilRingBuffer[int]):
    def free_steps(self, freed: int) -> Steps[None]:
        slots = list(self._slots)
        yield from super().free_steps(freed)
        self._slots[:] = slots


class MarkBeforeSlotIsFilled(GilRingBuffer[int]):
    def add_steps(self, seqno: int, item: int) -> Steps[bool]:
        slot = (seqno - 1) % self._capacity
        yield CLAIM
        if not self._tokens.pop(seqno, False):
            return False
        yield MARK
        self._present[slot] = 1
        yield FILL
        self._slots[slot] = item
        return True


class ClaimInTwoSteps(GilRingBuffer[int]):
    def add_steps(self, seqno: int, item: int) -> Steps[bool]:
        yield "read the token"
        if seqno not in self._tokens:
            return False
        added = super().add_steps(seqno, item)
        yield next(added)
        self._tokens[seqno] = True  # whoever has taken it since
        return (yield from added)


class HdAfterTheSlotIsFreed(GilRingBuffer[int]):
    def take_steps(self, limit: int) -> Steps[list[int]]:
        start = self._hd % self._capacity
        yield FIND
        if not self._present[start]:
            return []
        yield TAKE
        items = [item for item in self._slots[start : start + 1] if item is not None]
        yield from self.free_steps(1)
        yield WRITE_HD
        self._hd += 1
        return items


class WindowTooSmall(GilRingBuffer[int]):
    def add_steps(self, seqno: int, item: int) -> Steps[bool]:
        if seqno - self._low >= self._capacity:
            yield CLAIM
            return False
        return (yield from super().add_steps(seqno, item))


class RoomReadBeforeTheBellHangs(GilRingBuffer[int]):
    def add_waiting_steps(self, seqno: int, item: int) -> Steps[bool]:
        while True:
            yield READ_ROOM
            room = self._room
            added = yield from self.add_steps(seqno, item)
            if added or seqno <= room:
                return added
            bell = Bell()
            yield HANG_BELL
            self._bells[bell] = seqno
            yield bell
            self._bells.pop(bell, None)


class DuplicateJudgedByLow(GilRingBuffer[int]):
    def add_waiting_steps(self, seqno: int, item: int) -> Steps[bool]:
        while True:
            yield READ_LOW
            room = self._low + self._capacity
            added = yield from self.add_steps(seqno, item)
            if added or seqno <= room:
                return added


class CloseWakesNobody(GilRingBuffer[int]):
    def close_steps(self) -> Steps[None]:
        yield WRITE_CLOSED
        self._closed = True


class ClosedReadBeforeTheBellHangs(GilRingBuffer[int]):
    def add_waiting_steps(self, seqno: int, item: int) -> Steps[bool]:
        yield READ_CLOSED
        if self._closed:
            raise GroupClosed
        bell = Bell()
        yield HANG_BELL
        self._bells[bell] = seqno
        yield bell
        self._bells.pop(bell, None)
        raise GroupClosed


class FreeingWakesNobody(GilRingBuffer[int]):
    def free_steps(self, freed: int) -> Steps[None]:
        bells, self._bells = self._bells, {}
        yield from super().free_steps(freed)
        self._bells = bells


def looking(*order: str) -> type[GilRingBuffer[int]]:
    """A buffer that looks for what is missing by these steps, in this order."""

    def look_steps(self: GilRingBuffer[int]) -> Steps[tuple[int, bytes]]:
        low, hd, marks = 0, 0, b""
        for step in order:
            yield step
            if step == READ_LOW:
                low = self._low
            elif step == READ_HD:
                hd = self._hd
            else:
                marks = bytes(self._present)
        start = low % self._capacity
        return hd, (marks[start:] + marks[:start])[hd - low :].rstrip(b"\0")

    return type("Looking", (GilRingBuffer,), {"look_steps": look_steps})


MarksCopiedBeforeLowIsRead = looking(COPY_MARKS, READ_LOW, READ_HD)
HdReadBeforeMarks = looking(READ_LOW, READ_HD, COPY_MARKS)


class GapsOverlooked(GilRingBuffer[int]):
    def look_steps(self) -> Steps[tuple[int, bytes]]:
        hd, marks = yield from super().look_steps()
        return hd, b"\1" * len(marks)


@pytest.mark.parametrize(
    ("broken", "name", "found"),
    [
        (TokenBeforeSlotIsFreed, "C", VANISHED),
        (TokenBeforeLow, "C", OVERFULL),
        (SlotNotEmptied, "A", STALE),
        (MarkBeforeSlotIsFilled, "B", WRONG_MESSAGE),
        (ClaimInTwoSteps, "B", TWICE_ACCEPTED),
        (HdAfterTheSlotIsFreed, "A", POINTERS),
        (HdAfterTheSlotIsFreed, "A", HR_TOO_LOW),
        (WindowTooSmall, "D", REFUSED),
        (RoomReadBeforeTheBellHangs, "W", STALL),
        (DuplicateJudgedByLow, "W", REFUSED),
        (BellsLookedForBeforeRoom, "W", STALL),
        (FreeingWakesNobody, "S", STALL),
        (CloseWakesNobody, "K", STALL),
        (ClosedReadBeforeTheBellHangs, "K", STALL),
        (MarksCopiedBeforeLowIsRead, "M", "HR named a seqno that nobody had added (RB4)"),
        (GapsOverlooked, "M", "missing() left out a seqno (RB8)"),
        (HdReadBeforeMarks, "M", "missing() named a seqno that was there before (RB8)"),
        (SleepsWithTheLock, "W", STALL),
        (SleepsWithTheLock, "K", STALL),
    ],
)
def test_planted_defects_are_found(broken: type[GilRingBuffer[int]], name: str, found: str) -> None:
    report = explore_ring(RINGS[name], broken)
    assert found in kinds(report)
    assert all(violation.witness for violation in report.violations)
