"""Every single frame of a change: its proposer dies before or after it; it is lost, is doubled, or
comes late, after the next change. And a link that comes and goes for minutes.

Virtual synchrony holds; nobody is frozen for longer than VL3 allows; all that live come to be in
one view, and what they send then reaches everybody.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

import pytest

from ringcast.model import Stream
from ringcast.wire import changes as wire
from support.view_group import ViewGroup, address_of, name_of

if TYPE_CHECKING:
    from random import Random

    from ringcast.node import Node
    from ringcast.sim.world import Flight

STEPS = (
    *(wire.Propose, wire.State, wire.Cut, wire.Want, wire.Forwarded),
    *(wire.Flushed, wire.Install, wire.Installed),
)
FROZEN_MS_MAX = 1014
QUIET_MS = 20_000
LATE_NS = 3_000_000_000


class Fault(Enum):
    KILL_BEFORE = "proposer killed before"
    KILL_AFTER = "proposer killed after"
    LOSE = "lost"
    DOUBLE = "doubled"
    DELAY = "comes after the next change"


class OneFrame:
    """Does this to the datagram with the so-manieth frame of a change; counts them in any case."""

    def __init__(self, group: ViewGroup, fault: Fault | None = None, which: int = -1) -> None:
        self.count = 0
        self.is_on = False
        self._group = group
        self._fault = fault
        self._which = which

    def __call__(self, flight: Flight, dice: Random) -> list[Flight]:
        process = self._group.world.processes[flight.link.source]
        if not process.is_alive:
            return []  # it died in the middle of sending
        _, frames = process.node.codec.unpack(flight.datagram, overhear=True)
        is_step = self.is_on and any(isinstance(frame, STEPS) for frame in frames)
        self.count += is_step
        if not is_step or self.count - 1 != self._which:
            return [flight]
        match self._fault:
            case Fault.KILL_BEFORE:
                self._group.crash("A")
                return [] if flight.link.source == address_of("A") else [flight]
            case Fault.KILL_AFTER:
                self._group.crash("A")
                return [flight]
            case Fault.LOSE:
                return []
            case Fault.DOUBLE:
                return [flight, replace(flight, is_copy=True)]
            case Fault.DELAY:
                flight.due += LATE_NS
                flight.keeps_order = False
        return [flight]


class Story:
    """A group of so many; one joins or leaves while messages are under way and one of them is lost;
    then another joins."""

    def __init__(self, kind: str, size: int, fault: Fault | None = None, which: int = -1) -> None:
        self._kind = kind
        members = "ABCD"[:size]
        self.group = ViewGroup(members + "EF", hint_ms=None)
        self.frame = OneFrame(self.group, fault, which)
        self.group.world.network.faults = [self.group.weather, self.frame]
        self.group.before_sending = self._look
        self.frozen_ms = 0
        self._since: dict[str, int] = {}
        self.group.form(members)

    def _look(self, node: Node) -> None:
        now, name = self.group.world.clock.now, node.me.name
        if self.group.layer(name).change.is_frozen:
            node.check_invariants()
            since = self._since.setdefault(name, now)
            self.frozen_ms = max(self.frozen_ms, (now - since) // 1_000_000)
        else:
            self._since.pop(name, None)

    def tell(self) -> None:
        group, last = self.group, self.group.names[-3]
        group.weather.cuts.add((last, "B"))
        group.send(last, 2)
        group.send("B", 2, Stream.UNIFORM)
        group.run(2)
        group.weather.cuts.clear()
        self.frame.is_on = True
        if self._kind == "leave":
            group.leave(last)
        else:
            group.start("E")
        group.run(1000)
        self.frame.is_on = False
        group.send("B", 1)
        group.start("F")
        group.run(4000)

    def check(self) -> None:
        group = self.group
        assert group.run_until(group.is_quiet, QUIET_MS), group.waits()
        for process in group.living():
            for stream in group.streams:
                group.send(name_of(process.address), 1, stream)
        group.run(1000)
        assert group.observed.violations() == []
        assert group.undelivered() == []
        assert self.frozen_ms <= FROZEN_MS_MAX


def frames_of(kind: str, size: int) -> int:
    story = Story(kind, size)
    story.tell()
    story.check()
    return story.frame.count


def try_all(kind: str, size: int, fault: Fault) -> None:
    count = frames_of(kind, size)
    assert count >= 6 * (size - 1)  # each step, to all others (M6)
    for which in range(count):
        story = Story(kind, size, fault, which)
        story.tell()
        try:
            story.check()
        except AssertionError as error:
            raise AssertionError(f"{kind}, {size} members, frame {which}, {fault.value}") from error


@pytest.mark.parametrize("fault", Fault)
def test_every_frame_of_a_change_of_three(fault: Fault) -> None:
    try_all("leave", 3, fault)


@pytest.mark.proof
@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize(("kind", "size"), [("join", 3), ("join", 4), ("leave", 4)])
def test_every_frame_of_other_changes(kind: str, size: int, fault: Fault) -> None:
    try_all(kind, size, fault)


# A link that flaps


def flap(seconds: int) -> None:
    """Every three seconds the link to C is there, or is not."""
    group = ViewGroup("ABC", hint_ms=None).form()
    frozen = dict.fromkeys("ABC", 0)
    step_ms, steps = 10, 0
    for at in range(0, seconds, 3):
        group.weather.cuts.clear()
        if at % 6 == 0:
            group.weather.part("AB", "C")
        for _ in range(3000 // step_ms):
            group.run(step_ms)
            steps += 1
            for name in "ABC":
                frozen[name] += group.layer(name).change.is_frozen
    group.weather.cuts.clear()
    assert max(frozen.values()) <= steps // 10
    # One to part and one to meet, after waits of 1, 2, 4, 8, 16 and 16 s.
    views = len(group.observed.views_of(group.node("A").me))
    assert 4 <= views <= 2 * (5 + seconds // 16)
    assert group.run_until(group.is_quiet, 40_000)
    assert group.observed.violations() == []


def test_a_link_that_flaps_for_a_minute_makes_few_views() -> None:
    flap(60)


@pytest.mark.proof
def test_a_link_that_flaps_for_five_minutes_makes_few_views() -> None:
    flap(300)
