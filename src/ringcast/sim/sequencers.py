"""What befell the sequencers of a run, and what was submitted to them then: so that runs in which
nothing did are noticed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from ringcast.trace import rows as trace
from ringcast.trace.rows import MemberKey, Row, ViewKey

BY_NOBODY = "seeds: a sequencer dies, and the next orders what it had"
BY_A_CUT = "seeds: a sequencer dies, and a cut has what nobody took"
BY_SOME = "seeds: a sequencer dies, and some took what others did not"
BY_ALL = "seeds: a sequencer dies, and all took what it had"
LEAVES, LEFT_OUT = "a sequencer leaves", "a sequencer is excluded alive"
DEMOTED = "a sequencer is demoted"
CARRIED, SEEN = "carried", "seen"

NAMES = (BY_NOBODY, BY_A_CUT, BY_SOME, BY_ALL, LEAVES, LEFT_OUT, DEMOTED, CARRIED)
OF_PARTS = (SEEN,)
"""A member has to take, apart from the others, what they take later."""


def sequencers(rows: Sequence[Row], *, has_parts: bool) -> dict[str, int]:
    """How often what happened; of what befalls parts, if the group falls apart."""
    counts = Counter(dict.fromkeys((*NAMES, *OF_PARTS), 0))
    views: dict[MemberKey, Row] = {}
    ended: set[str] = set()
    accepted: dict[tuple[str, int], Row] = {}
    taken: defaultdict[tuple[str, int], dict[str, Row]] = defaultdict(dict)
    crashes: list[tuple[Row, Row]] = []
    for row in rows:
        before = views.get(row.key)
        match row.event:
            case trace.VIEW:
                first = "" if before is None else before.members[0]
                counts[LEFT_OUT] += bool(first) and first not in {*row.members, *ended}
                counts[DEMOTED] += first == row.member != row.members[0]
                views[row.key] = row
            case trace.CRASH | trace.STOP:
                ended.add(row.member)
                if before is not None and before.members[0] == row.member:
                    counts[LEAVES] += row.event == trace.STOP
                    if row.event == trace.CRASH:
                        crashes.append((row, before))
            case trace.ACCEPT:
                for number in range(row.seqno, row.seqno2 + 1):
                    accepted[row.member, number] = row
            case trace.ORDER:
                counts[CARRIED] += "carried" in row.detail
                counts[SEEN] += "seen" in row.detail
                for number in range(row.seqno, row.seqno2 + 1):
                    taken[row.peer_member, number].setdefault(row.member, row)
    for crash, view in crashes:
        counts.update(_fates(crash, view, accepted, taken))
    return {name: counts[name] for name in (*NAMES, *(OF_PARTS if has_parts else ()))}


def _fates(
    crash: Row,
    view: Row,
    accepted: dict[tuple[str, int], Row],
    taken: dict[tuple[str, int], dict[str, Row]],
) -> set[str]:
    """What became of what had been accepted in the view when its sequencer died."""
    found = set()
    others = set(view.members) - {crash.member}
    for key, row in accepted.items():
        if row.view_key != view.view_key or row.run_idx > crash.run_idx or key[0] not in others:
            continue
        logs: set[ViewKey] = {each.view_key for each in taken.get(key, {}).values()}
        by = {who for who, each in taken.get(key, {}).items() if each.run_idx < crash.run_idx}
        if by >= others:
            found.add(BY_ALL)
        elif by & others:
            found.add(BY_SOME)
        elif view.view_key in logs:
            found.add(BY_A_CUT)
        elif logs:
            found.add(BY_NOBODY)
    return found
