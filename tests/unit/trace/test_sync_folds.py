"""Every rule of sync finds what is planted; and all unicast rules merge."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from test_unicast_folds import (
    UNICAST_PLANTS,
    goes_on_below_what_was_taken,
    highest_acked_passes_highest_sent,
    late_data_ask,
    lets_go_by_an_old_ack,
    shown,
    verdicts,
)
from unicast_trace_builder import acked, answered, asked, founded, synced

from ringcast.rules.table import UNICAST
from ringcast.trace.rows import (
    CRASH,
    REJECT,
    SYNC_CALL,
    UNICAST_DELIVER,
    UNICAST_DROP,
    UNICAST_WIN,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from test_unicast_folds import Plant
    from unicast_trace_builder import Pairs


def broken(run: Pairs) -> set[str]:
    return {id for id, verdict in verdicts(run).items() if verdict.violation_count}


def purges_what_is_on_its_way() -> Plant:
    run = acked()
    run.at(2_500).post("a", "b", 4, 4)
    run.at(2_600).rx("a", "b", "uack", hd=4)
    row = run.win("S", "a", "b", low=4)
    return run, {"Y1", "Y2"}, [row]


def lets_go_for_good() -> Plant:
    """The receiver's place lies below what its sender has: it would ask for ever."""
    run = answered()
    row = run.at(4_400).win("R", "b", "a", hd=2)
    return run, {"Y2"}, [row]


def delivers_again_after_a_sync() -> Plant:
    run = answered()
    rows = [row for row in run.rows if row.event == UNICAST_DELIVER and row.node == "b"]
    first = rows[-1]
    row = run.at(4_400)(UNICAST_DELIVER, "b", peer="a", epoch=2, conn=2, seqno=3)
    return run, {"Y3", "G2", "S1"}, [first, row]


def delivers_all_again_after_a_sync() -> Plant:
    run = answered()
    row = run.at(4_400)(UNICAST_DELIVER, "b", peer="a", epoch=2, conn=2, seqno=1, seqno2=4)
    return run, {"Y3", "G2", "S1"}, [row]


def every_question_makes_a_connection() -> Plant:
    run = answered()
    again = run.at(4_400).rx("a", "b", "sync", seqno=1)
    row = run.conn("S", "a", "b", "OPEN", conn=3)
    return run, {"Y4"}, [again, row]


def one_question_makes_two_connections() -> Plant:
    run = asked()
    sync = run.at(4_200).rx("a", "b", "sync", seqno=1)
    row = run.conn("S", "a", "b", "OPEN", conn=3)
    return run, {"Y4"}, [sync, row]


def asks_though_it_was_answered() -> Plant:
    run = answered()
    first = next(row for row in run.rows if row.event == "sync" and row.detail == "answered")
    row = run.at(4_400).sync("b", "a", "asked", 2)
    return run, {"Y4"}, [first, row]


def question_moves_the_other_window() -> Plant:
    run = asked()
    sync = run.at(4_200).rx("a", "b", "sync", seqno=1)
    row = run.win("R", "a", "b", hr=2)
    return run, {"Y5"}, [sync, row]


def question_ends_the_other_connection() -> Plant:
    run = asked()
    sync = run.at(4_200).rx("a", "b", "sync", seqno=1)
    row = run.conn("R", "a", "b", "OPEN", conn=2)
    return run, {"Y5", "S6"}, [sync, row]


def answer_moves_the_other_window() -> Plant:
    run = asked()
    ok = run.at(4_200).rx("b", "a", "sync_ok", seqno=1, conn=2, low=3, hr=4)
    row = run.win("S", "b", "a", low=0)
    return run, {"Y5", "S2"}, [ok, row]


def is_never_answered() -> Plant:
    run = asked()
    row = next(row for row in run.rows if row.event == "sync")
    run.at(5_100).tick("a", "b", again=1)
    return run.at(3_150 + 3_400 + 1), {"Y-L1"}, [row]


def is_answered_late() -> Plant:
    run = asked()
    row = next(row for row in run.rows if row.event == "sync")
    run.at(5_100).tick("a", "b", again=1)
    run.at(6_350).conn("R", "a", "b", "CLOSING")
    run.at(6_450).conn("S", "b", "a", "CLOSING")
    run.at(6_500).rx("a", "b", "sync", seqno=1)
    run.conn("S", "a", "b", "OPEN", conn=2)
    run.at(3_150 + 3_400 + 1).rx("b", "a", "sync_ok", seqno=1, conn=2, low=3, hr=4)
    late = run.sync("b", "a", "answered", 1)
    run.conn("R", "b", "a", "OPEN", conn=2, low=3, hd=3, received=3, hr=3)
    return run, {"Y-L1"}, [row, late]


def asks_when_it_is_done() -> Plant:
    run = answered()
    row = run.at(5_000).tx("b", "a", "sync", seqno=1)
    return run, {"Y-L2"}, [row]


def asks_twice_at_once() -> Plant:
    run = asked()
    row = run.tx("b", "a", "sync", seqno=1)
    return run, {"Y-L2"}, [row]


def answers_every_question() -> Plant:
    run = asked()
    run.at(4_200).rx("a", "b", "sync", seqno=1)
    run.conn("S", "a", "b", "OPEN", conn=2)
    run.tx("a", "b", "sync_ok", seqno=1, low=3, hr=4)
    run.at(4_210).rx("a", "b", "sync", seqno=1)
    row = run.tx("a", "b", "sync_ok", seqno=1, low=3, hr=4)
    return run, {"Y-L2"}, [row]


def answers_when_it_is_done() -> Plant:
    run = synced()
    run.at(5_150).tx("a", "b", "sync_ok", seqno=1, low=4, hr=4)
    row = run.rows[-1]
    return run, {"Y-L2"}, [row]


def asks_for_ever() -> Plant:
    run = asked()
    row = next(row for row in run.rows if row.event == "sync")
    run(CRASH, "a")
    run.at(6_450).conn("S", "b", "a", "CLOSING")
    run.at(8_450).conn("S", "b", "a", "NONE")
    return run.at(3_150 + 11_000 + 1), {"Y-L3"}, [row]


def gives_up_late() -> Plant:
    run = asked()
    run(CRASH, "a")
    run.at(6_450).conn("S", "b", "a", "CLOSING")
    run.at(8_450).conn("S", "b", "a", "NONE")
    row = run.at(3_150 + 11_000 + 1).sync("b", "a", "given up", 1)
    return run, {"Y-L3"}, [row]


def ignores_acks_of_its_connection() -> Plant:
    run = answered()
    run.at(4_400).get("b", "a", 4, received=4)
    run.take("b", "a", 4, 4)
    run.confirm("b", "a", 4)
    row = run.at(4_450).rx("a", "b", "uack", hd=4)
    return run, {"Y-L3"}, [row]


SYNC_PLANTS = [
    *(("Y1", plant) for plant in (purges_what_is_on_its_way, lets_go_by_an_old_ack)),
    ("Y1", highest_acked_passes_highest_sent),
    *(("Y2", plant) for plant in (lets_go_for_good, goes_on_below_what_was_taken)),
    *(("Y3", plant) for plant in (delivers_again_after_a_sync, delivers_all_again_after_a_sync)),
    *(("Y4", plant) for plant in (every_question_makes_a_connection, late_data_ask)),
    *(("Y4", plant) for plant in (one_question_makes_two_connections,)),
    ("Y4", asks_though_it_was_answered),
    *(("Y5", plant) for plant in (question_moves_the_other_window, answer_moves_the_other_window)),
    ("Y5", question_ends_the_other_connection),
    *(("Y-L1", plant) for plant in (is_never_answered, is_answered_late)),
    *(("Y-L2", plant) for plant in (asks_when_it_is_done, asks_twice_at_once)),
    *(("Y-L2", plant) for plant in (answers_every_question, answers_when_it_is_done)),
    *(("Y-L3", plant) for plant in (asks_for_ever, gives_up_late, ignores_acks_of_its_connection)),
]


@pytest.mark.parametrize(
    ("id", "plant"), SYNC_PLANTS, ids=lambda value: getattr(value, "__name__", value)
)
def test_planted_violations_are_found_and_shown(id: str, plant: Callable[[], Plant]) -> None:
    run, ids, rows = plant()
    found = verdicts(run)
    assert {id for id, verdict in found.items() if verdict.violation_count} == ids
    assert id in ids
    assert [row for row in rows if row not in shown(found[id])] == []


def test_every_predicate_has_two_planted_violations() -> None:
    planted = [id for id, _ in (*UNICAST_PLANTS, *SYNC_PLANTS)]
    assert [rule.id for rule in UNICAST if planted.count(rule.id) < 2] == []


# What is just allowed, and what is not owed.


@pytest.mark.parametrize("cause", ["call", "drop", "given up"])
def test_a_new_question_needs_a_cause(cause: str) -> None:
    run = answered().at(4_400)
    match cause:
        case "call":
            run(SYNC_CALL, "b", peer="a")
        case "drop":
            run(UNICAST_DROP, "b", peer="a")
            run.conn("R", "b", "a", "NONE")
        case "given up":
            run.sync("b", "a", "given up", 2)
    run.sync("b", "a", "asked", 3)
    assert broken(run) == set()


def test_a_question_that_was_put_off_may_be_honoured_when_it_comes_again() -> None:
    run = answered()
    run.at(4_400).rx("a", "b", "sync", seqno=2)
    run.at(5_000).rx("a", "b", "sync", seqno=2)
    run.conn("S", "a", "b", "OPEN", conn=3)
    assert broken(run) == set()


def test_an_answer_may_be_repeated_after_a_tick_while_nothing_confirms_it() -> None:
    run = asked()
    run.at(4_200).rx("a", "b", "sync", seqno=1)
    run.conn("S", "a", "b", "OPEN", conn=2)
    run.tx("a", "b", "sync_ok", seqno=1, low=3, hr=4)
    run.at(5_100).tick("a", "b", again=1)
    run.tx("a", "b", "sync_ok", seqno=1, low=3, hr=4)
    assert broken(run) == set()


def test_nobody_has_to_answer_for_a_stream_that_has_ended() -> None:
    run = asked()
    run.at(4_200).conn("S", "a", "b", "NONE")
    run.at(3_150 + 3_400 + 1)
    assert "Y-L1" not in broken(run)


def test_a_question_given_up_in_time_is_not_owed_an_answer() -> None:
    run = asked()
    run.at(5_000).sync("b", "a", "given up", 1)
    assert broken(run) == set()
    assert verdicts(run)["Y-L1"].status == "vacuous"


def test_an_ack_for_a_predecessor_is_refused_not_ignored() -> None:
    run, _, _ = ignores_acks_of_its_connection()
    run(REJECT, "a", detail="addressee")
    assert broken(run) == set()


def test_what_one_says_to_oneself_needs_no_connection() -> None:
    run = founded()
    run.at(200)("unicast_send", "a", peer="a", epoch=1, conn=1, seqno=1)
    run(UNICAST_WIN, "a", peer="a", kind="S", epoch=1, conn=1, low=0, hd=0, hr=1, cap=4)
    run(UNICAST_DELIVER, "a", peer="a", epoch=1, conn=1, seqno=1)
    run(UNICAST_WIN, "a", peer="a", kind="S", epoch=1, conn=1, low=1, hd=1, hr=1, cap=4)
    found = verdicts(run)
    assert {verdict.status for verdict in found.values()} <= {"held", "vacuous"}
    assert (found["S1"].status, found["S-L1"].status, found["Y1"].status) == ("held",) * 3
