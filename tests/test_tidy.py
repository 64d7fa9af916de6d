"""What a reviewer should not have to look for: import direction, what the core may not touch."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "ringcast"
BENCHMARKS = ROOT / "benchmarks"

LEVELS = [
    {"errors", "model", "texts"},
    {"checks"},
    {"arguments", "config", "config_file", "events", "options", "private", "settings"},
    {"wire", "window", "core"},
    {"protocols"},
    {"datagrams", "node"},
    {"trace", "rules"},
    {"aio", "sim"},
    {"blocking", "replicated"},
    {"explore", "opentelemetry", "prometheus", "spark", "testing"},
    {"cli", "__main__"},
]
"""Who may import whom: a package imports its own level and those before it, never a later one."""

APART = {("rules", "protocols"), ("rules", "node")}

PURE = (
    *("wire", "window", "core", "protocols", "datagrams", "node"),
    *("model", "events", "checks", "config", "options", "settings", "errors", "texts"),
)
PURE_FILES = {f"replicated/{name}.py" for name in ("encoding", "machine", "structures")}
FORBIDDEN = {
    "asyncio", "concurrent", "datetime", "multiprocessing", "os", "queue", "random", "selectors",
    "signal", "socket", "subprocess", "threading", "time", "_thread",
}  # fmt: skip
"""What would make a run depend on more than its inputs."""

ALLOWED = {
    ("window/concurrent.py", "threading"),
    ("window/concurrent.py", "time"),
    ("window/threads.py", "threading"),
}
"""The one structure that is for threads, and lets them wait with a time-out."""

HEAVY = {"cryptography", "numpy", "pandas", "pyarrow", "pyspark"}
UNSAFE = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}


def imports_of(source: str) -> set[str]:
    """Every module named in an import statement, wherever it stands."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def level_of(module: str) -> int:
    return next(at for at, level in enumerate(LEVELS) if module in level)


def complaints(path: str, source: str) -> list[str]:
    """What is wrong with the imports of the file at this path below src/ringcast."""
    package = path.split("/")[0].removesuffix(".py")
    found = []
    for name in sorted(imports_of(source)):
        top, _, rest = name.partition(".")
        if top == "ringcast" and rest and package != "__init__":
            other = rest.split(".")[0]
            if level_of(other) > level_of(package):
                found.append(f"{path} imports {name}: {package} comes before {other}")
            if (package, other) in APART:
                found.append(f"{path} imports {name}: a judge takes nothing from the judged")
        if top == "benchmarks" and path != "cli/bench.py":
            found.append(f"{path} imports {name}: it is not installed with the library")
        is_pure = package in PURE or path in PURE_FILES
        if is_pure and top in FORBIDDEN and (path, top) not in ALLOWED:
            found.append(f"{path} imports {name}: bytes, time and randomness come as arguments")
        if top in UNSAFE:
            found.append(f"{path} imports {name}: it can run what it reads")
    return found


FILES = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES)
def test_imports_go_one_way(path: str) -> None:
    assert complaints(path, (SOURCE / path).read_text()) == []


def test_the_check_finds_what_it_is_for() -> None:
    assert complaints("protocols/multicast.py", "import socket")
    assert complaints("protocols/multicast.py", "def f():\n    from time import monotonic")
    assert complaints("window/send.py", "from ringcast.protocols import multicast")
    assert complaints("node.py", "from ringcast.trace.observe.run import RunObserver")
    assert complaints("rules/sync.py", "from ringcast.protocols.unicast import Unicast")
    assert complaints("wire/codec.py", "import pickle")
    assert complaints("replicated/machine.py", "from time import monotonic")
    assert complaints("sim/processes.py", "from benchmarks.workload import Workload")
    assert complaints("wire/codec.py", "from ringcast.model import View") == []


def test_a_plain_import_is_light() -> None:
    """`import ringcast` and the command line bring in nothing heavy."""
    code = "import sys, ringcast, ringcast.cli, ringcast.node; print(*sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    loaded = {name.split(".")[0] for name in output.stdout.split()}
    assert "ringcast" in loaded
    assert loaded & HEAVY == set()


def test_requirements_name_versions_and_hashes_only() -> None:
    for path in (ROOT / "requirements").glob("*.txt"):
        text = path.read_text()
        assert "--hash=sha256:" in text
        assert not re.search(r"https?://|--(extra-)?index-url|--find-links", text), path


def test_readme_fits() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_no_two_test_files_have_one_name() -> None:
    """pytest collects the whole tree at once in `make proof`, and takes them for one module."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_no_merge_was_left_half_done() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    texts = (ROOT / name for name in tracked.stdout.splitlines() if not name.endswith(".parquet"))
    mark = re.compile(rb"^(<{7}|>{7}) ", re.MULTILINE)
    assert [path for path in texts if path.exists() and mark.search(path.read_bytes())] == []


RETIRED = {
    "Highest": "Watermark",
    "[Vv]ot(e|es|ed|er|ers|ing|e_now)": "StabilityReport, report, stability round, stabilize",
    "VoteWanted": "StabilityQuery",
    "RepairWanted|[Rr]elayed": "PeerRepairRequest, PeerRepair",
    "HeldUp": "JoinerBlocked",
    "State(Ask|Request|Taken|Stop|Part)": "StateAck, StateCancel, StateData",
    "Beat|Alive": "Heartbeat, Pong",
    "Outsider|[Mm]isfits?|strayed|diverged": "NonMember, incompatible, elsewhere",
    "beginners|half_sent": "unsent_bytes",
    "(Out|In|out|in)box(es)?|SenderEntry|ReceiverEntry": "MulticastSender, UnicastSender, …",
    "SystemChannel|FragmentsTaken": "ControlChannel, FragmentsDelivered",
    "[Gg]ifts?": "snapshot marker",
    "LET_GO|let_go|let(s|ting)? go": "purge (sender), release (receiver)",
    r"resent|nacked|(sent|asked)[_\s]again": "retransmitted, nack_sent",
    r"pinned[ _]by|h(eld|olds?|olding)( (?!in\b)[a-z]+){0,3}\s+back": "limited by, blocked, delays",
    "h(eld|olds?) ((senders?|others|them|it|itself|whom) )?up(?! to)": "blocked",
    "(was|were) left out|left out (by mistake|for good)|left out of (the|a) view": "excluded",
    "short[ _]way": "fast path",
    "[Pp]redicates?|Folds?": "rule",
    "taken_total|unread_messages": "delivered_total, undelivered_messages",
    "[Ee]states?|Estate(Wanted|Run)": "orphaned stream",
    "[Tt]ake-?overs?": "view change, flush",
    "Discover(Reply)?|MergeRequest|Welcome|ViewIs|ViewAck": "Hello, Propose, Install, Installed",
    "HalfWanted|CommitWanted|StreamStart|Reunion|reunited": "view change, flush, cut, part",
    "LetIn|Admitted|ViewAgreed|Digest(Agreed|Wanted|Taken)|Settled": "Begin",
    "Excluded": "Closed, ViewInstalled.unconfirmed",
}
"""Words that the project no longer uses, and those that took their place (docs/glossary.md)."""
PAGES = sorted(
    [ROOT / "README.md"]
    + [
        path
        for folder in ("src", "benchmarks", "docs", "examples")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".md")
    ]
)


def retired_words(text: str) -> list[str]:
    return [
        f"{found.group()}: say {word}"
        for pattern, word in RETIRED.items()
        for found in re.finditer(rf"(?<![\w-])_?({pattern})(?!\w)", text)
    ]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_retired_word_comes_back(path: Path) -> None:
    assert retired_words(path.read_text()) == []


def test_retired_words_are_found_where_they_are_names() -> None:
    assert retired_words("self._inboxes: a sender lets go of it, by votes")
    assert retired_words("it is sent\nagain")
    assert retired_words("a slow disk holds the whole group back")
    assert retired_words("in the box, a highest seqno, forgetting, devoted") == []


@pytest.mark.parametrize("path", FILES)
def test_files_are_short(path: str) -> None:
    assert len((SOURCE / path).read_text().splitlines()) <= 450


CEILINGS = {
    "aio": 9059,  # sending, reading, presence, connecting apart; how threads read, from blocking.py
    "benchmarks": 5492,  # calls of messages to one member and of bursts; --conf wherever Spark runs
    "cli": 4310,  # cells of a terminal; ringcast publish
    "core": 700,  # who observes a member looks at its deadlines
    "explore": 4505,  # explorations tell how far they are
    "protocols": 11515,  # one order of total messages; a sleeper that takes a view to go on
    "replicated": 1582,  # dict, lock, counter, leader, and the space that they share
    "rules": 4853,  # pairs of real members are judged instant by instant; the one order
    "sim": 5706,  # what simulated applications send may have headers; total messages
    "spark": 8711,  # 22 guarantees more of real members; the sink, whose tables need no PySpark 4.1
    "trace": 6142,  # messages to one member, requests; what killed tasks leave among staged batches
    "window": 1776,  # runs are cut where messages with headers begin
    "wire": 3489,  # headers; batches, marks
}
"""Lines that a package may have. They only shrink."""


@pytest.mark.parametrize("package", sorted(set(CEILINGS) - {"benchmarks"}))
def test_packages_fit(package: str) -> None:
    lines = [len(path.read_text().splitlines()) for path in (SOURCE / package).rglob("*.py")]
    assert sum(lines) <= CEILINGS[package]


def test_the_benchmarks_fit() -> None:
    lines = {path: len(path.read_text().splitlines()) for path in BENCHMARKS.rglob("*.py")}
    assert [path.name for path in lines if lines[path] > 450] == []
    assert sum(lines.values()) <= CEILINGS["benchmarks"]
