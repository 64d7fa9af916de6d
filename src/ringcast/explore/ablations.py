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
from ringcast.protocols.multicast_receiver import Timer
from ringcast.protocols.unicast import ReliableUnicast, SyncRequest
from ringcast.protocols.unicast_receiver import UnicastReceiver
from ringcast.protocols.unicast_sender import UnicastSender
from ringcast.protocols.views.halves import ViewReceiver, ViewSender
from ringcast.protocols.views.streams import ViewStreams
from ringcast.wire.frames import Close, Commit

if TYPE_CHECKING:
    from ringcast.explore.system import Scenario
    from ringcast.model import Conn, Member
    from ringcast.wire.frames import Sync, SyncOk, UnicastData

# Multicast


class SilentMulticastSender(ViewSender):
    """The probe timer runs, but nobody is told the highest seqno: a lost last message leaves no
    gap, so nobody misses it."""

    def handle_timeout(self, now: int, out: Effects) -> None:
        super().handle_timeout(now, Effects())


class OnceAckingMulticastReceiver(ViewReceiver):
    """Acknowledges what is new and nothing again: a lost last ack is never made good, so the
    sender's window never drains."""

    def on_watermark(self, seqno: int, now: int, allowance: int, out: Effects) -> None:
        is_due = self._timers.is_armed(Timer.ACK)
        super().on_watermark(seqno, now, allowance, out if is_due else Effects())

    def _on_duplicate(self, now: int) -> None:
        pass


class OpenHandedSender(ViewSender):
    """Commits what it has sent before anybody holds it."""

    def _hold(self, out: Effects) -> None:
        super()._hold(out)
        if self.window.high > self.window.gate:
            self.window.gate = self.window.high
            out.datagram(None, Commit(self.window.gate))


# Unicast


class RestlessSender(UnicastSender):
    """Every Sync makes a new connection, also one that was answered before: one lost window, any
    number of new connections."""

    def on_sync(self, sync: Sync, now: int, out: Effects) -> None:
        self.nonce = sync.nonce - 1
        super().on_sync(sync, now, out)


class CredulousSender(UnicastSender):
    """Whatever connection a receiver speaks of, it is taken for the current one: an ack of one that
    is over purges messages on the next."""

    def is_current(self, conn: Conn) -> bool:
        return True


class OnceAckingReceiver(UnicastReceiver):
    """Acknowledges what is new and nothing again: a lost last ack is never made good."""

    def _on_duplicate(self, now: int) -> None:
        pass


class SilentSender(UnicastSender):
    """Neither the tick nor the tail timer resends anything: a lost last message leaves no gap, so
    nobody misses it."""

    def _resend(self, seqno: int, out: Effects) -> None:
        pass


class SecretiveSender(UnicastSender):
    """Ends without a word: what a dead peer has not got is not reported."""

    def give_up(self, reason: str, out: Effects) -> None:
        self._step(Input.GONE)


class AnyAnswer(ReliableUnicast):
    """Any SyncOk counts, however old: the receiver goes back to a connection that the sender has
    left."""

    def _is_awaited(self, source: Member, ok: SyncOk) -> bool:
        self.sync_requests[source] = SyncRequest(ok.conn, ok.nonce, since=0)
        return True


class AnyClose(ReliableUnicast):
    """A Close counts whatever connection it speaks of."""

    def _on_close(self, source: Member, close: Close) -> None:
        entry = self.receivers.get(source)
        super()._on_close(source, close if entry is None else Close(entry.conn))


class AnyFirst(ReliableUnicast):
    """Whatever comes first opens the window."""

    def _on_data(self, source: Member, data: UnicastData, now: int, out: Effects) -> None:
        if self._known(source) is None:
            self._open(source, data.conn, data.first - 1, (), now)
        super()._on_data(source, data, now, out)


class ConfirmingOnce(ReliableUnicast):
    """A SyncOk that comes again is not confirmed again: it comes for ever."""

    def _on_sync_ok(self, source: Member, ok: SyncOk, now: int, out: Effects) -> None:
        is_awaited = self._is_awaited(source, ok)
        super()._on_sync_ok(source, ok, now, out if is_awaited else Effects())


class Ablation(NamedTuple):
    protocol: type
    scenario: Scenario
    """Where the rule is missed."""
    finding: str
    """What is found there."""


def _multicast(scenario: Scenario, finding: str, **parts: object) -> Ablation:
    """Reliable multicast with these parts in place of its own."""
    return Ablation(type("BrokenMulticast", (ViewStreams,), parts), scenario, finding)


def _unicast(scenario: Scenario, finding: str, **parts: object) -> Ablation:
    return Ablation(type("BrokenUnicast", (ReliableUnicast,), parts), scenario, finding)


_GROUP, _PAIR, _SYNC = SCENARIOS.values()
_ONE_LOST = replace(_PAIR["loss"], messages=1)
_NEVER_GOT = "a receiver counts as delivered what its application never got (S2)"
_WENT_BACK = "a receiver went back to an older connection (S6)"
_TOO_MANY = "more new connections than reasons to ask for one (Y4)"
_TWICE = "a message was delivered twice (S1, Y3)"
_UNTOLD = "a connection ended, and what it left undone is not told (S8)"
_NOT_ALL = "a uniform message was delivered before all held it (U3)"

_OF_UNICAST = {
    "ack-conn": _unicast(_PAIR["stale"], LATE_EFFECT, sender=CredulousSender),
    "close-conn": Ablation(AnyClose, _PAIR["stale"], LATE_EFFECT),
    "first": Ablation(AnyFirst, _PAIR["loss"], _NEVER_GOT),
    "nonce": _unicast(_SYNC["drop"], _TOO_MANY, sender=RestlessSender),
    # Another connection than the one at hand is taken for a newer one.
    "order": _unicast(_PAIR["stale"], _TWICE, _known=lambda self, peer: None),
    "outstanding": Ablation(AnyAnswer, replace(_SYNC["drop"], messages=1), _WENT_BACK),
    "reack": _unicast(_ONE_LOST, STALL, receiver=OnceAckingReceiver),
    "report": _unicast(_PAIR["crash"], _UNTOLD, sender=SecretiveSender),
    "resend": _unicast(_ONE_LOST, STALL, sender=SilentSender),
    "sync-ack": Ablation(ConfirmingOnce, replace(_SYNC["drop and loss"], messages=1), STALL),
    # A dropped window takes with it how far it was: what was not acknowledged comes again.
    "tombstone": _unicast(
        _SYNC["drop"], _TWICE, _delivered_before=lambda self, source, epoch: None
    ),
}

ABLATIONS = {
    "multicast": {
        "highest": _multicast(_GROUP["loss"], STALL, sending=SilentMulticastSender),
        "reack": _multicast(_GROUP["loss"], STALL, receiver=OnceAckingMulticastReceiver),
        "hold": _multicast(_GROUP["uniform"], _NOT_ALL, sending=OpenHandedSender),
    },
    "unicast": _OF_UNICAST,
    "sync": _OF_UNICAST,
}
"""By command: what is taken away → the protocol without it, and what comes of it."""
