"""Bursts: the same as datagrams one by one, whatever they hold and wherever they are cut."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringcast import Address, Member
from ringcast.model import SEQNO_MAX, Conn, Stream
from ringcast.wire.bursts import BURST_BYTES_MAX, bursts_of, unpack_burst
from ringcast.wire.codec import Codec
from ringcast.wire.frames import Ack, Data, Frame, Messages, UnicastData

if TYPE_CHECKING:
    from ringcast.errors import DecodeError

A, B = (Member(Address("127.0.0.1", 7000 + n), n + 1, "ab"[n]) for n in range(2))
DATAGRAM = 1400


def codec(me: Member, tag: int = 0) -> Codec:
    made = Codec("g", me, DATAGRAM)
    made.tag = tag
    return made


def messages(count: int, size: int) -> list[bytes]:
    return [number.to_bytes(2) * (size // 2) for number in range(count)]


def reject(error: DecodeError) -> None:
    raise error


def decoded(burst: list[bytes]) -> list[list[Frame]]:
    return [frames for _, frames in unpack_burst(codec(B), burst, reject)]


def payloads(found: list[list[Frame]]) -> list[tuple[int, bytes]]:
    runs = [frame for frames in found for frame in frames if isinstance(frame, Messages)]
    return [one for run in runs for one in enumerate(run.payloads, run.first)]


@pytest.mark.parametrize("tag", [0, 77])
@pytest.mark.parametrize("size", [1000, 400, 2])
def test_a_run_in_many_datagrams_is_one_again(tag: int, size: int) -> None:
    sent = Data(Stream.FIFO, 5, messages(3000 if size == 2 else 90, size))
    burst = codec(A, tag).pack([sent])
    assert len(burst) > 4
    first, *rest = decoded(burst[:-1])  # the last is shorter, or has fewer
    assert isinstance(first[-1], Data)
    assert rest == []
    assert payloads(decoded(burst)) == [*enumerate(sent.payloads, 5)]


def test_one_to_a_member_and_one_with_more_to_follow() -> None:
    sent = UnicastData(Conn(3, 2), 9, messages(40, 1000), more=True)
    found = decoded(codec(A).pack([sent], B))
    assert found == [[sent]]


@given(
    st.lists(
        st.tuples(st.integers(1, 12), st.sampled_from([2, 500, 1000, 1001]), st.booleans()),
        min_size=1,
        max_size=6,
    ),
    st.sets(st.integers(0, 70)),
    st.data(),
)
def test_what_is_lost_or_comes_in_any_order_is_the_same_as_one_by_one(
    runs: list[tuple[int, int, bool]], lost: set[int], data: st.DataObject
) -> None:
    first, frames = 1, list[Frame]()
    for count, size, more in runs:
        frames.append(Data(Stream.FIFO, first, messages(count, size), more=more))
        frames.append(Ack(Stream.FIFO, 1, 1, first))
        first += count
    sent = [one for at, one in enumerate(codec(A, 7).pack(frames)) if at not in lost]
    came = data.draw(st.permutations(sent)) if data.draw(st.booleans()) else sent
    single = [frames for one in came for frames in decoded([one])]
    assert payloads(decoded(came)) == payloads(single)
    flat = [frame for frames in decoded(came) for frame in frames if isinstance(frame, Ack)]
    assert flat == [frame for frames in single for frame in frames if isinstance(frame, Ack)]


def test_what_is_wrong_in_a_burst_is_rejected_alone() -> None:
    burst = codec(A).pack([Data(Stream.FIFO, 1, messages(9, 1000))])
    rejected: list[DecodeError] = []
    burst[4] = burst[4][:-1] + b""
    burst[6] = b"??" + burst[6][2:]
    found = [frames for _, frames in unpack_burst(codec(B), burst, rejected.append)]
    assert len(rejected) == 2
    assert [seqno for seqno, _ in payloads(found)] == [1, 2, 3, 4, 6, 8, 9]


def test_seqnos_end_where_they_end() -> None:
    burst = codec(A).pack([Data(Stream.FIFO, SEQNO_MAX - 3, messages(4, 1000))])
    forged = [*burst, burst[-1]]
    assert [seqno for seqno, _ in payloads(decoded(forged))][-1] == SEQNO_MAX


@given(st.lists(st.integers(1, 3), max_size=9), st.sampled_from([2, 300, 1000]))
def test_full_datagrams_are_as_if_filled_one_by_one(counts: list[int], size: int) -> None:
    """And the last one has room for what follows."""
    many = messages(50 + sum(counts), size)
    one = codec(A, 3)
    ack = Ack(Stream.FIFO, 1, 1, 1)
    packed = one.pack([Data(Stream.FIFO, 1, many), ack])
    found = [frame for datagram in packed for frame in codec(B).unpack(datagram)[1]]
    sizes = [frame.count for frame in found if isinstance(frame, Data)]
    assert [payload for _, payload in payloads([found])] == many
    assert found[-1] == ack
    assert all(len(datagram) <= DATAGRAM for datagram in packed)
    assert all(count == sizes[0] for count in sizes[:-1])
    start = 0
    for count, datagram in zip(sizes[:-1], packed, strict=False):
        (alone,) = one.pack([Data(Stream.FIFO, start + 1, many[start : start + count])])
        assert alone == datagram
        start += count


@given(st.lists(st.tuples(st.sampled_from("xy"), st.sampled_from([0, 40, 41, 30_000, 65_507]))))
def test_a_burst_is_of_one_length_to_one_place(sizes: list[tuple[str, int]]) -> None:
    datagrams = [(dest, bytes(size)) for dest, size in sizes]
    bursts = [*bursts_of(datagrams, 48)]
    assert [(dest, one) for dest, burst in bursts for one in burst] == datagrams
    for _, burst in bursts:
        lengths = [*map(len, burst)]
        assert len(set(lengths[:-1])) <= 1
        assert lengths[-1] <= lengths[0]
        assert len(burst) <= 64
        assert len(burst) == 1 or sum(lengths) + 48 * len(burst) <= BURST_BYTES_MAX
    for (dest, one), (to, other) in pairwise(bursts):
        is_full = len(one) == 64 or (len(one) + 1) * (len(one[0]) + 48) > BURST_BYTES_MAX
        is_ended = len(one) > 1 and len(one[-1]) < len(one[0])
        assert dest != to or len(other[0]) > len(one[0]) or is_full or is_ended
