"""One order at one member, part by part: what is pending, the sequencer's queues, the history, what
is read, and what comes late, twice or from elsewhere."""

from __future__ import annotations

import pytest

from ringcast.config import MulticastConfig
from ringcast.core.effects import Effects
from ringcast.core.shared import Deadlines
from ringcast.core.view_change import Cut, OrderStanding, Part
from ringcast.errors import GroupClosed, UsageError
from ringcast.events import Confirmed, Delivered, Ordered, Writable
from ringcast.model import Address, Member, Origin, Place, Run, Stream, View, ViewId
from ringcast.protocols.multicast_receiver import MulticastReceiver
from ringcast.protocols.total.history import History
from ringcast.protocols.total.order import EARLY_BYTES_MAX, PROBE_START_NS, TotalOrder
from ringcast.protocols.total.pending import INCOMPLETE_AFTER, TOTAL_BYTES, Pending
from ringcast.protocols.total.queues import QUEUE_BYTES, Queues
from ringcast.protocols.total.reading import OrderReader, Start, count_messages
from ringcast.protocols.total.receipts import Deliveries, OrderReceipts
from ringcast.window.assembler import Assembler
from ringcast.wire.batches import (
    CARRIED,
    MORE,
    PART,
    encode_batch,
    encode_part,
    payloads_of,
    read_head,
)
from ringcast.wire.changes import tag_of
from ringcast.wire.frames import Ack, Data, Submit, SubmitFrom, SubmitQuery
from ringcast.wire.limits import VIEW_MEMBERS_MAX
from support.streams import Streams

A, B, C = (Member(Address("10.0.0.1", 7800 + n), 1, name) for n, name in enumerate("ABC"))
VIEW = View(ViewId(A, 3), (A, B, C))
NEXT = View(ViewId(A, 4), (A, B, C))
ROOM = 100


def head_of(batch: bytes) -> tuple[int, int, int, int]:
    head = read_head(batch)
    assert head is not None
    return tuple(head)


# Batches


def test_a_batch_says_what_was_put_into_it() -> None:
    for payloads in ([b"one"], [b""], [b"a", b"", b"ccc"], [b"", b""]):
        batch = encode_batch(CARRIED, 2, 7, payloads)
        head = read_head(batch)
        assert head is not None
        assert (head.flags, head.place, head.first, head.last) == (CARRIED, 2, 7, 6 + len(payloads))
        assert payloads_of(batch, head) == payloads
    part = encode_part(MORE, 1, 9, 1000, b"xyz")
    head = read_head(part)
    assert head is not None
    assert (head.flags, head.last, head.extent, head.ends) == (PART | MORE, 9, 1000, 0)
    assert payloads_of(part, head) == [b"xyz"]


@pytest.mark.parametrize(
    "spoiled",
    [
        b"",
        encode_batch(0, 0, 1, [b"a"])[:14],
        encode_batch(16, 0, 1, [b"a"]),
        encode_batch(MORE, 0, 1, [b"a"]),
        encode_batch(0, 0, 0, [b"a"]),
        encode_batch(0, 0, 2**63 - 1, [b"a"]),
        encode_batch(0, 0, 1, [b"abc", b"", b""])[:-4],
        encode_batch(0, 0, 1, [b"a"])[:11] + b"\0\0\0\0",
        encode_batch(0, 0, 1, [b"a"])[:11] + b"\xff\xff\xff\xff",
    ],
)
def test_what_is_no_batch_is_refused(spoiled: bytes) -> None:
    assert read_head(spoiled) is None


# What is pending


def test_what_finds_no_room_gets_no_number() -> None:
    pending = Pending(4)
    assert pending.accept([b"x"] * 3) == 3
    assert pending.accept([b"x"] * 3) == 1
    assert (pending.low, pending.high, pending.is_full) == (1, 4, True)
    large = Pending(4)
    assert large.accept([bytes(2 * TOTAL_BYTES), b"x"]) == 1  # alone it may be larger than all room
    assert large.accept([b"x"]) == 0


def test_submits_in_batches_of_a_datagram_and_cuts_what_is_larger() -> None:
    pending = Pending(100)
    pending.accept([bytes(40), bytes(40), bytes(40), bytes(200), bytes(5)])
    batches = pending.submit(1, ROOM)
    assert all(len(batch) <= ROOM for batch, _ in batches)
    assert [is_lowest for _, is_lowest in batches] == [True, False, False, False, False]
    assert [head_of(batch)[1:] for batch, _ in batches] == [
        (1, 1, 2),  # two fit
        (1, 3, 1),
        (1, 4, 0),  # parts, by the byte at which they begin
        (1, 4, 85),
        (1, 4, 170),
    ]
    assert [head_of(batch)[0] for batch, _ in batches][2:5] == [PART | MORE, PART | MORE, PART]
    assert pending.submit(1, ROOM) == []  # the last one is small, and waits
    pending.check_invariants()


def test_a_message_of_whole_parts_ends_with_a_full_one() -> None:
    pending = Pending(100)
    pending.accept([bytes(170)])
    heads = [head_of(batch) for batch, _ in pending.submit(0, ROOM)]
    assert heads == [(PART | MORE, 0, 1, 0), (PART, 0, 1, 85)]


def test_an_incomplete_batch_waits_while_several_are_under_way() -> None:
    pending, sent = Pending(100), 0
    for _ in range(INCOMPLETE_AFTER + 3):
        pending.accept([b"x"])
        sent += len(pending.submit(0, ROOM))
    assert sent == INCOMPLETE_AFTER
    pending.take(read_head(encode_batch(0, 0, 1, [b"x"])), 1)  # type: ignore[arg-type]
    (batch,) = pending.submit(0, ROOM)  # the others have gathered
    assert head_of(batch.batch)[2:] == (INCOMPLETE_AFTER + 1, 3)
    pending.accept([b"x"])
    assert pending.submit(0, ROOM) == []  # as many are under way as before
    pending.check_invariants()


def test_nothing_is_under_way_when_a_view_begins_whose_members_have_it_all() -> None:
    pending = Pending(100)
    for _ in range(INCOMPLETE_AFTER):
        pending.accept([b"x"])
        pending.submit(0, ROOM)
    pending.drop(INCOMPLETE_AFTER)  # the marks of the leading part know it
    pending.restart()
    pending.accept([b"x"])
    assert len(pending.submit(0, ROOM)) == 1


def test_no_more_is_under_way_than_may_be_and_what_was_taken_makes_room() -> None:
    pending = Pending(100)
    pending.accept([bytes(3 * TOTAL_BYTES)])
    parts = [batch for batch, _ in pending.submit(0, 1 << 16)]
    assert TOTAL_BYTES <= sum(map(len, parts)) < TOTAL_BYTES + (1 << 17)
    for part in parts:
        head = read_head(part)
        assert head is not None
        pending.take(head, len(part) - 15)
    assert pending.low == 1  # it is not whole
    assert sum(len(batch) for batch, _ in pending.submit(0, 1 << 16)) >= TOTAL_BYTES
    pending.check_invariants()


def test_goes_back_to_where_the_sequencer_stands_and_no_further_than_what_was_taken() -> None:
    pending = Pending(100)
    pending.accept([bytes(60)] * 5)
    assert len(pending.submit(0, ROOM)) == 5
    pending.go_back(3, 0)
    assert [head_of(batch)[2] for batch, _ in pending.submit(0, ROOM)] == [3, 4, 5]
    pending.drop(4)
    pending.go_back(1, 0)  # a late answer
    assert [head_of(batch)[2] for batch, _ in pending.submit(0, ROOM)] == [5]
    pending.go_back(9, 0)
    assert pending.submit(0, ROOM) == []
    pending.check_invariants()


def test_what_is_dropped_before_it_is_submitted_anew_is_passed_over() -> None:
    pending = Pending(100)
    pending.accept([bytes(60)] * 3)
    pending.submit(0, ROOM)
    pending.go_back(1, 0)
    pending.drop(2)
    assert [head_of(batch) for batch, _ in pending.submit(0, ROOM)] == [(0, 0, 3, 1)]


def test_what_is_carried_says_so_and_shares_no_batch_with_what_is_not() -> None:
    pending = Pending(100)
    pending.accept([b"1", b"2"])
    pending.carried = 2
    pending.accept([b"3"])
    heads = [head_of(batch) for batch, _ in pending.submit(0, ROOM)]
    assert heads == [(CARRIED, 0, 1, 2), (0, 0, 3, 1)]


# The sequencer's queues


def offered(queues: Queues, origin: Member, batch: bytes, *, is_lowest: bool = False) -> None:
    head = read_head(batch)
    assert head is not None
    queues.offer(origin, head, batch, is_lowest=is_lowest)
    queues.check_invariants()


def test_queues_what_is_next_and_nothing_else() -> None:
    queues = Queues(VIEW, {B: 4})
    for first in (4, 6, 5, 5, 7):
        offered(queues, B, encode_batch(0, 1, first, [b"x"]))
    assert [head_of(batch)[2] for _, batch in queues.take(9)] == [5]
    assert queues.next[B] == (6, 0)
    offered(queues, B, encode_batch(0, 1, 9, [b"x"]), is_lowest=True)  # it has 6..8 from elsewhere
    offered(queues, B, encode_batch(0, 1, 2, [b"x"]), is_lowest=True)
    assert [head_of(batch)[2] for _, batch in queues.take(9)] == [9]


def test_parts_are_queued_in_their_order() -> None:
    queues = Queues(VIEW, {})
    for offset, flags in ((0, MORE), (20, MORE), (10, MORE), (10, MORE), (20, 0)):
        offered(queues, C, encode_part(flags, 2, 1, offset, bytes(10)))
    assert [head_of(batch)[3] for _, batch in queues.take(9)] == [0, 10, 20]
    assert queues.next[C] == (2, 0)


def test_origins_take_turns_and_what_finds_no_room_comes_first_again() -> None:
    queues = Queues(VIEW, {})
    for number in range(1, 4):
        for place, origin in enumerate((A, B, C)):
            if origin != C or number == 1:
                offered(queues, origin, encode_batch(0, place, number, [b"x"]))
    taken = queues.take(4)
    assert [origin.name for origin, _ in taken] == ["A", "B", "C", "A"]
    queues.put_back(taken[1:])
    queues.check_invariants()
    rest = queues.take(99)
    assert [(origin.name, head_of(batch)[2]) for origin, batch in rest] == [
        ("B", 1),
        ("C", 1),
        ("A", 2),
        ("B", 2),
        ("A", 3),
        ("B", 3),
    ]


def test_an_origin_has_so_much_credit_and_no_more() -> None:
    queues, size = Queues(VIEW, {}), 1 << 16
    for number in range(1, 100):
        offered(queues, B, encode_batch(0, 1, number, [bytes(size)]))
    assert QUEUE_BYTES <= queues.size < QUEUE_BYTES + 2 * size
    assert queues.overdrawn > 0
    offered(queues, C, encode_batch(0, 2, 1, [b"x"]))
    assert queues.waiting(C) == 1  # others have theirs


# The history


def test_marks_of_the_departed_stay_but_not_of_who_has_left_or_began_anew() -> None:
    history = History()
    again = B._replace(incarnation=2)
    history.marks = {A: 1, B: 2, C: 3}
    history.depart((A, B, C), {C}, View(ViewId(A, 4), (A,)))
    assert history.marks == {A: 1, B: 2}
    history.depart((A,), set(), View(ViewId(A, 5), (A, again)))
    assert history.marks == {A: 1}
    assert not history.has_forgotten


def test_the_last_to_go_are_remembered() -> None:
    history = History()
    crowd = [Member(Address("10.0.0.2", n), 1, "") for n in range(1, VIEW_MEMBERS_MAX + 3)]
    for at, member in enumerate(crowd):
        history.marks[member] = at + 1
        history.depart((A, member), set(), View(ViewId(A, at + 4), (A,)))
    assert len(history.marks) == VIEW_MEMBERS_MAX - 1  # A has a place of its own
    assert crowd[2] not in history.marks
    assert crowd[-1] in history.marks
    assert history.has_forgotten


def test_beside_a_view_of_the_largest_size_nobody_is_remembered() -> None:
    history = History()
    crowd = tuple(Member(Address("10.0.0.2", n), 1, "") for n in range(1, VIEW_MEMBERS_MAX + 1))
    history.marks = {A: 1, crowd[0]: 2}
    history.depart((A, crowd[0]), set(), View(ViewId(crowd[0], 4), crowd))
    assert (history.marks, history.has_forgotten) == ({crowd[0]: 2}, True)


# What is read


def read_of(reader: OrderReader, *batches: bytes) -> list[tuple[str, int, list[bytes], int]]:
    events: list[object] = []
    reader.read(1, list(batches), Assembler(1000), VIEW, events)  # type: ignore[arg-type]
    found = [event for event in events if isinstance(event, Delivered)]
    assert len(found) == len(events)
    return [(each.sender.name, each.run.first, each.run.payloads, each.position) for each in found]


def test_runs_of_one_origin_are_one_and_positions_count_messages() -> None:
    reader = OrderReader()
    reader.begin(Start(10, {}))
    assert read_of(
        reader,
        encode_batch(0, 1, 1, [b"a", b"b"]),
        encode_batch(0, 1, 3, [b"c"]),
        encode_part(MORE, 2, 1, 0, b"lar"),
        encode_batch(0, 1, 4, [b"d"]),
        encode_part(0, 2, 1, 3, b"ge"),
    ) == [("B", 1, [b"a", b"b", b"c", b"d"], 11), ("C", 1, [b"large"], 15)]
    assert reader.position == 15


def test_an_unfinished_message_ends_with_its_view() -> None:
    reader = OrderReader()
    assert read_of(reader, encode_part(MORE, 2, 1, 0, b"lar")) == []
    reader.begin(Start(0, {}))
    whole = encode_part(MORE, 2, 1, 0, b"lar"), encode_part(0, 2, 1, 3, b"ge")
    assert read_of(reader, *whole) == [("C", 1, [b"large"], 1)]


def test_who_comes_from_elsewhere_is_told_what_it_has_seen() -> None:
    reader = OrderReader()
    reader.begin(Start(0, {B: 2}))
    events: list[object] = []
    batch = encode_batch(CARRIED, 1, 2, [b"b", b"c"])
    reader.read(1, [batch], Assembler(1000), VIEW, events)  # type: ignore[arg-type]
    assert events == [
        Delivered(B, Run(Stream.TOTAL, 2, [b"b"]), VIEW.id, 0, 1, carried=True, seen=True),
        Delivered(B, Run(Stream.TOTAL, 3, [b"c"]), VIEW.id, 0, 2, carried=True, seen=False),
    ]


def test_a_batch_of_nobody_in_the_view_is_passed_over() -> None:
    stray = encode_batch(0, len(VIEW), 1, [b"x"])
    assert read_of(OrderReader(), stray, encode_batch(0, 2, 1, [b"y"])) == [("C", 1, [b"y"], 1)]
    b = Alone(B)
    b.relayed(1, stray)
    assert b.order.history.standing == OrderStanding(0, {})


def test_a_limit_counts_messages_and_no_batch_is_divided() -> None:
    b = Alone(B)
    three, two = encode_batch(0, 0, 1, [b"x"] * 3), encode_batch(0, 2, 1, [b"y"] * 2)
    b.relayed(1, three, two, encode_part(MORE, 0, 4, 0, b"lar"))
    found = {limit: count_messages(b.log, limit) for limit in (1, 3, 4, 6, 9)}
    assert found == {1: (1, 3), 3: (1, 3), 4: (2, 5), 6: (3, 6), 9: (3, 6)}


# A member


class Alone:
    """One member's TotalOrder, and the log of its view, which another one sends."""

    def __init__(self, me: Member) -> None:
        self.me, self.now, self.out = me, 0, Effects()
        self.order = TotalOrder(me, 64, 1000)
        self.deadlines = Deadlines()
        self.order.attach(self.deadlines.owner("total"))
        self.enter(VIEW)

    def enter(self, view: View, cut: Cut | None = None) -> None:
        origin = Origin(view.coordinator, Stream.TOTAL)
        timers = self.deadlines.owner("log")
        config = MulticastConfig()
        self.log = MulticastReceiver(origin, config, 0, timers, is_gated=True)
        whole = Part(ViewId(A, 1), view.members, {}, {})
        self.begun = self.order.begin(
            view, cut or Cut(view.id, (whole,), {}), self.log, self.now, self.out
        )

    def relayed(self, seqno: int, *batches: bytes, is_committed: bool = True) -> None:
        data = Data(Stream.TOTAL, seqno, list(batches))
        self.log.on_data(data, self.now, 1 << 20, self.out)
        if is_committed:
            self.log.on_commit(seqno + len(batches) - 1, self.now)
            self.order.take(seqno + len(batches) - 1, self.now, self.out)

    def said(self) -> list[object]:
        messages, self.out.messages = self.out.messages, []
        self.order.check_invariants()
        return [message for _, message in messages]

    def told(self) -> list[object]:
        events = list(self.out.events)
        self.out.events.clear()
        return events


def test_a_message_is_pending_until_it_is_taken() -> None:
    b = Alone(B)
    assert b.deadlines.next() is None
    assert b.order.send([b"x", b"y"], 0, b.out) == 2
    (submit,) = b.said()
    assert submit == Submit(tag_of(VIEW.id), encode_batch(0, 1, 1, [b"x", b"y"]), is_lowest=True)
    b.relayed(1, encode_batch(0, 1, 1, [b"x", b"y"]), is_committed=False)
    assert len(b.order.pending) == 2
    b.relayed(1, encode_batch(0, 1, 1, [b"x", b"y"]))
    assert len(b.order.pending) == 0
    assert b.order.history.position == 2


def test_asks_the_sequencer_when_nothing_comes_back_and_goes_on_from_there() -> None:
    b = Alone(B)
    b.order.send([bytes(600)], 0, b.out)
    b.order.send([bytes(600)], 0, b.out)
    assert len(b.said()) == 2
    b.order.handle_timeout(PROBE_START_NS - 1, b.out)
    assert b.said() == []
    b.order.handle_timeout(PROBE_START_NS, b.out)
    assert b.said() == [SubmitQuery(tag_of(VIEW.id), 0)]
    b.order.receive(A, SubmitFrom(tag_of(VIEW.id), 3, 0, 2), PROBE_START_NS, b.out)
    assert b.said() == []  # it has them all, and they wait there
    assert "has 2 datagrams of them queued" in b.order.explain(0)[0]
    b.order.handle_timeout(3 * PROBE_START_NS, b.out)
    assert b.said() == [SubmitQuery(tag_of(VIEW.id), 0)]
    b.order.receive(C, SubmitFrom(tag_of(VIEW.id), 2, 0, 0), 0, b.out)  # it is not the sequencer
    b.order.receive(A, SubmitFrom(1, 2, 0, 0), 0, b.out)  # of another view
    assert (b.said(), b.order.refused) == ([], 2)
    b.order.receive(A, SubmitFrom(tag_of(VIEW.id), 2, 0, 1), 0, b.out)
    (again,) = b.said()
    assert isinstance(again, Submit)
    assert head_of(again.batch)[2] == 2


def test_a_receipt_of_what_is_taken_already_has_its_place_and_asks_who_has_it() -> None:
    b = Alone(B)
    assert b.order.ask_receipt(6, 0, b.out, is_flush=False) is None  # of nothing
    b.order.send([b"x", b"y"], 0, b.out)
    b.relayed(1, encode_batch(0, 0, 1, [b"a"]))
    b.relayed(2, encode_batch(0, 1, 1, [b"x", b"y"]))
    b.said()
    assert b.order.ask_receipt(7, 0, b.out, is_flush=False) == 7
    assert b.told() == [Ordered(7, Place(VIEW.id, 3))]
    assert b.said() == [SubmitQuery(tag_of(VIEW.id), 2)]


def test_a_receipt_of_what_is_pending_asks_who_has_it_once_it_is_taken() -> None:
    b = Alone(B)
    b.order.send([b"x"], 0, b.out)
    assert b.order.ask_receipt(7, 0, b.out, is_flush=False) == 7
    b.said()
    b.relayed(1, encode_batch(0, 1, 1, [b"x"]))
    assert b.told() == [Ordered(7, Place(VIEW.id, 1))]
    assert b.said() == [SubmitQuery(tag_of(VIEW.id), 1)]
    b.order.receive(A, SubmitFrom(tag_of(VIEW.id), delivered=1), 0, b.out)
    assert b.told() == [Confirmed(7)]


def test_batches_follow_what_a_datagram_has_room_for() -> None:
    b = Alone(B)
    b.order.resize(110)
    b.order.send([bytes(200)], 0, b.out)
    submitted = b.said()
    assert len(submitted) == 3
    assert all(isinstance(each, Submit) and len(each.batch) <= 100 for each in submitted)


def test_a_batch_that_fills_half_a_datagram_waits_for_no_more() -> None:
    pending = Pending(100)
    for _ in range(INCOMPLETE_AFTER):
        pending.accept([b"x"])
        pending.submit(0, ROOM)
    pending.accept([bytes(40)])
    assert pending.submit(0, ROOM) == []
    pending.accept([bytes(3)])
    assert len(pending.submit(0, ROOM)) == 1


def test_who_was_blocked_is_told_once_that_there_is_room() -> None:
    b = Alone(B)
    assert b.order.send([b"x"] * 65, 0, b.out) == 64
    assert b.order.is_blocked
    b.relayed(1, encode_batch(0, 1, 1, [b"x"]))
    assert (b.told(), b.order.is_blocked) == ([Writable()], False)
    b.relayed(2, encode_batch(0, 1, 2, [b"x"]))
    assert b.told() == []
    assert b.order.send([b"y"], 0, b.out) == 1


def test_a_frozen_member_accepts_and_submits_nothing_until_its_view() -> None:
    b = Alone(B)
    b.order.send([b"x"], 0, b.out)
    b.said()
    b.order.freeze(tag_of(NEXT.id))
    assert b.order.send([b"y"], 0, b.out) == 0
    b.order.receive(A, SubmitFrom(tag_of(VIEW.id), 1, 0, 0), 0, b.out)
    assert b.said() == []
    assert b.deadlines.next() is None
    b.enter(NEXT)
    (submit,) = b.said()
    assert submit == Submit(tag_of(NEXT.id), encode_batch(0, 1, 1, [b"x"]), is_lowest=True)


def test_what_waits_for_room_waits_while_frozen() -> None:
    b = Alone(B)
    for _ in range(INCOMPLETE_AFTER + 1):
        b.order.send([b"."], 0, b.out)
    assert len(b.said()) == INCOMPLETE_AFTER
    b.order.freeze(tag_of(NEXT.id))
    b.relayed(1, encode_batch(0, 1, 1, [b"."]))  # there is room
    b.order.send([b"."], 0, b.out)
    assert b.said() == []


def test_the_sequencer_alone_notes_messages_that_are_whole_to_tell_who_has_them() -> None:
    a, b = Alone(A), Alone(B)
    for each in (a, b):
        assert each.order.size == 0
        each.relayed(1, encode_part(MORE, 2, 1, 0, b"lar"))
        assert len(each.order.deliveries) == 0
        each.relayed(2, encode_part(0, 2, 1, 3, b"ge"))
    assert (len(a.order.deliveries), len(b.order.deliveries)) == (1, 0)


def test_a_late_submit_of_an_earlier_view_is_refused_and_an_early_one_kept() -> None:
    a = Alone(A)
    early = Submit(tag_of(NEXT.id), encode_batch(0, 1, 1, [b"early"]), is_lowest=True)
    late = Submit(tag_of(VIEW.id), encode_batch(0, 2, 1, [b"late"]), is_lowest=True)
    assert a.order.queues is not None
    a.order.freeze(tag_of(NEXT.id))
    a.order.receive(B, early, 0, a.out)
    a.order.receive(C, late, 0, a.out)
    a.enter(NEXT)
    a.order.receive(C, late, 0, a.out)
    assert a.order.refused == 2
    assert [batch for _, batch in a.order.queues.take(9)] == [early.batch]


def test_so_much_is_kept_for_the_next_view_and_the_rest_is_refused() -> None:
    a, size = Alone(A), 1 << 16
    a.order.freeze(tag_of(NEXT.id))
    for number in range(1, 100):
        batch = encode_batch(0, 1, number, [bytes(size)])
        a.order.receive(B, Submit(tag_of(NEXT.id), batch, is_lowest=number == 1), 0, a.out)
    assert EARLY_BYTES_MAX <= a.order.size < EARLY_BYTES_MAX + 2 * size
    assert a.order.refused == 99 - (a.order.size // size)
    a.enter(NEXT)
    assert QUEUE_BYTES <= a.order.size < QUEUE_BYTES + 2 * size  # all of it is in the queue


def test_who_submits_for_another_is_refused() -> None:
    a = Alone(A)
    for batch in (encode_batch(0, 2, 1, [b"x"]), encode_batch(0, 7, 1, [b"x"]), b"no batch"):
        a.order.receive(B, Submit(tag_of(VIEW.id), batch, is_lowest=True), 0, a.out)
    stranger = Member(Address("10.0.0.9", 1), 1, "X")
    a.order.receive(stranger, Submit(tag_of(VIEW.id), b"", is_lowest=True), 0, a.out)
    assert a.order.refused == 4
    assert a.order.queues is not None
    assert len(a.order.queues) == 0


def from_elsewhere(me: Member, order: OrderStanding) -> Cut:
    lead = Part(ViewId(A, 2), tuple(who for who in (A, B, C) if who != me), {}, {})
    return Cut(NEXT.id, (lead, Part(VIEW.id, (me,), {}, {})), {}, order=order)


def test_what_the_history_has_is_let_go_of_and_the_rest_is_carried() -> None:
    b = Alone(B)
    b.order.send([b"1"], 0, b.out)
    b.order.send([b"2"], 0, b.out)
    assert b.order.ask_receipt(1, 0, b.out, is_flush=False) == 1
    b.order.send([b"3"], 0, b.out)
    assert b.order.ask_receipt(2, 0, b.out, is_flush=False) == 2
    b.said()
    b.enter(NEXT, from_elsewhere(B, OrderStanding(9, {B: 2, A: 7})))
    (submit,) = b.said()
    assert submit == Submit(tag_of(NEXT.id), encode_batch(CARRIED, 1, 3, [b"3"]), is_lowest=True)
    assert b.told() == [Ordered(1, Place(NEXT.id, 0)), Confirmed(1)]
    assert b.order.history.position == 9
    assert b.begun.unconfirmed == ()


def test_what_was_taken_apart_is_told_and_its_number_is_skipped() -> None:
    b = Alone(B)
    b.order.send([b"1", b"2"], 0, b.out)
    b.relayed(1, encode_batch(0, 1, 1, [b"1", b"2"]))
    b.order.send([b"3"], 0, b.out)
    b.said()
    b.enter(NEXT, from_elsewhere(B, OrderStanding(9, {B: 1})))
    assert b.begun.unconfirmed == ((Stream.TOTAL, 2, 2),)
    assert b.begun.start == Start(9, {B: 2})
    (submit,) = b.said()
    assert isinstance(submit, Submit)
    assert (submit.is_lowest, head_of(submit.batch)[2]) == (True, 3)


def test_what_was_taken_apart_is_seen_in_whatever_view_it_comes() -> None:
    b = Alone(B)
    b.relayed(1, encode_batch(0, 2, 1, [b"x", b"y"]))
    b.enter(NEXT, from_elsewhere(B, OrderStanding(9, {C: 1})))
    assert b.begun.start.seen == {C: 2}
    later = View(ViewId(A, NEXT.counter + 1), NEXT.members)
    b.enter(later)
    assert b.begun.start.seen == {C: 2}
    place = later.members.index(C)
    b.relayed(1, encode_batch(0, place, 2, [b"y"]))
    b.enter(View(ViewId(A, later.counter + 1), NEXT.members))
    assert b.begun.start.seen == {}  # it is in the history


def test_the_mark_of_who_leaves_goes_and_that_of_who_is_lost_stays() -> None:
    two = View(ViewId(A, 4), (A, B))
    for members, marks in (((A, B, C), [(A, 1)]), ((A, B), [(A, 1), (C, 2)])):
        b = Alone(B)
        b.relayed(1, encode_batch(0, 2, 1, [b"y", b"z"]), encode_batch(0, 0, 1, [b"x"]))
        b.enter(two, Cut(two.id, (Part(VIEW.id, members, {}, {}),), {}))
        assert list(b.order.history.marks.items()) == marks  # C was the last to go


def test_if_marks_were_forgotten_what_was_ever_submitted_is_not_submitted_again() -> None:
    b = Alone(B)
    b.order.send([b"1", b"2"], 0, b.out)
    assert b.order.ask_receipt(1, 0, b.out, is_flush=False) == 1
    b.said()
    b.enter(NEXT, from_elsewhere(B, OrderStanding(9, {A: 7}, has_forgotten=True)))
    assert b.said() == []
    assert b.told() == [Ordered(1, None, is_submitted=True), Confirmed(1)]
    assert b.begun.unconfirmed == ((Stream.TOTAL, 1, 2),)
    b.order.send([b"3"], 0, b.out)
    b.said()
    b.enter(NEXT, from_elsewhere(B, OrderStanding(9, {A: 7}, has_forgotten=True)))
    assert (b.said(), b.begun.unconfirmed) == ([], ((Stream.TOTAL, 3, 3),))


def test_state_tells_what_is_held_in_whole_messages() -> None:
    b = Alone(B)
    b.relayed(1, encode_batch(0, 2, 1, [b"x", b"y"]))
    held = encode_batch(0, 0, 5, [b"z"]), encode_part(MORE, 2, 3, 0, b"lar")
    b.relayed(2, *held, is_committed=False)
    assert b.order.standing(3) == OrderStanding(3, {C: 2, A: 5})
    assert b.order.history.standing == OrderStanding(2, {C: 2})


def test_a_batch_that_comes_in_fragments_counts_with_its_last_one() -> None:
    b = Alone(B)
    batch = encode_batch(0, 0, 1, [b"x", b"y"])
    b.log.on_data(Data(Stream.TOTAL, 1, [batch[:9]], more=True), 0, 1 << 20, b.out)
    b.relayed(2, batch[9:], is_committed=False)
    for seqno, expected in ((1, OrderStanding(0, {})), (2, OrderStanding(2, {A: 2}))):
        b.log.on_commit(seqno, 0)
        b.order.take(seqno, 0, b.out)
        assert b.order.history.standing == expected
        assert b.order.standing(2) == OrderStanding(2, {A: 2})


def test_on_close_it_is_told_what_was_never_sent_and_what_may_be_ordered() -> None:
    b = Alone(B)
    b.order.send([b"1"], 0, b.out)
    b.order.ask_receipt(1, 0, b.out, is_flush=False)
    for number in range(2, 8):
        b.order.send([b"."], 0, b.out)
        b.order.ask_receipt(number, 0, b.out, is_flush=False)
    b.order.close(b.out)
    events = b.told()
    assert Ordered(1, None, is_submitted=True) in events
    assert Ordered(INCOMPLETE_AFTER, None, is_submitted=True) in events
    assert Ordered(INCOMPLETE_AFTER + 1, None, is_submitted=False) in events
    assert Ordered(7, None, is_submitted=False) in events
    assert b.order.unacked == ((Stream.TOTAL, 1, 7),)
    assert len(b.order.receipts) == 0


def test_total_messages_need_a_view_and_a_member_that_is_in_it() -> None:
    alone = Streams(A, MulticastConfig(), streams=(Stream.FIFO, Stream.TOTAL))
    with pytest.raises(UsageError, match="cannot send on total: not in a view yet"):
        alone.send(b"x", stream=Stream.TOTAL)
    alone.view(A)
    assert alone.send(b"x", stream=Stream.TOTAL) == 1
    alone.layer.close("left", 0, alone.out)
    with pytest.raises(GroupClosed, match="has left its group"):
        alone.send(b"y", stream=Stream.TOTAL)


def test_the_sequencer_tells_an_origin_when_all_others_have_delivered_its_message() -> None:
    a = Streams(A, MulticastConfig(), A, B, C, streams=(Stream.FIFO, Stream.TOTAL))
    tag = tag_of(ViewId(A, 1))
    submit = Submit(tag, encode_batch(0, 1, 1, [b"x"]), is_lowest=True)
    a.layer.receive_message(B, submit, 0, a.out)
    for source in (B, C):
        a.receive(source, Ack(Stream.TOTAL, 1, 0, 1 << 20))
    a.layer.receive_message(B, SubmitQuery(tag, 1), 0, a.out)
    assert a.out.messages == [(B, SubmitFrom(tag, 2))]  # it has it, and waits for the others
    a.layer.receive_message(C, SubmitQuery(tag, 0), 0, a.out)
    assert a.out.messages[1:] == [(C, SubmitFrom(tag, 1))]  # C waits for nothing
    assert a.payloads() == [b"x"]
    a.out.messages.clear()
    a.receive(C, Ack(Stream.TOTAL, 1, 1, 1 << 20))
    assert a.out.messages == [(B, SubmitFrom(tag, delivered=1))]


def test_a_query_that_comes_late_takes_nothing_back() -> None:
    a = Streams(A, MulticastConfig(), A, B, C, streams=(Stream.FIFO, Stream.TOTAL))
    tag = tag_of(ViewId(A, 1))
    for number in (1, 2):
        submit = Submit(tag, encode_batch(0, 1, number, [b"x"]), is_lowest=number == 1)
        a.layer.receive_message(B, submit, 0, a.out)
    for source in (B, C):
        a.receive(source, Ack(Stream.TOTAL, 2, 0, 1 << 20))
    assert a.payloads() == [b"x", b"x"]
    for number in (2, 1):
        a.layer.receive_message(B, SubmitQuery(tag, number), 0, a.out)
    a.out.messages.clear()
    a.receive(C, Ack(Stream.TOTAL, 2, 1, 1 << 20))
    assert a.out.messages == []
    a.receive(C, Ack(Stream.TOTAL, 2, 2, 1 << 20))
    assert a.out.messages == [(B, SubmitFrom(tag, delivered=2))]


def test_who_is_blocked_on_total_is_not_on_others() -> None:
    config = MulticastConfig(capacity=4)
    b = Streams(B, config, A, B, streams=(Stream.FIFO, Stream.TOTAL))
    assert b.send(*[b"x"] * 5, stream=Stream.TOTAL) == 4
    assert [b.layer.is_blocked(stream) for stream in (Stream.FIFO, Stream.TOTAL)] == [False, True]
    assert [b.layer.highest_sent(stream) for stream in (Stream.FIFO, Stream.TOTAL)] == [0, 4]


def test_receipts_are_asked_for_stream_by_stream() -> None:
    b = Streams(B, MulticastConfig(), A, B, streams=(Stream.FIFO, Stream.TOTAL))

    def ask(number: int, stream: Stream) -> int | None:
        return b.layer.ask_receipt(number, stream, 0, b.out, is_flush=False)

    b.send(b"x")
    assert (ask(1, Stream.TOTAL), ask(2, Stream.FIFO)) == (None, 2)
    b.send(b"y", stream=Stream.TOTAL)
    assert ask(3, Stream.TOTAL) == 3
    assert {origin.stream for origin in b.layer.windows()} == {Stream.FIFO}  # the log is none
    assert b.layer.entries is not None
    b.layer.close("left", 0, b.out)
    assert Ordered(3, None, is_submitted=True) in b.events()
    assert b.layer.entries is None


def test_smaller_datagrams_make_smaller_batches() -> None:
    b = Streams(B, MulticastConfig(), A, B, streams=(Stream.FIFO, Stream.TOTAL))
    b.layer.resize(110, 200)
    b.send(bytes(200), stream=Stream.TOTAL)
    assert len(b.out.messages) == 3


def test_a_sequencer_forgets_who_asked_and_is_gone_and_all_when_another_is_it() -> None:
    deliveries = Deliveries()
    deliveries.sent(1, B, 1)
    deliveries.ask(B, 1)
    deliveries.begin(VIEW, is_mine=True)
    assert len(deliveries) == 2
    deliveries.begin(View(ViewId(A, 4), (A, C)), is_mine=True)
    assert len(deliveries) == 1
    deliveries.begin(View(ViewId(C, 5), (C, A)), is_mine=False)
    assert len(deliveries) == 0


# Receipts


def test_receipts_of_later_messages_wait_and_each_is_told_once() -> None:
    receipts, out = OrderReceipts(), Effects()
    receipts.ask(1, 5, is_flush=False)
    receipts.ask(2, 7, is_flush=False)
    receipts.taken(6, Place(VIEW.id, 20), VIEW, out)
    receipts.taken(7, Place(VIEW.id, 21), VIEW, out)
    told = [Ordered(1, Place(VIEW.id, 19)), Ordered(2, Place(VIEW.id, 21))]
    assert list(out.events) == told
    assert (len(receipts), receipts.wanted) == (2, 7)


@pytest.mark.parametrize(
    "view", [NEXT, View(VIEW.id, (A,))], ids=["of an earlier view", "of a member alone"]
)
def test_a_receipt_that_nobody_else_has_to_deliver_ends_at_once(view: View) -> None:
    receipts, out = OrderReceipts(), Effects()
    receipts.ask(1, 5, is_flush=False)
    receipts.taken(5, Place(VIEW.id, 20), view, out)
    assert list(out.events) == [Ordered(1, Place(VIEW.id, 20)), Confirmed(1)]
    assert not len(receipts)


def test_a_receipt_tells_the_place_and_then_that_all_have_it() -> None:
    receipts, out = OrderReceipts(), Effects()
    receipts.ask(1, 5, is_flush=False)
    receipts.taken(6, Place(VIEW.id, 20), VIEW, out)
    assert list(out.events) == [Ordered(1, Place(VIEW.id, 19))]
    assert receipts.wanted == 5
    receipts.delivered(4, out)
    receipts.delivered(5, out)
    assert out.events.pop() == Confirmed(1)
    assert not len(receipts)
    receipts.ask(2, 5, is_flush=True)  # it is known
    receipts.taken(6, Place(VIEW.id, 20), VIEW, out)
    assert out.events.pop() == Confirmed(2)


def test_who_departs_is_named_and_a_flush_goes_on() -> None:
    out, staying = Effects(), {A, B}
    for is_flush, expected in ((False, [Confirmed(1, (C,), "View 4: A, B")]), (True, [])):
        receipts = OrderReceipts()
        receipts.ask(1, 1, is_flush=is_flush)
        receipts.taken(1, Place(VIEW.id, 1), VIEW, Effects())
        receipts.begin(View(ViewId(A, 4), (A, B)), staying, out)
        assert list(out.events) == expected
        out.events.clear()
    receipts.begin(View(ViewId(B, 5), (B, A)), staying, out)  # another is the sequencer
    assert list(out.events) == [Confirmed(1)]


def test_a_flush_does_not_wait_for_a_sequencer_that_went_on_without_its_member() -> None:
    """It knows no more how far others have what this one had sent before."""
    b = Alone(B)
    b.order.send([b"1"], 0, b.out)
    b.relayed(1, encode_batch(0, 1, 1, [b"1"]))
    assert b.order.ask_receipt(1, 0, b.out, is_flush=True) == 1
    assert b.told() == [Ordered(1, Place(VIEW.id, 1))]
    b.enter(NEXT, from_elsewhere(B, OrderStanding(1, {B: 1})))
    assert b.told() == [Confirmed(1)]
