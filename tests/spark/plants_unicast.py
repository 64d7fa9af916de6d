"""What can be wrong with messages to one member: S1 to Y-L3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planting import Clean, Plant

if TYPE_CHECKING:
    from planting import Cell, Draft

RUN = Clean("unicast", 18)
SYNC = Clean("unicast", 34)


# Messages to one member


def deliver_to_one_again(run: Draft) -> list[Cell]:
    return [run.repeat(run.last("unicast_deliver"))]


def leave_out_a_message_to_one(run: Draft) -> list[Cell]:
    for cell in run.where("unicast_deliver"):
        row = cell.row
        later = run.where(
            "unicast_deliver",
            lambda each, row=row: (each.pair, each.epoch) == (row.pair, row.epoch),
            seqno=row.seqno2 + 1,
        )
        if later:
            run.drop(cell)
            return later[:1]
    raise LookupError("no two deliveries in a row")


def overfill_a_pair(run: Draft) -> list[Cell]:
    cell = run.last("unicast_win")
    return [run.change(cell, hr=cell.row.low + cell.row.cap + 1)]


def go_on_for_ever(run: Draft) -> list[Cell]:
    run.lengthen()
    cell = run.last("tx", lambda row: run.is_live(row.peer, row.peer_inc), kind="udata")
    return [run.last("phase", kind="end"), run.at_the_end(cell)]


def ack_to_one_what_was_not_taken(run: Draft) -> list[Cell]:
    cell = run.last("tx", kind="uack")
    return [run.change(cell, hd=cell.row.hd + 1000)]


def let_what_is_acknowledged_fall(run: Draft) -> list[Cell]:
    cell = run.last("unicast_win", lambda row: row.low > 0, kind="S")
    return [cell, run.later(cell, low=cell.row.low - 1)]


def repeat_at_the_wrong_tick(run: Draft) -> list[Cell]:
    cell = run.last("tick")
    return [run.change(cell, again=1 - cell.row.again)]


def ask_for_what_nobody_announced(run: Draft) -> list[Cell]:
    cell = run.last("tx", kind="unack")
    return [run.change(cell, seqno2=cell.row.seqno2 + 1000)]


def open_what_is_open(run: Draft) -> list[Cell]:
    cell = run.last("conn", detail="NONE>OPEN")
    return [run.repeat(cell)]


def open_elsewhere(run: Draft) -> list[Cell]:
    cell = run.last("conn", kind="R", detail="NONE>OPEN")
    return [run.change(cell, hd=cell.row.hd + 1)]


def act_on_what_is_late(run: Draft) -> list[Cell]:
    cell = run.last("conn", lambda row: row.epoch > 1, kind="R", detail="NONE>OPEN")
    row = cell.row
    frame = {"event": "rx", "kind": "udata", "detail": "", "epoch": row.epoch - 1, "seqno": 1}
    late = run.later(cell, **frame)
    moved = run.repeat(
        late,
        event="unicast_win",
        kind="R",
        epoch=row.epoch,
        received=row.received + 1,
        hr=row.hr + 1,
    )
    return [late, moved]


def report_twice(run: Draft) -> list[Cell]:
    cell = run.last("undeliverable")
    return [cell, run.repeat(cell)]


def give_up_in_silence(run: Draft) -> list[Cell]:
    cell = run.last("undeliverable")
    row = cell.row
    run.drop(cell)
    windows = ("unicast_win", "conn")
    return [
        next(
            each
            for each in reversed(run.cells)
            if each.row.event in windows
            and each.row.kind == "S"
            and not each.row.detail.endswith(">NONE")
            and (each.row.pair, each.row.epoch) == (row.pair, row.epoch)
        )
    ]


def close_too_early(run: Draft) -> list[Cell]:
    """Right behind its opening, after the healing: before that clocks may be wrong."""
    cell = run.first(
        "conn",
        lambda row: row.mono_ns > run.gst_ns and row.detail in ("NONE>OPEN", "CLOSING>OPEN"),
        kind="R",
    )
    return [run.later(cell, detail="OPEN>CLOSING")]


def never_deliver_to_one(run: Draft) -> list[Cell]:
    run.lengthen()
    cell = run.last("unicast_deliver", run.is_owed_to_another)
    row = cell.row
    run.drop(cell)
    return [
        run.last(
            "unicast_send",
            lambda each: (
                (each.node, each.inc, each.peer, each.peer_inc, each.epoch)
                == (row.peer, row.peer_inc, row.node, row.inc, row.epoch)
            ),
        )
    ]


def never_hear_of_it(run: Draft) -> list[Cell]:
    """A sender whose window never shows that its last message is acknowledged."""
    run.lengthen()
    sent = run.last("unicast_send", run.is_owed_to_another)
    row = sent.row
    for cell in [*run.where("unicast_win", kind="S"), *run.where("conn", kind="S")]:
        if (cell.row.pair, cell.row.epoch) == (row.pair, row.epoch) and cell.row.low >= row.seqno2:
            run.drop(cell)
    return [sent]


def never_acknowledge(run: Draft) -> list[Cell]:
    run.lengthen()
    row = run.last("unicast_deliver", run.is_owed_to_another).row
    run.drop(
        *(
            each
            for each in run.cells
            if each.row.pair == row.pair
            and each.row.mono_ns >= row.mono_ns
            and (each.row.kind == "uack" or (each.row.event == "conn" and each.row.kind == "R"))
        )
    )
    return [run.first("unicast_deliver", lambda each: each.pair == row.pair, mono_ns=row.mono_ns)]


def keep_an_idle_connection(run: Draft) -> list[Cell]:
    run.lengthen()
    cell = run.last(
        "conn",
        lambda row: row.mono_ns > run.gst_ns and run.is_live(row.node, row.inc),
        detail="CLOSING>NONE",
        kind="R",
    )
    run.drop(cell)
    return [run.at_the_end(cell)]


def give_up_too_early(run: Draft) -> list[Cell]:
    """Right behind the first message of a connection, after the healing: what was sent before
    may have waited for long, by whatever clock."""
    opened = run.first("conn", run.is_owed_to_another, kind="S", detail="NONE>OPEN")
    pair, since = opened.row.pair, opened.row.mono_ns
    cell = run.first(
        "unicast_win",
        lambda row: row.pair == pair and row.mono_ns >= since and row.low < row.hr,
        kind="S",
    )
    return [run.later(cell, event="conn", detail="OPEN>NONE")]


def never_repeat_the_last(run: Draft) -> list[Cell]:
    run.lengthen()
    cell = run.last(
        "unicast_win", lambda row: row.low < row.hr and run.is_live(row.node, row.inc), kind="S"
    )
    row = cell.row
    run.drop(
        *(
            each
            for each in run.cells
            if (each.row.node, each.row.inc, each.row.peer) == (row.node, row.inc, row.peer)
            and each.row.mono_ns > row.mono_ns
            and (each.row.event == "tx" or each.row.kind == "S")
        )
    )
    return [
        next(
            each
            for each in run.cells
            if each.row.event in ("unicast_win", "conn")
            and (each.row.pair, each.row.epoch) == (row.pair, row.epoch)
            and (each.row.kind, each.row.low, each.row.hr) == ("S", row.low, row.hr)
        )
    ]


def release_before_it_is_delivered(run: Draft) -> list[Cell]:
    cell = run.first("unicast_win", lambda row: row.low < row.hr, kind="S")
    return [run.change(cell, low=cell.row.hr)]


def release_what_is_never_delivered(run: Draft) -> list[Cell]:
    cell = run.last("unicast_win", lambda row: row.low > 0, kind="S")
    return [run.change(cell, low=cell.row.hr + 1, hr=cell.row.hr + 1)]


def wait_for_what_is_gone(run: Draft) -> list[Cell]:
    for cell in run.where("unicast_win", lambda row: row.hd > 0, kind="R"):
        row = cell.row
        sender = run.where(
            "unicast_win",
            lambda each, row=row: (
                each.low > 0
                and each.run_idx < row.run_idx
                and (each.node, each.peer, each.epoch) == (row.peer, row.node, row.epoch)
            ),
            kind="S",
            conn=row.conn,
        )
        if sender:
            return [run.change(cell, hd=0)]
    raise LookupError("no receiver behind its sender")


def deliver_again_after_a_sync(run: Draft) -> list[Cell]:
    return [run.repeat(run.last("unicast_deliver", lambda row: row.conn > 1))]


def ask_though_it_was_answered(run: Draft) -> list[Cell]:
    cell = run.last("sync", detail="answered")
    return [cell, run.later(cell, detail="asked", seqno=cell.row.seqno + 1)]


def move_without_a_question(run: Draft) -> list[Cell]:
    cell = run.last("conn", kind="S", detail="NONE>OPEN")
    return [run.later(cell, detail="OPEN>OPEN", conn=cell.row.conn + 1)]


def move_the_other_direction(run: Draft) -> list[Cell]:
    """A window of what one receives changes in the very moment that it is asked for what it
    sends."""
    cell = run.last("conn", kind="R", detail="NONE>OPEN")
    asked = run.later(cell, event="rx", kind="sync", detail="")
    moved = run.repeat(
        asked, event="unicast_win", kind="R", received=cell.row.received + 1, hr=cell.row.hr + 1
    )
    return [asked, moved]


def never_answer(run: Draft) -> list[Cell]:
    run.lengthen()
    for cell in run.where("sync", run.is_owed_to_another, detail="answered"):
        row = cell.row
        asked = run.last("sync", node=row.node, peer=row.peer, seqno=row.seqno, detail="asked")
        run.drop(cell)
        return [asked]
    raise LookupError("no question after the healing")


def ask_twice_at_once(run: Draft) -> list[Cell]:
    cell = run.last("tx", lambda row: row.mono_ns > run.gst_ns, kind="sync")
    return [run.repeat(cell)]


def ignore_an_ack(run: Draft) -> list[Cell]:
    cell = run.last("unicast_win", lambda row: row.low < row.hr, kind="S")
    ack = {"event": "rx", "kind": "uack", "hd": cell.row.hr}
    return [run.later(cell, **ack)]


UNICAST_PLANTS = [
    Plant(RUN, "G2", deliver_to_one_again),
    Plant(RUN, "G5", overfill_a_pair),
    Plant(RUN, "G8", go_on_for_ever),
    Plant(RUN, "S1", deliver_to_one_again),
    Plant(RUN, "S1", leave_out_a_message_to_one),
    Plant(RUN, "S2", ack_to_one_what_was_not_taken),
    Plant(RUN, "S2", let_what_is_acknowledged_fall),
    Plant(RUN, "S3", repeat_at_the_wrong_tick),
    Plant(RUN, "S4", ask_for_what_nobody_announced),
    Plant(RUN, "S5", open_what_is_open),
    Plant(RUN, "S6", open_elsewhere),
    Plant(RUN, "S7", act_on_what_is_late),
    Plant(RUN, "S8", report_twice),
    Plant(RUN, "S8", give_up_in_silence),
    Plant(RUN, "S9", close_too_early),
    Plant(RUN, "S-L1", never_deliver_to_one),
    Plant(RUN, "S-L2", never_hear_of_it),
    Plant(RUN, "S-L3", never_acknowledge),
    Plant(RUN, "S-L4", keep_an_idle_connection),
    Plant(SYNC, "S-L5", give_up_too_early),
    Plant(RUN, "S-L6", never_repeat_the_last),
    Plant(RUN, "Y1", release_before_it_is_delivered),
    Plant(RUN, "Y1", release_what_is_never_delivered),
    Plant(RUN, "Y2", wait_for_what_is_gone),
    Plant(RUN, "Y3", deliver_again_after_a_sync),
    Plant(RUN, "Y4", ask_though_it_was_answered),
    Plant(RUN, "Y4", move_without_a_question),
    Plant(RUN, "Y5", move_the_other_direction),
    Plant(SYNC, "Y-L1", never_answer),
    Plant(SYNC, "Y-L2", ask_twice_at_once),
    Plant(RUN, "Y-L3", ignore_an_ack),
]
