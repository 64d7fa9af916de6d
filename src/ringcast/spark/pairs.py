"""What one member did with each other one, judged while its rows are read.

Of each rule and peer little is kept. What two members must agree on (that what was delivered was
sent) is judged from what each of them condenses: runs that continue each other are one row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ringcast.rules.findings import Findings, end
from ringcast.rules.instants import Instants, Late, Peer
from ringcast.rules.replay import Pair, follow
from ringcast.rules.table import UNICAST
from ringcast.spark.summary import CUT, MemberTrace
from ringcast.trace.rows import UNICAST_DELIVER, UNICAST_SEND, UNICAST_WIN, Facts, MemberKey, Row

RULES = tuple(rule for rule in UNICAST if rule.of_pair is not None)
RUNS_MAX = 20_000
"""Kept of what one member sent and delivered. What comes behind so many breaks is not compared."""
PROMPT = "prompt_ns"
"""In the settings of a simulated member: from when on its frames left and its timers fired at once.
Of real ones it is known row by row (`held`, `late`)."""


def terms_of(trace: MemberTrace) -> list[Facts]:
    """What a member's unicast goes by, as its footers say: its application's, and the system's."""
    return [_terms(trace, trace.settings.get(name, {})) for name in ("unicast", "channel")]


def _terms(trace: MemberTrace, told: dict[str, Any]) -> Facts:
    """Where nothing is told no wait is judged."""
    return Facts(
        tau_ns=_ns(told, "xmit_interval_s"),
        ack_interval_ns=_ns(told, "ack_interval_s"),
        expiry_ns=_ns(told, "expiry_s"),
        close_ns=_ns(told, "close_s"),
        max_retransmit_ns=_ns(told, "max_retransmit_s"),
        gst_ns=trace.settings.get(PROMPT, -1) if told else None,
    )


def _ns(told: dict[str, Any], name: str) -> int:
    return round(float(told.get(name, 0)) * 1e9)


class Pairs:
    """Takes one member's rows, in order."""

    def __init__(
        self, member: MemberKey, application: Facts, system: Facts, *, is_whole: bool
    ) -> None:
        self.found = [(rule, Findings()) for rule in RULES]
        self.rows: list[Row] = []
        """What it sent and delivered, condensed, and of each of its connections how far it has
        purged at last."""
        is_machine = application.gst_ns == -1
        self._late = Late() if is_machine else Late.NEVER
        self._instants = Instants(member, self._late)
        self._terms = application, system
        self._is_whole = is_whole
        self._feeds: dict[Peer, list[tuple[Pair, Callable[[list[Row] | None], None]]]] = {}
        self._runs: dict[tuple[object, ...], int] = {}
        self._purged: dict[tuple[object, ...], Row] = {}
        self._end_ns = 0
        self._is_cut = False

    def feed(self, row: Row) -> None:
        self._end_ns = max(self._end_ns, row.mono_ns)
        for peer, rows in self._instants.feed(row):
            self._judge(peer, rows)
        if row.event in (UNICAST_SEND, UNICAST_DELIVER) and not self._is_cut:
            self._condense(row)
        elif row.event == UNICAST_WIN and row.kind == "S" and row.low > 0:
            self._purged[row.peer, row.peer_inc, row.epoch] = row

    def end(self) -> None:
        """The last instant of who was killed is not all there, perhaps."""
        for peer, rows in self._instants.end() if self._is_whole else ():
            self._judge(peer, rows)
        for feeds in self._feeds.values():
            for pair, feed in feeds:
                pair.end_at(self._end_ns)
                end(feed)
        self.rows += self._purged.values()

    def _judge(self, peer: Peer, rows: list[Row]) -> None:
        feeds = self._feeds.get(peer)
        if feeds is None:
            terms, feeds = self._terms[peer[2]], []
            for rule, found in self.found:
                assert rule.of_pair is not None
                pair = Pair(*(terms, found), is_live=True, is_whole=self._is_whole, late=self._late)
                feeds.append((pair, follow(rule.of_pair, pair)))
            self._feeds[peer] = feeds
        for _, feed in feeds:
            feed(rows)

    def _condense(self, row: Row) -> None:
        run = row.event, row.peer, row.peer_inc, row.epoch, row.conn
        at = self._runs.get(run)
        if at is not None and self.rows[at].seqno2 + 1 == row.seqno <= row.seqno2:
            self.rows[at] = self.rows[at]._replace(seqno2=row.seqno2)
        elif len(self.rows) < RUNS_MAX:
            self._runs[run] = len(self.rows)
            self.rows.append(row)
        else:
            self.rows.append(row._replace(event=CUT))
            self._is_cut = True
