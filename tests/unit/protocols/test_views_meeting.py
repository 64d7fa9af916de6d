"""Meeting: which parts may come in, when, and in what order they rank."""

from __future__ import annotations

import pytest

from ringcast.model import Address, Member, View, ViewId
from ringcast.protocols.views.discovery import (
    FRESH_NS,
    PARTS_MAX,
    PAUSE_MAX_NS,
    PAUSE_MIN_NS,
    PAUSE_SHARE,
    START_NS,
    Meeting,
    rank_of,
)
from ringcast.protocols.views.timing import BackOff, Waiting
from ringcast.wire.changes import Hello
from support.settings import PLAIN

A, B, C, D = (Member(Address("h", n), 1, name) for n, name in enumerate("ABCD"))
B2 = B._replace(incarnation=2)
SECOND = 1_000_000_000


def hello(*members: Member, by: Member | None = None, has_state: bool = False) -> Hello:
    """Of a view of these, from its first member, or from who looks for the group."""
    first = by or members[0]
    is_member = by is None
    return Hello(
        PLAIN,
        is_asking=True,
        has_state=has_state,
        highest=3,
        coordinator=first if is_member else None,
        view_id=ViewId(first, 3),
        size=len(members),
        members=members,
    )


def taken(meeting: Meeting, *mine: Member, room: int = 10, now: int = 0) -> list[str]:
    return ["".join(who.name for who in met.view) for met in meeting.take(mine, room, now)]


def test_parts_that_said_who_is_in_them_come_in_once() -> None:
    meeting = Meeting()
    assert meeting.note(B, hello(B, C), 0)
    assert meeting.note(D, hello(D), 0)
    assert taken(meeting, A) == ["BC", "D"]
    assert taken(meeting, A) == []


def test_a_hello_without_members_of_who_is_not_in_them_or_of_no_view_is_no_part() -> None:
    meeting = Meeting()
    assert not meeting.note(D, hello(B, C), 0)
    assert not meeting.note(B, Hello(PLAIN, True, False, 3, B, ViewId(B, 3), 2), 0)
    assert not meeting.note(B, Hello(PLAIN, True, False, 3, B, None, 1, (B,)), 0)
    assert meeting.parts == {}


def test_nobody_and_no_address_comes_in_twice() -> None:
    meeting = Meeting()
    meeting.note(B, hello(B, C), 0)
    meeting.note(C, hello(C, D), 0)
    assert taken(meeting, A) == ["BC"]
    meeting.note(B2, hello(B2), 0)
    assert taken(meeting, A, B) == []


def test_an_address_has_one_part_however_many_say_that_they_are_there() -> None:
    meeting = Meeting()
    meeting.note(B, hello(B, C), 0)
    meeting.note(B2, hello(B2), 0)
    assert list(meeting.parts) == [B2]


def test_parts_come_in_while_there_is_room() -> None:
    meeting = Meeting()
    meeting.note(B, hello(B, C), 0)
    meeting.note(D, hello(D), 0)
    assert taken(meeting, A, room=2) == ["D"]


def test_what_a_part_said_is_good_for_a_moment() -> None:
    meeting = Meeting()
    meeting.note(B, hello(B), 0)
    assert list(meeting.fresh(FRESH_NS - 1)) == [B]
    assert not meeting.fresh(FRESH_NS)
    assert meeting.parts == {}
    meeting.note(B, hello(B), 0)
    assert taken(meeting, A, now=FRESH_NS) == []


def test_of_too_many_parts_the_last_are_not_kept_unless_others_are_stale() -> None:
    meeting = Meeting()
    many = [Member(Address("h", 1000 + n), 1, str(n)) for n in range(PARTS_MAX)]
    for who in many:
        assert meeting.note(who, hello(who), 0)
    assert not meeting.note(B, hello(B), 0)
    assert meeting.note(many[0], hello(many[0]), 0)
    assert meeting.note(B, hello(B), FRESH_NS)


def test_parts_that_are_in_the_view_are_not_to_be_met_any_more() -> None:
    meeting = Meeting()
    meeting.note(B, hello(B, C), 0)
    meeting.note(D, hello(D), 0)
    meeting.changed(View(ViewId(A, 4), (A, C)), 0, 0, is_merge=True)
    assert list(meeting.parts) == [D]


@pytest.mark.parametrize(
    ("held_up", "is_merge", "pause"),
    [
        (0, True, PAUSE_MIN_NS),
        (SECOND // 10, True, PAUSE_SHARE * SECOND // 10),
        (3600 * SECOND, True, PAUSE_MAX_NS),  # the machine slept in the middle of a change
        (SECOND, False, PAUSE_MIN_NS),  # somebody was lost: that was needed
    ],
)
def test_after_a_change_none_that_nobody_needs_follows_for_a_while(
    held_up: int, is_merge: bool, pause: int
) -> None:
    meeting = Meeting()
    now = 100 * SECOND
    assert meeting.not_before(now) <= now
    meeting.changed(View(ViewId(A, 4), (A,)), held_up, now, is_merge=is_merge)
    assert meeting.not_before(now) == now + pause
    assert meeting.not_before(now + pause) == now + pause


def test_parts_that_were_asked_and_do_not_answer_count_as_if_they_had_come_in() -> None:
    meeting, now, held_up = Meeting(), 100 * SECOND, SECOND // 2
    for _ in range(2):
        meeting.fail(now)
        meeting.changed(View(ViewId(A, 4), (A,)), held_up, now, is_merge=False)
        assert meeting.not_before(now) == now + PAUSE_SHARE * held_up
        now += 10 * SECOND
    meeting.changed(View(ViewId(A, 5), (A,)), held_up, now, is_merge=False)
    assert meeting.not_before(now) == now + PAUSE_MIN_NS  # that one was needed


def test_after_losses_parts_are_met_less_and_less_often() -> None:
    meeting = Meeting()
    waits = []
    now = 100 * SECOND
    for _ in range(7):
        meeting.losses.lose(now)
        waits.append((meeting.not_before(now) - now) // SECOND)
        meeting.changed(View(ViewId(A, 4), (A,)), 0, now, is_merge=True)
    assert waits == [1, 2, 4, 8, 16, 16, 16]


def test_losses_on_one_occasion_count_once_and_in_quiet_times_they_are_forgotten() -> None:
    losses = BackOff()
    now = SECOND // 2  # the first wait is the shortest, whatever the clock says
    waits = []
    for quiet in (0, 59, 59, 61, 0):
        losses.merge()
        now += quiet * SECOND
        losses.lose(now)
        losses.lose(now)
        waits.append(losses.waits(now) // SECOND)
    assert waits == [1, 2, 4, 1, 2]
    assert losses.waits(now + 3 * SECOND // 2) == SECOND // 2
    assert losses.waits(now + 2 * SECOND) == 0


def test_parts_rank_by_state_size_and_address_and_who_looks_comes_last() -> None:
    in_order = [
        (D, hello(D, has_state=True)),
        (B, hello(B, C)),
        (A, hello(A)),
        (C, hello(C)),
        (B, hello(B, by=B)),
        (D, hello(D, by=D)),
    ]
    ranks = [rank_of(each, who) for who, each in in_order]
    assert ranks == sorted(ranks)
    assert len(set(ranks)) == len(ranks)


def test_after_parts_that_do_not_answer_others_wait() -> None:
    meeting = Meeting()
    assert meeting.losses.waits(SECOND) == 0
    meeting.fail(SECOND)
    assert meeting.losses.waits(SECOND) > 0


def test_a_member_has_just_started_for_so_long() -> None:
    meeting = Meeting()
    meeting.started_at = SECOND
    found = [meeting.has_just_started(SECOND + START_NS - left) for left in (START_NS, 1, 0)]
    assert found == [True, True, False]


def test_who_is_waited_for_in_vain_is_passed_over_and_then_ever_more_at_once() -> None:
    crowd = tuple(Member(Address("h", n), 1, str(n)) for n in range(9))
    view, waiting, found = View(ViewId(crowd[0], 2), crowd), Waiting(), []
    for _ in range(6):
        waiting.lose_patience(crowd[2], view, set(), crowd[-1])
        found.append("".join(sorted(who.name for who in waiting.passed)))
    assert found == ["", "2", "02", "0123", "01234567", "01234567"]  # oneself never
    waiting.begin()
    waiting.end(crowd[2])
    assert waiting.passed == {crowd[2]}
    waiting.lose_patience(crowd[3], view, {crowd[0]}, crowd[-1])
    assert waiting.passed == {crowd[1], crowd[2]}


def test_for_ones_own_proposal_one_waits_once() -> None:
    crowd = tuple(Member(Address("h", n), 1, str(n)) for n in range(3))
    waiting = Waiting()
    waiting.lose_patience(crowd[2], View(ViewId(crowd[0], 2), crowd), set(), crowd[2])
    assert waiting.passed == {crowd[0]}
