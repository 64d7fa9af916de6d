"""The local probe: who may ask, what is answered, and that nobody who asks can hold a member up."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import socket
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from loopback_groups import DEADLINE_S, FIRST, restart, until, vanish, with_members

from ringcast import UsageError, join
from ringcast.aio.loop import run
from ringcast.aio.probe import (
    ANSWER_BYTES_MAX,
    CLIENTS_MAX,
    QUESTION_BYTES_MAX,
    Probe,
    connect,
    credentials,
    is_of_user,
    probe_name,
    probes,
    sweep,
)
from ringcast.aio.sources import ListSource, group_directory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from ringcast import Group


def echo(question: dict[str, object]) -> object:
    if "no" in question:
        raise UsageError("said so by a test")
    if "long" in question:
        return "x" * ANSWER_BYTES_MAX
    if "much" in question:
        return "x" * (ANSWER_BYTES_MAX // 2)
    return question


def with_probe(directory: Path, test: Callable[[Probe], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        probe = Probe(directory, "m", asyncio.get_running_loop(), echo, **options)
        try:
            await asyncio.wait_for(test(probe), DEADLINE_S)
        finally:
            probe.close()

    run(main())


@asynccontextmanager
async def connection(directory: Path, name: str = "m") -> AsyncIterator[socket.socket]:
    sock = connect(directory, name)
    assert sock is not None
    with sock:
        yield sock


async def ask(directory: Path, line: bytes, name: str = "m") -> Any:
    async with connection(directory, name) as sock:
        sock.send(line)
        return json.loads(await rest_of(sock))


async def rest_of(sock: socket.socket) -> bytes:
    loop, came = asyncio.get_running_loop(), b""
    while chunk := await loop.sock_recv(sock, 1 << 16):
        came += chunk
    return came


def test_one_question_one_answer(tmp_path: Path) -> None:
    async def test(probe: Probe) -> None:
        assert await ask(tmp_path, b'{"ask": "x"}\n') == {"answer": {"ask": "x"}}
        assert await ask(tmp_path, b'{"no": 1}\n') == {"error": "said so by a test"}
        assert probe.stats() == {"clients": 0, "refused": 0, "turned_away": 0, "dropped": 0}

    with_probe(tmp_path, test)


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"[]\n",
        b"no json\n",
        b"{}\n{}\n",
        b"[" * 1000 + b"\n",
        b"x" * (QUESTION_BYTES_MAX + 1),
    ],
    ids=["empty", "a list", "no JSON", "two", "deep", "long"],
)
def test_what_is_no_question(tmp_path: Path, line: bytes) -> None:
    async def test(probe: Probe) -> None:
        answer = await ask(tmp_path, line)
        assert answer["error"].startswith("a question is a JSON object in one line of at most 1024")

    with_probe(tmp_path, test)


def test_an_answer_is_bounded(tmp_path: Path) -> None:
    async def test(probe: Probe) -> None:
        answer = await ask(tmp_path, b'{"long": 1}\n')
        assert answer == {"error": "the answer has more than 1048576 bytes"}

    with_probe(tmp_path, test)


def test_byte_by_byte_and_longer_than_a_socket_buffer(tmp_path: Path) -> None:
    async def test(probe: Probe) -> None:
        async with connection(tmp_path) as sock:
            for byte in b'{"much": 1}\n':
                sock.send(bytes([byte]))
                await asyncio.sleep(0)
            assert len(json.loads(await rest_of(sock))["answer"]) == ANSWER_BYTES_MAX // 2

    with_probe(tmp_path, test)


def test_the_user_at_the_other_end() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert credentials(ours) == (os.getpid(), os.getuid())
        assert is_of_user(ours, os.getuid())
        assert not is_of_user(ours, os.getuid() + 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        assert not is_of_user(other, os.getuid())


def test_another_user_is_refused_and_counted(tmp_path: Path) -> None:
    async def test(probe: Probe) -> None:
        async with connection(tmp_path) as sock:
            sock.send(b"{}\n")
            with pytest.raises(ConnectionResetError):
                await rest_of(sock)
        assert probe.stats()["refused"] == 1

    with_probe(tmp_path, test, uid=os.getuid() + 1)


def test_who_says_nothing_is_dropped(tmp_path: Path) -> None:
    async def test(probe: Probe) -> None:
        async with connection(tmp_path) as sock:
            assert await rest_of(sock) == b""
        assert probe.stats()["dropped"] == 1

    with_probe(tmp_path, test, patience_s=0.01)


def test_who_does_not_read_is_dropped_and_others_are_served(tmp_path: Path) -> None:
    async def test(probe: Probe) -> None:
        async with connection(tmp_path) as slow:
            slow.send(b'{"much": 1}\n')
            await until(lambda: probe.stats()["clients"] == 1)
            assert await ask(tmp_path, b"{}\n") == {"answer": {}}
            await until(lambda: probe.stats()["dropped"] == 1)
            assert probe.stats()["clients"] == 0

    with_probe(tmp_path, test, patience_s=0.2)


def test_who_is_gone_before_the_answer(tmp_path: Path) -> None:
    async def test(probe: Probe) -> None:
        async with connection(tmp_path) as sock:
            sock.send(b'{"much": 1}\n')
        async with connection(tmp_path) as sock:
            sock.send(b"{")
        await until(lambda: probe.stats()["dropped"] == 2)

    with_probe(tmp_path, test)


def test_who_only_looks_whether_anybody_is_here_is_no_trouble(tmp_path: Path) -> None:
    async def test(probe: Probe) -> None:
        sweep(tmp_path)
        assert await ask(tmp_path, b"{}\n") == {"answer": {}}  # after the other, in its turn
        assert probe.stats() == {"clients": 0, "refused": 0, "turned_away": 0, "dropped": 0}

    with_probe(tmp_path, test)


def test_too_many_at_once_are_turned_away(tmp_path: Path) -> None:
    async def test(probe: Probe) -> None:
        crowd = []
        for count in range(1, CLIENTS_MAX + 1):
            crowd.append(connect(tmp_path, "m"))
            await until(lambda count=count: probe.stats()["clients"] == count)
        async with connection(tmp_path) as late:
            assert await rest_of(late) == b""
        assert probe.stats()["turned_away"] == 1
        for sock in crowd:
            assert sock is not None
            sock.close()
        await until(lambda: probe.stats()["clients"] == 0)
        assert await ask(tmp_path, b"{}\n") == {"answer": {}}

    with_probe(tmp_path, test)


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")))
    spare = [os.open(os.devnull, os.O_RDONLY)]
    while spare[-1] < used:
        spare.append(os.open(os.devnull, os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare[-1] + 1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in spare:
            os.close(fd)


def test_without_a_descriptor_to_let_it_in_a_client_waits(tmp_path: Path) -> None:
    async def test(probe: Probe) -> None:
        async with connection(tmp_path) as sock:
            sock.send(b"{}\n")
            with no_descriptor_left():
                await until(lambda: probe._rest is not None)
            assert json.loads(await rest_of(sock)) == {"answer": {}}

    with_probe(tmp_path, test)


def test_what_a_crash_leaves_behind_is_removed(tmp_path: Path) -> None:
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / "dead.probe"))
    dead.close()
    (tmp_path / "file.probe").write_text("not a socket")

    async def test(probe: Probe) -> None:
        assert probes(tmp_path) == ["m"]
        sweep(tmp_path)
        assert await ask(tmp_path, b"{}\n") == {"answer": {}}

    with_probe(tmp_path, test)
    assert list(tmp_path.iterdir()) == []
    assert connect(tmp_path, "m") is None


def test_a_socket_is_kept_from_being_swept(tmp_path: Path) -> None:
    async def test(probe: Probe) -> None:
        path = tmp_path / "m.probe"
        os.utime(path, (0, 0))
        await until(lambda: path.stat().st_mtime > 0)
        path.unlink()
        await until(path.exists)
        assert await ask(tmp_path, b"{}\n") == {"answer": {}}

    with_probe(tmp_path, test, keep_s=0.01)
    assert list(tmp_path.iterdir()) == []


def test_a_socket_is_back_when_all_was_swept(tmp_path: Path) -> None:
    top = tmp_path / "run"

    async def test(probe: Probe) -> None:
        shutil.rmtree(top)
        await until((top / "group" / "m.probe").exists)
        assert await ask(top / "group", b"{}\n") == {"answer": {}}
        assert top.stat().st_mode & 0o777 == 0o700

    top.mkdir(mode=0o700)
    with_probe(top / "group", test, keep_s=0.01)


def test_a_directory_with_a_long_name(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 120)
    deep.mkdir()

    async def test(probe: Probe) -> None:
        assert await ask(deep, b"{}\n") == {"answer": {}}

    with_probe(deep, test)


# Members


@pytest.fixture
def meeting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # private, as pytest makes it
    return lambda: group_directory("test")


def test_members_tell_about_themselves(meeting: Callable[[], Path]) -> None:
    @with_members(2)
    async def test(a: Group, b: Group) -> None:
        name = probe_name(a.me)
        assert sorted(probes(meeting())) == sorted([name, probe_name(b.me)])
        await a.send(b"x")
        await a.send(b"y", to=b.me)
        await until(lambda: b._driver.node.has_ready)

        async def told(question: dict[str, object]) -> Any:
            return await ask(meeting(), json.dumps(question).encode() + b"\n", name)

        view = (await told({"ask": "view"}))["answer"]
        assert view["group"] == "test"
        assert view["pid"] == os.getpid()
        assert [member["name"] for member in view["members"]] == ["A", "B"]
        assert view["member"] == view["members"][0]
        why = (await told({"ask": "explain"}))["answer"]["reasons"]
        assert any("not yet delivered by A, which has delivered 0 of 1" in reason for reason in why)
        stats = (await told({"ask": "stats"}))["answer"]["stats"]
        assert stats["probe"]["clients"] == 1
        top = (await told({"ask": "top"}))["answer"]
        fifo = top["sent"][0]
        assert (fifo["stream"], fifo["low"], fifo["high"], fifo["blocked_s"]) == (
            "fifo",
            0,
            1,
            None,
        )
        assert {member["name"] for member in fifo["waits_for"]} == {"A", "B"}
        assert [window["sender"]["name"] for window in top["received"]] == ["B", "B"]
        assert [window["member"]["name"] for window in top["to"]] == ["B"]
        for peer, why_not in (
            ("B", "nothing has come from B yet"),
            ("A", "it is the one that is meant"),
            ("C", "no member named 'C' in View"),
        ):
            refused = (await told({"ask": "sync", "peer": peer}))["answer"]
            assert refused["peer"] is None
            assert refused["refusal"].startswith(why_not)
        for nonsense in ({}, {"ask": "all"}, {"ask": "sync"}, {"ask": ["view"]}):
            assert (await told(nonsense))["error"].startswith("not a question: ask for one of view")

    assert probes(meeting()) == []


def test_sync_by_address(meeting: Callable[[], Path]) -> None:
    @with_members(2)
    async def test(a: Group, b: Group) -> None:
        await b.send(b"y", to=a.me)
        await until(lambda: a._driver.node.has_ready)
        question = json.dumps({"ask": "sync", "peer": str(b.me.address)}).encode()
        answer = await ask(meeting(), question + b"\n", probe_name(a.me))
        assert answer["answer"]["peer"]["name"] == "B"

    assert probes(meeting()) == []


def test_who_restarts_is_found_under_its_new_incarnation(meeting: Callable[[], Path]) -> None:
    @with_members(2)
    async def test(a: Group, b: Group) -> None:
        vanish(b)
        await a.wait_for_view(lambda view: len(view) == 1)
        assert probes(meeting()) == [probe_name(a.me)]
        async with restart(b, known=a) as new:
            assert probe_name(new.me) != probe_name(b.me)
            assert sorted(probes(meeting())) == sorted(map(probe_name, (a.me, new.me)))

    assert probes(meeting()) == []


def test_a_member_works_without_a_probe(
    tmp_path: Path, meeting: Callable[[], Path], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "ringcast").mkdir(mode=0o755)
    caplog.set_level("INFO", "ringcast")

    async def main() -> None:
        alone = ListSource([])  # and the user's own key cannot be kept either
        async with join("test", key=bytes(32), discovery=alone, membership=FIRST) as group:
            assert group.stats()["probe"] is None
            await group.send(b"x")

    run(main())
    assert "answers no local questions" in caplog.text
    assert "belongs to this user alone" in caplog.text
