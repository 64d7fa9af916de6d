"""Leaving ends in time, and waits for nobody who is gone already."""

from __future__ import annotations

import pytest

from ringcast.config import MembershipConfig, UnicastConfig
from ringcast.core.effects import Effects
from ringcast.events import Closed, Undeliverable
from ringcast.model import Address, Member, View, ViewId
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
    layer.install_view(View(ViewId(A, 1), (A, B, C)), 0, out)
    layer.send([b"1"], B, 0, out)
    layer.send([b"1", b"2"], C, 0, out)
    assert not layer.is_flushed
    layer.install_view(View(ViewId(A, 2), (A, B)), 0, out)
    assert not layer.is_flushed
    layer.receive(B, [UnicastAck(layer.senders[B].conn, 1, 1 << 20)], 0, out)
    assert layer.is_flushed
    assert not layer.senders[C].is_acked
    layer.close("left", 0, out)
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
