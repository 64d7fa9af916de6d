"""BROKEN on purpose, not for use: reliable multicast with one of its rules taken away.

Each shows that the rule is needed: the exploration finds the stall that it prevents. What cannot
stall without its rule would be a rule too many, or an exploration that sees too little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ringcast.core.effects import Effects
from ringcast.protocols.multicast import ReliableMulticast
from ringcast.protocols.multicast_receiver import MulticastReceiver, Timer
from ringcast.protocols.multicast_sender import MulticastSender

if TYPE_CHECKING:
    from collections.abc import Mapping


class SilentMulticastSender(MulticastSender):
    """BROKEN. The probe timer runs, but nobody is told the highest seqno."""

    def handle_timeout(self, now: int, out: Effects) -> None:
        super().handle_timeout(now, Effects())


class WithoutWatermark(ReliableMulticast):
    """BROKEN. A lost last message leaves no gap, so nobody misses it."""

    sending: ClassVar[type[MulticastSender]] = SilentMulticastSender


class OnceAckingReceiver(MulticastReceiver):
    """BROKEN. Acknowledges what is new and nothing again."""

    def on_watermark(self, seqno: int, now: int, allowance: int, out: Effects) -> None:
        is_due = self._timers.is_armed(Timer.ACK)
        super().on_watermark(seqno, now, allowance, out if is_due else Effects())

    def _on_duplicate(self, now: int) -> None:
        pass


class WithoutReack(ReliableMulticast):
    """BROKEN. A lost last ack is never made good, so the sender's window never drains."""

    receiver: ClassVar[type[MulticastReceiver]] = OnceAckingReceiver


ABLATIONS: Mapping[str, type[ReliableMulticast]] = {
    "highest": WithoutWatermark,
    "reack": WithoutReack,
}
"""What is taken away → the protocol without it. The freeze is not the protocol's but the
coordinator's: `Scenario.digest_first`."""
