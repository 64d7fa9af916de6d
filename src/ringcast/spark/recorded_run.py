"""One run, put together from the summaries of its segments: its members, and what is missing.

A simulation has one more trace, of the run itself, and its facts.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ringcast.errors import UsageError
from ringcast.rules.history import Condensed, History
from ringcast.spark.report import Names
from ringcast.spark.summary import MemberTrace, SegmentState, Track
from ringcast.trace.footer import THE_RUN, NamedRows, Recording
from ringcast.trace.rows import MemberKey, Row, split_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ringcast.spark.states import Refused

REFUSED_SHOWN_MAX = 20


def choose_run(
    states: list[SegmentState], run_id: str | None, refused: Sequence[Refused]
) -> list[SegmentState]:
    """The segments of this run, or of the only one there is."""
    runs = sorted({state.info.run_id for state in states})
    if run_id is None and len(runs) > 1:
        names = ", ".join(map(repr, runs[:5])) + ", …" * (len(runs) > 5)
        raise UsageError(f"{len(runs)} runs are here ({names}): choose one with --run")
    if run_id is not None and run_id not in runs:
        reasons = "; ".join(each.reason for each in refused[:REFUSED_SHOWN_MAX])
        damaged = f"; {len(refused)} files cannot be read: {reasons}" if refused else ""
        raise UsageError(f"no run {run_id!r} here; there are {runs[:5]}{damaged}")
    return [state for state in states if run_id in (None, state.info.run_id)]


class RecordedRun:
    """The members' traces, and what is missing from them."""

    def __init__(self, states: list[SegmentState], refused: Iterable[Refused]) -> None:
        self.notes: list[str] = []
        self.defects: list[str] = []
        """Why the traces of survivors are not whole."""
        self.absent: list[str] = []
        """Members that recorded nothing, or whose files are all gone."""
        self.overlapping: list[SegmentState] = []
        """Segments that tell otherwise of rows that another one has too."""
        self.of_others: set[Refused] = set()
        """Files that cannot be read, and whose names say that they are of other runs."""
        self.members: dict[MemberKey, MemberTrace] = {}
        groups: defaultdict[MemberKey, list[SegmentState]] = defaultdict(list)
        for state in states:
            groups[state.info.node, state.info.inc].append(state)
        for member, group in sorted(groups.items()):
            self.members[member] = MemberTrace(self._without_copies(group))
        self.own = self.members.pop(THE_RUN, None)
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
        senders = {
            (track.peer, track.peer_inc) for trace in self.members.values() for track in trace.runs
        }
        self.names = Names(self.mentioned | senders | set(self.members))
        self._find_refused(list(refused))
        self._find_defects()

    @property
    def id(self) -> str:
        return self.segments[0].info.run_id if self.segments else ""

    @property
    def facts(self) -> dict[str, Any] | None:
        """Of a simulation, as JSON has them."""
        return None if self.own is None else self.own.states[0].info.facts

    @property
    def is_whole_simulation(self) -> bool:
        return self.facts is not None and not self.defects

    @property
    def parts(self) -> list[Sequence[SegmentState]]:
        """The segments of each member, and of the run itself."""
        traces = [*self.members.values(), *([] if self.own is None else [self.own])]
        return [trace.states for trace in traces]

    @property
    def segments(self) -> list[SegmentState]:
        return [state for states in self.parts for state in states]

    def count(self, event: str) -> int:
        return sum(state.summary.counts.get(event, 0) for state in self.segments)

    def runs(self, role: str) -> Iterator[tuple[MemberKey, MemberTrace, Track, list[Row]]]:
        """What members sent, or delivered."""
        for member, trace in self.members.items():
            for track, rows in sorted(trace.runs.items()):
                if track.role == role:
                    yield member, trace, track, rows

    @cached_property
    def history(self) -> History:
        """Who did what in which view, as far as no row is missing."""
        condensed = Condensed()
        for trace in self.members.values():
            for row in trace.sure_rows:
                condensed.feed(row)
        return History(condensed)

    def _without_copies(self, group: list[SegmentState]) -> list[SegmentState]:
        """In the order of idx, each stretch of it once."""
        kept: list[SegmentState] = []
        # What others were merged into comes before them.
        for state in sorted(
            group, key=lambda state: (state.info.first_idx, -state.info.last_idx, state.path)
        ):
            if not kept or state.info.first_idx > kept[-1].info.last_idx:
                kept.append(state)
            elif kept[-1].info.is_merged_from(state.info):
                names = f"{_name_of(state.path)} was merged into {_name_of(kept[-1].path)}"
                self.notes.append(names)
            elif state.is_same_as(kept[-1]):
                self.notes += [f"a copy of {_name_of(path)} is ignored" for path in kept[-1].paths]
            else:
                names = f"{_name_of(state.path)} and {_name_of(kept[-1].path)}"
                self.defects.append(f"{names} overlap")
                self.overlapping.append(state)
        return kept

    def _find_refused(self, refused: list[Refused]) -> None:
        """A file that cannot be read may have rows of this run, unless its name says otherwise."""
        stems = {
            Recording(run_id=self.id, node=node, inc=inc).file_stem
            for node, inc in (*self.mentioned, *self.members, THE_RUN)
        }
        others = [each for each in refused if self.id and _is_of_others(each.path, stems)]
        self.of_others.update(others)
        self.defects += [each.reason for each in refused if each not in self.of_others]
        self.notes += [f"of another run: {each.reason}" for each in others[:REFUSED_SHOWN_MAX]]
        if len(others) > REFUSED_SHOWN_MAX:
            self.notes.append(f"and {len(others) - REFUSED_SHOWN_MAX} more files of other runs")

    def _find_defects(self) -> None:
        traces = dict(self.members)
        if self.own is not None:
            traces[THE_RUN] = self.own
        for member, trace in traces.items():
            name = "the run itself" if member == THE_RUN else self.names.of(member)
            if trace.lost:
                self.defects.append(f"{name}: its recorder lost {trace.lost} rows")
            if trace.missing_rows() > trace.lost:
                gaps = ", ".join(f"{hole.seqno}..{hole.seqno2}" for hole in trace.holes[:3])
                self.defects.append(f"{name}: rows {gaps} are in no file")
            if not trace.is_clean_stop and member not in self.prefixes:
                self.defects.append(f"{name}: the end of its trace is missing")
        missed = self.absent if self.facts is None else self.defects
        for member in sorted(self._due() - set(self.members)):
            missed.append(f"{self.names.of(member)}: in a view, but has no file")

    def _due(self) -> set[MemberKey]:
        """Who must have left a trace: of a simulation it is known, else by what others say."""
        if self.facts is None:
            return self.mentioned - self.prefixes
        return set(map(split_key, self.facts["capacity"]))


def _is_of_others(path: str, stems: set[str]) -> bool:
    """Its name is one that a recorder gives, and of none of these."""
    named = NamedRows.of(_name_of(path))
    return named is not None and named.stem not in stems


def _name_of(path: str) -> str:
    return path.rpartition("/")[2]
