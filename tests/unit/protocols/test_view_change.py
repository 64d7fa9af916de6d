"""The machines of a view change, frame by frame: who promises, freezes, flushes and installs when,
and what a lost, late or repeated frame comes to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ringcast.core.view_change import OWN, Begin, Cut, Flush, Freeze, Part, Snapshot
from ringcast.model import Address, Member, Origin, Stream, View, ViewId
from ringcast.protocols.views.follower import FLUSHED_MAX, Follower, Phase
from ringcast.protocols.views.frames import Flushable, Propose, State, Wishes
from ringcast.protocols.views.parts import is_dead, make_cut, to_finish
from ringcast.protocols.views.proposer import Proposer, Step
from ringcast.wire.changes import Finish, Flushed, Install, Installed, Refuse

if TYPE_CHECKING:
    from ringcast.protocols.views.frames import ChangeFrame

A, B, C = (Member(Address("h", n), 1, name) for n, name in enumerate("ABC"))
OLD = View(ViewId(A, 1), (A, B, C))
SECOND, THIRD, FOURTH = ViewId(A, 2), ViewId(B, 3), ViewId(A, 4)
FIFO, UNIFORM = Stream.FIFO, Stream.UNIFORM


def snapshot(own: int = 0, **held: int) -> Snapshot:
    members = {"a": A, "b": B, "c": C}
    return Snapshot({FIFO: own}, {Origin(members[name], FIFO): n for name, n in held.items()})


def cut(id: ViewId, *members: Member, view: View = OLD) -> Cut:
    return Cut(id, (Part(view.id, members, {}, {}),), {})


class Side:
    """One member's follower, and what it wants since it was last asked."""

    def __init__(self, me: Member = B) -> None:
        self.follower = Follower(me, OLD)
        self._wishes = Wishes()

    def propose(self, id: ViewId, *members: Member, leaving: tuple[Member, ...] = ()) -> None:
        proposal = Propose(id, members or (A, B, C), frozenset(leaving))
        self.follower.on_propose(id.creator, proposal, self._wishes)

    def freeze(self, what: Snapshot | None = None) -> None:
        self.follower.on_snapshot(self.follower.promised, what or snapshot(), self._wishes)

    def cut(self, what: Cut) -> None:
        self.follower.on_cut(what.id.creator, what, self._wishes)

    def flush(self, id: ViewId) -> None:
        self.follower.on_flushed(id, self._wishes)

    def install(self, id: ViewId) -> None:
        self.follower.on_install(id.creator, Install(id), self._wishes)

    def finish(self, id: ViewId, first: ViewId) -> None:
        self.follower.on_finish(id.creator, Finish(id, first), self._wishes)

    def up_to_flushed(self, id: ViewId, *members: Member) -> None:
        members = members or (A, B, C)
        self.propose(id, *members)
        self.freeze()
        self.cut(cut(id, *members))
        self.flush(id)

    def wants(self) -> list[object]:
        found = [*self._wishes.streams, *(frame for _, frame in self._wishes.frames)]
        self._wishes = Wishes()
        return found


# One member


def test_a_change_freezes_flushes_and_installs() -> None:
    side = Side()
    side.propose(SECOND)
    assert side.wants() == [Freeze(SECOND, (A, B, C))]
    side.freeze(snapshot(5, a=3))
    assert side.wants() == [State(SECOND, OLD, snapshot(5, a=3))]
    whole = cut(SECOND, A, B, C)
    side.cut(whole)
    assert side.wants() == [Flush(SECOND, whole.parts[0])]
    side.flush(SECOND)
    assert side.wants() == [Flushed(SECOND)]
    side.install(SECOND)
    view = View(SECOND, (A, B, C))
    assert side.wants() == [Begin(view, whole), Installed(SECOND)]
    assert side.follower.view == view
    assert side.follower.phase is Phase.OPEN


def test_a_lower_proposal_is_refused_and_its_frames_change_nothing() -> None:
    side = Side()
    side.up_to_flushed(THIRD)
    side.wants()
    side.propose(SECOND)
    assert side.wants() == [Refuse(SECOND, THIRD)]
    side.cut(cut(SECOND, A, B, C))
    side.finish(SECOND, OLD.id)
    side.install(SECOND)
    assert side.wants() == []
    assert side.follower.view == OLD


@pytest.mark.parametrize("phase", [Phase.FREEZING, Phase.FROZEN, Phase.FLUSHING, Phase.FLUSHED])
def test_a_higher_proposal_is_answered_anew_in_every_phase(phase: Phase) -> None:
    side = Side()
    side.propose(SECOND)
    for step in (side.freeze, lambda: side.cut(cut(SECOND, A, B, C)), lambda: side.flush(SECOND)):
        if side.follower.phase is not phase:
            step()
    assert side.follower.phase is phase
    side.wants()
    side.propose(THIRD)
    assert side.wants() == [Freeze(THIRD, (A, B, C))]
    side.install(SECOND)
    assert side.wants() == []


def test_what_was_flushed_is_told_with_the_next_state() -> None:
    side = Side()
    side.up_to_flushed(SECOND)
    side.propose(THIRD)
    side.wants()
    side.freeze()
    listed = (Flushable(SECOND, (A, B, C)),)
    assert side.wants() == [State(THIRD, OLD, snapshot(), listed)]


def test_of_many_that_were_flushed_the_oldest_are_told_by_a_mark() -> None:
    side = Side()
    ids = [ViewId(A, counter) for counter in range(2, 4 + FLUSHED_MAX)]
    for id in ids:
        side.up_to_flushed(id)
    side.propose(ViewId(A, 99))
    side.wants()
    side.freeze()
    (state,) = side.wants()
    assert isinstance(state, State)
    assert [each.id for each in state.flushed] == ids[2:]
    assert state.unlisted == ids[1]
    assert all(map(state.may_have_flushed, ids))
    assert not state.may_have_flushed(ViewId(A, 50))


def test_frames_that_come_again_are_answered_again() -> None:
    side = Side()
    side.propose(SECOND)
    side.freeze()
    side.wants()
    side.propose(SECOND)
    assert side.wants() == [State(SECOND, OLD, snapshot())]
    side.cut(cut(SECOND, A, B, C))
    side.flush(SECOND)
    side.wants()
    side.cut(cut(SECOND, A, B, C))
    assert side.wants() == [Flushed(SECOND)]
    side.install(SECOND)
    side.wants()
    side.install(SECOND)
    assert side.wants() == [Installed(SECOND)]


def test_who_is_not_in_a_proposal_does_not_answer_it() -> None:
    side = Side(C)
    side.propose(SECOND, A, B)
    assert side.wants() == []
    assert side.follower.phase is Phase.OPEN


def test_frames_of_another_than_the_proposer_change_nothing() -> None:
    side, wishes = Side(), Wishes()
    side.propose(SECOND)
    side.freeze()
    side.wants()
    side.follower.on_propose(C, Propose(FOURTH, (A, B, C)), wishes)
    side.follower.on_cut(C, cut(SECOND, A, B, C), wishes)
    side.follower.on_finish(C, Finish(SECOND, OLD.id), wishes)
    side.follower.on_install(C, Install(SECOND), wishes)
    assert wishes == Wishes()


def test_a_view_is_completed_first_and_the_state_said_again() -> None:
    side = Side()
    side.up_to_flushed(SECOND)
    side.propose(THIRD)
    side.freeze()
    side.wants()
    side.finish(THIRD, SECOND)
    view = View(SECOND, (A, B, C))
    assert side.wants() == [Begin(view, cut(SECOND, A, B, C)), Freeze(THIRD, (A, B, C))]
    side.freeze()
    assert side.wants() == [State(THIRD, view, snapshot())]
    side.finish(THIRD, SECOND)  # the State was lost
    assert side.wants() == [State(THIRD, view, snapshot())]


def test_a_cut_made_of_a_state_that_was_replaced_is_not_flushed() -> None:
    side = Side()
    side.up_to_flushed(SECOND)
    side.propose(THIRD)
    side.freeze()
    side.finish(THIRD, SECOND)
    side.freeze()
    side.wants()
    side.cut(cut(THIRD, A, B, C, view=OLD))
    assert side.wants() == []


def test_who_leaves_takes_part_in_the_flush_and_is_out() -> None:
    side = Side()
    side.propose(SECOND, A, B, C, leaving=(B,))
    side.freeze()
    side.cut(cut(SECOND, A, B, C))
    side.flush(SECOND)
    side.wants()
    side.install(SECOND)
    assert side.follower.phase is Phase.OUT
    side.wants()
    side.propose(THIRD)
    assert side.wants() == []


# The proposer


class Making:
    """A's proposer, and what it has sent since it was last asked."""

    def __init__(self, *members: Member) -> None:
        self.proposer = Proposer(lambda stream: stream is UNIFORM)
        self._wishes = Wishes()
        self.proposal = Propose(FOURTH, members or (A, B, C))
        self.proposer.propose(self.proposal, self._wishes)

    def state(self, source: Member, view: View = OLD, *flushed: Flushable, own: int = 0) -> None:
        state = State(FOURTH, view, snapshot(own), flushed)
        self.proposer.on_state(source, state, self._wishes)

    def flushed(self, source: Member) -> None:
        self.proposer.on_flushed(source, Flushed(FOURTH), self._wishes)

    def sent(self) -> list[tuple[Member, ChangeFrame]]:
        found = self._wishes.frames
        self._wishes = Wishes()
        return found


def test_it_cuts_when_all_have_answered_and_installs_when_all_have_flushed() -> None:
    making = Making()
    assert making.sent() == [(member, making.proposal) for member in (A, B, C)]
    for member in (A, B, B, C):
        assert making.sent() == []
        making.state(member)
    cuts = making.sent()
    assert [member for member, _ in cuts] == [A, B, C]
    assert all(isinstance(frame, Cut) for _, frame in cuts)
    for member in (C, B, A):
        assert making.sent() == []
        making.flushed(member)
    assert making.sent() == [(member, Install(FOURTH)) for member in (A, B, C)]
    for member in (A, B, C):
        making.proposer.on_installed(member, Installed(FOURTH))
    assert making.proposer.step is Step.IDLE


def test_it_repeats_what_is_not_answered() -> None:
    making = Making()
    making.state(B)
    making.sent()
    making.proposer.repeat(making._wishes)
    assert making.sent() == [(A, making.proposal), (C, making.proposal)]


def test_a_refusal_ends_it_and_says_above_what_to_propose() -> None:
    making = Making()
    making.proposer.on_refuse(Refuse(FOURTH, ViewId(C, 9)))
    assert making.proposer.step is Step.IDLE
    assert making.proposer.refused_for == ViewId(C, 9)
    making.sent()
    for member in (A, B, C):
        making.state(member)
    assert making.sent() == []


def test_a_refusal_of_another_proposal_changes_nothing() -> None:
    making = Making()
    making.proposer.on_refuse(Refuse(SECOND, THIRD))
    assert making.proposer.step is Step.COLLECT


def test_who_is_behind_completes_the_view_of_others_first() -> None:
    making = Making()
    newer = View(SECOND, (A, B, C))
    making.state(A, newer)
    making.state(B, OLD, Flushable(SECOND, (A, B, C)))
    making.sent()
    making.state(C, newer)
    assert making.sent() == [(B, Finish(FOURTH, SECOND))]
    making.state(B, OLD, Flushable(SECOND, (A, B, C)))  # a late copy
    assert making.sent() == []
    making.state(B, newer)
    assert all(isinstance(frame, Cut) for _, frame in making.sent())


# Conclusions


def states(**by_name: State) -> dict[Member, State]:
    members = {"a": A, "b": B, "c": C}
    return {members[name]: state for name, state in by_name.items()}


def state(view: View, *flushed: Flushable, held: Snapshot | None = None) -> State:
    return State(FOURTH, view, held or snapshot(), flushed)


def test_nobody_is_behind_who_did_not_flush_that_view() -> None:
    newer = View(SECOND, (A, B, C))
    assert to_finish(states(a=state(newer), b=state(OLD))) == {}


def test_only_the_last_that_is_not_dead_is_completed() -> None:
    second, third = Flushable(SECOND, (A, B, C)), Flushable(THIRD, (B, C))
    newer = View(SECOND, (A, B, C))
    said = states(a=state(newer), b=state(OLD, second, third), c=state(OLD, second, third))
    assert to_finish(said) == {}  # THIRD may be installed somewhere
    said = states(a=state(newer), b=state(OLD, second, third), c=state(OLD, second))
    assert is_dead(third, said)  # C will never flush it
    assert to_finish(said) == {B: SECOND, C: SECOND}


def test_parts_are_what_members_say_they_are_in() -> None:
    alone = View(SECOND, (C,))
    said = states(a=state(OLD), b=state(OLD), c=state(alone))
    made = make_cut(Propose(FOURTH, (A, B, C)), said, lambda _: True)
    assert [(part.view, part.members) for part in made.parts] == [(OLD.id, (A, B)), (SECOND, (C,))]


def test_a_cut_is_what_an_origin_sent_or_the_most_that_anybody_holds() -> None:
    said = states(
        a=state(OLD, held=snapshot(7, b=1, c=4)), b=state(OLD, held=snapshot(3, a=6, c=5))
    )
    proposal = Propose(FOURTH, (A, B))
    (part,) = make_cut(proposal, said, lambda _: True).parts
    assert part.cuts == {Origin(A, FIFO): 7, Origin(B, FIFO): 3, Origin(C, FIFO): 5}
    assert part.sources[Origin(C, FIFO)] == B
    (part,) = make_cut(proposal, said, lambda _: False).parts
    assert part.cuts[Origin(C, FIFO)] == OWN


def test_windows_of_all_members_begin_where_they_have_sent_to() -> None:
    alone = View(SECOND, (C,))
    said = states(
        a=state(OLD, held=snapshot(7)),
        b=state(OLD, held=snapshot(3)),
        c=state(alone, held=snapshot(9)),
    )
    made = make_cut(Propose(FOURTH, (A, B, C)), said, lambda _: True)
    assert made.starts == {Origin(A, FIFO): 7, Origin(B, FIFO): 3, Origin(C, FIFO): 9}
