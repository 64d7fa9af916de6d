"""Groups judged by the rules of views: rows of what members did, and what applications saw."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from ringcast.core.effects import Left
from ringcast.core.view_change import Begin, Freeze
from ringcast.events import Closed, Delivered, FragmentsDelivered, ViewInstalled
from ringcast.model import Origin, Purge
from ringcast.rules.table import VIEWS, verdicts
from ringcast.rules.views import uniform_in_all
from ringcast.trace.observe.frames import columns_of
from ringcast.trace.observe.messages import origin_of, range_of
from ringcast.trace.rows import (
    DELIVER,
    FREEZE,
    OPEN,
    SEND,
    SHOWN,
    STOP,
    VIEW,
    Facts,
    Row,
    naming,
    naming_id,
)
from ringcast.window.receive import ReceiveWindow

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringcast.events import Event
    from ringcast.model import Member, View, ViewId
    from ringcast.node import Node

JUDGED = (*VIEWS, uniform_in_all)
RULES = tuple(rule.id for rule in JUDGED)


class Observed:
    """What the members of one group did, and which rules that breaks."""

    def __init__(self, purge: Purge = Purge.ACKS) -> None:
        self.rows: list[Row] = []
        self.closed: dict[Member, str] = {}
        self.premises: Counter[str] = Counter()
        """How often each rule had a case: one that never had a chance proves nothing."""
        self._facts = Facts(purge=purge.name.lower())
        self._views: dict[Member, list[View]] = defaultdict(list)
        self._got: dict[tuple[Member, ViewId, Origin], list[bytes]] = defaultdict(list)

    def violations(self) -> list[str]:
        """All there are so far; `premises` are counted anew."""
        found = verdicts(JUDGED, self.rows, self._facts)
        self.premises = Counter({verdict.id: verdict.premises for verdict in found})
        return [
            f"{verdict.id}: {violation.text}"
            for verdict in found
            for violation in verdict.violations
        ]

    def views_of(self, who: Member) -> list[View]:
        """Those that its application was told of."""
        return self._views[who]

    def got(self, who: Member, view: ViewId, origin: Origin) -> list[bytes]:
        return self._got.get((who, view, origin), [])

    def in_words(self) -> list[str]:
        """Who saw which views."""
        return [f"{who}: " + "; ".join(map(str, views)) for who, views in self._views.items()]

    def see(self, who: Member, event: Event) -> None:
        match event:
            case Delivered(epoch=0):
                self._got[who, event.view_id, origin_of(event)] += event.run.payloads
            case ViewInstalled(view):
                self._views[who].append(view)
            case Closed(reason):
                self.closed[who] = reason


class Watch:
    """The observer of one node: it writes rows of what its application does and sees."""

    def __init__(
        self,
        node: Node,
        observed: Observed,
        see: Callable[[Member, Event], None] | None = None,
    ) -> None:
        node.observer = self
        self._node = node
        self._observed = observed
        self._see = see
        self._view: ViewId | None = None
        self._sent: Counter[Origin] = Counter()
        self._open: dict[Origin, ReceiveWindow] = {}
        self._idx = 0

    def received(self, *_: object) -> None: ...
    def transmitted(self, *_: object) -> None: ...
    def before_take(self, now: int, **_: object) -> None:
        self._look(now)

    def offered(self, *arguments: Any) -> None:
        self._look(arguments[-1])

    def before_change(self, change: Freeze | Begin | Left, now: int) -> None:
        """What has its seqnos was sent in the view that ends here."""
        self._look(now)
        if isinstance(change, Left):
            return
        event = FREEZE if isinstance(change, Freeze) else VIEW
        self._write(event, now, **columns_of(change, self._node.me))
        if isinstance(change, Begin):
            self._view = change.view.id

    def took(self, events: Sequence[Event], now: int, *, buffered: bool) -> None:
        if buffered:
            return  # the application has not seen them yet
        self._look_at_sends(now)
        for event in events:
            match event:
                case Delivered(epoch=0) | FragmentsDelivered(epoch=0):
                    self._write(DELIVER, now, **naming(origin_of(event)), **range_of(event))
                case ViewInstalled(view):
                    self._write(SHOWN, now, **naming_id(view.id))
                case Closed(reason):
                    self._write(STOP, now, detail=reason)
            self._observed.see(self._node.me, event)
            if self._see is not None:
                self._see(self._node.me, event)

    def after_input(self, now: int) -> None:
        self._look(now)

    def _look(self, now: int) -> None:
        self._look_at_sends(now)
        for origin, window in self._node.multicast.windows().items():
            if isinstance(window, ReceiveWindow) and self._open.get(origin) is not window:
                self._open[origin] = window
                assert self._view is not None
                place = {**naming(origin), **naming_id(self._view)}
                self._write(OPEN, now, **place, seqno=window.delivered, seqno2=window.delivered)

    def _look_at_sends(self, now: int) -> None:
        for stream, sending in self._node.multicast.senders.items():
            origin = Origin(self._node.me, stream)
            if sending.window.high > self._sent[origin]:
                assert self._view is not None
                place = {"seqno": self._sent[origin] + 1, "seqno2": sending.window.high}
                self._sent[origin] = sending.window.high
                self._write(SEND, now, **naming(origin), **place, **naming_id(self._view))

    def _write(self, event: str, now: int, **columns: Any) -> None:
        me, rows = self._node.me, self._observed.rows
        rows.append(Row(event, str(me), me.incarnation, self._idx, len(rows), now, **columns))
        self._idx += 1
