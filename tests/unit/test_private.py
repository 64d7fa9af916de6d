"""Files are for whom it is said, whatever the umask; what is there already is left as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ringcast import ConfigError
from ringcast.private import VARIABLE, file_mode, make_private, open_private
from support.modes import modes_below, umask

if TYPE_CHECKING:
    from pathlib import Path

MODES = {0o600: 0o700, 0o640: 0o750, 0o644: 0o755, 0o660: 0o770, 0o664: 0o775}
"""Of files, and of the directories that are made for them."""


@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
@pytest.mark.parametrize("mode", MODES)
def test_files_and_directories_are_for_whom_it_is_said(
    tmp_path: Path, mode: int, mask: int
) -> None:
    root = tmp_path / "new"
    with umask(mask):
        make_private(root / "inner", mode)
        with open_private(root / "inner" / "file", mode) as file:
            file.write(b"said")
    assert modes_below(root) == ({MODES[mode]}, {mode})
    assert (root / "inner" / "file").read_bytes() == b"said"


@pytest.mark.parametrize(("said", "mode"), [("", 0o600), ("640", 0o640), ("0o660", 0o660)])
def test_else_the_environment_says_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, mode: int
) -> None:
    monkeypatch.setenv(VARIABLE, said)
    make_private(tmp_path / "new")
    open_private(tmp_path / "new" / "file").close()
    assert modes_below(tmp_path / "new") == ({MODES[mode]}, {mode})
    assert file_mode(0o644) == 0o644


ALLOWED = "must be 0o600, 0o640, 0o644, 0o660 or 0o664"


@pytest.mark.parametrize("said", [640, 0o666, 0o700, 0o200, True, b"600", "666", "4600", "mine"])
def test_nobody_else_may_write(said: Any) -> None:
    with pytest.raises(ConfigError, match=f"^file_mode = {said!r}: {ALLOWED}"):
        file_mode(said)


def test_what_the_environment_says_wrong_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0666")
    with pytest.raises(ConfigError, match=f"^RINGCAST_FILE_MODE = '0666': {ALLOWED}"):
        file_mode()


def test_a_group_that_a_directory_hands_on_is_handed_on(tmp_path: Path) -> None:
    """And nobody takes from that directory what its owner allows."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o2775)
    with umask(0o077):
        make_private(shared, 0o640)
        make_private(shared / "new", 0o640)
    assert (shared.stat().st_mode & 0o7777, (shared / "new").stat().st_mode & 0o7777) == (
        0o2775,
        0o2750,
    )


def test_a_new_file_takes_the_place_of_an_old_one_unless_that_is_wanted(tmp_path: Path) -> None:
    old, link = tmp_path / "old", tmp_path / "link"
    old.write_bytes(b"old")
    old.chmod(0o644)
    link.symlink_to(old)
    with open_private(link) as file:  # somebody may have put the link there
        file.write(b"new")
    assert old.read_bytes() == b"old"
    assert link.lstat().st_mode & 0o777 == 0o600
    for way, content in (("ab", b"old+"), ("wb", b"+")):
        with open_private(old, old=way) as file:  # type: ignore[arg-type]
            file.write(b"+")
        assert old.read_bytes() == content
    assert old.stat().st_mode & 0o777 == 0o644


def test_what_is_no_directory_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError, match=r"File exists|Not a directory"):
            make_private(path)
