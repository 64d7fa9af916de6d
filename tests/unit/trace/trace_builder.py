"""A hand-written run that keeps every rule and gives each of them something to judge."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ringcast.trace.rows import (
    ACKMAP,
    BLOCK,
    CRASH,
    DELIVER,
    DROP_WINDOW,
    FREEZE,
    OPEN,
    PHASE,
    PURGE,
    RX,
    SEND,
    SEND_BLOCK,
    SEND_UNBLOCK,
    SHOWN,
    START,
    TX,
    VIEW,
    WIN,
    Facts,
    Row,
    Trace,
)

FACTS = Facts(
    run="by hand",
    seed=7,
    tau_ns=1_000,
    delta_ns=100,
    ack_delay_ns=50,
    nack_messages_max=1,
    capacity={"a#1": 2, "b#1": 2, "c#1": 2, "d#1": 2},
    gst_ns=100,
    end_ns=40_000,
)


class Script:
    """Writes rows and numbers them: `idx` per member, `run_idx` over the run."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.now = 0
        self.installed: dict[str, Row] = {}
        self.shown: dict[str, Row] = {}
        self._written: Counter[tuple[str, int]] = Counter()

    def __call__(self, event: str, node: str, inc: int = 1, **columns: Any) -> Row:
        if columns.get("peer"):
            columns.setdefault("peer_inc", 1)
        if "seqno" in columns:
            columns.setdefault("seqno2", columns["seqno"])
        row = Row(
            event,
            node,
            inc,
            self._written[node, inc],
            len(self.rows),
            self.now,
            **columns,
        )
        self._written[node, inc] += 1
        self.rows.append(row)
        return row

    def view(self, node: str, counter: int, members: str, part: str = "") -> Row:
        """The node installs it, and its application is told."""
        row = self.install(node, counter, members, part)
        self.show(node)
        return row

    def freeze(self, node: str, counter: int, members: str, creator: str = "a") -> Row:
        return self(FREEZE, node, **naming(counter, creator), members=keys(members))

    def install(
        self, node: str, counter: int, members: str, part: str = "", creator: str = "a", **cut: int
    ) -> Row:
        """`part`: who comes together with it; if it is not given, all who were in its last view.
        `cut`: where each of them ends."""
        before = self.installed.get(node)
        last = () if before is None else before.members
        together = keys(part) or tuple(key for key in keys(members) if key in last) or keys(node)
        cuts = tuple(f"{key}#1 0 {seqno}" for key, seqno in sorted(cut.items()))
        columns = {**naming(counter, creator), "members": keys(members)}
        self.installed[node] = self(VIEW, node, **columns, part=together, cut=cuts)
        return self.installed[node]

    def show(self, node: str) -> Row:
        view = self.installed[node]
        columns = {"view": view.view, "view_creator": view.view_creator}
        self.shown[node] = self(SHOWN, node, **columns)
        return self.shown[node]

    def _in(self, row: Row | None) -> dict[str, Any]:
        return {} if row is None else {"view": row.view, "view_creator": row.view_creator}

    def open(self, node: str, peer: str, offset: int, stream: int = 0) -> Row:
        view = self._in(self.installed.get(node))
        return self(OPEN, node, peer=peer, stream=stream, seqno=offset, **view)

    def send(self, node: str, first: int, last: int, low: int = 0, stream: int = 0) -> Row:
        columns = {"low": low, "hr": first - 1, "cap": 2, **self._in(self.installed.get(node))}
        return self(SEND, node, stream=stream, seqno=first, seqno2=last, **columns)

    def deliver(self, node: str, peer: str, first: int, last: int, stream: int = 0) -> Row:
        view = self._in(self.shown.get(node))
        return self(DELIVER, node, peer=peer, stream=stream, seqno=first, seqno2=last, **view)

    def ack(self, node: str, peer: str, received: int, hd: int) -> Row:
        return self(TX, node, peer=peer, stream=0, kind="ack", received=received, hd=hd)

    def purge(self, node: str, through: int, hd: int) -> Row:
        return self(PURGE, node, stream=0, seqno=through, hd=hd, used=0, limit=1_000)

    def ackers(self, node: str, members: str) -> Row:
        return self(ACKMAP, node, stream=0, members=tuple(f"{member}#1" for member in members))

    def block(self, node: str, low: int, hr: int, **columns: Any) -> Row:
        columns = {"detail": "messages", "size": 10, "used": 20, "limit": 1_000} | columns
        return self(SEND_BLOCK, node, stream=0, low=low, hr=hr, cap=2, **columns)

    def trace(self, facts: Facts = FACTS) -> Trace:
        return Trace(list(self.rows), facts)


def keys(names: str) -> tuple[str, ...]:
    return tuple(f"{name}#1" for name in names)


def naming(counter: int, creator: str) -> dict[str, Any]:
    return {"view": counter, "view_creator": f"{creator}#1"}


def founded() -> Script:
    """a, b and c are in view 1 and have opened windows for each other."""
    script = Script()
    script(PHASE, "", 0, kind="warm")
    for node in "abc":
        script(START, node)
        script.view(node, 1, "abc")
        for peer in "abc".replace(node, ""):
            script.open(node, peer, 0)
    return script


def clean() -> Script:
    """c crashes while a is blocked; the view without c frees a; d joins; the group heals."""
    script = founded()
    script.now = 10
    script.send("a", 1, 2, low=0)
    script(TX, "a", stream=0, kind="data", seqno=1, seqno2=2)
    script.deliver("a", "a", 1, 2)
    script.block("a", low=0, hr=2)
    script.send("c", 1, 1, low=0)
    for node in "abc":
        script.deliver(node, "c", 1, 1)
    script.deliver("c", "a", 1, 1)
    script.now = 20
    script(CRASH, "c")
    script(RX, "b", peer="a", stream=0, kind="data", seqno=1)
    script(WIN, "b", peer="a", stream=0, kind="receive", low=0, hd=0, received=1, hr=2, cap=2)
    script.deliver("b", "a", 1, 1)
    script.ack("b", "a", 1, 1)
    script(TX, "b", peer="a", stream=0, kind="nack", seqno=2)
    script(TX, "a", peer="b", stream=0, kind="data", seqno=2, again=1)

    script.now = 40
    script.freeze("a", 2, "ab")
    script.freeze("b", 2, "ab")
    script.view("a", 2, "ab")
    script(DROP_WINDOW, "a", peer="c", stream=0)
    script.ackers("a", "ab")
    script.purge("a", 1, hd=2)
    script(SEND_UNBLOCK, "a", stream=0)
    script(WIN, "a", kind="send", stream=0, low=1, hd=2, hr=2, cap=2, size=10, limit=1_000)
    script.install("b", 2, "ab")
    script.deliver("b", "a", 2, 2)
    script.show("b")

    script.now = 50
    script(START, "d")
    for node in "abd":
        script.view(node, 3, "abd")
    script.ackers("a", "abd")
    script.open("d", "a", 2)
    script.open("d", "b", 0)
    script.open("a", "d", 0)
    script.open("b", "d", 0)

    script.now = 60
    script.ack("d", "a", 2, 2)
    script.ack("b", "a", 2, 2)
    script.purge("a", 2, hd=2)

    script.now = 110
    script.send("a", 3, 4, low=2)
    script.deliver("a", "a", 3, 4)
    script(BLOCK, "a", peer="a", stream=0, kind="sent", block=0, block_hash=0xABCD)
    script.deliver("b", "a", 3, 4)
    script(BLOCK, "b", peer="a", stream=0, kind="delivered", block=0, block_hash=0xABCD)
    script.ack("b", "a", 4, 4)
    script.now = 1_110
    script.deliver("d", "a", 3, 4)
    script.ack("d", "a", 4, 4)
    script.now = 1_200
    script.purge("a", 4, hd=4)
    script.now = 20_000
    script(PHASE, "", 0, kind="end")
    return script
