"""Every rule holds on the clean run and finds what is planted, with the rows that show it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_builder import FACTS, Script, clean, founded

from ringcast.rules.table import MULTICAST, audit
from ringcast.trace.rows import (
    BLOCK,
    CRASH,
    DROP_HIGH,
    PAUSE,
    RESUME,
    SEND,
    SEND_UNBLOCK,
    STOP,
    TX,
    VIEW,
    WIN,
    XMIT_MISMATCH,
    Facts,
    Row,
    Trace,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from ringcast.rules.findings import Verdict

IDS = [rule.id for rule in MULTICAST if not rule.id.startswith("V")]
"""Those about views have tests of their own."""

Plant = tuple[Trace, set[str], list[Row]]
"""A trace, the rules it breaks, and the rows that show the first of them."""


def verdicts(trace: Trace) -> dict[str, Verdict]:
    return {verdict.id: verdict for verdict in judged(trace)}


def judged(trace: Trace) -> list[Verdict]:
    return [verdict for verdict in audit(trace) if verdict.id in IDS]


def without_order(trace: Trace) -> Trace:
    """As members record for themselves: no order and no clock over the run."""
    return Trace([row._replace(run_idx=-1) for row in trace.rows], trace.facts)


def test_ids_are_those_of_the_document() -> None:
    everywhere = "G1 G2 G3 G5 G8"
    multicast = "N1 N3 N4 N5 N6 N7 N8 N10 N11"
    liveness = "N-L1 N-L2 N-L3 N-L5"
    assert " ".join(IDS) == f"{everywhere} {multicast} {liveness}"


@pytest.mark.parametrize("id", IDS)
def test_clean_run_holds_with_true_premises(id: str) -> None:
    verdict = verdicts(clean().trace())[id]
    assert (verdict.status, verdict.violations) == ("held", [])
    assert verdict.premises > 0


def test_the_worst_wait_is_a_share_of_its_bound() -> None:
    found = verdicts(clean().trace())
    # 3..4 sent at 110 reach d at 1110: two are missing there, so two requests: 4τ + 5δ.
    assert found["N-L1"].worst == 1_000 / 4_500
    assert found["N-L2"].worst == 1_090 / (4_500 + 50 + 1_000 + 100)


def test_an_empty_trace_is_vacuous() -> None:
    assert {verdict.status for verdict in judged(Trace([], Facts()))} == {"vacuous"}


# Planted violations: each function returns the trace, the ids that break, the witness of the first.


def never_sent() -> Plant:
    run = clean()
    sent = next(row for row in reversed(run.rows) if row.event == SEND)
    row = run.deliver("b", "a", 5, 5)
    return run.trace(), {"G1"}, [sent, row]


def sent_later() -> Plant:
    run = founded()
    row = run.deliver("b", "a", 1, 1)
    run.send("a", 1, 1, low=0)
    return run.trace(), {"G1"}, [row]


def other_bytes() -> Plant:
    run = clean()
    original = next(row for row in run.rows if row.event == BLOCK)
    row = run(BLOCK, "d", peer="a", stream=0, kind="delivered", block=0, block_hash=0xDEAD)
    return run.trace(), {"G1"}, [original, row]


def twice() -> Plant:
    run = clean()
    first = next(row for row in reversed(run.rows) if row.event == "deliver" and row.node == "b")
    row = run.deliver("b", "a", 4, 4)
    return run.trace(), {"G2"}, [first, row]


def twice_and_then_on() -> Plant:
    """The repeat is one fault: what comes after it is in order, also for a segment that begins
    with the repeat, and where a run overlaps in part."""
    run = founded()
    for first in (1, 3, 5):
        run.send("a", first, first + 1, low=first - 1)
    run.deliver("b", "a", 1, 2)
    first = run.deliver("b", "a", 3, 4)
    row = run.deliver("b", "a", 1, 2)
    run.deliver("b", "a", 4, 6)
    return run.trace(), {"G2"}, [first, row]


def twice_in_the_middle() -> Plant:
    run = founded()
    run.send("a", 1, 2, low=0)
    first = run.deliver("b", "a", 1, 1)
    run.deliver("b", "a", 3, 3)
    row = run.deliver("b", "a", 1, 2)
    return run.trace(), {"G2", "G1", "N1"}, [first, row]


def speaks_after_its_crash() -> Plant:
    run = clean()
    crash = next(row for row in run.rows if row.event == CRASH)
    row = run(TX, "c", stream=0, kind="data", seqno=1)
    return run.trace(), {"G3"}, [crash, row]


def window_overfull() -> Plant:
    run = clean()
    row = run(WIN, "a", kind="send", stream=0, low=1, hd=4, hr=4, cap=2)
    return run.trace(), {"G5", "N-L5"}, [row]


def too_many_bytes() -> Plant:
    run = clean()
    row = run(WIN, "a", kind="send", stream=0, low=4, hd=4, hr=4, cap=2, size=11, limit=10)
    return run.trace(), {"G5"}, [row]


def repairs_for_ever() -> Plant:
    run = clean()
    ending = run.rows[-1]
    run.now = ending.mono_ns + 1
    nack = run(TX, "b", peer="a", stream=0, kind="nack", seqno=4)
    again = run(TX, "b", peer="a", stream=0, kind="data", seqno=1, again=1)
    return run.trace(), {"G8"}, [ending, nack, again]


def skips_one() -> Plant:
    run = founded()
    run.send("a", 1, 2, low=0)
    row = run.deliver("b", "a", 2, 2)
    return run.trace(), {"N1"}, [row]


def own_stream_from_two() -> Plant:
    run = founded()
    run.send("a", 1, 2, low=0)
    row = run.deliver("a", "a", 2, 2)
    return run.trace(), {"N1"}, [row]


def two_change_places() -> Plant:
    run = founded()
    run.send("a", 1, 2, low=0)
    row = run.deliver("a", "a", 2, 2)
    run.deliver("a", "a", 1, 1)
    return run.trace(), {"N1"}, [row]


def before_its_window() -> Plant:
    run = Script()
    run.view("a", 1, "ab")
    run.view("b", 1, "ab")
    run.send("a", 1, 2, low=0)
    run.deliver("a", "a", 1, 2)
    run.open("b", "a", 1)
    row = run.deliver("b", "a", 1, 2)
    return run.trace(), {"N1"}, [row]


def backwards() -> Plant:
    run = founded()
    run.send("a", 1, 2, low=0)
    row = run.deliver("a", "a", 2, 1)
    return run.trace(), {"N1"}, [row]


def seqno_skipped() -> Plant:
    run = clean()
    row = run(SEND, "a", stream=0, seqno=6, seqno2=6, low=4, hr=4, cap=2)
    return run.trace(), {"N3"}, [row]


def blocked_send_took_a_seqno() -> Plant:
    run = founded()
    run.send("a", 1, 2, low=0)
    row = run.block("a", low=1, hr=3)
    return run.trace(), {"N3"}, [row]


def sent_into_a_full_window() -> Plant:
    run = founded()
    run.send("a", 1, 2, low=0)
    row = run.send("a", 3, 3, low=0)
    return run.trace(), {"N3"}, [row]


def held_back_with_room() -> Plant:
    run = founded()
    run.send("a", 1, 1, low=0)
    row = run.block("a", low=0, hr=1)
    return run.trace(), {"N3"}, [row]


def held_back_for_bytes_that_fit() -> Plant:
    run = founded()
    run.send("a", 1, 1, low=0)
    row = run.block("a", low=0, hr=1, detail="bytes", size=10, used=90, limit=100)
    return run.trace(), {"N3"}, [row]


def receiver_beyond_its_window() -> Plant:
    run = clean()
    row = run(WIN, "b", peer="a", kind="receive", stream=0, low=4, hd=3, hr=4, cap=2)
    return run.trace(), {"N4"}, [row]


def dropped_for_room() -> Plant:
    run = clean()
    row = run(DROP_HIGH, "b", peer="a", stream=0, seqno=1)
    return run.trace(), {"N4", "N-L5"}, [row]


def purged_too_early() -> Plant:
    run = founded()
    view = next(row for row in run.rows if row.event == VIEW and row.node == "a")
    run.send("a", 1, 2, low=0)
    run.deliver("a", "a", 1, 2)
    run.deliver("c", "a", 1, 2)
    half = run.deliver("b", "a", 1, 1)
    row = run.purge("a", 2, hd=2)
    run.deliver("b", "a", 2, 2)
    return run.trace(), {"N5"}, [view, half, row]


def purged_past_oneself() -> Plant:
    run = founded()
    run.send("a", 1, 1, low=0)
    for node in "abc":
        run.deliver(node, "a", 1, 1)
    row = run.purge("a", 1, hd=0)
    return run.trace(), {"N5"}, [row]


def purge_goes_back() -> Plant:
    run = clean()
    earlier = next(row for row in reversed(run.rows) if row.event == "purge")
    row = run.purge("a", 3, hd=4)
    return run.trace(), {"N5"}, [earlier, row]


def ack_of_what_was_not_taken() -> Plant:
    run = founded()
    run.send("a", 1, 2, low=0)
    run.deliver("b", "a", 1, 1)
    row = run.ack("b", "a", received=2, hd=2)
    return run.trace(), {"N6"}, [row]


def ack_before_anything() -> Plant:
    run = Script()
    run.view("b", 1, "ab")
    row = run.ack("b", "a", received=1, hd=1)
    return run.trace(), {"N6"}, [row]


def ack_goes_back() -> Plant:
    run = clean()
    earlier = next(row for row in reversed(run.rows) if row.kind == "ack" and row.node == "b")
    row = run.ack("b", "a", received=4, hd=3)
    return run.trace(), {"N6"}, [earlier, row]


def held_below_delivered() -> Plant:
    run = founded()
    run.send("a", 1, 2, low=0)
    run.deliver("b", "a", 1, 2)
    row = run.ack("b", "a", received=1, hd=2)
    return run.trace(), {"N6"}, [row]


def dead_member_kept_in_the_ack_map() -> Plant:
    run = clean()
    view = next(row for row in reversed(run.rows) if row.event == VIEW and row.node == "a")
    row = run.ackers("a", "abcd")
    return run.trace(), {"N7"}, [view, row]


def delivers_the_departed() -> Plant:
    run = founded()
    run.send("c", 1, 1, low=0)
    run.install("a", 2, "ab")
    late = run.shown.copy()
    shown = run.show("a")
    run.shown = late
    row = run.deliver("a", "c", 1, 1)
    return run.trace(), {"N8"}, [shown, row]


def delivers_ahead_of_its_view() -> Plant:
    run = founded()
    run.send("c", 1, 1, low=0)
    row = run("deliver", "a", peer="c", stream=0, seqno=1, view=2, view_creator="a#1")
    return run.trace(), {"N8"}, [run.shown["a"], row]


def asks_the_departed() -> Plant:
    run = clean()
    view = next(row for row in reversed(run.rows) if row.event == VIEW and row.node == "b")
    row = run(TX, "b", peer="c", stream=0, kind="nack", seqno=2)
    return run.trace(), {"N8"}, [view, row]


def opened_again_too_low() -> Plant:
    run = clean()
    run.send("d", 1, 2, low=0)
    for node in "abd":
        run.deliver(node, "d", 1, 2)
    row = run.open("a", "d", 1)
    return run.trace(), {"N1"}, [row]


def repeats_other_bytes() -> Plant:
    run = clean()
    row = run(XMIT_MISMATCH, "a", peer="b", stream=0, seqno=3)
    return run.trace(), {"N10"}, [row]


def not_a_prefix() -> Plant:
    run = founded()
    run.send("c", 1, 2, low=0)
    row = run.deliver("a", "c", 2, 2)
    crash = run(CRASH, "c")
    return run.trace(), {"N11", "N1"}, [crash, row]


def more_than_the_dead_sent() -> Plant:
    run = founded()
    sent = run.send("c", 1, 1, low=0)
    crash = run(CRASH, "c")
    row = run.deliver("a", "c", 1, 2)
    return run.trace(), {"N11", "G1"}, [sent, crash, row]


def last_message_never_arrives() -> Plant:
    run = clean()
    run.now = 20_010
    sent = run.send("a", 5, 5, low=4)
    run.deliver("a", "a", 5, 5)
    run.deliver("b", "a", 5, 5)
    last = next(row for row in reversed(run.rows) if row.event == "deliver" and row.node == "d")
    return run.trace(), {"N-L1", "N-L2"}, [sent, last]


def delivered_late() -> Plant:
    run = clean()
    run.now = 20_010
    sent = run.send("a", 5, 5, low=4)
    run.deliver("a", "a", 5, 5)
    run.deliver("b", "a", 5, 5)
    run.now += 3_501
    row = run.deliver("d", "a", 5, 5)
    run.purge("a", 5, hd=5)
    return run.trace(), {"N-L1"}, [sent, row]


def window_never_drains() -> Plant:
    run = clean()
    view = next(row for row in reversed(run.rows) if row.event == VIEW and row.node == "a")
    purge = next(row for row in reversed(run.rows) if row.event == "purge")
    run.now = 20_010
    sent = run.send("a", 5, 5, low=4)
    for node in "abd":
        run.deliver(node, "a", 5, 5)
    return run.trace(), {"N-L2"}, [view, sent, purge]


def _blocked_by_bytes() -> tuple[Script, Row]:
    run = founded()
    run.send("a", 1, 2, low=0)
    for node in "abc":
        run.deliver(node, "a", 1, 2)
    return run, run.block("a", low=0, hr=2)


def never_unblocked() -> Plant:
    run, block = _blocked_by_bytes()
    run.now = 50
    row = run.purge("a", 1, hd=2)
    return run.trace(), {"N-L3"}, [block, row]


def unblocked_late() -> Plant:
    run, block = _blocked_by_bytes()
    run.now = 50
    row = run.purge("a", 2, hd=2)
    run.now = 51
    run(SEND_UNBLOCK, "a", stream=0)
    return run.trace(), {"N-L3"}, [block, row]


def overload_overfills() -> Plant:
    run, _ = _blocked_by_bytes()
    run.purge("a", 2, hd=2)
    run(SEND_UNBLOCK, "a", stream=0)
    row = run(WIN, "b", peer="a", kind="receive", stream=0, low=0, hd=0, hr=3, cap=2)
    return run.trace(), {"N-L5", "N4", "G5"}, [row]


PLANTS: list[tuple[str, Callable[[], Plant]]] = [
    ("G1", never_sent),
    ("G1", sent_later),
    ("G1", other_bytes),
    ("G2", twice),
    ("G2", twice_in_the_middle),
    ("G2", twice_and_then_on),
    ("G3", speaks_after_its_crash),
    ("G5", window_overfull),
    ("G5", too_many_bytes),
    ("G8", repairs_for_ever),
    ("N1", skips_one),
    ("N1", own_stream_from_two),
    ("N1", two_change_places),
    ("N1", before_its_window),
    ("N1", backwards),
    ("N1", opened_again_too_low),
    ("N3", seqno_skipped),
    ("N3", blocked_send_took_a_seqno),
    ("N3", sent_into_a_full_window),
    ("N3", held_back_with_room),
    ("N3", held_back_for_bytes_that_fit),
    ("N4", receiver_beyond_its_window),
    ("N4", dropped_for_room),
    ("N5", purged_too_early),
    ("N5", purged_past_oneself),
    ("N5", purge_goes_back),
    ("N6", ack_of_what_was_not_taken),
    ("N6", ack_before_anything),
    ("N6", ack_goes_back),
    ("N6", held_below_delivered),
    ("N7", dead_member_kept_in_the_ack_map),
    ("N8", delivers_the_departed),
    ("N8", delivers_ahead_of_its_view),
    ("N8", asks_the_departed),
    ("N10", repeats_other_bytes),
    ("N11", not_a_prefix),
    ("N11", more_than_the_dead_sent),
    ("N-L1", last_message_never_arrives),
    ("N-L1", delivered_late),
    ("N-L2", window_never_drains),
    ("N-L3", never_unblocked),
    ("N-L3", unblocked_late),
    ("N-L5", overload_overfills),
]


def test_every_predicate_has_a_plant() -> None:
    assert {id for id, _ in PLANTS} == set(IDS)


@pytest.mark.parametrize(("id", "plant"), PLANTS, ids=[plant.__name__ for _, plant in PLANTS])
def test_planted_violation_is_found(id: str, plant: Callable[[], Plant]) -> None:
    trace, _, witness = plant()
    verdict = verdicts(trace)[id]
    assert verdict.status == "violated"
    assert witness in [list(violation.rows) for violation in verdict.violations]


@pytest.mark.parametrize(("id", "plant"), PLANTS, ids=[plant.__name__ for _, plant in PLANTS])
def test_planted_violation_breaks_nothing_else(id: str, plant: Callable[[], Plant]) -> None:
    trace, broken, _ = plant()
    if not broken & {"G8", "N-L1", "N-L2"}:
        trace.facts = replace(FACTS, gst_ns=None)  # some plants are stubs of runs: nothing is owed
    found = {verdict.id for verdict in judged(trace) if verdict.status == "violated"}
    assert id in broken
    assert found == broken


def test_two_that_change_places_are_one_fault() -> None:
    trace, _, _ = two_change_places()
    assert verdicts(trace)["N1"].violation_count == 1


# What is not owed, and what cannot be known.


def test_blocks_that_end_elsewhere_are_not_compared() -> None:
    run = clean()
    block = {"peer": "a", "stream": 0, "block": 1, "seqno": 1025}
    run(BLOCK, "a", **block, kind="sent", seqno2=1030, block_hash=1)
    before = verdicts(run.trace())["G1"]
    run(BLOCK, "b", **block, kind="delivered", seqno2=1027, block_hash=2)
    assert verdicts(run.trace())["G1"] == before
    run(BLOCK, "d", **block, kind="delivered", seqno2=1030, block_hash=2)
    assert verdicts(run.trace())["G1"].violation_count == 1


def test_without_run_order_nothing_clean_is_violated() -> None:
    found = verdicts(without_order(clean().trace()))
    undecidable = {id for id, verdict in found.items() if verdict.status == "undecidable"}
    assert undecidable == {"N5", "N-L1", "N-L2"}
    assert {found[id].status for id in set(IDS) - undecidable} == {"held"}


def test_without_run_order_a_purge_of_what_was_never_delivered_is_violated() -> None:
    run = founded()
    run.send("a", 1, 1, low=0)
    run.deliver("a", "a", 1, 1)
    run.deliver("b", "a", 1, 1)
    run.purge("a", 1, hd=1)
    assert verdicts(without_order(run.trace()))["N5"].status == "violated"
    run(CRASH, "c")  # now the tail of what c delivered is unknown
    assert verdicts(without_order(run.trace()))["N5"].status == "undecidable"


def test_without_run_order_the_tail_of_an_excluded_sender_is_unknown() -> None:
    run = founded()
    run.deliver("a", "c", 1, 1)
    assert verdicts(without_order(run.trace()))["G1"].status == "violated"
    run.view("b", 2, "ab")
    verdict = verdicts(without_order(run.trace()))["G1"]
    assert verdict.undecidable == "what c#1 sent: its tail is lost"


def test_without_run_order_the_tail_of_a_dead_sender_is_unknown() -> None:
    trace, _, _ = more_than_the_dead_sent()
    assert verdicts(without_order(trace))["N11"].status == "undecidable"


def test_a_view_must_be_known_before_peers_are_judged() -> None:
    run = Script()
    run.send("a", 1, 1, low=0)
    run.deliver("a", "a", 1, 1)
    run.ackers("a", "a")
    run.purge("a", 1, hd=1)
    found = verdicts(run.trace())
    assert {found[id].status for id in ("N5", "N7")} == {"undecidable"}


def test_nothing_is_delivered_before_a_view_is_told() -> None:
    run = Script()
    run.send("a", 1, 1, low=0)
    run.deliver("a", "a", 1, 1)
    found = verdicts(run.trace())["N8"]
    assert [each.text for each in found.violations] == [
        "a#1 delivers a:1..1 before it was told of any view"
    ]


def test_a_smaller_receiver_may_drop() -> None:
    trace, _, _ = dropped_for_room()
    trace.facts = replace(FACTS, capacity={"a#1": 4, "b#1": 2})
    assert verdicts(trace)["N4"].status == "held"
    trace.facts = replace(FACTS, capacity={})
    assert verdicts(trace)["N4"].status == "undecidable"


def test_a_send_held_back_for_bytes() -> None:
    run = founded()
    run.send("a", 1, 1, low=0)
    run.block("a", low=0, hr=1, detail="bytes", size=11, used=90, limit=100)
    run.block("a", low=0, hr=1, detail="rest")
    assert verdicts(run.trace())["N3"].status == "held"
    run.block("a", low=0, hr=1, detail="bytes", used=-1, limit=-1)
    assert verdicts(run.trace())["N3"].status == "undecidable"


def _never_arrives_at_d() -> Script:
    run = clean()
    run.now = 20_010
    run.send("a", 5, 5, low=4)
    run.deliver("a", "a", 5, 5)
    run.deliver("b", "a", 5, 5)
    return run


def waits(run: Script, facts: Facts = FACTS) -> tuple[str, str]:
    found = verdicts(run.trace(facts))
    return found["N-L1"].status, found["N-L2"].status


def test_nothing_is_owed_to_a_stopped_application() -> None:
    # N-L1 is still judged for the others; the window drains only when everybody takes.
    facts = replace(FACTS, stopped_members=frozenset({"d#1"}))
    assert waits(_never_arrives_at_d()) == ("violated", "violated")
    assert waits(_never_arrives_at_d(), facts) == ("held", "vacuous")


@pytest.mark.parametrize("event", [CRASH, STOP, PAUSE])
def test_nothing_is_owed_to_the_dead_or_the_paused(event: str) -> None:
    run = _never_arrives_at_d()
    run(event, "d")
    assert waits(run) == ("held", "vacuous")


def test_the_resumed_are_owed_again() -> None:
    run = _never_arrives_at_d()
    run(PAUSE, "d")
    run(RESUME, "d")
    assert waits(run) == ("violated", "violated")


def test_nothing_is_owed_to_who_excluded_the_sender() -> None:
    run = _never_arrives_at_d()
    run.view("d", 4, "d")
    assert waits(run) == ("held", "vacuous")


def test_nothing_is_owed_by_a_dead_sender() -> None:
    run = _never_arrives_at_d()
    run(CRASH, "a")
    assert waits(run) == ("vacuous", "vacuous")


def test_nothing_is_late_while_there_is_time() -> None:
    deadline_ns = 20_010 + FACTS.delivery_bound_ns(1)
    assert waits(_never_arrives_at_d(), replace(FACTS, end_ns=deadline_ns))[0] == "held"
    assert waits(_never_arrives_at_d(), replace(FACTS, end_ns=deadline_ns + 1))[0] == "violated"


def test_a_joiner_is_owed_what_was_sent_since_it_is_in_the_view() -> None:
    run = clean()
    run.now = 20_010
    run.view("a", 4, "abde")
    run.view("e", 4, "abde")
    run.open("e", "a", 4)
    assert waits(run)[0] == "held"
    row = run.send("a", 5, 5, low=4)
    for node in "abd":
        run.deliver(node, "a", 5, 5)
    violation = verdicts(run.trace())["N-L1"].violations[0]
    assert violation.rows == (row,)
    run.now += 1_000_000
    run.open("e", "a", 5)  # it has 5 from elsewhere
    assert waits(run)[0] == "held"


def test_quiet_is_not_judged_before_the_drain_bound_is_over() -> None:
    run = clean()
    run.now = 20_010
    run.send("a", 5, 5, low=4)
    run.now += FACTS.drain_bound_ns(2)
    run(TX, "b", peer="a", stream=0, kind="nack", seqno=5)
    assert verdicts(run.trace())["G8"].status == "held"
    facts = replace(FACTS, end_ns=run.now)
    assert verdicts(run.trace(facts))["G8"].status == "undecidable"
    run.now += 1
    run(TX, "b", peer="a", stream=0, kind="nack", seqno=5)
    assert verdicts(run.trace())["G8"].status == "violated"


def test_room_goes_to_the_rest_of_a_large_message_first() -> None:
    run, _ = _blocked_by_bytes()
    run.now = 50
    run.purge("a", 1, hd=2)
    run.send("a", 3, 3, low=1)
    run.now = 60
    run.purge("a", 1, hd=2)
    assert verdicts(run.trace())["N-L3"].status == "held"
    run.purge("a", 3, hd=3)  # empty now: it must go on
    assert verdicts(run.trace())["N-L3"].status == "violated"


def test_a_slot_without_bytes_is_no_room() -> None:
    run, _ = _blocked_by_bytes()
    run("purge", "a", stream=0, seqno=1, hd=2, used=95, limit=100)
    assert verdicts(run.trace())["N-L3"].status == "vacuous"


def test_a_flood_of_violations_is_counted_and_cut() -> None:
    run = founded()
    for _ in range(150):
        run(WIN, "a", kind="send", stream=0, low=0, hd=0, hr=3, cap=2)
    verdict = verdicts(run.trace())["G5"]
    assert (len(verdict.violations), verdict.violation_count) == (100, 150)


# On the edge: just allowed.


def test_repeating_an_ack_or_a_purge_is_allowed() -> None:
    run = clean()
    run.ack("b", "a", 4, 4)
    run.purge("a", 4, hd=4)
    found = verdicts(run.trace())
    assert (found["N6"].status, found["N5"].status) == ("held", "held")


def test_an_empty_window_admits_any_size() -> None:
    run = founded()
    run.block("a", low=0, hr=0, detail="bytes", size=11, used=0, limit=10)
    assert verdicts(run.trace())["N3"].status == "violated"


def test_no_bytes_at_all_is_a_bound_too() -> None:
    run = founded()
    run.send("a", 1, 1, low=0)
    run.block("a", low=0, hr=1, detail="bytes", size=1, used=0, limit=0)
    assert verdicts(run.trace())["N3"].status == "held"
    run(WIN, "a", kind="send", stream=0, low=0, hd=0, hr=1, cap=2, size=1, limit=0)
    assert verdicts(run.trace())["G5"].status == "violated"


def test_a_wait_may_last_as_long_as_its_bound() -> None:
    run = _never_arrives_at_d()
    run.now = 20_010 + FACTS.delivery_bound_ns(1)
    run.deliver("d", "a", 5, 5)
    run.now = 20_010 + FACTS.drain_bound_ns(1)
    run.purge("a", 5, hd=5)
    assert waits(run) == ("held", "held")
    found = verdicts(run.trace())
    assert (found["N-L1"].worst, found["N-L2"].worst) == (1.0, 1.0)


def test_what_just_fits_must_go_on() -> None:
    run, block = _blocked_by_bytes()
    row = run("purge", "a", stream=0, seqno=1, hd=2, used=100 - block.size, limit=100)
    assert verdicts(run.trace())["N-L3"].violations[0].rows == (block, row)


def test_an_empty_window_lets_anything_go_on() -> None:
    run, block = _blocked_by_bytes()
    row = run("purge", "a", stream=0, seqno=2, hd=2, used=0, limit=block.size - 1)
    assert verdicts(run.trace())["N-L3"].violations[0].rows == (block, row)


def test_alone_a_sender_needs_no_run_order() -> None:
    run = Script()
    run.view("a", 1, "a")
    run.send("a", 1, 1, low=0)
    run.deliver("a", "a", 1, 1)
    run.purge("a", 1, hd=1)
    assert verdicts(without_order(run.trace()))["N5"].status == "held"


# Rows of members that record for themselves.

TRACES = {"clean": clean().trace(), **{plant.__name__: plant()[0] for _, plant in PLANTS}}


@given(st.sampled_from(sorted(TRACES)), st.booleans(), st.randoms())
def test_members_may_be_judged_in_any_order(name: str, is_ordered: bool, random: Random) -> None:
    trace = TRACES[name] if is_ordered else without_order(TRACES[name])
    by_member: defaultdict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in trace.rows:
        by_member[row.node, row.inc].append(row)
    parts = list(by_member.values())
    random.shuffle(parts)
    apart = Trace([row for rows in parts for row in rows], trace.facts)
    assert judged(apart) == judged(trace)
