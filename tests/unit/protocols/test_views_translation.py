"""Between members and places in lists: what is written is read again; other places give nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringcast.core.view_change import OWN, Cut, Part, Snapshot, StateStanding
from ringcast.model import Address, Member, Origin, Stream, View, ViewId
from ringcast.protocols.views import translation
from ringcast.protocols.views.election import rank
from ringcast.protocols.views.frames import Flushable, Propose, State
from ringcast.wire import changes as wire
from ringcast.wire.limits import VIEW_MEMBERS_MAX
from support.settings import PLAIN

A, B, C, D, E = (Member(Address("h", n), 1, name) for n, name in enumerate("ABCDE"))
FIFO, UNIFORM = Stream.FIFO, Stream.UNIFORM
BOTH = (FIFO, UNIFORM)
MINE = View(ViewId(A, 2), (A, B, C))  # C does not come along
OTHER = View(ViewId(D, 3), (D, E))
VIEWS = {MINE.id: MINE, OTHER.id: OTHER}
PROPOSAL = Propose(ViewId(A, 4), (A, B, D, E), frozenset([B]), PLAIN)
HELD = {Origin(A, FIFO): 4, Origin(C, UNIFORM): 2}
STATE = State(
    PROPOSAL.id,
    MINE,
    Snapshot({FIFO: 4, UNIFORM: 0}, HELD),
    (Flushable(ViewId(B, 3), (A, B)),),
    ViewId(A, 3),
    StateStanding(wire.Holding.LACKS, A, (C,)),
)


def marks(part_cut: int = 7) -> Cut:
    """Mine is cut, for C too; of the other part nothing is said but that it is there."""
    starts = {Origin(who, stream): 0 for who in PROPOSAL.members for stream in BOTH}
    starts[Origin(A, FIFO)], starts[Origin(E, UNIFORM)] = 4, 9
    together = (A, B)
    cuts = {Origin(who, stream): starts[Origin(who, stream)] for who in together for stream in BOTH}
    sources = {origin: origin.sender for origin in cuts}
    cuts[Origin(C, FIFO)] = OWN
    cuts[Origin(C, UNIFORM)] = part_cut
    sources[Origin(C, UNIFORM)] = B
    parts = (Part(MINE.id, together, cuts, sources), Part(OTHER.id, (D, E), {}, {}))
    return Cut(PROPOSAL.id, parts, starts, B, (D, E))


RANK = rank(A, 3, has_state=True, is_given=False)
STARTS = {Origin(A, FIFO): 3, Origin(C, UNIFORM): 2}
BASIS = translation.Basis(MINE, STARTS)
ELSEWHERE = translation.Basis(OTHER, {})
CHOICES = [(BASIS, None), (BASIS, MINE.id), (ELSEWHERE, None)]


def keeps_all(stream: Stream) -> bool:
    return True


def state_frame(
    base: ViewId | None = None, starts: dict[Origin, int] = STARTS, state: State = STATE
) -> wire.State:
    return translation.encode_state(state, PROPOSAL, base, starts, keeps_all)


def said(view: View = MINE, basis: translation.Basis = BASIS) -> wire.Cut:
    return translation.encode_cut(marks(), PROPOSAL, view, basis)


# Lists


@pytest.mark.parametrize(
    ("members", "listed"),
    [
        ((A, B, C), (range(3),)),
        ((A, C), (range(1), range(2, 3))),
        ((B, C, D, A), (range(1, 3), D, range(1))),
        ((D, E), (D, E)),
    ],
)
def test_a_list_is_told_by_how_it_differs(members: tuple[Member, ...], listed: wire.Listed) -> None:
    assert translation.list_members(members, MINE.members) == listed
    assert translation.read_members(listed, MINE.members) == members


@pytest.mark.parametrize(
    "listed", [(range(4),), (range(2), A), (range(2), range(1, 3)), (D, D._replace(name="x"))]
)
def test_a_list_with_nobody_in_it_or_with_one_twice_is_nothing(listed: wire.Listed) -> None:
    assert translation.read_members(listed, MINE.members) is None


def test_a_list_has_no_more_than_a_view() -> None:
    many = [A._replace(incarnation=n) for n in range(1, VIEW_MEMBERS_MAX + 1)]
    assert translation.read_members((range(VIEW_MEMBERS_MAX),), many) == tuple(many)
    assert translation.read_members((range(VIEW_MEMBERS_MAX), D), many) is None


# Proposals


def test_a_proposal_tells_a_member_of_a_view_what_it_does_not_know() -> None:
    frame = translation.encode_propose(PROPOSAL, MINE, mine=RANK)
    assert frame == wire.Propose(PROPOSAL.id, (range(2), D, E), PLAIN, (1,), MINE.id, True, 3)
    assert translation.decode_propose(frame, MINE) == PROPOSAL
    assert translation.decode_propose(frame, None) is None


def test_a_proposal_tells_whose_view_is_not_known_all() -> None:
    frame = translation.encode_propose(PROPOSAL, None, mine=RANK)
    assert frame.members == PROPOSAL.members
    assert translation.decode_propose(frame, None) == PROPOSAL


def test_a_proposal_that_nobody_leaves_is_nothing() -> None:
    frame = translation.encode_propose(PROPOSAL, MINE, mine=RANK)
    assert translation.decode_propose(replace(frame, leaving=(4,)), MINE) is None


# States


@pytest.mark.parametrize(("basis", "base"), CHOICES)
def test_a_state_is_read_as_it_was_written(basis: translation.Basis, base: ViewId | None) -> None:
    frame = state_frame(base)
    assert frame.members == (() if base else (range(2), C))
    assert frame.is_based == (base is not None)
    assert frame.flushed == (wire.Flushable(ViewId(B, 3), (range(2),)),)
    assert translation.decode_state(frame, PROPOSAL, VIEWS, basis) == STATE


def test_what_is_held_is_told_where_it_differs_from_how_the_view_began() -> None:
    assert state_frame(MINE.id).held == (wire.Mark(0, FIFO, 4),)
    assert len(state_frame(None).held) == 2


def test_of_what_nobody_keeps_nothing_is_told() -> None:
    frame = translation.encode_state(STATE, PROPOSAL, MINE.id, {}, lambda stream: stream is UNIFORM)
    assert frame.held == (wire.Mark(2, UNIFORM, 2),)


def test_a_state_of_a_view_that_nobody_knows_is_nothing() -> None:
    frame, views = state_frame(MINE.id), {OTHER.id: OTHER}
    assert translation.decode_state(frame, PROPOSAL, views, BASIS) is None
    assert translation.decode_state(frame, PROPOSAL, VIEWS, ELSEWHERE) is None  # how did it begin?


def test_a_state_that_names_a_place_that_is_not_there_is_nothing() -> None:
    frame = state_frame()
    wrong = (
        replace(frame, held=(wire.Mark(3, FIFO, 1),)),
        replace(frame, members=(range(5),)),
        replace(frame, flushed=(wire.Flushable(ViewId(B, 3), (range(5),)),)),
    )
    for each in wrong:
        assert translation.decode_state(each, PROPOSAL, VIEWS, BASIS) is None


# Cuts


def test_a_cut_is_read_as_it_was_written() -> None:
    for basis in (BASIS, ELSEWHERE):
        cut = translation.decode_cut(said(basis=basis), PROPOSAL, BASIS, BOTH)
        assert cut == marks()


def test_a_cut_tells_where_streams_go_on_that_have_moved_since_the_view_began() -> None:
    assert said().starts == (wire.Mark(0, FIFO, 4), wire.Mark(3, UNIFORM, 9))
    moved = translation.Basis(MINE, {Origin(A, FIFO): 4})
    assert said(basis=moved).starts == (wire.Mark(3, UNIFORM, 9),)
    assert len(said(basis=ELSEWHERE).starts) == 2


def test_of_a_cut_each_part_is_told_its_own() -> None:
    frame = said(OTHER)
    assert [part.departed for part in frame.parts] == [(), ()]
    cut = translation.decode_cut(frame, PROPOSAL, ELSEWHERE, BOTH)
    assert cut is not None
    assert cut.part_of(A).cuts == {}
    assert cut.part_of(D).cuts[Origin(E, UNIFORM)] == 9


DEPARTED = wire.CutMark(2, UNIFORM, 7, 1)


@pytest.mark.parametrize(
    "frame",
    [
        replace(said(), starts=(wire.Mark(4, FIFO, 1),)),
        replace(said(), takers=(4,)),
        replace(said(), provider=4),
        replace(said(), parts=(wire.PartMarks(MINE.id, (0, 1, 2, 4), ()),)),
        replace(said(), parts=(wire.PartMarks(MINE.id, (0, 1), ()),)),
        replace(
            said(),
            parts=(wire.PartMarks(MINE.id, (0, 1, 2, 3), (DEPARTED._replace(place=3),)),),
        ),
        replace(
            said(),
            parts=(wire.PartMarks(MINE.id, (0, 1, 2, 3), (DEPARTED._replace(source=4),)),),
        ),
    ],
    ids=["start", "taker", "provider", "member", "nobody", "departed", "source"],
)
def test_a_cut_that_names_a_place_that_is_not_there_is_nothing(frame: wire.Cut) -> None:
    assert translation.decode_cut(frame, PROPOSAL, BASIS, BOTH) is None
