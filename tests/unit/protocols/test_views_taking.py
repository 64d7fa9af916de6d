"""Taking: one state comes in chunks; what is late, lost or of somebody else does not count."""

from __future__ import annotations

import pytest

from ringcast.core.effects import Effects
from ringcast.core.shared import Deadlines
from ringcast.events import StateBegun, StateChunk, StateLost, StateReceived
from ringcast.model import Address, Digest, Member
from ringcast.protocols.views.providing import WINDOW
from ringcast.protocols.views.taking import PATIENCE_NS, Outcome, Taking
from ringcast.wire.frames import StateAck, StateBegin, StateCancel, StateData, StateEnd

A, B = (Member(Address("h", n), 1, name) for n, name in enumerate("AB"))
CUT = Digest({})
BEGIN = StateBegin(7, 3, CUT)


class Side:
    """Who takes it; A is to give it, as it is at view 3."""

    def __init__(self) -> None:
        self.taking = Taking()
        self.taking.attach(Deadlines().owner("state"))
        self.taking.expect(A, 3, 0)
        self.out = Effects()

    def hear(self, message: StateBegin | StateData | StateEnd, source: Member = A) -> Outcome:
        outcome = self.taking.receive(source, message, 0, self.out)
        self.taking.check_invariants()
        return outcome

    def begin(self, *chunks: bytes) -> None:
        assert self.hear(BEGIN) is Outcome.GOES_ON
        for index, chunk in enumerate(chunks):
            assert self.hear(StateData(7, index, chunk)) is Outcome.GOES_ON


def test_a_state_comes_in_chunks_and_its_provider_hears_of_the_last() -> None:
    side = Side()
    side.begin(b"one", b"two")
    assert side.hear(StateEnd(7, 2)) is Outcome.COMPLETE
    begun, one, two = StateBegun(A, CUT), StateChunk(b"one"), StateChunk(b"two")
    assert side.taking.take(1, side.out) == [begun, one]
    assert side.taking.take(0, side.out) == []
    assert side.taking.take(9, side.out) == [two, StateReceived(A, 2, 6)]
    side.taking.finish(side.out)
    ((dest, ack),) = side.out.messages
    assert dest == A
    assert isinstance(ack, StateAck)
    side.taking.finish(side.out)
    assert len(side.out.messages) == 1


@pytest.mark.parametrize(
    ("begin", "source"), [(BEGIN, B), (StateBegin(7, 2, CUT), A)], ids=["other", "earlier"]
)
def test_a_state_that_is_not_awaited_is_cancelled(begin: StateBegin, source: Member) -> None:
    side = Side()
    assert side.hear(begin, source) is Outcome.IGNORED
    assert side.out.messages == [(source, StateCancel(begin.attempt))]


def test_chunks_of_another_transfer_do_not_count() -> None:
    side = Side()
    assert side.hear(StateData(7, 0, b"early")) is Outcome.IGNORED
    side.begin(b"one")
    assert side.hear(StateData(8, 1, b"two")) is Outcome.IGNORED
    assert side.hear(StateData(7, 1, b"two"), B) is Outcome.IGNORED
    assert side.hear(StateEnd(8, 1)) is Outcome.IGNORED


def test_a_chunk_that_is_lost_fails_it() -> None:
    side = Side()
    side.begin(b"one")
    assert side.hear(StateData(7, 2, b"three")) is Outcome.FAILED
    assert side.hear(StateEnd(7, 2)) is Outcome.FAILED


def test_more_than_a_window_that_was_not_taken_fails_it() -> None:
    side = Side()
    side.begin(bytes(WINDOW))
    assert side.hear(StateData(7, 1, b"more")) is Outcome.FAILED


def test_what_was_taken_is_acknowledged_by_quarters_of_a_window() -> None:
    side = Side()
    side.begin(bytes(WINDOW // 4), b"more")
    side.taking.take(1, side.out)
    assert len(side.out.messages) == 1
    side.taking.take(1, side.out)
    assert len(side.out.messages) == 1


def test_a_provider_that_is_silent_is_given_up_but_not_for_a_slow_reader() -> None:
    side = Side()
    assert not side.taking.is_given_up(PATIENCE_NS - 1)
    assert side.taking.is_given_up(PATIENCE_NS)
    side.taking.expect(A, 3, 0)
    side.begin(b"one")
    late = 3 * PATIENCE_NS
    assert not side.taking.is_given_up(late)
    side.taking.take(9, side.out)
    assert side.taking.is_given_up(late + 3 * PATIENCE_NS)


def test_a_state_that_is_here_is_not_begun_again() -> None:
    side = Side()
    side.begin()
    assert side.hear(StateEnd(7, 0)) is Outcome.COMPLETE
    assert side.hear(BEGIN) is Outcome.IGNORED


def test_that_there_is_none_is_told() -> None:
    side = Side()
    side.taking.lose(StateLost("nobody has the state"))
    assert side.taking.take(0, side.out) == [StateLost("nobody has the state")]
