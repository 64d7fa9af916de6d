"""Deadlines by owner and key."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringcast.core.shared import Deadlines
from ringcast.explore.abstraction import canonical, clone

if TYPE_CHECKING:
    from ringcast.core.shared import Timers


def test_the_earliest_is_next() -> None:
    deadlines = Deadlines()
    timers: Timers[str] = deadlines.owner("x")
    assert deadlines.next() is None
    timers.arm("late", 20)
    timers.arm("soon", 10)
    assert deadlines.next() == 10
    timers.disarm("soon")
    assert deadlines.next() == 20
    timers.disarm("soon")  # harmless
    assert timers.is_armed("late")
    assert not timers.is_armed("soon")


def test_arming_replaces_and_arming_if_idle_does_not() -> None:
    deadlines = Deadlines()
    timers: Timers[str] = deadlines.owner("x")
    timers.arm_if_idle("x", 10)
    timers.arm_if_idle("x", 5)
    timers.arm_if_idle("x", 50)
    assert deadlines.next() == 10
    timers.arm("x", 30)
    assert deadlines.next() == 30


def test_due_keys_come_earliest_first_and_once() -> None:
    deadlines = Deadlines()
    timers: Timers[str] = deadlines.owner("x")
    for key, deadline in (("c", 30), ("a", 10), ("b", 20), ("d", 31)):
        timers.arm(key, deadline)
    assert list(timers.take_due(9)) == []
    assert list(timers.take_due(30)) == ["a", "b", "c"]  # a deadline has come at its very instant
    assert list(timers.take_due(30)) == []
    assert deadlines.next() == 31


def test_one_key_is_taken_when_it_is_due() -> None:
    deadlines = Deadlines()
    timers: Timers[str] = deadlines.owner("x")
    timers.arm("x", 10)
    assert not timers.take("x", 9)
    assert timers.is_armed("x")
    assert timers.take("x", 10)
    assert not timers.take("x", 10)


def test_how_late_a_key_is() -> None:
    deadlines = Deadlines()
    timers: Timers[str] = deadlines.owner("x")
    timers.arm("x", 10)
    assert [timers.lateness("x", now) for now in (9, 10, 13)] == [0, 0, 3]
    assert timers.lateness("y", 13) == 0


@pytest.mark.parametrize("order", list(permutations("abc")))
def test_what_serving_one_disarms_or_puts_off_is_not_served(order: tuple[str, str, str]) -> None:
    first, second, third = order
    deadlines = Deadlines()
    timers: Timers[str] = deadlines.owner("x")
    for deadline, key in enumerate(order, 10):
        timers.arm(key, deadline)
    served = []
    for key in timers.take_due(100):
        served.append(key)
        timers.disarm(second)
        timers.arm(third, 101)
    assert served == [first]
    assert set(timers.by_key) == {third}


def test_none_is_served_twice_in_one_call() -> None:
    deadlines = Deadlines()
    timers: Timers[str] = deadlines.owner("x")
    timers.arm("x", 10)
    timers.arm("y", 20)
    served = []
    for key in timers.take_due(100):
        served.append(key)
        timers.arm("x", 50)  # due again, and at once: the next call sees to it
    assert served == ["x", "y"]
    assert deadlines.next() == 50


def test_what_is_due_stays_armed_if_its_owner_stops() -> None:
    deadlines = Deadlines()
    timers: Timers[str] = deadlines.owner("x")
    timers.arm("x", 10)
    timers.arm("y", 20)
    assert next(timers.take_due(100)) == "x"
    assert set(timers.by_key) == {"y"}
    timers.disarm_all()
    assert deadlines.next() is None


def test_a_key_may_be_armed_again_when_it_was_due() -> None:
    deadlines = Deadlines()
    timers: Timers[str] = deadlines.owner("x")
    timers.arm("x", 10)
    assert list(timers.take_due(10)) == ["x"]
    timers.arm_if_idle("x", 12)
    assert deadlines.next() == 12


def test_what_is_armed_matters_and_when_does_not() -> None:
    deadlines = Deadlines()
    timers: Timers[str] = deadlines.owner("x")
    timers.arm("x", 10)
    other = clone(timers)
    other.arm("x", 99)
    assert deadlines.next() == 10
    assert canonical(timers) == canonical(other)
    other.arm("y", 5)
    assert canonical(timers) != canonical(other)


def test_the_first_of_all_owners_is_next() -> None:
    deadlines = Deadlines()
    a: Timers[str] = deadlines.owner("a")
    b: Timers[str] = deadlines.owner("b")
    a.arm("x", 10)
    b.arm("y", 10)
    assert deadlines.armed() == [("a", "x"), ("b", "y")]
    a.arm("x", 30)
    assert deadlines.next() == 10
    b.arm_if_idle("z", 5)
    assert deadlines.next() == 5
    assert b.take("z", 5)
    b.disarm_all()
    assert deadlines.next() == 30
    assert deadlines.armed() == [("a", "x")]


def test_the_timers_of_an_owner_that_is_gone_are_not_due() -> None:
    deadlines = Deadlines()
    deadlines.owner("a").arm("x", 10)
    gone: Timers[str] = deadlines.owner("b")
    gone.arm("y", 5)
    gone.release()
    assert deadlines.next() == 10
    deadlines.owner("b")  # somebody else may have its name


def test_one_timer_is_made_due_and_no_other() -> None:
    deadlines = Deadlines()
    a: Timers[str] = deadlines.owner("a")
    b: Timers[str] = deadlines.owner("b")
    a.arm("x", 10)
    b.arm("x", 20)
    b.arm("y", 15)
    assert deadlines.make_due(("b", "x"), deadlines.armed(), 3) == 20
    assert list(a.take_due(20)) == []
    assert list(b.take_due(20)) == ["x"]
    assert deadlines.next() == 21


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["arm", "arm_if_idle", "disarm", "take", "disarm_all", "next"]),
            st.integers(0, 2),
            st.sampled_from("xy"),
            st.integers(0, 20),
        )
    )
)
def test_next_is_the_least_deadline_whatever_was_armed(
    steps: list[tuple[str, int, str, int]],
) -> None:
    deadlines = Deadlines()
    owners: list[Timers[str]] = [deadlines.owner(number) for number in range(3)]
    naive: dict[tuple[int, str], int] = {}
    for what, owner, key, at in steps:
        timers, place = owners[owner], (owner, key)
        match what:
            case "arm":
                timers.arm(key, at)
                naive[place] = at
            case "arm_if_idle":
                timers.arm_if_idle(key, at)
                naive.setdefault(place, at)
            case "disarm":
                timers.disarm(key)
                naive.pop(place, None)
            case "take":
                assert timers.take(key, at) == (naive.get(place, at + 1) <= at)
                if naive.get(place, at + 1) <= at:
                    del naive[place]
            case "disarm_all":
                timers.disarm_all()
                naive = {other: when for other, when in naive.items() if other[0] != owner}
            case "next":
                assert deadlines.next() == min(naive.values(), default=None)
        deadlines.check_invariants()
    assert deadlines.next() == min(naive.values(), default=None)
