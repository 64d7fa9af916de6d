"""Members killed with kill -9 while structures are in use, the sequencer first and every other one:
what members were answered could have happened at once and in one order, nothing is counted twice or
lost, no lock is held twice, all that survive have the same, and the audit finds the order kept."""

from __future__ import annotations

import random
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ringcast.spark.audit import audit
from ringcast.spark.report import OF_ORDER
from support.linearizable import Call, counter_model, dict_model, is_linearizable, lock_model
from support.saying import Member

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = Path(__file__).with_name("structures_member.py")
MEMBERS = 3
CALLS_BETWEEN = 10
"""Of the last one that has come, before the next one is killed."""


@pytest.fixture
def members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Member]]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # private, as pytest makes it
    found: list[Member] = []
    yield found
    for member in found:
        member.end()


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.proof)])
def test_structures_and_their_order_outlive_who_is_killed(
    members: list[Member], tmp_path: Path, kills: int
) -> None:
    record = tmp_path / "traces"
    tokens = use(members, tmp_path / "store", record, kills)
    calls = {kind: list(calls_of(members, kind)) for kind in ("dict", "counter", "lock")}
    for key in sorted({call.what[1] for call in calls["dict"]}):
        own = [call for call in calls["dict"] if call.what[1] == key]
        assert is_linearizable(own, dict_model, ()), key
    assert is_linearizable(calls["counter"], counter_model, 0)
    assert is_linearizable(holds(calls["lock"]), lock_model, ("", None))
    assert tokens == sorted(set(tokens))
    assert len(tokens) > kills
    assert all(all(member.all_of("written")) for member in members)
    report = audit(None, record)
    assert report.exit_status == 0, report.to_json()
    found = {verdict.id: verdict for verdict in report.verdicts}
    for name in OF_ORDER:
        assert found[name].violation_count == 0
        assert found[name].status in ("ok", "unknown tail"), (name, found[name].detail)
        assert found[name].premises > 0, name


def use(members: list[Member], store: Path, record: Path, kills: int) -> list[str]:
    """Let members come, work, and be killed; the tokens that were written."""

    def start() -> Member:
        members.append(Member(PROGRAM, f"m{len(members)}", store, record))
        members[-1].hear("view")
        return members[-1]

    dice = random.Random(kills)
    alive = [start() for _ in range(MEMBERS)]
    for kill in range(kills):
        for member in alive:
            member.hear("ended", len(member.all_of("ended")) + CALLS_BETWEEN)
        teller = alive[-1]
        teller.tell("who")
        first = teller.hear("first", len(teller.all_of("first")) + 1)["first"]
        victim = next(member for member in alive if member.name == first)
        if kill % 2:
            victim = dice.choice(alive)
        victim.kill()
        alive.remove(victim)
        alive.append(start())
    for member in alive:
        member.hear("ended", len(member.all_of("ended")) + CALLS_BETWEEN)
        member.tell("stop")
    for member in alive:
        member.hear("stopped")
    for member in alive:
        member.tell("tell")
    ends = [member.hear("count") for member in alive]
    assert len(ends[0]["names"]) == MEMBERS
    assert ends[0] == ends[1] == ends[2]
    for member in alive:
        if added := member.all_of("added"):
            assert ends[0]["items"][member.name] == added[-1]
        member.tell("")  # which ends it
    for member in alive:
        member.hear("left")
    return [line.split()[0] for line in store.read_text().splitlines()]


def calls_of(members: list[Member], kind: str) -> Iterator[Call]:
    """What they called. One that has not ended may have been done, or not."""
    for member in members:
        begun: dict[int, Call] = {}
        for said in member.said:
            if said.get("of") == kind:
                call = Call(tuple(said["what"]), said["at"], result=None)
                begun[said["begun"]] = call
            elif (call := begun.get(said.get("ended", 0))) is not None:
                call.ended, call.result = said["at"], said["result"]
        if kind == "lock":
            for call in begun.values():
                call.what = (*call.what, member.name)
        yield from begun.values()


def holds(calls: list[Call]) -> list[Call]:
    """As the model takes them: each acquisition with its token, and its release; who was killed has
    not released, and the lock is free at some time since. One that was asked for and never told is
    as if it had not been."""
    found: list[Call] = []
    owners: dict[Any, list[Call]] = {}
    for call in calls:
        owners.setdefault(call.what[1], []).append(call)
    for name, own in owners.items():
        for at, call in enumerate(own):
            if call.what[0] != "acquire" or call.ended == inf:
                continue
            who = f"{name}/{at}"
            acquired = Call(("acquire", who, call.result), call.begun, call.ended, True)
            release = own[at + 1] if at + 1 < len(own) else Call(("release",), call.ended)
            freed = Call(("release", who), release.begun, release.ended, True)
            found += [acquired, freed]
    return found
