"""The judge of histories: what it accepts, what it refuses, and when it gives up."""

from __future__ import annotations

import pytest

from support import linearizable
from support.linearizable import (
    Call,
    TooLong,
    counter_model,
    dict_model,
    is_linearizable,
    lock_model,
)


def of_dict(*calls: Call) -> bool:
    return is_linearizable(calls, dict_model, ())


def test_calls_at_once_may_have_happened_in_any_order() -> None:
    first, second = Call(("set", "a", 1), 0, 10), Call(("set", "a", 2), 0, 10)
    for value in (1, 2):
        assert of_dict(first, second, Call(("get", "a"), 11, 12, value))
    assert not of_dict(first, second, Call(("get", "a"), 11, 12, None))


def test_what_has_ended_is_seen_by_what_begins_later() -> None:
    assert of_dict(Call(("set", "a", 1), 0, 1), Call(("get", "a"), 0.5, 3, None))
    assert not of_dict(Call(("set", "a", 1), 0, 1), Call(("get", "a"), 2, 3, None))


def test_readers_agree_on_an_order() -> None:
    writes = Call(("set", "a", 1), 0, 20), Call(("set", "a", 2), 0, 20)
    up = Call(("get", "a"), 1, 2, 1), Call(("get", "a"), 3, 4, 2)
    down = Call(("get", "a"), 5, 6, 2), Call(("get", "a"), 7, 8, 1)
    assert of_dict(*writes, *up)
    assert not of_dict(*writes, *up, *down)


def test_what_has_not_returned_may_have_happened_or_not() -> None:
    lost = Call(("set", "a", 1), 0)
    assert of_dict(lost, Call(("get", "a"), 5, 6, None))
    assert of_dict(lost, Call(("get", "a"), 5, 6, None), Call(("get", "a"), 7, 8, 1))
    assert not of_dict(lost, Call(("get", "a"), 5, 6, 1), Call(("get", "a"), 7, 8, None))


def test_all_that_a_dict_does_is_judged() -> None:
    rows = [
        (("update", (("a", 1), ("b", 2))), 0),
        (("compare_and_set", "a", 1, 5), True),
        (("compare_and_set", "a", 1, 6), False),
        (("delete", "b"), True),
        (("delete", "b"), False),
        (("get", "a"), 5),
    ]
    calls = [Call(what, at, at + 0.5, result) for at, (what, result) in enumerate(rows)]
    assert of_dict(*calls)
    for call in calls:
        right, call.result = call.result, "wrong"
        assert not of_dict(*calls)
        call.result = right


def test_a_counter_that_counts_twice_is_found() -> None:
    calls = [Call(("add", 1), 0, 9, 1), Call(("add", 1), 0, 9, 2), Call(("get",), 10, 11, 2)]
    assert is_linearizable(calls, counter_model, 0)
    calls[2].result = 3
    assert not is_linearizable(calls, counter_model, 0)


def test_two_holders_and_tokens_that_fall_are_found() -> None:
    def held(*holds: tuple[str, int, float, float]) -> bool:
        calls = []
        for who, token, since, until in holds:
            calls.append(Call(("acquire", who, token), since - 0.5, since, True))
            calls.append(Call(("release", who), until, until + 0.5, True))
        return is_linearizable(calls, lock_model, ("", None))

    assert held(("a", 1, 1, 2), ("b", 2, 4, 5))
    assert held(("a", 1, 1, 2), ("b", 2, 2.3, 5))  # granted before the release had returned
    assert not held(("a", 1, 1, 4), ("b", 2, 2, 5))
    assert not held(("a", 2, 1, 2), ("b", 1, 4, 5))


def test_it_gives_up_on_what_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linearizable, "STEPS_MAX", 100)
    calls = [Call(("set", str(number), number), 0) for number in range(20)]
    with pytest.raises(TooLong, match="21 calls"):
        of_dict(*calls, Call(("get", "x"), 1, 2, "wrong"))
