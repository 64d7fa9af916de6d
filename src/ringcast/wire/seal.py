"""Where datagrams come in and leave: each is opened once and sealed once. Nodes see neither."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Protocol

from ringcast.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ringcast.wire.codec import Buffer


class DatagramSeal(Protocol):
    """Encryption and authentication of one member's datagrams."""

    overhead: int
    """Bytes that sealing adds."""

    def seal(self, datagram: bytes) -> bytes: ...

    def seal_burst(self, burst: Sequence[bytes]) -> Sequence[Buffer]:
        """Each for itself. They are gone with the next burst."""
        return [*map(self.seal, burst)]

    def unseal(self, datagram: Buffer, now: int, at: int = 0) -> Buffer | DecodeError:
        """What was sealed; DecodeError unless it comes from a holder of the key, and only once. It
        is not raised: that would take as long as to open one, and anybody can send many. What was
        opened before is gone, but what others of its burst, of `at` bytes, have held."""
        ...


class Passage:
    """Of one member; without a seal everything passes as it is."""

    def __init__(self, seal: DatagramSeal | None, reject: Callable[[DecodeError], None]) -> None:
        self.overhead = 0 if seal is None else seal.overhead
        self.on_refused: Callable[[DecodeError], None] | None = None
        """Who else is told of what does not open."""
        self._seal = seal
        self._reject = reject

    def seal(self, datagram: bytes) -> bytes:
        """As it may leave."""
        return datagram if self._seal is None else self._seal.seal(datagram)

    def seal_burst(self, burst: Sequence[bytes]) -> Sequence[Buffer]:
        """The same, each for itself. They are gone with the next burst."""
        return burst if self._seal is None else self._seal.seal_burst(burst)

    def open(self, datagrams: Iterable[Buffer], now: int) -> Iterable[Buffer]:
        """Datagrams as they came, each gone when the next is asked for. What does not open is
        counted and left out."""
        if self._seal is None:
            return datagrams
        return chain.from_iterable(self.open_bursts(((each,) for each in datagrams), now))

    def open_bursts(
        self, bursts: Iterator[Sequence[Buffer]], now: int
    ) -> Iterator[Sequence[Buffer]]:
        """The same, of what system calls brought."""
        return bursts if self._seal is None else self._open_bursts(self._seal, bursts, now)

    def _open_bursts(
        self, seal: DatagramSeal, bursts: Iterator[Sequence[Buffer]], now: int
    ) -> Iterator[Sequence[Buffer]]:
        for burst in bursts:
            opened: list[Buffer] = []
            at = 0
            for datagram in burst:
                found = seal.unseal(datagram, now, at)
                if not isinstance(found, DecodeError):
                    opened.append(found)
                    at += len(found)
                    continue
                self._reject(found)
                if self.on_refused is not None:
                    self.on_refused(found)
            if opened:
                yield opened
