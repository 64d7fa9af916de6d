"""Reliable unicast through the cases that break such protocols, one at a time, by hand.

The UNICAST3 note's own examples stand here with its numbers.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any, TypeVar

import pytest

from ringcast.errors import GroupClosed, Reject
from ringcast.events import Delivered, GapSkipped, Undeliverable, Writable
from ringcast.protocols.connection import State
from ringcast.protocols.unicast_receiving import LOOPBACK_EPOCH
from ringcast.wire.frames import Close, Sync, UnicastAck, UnicastData, UnicastNack
from support.pair import (
    TAU,
    Pair,
    WithoutTail,
    conn,
    expected,
    losing,
    losing_first,
    losing_from,
    losing_seqnos,
    numbered,
)

E = TypeVar("E")


def everything(*_: object) -> bool:
    """A network that loses everything."""
    return True


def events_of(c: Pair, name: str, kind: type[E]) -> list[E]:
    return [event for event in c.events[name] if isinstance(event, kind)]


# Acks


def test_seven_acks_within_a_second_become_two() -> None:
    """The note's 5, 8, 13, 52, 62, 83, 101 with half a second between acks."""
    c = Pair(xmit_interval_s=1.0, ack_interval_s=0.5)
    sent = 0
    start = c.now
    for at, through in [(0, 5), (0.1, 8), (0.2, 13), (0.3, 52), (0.5, 62), (0.7, 83), (0.9, 101)]:
        c.run((start - c.now) / 1e9 + at)
        c.send("A", "B", numbered(through - sent, first=sent + 1))
        c.exchange()
        sent = through
    assert c.acks("B") == [52]
    c.run(0.1)
    assert c.acks("B") == [52, 101]
    assert c.is_acked("A", "B")
    assert c.is_quiet()
    assert c.acks("B") == [52, 101]


def test_a_batch_is_acked_once() -> None:
    c = Pair()
    c.send("A", "B", numbered(19))
    c.run(TAU)
    c.sent.clear()
    c.send("A", "B", numbered(31, first=20))
    c.run(TAU)
    assert c.delivered("B", "A") == expected(50)
    assert c.acks("B") == [50]


def test_what_the_application_has_not_taken_is_not_acked() -> None:
    c = Pair()
    c.send("A", "B", numbered(3))
    c.hand_over(c.collect())
    c.take("B", limit=2)
    c.stopped.add("B")
    c.run(TAU)
    assert set(c.acks("B")) == {2}  # again for each time that 3 came again
    assert c.sender("A", "B").window.low == 2
    c.stopped.clear()
    c.run(TAU)
    assert c.is_acked("A", "B")


def test_an_ack_cannot_lower_what_was_acked() -> None:
    c = Pair()
    c.send("A", "B", numbered(5))
    c.run(TAU)
    c.send("A", "B", numbered(1, first=6))
    c.collect()
    c.receives("A", "B", UnicastAck(conn(1), 3, 1 << 20))
    assert c.sender("A", "B").window.low == 5
    c.receives("A", "B", UnicastAck(conn(1), 6, 1 << 20))
    assert c.sender("A", "B").window.low == 6


def test_an_ack_for_what_was_never_sent_is_refused() -> None:
    c = Pair()
    c.send("A", "B", numbered(2))
    c.collect()
    c.receives("A", "B", UnicastAck(conn(1), 3, 1 << 20))
    assert c.sender("A", "B").window.low == 0
    assert c.nodes["A"].unicast.refused == 1


@pytest.mark.parametrize("lost", [1, 2, 3, 5])
def test_lost_acks_are_made_good(lost: int) -> None:
    """S-L2: within two ticks after the last lost one, and then nothing is sent again."""
    c = Pair()
    c.send("A", "B", numbered(3))
    c.run(2 * TAU * (lost + 1) + 0.1, losing_first(lost, UnicastAck))
    assert c.acks("B") == [3] * (lost + 1)
    assert c.is_acked("A", "B")
    assert c.delivered("B", "A") == expected(3)
    assert c.is_quiet()


def test_every_ack_is_lost_for_ten_seconds() -> None:
    c = Pair(capacity=4)
    assert c.send("A", "B", numbered(6)) == 4
    c.run(10, losing(UnicastAck))
    assert c.delivered("B", "A") == expected(4)
    # The last message again at each tick but the first. Before that by the tail timer, six times
    # until its pause has reached τ: with the first one, because nothing was heard of B.
    assert c.seqnos("A") == [1, 2, 3, 4, *[1, 4] * 6, *[4] * 19]
    assert c.send("A", "B", [b"5"]) == 0
    c.run(2 * TAU + 0.1)
    assert c.is_acked("A", "B")
    assert events_of(c, "A", Writable) == [Writable(to=c.nodes["B"].me)]
    assert c.send("A", "B", numbered(2, first=5)) == 2
    c.run(TAU)
    assert c.delivered("B", "A") == expected(6)
    assert c.is_quiet()


# Resending and repair


def test_the_note_resends_50_when_46_and_48_are_missing() -> None:
    c = Pair(machine=WithoutTail, checked=True)
    c.send("A", "B", numbered(45))
    c.run(TAU + 0.1)
    window = c.sender("A", "B").window
    assert window.low == 45
    c.sent.clear()
    _, m47, _, m49, _ = c.post("A", "B", numbered(5, first=46))
    assert (window.low, window.high) == (45, 50)
    c.run(TAU, everything)
    assert c.seqnos("A") == [46, 47, 48, 49, 50]  # the first tick only looks
    c.hand_over([m47])
    c.hand_over([m49])
    c.sent.clear()
    c.run(TAU, losing(UnicastNack))
    assert c.seqnos("A") == [50]  # the second sends the highest again, and that alone
    asked = [seqnos for nack in c.frames(UnicastNack) for seqnos in nack.missing]
    assert set(asked) == {range(46, 47), range(48, 49)}
    c.run(TAU)
    assert c.seqnos("A") == [50, 46, 48]
    assert c.acks("B")[-1] == 50
    assert window.low == 50
    assert c.delivered("B", "A") == expected(50)
    assert c.is_quiet()


def test_a_tick_resends_only_what_stands_still() -> None:
    """S3: while (HA, HS) moves, new messages are the probe."""
    c = Pair(machine=WithoutTail, checked=True)
    for n in range(1, 5):
        c.send("A", "B", [b"%d" % n])
        c.run(TAU, everything)
    assert c.seqnos("A") == [1, 2, 3, 4]
    c.run(TAU, everything)
    assert c.seqnos("A") == [1, 2, 3, 4, 4]
    c.run(4 * TAU)
    assert c.delivered("B", "A") == expected(4)


@pytest.mark.parametrize(
    "lost", [seqnos for count in range(5) for seqnos in combinations(range(1, 5), count)]
)
def test_whatever_is_lost_arrives(lost: tuple[int, ...]) -> None:
    """S-L1, for every subset of four messages: the first, the last, all of them."""
    c = Pair()
    for n in range(1, 5):
        c.send("A", "B", [b"%d" % n])
        c.exchange(losing_seqnos(*lost) if n in lost else None)
    c.run(4 * TAU)
    assert c.delivered("B", "A") == expected(4)
    assert c.is_acked("A", "B")
    assert c.is_quiet()


def test_only_the_first_message_is_lost_and_nothing_follows() -> None:
    """Sent again it still opens the window: no sync is needed."""
    c = Pair()
    c.send("A", "B", [b"1"])
    c.exchange(everything)
    c.run(2 * TAU + 0.1)
    assert c.delivered("B", "A") == expected(1)
    assert c.seqnos("A") == [1, 1]
    assert c.frames(Sync) == []
    assert c.sender("A", "B").conn == conn(1)


def test_only_the_last_message_is_lost() -> None:
    c = Pair()
    for n in range(1, 4):
        c.send("A", "B", [b"%d" % n])
        c.exchange(losing_seqnos(3))
    c.run(2 * TAU + 0.1)
    assert c.delivered("B", "A") == expected(3)
    assert c.seqnos("A") == [1, 2, 3, 3]
    assert c.is_acked("A", "B")
    assert c.is_quiet()


def test_the_first_message_comes_second() -> None:
    """Plain reordering asks for nothing: no sync, no repair."""
    c = Pair()
    first, second = c.post("A", "B", numbered(2))
    c.hand_over([second])
    c.exchange()
    c.hand_over([first])
    c.run(4 * TAU)
    assert c.delivered("B", "A") == expected(2)
    assert c.frames(Sync) == []
    assert c.is_acked("A", "B")
    assert c.is_quiet()


def test_a_duplicate_is_acked_again_and_delivered_once() -> None:
    c = Pair()
    packets = c.post("A", "B", numbered(2))
    c.hand_over(packets)
    c.run(TAU / 2)
    assert c.acks("B") == [2]
    c.hand_over(packets * 10)
    c.run(TAU / 2)
    assert c.acks("B") == [2, 2]  # one for all of them
    assert c.delivered("B", "A") == expected(2)


def test_a_greedy_request_is_answered_once_per_tick() -> None:
    c = Pair(capacity=8)
    c.send("A", "B", numbered(8))
    c.collect()
    for _ in range(5):
        c.receives("A", "B", UnicastNack(conn(1), [range(1, 1000)]))
    c.collect()
    assert c.seqnos("A") == [*range(1, 9), *range(1, 9)]
    assert c.sender("A", "B").stream.retransmitted == 8


def test_a_request_on_another_connection_is_not_answered() -> None:
    c = Pair()
    c.send("A", "B", numbered(3))
    c.collect()
    for other in (conn(2), conn(1, stream=2)):
        c.receives("A", "B", UnicastNack(other, [range(1, 4)]))
    assert c.collect() == []


# Closing


def expiring(**config: Any) -> Pair:
    return Pair(**({"expiry_s": 5.0, "close_s": 3.0} | config))


def test_an_idle_connection_ends_on_both_sides() -> None:
    """S-L4, and then a send opens another one."""
    c = expiring()
    c.send("A", "B", numbered(2))
    c.run(4.9)
    assert c.sender("A", "B").state is c.receiver("B", "A").state is State.OPEN
    c.run(0.7)
    assert c.sender("A", "B").state is c.receiver("B", "A").state is State.CLOSING
    assert c.frames(Close) == []
    c.run(3)
    assert not c.has_sender("A", "B")
    assert not c.has_receiver("B", "A")
    assert c.frames(Close) == [Close(conn(1))]
    c.send("A", "B", [b"1 of 2"])
    c.run(TAU)
    assert c.delivered("B", "A") == [*expected(2), (1, b"1 of 2")]
    assert c.streams("B", "A") == [1, 1, 2]
    assert c.sender("A", "B").conn == c.receiver("B", "A").conn == conn(1, stream=2)


def test_nothing_expires_when_told_so() -> None:
    c = expiring(expiry_s=0.0)
    c.send("A", "B", numbered(2))
    c.run(1000)
    assert c.sender("A", "B").state is c.receiver("B", "A").state is State.OPEN
    assert c.next_timeout() is None


def test_use_keeps_a_connection() -> None:
    c = expiring()
    for n in range(1, 9):
        c.send("A", "B", [b"%d" % n])
        c.run(2.5)
        assert c.sender("A", "B").state is c.receiver("B", "A").state is State.OPEN
    assert c.delivered("B", "A") == expected(8)


@pytest.mark.parametrize("wait", [0, 0.001, 0.3, 0.6, 4.9, 5.6, 6, 8.4, 9, 20])
def test_send_at_every_step_of_closing(wait: float) -> None:
    """Idle, expired, closing, gone: what is sent arrives, and nothing comes twice."""
    c = expiring()
    c.send("A", "B", [b"1"])
    c.run(wait)
    stream = 1 if c.has_sender("A", "B") else 2
    c.send("A", "B", [b"next"])
    assert c.sender("A", "B").state is State.OPEN
    c.run(TAU)
    assert c.receiver("B", "A").state is State.OPEN
    assert c.delivered("B", "A") == [(1, b"1"), (2 if stream == 1 else 1, b"next")]
    assert c.streams("B", "A") == [1, stream]
    assert c.is_acked("A", "B")


@pytest.mark.parametrize("wait", [0, 0.001, 0.3, 2.9, 3.6, 5, 9])
def test_send_at_every_step_after_close(wait: float) -> None:
    c = expiring()
    c.send("A", "B", [b"1"])
    c.run(0.1)
    c.nodes["A"].close_to(c.nodes["B"].me, c.now)
    assert c.sender("A", "B").state is State.CLOSING
    c.run(wait)
    stream = 1 if c.has_sender("A", "B") else 2
    assert stream == (1 if wait < 3 else 2)
    c.send("A", "B", [b"next"])
    assert c.sender("A", "B").state is State.OPEN
    c.run(TAU)
    assert c.delivered("B", "A") == [(1, b"1"), (2 if stream == 1 else 1, b"next")]
    assert c.is_acked("A", "B")


def test_closing_flushes_first() -> None:
    """A closing sender goes on until everything is acked, and only then says goodbye."""
    c = expiring(close_s=1.0, max_retransmit_s=60.0)
    c.send("A", "B", numbered(3))
    c.nodes["A"].close_to(c.nodes["B"].me, c.now)
    c.run(10, everything)
    assert c.sender("A", "B").state is State.CLOSING
    assert c.frames(Close) == []
    c.run(4 * TAU)
    assert c.delivered("B", "A") == expected(3)
    c.run(3)
    assert c.frames(Close) == [Close(c.frames(UnicastAck)[-1].conn)]
    assert not c.has_sender("A", "B")
    assert not c.has_receiver("B", "A")
    assert events_of(c, "A", Undeliverable) == []


def test_a_lost_close_leaves_an_entry_that_expires() -> None:
    c = expiring(configs={"B": {"expiry_s": 30.0}})
    c.send("A", "B", [b"1"])
    c.run(10, losing(Close))
    assert len(c.frames(Close)) == 1
    assert not c.has_sender("A", "B")
    assert c.receiver("B", "A").state is State.OPEN
    c.run(24)
    assert not c.has_receiver("B", "A")


def test_a_lost_close_does_not_hinder_the_next_connection() -> None:
    c = expiring(configs={"B": {"expiry_s": 300.0}})
    c.send("A", "B", numbered(3))
    c.run(10, losing(Close))
    c.send("A", "B", [b"new"])
    c.run(TAU)
    assert c.delivered("B", "A") == [*expected(3), (1, b"new")]
    assert c.receiver("B", "A").conn == conn(1, stream=2)
    assert c.frames(Sync) == []


def test_a_stale_close_changes_nothing() -> None:
    """One that was late, and one for a connection that is yet to come."""
    c = expiring(configs={"B": {"expiry_s": 300.0}})
    c.send("A", "B", [b"1"])
    c.run(10, losing(Close))
    (late,) = c.frames(Close)
    c.send("A", "B", [b"new"])
    c.run(TAU)
    before = len(c.sent)
    for close in (late, Close(conn(2, stream=2)), Close(conn(1, stream=3))):
        c.receives("B", "A", close)
        assert c.receiver("B", "A").state is State.OPEN
    c.exchange()
    assert len(c.sent) == before  # and is answered by nothing
    c.send("A", "B", [b"more"])
    c.run(TAU)
    assert c.delivered("B", "A") == [(1, b"1"), (1, b"new"), (2, b"more")]


def test_data_after_close_of_its_connection_opens_nothing() -> None:
    """The close overtakes the data: what was acked is known, and is not delivered twice."""
    c = expiring()
    packets = c.post("A", "B", [b"1"])
    c.hand_over(packets)
    c.run(9)
    assert not c.has_receiver("B", "A")
    c.hand_over(packets)  # a late duplicate of the very first message
    c.run(10)
    assert c.delivered("B", "A") == expected(1)
    assert not c.has_receiver("B", "A")
    assert c.is_quiet()


def test_late_data_of_an_old_stream_are_not_the_new_ones() -> None:
    """The seqnos are the same, and the new stream is waiting for just these."""
    c = expiring()
    late = c.post("A", "B", [b"old 1", b"old 2", b"old 3"])
    c.hand_over(late)
    c.run(10)
    assert not c.has_sender("A", "B")
    c.send("A", "B", [b"new 1"])
    c.run(0.1)
    c.hand_over(late)
    c.send("A", "B", [b"new 2", b"new 3"])
    c.run(TAU)
    assert [payload for _, payload in c.delivered("B", "A")][3:] == [b"new 1", b"new 2", b"new 3"]


@pytest.mark.parametrize("early", ["A", "B"])
def test_the_two_sides_expire_at_different_times(early: str) -> None:
    """Whoever is first, what is sent then arrives once and in order."""
    c = expiring(expiry_s=100.0, configs={early: {"expiry_s": 2.0, "close_s": 1.0}})
    c.send("A", "B", numbered(2))
    c.run(4.5)
    assert (c.has_sender("A", "B"), c.has_receiver("B", "A")) == (
        (False, False) if early == "A" else (True, False)
    )
    c.send("A", "B", [b"next"])
    c.run(4 * TAU)
    assert c.delivered("B", "A") == [*expected(2), (1 if early == "A" else 3, b"next")]
    assert c.is_acked("A", "B")
    assert events_of(c, "B", GapSkipped) == []
    assert len(c.frames(Sync)) == (0 if early == "A" else 1)


def test_data_takes_a_closing_receiver_up_again() -> None:
    c = expiring(expiry_s=100.0, configs={"B": {"expiry_s": 2.0}})
    c.send("A", "B", [b"1"])
    c.run(3)
    assert c.receiver("B", "A").state is State.CLOSING
    c.send("A", "B", [b"2"])
    c.exchange()
    assert c.receiver("B", "A").state is State.OPEN
    c.run(1.9)
    assert c.receiver("B", "A").state is State.OPEN
    assert c.delivered("B", "A") == expected(2)


def test_duplicates_and_resends_keep_no_connection_alive() -> None:
    """S9: only what is new counts as use. B's application takes, but its acks do not arrive."""
    c = expiring(max_retransmit_s=100.0)
    c.send("A", "B", [b"1"])
    c.run(5.6, losing(UnicastAck))
    assert len(c.seqnos("A")) > 5
    assert c.receiver("B", "A").state is State.CLOSING
    assert c.sender("A", "B").state is State.CLOSING


def test_both_sides_close_while_both_send() -> None:
    c = expiring()
    for n in range(1, 4):
        for name, peer in ("AB", "BA"):
            c.send(name, peer, [b"%d" % n])
            c.nodes[name].close_to(c.nodes[peer].me, c.now)
        c.run(0.01)
    for name, peer in ("AB", "BA"):
        assert c.delivered(name, peer) == expected(3)
        assert c.sender(name, peer).state is State.CLOSING
    c.run(10)
    for name, peer in ("AB", "BA"):
        assert not c.has_sender(name, peer)
        assert not c.has_receiver(name, peer)
        assert events_of(c, name, Undeliverable) == []


# Restarts


def test_a_receiver_restarts_at_the_same_address() -> None:
    """The old process is gone with what it had not acked; the new one gets what is sent to it."""
    c = Pair()
    old = c.nodes["B"].me
    c.send("A", "B", numbered(3))
    c.run(TAU)
    c.send("A", "B", numbered(2, first=4))
    c.collect()
    c.crash("B")
    c.start("B")
    c.run(2 * TAU)  # what is for the old B reaches the new one, and is not for it
    assert c.nodes["B"].rejected[Reject.ADDRESSEE] >= 1
    c.install("AB")
    c.exchange()
    (lost,) = events_of(c, "A", Undeliverable)
    assert (lost.to, lost.epoch, lost.first, lost.last) == (old, conn(1).epoch, 4, 5)
    assert old not in c.nodes["A"].unicast.senders
    c.send("A", "B", [b"new"])
    c.run(TAU)
    assert c.delivered("B", "A") == [(1, b"new")]
    assert c.streams("B", "A") == [2]
    assert c.is_quiet()


def test_a_sender_restarts_at_the_same_address() -> None:
    """Its epochs and seqnos begin anew, and are not those of the old one."""
    c = Pair()
    old = c.nodes["A"].me
    c.send("A", "B", numbered(57))
    c.run(TAU)
    late = c.post("A", "B", [b"58"])
    c.crash("A")
    c.start("A")
    c.install("AB")
    c.send("A", "B", numbered(2))
    c.exchange()
    c.hand_over(late)
    c.run(4 * TAU)
    new = c.nodes["A"].me
    got = [(e.sender, e.run.first) for e in c.events["B"] if isinstance(e, Delivered)]
    assert got == [(old, 1), (new, 1)]
    assert c.delivered("B", "A") == [*expected(57), *expected(2)]
    assert old not in c.nodes["B"].unicast.receivers
    assert c.is_quiet()


def test_late_data_of_a_replaced_sender_open_nothing() -> None:
    """Its gaps would be asked for until the window expires, and nobody is there to answer."""
    c = Pair()
    late = [packet for n in (1, 2, 3) for packet in c.post("A", "B", [b"%d" % n])]
    c.crash("A")
    c.start("A")
    c.install("AB")
    c.hand_over([late[0], late[2]])
    c.run(4 * TAU)
    assert c.delivered("B", "A") == []
    assert c.nodes["B"].unicast.receivers == {}
    assert c.is_quiet()


def test_an_ack_for_the_old_process_purges_nothing_of_the_new() -> None:
    c = Pair()
    c.send("A", "B", numbered(5))
    c.hand_over(c.collect())
    c.take("B")
    c.now += 1_000_000_000
    c.nodes["B"].handle_timeout(c.now)
    late = c.collect()
    assert c.acks("B") == [5]
    c.crash("A")
    c.start("A")
    c.install("AB")
    c.send("A", "B", numbered(5))
    c.collect()
    c.hand_over(late)
    assert c.nodes["A"].rejected == {Reject.ADDRESSEE: 1}
    assert c.sender("A", "B").window.low == 0


# Batches


def test_the_first_message_need_not_stand_first_in_a_batch() -> None:
    c = Pair()
    first, second, third = (packet.frames[0] for packet in c.post("A", "B", numbered(3)))
    c.receives("B", "A", third, second, first)
    c.run(TAU)
    assert c.delivered("B", "A") == expected(3)
    assert c.frames(Sync) == []
    assert c.frames(UnicastNack) == []
    assert c.acks("B") == [3]


def test_of_several_connections_in_a_batch_the_newest_counts() -> None:
    c = Pair()
    old = [UnicastData(conn(1), 1, [b"old 1"]), UnicastData(conn(1), 2, [b"old 2"])]
    new = [
        UnicastData(conn(1, stream=2), 1, [b"new 1"]),
        UnicastData(conn(1, stream=2), 2, [b"new 2"]),
    ]
    c.receives("B", "A", old[0], new[1], old[1], new[0])
    c.take("B")
    assert c.delivered("B", "A") == [(1, b"new 1"), (2, b"new 2")]
    assert c.receiver("B", "A").conn == conn(1, stream=2)


def test_what_is_older_in_a_batch_opens_nothing() -> None:
    c = Pair()
    c.receives(
        "B",
        "A",
        UnicastData(conn(1), 1, [b"old"]),
        UnicastData(conn(1, stream=2), 2, [b"new 2"]),
    )
    c.take("B")
    assert c.delivered("B", "A") == []
    assert not c.has_receiver("B", "A")
    assert c.nodes["B"].unicast.sync_requests[c.nodes["A"].me].conn == conn(1, stream=2)


# Oneself, others, and who is not in the view


def test_messages_to_oneself() -> None:
    c = Pair(capacity=4)
    me = c.nodes["A"].me
    assert c.send("A", "A", numbered(6)) == 4
    c.take("A")
    assert c.delivered("A", "A") == expected(4)
    assert {event.epoch for event in events_of(c, "A", Delivered)} == {LOOPBACK_EPOCH}
    assert events_of(c, "A", Writable) == [Writable(to=me)]
    assert c.send("A", "A", numbered(2, first=5)) == 2
    c.run(TAU)
    assert c.delivered("A", "A") == expected(6)
    assert c.sent == []


def test_one_full_peer_does_not_hold_up_another() -> None:
    c = Pair("ABC", capacity=2)
    c.stopped.add("B")
    assert c.send("A", "B", numbered(3)) == 2
    assert c.sender("A", "B").stream.is_blocked
    for first in (1, 3, 5):
        assert c.send("A", "C", numbered(2, first)) == 2
        c.run(0.01)
    assert c.delivered("C", "A") == expected(6)
    assert not c.sender("A", "C").stream.is_blocked
    c.run(5)
    assert events_of(c, "A", Writable) == []
    assert c.send("A", "B", [b"3"]) == 0
    c.stopped.clear()
    c.run(0.01)
    assert events_of(c, "A", Writable) == [Writable(to=c.nodes["B"].me)]
    assert c.send("A", "B", [b"3"]) == 1
    c.run(TAU)
    assert c.delivered("B", "A") == expected(3)


def test_a_slow_application_holds_its_sender_back() -> None:
    c = Pair(capacity=4)
    c.stopped.add("B")
    left = c.post("A", "B", numbered(4))
    c.hand_over(left)
    for taken in range(1, 4):
        assert c.send("A", "B", [b"%d" % (taken + 4)]) == 0
        c.take("B", limit=1)
        c.run(0.01)
        assert c.send("A", "B", [b"%d" % (taken + 4)]) == 1
        c.exchange()
        window = c.receiver("B", "A").window
        assert window.high - window.low <= 4
    c.stopped.clear()
    c.run(TAU)
    assert c.delivered("B", "A") == expected(7)


def test_a_message_larger_than_the_window() -> None:
    c = Pair(capacity=4)
    large = bytes(range(256)) * 40
    assert c.send("A", "B", [b"before", large, b"after"]) == 2
    assert c.send("A", "B", [b"after"]) == 0
    c.run(TAU, losing_seqnos(3, 7))
    assert c.send("A", "B", [b"after"]) == 1
    c.run(TAU)
    assert [payload for _, payload in c.delivered("B", "A")] == [b"before", large, b"after"]
    assert c.is_acked("A", "B")


def test_a_large_message_to_oneself() -> None:
    c = Pair(capacity=2)
    large = bytes(range(256)) * 20
    assert c.send("A", "A", [large]) == 1
    c.run(0.1)
    assert [payload for _, payload in c.delivered("A", "A")] == [large]


@pytest.mark.parametrize("taken", range(13))
def test_a_large_message_whose_window_is_dropped_in_the_middle(taken: int) -> None:
    """It arrives whole or is told of, never in part."""
    c = Pair(capacity=4)
    large = bytes(range(256)) * 40
    c.send("A", "B", [large])
    for _ in range(taken):
        c.hand_over(c.collect())
        c.take("B", limit=1)
        c.run(0.003)
    c.nodes["B"].drop_from(c.nodes["A"].me, c.now)
    c.run(6 * TAU)
    while c.send("A", "B", [b"after"]) == 0:
        c.run(TAU)
    c.run(4 * TAU)
    got = [payload for _, payload in c.delivered("B", "A")]
    assert got in ([large, b"after"], [b"after"])
    assert len(got) == 2 or events_of(c, "B", GapSkipped)
    assert c.is_acked("A", "B")
    assert c.is_quiet()


def test_a_peer_outside_the_view() -> None:
    """What it writes to us waits until it is in our view; we begin no stream to it before."""
    c = Pair("ABC")
    c.start("D")
    stranger, view = c.nodes["D"], c.next_view("DA")
    stranger.install_view(view, c.now)
    c.send("D", "A", numbered(3))
    c.run(TAU)
    assert c.delivered("A", "D") == []
    with pytest.raises(Undeliverable, match="D is not in the view"):
        c.send("A", "D", numbered(2))
    c.nodes["A"].install_view(view, c.now)
    c.run(TAU)
    assert c.delivered("A", "D") == expected(3)
    assert c.is_acked("D", "A")


def test_members_whose_views_are_disjoint_go_on_with_what_they_had_begun() -> None:
    c = Pair()
    c.send("A", "B", [b"1"])
    c.send("B", "A", [b"1"])
    c.run(TAU)
    for name in "AB":
        c.nodes[name].install_view(c.next_view(name), c.now)
    c.send("A", "B", numbered(2, first=2))
    c.send("B", "A", numbered(2, first=2))
    c.run(TAU)
    assert c.delivered("B", "A") == c.delivered("A", "B") == expected(3)


@pytest.mark.parametrize("forgets", [False, True])
def test_a_view_releases_a_blocked_sender_and_what_was_sent_goes_on(forgets: bool) -> None:
    """B is left out by mistake. Nobody waits for it; but it is still there, and gets what was
    accepted, under a sync if it has forgotten the stream meanwhile (Y8)."""
    c = Pair(capacity=4, max_retransmit_s=60.0)
    c.stopped.add("B")
    assert c.send("A", "B", numbered(5)) == 4
    c.run(1.0, losing(UnicastData, UnicastAck))
    assert events_of(c, "A", Writable) == []
    c.nodes["A"].install_view(c.next_view("A"), c.now)
    c.take("A")
    assert events_of(c, "A", Writable) == [Writable(to=c.nodes["B"].me)]
    with pytest.raises(Undeliverable):
        c.send("A", "B", [b"5"])
    assert events_of(c, "A", Undeliverable) == []  # nothing is given up
    c.run(30.0, losing(UnicastData, UnicastAck))
    if forgets:
        c.nodes["B"].drop_from(c.nodes["A"].me, c.now)
    c.stopped.clear()
    c.run(4 * TAU)
    assert c.delivered("B", "A") == expected(4)
    assert c.send("A", "B", [b"5"]) == 1
    c.run(4 * TAU)
    assert c.delivered("B", "A") == expected(5)


def test_what_was_sent_to_who_left_the_view_is_given_up_in_the_end() -> None:
    c = Pair(capacity=4, max_retransmit_s=5.0)
    assert c.send("A", "B", numbered(5)) == 4
    c.nodes["A"].install_view(c.next_view("A"), c.now)
    c.run(4.9, everything)
    assert events_of(c, "A", Undeliverable) == []
    c.run(0.2, everything)
    (lost,) = events_of(c, "A", Undeliverable)
    assert (lost.to, lost.first, lost.last) == (c.nodes["B"].me, 1, 4)
    with pytest.raises(Undeliverable):
        c.send("A", "B", [b"5"])


def test_who_leaves_the_view_is_closed_but_flushed() -> None:
    c = Pair("ABC", close_s=3.0)
    c.send("A", "C", numbered(2))
    c.collect()  # lost
    c.send("C", "A", [b"1"])
    c.exchange()
    c.install("AB")
    assert c.sender("A", "C").state is c.receiver("A", "C").state is State.CLOSING
    c.run(4 * TAU)
    assert c.delivered("C", "A") == expected(2)  # it lives on, outside
    assert c.is_acked("A", "C")
    c.run(4)
    assert not c.has_sender("A", "C")
    assert not c.has_receiver("A", "C")
    assert events_of(c, "A", Undeliverable) == []


# Giving up


def test_who_never_answers_is_given_up() -> None:
    """S-L5, S8: the application is told what was not delivered, and the next send starts anew."""
    c = Pair(max_retransmit_s=5.0)
    gone = c.nodes["B"].me
    c.send("A", "B", numbered(3))
    c.run(4.9, everything)
    assert c.has_sender("A", "B")
    c.run(0.7, everything)
    assert not c.has_sender("A", "B")
    (lost,) = events_of(c, "A", Undeliverable)
    assert (lost.to, lost.epoch, lost.first, lost.last) == (gone, conn(1).epoch, 1, 3)
    assert lost.unsent_bytes == 0
    assert len(c.frames(Close)) == 1
    c.send("A", "B", [b"new"])
    c.run(TAU)
    assert c.delivered("B", "A") == [(1, b"new")]
    assert c.streams("B", "A") == [2]


def test_who_answers_without_taking_is_not_given_up() -> None:
    """Its application is slow, its node is there: it acks every repeat of the last message."""
    c = Pair(max_retransmit_s=5.0)
    c.stopped.add("B")
    c.send("A", "B", numbered(3))
    c.run(60)
    assert events_of(c, "A", Undeliverable) == []
    c.stopped.clear()
    c.run(2 * TAU)
    assert c.delivered("B", "A") == expected(3)
    assert c.is_acked("A", "B")


def test_the_rest_of_a_large_message_is_told_of_too() -> None:
    c = Pair(capacity=2, max_retransmit_s=5.0)
    c.send("A", "B", [bytes(5000)])
    c.run(6, everything)
    (lost,) = events_of(c, "A", Undeliverable)
    assert (lost.first, lost.last) == (1, 2)
    assert 2500 < lost.unsent_bytes < 5000


def test_close_reports_what_is_not_acked() -> None:
    c = Pair("ABC")
    c.send("A", "B", numbered(2))
    c.run(TAU)
    c.send("A", "B", numbered(3, first=3))
    c.send("A", "C", [b"1"])
    c.nodes["A"].close(c.now)
    c.take("A")
    lost = [event for event in c.events["A"] if isinstance(event, Undeliverable)]
    assert [(event.to.name, event.first, event.last) for event in lost] == [
        ("B", 3, 5),
        ("C", 1, 1),
    ]
    with pytest.raises(GroupClosed):
        c.send("A", "B", [b"6"])
    assert c.nodes["A"].next_timeout() is None


def test_close_acks_what_was_taken() -> None:
    c = Pair(ack_interval_s=0.2)
    c.send("A", "B", numbered(3))
    c.exchange()
    assert c.acks("B") == []
    c.nodes["B"].close(c.now)
    c.exchange()
    assert c.acks("B") == [3]
    assert c.is_acked("A", "B")


def test_after_the_last_ack_only_expiry_is_waited_for() -> None:
    """G8."""
    c = Pair(expiry_s=100.0)
    for name, peer in ("AB", "BA"):
        c.send(name, peer, numbered(20))
    c.run(1, losing_from("A", UnicastAck))
    c.run(2 * TAU)
    assert c.is_quiet()
    at = c.next_timeout()
    assert at is not None
    assert 80e9 < at - c.now < 100e9


def test_messages_go_both_ways_in_order_and_are_acked() -> None:
    c = Pair()
    assert c.send("A", "B", numbered(3)) == 3
    assert c.send("B", "A", numbered(2)) == 2
    c.run(TAU)
    assert c.delivered("B", "A") == expected(3)
    assert c.delivered("A", "B") == expected(2)
    assert c.streams("B", "A") == [1, 1, 1]
    assert c.is_acked("A", "B")
    assert c.is_acked("B", "A")
    assert c.sender("A", "B").conn == c.receiver("B", "A").conn == conn(1)
    # Nothing was sent twice, and each side was acked once.
    assert (c.seqnos("A"), c.seqnos("B")) == ([1, 2, 3], [1, 2])
    assert (c.acks("A"), c.acks("B")) == ([2], [3])
    assert c.is_quiet()
