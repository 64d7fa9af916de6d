"""One member: routing, the order of events, and what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from ringcast.config import GroupConfig, MulticastConfig
from ringcast.core.effects import Layer, Suspected
from ringcast.core.view_change import Begin, cut_between
from ringcast.errors import GroupClosed, Reject, UsageError
from ringcast.events import Closed, Delivered, ViewInstalled, Writable
from ringcast.model import Address, Member, Origin, Run, Stream, View, ViewId
from ringcast.node import Node
from ringcast.sim.network import ChecksumSeal
from ringcast.wire.changes import InView, tag_of
from ringcast.wire.codec import VERSION, Codec
from ringcast.wire.frames import Ack, Data, Watermark
from support.cluster import cluster
from support.steps import steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.core.effects import Effects, Signal
    from ringcast.core.shared import Deadlines, GroupState, Timers
    from ringcast.events import Event
    from ringcast.protocols.views.streams import ViewStreams
    from ringcast.wire.frames import Frame

A, B, C = (Member(Address("127.0.0.1", 7800 + n), n, name) for n, name in enumerate("ABC", 1))


def delivered(layer: ViewStreams) -> dict[Origin, int]:
    """How far this member has come with everybody, itself included."""
    return {origin: window.delivered for origin, window in layer.windows().items()}


def view(*members: Member, counter: int = 1) -> View:
    return View(ViewId(members[0], counter), members)


def node(me: Member = A, capacity: int = 4096, **options: Any) -> Node:
    multicast = MulticastConfig(capacity=capacity, datagram_bytes=1000)
    return Node(me, GroupConfig(group="g", name=me.name, multicast=multicast), **options)


def datagrams(
    source: Member,
    *frames: Frame,
    group: str = "g",
    to: Member | None = None,
    said_in: View | None = None,
) -> list[bytes]:
    codec = Codec(group, source, 1000)
    codec.tag = 0 if said_in is None else tag_of(said_in.id)
    return codec.pack(frames, to)


class Watcher(Layer):
    """A second layer that owns no frames and writes down what it is told."""

    frames: ClassVar[tuple[type[Frame], ...]] = ()

    def __init__(self) -> None:
        self.calls: list[str] = []

    def attach(self, group: GroupState, deadlines: Deadlines) -> None:
        super().attach(group, deadlines)
        self.timers = deadlines.owner("watcher")

    def start(self, now: int, out: Effects) -> None:
        self.calls.append("start")

    def receive(self, source: Member, frames: Sequence[Frame], now: int, out: Effects) -> None:
        self.calls.append("receive")

    def install_view(self, view: View, now: int, out: Effects) -> None:
        self.calls.append(f"view {view.counter}")
        if view.counter == 1:  # decides more, as a membership layer would
            out.signal(Suspected(B, "as a detector would say"))
            after = View(ViewId(A, 2), view.members)
            out.signal(Begin(after, cut_between(view, after, A, {})))

    def handle_signal(self, signal: Signal, now: int, out: Effects) -> None:
        self.calls.append(type(signal).__name__)

    def take_ready(self, limit: int, now: int, out: Effects) -> list[Event]:
        return []

    def handle_timeout(self, now: int, out: Effects) -> None:
        self.calls.append("timeout")

    def close(self, reason: str, now: int, out: Effects) -> None:
        self.calls.append("close")

    def stats(self) -> dict[str, object]:
        return {"calls": len(self.calls)}

    def explain(self, now: int) -> list[str]:
        return ["the watcher waits"]

    def check_invariants(self) -> None:
        self.calls.append("check")


class Greedy(Watcher):
    frames: ClassVar[tuple[type[Frame], ...]] = (Ack,)


def test_a_frame_has_one_owner() -> None:
    with pytest.raises(UsageError, match="two owners: ViewStreams and Greedy"):
        node(layers=[Greedy()])


def test_every_layer_hears_everything_in_order() -> None:
    watcher = Watcher()
    a = node(layers=[watcher])
    a.start(0)
    a.install_view(view(A, B), 0)
    # What a layer decides comes after what was decided before: a worklist, no recursion.
    assert watcher.calls == ["start", "view 1", "Begin", "Suspected", "view 2", "Begin"]
    assert a.view is not None
    assert a.view.counter == 2
    assert Origin(B, Stream.FIFO) in a.multicast.windows()
    watcher.calls.clear()
    a.handle_timeout(0)
    a.check_invariants()
    a.close(0)
    assert watcher.calls == ["timeout", "check", "close"]
    assert a.explain(0) == ["the watcher waits"]
    assert a.stats()["Watcher"] == {"calls": 3}
    assert a.stats()["member"] == "A"


def test_the_earliest_deadline_of_any_layer_counts() -> None:
    watcher = Watcher()
    a = node(layers=[watcher])
    assert a.next_timeout() is None
    watcher.timers.arm("x", 7)
    assert a.next_timeout() == 7
    watcher.timers.disarm("x")
    a.install_view(view(A, B), 0)
    a.send([b"x"], 0)
    assert a.next_timeout() == 5_000_000


def test_frames_go_to_their_owner_in_stretches() -> None:
    class Recorder(Watcher):
        frames: ClassVar[tuple[type[Frame], ...]] = (Data, Ack)

        def receive(self, source: Member, frames: Sequence[Frame], now: int, out: Effects) -> None:
            self.calls.append(f"{source} " + " ".join(type(frame).__name__ for frame in frames))

    recorder = Recorder()
    a = node()
    a._stack.layers = [recorder]
    a._stack._owner = {Data: 0, Ack: 0}
    ack, highest = Ack(Stream.FIFO, 0, 0, 0), Watermark(Stream.FIFO, 0)
    data = Data(Stream.FIFO, 1, [b"x"])
    a.receive_datagrams(datagrams(B, data, ack, highest, highest, ack), 0)
    assert recorder.calls == ["B Data Ack", "B Ack"]  # nobody owns Watermark here


@pytest.mark.parametrize(
    ("datagram", "reason"),
    [
        (b"", Reject.TOO_SHORT),
        (b"nothing of ours, really", Reject.NOT_OURS),
        (datagrams(B, Watermark(Stream.FIFO, 1), group="other")[0], Reject.GROUP),
        (datagrams(B, Watermark(Stream.FIFO, 1))[0][:-1], Reject.FRAME_LENGTH),
        (bytes(70_000), Reject.TOO_LONG),
        (
            datagrams(B, Watermark(Stream.FIFO, 1), to=A._replace(incarnation=9))[0],
            Reject.ADDRESSEE,
        ),
    ],
)
def test_what_cannot_be_decoded_is_counted_and_dropped(datagram: bytes, reason: Reject) -> None:
    a = node()
    a.install_view(view(A, B), 0)
    good = datagrams(B, Data(Stream.FIFO, 1, [b"x"]), to=A, said_in=view(A, B))
    a.receive_datagrams([datagram, *good, datagram], 0)
    assert a.rejected == {reason.value: 2}
    assert a.stats()["rejected"] == {reason.value: 2}
    assert any(isinstance(event, Delivered) for event in a.take_events(9, 0))


def test_who_speaks_another_wire_version_is_refused_and_named() -> None:
    receiver = node(B)
    (said,) = datagrams(A, Watermark(Stream.FIFO, 1))
    older = said[:2] + bytes([VERSION - 1]) + said[3:]
    receiver.receive_datagrams([older, older], 0)
    assert receiver.rejected == {Reject.VERSION.value: 2}
    assert receiver.explain(0)[-1].startswith(
        f"2 datagrams of another wire version than {VERSION} were refused"
    )


def test_a_seal_that_does_not_open_is_counted() -> None:
    """Whoever drives the node opens what comes, and seals what leaves."""
    a, b = (node(me, seal=ChecksumSeal()) for me in (A, B))
    datagram = b.datagrams.passage.seal(*datagrams(B, Watermark(Stream.FIFO, 1)))
    a.datagrams.receive(a.datagrams.passage.open_bursts(iter([[datagram, datagram[:-1]]]), 0), 0)
    assert a.rejected == {Reject.SEAL.value: 1}
    assert [*node().datagrams.passage.open_bursts(iter([[datagram]]), 0)] == [[datagram]]


def test_a_view_comes_behind_all_that_was_said_before_it() -> None:
    """Also of who is not in it; and nothing follows of a view that has ended."""
    a = node()
    before, after = view(A, B, C), view(A, B, counter=2)
    a.install_view(before, 0)
    for source, seqno in ((B, 1), (C, 1)):
        data = Data(Stream.FIFO, seqno, [b"before"])
        a.receive_datagrams(datagrams(source, data, said_in=before), 0)
    a.install_view(after, 0)
    for source, said_in in ((B, before), (C, before), (C, after), (B, after)):
        data = Data(Stream.FIFO, 2, [b"behind"])
        a.receive_datagrams(datagrams(source, data, said_in=said_in), 0)
    events = a.take_events(9, 0)
    assert [type(event) for event in events] == [
        *(ViewInstalled, Delivered, Delivered, ViewInstalled, Delivered),
    ]
    delivered = [event for event in events if isinstance(event, Delivered)]
    assert [(event.sender, event.view_id) for event in delivered] == [
        (B, before.id),
        (C, before.id),
        (B, after.id),
    ]


def test_older_views_and_the_same_view_are_ignored() -> None:
    a = node()
    newest = view(A, B, counter=5)
    for each in (newest, view(A, B, C, counter=4), view(A, B, C, counter=5)):
        a.install_view(each, 0)
    assert a.view == newest
    assert a.take_events(9, 0) == [ViewInstalled(newest, came=(B,))]


def test_a_view_without_oneself_closes() -> None:
    a = node()
    a.install_view(view(A, B), 0)
    a.take_events(9, 0)
    a.install_view(view(B, C, counter=2), 0)
    assert a.take_events(9, 0) == [Closed("View 2: B, C goes on without this member")]
    with pytest.raises(GroupClosed):
        a.send([b"x"], 0)
    assert a.next_timeout() is None


def test_after_a_view_without_oneself_there_is_none() -> None:
    a = node()
    a.install_view(view(A, B), 0)
    a.install_view(view(B, C, counter=2), 0)
    a.take_events(9, 0)
    a.install_view(view(A, B, counter=3), 0)  # who comes back is another member
    assert a.view == view(A, B)
    assert a.take_events(9, 0) == []
    assert a.multicast.windows() == {}


def test_a_first_view_without_oneself_closes_too() -> None:
    a = node()
    a.install_view(view(B, C), 0)
    assert a.take_events(9, 0) == [Closed("View 1: B, C goes on without this member")]
    a.install_view(view(A, B, counter=2), 0)
    assert a.take_events(9, 0) == []


def test_sends_between_two_takes_share_a_datagram() -> None:
    a = node()
    a.install_view(view(A, B), 0)
    assert a.take_datagrams() == []
    assert a.send([b"1"], 0) == 1
    assert a.send([b"2"], 0) == 1
    ((dest, datagram),) = a.take_datagrams()
    assert dest is None
    frames = [InView(tag_of(view(A, B).id)), Data(Stream.FIFO, 1, [b"1", b"2"])]
    assert Codec("g", B, 1000).unpack(datagram) == (A, frames)
    assert a.take_datagrams() == []


def test_frames_to_one_member_go_to_its_address_and_to_that_incarnation_alone() -> None:
    a = node()
    a.install_view(view(A, B, C), 0)
    for to in (B, C):
        a.send([b"1"], 0, to=to)
    sent = dict(a.take_datagrams())
    assert set(sent) == {B.address, C.address}
    for member in (B, C):
        there, restarted = node(member), node(member._replace(incarnation=99))
        for each in (there, restarted):
            each.receive_datagrams([sent[member.address]], 0)
        assert (there.rejected, restarted.rejected) == ({}, {Reject.ADDRESSEE: 1})


def test_taking_is_delivery_and_has_a_limit() -> None:
    a = node()
    a.install_view(view(A), 0)
    a.send([b"1", b"2", b"3"], 0)
    assert delivered(a.multicast) == {Origin(A, Stream.FIFO): 0}
    first = a.take_events(2, 0)
    assert first[1:] == [Delivered(A, Run(Stream.FIFO, 1, [b"1", b"2"]), view(A).id)]
    assert delivered(a.multicast) == {Origin(A, Stream.FIFO): 2}
    assert a.has_ready
    assert len(a.take_events(2, 0)) == 1
    assert not a.has_ready


def test_what_taking_causes_comes_with_what_was_taken() -> None:
    a = node(capacity=2)
    a.install_view(view(A), 0)
    assert a.send([b"1", b"2", b"3"], 0) == 2
    assert a.take_events(9, 0) == [
        ViewInstalled(view(A)),
        Delivered(A, Run(Stream.FIFO, 1, [b"1", b"2"]), view(A).id),
        Writable(),
    ]
    assert a.take_events(9, 0) == []


def test_the_same_inputs_give_the_same_outputs() -> None:
    outcomes = []
    for _ in range(2):
        c = cluster(3, capacity=4, datagram_bytes=512, window_bytes=4096)
        c.nodes["A"].send([bytes(3000), b"x"], c.now)
        packets = c.collect()
        c.hand_over(packets[1::2])
        c.run(5)
        stats = {name: each.stats() for name, each in c.nodes.items()}
        outcomes.append((c.events, stats, c.now))
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0][0]["C"]) > 2


def test_a_timer_asks_no_window_that_waits_for_nothing() -> None:
    """Members of a large group that is idle wake up for heartbeats alone."""
    counts = set()
    for size in (3, 50):
        others = (Member(Address("127.0.0.1", 7800 + n), n, f"m{n}") for n in range(2, size + 1))
        one, group = node(), view(A, *others)
        one.install_view(group, 1, {Origin(member, Stream.FIFO): 0 for member in group})
        assert len(one.multicast.receivers) == size - 1
        heartbeat = one.deadlines.owner("heartbeat")

        def beat(node: Node = one, timers: Timers[str] = heartbeat) -> None:
            timers.arm("beat", 10)
            node.handle_timeout(10)
            timers.disarm("beat")
            node.next_timeout()

        beat()
        counts.add(steps(beat))
    assert len(counts) == 1
