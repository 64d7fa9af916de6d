"""The trace of one run while it grows, and what was really sent: shared by all its harnesses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from xxhash import xxh3_64

from ringcast.trace.rows import FAULT_OFF, FAULT_ON, PHASE, Row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.model import Origin
    from ringcast.sim.agenda import Agenda

BLOCK_MESSAGES = 16
"""Messages per content hash: small, so that short runs have whole blocks too."""

_HASH_MASK = 2**63 - 1
"""Hashes stay within what a signed 64-bit column holds."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a harness saw with its own eyes, beyond what rows can tell."""

    predicate: str
    text: str
    run_idx: int
    """The last row written before."""


class Recorder:
    """Numbers the rows, remembers every message by its seqno, and collects findings."""

    def __init__(self, agenda: Agenda) -> None:
        self.rows: list[Row] = []
        self.findings: list[Finding] = []
        self.deliveries = 0
        self.last_send = 0
        """When a message, or a part of one, was last sent for the first time."""
        self.sent: dict[Origin, dict[int, bytes]] = {}
        """Whole messages by the seqno of their last fragment."""
        self._agenda = agenda
        self._own_rows = 0

    @property
    def now(self) -> int:
        return self._agenda.now

    def phase(self, name: str) -> None:
        self._write_own(PHASE, kind=name)

    def fault_on(self, fault: str, detail: str) -> None:
        self._write_own(FAULT_ON, kind=fault, detail=detail)

    def fault_off(self, fault: str, detail: str) -> None:
        self._write_own(FAULT_OFF, kind=fault, detail=detail)

    def find(self, predicate: str, text: str) -> None:
        self.findings.append(Finding(predicate, text, len(self.rows) - 1))

    def _write_own(self, event: str, **columns: Any) -> None:
        row = Row(event, "", 0, self._own_rows, len(self.rows), self.now, **columns)
        self.rows.append(row)
        self._own_rows += 1


class BlockHashes:
    """Hashes one origin's messages in blocks of consecutive seqnos, however runs are cut.

    A message counts in the block of its last fragment; other fragments only take their place. A
    block of which the beginning was not seen has no hash.
    """

    __slots__ = ("_hash", "_is_whole", "_next")

    def __init__(self, offset: int) -> None:
        self._next = offset + 1
        self._hash = xxh3_64()
        self._is_whole = offset % BLOCK_MESSAGES == 0

    def add(self, first: int, messages: Sequence[bytes]) -> list[tuple[int, int]]:
        """Take the messages that begin at seqno `first`; (block, hash) of each that is full now.

        Seqnos that were left out before `first` are fragments. What was seen before does not count
        again: that it came twice is for another predicate to say.
        """
        full = self.skip_to(first)
        for message in messages[self._next - first :]:
            self._hash.update(len(message).to_bytes(8, "little"))
            self._hash.update(message)
            full += self._advance()
        return full

    def skip_to(self, seqno: int) -> list[tuple[int, int]]:
        """Everything before `seqno` was a fragment."""
        full: list[tuple[int, int]] = []
        while self._next < seqno:
            full += self._advance()
        return full

    def _advance(self) -> list[tuple[int, int]]:
        block, place = divmod(self._next - 1, BLOCK_MESSAGES)
        self._next += 1
        if place < BLOCK_MESSAGES - 1:
            return []
        full = [(block, self._hash.intdigest() & _HASH_MASK)] if self._is_whole else []
        self._hash.reset()
        self._is_whole = True
        return full
