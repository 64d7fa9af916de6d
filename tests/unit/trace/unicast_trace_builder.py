"""A hand-written unicast run that keeps every rule and gives each something to judge."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trace_builder import Script

from ringcast.trace.rows import (
    CONN,
    CRASH,
    PHASE,
    RX,
    START,
    SYNC,
    TAIL,
    TICK,
    TX,
    UNDELIVERABLE,
    UNICAST_DELIVER,
    UNICAST_DROP,
    UNICAST_SEND,
    UNICAST_WIN,
    Facts,
    Trace,
)

if TYPE_CHECKING:
    from ringcast.trace.rows import Row

FACTS = Facts(
    run="by hand",
    protocol="unicast",
    tau_ns=1_000,
    delta_ns=100,
    ack_interval_ns=50,
    expiry_ns=5_000,
    close_ns=2_000,
    max_retransmit_ns=8_000,
    nack_messages_max=4,
    capacity={"a#1": 4, "b#1": 4, "c#1": 4},
    gst_ns=100,
)


@dataclass
class Side:
    """What a harness would read from an entry."""

    state: str
    epoch: int
    conn: int = 1
    low: int = 0
    hd: int = 0
    received: int = 0
    hr: int = 0


class Pairs(Script):
    """Writes what two members do to each other as the rows that a harness would write."""

    def __init__(self) -> None:
        super().__init__()
        self.sides: dict[tuple[str, str, str], Side] = {}

    def at(self, now: int) -> Pairs:
        self.now = now
        return self

    def trace(self, facts: Facts = FACTS) -> Trace:
        """The run so far: it ends now."""
        return Trace(list(self.rows), replace(facts, end_ns=self.now))

    # Entries

    def conn(self, kind: str, node: str, peer: str, state: str, **changes: Any) -> Row:
        """An entry goes to this state, with these changes."""
        key = kind, node, peer
        side = self.sides.get(key) or Side("NONE", 2)
        old, side.state = side.state, state
        self.sides[key] = side
        if state == "NONE":
            del self.sides[key]
        return self._snapshot(CONN, key, side, changes, detail=f"{old}>{state}", size=1)

    def win(self, kind: str, node: str, peer: str, **changes: Any) -> Row:
        side = self.sides[kind, node, peer]
        return self._snapshot(UNICAST_WIN, (kind, node, peer), side, changes, cap=4)

    def _snapshot(
        self, event: str, key: tuple[str, str, str], side: Side, changes: Any, **columns: Any
    ) -> Row:
        for name, value in changes.items():
            setattr(side, name, value)
        figures = {name: getattr(side, name) for name in ("epoch", "conn", "low", "hd", "hr")}
        columns |= figures | {"received": side.received}
        return self(event, key[1], kind=key[0], peer=key[2], **columns)

    def _conn_of(self, kind: str, node: str, peer: str, columns: dict[str, Any]) -> dict[str, Any]:
        side = self.sides.get((kind, node, peer)) or Side("NONE", 2)
        return {"epoch": side.epoch, "conn": side.conn} | columns

    # Frames

    def frame(self, event: str, node: str, peer: str, kind: str, **columns: Any) -> Row:
        """A frame; on the connection that its side is on, if nothing else is said."""
        is_senders = kind in ("udata", "close", "sync_ok")
        side = ("S" if is_senders else "R") if event == TX else ("R" if is_senders else "S")
        return self(event, node, peer=peer, kind=kind, **self._conn_of(side, node, peer, columns))

    def tx(self, node: str, peer: str, kind: str, **columns: Any) -> Row:
        return self.frame(TX, node, peer, kind, **columns)

    def rx(self, node: str, peer: str, kind: str, **columns: Any) -> Row:
        return self.frame(RX, node, peer, kind, **columns)

    # What members do

    def post(self, node: str, peer: str, first: int, last: int, epoch: int = 2) -> Row:
        """Send first..last, one datagram each."""
        if ("S", node, peer) not in self.sides:
            self.sides["S", node, peer] = Side("NONE", epoch)
            self.conn("S", node, peer, "OPEN", hr=last)
        side = self.sides["S", node, peer]
        conn = {"epoch": side.epoch, "conn": side.conn}
        row = self(UNICAST_SEND, node, peer=peer, seqno=first, seqno2=last, hr=first - 1, **conn)
        self.win("S", node, peer, hr=last)
        for seqno in range(first, last + 1):
            self.tx(node, peer, "udata", seqno=seqno)
        return row

    def get(self, node: str, peer: str, seqno: int, *, received: int, epoch: int = 2) -> Row:
        """A message arrives and is buffered."""
        row = self.rx(node, peer, "udata", seqno=seqno, epoch=epoch)
        if ("R", node, peer) not in self.sides:
            self.sides["R", node, peer] = Side("NONE", epoch)
            self.conn("R", node, peer, "OPEN", received=received, hr=seqno)
        side = self.sides["R", node, peer]
        self.win("R", node, peer, received=received, hr=max(side.hr, seqno))
        return row

    def take(self, node: str, peer: str, first: int, last: int) -> Row:
        columns = self._conn_of("R", node, peer, {})
        row = self(UNICAST_DELIVER, node, peer=peer, seqno=first, seqno2=last, **columns)
        if ("R", node, peer) in self.sides:
            self.win("R", node, peer, low=last, hd=last)
        return row

    def confirm(self, node: str, peer: str, hd: int) -> Row:
        return self.tx(node, peer, "uack", hd=hd)

    def heed(self, node: str, peer: str, hd: int) -> Row:
        """An ack arrives and counts."""
        self.rx(node, peer, "uack", hd=hd)
        return self.win("S", node, peer, low=hd)

    def tick(self, node: str, peer: str, again: int = 0) -> Row:
        side = self.sides["S", node, peer]
        figures = {"epoch": side.epoch, "conn": side.conn, "low": side.low, "hr": side.hr}
        row = self(TICK, node, peer=peer, again=again, **figures)
        if again:
            self.tx(node, peer, "udata", seqno=side.hr, again=1)
        return row

    def tail(self, node: str, peer: str, *seqnos: int, again: int = 0) -> Row:
        """The tail timer resends these; `again`: as many as it says."""
        side = self.sides["S", node, peer]
        figures = {"epoch": side.epoch, "conn": side.conn, "low": side.low, "hr": side.hr}
        row = self(TAIL, node, peer=peer, again=again or len(seqnos), **figures)
        for seqno in seqnos:
            self.tx(node, peer, "udata", seqno=seqno, again=1)
        return row

    def sync(self, node: str, peer: str, detail: str, nonce: int, epoch: int = 2) -> Row:
        return self(SYNC, node, peer=peer, epoch=epoch, seqno=nonce, detail=detail)


def founded() -> Pairs:
    """a, b and c are in one view."""
    run = Pairs()
    run(PHASE, "", 0, kind="warm")
    for node in "abc":
        run(START, node)
        run.view(node, 1, "abc")
    return run


def delivered() -> Pairs:
    """a sends 1 to b, and nothing goes wrong."""
    run = founded()
    run.at(200).post("a", "b", 1, 1)
    run.at(250).get("b", "a", 1, received=1)
    run.take("b", "a", 1, 1)
    run.at(300).confirm("b", "a", 1)
    run.at(350).heed("a", "b", 1)
    return run


def begun() -> Pairs:
    """a sends 1..3 to b; 2 is lost on the way, and so is the ack of all."""
    run = founded()
    run.at(200).post("a", "b", 1, 3)
    run.at(250).get("b", "a", 1, received=1)
    run.take("b", "a", 1, 1)
    run.at(260).get("b", "a", 3, received=1)
    run.at(300).confirm("b", "a", 1)
    run.at(350).heed("a", "b", 1)
    run.at(460).tx("b", "a", "unack", seqno=2)
    run.at(550).rx("a", "b", "unack", seqno=2)
    run.tx("a", "b", "udata", seqno=2, again=1)
    run.at(600).get("b", "a", 2, received=3)
    run.take("b", "a", 2, 3)
    run.at(650).confirm("b", "a", 3)
    run.at(1_200).tick("a", "b")
    return run


def acked() -> Pairs:
    """The tick makes the lost ack good; b has sent to a, too."""
    run = begun()
    run.at(1_300).post("b", "a", 1, 1)
    run.at(1_350).get("a", "b", 1, received=1)
    run.take("a", "b", 1, 1)
    run.at(1_400).confirm("a", "b", 1)
    run.at(1_450).heed("b", "a", 1)
    run.at(2_200).tick("a", "b", again=1)
    run.at(2_250).rx("b", "a", "udata", seqno=3)
    run.at(2_300).confirm("b", "a", 3)
    run.at(2_350).heed("a", "b", 3)
    return run


def asked() -> Pairs:
    """b forgets a's window; the next message finds none, and b asks."""
    run = acked()
    run.at(3_000)(UNICAST_DROP, "b", peer="a")
    run.conn("R", "b", "a", "NONE")
    run.at(3_100).post("a", "b", 4, 4)
    run.at(3_150).rx("b", "a", "udata", seqno=4)
    run.sync("b", "a", "asked", 1)
    run.at(4_100).tick("a", "b")
    run.at(4_150).tx("b", "a", "sync", seqno=1)
    return run


def answered() -> Pairs:
    """The sync is answered: both are on connection 2."""
    run = asked()
    run.at(4_200).rx("a", "b", "sync", seqno=1)
    run.conn("S", "a", "b", "OPEN", conn=2)
    run.win("S", "a", "b")
    run.tx("a", "b", "sync_ok", seqno=1, low=3, hr=4)
    run.at(4_250).rx("b", "a", "sync_ok", seqno=1, conn=2, low=3, hr=4)
    run.sync("b", "a", "answered", 1)
    run.conn("R", "b", "a", "OPEN", conn=2, low=3, hd=3, received=3, hr=3)
    run.win("R", "b", "a")
    run.tx("b", "a", "sync_ack", seqno=1)
    run.confirm("b", "a", 3)
    run.at(4_300).rx("a", "b", "sync_ack", seqno=1)
    run.rx("a", "b", "uack", hd=3)
    return run


def synced() -> Pairs:
    """Message 4 is repaired on connection 2; what is late of connection 1 changes nothing."""
    run = answered()
    run.at(4_500).tx("b", "a", "unack", seqno=4)
    run.at(4_550).rx("a", "b", "unack", seqno=4)
    run.tx("a", "b", "udata", seqno=4, again=1)
    run.at(4_600).get("b", "a", 4, received=4)
    run.take("b", "a", 4, 4)
    run.at(4_650).confirm("b", "a", 4)
    run.at(4_700).heed("a", "b", 4)
    run.at(4_750).rx("b", "a", "udata", seqno=1, conn=1)
    run.at(4_760).rx("a", "b", "uack", hd=3, conn=1)
    run.at(5_100).tick("a", "b")
    return run


def clean() -> Pairs:
    """Then c crashes and is given up, and the idle connections are closed."""
    run = synced()
    run.at(6_000)(CRASH, "c")
    run.at(6_100).post("a", "c", 1, 1, epoch=3)
    run.at(6_350).conn("R", "a", "b", "CLOSING")
    run.at(6_450).conn("S", "b", "a", "CLOSING")
    run.at(7_100).tick("a", "c")
    run.at(8_100).tick("a", "c", again=1)
    run.at(8_350).conn("R", "a", "b", "NONE")
    run.at(8_450).conn("S", "b", "a", "NONE")
    run.tx("b", "a", "close", conn=1)
    run.at(9_100).tick("a", "c", again=1)
    run.at(9_600).conn("R", "b", "a", "CLOSING")
    run.at(9_700).conn("S", "a", "b", "CLOSING")
    run.at(11_100).conn("S", "a", "c", "CLOSING")
    run.at(11_600).conn("R", "b", "a", "NONE")
    run.at(11_700).conn("S", "a", "b", "NONE")
    run.at(14_100).conn("S", "a", "c", "NONE")
    run(UNDELIVERABLE, "a", peer="c", epoch=3, seqno=1)
    run.at(20_000)(PHASE, "", 0, kind="end")
    return run.at(40_000)
