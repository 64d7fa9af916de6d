"""Handshake: how whoever opens a TCP connection says who it is, and proves it.

    acceptor: challenge     a nonce, if the group has a key
    opener: hello           where it listens, and the round of the connection; with a key, a proof

The proof is a MAC over the nonce, where the opener listens, whom it wants to reach and the round,
with a key of its own purpose (HKDF-SHA256 of the group's key). So no recorded hello counts twice,
and who is taken for a member can pass neither the challenge of another one on nor the answer to it.
Whoever accepts need prove nothing: each datagram that it sends is sealed.
"""

from __future__ import annotations

import hmac
from os import urandom
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from ringcast.aio.framing import Malformed, head_of
from ringcast.errors import Reject
from ringcast.model import Address
from ringcast.wire.codec import MAGIC, SEALED, VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ringcast.aio.keys import KeyRing
    from ringcast.wire.envelope import Key

ROUND_MAX: Final = 2**31 - 1
HOST_BYTES_MAX: Final = 45
NONCE_BYTES: Final = 32

_HELLO: Final = Struct("<4sBIH")  # magic, version, round, port; the host follows
_PROOF: Final = Struct("<4s32s")  # key id and MAC; the hello follows
_MAGIC: Final = b"mesh"
_VERSION: Final = 1
_MARK: Final = MAGIC + bytes([VERSION, SEALED])
"""As of a sealed datagram, and for one it is taken by who has no key: it says so then."""

CHALLENGE_BYTES: Final = len(_MARK) + NONCE_BYTES
HELLO_BYTES_MAX: Final = _HELLO.size + HOST_BYTES_MAX
PROOF_BYTES: Final = len(_MARK) + _PROOF.size


class Refused(Malformed):
    """A hello that proves nothing."""

    def __init__(self, reason: Reject, key_id: bytes, address: Address | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.key_id = key_id
        self.address = address
        """Where it says that it listens."""


class Hello(NamedTuple):
    """Who has opened a connection."""

    address: Address
    """Where it listens."""
    round: int
    """One more than that of any other connection of this pair that it knew of."""

    def encode(self) -> bytes:
        host = self.address.host.encode()
        return _HELLO.pack(_MAGIC, _VERSION, self.round, self.address.port) + host

    @classmethod
    def decode(cls, body: bytes) -> Hello:
        if not _HELLO.size < len(body) <= HELLO_BYTES_MAX:
            raise Malformed
        magic, version, number, port = _HELLO.unpack_from(body)
        host = body[_HELLO.size :]
        is_ours = magic == _MAGIC and version == _VERSION and host.isascii()
        if not is_ours or not 1 <= number <= ROUND_MAX or not port:
            raise Malformed
        return cls(Address(host.decode(), port), number)


class Handshake:
    """Of the members of one group, with its keys as they are at the time."""

    def __init__(self, group: str = "", keys: KeyRing | None = None) -> None:
        self.keys = keys
        self.bytes_max = HELLO_BYTES_MAX + (PROOF_BYTES if keys is not None else 0)
        """Of what comes first on a connection."""
        self._group = group
        self._macs: dict[bytes, bytes] = {}  # by key id

    @property
    def is_sealed(self) -> bool:
        return self.keys is not None

    def challenge(self) -> bytes:
        """What to say first to whoever opens a connection; empty: nothing."""
        if self.keys is None:
            return b""
        body = _MARK + urandom(NONCE_BYTES)
        return head_of(body) + body

    def hello(self, hello: Hello, dest: Address, challenge: bytes = b"") -> bytes:
        """What to say to whoever listens at `dest`."""
        body = hello.encode()
        if self.keys is not None:
            if len(challenge) != CHALLENGE_BYTES or not challenge.startswith(_MARK):
                raise Malformed
            key = self.keys.keys[0]
            body = _MARK + _PROOF.pack(key.id, self._mac(key, challenge, body, dest)) + body
        return head_of(body) + body

    def check(self, body: bytes, own: Iterable[Address], challenge: bytes = b"") -> Hello:
        """Who says this, if it is proved; Malformed or Refused. `own`: where we can be reached."""
        if self.keys is None:
            return Hello.decode(body)
        if not body.startswith(_MARK):
            raise Refused(Reject.UNSEALED, b"", Hello.decode(body).address)
        hello = Hello.decode(body[PROOF_BYTES:])
        key_id, proof = _PROOF.unpack_from(body, len(_MARK))
        key = next((key for key in self.keys.keys if key.id == key_id), None)
        if key is None:
            raise Refused(Reject.KEY, key_id, hello.address)
        proofs = [self._mac(key, challenge, body[PROOF_BYTES:], address) for address in own]
        if not any(hmac.compare_digest(proof, each) for each in proofs):
            raise Refused(Reject.SEAL, b"", hello.address)
        return hello

    def _mac(self, key: Key, challenge: bytes, hello: bytes, dest: Address) -> bytes:
        if key.id not in self._macs:
            self._macs = {key.id: key.derive_mac(self._group), **self._macs}
            while len(self._macs) > 2:
                self._macs.popitem()
        said = b"".join(len(part).to_bytes(2) + part for part in (hello, str(dest).encode()))
        return hmac.digest(self._macs[key.id], challenge + said, "sha256")
