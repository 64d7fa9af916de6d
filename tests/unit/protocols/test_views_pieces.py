"""Frames that fit no datagram: put together from pieces, whatever becomes of some of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from random import Random

import pytest

from ringcast.model import Address, Member, ViewId
from ringcast.protocols.early import STRANGER_BYTES_MAX
from ringcast.protocols.views.pieces import BYTES_MAX, FRAMES_MAX, Pieces
from ringcast.window.assembler import PART_BYTES_MIN
from ringcast.wire import changes as wire
from ringcast.wire.changes import cut_into_pieces
from ringcast.wire.layout import FRAMES
from ringcast.wire.limits import CHANGE_BYTES_MAX
from support.settings import PLAIN
from support.view_group import NAMES, ViewGroup
from support.view_side import A, B, C, Side

MANY = tuple(Member(Address("h", 1 + n), 1, f"member-{n}") for n in range(99))
PROPOSAL = wire.Propose(ViewId(A, 5), MANY, PLAIN)


def pieces_of(frame: wire.ChangeFrame, count: int = 3) -> list[wire.Piece]:
    kind, body = FRAMES[type(frame)].kind, FRAMES[type(frame)].encode(frame)
    return cut_into_pieces(kind, body, -(-len(body) // count))


def test_pieces_in_any_order_make_the_frame() -> None:
    for order in permutations(pieces_of(PROPOSAL)):
        pieces = Pieces()
        assert [pieces.add(A, piece) for piece in order] == [None, None, PROPOSAL]
        assert len(pieces) == pieces.size == 0


def test_what_was_lost_comes_with_the_next_copy() -> None:
    pieces, (first, second, third) = Pieces(), pieces_of(PROPOSAL)
    assert [pieces.add(A, piece) for piece in (first, third)] == [None, None]
    assert [pieces.add(A, piece) for piece in (first, second)] == [None, PROPOSAL]
    assert [pieces.add(A, third), len(pieces)] == [None, 1]  # of the copy, and nobody waits for it


def test_pieces_of_different_frames_and_senders_do_not_mix() -> None:
    other = replace(PROPOSAL, id=ViewId(A, 6))
    pieces = Pieces()
    for frame in (PROPOSAL, other):
        for source in (A, B):
            for piece in pieces_of(frame)[:-1]:
                assert pieces.add(source, piece) is None
    assert len(pieces) == 4
    assert pieces.add(B, pieces_of(other)[-1]) == other
    assert pieces.add(A, pieces_of(PROPOSAL)[-1]) == PROPOSAL


def test_what_is_no_frame_is_nothing() -> None:
    pieces = Pieces()
    wrong = [wire.Piece(65, 1, n, 2, b"x") for n in range(2)]
    assert [pieces.add(A, piece) for piece in wrong] == [None, None]
    assert len(pieces) == pieces.size == 0


def test_what_is_kept_is_bounded() -> None:
    pieces = Pieces()
    for number in range(2 * FRAMES_MAX):
        pieces.add(A, wire.Piece(65, number, 0, 2, b"x"))
        assert len(pieces) <= FRAMES_MAX
    for number in range(2 * BYTES_MAX // 60_000):
        pieces.add(B, wire.Piece(65, number, 0, 2, bytes(60_000)))
        assert pieces.size <= BYTES_MAX
    pieces = Pieces()
    for index in range(2 * CHANGE_BYTES_MAX // 60_000):
        pieces.add(A, wire.Piece(65, 1, index, 1000, bytes(60_000)))
        assert pieces.size <= CHANGE_BYTES_MAX + 1000 * PART_BYTES_MIN


def test_the_largest_frame_may_come_in_the_smallest_pieces() -> None:
    pieces, body = Pieces(), bytes(CHANGE_BYTES_MAX)
    small = cut_into_pieces(65, body, 400)
    assert [pieces.add(A, piece) for piece in small[:-1]] == [None] * (len(small) - 1)
    assert pieces.size > CHANGE_BYTES_MAX


def test_small_pieces_of_strangers_fill_their_room_and_push_out_nobody() -> None:
    pieces = Pieces(is_known=lambda member: member == A)
    first, *others = pieces_of(PROPOSAL)
    pieces.add(A, first)
    for number in range(4 * FRAMES_MAX):
        pieces.add(B, wire.Piece(65, number // 4, number % 4, 5, b"x"))
        pieces.add(C, wire.Piece(65, number // 4, number % 4, 5, b"x"))
    assert pieces.size <= 2 * STRANGER_BYTES_MAX + len(first.content) + PART_BYTES_MIN
    assert pieces.refused > 0
    assert [pieces.add(A, piece) for piece in others] == [None, PROPOSAL]


def test_a_member_answers_a_proposal_that_came_in_pieces() -> None:
    side = Side(B)
    side.join(ViewId(A, 2), A, B, C)
    side.said(wire.State)
    *pieces, last = pieces_of(wire.Propose(ViewId(A, 3), (A, B, C), PLAIN))
    for piece in pieces:
        side.hear(A, piece)
    assert side.said(wire.State) == []
    side.hear(A, last)
    assert [dest for dest, _ in side.said(wire.State)] == [A]


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.proof) for seed in (1, 2))]
)
def test_a_group_whose_changes_travel_in_pieces_forms_though_one_in_five_is_lost(
    seed: int,
) -> None:
    """A cold start of 24, in small datagrams."""
    group = ViewGroup(NAMES[:24], seed=seed)
    group.config = replace(
        group.config, multicast=replace(group.config.multicast, datagram_bytes=512)
    )
    lost, seen = Random(seed), {wire.Piece: 0}

    def is_lost(source: str, dest: str, kinds: set[type]) -> bool:
        seen[wire.Piece] += wire.Piece in kinds
        return wire.Piece in kinds and lost.random() < 0.2

    group.is_lost = is_lost
    for name in group.names:
        group.start(name)
    assert group.run_until(group.is_quiet, 10_000), group.waits()
    assert seen[wire.Piece] > 20


# What a proposal is based on


def test_who_does_not_know_the_view_that_a_proposal_is_based_on_is_told_all() -> None:
    side = Side(B)
    side.join(ViewId(A, 2), A, B, C)
    side.said(wire.Refuse)
    id, unknown = ViewId(A, 5), ViewId(A, 4)
    side.hear(A, wire.Propose(id, (range(3),), PLAIN, (), unknown))
    assert side.said(wire.Refuse) == [(A, wire.Refuse(id))]
    side.hear(A, wire.Propose(id, (A, B, C), PLAIN))
    ((dest, state),) = side.said(wire.State)
    assert dest == A
    assert isinstance(state, wire.State)
    assert state.members == (range(3),)


def test_a_proposer_tells_all_to_who_does_not_know_its_view_once() -> None:
    side = Side(A)
    side.join(ViewId(B, 2), A, B, C)
    side.layer.change.propose((A, B, C), set(), (), side.now, side.out)
    side.pass_time(0)
    asked = dict(side.said(wire.Propose))
    id = side.layer.change.follower.promised
    assert {frame.members for frame in asked.values()} == {(range(3),)}
    side.hear(B, wire.Refuse(id))
    side.hear(B, wire.Refuse(id))  # a copy
    ((dest, frame),) = side.said(wire.Propose)
    assert (dest, frame.members) == (B, (A, B, C))
    side.pass_time(40)
    again = {dest: frame.members for dest, frame in side.said(wire.Propose)}
    assert again == {B: (A, B, C), C: (range(3),)}


def test_a_view_that_was_promised_or_was_before_is_known() -> None:
    side = Side(B)
    before = side.join(ViewId(A, 2), A, B, C)
    side.flush(ViewId(A, 3), A, B)
    for counter, base in ((4, before.id), (5, ViewId(A, 3))):
        side.said(wire.State)
        side.hear(A, wire.Propose(ViewId(A, counter), (range(2),), PLAIN, (), base))
        assert [dest for dest, _ in side.said(wire.State)] == [A]
        proposal = side.layer.change.follower.proposal
        assert proposal is not None
        assert proposal.members == (A, B)


def test_a_change_goes_on_at_once_though_a_member_has_forgotten_its_view() -> None:
    group = ViewGroup("ABC").form()
    group.layer("B").change._translator._recent.clear()
    start = group.now_ms
    before = group.layer("A").change.view.id
    group.propose("A")
    assert group.run_until(lambda: group.layer("B").change.view.id != before, 1000)
    assert group.now_ms - start <= 10
