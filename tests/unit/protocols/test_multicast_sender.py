"""The sending half, alone: what it accepts, sends, sends again and lets go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ringcast.config import MulticastConfig
from ringcast.core.effects import Effects, TooSlow
from ringcast.core.shared import Deadlines
from ringcast.events import Writable
from ringcast.model import Address, Member, Stream, View, ViewId
from ringcast.protocols.multicast_sender import (
    WATERMARK_PROBE_MIN_NS,
    WATERMARK_PROBE_START_NS,
    MulticastSender,
)
from ringcast.wire.frames import Ack, Data, Nack, Watermark

if TYPE_CHECKING:
    from ringcast.wire.frames import Frame

A, B, C = (Member(Address("127.0.0.1", 7800 + n), n, name) for n, name in enumerate("ABC", 1))
TAU = 500_000_000


def view(*members: Member, counter: int = 1) -> View:
    return View(ViewId(members[0], counter), members)


class Sender:
    """A's sending and what came out of it."""

    def __init__(
        self,
        *others: Member,
        fragment_bytes: int = 900,
        slow_member_timeout_s: float = 0.0,
        **config: Any,
    ) -> None:
        defaults: dict[str, Any] = {"datagram_bytes": 1000, "window_bytes": 1 << 20}
        self.config = MulticastConfig(**(defaults | config))
        members = view(A, *(others or (B,)))
        self.deadlines = Deadlines()
        timers = self.deadlines.owner("sent")
        self.box = MulticastSender(
            A, Stream.FIFO, self.config, members, fragment_bytes, timers, slow_member_timeout_s
        )
        self.view = members
        self.out = Effects()

    def begin(self, *members: Member, counter: int = 2, back: tuple[Member, ...] = ()) -> None:
        """The next view; those who were in the last one come along, unless they come back."""
        together = [who for who in members if who in self.view and who not in back]
        self.view = view(*members, counter=counter)
        self.box.begin(self.view, together, 0, self.out)

    def send(self, *payloads: bytes, now: int = 0) -> int:
        return self.box.send(payloads, now, self.out)

    def ack(
        self,
        source: Member,
        delivered: int,
        *,
        received: int = 0,
        now: int = 0,
        allowance: int = 1 << 20,
    ) -> None:
        ack = Ack(Stream.FIFO, max(received, delivered), delivered, allowance)
        self.box.on_ack(source, ack, now, self.out)

    def nack(self, source: Member, *missing: range) -> None:
        self.box.on_nack(source, Nack(Stream.FIFO, list(missing)), self.out)

    def take(self, now: int = 0) -> list[bytes]:
        return self.box.take_ready(1000, now, self.out)

    def sent(self) -> list[tuple[Member | Address | None, Frame]]:
        frames = list(self.out.frames)
        self.out.frames.clear()
        self.box.check_invariants(self.view)
        return frames

    def probes_until(self, stop: int) -> list[int]:
        """When Watermark was told, up to a time."""
        times = []
        while (at := self.deadlines.next()) is not None and at <= stop:
            self.box.handle_timeout(at, self.out)
            times += [at for _, frame in self.sent() if isinstance(frame, Watermark)]
        return times


def test_a_send_goes_to_everybody_as_one_run() -> None:
    s = Sender()
    assert s.send(b"a", b"b") == 2
    assert s.send(b"c") == 1
    assert s.sent() == [
        (None, Data(Stream.FIFO, 1, [b"a", b"b"])),
        (None, Data(Stream.FIFO, 3, [b"c"])),
    ]


def test_what_finds_no_room_takes_no_seqno() -> None:
    s = Sender(capacity=2)
    assert s.send(b"1", b"2", b"3") == 2
    assert s.box.stream.is_blocked
    assert s.send(b"3") == 0
    assert s.box.window.high == 2
    assert s.sent() == [(None, Data(Stream.FIFO, 1, [b"1", b"2"]))]
    s.take()
    s.ack(B, 1)
    assert list(s.out.events) == [Writable()]
    assert s.send(b"3") == 1
    assert s.sent() == [(None, Data(Stream.FIFO, 3, [b"3"]))]


def test_the_sender_is_told_once_per_block() -> None:
    s = Sender(capacity=2)
    s.send(b"1", b"2", b"3")
    s.take()
    s.ack(B, 1)
    s.ack(B, 2)
    assert list(s.out.events) == [Writable()]


def test_an_accepted_send_is_not_followed_by_writable() -> None:
    s = Sender(capacity=2)
    s.send(b"1", b"2")
    s.take()
    s.ack(B, 2)
    assert list(s.out.events) == []


def test_the_slowest_decides_what_is_purged() -> None:
    s = Sender(B, C)
    s.send(*[b"x"] * 5)
    s.take()
    s.ack(B, 5)
    assert s.box.window.low == 0
    s.ack(C, 3)
    assert s.box.window.low == 3
    s.ack(C, 2)  # late: nothing goes back
    assert s.box.window.low == 3
    assert s.box.acks.entries() == [(A, 5, 5), (B, 5, 5), (C, 3, 3)]
    s.ack(C, 4, received=5)
    assert s.box.window.low == 4
    assert s.box.acks.min_received == 5


def test_holding_is_not_delivering() -> None:
    s = Sender()
    s.send(*[b"x"] * 3)
    s.take()
    s.ack(B, 0, received=3)
    assert s.box.window.low == 0


def test_ones_own_application_counts() -> None:
    s = Sender()
    s.send(b"1", b"2")
    s.ack(B, 2)
    assert s.box.window.low == 0
    assert s.box.take_ready(1, 0, s.out) == [b"1"]
    assert s.box.window.low == 1
    assert s.take() == [b"2"]
    assert s.box.window.low == 2
    assert s.take() == []


def test_a_view_is_an_ack_of_who_comes_along_and_forgets_the_departed() -> None:
    s = Sender(B, C)
    s.send(*[b"x"] * 4)
    s.take()
    s.ack(B, 3)
    s.ack(C, 1)
    newcomer = C._replace(incarnation=99)
    s.begin(A, B, newcomer)
    assert s.box.acks.entries() == [(A, 4, 4), (B, 4, 3), (newcomer, 4, 4)]
    assert s.box.window.low == 3  # what B has not read yet it may still ask for
    assert C not in s.box.heard
    s.begin(A, newcomer, counter=3)
    assert s.box.window.low == 4  # nobody slower is left
    assert not s.box.is_behind


def test_who_comes_back_begins_behind_what_was_sent() -> None:
    s = Sender(B, C)
    s.send(*[b"x"] * 4)
    s.take()
    s.ack(B, 4)
    s.begin(A, B, C, back=(C,))
    assert s.box.window.low == 4
    s.send(b"5")
    s.take()
    s.ack(B, 5)
    assert s.box.window.low == 4
    s.ack(C, 5)
    assert s.box.window.low == 5


def test_a_view_wakes_a_blocked_sender() -> None:
    s = Sender(B, C, capacity=2)
    s.send(b"1", b"2", b"3")
    s.take()
    s.ack(B, 2)
    s.begin(A, B)
    assert list(s.out.events) == [Writable()]


# Probes


def test_probes_double_from_their_start_up_to_tau() -> None:
    s = Sender()
    assert s.deadlines.next() is None
    s.send(b"x", now=0)
    times = s.probes_until(6 * TAU)
    pauses = [later - earlier for earlier, later in zip([0, *times], times, strict=False)]
    assert pauses == [min(WATERMARK_PROBE_START_NS << n, TAU) for n in range(len(times))]
    assert pauses[-1] == TAU


def test_probes_tell_the_highest_seqno_to_everybody() -> None:
    s = Sender()
    s.send(b"x", b"y")
    s.sent()
    at = s.deadlines.next()
    assert at is not None
    s.box.handle_timeout(at - 1, s.out)
    assert s.sent() == []
    s.box.handle_timeout(at, s.out)
    assert s.sent() == [(None, Watermark(Stream.FIFO, 2))]


def test_probes_end_when_all_have_delivered() -> None:
    s = Sender(B, C)
    s.send(b"x")
    s.take()
    s.ack(B, 1)
    assert len(s.probes_until(TAU)) > 1
    s.ack(C, 1, now=TAU)
    assert s.probes_until(100 * TAU) == []
    assert s.deadlines.next() is None


def test_an_ack_that_raises_the_minimum_starts_the_pauses_over() -> None:
    s = Sender()
    s.send(b"1", now=0)
    s.take()
    s.ack(B, 1, now=7_000_000)
    s.send(b"2", b"3", now=TAU)
    s.take()
    s.ack(B, 1, received=3, now=TAU + 7_000_000)  # B has them, and its application takes its time
    now = s.probes_until(10 * TAU)[-1]
    assert s.deadlines.next() == now + TAU
    s.ack(B, 2, now=now + 1)
    assert s.deadlines.next() == now + 1 + 14_000_000


def test_the_first_probe_follows_the_measured_ack_time() -> None:
    s = Sender()
    s.send(b"x", now=0)
    s.take()
    s.ack(B, 1, now=7_000_000)
    s.send(b"y", now=20_000_000)
    assert s.deadlines.next() == 20_000_000 + 14_000_000
    s.take()
    s.ack(B, 2, now=20_000_001)
    s.send(b"z", now=30_000_000)
    assert s.deadlines.next() == 30_000_000 + WATERMARK_PROBE_MIN_NS


def probe_after(s: Sender, now: int) -> int:
    """How long after a send the first probe is due."""
    assert s.send(b"x", now=now) == 1
    at = s.deadlines.next()
    assert at is not None
    s.take()
    return at - now


def test_the_ack_time_rises_slowly_and_falls_at_once() -> None:
    s = Sender()
    probe_after(s, 0)
    s.ack(B, 1, now=8_000_000)
    assert probe_after(s, TAU) == 2 * 8_000_000
    s.ack(B, 2, now=TAU + 16_000_000)  # twice as long, by repairs perhaps: an eighth of it
    assert probe_after(s, 2 * TAU) == 2 * 9_000_000
    s.ack(B, 3, now=2 * TAU + 3_000_000)
    assert probe_after(s, 3 * TAU) == 2 * 3_000_000


def test_the_ack_time_is_measured_to_the_first_ack_for_what_was_sent() -> None:
    s = Sender(B, C)
    s.send(b"1", now=0)
    s.send(b"2", now=5_000_000)  # one measurement at a time: it does not begin anew
    s.take()
    s.ack(B, 0, now=6_000_000)  # for nothing that was sent
    s.ack(B, 0, received=1, now=8_000_000)
    s.ack(C, 2, now=40_000_000)  # not the first
    s.ack(B, 2, now=50_000_000)
    assert s.deadlines.next() is None
    assert probe_after(s, TAU) == 2 * 8_000_000


def test_a_joiner_is_probed_for() -> None:
    s = Sender()
    s.begin(A, C)
    s.send(b"x", b"y")
    s.take()
    assert len(s.probes_until(TAU)) > 0


# Repair


def test_a_nack_is_answered_to_whoever_asked() -> None:
    s = Sender(B, C)
    s.send(*[b"%d" % n for n in range(1, 7)])
    s.sent()
    s.nack(C, range(2, 4), range(6, 7))
    assert s.sent() == [
        (C, Data(Stream.FIFO, 2, [b"2", b"3"])),
        (C, Data(Stream.FIFO, 6, [b"6"])),
    ]


def test_a_nack_may_be_answered_to_all() -> None:
    s = Sender(B, C, repair_to_all=True)
    s.send(b"1")
    s.sent()
    s.nack(C, range(1, 2))
    assert s.sent() == [(None, Data(Stream.FIFO, 1, [b"1"]))]


def test_a_nack_gets_only_what_is_here() -> None:
    s = Sender(capacity=4)
    for n in range(1, 7):
        s.send(b"%d" % n)
        s.take()
        s.ack(B, min(n, 3))
    s.sent()
    s.nack(B, range(1, 1 << 40))
    assert s.sent() == [(B, Data(Stream.FIFO, 4, [b"4", b"5", b"6"]))]
    s.nack(B, range(1, 4), range(7, 9))
    assert s.sent() == []


def test_after_a_wrap_the_right_payloads_are_sent_again() -> None:
    s = Sender(capacity=4)
    for n in range(1, 12):
        s.send(b"%d" % n)
        s.take()
        s.ack(B, n - 3 if n > 3 else 0)
    s.sent()
    for n in (9, 10, 11):
        s.nack(B, range(n, n + 1))
    assert [frame for _, frame in s.sent()] == [
        Data(Stream.FIFO, n, [b"%d" % n]) for n in (9, 10, 11)
    ]


def test_each_member_may_ask_for_one_window_between_two_probes() -> None:
    s = Sender(B, C, capacity=4)
    s.send(*[b"%d" % n for n in range(1, 5)])
    s.sent()
    s.nack(B, range(1, 4))
    s.nack(B, range(1, 4))
    s.nack(B, range(1, 4))
    assert sum(frame.count for _, frame in s.sent() if isinstance(frame, Data)) == 4
    assert s.box.stream.retransmitted == 4
    s.nack(C, range(1, 5))
    assert sum(frame.count for _, frame in s.sent() if isinstance(frame, Data)) == 4
    at = s.deadlines.next()
    assert at is not None
    s.box.handle_timeout(at, s.out)
    s.sent()
    s.nack(B, range(1, 5))
    assert sum(frame.count for _, frame in s.sent() if isinstance(frame, Data)) == 4


def test_what_is_purged_gives_each_member_another_window_to_ask_for() -> None:
    s = Sender(B, C, capacity=4)
    s.send(*[b"%d" % n for n in range(1, 5)])
    s.take()
    s.sent()
    s.nack(B, range(1, 5))
    s.nack(C, range(1, 5))
    assert s.box.stream.retransmitted == 8
    s.ack(B, 4)
    s.nack(C, range(1, 5))
    assert s.box.stream.retransmitted == 8  # nothing is purged while C has nothing
    s.ack(C, 1)
    s.nack(C, range(1, 5))
    assert s.box.stream.retransmitted == 8 + 3


def test_what_was_sent_and_is_still_here_can_be_read_as_it_went_out() -> None:
    s = Sender(fragment_bytes=2)
    s.send(b"a", b"01234", b"b")
    assert s.box.sent_since(6) == []
    assert s.box.sent_since(3) == [
        Data(Stream.FIFO, 3, [b"23"], more=True),
        Data(Stream.FIFO, 4, [b"4", b"b"]),
    ]
    s.take()
    s.ack(B, 3)
    assert s.box.sent_since(1) == [Data(Stream.FIFO, 4, [b"4", b"b"])]  # the rest is purged


# Bytes


def test_the_smallest_allowance_of_a_current_member_counts() -> None:
    s = Sender(B, C, window_bytes=50_000)
    assert s.box.window.max_bytes == 25_000  # half may be under way until somebody says more
    s.ack(B, 0, allowance=20_000)
    s.ack(C, 0, allowance=9000)
    assert s.box.window.max_bytes == 9000
    s.ack(C, 0, allowance=30_000)
    assert s.box.window.max_bytes == 20_000
    s.ack(B, 0, allowance=0)
    assert s.box.window.max_bytes == 1000  # at least one datagram
    s.begin(A, C)
    assert s.box.window.max_bytes == 30_000
    s.ack(C, 0, allowance=1 << 40)
    assert s.box.window.max_bytes == 50_000  # never more than configured
    s.begin(A, counter=3)
    assert s.box.window.max_bytes == 25_000


def test_more_allowance_is_room() -> None:
    s = Sender(window_bytes=50_000)
    s.ack(B, 0, allowance=2000)
    accepted = s.send(*[bytes(900)] * 5)
    assert 0 < accepted < 5
    s.ack(B, 0, allowance=1900)
    assert list(s.out.events) == []
    s.ack(B, 0, allowance=50_000)
    assert list(s.out.events) == [Writable()]


# Large messages


def test_a_large_message_is_cut_and_put_together_for_oneself() -> None:
    s = Sender(fragment_bytes=3)
    assert s.send(b"a", b"0123456", b"", b"b") == 4
    frames = [frame for _, frame in s.sent()]
    assert frames == [
        Data(Stream.FIFO, 1, [b"a"]),
        Data(Stream.FIFO, 2, [b"012", b"345"], more=True),
        Data(Stream.FIFO, 4, [b"6"]),
        Data(Stream.FIFO, 5, [b""]),
        Data(Stream.FIFO, 6, [b"b"]),
    ]
    runs = s.box.assembler.assemble(1, s.take())
    assert runs == [(1, [b"a"]), (4, [b"0123456"]), (5, [b"", b"b"])]


def test_a_message_of_exactly_one_fragment_is_not_cut() -> None:
    s = Sender(fragment_bytes=3)
    assert s.send(b"012", b"0123") == 2
    assert [(frame.first, frame.more) for _, frame in s.sent() if isinstance(frame, Data)] == [
        (1, False),
        (2, True),
        (3, False),
    ]


def test_the_rest_of_a_large_message_goes_before_anything_else() -> None:
    s = Sender(fragment_bytes=2, capacity=2)
    assert s.send(b"0123456", b"x") == 1
    assert list(s.box.fragments.rest) == [b"45", b"6"]
    assert s.send(b"x") == 0
    s.sent()
    s.take()
    s.ack(B, 1)
    assert [frame for _, frame in s.sent()] == [Data(Stream.FIFO, 3, [b"45"], more=True)]
    assert list(s.out.events) == []  # still nothing for the application to do
    s.take()
    s.ack(B, 3)
    assert [frame for _, frame in s.sent()] == [Data(Stream.FIFO, 4, [b"6"])]
    assert list(s.out.events) == [Writable()]
    assert s.send(b"x") == 1


def test_small_messages_do_not_slip_in_between_fragments() -> None:
    """The next fragment finds no room, a small message would: it has to wait all the same."""
    s = Sender(fragment_bytes=900, window_bytes=5200)
    assert s.send(bytes(2700)) == 1
    assert len(s.box.fragments.rest) == 1
    assert not s.box.window.is_full
    assert s.send(b"x") == 0
    s.ack(B, 0, received=1, allowance=2600)
    s.take()
    assert list(s.out.events) == []
    s.ack(B, 2, allowance=2600)
    assert list(s.out.events) == [Writable()]
    assert s.send(b"x") == 1
    assert [(f.first, f.more) for _, f in s.sent() if isinstance(f, Data)] == [
        (1, True),  # and 2
        (3, False),
        (4, False),
    ]


def test_a_block_lasts_from_the_first_refusal() -> None:
    s = Sender(capacity=1)
    s.send(b"1", b"2", now=10**9)
    s.send(b"2", now=2 * 10**9)
    assert "blocked for 2.0 s" in s.box.explain(3 * 10**9)[0]


def test_a_large_message_that_cannot_begin_is_not_accepted() -> None:
    s = Sender(fragment_bytes=2, capacity=2)
    assert s.send(b"1", b"2", b"0123") == 2
    assert not s.box.fragments.rest
    assert s.send(b"0123") == 0
    assert not s.box.fragments.rest
    assert s.box.stream.is_blocked


def test_fragments_are_sent_again_as_fragments() -> None:
    s = Sender(fragment_bytes=2)
    s.send(b"a", b"01234", b"b", b"c")
    s.sent()
    s.nack(B, range(1, 7))
    assert [frame for _, frame in s.sent()] == [
        Data(Stream.FIFO, 1, [b"a"]),
        Data(Stream.FIFO, 2, [b"01", b"23"], more=True),
        Data(Stream.FIFO, 4, [b"4", b"b", b"c"]),
    ]
    s.take()
    s.ack(B, 4)
    s.nack(B, range(1, 7))  # what is purged is forgotten, its marks too
    assert [frame for _, frame in s.sent()] == [Data(Stream.FIFO, 5, [b"b", b"c"])]
    assert s.box.fragments._continued == set()


def test_stats_tell_every_table() -> None:
    s = Sender(capacity=2)
    s.send(b"x", b"x", b"x")
    stats = s.box.stats()
    assert (stats["low"], stats["high"], stats["capacity"]) == (0, 2, 2)
    assert stats["acks"] == {"A": [0, 0], "B": [0, 0]}


@pytest.mark.parametrize(
    ("count", "what"),
    [
        (2, "2 messages sent on fifo, not yet delivered by"),
        (
            3,
            "send on fifo blocked for 1.0 s: window full "
            "(2 of 2 messages, 768 of 1048576 bytes), limited by",
        ),
    ],
    ids=["behind", "blocked"],
)
def test_whoever_is_behind_is_named_blocked_or_not(count: int, what: str) -> None:
    s = Sender(B, C, capacity=2)
    s.send(*[b"x"] * count)
    s.ack(C, 2, now=10**8)
    assert s.box.explain(10**9) == [
        f"{what} A, which has delivered 0 of 2; that is this member's own application",
        f"{what} B, which has delivered 0 of 2; no ack from it yet",
    ]
    s.take()
    s.ack(B, 1, now=10**9)
    (reason,) = s.box.explain(3 * 10**9)
    assert reason.endswith("not yet delivered by B, which has delivered 1 of 2; last ack 2.0 s ago")
    s.ack(B, 2)
    assert s.box.explain(3 * 10**9) == []


def test_whoever_is_not_borne_with_for_ever_is_told_apart() -> None:
    s = Sender(B, capacity=2, slow_member_timeout_s=5.0)
    s.send(b"x", b"x")
    assert not any("excluded" in reason for reason in s.box.explain(10**9))
    s.send(b"x", now=10**9)
    own, other = s.box.explain(3 * 10**9)
    assert own.endswith("that is this member's own application")
    assert other.endswith("no ack from it yet; excluded if it takes nothing for 3.0 s more")
    assert s.box.explain(9 * 10**9)[1].endswith("for 0.0 s more")  # overdue


# Too slow


def complaints(s: Sender, stop: int) -> list[tuple[int, Member]]:
    """Who was reported as too slow, and when, up to a time."""
    found = []
    while (at := s.deadlines.next()) is not None and at <= stop:
        s.box.handle_timeout(at, s.out)
        found += [(at, signal.member) for signal in s.out.signals if isinstance(signal, TooSlow)]
        s.out.signals.clear()
    return found


def test_whoever_holds_a_blocked_sender_up_for_too_long_is_reported_and_again() -> None:
    s = Sender(B, C, capacity=2, slow_member_timeout_s=2.0)
    s.send(b"1", b"2", b"3")
    s.take()
    s.ack(C, 2)
    times, members = zip(*complaints(s, 9 * TAU), strict=True)
    assert set(members) == {B}
    assert [at // (4 * TAU) for at in times] == [1, 2]


def test_the_time_for_which_a_sender_slept_does_not_count() -> None:
    s = Sender(B, C, capacity=2, slow_member_timeout_s=2.0)
    s.send(b"1", b"2", b"3")
    s.take()
    asleep = 60 * TAU
    s.box.handle_timeout(asleep, s.out)
    assert not s.out.signals
    (first, _), *_ = complaints(s, asleep + 9 * TAU)
    assert 3 * TAU <= first - asleep <= 5 * TAU  # two seconds, and what had passed before


def test_nobody_is_reported_if_that_was_not_agreed_or_nothing_is_held_up() -> None:
    s = Sender(B, C, capacity=2)
    s.send(b"1", b"2", b"3")
    s.take()
    assert complaints(s, 20 * TAU) == []
    s = Sender(B, C, capacity=4, slow_member_timeout_s=2.0)
    s.send(b"1", b"2", b"3")
    s.take()
    assert complaints(s, 20 * TAU) == []


def test_nobody_is_reported_who_is_no_slower_than_the_own_application() -> None:
    s = Sender(B, capacity=2, slow_member_timeout_s=2.0)
    s.send(b"1", b"2", b"3")
    assert complaints(s, 20 * TAU) == []
