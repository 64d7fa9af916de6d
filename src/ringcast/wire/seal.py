"""Where datagrams come in and leave: each is opened once and sealed once. Nodes see neither."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from ringcast.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ringcast.wire.codec import Buffer


SHORT_BYTES_MAX: Final = 4096
"""Datagrams of no more than this are sealed faster alone than as a burst."""


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
        is not raised: that would take as long as to open one, and anybody can send many. It
        overwrites what was opened before, except the first `at` bytes, of the same burst."""
        ...

    def unseal_burst(self, burst: Sequence[Buffer], now: int) -> list[Buffer | DecodeError]:
        """The same, of each for itself."""
        found: list[Buffer | DecodeError] = []
        at = 0
        for datagram in burst:
            one = self.unseal(datagram, now, at)
            at += 0 if isinstance(one, DecodeError) else len(one)
            found.append(one)
        return found


class Passage:
    """Of one member; without a seal everything passes as it is."""

    def __init__(self, seal: DatagramSeal | None, reject: Callable[[DecodeError], None]) -> None:
        self.overhead = 0 if seal is None else seal.overhead
        self.on_refused: Callable[[DecodeError], None] = lambda _: None
        """Who else is told of what does not open."""
        self._seal = seal
        self._reject = reject
        self.seal: Callable[[bytes], bytes] = bytes if seal is None else seal.seal
        """As it may leave."""
        self.seal_burst = list if seal is None else seal.seal_burst
        """The same, each for itself. They are gone with the next burst."""

    def open_bursts(
        self, bursts: Iterator[Sequence[Buffer]], now: int
    ) -> Iterator[Sequence[Buffer]]:
        """What system calls brought, each gone when the next is asked for. What does not open is
        counted and left out."""
        seal = self._seal
        for burst in bursts:
            if seal is None:
                yield burst
                continue
            is_alone = len(burst) == 1
            found = [seal.unseal(burst[0], now)] if is_alone else seal.unseal_burst(burst, now)
            opened: list[Buffer] = []
            for one in found:
                if isinstance(one, DecodeError):
                    self._reject(one)
                    self.on_refused(one)
                else:
                    opened.append(one)
            if opened:
                yield opened
