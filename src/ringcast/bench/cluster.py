"""Cluster: member processes on loopback, and how to talk to them. For benchmarks, the demo, tests.

Each member is a process of its own (member.py) that talks JSON lines. The launcher plays what
membership will do: it knows whom it killed and tells the others to go on without.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from ringcast.errors import RingcastError

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType


class Cluster:
    """So many members in one group, until the block ends."""

    def __init__(
        self,
        *,
        members: int,
        group: str = "bench",
        loss: float = 0.0,
        seed: int = 1,
        record: Path | None = None,
        config: dict[str, Any] | None = None,
    ) -> None:
        self.names = [f"m{at}" for at in range(members)]
        self.processes: list[subprocess.Popen[str]] = []
        self._place = {
            "group": group,
            "loss": loss,
            "record": str(record) if record else None,
            "config": config or {},
        }
        self._seed = seed
        self._stack = ExitStack()

    def __enter__(self) -> Cluster:
        addresses = [f"127.0.0.1:{port}" for port in free_ports(len(self.names))]
        with ExitStack() as stack:
            for at, (name, address) in enumerate(zip(self.names, addresses, strict=True)):
                process = stack.enter_context(child("ringcast.bench.member"))
                self.processes.append(process)
                own = {"name": name, "listen": address, "seed": self._seed * 1000 + at}
                tell(process, {**self._place, **own, "members": addresses})
            self.hear_all()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
        self._stack.close()

    def tell_all(self, message: dict[str, Any]) -> None:
        for process in self.processes:
            tell(process, message)

    def hear_all(self) -> list[dict[str, Any]]:
        """One answer from each, in the order of the names."""
        return [hear(process) for process in self.processes]

    def kill(self, at: int) -> None:
        """kill -9 one member and let the others go on without it."""
        victim = self.processes.pop(at)
        victim.kill()
        victim.wait()
        self.tell_all({"op": "exclude", "name": self.names.pop(at)})


def free_ports(count: int) -> list[int]:
    """UDP ports on loopback that nobody uses at this moment."""
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            for _ in range(count)
        ]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]


def child(module: str) -> subprocess.Popen[str]:
    """A Python process that runs a module of ours and talks JSON lines."""
    return subprocess.Popen(
        [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def tell(process: subprocess.Popen[str], message: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(message) + "\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RingcastError(f"a member process ended with status {process.wait()}")
    answer: dict[str, Any] = json.loads(line)
    return answer
