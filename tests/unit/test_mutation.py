"""Mutants: what operators make of small sources and what they leave alone; who is asked."""

from __future__ import annotations

import ast
import json
import os
from typing import TYPE_CHECKING

import pytest

from tools import reached
from tools.mutants import ALIVE, KILLED, Attempt, Results, Verdict
from tools.mutation import draw, mutants

if TYPE_CHECKING:
    from pathlib import Path

    from tools.mutation import Mutant


def made(source: str, operator: str = "") -> list[Mutant]:
    return [each for each in mutants({"x.py": source}) if operator in ("", each.operator)]


def inside(lines: str) -> str:
    """A function with these lines."""
    body = "".join(f"    {line}\n" for line in lines.splitlines())
    return f"def function(self, a, b, c):\n{body}"


def changes(lines: str, operator: str) -> set[str]:
    """The lines that mutants of this operator have in place of these, one after the other."""
    source = inside(lines)
    found = set()
    for mutant in made(source, operator):
        changed = mutant.apply(source).splitlines()[mutant.line - 1]
        found.add(changed.strip().removesuffix("\\").strip())
    return found


@pytest.mark.parametrize(
    ("operator", "line", "expected"),
    [
        ("compare", "f(a < b)", {"f(a <= b)"}),
        ("compare", "f(a >= b)", {"f(a > b)"}),
        ("compare", "f(a == b)", {"f(a != b)"}),
        ("compare", "f((a) is not (b))", {"f((a) is (b))"}),
        ("compare", "f(a not in b)", {"f(a in b)"}),
        ("compare", "f(a < b <= c)", {"f(a <= b <= c)", "f(a < b < c)"}),
        ("compare", 'f("≤" < b)', {'f("≤" <= b)'}),
        ("logic", "f(a and b or c)", {"f(a or b or c)", "f(a and b and c)"}),
        ("logic", "f(not (a or b))", {"f((a or b))", "f(not (a and b))"}),
        ("number", "f(a[0])", {"f(a[1])", "f(a[-1])"}),
        ("number", "f(1000)", {"f(2000)", "f(500)"}),
        ("flag", "f(a, b=True)", {"f(a, b=False)"}),
        ("arithmetic", "f(a + b * c)", {"f(a - b * c)", "f(a + b // c)"}),
        ("arithmetic", "f(a << b | c)", {"f(a >> b | c)", "f(a << b & c)"}),
        ("arithmetic", "a += b", {"a -= b"}),
        ("extreme", "f(min(a, b), any(c))", {"f(max(a, b), any(c))", "f(min(a, b), all(c))"}),
        ("branch", "f(a if b else c)", {"f(a if True else c)", "f(a if False else c)"}),
        ("branch", "f([each for each in a if each])", {
            "f([each for each in a if True])", "f([each for each in a if False])"
        }),
        ("branch", "if (a\n        and b):\n    f(a)", {"if (True", "if (False"}),
        ("branch", "while a:\n    f(a)", {"while False:"}),
        ("branch", "match a:\n    case 1 if b:\n        f(a)", {
            "case 1 if True:", "case 1 if False:"
        }),
        ("removed", "f(a)", {"pass"}),
        ("removed", "f(\n    a,\n)", {"pass"}),
        ("removed", "self.a = b", {"pass"}),
        ("removed", "a = b", {"pass"}),
        ("removed", "self.a += b", {"pass"}),
        ("removed", "raise ValueError(a + 1)", {"pass"}),
        ("removed", "for a in b:\n    continue", {"pass"}),
        ("removed", "del a[b]", {"pass"}),
        ("removed", "return a", {"pass"}),
    ],
)  # fmt: skip
def test_each_operator_changes_one_place(operator: str, line: str, expected: set[str]) -> None:
    assert changes(line, operator) == expected


def test_what_may_be_none_is_none_for_once() -> None:
    source = (
        "def f(a: int | None, *, b: str, c: int | None = 3) -> int | None:\n"
        "    return a\n"
        "def g(x, y):\n"
        "    f(x, b=y, c=x)\n"
        "    f(None, b=y)\n"
    )
    found = {mutant.change(source) for mutant in made(source, "absent")}
    assert found == {
        "return a  →  return None",
        "f(x, b=y, c=x)  →  f(None, b=y, c=x)",
        "f(x, b=y, c=x)  →  f(x, b=y, c=None)",
    }


@pytest.mark.parametrize(
    "source",
    [
        inside('"""One + 1."""'),
        inside("assert a < 1, b"),
        inside('f"{a + 1}"'),
        inside("yield READ_LOW"),  # a step of what is explored
        inside("first = b"),  # the first value of a name: whoever reads it fails
        "def __init__(self, a):\n    self.a = a\n",
        "def explain(self) -> list[str]:\n    return [str(self.a + 1)]\n",
        "def stats(self):\n    return self.a + 1\n",
        "def __repr__(self):\n    return self.a + 1\n",
        "@dataclass(frozen=True)\nclass X:\n    a: Annotated[int, Flag(4)]\n",
        "Either = int | str\n",
        "PATIENCE_NS = 3 * SECOND\nQUEUE_BYTES: Final = 1 << 20\n",
        "if TYPE_CHECKING:\n    A = 1\n",
    ],
)
def test_what_people_read_or_nobody_could_miss_is_left_alone(source: str) -> None:
    assert made(source) == []


LARGER = inside(
    "while a and not b:\n    for c in a:\n        if (c\n            > 1):\n"
    "            self.f(\n                c,\n            )\n            continue\n"
    "    a = c - 1\nreturn a"
)


def test_every_mutant_is_python_and_has_its_lines_where_they_were() -> None:
    found = made(LARGER)
    assert len(found) > 10
    for mutant in found:
        changed = mutant.apply(LARGER)
        ast.parse(changed)
        assert changed != LARGER
        assert changed.count("\n") == LARGER.count("\n")


def test_what_shows_at_import_is_told_from_what_shows_when_it_is_called() -> None:
    found = made("LIMIT = 7\ndef f(a=3):\n    return a + 5\n", "number")
    assert {mutant.was: mutant.is_live for mutant in found} == {"7": False, "3": False, "5": True}


# Drawing


def numbered(source: str, seed: int, count: int) -> list[str]:
    return [mutant.id for mutant in draw(made(source), seed, count)]


def test_a_seed_draws_the_same_and_another_seed_others() -> None:
    every = len(made(LARGER))
    assert numbered(LARGER, 1, every) == numbered(LARGER, 1, every)
    assert numbered(LARGER, 1, every) != numbered(LARGER, 2, every)
    assert len(set(numbered(LARGER, 1, every))) == every
    assert numbered(LARGER, 1, 5) == numbered(LARGER, 1, every)[:5]


def test_a_change_elsewhere_leaves_what_is_drawn() -> None:
    other = "def other(x):\n    return x < 1\n\n\n"
    before = numbered(LARGER, 1, 1000)
    after = numbered(other + LARGER, 1, 1000)
    assert len(after) > len(before)
    assert [each for each in after if each in before] == before


def test_equal_changes_in_one_function_are_told_apart() -> None:
    found = made(inside("f(a < b)\nf(a < b)"), "compare")
    assert len({mutant.id for mutant in found}) == 2


# Which tests are asked


BRANCHES = inside('"""Says so."""\nif a:\n    f(1)\nelse:\n    f(2)\nreturn [g(3) for _ in b]')


def test_blocks_note_that_they_run_and_every_mutant_knows_its_own() -> None:
    ran: list[str] = []
    names = {"_reached": ran.append, "f": lambda _: None, "g": lambda _: None}
    exec(compile(reached.marked("x.py", BRANCHES), "x.py", "exec"), names)
    assert ran == []
    names["function"](None, True, [1], None)  # type: ignore[operator]
    assert ran == ["x.py:2", "x.py:4", "x.py:7"]
    assert names["function"].__doc__ == "Says so."
    blocks = {mutant.line: f"x.py:{mutant.block}" for mutant in made(BRANCHES)}
    assert blocks == {3: "x.py:2", 4: "x.py:4", 6: "x.py:6", 7: "x.py:7"}


def recorded(folder: Path, tests: dict[str, float], *, lines: list[int]) -> reached.Reached:
    (folder / "reached").mkdir()
    told = {
        "imported": ["x.py:6"],
        "tests": {name: (s, {"x.py": lines}) for name, s in tests.items()},
    }
    (folder / "reached" / "key.json").write_text(json.dumps(told))
    known = reached.Reached()
    known.add(0, "key")
    return known


def test_the_quickest_tests_that_reach_it_are_asked_while_the_budget_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reached, "BUILD", tmp_path)
    known = recorded(tmp_path, {"slow": 9.0, "slower": 12.0, "quick": 0.1}, lines=[2, 4])
    one = next(mutant for mutant in made(BRANCHES) if mutant.line == 4)
    asked, count = known.tests(one)
    assert ([test.id for test in asked], count) == (["quick", "slow"], 3)
    other = one._replace(block=6)
    assert (known.is_live(one), known.is_live(other)) == (True, False)
    assert known.tests(one._replace(block=7))[0] == []
    assert known.tests(other)[0] == asked  # it runs at import: by who reaches its file


def test_a_mutant_with_which_tests_cannot_be_imported_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe()
    monkeypatch.setenv("MUTANT_PIPE", str(writing))
    pid = os.fork()
    if not pid:
        Attempt([("tests/test_x.py::test_it", 0.1)]).run({})
    os.close(writing)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    with open(reading) as pipe:
        assert pipe.read() == "tests cannot be imported"


def test_what_was_killed_is_tried_again_only_if_its_file_differs(tmp_path: Path) -> None:
    path, drawn = tmp_path / "seed.jsonl", made(BRANCHES)[:3]
    before = Results(path, {"x.py": BRANCHES}, "tests")
    assert before.load(drawn) == drawn
    before.add(Verdict(drawn[0], KILLED, "one"))
    before.add(Verdict(drawn[1], ALIVE, "two"))
    assert before.report(0) == 1
    assert Results(path, {"x.py": BRANCHES}, "tests").load(drawn) == drawn[2:]
    assert Results(path, {"x.py": BRANCHES}, "others").load(drawn) == drawn[1:]
    assert Results(path, {"x.py": BRANCHES + "#"}, "tests").load(drawn) == drawn
