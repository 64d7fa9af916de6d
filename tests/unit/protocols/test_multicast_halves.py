"""Streams across views: what waits gets its seqno in the next, a large message may start over."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ringcast.config import GroupConfig, MulticastConfig, StabilityConfig
from ringcast.core.effects import Effects, Unreachable
from ringcast.core.view_change import Freeze
from ringcast.events import Delivered, Writable
from ringcast.model import Origin, Stream, ViewId
from ringcast.protocols.multicast_sender import MulticastSender
from ringcast.wire.frames import Ack
from support.view_group import SMALL, ViewGroup

if TYPE_CHECKING:
    from ringcast.events import Event

FIFO, UNIFORM = Stream.FIFO, Stream.UNIFORM
NARROW = GroupConfig(
    group="g", multicast=MulticastConfig(capacity=2, datagram_bytes=1000, window_bytes=1 << 16)
)
LARGE = 9_000


def got(group: ViewGroup, name: str, sender: str, stream: Stream = FIFO) -> list[bytes]:
    """In all views."""
    me, origin = group.node(name).me, Origin(group.node(sender).me, stream)
    views = group.observed.views_of(me)
    return [payload for view in views for payload in group.observed.got(me, view.id, origin)]


@pytest.mark.parametrize("stream", [FIFO, UNIFORM])
def test_a_send_that_waits_while_frozen_is_told_of_room_and_belongs_to_the_next_view(
    stream: Stream,
) -> None:
    group = ViewGroup("ABC").form()
    sent = group.send("A", 1, stream)
    group.run(10)
    group.leave("C")
    assert group.run_until(lambda: group.layer("A").change.is_frozen, 100)
    process = group.process("A")
    seen: list[Event] = []
    process.resident._see = lambda _, event: seen.append(event)
    assert process.node.send([b"waits"], process.now, stream=stream) == 0
    assert process.node.send([b"waits"], process.now, stream=stream) == 0
    assert group.run_until(lambda: not group.layer("A").change.is_frozen, 100)
    assert seen.count(Writable()) == 1
    sent += group.send("A", 1, stream)
    group.run(100)
    assert got(group, "B", "A", stream) == sent
    assert group.observed.violations() == []


@pytest.mark.parametrize("stream", [FIFO, UNIFORM])
def test_what_was_held_before_the_freeze_may_be_read_while_frozen(stream: Stream) -> None:
    group = ViewGroup("ABC").form()
    group.read("A", 0)
    group.read("B", 0)
    sent = group.send("A", 2, stream)
    group.run(10)
    for name in "AB":
        process = group.process(name)
        view = process.node.view
        assert view is not None
        freeze = Freeze(ViewId(view.coordinator, view.counter + 1), view.members)
        process.node.multicast.handle_signal(freeze, process.now, Effects())
        events = process.node.take_events(10, process.now)
        assert [e.run.payloads for e in events if isinstance(e, Delivered)] == [sent]
        process.node.multicast.check_invariants()
        for half in process.node.multicast._boxes():
            if isinstance(half, MulticastSender):
                half.check_invariants(view)
            else:
                half.check_invariants()


def test_who_has_slept_blames_nobody_for_the_acks_that_it_has_not_heard() -> None:
    group = ViewGroup("AB").form()
    group.weather.part("A", "B")
    group.send("A")
    group.run(100)
    sending = group.node("A").multicast.senders[FIFO]
    now = group.process("A").now

    def blamed(at: int) -> list[Unreachable]:
        out = Effects()
        sending.handle_timeout(at, out)
        return [signal for signal in out.signals if isinstance(signal, Unreachable)]

    tick = round(MulticastConfig().xmit_interval_s * 1e9)
    assert blamed(now + 20 * tick) == []
    assert [blamed(now + n * tick) for n in (21, 22, 23)] == [[], [], []]
    assert blamed(now + 24 * tick) == [Unreachable(group.node("B").me, 4 * tick)]


def test_acks_that_are_lost_for_a_while_leave_nobody_out() -> None:
    """However soon the sender asks for them again."""
    config = replace(SMALL, multicast=replace(SMALL.multicast, xmit_interval_s=0.04))
    group = ViewGroup("AB", config=config).form()
    view = group.layer("A").view
    group.is_lost = lambda source, dest, frames: source == "B" and Ack in frames
    group.send("A")
    group.run(1_500)
    group.is_lost = None
    group.run(1_500)
    assert group.layer("A").view is view


@pytest.mark.parametrize("stream", [FIFO, UNIFORM])
def test_a_large_message_starts_over_when_somebody_new_comes(stream: Stream) -> None:
    group = ViewGroup("ABCD", config=NARROW).form("AB")
    group.read("B", 0)
    sent = group.send("A", 1, stream, LARGE)
    group.run(50)
    group.start("C")
    assert group.run_until(group.is_one, 1000)
    group.run(100)
    group.start("D")
    assert group.run_until(group.is_one, 1000)
    group.read("B")
    group.run(500)
    for name in "ABCD":
        assert got(group, name, "A", stream) == sent
    assert group.observed.violations() == []


@pytest.mark.parametrize("stream", [FIFO, UNIFORM])
def test_a_large_message_goes_on_when_nobody_new_comes(stream: Stream) -> None:
    group = ViewGroup("ABC", config=NARROW).form()
    group.read("B", 0)
    sent = group.send("A", 1, stream, LARGE)
    group.run(50)
    high = group.node("A").multicast.windows()[Origin(group.node("A").me, stream)].high
    group.crash("C")
    assert group.run_until(group.is_one, 1000)
    group.read("B")
    group.run(500)
    assert got(group, "A", "A", stream) == got(group, "B", "A", stream) == sent
    last = group.node("A").multicast.windows()[Origin(group.node("A").me, stream)].high
    assert last == -(-LARGE // group.node("A").codec.payload_bytes_max) > high


def test_who_leaves_in_the_middle_of_a_large_message_sends_it_first() -> None:
    group = ViewGroup("ABC", config=NARROW).form()
    group.read("B", 0)
    sent = group.send("C", 1, FIFO, LARGE)
    group.run(50)
    group.leave("C")
    group.run(100)
    assert group.node("C").me not in group.observed.closed
    group.read("B")
    group.run(500)
    assert group.observed.closed[group.node("C").me] == "left"
    assert got(group, "A", "C") == got(group, "B", "C") == sent


@pytest.mark.parametrize("retained", [False, True])
def test_where_members_report_a_view_counts_as_an_ack_of_all(retained: bool) -> None:
    stability = StabilityConfig(retain_delivered=retained)
    multicast = MulticastConfig(capacity=4, datagram_bytes=1000, stability=stability)
    group = ViewGroup("ABC", config=GroupConfig(group="g", multicast=multicast)).form()
    sent = group.send("A", 4)
    group.run(5)
    group.crash("C")
    assert group.run_until(group.is_one, 1000)
    for _ in range(4):
        sent += group.send("A", 4)
        group.run(500)
    assert len(sent) > 8
    assert got(group, "B", "A") == sent
    assert group.observed.violations() == []
