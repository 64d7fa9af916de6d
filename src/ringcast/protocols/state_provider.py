"""Provider: the giving half of state transfer (state.py), to any number of joiners.

On Admitted (this member has let joiners in): for each of them, cut here and now. Their windows have
    opened at the same place, or before. Who does not ask for its state for `UNASKED_NS` wants none.
On StateRequest: a cut that was made for this joiner will do, if it is not behind where its windows
    opened. Otherwise, once both are in the same view and all senders in it have been taken here
    that far, cut; and all who departed and have left messages that are not resolved here.
    (A joiner's windows may have opened at a place to which this member has yet to
    come; and of senders that only one of the two sees depart, they would keep different messages.)
    Who waits for its own state says so, in the same view too: by then it has got all that it will
    ever get of members that have departed.
On provide: chunks go out, as long as the joiner's application is behind by less than a window.
On StateAck: it has come so far; whoever waited for room is told. All taken: that is the end.
On StateCancel, or when the joiner is gone: the transfer is abandoned, and the application told.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import auto
from typing import TYPE_CHECKING

from ringcast.core.shared import Deadlines, Named
from ringcast.errors import UsageError
from ringcast.events import StateAbandoned, StateWanted, StateWritable
from ringcast.protocols.intake import seconds
from ringcast.wire.frames import Refusal, StateBegin, StateData, StateEnd, StateRefused

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ringcast.core.effects import Effects
    from ringcast.core.shared import Timers
    from ringcast.events import Event
    from ringcast.model import Digest, Member, View
    from ringcast.wire.frames import StateAck, StateCancel, StateRequest, SystemMessage

CHUNK_BYTES_MAX = 1 << 20
"""The largest chunk of a state."""

WINDOW = 1 << 20
"""How far a provider may be ahead of the joiner's application: it stops behind the chunk that
passes this. Each chunk counts for its bytes and `CHUNK_OVERHEAD`."""

CHUNK_OVERHEAD = 64

UNASKED_NS = 30_000_000_000
"""How long a state is kept ready for a joiner that does not ask for it."""

ASKS_MAX = 128
"""Joiners whose question waits: as many as a view has members."""


class Timer(Named):
    UNASKED = auto()
    """Some joiner has not asked for the state that was cut for it."""


@dataclass(slots=True)
class Transfer:
    """A state that this member provides."""

    number: int
    joiner: Member
    cut: Digest
    since: int
    attempt: int | None = None
    """Which question of the joiner it answers; None: it has not asked yet."""
    unsent: list[SystemMessage] = field(default_factory=list)
    """What was provided before it asked."""
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
    """States that are being given, and questions that wait for an answer."""

    def __init__(self) -> None:
        self.transfers: dict[int, Transfer] = {}
        self.asks: dict[Member, StateRequest] = {}
        """Who waits for a cut."""
        self.events: list[Event] = []
        """For the application; they have their place among its messages."""
        self.ignored = 0  # messages that came too late
        self._numbers = 0
        self.attach(Deadlines())

    def attach(self, deadlines: Deadlines) -> None:
        """Arm timers there from now on."""
        self._timers: Timers[Timer] = deadlines.owner("giving")

    # Inputs

    def cut(self, joiner: Member, cut: Digest, now: int) -> Transfer:
        """All up to here is in the state that this joiner is to get, and nothing else."""
        replaced = self._transfer_to(joiner)
        if replaced is not None:
            self._abandon(replaced, f"{joiner} begins anew")
        self._numbers += 1
        transfer = self.transfers[self._numbers] = Transfer(self._numbers, joiner, cut, now)
        self.events.append(StateWanted(transfer.number, joiner))
        self._arm()
        return transfer

    def cut_at(self, taker: Member, cut: Digest, counter: int, now: int, out: Effects) -> None:
        """All that was sent before the view with this counter is in the state that it is to get,
        and nothing else."""
        self._begin(self.cut(taker, cut, now), counter, out)

    def on_ask(self, source: Member, ask: StateRequest, view: View | None, out: Effects) -> None:
        transfer = self._transfer_to(source)
        if transfer is not None and transfer.attempt == ask.attempt:
            self.ignored += 1  # it repeats itself
        elif (
            transfer is not None
            and transfer.attempt is None
            and view is not None
            and covers(transfer.cut, ask.opened, view.members)
        ):
            self._begin(transfer, ask.attempt, out)
        elif source in self.asks or len(self.asks) < ASKS_MAX:
            self.asks[source] = ask

    def answer(
        self, view: View, cut: Digest, taken: Digest, now: int, out: Effects, *, is_waiting: bool
    ) -> None:
        """Cut for those who have asked, if this is far enough. `taken`: of all of whom more is to
        come."""
        for joiner, ask in list(self.asks.items()):
            if ask.view_id != view.id:
                continue
            if is_waiting:
                del self.asks[joiner]
                out.message(joiner, StateRefused(ask.attempt, Refusal.WAITING))
            elif covers(cut, ask.opened, (*view, *(sender for sender, _ in taken.entries))):
                del self.asks[joiner]
                self._begin(self.cut(joiner, cut, now), ask.attempt, out)

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
            self._say(transfer, StateData(number, transfer.chunks, chunk), out)
            transfer.chunks += 1
            transfer.size += len(chunk)
            transfer.sent += len(chunk) + CHUNK_OVERHEAD
            accepted += 1
        if is_last:
            transfer.is_ended = True
            self._say(transfer, StateEnd(number, transfer.chunks), out)
        return accepted

    def give_up(self, number: int, out: Effects) -> None:
        """The application cannot provide this state, or not the rest of it."""
        transfer = self._transfer(number)
        if transfer is not None:
            self._remove(transfer)
            if transfer.attempt is not None:
                out.message(transfer.joiner, StateRefused(transfer.attempt, Refusal.FAILED))

    def on_state_ack(self, source: Member, message: StateAck, out: Effects) -> None:
        transfer = self.transfers.get(message.transfer)
        if transfer is None or transfer.joiner != source or message.taken > transfer.sent:
            self.ignored += 1
            return
        transfer.taken = max(transfer.taken, message.taken)
        if transfer.is_ended and transfer.taken == transfer.sent:
            self._remove(transfer)
        elif transfer.is_blocked and not transfer.is_full:
            transfer.is_blocked = False
            out.event(StateWritable(transfer.number))

    def on_stop(self, source: Member, stop: StateCancel) -> None:
        ask, transfer = self.asks.get(source), self._transfer_to(source)
        if ask is not None and ask.attempt == stop.attempt:
            del self.asks[source]
        elif transfer is not None and transfer.attempt == stop.attempt:
            self._abandon(transfer, f"{source} gets it from somebody else")
        else:
            self.ignored += 1

    def set_members(self, view: View) -> None:
        """Whoever is not in it needs nothing more."""
        for transfer in list(self.transfers.values()):
            if transfer.joiner not in view:
                self._abandon(transfer, f"{transfer.joiner} is gone")
        self.asks = {who: ask for who, ask in self.asks.items() if who in view}

    def handle_timeout(self, now: int) -> None:
        if self._timers.take(Timer.UNASKED, now):
            for transfer in self._unasked():
                if now - transfer.since >= UNASKED_NS:
                    self._abandon(transfer, f"{transfer.joiner} does not ask for it")
            self._arm()

    def close(self, reason: str) -> None:
        self.asks.clear()
        for transfer in list(self.transfers.values()):
            self._abandon(transfer, reason)

    # Outputs

    def take_events(self) -> list[Event]:
        events, self.events = self.events, []
        return events

    def stats(self) -> dict[str, object]:
        return {
            "asks": len(self.asks),
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
            if transfer.attempt is None:
                so_far += "; it has not asked for it yet"
            elif transfer.is_blocked or transfer.is_ended:
                so_far += "; its application has yet to take them"
            reasons.append(f"{transfer.joiner} gets the state from here {so_far}")
        return reasons + [
            f"{joiner} wants the state from here, which has yet to come to where its windows opened"
            for joiner in self.asks
        ]

    def check_invariants(self) -> None:
        assert len({transfer.joiner for transfer in self.transfers.values()}) == len(self.transfers)
        assert len(self.asks) <= ASKS_MAX
        assert self._timers.is_armed(Timer.UNASKED) == bool(self._unasked())
        for transfer in self.transfers.values():
            assert 0 <= transfer.sent - transfer.taken < WINDOW + CHUNK_BYTES_MAX + CHUNK_OVERHEAD
            assert not transfer.unsent or transfer.attempt is None

    # Helpers

    def _begin(self, transfer: Transfer, attempt: int, out: Effects) -> None:
        transfer.attempt = attempt
        out.message(transfer.joiner, StateBegin(transfer.number, attempt, transfer.cut))
        for message in transfer.unsent:
            out.message(transfer.joiner, message)
        transfer.unsent.clear()
        self._arm()

    def _say(self, transfer: Transfer, message: SystemMessage, out: Effects) -> None:
        if transfer.attempt is None:
            transfer.unsent.append(message)
        else:
            out.message(transfer.joiner, message)

    def _abandon(self, transfer: Transfer, reason: str) -> None:
        self._remove(transfer)
        if not transfer.is_ended:
            self.events.append(StateAbandoned(transfer.number, reason))

    def _remove(self, transfer: Transfer) -> None:
        del self.transfers[transfer.number]
        self._arm()

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

    def _unasked(self) -> list[Transfer]:
        return [transfer for transfer in self.transfers.values() if transfer.attempt is None]

    def _arm(self) -> None:
        since = min((transfer.since for transfer in self._unasked()), default=None)
        if since is None:
            self._timers.disarm(Timer.UNASKED)
        else:
            self._timers.arm(Timer.UNASKED, since + UNASKED_NS)


def covers(cut: Digest, opened: Digest, senders: Collection[Member]) -> bool:
    """Whether it reaches every place where windows of these senders have opened."""
    return all(
        cut.entries.get(origin, 0) >= seqno
        for origin, seqno in opened.entries.items()
        if origin.sender in senders
    )


def _check_chunks(chunks: Sequence[bytes]) -> None:
    for chunk in chunks:
        if type(chunk) is not bytes:
            raise UsageError(f"chunks of a state are bytes, not {type(chunk).__name__}")
        if len(chunk) > CHUNK_BYTES_MAX:
            allowed = f"at most {CHUNK_BYTES_MAX} are allowed"
            raise UsageError(f"a chunk of a state has {len(chunk)} bytes: {allowed}")
