"""What is planted in what members recorded of the one order; and a life for it.

a, b, c and d start together, and a is their sequencer. All send total messages. a is killed, and
the others take what it had ordered last. e joins and waits for its state; before that is there f
joins too, and what e has in its state it never takes. d was away when that happened, and comes back
with what it had pending, which is carried. All that are left stop in good order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cluster_traces import Cluster, members

from ringcast.events import Delivered
from ringcast.model import Run, Stream
from ringcast.trace.rows import STATE_RECEIVED, STATE_WAIT, member_key, naming_id

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cluster_traces import Traces

    from ringcast.model import Member
    from ringcast.trace.rows import Row

MESSAGES = 6


class OrderedCluster(Cluster):
    """Perfect members, with one order."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.position = 0
        self.numbers: dict[Member, int] = {}
        self.behind: set[Member] = set()
        """They wait for their state."""
        self._lead: tuple[Member, ...] = ()
        """Of the last view."""

    def shown(self) -> dict[str, Any]:
        assert self.view is not None
        came = tuple(member_key(each) for each in self.view if each not in self._lead)
        gone = tuple(member_key(each) for each in self._lead if each not in self.view)
        return {"low": self.position, "members": came, "part": gone}

    def install(self, *members: Member) -> None:
        lead = () if self.view is None else self.view.members
        self._lead = lead or members[:1]
        super().install(*members)

    def order(self, sender: Member, *, carried: bool = False) -> None:
        """One batch, which each takes otherwise cut."""
        assert self.view is not None
        first = self.numbers.get(sender, 0) + 1
        self.numbers[sender] = first + MESSAGES - 1
        if sender not in self.killed and not carried:
            self.accept(sender, first)
        for member in self.view:
            if member in self.killed or member in self.behind:
                continue
            self.cut = self.cut % 4 + 2
            for at in range(0, MESSAGES, self.cut):
                run = Run(Stream.TOTAL, first + at, [b"."] * min(self.cut, MESSAGES - at))
                place = self.view.id, 0, self.position + 1 + at, carried
                self.recorders[member].ordered(Delivered(sender, run, *place), self._tick())
        self.position += MESSAGES

    def accept(self, sender: Member, first: int) -> None:
        view = self.views[sender]
        last = first + MESSAGES - 1
        self.recorders[sender].accepted(first, last, view.id, self._tick())

    def wait(self, member: Member) -> None:
        self.behind.add(member)
        self.recorders[member].write(STATE_WAIT, self._tick())

    def get_state(self, member: Member) -> None:
        assert self.view is not None
        self.behind.remove(member)
        self.recorders[member].write(STATE_RECEIVED, self._tick(), **naming_id(self.view.id))


def record_order(directory: Path) -> None:
    a, b, c, d, e, f = members("abcdef")
    cluster = OrderedCluster(directory)
    cluster.install(a, b, c, d)
    _talk(cluster, a, b, c, d)
    cluster.kill(a)
    cluster.order(a)
    cluster.install(b, c, d)
    _talk(cluster, b, c, d)
    cluster.accept(d, cluster.numbers[d] + 1)
    cluster.install(b, c, e)  # without d
    cluster.wait(e)
    _talk(cluster, b, c)
    cluster.install(b, c, e, f)
    cluster.get_state(e)
    _talk(cluster, b, e, c, f)
    cluster.install(b, c, e, f, d)
    cluster.order(d, carried=True)
    _talk(cluster, b, c, d, e, f)
    cluster.stop()


def _talk(cluster: OrderedCluster, *senders: Member) -> None:
    for _ in range(3):
        for sender in senders:
            cluster.order(sender)


# What each plant needs


def _orders(traces: Traces, name: str, view: int, peer: str = "") -> list[int]:
    """Where the rows are of what it took in this view."""
    return [
        at
        for at, row in enumerate(traces.rows[name])
        if (row.event, row.view) == ("order", view) and peer in ("", row.peer)
    ]


def _everywhere(traces: Traces, view: int, change: Callable[[Row], Row]) -> None:
    """At all members, of what they took in this view."""
    for name, rows in traces.rows.items():
        for at in _orders(traces, name, view):
            rows[at] = change(rows[at])


def exchange_two_messages(traces: Traces) -> None:
    rows, places = traces.rows["c"], _orders(traces, "c", 2)
    one, two = next(
        (one, two)
        for one in places
        for two in places
        if rows[one].peer != rows[two].peer
        and rows[one].seqno2 - rows[one].seqno == rows[two].seqno2 - rows[two].seqno
    )
    rows[one], rows[two] = (
        rows[at]._replace(peer=row.peer, peer_inc=row.peer_inc, seqno=row.seqno, seqno2=row.seqno2)
        for at, row in ((one, rows[two]), (two, rows[one]))
    )


def take_for_carried_what_is_not(traces: Traces) -> None:
    traces.change("c", _orders(traces, "c", 2)[0], detail="carried")


def take_other_than_the_killed_sequencer(traces: Traces) -> None:
    """It had said that it took its own messages last; the others take those of b there."""
    row = traces.rows["a"][_orders(traces, "a", 1)[-1]]
    for name in "bcd":
        at = _orders(traces, name, 1)[-1]
        assert traces.rows[name][at].low > row.low
    last = _orders(traces, "a", 1)[-1]
    traces.change("a", last, peer="b", peer_inc=101)


def take_less_than_others(traces: Traces) -> None:
    """What c should have taken last before it went on."""
    del traces.rows["c"][_orders(traces, "c", 2)[-1]]
    traces.number("c")


def begin_a_view_elsewhere(traces: Traces) -> None:
    at = traces.find("c", event="shown", view=4)
    traces.change("c", at, low=traces.rows["c"][at].low + 1)


def say_that_nobody_is_gone(traces: Traces) -> None:
    traces.change("c", traces.find("c", event="shown", view=2), part=())


def take_again(traces: Traces) -> None:
    rows, places = traces.rows["c"], _orders(traces, "c", 5, "b")
    earlier = rows[places[0]]
    size = rows[places[-1]].seqno2 - rows[places[-1]].seqno
    traces.change("c", places[-1], seqno=earlier.seqno, seqno2=earlier.seqno + size)


def see_what_is_new(traces: Traces) -> None:
    """b has been there all the time."""
    traces.change("b", _orders(traces, "b", 5)[-1], detail="seen")


def order_again_what_the_killed_had_ordered(traces: Traces) -> None:
    """All take it twice."""
    least = traces.rows["b"][_orders(traces, "b", 2, "b")[0]].seqno
    _everywhere(
        traces,
        2,
        lambda row: (
            row._replace(seqno=row.seqno - least + 1, seqno2=row.seqno2 - least + 1)
            if row.peer == "b"
            else row
        ),
    )


def leave_a_message_out(traces: Traces) -> None:
    _everywhere(
        traces,
        5,
        lambda row: (
            row._replace(seqno=row.seqno + 1, seqno2=row.seqno2 + 1) if row.peer == "f" else row
        ),
    )


def order_batches_the_wrong_way_round(traces: Traces) -> None:
    """The last two of e, for all."""
    last = (traces.rows["b"][_orders(traces, "b", 5, "e")[-1]].seqno2 - 1) // MESSAGES

    def change(row: Row) -> Row:
        shift = {last: -MESSAGES, last - 1: MESSAGES}.get((row.seqno - 1) // MESSAGES, 0)
        if row.peer != "e":
            return row
        return row._replace(seqno=row.seqno + shift, seqno2=row.seqno2 + shift)

    _everywhere(traces, 5, change)


def order_of_who_is_gone(traces: Traces) -> None:
    """a's next, in the view that says that it is gone."""
    had = max(row.seqno2 for row in traces.rows["b"] if row.event == "order" and row.peer == "a")
    least = traces.rows["b"][_orders(traces, "b", 2, "d")[0]].seqno
    _everywhere(
        traces,
        2,
        lambda row: (
            row._replace(
                peer="a",
                peer_inc=100,
                seqno=row.seqno - least + had + 1,
                seqno2=row.seqno2 - least + had + 1,
            )
            if row.peer == "d"
            else row
        ),
    )


def say_nothing_of_having_been_away(traces: Traces) -> None:
    """d had accepted them before it was gone."""
    _everywhere(traces, 5, lambda row: row._replace(detail=""))


def accept_while_frozen(traces: Traces) -> None:
    rows = traces.rows["b"]
    at = max(at for at, row in enumerate(rows) if (row.event, row.view) == ("accept", 2))
    row = rows.pop(at)
    freeze = next(at for at, row in enumerate(rows) if (row.event, row.view) == ("view_freeze", 3))
    rows.insert(freeze + 1, row)
    traces.number("b")


def skip_positions(traces: Traces) -> None:
    for at in _orders(traces, "c", 5)[-2:]:
        traces.change("c", at, low=traces.rows["c"][at].low + 5)


def take_before_the_view_is_told(traces: Traces) -> None:
    rows = traces.rows["c"]
    rows.insert(traces.find("c", event="shown", view=4), rows.pop(_orders(traces, "c", 4)[0]))
    traces.number("c")


FOUND: dict[Callable[[Traces], None], str] = {
    exchange_two_messages: "O1",
    take_for_carried_what_is_not: "O1",
    take_other_than_the_killed_sequencer: "O1",
    take_less_than_others: "O5",
    begin_a_view_elsewhere: "O7",
    say_that_nobody_is_gone: "O7",
    take_again: "O2",
    see_what_is_new: "O2",
    order_again_what_the_killed_had_ordered: "O2",
    leave_a_message_out: "O3",
    order_batches_the_wrong_way_round: "O3",
    order_of_who_is_gone: "O6",
    say_nothing_of_having_been_away: "O6",
    accept_while_frozen: "O8",
    skip_positions: "O9",
    take_before_the_view_is_told: "O9",
}
"""Who finds it, for certain. Others may, too."""
