"""Sections on frames and windows, of members that recorded them."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from ringcast.spark.page import charts
from ringcast.spark.page.charts import GREY, Band, Line
from ringcast.spark.page.figures import HEAT_MAX, Figures
from ringcast.spark.page.markup import Absent, Content, Markup, Part, details, section, table, tag
from ringcast.spark.page.scales import linear, per_cent, plain, seconds, time_axis

if TYPE_CHECKING:
    from pyspark.sql import Row as Record

EVERYBODY = "everybody"
REPAIR, CONTROL, WINDOWS = "Retransmitted", "What control costs", "Send windows"
_CONTROL = {
    "acks": ("ack",),
    "requests": ("nack", "want", "peer_repair_request"),
    "reminders": ("watermark",),
    "reports": ("stability_report", "stability_query", "stable"),
    "commits": ("commit",),
}
"""What control frames are for: to say what arrived, ask for what did not, and remind of what was
sent. The rest keeps the group together."""
_THE_REST = "group"


def frames_and_windows(figures: Figures) -> list[Part]:
    """What members at level "full" show, or why there is nothing of it."""
    if not any(life.is_full for life in figures.lives):
        why = 'recorded at level "full" only: join(..., record_level="full")'
        return [Absent(title, why) for title in (REPAIR, CONTROL, WINDOWS)]
    parts: list[Part] = [repair(figures), control(figures)]
    there = [part for part in parts if isinstance(part, Markup)]
    gone = [part for part in parts if isinstance(part, Absent)]
    return [*gone, *([tag("div", *there, class_="stack")] if there else []), windows(figures)]


def repair(figures: Figures) -> Part:
    title = REPAIR
    if not figures.heat:
        return Absent(title, "nothing had to be retransmitted")
    values: dict[tuple[str, str], tuple[float, str]] = {}
    rows: list[list[Content]] = []
    for spot in sorted(figures.heat, key=lambda spot: -spot.messages):
        sender, receiver = spot.sender, spot.receiver or EVERYBODY
        words = f"{spot.messages:,} messages in {spot.frames:,} frames, {spot.requests:,} requests"
        values[sender, receiver] = (float(spot.messages), f"{sender} to {receiver}: {words}")
        counts = (spot.messages, spot.frames, spot.bytes, spot.requests)
        rows.append([f"{sender} → {receiver}", *(f"{count:,}" for count in counts)])
    concerned = {name for pair in values for name in pair}
    shown = [life.member for life in figures.lives[:HEAT_MAX] if life.member in concerned]
    group = [EVERYBODY] if EVERYBODY in concerned else []
    few = "" if figures.members <= HEAT_MAX else f" The first {HEAT_MAX} members."
    return section(
        title,
        f"Messages of a sender (row) for a receiver (column), the stronger the more.{few}",
        charts.heat_map(
            shown,
            [*group, *shown],
            values,
            corner="from \\ to",
            caption="Messages retransmitted, sender by receiver",
        ),
        details(
            ["pair", "messages", "frames", "bytes", "requests"],
            rows,
            caption="What was retransmitted, by pair",
        ),
    )


def control(figures: Figures) -> Part:
    title = CONTROL
    if not figures.control:
        return Absent(title, "nobody sent anything")
    grouped: dict[str, defaultdict[str, float]] = {}
    for member, kinds in figures.control.items():
        sums = grouped[member] = defaultdict(float)
        for kind, cost in kinds.items():
            owner = next((name for name, own in _CONTROL.items() if kind in own), _THE_REST)
            sums[owner] += cost
    heads = [
        name for name in (*_CONTROL, _THE_REST) if any(sums[name] for sums in grouped.values())
    ]
    rows: list[list[Content]] = [
        [member, *(plain(1000 * sums[name]) for name in heads), plain(1000 * sum(sums.values()))]
        for member, sums in grouped.items()
    ]
    return section(
        title,
        "Frames without a message that a member sends for 1,000 it delivers.",
        table(["member", *heads, "in all"], rows, caption="Control frames per 1,000 messages"),
    )


def windows(figures: Figures) -> Part:
    title = WINDOWS
    if not figures.windows:
        return Absent(title, "nobody sent anything")
    lines = []
    pinned = []
    rows: list[list[Content]] = []
    for (name, is_uniform), points in figures.windows.items():
        sender = f"{name} (uniform)" if is_uniform else name
        number = figures.colours.get(name, GREY)
        half = figures.window_s / 2
        places = [(min(at.at_s + half, figures.span_s), at.occupancy) for at in points]
        shares = Counter(at.limited_by for at in points if at.limited_by)
        told = [f"{who} {per_cent(count / len(points))}" for who, count in shares.most_common()]
        pinned.append((sender, _limited_bands(figures, points), told[0] if told else "nobody"))
        fullest = max(points, key=lambda at: at.occupancy)
        counts = (max(at.used for at in points), fullest.capacity)
        whom = ", ".join(told) or "nobody"
        full = per_cent(fullest.occupancy)
        lines.append((Line(sender, number, [places]), f"≤ {full}", ()))
        rows.append([sender, whom, full, *(f"{count:,}" for count in counts)])
    x = time_axis(figures.span_s)
    highest = max(at.occupancy for points in figures.windows.values() for at in points)
    limiters = {
        at.limited_by for points in figures.windows.values() for at in points if at.limited_by
    }
    named = [
        (who, f"area {charts.colour(figures.colours.get(who, GREY))}") for who in sorted(limiters)
    ]
    return section(
        title,
        "How full each sender's window was, of its messages or bytes.",
        charts.row_charts(
            "Occupancy of send windows over time",
            lines,
            x,
            linear(highest, _share),
            unit="of the window",
            faults=figures.faults,
        ),
        tag("h3", "Who kept it from moving"),
        tag(
            "p",
            "By sender: whose ack was furthest behind while others were ahead, and who most often.",
            class_="lead",
        ),
        charts.legend(named) if named else "",
        charts.strips(pinned, x, "Who pinned the window"),
        details(
            ["sender", "limited by", "fullest", "messages at most", "capacity"],
            rows,
            caption="Send windows",
            numbers=2,
        ),
        wide=True,
    )


def _limited_bands(figures: Figures, points: list[Record]) -> list[Band]:
    """Times in a row that one member pinned are one band."""
    bands: list[Band] = []
    before = None
    for at in points:
        last = min(at.at_s + figures.window_s, figures.span_s)
        if at.limited_by and at.limited_by == before:
            bands[-1] = Band(bands[-1].first, last, bands[-1].words, bands[-1].colour)
        elif at.limited_by:
            words = f"limited by {at.limited_by} from {seconds(at.at_s)}"
            bands.append(Band(at.at_s, last, words, figures.colours.get(at.limited_by, GREY)))
        before = at.limited_by
    return bands


def _share(value: float) -> str:
    return f"{plain(100 * value)} %"
