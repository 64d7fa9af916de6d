"""BROKEN on purpose, not for use: protocols with one of their rules taken away.

Each shows that its rule is needed: the exploration finds what it prevents. What goes well without
its rule would be a rule too many, or an exploration that sees too little.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ringcast.core.effects import Effects
from ringcast.explore.explorer import STALL
from ringcast.explore.scenarios import SCENARIOS
from ringcast.explore.unicast import LATE_EFFECT
from ringcast.protocols.connection import Input
from ringcast.protocols.multicast_receiver import MulticastReceiver
from ringcast.protocols.multicast_sender import MulticastSender
from ringcast.protocols.stream import Timer
from ringcast.protocols.unicast import ReliableUnicast, SyncRequest
from ringcast.protocols.unicast_receiver import UnicastReceiver
from ringcast.protocols.unicast_sender import UnicastSender
from ringcast.protocols.views.streams import ViewStreams
from ringcast.wire.frames import Close, Commit

if TYPE_CHECKING:
    from ringcast.explore.system import Scenario
    from ringcast.model import Member
    from ringcast.wire.frames import Sync, SyncOk, UnicastData


def broken(base: type, **parts: object) -> type:
    """A class with these attributes in place of its own."""
    return type(f"Broken{base.__name__}", (base,), parts)


def _nothing(*_: object) -> None:
    """What this method does is taken away."""


def _ack_once(self: MulticastReceiver, seqno: int, now: int, allowance: int, out: Effects) -> None:
    is_due = self._timers.is_armed(Timer.ACK)
    MulticastReceiver.on_watermark(self, seqno, now, allowance, out if is_due else Effects())


def _commit_at_once(self: MulticastSender, out: Effects) -> None:
    MulticastSender._hold(self, out)
    if self.window.high > self.window.gate:
        self.window.gate = self.window.high
        out.datagram(None, Commit(self.window.gate))


def _answer_again(self: UnicastSender, sync: Sync, now: int, out: Effects) -> None:
    self.nonce = sync.nonce - 1
    UnicastSender.on_sync(self, sync, now, out)


def _await_any(self: ReliableUnicast, source: Member, ok: SyncOk) -> bool:
    self.sync_requests[source] = SyncRequest(ok.conn, ok.nonce, since=0)
    return True


def _close_any(self: ReliableUnicast, source: Member, close: Close) -> None:
    entry = self.receivers.get(source)
    ReliableUnicast._on_close(self, source, close if entry is None else Close(entry.conn))


def _open_with_any(
    self: ReliableUnicast, source: Member, data: UnicastData, now: int, out: Effects
) -> None:
    if self._known(source) is None:
        self._open(source, data.conn, data.first - 1, (), now)
    ReliableUnicast._on_data(self, source, data, now, out)


def _confirm_once(
    self: ReliableUnicast, source: Member, ok: SyncOk, now: int, out: Effects
) -> None:
    is_awaited = self._is_awaited(source, ok)
    ReliableUnicast._on_sync_ok(self, source, ok, now, out if is_awaited else Effects())


class Ablation(NamedTuple):
    protocol: type
    scenario: Scenario
    """Where the rule is missed."""
    finding: str
    """What is found there."""


def _sending(scenario: Scenario, finding: str, **parts: object) -> Ablation:
    """Multicast whose senders have these parts in place of their own."""
    sending = broken(MulticastSender, **parts)
    return Ablation(broken(ViewStreams, sending=sending), scenario, finding)


def _unicast(scenario: Scenario, finding: str, **parts: object) -> Ablation:
    return Ablation(broken(ReliableUnicast, **parts), scenario, finding)


def _sender(scenario: Scenario, finding: str, **parts: object) -> Ablation:
    return _unicast(scenario, finding, sender=broken(UnicastSender, **parts))


_PROBE = MulticastSender.handle_timeout
_GROUP, _PAIR, _SYNC = SCENARIOS.values()
_ONE_LOST = replace(_PAIR["loss"], messages=1)
_NEVER_GOT = "a receiver counts as delivered what its application never got (S2)"
_WENT_BACK = "a receiver went back to an older connection (S6)"
_TOO_MANY = "more new connections than reasons to ask for one (Y4)"
_TWICE = "a message was delivered twice (S1, Y3)"
_UNTOLD = "a connection ended, and what it left undone is not told (S8)"
_NOT_ALL = "a uniform message was delivered before all held it (U3)"

_OF_UNICAST = {
    # Whatever connection a receiver speaks of, it is taken for the current one: an ack of one that
    # is over purges messages on the next.
    "ack-conn": _sender(_PAIR["stale"], LATE_EFFECT, is_current=lambda self, conn: True),
    # A Close counts whatever connection it speaks of.
    "close-conn": _unicast(_PAIR["stale"], LATE_EFFECT, _on_close=_close_any),
    # Whatever comes first opens the window.
    "first": _unicast(_PAIR["loss"], _NEVER_GOT, _on_data=_open_with_any),
    # Every Sync makes a new connection, also one that was answered before: one lost window, any
    # number of new connections.
    "nonce": _sender(_SYNC["drop"], _TOO_MANY, on_sync=_answer_again),
    # Another connection than the one at hand is taken for a newer one.
    "order": _unicast(_PAIR["stale"], _TWICE, _known=lambda self, peer: None),
    # Any SyncOk counts, however old: the receiver goes back to a connection that the sender has
    # left.
    "outstanding": _unicast(replace(_SYNC["drop"], messages=1), _WENT_BACK, _is_awaited=_await_any),
    # What is new is acknowledged and nothing again: a lost last ack is never made good.
    "reack": _unicast(_ONE_LOST, STALL, receiver=broken(UnicastReceiver, _on_duplicate=_nothing)),
    # Ends without a word: what a dead peer has not got is not reported.
    "report": _sender(
        _PAIR["crash"], _UNTOLD, give_up=lambda self, reason, out: self._step(Input.GONE)
    ),
    # Neither the tick nor the tail timer resends anything: a lost last message leaves no gap, so
    # nobody misses it.
    "resend": _sender(_ONE_LOST, STALL, _resend=_nothing),
    # A SyncOk that comes again is not confirmed again: it comes for ever.
    "sync-ack": _unicast(
        replace(_SYNC["drop and loss"], messages=1), STALL, _on_sync_ok=_confirm_once
    ),
    # A dropped window takes with it how far it was: what was not acknowledged comes again.
    "tombstone": _unicast(
        _SYNC["drop"], _TWICE, _delivered_before=lambda self, source, epoch: None
    ),
}

ABLATIONS = {
    "multicast": {
        # The probe timer runs, but nobody is told the highest seqno: a lost last message leaves no
        # gap, so nobody misses it.
        "highest": _sending(
            _GROUP["loss"],
            STALL,
            handle_timeout=lambda self, now, _: _PROBE(self, now, Effects()),
        ),
        # A lost last ack is never made good, so the sender's window never drains.
        "reack": Ablation(
            broken(
                ViewStreams,
                receiver=broken(MulticastReceiver, on_watermark=_ack_once, _on_duplicate=_nothing),
            ),
            _GROUP["loss"],
            STALL,
        ),
        # What is sent is committed before anybody holds it.
        "hold": _sending(_GROUP["uniform"], _NOT_ALL, _hold=_commit_at_once),
    },
    "unicast": _OF_UNICAST,
    "sync": _OF_UNICAST,
}
"""By command: what is taken away → the protocol without it, and what comes of it."""
