"""The ack table by example."""

from __future__ import annotations

import pytest

from ringcast.explore.abstraction import canonical, clone
from ringcast.model import Address, Member
from ringcast.window.acks import AckTable, AgreedMark

A, B, C = (Member(Address("127.0.0.1", 7800 + n), n, name) for n, name in enumerate("ABC"))
STRANGER = Member(A.address, 77, "A")  # A after a restart: another member


def minima(table: AckTable) -> tuple[int, int]:
    return table.min_received, table.min_delivered


def test_members_enter_at_the_start() -> None:
    table = AckTable([B, A], 7)
    assert table.entries() == [(B, 7, 7), (A, 7, 7)]
    assert minima(table) == (7, 7)
    assert len(table) == 2


def test_a_minimum_rises_with_the_last_of_the_slowest() -> None:
    table = AckTable([A, B], 0)
    assert table.update(A, 5, 4) is False
    assert minima(table) == (0, 0)
    assert table.update(B, 3, 0) is True
    assert minima(table) == (3, 0)
    assert table.update(B, 3, 2) is True
    assert minima(table) == (3, 2)
    assert table.update(B, 9, 9) is True
    assert minima(table) == (5, 4)
    assert table.update(B, 10, 10) is False
    assert table.entries() == [(A, 5, 4), (B, 10, 10)]


def test_both_minima_may_rise_at_once_or_one_alone() -> None:
    table = AckTable([A, B], 0)
    table.update(A, 5, 0)
    assert table.update(B, 5, 5) is True
    assert minima(table) == (5, 0)
    assert table.update(A, 5, 5) is True
    assert minima(table) == (5, 5)


def test_late_acks_change_nothing() -> None:
    table = AckTable([A], 0)
    assert table.update(A, 5, 4) is True
    assert table.update(A, 4, 3) is False
    assert table.update(A, 5, 4) is False
    assert table.entries() == [(A, 5, 4)]
    assert minima(table) == (5, 4)
    assert table.update(A, 2, 5) is True
    assert table.entries() == [(A, 5, 5)]


def test_acks_of_others_are_ignored_and_create_nothing() -> None:
    table = AckTable([A, B], 3)
    before = canonical(table)
    assert table.update(C, 100, 100) is False
    assert table.update(STRANGER, 100, 100) is False
    assert canonical(table) == before
    assert len(table) == 2


def test_the_departed_pin_nobody_any_more() -> None:
    table = AckTable([A, B, C], 0)
    table.update(A, 9, 8)
    table.update(C, 7, 7)
    table.set_members([A, C], 0)
    assert minima(table) == (7, 7)
    assert table.entries() == [(A, 9, 8), (C, 7, 7)]
    assert table.update(B, 100, 100) is False


def test_a_joiner_enters_at_the_senders_low_and_holds_the_minima_there() -> None:
    table = AckTable([A], 0)
    table.update(A, 9, 8)
    table.set_members([A, B], 6)
    assert minima(table) == (6, 6)
    assert table.entries() == [(A, 9, 8), (B, 6, 6)]
    assert table.slowest() == [B]


def test_who_is_slow_is_told_in_member_order() -> None:
    table = AckTable([C, A, B], 0)
    assert table.slowest() == [C, A, B]
    table.update(A, 5, 5)
    assert table.slowest() == [C, B]
    table.update(B, 4, 4)
    assert table.behind(5) == [C, B]
    assert table.behind(6) == [C, A, B]
    assert table.behind(0) == []


def test_a_table_without_members_is_our_bug() -> None:
    with pytest.raises(AssertionError):
        AckTable([], 0)
    table = AckTable([A], 0)
    with pytest.raises(AssertionError):
        table.set_members([], 0)


def test_clones_live_their_own_lives() -> None:
    table = AckTable(iter([A, B]), 0)
    before = canonical(table)
    copy = clone(table)
    assert canonical(copy) == before
    copy.update(A, 1, 1)
    assert canonical(copy) != before
    assert canonical(table) == before


def test_of_the_others_the_slowest_counts() -> None:
    table = AckTable([A, B, C], 0)
    for member, delivered in ((A, 9), (B, 4), (C, 2)):
        table.update(member, 9, delivered)
    assert [table.delivered_by_others(member) for member in (A, C)] == [2, 4]


def test_an_agreed_mark_stays_but_for_a_new_member() -> None:
    mark = AgreedMark([A, B], 0)
    assert mark.agree(5, 7, B) is True
    assert mark.agree(4, 6, B) is False
    assert (mark.has_delivered(B, 7), mark.has_delivered(B, 8)) == (True, False)
    mark.set_members([B, A], 3)
    assert (mark.min_delivered, mark.delivered_by_others(A), mark.slowest()) == (5, 7, [B])
    mark.set_members([A], 3)
    assert (mark.min_delivered, mark.slowest()) == (5, [])
    mark.set_members([A, C], 3)
    assert (mark.min_delivered, mark.delivered_by_others(A), mark.slowest()) == (3, 3, [C])
