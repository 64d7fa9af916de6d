"""A receiver that lost its window and a sender that did not: how they find together again.

The SYNC note's asymmetric split stands here with its numbers. Most tests try one disturbance at
every single step of the same short conversation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ringcast.errors import UsageError
from ringcast.events import GapSkipped
from ringcast.protocols.connection import State
from ringcast.protocols.unicast_receiving import LOOPBACK_EPOCH
from ringcast.protocols.unicast_sender import SYNC_TICKS_MAX
from ringcast.wire.frames import (
    Sync,
    SyncAck,
    SyncOk,
    UnicastAck,
    UnicastData,
    UnicastNack,
)
from support.pair import TAU, Pair, conn, expected, losing, losing_first, numbered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringcast.wire.frames import Frame
    from support.cluster import Packet


def drop(c: Pair, name: str = "B", peer: str = "A") -> None:
    c.nodes[name].drop_from(c.nodes[peer].me, c.now)


def gaps(c: Pair, name: str) -> list[tuple[int, int, int]]:
    """(stream, first, last) of what was reported as lost."""
    return [
        (e.epoch - LOOPBACK_EPOCH, e.first, e.last)
        for e in c.events[name]
        if isinstance(e, GapSkipped)
    ]


def dropped(sent: int = 3, **config: Any) -> Pair:
    """B has taken so many messages of A, A knows, and B has lost its window."""
    c = Pair(**config)
    c.send("A", "B", numbered(sent))
    c.run(TAU)
    drop(c)
    c.sent.clear()
    return c


def agree(c: Pair, name: str = "A", peer: str = "B") -> bool:
    """Y2: on one connection, and the sender has kept what the receiver waits for."""
    sender, receiver = c.sender(name, peer), c.receiver(peer, name)
    return sender.conn == receiver.conn and sender.window.low <= receiver.window.delivered


def small_steps(c: Pair, wire: list[Packet]) -> Iterator[None]:
    """One thing at a time: a packet is handed over, or the next deadline comes, until only
    expiry is left."""
    while True:
        for name in c.nodes:
            c.take(name)
        wire += c.collect()
        if wire:
            c.hand_over([wire.pop(0)])
        else:
            at = c.next_timeout()
            if at is None or at > c.now + 10e9:
                return
            c.now = max(c.now, at)
            for node in c.nodes.values():
                node.handle_timeout(c.now)
        for node in c.nodes.values():
            node.check_invariants()
        yield


def finish(steps: Iterator[None]) -> int:
    """Take all remaining steps; how many there were."""
    count = sum(1 for _ in steps)
    assert count < 500
    return count


def conversation() -> tuple[Pair, Iterator[None]]:
    """A sends four messages, each in a packet of its own, and the second is lost."""
    c = Pair()
    first, _, third, fourth = c.post("A", "B", numbered(4))
    return c, small_steps(c, [first, third, fourth])


# The note's story


def test_the_asymmetric_split() -> None:
    """B removes A from its view, but not vice versa: A is at 498, B has taken 499."""
    c = Pair(capacity=1024, expiry_s=100.0, close_s=2.0)
    c.send("A", "B", numbered(498))
    c.run(TAU)
    assert c.sender("A", "B").window.low == 498
    c.send("A", "B", [b"499"])
    c.exchange()
    c.nodes["B"].install_view(c.next_view("B"), c.now)
    assert c.receiver("B", "A").state is State.CLOSING
    c.run(0.1, losing(UnicastAck))
    c.send("A", "B", [b"500"])
    c.run(4, drop=lambda *_: True)
    assert not c.has_receiver("B", "A")
    assert c.sender("A", "B").state is State.OPEN  # A has noticed nothing
    assert c.sender("A", "B").window.low == 498
    c.sent.clear()

    c.install("AB")  # healed
    c.send("A", "B", [b"501"])
    c.run(4 * TAU)
    assert c.frames(Sync) == [Sync(conn(1), 1)]
    assert c.frames(SyncOk) == [SyncOk(conn(2), 1, low=498, high=501, is_middle=False)]
    assert c.frames(SyncAck) == [SyncAck(conn(2), 1)]
    assert c.acks("B")[0] == 499  # at once: A need not send it again
    assert c.delivered("B", "A") == expected(501)  # 499 once
    assert agree(c)
    assert c.is_acked("A", "B")
    assert c.is_quiet()


def test_a_window_is_asked_for_once_and_data_flows_again() -> None:
    """Y-L1: within three ticks."""
    c = dropped()
    c.send("A", "B", numbered(2, first=4))
    c.run(3 * TAU)
    assert c.delivered("B", "A") == expected(5)
    assert len(c.frames(Sync)) == len(c.frames(SyncOk)) == len(c.frames(SyncAck)) == 1
    assert agree(c)
    assert c.is_acked("A", "B")
    assert c.is_quiet()


def test_nothing_is_asked_while_nothing_is_sent() -> None:
    c = dropped()
    assert c.is_quiet()
    assert c.sent == []


# A window drop at every step


STEPS = finish(conversation()[1])


@pytest.mark.parametrize("at", range(STEPS + 1))
def test_a_drop_at_every_step(at: int) -> None:
    """Y3, Y4: nothing is lost, nothing comes twice, and one drop costs one connection."""
    c, steps = conversation()
    for _ in range(at):
        next(steps)
    drop(c)
    finish(steps)
    assert [payload for _, payload in c.delivered("B", "A")] == numbered(4)
    assert gaps(c, "B") == []
    assert c.sender("A", "B").conn <= conn(2)
    assert c.is_acked("A", "B")
    assert c.is_quiet()


@pytest.mark.parametrize("first", range(STEPS + 1))
def test_a_second_drop_at_every_step_after_the_first(first: int) -> None:
    """Also in the midst of the sync that the first one made necessary."""
    second = 0
    while True:
        c, steps = conversation()
        for _ in range(first):
            next(steps)
        drop(c)
        taken = sum(1 for _, _ in zip(range(second), steps, strict=False))
        drop(c)
        finish(steps)
        assert [payload for _, payload in c.delivered("B", "A")] == numbered(4), second
        assert gaps(c, "B") == []
        assert c.sender("A", "B").conn <= conn(3)
        assert c.is_acked("A", "B")
        if taken < second:
            break
        second += 1
    assert second > 0


@pytest.mark.parametrize("at", range(1, STEPS + 1))
def test_an_operators_sync_at_every_step(at: int) -> None:
    """It changes the connection and nothing else."""
    c, steps = conversation()
    for _ in range(at):
        next(steps)
    c.nodes["B"].sync(c.nodes["A"].me, c.now)
    finish(steps)
    assert [payload for _, payload in c.delivered("B", "A")] == numbered(4)
    assert gaps(c, "B") == []
    assert c.sender("A", "B").conn == conn(2)
    assert agree(c)
    assert c.is_acked("A", "B")
    assert c.is_quiet()


# Each of the three messages lost, duplicated, delayed


@pytest.mark.parametrize("kind", [Sync, SyncOk, SyncAck])
@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_lost_sync_message_is_repeated(kind: type[Frame], lost: int) -> None:
    c = dropped()
    c.send("A", "B", [b"4"])
    c.run((lost + 4) * TAU, losing_first(lost, kind))
    assert c.delivered("B", "A") == expected(4)
    assert c.sender("A", "B").conn == conn(2)  # Y4: however often
    assert agree(c)
    assert c.is_acked("A", "B")
    assert c.is_quiet()


def relay(c: Pair, seconds: float, carry: Callable[[Packet], None]) -> None:
    """Let so much time pass; whatever is sent in it is given to `carry`."""
    stop = c.now + round(seconds * 1e9)
    while True:
        for name in c.nodes:
            c.take(name)
        packets = c.collect()
        for packet in packets:
            carry(packet)
        if packets:
            continue
        at = c.next_timeout()
        if at is None or at > stop:
            c.now = stop
            return
        c.now = max(c.now, at)
        for node in c.nodes.values():
            node.handle_timeout(c.now)


def hold_back(c: Pair, kind: type[Frame], seconds: float) -> list[Packet]:
    """Let time pass; frames of this kind do not arrive. They are given back as packets."""
    received: list[Packet] = []

    def carry(packet: Packet) -> None:
        late = [frame for frame in packet.frames if isinstance(frame, kind)]
        soon = [frame for frame in packet.frames if not isinstance(frame, kind)]
        if late:
            received.append(packet._replace(frames=late))
        if soon:
            c.hand_over([packet._replace(frames=soon)])

    relay(c, seconds, carry)
    return received


@pytest.mark.parametrize("kind", [Sync, SyncOk, SyncAck])
def test_a_duplicated_sync_message_changes_nothing(kind: type[Frame]) -> None:
    """Twice at once, and again when all is done."""
    c = dropped()
    c.send("A", "B", [b"4"])
    again: list[Packet] = []

    def carry(packet: Packet) -> None:
        c.hand_over([packet])
        frames = [frame for frame in packet.frames if isinstance(frame, kind)]
        if frames:
            again.append(packet._replace(frames=frames))
            c.hand_over(again[-1:])

    relay(c, 4 * TAU, carry)
    assert again
    assert c.delivered("B", "A") == expected(4)
    c.send("A", "B", [b"5"])
    c.run(TAU)
    c.hand_over(again)
    c.run(4 * TAU)
    assert c.delivered("B", "A") == expected(5)
    assert c.sender("A", "B").conn == conn(2)
    assert agree(c)
    assert c.is_acked("A", "B")
    assert c.is_quiet()


@pytest.mark.parametrize("kind", [Sync, SyncOk, SyncAck])
def test_a_sync_message_comes_after_the_next_sync(kind: type[Frame]) -> None:
    """What belongs to the first sync arrives when the second one is over, and is too late."""
    c = dropped()
    c.send("A", "B", [b"4"])
    late = hold_back(c, kind, 2.5 * TAU)
    assert late
    drop(c)
    c.send("A", "B", [b"5"])
    c.run(5 * TAU)
    assert c.delivered("B", "A") == expected(5)
    after = c.sender("A", "B").conn
    assert after in (conn(2), conn(3))
    low = c.sender("A", "B").window.low
    c.hand_over(late)
    c.send("A", "B", [b"6"])
    c.run(5 * TAU)
    assert c.sender("A", "B").conn == after
    assert c.sender("A", "B").window.low >= low
    assert c.delivered("B", "A") == expected(6)
    assert agree(c)
    assert c.is_quiet()


def test_a_late_sync_ok_does_not_rewind_a_running_window() -> None:
    """Believed, B would deliver 4 and 5 again, and then ack what it has not got."""
    c = dropped()
    c.send("A", "B", numbered(2, first=4))
    late = hold_back(c, SyncOk, 1.5 * TAU)
    c.run(3 * TAU)
    c.send("A", "B", numbered(3, first=6))
    c.run(TAU)
    c.hand_over(late)
    c.take("B")
    assert c.receiver("B", "A").window.delivered == 8
    assert c.delivered("B", "A") == expected(8)


def test_the_first_message_opens_nothing_on_a_later_connection() -> None:
    """S6: A sends it again and again, but B has taken it before."""
    c = Pair()
    c.send("A", "B", [b"1"])
    c.run(0.1, losing(UnicastAck))
    drop(c)
    c.run(6 * TAU, losing(SyncOk))
    assert any(data.conn == conn(2) for data in c.frames(UnicastData, "A"))
    assert not c.has_receiver("B", "A")
    c.run(4 * TAU)
    assert c.delivered("B", "A") == expected(1)
    assert c.is_acked("A", "B")
    assert c.is_quiet()


def test_the_second_question_has_another_nonce() -> None:
    c = dropped()
    for n, nonce in ((4, 1), (5, 2), (6, 3)):
        c.sent.clear()
        c.send("A", "B", [b"%d" % n])
        c.run(3 * TAU)
        assert c.frames(Sync) == [Sync(conn(nonce), nonce)]
        drop(c)
    assert c.delivered("B", "A") == expected(6)


def test_an_old_nonce_is_ignored() -> None:
    c = dropped()
    c.send("A", "B", [b"4"])
    c.run(3 * TAU)
    drop(c)
    c.send("A", "B", [b"5"])
    c.run(3 * TAU)
    assert c.sender("A", "B").nonce == 2
    c.sent.clear()
    c.receives("A", "B", Sync(conn(1), 1))
    c.run(2 * TAU)
    assert c.sent == []
    assert c.sender("A", "B").conn == conn(3)


def test_a_question_about_another_stream_is_ignored() -> None:
    c = dropped()
    for other in (conn(1, stream=7), conn(1, stream=2)):
        c.receives("A", "B", Sync(other, 9))
    c.run(2 * TAU)
    assert c.sent == []
    assert c.sender("A", "B").conn == conn(1)


# A delayed ack of the old connection


@pytest.mark.parametrize("later", range(12))
def test_an_ack_of_the_old_connection_purges_nothing(later: int) -> None:
    """Y1: from the new connection on it does not count, at whichever step it comes."""
    c = Pair()
    c.send("A", "B", numbered(3))
    c.exchange()
    late = hold_back(c, UnicastAck, 0.1)
    assert late
    assert set(c.acks("B")) == {3}
    drop(c)
    c.send("A", "B", [b"4"])
    steps = small_steps(c, [])
    for _ in range(later):
        next(steps, None)
    entry = c.sender("A", "B")
    before = entry.window.low
    c.hand_over(late)
    is_old = entry.conn > conn(1)
    assert entry.window.low == (before if is_old else 3)
    finish(steps)
    assert c.delivered("B", "A") == expected(4)
    assert c.is_acked("A", "B")
    assert c.is_quiet()


def test_an_ack_of_a_later_connection_purges_nothing() -> None:
    c = Pair()
    c.send("A", "B", numbered(3))
    c.collect()
    for other in (conn(2), conn(1, stream=2)):
        c.receives("A", "B", UnicastAck(other, 3, 1 << 20))
        assert c.sender("A", "B").window.low == 0


# Both directions


@pytest.mark.parametrize("both_send", [False, True])
def test_a_sync_in_one_direction_leaves_the_other_alone(both_send: bool) -> None:
    """Y5."""
    c = Pair()
    for name, peer in ("AB", "BA"):
        c.send(name, peer, numbered(3))
    c.run(TAU)
    drop(c)
    c.send("A", "B", [b"4"])
    if both_send:
        c.send("B", "A", [b"4"])
    c.run(3 * TAU)
    assert c.sender("A", "B").conn == conn(2)
    assert c.sender("B", "A").conn == c.receiver("A", "B").conn == conn(1)
    assert c.delivered("B", "A") == expected(4)
    assert c.delivered("A", "B") == expected(4 if both_send else 3)


def test_both_directions_at_once() -> None:
    c = Pair()
    for name, peer in ("AB", "BA"):
        c.send(name, peer, numbered(3))
    c.run(TAU)
    for name, peer in ("AB", "BA"):
        drop(c, name, peer)
        c.send(name, peer, [b"4"])
    c.run(4 * TAU)
    for name, peer in ("AB", "BA"):
        assert c.delivered(name, peer) == expected(4)
        assert agree(c, name, peer)
        assert c.sender(name, peer).conn == conn(2)
    assert c.is_quiet()


# The operator's sync, and what only it can heal


def test_there_must_be_something_to_sync() -> None:
    c = Pair()
    with pytest.raises(UsageError, match="nothing has come from A yet"):
        c.nodes["B"].sync(c.nodes["A"].me, c.now)


def test_an_operators_sync_changes_the_connection_alone() -> None:
    c = Pair()
    c.send("A", "B", numbered(3))
    c.run(TAU)
    c.sent.clear()
    c.nodes["B"].sync(c.nodes["A"].me, c.now)
    assert c.collect() == []  # at the next tick
    c.run(2 * TAU)
    assert c.frames(Sync) == [Sync(conn(1), 1)]
    assert c.frames(SyncOk) == [SyncOk(conn(2), 1, low=3, high=3, is_middle=False)]
    assert c.sender("A", "B").conn == c.receiver("B", "A").conn == conn(2)
    c.send("A", "B", [b"4"])
    c.run(TAU)
    assert c.delivered("B", "A") == expected(4)
    assert c.is_quiet()


def test_purged_messages_are_reported_and_not_waited_for() -> None:
    """A believed a wrong ack and has purged 2 and 3; B waits for them, and has 4."""
    c = Pair()
    packets = c.post("A", "B", numbered(4))
    c.receives("A", "B", UnicastAck(conn(1), 3, 1 << 20))
    assert c.sender("A", "B").window.low == 3
    c.hand_over([packets[0], packets[3]])
    c.run(4 * TAU)
    assert c.delivered("B", "A") == expected(1)
    assert c.frames(UnicastNack)  # B asks and asks
    c.nodes["B"].sync(c.nodes["A"].me, c.now)
    c.run(2 * TAU)
    assert gaps(c, "B") == [(1, 2, 3)]
    assert c.delivered("B", "A") == [(1, b"1"), (4, b"4")]  # kept, not sent again
    assert c.seqnos("A").count(4) <= 1 + 8 + c.sender("A", "B").tail_retransmitted
    assert c.is_acked("A", "B")
    assert c.is_quiet()


def test_purged_messages_after_a_dropped_window_are_reported() -> None:
    c = dropped()
    c.send("A", "B", numbered(3, first=4))
    c.collect()  # lost
    c.receives("A", "B", UnicastAck(conn(1), 5, 1 << 20))
    c.run(4 * TAU)
    assert gaps(c, "B") == [(1, 4, 5)]
    assert c.delivered("B", "A") == [*expected(3), (6, b"6")]
    assert c.is_acked("A", "B")
    assert c.is_quiet()


def test_without_memory_of_a_stream_the_sender_is_believed() -> None:
    """B may have taken what A has purged, long ago: it goes on, and reports nothing."""
    c = Pair()
    c.send("A", "B", numbered(3))
    c.collect()  # lost
    c.receives("A", "B", UnicastAck(conn(1), 3, 1 << 20))
    c.send("A", "B", [b"4"])
    c.run(4 * TAU)
    assert c.delivered("B", "A") == [(4, b"4")]
    assert gaps(c, "B") == []
    assert c.is_acked("A", "B")
    assert c.is_quiet()


def test_what_is_buffered_is_kept() -> None:
    """Y6: A sends only 2 again, though the connection is another."""
    c = Pair()
    packets = c.post("A", "B", numbered(5))
    c.hand_over([packets[0], *packets[2:]])
    c.take("B")
    c.nodes["B"].sync(c.nodes["A"].me, c.now)
    c.run(TAU, losing(UnicastNack))
    assert c.receiver("B", "A").conn == conn(2)
    assert c.delivered("B", "A") == expected(1)
    c.run(4 * TAU)
    assert c.delivered("B", "A") == expected(5)
    assert [seqno for seqno in c.seqnos("A")[5:] if seqno != 5] == [2]


# Limits


def test_sync_traffic_is_limited() -> None:
    """Y-L2: whatever comes, one sync request per tick and one answer per tick."""
    c = dropped()
    for n in range(200):
        c.send("A", "B", [b"%d" % n])
        c.run(TAU / 20, losing(SyncOk))
    ticks = 200 // 20
    assert ticks - 1 <= len(c.frames(Sync)) <= ticks + 1
    assert ticks - 1 <= len(c.frames(SyncOk)) <= ticks + 1
    assert c.sender("A", "B").conn == conn(2)


def test_a_storm_of_questions_makes_one_answer_per_tick() -> None:
    """Whoever can speak as B cannot make A amplify."""
    c = dropped()
    for nonce in range(1, 101):
        c.receives("A", "B", Sync(conn(1), nonce))
        c.run(TAU / 10)
    assert 9 <= len(c.frames(SyncOk)) <= 12


def test_a_question_is_given_up_and_asked_anew() -> None:
    """Y-L3: nobody answers; the next data starts over with another nonce."""
    c = dropped()
    packets = c.post("A", "B", [b"4"])
    c.hand_over(packets)
    peer = c.nodes["A"].me
    c.run((SYNC_TICKS_MAX + 2) * TAU, losing(Sync, UnicastData))
    assert c.nodes["B"].unicast.sync_requests == {}
    assert {sync.nonce for sync in c.frames(Sync)} == {1}
    assert len(c.frames(Sync)) == SYNC_TICKS_MAX
    c.sent.clear()
    c.hand_over(packets)
    assert c.nodes["B"].unicast.sync_requests[peer].nonce == 2
    c.run(4 * TAU)
    assert c.frames(Sync)[0].nonce == 2
    assert c.delivered("B", "A") == expected(4)
    assert c.is_quiet()


def test_an_answer_is_not_repeated_for_ever() -> None:
    """B is gone after its sync request: A stops telling it after a while, and counts acks as
    ever."""
    c = dropped(max_retransmit_s=1000.0)
    c.receives("A", "B", Sync(conn(1), 1))
    c.run(3 * SYNC_TICKS_MAX * TAU, drop=lambda *_: True)
    assert 1 <= len(c.frames(SyncOk)) <= SYNC_TICKS_MAX + 1
    c.send("A", "B", [b"4"])
    c.collect()
    c.receives("A", "B", UnicastAck(conn(2), 4, 1 << 20))
    assert c.is_acked("A", "B")


def test_a_lost_sync_ack_does_not_make_a_deaf() -> None:
    """Y4: whatever comes on the new connection says the same."""
    c = dropped()
    c.send("A", "B", [b"4"])
    c.run(4 * TAU, losing(SyncAck))
    assert c.is_acked("A", "B")
    assert c.sender("A", "B").conn == conn(2)
    assert len(c.frames(SyncOk)) == 1
    assert c.is_quiet()


def test_a_clock_that_leaps_ahead_makes_nobody_forget() -> None:
    """B's window is gone and its clock leaps by an hour; A's ack is lost: 2 came before, once."""
    c = Pair(expiry_s=0, max_retransmit_s=7200)
    c.send("A", "B", numbered(2))
    c.hand_over(c.collect())
    c.take("B")
    drop(c, "B", "A")
    c.collect()  # whatever was under way is lost
    c.now += 3_600_000_000_000
    c.nodes["B"].handle_timeout(c.now)
    c.send("A", "B", numbered(1, first=3))
    c.run(6 * TAU)
    assert c.delivered("B", "A") == expected(3)
