"""Did each guarantee hold in this run of this cluster? Judged from its segments, on Spark.

Each file is read once, where Spark puts it, and becomes a digest (`ringcast.spark.digest`). Digests
are merged and judged here; only what is flagged is read again, for the rows that show it. What each
guarantee means is defined by the folds in `ringcast.trace.predicates`.

A verdict is *violated* only on positive evidence. Where rows of a member are missing (lost by its
recorder, a file gone or torn) the rest is judged and called *incomplete*. The trace of a member
that a view left behind is a prefix: what hangs on its missing end is *unknown*, nobody's fault.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from ringcast.errors import UsageError
from ringcast.spark.details import judge_details
from ringcast.spark.digest import NO_SPAN, SPAN_BLOCKS
from ringcast.spark.reading import (
    WITNESS_ROWS_MAX,
    at_idx,
    at_seqnos,
    at_span,
    fetch_rows,
    read_states,
)
from ringcast.spark.report import IF_ANY, NEED_FULL, TITLES, Report, Verdict, Violation
from ringcast.spark.run import Run, choose_run
from ringcast.spark.survivors import compare_survivors
from ringcast.trace.content import hashed_every
from ringcast.trace.rows import DELIVER, SEND, VIEW
from ringcast.trace.segments import TEMPORARY_SUFFIX, segment_paths

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

    from ringcast.spark.digest import SegmentState, Stretch
    from ringcast.spark.reading import Look
    from ringcast.trace.rows import MemberKey, OriginKey, Row

VIOLATIONS_SHOWN_MAX = 10
SPANS_REREAD_MAX = 4096
"""Spans of blocks compared one by one. A clean run has a few for each joiner."""


def audit(spark: SparkSession, directory: Path | str, run_id: str | None = None) -> Report:
    """Judge the run whose segments are under the directory (shared with the executors)."""
    paths = segment_paths(directory)
    if not paths:
        raise UsageError(f"{directory}: no segments (*.parquet) in it")
    states, damaged = read_states(spark, paths)
    return audit_states(spark, directory, states, damaged, run_id)


def audit_states(
    spark: SparkSession,
    directory: Path | str,
    states: list[SegmentState],
    damaged: list[str],
    run_id: str | None = None,
) -> Report:
    """The same, from what was read of the segments before."""
    run = Run(choose_run(states, run_id), damaged)
    unfinished = sum(1 for _ in Path(directory).rglob(f"*{TEMPORARY_SUFFIX}"))
    if unfinished:
        run.notes.append(f"{unfinished} unfinished files, left by members that were killed: unread")
    return _Judge(spark, run).report()


class _Judge:
    """Judges each predicate from the merged digests, then fetches the rows that show it."""

    def __init__(self, spark: SparkSession, run: Run) -> None:
        self._spark = spark
        self._run = run
        self._names = run.names
        self._verdicts = {name: Verdict(name) for name in TITLES}
        self._shown: list[Violation] = []
        self._looks: list[Look] = []

    def report(self) -> Report:
        run = self._run
        self._judge_integrity()
        self._judge_repeats()
        self._judge_views()
        self._judge_order()
        self._judge_sends()
        self._judge_content()
        self._judge_survivors()
        self._judge_details()
        for shown, row in fetch_rows(self._spark, self._looks):
            self._shown[shown].rows.append(row)
        for violation in self._shown:
            violation.rows = sorted(set(violation.rows), key=_place)[:WITNESS_ROWS_MAX]
        states = run.segments
        cut = sum(state.digest.cut for state in states)
        for name in IF_ANY:
            if not self._verdicts[name].premises:
                del self._verdicts[name]
        for verdict in self._verdicts.values():
            if verdict.is_beyond_level:
                continue
            verdict.incomplete += run.defects
            if cut:
                verdict.incomplete.append(f"{cut} breaks in the order were not looked into")
            if not verdict.premises and not verdict.unknown and verdict.id not in NEED_FULL:
                verdict.inconclusive.append("there was nothing to judge")
        return Report(
            run_id=states[0].info.run_id if states else "",
            members=len(run.members),
            segments=len(states),
            rows=sum(state.info.rows for state in states),
            verdicts=list(self._verdicts.values()),
            notes=run.notes,
            names=run.names,
        )

    # Predicates

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
        for member, trace, track, stretches in self._run.tracks("delivered"):
            covered = 0
            for first, last in _ranges(stretches):
                if first <= covered:
                    again = min(last, covered)
                    self._violate(
                        "G2 N2",
                        f"{self._name(member)} delivers {first}..{again} of "
                        f"{self._names.of_origin(track.origin)} again",
                        at_seqnos(trace, DELIVER, track.origin, first, again),
                    )
                covered = max(covered, last)

    def _judge_integrity(self) -> None:
        """G1: what is delivered, less what was sent, is nothing."""
        verdict = self._verdicts["G1"]
        verdict.premises = self._run.count(DELIVER)
        sent = {
            track.origin: _ranges(stretches) for _, _, track, stretches in self._run.tracks("sent")
        }
        for member, trace, track, stretches in self._run.tracks("delivered"):
            sender = track.peer, track.peer_inc
            known = sent.get(track.origin, [])
            highest = max((last for _, last in known), default=0)
            for first, last in _minus(_ranges(stretches), known):
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
                        unsure.append((member, track.origin, at))
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
            last - first + 1
            for _, _, _, stretches in self._run.tracks("delivered")
            for first, last in _ranges(stretches)
        )
        verdict.share = min(1.0, compared / delivered) if delivered else None

    def _judge_survivors(self) -> None:
        """U1 and U6: who has resolved what a departed sender left lacks nothing of it."""
        self._verdicts["U1 U6"].premises, missed = compare_survivors(self._run)
        for origin, survivor, other, first, last in missed:
            trace, lacking = self._run.members[other], self._run.members[survivor]
            self._violate(
                "U1 U6",
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
            verdict.violations += [Violation(text, rows) for text, rows in found.violations[:room]]
            if found.undecidable is not None:
                verdict.inconclusive.append(found.undecidable)

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


def _ranges(stretches: Iterable[Stretch]) -> list[tuple[int, int]]:
    """The seqnos covered, ascending; ranges may overlap."""
    return sorted((at.first, at.last) for at in stretches if at.first <= at.last)


def _minus(
    ranges: list[tuple[int, int]], taken: list[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """What of the first is not in the second; both ascending."""
    for first, last in ranges:
        at = first
        for low, high in taken:
            if low > last:
                break
            if high >= at:
                if low > at:
                    yield at, low - 1
                at = high + 1
        if at <= last:
            yield at, last


def _key(member: MemberKey) -> str:
    """As views list their members."""
    return f"{member[0]}#{member[1]}"


def _place(row: Row) -> tuple[str, int, int]:
    return row.node, row.inc, row.idx
