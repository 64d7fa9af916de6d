"""docs/wire.md: what it says of each field's place, size and bounds, and its test vectors."""

from __future__ import annotations

import dataclasses
import json
import re
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest

from ringcast.errors import DecodeError, Reject
from ringcast.model import Address, Conn, Member, ViewId
from ringcast.wire import changes, fields, frames
from ringcast.wire.frames import Data, UnicastData
from ringcast.wire.layout import FRAMES
from ringcast.wire.schema import Record
from support.echo import Echo

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
    "State.own": ("2, and 9 each", "a list, at most 3; 0, 1 or 2; at most 2⁶³−1"),
    "State.order": ("", "an order"),
    "Cut.order": ("", "an order"),
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
        return "0, 1 or 2"
    if number.high in (2**32 - 1, 2**64 - 1):
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


# Vectors

ME = Member(Address("127.0.0.1", 7800), 42, "a")


def vectors() -> list[dict[str, list[str]]]:
    found = []
    for block in re.findall(r"^```vector\n(.*?)^```", PAGE, re.M | re.S):
        keys = ("hex", "sender", "to", "frame", "refused")
        vector: dict[str, list[str]] = {key: [] for key in keys}
        for line in block.splitlines():
            key, _, value = line.partition(" ")
            vector[key].append(value.strip())
        found.append(vector)
    return found


def said(value: Any) -> str:
    """A frame, or what it speaks of, in words. What is as by default goes without saying."""
    match value:
        case Member():
            return f"{value.name} at {value.address}, incarnation {value.incarnation}"
        case ViewId():
            return f"{value.counter} by {said(value.creator)}"
        case Data() | UnicastData():
            whose = said(value.stream if isinstance(value, Data) else value.conn)
            payloads = " ".join(json.dumps(payload.decode()) for payload in value.payloads)
            more = ", more" * value.more
            return f"{type(value).__name__} {whose} {value.first}..{value.last}{more}: {payloads}"
        case IntEnum():
            return value.name.lower()
        case range():
            return f"{value.start}..{value.stop - 1}"
        case bytes():
            return value.hex(" ")
        case Conn() | int() | str():
            return str(value)
        case tuple() if hasattr(value, "_fields"):
            named = [f"{name} {said(getattr(value, name))}" for name in value._fields]
            return f"({', '.join(named)})"
        case frozenset():
            return said(sorted(value))
        case tuple() | list():
            return f"[{', '.join(map(said, value))}]"
    told = [
        field.name if each is True else f"{field.name} {said(each)}"
        for field in dataclasses.fields(value)
        if (each := getattr(value, field.name)) is not False and each != field.default
    ]
    return " ".join([type(value).__name__, "; ".join(told)]).strip()


def refusal(datagram: bytes) -> Reject:
    with pytest.raises(DecodeError) as caught:
        Echo("orders", ME, 512).unpack(datagram)
    return caught.value.reason


def test_the_page_has_vectors_of_both_sorts() -> None:
    datagrams = [bytes.fromhex(" ".join(vector["hex"])) for vector in vectors() if vector["frame"]]
    frames = [
        frame for datagram in datagrams for frame in Echo("orders", ME, 512).unpack(datagram)[1]
    ]
    assert {type(frame) for frame in frames} == {Data, UnicastData, *FRAMES}
    assert len({vector["refused"][0] for vector in vectors() if vector["refused"]}) >= 5


@pytest.mark.parametrize(
    "vector", vectors(), ids=lambda vector: "; ".join(vector["frame"] or vector["refused"])
)
def test_vector_on_the_page(vector: dict[str, list[str]]) -> None:
    datagram = bytes.fromhex(" ".join(vector["hex"]))
    if vector["refused"]:
        assert [refusal(datagram).value] == vector["refused"]
        return
    sender, frames = Echo("orders", ME, 512).unpack(datagram)
    assert [said(sender)] == vector["sender"]
    assert [said(frame) for frame in frames] == vector["frame"]
    assert vector["to"] in ([], [f"incarnation {ME.incarnation}"])
    assert Echo("orders", sender, 512).pack(frames, ME if vector["to"] else None) == [datagram]


def test_the_page_lists_every_reason() -> None:
    reasons = PAGE.partition("a datagram is refused")[2]
    rows = re.findall(r"^\| ([a-z, ]+) \| ", reasons, re.M)
    assert rows == ["reason", *(reason.value for reason in Reject)]
