"""The structures on scripted orders: what is answered, refused, freed, forgotten and lost."""

from __future__ import annotations

import pytest

from ringcast.errors import UsageError
from ringcast.replicated import machine as machines
from ringcast.replicated.encoding import Failure, Token, take_records
from ringcast.replicated.machine import DEPARTED_MAX, FORGOTTEN, Machine
from ringcast.replicated.structures import (
    COUNTER_MAX,
    CounterState,
    DictState,
    LeaderState,
    LockState,
)
from support.machines import Script, acquire, copied, release, told
from support.ordered import member


def script_of(*members: int) -> Script:
    script = Script()
    script.install(*members)
    return script


def state_of(script: Script, kind: type) -> object:
    return next(each for each in script.first.structures.values() if isinstance(each, kind))


def lock_of(script: Script) -> LockState:
    found = state_of(script, LockState)
    assert isinstance(found, LockState)
    return found


def token_fields(token: Token) -> tuple[bytes, bytes]:
    return token.name.encode(), bytes(token)


def items_of(script: Script) -> dict[str, bytes]:
    found = state_of(script, DictState)
    assert isinstance(found, DictState)
    return found.items


def test_an_update_is_whole_or_nothing() -> None:
    script = script_of(0)
    assert script.do(1, "dict", b"update", b"a", b"+1", b"b", b"+2") == 0
    assert script.do(2, "dict", b"update", b"a", b"", b"c", b"+3", b"x", b"") == 1
    assert items_of(script) == {"b": b"2", "c": b"3"}
    refused = script.do(3, "dict", b"update", b"b", b"+9", b"c", b"no value")
    assert isinstance(refused, Failure)
    assert items_of(script) == {"b": b"2", "c": b"3"}


def test_a_swap_looks_first() -> None:
    script = script_of(0)
    assert script.do(1, "dict", b"swap", b"a", b"+0", b"+1") is False
    assert script.do(2, "dict", b"swap", b"a", b"", b"+1") is True
    assert script.do(3, "dict", b"swap", b"a", b"+1", b"") is True
    assert items_of(script) == {}


def test_a_counter_stays_within_63_bits() -> None:
    script = script_of(0)
    assert script.do(1, "counter", b"add", b"%d" % COUNTER_MAX) == COUNTER_MAX
    refused = script.do(2, "counter", b"add", b"1")
    assert isinstance(refused, Failure)
    assert refused.kind == "OverflowError"
    assert script.do(3, "counter", b"add", b"-1") == COUNTER_MAX - 1


def test_what_no_structure_knows_is_an_error_that_all_have() -> None:
    script = Script(*(Script().machines + Script().machines))
    script.install(0)
    for number, name in enumerate(("dict", "lock", "counter", "leader"), 1):
        refused = script.do(number, name, b"explode")
        assert isinstance(refused, Failure)
        assert f"a {name} does not know the operation b'explode'" in refused.text


def test_a_repeated_operation_is_answered_and_not_done_again() -> None:
    script = script_of(0)
    assert script.do(1, "counter", b"add", b"5") == 5
    assert script.do(2, "counter", b"add", b"1", low=1) == 6
    assert script.do(1, "counter", b"add", b"5", low=1, again=True) == 5
    assert script.do(1, "counter", b"add", b"5", low=1) == 5
    assert script.do(3, "counter", b"add", b"0", low=1) == 6


def test_an_operation_below_what_its_space_waits_for_is_not_done() -> None:
    script = script_of(0)
    script.do(1, "counter", b"add", b"5")
    script.do(2, "counter", b"add", b"1", low=2)
    assert script.do(1, "counter", b"add", b"5", again=True) == FORGOTTEN
    assert script.do(1, "counter", b"add", b"5") == FORGOTTEN
    assert script.do(3, "counter", b"add", b"0") == 6


def test_operations_may_overtake_each_other_on_their_way_to_the_group() -> None:
    script = script_of(0)
    assert script.do(3, "counter", b"add", b"1", low=1) == 1
    assert script.do(1, "counter", b"add", b"1", low=1) == 2
    assert script.do(2, "counter", b"add", b"1", low=1) == 3


def test_the_client_table_is_part_of_the_state() -> None:
    """Planted defect 26: without it, what was done while a member was away is done again."""
    script = script_of(0, 1)
    script.do(1, "counter", b"add", b"5", by=1)
    refused = script.do(2, "counter", b"explode", by=1, low=1)
    script.machines.append(copied(script.first))
    assert script.do(1, "counter", b"add", b"5", by=1, low=1, again=True) == 5
    assert script.do(2, "counter", b"explode", by=1, low=1, again=True) == refused
    assert told(script.machines[0]) == told(script.machines[1])


def test_results_that_their_space_knows_are_not_kept() -> None:
    script = script_of(0)
    for number in range(1, 50):
        script.do(number, "counter", b"add", b"1", low=max(1, number - 3))
    assert set(script.first.clients[b"client00"].results) == {46, 47, 48, 49}
    script.do(10**15, "counter", b"add", b"1")  # which takes no time
    assert set(script.first.clients[b"client00"].results) == {10**15}
    script.do(10**15 + 1, "counter", b"add", b"1", low=10**15 + 2)  # which no space says
    assert not script.first.clients[b"client00"].results


def test_results_are_bounded_though_their_space_waits_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machines, "RESULTS_MAX", 8)
    script = script_of(0)
    for number in range(1, 30):
        script.do(number, "counter", b"add", b"1", low=1)
    client = script.first.clients[b"client00"]
    assert set(client.results) == set(range(22, 30))
    assert script.do(21, "counter", b"add", b"1", low=1, again=True) == FORGOTTEN


def test_who_has_departed_is_known_for_ten_thousand_positions() -> None:
    script = script_of(0, 1)
    script.do(1, "counter", b"add", b"5", by=1)
    script.install(0)
    script.position += DEPARTED_MAX - 1
    script.install(0, 2)
    assert script.do(1, "counter", b"add", b"5", by=1, again=True) == 5
    script.position += 1
    script.install(0)
    assert b"client01" not in script.first.clients
    assert script.do(1, "counter", b"add", b"5", by=1, again=True) == FORGOTTEN
    assert script.do(2, "counter", b"add", b"1", by=1) == 6  # which is new


def test_members_are_known_however_long_they_say_nothing() -> None:
    script = script_of(0, 1)
    script.do(1, "counter", b"add", b"5", by=1)
    script.install(0)
    script.install(0, 1)
    script.position += 2 * DEPARTED_MAX
    script.install(0, 1, 2)
    script.install(0, 1)
    assert script.do(1, "counter", b"add", b"5", by=1, again=True) == 5


def test_a_lock_is_granted_in_order_with_tokens_that_grow() -> None:
    script = script_of(0, 1, 2)
    lock = lock_of(script)
    tokens = []
    for by in (2, 0, 1):
        acquire(script, 1, by)
        tokens.append(lock.token)
    assert tokens[0] == tokens[1] == tokens[2]
    order = []
    while lock.holder is not None:
        tokens.append(lock.token)
        order.append(lock.holder.origin)
        release(script, 2, of=1, by=int(lock.holder.client[-2:]))
    assert order == [member(2), member(0), member(1)]
    granted = [bytes(token) for token in tokens[3:] if token is not None]
    assert len(granted) == 3
    assert granted == sorted(set(granted))


def test_only_its_holder_releases_a_lock_and_only_what_it_was_granted() -> None:
    script = script_of(0, 1)
    lock = lock_of(script)
    acquire(script, 1, by=0)
    acquire(script, 1, by=1)
    assert release(script, 2, of=1, by=1) is False  # it waits no more
    assert len(lock.line) == 1
    assert release(script, 2, of=2, by=0) is False
    assert lock.holder is not None
    assert release(script, 3, of=1, by=0) is True
    assert lock.holder is None
    assert lock.token is None


def test_the_view_without_its_holder_frees_a_lock_and_nothing_else_does() -> None:
    """Planted defect 25: nothing but the order frees it."""
    script = script_of(0, 1, 2, 3)
    lock = lock_of(script)
    for by in (0, 1, 2):
        acquire(script, 1, by)
    before = lock.token
    script.install(0, 2, 3)  # without one that waits
    assert lock.holder is not None
    assert (lock.holder.origin, lock.token) == (member(0), before)
    script.install(2, 3, 0, gone=[0])  # a view that it was not in, though in all lists
    assert lock.holder.origin == member(2)
    assert before is not None
    assert lock.token is not None
    assert bytes(lock.token) > bytes(before)
    assert len(lock.line) == 1


def test_tokens_grow_where_positions_go_back() -> None:
    """Planted defect 24: a position alone is not a token. The lesser part has gone further."""
    script = script_of(0, 1)
    apart, lead = Script(copied(script.first)), Script(copied(script.first))
    for part, number in ((apart, 0), (lead, 1)):
        part.members, part.counter, part.position = script.members, 1, 0
        part.install(number)
    for number in range(1, 9):
        apart.do(number, "counter", b"add", b"1")
    acquire(apart, 9, by=0)
    lead.counter = 2
    lead.install(1, 0)
    acquire(lead, 1, by=1)
    theirs, ours = lock_of(apart).token, lock_of(lead).token
    assert theirs is not None
    assert ours is not None
    assert theirs.position > ours.position
    assert bytes(theirs) < bytes(ours)
    assert theirs < ours


def test_an_operation_under_a_token_is_refused_unless_that_counts() -> None:
    script = script_of(0, 1)
    lock = lock_of(script)
    acquire(script, 1, by=0)
    token = lock.token
    assert token is not None
    under = (b"with", *token_fields(token))
    assert script.do(2, "dict", *under, b"update", b"a", b"+1") == 0
    release(script, 3, of=1, by=0)
    for number, present in ((4, None), (5, "another")):
        if present:
            acquire(script, 1, by=1)
        refused = script.do(number, "dict", *under, b"update", b"a", b"+2")
        assert isinstance(refused, Failure)
        assert refused.kind == "StaleToken"
    assert items_of(script) == {"a": b"1"}
    nowhere = (b"with", *token_fields(Token("nothing", 1, 1, 1)))
    assert isinstance(script.do(6, "dict", *nowhere, b"update", b"a", b"+2"), Failure)


def test_the_first_that_came_with_the_leading_part_leads() -> None:
    script = script_of(0, 1)
    leader = state_of(script, LeaderState)
    assert isinstance(leader, LeaderState)
    first = leader.token
    assert leader.member == member(0)
    script.install(0, 1, 2)
    assert leader.token == first
    script.install(3, 0, 1, came=[3])  # who comes in does not lead, wherever it stands
    assert (leader.member, leader.token) == (member(0), first)
    script.install(0, 1, gone=[0])  # the same, and it was gone
    assert leader.member == member(0)
    assert first is not None
    assert leader.token is not None
    assert bytes(leader.token) > bytes(first)
    before = leader.token
    script.install(0, 1, 2, came=[2], others=((before.counter - 1, 9), (before.counter, 0)))
    assert leader.token == before  # there was no later leader in those parts
    script.install(0, 1, 2, 3, came=[3], others=((before.counter, 9),))
    assert bytes(leader.token) > bytes(before)
    script.install(1)
    assert leader.member == member(1)
    epoch = leader.token
    assert script.do(1, "counter", b"with", *token_fields(epoch), b"add", b"1", by=1) == 1


def test_a_state_is_that_of_the_same_structures() -> None:
    mine = Machine({"a": DictState("a"), "b": LockState("b")})
    others = Machine({"a": DictState("a"), "b": CounterState("b")})
    about, *_ = take_records(bytearray(told(mine)))
    with pytest.raises(
        UsageError, match="others have dict 'a', lock 'b', this one has counter 'b', d"
    ):
        others.load(about)
    with pytest.raises(ValueError, match="no record of a state"):
        mine.load([b"dict", b"nonsense"])


def test_what_a_lesser_part_did_is_told_by_key_and_by_sum() -> None:
    script = script_of(0, 1, 2)
    script.do(1, "dict", b"update", b"both", b"+1")
    lead, part = Script(copied(script.first)), script
    lead.members, lead.position, lead.counter = part.members, part.position, part.counter
    # In the view that both were in, this member has taken one more before it was parted.
    part.do(2, "dict", b"update", b"tail", b"+1")
    part.install(0)
    part.do(3, "counter", b"add", b"4")
    part.do(4, "counter", b"add", b"-1")
    part.do(5, "dict", b"swap", b"other", b"", b"+1")
    part.do(6, "dict", b"swap", b"kept", b"+no", b"+1")  # which changes nothing
    lead.counter = part.counter
    lead.install(1, 2)
    lead.do(1, "dict", b"update", b"theirs", b"+1", by=1)
    lead.install(1, 2, 0)
    diverged = part.first.lost_to(lead.first)
    assert diverged.is_whole
    assert diverged.keys("dict") == {"tail", "other"}
    assert diverged.added("counter") == 3
    assert {lost.origin for lost in diverged.operations} == {member(0)}
    assert lead.first.lost_to(copied(lead.first)).operations == ()


def test_what_is_lost_beyond_the_log_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "LOG_MAX", 4)
    script = Script()
    script.install(0)
    script.do(1, "counter", b"add", b"1")
    for number in range(2, 8):
        script.do(number, "counter", b"add", b"1")
    diverged = script.first.lost_to(Script().first)
    assert (len(diverged.operations), diverged.is_whole) == (4, False)


def test_a_state_as_large_as_any_travels_in_pieces() -> None:
    script = script_of(0)
    big = b"+" + b"x" * 100_000
    for number in range(1, 40):
        script.do(number, "dict", b"update", b"key%d" % number, big)
    chunks = list(script.first.records())
    assert max(map(len, chunks)) < 200_000
    assert told(copied(script.first)) == told(script.first)


def test_a_state_that_is_given_does_not_change_any_more() -> None:
    script = script_of(0)
    acquire(script, 1, by=0)
    script.do(2, "dict", b"update", b"a", b"+1")
    before = told(script.first)
    records = script.first.records()
    script.do(3, "dict", b"update", b"a", b"+2", b"b", b"+3")
    release(script, 4, of=1, by=0)
    script.install(0, 1)
    assert b"".join(records) == before
