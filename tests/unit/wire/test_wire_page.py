"""docs/wire.md against the declarations: what it says of each field's place, size and bounds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest

from ringcast.wire import changes, fields, frames
from ringcast.wire.layout import FRAMES
from ringcast.wire.schema import Record

if TYPE_CHECKING:
    from ringcast.wire.layout import Field, Layout
    from ringcast.wire.schema import Number

PAGE = (Path(__file__).parents[3] / "docs" / "wire.md").read_text("utf-8")
TABLES = dict(re.findall(r"^### \w+ \(kind (\d+)\).*?\n\n((?:\|.*\n)*)", PAGE, re.M))

RANGES = "1 to 128, ascending, none overlapping, none empty"
WORDS = {
    fields.MemberField: "a member",
    fields.ViewIdField: "a view id",
    fields.MembersField: "a list of members",
    fields.ListedField: "a list by places",
    fields.PlacesField: "a list of places",
    fields.SettingsField: "settings",
    fields.RangeList: RANGES,
    fields.Ranges: RANGES,
    fields.RunField: "the body of a [Data]",
    fields.Rest: "",
    changes.Marks: "a list of marks",
}
"""What items must be, on the page."""
SIZES = {fields.SettingsField: "59", fields.RangeList: "12 each", fields.Ranges: "12 each"}
OTHERS = {
    "Piece.kind": ("1", "64, 65, 66 or 69"),
    "Piece.index": ("2", "below the count"),
    "Piece.count": ("2", ""),
    "Piece.content": ("", "not empty"),
    "Cut.provider": ("2", "below 512, or 2¹⁶−1: nobody"),
    "Cut.parts": ("", "a list, at most 512"),
    "State.own": ("2, and 9 each", "a list, at most 2; 0 or 1; at most 2⁶³−1"),
    "State.flushed": ("", "a list, at most 8"),
    "StabilityReport.delivered": ("8 each", "1 to 512, each at most 2⁶³−1"),
    "Stable.marks": ("18 each", "1 to 512"),
    "InView.purged": ("8", "at most 2⁶³−1"),
}
"""What only one frame has: size, and what it must be."""
NAMED = {2**63 - 1: "2⁶³−1"}


def kind_in(alias: Any) -> Any:
    return get_args(alias)[1]


def told(cls: type, field: Field) -> tuple[str, str]:
    """Its size, empty if it is of any length, and what it must be."""
    kind: Any = field.kind
    if (name := f"{cls.__name__}.{field.name}") in OTHERS:
        return OTHERS[name]
    for alias, words in WORDS.items():
        if kind is kind_in(alias):
            return SIZES.get(alias, ""), words
    size = str(Record([kind]).struct.size)
    if isinstance(kind, Record):
        return size, ""  # a connection
    return size, bounds_in_words(field, kind)


def bounds_in_words(field: Field, number: Number) -> str:
    high = NAMED.get(number.high, str(number.high))
    if field.name == "flags":
        return "no other bit"
    if field.limit:
        return f"at most *{field.limit}*"
    if number is fields.STREAM:
        return "0 or 1"
    if number.high == 2**64 - 1:
        return "not 0" if number.low else ""
    return f"{number.low} to {high}" if number.low else f"at most {high}"


def rows_of(layout: Layout) -> list[dict[str, str]]:
    lines = [line.strip("|\n").split("|") for line in TABLES[str(layout.kind)].splitlines()]
    cells = [[cell.strip() for cell in line] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


IN_TABLES = [each for each in FRAMES.values() if TABLES[str(each.kind)]]


def test_only_frames_of_one_field_have_no_table() -> None:
    without = {each.cls for each in FRAMES.values() if each not in IN_TABLES}
    assert without == {frames.Leave, changes.Flushed, changes.Install, changes.Installed}


@pytest.mark.parametrize("layout", IN_TABLES, ids=lambda layout: layout.cls.__name__)
def test_tables_say_what_is_declared(layout: Layout) -> None:
    rows = rows_of(layout)
    if layout.cls is changes.Hello:
        assert "padding, up to 143 bytes" in rows.pop()["field"]
    offset: int | None = 0
    for row, field in zip(rows, layout.fields, strict=True):
        size, words = told(layout.cls, field)
        assert row["size"] == size, field
        assert row["must be"].startswith(words) if words else not row["must be"], field
        assert ("left out without its flag" in row["field"]) == (field.bit > 0), field
        if "offset" in row:
            assert row["offset"] == str(offset), field
            offset = offset + int(size) if size.isdigit() and offset is not None else None


@pytest.mark.parametrize("layout", IN_TABLES, ids=lambda layout: layout.cls.__name__)
def test_tables_say_which_flags_there_are(layout: Layout) -> None:
    found = [row["field"] for row in rows_of(layout) if row["field"].startswith("flags")]
    told = [sum(map(int, re.findall(r"(\d+) = ", text))) for text in found]
    kinds: list[Any] = [field.kind for field in layout.fields if field.name == "flags"]
    assert told == [kind.high for kind in kinds]


def test_the_page_says_what_is_for_one_member() -> None:
    kinds = sorted([6, *(each.kind for each in FRAMES.values() if not each.to_anyone)])
    assert kinds == spelled(re.findall(r"not 0 with frames of kinds (.*?) \|", PAGE)[0])
    assert kinds == spelled(re.findall(r"or kinds (.*?) for anyone", PAGE)[0])


def test_the_page_says_which_kinds_there_are() -> None:
    kinds = sorted([1, 6, *(layout.kind for layout in FRAMES.values())])
    assert kinds == spelled(re.findall(r"unknown frame kind \| not (.*?);", PAGE)[0])


def spelled(kinds: str) -> list[int]:
    """1 to 4, 6 and 9."""
    pairs = re.findall(r"(\d+)(?: to (\d+))?", kinds)
    return [kind for first, last in pairs for kind in range(int(first), int(last or first) + 1)]
