"""What reviews of the view change found: late and foreign frames, overlapping views, broken links.

For each rule there is a test that fails without it. Two are whole scenarios that other rules
resolve as well by now: of a member that two views have, and of one that has flushed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ringcast.config import MembershipConfig, StabilityConfig
from ringcast.core.effects import MemberAhead, Suspected
from ringcast.core.view_change import Begin, SawView, Snapshot
from ringcast.events import Closed
from ringcast.model import Address, Member, Origin, Purge, Stream, View, ViewId
from ringcast.protocols.views.change import NO_ANSWER
from ringcast.protocols.views.cookies import permit
from ringcast.protocols.views.fetch import WANTS_MAX
from ringcast.protocols.views.follower import Phase
from ringcast.protocols.views.frames import Flushable, Propose, State
from ringcast.protocols.views.requests import BROKEN_AFTER_NS, COMPLAINTS_MAX, Pairs
from ringcast.protocols.views.requests import FRESH_NS as COMPLAINT_NS
from ringcast.protocols.views.streams import UNREAD_WINDOWS, Standing, ViewStreams
from ringcast.protocols.views.timing import PATIENCE_NS
from ringcast.protocols.views.translation import Basis, decode_state, encode_state
from ringcast.wire import changes as wire
from ringcast.wire.changes import tag_of
from ringcast.wire.codec import Codec
from ringcast.wire.frames import Data, Heartbeat, Leave
from ringcast.wire.limits import VIEW_MEMBERS_MAX
from support.settings import PLAIN, wanted
from support.view_group import NAMES, SMALL, STRANGER, ViewGroup, in_letters
from support.view_side import A, B, C, D, Side

if TYPE_CHECKING:
    from ringcast.config import GroupConfig
    from ringcast.wire.frames import Frame

MS = 1_000_000
PATIENCE_MS = PATIENCE_NS / MS
BOTH_PLAIN = wanted(streams=(Stream.FIFO, Stream.UNIFORM))
X = A._replace(incarnation=9, address=A.address._replace(port=99), name="X")


def hello(view: View, *, is_asking: bool = False) -> wire.Hello:
    """Of the first of this view."""
    first, counter = view.coordinator, view.counter
    return wire.Hello(*(PLAIN, is_asking, False, counter), first, view.id, len(view), view.members)


def proposed(side: Side) -> list[str]:
    """To whom proposals went lately, and of which members."""
    asked = in_letters(side.asked())
    return [f"{dest}: {asked}" for dest, _ in side.said(wire.Propose)]


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
    side.join(ViewId(B, 2), A, B, C, D)
    side.hear(C, hello(View(ViewId(D, 3), (D, C))))
    assert side.layer.change.elsewhere == {C, D}
    assert proposed(side) == ["B: AB"]


def test_on_the_word_of_a_stranger_nobody_is_left_out_but_those_it_names_are_asked() -> None:
    side = Side(A)
    side.join(ViewId(B, 2), A, B, C)
    side.said(wire.Hello)
    later = View(ViewId(D, 3), (D, C))
    side.hear(D, hello(later))
    assert side.layer.change.elsewhere == set()
    assert [frame.is_asking for dest, frame in side.said(wire.Hello) if dest == C] == [True]
    side.hear(C, replace(hello(later), members=()))
    assert side.layer.change.elsewhere == {C}
    assert proposed(side) == ["B: AB"]


def test_who_counts_a_member_of_my_view_as_its_own_is_told_who_is_in_mine() -> None:
    """It asks that member, hears that it was left behind, and can come in then."""
    side = Side(A)
    side.join(ViewId(A, 3), A, B, C)
    side.said(wire.Hello)
    behind = View(ViewId(D, 2), (D, C))
    side.hear(D, hello(behind))
    ((dest, told),) = side.said(wire.Hello)
    assert dest == D
    assert told.members == (A, B, C)
    for _ in range(9):
        side.hear(D, hello(behind))  # copies, and its answer to this
    assert side.said(wire.Hello) == []
    side.pass_time(1000)
    assert proposed(side) == []
    side.hear(D, hello(View(ViewId(D, 4), (D,))))
    side.pass_time(100)
    assert proposed(side)[-1] == "D: ABCD"


def test_a_view_that_begins_after_others_have_gone_on_from_it_ends() -> None:
    """C proposes a view of C and D, and sleeps before it hears that D has all of it. D goes on with
    B, which has never been in a view with C; then C wakes, and begins the view."""
    group = ViewGroup("BCD")
    group.weather.part("B", "CD")
    group.start("C")
    group.start("D")
    assert group.run_until(lambda: is_flushed(group, "D"), 5000)
    group.process("C").pause()
    group.weather.cuts.clear()
    group.start("B")
    assert group.run_until(lambda: group.view("D") == "BD", 10_000)
    group.process("C").resume()
    assert group.run_until(lambda: group.view("C") == "CD", 10)
    assert group.run_until(group.is_one, 5000), group.waits()
    assert group.observed.violations() == []


def test_a_hello_of_an_earlier_view_tells_nothing() -> None:
    side = Side(A)
    side.join(ViewId(B, 3), A, B, C)
    side.hear(D, hello(View(ViewId(D, 2), (D, C))))
    assert side.layer.change.elsewhere == set()


@pytest.mark.parametrize("to", "AB")
def test_late_frames_of_an_earlier_incarnation_evict_nobody(to: str) -> None:
    """Of a process that has been restarted since; with higher counters than any view has. At worst
    a proposal that nobody goes on with is waited for."""
    group = ViewGroup("ABC").form()
    old = group.node("C").me
    group.crash("C")
    assert group.run_until(group.is_one, 5_000)
    group.start("C")
    assert group.run_until(group.is_one, 5_000)
    group.run(500)
    view = group.layer("A").view
    assert view is not None
    a, b, c = view
    assert c.address == old.address != a.address
    ahead = View(ViewId(old, view.counter + 2), (old,))
    with_all = wire.Propose(ViewId(old, view.counter + 3), (a, b, old), BOTH_PLAIN)
    for frame in (hello(ahead, is_asking=True), hello(ahead), with_all, Leave()):
        group.inject(to, frame, source=old)
        for _ in range(30):
            group.run(100)
            views = [group.layer(name).view for name in "ABC"]
            assert all(each is not None and set(each) == {a, b, c} for each in views)
    assert group.observed.violations() == []


def test_the_coordinator_is_told_who_is_elsewhere_until_it_has_seen_to_it() -> None:
    side = Side(B)
    side.join(ViewId(A, 2), A, B, C)
    side.said(wire.Complain)
    side.hear(C, hello(View(ViewId(D, 3), (D, C))))
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
    assert group.run_until(lambda: sorted(group.view("F")) == ["A", "F"], 5000)
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


def test_who_is_frozen_takes_nobody_of_the_proposal_for_elsewhere_but_who_is_past_it() -> None:
    side, id = flushed_side()
    side.signal(MemberAhead(A, id.counter))
    side.hear(B, hello(View(ViewId(B, id.counter), (B,))))
    assert side.layer.change.elsewhere == set()
    side.hear(B, hello(View(ViewId(B, id.counter + 1), (B,))))
    assert side.layer.change.elsewhere == {B}
    assert side.layer.change.follower.promised == id


def test_who_is_frozen_goes_on_once_others_of_the_proposal_are_in_a_later_view() -> None:
    side, id = flushed_side()
    side.hear(B, hello(View(ViewId(B, 4), (B,))))
    assert side.layer.change.elsewhere == {B}
    assert side.layer.change.follower.promised == id  # who proposed it may still install it
    side.hear(A, hello(View(ViewId(A, 5), (A,))))
    assert side.layer.change.view.members == (C,)


def test_who_answers_though_its_part_does_not_is_told_that_nothing_comes_of_it() -> None:
    side, other = Side(A), View(ViewId(B, 2), (B, C))
    side.join(ViewId(D, 2), A, D)
    side.hear(B, hello(other))
    side.pass_time(100)
    assert proposed(side)[-3:] == ["D: ADBC", "B: ADBC", "C: ADBC"]
    side.hear(D, side.state(D))
    side.hear(B, side.state(B, other))
    side.pass_time(PATIENCE_MS)
    assert proposed(side)[-1] == "D: AD"
    side.answer(D)
    assert side.layer.change.view.members == (A, D)
    assert [dest for dest, _ in side.said(wire.Hello)] == [B, C]


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
        to = group.node("C").me
        hello = group.layer("B").greetings.hello(to.address, group.world.clock.now)
        group.node("B").effects.datagram(to, hello)
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


# 10: who is cut off


@pytest.mark.parametrize(
    ("names", "who", "bound_ms"),
    [("ABC", "C", 1014), ("ABC", "B", 1514), (NAMES[:24], "X", 1014), (NAMES[:12], "G", 1514)],
    ids=["last of 3", "middle of 3", "last of 24", "middle of 12"],
)
def test_who_is_cut_off_goes_on_alone_as_soon_as_nobody_has_answered(
    names: str, who: str, bound_ms: float
) -> None:
    """VL3: 2 p + 14 delays; so far p longer where others stand behind it in the view."""
    group = ViewGroup(names, hint_ms=None).form()
    group.propose("A")
    assert group.run_until(lambda: is_flushed(group, who), 50)
    group.weather.part(who, names.replace(who, ""))
    assert group.run_until(lambda: not group.layer(who).change.is_frozen, bound_ms)
    assert group.view(who) == who


def test_those_who_live_and_do_not_propose_are_waited_for_in_steps_that_double() -> None:
    """The last of 24: for its proposer, then for one, two, four ... before it."""
    many = members(24)
    side = Side(many[-1])
    side.join(ViewId(many[0], 2), *many)
    side.flush(ViewId(many[0], 3), *many)
    side.pass_time(6 * PATIENCE_MS)
    assert side.said(wire.Propose) == []
    side.pass_time(PATIENCE_MS)
    assert len(side.said(wire.Propose)) == 23


# 12: suspicions


def test_who_did_not_answer_before_is_not_suspected_in_a_view_that_it_takes_part_in() -> None:
    side = Side(A)
    side.join(ViewId(B, 2), A, B, C)
    side.layer.change.suspects = {C: NO_ANSWER, B: "no sign of life"}
    side.layer.change.waiting.passed.add(A)
    side.join(ViewId(B, 9), A, B, C)
    assert side.layer.change.suspects == {B: "no sign of life"}


# 6: bytes of strangers, and of members that are not as they should be


def test_a_state_without_one_of_my_streams_is_no_answer() -> None:
    group = ViewGroup("ABC").form()
    group.is_lost = lambda source, dest, kinds: source == "B" and wire.State in kinds
    group.propose("A")
    group.run(10)
    proposer, member = group.layer("A").change.proposer, group.node("B").me
    assert proposer.proposal is not None
    view = group.layer("A").change.view
    state = wire.State(proposer.proposal.id, view.id, (), ((Stream.FIFO, 0),))
    group.inject("A", state, source=member)
    assert set(proposer.awaited) == {member}
    group.is_lost = None
    assert group.run_until(group.is_quiet, 1000), group.waits()


def test_states_of_nobody_who_was_asked_are_not_kept() -> None:
    side = Side(A)
    side.join(ViewId(B, 2), A, B)
    side.layer.change.propose((A, B), set(), (), side.now, side.out)
    before = set(side.layer.change._translator.views)
    proposal = side.layer.change.proposer.proposal
    assert proposal is not None
    for counter in range(10, 20):
        for id in (proposal.id, ViewId(X, 5)):
            side.hear(X, wire.State(id, ViewId(X, counter), (X,), ((Stream.FIFO, 0),)))
    assert set(side.layer.change._translator.views) == before
    side.answer(B)
    assert side.layer.change.view.id == proposal.id


@pytest.mark.parametrize(
    "places",
    [((0, 1, 2), (0,)), ((0, 1, 1), (2,)), ((0, 1),), ((0, 1, 2, 3),)],
    ids=["in two parts", "twice in one", "in none", "not there"],
)
def test_a_cut_has_each_member_of_the_proposal_once(places: tuple[tuple[int, ...], ...]) -> None:
    side, id = Side(B), ViewId(A, 3)
    view = side.join(ViewId(A, 2), A, B, C)
    side.hear(A, wire.Propose(id, (A, B, C), PLAIN))
    names = (view.id, ViewId(X, 1))
    parts = (wire.PartMarks(name, each, ()) for name, each in zip(names, places, strict=False))
    side.hear(A, wire.Cut(id, tuple(parts), ()))
    assert side.layer.change.follower.phase is Phase.FROZEN
    side.hear(A, wire.Cut(id, (wire.PartMarks(view.id, (0, 1, 2), ()),), ()))
    assert side.layer.change.follower.phase is Phase.FLUSHED


def test_a_cut_beyond_a_full_window_asks_for_nothing_and_the_member_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = ViewGroup("ABC").form()
    capacity = group.config.multicast.capacity
    monkeypatch.setattr("ringcast.protocols.views.fetch.CAPACITY_LIMIT", capacity)
    group.read("B", 0)
    group.send("A", capacity)
    group.run(100)
    members = (STRANGER, *group.layer("B").change.view)
    id = ViewId(STRANGER, group.layer("B").change.highest + 1)
    parts = (
        wire.PartMarks(group.layer("B").change.view.id, (1, 2, 3), ()),
        wire.PartMarks(ViewId(STRANGER, 1), (0,), ()),
    )
    permitted = permit(group.layer("B").change.follower.secret, STRANGER)
    group.inject("B", wire.Propose(id, members, BOTH_PLAIN, size=9, permit=permitted))
    group.inject("B", wire.Cut(id, parts, (wire.Mark(1, Stream.FIFO, 10**12),)))
    assert group.layer("B").change.follower.phase is Phase.FLUSHING
    group.run(100)
    group.read("B")
    assert group.run_until(group.is_quiet, 20_000), group.waits()
    assert group.observed.violations() == []


@pytest.mark.parametrize(
    "propose",
    [wire.Propose(ViewId(X, 9), (X, B), PLAIN), wire.Propose(ViewId(C, 9), (C, A, B), PLAIN)],
    ids=["not to me", "of another"],
)
def test_a_proposal_that_is_not_to_me_or_not_of_who_says_it_is_nothing(
    propose: wire.Propose,
) -> None:
    side = Side(A)
    side.join(ViewId(B, 2), A, B)
    side.frames.clear()
    side.hear(X, propose)
    assert side.frames == []
    assert side.layer.change.highest == 2
    assert not side.layer.change.is_frozen


@pytest.mark.parametrize("promised", [None, ViewId(X, 99)])
def test_a_refusal_of_somebody_who_was_not_asked_is_nothing(promised: ViewId | None) -> None:
    side = Side(A)
    side.join(ViewId(B, 2), A, B)
    side.layer.change.propose((A, B), set(), (), side.now, side.out)
    proposal = side.layer.change.proposer.proposal
    assert proposal is not None
    side.hear(X, wire.Refuse(proposal.id, promised, X))
    assert side.layer.change.proposer.proposal == proposal
    side.answer(B)
    assert side.layer.change.view.id == proposal.id


def test_a_member_with_other_streams_takes_nobody_down() -> None:
    """It is not let in, and told why."""
    group = ViewGroup("ABC").form("AB")
    group.streams = (Stream.FIFO,)
    group.start("C")
    group.run(10_000)
    assert [group.view(name) for name in "ABC"] == ["AB", "AB", ""]
    assert str(group.layer("C").agreement.refusal).endswith(
        "has the streams fifo and uniform, and this member fifo: give all members the same streams"
    )
    assert group.run_until(lambda: len(group.send("A", 1, Stream.UNIFORM)) == 1, 1000)


# 8: what a flush brings


@pytest.mark.parametrize("stream", [Stream.FIFO, Stream.UNIFORM])
def test_what_a_flush_brings_is_read_when_its_view_begins_not_before(stream: Stream) -> None:
    group = ViewGroup("ABC").form()
    unheard = {wire.InView, wire.Install, Data}
    group.is_lost = lambda source, dest, kinds: dest == "C" and not unheard.isdisjoint(kinds)
    sent = group.send("B", 3, stream)
    group.propose("A")
    assert group.run_until(lambda: is_flushed(group, "C"), 200)
    reader, view = group.node("C").me, group.layer("C").change.view
    origin = Origin(group.node("B").me, stream)
    half = streams_of(group, "C").receivers[origin]
    assert half.window.received == 3
    assert group.observed.got(reader, view.id, origin) == []
    group.is_lost = None
    assert group.run_until(lambda: not group.layer("C").change.is_frozen, 500)
    group.run(10)
    assert group.observed.got(reader, view.id, origin) == sent
    assert group.observed.violations() == []


def streams_of(group: ViewGroup, name: str) -> ViewStreams:
    streams = group.node(name).multicast
    assert isinstance(streams, ViewStreams)
    return streams


# 9: nothing follows on Closed

REPORTING = replace(SMALL, multicast=replace(SMALL.multicast, stability=StabilityConfig()))


@pytest.mark.parametrize("config", [SMALL, REPORTING], ids=["acks", "reports"])
def test_after_closed_there_is_nothing_to_read_and_nothing_to_wait_for(config: GroupConfig) -> None:
    group = ViewGroup("ABC", config=config).form()
    group.read("B", 0)
    for name in "BC":
        group.send(name, 4)
    group.run(200)
    group.crash("C")
    assert group.run_until(lambda: group.view("B") == "AB", 5000)
    process = group.process("B")
    node, now = process.node, process.now
    assert streams_of(group, "B").reading.unread
    node.close(now)
    assert [type(event) for event in node.take_events(0, now)][-1:] == [Closed]
    assert not node.has_ready
    assert node.take_events(100, now) == []
    node.take_datagrams(now)
    assert node.next_timeout() is None
    node.check_invariants()


def test_who_closes_in_the_middle_of_a_change_waits_for_nothing() -> None:
    group = ViewGroup("ABC").form()
    group.is_lost = lambda source, dest, kinds: (
        dest == "C" and not kinds.isdisjoint({Data, wire.Forwarded})
    )
    group.send("B", 3)
    group.propose("A")
    assert group.run_until(lambda: streams_of(group, "C").standing is Standing.FLUSHING, 200)
    process = group.process("C")
    process.node.close(process.now)
    assert process.node.next_timeout() is None
    process.node.check_invariants()


# 13: what fits a datagram


def test_a_state_that_tells_of_many_proposals_of_many_members_is_short() -> None:
    many = members(VIEW_MEMBERS_MAX)
    listed = tuple(Flushable(ViewId(many[0], 6 + n), many[n:]) for n in range(8))
    snapshot = Snapshot({Stream.FIFO: 1}, {})
    view = View(ViewId(many[0], 5), many)
    state = State(ViewId(many[0], 20), view, snapshot, listed)
    proposal = Propose(state.id, many, settings=PLAIN)
    frame = encode_state(state, proposal, None, {}, lambda stream: True)
    (datagram,) = Codec("g", many[1], 1400).pack([frame], many[0])
    _, (said,) = Codec("g", many[0], 1400).unpack(datagram)
    assert said == frame
    assert decode_state(frame, proposal, {}, Basis(view, {})) == state


def test_a_state_that_tells_of_others_than_were_asked_lists_as_many_as_a_view_has() -> None:
    many = members(VIEW_MEMBERS_MAX)
    listed = tuple(Flushable(ViewId(many[0], 6 + n), many[1:200]) for n in range(8))
    view = View(ViewId(many[0], 5), many)
    state = State(ViewId(many[0], 20), view, Snapshot({Stream.FIFO: 1}, {}), listed)
    proposal = Propose(state.id, many[:1], settings=PLAIN)
    frame = encode_state(state, proposal, None, {}, lambda stream: True)
    decoded = decode_state(frame, proposal, {}, Basis(view, {}))
    assert decoded is not None
    assert decoded.flushed == listed[-2:]
    assert all(decoded.may_have_flushed(each.id) for each in listed)


def members(count: int) -> tuple[Member, ...]:
    return tuple(
        Member(Address(f"192.168.100.{n % 250}", 7000 + n), 1 << 40, f"worker-node-{n:03}")
        for n in range(count)
    )


@pytest.mark.parametrize("purge", Purge)
@pytest.mark.parametrize("is_too_large", [False, True])
def test_a_view_has_as_many_members_as_it_may(purge: Purge, *, is_too_large: bool) -> None:
    side, many = Side(A, purge), members(VIEW_MEMBERS_MAX - 1 + is_too_large)
    side.pass_time(1000)
    part = hello(View(ViewId(many[0], 3), many))
    side.hear(many[0], replace(part, settings=side.settings, size=0))
    side.pass_time(100)
    assert bool(side.said(wire.Propose)) != is_too_large


# 14: who is given what it wants


def test_what_a_stranger_wants_it_does_not_get() -> None:
    group = ViewGroup("ABC").form()
    group.read("B", 0)
    group.send("A", 10)
    group.run(5)
    sender, ids = group.node("A").me, [ViewId(STRANGER, 1), group.layer("A").change.view.id]
    for id in ids:
        assert answers(group, "A", wire.Want(id, sender, Stream.FIFO, (range(1, 11),))) == 0


def test_a_member_is_given_four_windows_of_each_stream_for_one_proposal() -> None:
    group = ViewGroup("ABCD").form()
    capacity = group.config.multicast.capacity
    group.read("B", 0)
    for stream in group.streams:
        group.send("A", capacity, stream)
    group.run(50)
    group.weather.part("A", "BCD")
    group.propose("A")
    sender, source = group.node("A").me, group.node("B").me
    for stream in group.streams:
        id, missing = group.layer("A").change.follower.promised, range(1, capacity + 1)
        want = wire.Want(id, sender, stream, (missing,))
        given = [answers(group, "A", want, source) for _ in range(WANTS_MAX + 2)]
        assert given == [capacity] * WANTS_MAX + [0, 0]


def test_a_proposer_is_given_what_it_wants_for_others_as_often_as_each_might_ask() -> None:
    group = ViewGroup("ABCD").form()
    capacity = group.config.multicast.capacity
    group.read("D", 0)
    group.send("B", capacity)
    group.run(50)
    group.weather.part("B", "ACD")
    id, proposer = later(group), group.node("A").me
    group.inject(
        "B", wire.Propose(id, tuple(group.layer("A").change.view), BOTH_PLAIN), source=proposer
    )
    for asker in "CD":
        member = group.node(asker).me
        sender, missing = group.node("B").me, range(1, capacity + 1)
        want = wire.Want(id, sender, Stream.FIFO, (missing,), member)
        given = [answers(group, "B", want, proposer) for _ in range(WANTS_MAX + 2)]
        assert given == [capacity] * WANTS_MAX + [0, 0]


def later(group: ViewGroup) -> ViewId:
    """A proposal of A, above all that there were."""
    return ViewId(group.node("A").me, group.layer("A").change.highest + 1)


def answers(group: ViewGroup, name: str, want: wire.Want, source: Member = STRANGER) -> int:
    """How many messages it sends for that."""
    process = group.process(name)
    codec = Codec(group.config.group, source, 60_000)
    process.node.receive_datagrams(codec.pack([want], process.node.me), process.now)
    pending = [frame for _, frame in process.node.pending()]
    process.turn()
    return sum(frame.data.count for frame in pending if isinstance(frame, wire.Forwarded))


# 15: what waits for a reader


def test_who_does_not_read_what_departed_members_sent_closes_itself_in_the_end() -> None:
    group = ViewGroup("ABC").form("AB")
    group.read("B", 0)
    reader, most = group.node("B").me, UNREAD_WINDOWS * group.config.multicast.window_bytes
    waiting = 0
    while reader not in group.observed.closed:
        assert waiting <= most
        group.start("C")
        assert group.run_until(group.is_one, 20_000), group.waits()
        waiting += sum(map(len, group.send("C", 16, size=3000)))
        group.run(500)
        group.crash("C")
        assert group.run_until(lambda: group.view("A") in ("A", "AB"), 5000), group.waits()
        group.run(100)
    assert waiting > most
    assert "departed" in group.observed.closed[reader]
    assert group.run_until(lambda: group.view("A") == "A", 5000)


# M3: two members that do not hear each other (in groups: test_views_links.py)


def test_a_part_comes_in_when_it_has_answered_not_when_it_only_asks() -> None:
    """D10: it may not hear us; all would freeze for it in vain."""
    side = Side(A)
    side.pass_time(1000)
    part = View(ViewId(B, 2), (B,))
    side.said(wire.Hello)
    side.hear(B, hello(part, is_asking=True))
    assert next(dest for dest, _ in side.said(wire.Hello)) == B
    side.pass_time(100)
    assert proposed(side) == []
    side.hear(B, hello(part))
    assert side.said(wire.Hello) == []
    side.pass_time(100)
    assert proposed(side)[0] == "B: AB"


def test_who_is_told_that_it_is_not_heard_complains_of_that_one() -> None:
    side = Side(B)
    side.join(ViewId(A, 2), A, B, C, D)
    side.join(ViewId(A, 3), A, B, C)
    side.said(wire.Complain)
    for _ in range(2):
        side.hear(X, wire.Complain(B))  # it was never with this one
    assert side.said(wire.Complain) == []
    side.hear(C, wire.Complain(B))
    assert side.said(wire.Complain) == [(A, wire.Complain(C))]
    side.hear(D, wire.Complain(B))
    assert side.said(wire.Complain) == []  # it may have heard the answer
    side.hear(D, wire.Complain(B))
    assert side.said(wire.Complain) == [(A, wire.Complain(D))]


def test_complaints_that_are_over_make_room_for_others() -> None:
    pairs, many = Pairs(), members(COMPLAINTS_MAX)
    for who in many:
        pairs.complain(A, who, 0)
    view = View(ViewId(A, 2), (A, B))
    pairs.complain(A, C, COMPLAINT_NS - 1)
    assert not pairs.is_barred([C], view, COMPLAINT_NS - 1)
    pairs.complain(A, C, COMPLAINT_NS)
    pairs.complain(A, C, COMPLAINT_NS + BROKEN_AFTER_NS)
    assert pairs.is_barred([C], view, COMPLAINT_NS + BROKEN_AFTER_NS)


# 15: who answers Hello and nothing else; and whose proposals are not answered


def test_who_answers_no_proposal_holds_senders_up_for_a_tenth_of_the_time_at_most() -> None:
    group = ViewGroup("ABC").form("AB")
    deaf = {wire.Propose}
    group.is_lost = lambda source, dest, kinds: dest == "C" and not deaf.isdisjoint(kinds)
    group.start("C")
    group.run(1000)
    frozen = 0.0
    for _ in range(3000):
        group.run(10)
        frozen += 10 * any(group.layer(name).change.is_frozen for name in "AB")
    assert frozen > 0
    assert frozen <= 0.1 * 30_000
    assert group.view("A") == group.view("B") == "AB"


@pytest.mark.parametrize(("size", "is_answered"), [(4, True), (3, True), (2, False), (0, False)])
def test_a_proposer_of_a_lesser_part_is_refused(size: int, *, is_answered: bool) -> None:
    """Of three: more members go first, and of as many the lower address does."""
    side = Side(C)
    side.join(ViewId(B, 2), B, C, D)
    side.said(wire.State)
    side.hear(A, wire.Propose(ViewId(A, 5), (A, B, C, D), PLAIN, size=size))
    said = [type(frame) for _, frame in side.frames if isinstance(frame, wire.State | wire.Refuse)]
    assert said == ([wire.State] if is_answered else [wire.Refuse])


def test_a_proposer_of_a_part_with_a_state_goes_before_a_larger_one() -> None:
    side = Side(C)
    side.join(ViewId(B, 2), B, C, D)
    side.said(wire.State)
    side.hear(X, wire.Propose(ViewId(X, 5), (X, B, C, D), PLAIN, has_state=True, size=1))
    assert [dest for dest, _ in side.said(wire.State)] == [X]
