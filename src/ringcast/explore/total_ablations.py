"""BROKEN on purpose, not for use: total messages with one of their rules taken away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ringcast.core.effects import Effects
from ringcast.core.shared import Deadlines, GroupState
from ringcast.core.view_change import NOTHING_ORDERED, Begin, Cut, OrderStanding
from ringcast.events import ViewInstalled
from ringcast.explore.broken import Ablation, broken, nothing, reading_ahead, without
from ringcast.explore.total import Orders, TotalViews
from ringcast.explore.view_steps import ORDERED, Script
from ringcast.model import Member, Stream, View
from ringcast.protocols.multicast_receiver import MulticastReceiver
from ringcast.protocols.total.history import History
from ringcast.protocols.total.order import Begun, TotalOrder
from ringcast.protocols.total.pending import Pending, Submitted
from ringcast.protocols.total.queues import Queues
from ringcast.protocols.total.reading import Start
from ringcast.protocols.views.proposer import Proposer
from ringcast.protocols.views.streams import ViewStreams
from ringcast.wire.batches import Head
from ringcast.wire.frames import Data, OrderMessage


def _streams(
    order: type = TotalOrder, history: type = History, pending: type = Pending, **parts: object
) -> type:
    """With these parts instead of its own."""

    def attach(self: ViewStreams, group: GroupState, deadlines: Deadlines) -> None:
        ViewStreams.attach(self, group, deadlines)
        capacity = self.config.capacity
        self.total = total = order(self.me, capacity, self._fragment_bytes)
        total.history, total.pending = history(), pending(capacity)
        total.attach(deadlines.owner("total"))

    return broken(ViewStreams, **{"attach": attach, **parts})


def _take_what_is_held(self: MulticastReceiver, data: Data, *rest: Any, **more: Any) -> None:
    MulticastReceiver.on_data(self, data, *rest, **more)
    if not self.stream.is_frozen:
        self.window.open_gate(self.window.received)


def _forget_the_departed(self: History, _: Iterable[Member], __: set[Member], view: View) -> None:
    self.marks = {who: mark for who, mark in self.marks.items() if who in view}


def _keep_own_marks(self: History, standing: OrderStanding) -> None:
    History.restore(self, standing._replace(marks=self.marks))


def _keep_higher_marks(self: History, standing: OrderStanding) -> None:
    marks = dict(standing.marks)
    for member, mark in self.marks.items():
        marks[member] = max(mark, marks.get(member, 0))
    History.restore(self, standing._replace(marks=marks))


def _count_on(self: History, standing: OrderStanding) -> None:
    History.restore(self, standing._replace(position=self.position))


def _let_nobody_skip(
    self: Queues, origin: Member, head: Head, batch: bytes, *, is_lowest: bool
) -> None:
    Queues.offer(self, origin, head, batch, is_lowest=False)


def _begin_with(
    self: TotalOrder, view: View, *rest: Any, queues: type[Queues] | None = None
) -> Begun:
    """Queues of another kind from here on, or those of the view before."""
    before = self.queues
    begun = TotalOrder.begin(self, view, *rest)
    if self.queues is not None and queues is not None:
        self.queues.__class__ = queues
    elif self.queues is not None and before is not None:
        self.queues._waiting, self.queues._sizes = before._waiting, before._sizes
        self.queues._turn = before._turn
    return begun


def _begin_without_skipping(self: TotalOrder, view: View, *rest: Any) -> Begun:
    return _begin_with(self, view, *rest, queues=broken(Queues, offer=_let_nobody_skip))


def _keep_what_is_known(self: TotalOrder, *_: Any) -> list[Any]:
    self.pending.carried = self.pending.high
    return []


def _carry_nothing(self: TotalOrder, *rest: Any) -> list[Any]:
    found = TotalOrder._come_from_elsewhere(self, *rest)
    self.pending.carried = 0
    return found


def _drop_what_is_submitted(self: Pending, place: int, largest: int) -> list[Submitted]:
    batches = Pending.submit(self, place, largest)
    self.drop(self.next - 1)
    return batches


def _mind_no_tag(self: TotalOrder, source: Member, said: OrderMessage, *rest: Any) -> None:
    TotalOrder.receive(self, source, replace(said, tag=self._tag), *rest)


def _stay_open(self: TotalOrder, next_tag: int) -> None:
    is_open = self.is_open
    TotalOrder.freeze(self, next_tag)
    self.is_open = is_open


def _name_by_lists(
    self: ViewStreams, begin: Begin, event: ViewInstalled, *rest: Any
) -> tuple[ViewInstalled, Start | None]:
    """Who is in the lists of both views has neither gone nor come."""
    gone = tuple(who for who in event.gone if who not in begin.view)
    came = tuple(who for who in event.came if who not in event.gone)
    return ViewStreams._begin_total(self, begin, replace(event, gone=gone, came=came), *rest)


def _begin_without_the_cut(self: ViewStreams, begin: Begin, now: int, out: Effects) -> None:
    """Of the log of the view that ends only what was committed."""
    for origin, receiver in self.receivers.items():
        for part in begin.cut.parts if origin.stream is Stream.TOTAL else ():
            if self.me in part.members and origin in part.cuts:
                cuts = {**part.cuts, origin: receiver.window.gate}
                parts = (part._replace(cuts=cuts), *(p for p in begin.cut.parts if p is not part))
                begin = replace(begin, cut=replace(begin.cut, parts=parts))
    ViewStreams._begin(self, begin, now, out)


def _cut_without_order(self: Proposer) -> Cut:
    return replace(Proposer._make_cut(self), order=NOTHING_ORDERED)


def _see_in_one_view(self: TotalOrder, taken: Mapping[Member, int]) -> None:
    self._seen = dict(taken)


def _members(
    targets: str, sender: str, views: str = "ABC", *, messages: int = 1, **parts: Any
) -> Ablation:
    """They change to these views, one after the other, each led by who is named first."""
    sets = tuple(targets.split())
    scenario = Orders(
        *("", tuple(views.split()), sender),
        messages=messages,
        proposals=len(sets),
        crashes=0,
        targets=sets,
    )
    return without("system", TotalViews, scenario, **parts)


def _order(*where: str, messages: int = 1, **parts: Any) -> Ablation:
    protocol = _streams(order=broken(TotalOrder, **parts))
    return _members(*where, messages=messages, protocol=protocol)


def _history(*where: str, **parts: Any) -> Ablation:
    return _members(*where, protocol=_streams(history=broken(History, **parts)))


def _pending(*where: str, **parts: Any) -> Ablation:
    return _members(*where, protocol=_streams(pending=broken(Pending, **parts)))


_GREEDY = broken(MulticastReceiver, on_data=_take_what_is_held)

OF_TOTAL = {
    "gate": _members("B", "B", protocol=_streams(receiver=_GREEDY)),
    "keep": _pending("BC", "B", submit=_drop_what_is_submitted),
    "resubmit": _pending("AB", "B", restart=nothing),
    "queues": Ablation(
        {"multicast": _streams(order=broken(TotalOrder, begin=_begin_with))},
        Script("", ("ABC",), crashes="C", idle="B", messages=3, capacity=2, streams=ORDERED),
    ),
    "tag": _members(
        *("AC ABC", "B"),
        protocol=_streams(order=broken(TotalOrder, receive=_mind_no_tag)),
        _may_come=lambda self, world, said: world.people[said.dest].is_there,
    ),
    "frozen": _order("AB", "B", freeze=_stay_open),
    "commit": _members("BC", "B", protocol=_streams(_begin=_begin_without_the_cut)),
    "order": _members("AB", "B", protocol=_streams(attach=reading_ahead)),
    "held": _order("ABC", "B", "AB C", standing=lambda self, _: self.history.standing),
    "lead": _members("C CAB", "C", proposer=broken(Proposer, _make_cut=_cut_without_order)),
    "base": _history("C CAB", "C", restore=_count_on),
    "departed": _history("AB ABC", "C", depart=_forget_the_departed),
    "cut marks": _history("AB ABC", "C", restore=_keep_own_marks),
    "lower marks": _history("A BCA", "B", restore=_keep_higher_marks),
    "skip": _order("ABC", "C", "AB C", messages=2, begin=_begin_without_skipping),
    "known": _order("AB ABC", "C", _come_from_elsewhere=_keep_what_is_known),
    "carried": _order("AC ABC", "B", _come_from_elsewhere=_carry_nothing),
    "parts": _members("CAB AB CB", "C", protocol=_streams(_begin_total=_name_by_lists)),
    "seen": _order("A BCA", "B", _see=_see_in_one_view),
}
"""First what one view takes, then what a change does, then what parts do that meet."""
