"""HTML that is safe by construction: text is escaped unless it was made here."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import NamedTuple, TypeAlias


class Markup(str):
    """What needs no escaping any more."""

    __slots__ = ()


Content: TypeAlias = "str | Markup"


def text(content: Content) -> Markup:
    """Names come from others: what is no printable character is shown, not sent."""
    if isinstance(content, Markup):
        return content
    shown = "".join(mark if mark.isprintable() else repr(mark)[1:-1] for mark in content)
    return Markup(escape(shown))


def clip(words: str, limit: int = 300) -> str:
    """A page has room for so many letters of it."""
    return words if len(words) <= limit else f"{words[:limit]} …"


def tag(name: str, *content: Content, **attributes: str | float) -> Markup:
    """One element. A trailing underscore in an attribute's name is dropped, others are dashes."""
    named = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(str(value))}"'
        for key, value in attributes.items()
    )
    return Markup(f"<{name}{named}>{joined(*content)}</{name}>")


def joined(*content: Content) -> Markup:
    return Markup("".join(map(text, content)))


def table(head: list[str], rows: list[list[Content]], *, caption: str, numbers: int = 1) -> Markup:
    """A table whose columns from `numbers` on are figures. Each row is headed by its first cell."""
    heads = [
        tag("th", name, scope="col", class_="number" if at >= numbers else "word")
        for at, name in enumerate(head)
    ]
    lines = [
        tag(
            "tr",
            tag("th", row[0], scope="row"),
            *(
                tag("td", cell, class_="number" if at >= numbers else "word")
                for at, cell in enumerate(row[1:], 1)
            ),
        )
        for row in rows
    ]
    return scrolled(grid(heads, lines, caption), caption)


def grid(
    heads: Iterable[Content], lines: Iterable[Content], caption: str, **attributes: str
) -> Markup:
    return tag(
        "table",
        tag("caption", caption, class_="unseen"),
        tag("thead", tag("tr", *heads)),
        tag("tbody", *lines),
        **attributes,
    )


def scrolled(made: Markup, caption: str) -> Markup:
    """What is wider than a phone scrolls by itself; it has the focus, so that keys can do that."""
    return tag("div", made, class_="scroll", tabindex=0, role="group", aria_label=caption)


def details(
    head: list[str], rows: list[list[Content]], *, caption: str, numbers: int = 1
) -> Markup:
    """A table that is opened by who wants to know."""
    made = table(head, rows, caption=caption, numbers=numbers)
    return tag("details", tag("summary", "Figures"), made)


def section(title: str, lead: str, *content: Content, wide: bool = False) -> Markup:
    return tag(
        "section",
        tag("h2", title),
        tag("p", lead, class_="lead") if lead else "",
        joined(*content),
        class_="card wide" if wide else "card",
    )


class Absent(NamedTuple):
    """A section that has nothing to show, and why."""

    title: str
    why: str


Part: TypeAlias = "Markup | Absent"


def absences(parts: Iterable[Part]) -> Content:
    """Which sections are not there: each reason once."""
    found: dict[str, list[str]] = {}
    for part in parts:
        if isinstance(part, Absent):
            found.setdefault(part.why, []).append(part.title)
    if not found:
        return ""
    lines = [tag("li", f"{', '.join(titles)}: {why}.") for why, titles in found.items()]
    return section("Not on this page", "", tag("ul", *lines), wide=True)
