"""Envelope: a member's datagrams, encrypted and authenticated with the key of its group.

    bytes   what
    4       magic, version and flags: this is sealed
    4       key id
    16      salt: random, of this member's incarnation
    8       counter: no two datagrams of a salt have the same
    any     the datagram, encrypted (AES-256-GCM); all that stands above is authenticated with it
    16      tag

The key of a datagram follows from the group's key, the group's name, the salt and how many times
2**24 datagrams were sealed before (HKDF-SHA256). The nonce is the counter. A datagram is made once,
for all who receive it.

    what comes                                          then
    another key id; no seal at all                      refused, before anything is computed
    this member's own salt                              refused
    a salt that is not known                            its key is derived, at most ten times in
                                                        10 ms; what opens pins the salt to its
                                                        sender
    a known salt, another of our keys, or a counter     that key is derived once, and kept
    of the epoch before or behind
    a counter further ahead than 2**24 for each second  refused: nobody counts so fast
    since the last datagram, and once more
    a counter that was seen, or is 65 000 behind        refused: it is a copy
    a tag that is not right                             refused
    another sender than the salt is pinned to, with     refused
    any of our keys; one that is cut short
    a sender that is pinned to another salt             refused: an incarnation has one
A stretch of a burst whose counters go on, of a salt that is known, opens in calls into C; if
anything about it is not right, one by one, as above.

Of the salts that open, those of the view are kept, and the 1024 others used last. So are those of a
key that was removed: should it come back, copies are still known.

A salt is no secret: who has the key can seal under any, and so pass for any member.
"""

from __future__ import annotations

from hashlib import sha256
from itertools import repeat
from operator import add, attrgetter
from struct import Struct
from typing import TYPE_CHECKING, Final, NoReturn

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ringcast.errors import DecodeError, Reject
from ringcast.wire.codec import MAGIC, SEALED, VERSION
from ringcast.wire.seal import SHORT_BYTES_MAX, DatagramSeal

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from ringcast.wire.codec import Buffer

SPACE_BYTES: Final = 1 << 17
"""Of what is sealed together, and of what is opened together: a burst is smaller."""

KEY_BYTES: Final = 32
SALT_BYTES: Final = 16
KEYS_MAX: Final = 2

_MARK: Final = MAGIC + bytes([VERSION, SEALED])
_ID: Final = slice(4, 8)
_SALT: Final = slice(8, 24)
_HEAD: Final = Struct("<24sQ")  # what is the same in all datagrams of a salt, and the counter
_NONCE: Final = Struct("<4xQ")
_IDENTITY_AT: Final = 4  # where a datagram says how long the identity behind it is

_TOO_SHORT, _REPLAY, _LEAP, _SEAL, _OURS, _POSES, _UNSEALED, _NOT_OURS, _KEY, _SALTS = map(
    DecodeError,
    (
        *(Reject.TOO_SHORT, Reject.REPLAY, Reject.LEAP, Reject.SEAL, Reject.OURS, Reject.POSES),
        *(Reject.UNSEALED, Reject.NOT_OURS, Reject.KEY, Reject.SALTS),
    ),
)  # made once, and never raised

EPOCH_BITS: Final = 24
"""A key seals so many datagrams (2**24), and then another is derived."""
EPOCH_NS: Final = 1_000_000_000
"""Nobody seals so many in less time."""
SEEN_BITS: Final = 1 << 16
SALTS_MAX: Final = 1024
"""Of senders that are not in the view."""
DERIVED_MAX: Final = 10
DERIVING_NS: Final = 10_000_000
"""Keys derived for salts that are not known, in so long: 1000 a second, and none can be used up at
the beginning of one."""


class Key:
    """A key of the group. It stands in no text."""

    __slots__ = ("_secret", "id")

    def __init__(self, secret: bytes) -> None:
        assert len(secret) == KEY_BYTES
        self._secret = secret
        self.id = sha256(b"ringcast key id" + secret).digest()[:4]

    def __repr__(self) -> str:
        return f"Key({self.id.hex()})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key is not pickled")

    def reveal(self) -> str:
        """The key itself, for a file that only its owner can read."""
        return self._secret.hex()

    def derive_mac(self, group: str) -> bytes:
        """A key for proofs of who opens a connection."""
        info = b"ringcast 1 connections" + group.encode()
        return HKDF(hashes.SHA256(), KEY_BYTES, None, info).derive(self._secret)

    def derive(self, group: str, salt: bytes, epoch: int) -> AESGCM:
        info = b"ringcast 1 datagrams" + epoch.to_bytes(8, "little") + group.encode()
        return AESGCM(HKDF(hashes.SHA256(), KEY_BYTES, salt, info).derive(self._secret))


class _Channel:
    """What comes under one salt."""

    __slots__ = ("aead", "epoch", "high", "identity", "seen", "spares", "used")

    def __init__(self, identity: bytes, aead: AESGCM, epoch: int) -> None:
        self.identity = identity
        """What each of its sender's datagrams begins with."""
        self.aead, self.epoch = aead, epoch
        self.spares: dict[tuple[bytes, int], AESGCM] = {}
        """Derived for another of our keys, and for epochs beside this one."""
        self.high = 0
        """The highest counter."""
        self.used = 0
        """When something came last."""
        self.seen = bytearray(SEEN_BITS >> 3)

    def has_seen(self, counter: int) -> bool:
        if not self.high - SEEN_BITS + 8 < counter <= self.high:
            return counter <= self.high  # it is so old that it is not known
        return bool(self.seen[counter >> 3 & 0x1FFF] >> (counter & 7) & 1)

    def see(self, counter: int) -> None:
        place, last = counter >> 3, self.high >> 3
        if place > last:  # eight counters share a byte: those that begin now have not been seen
            for at in range(max(last + 1, place - 0x1FFF), place + 1):
                self.seen[at & 0x1FFF] = 0
        self.high = max(self.high, counter)
        self.seen[place & 0x1FFF] |= 1 << (counter & 7)

    def see_all(self, counters: range) -> None:
        """All of these, which are higher than any before."""
        first, last = counters[0], counters[-1]
        self.see(last)
        for place in range(first >> 3, (last >> 3) + 1):
            low, high = max(first - 8 * place, 0), min(last - 8 * place, 7)
            self.seen[place & 0x1FFF] |= (2 << high) - (1 << low)


class Envelope(DatagramSeal):
    """Seals one member's datagrams, and opens those of others."""

    overhead = _HEAD.size + 16  # of the tag

    def __init__(self, group: str, keys: Sequence[Key], salt: bytes) -> None:
        """`salt`: fresh random bytes."""
        self._group = group
        self._channels: dict[bytes, _Channel] = {}
        self._retired: dict[bytes, _Channel] = {}  # of keys that were removed
        self._salts: dict[bytes, bytes] = {}  # by identity
        self.keep((), 0)
        self._since = -DERIVING_NS
        self._derived = 0  # since then
        self.foreign = b""
        """The id of the last key that was not ours."""
        # Used again and again: the system takes its time to provide memory.
        self._sealed = memoryview(bytearray(SPACE_BYTES))
        self._opened = memoryview(bytearray(SPACE_BYTES))
        self.use_keys(keys)
        self.renew(salt)

    def use_keys(self, keys: Sequence[Key]) -> None:
        """The first seals, all open. What was sealed with others is refused from now on."""
        assert 1 <= len(keys) <= KEYS_MAX
        self._keys = {key.id: key for key in keys}
        self._key = keys[0]
        known, self._channels, self._retired = {**self._retired, **self._channels}, {}, {}
        for whose, channel in known.items():
            (self._channels if whose[_ID] in self._keys else self._retired)[whose] = channel
        by_use = sorted(self._retired, key=lambda whose: self._retired[whose].used)
        for whose in by_use[:-SALTS_MAX]:
            self._unpin(whose, self._retired.pop(whose))
        self._epoch = -1

    def keep(self, members: Container[bytes], count: int) -> None:
        """These are in the view: by what each of their datagrams begins with."""
        self._members, self._room = members, SALTS_MAX + KEYS_MAX * count

    def renew(self, salt: bytes) -> None:
        """Seal with another salt: a copy of this process would use the same counters."""
        assert len(salt) == SALT_BYTES
        self._salt = salt
        self._counter = 0
        self._epoch = -1

    def seal(self, datagram: bytes) -> bytes:
        self._counter = counter = self._counter + 1
        if counter >> EPOCH_BITS != self._epoch:
            self._begin_epoch(counter)
        head = _HEAD.pack(self._whose, counter)
        return head + self._aead.encrypt(_NONCE.pack(counter), datagram, head)

    def seal_burst(self, burst: Sequence[bytes]) -> Sequence[Buffer]:
        if len(burst[0]) <= SHORT_BYTES_MAX:
            return self._seal_short(burst)
        space, sealed, at = self._sealed, [], 0
        for datagram in burst:
            self._counter = counter = self._counter + 1
            if counter >> EPOCH_BITS != self._epoch:
                self._begin_epoch(counter)
            _HEAD.pack_into(space, at, self._whose, counter)
            body, stop = at + _HEAD.size, at + len(datagram) + self.overhead
            nonce, head = _NONCE.pack(counter), space[at:body]
            self._aead.encrypt_into(nonce, datagram, head, space[body:stop])
            sealed.append(space[at:stop])
            at = stop
        return sealed

    def _seal_short(self, burst: Sequence[bytes]) -> list[bytes]:
        """No Python runs for each of them, unless a key ends among them."""
        counters = range(self._counter + 1, self._counter + 1 + len(burst))
        is_known = counters[0] >> EPOCH_BITS == counters[-1] >> EPOCH_BITS == self._epoch
        if len(burst) == 1 or not is_known:
            return [*map(self.seal, burst)]
        self._counter = counters[-1]
        heads = list(map(_HEAD.pack, repeat(self._whose), counters))
        sealed = map(self._aead.encrypt, map(_NONCE.pack, counters), burst, heads)
        return list(map(add, heads, sealed))

    def _begin_epoch(self, counter: int) -> None:
        self._epoch = counter >> EPOCH_BITS
        self._aead = self._key.derive(self._group, self._salt, self._epoch)
        self._whose = _MARK + self._key.id + self._salt

    def unseal(self, datagram: Buffer, now: int, at: int = 0) -> memoryview | DecodeError:
        size = len(datagram) - self.overhead
        if size < _IDENTITY_AT + 1:
            return _TOO_SHORT
        whose, counter = _HEAD.unpack_from(datagram)
        channel, epoch = self._channels.get(whose), counter >> EPOCH_BITS
        if channel is not None and counter <= channel.high and channel.has_seen(counter):
            return _REPLAY
        if channel is None or channel.epoch != epoch:
            aead = self._derive(whose, epoch, now)
        else:
            aead = channel.aead
        if isinstance(aead, DecodeError):
            return aead
        place = self._opened[at : at + size]
        if len(place) < size:
            place = memoryview(bytearray(size))
        head, body = datagram[: _HEAD.size], datagram[_HEAD.size :]
        try:
            aead.decrypt_into(_NONCE.pack(counter), body, head, place)
        except InvalidTag:
            return _SEAL
        if channel is None:
            start = _IDENTITY_AT + 1 + place[_IDENTITY_AT]
            if start <= size:
                channel = self._pin(whose, _Channel(bytes(place[:start]), aead, epoch))
        if channel is None or place[: len(channel.identity)] != channel.identity:
            return _POSES
        if epoch > channel.epoch:
            channel.aead, channel.epoch = aead, epoch
            channel.spares.clear()
        if counter == channel.high + 1 and counter & 7:  # the next, as most are
            channel.high = counter
            channel.seen[counter >> 3 & 0x1FFF] |= 1 << (counter & 7)
        else:
            channel.see(counter)
        channel.used = now
        return place

    def unseal_burst(self, burst: Sequence[Buffer], now: int) -> list[Buffer | DecodeError]:
        if len(burst[0]) > SHORT_BYTES_MAX or min(map(len, burst)) < self.overhead:
            return super().unseal_burst(burst, now)
        heads = list(map(_HEAD.unpack_from, burst))
        found: list[Buffer | DecodeError] = []
        start = at = 0
        for stop in _stops(heads):
            whose, first = heads[start]
            stretch = burst[start:stop]
            opened = self._open_stretch(stretch, whose, range(first, first + len(stretch)), now)
            if opened is not None:
                found += opened
            else:
                for datagram in stretch:
                    one = self.unseal(datagram, now, at)
                    at += 0 if isinstance(one, DecodeError) else len(one)
                    found.append(one)
            start = stop
        return found

    def _open_stretch(
        self, stretch: Sequence[Buffer], whose: bytes, counters: range, now: int
    ) -> list[bytes] | None:
        """All of it, or None: then nothing has happened."""
        channel = self._channels.get(whose)
        if channel is None or counters[0] <= channel.high:
            return None
        if not counters[0] >> EPOCH_BITS == counters[-1] >> EPOCH_BITS == channel.epoch:
            return None
        heads = map(_HEAD.pack, repeat(whose), counters)
        bodies = [datagram[_HEAD.size :] for datagram in stretch]
        try:
            opened = list(map(channel.aead.decrypt, map(_NONCE.pack, counters), bodies, heads))
        except InvalidTag:
            return None
        if not all(map(bytes.startswith, opened, repeat(channel.identity))):
            return None
        channel.see_all(counters)
        channel.used = now
        return opened

    def _derive(self, whose: bytes, epoch: int, now: int) -> AESGCM | DecodeError:
        """The key of datagrams that are the first of their salt, of this key, or of this epoch."""
        if not whose.startswith(_MARK):
            return _UNSEALED if whose.startswith(MAGIC) else _NOT_OURS
        key, salt = self._keys.get(whose[_ID]), whose[_SALT]
        if key is None:
            self.foreign = whose[_ID]
            return _KEY
        if salt == self._salt:
            return _OURS
        last = max(self._under(salt), key=attrgetter("epoch"), default=None)
        if last is not None and abs(epoch - last.epoch) <= 1:
            spare = last.spares.get((key.id, epoch))
            if spare is None:
                spare = last.spares[key.id, epoch] = key.derive(self._group, salt, epoch)
            return spare
        if last is not None and epoch - last.epoch > 1 + (now - last.used) // EPOCH_NS:
            return _LEAP
        return key.derive(self._group, salt, epoch) if self._may_derive(now) else _SALTS

    def _under(self, salt: bytes) -> list[_Channel]:
        """What opens under this salt, whatever the key."""
        found = [self._channels.get(_MARK + each + salt) for each in self._keys]
        return [channel for channel in found if channel is not None]

    def _pin(self, whose: bytes, channel: _Channel) -> _Channel | None:
        """A salt that opens is its sender's from now on; None: it is another's, or that one has
        another."""
        identity, salt = channel.identity, whose[_SALT]
        if any(other.identity != identity for other in self._under(salt)):
            return None
        if self._salts.setdefault(identity, salt) != salt:
            return None
        if len(self._channels) >= self._room:
            others = [
                each for each in self._channels.items() if each[1].identity not in self._members
            ]
            oldest, gone = min(others, key=lambda each: each[1].used)
            del self._channels[oldest]
            self._unpin(oldest, gone)
        return self._channels.setdefault(whose, channel)

    def _unpin(self, whose: bytes, gone: _Channel) -> None:
        """This channel is forgotten, and its sender's salt with the last one of it."""
        if not self._under(whose[_SALT]):
            self._salts.pop(gone.identity, None)

    def _may_derive(self, now: int) -> bool:
        if now >= self._since + DERIVING_NS or now < self._since:
            self._since, self._derived = now, 0
        self._derived += 1
        return self._derived <= DERIVED_MAX


def _stops(heads: Sequence[tuple[bytes, int]]) -> list[int]:
    """Where each stretch ends that is of one salt and counts on by one."""
    count, (whose, first) = len(heads), heads[0]
    if heads == list(zip(repeat(whose), range(first, first + count), strict=False)):
        return [count]
    nexts = [(whose, counter + 1) for whose, counter in heads[:-1]]
    return [*(at for at in range(1, count) if heads[at] != nexts[at - 1]), count]
