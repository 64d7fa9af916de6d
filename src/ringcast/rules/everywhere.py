"""G1, G2, G3, G5: what holds whatever the protocol.

G6 and G7 are judged by the harness, and G8 is a wait.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ringcast.rules.algebra import NOWHERE, Lives, Progress, Ranges, merge_progress
from ringcast.rules.findings import Findings
from ringcast.trace.rows import (
    BLOCK,
    CONN,
    CRASH,
    DELIVER,
    OPEN,
    PURGE,
    SEND,
    START,
    TX,
    UNICAST_DELIVER,
    UNICAST_SEND,
    UNICAST_WIN,
    VIEW,
    WIN,
)

if TYPE_CHECKING:
    from ringcast.rules.findings import Verdict
    from ringcast.trace.rows import Facts, MemberKey, OriginKey, PairKey, Row


class Integrity:
    """A delivered message was sent before, by the one it names and with these bytes.

    Bytes are compared by the hashes of blocks that end at the same message. A block that one side
    did not finish, or that began before a joiner's window did, has no such row there.
    """

    id = "G1"
    title = "only what was sent is delivered, unchanged"
    events = (SEND, DELIVER, BLOCK, *Lives.EVENTS)

    def __init__(self) -> None:
        self.sent: defaultdict[OriginKey, Progress] = defaultdict(Progress)
        self.delivered: defaultdict[PairKey, Progress] = defaultdict(Progress)
        self.sent_blocks: dict[tuple[OriginKey, int, int], Row] = {}
        self.delivered_blocks: list[Row] = []
        self.lives = Lives()
        self.found = Findings()

    def feed(self, row: Row) -> None:
        if row.event == DELIVER:
            self.found.premises += 1
            self.delivered[row.pair].rise(row.run_idx, row.seqno2, row)
        elif row.event == SEND:
            self.sent[row.own_origin].rise(row.run_idx, row.seqno2, row)
        elif row.event == BLOCK:
            if row.kind == "sent":
                self.sent_blocks[row.own_origin, row.block, row.seqno2] = row
            else:
                self.delivered_blocks.append(row)
        else:
            self.lives.feed(row)

    def merge(self, other: Integrity) -> None:
        merge_progress(self.sent, other.sent)
        merge_progress(self.delivered, other.delivered)
        self.sent_blocks |= other.sent_blocks
        self.delivered_blocks += other.delivered_blocks
        self.lives.merge(other.lives)
        self.found.merge(other.found)

    def finish(self, facts: Facts) -> Verdict:
        found = self.found.copy()
        prefixes = self.lives.without_tail()
        for pair, delivered in self.delivered.items():
            sent = self.sent.get(pair[2:], NOWHERE)
            for mark, through, row in delivered:
                if sent.at(mark) >= through:
                    continue
                if mark < 0 and pair[2:4] in prefixes:
                    found.unknown.add(f"what {row.peer}#{row.peer_inc} sent: its tail is lost")
                else:
                    found.violate(
                        f"{row.member} delivers {row.peer}:{row.seqno}..{row.seqno2}; by then "
                        f"{row.peer} has sent up to {sent.at(mark)}",
                        *(sent.row_at(mark), row),
                    )
                break
        for row in self.delivered_blocks:
            original = self.sent_blocks.get((row.origin, row.block, row.seqno2))
            if original is None:
                continue
            found.premises += 1
            if original.block_hash != row.block_hash:
                found.violate(
                    f"block {row.block} of {row.peer} has other bytes at {row.member}",
                    *(original, row),
                )
        return found.verdict(self.id, self.title)


class AtMostOnce:
    """One member never delivers a message twice, also across views and re-opened windows (N2).

    Each epoch of a unicast stream numbers its messages anew.
    """

    id = "G2"
    title = "no message is delivered twice"
    events = (DELIVER, UNICAST_DELIVER)

    def __init__(self) -> None:
        self.delivered: defaultdict[tuple[PairKey, int], Ranges] = defaultdict(Ranges)
        self.found = Findings()

    def feed(self, row: Row) -> None:
        self.found.premises += 1
        self._add((row.pair, row.epoch), row.seqno, row.seqno2, row)

    def merge(self, other: AtMostOnce) -> None:
        self.found.merge(other.found)
        for stream, ranges in other.delivered.items():
            if self.delivered.setdefault(stream, ranges) is not ranges:
                for first, last, row in ranges:
                    self._add(stream, first, last, row)

    def finish(self, facts: Facts) -> Verdict:
        return self.found.verdict(self.id, self.title)

    def _add(self, stream: tuple[PairKey, int], first: int, last: int, row: Row) -> None:
        earlier = self.delivered[stream].add(first, last, row)
        if earlier:
            self.found.violate(
                f"{row.member} delivers {row.peer}:{first}..{last}, some of it again",
                *(*earlier, row),
            )


class SilentDead:
    """A crashed incarnation does nothing more."""

    id = "G3"
    title = "nothing comes from a member after its crash"
    events = (
        *(CRASH, START, SEND, DELIVER, TX, VIEW, OPEN, PURGE),
        *(UNICAST_SEND, UNICAST_DELIVER, CONN),
    )

    def __init__(self) -> None:
        self.crashed: dict[MemberKey, Row] = {}
        self.last: dict[MemberKey, Row] = {}

    def feed(self, row: Row) -> None:
        if row.event == CRASH:
            self.crashed.setdefault((row.node, row.inc), row)
        else:
            self.last[row.node, row.inc] = row

    def merge(self, other: SilentDead) -> None:
        self.crashed = other.crashed | self.crashed
        self.last |= other.last

    def finish(self, facts: Facts) -> Verdict:
        found = Findings(premises=len(self.crashed))
        for member, crash in self.crashed.items():
            last = self.last.get(member)
            if last is not None and last.idx > crash.idx:
                found.violate(f"{last.member} crashed, then: {last.event}", crash, last)
        return found.verdict(self.id, self.title)


class BoundedMemory:
    """Every window keeps its own bounds, in messages and in bytes, and a member has at most one
    connection each way with each peer; so their sum is bounded."""

    id = "G5"
    title = "every window stays within its bounds"
    events = (WIN, UNICAST_WIN, CONN)

    def __init__(self) -> None:
        self.found = Findings()
        self.peers: defaultdict[tuple[MemberKey, str], set[MemberKey]] = defaultdict(set)
        self.most: dict[tuple[MemberKey, str], Row] = {}
        """The row with the most connections, for each member and direction."""

    def feed(self, row: Row) -> None:
        self.found.premises += 1
        if row.event == CONN:
            table = (row.node, row.inc), row.kind
            self.peers[table].add((row.peer, row.peer_inc))
            self.most[table] = max(self.most.get(table, row), row, key=_size)
            return
        if row.hr - row.low > row.cap:
            self.found.violate(
                f"a {row.kind} window of {row.member} spans {row.hr - row.low} messages, "
                f"its capacity is {row.cap}",
                row,
            )
        if 0 <= row.limit < row.size:
            self.found.violate(
                f"a {row.kind} window of {row.member} has {row.size} bytes, "
                f"its bound is {row.limit}",
                row,
            )

    def merge(self, other: BoundedMemory) -> None:
        self.found.merge(other.found)
        for table, peers in other.peers.items():
            self.peers[table] |= peers
        for table, row in other.most.items():
            self.most[table] = max(self.most.get(table, row), row, key=_size)

    def finish(self, facts: Facts) -> Verdict:
        found = self.found.copy()
        for table, row in self.most.items():
            if row.size > len(self.peers[table]):
                found.violate(
                    f"{row.member} has {row.size} connections with {len(self.peers[table])} peers",
                    row,
                )
        return found.verdict(self.id, self.title)


def _size(row: Row) -> int:
    return row.size
