"""State transfer, one machine at a time: what it answers, what it ignores, what it remembers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ringcast.core.effects import Admitted, Effects, Flushed, LetIn
from ringcast.errors import UsageError
from ringcast.events import (
    Delivered,
    StateAbandoned,
    StateBegun,
    StateChunk,
    StateLost,
    StateReceived,
    StateWanted,
    StateWritable,
)
from ringcast.model import Address, Digest, Member, Origin, Run, Stream, View, ViewId
from ringcast.protocols.state import (
    DEPARTED_MAX,
    PATIENCE_MAX_NS,
    PATIENCE_NS,
    Phase,
    StateTransfer,
)
from ringcast.protocols.views.providing import ASKS_MAX, CHUNK_OVERHEAD, UNASKED_NS, WINDOW
from ringcast.wire.frames import (
    JoinerBlocked,
    Refusal,
    StateAck,
    StateBegin,
    StateCancel,
    StateData,
    StateEnd,
    StateRefused,
    StateRequest,
)

if TYPE_CHECKING:
    from ringcast.core.effects import Signal
    from ringcast.events import Event
    from ringcast.wire.frames import SystemMessage

SECOND = 1_000_000_000


def member(name: str) -> Member:
    return Member(Address("h", ord(name)), 1, name)


A, B, C, J = map(member, "ABCJ")


def of(who: Member) -> Origin:
    return Origin(who, Stream.FIFO)


def digest(**seqnos: int) -> Digest:
    return Digest({of(member(name.upper())): seqno for name, seqno in seqnos.items()})


def view(counter: int, *members: Member) -> View:
    return View(ViewId(members[0], counter), members)


def run(sender: Member, first: int, count: int = 1) -> Delivered:
    return Delivered(sender, Run(Stream.FIFO, first, [b"m"] * count), ViewId(A, 1))


V1 = view(1, A, B, J)


class Desk:
    """One machine, a clock, and all that came out of it since it was last looked at."""

    def __init__(self, me: Member = A, *, has_state: bool = True, room: int = 100_000) -> None:
        self.layer = StateTransfer(me, room, 100, has_state=has_state)
        self.out = Effects()
        self.now = SECOND
        self.layer.start(self.now, self.out)
        self.install(V1)

    def waiting(self, *members: Member, by: Member = A, **opened: int) -> Desk:
        """It has been let in, and has asked."""
        if members:
            self.install(view(2, *members))
        self.signal(LetIn(by, digest(**(opened or {"a": 0, "b": 0, "j": 0}))))
        self.messages()
        return self

    def install(self, installed: View, **taken: int) -> None:
        self.layer.before_view(installed, digest(**taken))
        self.layer.group.change(installed, [self.layer], self.now, self.out)
        self.layer.check_invariants()

    def signal(self, signal: Signal) -> None:
        self.layer.handle_signal(signal, self.now, self.out)
        self.layer.check_invariants()

    def receive(self, source: Member, *messages: SystemMessage) -> None:
        for message in messages:
            self.layer.receive_message(source, message, self.now, self.out)
            self.layer.check_invariants()

    def answer(self, **taken: int) -> None:
        self.layer.answer_asks(digest(**taken), self.now, self.out)
        self.layer.check_invariants()

    def wait(self, duration: int) -> None:
        self.now += duration
        self.layer.handle_timeout(self.now, self.out)
        self.layer.check_invariants()

    def take(self, limit: int = 100) -> list[Event]:
        return self.layer.take_ready(limit, self.now, self.out)

    def messages(self) -> list[tuple[Member, SystemMessage]]:
        messages, self.out.messages = self.out.messages, []
        return messages

    def events(self) -> list[Event]:
        events = list(self.out.events)
        self.out.events.clear()
        return events


# A provider


def test_whoever_is_let_in_gets_a_cut_of_this_moment() -> None:
    desk = Desk()
    desk.signal(Admitted((J,), digest(a=3, b=4, j=0)))
    assert desk.events() == [StateWanted(1, J)]
    assert desk.messages() == []
    desk.receive(J, StateRequest(1, V1.id, digest(a=3, b=4, j=0)))
    assert desk.messages() == [(J, StateBegin(1, 1, digest(a=3, b=4, j=0)))]
    assert not desk.layer.giving.asks


def test_chunks_that_are_there_before_the_joiner_asks_follow_the_beginning() -> None:
    desk = Desk()
    desk.signal(Admitted((J,), digest(a=3)))
    assert desk.layer.provide(1, [b"x", b"yy"], desk.out, is_last=True) == 2
    assert desk.messages() == []
    desk.receive(J, StateRequest(1, V1.id, digest(a=3)))
    assert desk.messages() == [
        (J, StateBegin(1, 1, digest(a=3))),
        (J, StateData(1, 0, b"x")),
        (J, StateData(1, 1, b"yy")),
        (J, StateEnd(1, 2)),
    ]
    taken = 3 + 2 * CHUNK_OVERHEAD
    desk.receive(J, StateAck(1, taken - 1))
    assert list(desk.layer.giving.transfers) == [1]
    desk.receive(J, StateAck(1, taken))
    assert desk.layer.giving.transfers == {}
    assert desk.events() == [StateWanted(1, J)]


def test_a_cut_that_is_behind_where_windows_opened_is_made_again() -> None:
    desk = Desk()
    desk.signal(Admitted((J,), digest(a=3)))
    desk.receive(J, StateRequest(1, V1.id, digest(a=4)))
    desk.answer(a=3)
    assert desk.messages() == []
    desk.answer(a=4)
    assert desk.messages() == [(J, StateBegin(2, 1, digest(a=4)))]
    assert desk.events() == [
        StateWanted(1, J),
        StateAbandoned(1, "J begins anew"),
        StateWanted(2, J),
    ]


def test_a_cut_is_made_in_the_view_of_the_joiner() -> None:
    desk = Desk()
    desk.receive(J, StateRequest(4, ViewId(A, 2), digest(a=1)))
    desk.answer(a=1)
    assert desk.messages() == []
    desk.install(view(2, A, B, J))
    desk.answer(a=1)
    assert desk.messages() == [(J, StateBegin(1, 4, digest(a=1)))]


def test_senders_that_are_gone_are_not_waited_for_but_told_of() -> None:
    desk = Desk()
    desk.install(view(2, A, J), a=1, b=2, j=0)
    desk.receive(J, StateRequest(1, ViewId(A, 2), digest(a=1, b=9, j=0)))
    desk.answer(a=1, j=0)
    assert desk.messages() == [(J, StateBegin(1, 1, digest(b=2, a=1, j=0)))]


def test_the_departed_are_remembered_within_bounds_the_last_ones_first() -> None:
    desk = Desk()
    for number in range(DEPARTED_MAX + 5):
        gone = Member(Address("x", 1), number + 1, "x")
        taken = Digest({of(gone): number, of(A): 0})
        desk.layer.before_view(V1, taken)
    desk.receive(J, StateRequest(1, V1.id, Digest({})))
    desk.layer.answer_asks(Digest({}), desk.now, desk.out)
    ((_, begin),) = desk.messages()
    assert isinstance(begin, StateBegin)
    assert list(begin.cut.entries.values()) == list(range(5, DEPARTED_MAX + 5))


def test_a_question_that_is_repeated_changes_nothing_and_a_new_one_begins_anew() -> None:
    desk = Desk()
    desk.receive(J, StateRequest(1, V1.id, digest(a=0)))
    desk.answer(a=0)
    desk.messages()
    desk.receive(J, StateRequest(1, V1.id, digest(a=0)))
    assert not desk.layer.giving.asks
    desk.receive(J, StateRequest(2, V1.id, digest(a=0)))
    desk.answer(a=5)
    assert desk.messages() == [(J, StateBegin(2, 2, digest(a=5)))]
    assert list(desk.layer.giving.transfers) == [2]


def test_a_question_may_be_taken_back() -> None:
    desk = Desk()
    desk.receive(J, StateRequest(1, V1.id, digest(a=7)))
    desk.receive(J, StateCancel(2), StateCancel(1))
    assert not desk.layer.giving.asks
    desk.answer(a=7)
    assert desk.messages() == []
    desk.receive(J, StateRequest(2, V1.id, digest(a=7)))
    desk.answer(a=7)
    desk.receive(B, StateCancel(2))
    desk.receive(J, StateCancel(1))
    assert list(desk.layer.giving.transfers) == [1]
    desk.receive(J, StateCancel(2))
    assert desk.layer.giving.transfers == {}
    assert desk.events() == [
        StateWanted(1, J),
        StateAbandoned(1, "J gets it from somebody else"),
    ]
    assert desk.layer.giving.ignored == 3


def test_questions_are_bounded() -> None:
    desk = Desk()
    strangers = [Member(Address("x", 1), number, "x") for number in range(1, ASKS_MAX + 3)]
    for stranger in strangers:
        desk.receive(stranger, StateRequest(1, V1.id, digest()))
    assert desk.layer.giving.stats()["asks"] == ASKS_MAX
    desk.install(view(2, A, J))
    assert desk.layer.giving.stats()["asks"] == 0


def test_who_has_no_state_says_so() -> None:
    desk = Desk(has_state=False)
    desk.signal(Admitted((J,), digest(a=0)))
    desk.signal(LetIn(B, digest(a=0)))
    assert desk.events() == []
    assert desk.layer.phase is Phase.LIVE
    desk.receive(J, StateRequest(3, ViewId(B, 9), digest(a=0)))
    assert desk.messages() == [(J, StateRefused(3, Refusal.STATELESS))]


def test_who_waits_says_so_in_the_same_view_and_cuts_for_nobody() -> None:
    desk = Desk().waiting(by=B)
    desk.signal(Admitted((J,), digest(a=0)))
    desk.receive(J, StateRequest(3, ViewId(A, 2), digest(a=0)))
    desk.answer(a=0)
    assert (desk.events(), desk.messages()) == ([], [])
    desk.install(view(2, A, B, J))
    desk.messages()
    desk.answer(a=0)
    assert desk.messages() == [(J, StateRefused(3, Refusal.WAITING))]


def test_a_provider_is_ahead_by_one_window_and_the_chunk_that_passes_it() -> None:
    desk = Desk()
    desk.receive(J, StateRequest(1, V1.id, digest()))
    desk.answer()
    half = bytes(WINDOW // 2)
    assert desk.layer.provide(1, [half, half, half], desk.out, is_last=True) == 2
    desk.messages()
    assert desk.layer.provide(1, [half], desk.out, is_last=True) == 0
    desk.receive(J, StateAck(1, 2 * CHUNK_OVERHEAD))
    assert desk.events() == [StateWanted(1, J)]
    desk.receive(B, StateAck(1, WINDOW))
    desk.receive(J, StateAck(9, WINDOW), StateAck(1, 2 * WINDOW))
    assert desk.events() == []
    assert desk.layer.giving.ignored == 3
    desk.receive(J, StateAck(1, 2 * CHUNK_OVERHEAD + 1))
    assert desk.events() == [StateWritable(1)]
    assert desk.layer.provide(1, [half], desk.out, is_last=True) == 1
    assert desk.messages() == [(J, StateData(1, 2, half)), (J, StateEnd(1, 3))]
    with pytest.raises(UsageError, match="has been provided to its end"):
        desk.layer.provide(1, [], desk.out, is_last=True)


def test_who_cannot_provide_it_says_so_if_it_was_asked() -> None:
    desk = Desk()
    desk.signal(Admitted((J, B), digest()))
    desk.layer.give_up(1, desk.out)
    desk.layer.give_up(1, desk.out)
    assert desk.messages() == []
    desk.receive(B, StateRequest(5, V1.id, digest()))
    desk.messages()
    desk.layer.give_up(2, desk.out)
    assert desk.messages() == [(B, StateRefused(5, Refusal.FAILED))]
    assert desk.layer.deadlines.next() is None
    with pytest.raises(UsageError, match="no state transfer 0"):
        desk.layer.give_up(0, desk.out)


def test_what_nobody_asks_for_is_not_kept_for_ever() -> None:
    desk = Desk()
    desk.signal(Admitted((J,), digest()))
    desk.wait(SECOND)
    desk.signal(Admitted((B,), digest()))
    assert desk.layer.deadlines.next() == desk.now - SECOND + UNASKED_NS
    desk.wait(UNASKED_NS - SECOND)
    assert list(desk.layer.giving.transfers) == [2]
    desk.wait(SECOND)
    assert desk.layer.giving.transfers == {}
    assert desk.layer.deadlines.next() is None
    assert StateAbandoned(1, "J does not ask for it") in desk.events()


def test_members_that_go_take_their_transfers_with_them() -> None:
    desk = Desk()
    desk.signal(Admitted((J, B), digest()))
    desk.layer.provide(2, [], desk.out, is_last=True)
    desk.events()
    desk.install(view(2, A))
    assert desk.layer.giving.transfers == {}
    assert desk.events() == [StateAbandoned(1, "J is gone")]  # the other was provided to its end


def test_when_this_member_goes_all_is_over() -> None:
    desk = Desk()
    desk.signal(Admitted((J,), digest()))
    desk.events()
    desk.install(view(2, B, J))
    assert desk.events() == [StateAbandoned(1, "View 2: B, J goes on without this member")]
    waiting = Desk(J).waiting()
    waiting.receive(A, StateBegin(1, 1, digest()))
    waiting.layer.group.close("closed", [waiting.layer], waiting.now, waiting.out)
    assert waiting.take() == []
    assert waiting.layer.deadlines.next() is None
    waiting.layer.check_invariants()


def test_other_signals_and_digests_are_not_for_this_layer() -> None:
    desk = Desk()
    desk.signal(Flushed())
    desk.layer.install_digest(digest(), desk.now, desk.out)
    desk.layer.receive(B, [], desk.now, desk.out)
    assert (desk.events(), desk.messages()) == ([], [])


# A joiner


def test_a_joiner_asks_whoever_let_it_in_and_says_where_its_windows_opened() -> None:
    desk = Desk(J)
    desk.signal(LetIn(A, digest(a=3, b=4, j=0)))
    assert desk.messages() == [(A, StateRequest(1, V1.id, digest(a=3, b=4, j=0)))]
    assert desk.layer.is_catching_up
    assert not desk.layer.has_ready
    assert desk.layer.cut is None


def test_the_state_then_what_came_meanwhile() -> None:
    desk = Desk(J).waiting(a=3, b=4, j=0)
    desk.layer.keep([run(A, 4), run(B, 5, 3)])
    desk.receive(A, StateBegin(7, 1, digest(a=3, b=5, j=0)))
    assert desk.take(0) == [StateBegun(A, digest(a=3, b=5, j=0))]
    desk.receive(A, StateData(7, 0, b"x"), StateData(7, 1, b"yy"))
    assert desk.take(0) == []
    assert desk.layer.has_ready
    assert desk.take(1) == [StateChunk(b"x")]
    desk.layer.keep([run(A, 5)])
    desk.receive(A, StateEnd(7, 2))
    assert not desk.layer.is_catching_up
    assert desk.take(2) == [StateChunk(b"yy"), StateReceived(A, 2, 3), run(A, 4)]
    assert desk.messages() == [(A, StateAck(7, 3 + 2 * CHUNK_OVERHEAD))]
    assert desk.layer.is_behind
    assert desk.take(9) == [run(B, 6, 2), run(A, 5)]
    assert not desk.layer.is_behind
    assert desk.layer.catch_up is None
    assert desk.layer.deadlines.next() is None
    assert desk.layer.cut == digest(a=3, b=5, j=0)


def test_what_the_state_has_of_messages_to_come_is_left_out_when_they_come() -> None:
    desk = Desk(J).waiting(a=3)
    desk.receive(A, StateBegin(1, 1, digest(a=5)), StateEnd(1, 0))
    desk.take()
    assert not desk.layer.is_behind
    assert desk.layer.sift([run(A, 4)]) == []
    # To provide it from here: the state reaches further than what was taken.
    desk.receive(B, StateRequest(1, V1.id, digest(a=5)))
    desk.answer(a=4)
    assert desk.messages()[-1] == (B, StateBegin(1, 1, digest(a=5)))
    assert desk.layer.sift([run(A, 5, 2)]) == [run(A, 6)]
    assert desk.layer.catch_up is None
    live: list[Event] = [run(A, 7)]
    assert desk.layer.sift(live) is live


def test_the_provider_hears_how_far_the_application_is() -> None:
    desk = Desk(J).waiting()
    desk.receive(A, StateBegin(1, 1, digest()))
    quarter = bytes(WINDOW // 4 - CHUNK_OVERHEAD)
    desk.receive(A, StateData(1, 0, quarter[1:]), StateData(1, 1, b""), StateData(1, 2, quarter))
    desk.take(1)
    assert desk.messages() == []
    desk.take(1)
    assert desk.messages() == [(A, StateAck(1, WINDOW // 4 - 1 + CHUNK_OVERHEAD))]


@pytest.mark.parametrize(
    "broken",
    [
        [StateData(1, 1, b"")],
        [StateData(1, 0, b""), StateData(1, 0, b"")],
        [StateEnd(1, 1)],
        [StateData(1, 0, bytes(WINDOW)), StateData(1, 1, b"beyond the window")],
    ],
)
def test_a_chunk_that_is_missing_or_too_much_makes_it_ask_the_next(
    broken: list[SystemMessage],
) -> None:
    desk = Desk(J).waiting()
    desk.receive(A, StateBegin(1, 1, digest()))
    desk.take()
    desk.receive(A, *broken)
    asked = StateRequest(2, V1.id, digest(a=0, b=0, j=0))
    assert desk.messages() == [(A, StateCancel(1)), (B, asked)]
    assert desk.take() == []
    desk.receive(A, StateData(1, 1, b"late"), StateEnd(1, 2), StateRefused(1, Refusal.FAILED))
    assert desk.layer.ignored == 3
    desk.receive(B, StateRefused(1, Refusal.FAILED), StateBegin(4, 2, digest()))
    assert desk.take() == [StateBegun(B, digest())]


def test_a_beginning_that_nobody_waits_for_is_stopped() -> None:
    desk = Desk(J).waiting()
    desk.receive(B, StateBegin(1, 1, digest()))
    desk.receive(A, StateBegin(2, 9, digest()))
    assert desk.messages() == [(B, StateCancel(1)), (A, StateCancel(9))]
    assert desk.take() == []


def test_refused_by_one_it_asks_the_next_and_by_all_the_state_is_lost() -> None:
    desk = Desk(J).waiting()
    desk.layer.keep([run(A, 1)])
    desk.receive(A, StateRefused(1, Refusal.WAITING))
    assert desk.messages() == [(B, StateRequest(2, V1.id, digest(a=0, b=0, j=0)))]
    desk.receive(B, StateBegin(1, 2, digest()), StateData(1, 0, b"useless"))
    desk.receive(B, StateRefused(2, Refusal.FAILED))
    assert desk.messages() == []
    why = "nobody has the state: A waits for its own state, B could not give its state"
    assert desk.take() == [StateLost(why), run(A, 1)]
    assert desk.layer.cut is None
    assert not desk.layer.is_behind


def test_a_new_view_counts_refusals_anew() -> None:
    desk = Desk(J).waiting()
    desk.receive(A, StateRefused(1, Refusal.WAITING))
    desk.messages()
    now = view(2, A, B, J)
    desk.install(now)
    assert desk.messages() == [(B, StateRequest(2, now.id, digest(a=0, b=0, j=0)))]
    # It may have refused in the view before, and have its state by now.
    desk.receive(B, StateRefused(2, Refusal.WAITING))
    assert desk.messages() == [(B, StateRequest(3, now.id, digest(a=0, b=0, j=0)))]
    desk.receive(B, StateRefused(3, Refusal.STATELESS))
    assert desk.messages() == [(A, StateRequest(4, now.id, digest(a=0, b=0, j=0)))]


def test_when_the_provider_is_gone_the_first_of_the_view_is_asked() -> None:
    desk = Desk(J).waiting()
    desk.receive(A, StateBegin(1, 1, digest()), StateData(1, 0, b"x"))
    now = view(2, B, C, J)
    desk.install(now, a=0, b=0, j=0)
    assert desk.messages() == [(B, StateRequest(2, now.id, digest(a=0, b=0, j=0)))]
    assert desk.take() == []


def test_a_state_that_comes_goes_on_through_a_new_view() -> None:
    desk = Desk(J).waiting()
    desk.receive(A, StateBegin(1, 1, digest()))
    desk.install(view(2, A, J), a=0, b=0, j=0)
    assert desk.messages() == []
    desk.receive(A, StateEnd(1, 0))
    assert desk.take() == [StateBegun(A, digest()), StateReceived(A, 0, 0)]


def test_once_it_is_complete_the_provider_is_no_longer_needed() -> None:
    desk = Desk(J).waiting()
    desk.receive(A, StateBegin(1, 1, digest()), StateData(1, 0, b"x"), StateEnd(1, 1))
    desk.install(view(2, B, J), a=0, b=0, j=0)
    assert desk.take() == [StateBegun(A, digest()), StateChunk(b"x"), StateReceived(A, 1, 1)]
    assert not desk.layer.is_behind


def test_silence_is_borne_for_a_while_and_longer_each_time() -> None:
    desk = Desk(J).waiting()
    patience, asked = PATIENCE_NS, []
    for _ in range(7):
        assert desk.layer.deadlines.next() == desk.now + patience
        desk.wait(patience)
        asked += [who.name for who, message in desk.messages() if isinstance(message, StateRequest)]
        patience = min(2 * patience, PATIENCE_MAX_NS)
    assert asked == list("BABABAB")


def test_it_is_not_silence_if_our_application_takes_its_time() -> None:
    desk = Desk(J).waiting()
    desk.receive(A, StateBegin(1, 1, digest()), StateData(1, 0, b"x"))
    desk.wait(PATIENCE_NS)
    assert desk.messages() == []
    desk.take()
    desk.wait(PATIENCE_NS)
    assert desk.messages()[0] == (A, StateCancel(1))


def test_who_is_still_handing_on_can_provide_behind_what_is_handed_on() -> None:
    desk = Desk(J).waiting(a=0)
    desk.layer.keep([run(A, 1, 2)])
    desk.receive(A, StateBegin(1, 1, digest(a=1)), StateEnd(1, 0))
    desk.receive(B, StateRequest(1, V1.id, digest(a=2)))
    desk.answer(a=2)
    desk.signal(Admitted((C,), digest(a=2)))
    desk.install(view(2, A, B, J), a=2)
    assert desk.events() == []
    assert desk.take()[2:] == [
        run(A, 2),
        StateWanted(1, B),
        StateWanted(2, C),
        StateAbandoned(2, "C is gone"),
    ]


def test_of_the_departed_a_joiner_has_what_its_provider_had_and_what_it_kept() -> None:
    x, y, z = map(member, "XYZ")
    desk = Desk(J).waiting(A, B, x, y, z, J, a=0, b=0, x=5, y=5, z=5, j=0)
    desk.layer.keep([run(x, 6, 2), run(y, 6), run(z, 6)])
    now = view(3, A, B, J)
    desk.install(now, x=7, y=6, z=6)
    # A had less of X than we kept, more of Y, and of Z less than where our window opened.
    cut = Digest({of(x): 6, of(y): 8, of(z): 4, of(A): 0})
    desk.receive(A, StateBegin(1, 1, cut), StateEnd(1, 0))
    assert desk.take()[2:] == [run(x, 7)]
    desk.messages()
    desk.receive(B, StateRequest(1, now.id, digest()))
    desk.answer(a=0)
    ((_, begin),) = desk.messages()
    assert isinstance(begin, StateBegin)
    assert begin.cut == Digest({of(x): 7, of(y): 8, of(z): 4, of(A): 0})


def test_of_whom_the_provider_knows_nothing_a_joiner_remembers_nothing() -> None:
    desk = Desk(J).waiting(a=0, b=5, j=0)
    desk.install(view(2, A, J), b=5)
    desk.receive(A, StateBegin(1, 1, digest(a=0)), StateEnd(1, 0))
    assert desk.layer.stats()["departed"] == 0
    many = {of(Member(Address("x", 1), n, "x")): n for n in range(1, DEPARTED_MAX + 9)}
    full = Desk(J).waiting()
    full.receive(A, StateBegin(1, 1, Digest(many)), StateEnd(1, 0))
    assert full.layer.stats()["departed"] == DEPARTED_MAX


def test_of_the_departed_a_joiner_keeps_as_many_as_its_provider_can_know_of() -> None:
    desk = Desk(J).waiting()
    assert desk.layer.catch_up is not None
    senders = [Member(Address("x", 1), n, "x") for n in range(1, DEPARTED_MAX + 3)]
    for sender in senders:
        desk.layer.keep([run(sender, 1)])
        desk.layer.before_view(V1, Digest({of(sender): 1, of(A): 0}))
    assert len(desk.layer.catch_up.ends) == DEPARTED_MAX
    desk.receive(A, StateBegin(1, 1, digest(a=0)), StateEnd(1, 0))
    handed = desk.take(DEPARTED_MAX + 9)[2:]
    assert handed == [run(sender, 1) for sender in senders[2:]]


# What people can see


def test_everybody_is_told_when_the_buffer_is_full_and_when_no_longer() -> None:
    desk = Desk(J, room=300).waiting()
    assert desk.layer.room == 1
    desk.layer.keep([run(A, 1, 4)])
    assert desk.layer.room == 0
    desk.layer.note_full(True, desk.out)
    desk.layer.note_full(True, desk.out)
    assert desk.messages() == [(A, JoinerBlocked(True)), (B, JoinerBlocked(True))]
    desk.install(view(2, A, B, C, J))
    assert (C, JoinerBlocked(True)) in desk.messages()
    desk.receive(A, StateBegin(1, 1, digest()), StateEnd(1, 0))
    assert desk.messages() == [(who, JoinerBlocked(False)) for who in (A, B, C)]
    assert desk.layer.room == 0


def test_who_holds_senders_up_is_explained_until_it_does_not() -> None:
    desk = Desk()
    desk.receive(J, JoinerBlocked(True))
    desk.receive(C, JoinerBlocked(True))  # not in the view
    desk.now += 2 * SECOND
    desk.receive(J, JoinerBlocked(True))
    assert desk.layer.explain(desk.now) == [
        "J holds senders up for 2.0 s: its state is still on its way, "
        "and what it may keep meanwhile is full"
    ]
    desk.receive(J, JoinerBlocked(False))
    assert desk.layer.explain(desk.now) == []
    desk.receive(J, JoinerBlocked(True))
    desk.install(view(2, A))
    assert desk.layer.blocked == {}


def test_a_joiner_explains_itself() -> None:
    desk = Desk(J).waiting()
    desk.now += SECOND
    assert desk.layer.explain(desk.now) == [
        "waits for the state for 1.0 s: A has been asked, 1 requests in all; another is asked "
        "after 9.0 s of silence; 0 of 100000 bytes of what comes meanwhile are kept"
    ]
    desk.receive(A, StateBegin(1, 1, digest()), StateData(1, 0, b"four"))
    assert "4 bytes so far from A" in desk.layer.explain(desk.now)[0]
    assert desk.layer.stats()["bytes"] == 4
    desk.receive(A, StateEnd(1, 1))
    assert desk.layer.explain(desk.now) == [
        "the state is here and waits for this member's application"
    ]
    desk.take()
    assert desk.layer.explain(desk.now) == []


def test_a_provider_explains_itself() -> None:
    desk = Desk()
    desk.signal(Admitted((J,), digest()))
    desk.receive(B, StateRequest(1, ViewId(A, 2), digest()))
    desk.layer.provide(1, [b"four"], desk.out, is_last=False)
    wanted = "B wants the state from here, which has yet to come to where its windows opened"
    given = "J gets the state from here for 0.0 s: 4 bytes so far"
    assert desk.layer.explain(desk.now) == [f"{given}; it has not asked for it yet", wanted]
    desk.receive(J, StateRequest(1, V1.id, digest()))
    assert desk.layer.explain(desk.now) == [given, wanted]
    assert desk.layer.giving.stats()["transfers"] == {
        1: {"to": "J", "chunks": 1, "bytes": 4, "untaken": 4 + CHUNK_OVERHEAD}
    }
    desk.layer.provide(1, [], desk.out, is_last=True)
    assert desk.layer.explain(desk.now)[0] == f"{given}; its application has yet to take them"
