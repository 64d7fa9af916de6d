"""Ranges and progress against their naive forms."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ringcast.rules.evidence import Progress, Ranges, progress
from ringcast.trace.rows import Row

ROW = Row("deliver", "b", 1, 0)

spans = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 5)), max_size=12)


@given(spans)
def test_ranges_are_a_set_of_seqnos(spans: list[tuple[int, int]]) -> None:
    ranges, naive = Ranges(), set[int]()
    for first, more in spans:
        added = set(range(first, first + more + 1))
        assert bool(ranges.add(first, first + more, ROW)) == bool(naive & added)
        naive |= added
    assert [seqno for a, b, _ in ranges for seqno in range(a, b + 1)] == sorted(naive)
    # Neighbours are joined: there is a gap between any two.
    firsts = ranges.firsts[1:]
    assert all(last + 1 < first for last, first in zip(ranges.lasts, firsts, strict=False))


def test_ranges_name_the_row_that_had_it() -> None:
    ranges = Ranges()
    rows = [ROW._replace(idx=idx) for idx in range(5)]
    ranges.add(1, 3, rows[0])
    ranges.add(7, 9, rows[1])
    assert ranges.add(5, 5, rows[2]) == []
    assert ranges.add(3, 7, rows[3]) == [rows[0], rows[2], rows[1]]
    assert list(ranges) == [(1, 9, rows[3])]


rises = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 20)), max_size=12).map(
    lambda steps: sorted(steps, key=lambda step: step[0])
)


@given(rises)
def test_progress_is_a_running_maximum(steps: list[tuple[int, int]]) -> None:
    rows = [ROW._replace(run_idx=mark, seqno2=value) for mark, value in steps]
    known = progress(rows, lambda row: row.node).get("b", Progress())
    for mark in range(-1, 11):
        assert known.at(mark) == max((v for m, v in steps if m <= mark), default=0)
        row = known.row_at(mark)
        assert row is None or row.seqno2 == known.at(mark)
    for value in range(1, 22):
        reached = known.reached(value)
        marks = [m for m, v in steps if v >= value]
        assert (reached.run_idx if reached else None) == min(marks, default=None)
    assert known.value == known.at(99)
    assert known.row == known.row_at(99)


def test_without_marks_progress_keeps_the_last_value_only() -> None:
    progress = Progress()
    for value in (1, 5, 3):
        progress.rise(-1, value, ROW._replace(seqno2=value))
    assert list(progress) == [(-1, 5, ROW._replace(seqno2=5))]
    assert progress.at(-1) == 5
