"""Copies and canonical forms of state machines."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringcast.core.state import canonical, clone
from ringcast.events import Delivered
from ringcast.model import Stream
from support.cluster import cluster


class Colour(Enum):
    RED = 1


@dataclass
class Machine:
    name: str
    count: int = 0
    queue: deque[list[int]] = field(default_factory=deque)
    table: dict[str, list[int]] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    bits: bytearray = field(default_factory=bytearray)
    volatile: ClassVar[frozenset[str]] = frozenset({"count"})


class Slotted:
    __slots__ = ("items",)

    def __init__(self) -> None:
        self.items = [1]


class SlottedChild(Slotted):
    __slots__ = "extra"  # a single string is legal, so it must work

    def __init__(self) -> None:
        super().__init__()
        self.extra = {2}


@dataclass(frozen=True)
class Noun:
    parts: tuple[int, ...]


class Constant:
    stateless = True


class Summarised:
    def __init__(self, items: list[int]) -> None:
        self.items = items

    def canonical(self) -> int:
        return sum(self.items)


def filled() -> Machine:
    return Machine("m", 3, deque([[1]], maxlen=5), {"a": [1, 2]}, {7}, bytearray(b"\x01"))


def test_a_clone_shares_nothing_that_changes() -> None:
    original = filled()
    copy = clone(original)
    assert copy == original
    copy.queue[0].append(9)
    copy.queue.append([3])
    copy.table["a"].append(9)
    copy.table["b"] = []
    copy.seen.add(8)
    copy.bits[0] = 0
    copy.count += 1
    assert original == filled()
    assert copy.queue.maxlen == 5


def test_slots_of_all_classes_are_copied() -> None:
    original = SlottedChild()
    copy = clone(original)
    copy.items.append(2)
    copy.extra.add(3)
    assert (original.items, original.extra) == ([1], {2})
    assert (copy.items, copy.extra) == ([1, 2], {2, 3})
    assert canonical(original) == canonical(SlottedChild())
    assert canonical(original) != canonical(copy)


@pytest.mark.parametrize(
    "shared", [Noun((1,)), Constant(), Colour.RED, (1, "x"), b"x", len, range(3), None, 2.5]
)
def test_what_cannot_change_is_shared(shared: object) -> None:
    assert clone(shared) is shared
    assert clone([shared])[0] is shared


@pytest.mark.parametrize("container", [OrderedDict(a=1), type("L", (list,), {})([1])])
def test_containers_with_more_to_them_are_refused(container: object) -> None:
    with pytest.raises(TypeError, match="use the plain container"):
        clone(container)


def test_equal_machines_have_equal_canonical_forms() -> None:
    one, other = filled(), filled()
    assert canonical(one) == canonical(other)
    assert hash(canonical(one)) == hash(canonical(other))
    other.count = 99  # volatile
    assert canonical(one) == canonical(other)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.queue.append([]),
        lambda m: m.queue[0].append(1),
        lambda m: m.table["a"].append(3),
        lambda m: m.seen.add(8),
        lambda m: m.bits.append(0),
        lambda m: setattr(m, "name", "n"),
    ],
)
def test_every_difference_that_matters_shows(change: Any) -> None:
    one, other = filled(), filled()
    change(other)
    assert canonical(one) != canonical(other)


def test_the_order_of_keys_does_not_matter_and_that_of_items_does() -> None:
    assert canonical({"a": 1, "b": [2]}) == canonical({"b": [2], "a": 1})
    assert canonical([1, 2]) != canonical([2, 1])
    assert canonical((1, [2])) == (1, (2,))


def test_a_class_may_say_what_it_amounts_to() -> None:
    assert canonical(Summarised([1, 4])) == canonical(Summarised([2, 3])) == 5


TREES = st.recursive(
    st.integers() | st.binary(max_size=3) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=10,
)


@given(TREES)
def test_a_clone_is_equal_in_every_way(tree: Any) -> None:
    copy = clone(tree)
    assert copy == tree
    assert canonical(copy) == canonical(tree)
    assert not isinstance(tree, list | dict) or copy is not tree


def test_a_cloned_node_behaves_like_the_original_and_apart_from_it() -> None:
    c = cluster(2, capacity=4, datagram_bytes=512, window_bytes=4096)
    c.nodes["A"].send([b"1", b"2"], c.now)
    c.collect()
    c.nodes["A"].send([bytes(3000)], c.now)
    c.hand_over(c.collect())  # B has a gap, A the rest of a large message
    before = {name: canonical(node) for name, node in c.nodes.items()}
    originals = dict(c.nodes)
    now = c.now
    outcomes = []
    for _ in range(2):
        c.nodes = {name: clone(node) for name, node in originals.items()}
        assert {name: canonical(node) for name, node in c.nodes.items()} == before
        c.now = now
        c.events = {"A": [], "B": []}
        c.run(3)
        outcomes.append((c.events, {name: canonical(node) for name, node in c.nodes.items()}))
    assert outcomes[0] == outcomes[1]
    delivered = [event for event in outcomes[0][0]["B"] if isinstance(event, Delivered)]
    assert [p for event in delivered for p in event.run.payloads] == [b"1", b"2", bytes(3000)]
    assert {name: canonical(node) for name, node in originals.items()} == before
    assert outcomes[0][1] != before


def test_what_differs_in_behaviour_differs_in_form() -> None:
    one, other = cluster(2), cluster(2)
    assert canonical(one.nodes) == canonical(other.nodes)
    other.nodes["A"].send([b"x"], other.now)
    other.collect()
    assert canonical(one.nodes["A"]) != canonical(other.nodes["A"])
    assert canonical(one.nodes["B"]) == canonical(other.nodes["B"])
    assert other.nodes["A"].multicast.ack_tables()[Stream.FIFO].min_received == 0
