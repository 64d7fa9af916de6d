"""V-L1–V-L6: all that live come to one view, join and leave in time, and come to rest.

That views come in order and are the same everywhere is VS1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from operator import attrgetter

from ringcast.rules import bounds
from ringcast.rules.evidence import Run
from ringcast.rules.findings import Findings, Need, rule
from ringcast.trace import rows as trace
from ringcast.trace.rows import MemberKey, Row

LEAVE = "leave"
"""The application asks its member to leave; `stop` follows when it is out."""


@rule("V-L1", "all that live come to one view, in time", Need.CALM)
def one_view(run: Run, found: Findings) -> None:
    """Once the network has healed, all members that live end in one view of exactly them.

    It is judged by the last view of the run: one that comes too late, or changes again, counts.
    But while one of them waits for its state, views of the same members, all together, follow each
    other to find who gives it. They change nothing here; how long it waits is T-L1.
    """
    if run.phases.heal is None:
        return
    states = run.by_member(trace.STATE_WAIT, trace.STATE_RECEIVED, trace.STATE_LOST)
    components: defaultdict[int, list[Row]] = defaultdict(list)
    for member, rows in sorted(run.by_member(trace.START).items()):
        if run.lives.is_live(member):
            components[run.facts.component.get(rows[-1].member, 0)].append(rows[-1])
    for living in components.values():
        _judge_component(run, living, run.phases.heal, states, found)


def _judge_component(
    run: Run, living: list[Row], heal: Row, states: dict[MemberKey, list[Row]], found: Findings
) -> None:
    """Those who hear each other."""
    facts, bound_ns = run.facts, bounds.one_view_ns(run.facts)
    everybody = {row.member for row in living}
    views = [run.lives.last_view(row.key) for row in living]
    last_views = {view.view_key for view in views if view is not None}
    late = [
        view or start
        for start, view in zip(living, views, strict=True)
        if view is None or set(view.members) != everybody or len(last_views) > 1
    ]
    if late and facts.end_ns <= heal.mono_ns + bound_ns:
        found.unknown.add("whether all come to one view: the run ended too early")
        return
    settled = [view for row in living if (view := _settled(run, row.key, states))]
    last = max(settled, key=attrgetter("mono_ns"), default=heal)
    waited_ns = max(0, (facts.end_ns if late else last.mono_ns) - heal.mono_ns)
    if late:
        text = f"{', '.join(sorted(everybody))} live and are not in one view after {{}} ns"
        found.wait(waited_ns, bound_ns, None, text, *late)
    else:
        found.wait(waited_ns, bound_ns, last, "one view took {} ns", heal, last)


def _settled(run: Run, member: MemberKey, states: dict[MemberKey, list[Row]]) -> Row | None:
    """The view that brought its last members together."""
    view: Row | None = None
    for earlier in reversed(run.lives.views.get(member, [])):
        if view is not None:
            # All members of the one come to the other together, and nobody else.
            is_repeated = set(earlier.members) == set(view.members) == set(view.part)
            if not (is_repeated and _is_for_state(view, states)):
                break
        view = earlier
    return view


def _is_for_state(view: Row, states: dict[MemberKey, list[Row]]) -> bool:
    """Whether somebody waited for its state when this view came."""
    for member in map(trace.split_key, view.members):
        rows = [row for row in states.get(member, []) if row.mono_ns <= view.mono_ns]
        if rows and rows[-1].event == trace.STATE_WAIT:
            return True
    return False


def _waits(run: Run, begins: str, ends: str) -> Iterator[tuple[Row, Row | None, str]]:
    """From one event of a member to the next of another kind, and what to say if it takes long."""
    ended_by = run.by_member(ends)
    for member, (begun, *_) in run.by_member(begins).items():
        ended = ended_by[member][0] if member in ended_by else None
        if ended is not None or run.lives.is_live(member):  # else it crashed on the way
            yield begun, ended, f"{begun.member}: {begins}, and no {ends} for {{}} ns"


@rule("V-L2", "whoever starts is in a view, in time", Need.CALM)
def joined_in_time(run: Run, found: Findings) -> None:
    """Whoever starts is in a view soon: in its group's, or in one of its own. What began under
    faults counts from the healing on, if it still lasts."""
    for begun, ended, text in _waits(run, trace.START, trace.VIEW):
        end_ns = run.until_ns(ended)
        since_ns = run.phases.calm_since(begun.mono_ns, end_ns)
        if since_ns is not None:
            bound_ns = bounds.join_ns(run.facts)
            found.wait(end_ns - since_ns, bound_ns, ended, text, begun, ended)


@rule("V-L3", "whoever leaves is out, in time", Need.CALM)
def left_in_time(run: Run, found: Findings) -> None:
    """Whoever is asked to leave is out soon, also if nobody answers; on a network that works as
    soon as what it has sent has its seqnos, and with a change that asks it for what it has. A total
    message has none before applications have made room, and one that has stopped makes none."""
    facts = run.facts
    ordering = run.by_member(trace.ACCEPT) if facts.stopped_members else {}
    for begun, ended, text in _waits(run, LEAVE, trace.STOP):
        end_ns = run.until_ns(ended)
        since_ns: int | None = begun.mono_ns  # its own timer counts, whatever befell the network
        if begun.member in facts.late_members:
            since_ns = run.phases.calm_since(begun.mono_ns, end_ns)
        is_calm = facts.gst_ns is not None and begun.mono_ns >= facts.gst_ns
        is_calm &= begun.key not in ordering
        bound_ns = bounds.leave_soon_ns(facts) if is_calm else bounds.leave_ns(facts)
        if since_ns is not None:
            found.wait(end_ns - since_ns, bound_ns, ended, text, begun, ended)
    _judge_goodbyes(run, found)


def _judge_goodbyes(run: Run, found: Findings) -> None:
    """Who goes on from the view in which somebody asked to leave, by a change that began since
    then, has the leaver in its part: so all that it has sent is delivered (VS4). Not so a member
    that was excluded meanwhile: from a view that the leaver is in."""
    gst_ns = run.facts.gst_ns
    for member, (asked, *_) in run.by_member(LEAVE).items():
        lived = run.lives.views.get(member, [])
        views = [view for view in lived if view.idx < asked.idx]
        if not views or gst_ns is None or asked.mono_ns < gst_ns:
            continue
        changes = [
            (frozen.first.mono_ns, frozen.end)
            for key in views[-1].members
            for frozen in run.freezes.of(trace.split_key(key))
            if frozen.before is not None and frozen.before.view_key == views[-1].view_key
            if frozen.end is not None and frozen.end.event == trace.VIEW
        ]
        for _, end in changes:
            began_ns = min(since_ns for since_ns, view in changes if view.view_key == end.view_key)
            later = [view for view in lived if asked.idx < view.idx and view.mono_ns < end.mono_ns]
            if any(end.member not in view.members for view in later):
                continue
            if began_ns >= asked.mono_ns and asked.member not in (*end.members, *end.part):
                text = f"{end.member} goes on without asking {asked.member}, which leaves"
                found.violate(text, views[-1], asked, end)


@rule("V-L4", "links that come and go do not make and break the group without end", Need.CALM)
def restful(run: Run, found: Findings) -> None:
    """However links come and go, views do not follow for ever: in any minute not too many, and
    much fewer that bring somebody back.

    They are counted by name: whoever comes back as another incarnation has had the views before.
    """
    for rows in run.by(attrgetter("node"), trace.VIEW).values():
        views = sorted(rows, key=attrgetter("mono_ns"))
        _judge_rate("views", views, bounds.views_per_minute(run.facts), found)
        returns = list(_returns(views))
        _judge_rate("returns", returns, bounds.merges_per_minute(run.facts), found)


def _returns(views: Iterable[Row]) -> Iterator[Row]:
    """Those that bring somebody back who was there before."""
    seen: set[str] = set()
    for view in views:
        if any(key in seen and key not in view.part for key in view.members):
            yield view
        seen.update(view.members)


def _judge_rate(what: str, rows: list[Row], bound: int, found: Findings) -> None:
    """Whether there are so many in any minute; the first time is reported."""
    found.premises += len(rows)
    first = 0
    is_reported = False
    for last, row in enumerate(rows):
        while row.mono_ns - rows[first].mono_ns > bounds.MINUTE_NS:
            first += 1
        count = last - first + 1
        found.waited(count, bound)
        if count > bound and not is_reported:
            is_reported = True
            text = f"{row.node} installs {count} {what} within a minute, the bound is {bound}"
            found.violate(text, rows[first], row)


# How long view changes hold members up, on a network that works


@rule("V-L5", "a view change ends, in time, whatever applications do", Need.CALM)
def changes_end(run: Run, found: Findings) -> None:
    """Nobody is frozen for long: for one change, if nobody refuses or stays silent; else for as
    long as it takes to go on without whoever does. Windows may be full, and readers slow."""
    facts = run.facts
    refused = {row.view for row in run.rows(trace.TX) if row.kind == "refuse"}
    proposed_ns = {row.view_key: row.mono_ns for row in reversed(run.rows(trace.FREEZE))}
    for member in run.freezes.rows:
        for frozen in run.freezes.of(member):
            first, end = frozen.first, frozen.end
            end_ns = run.until_ns(end)
            since_ns = run.phases.calm_since(first.mono_ns, end_ns)
            if frozen.before is None:
                continue  # it looks for its group, and nobody sends there: V-L2
            if since_ns is None or (end is not None and end.event != trace.VIEW):
                continue
            bound_ns = bounds.frozen_ns(facts, run.freezes.deaths(frozen, since_ns, end_ns))
            is_single = end is not None and frozen.last is first and first.view_key == end.view_key
            asked_ns = proposed_ns[
                first.view_key
            ]  # before the calm it may have been lost to others
            is_calm = run.phases.calm_since(asked_ns, end_ns) == asked_ns
            if is_single and is_calm and first.view not in refused:
                bound_ns = bounds.change_ns(facts)
            text = f"{first.member} is frozen for {{}} ns"
            found.wait(end_ns - since_ns, bound_ns, end, text, first, frozen.last, end)


@rule(
    "V-L6", "who joins and who comes back blocks senders for a tenth of the time at most", Need.CALM
)
def rarely_at_will(run: Run, found: Findings) -> None:
    """Changes that only bring somebody in block senders for a tenth of any ten seconds: nine
    times as long passes after each. So of the last one, behind which that time has yet to pass, all
    but a tenth comes on top."""
    for member in run.freezes.rows:
        changes = list(_at_will(run, member))
        first = 0
        for last, (begun, end) in enumerate(changes):
            found.premises += 1
            bound_ns = (bounds.DUTY_NS + 9 * (end.mono_ns - begun.mono_ns)) // 10
            while end.mono_ns - changes[first][0].mono_ns > bounds.DUTY_NS and first < last:
                first += 1
            held_ns = sum(ends.mono_ns - since.mono_ns for since, ends in changes[first : last + 1])
            found.waited(held_ns, bound_ns)
            if held_ns > bound_ns:
                text = f"{end.member} is frozen for {held_ns} ns of ten seconds to let others in"
                found.violate(text, changes[first][0], end)


def _at_will(run: Run, member: MemberKey) -> Iterator[tuple[Row, Row]]:
    for frozen in run.freezes.of(member):
        first, end, before = frozen.first, frozen.end, frozen.before
        if end is None or end.event != trace.VIEW or before is None:
            continue
        is_calm = run.phases.calm_since(first.mono_ns, end.mono_ns) == first.mono_ns
        if is_calm and set(before.members) < set(end.members):
            yield first, end
