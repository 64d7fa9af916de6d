"""The state machine of one member: which frames count, views, digests, taking in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ringcast.config import MulticastConfig
from ringcast.core.effects import Effects, Reunited
from ringcast.core.shared import DEPARTED_MAX
from ringcast.errors import GroupClosed, UsageError
from ringcast.events import Closed, Delivered, FragmentsDelivered
from ringcast.model import Address, Digest, Member, Origin, Run, Stream, View, ViewId
from ringcast.protocols.multicast import EARLY_MAX, ReliableMulticast
from ringcast.wire.frames import Ack, Begin, Begun, Data, Nack, Watermark

if TYPE_CHECKING:
    from ringcast.events import Event
    from ringcast.wire.frames import Frame

A, B, C, X = (Member(Address("127.0.0.1", 7800 + n), n, name) for n, name in enumerate("ABCX", 1))
FIFO = Stream.FIFO


def view(*members: Member, counter: int = 1) -> View:
    return View(ViewId(members[0], counter), members)


def zero(*members: Member) -> Digest:
    return Digest({Origin(member, FIFO): 0 for member in members})


class Machine:
    """A's machine and what came out of it."""

    def __init__(self, *others: Member, fragment_bytes: int = 900, **config: Any) -> None:
        defaults: dict[str, Any] = {"datagram_bytes": 1000, "window_bytes": 1 << 16}
        options = MulticastConfig(**(defaults | config))
        self.layer = ReliableMulticast(A, options, fragment_bytes)
        self.out = Effects()
        if others:
            self.view(A, *others)
            self.layer.install_digest(zero(A, *others), 0, self.out)

    def view(self, *members: Member, counter: int = 1) -> None:
        self.layer.group.change(view(*members, counter=counter), [self.layer], 0, self.out)
        self.layer.check_invariants()

    def receive(self, source: Member, *frames: Frame) -> None:
        self.layer.receive(source, frames, 0, self.out)
        self.layer.check_invariants()

    def send(self, *payloads: bytes, stream: Stream = FIFO) -> int:
        return self.layer.send(payloads, stream, 0, self.out)

    def take(self, limit: int = 1000) -> list[Event]:
        return self.layer.take_ready(limit, 0, self.out)


def data(first: int, *payloads: bytes) -> Data:
    return Data(FIFO, first, list(payloads))


# Sending


def test_one_must_be_in_a_view_to_send() -> None:
    m = Machine()
    with pytest.raises(UsageError, match="cannot send on fifo: not in a view yet"):
        m.send(b"x")
    assert not m.layer.is_blocked(FIFO)
    m.view(A)
    assert m.send(b"x") == 1
    with pytest.raises(UsageError, match="cannot send on uniform: not a stream of this group"):
        m.send(b"x", stream=Stream.UNIFORM)


def test_sending_nothing_sends_nothing() -> None:
    m = Machine(B)
    assert m.send() == 0
    assert m.out.frames == []
    assert not m.layer.is_blocked(FIFO)


def test_a_message_over_the_limit_is_refused_before_any_is_sent() -> None:
    m = Machine(B, max_message_bytes=10)
    with pytest.raises(UsageError, match="a message of 11 bytes: max_message_bytes is 10"):
        m.send(b"ok", bytes(11))
    assert m.out.frames == []
    assert m.send(bytes(10)) == 1


def test_flushed_is_when_all_have_delivered_all() -> None:
    m = Machine(B, capacity=2, fragment_bytes=2)
    assert m.layer.is_flushed
    m.send(b"0123456")  # four fragments
    assert not m.layer.is_flushed
    m.take()
    m.receive(B, Ack(FIFO, 2, 2, 1 << 20))
    assert not m.layer.is_flushed
    m.take()
    m.receive(B, Ack(FIFO, 4, 4, 1 << 20))
    assert m.layer.is_flushed


def test_what_was_sent_can_be_read() -> None:
    m = Machine(B)
    m.send(b"1", b"2")
    assert m.layer.senders[FIFO].sent_since(2) == [data(2, b"2")]
    assert m.layer.senders.keys() == {FIFO}


def test_a_full_window_blocks() -> None:
    m = Machine(B, capacity=1)
    assert m.send(b"1", b"2") == 1
    assert m.layer.is_blocked(FIFO)
    m.take()
    m.receive(B, Ack(FIFO, 1, 1, 1 << 20))
    assert not m.layer.is_blocked(FIFO)


# Whose frames count


def test_acks_and_nacks_of_others_than_peers_are_refused() -> None:
    m = Machine(B)
    m.send(b"1")
    m.take()
    m.out.frames.clear()
    for source in (X, A):
        m.receive(source, Ack(FIFO, 1, 1, 0), Nack(FIFO, [range(1, 2)]))
    assert m.layer.refused == 4
    assert m.out.frames == []
    assert m.layer.ack_tables()[FIFO].entries() == [(A, 1, 1), (B, 0, 0)]
    m.receive(B, Nack(FIFO, [range(1, 2)]), Ack(FIFO, 1, 1, 0))
    assert m.out.frames == [(B, data(1, b"1"))]
    assert m.layer.windows()[Origin(A, FIFO)].low == 1
    assert m.layer.refused == 4


def test_an_ack_beyond_what_was_sent_is_refused_whole() -> None:
    m = Machine(B)
    m.send(b"1")
    m.take()
    m.receive(B, Ack(FIFO, 2, 1, 5000))
    assert m.layer.refused == 1
    assert m.layer.windows()[Origin(A, FIFO)].low == 0


def test_frames_of_streams_that_do_not_exist_are_refused() -> None:
    m = Machine(B)
    uniform = Stream.UNIFORM
    m.receive(B, Data(uniform, 1, [b"x"]), Watermark(uniform, 1))
    m.receive(B, Ack(uniform, 0, 0, 0), Nack(uniform, [range(1, 2)]))
    assert m.layer.refused == 4
    assert len(m.layer._early) == 0


def test_nothing_is_accepted_before_the_first_view_but_early_data() -> None:
    m = Machine()
    m.receive(B, Ack(FIFO, 0, 0, 0), Nack(FIFO, [range(1, 2)]), Watermark(FIFO, 3), data(1, b"1"))
    assert m.layer.refused == 3
    assert m.take() == []
    m.view(A, B)
    m.layer.install_digest(zero(A, B), 0, m.out)
    assert m.take() == [Delivered(B, Run(FIFO, 1, [b"1"]), view(A, B).id)]


def test_frames_of_one_datagram_are_taken_in_order() -> None:
    m = Machine(B)
    m.receive(B, data(1, b"1"), data(2, b"2"), Watermark(FIFO, 2))
    assert m.take() == [Delivered(B, Run(FIFO, 1, [b"1", b"2"]), view(A, B).id)]


# The early queue


def test_early_data_is_cut_out_of_its_buffer() -> None:
    m = Machine()
    buffer = bytearray(b"precious")
    m.receive(B, Data.uncut(FIFO, 1, 1, lambda: [bytes(buffer)], more=False))
    buffer[:] = b"reused!!"
    m.view(A, B)
    m.layer.install_digest(zero(B), 0, m.out)
    assert m.take() == [Delivered(B, Run(FIFO, 1, [b"precious"]), view(A, B).id)]


def test_early_fragments_stay_fragments() -> None:
    m = Machine()
    m.receive(B, Data(FIFO, 1, [b"a"], more=True), data(2, b"b"))
    m.view(A, B)
    m.layer.install_digest(zero(B), 0, m.out)
    assert m.take() == [
        FragmentsDelivered(B, FIFO, 1, 1, view(A, B).id),
        Delivered(B, Run(FIFO, 2, [b"ab"]), view(A, B).id),
    ]


def test_early_data_outlives_a_digest_that_does_not_open_its_window() -> None:
    m = Machine(B)
    m.receive(C, data(1, b"1"))
    m.layer.install_digest(zero(A, B), 0, m.out)
    m.view(A, B, C, counter=2)
    m.layer.install_digest(zero(A, B, C), 0, m.out)
    assert [event.sender for event in m.take() if isinstance(event, Delivered)] == [C]


def test_the_early_queue_is_bounded() -> None:
    m = Machine(B)
    for n in range(EARLY_MAX + 5):
        m.receive(X, data(n + 1, b"x"))
    assert m.layer.stats()["early"] == EARLY_MAX
    assert m.layer.stats()["early_dropped"] == 5


# Views


def test_an_older_view_changes_nothing() -> None:
    m = Machine(B)
    m.view(A, B, C, counter=3)
    m.view(A, counter=2)
    m.view(A, counter=3)
    assert [member for member, _, _ in m.layer.ack_tables()[FIFO].entries()] == [A, B, C]


def test_a_view_keeps_windows_of_those_who_stay_and_drops_those_who_left() -> None:
    m = Machine(B, C)
    m.send(b"mine")
    m.receive(B, data(1, b"b1"))
    m.receive(C, data(1, b"c1"))
    m.view(A, B, counter=2)
    assert set(m.layer.windows()) == {Origin(A, FIFO), Origin(B, FIFO)}
    assert [event.sender for event in m.take() if isinstance(event, Delivered)] == [A, B]
    m.receive(C, data(2, b"c2"), Ack(FIFO, 1, 1, 0), Nack(FIFO, [range(1, 2)]), Watermark(FIFO, 9))
    assert m.take() == []
    assert m.layer.refused == 4
    assert len(m.layer._early) == 0  # if it comes back, it is with what it sends from then on


def test_early_data_of_the_departed_goes_with_them() -> None:
    m = Machine(B)
    m.view(A, B, C, counter=2)
    m.receive(C, data(1, b"c"))
    m.receive(X, data(1, b"x"))
    m.view(A, B, counter=3)
    assert [source for source, _ in m.layer._early] == [X]


def test_the_departed_are_remembered_and_what_they_still_send_waits_for_nothing() -> None:
    m = Machine(B, C)
    m.view(A, B, counter=2)
    m.view(A, counter=3)
    for source in (B, C):
        m.receive(source, data(1, b"late"))
    assert (m.layer.refused, len(m.layer._early)) == (2, 0)
    restarted = C._replace(incarnation=99)  # another member: its view may be on its way
    m.receive(restarted, data(1, b"new"))
    assert [source for source, _ in m.layer._early] == [restarted]


def test_the_departed_are_remembered_within_bounds() -> None:
    m = Machine(B)
    passers_by = [C._replace(incarnation=n) for n in range(100, 100 + DEPARTED_MAX)]
    for counter, member in enumerate(passers_by, 2):
        m.view(A, member, counter=counter)
    assert len(m.layer.group.departed) == DEPARTED_MAX  # B and all but the last
    m.receive(B, data(1, b"late"))
    assert m.layer.refused == 1
    m.view(A, counter=1000)
    assert len(m.layer.group.departed) == DEPARTED_MAX
    m.receive(passers_by[0], data(1, b"late"))
    assert m.layer.refused == 2
    m.receive(B, data(1, b"late"))  # forgotten: it waits, within the bound of all strangers
    assert m.layer.refused == 2
    assert [source for source, _ in m.layer._early] == [B]


def test_a_view_without_oneself_closes() -> None:
    m = Machine(B, capacity=2, fragment_bytes=4)
    m.send(b"0123456789")
    m.receive(B, data(1, b"b"))
    m.view(B, C, counter=2)
    reason = "View 2: B, C goes on without this member"
    assert list(m.out.events) == [Closed(reason, 2, ((Stream.FIFO, 1, 2),))]
    assert m.layer.windows() == {}
    assert m.take() == []
    assert m.layer.deadlines.next() is None
    with pytest.raises(GroupClosed):
        m.send(b"x")


def test_closing_is_once_and_for_all() -> None:
    m = Machine(B)
    m.layer.group.close("closed", [m.layer], 0, m.out)
    m.layer.group.close("closed", [m.layer], 0, m.out)
    assert list(m.out.events) == [Closed("closed")]
    m.view(A, B, counter=9)
    m.layer.install_digest(zero(A, B), 0, m.out)
    m.receive(B, data(1, b"1"), Ack(FIFO, 0, 0, 0))
    assert m.layer.refused == 2
    assert m.layer.windows() == {}
    with pytest.raises(GroupClosed):
        m.send(b"x")


def test_closing_acks_what_was_taken() -> None:
    m = Machine(B, C)
    m.layer.handle_timeout(20_000_000, m.out)  # tells where the windows stand
    m.receive(B, data(1, b"1", b"2", b"3"))
    m.take(2)
    m.out.frames.clear()
    m.layer.group.close("closed", [m.layer], 0, m.out)
    assert m.out.frames == [(B, Ack(FIFO, 3, 2, 1 << 15))]  # C has sent nothing to ack


def test_a_view_without_oneself_acks_nothing() -> None:
    m = Machine(B)
    m.receive(B, data(1, b"1"))
    m.take()
    m.out.frames.clear()
    m.view(B, C, counter=2)
    assert m.out.frames == []  # nobody there would believe it


# Digests


@pytest.mark.parametrize("offset", [0, 1, 9])
def test_a_digest_moves_no_window_that_exists(offset: int) -> None:
    m = Machine(B)
    m.receive(B, data(1, b"1", b"2", b"3"))
    m.take()
    m.layer.install_digest(Digest({Origin(B, FIFO): offset, Origin(A, FIFO): 9}), 0, m.out)
    m.receive(B, data(1, b"1", b"2", b"3", b"4"))
    assert m.take() == [Delivered(B, Run(FIFO, 4, [b"4"]), view(A, B).id)]
    assert m.layer.windows()[Origin(A, FIFO)].high == 0


def test_a_window_opens_at_its_entry() -> None:
    m = Machine()
    m.view(A, B)
    m.layer.install_digest(Digest({Origin(B, FIFO): 5}), 0, m.out)
    m.receive(B, data(4, b"4", b"5", b"6"))
    assert m.take() == [Delivered(B, Run(FIFO, 6, [b"6"]), view(A, B).id)]


def test_a_digest_opens_nothing_for_strangers_oneself_or_other_streams() -> None:
    m = Machine()
    m.view(A, B)
    entries = {Origin(X, FIFO): 0, Origin(A, FIFO): 3, Origin(B, Stream.UNIFORM): 0}
    m.layer.install_digest(Digest(entries), 0, m.out)
    assert set(m.layer.windows()) == {Origin(A, FIFO)}


def test_ones_own_digest_tells_what_was_taken() -> None:
    m = Machine(B, C)
    m.send(b"1", b"2")
    m.receive(B, data(1, b"1"), Data(FIFO, 2, [b"part"], more=True), data(4, b"4"))
    assert m.layer.digest() == zero(A, B, C)
    m.take()
    entries = {Origin(A, FIFO): 2, Origin(B, FIFO): 2, Origin(C, FIFO): 0}
    assert m.layer.digest() == Digest(entries, {Origin(B, FIFO): (b"part",)})


# Members that come from another group, or back to us


def begin(counter: int, offset: int, *, is_middle: bool = False, stream: Stream = FIFO) -> Begin:
    return Begin(stream, counter, offset, is_middle)


def reunited(*members: Member, counter: int = 5) -> Machine:
    """A and B, and since this view these."""
    m = Machine(B)
    reunite(m, *members, counter=counter)
    return m


def reunite(m: Machine, *members: Member, counter: int) -> None:
    m.layer.handle_signal(Reunited(members), 0, m.out)
    m.view(A, B, *members, counter=counter)


def answers(m: Machine) -> list[tuple[object, Frame]]:
    """What was said about beginnings since this was last looked at."""
    frames, m.out.frames = m.out.frames, []
    return [(dest, frame) for dest, frame in frames if isinstance(frame, Begin | Begun)]


def taken(m: Machine) -> list[tuple[str, list[bytes]]]:
    return [(e.sender.name, e.run.payloads) for e in m.take() if isinstance(e, Delivered)]


def test_whoever_is_reunited_is_told_where_to_begin_and_a_joiner_is_not() -> None:
    m = Machine(B)
    m.send(b"1", b"2")
    m.layer.handle_signal(Reunited((C,)), 0, m.out)
    m.view(A, B, C, X, counter=5)
    assert answers(m) == [(C, begin(5, 2))]
    m.receive(C, Begun(FIFO, 5))
    m.layer.handle_timeout(500_000_000, m.out)
    assert answers(m) == []


def test_the_signal_is_for_the_view_that_follows() -> None:
    m = reunited(C)
    m.receive(C, Begun(FIFO, 5))
    answers(m)
    m.view(A, B, C, X, counter=6)
    assert answers(m) == []


def test_a_window_opens_where_its_sender_says() -> None:
    m = reunited(C)
    answers(m)
    m.receive(C, data(8, b"8"))
    assert m.take() == []
    m.receive(C, begin(5, 7), data(6, b"6", b"7", b"8", b"9"))
    assert answers(m) == [(C, Begun(FIFO, 5))]
    assert taken(m) == [("C", [b"8", b"9"])]


def test_what_came_before_the_window_waits_for_it() -> None:
    m = reunited(C)
    m.receive(C, data(7, b"7", b"8"))
    assert m.layer.stats()["early"] == 1
    m.receive(C, begin(5, 7))
    assert taken(m) == [("C", [b"8"])]
    assert m.layer.stats()["early"] == 0


@pytest.mark.parametrize("counter", [5, 4])
def test_the_same_beginning_again_or_an_older_one_leaves_the_window_alone(counter: int) -> None:
    m = reunited(C)
    m.receive(C, begin(5, 7), data(8, b"8"))
    assert taken(m) == [("C", [b"8"])]
    answers(m)
    m.receive(C, begin(counter, 3), data(4, b"4"), data(9, b"9"))
    assert answers(m) == [(C, Begun(FIFO, counter))]
    assert taken(m) == [("C", [b"9"])]


def test_a_newer_beginning_opens_another_window() -> None:
    """The sender had left us out and has come back: what lies between is gone."""
    m = reunited(C)
    m.receive(C, begin(5, 7), data(8, b"8"), data(10, b"10"))
    m.receive(C, begin(6, 20), data(9, b"9"), data(21, b"21"))
    assert taken(m) == [("C", [b"21"])]
    assert m.layer.digest().entries[Origin(C, FIFO)] == 21


def test_a_member_of_old_may_begin_anew_too() -> None:
    m = Machine(B)
    m.receive(B, data(1, b"1"))
    m.view(A, B, counter=3)
    m.receive(B, begin(2, 4), data(5, b"5"))  # from a later view than what opened its window
    assert taken(m) == [("B", [b"5"])]


def test_who_departed_and_is_back_begins_where_it_says() -> None:
    m = Machine(B, C)
    m.receive(C, data(1, b"1", b"2"))
    assert taken(m) == [("C", [b"1", b"2"])]
    m.view(A, B, counter=3)
    m.receive(C, data(3, b"3"))  # for those it is with now
    reunite(m, C, counter=7)
    m.receive(C, data(6, b"6"))
    m.receive(C, begin(7, 5))
    assert taken(m) == [("C", [b"6"])]


@pytest.mark.parametrize("counter", [2, 3])
def test_a_beginning_from_before_it_departed_is_late(counter: int) -> None:
    m = Machine(B, C)
    m.view(A, B, counter=3)
    reunite(m, C, counter=7)
    answers(m)
    m.receive(C, begin(counter, 9), data(10, b"10"))
    assert (answers(m), taken(m), m.layer.refused) == ([], [], 1)
    m.receive(C, begin(4, 9))
    assert answers(m) == [(C, Begun(FIFO, 4))]
    assert taken(m) == [("C", [b"10"])]


def test_so_is_one_that_had_a_window_already() -> None:
    m = reunited(C)
    m.receive(C, begin(12, 7))  # in a view that has not come here yet
    m.view(A, B, counter=6)
    reunite(m, C, counter=13)
    answers(m)
    m.receive(C, begin(12, 7))
    assert (answers(m), m.layer.refused) == ([], 1)
    m.receive(C, begin(13, 9), data(10, b"10"))
    assert taken(m) == [("C", [b"10"])]


def test_beginnings_that_do_not_count() -> None:
    m = reunited(C)
    answers(m)
    m.receive(X, begin(5, 7))
    m.receive(A, begin(5, 7))
    m.receive(C, begin(5, 7, stream=Stream.UNIFORM), Begun(Stream.UNIFORM, 5))
    assert (answers(m), m.layer.refused) == ([], 3)
    assert set(m.layer.windows()) == {Origin(A, FIFO), Origin(B, FIFO)}


def test_nothing_begins_before_the_view_or_after_the_end() -> None:
    m = Machine()
    m.receive(C, begin(5, 7), Begun(FIFO, 5))
    assert (answers(m), m.layer.refused) == ([], 1)
    m = reunited(C)
    m.layer.group.close("closed", [m.layer], 0, m.out)
    answers(m)
    m.receive(C, begin(5, 7), Begun(FIFO, 5))
    assert (answers(m), m.layer.refused) == ([], 1)


def test_the_rest_of_a_message_whose_beginning_is_not_for_me_is_left_out() -> None:
    m = reunited(C)
    m.receive(C, begin(5, 7, is_middle=True))
    m.receive(C, Data(FIFO, 8, [b"mid"], more=True), data(9, b"end", b"next"))
    assert taken(m) == [("C", [b"next"])]
    m.receive(C, Data(FIFO, 11, [b"a"], more=True), data(12, b"b"))
    assert taken(m) == [("C", [b"ab"])]
    assert m.layer.digest().entries[Origin(C, FIFO)] == 12


def test_a_half_message_of_the_time_before_is_not_continued() -> None:
    m = Machine(B, C)
    m.receive(C, Data(FIFO, 1, [b"half"], more=True))
    assert taken(m) == []
    m.view(A, B, counter=3)
    reunite(m, C, counter=7)
    m.receive(C, begin(7, 5), data(6, b"whole"))
    assert taken(m) == [("C", [b"whole"])]


# Taking


def test_nobody_starves_when_little_is_taken_at_a_time() -> None:
    m = Machine(B, C)
    m.send(*[b"a"] * 6)
    m.receive(B, data(1, *[b"b"] * 6))
    m.receive(C, data(1, *[b"c"] * 6))
    turns = [event.sender for _ in range(6) for event in m.take(1) if isinstance(event, Delivered)]
    assert turns == [A, B, C, A, B, C]


def test_a_limit_is_kept_over_all_senders() -> None:
    m = Machine(B, C)
    m.send(b"a", b"a")
    m.receive(B, data(1, b"b", b"b"))
    m.receive(C, data(1, b"c", b"c"))
    events = [event for event in m.take(3) if isinstance(event, Delivered)]
    assert sum(len(event.run.payloads) for event in events) == 3
    assert m.take(0) == []


def test_fragments_taken_and_messages_cover_every_seqno_in_order() -> None:
    m = Machine(B)
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


def allowances(m: Machine, dest: Member, *frames: Frame, now: int = 0) -> list[int]:
    """What the acks to `dest` allow after these frames of it, taken at once."""
    m.out.frames.clear()
    m.layer.receive(dest, frames, now, m.out)
    m.layer.take_ready(10, now, m.out)
    return [ack.allowance for to, ack in m.out.frames if to == dest and isinstance(ack, Ack)]


def test_the_receive_buffer_is_shared_by_those_heard_of_late() -> None:
    m = Machine(B, C, capacity=4)
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
    m = Machine(B, C)
    m.layer.receive_buffer = 10_000
    assert allowances(m, C, data(1, b"1"), Watermark(FIFO, 1)) == [10_000]
    assert allowances(m, B, data(2, bytes(700)), Watermark(FIFO, 2)) == [5000 + 700]
    m.layer.receive_buffer = 1 << 30
    assert allowances(m, B, data(3, bytes(900)), Watermark(FIFO, 3)) == [(1 << 15) + 1600]
    assert allowances(m, B, data(1, b"1"), Watermark(FIFO, 3))[-1] == 1 << 15  # nothing waits


def test_deadlines_of_all_boxes_count() -> None:
    m = Machine(B)
    assert m.layer.deadlines.next() == 20_000_000  # the ack that tells where B's window stands
    m.send(b"x")
    assert m.layer.deadlines.next() == 5_000_000  # the probe
    m.layer.handle_timeout(20_000_000, m.out)
    kinds = [type(frame) for _, frame in m.out.frames]
    assert kinds == [Data, Watermark, Ack]


def test_before_any_view_there_is_nothing() -> None:
    m = Machine()
    assert m.layer.deadlines.next() is None
    assert m.take() == []
    assert m.layer.digest() == Digest({})
    assert m.layer.explain(0) == []
    m.layer.check_invariants()
