"""What can be wrong with views, states and uniform messages: V1 to U-L3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planting import MINUTE_NS, Clean, Plant
from plants_multicast import keep, leave_out, lose_the_last

if TYPE_CHECKING:
    from planting import Cell, Draft

MERGE = Clean("group", 0)
LEAVE = Clean("group", 4)
STATE = Clean("group", 9)
UNIFORM = Clean("uniform", 7)
UNIFORM_LEAVE = Clean("uniform", 9)


# Groups


def open_a_window_again(run: Draft) -> list[Cell]:
    cell = run.last("open")
    return [cell, run.repeat(cell)]


def change_the_order_of_members(run: Draft) -> list[Cell]:
    cell = run.last("view", lambda row: len(row.members) > 1 and row.view > 1)
    return [run.change(cell, members=cell.row.members[::-1])]


def begin_with_what_was_before(run: Draft) -> list[Cell]:
    """Of a member that was there before, and has come back."""
    for cell in reversed(run.where("open")):
        row = cell.row
        views = run.where("view", lambda each, row=row: each.idx < row.idx, node=row.node)
        own = [each for each in views if each.row.inc == row.inc]
        if len(own) > 1 and f"{row.peer}#{row.peer_inc}" not in own[-2].row.members:
            return [run.change(cell, seqno=row.seqno + 1, seqno2=row.seqno + 1)]
    raise LookupError("no window of a merge")


def never_come_together(run: Draft) -> list[Cell]:
    run.lengthen()
    cell = run.last("view", lambda row: run.is_live(row.node, row.inc) and len(row.members) > 1)
    return [run.change(cell, members=(cell.row.member,))]


def never_join(run: Draft) -> list[Cell]:
    run.lengthen()
    cell = run.last("start", lambda row: run.is_live(row.node, row.inc))
    run.drop(*run.where("view", node=cell.row.node, inc=cell.row.inc))
    return [cell]


def never_leave(run: Draft) -> list[Cell]:
    run.lengthen()
    cell = run.last("leave")
    run.drop(*run.where("stop", node=cell.row.node, inc=cell.row.inc))
    return [cell]


def install_views_without_end(run: Draft) -> list[Cell]:
    cell = run.last("view")
    node, since = cell.row.node, cell.row.mono_ns - MINUTE_NS
    for _ in range(2000):
        cell = run.repeat(cell, view=cell.row.view + 1)
    return [run.first("view", lambda row: row.mono_ns >= since, node=node)]


def receive_another_state(run: Draft) -> list[Cell]:
    for received in run.where("state_received"):
        entry = run.cells[run.cells.index(received) + 1]
        if entry.row.event == "state_entry":
            run.change(entry, size=entry.row.size + 1)
            return [received]
    raise LookupError("no state with anything in it")


def leave_out_what_follows_the_state(run: Draft) -> list[Cell]:
    waiting = run.last("state_wait")
    node, inc = waiting.row.node, waiting.row.inc
    for cell in run.where("deliver", node=node, inc=inc, detail="", kind=""):
        later = run.where(
            "deliver",
            lambda row, cell=cell: row.pair == cell.row.pair and row.seqno == cell.row.seqno2 + 1,
        )
        if later:
            run.drop(cell)
            return later[:1]
    raise LookupError("nothing follows on the state")


def forget_a_message(run: Draft) -> list[Cell]:
    end = run.last("state_end")
    entry = run.first(
        "state_entry", lambda row: row.idx > end.row.idx, node=end.row.node, inc=end.row.inc
    )
    run.change(entry, size=entry.row.size - 1)
    return [entry]


def lose_a_state_that_others_have(run: Draft) -> list[Cell]:
    cell = run.last("view", lambda row: len(row.members) > 1 and run.is_live(row.node, row.inc))
    view = run.at_the_end(cell, view=cell.row.view + 1)
    return [view, run.repeat(view, event="state_lost", members=(), view=0, view_creator="")]


def never_get_a_state(run: Draft) -> list[Cell]:
    run.lengthen()
    cell = run.last("state_wait", lambda row: run.is_live(row.node, row.inc))
    for event in ("state_received", "state_lost"):
        run.drop(*run.where(event, node=cell.row.node, inc=cell.row.inc))
    return [cell]


# Uniform messages


def deliver_uniform_again(run: Draft) -> list[Cell]:
    return [run.repeat(run.last("deliver", stream=1))]


def leave_out_a_uniform_delivery(run: Draft) -> list[Cell]:
    return leave_out(run, 1)


def commit_what_nobody_holds(run: Draft) -> list[Cell]:
    cell = run.last("tx", lambda row: row.seqno > 0, kind="commit")
    return [run.change(cell, seqno=cell.row.seqno + 1000, seqno2=cell.row.seqno + 1000)]


def deliver_only_here(run: Draft) -> list[Cell]:
    cell = run.last("deliver", run.is_owed, stream=1)
    return [run.repeat(cell, seqno=cell.row.seqno2 + 1, seqno2=cell.row.seqno2 + 1)]


def lose_the_last_uniform_message(run: Draft) -> list[Cell]:
    return lose_the_last(run, 1)


def deliver_less_than_was_held(run: Draft) -> list[Cell]:
    for estate in run.where("estate", lambda row: not row.detail):
        row = estate.row
        known = run.where("estate", lambda each, pair=row.pair: each.pair == pair)
        if len(known) == 2 and run.is_live(row.node, row.inc):
            return [run.change(estate, received=row.received + 1)]
    raise LookupError("no estate")


def keep_what_all_have_of_uniform(run: Draft) -> list[Cell]:
    return keep(run, 1)


def leave_an_estate(run: Draft) -> list[Cell]:
    run.lengthen()
    for cell in reversed(run.where("estate", kind="resolved")):
        row = cell.row
        earlier = run.where(
            "estate",
            lambda each, row=row: each.pair == row.pair and each.idx < row.idx,
        )
        if earlier and run.is_live(row.node, row.inc):
            same = run.where("estate", lambda each, row=row: each.pair == row.pair)
            run.drop(*(each for each in same if each.row.kind == "resolved"))
            return [earlier[-1]]
    raise LookupError("no estate that was resolved")


GROUP_PLANTS = [
    Plant(MERGE, "N18", open_a_window_again),
    Plant(MERGE, "V1", change_the_order_of_members),
    Plant(MERGE, "V2", begin_with_what_was_before),
    Plant(MERGE, "V-L1", never_come_together),
    Plant(MERGE, "V-L4", install_views_without_end),
    Plant(LEAVE, "V-L2", never_join),
    Plant(LEAVE, "V-L3", never_leave),
    Plant(STATE, "T1", receive_another_state),
    Plant(STATE, "T2", leave_out_what_follows_the_state),
    Plant(STATE, "T3", forget_a_message),
    Plant(STATE, "T4", lose_a_state_that_others_have),
    Plant(STATE, "T-L1", never_get_a_state),
    Plant(UNIFORM, "U1", deliver_only_here),
    Plant(UNIFORM, "U2", deliver_uniform_again),
    Plant(UNIFORM, "U3", commit_what_nobody_holds),
    Plant(UNIFORM, "U4", leave_out_a_uniform_delivery),
    Plant(UNIFORM, "U5", lose_the_last_uniform_message),
    Plant(UNIFORM, "U6", deliver_less_than_was_held),
    Plant(UNIFORM, "U7", keep_what_all_have_of_uniform),
    Plant(UNIFORM, "U7", leave_an_estate),
    Plant(UNIFORM, "U-L1", lose_the_last_uniform_message),
    Plant(UNIFORM_LEAVE, "U-L2", leave_an_estate),
    Plant(UNIFORM_LEAVE, "U-L3", never_leave),
]
