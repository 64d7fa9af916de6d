"""Paths turn out to be narrow while messages are under way: smaller datagrams, nothing lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ringcast.config import DATAGRAM_BYTES_MIN, UnicastConfig
from ringcast.core.effects import Effects
from ringcast.model import Address, Conn, Member, Stream, View, ViewId
from ringcast.protocols.channel import ControlChannel
from ringcast.window.fragmenter import Fragmenter
from ringcast.window.send import DATAGRAM_OVERHEAD, SendWindow
from ringcast.wire.codec import Codec
from ringcast.wire.frames import Data, UnicastData
from support.cluster import cluster

if TYPE_CHECKING:
    from ringcast.wire.frames import Frame
    from support.cluster import Cluster

WIDE, NARROW = 9000, 600
ME, PEER = (Member(Address("127.0.0.1", 7800 + n), n, name) for n, name in enumerate("AB", 1))
CONN = Conn(1, 1)
TAG = 19
"""Bytes that are kept for the tag of a view and a mark; what is for one member needs neither."""


def wide(members: int = 2, **options: Any) -> Cluster:
    return cluster(members, datagram_bytes=WIDE, **options)


def sizes(c: Cluster, name: str) -> list[int]:
    """Of the datagrams that this member wants to send now; they are lost."""
    return [len(datagram) for _, datagram in c.nodes[name].take_datagrams()]


def messages(sizes: list[int]) -> list[bytes]:
    return [bytes([at % 256]) * size for at, size in enumerate(sizes)]


@pytest.mark.parametrize("to", [None, "B"])
def test_what_comes_after_fits(to: str | None) -> None:
    c = wide()
    a = c.nodes["A"]
    dest = None if to is None else c.nodes[to].me
    a.datagrams.resize(NARROW)
    payloads = messages([0, 10, 5000, 580, 1, 20_000])
    assert a.send(payloads, c.now, to=dest) == len(payloads)
    assert max(sizes(c, "A")) <= NARROW
    c.run(10)
    assert b"".join(payload for _, payload in c.delivered("B", "A")) == b"".join(payloads)


def test_messages_that_were_sent_together_are_sent_again_apart() -> None:
    c = wide()
    a = c.nodes["A"]
    payloads = messages([100] * 200)
    assert a.send(payloads, c.now) == 200
    assert min(sizes(c, "A")) > NARROW
    a.datagrams.resize(NARROW)
    again = repair(c)
    assert sum(again) > 200 * 100
    assert max(again) <= NARROW
    assert [payload for _, payload in c.delivered("B", "A")] == payloads


def repair(c: Cluster) -> list[int]:
    """Let A and B talk until B has everything; the sizes of A's datagrams."""
    a, b = c.nodes["A"], c.nodes["B"]
    found = []
    while not c.window_is_drained("A"):
        at = c.next_timeout()
        assert at is not None
        c.now = max(c.now, at)
        for node, other in ((a, b), (b, a)):
            node.handle_timeout(c.now)
            datagrams = [datagram for _, datagram in node.take_datagrams()]
            other.receive_datagrams(datagrams, c.now)
            found += [len(datagram) for datagram in datagrams if node is a]
        c.take("A")
        c.take("B")
    return found


def test_a_message_that_was_cut_for_more_goes_again_as_it_is() -> None:
    c = wide()
    a = c.nodes["A"]
    payloads = messages([8000, 50, 8500, 8500, 50, 50])
    a.send(payloads, c.now)
    sizes(c, "A")
    a.datagrams.resize(NARROW)
    c.run(10)
    assert [payload for _, payload in c.delivered("B", "A")] == payloads


def test_the_rest_of_a_message_is_cut_again() -> None:
    c = wide(window_bytes=4 * WIDE)
    a = c.nodes["A"]
    large = bytes(range(256)) * 400  # more than the window holds
    assert a.send([large], c.now) == 1
    assert max(sizes(c, "A")) > NARROW
    rest = c.sending("A").fragments.rest
    assert rest
    a.datagrams.resize(NARROW)
    cut = c.sending("A").fragments.rest
    assert b"".join(cut) == b"".join(rest)
    assert max(map(len, cut)) <= a.codec.payload_bytes_max < NARROW < max(map(len, rest))
    c.run(20)
    assert [payload for _, payload in c.delivered("B", "A")] == [large]


def test_small_datagrams_cost_what_they_take_of_a_buffer() -> None:
    window = SendWindow(100, max_bytes=1 << 20, datagram_bytes=WIDE)
    fragments = Fragmenter(window, WIDE)
    fragments.resize(500, NARROW)
    fragments.admit([bytes(100)] * 60)
    assert window.charged == 10 * DATAGRAM_OVERHEAD


def test_datagrams_grow_again_but_not_beyond_what_was_configured() -> None:
    c = wide()
    a = c.nodes["A"]
    for size, largest in ((NARROW, NARROW), (1400, 1400), (60_000, WIDE), (1, DATAGRAM_BYTES_MIN)):
        a.datagrams.resize(size)
        a.send([bytes(20_000)], c.now, to=c.nodes["B"].me)
        assert max(sizes(c, "A")) == largest - TAG


def test_who_has_no_window_yet_begins_with_small_datagrams() -> None:
    c = wide()
    c.start("C").datagrams.resize(NARROW)
    c.install("ABC")
    c.nodes["C"].send([bytes(5000)], c.now)
    assert max(sizes(c, "C")) <= NARROW


@pytest.mark.parametrize("is_open", [True, False])
def test_the_systems_own_messages_follow(is_open: bool) -> None:
    channel = ControlChannel(ME, UnicastConfig(), fragment_bytes=WIDE, datagram_bytes=WIDE)
    out = Effects()
    channel.group.change(View(ViewId(ME, 1), (ME, PEER)), [channel], 0, out)
    if is_open:
        channel.send(b"first", PEER, 0, out)
    channel.unicast.resize(500, NARROW)
    channel.send(bytes(5000), PEER, 0, out)
    runs = [frame for _, frame in out.frames if isinstance(frame, UnicastData)]
    assert max(len(payload) for run in runs for payload in run.payloads) == 500


def test_only_what_was_cut_before_may_be_longer() -> None:
    codec = Codec("g", ME, WIDE)
    largest = bytes(codec.payload_bytes_max)
    codec.resize(NARROW)
    frames: list[Frame] = [
        UnicastData(CONN, 1, [b"small"]),
        UnicastData(CONN, 2, [largest]),
        UnicastData(CONN, 3, [b"small", bytes(300), bytes(300)]),
    ]
    datagrams = codec.pack(frames, to=PEER)
    first, alone, *rest = map(len, datagrams)
    assert alone == WIDE - TAG
    assert max(first, *rest) <= NARROW
    found = [frame for each in datagrams for frame in codec.unpack(each, overhear=True)[1]]
    payloads = [
        payload for frame in found if isinstance(frame, UnicastData) for payload in frame.payloads
    ]
    assert payloads == [b"small", largest, b"small", bytes(300), bytes(300)]
    with pytest.raises(AssertionError, match="larger than a datagram"):
        codec.pack([Data(Stream.FIFO, 1, [bytes(WIDE)])])
