"""When receipts are given, to whom they fail, and how many may be pending."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from ringcast.config import MulticastConfig, StabilityConfig, UnicastConfig
from ringcast.core.effects import Effects
from ringcast.core.shared import Deadlines
from ringcast.events import Confirmed, Undeliverable
from ringcast.model import Address, Member, Stream, View, ViewId
from ringcast.protocols.multicast_sender import MulticastSender
from ringcast.protocols.unicast import ReliableUnicast
from ringcast.wire.frames import Ack, Mark, Stable, UnicastAck

A, B, C, D = (Member(Address("127.0.0.1", 7800 + n), n, name) for n, name in enumerate("ABCD", 1))
ALLOWANCE = 1 << 20


def view(*members: Member, counter: int = 1) -> View:
    return View(ViewId(members[0], counter), members)


class Sender:
    """A's sending, and the receipts that it has given."""

    def __init__(self, *others: Member, **config: Any) -> None:
        terms = MulticastConfig(**({"datagram_bytes": 1000, "window_bytes": 1 << 20} | config))
        timers = Deadlines().owner("sent")
        self.box = MulticastSender(A, Stream.FIFO, terms, view(A, *others), 900, timers)
        self._numbers = count(1)
        self._out = Effects()

    def send(self, *payloads: bytes) -> int | None:
        """The number of the receipt of the last one."""
        assert self.box.send(payloads, 0, self._out) == len(payloads)
        return self.ask()

    def ask(self, *, is_flush: bool = False) -> int | None:
        return self.box.ask_receipt(next(self._numbers), is_flush=is_flush)

    def ack(self, source: Member, delivered: int) -> None:
        ack = Ack(Stream.FIFO, delivered, delivered, ALLOWANCE)
        self.box.on_ack(source, ack, 0, self._out)

    def install(self, *members: Member, back: tuple[Member, ...] = ()) -> View:
        """`back`: they have been elsewhere meanwhile."""
        installed = view(*members, counter=2)
        together = [who for who in members if who in self.box.acks.members and who not in back]
        self.box.begin(installed, together, 0, self._out)
        return installed

    def given(self) -> list[Confirmed]:
        given = [event for event in self._out.events if isinstance(event, Confirmed)]
        self._out.events.clear()
        return given


def test_a_receipt_is_given_when_the_last_of_the_others_has_delivered() -> None:
    s = Sender(B, C)
    assert s.send(b"1", b"2") == 1
    s.ack(B, 2)
    s.ack(C, 1)
    assert s.given() == []
    s.ack(C, 2)  # this member itself has not, and nothing is purged
    assert s.given() == [Confirmed(1)]
    assert s.box.window.low == 0


def test_what_all_others_have_delivered_needs_no_receipt() -> None:
    s = Sender(B)
    assert s.ask(is_flush=True) is None  # nothing was sent
    s.send(b"1")
    s.ack(B, 1)
    assert s.ask(is_flush=True) is None
    assert Sender().send(b"to nobody") is None


def test_receipts_are_given_in_order_and_one_ack_may_give_several() -> None:
    s = Sender(B, C)
    numbers = [s.send(b"%d" % seqno) for seqno in range(1, 6)]
    s.ack(C, 5)
    s.ack(B, 3)
    assert s.given() == [Confirmed(number) for number in numbers[:3] if number is not None]
    s.ack(B, 3)  # late, or twice
    assert s.given() == []
    s.ack(B, 5)
    assert len(s.given()) == 2


def test_who_departs_before_it_has_delivered_is_named() -> None:
    s = Sender(B, C)
    s.send(b"1")
    s.send(b"2")
    s.ack(B, 1)
    s.ack(C, 2)
    new = s.install(A, C)
    assert s.given() == [Confirmed(1), Confirmed(2, (B,), str(new))]
    s.ack(C, 2)
    assert s.given() == []  # each is given once


def test_an_ack_before_the_view_counts() -> None:
    s = Sender(B, C)
    s.send(b"1")
    s.ack(B, 1)
    s.install(A, C)
    s.ack(C, 1)
    assert s.given() == [Confirmed(1)]


def test_who_joins_later_is_not_waited_for() -> None:
    s = Sender(B)
    s.send(b"1")
    s.install(A, B, D)
    assert s.send(b"2") == 2
    s.ack(B, 2)
    assert s.given() == [Confirmed(1)]
    s.ack(D, 2)
    assert s.given() == [Confirmed(2)]


def test_who_comes_back_to_us_skips_what_was_sent_before_and_so_is_named() -> None:
    s = Sender(B, C)
    s.send(b"1")
    new = s.install(A, B, C, back=(B,))
    s.ack(B, 1)  # where it begins: it has delivered nothing of that
    s.ack(C, 1)
    assert s.given() == [Confirmed(1, (B,), str(new))]


def test_a_flush_goes_on_without_who_departs() -> None:
    s = Sender(B, C)
    s.send(b"1")
    assert s.ask(is_flush=True) == 2
    s.install(A, C)
    assert [event.number for event in s.given()] == [1]
    s.ack(C, 1)
    assert s.given() == [Confirmed(2)]


def test_a_flush_of_what_the_rest_has_ends_with_the_view() -> None:
    s = Sender(B, C)
    s.send(b"1")
    s.ask(is_flush=True)
    s.ack(C, 1)
    s.install(A, C)
    assert s.given()[-1] == Confirmed(2)


def test_as_many_are_pending_as_there_are_messages_however_often_it_is_asked() -> None:
    s = Sender(B, capacity=4)
    for _ in range(4):
        s.send(b"x")
        flushes = {s.ask(is_flush=True) for _ in range(1000)}
        assert len(flushes) == 1
    assert s.box.stats()["receipts"] == 8
    s.ack(B, 4)
    assert len(s.given()) == 8
    assert s.box.stats()["receipts"] == 0


@pytest.mark.parametrize("smaller", [900, 100])
def test_a_large_message_is_delivered_with_its_last_fragment(smaller: int) -> None:
    """Also if datagrams become smaller meanwhile, so that there are more fragments than before."""
    s = Sender(B, capacity=2)
    assert s.send(bytes(3000)) == 1
    assert s.ask(is_flush=True) == 2
    s.box.fragments.resize(smaller, 1000)
    acked = 0
    while s.box.fragments.rest:
        assert s.given() == []
        s.box.take_ready(2, 0, s._out)
        acked += 1
        s.ack(B, acked)
    assert s.given() == []
    s.ack(B, s.box.window.high - 1)
    assert s.given() == []
    s.ack(B, s.box.window.high)
    assert s.given() == [Confirmed(1), Confirmed(2)]


# Where members report


def stable(box: MulticastSender, s: Sender, by_others: int, number: int = 1) -> None:
    mark = Mark(0, by_others, 0)
    box.on_stable(Stable(ViewId(A, 1), number, ALLOWANCE, (mark,)), mark, A, 0, s._out)


def test_votes_tell_what_all_others_have() -> None:
    s = Sender(B, C, stability=StabilityConfig())
    s.send(b"1")
    s.send(b"2")
    s.ack(B, 2)  # nobody acknowledges there
    assert s.given() == []
    stable(s.box, s, 1)
    assert s.given() == [Confirmed(1)]
    new = s.install(A, C)  # whether B had the second one nobody can tell
    assert s.given() == [Confirmed(2, (B,), str(new))]


# Messages to one member


class Unicast:
    def __init__(self, *others: Member) -> None:
        self.layer = ReliableUnicast(
            A, UnicastConfig(), fragment_bytes=900, datagram_bytes=1000, max_message_bytes=1 << 20
        )
        self.out = Effects()
        self.layer.group.change(view(A, *others), [self.layer], 0, self.out)

    def send(self, to: Member, *payloads: bytes, number: int = 1) -> int | None:
        assert self.layer.send(payloads, to, 0, self.out) == len(payloads)
        return self.layer.ask_receipt(number, to, is_flush=False)

    def ack(self, peer: Member, delivered: int) -> None:
        ack = UnicastAck(self.layer.senders[peer].conn, delivered, ALLOWANCE)
        self.layer.receive(peer, [ack], 0, self.out)

    def given(self) -> list[Confirmed]:
        return [event for event in self.out.events if isinstance(event, Confirmed)]


def test_only_the_member_that_it_was_sent_to_is_waited_for() -> None:
    u = Unicast(B, C)
    assert u.send(C, b"first", number=1) == 1
    assert u.send(B, bytes(5000), number=2) == 2
    u.ack(B, 5)
    assert u.given() == []
    u.ack(B, 6)
    assert u.given() == [Confirmed(2)]
    assert u.layer.ask_receipt(3, B, is_flush=False) is None


def test_a_member_that_leaves_the_view_is_named_at_once_and_may_have_it_all_the_same() -> None:
    u = Unicast(B, C)
    u.send(B, b"x")
    new = view(A, C, counter=2)
    u.layer.group.change(new, [u.layer], 0, u.out)
    assert u.given() == [Confirmed(1, (B,), str(new))]
    u.ack(B, 1)
    assert len(u.given()) == 1


def test_a_view_says_nothing_of_who_was_not_in_the_one_before() -> None:
    u = Unicast(B, C)
    u.layer.send([b"while it was here"], B, 0, u.out)
    u.layer.group.change(view(A, C, counter=2), [u.layer], 0, u.out)
    assert u.send(B, b"on the stream that there is") == 1
    u.layer.group.change(view(A, counter=3), [u.layer], 0, u.out)
    assert u.given() == []
    u.ack(B, 2)
    assert u.given() == [Confirmed(1)]


def test_a_member_that_is_given_up_is_named() -> None:
    u = Unicast(B)
    u.send(B, b"x")
    while (at := u.layer.deadlines.next()) is not None and not u.given():
        u.layer.handle_timeout(at, u.out)
    (event,) = u.given()
    assert event.missing == (B,)
    assert event.reason == "B has answered nothing for 60.0 s"


def test_who_goes_itself_names_nobody() -> None:
    u = Unicast(B)
    u.send(B, b"x")
    u.layer.group.close("left", [u.layer], 0, u.out)
    assert [type(event) for event in u.out.events] == [Undeliverable]


def test_a_message_to_oneself_is_delivered_when_it_is_read() -> None:
    u = Unicast(B)
    assert u.send(A, b"1", b"2") == 1
    u.layer.take_ready(1, 0, u.out)
    assert u.given() == []
    u.layer.take_ready(1, 0, u.out)
    assert u.given() == [Confirmed(1)]
    assert u.layer.ask_receipt(2, A, is_flush=False) is None
