"""ringcast bench refuse: what it costs to refuse a datagram of who has not the key.

The datagrams are read already: this is the envelope, what is counted, and what is noted for people.
Those under a salt that is not known are the dearest, because a key is derived for each; beyond 1000
a second they are dropped without that.
"""

from __future__ import annotations

from itertools import count
from time import process_time_ns
from typing import TYPE_CHECKING

from ringcast.aio.host import MACHINE
from ringcast.aio.keys import KeyRing, Lock
from ringcast.aio.udp import UdpSocket
from ringcast.model import Address, Member, Stream
from ringcast.wire.codec import Codec
from ringcast.wire.envelope import DERIVING_NS, Envelope, Key
from ringcast.wire.frames import Data
from ringcast.wire.seal import Passage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.printing import Row
    from ringcast.errors import DecodeError

BATCH = 16
LOOPS = 100
REPEATS = 30
OURS, OTHER = Key(bytes(range(32))), Key(bytes(32))


def bench_refuse() -> Iterator[Row]:
    udp = UdpSocket(Address("127.0.0.1", 0))
    try:
        lock = Lock("bench", KeyRing([OURS]), MACHINE, udp)
        counted: dict[str, int] = {}

        def reject(error: DecodeError) -> None:
            counted[error.reason.value] = counted.get(error.reason.value, 0) + 1

        passage = Passage(lock.envelope, reject)
        passage.on_refused = lock.refuse
        udp.source = Address("127.0.0.1", 7800)
        sender = Envelope("bench", [OURS], bytes(16))
        clock = count(0, DERIVING_NS)  # each finds that keys may be derived again
        for size in (200, 1400):
            for name, datagram, is_bounded in _datagrams(passage, sender, size):
                job = _refusing(passage, [datagram] * BATCH, 0 if is_bounded else None, clock)
                best = min(_cpu_ns(job) for _ in range(REPEATS))
                yield {
                    "datagram": name,
                    "bytes": len(datagram),
                    "us": round(best / 1000, 2),
                    "is_bounded": is_bounded,
                }
    finally:
        udp.close()


def _cpu_ns(job: Callable[[], object]) -> float:
    """For each datagram."""
    started = process_time_ns()
    for _ in range(LOOPS):
        job()
    return (process_time_ns() - started) / (LOOPS * BATCH)


def _refusing(
    passage: Passage, datagrams: list[bytes], now: int | None, clock: Iterator[int]
) -> Callable[[], object]:
    def job() -> None:
        at = next(clock) if now is None else now
        for opened in passage.open(datagrams, at):
            raise AssertionError(f"{opened!r} was to be refused")

    return job


def _datagrams(passage: Passage, sender: Envelope, size: int) -> Iterator[tuple[str, bytes, bool]]:
    """Of so many bytes, with what is wrong with them; whether that is cheap however many come."""
    member = Member(Address("127.0.0.1", 7800), 1, "bench")
    codec = Codec("bench", member, 60_000)
    (small,) = codec.pack([Data(Stream.FIFO, 1, [b""])])
    (plain,) = codec.pack([Data(Stream.FIFO, 1, [bytes(size - len(small) - passage.overhead)])])
    known = sender.seal(plain)
    assert list(passage.open([known], 0)) == [plain]
    yield "with another key", Envelope("bench", [OTHER], bytes(16)).seal(plain), True
    yield "not sealed", plain + bytes(passage.overhead), True
    yield "a copy", known, True
    altered = sender.seal(plain)
    yield "altered, of a known salt", altered[:-1] + bytes([altered[-1] ^ 1]), True
    stranger = Envelope("bench", [OURS], bytes(15) + b"x").seal(plain)
    yield "altered, of an unknown salt", stranger[:-1] + bytes([stranger[-1] ^ 1]), False
