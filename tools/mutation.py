"""Mutants: small changes of our sources, each of which some test ought to notice.

A mutant is one change of one place:

  compare    < to <=, == to !=, is to is not, in to not in, and back
  logic      and to or, and back; a `not` removed
  number     n to n + 1 and n - 1; one above 64 to its double and its half
  flag       True to False, and back
  arithmetic + to -, * to //, << to >>, & to |, and back; += to -=, and back
  extreme    min to max, any to all, and back
  branch     the condition of an if, a guard or a comprehension is True, or False; that of a while
             is False
  absent     what may be None is None: an argument, or what is returned
  removed    a call, assignment, return, raise, del, continue or break is not there

What only people read is left as it is: docstrings, annotations, texts, and functions that return
texts or figures (`is_told`). So are asserts, constants that are measures, and the first value of a
name or of an attribute, whose absence is an error.

A mutant's id depends on its function, on what is changed there and into what, and on which of equal
places it is, and on nothing else. `draw` goes by ids: a change elsewhere leaves the others where
they are in the draw.
"""

from __future__ import annotations

import ast
import io
import tokenize
from bisect import bisect_left
from collections import Counter
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

COMPARED = {
    **{"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="},
    **{"is": "is not", "is not": "is", "in": "not in", "not in": "in"},
}
ARITHMETIC = {
    **{"+": "-", "-": "+", "*": "//", "//": "*", "%": "+", "<<": ">>", ">>": "<<"},
    **{"&": "|", "|": "&", "^": "&"},
}
EXTREMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
MEASURES = ("_BYTES", "_MAX", "_NS", "_S")
"""Constants with such names are measures: with another value no rule is another."""
LARGE = 64
"""Above this a number is a measure, and one more is no other rule."""
TOLD = {"stats", "check_invariants", "check_only"}
COMPOUND = (ast.If, ast.For, ast.While, ast.Try, ast.With, ast.Match)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

Function = ast.FunctionDef | ast.AsyncFunctionDef
Optionals = dict[str, list[tuple[dict[str, bool], list[bool]]]]
"""By what is called: of each definition, which arguments may be None, by name and by place."""


class Mutant(NamedTuple):
    path: str
    scope: str
    """The outermost function, or the class, that it is in; "" at the level of the module."""
    operator: str
    line: int
    start: int
    stop: int
    """From where to where, in characters of the source, it differs."""
    was: str
    now: str
    is_live: bool
    """It lies in the body of a function, and shows when that is called."""
    block: int
    """The first line of the statements that always run together with it; 0 outside of functions."""
    id: str = ""

    def apply(self, source: str) -> str:
        """The source with this change. Lines stay where they are."""
        assert source[self.start : self.stop] == self.was
        missing = self.was.count("\n") - self.now.count("\n")
        is_statement = self.operator == "removed"
        filler = ("\n" if is_statement else " \\\n") * missing
        return f"{source[: self.start]}{self.now}{filler}{source[self.stop :]}"

    def change(self, source: str) -> str:
        """Its line as it was and as it is, in one line."""
        was, now = (text.splitlines()[self.line - 1] for text in (source, self.apply(source)))
        now = now.removesuffix("\\")
        return f"{was.strip()}  →  {now.strip()}"


def mutants(sources: Mapping[str, str]) -> list[Mutant]:
    """All of these sources, by path."""
    optionals = optional_arguments(sources.values())
    found: list[Mutant] = []
    for path, source in sources.items():
        found += _identified(_File(path, source, optionals).find())
    return found


def draw(found: Iterable[Mutant], seed: int, count: int) -> list[Mutant]:
    """So many of them, in an order that depends on the seed alone."""
    return sorted(found, key=lambda mutant: _digest(f"{seed} {mutant.id}"))[:count]


def blocks(body: Sequence[ast.stmt]) -> Iterator[tuple[int, ast.stmt]]:
    """Which statements of this body begin a block, and at what place: the first one, and those
    behind a compound statement, which may end the function."""
    is_first = True
    for at, statement in enumerate(body):
        if is_first:
            yield at, statement
        is_first = isinstance(statement, COMPOUND)


def bodies(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """The lists of statements right below this node."""
    for name in ("body", "orelse", "finalbody"):
        part = getattr(node, name, None)
        if isinstance(part, list) and part and isinstance(part[0], ast.stmt):
            yield part
    for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield from bodies(part)


def is_told(function: Function) -> bool:
    """Whether it says something to people, or checks what cannot be."""
    if function.name in TOLD or function.name.startswith("__repr"):
        return True
    return function.returns is not None and ast.unparse(function.returns) in (
        *("str", "list[str]", "str | None"),
    )


def optional_arguments(sources: Iterable[str]) -> Optionals:
    """Who takes None for what, by annotations."""
    found: Optionals = {}
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
                by_name = {ast.unparse(each.target): _may_be_none(each) for each in fields}
                if by_name:
                    found.setdefault(node.name, []).append((by_name, list(by_name.values())))
                for each in node.body:
                    if isinstance(each, FUNCTIONS) and each.name == "__init__":
                        found.setdefault(node.name, []).append(_arguments(each))
            elif isinstance(node, FUNCTIONS):
                found.setdefault(node.name, []).append(_arguments(node))
    return found


def _arguments(function: Function) -> tuple[dict[str, bool], list[bool]]:
    given = function.args.posonlyargs + function.args.args
    own = [each for each in given if each.arg not in ("self", "cls")]
    every = own + function.args.kwonlyargs
    return {each.arg: _may_be_none(each) for each in every}, [_may_be_none(each) for each in own]


def _may_be_none(node: ast.AnnAssign | ast.arg) -> bool:
    return node.annotation is not None and _has_none(node.annotation)


def _has_none(annotation: ast.expr) -> bool:
    if isinstance(annotation, ast.BinOp):
        return _has_none(annotation.left) or _has_none(annotation.right)
    return isinstance(annotation, ast.Constant) and annotation.value is None


def _identified(found: Iterable[Mutant]) -> Iterator[Mutant]:
    seen: Counter[str] = Counter()
    for mutant in found:
        text = "\n".join((mutant.path, mutant.scope, mutant.operator, mutant.was, mutant.now))
        seen[text] += 1
        yield mutant._replace(id=_digest(f"{text}\n{seen[text]}")[:8])


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=8).hexdigest()


class _File:
    """The mutants of one file."""

    def __init__(self, path: str, source: str, optionals: Optionals) -> None:
        self.path, self.source, self._optionals = path, source, optionals
        self._lines = source.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        self._tokens = [
            (self._starts[token.start[0] - 1] + token.start[1], token.string)
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type in (tokenize.NAME, tokenize.OP)
        ] + [(len(source), "")]
        self._scope: list[str] = []
        self._function: Function | None = None
        self._is_live = False
        self._block = 0
        self._bound: set[str] = set()

    def find(self) -> Iterator[Mutant]:
        yield from self._statements(ast.parse(self.source).body)

    # Where it is

    def _place(self, line: int, column: int) -> int:
        text = self._lines[line - 1]
        return self._starts[line - 1] + len(text.encode()[:column].decode())

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._place(node.lineno, node.col_offset)
        return start, self._place(node.end_lineno, node.end_col_offset)

    def _between(self, left: ast.expr, right: ast.expr) -> tuple[int, int]:
        """The operator that stands between the two."""
        at = bisect_left(self._tokens, (self._span(left)[1], ""))
        while self._tokens[at][1] in "()":
            at += 1
        start, text = self._tokens[at]
        after, following = self._tokens[at + 1]
        if (text, following) in (("is", "not"), ("not", "in")):
            return start, after + len(following)
        return start, start + len(text)

    def _make(self, operator: str, span: tuple[int, int], now: str) -> Mutant:
        start, stop = span
        line = self.source.count("\n", 0, start) + 1
        function = self._function
        assert (function is not None) >= self._is_live
        scope = ".".join(self._scope)
        block = self._block if self._is_live else 0
        was = self.source[start:stop]
        return Mutant(self.path, scope, operator, line, start, stop, was, now, self._is_live, block)

    def _replaced(self, operator: str, node: ast.expr | ast.stmt, now: str) -> Mutant:
        return self._make(operator, self._span(node), now)

    # Statements

    def _statements(self, body: Sequence[ast.stmt]) -> Iterator[Mutant]:
        leaders = {at: statement.lineno for at, statement in blocks(body)}
        for at, statement in enumerate(body):
            self._block = leaders.get(at, self._block)
            before = self._block
            yield from self._statement(statement)
            self._block = before

    def _statement(self, node: ast.stmt) -> Iterator[Mutant]:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from self._defined(node)
            case ast.ClassDef(name=name, body=body):
                self._scope.append(name)
                yield from self._statements(body)
                self._scope.pop()
            case ast.Import() | ast.ImportFrom() | ast.Assert() | ast.Global() | ast.Nonlocal():
                pass
            case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Expr(value=ast.Constant()):
                pass
            case ast.Assign(targets=[ast.Name(id=name)]) if name.endswith(MEASURES):
                pass
            case ast.AnnAssign(target=target, value=value):
                if not ast.unparse(target).endswith(MEASURES):
                    yield from self._expression(value)
            case ast.Raise():  # what it says is for people
                yield from self._removal(node)
            case ast.If(test=test) | ast.While(test=test):
                yield from self._condition(test, is_loop=isinstance(node, ast.While))
                yield from self._parts(node)
            case ast.AugAssign(op=_, value=value, target=target):
                yield from self._removal(node)
                at = bisect_left(self._tokens, (self._span(target)[1], ""))
                start, sign = self._tokens[at]
                if (other := ARITHMETIC.get(sign[:-1])) and not _is_text(value):
                    yield self._make("arithmetic", (start, start + len(sign)), f"{other}=")
                yield from self._expression(value)
            case ast.Return(value=value):
                yield from self._removal(node)
                if value is not None and not _is(value, None) and self._returns_none():
                    yield self._replaced("absent", value, "None")
                yield from self._expression(value)
            case _:
                if isinstance(node, ast.Match):
                    for case in node.cases:
                        if case.guard is not None:
                            yield from self._condition(case.guard)
                            yield from self._expression(case.guard)
                yield from self._removal(node)
                yield from self._parts(node)

    def _defined(self, node: Function) -> Iterator[Mutant]:
        for default in (*node.args.defaults, *node.args.kw_defaults):
            yield from self._expression(default)
        if is_told(node):
            return
        if self._function is not None:  # one within another: it belongs to that
            yield from self._statements(node.body)
            return
        self._scope.append(node.name)
        self._function, self._is_live = node, True
        self._bound = {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
        yield from self._statements(node.body)
        self._function, self._is_live = None, False
        self._scope.pop()

    def _returns_none(self) -> bool:
        function = self._function
        return function is not None and function.returns is not None and _has_none(function.returns)

    def _parts(self, node: ast.stmt) -> Iterator[Mutant]:
        """What is below a statement: its expressions, then its bodies."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.withitem):
                yield from self._expression(child.context_expr)
            elif isinstance(child, ast.expr):
                yield from self._expression(child)
        for body in bodies(node):
            yield from self._statements(body)

    def _removal(self, node: ast.stmt) -> Iterator[Mutant]:
        if self._function is None:
            return
        targets: list[ast.expr] = []
        match node:
            case ast.Expr(value=ast.Yield(value=ast.Name(id=name))) if name.isupper():
                return  # a step, which only the explorer looks at
            case ast.Expr(value=ast.Call() | ast.Await() | ast.Yield() | ast.YieldFrom()):
                pass
            case ast.Return() | ast.Raise() | ast.Continue() | ast.Break() | ast.Delete():
                pass
            case ast.Assign(targets=[*targets]):
                pass
            case ast.AugAssign():
                pass
            case _:
                return
        leaves = (each for target in targets for each in _leaves(target))
        names = [each.id for each in leaves if isinstance(each, ast.Name)]
        is_first = any(name not in self._bound for name in names)
        self._bound.update(names)
        is_setup = self._function.name == "__init__" and targets
        if not (is_first or is_setup):
            yield self._replaced("removed", node, "pass")

    # Expressions

    def _condition(self, test: ast.expr, *, is_loop: bool = False) -> Iterator[Mutant]:
        if not isinstance(test, ast.Constant):
            for now in ("False",) if is_loop else ("True", "False"):
                yield self._replaced("branch", test, now)

    def _expression(self, node: ast.AST | None) -> Iterator[Mutant]:
        """Of this expression, and of what is in it."""
        match node:
            case None | ast.JoinedStr():
                return
            case ast.Compare(left=left, comparators=comparators):
                for one, other in zip((left, *comparators), comparators, strict=False):
                    start, stop = self._between(one, other)
                    sign = " ".join(self.source[start:stop].split())
                    yield self._make("compare", (start, stop), COMPARED[sign])
            case ast.BoolOp(op=op, values=values):
                now = "or" if isinstance(op, ast.And) else "and"
                for one, other in pairwise(values):
                    yield self._make("logic", self._between(one, other), now)
            case ast.UnaryOp(op=ast.Not()):
                start, _ = self._span(node)
                yield self._make("logic", (start, start + len("not ")), "")
            case ast.Constant(value=bool(value)):
                yield self._replaced("flag", node, str(not value))
            case ast.Constant(value=int(value)):
                others = (value * 2, value // 2) if value > LARGE else (value + 1, value - 1)
                for number in others:
                    yield self._replaced("number", node, str(number))
            case ast.BinOp(left=left, right=right, op=op):
                span = self._between(left, right)
                is_type = isinstance(op, ast.BitOr) and not self._is_live
                if not (is_type or _is_text(left) or _is_text(right)):
                    sign = self.source[slice(*span)]
                    if sign in ARITHMETIC:
                        yield self._make("arithmetic", span, ARITHMETIC[sign])
            case ast.Call():
                yield from self._call(node)
            case ast.IfExp(test=test):
                yield from self._condition(test)
            case ast.comprehension(ifs=ifs):
                for test in ifs:
                    yield from self._condition(test)
        assert node is not None
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.expr, ast.comprehension, ast.keyword)):
                yield from self._expression(child)

    def _call(self, node: ast.Call) -> Iterator[Mutant]:
        match node.func:
            case ast.Name(id=name) if name in EXTREMES:
                yield self._replaced("extreme", node.func, EXTREMES[name])
            case ast.Name(id=name) | ast.Attribute(attr=name):
                pass
            case _:
                return
        known = self._optionals.get(name, ())
        given: list[tuple[int | str, ast.expr]] = list(enumerate(node.args))
        given += [(each.arg, each.value) for each in node.keywords if each.arg is not None]
        for key, value in given:
            if isinstance(value, ast.Starred):
                return
            if known and not _is(value, None) and all(_takes_none(each, key) for each in known):
                yield self._replaced("absent", value, "None")


def _takes_none(known: tuple[dict[str, bool], list[bool]], key: int | str) -> bool:
    by_name, by_place = known
    if isinstance(key, int):
        return key < len(by_place) and by_place[key]
    return by_name.get(key, False)


def _is(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _is_text(node: ast.expr) -> bool:
    """A text, or a list: of these less is nothing."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (str, bytes))
    return isinstance(node, (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp))


def _leaves(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, (ast.Tuple, ast.List)):
        for each in target.elts:
            yield from _leaves(each)
    else:
        yield target.value if isinstance(target, ast.Starred) else target
