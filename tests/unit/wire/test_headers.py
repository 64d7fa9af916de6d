"""Blocks of headers, and runs that are headed: what is said comes out, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringcast.errors import UsageError
from ringcast.model import NO_HEADERS, Address, Conn, Headed, Member, Stream, alike
from ringcast.wire.bursts import unpack_burst
from ringcast.wire.frames import Data, PeerRepair, UnicastData
from ringcast.wire.headers import (
    HEADERS_BYTES_MAX,
    encode_headers,
    read_headers,
    split_headers,
)
from support.echo import Echo

ME = Member(Address("127.0.0.1", 7800), 42, "a")
OTHER = Member(Address("127.0.0.1", 7801), 7, "b")
OWN = {"channel", "sent_at"}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
named = st.dictionaries(texts.filter(lambda name: name and name not in OWN), texts, max_size=5)


@given(named, texts, st.none() | st.integers(0, 2**63), st.binary(max_size=20))
def test_what_is_said_comes_out(
    given_: dict[str, str], channel: str, sent_ns: int | None, payload: bytes
) -> None:
    block = encode_headers(given_, channel, sent_ns)
    assert (block == b"") == (not given_ and not channel and sent_ns is None)
    if block:
        (headers,), payloads, unread = read_headers([Headed(block + payload)])
        assert (headers, payloads, unread) == (given_, [payload], 0)
        assert headers.channel == channel
        assert headers.sent_at == (None if sent_ns is None else sent_ns / 1e9)
        everything, rest = split_headers(block + payload)
        own = {"channel": channel} if channel else {}
        own |= {} if sent_ns is None else {"sent_at": str(sent_ns)}
        assert (everything, rest) == ({**given_, **own}, payload)
        assert type(payloads[0]) is bytes


@given(st.binary(max_size=40))
def test_bytes_of_anybody_are_headers_or_payload(message: bytes) -> None:
    """And a block has one form: what can be read is what would be written."""
    try:
        everything, payload = split_headers(message)
    except ValueError:
        headers, payloads, unread = read_headers([Headed(message)])
        assert (headers, payloads, unread) == ([NO_HEADERS], [message], 1)
        return
    given_ = {name: value for name, value in everything.items() if name not in OWN}
    if not OWN & everything.keys():
        assert (encode_headers(given_) or b"\0") + payload == message


@pytest.mark.parametrize(
    "message",
    [
        b"",  # no length
        b"\x80",  # half of one
        b"\x85\x00" + b"\x01k\x00",  # a length of two bytes that needs one
        b"\xff\xff\x01",  # of three
        b"\x03\x01k",  # an end that is missing
        b"\x02\x01k",  # a name without a value
        b"\x03\x01k\x01",  # a value that is too short
        b"\x02\x00\x00",  # no name
        b"\x06\x01k\x00\x01k\x00",  # a name twice
        b"\x04\x01k\x01\xff",  # no UTF-8
        b"\x0a\x07sent_at\x01x",  # no time
        b"\x09\x07sent_at\x00",
        b"\x81\x08" + bytes(1025),  # longer than a block may be
    ],
)
def test_what_is_no_block_is_refused(message: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of whatever kind
        split_headers(message)


def test_headers_are_read_as_a_mapping() -> None:
    block = encode_headers({"k": "v", "e": ""})
    ((headers, *_), _, _) = read_headers([Headed(block)])
    assert headers["k"] == "v"
    assert headers["e"] == ""
    assert headers.get("nothing") is None
    assert repr(headers) == "Headers({'k': 'v', 'e': ''})"
    assert encode_headers(headers) == block  # they may be sent on
    assert (NO_HEADERS, NO_HEADERS.channel, NO_HEADERS.sent_at) == ({}, "", None)


HOW_LONG = HEADERS_BYTES_MAX - 4
"""A value of a header with a name of one byte: its length takes two."""


def test_headers_are_bounded() -> None:
    block = encode_headers({"k": "x" * HOW_LONG})
    assert len(block) == HEADERS_BYTES_MAX + 2
    assert split_headers(block) == ({"k": "x" * HOW_LONG}, b"")
    with pytest.raises(
        UsageError, match="of 1025 bytes: 1024 at most; put the rest into the payload"
    ):
        encode_headers({"k": "x" * (HOW_LONG + 1)})
    with pytest.raises(UsageError, match="headers of 1034 bytes: 1024 at most"):
        encode_headers({"k": "x" * HOW_LONG}, "c")


MISTAKES: list[tuple[Any, Any, str]] = [
    (["k"], "", "headers are a dict of texts by name, not \\['k'\\]"),
    ({"k": []}, "", "headers are a dict of texts by name, not {'k': \\[\\]}"),
    ({"k": 1}, "", "names and values of headers are texts, not 'k': 1"),
    ({b"k": "v"}, "", "names and values of headers are texts, not b'k': 'v'"),
    ({"": "v"}, "", "a header has a name; that of 'v' is empty"),
    ({"k": "\ud800"}, "", "is not Unicode text"),
    ({"channel": "c"}, "", "the header 'channel' is the system's own: send with channel="),
    ({"sent_at": "0"}, "", "the header 'sent_at' is the system's own: join with send_time=True"),
    (None, 7, "channel is a text, not 7"),
    (None, None, "channel is a text, not None"),
]


@pytest.mark.parametrize(("headers", "channel", "words"), MISTAKES)
def test_mistakes_are_told(headers: Any, channel: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        encode_headers(headers, channel)


# Runs


def headed(*texts: bytes) -> list[bytes]:
    return list(map(Headed, texts))


def test_a_stretch_is_headed_or_not() -> None:
    plain, other = [b"a", b"b"], headed(b"c")
    assert [*alike(5, [])] == []
    found = [(first, run, type(run[0])) for first, run in alike(5, [*plain, *other, b"d"])]
    assert found == [(5, plain, bytes), (7, other, Headed), (8, [b"d"], bytes)]


RUNS: list[list[bytes]] = [
    headed(b"x"),
    headed(b"aa", b"bb"),
    headed(b"a", b"", b"ccc"),
    headed(*[b"x" * 100] * 50),
]


@pytest.mark.parametrize("payloads", RUNS, ids=len)
@pytest.mark.parametrize("more", [False, True])
def test_the_flag_travels_with_its_run(payloads: list[bytes], *, more: bool) -> None:
    codec = Echo("orders", ME, 1400)
    to_one = UnicastData(Conn(3, 1), 7, payloads, more=more)
    to_all = Data(Stream.FIFO, 7, payloads, more=more)
    for frame, to in ((to_all, None), (to_one, ME), (PeerRepair(OTHER, to_all), ME)):
        found = [each for packed in codec.pack([frame], to=to) for each in codec.unpack(packed)[1]]
        runs = [each.data if isinstance(each, PeerRepair) else each for each in found]
        assert all(run.headed and run.more == more for run in runs)
        assert [payload for run in runs for payload in run.payloads] == payloads
        assert {type(payload) for run in runs for payload in run.kept().payloads} == {Headed}


def test_runs_that_differ_in_it_are_not_joined() -> None:
    codec = Echo("orders", ME, 1400)
    frames = [
        Data(Stream.FIFO, 1, [b"a"]),
        Data(Stream.FIFO, 2, headed(b"b")),
        Data(Stream.FIFO, 3, [b"c"]),
    ]
    (datagram,) = codec.pack(frames)
    assert codec.unpack(datagram)[1] == frames
    assert frames[1] != Data(Stream.FIFO, 2, [b"b"])
    assert repr(frames[1]) == "Data(FIFO, 2..2, headed)"


def test_a_burst_is_one_headed_run() -> None:
    codec = Echo("orders", ME, 600)
    payloads = headed(*(b"%03d" % number * 60 for number in range(20)))
    burst = codec.pack([Data(Stream.FIFO, 1, payloads)])
    assert len(burst) > 3
    ((_, frames),) = unpack_burst(codec, burst, lambda _: None)
    assert frames == [Data(Stream.FIFO, 1, payloads)]
