"""The command line in processes of its own, as a user has it."""

from __future__ import annotations

import atexit
import codecs
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

DEADLINE_S = 60.0
COMMAND = (sys.executable, "-c", "from ringcast.cli import main; main(prog_name='ringcast')")

PATIENT = """
[multicast]
capacity = 16

[membership]
discovery_wait_s = 0.02
suspect_after_s = 600.0
"""
"""Nobody is suspected because the machine is busy, and a few messages fill a window."""


@cache
def _forking() -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    program = Path(__file__).with_name("forking.py")
    process = subprocess.Popen([sys.executable, program], stdin=pipe, stdout=pipe, text=True)
    atexit.register(process.communicate)
    return process


def ringcast(*args: str) -> subprocess.CompletedProcess[str]:
    """A command that has nothing to read, and ends by itself."""
    forking = _forking()
    assert forking.stdin is not None
    assert forking.stdout is not None
    with TemporaryDirectory() as place:
        out, err = Path(place, "out"), Path(place, "err")
        asked = {"arguments": args, "environment": {**os.environ}, "directory": os.getcwd()}
        print(json.dumps({**asked, "out": str(out), "err": str(err)}), file=forking.stdin)
        forking.stdin.flush()
        ready, _, _ = select.select([forking.stdout], [], [], DEADLINE_S)
        assert ready, f"{args} does not end"
        status = int(forking.stdout.readline())
        return subprocess.CompletedProcess(args, status, out.read_text(), err.read_text())


def told(*args: str) -> str:
    """What a command that succeeds prints."""
    result = ringcast(*args)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def mistake(*args: str) -> str:
    """The one line that a command says which cannot be right."""
    result = ringcast(*args)
    assert result.returncode == 2, result
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("ringcast: ")
    return line.removeprefix("ringcast: ")


def until(look: Callable[[], str], pattern: str) -> str:
    """Look until it is there; the last look."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        shown = look()
        if re.search(pattern, shown):
            return shown
        assert time.monotonic() < deadline, f"no {pattern!r} in {shown!r}"


class Terminal:
    """A command that goes on, with all that it has printed; on a real terminal, or in pipes."""

    def __init__(
        self, *args: str, screen: bool = False, columns: int = 120, rows: int = 24
    ) -> None:
        self._screen, theirs = pty.openpty() if screen else os.pipe()
        if screen:
            termios.tcsetwinsize(theirs, (rows, columns))
        self._is_real = screen
        self.shown = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self.process = subprocess.Popen(
            [*COMMAND, *args],
            stdin=theirs if screen else subprocess.PIPE,
            stdout=theirs,
            stderr=subprocess.PIPE,
            env={key: os.environ[key] for key in os.environ.keys() - {"COLUMNS", "LINES"}},
        )
        os.close(theirs)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        os.close(self._screen)

    def type(self, text: str) -> None:
        if self._is_real:
            os.write(self._screen, text.encode())
            return
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()

    def resize(self, columns: int, rows: int) -> None:
        termios.tcsetwinsize(self._screen, (rows, columns))

    def until(self, pattern: str) -> str:
        """Read on until this is shown, if it is not yet; everything so far."""
        return self.shown if re.search(pattern, self.shown) else until(self._look, pattern)

    def stop(self) -> None:
        """As Ctrl-Z does. It is stopped when this returns."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def end(self, number: signal.Signals | None = None) -> tuple[int, str, str]:
        """Wait for the end, of the input or by a signal: status, what was printed, errors."""
        if number is not None:
            self.process.send_signal(number)
        elif self._is_real:
            self.type("\x04")  # Ctrl-D
        else:
            assert self.process.stdin is not None
            self.process.stdin.close()
            self.process.stdin = None
        while self._look_once():
            pass
        _, errors = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, self.shown, errors.decode()

    def _look(self) -> str:
        self._look_once()
        return self.shown

    def _look_once(self) -> bool:
        """Whether there may be more."""
        ready, _, _ = select.select([self._screen], [], [], DEADLINE_S)
        assert ready, f"nothing more after {self.shown!r}"
        try:
            chunk = os.read(self._screen, 1 << 16)
        except OSError:  # how a terminal ends
            chunk = b""
        self.shown += self._decoder.decode(chunk)  # a letter may come in two parts
        return bool(chunk)


def member(name: str, directory: Path, *args: str, screen: bool = False) -> Terminal:
    """One that is in its group."""
    config = directory / "patient.toml"
    config.write_text(PATIENT)
    options = ("--name", name, "--config", str(config), *args)
    terminal = Terminal("join", "orders", *options, screen=screen)
    try:
        terminal.until(rf'(View \d+: |"view": ).*{name}')
    except BaseException:
        terminal.close()
        raise
    return terminal
