"""Discovery: whom to ask, whom to join, and who starts a group if nobody has one."""

from __future__ import annotations

import pytest

from ringcast.core.effects import Effects
from ringcast.model import Address, Member
from ringcast.protocols.views.discovery import (
    ANSWERS_MAX,
    ASK_MAX_NS,
    ASK_START_NS,
    CANDIDATES_MAX,
    Discovery,
    rank,
)
from ringcast.wire.frames import Discover


def member(port: int, incarnation: int = 1) -> Member:
    return Member(Address("h", port), incarnation, f"m{port}")


ME, LOWER, HIGHER = member(5), member(4), member(6)


def asked(out: Effects) -> list[object]:
    frames = [dest for dest, frame in out.frames if frame == Discover()]
    assert len(frames) == len(out.frames)
    out.frames.clear()
    return list(frames)


def test_groups_are_ranked_by_size_then_by_coordinator() -> None:
    ranked = [(HIGHER, 3), (LOWER, 2), (ME, 2), (member(5, 2), 2), (member(1), 0)]
    shuffled = [ranked[place] for place in (3, 0, 4, 2, 1)]
    assert sorted(shuffled, key=lambda group: rank(*group)) == ranked


def test_only_new_addresses_of_others_are_candidates() -> None:
    one = Discovery(ME)
    first = [Address("h", 1), Address("h", 2), Address("h", 1), ME.address]
    assert one.add(first) == [Address("h", 1), Address("h", 2)]
    assert one.add([Address("h", 2), Address("h", 3)]) == [Address("h", 3)]
    assert list(one.candidates) == [Address("h", port) for port in (1, 2, 3)]


def test_candidates_are_bounded() -> None:
    one = Discovery(ME)
    one.add([Address("h", 1)])
    many = [Address("x", port) for port in range(CANDIDATES_MAX)]
    assert one.add(many) == many[:-1]
    assert one.add([Address("y", 1)]) == []
    assert len(one.candidates) == CANDIDATES_MAX


def test_whoever_is_with_us_is_not_asked_and_others_ever_less_often() -> None:
    one, out = Discovery(ME), Effects()
    one.add([LOWER.address, HIGHER.address])
    assert one.interval == ASK_START_NS
    one.ask_again([LOWER], out)
    assert asked(out) == [HIGHER.address]
    assert one.interval == 2 * ASK_START_NS
    for _ in range(10):
        one.ask_again([], out)
        assert asked(out) == [LOWER.address, HIGHER.address]
    assert one.interval == ASK_MAX_NS


@pytest.mark.parametrize(
    ("rivals", "starts"),
    [([], True), ([HIGHER], True), ([LOWER], False), ([HIGHER, LOWER], False)],
    ids=["nobody", "a higher one", "a lower one", "both"],
)
def test_the_lowest_rival_starts_the_group(rivals: list[Member], starts: bool) -> None:
    one = Discovery(ME)
    for rival in rivals:
        one.note_rival(rival)
    assert one.may_start() is starts
    assert one.may_start()  # nobody has been heard since


def test_a_restarted_process_is_a_rival_to_itself() -> None:
    """Two processes on one address cannot be; but datagrams of the one before may still come."""
    one = Discovery(member(5, 2))
    one.note_rival(member(5, 1))
    assert not one.may_start()


def test_the_largest_group_is_the_one_to_join() -> None:
    one = Discovery(ME)
    assert one.best_offer() is None
    one.note_offer(LOWER, 2)
    one.note_offer(HIGHER, 3)
    assert one.best_offer() == HIGHER
    one.note_offer(LOWER, 3)  # it has grown
    assert one.best_offer() == LOWER


def test_answers_are_bounded() -> None:
    one = Discovery(ME)
    for port in range(ANSWERS_MAX + 9):
        one.note_rival(member(port))
        one.note_offer(member(port), 1)
    assert (len(one.rivals), len(one.offers)) == (ANSWERS_MAX, ANSWERS_MAX)


def test_a_new_search_begins_anew_but_keeps_its_candidates() -> None:
    one, out = Discovery(ME), Effects()
    one.add([LOWER.address])
    one.note_rival(LOWER)
    one.note_offer(HIGHER, 2)
    one.ask_again([], out)
    one.restart()
    assert (one.rivals, one.offers, one.interval) == (set(), {}, ASK_START_NS)
    assert list(one.candidates) == [LOWER.address]
