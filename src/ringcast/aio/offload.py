"""Offload: how one socket sends and brings bursts of datagrams, in one system call where Linux can.

UDP_SEGMENT cuts what is sent into datagrams of one length, as late as it can: in the network card,
if that knows how. UDP_GRO brings datagrams of one sender that came one behind the other, with the
length to cut them by. Where there is neither, datagrams go one by one; those that have come by the
time they are read are still one burst.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import struct
from typing import TYPE_CHECKING, Final

from ringcast.model import Address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.wire.codec import Buffer

# Linux's numbers, which the socket module does not name.
_SOL_UDP: Final = 17
_UDP_SEGMENT: Final = 103
_UDP_GRO: Final = 104
_GET_ADDRESS, _GET_MTU = 0x8915, 0x8921
_INET6_INTERFACES: Final = "/proc/net/if_inet6"

_SEGMENT: Final = struct.Struct("=H")
_SEGMENT_CAME: Final = struct.Struct("=i")
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(_SEGMENT_CAME.size)

IS_WANTED = True
"""Benchmarks measure what it is like without."""

DATAGRAM_SPACE: Final = 1 << 16

SHARED_MIN: Final = 512
SHARED_MAX: Final = 1 << 14
"""Datagrams of so many bytes are read on into one burst. Shorter ones are for somebody who waits,
and longer ones are enough by themselves."""

CANNOT: Final = {errno.EIO, errno.EINVAL}
"""The interface computes no checksums, which cutting needs; or nobody knows what was asked for. No
ICMP error, which anybody can forge, is told as one of these. Before Linux 6.14 that a path is too
narrow is, and everywhere that there can be no such destination."""


class Offload:
    """What one socket can do. It is asked once, and found out again when sending fails."""

    __slots__ = (
        *("_socket", "_space", "_view", "poll"),
        *("can_join", "can_segment", "has_error", "joined", "notes_source", "segmented", "source"),
    )

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        poller = select.poll()
        poller.register(sock, select.POLLIN)
        self.poll = poller.poll
        """Of 0: whether something is there. To be told by an error takes longer."""
        self._space = bytearray(2 * DATAGRAM_SPACE)
        self._view = memoryview(self._space)
        self.can_segment = IS_WANTED and _has_option(sock, _UDP_SEGMENT)
        self.can_join = False
        """What comes may be several datagrams in one."""
        self.has_error = False
        """Something was wrong behind the last burst."""
        self.notes_source = False
        """Whether a burst is of one sender alone, and `source` says whose."""
        self.source: Address | None = None
        self.segmented = 0
        """Datagrams that left in bursts."""
        self.joined = 0
        """Datagrams that came in bursts."""

    def join(self) -> None:
        """From now on datagrams may come together. Reading each takes a little longer then."""
        if IS_WANTED and not self.can_join:
            with contextlib.suppress(OSError):
                self._socket.setsockopt(_SOL_UDP, _UDP_GRO, 1)
                self.can_join = True

    def send(self, burst: Sequence[Buffer], dest: Address) -> None:
        """In one call; OSError if none of it has left."""
        ancillary = [(_SOL_UDP, _UDP_SEGMENT, _SEGMENT.pack(len(burst[0])))]
        self._socket.sendmsg(burst, ancillary, 0, dest)
        self.segmented += len(burst)

    def receive(self, own: Address | None = None) -> tuple[list[memoryview], int]:
        """What has come together, without what is from `own`: of that how many. It is gone with the
        next call. OSError: nothing has come."""
        source: tuple[str, int] | None = None
        if own is None and not self.can_join and not self.notes_source:
            size = self._socket.recv_into(self._view)
            burst = [self._view[:size]]
            if not SHARED_MIN <= size <= SHARED_MAX:
                return burst, 0
        else:
            burst, source = self._receive(self._view)
        self.source = Address(*source[:2]) if source is not None and self.notes_source else None
        length, last = len(burst[0]), burst[-1]
        at = (len(burst) - 1) * length + len(last)
        ours = 0
        if source == own and own is not None:
            ours, burst = len(burst), []
        is_shared = SHARED_MIN <= length <= SHARED_MAX and not self.notes_source
        if not is_shared or not self.poll(0):
            return burst, ours
        while at < DATAGRAM_SPACE and len(last) == length:
            try:
                others, source = self._receive(self._view[at:])
            except BlockingIOError:
                break
            except OSError:
                self.has_error = True
                break
            last = others[-1]
            at += (len(others) - 1) * len(others[0]) + len(last)
            if source == own and own is not None:
                ours += len(others)
            else:
                burst += others
        return burst, ours

    def _receive(self, view: memoryview) -> tuple[list[memoryview], tuple[str, int]]:
        if not self.can_join:
            size, source = self._socket.recvfrom_into(view)
            return [view[:size]], source
        size, ancillary, _, source = self._socket.recvmsg_into([view], _ANCILLARY_BYTES)
        if not ancillary:
            return [view[:size]], source
        (length,) = _SEGMENT_CAME.unpack_from(ancillary[0][2])
        burst = [view[at : at + length] for at in range(0, size, length)]
        burst[-1] = view[(len(burst) - 1) * length : size]
        self.joined += len(burst)
        return burst, source

    def describe(self) -> str:
        """For people."""
        words = ["segments"] * self.can_segment + ["joins"] * self.can_join
        return " and ".join(words) or "none"


def mtu_of(host: str) -> int | None:
    """Of the interface that has this address; None: that is not known."""
    try:
        for _, name in socket.if_nameindex():
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                if host in _addresses_of(sock, name):
                    (mtu,) = struct.unpack_from("=i", _ask(sock, _GET_MTU, name), 16)
                    return int(mtu)
    except (OSError, ImportError, AttributeError):
        pass
    return None


def _addresses_of(sock: socket.socket, name: str) -> list[str]:
    found = []
    with contextlib.suppress(OSError):
        found.append(socket.inet_ntoa(_ask(sock, _GET_ADDRESS, name)[20:24]))
    with contextlib.suppress(OSError), open(_INET6_INTERFACES) as lines:
        for number, *_, interface in map(str.split, lines):
            if interface == name:
                found.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(number)))
    return found


def _ask(sock: socket.socket, request: int, name: str) -> bytes:
    from fcntl import ioctl  # not on every system

    return ioctl(sock, request, struct.pack("16s24x", name.encode()))


def _has_option(sock: socket.socket, option: int) -> bool:
    try:
        sock.getsockopt(_SOL_UDP, option)
    except OSError:
        return False
    return hasattr(sock, "sendmsg")
