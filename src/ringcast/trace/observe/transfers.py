"""State transfer in a simulated run: who waits, which states are cut and received, and what of its
messages a joiner's application gets when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringcast.events import Delivered, StateBegun, StateLost, StateReceived, StateWanted
from ringcast.rules.state import run_hash
from ringcast.trace import rows as trace
from ringcast.trace.observe.messages import origin_of, range_of
from ringcast.trace.rows import about, naming, naming_id

if TYPE_CHECKING:
    from ringcast.events import Event, FragmentsDelivered
    from ringcast.model import ViewId
    from ringcast.protocols.views.state import StateTransfer
    from ringcast.trace.observe.sink import Contents, Keeper, Sink


@dataclass(slots=True)
class Transfers:
    """Turns what becomes of states at one node into rows, and lets its application see it all."""

    machine: StateTransfer
    keeper: Keeper
    sink: Sink
    contents: Contents
    taken_at: ViewId | None = None
    """The view at whose cut the state is taken that is on its way."""
    is_waiting: bool = False

    def look(self, now: int) -> None:
        if self.machine.is_behind and not self.is_waiting:
            self.sink.write(trace.STATE_WAIT, now)
        self.is_waiting = self.machine.is_behind

    def handed(self, event: Delivered | FragmentsDelivered, now: int) -> None:
        """The application gets what was taken before."""
        columns = naming(origin_of(event)) | range_of(event)
        self.sink.write(trace.HANDED, now, **columns, block_hash=self.hash_of(event))

    def hash_of(self, event: Delivered | FragmentsDelivered) -> int:
        """Of the messages that were sent under these seqnos; fragments are none."""
        if not isinstance(event, Delivered):
            return 0
        run = event.run
        sent = self.contents.sent.get(origin_of(event), {})
        return run_hash(sent.get(seqno, b"") for seqno in range(run.first, run.last + 1))

    def see(self, event: Event, now: int) -> None:
        """Whatever happens, in order."""
        try:
            self.keeper.see(event)
        except ValueError as error:
            self.contents.find("T1", f"{self.machine.me} got a state that is none: {error}")
        write = self.sink.write
        match event:
            case StateWanted(transfer, joiner):
                write(trace.STATE_WANTED, now, **about(joiner), seqno=transfer)
                self._write_entries(now)
            case StateBegun(provider):
                incoming = self.machine.taking.incoming
                assert incoming is not None
                write(trace.STATE_BEGUN, now, **about(provider), seqno=incoming.transfer)
            case StateReceived(provider, chunks, size):
                assert self.taken_at is not None
                columns = {**about(provider), **naming_id(self.taken_at)}
                write(trace.STATE_RECEIVED, now, **columns, seqno=chunks, size=size)
                self._write_entries(now)
            case StateLost(reason):
                at = {} if self.taken_at is None else naming_id(self.taken_at)
                write(trace.STATE_LOST, now, detail=reason, **at)

    def refuse(self, transfer: int, now: int) -> None:
        """The application is about to refuse this one."""
        current = self.machine.giving.transfers.get(transfer)
        if current is not None:
            self.sink.write(trace.STATE_REFUSED, now, **about(current.joiner), seqno=transfer)

    def end(self, now: int) -> None:
        """The run is over."""
        self.sink.write(trace.STATE_END, now)
        self._write_entries(now)

    def _write_entries(self, now: int) -> None:
        for (name, incarnation, stream), content in self.keeper.entries.items():
            origin = {"peer": name, "peer_inc": incarnation, "stream": stream}
            figures = {"seqno": content.last, "size": content.messages}
            self.sink.write(trace.STATE_ENTRY, now, **origin, **figures, block_hash=content.hash)
