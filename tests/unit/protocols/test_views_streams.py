"""ViewStreams: what counts while a member is frozen, what a flush fetches, and from whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ringcast.config import GroupConfig, MulticastConfig, StabilityConfig
from ringcast.core.effects import Effects
from ringcast.core.view_change import Begin, CutReached, Flush, Freeze, Part, cut_between
from ringcast.events import Closed
from ringcast.model import Origin, Stream, View, ViewId
from ringcast.protocols.views.streams import EARLY_MAX, Standing, ViewStreams
from ringcast.wire.changes import Forwarded, InView, Want, tag_of
from ringcast.wire.codec import Codec
from ringcast.wire.frames import Commit, Data
from support.view_group import ViewGroup, name_of

if TYPE_CHECKING:
    from random import Random

    from ringcast.node import Node
    from ringcast.sim.world import Flight

FIFO, UNIFORM = Stream.FIFO, Stream.UNIFORM
MS = 1_000_000


def streams_of(node: Node) -> ViewStreams:
    streams = node.multicast
    assert isinstance(streams, ViewStreams)
    return streams


def later(node: Node, *, by: int = 1) -> ViewId:
    """A proposal above the view of this node."""
    assert node.view is not None
    return ViewId(node.view.coordinator, node.view.counter + by)


def origin(group: ViewGroup, name: str, stream: Stream = FIFO) -> Origin:
    return Origin(group.node(name).me, stream)


def freeze(node: Node, now: int) -> Effects:
    out = Effects()
    assert node.view is not None
    streams_of(node).handle_signal(Freeze(later(node), node.view.members), now, out)
    assert streams_of(node).standing is Standing.FROZEN
    return out


# Timers of who is frozen


def assert_no_timer_stays_due(node: Node, now: int) -> None:
    """A driver would serve it for ever."""
    node.handle_timeout(now)
    due = node.next_timeout()
    assert due is None or due > now


def reporting_group(names: str) -> ViewGroup:
    """Members report what they have instead of acknowledging it."""
    stability = MulticastConfig(capacity=16, datagram_bytes=1000, stability=StabilityConfig())
    return ViewGroup(names, config=GroupConfig(group="g", multicast=stability)).form()


def test_a_frozen_member_reports_nothing_and_its_timer_does_not_stay_due() -> None:
    group = reporting_group("ABC")
    group.send("A", 3)
    group.run(5)
    process = group.process("B")
    assert streams_of(process.node).rounds is not None
    freeze(process.node, process.now)
    assert_no_timer_stays_due(process.node, process.now + 100 * MS)


def test_a_commit_that_comes_to_a_frozen_member_asks_for_nothing() -> None:
    group = ViewGroup("ABC").form()
    group.weather.cuts.add(("A", "B"))
    group.send("A", 3, UNIFORM)
    group.run(5)
    process, sender = group.process("B"), group.node("A").me
    streams, now = streams_of(process.node), process.now
    freeze(process.node, now)
    streams.receive(sender, [InView(streams._tag), Commit(3)], now, Effects())
    assert_no_timer_stays_due(process.node, now + 2000 * MS)


@pytest.mark.parametrize("stream", [FIFO, UNIFORM])
def test_who_is_frozen_accepts_nothing_and_gives_its_seqnos_in_the_next_view(
    stream: Stream,
) -> None:
    group = ViewGroup("ABC").form()
    group.crash("C")
    assert group.run_until(lambda: group.layer("A").change.is_frozen, 5000)
    assert group.send("A", 2, stream) == []
    assert "sends wait for view" in " ".join(group.node("A").explain(group.process("A").now))
    assert group.run_until(group.is_one, 1000)
    assert len(group.send("A", 2, stream)) == 2
    group.run(100)
    assert group.undelivered() == []
    assert group.observed.violations() == []


# Readers that are behind


def test_who_reads_what_a_departed_sender_sent_reports_nothing_of_it() -> None:
    group = reporting_group("ABC")
    group.read("B", 0)
    sent = group.send("C", 3)
    group.run(10)
    group.crash("C")
    assert group.run_until(group.is_one, 5000)
    group.send("A", 1)
    group.run(2000)
    group.read("B")
    views = group.observed.views_of(group.node("B").me)
    assert group.observed.got(group.node("B").me, views[-2].id, origin(group, "C")) == sent
    group.run(2000)
    assert group.observed.violations() == []
    assert group.is_quiet()


# What a flush lacks


def said_by(group: ViewGroup) -> list[str]:
    """Who wants what of whom from now on, and who passes it on, as it is sent."""
    told: list[str] = []

    class Listener:
        def __call__(self, flight: Flight, dice: Random) -> list[Flight]:
            source, dest = flight.link.source, flight.link.dest
            node = group.world.processes[source].node
            for frame in node.codec.unpack(flight.datagram, overhear=True)[1]:
                if isinstance(frame, Want | Forwarded):
                    word = type(frame).__name__.lower()
                    told.append(f"{name_of(source)}>{name_of(dest)} {word} of {frame.sender}")
            return [flight]

    group.world.network.faults = [Listener(), group.weather]
    return told


def test_what_is_lacking_comes_from_who_holds_it() -> None:
    group = ViewGroup("ABCD").form()
    told = said_by(group)
    group.weather.cuts = {("D", "B")}
    sent = group.send("D", 2, UNIFORM)
    group.run(3)
    group.weather.part("ABC", "D")
    group.crash("D")
    assert group.run_until(group.is_one, 5000)
    assert told == ["B>A want of D", "A>B forwarded of D"]
    check_all_have(group, "ABC", sent)


def test_what_its_holder_does_not_give_twice_is_asked_of_the_proposer() -> None:
    """B lacks what C has sent, and they do not hear each other."""
    group = ViewGroup("ABC").form()
    group.weather.cuts = {("B", "C"), ("C", "B")}
    told = said_by(group)
    sent = group.send("C", 2, UNIFORM)
    group.run(3)
    group.leave("C")
    assert group.run_until(lambda: len(group.node("B").view or ()) == 2, 500)
    assert told == [
        *["B>C want of C"] * 2,
        *("B>A want of C", "A>C want of C"),
        *("C>A forwarded of C", "A>B forwarded of C"),
    ]
    check_all_have(group, "AB", sent)


def test_the_proposer_gives_what_it_holds_itself_of_who_has_departed() -> None:
    """B asks A, which the cut names, and who makes the view."""
    group = ViewGroup("ABCD").form()
    told = said_by(group)
    group.weather.cuts = {("D", "B"), ("D", "C")}
    sent = group.send("D", 1, UNIFORM)
    group.run(3)
    group.weather.part("ABC", "D")
    group.crash("D")
    group.weather.cuts.add(("A", "B"))
    group.world.clock.after(2600, group.weather.cuts.discard, ("A", "B"))
    assert group.run_until(group.is_one, 8000)
    assert set(told) == {
        *("B>A want of D", "C>A want of D"),
        *("A>B forwarded of D", "A>C forwarded of D"),
    }
    check_all_have(group, "ABC", sent)


def check_all_have(group: ViewGroup, names: str, sent: list[bytes]) -> None:
    """In the view before this one."""
    sender = next(name for name in "CD" if sent[0].decode().startswith(name))
    for name in names:
        me = group.node(name).me
        group.run(2)
        before = group.observed.views_of(me)[-2]
        assert group.observed.got(me, before.id, origin(group, sender, UNIFORM)) == sent
    assert group.observed.violations() == []


def test_who_flushes_says_what_it_lacks() -> None:
    group = ViewGroup("ABC").form()
    group.weather.cuts = {("C", "B")}
    group.send("C", 2)
    group.run(3)
    group.weather.cuts = {("C", "B"), ("B", "C")}
    group.leave("C")
    process = group.process("B")
    streams = streams_of(process.node)
    assert group.run_until(lambda: streams.standing is Standing.FLUSHING, 100)
    assert "waits for this member to get C/fifo up to 2" in " ".join(
        process.node.explain(process.now)
    )
    process.node.check_invariants()


# Data of this view and of the next


def data(count: int, first: int = 1) -> Data:
    return Data(FIFO, first, [b"%d" % (first + n) for n in range(count)])


class Flushing:
    """B is in the middle of a change of A, B, C and D, and D does not come along; C has sent two
    messages, of which B has none."""

    def __init__(self, group: ViewGroup) -> None:
        process = group.process("B")
        self.node, self.now = process.node, process.now
        self.streams, self.out = streams_of(process.node), Effects()
        assert self.node.view is not None
        self.view, self.id = self.node.view, later(self.node)
        self._sender = group.node("C").me
        freeze(self.node, self.now)

    def hear(self, what: Data, *, tag: int | None = None) -> None:
        said_in = tag_of(self.view.id) if tag is None else tag
        self.streams.receive(self._sender, [InView(said_in), what], self.now, self.out)

    def flush(self, cut: int = 2) -> None:
        members = self.view.members[:3]
        cuts = {Origin(who, stream): 0 for who in members for stream in (FIFO, UNIFORM)}
        cuts[Origin(self._sender, FIFO)] = cut
        sources = {origin: origin.sender for origin in cuts}
        part = Part(self.view.id, members, cuts, sources)
        self.streams.handle_signal(Flush(self.id, part), self.now, self.out)

    @property
    def wants(self) -> int:
        return sum(isinstance(frame, Want) for _, frame in self.out.frames)

    @property
    def held(self) -> int:
        return self.streams.windows()[Origin(self._sender, FIFO)].received


@pytest.fixture
def flushing() -> Flushing:
    return Flushing(ViewGroup("ABCD").form())


def test_what_comes_while_frozen_is_set_aside_and_not_fetched_again(flushing: Flushing) -> None:
    flushing.hear(data(2))
    assert flushing.held == 0
    assert flushing.streams.stats()["set_aside"] == 1
    flushing.flush()
    assert flushing.held == 2
    assert flushing.wants == 0
    assert flushing.out.signals.pop() == CutReached(flushing.id)


def test_what_comes_while_it_flushes_counts_up_to_the_cut(flushing: Flushing) -> None:
    flushing.flush()
    assert flushing.wants == 1
    flushing.hear(data(1))
    assert flushing.streams.standing is Standing.FLUSHING
    flushing.hear(data(3))
    assert flushing.held == 2
    assert flushing.streams.standing is Standing.FLUSHED
    flushing.hear(data(1, first=3))
    assert flushing.held == 2


def test_what_is_set_aside_is_bounded(flushing: Flushing) -> None:
    for first in range(1, EARLY_MAX + 2):
        flushing.hear(data(1, first))
    assert flushing.streams.stats()["set_aside"] == EARLY_MAX
    assert flushing.streams.early_dropped == 1


def test_what_bears_the_tag_of_no_view_of_ours_is_refused(flushing: Flushing) -> None:
    before = flushing.streams.refused
    flushing.hear(data(1), tag=4711)
    assert flushing.streams.refused == before + 1
    assert flushing.streams.stats()["set_aside"] == 0


def test_data_of_the_view_that_was_flushed_install_it_and_are_delivered_in_it() -> None:
    group = ViewGroup("ABCD").form()
    group.weather.cuts = {("A", "B")}
    group.leave("D")
    group.run(2)  # the proposal is lost to B: it is asked again
    group.weather.cuts.clear()
    streams = streams_of(group.node("B"))
    assert group.run_until(lambda: streams.standing is Standing.FLUSHED, 200)
    group.weather.cuts = {("A", "B")}
    assert group.run_until(lambda: len(group.node("C").view or ()) == 3, 200)
    told = said_by(group)
    sent = group.send("C", 2)
    group.run(1)
    me, view = group.node("B").me, group.node("C").view
    assert view is not None
    assert group.observed.got(me, view.id, origin(group, "C")) == sent
    assert told == []
    assert group.observed.violations() == []


def test_who_is_closed_heeds_no_change(flushing: Flushing) -> None:
    flushing.streams.close("closed", flushing.now, flushing.out)
    assert isinstance(flushing.out.events[-1], Closed)
    flushing.streams.handle_signal(Freeze(flushing.id, ()), flushing.now, flushing.out)
    assert flushing.streams.standing is Standing.OPEN
    others = View(flushing.id, flushing.view.members[2:])
    begin = Begin(others, cut_between(flushing.view, others, flushing.node.me, {}))
    flushing.streams.handle_signal(begin, flushing.now, flushing.out)
    assert len(flushing.out.events) == 1


def test_what_is_passed_on_does_not_change_with_the_buffer_that_it_came_in() -> None:
    """A proposer passes an answer on, and receives something else before that leaves."""
    group = ViewGroup("ABC").form()
    a, b, c = (group.node(name).me for name in "ABC")
    node = group.node("A")
    out = freeze(node, 0)
    answer = Forwarded(later(node), b, Data(UNIFORM, 1, [b"first", b"next"]), c)
    (datagram,) = Codec("g", b, 1000).pack([answer], a)
    buffer = bytearray(datagram)
    _, frames = Codec("g", a, 1000).unpack(memoryview(buffer))
    refused = streams_of(node).refused
    streams_of(node).receive(b, frames, 0, out)
    assert streams_of(node).refused == refused
    buffer[:] = b"x" * len(buffer)
    ((dest, passed),) = out.frames
    assert dest == c
    assert isinstance(passed, Forwarded)
    assert passed.data.payloads == [b"first", b"next"]
