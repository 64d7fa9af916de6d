"""Did each message reach everybody it was for? Receivers compared with what senders purged.

A sender purges what every member of its view has delivered, by their acks or reports (N5). So of
what it had purged in a view, each member of that view must have delivered all: those who came to it
from another part, what was sent since. Its window has room for so many messages (RB2): it had
purged what lies further back than that when it sent the last, whether a row tells or not. What it
had not purged was not known to be everybody's: at the end of a trace, or where a view went on
without the receiver, nothing is owed of that, as who leaves need not read what it has received (VS4
and VS5 say what is owed by those who go on).

What hangs on the missing end of its trace is not held against a receiver that was killed.

The share that each member delivered of what each sender sent in the views of both is shown, whether
it is owed or not.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ringcast.model import Stream
from ringcast.spark.report import Reach
from ringcast.spark.summary import MemberTrace, Purged
from ringcast.trace.rows import DELIVER, OPEN, MemberKey, OriginKey, PairKey, ViewKey, split_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringcast.rules.history import Life, Stay
    from ringcast.spark.recorded_run import RecordedRun


class Lacking(NamedTuple):
    """A receiver has less than its sender had purged in a view with both."""

    origin: OriginKey
    receiver: MemberKey
    through: int
    """What it has."""
    purged: Purged


@dataclass(slots=True)
class Reached:
    judged: int = 0
    """Receivers, over all that was purged in each view."""
    lacking: list[Lacking] = field(default_factory=list)
    unknown: set[MemberKey] = field(default_factory=set)
    """Killed receivers that have less as far as their traces go."""
    shares: list[Reach] = field(default_factory=list)
    """What members delivered of what senders sent, where that is not all; the least first."""


def judge_reach(run: RecordedRun) -> Reached:
    found = Reached()
    reached = _reached(run)
    for sender, life in run.history.lives.items():
        stays = {stay.view.idx: stay for stay in _forward(life)}
        most: dict[PairKey, tuple[Purged, int]] = {}
        marks = run.members[sender].summary.purged | _outgrown(run.members[sender], life)
        for (stream, view_idx), mark in marks.items():
            stay = stays.get(view_idx)
            if stay is None:
                continue
            for receiver in _known(run, stay):
                pair = (*receiver, *sender, stream)
                found.judged += 1
                through = _through(reached.get(pair, []), stay)
                if max(through, _before(stay, receiver, stream)) < mark.through:
                    most[pair] = mark, through
        for pair, (mark, through) in most.items():
            receiver = pair[:2]
            if receiver in run.prefixes:
                found.unknown.add(receiver)
            elif run.members[receiver].is_whole:
                found.lacking.append(Lacking(pair[2:], receiver, through, mark))
    found.shares = [
        Reach(run.names.of(receiver), run.names.of_origin(origin), delivered, sent)
        for _, origin, receiver, delivered, sent in sorted(_shares(run))
    ]
    return found


def _outgrown(trace: MemberTrace, life: Life) -> dict[tuple[int, int], Purged]:
    """What it must have purged to have room for what it sent, where that is more than rows tell."""
    known = trace.summary.purged
    found: dict[tuple[int, int], Purged] = {}
    for stay in life.stays.values() if trace.capacity else ():
        sent = stay.sent.get(Stream.FIFO)
        if sent is not None:
            at, through = (int(Stream.FIFO), stay.view.idx), sent.last - trace.capacity
            if through > (known[at].through if at in known else 0):
                found[at] = Purged(sent.row.idx, through)
    return found


def _forward(life: Life) -> Iterator[Stay]:
    """Its views without those that go back (VS1): what came before such a one, nobody can tell."""
    highest = 0
    for stay in life.stays.values():
        if stay.view.view > highest:
            highest = stay.view.view
            yield stay


def _reached(run: RecordedRun) -> dict[PairKey, list[tuple[ViewKey, int]]]:
    """Up to where each member has delivered each origin by the end of each view, or opened its
    window for it."""
    found: defaultdict[PairKey, dict[ViewKey, int]] = defaultdict(dict)
    for trace in run.members.values():
        for row in trace.rows:
            if row.event in (OPEN, DELIVER):
                last, views = row.seqno if row.event == OPEN else row.seqno2, found[row.pair]
                views[row.view_key] = max(last, views.get(row.view_key, 0))
    return {pair: sorted(views.items()) for pair, views in found.items()}


def _through(reached: list[tuple[ViewKey, int]], stay: Stay) -> int:
    """By the end of this view."""
    return max((last for view, last in reached if view <= stay.key), default=0)


def _known(run: RecordedRun, stay: Stay) -> Iterator[MemberKey]:
    """The members of this view that have a trace."""
    members = map(split_key, stay.view.members)
    return (member for member in members if member in run.history.lives)


def _before(stay: Stay, receiver: MemberKey, stream: int) -> int:
    """What a member from another part need not have: what was sent before this view."""
    is_new = f"{receiver[0]}#{receiver[1]}" not in stay.view.part
    return stay.had_sent.get(stream, 0) if is_new else 0


def _shares(run: RecordedRun) -> Iterator[tuple[float, OriginKey, MemberKey, int, int]]:
    """What part of an origin a receiver has delivered, and how much of how much."""
    sent: Counter[PairKey] = Counter()
    delivered: Counter[PairKey] = Counter()
    lives = run.history.lives
    for sender, life in lives.items():
        for stay in life.stays.values():
            for receiver in _known(run, stay):
                there = lives[receiver].stays.get(stay.key)
                if there is None:
                    continue
                for stream, span in stay.sent.items():
                    pair = (*receiver, *sender, stream)
                    taken = there.delivered.get(pair[2:])
                    sent[pair] += span.last - span.first + 1
                    if taken is not None:
                        first, last = max(span.first, taken.first), min(span.last, taken.last)
                        delivered[pair] += max(0, last - first + 1)
    for pair, count in sent.items():
        if delivered[pair] < count:
            share = delivered[pair] / count
            yield share, pair[2:], pair[:2], delivered[pair], count
