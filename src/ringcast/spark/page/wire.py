"""Sections on frames and windows, of members that recorded them."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from ringcast.spark.page.charts import (
    GREY,
    Band,
    Line,
    colour,
    heat_map,
    legend,
    line_chart,
    strips,
)
from ringcast.spark.page.figures import HEAT_MAX
from ringcast.spark.page.markup import details, empty, section, table, tag
from ringcast.spark.page.scales import linear, per_cent, plain, seconds, time_axis

if TYPE_CHECKING:
    from pyspark.sql import Row as Record

    from ringcast.spark.page.figures import Figures
    from ringcast.spark.page.markup import Content, Markup

EVERYBODY = "everybody"
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


def frames_and_windows(figures: Figures) -> list[Markup]:
    """What members at level "full" show, or why there is nothing of it."""
    if not any(life.is_full for life in figures.lives):
        why = 'Recorded at level "full" only: join(..., record_level="full").'
        return [empty("Repair, control and send windows", why)]
    return [tag("div", repair(figures), control(figures), class_="stack"), windows(figures)]


def repair(figures: Figures) -> Markup:
    title = "Sent again"
    if not figures.heat:
        return empty(title, "Nothing had to be retransmitted.")
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
        f"Messages that a sender (row) repeated for a receiver (column).{few}{_only(figures)}",
        heat_map(
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


def control(figures: Figures) -> Markup:
    title = "What control costs"
    if not figures.control:
        return empty(title, "Nothing was sent.")
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
        f"Frames without a message that a member sends for 1,000 it delivers.{_only(figures)}",
        table(["member", *heads, "in all"], rows, caption="Control frames per 1,000 messages"),
    )


def windows(figures: Figures) -> Markup:
    title = "Send windows"
    if not figures.windows:
        return empty(title, "Nobody sent anything.", wide=True)
    lines = []
    pinned = []
    rows: list[list[Content]] = []
    for (name, is_uniform), points in figures.windows.items():
        sender = f"{name} (uniform)" if is_uniform else name
        number = figures.colours.get(name, GREY)
        half = figures.window_s / 2
        places = [(min(at.at_s + half, figures.span_s), at.occupancy) for at in points]
        lines.append(Line(sender, number, [places], is_faint=is_uniform))
        shares = Counter(at.limited_by for at in points if at.limited_by)
        told = [f"{who} {per_cent(count / len(points))}" for who, count in shares.most_common()]
        pinned.append((sender, _limited_bands(figures, points), told[0] if told else "nobody"))
        fullest = max(points, key=lambda at: at.occupancy)
        counts = (max(at.used for at in points), fullest.capacity)
        whom = ", ".join(told) or "nobody"
        full = per_cent(fullest.occupancy)
        rows.append([sender, whom, full, *(f"{count:,}" for count in counts)])
    x = time_axis(figures.span_s)
    highest = max(at.occupancy for points in figures.windows.values() for at in points)
    limiters = {
        at.limited_by for points in figures.windows.values() for at in points if at.limited_by
    }
    named = [(who, f"area {colour(figures.colours.get(who, GREY))}") for who in sorted(limiters)]
    return section(
        title,
        f"How full each sender's window was, of its messages or bytes.{_only(figures)}",
        line_chart(
            "Occupancy of send windows over time, by sender",
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
        legend(named) if named else "",
        strips(pinned, x, "Who pinned the window"),
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


def _only(figures: Figures) -> str:
    """Who is missing from what frames and windows show."""
    if not figures.silent:
        return ""
    return f" Not of {', '.join(figures.silent[:5])}: they did not record it."


def _share(value: float) -> str:
    return f"{plain(100 * value)} %"
