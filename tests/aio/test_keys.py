"""Keys: which files are taken, who comes in with one, and how they are exchanged."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from hosts import Hosts
from loopback_groups import FIRST, PATIENT, numbered, read, until, with_members
from namespace import in_own_network

from ringcast.aio.joining import join
from ringcast.aio.keys import (
    OWN_FILE,
    KeyRing,
    keys_in,
    keys_of,
    own_keys,
    place,
    read_key_file,
    write_key_file,
)
from ringcast.aio.loop import run
from ringcast.aio.sources import DirectorySource, ListSource, group_directory
from ringcast.cli import main
from ringcast.config import GroupConfig, MembershipConfig
from ringcast.errors import JoinTimeout, Reject, UsageError
from ringcast.wire.envelope import Key

if TYPE_CHECKING:
    from ringcast.aio.group import Group

HERE = Path(__file__).parent
SOON = MembershipConfig(heartbeat_s=0.1, suspect_after_s=0.6, verify_s=0.2)
ONE, OTHER = bytes(range(32)), bytes(32)
REFUSED = re.compile(r"refused \d+ datagrams? from 10\.9\.\d\.\d:\d+ .*with key id ")


def key_file(path: Path, *keys: bytes) -> Path:
    """As an editor or a script would exchange it, at once."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    new.touch(0o600)
    new.write_text("# ours\n" + "".join(f"{key.hex()}  # one\n" for key in keys))
    return new.rename(path)


# Files


def test_a_key_that_was_made_is_read_by_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "orders.key"
    made = CliRunner().invoke(main, ["keygen", str(path)])
    ring = read_key_file(path)
    assert made.output == f"{path}: key id {ring.id}\n"
    assert path.stat().st_mode & 0o777 == 0o600
    secret = path.read_text().splitlines()[1]
    assert secret not in made.output + repr(ring) + repr(ring.keys) + str(vars(ring))
    before = path.read_bytes()
    again = CliRunner().invoke(main, ["keygen", str(path)])
    assert again.exit_code == 2
    assert "is there already: a key is not written over" in again.output
    assert path.read_bytes() == before


def test_files_that_others_can_read_or_have_put_there_are_refused(tmp_path: Path) -> None:
    path = key_file(tmp_path / "a.key", ONE)
    for mode in (0o640, 0o604, 0o660):
        path.chmod(mode)
        with pytest.raises(UsageError, match=f"others can read .*: `chmod 600 {path}`"):
            read_key_file(path)
    path.chmod(0o600)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(UsageError, match="it is a link: name the file itself"):
        read_key_file(link)
    with pytest.raises(UsageError, match="is no file"):
        read_key_file(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(UsageError, match="is no file"):
        read_key_file(tmp_path / "pipe")
    with pytest.raises(UsageError, match="make one with `ringcast keygen "):
        read_key_file(tmp_path / "none")
    with pytest.raises(UsageError, match="cannot make key file"):
        write_key_file(tmp_path / "none" / "a.key")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = key_file(tmp_path / "a.key", ONE)
    os.chown(path, 65534, 65534)
    with pytest.raises(UsageError, match="is another user's: copy it with `install -m 600"):
        read_key_file(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x holds 0 keys: one, or two that differ"),
        (f"{ONE.hex()}\n" * 2, "x holds 2 keys"),
        ("\n".join(bytes([n] * 32).hex() for n in range(3)), "x holds 3 keys"),
        (f"\n{ONE.hex()}0", "x, line 2: a key is 64 hex digits"),
        ("secret", "x, line 1: a key is 64 hex digits"),
        ("é", "x, line 1: a key is 64 hex digits"),
    ],
)
def test_what_is_no_key_is_told_without_what_stands_there(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        keys_in(text, "x")
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    path = key_file(tmp_path / "a.key", ONE)
    ring = read_key_file(path)
    assert not ring.look()
    key_file(path, ONE, OTHER)
    assert ring.look()
    assert not ring.look()
    key_file(path, ONE)
    path.chmod(0o644)
    with pytest.raises(UsageError, match="others can read"):
        ring.look()
    assert len(ring.keys) == 2
    path.unlink()
    with pytest.raises(UsageError, match="no key file"):
        ring.look()
    assert not ring.look()
    assert not KeyRing(ring.keys).look()
    key_file(path, OTHER)
    assert ring.look()


def test_a_file_that_changes_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = key_file(tmp_path / "a.key", ONE)
    read_on = os.read

    def read_slowly(descriptor: int, count: int) -> bytes:
        found = read_on(descriptor, count)
        key_file(path, ONE, OTHER)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(os, "read", read_slowly)
        ring = read_key_file(path)
    assert len(ring.keys) == 1
    assert ring.look()
    assert len(ring.keys) == 2
    path.write_bytes(b"#" * 5000)
    with pytest.raises(UsageError, match="longer than 4096 bytes"):
        ring.look()


# The user's own key


def test_the_first_who_joins_makes_the_users_key(tmp_path: Path) -> None:
    directory = tmp_path / "group"
    first, second = own_keys(directory), own_keys(directory)
    path = directory / OWN_FILE
    assert first.id == second.id == read_key_file(path).id
    assert path.stat().st_mode & 0o777 == 0o600
    assert directory.stat().st_mode & 0o777 == 0o700
    assert os.listdir(directory) == [OWN_FILE]


def test_of_ten_processes_that_start_at_once_all_have_one_key(tmp_path: Path) -> None:
    """Whoever reads the file finds it whole: none is told that it is damaged."""
    code = (
        "import sys, pathlib; from ringcast.aio.keys import own_keys; print(flush=True); "
        "sys.stdin.readline(); print(own_keys(pathlib.Path(sys.argv[1])).id)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "group")]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    ten = [subprocess.Popen(command, **pipes) for _ in range(10)]
    for process in ten:
        process.stdout.readline()  # it is ready
    for process in ten:
        process.stdin.write("\n")
        process.stdin.flush()
    said = {process.communicate(timeout=30)[0] for process in ten}
    assert said == {own_keys(tmp_path / "group").id + "\n"}
    assert os.listdir(tmp_path / "group") == [OWN_FILE]


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [
        (b"", 0o600, "holds 0 keys.*: `rm {path}`, and the next member makes another"),
        (b"abc\n", 0o600, "line 1: a key is 64 hex digits: `rm {path}`"),
        (b"#" * 5000, 0o600, "longer than 4096 bytes.*`rm {path}`"),
        (ONE.hex().encode(), 0o644, "others can read key file {path}: `chmod 600 {path}`"),
    ],
)
def test_a_damaged_key_of_the_user_is_refused_with_what_repairs_it(
    tmp_path: Path, content: bytes, mode: int, message: str
) -> None:
    path = tmp_path / OWN_FILE
    path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(UsageError, match=message.format(path=path)):
        own_keys(tmp_path)
    assert path.read_bytes() == content


def test_members_keep_the_users_key_where_it_is(tmp_path: Path) -> None:
    """Directories for runtime files are swept: who came later would have another key."""
    ring = own_keys(tmp_path / "group")
    path = tmp_path / "group" / OWN_FILE
    os.utime(path, (0, 0))
    ring.keep(10**9)
    assert path.stat().st_mtime > 0
    os.utime(path, (0, 0))
    ring.keep(2 * 10**9)
    assert path.stat().st_mtime == 0  # not every second
    path.unlink()
    path.parent.rmdir()
    ring.keep(3 * 10**9)
    assert own_keys(tmp_path / "group").id == ring.id
    path.unlink()
    place(path, [Key(OTHER)])  # somebody was faster
    ring.keep(4 * 10**9)
    assert ring.look()
    assert ring.id == "13fb1da9"
    given = key_file(tmp_path / "a.key", ONE)
    ring = read_key_file(given)
    given.unlink()
    ring.keep(5 * 10**9)
    assert not given.exists()  # what others administer is left to them


# Groups


@pytest.mark.parametrize("transport", ["udp", "tcp", "multicast"])
def test_a_group_on_one_machine_is_sealed_without_set_up(transport: str) -> None:
    async def exchange(a: Group, b: Group) -> None:
        await a.send(b"sealed")
        assert await read(b, 1) == [("A", b"sealed")]
        ours = own_keys(group_directory("test"))
        assert [ids_of(group) for group in (a, b)] == [[ours.keys[0].id]] * 2

    with_members(2, transport=transport)(exchange)


@pytest.mark.parametrize("transport", ["udp", "tcp", "multicast"])
def test_members_with_one_key_hear_each_other(transport: str) -> None:
    async def exchange(a: Group, b: Group, c: Group) -> None:
        for group in (a, b, c):
            await group.send(b"from " + group.me.name.encode())
        await a.send(b"large" * 50_000)
        for group in (a, b, c):
            assert len(await read(group, 4)) == 4
        assert await a.request(b.me, b"ask") == b"ask"
        assert {tuple(group.stats()["rejected"]) for group in (a, b, c)} <= {()}

    async def answering(a: Group, b: Group, c: Group) -> None:
        async def answer() -> None:
            async for request in b.requests():
                request.reply(request.payload)

        task = asyncio.create_task(answer())
        try:
            await exchange(a, b, c)
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    with_members(3, transport=transport, key=ONE)(answering)


@pytest.mark.parametrize(
    "theirs", [{"key": OTHER}, {}, {"insecure": True}], ids=["another", "own", "none"]
)
def test_nobody_comes_in_with_another_key_or_none(
    theirs: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def exchange(a: Group) -> None:
        found = ListSource([a.me.address])
        joining = join("test", discovery=found, must_exist=True, join_timeout_s=1.5, **theirs)
        with pytest.raises(JoinTimeout, match="nobody answered at ") as caught:
            async with joining:
                pass
        assert len(a.view) == 1
        if "insecure" not in theirs:
            key_id = "13fb1da9" if theirs else own_keys(group_directory("test")).id
            assert f"running, with this key (id {key_id})?" in str(caught.value)
            sentence = rf"refused \d+ datagrams from 127\.0\.0\.1:\d+ with key id {key_id} "
            (reason,) = (reason for reason in a.explain() if "key id" in reason)
            assert re.fullmatch(sentence + r"\(ours is b1f64cbc\)", reason)
            await until(lambda: re.search(sentence, caplog.text) is not None)
            assert set(a.stats()["rejected"]) == {Reject.KEY.value}
        else:
            assert set(a.stats()["rejected"]) == {Reject.UNSEALED.value}
            sentence = "not sealed (this group has a key, id b1f64cbc)"
            await until(lambda: sentence in caplog.text)
        assert ONE.hex() not in caplog.text

    with caplog.at_level(logging.INFO):
        with_members(1, key=ONE)(exchange)


def ids_of(group: Group) -> list[bytes]:
    lock = group._driver._lock
    assert lock is not None
    return [key.id for key in lock.keys.keys]


def test_a_key_is_exchanged_under_load(tmp_path: Path) -> None:
    paths = [key_file(tmp_path / f"{name}.key", ONE) for name in "ABC"]

    async def exchange(*groups: Group) -> None:
        view, is_over = groups[0].view, False

        async def send(group: Group) -> int:
            count = 0
            while not is_over:
                await group.send(f"{group.me.name}{count}".encode())
                count += 1
                await asyncio.sleep(0.001)
            return count

        async def read_on(group: Group, found: list[bytes]) -> None:
            async for batch in group.batches():
                found += batch.run.payloads

        found: list[list[bytes]] = [[] for _ in groups]
        readers = [asyncio.create_task(read_on(*each)) for each in zip(groups, found, strict=True)]
        senders = [asyncio.create_task(send(group)) for group in groups]
        for keys in ((ONE, OTHER), (OTHER, ONE), (OTHER,)):
            for group, path in zip(groups, paths, strict=True):
                key_file(path, *keys)
                ids = [Key(key).id for key in keys]
                await until(lambda: ids_of(group) == ids)  # noqa: B023
        is_over = True
        counts = [await sender for sender in senders]
        await until(lambda: all(len(each) == sum(counts) for each in found))
        for each in found:
            for name, count in zip("ABC", counts, strict=True):
                mine = [payload for payload in each if payload.startswith(name.encode())]
                assert mine == numbered(name, count)
        assert {group.view.id for group in groups} == {view.id}
        for task in readers:
            task.cancel()
        found_at = ListSource([groups[0].me.address])
        joining = join("test", discovery=found_at, key=ONE, must_exist=True, join_timeout_s=1.0)
        with pytest.raises(JoinTimeout):
            async with joining:
                pass

    with_members(3, per_member=[{"key": path} for path in paths])(exchange)


@pytest.mark.parametrize("how", ["asyncio", "threads"])
def test_a_key_file_is_read_again_on_sighup(how: str, tmp_path: Path) -> None:
    path = key_file(tmp_path / "group.key", ONE)
    command = [sys.executable, str(HERE / "hangup_member.py"), how, str(path)]
    pipe, ids = subprocess.PIPE, [Key(key).id.hex() for key in (ONE, OTHER)]
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may ignore it
    try:
        started = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    finally:
        signal.signal(signal.SIGHUP, before)
    with started as member:
        assert member.stdin is not None
        assert member.stdout is not None
        assert member.stderr is not None
        assert member.stdout.readline().split() == ids[:1]
        path.write_text("nothing of the kind")
        for _ in range(2):  # and told each time
            member.send_signal(signal.SIGHUP)
            member.stdin.write("\n")  # a thread about to wait in C sees a signal behind that
            member.stdin.flush()
            assert "the keys are as they were: key file" in member.stderr.readline()
            assert member.stdout.readline().split() == ids[:1]
        key_file(path, ONE, OTHER)
        member.send_signal(signal.SIGHUP)
        found: list[str] = []
        while found != ids:  # soon
            member.stdin.write("\n")
            member.stdin.flush()
            found = member.stdout.readline().split()
        member.stdin.close()
        assert member.wait(20) == 0


def test_where_a_key_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is given, then the environment."""
    path, other = key_file(tmp_path / "a.key", ONE), key_file(tmp_path / "b.key", OTHER)

    async def id_with(config: GroupConfig | None = None, **options: object) -> str:
        place = {"discovery": ListSource([]), "membership": FIRST, **options}
        config = config or GroupConfig(group="test")
        async with join(config=config, **place) as member:  # type: ignore[arg-type]
            lock = member._driver._lock
            return "" if lock is None else lock.keys.id

    def check(expected: str, **options: object) -> None:
        assert run(id_with(**options)) == expected

    check("", insecure=True)
    check(own_keys(group_directory("test")).id)
    check("b1f64cbc", key=ONE)
    check("b1f64cbc", key=ONE, insecure=True)
    check("13fb1da9", config=GroupConfig(group="test", key_file=other))
    check("b1f64cbc", config=GroupConfig(group="test", key_file=str(other)), key=ONE)
    monkeypatch.setenv("RINGCAST_KEY_FILE", str(other))
    check("13fb1da9")
    check("b1f64cbc", key=str(path))
    check("b1f64cbc", config=GroupConfig(group="test", key_file=path))
    monkeypatch.setenv("RINGCAST_KEY", ONE.hex())
    check("b1f64cbc")
    monkeypatch.setenv("RINGCAST_KEY", "secret")
    with pytest.raises(UsageError, match="RINGCAST_KEY, line 1: a key is 64 hex digits"):
        check("")
    with pytest.raises(UsageError, match="key= has 5 bytes: a key has 32"):
        check("", key=b"short")
    with pytest.raises(UsageError, match="key= is a bytearray: give bytes, or the path"):
        check("", key=bytearray(ONE))


async def enter(**options: Any) -> None:
    async with join("test", discovery=ListSource([]), membership=FIRST, **options):
        pass


def test_nothing_where_a_key_should_be_does_not_open_the_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def check(message: str, **options: object) -> None:
        with pytest.raises(UsageError, match=message):
            run(enter(**options))

    check("key= has 0 bytes", key=b"")
    check("the name of a key file is empty", key="")
    monkeypatch.setenv("RINGCAST_KEY_FILE", "")
    check("the name of a key file is empty")
    monkeypatch.setenv("RINGCAST_KEY", "")
    check("RINGCAST_KEY holds 0 keys")


def test_a_key_in_the_place_of_a_file_is_not_told() -> None:
    for text in (ONE.hex(), ONE.hex().upper()):
        with pytest.raises(UsageError, match="looks like a key itself") as caught:
            keys_of(text)
        assert text not in str(caught.value)
    for text in ("a" * 300, "a\0b"):
        with pytest.raises(UsageError, match="cannot read key file"):
            keys_of(text)


def test_figures_stay_on_the_machine_with_a_key_too() -> None:
    with pytest.raises(UsageError, match=r"192\.0\.2\.2:9912 is not a loopback address"):
        run(enter(key=ONE, metrics="192.0.2.2:9912"))


def test_who_has_no_key_says_that_others_have(tmp_path: Path) -> None:
    async def meet() -> None:
        places = [DirectorySource(tmp_path) for _ in "ab"]
        sealed = join("test", key=ONE, discovery=places[0], membership=FIRST)
        plain = join("test", insecure=True, discovery=places[1], membership=FIRST)
        async with sealed as a, plain as b:
            await until(lambda: any("sealed datagrams" in each for each in b.explain()))
            assert any("that were not sealed" in each for each in a.explain())

    run(asyncio.wait_for(meet(), 20))


def test_a_copy_of_a_process_has_a_salt_of_its_own() -> None:
    async def exchange(a: Group) -> None:
        lock = a._driver._lock
        assert lock is not None
        salt = lock.envelope._salt
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if not pid:
            theirs.send(lock.envelope._salt)
            os._exit(0)
        assert ours.recv(99) != salt
        await asyncio.to_thread(os.waitpid, pid, 0)
        assert lock.envelope._salt == salt
        ours.close()
        theirs.close()

    with_members(1, key=ONE, membership=PATIENT)(exchange)


# Two hosts


@pytest.mark.parametrize(
    "transport",
    ["udp", *(pytest.param(name, marks=pytest.mark.proof) for name in ("tcp", "multicast"))],
)
@in_own_network
def test_hosts_with_one_key_are_one_group_and_with_two_they_never_are(transport: str) -> None:
    async def join_on(hosts: Hosts, at: int, key: bytes, stack: AsyncExitStack) -> Group:
        listen, other = (f"{hosts.addresses[each]}:7800" for each in (at, 1 - at))
        with hosts.inside(at):
            joining = join(
                *("test",),
                name="AB"[at],
                listen=listen,
                members=[other],
                key=key,
                transport=transport,
                membership=SOON,
            )
            return await stack.enter_async_context(joining)

    async def talk(groups: list[Group]) -> None:
        for group in groups:
            await group.wait_for_view(lambda view: len(view) == 2)
        await groups[0].send(b"across")
        assert await read(groups[1], 1) == [("A", b"across")]

    async def meet(hosts: Hosts, *keys: bytes) -> list[Group]:
        async with AsyncExitStack() as stack:
            groups = [await join_on(hosts, at, key, stack) for at, key in enumerate(keys)]
            if keys[0] == keys[1]:
                await talk(groups)
                hosts.unplug(1)
                for group in groups:
                    await group.wait_for_view(lambda view: len(view) == 1)
                hosts.plug(1)
                await talk(groups)
            else:
                for group in groups:
                    while not any(REFUSED.search(each) for each in group.explain()):
                        for at in range(2):  # where who connects again opens its socket
                            with hosts.inside(at):
                                await asyncio.sleep(0.05)
                assert [len(group.view) for group in groups] == [1, 1]
        return groups

    with Hosts(2) as hosts:
        run(meet(hosts, ONE, OTHER))
        run(meet(hosts, ONE, ONE))
