"""Three real processes, sealed and busy, under datagrams that somebody has recorded, mutated, cut
short or made up: their view stays, and every message comes once, in order and whole.

The attacker has recorded everything that members said: before one of them was restarted, before the
key was exchanged, before a fork, and since. It also has the key, and seals again what it has
changed, as somebody who is in no view and as members, which it sends to these, too.
"""

from __future__ import annotations

import random
import socket
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ringcast.errors import Reject
from ringcast.model import Address, Member
from ringcast.sim.processes import Cluster
from ringcast.wire.codec import MAGIC, VERSION
from ringcast.wire.envelope import _HEAD, _NONCE, EPOCH_BITS, Envelope, Key
from ringcast.wire.members import encode_identity
from support.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable

    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

HERE = Path(__file__).parent
KEYS = [bytes([number] * 32) for number in (1, 2)]
SOON: dict[str, Any] = {"heartbeat_s": 0.2, "suspect_after_s": 4.0, "verify_s": 1.0}
PACE = 4000
"""Datagrams a second: what three members on two cores can read beside their own traffic."""
MEMORY_KB = 24_000
RECORDED_MAX = 20_000
ENOUGH = 200
"""Datagrams recorded before something happens."""
HEAD_BYTES = 200
"""Where datagrams are changed: behind that there is nothing but messages."""
SEAL = (
    *(Reject.TOO_SHORT, Reject.NOT_OURS, Reject.UNSEALED, Reject.KEY),
    *(Reject.SALTS, Reject.REPLAY, Reject.SEAL, Reject.LEAP, Reject.OURS),
)
"""Why what is not sealed, or was before, is refused."""


class Tap(Proxy):
    """A network that keeps what passes."""

    def __init__(self, names: str) -> None:
        super().__init__(names)
        self.recorded: list[tuple[str, str, bytes]] = []
        """From, to, and what."""
        self.total = 0

    def _forward(self, source: str, dest: str, datagram: bytes) -> None:
        self.recorded.append((source, dest, datagram))
        self.total += 1
        if len(self.recorded) > RECORDED_MAX:
            self.recorded = self.recorded[::2]  # of all times
        super()._forward(source, dest, datagram)

    def passed(self) -> Counter[str]:
        """By addressee: how many."""
        passed: Counter[str] = Counter()
        for (_, dest), number in self.forwarded.items():
            passed[dest] += number
        return passed


class Attacker:
    """Whoever has all that was recorded, and the key."""

    def __init__(self, tap: Tap, group: str, keys: list[Key], seed: int) -> None:
        self._tap = tap
        self._group = group
        self._keys = keys
        self._dice = random.Random(seed)
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._sock.bind(("127.0.0.1", 0))
        self._sealers: dict[bytes, Envelope] = {}
        self._derived: dict[tuple[bytes, int], AESGCM] = {}
        stranger = Member(Address(*self._sock.getsockname()), 4711, "stranger")
        identity = encode_identity(group, stranger)
        self._stranger = MAGIC + bytes([VERSION, 0, len(identity)]) + identity
        self.sent: Counter[str] = Counter()
        self.resealed: Counter[str] = Counter()
        """By addressee."""
        self._records: list[tuple[str, str, bytes]] = []

    def close(self) -> None:
        self._sock.close()

    def attack(self, count: int) -> None:
        """More than a third replayed, as many sealed again, the rest forged, cut or changed."""
        makers = {
            "replayed": self._replay,
            "resealed": self._reseal,
            "mutated": self._mutate,
            "truncated": self._truncate,
            "forged": self._forge,
        }
        kinds = ["replayed"] * 4 + ["resealed"] * 4 + ["mutated", "truncated", "forged"]
        began = time.monotonic()
        for number in range(count):
            if not number % 500:
                self._records = list(self._tap.recorded)
            if not number % 50 and (early := number / PACE - (time.monotonic() - began)) > 0:
                time.sleep(early)
            kind = kinds[number % len(kinds)]
            dest, datagram = makers[kind]()
            self._sock.sendto(datagram, self._tap._places[dest])
            self.sent[kind] += 1
            self.resealed[dest] += kind == "resealed"

    def _genuine(self, *, mirrored: float = 0.0) -> tuple[str, bytes]:
        """For whom, and what; for who has sent it, now and again."""
        source, dest, datagram = self._dice.choice(self._records)
        return (source if self._dice.random() < mirrored else dest), datagram

    def _replay(self) -> tuple[str, bytes]:
        return self._genuine(mirrored=0.2)

    def _mutate(self) -> tuple[str, bytes]:
        dest, datagram = self._genuine()
        at = self._dice.randrange(len(datagram))
        changed = bytes([datagram[at] ^ 1 << self._dice.randrange(8)])
        return dest, datagram[:at] + changed + datagram[at + 1 :]

    def _truncate(self) -> tuple[str, bytes]:
        dest, datagram = self._genuine()
        return dest, datagram[: self._dice.randrange(len(datagram))]

    def _forge(self) -> tuple[str, bytes]:
        dest, datagram = self._genuine()
        return dest, self._dice.choice([self._open(datagram), self._dice.randbytes(200)])

    def _reseal(self) -> tuple[str, bytes]:
        """A genuine datagram, cut short or one field of it changed: what it says, or who has sent
        it. Under a salt of the attacker's own for each identity that it takes; it poses as the
        member that did, too, also to that member."""
        is_posing = self._dice.random() < 0.4
        dest, datagram = self._genuine(mirrored=0.5 * is_posing)
        opened = self._open(datagram)
        identity = opened[: 5 + opened[4]] if is_posing else self._stranger
        genuine = identity + opened[5 + opened[4] :]
        said = self._change(genuine)
        while said == genuine:
            said = self._change(genuine)
        if identity not in self._sealers:
            salt = self._dice.randbytes(16)
            self._sealers[identity] = Envelope(self._group, self._keys[:1], salt)
        return dest, self._sealers[identity].seal(said)

    def _change(self, genuine: bytes) -> bytes:
        at, said = self._dice.randrange(min(len(genuine), HEAD_BYTES)), bytearray(genuine)
        if self._dice.random() < 0.1:
            return genuine[: 1 + at]
        value = self._dice.choice((0, 1, 2**40, 2**61, self._dice.getrandbits(64)))
        sizes = [size for size in (1, 2, 4, 8) if value < 2 ** (8 * size)]
        size = min(self._dice.choice(sizes), len(said) - at)
        said[at : at + size] = (value % 2 ** (8 * size)).to_bytes(size, "little")
        return bytes(said)

    def _open(self, datagram: bytes) -> bytes:
        """Whatever was recorded, as often as it likes."""
        whose, counter = _HEAD.unpack_from(datagram)
        at = whose, counter >> EPOCH_BITS
        if at not in self._derived:
            (key,) = (key for key in self._keys if key.id == whose[4:8])
            self._derived[at] = key.derive(self._group, whose[8:], at[1])
        head, body = datagram[: _HEAD.size], datagram[_HEAD.size :]
        return self._derived[at].decrypt(_NONCE.pack(counter), body, head)


def until(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.05)


def write_keys(path: Path, *keys: bytes) -> None:
    new = path.with_suffix(".new")
    new.touch(0o600)
    new.write_text("".join(f"{key.hex()}\n" for key in keys))
    new.rename(path)


def report(cluster: Cluster) -> list[dict[str, Any]]:
    cluster.tell_all({"op": "report"})
    return cluster.hear_all()


def wait_for(cluster: Cluster, size: int) -> None:
    cluster.tell_all({"op": "view", "size": size})
    cluster.hear_all()


def start(cluster: Cluster, tap: Tap, name: str) -> None:
    process = cluster.start(listen=tap.listen[name], advertise=tap.advertise[name], name=name)
    cluster.names[-1] = name
    cluster.enter(process)


@pytest.fixture
def path_to_members(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("PYTHONPATH", ":".join([str(HERE), *sys.path]))


def check(
    count: int, seed: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> tuple[list[dict[str, Any]], Counter[str]]:
    group, path = f"hostile {seed}", tmp_path / "group.key"
    write_keys(path, KEYS[0])
    options: dict[str, Any] = {"program": ("hostile_member",), "membership": SOON, "group": group}
    with (
        Tap("ABC") as tap,
        Cluster(members=0, **options, key_file=str(path)) as cluster,
        cluster.within(60 + count / 1000),
    ):
        for name in "ABC":
            start(cluster, tap, name)
        wait_for(cluster, 3)
        until(lambda: len(tap.recorded) > ENOUGH)
        cluster.kill(2)
        wait_for(cluster, 2)
        start(cluster, tap, "C")
        wait_for(cluster, 3)
        for keys in (KEYS, KEYS[::-1], KEYS[1:]):
            write_keys(path, *keys)
            ids = [Key(key).id.hex() for key in keys]
            until(lambda: all(each["keys"] == ids for each in report(cluster)))  # noqa: B023
            recorded = tap.total
            until(lambda: tap.total > recorded + ENOUGH)  # noqa: B023
        cluster.tell_all({"op": "fork"})
        cluster.hear_all()
        passed = tap.passed()
        before = report(cluster)
        assert {each["view"] for each in before} == {before[0]["view"]}
        attacker = Attacker(tap, group, [Key(KEYS[1]), Key(KEYS[0])], seed)
        try:
            attacker.attack(count // 5)  # whatever is kept of strangers is full by now
            middle = report(cluster)
            attacker.attack(count - count // 5)
        finally:
            attacker.close()
        after = report(cluster)
        cluster.tell_all({"op": "stop"})
        sent = {
            each["me"]: said["sent"] for each, said in zip(after, cluster.hear_all(), strict=True)
        }
        with suppress(TimeoutError):  # what is missing is told below
            until(lambda: all(each["read"].items() >= sent.items() for each in report(cluster)))
        final = report(cluster)
        passed = tap.passed() - passed
    refused = sum((Counter(each["rejected"]) for each in final), Counter())
    growth = [f["memory_kb"] - m["memory_kb"] for f, m in zip(after, middle, strict=True)]
    with capfd.disabled():
        said = ", ".join(f"{number} {kind}" for kind, number in attacker.sent.items())
        print(f"\n{count} datagrams ({said}); refused: {dict(refused)}")  # noqa: T201
        print(f"messages {sent}; memory grew by {growth} kB since a fifth of them")  # noqa: T201
    assert {each["view"] for each in final} == {before[0]["view"]}, [e["explain"] for e in final]
    for each in final:
        assert each["wrong"] == []
        assert each["errors"] == []
        assert {who: each["read"][who] for who in sent} == sent
        assert not any("stranger" in who for who in each["read"])
    for name, then, now in zip("ABC", before, final, strict=True):
        came = now["received"] - then["received"] - passed[name] - attacker.resealed[name]
        refusals = [sum(each["rejected"].get(why.value, 0) for why in SEAL) for each in (then, now)]
        assert refusals[1] - refusals[0] >= came > count / 20  # so none was accepted
    assert max(growth) < MEMORY_KB
    assert "Traceback" not in capfd.readouterr().err
    return final, attacker.sent


@pytest.mark.usefixtures("path_to_members")
def test_a_group_under_attack_goes_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    check(20_000, 1, tmp_path, capfd)


@pytest.mark.proof
@pytest.mark.usefixtures("path_to_members")
def test_a_group_under_a_million_datagrams_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    check(1_000_000, 2, tmp_path, capfd)
