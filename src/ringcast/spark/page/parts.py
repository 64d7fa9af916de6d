"""What the sections share: their frame, and what is marked in every chart over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.spark.page.charts import Band
from ringcast.spark.page.markup import joined, tag
from ringcast.spark.page.scales import seconds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ringcast.spark.page.figures import Figures
    from ringcast.spark.page.markup import Content, Markup


def section(title: str, lead: str, *content: Content, wide: bool = False) -> Markup:
    return tag(
        "section",
        tag("h2", title),
        tag("p", lead, class_="lead") if lead else "",
        joined(*content),
        class_="card wide" if wide else "card",
    )


def details(content: Markup) -> Markup:
    return tag("details", tag("summary", "Figures"), content)


def empty(why: str) -> Markup:
    return tag("p", why, class_="empty")


def hover(figures: Figures, says: Iterable[tuple[int, str]]) -> list[Band]:
    return [
        Band(
            slot * figures.window_s,
            min((slot + 1) * figures.window_s, figures.span_s),
            f"{seconds(slot * figures.window_s)}: {words}",
        )
        for slot, words in says
    ]


def faults(figures: Figures) -> list[tuple[float, str]]:
    """What may explain a dent: members that went without saying so."""
    return [
        (mark.at_s, f"{mark.member} {mark.what} at {mark.at_s:.1f} s")
        for mark in figures.marks
        if mark.what in ("killed", "crashed", "paused")
    ]
