"""Copies and canonical forms of state machines."""

from __future__ import annotations

import inspect
import re
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringcast.config import GroupConfig
from ringcast.core.shared import Deadlines, GroupState
from ringcast.core.view_change import Begin, Cut, Part
from ringcast.events import Delivered
from ringcast.explore.abstraction import LEFT_OUT, TOLD_BY, attributes, canonical, clone, left_out
from ringcast.explore.total_streams import Streams
from ringcast.model import Address, Member, Stream, View, ViewId
from ringcast.node import build_node
from ringcast.protocols.repair import Repair
from ringcast.protocols.views.streams import ViewStreams
from support.cluster import cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ringcast.node import Node


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
    "shared", [Noun((1,)), Colour.RED, (1, "x"), b"x", len, range(3), None, 2.5]
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


def test_what_is_left_out_does_not_matter() -> None:
    one, other = (Repair(0, 5), Repair(0, 5))
    other._patience = 99
    assert canonical(one) == canonical(other)
    other.known = 1
    assert canonical(one) != canonical(other)


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
    assert other.nodes["A"].multicast.senders[Stream.FIFO].acks.min_received == 0


def test_what_refers_to_a_machine_refers_to_its_copy() -> None:
    c = cluster(2)
    c.nodes["B"].send([b"x"], c.now)
    c.stopped.add("A")
    c.exchange()
    node = c.nodes["A"]
    assert node.view is not None
    node.install_view(View(ViewId(node.me, 9), node.view.members), c.now)
    copy = clone(node)
    streams, halves = copy.multicast, {*copy.multicast._boxes()}
    assert streams.fetch._half_of.__self__ is streams  # type: ignore[attr-defined]
    (unread,) = streams.reading.unread
    assert set(unread.cuts) == halves
    assert halves.isdisjoint(node.multicast._boxes())
    assert canonical(copy) == canonical(node)


def test_what_is_shared_is_copied_once() -> None:
    shared = [1]
    one = SlottedChild()
    pair = clone([one, one, shared])
    assert pair[0] is pair[1] is not one
    node = clone(cluster(1).nodes["A"])
    assert node.multicast is node._stack.layers[0]
    assert node.multicast.deadlines is node.unicast.deadlines is node.deadlines
    assert node.multicast.group is node.group


# Every attribute is classified

STATE = {
    "AckTable": "_delivered _held min_delivered min_received",
    "Assembler": "_given_up _retain _size begun continued headed max_bytes oversized",
    "Datagrams": "packed",
    "Effects": "events frames lone messages signals",
    "Fetch": "_answered _last _members _part _timers proposal",
    "Fragmenter": "_continued _whole is_middle rest window",
    "MinMembers": "_has_refused _me _size least since",
    "Node": "_stack config datagrams view",
    "Parted": "_held",
    "Reading": "unread",
    "Receipts": "_pending",
    "ReceiveWindow": "_ahead _ring ahead_bytes capacity capacity_max capacity_min delivered gate"
    " high low max_bytes received retain",
    "ReliableUnicast": "_epoch _is_closed _is_loopback_blocked _nonce _replaced _timers config"
    " early loopback strangers sync_requests receivers senders tombstones",
    "Repair": "_marks announced known lost requests tau unasked",
    "SendWindow": "_charges _ring bulk_bytes capacity capacity_max capacity_min ceiling charged"
    " datagram_bytes delivered gate high limit low max_bytes",
    "Tail": "",
    "ReceiveStream": "_timers assembler is_frozen repair window",
    "Stack": "has_said_goodbye is_closed layers minimum out",
    "SendStream": "emits_writable fragments is_blocked",
    "UnicastReceiver": "_acked _timers conn state stream",
    "UnicastSender": "_answer config _has_moved _is_answer_fresh _is_answer_owed _is_confirmed"
    " _is_heard _is_tail_off _quota _tail _tail_high _timers conn marked nonce state stream",
    "MulticastReceiver": "_acked_ahead _acked_delivered _acked_received _began_at _datagrams"
    " _delivered_bytes _is_acking _is_repaired _timers is_gated stream",
    "Limits": "allowances config",
    "MulticastSender": "_agreed _config _heard_by_all _timers acks assembler is_frozen is_gated"
    " limits stream",
    "ViewStreams": "aside early _is_closed _next_tag _parted _reading_in _tag config fetch"
    " has_handed_over is_paused reading receivers rounds senders standing",
    "Ring": "mask slots",
}
"""By class: what tells its machines apart."""

OF_ORDER = {
    "Deliveries": "_asked _batches _delivered",
    "Entries": "_begun seqno",
    "History": "has_forgotten marks position",
    "OrderReader": "_parts _seen position",
    "OrderReceipts": "_asked _through",
    "Pending": "_payloads _taken_of_lowest _under_way carried low next offset submitted",
    "Queues": "_turn _waiting next",
    "TotalOrder": "_early _early_bytes _next_tag _place _queued _seen _tag _wanted deliveries"
    " history is_blocked is_open pending queues reader receipts timers",
    "ViewStreams": STATE["ViewStreams"] + " entries is_ordering total",
}
"""The same of those that are there only in a group with total messages."""

SHARED = {"group", "deadlines"}
"""What every layer has from its node."""


def machines(value: object, found: dict[int, object]) -> None:
    """Every machine that is reachable from here and told by its attributes."""
    if isinstance(value, dict):
        for item in value.values():
            machines(item, found)
    elif isinstance(value, list | deque):
        for item in value:
            machines(item, found)
    elif id(value) not in found and is_machine(value):
        found[id(value)] = value
        for attribute in attributes(value):
            machines(getattr(value, attribute), found)


def is_machine(value: object) -> bool:
    is_ours = type(value).__module__.startswith("ringcast.") and clone(value) is not value
    return is_ours and type(value) not in (Deadlines, GroupState, *TOLD_BY)


def group_of_two() -> list[Node]:
    """Two members with every layer that is explored, that have sent each other something of every
    kind, and not read of the last view yet."""
    streams = (Stream.FIFO, Stream.UNIFORM)
    members = [Member(Address("x", n), 1, name) for n, name in enumerate("AB", 1)]
    nodes = []
    for me, other in zip(members, reversed(members), strict=True):
        node = build_node(me, GroupConfig(group="g"), membership=None, streams=streams)
        node.install_view(View(ViewId(members[0], 1), tuple(members)), 0)
        node.send([b"x"], 0, to=other)
        node.send([b"x"], 0)
        nodes.append(node)
    for node, other_node in zip(nodes, reversed(nodes), strict=True):
        node.receive_datagrams([data for _, data in other_node.take_datagrams()], 0)
    return nodes


def ordered_pair() -> list[ViewStreams]:
    """A sequencer and another, with what one has submitted."""
    streams, members = Streams(ViewStreams), [Member(Address("x", n), 1, "") for n in (1, 2)]
    view = View(ViewId(members[0], 1), tuple(members))
    begin = Begin(view, Cut(view.id, (Part(view.id, view.members, {}, {}),), {}))
    first, other = (streams.change(streams.fresh(member), begin).after for member in members)
    step = streams.send(other, b"x")
    first = streams.receive(first, *step.late).after
    return [streams.all[first], streams.all[step.after]]


@pytest.mark.parametrize(
    ("group", "expected", "kinds"),
    [
        (group_of_two, STATE, STATE.keys()),
        (ordered_pair, STATE | OF_ORDER, OF_ORDER.keys()),
    ],
)
def test_every_attribute_is_state_or_left_out(
    group: Callable[[], object], expected: dict[str, str], kinds: Collection[str]
) -> None:
    found: dict[int, object] = {}
    machines(group(), found)
    seen = {type(machine).__name__ for machine in found.values()}
    assert seen >= set(kinds)
    assert seen <= expected.keys()
    for machine in found.values():
        state = set(expected[type(machine).__name__].split())
        names = set(attributes(machine)) - SHARED
        assert names - left_out(type(machine)) == state, type(machine)
        assert not state & left_out(type(machine)), type(machine)


@pytest.mark.parametrize("kind", LEFT_OUT)
def test_what_is_left_out_exists(kind: type) -> None:
    source = inspect.getsource(kind)
    assert all(re.search(rf"\b{name}\b", source) for name in LEFT_OUT[kind].names)
