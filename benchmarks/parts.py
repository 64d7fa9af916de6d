"""ringcast bench codec, window, ring and refuse: parts without a network, by message or datagram.

Beside each, in the same process and turn by turn, runs the classic way of doing the same: a header
for every message, a window that handles one message at a time, a dict behind one lock.
"""

from __future__ import annotations

import struct
from itertools import count, cycle, islice
from threading import Condition, Thread
from time import perf_counter_ns, process_time_ns, sleep
from typing import TYPE_CHECKING

from ringcast.aio.host import MACHINE
from ringcast.aio.keys import KeyRing, Lock
from ringcast.aio.udp import UdpSocket
from ringcast.model import SEQNO_MAX, Address, Member, Stream
from ringcast.window import receive, send
from ringcast.window.threads import RingBuffer
from ringcast.wire.codec import Codec
from ringcast.wire.envelope import DERIVING_NS, Envelope, Key
from ringcast.wire.frames import Data
from ringcast.wire.seal import Passage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from benchmarks.workload import Row
    from ringcast.errors import DecodeError

    Runs = list[tuple[int, list[bytes]]]

RUN_LENGTHS = (1, 8, 64, 512)
REPEATS = 5
PAYLOAD_BYTES = 100
MIXED_BYTES = (20, 180, 60, 140, 100, 99, 101)  # 100 on average
DATAGRAM_BYTES = 60_000
MEMBER, READER = (Member(Address("127.0.0.1", port), 1, "bench") for port in (7800, 7801))


def best_ns(
    jobs: Mapping[str, Callable[[], object]], messages: int, loops: int = 1
) -> dict[str, float]:
    """Nanoseconds per message of each job, which handles so many; all take turns."""
    best = dict.fromkeys(jobs, float("inf"))
    for _ in range(REPEATS):
        for name, job in jobs.items():
            started = perf_counter_ns()
            for _ in range(loops):
                job()
            best[name] = min(best[name], (perf_counter_ns() - started) / (loops * messages))
    return best


# The codec

MESSAGES_PER_TURN = 4096

_HEADER = bytes(40)  # as long as the header of the codec measured
_MESSAGE = struct.Struct("<BBQH")  # kind, stream, seqno, length


def bench_codec() -> Iterator[Row]:
    for kind, sizes in (("equal", (PAYLOAD_BYTES,)), ("mixed", MIXED_BYTES)):
        for length in RUN_LENGTHS:
            payloads = [bytes(size) for size in islice(cycle(sizes), length)]
            best = _codec_ns(payloads)
            encode, decode, classic_encode, classic_decode = best.values()
            yield {
                "payloads": kind,
                "run": length,
                **{f"{name}_ns": round(nanoseconds, 1) for name, nanoseconds in best.items()},
                "encode_ratio": round(classic_encode / encode, 2),
                "decode_ratio": round(classic_decode / decode, 2),
                "ratio": round((classic_encode + classic_decode) / (encode + decode), 2),
            }


def _codec_ns(payloads: list[bytes]) -> dict[str, float]:
    codec, reader = (Codec("bench", each, DATAGRAM_BYTES) for each in (MEMBER, READER))
    run = Data(Stream.FIFO, 1, payloads)
    (datagram,) = codec.pack([run])
    (classic_datagram,) = _classic_encode(1, payloads)
    assert _decode(reader, datagram) == payloads
    assert [payload for _, _, payload in _classic_decode(classic_datagram)] == payloads
    jobs = {
        "encode": lambda: codec.pack([run]),
        "decode": lambda: _decode(reader, datagram),
        "baseline_encode": lambda: _classic_encode(1, payloads),
        "baseline_decode": lambda: _classic_decode(classic_datagram),
    }
    return best_ns(jobs, len(payloads), max(1, MESSAGES_PER_TURN // len(payloads)))


def _decode(codec: Codec, datagram: bytes) -> list[bytes]:
    _, (run,) = codec.unpack(datagram)
    assert isinstance(run, Data)
    return run.payloads


def _classic_encode(first: int, payloads: list[bytes]) -> list[bytes]:
    """COMPARISON: the same datagram header, then a header before every message; datagrams of a
    bounded size."""
    datagrams: list[bytes] = []
    parts = [_HEADER]
    room = DATAGRAM_BYTES - len(_HEADER)
    pack, header_bytes = _MESSAGE.pack, _MESSAGE.size
    for seqno, payload in enumerate(payloads, first):
        needed = header_bytes + len(payload)
        if needed > room:
            datagrams.append(b"".join(parts))
            parts = [_HEADER]
            room = DATAGRAM_BYTES - len(_HEADER)
        parts.append(pack(1, 0, seqno, len(payload)))
        parts.append(payload)
        room -= needed
    datagrams.append(b"".join(parts))
    return datagrams


def _classic_decode(datagram: bytes) -> list[tuple[int, int, bytes]]:
    """COMPARISON: every field is checked on the way in."""
    if not datagram.startswith(_HEADER):
        raise ValueError("not our datagram")
    messages: list[tuple[int, int, bytes]] = []
    offset = len(_HEADER)
    unpack, header_bytes = _MESSAGE.unpack_from, _MESSAGE.size
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


# The windows

MESSAGES = 1 << 15
CAPACITY = 4096
WINDOW_BYTES = 8 << 20


def bench_window() -> Iterator[Row]:
    for case, arrange, by_runs, singly in (
        ("receive in order", _in_order, _receive, _receive_singly),
        ("receive swapped", _swapped, _receive, _receive_singly),
        ("send", _in_order, _send, _send_singly),
    ):
        for length in RUN_LENGTHS:
            runs = arrange(length)
            assert by_runs(runs) == singly(runs) == MESSAGES
            jobs = {"runs": lambda: by_runs(runs), "singly": lambda: singly(runs)}  # noqa: B023
            best, comparison = best_ns(jobs, MESSAGES).values()
            yield {
                "case": case,
                "run": length,
                "ns_per_message": round(best, 1),
                "comparison_ns": round(comparison, 1),
                "ratio": round(comparison / best, 1),
            }


def _in_order(length: int) -> Runs:
    payload = bytes(PAYLOAD_BYTES)
    return [(first, [payload] * length) for first in range(1, MESSAGES + 1, length)]


def _swapped(length: int) -> Runs:
    """Every second run arrives before the one it should follow."""
    runs = _in_order(length)
    runs[::2], runs[1::2] = runs[1::2], runs[::2]
    return runs


def _receive(runs: Runs) -> int:
    window = receive.ReceiveWindow(CAPACITY, max_bytes=WINDOW_BYTES)
    taken = 0
    for first, payloads in runs:
        window.add_run(first, payloads)
        taken += len(window.take_ready(CAPACITY))
    return taken


def _receive_singly(runs: Runs) -> int:
    window = SingleWindow()
    taken = 0
    for first, payloads in runs:
        for seqno, payload in enumerate(payloads, first):
            window.add(seqno, payload)
        ready: list[bytes] = []
        while (message := window.take()) is not None:
            ready.append(message)
        taken += len(ready)
    return taken


def _send(runs: Runs) -> int:
    window = send.SendWindow(CAPACITY, max_bytes=WINDOW_BYTES, datagram_bytes=DATAGRAM_BYTES)
    for _, payloads in runs:
        window.append_run(payloads)
        window.take_ready(CAPACITY)
        window.purge(window.high)
    return window.low


def _send_singly(runs: Runs) -> int:
    window = SingleWindow()
    for _, payloads in runs:
        for payload in payloads:
            window.add(window.high + 1, payload)
        while window.take() is not None:
            pass
    return window.low


class SingleWindow:
    """COMPARISON: the bounded window as a dict, one message per call."""

    __slots__ = ("_messages", "charged", "high", "low")

    def __init__(self) -> None:
        self._messages: dict[int, bytes] = {}
        self.low = self.high = 0
        self.charged = 0

    def add(self, seqno: int, payload: bytes) -> bool:
        if not self.low < seqno <= self.low + CAPACITY or seqno in self._messages:
            return False
        if self.charged + len(payload) > WINDOW_BYTES and seqno != self.low + 1:
            return False
        self._messages[seqno] = payload
        self.charged += len(payload)
        self.high = max(self.high, seqno)
        return True

    def take(self) -> bytes | None:
        payload = self._messages.pop(self.low + 1, None)
        if payload is not None:
            self.low += 1
            self.charged -= len(payload)
        return payload


# The ring buffer of threads

RING_CAPACITY = 1024
RUN_LIMIT = 256
PATIENCE_S = 60.0
"""An adder that waits longer than this for room gives up: a run that is stuck ends."""


def bench_ring(elements: int, adders: int) -> list[Row]:
    ring: RingBuffer[int] = RingBuffer(RING_CAPACITY)
    times = []
    for buffer in (ring, LockedBuffer(RING_CAPACITY)):
        started = perf_counter_ns()
        removed, accepted = stress(buffer, elements, adders)
        times.append((perf_counter_ns() - started) / elements)
        assert len(removed) == accepted == elements
    ring_ns, locked_ns = times
    row = {"elements": elements, "adders": adders, "ns_per_element": round(ring_ns, 1)}
    return [row | {"comparison_ns": round(locked_ns, 1), "ratio": round(locked_ns / ring_ns, 2)}]


def stress(
    buffer: RingBuffer[int] | LockedBuffer, elements: int, adders: int
) -> tuple[list[int], int]:
    """Add 1, 2, 3… each from two threads: what came out, and how many adds succeeded."""
    consumer = buffer.consumer()
    accepted = [0] * adders

    def add_all(adder: int) -> None:
        # Ascending, so the lowest seqno anybody waits with always has room.
        near, far = sorted((adder, (adder + 1) % adders))
        for first in range(1, elements + 1, adders):
            for seqno in (first + near, first + far):
                if seqno <= elements:
                    accepted[adder] += buffer.add_waiting(seqno, seqno, PATIENCE_S)

    threads = [Thread(target=add_all, args=(adder,), daemon=True) for adder in range(adders)]
    for thread in threads:
        thread.start()
    removed: list[int] = []
    while len(removed) < elements:
        run = consumer.remove_run(RUN_LIMIT)
        if run:
            removed += run
        elif any(thread.is_alive() for thread in threads):
            sleep(0)  # let the adders have the interpreter
        else:
            break
    for thread in threads:
        thread.join()
    removed += consumer.remove_run(elements)  # nothing may be left
    return removed, sum(accepted)


class LockedBuffer:
    """COMPARISON: the same contract with a dict, one lock and a condition."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._hd = 0
        self._items: dict[int, int] = {}
        self._room = Condition()

    def add_waiting(self, seqno: int, item: int, timeout: float) -> bool:
        with self._room:
            if not self._room.wait_for(lambda: seqno <= self._hd + self._capacity, timeout):
                return False
            if seqno <= self._hd or seqno in self._items:
                return False
            self._items[seqno] = item
            return True

    def consumer(self) -> LockedBuffer:
        return self

    def remove_run(self, limit: int) -> list[int]:
        with self._room:
            run: list[int] = []
            while len(run) < limit and self._hd + 1 in self._items:
                self._hd += 1
                run.append(self._items.pop(self._hd))
            if run:
                self._room.notify_all()
            return run


# What is refused

BATCH = 16
LOOPS = 100
REFUSALS = 30
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
        udp.source = MEMBER.address
        sender = Envelope("bench", [OURS], bytes(16))
        clock = count(0, DERIVING_NS)  # each finds that keys may be derived again
        for size in (200, 1400):
            for name, datagram, is_bounded in _datagrams(passage, sender, size):
                job = _refusing(passage, [datagram] * BATCH, 0 if is_bounded else None, clock)
                best = min(_cpu_ns(job) for _ in range(REFUSALS))
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
        for opened in passage.open_bursts(zip(datagrams), at):
            raise AssertionError(f"{opened!r} was to be refused")

    return job


def _datagrams(passage: Passage, sender: Envelope, size: int) -> Iterator[tuple[str, bytes, bool]]:
    """Of so many bytes, with what is wrong with them; whether that is cheap however many come."""
    codec = Codec("bench", MEMBER, DATAGRAM_BYTES)
    (small,) = codec.pack([Data(Stream.FIFO, 1, [b""])])
    (plain,) = codec.pack([Data(Stream.FIFO, 1, [bytes(size - len(small) - passage.overhead)])])
    known = sender.seal(plain)
    assert list(passage.open_bursts(iter([[known]]), 0)) == [[plain]]
    yield "with another key", Envelope("bench", [OTHER], bytes(16)).seal(plain), True
    yield "not sealed", plain + bytes(passage.overhead), True
    yield "a copy", known, True
    altered = sender.seal(plain)
    yield "altered, of a known salt", altered[:-1] + bytes([altered[-1] ^ 1]), True
    stranger = Envelope("bench", [OURS], bytes(15) + b"x").seal(plain)
    yield "altered, of an unknown salt", stranger[:-1] + bytes([stranger[-1] ^ 1]), False
