"""Segments as summaries: each file is read once, by some executor, and merged there with its
neighbours.

A task takes files whose names follow each other, and a recorder's names follow each other as its
rows do: so a task hands on one summary for each member, or part of one. Where there are very many
files the parts of each member are merged by another task. What the driver gets grows with the
members, and with what is odd; not with the segments. Files of which it gets summaries are told by
their places in the list that it has.

Reading a file twice gives the same summary, so lost executors and repeated tasks change nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import NamedTuple

from ringcast.errors import RingcastError
from ringcast.spark.reading import NOT_READ, Merge, Workers, over_items, size_of, tasks_for
from ringcast.spark.summarize import BrokenSegment, summarize_segment
from ringcast.spark.summary import SegmentState, SegmentSummary, join_states
from ringcast.trace.footer import SegmentInfo
from ringcast.trace.segments import Segment

MERGED_FILES = 4096
"""With more files than this, what tasks hand on is merged once more, by other tasks."""

TASKS_HERE = 1
"""Without Spark."""


class Refused(NamedTuple):
    """A file that says nothing here, and why: it is damaged, or of a version that is not known."""

    path: str
    reason: str


Read = tuple[list[SegmentState], list[Refused]]
"""The summaries by path, and what is wrong with files that have none."""


def read_states(spark: Workers, paths: Iterable[Path]) -> Read:
    """The summaries of the files, merged where they follow each other. Without Spark they are read
    in this process."""
    ordered = sorted(map(str, paths), key=_by_name)
    states, refused = _read_merged(spark, ordered)
    tangled = _tangled(states)
    if tangled:
        # Files that have the same rows in part: which of them are copies is to be seen one by one.
        apart = [Path(path) for state in states if _owner(state) in tangled for path in state.paths]
        states = [state for state in states if _owner(state) not in tangled]
        states += parse_states(summarize_files(spark, apart).items())[0]
    return sorted(states, key=lambda state: state.path), sorted(refused)


def summarize_files(spark: Workers, paths: Iterable[Path]) -> dict[str, str]:
    """What is to be said of each file, as `parse_states` takes it: text that may be kept."""
    items = [(str(path), size_of(str(path))) for path in paths]
    return dict(over_items(spark, items, _said_of))


def parse_states(said: Iterable[tuple[str, str]]) -> Read:
    states: list[SegmentState] = []
    refused: list[Refused] = []
    for path, text in said:
        info, rest = json.loads(text)
        if info == NOT_READ:
            refused.append(Refused(path, rest))
        else:
            info = SegmentInfo(**info)
            states.append(SegmentState((path,), info, SegmentSummary.from_json(rest, info)))
    return sorted(states, key=lambda state: state.path), sorted(refused)


def _said_of(path: str) -> Iterator[tuple[str, str]]:
    found = _state_of(path)
    if isinstance(found, Refused):
        yield path, json.dumps([NOT_READ, found.reason])
    else:
        yield path, json.dumps([asdict(found.info), found.summary.to_json()])


def _state_of(path: str) -> SegmentState | Refused:
    """One file: its footer and summary, or what is wrong with it."""
    try:
        with Segment(path) as segment:
            segment.check_rows()
            return SegmentState((path,), segment.info, summarize_segment(segment))
    except BrokenSegment as error:
        return Refused(path, f"{Path(path).name}: {error}")
    except RingcastError as error:
        return Refused(path, str(error))


# Merged where they are read


class _Part(NamedTuple):
    """A part of a member's trace on its way, and its files by their places in the driver's list."""

    places: list[range]
    state: SegmentState


def _read_merged(spark: Workers, ordered: list[str]) -> Read:
    sizes = [size_of(path) for path in ordered]
    tasks = TASKS_HERE if spark is None else tasks_for(spark, sum(sizes))
    items = _stretches(ordered, sizes, tasks)
    merge = Merge(_owner_of, _merged) if len(ordered) > MERGED_FILES else None
    states: list[SegmentState] = []
    refused: list[Refused] = []
    for found in over_items(spark, items, _parts_of, merge=merge):
        if isinstance(found, Refused):
            refused.append(found)
        else:
            found.state.paths = tuple(ordered[at] for at in chain(*found.places))
            states.append(found.state)
    return join_states(states), refused


def _stretches(
    ordered: list[str], sizes: list[int], tasks: int
) -> list[tuple[tuple[int, list[str]], int]]:
    """As many stretches of the list as there are tasks, of about the same size: each with its place
    and the bytes it makes a task read. Files of one name stay together: one may be a copy."""
    share = sum(sizes) / max(tasks, 1)
    found: list[tuple[tuple[int, list[str]], int]] = []
    start, size, through = 0, 0, 0
    for at in range(len(ordered)):
        size += sizes[at]
        names = [_by_name(path)[0] for path in ordered[at : at + 2]]
        is_end = len(names) == 1
        if is_end or (through + size >= share * (len(found) + 1) and names[0] != names[1]):
            found.append(((start, ordered[start : at + 1]), size))
            start, size, through = at + 1, 0, through + size
    return found


def _parts_of(item: tuple[int, list[str]]) -> Iterator[_Part | Refused]:
    """The files of one stretch of the list."""
    start, paths = item
    numbers = {path: at for at, path in enumerate(paths, start)}
    states: list[SegmentState] = []
    for path in paths:
        found = _state_of(path)
        if isinstance(found, Refused):
            yield found
        elif states and states[-1].is_before(found):
            states[-1].extend(found)
        else:
            states.append(found)
    for state in join_states(states):
        yield _part([numbers[path] for path in state.paths], state)


def _merged(parts: Iterable[_Part | Refused]) -> Iterator[_Part | Refused]:
    """The same of what many tasks have found."""
    states: list[SegmentState] = []
    for found in parts:
        if isinstance(found, Refused):
            yield found
        else:
            # Numbers stand for the paths, which only the driver has.
            found.state.paths = tuple(f"{at:09}" for at in chain(*found.places))
            states.append(found.state)
    for state in join_states(states):
        yield _part(map(int, state.paths), state)


def _part(numbers: Iterable[int], state: SegmentState) -> _Part:
    """Consecutive numbers as one range."""
    places: list[range] = []
    for number in numbers:
        if places and places[-1].stop == number:
            places[-1] = range(places[-1].start, number + 1)
        else:
            places.append(range(number, number + 1))
    state.paths = ()
    return _Part(places, state)


def _owner_of(found: _Part | Refused) -> object:
    """By what is brought together: whose trace it is of."""
    return None if isinstance(found, Refused) else _owner(found.state)


def _by_name(path: str) -> tuple[str, str]:
    return path.rpartition("/")[2], path


def _owner(state: SegmentState) -> tuple[str, str, int]:
    return state.info.run_id, *state.member


def _tangled(states: Iterable[SegmentState]) -> set[tuple[str, str, int]]:
    """Whose files have the same rows, and not as whole copies of what was merged."""
    found = set()
    for owner, group in groupby(sorted(states, key=_place), key=_owner):
        for one, two in pairwise(group):
            is_merged = len(one.paths) > 1 or len(two.paths) > 1
            is_apart = one.info.last_idx < two.info.first_idx
            if is_merged and not is_apart and not one.is_same_as(two):
                found.add(owner)
    return found


def _place(state: SegmentState) -> tuple[tuple[str, str, int], int, str]:
    return _owner(state), state.info.first_idx, state.path
