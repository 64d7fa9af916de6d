"""Structures in processes that are killed with kill -9: nothing is counted twice or lost, all that
survive have the same, and what a lock protects sees no token that falls."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = Path(__file__).with_name("replicated_member.py")
MEMBERS = 3


class Member:
    """A process, and what it has said; a thread reads, so that it never waits for us."""

    def __init__(self, name: str, store: Path) -> None:
        self.name = name
        command = [sys.executable, "-u", str(PROGRAM), name, str(store)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self.said: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed, suppress(json.JSONDecodeError):  # killed in the middle of it
                self.said.append(json.loads(line))
                self._changed.notify_all()

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def hear(self, key: str, count: int = 1) -> dict[str, Any]:
        """The so-manieth thing that it says of this."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.all_of(key)) >= count, 60.0), self.said[
                -3:
            ]
            return [each for each in self.said if key in each][count - 1]

    def all_of(self, key: str) -> list[Any]:
        return [each[key] for each in self.said if key in each]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join()
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()


@pytest.fixture
def members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Member]]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # private, as pytest makes it
    found: list[Member] = []
    yield found
    for member in found:
        member.kill()
        assert member.process.stdout is not None
        member.process.stdout.close()


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.proof)])
def test_what_survives_is_the_same(members: list[Member], tmp_path: Path, kills: int) -> None:
    store, dice = tmp_path / "store", random.Random(kills)

    def start() -> Member:
        members.append(Member(f"m{len(members)}", store))
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
