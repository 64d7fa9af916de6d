"""Did each guarantee hold in this run of this cluster? Judged from its segments, on Spark.

Each file is read once, where Spark puts it, and becomes a digest (`ringcast.spark.digest`). Digests
are merged and judged here; only what is flagged is read again, for the rows that show it. What each
guarantee means is defined by the folds in `ringcast.trace.predicates`.

A verdict is *violated* only on positive evidence. Where rows of a member are missing (lost by its
recorder, a file gone or torn) the rest is judged and called *incomplete*. The trace of a member that
a view left behind is a prefix: what hangs on the missing end is *unknown*, which is nobody's fault.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ringcast.errors import RingcastError, UsageError
from ringcast.spark.digest import (
    SPAN_BLOCKS,
    Digest,
    MemberTrace,
    SegmentState,
    Stretch,
    Track,
    digest_segment,
)
from ringcast.trace.rows import BLOCK, DELIVER, SEND, VIEW, Row, split_key
from ringcast.trace.segments import Segment, SegmentInfo, segment_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from ringcast.trace.rows import MemberKey, OriginKey

WITNESS_ROWS_MAX = 20
VIOLATIONS_SHOWN_MAX = 10
SPANS_REREAD_MAX = 4096
"""Spans of blocks compared one by one. A clean run has a few for each joiner."""
_TASKS_PER_CORE = 4

OK = "ok"
VIOLATED = "violated"
INCOMPLETE = "incomplete"
INCONCLUSIVE = "inconclusive"
UNKNOWN_TAIL = "unknown tail"

TITLES = {
    "G1": "only what was sent is delivered",
    "G2": "no message is delivered twice",
    "G4": "views come in order and are the same everywhere",
    "N1": "each sender's messages are delivered in order, without a gap",
    "N2": "no multicast is delivered twice, across views and merges",
    "N3": "each send takes the next number",
    "content": "what is delivered has the bytes that were sent",
}


@dataclass(slots=True)
class Violation:
    """One way in which a predicate failed, and the rows that show it."""

    text: str
    rows: list[Row] = field(default_factory=list)


@dataclass(slots=True)
class Verdict:
    """What one predicate says of the run."""

    id: str
    premises: int = 0
    violations: list[Violation] = field(default_factory=list)
    violation_count: int = 0
    incomplete: list[str] = field(default_factory=list)
    inconclusive: list[str] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)
    """Members whose missing end it hangs on."""

    @property
    def title(self) -> str:
        return TITLES[self.id]

    @property
    def status(self) -> str:
        if self.violation_count:
            return VIOLATED
        if self.incomplete:
            return INCOMPLETE
        if self.inconclusive:
            return INCONCLUSIVE
        return UNKNOWN_TAIL if self.unknown else OK

    @property
    def detail(self) -> str:
        """The reason for the status, in one line."""
        match self.status:
            case "violated":
                return f"{self.violation_count} found"
            case "incomplete":
                return "; ".join(self.incomplete)
            case "inconclusive":
                return "; ".join(self.inconclusive)
            case "unknown tail":
                return f"unknown (tail of {', '.join(sorted(self.unknown))})"
            case _:
                return ""


@dataclass(slots=True)
class Report:
    """The audit of one run."""

    run_id: str
    members: int
    segments: int
    rows: int
    verdicts: list[Verdict]
    notes: list[str]
    """What was odd and changed nothing."""

    @property
    def exit_status(self) -> int:
        found = {verdict.status for verdict in self.verdicts}
        if VIOLATED in found:
            return 1
        return 3 if found & {INCOMPLETE, INCONCLUSIVE} else 0

    def to_json(self) -> str:
        verdicts = [
            {
                "id": verdict.id,
                "title": verdict.title,
                "verdict": verdict.status,
                "premises": verdict.premises,
                "detail": verdict.detail,
                "violations": verdict.violation_count,
                "witnesses": [
                    {"text": found.text, "rows": [row._asdict() for row in found.rows]}
                    for found in verdict.violations
                ],
            }
            for verdict in self.verdicts
        ]
        values = asdict(self) | {"verdicts": verdicts, "exit_status": self.exit_status}
        return json.dumps(values, indent=2)


def audit(spark: SparkSession, directory: Path | str, run_id: str | None = None) -> Report:
    """Judge the run whose segments are under the directory (shared with the executors)."""
    paths = segment_paths(directory)
    if not paths:
        raise UsageError(f"{directory}: no segments (*.parquet) in it")
    sizes = {str(path): path.stat().st_size for path in paths}
    read = _over_files(spark, _pack(sizes, _tasks(spark)), _state_of)
    states, damaged = _chosen_run(read, run_id)
    run = _Run(states, damaged)
    unfinished = sum(1 for _ in paths[0].parent.glob("*.part"))
    if unfinished:
        run.notes.append(f"{unfinished} unfinished files, left by members that were killed: unread")
    return _Judge(spark, run).report()


# On the executors


def _over_files(
    spark: SparkSession, tasks: list[list[str]], work: Callable[[str], Iterable[str]]
) -> list[str]:
    """What `work` says of each item, one Spark task for each list of items.

    The lists travel with the function. What comes back is small by design.
    """
    frame = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(
        partial(_run_tasks, tasks, work), "said string"
    )
    return [row.said for row in frame.collect()]


def _run_tasks(
    tasks: list[list[str]],
    work: Callable[[str], Iterable[str]],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            for item in tasks[number]:
                said = pa.array(list(work(item)), pa.string())
                yield pa.RecordBatch.from_arrays([said], ["said"])


def _state_of(path: str) -> list[str]:
    """One file as JSON: its footer and digest, or what is wrong with it."""
    try:
        with Segment(path) as segment:
            digest = digest_segment(segment)
            return [json.dumps([path, asdict(segment.info), digest.to_json()])]
    except RingcastError as error:
        return [json.dumps([path, None, str(error)])]


class Want(NamedTuple):
    """Rows to be read again, for one finding."""

    finding: int
    path: str
    events: tuple[str, ...]
    origin: OriginKey | None
    column: str
    """Which number must lie in first..last: idx, block, or seqno for a run that overlaps it."""
    first: int
    last: int
    limit: int


def _rows_wanted(item: str) -> Iterator[str]:
    """The rows of one file that these wants name, as JSON of (finding, row)."""
    wants = [Want(*values) for values in json.loads(item)]
    left = {at: want.limit for at, want in enumerate(wants)}
    with Segment(wants[0].path) as segment:
        for batch in segment.batches(Row._fields):
            for at, want in enumerate(wants):
                if left[at] <= 0:
                    continue
                found = batch.filter(_matches(batch, want)).slice(0, left[at])
                left[at] -= len(found)
                for row in found.to_pylist():
                    yield json.dumps([want.finding, list(row.values())])


def _matches(batch: pa.RecordBatch, want: Want) -> pa.Array:
    upper = "seqno2" if want.column == "seqno" else want.column
    events = pc.is_in(batch["event"].cast(pa.string()), pa.array(want.events))
    mask = pc.and_(
        events,
        pc.and_(
            pc.less_equal(batch[want.column], want.last),
            pc.greater_equal(batch[upper], want.first),
        ),
    )
    if want.origin is not None:
        peer, inc, stream = want.origin
        for name, value in (
            ("peer", pa.scalar(peer)),
            ("peer_inc", pa.scalar(inc, pa.uint64())),
            ("stream", pa.scalar(stream, pa.int64())),
        ):
            column = batch[name].cast(value.type)
            mask = pc.and_(mask, pc.equal(column, value))
    return mask


def _pack(sizes: dict[str, int], tasks: int) -> list[list[str]]:
    """Files into tasks of about the same size: the largest first, each to the lightest task."""
    packed: list[list[str]] = [[] for _ in range(min(tasks, len(sizes)))]
    weights = [0] * len(packed)
    for path in sorted(sizes, key=lambda path: (-sizes[path], path)):
        at = weights.index(min(weights))
        packed[at].append(path)
        weights[at] += sizes[path]
    return packed


def _tasks(spark: SparkSession) -> int:
    return _TASKS_PER_CORE * max(1, spark.sparkContext.defaultParallelism)


# On the driver


def _chosen_run(
    read: Iterable[str], run_id: str | None
) -> tuple[list[SegmentState], list[str]]:
    states: list[SegmentState] = []
    damaged: list[str] = []
    for text in read:
        path, info, said = json.loads(text)
        if info is None:
            damaged.append(said)
        else:
            states.append(SegmentState(path, SegmentInfo(**info), Digest.from_json(said)))
    runs = sorted({state.info.run_id for state in states})
    if run_id is None and len(runs) > 1:
        names = ", ".join(repr(name) for name in runs[:5])
        raise UsageError(f"{len(runs)} runs are here ({names}…): choose one with --run")
    if run_id is not None and run_id not in runs:
        raise UsageError(f"no run {run_id!r} here; there are {runs[:5]}")
    chosen = [state for state in states if run_id in (None, state.info.run_id)]
    return sorted(chosen, key=lambda state: state.path), sorted(damaged)


class _Run:
    """The members' traces, and what is missing from them."""

    def __init__(self, states: list[SegmentState], damaged: list[str]) -> None:
        self.notes: list[str] = []
        self.defects = list(damaged)
        """Why the traces of survivors are not whole."""
        self.members: dict[MemberKey, MemberTrace] = {}
        groups: defaultdict[MemberKey, list[SegmentState]] = defaultdict(list)
        for state in states:
            groups[state.info.node, state.info.inc].append(state)
        for member, group in sorted(groups.items()):
            self.members[member] = MemberTrace(self._without_copies(group))
        self.mentioned = {
            split_key(key)
            for trace in self.members.values()
            for view in trace.views
            for key in view.members
        }
        departed = {
            split_key(key)
            for trace in self.members.values()
            for view in trace.views
            for key in set(view.members).difference(trace.views[-1].members)
        }
        self.prefixes = {
            member
            for member in departed
            if member not in self.members or not self.members[member].is_clean_stop
        }
        """Members that views left behind, and whose end is not recorded."""
        self._find_defects()

    def _without_copies(self, group: list[SegmentState]) -> list[SegmentState]:
        """In the order of idx, each stretch of it once."""
        kept: list[SegmentState] = []
        for state in sorted(group, key=lambda state: (state.info.first_idx, state.path)):
            if not kept or state.info.first_idx > kept[-1].info.last_idx:
                kept.append(state)
            elif (state.info, state.digest) == (kept[-1].info, kept[-1].digest):
                self.notes.append(f"a copy of {_name(kept[-1].path)} is ignored")
            else:
                self.defects.append(f"{_name(state.path)} and {_name(kept[-1].path)} overlap")
        return kept

    def _find_defects(self) -> None:
        for member, trace in self.members.items():
            key = _key(member)
            if trace.lost:
                self.defects.append(f"{key}: its recorder lost {trace.lost} rows")
            if trace.missing_rows() > trace.lost:
                gaps = ", ".join(f"{hole.first}..{hole.last}" for hole in trace.holes[:3])
                self.defects.append(f"{key}: rows {gaps} are in no file")
            if not trace.is_clean_stop and member not in self.prefixes:
                self.defects.append(f"{key}: the end of its trace is missing")
        for member in sorted(self.mentioned - set(self.members) - self.prefixes):
            self.defects.append(f"{_key(member)}: in a view, but has no file")

    def count(self, event: str) -> int:
        return sum(
            state.digest.counts.get(event, 0)
            for trace in self.members.values()
            for state in trace.states
        )

    def tracks(self, role: str) -> Iterator[tuple[MemberKey, MemberTrace, Track, list[Stretch]]]:
        for member, trace in self.members.items():
            for track, stretches in sorted(trace.tracks.items()):
                if track.role == role:
                    yield member, trace, track, stretches


class _Judge:
    """Judges each predicate from the merged digests, then fetches the rows that show it."""

    def __init__(self, spark: SparkSession, run: _Run) -> None:
        self._spark = spark
        self._run = run
        self._verdicts = {id: Verdict(id) for id in TITLES}
        self._findings: list[Violation] = []
        self._wants: list[Want] = []

    def report(self) -> Report:
        run = self._run
        self._judge_order("N1", DELIVER)
        self._judge_order("N3", SEND)
        self._judge_repeats()
        self._judge_integrity()
        self._judge_views()
        self._judge_content()
        for finding, row in self._fetch(self._wants):
            rows = self._findings[finding].rows
            if len(rows) < WITNESS_ROWS_MAX and row not in rows:
                rows.append(row)
        for violation in self._findings:
            violation.rows.sort(key=lambda row: (row.node, row.inc, row.idx))
        cut = sum(state.digest.cut for trace in run.members.values() for state in trace.states)
        for verdict in self._verdicts.values():
            verdict.incomplete += run.defects
            if cut:
                verdict.incomplete.append(f"{cut} breaks in the order are not looked into")
            if not verdict.premises and not verdict.unknown:
                verdict.inconclusive.append("nothing to judge")
        states = [state for trace in run.members.values() for state in trace.states]
        return Report(
            states[0].info.run_id if states else "",
            len(run.members),
            len(states),
            sum(state.info.rows for state in states),
            list(self._verdicts.values()),
            run.notes,
        )

    # Predicates

    def _judge_order(self, id: str, event: str) -> None:
        """N1 and N3: from the offset on, each next seqno."""
        self._verdicts[id].premises = self._run.count(event)
        verb = "delivers" if event == DELIVER else "sends"
        role = "delivered" if event == DELIVER else "sent"
        for member, trace, track, stretches in self._run.tracks(role):
            due, last_idx = 1, -1
            for stretch in stretches:
                is_due = stretch.is_opened or stretch.first == due
                is_backward = stretch.last < stretch.first and not stretch.is_opened
                # A jump ahead may be in the rows that are missing; a step back cannot.
                is_excused = stretch.first > due and trace.has_hole(last_idx, stretch.first_idx)
                if is_backward or not (is_due or is_excused):
                    self._violate(
                        id,
                        f"{_key(member)} {verb} {track}:{stretch.first}, due was {due}",
                        [
                            self._by_idx(trace, last_idx),
                            self._by_idx(trace, stretch.first_idx),
                        ],
                    )
                due, last_idx = stretch.last + 1, stretch.last_idx

    def _judge_repeats(self) -> None:
        """G2 and N2: all streams that exist are multicast, so these are one."""
        for id in ("G2", "N2"):
            self._verdicts[id].premises = self._run.count(DELIVER)
        for member, trace, track, stretches in self._run.tracks("delivered"):
            covered = 0
            for first, last in sorted(
                (stretch.first, stretch.last) for stretch in stretches if stretch.first <= stretch.last
            ):
                if first <= covered:
                    through = min(last, covered)
                    for id in ("G2", "N2"):
                        self._violate(
                            id,
                            f"{_key(member)} delivers {track}:{first}..{through} again",
                            [self._by_seqno(trace, track, DELIVER, first, through)],
                        )
                covered = max(covered, last)

    def _judge_integrity(self) -> None:
        """G1: what is delivered, less what was sent, is nothing."""
        verdict = self._verdicts["G1"]
        verdict.premises = self._run.count(DELIVER)
        sent: dict[OriginKey, list[tuple[int, int]]] = {}
        for _, _, track, stretches in self._run.tracks("sent"):
            sent[track.origin] = [(stretch.first, stretch.last) for stretch in stretches]
        for member, trace, track, stretches in self._run.tracks("delivered"):
            sender = track.peer, track.peer_inc
            known = sorted(sent.get(track.origin, []))
            for first, last in _minus([(s.first, s.last) for s in stretches], known):
                highest = known[-1][1] if known else 0
                if sender in self._run.prefixes and first > highest:
                    verdict.unknown.add(_key(sender))
                elif self._may_lack_sends(sender, first, highest):
                    continue  # Already called incomplete.
                else:
                    wants = [self._by_seqno(trace, track, DELIVER, first, last)]
                    source = self._run.members.get(sender)
                    if source is not None:
                        own = Track("sent", *track.origin)
                        wants.append(self._by_seqno(source, own, SEND, highest, last + 1))
                    self._violate(
                        "G1",
                        f"{_key(member)} delivers {track}:{first}..{last}, which was never sent",
                        wants,
                    )

    def _may_lack_sends(self, sender: MemberKey, first: int, highest: int) -> bool:
        """Could the send be in rows that we know to be missing?"""
        trace = self._run.members.get(sender)
        if trace is None:
            return sender in self._run.mentioned
        if trace.holes or trace.lost:
            return True
        return not trace.is_clean_stop and first > highest

    def _judge_views(self) -> None:
        """G4: counters grow, one is in one's views, and one id is one list."""
        self._verdicts["G4"].premises = self._run.count(VIEW)
        lists: defaultdict[tuple[str, int], dict[tuple[str, ...], list[Want]]] = defaultdict(dict)
        for member, trace in self._run.members.items():
            earlier = None
            for view in trace.views:
                want = self._by_idx(trace, view.idx)
                if earlier is not None and view.counter <= earlier.counter:
                    self._violate(
                        "G4",
                        f"{_key(member)} installs view {view.counter} after {earlier.counter}",
                        [self._by_idx(trace, earlier.idx), want],
                    )
                if _key(member) not in view.members:
                    self._violate(
                        "G4", f"{_key(member)} installs view {view.counter} without itself", [want]
                    )
                lists[view.creator, view.counter].setdefault(view.members, want)
                earlier = view
        for (creator, counter), found in lists.items():
            if len(found) > 1:
                self._violate(
                    "G4",
                    f"view {counter} of {creator} has {len(found)} member lists",
                    list(found.values()),
                )

    def _judge_content(self) -> None:
        """Blocks of both sides are the same; where a span differs, it is read again."""
        verdict = self._verdicts["content"]
        sent = {
            track.origin: (trace, spans)
            for trace in self._run.members.values()
            for track, spans in trace.content.items()
            if track.role == "sent"
        }
        unsure: list[tuple[MemberKey, Track, int]] = []
        for member, trace in self._run.members.items():
            for track, spans in sorted(trace.content.items()):
                if track.role == "sent":
                    continue
                originals = sent[track.origin][1] if track.origin in sent else {}
                for at, span in spans.items():
                    original = originals.get(at)
                    common = 0 if original is None else original.present & span.present
                    verdict.premises += common.bit_count()
                    sender = track.peer, track.peer_inc
                    if common != span.present and sender in self._run.prefixes:
                        verdict.unknown.add(_key(sender))
                    if common and original != span:
                        unsure.append((member, track, at))
        self._compare_blocks(unsure[:SPANS_REREAD_MAX], sent)
        if len(unsure) > SPANS_REREAD_MAX:
            verdict.inconclusive.append(f"{len(unsure) - SPANS_REREAD_MAX} spans not compared")

    def _compare_blocks(
        self,
        unsure: list[tuple[MemberKey, Track, int]],
        sent: dict[OriginKey, tuple[MemberTrace, dict[int, object]]],
    ) -> None:
        wants = []
        for number, (member, track, at) in enumerate(unsure):
            for trace, side in (
                (sent[track.origin][0], Track("sent", *track.origin)),
                (self._run.members[member], track),
            ):
                wants.append(self._by_block(trace, side, at)._replace(finding=number))
        blocks: defaultdict[tuple[int, int], list[Row]] = defaultdict(list)
        for number, row in self._fetch(self._located(wants)):
            blocks[number, row.block].append(row)
        for (number, block), rows in sorted(blocks.items()):
            member, track, _ = unsure[number]
            originals = [row for row in rows if row.kind == "sent"]
            for copy in rows:
                for original in originals:
                    if copy.kind == "sent" or copy.seqno2 != original.seqno2:
                        continue  # A block that a member's stop cut short has no counterpart.
                    if copy.block_hash != original.block_hash:
                        self._violate(
                            "content",
                            f"block {block} of {track} has other bytes at {_key(member)}",
                            [],
                            [original, copy],
                        )
