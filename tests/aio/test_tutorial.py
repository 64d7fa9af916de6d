"""The tutorial, done as it says: real processes in terminals, and a real kill -9."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
DEADLINE_S = 30.0
STEP = re.compile(r"(\w+)([$>|]) (.*)")


class Terminals:
    """One process for each name, and what it has printed."""

    def __init__(self, directory: Path) -> None:
        self.pids: dict[str, str] = {}
        """By what the tutorial calls them."""
        self.killed: set[str] = set()
        self._directory = directory
        self._processes: dict[str, asyncio.subprocess.Process] = {}

    async def follow(self, step: str) -> None:
        parsed = STEP.fullmatch(step)
        assert parsed is not None, step
        name, kind, text = parsed.groups()
        match kind, text.split():
            case "$", ["python", *arguments]:
                await self._start(name, arguments)
            case "$", ["kill", "-9", pid]:
                os.kill(int(self.pids[pid]), signal.SIGKILL)
                self.killed.add(pid)
            case ">", ["^D"]:
                await self._end(name)
            case ">", _:
                screen = self._processes[name].stdin
                assert screen is not None
                screen.write(f"{text}\n".encode())
            case "|", ["process", pid]:
                self.pids[pid] = (await self._next_line(name)).removeprefix("process ")
                assert self.pids[pid] == str(self._processes[name].pid)
            case "|", _:
                await self._read_up_to(name, text)
            case _:
                pytest.fail(f"the tutorial says {step!r}")

    async def close(self) -> None:
        for process in self._processes.values():
            if process.returncode is None:
                process.kill()
            await process.communicate()

    async def _start(self, name: str, arguments: list[str]) -> None:
        before = self._processes.pop(name, None)
        if before is not None:
            await before.communicate()
        self._processes[name] = await asyncio.create_subprocess_exec(
            *(sys.executable, "-u", "-W", "error", *arguments),
            cwd=self._directory,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )

    async def _end(self, name: str) -> None:
        stdin = self._processes[name].stdin
        assert stdin is not None
        stdin.close()
        assert await self._processes[name].wait() == 0

    async def _next_line(self, name: str) -> str:
        stdout = self._processes[name].stdout
        assert stdout is not None
        line = await stdout.readline()
        assert line, f"{name} has ended"
        return line.decode().rstrip("\n")

    async def _read_up_to(self, name: str, text: str) -> None:
        """The tutorial leaves out lines that are like those of another terminal."""
        passed: list[str] = []
        try:
            async with asyncio.timeout(DEADLINE_S):
                while (line := await self._next_line(name)) != text:
                    passed.append(line)
        except TimeoutError:
            pytest.fail(f"{name} does not print {text!r}, but {passed}")


def test_the_tutorial_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # private, as pytest makes it
    blocks = re.findall(r"```(\w*)\n(.*?)```", TUTORIAL.read_text(), re.S)
    assert {language for language, _ in blocks} == {"python", "console"}

    async def main() -> Terminals:
        terminals = Terminals(tmp_path)
        try:
            for language, text in blocks:
                if language == "python":
                    (tmp_path / "shop.py").write_text(text)
                    continue
                for step in text.splitlines():
                    await terminals.follow(step)
        finally:
            await terminals.close()
        return terminals

    terminals = asyncio.run(main())
    assert len(terminals.pids) == 4
    assert len(terminals.killed) == 1


def test_the_tutorial_is_short() -> None:
    assert len(TUTORIAL.read_text().splitlines()) <= 150
