"""Structures under random orders: replicas stay equal, wherever a state is handed on; locks and
counters hold what they promise; what is repeated is answered as before."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from ringcast.replicated.encoding import (
    Failure,
    Op,
    Token,
    pack,
    unpack,
)
from ringcast.replicated.machine import FORGOTTEN
from ringcast.replicated.structures import CounterState, LockState
from support.machines import Script, acquire, contents, copied, machine, member, release, told

if TYPE_CHECKING:
    from ringcast.replicated.machine import Machine

MEMBERS = 4
who = st.integers(0, MEMBERS - 1)
keys = st.sampled_from([b"a", b"b", b"c"])
values = st.sampled_from([b"", b"+", b"+1", b"+2", b"nonsense"])

bodies = st.one_of(
    st.lists(st.tuples(keys, values), max_size=3).map(
        lambda pairs: ("dict", (b"update", *(part for pair in pairs for part in pair)))
    ),
    st.tuples(keys, values, values).map(lambda fields: ("dict", (b"swap", *fields))),
    st.integers(-3, 3).map(lambda number: ("counter", (b"add", b"%d" % number))),
    st.just(("counter", (b"read",))),
    st.just(("lock", (b"acquire",))),
    st.tuples(st.sampled_from(["dict", "lock", "counter", "leader"]), st.binary(max_size=4)).map(
        lambda wrong: (wrong[0], (wrong[1],))
    ),
)
steps = st.one_of(
    st.tuples(st.just("do"), who, bodies),
    st.tuples(st.just("do"), who, bodies),
    st.tuples(st.just("release"), who, st.integers(1, 12)),
    st.tuples(st.just("again"), who, st.integers(0, 3)),
    st.tuples(st.just("view"), st.sets(who, min_size=1), st.sets(who)),
    st.tuples(st.just("copy"), who, who),
)


class Members:
    """What the spaces of a script have sent, and which answers they have had."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.sent: dict[int, list[tuple[str, tuple[bytes, ...], Any]]] = {}

    def do(self, by: int, structure: str, body: tuple[bytes, ...]) -> None:
        sent = self.sent.setdefault(by, [])
        low = max(1, len(sent) - 1)  # it still waits for the last two
        result = self.script.do(len(sent) + 1, structure, *body, by=by, low=low)
        sent.append((structure, body, result))

    def again(self, by: int, back: int) -> None:
        sent = self.sent.get(by, [])
        if back < len(sent):
            number = len(sent) - back
            structure, body, result = sent[number - 1]
            answer = self.script.do(number, structure, *body, by=by, low=1, again=True)
            assert answer in (result, FORGOTTEN)
            assert answer == result or back > 1


def play(script: Script, plan: list[Any]) -> None:
    members = Members(script)
    script.install(*range(MEMBERS))
    for step in plan:
        match step:
            case ("do" | "release" | "again", by, _) if member(by) not in script.members:
                continue  # only members of a view have a place in its order
            case ("do", by, (structure, body)):
                members.do(by, structure, body)
            case ("release", by, of):
                members.do(by, "lock", (b"release", b"%d" % of))
            case ("again", by, back):
                members.again(by, back)
            case ("view", present, more):
                script.install(*sorted(present), gone=more & present)
            case ("copy", *_):
                script.machines[1:] = [copied(script.first)]
        check(script)


def check(script: Script) -> None:
    states = {told(each) for each in script.machines}
    assert len(states) == 1
    lock = script.first.structures["lock"]
    assert isinstance(lock, LockState)
    assert (lock.holder is None) == (lock.token is None)
    for waiting in lock.line:
        assert waiting.origin in script.members


@given(st.lists(steps, max_size=40))
def test_replicas_stay_equal(plan: list[Any]) -> None:
    """Two from the beginning; and from each "copy" on, one that was made of a state."""
    play(Script(machine(), machine()), plan)


@given(st.lists(steps, max_size=40), st.data())
def test_what_is_repeated_changes_nothing(plan: list[Any], data: st.DataObject) -> None:
    """Each operation twice or more, in any later place, and once: the same in the end."""
    once, more = Script(), Script()
    for script in (once, more):
        script.install(*range(MEMBERS))
    sent: list[tuple[int, int, str, tuple[bytes, ...]]] = []
    numbers = dict.fromkeys(range(MEMBERS), 0)
    for step in plan:
        if step[0] != "do":
            continue
        _, by, (structure, body) = step
        numbers[by] += 1
        for script in (once, more):
            script.do(numbers[by], structure, *body, by=by, low=1)
        sent.append((numbers[by], by, structure, body))
        number, by, structure, body = data.draw(st.sampled_from(sent))
        more.do(number, structure, *body, by=by, low=1, again=data.draw(st.booleans()))
        once.position += 1  # a place in which nothing is
    assert _contents(once.first) == _contents(more.first)


def _contents(source: Machine) -> list[Any]:
    """All of the state but where it is."""
    return [
        [contents(each) for each in source.structures.values()],
        {key: (client.low, client.results) for key, client in source.clients.items()},
    ]


@given(st.lists(st.tuples(who, st.booleans()), max_size=30), st.lists(st.sets(who, min_size=1)))
def test_a_lock_has_one_holder_who_asked_first_and_tokens_grow(
    calls: list[tuple[int, bool]], views: list[set[int]]
) -> None:
    script = Script()
    script.install(*range(MEMBERS))
    lock = script.first.structures["lock"]
    assert isinstance(lock, LockState)
    asked: list[tuple[int, int]] = []  # in the model: those that wait, the holder first
    numbers = dict.fromkeys(range(MEMBERS), 0)
    tokens: list[bytes] = []
    for at, (by, is_release) in enumerate(calls):
        numbers[by] += 1
        mine = [each for each in asked if each[0] == by]
        if is_release and mine:
            release(script, numbers[by], of=mine[0][1], by=by)
            asked.remove(mine[0])
        else:
            acquire(script, numbers[by], by)
            asked.append((by, numbers[by]))
        if at % 5 == 4 and views:
            present = views.pop()
            script.install(*sorted(present))
            asked = [each for each in asked if each[0] in present]
            script.install(*range(MEMBERS))
        holder = None if lock.holder is None else (int(lock.holder.client[-2:]), lock.holder.number)
        assert holder == (asked[0] if asked else None)
        if lock.token is not None and (not tokens or bytes(lock.token) != tokens[-1]):
            tokens.append(bytes(lock.token))
    assert tokens == sorted(set(tokens))


@given(st.lists(st.tuples(who, st.integers(-9, 9), st.booleans()), max_size=30))
def test_a_counter_counts_each_operation_once(adds: list[tuple[int, int, bool]]) -> None:
    script = Script()
    script.install(*range(MEMBERS))
    for number, (by, added, is_repeated) in enumerate(adds, 1):
        body = b"add", b"%d" % added
        results = [
            script.do(number, "counter", *body, by=by, low=1, again=again > 0)
            for again in range(3 if is_repeated else 1)
        ]
        assert len(set(results)) == 1
    counter = script.first.structures["counter"]
    assert isinstance(counter, CounterState)
    assert counter.value == sum(added for _, added, _ in adds)


@given(st.lists(st.binary(max_size=30), max_size=6), st.text(max_size=20))
def test_what_is_encoded_comes_back(fields: list[bytes], name: str) -> None:
    assert unpack(pack(*fields)) == fields
    op = Op(b"12345678", 2**63, 7, is_again=True, body=fields)
    assert Op.of(bytes(op)) == op
    token = Token(name, 1, 2**64 - 1, 3)
    assert Token.of(name.encode(), bytes(token)) == token


@given(st.binary(max_size=60))
def test_any_bytes_are_an_operation_or_refused(data: bytes) -> None:
    for decode in (unpack, Op.of, lambda data: Token.of(b"lock", data)):
        with suppress(ValueError):
            decode(data)


@given(*[st.tuples(*[st.integers(0, 2**64 - 1)] * 3)] * 2)
def test_tokens_and_their_bytes_sort_alike(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    first, second = Token("lock", *one), Token("lock", *other)
    assert (first < second) == (bytes(first) < bytes(second))
    assert len(bytes(first)) == 24


@given(st.lists(bodies, max_size=20))
def test_what_is_refused_has_changed_nothing(plan: list[tuple[str, tuple[bytes, ...]]]) -> None:
    script = Script()
    script.install(0)
    for number, (structure, body) in enumerate(plan, 1):
        before = [contents(each) for each in script.first.structures.values()]
        result = script.do(number, structure, *body, low=number)
        after = [contents(each) for each in script.first.structures.values()]
        assert before == after or not isinstance(result, Failure)
