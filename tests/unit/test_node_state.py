"""One member and the state of its application: what reaches which layer, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringcast.config import GroupConfig, UnicastConfig
from ringcast.errors import Reject, UsageError
from ringcast.events import ReplyReceived, RequestReceived
from ringcast.model import SYSTEM_EPOCH, Address, Conn, Member, View, ViewId
from ringcast.node import Node, build_node
from ringcast.wire.codec import Codec
from ringcast.wire.frames import JoinerBlocked, UnicastAck, UnicastData
from ringcast.wire.messages import encode_answer, encode_ask, encode_message

A, B, C = (Member(Address("127.0.0.1", 7800 + n), n, name) for n, name in enumerate("ABC", 1))
BOTH = View(ViewId(A, 1), (A, B))
CONFIG = GroupConfig(group="g", name="A")


def from_b(*frames: UnicastData | UnicastAck) -> list[bytes]:
    return Codec("g", B, 1000).pack(frames, A)


def node(*, state: bool = True) -> Node:
    made = build_node(A, CONFIG, detector=None, state=state)
    made.install_view(BOTH, 0)
    made.take_events(0, 0)
    return made


def test_state_needs_membership() -> None:
    with pytest.raises(UsageError, match="state transfer needs a membership layer"):
        Node(A, CONFIG, state=True)
    plain = Node(A, CONFIG)
    assert plain.state is None
    for call in (lambda: plain.provide_state(1, [], 0), lambda: plain.refuse_state(1, 0)):
        with pytest.raises(UsageError, match="nobody wants its state"):
            call()


def test_all_members_of_a_group_with_membership_can_answer_questions() -> None:
    state = node(state=False).state
    assert state is not None
    assert not state.has_state


def test_the_systems_messages_do_not_reach_the_application() -> None:
    a = node()
    payload = encode_message(JoinerBlocked(is_full=True))
    theirs = UnicastData(Conn(SYSTEM_EPOCH + 1, 1), 1, [payload])
    ours = UnicastData(Conn(5, 1), 1, [b"for the application"])
    a.receive_datagrams(from_b(theirs, ours), 0)
    assert a.state is not None
    assert a.state.blocked == {B: 0}
    (delivered,) = a.take_events(10, 0)
    assert "for the application" in repr(delivered)
    assert list(a.unicast.receivers) == [B]
    assert a.unicast.receivers[B].conn.epoch == 5


def test_what_the_system_cannot_read_is_counted() -> None:
    a = node()
    a.receive_datagrams(from_b(UnicastData(Conn(SYSTEM_EPOCH + 1, 1), 1, [b"", b"\xff?"])), 0)
    assert a.rejected == {Reject.TOO_SHORT.value: 1, Reject.FRAME_KIND.value: 1}


def test_without_a_channel_the_systems_connections_are_nobodys() -> None:
    a = Node(A, CONFIG)
    a.install_view(BOTH, 0)
    a.receive_datagrams(from_b(UnicastData(Conn(SYSTEM_EPOCH, 1), 1, [b"x"])), 0)
    a.receive_datagrams(from_b(UnicastAck(Conn(SYSTEM_EPOCH, 1), 0, 0)), 0)
    assert a.unicast.receivers == {}
    assert (a.unicast.stale, a.rejected) == (0, {})


CONN = Conn(SYSTEM_EPOCH + 1, 1)


def take_request(node: Node, datagram: bytes, now: int = 0) -> object:
    return node.datagrams.receive([[datagram]], now, stops_at_request=True)


def test_a_request_that_is_next_and_alone_is_taken_at_once() -> None:
    a = node()
    asks = [UnicastData(CONN, n, [encode_ask(n, b"?")]) for n in range(1, 5)]
    first, second, third, fourth = (from_b(ask)[0] for ask in asks)
    assert take_request(a, first) is None  # B is not known
    assert a.take_events(0, 0) == [RequestReceived(B, 1, b"?")]
    assert take_request(a, second) == RequestReceived(B, 2, b"?")
    assert take_request(a, second) is None  # once
    assert take_request(a, fourth) is None  # not next
    assert a.take_events(0, 0) == []
    assert take_request(a, third) is None  # it is, and brings one with it
    assert a.take_events(0, 0) == [RequestReceived(B, 3, b"?"), RequestReceived(B, 4, b"?")]


def test_what_comes_behind_a_request_is_not_looked_at() -> None:
    a = node()
    asks = [UnicastData(CONN, n, [encode_ask(n, b"?")]) for n in range(1, 4)]
    first, second, third = (from_b(ask) for ask in asks)
    a.receive_datagrams(first, 0)
    bursts = iter([second, third])
    assert a.datagrams.receive(bursts, 0, stops_at_request=True) is None  # one waits before it
    assert list(bursts) == []
    assert [event.number for event in a.take_events(0, 0)] == [1, 2, 3]  # type: ignore[union-attr]
    bursts = iter([from_b(UnicastData(CONN, 4, [encode_ask(4, b"?")])), third])
    assert a.datagrams.receive(bursts, 0, stops_at_request=True) == RequestReceived(B, 4, b"?")
    assert list(bursts) == [third]


def test_what_is_asked_alone_is_to_be_seen_until_it_is_sent() -> None:
    a, asks = node(), [encode_ask(n, b"?") for n in (1, 2, 3)]
    for number in (1, 2, 3):
        a.say(encode_ask(number, b"?"), B, 0)
        if number == 1:
            a.take_datagrams()  # it opens the connection
    ((_, second), (_, third)) = a.pending()
    assert isinstance(second, UnicastData)
    assert isinstance(third, UnicastData)
    assert [second.payloads, third.payloads] == [[asks[1]], [asks[2]]]
    sent = a.take_datagrams()
    assert a.pending() == []
    assert [dest for dest, _ in sent] == [B.address] * 2
    frames = [frame for _, datagram in sent for frame in Codec("g", B, 1000).unpack(datagram)[1]]
    assert frames == [second, third]


def test_what_is_no_request_is_left_to_the_longer_way() -> None:
    a = node()
    said = [encode_ask(1, b""), b"", b"\x3c", b"\xff?", encode_message(JoinerBlocked(True))]
    datagrams = [from_b(UnicastData(CONN, n, [what]))[0] for n, what in enumerate(said, 1)]
    a.receive_datagrams(datagrams[:1], 0)
    a.take_events(0, 0)
    for datagram in datagrams[1:]:
        assert take_request(a, datagram) is None
    assert sum(a.rejected.values()) == 3
    assert a.state is not None
    assert a.state.blocked == {B: 0}
    assert take_request(Node(A, CONFIG), datagrams[0]) is None


def test_a_request_is_a_sign_of_life() -> None:
    a = build_node(A, CONFIG)
    detector = a.detector
    assert detector is not None
    detector.start(0, a.effects)
    a.install_view(BOTH, 0)
    asks = [from_b(UnicastData(CONN, n, [encode_ask(n, b"?")]))[0] for n in (1, 2)]
    a.receive_datagrams(asks[:1], 0)
    for _ in range(2):
        a.transport_hint(B.address, 0)
    assert list(detector.stats()["suspected"]) == ["B"]  # type: ignore[call-overload]
    a.next_timeout()
    a.take_events(0, 0)
    assert take_request(a, asks[1], 1) == RequestReceived(B, 2, b"?")
    assert a.next_timeout() == 1  # it is trusted again


def test_what_a_member_asks_itself_waits_for_no_input() -> None:
    a = node(state=False)
    a.say(encode_ask(7, b"who?"), A, 0)
    assert a.take_events(0, 0) == [RequestReceived(A, 7, b"who?")]
    a.say(encode_answer(7, b"me", is_refused=False), A, 0, is_awaited=True)
    assert a.take_events(0, 0) == [ReplyReceived(A, 7, b"me", False)]
    assert a.take_datagrams() == []


def test_what_is_told_oneself_may_be_more_than_a_window_holds() -> None:
    config = replace(CONFIG, unicast=UnicastConfig(capacity=4))
    a = build_node(A, config, detector=None)
    a.install_view(BOTH, 0)
    a.take_events(0, 0)
    assert a.channel is not None
    for number in range(1, 51):
        a.channel.send(encode_ask(number, b"?"), A, 0, a.effects)
    a.handle_timeout(0)  # any input
    assert a.take_events(0, 0) == [RequestReceived(A, number, b"?") for number in range(1, 51)]
    assert a.unsaid == {}


def test_nobody_is_asked_who_is_not_there() -> None:
    a = node()
    a.say(encode_ask(1, b"?"), C, 0)
    assert a.take_datagrams() == []
    a.close(0)
    a.take_events(0, 0)
    a.take_datagrams()
    for to in (A, B):
        a.say(encode_ask(2, b"?"), to, 0)
        a.say(encode_answer(2, b"!", is_refused=False), to, 0, is_awaited=True)
    assert (a.take_events(0, 0), a.take_datagrams()) == ([], [])
    with pytest.raises(UsageError, match="nobody can be asked here"):
        Node(A, CONFIG).say(encode_ask(1, b"?"), B, 0)
