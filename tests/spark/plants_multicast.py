"""What can be wrong everywhere, and with messages to the group: G1 to N-L5."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planting import Clean, Plant

if TYPE_CHECKING:
    from planting import Cell, Draft

RUN = Clean("multicast", 1)
VOTES = Clean("multicast", 1, "stability")


# Everywhere


def deliver_what_nobody_sent(run: Draft) -> list[Cell]:
    cell = run.last("deliver", stream=0)
    return [run.repeat(cell, seqno=cell.row.seqno2 + 1000, seqno2=cell.row.seqno2 + 1000)]


def deliver_before_it_is_sent(run: Draft) -> list[Cell]:
    sent = run.last("send", lambda row: row.seqno > 1)
    row = sent.row
    delivered = run.first(
        "deliver", lambda each: each.origin == row.own_origin and each.seqno2 >= row.seqno2
    )
    run.drop(sent)
    run.cells.insert(run.cells.index(delivered) + 1, sent)
    run.change(sent, mono_ns=delivered.row.mono_ns)
    return [delivered]


def change_bytes(run: Draft) -> list[Cell]:
    cells = run.where("block", kind="sent")
    for sent in cells:
        for cell in run.where("block", kind="delivered", block=sent.row.block):
            if (cell.row.origin, cell.row.seqno2) == (sent.row.origin, sent.row.seqno2):
                return [sent, run.change(cell, block_hash=cell.row.block_hash ^ 1)]
    raise LookupError("no block that both sides hashed")


def deliver_again(run: Draft) -> list[Cell]:
    return [run.repeat(run.last("deliver", stream=0))]


def send_after_the_crash(run: Draft) -> list[Cell]:
    crash = run.last("crash")
    return [crash, run.repeat(crash, event="tx", kind="data", stream=0)]


def go_back_a_view(run: Draft) -> list[Cell]:
    cell = run.last("view", lambda row: row.view > 1)
    return [cell, run.repeat(cell, view=cell.row.view - 1)]


def leave_oneself_out(run: Draft) -> list[Cell]:
    cell = run.last("view", lambda row: len(row.members) > 1)
    others = tuple(key for key in cell.row.members if key != cell.row.member)
    return [run.change(cell, members=others)]


def disagree_on_a_view(run: Draft) -> list[Cell]:
    cell = run.last("view", lambda row: row.view_creator != row.member)
    maker = run.first("view", view=cell.row.view, view_creator=cell.row.view_creator)
    return [maker, run.change(cell, members=(*cell.row.members, "mallory#9"))]


def overfill_a_window(run: Draft) -> list[Cell]:
    cell = run.last("win", kind="receive")
    return [run.change(cell, hr=cell.row.low + cell.row.cap + 1)]


def exceed_the_bytes(run: Draft) -> list[Cell]:
    cell = run.last("win", lambda row: row.limit >= 0)
    return [run.change(cell, size=cell.row.limit + 1)]


def repair_for_ever(run: Draft) -> list[Cell]:
    run.lengthen()
    cell = run.last("tx", kind="nack")
    ending = run.last("phase", kind="end")
    return [ending, run.at_the_end(cell)]


# Multicast


def leave_out_a_delivery(run: Draft) -> list[Cell]:
    return leave_out(run, 0)


def leave_out(run: Draft, stream: int) -> list[Cell]:
    """The first of two deliveries that follow each other; the second shows it."""
    for cell in run.where("deliver", stream=stream):
        later = run.where(
            "deliver",
            lambda row, cell=cell: row.pair == cell.row.pair and row.seqno == cell.row.seqno2 + 1,
        )
        if later:
            run.drop(cell)
            return later[:1]
    raise LookupError("no two deliveries in a row")


def change_places(run: Draft) -> list[Cell]:
    for cell in run.where("deliver", stream=0):
        (*_, later) = [
            cell,
            *run.where("deliver", lambda row, pair=cell.row.pair: row.pair == pair),
        ]
        if later.row.seqno > cell.row.seqno2:
            run.change(cell, seqno=later.row.seqno, seqno2=later.row.seqno2)
            return [cell]
    raise LookupError("no two deliveries of one origin")


def skip_a_number(run: Draft) -> list[Cell]:
    cell = run.last("send")
    return [run.change(cell, seqno=cell.row.seqno + 1, seqno2=cell.row.seqno2 + 1)]


def hold_back_with_room(run: Draft) -> list[Cell]:
    cell = run.last("send_block")
    return [run.change(cell, detail="messages", low=cell.row.hr)]


def send_into_a_full_window(run: Draft) -> list[Cell]:
    cell = run.last("send")
    return [run.change(cell, low=cell.row.seqno2 - cell.row.cap - 1)]


def hold_what_has_no_slot(run: Draft) -> list[Cell]:
    cell = run.last("win", kind="receive")
    return [run.change(cell, hd=cell.row.hr + 1)]


def purge_what_is_not_delivered(run: Draft) -> list[Cell]:
    cell = run.last("purge")
    return [run.change(cell, seqno=cell.row.seqno + 1000, hd=cell.row.seqno + 1000)]


def purge_backwards(run: Draft) -> list[Cell]:
    cell = run.last("purge", lambda row: row.seqno > 0)
    return [cell, run.repeat(cell, seqno=cell.row.seqno - 1)]


def ack_what_was_not_taken(run: Draft) -> list[Cell]:
    cell = run.last("tx", kind="ack")
    return [run.change(cell, hd=cell.row.hd + 1000, received=cell.row.received + 1000)]


def vote_for_what_was_not_taken(run: Draft) -> list[Cell]:
    cell = run.last("stability_report")
    return [run.change(cell, hd=cell.row.hd + 1000, received=cell.row.received + 1000)]


def take_an_ack_back(run: Draft) -> list[Cell]:
    cell = run.last("tx", lambda row: row.hd > 0, kind="ack")
    return [cell, run.repeat(cell, hd=cell.row.hd - 1)]


def wait_for_a_stranger(run: Draft) -> list[Cell]:
    cell = run.last("ackmap")
    return [run.change(cell, members=(*cell.row.members, "mallory#9"))]


def ask_somebody_who_is_gone(run: Draft) -> list[Cell]:
    return [run.change(run.last("tx", kind="nack"), peer_inc=99)]


def deliver_of_an_earlier_view(run: Draft) -> list[Cell]:
    """Behind the next one. The same rows say that it was not sent in that view."""
    cell = run.last("deliver", lambda row: row.view > 1, stream=0)
    member = {"node": cell.row.node, "inc": cell.row.inc}
    earlier = run.last("view", lambda row: row.view < cell.row.view, **member)
    view = {"view": earlier.row.view, "view_creator": earlier.row.view_creator}
    return [run.change(cell, **view)]


def begin_one_late(run: Draft) -> list[Cell]:
    for cell in run.where("open", stream=0):
        pair, first = cell.row.pair, cell.row.seqno + 1
        if run.where("deliver", lambda row, pair=pair: row.pair == pair, seqno=first):
            return [run.change(cell, seqno=first, seqno2=first)]
    raise LookupError("no window that was used")


def repeat_other_bytes(run: Draft) -> list[Cell]:
    cell = run.last("tx", lambda row: row.again > 0, kind="data")
    return [run.change(cell, event="xmit_mismatch")]


def deliver_more_than_the_dead_sent(run: Draft) -> list[Cell]:
    crash, cell = _of_the_dead(run)
    return [crash, run.change(cell, seqno2=cell.row.seqno2 + 1000)]


def begin_in_the_middle_of_the_dead(run: Draft) -> list[Cell]:
    crash, cell = _of_the_dead(run)
    more = {"seqno": cell.row.seqno2 + 7, "seqno2": cell.row.seqno2 + 9}
    return [crash, run.repeat(cell, **more)]


def _of_the_dead(run: Draft) -> tuple[Cell, Cell]:
    """A crash, and the last that a survivor has delivered of that member."""
    crashed = {(cell.row.node, cell.row.inc): cell for cell in run.where("crash")}
    cell = run.last(
        "deliver",
        lambda row: (row.peer, row.peer_inc) in crashed and (row.node, row.inc) not in crashed,
    )
    return crashed[cell.row.peer, cell.row.peer_inc], cell


def lose_the_last_message(run: Draft) -> list[Cell]:
    return lose_the_last(run, 0)


def lose_the_last(run: Draft, stream: int) -> list[Cell]:
    run.lengthen()
    cell = run.last("deliver", run.is_owed, stream=stream)
    origin, last = cell.row.origin, cell.row.seqno2
    run.drop(cell)
    return [run.last("send", lambda row: row.own_origin == origin and row.seqno <= last)]


def keep_what_all_have(run: Draft) -> list[Cell]:
    return keep(run, 0)


def keep(run: Draft, stream: int) -> list[Cell]:
    """Who lives, and never hears that everybody has its last message."""
    run.lengthen()
    sent = run.last("send", lambda row: run.is_live(row.node, row.inc), stream=stream)
    origin = sent.row.own_origin
    run.drop(
        *run.where("purge", lambda row: row.own_origin == origin and row.seqno >= sent.row.seqno2)
    )
    return [sent]


def stay_held_back(run: Draft) -> list[Cell]:
    block = run.last("send_block")
    row = block.row
    same = {"node": row.node, "inc": row.inc, "stream": row.stream}
    run.drop(*run.where("send_unblock", lambda each: each.idx > row.idx, **same))
    high = run.last("send", **same).row.seqno2
    columns = {"used": 0, "limit": -1, "cap": -1, "detail": ""}
    run.at_the_end(block, event="purge", seqno=high, hd=high, **columns)
    return [block]


MULTICAST_PLANTS = [
    Plant(RUN, "G1", deliver_what_nobody_sent),
    Plant(RUN, "G1", deliver_before_it_is_sent),
    Plant(RUN, "G1", change_bytes),
    Plant(RUN, "G2", deliver_again),
    Plant(RUN, "G3", send_after_the_crash),
    Plant(RUN, "G5", overfill_a_window),
    Plant(RUN, "G5", exceed_the_bytes),
    Plant(RUN, "G8", repair_for_ever),
    Plant(RUN, "N1", leave_out_a_delivery),
    Plant(RUN, "N1", change_places),
    Plant(RUN, "N3", skip_a_number),
    Plant(RUN, "N3", hold_back_with_room),
    Plant(RUN, "N3", send_into_a_full_window),
    Plant(RUN, "N4", hold_what_has_no_slot),
    Plant(RUN, "N5", purge_what_is_not_delivered),
    Plant(RUN, "N5", purge_backwards),
    Plant(RUN, "N6", ack_what_was_not_taken),
    Plant(RUN, "N6", take_an_ack_back),
    Plant(RUN, "N7", wait_for_a_stranger),
    Plant(RUN, "N8", ask_somebody_who_is_gone),
    Plant(RUN, "N8", deliver_of_an_earlier_view),
    Plant(RUN, "N10", repeat_other_bytes),
    Plant(RUN, "N11", deliver_more_than_the_dead_sent),
    Plant(RUN, "N11", begin_in_the_middle_of_the_dead),
    Plant(RUN, "N-L1", lose_the_last_message),
    Plant(RUN, "N-L2", keep_what_all_have),
    Plant(RUN, "N-L3", stay_held_back),
    Plant(RUN, "N-L5", overfill_a_window),
    Plant(RUN, "VS1", go_back_a_view),
    Plant(RUN, "VS1", leave_oneself_out),
    Plant(RUN, "VS1", disagree_on_a_view),
    Plant(RUN, "VS2", deliver_of_an_earlier_view),
    Plant(RUN, "VS3", begin_one_late),
    Plant(RUN, "VS3", leave_out_a_delivery),
    Plant(VOTES, "N4", hold_what_has_no_slot),
    Plant(VOTES, "N5", purge_what_is_not_delivered),
    Plant(VOTES, "N6", vote_for_what_was_not_taken),
    Plant(VOTES, "N-L2", keep_what_all_have),
    Plant(VOTES, "N-L3", stay_held_back),
]
