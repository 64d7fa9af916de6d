"""What a member that has the key, and is not in the view, can do: nothing that lasts. In virtual
time; it speaks as the members' own code does, and says what nobody says."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest

from ringcast.config import GroupConfig
from ringcast.errors import Reject
from ringcast.model import Address, Conn, Member, Stream, ViewId
from ringcast.node import build_node
from ringcast.protocols.early import STRANGER_BYTES_MAX, STRANGERS_MAX
from ringcast.protocols.views.discovery import STRANGER_NS
from ringcast.sim.crowd import Crowd
from ringcast.sim.plain import FixedDelay, PlainMember, begin, plain_world
from ringcast.window.assembler import PART_BYTES_MIN
from ringcast.wire import changes as wire
from ringcast.wire.changes import cut_into_pieces, tag_of
from ringcast.wire.codec import Codec
from ringcast.wire.frames import (
    Ack,
    Close,
    Commit,
    Data,
    Heartbeat,
    Leave,
    Nack,
    PeerRepair,
    PeerRepairRequest,
    Ping,
    Pong,
    StabilityQuery,
    StabilityReport,
    Stable,
    Sync,
    SyncAck,
    SyncOk,
    UnicastAck,
    UnicastData,
    UnicastNack,
    Watermark,
)
from ringcast.wire.frames import Mark as StableMark
from support.view_group import ViewGroup, address_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringcast.model import View
    from ringcast.node import Node
    from ringcast.wire.frames import Frame

NAMES = "ABC"
STRANGER = Member(Address("10.0.0.9", 999), 1, "stranger")
FAR = 1 << 61
SECOND_MS = 1000.0


def frames(group: ViewGroup) -> list[list[Frame]]:
    """Every frame, with the worst that it could say; all is known that the members know of it."""
    layer = group.layer("A")
    view, settings = layer.change.view, layer.agreement.settings
    a, b, _ = view
    promised = layer.change.follower.promised
    higher = ViewId(STRANGER, view.counter + 5)
    everybody = (STRANGER, *view)
    in_view = wire.InView(tag_of(view.id), 10**6)
    greeting = wire.Hello(
        settings, True, True, view.counter + 9, STRANGER, higher, 512, everybody, 7, 8, 9
    )
    data = Data(Stream.FIFO, group.node("B").multicast.highest_sent(Stream.FIFO) + 1, [b"forged"])
    conn = Conn(FAR, 1)
    parts = (wire.PartMarks(view.id, (0, 1, 2), ()),)
    said: list[Frame] = [
        greeting,
        replace(greeting, coordinator=None, is_asking=False),
        replace(greeting, view_id=ViewId(STRANGER, FAR), highest=FAR),
        wire.Cookie(7, 8),
        wire.Propose(higher, everybody, settings, size=512, has_state=True),
        wire.Propose(higher, everybody, settings, (1,), size=512, has_state=True, permit=5),
        wire.Propose(higher, (STRANGER, range(3)), settings, (), view.id, True, 512),
        wire.Propose(ViewId(b, view.counter + 5), view.members, settings),
        wire.State(promised, view.id),
        wire.Refuse(promised, ViewId(STRANGER, FAR), STRANGER),
        wire.Finish(promised, higher),
        wire.Cut(promised, parts, (wire.Mark(0, Stream.FIFO, FAR),)),
        wire.Want(promised, a, Stream.FIFO, (range(1, 10_000),)),
        wire.Forwarded(promised, b, data),
        wire.Flushed(promised),
        wire.Install(promised),
        wire.Install(higher),
        wire.Installed(promised),
        wire.Complain(b),
        wire.Complain(a),
        wire.Complain(b, is_slow=True),
        wire.Complain(b, wants_state=True),
        wire.Piece(65, 1, 0, 2, b"x" * 1000),
        Leave(),
        Heartbeat(view.counter + 9),
        Heartbeat(1),
        Ping(1),
        Pong(1),
        UnicastData(Conn(2, 1), 1, [b"forged"]),
        UnicastData(conn, 1, [b"forged"]),
        UnicastAck(Conn(2, 1), 10**6, 0),
        UnicastNack(Conn(2, 1), [range(1, 100)]),
        Close(Conn(2, 1)),
        Sync(Conn(2, 1), 1),
        SyncOk(Conn(2, 2), 1, 10**6, 10**6, is_middle=False),
        SyncAck(Conn(2, 2), 1),
    ]
    in_the_view: list[Frame] = [
        data,
        Ack(Stream.FIFO, 10**6, 10**6, (1 << 32) - 1, (1 << 32) - 1),
        Nack(Stream.FIFO, [range(1, 1000)]),
        Watermark(Stream.FIFO, FAR),
        Commit(FAR),
        StabilityReport(view.id, 1, 0, (FAR,) * 3),
        StabilityQuery(view.id, 1),
        Stable(view.id, 9, 0, (StableMark(FAR, FAR, 0),) * 3),
        PeerRepairRequest(b, (range(1, 1000),)),
        PeerRepair(b, data),
    ]
    return [[frame] for frame in said] + [[in_view, frame] for frame in in_the_view]


def bounds(node: Node) -> dict[str, object]:
    """What frames of others may change."""
    membership = node.membership
    assert membership is not None
    change = membership.change
    senders = node.multicast.senders.values()
    return {
        "view": change.view,
        "promised": change.follower.promised,
        "phase": change.follower.phase,
        "highest": change.highest,
        "lost": change.lost,
        "leavers": set(membership.requests.leavers),
        "parts": dict(membership.meeting.parts),
        "candidates": set(membership.discovery.candidates),
        "windows": {str(o): (w.low, w.high) for o, w in node.multicast.windows().items()},
        "gates": [sending.window.gate for sending in senders],
        "receivers": set(node.unicast.receivers),
        "senders": set(node.unicast.senders),
        "tombstones": dict(node.unicast.tombstones),
        "sync requests": dict(node.unicast.sync_requests),
    }


def tell(group: ViewGroup, name: str, source: Member, frame: Frame) -> None:
    """Somebody says this to it, among much else; what it answers goes nowhere."""
    node, now = group.node(name), group.process(name).now
    datagrams = Codec(group.config.group, source, 60_000).pack([frame], node.me)
    node.receive_datagrams(datagrams, now)
    node.take_datagrams(now)


def formed() -> ViewGroup:
    group = ViewGroup(NAMES).form()
    for name in NAMES:
        group.send(name, 3)
    assert group.run_until(group.is_quiet, 5_000)
    return group


def test_no_frame_of_a_stranger_changes_a_view_a_stream_or_a_bound() -> None:
    group = formed()
    before = {name: bounds(group.node(name)) for name in NAMES}
    for said in frames(group):
        for name in NAMES:
            group.inject(name, *said, source=STRANGER)
            assert bounds(group.node(name)) == before[name], said
    group.run(3_000)
    assert {name: bounds(group.node(name)) for name in NAMES} == before
    for name in NAMES:
        group.send(name, 3)
    assert group.run_until(group.is_quiet, 5_000)
    assert group.undelivered() == []
    assert not any(
        getattr(event, "sender", None) == STRANGER
        for events in group.events.values()
        for event in events
    )
    assert group.observed.violations() == []


@pytest.mark.parametrize("later", [0, 1], ids=["itself", "its next incarnation"])
@pytest.mark.parametrize("name", NAMES)
def test_no_frame_that_says_to_come_from_a_member_itself_changes_anything(
    name: str, later: int
) -> None:
    group = formed()
    node = group.node(name)
    poser = node.me._replace(incarnation=node.me.incarnation + later)
    before = bounds(node)
    for said in frames(group):
        group.inject(name, *said, source=poser)
        assert bounds(node) == before, said
        assert not node.take_events(100, group.process(name).now)
    assert set(node.rejected) == {Reject.OURS.value}
    group.run(3_000)
    assert bounds(node) == before
    assert group.observed.violations() == []


@pytest.mark.parametrize("name", NAMES)
def test_a_stranger_is_answered_with_no_more_bytes_than_it_sent(name: str) -> None:
    """Whatever it says, of whatever length its name is, and whoever is at the address it names."""
    group = formed()
    short = Member(Address("h", 1), 1, "")
    for source in (STRANGER, short):
        codec = Codec(group.config.group, source, 60_000)
        for said in frames(group):
            node, now = group.node(name), group.process(name).now
            node.take_datagrams(now)
            question = codec.pack(said, node.me)
            node.receive_datagrams(question, now)
            answers = [
                datagram for to, datagram in node.take_datagrams(now) if to == source.address
            ]
            assert sum(map(len, answers)) <= sum(map(len, question)), said


def test_who_brings_the_cookie_back_comes_in() -> None:
    group = ViewGroup("ABCD").form("ABC")
    group.start("D")
    assert group.run_until(group.is_one, 1_000)
    assert group.layer("A").stats()["challenged"]


def test_copies_of_a_cookie_are_answered_once() -> None:
    """Where the network copies much, greetings would else become more at every step."""
    group = formed()
    layer, now = group.layer("A"), group.process("A").now
    mine, out = layer.cookies.make(STRANGER.address, now), group.node("A").effects
    for _ in range(5):
        layer.greetings.on_cookie(STRANGER, wire.Cookie(7, mine), now, out)
    assert [frame.echo for dest, frame in out.frames if isinstance(frame, wire.Hello)] == [7]
    layer.greetings.on_cookie(STRANGER, wire.Cookie(7, mine + 1), now, out)  # nobody asked for it
    assert len(out.frames) == 1


def test_who_names_an_address_where_it_does_not_hear_is_never_met() -> None:
    """4200 first contacts that are forged: nothing is kept, and nobody there is asked again."""
    group = formed()
    settings = group.layer("A").agreement.settings
    for n in range(4200):
        forged = Member(Address(f"10.1.{n % 250}.{n // 250 + 1}", 7000), 1, "")
        alone = ViewId(forged, 1)
        hello = wire.Hello(settings, True, False, 1, None, alone, 1, (forged,))
        tell(group, "A", forged, hello)
    layer = group.layer("A")
    assert layer.greetings.challenged >= 4200
    assert set(layer.discovery.candidates) <= set(map(address_of, NAMES))
    assert not layer.meeting.parts


def test_who_was_heard_and_is_silent_is_asked_for_a_minute() -> None:
    """4200 that did hear us, and are gone: what the group says to them ends."""
    group = formed()
    layer, now = group.layer("A"), group.process("A").now
    gone = [Address(f"10.1.{n % 250}.{n // 250 + 1}", 7000) for n in range(4200)]
    layer.discovery.learn(gone, now, STRANGER_NS)
    asked: list[int] = []

    def count(node: Node) -> None:
        if node.me == group.node("A").me:
            asked.append(sum(isinstance(frame, wire.Hello) for _, frame in node.pending()))

    group.process("A").resident.before_sending = count
    group.run(2_000)
    assert max(asked) <= 1024
    assert max(asked) > 0
    group.run(60_000)
    asked.clear()
    group.run(2_000)
    assert sum(asked) == 0
    group.send("A", 100)
    assert group.run_until(group.is_quiet, 1_000)


def flood(say: Callable[[Member, int], list[Frame]], strangers: int = 40) -> ViewGroup:
    """Members that nobody knows say this, each 100 times."""
    group = formed()
    for n in range(strangers):
        who = Member(Address("10.2.0.1", 1000 + n), 1, "")
        for turn in range(100):
            for frame in say(who, turn):
                tell(group, "B", who, frame)
    return group


@pytest.mark.parametrize("epoch", [2, 1 << 62], ids=["application", "system"])
def test_an_endless_message_of_a_stranger_is_refused_at_64_kb(epoch: int) -> None:
    group = flood(
        lambda _, turn: [UnicastData(Conn(epoch, 1), turn + 1, [b"x" * 15_000], more=True)]
    )
    node = group.node("B")
    channel = node.channel
    assert channel is not None
    layer = node.unicast if epoch == 2 else channel.unicast
    assert layer is not None
    assert len(layer.strangers) == STRANGERS_MAX
    assert 0 < layer.strangers.size <= STRANGERS_MAX * STRANGER_BYTES_MAX
    assert layer.strangers.refused > 3_000
    assert not layer.receivers or all(peer in node.view for peer in layer.receivers)  # type: ignore[operator]
    layer.strangers.check_invariants()


def test_of_frames_in_pieces_of_strangers_64_kb_are_kept_for_two_seconds() -> None:
    def say(_: Member, turn: int) -> list[Frame]:
        return [*cut_into_pieces(65, bytes([turn]) * 30_000, 15_000)[:1]]

    group = flood(say)
    pieces = group.layer("B").pieces
    assert 0 < pieces.size <= STRANGERS_MAX * STRANGER_BYTES_MAX
    assert group.layer("B").stats()["pieces_refused"] == pieces.refused > 3_000
    group.run(2_100)
    later = Member(Address("10.2.0.2", 1), 1, "")
    group.inject("B", *say(later, 1), source=later)
    assert pieces.size == 15_000 + PART_BYTES_MIN


@pytest.mark.parametrize("leap", [1 << 33, FAR])
def test_an_epoch_that_leaps_is_refused_and_the_stream_goes_on(leap: int) -> None:
    """Also if somebody poses as a member of the view."""
    group = formed()
    a, b = group.node("A"), group.node("B")

    def say(text: bytes) -> list[bytes]:
        a.send([text], group.process("A").now, to=b.me)
        group.process("A").turn()
        group.run(600)
        return group.delivered(b.me, a.me)[-1:]

    assert say(b"first") == [b"first"]
    refused = b.unicast.refused
    group.inject("B", UnicastData(Conn(leap, 1), 1, [b"forged"]), source=a.me)
    assert b.unicast.refused == refused + 1
    assert say(b"second") == [b"second"]


@pytest.mark.parametrize("is_local", [True, False])
def test_a_refused_port_decides_alone_on_this_machine_only(is_local: bool) -> None:
    group = formed()
    a, b = group.node("A"), group.node("B")
    detector = a.detector
    assert detector is not None
    for _ in range(10):
        a.transport_hint(b.me.address, group.process("A").now, is_local=is_local)
    assert detector.verifications >= 1
    assert detector.suspicions == is_local
    if not is_local:
        group.process("A").turn()
        group.run(2_000)
        assert detector.suspicions == 0
        assert group.view("A") == "ABC"


class Few(Crowd):
    """All know of the first three alone. Who says something to the dead learns it."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.world = plain_world(hint_ms=1.0)
        self.world.network.faults = [self, FixedDelay(1_000_000)]
        self.clock = self.world.clock

    def start(self, place: int) -> Node:
        me = Member(self.addresses[place], 1, f"member-{place}")
        node = self.nodes[me.address] = build_node(me, GroupConfig(group="crowd"))
        begin(self.world, PlainMember(node), self.addresses[:3])
        return node


def views_of_the_dead(count: int, *, are_in: bool) -> list[int]:
    """How many are in each view of a member while so many come and die within a second; when they
    die they are in, or on their way. Their ports refuse: so each is missed at once."""
    crowd, dice = Few(3 + count), Random(1)
    for place in range(3):
        crowd.start(place)
    assert crowd.run_until_one_view(2_000.0, 10.0) < 2_000.0
    crowd.run_for(6_000)
    first = crowd.nodes[crowd.addresses[0]]
    joiners = crowd.addresses[3:]
    for place in range(3, 3 + count):
        crowd.start(place)
    if are_in:
        assert crowd.run_until_one_view(2_000.0, 10.0) < 2_000.0
    for address in joiners:
        crowd.clock.after(1 + 999 * dice.random(), crowd.world.processes[address].crash)
    views: list[View] = []
    for _ in range(500):
        crowd.run_for(5)
        if first.view is not None and (not views or views[-1] != first.view):
            views.append(first.view)
    return [len(view) for view in views]


@pytest.mark.parametrize("count", [40, pytest.param(120, marks=pytest.mark.proof)])
@pytest.mark.parametrize("are_in", [False, True])
def test_joiners_that_die_share_views(are_in: bool, count: int) -> None:
    sizes = views_of_the_dead(count, are_in=are_in)
    print(f"{count} joiners that die within a second, in the view {are_in}: views of {sizes}")  # noqa: T201
    assert sizes[0] == (3 + count if are_in else 3)
    assert sizes[-1] == 3
    assert len(sizes) - 1 <= 8
