"""Fuzzing: bytes that strangers, networks and disks may hand us, mutated at random for minutes.

`make fuzz MINUTES=10`. Each target takes bytes, and may refuse them with the errors that it
declares; anything else, or more than two seconds, is a crash. Inputs begin as what we write
ourselves. One run in eight is traced, line by line: an input that takes a path not seen before is
kept, and mutated in its turn. So the search follows the code everywhere, and needs nothing that is
not installed.

A crash leaves its input in build/fuzz, and the command that runs it again.
"""

from __future__ import annotations

import argparse
import random
import re
import shlex
import struct
import sys
import tempfile
import time
import traceback
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ringcast.aio.framing import HEAD_BYTES, Malformed, body_at, head_of
from ringcast.aio.handshake import Handshake, Hello
from ringcast.aio.keys import KeyRing, keys_in
from ringcast.aio.sources import _read as read_member_file
from ringcast.config import DATAGRAM_BYTES_MAX
from ringcast.config_file import load_config
from ringcast.errors import DecodeError, UsageError
from ringcast.model import Address, Member
from ringcast.wire.changes import decode_pieces
from ringcast.wire.codec import Codec
from ringcast.wire.envelope import Envelope, Key
from ringcast.wire.layout import FRAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
SOURCE = str(ROOT / "src" / "ringcast")
FOUND = ROOT / "build" / "fuzz"
SLOW_S = 2.0
TRACED = 8
"""Of so many runs one is traced."""
KEPT_MAX = 2000
INPUT_BYTES_MAX = 1 << 16

ME = Member(Address("127.0.0.1", 7800), 42, "a")  # to whom the examples on the wire page are sent
HERE = ME._replace(address=Address("127.0.0.1", 7802))  # what seems to come from oneself is refused
PEER = Member(Address("127.0.0.1", 7801), 7, "b")
SECRET, OTHER = Key(bytes(range(32))), Key(bytes(32))
KINDS = [layout.kind for layout in FRAMES.values()]


@dataclass
class Target:
    """Something that takes bytes."""

    run: Callable[[bytes], object]
    declared: tuple[type[Exception], ...]
    corpus: list[bytes]
    executions: int = 0
    crashes: int = 0
    paths: set[tuple[str, int, int]] = field(default_factory=set)
    kept: int = 0


def targets(directory: Path) -> dict[str, Target]:
    """By name. `directory`: for files."""
    page = (ROOT / "docs" / "wire.md").read_text()
    vectors = re.findall(r"^```vector\n(.*?)^```", page, re.M | re.S)
    datagrams = [bytes.fromhex("".join(re.findall("^hex (.*)$", each, re.M))) for each in vectors]
    sealers = [Envelope("orders", [key], bytes([1]) * 16) for key in (SECRET, OTHER)]
    sealed = [sealer.seal(datagram) for datagram in datagrams for sealer in sealers]
    hello = Hello(PEER.address, 3)
    with_key = Handshake("orders", KeyRing([SECRET]))
    challenge = with_key.challenge()[HEAD_BYTES:]
    streams = [
        Handshake().hello(hello, ME.address) + b"".join(head_of(each) + each for each in part)
        for part in (datagrams[:3], datagrams[3:9], [])
    ] + [with_key.hello(hello, ME.address, challenge) + head_of(sealed[0]) + sealed[0]]
    pieces = [bytes([kind]) + datagram[-80:] for kind in KINDS for datagram in datagrams[::7]]
    configs = [
        b'preset = "wan"\n[group]\ngroup = "orders"\nname = "web-1"\nmembers = ["127.0.0.1:7800"]\n'
        b"[multicast]\ncapacity = 8192\n[multicast.stability]\ninterval_s = 0.1\n[unicast]\n"
        b"[membership]\nmin_members = 2\nsuspect_after_s = 10.0\n",
        b'[group]\ngroup = "orders"\nkey_file = "orders.key"\ninsecure = true\nspin_s = 0.001\n',
    ]
    member = b'{"address": "127.0.0.1:7800", "incarnation": 7, "pid": 1, "machine": "x/1"}'

    def in_file(read: Callable[[Path], object], name: str) -> Callable[[bytes], object]:
        path = directory / name

        def run(data: bytes) -> object:
            path.write_bytes(data)
            return read(path)

        return run

    found = {
        "codec": Target(_decode, (DecodeError,), datagrams),
        "changes": Target(_decode_change, (DecodeError,), pieces),
        "envelope": Target(lambda data: _open(data, sealed[0]), (), sealed[2:]),
        "tcp": Target(lambda data: _read_stream(data, challenge), (Malformed,), streams),
        "config": Target(in_file(load_config, "fuzz.toml"), (UsageError,), configs),
        "keys": Target(_parse_keys, (UsageError,), [f"# a\n{SECRET.reveal()}\n".encode()]),
        "member-files": Target(in_file(read_member_file, "fuzz.member"), (), [member]),
    }
    try:
        from ringcast.trace.sealed import Unreadable
        from ringcast.trace.segments import Segment
    except ImportError:
        click.echo("trace and archive files are left out: ringcast[spark] is not installed")
        return found

    def read_segment(path: Path) -> None:
        with Segment(path, is_patient=False) as segment:
            segment.check_rows()
            segment.rows()
            segment.check_all()

    traces, archives = _segments(directory)
    found["trace"] = Target(in_file(read_segment, "fuzz.parquet"), (Unreadable,), traces)
    found["archive"] = Target(in_file(read_segment, "fuzz.parquet"), (Unreadable,), archives)
    return found


def _decode(data: bytes) -> None:
    codec = Codec("orders", HERE, 512)
    codec.unpack_message(data)
    _, frames = codec.unpack(data, overhear=True)
    codec.pack(frames, to=ME)  # whatever is accepted is something that we could have said


def _decode_change(data: bytes) -> None:
    if data:
        decode_pieces(KINDS[data[0] % len(KINDS)], data[1:])


def _open(data: bytes, known: bytes) -> None:
    """By a member that has heard the sender before, and has another key, too."""
    envelope = Envelope("orders", [SECRET, OTHER], bytes(16))
    envelope.unseal(known, 0)
    for now in (1, 1 << 40):
        envelope.unseal(data, now)


def _read_stream(data: bytes, challenge: bytes) -> None:
    """As a mesh does, with a key and without."""
    stream = memoryview(data)
    with_key = Handshake("orders", KeyRing([SECRET]))
    body = body_at(stream, 0, with_key.bytes_max)
    if body is None:
        return
    place = HEAD_BYTES + len(body)
    while (each := body_at(stream, place, DATAGRAM_BYTES_MAX)) is not None:
        place += HEAD_BYTES + len(each)
    try:
        with_key.check(bytes(body), [ME.address], challenge)
    except Malformed:
        Handshake().check(bytes(body), [ME.address])


def _parse_keys(data: bytes) -> None:
    keys_in(data.decode(errors="replace"), "fuzz")


def _segments(directory: Path) -> tuple[list[bytes], list[bytes]]:
    from ringcast.trace.footer import Recording
    from ringcast.trace.rows import DELIVER, VIEW, Row
    from ringcast.trace.segments import SegmentWriter

    def write(recording: Recording, payloads: list[list[bytes]] | None) -> bytes:
        writer = SegmentWriter(directory, recording)
        rows = [Row(VIEW, "a", 1, 0, members=("a#1",))]
        rows += [Row(DELIVER, "a", 1, at, -1, at, "b", 2, 0, at, at, 4) for at in range(1, 4)]
        writer.add(rows, payloads=payloads)
        return writer.finish(is_last=True).read_bytes()

    about: dict[str, Any] = {"run_id": "r", "node": "a", "inc": 1}
    kept: list[list[bytes]] = [[], [b"one"], [b"two"], [b"three"]]
    trace = write(Recording(**about, level="full"), None)
    archive = write(Recording(**about, payloads=True), kept)
    return [trace], [archive]


# The search

INTERESTING = [
    value.to_bytes(size, "little")
    for size in (1, 2, 4, 8)
    for value in {
        0,
        1,
        127,
        128,
        255,
        1 << (8 * size - 1),
        (1 << 8 * size) - 1,
        (1 << 8 * size) // 3,
    }
    if value < 1 << 8 * size
] + [struct.pack("<Q", 1 << 40), b"\n", b"[", b"]", b'"', b"=", b"#", b"\0", b"\x1b[2J"]


def mutate(data: bytes, corpus: list[bytes], dice: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.choice((1, 1, 1, 2, 3, 8))):
        at = dice.randrange(len(changed) + 1)
        stop = min(len(changed), at + dice.choice((1, 2, 4, 8, 16, 64)))
        match dice.randrange(7):
            case 0 if at < len(changed):
                changed[at] ^= 1 << dice.randrange(8)
            case 1:
                value = dice.choice(INTERESTING)
                changed[at : at + len(value)] = value
            case 2:
                changed[at:at] = dice.choice(INTERESTING)
            case 3:
                del changed[at:stop]
            case 4:
                changed[at:at] = changed[at:stop] * dice.choice((1, 2, 50))
            case 5:
                del changed[at:]
            case _:
                other = dice.choice(corpus)
                start = dice.randrange(len(other) + 1)
                changed[at:stop] = other[start : start + dice.choice((4, 16, 64, 1024))]
    return bytes(changed[:INPUT_BYTES_MAX])


@contextmanager
def traced(paths: set[tuple[str, int, int]]) -> Iterator[None]:
    """Note which lines of ours follow which."""

    def enter(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        name = frame.f_code.co_filename
        if not name.startswith(SOURCE):
            return None
        before = 0

        def step(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
            nonlocal before
            if event == "line":
                paths.add((name, before, frame.f_lineno))
                before = frame.f_lineno
            return step

        return step

    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(None)


def attempt(target: Target, data: bytes) -> BaseException | None:
    """How it went: None, unless it is a crash."""
    began = time.perf_counter()
    try:
        target.run(data)
    except target.declared:
        pass
    except Exception as error:
        return error
    took_s = time.perf_counter() - began
    return TimeoutError(f"took {took_s:.1f} s") if took_s > SLOW_S else None


def step(name: str, target: Target, dice: random.Random) -> None:
    data = mutate(dice.choice(target.corpus), target.corpus, dice)
    target.executions += 1
    if target.executions % TRACED:
        error = attempt(target, data)
    else:
        seen = len(target.paths)
        with traced(target.paths):
            error = attempt(target, data)
        if len(target.paths) > seen and len(target.corpus) < KEPT_MAX:
            target.corpus.append(data)
            target.kept += 1
    if error is not None:
        target.crashes += 1
        FOUND.mkdir(parents=True, exist_ok=True)
        path = FOUND / f"{name}-{sha256(data).hexdigest()[:12]}"
        path.write_bytes(data)
        last = "".join(traceback.format_exception_only(error)).strip()
        click.echo(f"CRASH in {name}: {last}\n  again: {shlex.join(_again(path))}")


def _again(path: Path) -> list[str]:
    return ["python", "tools/fuzz.py", "--replay", str(path.relative_to(ROOT))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="shared by all targets")
    parser.add_argument("--seed", type=int, default=None, help="else another each time")
    parser.add_argument("--only", action="append", metavar="TARGET")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run one input again")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        found = targets(Path(directory))
        if given.replay is not None:
            target = found[given.replay.name.rpartition("-")[0]]
            try:
                target.run(given.replay.read_bytes())
            except target.declared as error:
                click.echo(f"refused, as declared: {type(error).__name__}: {error}")
            else:
                click.echo("accepted")
            return 0
        seed = random.SystemRandom().randrange(2**32) if given.seed is None else given.seed
        names = given.only or list(found)
        click.echo(f"seed {seed}, {given.minutes:g} minutes: {', '.join(names)}")
        for name in names:
            target, dice = found[name], random.Random(f"{seed} {name}")
            for data in list(target.corpus):  # what we write ourselves
                with traced(target.paths):
                    error = attempt(target, data)
                assert error is None, (name, error)
            stop = time.monotonic() + given.minutes * 60 / len(names)
            while time.monotonic() < stop:
                step(name, target, dice)
            click.echo(
                f"{name}: {target.executions} executions, {len(target.paths)} paths between lines, "
                f"{target.kept} inputs found new ones, {target.crashes} crashes"
            )
        return int(any(target.crashes for target in found.values()))


if __name__ == "__main__":
    sys.exit(main())
