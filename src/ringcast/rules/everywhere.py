"""G1, G2, G3, G5: what holds whatever the protocol.

G6 and G7 are judged by the harness, and G8 is a wait.
"""

from __future__ import annotations

from collections import defaultdict
from operator import attrgetter
from typing import TYPE_CHECKING

from ringcast.rules.evidence import NOWHERE, Ranges, progress
from ringcast.rules.findings import Stepwise, rule
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
    from ringcast.rules.evidence import Run
    from ringcast.rules.findings import Findings
    from ringcast.trace.rows import MemberKey, PairKey, Row


@rule("G1", "only what was sent is delivered, unchanged")
def integrity(run: Run, found: Findings) -> None:
    """A delivered message was sent before, by the one it names and with these bytes.

    Bytes are compared by the hashes of blocks that end at the same message. A block that one side
    did not finish, or that began before a joiner's window did, has no such row there.
    """
    found.premises = len(run.rows(DELIVER))
    prefixes = run.lives.without_tail()
    sent_by = progress(run.rows(SEND), attrgetter("own_origin"))
    for pair, delivered in progress(run.rows(DELIVER), attrgetter("pair")).items():
        sent = sent_by.get(pair[2:], NOWHERE)
        for mark, through, row in delivered:
            if sent.at(mark) >= through:
                continue
            if mark < 0 and pair[2:4] in prefixes:
                found.unknown.add(f"what {row.peer_member} sent: its tail is lost")
            else:
                found.violate(
                    f"{row.member} delivers {row.peer}:{row.run}; by then "
                    f"{row.peer} has sent up to {sent.at(mark)}",
                    *(sent.row_at(mark), row),
                )
            break
    blocks = run.rows(BLOCK)
    own = {(row.own_origin, row.block, row.seqno2): row for row in blocks if row.kind == "sent"}
    for row in blocks:
        original = own.get((row.origin, row.block, row.seqno2))
        if row.kind == "sent" or original is None:
            continue
        found.premises += 1
        if original.block_hash != row.block_hash:
            found.violate(
                f"block {row.block} of {row.peer} has other bytes at {row.member}", original, row
            )


@rule("G2", "no message is delivered twice")
def at_most_once(run: Run, found: Findings) -> None:
    """One member never delivers a message twice, also across views and re-opened windows (N2).

    Each epoch of a unicast stream numbers its messages anew.
    """
    delivered: defaultdict[tuple[PairKey, int], Ranges] = defaultdict(Ranges)
    for row in run.rows(DELIVER, UNICAST_DELIVER):
        found.premises += 1
        earlier = delivered[row.pair, row.epoch].add(row.seqno, row.seqno2, row)
        if earlier:
            found.violate(
                f"{row.member} delivers {row.peer}:{row.run}, some of it again",
                *(*earlier, row),
            )


@rule("G3", "nothing comes from a member after its crash")
def silent_dead(run: Run, found: Findings) -> None:
    """A crashed incarnation does nothing more."""
    crashes = run.by_member(CRASH)
    found.premises = len(crashes)
    done = (START, SEND, DELIVER, TX, VIEW, OPEN, PURGE, UNICAST_SEND, UNICAST_DELIVER, CONN)
    lasts = {row.key: row for row in run.rows(*done)}
    for member, (crash, *_) in crashes.items():
        last = lasts.get(member)
        if last is not None and last.idx > crash.idx:
            found.violate(f"{last.member} crashed, then: {last.event}", crash, last)


class BoundedMemory(Stepwise):
    """Every window keeps its own bounds, in messages and in bytes, and a member has at most one
    connection each way with each peer; so their sum is bounded."""

    id = "G5"
    title = "every window stays within its bounds"
    events = (WIN, UNICAST_WIN, CONN)

    def begin(self) -> None:
        self.peers: defaultdict[tuple[MemberKey, str], set[MemberKey]] = defaultdict(set)
        self.most: dict[tuple[MemberKey, str], Row] = {}
        """The row with the most connections, for each member and direction."""

    def feed(self, row: Row) -> None:
        self.found.premises += 1
        if row.event == CONN:
            table = row.key, row.kind
            self.peers[table].add(row.peer_key)
            self.most[table] = max(self.most.get(table, row), row, key=attrgetter("size"))
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

    def close(self) -> None:
        for table, row in self.most.items():
            if row.size > len(self.peers[table]):
                self.found.violate(
                    f"{row.member} has {row.size} connections with {len(self.peers[table])} peers",
                    row,
                )
