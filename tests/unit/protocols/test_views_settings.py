"""Settings of a group: who joins takes them, who asked for others is refused, who leads has them
taken by all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ringcast.config import MembershipConfig, StabilityConfig
from ringcast.core.effects import Left
from ringcast.core.shared import Phase
from ringcast.core.view_change import Begin
from ringcast.model import Purge, Stream, ViewId
from ringcast.protocols.views.agreement import Taken
from ringcast.settings import settings_of
from ringcast.wire import changes as wire
from support.settings import PLAIN, configured, wanted
from support.view_group import ViewGroup
from support.view_side import A, B, C, Side

if TYPE_CHECKING:
    from ringcast.model import Member
    from ringcast.settings import Settings

LEAVE_IT_OUT = "leave it out, or give all members the same"


def hello(who: Member, settings: Settings, *, is_member: bool, counter: int = 1) -> wire.Hello:
    """Of who is alone, in its group or looking for one."""
    coordinator = who if is_member else None
    return wire.Hello(settings, True, False, 1, coordinator, ViewId(who, counter), 1, (who,))


def reasons(side: Side) -> list[str]:
    return [signal.reason for signal in side.signals if isinstance(signal, Left)]


# What is asked for


def test_a_default_is_not_asked_for_and_the_same_value_given_is() -> None:
    assert PLAIN.given == frozenset()
    assert wanted(suspect_after_s=2.0) == PLAIN._replace(given=frozenset(["suspect_after_s"]))
    assert wanted(suspect_after_s=2.0).is_like(PLAIN)
    given = wanted(Purge.RETAINED, max_message_bytes=1000, interval_s=0.1)
    assert given.given == {"purge", "max_message_bytes", "interval_s"}
    kept = replace(MembershipConfig(heartbeat_s=0.1), leave_timeout_s=1.0)
    config = replace(configured(), membership=kept)
    assert settings_of(config, (Stream.FIFO,)).given == {"heartbeat_s"}


def test_what_is_taken_leaves_the_rest_of_a_configuration_as_it_is() -> None:
    mine = replace(
        configured(capacity=100_000, ack_delay_s=0.1),
        membership=MembershipConfig(leave_timeout_s=9.0, min_members=3),
    )
    theirs = wanted(Purge.RETAINED, xmit_interval_s=0.1, verify_s=1.0, interval_s=0.2)
    taken = theirs.apply_to(mine)
    assert taken.multicast.stability == StabilityConfig(interval_s=0.2)
    assert taken.multicast.capacity == taken.multicast.stability.capacity_max  # of who reports
    assert taken.multicast.ack_delay_s == 0.05  # half a tick, at the most
    assert taken.membership == replace(mine.membership, verify_s=1.0)
    assert settings_of(taken, (Stream.FIFO,)).is_like(theirs)
    assert PLAIN.apply_to(taken).multicast.stability is None


@pytest.mark.parametrize(
    ("asked", "has", "why"),
    [
        (
            {"suspect_after_s": 3.0},
            {"suspect_after_s": 1.0},
            "suspect_after_s = 1, and B asked for 3",
        ),
        (
            {"max_message_bytes": 64 << 20},
            {"max_message_bytes": 10**7},
            "max_message_bytes = 10000000, and B asked for 67108864",
        ),
        ({"heartbeat_s": 0.125}, {}, "heartbeat_s = 0.25, and B asked for 0.125"),
    ],
)
def test_both_values_are_told(asked: dict[str, Any], has: dict[str, Any], why: str) -> None:
    assert wanted(**asked).against(wanted(**has), "B", "A") == [f"A has {why}: {LEAVE_IT_OUT}"]
    assert wanted().against(wanted(**has), "B", "A") == []


def test_an_interval_of_reports_matters_where_there_are_reports() -> None:
    often, seldom = wanted(Purge.STABILITY, interval_s=0.1), wanted(Purge.STABILITY)
    assert seldom.against(often, "B", "A") == []
    assert often.against(seldom, "B", "A") == [
        f"A has interval_s = 0.05, and B asked for 0.1: {LEAVE_IT_OUT}"
    ]
    assert len(often.against(PLAIN, "B", "A")) == 1  # only that it purges otherwise


# Who looks


@pytest.mark.parametrize("is_asking", [False, True])
def test_who_asked_for_something_else_does_not_join(is_asking: bool) -> None:
    side = Side(B, suspect_after_s=3.0)
    side.said(wire.Hello)
    group = replace(hello(A, wanted(suspect_after_s=1.0), is_member=True), is_asking=is_asking)
    side.hear(A, group)
    assert [dest for dest, _ in side.said(wire.Hello)] == [A] * is_asking
    side.hear(A, wire.Propose(ViewId(A, 5), (A, B), group.settings))
    assert side.said(wire.State) == []
    side.pass_time(20)  # at once: not after all that discovery may take
    assert reasons(side) == [side.layer.agreement.refusal]
    assert side.layer.agreement.refusal == (
        f"A at h:1 has suspect_after_s = 1, and this member asked for 3: {LEAVE_IT_OUT}"
    )


def test_who_purges_otherwise_does_not_join() -> None:
    side = Side(B, Purge.STABILITY)
    side.hear(A, hello(A, wanted(Purge.RETAINED), is_member=True))
    side.pass_time(20)
    assert reasons(side) == [
        "A at h:1 purges by stability with retained messages, and this member by stability: give "
        "all members the same `stability` and `retain`"
    ]


def test_who_asked_for_nothing_takes_what_the_group_has() -> None:
    side = Side(B)
    group = wanted(Purge.RETAINED, suspect_after_s=1.0)
    side.hear(A, hello(A, group, is_member=True))
    side.settings = group
    side.join(ViewId(A, 5), A, B)
    layer = side.layer
    assert layer.agreement.settings == group
    assert layer.config.suspect_after_s == 1.0
    assert layer.agreement.taken == [
        Taken("suspect_after_s", 2.0, 1.0, was_given=False),
        Taken("purge", "acks", "stability with retained messages", was_given=False),
    ]
    assert [signal.settings for signal in side.signals if isinstance(signal, Begin)] == [group]
    side.join(ViewId(A, 6), A, B)
    assert side.signals[-1] == replace(side.signals[-1], settings=None)  # they are as before


def test_what_it_was_let_into_and_came_to_nothing_leaves_no_settings() -> None:
    side = Side(B)
    side.settings = wanted(suspect_after_s=1.0)
    side.flush(ViewId(A, 5), A, B)
    side.pass_time(5000)  # A is gone
    assert side.layer.phase is Phase.MEMBER
    assert side.layer.agreement.settings == PLAIN


def test_of_two_that_look_who_asked_for_something_leads() -> None:
    plain, given = Side(A), Side(B, suspect_after_s=1.0)
    plain.said(wire.Hello)
    plain.hear(B, hello(B, given.settings, is_member=False))
    ((dest, told),) = plain.said(wire.Hello)
    assert dest == B
    given.hear(A, told)
    given.pass_time(15)
    assert [dest for dest, _ in given.said(wire.Propose)] == [A]


def test_of_two_that_asked_for_different_things_one_starts_and_the_other_is_refused() -> None:
    first, second = Side(A, suspect_after_s=1.0), Side(B, suspect_after_s=3.0)
    for _ in range(10):
        first.hear(B, hello(B, second.settings, is_member=False))
        second.hear(A, hello(A, first.settings, is_member=False))
        first.pass_time(100)
        second.pass_time(100)
    assert first.layer.started_alone
    assert second.layer.phase is Phase.LOOKING  # the other one is to begin
    second.hear(A, hello(A, first.settings, is_member=True))
    second.pass_time(20)
    assert reasons(second) == [second.layer.agreement.refusal]


def test_who_asked_for_something_else_starts_when_the_rival_is_gone() -> None:
    side = Side(B, suspect_after_s=3.0)
    side.hear(A, hello(A, wanted(suspect_after_s=1.0), is_member=False))
    side.pass_time(2000)
    assert side.layer.started_alone


# The group


def test_a_group_leaves_alone_who_asked_for_something_else_and_says_so() -> None:
    side = Side(A, suspect_after_s=1.0)
    side.pass_time(300)
    side.said(wire.Hello)
    side.hear(B, hello(B, wanted(suspect_after_s=3.0), is_member=False))
    ((dest, told),) = side.said(wire.Hello)
    assert dest == B
    assert isinstance(told, wire.Hello)
    assert told.settings.is_like(side.settings)
    side.pass_time(200)
    assert side.said(wire.Propose) == []
    assert side.layer.stats()["incompatible_peers"] == 1
    why = f"this group has suspect_after_s = 1, and B at h:2 asked for 3: {LEAVE_IT_OUT}"
    assert side.layer.explain(side.now) == [f"{why}; left alone, heard 0.2 s ago"]
    side.pass_time(60_000)
    assert side.layer.explain(side.now) == []


@pytest.mark.parametrize(
    ("theirs", "why"),
    [
        (
            wanted(Purge.RETAINED),
            "purges by acks, and B at h:2 by stability with retained messages",
        ),
        (
            wanted(streams=(Stream.FIFO, Stream.UNIFORM)),
            "has the streams fifo, and B at h:2 fifo and uniform",
        ),
    ],
)
def test_groups_that_differ_too_much_stay_apart(theirs: Settings, why: str) -> None:
    side = Side(A)
    side.pass_time(300)
    side.hear(B, hello(B, theirs, is_member=True, counter=3))
    side.hear(B, wire.Propose(ViewId(B, 5), (B, A), theirs))
    assert side.said(wire.State) == []
    (line,) = side.layer.explain(side.now)
    assert line.startswith(f"this group {why}: give all members the same")


def test_of_groups_that_come_together_the_settings_of_the_better_count() -> None:
    side = Side(B, suspect_after_s=3.0)
    side.pass_time(300)
    better = wanted(suspect_after_s=1.0)
    side.hear(A, hello(A, better, is_member=True, counter=3))
    side.settings = better
    side.join(ViewId(A, 5), A, B, C)
    assert side.layer.agreement.settings.is_like(better)
    assert side.layer.agreement.taken == [Taken("suspect_after_s", 3.0, 1.0, was_given=True)]


# Whole members


def start(group: ViewGroup, name: str, **given: Any) -> None:
    """A member that was given these."""
    config, group.config = group.config, replace(group.config, membership=MembershipConfig(**given))
    group.start(name)
    group.config = config


def test_a_member_watches_as_its_group_does() -> None:
    """One with defaults in a group that suspects late: nobody is suspected early."""
    group = ViewGroup("ABC")
    for name in "AB":
        start(group, name, suspect_after_s=20.0, heartbeat_s=5.0, verify_s=3.0)
    start(group, "C")
    assert group.run_until(group.is_one, 5000)
    for name in "ABC":
        membership = group.node(name).config.membership
        assert (membership.suspect_after_s, membership.heartbeat_s) == (20.0, 5.0)
        detector = group.node(name).detector
        assert detector is not None
        before = detector.heartbeats_sent
        group.run(11_000)
        assert detector.heartbeats_sent - before <= 3 * len("ABC")
        assert detector.suspicions == detector.verifications == 0


def test_what_a_group_may_send_is_what_its_newest_member_may() -> None:
    small = replace(
        ViewGroup("A").config,
        multicast=replace(ViewGroup("A").config.multicast, max_message_bytes=2000),
    )
    group = ViewGroup("AB", config=small)
    group.start("A")
    group.run(1000)
    group.config = ViewGroup("A").config
    group.start("B")
    assert group.run_until(group.is_one, 5000)
    assert group.node("B").config.multicast.max_message_bytes == 2000
    assert group.send("B", 1, size=2000)
    assert group.send("B", 1, size=2001) == []  # a usage error: nobody would take it


@pytest.mark.parametrize("purge", [Purge.STABILITY, Purge.RETAINED])
def test_who_joins_purges_as_its_group_does(purge: Purge) -> None:
    stability = StabilityConfig(retain_delivered=purge is Purge.RETAINED, interval_s=0.02)
    plain = ViewGroup("A").config
    group = ViewGroup(
        "ABC",
        config=replace(plain, multicast=replace(plain.multicast, stability=stability)),
    )
    group.form("AB")
    group.config = plain
    group.start("C")
    assert group.run_until(group.is_one, 5000)
    node = group.node("C")
    assert node.config.multicast.stability == stability
    for name in "ABC":
        assert group.send(name, 10)
    assert group.run_until(group.is_quiet, 5000), group.waits()
    assert group.undelivered() == []
    assert node.multicast.rounds is not None
    assert node.multicast.rounds.reports_sent


def test_parts_that_come_together_do_as_the_better_part_does() -> None:
    """Two of them wait longer before they suspect; the group of three leads."""
    group = ViewGroup("ABCDE")
    group.weather.part("ABC", "DE")
    for name in "ABC":
        start(group, name, suspect_after_s=1.0)
    for name in "DE":
        start(group, name, suspect_after_s=3.0)
    assert group.run_until(lambda: group.view("A") == "ABC" and group.view("D") == "DE", 5000)
    group.weather.cuts.clear()
    assert group.run_until(group.is_one, 5000)
    assert [group.node(name).config.membership.suspect_after_s for name in "ABCDE"] == [1.0] * 5
    assert [taken.was_given for taken in group.layer("E").agreement.taken] == [True]
    assert group.layer("A").agreement.taken == []
