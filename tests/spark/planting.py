"""Clean simulations with something planted: drafts of their rows, to be changed.

What is planted are small functions in tables. Each takes a draft of a clean run, changes it, and
returns what must be among the rows that show the violation.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ringcast.sim.plan import expand
from ringcast.sim.runner import run as simulate
from ringcast.trace.rows import Trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringcast.trace.rows import Facts, Row

HOUR_NS = 3_600 * 10**9
MINUTE_NS = 60 * 10**9


class Clean(NamedTuple):
    """A simulation that keeps every rule."""

    protocol: str
    seed: int
    purge: str = "acks"

    @property
    def name(self) -> str:
        return f"{self.protocol}-{self.seed}-{self.purge}"

    def trace(self) -> Trace:
        return _simulated(self)


@cache
def _simulated(clean: Clean) -> Trace:
    return simulate(expand(clean.seed, clean.protocol, purge=clean.purge)).trace


class Plant(NamedTuple):
    """In which clean run what is planted, and who must find it."""

    run: Clean
    id: str
    change: Callable[[Draft], list[Cell]]

    @property
    def name(self) -> str:
        return f"{self.id} {self.change.__name__} {self.run.name}"

    def grow(self) -> tuple[Trace, list[Row]]:
        """The run with it, and the rows that must be shown."""
        draft = Draft(self.run.trace())
        cells = self.change(draft)
        trace = draft.trace()
        return trace, [cell.row for cell in cells]


class Cell:
    """A row that may change its place, and then its numbers."""

    def __init__(self, row: Row) -> None:
        self.row = row


class Draft:
    """A run whose rows can be found, changed, repeated, moved and dropped."""

    def __init__(self, trace: Trace) -> None:
        self.cells = [Cell(row) for row in trace.rows]
        self.facts: Facts = trace.facts

    def where(
        self, event: str, test: Callable[[Row], bool] | None = None, **columns: Any
    ) -> list[Cell]:
        """Those with these values, of which the test is true."""
        return [
            cell
            for cell in self.cells
            if cell.row.event == event
            and all(getattr(cell.row, name) == value for name, value in columns.items())
            and (test is None or test(cell.row))
        ]

    def first(self, event: str, test: Callable[[Row], bool] | None = None, **columns: Any) -> Cell:
        return self.where(event, test, **columns)[0]

    def last(self, event: str, test: Callable[[Row], bool] | None = None, **columns: Any) -> Cell:
        return self.where(event, test, **columns)[-1]

    def change(self, cell: Cell, **columns: Any) -> Cell:
        cell.row = cell.row._replace(**columns)
        return cell

    def repeat(self, cell: Cell, **columns: Any) -> Cell:
        """Once more just behind it, with other values."""
        return self._insert(self.cells.index(cell) + 1, cell.row._replace(**columns))

    def later(self, cell: Cell, **columns: Any) -> Cell:
        """Once more a nanosecond later, with other values."""
        now = cell.row.mono_ns + 1
        place = next(
            (at for at, each in enumerate(self.cells) if each.row.mono_ns > now), len(self.cells)
        )
        return self._insert(place, cell.row._replace(**{"mono_ns": now, **columns}))

    def at_the_end(self, cell: Cell, **columns: Any) -> Cell:
        row = cell.row._replace(**{"mono_ns": self.facts.end_ns, **columns})
        return self._insert(len(self.cells), row)

    def drop(self, *cells: Cell) -> None:
        self.cells = [cell for cell in self.cells if cell not in cells]

    def lengthen(self) -> None:
        """Let the run go on for an hour in which nothing happens."""
        self.facts = replace(self.facts, end_ns=self.facts.end_ns + HOUR_NS)

    def trace(self) -> Trace:
        """The rows, numbered anew as the harness would have done."""
        counts: dict[tuple[str, int], int] = {}
        for place, cell in enumerate(self.cells):
            member = cell.row.node, cell.row.inc
            cell.row = cell.row._replace(idx=counts.get(member, 0), run_idx=place)
            counts[member] = counts.get(member, 0) + 1
        return Trace([cell.row for cell in self.cells], self.facts)

    # What is known of a run

    @property
    def gst_ns(self) -> int:
        assert self.facts.gst_ns is not None
        return self.facts.gst_ns

    def is_live(self, node: str, inc: int) -> bool:
        """It lives to the end, and takes."""
        lives = ("crash", "stop", "pause", "resume")
        fate = [cell.row.event for cell in self._of(node, inc) if cell.row.event in lives]
        is_there = not fate or fate[-1] == "resume"
        return is_there and f"{node}#{inc}" not in self.facts.stopped_members

    def is_owed(self, row: Row) -> bool:
        """The row is of after the healing, and both its member and the peer live."""
        return (
            row.mono_ns > self.gst_ns
            and self.is_live(row.node, row.inc)
            and self.is_live(row.peer, row.peer_inc)
        )

    def is_owed_to_another(self, row: Row) -> bool:
        return self.is_owed(row) and (row.node, row.inc) != (row.peer, row.peer_inc)

    def _of(self, node: str, inc: int) -> list[Cell]:
        return [cell for cell in self.cells if (cell.row.node, cell.row.inc) == (node, inc)]

    def _insert(self, place: int, row: Row) -> Cell:
        cell = Cell(row)
        self.cells.insert(place, cell)
        return cell
