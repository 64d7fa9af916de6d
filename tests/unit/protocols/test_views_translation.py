"""Between members and places in lists: what is written is read again; other places give nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringcast.core.view_change import OWN, Cut, Part, Snapshot, StateStanding
from ringcast.model import Address, Member, Origin, Stream, View, ViewId
from ringcast.protocols.views import translation
from ringcast.protocols.views.frames import Flushable, Propose, State
from ringcast.wire import changes as wire
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


def said() -> wire.Cut:
    return translation.encode_cut(marks(), PROPOSAL, VIEWS)


def test_a_proposal_names_who_leaves_by_its_place() -> None:
    frame = translation.encode_propose(PROPOSAL, [MINE.id])
    assert frame == wire.Propose(PROPOSAL.id, PROPOSAL.members, PLAIN, (1,), (MINE.id,))
    assert translation.decode_propose(frame) == PROPOSAL


@pytest.mark.parametrize("known", [(), (MINE.id,)])
def test_a_state_is_read_as_it_was_written(known: tuple[ViewId, ...]) -> None:
    frame = translation.encode_state(STATE, known)
    assert frame.members == (() if known else MINE.members)
    assert translation.decode_state(frame, VIEWS) == STATE


def test_a_state_of_a_view_that_nobody_knows_is_nothing() -> None:
    frame = translation.encode_state(STATE, [MINE.id])
    assert translation.decode_state(frame, {OTHER.id: OTHER}) is None


def test_a_state_that_names_a_place_that_is_not_there_is_nothing() -> None:
    frame = translation.encode_state(STATE, [])
    held = (wire.Mark(3, FIFO, 1),)
    assert translation.decode_state(replace(frame, held=held), VIEWS) is None


def test_a_cut_is_read_as_it_was_written() -> None:
    assert translation.decode_cut(said(), PROPOSAL, MINE, BOTH) == marks()


def test_of_a_cut_each_part_reads_its_own() -> None:
    cut = translation.decode_cut(said(), PROPOSAL, OTHER, BOTH)
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
    assert translation.decode_cut(frame, PROPOSAL, MINE, BOTH) is None
