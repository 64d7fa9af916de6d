"""What can be wrong with views, states and uniform messages: VS1 to U-L1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planting import MINUTE_NS, Clean, Plant
from plants_multicast import keep, leave_out, lose_the_last

if TYPE_CHECKING:
    from planting import Cell, Draft

GROUP = Clean("group", 5)
UNIFORM = Clean("uniform", 6)


# Groups


def miss_the_end_of_a_view(run: Draft) -> list[Cell]:
    return miss_the_end(run, 0)


def miss_the_end(run: Draft, stream: int) -> list[Cell]:
    """What somebody who goes along sent last in a view."""
    for cell in reversed(run.where("deliver", stream=stream)):
        row = cell.row
        own = run.where("view", node=row.node, inc=row.inc)
        after = [each for each in own if each.row.view > row.view]
        is_last = not run.where(
            "deliver",
            lambda each, row=row: (
                each.pair == row.pair and each.view == row.view and each.idx > row.idx
            ),
        )
        together = after[0].row.part if after else ()
        told = after and run.where("shown", node=row.node, inc=row.inc, view=after[0].row.view)
        is_along = len({row.member, f"{row.peer}#{row.peer_inc}"} & set(together)) == 2
        if is_last and is_along and told and len(together) > 2:
            run.drop(cell)
            return after[:1]
    raise LookupError("nobody goes on with a sender")


def come_by_another_cut(run: Draft) -> list[Cell]:
    cell = run.last("view", lambda row: len(row.part) > 1 and len(row.cut) > 0)
    return [run.change(cell, cut=cell.row.cut[1:])]


def promise_a_lower_view(run: Draft) -> list[Cell]:
    for cell in reversed(run.where("view_freeze")):
        earlier = run.where(
            "view_freeze",
            lambda row, cell=cell: row.key == cell.row.key and row.idx < cell.row.idx,
        )
        if earlier and earlier[-1].row.view > 1:
            return [earlier[-1], run.change(cell, view=earlier[-1].row.view - 1)]
    raise LookupError("nobody promises twice")


def be_in_two_parts(run: Draft) -> list[Cell]:
    """Of a view that brings parts together, one says that another of its members came with it."""
    cell = run.last("view", lambda row: len(row.part) < len(row.members))
    other = next(key for key in cell.row.members if key not in cell.row.part)
    return [run.change(cell, part=(*cell.row.part, other))]


def skip_a_view(run: Draft) -> list[Cell]:
    """One that all of its members were in, and nobody was parted before or after."""
    for cell in run.where("view"):
        row = cell.row
        own = run.where("view", node=row.node, inc=row.inc)
        at = own.index(cell)
        if not 0 < at < len(own) - 1:
            continue
        before, after = own[at - 1].row, own[at + 1].row
        freezes = run.where("view_freeze", lambda each, before=before: each.view >= before.view)
        others = set(before.members) & set(row.members) & set(after.members) - {row.member}
        for key in others:
            pair = {row.member, key}
            if all(len(pair & set(each.row.members)) != 1 for each in freezes):
                run.drop(cell, *run.where("shown", node=row.node, inc=row.inc, view=row.view))
                return [own[at - 1], own[at + 1]]
    raise LookupError("all were parted")


def send_while_frozen(run: Draft) -> list[Cell]:
    frozen = run.last("view_freeze", lambda row: row.view > 1)
    return [frozen, run.repeat(frozen, event="send", stream=0, seqno=10**6, seqno2=10**6)]


def stay_frozen(run: Draft) -> list[Cell]:
    run.lengthen()
    cell = run.last("view", lambda row: run.is_live(row.node, row.inc))
    return [run.at_the_end(cell, event="view_freeze", view=10**6, mono_ns=cell.row.mono_ns + 1)]


def let_somebody_in_for_long(run: Draft) -> list[Cell]:
    """One after the other, for three seconds of ten."""
    begun_ns, half_ns = run.facts.end_ns, 1_500_000_000
    run.lengthen()
    view = run.last("view", lambda row: run.is_live(row.node, row.inc))
    changes: list[Cell] = []
    for at, key in enumerate(("mallory#8", "mallory#9")):
        new = {"view": 10**6 + at, "members": (*view.row.members, key)}
        now_ns = begun_ns + 2 * at * half_ns
        frozen = run.at_the_end(view, event="view_freeze", mono_ns=now_ns, **new)
        view = run.at_the_end(view, mono_ns=now_ns + half_ns, **new)
        changes += [frozen, view]
    return [changes[0], view]


def never_come_together(run: Draft) -> list[Cell]:
    run.lengthen()
    cell = run.last("view", lambda row: run.is_live(row.node, row.inc) and len(row.members) > 1)
    return [run.change(cell, view=10**6, members=(cell.row.member,))]


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


def keep_what_was_put_aside(run: Draft) -> list[Cell]:
    """Its application never gets the last of it."""
    cell = run.last("handed", lambda row: run.is_live(row.node, row.inc))
    row = cell.row
    run.drop(cell)
    waits = run.where("state_wait", lambda each: each.idx < row.idx, node=row.node, inc=row.inc)
    return waits[-1:]


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


def miss_the_last_uniform_message_of_a_view(run: Draft) -> list[Cell]:
    return miss_the_end(run, 1)


def commit_what_nobody_holds(run: Draft) -> list[Cell]:
    cell = run.last("tx", lambda row: row.seqno > 0, kind="commit")
    return [run.change(cell, seqno=cell.row.seqno + 1000, seqno2=cell.row.seqno + 1000)]


def lose_the_last_uniform_message(run: Draft) -> list[Cell]:
    return lose_the_last(run, 1)


def keep_what_all_have_of_uniform(run: Draft) -> list[Cell]:
    return keep(run, 1)


GROUP_PLANTS = [
    Plant(GROUP, "VS1", come_by_another_cut),
    Plant(GROUP, "VS1", be_in_two_parts),
    Plant(GROUP, "VS1", promise_a_lower_view),
    Plant(GROUP, "VS4", miss_the_end_of_a_view),
    Plant(GROUP, "VS5", miss_the_end_of_a_view),
    Plant(GROUP, "VS7", skip_a_view),
    Plant(GROUP, "VS9", send_while_frozen),
    Plant(GROUP, "V-L1", never_come_together),
    Plant(GROUP, "V-L4", install_views_without_end),
    Plant(GROUP, "V-L5", stay_frozen),
    Plant(GROUP, "V-L6", let_somebody_in_for_long),
    Plant(GROUP, "V-L2", never_join),
    Plant(GROUP, "V-L3", never_leave),
    Plant(GROUP, "T1", receive_another_state),
    Plant(GROUP, "T2", keep_what_was_put_aside),
    Plant(GROUP, "T3", forget_a_message),
    Plant(GROUP, "T4", lose_a_state_that_others_have),
    Plant(GROUP, "T5", forget_a_message),
    Plant(GROUP, "T-L1", never_get_a_state),
    Plant(UNIFORM, "G2", deliver_uniform_again),
    Plant(UNIFORM, "N1", leave_out_a_uniform_delivery),
    Plant(UNIFORM, "VS4", miss_the_last_uniform_message_of_a_view),
    Plant(UNIFORM, "VS5", miss_the_last_uniform_message_of_a_view),
    Plant(UNIFORM, "VS6", miss_the_last_uniform_message_of_a_view),
    Plant(UNIFORM, "U3", commit_what_nobody_holds),
    Plant(UNIFORM, "U5", lose_the_last_uniform_message),
    Plant(UNIFORM, "U7", keep_what_all_have_of_uniform),
    Plant(UNIFORM, "U-L1", lose_the_last_uniform_message),
]
