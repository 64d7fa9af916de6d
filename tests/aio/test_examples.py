"""The programs of examples/, each as its reader would start it: in processes of their own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from select import select
from typing import TYPE_CHECKING

import pytest

import ringcast
from ringcast.aio.sources import ListSource

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


class Terminal:
    """One program, with a line in and lines out."""

    def __init__(self, program: str, *arguments: str) -> None:
        command = [sys.executable, "-u", str(EXAMPLES / program), *arguments]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def type(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def read_until(self, wanted: str) -> list[str]:
        """Lines up to one that begins like this."""
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line.rstrip())
            if line.startswith(wanted):
                return lines
        raise AssertionError(f"no {wanted!r} in {lines}")

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(30) == 0


@pytest.fixture
def terminals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Terminal]]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # private, as pytest makes it
    found: list[Terminal] = []
    yield found
    for terminal in found:
        terminal.process.kill()
        terminal.process.wait()
        for pipe in (terminal.process.stdin, terminal.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # it did not read the last line
                pipe.close()


def start(terminals: list[Terminal], program: str, *arguments: str) -> Terminal:
    terminals.append(Terminal(program, *arguments))
    return terminals[-1]


def test_two_chat(terminals: list[Terminal]) -> None:
    ann = start(terminals, "chat.py", "ann")
    assert ann.read_until("*") == ["* ann"]
    ben = start(terminals, "chat.py", "ben")
    assert ben.read_until("*") == ann.read_until("*") == ["* ann, ben"]
    ben.type("good morning")
    assert ann.read_until("ben") == ["ben: good morning"]
    ben.end()
    assert ann.read_until("*") == ["* ann"]
    ann.end()


@pytest.mark.proof
def test_a_cache_forgets_what_another_has_written(
    terminals: list[Terminal], tmp_path: Path
) -> None:
    (tmp_path / "price").write_text("3")
    caches = [start(terminals, "cache.py", str(tmp_path)) for _ in range(3)]
    for cache in caches:
        for _ in range(20):  # until the view of all has come, after which nothing is forgotten
            cache.type("get price")
            if cache.read_until("3")[-1] == "3 (cached)":
                break
    caches[1].type("set price 4")
    caches[1].read_until("set")
    for cache in caches:
        cache.type("get price")
        assert cache.read_until("")[-1] == "4 (read)"
    caches[0].process.kill()
    caches[1].type("set price 5")
    caches[1].read_until("set")
    caches[2].type("get price")
    assert caches[2].read_until("")[-1] == "5 (read)"


def ask(member: Terminal, line: str) -> str:
    member.type(line)
    return member.read_until("")[-1]


@pytest.mark.proof
def test_sessions_are_known_everywhere_whoever_dies(terminals: list[Terminal]) -> None:
    members = [start(terminals, "sessions.py")]
    assert members[0].read_until("0 sessions")
    assert ask(members[0], "login ann") == "s1"
    for _ in range(2):
        members.append(start(terminals, "sessions.py"))
        assert members[-1].read_until("1 sessions")  # it came with the state
    for member in members:  # all at once
        for _ in range(10):
            member.type("login ben")
    sessions = [member.read_until("")[-1] for _ in range(10) for member in members]
    assert len(set(sessions)) == 30
    assert [ask(member, f"sure {sessions[0]}") for member in members] == ["ben"] * 3
    members.pop(0).process.kill()
    assert ask(members[0], f"logout {sessions[0]}") == "bye"
    members.append(start(terminals, "sessions.py"))
    assert members[-1].read_until("30 sessions")
    assert [ask(member, "sure s1") for member in members] == ["ann"] * 3
    assert [ask(member, f"sure {sessions[0]}") for member in members] == ["nobody"] * 3


@pytest.mark.proof
def test_jobs_are_begun_once_whoever_leads(terminals: list[Terminal]) -> None:
    members = {name: start(terminals, "scheduler.py", name) for name in ("ann", "ben", "cat")}
    numbers = []
    while members:
        leader, *_ = line = first_to_speak(members).split()
        lines = [*members[leader].read_until(f"{leader} begins job {int(line[-1]) + 2}")]
        numbers += [int(line[-1]), *(int(each.split()[-1]) for each in lines)]
        process = members.pop(leader).process
        process.kill()
        process.wait()
        assert process.stdout is not None
        numbers += [int(each.split()[-1]) for each in process.stdout]
    assert numbers == sorted(set(numbers))


@pytest.mark.proof
def test_pages_are_printed_by_one_at_a_time(terminals: list[Terminal], tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    members = [start(terminals, "printer.py", name, str(pages)) for name in ("ann", "ben", "cat")]
    for member in members:
        member.read_until("ready")
    for member in members:
        for number in range(10):
            member.type(f"page {number}")
    members.pop().process.kill()
    for member in members:
        assert [member.read_until("")[-1] for _ in range(10)] == ["printed"] * 10
    tokens, texts = zip(
        *(line.split(" ", 1) for line in pages.read_text().splitlines()), strict=True
    )
    assert list(tokens) == sorted(set(tokens))
    assert [text for text in texts if text.startswith("ann")] == [
        f"ann: page {n}" for n in range(10)
    ]


def first_to_speak(members: dict[str, Terminal]) -> str:
    """Its line. Whoever is first in the group leads it, in whatever order they were started."""
    (ready, *_), _, _ = select([each.process.stdout for each in members.values()], [], [], 30.0)
    line: str = ready.readline()
    return line


@pytest.mark.proof
def test_another_leads_when_the_leader_dies(terminals: list[Terminal]) -> None:
    members = {name: start(terminals, "leader.py", name) for name in ("ann", "ben", "cat")}
    leader, *_ = first_to_speak(members).split()
    first = members[leader].read_until(f"{leader} does job 2")[-1]
    members.pop(leader).process.kill()
    later = first_to_speak(members)
    assert later.split()[1:4] == ["does", "job", "1"]
    assert int(later.split()[-1]) > int(first.split()[-1])


@pytest.mark.proof
def test_a_spark_job_counts_each_order_once(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="needs ringcast[spark]")

    async def sell(*orders: str) -> None:
        recording = {"record": tmp_path / "archive", "record_payloads": True}
        async with ringcast.join("shop", discovery=ListSource([]), **recording) as group:  # type: ignore[arg-type]
            await group.send_many(order.encode() for order in orders)
            for _ in orders:
                await anext(aiter(group))

    def revenue() -> str:
        command = [sys.executable, str(EXAMPLES / "revenue.py"), "archive", "out"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    asyncio.run(sell('{"item": "tea", "cents": 420}', "nonsense", '{"item": "tea", "cents": 80}'))
    assert revenue() == "tea: 2 orders, 5.00\n"
    asyncio.run(sell('{"item": "cake", "cents": 310}'))
    assert revenue() == "tea: 2 orders, 5.00\ncake: 1 order, 3.10\n"
