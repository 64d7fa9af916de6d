"""Do tests notice when a line is changed? `make mutants` changes 300, one at a time.

Mutants (tools/mutation.py says which there are) are drawn by a seed from the wire formats, windows,
core, protocols and nodes. Each is tried by the tests that reach it, the nearest and quickest first:
those of units and scripts, then properties and scenarios, then a few simulations. A test that fails
has noticed it: the mutant is killed. One that nothing notices is alive: a test is missing, or the
code does nothing, or the mutant is equivalent, which tools/equivalent_mutants.toml says with the
reason. A test that does not end is no judgement: such mutants are listed apart. Golden records are
not asked; they notice everything, and say nothing of what is right.

Which test reaches what is recorded once (tools/reached.py). A process that has imported all tests
then forks for every mutant, and replaces the code of one function in the fork: no file changes, and
nothing is left behind. What takes effect at import runs in a process of its own.

    make mutants COUNT=300 SEED=1       draw so many; a run that was interrupted goes on
    make mutants FIRST=20               the first of them only
    make mutants ONLY=protocols/total   of one package, or one file
    make mutants REPLAY=a3f9c1e2        one by its number, with what its tests say
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, NamedTuple

import click
import pytest

from tools.mutation import draw, mutants
from tools.reached import (
    BUDGET_S,
    BUILD,
    PYTEST,
    ROOT,
    SOURCE,
    Finder,
    digest,
    ourselves,
    reached,
    read_sources,
    record,
    test_files,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tools.mutation import Mutant
    from tools.reached import Reached

EQUIVALENT = ROOT / "tools" / "equivalent_mutants.toml"
APART = ("protocols/total", "protocols/views")
"""Packages within packages that are counted for themselves."""

SLOW_S, SLOWER = 2.0, 10
"""A test takes so long, and so many times what it takes without a mutant, before it is stopped."""
WALL = 50
"""On a busy machine an hour has so many minutes of ours."""
MEMORY_BYTES = 4 << 30
STOPPED = {signal.SIGPROF, signal.SIGALRM}

KILLED, ALIVE, SLOW = "killed", "alive", "timed out"


# Trying mutants


class Attempt:
    """A plugin of pytest, and what a fork does: runs tests until one fails."""

    def __init__(self, tests: Sequence[tuple[str, float]], *, is_quiet: bool = True) -> None:
        self._tests = tests
        self._is_quiet = is_quiet
        self._failed = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self._failed:
            self._failed = report.nodeid
            if not self._is_quiet:
                click.echo(report.longreprtext)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.run({item.nodeid: item for item in session.items})
        return True

    def run(self, items: dict[str, pytest.Item]) -> None:
        """Ends the process: its status is 1 if a test fails, whose name it says first."""
        known = [(items[name], cpu_s) for name, cpu_s in self._tests if name in items]
        if len(known) < len(self._tests):
            _end("tests cannot be imported")
        for at, (item, cpu_s) in enumerate(known):
            following = known[at + 1][0] if at + 1 < len(known) else None
            limit = SLOW_S + SLOWER * cpu_s
            signal.setitimer(signal.ITIMER_PROF, limit)
            signal.setitimer(signal.ITIMER_REAL, WALL * limit)
            if not self._is_quiet:
                click.echo(item.nodeid)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failed:
                break
        _end(self._failed)


def _end(failed: str) -> None:
    if failed:
        os.write(int(os.environ["MUTANT_PIPE"]), failed.encode())
    os._exit(1 if failed else 0)


def attempt_anew(job: Path) -> None:
    """One mutant in a process of its own, as `job` says."""
    given = json.loads(job.read_text())
    code = compile(given["source"], given["path"], "exec", dont_inherit=True)
    sys.meta_path.insert(0, Finder(lambda origin: code if origin == given["path"] else None))
    files = sorted({name.partition("::")[0] for name, _ in given["tests"]})
    attempt = Attempt(given["tests"], is_quiet=given["is_quiet"])
    pytest.main([*PYTEST, *files], plugins=[attempt])
    _end("nothing can be imported")


class Verdict(NamedTuple):
    mutant: Mutant
    verdict: str
    by: str
    """The test that noticed it; of others, how many were asked."""


class Hunt:
    """A plugin of pytest: once all tests are imported, a fork for each mutant."""

    def __init__(
        self,
        drawn: Sequence[Mutant],
        sources: dict[str, str],
        known: Reached,
        tell: Callable[[Verdict], None],
        *,
        jobs: int,
        is_quiet: bool = True,
    ) -> None:
        self._drawn, self._sources, self._known, self._tell = drawn, sources, known, tell
        self._jobs, self._is_quiet = jobs, is_quiet
        self._functions: dict[tuple[str, str], list[FunctionType]] = {}
        self._items: dict[str, pytest.Item] = {}
        self._running: dict[int, tuple[Mutant, int, int, str]] = {}

    def run(self) -> None:
        asked = [test.id for mutant in self._drawn for test in self._known.tests(mutant)[0]]
        files = sorted({name.partition("::")[0] for name in asked})
        pytest.main([*PYTEST, *files], plugins=[self])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            click.echo(report.longreprtext)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._items = {item.nodeid: item for item in session.items}
        for each in gc.get_objects():
            if isinstance(each, FunctionType):
                code = each.__code__
                if code.co_filename.startswith(str(SOURCE)):
                    name = code.co_filename, code.co_qualname
                    self._functions.setdefault(name, []).append(each)
        gc.freeze()
        for mutant in self._drawn:
            if len(self._running) == self._jobs:
                self._reap()
            self._start(mutant)
        while self._running:
            self._reap()
        return True

    def _start(self, mutant: Mutant) -> None:
        asked, count = self._known.tests(mutant)
        if not asked:
            self._tell(Verdict(mutant, ALIVE, "no test reaches it"))
            return
        asking = f"{len(asked)} of {count} tests that reach it" if asked else ""
        slot = next(at for at in range(self._jobs) if at not in self._slots())
        reading, writing = os.pipe()
        pid = os.fork()
        if pid:
            os.close(writing)
            self._running[pid] = mutant, slot, reading, asking
            return
        try:
            os.set_inheritable(writing, True)
            os.environ["MUTANT_PIPE"] = str(writing)
            self._attempt(mutant, [(test.id, test.cpu_s) for test in asked], BUILD / f"slot-{slot}")
        except BaseException as error:
            _end(f"{type(error).__name__}: {error}")

    def _slots(self) -> set[int]:
        return {slot for _, slot, _, _ in self._running.values()}

    def _reap(self) -> None:
        pid, status = os.wait()
        mutant, slot, reading, asking = self._running.pop(pid)
        with open(reading, "rb") as pipe:
            by = pipe.read().decode()
        shutil.rmtree(BUILD / f"slot-{slot}", ignore_errors=True)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) in STOPPED:
            self._tell(Verdict(mutant, SLOW, asking))
        elif status:
            self._tell(Verdict(mutant, KILLED, by or f"the process ends with {status}"))
        else:
            self._tell(Verdict(mutant, ALIVE, asking))

    def _attempt(self, mutant: Mutant, tests: Sequence[tuple[str, float]], folder: Path) -> None:
        """In the fork."""
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
        if self._is_quiet:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, 1)
            os.dup2(nothing, 2)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        signal.setitimer(signal.ITIMER_PROF, 20 * SLOW_S)
        path = str(SOURCE / mutant.path)
        source = mutant.apply(self._sources[mutant.path])
        if self._known.is_live(mutant) and self._replace(mutant, path, source):
            attempt = Attempt(tests, is_quiet=self._is_quiet)
            next(iter(self._items.values())).config.pluginmanager.register(attempt)
            attempt.run(self._items)
        job = folder / "job.json"
        given = {"path": path, "source": source, "tests": tests, "is_quiet": self._is_quiet}
        job.write_text(json.dumps(given))
        os.execv(sys.executable, ourselves("--job", str(job)))

    def _replace(self, mutant: Mutant, path: str, source: str) -> bool:
        """Whether the function that it is in has its code now."""
        functions = self._functions.get((path, mutant.scope), [])
        begun = [each.__code__.co_firstlineno for each in functions]
        first = max((line for line in begun if line <= mutant.line), default=0)
        code = _code_at(compile(source, path, "exec", dont_inherit=True), mutant.scope, first)
        if code is None:
            return False
        for function in functions:
            if function.__code__.co_firstlineno == first:
                if function.__code__.co_freevars != code.co_freevars:
                    return False
                function.__code__ = code
        return True


def _code_at(code: CodeType, name: str, line: int) -> CodeType | None:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            if (each.co_qualname, each.co_firstlineno) == (name, line):
                return each
            if (found := _code_at(each, name, line)) is not None:
                return found
    return None


# What came of it


class Results:
    """One run, kept in a file: what is known already, and how far it is."""

    def __init__(self, path: Path, sources: dict[str, str], tests: str) -> None:
        self._path, self._sources, self._tests = path, sources, tests
        self.verdicts: dict[str, Verdict] = {}
        self._began = time.monotonic()
        self._todo = self._done = 0

    def load(self, drawn: Sequence[Mutant]) -> list[Mutant]:
        """Which of them are to be tried: a mutant that was killed stays so as long as its file is
        the same; others may meet new tests."""
        by_id = {mutant.id: mutant for mutant in drawn}
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        for kept in map(json.loads, lines):
            mutant = by_id.get(kept["id"])
            if mutant is None or kept["source"] != self._source(mutant):
                continue
            if kept["verdict"] == KILLED or kept["tests"] == self._tests:
                self.verdicts[mutant.id] = Verdict(mutant, kept["verdict"], kept["by"])
        left = [mutant for mutant in drawn if mutant.id not in self.verdicts]
        self._todo = len(left)
        return left

    def add(self, found: Verdict) -> None:
        mutant, verdict, by = found
        self.verdicts[mutant.id] = found
        line = {"id": mutant.id, "verdict": verdict, "by": by, "tests": self._tests}
        with self._path.open("a") as file:
            file.write(json.dumps(line | {"source": self._source(mutant)}) + "\n")
        self._done += 1
        if verdict != KILLED:
            click.echo(_told(found, self._sources[mutant.path]))
        if self._done % 10 == 0 or self._done == self._todo:
            passed_s = time.monotonic() - self._began
            left = passed_s / self._done * (self._todo - self._done) / 60
            click.echo(f"{self._done} of {self._todo}, about {left:.0f} min to go", err=True)

    def _source(self, mutant: Mutant) -> str:
        return digest(self._sources[mutant.path].encode())

    def report(self, equivalent: int) -> int:
        """How many are alive or have timed out."""
        counts: Counter[tuple[str, str]] = Counter()
        for mutant, verdict, _ in self.verdicts.values():
            for package in {package_of(mutant), "all"}:
                counts[package, verdict] += 1
        for package in sorted({package for package, _ in counts}):
            killed, alive, slow = (counts[package, each] for each in (KILLED, ALIVE, SLOW))
            share = f"{100 * killed / ((killed + alive) or 1):.0f} %"
            late = f", {slow} timed out" if slow else ""
            click.echo(f"{package}: {killed} of {killed + alive} killed, {share}{late}")
        if equivalent:
            click.echo(f"{equivalent} more are equivalent: {EQUIVALENT.relative_to(ROOT)}")
        left = [each for each in self.verdicts.values() if each.verdict != KILLED]
        left.sort(key=lambda each: (each.verdict, each.mutant.path, each.mutant.line))
        for each in left:
            click.echo(_told(each, self._sources[each.mutant.path]))
        return len(left)


def _told(found: Verdict, source: str) -> str:
    mutant, verdict, by = found
    place = f"src/ringcast/{mutant.path}:{mutant.line}"
    return f"{verdict} {mutant.id} {place} {mutant.scope} ({by})\n    {mutant.change(source)}"


def package_of(mutant: Mutant) -> str:
    apart = (name for name in APART if mutant.path.startswith(f"{name}/"))
    return next(apart, mutant.path.partition("/")[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="another draws others")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--first", type=int, metavar="N", help="only the first N of those drawn")
    parser.add_argument("--only", default="", metavar="PACKAGE", help="window, protocols/total, …")
    parser.add_argument("--replay", metavar="NUMBER", help="this mutant, and what tests say of it")
    parser.add_argument("--tests", nargs="+", metavar="FILE", help="ask only these")
    parser.add_argument("--budget", type=float, default=BUDGET_S, metavar="S", help="for each")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--record", help=argparse.SUPPRESS)
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    os.chdir(ROOT)
    if given.record:
        record(json.loads(given.record))
        return 0
    if given.job:
        attempt_anew(given.job)
    sources = read_sources()
    every = mutants(sources)
    equivalent = tomllib.loads(EQUIVALENT.read_text("utf-8"))
    for gone in equivalent.keys() - {mutant.id for mutant in every}:
        click.echo(f"no mutant has the number {gone} any more: {EQUIVALENT.relative_to(ROOT)}")
    if given.replay:
        drawn = [mutant for mutant in every if mutant.id == given.replay]
        if not drawn:
            parser.error(f"no mutant has the number {given.replay}: has its function changed?")
    else:
        every = [mutant for mutant in every if mutant.path.startswith(given.only)]
        drawn = draw(every, given.seed, given.count)[: given.first]
    asked = [mutant for mutant in drawn if mutant.id not in equivalent or given.replay]
    tiers = [tuple(given.tests)] if given.tests else test_files()
    known = reached(tiers, sources, given.jobs, given.budget)
    tests = digest(*(Path(name).read_bytes() for tier in tiers for name in tier))
    path = BUILD / ("replayed.jsonl" if given.replay else f"seed-{given.seed}.jsonl")
    results = Results(path, sources, tests)
    if given.replay:
        path.unlink(missing_ok=True)
    left = results.load(asked)
    click.echo(f"{len(left)} of {len(drawn)} mutants to try, of {len(every)} that there are")
    if left:
        hunt = Hunt(
            left, sources, known, results.add, jobs=given.jobs, is_quiet=given.replay is None
        )
        hunt.run()
    return 1 if results.report(len(drawn) - len(asked)) else 0


if __name__ == "__main__":
    sys.exit(main())
