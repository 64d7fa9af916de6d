"""What reviews of the view change found: late and foreign frames, overlapping views, broken links.

Each test fails without the rule that it is about.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ringcast.config import MembershipConfig
from ringcast.core.effects import MemberAhead, Suspected
from ringcast.core.view_change import Begin, SawView
from ringcast.model import Purge, View, ViewId
from ringcast.protocols.views.change import NO_ANSWER, PATIENCE_NS
from ringcast.protocols.views.follower import Phase
from ringcast.wire import changes as wire
from ringcast.wire.change_codec import tag_of
from ringcast.wire.frames import Heartbeat
from support.view_group import SMALL, ViewGroup, in_letters
from support.view_side import A, B, C, D, Side

if TYPE_CHECKING:
    from ringcast.model import Member
    from ringcast.wire.frames import Frame

MS = 1_000_000
PATIENCE_MS = PATIENCE_NS / MS
X = A._replace(incarnation=9, address=A.address._replace(port=99), name="X")


def hello(view: View, *, is_asking: bool = False) -> wire.Hello:
    """Of the first of this view."""
    first, counter = view.coordinator, view.counter
    return wire.Hello(
        *(Purge.ACKS, is_asking, False, counter), first, view.id, len(view), view.members
    )


def proposed(side: Side) -> list[str]:
    """To whom proposals went lately, and of which members."""
    return [
        f"{dest}: {in_letters(frame.members)}"
        for dest, frame in side.said(wire.Propose)
        if isinstance(frame, wire.Propose)
    ]


def meets(side: Side, view: View) -> None:
    """All of a part say who is in it, until this one proposes a view with it."""
    for _ in range(50):
        for who in view:
            side.hear(who, hello(view))
        side.pass_time(100)
        if side.layer.change.is_frozen:
            return
    raise AssertionError(side.layer.explain(side.now))


# 3: a State tells of an old view


def test_a_proposer_does_not_leave_itself_out_with_a_part_that_was_in_one_view_with_it() -> None:
    side = Side(A)
    old = side.join(ViewId(D, 2), A, B, C, D)
    side.signal(Suspected(C, "a test"))
    side.signal(Suspected(D, "a test"))
    side.answer(B)
    assert in_letters(side.layer.change.view) == "AB"
    meets(side, View(ViewId(C, 5), (C, D)))
    side.hear(B, side.state(B))
    side.hear(D, side.state(D, old))
    side.pass_time(PATIENCE_MS)
    assert proposed(side)[-1] == "B: AB"


# 4: views that overlap


def test_a_hello_of_a_later_view_tells_which_members_of_mine_are_elsewhere() -> None:
    side = Side(A)
    side.join(ViewId(B, 2), A, B, C)
    side.hear(D, hello(View(ViewId(D, 3), (D, C))))
    assert side.layer.change.elsewhere == {C}
    assert proposed(side) == ["B: AB"]


def test_a_hello_of_an_earlier_view_tells_nothing() -> None:
    side = Side(A)
    side.join(ViewId(B, 3), A, B, C)
    side.hear(D, hello(View(ViewId(D, 2), (D, C))))
    assert side.layer.change.elsewhere == set()


def test_the_coordinator_is_told_who_is_elsewhere_until_it_has_seen_to_it() -> None:
    side = Side(B)
    side.join(ViewId(A, 2), A, B, C)
    side.said(wire.Complain)
    side.hear(D, hello(View(ViewId(D, 3), (D, C))))
    assert side.said(wire.Complain) == [(A, wire.Complain(C))]
    side.pass_time(50)
    assert side.said(wire.Complain) == [(A, wire.Complain(C))]
    side.join(ViewId(A, 4), A, B)
    side.said(wire.Complain)
    side.pass_time(500)
    assert side.said(wire.Complain) == []


def test_a_member_of_my_view_that_asks_is_answered() -> None:
    side = Side(A)
    view = side.join(ViewId(B, 2), A, B)
    side.said(wire.Hello)
    side.hear(B, hello(view, is_asking=True))
    assert [dest for dest, _ in side.said(wire.Hello)] == [B]
    side.hear(B, hello(view))
    assert side.said(wire.Hello) == []


def test_a_member_that_two_views_have_goes_on_in_one_of_them() -> None:
    """F flushes a view of all, is parted from the others before it begins there, and goes on with
    A, whom the others have never heard of."""
    patient = replace(SMALL, membership=MembershipConfig(suspect_after_s=8.0))
    group = ViewGroup("ABCDEFG", config=patient).form("BCDEFG")
    group.propose("B")
    assert group.run_until(lambda: is_flushed(group, "F"), 20)
    group.weather.part("AF", "BCDEG")
    group.start("A")
    assert group.run_until(lambda: group.view("F") == "AF", 5000)
    assert group.view("B") == "BCDEFG"
    group.weather.cuts.clear()
    assert group.run_until(group.is_one, 10_000), group.waits()
    assert group.observed.violations() == []


def is_flushed(group: ViewGroup, name: str) -> bool:
    return group.layer(name).change.follower.phase is Phase.FLUSHED


# 5: a word of the view that I have flushed


def flushed_side(me: Member = C) -> tuple[Side, ViewId]:
    """In a view of ABC, and waiting for Install of the next."""
    side, id = Side(me), ViewId(A, 3)
    side.join(ViewId(A, 2), A, B, C)
    side.flush(id, A, B, C)
    return side, id


def test_a_beat_that_comes_with_the_tag_of_the_view_that_it_installs_is_no_word_of_a_later() -> (
    None
):
    side, id = flushed_side()
    side.signal(SawView(A, tag_of(id)))
    side.signal(MemberAhead(A, id.counter))
    assert side.layer.change.view.id == id
    assert side.layer.change.elsewhere == set()
    side.signal(MemberAhead(A, id.counter + 1))
    assert side.layer.change.elsewhere == {A}


def test_a_hello_of_the_view_that_was_flushed_installs_it() -> None:
    side, id = flushed_side()
    side.signals.clear()
    side.hear(B, hello(View(id, (A, B, C))))
    assert side.layer.change.view.id == id
    assert [type(signal) for signal in side.signals] == [Begin]
    assert side.layer.change.elsewhere == set()


def test_who_is_frozen_takes_nobody_of_the_proposal_for_elsewhere() -> None:
    side, id = flushed_side()
    side.signal(MemberAhead(A, id.counter))
    side.hear(B, hello(View(ViewId(B, 4), (B,))))
    assert side.layer.change.elsewhere == set()
    assert side.layer.change.follower.promised == id


def test_who_is_frozen_takes_others_of_its_view_for_elsewhere() -> None:
    side = Side(B)
    side.join(ViewId(A, 2), A, B, C)
    side.flush(ViewId(A, 3), A, B)
    side.signal(MemberAhead(C, 5))
    assert side.layer.change.elsewhere == {C}


@pytest.mark.parametrize("word", [Heartbeat, wire.Hello])
def test_who_misses_install_goes_on_with_the_others_by_the_next_word(word: type[Frame]) -> None:
    group = ViewGroup("ABC").form()
    missed = {wire.Install, wire.InView}
    group.is_lost = lambda source, dest, kinds: (
        dest == "C" and word not in kinds and not missed.isdisjoint(kinds)
    )
    group.propose("A")
    group.run(20)
    assert is_flushed(group, "C")
    if word is wire.Hello:
        group.node("B").effects.datagram(group.node("C").me, group.layer("B")._hello())
        group.signal("B")
    assert group.run_until(lambda: not group.layer("C").change.is_frozen, 300)
    assert group.layer("C").change.elsewhere == set()
    group.is_lost = None
    group.run(3000)
    assert list(map(in_letters, group.observed.views_of(group.node("C").me))) == ["ABC", "ABC"]


def test_who_has_flushed_completes_the_view_of_another_whose_proposer_dies() -> None:
    group = ViewGroup("ABC", hint_ms=None).form()
    group.propose("A")
    assert group.run_until(lambda: is_flushed(group, "C"), 20)
    group.weather.cuts = {("A", "C"), ("B", "C")}
    group.run(20)
    completed = group.node("B").view
    group.crash("A")
    group.weather.cuts.clear()
    group.suspect("B", "A")
    assert group.run_until(group.is_one, 2000), group.waits()
    assert completed in group.observed.views_of(group.node("C").me)
    assert group.view("B") == "BC"


# 12: suspicions


def test_who_did_not_answer_before_is_not_suspected_in_a_view_that_it_takes_part_in() -> None:
    side = Side(A)
    side.join(ViewId(B, 2), A, B, C)
    side.layer.change.suspects = {C: NO_ANSWER, B: "no sign of life"}
    side.layer.change.passed.add(A)
    side.join(ViewId(B, 9), A, B, C)
    assert side.layer.change.suspects == {B: "no sign of life"}
