"""Archives on file systems that pyarrow reads, and on an object store."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs ringcast[spark]")

from pyarrow import ArrowInvalid
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from ringcast.errors import UsageError
from ringcast.spark.messages import read_messages, tasks_of
from ringcast.trace import disks, whole
from ringcast.trace.archive import Index
from ringcast.trace.disks import LOCAL, ArrowDisk, disk_at, without_secrets
from ringcast.trace.retention import prune
from support.archives import APP, WEB, Kept, damage, payload, tear, write_file
from support.s3 import store
from support.shaky_disk import ShakyDisk

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

LATER = 1e12


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Two archives, one of them in a folder, and files that are none of theirs."""
    directory = tmp_path / "bucket" / "archive"
    write_file(directory, "one", 0, [Kept(WEB, 1, 30), Kept(APP, 1, 5)])
    write_file(directory / "b", "one", 100, [Kept(WEB, 31, 60)])
    write_file(directory, "two", 0, [Kept(WEB, 1, 45)])
    write_file(directory / ".compact", "three", 0, [Kept(WEB, 1, 99)])
    (directory / "notes.txt").write_text("not a segment")
    return directory


def messages(place: Path | str) -> list[tuple[str, int, bytes]]:
    """All that is there, by sender and number."""
    index = Index(place)
    index.refresh()
    plan = index.pieces({}, LATER)
    assert not plan.gaps
    return sorted(
        (row["sender"], row["seqno"], row["payload"])
        for task in tasks_of(plan.pieces)
        for batch in read_messages(str(place), task)
        for row in batch.to_pylist()
    )


SENT = sorted(
    (origin[0], at, payload(origin, at))
    for origin, last in ((WEB, 60), (APP, 5))
    for at in range(1, last + 1)
)


class Failing:
    """A file system as pyarrow has it, of which every so many-th call fails: most have no errno."""

    def __init__(self, files: FileSystem, every: int) -> None:
        self.calls = 0
        self._files = files
        self._every = every

    def _count(self) -> None:
        self.calls += 1
        if self.calls % self._every == 0:
            raise OSError("connection reset") if self.calls % 2 else ArrowInvalid("not now")

    def get_file_info(self, what: Any) -> Any:
        self._count()
        return self._files.get_file_info(what)

    def open_input_file(self, path: str) -> Any:
        self._count()
        return FailingFile(self, self._files.open_input_file(path))


class FailingFile:
    def __init__(self, files: Failing, file: Any) -> None:
        self._count = files._count
        self._file = file

    def size(self) -> int:
        self._count()
        return int(self._file.size())

    def read_at(self, length: int, start: int) -> bytes:
        self._count()
        return bytes(self._file.read_at(length, start))

    def close(self) -> None:
        self._file.close()


@pytest.fixture
def mounted(archive: Path, monkeypatch: pytest.MonkeyPatch) -> Failing:
    """sub://archive is the archive, on a file system of pyarrow's that may fail."""
    files = Failing(SubTreeFileSystem(str(archive.parent), LocalFileSystem()), 10**9)
    monkeypatch.setattr(disks, "_file_system", lambda uri: (files, uri.removeprefix("sub://")))
    monkeypatch.setattr(whole, "PAUSES_S", (0.0,) * 6)
    return files


def test_a_file_system_of_pyarrow_is_read_as_a_local_one(archive: Path, mounted: Failing) -> None:
    assert messages(archive) == messages("sub://archive") == SENT
    index = Index("sub://archive")
    index.refresh()
    local = Index(archive)
    local.refresh()
    times = {Path(path).name: (file.size, file.times) for path, file in index.files.items()}
    assert times == {Path(path).name: (file.size, file.times) for path, file in local.files.items()}


@pytest.mark.parametrize("every", [3, 7, 20])
def test_one_that_fails_now_and_then_gives_each_message_once(mounted: Failing, every: int) -> None:
    mounted._every = every
    assert messages("sub://archive") == SENT


def test_one_that_fails_for_good_is_named(mounted: Failing) -> None:
    mounted._every = 1
    with pytest.raises(
        UsageError, match=r"archive: no such directory \((not now|connection reset)"
    ):
        messages("sub://archive")


def test_others_stand_in_there_too(archive: Path, mounted: Failing) -> None:
    index = Index("sub://archive")
    index.refresh()
    tasks = tasks_of(index.pieces({}, LATER).pieces)
    for path in archive.glob("one*"):
        path.rename(archive / "b" / path.name)  # merged, or moved, since it was planned
    found = [
        (row["sender"], row["seqno"])
        for task in tasks
        for batch in read_messages("sub://archive", task)
        for row in batch.to_pylist()
    ]
    assert sorted(found) == [(sender, at) for sender, at, _ in SENT]


def test_what_is_damaged_there_is_named(archive: Path, mounted: Failing) -> None:
    tear(next((archive / "b").iterdir()))
    index = Index("sub://archive")
    index.refresh()
    (trouble,) = index.unreadable.values()
    assert trouble.reason.endswith("not a whole segment: it ends in the middle")
    damage(next(archive.glob("one*")))
    with pytest.raises(UsageError, match=r"messages 1\.\.5 of app.*damaged"):
        messages("sub://archive")


def test_what_vanishes_there_while_it_is_listed_is_looked_for_again(
    archive: Path, mounted: Failing
) -> None:
    """A file that is opened for the first time is gone, and stands elsewhere."""
    real, victim = mounted.open_input_file, next(archive.glob("two*"))

    def open_input_file(path: str) -> Any:
        if path.endswith(victim.name) and victim.exists():
            victim.rename(archive / "b" / victim.name)
        return real(path)

    mounted.open_input_file = open_input_file  # type: ignore[method-assign]
    assert messages("sub://archive") == SENT


def test_what_was_pruned_is_known_there(archive: Path, mounted: Failing) -> None:
    assert prune(archive, LATER).removed
    write_file(archive, "one", 200, [Kept(WEB, 61, 70)])
    index = Index("sub://archive")
    index.refresh()
    assert index.pruned[WEB] == 60
    assert [piece.first for piece in index.pieces({}, LATER).pieces] == [61]


def test_file_uris_are_local(archive: Path) -> None:
    there = archive.with_name("with space")
    archive.rename(there)
    for uri in (f"file://{there}", f"file:{there}", f"file://{there}".replace(" ", "%20")):
        assert disk_at(uri) == (LOCAL, str(there))
        assert messages(uri) == SENT
    for path in ("archive", "/a/b:c", "a://b"):
        assert disk_at(Path(path)) == (LOCAL, str(Path(path)))
    with ShakyDisk(there, 20) as shaky:
        for _ in range(5):
            assert messages(f"file://{there}") == SENT
    assert shaky.failed


def test_a_disk_that_there_is_not_is_named() -> None:
    for uri in ("nfs://host/archive", "hdfs://nowhere.invalid/archive"):
        with pytest.raises(UsageError, match=f"{uri}: pyarrow cannot read there: ") as told:
            Index(uri)
        assert "\n" not in str(told.value)


def test_keys_are_not_told() -> None:
    uri = "s3://key:word@bucket/a@b?endpoint_override=host:1&secret=x"
    assert without_secrets(uri) == "s3://bucket/a@b"


def test_an_object_store_is_read_and_listed_now_and_then(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store(tmp_path) as server:
        uri = server.uri("bucket/archive")
        assert messages(uri) == SENT
        index = Index(uri)
        index.refresh()
        known = server.lists
        monkeypatch.setattr(disks, "RELIST_S", 1e6)
        index.follow()
        assert server.lists == known
        monkeypatch.setattr(disks, "RELIST_S", 0.0)
        index.follow()
        assert server.lists > known
        with pytest.raises(UsageError, match="bucket/nowhere: no such directory"):
            Index(server.uri("bucket/nowhere")).refresh()


def test_an_object_store_that_fails_every_twentieth_time_gives_each_message_once(
    archive: Path, tmp_path: Path
) -> None:
    with store(tmp_path, every=20) as server:
        for _ in range(3):
            assert messages(server.uri("bucket/archive")) == SENT
        assert server.failed


def test_errors_have_numbers_wherever_they_come_from() -> None:
    class Refusing(Failing):
        def get_file_info(self, what: Any) -> Any:
            raise PermissionError(errno.EACCES, "no")

    disk = ArrowDisk(Refusing(LocalFileSystem(), 1))
    with pytest.raises(PermissionError):
        disk.changed_at("x")
    with pytest.raises(UsageError, match="x: what is in it cannot be read: no"):
        disk.listing("x")
