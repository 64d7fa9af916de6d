"""Did each message reach everybody it was for? Receivers compared with what senders purged.

A sender purges what every member of its view has delivered, by their acks or reports (N5). So of
what it had purged in a view, each member of that view must have delivered all that came after its
own window had opened. What it had not purged was not known to be everybody's: at the end of a
trace, or where a view went on without the receiver, nothing is owed of that.

Not held against a receiver: what hangs on the missing end of its trace, if it was killed; and what
it had put aside while it waited for its state, if it left before it had it, or if the sender did.

The share that each member delivered of what each sender sent while both were in the sender's view
is shown, whether it is owed or not.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ringcast.spark.seqnos import joined, minus, ranges
from ringcast.spark.summary import Track

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringcast.spark.recorded_run import RecordedRun
    from ringcast.spark.seqnos import SeqnoRange
    from ringcast.spark.summary import MemberTrace, Purged
    from ringcast.trace.rows import MemberKey, OriginKey


class Lacking(NamedTuple):
    """A receiver has less than its sender had purged in a view with both."""

    origin: OriginKey
    receiver: MemberKey
    through: int
    """What it has."""
    purged: Purged


class Share(NamedTuple):
    """What one member delivered of what one sender sent while both were in the sender's view."""

    origin: OriginKey
    receiver: MemberKey
    delivered: int
    sent: int


@dataclass(slots=True)
class Reached:
    judged: int = 0
    """Receivers, over all that was purged in each view."""
    lacking: list[Lacking] = field(default_factory=list)
    unknown: set[MemberKey] = field(default_factory=set)
    """Killed receivers that have less as far as their traces go."""
    shares: list[Share] = field(default_factory=list)
    """Those that are not whole, the least first."""


class Window(NamedTuple):
    """What one member opened and delivered of one origin."""

    opened: list[tuple[int, int]]
    """Offsets, and the idx of each row. One's own has none."""
    delivered: list[SeqnoRange]

    @property
    def offset(self) -> int:
        """Where it began."""
        return self.opened[0][0] if self.opened else 0

    @property
    def through(self) -> int:
        opened = max((offset for offset, _ in self.opened), default=0)
        return max(opened, self.delivered[-1][1] if self.delivered else 0)


class Origin(NamedTuple):
    """One stream of one sender: what it had sent by the end of each of its views, and purged."""

    key: OriginKey
    source: MemberTrace
    sent: list[int]
    purged: list[tuple[Purged, int]]
    """With the place of the view among the sender's."""

    @property
    def sender(self) -> MemberKey:
        return self.key[:2]


def judge_reach(run: RecordedRun) -> Reached:
    found = Reached()
    for origin in _origins(run):
        for receiver, trace in run.members.items():
            window = _window(trace, receiver, origin.key)
            if window is not None:
                _add_share(found, origin, receiver, window)
                _judge(run, origin, receiver, window, found)
    found.shares.sort(key=lambda share: (share.delivered / share.sent, share))
    return found


def _origins(run: RecordedRun) -> Iterator[Origin]:
    for _, source, track, stretches in run.tracks("sent"):
        views = source.views
        last = max(each.last for each in stretches)
        sent = [*(dict(view.sent).get(track.stream, 0) for view in views[1:]), last]
        places = {view.idx: at for at, view in enumerate(views)}
        marks = [
            (mark, places[view.idx])
            for mark in source.purged.get(track.stream, [])
            if (view := source.view_of(mark)) is not None
        ]
        yield Origin(track.origin, source, sent, marks)


def _window(trace: MemberTrace, receiver: MemberKey, origin: OriginKey) -> Window | None:
    """None: it had none, or what came into it was put aside and is gone."""
    stretches = trace.tracks.get(Track("delivered", *origin), [])
    opened = [(each.first - 1, each.first_idx) for each in stretches if each.is_opened]
    if trace.summary.is_behind or not (opened or receiver == origin[:2]):
        return None
    caught_up = trace.summary.caught_up
    if opened and opened[-1][1] < caught_up:
        at = bisect_left(trace.views, caught_up, key=lambda view: view.idx) - 1
        if not _is_within(at, trace.presence.get(_key(origin[:2]), [])):
            return None
    return Window(opened, joined(ranges(stretches)))


def _judge(
    run: RecordedRun, origin: Origin, receiver: MemberKey, window: Window, found: Reached
) -> None:
    owed = [mark for mark, at in origin.purged if _is_owed(run, origin, receiver, window, at)]
    found.judged += len(owed)
    most = max(owed, key=lambda mark: mark.through, default=None)
    if most is None or most.through <= window.through:
        return
    if receiver in run.prefixes:
        found.unknown.add(receiver)
    elif run.members[receiver].is_whole:
        found.lacking.append(Lacking(origin.key, receiver, window.through, most))


def _is_owed(
    run: RecordedRun, origin: Origin, receiver: MemberKey, window: Window, at: int
) -> bool:
    """Whether what was purged in this view of the sender's was so by the receiver's own ack: it was
    in that view, and there its window had opened."""
    view = origin.source.views[at]
    if _key(receiver) not in view.members:
        return False
    return receiver == origin.sender or view.key in run.members[receiver].places


def _add_share(found: Reached, origin: Origin, receiver: MemberKey, window: Window) -> None:
    if window.delivered == [(window.offset + 1, origin.sent[-1])]:
        return
    due: list[SeqnoRange] = []
    for views in origin.source.presence.get(_key(receiver), []):
        before = origin.sent[views.start - 1] if views.start else 0
        first, last = max(before, window.offset) + 1, origin.sent[views.stop - 1]
        if first <= last:
            due.append((first, last))
    count = sum(last - first + 1 for first, last in due)
    lacking = sum(last - first + 1 for first, last in minus(due, window.delivered))
    if lacking:
        found.shares.append(Share(origin.key, receiver, count - lacking, count))


def _is_within(at: int, places: list[range]) -> bool:
    return any(at in each for each in places)


def _key(member: MemberKey) -> str:
    """As views list their members."""
    return f"{member[0]}#{member[1]}"
