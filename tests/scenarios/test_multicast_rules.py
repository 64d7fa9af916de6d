"""Why each rule of reliable multicast is there: the same little scenario with it and without it.

The NAKACK4 note leaves these points open or states them one off. Each entry names the rule that
we chose, a scenario that tells whether its rule received, and a machine that differs in this
rule alone. With the rule the rule must hold, without it must fail: a rule that nothing needs
would show here as well as one that is broken.

Four points of the note have no counterpart. A lock received while an adder blocks (N11): nothing
here locks or blocks. Two protocols under one superclass (N21) and the retaining receivers of the
older one (N22): there is one machine, and another purge strategy is not built yet. A bundler that
must not block (N24): the core only lists what to send."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ringcast.config import MulticastConfig
from ringcast.core.view_change import Begin, Freeze, cut_between
from ringcast.model import Origin, Stream
from ringcast.protocols.multicast_receiver import MulticastReceiver
from ringcast.protocols.multicast_sender import MulticastSender, Timer
from ringcast.protocols.repair import Repair
from ringcast.protocols.views.streams import EARLY_MAX, ViewStreams
from ringcast.window.acks import AckTable
from ringcast.window.fragmenter import Fragmenter
from ringcast.window.receive import ReceiveWindow
from ringcast.window.send import SendWindow
from ringcast.wire.changes import InView
from ringcast.wire.frames import Ack, Data, Nack, Watermark
from support.cluster import Packet, cluster

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterable, Sequence

    from ringcast.core.effects import Effects
    from ringcast.model import Member, View
    from ringcast.wire.frames import Frame
    from support.cluster import Cluster

    Machine = type[ViewStreams]


def numbered(count: int, first: int = 1) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


def expected(count: int, first: int = 1) -> list[tuple[int, bytes]]:
    return list(enumerate(numbered(count, first), first))


def own(c: Cluster, name: str) -> Origin:
    return Origin(c.nodes[name].me, Stream.FIFO)


def group(n: int, machine: Machine, **config: Any) -> Cluster:
    return cluster(n, multicast=machine, checked=machine is ViewStreams, **config)


# A machine that differs in one part


def machine(**parts: object) -> Machine:
    return type("Different", (ViewStreams,), parts)


def sending_through(window: type[SendWindow]) -> Machine:
    class DifferentOutbox(MulticastSender):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            bounds = {"max_bytes": 1 << 20, "datagram_bytes": 1000}
            self.stream.window = self.window = window(self.window.capacity, **bounds)
            self.stream.fragments = self.fragments = Fragmenter(self.window, 1000)

    return machine(sending=DifferentOutbox)


def counting_acks_in(table: type[AckTable]) -> Machine:
    class DifferentOutbox(MulticastSender):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.acks = table([member for member, _, _ in self.acks.entries()], 0)

    return machine(sending=DifferentOutbox)


def receiving_through(window: type[ReceiveWindow]) -> Machine:
    class DifferentInbox(MulticastReceiver):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            offset = self.window.low
            self.window = window(self.window.capacity, offset=offset, max_bytes=1 << 20)
            self.stream.window = self.window

    return machine(receiver=DifferentInbox)


def repairing_by(repair: type[Repair]) -> Machine:
    class DifferentInbox(MulticastReceiver):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.stream.repair = self.repair = repair(self.window.low, self.repair.tau)

    return machine(receiver=DifferentInbox)


# N1a: a sender blocks when high − low ≥ C before the seqno is taken. Counting the new seqno in
# loses a slot, and with C = 1 nothing is ever sent.


def one_slot_is_used(machine: Machine) -> bool:
    c = group(2, machine, capacity=1)
    c.nodes["A"].send([b"1"], c.now)
    c.run(1)
    return c.delivered("B", "A") == expected(1)


class CountsTheNewSeqno(SendWindow):
    def append_run(self, payloads: Sequence[bytes]) -> int:
        room = self.capacity - 1 - (self.high - self.low)
        return super().append_run(payloads[:room])


# N1b: a receiver drops M ≤ low and M > low + C. Accepting M = low delivers it twice; refusing
# M = low + C wastes a slot that is free.


def a_duplicate_is_dropped(machine: Machine) -> bool:
    c = group(2, machine)
    c.nodes["A"].send([b"1"], c.now)
    packets = c.collect()
    c.hand_over(packets)
    c.exchange()
    c.hand_over(packets)
    c.run(1)
    return c.delivered("B", "A") == expected(1)


class AcceptsLow(ReceiveWindow):
    def has_slot(self, first: int, last: int) -> bool:
        return last >= self.low

    def add_run(self, first: int, payloads: Sequence[bytes]) -> int:
        if first == self.low == self.high:
            self.low = self.delivered = self.received = self.high = first - 1
        return super().add_run(first, payloads)


class RefusesTheLastSlot(ReceiveWindow):
    def add_run(self, first: int, payloads: Sequence[bytes]) -> int:
        return super().add_run(first, payloads[: max(0, self.low + self.capacity - first)])


# N2: M, delivered by all, is purged with all below it. Keeping M, no window ever drains.


def the_window_drains(machine: Machine) -> bool:
    c = group(2, machine)
    c.nodes["A"].send(numbered(3), c.now)
    c.run(2)
    return c.window_is_drained("A")


class KeepsTheLast(SendWindow):
    def purge(self, through: int) -> int:
        return super().purge(through - 1)


# N3: duplicates and Watermark are acked again. Acking only what is new, one lost ack is for ever.


def a_lost_ack_is_made_good(machine: Machine) -> bool:
    c = group(2, machine)
    c.run(0.1)
    c.nodes["A"].send(numbered(3), c.now)
    c.run(0.021, drop=lambda _source, _dest, frame: isinstance(frame, Ack))
    c.run(5)
    return c.window_is_drained("A")


class AcksOnlyWhatIsNew(MulticastReceiver):
    def _on_duplicate(self, now: int) -> None:
        pass

    def on_watermark(self, seqno: int, now: int, allowance: int, out: Effects) -> None:
        self.repair.saw_watermark(self.window, seqno, now)
        self.stream.arm_repair()


# N4: a sender tells its highest seqno while some member's ack is behind. Without, nobody misses
# the last message. (The note's model also needed "ack behind" rather than "low < high": members
# enter our table at low, so these are the same here; the ack table's tests hold that.)


def a_lost_last_message_is_repaired(machine: Machine) -> bool:
    c = group(2, machine)
    c.nodes["A"].send(numbered(3), c.now)
    c.exchange(drop=lambda _source, _dest, frame: isinstance(frame, Data))
    c.run(5)
    return c.delivered("B", "A") == expected(3)


class TellsNothing(MulticastSender):
    def handle_timeout(self, now: int, out: Effects) -> None:
        self._timers.take(Timer.WATERMARK_PROBE, now)


# N6: a new member counts from its view on, behind what was sent. Leaving it out of the minimum
# until it speaks purges what it needs; entering it at 0 makes the minimum fall below low for
# nothing.


def the_sender_keeps_what_a_joiner_needs(machine: Machine) -> bool:
    c = group(2, machine)
    c.join("C")
    c.nodes["A"].send(numbered(3), c.now)
    c.exchange(drop=lambda _source, dest, frame: dest == "C" and isinstance(frame, Data))
    c.run(5)
    return c.delivered("C", "A") == expected(3)


class ForgetsTheSilent(AckTable):
    def set_members(self, members: Iterable[Member], start: int) -> None:
        members = tuple(members)
        known = [member for member in members if member in self._held]
        super().set_members(known or members, start)


def a_joiner_does_not_pull_the_minimum_below_low(machine: Machine) -> bool:
    c = group(2, machine)
    c.nodes["A"].send(numbered(3), c.now)
    c.run(1)
    c.join("C")
    return c.sending("A").acks.min_delivered == c.sending("A").window.low == 3


class StartsAtZero(AckTable):
    def set_members(self, members: Iterable[Member], start: int) -> None:
        super().set_members(members, 0)


# N7: acks of whoever is not in the view are ignored. A late one of a departed member would bring
# its entry back, and nothing would ever raise it again.


def a_departed_member_does_not_come_back(machine: Machine) -> bool:
    c = group(3, machine)
    departed = c.nodes["C"].me
    c.crash("C")
    c.install("AB")
    ack = Ack(Stream.FIFO, 0, 0, 1 << 20)
    c.hand_over([Packet(departed, "A", [ack], None, c.nodes["A"].codec.tag)])
    c.nodes["A"].send(numbered(3), c.now)
    c.run(5)
    return c.window_is_drained("A")


class CreatesEntries(AckTable):
    def update(self, member: Member, received: int, delivered: int) -> bool:
        self._held.setdefault(member, received)
        self._delivered.setdefault(member, delivered)
        return super().update(member, received, delivered)


class BelievesEverybody(ViewStreams):
    sending = counting_acks_in(CreatesEntries).sending

    def _is_peer(self, member: Member) -> bool:
        return True


# N8: a sender's own delivery counts too. Otherwise it purges what its own application has not
# taken yet.


def ones_own_application_gets_everything(machine: Machine) -> bool:
    c = group(2, machine)
    c.stopped.add("A")
    c.nodes["A"].send(numbered(3), c.now)
    c.run(1)
    c.stopped.clear()
    c.run(1)
    return c.delivered("A", "A") == expected(3)


class PurgesPastItself(SendWindow):
    def purge(self, through: int) -> int:
        self.delivered = max(self.delivered, min(through, self.high))
        return super().purge(through)


class CountsOnlyOthers(MulticastSender):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        bounds = {"max_bytes": 1 << 20, "datagram_bytes": 1000}
        self.stream.window = self.window = PurgesPastItself(self.window.capacity, **bounds)
        self.stream.fragments = self.fragments = Fragmenter(self.window, 1000)

    def begin(self, view: View, *args: Any) -> None:
        super().begin(view, *args)
        self.acks = AckTable([who for who in view if who != self._me], self.window.low)


# N9: what was said in another view does not count. Else it is delivered in a view in which it was
# not sent, and past what others of that view may ever get.


def what_is_said_in_another_view_is_not_delivered(machine: Machine) -> bool:
    c = group(3, machine)
    view = c.next_view("BC")
    for name in "BC":
        c.nodes[name].install_view(view, c.now)  # A does not know yet
    c.nodes["B"].send([b"1"], c.now)
    c.hand_over([packet._replace(dest="A") for packet in c.collect()])
    c.take("A")
    return c.delivered("A", "B") == []


class HeedsNoTag(ViewStreams):
    def receive(self, source: Member, frames: Sequence[Frame], now: int, out: Effects) -> None:
        rest = [frame for frame in frames if not isinstance(frame, InView)]
        super().receive(source, [InView(self._tag), *rest], now, out)


# N10: only what is admitted takes a seqno. A seqno spent on a refused message is a hole that
# every receiver waits for.


def a_refused_send_leaves_no_hole(machine: Machine) -> bool:
    c = group(2, machine, capacity=2)
    accepted = c.nodes["A"].send(numbered(3), c.now)
    c.run(1)
    c.nodes["A"].send(numbered(3)[accepted:], c.now)
    c.run(5)
    return c.delivered("B", "A") == expected(3)


class SpendsSeqnosOnRefusals(MulticastSender):
    spent = 0

    def send(self, payloads: Sequence[bytes], now: int, out: Effects) -> int:
        before = len(out.frames)
        accepted = super().send(payloads, now, out)
        for _, frame in out.frames[before:]:
            assert isinstance(frame, Data)
            frame.first += self.spent
        self.spent += len(payloads) - accepted
        return accepted


# N13: a member is its address and its incarnation. By address alone, the seqnos of a restarted
# process continue the stream of the dead one.


def a_restart_does_not_continue_the_old_stream(machine: Machine) -> bool:
    c = group(2, machine)
    c.nodes["B"].send(numbered(5), c.now)
    c.run(1)
    restarted = c.start("B")  # before anybody at A has noticed
    frame = Data(Stream.FIFO, 1, [b"other %d" % n for n in range(1, 8)])
    c.hand_over([Packet(restarted.me, "A", [frame], None, c.nodes["A"].codec.tag)])
    c.take("A")
    return c.delivered("A", "B") == expected(5)


class KnowsAddressesOnly(ViewStreams):
    def receive(self, source: Member, frames: Sequence[Frame], now: int, out: Effects) -> None:
        by_address = {origin.sender.address: origin.sender for origin in self.receivers}
        super().receive(by_address.get(source.address, source), frames, now, out)


# N14: ask after one gap-tick or three later datagrams. At first sight, plain reordering is asked
# for; by a slow timer alone, a loss costs the whole interval τ (0.5 s here).


def reordering_asks_for_nothing(machine: Machine) -> bool:
    c = group(2, machine)
    c.nodes["A"].send([b"1"], c.now)
    late = c.collect()
    c.nodes["A"].send([b"2"], c.now)
    c.exchange()
    c.run(0.0005)
    c.hand_over(late)
    c.run(1)
    assert c.delivered("B", "A") == expected(2)
    return c.receiver("B", "A").stream.nack_sent == 0


class AsksAtFirstSight(Repair):
    @property
    def gap_tick(self) -> int:
        return 0


def a_loss_costs_milliseconds(machine: Machine) -> bool:
    c = group(2, machine)
    c.nodes["A"].send([b"1"], c.now)
    c.collect()  # lost
    for payload in numbered(3, first=2):
        c.nodes["A"].send([payload], c.now)
        c.exchange()
    c.run(0.01)
    return c.delivered("B", "A") == expected(4)


class AsksEveryInterval(Repair):
    @property
    def gap_tick(self) -> int:
        return self.tau

    def saw_data(self, *args: Any) -> None:
        super().saw_data(*args)
        self._marks.clear()


# N15: at most one window per member and probe is sent again. Uncapped, a small request is an
# amplifier.


def a_greedy_request_is_capped(machine: Machine) -> bool:
    c = group(2, machine, capacity=8)
    c.nodes["A"].send(numbered(8), c.now)
    c.collect()
    c.hand_over([Packet(c.nodes["B"].me, "A", [Nack(Stream.FIFO, [range(1, 1000)])])] * 5)
    return c.sending("A").stream.retransmitted <= 8


class AnswersEverything(MulticastSender):
    def on_nack(self, source: Member, nack: Nack, out: Effects) -> None:
        self._quota.clear()
        super().on_nack(source, nack, out)


# N16: ack every N ≤ C/4 messages, and a timer flushes the rest. Acking every N > C alone, the
# sender fills its window and both wait: only a probe that is not lost would help.


def a_full_window_is_acked(machine: Machine) -> bool:
    c = group(2, machine, capacity=8)
    c.nodes["A"].send(numbered(8), c.now)
    c.run(5, drop=lambda _source, _dest, frame: isinstance(frame, Watermark))
    return c.window_is_drained("A")


class AcksEveryTenthOnly(MulticastReceiver):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._ack_every = 10
        self._ack_datagrams = 10

    def _ack_later(self, now: int) -> None:
        pass


# N17: data of a view that is about to begin waits in a bounded queue; repair brings the rest.


def early_data_is_bounded(machine: Machine) -> bool:
    c = group(2, machine)
    a, b = c.nodes.values()
    view = c.next_view("AB")
    a.multicast.handle_signal(Freeze(view.id, view.members), c.now, a.effects)
    b.install_view(view, c.now)
    for payload in numbered(60):
        b.send([payload], c.now)
        c.hand_over(c.collect())
    return len(a.multicast.early) <= EARLY_MAX


class KeepsAllEarlyData(ViewStreams):
    def _keep(self, kept: deque[tuple[Member, Data]], source: Member, data: Data) -> None:
        kept.append((source, data))


# N18: a view never moves a window of who comes along. Moved down it delivers twice, moved up it
# skips.


def a_view_moves_nothing(machine: Machine, offset: int) -> bool:
    c = group(3, machine)
    c.stopped.add("C")  # so that A keeps everything
    c.nodes["A"].send(numbered(5), c.now)
    c.exchange()
    view = c.next_view("ABC")
    for node in c.nodes.values():
        node.install_view(view, c.now, {own(c, "A"): offset})
    c.nodes["A"].send(numbered(5, first=6), c.now)
    c.run(2)
    return c.delivered("B", "A") == expected(10)


def a_lower_start_moves_nothing(machine: Machine) -> bool:
    return a_view_moves_nothing(machine, offset=2)


def a_higher_start_moves_nothing(machine: Machine) -> bool:
    return a_view_moves_nothing(machine, offset=7)


class OpensAllAnew(ViewStreams):
    def _begin(self, begin: Begin, now: int, out: Effects) -> None:
        cut = cut_between(None, begin.view, self.me, begin.cut.starts)
        super()._begin(Begin(begin.view, cut), now, out)


# N19: windows of different sizes are legal: what found no slot is asked for when there is one.
# Taking it as seen, nobody ever asks.


def a_smaller_window_gets_everything(machine: Machine) -> bool:
    c = group(2, machine, capacity=16, configs={"B": MulticastConfig(capacity=2)})
    c.nodes["A"].send(numbered(16), c.now)
    c.run(10)
    return c.delivered("B", "A") == expected(16)


class TakesRefusedAsSeen(Repair):
    def saw_data(self, window: ReceiveWindow, first: int, last: int, *args: Any) -> None:
        super().saw_data(window, first, last, *args)
        self.known = max(self.known, last)


# N20: one ack per delay, however many duplicates come. One each is an implosion when repairs go
# to everybody.


def duplicates_do_not_make_acks_implode(machine: Machine) -> bool:
    c = group(2, machine)
    c.nodes["A"].send([b"1"], c.now)
    packets = c.collect()
    c.hand_over(packets)
    c.run(1)
    receiver = c.receiver("B", "A")
    before = receiver.acks_sent
    for _ in range(50):
        c.hand_over(packets)
    c.run(0.5)
    return receiver.acks_sent == before + 1


class AcksEachDuplicate(MulticastReceiver):
    def on_data(
        self, data: Data, now: int, allowance: int, out: Effects, datagram: int | None = None
    ) -> None:
        duplicates = self.window.dropped_low
        super().on_data(data, now, allowance, out, datagram)
        if self.window.dropped_low > duplicates:
            self._ack(allowance, out)


RULES: list[tuple[str, Callable[[Machine], bool], Machine]] = [
    ("N1a", one_slot_is_used, sending_through(CountsTheNewSeqno)),
    ("N1b-low", a_duplicate_is_dropped, receiving_through(AcceptsLow)),
    ("N1b-high", one_slot_is_used, receiving_through(RefusesTheLastSlot)),
    ("N2", the_window_drains, sending_through(KeepsTheLast)),
    ("N3", a_lost_ack_is_made_good, machine(receiver=AcksOnlyWhatIsNew)),
    ("N4", a_lost_last_message_is_repaired, machine(sending=TellsNothing)),
    ("N6-absent", the_sender_keeps_what_a_joiner_needs, counting_acks_in(ForgetsTheSilent)),
    ("N6-zero", a_joiner_does_not_pull_the_minimum_below_low, counting_acks_in(StartsAtZero)),
    ("N7", a_departed_member_does_not_come_back, BelievesEverybody),
    ("N8", ones_own_application_gets_everything, machine(sending=CountsOnlyOthers)),
    ("N9", what_is_said_in_another_view_is_not_delivered, HeedsNoTag),
    ("N10", a_refused_send_leaves_no_hole, machine(sending=SpendsSeqnosOnRefusals)),
    ("N13", a_restart_does_not_continue_the_old_stream, KnowsAddressesOnly),
    ("N14-eager", reordering_asks_for_nothing, repairing_by(AsksAtFirstSight)),
    ("N14-lazy", a_loss_costs_milliseconds, repairing_by(AsksEveryInterval)),
    ("N15", a_greedy_request_is_capped, machine(sending=AnswersEverything)),
    ("N16", a_full_window_is_acked, machine(receiver=AcksEveryTenthOnly)),
    ("N17", early_data_is_bounded, KeepsAllEarlyData),
    ("N18-down", a_lower_start_moves_nothing, OpensAllAnew),
    ("N18-up", a_higher_start_moves_nothing, OpensAllAnew),
    ("N19", a_smaller_window_gets_everything, repairing_by(TakesRefusedAsSeen)),
    ("N20", duplicates_do_not_make_acks_implode, machine(receiver=AcksEachDuplicate)),
]


@pytest.mark.parametrize(
    ("holds", "without"), [pytest.param(*rule[1:], id=rule[0]) for rule in RULES]
)
def test_the_rule_is_kept_and_needed(holds: Callable[[Machine], bool], without: Machine) -> None:
    assert holds(ViewStreams)
    assert not holds(without)


@pytest.mark.parametrize("as_a_message", [False, True])
def test_n12_a_view_must_not_wait_for_the_window_it_would_free(as_a_message: bool) -> None:
    c = cluster(3, capacity=2)
    c.crash("C")
    c.nodes["A"].send(numbered(2), c.now)
    c.run(2)  # full, limited by the dead C
    if as_a_message:
        was_sent = c.nodes["A"].send([b"the view without C"], c.now) == 1
    else:
        c.install("AB")
        was_sent = True
    c.run(10)
    assert was_sent is c.window_is_drained("A") is not as_a_message
