"""The section on what the run ran with: versions and settings, as members recorded them."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from ringcast.spark.page.markup import Content, Markup, clip, details, joined, section, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ringcast.spark.report import Report

MEMBERS_NAMED_MAX = 5
FIRST = ("ringcast", "python", "system", "transport", "level", "purge", "capacity")
"""What most people look for; the rest is opened by who wants to know."""


def settings(report: Report) -> Markup:
    """A row for each setting; members that have another value than most are named beside it."""
    flat = {name: dict(_flat(values)) for name, values in report.settings.items()}
    names = list(dict.fromkeys(key for values in flat.values() for key in values))
    rows = {key: [key, _told(key, flat)] for key in names}
    shown: list[list[Content]] = [[*rows[key]] for key in FIRST if key in rows]
    rest: list[list[Content]] = [[*row] for key, row in rows.items() if key not in FIRST]
    head = ["setting", "value"]
    return section(
        "Settings and versions",
        f"As members recorded them. Audited with {_auditor()}."
        if shown
        else f"Members recorded none. Audited with {_auditor()}.",
        joined(
            table(head, shown, caption="What members ran", numbers=2) if shown else "",
            details(head, rest, caption="All settings", numbers=2) if rest else "",
        ),
        wide=True,
    )


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", "none" if value is None else str(value)


def _told(key: str, flat: Mapping[str, Mapping[str, str]]) -> str:
    """The value that most members have, and who has which other."""
    by_value: dict[str, list[str]] = {}
    for name, values in flat.items():
        by_value.setdefault(values.get(key, "not recorded"), []).append(name)
    usual, *others = sorted(by_value, key=lambda value: -len(by_value[value]))
    told = [usual]
    for value in others:
        who = by_value[value]
        more = f" and {len(who) - MEMBERS_NAMED_MAX} more" if len(who) > MEMBERS_NAMED_MAX else ""
        told.append(f"{', '.join(who[:MEMBERS_NAMED_MAX])}{more}: {value}")
    return clip("; ".join(told))


def _auditor() -> str:
    found = []
    for package in ("ringcast", "pyspark", "pyarrow"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:  # a tree that nobody has installed
            found.append(package)
    return f"{', '.join(found)}, Python {platform.python_version()}"
