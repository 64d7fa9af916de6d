"""The tables of docs/howto/configure.md, from where settings and arguments are declared:
`python -m tools.settings_page` writes them between their marks."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringcast.arguments import PROGRAM, JoinOptions
from ringcast.config import settings
from ringcast.config_file import PRESETS, SECTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).resolve().parent.parent / "docs" / "howto" / "configure.md"
LINKS = {
    "transport": "transports.md",
    "key_file": "../security.md",
    "insecure": "../security.md",
    "record": "audit.md",
    "metrics": "watching.md#figures-for-prometheus",
    "memory_limit": "#how-much-memory",
    "spin_s": "requests.md#shorter-round-trips",
    "multicast capacity": "#windows-on-long-paths",
    "retain": "choosing-a-purge-rule.md",
    "min_members": "small-groups.md",
    "when_few": "small-groups.md",
    "send_time": "headers.md",
    "record_payloads": "archive.md",
    "file_mode": "../security.md#files",
    "signals": "shutting-down.md",
}
"""Where there is more about it."""


def described(kind: type[Any]) -> dict[str, str]:
    """What stands below each field of a class, in one line."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for one, below in zip(body.body, body.body[1:], strict=False):
        match one, below:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                line = " ".join(inspect.cleandoc(text).split())
                found[name] = line.replace("None: ", "Not given: ")
    return found


def shown(value: object) -> str:
    """A default, as a file has it."""
    if value is None:
        return "none"
    return f"`{json.dumps(value)}`" if isinstance(value, str | bool | int | float | tuple) else ""


def linked(key: str, *names: str) -> str:
    place = next((LINKS[name] for name in names if name in LINKS), None)
    return f"`{key}`" if place is None else f"[`{key}`]({place})"


def all_settings() -> Iterator[str]:
    yield "| key | if not given | what it does |"
    yield "|---|---|---|"
    for section, kind in SECTIONS.items():
        defaults = {field.name: field.default for field in fields(kind)}
        texts = described(kind)
        for key in settings(kind):
            place = linked(f"[{section}] {key}", key, f"{section} {key}")
            yield f"| {place} | {shown(defaults[key])} | {texts[key]} |"


def all_arguments() -> Iterator[str]:
    yield "| argument | if not given | what it does |"
    yield "|---|---|---|"
    texts = described(JoinOptions)
    for name, one in PROGRAM.items():
        default = "" if one.default is None else f"`{one.default!r}`"
        yield f"| {linked(name, name)} | {default} | {texts[name]} |"


def all_presets() -> Iterator[str]:
    yield f"| | {' | '.join(PRESETS)} |"
    yield f"|{'---|' * (len(PRESETS) + 1)}"
    told = [(section, key) for of in PRESETS.values() for section in of for key in of[section]]
    keys = {section: [field.name for field in fields(SECTIONS[section])] for section in SECTIONS}
    for section, key in ((s, k) for s in SECTIONS for k in keys[s] if (s, k) in told):
        default = next(one.default for one in fields(SECTIONS[section]) if one.name == key)
        cells = [
            "no reports"
            if section == "multicast.stability" and section not in preset
            else str(preset.get(section, {}).get(key, default))
            for preset in PRESETS.values()
        ]
        yield f"| `[{section}] {key}` | {' | '.join(cells)} |"


TABLES = {"settings": all_settings, "arguments": all_arguments, "presets": all_presets}


def generated(page: str) -> str:
    """The page, with the tables as they are to be."""
    for name, lines in TABLES.items():
        marks = f"<!-- {name} -->\n", f"\n<!-- /{name} -->"
        between = re.compile(f"(?<={re.escape(marks[0])}).*?(?={re.escape(marks[1])})", re.S)
        text = "\n".join(lines())
        page, count = between.subn(lambda _, text=text: text, page)  # type: ignore[misc]
        assert count == 1, name
    return page


if __name__ == "__main__":
    PAGE.write_text(generated(PAGE.read_text()))
