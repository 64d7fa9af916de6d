"""The page: what it says, what it escapes, and what it never has. No browser is needed here."""

from __future__ import annotations

import re
import stat
from dataclasses import replace
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row as Record

from ringcast.cli import main
from ringcast.sim.runner import run_seeds
from ringcast.spark.audit import audit
from ringcast.spark.page import write_page
from ringcast.spark.page.document import document
from ringcast.spark.page.figures import (
    HEAT_MAX,
    LANES_MAX,
    MARKS_MAX,
    MEMBERS_MAX,
    PAIRS_MAX,
    SERIES_MAX,
    VIEWS_MAX,
    WINDOWS_MAX,
    Figures,
    Mark,
)
from ringcast.spark.page.markup import Markup, tag, text
from ringcast.spark.page.messages import throughput
from ringcast.spark.page.scales import (
    linear,
    logarithmic,
    milliseconds,
    plain,
    round_up,
    short,
    time_axis,
)
from ringcast.spark.page.settings import settings
from ringcast.spark.page.wire import control
from ringcast.spark.report import Names, Report, Verdict, Violation
from ringcast.trace.rows import LISTS, Row
from support.modes import umask

if TYPE_CHECKING:
    from pathlib import Path

    from cluster_traces import Traces
    from pyspark.sql import SparkSession

VOID = {"meta"}


class Reader(HTMLParser):
    """Reads a page, refusing elements that are not closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


def read_page(page: str) -> Reader:
    """The page, once it is seen to have no script and to want nothing from elsewhere."""
    reader = Reader(page)
    assert len(page.encode()) < 2_000_000
    names = {name for name, _ in reader.elements}
    assert names.isdisjoint({"script", "link", "img", "iframe", "object", "embed", "base", "form"})
    for _, attributes in reader.elements:
        assert not any(name.startswith("on") for name in attributes)
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    assert not re.search(r"url\(|@import|https?://", page)
    return reader


def page_of(spark: SparkSession, directory: Path) -> Reader:
    page = directory / "page.html"
    with umask(0):
        write_page(spark, audit(None, directory), page)
    assert stat.S_IMODE(page.stat().st_mode) == 0o600  # it is its owner's alone
    return read_page(page.read_text())


EVIL = "<script>alert('x')</script>\"&\n\u202e"
HARMLESS = "<script>alert('x')</script>\"&\\n\\u202e"


def called(name: str, rows: list[Row]) -> list[Row]:
    """The rows of a run in which member b is called so."""

    def renamed(keys: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(re.sub("^b#", lambda _: f"{name}#", key) for key in keys)

    return [
        row._replace(
            node=name if row.node == "b" else row.node,
            peer=name if row.peer == "b" else row.peer,
            **{column: renamed(getattr(row, column)) for column in LISTS},
        )
        for row in rows
    ]


def test_a_run_at_level_deliveries_says_what_it_cannot_show(
    spark: SparkSession, traces: Traces, tmp_path: Path
) -> None:
    """And a member of it has a name that is shown, not obeyed."""
    traces.rows = {name: called(EVIL, rows) for name, rows in traces.rows.items()}
    traces.recordings["b"] = replace(traces.recordings["b"], node=EVIL)
    last = traces.rows["b"][-1]
    assert last.event == "stop"
    again = [row for row in traces.rows["b"] if row.event == "deliver"][-1]
    traces.rows["b"][-1:] = [again._replace(idx=last.idx), last._replace(idx=last.idx + 1)]
    traces.write(tmp_path)
    page = page_of(spark, tmp_path)
    assert f"{HARMLESS} delivers " in page.text
    assert "\u202e" not in page.text
    labels = {value for _, values in page.elements for value in values.values() if value}
    assert any(HARMLESS in label for label in labels)
    assert EVIL not in labels
    assert "2 guarantees violated" in page.text  # G2 N2 and VS3
    assert "unknown tail" in page.text
    assert "Not judged: G5" in page.text
    assert "Retransmitted, What control costs, Send windows: recorded at level" in page.text
    assert page.text.count("their clocks cannot be compared") == 1
    assert "Latency, Latency by pair: members ran on different machines" in page.text
    assert "Settings and versions" in page.text
    assert "messages/s" in page.text
    assert "killed or cut off" in page.text


@pytest.mark.proof
def test_a_simulation_at_level_full_has_every_chart(spark: SparkSession, tmp_path: Path) -> None:
    list(run_seeds(range(42, 43), record=tmp_path))
    page = page_of(spark, tmp_path / "seed-42")
    assert "a simulation, in virtual time" in page.text
    assert "recorded at level" not in page.text  # nothing is left out
    for words in (
        "Throughput",
        "Latency by pair",
        "everybody",
        "reminders",
        "limited by",
        "crashed",
    ):
        assert words in page.text
    titles = [values.get("aria-label") for name, values in page.elements if name == "svg"]
    assert any(title and title.startswith("Occupancy of send windows") for title in titles)
    assert "Views and faults over time" in titles


def crowd() -> Figures:
    """As much as a page can ever have to show, under long names."""
    names = [f"member-with-a-long-name-{at:03}" for at in range(MEMBERS_MAX)]
    slots = range(2 * WINDOWS_MAX + 1)
    figures = Figures(span_s=1000.0, window_s=1000.0 / len(slots), members=1000)
    life = {"started_s": 0.0, "last_s": 1000.0, "end": None, "is_full": True}
    figures.lives = [Record(member=name, **life) for name in names]
    figures.colours = {name: at for at, name in enumerate(names[: SERIES_MAX - 1])}
    shown = [*figures.colours, ""]
    figures.throughput = {name: dict.fromkeys(slots, 1234567.8) for name in shown}
    quantiles = {"p50_ms": 1.23, "p90_ms": 12.3, "p99_ms": 1234.5, "max_ms": 99999.0}
    figures.latency = {slot: Record(samples=10**9, reason=None, **quantiles) for slot in slots}
    figures.latency_all = figures.latency[0]
    figures.pairs = [
        Record(sender=names[at], receiver=names[-1], samples=10**9, **quantiles)
        for at in range(PAIRS_MAX)
    ]
    figures.pairs_known = 10**6
    some = names[:HEAT_MAX]
    figures.heat = [
        Record(sender=a, receiver=b, messages=10**9, frames=10**9, bytes=10**9, requests=10**9)
        for a in some
        for b in [*some, None]
    ]
    figures.control = {name: {"ack": 0.5, "beat": 1.5} for name in names[:HEAT_MAX]}
    full = {"used": 10**6, "capacity": 10**6, "occupancy": 1.0}
    figures.windows = {
        (name, is_uniform): [
            Record(at_s=slot * figures.window_s, limited_by=shown[slot % 3], **full)
            for slot in slots
        ]
        for name in shown[:-1]
        for is_uniform in (False, True)
    }
    changes = {"joined": names[:1], "departed": names[1:2]}
    figures.views = [
        Record(at_s=5.0 * at, settled_s=5.0 * at, view=at, members=names, **changes)
        for at in range(VIEWS_MAX)
    ]
    figures.views_known = 10**6
    figures.marks = [Mark(at, names[at % LANES_MAX], "killed", "words") for at in range(MARKS_MAX)]
    return figures


def test_the_largest_page_is_small_enough() -> None:
    row = Row("deliver", "a", 1, 1, members=("member#1",) * 50)
    violations = [Violation("a text " * 20, [row] * 20) for _ in range(10)]
    ids = ("G1", "G2 N2", "N1", "N3", "content", "VS1", "VS5")
    verdicts = [Verdict(name, 10**9, violations, 10**6) for name in ids]
    report = Report("run", 1000, 10**6, 10**12, verdicts, ["note " * 20] * 50, Names([]))
    page = read_page(document(report, crowd()))
    assert f"mean of {1000 - SERIES_MAX + 1} others" in page.text
    assert f"The {PAIRS_MAX} slowest of 1000000 pairs" in page.text
    assert f"The first {HEAT_MAX} members." in page.text
    assert f"the first {LANES_MAX} of 1000 members" in page.text
    assert f"the first {VIEWS_MAX} of 1000000 views" in page.text


def test_a_run_of_nothing_has_a_page_that_says_so() -> None:
    report = Report("", 0, 0, 0, [], [], Names([]))
    page = read_page(document(report, Figures()))
    for words in ("no message was delivered", "no message went", "no member installed a view"):
        assert page.text.count(words) == 1
    sections = [values.get("class") for name, values in page.elements if name == "section"]
    assert len(sections) == 3  # verdicts, what is not on the page, settings: no empty ones


def test_members_that_do_the_same_are_told_apart() -> None:
    """Each has a row of its own: no line lies on another."""
    points = dict.fromkeys(range(5), 100.0)
    figures = Figures(span_s=5.0, members=2, colours={"a": 0, "b": 1})
    figures.throughput = {"a": dict(points), "b": dict(points)}
    figures.marks = [Mark(2.0, "b", "killed", "killed")]
    page = Reader(str(throughput(figures)))
    drawn = [values.get("aria-label") for name, values in page.elements if name == "svg"]
    assert [title for title in drawn if title] == [
        "Messages delivered per second over time: a",
        "Messages delivered per second over time: b",
    ]
    assert "b killed at 2.0 s" in page.text  # the legend of the dashed line


def test_every_chart_has_a_legend() -> None:
    page = read_page(document(Report("", 0, 0, 0, [], [], Names([])), crowd()))
    legends = [values for name, values in page.elements if "legend" in (values.get("class") or "")]
    charts = [values for name, values in page.elements if values.get("class") == "strips ranges"]
    assert len(charts) == 1
    assert len(legends) >= 5  # throughput, latency, pairs, who limits whom, views
    assert "the stronger the more" in page.text


def test_settings_that_differ_are_told_by_member() -> None:
    usual = {"ringcast": "0.2.0", "multicast": {"tau_s": 0.5, "capacity": 16}}
    odd = {"ringcast": "0.1.9", "multicast": {"tau_s": 0.5}}
    report = Report("", 3, 0, 0, [], [], Names([]), settings={"a": usual, "b": usual, "c": odd})
    page = Reader(str(settings(report)))
    assert "0.2.0; c: 0.1.9" in page.words
    assert page.words[page.words.index("multicast.tau_s") + 1] == "0.5"
    assert page.words[page.words.index("multicast.capacity") + 1] == "16; c: not recorded"
    assert "Audited with ringcast" in page.text
    none = Reader(str(settings(Report("", 0, 0, 0, [], [], Names([])))))
    assert "Members recorded none" in none.text


def test_the_page_appears_whole_or_not_at_all(spark: SparkSession, tmp_path: Path) -> None:
    report = Report("", 0, 0, 0, [], [], Names([]))
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        write_page(spark, report, tmp_path / "taken")
    write_page(spark, report, tmp_path / "page.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "taken"]


def test_a_page_that_cannot_be_written_is_refused_before_spark_starts(tmp_path: Path) -> None:
    page = tmp_path / "nowhere" / "page.html"
    result = CliRunner().invoke(main, ["audit", str(tmp_path), "--report", str(page)])
    assert result.exit_code == 2
    assert f"nothing can be written in {page.parent}" in result.output
    assert "Spark" not in result.output


# Parts


def test_control_frames_are_told_by_what_they_are_for() -> None:
    kinds = ("ack", "want", "peer_repair_request", "watermark", "stability_query", "stable")
    figures = Figures(control={"a": {**dict.fromkeys(kinds, 0.5), "commit": 0.25, "hello": 0.1}})
    cells = [words for words in Reader(control(figures)).words if words.strip()]
    heads = ["member", "acks", "requests", "reminders", "reports", "commits", "group", "in all"]
    assert cells[-16:-8] == heads
    assert cells[-8:] == ["a", "500", "1,000", "500", "1,000", "250", "100", "3,350"]


def test_text_is_escaped_unless_it_was_made_here() -> None:
    assert text("<b> & \"'\n") == "&lt;b&gt; &amp; &quot;&#x27;\\n"
    assert text(Markup("<b>")) == "<b>"
    assert tag("i", "<", title='"', class_="a", aria_hidden="true") == (
        '<i title="&quot;" class="a" aria-hidden="true">&lt;</i>'
    )


@pytest.mark.parametrize(
    ("value", "rounded"),
    [(1, 1), (1.1, 2), (2.5, 5), (7, 10), (0.03, 0.05), (0.001, 0.001), (130, 200), (99_999, 1e5)],
)
def test_steps_are_round(value: float, rounded: float) -> None:
    assert round_up(value) == rounded


@given(st.floats(1e-3, 1e12))
def test_a_linear_axis_has_few_round_ticks_and_room_for_all(high: float) -> None:
    axis = linear(high, short)
    assert axis.high >= high * (1 - 1e-9)
    assert axis.high <= max(high * 2, high + 1e-3)
    assert 2 <= len(axis.ticks) <= 6
    step = axis.ticks[1][0]
    assert round_up(step) == pytest.approx(step)
    assert axis.place(0) == 0
    assert axis.place(axis.high) == 100


@given(st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=5))
def test_a_logarithmic_axis_encloses_its_values(values: list[float]) -> None:
    axis = logarithmic(values, milliseconds)
    assert axis.low <= min(values) * (1 + 1e-6)
    assert axis.high >= max(values) * (1 - 1e-6)
    assert [axis.place(axis.low), axis.place(axis.high)] == [0, 100]
    assert len({label for _, label in axis.ticks}) == len(axis.ticks)


@given(st.floats(1e-3, 1e7))
def test_a_time_axis_has_ticks_within_the_run(span_s: float) -> None:
    axis = time_axis(span_s)
    assert axis.ticks[0] == (0, f"0 {axis.ticks[0][1].split()[1]}")
    assert 2 <= len(axis.ticks) <= 9
    assert all(0 <= at <= span_s * (1 + 1e-6) for at, _ in axis.ticks)
    assert len({label for _, label in axis.ticks}) == len(axis.ticks)


def test_figures_as_people_read_them() -> None:
    assert [plain(value) for value in (0, 0.1234, 1.5, 12.34, 123.4, 1234.5, 100)] == [
        *("0", "0.123", "1.5", "12.3", "123", "1,234", "100"),
    ]
    assert [short(value) for value in (999, 1200, 12_345, 2.5e6, 3e9)] == [
        *("999", "1.2 k", "12.3 k", "2.5 M", "3 G"),
    ]
    assert [milliseconds(value) for value in (0, 0.05, 0.5, 12.3, 1500)] == [
        *("0 ms", "50 µs", "0.5 ms", "12.3 ms", "1.5 s"),
    ]
