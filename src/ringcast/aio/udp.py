"""One UDP socket: datagrams in and out, never blocking, with what the kernel tells about them.

The receive buffer is asked for and what was got is used: a sender may have no more under way
than the slowest receiver's buffer holds, or every overflow costs a repair. On Linux IP_RECVERR
brings back refused ports on the one unconnected socket: a process that died is known at once.

It also brings back how much a path takes. Datagrams are not to be fragmented, so whoever cannot
pass one on says so, this machine first of all, and smaller ones are built from then on. What was
cut for larger ones, and what cannot be cut, goes in fragments: losing one of them loses it all, but
nothing is too long for ever. To other machines they begin with what the interface takes.

What routers say the kernel keeps, and tells whoever sends more. But anybody may have said it. So
only paths to members count, and for NARROW_NS. On loopback the kernel is asked for what interfaces
take, not for what routers say; and so it is once a path is to take less than PATH_MTU_MIN. Then
datagrams have that size, and routers may fragment them.

Datagrams of one length leave and come several at a time where the system can (offload.py).
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import time
from typing import TYPE_CHECKING

from ringcast.aio.offload import CANNOT, SHARED_MAX, Offload, mtu_of
from ringcast.aio.reach import admits, is_loopback
from ringcast.aio.transport import Inputs, Transport, fitting
from ringcast.config import DATAGRAM_BYTES_MIN
from ringcast.errors import UsageError
from ringcast.model import Address, View
from ringcast.window.send import BULK_BYTES

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence

    from ringcast.wire.codec import Buffer

BUFFER_BYTES = 8 << 20
"""What a socket is to buffer, unless less will do; an unprivileged process gets at most
net.core.rmem_max."""

ADMITTED_MAX = 4096
"""Addresses remembered as those that may be sent to."""

NARROW_NS = 600_000_000_000
"""How long a path counts as narrow, as in the kernel. Then larger datagrams are tried again."""

PATH_MTU_MIN = 1280
"""What all paths of IPv6 take, and nearly all of IPv4."""

IPV4_HEADERS = 20 + 8
IPV6_HEADERS = 40 + 8
"""What stands before a datagram in its packet."""

REFUSED_RECENTLY_NS = 5_000_000_000
"""How long a refused port is worth mentioning: somebody may have come to listen there since."""

# Linux's numbers, which the socket module does not name in all the versions we run on.
_SO_SNDBUFFORCE = 32
_SO_RCVBUFFORCE = 33
_IP_RECVERR = 11
_IPV6_RECVERR = 25
_IP_MTU_DISCOVER = 10
_IPV6_MTU_DISCOVER = 23
_MAY_FRAGMENT, _AS_PATHS_TAKE, _AS_INTERFACES_TAKE = 0, 2, 4

_ERROR = struct.Struct("=IB3xI")  # of struct sock_extended_err: errno, origin, MTU if too long
_THIS_MACHINE = 1  # the origin
_IPV4_TELLER, _IPV6_TELLER = slice(20, 24), slice(24, 40)  # behind it: whose ICMP error it is
_WOULD_DROP = {errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOBUFS, errno.ENOMEM}


class UdpSocket(Transport):
    """A bound socket. Sending drops and counts what the kernel does not take: repair is above."""

    def __init__(
        self, address: Address, *, insecure: bool = False, buffer_bytes: int = BUFFER_BYTES
    ) -> None:
        """`insecure`: it may send to other machines too. `buffer_bytes`: to be asked for, for what
        arrives."""
        is_ipv4 = ":" not in address.host
        self._socket = socket.socket(
            socket.AF_INET if is_ipv4 else socket.AF_INET6, socket.SOCK_DGRAM
        )
        self._socket.setblocking(False)
        ask_for_buffers(self._socket, buffer_bytes)
        self._headers = IPV4_HEADERS if is_ipv4 else IPV6_HEADERS
        self._teller = _IPV4_TELLER if is_ipv4 else _IPV6_TELLER
        self._level = socket.IPPROTO_IP if is_ipv4 else socket.IPPROTO_IPV6
        self._fragmenting = _IP_MTU_DISCOVER if is_ipv4 else _IPV6_MTU_DISCOVER
        with contextlib.suppress(OSError):  # what other systems do not tell
            self._socket.setsockopt(self._level, _IP_RECVERR if is_ipv4 else _IPV6_RECVERR, 1)
        try:
            self._socket.bind(address)
        except OSError as error:
            self._socket.close()
            raise UsageError(f"cannot listen on {address}: {error.strerror}") from error
        host, port = self._socket.getsockname()[:2]
        self.address = Address(host, port)
        self.offload = Offload(self._socket)
        self.received = 0
        self.sent = 0
        self.dropped = 0
        """Datagrams that the kernel did not take."""
        self.fragmented = 0
        """Datagrams that were too long for their path and went all the same."""
        self._narrow: dict[str, int] = {}  # by host: the longest datagram, where that is less
        self._narrow_since = 0
        self._hosts: set[str] = set()  # paths to these count
        self._whole: int  # how a datagram is sent that is not to be fragmented here
        self.receive_buffer = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2
        """Bytes of datagrams that fit: Linux reports twice what it gives, for its own overhead."""
        self.bulk_bytes = BULK_BYTES if is_loopback(self.address) else None
        if self.receive_buffer < buffer_bytes:
            self.shortage = (
                f"the kernel grants a receive buffer of {self.receive_buffer} bytes, and "
                f"{buffer_bytes} were asked for: others send more slowly to this member; raise it "
                f"with sysctl -w net.core.rmem_max={buffer_bytes}"
            )
        self._others = 1
        self._interface: int | None = None  # the longest datagram that it takes, off this machine
        self._is_local = True  # all members are at this address
        if not is_loopback(self.address):
            self.offload.join()
            mtu = mtu_of(self.address.host)
            self._interface = None if mtu is None else max(mtu - self._headers, DATAGRAM_BYTES_MIN)
        self._widen()
        self.refused: dict[Address, int] = {}
        """Of `_admitted`, where nobody listened, with when that was last heard (monotonic ns)."""
        self._insecure = insecure
        self._admitted: set[Address] = set()
        self.rejected: dict[str, int] = {}
        self.hints: set[Address] = set()
        """Of these, those that nobody has been told of yet: taken by the driver."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_input: Callable[[], None] | None = None

    def start(self, loop: asyncio.AbstractEventLoop, on_input: Callable[[], None]) -> None:
        self._loop, self._on_input = loop, on_input
        loop.add_reader(self._socket.fileno(), on_input)

    def stop(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._loop = self._on_input = None

    def inputs(self) -> Inputs:
        return {} if self._on_input is None else {self._socket.fileno(): self._on_input}

    def drain(self, limit: int) -> Iterator[Sequence[memoryview]]:
        offload = self.offload
        offload.notes_source = self.notes_sources
        if self._narrow and time.monotonic_ns() - self._narrow_since > NARROW_NS:
            self._widen()
        for place in range(limit):
            if place == 1 and not offload.poll(0):
                return  # most come alone
            try:
                burst, _ = offload.receive()
                self.source = offload.source
            except BlockingIOError:
                return
            except OSError:
                self._read_errors()
                continue
            if offload.has_error:
                offload.has_error = False
                self._read_errors()
            self.received += len(burst)
            yield burst

    def send(self, datagram: Buffer, dest: Address) -> None:
        if dest not in self._admitted and not self._admit(dest):
            self.dropped += 1
            return
        # Twice: what was wrong with an earlier datagram is told in place of sending this one.
        for is_again in (False, True):
            try:
                self._socket.sendto(datagram, dest)
            except OSError as error:
                if error.errno in _WOULD_DROP:
                    break
                self._read_errors()
                if is_again and error.errno == errno.EMSGSIZE:
                    self._send_in_fragments(datagram, dest)
                    return
            else:
                self.sent += 1
                return
        self.dropped += 1

    def send_burst(self, burst: Sequence[Buffer], dest: Address) -> None:
        is_admitted = dest in self._admitted or self._admit(dest)
        before, cannot = (self.dropped, self.fragmented, self._whole), False
        if is_admitted and self.offload.can_segment:
            try:
                self.offload.send(burst, dest)
            except OSError as error:
                if error.errno in _WOULD_DROP:
                    self.dropped += len(burst)
                    return
                # None has left: each is told for itself what is in its way.
                self._read_errors()
                cannot = error.errno in CANNOT
            else:
                self.sent += len(burst)
                return
        for datagram in burst:
            self.send(datagram, dest)
        if cannot and before == (self.dropped, self.fragmented, self._whole):
            self.offload.can_segment = False  # nothing else was in their way

    def _send_in_fragments(self, datagram: Buffer, dest: Address) -> None:
        self._fragment(_MAY_FRAGMENT)
        try:
            self._socket.sendto(datagram, dest)
        except OSError:
            self.dropped += 1
        else:
            self.sent += 1
            self.fragmented += 1
        finally:
            self._fragment(self._whole)

    def _fragment(self, how: int) -> None:
        with contextlib.suppress(OSError):  # other systems cannot
            self._socket.setsockopt(self._level, self._fragmenting, how)

    def enter_view(self, view: View) -> None:
        self.refused.clear()
        self._others = len(view) - 1
        self._hosts = {member.address.host for member in view}
        self._is_local = self._hosts == {self.address.host}
        if self.group_address is not None:
            self._hosts.add(self.group_address.host)
        self._widen(self._hosts)

    def explain(self, awaited: Mapping[Address, str], now: int) -> list[str]:
        reasons = [
            f"nobody listens at {address}: told so {(now - heard) / 1e9:.1f} s ago"
            for address, heard in self.refused.items()
            if address in awaited and now - heard < REFUSED_RECENTLY_NS
        ]
        if self.datagram_bytes <= SHARED_MAX and not self.offload.can_segment:
            reasons.append(
                f"datagrams of {self.datagram_bytes} bytes leave one by one: neither the system "
                "nor the network interface takes several at once (UDP_SEGMENT)"
            )
        return reasons

    def stats(self) -> dict[str, object]:
        return {
            "kind": "udp",
            "address": str(self.address),
            "receive_buffer": self.receive_buffer,
            "received": self.received,
            "sent": self.sent,
            "dropped": self.dropped,
            "fragmented": self.fragmented,
            "datagram_bytes": self.datagram_bytes,
            "offload": self.offload.describe(),
            "sent_in_bursts": self.offload.segmented,
            "received_in_bursts": self.offload.joined,
            "refused": list(map(str, self.refused)),
        }

    def close(self) -> None:
        self.stop()
        self._socket.close()

    def _admit(self, dest: Address) -> bool:
        """Whether to send there."""
        is_admitted = admits(self.address, dest, insecure=self._insecure)
        if is_admitted:
            if len(self._admitted) >= ADMITTED_MAX:
                self._admitted.clear()
                self.refused.clear()
                self.hints.clear()
            self._admitted.add(dest)
        return is_admitted

    def _read_errors(self) -> None:
        """Empty the error queue: each entry names the address that a datagram did not reach."""
        if self._loop is not None:
            self._loop.call_soon(self._look_again)
        while True:
            try:
                _, ancillary, _, dest = self._socket.recvmsg(0, 512, socket.MSG_ERRQUEUE)
                errors = [(*_ERROR.unpack_from(data), data[self._teller]) for *_, data in ancillary]
            except (OSError, struct.error):
                return
            for code, origin, info, teller in errors:
                address = Address(*dest[:2])
                if code == errno.ECONNREFUSED:
                    # From other machines nothing comes in the name of a loopback address.
                    is_own = teller == socket.inet_pton(self._socket.family, address.host)
                    if is_own and address in self._admitted:
                        self.refused[address] = time.monotonic_ns()
                        self.hints.add(address)
                elif code == errno.EMSGSIZE and origin == _THIS_MACHINE:
                    self._narrow_down(address.host, info)

    def _look_again(self) -> None:
        """uvloop looks no more at a socket that had an error to tell."""
        if self._loop is not None and self._on_input is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._loop.add_reader(self._socket.fileno(), self._on_input)

    def _narrow_down(self, host: str, mtu: int) -> None:
        """This machine sends no larger packets there in one piece."""
        if host not in self._hosts:
            return
        if not self._narrow:
            self._narrow_since = time.monotonic_ns()
        if mtu < PATH_MTU_MIN and self._whole == _AS_PATHS_TAKE:
            mtu, self._whole = PATH_MTU_MIN, _AS_INTERFACES_TAKE
            self._fragment(self._whole)
        size = max(mtu - self._headers, DATAGRAM_BYTES_MIN)
        self._narrow[host] = min(size, self._narrow.get(host, size))
        self._set_datagram_bytes()

    def _widen(self, hosts: Container[str] = ()) -> None:
        """Only paths to these are narrow still."""
        self._narrow = {host: size for host, size in self._narrow.items() if host in hosts}
        if not self._narrow:
            on_loopback = is_loopback(self.address)
            self._whole = _AS_INTERFACES_TAKE if on_loopback else _AS_PATHS_TAKE
            self._fragment(self._whole)
        self._set_datagram_bytes()

    def _set_datagram_bytes(self) -> None:
        largest = fitting(self.receive_buffer, self.bulk_bytes, self._others)
        paths = [*self._narrow.values()]
        if self._interface is not None and (self.group_address is not None or not self._is_local):
            paths.append(self._interface)
        if paths:
            self.offload.join()
        self.datagram_bytes = min([*paths, largest])


def ask_for_buffers(sock: socket.socket, buffer_bytes: int = BUFFER_BYTES) -> None:
    """Large ones, as far as they are to be had; `buffer_bytes` for what arrives."""
    _ask_for_buffer(sock, _SO_RCVBUFFORCE, socket.SO_RCVBUF, buffer_bytes)
    _ask_for_buffer(sock, _SO_SNDBUFFORCE, socket.SO_SNDBUF, BUFFER_BYTES)


def _ask_for_buffer(sock: socket.socket, forced: int, plain: int, size: int) -> None:
    try:
        sock.setsockopt(socket.SOL_SOCKET, forced, size)
    except OSError:
        sock.setsockopt(socket.SOL_SOCKET, plain, size)
