"""Tables, without Spark around them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from ringcast.errors import UsageError
from ringcast.spark.source import ArchiveReader, Options
from support.archives import WEB, Kept, tear, write_file

if TYPE_CHECKING:
    from pathlib import Path


def table(archive: Path, **options: str) -> int:
    reader = ArchiveReader(Options.parse({"path": str(archive), **options}, is_stream=False))
    return sum(len(batch) for part in reader.partitions() for batch in reader.read(part))


@pytest.mark.parametrize("is_torn", [True, False])
def test_a_table_does_not_ask_what_time_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_torn: bool
) -> None:
    """The driver's clock may be behind that of the file server."""
    paths = [write_file(tmp_path, "one", at, [Kept(WEB, at + 1, at + 10)]) for at in (0, 10, 20)]
    tear(paths[1]) if is_torn else paths[1].unlink()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 3600)
    with pytest.raises(UsageError, match="cannot be read"):
        table(tmp_path)
