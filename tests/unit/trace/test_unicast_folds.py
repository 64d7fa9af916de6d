"""Every unicast rule holds on the clean run and finds what is planted, with its rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from unicast_trace_builder import (
    FACTS,
    Pairs,
    Side,
    acked,
    answered,
    asked,
    begun,
    clean,
    delivered,
    founded,
)

from ringcast.model import SYSTEM_EPOCH
from ringcast.rules.table import UNICAST, audit
from ringcast.trace.rows import (
    CONN,
    CRASH,
    PAUSE,
    STOP,
    TX,
    UNDELIVERABLE,
    UNICAST_DELIVER,
    UNICAST_DROP,
    UNICAST_SEND,
    UNICAST_WIN,
    VIEW,
    Facts,
    Row,
    Trace,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringcast.rules.findings import Verdict

IDS = [rule.id for rule in UNICAST]

Plant = tuple[Pairs, set[str], list[Row]]
"""A run, the rules it breaks, and rows that must be among those that show the first."""


def verdicts(run: Pairs, facts: Facts = FACTS) -> dict[str, Verdict]:
    return {verdict.id: verdict for verdict in audit(run.trace(facts))}


def broken(run: Pairs, facts: Facts = FACTS) -> set[str]:
    return {id for id, verdict in verdicts(run, facts).items() if verdict.violation_count}


def test_ids_are_those_of_the_document() -> None:
    unicast = "S1 S2 S3 S4 S5 S6 S7 S8 S9 S-L1 S-L2 S-L3 S-L4 S-L5 S-L6"
    sync = "Y1 Y2 Y3 Y4 Y5 Y-L1 Y-L2 Y-L3"
    assert " ".join(IDS) == f"G2 G3 VS1 G5 G8 {unicast} {sync}"


@pytest.mark.parametrize("id", IDS)
def test_clean_run_holds_with_true_premises(id: str) -> None:
    verdict = verdicts(clean())[id]
    assert (verdict.status, verdict.violations) == ("held", [])
    assert verdict.premises > 0


def test_an_empty_trace_is_vacuous() -> None:
    facts = Facts(protocol="unicast")
    assert {verdict.status for verdict in audit(Trace([], facts))} == {"vacuous"}


def test_the_worst_waits_are_shares_of_their_bounds() -> None:
    found = verdicts(clean())
    waits = {id: verdict.worst for id, verdict in found.items() if verdict.worst is not None}
    assert waits == {
        "S9": 5_000 / 6_000,
        # 4 was sent at 3100 and delivered at 4600, after a sync: 5τ + 5δ. It was acknowledged at
        # 4700: an ack interval and two ticks more. 1..3 were acknowledged without a sync.
        "S-L1": 1_500 / 5_500,
        # The loss of the ack of 3 is hidden by the send of 4; that of b was acknowledged at once.
        "S-L2": 100 / 2_250,
        "S-L3": 50 / 50,
        "S-L4": 7_000 / 9_000,
        "S-L5": 8_000 / 9_000,
        "S-L6": 2_000 / 2_000,
        "Y-L1": 1_100 / 3_400,
        "Y-L3": 1_100 / 11_000,
    }


# Planted violations. Each run ends where it was left.


def twice() -> Plant:
    run = acked()
    row = run(UNICAST_DELIVER, "b", peer="a", epoch=2, conn=1, seqno=3)
    return run, {"G2", "S1"}, [row]


def twice_from_oneself() -> Plant:
    run = founded()
    run.at(200)(UNICAST_SEND, "a", peer="a", epoch=1, conn=1, seqno=1)
    run(UNICAST_DELIVER, "a", peer="a", epoch=1, conn=1, seqno=1)
    row = run(UNICAST_DELIVER, "a", peer="a", epoch=1, conn=1, seqno=1)
    return run, {"G2", "S1"}, [row]


def sends_after_its_crash() -> Plant:
    run = clean()
    row = run(UNICAST_SEND, "c", peer="a", epoch=2, conn=1, seqno=1, cap=4)
    return run, {"G3"}, [row]


def opens_after_its_crash() -> Plant:
    run = founded()
    crash = run.at(200)(CRASH, "c")
    row = run.conn("S", "c", "a", "OPEN")
    return run, {"G3"}, [crash, row]


def view_goes_back() -> Plant:
    run = founded()
    row = run(VIEW, "b", view=1, view_creator="a#1", members=("a#1", "b#1", "c#1"))
    return run, {"VS1"}, [row]


def view_without_oneself() -> Plant:
    run = founded()
    row = run(VIEW, "b", view=2, view_creator="a#1", members=("a#1",))
    return run, {"VS1"}, [row]


def window_overfull() -> Plant:
    run = acked()
    row = run.win("R", "b", "a", hr=8)
    return run, {"G5"}, [row]


def more_connections_than_peers() -> Plant:
    run = founded()
    run.at(200).conn("S", "a", "b", "OPEN")
    row = run.rows[-1] = run.rows[-1]._replace(size=2)
    return run, {"G5"}, [row]


def repeats_for_ever() -> Plant:
    run = clean()
    row = run.at(30_000).tx("b", "a", "sync", seqno=2, epoch=2, conn=2)
    return run, {"G8", "Y-L2"}, [row]


def asks_for_ever() -> Plant:
    run = clean()
    row = run.at(30_000).tx("b", "a", "unack", seqno=4, epoch=2, conn=2)
    return run, {"G8", "S5"}, [row]


def skips_one() -> Plant:
    run = founded()
    run.at(200).post("a", "b", 1, 3)
    run.at(250).get("b", "a", 1, received=1)
    first = run.take("b", "a", 1, 1)
    row = run(UNICAST_DELIVER, "b", peer="a", epoch=2, conn=1, seqno=3)
    return run, {"S1"}, [first, row]


def begins_in_the_middle() -> Plant:
    run = founded()
    run.at(200).post("a", "b", 1, 2)
    run.at(250).get("b", "a", 1, received=2)
    row = run(UNICAST_DELIVER, "b", peer="a", epoch=2, conn=1, seqno=2)
    return run, {"S1"}, [row]


def never_sent() -> Plant:
    run = acked()
    row = run(UNICAST_DELIVER, "b", peer="a", epoch=2, conn=1, seqno=4)
    return run, {"S1"}, [row]


def acks_what_it_only_received() -> Plant:
    run = founded()
    run.at(200).post("a", "b", 1, 2)
    run.at(250).get("b", "a", 1, received=1)
    run.take("b", "a", 1, 1)
    run.get("b", "a", 2, received=2)
    row = run.confirm("b", "a", 2)
    return run, {"S2"}, [row]


def highest_acked_falls() -> Plant:
    run = acked()
    row = run.at(2_400).win("S", "a", "b", low=2)
    return run, {"S2"}, [row]


def highest_acked_passes_highest_sent() -> Plant:
    run = acked()
    run.rx("a", "b", "uack", hd=4)
    row = run.win("S", "a", "b", low=4)
    return run, {"S2", "Y1", "Y2"}, [row]


def lets_go_without_an_ack() -> Plant:
    run = begun()
    row = run.at(1_300).win("S", "a", "b", low=3)
    return run, {"S2"}, [row]


def lets_go_by_an_old_ack() -> Plant:
    """The delayed ack of an earlier connection: what SYNC was made against."""
    run = answered()
    run.sides["S", "a", "b"].low = 3
    run.at(4_400).rx("a", "b", "uack", hd=4, conn=1)
    row = run.win("S", "a", "b", low=4)
    return run, {"S2", "S7", "Y1", "Y2"}, [row]


def repeats_at_the_first_tick() -> Plant:
    run = acked()
    run.at(2_500).post("a", "b", 4, 4)
    row = run.at(3_200).tick("a", "b", again=1)
    return run, {"S3"}, [row]


def does_not_repeat() -> Plant:
    run = begun()
    row = run.at(2_200).tick("a", "b")
    return run, {"S3"}, [row]


def repeats_the_lowest() -> Plant:
    run = begun()
    side = run.sides["S", "a", "b"]
    row = run.at(2_200)("tick", "a", peer="b", epoch=2, conn=1, low=1, hr=3, again=1)
    run.tx("a", "b", "udata", seqno=side.low + 1, again=1)
    return run, {"S3"}, [row]


def repeats_everything() -> Plant:
    run = begun()
    row = run.at(2_200)("tick", "a", peer="b", epoch=2, conn=1, low=1, hr=3, again=2)
    run.tx("a", "b", "udata", seqno=2, seqno2=3, again=1)
    return run, {"S3"}, [row]


def resends_what_is_acked() -> Plant:
    run = acked()
    row = run.at(2_500).tail("a", "b", again=1)
    return run, {"S3"}, [row]


def resends_the_lowest() -> Plant:
    run = begun()
    row = run.at(1_300).tail("a", "b", 2)
    return run, {"S3"}, [row]


def resends_the_first_though_b_was_heard() -> Plant:
    run = begun()
    row = run.at(1_300).tail("a", "b", 3, again=2)
    return run, {"S3"}, [row]


def does_not_open() -> Plant:
    run = founded()
    run.at(200).post("a", "b", 1, 3)
    row = run.at(210).tail("a", "b", 3)
    return run, {"S3"}, [row]


def resends_too_soon() -> Plant:
    run = begun()
    for at in (1_300, 1_310, 1_330):
        run.at(at).tail("a", "b", 3)
    row = run.at(1_350).tail("a", "b", 3)
    return run, {"S3"}, [row]


def resends_later_than_the_tick() -> Plant:
    run = begun()
    run.at(1_300).tail("a", "b", 3)
    run.at(2_200).tick("a", "b", again=1)
    row = run.at(2_301).tail("a", "b", 3)
    return run, {"S3"}, [row]


def asks_at_first_sight() -> Plant:
    run = founded()
    run.at(200).post("a", "b", 1, 3)
    run.at(250).get("b", "a", 1, received=1)
    run.take("b", "a", 1, 1)
    run.confirm("b", "a", 1)
    run.at(260).get("b", "a", 3, received=1)
    row = run.tx("b", "a", "unack", seqno=2)
    return run, {"S4"}, [row]


def asks_for_what_it_holds() -> Plant:
    run = acked()
    row = run.tx("b", "a", "unack", seqno=3)
    return run, {"S4"}, [row]


def asks_for_the_highest() -> Plant:
    run = founded()
    run.at(200).post("a", "b", 1, 3)
    run.at(250).get("b", "a", 1, received=1)
    run.take("b", "a", 1, 1)
    run.confirm("b", "a", 1)
    run.at(260).get("b", "a", 3, received=1)
    row = run.at(400).tx("b", "a", "unack", seqno=2, seqno2=3)
    return run, {"S4"}, [row]


def asks_for_what_nobody_announced() -> Plant:
    run = acked()
    row = run.tx("b", "a", "unack", seqno=4)
    return run, {"S4"}, [row]


def answers_with_what_is_gone() -> Plant:
    run = acked()
    row = run.at(2_400).tx("a", "b", "udata", seqno=3, again=1)
    return run, {"S4"}, [row]


def removes_an_open_receiver() -> Plant:
    run = acked()
    row = run.at(2_400).conn("R", "b", "a", "NONE")
    return run, {"S5"}, [row]


def removes_an_open_sender() -> Plant:
    run = acked()
    row = run.at(2_400).conn("S", "a", "b", "NONE")
    return run, {"S5"}, [row]


def closes_by_another_close() -> Plant:
    run = acked()
    run.at(2_400).rx("b", "a", "close", conn=2)
    row = run.conn("R", "b", "a", "NONE")
    return run, {"S5", "S7"}, [row]


def closes_what_is_not_there() -> Plant:
    run = founded()
    run.sides["S", "a", "b"] = Side("OPEN", 2)
    row = run.at(200).conn("S", "a", "b", "CLOSING")
    return run, {"S5"}, [row]


def connection_goes_back() -> Plant:
    run = answered()
    row = run.at(4_400).conn("S", "a", "b", "OPEN", conn=1)
    run.win("S", "a", "b", conn=2)
    return run, {"S5"}, [row]


def delivers_without_an_entry() -> Plant:
    run = founded()
    run.at(200).post("a", "b", 1, 1)
    row = run.at(250)(UNICAST_DELIVER, "b", peer="a", epoch=2, conn=1, seqno=1)
    return run, {"S5"}, [row]


def sends_without_an_entry() -> Plant:
    run = founded()
    row = run.at(200).tx("a", "b", "udata", seqno=1)
    return run, {"S5"}, [row]


def opens_by_a_later_message() -> Plant:
    run = founded()
    run.at(200).post("a", "b", 1, 2)
    run.at(250).rx("b", "a", "udata", seqno=2)
    row = run.conn("R", "b", "a", "OPEN")
    return run, {"S6"}, [row]


def opens_at_one() -> Plant:
    run = founded()
    run.at(200).post("a", "b", 1, 2)
    run.at(250).rx("b", "a", "udata", seqno=1)
    row = run.conn("R", "b", "a", "OPEN", hd=1, received=1, hr=1)
    return run, {"S6"}, [row]


def opens_by_the_first_message_come_again() -> Plant:
    """The delayed first message of a stream whose window was dropped opens it anew."""
    run = acked()
    run.at(2_400)(UNICAST_DROP, "b", peer="a")
    run.conn("R", "b", "a", "NONE")
    run.at(2_500).rx("b", "a", "udata", seqno=1)
    row = run.conn("R", "b", "a", "OPEN", low=0, hd=0, received=0, hr=0)
    return run, {"S6", "S5", "Y2"}, [row]


def takes_an_answer_to_nothing() -> Plant:
    run = acked()
    run.at(2_400).rx("b", "a", "sync_ok", seqno=1, conn=2, low=3, hr=3)
    row = run.conn("R", "b", "a", "OPEN", conn=2)
    return run, {"S6"}, [row]


def goes_on_below_what_was_taken() -> Plant:
    """Without a tombstone: the window begins again where the sender's does."""
    run = asked()
    run.at(4_200).rx("a", "b", "sync", seqno=1)
    run.conn("S", "a", "b", "OPEN", conn=2)
    run.tx("a", "b", "sync_ok", seqno=1, low=1, hr=4)
    run.at(4_250).rx("b", "a", "sync_ok", seqno=1, conn=2, low=1, hr=4)
    run.sync("b", "a", "answered", 1)
    row = run.conn("R", "b", "a", "OPEN", conn=2, low=1, hd=1, received=1, hr=1)
    return run, {"S6", "Y2"}, [row]


def late_data_are_taken() -> Plant:
    run = answered()
    late = run.at(4_400).rx("b", "a", "udata", seqno=4, conn=1)
    row = run.win("R", "b", "a", received=4, hr=4)
    return run, {"S7"}, [late, row]


def late_data_ask() -> Plant:
    run = answered()
    run.at(4_400).rx("b", "a", "udata", seqno=4, conn=1)
    row = run.sync("b", "a", "asked", 2)
    return run, {"S7", "Y4"}, [row]


def late_data_open_again() -> Plant:
    run = answered()
    run.at(4_400).conn("R", "b", "a", "CLOSING")
    late = run.at(4_500).rx("b", "a", "udata", seqno=4, conn=1)
    row = run.conn("R", "b", "a", "OPEN")
    return run, {"S7", "S9"}, [late, row]


def late_request_is_served() -> Plant:
    run = answered()
    late = run.at(4_400).rx("a", "b", "unack", seqno=4, conn=1)
    row = run.tx("a", "b", "udata", seqno=4, again=1)
    return run, {"S7"}, [late, row]


def gives_up_in_silence() -> Plant:
    run = founded()
    run.at(190)(CRASH, "c")
    run.at(200).post("a", "c", 1, 1)
    run.at(2_200).tx("a", "c", "udata", seqno=1, again=1)
    run.at(8_200).conn("S", "a", "c", "NONE")
    row = next(row for row in run.rows if row.event == UNICAST_WIN)
    return run, {"S8"}, [row]


def reports_too_little() -> Plant:
    run = founded()
    run.at(200).post("a", "c", 1, 2)
    run.at(2_200).tx("a", "c", "udata", seqno=2, again=1)
    run.at(8_200).conn("S", "a", "c", "NONE")
    row = run(UNDELIVERABLE, "a", peer="c", epoch=2, seqno=2)
    return run, {"S8"}, [row]


def reports_what_it_still_tries() -> Plant:
    run = founded()
    run.at(200).post("a", "c", 1, 1)
    row = run(UNDELIVERABLE, "a", peer="c", epoch=2, seqno=1)
    run.at(2_200).tx("a", "c", "udata", seqno=1, again=1)
    run.at(2_300).heed("a", "c", 1)
    return run, {"S8", "Y1"}, [row]


def reports_twice() -> Plant:
    run = clean()
    row = run(UNDELIVERABLE, "a", peer="c", epoch=3, seqno=1)
    return run, {"S8"}, [row]


def stops_in_silence() -> Plant:
    run = founded()
    run.at(200).post("a", "c", 1, 1)
    row = run.rows[-2]
    run.at(300)(STOP, "a")
    return run, {"S8"}, [row]


def duplicates_keep_it_open() -> Plant:
    """b's window for a is used at 600 for the last time, and closes only at 7300."""
    run = acked()
    for now in range(3_000, 8_000, 1_000):
        run.at(now).rx("b", "a", "udata", seqno=3)
        run.at(now + 50).confirm("b", "a", 3)
    row = run.at(7_300).conn("R", "b", "a", "CLOSING")
    return run, {"S9"}, [row]


def closes_too_early() -> Plant:
    run = acked()
    row = run.at(5_597).conn("R", "b", "a", "CLOSING")
    return run, {"S9"}, [row]


def never_closes() -> Plant:
    run = delivered()
    row = next(row for row in reversed(run.rows) if row.event == UNICAST_WIN and row.node == "a")
    run.at(5_250).conn("R", "b", "a", "CLOSING")
    return run.at(350 + 6_000 + 1), {"S9"}, [row]


def never_arrives() -> Plant:
    run = founded()
    row = run.at(200).post("a", "b", 1, 1)
    run.at(2_200).tx("a", "b", "udata", seqno=1, again=1)
    return run.at(200 + 4_400 + 1), {"S-L1"}, [row]


def arrives_late() -> Plant:
    run = acked()
    row = run.at(2_500).post("a", "b", 4, 4)
    run.at(4_500).tx("a", "b", "udata", seqno=4, again=1)
    run.at(2_500 + 4_400 + 1).get("b", "a", 4, received=4)
    late = run.take("b", "a", 4, 4)
    run.confirm("b", "a", 4)
    run.heed("a", "b", 4)
    return run, {"S-L1"}, [row, late]


def is_acked_late() -> Plant:
    run = founded()
    row = run.at(200).post("a", "b", 1, 1)
    run.at(2_200).tx("a", "b", "udata", seqno=1, again=1)
    run.at(4_500).get("b", "a", 1, received=1)
    run.take("b", "a", 1, 1)
    run.confirm("b", "a", 1)
    run.at(5_200).conn("S", "a", "b", "CLOSING")
    late = run.at(200 + 6_450 + 1).heed("a", "b", 1)
    return run, {"S-L1"}, [row, late]


def acks_stay_lost() -> Plant:
    run = begun()
    run.at(2_200).tick("a", "b", again=1)
    run.at(2_500).rx("b", "a", "udata", seqno=3)
    run.confirm("b", "a", 3)
    row = run.at(600 + 2_250 + 1).heed("a", "b", 3)
    return run, {"S-L2"}, [row]


def acks_never_come() -> Plant:
    run = begun()
    row = next(row for row in reversed(run.rows) if row.event == UNICAST_DELIVER)
    run.at(2_200).tick("a", "b", again=1)
    return run.at(600 + 2_250 + 1), {"S-L2"}, [row]


def acks_too_late() -> Plant:
    run = acked()
    run.at(2_500).post("a", "b", 4, 4)
    run.at(2_600).get("b", "a", 4, received=4)
    taken = run.take("b", "a", 4, 4)
    row = run.at(2_653).confirm("b", "a", 4)
    run.at(2_700).heed("a", "b", 4)
    return run, {"S-L3"}, [taken, row]


def does_not_ack_a_duplicate() -> Plant:
    run = acked()
    row = run.at(2_400).rx("b", "a", "udata", seqno=3)
    return run.at(2_453), {"S-L3"}, [row]


def stays_for_ever() -> Plant:
    run = delivered()
    row = next(row for row in run.rows if row.event == CONN and row.kind == "R")
    run.at(5_250).conn("R", "b", "a", "CLOSING")
    run.at(5_350).conn("S", "a", "b", "CLOSING")
    return run.at(250 + 9_000 + 1), {"S-L4"}, [row]


def is_gone_late() -> Plant:
    run = delivered()
    run.at(5_250).conn("R", "b", "a", "CLOSING")
    run.at(5_350).conn("S", "a", "b", "CLOSING")
    run.at(7_250).conn("R", "b", "a", "NONE")
    row = run.at(350 + 9_000 + 1).conn("S", "a", "b", "NONE")
    return run, {"S-L4"}, [row]


def is_never_given_up() -> Plant:
    run = founded()
    run.at(200)(CRASH, "c")
    run.at(300).post("a", "c", 1, 1)
    row = next(row for row in run.rows if row.event == CONN)
    run.at(2_300).tx("a", "c", "udata", seqno=1, again=1)
    run.at(5_300).conn("S", "a", "c", "CLOSING")
    return run.at(300 + 9_000 + 1), {"S-L5"}, [row]


def is_given_up_early() -> Plant:
    run = founded()
    run.at(200)(CRASH, "c")
    run.at(300).post("a", "c", 1, 1)
    run.at(2_300).tx("a", "c", "udata", seqno=1, again=1)
    heard = run.at(2_400).rx("a", "c", "unack", seqno=1)
    row = run.at(8_300).conn("S", "a", "c", "NONE")
    run(UNDELIVERABLE, "a", peer="c", epoch=2, seqno=1)
    return run, {"S-L5"}, [heard, row]


def is_never_repeated() -> Plant:
    run = founded()
    run.at(200)(CRASH, "c")
    run.at(300).post("a", "c", 1, 1)
    row = next(row for row in run.rows if row.event == CONN)
    run.at(5_300).conn("S", "a", "c", "CLOSING")
    run.at(8_300).conn("S", "a", "c", "NONE")
    run(UNDELIVERABLE, "a", peer="c", epoch=2, seqno=1)
    return run, {"S-L6"}, [row]


def is_repeated_late() -> Plant:
    run = begun()
    row = run.at(350 + 2_003).tick("a", "b", again=1)
    run.at(2_400).rx("b", "a", "udata", seqno=3)
    run.at(2_450).confirm("b", "a", 3)
    run.at(2_500).heed("a", "b", 3)
    repeat = run.rows[run.rows.index(row) + 1]
    return run, {"S-L6"}, [repeat]


UNICAST_PLANTS = [
    *(("G2", plant) for plant in (twice, twice_from_oneself)),
    *(("G3", plant) for plant in (sends_after_its_crash, opens_after_its_crash)),
    *(("VS1", plant) for plant in (view_goes_back, view_without_oneself)),
    *(("G5", plant) for plant in (window_overfull, more_connections_than_peers)),
    *(("G8", plant) for plant in (repeats_for_ever, asks_for_ever)),
    *(("S1", plant) for plant in (skips_one, begins_in_the_middle, never_sent, twice)),
    *(("S2", plant) for plant in (acks_what_it_only_received, highest_acked_falls)),
    *(("S2", plant) for plant in (highest_acked_passes_highest_sent, lets_go_without_an_ack)),
    ("S2", lets_go_by_an_old_ack),
    *(("S3", plant) for plant in (repeats_at_the_first_tick, does_not_repeat)),
    *(("S3", plant) for plant in (repeats_the_lowest, repeats_everything)),
    *(("S3", plant) for plant in (resends_what_is_acked, resends_the_lowest, does_not_open)),
    *(("S3", plant) for plant in (resends_the_first_though_b_was_heard, resends_too_soon)),
    ("S3", resends_later_than_the_tick),
    *(("S4", plant) for plant in (asks_at_first_sight, asks_for_what_it_holds)),
    *(("S4", plant) for plant in (asks_for_the_highest, asks_for_what_nobody_announced)),
    ("S4", answers_with_what_is_gone),
    *(("S5", plant) for plant in (removes_an_open_receiver, removes_an_open_sender)),
    *(("S5", plant) for plant in (closes_by_another_close, closes_what_is_not_there)),
    *(("S5", plant) for plant in (connection_goes_back, delivers_without_an_entry)),
    ("S5", sends_without_an_entry),
    *(("S6", plant) for plant in (opens_by_a_later_message, opens_at_one)),
    *(("S6", plant) for plant in (opens_by_the_first_message_come_again,)),
    *(("S6", plant) for plant in (takes_an_answer_to_nothing, goes_on_below_what_was_taken)),
    *(("S7", plant) for plant in (late_data_are_taken, late_data_ask, late_data_open_again)),
    *(("S7", plant) for plant in (late_request_is_served, lets_go_by_an_old_ack)),
    *(("S8", plant) for plant in (gives_up_in_silence, reports_too_little, reports_twice)),
    *(("S8", plant) for plant in (reports_what_it_still_tries, stops_in_silence)),
    *(("S9", plant) for plant in (duplicates_keep_it_open, closes_too_early, never_closes)),
    *(("S-L1", plant) for plant in (never_arrives, arrives_late, is_acked_late)),
    *(("S-L2", plant) for plant in (acks_stay_lost, acks_never_come)),
    *(("S-L3", plant) for plant in (acks_too_late, does_not_ack_a_duplicate)),
    *(("S-L4", plant) for plant in (stays_for_ever, is_gone_late)),
    *(("S-L5", plant) for plant in (is_never_given_up, is_given_up_early)),
    *(("S-L6", plant) for plant in (is_never_repeated, is_repeated_late)),
]


def shown(verdict: Verdict) -> tuple[Row, ...]:
    """The rows of the first violation."""
    return verdict.violations[0].rows


@pytest.mark.parametrize(
    ("id", "plant"), UNICAST_PLANTS, ids=lambda value: getattr(value, "__name__", value)
)
def test_planted_violations_are_found_and_shown(id: str, plant: Callable[[], Plant]) -> None:
    run, ids, rows = plant()
    found = verdicts(run)
    assert {id for id, verdict in found.items() if verdict.violation_count} == ids
    assert id in ids
    assert [row for row in rows if row not in shown(found[id])] == []


# On the edge: what is just allowed, and what is not owed.


@pytest.mark.parametrize("event", [CRASH, STOP, PAUSE])
def test_nothing_is_owed_to_who_is_gone(event: str) -> None:
    run, ids, _ = never_arrives()
    run(event, "b")
    assert (ids, broken(run)) == ({"S-L1"}, set())


def test_nothing_is_owed_to_who_does_not_take() -> None:
    run, _, _ = never_arrives()
    assert broken(run, replace(FACTS, stopped_members=frozenset({"b#1"}))) == set()


def test_nothing_is_owed_before_the_network_has_healed() -> None:
    run, _, _ = never_arrives()
    assert broken(run, replace(FACTS, gst_ns=None)) == set()
    assert broken(run, replace(FACTS, gst_ns=201)) == set()


def test_what_was_given_up_and_reported_is_not_owed() -> None:
    run, _, _ = never_arrives()
    run.conn("S", "a", "b", "NONE")
    run(UNDELIVERABLE, "a", peer="b", epoch=2, seqno=1)
    assert broken(run) == {"S-L5"}  # it was given up too early, but no longer owed


def test_who_crashes_cannot_tell_what_is_lost() -> None:
    run, _, _ = gives_up_in_silence()
    assert broken(run, replace(FACTS, stopped_members=frozenset({"a#1"}))) == set()
    run(CRASH, "a")
    assert broken(run) == set()


def test_a_member_that_leaves_removes_everything() -> None:
    run = acked()
    run.at(2_400).conn("S", "a", "b", "NONE")
    run.conn("R", "a", "b", "NONE")
    run.at(2_500)(STOP, "a")
    assert broken(run) == set()


def test_an_open_entry_goes_with_its_peers_incarnation() -> None:
    for members, expected in ((("a#1", "b#2"), set()), (("a#1",), {"S5"})):
        run = acked()
        run.at(2_400)(VIEW, "a", view=2, view_creator="a#1", members=members)
        run.conn("S", "a", "b", "NONE")
        run.conn("R", "a", "b", "NONE")
        assert broken(run) == expected


def test_what_layers_say_to_each_other_ends_with_the_view() -> None:
    for members, expected in ((("a#1", "b#1"), set()), (("a#1", "c#1"), {"S5"})):
        run = acked()
        run.sides["S", "a", "c"] = Side("NONE", SYSTEM_EPOCH + 1)
        run.at(2_300).conn("S", "a", "c", "OPEN")
        run.at(2_400)(VIEW, "a", view=2, view_creator="a#1", members=members)
        run.conn("S", "a", "c", "NONE")
        assert broken(run) == expected


def test_an_open_window_goes_with_its_close_or_for_a_newer_stream() -> None:
    run = acked()
    run.at(2_400).rx("b", "a", "close")
    run.conn("R", "b", "a", "NONE")
    run.at(2_500).rx("a", "b", "udata", seqno=1, epoch=3)
    run.conn("R", "a", "b", "NONE")
    run.conn("R", "a", "b", "OPEN", epoch=3)
    assert broken(run) == set()


def test_three_datagrams_behind_a_gap_prove_it() -> None:
    for count, expected in ((2, {"S4"}), (3, set())):
        run = delivered()
        run.at(400).post("a", "b", 2, 5)
        run.at(450)
        for seqno in range(3, 3 + count):
            run.get("b", "a", seqno, received=1)
        run.tx("b", "a", "unack", seqno=2)
        assert broken(run) == expected


def test_frames_that_a_driver_held_back_are_not_compared_with_what_came_later() -> None:
    run, _, _ = sends_without_an_entry()
    run.tx("a", "b", "unack", seqno=0)
    assert broken(run, replace(FACTS, gst_ns=200)) == set()


def test_a_receiver_may_close_early_when_its_sender_leaves_the_view() -> None:
    run = delivered()
    run.at(400)(VIEW, "b", view=2, view_creator="b#1", members=("b#1",))
    run.conn("R", "b", "a", "CLOSING")
    assert broken(run) == set()


def test_without_expiry_a_receiver_never_closes() -> None:
    run, _, _ = never_closes()
    facts = replace(FACTS, expiry_ns=0)
    assert broken(run, facts) == {"S9"}
    assert verdicts(delivered().at(40_000), facts)["S9"].status == "vacuous"


def test_an_ack_may_count_on_the_connection_that_a_sync_ends_in_the_same_input() -> None:
    run = asked()
    run.at(4_200).rx("a", "b", "uack", hd=3)
    run.rx("a", "b", "sync", seqno=1)
    run.sides["S", "a", "b"].low = 2
    run.conn("S", "a", "b", "OPEN", conn=2, low=3)
    run.win("S", "a", "b")
    assert broken(run) == set()


def test_waits_may_last_as_long_as_their_bounds() -> None:
    run = founded()
    run.at(200).post("a", "b", 1, 1)
    run.at(2_200).tx("a", "b", "udata", seqno=1, again=1)
    run.at(200 + 4_400).get("b", "a", 1, received=1)
    run.take("b", "a", 1, 1)
    run.at(4_650).confirm("b", "a", 1)
    run.at(5_200).conn("S", "a", "b", "CLOSING")
    run.at(200 + 6_450).heed("a", "b", 1)
    found = verdicts(run)
    assert {id for id, verdict in found.items() if verdict.violation_count} == set()
    assert {id: found[id].worst for id in ("S-L1", "S-L3", "S-L6")} == {
        "S-L1": 1.0,
        "S-L3": 1.0,
        "S-L6": 1.0,
    }


def test_more_missing_messages_than_one_request_may_name_take_more_ticks() -> None:
    run, _, _ = never_arrives()
    facts = replace(FACTS, nack_messages_max=1)
    run.rows[:] = [row._replace(seqno2=2) if row.event == UNICAST_SEND else row for row in run.rows]
    assert broken(run) == {"S-L1"}
    assert broken(run, facts) == set()


def test_members_clocks_cannot_be_compared() -> None:
    rows = [row._replace(run_idx=-1) for row in clean().rows]
    found = {verdict.id: verdict for verdict in audit(Trace(rows, clean().trace().facts))}
    undecidable = {id for id, verdict in found.items() if verdict.status == "undecidable"}
    assert undecidable == {"S-L1", "S-L2", "Y1", "Y2", "Y-L1"}
    assert {found[id].status for id in set(IDS) - undecidable} == {"held"}


def test_what_is_new_may_leave_with_what_a_tick_sends_again() -> None:
    for first, last, expected in ((3, 4, set()), (2, 3, {"S3"})):
        run = begun()
        run.at(2_200)("tick", "a", peer="b", epoch=2, conn=1, low=1, hr=3, again=1)
        run.tx("a", "b", "udata", seqno=first, seqno2=last, again=1)
        assert broken(run) & {"S3"} == expected


def test_a_tick_that_comes_after_giving_up_sends_nothing() -> None:
    run = begun()
    run.at(2_200).tick("a", "b")
    run.conn("S", "a", "b", "NONE")
    run(UNDELIVERABLE, "a", peer="b", epoch=2, seqno=2, seqno2=3)
    assert "S3" not in broken(run)


def test_the_tail_timer_resends_the_highest_after_pauses_that_double() -> None:
    run = begun()
    for at in (1_300, 1_310, 1_330, 1_370):
        run.at(at).tail("a", "b", 3)
    run.at(1_500).post("a", "b", 4, 4)
    for at in (1_510, 1_520, 1_540):  # it starts over
        run.at(at).tail("a", "b", 4)
    assert broken(run) == set()


def test_the_tail_timer_resends_the_first_too_until_the_peer_is_heard() -> None:
    run = founded()
    run.at(200).post("a", "b", 1, 3)
    run.at(210).tail("a", "b", 1, 3)
    run.at(250).get("b", "a", 1, received=1)
    run.take("b", "a", 1, 1)
    run.at(260).confirm("b", "a", 1)
    run.at(280).heed("a", "b", 1)
    run.at(290).tail("a", "b", 3)
    assert broken(run) == set()


def test_a_wrong_report_is_found_whatever_is_recorded_first() -> None:
    run = begun()
    run.at(2_200)(UNDELIVERABLE, "a", peer="b", epoch=2, seqno=3, seqno2=3)
    run.conn("S", "a", "b", "NONE")
    assert "S8" in broken(run)


def test_the_quiet_is_judged_after_all_bounds_and_towards_the_living() -> None:
    run = clean()
    run.at(30_000).tx("a", "c", "udata", seqno=1, again=1, epoch=3, conn=1)
    assert verdicts(run)["G8"].status == "held"
    early = clean()
    early.rows[-1] = early.rows[-1]._replace(mono_ns=6_100)
    early.now = 6_100 + 5_500 + 2_250
    assert verdicts(early)["G8"].status == "undecidable"


def test_a_frame_row_names_its_kind() -> None:
    """Only the frames of unicast count: acks to the group are another matter."""
    run = clean()
    run(TX, "a", stream=0, kind="ack", hd=1)
    assert broken(run) == set()


def test_every_predicate_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "properties.md").read_text(encoding="utf-8")
    assert [id for id in IDS if f"| {id} |" not in text] == []
