"""A small cluster's life, told to real recorders; and its traces rewritten with something planted.

Members a, b, c and d start together. d is killed: its recorder stops in the middle while the others
still deliver what it sent last. Then e joins, behind what was sent before. Everybody sends on the
way, receivers cut the runs differently, and all but d stop in good order.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from ringcast.events import Delivered, FragmentsDelivered
from ringcast.model import Address, Member, Origin, Run, Stream, View, ViewId
from ringcast.spark.audit import audit
from ringcast.trace import sealed
from ringcast.trace.footer import Recording
from ringcast.trace.recorder import STRETCH_NS, Recorder
from ringcast.trace.rows import (
    FREEZE,
    PURGE,
    SHOWN,
    VIEW,
    cut_text,
    member_key,
    naming_id,
    naming_view,
)
from ringcast.trace.segments import Segment, segment_paths, write_segment
from support.sealing import info_of, write_sealed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from ringcast.spark.report import Report, Verdict
    from ringcast.trace.rows import Row

BLOCK_MESSAGES = 16
SETTINGS = {"purge": "acks", "capacity": 4096}
PIECE_ROWS = 50
"""Rows to a segment, where a trace is rewritten."""


@dataclass
class Traces:
    """The rows of each member by name, and how they are to be written."""

    recordings: dict[str, Recording]
    rows: dict[str, list[Row]]
    stopped: set[str]
    lost: dict[str, int] = field(default_factory=dict)

    def copy(self) -> Traces:
        rows = {name: list(rows) for name, rows in self.rows.items()}
        return replace(
            self,
            recordings=dict(self.recordings),
            rows=rows,
            stopped=set(self.stopped),
            lost=dict(self.lost),
        )

    def find(self, name: str, **columns: object) -> int:
        """The place of the first row of this member with these values."""
        for at, row in enumerate(self.rows[name]):
            if all(getattr(row, column) == value for column, value in columns.items()):
                return at
        raise LookupError(f"{name} has no row with {columns}")

    def change(self, name: str, at: int, **columns: object) -> None:
        self.rows[name][at] = self.rows[name][at]._replace(**columns)

    def drop(self, name: str, test: Callable[[Row], bool]) -> None:
        """As if this member had never written such rows."""
        rows = [row for row in self.rows[name] if not test(row)]
        assert len(rows) < len(self.rows[name])
        self.rows[name] = rows
        self.number(name)

    def insert(self, name: str, at: int, *rows: Row) -> None:
        self.rows[name][at:at] = rows
        self.number(name)

    def number(self, name: str) -> None:
        """Number the rows anew, as a recorder would have done."""
        self.rows[name] = [row._replace(idx=at) for at, row in enumerate(self.rows[name])]

    def rename(self, run_id: str) -> None:
        """Make it another run."""
        self.recordings = {
            name: replace(recording, run_id=run_id) for name, recording in self.recordings.items()
        }

    def write(self, directory: Path) -> dict[str, list[Path]]:
        """All segments, by member, in order."""
        directory.mkdir(parents=True, exist_ok=True)
        written: dict[str, list[Path]] = {}
        for name, rows in self.rows.items():
            for start in range(0, len(rows), PIECE_ROWS):
                is_last = start + PIECE_ROWS >= len(rows) and name in self.stopped
                path = write_segment(
                    directory,
                    self.recordings[name],
                    rows[start : start + PIECE_ROWS],
                    lost=self.lost.get(name, 0),
                    is_last=is_last,
                )
                written.setdefault(name, []).append(path)
        return written

    def all_rows(self) -> list[Row]:
        return [row for rows in self.rows.values() for row in rows]


class Cluster:
    """Perfect members: what one sends, all present deliver, in order."""

    def __init__(
        self,
        directory: Path,
        segment_seconds: float = 5.0,
        level: str = "deliveries",
        settings: Mapping[str, Any] = SETTINGS,
    ) -> None:
        self.directory = directory
        self.level = level
        self.settings = settings
        self.segment_seconds = segment_seconds
        self.now = 0
        self.recorders: dict[Member, Recorder] = {}
        self.view: View | None = None
        self.views: dict[Member, View] = {}
        """The last of each."""
        self.sent: dict[Origin, int] = {}
        self.killed: set[Member] = set()
        self.cut = 3

    def install(self, *members: Member) -> None:
        """Those who were in one view before come together; who is new comes alone."""
        self.purge()
        counter = 1 if self.view is None else self.view.counter + 1
        self.view = View(ViewId(members[0], counter), members)
        for member in members:
            if member not in self.recorders:
                recorder = Recorder(
                    self.directory,
                    "test run",
                    member,
                    segment_seconds=self.segment_seconds,
                    block_messages=BLOCK_MESSAGES,
                    level=self.level,
                    settings=self.settings,
                )
                self.recorders[member] = recorder
                recorder.start(self._tick())
        parts = [
            [
                each
                for each in members
                if self.views.get(each, each) == self.views.get(member, member)
            ]
            for member in members
        ]
        for member, part in zip(members, parts, strict=True):
            self._enter(member, part)
            self.views[member] = self.view

    def _enter(self, member: Member, part: Sequence[Member]) -> None:
        assert self.view is not None
        recorder, view_id = self.recorders[member], self.view.id
        columns = naming_view(self.view)
        recorder.write(FREEZE, self._tick(), **columns)
        columns["part"] = tuple(map(member_key, part))
        if len(part) > 1:
            columns["cut"] = tuple(
                cut_text(origin, sent if origin.sender in part or origin.stream else -1)
                for origin, sent in sorted(self.sent.items())
            )
        recorder.write(VIEW, self._tick(), **columns)
        for sender in self.view:
            if sender not in part:
                for origin in (Origin(sender, Stream(number)) for number in (0, 1)):
                    recorder.opened(origin, self.sent.get(origin, 0), view_id, self._tick())
        recorder.write(SHOWN, self._tick(), **naming_id(view_id), **self.shown())

    def shown(self) -> dict[str, Any]:
        """What is told of a view besides, where there is one order."""
        return {}

    def send(self, sender: Member, count: int, stream: Stream = Stream.FIFO) -> None:
        assert self.view is not None
        origin = Origin(sender, stream)
        first = self.sent.get(origin, 0) + 1
        self.sent[origin] = first + count - 1
        payloads = [f"{sender.name} {stream} {first + at}".encode() * 3 for at in range(count)]
        if sender not in self.killed:
            self.recorders[sender].sent(stream, first, payloads, self.view.id, self._tick())
        for member in self.view:
            if member in self.killed:
                continue
            self.cut = self.cut % 7 + 2  # Each receiver cuts the run elsewhere.
            for at in range(0, count, self.cut):
                run = Run(stream, first + at, payloads[at : at + self.cut])
                event = Delivered(sender, run, self.view.id)
                self.recorders[member].delivered(event, self._tick())

    def send_large(self, sender: Member, fragments: int) -> None:
        """One message in so many fragments."""
        assert self.view is not None
        origin = Origin(sender, Stream.FIFO)
        first = self.sent.get(origin, 0) + 1
        last = self.sent[origin] = first + fragments - 1
        recorder = self.recorders[sender]
        view_id = self.view.id
        recorder.sent_fragments(Stream.FIFO, first, last - 1, view_id, self._tick())
        recorder.sent(Stream.FIFO, last, [b"large" * 100], view_id, self._tick())
        for member in self.view:
            taken = FragmentsDelivered(sender, Stream.FIFO, first, last - 1, view_id)
            self.recorders[member].delivered_fragments(taken, self._tick())
            event = Delivered(sender, Run(Stream.FIFO, last, [b"large" * 100]), view_id)
            self.recorders[member].delivered(event, self._tick())

    def purge(self) -> None:
        """All have delivered everything: senders hear of it, and say so."""
        for (sender, stream), through in self.sent.items():
            if sender not in self.killed:
                columns = {"stream": int(stream), "seqno": through, "hd": through}
                self.recorders[sender].write(PURGE, self._tick(), **columns)

    def kill(self, member: Member) -> None:
        """What it recorded so far is kept; it will not say that it stopped."""
        self.killed.add(member)
        assert self.recorders[member].close(timeout_s=30.0)

    def leave(self, member: Member) -> None:
        """It goes in good order; `install` a view without it next."""
        self.killed.add(member)
        self.purge()
        self.recorders[member].stopped(self.now + 1)
        assert self.recorders[member].close(timeout_s=30.0)

    def stop(self) -> None:
        self.purge()
        for member, recorder in self.recorders.items():
            if member not in self.killed:
                recorder.stopped(self._tick())
                assert recorder.close(timeout_s=30.0)

    def _tick(self) -> int:
        """So much time passes that recorders write each run as a row of its own."""
        self.now += 2 * STRETCH_NS
        for member, recorder in self.recorders.items():
            if member not in self.killed:
                recorder.tick(self.now)
        return self.now


def members(names: str) -> list[Member]:
    return [
        Member(Address("127.0.0.1", 7800 + at), 100 + at, name) for at, name in enumerate(names)
    ]


def record_cluster(directory: Path) -> None:
    """The life told above, on disk as the recorders write it."""
    a, b, c, d, e = members("abcde")
    cluster = Cluster(directory)
    cluster.install(a, b, c, d)
    for _ in range(6):
        for sender in (a, b, c, d):
            cluster.send(sender, 11)
        cluster.send(a, 5, Stream.UNIFORM)
    cluster.send_large(b, 20)
    cluster.kill(d)
    cluster.send(d, 7)  # On its way when d died: delivered by the others, in no trace of d.
    cluster.install(a, b, c)
    cluster.send(a, 9)
    cluster.install(a, b, c, e)
    for _ in range(6):
        for sender in (a, b, c, e):
            cluster.send(sender, 13)
    cluster.stop()


def make_newer(path: Path) -> str:
    """As a newer ringcast would have written it; and what is to be said of that."""
    with pytest.MonkeyPatch.context() as later:
        later.setattr(sealed, "VERSION", sealed.VERSION + 1)
        write_sealed(path, pq.read_table(path), info_of(path))
    try:
        Segment(path)
    except sealed.Unreadable as refused:
        return str(refused)
    raise AssertionError(f"{path}: is read, whatever its version")


def read_traces(directory: Path) -> Traces:
    """What is on disk, as rows to be changed."""
    traces = Traces({}, {}, set())
    for path in segment_paths(directory):
        with Segment(path) as segment:
            info = segment.info
            known = traces.recordings.get(info.node)
            is_back = known is not None and known.inc != info.inc
            name = f"{info.node}#{info.inc}" if is_back else info.node
            traces.recordings[name] = Recording(
                run_id=info.run_id,
                node=info.node,
                inc=info.inc,
                level=info.level,
                settings=info.settings,
            )
            traces.rows.setdefault(name, []).extend(segment.rows())
            if info.is_last:
                traces.stopped.add(name)
    return traces


def judge(
    life: Traces, directory: Path, plant: Callable[[Traces], None] | None = None
) -> tuple[Report, dict[str, Verdict]]:
    """What the audit says of this life with something planted in it."""
    traces = life.copy()
    if plant is not None:
        plant(traces)
    traces.write(directory)
    report = audit(None, directory)
    return report, {verdict.id: verdict for verdict in report.verdicts}


def check_found(
    life: Traces, directory: Path, plants: Mapping[Callable[[Traces], None], str]
) -> None:
    """All that is planted is found by its rule, in rows that were changed."""
    for plant, violated in plants.items():
        report, found = judge(life, directory / plant.__name__, plant)
        assert report.exit_status == 1, plant.__name__
        assert found[violated].violation_count, (plant.__name__, report.summary)
        assert all(each.rows for each in found[violated].violations), plant.__name__
