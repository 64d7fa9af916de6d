"""Which tests reach which code, so that a mutant meets those that may notice it, the nearest first.

Each file of tests runs once with sources whose blocks note that they run: at the beginning of a
body, and behind every compound statement. What was noted stays in build/mutants/reached, in a file
for each file of tests; its name follows from that file and from all sources.
"""

from __future__ import annotations

import ast
import builtins
import importlib.abc
import importlib.machinery
import json
import subprocess
import sys
import time
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import pytest

from tools.mutation import blocks, bodies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType

    from tools.mutation import Mutant

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "ringcast"
BUILD = ROOT / "build" / "mutants"
PACKAGES = ("core", "node.py", "protocols", "window", "wire")

WHOLE = {
    *("test_repair_cost.py", "test_views_links.py", "test_views_parting.py"),
    *("test_views_random.py", "test_views_steps.py"),
}
"""Tests of units that run whole groups: not the nearest ones."""
SIMULATIONS = ("test_receive_own", "test_sim_group", "test_sim_state", "test_sim_uniform")

BUDGET_S = 15.0
"""A mutant gets so much of its tests, measured in what they take without it."""
PYTEST = ("-p", "no:terminal", "-p", "no:cacheprovider", "-s", "-o", "addopts=", "-m", "not proof")


def digest(*parts: bytes) -> str:
    return blake2b(b"\0".join(parts), digest_size=8).hexdigest()


def read_sources() -> dict[str, str]:
    """By path below src/ringcast."""
    paths = [
        path for package in PACKAGES for path in (SOURCE / package, *(SOURCE / package).rglob("*"))
    ]
    return {
        path.relative_to(SOURCE).as_posix(): path.read_text("utf-8")
        for path in sorted(paths)
        if path.suffix == ".py"
    }


def test_files() -> list[tuple[str, ...]]:
    """Those that are asked, in tiers: the nearest first."""
    units = [path for name in ("core", "protocols", "window", "wire") for path in _tests(name)]
    units += (ROOT / "tests" / "unit").glob("test_node*.py")
    scripts = ROOT / "tests" / "test_scripts.py"
    middle = [path for path in units if path.name in WHOLE]
    middle += (ROOT / "tests" / "properties").glob("test_*.py")
    middle += (ROOT / "tests" / "scenarios").glob("test_*.py")
    last = [ROOT / "tests" / "sim" / f"{name}.py" for name in SIMULATIONS]
    first = [path for path in (*units, scripts) if path.name not in WHOLE]
    return [
        tuple(sorted(path.relative_to(ROOT).as_posix() for path in tier))
        for tier in (first, middle, last)
    ]


def _tests(unit: str) -> Iterator[Path]:
    return (ROOT / "tests" / "unit" / unit).glob("test_*.py")


# Modules with other code than their files have


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, code: CodeType) -> None:
        super().__init__(name, path)
        self.code = code

    def get_code(self, fullname: str) -> CodeType:
        return self.code


class Finder(importlib.abc.MetaPathFinder):
    """Finds modules of ours as `compiled` has them, which knows them by path."""

    def __init__(self, compiled: Callable[[str], CodeType | None]) -> None:
        self._compiled = compiled

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith("ringcast."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin is not None:
            code = self._compiled(spec.origin)
            if code is not None:
                spec.loader = _Loader(name, spec.origin, code)
        return spec


def marked(path: str, source: str) -> ast.Module:
    """This source, with every block of its functions noting that it runs."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            _mark(path, node)
    return ast.fix_missing_locations(tree)


def _mark(path: str, node: ast.AST) -> None:
    for body in bodies(node):
        for at, leader in reversed(list(blocks(body))):
            is_docstring = isinstance(leader, ast.Expr) and isinstance(leader.value, ast.Constant)
            key = ast.Constant(f"{path}:{leader.lineno}")
            note = ast.Expr(ast.Call(ast.Name("_reached", ast.Load()), [key], []))
            body.insert(at + is_docstring, ast.copy_location(note, leader))
        for statement in body:
            if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                _mark(path, statement)


# Which test reaches what


class Recorder:
    """A plugin of pytest: what each test reaches, and what it takes."""

    def __init__(self, keys: dict[str, str]) -> None:
        self._keys = keys
        self._seen: set[str] = set()
        self._imported: list[str] = []
        self._tests: dict[str, Any] = {}
        self._has_failed = False
        vars(builtins)["_reached"] = self._seen.add

    def pytest_collection_finish(self) -> None:
        self._imported = sorted(self._seen)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._has_failed |= report.failed

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Iterator[None]:
        self._seen.clear()
        self._has_failed = False
        began = time.process_time()
        result = yield
        took = round(time.process_time() - began, 3)
        if self._has_failed:
            click.echo(f"it fails without any change, and is not asked: {item.nodeid}")
        else:
            by_path: dict[str, list[int]] = {}
            for path, _, line in (each.rpartition(":") for each in self._seen):
                by_path.setdefault(path, []).append(int(line))
            self._tests[item.nodeid] = took, by_path
        name = _file_of(item)
        if nextitem is None or _file_of(nextitem) != name:
            record = {"imported": self._imported, "tests": self._tests}
            _record_path(self._keys[name]).write_text(json.dumps(record))
            cost = sum(took for took, _ in self._tests.values())
            click.echo(f"recorded {len(self._tests)} tests of {name}, {cost:.1f} s")
            self._tests = {}
        return result


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _record_path(key: str) -> Path:
    return BUILD / "reached" / f"{key}.json"


def record(keys: dict[str, str]) -> None:
    """What the tests of these files reach, into files of these names."""

    def compiled(origin: str) -> CodeType | None:
        path = Path(origin)
        if not path.is_relative_to(SOURCE):
            return None
        name = path.relative_to(SOURCE).as_posix()
        is_ours = name.startswith(tuple(f"{package}/" for package in PACKAGES)) or name in PACKAGES
        source = path.read_text("utf-8")
        return compile(marked(name, source), origin, "exec", dont_inherit=True) if is_ours else None

    sys.meta_path.insert(0, Finder(compiled))
    pytest.main([*PYTEST, *keys], plugins=[Recorder(keys)])


class Test(NamedTuple):
    id: str
    tier: int
    cpu_s: float
    blocks: int

    @property
    def rank(self) -> tuple[int, float, int, str]:
        return self.tier, round(self.cpu_s, 1), self.blocks, self.id


class Reached:
    """Which tests reach which block, as it was recorded."""

    def __init__(self, budget_s: float = BUDGET_S) -> None:
        self._budget_s = budget_s
        self._by_block: dict[tuple[str, int], list[Test]] = {}
        self._by_file: dict[str, list[Test]] = {}
        self.imported: set[str] = set()

    def add(self, tier: int, key: str) -> None:
        kept = json.loads(_record_path(key).read_text())
        self.imported.update(kept["imported"])
        for name, (cpu_s, by_path) in kept["tests"].items():
            test = Test(name, tier, cpu_s, sum(map(len, by_path.values())))
            for path, lines in by_path.items():
                self._by_file.setdefault(path, []).append(test)
                for line in lines:
                    self._by_block.setdefault((path, line), []).append(test)

    def is_live(self, mutant: Mutant) -> bool:
        """Whether it shows in a process that has imported everything."""
        return mutant.is_live and f"{mutant.path}:{mutant.block}" not in self.imported

    def tests(self, mutant: Mutant) -> tuple[list[Test], int]:
        """Those that are asked, and how many might be."""
        found = self._by_block.get((mutant.path, mutant.block), [])
        if not self.is_live(mutant):
            found = found + self._by_file.get(mutant.path, [])
        ordered = sorted(set(found), key=lambda test: test.rank)
        asked: list[Test] = []
        spent = 0.0
        for test in ordered:
            spent += test.cpu_s
            if spent > self._budget_s and asked:
                break
            asked.append(test)
        return asked, len(ordered)


def reached(
    tiers: Sequence[Sequence[str]], sources: dict[str, str], jobs: int, budget_s: float
) -> Reached:
    """As recorded for these very files; what is not yet recorded is."""
    everything = digest(*(text.encode() for text in sources.values()))
    keys = {
        name: digest((ROOT / name).read_bytes(), everything.encode())
        for tier in tiers
        for name in tier
    }
    (BUILD / "reached").mkdir(parents=True, exist_ok=True)
    missing = [name for name, key in keys.items() if not _record_path(key).exists()]
    if missing:
        click.echo(f"{len(missing)} files of tests: recording what they reach (once)")
    running = []
    for at in range(min(jobs, len(missing))):
        given = json.dumps({name: keys[name] for name in missing[at::jobs]})
        running.append(subprocess.Popen(ourselves("--record", given), cwd=ROOT))
    for process in running:
        process.wait()
    found = Reached(budget_s)
    for tier, names in enumerate(tiers):
        for name in names:
            if _record_path(keys[name]).exists():
                found.add(tier, keys[name])
            else:
                click.echo(f"nothing is known of {name}: does it run by itself?")
    return found


def ourselves(*arguments: str) -> list[str]:
    """A process of ours."""
    return [sys.executable, "-m", "tools.mutants", *arguments]
