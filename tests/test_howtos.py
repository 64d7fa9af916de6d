"""What the how-tos show and no other test runs: it compiles, names what there is, and does what the
page says."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click
import pytest

import ringcast
import ringcast.blocking
import ringcast.replicated
import ringcast.spark
import ringcast.testing
from ringcast.aio.sources import ListSource
from ringcast.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCS = Path(__file__).resolve().parents[1] / "docs"
ALONE: dict[str, Any] = {"discovery": ListSource([])}
AWAITING = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST
OBJECTS = {"group": ringcast.Group, "space": ringcast.replicated.Space}
"""What pages call so."""


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M)


BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(DOCS)}-{number}")
    for page in sorted(DOCS.rglob("*.md"))
    if page.parent.name != "decisions"
    for number, block in enumerate(blocks(page))
]


def unknown_names(block: str) -> Iterator[str]:
    """Names of ours that are not there, and arguments that nobody takes."""
    tree = compile(dedent(block), "page", "exec", AWAITING)
    known: dict[str, Any] = {"ringcast": ringcast, **OBJECTS}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ringcast"):
            names = [name.name for name in node.names]
            module = __import__(node.module or "", fromlist=names)  # or modules in it
            for name in node.names:
                if not hasattr(module, name.name):
                    yield f"{node.module}.{name.name}"
                known[name.asname or name.name] = getattr(module, name.name, None)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and found_in(node.value, known) is not None:
            owner = found_in(node.value, known)
            if isinstance(owner, (ModuleType, type)) and not hasattr(owner, node.attr):
                yield ast.unparse(node)
        if isinstance(node, ast.Call) and callable(called := found_in(node.func, known)):
            signature = inspect.signature(called)
            takes = set(signature.parameters)
            is_open = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
            for given in node.keywords:
                if given.arg is not None and given.arg not in takes and not is_open:
                    yield f"{ast.unparse(node.func)}({given.arg}=…)"


def found_in(node: ast.expr, known: dict[str, Any]) -> Any:
    """What stands there, as far as it is ours."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute):
        return getattr(found_in(node.value, known), node.attr, None)
    return None


@pytest.mark.parametrize("block", BLOCKS)
def test_pages_name_what_there_is(block: str) -> None:
    assert list(unknown_names(block)) == []


def test_what_is_not_there_is_found() -> None:
    for block in (
        "ringcast.jion('x')",
        "from ringcast import Grop",
        "await group.send(b'', header={})",
        "async with ringcast.join('x', recieve=False): pass",
    ):
        assert list(unknown_names(block)), block


PAGES = [
    DOCS.parent / "README.md",
    *sorted(page for page in DOCS.rglob("*.md") if page.name != "wire.md"),  # no page of commands
]


def wrong_words(line: str) -> list[str]:
    """Of a command: subcommands and options that it has not."""
    words = line.split()[1:]
    command: click.Command | None = main
    context = click.Context(main, info_name="ringcast")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, below, words = words[0], command.get_command(context, words[0]), words[1:]
        if below is None and command.name == "archive":  # GROUP DIR
            below = command.get_command(context, "keep")
        if below is None:
            return [name]
        context = click.Context(below, info_name=name, parent=context)
        command = below
    known = {"--help", "--version"}
    known.update(*([*each.opts, *each.secondary_opts] for each in command.params))
    return [word for word in words if word.startswith("--") and word not in known]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_pages_are_there(page: Path) -> None:
    lines = re.findall(r"(?:`|^\$ )(ringcast [a-z][^`#|&\n]*)", page.read_text(), re.M)
    assert {line: wrong for line in lines if (wrong := wrong_words(line))} == {}


def test_wrong_words_of_commands_are_found() -> None:
    assert wrong_words("ringcast exlpore ring") == ["exlpore"]
    assert wrong_words("ringcast join orders --guarantees total") == ["--guarantees"]
    assert wrong_words("ringcast archive orders archive/ --name archive-1") == []


READ = {
    "howto/headers.md-0": "17 b'...'",
    "howto/headers.md-2": "",
}
"""Blocks that send to the group and read from it for ever, and what they print first."""


def in_task(block: str, names: dict[str, Any]) -> Any:
    """A coroutine that does it."""
    body = "".join(f"    {line}\n" for line in block.splitlines())
    exec(f"async def task():\n{body}", names)
    return names["task"]()


@pytest.mark.parametrize("name", READ)
def test_headers_and_channels_are_read_as_shown(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page, _, number = name.rpartition("-")

    async def follow() -> None:
        async with ringcast.join("x", **ALONE) as group:
            shown = asyncio.create_task(in_task(blocks(DOCS / page)[int(number)], {"group": group}))
            await asyncio.sleep(0)  # it sends
            await group.leave()
            await shown

    asyncio.run(follow())
    assert capsys.readouterr().out.strip() == READ[name]


@pytest.mark.parametrize("page", ["howto/receipts.md"])
def test_receipts_are_had_as_shown(page: str) -> None:
    async def send() -> None:
        async with (
            ringcast.join("x", name="A", **ALONE) as a,
            ringcast.join("x", members=[str(a.me.address)], receive=False),
        ):
            await a.wait_for_view(lambda view: len(view) == 2)
            for block in blocks(DOCS / page):
                await asyncio.wait_for(in_task(block, {"group": a}), 30.0)

    asyncio.run(send())
