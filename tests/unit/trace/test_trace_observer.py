"""What an observer of a node writes down, read back from the segments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyarrow", reason="needs ringcast[spark]")

from ringcast.events import Writable
from ringcast.model import Stream, View, ViewId
from ringcast.trace.observe.observer import TraceObserver
from ringcast.trace.recorder import Recorder
from ringcast.trace.rows import (
    ACKMAP,
    BLOCK,
    CONN,
    DELIVER,
    HELD,
    LATE,
    OPEN,
    PURGE,
    REJECT,
    RX,
    SEND,
    SHOWN,
    START,
    STOP,
    TX,
    UNICAST_SEND,
    UNICAST_WIN,
    VIEW,
    WIN,
    XMIT_MISMATCH,
    member_key,
)
from ringcast.trace.segments import Segment, segment_paths
from ringcast.wire.changes import Complain
from ringcast.wire.frames import Data, PeerRepairRequest, StabilityQuery
from support.cluster import Cluster

if TYPE_CHECKING:
    from pathlib import Path

    from ringcast.node import Node
    from ringcast.trace.rows import Row


class Observed:
    """Some members of a cluster with an observer on each. What they have not read yet stays in
    their windows."""

    def __init__(
        self, directory: Path, names: str, observed: str, level: str = "deliveries", **config: Any
    ) -> None:
        self.cluster = Cluster(names, **config)
        self._directory = directory
        self.observers: dict[str, TraceObserver] = {}
        for name in observed:
            node = self.cluster.nodes[name]
            recorder = Recorder(directory / name, "run", node.me, level=level, block_messages=4)
            self.observe(node, recorder)
        self.cluster.stopped = set(observed)

    def observe(self, node: Node, recorder: Recorder) -> None:
        """From now on; what has happened already is seen when it is next looked at."""
        observer = self.observers[str(node.me)] = TraceObserver(node, recorder)
        observer.start(self.cluster.now)
        observer._look(self.cluster.now)
        node.observer = observer

    def send_from(self, name: str, *payloads: bytes) -> None:
        """From any member to all the others, who have it when this returns."""
        self.cluster.nodes[name].send(payloads, self.cluster.now)
        self.cluster.exchange()

    def send(self, name: str, *payloads: bytes) -> int:
        return self.cluster.nodes[name].send(payloads, self.cluster.now)

    def take(self) -> None:
        for name in self.observers:
            self.cluster.nodes[name].take_events(1000, self.cluster.now)

    def hear(self) -> None:
        """What has happened, as drivers take it after each input; no message is taken."""
        for name in self.observers:
            self.cluster.nodes[name].take_events(0, self.cluster.now)

    def until_all_is_taken(self) -> None:
        for _ in range(100):
            self.take()
            self.cluster.run(0.01)

    def rows(self, name: str) -> list[Row]:
        """Stop, and what was written, oldest first."""
        self.observers[name].stop(self.cluster.now)
        rows: list[Row] = []
        for path in segment_paths(self._directory / name):
            with Segment(path) as segment:
                rows += segment.rows()
        assert [row.idx for row in rows] == list(range(len(rows)))
        assert self.observers[name].recorder.stats()["lost"] == 0
        return rows


def runs(rows: list[Row], event: str) -> list[tuple[str, int, int, str]]:
    """(whose, first, last, kind) of each row of one event."""
    return [(row.peer, row.seqno, row.seqno2, row.kind) for row in rows if row.event == event]


def blocks(rows: list[Row], kind: str, sender: str) -> list[tuple[int, int, int]]:
    """(first, last, hash) of each block of one sender."""
    return [
        (row.seqno, row.seqno2, row.block_hash)
        for row in rows
        if (row.event, row.kind, row.peer) == (BLOCK, kind, sender)
    ]


def test_a_member_that_does_nothing_starts_opens_and_stops(tmp_path: Path) -> None:
    t = Observed(tmp_path, "ABC", "A")
    t.cluster.nodes["A"].handle_timeout(t.cluster.now)  # nothing is due
    rows = t.rows("A")
    assert [row.event for row in rows] == [START, OPEN, OPEN, STOP]
    assert runs(rows, OPEN) == [("B", 0, 0, ""), ("C", 0, 0, "")]
    assert {(row.node, row.inc) for row in rows} == {("A", 1)}


def test_what_stands_in_the_send_window_counts_as_sent(tmp_path: Path) -> None:
    t = Observed(tmp_path, "AB", "A", capacity=4)
    assert t.send("A", b"1", b"2", b"3") == 3
    assert t.send("A", b"4", b"5") == 1  # what is not accepted is not sent
    rows = t.rows("A")
    assert runs(rows, SEND) == [("A", 1, 4, "")]  # what continues becomes one row
    assert [(first, last) for first, last, _ in blocks(rows, "sent", "A")] == [(1, 4)]


def test_what_was_taken_counts_as_delivered_with_the_view_it_came_in(tmp_path: Path) -> None:
    t = Observed(tmp_path, "AB", "A")
    t.cluster.nodes["B"].send([b"1", b"2"], t.cluster.now)
    t.cluster.exchange()
    t.take()
    t.cluster.nodes["B"].send([b"not taken"], t.cluster.now)
    t.cluster.exchange()
    rows = t.rows("A")
    assert runs(rows, DELIVER) == [("B", 1, 2, "")]
    a = t.cluster.nodes["A"].me
    (shown,) = (row for row in rows if row.event == SHOWN)
    assert shown.view_key == (1, member_key(a))
    (delivered,) = (row for row in rows if row.event == DELIVER)
    assert (delivered.view, delivered.view_creator) == (1, member_key(a))


def test_a_large_message_counts_where_its_last_fragment_stands(tmp_path: Path) -> None:
    t = Observed(tmp_path, "AB", "AB", datagram_bytes=512, window_bytes=1 << 16)
    fragment = t.cluster.nodes["A"].codec.payload_bytes_max
    large = bytes(n % 251 for n in range(2 * fragment + 1))
    assert t.send("A", b"before", large, b"after") == 3
    t.until_all_is_taken()
    expected = [
        ("A", 1, 1, ""),
        ("A", 2, 3, "fragment"),
        ("A", 4, 4, ""),
        ("A", 5, 5, ""),
    ]
    at_a, at_b = t.rows("A"), t.rows("B")
    assert runs(at_a, SEND) == expected
    assert runs(at_a, DELIVER) == runs(at_b, DELIVER) == expected


def test_both_sides_hash_the_same_content_however_it_is_cut(tmp_path: Path) -> None:
    """A message larger than the window goes out in pieces, as room appears."""
    t = Observed(tmp_path, "AB", "AB", "full", capacity=4, datagram_bytes=512, window_bytes=4096)
    large = bytes(n % 251 for n in range(9000))
    assert t.send("A", b"before", large) == 2
    assert t.send("A", b"after") == 0
    t.until_all_is_taken()
    assert t.send("A", b"after") == 1
    t.until_all_is_taken()
    high = t.cluster.sending("A").window.high
    at_a, at_b = t.rows("A"), t.rows("B")
    for rows, event in ((at_a, SEND), (at_a, DELIVER), (at_b, DELIVER)):
        found = runs(rows, event)
        seqnos = [seqno for _, first, last, _ in found for seqno in range(first, last + 1)]
        assert seqnos == list(range(1, high + 1))
        whole = [
            seqno
            for _, first, last, kind in found
            if kind != "fragment"
            for seqno in range(first, last + 1)
        ]
        assert whole == [1, high - 1, high]
    sent = blocks(at_a, "sent", "A")
    assert len(sent) == -(-high // 4)
    assert blocks(at_a, "delivered", "A") == blocks(at_b, "delivered", "A") == sent


def test_the_window_of_a_departed_member_is_dropped(tmp_path: Path) -> None:
    t = Observed(tmp_path, "ABC", "A")
    a, b = (member_key(t.cluster.nodes[name].me) for name in "AB")
    for name in "BC":
        t.cluster.nodes[name].send([b"1", b"2"], t.cluster.now)
    t.cluster.exchange()
    t.take()
    t.cluster.crash("C")
    t.cluster.install("AB")
    t.take()
    rows = t.rows("A")
    (view,) = (row for row in rows if row.event == VIEW)
    assert view.members == view.part == (a, b)
    assert len(blocks(rows, "delivered", "B")) == 1
    assert blocks(rows, "delivered", "C") == []  # nothing more is expected of it


def test_a_window_that_replaces_another_between_two_looks_is_opened(tmp_path: Path) -> None:
    t = Observed(tmp_path, "AB", "A")
    t.cluster.nodes["B"].send([b"1", b"2"], t.cluster.now)
    t.cluster.exchange()
    t.take()
    t.cluster.crash("B")
    t.cluster.install("A")
    t.cluster.join("B")  # another process at the same address
    t.hear()
    t.cluster.nodes["B"].send([b"new"], t.cluster.now)
    t.cluster.exchange()
    t.take()
    rows = t.rows("A")
    opened = [(row.peer, row.peer_inc, row.seqno) for row in rows if row.event == OPEN]
    assert opened == [("B", 2, 0), ("B", 3, 0)]
    found = [row.peer_inc for row in rows if (row.event, row.kind) == (BLOCK, "delivered")]
    assert found == [3]
    assert {origin.sender.incarnation for origin in t.observers["A"]._ranges._open} == {3}


def test_a_joiner_opens_where_its_digest_says(tmp_path: Path) -> None:
    t = Observed(tmp_path, "AB", "")
    t.cluster.nodes["B"].send([b"1", b"2", b"3"], t.cluster.now)
    t.cluster.run(1)
    joiner = t.cluster.join("C")
    t.observe(joiner, Recorder(tmp_path / "C", "run", joiner.me))
    rows = t.rows("C")
    assert runs(rows, OPEN) == [("A", 0, 0, ""), ("B", 3, 3, "")]


def test_other_events_leave_no_row(tmp_path: Path) -> None:
    t = Observed(tmp_path, "A", "A")
    t.observers["A"].took([Writable()], t.cluster.now, buffered=False)
    assert [row.event for row in t.rows("A")] == [START, STOP]


# Level full


def purged(rows: list[Row]) -> list[tuple[int, int]]:
    """(last view before it, how far) of each purge of plain messages."""
    found, view = [], 0
    for row in rows:
        view = row.view if row.event == VIEW else view
        if row.event == PURGE and row.stream == Stream.FIFO:
            found.append((view or 1, row.seqno))  # the first view was installed before
    return found


def test_what_all_have_delivered_is_told_once_a_second_at_views_and_at_the_end(
    tmp_path: Path,
) -> None:
    t = Observed(tmp_path, "AB", "A")
    for _ in range(5):
        t.send("A", b"1", b"2")
        t.until_all_is_taken()  # for a second
    t.cluster.install("A")
    t.until_all_is_taken()
    t.send("A", b"1", b"2")
    t.take()
    told = purged(t.rows("A"))
    assert [through for _, through in told] == [2, 4, 6, 8, 10, 12]
    assert [view for view, _ in told] == [1, 1, 1, 1, 1, 2]


def rows_where_a_view_frees_the_window(directory: Path, level: str) -> list[Row]:
    """B crashes without a word on what A has sent; A's application has yet to hear of the view
    without B when it sends one more message."""
    t = Observed(directory, "AB", "A", level)
    t.take()
    t.cluster.stopped.add("B")
    t.send("A", b"1", b"2", b"3")
    t.take()
    t.cluster.crash("B")
    t.cluster.install("A")
    assert t.cluster.nodes["A"].multicast.senders[Stream.FIFO].window.low == 3
    t.send("A", b"4")
    t.hear()
    return t.rows("A")


def test_what_is_purged_in_a_view_stands_behind_its_row(tmp_path: Path) -> None:
    """Nobody may take it for B's word."""
    assert purged(rows_where_a_view_frees_the_window(tmp_path, "deliveries")) == [(2, 3)]


def test_frames_and_windows_are_shown_at_level_full(tmp_path: Path) -> None:
    t = Observed(tmp_path, "AB", "A", "full")
    a, b = t.cluster.nodes.values()
    t.take()  # the view
    t.send("A", b"1", b"22")
    sent = a.take_datagrams()
    b.receive_datagrams([datagram for _, datagram in sent], t.cluster.now)
    b.take_events(10, t.cluster.now)
    b.handle_timeout(t.cluster.now + 1_000_000_000)
    answers = [memoryview(datagram) for _, datagram in b.take_datagrams()]
    a.receive_datagrams([*answers, memoryview(b"?")], t.cluster.now)
    t.take()
    rows = t.rows("A")
    frames = [
        (row.event, row.kind, row.peer, row.seqno, row.seqno2, row.received, row.hd, row.size)
        for row in rows
        if row.event in (TX, RX)
    ]
    assert frames == [
        (TX, "data", "", 1, 2, -1, -1, 3),
        (RX, "ack", "B", 0, 0, 2, 2, 0),
    ]
    (ackmap,) = (row for row in rows if row.event == ACKMAP)
    assert ackmap.members == (member_key(a.me), member_key(b.me))
    windows = [
        (row.peer, row.kind, row.low, row.hd, row.received, row.hr)
        for row in rows
        if row.event == WIN
    ]
    assert windows == [
        ("A", "send", 0, 0, 0, 0),
        ("B", "receive", 0, 0, 0, 0),
        ("A", "send", 0, 0, 2, 2),
        ("A", "send", 2, 2, 2, 2),
    ]
    assert [row.seqno for row in rows if row.event == PURGE] == [2]
    assert len([row for row in rows if row.event == REJECT]) == 1
    places = [row.event for row in rows]
    assert places.index(DELIVER) < places.index(PURGE)


def test_what_is_sent_again_is_compared_with_what_was_sent_first(tmp_path: Path) -> None:
    t = Observed(tmp_path, "AB", "A", "full")
    codec = t.cluster.nodes["A"].codec
    for payloads in ([b"1", b"2"], [b"1", b"2"], [b"1", b"x"]):
        packed = codec.pack([Data(Stream.FIFO, 1, payloads)])
        t.observers["A"].transmitted(None, packed, t.cluster.now)
    rows = t.rows("A")
    assert [row.again for row in rows if row.event == TX] == [0, 1, 1]
    assert [row.seqno for row in rows if row.event == XMIT_MISMATCH] == [2]


def test_a_suspicion_names_whom_and_why(tmp_path: Path) -> None:
    t = Observed(tmp_path, "AB", "A", "full")
    a, b = t.cluster.nodes.values()
    for is_slow in (False, True):
        packed = a.codec.pack([Complain(b.me, is_slow)], b.me)
        t.observers["A"].transmitted(None, packed, t.cluster.now)
    told = [(row.kind, row.members, row.detail) for row in t.rows("A") if row.event == TX]
    assert told == [
        ("complain", (member_key(b.me),), "silent"),
        ("complain", (member_key(b.me),), "slow"),
    ]


def test_frames_are_called_as_in_simulations(tmp_path: Path) -> None:
    t = Observed(tmp_path, "AB", "A", "full")
    a, b = t.cluster.nodes.values()
    assert a.view is not None
    for frame in (
        PeerRepairRequest(b.me, (range(3, 5), range(7, 8))),
        StabilityQuery(a.view.id, 1),
    ):
        t.observers["A"].transmitted(None, a.codec.pack([frame], b.me), t.cluster.now)
    told = [row for row in t.rows("A") if row.event == TX]
    assert [(row.kind, row.seqno, row.seqno2, row.view) for row in told] == [
        ("peer_repair_request", 3, 7, 0),
        ("stability_query", 0, 0, a.view.counter),
    ]


def test_nothing_is_asked_of_datagrams_at_level_deliveries(tmp_path: Path) -> None:
    t = Observed(tmp_path, "AB", "AB")
    t.send_from("A", b"1")
    t.observers["B"].received(b"what no codec reads", t.cluster.now)
    t.observers["B"].transmitted(None, [b"what no codec reads"], t.cluster.now)
    t.take()
    assert {row.event for row in t.rows("B")} == {START, SHOWN, OPEN, DELIVER, BLOCK, STOP}


@pytest.mark.parametrize("level", ["deliveries", "full"])
def test_what_is_sent_delivered_and_purged_in_one_take_counts_as_sent(
    tmp_path: Path, level: str
) -> None:
    """Whoever goes on alone needs no acks, and sends the rest of a large message before it reads
    of the view."""
    t = Observed(tmp_path, "AB", "A", level, capacity=2)
    node = t.cluster.nodes["A"]
    t.send("A", bytes(5 * node.codec.payload_bytes_max))
    node.install_view(View(ViewId(node.me, 9), (node.me,)), t.cluster.now)
    t.until_all_is_taken()
    for _ in range(8):
        t.send("A", b"one more")
        t.take()
    rows = t.rows("A")
    sent = [
        seqno for row in rows if row.event == SEND for seqno in range(row.seqno, row.seqno2 + 1)
    ]
    delivered = [row.seqno2 for row in rows if row.event == DELIVER]
    assert sent == list(range(1, delivered[-1] + 1))
    assert {first: hash for first, _, hash in blocks(rows, "sent", "A")}.items() <= {
        (first, hash) for first, _, hash in blocks(rows, "delivered", "A")
    }
    assert len(blocks(rows, "sent", "A")) >= (2 if level == "full" else 1)


def test_frames_that_wait_for_the_end_of_a_turn_are_held(tmp_path: Path) -> None:
    t = Observed(tmp_path, "ABC", "A", level="full")
    node, now = t.cluster.nodes["A"], t.cluster.now
    other = t.cluster.nodes["B"].me
    node.send([b"one"], now, to=other)
    node.send([b"two"], now + 1000, to=other)
    node.take_datagrams(now + 2000)
    t.cluster.now = now + 3000
    node.take_datagrams(now + 3000)
    rows = t.rows("A")
    told = [(row.event, row.mono_ns - now) for row in rows if row.epoch or row.event == HELD]
    assert told[:6] == [
        (CONN, 0),
        (UNICAST_SEND, 0),
        (UNICAST_WIN, 0),
        (HELD, 1000),
        (UNICAST_SEND, 1000),
        (UNICAST_WIN, 1000),
    ]
    assert told[6:8] == [(HELD, 2000), (TX, 2000)]
    assert HELD not in {event for event, _ in told[8:]}


def test_a_member_that_is_kept_from_what_is_due_is_late(tmp_path: Path) -> None:
    t = Observed(tmp_path, "ABC", "A", level="full")
    node, now = t.cluster.nodes["A"], t.cluster.now
    node.send([b"one"], now, to=t.cluster.nodes["B"].me)
    due = node.next_timeout()
    assert due is not None
    node.handle_timeout(due + 5_000_000)
    t.cluster.now = due + 5_000_000
    late = [row for row in t.rows("A") if row.event == LATE]
    assert [(row.mono_ns - due, row.size) for row in late] == [(5_000_000, 5_000_000)]
