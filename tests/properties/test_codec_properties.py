"""Whatever we pack comes out; whatever strangers send is refused and nothing worse."""

from __future__ import annotations

import contextlib
from itertools import chain, pairwise
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from ringcast.errors import DecodeError
from ringcast.model import SEQNO_MAX, Address, Member, Stream
from ringcast.wire.codec import ALLOWANCE_MAX, NACK_RANGES_MAX, Codec
from ringcast.wire.frames import Ack, Data, Hello, Highest, Nack

if TYPE_CHECKING:
    from ringcast.wire.frames import Frame

ME = Member(Address("127.0.0.1", 7800), 42, "a")
HEADER = Codec("orders", ME, 512).pack([Highest(Stream.FIFO, 0)])[0][:-12]
PAYLOAD_BYTES_MAX = Codec("orders", ME, 512).payload_bytes_max

streams = st.sampled_from(Stream)
seqnos = st.one_of(st.integers(0, 20), st.integers(0, SEQNO_MAX), st.just(SEQNO_MAX))


@st.composite
def runs(draw: st.DrawFn) -> Data:
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
    return Data(draw(streams), first, payloads, more=draw(st.booleans()))


@st.composite
def nacks(draw: st.DrawFn) -> Nack:
    count = draw(st.integers(1, NACK_RANGES_MAX))
    steps = draw(st.lists(st.integers(1, 50), min_size=2 * count, max_size=2 * count))
    stop = draw(st.integers(0, SEQNO_MAX - sum(steps)))
    missing = []
    for gap, size in zip(steps[::2], steps[1::2], strict=True):
        missing.append(range(stop + gap, stop + gap + size))
        stop += gap + size
    return Nack(draw(streams), missing)


@st.composite
def acks(draw: st.DrawFn) -> Ack:
    delivered, held = sorted([draw(seqnos), draw(seqnos)])
    return Ack(draw(streams), held, delivered, draw(st.integers(0, ALLOWANCE_MAX)))


def following(run: Data) -> st.SearchStrategy[Data]:
    """Runs that continue this one, or nearly."""
    firsts = st.sampled_from([run.first, min(run.last + 1, SEQNO_MAX)])
    return st.builds(
        lambda first, more: Data(run.stream, first, [b"next"], more=more),
        firsts,
        st.sampled_from([run.more, run.more, not run.more]),
    )


pieces = st.one_of(
    runs().map(lambda run: [run]),
    runs().flatmap(lambda run: following(run).map(lambda after: [run, after])),
    acks().map(lambda ack: [ack]),
    nacks().map(lambda nack: [nack]),
    st.builds(Highest, streams, seqnos).map(lambda highest: [highest]),
    st.builds(Hello, is_question=st.booleans()).map(lambda hello: [hello]),
)
frame_lists: st.SearchStrategy[list[Frame]] = st.lists(pieces, max_size=8).map(
    lambda lists: list(chain.from_iterable(lists))
)
codecs = st.sampled_from([512, 513, 600, 1400, 9000, 65_507]).map(
    lambda datagram_bytes: Codec("orders", ME, datagram_bytes)
)


def itemised(frames: list[Frame]) -> list[object]:
    """What the frames say, message by message and range by range: cuts and merges vanish."""
    items: list[object] = []
    for frame in frames:
        if isinstance(frame, Data):
            items += [
                (frame.stream, frame.more, seqno, payload)
                for seqno, payload in enumerate(frame.payloads, frame.first)
            ]
        elif isinstance(frame, Nack):
            items += [(frame.stream, gap) for gap in frame.missing]
        else:
            items.append(frame)
    return items


def bytes_of_first_item(frame: Frame) -> int:
    """What the first message, range or watermark would take as a frame of its own."""
    match frame:
        case Data():
            return 3 + 12 + 2 + len(frame.payloads[0])
        case Nack():
            return 3 + 1 + 12
        case Ack():
            return 3 + 25
        case Highest():
            return 3 + 9
        case Hello():
            return 3 + 1


@settings(deadline=None)
@given(codecs, frame_lists)
def test_what_is_packed_comes_out(codec: Codec, frames: list[Frame]) -> None:
    unpacked = [codec.unpack(datagram) for datagram in codec.pack(frames)]
    assert {sender for sender, _ in unpacked} <= {ME}
    received = list(chain.from_iterable(frames for _, frames in unpacked))
    assert itemised(received) == itemised(frames)


@settings(deadline=None)
@given(st.sampled_from([512, 700, 1400, 65_507]), frame_lists)
def test_datagrams_are_bounded_and_as_full_as_order_allows(
    datagram_bytes: int, frames: list[Frame]
) -> None:
    codec = Codec("orders", ME, datagram_bytes)
    datagrams = codec.pack(frames)
    assert all(len(datagram) <= datagram_bytes for datagram in datagrams)
    for datagram, after in pairwise(datagrams):
        _, here = codec.unpack(datagram)
        _, (there, *_) = codec.unpack(after)
        ranges = sum(len(frame.missing) for frame in here if isinstance(frame, Nack))
        if not (isinstance(there, Nack) and ranges == NACK_RANGES_MAX):
            assert len(datagram) + bytes_of_first_item(there) > datagram_bytes


@settings(deadline=None)
@given(codecs, frame_lists)
def test_a_received_datagram_packs_into_one_again(codec: Codec, frames: list[Frame]) -> None:
    for datagram in codec.pack(frames):
        _, received = codec.unpack(datagram)
        (again,) = codec.pack(received)
        assert itemised(codec.unpack(again)[1]) == itemised(received)


@settings(deadline=None)
@given(st.one_of(st.binary(max_size=300), st.binary(max_size=60).map(lambda tail: HEADER + tail)))
def test_strange_bytes_are_refused_or_understood(datagram: bytes) -> None:
    codec = Codec("orders", ME, 512)
    with contextlib.suppress(DecodeError):
        _, frames = codec.unpack(datagram)
        assert frames
        assert_valid(codec, frames)


@settings(deadline=None)
@given(frame_lists.filter(bool), st.data())
def test_flipped_bits_are_refused_or_understood(frames: list[Frame], data: st.DataObject) -> None:
    codec = Codec("orders", ME, 512)
    datagram = bytearray(data.draw(st.sampled_from(codec.pack(frames))))
    for _ in range(data.draw(st.integers(1, 3))):
        bit = data.draw(st.integers(0, 8 * len(datagram) - 1))
        datagram[bit // 8] ^= 1 << bit % 8
    with contextlib.suppress(DecodeError):
        _, received = codec.unpack(datagram)
        assert_valid(codec, received)


def assert_valid(codec: Codec, frames: list[Frame]) -> None:
    """Whatever was accepted is something we could have sent: packing asserts every rule."""
    again = [frame for datagram in codec.pack(frames) for frame in codec.unpack(datagram)[1]]
    assert itemised(again) == itemised(frames)
