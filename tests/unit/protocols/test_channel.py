"""The system's channel between two members: in order, once, and out of the application's way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.config import UnicastConfig
from ringcast.core.effects import Effects
from ringcast.model import SYSTEM_EPOCH, Address, Conn, Member, View, ViewId
from ringcast.protocols.channel import MESSAGE_BYTES_MAX, WAITING_MAX, WINDOW_BYTES, ControlChannel
from ringcast.wire.frames import Close, UnicastData

if TYPE_CHECKING:
    from ringcast.wire.frames import Frame

A, B = (Member(Address("h", n), n, name) for n, name in enumerate("AB", 1))
BOTH = View(ViewId(A, 1), (A, B))
SECOND = 1_000_000_000


class Ends:
    """A and B, and datagrams that arrive when the test says so."""

    def __init__(self, config: UnicastConfig | None = None) -> None:
        self.now = SECOND
        self.channels = {
            me: ControlChannel(
                me, config or UnicastConfig(), fragment_bytes=900, datagram_bytes=1000
            )
            for me in (A, B)
        }
        self.out = {me: Effects() for me in (A, B)}
        for me, channel in self.channels.items():
            channel.start(self.now, self.out[me])
            channel.group.change(BOTH, [channel], self.now, self.out[me])

    def send(self, *payloads: bytes) -> None:
        for payload in payloads:
            self.channels[A].send(payload, B, self.now, self.out[A])

    def sent(self, me: Member) -> list[Frame]:
        """What is to be sent, and now is."""
        out = self.out[me]
        frames = [frame for _, frame in out.frames]
        if out.lone is not None:
            _, conn, seqno, payload = out.lone
            frames.insert(0, UnicastData(conn, seqno, [payload]))
        out.frames.clear()
        out.lone = None
        return frames

    def exchange(self) -> list[bytes]:
        """Let everything arrive, and acks too; what B has then got."""
        got: list[bytes] = []
        for _ in range(1000):
            for me, peer in ((A, B), (B, A)):
                frames = self.sent(me)
                if frames:
                    self.channels[peer].receive(me, frames, self.now, self.out[peer])
            taken = self.channels[B].take_messages(self.now, self.out[B])
            assert all(source == A for source, _ in taken)
            got += [payload for _, payload in taken]
            for me, channel in self.channels.items():
                channel.check_invariants()
                assert not self.out[me].events
                at = channel.deadlines.next()
                if not self.out[A].frames and not self.out[B].frames and at is not None:
                    if at > self.now + SECOND:
                        continue
                    self.now = max(self.now, at)
                    channel.handle_timeout(self.now, self.out[me])
            if not self.out[A].frames and not self.out[B].frames and not self.channels[A].waiting:
                break
        return got


def test_nothing_is_there_before_anything_is_said() -> None:
    ends = Ends()
    channel = ends.channels[A]
    channel.handle_timeout(ends.now, ends.out[A])
    assert channel.deadlines.next() is None
    assert channel.take_messages(ends.now, ends.out[A]) == []
    stats = channel.stats()
    assert [stats[name] for name in ("waiting", "dropped", "to", "from")] == [{}, 0, {}, {}]
    channel.group.close("", [channel], ends.now, ends.out[A])
    assert ends.out[A].frames == []


def test_messages_come_in_order_and_once_on_epochs_of_their_own() -> None:
    ends = Ends()
    ends.send(b"1", b"2" * 5000, b"3")
    epochs = {frame.conn.epoch for _, frame in ends.out[A].frames if isinstance(frame, UnicastData)}
    assert min(epochs) > SYSTEM_EPOCH
    assert ends.exchange() == [b"1", b"2" * 5000, b"3"]
    assert ends.channels[B].take_ready(9, ends.now, ends.out[B]) == []
    assert ends.channels[A].explain(ends.now) == []


def test_what_finds_no_room_waits_and_follows() -> None:
    ends = Ends(UnicastConfig(capacity=4))
    payloads = [b"%d" % number for number in range(50)]
    ends.send(*payloads)
    assert len(ends.channels[A].waiting[B]) == 46
    assert ends.channels[A].stats()["waiting"] == {"B": 46}
    assert ends.exchange() == payloads
    assert ends.channels[A].waiting == {}


def test_the_largest_message_goes_through() -> None:
    ends = Ends()
    ends.send(bytes(MESSAGE_BYTES_MAX))
    assert ends.exchange() == [bytes(MESSAGE_BYTES_MAX)]
    assert MESSAGE_BYTES_MAX > WINDOW_BYTES


def test_what_waits_is_bounded() -> None:
    ends = Ends(UnicastConfig(capacity=1))
    ends.send(*[b"x"] * (WAITING_MAX + 3))
    assert len(ends.channels[A].waiting[B]) == WAITING_MAX
    assert ends.channels[A].dropped == 2


def test_nothing_is_for_those_who_are_not_in_the_view() -> None:
    ends = Ends(UnicastConfig(capacity=1))
    ends.send(b"1", b"2")
    ends.out[A].frames.clear()
    alone = View(ViewId(A, 2), (A,))
    channel = ends.channels[A]
    channel.group.change(alone, [channel], ends.now, ends.out[A])
    assert channel.waiting == {}
    assert channel.unicast.senders == {}
    ends.send(b"3")
    assert channel.dropped == 1
    channel.handle_timeout(ends.now + SECOND, ends.out[A])  # the tick that was set before
    assert channel.deadlines.next() is None
    assert ends.out[A].frames == []


def test_who_comes_back_gets_a_stream_of_its_own() -> None:
    ends = Ends()
    ends.send(b"before")
    assert ends.exchange() == [b"before"]
    ends.send(b"lost")
    ends.out[A].frames.clear()
    for counter, members in ((2, (A,)), (3, (A, B))):
        view = View(ViewId(A, counter), members)
        ends.channels[A].group.change(view, [ends.channels[A]], ends.now, ends.out[A])
    ends.send(b"after")
    assert ends.exchange() == [b"after"]


def test_who_is_out_says_so_and_nothing_more() -> None:
    ends = Ends()
    ends.send(b"1")
    assert ends.exchange() == [b"1"]
    ends.channels[A].group.close("out", [ends.channels[A]], ends.now, ends.out[A])
    assert any(isinstance(frame, Close) for _, frame in ends.out[A].frames)
    ends.send(b"2")
    assert ends.channels[A].dropped == 1


def test_one_message_over_an_open_connection_takes_the_short_way() -> None:
    ends = Ends()
    ends.send(b"opens")
    assert ends.exchange() == [b"opens"]
    ends.send(b"next")
    assert ends.out[A].lone is not None
    ends.send(b"behind it")
    frame, behind = ends.sent(A)
    unicast = ends.channels[B].unicast
    assert unicast is not None
    assert isinstance(frame, UnicastData)
    other = Conn(frame.conn.epoch, frame.conn.id + 1)
    assert not unicast.take_next(A, other, frame.first, ends.now)
    assert unicast.take_next(A, frame.conn, frame.first, ends.now)
    assert not unicast.take_next(A, frame.conn, frame.first, ends.now)  # once
    ends.channels[B].receive(A, [frame, behind], ends.now, ends.out[B])
    assert ends.channels[B].take_messages(ends.now, ends.out[B]) == [(A, b"behind it")]
    ends.send(bytes(1000))  # in fragments
    ends.send(b"after it")
    assert ends.exchange() == [bytes(1000), b"after it"]


def test_nothing_is_looked_for_where_nothing_can_be() -> None:
    ends = Ends()
    ends.send(b"opens")
    ends.exchange()
    channel = ends.channels[B]
    assert not channel.may_be_ready
    channel.send(b"to myself", B, ends.now, ends.out[B])
    assert channel.take_messages(ends.now, ends.out[B]) == [(B, b"to myself")]
