"""A network of one's own: each process is on a host, and hosts are joined by a switch.

Hosts are network namespaces, each with a cable to a bridge. Whoever is not root makes them in a
user namespace, and the process that measures stays in it. Interfaces have any MTU, and can be told
not to cut or join datagrams, as by `ethtool -K`: then each packet really is one. A cable can be
pulled: what is sent to or from that host is lost in silence. Tests use it too.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from fcntl import ioctl
from pathlib import Path
from typing import Any

from ringcast.errors import UsageError
from ringcast.sim.processes import Cluster

_NEW_NETWORK, _NEW_USER = 0x40000000, 0x10000000
_ETHTOOL, _GET_STRINGS, _SET_FEATURES, _SET_GSO, _SET_GRO = 0x8946, 0x1B, 0x3B, 0x24, 0x2C
_FEATURE_NAMES, _NAME_BYTES = 4, 32
_SEGMENTATION = b"tx-udp-segmentation"

_libc = ctypes.CDLL(None, use_errno=True)


class Network:
    """So many hosts, until the block ends. `is_plain`: no interface cuts or joins datagrams."""

    def __init__(self, hosts: int, mtu: int, *, is_plain: bool = False) -> None:
        self.addresses = [f"10.9.0.{at + 1}" for at in range(hosts)]
        self._mtu = str(mtu)
        self._is_plain = is_plain
        self._spaces: list[int] = []
        self._stack = ExitStack()

    def __enter__(self) -> Network:
        if shutil.which("ip") is None:
            raise UsageError("no network of one's own: `ip` is not installed")
        with ExitStack() as stack:
            try:
                before = _open_space(stack)
                self._home = _new_space(stack)
                stack.callback(_enter, before)
                run_ip("link", "add", "switch", "type", "bridge")
                run_ip("link", "set", "switch", "mtu", self._mtu, "up")
                for at, address in enumerate(self.addresses):
                    self._add(at, address, stack)
            except OSError as error:
                raise UsageError(f"no network of one's own: {error.strerror}") from None
            except subprocess.CalledProcessError as error:
                raise UsageError(f"no network of one's own: {error.stderr.strip()}") from None
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextmanager
    def inside(self, at: int) -> Iterator[None]:
        """Processes that are started meanwhile are on that host."""
        _enter(self._spaces[at])
        try:
            yield
        finally:
            _enter(self._home)

    def unplug(self, at: int) -> None:
        """Nothing gets to that host or from it, and nobody is told."""
        run_ip("link", "set", f"port{at}", "down")

    def plug(self, at: int) -> None:
        run_ip("link", "set", f"port{at}", "up")

    def _add(self, at: int, address: str, stack: ExitStack) -> None:
        space = _new_space(stack)
        self._spaces.append(space)
        _enter(self._home)
        port, path = f"port{at}", f"/proc/{os.getpid()}/fd/{space}"
        run_ip("link", "add", port, "type", "veth", "peer", "eth0", "netns", path)
        run_ip("link", "set", port, "mtu", self._mtu, "master", "switch", "up")
        if self._is_plain:
            _be_plain(port)
        with self.inside(at):
            run_ip("link", "set", "lo", "up")
            run_ip("address", "add", f"{address}/24", "dev", "eth0")
            run_ip("link", "set", "eth0", "mtu", self._mtu, "up")
            if self._is_plain:
                _be_plain("eth0")


class HostCluster(Cluster):
    """Each member is on a host of its own. Without a key it is `insecure`."""

    def __init__(self, network: Network, key: str | None, **options: Any) -> None:
        super().__init__(members=len(network.addresses), insecure=key is None, key=key, **options)
        self._network = network
        self._free = list(range(len(network.addresses)))
        self._hosts: list[int] = []  # of those who run, in the order of their names

    def start(self, **place: Any) -> subprocess.Popen[str]:
        at = self._free.pop(0)
        self._hosts.append(at)
        with self._network.inside(at):
            return super().start(listen=f"{self._network.addresses[at]}:0", **place)

    @contextmanager
    def vanished(self, at: int) -> Iterator[None]:
        """Pull the cable of one member's host; it is one of the others no more. In the end the
        process is killed, and another may take its place."""
        host = self._hosts.pop(at)
        self._network.unplug(host)
        victim, _ = self.processes.pop(at), self.names.pop(at)
        try:
            yield
        finally:
            victim.kill()
            victim.wait()
            self._network.plug(host)
            self._free.append(host)


def _new_space(stack: ExitStack) -> int:
    """Enter it."""
    if _libc.unshare(_NEW_NETWORK):
        user, group = os.getuid(), os.getgid()
        if _libc.unshare(_NEW_USER | _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    return _open_space(stack)


def _open_space(stack: ExitStack) -> int:
    space = os.open("/proc/self/ns/net", os.O_RDONLY)
    stack.callback(os.close, space)
    return space


def _enter(space: int) -> None:
    _libc.setns(space, _NEW_NETWORK)  # a user who is not root stays where it is in the end


def run_ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def _be_plain(interface: str) -> None:
    """What `ethtool -K … gso off gro off tx-udp-segmentation off` does."""
    names = _ethtool(interface, struct.pack("III", _GET_STRINGS, _FEATURE_NAMES, 0) + bytes(8192))
    (count,) = struct.unpack_from("I", names, 8)
    table = [names[12 + at * _NAME_BYTES :][:_NAME_BYTES].rstrip(b"\0") for at in range(count)]
    place = table.index(_SEGMENTATION)
    blocks = [(0, 0)] * ((count + 31) // 32)
    blocks[place // 32] = (1 << place % 32, 0)
    wanted = b"".join(struct.pack("II", *block) for block in blocks)
    _ethtool(interface, struct.pack("II", _SET_FEATURES, len(blocks)) + wanted)
    for what in (_SET_GSO, _SET_GRO):
        _ethtool(interface, struct.pack("II", what, 0))


def _ethtool(interface: str, request: bytes) -> bytes:
    space = ctypes.create_string_buffer(request, len(request))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        name = interface.encode().ljust(16, b"\0")
        ioctl(sock, _ETHTOOL, name + struct.pack("P", ctypes.addressof(space)) + bytes(16))
    return space.raw
