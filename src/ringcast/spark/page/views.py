"""The section on views: who was in the group, and what befell whom."""

from __future__ import annotations

from collections import defaultdict

from ringcast.spark.page.charts import GREY, SIGNS, Lane, lanes
from ringcast.spark.page.figures import LANES_MAX, Figures
from ringcast.spark.page.markup import Absent, Content, Part, details, section, tag
from ringcast.spark.page.scales import milliseconds, seconds, time_axis

NAMES_MAX = 12


def time_line(figures: Figures) -> Part:
    title = "Views and faults"
    if not figures.views:
        return Absent(title, "no member installed a view")
    signs: defaultdict[str, list[tuple[float, str, str]]] = defaultdict(list)
    for mark in figures.marks:
        words = f"{mark.member} at {seconds(mark.at_s)}: {mark.words}"
        signs[mark.member].append((mark.at_s, mark.what, words))
    rows = [
        Lane(
            *(life.member, figures.colours.get(life.member, GREY), life.started_s, life.last_s),
            signs[life.member],
        )
        for life in figures.lives[:LANES_MAX]
    ]
    verticals = []
    lines: list[tuple[float, list[Content]]] = []
    for view in figures.views:
        changes = [*(f"+ {name}" for name in view.joined), *(f"− {name}" for name in view.departed)]
        words = f"view {view.view}: {_some(view.members)}"
        verticals.append((view.at_s, str(view.view), f"{words} ({seconds(view.at_s)})"))
        settled = milliseconds(1000 * (view.settled_s - view.at_s))
        change = _some(changes) or "the first"
        lines.append((view.at_s, [seconds(view.at_s), words, change, f"within {settled}"]))
    for mark in figures.marks:
        sign = f"{SIGNS[mark.what]} {mark.words}"
        lines.append((mark.at_s, [seconds(mark.at_s), mark.member, sign, ""]))
    lines.sort(key=lambda line: line[0])
    used = {mark.what: None for mark in figures.marks}
    key = [tag("li", tag("b", "1", class_="sign"), "a new view, and its number")]
    key += [tag("li", tag("b", SIGNS[what], class_=f"sign {what}"), what) for what in used]
    few = [
        *([f"the first {len(rows)} of {figures.members} members"] * (figures.members > len(rows))),
        *([f"the first {len(figures.views)} of {figures.views_known} views"]
          * (figures.views_known > len(figures.views))),
    ]  # fmt: skip
    return section(
        title,
        "Each member's life." + (f" Shown are {' and '.join(few)}." if few else ""),
        tag("ul", *key, class_="legend signs"),
        lanes(rows, time_axis(figures.span_s), verticals, "Views and faults over time"),
        details(
            ["at", "what", "change", "everywhere"],
            [line for _, line in lines],
            caption="Views and faults",
            numbers=4,
        ),
        wide=True,
    )


def _some(names: list[str]) -> str:
    """So many that a person reads them."""
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    return ", ".join(names[:NAMES_MAX]) + more
