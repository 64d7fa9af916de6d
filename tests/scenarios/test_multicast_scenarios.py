"""Reliable multicast through the cases that break such protocols, one at a time, by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ringcast.config import MulticastConfig
from ringcast.core.effects import Effects
from ringcast.core.view_change import Freeze
from ringcast.errors import Reject
from ringcast.events import Closed, Delivered, FragmentsDelivered, ViewInstalled, Writable
from ringcast.model import SEQNO_MAX, Origin, Stream
from ringcast.protocols.views.streams import EARLY_MAX
from ringcast.wire.frames import Ack, Data, Nack, Watermark
from support.cluster import Packet, cluster

if TYPE_CHECKING:
    from ringcast.wire.frames import Frame
    from support.cluster import Cluster


def numbered(count: int, first: int = 1) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


def expected(count: int, first: int = 1) -> list[tuple[int, bytes]]:
    """What delivered() tells when the seqnos are the numbers in the payloads."""
    return list(enumerate(numbered(count, first), first))


def send_all(c: Cluster, name: str, payloads: list[bytes], seconds: float = 60.0) -> None:
    """Send as the window lets us, within so much virtual time."""
    stop = c.now + round(seconds * 1e9)
    while payloads:
        payloads = payloads[c.nodes[name].send(payloads, c.now) :]
        c.exchange()
        if payloads and not c.sending(name).window.room:
            assert c.now < stop, c.nodes[name].explain(c.now)
            c.step()


def payloads_in(packets: list[Packet]) -> list[bytes]:
    frames = [frame for packet in packets for frame in packet.frames]
    return [payload for data in frames if isinstance(data, Data) for payload in data.payloads]


def own(c: Cluster, name: str) -> Origin:
    return Origin(c.nodes[name].me, Stream.FIFO)


def test_capacity_one_still_moves() -> None:
    c = cluster(3, capacity=1)
    a = c.nodes["A"]
    assert a.send(numbered(2), c.now) == 1  # N3: the second got no seqno
    assert a.send([b"2"], c.now) == 0
    c.take("A")
    assert Writable() not in c.events["A"]
    c.exchange()  # one message is the whole window: it is acked at once
    assert c.events["A"].count(Writable()) == 1
    send_all(c, "A", numbered(5, first=2))
    c.run(1)
    for name in "ABC":
        assert c.delivered(name, "A") == expected(6)
    assert c.window_is_drained("A")


def test_only_the_last_message_is_lost() -> None:
    c = cluster(3)
    c.nodes["A"].send(numbered(3), c.now)
    c.exchange()
    c.nodes["A"].send([b"4"], c.now)
    c.exchange(drop=lambda _, dest, frame: dest == "B" and isinstance(frame, Data))
    assert c.delivered("B", "A") == expected(3)
    assert not any(c.nodes["B"].explain(c.now))  # B cannot know
    c.run(0.5)  # N-L1: well within 3τ
    assert c.delivered("B", "A") == expected(4)
    assert c.window_is_drained("A")


def test_only_the_last_ack_is_lost() -> None:
    c = cluster(2)
    acks: list[int] = []

    def first_ack(_source: str, _dest: str, frame: Frame) -> bool:
        if not isinstance(frame, Ack):
            return False
        acks.append(frame.delivered)
        return len(acks) == 1

    c.run(0.1)  # the acks that tell where windows stand
    c.nodes["A"].send(numbered(3), c.now)
    c.run(1, first_ack)
    assert acks == [3, 3]
    assert c.window_is_drained("A")
    assert c.next_timeout() is None  # G8: nobody has anything to do any more


def test_every_ack_is_lost_for_ten_seconds() -> None:
    c = cluster(3, capacity=4)
    highests = 0

    def acks_count_highests(_source: str, dest: str, frame: Frame) -> bool:
        nonlocal highests
        highests += isinstance(frame, Watermark) and dest == "B"
        return isinstance(frame, Ack)

    c.run(0.1)
    assert c.nodes["A"].send(numbered(6), c.now) == 4
    c.run(10, acks_count_highests)
    assert c.delivered("C", "A") == expected(4)
    assert c.nodes["A"].send([b"5"], c.now) == 0
    # The probes double up to τ = 0.5 s: about twenty of them, and not a storm.
    assert 15 <= highests <= 30
    c.run(1)  # N-L2: one probe, one ack
    assert c.window_is_drained("A")
    assert c.nodes["A"].send(numbered(2, first=5), c.now) == 2
    c.run(1)
    assert c.delivered("B", "A") == expected(6)
    assert c.next_timeout() is None


def test_the_slowest_receiver_dies_while_the_sender_is_blocked() -> None:
    c = cluster(3, capacity=4)
    c.stopped.add("C")
    assert c.nodes["A"].send(numbered(6), c.now) == 4
    c.run(2)
    assert c.nodes["A"].send([b"5"], c.now) == 0
    (reason,) = c.nodes["A"].explain(c.now)
    assert "limited by C, which has delivered 0 of 4" in reason
    c.crash("C")
    c.events["A"].clear()
    c.install("AB")
    c.take("A")
    # N-L3, N-L4: the view was not held up by the full window, and it alone makes room.
    assert {type(event) for event in c.events["A"]} == {ViewInstalled, Writable}
    assert c.nodes["A"].explain(c.now) == []
    assert c.nodes["A"].send(numbered(2, first=5), c.now) == 2
    c.run(1)
    assert c.delivered("B", "A") == expected(6)
    assert c.window_is_drained("A")


def test_who_joins_gets_what_is_sent_from_then_on() -> None:
    """Nothing of it is purged without the joiner; what was sent before is no affair of it (N9)."""
    c = cluster(3)
    c.stopped.add("A")
    c.nodes["B"].send(numbered(4), c.now)
    c.run(0.1)
    c.join("D")
    c.nodes["B"].send(numbered(3, first=5), c.now)
    c.run(1, drop=lambda _source, dest, frame: dest == "D" and isinstance(frame, Data))
    c.stopped.clear()
    c.run(1, drop=lambda _source, dest, frame: dest == "D" and isinstance(frame, Data))
    window = c.sending("B").window
    assert (window.low, window.high) == (4, 7)  # kept for D
    c.run(2)
    assert c.delivered("D", "B") == expected(3, first=5)
    assert c.delivered("A", "B") == expected(7)
    assert c.window_is_drained("B")


def test_an_ack_of_a_departed_member_changes_nothing() -> None:
    c = cluster(3, capacity=4)
    c.nodes["A"].send(numbered(2), c.now)
    c.stopped.add("C")
    c.run(0.001)
    c.run(0.1, drop=lambda source, *_: source == "C")
    departed = c.nodes["C"].me
    c.crash("C")
    c.install("AB")
    refused = c.nodes["A"].multicast.refused
    c.hand_over([Packet(departed, "A", [Ack(Stream.FIFO, 1, 0, 0)])])
    assert c.nodes["A"].multicast.refused == refused + 1
    members = [who.name for who, _, _ in c.sending("A").acks.entries()]
    assert members == ["A", "B"]  # N7
    c.nodes["A"].send(numbered(2, first=3), c.now)
    c.run(1)
    assert c.window_is_drained("A")


def test_two_views_in_flight_with_a_full_window() -> None:
    """C and D die one after the other; each view passes the full window of the sender."""
    c = cluster(4, capacity=2)
    c.stopped |= {"C", "D"}
    c.nodes["B"].send(numbered(4), c.now)
    c.run(0.2)
    c.crash("C")
    c.crash("D")
    first = c.next_view("AB")
    # A's second view comes out before B has seen the first one; B sees both, newest first.
    c.view = first
    second = c.next_view("AB")
    for view in (second, first):
        c.nodes["B"].install_view(view, c.now)
    for view in (first, second):
        c.nodes["A"].install_view(view, c.now)
    c.exchange()
    installed = {
        name: [event.view.counter for event in c.events[name] if isinstance(event, ViewInstalled)]
        for name in "AB"
    }
    assert installed == {"A": [1, 2, 3], "B": [1, 3]}  # G4
    assert Writable() in c.events["B"]
    send_all(c, "B", numbered(4, first=3))
    c.run(1)
    assert c.delivered("A", "B") == expected(6)


def test_a_restart_with_the_same_address_is_another_sender() -> None:
    c = cluster(2)
    old = c.nodes["B"].me
    c.nodes["B"].send(numbered(5), c.now)
    c.run(1)
    c.nodes["B"].send([b"6"], c.now)
    late = c.collect()
    c.crash("B")
    c.install("A")
    c.join("B")
    c.hand_over(late)  # 6 of the old B fits neither B's windows
    c.nodes["B"].send([b"new 1", b"new 2"], c.now)
    c.run(2)
    new = c.nodes["B"].me
    senders = [(e.sender, e.run.first) for e in c.events["A"] if isinstance(e, Delivered)]
    assert senders == [(old, 1), (new, 1)]
    assert c.delivered("A", "B") == [*expected(5), (1, b"new 1"), (2, b"new 2")]
    assert c.window_is_drained("B")


def test_a_late_ack_for_the_previous_incarnation_is_not_for_the_next() -> None:
    """Believed, it would purge what nobody has."""
    c = cluster(2, capacity=16)
    c.nodes["B"].send(numbered(5), c.now)
    c.hand_over(c.collect())
    c.take("A")
    (late,) = c.collect()
    (ack,) = late.frames
    assert ack == Ack(Stream.FIFO, 5, 5, 1 << 19)
    c.crash("B")
    c.install("A")
    c.join("B")
    c.nodes["B"].send(numbered(5), c.now)
    c.take("B")
    c.collect()  # lost
    c.hand_over([late])
    assert c.nodes["B"].rejected == {Reject.ADDRESSEE: 1}
    assert c.sending("B").window.low == 0
    c.run(2)
    assert c.delivered("A", "B")[5:] == expected(5)


def test_every_second_datagram_is_lost() -> None:
    c = cluster(3, capacity=16)
    seen = {"B": 0, "C": 1}  # B loses the even ones, C the odd ones

    def every_second(_source: str, dest: str, frame: Frame) -> bool:
        if isinstance(frame, Data):
            seen[dest] += 1
        return isinstance(frame, Data) and seen[dest] % 2 == 0

    c.run(0.1)
    for payload in numbered(100):
        while not c.nodes["A"].send([payload], c.now):
            assert c.now < 60 * 10**9, c.nodes["A"].explain(c.now)
            c.step(every_second)
        c.exchange(every_second)
    c.run(5, every_second)
    for name in "ABC":
        assert c.delivered(name, "A") == expected(100)  # N1, N2
    assert c.window_is_drained("A")
    assert c.receiver("B", "A").window.dropped_high == 0  # N4


def test_every_five_datagrams_come_in_reverse() -> None:
    """Reordering within three datagrams asks for nothing; within five it costs repairs only."""
    c = cluster(2)
    for first in range(1, 101):
        c.nodes["A"].send([b"%d" % first], c.now)
        packets = c.collect()
        if first % 5 == 1:
            batch: list[Packet] = []
        batch += packets
        if first % 5 == 0:
            c.hand_over(reversed(batch))
            c.take("B")
    c.run(2)
    assert c.delivered("B", "A") == expected(100)
    window = c.receiver("B", "A").window
    assert window.dropped_high == window.dropped_low == 0
    assert c.window_is_drained("A")


def test_swapped_neighbours_ask_for_nothing() -> None:
    c = cluster(2)
    for first in range(1, 21, 2):
        c.nodes["A"].send([b"%d" % first], c.now)
        early = c.collect()
        c.nodes["A"].send([b"%d" % (first + 1)], c.now)
        c.hand_over(c.collect() + early)
    c.exchange()
    c.run(2)
    assert c.delivered("B", "A") == expected(20)
    assert c.receiver("B", "A").stream.nack_sent == 0


def test_nobody_asks_a_dead_sender() -> None:
    c = cluster(3)
    lost = 2

    def second(_source: str, dest: str, frame: Frame) -> bool:
        return isinstance(frame, Data) and frame.first == lost and dest == "B"

    for payload in numbered(3):
        c.nodes["A"].send([payload], c.now)
        c.exchange(second)
    assert c.delivered("B", "A") == expected(1)
    asked: list[str] = []

    def count_nacks(source: str, dest: str, frame: Frame) -> bool:
        if isinstance(frame, Nack):
            asked.append(source + dest)
        return False

    c.crash("A")
    c.run(2, count_nacks)
    assert len(asked) >= 3
    assert set(asked) == {"BA"}
    asked.clear()
    c.install("BC")
    c.run(5, count_nacks)
    assert asked == []  # N8
    assert c.delivered("B", "A") == expected(1)  # 3 came after the gap: never
    assert c.delivered("C", "A") == expected(3)  # N11: prefixes may differ in length
    assert c.next_timeout() is None


# Large messages


def large(size: int) -> bytes:
    return bytes(n * 7 % 251 for n in range(size))


def test_a_message_larger_than_the_window_goes_through_it() -> None:
    c = cluster(3, capacity=4, datagram_bytes=512, window_bytes=4096)
    message = large(20_000)
    assert c.nodes["A"].send([b"before", message, b"after"], c.now) == 2
    assert c.nodes["A"].send([b"after"], c.now) == 0
    c.run(5)
    assert Writable() in c.events["A"]
    assert c.nodes["A"].send([b"after"], c.now) == 1
    c.run(1)
    for name in "ABC":
        payloads = [payload for _, payload in c.delivered(name, "A")]
        assert payloads == [b"before", message, b"after"]
    last = c.sending("A").window.high
    assert [seqno for seqno, _ in c.delivered("B", "A")] == [1, last - 1, last]
    # N1: fragments and messages together cover every seqno, in order.
    covered: list[int] = []
    for event in c.events["B"]:
        if isinstance(event, FragmentsDelivered):
            covered += range(event.first, event.last + 1)
        elif isinstance(event, Delivered):
            covered += range(event.run.first, event.run.last + 1)
    assert covered == list(range(1, last + 1))


def test_fragments_are_repaired_like_messages() -> None:
    c = cluster(2, datagram_bytes=512, window_bytes=1 << 16)
    message = large(3000)
    c.nodes["A"].send([b"x", message, b"y"], c.now)
    packets = c.collect()
    c.hand_over(packets[::2])
    c.run(2)
    assert [payload for _, payload in c.delivered("B", "A")] == [b"x", message, b"y"]


def test_a_sender_that_closes_half_way_says_how_much_was_not_sent() -> None:
    c = cluster(2, capacity=4, datagram_bytes=512, window_bytes=4096)
    message = large(10_000)
    assert c.nodes["A"].send([message], c.now) == 1
    sent = sum(map(len, payloads_in(c.collect())))
    assert 0 < sent < 10_000
    c.nodes["A"].close(c.now)
    closed = c.nodes["A"].take_events(10, c.now)[-1]
    assert closed == Closed("closed", 10_000 - sent, ((Stream.FIFO, 1, 2),))


@pytest.mark.parametrize("sender", ["A", "B"])
def test_a_joiner_in_the_middle_of_a_large_message_gets_it_whole(sender: str) -> None:
    """It starts over, and nobody delivers it twice."""
    c = cluster(2, capacity=4, datagram_bytes=512, window_bytes=8192)
    message = large(6000)
    c.nodes[sender].send([message], c.now)
    c.hand_over(c.collect())  # the first fragments; the next wait for their ack
    c.take("A")
    c.take("B")
    assert c.sending(sender).window.high == 4
    c.join("C")
    c.run(5)
    for name in "ABC":
        assert [payload for _, payload in c.delivered(name, sender)] == [message]


def test_a_message_over_the_receivers_limit_is_given_up_and_counted() -> None:
    small = MulticastConfig(datagram_bytes=512, max_message_bytes=1000)
    c = cluster(2, datagram_bytes=512, configs={"B": small})
    c.nodes["A"].send([b"x", large(3000), b"y"], c.now)
    c.run(2)
    assert [payload for _, payload in c.delivered("B", "A")] == [b"x", b"y"]
    assert c.receiver("B", "A").assembler.oversized == 1
    assert c.window_is_drained("A")


# Early frames, bytes, slow applications


def test_early_data_waits_for_its_view_within_bounds() -> None:
    c = cluster(2)
    joiner = c.start("C")
    view, starts = c.next_view("ABC"), c.starts()
    a = c.nodes["A"]
    a.multicast.handle_signal(Freeze(view.id, view.members), c.now, a.effects)
    joiner.install_view(view, c.now, starts)
    for payload in numbered(EARLY_MAX + 10):
        joiner.send([payload], c.now)
        c.hand_over(packet for packet in c.collect() if packet.dest == "A")
    assert (len(a.multicast.early), a.multicast.early_dropped) == (EARLY_MAX, 10)
    for name in "AB":
        c.nodes[name].install_view(view, c.now, starts)
    c.take("A")
    assert c.delivered("A", "C") == expected(EARLY_MAX)  # without any repair
    assert len(a.multicast.early) == 0
    c.run(2)
    for name in "AB":
        assert c.delivered(name, "C") == expected(EARLY_MAX + 10)


def test_senders_obey_the_smallest_allowance() -> None:
    c = cluster(3, datagram_bytes=1000, window_bytes=20_000)
    c.nodes["C"].multicast.receive_buffer = 4000
    c.nodes["A"].send([b"x"], c.now)
    c.run(1)
    window = c.sending("A").window
    assert window.max_bytes == 4000
    assert c.nodes["A"].send([large(900)] * 10, c.now) == 4
    c.nodes["B"].send([b"x"], c.now)
    c.run(0.1)
    assert window.max_bytes == 2000  # C shares its buffer between A and B
    c.run(1)
    c.nodes["C"].multicast.receive_buffer = 100  # shrinks to one datagram, never to nothing
    c.nodes["A"].send([b"y"], c.now)
    c.run(1)
    assert window.max_bytes == 1000
    assert c.nodes["A"].send([large(900)] * 10, c.now) == 1
    c.run(1)
    c.crash("C")
    c.install("AB")
    assert window.max_bytes == 10_000  # whoever is gone allows nothing and forbids nothing


def test_a_lowered_allowance_revokes_nothing_and_a_raised_one_makes_room() -> None:
    c = cluster(2, datagram_bytes=1000, window_bytes=16_000)
    b = c.nodes["B"].me
    c.run(0.1)
    assert c.nodes["A"].send([large(900)] * 7, c.now) == 7
    window = c.sending("A").window
    in_flight = window.high
    c.hand_over([Packet(b, "A", [Ack(Stream.FIFO, 0, 0, 1500)])])
    assert (window.high, window.max_bytes) == (in_flight, 1500)
    assert window.charged > window.max_bytes
    assert c.nodes["A"].send([b""], c.now) == 0
    c.hand_over([Packet(b, "A", [Ack(Stream.FIFO, 0, 0, 1 << 31)])])
    assert window.max_bytes == 16_000
    assert c.nodes["A"].send([b""], c.now) == 1


def test_room_by_allowance_alone_wakes_the_sender() -> None:
    c = cluster(2, datagram_bytes=1000, window_bytes=8000)
    b = c.nodes["B"].me
    c.run(0.1)
    c.hand_over([Packet(b, "A", [Ack(Stream.FIFO, 0, 0, 2000)])])
    assert 0 < c.nodes["A"].send([large(900)] * 20, c.now) < 4
    c.hand_over([Packet(b, "A", [Ack(Stream.FIFO, 0, 0, 8000)])])
    c.take("A")
    assert c.events["A"].count(Writable()) == 1


def test_a_sender_goes_on_while_a_gap_is_repaired() -> None:
    """What waits behind a gap is no longer under way: as much again may follow it."""
    c = cluster(2, datagram_bytes=1000, window_bytes=16_000)
    window = c.sending("A").window
    payloads = [bytes([n]) * 900 for n in range(30)]

    def lose_the_first(_source: str, _dest: str, frame: Frame) -> bool:
        return isinstance(frame, Data) and frame.first == 1

    sent = c.nodes["A"].send(payloads[:1], c.now)
    c.exchange(lose_the_first)
    for _ in range(20):
        sent += c.nodes["A"].send(payloads[sent:], c.now)
        c.exchange(lose_the_first)
        assert window.charged <= 16_000
    assert window.low == 0
    assert window.charged > 8000  # more than may be under way
    c.run(1)
    while sent < len(payloads):
        sent += c.nodes["A"].send(payloads[sent:], c.now)
        c.run(1)
    assert c.delivered("B", "A") == list(enumerate(payloads, 1))
    assert c.receiver("B", "A").window.dropped_bytes == 0


def test_a_member_that_leaves_does_not_pin_what_it_took() -> None:
    c = cluster(2)
    c.run(0.1)
    c.nodes["A"].send(numbered(3), c.now)
    c.exchange()
    assert not c.window_is_drained("A")  # B's ack is delayed
    c.nodes["B"].close(c.now)
    c.exchange()
    assert c.window_is_drained("A")


def test_what_was_refused_for_its_bytes_is_asked_for_again() -> None:
    """B buffers less ahead of a gap than A may send: legal, and it must come right."""
    small = MulticastConfig(capacity=4096, datagram_bytes=512, window_bytes=2048)
    c = cluster(2, configs={"B": small})
    c.nodes["A"].send([bytes([n]) * 400 for n in range(10)], c.now)
    c.hand_over(c.collect()[1:])  # the first datagram is lost
    assert c.receiver("B", "A").window.dropped_bytes > 0
    c.run(3)
    assert c.delivered("B", "A") == [(n + 1, bytes([n]) * 400) for n in range(10)]
    assert c.window_is_drained("A")


def test_a_smaller_window_at_the_receiver_is_legal_and_live() -> None:
    c = cluster(2, capacity=64, configs={"B": MulticastConfig(capacity=4)})
    c.stopped.add("B")
    c.nodes["A"].send(numbered(40), c.now)
    c.run(0.5)
    assert c.receiver("B", "A").window.dropped_high > 0
    c.stopped.clear()
    c.run(20)
    assert c.delivered("B", "A") == expected(40)
    assert c.window_is_drained("A")


def test_a_stopped_application_holds_its_senders_back_and_is_named() -> None:
    c = cluster(3, capacity=8)
    c.stopped.add("B")
    assert c.nodes["A"].send(numbered(20), c.now) == 8
    c.run(3)
    at_a = c.nodes["A"].explain(c.now)
    assert len(at_a) == 1
    assert "send on fifo blocked for 3.0 s: window full (8 of 8 messages" in at_a[0]
    assert "limited by B, which has delivered 0 of 8; last ack 0." in at_a[0]
    assert c.nodes["B"].explain(c.now) == [
        "A/fifo: 8 messages from 1 on, ready for this member's application"
    ]
    assert c.nodes["C"].explain(c.now) == []
    window = c.receiver("B", "A").window
    assert (window.size, window.high) == (8, 8)  # N-L5: bounded, and nothing dropped
    assert window.dropped_high == 0
    c.stopped.clear()
    c.run(0.5)
    assert Writable() in c.events["A"]
    assert c.nodes["A"].explain(c.now) == c.nodes["B"].explain(c.now) == []


def test_ones_own_stopped_application_is_named_too() -> None:
    c = cluster(2, capacity=2)
    c.stopped.add("A")
    c.nodes["A"].send(numbered(3), c.now)
    c.run(0.2)
    (reason,) = c.nodes["A"].explain(c.now)
    assert (
        "limited by A, which has delivered 0 of 2; that is this member's own application" in reason
    )


def test_a_member_that_never_acked_is_named_so() -> None:
    c = cluster(2, capacity=1)
    c.nodes["A"].send(numbered(2), c.now)
    c.take("A")
    (reason,) = c.nodes["A"].explain(c.now)
    assert reason.endswith("limited by B, which has delivered 0 of 1; no ack from it yet")


def test_a_gap_is_explained() -> None:
    c = cluster(2)
    c.nodes["A"].send([b"1"], c.now)
    c.collect()
    c.nodes["A"].send([b"2"], c.now)
    c.hand_over(c.collect())
    c.run(0.3, drop=lambda source, *_: source == "A")
    (reason,) = c.nodes["B"].explain(c.now)
    assert reason.startswith("A/fifo: 1 missing for 0.3 s, asked ")
    assert reason.endswith("1 later message waits for it")


# What a broken or hostile peer may try


def test_an_ack_for_what_was_never_sent_is_refused() -> None:
    c = cluster(2)
    c.nodes["A"].send(numbered(3), c.now)
    c.take("A")
    c.hand_over([Packet(c.nodes["B"].me, "A", [Ack(Stream.FIFO, 4, 4, 1 << 20)])])
    assert c.nodes["A"].multicast.refused == 1
    assert c.sending("A").window.low == 0  # N5
    c.run(1)
    assert c.delivered("B", "A") == expected(3)


def test_asking_for_everything_is_capped() -> None:
    c = cluster(3, capacity=8)
    c.nodes["A"].send(numbered(8), c.now)
    c.collect()
    b = c.nodes["B"].me
    greedy = Packet(b, "A", [Nack(Stream.FIFO, [range(1, 2**32)])])
    c.hand_over([greedy] * 5)
    answers = c.collect()
    assert {packet.dest for packet in answers} == {"B"}
    assert len(payloads_in(answers)) == 8  # one window, however often it is asked for
    c.hand_over([greedy._replace(source=c.nodes["C"].me)])
    assert len(c.collect()) > 0  # each member has its own share
    c.run(1)
    assert c.window_is_drained("A")


@pytest.mark.parametrize(
    "missing",
    [[range(0, 1)], [range(9, 100)], [range(SEQNO_MAX - 5, SEQNO_MAX)], [range(1, 5)]],
)
def test_asking_for_what_is_not_here_gets_nothing(missing: list[range]) -> None:
    c = cluster(2, capacity=4)
    send_all(c, "A", numbered(8))
    c.run(1)
    assert c.sending("A").window.low == 8
    out = Effects()
    c.sending("A").on_nack(c.nodes["B"].me, Nack(Stream.FIFO, missing), out)
    assert out.frames == []


def test_a_forged_highest_asks_for_one_window_and_no_more() -> None:
    c = cluster(2, capacity=8)
    c.nodes["A"].send(numbered(2), c.now)
    c.exchange()
    c.hand_over([Packet(c.nodes["A"].me, "B", [Watermark(Stream.FIFO, SEQNO_MAX)])])
    asked = 0

    def count(_source: str, _dest: str, frame: Frame) -> bool:
        nonlocal asked
        if isinstance(frame, Nack):
            asked = max(asked, *(seqnos.stop - 1 for seqnos in frame.missing))
        return False

    c.run(2, count)
    assert asked == 2 + 8
    send_all(c, "A", numbered(30, first=3))
    c.run(3)
    assert c.delivered("B", "A") == expected(32)


def test_a_forged_seqno_costs_nothing() -> None:
    c = cluster(2, capacity=8)
    forged = Packet(c.nodes["A"].me, "B", [Data(Stream.FIFO, SEQNO_MAX, [b"boo"])])
    c.hand_over([forged])
    window = c.receiver("B", "A").window
    assert (window.high, window.dropped_high) == (0, 1)
    c.nodes["A"].send(numbered(3), c.now)
    c.run(3)
    assert c.delivered("B", "A") == expected(3)


@pytest.mark.parametrize("is_tagged", [True, False])
def test_frames_of_strangers_create_nothing(is_tagged: bool) -> None:
    c = cluster(2)
    c.run(0.1)
    x = c.start("X").me  # a process of the same group that no view has let in
    a = c.nodes["A"].multicast
    before, refused = a.stats(), a.refused
    frames: list[Frame] = [
        Ack(Stream.FIFO, 0, 0, 1),
        Nack(Stream.FIFO, [range(1, 9)]),
        Watermark(Stream.FIFO, 9),
        Data(Stream.FIFO, 1, [b"x"]),
        Ack(Stream.UNIFORM, 0, 0, 1),
        Nack(Stream.UNIFORM, [range(1, 9)]),
        Data(Stream.UNIFORM, 1, [b"no such stream"]),
    ]
    c.hand_over([Packet(x, "A", frames, None, c.nodes["A"].codec.tag * is_tagged)])
    assert a.stats() == {**before, "refused": refused + len(frames)}
    c.install("AB")
    c.exchange()
    assert c.delivered("A", "X") == []
    assert Origin(x, Stream.FIFO) not in a.windows()


def test_ones_own_frames_that_come_back_are_refused() -> None:
    c = cluster(2)
    c.nodes["A"].send(numbered(3), c.now)
    mine = [packet._replace(dest="A") for packet in c.collect()]
    c.hand_over(mine)
    c.exchange()
    assert c.nodes["A"].rejected == {Reject.OURS.value: 1}
    assert c.delivered("A", "A") == expected(3)
