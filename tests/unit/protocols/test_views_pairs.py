"""Pairs: of two members that cannot hear each other one has to go, and nobody else."""

from __future__ import annotations

from ringcast.model import Address, Member, View, ViewId
from ringcast.protocols.views.requests import COMPLAINTS_MAX, FORGET_NS, FRESH_NS, PROBE_NS, Pairs

A, B, C, D = (Member(Address("h", n), 1, name) for n, name in enumerate("ABCD"))
VIEW = View(ViewId(A, 2), (A, B, C, D))
AB = View(ViewId(A, 3), (A, B))


def complained(*pairs: tuple[Member, Member]) -> Pairs:
    """These complaints, for as long as it takes."""
    found = Pairs()
    for now in (0, PROBE_NS):
        for source, member in pairs:
            found.complain(source, member, now)
    return found


def test_of_two_that_complain_of_each_other_the_later_one_goes() -> None:
    assert complained((B, C), (C, B)).broken(VIEW, PROBE_NS) == C
    assert complained((C, B)).broken(VIEW, PROBE_NS) == C


def test_who_stands_in_more_complaints_goes() -> None:
    assert complained((B, C), (D, B)).broken(VIEW, PROBE_NS) == B


def test_one_complaint_is_not_enough_however_old_it_is() -> None:
    pairs = Pairs()
    pairs.complain(B, C, 0)
    pairs.complain(B, C, PROBE_NS // 2)
    assert pairs.broken(VIEW, PROBE_NS // 2) is None
    assert pairs.broken(VIEW, 2 * PROBE_NS) is None


def test_a_complaint_that_is_not_repeated_is_forgotten() -> None:
    pairs = complained((B, C))
    assert pairs.broken(VIEW, PROBE_NS + FRESH_NS) is None
    pairs.complain(B, C, PROBE_NS + FRESH_NS)
    assert pairs.broken(VIEW, PROBE_NS + FRESH_NS) is None


def test_what_members_complained_of_before_they_came_together_does_not_count() -> None:
    pairs = complained((B, C), (D, C))
    pairs.begin(View(ViewId(A, 3), (A, B, C)))
    assert pairs.broken(VIEW, PROBE_NS) == D
    pairs.begin(VIEW)
    assert pairs.broken(VIEW, PROBE_NS) is None


def test_whom_somebody_of_the_view_does_not_hear_does_not_come_in() -> None:
    pairs = complained((B, C))
    assert pairs.is_barred([C, D], AB, PROBE_NS)
    assert not pairs.is_barred([D], AB, PROBE_NS)
    assert not pairs.is_barred([C], View(ViewId(A, 3), (A, D)), PROBE_NS)
    assert not pairs.is_barred([C], AB, PROBE_NS + FRESH_NS)


def test_whom_the_coordinator_does_not_hear_either_is_no_affair_of_a_pair() -> None:
    pairs = complained((B, C), (B, D))
    pairs.miss(C, PROBE_NS)
    pairs.complain(B, C, 2 * PROBE_NS)
    assert not pairs.is_barred([C], AB, 2 * PROBE_NS)
    assert pairs.is_barred([D], AB, 2 * PROBE_NS)
    pairs.hear(C)
    pairs.complain(B, C, 2 * PROBE_NS)
    pairs.complain(B, C, 3 * PROBE_NS)
    assert pairs.is_barred([C], AB, 3 * PROBE_NS)


def test_who_is_not_heard_for_a_minute_is_forgotten() -> None:
    pairs = Pairs()
    pairs.miss(C, PROBE_NS)
    pairs.miss(C, 2 * PROBE_NS)
    pairs.forget_old(PROBE_NS + FORGET_NS - 1)
    assert pairs.unheard == {C: PROBE_NS}
    pairs.forget_old(PROBE_NS + FORGET_NS)
    assert pairs.unheard == {}


def test_complaints_are_bounded() -> None:
    pairs = Pairs()
    many = [Member(Address("h", 100 + n), 1, str(n)) for n in range(COMPLAINTS_MAX)]
    for who in many:
        pairs.complain(B, who, 0)
    for now in (0, PROBE_NS):
        pairs.complain(B, C, now)
        pairs.complain(B, many[0], now)
    assert pairs.broken(VIEW, PROBE_NS) is None
    assert pairs.is_barred([many[0]], AB, PROBE_NS)
