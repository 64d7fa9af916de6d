"""Why each rule of reliable unicast is there: the same little scenario with it and without it.

The UNICAST3 note and its SYNC note leave these points open or would break on them. Each entry names
the rule that we chose, a scenario that tells whether its rule received, and a machine that differs
in this rule alone (some are those that exploration breaks on purpose). With the rule the rule
must hold, without it must fail: a rule that nothing needs would show here as well as one that is
broken.

Some points of the notes have no counterpart. A slip of the pen (S1: "46 and 47" for 46 and 48) and
a wrong number (Y10); a second repair protocol (S11: there is only the sync); a bound without a
formula (S15: the scenarios assert ours).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ringcast.events import GapSkipped, Undeliverable
from ringcast.explore.ablations import ABLATIONS
from ringcast.model import Conn
from ringcast.protocols.connection import TRANSITIONS, Input, State, Timer
from ringcast.protocols.early import ALL_RUNS_MAX
from ringcast.protocols.repair import Repair
from ringcast.protocols.unicast import ReliableUnicast
from ringcast.protocols.unicast_receiver import UnicastReceiver
from ringcast.protocols.unicast_sender import SYNC_TICKS_MAX, UnicastSender
from ringcast.window.receive import ReceiveWindow
from ringcast.wire.frames import (
    Close,
    Sync,
    SyncAck,
    SyncOk,
    UnicastAck,
    UnicastData,
    UnicastNack,
)
from support.pair import (
    TAU,
    Pair,
    WithoutTail,
    conn,
    expected,
    losing,
    losing_first,
    losing_from,
    losing_seqnos,
    numbered,
)

WITHOUT = ABLATIONS["unicast"]

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringcast.core.effects import Effects
    from ringcast.model import Member
    from ringcast.wire.frames import Frame

    Machine = type[ReliableUnicast]


def machine(**parts: object) -> Machine:
    """A machine that differs in these parts."""
    return type("Different", (ReliableUnicast,), parts)


def drop_window(c: Pair) -> None:
    c.nodes["B"].drop_from(c.nodes["A"].me, c.now)


def resynced(c: Pair, first: int, count: int = 1) -> None:
    """B loses its window and gets a new one when A sends; so often."""
    for n in range(first, first + count):
        drop_window(c)
        c.send("A", "B", [b"%d" % n])
        c.run(4 * TAU)


# S2: an ack tells what the application has taken, contiguously. The highest received acknowledges
# gaps away, and the sender forgets what it is about to be asked for.


def what_is_missing_can_be_sent_again(machine: Machine) -> bool:
    c = Pair(machine=machine)
    for n in range(1, 5):
        c.send("A", "B", [b"%d" % n])
        c.exchange(losing_seqnos(2))
    c.run(0.0005)
    c.run(4 * TAU)
    return c.delivered("B", "A") == expected(4)


class AcksTheHighest(UnicastReceiver):
    def _ask(self, now: int, out: Effects) -> None:
        out.datagram(self.peer, UnicastAck(self.conn, self.window.high, 1 << 16))
        super()._ask(now, out)


# S3: a duplicate is acked again. Otherwise one lost ack is for ever, and so is the resending.


def a_lost_ack_is_made_good(machine: Machine) -> bool:
    c = Pair(machine=machine)
    c.send("A", "B", numbered(3))
    c.run(4 * TAU, losing_first(1, UnicastAck))
    return c.is_acked("A", "B")


# S4: the window is bounded and a full one refuses. While HS grows the tick resends nothing, so
# nothing else would bound what a sender keeps.


def a_sender_keeps_one_window_at_most(machine: Machine) -> bool:
    c = Pair(machine=machine, capacity=8)
    c.stopped.add("B")
    for n in range(100):
        c.send("A", "B", [b"%d" % n])
        c.exchange()
    window = c.sender("A", "B").window
    return window.high - window.low <= 8


class IsNeverFull(UnicastSender):
    def __init__(self, peer: Member, conn: Conn, config: Any, *args: Any) -> None:
        super().__init__(peer, conn, replace(config, capacity=1 << 10), *args)


# S5: a closing sender stays until everything is acked or given up. Gone by the clock alone, it
# takes what was under way with it.


def closing_loses_nothing_silently(machine: Machine) -> bool:
    c = Pair(machine=machine, close_s=1.0)
    c.send("A", "B", numbered(3))
    c.nodes["A"].close_to(c.nodes["B"].me, c.now)
    c.run(3, losing(UnicastData))
    c.run(10)
    is_told = any(isinstance(event, Undeliverable) for event in c.events["A"])
    return is_told or c.delivered("B", "A") == expected(3)


class ClosesByTheClock(UnicastSender):
    def handle_timeout(self, now: int, out: Effects) -> None:
        super().handle_timeout(now, out)
        if self.state is State.CLOSING and not self._timers.is_armed(Timer.IDLE):
            self._step(Input.LINGERED)
            out.datagram(self.peer, Close(self.conn))


# S6: new data take a closing receiver up again. Otherwise it is removed in the midst of use, and
# each time a sync has to make a new one.


def a_connection_in_use_needs_no_sync(machine: Machine) -> bool:
    c = Pair(machine=machine, configs={"B": {"expiry_s": 2.0, "close_s": 2.0}})
    for n in range(1, 6):
        c.send("A", "B", [b"%d" % n])
        c.run(3)
    assert c.delivered("B", "A") == expected(5)
    return c.frames(Sync) == []


class StaysClosing(UnicastReceiver):
    def on_data(self, data: UnicastData, now: int, datagram: int | None = None) -> None:
        state = self.state
        super().on_data(data, now, datagram)
        self.state = state


# S7: only a newer connection counts, not just another one. A late first message of an old stream
# would take the window back to the past.


def a_late_first_message_opens_nothing(machine: Machine) -> bool:
    c = Pair(machine=machine, expiry_s=2.0, close_s=1.0)
    late = c.post("A", "B", [b"old"])
    c.hand_over(late)
    c.run(5)
    c.send("A", "B", [b"new 1"])
    c.run(TAU)
    c.hand_over(late)
    c.send("A", "B", [b"new 2"])
    c.run(4 * TAU)
    got = [payload for _, payload in c.delivered("B", "A")]
    return got == [b"old", b"new 1", b"new 2"]


# S8: an entry is removed in the step that closes it, so that a send meets none or one that works.
# Removed a moment later, it swallows what is sent in between.


def a_send_right_after_the_end_is_not_lost(machine: Machine) -> bool:
    c = Pair(machine=machine, expiry_s=2.0, close_s=1.0)
    c.send("A", "B", [b"1"])
    while not c.frames(Close):
        c.step()
    c.send("A", "B", [b"new"])
    c.run(10)
    is_told = any(isinstance(event, Undeliverable) for event in c.events["A"])
    return is_told or (1, b"new") in c.delivered("B", "A")


class SendsWhenClosed(UnicastSender):
    def _step(self, input: Input) -> None:
        self.state = TRANSITIONS.get((self.state, input), self.state)


class RemovesLater(ReliableUnicast):
    sender = SendsWhenClosed

    def handle_timeout(self, now: int, out: Effects) -> None:
        before = {peer: s for peer, s in self.senders.items() if s.state is not State.CLOSED}
        super().handle_timeout(now, out)
        self.senders.update({p: entry for p, entry in before.items() if p not in self.senders})


# S9: a member is its address and its incarnation. By address alone, a restarted sender's first
# messages are duplicates of what the old one sent.


def a_restarted_sender_is_heard(machine: Machine) -> bool:
    c = Pair(machine=machine)
    c.send("A", "B", numbered(57))
    c.run(TAU)
    c.start("A")  # before anybody at B has noticed
    view = c.next_view("AB")
    c.nodes["A"].install_view(view, c.now)
    c.send("A", "B", [b"new 1", b"new 2"])
    c.run(TAU)
    c.nodes["B"].install_view(view, c.now)
    c.run(0.01)  # it was kept, apart from what came of the other one
    return c.delivered("B", "A") == [*expected(57), (1, b"new 1"), (2, b"new 2")]


class KnowsAddressesOnly(ReliableUnicast):
    def receive(self, source: Member, frames: Sequence[Frame], now: int, out: Effects) -> None:
        by_address = {peer.address: peer for peer in self.receivers}
        super().receive(by_address.get(source.address, source), frames, now, out)


# S10: connection numbers do not wrap. If they do, a sync that failed leaves the sender on a
# connection that its receiver takes for an old one.


def a_failed_sync_is_made_good_after_many(machine: Machine) -> bool:
    c = Pair(machine=machine)
    c.send("A", "B", numbered(3))
    c.run(TAU)
    resynced(c, first=4, count=2)
    c.nodes["B"].sync(c.nodes["A"].me, c.now)
    c.run((SYNC_TICKS_MAX + 3) * TAU, losing(SyncOk))
    c.send("A", "B", [b"6"])
    c.run(5 * TAU)
    return c.delivered("B", "A") == expected(6)


class WrapsAfterThree(UnicastSender):
    def _next_conn(self) -> Conn:
        return Conn(self.conn.epoch, self.conn.id % 3 + 1)


# S12: of a batch only the newest connection counts, and the message that opens goes first. As they
# come, what precedes it finds no window, and where many strangers wait no room either.


def a_batch_is_taken_at_once_in_any_order(machine: Machine) -> bool:
    c = Pair(machine=machine, datagram_bytes=8000)
    frames = [UnicastData(conn(1), first, [b"%d" % first]) for first in (3, 2, 1)]
    for name in "CDEFHIJKG":
        c.start(name)
    c.nodes["B"].install_view(c.next_view("ABCDEFHIJKG"), c.now)
    for name in "CDEFHIJK":  # there is no room for what overtakes
        many = range(2, 2 + ALL_RUNS_MAX // 4, 2)  # no two of them are one run
        c.receives("B", name, *[UnicastData(conn(1), first, [b""]) for first in many])
    c.receives("B", "G", *frames)
    c.take("B")
    return c.delivered("B", "G") == expected(3)


def a_batch_of_two_streams_is_the_newer_one(machine: Machine) -> bool:
    c = Pair(machine=machine)
    new, old = conn(1, stream=2), conn(1)
    c.receives("B", "A", UnicastData(old, 1, [b"old"]), UnicastData(new, 2, [b"2"]))
    c.take("B")
    return c.delivered("B", "A") == []


class TakesBatchesAsTheyCome(ReliableUnicast):
    def _on_batch(self, source: Member, batch: list[UnicastData], now: int, out: Effects) -> None:
        for data in batch:
            self._on_data(source, data, now, out)


# S13: a newer stream replaces an older window. Otherwise one lost Close shuts the peer out.


def a_lost_close_does_not_hinder_the_next_stream(machine: Machine) -> bool:
    c = Pair(machine=machine, expiry_s=2.0, close_s=1.0, configs={"B": {"expiry_s": 100.0}})
    c.send("A", "B", numbered(2))
    c.run(5, losing(Close))
    c.send("A", "B", [b"new"])
    c.run(5 * TAU)
    return c.delivered("B", "A") == [*expected(2), (1, b"new")]


class ClingsToItsWindow(ReliableUnicast):
    def _on_data(self, source: Member, data: UnicastData, now: int, out: Effects) -> None:
        entry = self.receivers.get(source)
        if entry is None or entry.conn.epoch == data.conn.epoch:
            super()._on_data(source, data, now, out)


# S14: the two directions are four entries that live on their own. Were a Close to end both, what
# goes the other way would be lost.


def a_close_ends_one_direction(machine: Machine) -> bool:
    c = Pair(machine=machine)
    c.send("A", "B", [b"1"])
    c.run(TAU)
    c.send("B", "A", [b"1"])
    c.collect()  # lost
    c.receives("B", "A", Close(conn(1)))
    c.run(4 * TAU)
    return c.delivered("A", "B") == expected(1)


class ClosesBoth(ReliableUnicast):
    def _on_close(self, source: Member, close: Close) -> None:
        super()._on_close(source, close)
        self.drop_to(source)


# S16: own resends and duplicates are no use. If they were, two members that have nothing to say
# would keep each other busy for ever.


def resending_keeps_no_sender_open(machine: Machine) -> bool:
    c = Pair(machine=machine, expiry_s=4.0, max_retransmit_s=100.0)
    c.send("A", "B", [b"1"])
    c.run(5, losing(UnicastAck))
    return c.sender("A", "B").state is State.CLOSING


class CountsResendsAsUse(ReliableUnicast):
    def _tick(self, now: int, out: Effects) -> None:
        before = {peer: sender.stream.retransmitted for peer, sender in self.senders.items()}
        super()._tick(now, out)
        for peer, sender in self.senders.items():
            if sender.stream.retransmitted > before[peer]:
                sender._refresh(now)


def duplicates_keep_no_receiver_open(machine: Machine) -> bool:
    c = Pair(machine=machine, expiry_s=4.0, max_retransmit_s=100.0)
    c.send("A", "B", [b"1"])
    c.run(5, losing(UnicastAck))
    return c.receiver("B", "A").state is State.CLOSING


class CountsDuplicatesAsUse(UnicastReceiver):
    def _on_duplicate(self, now: int) -> None:
        super()._on_duplicate(now)
        self._refresh(now)


# S17: an ack waits for half a tick at most. Later, every quiet stream's last message is sent twice.


def a_quiet_stream_is_sent_once(machine: Machine) -> bool:
    c = Pair(machine=machine)
    c.send("A", "B", numbered(3))
    c.run(5 * TAU)
    return c.seqnos("A") == [1, 2, 3]


class AcksLate(UnicastReceiver):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._ack_interval = round(2.5 * TAU * 1e9)


# Y1: a repeated sync request gets the same answer. A new connection for each of them makes the data
# in flight ask again.


def a_repeated_question_costs_no_connection(machine: Machine) -> bool:
    c = Pair(machine=machine)
    c.send("A", "B", numbered(3))
    c.run(TAU)
    drop_window(c)
    c.send("A", "B", [b"4"])
    c.run(6 * TAU, losing_first(2, SyncOk))
    return c.sender("A", "B").conn == conn(2)


# Y2: an answer counts only for the sync request that is outstanding, and never takes the window
# back.


def a_late_answer_changes_nothing(machine: Machine) -> bool:
    c = Pair(machine=machine)
    c.send("A", "B", numbered(3))
    c.run(TAU)
    resynced(c, first=4, count=2)
    late = c.frames(SyncOk)[0]
    c.receives("B", "A", late)
    c.send("A", "B", [b"6"])
    c.run(4 * TAU)
    return c.sender("A", "B").conn == conn(3)


def an_answer_takes_no_window_back(machine: Machine) -> bool:
    c = Pair(machine=machine)
    c.send("A", "B", numbered(3))
    c.exchange()
    c.nodes["B"].sync(c.nodes["A"].me, c.now)
    c.run(TAU, losing_from("B", UnicastAck))
    c.run(4 * TAU)
    return c.delivered("B", "A") == expected(3)


class GoesBackToLow(ReliableUnicast):
    def _on_sync_ok(self, source: Member, ok: SyncOk, now: int, out: Effects) -> None:
        entry = self.receivers.pop(source, None)
        if entry is not None:
            entry.remove()
        super()._on_sync_ok(source, ok, now, out)


# Y3: how far a stream had come outlives its window. Otherwise what was taken but not acked comes
# twice.


def nothing_comes_twice_after_a_drop(machine: Machine) -> bool:
    c = Pair(machine=machine)
    c.send("A", "B", numbered(3))
    c.run(TAU / 2, losing_from("B", UnicastAck))
    drop_window(c)
    c.send("A", "B", [b"4"])
    c.run(4 * TAU)
    return c.delivered("B", "A") == expected(4)


# Y4: the connection number alone decides which acks count. Waiting for the SyncAck, a sender that
# lost it is deaf.


def a_lost_sync_ack_makes_nobody_deaf(machine: Machine) -> bool:
    c = Pair(machine=machine)
    c.send("A", "B", numbered(3))
    c.run(TAU)
    drop_window(c)
    c.send("A", "B", [b"4"])
    c.run(20 * TAU, losing(SyncAck))
    return c.is_acked("A", "B")


class DeafAfterSync(UnicastSender):
    is_deaf = False

    def on_sync(self, sync: Sync, now: int, out: Effects) -> None:
        super().on_sync(sync, now, out)
        self.is_deaf = True

    def on_ack(self, ack: UnicastAck, now: int, out: Effects) -> None:
        if not self.is_deaf:
            super().on_ack(ack, now, out)


class WaitsForTheSyncAck(ReliableUnicast):
    sender = DeafAfterSync

    def _on_said(
        self, source: Member, said: UnicastAck | UnicastNack | SyncAck, now: int, out: Effects
    ) -> None:
        super()._on_said(source, said, now, out)
        entry = self.senders[source]
        assert isinstance(entry, DeafAfterSync)
        entry.is_deaf &= not isinstance(said, SyncAck)


# Y5: what the sender has purged is skipped, and told. To wait for it would be for ever.


def what_is_gone_is_told_and_skipped(machine: Machine) -> bool:
    c = Pair(machine=machine)
    packets = c.post("A", "B", numbered(4))
    c.receives("A", "B", UnicastAck(conn(1), 3, 1 << 20))  # a lie
    c.hand_over([packets[0], packets[3]])
    c.nodes["B"].sync(c.nodes["A"].me, c.now)
    c.run(4 * TAU)
    told = [(e.first, e.last) for e in c.events["B"] if isinstance(e, GapSkipped)]
    return told == [(2, 3)] and c.delivered("B", "A") == [(1, b"1"), (4, b"4")] and c.is_quiet()


class WaitsForEver(UnicastReceiver):
    def _skip(self, ok: SyncOk, now: int) -> None:
        pass


class SkipsSilently(ReliableUnicast):
    def _on_sync_ok(self, source: Member, ok: SyncOk, now: int, out: Effects) -> None:
        super()._on_sync_ok(source, ok, now, out)
        for event in [event for event in out.events if isinstance(event, GapSkipped)]:
            out.events.remove(event)


# Y6: what is buffered is kept over a sync. Cleared, all of it has to be sent again.


def only_what_is_missing_is_sent_again(machine: Machine) -> bool:
    c = Pair(machine=machine)
    packets = c.post("A", "B", numbered(5))
    c.hand_over([packets[0], *packets[2:]])
    c.nodes["B"].sync(c.nodes["A"].me, c.now)
    c.run(TAU, losing(UnicastNack))  # until the answer is there
    c.run(4 * TAU)
    assert c.delivered("B", "A") == expected(5)
    return {3, 4}.isdisjoint(c.seqnos("A")[5:])


class ClearsItsWindow(UnicastReceiver):
    def resume(self, ok: SyncOk, now: int, allowance: int, out: Effects) -> None:
        window = self.window
        delivered = window.delivered
        self.window = ReceiveWindow(window.capacity, offset=delivered, max_bytes=window.max_bytes)
        self.repair = Repair(delivered, self.repair.tau)
        self.stream.window, self.stream.repair = self.window, self.repair
        super().resume(ok, now, allowance, out)


# Y7: a sync request that nobody answers is given up. Otherwise it is asked for ever.


def a_dead_sender_is_not_asked_for_ever(machine: Machine) -> bool:
    c = Pair(machine=machine)
    c.send("A", "B", numbered(3))
    c.run(TAU)
    drop_window(c)
    c.send("A", "B", [b"4"])
    c.exchange()
    c.crash("A")
    c.run((SYNC_TICKS_MAX + 2) * TAU)
    return c.is_quiet()


class AsksForEver(ReliableUnicast):
    def _tick(self, now: int, out: Effects) -> None:
        for sync_request in self.sync_requests.values():
            sync_request.asked = 0
        super()._tick(now, out)


# Y8: unicast goes on between members of different views. By the view alone, one side of an
# asymmetric split shuts the other out.


def a_split_view_does_not_stop_unicast(machine: Machine) -> bool:
    c = Pair(machine=machine)
    c.send("A", "B", [b"1"])
    c.run(TAU)
    c.nodes["B"].install_view(c.next_view("B"), c.now)
    c.send("A", "B", [b"2"])
    c.run(4 * TAU)
    return c.delivered("B", "A") == expected(2)


class KnowsMembersOnly(ReliableUnicast):
    def receive(self, source: Member, frames: Sequence[Frame], now: int, out: Effects) -> None:
        if self.group.view is not None and source in self.group.view:
            super().receive(source, frames, now, out)


# Y9: one answer per tick. Otherwise whoever asks often makes the sender talk and change its
# connection as often.


def a_storm_of_questions_is_damped(machine: Machine) -> bool:
    c = Pair(machine=machine)
    c.send("A", "B", [b"1"])
    c.run(TAU)
    for nonce in range(1, 101):
        c.receives("A", "B", Sync(conn(1), nonce))
        c.run(TAU / 50)
    return len(c.frames(SyncOk)) <= 3


class AnswersAtOnce(UnicastSender):
    def on_sync(self, sync: Sync, now: int, out: Effects) -> None:
        self._is_answer_fresh = False
        super().on_sync(sync, now, out)


# What the notes do say, and what it is for.


def an_ack_of_an_earlier_connection_purges_nothing(machine: Machine) -> bool:
    c = Pair(machine=machine)
    c.send("A", "B", numbered(3))
    c.run(TAU)
    resynced(c, first=4)
    c.send("A", "B", [b"5"])
    c.collect()  # lost
    c.receives("A", "B", UnicastAck(conn(1), 5, 1 << 20))
    c.run(4 * TAU)
    return c.delivered("B", "A") == expected(5)


def a_close_of_an_earlier_connection_closes_nothing(machine: Machine) -> bool:
    c = Pair(machine=machine)
    c.send("A", "B", numbered(3))
    c.run(TAU)
    resynced(c, first=4)
    c.receives("B", "A", Close(conn(1)))
    return c.has_receiver("B", "A")


def only_the_first_message_opens(machine: Machine) -> bool:
    c = Pair(machine=machine)
    first, second = c.post("A", "B", numbered(2))
    c.hand_over([second, first])
    c.run(4 * TAU)
    return c.delivered("B", "A") == expected(2)


def a_lost_last_message_is_sent_again(machine: Machine) -> bool:
    c = Pair(machine=machine)
    c.send("A", "B", [b"1"])
    c.exchange()
    c.send("A", "B", [b"2"])
    c.collect()  # lost
    c.run(4 * TAU)
    return c.delivered("B", "A") == expected(2)


def what_an_outage_took_is_sent_again(machine: Machine) -> bool:
    c = Pair(machine=machine)
    c.send("A", "B", [b"1"])
    c.run(3.0, losing(UnicastData))
    c.run(4 * TAU)
    return c.delivered("B", "A") == expected(1)


class LeavesItToTheTail(UnicastSender):
    def tick(self, out: Effects) -> None:
        self.marked = None
        super().tick(out)


def a_lost_end_is_repaired_before_the_tick(machine: Machine) -> bool:
    c = Pair(machine=machine)
    c.send("A", "B", [b"1"])
    c.run(TAU / 2, losing_seqnos(1))
    return c.delivered("B", "A") == expected(1)


# What overtakes the first message waits for it. Thrown away, it would have to be sent again.


def an_overtaken_stream_is_sent_once(machine: Machine) -> bool:
    c = Pair(machine=machine)
    first, second = c.post("A", "B", numbered(2))
    c.hand_over([second])
    c.hand_over([first])
    c.take("B")
    return c.delivered("B", "A") == expected(2)


class ThrowsAwayWhatOvertakes(ReliableUnicast):
    def _keep(self, peer: Member, data: UnicastData) -> None:
        pass


def what_is_given_up_is_told(machine: Machine) -> bool:
    c = Pair(machine=machine, max_retransmit_s=2.0)
    c.send("A", "B", [b"1"])
    c.crash("B")
    c.run(3)
    return any(isinstance(event, Undeliverable) for event in c.events["A"])


RULES: list[tuple[str, Callable[[Machine], bool], Machine]] = [
    ("S2", what_is_missing_can_be_sent_again, machine(receiver=AcksTheHighest)),
    ("S3", a_lost_ack_is_made_good, WITHOUT["reack"].parts["protocol"]),
    ("S4", a_sender_keeps_one_window_at_most, machine(sender=IsNeverFull)),
    ("S5", closing_loses_nothing_silently, machine(sender=ClosesByTheClock)),
    ("S6", a_connection_in_use_needs_no_sync, machine(receiver=StaysClosing)),
    ("S7", a_late_first_message_opens_nothing, WITHOUT["order"].parts["protocol"]),
    ("S8", a_send_right_after_the_end_is_not_lost, RemovesLater),
    ("S9", a_restarted_sender_is_heard, KnowsAddressesOnly),
    ("S10", a_failed_sync_is_made_good_after_many, machine(sender=WrapsAfterThree)),
    ("S12-first", a_batch_is_taken_at_once_in_any_order, TakesBatchesAsTheyCome),
    ("S12-newest", a_batch_of_two_streams_is_the_newer_one, TakesBatchesAsTheyCome),
    ("S13", a_lost_close_does_not_hinder_the_next_stream, ClingsToItsWindow),
    ("S14", a_close_ends_one_direction, ClosesBoth),
    ("S16-sender", resending_keeps_no_sender_open, CountsResendsAsUse),
    ("S16-receiver", duplicates_keep_no_receiver_open, machine(receiver=CountsDuplicatesAsUse)),
    ("S17", a_quiet_stream_is_sent_once, machine(receiver=AcksLate)),
    ("Y1", a_repeated_question_costs_no_connection, WITHOUT["nonce"].parts["protocol"]),
    ("Y2-nonce", a_late_answer_changes_nothing, WITHOUT["outstanding"].parts["protocol"]),
    ("Y2-back", an_answer_takes_no_window_back, GoesBackToLow),
    ("Y3", nothing_comes_twice_after_a_drop, WITHOUT["tombstone"].parts["protocol"]),
    ("Y4", a_lost_sync_ack_makes_nobody_deaf, WaitsForTheSyncAck),
    ("Y5-endless", what_is_gone_is_told_and_skipped, machine(receiver=WaitsForEver)),
    ("Y5-silent", what_is_gone_is_told_and_skipped, SkipsSilently),
    ("Y6", only_what_is_missing_is_sent_again, machine(receiver=ClearsItsWindow)),
    ("Y7", a_dead_sender_is_not_asked_for_ever, AsksForEver),
    ("Y8", a_split_view_does_not_stop_unicast, KnowsMembersOnly),
    ("Y9", a_storm_of_questions_is_damped, machine(sender=AnswersAtOnce)),
    (
        "ack-conn",
        an_ack_of_an_earlier_connection_purges_nothing,
        WITHOUT["ack-conn"].parts["protocol"],
    ),
    (
        "close-conn",
        a_close_of_an_earlier_connection_closes_nothing,
        WITHOUT["close-conn"].parts["protocol"],
    ),
    ("first", only_the_first_message_opens, WITHOUT["first"].parts["protocol"]),
    ("resend", a_lost_last_message_is_sent_again, WITHOUT["resend"].parts["protocol"]),
    ("tick", what_an_outage_took_is_sent_again, machine(sender=LeavesItToTheTail)),
    ("tail", a_lost_end_is_repaired_before_the_tick, WithoutTail),
    ("early", an_overtaken_stream_is_sent_once, ThrowsAwayWhatOvertakes),
    ("report", what_is_given_up_is_told, WITHOUT["report"].parts["protocol"]),
]


@pytest.mark.parametrize(
    ("holds", "without"), [pytest.param(*rule[1:], id=rule[0]) for rule in RULES]
)
def test_the_rule_is_kept_and_needed(holds: Callable[[Machine], bool], without: Machine) -> None:
    assert holds(ReliableUnicast)
    assert not holds(without)
