"""The state machine of one member: which frames count, views, digests, taking in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ringcast.config import MulticastConfig
from ringcast.core.view_change import Freeze
from ringcast.errors import GroupClosed, UsageError
from ringcast.events import Closed, Delivered, FragmentsDelivered, ViewInstalled
from ringcast.model import Address, Member, Origin, Run, Stream, View, ViewId
from ringcast.protocols.views.streams import EARLY_MAX
from ringcast.wire.frames import Ack, Commit, Data, Nack, Watermark
from support.streams import Streams

if TYPE_CHECKING:
    from ringcast.protocols.views.streams import ViewStreams
    from ringcast.wire.frames import Frame

A, B, C, X = (Member(Address("127.0.0.1", 7800 + n), n, name) for n, name in enumerate("ABCX", 1))
FIFO = Stream.FIFO


def delivered(layer: ViewStreams) -> dict[Origin, int]:
    """How far this member has come with everybody, itself included."""
    return {origin: window.delivered for origin, window in layer.windows().items()}


def view(*members: Member, counter: int = 1) -> View:
    return View(ViewId(members[0], counter), members)


def machine(*others: Member, fragment_bytes: int = 900, **config: Any) -> Streams:
    """A's, with these in its view."""
    defaults: dict[str, Any] = {"capacity": 4096, "datagram_bytes": 1000, "window_bytes": 1 << 16}
    members = (A, *others) if others else ()
    options = MulticastConfig(**(defaults | config))
    return Streams(A, options, *members, fragment_bytes=fragment_bytes)


def data(first: int, *payloads: bytes) -> Data:
    return Data(FIFO, first, list(payloads))


# Sending


def test_one_must_be_in_a_view_to_send() -> None:
    m = machine()
    with pytest.raises(UsageError, match="cannot send on fifo: not in a view yet"):
        m.send(b"x")
    assert not m.layer.is_blocked(FIFO)
    m.view(A)
    assert m.send(b"x") == 1
    with pytest.raises(UsageError, match="cannot send on uniform: not a stream of this group"):
        m.send(b"x", stream=Stream.UNIFORM)


def test_sending_nothing_sends_nothing() -> None:
    m = machine(B)
    assert m.send() == 0
    assert m.out.frames == []
    assert not m.layer.is_blocked(FIFO)


def test_a_message_over_the_limit_is_refused_before_any_is_sent() -> None:
    m = machine(B, max_message_bytes=10)
    with pytest.raises(UsageError, match="a message of 11 bytes: max_message_bytes is 10"):
        m.send(b"ok", bytes(11))
    assert m.out.frames == []
    assert m.send(bytes(10)) == 1


def test_who_comes_into_a_view_sends_what_datagrams_hold_by_then() -> None:
    m = machine()
    m.layer.resize(100, 200)
    m.view(A, B)
    sending = m.layer.senders[FIFO]
    assert (sending.window.datagram_bytes, sending.fragments.largest) == (200, 100)


def test_flushed_is_when_all_that_was_accepted_has_its_seqnos() -> None:
    m = machine(B, capacity=2, fragment_bytes=2)
    assert m.layer.is_flushed
    m.send(b"0123456")  # four fragments
    assert not m.layer.is_flushed
    m.take()
    m.receive(B, Ack(FIFO, 2, 2, 1 << 20))
    assert m.layer.is_flushed  # the next view brings it to all, read or not


def test_what_was_sent_can_be_read() -> None:
    m = machine(B)
    m.send(b"1", b"2")
    assert m.layer.senders[FIFO].sent_since(2) == [data(2, b"2")]
    assert m.layer.senders.keys() == {FIFO}


def test_a_full_window_blocks() -> None:
    m = machine(B, capacity=1)
    assert m.send(b"1", b"2") == 1
    assert m.layer.is_blocked(FIFO)
    m.take()
    m.receive(B, Ack(FIFO, 1, 1, 1 << 20))
    assert not m.layer.is_blocked(FIFO)


# Whose frames count


def test_acks_and_nacks_of_others_than_peers_are_refused() -> None:
    m = machine(B)
    m.send(b"1")
    m.take()
    m.out.frames.clear()
    for source in (X, A):
        m.receive(source, Ack(FIFO, 1, 1, 0), Nack(FIFO, [range(1, 2)]))
    assert m.layer.refused == 4
    assert m.out.frames == []
    assert m.layer.senders[FIFO].acks.entries() == [(A, 1, 1), (B, 0, 0)]
    m.receive(B, Nack(FIFO, [range(1, 2)]), Ack(FIFO, 1, 1, 0))
    assert m.out.frames == [(B, data(1, b"1"))]
    assert m.layer.windows()[Origin(A, FIFO)].low == 1
    assert m.layer.refused == 4


def test_an_ack_beyond_what_was_sent_is_refused_whole() -> None:
    m = machine(B)
    m.send(b"1")
    m.take()
    m.receive(B, Ack(FIFO, 2, 1, 5000))
    assert m.layer.refused == 1
    assert m.layer.windows()[Origin(A, FIFO)].low == 0


def test_frames_of_streams_that_do_not_exist_are_refused() -> None:
    m = machine(B)
    uniform = Stream.UNIFORM
    m.receive(B, Data(uniform, 1, [b"x"]), Watermark(uniform, 1), Commit(1))
    m.receive(B, Ack(uniform, 0, 0, 0), Nack(uniform, [range(1, 2)]))
    assert m.layer.refused == 5
    assert len(m.layer.early) == 0


def test_nothing_is_accepted_before_the_first_view() -> None:
    m = machine()
    frames = (Ack(FIFO, 0, 0, 0), Nack(FIFO, [range(1, 2)]), Watermark(FIFO, 3), data(1, b"1"))
    m.receive(B, *frames, view=view(A, B).id)
    assert m.layer.refused == 4
    m.view(A, B)
    assert m.take() == []


def test_frames_of_one_datagram_are_taken_in_order() -> None:
    m = machine(B)
    m.receive(B, data(1, b"1"), data(2, b"2"), Watermark(FIFO, 2))
    assert m.take() == [Delivered(B, Run(FIFO, 1, [b"1", b"2"]), view(A, B).id)]


# The early queue


def test_what_comes_early_of_the_view_that_was_proposed_waits_for_it() -> None:
    """Cut out of its buffer, and fragments stay fragments."""
    m = machine(B)
    proposal = view(A, B, counter=2).id
    m.signal(Freeze(proposal, (A, B)))
    buffer = bytearray(b"precious")
    early = Data.uncut(FIFO, 1, 1, lambda: [bytes(buffer)], more=True)
    m.receive(B, early, data(2, b" cargo"), view=proposal)
    buffer[:] = b"reused!!"
    m.view(A, B, counter=2)
    assert m.take() == [
        FragmentsDelivered(B, FIFO, 1, 1, proposal),
        Delivered(B, Run(FIFO, 2, [b"precious cargo"]), proposal),
    ]


def test_early_data_goes_with_a_proposal_that_comes_to_nothing() -> None:
    m = machine(B)
    proposal, other = view(A, B, counter=2).id, view(A, B, counter=3).id
    m.signal(Freeze(proposal, (A, B)))
    m.receive(B, data(1, b"1"), view=proposal)
    m.signal(Freeze(other, (A, B)))
    m.view(A, B, counter=3)
    assert m.take() == []


def test_the_early_queue_is_bounded() -> None:
    m = machine(B)
    proposal = view(A, B, counter=2).id
    m.signal(Freeze(proposal, (A, B)))
    for n in range(EARLY_MAX + 5):
        m.receive(B, data(n + 1, b"x"), view=proposal)
    assert m.layer.stats()["early"] == EARLY_MAX
    assert m.layer.stats()["early_dropped"] == 5


# Views


def test_a_view_keeps_windows_of_those_who_stay_and_ends_those_of_who_left() -> None:
    m = machine(B, C)
    m.send(b"mine")
    m.receive(B, data(1, b"b1"))
    m.receive(C, data(1, b"c1"))
    m.view(A, B, counter=2)
    assert set(m.layer.windows()) == {Origin(A, FIFO), Origin(B, FIFO)}
    events = m.take()
    assert [event.sender for event in events if isinstance(event, Delivered)] == [A, B, C]
    assert isinstance(events[-1], ViewInstalled)  # all of them belong to the view before
    m.receive(C, data(2, b"c2"), Ack(FIFO, 1, 1, 0), Nack(FIFO, [range(1, 2)]), Watermark(FIFO, 9))
    assert m.take() == []
    assert m.layer.refused == 4


def test_what_was_said_in_another_view_counts_for_nothing() -> None:
    m = machine(B)
    before = m.view(A, B, counter=2)
    m.send(b"1")
    m.take()
    m.view(A, B, counter=3)
    m.sent()
    late = (data(1, b"1"), Ack(FIFO, 1, 1, 0), Nack(FIFO, [range(1, 2)]), Watermark(FIFO, 9))
    m.receive(B, *late, Commit(1), view=before)
    assert (m.layer.refused, m.take(), m.sent()) == (5, [], [])
    assert m.window(A).low == 0


def test_closing_is_once_and_for_all() -> None:
    m = machine(B, capacity=2, fragment_bytes=4)
    m.send(b"0123456789")
    m.receive(B, data(1, b"b"))
    m.layer.group.close("closed", [m.layer], 0, m.out)
    m.layer.group.close("closed", [m.layer], 0, m.out)
    assert m.events() == [Closed("closed", 2, ((Stream.FIFO, 1, 2),))]
    m.receive(B, data(1, b"1"), Ack(FIFO, 0, 0, 0))
    assert m.layer.refused == 2
    assert m.layer.windows() == {}
    assert m.layer.highest_sent(FIFO) == 2
    assert m.take() == []
    assert m.layer.deadlines.next() is None
    with pytest.raises(GroupClosed):
        m.send(b"x")


def test_closing_acks_what_was_taken() -> None:
    m = machine(B, C)
    m.layer.handle_timeout(20_000_000, m.out)  # tells where the windows stand
    m.receive(B, data(1, b"1", b"2", b"3"))
    m.take(2)
    m.sent()
    m.layer.group.close("closed", [m.layer], 0, m.out)
    assert m.sent() == [(B, Ack(FIFO, 3, 2, 1 << 15))]  # C has sent nothing to ack


def test_a_window_begins_where_its_sender_goes_on_and_existing_ones_stay() -> None:
    m = machine(B)
    m.receive(B, data(1, b"1", b"2"))
    m.take()
    starts = {Origin(who, FIFO): 5 for who in (A, B, C, X)}
    v = m.view(A, B, C, counter=2, starts=starts)
    m.receive(C, data(4, b"4", b"5", b"6"))
    m.receive(B, data(2, b"2", b"3"))
    assert m.take() == [
        Delivered(B, Run(FIFO, 3, [b"3"]), v),
        Delivered(C, Run(FIFO, 6, [b"6"]), v),
    ]
    assert set(m.layer.windows()) == {Origin(who, FIFO) for who in (A, B, C)}
    assert m.window(A).high == 0


def test_ones_own_digest_tells_what_was_taken() -> None:
    m = machine(B, C)
    m.send(b"1", b"2")
    m.receive(B, data(1, b"1"), Data(FIFO, 2, [b"part"], more=True), data(4, b"4"))
    assert delivered(m.layer) == {Origin(who, FIFO): 0 for who in (A, B, C)}
    m.take()
    assert delivered(m.layer) == {Origin(A, FIFO): 2, Origin(B, FIFO): 2, Origin(C, FIFO): 0}


def test_who_departed_and_is_back_begins_anew() -> None:
    """Neither what it said to others meanwhile, nor half a message of the time before."""
    m = machine(B, C)
    m.receive(C, data(1, b"1"), Data(FIFO, 2, [b"half"], more=True))
    m.view(A, B, counter=3)
    m.take()
    m.view(A, B, C, counter=7, starts={Origin(C, FIFO): 5})
    m.receive(C, data(3, b"3"), data(6, b"6"))
    assert m.payloads() == [b"6"]


# Taking


def test_nobody_starves_when_little_is_taken_at_a_time() -> None:
    m = machine(B, C)
    m.send(*[b"a"] * 6)
    m.receive(B, data(1, *[b"b"] * 6))
    m.receive(C, data(1, *[b"c"] * 6))
    turns = [event.sender for _ in range(6) for event in m.take(1) if isinstance(event, Delivered)]
    assert turns == [A, B, C, A, B, C]


def test_a_limit_is_kept_over_all_senders() -> None:
    m = machine(B, C)
    m.send(b"a", b"a")
    m.receive(B, data(1, b"b", b"b"))
    m.receive(C, data(1, b"c", b"c"))
    events = [event for event in m.take(3) if isinstance(event, Delivered)]
    assert sum(len(event.run.payloads) for event in events) == 3
    assert m.take(0) == []


def test_fragments_taken_and_messages_cover_every_seqno_in_order() -> None:
    m = machine(B)
    m.receive(
        B,
        data(1, b"1"),
        Data(FIFO, 2, [b"2", b"3"], more=True),
        data(4, b"4", b"5"),
        Data(FIFO, 6, [b"6"], more=True),
    )
    v = view(A, B).id
    assert m.take() == [
        Delivered(B, Run(FIFO, 1, [b"1"]), v),
        FragmentsDelivered(B, FIFO, 2, 3, v),
        Delivered(B, Run(FIFO, 4, [b"234"]), v),
        Delivered(B, Run(FIFO, 5, [b"5"]), v),
        FragmentsDelivered(B, FIFO, 6, 6, v),
    ]
    m.receive(B, data(7, b"7"))
    assert m.take() == [Delivered(B, Run(FIFO, 7, [b"67"]), v)]


def allowances(m: Streams, dest: Member, *frames: Frame, now: int = 0) -> list[int]:
    """What the acks to `dest` allow after these frames of it, taken at once."""
    m.now = now
    m.sent()
    m.receive(dest, *frames)
    m.take(10)
    return [ack.allowance for to, ack in m.sent() if to == dest and isinstance(ack, Ack)]


def test_the_receive_buffer_is_shared_by_those_heard_of_late() -> None:
    m = machine(B, C, capacity=4)
    m.layer.receive_buffer = 10_000
    assert allowances(m, B, data(1, b"1")) == [10_000]  # C has never sent anything
    assert allowances(m, C, data(1, b"1")) == [5000]
    assert allowances(m, B, data(2, b"2")) == [5000]
    later = 500_000_000
    assert allowances(m, B, data(3, b"3"), now=later - 1) == [5000]
    assert allowances(m, B, data(4, b"4"), now=later) == [10_000]  # C is silent for one τ
    m.layer.receive_buffer = 10
    assert allowances(m, B, data(5, b"5"), now=later) == [1000]  # at least one datagram
    m.layer.receive_buffer = 1 << 30
    assert allowances(m, B, data(6, b"6"), now=later) == [1 << 15]  # no more than in flight


def test_what_waits_behind_a_gap_is_allowed_again() -> None:
    m = machine(B, C)
    m.layer.receive_buffer = 10_000
    assert allowances(m, C, data(1, b"1"), Watermark(FIFO, 1)) == [10_000]
    assert allowances(m, B, data(2, bytes(700)), Watermark(FIFO, 2)) == [5000 + 700]
    m.layer.receive_buffer = 1 << 30
    assert allowances(m, B, data(3, bytes(900)), Watermark(FIFO, 3)) == [(1 << 15) + 1600]
    assert allowances(m, B, data(1, b"1"), Watermark(FIFO, 3))[-1] == 1 << 15  # nothing waits


def test_deadlines_of_all_boxes_count() -> None:
    m = machine(B)
    m.receive(B, data(1, b"1"))
    assert m.layer.deadlines.next() == 20_000_000  # the ack
    m.send(b"x")
    assert m.layer.deadlines.next() == 5_000_000  # the probe
    m.layer.handle_timeout(20_000_000, m.out)
    kinds = [type(frame) for _, frame in m.out.frames]
    assert kinds == [Data, Watermark, Ack]


def test_before_any_view_there_is_nothing() -> None:
    m = machine()
    assert m.layer.deadlines.next() is None
    assert m.take() == []
    assert delivered(m.layer) == {}
    assert m.layer.explain(0) == []
    m.layer.check_invariants()
