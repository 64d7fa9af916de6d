"""What one message costs on its way into a datagram and out of it, by run length.

Beside our codec, in the same process and turn by turn, runs the classic way: a header for every
message, encoded and decoded one by one. It stands here for comparison only.
"""

from __future__ import annotations

import struct
from itertools import cycle, islice
from time import perf_counter_ns
from typing import TYPE_CHECKING

from ringcast.model import SEQNO_MAX, Address, Member, Stream
from ringcast.wire.codec import Codec
from ringcast.wire.frames import Data

if TYPE_CHECKING:
    from collections.abc import Callable

RUN_LENGTHS = (1, 8, 64, 512)
PAYLOAD_BYTES = 100
MIXED_BYTES = (20, 180, 60, 140, 100, 99, 101)  # 100 on average
MESSAGES_PER_TURN = 4096

DATAGRAM_BYTES = 60_000

_HEADER = bytes(40)  # as long as the header of the codec measured


def bench_codec(repeats: int = 5) -> list[dict[str, object]]:
    """Nanoseconds per message, the best of `repeats` turns, and how many times the baseline."""
    return [
        _measure(kind, sizes, count, repeats)
        for kind, sizes in (("equal", (PAYLOAD_BYTES,)), ("mixed", MIXED_BYTES))
        for count in RUN_LENGTHS
    ]


def _decode(codec: Codec, datagram: bytes) -> list[bytes]:
    _, (run,) = codec.unpack(datagram)
    assert isinstance(run, Data)
    return run.payloads


def _measure(kind: str, sizes: tuple[int, ...], count: int, repeats: int) -> dict[str, object]:
    codec = Codec("bench", Member(Address("127.0.0.1", 7800), 1, "bench"), DATAGRAM_BYTES)
    classic = _Classic(DATAGRAM_BYTES)
    payloads = [bytes(size) for size in islice(cycle(sizes), count)]
    run = Data(Stream.FIFO, 1, payloads)
    (datagram,) = codec.pack([run])
    (classic_datagram,) = classic.encode(1, payloads)
    assert _decode(codec, datagram) == payloads
    assert [payload for _, _, payload in classic.decode(classic_datagram)] == payloads

    jobs: dict[str, Callable[[], object]] = {
        "encode": lambda: codec.pack([run]),
        "decode": lambda: _decode(codec, datagram),
        "baseline_encode": lambda: classic.encode(1, payloads),
        "baseline_decode": lambda: classic.decode(classic_datagram),
    }
    loops = max(1, MESSAGES_PER_TURN // count)
    best = dict.fromkeys(jobs, float("inf"))
    for _ in range(repeats):
        for name, job in jobs.items():
            started = perf_counter_ns()
            for _ in range(loops):
                job()
            best[name] = min(best[name], (perf_counter_ns() - started) / (loops * count))
    return {
        "payloads": kind,
        "run": count,
        **{f"{name}_ns": round(nanoseconds, 1) for name, nanoseconds in best.items()},
        "encode_ratio": round(best["baseline_encode"] / best["encode"], 2),
        "decode_ratio": round(best["baseline_decode"] / best["decode"], 2),
        "ratio": round(
            (best["baseline_encode"] + best["baseline_decode"]) / (best["encode"] + best["decode"]),
            2,
        ),
    }


class _Classic:
    """The classic format: the same datagram header, then a header before every message.

    It makes the same promises: datagrams of a bounded size, every field checked on the way in.
    """

    _MESSAGE = struct.Struct("<BBQH")  # kind, stream, seqno, length

    def __init__(self, datagram_bytes: int) -> None:
        self._header = _HEADER
        self._datagram_bytes = datagram_bytes

    def encode(self, first: int, payloads: list[bytes]) -> list[bytes]:
        datagrams: list[bytes] = []
        parts = [self._header]
        room = self._datagram_bytes - len(self._header)
        pack, header_bytes = self._MESSAGE.pack, self._MESSAGE.size
        for seqno, payload in enumerate(payloads, first):
            needed = header_bytes + len(payload)
            if needed > room:
                datagrams.append(b"".join(parts))
                parts = [self._header]
                room = self._datagram_bytes - len(self._header)
            parts.append(pack(1, 0, seqno, len(payload)))
            parts.append(payload)
            room -= needed
        datagrams.append(b"".join(parts))
        return datagrams

    def decode(self, datagram: bytes) -> list[tuple[int, int, bytes]]:
        if not datagram.startswith(self._header):
            raise ValueError("not our datagram")
        messages: list[tuple[int, int, bytes]] = []
        offset = len(self._header)
        unpack, header_bytes = self._MESSAGE.unpack_from, self._MESSAGE.size
        while offset < len(datagram):
            if len(datagram) - offset < header_bytes:
                raise ValueError("header cut short")
            kind, stream, seqno, length = unpack(datagram, offset)
            offset += header_bytes
            stop = offset + length
            if kind != 1 or stream not in (0, 1) or not 1 <= seqno <= SEQNO_MAX:
                raise ValueError("not a message")
            if stop > len(datagram):
                raise ValueError("payload cut short")
            messages.append((stream, seqno, datagram[offset:stop]))
            offset = stop
        return messages
