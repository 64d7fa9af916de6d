"""The ring buffer under every interleaving, and broken ones that the explorer must tell."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeVar

import pytest
from click.testing import CliRunner

from ringcast.cli.explore import explore
from ringcast.errors import GroupClosed, UsageError
from ringcast.explore.explorer import STALL
from ringcast.explore.ring import RINGS, UNGUARDED_E, RingPrograms, Scenario, explore_ring
from ringcast.explore.ring_comparisons import NaiveRing, NoteRing
from ringcast.explore.ring_divided import LockedDividedRing, UnlockedDividedRing
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


class TokenBeforeSlotIsFreed(GilRingBuffer[int]):
    def free_steps(self, freed: int) -> Steps[None]:
        start = self._low % self._capacity
        room = self._low + freed + self._capacity
        yield PUT_TOKENS
        self._tokens.update(dict.fromkeys(range(room - freed + 1, room + 1), True))
        yield WIPE
        self._present[start : start + freed] = bytes(freed)
        yield EMPTY
        self._slots[start : start + freed] = [None] * freed
        yield WRITE_LOW
        self._low += freed
        yield WRITE_ROOM
        self._room = room


class TokenBeforeLow(GilRingBuffer[int]):
    def free_steps(self, freed: int) -> Steps[None]:
        start = self._low % self._capacity
        room = self._low + freed + self._capacity
        yield WIPE
        self._present[start : start + freed] = bytes(freed)
        yield EMPTY
        self._slots[start : start + freed] = [None] * freed
        yield PUT_TOKENS
        self._tokens.update(dict.fromkeys(range(room - freed + 1, room + 1), True))
        yield WRITE_LOW
        self._low += freed
        yield WRITE_ROOM
        self._room = room


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
        slot = (seqno - 1) % self._capacity
        yield "read the token"
        if seqno not in self._tokens:
            return False
        yield CLAIM
        self._tokens.pop(seqno, False)
        yield FILL
        self._slots[slot] = item
        yield MARK
        self._present[slot] = 1
        return True


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


class BellsLookedForBeforeRoom(GilRingBuffer[int]):
    def free_steps(self, freed: int) -> Steps[None]:
        start = self._low % self._capacity
        room = self._low + freed + self._capacity
        yield WIPE
        self._present[start : start + freed] = bytes(freed)
        yield EMPTY
        self._slots[start : start + freed] = [None] * freed
        yield WRITE_LOW
        self._low += freed
        yield PUT_TOKENS
        self._tokens.update(dict.fromkeys(range(room - freed + 1, room + 1), True))
        yield COPY_BELLS
        self._ring(self._bells.copy(), room)
        yield WRITE_ROOM
        self._room = room


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


class MarksCopiedBeforeLowIsRead(GilRingBuffer[int]):
    def look_steps(self) -> Steps[tuple[int, bytes]]:
        yield COPY_MARKS
        marks = bytes(self._present)
        yield READ_LOW
        low = self._low
        yield READ_HD
        hd = self._hd
        start = low % self._capacity
        return hd, (marks[start:] + marks[:start])[hd - low :].rstrip(b"\0")


class GapsOverlooked(GilRingBuffer[int]):
    def look_steps(self) -> Steps[tuple[int, bytes]]:
        hd, marks = yield from super().look_steps()
        return hd, b"\1" * len(marks)


class HdReadBeforeMarks(GilRingBuffer[int]):
    def look_steps(self) -> Steps[tuple[int, bytes]]:
        yield READ_LOW
        low = self._low
        yield READ_HD
        hd = self._hd
        yield COPY_MARKS
        marks = bytes(self._present)
        start = low % self._capacity
        return hd, (marks[start:] + marks[:start])[hd - low :].rstrip(b"\0")


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


# The command.


def test_the_command_prints_each_scenario_and_finds_nothing() -> None:
    result = CliRunner().invoke(explore, ["ring"])
    assert result.exit_code == 0, result.output
    for scenario in RINGS.values():
        assert f"{scenario.name}  {scenario.description}" in result.output
    assert result.output.count("; no violation") == len(RINGS)
    assert "VIOLATION" not in result.output


def test_the_command_prints_the_schedule_of_a_violation() -> None:
    result = CliRunner().invoke(explore, ["ring", "--variant", "note", "--scenario", "B"])
    assert result.exit_code == 1
    lines = result.output.splitlines()
    start = lines.index(f"   VIOLATION {TWICE_ACCEPTED}")
    assert lines[start + 1] == "      1  T0 add(5): read LOW"
    assert lines[start + 13].endswith("accepted=[5, 5]]")


def test_the_command_shows_what_the_lock_is_for() -> None:
    result = CliRunner().invoke(explore, ["ring", "--variant", "locked"])
    assert result.exit_code == 0, result.output
    assert result.output.count("; no violation") == len(RINGS)
    result = CliRunner().invoke(explore, ["ring", "--variant", "unlocked", "--scenario", "B"])
    assert result.exit_code == 1
    assert f"VIOLATION {TWICE_ACCEPTED}" in result.output


def test_the_command_compares_what_can_be_compared() -> None:
    result = CliRunner().invoke(explore, ["ring", "--variant", "naive", "--json"])
    assert result.exit_code == 1
    document = json.loads(result.output)
    assert document["variant"] == "naive"
    assert [row["scenario"] for row in document["scenarios"]] == ["A", "B", "C", "D"]
    assert all(row["complete"] and row["violations"] for row in document["scenarios"])
    assert document["scenarios"][0]["violations"][0]["witness"]


def test_the_command_shows_what_a_second_remover_would_do() -> None:
    result = CliRunner().invoke(explore, ["ring", "--scenario", "E", "--unguarded"])
    assert result.exit_code == 1
    assert TWICE_DELIVERED in result.output
    assert CliRunner().invoke(explore, ["ring", "--scenario", "E"]).exit_code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--scenario", "A", "--unguarded"], "--unguarded is for --scenario E only"),
        (["--variant", "note", "--scenario", "E"], "add --unguarded"),
        (["--variant", "note", "--scenario", "W"], "needs operations the note variant lacks"),
    ],
)
def test_the_command_refuses_what_makes_no_sense(options: list[str], message: str) -> None:
    result = CliRunner().invoke(explore, ["ring", *options])
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize("command", [[], ["ring"]])
def test_help_shows_an_example(command: list[str]) -> None:
    result = CliRunner().invoke(explore, [*command, "--help"])
    assert result.exit_code == 0
    assert "ringcast explore ring" in result.output
