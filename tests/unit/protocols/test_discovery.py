"""Discovery: whom to ask for the group, and how often."""

from __future__ import annotations

from ringcast.model import Address, Member
from ringcast.protocols.views.discovery import (
    ASK_MAX_NS,
    ASK_START_NS,
    CANDIDATES_MAX,
    Discovery,
)


def member(port: int, incarnation: int = 1) -> Member:
    return Member(Address("h", port), incarnation, f"m{port}")


ME, LOWER, HIGHER = member(5), member(4), member(6)


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


def test_candidates_are_asked_ever_less_often() -> None:
    one = Discovery(ME)
    intervals = []
    for _ in range(8):
        intervals.append(one.interval)
        one.slow_down()
    assert intervals[:3] == [ASK_START_NS, 2 * ASK_START_NS, 4 * ASK_START_NS]
    assert intervals[-1] == ASK_MAX_NS
