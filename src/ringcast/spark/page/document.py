"""The page: verdicts first, then how the run went. One file, no script, nothing from elsewhere."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ringcast.spark.page.markup import Markup, absences, clip, grid, joined, tag, text
from ringcast.spark.page.messages import latency, pairs, throughput
from ringcast.spark.page.settings import settings
from ringcast.spark.page.views import time_line
from ringcast.spark.page.wire import frames_and_windows
from ringcast.spark.report import (
    INCOMPLETE,
    INCONCLUSIVE,
    OK,
    UNDECIDABLE,
    UNKNOWN_TAIL,
    VIOLATED,
    readable,
)

if TYPE_CHECKING:
    from ringcast.spark.page.figures import Figures
    from ringcast.spark.page.markup import Content, Part
    from ringcast.spark.report import Names, Report, Verdict
    from ringcast.trace.rows import Row

SIGNS = {
    VIOLATED: "✕",
    INCOMPLETE: "!",
    INCONCLUSIVE: "?",
    UNDECIDABLE: "–",
    UNKNOWN_TAIL: "~",
    OK: "✓",
}
"""The worst first: so they are sorted."""
SHOWN_MAX = 3
"""Of each guarantee: violations whose rows are shown. The others are named."""
NOTES_MAX = 50
_STYLE = Path(__file__).with_name("style.css")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""The browser is told what we promise: no script runs and nothing is fetched."""


def document(report: Report, figures: Figures) -> str:
    """The whole page as HTML."""
    head = joined(
        Markup('<meta charset="utf-8">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{text(_POLICY)}">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup('<meta name="color-scheme" content="light dark">'),
        tag("title", f"{report.run_id}: {report.summary}"),
        tag("style", Markup(_STYLE.read_text(encoding="utf-8"))),
    )
    parts: list[Part] = [
        throughput(figures),
        latency(figures),
        pairs(figures),
        *frames_and_windows(figures),
        time_line(figures),
    ]
    body = joined(
        _banner(report, figures),
        tag(
            "main",
            _verdicts(report),
            *_witnesses(report),
            *(part for part in parts if isinstance(part, Markup)),
            absences(parts),
            _notes(report, figures),
            settings(report),
        ),
    )
    return f"<!doctype html>\n{tag('html', tag('head', head), tag('body', body), lang='en')}\n"


def _banner(report: Report, figures: Figures) -> Markup:
    worst = {1: VIOLATED, 3: INCOMPLETE}.get(report.exit_status, OK)
    facts = [
        _counted(report.members, "member"),
        f"{_counted(report.rows, 'row')} in {_counted(report.segments, 'segment')}",
        f"{figures.span_s:,.1f} s",
    ]
    if figures.is_simulation:
        facts.append("a simulation, in virtual time")
    else:
        began = datetime.fromtimestamp(figures.began_ns / 1e9, UTC)
        facts.append(f"began {began:%Y-%m-%d %H:%M:%S} UTC")
    return tag(
        "header",
        tag("p", "ringcast audit", class_="kicker"),
        tag("h1", report.run_id or "a run without a name"),
        tag(
            "p",
            tag("b", SIGNS[worst], class_="badge", aria_hidden="true"),
            tag("span", report.summary),
            class_=f"summary {_class(worst)}",
        ),
        tag("p", " · ".join(facts), class_="facts"),
    )


def _verdicts(report: Report) -> Markup:
    order = list(SIGNS)
    judged = [verdict for verdict in report.verdicts if not verdict.is_unseen]
    judged.sort(key=lambda verdict: order.index(verdict.status))
    notes = [
        tag("p", f"{', '.join(names)}: {clip(remark)}", class_="note")
        for remark, names in report.shared().items()
    ]
    notes += [
        tag("p", f"Not judged: {', '.join(names)}: {clip(why)}", class_="note")
        for why, names in report.unseen().items()
    ]
    head = [
        tag("th", tag("span", "verdict", class_="word"), scope="col"),
        tag("th", "guarantee", scope="col"),
        tag("th", "checks", scope="col", class_="number"),
    ]
    made = grid(
        head,
        [_verdict(verdict, report.own(verdict)) for verdict in judged],
        "Verdicts",
        id="verdicts",
    )
    return tag("section", tag("h2", "Verdicts", class_="unseen"), made, *notes, class_="card wide")


def _verdict(verdict: Verdict, own: str) -> Markup:
    sign = tag("b", SIGNS[verdict.status], class_="badge", aria_hidden="true")
    detail = tag("small", clip(own)) if own else ""
    if verdict.violations:
        detail = tag("small", tag("a", clip(own), href=f"#{_anchor(verdict)}"))
    word = tag("span", verdict.status, class_="word")
    return tag(
        "tr",
        tag("td", sign, word, class_=f"status {_class(verdict.status)}"),
        tag("td", tag("span", verdict.id, class_="id"), verdict.title, detail),
        tag("td", f"{verdict.premises:,}", class_="number"),
        class_=_class(verdict.status),
    )


def _witnesses(report: Report) -> list[Markup]:
    """What shows each violation, right below the verdicts."""
    made = []
    for verdict in report.verdicts:
        if not verdict.violations:
            continue
        found = [
            tag("li", clip(at.text), _rows(at.rows if place < SHOWN_MAX else [], report.names))
            for place, at in enumerate(verdict.violations)
        ]
        made.append(
            tag(
                "section",
                tag("h2", f"{SIGNS[VIOLATED]} {verdict.id}: {verdict.title}"),
                tag("ol", *found),
                class_="card wide witness",
                id=_anchor(verdict),
            )
        )
    return made


def _rows(rows: list[Row], names: Names) -> Content:
    lines = [text(clip(readable(row, names))) for row in rows]
    return tag("pre", Markup("\n".join(lines)), tabindex=0) if lines else ""


def _notes(report: Report, figures: Figures) -> Content:
    said = report.notes[:NOTES_MAX]
    if figures.silent and len(figures.silent) < len(figures.lives):
        some = ", ".join(figures.silent[:5])
        said = [*said, f"{some} did not record frames and windows: those are the others'"]
    if not said:
        return ""
    notes = [tag("li", clip(note)) for note in said]
    return tag("section", tag("h2", "Notes"), tag("ul", *notes), class_="card wide")


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def _class(status: str) -> str:
    return status.replace(" ", "-")


def _anchor(verdict: Verdict) -> str:
    return f"found-{verdict.id.replace(' ', '-')}"
