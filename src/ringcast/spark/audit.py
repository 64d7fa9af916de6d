"""Did each guarantee hold in this run of this cluster? Judged from its segments, on Spark.

Each file is read once, where Spark puts it, and becomes a digest (`ringcast.spark.digest`). Digests
are merged and judged here; only what is flagged is read again, for the rows that show it. What each
guarantee means is defined by the folds in `ringcast.trace.predicates`.

A verdict is *violated* only on positive evidence. Where rows of a member are missing (lost by its
recorder, a file gone or torn) the rest is judged and called *incomplete*. The trace of a member
that a view left behind is a prefix: what hangs on its missing end is *unknown*, nobody's fault.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ringcast.errors import RingcastError, UsageError
from ringcast.spark.digest import (
    SPAN_BLOCKS,
    Digest,
    MemberTrace,
    SegmentState,
    Span,
    Track,
    digest_segment,
)
from ringcast.trace.rows import BLOCK, DELIVER, SEND, VIEW, Row, split_key
from ringcast.trace.segments import Segment, SegmentInfo, segment_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from ringcast.spark.digest import Stretch
    from ringcast.trace.rows import MemberKey, OriginKey

WITNESS_ROWS_MAX = 20
VIOLATIONS_SHOWN_MAX = 10
SPANS_REREAD_MAX = 4096
"""Spans of blocks compared one by one. A clean run has a few for each joiner."""
_TASKS_PER_CORE_MAX = 4
_TASK_BYTES = 4 << 20
"""A task costs some 30 ms: worth it for this much, or for a core that would be idle."""

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
        values = {
            "run_id": self.run_id,
            "members": self.members,
            "segments": self.segments,
            "rows": self.rows,
            "verdicts": verdicts,
            "notes": self.notes,
            "exit_status": self.exit_status,
        }
        return json.dumps(values, indent=2)


def audit(spark: SparkSession, directory: Path | str, run_id: str | None = None) -> Report:
    """Judge the run whose segments are under the directory (shared with the executors)."""
    paths = segment_paths(directory)
    if not paths:
        raise UsageError(f"{directory}: no segments (*.parquet) in it")
    sizes = {str(path): path.stat().st_size for path in paths}
    read = _over_files(spark, sizes, _state_of)
    states, damaged = _chosen_run(read, run_id)
    run = _Run(states, damaged)
    unfinished = sum(1 for _ in paths[0].parent.glob("*.part"))
    if unfinished:
        run.notes.append(f"{unfinished} unfinished files, left by members that were killed: unread")
    return _Judge(spark, run).report()


# On the executors


def _over_files(
    spark: SparkSession, sizes: dict[str, int], work: Callable[[str], Iterable[str]]
) -> list[str]:
    """What `work` says of each item; `sizes` are the bytes that each makes it read.

    The items travel with the function. What comes back is small by design.
    """
    cores: int = spark.sparkContext.defaultParallelism
    useful = max(cores, sum(sizes.values()) // _TASK_BYTES)
    tasks = _pack(sizes, min(useful, cores * _TASKS_PER_CORE_MAX))
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
    """Rows of one member to be read again, for one finding."""

    finding: int
    events: tuple[str, ...]
    origin: OriginKey | None
    column: str
    """Which number must lie in first..last: idx, block, or seqno for a run that overlaps them."""
    first: int
    last: int
    limit: int = WITNESS_ROWS_MAX


def _rows_wanted(item: str) -> Iterator[str]:
    """The rows of one file that are wanted, as JSON of (finding, row)."""
    path, values = json.loads(item)
    wants = [Want(*value) for value in values]
    left = [want.limit for want in wants]
    with Segment(path) as segment:
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
    tests = [
        pc.less_equal(batch[want.column], want.last),
        pc.greater_equal(batch[upper], want.first),
    ]
    if want.events:
        tests.append(pc.is_in(batch["event"].cast(pa.string()), pa.array(want.events)))
    if want.origin is not None:
        peer, inc, stream = want.origin
        tests.append(pc.equal(batch["stream"], stream))
        if SEND not in want.events:  # Whose sends these are need not be said in the row.
            tests.append(pc.equal(batch["peer"].cast(pa.string()), peer))
            tests.append(pc.equal(batch["peer_inc"], pa.scalar(inc, pa.uint64())))
    return reduce(pc.and_, tests)


def _pack(sizes: dict[str, int], tasks: int) -> list[list[str]]:
    """Files into tasks of about the same size: the largest first, each to the lightest task."""
    packed: list[list[str]] = [[] for _ in range(min(tasks, len(sizes)))]
    weights = [0] * len(packed)
    for path in sorted(sizes, key=lambda path: (-sizes[path], path)):
        at = weights.index(min(weights))
        packed[at].append(path)
        weights[at] += sizes[path]
    return packed


# On the driver


def _chosen_run(read: Iterable[str], run_id: str | None) -> tuple[list[SegmentState], list[str]]:
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


Look: TypeAlias = "tuple[MemberTrace, Want]"
"""Where to look for rows, and for which."""


def _at_idx(trace: MemberTrace, idx: int) -> Look:
    return trace, Want(-1, (), None, "idx", idx, idx)


def _at_seqnos(trace: MemberTrace, event: str, origin: OriginKey, first: int, last: int) -> Look:
    return trace, Want(-1, (event,), origin, "seqno", first, last)


def _at_span(trace: MemberTrace, origin: OriginKey, span: int) -> Look:
    first = span * SPAN_BLOCKS
    last = first + SPAN_BLOCKS - 1
    return trace, Want(-1, (BLOCK,), origin, "block", first, last, limit=4 * SPAN_BLOCKS)


class _Judge:
    """Judges each predicate from the merged digests, then fetches the rows that show it."""

    def __init__(self, spark: SparkSession, run: _Run) -> None:
        self._spark = spark
        self._run = run
        self._verdicts = {name: Verdict(name) for name in TITLES}
        self._shown: list[Violation] = []
        self._looks: list[Look] = []

    def report(self) -> Report:
        run = self._run
        self._judge_integrity()
        self._judge_repeats()
        self._judge_views()
        self._judge_order("N1", "delivered", DELIVER)
        self._judge_order("N3", "sent", SEND)
        self._judge_content()
        for shown, row in self._fetch(self._looks):
            self._shown[shown].rows.append(row)
        for violation in self._shown:
            violation.rows = sorted(set(violation.rows), key=_place)[:WITNESS_ROWS_MAX]
        states = [state for trace in run.members.values() for state in trace.states]
        cut = sum(state.digest.cut for state in states)
        for verdict in self._verdicts.values():
            verdict.incomplete += run.defects
            if cut:
                verdict.incomplete.append(f"{cut} breaks in the order were not looked into")
            if not verdict.premises and not verdict.unknown:
                verdict.inconclusive.append("there was nothing to judge")
        return Report(
            run_id=states[0].info.run_id if states else "",
            members=len(run.members),
            segments=len(states),
            rows=sum(state.info.rows for state in states),
            verdicts=list(self._verdicts.values()),
            notes=run.notes,
        )

    # Predicates

    def _judge_order(self, name: str, role: str, event: str) -> None:
        """N1 and N3: from the offset on, each next seqno."""
        self._verdicts[name].premises = self._run.count(event)
        for member, trace, track, stretches in self._run.tracks(role):
            due, last_idx = 1, -1
            for stretch in stretches:
                is_backward = stretch.last < stretch.first and not stretch.is_opened
                is_due = stretch.is_opened or stretch.first == due
                # A jump ahead may be in rows that are missing; a step back cannot.
                is_excused = stretch.first > due and trace.has_hole(last_idx, stretch.first_idx)
                if is_backward or not (is_due or is_excused):
                    verb = "delivers" if event == DELIVER else "sends"
                    self._violate(
                        name,
                        f"{_key(member)} {verb} {track}:{stretch.first}, due was {due}",
                        _at_idx(trace, last_idx),
                        _at_idx(trace, stretch.first_idx),
                    )
                due, last_idx = stretch.last + 1, stretch.last_idx

    def _judge_repeats(self) -> None:
        """G2, and N2: every stream there is today is a multicast, so they are one."""
        for name in ("G2", "N2"):
            self._verdicts[name].premises = self._run.count(DELIVER)
        for member, trace, track, stretches in self._run.tracks("delivered"):
            covered = 0
            for first, last in _ranges(stretches):
                if first <= covered:
                    again = min(last, covered)
                    for name in ("G2", "N2"):
                        self._violate(
                            name,
                            f"{_key(member)} delivers {track}:{first}..{again} again",
                            _at_seqnos(trace, DELIVER, track.origin, first, again),
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
                    verdict.unknown.add(_key(sender))
                elif not self._may_lack(sender, first > highest):
                    looks = [_at_seqnos(trace, DELIVER, track.origin, first, last)]
                    source = self._run.members.get(sender)
                    if source is not None and highest:
                        looks.append(_at_seqnos(source, SEND, track.origin, highest, highest))
                    self._violate(
                        "G1",
                        f"{_key(member)} delivers {track}:{first}..{last}, which was not sent",
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
                here = _at_idx(trace, view.idx)
                if earlier is not None and view.counter <= earlier.counter:
                    self._violate(
                        "G4",
                        f"{_key(member)} installs view {view.counter} after {earlier.counter}",
                        *(_at_idx(trace, earlier.idx), here),
                    )
                if _key(member) not in view.members:
                    self._violate(
                        "G4", f"{_key(member)} installs view {view.counter} without itself", here
                    )
                lists[view.creator, view.counter].setdefault(view.members, here)
                earlier = view
        for (creator, counter), found in lists.items():
            if len(found) > 1:
                text = f"view {counter} of {creator} has {len(found)} member lists"
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
        unsure: list[tuple[MemberKey, OriginKey, int]] = []
        for member, trace in self._run.members.items():
            for track, spans in sorted(trace.content.items()):
                if track.role == "sent":
                    continue
                sender = track.peer, track.peer_inc
                originals = sent[track.origin][1] if track.origin in sent else {}
                for at, span in spans.items():
                    original = originals.get(at, Span(0, 0))
                    common = original.present & span.present
                    if common != span.present and sender in self._run.prefixes:
                        verdict.unknown.add(_key(sender))
                    if common and original != span:
                        unsure.append((member, track.origin, at))
                    else:
                        verdict.premises += common.bit_count()
        if len(unsure) > SPANS_REREAD_MAX:
            verdict.inconclusive.append(f"{len(unsure) - SPANS_REREAD_MAX} spans not compared")
        del unsure[SPANS_REREAD_MAX:]
        looks = []
        for number, (member, origin, at) in enumerate(unsure):
            for side in (sent[origin][0], self._run.members[member]):
                trace, want = _at_span(side, origin, at)
                looks.append((trace, want._replace(finding=number)))
        blocks: defaultdict[tuple[int, int, int], set[Row]] = defaultdict(set)
        for number, row in self._fetch(looks):
            # A block that its sender's or receiver's stop cut short ends elsewhere: another block.
            if row.kind == "sent" or (row.node, row.inc) == unsure[number][0]:
                blocks[number, row.block, row.seqno2].add(row)
        for (number, block, _), rows in sorted(blocks.items()):
            member, origin, _ = unsure[number]
            if len({row.kind for row in rows}) < 2:
                continue
            verdict.premises += 1
            if len({row.block_hash for row in rows}) > 1:
                text = f"block {block} of {_origin(origin)} has other bytes at {_key(member)}"
                self._violate("content", text)
                if len(verdict.violations) <= VIOLATIONS_SHOWN_MAX:
                    verdict.violations[-1].rows += rows

    # Witnesses

    def _violate(self, name: str, text: str, *looks: Look) -> None:
        verdict = self._verdicts[name]
        verdict.violation_count += 1
        if len(verdict.violations) < VIOLATIONS_SHOWN_MAX:
            shown = Violation(text)
            verdict.violations.append(shown)
            self._shown.append(shown)
            number = len(self._shown) - 1
            self._looks += [(trace, want._replace(finding=number)) for trace, want in looks]

    def _fetch(self, looks: Sequence[Look]) -> Iterator[tuple[int, Row]]:
        """Read the files that may have these rows."""
        wanted: defaultdict[str, list[Want]] = defaultdict(list)
        for trace, want in looks:
            for state in trace.states:
                if _may_have(state, want):
                    wanted[state.path].append(want)
        if not wanted:
            return
        sizes = {
            json.dumps([path, wants]): Path(path).stat().st_size
            for path, wants in sorted(wanted.items())
        }
        for text in _over_files(self._spark, sizes, _rows_wanted):
            finding, values = json.loads(text)
            row = Row(*values)
            yield finding, row._replace(members=tuple(row.members))


def _may_have(state: SegmentState, want: Want) -> bool:
    if want.column == "idx":
        return state.info.first_idx <= want.first <= state.info.last_idx
    if want.column == "block":
        return any(
            track.origin == want.origin and want.first // SPAN_BLOCKS in spans
            for track, spans in state.digest.content.items()
        )
    return any(
        track.origin == want.origin and stretch.first <= want.last and stretch.last >= want.first
        for track, stretches in state.digest.tracks.items()
        for stretch in stretches
    )


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
    return f"{member[0]}#{member[1]}"


def _origin(origin: OriginKey) -> str:
    return str(Track("", *origin))


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _place(row: Row) -> tuple[str, int, int]:
    return row.node, row.inc, row.idx
