"""Gather the pages of the documentation site in one folder, for whatever builds it.

These are docs/ as it is, the README as the first page, CHANGELOG, CONTRIBUTING and SECURITY, the
examples with their source, a list of the decisions, and all commands as click knows them.
"""

from __future__ import annotations

import json
import re
import shutil
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ringcast.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
PLACES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "NOTICE": "index.md",
    "examples": "examples.md",
    "docs/decisions": "decisions/index.md",
    "docs/howto": "howto/join.md",
    "docs/protocols": "protocols/views.md",
}
"""Where the site has what links of the repository lead to; a folder is its first page."""


BESIDE = ("site.css", "demo.svg")
"""What pages show, and is no page."""


def pages() -> dict[str, str]:
    """The text of every page, by its path on the site."""
    folder = ROOT / "docs"
    found = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.md")}
    for page, text in found.items():
        top = "../" * page.count("/")
        link = rf"]({top}examples.md#\1py"
        found[page] = re.sub(r"\]\((?:\.\./)+examples/(\w+)\.py", link, text)
    for source, page in PLACES.items():
        if source.endswith(".md"):
            text = (ROOT / source).read_text()
            found[page] = re.sub(r"(?<=\]\()(?![a-z]+:|#)[^)#]+", _on_site, text)
    return {
        **found,
        "examples.md": _examples(),
        "decisions/index.md": _decisions(),
        "reference/commands.md": "\n".join(["# Command line\n", *_described(main, "ringcast")]),
    }


def _on_site(link: re.Match[str]) -> str:
    return PLACES.get(link.group(), link.group().removeprefix("docs/"))


def _examples() -> str:
    folder = ROOT / "examples"
    text = re.sub(r"\((\w+)\.(py|ipynb)\)", r"(#\1\2)", (folder / "README.md").read_text())
    sources = [(path.name, path.read_text()) for path in sorted(folder.glob("*.py"))]
    for path in folder.glob("*.ipynb"):
        cells = json.loads(path.read_text())["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        sources.append((path.name, "\n\n".join(code) + "\n"))
    return "\n".join(
        [text, *(f"## {name}\n\n```python\n{source}```\n" for name, source in sources)]
    )


def _decisions() -> str:
    """Their headings begin with their numbers."""
    lines = ["# Decisions\n", "Context, options, choice and consequence of what is hard to undo.\n"]
    for path in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        number, _, title = path.read_text().splitlines()[0].removeprefix("# ").partition(". ")
        lines.append(f"{number}. [{title}]({path.name})")
    return "\n".join(lines) + "\n"


def _described(
    command: click.Command, name: str, parent: click.Context | None = None
) -> Iterator[str]:
    """A command in Markdown, and below it those that it has."""
    context = click.Context(command, info_name=name, parent=parent)
    if parent:
        level = "#" * (2 if parent.parent is None else 3)
        yield f"\n{level} {context.command_path}\n"
    yield f"```\n{' '.join([context.command_path, *command.collect_usage_pieces(context)])}\n```\n"
    for paragraph in re.split(r"\n\s*\n", command.help or ""):
        lines = [line.strip() for line in paragraph.splitlines() if line.strip()]
        if lines and lines[0] == "\b":  # as it stands: examples, below a line that says so
            yield "\n".join(["```console", *(f"$ {line}" for line in lines[2:]), "```\n"])
        elif lines and lines[0].startswith("Example: "):
            yield f"```console\n$ {' '.join(lines).removeprefix('Example: ')}\n```\n"
        else:
            yield escape(" ".join(lines)) + "\n"
    records = [found for param in command.params if (found := param.get_help_record(context))]
    if any(meaning for _, meaning in records):
        yield "| option | meaning |\n|---|---|"
    for option, meaning in records:
        if meaning:
            option, meaning = (escape(text).replace("|", "&#124;") for text in (option, meaning))
            yield f"| <code>{option}</code> | {meaning} |"
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            inner = command.get_command(context, below)
            assert inner is not None
            yield from _described(inner, below, context)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def gather(folder: Path) -> None:
    """Write all pages into this folder, in place of what is there."""
    shutil.rmtree(folder, ignore_errors=True)
    for page, text in pages().items():
        path = folder / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in BESIDE:
        shutil.copy(ROOT / "docs" / name, folder)


if __name__ == "__main__":
    gather()
