"""Joiners get the state, and all that is not in it, once: one story per test, whole members.

Where a rule is needed for that, a test switches it off and sees the message that is then lost or
comes twice.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from ringcast.config import MembershipConfig
from ringcast.errors import UsageError
from ringcast.events import Delivered, StateChunk, StateLost, ViewInstalled
from ringcast.model import Digest, Origin, Stream
from ringcast.protocols import state_provider
from ringcast.protocols.views.catch_up import CatchUp
from ringcast.protocols.state import StateTransfer
from ringcast.protocols.views.providing import CHUNK_BYTES_MAX, UNASKED_NS, WINDOW
from support.membership import MILLISECOND, NAMES, address_of
from support.state import CHUNKS, StateTown, is_system

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ringcast.core.effects import Effects
    from ringcast.events import Event
    from ringcast.model import View
    from support.membership import Sent

QUICK: dict[str, Any] = {"heartbeat_s": 0.05, "suspect_after_s": 0.3, "verify_s": 0.1}
DETECTED = 0.5
"""Seconds from a crash to the suspicion, with delays."""


def new_town(seed: int = 1, *, join_buffer_bytes: int = 16 << 20, **options: Any) -> StateTown:
    """One in which crashes are soon found out."""
    config = MembershipConfig(join_buffer_bytes=join_buffer_bytes, **QUICK)
    return StateTown(seed, membership=config, **options)


def town_of(names: str, seed: int = 1, said: int = 9, **options: Any) -> StateTown:
    """These members, the last of which has said something."""
    town = new_town(seed, **options)
    town.form(names)
    for number in range(said):
        town.send(names[-1], b"%d" % number)
    town.run(0.01)
    return town


def waits(town: StateTown, name: str) -> bool:
    return town.state(name).is_catching_up


def until_up_to_date(town: StateTown, names: str, within: float = 30) -> float:
    return town.run_until(lambda: all(map(town.is_up_to_date, names)), within)


# The plain case


@pytest.mark.parametrize("seed", range(4))
def test_state_and_later_messages_are_everything_while_all_send(seed: int) -> None:
    town = new_town(seed, capacity=64)
    town.form("AB")
    town.chat("AB")
    town.run(0.03)
    town.start("C")
    town.run_until(lambda: bool(town.group("C")), within=1)
    town.chat("C")
    until_up_to_date(town, "C")
    town.run(0.02)
    town.silence()
    town.run(1)
    joiner = town.application("C")
    assert town.differ("A", "B", "C") == ""
    assert (joiner.begun, joiner.received, joiner.lost) == (1, 1, [])
    assert len(joiner.of(town.nodes["B"].me)) > 30
    assert len(joiner.of(town.nodes["C"].me)) > 10
    assert all(town.is_drained(name) for name in "ABC")
    assert town.explain() == {"A": [], "B": [], "C": []}


def test_an_application_gets_views_then_the_state_then_messages() -> None:
    town = town_of("AB")
    town.start("C")
    town.run_until(partial(waits, town, "C"), within=2)
    town.send("B", b"while it waits")
    until_up_to_date(town, "C")
    town.run(0.1)
    kinds = [type(event).__name__ for event in town.events[town.nodes["C"].me]]
    chunks = ["StateChunk"] * CHUNKS
    assert kinds == ["ViewInstalled", "StateBegun", *chunks, "StateReceived", "Delivered"]
    assert town.state("C").cut == Digest(
        {Origin(town.nodes[name].me, Stream.FIFO): {"B": 9}.get(name, 0) for name in "ABC"}
    )


def test_the_joiner_counts_what_it_keeps_as_taken() -> None:
    """Nobody waits for a state that travels (N6), as long as there is room."""
    town = town_of("AB", capacity=4, said=4)
    town.mute.add("A")
    town.start("C")
    town.run_until(partial(waits, town, "C"), within=2)
    for number in range(20):
        assert town.send("B", b"more %d" % number) == 1
        town.run(0.1)
    catch_up = town.state("C").catch_up
    assert catch_up is not None
    assert catch_up.accepted[Origin(town.nodes["B"].me, Stream.FIFO)] == 24
    assert town.is_drained("B")
    assert not any(isinstance(event, Delivered) for event in town.events[town.nodes["C"].me])
    town.mute.clear()
    town._turn("A")
    until_up_to_date(town, "C")
    assert town.differ("A", "C") == ""


def test_large_messages_that_the_cut_goes_through() -> None:
    town = new_town(3, capacity=8)
    town.form("AB")
    town.start("C")
    sent = 0
    while not town.is_up_to_date("C"):
        sent += town.send("B", b"%d " % sent + b"x" * 7000)
        town.run(0.002)
    town.run(2)
    assert sent > 3
    assert len(town.application("A").of(town.nodes["B"].me)) == sent
    assert town.differ("A", "B", "C") == ""


def test_messages_to_the_joiner_alone_wait_for_the_state() -> None:
    town = town_of("AB")
    town.mute.add("A")
    town.start("C")
    town.run_until(partial(waits, town, "C"), within=2)
    town.nodes["B"].send([b"just you"], town.now, to=town.nodes["C"].me)
    town.nodes["C"].send([b"myself"], town.now, to=town.nodes["C"].me)
    town._turn("B")
    town.run(2)
    assert town.application("C").private == []
    assert not town.nodes["C"].has_ready
    town.mute.clear()
    town._turn("A")
    until_up_to_date(town, "C")
    town.run(1)
    assert sorted(town.application("C").private) == [b"just you", b"myself"]


def test_two_joiners_get_one_state_each() -> None:
    town = town_of("AB")
    town.chat("B")
    town.start("CD")
    until_up_to_date(town, "CD")
    town.silence()
    town.run(1)
    assert town.differ("A", "B", "C", "D") == ""
    assert [town.application(name).received for name in "ABCD"] == [0, 1, 1, 1]


def test_a_founder_and_an_empty_state() -> None:
    town = new_town()
    town.form("AB")
    assert town.application("A").begun == 0
    assert (town.application("B").received, town.application("B").log) == (1, [])


# Losses and crashes


def a_join(seed: int, victims: str = "", after: int = -1) -> tuple[StateTown, int]:
    """C joins A and B, of whom B sends all the time. After so many steps some crash; without, how
    many steps there are."""
    town = town_of("AB", seed)
    town.pace = 3 * MILLISECOND
    town.start("C")
    steps = 0
    while steps != after and not town.is_up_to_date("C"):
        town.step()
        steps += 1
        if steps % 12 == 0:
            town.send("B", b"step %d" % steps)
    town.crash(victims)
    return town, steps


def test_the_provider_dies_at_any_step() -> None:
    _, total = a_join(seed=1)
    again = 0
    for steps in range(total + 1):
        town, _ = a_join(1, "A", steps)
        until_up_to_date(town, "BC")
        town.send("B", b"after")
        town.run(DETECTED + 0.2)
        joiner = town.application("C")
        assert town.differ("B", "C") == "", steps
        assert (joiner.received, joiner.lost) == (1, []), steps
        assert joiner.log[-1][1] == "after"
        again += joiner.begun == 2
        assert town.is_drained("B"), steps
    assert total > 30
    assert again > 10  # it did die in the middle


def messages_of_a_join(seed: int) -> int:
    town = town_of("AB", seed)
    town.pace = 3 * MILLISECOND
    town.start("C")
    until_up_to_date(town, "C")
    town.run(0.2)
    return sum(is_system(sent) and "C" in (sent.source, sent.dest) for sent in town.sent)


def lose_one(number: int) -> Any:
    """Lose the datagram with a message of state transfer that has this number."""
    seen = 0

    def is_lost(sent: Sent) -> bool:
        nonlocal seen
        if not is_system(sent) or "C" not in (sent.source, sent.dest):
            return False
        seen += 1
        return seen == number + 1

    return is_lost


@pytest.mark.parametrize("then_dies", [False, True])
def test_any_message_of_the_transfer_is_lost_and_then_the_provider_dies(then_dies: bool) -> None:
    total = messages_of_a_join(seed=2)
    assert total >= CHUNKS + 3
    for number in range(total):
        town = town_of("AB", 2)
        town.pace = 3 * MILLISECOND
        town.lose = lose_one(number)
        town.start("C")
        town.run_until(partial(waits, town, "C"), within=2)
        town.chat("B")
        town.run(0.02)
        if then_dies:
            town.crash("A")
        until_up_to_date(town, "BC")
        town.silence()
        town.run(DETECTED + 0.5)
        joiner = town.application("C")
        assert town.differ("B", "C") == "", number
        assert (joiner.received, joiner.lost) == (1, []), number
        for node in town.nodes.values():
            assert node.explain(town.now) == [], number


def test_the_provider_leaves_in_the_middle() -> None:
    town = town_of("AB")
    town.start("C")
    town.run_until(lambda: town.application("C").begun == 1, within=2)
    town.leave("A")
    until_up_to_date(town, "BC")
    town.run(1)
    assert (town.application("C").begun, town.application("C").received) == (2, 1)
    assert town.differ("B", "C") == ""


def test_the_joiner_dies_at_any_step() -> None:
    town, total = a_join(seed=4)
    for steps in range(0, total + 1, 2):
        town, _ = a_join(4, "C", steps)
        town.run(2 * DETECTED + 0.5)
        assert town.agree("AB"), steps
        for name in "AB":
            state = town.state(name)
            assert (state.giving.transfers, state.giving.asks) == ({}, {})
            armed = town.nodes[name].deadlines.armed()
            assert not [owner for owner, _ in armed if owner in ("state", "giving")]
            assert town.application(name).giving == {}, steps
            assert town.nodes[name].explain(town.now) == [], steps
        assert town.is_drained("B"), steps


@pytest.mark.parametrize("steps", range(2, 80, 6))
def test_a_sender_dies_meanwhile(steps: int) -> None:
    town = town_of("ABD", 5)
    town.start("C")
    town.chat("D")
    for _ in range(steps):
        town.step()
    town.crash("D")
    until_up_to_date(town, "ABC")
    town.run(DETECTED + 0.5)
    assert town.group("C") == "ABC"
    # What some have got of the last messages and others have not is not this protocol's to mend.
    logs = [town.application(name).log for name in "AC"]
    assert logs[1] == logs[0][: len(logs[1])] or logs[0] == logs[1][: len(logs[0])]
    assert len(logs[1]) >= 9


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.proof) for seed in (1, 2))]
)
def test_a_provider_after_the_other_dies_while_all_send(seed: int) -> None:
    town = new_town(seed, capacity=64)
    town.pace = 3 * MILLISECOND
    town.form("ABDE")
    town.chat("DE")
    town.run(0.02)
    town.start("C")
    town.run_until(lambda: town.application("C").begun == 1, within=2)
    town.crash("A")
    town.run_until(lambda: town.application("C").begun == 2, within=10)
    town.crash("B")
    until_up_to_date(town, "CDE")
    town.silence()
    town.run(DETECTED + 1)
    assert town.differ("D", "E", "C") == ""
    assert town.application("C").begun == 3


# The second provider's cut


def behind_the_first(lost: str = "") -> StateTown:
    """D has sent 9 messages that A has taken and B has not; C's windows opened behind them, and A
    has died. `lost`: whose datagrams do not reach B."""
    town = new_town(6, capacity=64)
    town.form("ABD")
    town.stopped.add("B")
    town.cut = {(source, "B") for source in lost}
    for number in range(9):
        town.send("D", b"%d" % number)
    town.run(0.05)
    town.mute.add("A")
    town.start("C")
    town.run_until(partial(waits, town, "C"), within=2)
    town.send("D", b"later")
    town.run(0.05)
    return town


def test_a_provider_that_is_behind_waits_until_it_has_come_far_enough() -> None:
    town = behind_the_first()
    town.crash("A")
    town.run(DETECTED + 1)
    assert town.group("C") == "BDC"
    assert town.application("C").begun == 1  # with A
    assert town.nodes["B"].explain(town.now)[-1] == (
        "C wants the state from here, which has yet to come to where its windows opened"
    )
    town.stopped.clear()
    town._turn("B")
    until_up_to_date(town, "BCD")
    town.run(1)
    assert town.differ("D", "B", "C") == ""
    assert [text for _, text in town.application("C").log] == [*map(str, range(9)), "later"]


def test_messages_of_a_dead_sender_that_do_not_follow_on_the_state_are_left_out() -> None:
    town = behind_the_first(lost="D")
    town.stopped.clear()
    town.crash("AD")
    town.cut.clear()
    until_up_to_date(town, "BC")
    town.run(1)
    assert town.group("C") == "BC"
    # The only provider left has nothing of what D sent; nor has the joiner then.
    assert town.application("C").log == town.application("B").log == []
    town.send("B", b"on")
    town.run(1)
    assert town.differ("B", "C") == ""
    assert len(town.application("C").log) == 1


def test_a_member_that_parted_and_came_back_while_the_joiner_waited() -> None:
    town = town_of("ABD", seed=3)
    town.mute.add("A")
    town.start("C")
    town.run_until(partial(waits, town, "C"), within=2)
    town.send("D", b"before")
    town.run(0.1)
    town.part("ABC", "D")
    town.send("D", b"apart")
    town.run_until(lambda: town.group("A") == "ABC" and town.group("D") == "D", within=10)
    town.heal()
    town.run_until_agreed("ABCD", within=30)
    town.send("D", b"after")
    town.run(1)
    town.mute.clear()
    town._turn("A")
    until_up_to_date(town, "C")
    town.run(1)
    assert town.differ("A", "C") == ""
    assert town.application("C").of(town.nodes["D"].me)[-2:] == ["before", "after"]


def test_who_came_and_went_while_the_joiner_waited() -> None:
    """D joins and E's group comes after the cut was made; both are gone before the state is here.
    What they have said in between is in no state, and everybody has it."""
    town = town_of("AB", seed=3)
    town.start("E", candidates=None)
    town.run_until(lambda: town.group("E") == "E", within=5)
    town.send("E", b"apart")
    town.mute.add("A")
    town.start("C")
    town.run_until(partial(waits, town, "C"), within=2)
    town.start("D")
    town.nodes["E"].add_candidates(map(address_of, NAMES), town.now)
    town.run_until_agreed("ABCDE", within=30)
    d, e = town.nodes["D"].me, town.nodes["E"].me
    for name in "DE":
        town.send(name, b"of " + name.encode())
    town.run(0.1)
    town.crash("DE")
    town.run_until_agreed("ABC")
    assert town.application("C").begun == 1  # the cut is from before
    town.mute.clear()
    town._turn("A")
    until_up_to_date(town, "C")
    town.run(1)
    assert town.differ("A", "B", "C") == ""
    assert town.application("C").of(d) == ["of D"]
    assert town.application("C").of(e) == ["of E"]


# Nobody to give it


def test_all_who_have_the_state_are_gone() -> None:
    town = town_of("AB")
    town.mute |= {"A", "B"}
    town.start("C")
    town.run_until(partial(waits, town, "C"), within=2)
    town.send("B", b"kept")
    town.run(0.1)
    town.crash("AB")
    until_up_to_date(town, "C")
    joiner = town.application("C")
    assert joiner.lost == ["nobody has the state: there is nobody else"]
    assert [text for _, text in joiner.log] == ["kept"]
    town.start("D")  # what C makes of it is now the state
    until_up_to_date(town, "D")
    assert town.differ("C", "D") == ""


def test_two_who_wait_for_each_other() -> None:
    town = town_of("AB")
    town.mute |= {"A", "B"}
    town.start("CD")
    town.run_until(lambda: all(town.state(name).is_catching_up for name in "CD"), within=2)
    town.send("B", b"kept")
    town.run(0.1)
    town.crash("AB")
    until_up_to_date(town, "CD")
    # At least one of them learns that; the other may ask it only afterwards.
    ends = {name: town.application(name) for name in "CD"}
    assert all(len(end.lost) + end.received == 1 for end in ends.values())
    assert {reason for end in ends.values() for reason in end.lost} & {
        "nobody has the state: C waits for its own state",
        "nobody has the state: D waits for its own state",
    }
    town.run(1)
    assert town.differ("C", "D") == ""


def test_a_coordinator_that_waits_lets_others_in_who_get_their_state_elsewhere() -> None:
    town = town_of("AB", seed=2)
    town.mute |= {"A"}
    town.start("C")
    town.run_until(partial(waits, town, "C"), within=2)
    town.start("D")
    town.run_until(partial(waits, town, "D"), within=2)
    town.mute |= {"B"}
    town.crash("A")  # B coordinates, and says nothing; C and D ask it
    town.run(DETECTED + 1)
    town.start("E")
    town.run_until(lambda: town.state("E").is_catching_up, within=5)
    town.send("B", b"more")
    town.run(1)
    assert {town.state(name).provider for name in "CDE"} == {town.nodes["B"].me}
    town.mute.clear()
    town._turn("B")
    until_up_to_date(town, "CDE")
    town.run(0.5)
    assert town.differ("B", "C", "D", "E") == ""


def test_a_member_without_state_says_so_and_the_next_one_gives_it() -> None:
    town = new_town(stateless="A")
    town.start("A")
    town.run(1)
    town.start("B")
    until_up_to_date(town, "B")
    assert town.application("B").lost == ["nobody has the state: A gives no state"]
    town.send("A", b"hello")
    town.run(0.1)
    town.start("C")
    took = until_up_to_date(town, "C")
    assert took < 1
    assert town.application("C").received == 1
    assert town.differ("B", "C") == ""


def test_a_group_without_state_says_nothing_about_it() -> None:
    town = new_town(stateless="ABC")
    town.form("ABC")
    town.run(1)
    assert not any(map(is_system, town.sent))
    for name in "ABC":
        assert town.application(name).lost == []
        assert [type(e) for e in town.events[town.nodes[name].me][:1]] == [ViewInstalled]


def test_an_application_that_cannot_give_its_state() -> None:
    town = town_of("AB")
    town.mute.add("A")
    town.start("C")
    town.run_until(lambda: bool(town.application("A").giving), within=2)
    (transfer,) = town.application("A").giving
    town.run(0.1)
    town.nodes["A"].refuse_state(transfer, town.now)
    town.application("A").giving.clear()
    town._turn("A")
    until_up_to_date(town, "C")
    assert (town.application("C").begun, town.application("C").received) == (2, 1)
    assert town.differ("A", "B", "C") == ""
    assert town.nodes["A"].provide_state(transfer, [b"late"], town.now) == 0
    with pytest.raises(UsageError, match="no state transfer 99"):
        town.nodes["A"].provide_state(99, [], town.now)


def test_a_silent_application_is_passed_over_after_a_while() -> None:
    town = town_of("AB")
    town.mute.add("A")
    town.start("C")
    town.run_until(lambda: town.application("C").begun == 1, within=2)
    (why,) = town.nodes["C"].explain(town.now)
    assert "0 bytes so far from A; another is asked after" in why
    assert 9 < until_up_to_date(town, "C") < 11
    assert town.application("C").received == 1
    assert list(town.application("A").abandoned.values()) == ["C gets it from somebody else"]
    assert town.state("A").giving.transfers == {}
    assert town.differ("A", "B", "C") == ""


def test_a_joiner_that_wants_no_state() -> None:
    town = new_town(stateless="B")
    town.form("AB")
    assert town.is_up_to_date("B")
    assert "it has not asked for it yet" in town.nodes["A"].explain(town.now)[0]
    town.run(UNASKED_NS / 1e9)
    assert town.state("A").giving.transfers == {}
    assert town.nodes["A"].explain(town.now) == []


# Bounds


def test_a_full_buffer_holds_the_sender_up_and_everybody_can_say_why() -> None:
    town = town_of("ABD", capacity=4, join_buffer_bytes=4000, said=0)
    town.mute.add("A")
    town.start("C")
    town.run_until(partial(waits, town, "C"), within=2)
    sent = 0
    for _ in range(40):
        sent += town.send("D", b"x" * 500)
        town.run(0.05)
    town.run(1)
    assert 4 < sent < 20
    catch_up = town.state("C").catch_up
    assert catch_up is not None
    assert 2000 < catch_up.size <= 4000
    why = {name: " ".join(reasons) for name, reasons in town.explain().items()}
    assert re.search("send on fifo blocked .* limited by C", why["D"])
    for name in "ABD":
        assert re.search("C holds senders up .*: its state is still on its way", why[name])
    assert re.search(f"{catch_up.size} of 4000 bytes .* which holds senders up", why["C"])
    town.start("E")  # is told too
    town.run(1)
    assert re.search("C holds senders up", " ".join(town.nodes["E"].explain(town.now)))
    town.mute.clear()
    town._turn("A")
    until_up_to_date(town, "CE")
    town.run(1)
    assert town.differ("D", "A", "B", "C", "E") == ""
    assert len(town.application("C").log) == sent
    assert all(reasons == [] for reasons in town.explain().values())


def test_a_large_state_takes_no_more_memory_than_a_window() -> None:
    chunk, count = b"[]".ljust(100_000), 100
    town = new_town(datagram_bytes=60_000)
    town.start("A")
    town.run(1)
    town.mute.add("A")
    town.start("B")
    town.run_until(lambda: bool(town.application("A").giving), within=2)
    (transfer,) = town.application("A").giving
    town.application("A").giving.clear()
    provider, joiner = town.nodes["A"], town.nodes["B"]
    town.stopped.add("B")
    given = provider.provide_state(transfer, [chunk] * count, town.now)
    assert given == WINDOW // (len(chunk) + 64) + 1
    town._turn("A")
    town.run(2)
    assert provider.provide_state(transfer, [chunk] * count, town.now) == 0  # B takes nothing
    town.stopped.clear()
    most = 0
    while given < count:
        town.step()
        arrived = [event for event in town.state("B")._handover if isinstance(event, StateChunk)]
        transfer_out = town.state("A").giving.transfers[transfer]
        ahead = transfer_out.sent - transfer_out.taken
        most = max(most, ahead, len(arrived) * len(chunk))
        rest = [chunk] * (count - given)
        given += provider.provide_state(transfer, rest, town.now, is_last=True)
        town._turn("A")
    until_up_to_date(town, "B")
    town.run(1)
    assert WINDOW <= most <= WINDOW + len(chunk) + 64
    chunks = [event for event in town.events[joiner.me] if isinstance(event, StateChunk)]
    assert [event.payload for event in chunks] == [chunk] * count
    assert town.state("A").giving.transfers == {}


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ([b"a", "b"], "chunks of a state are bytes, not str"),
        ([bytes(CHUNK_BYTES_MAX + 1)], "a chunk of a state has 1048577 bytes: at most 1048576"),
    ],
)
def test_chunks_that_cannot_be_right(chunks: list[Any], message: str) -> None:
    town = town_of("AB")
    with pytest.raises(UsageError, match=message):
        town.nodes["A"].provide_state(1, chunks, town.now)


# Rules, switched off


def hold_back_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """The application learns of the cut only after it has taken more."""
    announce, timeout = StateTransfer._announce, StateTransfer.handle_timeout

    def release(self: StateTransfer, now: int, out: Effects) -> None:
        announce(self, out)
        timeout(self, now, out)

    monkeypatch.setattr(StateTransfer, "_announce", lambda self, out: None)
    monkeypatch.setattr(StateTransfer, "handle_timeout", release)
    monkeypatch.setattr(StateTransfer, "check_invariants", lambda self: None)


def test_without_the_cut_in_the_step_of_the_digest_messages_come_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hold_back_events(monkeypatch)
    town = new_town(1, capacity=64)
    town.form("A")
    town.chat("A")
    town.start("B")
    until_up_to_date(town, "B")
    town.silence()
    town.run(1)
    log = [text for _, text in town.application("B").log]
    assert len(log) > len(set(log))


def test_without_leaving_out_what_is_in_the_state_messages_come_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cut_nothing(self: CatchUp, cut: object, view: View) -> list[Origin]:
        return []

    monkeypatch.setattr(CatchUp, "cut", cut_nothing)
    town = town_of("AB", said=0)
    town.mute.add("A")
    town.start("C")
    town.run_until(partial(waits, town, "C"), within=2)
    town.send("B", b"once")
    town.run(0.1)
    town.crash("A")
    until_up_to_date(town, "C")
    assert [text for _, text in town.application("C").log] == ["once", "once"]


def test_without_waiting_for_a_provider_that_is_behind_messages_are_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_provider, "covers", lambda cut, opened, view: True)
    town = behind_the_first()
    town.crash("A")
    town.run(DETECTED + 1)
    town.stopped.clear()
    town._turn("B")
    until_up_to_date(town, "BCD")
    town.run(1)
    assert [text for _, text in town.application("B").log] == [*map(str, range(9)), "later"]
    assert [text for _, text in town.application("C").log] == ["later"]


def test_without_leaving_out_what_does_not_follow_there_is_a_gap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cut = CatchUp.cut

    def without_ends(self: CatchUp, entries: Any, view: View) -> list[Origin]:
        self.ends.clear()
        return cut(self, entries, view)

    monkeypatch.setattr(CatchUp, "cut", without_ends)
    town = behind_the_first(lost="D")
    town.stopped.clear()
    town.crash("AD")
    town.cut.clear()
    until_up_to_date(town, "BC")
    town.run(1)
    assert [text for _, text in town.application("C").log] == ["later"]


def test_what_is_lost_is_never_called_received() -> None:
    town = town_of("AB")
    town.mute |= {"A", "B"}
    town.start("C")
    town.run_until(lambda: town.application("C").begun == 1, within=2)
    town.crash("AB")
    until_up_to_date(town, "C")
    events: Iterable[Event] = town.events[town.nodes["C"].me]
    assert [event for event in events if isinstance(event, StateLost)]
    assert town.application("C").received == 0
