"""Where merge, state transfer, joins and uniform delivery meet: what went wrong between two of them
once, each in as few members as it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ringcast.config import MulticastConfig
from ringcast.core.effects import Effects
from ringcast.events import Delivered, FragmentsDelivered
from ringcast.model import Address, Member, Origin, Stream, View, ViewId
from ringcast.node import build_node
from ringcast.protocols.channel import MESSAGE_BYTES_MAX
from ringcast.protocols.uniform import Estate, Uniform
from ringcast.window.assembler import Assembler
from ringcast.window.windows import ReceiveWindow
from ringcast.wire.codec import Codec
from ringcast.wire.frames import (
    Begin,
    Commit,
    EstateRun,
    EstateWanted,
    Join,
    Merged,
    MergeRequest,
    ViewIs,
    Welcome,
)
from ringcast.wire.limits import COUNTER_MAX
from ringcast.wire.messages import encode_message
from support.membership import Town
from support.state import StateTown

if TYPE_CHECKING:
    from ringcast.config import GroupConfig
    from ringcast.events import Event
    from ringcast.node import Node

STREAMS = (Stream.FIFO, Stream.UNIFORM)


class UniformTown(StateTown):
    """A town whose groups have both streams, and, if so wished, a state."""

    has_state = False

    def _build(self, name: str, me: Member, config: GroupConfig, *, must_exist: bool) -> Node:
        return build_node(
            *(me, config), must_exist=must_exist, state=self.has_state, streams=STREAMS
        )

    def send_uniform(self, name: str, *payloads: bytes) -> None:
        node = self.nodes[name]
        assert node.send(payloads, self.now, stream=Stream.UNIFORM) == len(payloads)
        self._turn(name)

    def _check(self, node: Node, event: Event) -> None:
        match event:
            case Delivered(sender, run) if run.stream is Stream.UNIFORM:
                key, last = (node.me, Origin(sender, run.stream)), run.last
                self._check_order(key, run.first, last)
            case FragmentsDelivered(sender, Stream.UNIFORM, first, last):
                key = (node.me, Origin(sender, Stream.UNIFORM))
                self._check_order(key, first, last)
            case _:
                super()._check(node, event)
                return
        if node.view is None or sender not in node.view:  # it has left this behind
            self._away.add(key)


class UniformStateTown(UniformTown):
    has_state = True


def parted(town: Town, one: str, other: str) -> None:
    """One group becomes two, and both know."""
    town.part(one, other)
    town.run_until(lambda: (town.group(one[0]), town.group(other[0])) == (one, other), within=10)
    town.run(1)


# Joins and merges


def test_a_joiner_is_let_in_after_everybody_has_said_where_it_begins() -> None:
    """The one who lets it in has no window for a member from the other part yet."""
    town = Town(3)
    town.form("ABCD")
    parted(town, "AB", "CD")
    town.send("D", *[b"apart"] * 10)
    town.run(0.5)
    town.heal()
    town.lose = lambda sent: sent.has(Begin) and (sent.source, sent.dest) == ("D", "A")
    town.run_until_agreed("ABCD", within=30)
    town.start("E")
    town.run(3)
    assert town.group("E") == ""
    assert any("D has not said where it begins" in why for why in town.explain()["A"])
    town.heal()
    town.run_until_agreed("ABCDE", within=10)
    town.send("D", b"together")
    town.run(1)
    sender = town.nodes["D"].me
    assert town.delivered(town.nodes["E"].me, sender) == [b"together"]
    assert town.is_drained("D")


@pytest.mark.parametrize(("near", "far"), [("AB", "CD"), ("CD", "AB")])
def test_whoever_was_not_let_in_before_its_group_merged_is_let_in_again(
    near: str, far: str
) -> None:
    """Its coordinator has left without a Welcome; the next takes it for a member, and merges."""
    town = Town()
    town.form("ABCD")
    parted(town, near, far)
    town.run(2)
    town.part("E", far)
    town.lose = lambda sent: sent.has(Welcome) or sent.has(MergeRequest)
    town.start("E", candidates=near)
    town.run_until(lambda: "E" in town.group(near[1]), within=5)
    town.leave(near[0])
    town.run_until(lambda: near[0] not in town.nodes, within=10)
    assert town.group("E") == ""
    town.heal()
    town.lose = lambda sent: sent.has(Join)
    town.run_until(lambda: town.count(Merged) > 0, within=3)
    assert town.group("E") == ""
    town.heal()
    names = "".join(sorted(town.nodes))
    town.run_until_agreed(names, within=30)
    assert town.send("E", b"hello") == 1
    town.run(1)
    sender = town.nodes["E"].me
    assert [town.delivered(node.me, sender) for node in town.nodes.values()] == [[b"hello"]] * 4
    assert town.is_drained("E")


def test_a_view_that_nobody_could_count_on_from_raises_nothing() -> None:
    stranger = Member(Address("10.0.0.1", 7805), 99, "X")
    town = Town()
    town.form("AB")
    everybody = (stranger, *(node.me for node in town.nodes.values()))
    last = ViewId(stranger, COUNTER_MAX)
    codec = Codec("town", stranger, 1000)
    for frame in (MergeRequest(View(last, (stranger,))), ViewIs(View(last, everybody))):
        for name, node in town.nodes.items():
            node.receive_datagrams(codec.pack([frame]), town.now)
            town._turn(name)
        town.run(1)
    assert town.agree("AB")
    town.start("C")
    town.run_until_agreed("ABC", within=5)


# Uniform delivery


def test_whoever_never_knew_a_departed_sender_is_no_proof_that_it_is_resolved() -> None:
    """It dies while groups come together, and D and E have not heard of a view with it."""
    town = UniformTown()
    town.form("ABCDE")
    parted(town, "ABC", "DE")
    a, b, c = (town.nodes[name].me for name in "ABC")
    town.cut.clear()
    town.lose = lambda sent: (
        (sent.has(Commit) and (sent.source, sent.dest) == ("C", "A"))
        or (sent.has(Merged) and sent.dest in "DE")
    )
    town.send_uniform("C", b"m")
    town.run_until(lambda: all("D" in town.group(name) for name in "ABC"), within=30)
    assert (town.delivered(a, c), town.delivered(b, c)) == ([], [b"m"])
    town.crash("C")
    town.run_until(lambda: "C" not in town.group("A"), within=20)
    town.heal()
    town.run_until_agreed("ABDE", within=30)
    town.run(2)
    assert (town.delivered(a, c), town.delivered(b, c)) == ([b"m"], [b"m"])
    assert not any(node.multicast.uniform.estates for node in town.nodes.values())


def test_many_empty_messages_of_an_estate_fit_the_messages_that_carry_them() -> None:
    a, b, c = (Member(Address("h", port), 1, "") for port in (1, 2, 3))
    config = MulticastConfig(capacity=1 << 19)
    uniform, out = Uniform(a, config), Effects()
    window = ReceiveWindow(config.capacity, offset=0, max_bytes=config.window_bytes, gate=0)
    assert window.add_run(1, [b""] * config.capacity) == config.capacity
    uniform.estates[c] = Estate(window, Assembler(1000))
    view = View(ViewId(a, 2), (a, b))
    uniform.group.view = view
    uniform.install_view(view, 0, out)
    uniform.on_wanted(b, EstateWanted(ViewId(a, 2), c, 1, config.capacity), out)
    runs = [run for _, run in out.messages if isinstance(run, EstateRun)]
    assert sum(len(run.payloads) for run in runs) == config.capacity
    assert max(len(encode_message(run)) for run in runs) <= MESSAGE_BYTES_MAX


# State transfer


@pytest.mark.parametrize("is_behind", [False, True])
def test_uniform_messages_that_a_dead_sender_left_are_in_the_state_or_come_after_it(
    is_behind: bool,
) -> None:
    """A joiner waits, a sender dies and is resolved, then the provider dies: the next one's cut
    knows what came of that sender after it had departed."""
    town = UniformStateTown()
    town.form("ABC")
    town.mute = {"A"}  # gives no state
    town.send_uniform("C", b"0")
    town.run(1)
    town.start("D")
    town.run_until(lambda: town.group("D") != "", within=5)
    town.run(1)
    assert town.state("D").is_catching_up
    town.lose = lambda sent: sent.has(Commit) and sent.source == "C"
    town.send_uniform("C", *[b"%d" % number for number in range(1, 6)])
    town.run(0.1)
    if is_behind:
        town.stopped.add("B")
    town.crash("C")
    town.heal()
    town.run_until(lambda: "C" not in town.group("A"), within=10)
    town.run(2)
    town.crash("A")
    town.run_until(lambda: town.group("B") == "BD", within=10)
    town.run(1)
    town.stopped.clear()
    town._turn("B")
    town.run_until(lambda: town.is_up_to_date("D"), within=30)
    town.run(1)
    assert [text for _, text in town.application("D").log] == list("012345")
    assert town.differ("B", "D") == ""
