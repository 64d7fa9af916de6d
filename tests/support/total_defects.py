"""One order of all total messages, broken on purpose: one rule at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ringcast.core.view_change import NOTHING_ORDERED
from ringcast.model import Stream
from ringcast.protocols.multicast_receiver import MulticastReceiver
from ringcast.protocols.total.history import History
from ringcast.protocols.total.order import TotalOrder
from ringcast.protocols.total.pending import Pending
from ringcast.protocols.total.queues import Queues
from ringcast.protocols.total.reading import OrderReader
from ringcast.protocols.total.streams import OrderedStreams
from ringcast.protocols.views import parts, streams
from ringcast.protocols.views.agreement import Agreement
from ringcast.protocols.views.reading import Reading, installed
from ringcast.protocols.views.streams import ViewStreams
from ringcast.wire.batches import Head

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ringcast.core.effects import Effects
    from ringcast.core.view_change import Begin, Cut, OrderStanding
    from ringcast.events import ViewInstalled
    from ringcast.model import Member, View
    from ringcast.protocols.total.order import Begun
    from ringcast.protocols.total.reading import Start
    from ringcast.wire.frames import Data, OrderMessage

BEGIN, RECEIVE = TotalOrder.begin, TotalOrder.receive
ELSEWHERE, FREEZE = TotalOrder._come_from_elsewhere, TotalOrder.freeze
ACCEPT, SUBMIT, PENDING_TAKE = Pending.accept, Pending.submit, Pending.take
RESTORE, DEPART = History.restore, History.depart
OFFER, TAKE = Queues.offer, Queues.take
ON_DATA, READ, READER_BEGIN = MulticastReceiver.on_data, OrderReader.read, OrderReader.begin
WITH_ORDER = parts._with_order
VIEW_BEGIN = ViewStreams._begin


def silent(self: object, *arguments: object, **options: object) -> None:
    """Does nothing."""


def takes_what_is_held(self: MulticastReceiver, data: Data, *args: Any, **options: Any) -> None:
    ON_DATA(self, data, *args, **options)
    if data.stream is Stream.TOTAL and not self.stream.is_frozen:
        self.window.open_gate(self.window.received)


def keeps_its_queues(self: TotalOrder, view: View, *args: Any) -> Begun:
    before = self.queues
    begun = BEGIN(self, view, *args)
    if before is not None and self.queues is not None:
        self.queues._waiting, self.queues._sizes = before._waiting, before._sizes
        self.queues._turn = before._turn
    return begun


def orders_while_frozen(self: TotalOrder, next_tag: int) -> None:
    is_open = self.is_open
    FREEZE(self, next_tag)
    self.is_open = is_open


def forgets_marks(self: History, standing: OrderStanding) -> None:
    RESTORE(self, standing._replace(marks={}))


def keeps_higher_marks(self: History, standing: OrderStanding) -> None:
    marks = dict(standing.marks)
    for member, mark in self.marks.items():
        marks[member] = max(mark, marks.get(member, 0))
    RESTORE(self, standing._replace(marks=marks))


def counts_by_itself(self: History, standing: OrderStanding) -> None:
    RESTORE(self, standing._replace(position=self.position))


def forgets_the_departed(
    self: History, before: Sequence[Member], left: set[Member], view: View
) -> None:
    self.marks = {who: mark for who, mark in self.marks.items() if who in view}


def lets_nobody_skip(
    self: Queues, origin: Member, head: Head, batch: bytes, *, is_lowest: bool
) -> None:
    OFFER(self, origin, head, batch, is_lowest=False)


def keeps_what_is_known(self: TotalOrder, *args: Any) -> list[Any]:
    self.pending.carried = self.pending.high
    return []


def carries_nothing(self: TotalOrder, *args: Any) -> list[Any]:
    found = ELSEWHERE(self, *args)
    self.pending.carried = 0
    return found


def drops_when_it_submits(self: Pending, place: int, largest: int) -> list[Any]:
    batches = SUBMIT(self, place, largest)
    self.drop(self.next - 1)
    return batches


def submits_the_newest_anew(self: Pending) -> None:
    self.go_back(max(self.low, self.high), 0)


def minds_no_tag(
    self: TotalOrder, source: Member, message: OrderMessage, now: int, out: Effects
) -> None:
    RECEIVE(self, source, replace(message, tag=self._tag or 1), now, out)


def stands_at_what_is_taken(self: TotalOrder, held: int) -> OrderStanding:
    return self.history.standing


def names_by_lists(
    begin: Begin, together: frozenset[Member], unconfirmed: Any, before: View | None
) -> ViewInstalled:
    """Who was in both lists of members has neither gone nor come."""
    event = installed(begin, together, unconfirmed, before)
    gone = tuple(who for who in event.gone if who not in begin.view)
    came = tuple(who for who in event.came if who not in event.gone)
    return replace(event, gone=gone, came=came)


def cut_without_order(cut: Cut, states: Any) -> Cut:
    return replace(WITH_ORDER(cut, states), order=NOTHING_ORDERED)


def accepts_always(self: TotalOrder, payloads: Sequence[bytes], now: int, out: Effects) -> int:
    accepted = self.pending.accept(payloads)
    self._submit(now, out)
    return accepted


def begins_without_the_cut(self: ViewStreams, begin: Begin, now: int, out: Effects) -> None:
    """Of the log of the view that ends only what was committed."""
    log = None if self.total is None or self.total.entries is None else self.total.entries.log
    part = begin.cut.part_of(self.me)
    if log is not None and log.origin.sender != self.me:
        part.cuts[log.origin] = log.window.delivered  # type: ignore[index]
        log.window.gate = log.window.delivered
    VIEW_BEGIN(self, begin, now, out)


def keeps_its_parts(self: OrderReader, start: Start) -> None:
    self.position, self._seen = start


def sees_nothing(self: OrderReader, start: Start) -> None:
    READER_BEGIN(self, start._replace(seen={}))


def sees_in_one_view(self: TotalOrder, taken: Mapping[Member, int]) -> None:
    self._seen = dict(taken)


def serves_one_origin(self: Queues, count: int) -> list[tuple[Member, bytes]]:
    taken: list[tuple[Member, bytes]] = []
    while self._turn and len(taken) < count:
        origin = self._turn[0]
        taken += TAKE(self, 1)
        if origin in self._waiting:
            self._turn.remove(origin)
            self._turn.appendleft(origin)
    return taken


def keeps_nothing_early(self: TotalOrder, next_tag: int) -> None:
    FREEZE(self, 0)


def counts_batches(self: OrderReader, first: int, pieces: list[bytes], *args: Any) -> None:
    before = self.position
    READ(self, first, pieces, *args)
    self.position = before + len(pieces)


DEFECTS: dict[str, list[tuple[Any, str, Any]]] = {
    "1 takes what is held": [(MulticastReceiver, "on_data", takes_what_is_held)],
    "2 goes on with its queues": [(TotalOrder, "begin", keeps_its_queues)],
    "3 accepts and orders while frozen": [
        (TotalOrder, "freeze", orders_while_frozen),
        (TotalOrder, "send", accepts_always),
    ],
    "4 marks of a joiner": [(History, "restore", forgets_marks)],
    "5 marks higher than the cut's": [(History, "restore", keeps_higher_marks)],
    "6 nobody may skip": [(Queues, "offer", lets_nobody_skip)],
    "7 marks of the departed": [(History, "depart", forgets_the_departed)],
    "8 known stays pending": [(TotalOrder, "_come_from_elsewhere", keeps_what_is_known)],
    "9 drops when it submits": [(Pending, "submit", drops_when_it_submits)],
    "10 submits nothing anew": [(Pending, "restart", silent)],
    "11 submits the newest anew": [(Pending, "restart", submits_the_newest_anew)],
    "12 minds no tag": [(TotalOrder, "receive", minds_no_tag)],
    "13 carries nothing": [(TotalOrder, "_come_from_elsewhere", carries_nothing)],
    "14 counts by itself": [(History, "restore", counts_by_itself)],
    "15 view before the rest": [
        (Reading, "is_due", property(lambda reading: bool(reading.unread)))
    ],
    "16 stands at what is taken": [(TotalOrder, "standing", stands_at_what_is_taken)],
    "17 parts count": [(Head, "ends", property(lambda head: 1 if head.is_part else head.extent))],
    "18 unfinished tails stay": [(OrderReader, "begin", keeps_its_parts)],
    "20 gone by lists": [(streams, "installed", names_by_lists)],
    "22 serves one origin": [(Queues, "take", serves_one_origin)],
    "27 cut without order": [(parts, "_with_order", cut_without_order)],
    "cut at what each has": [(Agreement, "is_kept", lambda self, stream: False)],
    "takes no cut": [(ViewStreams, "_begin", begins_without_the_cut)],
    "counts batches": [(OrderReader, "read", counts_batches)],
    "sees nothing": [(OrderReader, "begin", sees_nothing)],
    "waits for none of its own": [(OrderedStreams, "_is_ordered", property(lambda self: True))],
    "sees in one view": [(TotalOrder, "_see", sees_in_one_view)],
    "keeps nothing early": [(TotalOrder, "freeze", keeps_nothing_early)],
    "keeps what is taken": [(Pending, "take", silent)],
    "restores nothing": [(History, "restore", silent)],
}
"""By the numbers that docs/protocols/total.md has for them."""
