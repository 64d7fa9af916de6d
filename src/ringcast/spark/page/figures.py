"""What the page shows, taken from a run by Spark: aggregated there, a few hundred values here."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql import Row as Record
from pyspark.sql import functions as F

from ringcast.model import Stream
from ringcast.spark import metrics
from ringcast.spark.page.charts import Band
from ringcast.spark.page.scales import round_up, seconds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame

    from ringcast.spark.report import Names

WINDOWS_MAX = 120
"""Points along the time axis: more than a phone can show are not worth a byte."""
SERIES_MAX = 8
PAIRS_MAX = 12
HEAT_MAX = 16
LANES_MAX = 32
VIEWS_MAX = 200
MARKS_MAX = 200
MEMBERS_MAX = 256
MACHINES_MAX = 256
_NAMES = ("member", "sender", "receiver", "limited_by", "by", "suspect")
_LISTS = ("members", "joined", "departed")
"""Columns that say members by their keys."""
OTHERS = ""
"""Who is not shown apart."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened to a member."""

    at_s: float
    member: str
    what: str
    """stopped, killed, crashed, paused, resumed, suspected or lost"""
    words: str


@dataclass(slots=True)
class Figures:
    """Everything the charts need. Records are those of `metrics`, with members as they are called
    and with times in seconds since the run began: `at_s` where those have `at_ns`."""

    began_ns: int = 0
    span_s: float = 1.0
    window_s: float = 1.0
    is_simulation: bool = False
    lives: list[Record] = field(default_factory=list)
    members: int = 0
    colours: dict[str, int] = field(default_factory=dict)
    """By name: the same colour in every chart."""
    throughput: dict[str, dict[int, float]] = field(default_factory=dict)
    """Messages per second by receiver and number of the window; OTHERS is their mean."""
    latency: dict[int, Record] = field(default_factory=dict)
    latency_all: Record | None = None
    pairs: list[Record] = field(default_factory=list)
    pairs_known: int = 0
    heat: list[Record] = field(default_factory=list)
    control: dict[str, dict[str, float]] = field(default_factory=dict)
    """Frames per message by member and kind."""
    windows: dict[tuple[str, bool], list[Record]] = field(default_factory=dict)
    """By sender; uniform messages have a window of their own."""
    views: list[Record] = field(default_factory=list)
    views_known: int = 0
    marks: list[Mark] = field(default_factory=list)

    @property
    def silent(self) -> list[str]:
        """Who did not record frames and windows."""
        return [life.member for life in self.lives if not life.is_full]

    @property
    def faults(self) -> list[tuple[float, str]]:
        """What may explain a dent: members that went without saying so."""
        return [
            (mark.at_s, f"{mark.member} {mark.what} at {mark.at_s:.1f} s")
            for mark in self.marks
            if mark.what in ("killed", "crashed", "paused")
        ]

    def middle(self, slot: int) -> float:
        return min((slot + 0.5) * self.window_s, self.span_s)

    def hover(self, says: Iterable[tuple[int, str]]) -> list[Band]:
        """What each window of time says to who points at it."""
        starts = ((slot * self.window_s, slot, words) for slot, words in says)
        return [
            Band(at, min((slot + 1) * self.window_s, self.span_s), f"{seconds(at)}: {words}")
            for at, slot, words in starts
        ]


def take_figures(rows: DataFrame, names: Names) -> Figures:
    """The figures of the one run that these rows are of."""
    offsets = {at.machine: at.offset_ns for at in metrics.clocks(rows).head(MACHINES_MAX)}
    taking = _Taking(metrics.steady(rows, offsets), names)
    taking.take_members()
    taking.take_throughput()
    taking.take_latency()
    taking.take_frames()
    taking.take_windows()
    taking.take_views()
    return taking.figures


class _Taking:
    def __init__(self, rows: DataFrame, names: Names) -> None:
        self.figures = Figures()
        self._rows = rows
        self._names = names
        self._keys: list[str] = []
        self._shown: list[str] = []

    def take_members(self) -> None:
        figures = self.figures
        found = metrics.members(self._rows)
        known = found.orderBy("started_ns", "member").head(MEMBERS_MAX)
        if not known:
            return
        figures.members = _known(found, known, MEMBERS_MAX)
        figures.is_simulation = any(life.clock == "simulation" for life in known)
        began = min(life.started_ns for life in known)
        ended = max(life.last_ns for life in known)
        span_s = max((ended - began) / 1e9, 1e-3)
        figures.window_s = max(round_up(span_s / WINDOWS_MAX), 1e-6)
        # Spark's windows begin at multiples of their length, so the page does too.
        window_ns = round(figures.window_s * 1e9)
        figures.began_ns = began - began % window_ns
        figures.span_s = max((ended - figures.began_ns) / 1e9, figures.window_s)
        figures.lives = list(map(self._told, known))
        self._keys = [life.member for life in known]
        few = len(known) <= SERIES_MAX
        busiest = sorted(known, key=lambda life: -life.rows)[: SERIES_MAX - 1]
        self._shown = [life.member for life in known if few or life in busiest]
        figures.colours = {self._name(key): at for at, key in enumerate(self._shown)}

    def take_throughput(self) -> None:
        figures = self.figures
        own = F.when(F.col("receiver").isin(self._shown), F.col("receiver")).otherwise(OTHERS)
        found = (
            metrics.throughput(self._rows, figures.window_s, ("receiver",))
            .groupBy("at_ns", own.alias("receiver"))
            .agg(F.sum("messages_per_s").alias("rate"))
        )
        others = max(1, figures.members - len(self._shown))
        series: defaultdict[str, dict[int, float]] = defaultdict(dict)
        for point in found.collect():
            name = self._name(point.receiver) if point.receiver else OTHERS
            rate = point.rate if point.receiver else point.rate / others
            series[name][self._slot(point.at_ns)] = rate
        for points in series.values():
            for slot in range(min(points), max(points)):
                points.setdefault(slot, 0.0)
        names = sorted(series, key=lambda name: figures.colours.get(name, SERIES_MAX))
        figures.throughput = {name: series[name] for name in names}

    def take_latency(self) -> None:
        figures = self.figures
        # To itself a member delivers without a network.
        samples = metrics.latency_samples(self._rows).where("sender != receiver")
        samples = samples.persist(StorageLevel.DISK_ONLY)
        try:
            for point in metrics.latency(samples, figures.window_s, ()).collect():
                figures.latency[self._slot(point.at_ns)] = point
            figures.latency_all = next(iter(metrics.latency(samples, None, ()).collect()), None)
            pairs = metrics.latency(samples, None, ("sender", "receiver"))
            slowest = pairs.orderBy(F.desc("p99_ms"), "sender", "receiver").head(PAIRS_MAX)
            figures.pairs = list(map(self._told, slowest))
            figures.pairs_known = _known(pairs, slowest, PAIRS_MAX)
        finally:
            samples.unpersist()

    def take_frames(self) -> None:
        figures = self.figures
        keys = self._keys[:HEAT_MAX]
        shown = F.col("sender").isin(keys) & (
            F.col("receiver").isin(keys) | F.col("receiver").isNull()
        )
        found = metrics.retransmissions(self._rows).where(shown)
        figures.heat = list(map(self._told, found.collect()))
        economy = metrics.control_cost(self._rows).where(F.col("member").isin(keys))
        for cost in economy.collect():
            kinds = figures.control.setdefault(self._name(cost.member), {})
            kinds[cost.kind] = cost.frames_per_message or 0.0
        figures.control = dict(sorted(figures.control.items()))

    def take_windows(self) -> None:
        figures = self.figures
        found = metrics.window_occupancy(self._rows, figures.window_s)
        shown = found.where(F.col("sender").isin(self._shown))
        for point in map(self._told, shown.orderBy("stream", "sender", "at_ns").collect()):
            key = point.sender, point.stream != Stream.FIFO
            figures.windows.setdefault(key, []).append(point)

    def take_views(self) -> None:
        figures = self.figures
        found = metrics.views(self._rows)
        known = found.orderBy("at_ns", "view").head(VIEWS_MAX)
        figures.views_known = _known(found, known, VIEWS_MAX)
        figures.views = list(map(self._told, known))
        figures.marks = sorted(
            [*self._ends(), *self._suspicions(), *self._incidents()], key=lambda mark: mark.at_s
        )[:MARKS_MAX]

    def _ends(self) -> list[Mark]:
        departed = {name for view in self.figures.views for name in view.departed}
        made = []
        for life in self.figures.lives:
            if life.end == "stopped":
                what, words = "stopped", "stopped in good order"
            elif life.end == "crashed" or self.figures.is_simulation:
                continue  # the incidents tell of crashes, and the others' time just ends
            elif life.member in departed:
                what, words = "killed", "killed or cut off: its trace just ends"
            else:
                what, words = "lost", "the end of its trace is missing"
            made.append(Mark(life.last_s, life.member, what, words))
        return made

    def _suspicions(self) -> list[Mark]:
        found = metrics.suspicions(self._rows).orderBy("at_ns").head(MARKS_MAX)
        return [
            Mark(told.at_s, told.suspect, "suspected", f"{told.why or 'suspected'}, says {told.by}")
            if told.suspect
            else Mark(told.at_s, told.by, "suspected", "suspects somebody")
            for told in map(self._told, found)
        ]

    def _incidents(self) -> list[Mark]:
        words = {"crash": "crashed", "pause": "paused", "resume": "resumed"}
        found = metrics.incidents(self._rows).orderBy("at_ns").head(MARKS_MAX)
        return [
            Mark(at.at_s, at.member, words[at.what], words[at.what])
            for at in map(self._told, found)
        ]

    def _told(self, record: Record) -> Record:
        """As the page tells it."""
        values: dict[str, object] = {}
        for name, value in record.asDict().items():
            if value is None:
                values[name] = None
            elif name.endswith("_ns"):
                values[name.removesuffix("ns") + "s"] = self._since(value)
            elif name in _LISTS:
                values[name] = list(map(self._name, value))
            else:
                values[name] = self._name(value) if name in _NAMES else value
        return Record(**values)

    def _name(self, key: str) -> str:
        return self._names.of_key(key)

    def _since(self, at_ns: int) -> float:
        return float((at_ns - self.figures.began_ns) / 1e9)

    def _slot(self, at_ns: int) -> int:
        return round(self._since(at_ns) / self.figures.window_s)


def _known(found: DataFrame, taken: list[Record], limit: int) -> int:
    """How many there are: counted only if not all were taken."""
    return len(taken) if len(taken) < limit else found.count()
