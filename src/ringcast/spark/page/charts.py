"""Charts as HTML and inline SVG that fit any width and need no script.

The drawing stretches with the page: its coordinates are per cent, its strokes are not scaled.
Labels are HTML beside it, so that letters keep their size on a phone. Whatever colour says is also
said by a dash pattern, a word, a tooltip or the table below.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringcast.spark.page.markup import Content, Markup, grid, joined, scrolled, tag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.spark.page.scales import Axis

GREY = -1
FAULTS_NAMED_MAX = 4
SIGNS = {
    "stopped": "■",
    "killed": "✕",
    "crashed": "✕",
    "lost": "…",
    "paused": "‖",
    "resumed": "▸",
    "suspected": "?",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One series: pieces of consecutive points, its colour by number."""

    name: str
    colour: int
    pieces: list[list[tuple[float, float]]]

    @property
    def style(self) -> str:
        return f"line {colour(self.colour)}"


@dataclass(frozen=True, slots=True)
class Band:
    """A stretch of time: what its tooltip says, or whose colour it has."""

    first: float
    last: float
    words: str
    colour: int | None = None


@dataclass(frozen=True, slots=True)
class Lane:
    """A member's life on the time line, and signs upon it."""

    name: str
    colour: int
    first: float
    last: float
    signs: list[tuple[float, str, str]]
    """When, what, and in words."""


def colour(number: int) -> str:
    return "grey" if number == GREY else f"c{number}"


def line_chart(
    title: str,
    lines: Sequence[Line],
    x: Axis,
    y: Axis,
    *,
    unit: str,
    bands: Sequence[Band] = (),
    faults: Sequence[tuple[float, str]] = (),
) -> Markup:
    """Lines over time. `faults` are dashed verticals, each with its words."""
    drawn = [
        *(_path(f"M0 {100 - y.place(at)}H100", "grid") for at, _ in y.ticks),
        *(_path(f"M{x.place(at)} 0V100", "fault", words) for at, words in faults),
        *(
            _path(_piece(piece, x, y), line.style, line.name)
            for line in lines
            for piece in line.pieces
        ),
        *(_rect(band, x, "hover") for band in bands),
    ]
    plot = tag("div", _svg(title, drawn), *_x_labels(x), class_="plot")
    labels = [
        tag("span", label, class_="y", style=f"bottom:{y.place(at)}%") for at, label in y.ticks
    ]
    named = [(line.name, line.style) for line in lines]
    return joined(
        legend(named + (_fault_legend(faults) if faults else [])),
        tag("div", unit, class_="unit"),
        tag("div", tag("div", *labels, class_="scale"), plot, class_="chart"),
    )


def row_charts(
    title: str,
    lines: Sequence[tuple[Line, str, Sequence[Band]]],
    x: Axis,
    y: Axis,
    *,
    unit: str,
    faults: Sequence[tuple[float, str]] = (),
) -> Markup:
    """Each line in a row of its own, all of one scale, with what it comes to in words and what its
    stretches of time say: lines of members that do the same would lie on each other."""
    drawn = [
        _row(
            line.name,
            _svg(
                f"{title}: {line.name}",
                [
                    *(_path(f"M{x.place(at)} 0V100", "fault") for at, _ in faults),
                    *(
                        _path(_area(piece, x, y), f"under {colour(line.colour)}")
                        for piece in line.pieces
                    ),
                    *(
                        _path(_piece(piece, x, y), f"line plain {colour(line.colour)}", line.name)
                        for piece in line.pieces
                    ),
                    *(_rect(band, x, "hover") for band in bands),
                ],
            ),
            words=words,
        )
        for line, words, bands in lines
    ]
    return joined(
        legend(_fault_legend(faults)) if faults else "",
        tag("div", f"0 to {y.ticks[-1][1]} {unit} in each row", class_="unit"),
        tag("div", *drawn, _x_axis(x), class_="strips tall"),
    )


def _fault_legend(faults: Sequence[tuple[float, str]]) -> list[tuple[str, str]]:
    """What the dashed verticals are."""
    shown = [words for _, words in faults[:FAULTS_NAMED_MAX]]
    more = len(faults) - len(shown)
    return [(", ".join(shown) + (f" and {more} more" if more else ""), "line-fault fault")]


def legend(named: Sequence[tuple[str, str]]) -> Markup:
    """What the colours, and the dashes of lines, stand for: names, each with its classes."""
    items = [
        tag(
            "li",
            tag(
                "svg",
                _path("M0 50H100" if style.startswith("line") else "M0 0H100V100H0Z", style),
                viewBox="0 0 100 100",
                preserveAspectRatio="none",
                aria_hidden="true",
            ),
            name,
        )
        for name, style in named
    ]
    return tag("ul", *items, class_="legend")


def strips(rows: Sequence[tuple[str, list[Band], str]], x: Axis, title: str) -> Markup:
    """For each name its stretches of time, coloured, and what they come to in words."""
    drawn = [
        _row(
            name,
            _svg(
                f"{title}: {name}",
                [_rect(band, x, f"area {colour(band.colour or 0)}") for band in bands],
            ),
            words=words,
        )
        for name, bands, words in rows
    ]
    return tag("div", *drawn, _x_axis(x), class_="strips")


def ranges(rows: Sequence[tuple[str, list[tuple[float, str]], str]], x: Axis) -> Markup:
    """For each name a bar from its first to its last value, with a dot at each, and a label."""
    drawn = []
    for name, values, label in rows:
        first, last = x.place(values[0][0]), x.place(values[-1][0])
        dots = [
            tag("i", class_=f"dot d{number}", style=f"left:{x.place(at)}%", title=words)
            for number, (at, words) in enumerate(values)
        ]
        bar = tag("i", class_="bar", style=f"left:{first}%;width:{round(last - first, 2)}%")
        drawn.append(_row(name, bar, *dots, words=label))
    return tag("div", *drawn, _x_axis(x), class_="strips ranges")


def dots_legend(names: Sequence[str]) -> Markup:
    """What the dots of `ranges` stand for, in their order."""
    items = [tag("li", tag("i", class_=f"dot d{at}"), name) for at, name in enumerate(names)]
    return tag("ul", *items, class_="legend")


def lanes(
    rows: Sequence[Lane], x: Axis, verticals: Sequence[tuple[float, str, str]], title: str
) -> Markup:
    """A time line: a lane for each member, and verticals with a label where there is room."""
    drawn = []
    for lane in rows:
        first, last = x.place(lane.first), x.place(lane.last)
        signs = [
            tag("b", SIGNS[what], class_=f"sign {what}", style=f"left:{x.place(at)}%", title=words)
            for at, what, words in lane.signs
        ]
        style = f"left:{first}%;width:{max(0.3, round(last - first, 2))}%"
        bar = tag("i", class_=f"life {colour(lane.colour)}", style=style)
        drawn.append(_row(lane.name, bar, *signs))
    paths = [_path(f"M{x.place(at)} 0V100", "view", words) for at, _, words in verticals]
    labels = []
    free = -1.0
    for at, label, words in verticals:
        if x.place(at) >= free:
            labels.append(
                tag("span", label, class_="top", style=f"left:{x.place(at)}%", title=words)
            )
            free = x.place(at) + 5
    over = _row("", _svg(title, paths), *labels, kind="over")
    return tag("div", over, *drawn, _x_axis(x), class_="strips lanes")


def heat_map(
    names: Sequence[str],
    columns: Sequence[str],
    values: dict[tuple[str, str], tuple[float, str]],
    *,
    corner: str,
    caption: str,
) -> Markup:
    """A table whose cells are the stronger the higher; each has its number and a tooltip."""
    highest = max((value for value, _ in values.values()), default=0.0) or 1.0
    head = [tag("th", corner, scope="col"), *(tag("th", name, scope="col") for name in columns)]
    lines = []
    for name in names:
        cells: list[Content] = [tag("th", name, scope="row")]
        for column in columns:
            value, words = values.get((name, column), (0.0, ""))
            share = round(100 * value / highest)
            shown = f"{value:,.0f}" if words else "·"
            cells.append(tag("td", shown, style=f"--heat:{share}%", title=words))
        lines.append(tag("tr", *cells))
    return scrolled(grid(head, lines, caption, class_="heat"), caption)


def _svg(title: str, drawn: Sequence[Content]) -> Markup:
    return tag(
        "svg",
        tag("title", title),
        *drawn,
        viewBox="0 0 100 100",
        preserveAspectRatio="none",
        role="img",
        aria_label=title,
    )


def _path(d: str, class_: str, words: str = "") -> Markup:
    title = tag("title", words) if words else ""
    return tag("path", title, d=d, class_=class_)


def _area(points: list[tuple[float, float]], x: Axis, y: Axis) -> str:
    """What lies below the line."""
    first, last = x.place(points[0][0]), x.place(points[-1][0])
    return f"{_piece(points, x, y)}L{last} 100L{first} 100Z"


def _piece(points: list[tuple[float, float]], x: Axis, y: Axis) -> str:
    places = [f"{x.place(at)} {round(100 - y.place(value), 2)}" for at, value in points]
    # A point that stands alone is a dot: round ends make it one.
    return "M" + "L".join(places if len(places) > 1 else places * 2)


def _rect(band: Band, x: Axis, class_: str) -> Markup:
    first, last = x.place(band.first), x.place(band.last)
    title = tag("title", band.words)
    width = round(last - first, 2)
    return tag("rect", title, x=first, y=0, width=width, height=100, class_=class_)


def _x_labels(x: Axis) -> list[Markup]:
    return [tag("span", label, class_="x", style=f"left:{x.place(at)}%") for at, label in x.ticks]


def _row(name: str, *plot: Content, words: str = "", kind: str = "") -> Markup:
    """A name, what is drawn beside it, and what that comes to."""
    return tag(
        "div",
        tag("span", name, class_="name", title=name),
        tag("div", *plot, class_="plot"),
        tag("span", words, class_="words", title=words),
        class_=f"strip {kind}".strip(),
    )


def _x_axis(x: Axis) -> Markup:
    return _row("", *_x_labels(x), kind="axis")
