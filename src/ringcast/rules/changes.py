"""V-L5, V-L6: how long view changes hold members up, on a network that works."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.rules import bounds
from ringcast.rules.findings import rule
from ringcast.trace.rows import TX, VIEW

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringcast.rules.evidence import Run
    from ringcast.rules.findings import Findings
    from ringcast.trace.rows import MemberKey, Row


@rule("V-L5", "a view change ends, in time, whatever applications do")
def changes_end(run: Run, found: Findings) -> None:
    """Nobody is frozen for long: for one change, if nobody refuses or stays silent; else for as
    long as it takes to go on without whoever does. Windows may be full, and readers slow."""
    facts = run.facts
    refused = {row.view for row in run.rows(TX) if row.kind == "refuse"}
    for member in run.freezes.rows:
        for frozen in run.freezes.of(member):
            first, end = frozen.first, frozen.end
            end_ns = facts.end_ns if end is None else end.mono_ns
            since_ns = run.phases.calm_since(first.mono_ns, end_ns)
            if frozen.before is None:
                continue  # it looks for its group, and nobody sends there: V-L2
            if since_ns is None or (end is not None and end.event != VIEW):
                continue
            bound_ns = bounds.frozen_ns(facts, run.freezes.deaths(frozen, since_ns, end_ns))
            is_single = end is not None and frozen.last is first and first.view_key == end.view_key
            if is_single and since_ns == first.mono_ns and first.view not in refused:
                bound_ns = bounds.change_ns(facts)
            waited_ns = end_ns - since_ns
            text = f"{first.member} is frozen for {waited_ns} ns"
            found.wait(waited_ns, bound_ns, end, text, first, frozen.last, end)


@rule("V-L6", "who joins and who comes back holds senders up for a tenth of the time at most")
def rarely_at_will(run: Run, found: Findings) -> None:
    """Changes that only bring somebody in hold senders up for a tenth of any ten seconds: nine
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
            held_ns = sum(
                after.mono_ns - before.mono_ns for before, after in changes[first : last + 1]
            )
            found.waited(held_ns, bound_ns)
            if held_ns > bound_ns:
                found.violate(
                    f"{end.member} is frozen for {held_ns} ns of ten seconds to let others in",
                    *(changes[first][0], end),
                )


def _at_will(run: Run, member: MemberKey) -> Iterator[tuple[Row, Row]]:
    for frozen in run.freezes.of(member):
        first, end, before = frozen.first, frozen.end, frozen.before
        if end is None or end.event != VIEW or before is None:
            continue
        is_calm = run.phases.calm_since(first.mono_ns, end.mono_ns) == first.mono_ns
        if is_calm and set(before.members) < set(end.members):
            yield first, end
