"""make pictures: the report of a real run as desktop, phone and dark screens show it, checked.

Four processes exchange orders under 5 % loss at level "full". One is stopped for a while, another
is killed. The page of that run, and of a copy with a planted duplicate, is opened in a headless
Chromium (CHROMIUM=… if it is not on the PATH) and looked at: nothing may complain, nothing may be
fetched, nothing may stick out to the side, and the verdicts must be on the first screen.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
from chromium import browser

if TYPE_CHECKING:
    from chromium import Tab

TRADE = {"op": "trade", "seconds": 9.0, "batch": 20, "rate": 1500}
SLOW, VICTIM = 1, 2
PAGE_BYTES_MAX = 2_000_000
ROWS_SEEN_MIN = 16
"""How many verdicts the first screen must show, if there are so many; and all that are not ok."""


class Screen(NamedTuple):
    name: str
    width: int
    height: int
    scale: float
    is_dark: bool


SCREENS = (
    Screen("desktop", 1280, 800, 1.0, is_dark=False),
    Screen("dark", 1280, 800, 1.0, is_dark=True),
    Screen("phone", 390, 844, 2.0, is_dark=False),
    Screen("phone-dark", 390, 844, 2.0, is_dark=True),
)

_ROWS_SEEN = """[...document.querySelectorAll('#verdicts tbody tr')].filter(
    row => row.getBoundingClientRect().bottom <= innerHeight).length"""
_ROWS = "document.querySelectorAll('#verdicts tbody tr').length"
_VIOLATED = "document.querySelectorAll('#verdicts tbody tr.violated').length"
_OVERFLOW = "document.documentElement.scrollWidth - innerWidth"
_STICKS_OUT = """[...document.querySelectorAll('body *')].filter(
    at => !at.closest('.scroll, pre, .unseen') && at.getBoundingClientRect().right > innerWidth + 1
).map(at => at.tagName + '.' + (at.getAttribute('class') || '')).slice(0, 5).join(', ')"""


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--page",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Look at this page; without it a run is made.",
)
def main(directory: Path, page: Path | None) -> None:
    """Draw and check the report. Example: python tools/pictures.py build/pictures"""
    command = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if command is None:
        raise click.ClickException("no chromium: apt-get install chromium, or set CHROMIUM=PATH")
    directory.mkdir(parents=True, exist_ok=True)
    pages = {"": page} if page is not None else _make_pages(directory)
    wrong = []
    with browser(command) as tab:
        for kind, path in pages.items():
            size = path.stat().st_size
            if size > PAGE_BYTES_MAX:
                wrong.append(f"{path.name} has {size:,} bytes")
            for screen in SCREENS:
                name = f"{kind}-{screen.name}" if kind else screen.name
                click.echo(f"looking at {name} …")
                wrong += [f"{name}: {what}" for what in _look(tab, path, screen, directory / name)]
    for what in wrong:
        click.secho(what, fg="red")
    if wrong:
        sys.exit(1)
    click.echo(f"all as it should be; the pictures are in {directory}")


def _look(tab: Tab, page: Path, screen: Screen, picture: Path) -> list[str]:
    """What is wrong with the page on this screen; two pictures of it are left behind."""
    tab.complaints.clear()
    tab.requests.clear()
    tab.resize(screen.width, screen.height, scale=screen.scale, is_dark=screen.is_dark)
    tab.open(page)
    wrong = [f"the console says {complaint}" for complaint in tab.complaints]
    wrong += [f"fetches {url}" for url in tab.requests if url != page.resolve().as_uri()]
    rows, seen = tab.evaluate(_ROWS), tab.evaluate(_ROWS_SEEN)
    due = max(min(rows, ROWS_SEEN_MIN), tab.evaluate(_VIOLATED))
    if not rows or seen < due:
        wrong.append(f"{seen} of {rows} verdicts are on the first screen, not {due}")
    if tab.evaluate(_OVERFLOW) > 0 or tab.evaluate(_STICKS_OUT):
        wrong.append(f"is wider than the screen: {tab.evaluate(_STICKS_OUT)}")
    tab.picture(picture.with_suffix(".png"), whole=False)
    tab.evaluate("document.querySelectorAll('details').forEach(at => at.open = false)")
    tab.picture(picture.with_name(f"{picture.name}-whole.png"), whole=True)
    return wrong


def _make_pages(directory: Path) -> dict[str, Path]:
    from ringcast.spark.audit import audit
    from ringcast.spark.page import write_page
    from ringcast.spark.session import session

    with tempfile.TemporaryDirectory(prefix="ringcast-pictures-") as scratch:
        traces = {"held": Path(scratch, "held"), "violated": Path(scratch, "violated")}
        click.echo("four processes, 5 % loss, one is slow and one is killed …")
        _run_cluster(traces["held"])
        _plant_duplicate(traces["held"], traces["violated"])
        click.echo("Spark audits the run and draws the report …")
        spark = session("ringcast pictures")
        try:
            pages = {}
            for kind, trace in traces.items():
                pages[kind] = directory / f"{kind}.html"
                write_page(spark, audit(spark, trace), pages[kind])
        finally:
            spark.stop()
    return pages


def _plant_duplicate(trace: Path, planted: Path) -> None:
    """Copy the trace, with the last delivery of the first member repeated."""
    from ringcast.trace.footer import Recording
    from ringcast.trace.segments import Segment, segment_paths, write_segment

    shutil.copytree(trace, planted)
    path = next(path for path in segment_paths(planted) if Segment(path).info.is_last)
    with Segment(path) as segment:
        info, rows = segment.info, segment.rows()
    at = max(at for at, row in enumerate(rows) if row.event == "deliver")
    rows = [*rows[: at + 1], *rows[at:]]
    rows = [row._replace(idx=info.first_idx + place) for place, row in enumerate(rows)]
    owner = {item.name: getattr(info, item.name) for item in fields(Recording)}
    path.unlink()
    write_segment(planted, Recording(**owner), rows, is_last=True)


def _run_cluster(trace: Path) -> None:
    from ringcast.sim.processes import Cluster

    with Cluster(
        members=4, group="orders", loss=0.05, record=trace, record_level="full"
    ) as cluster:
        cluster.tell_all(TRADE)
        for _ in range(4):
            time.sleep(0.5)
            cluster.processes[SLOW].send_signal(signal.SIGSTOP)
            time.sleep(0.3)
            cluster.processes[SLOW].send_signal(signal.SIGCONT)
        time.sleep(2.0)
        cluster.kill(VICTIM)
        sent = dict(zip(cluster.names, cluster.hear_all(), strict=True))
        expect = {name: answer["sent"] for name, answer in sent.items()}
        cluster.tell_all({"op": "finish", "expect": expect})
        cluster.hear_all()


if __name__ == "__main__":
    main()
