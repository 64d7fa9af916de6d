"""Structures in processes that are killed with kill -9: nothing is counted twice or lost, all that
survive have the same, and what a lock protects sees no token that falls."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.saying import Member

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = Path(__file__).with_name("replicated_member.py")
MEMBERS = 3


@pytest.fixture
def members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Member]]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # private, as pytest makes it
    found: list[Member] = []
    yield found
    for member in found:
        member.end()


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.proof)])
def test_what_survives_is_the_same(members: list[Member], tmp_path: Path, kills: int) -> None:
    store, dice = tmp_path / "store", random.Random(kills)

    def start() -> Member:
        members.append(Member(PROGRAM, f"m{len(members)}", store))
        return members[-1]

    alive = [start() for _ in range(MEMBERS)]
    for kill in range(kills):
        for member in alive:
            member.hear("added", len(member.all_of("added")) + 1 + kill % 3)
        victim = alive.pop(dice.randrange(MEMBERS) if kill else 0)
        victim.process.kill()
        alive.append(start())
        alive[-1].hear("view")
    for member in alive:
        member.hear("added")
        member.tell("stop")
    for member in alive:
        member.hear("stopped")
    ends = []
    for member in alive:
        member.tell("tell")
        ends.append(member.hear("count"))
    assert [end["view"] for end in ends] == [MEMBERS] * MEMBERS
    assert ends[0] == ends[1] == ends[2]
    added = [number for member in members for number in member.all_of("added")]
    assert len(added) == len(set(added))
    assert ends[0]["count"] >= max(added)
    assert ends[0]["count"] <= len(added) + 2 * kills  # what the killed had under way
    for member in alive:
        assert ends[0]["items"][member.name] == member.all_of("added")[-1]
    tokens = [line.split()[0] for line in store.read_text().splitlines()]
    assert tokens == sorted(set(tokens))
    assert len(tokens) > kills
    assert all(all(member.all_of("written")) for member in members)
