"""Leaving ends in time, waits for nobody who is gone already, and loses no message of one's own."""

from __future__ import annotations

import pytest

from ringcast.config import MembershipConfig, StabilityConfig, UnicastConfig
from ringcast.core.effects import Effects
from ringcast.events import Closed, Delivered, Undeliverable
from ringcast.model import Address, Member, Stream, View, ViewId
from ringcast.protocols.unicast import ReliableUnicast
from ringcast.wire.frames import Leave, UnicastAck, ViewAck, ViewIs
from support.membership import Town

A, B, C = (Member(Address("127.0.0.1", 7800 + n), n, name) for n, name in enumerate("ABC", 1))

HASTY = MembershipConfig(leave_timeout_s=1.0)
"""Over before anybody is suspected: nobody is left out in the meantime."""


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
    town = Town()
    town.form("ABC")
    b, c = town.nodes["B"], town.nodes["C"].me
    town.crash("C")
    assert b.send([b"into the void"], town.now, to=c) == 1
    town.run_until_agreed("AB")
    assert not b.unicast.senders[c].is_acked
    town.leave("B")
    assert town.run_until(lambda: "B" not in town.nodes, within=5) < 0.2
    undeliverable, closed = town.events[b.me][-2:]
    assert isinstance(undeliverable, Undeliverable)
    assert (undeliverable.to, undeliverable.first, undeliverable.last) == (c, 1, 1)
    assert isinstance(closed, Closed)
    assert closed.reason == "left"


def test_who_leaves_goes_with_the_view_that_leaves_out_who_held_it_up() -> None:
    town = Town()
    town.form("AB")
    a = town.nodes["A"]
    town.crash("B")
    town.send("A", b"into the void")
    town.stopped.add("A")  # drivers that move no message: nobody reads any more
    town.leave("A")
    town.run_until(lambda: len(a.view or ()) == 1, within=5)
    assert town.closed(a.me)[0].reason == "left"  # in the same step: nothing else may happen


# How long it may take


def time_to_leave(town: Town, name: str) -> float:
    town.leave(name)
    return town.run_until(lambda: name not in town.nodes, within=10)


@pytest.mark.parametrize("name", ["A", "C"], ids=["coordinator", "member"])
def test_in_time_if_nobody_answers_the_goodbye(name: str) -> None:
    town = Town(membership=HASTY)
    town.form("ABC")
    town.lose = lambda sent: (
        name in (sent.source, sent.dest)
        and (sent.has(Leave) or sent.has(ViewIs) or sent.has(ViewAck))
    )
    assert 0.5 < time_to_leave(town, name) <= HASTY.leave_timeout_s


@pytest.mark.parametrize("name", ["A", "C"], ids=["coordinator", "member"])
def test_in_time_if_others_take_nothing(name: str) -> None:
    town = Town(membership=HASTY)
    town.form("ABC")
    town.stopped.add("B")
    leaver = town.nodes[name].me
    town.send(name, b"1", b"2")
    assert time_to_leave(town, name) <= HASTY.leave_timeout_s
    ((_, first, last),) = town.closed(leaver)[0].unacked
    assert (first, last) == (1, 2)
    assert town.run_until_agreed("ABC".replace(name, ""), within=1) < 0.2  # they were told


@pytest.mark.parametrize("name", ["A", "C"], ids=["coordinator", "member"])
def test_in_time_if_nobody_is_heard_at_all(name: str) -> None:
    town = Town(membership=HASTY)
    town.form("ABC")
    town.send(name, b"1", b"2")
    town.part(name, "ABC".replace(name, ""))
    assert 0.5 < time_to_leave(town, name) <= HASTY.leave_timeout_s


@pytest.mark.parametrize("left_s", [0.1, 0.3, 0.6])
@pytest.mark.parametrize("name", ["A", "C"], ids=["coordinator", "member"])
def test_in_time_if_some_of_it_has_passed_already(name: str, left_s: float) -> None:
    town = Town(membership=HASTY)
    town.form("ABC")
    town.stopped.add("B")
    town.send(name, b"1", b"2")
    town.leave(name, town.now + round(left_s * 1e9))
    assert town.run_until(lambda: name not in town.nodes, within=10) <= left_s
    assert town.run_until_agreed("ABC".replace(name, ""), within=1) < 0.2  # they were told


# One's own messages


def own_messages(town: Town, leaver: Member) -> list[bytes]:
    """What the leaver has got of what it sent, if Closed was the last that it was told."""
    assert [type(event) for event in town.events[leaver]].index(Closed) == (
        len(town.events[leaver]) - 1
    )
    return town.delivered(leaver, leaver)


@pytest.mark.parametrize("reports", [False, True], ids=["acks", "reports"])
@pytest.mark.parametrize("stream", [Stream.FIFO, Stream.UNIFORM])
@pytest.mark.parametrize("name", ["A", "C"], ids=["coordinator", "member"])
def test_who_leaves_gets_the_rest_of_its_own_messages(
    name: str, stream: Stream, reports: bool
) -> None:
    config = {"stability": StabilityConfig()} if reports else {}
    town = Town(streams=(Stream.FIFO, Stream.UNIFORM), **config)
    town.form("ABC")
    node = town.nodes[name]
    sent = [b"1", b"2", bytes(5000), b"4"]
    assert town.send(name, sent[0], stream=stream) == 1
    town.run(1)
    town.stopped.add(name)  # its application reads no more until it is out
    assert town.send(name, *sent[1:], stream=stream) == 3
    town.leave(name)
    town.run_until(lambda: name not in town.nodes, within=5)
    assert own_messages(town, node.me) == sent
    assert town.closed(node.me) == [Closed("left")]
    assert node.take_events(1000, town.now) == []
    for other in "ABC".replace(name, ""):
        assert town.delivered(town.nodes[other].me, node.me) == sent


def test_who_leaves_an_empty_group_gets_its_own_messages_at_once() -> None:
    town = Town()
    town.form("A")
    a = town.nodes["A"]
    town.stopped.add("A")
    town.send("A", b"1", b"2")
    town.leave("A")
    assert own_messages(town, a.me) == [b"1", b"2"]


def test_who_leaves_gets_what_it_has_sent_to_itself_alone() -> None:
    town = Town()
    town.form("A")
    a = town.nodes["A"]
    assert a.send([b"1", b"2"], town.now, to=a.me) == 2
    a.leave(town.now)
    delivered, closed = a.take_events(0, town.now)
    assert isinstance(delivered, Delivered)
    assert delivered.run.payloads == [b"1", b"2"]
    assert closed == Closed("left")


@pytest.mark.parametrize("stream", [Stream.FIFO, Stream.UNIFORM])
def test_who_leaves_too_early_gets_what_the_others_have_taken(stream: Stream) -> None:
    town = Town(membership=HASTY, streams=(Stream.FIFO, Stream.UNIFORM))
    town.form("ABC")
    a = town.nodes["A"].me
    town.stopped.add("A")
    town.send("A", b"1", b"2", stream=stream)
    town.run(0.1)
    town.stopped.add("B")
    town.send("A", b"3", b"4", stream=stream)
    time_to_leave(town, "A")
    assert own_messages(town, a) == [b"1", b"2"]
    assert town.closed(a)[0].unacked == ((stream, 3, 4),)


@pytest.mark.parametrize("reports", [False, True], ids=["acks", "reports"])
@pytest.mark.parametrize("stream", [Stream.FIFO, Stream.UNIFORM])
@pytest.mark.parametrize("name", ["A", "B"], ids=["coordinator", "member"])
@pytest.mark.parametrize("wait_ms", range(2, 24, 3))
def test_who_leaves_while_another_joins_gets_what_those_before_it_have_taken(
    wait_ms: int, name: str, stream: Stream, reports: bool
) -> None:
    config = {"stability": StabilityConfig()} if reports else {}
    town = Town(streams=(Stream.FIFO, Stream.UNIFORM), **config)
    town.form("ABC")
    me = town.nodes[name].me
    town.stopped.add(name)
    town.send(name, b"1", b"2", stream=stream)
    town.run(0.3)
    town.start("D")
    town.run(wait_ms / 1000)
    town.leave(name)
    town.run_until(lambda: bool(town.closed(me)), within=6)
    assert own_messages(town, me) == [b"1", b"2"]


def test_what_others_have_sent_is_not_taken_for_an_application_that_leaves() -> None:
    town = Town()
    town.form("AB")
    a, b = town.nodes["A"], town.nodes["B"]
    town.stopped.add("A")
    town.send("A", b"mine")
    town.send("B", b"to all")
    assert b.send([b"to one"], town.now, to=a.me) == 1
    town.run(0.1)
    assert a.has_ready
    town.leave("A")
    town.run_until(lambda: "A" not in town.nodes, within=5)
    assert town.delivered(a.me, a.me) == [b"mine"]
    assert town.delivered(a.me, b.me) == []
    town.run(0.1)
    assert not b.unicast.senders[a.me].is_acked  # so B is told that it may not have been read


@pytest.mark.parametrize("is_leaving", [False, True])
def test_who_is_gone_at_once_gets_no_more_than_it_has_taken_unless_it_was_leaving(
    is_leaving: bool,
) -> None:
    town = Town()
    town.form("AB")
    a = town.nodes["A"]
    town.stopped.add("A")
    town.send("A", b"1")
    town.run(0.1)
    if is_leaving:
        town.part("A", "B")
        town.leave("A")
    a.close(town.now)
    kinds = [type(event) for event in a.take_events(0, town.now)]
    assert kinds == ([Delivered, Closed] if is_leaving else [Closed])


def test_who_is_left_out_gets_no_more_than_it_has_taken() -> None:
    town = Town()
    town.form("ABC")
    c = town.nodes["C"].me
    town.stopped.add("C")
    town.send("C", b"1")
    town.run(0.1)
    town.pause("C", 20)
    town.run_until(lambda: bool(town.closed(c)), within=5)
    assert town.delivered(c, c) == []
