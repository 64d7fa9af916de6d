"""One-bit damage in archives and traces: what is read then. A process of its own, as it may abort.

Arguments: a directory for files, a seed, how many flips, and "sealed", or "unsealed" to read as if
there were no checksums. Prints JSON: how many flips were harmless, were found and the file named,
gave other messages, another digest, or an error without the file's name.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.audit_traces import write_traces
from ringcast.errors import UsageError
from ringcast.spark.messages import read_messages, tasks_of
from ringcast.spark.reading import NOT_READ
from ringcast.spark.states import _said_of
from ringcast.trace import sealed
from ringcast.trace.archive import Index
from ringcast.trace.footer import Recording
from ringcast.trace.rows import DELIVER, Row
from ringcast.trace.segments import SegmentWriter, segment_paths

LATER = 4e9
ROWS = 2000
FILES = 4
ORIGIN = ("web", 7, 0)
ROW_GROUPS = 3
MESSAGES = 40


def write_archive(directory: Path, dice: random.Random) -> None:
    """Files with some row groups, of messages large and small."""
    directory.mkdir()
    seqno = idx = 1
    for number in range(FILES):
        recording = Recording(run_id="archive", node="archive", inc=1, payloads=True)
        segment = SegmentWriter(directory, recording)
        for _ in range(ROW_GROUPS):
            size = dice.choice((3, 60, 3000))
            messages = [dice.randbytes(size) for _ in range(MESSAGES)]
            place = (*ORIGIN, seqno, seqno + MESSAGES - 1, number)
            segment.add([Row(DELIVER, "archive", 1, idx, -1, idx, *place)], 10**18, [messages])
            segment._write_group()
            seqno, idx = seqno + MESSAGES, idx + 1
        segment.finish()


def messages_in(directory: Path) -> Counter[tuple[int, bytes]]:
    index = Index(directory)
    index.refresh()
    untold = index.untold(LATER)
    if untold:
        raise UsageError("; ".join(untold))
    found: Counter[tuple[int, bytes]] = Counter()
    for task in tasks_of(index.pieces({}, LATER).pieces):
        for batch in read_messages(str(directory), task):
            found.update(zip(batch["seqno"].to_pylist(), batch["payload"].to_pylist(), strict=True))
    return found


def digest_of(path: Path) -> object:
    """What the audit takes of a file."""
    ((_, text),) = _said_of(str(path))
    info, said = json.loads(text)
    if info == NOT_READ:
        raise UsageError(said)
    return info, said


def outcome(path: Path, archive: Path, sent: object, digests: dict[Path, object]) -> str:
    """What comes of a file that is not as it was."""
    found = []
    for kind in ("messages", "digest"):
        if kind == "messages" and path.parent != archive:
            continue
        try:
            is_same = (
                messages_in(archive) == sent
                if kind == "messages"
                else digest_of(path) == digests[path]
            )
            found.append("harmless" if is_same else f"other {kind}")
        except UsageError as error:
            found.append("named" if path.name in str(error) else f"unnamed: {error}")
    return max(found, key=lambda what: (what != "harmless", what != "named"))


class Blind:
    """Takes any checksum for the right one."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def read_unsealed() -> None:
    """As a reader would that has no checksums to verify."""
    sealed.xxhash.xxh3_64_intdigest = lambda _: Blind()
    sealed.SealedFile.check = lambda *_: None  # type: ignore[method-assign]
    whole = pq.ParquetFile.__init__

    def plain(file: pq.ParquetFile, *args: object, **named: object) -> None:
        whole(file, *args, **named | {"page_checksum_verification": False})

    pq.ParquetFile.__init__ = plain


def main() -> None:
    directory, seed, flips, how = sys.argv[1:]
    dice = random.Random(int(seed))
    archive, traces = Path(directory, "archive"), Path(directory, "traces")
    write_archive(archive, dice)
    write_traces(traces, ROWS)
    if how == "unsealed":
        read_unsealed()
    paths = [*segment_paths(archive), *segment_paths(traces)]
    digests = {path: digest_of(path) for path in paths}
    sent = messages_in(archive)
    assert sent.total() == FILES * ROW_GROUPS * MESSAGES
    counts: Counter[str] = Counter()
    for _ in range(int(flips)):
        path = dice.choice(paths)
        data = path.read_bytes()
        bit = dice.randrange(8 * len(data))
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        counts[outcome(path, archive, sent, digests)] += 1
        path.write_bytes(data)
    print(json.dumps(counts))  # noqa: T201


if __name__ == "__main__":
    main()
