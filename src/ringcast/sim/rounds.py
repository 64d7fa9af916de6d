"""What happened in runs where members report what they have delivered: counted, so that runs in
which nothing happened are noticed.

A message is *torn* if its sender died when some of those who go on together had it without a gap,
and others had not. Where they retain messages all of them must deliver it in the end; otherwise
those who lacked it never will. A member counts only if it has a window for the sender: one that
parted from the sender and came back, but was never told where the sender's messages go on, lacks
none of them.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ringcast.model import Stream
from ringcast.rules.algebra import NOWHERE, Lives, Progress
from ringcast.trace import rows as trace
from ringcast.trace.observe.windows import GREW, SHRANK
from ringcast.trace.rows import split_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ringcast.trace.rows import MemberKey, PairKey, Row, Trace

TORN_RETAINED = "torn messages, retained"
ALL_HAVE_THEM = "torn messages, retained: delivered by all"
TORN = "torn messages, not retained"
SOME_LACK_THEM = "torn messages, not retained: missed by some"


def reports(run: Trace, seen: Mapping[str, int]) -> dict[str, int]:
    """How often what happened; `seen` is what the rows do not tell."""
    torn, by_all = _torn(run)
    is_retained = run.facts.is_retained
    counts = {
        TORN_RETAINED: torn if is_retained else 0,
        ALL_HAVE_THEM: by_all if is_retained else 0,
        TORN: 0 if is_retained else torn,
        SOME_LACK_THEM: 0 if is_retained else torn - by_all,
        GREW: seen.get(GREW, 0),
        SHRANK: seen.get(SHRANK, 0),
        "a stability round ends": 0,
        "a report comes from who missed the last round": 0,
        "repaired by others": 0,
    }
    for row in run.rows:
        if row.event == trace.TX and row.kind == "stable":
            # To one member it is told again: its report showed that it had not heard.
            is_again = bool(row.peer)
            counts["a stability round ends"] += not is_again
            counts["a report comes from who missed the last round"] += is_again
        elif row.event == trace.TX and row.kind == "peer_repair":
            counts["repaired by others"] += 1
    return counts


class _Story:
    """Who received and delivered what of plain messages, and saw which views."""

    def __init__(self, rows: list[Row]) -> None:
        self.crashed: list[MemberKey] = []
        self.received: defaultdict[PairKey, Progress] = defaultdict(Progress)
        self.delivered: defaultdict[PairKey, Progress] = defaultdict(Progress)
        self.opened: dict[PairKey, int] = {}
        self.lives = Lives()
        for row in rows:
            if row.event in Lives.EVENTS:
                self.lives.feed(row)
                if row.event == trace.CRASH:
                    self.crashed.append((row.node, row.inc))
            elif row.stream != Stream.FIFO:
                continue
            elif row.event == trace.OPEN:
                self.opened[row.pair] = row.run_idx
                self.received[row.pair].rise(row.run_idx, row.seqno, row)
                self.delivered[row.pair].rise(row.run_idx, row.seqno, row)
            elif row.event == trace.WIN and row.kind == "receive":
                self.received[row.pair].rise(row.run_idx, row.received, row)
            elif row.event == trace.DELIVER:
                self.delivered[row.pair].rise(row.run_idx, row.seqno2, row)

    def departure(self, sender: str, member: MemberKey) -> tuple[Row, list[Row]] | None:
        """The view with which this member saw that one go for good, and all from then on."""
        views = self.lives.views.get(member, [])
        with_it = [place for place, view in enumerate(views) if sender in view.members]
        if not with_it or with_it[-1] + 1 == len(views):
            return None
        since = views[with_it[-1] + 1 :]
        return since[0], since

    def heirs(self, sender: str, stopped: frozenset[str]) -> list[dict[PairKey, Row]]:
        """Those who go on together without it, each with the view in which it does."""
        groups: defaultdict[tuple[str, int], dict[MemberKey, list[Row]]] = defaultdict(dict)
        for member in self.lives.views:
            found = self.departure(sender, member)
            is_due = self.lives.is_live(member) and f"{member[0]}#{member[1]}" not in stopped
            if found is not None and is_due:
                first, since = found
                groups[first.view_creator, first.view][member] = since
        origin = (*split_key(sender), int(Stream.FIFO))
        heirs = []
        for group in groups.values():
            names = {f"{member[0]}#{member[1]}" for member in group}
            if all(names <= set(view.members) for since in group.values() for view in since):
                pairs = {(*member, *origin): since[0] for member, since in group.items()}
                heirs.append(
                    {pair: view for pair, view in pairs.items() if self._has_window(pair, view)}
                )
        return heirs

    def _has_window(self, pair: PairKey, departure: Row) -> bool:
        """It received from the sender since it last was without it, before this departure."""
        sender = f"{pair[2]}#{pair[3]}"
        views = self.lives.views[pair[0], pair[1]]
        apart = [
            view.run_idx
            for view in views
            if view.run_idx < departure.run_idx and sender not in view.members
        ]
        return pair in self.received and self.opened.get(pair, -1) >= max(apart, default=-1)


def _torn(run: Trace) -> tuple[int, int]:
    """How many messages were torn, and how many of them all who go on have delivered."""
    story = _Story(run.rows)
    torn = by_all = 0
    for node, inc in story.crashed:
        for heirs in story.heirs(f"{node}#{inc}", run.facts.stopped_members):
            received = [story.received[pair].at(view.run_idx) for pair, view in heirs.items()]
            if len(received) > 1:
                everybody = min(story.delivered.get(pair, NOWHERE).value for pair in heirs)
                torn += max(received) - min(received)
                by_all += min(max(everybody, min(received)), max(received)) - min(received)
    return torn, by_all
