"""Files in which no byte can change unseen, and which other readers take for plain Parquet.

A Parquet file ends with its footer. Between the pages and the footer, where Parquet readers do not
look, a seal says what all other bytes are:

    PAR1, pages          cut into pieces; a page of 64 kB or more begins a piece
    a piece: its length, its xxh3            8 bytes each, as often as there are pieces
    number of pieces, version                4 bytes each
    xxh3 of the seal before this, and of all behind the seal
    "RINGSEAL"
    footer, its length, PAR1                 as Parquet has them

Numbers are little endian. A reader checks the seal and the footer before it parses anything, and a
piece whenever it reads bytes of it; so what pyarrow gets to see is what was written. The place of
the last three lines, and what the xxh3 is taken of, stay the same in all versions.
"""

from __future__ import annotations

import os
import re
import struct
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO, TypeAlias

import xxhash

from ringcast.errors import UsageError
from ringcast.trace.disks import LOCAL, Disk, Opened
from ringcast.trace.whole import Result, patiently

Buffer: TypeAlias = "bytes | memoryview"

VERSION = 3
PIECE_BYTES = 64 << 10
FOOTER_BYTES_MAX = 64 << 20

_PARQUET = b"PAR1"
_MAGIC = b"RINGSEAL"
_COUNTS = struct.Struct("<II")
_CHECK = struct.Struct("<Q")
_PIECE_SIZE = 16
_TRAILER_SIZE = _COUNTS.size + _CHECK.size + len(_MAGIC)
_TAIL_SIZE = 8
"""The length of the footer, and PAR1."""
_FIRST_READ = 32 << 10
"""From the end of the file: enough for the footers and seals of most."""


class Unreadable(UsageError):
    """A file that is there, or was, and cannot be read as what was written. Its text names it."""

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(f"{Path(path).name}: {reason}")
        self.path = str(path)
        self.reason = reason

    def __reduce__(self) -> tuple[type[Unreadable], tuple[str, str]]:
        return Unreadable, (self.path, self.reason)


class OtherVersion(Unreadable):
    """A file whose format this reader does not know."""

    def __init__(self, path: Path | str, version: int) -> None:
        super().__init__(
            path,
            f"a segment of version {version}; this ringcast reads version {VERSION}: use the one "
            "that wrote it",
        )


class SealingFile:
    """What a Parquet writer writes to: passes bytes on, and remembers what they were."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._position = 0
        self._table = b""
        self._pieces = 0
        self._length = 0
        self._hash = xxhash.xxh3_64()
        self._footer: bytes | None = None

    # What pyarrow asks of a file

    @property
    def closed(self) -> bool:
        return self._file.closed

    def write(self, data: bytes) -> int:
        size = len(data)
        self._position += size
        if self._footer is not None:
            self._footer += bytes(data)
            return size
        if self._length + size > PIECE_BYTES:
            self._cut()
        self._length += size
        self._hash.update(data)
        self._file.write(data)
        return size

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    # The end

    def begin_footer(self) -> None:
        """Keep what comes from now on: it stands behind the seal."""
        self._cut()
        self._footer = b""

    def seal(self) -> None:
        """Write the seal and the footer, and make all of it last."""
        assert self._footer is not None
        sealed = self._table + _COUNTS.pack(self._pieces, VERSION)
        check = _CHECK.pack(xxhash.xxh3_64_intdigest(sealed + self._footer))
        self._file.write(sealed + check + _MAGIC + self._footer)
        self._file.flush()
        os.fsync(self._file.fileno())

    def _cut(self) -> None:
        if self._length:
            self._table += struct.pack("<QQ", self._length, self._hash.intdigest())
            self._pieces += 1
            self._length = 0
            self._hash.reset()


class SealedFile:
    """Such a file, opened for reading; Unreadable: it is not as it was written, or not at all.

    With `is_patient` a disk that fails for a moment is tried again.
    """

    def __init__(self, path: Path | str, disk: Disk = LOCAL, *, is_patient: bool = True) -> None:
        self.path = str(path)
        self.closed = False
        self._disk = disk
        self._file: Opened | None = None
        self._is_patient = is_patient
        self._position = 0
        self._known: tuple[int, Buffer] = 0, b""
        try:
            self.size = self._try(lambda: self._opened().size())
            tail = self._tail()
            self.footer = _PARQUET + bytes(tail)
            """As a Parquet file that has nothing but its footer."""
        except BaseException:
            self.close()
            raise

    # What pyarrow asks of a file

    def read(self, size: int) -> Buffer:
        found = self.read_at(self._position, size)
        self._position += size
        return found

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        self._position = position + (self.size if whence == os.SEEK_END else 0)
        return self._position

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        self.closed = True
        if self._file is not None:
            self._file.close()
            self._file = None

    # Bytes that are as they were written

    def read_at(self, start: int, length: int) -> Buffer:
        """These bytes. Pieces that were read last are at hand: columns stand side by side."""
        known_at, known = self._known
        if not known_at <= start <= start + length <= known_at + len(known):
            self._known = known_at, known = self._pieces(start, start + length)
        return memoryview(known)[start - known_at : start - known_at + length]

    def check(self, start: int, stop: int) -> None:
        """Whether these bytes are as they were written; Unreadable if not."""
        while start < stop:
            at, found = self._pieces(start, start + 1)
            start = at + len(found)

    def check_all(self) -> None:
        """The same of the whole file."""
        self.check(0, self._starts[-1])

    def _pieces(self, start: int, stop: int) -> tuple[int, bytes]:
        """The pieces that have these bytes, and where they begin."""
        first = bisect_right(self._starts, start) - 1
        if not 0 <= start < stop <= self._starts[-1]:
            raise Unreadable(self.path, f"damaged: it has no bytes {start}..{stop - 1}")
        last = bisect_right(self._starts, stop - 1) - 1
        begin = self._starts[first]
        found = self._bytes(begin, self._starts[last + 1] - begin)
        whole = memoryview(found)
        for at in range(first, last + 1):
            piece = whole[self._starts[at] - begin : self._starts[at + 1] - begin]
            if xxhash.xxh3_64_intdigest(piece) != self._hashes[at]:
                span = f"{self._starts[at]}..{self._starts[at + 1] - 1}"
                raise Unreadable(self.path, f"damaged: bytes {span} are not what was written")
        return begin, found

    def _tail(self) -> memoryview:
        """The footer and what is behind it, once it and the seal are known to be whole."""
        read = min(self.size, _FIRST_READ)
        tail = self._bytes(self.size - read, read)
        if read < _TAIL_SIZE + _TRAILER_SIZE or not tail.endswith(_PARQUET):
            raise self._not_whole("it ends in the middle")
        footer_size = int.from_bytes(tail[-8:-4], "little") + _TAIL_SIZE
        if footer_size + _TRAILER_SIZE > min(self.size, FOOTER_BYTES_MAX):
            raise self._not_whole("its footer has no beginning")
        tail = self._more(tail, footer_size + _TRAILER_SIZE)
        trailer = tail[-footer_size - _TRAILER_SIZE : -footer_size]
        if not trailer.endswith(_MAGIC):
            raise self._unsealed(tail[-footer_size:])
        count, version = _COUNTS.unpack_from(trailer)
        sealed_size = count * _PIECE_SIZE + _COUNTS.size
        behind_size = footer_size + _TRAILER_SIZE - _COUNTS.size
        if sealed_size + behind_size > self.size:
            raise self._not_whole("its seal has no beginning")
        tail = self._more(tail, sealed_size + behind_size)
        whole = memoryview(tail)[len(tail) - sealed_size - behind_size :]
        found = xxhash.xxh3_64(whole[:sealed_size])
        found.update(whole[-footer_size:])
        if (found.intdigest(),) != _CHECK.unpack_from(trailer, _COUNTS.size):
            raise self._not_whole("its footer is not what was written")
        if version != VERSION:
            raise OtherVersion(self.path, version)
        table = struct.unpack(f"<{2 * count}Q", whole[: count * _PIECE_SIZE])
        self._starts = list(accumulate(table[::2], initial=0))
        self._hashes = table[1::2]
        if self._starts[-1] != self.size - len(whole):
            raise self._not_whole("it has other bytes than its seal tells of")
        return whole[-footer_size:]

    def _more(self, tail: bytes, size: int) -> bytes:
        """At least so much of the end of the file."""
        if size <= len(tail):
            return tail
        return self._bytes(self.size - size, size - len(tail)) + tail

    def _bytes(self, start: int, length: int) -> bytes:
        found = b""
        while len(found) < length:
            more = self._pread(length - len(found), start + len(found))
            if not more:
                raise self._not_whole("it has become shorter")
            found = found + more if found else more
        return found

    def _pread(self, length: int, start: int) -> bytes:
        return self._try(lambda: self._opened().read_at(length, start))

    def _opened(self) -> Opened:
        if self._file is None:
            self._file = self._disk.open(self.path)
        return self._file

    def _try(self, work: Callable[[], Result]) -> Result:
        def once() -> Result:
            try:
                return work()
            except OSError:  # next time opened anew: this handle may be stale
                file, self._file = self._file, None
                if file is not None:
                    with suppress(OSError):
                        file.close()
                raise

        try:
            return patiently(once) if self._is_patient else once()
        except OSError as error:
            raise Unreadable(self.path, f"cannot be read: {error.strerror}") from error

    def _not_whole(self, reason: str) -> Unreadable:
        return Unreadable(self.path, f"not a whole segment: {reason}")

    def _unsealed(self, footer: bytes) -> Unreadable:
        """Version 1 had no seal. What it says is looked at, and not parsed."""
        said = re.search(rb'"schema": (\d{1,9})\b', footer)
        if said is not None and int(said[1]) != VERSION:
            return OtherVersion(self.path, int(said[1]))
        return self._not_whole("it has no seal")
