"""Where members look for each other: the user's own directory, a shared one, a list."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from loopback_groups import until

from ringcast import Address, DirectorySource, Member, UsageError, join
from ringcast.aio import sources
from ringcast.aio.keys import OWN_FILE, own_keys
from ringcast.aio.loop import run
from ringcast.aio.sources import ListSource, group_directory, runtime_directory, runtime_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringcast import Source

A, B = (Member(Address("127.0.0.1", 7000 + at), 10 + at, "AB"[at]) for at in range(2))


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a login session has."""
    home = tmp_path / "run"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home))
    return home


def dead_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
        return process.pid


def registered(directory: Path, member: Member) -> DirectorySource:
    source = DirectorySource(directory)
    source.register(member)
    return source


def files(directory: Path) -> list[Path]:
    return sorted(directory.iterdir())


def test_members_see_each_other_until_they_go(tmp_path: Path) -> None:
    a, b = registered(tmp_path, A), registered(tmp_path, B)
    assert sorted(a.candidates()) == sorted(b.candidates()) == [A.address, B.address]
    content = json.loads(files(tmp_path)[1].read_text())
    assert content["address"] == "127.0.0.1:7001"
    assert (content["incarnation"], content["pid"], content["name"]) == (11, os.getpid(), "B")
    b.unregister()
    assert a.candidates() == [A.address]
    a.unregister()
    a.unregister()
    assert files(tmp_path) == []


def test_a_file_that_was_swept_away_is_written_again(tmp_path: Path) -> None:
    directory = tmp_path / "shared"
    source = registered(directory, A)
    before = files(directory)
    for path in before:
        path.unlink()
    directory.rmdir()
    assert source.candidates() == [A.address]
    assert files(directory) == before


@pytest.mark.parametrize("is_there", [False, True])
def test_no_link_in_a_shared_directory_leads_elsewhere(tmp_path: Path, is_there: bool) -> None:
    shared, elsewhere = tmp_path / "shared", tmp_path / "elsewhere"
    source = registered(shared, A)
    (path,) = files(shared)
    if is_there:
        elsewhere.write_text("precious")
    path.with_suffix(".draft").symlink_to(elsewhere)
    path.unlink()
    assert source.candidates() == [A.address]
    assert files(shared) == [path]
    assert not path.is_symlink()
    assert elsewhere.exists() == is_there
    assert not is_there or elsewhere.read_text() == "precious"


def test_a_file_in_use_does_not_look_old(tmp_path: Path) -> None:
    source = registered(tmp_path, A)
    (path,) = files(tmp_path)
    os.utime(path, (0, 0))
    source.candidates()
    assert path.stat().st_mtime > 0


def rewrite(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_files_of_the_dead_are_removed_by_whoever_looks(tmp_path: Path) -> None:
    registered(tmp_path, B)
    (path,) = files(tmp_path)
    rewrite(path, pid=dead_pid())
    a = registered(tmp_path, A)
    assert a.candidates() == [A.address]
    assert not path.exists()


@pytest.mark.parametrize("machine", ["another", ""])
def test_of_other_machines_nobody_is_known_to_be_dead(tmp_path: Path, machine: str) -> None:
    registered(tmp_path, B)
    (path,) = files(tmp_path)
    rewrite(path, pid=dead_pid(), machine=machine)
    assert registered(tmp_path, A).candidates().count(B.address) == 1
    assert path.exists()


def test_processes_of_others_are_alive_too(tmp_path: Path) -> None:
    registered(tmp_path, B)
    rewrite(files(tmp_path)[0], pid=1)
    assert B.address in registered(tmp_path, A).candidates()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[" * 5000,
        b"[]",
        b"7",
        b'{"address": 7, "pid": 1, "machine": ""}',
        b'{"address": "nowhere", "pid": 1, "machine": ""}',
        b'{"address": "127.0.0.1:1", "pid": -1, "machine": ""}',
        b'{"address": "127.0.0.1:1", "pid": "1", "machine": ""}',
        b'{"address": "127.0.0.1:1", "pid": 1, "machine": 1}',
        b'{"address": "127.0.0.1:1", "pid": 1}',
    ],
)
def test_what_is_not_a_member_file_is_passed_over(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.member").write_bytes(content)
    (tmp_path / "README").write_text("something else")
    assert registered(tmp_path, A).candidates() == [A.address]
    assert (tmp_path / "x.member").exists()


def test_neither_links_nor_pipes_lead_astray(tmp_path: Path) -> None:
    elsewhere = registered(tmp_path / "elsewhere", B)
    (real,) = files(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "pipe.member")
    (tmp_path / "link.member").symlink_to(real)
    (tmp_path / "directory.member").mkdir()
    assert registered(tmp_path, A).candidates() == [A.address]
    assert elsewhere.candidates() == [B.address]


def test_a_pid_that_cannot_be_is_not_dead(tmp_path: Path) -> None:
    registered(tmp_path, B)
    rewrite(files(tmp_path)[0], pid=10**30)
    assert B.address in registered(tmp_path, A).candidates()


def test_not_more_files_than_make_sense_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(8):
        registered(tmp_path, A._replace(incarnation=100 + at))
    monkeypatch.setattr(sources, "FILES_MAX", 3)
    assert len(DirectorySource(tmp_path).candidates()) == 3


def test_a_source_serves_one_member_at_a_time(tmp_path: Path) -> None:
    source = registered(tmp_path, A)
    with pytest.raises(UsageError, match="make one for each member"):
        source.register(B)
    source.unregister()
    source.register(B)
    assert source.candidates() == [B.address]


def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write to"):
        registered(tmp_path / "file" / "below", A)
    assert DirectorySource(tmp_path / "nowhere").candidates() == []


def test_a_list_is_a_list() -> None:
    source: Source = ListSource([A.address, B.address])
    source.register(A)
    source.unregister()
    assert list(source.candidates()) == [A.address, B.address]
    assert str(source) == "127.0.0.1:7000, 127.0.0.1:7001"


# The user's own directory


def test_groups_meet_in_a_private_directory_that_no_name_can_escape(private: Path) -> None:
    names = ["orders", "../../etc", "/etc", "a" * 64]
    paths = [Path(str(runtime_source(name))) for name in names]
    assert len(set(paths)) == len(names)
    assert {path.parent for path in paths} == {private / "ringcast"}
    assert all(len(path.name) == 32 and path.name.isalnum() for path in paths)
    assert str(runtime_source("orders")) == str(paths[0])
    assert stat.S_IMODE((private / "ringcast").stat().st_mode) == 0o700


@pytest.mark.parametrize("given", ["", "/nowhere/at/all", "open"])
def test_without_a_session_it_is_in_the_directory_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    if given == "open":  # somebody else's, or anybody's
        (tmp_path / "open").mkdir()
        (tmp_path / "open").chmod(0o755)
        given = str(tmp_path / "open")
    monkeypatch.setenv("XDG_RUNTIME_DIR", given)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert runtime_directory() == tmp_path / f"ringcast-{os.getuid()}"
    assert stat.S_IMODE(runtime_directory().stat().st_mode) == 0o700


def for_others_to_read(path: Path) -> None:
    path.mkdir()
    path.chmod(0o750)


def for_others_to_write(path: Path) -> None:
    path.mkdir()
    path.chmod(0o702)


def a_link(path: Path) -> None:
    (path.parent / "real").mkdir(mode=0o700)
    path.symlink_to(path.parent / "real")


def somebody_elses(path: Path) -> None:
    path.mkdir(mode=0o700)
    if os.getuid() != 0:
        pytest.skip("only root can give a directory away")
    os.chown(path, 12345, -1)


@pytest.mark.parametrize("plant", [for_others_to_read, for_others_to_write, a_link, somebody_elses])
def test_a_directory_that_is_not_the_users_own_is_refused(
    private: Path, plant: Callable[[Path], None]
) -> None:
    plant(private / "ringcast")
    with pytest.raises(UsageError, match="not a directory that belongs to this user alone"):
        runtime_directory()


def test_a_file_in_its_place_is_said(private: Path) -> None:
    (private / "ringcast").write_text("")
    with pytest.raises(UsageError, match=r"cannot make .*ringcast"):
        runtime_directory()


@pytest.fixture(params=[0o000, 0o022, 0o277])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("is_key_first", [False, True])
def test_a_directory_that_was_swept_is_the_users_own_again(
    private: Path, is_key_first: bool
) -> None:
    source, ring = runtime_source("orders"), own_keys(group_directory("orders"))
    source.register(A)
    before = {path: path.stat().st_mode for path in private.rglob("*")}
    assert len(before) == 4
    shutil.rmtree(private / "ringcast")
    for at in range(2):
        if at == is_key_first:
            source.candidates()
        else:
            ring.keep(10**9)
        assert runtime_directory() == private / "ringcast"
    assert {path: path.stat().st_mode for path in private.rglob("*")} == before
    assert [stat.S_IMODE(before[path]) for path in before if path.is_dir()] == [0o700] * 2


@pytest.mark.parametrize("plant", [for_others_to_read, for_others_to_write, a_link, somebody_elses])
def test_nothing_is_put_back_where_others_were_faster(
    private: Path, plant: Callable[[Path], None]
) -> None:
    source, ring = runtime_source("orders"), own_keys(group_directory("orders"))
    source.register(A)
    shutil.rmtree(private / "ringcast")
    plant(private / "ringcast")
    assert source.candidates() == []
    ring.keep(10**9)
    assert files(private / "ringcast") == []
    shutil.rmtree(private)
    assert source.candidates() == []
    ring.keep(2 * 10**9)
    assert not private.exists()  # a session makes its own


def test_who_finds_no_place_can_look_for_another(private: Path) -> None:
    source = runtime_source("orders")
    (private / "ringcast").chmod(0o755)
    for _ in range(2):
        with pytest.raises(UsageError, match=r"cannot write to .*belongs to this user alone"):
            source.register(A)


JOINER = """
import asyncio, ringcast
async def main():
    async with ringcast.join("swept", name="B", must_exist=True) as group:
        print(group.view)
asyncio.run(main())
"""


def test_who_comes_after_a_sweep_finds_the_group(private: Path) -> None:
    async def main() -> None:
        async with join("swept", name="A"):
            key = (group_directory("swept") / OWN_FILE).read_bytes()
            shutil.rmtree(private / "ringcast")
            for wanted in (OWN_FILE, "*.member"):
                await until(lambda name=wanted: list(private.rglob(name)) != [])
            joiner = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", JOINER),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            said, complaints = await joiner.communicate()
            assert said.decode().strip() == "View 2: A, B", complaints
            assert (group_directory("swept") / OWN_FILE).read_bytes() == key

    before = os.umask(0o022)
    try:
        run(asyncio.wait_for(main(), 30))
    finally:
        os.umask(before)
