"""The ends of a stream: what the tail timer repairs, what it costs, and what waits for the first
message. In virtual time, on a network where each datagram takes a millisecond."""

from __future__ import annotations

from itertools import combinations

import pytest

from ringcast.protocols.unicast_sender import UnicastSender
from ringcast.wire.frames import Sync, UnicastAck, UnicastData, UnicastNack
from support.pair import (
    TAU,
    Pair,
    WithoutTail,
    expected,
    losing,
    losing_first,
    losing_seqnos,
    numbered,
)

SOON_S = 0.05

ENDS = {"a lone message": (1, 1), "the first of five": (5, 1), "the last of five": (5, 5)}


def post(c: Pair, count: int, first: int = 1, *, late_s: float = 0.0) -> None:
    """Each message in a datagram of its own; the first one takes so much longer."""
    for payload in numbered(count, first):
        c.send("A", "B", [payload])
        c.travel(0, late_s=late_s)
        late_s = 0.0


def sent_again(c: Pair) -> list[int]:
    """Seqnos that have left A before, each time that they did."""
    seqnos = c.seqnos("A")
    return [seqno for at, seqno in enumerate(seqnos) if seqno in seqnos[:at]]


# What is lost


@pytest.mark.parametrize(("count", "lost"), ENDS.values(), ids=ENDS)
def test_a_lost_end_is_repaired_soon(count: int, lost: int) -> None:
    c = Pair()
    post(c, count)
    c.travel(SOON_S, losing_seqnos(lost))
    assert c.delivered("B", "A") == expected(count)
    assert c.is_acked("A", "B")
    assert c.frames(Sync) == []
    assert c.is_quiet()


@pytest.mark.parametrize(("count", "lost"), ENDS.values(), ids=ENDS)
def test_without_the_tail_timer_a_lost_end_waits_for_the_tick(count: int, lost: int) -> None:
    c = Pair(machine=WithoutTail, checked=True)
    post(c, count)
    c.travel(TAU - 0.01, losing_seqnos(lost))
    assert c.delivered("B", "A") == expected(lost - 1)
    c.travel(TAU + 0.02)
    assert c.delivered("B", "A") == expected(count)


@pytest.mark.parametrize("delay_s", [0.0001, 0.001])
@pytest.mark.parametrize(
    "lost", [seqnos for count in range(1, 6) for seqnos in combinations(range(1, 6), count)]
)
def test_whatever_is_lost_of_five_is_repaired_soon(lost: tuple[int, ...], delay_s: float) -> None:
    """At first, and when the round trip is known."""
    c = Pair()
    for first in (1, 6):
        post(c, 5, first)
        c.travel(SOON_S, losing_seqnos(*(first - 1 + n for n in lost)), delay_s=delay_s)
        assert c.delivered("B", "A") == expected(first + 4)
    assert c.frames(Sync) == []


def test_the_tail_timer_repairs_a_lost_repair_too() -> None:
    c = Pair()
    post(c, 1)
    c.travel(SOON_S, losing_first(2, UnicastData))
    assert c.delivered("B", "A") == expected(1)


def test_a_lost_ack_is_made_good_soon() -> None:
    c = Pair()
    post(c, 3)
    c.travel(SOON_S, losing_first(1, UnicastAck))
    assert c.is_acked("A", "B")
    assert c.is_quiet()


class HighestAlone(UnicastSender):
    """The tail timer resends HS alone, whether or not the peer was ever heard."""

    def _on_tail(self, now: int, out: object) -> None:
        self._is_heard = True
        super()._on_tail(now, out)  # type: ignore[arg-type]


def test_the_first_message_is_resent_until_the_peer_is_heard() -> None:
    """Alone, the highest would find no window."""

    def is_repaired(sender: type[UnicastSender]) -> bool:
        c = Pair(machine=type("Different", (WithoutTail,), {"sender": sender}), checked=True)
        post(c, 5)
        c.travel(SOON_S, losing_seqnos(1))
        return c.delivered("B", "A") == expected(5)

    assert is_repaired(UnicastSender)
    assert not is_repaired(HighestAlone)


def test_what_an_outage_takes_is_repaired_by_the_tick() -> None:
    """The tail timer gives way to it, and is there again for the next message."""
    c = Pair()
    post(c, 5)
    c.travel(3.0, losing(UnicastData, UnicastAck))
    c.travel(2 * TAU)
    assert c.delivered("B", "A") == expected(5)
    post(c, 1, first=6)
    c.travel(SOON_S, losing_seqnos(6))
    assert c.delivered("B", "A") == expected(6)


# What is overtaken


@pytest.mark.parametrize("count", [2, 5, 100])
def test_a_stream_whose_first_datagram_is_overtaken_does_not_wait(count: int) -> None:
    c = Pair()
    post(c, count, late_s=0.004)
    c.travel(0.004999)
    assert c.delivered("B", "A") == []
    c.travel(0.000001)
    assert c.delivered("B", "A") == expected(count)
    c.travel(4 * TAU)
    assert c.frames(Sync) == []
    assert c.frames(UnicastNack) == []
    assert sent_again(c) == []


# What it costs


@pytest.mark.parametrize("delay_s", [0.0, 0.0001, 0.001, 0.003])
@pytest.mark.parametrize("ack_interval_s", [0.0, 0.002, 0.02, 0.25])
def test_nothing_is_resent_where_nothing_is_lost(delay_s: float, ack_interval_s: float) -> None:
    c = Pair(ack_interval_s=ack_interval_s)
    sent = 0
    for count, pause_s in [(1, 0.5), (3, 0.5), (20, 0.0), (20, 0.003), (1, 0.011), (5, 0.5)] * 3:
        post(c, count, first=sent + 1)
        sent += count
        c.travel(pause_s, delay_s=delay_s)
    assert c.delivered("B", "A") == expected(sent)
    assert sent_again(c) == []
    assert c.is_quiet()


def test_a_long_way_is_learnt() -> None:
    """10 ms are too short at first. Nothing that was retransmitted is measured, but the pause grows
    until a message is acknowledged that was sent once."""
    c = Pair()
    for n in range(1, 5):
        post(c, 1, first=n)
        c.travel(1.0, delay_s=0.03)
    assert sent_again(c)
    c.sent.clear()
    for n in range(5, 25):
        post(c, 1, first=n)
        c.travel(1.0, delay_s=0.03)
    assert sent_again(c) == []
    # The way has become shorter: the first ack tells.
    post(c, 1, first=25)
    c.travel(1.0)
    post(c, 1, first=26)
    c.travel(SOON_S, losing_seqnos(26))
    assert c.delivered("B", "A") == expected(26)


def test_an_application_that_does_not_take_costs_a_handful_of_resends() -> None:
    c = Pair()
    post(c, 3)
    c.stopped.add("B")
    c.travel(10.0)
    entry = c.sender("A", "B")
    assert entry.tail_retransmitted <= 8
    ticks = round(10.0 / TAU)
    assert (
        entry.stream.retransmitted - entry.tail_retransmitted == ticks - 1
    )  # S3: all but the first
    c.stopped.clear()
    c.travel(TAU)
    assert c.is_acked("A", "B")
    assert c.is_quiet()


def test_the_pause_doubles_up_to_the_tick() -> None:
    c = Pair()
    post(c, 1)
    c.travel(1.5, losing(UnicastData))
    start = c.sent[0].at
    tails_ms = [10, 30, 70, 150, 310, 630]
    assert [(sent.at - start) / 1e6 for sent in c.sent] == [0, *tails_ms, 1000, 1500]
