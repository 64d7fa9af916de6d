"""The sections of the page below the verdicts: one function each, figures in, HTML out."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from ringcast.spark.page.charts import (
    GREY,
    SIGNS,
    Band,
    Lane,
    Line,
    heat_map,
    lanes,
    legend,
    line_chart,
    ranges,
    strips,
)
from ringcast.spark.page.figures import HEAT_MAX, LANES_MAX
from ringcast.spark.page.markup import joined, table, tag
from ringcast.spark.page.scales import (
    linear,
    logarithmic,
    milliseconds,
    per_cent,
    plain,
    seconds,
    short,
    time_axis,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Row as Record

    from ringcast.spark.page.figures import Figures, Window
    from ringcast.spark.page.markup import Content, Markup
    from ringcast.spark.report import Names

EVERYBODY = "everybody"
NEEDS_FULL = 'Frames and windows are recorded at level "full" only (record_level="full")'
_QUANTILES = {"p50_ms": "median", "p90_ms": "90 %", "p99_ms": "99 %"}
_CONTROL = {
    "acks": ("ack",),
    "repair requests": ("nack", "repairwanted"),
    "announcements": ("highest",),
    "votes": ("vote", "votewanted", "stable"),
    "commits": ("commit", "commitwanted"),
}
"""What control frames are for; the rest keeps the group together."""
_THE_REST = "membership"


def sections(figures: Figures, names: Names) -> list[Markup]:
    """All of them, in the order of the page."""
    return [
        throughput(figures),
        latency(figures),
        pairs(figures, names),
        tag("div", repair(figures, names), control(figures), class_="stack"),
        windows(figures),
        time_line(figures),
    ]


def throughput(figures: Figures) -> Markup:
    title = "Throughput"
    series = figures.throughput
    if not series:
        return _section(title, "", _empty("No message was delivered."))
    others = f"mean of {figures.members - len(series) + 1} others"
    named = {name or others: points for name, points in series.items()}
    lines = [
        Line(
            name,
            figures.colours.get(name, GREY),
            [[(figures.middle(slot), rate) for slot, rate in sorted(points.items())]],
        )
        for name, points in named.items()
    ]
    highest = max(rate for points in series.values() for rate in points.values())
    slots = sorted({slot for points in series.values() for slot in points})
    rows: list[list[Content]] = [
        [
            seconds(slot * figures.window_s),
            *(plain(points[slot]) if slot in points else "" for points in named.values()),
        ]
        for slot in slots
    ]
    says = [
        (
            slot,
            ", ".join(f"{name} {short(at[slot])}/s" for name, at in named.items() if slot in at),
        )
        for slot in slots
    ]
    return _section(
        title,
        "Messages each member delivered in a second, its own among them.",
        line_chart(
            "Messages delivered per second over time, by member",
            lines,
            time_axis(figures.span_s),
            linear(highest, short),
            unit="messages/s",
            bands=_hover(figures, says),
            faults=_faults(figures),
        ),
        _faults_note(figures),
        _details(table(["from", *named], rows, caption="Throughput over time")),
    )


def latency(figures: Figures) -> Markup:
    title = "Latency"
    measured = {slot: at for slot, at in sorted(figures.latency.items()) if at.samples}
    if not measured:
        return _section(title, "", _empty(_why_no_latency(figures)))
    lines = [
        Line(words, number, _pieces(figures, {slot: at[key] for slot, at in measured.items()}))
        for number, (key, words) in enumerate(_QUANTILES.items())
    ]
    values = [at[key] for at in measured.values() for key in _QUANTILES]
    rows: list[list[Content]] = [
        [
            seconds(slot * figures.window_s),
            *(milliseconds(at[key]) for key in _QUANTILES),
            milliseconds(at.max_ms),
            f"{at.samples:,}",
        ]
        for slot, at in measured.items()
    ]
    says = [
        (slot, ", ".join(f"{words} {milliseconds(at[key])}" for key, words in _QUANTILES.items()))
        for slot, at in measured.items()
    ]
    whole = figures.latency_all
    told = "" if whole is None else _in_whole(whole)
    return _section(
        title,
        f"From a member's send to another's delivery. {told}",
        line_chart(
            "Latency over time: median, 90 % and 99 % of messages",
            lines,
            time_axis(figures.span_s),
            logarithmic(values, milliseconds),
            unit="logarithmic",
            bands=_hover(figures, says),
            faults=_faults(figures),
        ),
        _details(
            table(
                ["from", *_QUANTILES.values(), "longest", "samples"],
                rows,
                caption="Latency over time",
            )
        ),
    )


def pairs(figures: Figures, names: Names) -> Markup:
    title = "Latency by pair"
    known = [pair for pair in figures.pairs if pair.samples]
    if not known:
        return _section(title, "", _empty(_why_no_latency(figures)))
    values = [pair[key] for pair in known for key in _QUANTILES]
    drawn = []
    rows: list[list[Content]] = []
    for pair in known:
        name = f"{names.of_key(pair.sender)} → {names.of_key(pair.receiver)}"
        dots = [
            (pair[key], f"{words}: {milliseconds(pair[key])}") for key, words in _QUANTILES.items()
        ]
        drawn.append((name, dots, milliseconds(pair.p99_ms)))
        figures_of_pair = [milliseconds(pair[key]) for key in _QUANTILES]
        rows.append([name, *figures_of_pair, milliseconds(pair.max_ms), f"{pair.samples:,}"])
    unmeasured = [pair for pair in figures.pairs if not pair.samples]
    which = (
        f"The {len(known)} slowest of {figures.pairs_known} pairs"
        if figures.pairs_known > len(figures.pairs)
        else "Every pair, the slowest first"
    )
    note = f" {len(unmeasured)} have no common clock." if unmeasured else ""
    return _section(
        title,
        f"{which}: median, 90 % and 99 %, the last in figures.{note}",
        ranges(drawn, logarithmic(values, milliseconds)),
        _details(
            table(
                ["pair", *_QUANTILES.values(), "longest", "samples"],
                rows,
                caption="Latency by pair",
            )
        ),
    )


def repair(figures: Figures, names: Names) -> Markup:
    title = "Sent again"
    if not _has_frames(figures):
        return _section(title, "", _empty(f"{NEEDS_FULL}."))
    if not figures.heat:
        return _section(title, "", _empty("Nothing had to be sent again."))
    values: dict[tuple[str, str], tuple[float, str]] = {}
    rows: list[list[Content]] = []
    for spot in sorted(figures.heat, key=lambda spot: -spot.messages):
        sender = names.of_key(spot.sender)
        receiver = names.of_key(spot.receiver) if spot.receiver else EVERYBODY
        words = f"{spot.messages:,} messages in {spot.frames:,} frames, {spot.requests:,} requests"
        values[sender, receiver] = (float(spot.messages), f"{sender} to {receiver}: {words}")
        counts = (spot.messages, spot.frames, spot.bytes, spot.requests)
        rows.append([f"{sender} → {receiver}", *(f"{count:,}" for count in counts)])
    shown = [life.name for life in figures.lives[:HEAT_MAX]]
    group = [EVERYBODY] if any(receiver == EVERYBODY for _, receiver in values) else []
    few = "" if figures.members <= HEAT_MAX else f" The first {HEAT_MAX} members."
    return _section(
        title,
        f"Messages that a sender (row) repeated for a receiver (column).{few}{_only(figures)}",
        heat_map(
            shown,
            [*shown, *group],
            values,
            corner="from \\ to",
            caption="Messages sent again, sender by receiver",
        ),
        _details(
            table(
                ["pair", "messages", "frames", "bytes", "requests"],
                rows,
                caption="What was sent again, by pair",
            )
        ),
    )


def control(figures: Figures) -> Markup:
    title = "What control costs"
    if not figures.control:
        return _section(title, "", _empty(f"{NEEDS_FULL}."))
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
    return _section(
        title,
        f"Frames without a message that a member sends for 1,000 it delivers.{_only(figures)}",
        table(["member", *heads, "in all"], rows, caption="Control frames per 1,000 messages"),
    )


def windows(figures: Figures) -> Markup:
    title = "Send windows"
    if not _has_frames(figures):
        return _section(title, "", _empty(f"{NEEDS_FULL}."))
    if not figures.windows:
        return _section(title, "", _empty("Nobody sent anything."))
    lines = []
    pinned = []
    rows: list[list[Content]] = []
    for sender, points in figures.windows.items():
        number = figures.colours.get(sender, GREY)
        half = figures.window_s / 2
        places = [(min(at.at_s + half, figures.span_s), at.occupancy) for at in points]
        lines.append(Line(sender, number, [places]))
        shares = Counter(at.pinned_by for at in points if at.pinned_by)
        told = [f"{name} {per_cent(n / len(points))}" for name, n in shares.most_common()]
        pinned.append((sender, _pinned_bands(figures, points), told[0] if told else "nobody"))
        fullest = max(points, key=lambda at: at.occupancy)
        rows.append(
            [
                sender,
                ", ".join(told) or "nobody",
                per_cent(fullest.occupancy),
                f"{max(at.used for at in points):,}",
                f"{fullest.capacity:,}",
            ]
        )
    x = time_axis(figures.span_s)
    highest = max(at.occupancy for points in figures.windows.values() for at in points)
    pinners = {at.pinned_by for points in figures.windows.values() for at in points if at.pinned_by}
    named = [(name, figures.colours.get(name, GREY)) for name in sorted(pinners)]
    return _section(
        title,
        f"How full each sender's window was, of its messages or bytes.{_only(figures)}",
        line_chart(
            "Occupancy of send windows over time, by sender",
            lines,
            x,
            linear(highest, _share),
            unit="of the window",
            faults=_faults(figures),
        ),
        tag("h3", "Who kept it from moving"),
        tag(
            "p",
            "By sender: whose ack was furthest behind while others were ahead, and who most often.",
            class_="lead",
        ),
        legend(named, "area") if named else "",
        strips(pinned, x, "Who pinned the window"),
        _details(
            table(
                ["sender", "pinned by", "fullest", "messages at most", "capacity"],
                rows,
                caption="Send windows",
                numbers=2,
            )
        ),
        wide=True,
    )


def time_line(figures: Figures) -> Markup:
    title = "Views and faults"
    if not figures.views:
        return _section(title, "", _empty("No member installed a view."), wide=True)
    signs: defaultdict[str, list[tuple[float, str, str]]] = defaultdict(list)
    for mark in figures.marks:
        words = f"{mark.member} at {seconds(mark.at_s)}: {mark.words}"
        signs[mark.member].append((mark.at_s, mark.what, words))
    rows = [
        Lane(
            *(life.name, figures.colours.get(life.name, GREY), life.started_s, life.last_s),
            signs[life.name],
        )
        for life in figures.lives[:LANES_MAX]
    ]
    verticals = []
    lines: list[tuple[float, list[Content]]] = []
    for view in figures.views:
        changes = [*(f"+ {name}" for name in view.joined), *(f"− {name}" for name in view.departed)]
        words = f"view {view.number}: {', '.join(view.members)}"
        verticals.append((view.at_s, str(view.number), f"{words} ({seconds(view.at_s)})"))
        settled = milliseconds(1000 * (view.settled_s - view.at_s))
        lines.append(
            (
                view.at_s,
                [
                    *(seconds(view.at_s), words, ", ".join(changes) or "the first"),
                    f"within {settled}",
                ],
            )
        )
    for mark in figures.marks:
        sign = f"{SIGNS[mark.what]} {mark.words}"
        lines.append((mark.at_s, [seconds(mark.at_s), mark.member, sign, ""]))
    lines.sort(key=lambda line: line[0])
    used = {mark.what: None for mark in figures.marks}
    key = [tag("li", tag("b", SIGNS[what], class_=f"sign {what}"), what) for what in used]
    few = [
        *([f"the first {len(rows)} of {figures.members} members"] * (figures.members > len(rows))),
        *([f"the first {len(figures.views)} of {figures.views_known} views"]
          * (figures.views_known > len(figures.views))),
    ]  # fmt: skip
    return _section(
        title,
        "Each member's life; an upright line is a new view, with its number."
        + (f" Shown are {' and '.join(few)}." if few else ""),
        tag("ul", *key, class_="legend signs") if key else "",
        lanes(rows, time_axis(figures.span_s), verticals, "Views and faults over time"),
        _details(
            table(
                ["at", "what", "change", "everywhere"],
                [line for _, line in lines],
                caption="Views and faults",
                numbers=4,
            )
        ),
        wide=True,
    )


def _pinned_bands(figures: Figures, points: list[Window]) -> list[Band]:
    """Times in a row that one member pinned are one band."""
    bands: list[Band] = []
    before = None
    for at in points:
        last = min(at.at_s + figures.window_s, figures.span_s)
        if at.pinned_by and at.pinned_by == before:
            bands[-1] = Band(bands[-1].first, last, bands[-1].words, bands[-1].colour)
        elif at.pinned_by:
            words = f"pinned by {at.pinned_by} from {seconds(at.at_s)}"
            bands.append(Band(at.at_s, last, words, figures.colours.get(at.pinned_by, GREY)))
        before = at.pinned_by
    return bands


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


def _hover(figures: Figures, says: Iterable[tuple[int, str]]) -> list[Band]:
    return [
        Band(
            slot * figures.window_s,
            min((slot + 1) * figures.window_s, figures.span_s),
            f"{seconds(slot * figures.window_s)}: {words}",
        )
        for slot, words in says
    ]


def _faults(figures: Figures) -> list[tuple[float, str]]:
    """What may explain a dent: members that went without saying so."""
    return [
        (mark.at_s, f"{mark.member} {mark.what} at {mark.at_s:.1f} s")
        for mark in figures.marks
        if mark.what in ("killed", "crashed", "paused")
    ]


def _faults_note(figures: Figures) -> Content:
    shown = [words for _, words in _faults(figures)]
    if not shown:
        return ""
    more = f" and {len(shown) - 4} more" if len(shown) > 4 else ""
    return tag("p", f"Dashed: {', '.join(shown[:4])}{more}.", class_="note")


def _in_whole(whole: Record) -> str:
    quantiles = [f"{words} {milliseconds(whole[key])}" for key, words in _QUANTILES.items()]
    return f"In all: {', '.join(quantiles)}."


def _why_no_latency(figures: Figures) -> str:
    whole = figures.latency_all
    if whole is not None and whole.reason:
        return (
            "Not measured: members ran on different machines, and clocks of different machines "
            "cannot be compared."
        )
    return "No message went from one member to another."


def _has_frames(figures: Figures) -> bool:
    return any(life.is_full for life in figures.lives)


def _only(figures: Figures) -> str:
    """Who is missing from what frames and windows show."""
    if not figures.silent:
        return ""
    return f" Not of {', '.join(figures.silent[:5])}: they did not record it."


def _share(value: float) -> str:
    return f"{plain(100 * value)} %"


def _empty(why: str) -> Markup:
    return tag("p", why, class_="empty")


def _details(content: Markup) -> Markup:
    return tag("details", tag("summary", "Figures"), content)


def _section(title: str, lead: str, *content: Content, wide: bool = False) -> Markup:
    return tag(
        "section",
        tag("h2", title),
        tag("p", lead, class_="lead") if lead else "",
        joined(*content),
        class_="card wide" if wide else "card",
    )
