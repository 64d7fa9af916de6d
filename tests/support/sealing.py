"""Files that others made, sealed as if a recorder had written them."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from ringcast.trace.sealed import SealingFile

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa


def write_sealed(path: Path, table: pa.Table, info: dict[str, object] | bytes) -> Path:
    """A segment with these rows and this footer."""
    text = info if isinstance(info, bytes) else json.dumps(info).encode()
    parquet = io.BytesIO()
    options = {"use_dictionary": ["run_id", "host", "boot_id", "event", "node", "peer"]}
    pq.write_table(table.replace_schema_metadata({b"ringcast": text}), parquet, **options)
    return seal(path, parquet.getvalue())


def seal(path: Path, parquet: bytes) -> Path:
    footer = int.from_bytes(parquet[-8:-4], "little") + 8
    file = SealingFile(path.open("wb"))
    file.write(parquet[:-footer])
    file.begin_footer()
    file.write(parquet[-footer:])
    file.seal()
    file.close()
    return path


def info_of(path: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(pq.read_metadata(path).metadata[b"ringcast"])
    return found
