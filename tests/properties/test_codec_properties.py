"""Whatever we pack comes out; whatever strangers send is refused and nothing worse."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from itertools import chain, pairwise
from typing import TYPE_CHECKING, TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from ringcast.config import DATAGRAM_BYTES_MAX
from ringcast.errors import DecodeError
from ringcast.model import CONN_ID_MAX, SEQNO_MAX, Address, Conn, Headed, Member, Stream
from ringcast.wire.changes import Forwarded, InView, Piece, Want, decode_pieces
from ringcast.wire.frames import (
    Close,
    Data,
    Nack,
    PeerRepair,
    PeerRepairRequest,
    UnicastData,
    UnicastNack,
    Watermark,
)
from ringcast.wire.layout import FRAMES
from ringcast.wire.limits import COUNTER_MAX, NACK_RANGES_MAX
from support.declared import any_frame, streams
from support.echo import Echo

if TYPE_CHECKING:
    from ringcast.wire.frames import Frame

ME = Member(Address("127.0.0.1", 7800), 42, "a")
HEADER = Echo("orders", ME, 512).pack([Watermark(Stream.FIFO, 0)])[0][:-12]
TO_ME = Echo("orders", ME, 512).pack([Watermark(Stream.FIFO, 0)], to=ME)[0][:-12]
PAYLOAD_BYTES_MAX = Echo("orders", ME, 512).payload_bytes_max
TAG_BYTES = 19
"""Of each datagram, kept for the tag of a view."""

conns = st.builds(
    Conn, st.integers(1, 3) | st.integers(1, COUNTER_MAX), st.integers(1, 3) | st.just(CONN_ID_MAX)
)
tags = st.integers(1, 3) | st.integers(1, 2**64 - 1)


@st.composite
def runs(draw: st.DrawFn) -> Data | UnicastData:
    sizes = st.one_of(st.integers(0, 8), st.integers(0, PAYLOAD_BYTES_MAX))
    lengths = draw(
        st.one_of(
            st.lists(sizes, min_size=1, max_size=12),
            st.tuples(sizes, st.integers(1, 300)).map(lambda pair: [pair[0]] * pair[1]),
        )
    )
    fill = draw(st.integers(0, 255))
    payloads = [bytes([(fill + index) % 256]) * size for index, size in enumerate(lengths)]
    first = draw(st.one_of(st.integers(1, 20), st.integers(1, SEQNO_MAX + 1 - len(payloads))))
    more = draw(st.booleans())
    if draw(st.booleans()):
        payloads = list(map(Headed, payloads))
    if draw(st.booleans()):
        return Data(draw(streams), first, payloads, more=more)
    return UnicastData(draw(conns), first, payloads, more=more)


@st.composite
def following(draw: st.DrawFn, run: Data | UnicastData) -> Data | UnicastData:
    """A run that continues this one, or nearly."""
    first = draw(st.sampled_from([run.first, min(run.last + 1, SEQNO_MAX)]))
    more = draw(st.sampled_from([run.more, run.more, not run.more]))
    payloads = draw(st.sampled_from([[b"next"], [Headed(b"next")]]))
    if isinstance(run, Data):
        return Data(run.stream, first, payloads, more=more)
    conn = draw(st.sampled_from([run.conn, run.conn, run.conn._replace(id=CONN_ID_MAX)]))
    return UnicastData(conn, first, payloads, more=more)


pieces = st.one_of(
    runs().map(lambda run: [run]),
    runs().flatmap(lambda run: following(run).map(lambda after: [run, after])),
    any_frame.map(lambda frame: [frame]),
    any_frame.map(lambda frame: [frame]),
)
frame_lists: st.SearchStrategy[list[Frame]] = st.lists(pieces, max_size=8).map(
    lambda lists: list(chain.from_iterable(lists))
)
codecs = st.sampled_from([512, 513, 600, 1400, 9000, 65_507]).map(
    lambda datagram_bytes: Echo("orders", ME, datagram_bytes)
)


Asking: TypeAlias = Nack | UnicastNack | PeerRepairRequest | Want


def whole(frames: list[Frame]) -> list[Frame]:
    """With those put together that came in pieces."""
    found: list[Frame] = []
    for frame in frames:
        found.append(frame)
        count = frame.count if isinstance(frame, Piece) else 0
        pieces = [each for each in found[-count:] if isinstance(each, Piece)]
        places = [replace(piece, content=b"") for piece in pieces]
        if count > 1 and places == [replace(places[0], index=at) for at in range(count)]:
            body = b"".join(piece.content for piece in pieces)
            with contextlib.suppress(DecodeError):  # they are of no frame, but drawn like that
                found[-count:] = [decode_pieces(pieces[0].kind, body)]
    return found


def itemised(frames: list[Frame]) -> list[object]:
    """What the frames say, message by message and range by range: cuts and merges vanish."""
    items: list[object] = []
    for frame in whole(frames):
        if isinstance(frame, Data | UnicastData):
            whose = frame.stream if isinstance(frame, Data) else frame.conn
            items += [
                (whose, frame.more, seqno, type(payload), payload)
                for seqno, payload in enumerate(frame.payloads, frame.first)
            ]
        elif isinstance(frame, Asking):
            items += [(type(frame), whose_gaps(frame), gap) for gap in frame.missing]
        elif isinstance(frame, PeerRepair):
            items += [(frame.sender, item) for item in itemised([frame.data])]
        elif isinstance(frame, Forwarded):
            whose = frame.id, frame.sender, frame.asker
            items += [(whose, item) for item in itemised([frame.data])]
        else:
            items.append(frame)
    return items


def whose_gaps(frame: Asking) -> object:
    match frame:
        case Nack():
            return frame.stream
        case UnicastNack():
            return frame.conn
        case PeerRepairRequest():
            return frame.sender
        case Want():
            return frame.id, frame.sender, frame.stream, frame.asker


def bytes_of_first_item(frame: Frame) -> int:
    """What the first message, range or watermark takes as a frame of its own."""
    match frame:
        case Data():
            alone: Frame = Data(frame.stream, frame.first, frame.payloads[:1], more=frame.more)
        case UnicastData():
            alone = UnicastData(frame.conn, frame.first, frame.payloads[:1], more=frame.more)
        case Nack() | UnicastNack() | PeerRepairRequest() | Want():
            alone = replace(frame, missing=frame.missing[:1])
        case _:
            alone = frame
    (datagram,) = Echo("orders", ME, DATAGRAM_BYTES_MAX).pack([alone], to=ME)
    return len(datagram) - len(TO_ME)


def is_alone(frame: Frame) -> bool:
    return type(frame) in FRAMES and FRAMES[type(frame)].is_alone


def is_said_in_view(frame: Frame) -> bool:
    return isinstance(frame, Data) or (type(frame) in FRAMES and FRAMES[type(frame)].in_view)


@settings(deadline=None)
@given(codecs, frame_lists)
def test_what_is_packed_comes_out(codec: Echo, frames: list[Frame]) -> None:
    unpacked = [codec.unpack(datagram) for datagram in codec.pack(frames, to=ME)]
    assert {sender for sender, _ in unpacked} <= {ME}
    received = list(chain.from_iterable(frames for _, frames in unpacked))
    assert itemised(received) == itemised(frames)


@settings(deadline=None)
@given(st.sampled_from([512, 700, 1400, 65_507]), frame_lists)
def test_datagrams_are_bounded_and_as_full_as_order_allows(
    datagram_bytes: int, frames: list[Frame]
) -> None:
    codec = Echo("orders", ME, datagram_bytes)
    datagrams = codec.pack(frames, to=ME)
    for datagram in datagrams:
        _, here = codec.unpack(datagram)
        assert len(datagram) <= datagram_bytes or is_alone(here[0])
        assert len(here) == 1 or not any(map(is_alone, here))
    for datagram, after in pairwise(datagrams):
        _, here = codec.unpack(datagram)
        _, (there, *_) = codec.unpack(after)
        if is_alone(here[0]) or is_alone(there) or isinstance(there, InView):
            continue
        ranges = sum(len(frame.missing) for frame in here if isinstance(frame, Asking))
        asks = isinstance(there, Asking)
        if not (asks and ranges == NACK_RANGES_MAX):
            assert len(datagram) + bytes_of_first_item(there) > datagram_bytes - TAG_BYTES


@settings(deadline=None)
@given(st.sampled_from([512, 700, 65_507]), tags, frame_lists)
def test_a_tag_begins_each_datagram_that_speaks_in_a_view_and_no_other(
    datagram_bytes: int, tag: int, frames: list[Frame]
) -> None:
    untold = [frame for frame in frames if not isinstance(frame, InView)]
    codec = Echo("orders", ME, datagram_bytes)
    codec.tag = tag
    received: list[Frame] = []
    for datagram in codec.pack(fitting(untold, codec.payload_bytes_max), to=ME):
        _, here = codec.unpack(datagram)
        told = [frame for frame in here if isinstance(frame, InView)]
        said = here[len(told) :]
        assert told == [InView(tag)] * any(map(is_said_in_view, said))
        assert not any(isinstance(frame, InView) for frame in said)
        assert len(datagram) <= datagram_bytes or is_alone(said[0])
        received += said
    assert itemised(received) == itemised(fitting(untold, codec.payload_bytes_max))


def fitting(frames: list[Frame], payload_bytes_max: int) -> list[Frame]:
    """Without runs that have a larger message."""
    return [
        frame
        for frame in frames
        if not isinstance(frame, Data | UnicastData)
        or max(map(len, frame.payloads)) <= payload_bytes_max
    ]


messages_alone = st.builds(
    lambda conn, first, size, more: UnicastData(conn, first, [bytes(size)], more=more),
    *(conns, st.integers(1, SEQNO_MAX), st.integers(0, PAYLOAD_BYTES_MAX), st.booleans()),
)


@given(codecs, messages_alone, st.booleans())
def test_the_short_way_packs_one_message_as_the_longer_one(
    codec: Echo, message: UnicastData, is_narrower: bool
) -> None:
    payload = message.payloads[0][: codec.payload_bytes_max]
    if is_narrower:
        codec.resize(0)  # what was a whole datagram is too long now, and goes all the same
    conn, seqno = message.conn, message.first
    longer = codec.pack([UnicastData(conn, seqno, [payload])], to=ME)
    assert [codec.pack_message(ME, conn, seqno, payload)] == longer


@settings(deadline=None)
@given(st.one_of(messages_alone.map(lambda message: [message]), frame_lists), st.data())
def test_the_short_way_understands_what_the_longer_one_does_or_nothing(
    frames: list[Frame], data: st.DataObject
) -> None:
    codec = Echo("orders", ME, 1000)
    known = codec.pack([Close(Conn(1, 1))], to=ME)
    assert codec.unpack_message(known[0]) is None
    codec.unpack(known[0])
    for datagram in codec.pack(frames, to=ME):
        received = bytearray(datagram)
        for _ in range(data.draw(st.integers(0, 2))):
            bit = data.draw(st.integers(0, 8 * len(received) - 1))
            received[bit // 8] ^= 1 << bit % 8
        message = codec.unpack_message(received)
        is_plain = received == datagram and isinstance(frames[0], UnicastData)
        if is_plain and len(frames) == 1 and frames[0].count == 1 and not frames[0].more:
            assert message is not None
        if message is not None:
            sender, conn, seqno, payload = message
            assert codec.unpack(received) == (sender, [UnicastData(conn, seqno, [payload])])


@settings(deadline=None)
@given(codecs, frame_lists)
def test_a_received_datagram_packs_into_one_again(codec: Echo, frames: list[Frame]) -> None:
    for datagram in codec.pack(frames, to=ME):
        _, received = codec.unpack(datagram)
        (again,) = codec.pack(received, to=ME)
        assert itemised(codec.unpack(again)[1]) == itemised(received)


@settings(deadline=None)
@given(
    st.one_of(
        st.binary(max_size=300),
        st.builds(bytes.__add__, st.sampled_from([HEADER, TO_ME]), st.binary(max_size=60)),
        st.builds(
            lambda kind, body: TO_ME + bytes([kind]) + len(body).to_bytes(2, "little") + body,
            *(st.integers(64, 78), st.binary(max_size=90)),
        ),
    )
)
def test_strange_bytes_are_refused_or_understood(datagram: bytes) -> None:
    codec = Echo("orders", ME, 512)
    with contextlib.suppress(DecodeError):
        _, frames = codec.unpack(datagram)
        assert frames
        assert_valid(codec, frames)


@settings(deadline=None)
@given(frame_lists.filter(bool), st.data())
def test_flipped_bits_are_refused_or_understood(frames: list[Frame], data: st.DataObject) -> None:
    codec = Echo("orders", ME, 512)
    datagram = bytearray(data.draw(st.sampled_from(codec.pack(frames, to=ME))))
    for _ in range(data.draw(st.integers(1, 3))):
        bit = data.draw(st.integers(0, 8 * len(datagram) - 1))
        datagram[bit // 8] ^= 1 << bit % 8
    with contextlib.suppress(DecodeError):
        _, received = codec.unpack(datagram)
        assert_valid(codec, received)


def assert_valid(codec: Echo, frames: list[Frame]) -> None:
    """Whatever was accepted is something we could have sent: packing asserts every rule."""
    again = [frame for datagram in codec.pack(frames, to=ME) for frame in codec.unpack(datagram)[1]]
    assert itemised(again) == itemised(frames)
