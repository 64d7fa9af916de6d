"""A network of one's own for a test: interfaces with any MTU, full queues, cables that are pulled.

A test that is `@in_own_network` runs in a new network namespace, with loopback alone. Nothing has
to be installed. Users other than root may make one only in a user namespace, which a process enters
for good: there the test is run again in a process of its own. Where that is not allowed either the
test is skipped, and says why.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import subprocess
import sys
from fcntl import ioctl
from functools import wraps
from typing import TYPE_CHECKING, NoReturn, ParamSpec

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")

TIMEOUT_S = 120

_NEW_NETWORK = 0x40000000
_GET_FLAGS, _SET_FLAGS = 0x8913, 0x8914
_SET_ADDRESS, _SET_NETMASK, _SET_MTU = 0x8916, 0x891C, 0x8922
_UP = 1
_TUN = (0x400454CA, 0x1001)  # TUNSETIFF; packets of IP without another header
_NEW_QUEUE, _DELETE_QUEUE, _ROOT = 36, 37, 2**32 - 1
_NETLINK_ERROR = 2

_libc = ctypes.CDLL(None, use_errno=True)
_tunnels: list[int] = []  # of the test that is running


def in_own_network(test: Callable[P, None]) -> Callable[P, None]:
    @wraps(test)
    def run(*arguments: P.args, **options: P.kwargs) -> None:
        before = os.open("/proc/self/ns/net", os.O_RDONLY)
        try:
            if _libc.unshare(_NEW_NETWORK):
                _run_again_as_root()
                return
            try:
                set_up()
                test(*arguments, **options)
            finally:
                while _tunnels:
                    os.close(_tunnels.pop())
                assert not _libc.setns(before, _NEW_NETWORK)
        finally:
            os.close(before)

    return run


def _run_again_as_root() -> None:
    """In a user namespace, where everybody may be root; with a network that belongs to it, or there
    would be no way back from the test's own."""
    test, _, _ = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")
    become_root = ["unshare", "--user", "--map-root-user", "--net"]
    try:
        subprocess.run([*become_root, "true"], check=True, capture_output=True, timeout=TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        give_up(f"not root, and no user namespace: {error}")
    command = [*become_root, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr


def set_mtu(size: int, interface: str = "lo") -> None:
    _control(_SET_MTU, interface, struct.pack("i", size))


def set_up(is_up: bool = True, interface: str = "lo") -> None:
    (flags,) = struct.unpack_from("H", _control(_GET_FLAGS, interface, b""), 16)
    _control(_SET_FLAGS, interface, struct.pack("H", flags | _UP if is_up else flags & ~_UP))


def open_tunnel(address: str) -> int:
    """An interface tun0 with a network of 256 addresses; what is sent there is read from this file
    descriptor, and what is written to it arrives."""
    try:
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    except OSError as error:
        give_up(f"/dev/net/tun: {error.strerror}")
    _tunnels.append(descriptor)
    request, flags = _TUN
    ioctl(descriptor, request, struct.pack("16sH22x", b"tun0", flags))
    for what, value in ((_SET_ADDRESS, address), (_SET_NETMASK, "255.255.255.0")):
        _control(what, "tun0", struct.pack("Hxx4s", socket.AF_INET, socket.inet_aton(value)))
    set_up(interface="tun0")
    return descriptor


def hold_back(rate: int, burst: int, waiting: int) -> None:
    """Let so many bytes a second leave by loopback, after the first so many; so many more wait."""
    rates = struct.pack("BBHhHI", 0, 1, 0, 0, 0, rate) + bytes(12)
    options = _attribute(1, rates + struct.pack("III", waiting, 0, 0)) + _attribute(
        6, struct.pack("I", burst)
    )
    code = _queue(_NEW_QUEUE, _attribute(1, b"tbf\0") + _attribute(2, options))
    if code:
        give_up(f"no token bucket: {os.strerror(code)}")


def release() -> None:
    """Hold nothing back any more; what waited is lost."""
    assert not _queue(_DELETE_QUEUE, b"")


def give_up(reason: str) -> NoReturn:
    pytest.skip(f"no network of one's own to be had here: {reason}")


def _queue(kind: int, attributes: bytes) -> int:
    """Ask the system to change the queue of loopback; the error number, or 0."""
    request, acknowledge, create = 1, 4, 0x400
    body = struct.pack("BxxxiIII", 0, 1, 0, _ROOT, 0) + attributes
    flags = request | acknowledge | (create if kind == _NEW_QUEUE else 0)
    head = struct.pack("IHHII", 16 + len(body), kind, flags, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
        sock.send(head + body)
        answer = sock.recv(1 << 16)
    _, what, _, _, _, code = struct.unpack_from("IHHIIi", answer)
    assert what == _NETLINK_ERROR
    return -code


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _control(request: int, interface: str, value: bytes) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return ioctl(sock, request, struct.pack("16s24s", interface.encode(), value))
