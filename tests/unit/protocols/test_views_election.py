"""Who proposes, and whose proposal is answered."""

from __future__ import annotations

import pytest

from ringcast.model import Address, Member, View, ViewId
from ringcast.protocols.views.election import coordinator, may_answer, rank
from ringcast.protocols.views.frames import Propose

A, B, C, D = (Member(Address("h", n), 1, name) for n, name in enumerate("ABCD"))
VIEW = View(ViewId(A, 2), (A, B, C))


@pytest.mark.parametrize(
    ("gone", "first"), [([], A), ([A], B), ([A, B], C), ([B], A), ([A, B, C], C)]
)
def test_the_first_that_is_not_gone_proposes_at_the_worst_oneself(
    gone: list[Member], first: Member
) -> None:
    assert coordinator(VIEW, gone, C) == first


@pytest.mark.parametrize(
    ("source", "members", "gone", "may"),
    [
        (A, (A, B, C), [], True),
        (B, (B, C), [], False),
        (B, (B, C), [A], True),
        (C, (C,), [], True),  # my own
        (D, (D, A, C), [], True),  # of another view, and my coordinator is in it
        (D, (D, C), [], False),
        (D, (D, B, C), [A], True),
        (D, (D, C), [A, B], True),  # then it is mine to say
    ],
)
def test_who_goes_first_is_answered(
    source: Member, members: tuple[Member, ...], gone: list[Member], may: bool
) -> None:
    proposal = Propose(ViewId(source, 3), members)
    assert may_answer(source, proposal, VIEW, gone, C, is_better=source == D) is may


def test_a_member_of_a_lesser_part_is_not_answered() -> None:
    proposal = Propose(ViewId(D, 3), (D, A, C))
    assert not may_answer(D, proposal, VIEW, [], C, is_better=False)


def test_who_is_alone_answers_anybody() -> None:
    alone = View(ViewId(C, 2), (C,))
    assert may_answer(D, Propose(ViewId(D, 3), (D, C)), alone, [], C, is_better=False)


def test_parts_are_ranked_by_state_size_settings_and_coordinator() -> None:
    ranks = [
        rank(D, 1, has_state=True, is_given=False),
        rank(D, 9, has_state=False, is_given=False),
        rank(D, 2, has_state=False, is_given=True),
        rank(B, 2, has_state=False, is_given=False),
        rank(C, 2, has_state=False, is_given=False),
        rank(A, 0, has_state=False, is_given=True),  # it looks for a group
    ]
    assert sorted(ranks) == ranks
    assert len(set(ranks)) == len(ranks)
