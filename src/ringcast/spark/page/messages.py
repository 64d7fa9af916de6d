"""Sections on messages: how many, and how long they took."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.spark.page import scales
from ringcast.spark.page.charts import GREY, Line, dots_legend, line_chart, ranges, row_charts
from ringcast.spark.page.markup import Absent, Content, Part, details, section
from ringcast.spark.page.scales import milliseconds, seconds, short

if TYPE_CHECKING:
    from pyspark.sql import Row as Record

    from ringcast.spark.page.figures import Figures

_QUANTILES = {"p50_ms": "median", "p90_ms": "90 %", "p99_ms": "99 %"}
_CELLS = (*_QUANTILES.values(), "longest", "samples")


def throughput(figures: Figures) -> Part:
    title = "Throughput"
    series = figures.throughput
    if not series:
        return Absent(title, "no message was delivered")
    others = f"mean of {figures.members - len(series) + 1} others"
    named = {name or others: points for name, points in series.items()}
    lines = [
        (
            Line(
                name,
                figures.colours.get(name, GREY),
                [[(figures.middle(slot), rate) for slot, rate in sorted(points.items())]],
            ),
            f"≤ {short(max(points.values()))}/s",
            figures.hover((slot, f"{short(rate)}/s") for slot, rate in sorted(points.items())),
        )
        for name, points in named.items()
    ]
    highest = max(rate for points in series.values() for rate in points.values())
    slots = sorted({slot for points in series.values() for slot in points})
    rows: list[list[Content]] = [
        [
            seconds(slot * figures.window_s),
            *(scales.plain(points[slot]) if slot in points else "" for points in named.values()),
        ]
        for slot in slots
    ]
    return section(
        title,
        "Messages each member delivered in a second, its own among them.",
        row_charts(
            "Messages delivered per second over time",
            lines,
            scales.time_axis(figures.span_s),
            scales.linear(highest, short),
            unit="messages/s",
            faults=figures.faults,
        ),
        details(["from", *named], rows, caption="Throughput over time"),
    )


def latency(figures: Figures) -> Part:
    title = "Latency"
    measured = {slot: at for slot, at in sorted(figures.latency.items()) if at.samples}
    if not measured:
        return Absent(title, _why_no_latency(figures))
    lines = [
        Line(words, number, _pieces(figures, {slot: at[key] for slot, at in measured.items()}))
        for number, (key, words) in enumerate(_QUANTILES.items())
    ]
    values = [at[key] for at in measured.values() for key in _QUANTILES]
    rows: list[list[Content]] = [
        [seconds(slot * figures.window_s), *_cells(at)] for slot, at in measured.items()
    ]
    says = [(slot, _told(at)) for slot, at in measured.items()]
    whole = figures.latency_all
    told = "" if whole is None else f"In all: {_told(whole)}."
    return section(
        title,
        f"From a member's send to another's delivery. {told}",
        line_chart(
            "Latency over time: median, 90 % and 99 % of messages",
            lines,
            scales.time_axis(figures.span_s),
            scales.logarithmic(values, milliseconds),
            unit="logarithmic",
            bands=figures.hover(says),
            faults=figures.faults,
        ),
        details(["from", *_CELLS], rows, caption="Latency over time"),
    )


def pairs(figures: Figures) -> Part:
    title = "Latency by pair"
    known = [pair for pair in figures.pairs if pair.samples]
    if not known:
        return Absent(title, _why_no_latency(figures))
    values = [pair[key] for pair in known for key in _QUANTILES]
    drawn = []
    rows: list[list[Content]] = []
    for pair in known:
        name = f"{pair.sender} → {pair.receiver}"
        dots = [
            (pair[key], f"{words}: {milliseconds(pair[key])}") for key, words in _QUANTILES.items()
        ]
        drawn.append((name, dots, milliseconds(pair.p99_ms)))
        rows.append([name, *_cells(pair)])
    unmeasured = [pair for pair in figures.pairs if not pair.samples]
    which = (
        f"The {len(known)} slowest of {figures.pairs_known} pairs"
        if figures.pairs_known > len(figures.pairs)
        else "Every pair, the slowest first"
    )
    note = f" {len(unmeasured)} have no common clock." if unmeasured else ""
    return section(
        title,
        f"{which}, its 99 % in figures.{note}",
        dots_legend([*_QUANTILES.values()]),
        ranges(drawn, scales.logarithmic(values, milliseconds, decades=1)),
        details(["pair", *_CELLS], rows, caption="Latency by pair"),
    )


def _told(at: Record) -> str:
    return ", ".join(f"{words} {milliseconds(at[key])}" for key, words in _QUANTILES.items())


def _cells(at: Record) -> list[str]:
    quantiles = (milliseconds(at[key]) for key in _QUANTILES)
    return [*quantiles, milliseconds(at.max_ms), f"{at.samples:,}"]


def _why_no_latency(figures: Figures) -> str:
    whole = figures.latency_all
    if whole is not None and whole.reason:
        return (
            "members ran on different machines, or on ones that the trace does not tell apart, "
            "and their clocks cannot be compared"
        )
    return "no message went from one member to another"


def _pieces(figures: Figures, points: dict[int, float]) -> list[list[tuple[float, float]]]:
    """A line stops where nothing was measured."""
    pieces: list[list[tuple[float, float]]] = []
    before = None
    for slot, value in points.items():
        if before is None or slot != before + 1:
            pieces.append([])
        pieces[-1].append((figures.middle(slot), value))
        before = slot
    return pieces
