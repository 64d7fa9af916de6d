"""Groups judged by the rules of views: rows of what members did, and what applications saw."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from ringcast.events import Closed, Delivered, ViewInstalled
from ringcast.model import Purge
from ringcast.rules.table import VIEWS, verdicts
from ringcast.rules.views import uniform_in_all
from ringcast.trace.observe.messages import origin_of
from ringcast.trace.rows import Facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.events import Event
    from ringcast.model import Member, Origin, View, ViewId
    from ringcast.rules.findings import Rule
    from ringcast.trace.rows import Row

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

    def violations(self, rules: Sequence[Rule] = JUDGED) -> list[str]:
        """All there are so far; `premises` are counted anew."""
        found = verdicts(rules, self.rows, self._facts)
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
