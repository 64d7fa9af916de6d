"""A run judged from the digests of what its members recorded, each for itself.

A verdict is *violated* only on positive evidence. Where rows of a member are missing (lost by its
recorder, a file gone or torn) the rest is judged and called *incomplete*. The trace of a member
that a view left behind is a prefix: what hangs on its missing end is *unknown*, nobody's fault.
What such traces can never show is *undecidable*.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ringcast.model import Stream
from ringcast.spark.details import judge_details
from ringcast.spark.digest import NO_SPAN, SPAN_BLOCKS, equal_blocks
from ringcast.spark.folding import VIOLATIONS_SHOWN_MAX
from ringcast.spark.offsets import judge_offsets, minus, ranges
from ringcast.spark.reading import (
    WITNESS_ROWS_MAX,
    at_idx,
    at_seqnos,
    at_span,
    fetch_rows,
)
from ringcast.spark.report import (
    IF_ANY,
    NEED_FULL,
    RECORDED,
    Verdict,
    Violation,
    verdict_id,
)
from ringcast.spark.survivors import compare_survivors
from ringcast.spark.undecidable import UNDECIDABLE_IF_RECORDED
from ringcast.trace.content import hashed_every
from ringcast.trace.facts import facts_from_values
from ringcast.trace.folds import folds_for
from ringcast.trace.rows import DELIVER, SEND, VIEW

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from ringcast.spark.digest import MemberTrace, Stretch, Track
    from ringcast.spark.reading import Look
    from ringcast.spark.run import Run
    from ringcast.trace.rows import MemberKey, OriginKey, Row

SPANS_REREAD_MAX = 4096
"""Spans of blocks compared one by one. A clean run has a few for each joiner."""


def judge_recorded(spark: SparkSession, run: Run) -> list[Verdict]:
    """What every predicate says of the run."""
    return _Judge(spark, run).verdicts()


class _Judge:
    """Judges each predicate from the merged digests, then fetches the rows that show it."""

    def __init__(self, spark: SparkSession, run: Run) -> None:
        self._spark = spark
        self._run = run
        self._names = run.names
        self._verdicts = {name: Verdict(name) for name in RECORDED}
        self._shown: list[Violation] = []
        self._looks: list[Look] = []

    def verdicts(self) -> list[Verdict]:
        self._judge_integrity()
        self._judge_repeats()
        self._judge_views()
        self._judge_order()
        self._judge_sends()
        self._judge_offsets()
        self._judge_content()
        self._judge_survivors()
        self._judge_details()
        for shown, row in fetch_rows(self._spark, self._looks):
            self._shown[shown].rows.append(row)
        for violation in self._shown:
            violation.rows = sorted(set(violation.rows), key=_place)[:WITNESS_ROWS_MAX]
        cut = sum(trace.cut for trace in self._run.members.values())
        for name in IF_ANY:
            if not self._verdicts[name].premises:
                del self._verdicts[name]
        for verdict in self._verdicts.values():
            if verdict.is_beyond_level:
                continue
            verdict.incomplete += self._run.defects
            if cut:
                verdict.incomplete.append(f"{cut} breaks in the order were not looked into")
            if not verdict.premises and not verdict.unknown and verdict.id not in NEED_FULL:
                verdict.inconclusive.append("there was nothing to judge")
        return [*self._verdicts.values(), *_not_judged(self._run)]

    # Predicates

    def _judge_order(self) -> None:
        """N1: what is new is the next seqno. What has been delivered before is for G2 to judge. U4
        is the same of uniform messages."""
        self._verdicts["N1"].premises = self._run.count(DELIVER)
        for member, trace, track, stretches in self._run.tracks("delivered"):
            names = ["N1"]
            if track.stream == Stream.UNIFORM:
                names.append("U4")
                self._verdicts["U4"].premises += _messages(stretches)
            low, opened_idx = 1, -1
            due, due_idx = 1, -1
            for stretch in stretches:
                idx = stretch.first_idx
                if stretch.is_opened:
                    if stretch.first < due:  # of a sender that was away meanwhile
                        self._violate_all(
                            names,
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
                    self._violate_all(
                        names,
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
            self._repeats("G2 N2", trace, track, stretches)

    def _repeats(
        self, name: str, trace: MemberTrace, track: Track, stretches: list[Stretch]
    ) -> None:
        covered = 0
        for first, last in ranges(stretches):
            if first <= covered:
                again = min(last, covered)
                self._violate(
                    name,
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

    def _judge_views(self) -> None:
        """G4: counters grow, one is in one's own views, and one id is one list."""
        self._verdicts["G4"].premises = self._run.count(VIEW)
        lists: defaultdict[tuple[str, int], dict[tuple[str, ...], Look]] = defaultdict(dict)
        for member, trace in self._run.members.items():
            earlier = None
            for view in trace.views:
                here = at_idx(trace, view.idx)
                what = f"{self._name(member)} installs view {view.counter}"
                if earlier is not None and view.counter <= earlier.counter:
                    before = at_idx(trace, earlier.idx)
                    self._violate("G4", f"{what} after {earlier.counter}", before, here)
                if _key(member) not in view.members:
                    self._violate("G4", f"{what} without itself", here)
                lists[view.creator, view.counter].setdefault(view.members, here)
                earlier = view
        for (creator, counter), found in lists.items():
            if len(found) > 1:
                maker = self._names.of_key(creator)
                text = f"view {counter} of {maker} has {len(found)} member lists"
                self._violate("G4", text, *found.values())

    def _judge_content(self) -> None:
        """Both sides have the same blocks. A span that differs is read again, block by block."""
        verdict = self._verdicts["content"]
        sent = {
            track.origin: (trace, spans)
            for trace in self._run.members.values()
            for track, spans in trace.content.items()
            if track.role == "sent"
        }
        compared = 0
        unsure: list[tuple[MemberKey, OriginKey, int]] = []
        for member, trace in self._run.members.items():
            for track, spans in sorted(trace.content.items()):
                if track.role == "sent":
                    continue
                sender = track.peer, track.peer_inc
                originals = sent[track.origin][1] if track.origin in sent else {}
                hashed = self._hashed_by(sender)
                for at, span in spans.items():
                    original = originals.get(at, NO_SPAN)
                    common = original.present & span.present
                    if common != span.present & hashed and sender in self._run.prefixes:
                        verdict.unknown.add(self._name(sender))
                    if common and original != span:
                        alike = equal_blocks(sent[track.origin][0], trace, track, at, common)
                        if alike is None:
                            unsure.append((member, track.origin, at))
                        else:
                            verdict.premises += len(alike)
                            compared += sum(block.messages for block in alike)
                    elif common:
                        verdict.premises += common.bit_count()
                        compared += span.messages
        if len(unsure) > SPANS_REREAD_MAX:
            verdict.inconclusive.append(f"{len(unsure) - SPANS_REREAD_MAX} spans not compared")
        del unsure[SPANS_REREAD_MAX:]
        looks = []
        for number, (member, origin, at) in enumerate(unsure):
            for side in (sent[origin][0], self._run.members[member]):
                trace, want = at_span(side, origin, at)
                looks.append((trace, want._replace(finding=number)))
        blocks: defaultdict[tuple[int, int, int], set[Row]] = defaultdict(set)
        for number, row in fetch_rows(self._spark, looks):
            # A block that its sender's or receiver's stop cut short ends elsewhere: another block.
            if row.kind == "sent" or (row.node, row.inc) == unsure[number][0]:
                blocks[number, row.block, row.seqno2].add(row)
        for (number, block, _), rows in sorted(blocks.items()):
            member, origin, _ = unsure[number]
            if len({row.kind for row in rows}) < 2:
                continue
            verdict.premises += 1
            compared += max(row.seqno2 - row.seqno + 1 for row in rows)
            if len({row.block_hash for row in rows}) > 1:
                text = (
                    f"block {block} of {self._names.of_origin(origin)} has other bytes at "
                    f"{self._name(member)}"
                )
                self._violate("content", text)
                if len(verdict.violations) <= VIOLATIONS_SHOWN_MAX:
                    verdict.violations[-1].rows += rows

        delivered = sum(
            _messages(stretches) for _, _, _, stretches in self._run.tracks("delivered")
        )
        verdict.share = min(1.0, compared / delivered) if delivered else None

    def _judge_offsets(self) -> None:
        """N9, N11 and U2: delivery begins where a window opened."""
        judged = judge_offsets(self._run)
        for name, count in judged.premises.items():
            self._verdicts[name].premises = count
        for finding in judged.found:
            self._violate(finding.id, finding.text, *finding.looks)
        self._verdicts["N11"].unknown |= set(map(self._name, judged.unknown))
        for _, trace, track, stretches in self._run.tracks("delivered"):
            if track.stream == Stream.UNIFORM:
                self._repeats("U2", trace, track, stretches)

    def _judge_survivors(self) -> None:
        """U1 and U6: who has resolved what a departed sender left lacks nothing of it."""
        compared = compare_survivors(self._run)
        self._verdicts["U1"].premises = compared.with_anybody
        self._verdicts["U6"].premises = compared.with_survivors
        for origin, survivor, other, first, last, is_survivor in compared.missed:
            trace, lacking = self._run.members[other], self._run.members[survivor]
            self._violate_all(
                ["U1", "U6"] if is_survivor else ["U1"],
                f"{self._name(other)} delivers {first}..{last} of {self._names.of_origin(origin)}, "
                f"{self._name(survivor)} does not and has resolved it",
                at_seqnos(trace, DELIVER, origin, first, last),
                at_idx(lacking, lacking.resolved[origin[:2]]),
            )

    def _hashed_by(self, sender: MemberKey) -> int:
        """Which blocks of a span it hashes, as bits: one it does not hash is not missing."""
        trace = self._run.members.get(sender)
        every = 1 if trace is None else hashed_every(trace.level)
        return sum(1 << at for at in range(0, SPAN_BLOCKS, every))

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
            verdict = self._verdicts[found.id]
            verdict.premises += found.premises
            verdict.violation_count += found.violation_count
            room = VIOLATIONS_SHOWN_MAX - len(verdict.violations)
            shown = found.violations[:room]
            verdict.violations += [Violation(text, list(rows)) for text, rows in shown]
            if found.undecidable is not None:
                verdict.inconclusive.append(found.undecidable)

    def _name(self, member: MemberKey) -> str:
        return self._names.of(member)

    def _violate_all(self, names: Iterable[str], text: str, *looks: Look) -> None:
        for name in names:
            self._violate(name, text, *looks)

    def _violate(self, name: str, text: str, *looks: Look) -> None:
        verdict = self._verdicts[name]
        verdict.violation_count += 1
        if len(verdict.violations) < VIOLATIONS_SHOWN_MAX:
            shown = Violation(text)
            verdict.violations.append(shown)
            self._shown.append(shown)
            number = len(self._shown) - 1
            self._looks += [(trace, want._replace(finding=number)) for trace, want in looks]


def _not_judged(run: Run) -> list[Verdict]:
    """What digests say nothing of: of a simulation because rows are missing."""
    if run.facts is None:
        return [Verdict(name, undecidable=[why]) for name, why in UNDECIDABLE_IF_RECORDED.items()]
    names = [verdict_id(fold.id) for fold in folds_for(facts_from_values(run.facts))]
    return [Verdict(name, incomplete=run.defects) for name in names if name not in RECORDED]


def _messages(stretches: Iterable[Stretch]) -> int:
    return sum(last - first + 1 for first, last in ranges(stretches))


def _key(member: MemberKey) -> str:
    """As views list their members."""
    return f"{member[0]}#{member[1]}"


def _place(row: Row) -> tuple[str, int, int]:
    return row.node, row.inc, row.idx
