"""Deadlines by key."""

from __future__ import annotations

from itertools import permutations

import pytest

from ringcast.core.state import canonical, clone
from ringcast.core.timers import Timers


def test_the_earliest_is_next() -> None:
    timers: Timers[str] = Timers()
    assert timers.next_timeout() is None
    timers.arm("late", 20)
    timers.arm("soon", 10)
    assert timers.next_timeout() == 10
    timers.disarm("soon")
    assert timers.next_timeout() == 20
    timers.disarm("soon")  # harmless
    assert timers.is_armed("late")
    assert not timers.is_armed("soon")


def test_arming_replaces_and_arming_if_idle_does_not() -> None:
    timers: Timers[str] = Timers()
    timers.arm_if_idle("x", 10)
    timers.arm_if_idle("x", 5)
    timers.arm_if_idle("x", 50)
    assert timers.next_timeout() == 10
    timers.arm("x", 30)
    assert timers.next_timeout() == 30


def test_due_keys_come_earliest_first_and_once() -> None:
    timers: Timers[str] = Timers()
    for key, deadline in (("c", 30), ("a", 10), ("b", 20), ("d", 31)):
        timers.arm(key, deadline)
    assert list(timers.take_due(9)) == []
    assert list(timers.take_due(30)) == ["a", "b", "c"]  # a deadline has come at its very instant
    assert list(timers.take_due(30)) == []
    assert timers.next_timeout() == 31


def test_one_key_is_taken_when_it_is_due() -> None:
    timers: Timers[str] = Timers()
    timers.arm("x", 10)
    assert not timers.take("x", 9)
    assert timers.is_armed("x")
    assert timers.take("x", 10)
    assert not timers.take("x", 10)


def test_how_late_a_key_is() -> None:
    timers: Timers[str] = Timers()
    timers.arm("x", 10)
    assert [timers.lateness("x", now) for now in (9, 10, 13)] == [0, 0, 3]
    assert timers.lateness("y", 13) == 0


@pytest.mark.parametrize("order", list(permutations("abc")))
def test_what_serving_one_disarms_or_puts_off_is_not_served(order: tuple[str, str, str]) -> None:
    first, second, third = order
    timers: Timers[str] = Timers()
    for deadline, key in enumerate(order, 10):
        timers.arm(key, deadline)
    served = []
    for key in timers.take_due(100):
        served.append(key)
        timers.disarm(second)
        timers.arm(third, 101)
    assert served == [first]
    assert timers.canonical() == {third}


def test_none_is_served_twice_in_one_call() -> None:
    timers: Timers[str] = Timers()
    timers.arm("x", 10)
    timers.arm("y", 20)
    served = []
    for key in timers.take_due(100):
        served.append(key)
        timers.arm("x", 50)  # due again, and at once: the next call sees to it
    assert served == ["x", "y"]
    assert timers.next_timeout() == 50


def test_what_is_due_stays_armed_if_its_owner_stops() -> None:
    timers: Timers[str] = Timers()
    timers.arm("x", 10)
    timers.arm("y", 20)
    assert next(timers.take_due(100)) == "x"
    assert timers.canonical() == {"y"}
    timers.disarm_all()
    assert timers.next_timeout() is None


def test_a_key_may_be_armed_again_when_it_was_due() -> None:
    timers: Timers[str] = Timers()
    timers.arm("x", 10)
    assert list(timers.take_due(10)) == ["x"]
    timers.arm_if_idle("x", 12)
    assert timers.next_timeout() == 12


def test_what_is_armed_matters_and_when_does_not() -> None:
    timers: Timers[str] = Timers()
    timers.arm("x", 10)
    other = clone(timers)
    other.arm("x", 99)
    assert timers.next_timeout() == 10
    assert canonical(timers) == canonical(other)
    other.arm("y", 5)
    assert canonical(timers) != canonical(other)
