"""How long the tail timer waits: measured, doubled, and never by what was retransmitted."""

from __future__ import annotations

import pytest

from ringcast.protocols.connection import PAUSE_MIN_NS, START_NS, Tail

MS = 1_000_000
TAU, ACK = 500 * MS, 2 * MS


def exchanged(tail: Tail, *samples: int) -> Tail:
    """So many messages, each acknowledged after so long."""
    for seqno, sample in enumerate(samples, 1):
        tail.first_sent(seqno, 0)
        tail.acked(seqno, sample, is_all=True)
    tail.start_over()
    return tail


def test_before_it_is_measured() -> None:
    assert Tail(TAU, ACK).pause == START_NS == 10 * MS
    assert Tail(TAU, 20 * MS).pause == 40 * MS  # an ack may take that long
    assert not Tail(TAU, 250 * MS).is_due  # the tick is as fast


@pytest.mark.parametrize(
    ("sample", "pause"),
    [(4 * MS, 8 * MS), (ACK, 2 * ACK), (ACK // 2, ACK + ACK // 2), (100 * MS, 200 * MS)],
)
def test_twice_the_round_trip_or_one_and_the_ack_interval(sample: int, pause: int) -> None:
    assert exchanged(Tail(TAU, ACK), sample).pause == pause


def test_a_shorter_round_trip_counts_at_once_and_a_longer_one_by_half() -> None:
    assert exchanged(Tail(TAU, ACK), 40 * MS, 4 * MS).pause == 8 * MS
    assert exchanged(Tail(TAU, ACK), 4 * MS, 40 * MS).pause == 44 * MS


def test_the_pause_has_bounds() -> None:
    assert exchanged(Tail(TAU, 0), 0).pause == PAUSE_MIN_NS
    tail = exchanged(Tail(TAU, ACK), 10 * TAU)
    assert tail.pause == TAU
    assert not tail.is_due


def test_it_doubles_until_the_tick_takes_over() -> None:
    tail = Tail(TAU, ACK)
    pauses = []
    while tail.is_due:
        pauses.append(tail.pause // MS)
        tail.double()
    assert pauses == [10, 20, 40, 80, 160, 320]
    tail.start_over()
    assert tail.pause == 10 * MS


def test_what_was_resent_measures_nothing() -> None:
    """Karn's rule; but the next pause is twice as long, once for all that was retransmitted."""
    tail = exchanged(Tail(TAU, ACK), 4 * MS)
    tail.first_sent(2, 0)
    tail.retransmitted()
    tail.retransmitted()
    tail.acked(2, 300 * MS, is_all=False)
    tail.acked(3, 400 * MS, is_all=True)
    tail.start_over()
    assert tail.pause == 16 * MS
    exchanged(tail, 4 * MS)
    assert tail.pause == 8 * MS


def test_an_ack_for_something_before_measures_nothing() -> None:
    tail = Tail(TAU, ACK)
    tail.first_sent(5, 0)
    tail.acked(4, 1 * MS, is_all=False)
    tail.acked(5, 4 * MS, is_all=True)
    tail.start_over()
    assert tail.pause == 8 * MS
