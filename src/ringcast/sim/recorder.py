"""The trace of one run while it grows, and what was really sent: shared by all its observers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ringcast.trace.rows import FAULT_OFF, FAULT_ON, PHASE, Row

if TYPE_CHECKING:
    from ringcast.model import Member, Origin
    from ringcast.sim.clock import VirtualClock


@dataclass(frozen=True, slots=True)
class Finding:
    """What an observer saw with its own eyes, beyond what rows can tell."""

    rule: str
    text: str
    run_idx: int
    """The last row written before."""


class Recorder:
    """Numbers the rows, remembers every message by its seqno, and collects findings."""

    def __init__(self, clock: VirtualClock) -> None:
        self.rows: list[Row] = []
        self.findings: list[Finding] = []
        self.deliveries = 0
        self.last_send = 0
        """When a message, or a part of one, was last sent for the first time."""
        self.sent: dict[Origin, dict[int, bytes]] = {}
        """Whole messages by the seqno of their last fragment."""
        self.sent_to: dict[tuple[Member, Member, int], dict[int, bytes]] = {}
        """The same for what one member sent to another: by sender, receiver and epoch."""
        self.pieces: dict[Origin, dict[int, tuple[bytes, bool]]] = {}
        """Fragments as they left their sender for the first time, and whether more follow."""
        self.happenings: Counter[str] = Counter()
        """What rows do not tell, counted."""
        self._clock = clock
        self._own_rows = 0

    @property
    def now(self) -> int:
        return self._clock.now

    def phase(self, name: str) -> None:
        self._write_own(PHASE, kind=name)

    def fault_on(self, fault: str, detail: str) -> None:
        self._write_own(FAULT_ON, kind=fault, detail=detail)

    def fault_off(self, fault: str, detail: str) -> None:
        self._write_own(FAULT_OFF, kind=fault, detail=detail)

    def find(self, rule: str, text: str) -> None:
        self.findings.append(Finding(rule, text, len(self.rows) - 1))

    def _write_own(self, event: str, **columns: Any) -> None:
        row = Row(event, "", 0, self._own_rows, len(self.rows), self.now, **columns)
        self.rows.append(row)
        self._own_rows += 1


class RunSink:
    """Takes the rows of one member: in the one order of the run, by its one clock."""

    __slots__ = ("_inc", "_name", "_recorder", "_written")

    def __init__(self, recorder: Recorder, me: Member) -> None:
        self._recorder = recorder
        self._name = str(me)
        self._inc = me.incarnation
        self._written = 0

    def write(self, event: str, now: int = 0, /, **columns: Any) -> None:
        """`now`, by the member's own clock, is not told."""
        rows, now = self._recorder.rows, self._recorder.now
        rows.append(Row(event, self._name, self._inc, self._written, len(rows), now, **columns))
        self._written += 1
