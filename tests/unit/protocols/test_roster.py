"""Membership by a fixed list: who is asked, who is answered, and the one view there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ringcast.config import GroupConfig
from ringcast.core.effects import DigestAgreed, Effects, ViewAgreed
from ringcast.errors import UsageError
from ringcast.events import Delivered, ViewInstalled
from ringcast.model import Address, Digest, Member, Origin, Stream, View, ViewId
from ringcast.node import Node
from ringcast.protocols.roster import ASK_INTERVAL_NS, Roster
from ringcast.wire.frames import Ack, Hello

if TYPE_CHECKING:
    from ringcast.core.effects import Signal
    from ringcast.events import Event
    from ringcast.wire.frames import Frame

A, B, C, X = (Member(Address("127.0.0.1", 7800 + n), n, name) for n, name in enumerate("ABCX", 1))
LIST = (A.address, B.address, C.address)
QUESTION = Hello(is_question=True)
ANSWER = Hello(is_question=False)


class Listed:
    """B's roster and what came out of it."""

    def __init__(self, *addresses: Address) -> None:
        self.layer = Roster(B, addresses or LIST)
        self.out = Effects()
        self.layer.start(1000, self.out)

    def hello(self, source: Member, hello: Hello = ANSWER) -> None:
        self.layer.receive(source, [hello], 1000, self.out)

    def sent(self) -> list[tuple[Member | Address | None, Frame]]:
        frames = list(self.out.frames)
        self.out.frames.clear()
        self.layer.check_invariants()
        return frames

    def agreed(self) -> list[Signal]:
        signals = list(self.out.signals)
        self.out.signals.clear()
        return signals


def agreement(*members: Member) -> list[Signal]:
    entries = {Origin(member, stream): 0 for member in members for stream in Stream}
    return [ViewAgreed(View(ViewId(members[0], 1), members)), DigestAgreed(Digest(entries))]


def test_everybody_else_is_asked_at_once_and_again_until_they_answer() -> None:
    r = Listed()
    assert r.sent() == [(A.address, QUESTION), (C.address, QUESTION)]
    assert r.layer.next_timeout() == 1000 + ASK_INTERVAL_NS
    r.layer.handle_timeout(999 + ASK_INTERVAL_NS, r.out)
    assert r.sent() == []
    r.hello(A)
    r.layer.handle_timeout(1000 + ASK_INTERVAL_NS, r.out)
    assert r.sent() == [(C.address, QUESTION)]
    assert r.layer.next_timeout() == 1000 + 2 * ASK_INTERVAL_NS


def test_a_question_is_answered_and_an_answer_is_not() -> None:
    r = Listed()
    r.sent()
    r.hello(A, QUESTION)
    assert r.sent() == [(A.address, ANSWER)]
    r.hello(C, ANSWER)
    assert r.sent() == []


def test_when_all_are_known_there_is_a_view_in_the_order_of_the_list() -> None:
    r = Listed(C.address, A.address, B.address)
    r.hello(A)
    assert r.agreed() == []
    r.hello(C, QUESTION)  # who asks is there, too
    assert r.agreed() == agreement(C, A, B)
    assert r.layer.next_timeout() is None
    assert r.layer.missing == []
    assert r.layer.stats() == {"listed": 3, "known": 3}


def test_the_view_is_made_once_and_questions_are_answered_all_the_same() -> None:
    r = Listed()
    r.hello(A)
    r.hello(C)
    r.agreed()
    r.sent()
    r.hello(A, QUESTION)
    r.hello(C, ANSWER)
    assert r.agreed() == []
    assert r.sent() == [(A.address, ANSWER)]


def test_alone_on_the_list_one_is_complete_at_once() -> None:
    r = Listed(B.address)
    assert r.agreed() == agreement(B)
    assert r.sent() == []
    assert r.layer.next_timeout() is None


def test_strangers_and_oneself_are_neither_answered_nor_noted() -> None:
    r = Listed()
    r.sent()
    for source in (X, B, B._replace(incarnation=99)):
        r.hello(source, QUESTION)
    assert r.sent() == []
    assert r.layer.stats() == {"listed": 3, "known": 1}
    r.hello(A)
    r.hello(C)
    assert r.agreed() == agreement(A, B, C)  # nobody takes one's own place


def test_a_process_that_was_restarted_before_the_view_takes_the_place_of_the_dead_one() -> None:
    r = Listed()
    r.hello(A)
    restarted = A._replace(incarnation=99)
    r.hello(restarted, QUESTION)
    r.hello(C)
    assert r.agreed() == agreement(restarted, B, C)


def test_a_process_that_was_restarted_after_the_view_stays_outside() -> None:
    r = Listed()
    r.hello(A)
    r.hello(C)
    assert r.agreed() == agreement(A, B, C)
    r.hello(A._replace(incarnation=99), QUESTION)
    assert r.agreed() == []


def test_the_list_must_name_oneself_and_nobody_twice() -> None:
    with pytest.raises(UsageError, match=r"127\.0\.0\.1:7802 is not on the list of members"):
        Roster(B, (A.address, C.address))
    with pytest.raises(UsageError, match="names an address twice"):
        Roster(B, (A.address, B.address, A.address))


def test_whoever_has_not_answered_is_named() -> None:
    r = Listed()
    r.hello(A)
    assert r.layer.explain(1000 + 2_500_000_000) == [
        "not in the group yet: no answer from 127.0.0.1:7803 for 2.5 s"
    ]
    r.hello(C)
    assert r.layer.explain(1000 + 2_500_000_000) == []


def test_a_closed_roster_asks_no_more() -> None:
    r = Listed()
    r.layer.close("closed", 0, r.out)
    assert r.layer.next_timeout() is None


def test_it_owns_nothing_but_hello() -> None:
    r = Listed()
    r.sent()
    r.layer.receive(A, [Ack(Stream.FIFO, 0, 0, 0)], 0, r.out)
    assert r.sent() == []
    assert r.layer.take_ready(9, 0, r.out) == []


def test_members_find_each_other_over_datagrams_that_may_be_lost() -> None:
    nodes = {
        me.address: Node(me, GroupConfig(group="g"), layers=[Roster(me, LIST)]) for me in (A, B, C)
    }
    events: dict[Address, list[Event]] = {address: [] for address in nodes}
    now = lost = 0
    for node in nodes.values():
        node.start(now)
    for _ in range(20):
        for address, node in nodes.items():
            events[address] += node.take_events(9, now)
            for dest, datagram in node.take_datagrams():
                lost += 1
                if lost > 3:  # the first questions
                    others = [dest] if dest else [to for to in nodes if to != address]
                    for to in others:
                        nodes[to].receive_datagrams([datagram], now)
            node.check_invariants()
        now += ASK_INTERVAL_NS // 4
        for node in nodes.values():
            node.handle_timeout(now)
        if now == ASK_INTERVAL_NS * 2:
            nodes[A.address].send([b"hello"], now)
    view = View(ViewId(A, 1), (A, B, C))
    for found in events.values():
        assert found[0] == ViewInstalled(view)
        delivered = [event for event in found[1:] if isinstance(event, Delivered)]
        assert [(event.sender, event.run.payloads) for event in delivered] == [(A, [b"hello"])]


def test_who_comes_back_after_the_view_gets_no_answer() -> None:
    r = Listed()
    r.hello(A)
    r.hello(C)
    assert r.agreed() == agreement(A, B, C)
    r.sent()
    r.hello(C._replace(incarnation=99), QUESTION)
    assert r.sent() == []  # it must not believe that it is in
    r.hello(C, QUESTION)
    assert r.sent() == [(C.address, ANSWER)]
    assert r.agreed() == []
