"""Processes that say in lines of JSON what they do, and may be killed at any time."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


WAIT_S = 120


class Member:
    """A process, and what it has said; a thread reads, so that it never waits for us."""

    def __init__(self, program: Path, name: str, *arguments: object) -> None:
        self.name = name
        command = [sys.executable, "-u", str(program), name, *map(str, arguments)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self.said: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed, suppress(json.JSONDecodeError):  # killed in the middle of it
                self.said.append(json.loads(line))
                self._changed.notify_all()

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def hear(self, key: str, count: int = 1) -> dict[str, Any]:
        """The so-manieth thing that it says of this."""
        with self._changed:
            # Where all processes are stopped for a while only the last of these seconds is lost.
            for _ in range(WAIT_S):
                if self._changed.wait_for(lambda: len(self.all_of(key)) >= count, 1.0):
                    break
            else:
                raise AssertionError(f"{self.name} does not say {key!r}: {self.said[-3:]}")
            return [each for each in self.said if key in each][count - 1]

    def all_of(self, key: str) -> list[Any]:
        return [each[key] for each in self.said if key in each]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join()
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def end(self) -> None:
        self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()
