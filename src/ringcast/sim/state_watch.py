"""What a harness sees of state transfer: who waits, which states are cut and received, and what of
its messages a joiner's application gets when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.events import Delivered, StateBegun, StateLost, StateReceived, StateWanted
from ringcast.model import Origin
from ringcast.rules.state import run_hash
from ringcast.trace import rows as trace

if TYPE_CHECKING:
    from ringcast.events import Event, FragmentsDelivered
    from ringcast.protocols.state import StateTransfer
    from ringcast.sim.application import Keeper
    from ringcast.sim.recorder import Recorder, Scribe


class StateWatch:
    """Turns what becomes of states at one node into rows, and lets its application see it all."""

    def __init__(
        self, machine: StateTransfer, keeper: Keeper, scribe: Scribe, recorder: Recorder
    ) -> None:
        self.keeper = keeper
        self._machine = machine
        self._scribe = scribe
        self._recorder = recorder
        self._is_waiting = False

    @property
    def is_behind(self) -> bool:
        """What is taken is not what the application gets."""
        return self._machine.catch_up is not None

    @property
    def is_catching_up(self) -> bool:
        """What is taken is put aside."""
        return self._machine.is_catching_up

    def observe(self) -> None:
        if self._machine.is_catching_up and not self._is_waiting:
            self._is_waiting = True
            self._scribe.write(trace.STATE_WAIT)

    def handed(self, event: Delivered | FragmentsDelivered) -> None:
        """The application gets what was taken before."""
        is_whole = isinstance(event, Delivered)
        run = event.run if isinstance(event, Delivered) else event
        self._scribe.write_about(
            trace.HANDED,
            event.sender,
            stream=int(run.stream),
            seqno=run.first,
            seqno2=run.last,
            view=event.view_id.counter,
            kind="" if is_whole else "fragment",
            block_hash=self.hash_of(event),
        )

    def hash_of(self, event: Delivered | FragmentsDelivered) -> int:
        """Of the messages that were sent under these seqnos; fragments are none."""
        if not isinstance(event, Delivered):
            return 0
        run = event.run
        sent = self._recorder.sent.get(Origin(event.sender, run.stream), {})
        return run_hash(sent.get(seqno, b"") for seqno in range(run.first, run.last + 1))

    def see(self, event: Event) -> None:
        """Whatever happens, in order."""
        try:
            self.keeper.see(event)
        except ValueError as error:
            self._recorder.find("T1", f"{self._machine.me} got a state that is none: {error}")
        match event:
            case StateWanted(transfer, joiner):
                self._scribe.write_about(trace.STATE_WANTED, joiner, seqno=transfer)
                self._write_entries()
            case StateBegun(provider, cut):
                incoming = self._machine.incoming
                assert incoming is not None
                self._scribe.write_about(trace.STATE_BEGUN, provider, seqno=incoming.transfer)
                for origin, seqno in cut.entries.items():
                    self._scribe.write_about(
                        trace.STATE_DIGEST, origin.sender, stream=int(origin.stream), seqno=seqno
                    )
            case StateReceived(provider, chunks, size):
                self._scribe.write_about(trace.STATE_RECEIVED, provider, seqno=chunks, size=size)
                self._write_entries()
            case StateLost(reason):
                self._scribe.write(trace.STATE_LOST, detail=reason)

    def refuse(self, transfer: int) -> None:
        """The application is about to refuse this one."""
        self.keeper.giving.pop(transfer, None)
        current = self._machine.giving.transfers.get(transfer)
        if current is not None:
            self._scribe.write_about(trace.STATE_REFUSED, current.joiner, seqno=transfer)

    def end(self) -> None:
        """The run is over."""
        self._scribe.write(trace.STATE_END)
        self._write_entries()

    def _write_entries(self) -> None:
        for (name, incarnation, stream), content in self.keeper.ledger.entries.items():
            self._scribe.write(
                trace.STATE_ENTRY,
                peer=name,
                peer_inc=incarnation,
                stream=stream,
                seqno=content.last,
                size=content.messages,
                block_hash=content.hash,
            )
