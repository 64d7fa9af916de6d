"""BROKEN on purpose, not for use: reliable unicast with one of its rules taken away.

Each shows that the rule is needed: the exploration finds what it prevents. What goes well without
its rule would be a rule too many, or an exploration that sees too little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from ringcast.core.effects import Effects
from ringcast.explore.unicast import CRASH, DROP, DROP_AND_LOSS, LOSS, STALE
from ringcast.protocols.connection import Input
from ringcast.protocols.unicast import ReliableUnicast, SyncRequest
from ringcast.protocols.unicast_receiver import UnicastReceiver
from ringcast.protocols.unicast_sender import UnicastSender
from ringcast.wire.frames import Close

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ringcast.explore.unicast import Scenario
    from ringcast.model import Conn, Member
    from ringcast.wire.frames import Sync, SyncOk, UnicastData


class RestlessSender(UnicastSender):
    """BROKEN. Every Sync makes a new connection, also one that was answered before."""

    def on_sync(self, sync: Sync, now: int, out: Effects) -> None:
        self.nonce = sync.nonce - 1
        super().on_sync(sync, now, out)


class WithoutNonce(ReliableUnicast):
    """BROKEN. A duplicate Sync ends a connection that was just agreed on: one lost window, any
    number of new connections."""

    sender: ClassVar[type[UnicastSender]] = RestlessSender


class WithoutOutstanding(ReliableUnicast):
    """BROKEN. Any SyncOk counts, however old: the receiver goes back to a connection that the
    sender has left."""

    def _is_awaited(self, source: Member, ok: SyncOk) -> bool:
        self.sync_requests[source] = SyncRequest(ok.conn, ok.nonce, since=0)
        return True


class WithoutTombstone(ReliableUnicast):
    """BROKEN. A dropped window takes with it how far it was: what was not acknowledged is
    delivered again."""

    def _delivered_before(self, source: Member, epoch: int) -> int | None:
        return None


class CredulousSender(UnicastSender):
    """BROKEN. Whatever connection a receiver speaks of, it is taken for the current one."""

    def is_current(self, conn: Conn) -> bool:
        return True


class WithoutAckConn(ReliableUnicast):
    """BROKEN. An ack of a connection that is over purges messages on the next one."""

    sender: ClassVar[type[UnicastSender]] = CredulousSender


class OnceAckingReceiver(UnicastReceiver):
    """BROKEN. Acknowledges what is new and nothing again."""

    def _on_duplicate(self, now: int) -> None:
        pass


class WithoutReack(ReliableUnicast):
    """BROKEN. A lost last ack is never made good."""

    receiver: ClassVar[type[UnicastReceiver]] = OnceAckingReceiver


class SilentSender(UnicastSender):
    """BROKEN. Neither the tick nor the tail timer resends anything."""

    def _resend(self, seqno: int, out: Effects) -> None:
        pass


class WithoutResend(ReliableUnicast):
    """BROKEN. A lost last message leaves no gap, so nobody misses it."""

    sender: ClassVar[type[UnicastSender]] = SilentSender


class WithoutCloseConn(ReliableUnicast):
    """BROKEN. A Close counts whatever connection it speaks of."""

    def _on_close(self, source: Member, close: Close) -> None:
        entry = self.receivers.get(source)
        super()._on_close(source, close if entry is None else Close(entry.conn))


class WithoutFirst(ReliableUnicast):
    """BROKEN. Whatever comes first opens the window."""

    def _on_data(self, source: Member, data: UnicastData, now: int, out: Effects) -> None:
        if self._known(source) is None:
            self._open(source, data.conn, data.first - 1, (), now)
        super()._on_data(source, data, now, out)


class WithoutOrder(ReliableUnicast):
    """BROKEN. Another connection than the one at hand is taken for a newer one."""

    def _known(self, peer: Member) -> Conn | None:
        return None


class WithoutSyncAck(ReliableUnicast):
    """BROKEN. A SyncOk that comes again is not confirmed again: it comes for ever."""

    def _on_sync_ok(self, source: Member, ok: SyncOk, now: int, out: Effects) -> None:
        is_awaited = self._is_awaited(source, ok)
        super()._on_sync_ok(source, ok, now, out if is_awaited else Effects())


class SecretiveSender(UnicastSender):
    """BROKEN. Ends without a word."""

    def give_up(self, reason: str, out: Effects) -> None:
        self._step(Input.GONE)


class WithoutReport(ReliableUnicast):
    """BROKEN. What a dead peer has not got is not reported."""

    sender: ClassVar[type[UnicastSender]] = SecretiveSender


class Ablation(NamedTuple):
    unicast: type[ReliableUnicast]
    scenario: Scenario
    """Where the rule is missed."""


UNICAST_ABLATIONS: Mapping[str, Ablation] = {
    "ack-conn": Ablation(WithoutAckConn, STALE),
    "close-conn": Ablation(WithoutCloseConn, STALE),
    "first": Ablation(WithoutFirst, LOSS),
    "nonce": Ablation(WithoutNonce, DROP),
    "order": Ablation(WithoutOrder, STALE),
    "outstanding": Ablation(WithoutOutstanding, DROP),
    "reack": Ablation(WithoutReack, LOSS),
    "report": Ablation(WithoutReport, CRASH),
    "resend": Ablation(WithoutResend, LOSS),
    "sync-ack": Ablation(WithoutSyncAck, DROP_AND_LOSS),
    "tombstone": Ablation(WithoutTombstone, DROP),
}
"""What is taken away → the protocol without it."""
