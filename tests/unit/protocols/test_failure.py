"""Who watches whom, what counts as a sign of life, and when a member is suspected."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ringcast.config import GroupConfig, MembershipConfig
from ringcast.core.effects import (
    Effects,
    NonMember,
    Suspected,
    Trusted,
    VerifyWanted,
)
from ringcast.model import Address, Member, Stream, View, ViewId
from ringcast.node import Node
from ringcast.protocols.failure import PINGS, WATCHERS, FailureDetector
from ringcast.wire.codec import Codec
from ringcast.wire.frames import Heartbeat, Ping, Pong, Watermark

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.core.effects import Signal
    from ringcast.wire.frames import Frame

NAMES = "ABCDEFGH"
MEMBERS = [Member(Address("127.0.0.1", 7800 + n), n, name) for n, name in enumerate(NAMES, 1)]
A, B, C, D, E, F, G, H = MEMBERS

MS = 1_000_000
CONFIG = MembershipConfig(heartbeat_s=0.25, suspect_after_s=2.0, verify_s=0.5)
HEARTBEAT = 250 * MS
SUSPECT_AFTER = 2000 * MS
VERIFY = 500 * MS
STEP = 100 * MS
START = 7_000 * MS


def view(members: Sequence[Member], counter: int = 1) -> View:
    return View(ViewId(members[0], counter), tuple(members))


class Watch:
    """A detector, what came out of it, and a clock that is moved by hand."""

    def __init__(self, me: Member = A, members: Sequence[Member] = (A, B)) -> None:
        self.layer = FailureDetector(me, CONFIG)
        self.out = Effects()
        self.now = START
        self.layer.start(self.now, self.out)
        if members:
            self.view(members)

    def view(self, members: Sequence[Member], counter: int = 1) -> None:
        self.layer.install_view(view(members, counter), self.now, self.out)
        self.layer.check_invariants()

    def receive(self, source: Member, *frames: Frame) -> None:
        self.layer.receive(source, frames, self.now, self.out)
        self.layer.check_invariants()

    def heard(self, *sources: Member) -> None:
        for source in sources:
            self.layer.heard(source, self.now)
        self.layer.check_invariants()

    def refuse(self, member: Member) -> None:
        self.layer.transport_hint(member.address, self.now, self.out)
        self.layer.check_invariants()

    def wanted(self, member: Member) -> None:
        self.layer.handle_signal(VerifyWanted(member), self.now, self.out)
        self.layer.check_invariants()

    def run(self, duration: int, alive: Sequence[Member] = ()) -> None:
        """Let every deadline of so many nanoseconds come, on time. Who is alive is heard."""
        until = self.now + duration
        while (at := self.layer.deadlines.next()) is not None and at <= until:
            self.now = max(self.now, at)
            self.heard(*alive)
            self.layer.handle_timeout(self.now, self.out)
            self.layer.check_invariants()
        self.now = until

    def wake(self, late: int) -> None:
        """One timeout, so much after it was due."""
        due = self.layer.deadlines.next()
        assert due is not None
        self.now = due + late
        self.layer.handle_timeout(self.now, self.out)
        self.layer.check_invariants()

    def sent(self) -> list[tuple[str, Frame]]:
        frames = [(str(dest), frame) for dest, frame in self.out.frames]
        self.out.frames.clear()
        return frames

    def probed(self) -> list[str]:
        return [dest for dest, frame in self.sent() if isinstance(frame, Ping)]

    def said(self) -> list[Signal]:
        signals = list(self.out.signals)
        self.out.signals.clear()
        return signals

    def verdicts(self) -> list[str]:
        return [f"{type(s).__name__} {s.member}" for s in self.said() if hasattr(s, "member")]


# Who watches whom


@pytest.mark.parametrize("size", range(1, len(MEMBERS) + 1))
def test_whom_i_beat_to_watches_me(size: int) -> None:
    group = MEMBERS[:size]
    beats: dict[str, set[str]] = {}
    watched: dict[str, set[str]] = {}
    for me in group:
        w = Watch(me, group)
        w.run(HEARTBEAT)
        beats[me.name] = {dest for dest, frame in w.sent() if frame == Heartbeat(1)}
        names = w.layer.stats()["watched"]
        assert isinstance(names, list)
        watched[me.name] = set(names)
        assert len(beats[me.name]) == min(WATCHERS, size - 1)
    for me in group:
        assert watched[me.name] == {name for name, dests in beats.items() if me.name in dests}


def test_the_ring_goes_round_in_view_order() -> None:
    w = Watch(B, [D, B, A, C, F, E])
    w.run(HEARTBEAT)
    assert w.sent() == [("A", Heartbeat(1)), ("C", Heartbeat(1)), ("F", Heartbeat(1))]
    assert w.layer.stats()["watched"] == ["F", "E", "D"]


def test_beats_go_on_and_name_the_view() -> None:
    w = Watch()
    w.run(HEARTBEAT - 1, alive=[B])
    assert w.sent() == []
    w.run(1, alive=[B])
    assert w.sent() == [("B", Heartbeat(1))]
    w.view([A, B], counter=5)
    w.run(2 * HEARTBEAT, alive=[B])
    assert w.sent() == [("B", Heartbeat(5))] * 2
    assert w.layer.stats()["heartbeats_sent"] == 3


def test_whoever_is_alone_is_quiet() -> None:
    w = Watch(members=[A])
    assert w.layer.deadlines.next() is None
    w.view([A, B], counter=2)
    assert w.layer.deadlines.next() == START + HEARTBEAT
    w.view([A], counter=3)
    assert w.layer.deadlines.next() is None


def test_views_do_not_put_the_beat_off() -> None:
    w = Watch()
    w.run(HEARTBEAT - 1)
    w.view([A, B, C], counter=2)
    assert w.layer.deadlines.next() == START + HEARTBEAT


# Silence, verification, verdict


def test_a_silent_member_is_asked_five_times_and_suspected_once() -> None:
    w = Watch()
    w.run(SUSPECT_AFTER - 1)
    assert w.probed() == []
    w.run(1)
    assert w.sent() == [("B", Heartbeat(1)), ("B", Ping(1))]
    w.run(VERIFY - 1)
    assert w.probed() == ["B"] * (PINGS - 1)
    assert w.said() == []
    w.run(1)
    assert w.said() == [Suspected(B, "no sign of life for 2.5 s, asked 5 times")]
    w.run(60_000 * MS)
    w.wanted(B)
    w.refuse(B)
    w.refuse(B)
    assert w.said() == []
    assert w.layer.stats()["suspicions"] == 1
    assert w.layer.stats()["verifications"] == 1


def test_probes_of_one_verification_bear_one_nonce_the_next_has_another() -> None:
    w = Watch()
    w.run(SUSPECT_AFTER + STEP)
    assert {frame for _, frame in w.sent() if isinstance(frame, Ping)} == {Ping(1)}
    w.heard(B)
    w.run(SUSPECT_AFTER + HEARTBEAT)
    assert {frame for _, frame in w.sent() if isinstance(frame, Ping)} == {Ping(2)}


@pytest.mark.parametrize("frame", [Pong(1), Pong(99), Heartbeat(1), Ping(4)], ids=str)
def test_every_frame_is_a_sign_of_life(frame: Frame) -> None:
    w = Watch()
    w.run(SUSPECT_AFTER + VERIFY - 1)
    assert w.layer.stats()["verifying"] == {"B": PINGS}
    w.receive(B, frame)
    assert w.layer.stats()["verifying"] == {}
    w.run(SUSPECT_AFTER)
    assert w.said() == []


def test_who_is_heard_now_and_then_is_never_asked() -> None:
    w = Watch()
    for _ in range(20):
        w.run(SUSPECT_AFTER - 1)
        w.heard(B)
    assert w.probed() == []
    assert w.layer.stats()["verifications"] == 0


def test_only_neighbours_are_watched() -> None:
    w = Watch(A, MEMBERS)
    w.run(SUSPECT_AFTER)
    assert sorted(w.probed()) == ["F", "G", "H"]


def test_another_incarnation_is_no_sign_of_life() -> None:
    restarted = B._replace(incarnation=77)
    w = Watch()
    w.run(SUSPECT_AFTER + VERIFY, alive=[restarted])
    assert w.verdicts() == ["Suspected B"]
    assert (B, Ping(1)) in w.out.frames  # that very incarnation is asked, not its address


def test_a_suspect_that_is_heard_is_trusted_at_once_and_once() -> None:
    w = Watch()
    w.run(SUSPECT_AFTER + VERIFY)
    assert w.verdicts() == ["Suspected B"]
    w.heard(B, B)
    assert w.layer.deadlines.next() == w.now
    w.run(0)
    assert w.said() == [Trusted(B)]
    w.heard(B)
    w.run(SUSPECT_AFTER - 1)
    assert w.said() == []
    assert w.layer.stats()["taken_back"] == 1


def test_a_suspect_may_be_suspected_again() -> None:
    w = Watch()
    w.run(SUSPECT_AFTER + VERIFY)
    w.heard(B)
    w.run(SUSPECT_AFTER + VERIFY + HEARTBEAT)
    assert w.verdicts() == ["Suspected B", "Trusted B", "Suspected B"]


def test_a_suspect_is_asked_on_with_every_beat() -> None:
    w = Watch()
    w.run(SUSPECT_AFTER + VERIFY)
    w.sent()
    w.run(2 * HEARTBEAT)
    assert w.sent() == [("B", Heartbeat(1)), ("B", Ping(1))] * 2


def test_doubts_about_one_leave_the_other_alone() -> None:
    w = Watch(A, [A, B, C])
    w.run(SUSPECT_AFTER + VERIFY, alive=[C])
    assert w.verdicts() == ["Suspected B"]
    w.heard(C)
    assert w.layer.stats()["suspected"] == {"B": "no sign of life for 2.5 s, asked 5 times"}


def test_two_verifications_run_side_by_side() -> None:
    w = Watch(A, [A, B, C])
    w.wanted(B)
    w.run(STEP // 2)
    w.wanted(C)
    assert w.layer.deadlines.next() == START + STEP
    w.run(VERIFY - STEP // 2)
    assert w.verdicts() == ["Suspected B"]
    w.run(STEP // 2)
    assert w.verdicts() == ["Suspected C"]


# Hints of the transport


def test_a_refused_port_is_verified_and_a_second_refusal_decides() -> None:
    w = Watch()
    w.refuse(B)
    assert w.sent() == [("B", Ping(1))]
    assert w.said() == []
    w.refuse(B)
    assert w.said() == [Suspected(B, "nobody listens at 127.0.0.1:7802")]
    assert w.sent() == []
    w.refuse(B)
    assert w.said() == []


def test_one_refusal_alone_is_decided_by_the_probes() -> None:
    w = Watch()
    w.refuse(B)
    w.run(VERIFY - 1)
    assert w.said() == []
    w.run(1)
    assert w.said() == [Suspected(B, "no sign of life for 0.5 s, asked 5 times")]


def test_a_sign_of_life_between_two_refusals_counts() -> None:
    w = Watch()
    w.refuse(B)
    w.heard(B)
    w.refuse(B)
    assert w.said() == []
    assert w.probed() == ["B", "B"]


def test_a_refusal_during_verification_is_the_first_one() -> None:
    w = Watch()
    w.run(SUSPECT_AFTER)
    w.refuse(B)
    assert w.said() == []
    w.run(STEP)
    w.refuse(B)
    assert w.verdicts() == ["Suspected B"]


def test_a_refusal_during_verification_asks_again_at_once() -> None:
    w = Watch()
    w.wanted(B)
    assert w.probed() == ["B"]
    w.refuse(B)
    assert w.probed() == ["B"]
    assert w.said() == []
    w.refuse(B)
    assert w.verdicts() == ["Suspected B"]
    assert w.sent() == []


def test_a_refusal_of_who_is_not_a_neighbour_counts_too() -> None:
    w = Watch(A, MEMBERS)
    w.refuse(E)
    w.refuse(E)
    assert w.verdicts() == ["Suspected E"]


def test_refusals_at_other_addresses_mean_nothing() -> None:
    w = Watch()
    for member in (A, H):
        w.refuse(member)
        w.refuse(member)
    assert w.sent() == []
    assert w.said() == []


# What others suspect


def test_a_member_that_others_suspect_is_verified_at_once() -> None:
    w = Watch(A, MEMBERS)
    w.wanted(E)
    assert w.sent() == [("E", Ping(1))]
    w.run(VERIFY, alive=[F, G, H])
    assert w.said() == [Suspected(E, "no sign of life for 0.5 s, asked 5 times")]
    w.wanted(E)
    assert w.said() == []


def test_not_twice_within_the_time_of_one_verification() -> None:
    w = Watch()
    w.wanted(B)
    w.wanted(B)
    w.heard(B)
    w.run(VERIFY - 1, alive=[B])
    w.wanted(B)
    assert w.probed() == ["B"]
    w.run(1, alive=[B])
    w.wanted(B)
    assert w.probed() == ["B"]


def test_who_is_not_in_the_view_is_not_verified() -> None:
    w = Watch()
    w.wanted(A)
    w.wanted(C)
    assert w.sent() == []
    assert w.layer.stats()["verifications"] == 0


# Answers


def test_a_probe_is_always_answered() -> None:
    w = Watch(members=())
    w.receive(B, Ping(3))
    assert w.sent() == [("B", Pong(3))]
    assert w.layer.deadlines.next() is None
    w.view([A, B])
    w.receive(C, Ping(4))
    assert w.sent() == [("C", Pong(4))]


def test_one_answer_to_a_datagram() -> None:
    w = Watch()
    w.receive(B, Ping(1), Heartbeat(1), Ping(2), Pong(3))
    assert w.sent() == [("B", Pong(2))]


def test_answers_are_not_answered_and_nobody_talks_to_himself() -> None:
    w = Watch()
    w.receive(B, Pong(1))
    w.receive(A, Ping(1), Heartbeat(1))
    assert w.sent() == []
    assert w.said() == []


def test_beats_from_outside_are_told() -> None:
    w = Watch()
    w.receive(C, Heartbeat(1), Heartbeat(1))
    assert w.said() == [NonMember(C)]
    w.receive(B, Heartbeat(1))
    w.receive(C, Ping(1), Pong(1))
    assert w.said() == []
    w.view([A], counter=2)
    w.receive(B, Heartbeat(1))
    assert w.said() == [NonMember(B)]


def test_outside_a_view_nobody_is_an_outsider() -> None:
    w = Watch(members=())
    w.receive(B, Heartbeat(1))
    assert w.said() == []
    assert w.layer.stats()["members"] == 0


# Sleep


@pytest.mark.parametrize(("late", "is_sleep"), [(HEARTBEAT, False), (HEARTBEAT + 1, True)])
def test_a_tick_more_than_a_beat_late_proves_that_we_slept(late: int, is_sleep: bool) -> None:
    w = Watch()
    w.run(SUSPECT_AFTER - 2 * HEARTBEAT)
    w.wake(late)
    assert w.layer.stats()["sleeps"] == is_sleep
    assert w.layer.stats()["verifications"] == (not is_sleep)


def test_after_a_sleep_everybody_has_the_whole_time_again() -> None:
    w = Watch(A, [A, B, C])
    w.run(HEARTBEAT)
    w.wake(600_000 * MS)
    w.run(SUSPECT_AFTER - 1)
    assert w.probed() == []
    w.run(1 + VERIFY)
    assert w.verdicts() == ["Suspected B", "Suspected C"]


def test_a_sleep_ends_verifications_and_keeps_suspicions() -> None:
    w = Watch(A, [A, B, C])
    w.refuse(C)
    w.refuse(C)
    w.wanted(B)
    assert w.verdicts() == ["Suspected C"]
    w.wake(10_000 * MS)
    assert w.layer.stats()["verifying"] == {}
    w.run(VERIFY)
    assert w.said() == []
    assert w.layer.stats()["suspected"] == {"C": "nobody listens at 127.0.0.1:7803"}


def test_a_late_step_leaves_the_answers_their_time() -> None:
    w = Watch()
    w.wanted(B)
    w.run(3 * STEP)
    w.wake(STEP + STEP // 2)  # the fifth probe, and it is past the end of the five steps
    assert w.now > START + VERIFY
    assert w.layer.stats()["sleeps"] == 0
    assert w.said() == []
    w.run(STEP)
    assert w.verdicts() == ["Suspected B"]


def test_nothing_due_changes_nothing() -> None:
    w = Watch()
    w.layer.handle_timeout(w.now, w.out)
    assert w.sent() == []
    assert w.layer.deadlines.next() == START + HEARTBEAT


# Views


def test_the_departed_are_forgotten_with_their_verification() -> None:
    w = Watch(A, [A, B, C])
    w.run(SUSPECT_AFTER, alive=[C])
    w.refuse(C)
    w.refuse(C)
    assert w.layer.stats()["verifying"] == {"B": 1}
    w.said()
    w.view([A, D], counter=2)
    assert w.layer.stats()["verifying"] == w.layer.stats()["suspected"] == {}
    w.heard(B, C)
    w.run(SUSPECT_AFTER - 1, alive=[D])
    assert w.said() == []
    assert w.layer.stats()["members"] == 1


def test_a_suspicion_outlives_a_view_that_keeps_the_suspect() -> None:
    w = Watch()
    w.run(SUSPECT_AFTER + VERIFY)
    w.said()
    w.view([A, B, C], counter=2)
    w.heard(B)
    w.run(0)
    assert w.said() == [Trusted(B)]


def test_new_neighbours_start_as_heard_now() -> None:
    w = Watch(A, MEMBERS)
    w.run(10_000 * MS, alive=[F, G, H])
    w.sent()
    w.view([A, B, C, D, E], counter=2)  # B is still no neighbour; C, D and E are new ones
    w.run(SUSPECT_AFTER - 1)
    assert w.probed() == []
    w.run(HEARTBEAT)
    assert sorted(set(w.probed())) == ["C", "D", "E"]


def test_a_view_does_not_excuse_the_silence_of_old_neighbours() -> None:
    w = Watch()
    w.run(SUSPECT_AFTER - HEARTBEAT)
    w.view([A, B, C], counter=2)
    w.run(HEARTBEAT)
    assert w.probed() == ["B"]


def test_who_is_in_no_view_watches_nobody() -> None:
    w = Watch(members=())
    w.refuse(B)
    w.wanted(B)
    w.receive(B, Heartbeat(2))
    assert w.layer.deadlines.next() is None
    assert (w.probed(), w.said()) == ([], [])
    w.view([A, B])
    assert w.layer.deadlines.next() == w.now + HEARTBEAT


def test_after_close_there_is_silence() -> None:
    w = Watch()
    w.run(SUSPECT_AFTER)
    w.sent()
    w.layer.group.close("left", [w.layer], w.now, w.out)
    w.view([A, B], counter=2)
    w.receive(B, Ping(1), Heartbeat(1))
    w.refuse(B)
    assert w.layer.deadlines.next() is None
    assert w.sent() == []
    assert w.said() == []


# What people and explorers see


def test_explain_says_who_is_in_doubt_and_until_when() -> None:
    w = Watch(A, [A, B, C])
    assert w.layer.explain(w.now) == []
    w.run(1000 * MS)
    w.wanted(B)
    w.run(120 * MS)
    w.refuse(C)
    w.refuse(C)
    assert w.layer.explain(w.now) == [
        "B suspected: no sign of life for 1.1 s; asked 2 of 5 times, decided in 0.4 s",
        "C suspected: nobody listens at 127.0.0.1:7803; waiting for a view without it",
    ]
    assert w.layer.explain(w.now + VERIFY)[0].endswith("decided in 0.0 s")  # overdue


def test_explain_says_what_becomes_of_who_is_silent() -> None:
    w = Watch()
    w.run(4 * HEARTBEAT - MS)
    assert w.layer.explain(w.now) == []
    w.run(MS)
    assert w.layer.explain(w.now) == [
        f"B is silent for {4 * HEARTBEAT / 1e9:.1f} s: if it stays so, it is asked in "
        f"{(SUSPECT_AFTER - 4 * HEARTBEAT) / 1e9:.1f} s and excluded {VERIFY / 1e9:.1f} s later"
    ]
    w.run(SUSPECT_AFTER - 4 * HEARTBEAT)
    (asked,) = w.layer.explain(w.now)
    assert asked.startswith("B suspected: no sign of life")


def test_stats_name_every_table_and_counter() -> None:
    w = Watch()
    w.run(SUSPECT_AFTER)
    assert w.layer.stats() == {
        "members": 1,
        "watchers": ["B"],
        "watched": ["B"],
        "verifying": {"B": 1},
        "suspected": {},
        "heartbeats_sent": 8,
        "verifications": 1,
        "suspicions": 0,
        "taken_back": 0,
        "sleeps": 0,
    }
    assert w.layer.take_ready(10, w.now, w.out) == []


# In a node


def node(*layers: FailureDetector) -> Node:
    node = Node(A, GroupConfig(group="g", name="A"), layers=layers)
    node.start(START)
    node.install_view(view([A, B]), START)
    return node


def test_any_datagram_of_a_member_is_a_sign_of_life() -> None:
    a = node(FailureDetector(A, CONFIG))
    assert a.detector is not None
    a.transport_hint(B.address, START)
    assert a.detector.stats()["verifying"] == {"B": 1}
    a.receive_datagrams(Codec("other", B, 1000).pack([Watermark(Stream.FIFO, 0)]), START + 1)
    assert a.detector.stats()["verifying"] == {"B": 1}
    a.receive_datagrams(Codec("g", B, 1000).pack([Watermark(Stream.FIFO, 0)]), START + 1)
    assert a.detector.stats()["verifying"] == {}


def test_two_refusals_reach_the_other_layers() -> None:
    a = node(FailureDetector(A, CONFIG))
    a.transport_hint(B.address, START)
    a.transport_hint(B.address, START)
    assert a.detector is not None
    assert a.detector.stats()["suspicions"] == 1
    assert not a.effects.signals


def test_probes_cross_the_wire_and_are_answered() -> None:
    a = node(FailureDetector(A, CONFIG))
    b = Node(B, GroupConfig(group="g", name="B"), layers=[FailureDetector(B, CONFIG)])
    b.start(START)
    a.take_datagrams()
    a.transport_hint(B.address, START)
    ((dest, question),) = a.take_datagrams()
    assert dest == B.address
    b.receive_datagrams([question], START)
    ((dest, answer),) = b.take_datagrams()
    assert dest == A.address
    a.receive_datagrams([answer], START)
    assert a.detector is not None
    assert a.detector.stats()["verifying"] == {}


def test_a_node_without_a_detector_takes_no_hint() -> None:
    a = node()
    assert a.detector is None
    deadline = a.next_timeout()
    a.transport_hint(B.address, START)
    assert a.next_timeout() == deadline
