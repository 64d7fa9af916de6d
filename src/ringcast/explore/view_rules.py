"""What must hold of view changes: virtual synchrony, judged by what applications were told.

V→V′ at p: p is in V, and next in V′; or it leaves with V′, and what it has delivered itself matters
to nobody any more. Each rule counts how often its premise
was true: a rule that never had a chance proves nothing.

    VS1  one id, one list of members; ids grow; whoever is in a view is a member of it
    VS2  what is delivered in V was sent in V
    VS3  of each origin the first that it sent in V is delivered first: no gap
    VS4  p and a sender both V→V′: p delivered in V all that it sent in V
    VS5  p and q both V→V′: they delivered the same in V, of all origins that somebody retains
    VS6  p delivered a uniform message in V by Commit: so has everybody who leaves V. By the cut of
         V′: so has everybody who was to come along from V, by whatever way it leaves V
    VS7  p was in V′ with q; q goes from V to V″ with p and never was in V′: then some proposal
         after V had one of the two without the other
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ringcast.core.view_change import order
from ringcast.model import Stream

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Mapping, Sequence

    from ringcast.model import Member, Origin, ViewId

RULES = ("VS1", "VS2", "VS3", "VS4", "VS5", "VS6", "VS7")


class Lived(NamedTuple):
    """One view at one member; by stream the number of the last message before it, of the last that
    was delivered in it, and of the last that was delivered by Commit."""

    view: ViewId
    starts: tuple[int, ...]
    delivered: tuple[int, ...]
    committed: tuple[int, ...]

    def count(self, i: int) -> int:
        return self.delivered[i] - self.starts[i]

    def count_committed(self, i: int) -> int:
        return max(self.committed[i] - self.starts[i], 0)


class History(NamedTuple):
    """All that rules look at. Messages of a stream are numbered from 1."""

    origins: Sequence[Origin]
    kept: Sequence[bool]
    """By stream: somebody retains what a departed sender has sent."""
    lived: Mapping[Member, Sequence[Lived]]
    sent: Sequence[Sequence[ViewId]]
    """By stream: the view in which each message was sent."""
    members: Mapping[ViewId, tuple[Member, ...]]
    """Of every view."""
    asked: Mapping[ViewId, tuple[Member, ...]]
    """Of every proposal: its view is without those who leave."""
    along: Mapping[tuple[ViewId, ViewId], tuple[Member, ...]]
    """Who was to go from one view to the other, as the cut says."""


class Step(NamedTuple):
    """One member in one view, and in the next one, if it has left it."""

    who: Member
    lived: Lived
    next: ViewId | None


def violations(history: History, premises: Counter[str]) -> Iterator[str]:
    steps: dict[ViewId, list[Step]] = {}
    for who, lives in history.lived.items():
        for at, lived in enumerate(lives):
            later = lives[at + 1].view if at + 1 < len(lives) else None
            steps.setdefault(lived.view, []).append(Step(who, lived, later))
    for entries in steps.values():
        for step in entries:
            yield from _alone(history, step, premises)
        yield from _together(history, entries, premises)
        yield from _parted(history, entries, premises)


def _alone(history: History, step: Step, premises: Counter[str]) -> Iterator[str]:
    who, lived, later = step
    premises["VS1"] += 1
    if who not in history.asked.get(lived.view, history.members[lived.view]):
        yield "VS1: a member is in a view without it"
    if later is not None and order(later) <= order(lived.view):
        yield "VS1: views go back"
    for i, tags in enumerate(history.sent):
        if lived.count(i) <= 0:
            continue
        premises["VS2"] += 1
        premises["VS3"] += 1
        if any(tag != lived.view for tag in tags[lived.starts[i] : lived.delivered[i]]):
            yield "VS2: delivered in another view than it was sent in"
        if tags[lived.starts[i] - 1 : lived.starts[i]] == (lived.view,):
            yield "VS3: a gap"


def _together(history: History, steps: list[Step], premises: Counter[str]) -> Iterator[str]:
    leavers = {who for who, _, later in steps if later and who not in history.members[later]}
    for p, mine, after in steps:
        for q, theirs, other in steps:
            if p == q or p in leavers or other is None:
                continue
            if after == other:
                yield from _all_of(history, q, mine, premises)
            for i, origin in enumerate(history.origins if q not in leavers else ()):
                is_uniform = origin.stream is Stream.UNIFORM
                if is_uniform and mine.count_committed(i):
                    premises["VS6"] += 1
                    if mine.count_committed(i) > theirs.count(i):
                        yield "VS6: delivered by Commit, and another one left the view without it"
                if after is None:
                    continue
                if after == other:
                    yield from _same(history, i, mine, theirs, premises)
                elif is_uniform and q in history.along.get((mine.view, after), ()):
                    premises["VS6"] += mine.count(i) > 0
                    if mine.count(i) > theirs.count(i):
                        yield "VS6: delivered by a cut, and another one left the view without it"


def _all_of(history: History, q: Member, mine: Lived, premises: Counter[str]) -> Iterator[str]:
    """This one went along."""
    for i, origin in enumerate(history.origins):
        sent = history.sent[i].count(mine.view) if origin.sender == q else 0
        premises["VS4"] += sent > 0
        if sent > mine.count(i):
            yield "VS4: a sender went along, and not all it sent was delivered"


def _same(
    history: History, i: int, mine: Lived, theirs: Lived, premises: Counter[str]
) -> Iterator[str]:
    if history.kept[i]:
        premises["VS5"] += mine.count(i) > 0
        if mine.count(i) != theirs.count(i):
            yield "VS5: two went along, and delivered not the same"


def _parted(history: History, steps: list[Step], premises: Counter[str]) -> Iterator[str]:
    view, present = steps[0].lived.view, {step.who for step in steps}
    for p, _, after in steps:
        if after is None:
            continue
        for q in history.members[view]:
            if q in present or q not in history.lived:
                continue
            views = [lived.view for lived in history.lived[q]]
            if after not in views[1:]:
                continue
            premises["VS7"] += 1
            before = max((id for id in views if order(id) < order(view)), key=order)
            if not any(
                order(before) < order(id) <= order(after) and len({p, q}.intersection(asked)) == 1
                for id, asked in history.asked.items()
            ):
                yield "VS7: two were never parted, and one lost a view of both"
