"""Provider: the giving half of state transfer (views/state.py), to any number of members.

On cut: the state is taken behind a view, before any message that was sent in it; the application
    finds StateWanted there. Who is given one anew gets no more of the one before.
On provide: chunks go out, as long as the taker's application is behind by less than a window.
On StateAck: it has come so far; whoever waited for room is told. All taken: that is the end.
On StateCancel, or when the taker is gone: the transfer is abandoned, and the application told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringcast.core.effects import Effects
from ringcast.errors import UsageError
from ringcast.events import Event, StateAbandoned, StateWanted, StateWritable
from ringcast.protocols.stream import seconds
from ringcast.wire.frames import StateBegin, StateData, StateEnd, StateRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.model import Digest, Member, View
    from ringcast.wire.frames import StateAck, StateCancel

CHUNK_BYTES_MAX = 1 << 20
"""The largest chunk of a state."""

WINDOW = 1 << 20
"""How far a provider may be ahead of the joiner's application: it stops behind the chunk that
passes this. Each chunk counts for its bytes and `CHUNK_OVERHEAD`."""

CHUNK_OVERHEAD = 64


@dataclass(slots=True)
class Transfer:
    """A state that this member provides."""

    number: int
    joiner: Member
    attempt: int
    """The counter of the view that it is cut at."""
    since: int
    chunks: int = 0
    size: int = 0
    sent: int = 0
    taken: int = 0
    is_blocked: bool = False
    is_ended: bool = False

    @property
    def is_full(self) -> bool:
        return self.sent - self.taken >= WINDOW


class Provider:
    """States that are being given."""

    def __init__(self) -> None:
        self.transfers: dict[int, Transfer] = {}
        self.ignored = 0  # messages that came too late
        self._numbers = 0

    # Inputs

    def cut_at(
        self, taker: Member, cut: Digest, counter: int, now: int, out: Effects
    ) -> list[Event]:
        """All that was sent before the view with this counter is in the state that it is to get,
        and nothing else. The application finds these behind that view."""
        replaced, behind_view = self._transfer_to(taker), Effects()
        if replaced is not None:
            self._abandon(replaced, f"{taker} begins anew", behind_view)
        self._numbers += 1
        self.transfers[self._numbers] = Transfer(self._numbers, taker, counter, now)
        behind_view.event(StateWanted(self._numbers, taker))
        out.message(taker, StateBegin(self._numbers, counter, cut))
        return [*behind_view.events]

    def provide(self, number: int, chunks: Sequence[bytes], out: Effects, *, is_last: bool) -> int:
        """How many chunks were accepted, from the first on; `is_last` counts if all are.

        Fewer than all: StateWritable follows when there is room, or StateAbandoned.
        """
        _check_chunks(chunks)
        transfer = self._transfer(number)
        if transfer is None:
            return 0
        accepted = 0
        for chunk in chunks:
            if transfer.is_full:
                transfer.is_blocked = True
                return accepted
            out.message(transfer.joiner, StateData(number, transfer.chunks, chunk))
            transfer.chunks += 1
            transfer.size += len(chunk)
            transfer.sent += len(chunk) + CHUNK_OVERHEAD
            accepted += 1
        if is_last:
            transfer.is_ended = True
            out.message(transfer.joiner, StateEnd(number, transfer.chunks))
        return accepted

    def give_up(self, number: int, out: Effects) -> None:
        """The application cannot provide this state, or not the rest of it."""
        transfer = self._transfer(number)
        if transfer is not None:
            del self.transfers[number]
            out.message(transfer.joiner, StateRefused(transfer.attempt))

    def on_state_ack(self, source: Member, message: StateAck, out: Effects) -> None:
        transfer = self.transfers.get(message.transfer)
        if transfer is None or transfer.joiner != source or message.taken > transfer.sent:
            self.ignored += 1
            return
        transfer.taken = max(transfer.taken, message.taken)
        if transfer.is_ended and transfer.taken == transfer.sent:
            del self.transfers[transfer.number]
        elif transfer.is_blocked and not transfer.is_full:
            transfer.is_blocked = False
            out.event(StateWritable(transfer.number))

    def on_stop(self, source: Member, stop: StateCancel, out: Effects) -> None:
        transfer = self._transfer_to(source)
        if transfer is not None and transfer.attempt == stop.attempt:
            self._abandon(transfer, f"{source} gets it from somebody else", out)
        else:
            self.ignored += 1

    def set_members(self, view: View, out: Effects) -> None:
        """Whoever is not in it needs nothing more."""
        for transfer in list(self.transfers.values()):
            if transfer.joiner not in view:
                self._abandon(transfer, f"{transfer.joiner} is gone", out)

    def close(self, reason: str, out: Effects) -> None:
        for transfer in list(self.transfers.values()):
            self._abandon(transfer, reason, out)

    # Outputs

    def stats(self) -> dict[str, object]:
        return {
            "ignored": self.ignored,
            "transfers": {
                number: {
                    "to": str(transfer.joiner),
                    "chunks": transfer.chunks,
                    "bytes": transfer.size,
                    "untaken": transfer.sent - transfer.taken,
                }
                for number, transfer in self.transfers.items()
            },
        }

    def explain(self, now: int) -> list[str]:
        reasons = []
        for transfer in self.transfers.values():
            so_far = f"for {seconds(now - transfer.since)}: {transfer.size} bytes so far"
            if transfer.is_blocked or transfer.is_ended:
                so_far += "; its application has yet to take them"
            reasons.append(f"{transfer.joiner} gets the state from here {so_far}")
        return reasons

    def check_invariants(self) -> None:
        assert len({transfer.joiner for transfer in self.transfers.values()}) == len(self.transfers)
        for transfer in self.transfers.values():
            assert 0 <= transfer.sent - transfer.taken < WINDOW + CHUNK_BYTES_MAX + CHUNK_OVERHEAD

    # Helpers

    def _abandon(self, transfer: Transfer, reason: str, out: Effects) -> None:
        del self.transfers[transfer.number]
        if not transfer.is_ended:
            out.event(StateAbandoned(transfer.number, reason))

    def _transfer(self, number: int) -> Transfer | None:
        """None: it was abandoned, and whoever provides it may not know yet."""
        transfer = self.transfers.get(number)
        if not 1 <= number <= self._numbers:
            raise UsageError(f"there is no state transfer {number}")
        if transfer is not None and transfer.is_ended:
            raise UsageError(f"state transfer {number} has been provided to its end")
        return transfer

    def _transfer_to(self, joiner: Member) -> Transfer | None:
        transfers = self.transfers.values()
        return next((transfer for transfer in transfers if transfer.joiner == joiner), None)


def _check_chunks(chunks: Sequence[bytes]) -> None:
    for chunk in chunks:
        if type(chunk) is not bytes:
            raise UsageError(f"chunks of a state are bytes, not {type(chunk).__name__}")
        if len(chunk) > CHUNK_BYTES_MAX:
            allowed = f"at most {CHUNK_BYTES_MAX} are allowed"
            raise UsageError(f"a chunk of a state has {len(chunk)} bytes: {allowed}")
