"""A run judged from the summaries of what its members recorded, each for itself.

A verdict is *violated* only on positive evidence. Where rows of a member are missing (lost by its
recorder, a file gone or torn) the rest is judged and called *incomplete*. The trace of a member
that a view left behind is a prefix: what hangs on its missing end is *unknown*, nobody's fault.
What such traces can never show is *undecidable*.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.rules.table import VIEWS, feed_all, rules_for
from ringcast.rules.views import UniformInAll
from ringcast.spark.contents import compare_content
from ringcast.spark.details import judge_details
from ringcast.spark.folding import VIOLATIONS_SHOWN_MAX
from ringcast.spark.reach import judge_reach
from ringcast.spark.reading import (
    WITNESS_ROWS_MAX,
    at_idx,
    at_seqnos,
    fetch_rows,
)
from ringcast.spark.report import (
    ALONE,
    HALVES,
    IF_ANY,
    NEED_FULL,
    RECORDED,
    Reach,
    Verdict,
    Violation,
    verdict_id,
)
from ringcast.spark.seqnos import minus, ranges
from ringcast.spark.summary import Track
from ringcast.spark.undecidable import UNDECIDABLE_IF_RECORDED
from ringcast.trace.facts import facts_from_values
from ringcast.trace.rows import DELIVER, SEND, Facts

if TYPE_CHECKING:
    from ringcast.rules.findings import Verdict as Folded
    from ringcast.spark.reading import Look, Workers
    from ringcast.spark.recorded_run import RecordedRun
    from ringcast.spark.summary import MemberTrace, Stretch
    from ringcast.trace.rows import MemberKey, Row


HISTORIES = (*VIEWS, UniformInAll)
"""Makers of the rules that are fed condensed rows."""


def judge_recorded(spark: Workers, run: RecordedRun) -> list[Verdict]:
    """What every rule says of the run."""
    return _Judge(spark, run).verdicts()


class _Judge:
    """Judges each rule from the merged summaries, then fetches the rows that show it."""

    def __init__(self, spark: Workers, run: RecordedRun) -> None:
        self._spark = spark
        self._run = run
        self._names = run.names
        self._verdicts = {name: Verdict(name, unjudged=HALVES.get(name, "")) for name in RECORDED}
        self._shown: list[Violation] = []
        self._looks: list[Look] = []

    def verdicts(self) -> list[Verdict]:
        self._judge_integrity()
        self._judge_repeats()
        self._judge_order()
        self._judge_sends()
        self._judge_content()
        self._judge_reach()
        self._judge_history()
        self._judge_details()
        for shown, row in fetch_rows(self._spark, self._looks):
            self._shown[shown].rows.append(row)
        for violation in self._shown:
            violation.rows = sorted(set(violation.rows), key=_place)[:WITNESS_ROWS_MAX]
        cut = sum(trace.cut for trace in self._run.members.values())
        for name in IF_ANY:
            self._verdicts[name].is_optional = True
        for verdict in self._verdicts.values():
            if verdict.is_beyond_level:
                continue
            verdict.incomplete += self._run.defects
            if verdict.id in ALONE:
                verdict.without = self._run.absent
            else:
                verdict.incomplete += self._run.absent
            if cut:
                verdict.incomplete.append(f"{cut} breaks in the order were not looked into")
            if not verdict.premises and not verdict.unknown and verdict.id not in NEED_FULL:
                verdict.inconclusive.append("there was nothing to judge")
        return [*self._verdicts.values(), *_not_judged(self._run)]

    # Rules

    def _judge_order(self) -> None:
        """N1: what is new is the next seqno. What has been delivered before is for G2 to judge."""
        self._verdicts["N1"].premises = self._run.count(DELIVER)
        for member, trace, track, stretches in self._run.tracks("delivered"):
            low, opened_idx = 1, -1
            due, due_idx = 1, -1
            for stretch in stretches:
                idx = stretch.first_idx
                if stretch.is_opened:
                    if stretch.first < due:  # of a sender that was away meanwhile
                        self._violate(
                            "N1",
                            f"{self._name(member)} opens {self._names.of_origin(track.origin)} at "
                            f"{stretch.first - 1} and has delivered {due - 1}",
                            *(at_idx(trace, due_idx), at_idx(trace, idx)),
                        )
                    low = due = stretch.first
                    opened_idx = due_idx = idx
                fault = ""
                if stretch.last < stretch.first and not stretch.is_opened:
                    fault = "which is backwards"
                # What is missing may be in rows that are missing; then it is called incomplete.
                elif stretch.first > due and not trace.has_hole(due_idx, idx):
                    fault = f"due was {due}"
                elif stretch.first < low and not trace.has_hole(opened_idx, idx):
                    fault = f"its window begins at {low}"
                if fault:
                    self._violate(
                        "N1",
                        f"{self._name(member)} delivers {stretch.first} of "
                        f"{self._names.of_origin(track.origin)}, {fault}",
                        *(at_idx(trace, due_idx), at_idx(trace, idx)),
                    )
                low = min(low, stretch.first)
                if stretch.last >= max(due, stretch.first):
                    due, due_idx = stretch.last + 1, stretch.last_idx

    def _judge_sends(self) -> None:
        """N3, of which the traces show that each send takes the next seqno."""
        self._verdicts["N3"].premises = self._run.count(SEND)
        for _, trace, track, stretches in self._run.tracks("sent"):
            due, last_idx = 1, -1
            for stretch in stretches:
                is_lost = stretch.first > due and trace.has_hole(last_idx, stretch.first_idx)
                if stretch.last < stretch.first or (stretch.first != due and not is_lost):
                    self._violate(
                        "N3",
                        f"{self._names.of_origin(track.origin)} sends {stretch.first}, "
                        f"due was {due}",
                        *(at_idx(trace, last_idx), at_idx(trace, stretch.first_idx)),
                    )
                due, last_idx = stretch.last + 1, stretch.last_idx

    def _judge_repeats(self) -> None:
        """G2, and N2: every stream there is today is a multicast, so they are one."""
        self._verdicts["G2 N2"].premises = self._run.count(DELIVER)
        for _, trace, track, stretches in self._run.tracks("delivered"):
            self._repeats(trace, track, stretches)

    def _repeats(self, trace: MemberTrace, track: Track, stretches: list[Stretch]) -> None:
        covered = 0
        for first, last in ranges(stretches):
            if first <= covered:
                again = min(last, covered)
                self._violate(
                    "G2 N2",
                    f"{self._name(trace.member)} delivers {first}..{again} of "
                    f"{self._names.of_origin(track.origin)} again",
                    at_seqnos(trace, DELIVER, track.origin, first, again),
                )
            covered = max(covered, last)

    def _judge_integrity(self) -> None:
        """G1: what is delivered, less what was sent, is nothing."""
        verdict = self._verdicts["G1"]
        verdict.premises = self._run.count(DELIVER)
        sent = {
            track.origin: ranges(stretches) for _, _, track, stretches in self._run.tracks("sent")
        }
        for member, trace, track, stretches in self._run.tracks("delivered"):
            sender = track.peer, track.peer_inc
            known = sent.get(track.origin, [])
            highest = max((last for _, last in known), default=0)
            for first, last in minus(ranges(stretches), known):
                if sender in self._run.prefixes and first > highest:
                    verdict.unknown.add(self._name(sender))
                elif not self._may_lack(sender, first > highest):
                    looks = [at_seqnos(trace, DELIVER, track.origin, first, last)]
                    source = self._run.members.get(sender)
                    if source is not None and highest:
                        looks.append(at_seqnos(source, SEND, track.origin, highest, highest))
                    self._violate(
                        "G1",
                        f"{self._name(member)} delivers {first}..{last} of "
                        f"{self._names.of_origin(track.origin)}, which was not sent",
                        *looks,
                    )

    def _may_lack(self, sender: MemberKey, is_at_end: bool) -> bool:
        """May the send be in rows that are known to be missing? Then it is called incomplete."""
        trace = self._run.members.get(sender)
        if trace is None:
            return sender in self._run.mentioned
        return bool(trace.holes or trace.lost) or (is_at_end and not trace.is_clean_stop)

    def _judge_history(self) -> None:
        """VS1 to VS9, by the rules that judge simulations: from condensed rows of each member, up
        to the first that is missing."""
        members = self._run.members.values()
        rules = [make() for make in HISTORIES]
        for trace in members:
            stop = trace.holes[0].first if trace.holes else None
            rows = () if trace.cut else trace.history
            feed_all(rules, (row for row in rows if stop is None or row.idx < stop))
        is_retained = any(trace.purge == "retained" for trace in members)
        facts = Facts(purge="retained" if is_retained else "acks")
        for found in (rule.finish(facts) for rule in rules):
            self._add(found)

    def _add(self, found: Folded) -> None:
        """What a rule found in rows of members that record for themselves."""
        verdict = self._verdicts[found.id]
        verdict.premises += found.premises
        verdict.violation_count += found.violation_count
        shown = found.violations[: VIOLATIONS_SHOWN_MAX - len(verdict.violations)]
        verdict.violations += [Violation(text, list(rows)) for text, rows in shown]
        if found.undecidable is not None and self._run.prefixes:
            verdict.unknown |= set(map(self._name, self._run.prefixes))
        elif found.undecidable is not None:
            verdict.inconclusive.append(found.undecidable)

    def _judge_content(self) -> None:
        """All have the same blocks."""
        verdict = self._verdicts["content"]
        found = compare_content(self._spark, self._run)
        verdict.premises, verdict.share = found.blocks, found.share
        verdict.unknown |= set(map(self._name, found.unknown))
        if found.left_out:
            verdict.inconclusive.append(f"{found.left_out} spans not compared")
        for text, rows in found.differing:
            self._violate("content", text)
            if len(verdict.violations) <= VIOLATIONS_SHOWN_MAX:
                verdict.violations[-1].rows += rows

    def _judge_reach(self) -> None:
        """N5: of what a sender has purged, each member of its view has everything."""
        verdict = self._verdicts["N5"]
        found = judge_reach(self._run)
        verdict.premises = found.judged
        verdict.unknown |= set(map(self._name, found.unknown))
        for origin, receiver, through, mark in found.lacking:
            source, trace = self._run.members[origin[:2]], self._run.members[receiver]
            self._violate(
                "N5",
                f"{self._name(receiver)} has delivered {self._names.of_origin(origin)} through "
                f"{through}, which purged through {mark.through} with {self._name(receiver)} in "
                "its view",
                at_idx(source, mark.idx),
                at_seqnos(trace, DELIVER, origin, through, through),
                *(
                    at_idx(trace, stretch.first_idx)
                    for stretch in trace.tracks.get(Track("delivered", *origin), [])
                    if stretch.is_opened
                ),
            )
        verdict.reaches = [
            Reach(
                *(self._name(share.receiver), self._names.of_origin(share.origin)),
                *(share.delivered, share.sent),
            )
            for share in found.shares
        ]

    def _judge_details(self) -> None:
        """What frames and windows show, of the members that recorded them."""
        members = self._run.members
        is_full = {member: trace.level == "full" for member, trace in members.items()}
        if not all(is_full.values()):
            silent = [self._name(member) for member in members if not is_full[member]]
            for name in NEED_FULL:
                verdict = self._verdicts[name]
                verdict.is_beyond_level = True
                verdict.inconclusive.append(
                    f'needs record_level="full", which {", ".join(silent)} did not use'
                )
        capacity = {
            _key(member): trace.capacity for member, trace in members.items() if trace.capacity
        }
        full = [trace for member, trace in members.items() if is_full[member]]
        for found in judge_details(self._spark, full, capacity) if full else ():
            self._add(found)

    def _name(self, member: MemberKey) -> str:
        return self._names.of(member)

    def _violate(self, name: str, text: str, *looks: Look) -> None:
        verdict = self._verdicts[name]
        verdict.violation_count += 1
        if len(verdict.violations) < VIOLATIONS_SHOWN_MAX:
            shown = Violation(text)
            verdict.violations.append(shown)
            self._shown.append(shown)
            number = len(self._shown) - 1
            self._looks += [(trace, want._replace(finding=number)) for trace, want in looks]


def _not_judged(run: RecordedRun) -> list[Verdict]:
    """What summaries say nothing of: of a simulation because rows are missing."""
    if run.facts is None:
        return [Verdict(name, undecidable=[why]) for name, why in UNDECIDABLE_IF_RECORDED.items()]
    names = [verdict_id(rule.id) for rule in rules_for(facts_from_values(run.facts))]
    return [Verdict(name, incomplete=run.defects) for name in names if name not in RECORDED]


def _key(member: MemberKey) -> str:
    """As views list their members."""
    return f"{member[0]}#{member[1]}"


def _place(row: Row) -> tuple[str, int, int]:
    return row.node, row.inc, row.idx
