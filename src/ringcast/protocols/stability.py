"""StabilityRounds: what everybody has, found by report instead of by an ack from each to each.

With acks, n members that all send cost n² acks for every window's worth of messages. Here all tell
one member how far they have come with each other, and that one tells all what everybody has: 2n
datagrams, however many of them send. JGroups' NAKACK2 and NAKACK3 leave this to STABLE. It is for
plain messages; uniform ones are acknowledged, since each waits for everybody's word anyway.

A report names its place in a round: it says which Stable this member has heard last. A round ends
when everybody has reported who has heard the end of the last one. So nobody is more than one round
behind anybody, and a receiver that retains messages needs room for two windows, not for any number.

On send and on Data: report within the interval.
On take: the same; but at once after so many bytes, as senders count them, or messages of one.
    Where somebody's receive buffer is small, so that a Stable allows senders little, the interval
    is shorter by as much: a round waits for everybody, and senders stand still meanwhile.
On view: whatever was reported is void: places in a report are places in its view, and who is new
    counts from now on. Everybody reports, at once.
On StabilityReport, as coordinator: note it. From somebody who missed the last Stable, unless they
    have just crossed: send that again, and ask for a report when it is heard; twice in an interval
    at most. When everybody has reported, tell all the minima: Stable.
On Stable from the coordinator of my view, about it: what everybody has may go, here too.
On StabilityQuery: report at once, or when the Stable has come that it speaks of; but once in a
    round. As coordinator: have all the others do so, too, until a round has ended that was begun
    after that: one that is under way may end with reports from before.
Every interval, while something that is known here was not stable in the last round but one: report
    again. (The last round shows that all have heard of that one, and senders may go on from there.)
    If there is nothing new to say, the pause doubles, up to τ.

Both are cumulative: the next makes good what is lost, until all is stable. Then all are silent."""

from __future__ import annotations

from enum import auto
from typing import TYPE_CHECKING

from ringcast.core.shared import Deadlines, GroupState, Named, Timers
from ringcast.window.send import DATAGRAM_OVERHEAD
from ringcast.wire.frames import Mark, StabilityQuery, StabilityReport, Stable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.config import MulticastConfig
    from ringcast.core.effects import Effects
    from ringcast.model import Member, View

CROSSING_NS = 2_000_000
"""A report that comes so soon after a Stable may have been sent before that arrived."""
INTERVAL_MIN_NS = 1_000_000
"""No receive buffer is so small that members report more often than this, with nothing new."""


class Timer(Named):
    REPORT = auto()
    """Something is not known to be stable."""


class StabilityRounds:
    """The reports of one member, and as coordinator those of all."""

    def __init__(self, me: Member, config: MulticastConfig) -> None:
        assert config.stability is not None
        self._me = me
        self.is_due = False
        """StabilityReport now."""
        self.news: Stable | None = None
        """What has become stable, for the owner of the windows to take from here."""
        self.reports_sent = 0
        self._interval_usual = self._interval_min = round(config.stability.interval_s * 1e9)
        self._ample = config.window_bytes  # for all senders together: then that is soon enough
        self._interval_max = max(self._interval_min, round(config.xmit_interval_s * 1e9))
        self._interval = self._interval_min
        self._threshold = config.stability.threshold_bytes or config.window_bytes // 8
        self._every = config.ack_threshold or max(config.ack_every, config.capacity_max // 16)
        self._number = 0  # of the last Stable that was heard in this view
        self._marks: tuple[Mark, ...] = ()  # of that one,
        self._marks_before: tuple[Mark, ...] = ()  # and of the one before
        self._said: tuple[int, ...] | None = None  # the last report in this view,
        self._said_after = -1  # and which Stable had been heard by then
        self._delivered_bytes = 0  # since then,
        self._delivered_of: set[Member] = set()  # and whose;
        self._datagrams = 0  # and in how many datagrams they came
        self._asked = 0  # to report once this Stable has come
        # As coordinator
        self._reports: dict[Member, StabilityReport] = {}
        self._reported: set[Member] = set()  # in this round
        self._last: Stable | None = None
        self._ended_at = 0  # the last round
        self._told: dict[Member, int] = {}  # when it was retransmitted, and to whom
        self._wanted = 0  # until the end of this round everybody is asked to report at once
        self.attach(GroupState(me), Deadlines())

    def attach(self, group: GroupState, deadlines: Deadlines) -> None:
        """As layers are."""
        self.group = group
        self._timers: Timers[Timer] = deadlines.owner("stability")

    # Inputs

    def install_view(self) -> None:
        self._number = 0
        self._marks = self._marks_before = ()
        self._said = None
        self._said_after = -1
        self._asked = 0
        self._reports.clear()
        self._reported.clear()
        self._told.clear()
        self._last = None
        self._wanted = 0
        self.news = None
        self._interval = self._interval_min
        self.is_due = True

    def delivered(self, sender: Member, delivered: int, size: int, buffer: int, now: int) -> None:
        """The application has delivered so many bytes of this sender, up to `delivered`. `buffer`
        is what all senders together may have under way to this member."""
        assert self.group.view is not None
        self._delivered_bytes += size
        self._delivered_of.add(sender)
        said = 0 if self._said is None else self._said[self.group.view.members.index(sender)]
        charged = max(self._delivered_bytes, self._datagrams * DATAGRAM_OVERHEAD)
        is_much = charged >= min(self._threshold * len(self._delivered_of), buffer // 8)
        if is_much or delivered - said >= self._every:
            self.is_due = True
        else:
            self._interval = self._interval_min
            is_armed = self._timers.is_armed(Timer.REPORT)
            if not is_armed or self._timers.until(Timer.REPORT, now) > self._interval:
                self._timers.arm(Timer.REPORT, now + self._interval)

    def on_data(self, now: int) -> None:
        """Somebody's plain messages have come, or gone, in a datagram."""
        self._datagrams += 1
        self.stir(now)

    def stir(self, now: int) -> None:
        """There is something that may not be stable."""
        self._timers.arm_if_idle(Timer.REPORT, now + self._interval)

    def want(self, out: Effects) -> None:
        """Find out now what everybody has."""
        view = self.group.view
        if view is None:
            return
        if view.coordinator == self._me:
            self._wanted = self._number + 2
            self._ask_all(view, out)
        else:
            self.is_due = True
            out.datagram(view.coordinator, StabilityQuery(view.id, self._number))

    def on_wanted(self, source: Member, wanted: StabilityQuery, out: Effects) -> None:
        view = self.group.view
        if view is None or wanted.view_id != view.id or source not in view:
            return
        if view.coordinator == self._me:
            if self._wanted < self._number + 2:  # else everybody has been asked
                self.want(out)
        elif source == view.coordinator:
            self._asked = wanted.number
            self.is_due |= self._number >= wanted.number > self._said_after

    def on_report(
        self, source: Member, report: StabilityReport, mine: tuple[int, ...], now: int, out: Effects
    ) -> None:
        """`mine`: how far this member is by now. If it has reported in this round, that counts: a
        round that ends with what it said before would be followed by another for nothing."""
        view = self.group.view
        if view is None or report.view_id != view.id or view.coordinator != self._me:
            return
        if source not in view or len(report.delivered) != len(view) or report.number > self._number:
            return
        if report.number < self._number:
            assert self._last is not None
            # Half an interval: whoever reports once in an interval is answered each time.
            pause = self._interval_min // 2
            told_at = self._told.get(source, self._ended_at + CROSSING_NS - pause)
            if source not in self._reported and now >= told_at + pause:
                self._told[source] = now
                out.datagram(source, self._last)
                out.datagram(source, StabilityQuery(view.id, self._number))
            return
        if self._me in self._reported:
            said = self._reports[self._me]
            self._reports[self._me] = StabilityReport(view.id, said.number, said.allowance, mine)
        self._count(source, report, now, out)

    def on_stable(self, source: Member, stable: Stable) -> None:
        view = self.group.view
        if view is None or stable.view_id != view.id or source != view.coordinator:
            return
        if stable.number > self._number and len(stable.marks) == len(view):
            self._hear(stable)

    def handle_timeout(self, now: int) -> None:
        if self._timers.take(Timer.REPORT, now):
            self.is_due = True

    def report(self, delivered: tuple[int, ...], allowance: int, now: int, out: Effects) -> None:
        """Say how far this member is with everybody, in the order of the view."""
        view = self.group.view
        assert view is not None
        self.is_due = False
        self._delivered_bytes = 0
        self._delivered_of.clear()
        self._datagrams = 0
        is_new = self._said != delivered
        self._interval = self._interval_min if is_new else 2 * self._interval
        self._interval = min(self._interval, self._interval_max)
        self._said, self._said_after = delivered, self._number
        self._timers.disarm(Timer.REPORT)
        report = StabilityReport(view.id, self._number, allowance, delivered)
        if view.coordinator == self._me:
            self._count(self._me, report, now, out)
        else:
            self.reports_sent += 1
            out.datagram(view.coordinator, report)

    def rest_or_go_on(self, known: Sequence[int], now: int) -> None:
        """StabilityReport again, unless all that is `known` here of each member is stable."""
        if self.is_all_stable(known):
            self._timers.disarm(Timer.REPORT)
        else:
            self.stir(now)

    def close(self) -> None:
        self.is_due = False
        self.news = None
        self._reports.clear()
        self._reported.clear()
        self._timers.disarm(Timer.REPORT)

    # Outputs

    def is_all_stable(self, known: Sequence[int]) -> bool:
        """Whether everybody has all that is known here, and all have heard that."""
        return all(
            bool(marks) and all(map(int.__le__, known, (mark.by_all for mark in marks)))
            for marks in (self._marks, self._marks_before)
        )

    def stats(self) -> dict[str, object]:
        return {
            "round": self._number,
            "reports": len(self._reports),
            "reports_sent": self.reports_sent,
        }

    def explain(self) -> list[str]:
        """As coordinator: for whom a round waits."""
        view = self.group.view
        if view is None or view.coordinator != self._me or not self._reported:
            return []
        silent = ", ".join(str(who) for who in view if who not in self._reported)
        return [f"round {self._number + 1} of reports waits for {silent}"]

    # As coordinator

    def _count(self, source: Member, report: StabilityReport, now: int, out: Effects) -> None:
        view = self.group.view
        assert view is not None
        before = self._reports.get(source)
        if before is not None and before.number == report.number:  # reports may overtake each other
            delivered = tuple(map(max, before.delivered, report.delivered))
            report = StabilityReport(report.view_id, report.number, report.allowance, delivered)
        self._reports[source] = report
        self._reported.add(source)
        if len(self._reported) == len(view):
            stable = self._end_round(view)
            self._ended_at = now
            out.datagram(None, stable)
            self._hear(stable)
            if self._number < self._wanted:
                self._ask_all(view, out)

    def _ask_all(self, view: View, out: Effects) -> None:
        self.is_due = True
        for member in view:
            if member != self._me:
                out.datagram(member, StabilityQuery(view.id, self._number))

    def _end_round(self, view: View) -> Stable:
        reports = [self._reports[member].delivered for member in view]
        marks = []
        for place, said in enumerate(zip(*reports, strict=True)):
            others = [*said[:place], *said[place + 1 :]]
            by_all = min(said)
            marks.append(Mark(by_all, min(others, default=by_all), said.index(by_all)))
        allowance = min(report.allowance for report in self._reports.values())
        self._reported.clear()
        self._told.clear()
        self._last = Stable(view.id, self._number + 1, allowance, tuple(marks))
        return self._last

    def _hear(self, stable: Stable) -> None:
        assert self.group.view is not None
        share = min(stable.allowance * len(self.group.view), self._ample)
        self._interval_min = max(INTERVAL_MIN_NS, self._interval_usual * share // self._ample)
        if stable.marks != self._marks:
            self._interval = self._interval_min
        self.is_due |= self._number < self._asked <= stable.number
        self._number = stable.number
        self._marks_before, self._marks = self._marks, stable.marks
        self.news = stable
