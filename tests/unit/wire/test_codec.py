"""The codec against its page, its limits, and what strangers may send it."""

from __future__ import annotations

import json
import re
import struct
import tracemalloc
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ringcast.errors import ConfigError, DecodeError, Reject
from ringcast.model import SEQNO_MAX, Address, Member, Stream
from ringcast.wire import codec as codec_module
from ringcast.wire.codec import (
    ALLOWANCE_MAX,
    FRAMES_MAX,
    IDENTITIES_MAX,
    MESSAGES_MAX,
    NACK_RANGES_MAX,
    Codec,
)
from ringcast.wire.frames import Ack, Data, Hello, Highest, Nack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ringcast.wire.frames import Frame

FIFO, UNIFORM = Stream.FIFO, Stream.UNIFORM
ME = Member(Address("127.0.0.1", 7800), 42, "a")
HEADER = Codec("orders", ME, 512).pack([Highest(FIFO, 0)])[0][:-12]
PAGE = Path(__file__).parents[3] / "docs" / "wire.md"
MEMORY_CONSTANT = 96 << 10


def codec(datagram_bytes: int = 60_000) -> Codec:
    return Codec("orders", ME, datagram_bytes)


def payloads_of(frames: Iterable[Frame]) -> list[bytes]:
    return [payload for frame in frames if isinstance(frame, Data) for payload in frame.payloads]


def refusal(datagram: bytes, by: Codec | None = None) -> Reject:
    with pytest.raises(DecodeError) as caught:
        (by or codec()).unpack(datagram)
    return caught.value.reason


def frame(kind: int, body: bytes) -> bytes:
    return struct.pack("<BH", kind, len(body)) + body


def run(
    first: int, count: int, rest: bytes, *, stream: int = 0, flags: int = 1, kind: int = 1
) -> bytes:
    return frame(kind, struct.pack("<BBQH", stream, flags, first, count) + rest)


def ack(held: int, delivered: int, allowance: int = 0, *, stream: int = 0) -> bytes:
    return frame(2, struct.pack("<BQQQ", stream, held, delivered, allowance))


def nack(*ranges: tuple[int, int]) -> bytes:
    return frame(3, b"\0" + b"".join(struct.pack("<QI", *pair) for pair in ranges))


def identified(identity: bytes) -> bytes:
    highest = frame(4, struct.pack("<BQ", 0, 1))
    return b"RC\x01\x00" + bytes([len(identity)]) + identity + bytes(8) + highest


def identity(
    group: bytes = b"orders", host: bytes = b"h", name: bytes = b"", incarnation: int = 1
) -> bytes:
    def text(value: bytes) -> bytes:
        return bytes([len(value)]) + value

    return text(group) + text(host) + struct.pack("<HQ", 1, incarnation) + text(name)


class ChecksumSeal:
    """A toy: it finds accidents, not attackers."""

    overhead = 4

    def seal(self, datagram: bytes) -> bytes:
        return datagram + struct.pack("<I", zlib.crc32(datagram))

    def open(self, datagram: bytes) -> bytes:
        opened, checksum = datagram[:-4], datagram[-4:]
        if struct.pack("<I", zlib.crc32(opened)) != checksum:
            raise DecodeError(Reject.SEAL)
        return opened


# The page


def vectors() -> list[dict[str, list[str]]]:
    found = []
    for block in re.findall(r"^```vector\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S):
        fields: dict[str, list[str]] = {"hex": [], "sender": [], "frame": [], "refused": []}
        for line in block.splitlines():
            key, _, value = line.partition(" ")
            fields[key].append(value.strip())
        found.append(fields)
    return found


def in_words(frame: Frame) -> str:
    if isinstance(frame, Hello):
        return "hello, question" if frame.is_question else "hello, answer"
    stream = frame.stream.name.lower()
    match frame:
        case Data():
            more = ", more" if frame.more else ""
            texts = " ".join(json.dumps(payload.decode()) for payload in frame.payloads)
            return f"data {stream} {frame.first}..{frame.last}{more}: {texts}"
        case Ack():
            watermarks = f"held {frame.held}, delivered {frame.delivered}"
            return f"ack {stream} {watermarks}, allowance {frame.allowance}"
        case Nack():
            ranges = " ".join(f"{gap.start}..{gap.stop - 1}" for gap in frame.missing)
            return f"nack {stream} {ranges}"
        case Highest():
            return f"highest {stream} {frame.seqno}"


def test_the_page_has_vectors_of_both_sorts() -> None:
    assert len([vector for vector in vectors() if vector["frame"]]) >= 5
    assert len({vector["refused"][0] for vector in vectors() if vector["refused"]}) >= 5


@pytest.mark.parametrize(
    "vector", vectors(), ids=lambda vector: "; ".join(vector["frame"] or vector["refused"])
)
def test_vector_on_the_page(vector: dict[str, list[str]]) -> None:
    datagram = bytes.fromhex(" ".join(vector["hex"]))
    if vector["refused"]:
        assert [refusal(datagram).value] == vector["refused"]
        return
    sender, frames = codec().unpack(datagram)
    host = f"{sender.name} at {sender.address}, incarnation {sender.incarnation}"
    assert [host] == vector["sender"]
    assert [in_words(frame) for frame in frames] == vector["frame"]
    assert Codec("orders", sender, 512).pack(frames) == [datagram]


def test_the_page_lists_every_reason() -> None:
    rows = re.findall(
        r"^\| ([a-z ]+) \| ", PAGE.read_text("utf-8").partition("is refused")[2], re.M
    )
    assert rows == ["reason", *(reason.value for reason in Reject)]


# Packing


def test_nothing_to_pack_is_no_datagram() -> None:
    assert codec().pack([]) == []


def test_runs_that_continue_each_other_become_one() -> None:
    (datagram,) = codec().pack(
        [Data(FIFO, 1, [b"a"]), Data(FIFO, 2, [b"bb"]), Data(FIFO, 3, [b"c"])]
    )
    assert codec().unpack(datagram) == (ME, [Data(FIFO, 1, [b"a", b"bb", b"c"])])


@pytest.mark.parametrize(
    "second",
    [
        Data(FIFO, 4, [b"x"]),
        Data(FIFO, 2, [b"x"]),
        Data(UNIFORM, 3, [b"x"]),
        Data(FIFO, 3, [b"x"], more=True),
    ],
)
def test_other_runs_stay_apart(second: Data) -> None:
    frames: list[Frame] = [Data(FIFO, 1, [b"a", b"b"]), second]
    (datagram,) = codec().pack(frames)
    assert codec().unpack(datagram)[1] == frames


def test_a_frame_between_two_runs_keeps_them_apart() -> None:
    frames: list[Frame] = [Data(FIFO, 1, [b"a"]), Highest(FIFO, 2), Data(FIFO, 2, [b"b"])]
    (datagram,) = codec().pack(frames)
    assert codec().unpack(datagram)[1] == frames


def test_merging_leaves_the_frames_as_they_were() -> None:
    first, second = Data(FIFO, 1, [b"a"]), Data(FIFO, 2, [b"b"])
    codec().pack([first, second])
    assert (first.payloads, second.payloads) == ([b"a"], [b"b"])


def test_the_largest_payload_fills_a_datagram() -> None:
    one = codec(512)
    (datagram,) = one.pack([Data(FIFO, 1, [bytes(one.payload_bytes_max)])])
    assert len(datagram) == 512
    with pytest.raises(AssertionError):
        one.pack([Data(FIFO, 1, [bytes(one.payload_bytes_max + 1)])])


@pytest.mark.parametrize("sizes", [[100] * 1000, [99, 101] * 500], ids=["equal", "mixed"])
def test_a_long_run_fills_every_datagram_but_the_last(sizes: list[int]) -> None:
    payloads = [bytes(size) for size in sizes]
    datagrams = codec(1400).pack([Data(FIFO, 1, payloads)])
    assert all(1400 - 103 < len(datagram) <= 1400 for datagram in datagrams[:-1])
    runs = [codec().unpack(datagram)[1][0] for datagram in datagrams]
    assert payloads_of(runs) == payloads


def test_stretches_of_equal_length_are_found_in_a_mixed_run() -> None:
    payloads = [bytes(100)] * 100 + [b"end"]
    datagrams = codec(1400).pack([Data(FIFO, 1, payloads)])
    (equal,) = codec(1400).pack([Data(FIFO, 1, payloads[:13])])
    assert datagrams[0] == equal
    assert len(datagrams) == 8
    runs = [run for datagram in datagrams for run in codec().unpack(datagram)[1]]
    assert len(runs) == 8
    assert payloads_of(runs) == payloads


@pytest.mark.parametrize("sizes", [[0] * 300 + [1], [2, 1, 3] * 200], ids=["empty", "same sum"])
def test_a_cut_leaves_no_room_for_another_piece(sizes: list[int]) -> None:
    payloads = [bytes(size) for size in sizes]
    runs = [codec().unpack(datagram)[1] for datagram in codec(512).pack([Data(FIFO, 1, payloads)])]
    assert all(len(frames) == 1 for frames in runs)
    assert payloads_of(run for (run,) in runs) == payloads


def test_a_run_uses_what_room_is_left() -> None:
    one = codec(512)
    datagrams = one.pack([Highest(FIFO, 9), Data(FIFO, 1, [bytes(200)] * 3)])
    frames = [one.unpack(datagram)[1] for datagram in datagrams]
    assert frames == [
        [Highest(FIFO, 9), Data(FIFO, 1, [bytes(200)] * 2)],
        [Data(FIFO, 3, [bytes(200)])],
    ]


def test_empty_messages_are_bounded_by_count() -> None:
    datagrams = codec().pack([Data(FIFO, 1, [b""] * (MESSAGES_MAX + 1))])
    runs = [codec().unpack(datagram)[1] for datagram in datagrams]
    assert runs == [
        [Data(FIFO, 1, [b""] * MESSAGES_MAX)],
        [Data(FIFO, MESSAGES_MAX + 1, [b""])],
    ]


def test_messages_are_counted_over_all_runs_of_a_datagram() -> None:
    runs: list[Frame] = [Data(FIFO, 1, [b""] * MESSAGES_MAX), Data(UNIFORM, 1, [b"", b"x"])]
    datagrams = codec().pack(runs)
    assert [codec().unpack(datagram)[1] for datagram in datagrams] == [runs[:1], runs[1:]]


def test_empty_messages_need_room_for_their_size() -> None:
    one = codec(512)
    filler = Data(FIFO, 1, [bytes(one.payload_bytes_max - 16)])  # leaves one byte too few
    datagrams = one.pack([filler, Data(UNIFORM, 1, [b""])])
    assert [one.unpack(datagram)[1] for datagram in datagrams] == [
        [filler],
        [Data(UNIFORM, 1, [b""])],
    ]


@pytest.mark.parametrize(
    "one_of_many",
    [Highest(FIFO, 1), Data(FIFO, 5, [b"x"]), Nack(FIFO, [range(1, 2)])],
    ids=["highest", "data", "nack"],
)
def test_frames_are_bounded_by_count(one_of_many: Frame) -> None:
    frames: list[Frame] = [Highest(FIFO, 0)] * FRAMES_MAX
    datagrams = codec().pack([*frames, one_of_many])
    assert [codec().unpack(datagram)[1] for datagram in datagrams] == [frames, [one_of_many]]


def test_a_nack_is_cut_where_a_datagram_is_full() -> None:
    missing = [range(seqno, seqno + 1) for seqno in range(1, 2 * NACK_RANGES_MAX, 2)]
    one = codec(512)
    datagrams = one.pack([Nack(FIFO, missing)])
    assert all(len(datagram) <= 512 for datagram in datagrams)
    frames = [frame for datagram in datagrams for frame in one.unpack(datagram)[1]]
    assert len(frames) == len(datagrams) == 4
    nacks = [frame for frame in frames if isinstance(frame, Nack)]
    assert [gap for nack in nacks for gap in nack.missing] == missing


def test_ranges_are_counted_over_all_nacks_of_a_datagram() -> None:
    missing = [range(seqno, seqno + 1) for seqno in range(1, 2 * NACK_RANGES_MAX, 2)]
    frames: list[Frame] = [Nack(FIFO, missing), Nack(UNIFORM, missing)]
    datagrams = codec().pack(frames)
    assert [codec().unpack(datagram)[1] for datagram in datagrams] == [frames[:1], frames[1:]]


@pytest.mark.parametrize(
    "ours",
    [
        Data(FIFO, 1, []),
        Data(FIFO, 0, [b"x"]),
        Data(FIFO, SEQNO_MAX, [b"x", b"y"]),
        Ack(FIFO, 1, 2, 0),
        Ack(FIFO, SEQNO_MAX + 1, 0, 0),
        Ack(FIFO, 0, 0, -1),
        Ack(FIFO, 0, 0, ALLOWANCE_MAX + 1),
        Highest(FIFO, -1),
        Highest(FIFO, SEQNO_MAX + 1),
        Nack(FIFO, []),
        Nack(FIFO, [range(2 * i, 2 * i + 1) for i in range(1, NACK_RANGES_MAX + 2)]),
        Nack(FIFO, [range(0, 1)]),
        Nack(FIFO, [range(3, 3)]),
        Nack(FIFO, [range(1, 9, 2)]),
        Nack(FIFO, [range(1, 1 + 2**32)]),
        Nack(FIFO, [range(5, 7), range(6, 8)]),
        Nack(FIFO, [range(SEQNO_MAX, SEQNO_MAX + 2)]),
    ],
    ids=repr,
)
def test_what_cannot_be_right_is_our_bug(ours: Frame) -> None:
    with pytest.raises(AssertionError):
        codec().pack([ours])


def test_the_extremes_survive() -> None:
    frames: list[Frame] = [
        Data(FIFO, SEQNO_MAX - 1, [b"x", b""]),
        Ack(UNIFORM, SEQNO_MAX, SEQNO_MAX, ALLOWANCE_MAX),
        Ack(FIFO, 0, 0, 0),
        Nack(FIFO, [range(1, 2**32), range(2**32, 2**32 + 1), range(SEQNO_MAX, SEQNO_MAX + 1)]),
        Highest(UNIFORM, SEQNO_MAX),
        Highest(FIFO, 0),
        Hello(is_question=True),
        Hello(is_question=False),
    ]
    (datagram,) = codec().pack(frames)
    assert codec().unpack(datagram) == (ME, frames)


# Receiving


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda d: memoryview(bytearray(d))])
@pytest.mark.parametrize("payloads", [[b"abc"] * 3, [b"a", b"", b"bcd"], [b"ab"] * 2000])
def test_payloads_come_out_as_bytes_from_any_buffer(
    wrap: Callable[[bytes], bytes | bytearray | memoryview], payloads: list[bytes]
) -> None:
    (datagram,) = codec().pack([Data(FIFO, 1, payloads)])
    _, (received,) = codec().unpack(wrap(datagram))
    assert isinstance(received, Data)
    assert received.payloads == payloads
    assert {type(payload) for payload in received.payloads} == {bytes}


def test_payloads_read_in_time_outlive_the_buffer() -> None:
    (datagram,) = codec().pack([Data(FIFO, 1, [b"abc", b"de"])])
    buffer = bytearray(datagram)
    _, (received,) = codec().unpack(buffer)
    assert isinstance(received, Data)
    kept = received.payloads
    buffer[:] = bytes(len(buffer))
    assert kept == [b"abc", b"de"]


REFUSED = {
    "nothing": (b"", Reject.TOO_SHORT),
    "one byte": (b"R", Reject.TOO_SHORT),
    "no frame": (HEADER, Reject.TOO_SHORT),
    "identity cut short": (HEADER[:-1], Reject.TOO_SHORT),
    "beyond IPv4": (HEADER + bytes(65_508 - len(HEADER)), Reject.TOO_LONG),
    "magic": (b"rc" + HEADER[2:] + ack(1, 1), Reject.NOT_OURS),
    "version": (b"RC\x00" + HEADER[3:] + ack(1, 1), Reject.VERSION),
    "header flags": (b"RC\x01\x80" + HEADER[4:] + ack(1, 1), Reject.FLAGS),
    "group": (identified(identity(group=b"order")), Reject.GROUP),
    "no group": (identified(identity(group=b"")), Reject.IDENTITY),
    "no host": (identified(identity(host=b"")), Reject.IDENTITY),
    "long name": (identified(identity(name=b"n" * 65)), Reject.IDENTITY),
    "escape in name": (identified(identity(name=b"\x1b[2J")), Reject.IDENTITY),
    "not UTF-8": (identified(identity(name=b"\xff")), Reject.IDENTITY),
    "surrogate": (identified(identity(name=b"\xed\xa0\x80")), Reject.IDENTITY),
    "identity too long": (identified(identity() + b"\0"), Reject.IDENTITY),
    "name too short": (identified(identity(name=b"name")[:-1]), Reject.IDENTITY),
    "no name": (identified(identity()[:-1]), Reject.IDENTITY),
    "half an incarnation": (identified(identity()[:-5]), Reject.IDENTITY),
    "incarnation 0": (identified(identity(incarnation=0)), Reject.IDENTITY),
    "no identity": (identified(b""), Reject.IDENTITY),
    "for another incarnation": (HEADER[:-8] + b"\7" + bytes(7) + ack(1, 1), Reject.ADDRESSEE),
    "kind 0": (HEADER + frame(0, b""), Reject.FRAME_KIND),
    "kind 6": (HEADER + frame(6, b""), Reject.FRAME_KIND),
    "long hello": (HEADER + frame(5, b"\0\0"), Reject.FRAME_LENGTH),
    "hello with other flags": (HEADER + frame(5, b"\2"), Reject.FLAGS),
    "half a frame header": (HEADER + ack(1, 1) + b"\x02\x19", Reject.FRAME_LENGTH),
    "frame beyond the end": (HEADER + ack(1, 1)[:-1], Reject.FRAME_LENGTH),
    "short ack": (HEADER + frame(2, bytes(24)), Reject.FRAME_LENGTH),
    "long highest": (HEADER + frame(4, bytes(10)), Reject.FRAME_LENGTH),
    "short run": (HEADER + run(1, 1, b"\0"), Reject.FRAME_LENGTH),
    "nack without stream": (HEADER + frame(3, b""), Reject.FRAME_LENGTH),
    "half a range": (HEADER + frame(3, bytes(7)), Reject.FRAME_LENGTH),
    "stream of a run": (HEADER + run(1, 1, b"\1\0x", stream=2), Reject.STREAM),
    "stream of an ack": (HEADER + ack(1, 1, stream=255), Reject.STREAM),
    "flags of a run": (HEADER + run(1, 1, b"\1\0x", flags=5), Reject.FLAGS),
    "seqno 0": (HEADER + run(0, 1, b"\1\0x"), Reject.SEQNO),
    "seqno 2**63": (HEADER + run(2**63, 1, b"\1\0x"), Reject.SEQNO),
    "seqno 2**64-1": (HEADER + run(2**64 - 1, 1, b"\1\0x"), Reject.SEQNO),
    "last seqno 2**63": (HEADER + run(SEQNO_MAX, 2, b"\1\0xy"), Reject.SEQNO),
    "held 2**63": (HEADER + ack(2**63, 0), Reject.SEQNO),
    "delivered above held": (HEADER + ack(1, 2), Reject.SEQNO),
    "highest 2**63": (HEADER + frame(4, struct.pack("<BQ", 0, 2**63)), Reject.SEQNO),
    "missing 0": (HEADER + nack((0, 1)), Reject.SEQNO),
    "missing 2**63": (HEADER + nack((SEQNO_MAX, 2)), Reject.SEQNO),
    "no message": (HEADER + run(1, 0, b"\0\0"), Reject.COUNT),
    "messages": (HEADER + run(1, MESSAGES_MAX + 1, b"\0\0"), Reject.COUNT),
    "messages of two runs": (HEADER + run(1, MESSAGES_MAX, b"\0\0") * 2, Reject.COUNT),
    "frames": (HEADER + ack(1, 1) * (FRAMES_MAX + 1), Reject.COUNT),
    "allowance": (HEADER + ack(1, 1, 2**63), Reject.COUNT),
    "no range": (HEADER + nack(), Reject.COUNT),
    "empty range": (HEADER + nack((1, 0)), Reject.COUNT),
    "ranges": (HEADER + nack(*((2 * i, 1) for i in range(1, 130))), Reject.COUNT),
    "ranges of two nacks": (HEADER + nack(*((2 * i, 1) for i in range(1, 66))) * 2, Reject.COUNT),
    "equal length too large": (HEADER + run(1, 2, b"\2\0abc"), Reject.LENGTHS),
    "equal length too small": (HEADER + run(1, 2, b"\1\0abc"), Reject.LENGTHS),
    "table beyond the frame": (HEADER + run(1, 3, b"\0\0\0\0", flags=0), Reject.LENGTHS),
    "table too large": (HEADER + run(1, 2, b"\1\0\2\0ab", flags=0), Reject.LENGTHS),
    "table too small": (HEADER + run(1, 2, b"\1\0\0\0ab", flags=0), Reject.LENGTHS),
    "ranges overlap": (HEADER + nack((5, 2), (6, 1)), Reject.RANGES),
    "ranges go back": (HEADER + nack((5, 2), (1, 1)), Reject.RANGES),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_its_reason(name: str) -> None:
    datagram, reason = REFUSED[name]
    assert refusal(datagram) is reason


def test_every_reason_is_tested() -> None:
    assert {reason for _, reason in REFUSED.values()} | {Reject.SEAL} == set(Reject)


@pytest.mark.parametrize(
    "only",
    [
        Data(FIFO, 1, [b"abc", b"def"]),
        Data(FIFO, 1, [b"abc", b"de"]),
        Ack(FIFO, 2, 1, 3),
        Nack(FIFO, [range(1, 2), range(4, 5)]),
        Highest(FIFO, 4),
    ],
    ids=["equal", "mixed", "ack", "nack", "highest"],
)
def test_cut_short_at_any_byte_it_is_refused(only: Frame) -> None:
    (datagram,) = codec().pack([only])
    reasons = {refusal(datagram[:size]) for size in range(len(datagram))}
    assert reasons == {Reject.TOO_SHORT, Reject.FRAME_LENGTH}


def test_one_bad_frame_refuses_the_datagram() -> None:
    assert refusal(HEADER + ack(2, 1) + frame(9, b"")) is Reject.FRAME_KIND


# Identities


def test_members_with_every_kind_of_name_know_each_other() -> None:
    for member in (
        Member(Address("::1", 65535), 2**64 - 1, ""),
        Member(Address("h" * 64, 0), 1, "ü" * 32),
    ):
        (datagram,) = Codec("g" * 64, member, 512).pack([Highest(FIFO, 1)])
        assert Codec("g" * 64, ME, 512).unpack(datagram) == (member, [Highest(FIFO, 1)])


def test_known_senders_are_bounded() -> None:
    one = codec()
    for incarnation in range(1, IDENTITIES_MAX + 100):
        sender, _ = one.unpack(identified(identity(incarnation=incarnation)))
        assert sender.incarnation == incarnation
    assert len(one._senders) == IDENTITIES_MAX
    assert one.unpack(identified(identity(incarnation=1)))[0].incarnation == 1
    assert len(one._senders) == IDENTITIES_MAX


def test_refused_senders_are_not_remembered() -> None:
    one = codec()
    refusal(identified(identity(group=b"other")), one)
    refusal(identified(identity(name=b"\n")), one)
    assert one._senders == {}


def test_a_known_sender_is_decoded_once() -> None:
    one = codec()
    datagram = identified(identity())
    assert one.unpack(datagram)[0] is one.unpack(datagram)[0]


def test_structs_are_bounded() -> None:
    limit = codec_module._struct_of.cache_parameters()["maxsize"]
    for count in range(1, limit + 10):
        (datagram,) = codec().pack([Data(FIFO, 1, [b"ab"] * count)])
        _, (received,) = codec().unpack(datagram)
        assert isinstance(received, Data)
        assert len(received.payloads) == count
    assert codec_module._struct_of.cache_info().currsize == limit == 64


@pytest.mark.parametrize(
    ("group", "me", "datagram_bytes", "field"),
    [
        ("", ME, 512, "group"),
        ("g" * 65, ME, 512, "group"),
        ("g", ME._replace(name="a\nb"), 512, "name"),
        ("g", ME._replace(address=Address("", 1)), 512, "host"),
        ("g", ME._replace(address=Address("h", 65536)), 512, "port"),
        ("g", ME._replace(incarnation=2**64), 512, "incarnation"),
        ("g", ME._replace(incarnation=0), 512, "incarnation"),  # it stands for anyone
        ("g", ME, 511, "datagram_bytes"),
        ("g", ME, 65_508, "datagram_bytes"),
    ],
)
def test_a_codec_that_cannot_work_is_not_built(
    group: str, me: Member, datagram_bytes: int, field: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Codec(group, me, datagram_bytes)
    assert caught.value.field == field


# The seal


def test_a_seal_covers_the_whole_datagram() -> None:
    sealed = Codec("orders", ME, 512, ChecksumSeal())
    assert sealed.payload_bytes_max == codec(512).payload_bytes_max - 4
    frames: list[Frame] = [Data(FIFO, 1, [bytes(sealed.payload_bytes_max)])]
    (datagram,) = sealed.pack(frames)
    assert len(datagram) == 512
    assert sealed.unpack(memoryview(datagram)) == (ME, frames)
    for index in range(len(datagram)):
        flipped = bytearray(datagram)
        flipped[index] ^= 1
        assert refusal(bytes(flipped), sealed) is Reject.SEAL


def test_what_is_not_sealed_is_refused_where_a_seal_is_asked_for() -> None:
    (datagram,) = codec().pack([Highest(FIFO, 1)])
    assert refusal(datagram, Codec("orders", ME, 512, ChecksumSeal())) is Reject.SEAL
    assert refusal(b"", Codec("orders", ME, 512, ChecksumSeal())) is Reject.SEAL


def test_a_seal_may_not_take_all_the_room() -> None:
    class LargeSeal(ChecksumSeal):
        overhead = 400

    with pytest.raises(ConfigError, match="523 or more"):
        Codec("orders", ME, 512, LargeSeal())
    assert Codec("orders", ME, 523, LargeSeal()).payload_bytes_max == 64


# Memory


def full(body: bytes) -> bytes:
    """As many of this frame as one datagram may hold."""
    return HEADER + body * min((65_507 - len(HEADER)) // len(body), FRAMES_MAX)


def table_run(count: int, size: int) -> bytes:
    table = struct.pack("<H", size) * count
    return run(1, count, table + bytes(size * count), flags=0)


MEMORY = {
    "small payloads in a table": HEADER + table_run(MESSAGES_MAX, 2),
    "wide lengths that do not add up": HEADER + run(1, 8192, b"\xff\xff" * 8192, flags=0),
    "many tables": full(table_run(60, 2)),
    "many equal runs": full(run(2**62, 64, b"\0\0")),
    "many short tables": full(run(2**62, 2, bytes(4), flags=0)),
    "many acks": full(ack(2**62, 2**62 - 1, 2**62)),
    "many highest": full(frame(4, struct.pack("<BQ", 0, 2**62))),
    "most ranges in one": HEADER + nack(*((2**62 + 1000 * i, 500) for i in range(128))),
    "most ranges in many": HEADER + b"".join(nack((2**62 + 1000 * i, 500)) for i in range(128)),
    "ranges one too many": HEADER + nack(*((2**62 + 1000 * i, 500) for i in range(128))) * 2,
    "most of all": HEADER
    + run(2**62, 2, bytes(4), flags=0) * 127
    + nack(*((2**62 + 1000 * i, 500) for i in range(128))),
    "more than most of all": HEADER
    + run(2**62, 2, bytes(4), flags=0) * 126
    + nack(*((2**62 + 1000 * i, 500) for i in range(128))) * 2,
    "largest random": HEADER + bytes(range(256)) * 255,
    "one large message": HEADER + run(1, 1, struct.pack("<H", 60_000) + bytes(60_000)),
}


MEMORY_REFUSED = {
    "wide lengths that do not add up",
    "ranges one too many",
    "more than most of all",
    "largest random",
}


@pytest.mark.parametrize("name", MEMORY)
def test_unpacking_takes_memory_in_proportion(name: str) -> None:
    one = codec()
    datagram = MEMORY[name]
    tracemalloc.start()
    try:
        try:
            kept = one.unpack(datagram)
        except DecodeError:
            kept = None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (kept is None) == (name in MEMORY_REFUSED)
    assert peak <= 4 * len(datagram) + MEMORY_CONSTANT


def test_what_is_for_one_member_is_for_that_incarnation_alone() -> None:
    restarted = ME._replace(incarnation=ME.incarnation + 1)
    sender = Codec("orders", Member(Address("127.0.0.1", 1), 5, "b"), 512)
    (datagram,) = sender.pack([Ack(FIFO, 1, 1, 9)], to=ME)
    assert codec().unpack(datagram)[1] == [Ack(FIFO, 1, 1, 9)]
    with pytest.raises(DecodeError) as caught:
        Codec("orders", restarted, 512).unpack(datagram)
    assert caught.value.reason is Reject.ADDRESSEE
    overheard = Codec("orders", restarted, 512).unpack(datagram, overhear=True)
    assert overheard[1] == [Ack(FIFO, 1, 1, 9)]
