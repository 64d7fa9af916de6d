"""Any frame or message there can be, drawn from what its class declares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from hypothesis import strategies as st

from ringcast.model import (
    INCARNATION_MAX,
    SEQNO_MAX,
    Address,
    Digest,
    Member,
    Origin,
    Purge,
    Stream,
    ViewId,
)
from ringcast.wire import changes, fields, frames
from ringcast.wire.frames import Data
from ringcast.wire.layout import FRAMES, MESSAGES, Layout
from ringcast.wire.limits import COUNTER_MAX, NACK_RANGES_MAX, VIEW_MEMBERS_MAX
from ringcast.wire.schema import Column, List, Number, Record, Table
from support.settings import PLAIN, wanted

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringcast.wire.layout import Field

streams = st.sampled_from(Stream)
seqnos = st.integers(0, 20) | st.integers(0, SEQNO_MAX) | st.just(SEQNO_MAX)
addresses = st.builds(
    Address, st.sampled_from(["h", "127.0.0.1", "::1", "é" * 32]), st.integers(0, 65535)
)
members = st.builds(
    Member,
    addresses,
    st.integers(1, 3) | st.integers(1, INCARNATION_MAX),
    st.sampled_from(["", "a", "b", "n" * 64, "名"]),
)
view_ids = st.builds(ViewId, members, st.integers(1, 3) | st.integers(1, COUNTER_MAX))
lists_of_members = st.lists(members, max_size=9, unique_by=lambda member: member[:2]).map(tuple)
runs_of_places = st.builds(
    lambda start, count: range(start, start + count), st.integers(0, 500), st.integers(1, 12)
)
lists_by_places = st.builds(
    lambda members, places: (*members, *places),
    *(lists_of_members, st.lists(runs_of_places, max_size=4)),
)
places = st.integers(0, 3) | st.integers(0, VIEW_MEMBERS_MAX - 1)
agreed = st.just(PLAIN) | st.builds(
    wanted,
    st.sampled_from(Purge),
    st.lists(streams, unique=True).map(sorted).map(tuple),
    suspect_after_s=st.floats(1.0, 3600.0).map(lambda time: round(time, 9)),
    max_message_bytes=st.integers(1, 1 << 32),
)


@st.composite
def gaps(draw: st.DrawFn) -> list[range]:
    count = draw(st.integers(1, NACK_RANGES_MAX))
    steps = draw(st.lists(st.integers(1, 50), min_size=2 * count, max_size=2 * count))
    stop = draw(st.integers(0, SEQNO_MAX - sum(steps)))
    missing = []
    for gap, size in zip(steps[::2], steps[1::2], strict=True):
        missing.append(range(stop + gap, stop + gap + size))
        stop += gap + size
    return missing


runs = st.builds(
    lambda stream, first, payloads, more: Data(stream, first, payloads, more=more),
    *(streams, st.integers(1, 20) | st.integers(1, SEQNO_MAX - 20)),
    *(st.lists(st.binary(max_size=9) | st.just(bytes(600)), min_size=1, max_size=9), st.booleans()),
)
ITEMS = {
    fields.MemberField: members,
    fields.ViewIdField: view_ids,
    fields.MembersField: lists_of_members,
    fields.ListedField: lists_by_places,
    fields.PlacesField: st.lists(places, max_size=9).map(tuple),
    fields.SettingsField: agreed,
    fields.RangeList: gaps(),
    fields.Ranges: gaps().map(tuple),
    fields.RunField: runs,
    fields.Rest: st.binary(max_size=99),
    fields.DigestField: st.builds(
        Digest, st.dictionaries(st.builds(Origin, members, streams), seqnos, max_size=9)
    ),
}
BY_KIND = {id(get_args(alias)[1]): strategy for alias, strategy in ITEMS.items()}
BY_KIND[id(changes._PLACE_OR_NOBODY)] = st.none() | places
BY_KIND[id(changes._SEQNO_OR_END)] = st.none() | seqnos


def whole(values: dict[str, Any]) -> None:
    """A piece has something of a frame, and stands among the others."""
    values["count"] = values["count"] or 1
    values.update(index=values["index"] % values["count"], content=values["content"] or b"x")


def told(values: dict[str, Any]) -> None:
    """Somebody is proposed, by itself if there is no base, and leaves once."""
    listed = [each for each in values["members"] if values["base"] or isinstance(each, Member)]
    one = Member(Address("h", 1), 1, "")
    values.update(members=tuple(listed) or (one,), leaving=tuple({*values["leaving"]}))


def known(values: dict[str, Any]) -> None:
    """The slowest is one of the view."""
    marks = values["marks"]
    values["marks"] = tuple(mark._replace(slowest=mark.slowest % len(marks)) for mark in marks)


MADE_RIGHT: dict[type, Callable[[dict[str, Any]], None]] = {
    changes.Piece: whole,
    changes.Propose: told,
    changes.Cut: lambda values: values["provider"] is None and values.update(takers=()),
    frames.Stable: known,
    frames.PeerRepair: lambda values: setattr(values["data"], "stream", Stream.FIFO),
}
"""What the fields of a class must be together: see `fault`."""


def numbers(number: Number) -> st.SearchStrategy[int]:
    low, high = number.low, number.high
    small = st.integers(low, min(high, low + 20))
    drawn = small | st.integers(low, high) | st.just(high)
    return st.sampled_from(sorted(number.only)) if number.only else drawn  # type: ignore[type-var]


@st.composite
def records(draw: st.DrawFn, record: Record) -> Any:
    drawn = [draw(numbers(number)) for number in record.numbers]
    for place, other in record.limits:
        drawn[place] = min(drawn[place], drawn[other])
    return record.make(*drawn)


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Of a field of this kind."""
    if id(kind) in BY_KIND:
        return BY_KIND[id(kind)]
    if isinstance(kind, Number):
        return records(Record([kind])).map(lambda values: values[0])
    if isinstance(kind, Column):
        return st.lists(numbers(kind.number), min_size=1, max_size=kind.most).map(tuple)
    if isinstance(kind, Table):
        few, least = min(kind.most, 9), 0 if kind.is_counted else 1
        return st.lists(records(kind.record), min_size=least, max_size=few).map(tuple)
    if isinstance(kind, List):
        return st.lists(values_of(kind.kind), max_size=min(kind.most, 4)).map(tuple)
    return declared(kind) if isinstance(kind, Layout) else records(kind)


def _values_of(field: Field) -> st.SearchStrategy[Any]:
    values = values_of(field.kind)
    return st.just(field.absent) | values if field.bit else values


@st.composite
def declared(draw: st.DrawFn, layout: Layout) -> Any:
    """Anything of a class that declares what it is on the wire."""
    values = {field.name: draw(_values_of(field)) for field in layout.fields}
    values.pop("flags", None)
    for name in get_type_hints(layout.cls).keys() - values.keys():
        values[name] = draw(st.booleans())
    for field in layout.fields:
        if field.limit:
            values[field.name] = min(values[field.name], values[field.limit])
    MADE_RIGHT.get(layout.cls, lambda _: None)(values)
    return layout.cls(**values)


any_frame = st.one_of([declared(layout) for layout in FRAMES.values()])
any_message = st.one_of([declared(layout) for layout in MESSAGES.values()])
