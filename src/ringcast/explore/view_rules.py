"""What must hold of view changes, on every state of an exploration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.core.view_change import order
from ringcast.model import Stream, ViewId

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringcast.explore.views import Lived, Views, World
    from ringcast.model import Member


def violations(system: Views, world: World) -> Iterator[str]:
    members_of = {proposal.id: proposal.members for proposal in world.proposals}
    for numbers in system.scenario.views:
        members = tuple(system.members[n] for n in numbers)
        members_of[ViewId(members[0], 1)] = members
    left: dict[ViewId, list[tuple[Member, Lived, Lived | None]]] = {}
    for member, person in world.people.items():
        for at, lived in enumerate(person.lived):
            after = person.lived[at + 1] if at + 1 < len(person.lived) else None
            left.setdefault(lived.view, []).append((member, lived, after))
            if member not in members_of[lived.view]:
                yield "VS1: a member is in a view without it"
            if after is not None and order(after.view) <= order(lived.view):
                yield "VS1: views go back"
            for i, tags in enumerate(world.sent):
                if any(
                    tags[n] != lived.view
                    for n in range(max(lived.starts[i], 0), lived.delivered[i])
                ):
                    yield "VS2: delivered in another view than it was sent in"
                first = next((n for n, tag in enumerate(tags) if tag == lived.view), None)
                if lived.delivered[i] > lived.starts[i] and lived.starts[i] != first:
                    yield "VS3: a gap"
    for view, entries in left.items():
        yield from _together(system, world, entries)
        if view in world.cuts:
            yield from _lost(system, world, view, members_of[view], entries)


def _together(
    system: Views, world: World, entries: list[tuple[Member, Lived, Lived | None]]
) -> Iterator[str]:
    for p, mine, after in entries:
        for q, theirs, other in entries:
            if p == q or other is None:
                continue
            for i, kind in enumerate(system.streams):
                is_uniform = kind.stream is Stream.UNIFORM
                if is_uniform and mine.committed[i] > max(theirs.delivered[i], 0):
                    yield "VS6: delivered by Commit, and another one left the view without it"
                if after is None:
                    continue
                if after.view == other.view:
                    if system.origins[i].sender == q and _sent_in(
                        system, world, i, mine.view
                    ) > max(mine.delivered[i], 0):
                        yield "VS4: a sender went along, and not all it sent was delivered"
                    if kind.is_retained and mine.delivered[i] != theirs.delivered[i]:
                        yield "VS5: two went along, and delivered not the same"
                elif (
                    is_uniform
                    and mine.delivered[i] > theirs.delivered[i]
                    and q in _along(system, world, after.view, mine.view)
                ):
                    yield "VS6: delivered by a cut, and another one left the view without it"


def _lost(
    system: Views,
    world: World,
    view: ViewId,
    members: tuple[Member, ...],
    entries: list[tuple[Member, Lived, Lived | None]],
) -> Iterator[str]:
    """Who never was in a view of its own, though nobody parted it from the others."""
    absent = [m for m in members if all(m != p for p, _, _ in entries)]
    for p, _, after in entries:
        for q in absent if after is not None else ():
            assert after is not None
            both = [
                proposal
                for proposal in world.proposals
                if order(proposal.id) <= order(after.view)
                and (p in proposal.members) != (q in proposal.members)
            ]
            if not both and any(each.view == after.view for each in world.people[q].lived):
                yield "VS7: two were never parted, and one lost a view of both"


def _sent_in(system: Views, world: World, i: int, view: ViewId) -> int:
    return max((n + 1 for n, tag in enumerate(world.sent[i]) if tag == view), default=0)


def _along(system: Views, world: World, to: ViewId, view: ViewId) -> tuple[Member, ...]:
    return next(part.members for part in world.cuts[to].parts if part.view == view)
