"""Fields: what frames speak of, as they are annotated with it. See docs/wire.md for the bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Annotated, Final, TypeAlias

from ringcast.config import GroupConfig
from ringcast.errors import ConfigError, DecodeError, Reject
from ringcast.model import (
    CONN_ID_MAX,
    FIRST_CONN_ID,
    SEQNO_MAX,
    Conn,
    Digest,
    Member,
    Origin,
    Purge,
    Stream,
    ViewId,
)
from ringcast.settings import NAMES, TIMES, Settings
from ringcast.wire.cutter import COUNT, Cutter
from ringcast.wire.limits import (
    ALLOWANCE_MAX,
    COUNTER_MAX,
    DIGEST_ENTRIES_MAX,
    NACK_RANGES_MAX,
    VIEW_MEMBERS_MAX,
    WINDOW_SIZE_MAX,
)
from ringcast.wire.members import are_distinct, encode_member, encode_view_id
from ringcast.wire.runs import RANGE, Data, decode_data
from ringcast.wire.schema import Item, Number, Record

U64_MAX: Final = 2**64 - 1

# Numbers

SEQNO: Final = Number("Q", 0, SEQNO_MAX, Reject.SEQNO)
_COUNTER: Final = Number("Q", 1, COUNTER_MAX, Reject.SEQNO)
STREAM: Final = Number("B", 0, max(Stream), Reject.STREAM, tuple(Stream).__getitem__)
_CONN_ID: Final = Number("I", FIRST_CONN_ID, CONN_ID_MAX, Reject.SEQNO)
CONN: Final = Record([_COUNTER, _CONN_ID], Conn)

Seqno: TypeAlias = Annotated[int, SEQNO]
Counter: TypeAlias = Annotated[int, _COUNTER]
CounterOr0: TypeAlias = Annotated[int, Number("Q", 0, COUNTER_MAX, Reject.SEQNO)]
Allowance: TypeAlias = Annotated[int, Number("Q", 0, ALLOWANCE_MAX, Reject.COUNT)]
WindowSize: TypeAlias = Annotated[int, Number("I", 0, WINDOW_SIZE_MAX, Reject.COUNT)]
U64: TypeAlias = Annotated[int, Number("Q", 0, U64_MAX, Reject.SEQNO)]
Not0: TypeAlias = Annotated[int, Number("Q", 1, U64_MAX, Reject.SEQNO)]
U16: TypeAlias = Annotated[int, Number("H", 0, 2**16 - 1, Reject.COUNT)]
Size: TypeAlias = Annotated[int, Number("H", 0, VIEW_MEMBERS_MAX, Reject.COUNT)]
Place: TypeAlias = Annotated[int, Number("H", 0, VIEW_MEMBERS_MAX - 1, Reject.VIEW)]
StreamId: TypeAlias = Annotated[Stream, STREAM]
ConnField: TypeAlias = Annotated[Conn, CONN]

# Members and views

MemberField: TypeAlias = Annotated[Member, Item(encode_member, Cutter.member)]
ViewIdField: TypeAlias = Annotated[ViewId, Item(encode_view_id, Cutter.view_id)]

Listed: TypeAlias = tuple[Member | range, ...]
"""Members in their order: themselves, or runs of places in a list that whoever gets it knows."""

_RUN: Final = Struct("<HH")  # first place, how many
_IS_RUN: Final = 0  # in place of the length of a host
_LISTS_MAX: Final = 8
"""Encoded lists of members kept: the same one goes to many members, until it has arrived."""


def _encode_list(parts: Sequence[bytes]) -> bytes:
    assert len(parts) <= VIEW_MEMBERS_MAX, len(parts)
    return COUNT.pack(len(parts)) + b"".join(parts)


@lru_cache(_LISTS_MAX)
def encode_members(members: tuple[Member, ...]) -> bytes:
    assert are_distinct(members), members
    return _encode_list(list(map(encode_member, members)))


def _cut_members(cut: Cutter) -> tuple[Member, ...]:
    """Each another process."""
    members = tuple([cut.member() for _ in range(cut.count(VIEW_MEMBERS_MAX))])
    if not are_distinct(members):
        raise DecodeError(Reject.VIEW)
    return members


@lru_cache(_LISTS_MAX)
def encode_listed(listed: Listed) -> bytes:
    return _encode_list([_encode_listed(each) for each in listed])


def _encode_listed(each: Member | range) -> bytes:
    if not isinstance(each, range):
        return encode_member(each)
    assert 0 <= each.start < each.stop <= VIEW_MEMBERS_MAX, each
    assert each.step == 1, each
    return bytes([_IS_RUN]) + _RUN.pack(each.start, len(each))


def _cut_listed(cut: Cutter) -> Listed:
    listed: list[Member | range] = []
    for _ in range(cut.count(VIEW_MEMBERS_MAX)):
        if cut.is_next(_IS_RUN):
            listed.append(_run_of(*cut.numbers(_RUN)))
        else:
            listed.append(cut.member())
    if not are_distinct([each for each in listed if not isinstance(each, range)]):
        raise DecodeError(Reject.VIEW)
    return tuple(listed)


def _encode_places(places: Iterable[int]) -> bytes:
    """In the order in which they are; those that follow each other are one run."""
    runs: list[list[int]] = []
    for place in places:
        assert 0 <= place < VIEW_MEMBERS_MAX, place
        if runs and place == sum(runs[-1]):
            runs[-1][1] += 1
        else:
            runs.append([place, 1])
    return _encode_list([_RUN.pack(*run) for run in runs])


def _cut_places(cut: Cutter) -> tuple[int, ...]:
    """At most as many as a view has: a run takes few bytes, however many places it has."""
    places: list[int] = []
    for start, count in _RUN.iter_unpack(cut.take(cut.count(VIEW_MEMBERS_MAX) * _RUN.size)):
        run = _run_of(start, count)
        if len(places) + count > VIEW_MEMBERS_MAX:
            raise DecodeError(Reject.COUNT)
        places += run
    return tuple(places)


def _run_of(start: int, count: int) -> range:
    if not count:
        raise DecodeError(Reject.COUNT)
    if start + count > VIEW_MEMBERS_MAX:
        raise DecodeError(Reject.VIEW)
    return range(start, start + count)


MembersField: TypeAlias = Annotated[tuple[Member, ...], Item(encode_members, _cut_members)]
ListedField: TypeAlias = Annotated[Listed, Item(encode_listed, _cut_listed)]
PlacesField: TypeAlias = Annotated[tuple[int, ...], Item(_encode_places, _cut_places)]

# Settings

_SETTINGS: Final = Struct(f"<BBB{len(TIMES)}QQ")  # purge, streams, given, times, max_message_bytes
_SETTINGS_MAX: Final = 16
_ANY_MEMBER: Final = GroupConfig(group="any")


def _encode_settings(settings: Settings) -> bytes:
    streams = sum(1 << stream for stream in settings.streams)
    given = sum(1 << NAMES.index(name) for name in settings.given)
    return _SETTINGS.pack(
        settings.purge, streams, given, *settings.times, settings.max_message_bytes
    )


def _cut_settings(cut: Cutter) -> Settings:
    return _decode_settings(cut.numbers(_SETTINGS))


@lru_cache(_SETTINGS_MAX)
def _decode_settings(numbers: tuple[int, ...]) -> Settings:
    """A member could have been configured so."""
    purge, streams, given, *times, size = numbers
    if streams >= 1 << len(Stream) or given >= 1 << len(NAMES) or purge > max(Purge):
        raise DecodeError(Reject.FLAGS)
    settings = Settings(
        Purge(purge),
        tuple(stream for stream in Stream if streams & 1 << stream),
        tuple(times),
        size,
        frozenset(name for n, name in enumerate(NAMES) if given & 1 << n),
    )
    try:
        settings.apply_to(_ANY_MEMBER)
    except ConfigError:
        raise DecodeError(Reject.SETTINGS) from None
    return settings


SettingsField: TypeAlias = Annotated[Settings, Item(_encode_settings, _cut_settings)]

# Messages and what is missing of them


def _encode_none(_: object) -> bytes:
    """Of the last field of a frame, which may take many datagrams: packing.py does it."""
    return b""


def _cut_ranges(cut: Cutter) -> list[range]:
    """Ascending, disjoint, half-open."""
    count = cut.count_left(RANGE.size, NACK_RANGES_MAX)
    missing = []
    lowest = 1
    for first, size in RANGE.iter_unpack(cut.take(count * RANGE.size)):
        if not size:
            raise DecodeError(Reject.COUNT)
        if first > SEQNO_MAX + 1 - size or not first:
            raise DecodeError(Reject.SEQNO)
        if first < lowest:
            raise DecodeError(Reject.RANGES)
        lowest = first + size
        missing.append(range(first, lowest))
    return missing


def _cut_run(cut: Cutter) -> Data:
    body = cut.take(cut.left)
    return decode_data(body, 0, len(body))


RangeList: TypeAlias = Annotated[list[range], Item(_encode_none, _cut_ranges)]
Ranges: TypeAlias = Annotated[
    tuple[range, ...], Item(_encode_none, lambda cut: tuple(_cut_ranges(cut)))
]
RunField: TypeAlias = Annotated[Data, Item(_encode_none, _cut_run)]
Rest: TypeAlias = Annotated[bytes, Item(bytes, lambda cut: bytes(cut.take(cut.left)))]

# Digests

_ENTRY: Final = Record([STREAM, SEQNO])


def _encode_digest(digest: Digest) -> bytes:
    assert len(digest.entries) <= DIGEST_ENTRIES_MAX, len(digest.entries)
    return b"".join(
        [
            _ENTRY.encode(stream, seqno) + encode_member(sender)
            for (sender, stream), seqno in digest.entries.items()
        ]
    )


def _cut_digest(cut: Cutter) -> Digest:
    """All that is left; each origin at most once."""
    entries: dict[Origin, int] = {}
    while cut.left:
        if len(entries) == DIGEST_ENTRIES_MAX:
            raise DecodeError(Reject.COUNT)
        stream, seqno = _ENTRY.cut(cut)
        origin = Origin(cut.member(), stream)
        if origin in entries:
            raise DecodeError(Reject.MEMBER)
        entries[origin] = seqno
    return Digest(entries)


DigestField: TypeAlias = Annotated[Digest, Item(_encode_digest, _cut_digest)]
