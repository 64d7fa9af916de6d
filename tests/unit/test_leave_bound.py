"""Leaving ends in time, waits for nobody who is gone already, and loses no message of one's own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ringcast.config import MembershipConfig, StabilityConfig, UnicastConfig
from ringcast.core.effects import Effects
from ringcast.events import Closed, Delivered, Undeliverable, ViewInstalled
from ringcast.model import Address, Member, Stream, View, ViewId
from ringcast.protocols.unicast import ReliableUnicast
from ringcast.wire.changes import Propose
from ringcast.wire.frames import Leave, UnicastAck
from support.view_group import SMALL, ViewGroup

if TYPE_CHECKING:
    from ringcast.events import Event

A, B, C = (Member(Address("127.0.0.1", 7800 + n), n, name) for n, name in enumerate("ABC", 1))

HASTY = replace(SMALL, membership=MembershipConfig(leave_timeout_s=1.0))
"""Over before anybody is suspected: nobody is left out in the meantime."""

EITHER = pytest.mark.parametrize("name", ["A", "C"], ids=["coordinator", "member"])


# Who is waited for


def test_only_members_of_the_view_are_waited_for() -> None:
    layer = ReliableUnicast(
        A, UnicastConfig(), fragment_bytes=900, datagram_bytes=1000, max_message_bytes=1 << 20
    )
    out = Effects()
    layer.group.change(View(ViewId(A, 1), (A, B, C)), [layer], 0, out)
    layer.send([b"1"], B, 0, out)
    layer.send([b"1", b"2"], C, 0, out)
    assert not layer.is_flushed
    layer.group.change(View(ViewId(A, 2), (A, B)), [layer], 0, out)
    assert not layer.is_flushed
    layer.receive(B, [UnicastAck(layer.senders[B].conn, 1, 1 << 20)], 0, out)
    assert layer.is_flushed
    assert not layer.senders[C].is_acked
    layer.group.close("left", [layer], 0, out)
    (event,) = out.events
    assert isinstance(event, Undeliverable)
    assert (event.to, event.first, event.last) == (C, 1, 2)


def test_who_leaves_does_not_wait_for_the_dead() -> None:
    group = ViewGroup("ABC").form()
    b, c = group.node("B"), group.node("C").me
    group.crash("C")
    assert b.send([b"into the void"], group.world.clock.now, to=c) == 1
    assert group.run_until(group.is_one, 5_000)
    assert not b.unicast.senders[c].is_acked
    assert time_to_leave(group, "B") < 20
    undeliverable, closed = group.events[b.me][-2:]
    assert isinstance(undeliverable, Undeliverable)
    assert (undeliverable.to, undeliverable.first, undeliverable.last) == (c, 1, 1)
    assert closed == Closed("left")


def test_who_leaves_goes_with_the_view_that_leaves_out_who_held_it_up() -> None:
    """What is left of a large message waits for the dead one's acks."""
    group = ViewGroup("AB", hint_ms=None).form()
    group.crash("B")
    group.send("A", size=60_000)
    group.leave("A")
    assert not group.node("A").is_flushed
    assert 500 < time_to_leave(group, "A") < 5_000
    closed = closed_at(group, "A")
    assert (closed.reason, closed.unsent_bytes) == ("left", 0)


# How long it may take


def time_to_leave(group: ViewGroup, name: str, within_s: float | None = None) -> float:
    """In milliseconds."""
    begun = group.now_ms
    group.leave(name, within_s)
    assert group.run_until(lambda: not group.process(name).is_up, 10_000)
    return group.now_ms - begun


def closed_at(group: ViewGroup, name: str) -> Closed:
    """The last that it was told."""
    closed = group.events[group.node(name).me][-1]
    assert isinstance(closed, Closed)
    return closed


@EITHER
@pytest.mark.parametrize("left_s", [None, 0.1, 0.3])
def test_in_time_if_nobody_answers_the_goodbye(name: str, left_s: float | None) -> None:
    group = ViewGroup("ABC", config=HASTY).form()
    group.is_lost = lambda source, _, kinds: source == name and bool({Leave, Propose} & kinds)
    allowed = 1000 * (left_s or HASTY.membership.leave_timeout_s)
    assert time_to_leave(group, name, left_s) <= allowed
    # A coordinator goes on alone if it has time to, and leaves that view.
    goes_alone = name == "A" and allowed == 1000
    assert closed_at(group, name).reason == "left" + " without an answer" * (not goes_alone)


@EITHER
def test_in_time_if_nobody_is_heard_at_all(name: str) -> None:
    group = ViewGroup("ABC", config=HASTY).form()
    group.weather.part(name, "ABC".replace(name, ""))
    group.send(name, 2)
    assert 500 <= time_to_leave(group, name) <= 1000


@EITHER
@pytest.mark.parametrize("left_s", [None, 0.1, 0.3])
def test_in_time_if_a_large_message_finds_no_room(name: str, left_s: float | None) -> None:
    group = ViewGroup("ABC", config=HASTY).form()
    group.read("B", 0)
    group.send(name, size=60_000)
    allowed = 1000 * (left_s or HASTY.membership.leave_timeout_s)
    assert allowed / 2 < time_to_leave(group, name, left_s) <= allowed
    assert closed_at(group, name).unsent_bytes > 0
    assert group.run_until(group.is_one, 20)  # they were told


@EITHER
def test_at_once_if_others_read_nothing(name: str) -> None:
    """They hold it all when the view begins without it, and read it later."""
    group = ViewGroup("ABC", config=HASTY).form()
    group.read("B", 0)
    sent = group.send(name, 2)
    assert time_to_leave(group, name) <= 10
    assert closed_at(group, name) == Closed("left")
    assert group.run_until(group.is_one, 20)
    group.read("B")
    assert group.delivered(group.node("B").me, group.node(name).me) == sent


# One's own messages


@pytest.mark.parametrize("reports", [False, True], ids=["acks", "reports"])
@pytest.mark.parametrize("stream", [Stream.FIFO, Stream.UNIFORM])
@EITHER
def test_who_leaves_gets_the_rest_of_its_own_messages(
    name: str, stream: Stream, reports: bool
) -> None:
    """Its application reads no more until it is out."""
    stability = StabilityConfig() if reports else None
    config = replace(SMALL, multicast=replace(SMALL.multicast, stability=stability))
    group = ViewGroup("ABC", config=config).form()
    node = group.node(name)
    sent = group.send(name, stream=stream)
    group.run(1000)
    group.read(name, 0)
    sent += group.send(name, 2, stream)
    sent += group.send(name, 1, stream, size=5000)
    time_to_leave(group, name)
    assert closed_at(group, name) == Closed("left")
    assert group.delivered(node.me, node.me) == sent
    assert node.take_events(1000, group.world.clock.now) == []
    for other in "ABC".replace(name, ""):
        assert group.delivered(group.node(other).me, node.me) == sent


@pytest.mark.parametrize("wait_ms", range(0, 24, 2))
@EITHER
def test_also_while_another_joins(name: str, wait_ms: int) -> None:
    group = ViewGroup("ABCD").form("ABC")
    me = group.node(name).me
    group.read(name, 0)
    sent = group.send(name, 2) + group.send(name, 1, Stream.UNIFORM)
    group.start("D")
    group.run(wait_ms)
    time_to_leave(group, name)
    got = group.delivered(me, me)
    view = [event for event in group.events[me] if isinstance(event, ViewInstalled)][-1].view
    # An application that has not read up to the view of the joiner gets nothing out of order.
    assert sorted(got) == sorted(sent) or group.node(name).view != view


def test_who_leaves_alone_gets_its_own_messages_at_once() -> None:
    group = ViewGroup("A").form()
    a = group.node("A")
    group.read("A", 0)
    sent = group.send("A", 2)
    assert a.send([b"to itself"], group.world.clock.now, to=a.me) == 1
    assert time_to_leave(group, "A") == 0
    assert group.delivered(a.me, a.me) == [*sent, b"to itself"]
    assert closed_at(group, "A") == Closed("left")


@pytest.mark.parametrize("stream", [Stream.FIFO, Stream.UNIFORM])
def test_who_leaves_too_early_gets_what_the_others_have_taken(stream: Stream) -> None:
    group = ViewGroup("ABC", config=HASTY).form()
    c = group.node("C").me
    group.read("C", 0)
    taken = group.send("C", 2, stream)
    group.run(100)
    group.weather.part("C", "AB")
    group.send("C", 2, stream)
    time_to_leave(group, "C")
    assert group.delivered(c, c) == taken
    assert closed_at(group, "C").unacked == ((stream, 3, 4),)


def test_what_others_have_sent_is_not_taken_for_an_application_that_leaves() -> None:
    group = ViewGroup("AB").form()
    a, b = group.node("A"), group.node("B")
    group.read("A", 0)
    mine = group.send("A")
    group.send("B")
    assert b.send([b"to one"], group.world.clock.now, to=a.me) == 1
    group.run(100)
    assert a.has_ready
    time_to_leave(group, "A")
    assert group.delivered(a.me, a.me) == mine
    assert group.delivered(a.me, b.me) == []
    group.run(100)
    assert not b.unicast.senders[a.me].is_acked  # so B is told that it may not have been read


@pytest.mark.parametrize("is_leaving", [False, True])
def test_who_is_gone_at_once_gets_no_more_than_it_has_taken_unless_it_was_leaving(
    is_leaving: bool,
) -> None:
    group = ViewGroup("AB").form()
    a = group.node("A")
    group.read("A", 0)
    group.send("A")
    group.run(100)
    if is_leaving:
        group.weather.part("A", "B")
        group.leave("A")
    a.close(group.world.clock.now)
    kinds: list[type[Event]] = [type(event) for event in a.take_events(0, group.world.clock.now)]
    assert kinds == ([Delivered, Closed] if is_leaving else [Closed])
