"""One message that is next in order may pass by the windows: whoever looks finds no difference."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ringcast.config import UnicastConfig
from ringcast.core.effects import Effects
from ringcast.explore.abstraction import clone
from ringcast.model import SEQNO_MAX, Address, Member, Stream, View, ViewId
from ringcast.protocols.unicast import ReliableUnicast
from ringcast.window.send import SendWindow
from ringcast.wire.codec import Codec
from ringcast.wire.frames import Data, UnicastData

A, B = (Member(Address("h", n), n, name) for n, name in enumerate("AB", 1))
BOTH = View(ViewId(A, 1), (A, B))
FRAGMENT = 40
MS = 1_000_000


def one(me: Member) -> ReliableUnicast:
    config = UnicastConfig(capacity=64, window_bytes=1 << 16, expiry_s=2.0)
    unicast = ReliableUnicast(
        me, config, fragment_bytes=FRAGMENT, datagram_bytes=1000, max_message_bytes=1000
    )
    unicast.group.change(BOTH, [unicast], 0, Effects())
    return unicast


sizes = st.lists(st.sampled_from([0, 1, FRAGMENT, FRAGMENT + 1, 3 * FRAGMENT]), max_size=12)


def frames_of(payloads: list[bytes]) -> list[UnicastData]:
    sender, out = one(A), Effects()
    assert sender.send(payloads, B, 0, out) == len(payloads)
    runs = [frame for _, frame in out.frames if isinstance(frame, UnicastData)]
    return [
        UnicastData(run.conn, seqno, [payload], more=run.more)
        for run in runs
        for seqno, payload in enumerate(run.payloads, run.first)
    ]


def _mostly_in_order(count: int, data: st.DataObject) -> list[int]:
    """The next one (None), or any: some come late, twice, or never."""
    if not count:
        return []
    steps = data.draw(st.lists(st.none() | st.integers(0, count - 1), max_size=40))
    order, following = [], 0
    for step in steps:
        order.append(following % count if step is None else step)
        following += step is None
    return order


@given(sizes, st.data())
def test_what_passes_by_the_window_is_what_would_have_come_out_of_it(
    lengths: list[int], data: st.DataObject
) -> None:
    frames = frames_of([bytes([number]) * size for number, size in enumerate(lengths)])
    order = _mostly_in_order(len(frames), data)
    short, long = one(B), one(B)
    got: dict[bool, list[bytes]] = {True: [], False: []}
    passed = 0
    for step, at in enumerate(order):
        now, frame = step * MS, frames[at]
        if not frame.more and short.take_next(A, frame.conn, frame.first, now):
            passed += 1
            got[True] += frame.payloads
        else:
            short.receive(A, [frame], now, Effects())
            got[True] += [payload for _, payload in short.take_all(now, Effects())]
        long.receive(A, [frame], now, Effects())
        got[False] += [payload for _, payload in long.take_all(now, Effects())]
        short.check_invariants()
        assert got[True] == got[False]
        for entry, other in zip(short.receivers.values(), long.receivers.values(), strict=True):
            mine, its = entry.window, other.window
            assert (mine.low, mine.delivered, mine.received, mine.high) == (
                *(its.low, its.delivered, its.received, its.high),
            )
            assert (entry.repair.known, entry.repair.announced, entry.repair.gap_count) == (
                *(other.repair.known, other.repair.announced, other.repair.gap_count),
            )
            assert (entry.state, entry.used_at, entry.conn) == (
                *(other.state, other.used_at, other.conn),
            )
    assert passed <= len(got[True])


@given(
    st.lists(st.sampled_from([0, 1, 700, 900]), max_size=30),
    st.integers(0, 5000),
    st.sampled_from([None, 512, 800]),
)
def test_one_message_is_charged_as_a_run_of_one(
    lengths: list[int], max_bytes: int, bulk_bytes: int | None
) -> None:
    window = SendWindow(8, max_bytes=max_bytes, datagram_bytes=1000)
    window.bulk_bytes = bulk_bytes
    for size in lengths:
        other = clone(window)
        is_accepted = window.append(bytes(size))
        # An empty window admits one message whatever the bound: that is left to the longer way.
        is_exception = other.high == other.low and not is_accepted
        assert is_exception or (other.append_run([bytes(size)]) == 1) == is_accepted
        if is_accepted:
            assert (window.high, window.charged) == (other.high, other.charged)
            assert window.read_run(range(1, 100)) == other.read_run(range(1, 100))
        window.check_invariants()
        if window.room == 0:
            window.purge(window.high - 2, forced=True)


@given(
    st.integers(0, 1000),
    st.integers(1, SEQNO_MAX),
    st.sampled_from([300, 1000]),
    st.sampled_from([0, 7]),
    st.booleans(),
)
def test_one_message_is_packed_as_a_run_of_one(
    size: int, first: int, datagram_bytes: int, tag: int, more: bool
) -> None:
    codec = Codec("group", A, 1000)
    payload = bytes(min(size, codec.payload_bytes_max))
    codec.resize(datagram_bytes)  # what is larger was cut before
    codec.tag = tag
    short = codec.pack([Data(Stream.FIFO, first, [payload], more=more)])
    uncut = Data.uncut(Stream.FIFO, first, 1, lambda: [payload], more=more)  # the longer way
    assert short == codec.pack([uncut])
    assert [Data(Stream.FIFO, first, [payload], more=more)] == [
        frame
        for datagram in short
        for frame in Codec("group", B, 1000).unpack(datagram)[1]
        if isinstance(frame, Data)
    ]
