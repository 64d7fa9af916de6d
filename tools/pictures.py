"""make pictures: reports, terminals and the site as screens show them, checked.

Four processes exchange orders under 5 % loss at level "full". One is stopped for a while, another
is killed. The page of that run, and of a copy with a planted duplicate, is opened in a headless
Chromium (CHROMIUM=… if it is not on the PATH) and looked at: nothing may complain, nothing may be
fetched, nothing may stick out to the side, and the verdicts must be on the first screen.

Commands run on terminals of 80 and 120 columns (screens.py), which no line may leave. The recording
of `ringcast demo --quick` is the README's picture, docs/demo.svg: it is made anew.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import TYPE_CHECKING, NamedTuple

import click
from chromium import browser
from screens import broken, record, recording, still

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chromium import Tab

ROOT = Path(__file__).resolve().parent.parent
RECORDING = ROOT / "docs" / "demo.svg"
PAGES = ("index.html", "reference/group.html")
"""Of the site: the first page, and one of the reference."""
COLUMNS = (80, 120)
COMMANDS = {
    "demo": ("demo", "--quick"),
    "simulate": ("simulate", "--seeds", "0:20"),
    "matrix": ("simulate", "--seeds", "0:4", "--matrix"),
    "bench": ("bench", "multicast", "--seconds", "0.2", "--size", "100", "--size", "1000"),
    "refuse": ("bench", "refuse"),
    "members": ("members", "orders"),
    "top": ("top", "orders", "--interval", "0.5"),
}
SEEN_AFTER_S = {"top": 5.0}
"""What goes on until it is stopped, and what a look at it takes."""

TRADE = {"op": "trade", "seconds": 9.0, "batch": 20, "rate": 1500}
SLOW, VICTIM = 1, 2
PAGE_BYTES_MAX = 2_000_000


class Screen(NamedTuple):
    name: str
    width: int
    height: int
    scale: float
    is_dark: bool
    rows: int
    """How many verdicts it must show at first, if there are so many; and all that are violated."""


SCREENS = (
    Screen("desktop", 1280, 800, 1.0, is_dark=False, rows=16),
    Screen("dark", 1280, 800, 1.0, is_dark=True, rows=16),
    Screen("phone", 390, 844, 2.0, is_dark=False, rows=10),
    Screen("phone-dark", 390, 844, 2.0, is_dark=True, rows=10),
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
    help="Look at this report alone; without it a run is made.",
)
@click.option(
    "--site",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Look at the documentation site in this directory, too.",
)
def main(directory: Path, page: Path | None, site: Path | None) -> None:
    """Draw and check all screens. Example: python tools/pictures.py build/pictures"""
    command = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if command is None:
        raise click.ClickException("no chromium: apt-get install chromium, or set CHROMIUM=PATH")
    directory.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="ringcast-pictures-") as scratch,
        browser(command) as tab,
    ):
        pages = {"": page} if page is not None else _make_pages(directory, Path(scratch))
        wrong = []
        for kind, path in pages.items():
            size = path.stat().st_size
            if size > PAGE_BYTES_MAX:
                wrong.append(f"{path.name} has {size:,} bytes")
            for screen in SCREENS:
                name = f"{kind}-{screen.name}" if kind else screen.name
                click.echo(f"looking at {name} …")
                wrong += [f"{name}: {what}" for what in _look(tab, path, screen, directory / name)]
        if page is None:
            wrong += _draw_terminals(tab, directory, Path(scratch))
        for name in PAGES if site is not None else ():
            assert site is not None
            tab.resize(1280, 800, scale=1.0, is_dark=False)
            tab.open(site / name)
            tab.picture(directory / f"site-{Path(name).stem}.png", whole=False)
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
    due = max(min(rows, screen.rows), tab.evaluate(_VIOLATED))
    if not rows or seen < due:
        wrong.append(f"{seen} of {rows} verdicts are on the first screen, not {due}")
    if tab.evaluate(_OVERFLOW) > 0 or tab.evaluate(_STICKS_OUT):
        wrong.append(f"is wider than the screen: {tab.evaluate(_STICKS_OUT)}")
    tab.picture(picture.with_suffix(".png"), whole=False)
    tab.evaluate("document.querySelectorAll('details').forEach(at => at.open = false)")
    tab.picture(picture.with_name(f"{picture.name}-whole.png"), whole=True)
    return wrong


def _draw_terminals(tab: Tab, directory: Path, scratch: Path) -> list[str]:
    """Every command at each width; what is wrong with it. The README's picture is renewed."""
    wrong = []
    commands = COMMANDS | {"audit": ("audit", str(scratch / "violated"))}
    with _group(scratch):
        for name, arguments in commands.items():
            for columns in COLUMNS:
                click.echo(f"looking at {name}-{columns} …")
                pieces = record(
                    (sys.executable, "-m", "ringcast", *arguments),
                    columns=columns,
                    stop_after_s=SEEN_AFTER_S.get(name),
                )
                drawn = directory / f"{name}-{columns}.svg"
                drawn.write_text(still(pieces, columns))
                wrong += [f"{drawn.stem}: {line!r} is broken" for line in broken(pieces, columns)]
                for is_dark in (False, True):
                    tab.resize(columns * 9, 600, scale=1.0, is_dark=is_dark)
                    tab.open(drawn)
                    tab.picture(drawn.with_suffix(".dark.png" if is_dark else ".png"), whole=True)
                if name == "demo" and columns == min(COLUMNS):
                    RECORDING.write_text(recording(pieces, columns, "$ ringcast demo --quick"))
    return wrong


@contextmanager
def _group(scratch: Path) -> Iterator[None]:
    """A group for those who look at it: one sends more than another, which is stopped, takes."""
    runtime = scratch / "runtime"
    runtime.mkdir(mode=0o700)
    os.environ["XDG_RUNTIME_DIR"] = str(runtime)
    settings = scratch / "patient.toml"
    settings.write_text("[multicast]\ncapacity = 16\n[membership]\nsuspect_after_s = 600.0\n")
    command = (sys.executable, "-m", "ringcast", "join", "orders", "--config", str(settings))
    started = []
    try:
        for name in ("web-1", "web-2", "web-3"):
            process = Popen((*command, "--name", name), stdin=PIPE, stdout=PIPE, stderr=DEVNULL)
            started.append(process)
            assert process.stdout is not None
            process.stdout.readline()  # it is in a view
        started[-1].send_signal(signal.SIGSTOP)
        assert started[0].stdin is not None
        started[0].stdin.write(b"".join(b"order %d\n" % number for number in range(40)))
        started[0].stdin.flush()
        yield
    finally:
        for process in started:
            process.kill()
            process.communicate()


def _make_pages(directory: Path, scratch: Path) -> dict[str, Path]:
    from ringcast.spark.audit import audit
    from ringcast.spark.page import write_page
    from ringcast.spark.session import session

    traces = {"held": scratch / "held", "violated": scratch / "violated"}
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
