"""Open, closing, gone: every step that exists, and that no other does."""

from __future__ import annotations

from itertools import product

import pytest

from ringcast.protocols.connection import TRANSITIONS, Input, State


def test_the_steps_are_these() -> None:
    """S5."""
    steps = {
        f"{state.name} {input.name}": after.name for (state, input), after in TRANSITIONS.items()
    }
    assert steps == {
        "OPEN USED": "OPEN",
        "OPEN ENDED": "CLOSING",
        "OPEN GONE": "CLOSED",
        "CLOSING USED": "OPEN",
        "CLOSING ENDED": "CLOSING",
        "CLOSING LINGERED": "CLOSED",
        "CLOSING GONE": "CLOSED",
    }


@pytest.mark.parametrize("input", Input)
def test_nothing_leads_out_of_closed(input: Input) -> None:
    assert (State.CLOSED, input) not in TRANSITIONS


def test_every_state_can_be_left_for_closed() -> None:
    reached = {State.OPEN}
    for _ in State:
        reached |= {TRANSITIONS[pair] for pair in product(reached, Input) if pair in TRANSITIONS}
    assert reached == set(State)
