"""The application's state goes over at the cut of a view, and then all that is not in it, once.

Each application keeps what it was handed, by sender; that is its state.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from ringcast.config import MembershipConfig
from ringcast.core.effects import Effects
from ringcast.core.shared import Phase
from ringcast.core.view_change import Begin, Cut, Part, Snapshot, StateChanged, StateStanding
from ringcast.events import (
    Delivered,
    StateAbandoned,
    StateBegun,
    StateChunk,
    StateLost,
    StateReceived,
    StateWanted,
    StateWritable,
    ViewInstalled,
)
from ringcast.model import Address, Digest, Member, Run, Stream, View, ViewId
from ringcast.node import build_node
from ringcast.protocols.views import state as views_state
from ringcast.protocols.views.frames import Propose, State
from ringcast.protocols.views.parts import share_state
from ringcast.protocols.views.taking import RETRY_NS
from ringcast.wire.changes import Holding
from ringcast.wire.frames import (
    JoinerBlocked,
    StateBegin,
    StateCancel,
    StateData,
    StateEnd,
    StateRefused,
)
from support.view_group import SMALL, ViewGroup

if TYPE_CHECKING:
    from ringcast.config import GroupConfig
    from ringcast.events import Event
    from ringcast.node import Node
    from ringcast.wire.frames import SystemMessage

PATIENCE_MS = 11_000.0


class Keeper:
    """One application: it keeps messages, and gives them away as it is told to."""

    def __init__(self, group: StateGroup, node: Node) -> None:
        self.node = node
        self.kept: list[bytes] = []
        self.views = 0
        self.lost = 0
        self.begun = 0
        self.received = 0
        self.gives = True
        """If not, it leaves who wants the state waiting."""
        self.gives_at_once = 1000
        """So many chunks, and more a little later."""
        self.refuses = False
        self.told: list[type[Event]] = []
        self.alone: list[bytes] = []
        """What was sent to it alone."""
        self.wanted: list[int] = []
        self.abandoned: list[int] = []
        self._group = group
        self._rest: dict[int, list[bytes]] = {}

    def see(self, event: Event) -> None:
        self.told.append(type(event))
        match event:
            case Delivered(_, run):
                kept = self.alone if event.epoch else self.kept
                kept += run.payloads
            case ViewInstalled():
                self.views += 1
            case StateWanted(transfer):
                self.wanted.append(transfer)
                self._rest[transfer] = list(self.kept)
                self._group.world.clock.after(0, self.give, transfer)
            case StateWritable(transfer):
                self._group.world.clock.after(0, self.give, transfer)
            case StateAbandoned(transfer):
                self.abandoned.append(transfer)
                self._rest.pop(transfer, None)
            case StateBegun():
                self.begun += 1
                self.kept.clear()
            case StateChunk(payload):
                self.kept.append(payload)
            case StateReceived():
                self.received += 1
            case StateLost():
                self.lost += 1

    def give(self, transfer: int) -> None:
        process = self._group.world.processes[self.node.me.address]
        if transfer not in self._rest or process.node is not self.node or not process.can_act:
            return
        if self.refuses:
            self.node.refuse_state(transfer, process.now)
        elif self.gives:
            rest, most = self._rest.pop(transfer), self.gives_at_once
            accepted = self.node.provide_state(
                *(transfer, rest[:most], process.now), is_last=len(rest) <= most
            )
            if accepted < len(rest):
                self._rest[transfer] = rest[accepted:]
            if accepted == most:
                self._group.world.clock.after(2, self.give, transfer)
        process.turn()


class StateGroup(ViewGroup):
    def __init__(self, names: str, **options: Any) -> None:
        super().__init__(names, **options)
        self.keepers: dict[str, Keeper] = {}
        self.before_sending = lambda node: node.check_invariants()

    def build(self, me: Member, config: GroupConfig) -> Node:
        node = build_node(me, config, streams=self.streams, state=True)
        self.keepers[me.name] = Keeper(self, node)
        return node

    def see(self, me: Member, event: Event) -> None:
        self.keepers[me.name].see(event)

    def states(self, names: str | None = None) -> list[list[bytes]]:
        return [sorted(self.keepers[name].kept) for name in names or self.names]

    def state_of(self, name: str) -> views_state.StateTransfer:
        state = self.node(name).state
        assert isinstance(state, views_state.StateTransfer)
        return state

    def assert_same(self, names: str | None = None) -> None:
        first, *others = self.states(names)
        assert len(first) == len(set(first))
        assert all(other == first for other in others)


def test_who_founds_a_group_has_the_state_and_who_joins_takes_it() -> None:
    group = StateGroup("ABC").form("A")
    sent = group.send("A", 5)
    group.form("BC")
    assert group.states() == [sorted(sent)] * 3
    assert [group.keepers[name].received for name in "ABC"] == [0, 1, 1]


def test_members_that_start_together_have_one_state() -> None:
    group = StateGroup("ABCD")
    for name in "ABCD":
        group.start(name)
    assert group.run_until(group.is_one, 5000)
    for name in "ABCD":
        group.send(name, 3)
        group.send(name, 3, Stream.UNIFORM)
    group.run(500)
    group.assert_same()
    assert len(group.states()[0]) == 24


def test_what_is_sent_while_the_state_is_on_its_way_follows_on_it() -> None:
    group = StateGroup("ABC").form("AB")
    group.send("A", 3)
    group.run(100)
    group.keepers["A"].gives = group.keepers["B"].gives = False
    group.start("C")
    assert group.run_until(group.is_one, 2000)
    group.send("A", 4)
    group.send("B", 4, Stream.UNIFORM)
    group.run(100)
    assert "waits for the state" in " ".join(group.node("C").explain(group.process("C").now))
    assert group.state_of("C").is_behind
    giver = "A" if group.keepers["A"].wanted else "B"
    group.keepers[giver].gives = True
    group.keepers[giver].give(group.keepers[giver].wanted[-1])
    group.run(500)
    group.assert_same()
    assert len(group.states()[0]) == 11


@pytest.mark.parametrize("how", ["dies", "refuses", "says nothing", "leaves"])
def test_another_gives_the_state_if_its_provider(how: str) -> None:
    group = StateGroup("ABC").form("AB")
    group.send("B", 3)
    group.run(100)
    first = group.node("A").view.members[0].name if group.node("A").view else ""
    second = "B" if first == "A" else "A"
    provider = group.keepers[first]
    provider.gives, provider.refuses = False, how == "refuses"
    group.start("C")
    assert group.run_until(lambda: bool(provider.wanted), 3000)
    group.send(second, 4)
    if how == "dies":
        group.crash(first)
    elif how == "leaves":
        group.leave(first)
    group.run(PATIENCE_MS)
    stay = "ABC" if how in ("refuses", "says nothing") else f"{second}C"
    assert group.keepers["C"].received == 1
    group.assert_same(stay)
    assert len(group.states(stay)[0]) == 7


@pytest.mark.parametrize("who", ["A", "B", "C"], ids=["provider", "another", "taker"])
@pytest.mark.parametrize("at_ms", range(8, 24, 5))
def test_anybody_dies_while_the_state_is_on_its_way(who: str, at_ms: int) -> None:
    """Chunks are given in turns, messages are sent all the time, and a large one is under way."""
    group = StateGroup("ABCD").form("AB")
    for name in "AB":
        group.send(name, 10)
    group.run(100)
    for keeper in group.keepers.values():
        keeper.gives_at_once = 2
    group.start("C")
    for step in range(30):
        group.send("B", 1)
        if step == 5:
            group.send("A", 1, size=9000)
        if step == at_ms // 2:
            group.crash(who)
            group.start("D")
        group.run(2)
    assert group.run_until(group.is_one, 10_000)
    group.run(2000)
    group.assert_same("ABCD".replace(who, ""))
    assert group.is_quiet(), group.waits()


def test_an_application_gets_the_view_then_its_state_then_messages() -> None:
    """Those to it alone, too; and nobody waits for a state that travels."""
    group = StateGroup("ABC").form("AB")
    group.keepers["A"].gives = False
    group.start("C")
    assert group.run_until(group.is_one, 3000)
    a, c = group.node("A"), group.node("C").me
    a.send([b"to C alone"], group.world.clock.now, to=c)
    for _ in range(10):
        assert len(group.send("B", 10)) == 10
        group.run(50)
    assert group.keepers["C"].told == [ViewInstalled, StateBegun]
    group.keepers["A"].gives = True
    group.keepers["A"].give(group.keepers["A"].wanted[-1])
    group.run(500)
    group.assert_same()
    kinds = list(dict.fromkeys(group.keepers["C"].told))
    assert kinds == [ViewInstalled, StateBegun, StateReceived, Delivered]
    assert group.keepers["C"].alone == [b"to C alone"]


def test_who_is_refused_while_a_view_changes_asks_another_in_the_next_one() -> None:
    group = StateGroup("ABC").form("AB")
    group.send("B", 3)
    group.run(100)
    view = group.node("A").view
    assert view is not None
    first = view.members[0].name
    provider = group.keepers[first]
    provider.gives = False
    group.start("C")
    assert group.run_until(lambda: bool(provider.wanted), 3000)
    group.run(20)
    group.propose(first)
    group.run(1.5)  # C has said what it has, and that it is being given the state
    assert group.layer("C").change.is_frozen
    provider.refuses = True
    provider.give(provider.wanted[-1])
    group.run(1000)
    assert (group.keepers["C"].lost, group.keepers["C"].received) == (0, 1)
    group.assert_same()


def test_who_has_lost_a_piece_of_its_state_asks_the_only_one_who_has_it_again() -> None:
    group = StateGroup("AB").form("A")
    sent = group.send("A", 3)
    group.keepers["A"].gives = False
    group.start("B")
    assert group.run_until(lambda: group.state_of("B").taking.incoming is not None, 3000)
    group.keepers["A"].gives = True
    incoming, process = group.state_of("B").taking.incoming, group.process("B")
    assert incoming is not None
    late = StateData(incoming.transfer, 7, b"the first seven are lost")
    group.state_of("B").receive_message(group.node("A").me, late, process.now, process.node.effects)
    group.signal("B")
    group.run(1000)
    assert (group.keepers["B"].lost, group.keepers["B"].received) == (0, 1)
    assert group.states() == [sorted(sent)] * 2


def test_the_state_is_lost_if_nobody_can_give_it() -> None:
    group = StateGroup("ABC").form("AB")
    group.send("A", 3)
    group.run(100)
    for name in "AB":
        group.keepers[name].refuses = True
    group.start("C")
    group.run(3000)
    sent = group.send("A", 2)
    group.run(500)
    assert group.keepers["C"].lost == 1
    assert group.keepers["C"].kept[-2:] == sent
    assert not group.state_of("C").is_behind


def test_who_has_refused_another_is_asked_by_who_joins() -> None:
    group = StateGroup("ABCD").form("A")
    group.send("A", 3)
    keeper = group.keepers["A"]
    keeper.gives = False
    group.start("B")
    assert group.run_until(lambda: len(keeper.wanted) == 1, 3000)
    group.run(100)
    keeper.refuses = True
    group.start("C")
    assert group.run_until(lambda: len(keeper.wanted) == 2, 3000)
    group.run(100)
    keeper.refuses = False
    group.start("D")
    assert group.run_until(group.is_one, 3000)
    group.run(300)
    assert len(keeper.wanted) == 3
    assert all(group.state_of(name).is_behind for name in "BCD")
    assert keeper.views <= 6
    keeper.gives = True
    keeper.give(keeper.wanted[-1])
    group.send("A", 2)
    group.run(3000)  # C gets it from D
    group.assert_same("ACD")
    assert [group.keepers[name].lost for name in "BCD"] == [0, 0, 0]
    assert [group.keepers[name].received for name in "BCD"] == [0, 1, 1]


def test_who_alone_has_the_state_and_is_slow_is_asked_again_with_more_patience() -> None:
    group = StateGroup("ABC").form("A")
    sent = group.send("A", 3)
    group.keepers["A"].gives = False
    group.start("B")
    group.run(25_000)
    assert len(group.keepers["A"].wanted) == 2
    assert group.keepers["B"].lost == 0
    assert group.state_of("B").is_behind
    group.keepers["A"].gives = True
    group.keepers["A"].give(group.keepers["A"].wanted[-1])
    group.run(500)
    assert group.states("AB") == [sorted(sent)] * 2
    assert group.keepers["B"].received == 1


def test_if_who_alone_has_the_state_is_gone_one_who_waits_goes_on_and_gives_what_it_has() -> None:
    group = StateGroup("ABC").form("A")
    group.send("A", 3)
    group.keepers["A"].gives = False
    for name in "BC":
        group.start(name)
    assert group.run_until(lambda: len(group.keepers["A"].wanted) == 2, 3000)
    group.crash("A")
    assert group.run_until(group.is_one, 8000)
    sent = group.send("B", 2)
    group.run(500)
    assert group.states("BC") == [sorted(sent)] * 2
    assert sorted((group.keepers[name].lost, group.keepers[name].received) for name in "BC") == [
        (0, 1),
        (1, 0),
    ]


def test_who_has_to_read_before_its_state_and_is_left_alone_goes_on_without() -> None:
    group = StateGroup("AB").form("A")
    group.start("B")
    group.read("B", 0)
    assert group.run_until(group.is_one, 3000)
    group.run(500)
    group.keepers["A"].gives = False
    group.send("A", 3)
    group.weather.part("A", "B")
    assert group.run_until(lambda: group.view("B") == "B", 8000)
    group.weather.cuts.clear()
    assert group.run_until(group.is_one, 20_000)
    group.run(100)
    assert group.state_of("B").phase is views_state.Phase.EXPECTING
    group.crash("A")
    assert group.run_until(lambda: group.view("B") == "B", 8000)
    group.read("B")
    sent = group.send("B", 2)
    group.run(100)
    assert not group.state_of("B").is_behind
    assert group.keepers["B"].lost == 1
    assert group.keepers["B"].kept[-2:] == sent


def test_where_parts_come_together_the_lesser_takes_the_state_of_the_larger() -> None:
    group = StateGroup("ABC").form()
    group.weather.part("AB", "C")
    assert group.run_until(lambda: group.view("C") == "C", 8000)
    group.send("A", 3)
    lost = group.send("C", 2)
    group.run(3000)
    group.weather.cuts.clear()
    assert group.run_until(group.is_one, 20_000)
    group.send("C", 1)
    group.run(1000)
    group.assert_same()
    assert not set(lost) & set(group.states()[0])


def test_whoever_is_still_being_given_the_lesser_state_takes_the_larger() -> None:
    group = StateGroup("ABCDE").form("ABCD")
    group.weather.part("ABC", "DE")
    assert group.run_until(lambda: group.view("D") == "D", 8000)
    lost = group.send("D", 2)
    group.run(100)
    group.keepers["D"].gives = False
    group.start("E")
    assert group.run_until(lambda: group.view("E") == "DE", 8000)
    group.send("A", 3)
    assert group.state_of("E").taking.provider == group.node("D").me
    group.weather.cuts.clear()
    assert group.run_until(group.is_one, 20_000)
    group.keepers["D"].gives = True
    for transfer in group.keepers["D"].wanted:
        group.keepers["D"].give(transfer)
    group.send("E", 1)
    group.run(1000)
    group.assert_same()
    assert not set(lost) & set(group.states()[0])
    assert group.keepers["E"].received == 1


def test_a_reader_that_is_behind_takes_the_state_after_what_it_has_to_read() -> None:
    group = StateGroup("ABC").form()
    group.read("C", 0)
    before = group.send("A", 3)
    group.run(100)
    group.weather.part("AB", "C")
    assert group.run_until(lambda: group.view("A") == group.view("B") != "ABC", 8000)
    group.send("A", 2)
    group.run(4000)
    group.weather.cuts.clear()
    assert group.run_until(group.is_one, 20_000)
    group.run(500)
    assert group.state_of("C").phase is views_state.Phase.EXPECTING
    assert "the state follows" in " ".join(group.node("C").explain(group.process("C").now))
    group.crash("B")  # another cut, before it has come to the first
    group.run(5000)
    group.read("C")
    group.run(2000)
    assert set(before) <= set(group.keepers["A"].kept)
    group.assert_same("AC")


def test_who_may_keep_no_more_holds_senders_up_and_says_so() -> None:
    small = replace(SMALL, membership=MembershipConfig(join_buffer_bytes=4096))
    group = StateGroup("ABC", config=small).form("AB")
    group.keepers["A"].gives = group.keepers["B"].gives = False
    group.start("C")
    assert group.run_until(group.is_one, 3000)
    for _ in range(20):
        group.send("A", 4)
        group.run(20)
    explained = " ".join(group.node("A").explain(group.process("A").now))
    assert "C blocks senders" in explained
    for keeper in (group.keepers["A"], group.keepers["B"]):
        keeper.gives = True
        for transfer in keeper.wanted:
            keeper.give(transfer)
    group.run(2000)
    group.assert_same()
    assert "blocks senders" not in " ".join(group.node("A").explain(group.process("A").now))


def test_a_leaver_abandons_what_it_takes_and_gives() -> None:
    group = StateGroup("ABC").form("AB")
    group.keepers["A"].gives = group.keepers["B"].gives = False
    group.start("C")
    assert group.run_until(group.is_one, 3000)
    group.leave("C")
    group.run(2000)
    assert group.layer("C").phase is Phase.OUT
    assert group.keepers["A"].abandoned + group.keepers["B"].abandoned
    assert group.view("A") in ("AB", "BA")


@pytest.mark.parametrize("seed", range(4))
def test_at_random_all_that_go_on_together_end_with_one_state(seed: int) -> None:
    dice = Random(seed)
    group = StateGroup("ABCD", seed=seed)
    group.weather.loss = dice.choice([0.0, 0.02])
    group.weather.jitter_ms = dice.choice([0.0, 5.0])
    for name in "ABCD":
        group.start(name)
        group.run(dice.uniform(0, 200))
    for _ in range(12):
        name = dice.choice("ABCD")
        group.send(name, dice.randint(1, 5), dice.choice([Stream.FIFO, Stream.UNIFORM]))
        group.run(dice.uniform(1, 300))
        match dice.randrange(6):
            case 0 if len(group.living()) > 2 and group.process(name).is_up:
                group.crash(name)
                group.run(dice.uniform(0, 3000))
                group.start(name)
            case 1:
                group.weather.part(name, "ABCD".replace(name, ""))
                group.run(dice.uniform(0, 4000))
                group.weather.cuts.clear()
            case _:
                pass
    group.weather.loss = 0.0
    assert group.run_until(group.is_one, 60_000)
    group.run(20_000)
    assert group.is_quiet(), group.waits()
    uniform = group.send("A", 3, Stream.UNIFORM)
    group.run(2000)
    for name in "ABCD":
        kept = group.keepers[name].kept
        assert len(kept) == len(set(kept))
        assert set(uniform) <= set(kept)


# Who gives and who takes

A, B, C, D = (Member(Address("h", port), 1, name) for port, name in enumerate("ABCD", 1))


def shared(*standings: StateStanding, apart: str = "") -> tuple[str, str]:
    """Who gives, and who takes, of A, B, C and D; `apart`: who come from another part."""
    members = (A, B, C, D)[: len(standings)]
    sides = [
        tuple(who for who in members if (who.name in apart) is is_apart)
        for is_apart in (False, True)
    ]
    views = [View(ViewId(side[0], 2), side) for side in sides if side]
    states = {
        who: State(ViewId(A, 5), view, Snapshot({}, {}), standing=standings[members.index(who)])
        for view in views
        for who in view
    }
    parts = [Part(view.id, view.members, {}, {}) for view in views]
    provider, takers = share_state(Propose(ViewId(A, 5), members), parts, states)
    return "" if provider is None else provider.name, "".join(who.name for who in takers)


NONE, LACKS, HOLDS, KEEPS = (StateStanding(holding) for holding in Holding)
REFUSED = LACKS._replace(refused=(A,))


@pytest.mark.parametrize(
    ("standings", "apart", "expected"),
    [
        ((NONE, NONE, NONE), "", ("", "")),
        ((LACKS, LACKS, LACKS), "", ("A", "BC")),
        ((LACKS, LACKS, NONE), "", ("", "")),
        ((LACKS, HOLDS, LACKS), "", ("B", "AC")),
        ((HOLDS, HOLDS, LACKS._replace(provider=B)), "", ("A", "")),
        ((HOLDS, HOLDS, LACKS._replace(provider=B, refused=(A,))), "", ("B", "")),
        ((HOLDS, HOLDS, REFUSED), "", ("B", "C")),
        ((HOLDS, HOLDS, REFUSED, LACKS), "", ("B", "CD")),
        ((HOLDS, REFUSED, NONE), "", ("", "")),
        ((HOLDS, REFUSED, REFUSED), "", ("", "")),
        ((HOLDS, REFUSED, LACKS), "", ("A", "C")),
        ((HOLDS, REFUSED, LACKS._replace(provider=A)), "", ("A", "")),
        ((HOLDS, REFUSED, LACKS._replace(provider=A), LACKS), "", ("A", "D")),
        ((HOLDS, REFUSED, LACKS._replace(provider=D)), "", ("A", "C")),
        ((HOLDS, REFUSED._replace(provider=D), NONE), "", ("", "")),
        ((HOLDS, HOLDS, REFUSED, LACKS._replace(refused=(B,))), "", ("A", "D")),
        ((HOLDS, REFUSED, HOLDS), "C", ("C", "AB")),
        ((HOLDS, LACKS._replace(refused=(A, C)), HOLDS, LACKS), "C", ("A", "CD")),
        ((HOLDS, LACKS._replace(refused=(A, C)), HOLDS), "C", ("A", "C")),
        ((HOLDS, HOLDS, HOLDS), "C", ("A", "C")),
        ((HOLDS, HOLDS, KEEPS), "C", ("A", "")),
        ((LACKS, LACKS, HOLDS), "C", ("C", "AB")),
        ((HOLDS, HOLDS, LACKS._replace(provider=B), HOLDS), "D", ("A", "D")),
        ((HOLDS, HOLDS, HOLDS, LACKS._replace(provider=C)), "CD", ("A", "CD")),
        ((HOLDS, NONE, HOLDS, REFUSED._replace(provider=C)), "CD", ("C", "A")),
        (
            (HOLDS, LACKS._replace(refused=(A, C)), HOLDS, REFUSED._replace(provider=C)),
            "CD",
            ("A", "CD"),
        ),
        ((LACKS, LACKS._replace(provider=A), LACKS), "", ("A", "BC")),
    ],
)
def test_who_gives_its_state_and_who_takes_it(
    standings: tuple[StateStanding, ...], apart: str, expected: tuple[str, str]
) -> None:
    assert shared(*standings, apart=apart) == expected


# One member


class Taker:
    """B joins A, which gives it its state at the cut of view 5."""

    def __init__(self) -> None:
        self.layer = views_state.StateTransfer(B, 10_000, 900, has_state=True)
        self.out = Effects()
        self.layer.start(0, self.out)

    def begin(self, *members: Member, counter: int = 5) -> None:
        view = View(ViewId(A, counter), members)
        part = Part(view.id, members, {}, {})
        cut = Cut(view.id, (part,), {}, A, (B,) if counter == 5 else ())
        self.layer.group.change(view, [self.layer], 0, self.out)
        self.layer.handle_signal(Begin(view, cut), 0, self.out)
        self.layer.take_behind_view()
        self.layer.come_to_cut(counter)
        self.layer.check_invariants()

    def hear(self, *messages: SystemMessage, source: Member = A) -> None:
        for message in messages:
            self.layer.receive_message(source, message, 0, self.out)
        self.layer.check_invariants()

    def told(self) -> list[tuple[Member, SystemMessage]]:
        messages, self.out.messages = self.out.messages, []
        return messages


BEGIN = StateBegin(1, 5, Digest({}))
WHOLE = (BEGIN, StateData(1, 0, b"one"), StateEnd(1, 1))


@pytest.mark.parametrize("is_early", [False, True])
def test_a_state_that_comes_before_its_view_waits_for_it(is_early: bool) -> None:
    taker = Taker()
    if is_early:
        taker.hear(*WHOLE)
    taker.begin(A, B)
    if not is_early:
        assert not taker.layer.has_ready
        taker.hear(*WHOLE)
    assert taker.layer.has_ready
    assert "the state is here" in taker.layer.explain(0)[0]
    kinds = [type(event) for event in taker.layer.take_ready(9, 0, taker.out)]
    assert kinds == [StateBegun, StateChunk, StateReceived]
    assert taker.layer.phase is views_state.Phase.LIVE


def test_what_is_kept_is_handed_on_by_the_piece() -> None:
    taker = Taker()
    taker.begin(A, B)
    taker.layer.keep([Delivered(A, Run(Stream.FIFO, 1, [b"1", b"2"]), ViewId(A, 5))])
    taker.hear(*WHOLE)
    for most, is_behind in ((2, True), (0, True), (9, False)):
        taker.layer.take_ready(most, 0, taker.out)
        assert taker.layer.is_behind is is_behind
    assert taker.layer.stats()["kept"] == 0


@pytest.mark.parametrize(
    ("message", "source", "is_given_up"),
    [
        (StateRefused(5), A, True),
        (StateRefused(4), A, False),
        (StateRefused(5), C, False),
        (StateEnd(1, 3), A, True),
        (StateEnd(2, 0), A, False),
    ],
    ids=repr,
)
def test_another_is_to_give_it_if_this_one_cannot(
    message: SystemMessage, source: Member, is_given_up: bool
) -> None:
    taker = Taker()
    taker.begin(A, B)
    taker.hear(BEGIN)
    taker.out.signals.clear()
    taker.hear(message, source=source)
    lacking = StateChanged(StateStanding(Holding.LACKS, None, (A,)))
    assert list(taker.out.signals) == [lacking] * is_given_up
    assert taker.told() == [(A, StateCancel(5))] * is_given_up
    taker.begin(A, B, C, counter=6)  # whose maker does not know of that yet, or knows nobody else
    assert list(taker.out.signals) == [lacking] * is_given_up
    taker.layer.handle_timeout(RETRY_NS - 1, taker.out)
    assert list(taker.out.signals) == [lacking] * is_given_up
    taker.layer.handle_timeout(RETRY_NS, taker.out)
    assert list(taker.out.signals) == [lacking] * (2 * is_given_up)


def test_everybody_is_told_who_holds_senders_up_and_when_no_longer() -> None:
    taker = Taker()
    taker.begin(A, B)
    taker.layer.note_full(True, taker.out)
    taker.layer.note_full(True, taker.out)
    taker.begin(A, B, C, counter=6)
    assert "blocks senders" in taker.layer.explain(0)[0]
    taker.hear(*WHOLE)
    told = [(who, said) for who, said in taker.told() if isinstance(said, JoinerBlocked)]
    assert told == [(who, JoinerBlocked(True)) for who in (A, C)] + [
        (who, JoinerBlocked(False)) for who in (A, C)
    ]
    for who, is_full, blocked in ((C, True, [C]), (A, False, [C]), (C, False, []), (D, True, [])):
        taker.hear(JoinerBlocked(is_full), source=who)
        assert list(taker.layer.blocked) == blocked
