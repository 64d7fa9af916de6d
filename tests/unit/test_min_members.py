"""A group that is too small: nothing is sent to it, nobody is left in the dark, nothing is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ringcast.config import MEMBERS_MAX, GroupConfig, MembershipConfig, MulticastConfig
from ringcast.errors import ConfigError, GroupClosed, RingcastError, TooFewMembers, UsageError
from ringcast.events import Closed, Delivered, ViewInstalled, Writable
from ringcast.model import Address, Member, Origin, Stream, View, ViewId
from ringcast.node import Node
from ringcast.wire.codec import Codec
from ringcast.wire.frames import Ack
from ringcast.wire.limits import VIEW_MEMBERS_MAX
from support.view_group import SMALL, ViewGroup

A, B, C = (Member(Address("127.0.0.1", 7800 + n), n, name) for n, name in enumerate("ABC", 1))
SECOND = 1_000_000_000


def view(counter: int, *members: Member) -> View:
    return View(ViewId(A, counter), members)


def node(min_members: int = 3, capacity: int = 8) -> Node:
    config = GroupConfig(
        group="g",
        name="A",
        multicast=MulticastConfig(capacity=capacity, datagram_bytes=1000),
        membership=MembershipConfig(min_members=min_members),
    )
    return Node(A, config)


def highest_sent(member: Node) -> int:
    return member.multicast.highest_sent(Stream.FIFO)


# Configuration


@pytest.mark.parametrize("bad", [0, -1, MEMBERS_MAX + 1, 2.0, True, "3", None])
def test_it_is_a_number_of_members(bad: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        MembershipConfig(min_members=bad)
    rule = f"a whole number from 1 to {MEMBERS_MAX}"
    assert str(caught.value) == f"min_members = {bad!r}: must be {rule}"
    assert MembershipConfig().min_members == 1


def test_no_more_are_asked_for_than_a_view_can_have() -> None:
    assert MEMBERS_MAX == VIEW_MEMBERS_MAX
    assert MembershipConfig(min_members=MEMBERS_MAX).min_members == MEMBERS_MAX


# Refusing


def test_a_send_to_a_group_that_is_too_small_is_refused_and_takes_no_seqno() -> None:
    a = node()
    a.install_view(view(1, A, B), SECOND)
    with pytest.raises(TooFewMembers) as caught:
        a.send([b"1", b"2"], 5 * SECOND)
    few = caught.value
    assert (few.have, few.need, few.since_s, few.sent) == (2, 3, 4.0, 0)
    assert str(few) == (
        "2 of 3 members are here, 1 is missing for 4.0 s: nothing went to the group; "
        "send again when it is whole, or join with when_few='wait'"
    )
    assert isinstance(few, RingcastError)
    assert not isinstance(few, UsageError)
    assert highest_sent(a) == 0
    assert a.pending() == []
    assert not a.has_ready
    a.install_view(view(2, A, B, C), 6 * SECOND)
    assert a.send([b"1", b"2"], 6 * SECOND) == 2
    assert highest_sent(a) == 2


def test_the_error_says_what_had_been_sent() -> None:
    few = TooFewMembers(1, 3, 0.0, sent=7)
    assert str(few).startswith(
        "1 of 3 members are here, 2 are missing for 0.0 s: only the first 7 "
    )
    assert few.sent == 7


def test_just_enough_is_enough() -> None:
    a = node(min_members=2)
    a.install_view(view(1, A, B), 0)
    assert a.send([b"1"], 0) == 1
    assert not any("refused" in reason for reason in a.explain(0))
    alone = node(min_members=1)
    alone.install_view(view(1, A), 0)
    assert alone.send([b"1"], 0) == 1


def test_messages_to_one_member_are_not_affected() -> None:
    a = node()
    a.install_view(view(1, A, B), 0)
    assert a.send([b"1"], 0, to=B) == 1
    assert a.send([b"2"], 0, to=A) == 1
    assert a.unicast.senders[B].window.high == 1


def test_it_counts_from_the_first_view_that_was_too_small() -> None:
    a = node()
    a.install_view(view(1, A, B, C), 0)
    a.install_view(view(2, A, B), 10 * SECOND)
    a.install_view(view(3, A), 12 * SECOND)
    with pytest.raises(TooFewMembers) as caught:
        a.send([b"1"], 14 * SECOND)
    assert (caught.value.have, caught.value.since_s) == (1, 4.0)
    a.install_view(view(4, A, B, C), 20 * SECOND)
    a.install_view(view(5, A, B), 30 * SECOND)
    with pytest.raises(TooFewMembers) as caught:
        a.send([b"1"], 31 * SECOND)
    assert caught.value.since_s == 1.0


def test_it_is_explained_for_as_long_as_it_is_so() -> None:
    a = node()
    assert a.explain(0) == []
    a.install_view(view(1, A, B), SECOND)
    assert a.explain(5_100_000_000) == ["sends are refused: 2 of 3 members since 4.1 s"]
    a.install_view(view(2, A, B, C), 6 * SECOND)
    assert a.explain(6 * SECOND) == []


# Going on


def test_who_was_refused_is_told_when_the_group_is_whole() -> None:
    a = node()
    a.install_view(view(1, A), 0)
    for _ in range(2):
        with pytest.raises(TooFewMembers):
            a.send([b"1"], 0)
    a.install_view(view(2, A, B), 0)
    assert [type(event) for event in a.take_events(9, 0)] == [ViewInstalled, ViewInstalled]
    a.install_view(view(3, A, B, C), 0)
    assert [type(event) for event in a.take_events(9, 0)] == [ViewInstalled, Writable]
    a.install_view(view(4, A, B), 0)
    a.install_view(view(5, A, B, C), 0)
    assert Writable() not in a.take_events(9, 0)  # nobody has asked since


def test_what_was_sent_before_goes_on() -> None:
    a = node(capacity=2)
    a.install_view(view(1, A, B, C), 0)
    assert a.send([b"1", b"2", b"3"], 0) == 2
    a.install_view(view(2, A, B), 0)
    delivered = [event for event in a.take_events(9, 0) if isinstance(event, Delivered)]
    assert [event.run.payloads for event in delivered] == [[b"1", b"2"]]
    codec = Codec("g", B, 1000)
    codec.tag = a.codec.tag
    a.receive_datagrams(codec.pack([Ack(Stream.FIFO, 2, 2, 1 << 20)], A), 0)
    window = a.multicast.windows()[Origin(A, Stream.FIFO)]
    assert (window.low, window.high) == (2, 2)
    # Whoever had no room then looks again, and is told what the matter is now.
    assert a.take_events(9, 0) == [Writable()]
    with pytest.raises(TooFewMembers):
        a.send([b"3"], 0)


def test_who_is_out_of_the_group_is_told_that() -> None:
    left, closed = node(), node()
    for each in (left, closed):
        each.install_view(view(1, A, B), 0)
        with pytest.raises(TooFewMembers):
            each.send([b"1"], 0)
        each.take_events(9, 0)
    left.install_view(View(ViewId(B, 2), (B,)), 0)
    closed.close(0)
    for each in (left, closed):
        with pytest.raises(GroupClosed):
            each.send([b"1"], 0)
        assert each.explain(0) == []
        assert [type(event) for event in each.take_events(9, 0)] == [Closed]


def test_before_the_first_view_it_is_too_early_to_say() -> None:
    with pytest.raises(UsageError, match="not in a view yet"):
        node().send([b"1"], 0)


def test_a_group_that_loses_and_regains_a_member() -> None:
    """With real membership: the crash of one of three stops sends until somebody else has come."""
    config = replace(SMALL, membership=MembershipConfig(min_members=3))
    group = ViewGroup("ABCD", config=config).form("A")
    a = group.node("A")
    with pytest.raises(TooFewMembers):
        group.send("A")
    group.form("BC")
    first = group.send("A")
    group.run(500)
    group.crash("C")
    assert group.run_until(group.is_one, 5000)
    group.run(1000)
    with pytest.raises(TooFewMembers) as caught:
        group.send("A")
    assert (caught.value.have, caught.value.need) == (2, 3)
    assert caught.value.since_s == pytest.approx(1.0, abs=0.1)
    (reason,) = a.explain(group.world.clock.now)
    assert reason.startswith("sends are refused: 2 of 3 members since 1.0 s")
    assert group.events[a.me].count(Writable()) == 1
    group.form("D")
    assert group.events[a.me].count(Writable()) == 2
    second = group.send("A")
    group.run(500)
    assert group.delivered(group.node("B").me, a.me) == first + second
    assert group.delivered(group.node("D").me, a.me) == second
    assert group.is_quiet()
