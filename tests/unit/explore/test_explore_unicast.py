"""The exploration finds nothing wrong with unicast, and everything wrong with broken ones."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import pytest

from ringcast.events import Delivered, GapSkipped, Undeliverable
from ringcast.explore.ablations import ABLATIONS
from ringcast.explore.explorer import STALL
from ringcast.explore.scenarios import SCENARIOS
from ringcast.explore.system import Fault
from ringcast.explore.unicast import LATE_EFFECT, B, UnicastSystem
from ringcast.model import Run
from ringcast.protocols.stream import Timer as ReceiverTimer
from ringcast.protocols.unicast import ReliableUnicast
from ringcast.protocols.unicast_sender import Timer as SenderTimer
from ringcast.protocols.unicast_sender import UnicastSender

if TYPE_CHECKING:
    from ringcast.core.effects import Effects
    from ringcast.events import Event
    from ringcast.explore.explorer import Report
    from ringcast.explore.system import Scenario
    from ringcast.model import Member
    from ringcast.wire.frames import Close, UnicastAck

PAIR, SYNC, ABLATED = SCENARIOS["unicast"], SCENARIOS["sync"], ABLATIONS["unicast"]
LOSS, CRASH, STALE, DROP = PAIR["loss"], PAIR["crash"], PAIR["stale"], SYNC["drop"]
ALL = [*PAIR.values(), *SYNC.values()]
SHORTER = {
    "closing": {Fault.CLOSE: 1, Fault.IDLE: 1, Fault.LOSS: 1},
    "expiry": {Fault.IDLE: 2},
    "drop": {Fault.DROP: 1},
    "operator": {Fault.SYNC: 1},
}
LONG = {"stale", "give up", "drop two ways", "restart"}
SMALL = [
    replace(
        scenario,
        faults=SHORTER.get(scenario.name, scenario.faults),
        messages=1 if scenario in SYNC.values() else scenario.messages,
        capacity=1,
    )
    for scenario in ALL
    if scenario.name not in LONG
]
WITH_CAPACITY_TWO = [
    *(
        replace(scenario, capacity=2)
        for scenario in ALL
        if scenario.capacity == 1 and scenario.patient and not scenario.lasting
    ),
    replace(DROP, capacity=2, faults={Fault.DROP: 1}),
]

TINY = replace(LOSS, name="tiny", faults={}, messages=1)


def assert_nothing_is_wrong(report: Report) -> None:
    assert report.complete
    assert report.violations == []
    assert report.states > 300


@pytest.mark.parametrize("scenario", SMALL, ids=lambda scenario: scenario.name)
def test_nothing_goes_wrong_in_small_scenarios(scenario: Scenario) -> None:
    assert_nothing_is_wrong(scenario.explore())


@pytest.mark.proof
@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.name)
def test_nothing_goes_wrong(scenario: Scenario) -> None:
    assert_nothing_is_wrong(scenario.explore())


@pytest.mark.proof
@pytest.mark.parametrize("scenario", WITH_CAPACITY_TWO, ids=lambda scenario: scenario.name)
def test_nothing_goes_wrong_with_capacity_two(scenario: Scenario) -> None:
    assert_nothing_is_wrong(scenario.explore())


# What each rule is for.


@cache
def report_without(rule: str) -> Report:
    parts, scenario, _ = ABLATED[rule]
    report: Report = scenario.explore(**parts, stop_at_violation=True)
    return report


@pytest.mark.parametrize("rule", ABLATED)
def test_every_rule_is_missed(rule: str) -> None:
    assert ABLATED[rule].finding in [found.kind for found in report_without(rule).violations]


def witness_of(report: Report, finding: str) -> list[str]:
    return next(found.witness for found in report.violations if finding in found.kind)


def test_without_the_resend_a_lost_message_is_never_missed() -> None:
    witness = witness_of(report_without("resend"), STALL)
    assert witness[-1].startswith("LOST: A→B Data(2.1)")


def test_without_the_nonce_a_duplicate_sync_makes_another_connection() -> None:
    witness = witness_of(report_without("nonce"), "Y4")
    assert witness[-1].startswith("arrives: B→A Sync(2.1) nonce 1")
    assert "SyncOk(2.3) nonce 1" in witness[-1]


def test_without_the_tombstone_a_dropped_window_delivers_again() -> None:
    witness = witness_of(report_without("tombstone"), "Y3")
    assert sum("gets A#2:1" in step for step in witness) == 2
    assert any("DROPS its window for A" in step for step in witness)


@pytest.mark.proof
def test_without_the_connection_in_acks_messages_are_lost() -> None:
    closing = replace(STALE, faults={Fault.IDLE: 2})
    report = closing.explore(ABLATED["ack-conn"].parts["protocol"])
    witness = witness_of(report, "(S2, Y1)")
    assert witness[-1] == "arrives: B→A Ack(2.1) 1"
    assert any("Data(3.1) 1..1" in step for step in witness)


def test_without_the_report_the_dead_take_messages_with_them() -> None:
    witness = witness_of(report_without("report"), "(S8)")
    assert witness[-1].startswith("A: timer GIVE_UP towards B fires")


# Planted defects: one for each thing that the exploration looks at.


class Telling(ReliableUnicast):
    """Tells the application something else than what came."""

    def tell(self, event: Delivered) -> list[Event]:
        raise NotImplementedError

    def take_ready(self, limit: int, now: int, out: Effects) -> list[Event]:
        return [
            told
            for event in super().take_ready(limit, now, out)
            for told in (self.tell(event) if isinstance(event, Delivered) else [event])
        ]


class Garbling(Telling):
    def tell(self, event: Delivered) -> list[Event]:
        run = Run(event.run.stream, event.run.first, [b"?" for _ in event.run.payloads])
        return [Delivered(event.sender, run, event.view_id, event.epoch)]


class Inventing(Telling):
    def tell(self, event: Delivered) -> list[Event]:
        return [event, Delivered(event.sender, event.run, event.view_id, event.epoch + 1)]


class Skipping(Telling):
    def tell(self, event: Delivered) -> list[Event]:
        return [GapSkipped(event.sender, event.epoch, event.run.first, event.run.last), event]


class ExaggeratingSender(UnicastSender):
    def give_up(self, reason: str, out: Effects) -> None:
        super().give_up(reason, out)
        last = out.events[-1]
        if isinstance(last, Undeliverable):
            out.events[-1] = replace(last, last=last.last + 1)


class Exaggerating(ReliableUnicast):
    sender = ExaggeratingSender


class GreedySender(UnicastSender):
    def on_ack(self, ack: UnicastAck, now: int, out: Effects) -> None:
        self.window.purge(self.window.high, forced=True)
        super().on_ack(ack, now, out)


class Greedy(ReliableUnicast):
    sender = GreedySender


class Fragile(ReliableUnicast):
    def check_invariants(self) -> None:
        assert not self.receivers or self.stale is None


class Trusting(ReliableUnicast):
    """A late Close does nothing to an open connection, but takes the tombstone with it."""

    def _on_close(self, source: Member, close: Close) -> None:
        super()._on_close(source, close)
        self.tombstones.pop(source, None)


@pytest.mark.parametrize(
    ("unicast", "scenario", "finding"),
    [
        (Garbling, TINY, "with another content (S1)"),
        (Inventing, TINY, "that nobody sent (S1)"),
        (Skipping, TINY, "a receiver skipped messages"),
        (Exaggerating, CRASH, "something else than what was sent is reported (S8)"),
        (Greedy, LOSS, "a sender purged what the receiver has not delivered (S2, Y1)"),
        (Fragile, TINY, "invariant is broken: assert not self.receivers"),
        (Trusting, replace(STALE, faults={Fault.IDLE: 2}), "delivered twice (S1, Y3)"),
    ],
)
def test_a_planted_defect_is_found(
    unicast: type[ReliableUnicast], scenario: Scenario, finding: str
) -> None:
    report = scenario.explore(unicast, stop_at_violation=True)
    kinds = [found.kind for found in report.violations]
    assert any(finding in kind for kind in kinds), kinds


def test_what_was_left_out_as_late_is_tried_on_every_node() -> None:
    """An ack of the first stream, and an end that has gone on to the second."""
    for unicast, effects in ((ReliableUnicast, 0), (ABLATED["ack-conn"].parts["protocol"], 1)):
        system = UnicastSystem(TINY, unicast)
        a, b = system.initial().nodes
        first = system.send(a, b"0#1")
        taken = system.take(system.receive(b, first.datagrams[0]).after)
        acked = system.fire(taken.after, ("unicast", "from", system.member(0)), ReceiverTimer.ACK)
        assert [system.datagrams[number].told for number in acked.datagrams] == ["B→A Ack(2.1) 1"]
        given_up = system.fire(
            first.after, ("unicast", "to", system.member(B)), SenderTimer.GIVE_UP
        )
        system.send(given_up.after, b"0#2")
        assert [found.kind for found in system.afterthoughts()] == [LATE_EFFECT] * effects
