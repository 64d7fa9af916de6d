"""Frames of a view change: their bytes, what is refused of them, and what is said in a view."""

from __future__ import annotations

import hashlib
import struct
import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

import pytest

from ringcast.config import DATAGRAM_BYTES_MAX
from ringcast.errors import ConfigError, DecodeError, Reject
from ringcast.model import (
    INCARNATION_MAX,
    SEQNO_MAX,
    Address,
    Conn,
    Member,
    Purge,
    Stream,
    ViewId,
)
from ringcast.wire.changes import (
    OWN,
    ChangeFrame,
    Complain,
    Cookie,
    Cut,
    CutMark,
    Finish,
    Flushable,
    Flushed,
    Forwarded,
    Hello,
    Holding,
    Install,
    Installed,
    InView,
    Mark,
    PartMarks,
    Piece,
    Propose,
    Refuse,
    State,
    Want,
    decode_pieces,
    tag_of,
)
from ringcast.wire.fields import encode_listed, encode_members
from ringcast.wire.frames import (
    Ack,
    Close,
    Commit,
    Data,
    Heartbeat,
    Nack,
    PeerRepair,
    PeerRepairRequest,
    Ping,
    StabilityQuery,
    StabilityReport,
    Stable,
    UnicastData,
    Watermark,
)
from ringcast.wire.frames import Mark as StableMark
from ringcast.wire.limits import (
    COUNTER_MAX,
    FLUSHED_MAX,
    FRAMES_MAX,
    MESSAGES_MAX,
    NACK_RANGES_MAX,
    VIEW_MEMBERS_MAX,
)
from support.echo import Echo
from support.settings import PLAIN, wanted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.wire.frames import Frame

FIFO, UNIFORM = Stream.FIFO, Stream.UNIFORM
ME = Member(Address("h", 1), 1, "")
OTHER = Member(Address("h", 2), 7, "b")
LONGEST = Member(Address("h" * 64, 65535), INCARNATION_MAX, "n" * 64)
ID = ViewId(ME, 4)
BEFORE = ViewId(OTHER, 3)
CROWD = tuple(ME._replace(incarnation=number) for number in range(1, VIEW_MEMBERS_MAX + 2))
TAG = 0x1122334455667788
TAG_BYTES, MARK_BYTES = 11, 8


def codec(datagram_bytes: int = 60_000) -> Echo:
    return Echo("orders", ME, datagram_bytes)


def tagged(datagram_bytes: int = 60_000, tag: int = TAG) -> Echo:
    one = Echo("orders", ME, datagram_bytes)
    one.tag = tag
    return one


HEADER = codec().pack([Watermark(FIFO, 0)])[0][:-12]
TO_ME = codec().pack([Watermark(FIFO, 0)], to=ME)[0][:-12]


def refusal(datagram: bytes) -> Reject:
    with pytest.raises(DecodeError) as caught:
        codec().unpack(datagram)
    return caught.value.reason


def unpacked(datagrams: Sequence[bytes]) -> list[list[Frame]]:
    return [codec().unpack(datagram)[1] for datagram in datagrams]


# Bytes, made by hand


def frame(kind: int, *body: bytes) -> bytes:
    joined = b"".join(body)
    return struct.pack("<BH", kind, len(joined)) + joined


def member(who: Member) -> bytes:
    host, name = who.address.host.encode(), who.name.encode()
    numbers = struct.pack("<HQ", who.address.port, who.incarnation)
    return bytes([len(host)]) + host + numbers + bytes([len(name)]) + name


def view_id(who: Member = ME, counter: int = 4) -> bytes:
    return struct.pack("<Q", counter) + member(who)


def listed(*parts: bytes, count: int | None = None) -> bytes:
    return struct.pack("<H", len(parts) if count is None else count) + b"".join(parts)


def members(*who: Member) -> bytes:
    return listed(*map(member, who))


def places(*runs: tuple[int, int]) -> bytes:
    return listed(*(struct.pack("<HH", *run) for run in runs))


def places_of(start: int, count: int) -> bytes:
    """In a list of members."""
    return b"\0" + struct.pack("<HH", start, count)


def mark(place: int = 0, stream: int = 0, seqno: int = 1) -> bytes:
    return struct.pack("<HBQ", place, stream, seqno)


def cut_mark(place: int = 0, stream: int = 0, seqno: int = 1, source: int = 0) -> bytes:
    return struct.pack("<HBQH", place, stream, seqno, source)


def settings(
    purge: int = 0, streams: int = 1, given: int = 0, interval: int = 50, size: int = 64 << 20
) -> bytes:
    """Times are those of who was given none, but for the interval of reports."""
    times = [250, 2000, 500, 0, 500, interval]
    in_ns = (1_000_000 * time for time in times)
    return struct.pack("<BBB7Q", purge, streams, given, *in_ns, size)


def hello(
    flags: int = 0,
    agreed: bytes = settings(),
    highest: int = 0,
    size: int = 0,
    rest: bytes = listed(),
    secrets: tuple[int, ...] = (0, 0),
    pad: int = 143,
) -> bytes:
    numbers = struct.pack(f"<QH{len(secrets)}Q", highest, size, *secrets)
    return frame(64, (bytes([flags]) + agreed + numbers + rest).ljust(pad, b"\0"))


def propose(
    who: bytes = members(ME, OTHER),
    leaving: bytes = listed(),
    agreed: bytes = settings(),
    base: bytes = b"",
    flags: int = 0,
    size: int = 0,
    permit: bytes = b"",
) -> bytes:
    head = struct.pack("<BH", flags | bool(base), size) + permit
    return frame(65, head, view_id(), agreed, base, who, leaving)


def state(
    flags: int = 0,
    ids: bytes = view_id() + view_id(OTHER, 3),
    who: bytes = listed(),
    own: bytes = listed(),
    held: bytes = listed(),
    flushed: bytes = listed(),
    holding: bytes = b"\0" + listed(),
) -> bytes:
    return frame(66, bytes([flags]), ids, who, own, held, flushed, holding)


def part(numbers: bytes = listed(), departed: bytes = listed()) -> bytes:
    return view_id(OTHER, 3) + numbers + departed


def cut(
    parts: bytes = listed(),
    starts: bytes = listed(),
    takers: bytes = b"\xff\xff" + listed(),
    flags: int = 0,
    secret: int = 0,
) -> bytes:
    head = bytes([flags]) + view_id() + struct.pack("<Q", secret)
    return frame(69, head, parts, starts, takers)


def cookie(cookie: int, echo: int) -> bytes:
    return frame(78, struct.pack("<QQ", cookie, echo))


def piece(
    kind: int = 65, number: int = 9, index: int = 0, count: int = 2, rest: bytes = b"x"
) -> bytes:
    return frame(77, struct.pack("<BQHH", kind, number, index, count), rest)


def want(*ranges: tuple[int, int], stream: int = 0, flags: int = 0, asker: bytes = b"") -> bytes:
    pairs = [struct.pack("<QI", *pair) for pair in ranges]
    return frame(70, bytes([stream, flags]), view_id(), member(OTHER), asker, *pairs)


def run(first: int = 1, count: int = 1, rest: bytes = b"\1\0x", stream: int = 0) -> bytes:
    """The body of a Data."""
    return struct.pack("<BBQH", stream, 1, first, count) + rest


def forwarded(data: bytes, flags: int = 0, asker: bytes = b"") -> bytes:
    return frame(71, bytes([flags]), view_id(), member(OTHER), asker, data)


def in_view(*numbers: int) -> bytes:
    """The tag and, perhaps, what is purged."""
    return frame(76, struct.pack(f"<{len(numbers)}Q", *numbers))


BY_HAND: list[tuple[ChangeFrame, bytes]] = [
    (Hello(PLAIN, False, False, 0), hello()),
    (
        Hello(wanted(Purge.RETAINED), True, False, COUNTER_MAX),
        hello(1, settings(2, given=1), COUNTER_MAX),
    ),
    (
        Hello(wanted(Purge.STABILITY), False, True, 9, OTHER, BEFORE, 2, (ME, OTHER)),
        hello(
            14, settings(1, given=1), 9, 2, member(OTHER) + view_id(OTHER, 3) + members(ME, OTHER)
        ),
    ),
    (
        Hello(PLAIN, False, False, 1, OTHER, size=512),
        hello(4, settings(), 1, 512, member(OTHER) + listed()),
    ),
    (Hello(PLAIN, False, False, 1, None, ID), hello(8, settings(), 1, 0, view_id() + listed())),
    (
        Hello(PLAIN, False, False, 0, cookie=1, echo=2, permit=2**64 - 1),
        hello(16, secrets=(1, 2, 2**64 - 1)),
    ),
    (Cookie(1, 0), cookie(1, 0)),
    (Cookie(2**64 - 1, 2**64 - 1), cookie(2**64 - 1, 2**64 - 1)),
    (Propose(ID, (ME,), PLAIN), propose(members(ME))),
    (
        Propose(ID, (ME,), PLAIN, permit=7),
        propose(members(ME), flags=4, permit=struct.pack("<Q", 7)),
    ),
    (Cut(ID, (), (), secret=9), cut(secret=9)),
    (
        Propose(ID, (OTHER, ME), PLAIN, (1, 0)),
        propose(members(OTHER, ME), places((1, 1), (0, 1))),
    ),
    (
        Propose(ID, (range(2), ME, range(5, 511)), PLAIN, (1, 2, 3, 9), BEFORE, True, 512),
        propose(
            listed(places_of(0, 2), member(ME), places_of(5, 506)),
            places((1, 3), (9, 1)),
            base=view_id(OTHER, 3),
            flags=2,
            size=512,
        ),
    ),
    (State(ID, BEFORE), state()),
    (
        State(
            ID,
            BEFORE,
            (ME, OTHER),
            ((UNIFORM, SEQNO_MAX), (FIFO, 0)),
            (Mark(1, FIFO, 0), Mark(0, UNIFORM, SEQNO_MAX)),
            (Flushable(BEFORE, (OTHER,)), Flushable(ID, (range(3, 5),))),
            ViewId(OTHER, 2),
            Holding.LACKS,
            OTHER,
            (ME,),
            is_based=True,
        ),
        state(
            7,
            view_id() + view_id(OTHER, 3) + view_id(OTHER, 2),
            members(ME, OTHER),
            listed(struct.pack("<BQ", 1, SEQNO_MAX), struct.pack("<BQ", 0, 0)),
            listed(mark(1, 0, 0), mark(0, 1, SEQNO_MAX)),
            listed(view_id(OTHER, 3) + members(OTHER), view_id() + listed(places_of(3, 2))),
            b"\1" + member(OTHER) + members(ME),
        ),
    ),
    (State(ID, BEFORE, held=(Mark(511, FIFO, 5),)), state(held=listed(mark(511, 0, 5)))),
    (Refuse(ID), frame(67, b"\0", view_id())),
    (Refuse(ID, BEFORE), frame(67, b"\1", view_id(), view_id(OTHER, 3))),
    (Refuse(ID, None, OTHER), frame(67, b"\2", view_id(), member(OTHER))),
    (Refuse(ID, BEFORE, ME), frame(67, b"\3", view_id(), view_id(OTHER, 3), member(ME))),
    (Finish(ID, BEFORE), frame(68, view_id(), view_id(OTHER, 3))),
    (Cut(ID, (), ()), cut()),
    (
        Cut(
            ID,
            (
                PartMarks(
                    BEFORE,
                    (0, 1, 2, 511, 5),
                    (CutMark(511, UNIFORM, OWN, 3), CutMark(2, FIFO, 9, 511)),
                ),
                PartMarks(BEFORE, (), ()),
            ),
            (Mark(511, UNIFORM, SEQNO_MAX),),
            511,
            (0, 510),
            is_based=True,
        ),
        cut(
            listed(
                part(
                    places((0, 3), (511, 1), (5, 1)),
                    listed(cut_mark(511, 1, 2**64 - 1, 3), cut_mark(2, 0, 9, 511)),
                ),
                part(),
            ),
            listed(mark(511, 1, SEQNO_MAX)),
            struct.pack("<H", 511) + places((0, 1), (510, 1)),
            4,
        ),
    ),
    (Want(ID, OTHER, UNIFORM, (range(1, 3), range(3, 4))), want((1, 2), (3, 1), stream=1)),
    (
        Want(ID, OTHER, FIFO, (range(SEQNO_MAX, SEQNO_MAX + 1),), ME),
        want((SEQNO_MAX, 1), flags=1, asker=member(ME)),
    ),
    (Forwarded(ID, OTHER, Data(UNIFORM, 1, [b"x"])), forwarded(run(stream=1))),
    (
        Forwarded(ID, OTHER, Data(FIFO, 5, [b"x", b"y"]), ME),
        forwarded(run(5, 2, b"\1\0xy"), flags=1, asker=member(ME)),
    ),
    (Flushed(ID), frame(72, view_id())),
    (Install(ID), frame(73, view_id())),
    (Installed(BEFORE), frame(74, view_id(OTHER, 3))),
    (Complain(OTHER), frame(75, b"\0", member(OTHER))),
    (Complain(OTHER, is_slow=True), frame(75, b"\1", member(OTHER))),
    (Complain(OTHER, wants_state=True), frame(75, b"\2", member(OTHER))),
    (Piece(65, 2**64 - 1, 1, 2, b"xyz"), piece(65, 2**64 - 1, 1, 2, b"xyz")),
    (InView(TAG), in_view(TAG)),
    (InView(2**64 - 1), in_view(2**64 - 1)),
    (InView(TAG, 0), in_view(TAG, 0)),
    (InView(TAG, SEQNO_MAX), in_view(TAG, SEQNO_MAX)),
]


@pytest.mark.parametrize(("ours", "by_hand"), BY_HAND, ids=lambda each: repr(each)[:60])
def test_bytes_are_as_they_are_made_by_hand(ours: ChangeFrame, by_hand: bytes) -> None:
    assert codec(512).pack([ours], to=ME) == [TO_ME + by_hand]
    assert codec().unpack(TO_ME + by_hand) == (ME, [ours])


def test_there_is_one_of_each() -> None:
    assert {type(ours) for ours, _ in BY_HAND} == set(get_args(ChangeFrame))


@pytest.mark.parametrize(("ours", "by_hand"), BY_HAND, ids=lambda each: repr(each)[:60])
def test_only_a_hello_and_a_tag_are_for_anyone(ours: ChangeFrame, by_hand: bytes) -> None:
    if isinstance(ours, Hello | InView):
        assert codec().pack([ours]) == [HEADER + by_hand]
        assert codec().unpack(HEADER + by_hand) == (ME, [ours])
        return
    with pytest.raises(AssertionError):
        codec().pack([ours])
    assert refusal(HEADER + by_hand) is Reject.ADDRESSEE
    with pytest.raises(DecodeError):
        codec().unpack(HEADER + by_hand, overhear=True)


@pytest.mark.parametrize(("ours", "by_hand"), BY_HAND, ids=lambda each: repr(each)[:60])
def test_cut_short_at_any_byte_it_is_refused(ours: ChangeFrame, by_hand: bytes) -> None:
    """Whether the datagram ends there or only the frame does."""
    datagram = TO_ME + by_hand
    reasons = {refusal(datagram[:size]) for size in range(len(TO_ME) + 1, len(datagram))}
    assert reasons == {Reject.FRAME_LENGTH}
    rest = 0  # of that many bytes the frame may well end, and say less
    if isinstance(ours, Want) and len(ours.missing) > 1:
        rest = 12
    elif isinstance(ours, InView) and ours.purged is not None:
        rest = MARK_BYTES
    rests = range(1, len(ours.content)) if isinstance(ours, Piece) else (rest,)
    for size in range(3, len(by_hand)):
        shorter = TO_ME + frame(by_hand[0], by_hand[3:size])
        if len(by_hand) - size in rests:
            assert codec().unpack(shorter)[1] != [ours]
            continue
        assert refusal(shorter) in {
            Reject.FRAME_LENGTH,
            Reject.MEMBER,
            Reject.COUNT,
            Reject.LENGTHS,
        }


@pytest.mark.parametrize(("ours", "by_hand"), BY_HAND, ids=lambda each: repr(each)[:60])
def test_a_byte_too_many_is_refused(ours: ChangeFrame, by_hand: bytes) -> None:
    longer = TO_ME + frame(by_hand[0], by_hand[3:], b"\0")
    if isinstance(ours, Piece):
        assert codec().unpack(longer)[1] == [replace(ours, content=ours.content + b"\0")]
        return
    assert refusal(longer) is (
        Reject.LENGTHS if isinstance(ours, Forwarded) else Reject.FRAME_LENGTH
    )


@pytest.mark.parametrize(
    "alone",
    [
        Hello(PLAIN, False, False, 0),
        Propose(ID, (ME,), PLAIN),
        State(ID, BEFORE),
        Cut(ID, (), ()),
        Forwarded(ID, OTHER, Data(FIFO, 1, [b"x"])),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_may_be_long_has_a_datagram_of_its_own(alone: ChangeFrame) -> None:
    frames: list[Frame] = [Flushed(ID), alone, alone, Install(ID), Ping(1)]
    datagrams = codec().pack(frames, to=ME)
    assert unpacked(datagrams) == [[Flushed(ID)], [alone], [alone], [Install(ID), Ping(1)]]
    body = datagrams[1][len(TO_ME) :]
    ping = frame(22, struct.pack("<Q", 1))
    assert refusal(TO_ME + ping + body) is Reject.COUNT
    assert refusal(TO_ME + body + ping) is Reject.COUNT
    assert refusal(TO_ME + body * 2) is Reject.COUNT
    assert refusal(TO_ME + in_view(TAG) + ping + body) is Reject.COUNT
    assert codec().unpack(TO_ME + in_view(TAG) + body)[1] == [InView(TAG), alone]


def test_others_share_one() -> None:
    frames: list[Frame] = [
        Refuse(ID),
        Finish(ID, BEFORE),
        Want(ID, OTHER, FIFO, (range(1, 2),)),
        Flushed(ID),
        Install(ID),
        Installed(ID),
        Complain(OTHER),
    ]
    assert unpacked(codec(512).pack(frames, to=ME)) == [frames]


# What is refused

TWICE = members(ME, ME._replace(name="c"))
NOBODY = ME._replace(incarnation=0)
HALF = member(OTHER)[:-1]

REFUSED = {
    "no hello": (frame(64), Reject.FRAME_LENGTH),
    "half a hello": (frame(64, bytes(11)), Reject.FRAME_LENGTH),
    "hello without members": (hello(rest=b"", pad=0), Reject.FRAME_LENGTH),
    "hello that is too short": (hello(pad=142), Reject.FRAME_LENGTH),
    "hello that is padded too far": (hello(pad=144), Reject.FRAME_LENGTH),
    "hello with more than padding": (hello(rest=listed() + b"\1"), Reject.FRAME_LENGTH),
    "proposal with no permit": (propose(flags=4, permit=bytes(8)), Reject.SEQNO),
    "hello with no permit": (hello(16, secrets=(1, 2, 0)), Reject.SEQNO),
    "hello that purges otherwise": (hello(0, settings(4)), Reject.FLAGS),
    "hello with other streams": (hello(0, settings(streams=8)), Reject.FLAGS),
    "hello that suspects at once": (hello(0, bytes(3 + 7 * 8)), Reject.SETTINGS),
    "hello for messages of nothing": (hello(0, settings(size=0)), Reject.SETTINGS),
    "hello that never reports": (hello(0, settings(1, interval=61_000)), Reject.SETTINGS),
    "proposal that purges otherwise": (propose(agreed=settings(4)), Reject.FLAGS),
    "hello with half a coordinator": (hello(4, rest=HALF), Reject.MEMBER),
    "hello from view 0": (hello(8, rest=view_id(counter=0) + listed()), Reject.SEQNO),
    "hello from half a view": (hello(8, rest=bytes(7), pad=0), Reject.FRAME_LENGTH),
    "hello from nobody's view": (hello(8, rest=view_id()[:-1], pad=0), Reject.MEMBER),
    "hello with too many": (hello(rest=members(*CROWD)), Reject.COUNT),
    "hello with fewer than it says": (hello(rest=listed(member(ME), count=2)), Reject.MEMBER),
    "hello with nobody in it": (hello(rest=members(ME, NOBODY)), Reject.MEMBER),
    "hello with one twice": (hello(rest=TWICE), Reject.VIEW),
    "no proposal": (frame(65), Reject.FRAME_LENGTH),
    "proposal 0": (frame(65, bytes(3), view_id(counter=0), members(ME)), Reject.SEQNO),
    "proposal 2**63": (frame(65, bytes(3), view_id(counter=2**63), members(ME)), Reject.SEQNO),
    "proposal to nobody": (propose(listed()), Reject.COUNT),
    "proposal to too many": (propose(members(*CROWD)), Reject.COUNT),
    "proposal to one twice": (propose(TWICE), Reject.VIEW),
    "proposal to half a member": (propose(listed(HALF), b""), Reject.MEMBER),
    "proposal based on view 0": (propose(base=view_id(counter=0)), Reject.SEQNO),
    "proposal based on nobody's view": (propose(base=view_id(NOBODY)), Reject.MEMBER),
    "proposal of places in no view": (propose(listed(places_of(0, 2))), Reject.VIEW),
    "proposal of no places": (propose(listed(places_of(0, 0)), base=view_id()), Reject.COUNT),
    "proposal of place 512": (propose(listed(places_of(511, 2)), base=view_id()), Reject.VIEW),
    "half a run of places": (
        propose(listed(b"\0\1\0"), b"", base=view_id()),
        Reject.FRAME_LENGTH,
    ),
    "one leaves twice": (propose(leaving=places((1, 1), (0, 2))), Reject.VIEW),
    "place 512 leaves": (propose(leaving=places((511, 2))), Reject.VIEW),
    "none of a run leaves": (propose(leaving=places((3, 0))), Reject.COUNT),
    "more leave than a view has": (propose(leaving=places((0, 512), (0, 1))), Reject.COUNT),
    "half a run leaves": (propose(leaving=listed(b"\0", count=1)), Reject.FRAME_LENGTH),
    "no state": (frame(66), Reject.FRAME_LENGTH),
    "state for proposal 0": (state(ids=view_id(counter=0) + view_id()), Reject.SEQNO),
    "state in view 0": (state(ids=view_id() + view_id(counter=0)), Reject.SEQNO),
    "state unlisted up to 0": (state(2, view_id() * 2 + view_id(counter=0)), Reject.SEQNO),
    "state in a view with one twice": (state(who=TWICE), Reject.VIEW),
    "state in too large a view": (state(who=members(*CROWD)), Reject.COUNT),
    "four streams": (state(own=listed(*[bytes(9)] * 4)), Reject.COUNT),
    "own stream 3": (state(own=listed(b"\3" + bytes(8))), Reject.STREAM),
    "own 2**63": (state(own=listed(struct.pack("<BQ", 0, 2**63))), Reject.SEQNO),
    "half of an own": (
        state(own=listed(bytes(8), count=1), held=b"", flushed=b""),
        Reject.FRAME_LENGTH,
    ),
    "held of place 512": (state(held=listed(mark(512))), Reject.VIEW),
    "held of stream 3": (state(held=listed(mark(stream=3))), Reject.STREAM),
    "held up to 2**63": (state(held=listed(mark(seqno=2**63))), Reject.SEQNO),
    "held up to what there is": (state(held=listed(mark(seqno=2**64 - 1))), Reject.SEQNO),
    "too many held": (state(held=listed(*[mark()] * (3 * VIEW_MEMBERS_MAX + 1))), Reject.COUNT),
    "fewer held": (state(held=listed(mark(), count=2)), Reject.FRAME_LENGTH),
    "too many flushed": (
        state(flushed=listed(*[view_id() + listed()] * (FLUSHED_MAX + 1))),
        Reject.COUNT,
    ),
    "flushed 0": (state(flushed=listed(view_id(counter=0) + listed())), Reject.SEQNO),
    "flushed with one twice": (state(flushed=listed(view_id() + TWICE)), Reject.VIEW),
    "flushed with too many": (state(flushed=listed(view_id() + members(*CROWD))), Reject.COUNT),
    "no refusal": (frame(67), Reject.FRAME_LENGTH),
    "refusal of 0": (frame(67, b"\0", view_id(counter=0)), Reject.SEQNO),
    "0 promised": (frame(67, b"\1", view_id(), view_id(counter=0)), Reject.SEQNO),
    "nothing promised": (frame(67, b"\1", view_id()), Reject.FRAME_LENGTH),
    "half a coordinator": (frame(67, b"\2", view_id(), HALF), Reject.MEMBER),
    "0 to finish": (frame(68, view_id(), view_id(counter=0)), Reject.SEQNO),
    "nothing to finish": (frame(68, view_id()), Reject.FRAME_LENGTH),
    "no cut": (frame(69), Reject.FRAME_LENGTH),
    "cut 0": (frame(69, b"\0", view_id(counter=0), bytes(4)), Reject.SEQNO),
    "too many parts": (cut(listed(*[part()] * (VIEW_MEMBERS_MAX + 1))), Reject.COUNT),
    "fewer parts": (cut(listed(count=1), b""), Reject.FRAME_LENGTH),
    "part of view 0": (cut(listed(view_id(counter=0) + bytes(4))), Reject.SEQNO),
    "part with place 512": (cut(listed(part(places((0, 1), (512, 1))))), Reject.VIEW),
    "part with too many": (cut(listed(part(places((0, 512), (0, 1))))), Reject.COUNT),
    "parts with too many": (
        cut(listed(part(places((0, 300))), part(places((0, 213))))),
        Reject.COUNT,
    ),
    "part with fewer": (
        cut(listed(part(listed(bytes(2), count=9), b"")), b""),
        Reject.FRAME_LENGTH,
    ),
    "cut of place 512": (cut(listed(part(departed=listed(cut_mark(512))))), Reject.VIEW),
    "cut of stream 3": (cut(listed(part(departed=listed(cut_mark(stream=3))))), Reject.STREAM),
    "cut at 2**63": (cut(listed(part(departed=listed(cut_mark(seqno=2**63))))), Reject.SEQNO),
    "cut at 2**64 - 2": (
        cut(listed(part(departed=listed(cut_mark(seqno=2**64 - 2))))),
        Reject.SEQNO,
    ),
    "cut from place 512": (cut(listed(part(departed=listed(cut_mark(source=512))))), Reject.VIEW),
    "too many departed": (
        cut(listed(part(departed=listed(*[cut_mark()] * (3 * VIEW_MEMBERS_MAX + 1))))),
        Reject.COUNT,
    ),
    "half a mark": (cut(starts=listed(mark()[:-1], count=1), takers=b""), Reject.FRAME_LENGTH),
    "start of place 512": (cut(starts=listed(mark(512))), Reject.VIEW),
    "start of stream 3": (cut(starts=listed(mark(stream=3))), Reject.STREAM),
    "start at 2**63": (cut(starts=listed(mark(seqno=2**63))), Reject.SEQNO),
    "start at what there is": (cut(starts=listed(mark(seqno=2**64 - 1))), Reject.SEQNO),
    "too many starts": (cut(starts=listed(*[mark()] * (3 * VIEW_MEMBERS_MAX + 1))), Reject.COUNT),
    "want without stream": (frame(70), Reject.FRAME_LENGTH),
    "want without flags": (frame(70, b"\0"), Reject.FRAME_LENGTH),
    "want in view 0": (frame(70, b"\0\0", view_id(counter=0)), Reject.SEQNO),
    "want of nobody's": (frame(70, b"\0\0", view_id()), Reject.MEMBER),
    "want for nobody": (want(flags=1), Reject.MEMBER),
    "want of nothing": (want(), Reject.COUNT),
    "want of an empty range": (want((1, 0)), Reject.COUNT),
    "want of 0": (want((0, 1)), Reject.SEQNO),
    "want up to 2**63": (want((SEQNO_MAX, 2)), Reject.SEQNO),
    "want twice": (want((5, 2), (6, 1)), Reject.RANGES),
    "want of too much": (want(*((2 * i, 1) for i in range(1, 130))), Reject.COUNT),
    "ranges of two wants": (
        want((1, 1)) + want(*((2 * i, 1) for i in range(1, 129))),
        Reject.COUNT,
    ),
    "passed on without flags": (frame(71), Reject.FRAME_LENGTH),
    "passed on in view 0": (frame(71, b"\0", view_id(counter=0)), Reject.SEQNO),
    "passed on for nobody": (frame(71, b"\0", view_id()), Reject.MEMBER),
    "passed on to half an asker": (frame(71, b"\1", view_id(), member(ME), HALF), Reject.MEMBER),
    "nothing passed on": (forwarded(b""), Reject.FRAME_LENGTH),
    "passed on from stream 3": (forwarded(run(stream=3)), Reject.STREAM),
    "passed on from 0": (forwarded(run(first=0)), Reject.SEQNO),
    "none passed on": (forwarded(run(count=0)), Reject.COUNT),
    "too many passed on": (forwarded(run(1, MESSAGES_MAX + 1, b"\0\0")), Reject.COUNT),
    "passed on with other lengths": (forwarded(run(1, 2, b"\2\0abc")), Reject.LENGTHS),
    "flushed nothing": (frame(72), Reject.FRAME_LENGTH),
    "flushed view 0": (frame(72, view_id(counter=0)), Reject.SEQNO),
    "install view 2**63": (frame(73, view_id(counter=2**63)), Reject.SEQNO),
    "installed nobody's view": (frame(74, view_id(NOBODY)), Reject.MEMBER),
    "no complaint": (frame(75), Reject.FRAME_LENGTH),
    "state that is neither there nor not": (state(holding=b"\4" + listed()), Reject.FLAGS),
    "takers without a giver": (cut(takers=b"\xff\xff" + places((0, 1))), Reject.VIEW),
    "giver beyond the list": (cut(takers=struct.pack("<H", 512) + listed()), Reject.VIEW),
    "no piece": (frame(77), Reject.FRAME_LENGTH),
    "piece of nothing": (piece(rest=b""), Reject.COUNT),
    "piece beyond the last": (piece(index=2), Reject.COUNT),
    "piece of none": (piece(count=0), Reject.COUNT),
    "complaint of nobody": (frame(75, b"\0"), Reject.MEMBER),
    "no tag": (frame(76), Reject.FRAME_LENGTH),
    "short tag": (frame(76, bytes(7)), Reject.FRAME_LENGTH),
    "purged up to 2**63": (in_view(TAG, 2**63), Reject.SEQNO),
    "tag and more": (in_view(TAG, 0, 0), Reject.FRAME_LENGTH),
    "two tags": (in_view(TAG) * 2, Reject.COUNT),
    "tag after a ping": (frame(22, struct.pack("<Q", 1)) + in_view(TAG), Reject.COUNT),
    "kind 63": (frame(63), Reject.FRAME_KIND),
    "kind 79": (frame(79), Reject.FRAME_KIND),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_its_reason(name: str) -> None:
    malformed, reason = REFUSED[name]
    assert refusal(TO_ME + malformed) is reason


MARKS = tuple(Mark(0, FIFO, 1) for _ in range(3 * VIEW_MEMBERS_MAX + 1))
CUT_MARKS = tuple(CutMark(0, FIFO, 1, 0) for _ in MARKS)


def with_departed(*departed: CutMark) -> Cut:
    return Cut(ID, (PartMarks(BEFORE, (), departed),), ())


@pytest.mark.parametrize(
    "ours",
    [
        Hello(PLAIN, False, False, 0, view_id=ViewId(ME, 0)),
        Hello(PLAIN, False, False, 0, members=CROWD),
        Hello(PLAIN, False, False, 0, members=(ME, ME._replace(name="c"))),
        Propose(ViewId(ME, COUNTER_MAX + 1), (ME,), PLAIN),
        Propose(ID, (), PLAIN),
        Propose(ID, CROWD, PLAIN),
        Propose(ID, (ME,), PLAIN, (VIEW_MEMBERS_MAX,)),
        Propose(ID, (ME,), PLAIN, (-1,)),
        Propose(ID, (ME, OTHER), PLAIN, (1, 1)),
        Propose(ID, (ME,), PLAIN, (), ViewId(ME, 0)),
        Propose(ID, (range(0),), PLAIN, (), BEFORE),
        Propose(ID, (range(-1, 1),), PLAIN, (), BEFORE),
        Propose(ID, (range(0, 4, 2),), PLAIN, (), BEFORE),
        Propose(ID, (range(VIEW_MEMBERS_MAX + 1),), PLAIN, (), BEFORE),
        State(ID, ViewId(ME, 0)),
        State(ID, BEFORE, CROWD),
        State(ID, BEFORE, own=((FIFO, 1),) * 4),
        State(ID, BEFORE, own=((FIFO, -1),)),
        State(ID, BEFORE, own=((FIFO, SEQNO_MAX + 1),)),
        State(ID, BEFORE, held=MARKS),
        State(ID, BEFORE, held=(Mark(VIEW_MEMBERS_MAX, FIFO, 1),)),
        State(ID, BEFORE, held=(Mark(-1, FIFO, 1),)),
        State(ID, BEFORE, held=(Mark(0, FIFO, OWN),)),
        State(ID, BEFORE, held=(Mark(0, FIFO, SEQNO_MAX + 1),)),
        State(ID, BEFORE, flushed=(Flushable(ID, ()),) * (FLUSHED_MAX + 1)),
        State(ID, BEFORE, flushed=(Flushable(ViewId(ME, 0), ()),)),
        State(ID, BEFORE, flushed=(Flushable(ID, CROWD),)),
        State(ID, BEFORE, unlisted=ViewId(ME, 0)),
        Refuse(ViewId(ME, 0)),
        Refuse(ID, ViewId(ME, 0)),
        Finish(ID, ViewId(ME, 0)),
        Cut(ID, (PartMarks(BEFORE, (), ()),) * (VIEW_MEMBERS_MAX + 1), ()),
        Cut(ID, (PartMarks(ViewId(ME, 0), (), ()),), ()),
        Cut(ID, (PartMarks(BEFORE, (VIEW_MEMBERS_MAX,), ()),), ()),
        Cut(ID, (PartMarks(BEFORE, (0,) * (VIEW_MEMBERS_MAX + 1), ()),), ()),
        Cut(ID, (), (), VIEW_MEMBERS_MAX),
        Piece(72, 1, 0, 1, b"x"),
        Piece(65, 1, 1, 1, b"x"),
        Piece(65, 1, 0, 1, b""),
        with_departed(*CUT_MARKS),
        with_departed(CutMark(VIEW_MEMBERS_MAX, FIFO, 1, 0)),
        with_departed(CutMark(0, FIFO, 1, VIEW_MEMBERS_MAX)),
        with_departed(CutMark(-1, FIFO, 1, 0)),
        with_departed(CutMark(0, FIFO, 1, -1)),
        with_departed(CutMark(0, FIFO, -2, 0)),
        with_departed(CutMark(0, FIFO, SEQNO_MAX + 1, 0)),
        Cut(ID, (), MARKS),
        Cut(ID, (), (Mark(VIEW_MEMBERS_MAX, FIFO, 1),)),
        Cut(ID, (), (Mark(0, FIFO, OWN),)),
        Want(ID, OTHER, FIFO, ()),
        Want(ID, OTHER, FIFO, (range(0, 1),)),
        Want(ID, OTHER, FIFO, (range(5, 7), range(6, 8))),
        Want(ID, OTHER, FIFO, tuple(range(2 * i, 2 * i + 1) for i in range(1, 130))),
        Want(ViewId(ME, 0), OTHER, FIFO, (range(1, 2),)),
        Forwarded(ViewId(ME, 0), OTHER, Data(FIFO, 1, [b"x"])),
        Forwarded(ID, OTHER, Data(FIFO, 1, [])),
        Forwarded(ID, OTHER, Data(FIFO, 0, [b"x"])),
        Forwarded(ID, OTHER, Data(FIFO, 1, [bytes(65_480)])),
        Flushed(ViewId(ME, 0)),
        Install(ViewId(ME, COUNTER_MAX + 1)),
        Installed(ViewId(ME, 0)),
        InView(0),
        InView(-1),
        InView(2**64),
    ],
    ids=lambda each: repr(each)[:80],
)
def test_what_cannot_be_right_is_our_bug(ours: ChangeFrame) -> None:
    with pytest.raises(AssertionError):
        codec().pack([ours], to=ME)


def test_a_member_that_cannot_be_is_not_sent() -> None:
    for wrong in (Complain(NOBODY), Propose(ID, (NOBODY,), PLAIN), Refuse(ID, coordinator=NOBODY)):
        with pytest.raises(ConfigError):
            codec().pack([wrong], to=ME)


# What is long


def long_named(count: int) -> tuple[Member, ...]:
    return tuple(LONGEST._replace(incarnation=number) for number in range(1, count + 1))


def joined(datagrams: Sequence[bytes], one: Echo) -> Frame:
    """What came in pieces."""
    pieces = [piece for datagram in datagrams for piece in one.unpack(datagram)[1]]
    first = pieces[0]
    assert isinstance(first, Piece)
    assert first.count == len(pieces)
    content = b""
    for index, piece in enumerate(pieces):
        assert isinstance(piece, Piece)
        assert piece == replace(first, index=index, content=piece.content)
        content += piece.content
    return decode_pieces(first.kind, content)


def largest() -> list[Frame]:
    most, places = long_named(VIEW_MEMBERS_MAX), tuple(range(VIEW_MEMBERS_MAX))
    marks = tuple(Mark(place, stream, SEQNO_MAX) for place in places for stream in Stream)
    departed = tuple(CutMark(*each, 511) for each in marks)
    ids = tuple(ViewId(who, COUNTER_MAX) for who in most)
    return [
        Hello(PLAIN, True, True, COUNTER_MAX, ME, ID, VIEW_MEMBERS_MAX, most),
        Propose(ID, most, PLAIN, places[::-1]),
        State(ID, BEFORE, most, held=marks, flushed=(Flushable(ID, most),), refused=most),
        Cut(ID, (PartMarks(BEFORE, places[::-1], departed),), marks),
        Cut(ID, tuple(PartMarks(id, (n,), ()) for n, id in enumerate(ids)), marks),
    ]


@pytest.mark.parametrize("ours", largest(), ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("size", [512, 1400, 20_000])
def test_as_many_as_may_be_travel_in_pieces(ours: Frame, size: int) -> None:
    one = Echo("g" * 64, LONGEST, size)
    datagrams = one.pack([Flushed(ID), ours, Flushed(ID)], to=LONGEST)
    assert all(len(datagram) <= size for datagram in datagrams)
    assert joined(datagrams[1:-1], one) == ours
    assert one.pack([ours], to=LONGEST) == datagrams[1:-1]  # the same whenever it is repeated


def test_what_fits_a_datagram_is_not_cut() -> None:
    fits = Propose(ID, CROWD[:30], PLAIN)
    (datagram,) = codec(600).pack([fits], to=ME)
    assert unpacked([datagram]) == [[fits]]
    assert len(codec(512).pack([fits], to=ME)) == 2


def test_a_hello_to_anyone_is_in_one_datagram() -> None:
    hello = Hello(PLAIN, True, False, 1, LONGEST, ViewId(LONGEST, 1), 1, (LONGEST,))
    (datagram,) = codec(512).pack([hello])
    assert len(datagram) > 512
    assert unpacked([datagram]) == [[hello]]


def test_pieces_that_say_something_else_are_refused() -> None:
    for kind, content in ((65, b"x"), (64, b""), (69, frame(69)[3:])):
        with pytest.raises(DecodeError):
            decode_pieces(kind, content)


def test_long_names_are_told_whatever_our_datagrams_hold() -> None:
    long_id = ViewId(LONGEST, COUNTER_MAX)
    gaps = tuple(range(2 * i, 2 * i + 1) for i in range(1, NACK_RANGES_MAX + 1))
    frames: list[Frame] = [
        Refuse(long_id, long_id, LONGEST),
        Finish(long_id, long_id),
        Want(long_id, LONGEST, FIFO, gaps, LONGEST),
        Flushed(long_id),
        Complain(LONGEST),
    ]
    one = Echo("g" * 64, LONGEST, 512)
    datagrams = one.pack(frames, to=LONGEST)
    received = [one.unpack(datagram)[1] for datagram in datagrams]
    assert received == [[each] for each in frames]
    assert [len(datagram) > 512 for datagram in datagrams] == [True, True, True, False, False]


def test_a_want_is_cut_where_a_datagram_is_full() -> None:
    gaps = tuple(range(2 * i, 2 * i + 1) for i in range(1, NACK_RANGES_MAX + 1))
    pieces = unpacked(codec(512).pack([Want(ID, OTHER, UNIFORM, gaps, ME)], to=ME))
    assert len(pieces) > 2
    wanted: list[range] = []
    for (piece,) in pieces:
        assert isinstance(piece, Want)
        assert (piece.id, piece.sender, piece.stream, piece.asker) == (ID, OTHER, UNIFORM, ME)
        wanted += piece.missing
    assert tuple(wanted) == gaps


@pytest.mark.parametrize(
    "sizes", [[100] * 50, [99, 101] * 25, [600, 10]], ids=["equal", "mixed", "larger"]
)
def test_a_long_run_is_passed_on_in_pieces(sizes: list[int]) -> None:
    payloads = [bytes(size) for size in sizes]
    datagrams = codec(512).pack([Forwarded(ID, OTHER, Data(UNIFORM, 7, payloads), ME)], to=ME)
    following = 7
    passed_on = []
    for (piece,) in unpacked(datagrams):
        assert isinstance(piece, Forwarded)
        assert (piece.id, piece.sender, piece.asker) == (ID, OTHER, ME)
        assert (piece.data.stream, piece.data.first) == (UNIFORM, following)
        following = piece.data.last + 1
        passed_on += piece.data.payloads
    assert passed_on == payloads
    assert [len(datagram) > 512 for datagram in datagrams].count(True) == sizes.count(600)


def test_the_largest_payload_of_all_can_be_passed_on_by_anybody() -> None:
    sender = Echo("g" * 64, ME, DATAGRAM_BYTES_MAX)
    largest = Data(FIFO, 1, [bytes(sender.payload_bytes_max)])
    assert len(largest.payloads[0]) > 64_000
    frames: list[Frame] = [
        Forwarded(ViewId(LONGEST, 1), LONGEST, largest, LONGEST),
        PeerRepair(LONGEST, largest),
    ]
    relay = Echo("g" * 64, LONGEST, 512)
    relay.tag = TAG
    passed, repaired = relay.pack(frames, to=LONGEST)
    assert DATAGRAM_BYTES_MAX - TAG_BYTES - MARK_BYTES == len(passed) > len(repaired)
    assert relay.unpack(passed)[1] == frames[:1]
    assert relay.unpack(repaired)[1] == [InView(TAG), frames[1]]


def test_encoded_lists_are_bounded() -> None:
    for count in range(1, 13):
        codec().pack([Propose(ID, CROWD[:count], PLAIN)], to=ME)
        codec().pack([Hello(PLAIN, False, False, 1, members=CROWD[:count])], to=ME)
    assert encode_members.cache_info().currsize == 8
    assert encode_listed.cache_info().currsize == 8


# Tags

IN_VIEW: list[Frame] = [
    Data(FIFO, 1, [b"x"]),
    Ack(FIFO, 2, 1, 3),
    Nack(FIFO, [range(1, 2)]),
    Watermark(UNIFORM, 4),
    Commit(3),
    PeerRepair(OTHER, Data(FIFO, 1, [b"x"])),
    PeerRepairRequest(OTHER, (range(1, 2),)),
    StabilityReport(ID, 1, 2, (3, 4)),
    StabilityQuery(ID, 1),
    Stable(ID, 1, 2, (StableMark(3, 4, 0),)),
    Heartbeat(4),
]
ANYWHERE: list[Frame] = [
    UnicastData(Conn(3, 1), 1, [b"x"]),
    Close(Conn(3, 1)),
    Ping(1),
    *(ours for ours, _ in BY_HAND if not isinstance(ours, InView)),
]


def test_the_tag_of_a_view() -> None:
    digest = hashlib.blake2b(view_id(), digest_size=8).digest()
    assert tag_of(ID) == int.from_bytes(digest, "little") > 0
    assert tag_of(ID) == tag_of(ViewId(ME, 4))
    assert len({tag_of(ID), tag_of(BEFORE), tag_of(ViewId(OTHER, 4))}) == 3
    assert tag_of.cache_parameters()["maxsize"] == 64


def test_no_view_has_the_tag_0(monkeypatch: pytest.MonkeyPatch) -> None:
    class Zero:
        def __init__(self, _: bytes, digest_size: int) -> None:
            self.size = digest_size

        def digest(self) -> bytes:
            return bytes(self.size)

    monkeypatch.setattr("ringcast.wire.changes.blake2b", Zero)
    assert tag_of.__wrapped__(ID) == 1


@pytest.mark.parametrize("ours", IN_VIEW, ids=lambda each: type(each).__name__)
def test_what_is_said_in_a_view_tells_it(ours: Frame) -> None:
    (datagram,) = tagged().pack([ours], to=ME)
    (plain,) = codec().pack([ours], to=ME)
    assert datagram == TO_ME + in_view(TAG) + plain[len(TO_ME) :]
    assert codec().unpack(datagram) == (ME, [InView(TAG), ours])


@pytest.mark.parametrize("ours", ANYWHERE, ids=lambda each: repr(each)[:60])
def test_what_is_said_anywhere_does_not(ours: Frame) -> None:
    assert tagged().pack([ours], to=ME) == codec().pack([ours], to=ME)


@pytest.mark.parametrize("ours", IN_VIEW + ANYWHERE, ids=lambda each: repr(each)[:60])
def test_without_a_tag_nothing_is_told(ours: Frame) -> None:
    plain = codec().pack([ours], to=ME)
    one = tagged()
    one.tag = 0
    assert one.pack([ours], to=ME) == plain


def test_the_tag_is_the_first_whatever_comes_first() -> None:
    frames: list[Frame] = [Ping(1), Flushed(ID), Ack(FIFO, 2, 1, 3), Ping(2), Data(FIFO, 1, [b"x"])]
    assert unpacked(tagged().pack(frames, to=ME)) == [[InView(TAG), *frames]]


def test_every_datagram_of_its_own_tells_it_or_not() -> None:
    report = StabilityReport(ID, 1, 2, (3, 4))
    proposal = Propose(ID, (ME,), PLAIN)
    frames: list[Frame] = [Ping(1), proposal, report, Ping(2), proposal, Heartbeat(1), Ping(3)]
    assert unpacked(tagged().pack(frames, to=ME)) == [
        [Ping(1)],
        [proposal],
        [InView(TAG), report],
        [Ping(2)],
        [proposal],
        [InView(TAG), Heartbeat(1), Ping(3)],
    ]


@pytest.mark.parametrize("sizes", [[100] * 50, [99, 101] * 25], ids=["equal", "mixed"])
@pytest.mark.parametrize("passed_on", [False, True])
def test_each_datagram_of_a_long_run_tells_it(sizes: list[int], passed_on: bool) -> None:
    payloads = [bytes(size) for size in sizes]
    data = Data(FIFO, 7, payloads)
    ours = PeerRepair(OTHER, data) if passed_on else data
    datagrams = tagged(512).pack([ours], to=ME)
    assert len(datagrams) > 2
    assert all(512 - 130 < len(datagram) <= 512 for datagram in datagrams[:-1])
    received = []
    for tag, piece in unpacked(datagrams):
        assert tag == InView(TAG)
        run = piece.data if isinstance(piece, PeerRepair) else piece
        assert isinstance(run, Data)
        received += run.payloads
    assert received == payloads


def test_each_datagram_of_many_ranges_tells_it() -> None:
    gaps = [range(2 * i, 2 * i + 1) for i in range(1, NACK_RANGES_MAX + 1)]
    frames: list[Frame] = [Nack(FIFO, gaps), PeerRepairRequest(OTHER, tuple(gaps))]
    datagrams = tagged(512).pack(frames, to=ME)
    assert all(len(datagram) <= 512 for datagram in datagrams)
    for received in unpacked(datagrams):
        assert received[0] == InView(TAG)
        assert len(received) > 1


def test_a_tag_is_one_of_the_frames_of_a_datagram() -> None:
    frames: list[Frame] = [Heartbeat(1)] * (FRAMES_MAX + 5)
    first, second = unpacked(tagged().pack(frames))
    assert first == [InView(TAG), *frames[: FRAMES_MAX - 1]]
    assert second == [InView(TAG), *frames[FRAMES_MAX - 1 :]]


@pytest.mark.parametrize("marked", [False, True])
def test_there_is_always_room_for_a_tag_and_for_a_mark(marked: bool) -> None:
    one = Echo("orders", ME, 512)
    room = one.payload_bytes_max
    if marked:
        one.mark(SEQNO_MAX)
    for tag in (0, TAG):
        one.tag = tag
        assert one.tag == tag
        assert one.payload_bytes_max == room
        largest = bytes(room)
        for ours in (UnicastData(Conn(3, 1), 1, [largest]), Data(FIFO, 1, [largest])):
            (datagram,) = one.pack([ours], to=ME)
            assert len(datagram) <= 512
    with pytest.raises(AssertionError, match="larger than a datagram"):
        one.pack([Data(FIFO, 1, [bytes(512)])])
    one.resize(400)
    assert one.payload_bytes_max == room - 112
    (datagram,) = one.pack([Data(FIFO, 1, [bytes(one.payload_bytes_max)])])
    assert len(datagram) <= 400


def test_a_mark_is_told_with_the_tag() -> None:
    one = Echo("orders", ME, 512)
    one.tag = TAG
    for purged in (0, 7, 7, SEQNO_MAX):
        one.mark(purged)
        assert unpacked(one.pack([Heartbeat(1)])) == [[InView(TAG, purged), Heartbeat(1)]]


def test_a_message_on_the_fast_path_has_no_tag() -> None:
    assert tagged().pack_message(ME, Conn(3, 1), 1, b"x") == codec().pack_message(
        ME, Conn(3, 1), 1, b"x"
    )


def test_what_is_no_tag_cannot_be_said() -> None:
    assert codec().tag == 0
    for wrong in (-1, 2**64):
        with pytest.raises(AssertionError):
            codec().tag = wrong


def test_a_tag_that_is_said_begins_a_datagram() -> None:
    frames: list[Frame] = [Heartbeat(1), InView(1), Data(FIFO, 1, [b"x"]), InView(2)]
    assert unpacked(codec().pack(frames)) == [frames[:1], frames[1:3], frames[3:]]
    with pytest.raises(AssertionError):
        tagged().pack(frames)


# Memory


def small(number: int) -> bytes:
    """Few bytes and much memory: texts that the interpreter does not share, large numbers."""
    who = Member(Address("\u0100", 60_000 + number % 5000), 2**63 + number, "\u0101")
    return member(who)


def small_id(number: int) -> bytes:
    return struct.pack("<Q", 2**62 + number) + small(number)


def smalls(first: int, count: int) -> bytes:
    return listed(*map(small, range(first, first + count)))


MEMORY = {
    "most members": propose(smalls(0, 512)),
    "most members, leaving": propose(
        smalls(0, 512), places(*((at, 1) for at in range(511, -1, -1)))
    ),
    "most runs": propose(
        listed(*(places_of(300 + at % 2, 200) for at in range(512))), base=view_id()
    ),
    "most greeted": hello(rest=smalls(0, 512)),
    "most flushed": state(
        flushed=listed(*(small_id(at) + smalls(1000 * at, 490) for at in range(8)))
    ),
    "most flushed but the last is wrong": state(
        flushed=listed(*(small_id(at) + smalls(1000 * at, 490) for at in range(8)))[:-1]
    ),
    "most held": state(
        who=smalls(0, 512),
        held=listed(*(mark(at // 2, at % 2, 2**62 + at) for at in range(1024))),
    ),
    "most parts": cut(listed(*(small_id(at) + listed() + listed() for at in range(512)))),
    "most places": cut(
        listed(*(small_id(at) + places((at, 1), (511 - at, 1)) + listed() for at in range(250)))
    ),
    "most departed": cut(
        listed(
            *(
                part(departed=listed(*(cut_mark(300, 1, 2**62 + n, 301) for n in range(1000))))
                for _ in range(5)
            )
        )
    ),
    "most starts": cut(starts=listed(*(mark(300, 1, 2**62 + at) for at in range(1024)))),
    "a large piece": piece(rest=bytes(60_000)),
}


@pytest.mark.parametrize("name", MEMORY)
def test_unpacking_takes_memory_in_proportion(name: str) -> None:
    one = codec()
    datagram = TO_ME + MEMORY[name]
    assert len(datagram) <= DATAGRAM_BYTES_MAX
    tracemalloc.start()
    try:
        try:
            kept = one.unpack(datagram)
        except DecodeError:
            kept = None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (kept is None) == name.endswith("is wrong")
    assert peak <= 24 * len(datagram) + (96 << 10)


MANY_SMALL = {
    "many refusals": frame(67, b"\3", small_id(1), small_id(2), small(3)) * 128,
    "many that finish": frame(68, small_id(1), small_id(2)) * 128,
    "many wants": b"".join(
        frame(70, b"\0\1", small_id(1), small(2), small(3), struct.pack("<QI", 2**62 + at, 1))
        for at in range(128)
    ),
    "many complaints": frame(75, b"\1", small(1)) * 128,
    "small payloads passed on": forwarded(run(1, MESSAGES_MAX, b"\2\0" + bytes(2 * MESSAGES_MAX))),
}


@pytest.mark.parametrize("name", MANY_SMALL)
def test_unpacking_what_is_short_takes_little_more(name: str) -> None:
    one = codec()
    datagram = TO_ME + MANY_SMALL[name]
    tracemalloc.start()
    try:
        one.unpack(datagram)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= 24 * len(datagram) + (96 << 10)
