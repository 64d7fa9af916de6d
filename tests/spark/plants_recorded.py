"""What is planted in what members recorded at the level that is the default; and a life for it.

a, b, c, d and f start together. d is killed and f leaves in good order; d comes back as another
incarnation, with e. Everybody sends on the way, large and uniform messages too, and all that are
left stop in good order. Each plant changes rows as a member that misbehaves would have written
them: no row is missing by its number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster_traces import Cluster, members

from ringcast.model import Stream

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cluster_traces import Traces

    from ringcast.model import Member
    from ringcast.trace.rows import Row


def record_life(directory: Path) -> None:
    a, b, c, d, e, f, again = members("abcdefd")
    cluster = Cluster(directory)
    cluster.install(a, b, c, d, f)
    _talk(cluster, a, b, c, d, f)
    cluster.send_large(b, 20)
    cluster.send(b, 12)
    cluster.kill(d)
    cluster.send(d, 7)
    cluster.install(a, b, c, f)
    _talk(cluster, a, b, c, f)
    cluster.leave(f)
    cluster.install(a, b, c)
    _talk(cluster, a, b, c)
    cluster.install(a, b, c, e, again)
    _talk(cluster, a, b, c, e, again)
    cluster.send_large(a, 5)
    _talk(cluster, a, b, c, e, again)
    cluster.stop()


def _talk(cluster: Cluster, *senders: Member) -> None:
    for _ in range(3):
        for sender in senders:
            cluster.send(sender, 11)
        cluster.send(senders[0], 5, Stream.UNIFORM)


# What each plant needs


def _last(traces: Traces, name: str, test: Callable[[Row], bool]) -> int:
    return max(at for at, row in enumerate(traces.rows[name]) if test(row))


def _delivery(traces: Traces, name: str, view: int, peer: str, stream: int = 0) -> int:
    """The last of that peer in that view."""
    return _last(
        traces,
        name,
        lambda row: (row.event, row.view, row.peer, row.stream) == ("deliver", view, peer, stream),
    )


def _end(traces: Traces, name: str) -> int:
    return traces.find(name, event="stop")


# The uniform stream


def lack_the_uniform_tail(traces: Traces) -> None:
    """Of a, who lives to the end: c delivers nothing of the last five."""
    last = traces.rows["c"][_delivery(traces, "c", 4, "a", 1)].seqno2
    traces.drop(
        "c",
        lambda row: row.event == "deliver" and row.stream == 1 and row.seqno > last - 5,
    )


def lack_the_uniform_tail_unpurged(traces: Traces) -> None:
    """And nobody has written down that it was purged."""
    lack_the_uniform_tail(traces)
    traces.drop("a", lambda row: row.event == "purge" and row.stream == 1)


def lack_all_uniform_messages(traces: Traces) -> None:
    traces.drop("c", lambda row: row.event == "deliver" and row.stream == 1)


def lack_a_uniform_tail_in_the_middle(traces: Traces) -> None:
    last = traces.rows["c"][_delivery(traces, "c", 2, "a", 1)].seqno2
    traces.drop(
        "c",
        lambda row: (
            row.event == "deliver" and row.stream == 1 and row.view == 2 and row.seqno > last - 5
        ),
    )


# Windows


def hide_a_gap_behind_an_open(traces: Traces) -> None:
    """In the middle of a view: some of c's messages, and an `open` in their place."""
    rows = traces.rows["b"]
    at = traces.find("b", event="deliver", peer="c", stream=0, seqno=12)
    opened = rows[traces.find("b", event="open", peer="c", stream=0)]
    rows[at] = opened._replace(seqno=rows[at].seqno2, seqno2=rows[at].seqno2)
    traces.number("b")


def hide_a_gap_behind_an_open_in_a_later_view(traces: Traces) -> None:
    rows = traces.rows["b"]
    at = _delivery(traces, "b", 2, "c") - 1
    while (rows[at].event, rows[at].peer, rows[at].stream) != ("deliver", "c", 0):
        at -= 1
    row = rows[at]
    rows[at] = row._replace(event="open", seqno=row.seqno2)
    traces.number("b")


def hide_the_end_of_a_view_behind_an_open(traces: Traces) -> None:
    """Nothing comes behind it."""
    rows = traces.rows["b"]
    at = _delivery(traces, "b", 4, "c")
    rows[at] = rows[at]._replace(event="open", seqno=rows[at].seqno2)
    traces.number("b")


def open_a_window_too_early(traces: Traces) -> None:
    """Below what its sender had sent by then."""
    at = traces.find("e", event="open", peer="b", stream=0)
    traces.change("e", at, seqno=traces.rows["e"][at].seqno - 3)


def open_a_window_before_its_view(traces: Traces) -> None:
    rows = traces.rows["e"]
    at = traces.find("e", event="open", peer="b", stream=0)
    rows.insert(traces.find("e", event="view"), rows.pop(at))
    traces.number("e")


def open_a_window_with_an_earlier_view(traces: Traces) -> None:
    """a opens that of the joiner a view too early."""
    at = traces.find("a", event="open", peer="e", stream=0)
    traces.change("a", at, view=3)


def open_a_window_for_a_stranger(traces: Traces) -> None:
    at = traces.find("a", event="open", peer="e", stream=0)
    row = traces.rows["a"][at]
    traces.insert("a", at + 1, row._replace(peer="mallory", peer_inc=9))


# Who is there


def deliver_of_the_killed_after_it_is_gone(traces: Traces) -> None:
    row = traces.rows["a"][_delivery(traces, "a", 1, "d")]
    at = _delivery(traces, "a", 2, "b")
    late = row._replace(seqno=row.seqno2 + 1, seqno2=row.seqno2 + 4, view=2, view_creator="a#100")
    traces.insert("a", at + 1, late)


def deliver_of_who_left_after_it_is_gone(traces: Traces) -> None:
    """The last that it sent is delivered a view later, and nowhere else."""
    rows = traces.rows["a"]
    at = _delivery(traces, "a", 2, "f")
    row = rows.pop(at)._replace(view=3)
    traces.number("a")
    traces.insert("a", _delivery(traces, "a", 3, "b"), row)


def deliver_of_a_stale_incarnation(traces: Traces) -> None:
    """What the new d sends is taken for the old one's, which was killed."""
    row = traces.rows["b"][_delivery(traces, "b", 1, "d")]
    at = _delivery(traces, "b", 4, "d")
    traces.change("b", at, peer_inc=row.peer_inc, seqno=row.seqno2 + 1, seqno2=row.seqno2 + 4)


def deliver_all_of_a_stale_incarnation(traces: Traces) -> None:
    """Not a message of the new d, all of the old one."""
    old = traces.rows["b"][_delivery(traces, "b", 1, "d")]
    shift = old.seqno2
    for at, row in enumerate(traces.rows["b"]):
        if row.event == "deliver" and row.peer == "d" and row.peer_inc != old.peer_inc:
            traces.change(
                "b",
                at,
                peer_inc=old.peer_inc,
                seqno=row.seqno + shift,
                seqno2=row.seqno2 + shift,
            )


def deliver_of_an_unknown_incarnation(traces: Traces) -> None:
    at = _delivery(traces, "b", 4, "d")
    traces.change("b", at, peer_inc=7777)


# Views


def deliver_in_a_later_view(traces: Traces) -> None:
    at = _delivery(traces, "b", 2, "c")
    traces.change("b", at, view=3)


def deliver_in_a_view_of_another_creator(traces: Traces) -> None:
    at = _delivery(traces, "b", 2, "c")
    traces.change("b", at, view_creator="c#102")


def send_in_an_earlier_view(traces: Traces) -> None:
    at = _last(traces, "c", lambda row: row.event == "send" and row.view == 4)
    traces.change("c", at, view=3)


def send_in_a_view_never_installed(traces: Traces) -> None:
    at = _last(traces, "c", lambda row: row.event == "send" and row.view == 4)
    traces.change("c", at, view=9)


def be_told_of_another_view(traces: Traces) -> None:
    at = traces.find("c", event="shown", view=3)
    traces.change("c", at, view=2)


def be_told_of_no_view(traces: Traces) -> None:
    traces.drop("c", lambda row: row.event == "shown" and row.view == 3)


def deliver_before_the_first_view(traces: Traces) -> None:
    rows = traces.rows["e"]
    at = traces.find("e", event="deliver", peer="a", stream=0)
    rows.insert(traces.find("e", event="view_freeze"), rows.pop(at))
    traces.number("e")


def deliver_before_being_told_of_the_first_view(traces: Traces) -> None:
    rows = traces.rows["e"]
    at = traces.find("e", event="deliver", peer="a", stream=0)
    rows.insert(traces.find("e", event="shown"), rows.pop(at))
    traces.number("e")


def deliver_in_a_view_never_installed(traces: Traces) -> None:
    at = _delivery(traces, "b", 4, "c")
    traces.change("b", at, view=9)


def never_install_a_view(traces: Traces) -> None:
    """That it delivers in."""
    traces.drop("c", lambda row: row.event in ("view", "shown", "view_freeze") and row.view == 3)


# The end


def deliver_after_the_stop(traces: Traces) -> None:
    rows = traces.rows["b"]
    rows.append(rows.pop(_delivery(traces, "b", 4, "c")))
    traces.number("b")


def send_after_the_stop(traces: Traces) -> None:
    rows = traces.rows["c"]
    rows.append(rows.pop(_last(traces, "c", lambda row: row.event == "send")))
    traces.number("c")


def purge_after_the_stop(traces: Traces) -> None:
    rows = traces.rows["c"]
    rows.append(rows.pop(_last(traces, "c", lambda row: row.event == "purge")))
    traces.number("c")


def leave_and_deliver_later(traces: Traces) -> None:
    """f has left, and is handed what is sent in the next view."""
    row = traces.rows["a"][_delivery(traces, "a", 3, "b")]
    traces.insert("f", _end(traces, "f") + 1, row._replace(node="f", inc=105))


# Content


def hash_nothing_delivered(traces: Traces) -> None:
    traces.drop("b", lambda row: row.event == "block" and row.kind == "delivered")


def hash_nothing_sent(traces: Traces) -> None:
    traces.drop("a", lambda row: row.event == "block" and row.kind == "sent")


def hash_one_block_less(traces: Traces) -> None:
    test = {"event": "block", "kind": "delivered", "peer": "a", "stream": 0, "block": 4}
    del traces.rows["b"][traces.find("b", **test)]
    traces.number("b")


def never_finish_a_large_message(traces: Traces) -> None:
    """Of b: what stands behind its fragments is one more of them."""
    at = traces.find("c", event="deliver", kind="fragment", peer="b")
    traces.change("c", at + 1, kind="fragment")


def never_finish_a_large_message_and_stop(traces: Traces) -> None:
    """c takes its fragments and nothing behind them."""
    rows = traces.rows["c"]
    at = _last(traces, "c", lambda row: row.event == "deliver" and row.kind == "fragment")
    peer, through = rows[at].peer, rows[at].seqno2
    traces.drop(
        "c",
        lambda row: (
            row.event == "deliver" and (row.peer, row.stream) == (peer, 0) and row.seqno > through
        ),
    )


def send_a_large_message_and_never_its_end(traces: Traces) -> None:
    """The run ends behind its fragments: nobody has the message, and its sender stops in good
    order."""
    at = _last(traces, "a", lambda row: row.event == "send" and row.kind == "fragment")
    through = traces.rows["a"][at].seqno2

    def is_behind(row: Row) -> bool:
        is_own = row.event == "send" and row.node == "a"
        is_taken = row.event in ("deliver", "block") and row.peer == "a"
        return (is_own or is_taken) and row.stream == 0 and row.seqno2 > through

    for name in ("a", "b", "c", "e", "d#106"):
        traces.drop(name, is_behind)
    traces.drop("a", lambda row: row.event == "purge" and row.stream == 0 and row.seqno > through)


FOUND: dict[Callable[[Traces], None], str] = {
    lack_the_uniform_tail: "N5",
    lack_all_uniform_messages: "VS6",
    lack_a_uniform_tail_in_the_middle: "VS6",
    hide_a_gap_behind_an_open: "VS3",
    hide_a_gap_behind_an_open_in_a_later_view: "VS3",
    hide_the_end_of_a_view_behind_an_open: "VS3",
    open_a_window_too_early: "VS3",
    open_a_window_before_its_view: "VS3",
    open_a_window_with_an_earlier_view: "VS3",
    open_a_window_for_a_stranger: "VS3",
    deliver_of_the_killed_after_it_is_gone: "VS2",
    deliver_of_who_left_after_it_is_gone: "VS2",
    deliver_of_a_stale_incarnation: "VS2",
    deliver_all_of_a_stale_incarnation: "VS2",
    deliver_of_an_unknown_incarnation: "VS2",
    deliver_in_a_later_view: "VS2",
    deliver_in_a_view_of_another_creator: "VS2",
    send_in_an_earlier_view: "VS9",
    send_in_a_view_never_installed: "VS9",
    be_told_of_another_view: "N8",
    be_told_of_no_view: "N8",
    deliver_before_the_first_view: "N8",
    deliver_before_being_told_of_the_first_view: "N8",
    deliver_in_a_view_never_installed: "VS2",
    never_install_a_view: "VS2",
    deliver_after_the_stop: "G3",
    send_after_the_stop: "G3",
    purge_after_the_stop: "G3",
    leave_and_deliver_later: "G3",
    never_finish_a_large_message: "G1",
    never_finish_a_large_message_and_stop: "N5",
}
"""Who finds it, for certain. Others may, too."""

MISSING = (hash_nothing_delivered, hash_nothing_sent, hash_one_block_less)
"""What is not there, though nothing says that it was lost."""

NOT_SHOWN = (lack_the_uniform_tail_unpurged, send_a_large_message_and_never_its_end)
"""No member of these did what it must not: whoever stops need not have read all, and may stop in
the middle of a large message."""
