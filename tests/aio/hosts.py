"""Hosts of their own for a test's processes, with links between any two that can be cut one way.

Each host is a network namespace with one link to the namespace of the test, which forwards. What a
cut link drops is lost in silence, whoever sends it and by whatever transport. Nothing forwards what
is sent to a multicast address: `Neighbours` are on one network. For tests that are
`@in_own_network`; they are skipped where `ip` is not installed.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from namespace import give_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_NEW_NETWORK = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


class Hosts:
    """So many, until the block ends."""

    def __init__(self, count: int) -> None:
        self.addresses = [f"10.9.{at + 1}.2" for at in range(count)]
        self._spaces: list[int] = []
        self._cuts: list[tuple[str, ...]] = []
        self._stack = ExitStack()

    def __enter__(self) -> Hosts:
        if shutil.which("ip") is None:
            give_up("`ip` is not installed")
        with ExitStack() as stack:
            home = os.open("/proc/self/ns/net", os.O_RDONLY)
            stack.callback(os.close, home)
            self._home = home
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
            try:
                for at, address in enumerate(self.addresses):
                    self._add(at, address, stack)
            except subprocess.CalledProcessError as error:
                give_up(f"{error}: {error.stderr.strip()}")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextmanager
    def inside(self, at: int) -> Iterator[None]:
        """What this thread opens and starts is on that host."""
        _enter(self._spaces[at])
        try:
            yield
        finally:
            _enter(self._home)

    def cut(self, sources: Iterable[int], dests: Iterable[int]) -> None:
        """Nothing gets from any of these to any of those; the other way it does."""
        dests = list(dests)
        for source in sources:
            for dest in dests:
                ends = ("from", self.addresses[source], "to", self.addresses[dest])
                self._cuts.append(("pref", "10", *ends, "blackhole"))
                _ip("rule", "add", *self._cuts[-1])

    def heal(self) -> None:
        """All links are whole again."""
        while self._cuts:
            _ip("rule", "del", *self._cuts.pop())

    def _add(self, at: int, address: str, stack: ExitStack) -> None:
        router = address.removesuffix("2") + "1"
        self._open(at, address, stack)
        _ip("address", "add", f"{router}/24", "dev", f"host{at}")
        with self.inside(at):
            _ip("route", "add", "default", "via", router)

    def _open(self, at: int, address: str, stack: ExitStack) -> None:
        if _libc.unshare(_NEW_NETWORK):
            give_up(os.strerror(ctypes.get_errno()))
        space = os.open("/proc/self/ns/net", os.O_RDONLY)
        stack.callback(os.close, space)
        self._spaces.append(space)
        _enter(self._home)
        _ip("link", "add", f"host{at}", "type", "veth", "peer", "eth0", "netns", _path(space))
        _ip("link", "set", f"host{at}", "up")
        with self.inside(at):
            _ip("link", "set", "lo", "up")
            _ip("address", "add", f"{address}/24", "dev", "eth0")
            _ip("link", "set", "eth0", "up")


class Neighbours(Hosts):
    """On one network, which is a bridge in the namespace of the test."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.addresses = [f"10.9.0.{at + 2}" for at in range(count)]

    def cut(self, sources: Iterable[int], dests: Iterable[int]) -> None:
        """Nothing gets from any of these to any other, either way."""
        for at in {*sources, *dests}:
            self._isolate(at, "on")

    def heal(self) -> None:
        for at in range(len(self.addresses)):
            self._isolate(at, "off")

    def _isolate(self, at: int, how: str) -> None:
        _ip("link", "set", "dev", f"host{at}", "type", "bridge_slave", "isolated", how)

    def _add(self, at: int, address: str, stack: ExitStack) -> None:
        if not at:
            _ip("link", "add", "bridge0", "type", "bridge")
            _ip("link", "set", "bridge0", "up")
            stack.callback(_ip, "link", "del", "bridge0")
        self._open(at, address, stack)
        _ip("link", "set", f"host{at}", "master", "bridge0")


def _enter(space: int) -> None:
    assert not _libc.setns(space, _NEW_NETWORK)


def _path(descriptor: int) -> str:
    return f"/proc/{os.getpid()}/fd/{descriptor}"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
