"""Cluster: members on loopback, each a process of its own that speaks JSON lines with this one.

For the demo, tests and benchmarks. Members meet in a directory of the cluster's own, and find out
for themselves who is gone. `member_process.py` is one, and says which commands it obeys.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from ringcast.errors import RingcastError


class Cluster:
    """So many members in one group, until the block ends. The first one coordinates."""

    def __init__(
        self,
        *,
        members: int,
        seed: int = 1,
        record: Path | None = None,
        program: Sequence[str] = ("ringcast.sim.member_process",),
        **place: Any,
    ) -> None:
        """`place`: what each process is told of its place in the group."""
        self.names: list[str] = []
        """Those who are running, in the order they came: that of the view."""
        self.processes: list[subprocess.Popen[str]] = []
        self._members = members
        self._started = 0
        self._place = {
            **{"group": "bench", "loss": 0.0, "record_level": "deliveries"},
            **{"config": {}, "membership": {}, "record": str(record) if record else None},
            **place,
        }
        self._program = program
        self._seed = seed
        self._stack = ExitStack()

    def __enter__(self) -> Cluster:
        with ExitStack() as stack:
            self._place["meet"] = stack.enter_context(tempfile.TemporaryDirectory())
            self._stack = stack
            for _ in range(self._members):
                self.start()
            for process in self.processes:  # one after the other, so that the order is known
                self.enter(process)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is KeyboardInterrupt:  # it is not for them, and nobody waits for what they do
            self._kill_all()
        for process in self.processes:
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it died with something unread
                process.stdin.close()
        self._stack.close()

    def start(self, **place: Any) -> subprocess.Popen[str]:
        """Another process; it does not join before it is told to."""
        name = f"m{self._started}"
        process = self._stack.enter_context(child(*self._program))
        seed = self._seed * 1000 + self._started
        self._started += 1
        self.names.append(name)
        self.processes.append(process)
        tell(process, {**self._place, "name": name, "seed": seed, **place})
        return process

    def enter(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        """Let it join; it answers when it is in."""
        tell(process, {"op": "join"})
        return hear(process)

    def tell_all(self, message: dict[str, Any]) -> None:
        for process in self.processes:
            tell(process, message)

    def hear_all(self) -> list[dict[str, Any]]:
        """One answer from each, in the order of the names."""
        return [hear(process) for process in self.processes]

    def await_view(self) -> list[dict[str, Any]]:
        """When each of them has seen the view of those who run, and no others."""
        self.tell_all({"op": "view", "names": self.names})
        return self.hear_all()

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Kill -9 all members if the block takes longer: whoever waits for them is told."""
        timer = threading.Timer(seconds, self._kill_all)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _kill_all(self) -> None:
        for process in self.processes:
            process.kill()

    def kill(self, at: int) -> str:
        """kill -9 one member; its name."""
        victim = self.processes.pop(at)
        victim.kill()
        victim.wait()
        return self.names.pop(at)

    def leave(self, at: int) -> str:
        """Let one member leave, and wait until it has; its name."""
        leaver = self.processes.pop(at)
        assert leaver.stdin is not None
        leaver.stdin.close()
        status = leaver.wait()
        if status:
            raise RingcastError(f"a member that was to leave ended with status {status}")
        return self.names.pop(at)


def child(*program: str) -> subprocess.Popen[str]:
    """A Python process that runs a module of ours and talks JSON lines. A terminal's Ctrl-C is not
    for it: it ends with its launcher, which closes its input."""
    return subprocess.Popen(
        [sys.executable, "-m", *program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
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
