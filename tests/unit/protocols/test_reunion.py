"""Who would come together with whom, when, and for how long that counts."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ringcast.model import Address, Member, View, ViewId
from ringcast.protocols.change import REPEAT_MAX_NS, REPEAT_START_NS
from ringcast.protocols.reunion import (
    FRESH_NS,
    PATIENCE_NS,
    QUIET_NS,
    REQUESTS_MAX,
    WAIT_MAX_NS,
    WAIT_START_NS,
    Reunion,
)
from ringcast.wire.limits import PARTS_MAX, VIEW_MEMBERS_MAX

SECOND = 1_000_000_000


def crowd(count: int, host: str = "h") -> tuple[Member, ...]:
    return tuple(Member(Address(host, port), 1, f"{host}{port}") for port in range(count))


A, B, C, D = crowd(4)


def view(*members: Member, counter: int = 1) -> View:
    return View(ViewId(members[0], counter), members)


# After a loss


def test_the_wait_doubles_from_1_to_16_seconds_if_each_merge_breaks_again() -> None:
    reunion, now, waits = Reunion(), 100 * SECOND, []
    assert reunion.waits(now) == 0
    for _ in range(7):
        reunion.part(now)
        waits.append(reunion.waits(now))
        reunion.merge()
        now += QUIET_NS
    assert waits[0] == WAIT_START_NS == SECOND
    assert waits[-2:] == [WAIT_MAX_NS] * 2 == [16 * SECOND] * 2
    assert all(after == min(2 * before, WAIT_MAX_NS) for before, after in pairwise(waits))


def test_several_losses_on_one_occasion_count_once() -> None:
    reunion = Reunion()
    for now in (0, 1, 2, 3):
        reunion.part(now)
    assert reunion.waits(3) == SECOND
    reunion.merge()
    for now in (4, 5, 6):
        reunion.part(now)
    assert reunion.waits(6) == 2 * SECOND


def test_after_a_quiet_minute_it_is_forgotten() -> None:
    reunion = Reunion()
    for now in (0, 1, 2, 3):
        reunion.part(now)
        reunion.merge()
    assert reunion.waits(3) == 8 * SECOND
    reunion.part(3 + QUIET_NS)
    assert reunion.waits(3 + QUIET_NS) == 16 * SECOND
    reunion.merge()
    later = 3 + 2 * QUIET_NS + 1
    reunion.part(later)
    assert reunion.waits(later) == SECOND


@pytest.mark.parametrize("now", [0, 1, SECOND, QUIET_NS + 1])
def test_the_first_wait_is_the_shortest_whatever_the_clock_says(now: int) -> None:
    reunion = Reunion()
    reunion.part(now)
    assert reunion.waits(now) == WAIT_START_NS


def test_a_wait_ends() -> None:
    reunion = Reunion()
    reunion.part(SECOND)
    assert reunion.waits(2 * SECOND - 1) == 1
    assert reunion.waits(2 * SECOND) == 0
    assert reunion.waits(9 * SECOND) == 0


# Asking


def test_asking_begins_with_short_intervals_and_has_an_end() -> None:
    reunion = Reunion()
    reunion.interval = REPEAT_MAX_NS
    reunion.ask(B, SECOND)
    assert (reunion.leader, reunion.until) == (B, SECOND + PATIENCE_NS)
    assert reunion.interval == REPEAT_START_NS


def test_who_coordinates_nothing_asks_nobody_and_is_asked_by_nobody() -> None:
    reunion = Reunion()
    reunion.ask(B, 0)
    reunion.note(C, view(C), 0)
    reunion.end()
    assert reunion.leader is None
    assert reunion.take(view(A), 0) == []


# Being asked


def test_what_is_taken_is_taken_once() -> None:
    reunion = Reunion()
    reunion.note(B, view(B), 0)
    assert reunion.take(view(A), 0) == [view(B)]
    assert reunion.take(view(A), 0) == []


@pytest.mark.parametrize(("age", "counts"), [(FRESH_NS - 1, True), (FRESH_NS, False)])
def test_a_request_is_good_for_a_moment(age: int, counts: bool) -> None:
    reunion = Reunion()
    reunion.note(B, view(B), SECOND)
    assert reunion.take(view(A), SECOND + age) == [view(B)] * counts


def test_the_last_word_of_a_group_counts() -> None:
    reunion = Reunion()
    reunion.note(B, view(B, C), 0)
    reunion.note(B, view(B, counter=2), FRESH_NS)
    assert reunion.take(view(A), FRESH_NS) == [view(B, counter=2)]


def test_groups_that_have_somebody_in_common_do_not_merge_at_once() -> None:
    reunion = Reunion()
    reunion.note(B, view(B, C), 0)
    reunion.note(D, view(D, C), 0)
    assert reunion.take(view(A), 0) == [view(B, C)]
    reunion.note(B, view(B, A), 0)
    assert reunion.take(view(A), 0) == []


def test_together_they_are_no_more_than_a_view_holds() -> None:
    reunion, mine = Reunion(), view(*crowd(100, "mine"))
    large = view(*crowd(VIEW_MEMBERS_MAX - 99, "large"))
    fits = view(*crowd(VIEW_MEMBERS_MAX - 100, "fits"))
    for each in (large, fits, view(A)):
        reunion.note(each.coordinator, each, 0)
    assert reunion.take(mine, 0) == [fits]


def test_no_more_groups_at_once_than_one_frame_names() -> None:
    reunion = Reunion()
    alone = [view(member) for member in crowd(PARTS_MAX + 9, "alone")]
    for each in alone:
        reunion.note(each.coordinator, each, 0)
    assert reunion.take(view(A), 0) == alone[: PARTS_MAX - 1]


def test_requests_are_bounded() -> None:
    reunion = Reunion()
    askers = crowd(REQUESTS_MAX + 9, "asker")
    for asker in askers:
        reunion.note(asker, view(asker), 0)
    assert list(reunion.requests) == list(askers[:REQUESTS_MAX])
    reunion.note(askers[0], view(askers[0], counter=2), 0)
    assert reunion.requests[askers[0]].view.counter == 2
