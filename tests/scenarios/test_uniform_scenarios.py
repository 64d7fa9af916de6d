"""Uniform delivery by whole members, real datagrams between them: one fault at every step there is.

Who survives has in the end delivered the same of everybody: all that anybody delivered, whoever is
gone included (U1, U6), and nothing is left to be done (U7).
"""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import pytest

from ringcast.events import Delivered
from ringcast.model import Origin, Stream
from ringcast.wire.frames import Ack, Commit, Data, Merged, Standing, Takeover, UnicastData
from support.membership import MILLISECOND, SECOND, Town, lose_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringcast.model import Member
    from ringcast.wire.frames import Frame
    from support.membership import Sent

UNIFORM = Stream.UNIFORM
MESSAGES = (b"one", b"two")

strides = pytest.mark.parametrize(
    "stride", [7, pytest.param(1, marks=pytest.mark.proof)], ids=["some", "all"]
)
"""Of the many steps of a take-over, some on every commit."""


def formed(names: str, seed: int = 1) -> Town:
    town = Town(seed, streams=(Stream.FIFO, UNIFORM), hints=True)
    town.form(names)
    town.rejoins = False
    town.sent.clear()
    return town


def send(town: Town, name: str, *payloads: bytes) -> Member:
    """The sender, which has sent them."""
    assert town.send(name, *(payloads or MESSAGES), stream=UNIFORM) == len(payloads or MESSAGES)
    return town.nodes[name].me


def got(town: Town, member: Member, sender: Member) -> list[bytes]:
    return [
        payload
        for event in town.events[member]
        if isinstance(event, Delivered) and event.sender == sender and event.run.stream is UNIFORM
        for payload in event.run.payloads
    ]


def is_at_rest(town: Town) -> bool:
    """All are in one view, with nothing left to send, to deliver or to resolve."""
    for name, node in town.nodes.items():
        window = node.multicast.windows().get(Origin(node.me, UNIFORM))
        if window is None or window.low < window.high or node.multicast.uniform.estates:
            return False
        if town.group(name) == "":
            return False
    return town.agree()


def come_to_rest(town: Town, sender: Member) -> list[bytes]:
    """What everybody who is left has delivered of that sender in the end."""
    town.run_until(lambda: is_at_rest(town), within=20)
    everybody = [got(town, member, sender) for member in list(town.events)]
    survivors = [got(town, node.me, sender) for node in town.nodes.values()]
    assert all(messages == max(everybody, key=len) for messages in survivors), survivors
    return survivors[0]


def is_gone(town: Town, name: str) -> bool:
    return name not in town.nodes


def every_step(begin: Callable[[], Town], stride: int = 1) -> Iterator[Town]:
    """A town as `begin` leaves it, then after a step, and so on until it is at rest."""
    for steps in count(step=stride):
        town = begin()
        for _ in range(steps):
            if is_at_rest(town):
                return
            town.step()
        yield town


def has_uniform(sent: Sent) -> bool:
    kinds = (Commit, Takeover, Standing, UnicastData)
    return any(sent.has(kind) for kind in kinds) or any(
        isinstance(frame, Data | Ack) and frame.stream is UNIFORM for frame in sent.frames
    )


def nth_of(is_meant: Callable[[Sent], bool], nth: int) -> Callable[[Sent], bool]:
    seen = count()
    return lambda sent: is_meant(sent) and next(seen) == nth


# Without faults


def test_it_takes_three_delays() -> None:
    """To all, back from all, and to all again (U-L1)."""
    town = formed("ABC")
    b = send(town, "B")
    members = [node.me for node in town.nodes.values()]
    took = town.run_until(
        lambda: all(got(town, member, b) == list(MESSAGES) for member in members), within=1
    )
    assert took <= 3 * 2 * MILLISECOND / SECOND
    assert come_to_rest(town, b) == list(MESSAGES)


def test_a_few_control_frames_stand_for_any_number_of_messages() -> None:
    town = formed("ABC")
    send(town, "B", *(b"%d" % number for number in range(500)))
    town.run(0.1)
    assert town.count(Commit) <= 12
    assert town.count(Ack) <= 24


# Somebody crashes


@pytest.mark.parametrize("is_mute", [False, True], ids=["all arrives", "nothing more arrives"])
@pytest.mark.parametrize("victim", "ABC")
def test_anybody_crashes_at_any_step(victim: str, is_mute: bool) -> None:
    def begin() -> Town:
        town = formed("ABC")
        send(town, "B")
        return town

    outcomes = []
    for town in every_step(begin):
        b = town.nodes["B"].me
        town.crash(victim)
        town.silenced.update(victim * is_mute)
        outcomes.append(come_to_rest(town, b))
    assert len(outcomes) > 10
    assert outcomes[-1] == list(MESSAGES)
    if victim == "B" and is_mute:
        assert outcomes[0] == []
    else:
        assert all(outcome == list(MESSAGES) for outcome in outcomes)


@pytest.mark.parametrize("heir", "ACD")
def test_what_only_one_member_got_of_a_dead_sender_all_get(heir: str) -> None:
    town = formed("ABCD")
    town.lose = lambda sent: sent.source == "B" and sent.dest != heir
    b = send(town, "B")
    town.run_until(lambda: any(sent.source == heir for sent in town.sent if sent.has(Ack)), 1)
    town.crash("B")
    assert come_to_rest(town, b) == list(MESSAGES)
    assert town.count(Takeover) > 0


@pytest.mark.parametrize("heir", "AC")
def test_what_only_one_member_was_told_to_deliver_all_deliver(heir: str) -> None:
    town = formed("ABC")
    town.lose = lambda sent: sent.has(Commit) and sent.dest != heir
    b = send(town, "B")
    member = town.nodes[heir].me
    town.run_until(lambda: got(town, member, b) != [], within=1)
    town.crash("B")
    (other,) = (node.me for name, node in town.nodes.items() if name != heir)
    assert got(town, other, b) == []
    assert come_to_rest(town, b) == list(MESSAGES)


def bereaved() -> Town:
    """A, C and D; of what B had sent only D got anything, and B has died."""
    town = formed("ABCD")
    town.lose = lambda sent: sent.source == "B" and sent.dest != "D"
    send(town, "B")
    town.run_until(lambda: any(sent.source == "D" for sent in town.sent if sent.has(Ack)), 1)
    town.crash("B")
    town.heal()
    town.run_until(lambda: "B" not in town.group("A"), within=10)
    town.sent.clear()
    return town


def sender_of(town: Town) -> Member:
    """B, which has died."""
    return next(member for member in list(town.events) if member.name == "B")


@strides
@pytest.mark.parametrize("victim", "ACD")
def test_anybody_crashes_at_any_step_of_a_take_over(victim: str, stride: int) -> None:
    outcomes = []
    for town in every_step(bereaved, stride):
        town.crash(victim)
        town.silenced.add(victim)
        outcomes.append(come_to_rest(town, sender_of(town)))
    assert len(outcomes) > 40 // stride
    assert outcomes[-1] == list(MESSAGES)
    if victim == "D":
        assert outcomes[0] == []  # who alone had them is gone, too
    else:
        assert all(outcome == list(MESSAGES) for outcome in outcomes)


def test_a_cascade_down_to_the_last_survivor() -> None:
    town = formed("ABCD")
    town.lose = lambda sent: sent.has(Commit)
    b = send(town, "B")
    town.run_until(lambda: got(town, b, b) != [], within=1)
    town.heal()
    for victim in "BA":
        town.crash(victim)
        town.sent.clear()
        town.run_until(lambda: any(sent.has(Takeover) for sent in town.sent), within=10)
    town.crash("C")
    d = town.nodes["D"].me
    town.run_until(lambda: town.group("D") == "D", within=10)
    assert got(town, d, b) == list(MESSAGES)
    assert is_at_rest(town)


# A datagram is lost, or comes twice


def datagrams_of_a_take_over() -> list[Sent]:
    town = bereaved()
    town.run_until(lambda: is_at_rest(town), within=10)
    return [sent for sent in town.sent if has_uniform(sent)]


@pytest.mark.parametrize("fault", ["lose", "twice"])
def test_any_datagram_of_a_take_over_is_lost_or_comes_twice(fault: str) -> None:
    total = len(datagrams_of_a_take_over())
    assert total > 20
    for nth in range(total):
        town = bereaved()
        setattr(town, fault, nth_of(has_uniform, nth))
        assert come_to_rest(town, sender_of(town)) == list(MESSAGES)


@pytest.mark.parametrize("kind", [Data, Ack, Commit])
@pytest.mark.parametrize("nth", range(3))
def test_what_is_lost_while_the_sender_lives_is_made_good(kind: type[Frame], nth: int) -> None:
    town = formed("ABC")
    town.lose = lose_once(kind, after=nth)
    b = send(town, "B")
    assert come_to_rest(town, b) == list(MESSAGES)


def test_once_all_is_resolved_nothing_more_is_said() -> None:
    town = bereaved()
    come_to_rest(town, sender_of(town))
    town.run(1)
    town.sent.clear()
    town.run(5)
    assert not any(has_uniform(sent) for sent in town.sent)


# Views meanwhile


def test_a_view_comes_while_another_is_collected_for() -> None:
    town = bereaved()
    town.lose = lambda sent: sent.has(Standing) and sent.source == "C"
    town.run(1)
    a = town.nodes["A"]
    assert any("no answer from C" in reason for reason in a.explain(town.now))
    town.crash("D")  # it alone had them: nobody has fetched anything before all have answered
    town.heal()
    assert come_to_rest(town, sender_of(town)) == []


@strides
def test_somebody_joins_at_any_step_of_a_take_over(stride: int) -> None:
    joined = 0
    for town in every_step(bereaved, stride):
        b = sender_of(town)
        old = [node.me for node in town.nodes.values()]
        town.start("E")
        town.run_until(partial(is_at_rest, town), within=20)
        assert [got(town, member, b) for member in old] == [list(MESSAGES)] * 3
        e = town.nodes["E"].me
        assert got(town, e, b) == []  # B was gone before it came
        a = send(town, "A", b"three")
        town.run_until(partial(is_at_rest, town), within=5)
        assert got(town, e, a) == [b"three"]
        joined += 1
    assert joined > 40 // stride


def test_somebody_joins_at_any_step_of_a_message() -> None:
    def begin() -> Town:
        town = formed("AB")
        send(town, "B")
        return town

    outcomes = set()
    for town in every_step(begin):
        a, b = town.nodes["A"].me, town.nodes["B"].me
        town.start("C")
        town.run_until(partial(is_at_rest, town), within=20)
        c = town.nodes["C"].me
        assert got(town, a, b) == got(town, b, b) == list(MESSAGES)
        outcomes.add(tuple(got(town, c, b)))
    assert outcomes <= {(), MESSAGES}  # it began before or after them, and has no part of them


def test_whoever_leaves_at_any_step_leaves_nothing_undone() -> None:
    def begin() -> Town:
        town = formed("ABC")
        send(town, "B")
        return town

    for town in every_step(begin):
        b = town.nodes["B"].me
        town.leave("B")
        town.run_until(partial(is_gone, town, "B"), within=5)
        (closed,) = town.closed(b)
        assert closed.unacked == ()
        assert come_to_rest(town, b) == list(MESSAGES)


def test_a_slow_application_keeps_joiners_out_and_is_named() -> None:
    town = bereaved()
    town.stopped.add("C")
    town.run(2)
    reasons = town.nodes["A"].explain(town.now)
    assert any(reason.endswith("C has not taken 2") for reason in reasons)
    town.start("E")
    town.run(3)
    assert town.group("E") == ""
    town.stopped.clear()
    town._turn("C")
    town.run_until(lambda: town.group("E") != "" and is_at_rest(town), within=20)
    assert come_to_rest_of_old(town) == list(MESSAGES)


def come_to_rest_of_old(town: Town) -> list[bytes]:
    b = sender_of(town)
    outcomes = [got(town, town.nodes[name].me, b) for name in "ACD"]
    assert outcomes[1:] == outcomes[:-1]
    return outcomes[0]


# Groups come together


def parted() -> Town:
    town = Town(streams=(Stream.FIFO, UNIFORM))
    town.rejoins = False
    town.part("ABC", "DE")
    town.form("ABC")
    town.start("D")
    town.run_until(lambda: town.group("D") == "D", within=10)
    town.start("E")
    town.run_until(lambda: town.agree("DE"), within=10)
    return town


def test_each_group_delivers_its_own_until_they_are_one() -> None:
    town = parted()
    c, e = send(town, "C"), send(town, "E", b"elsewhere")
    town.run(0.1)
    town.heal()
    town.run_until(lambda: is_at_rest(town), within=30)
    members = {name: node.me for name, node in town.nodes.items()}
    assert [got(town, members[name], c) for name in "ABC"] == [list(MESSAGES)] * 3
    assert [got(town, members[name], e) for name in "DE"] == [[b"elsewhere"]] * 2
    assert [got(town, members[name], c) for name in "DE"] == [[], []]
    a = send(town, "A", b"together")
    town.run_until(lambda: is_at_rest(town), within=5)
    assert all(got(town, member, a) == [b"together"] for member in members.values())


def test_messages_on_their_way_when_groups_come_together_stay_whole_in_each() -> None:
    town = parted()
    town.heal()
    members = {name: node.me for name, node in town.nodes.items()}
    sent: dict[str, int] = dict.fromkeys("CE", 0)
    while not town.agree():
        for name in sent:
            sent[name] += town.send(name, b"%d" % (sent[name] + 1), stream=UNIFORM)
        town.run(0.01)
    town.run_until(lambda: is_at_rest(town), within=30)
    for name, home in (("C", "ABC"), ("E", "DE")):
        everything = [b"%d" % number for number in range(1, sent[name] + 1)]
        for member, other in members.items():
            messages = got(town, other, members[name])
            if member in home:
                assert messages == everything
            else:
                assert messages == everything[len(everything) - len(messages) :]
    away = {tuple(got(town, members[name], members["C"])) for name in "DE"}
    assert len(away) == 1


def test_a_sender_dies_just_when_groups_come_together() -> None:
    """The others have never heard of it, and must not be taken for somebody who is done with it."""
    town = parted()
    a, b, c = (town.nodes[name].me for name in "ABC")
    town.lose = lambda sent: (
        (sent.has(Commit) and sent.source == "C")
        or (sent.has(Merged) and sent.dest in "DE" and "C" in town.group("A"))
    )
    send(town, "C")
    town.run_until(lambda: got(town, c, c) != [], within=1)
    town.cut.clear()
    town.run_until(lambda: town.group("A") == "ABCDE", within=30)
    assert town.group("D") == "DE"
    assert got(town, a, c) == []
    town.crash("C")
    town.run_until(lambda: is_at_rest(town), within=30)
    assert got(town, a, c) == got(town, b, c) == list(MESSAGES)
    assert [got(town, town.nodes[name].me, c) for name in "DE"] == [[], []]
