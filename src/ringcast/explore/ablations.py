"""BROKEN on purpose, not for use: protocols with one of their rules taken away.

Each shows that its rule is needed: the exploration finds what it prevents. What goes well without
its rule would be a rule too many, or an exploration that sees too little.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ringcast.core.effects import DigestWanted, Effects
from ringcast.explore.explorer import STALL
from ringcast.explore.scenarios import SCENARIOS
from ringcast.explore.unicast import LATE_EFFECT
from ringcast.explore.uniform import THROWN_AWAY
from ringcast.model import Origin, Stream
from ringcast.protocols.connection import Input
from ringcast.protocols.membership import Membership
from ringcast.protocols.multicast import ReliableMulticast
from ringcast.protocols.multicast_receiver import MulticastReceiver, Timer
from ringcast.protocols.multicast_sender import MulticastSender
from ringcast.protocols.unicast import ReliableUnicast, SyncRequest
from ringcast.protocols.unicast_receiver import UnicastReceiver
from ringcast.protocols.unicast_sender import UnicastSender
from ringcast.protocols.uniform import Uniform
from ringcast.wire.frames import Close, ReceivedRange, Stage, Standing, Takeover

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ringcast.config import MulticastConfig
    from ringcast.explore.system import Scenario
    from ringcast.model import Conn, Digest, Member, View
    from ringcast.window.windows import ReceiveWindow
    from ringcast.wire.frames import Ack, Commit, Data, Frame, Sync, SyncOk, UnicastData

# Multicast and membership


class SilentMulticastSender(MulticastSender):
    """The probe timer runs, but nobody is told the highest seqno: a lost last message leaves no
    gap, so nobody misses it."""

    def handle_timeout(self, now: int, out: Effects) -> None:
        super().handle_timeout(now, Effects())


class OnceAckingMulticastReceiver(MulticastReceiver):
    """Acknowledges what is new and nothing again: a lost last ack is never made good, so the
    sender's window never drains."""

    def on_watermark(self, seqno: int, now: int, allowance: int, out: Effects) -> None:
        is_due = self._timers.is_armed(Timer.ACK)
        super().on_watermark(seqno, now, allowance, out if is_due else Effects())

    def _on_duplicate(self, now: int) -> None:
        pass


class EarlyDigest(Membership):
    """The digest is taken when the view is made, before anybody has it."""

    _early: Digest | None = None

    def _spread(
        self,
        view: View,
        parts: tuple[View, ...],
        old: View,
        joiners: dict[Member, None],
        now: int,
        out: Effects,
    ) -> None:
        self._early = None
        out.signal(DigestWanted(tuple(joiners)))
        super()._spread(view, parts, old, joiners, now, out)

    def _on_digest(self, digest: Digest, taken: Digest, now: int, out: Effects) -> None:
        if self._early is None:
            self._early = digest
        super()._on_digest(self._early, taken, now, out)


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


# Uniform delivery


class Forgetful(Uniform):
    """That a sender is resolved is said once: who missed it keeps that orphaned stream for ever."""

    def on_standing(self, source: Member, told: Standing, now: int, out: Effects) -> None:
        if not any(share.sender in self._round.resolved for share in told.shares):
            super().on_standing(source, told, now, out)


class Stubborn(Uniform):
    """A taker goes on after a view where it was before: it waits for what only somebody had who has
    died since."""

    def _begin_anew(self) -> None:
        if not self._is_taker:
            super()._begin_anew()


class HearsTheDeparted(ReliableMulticast):
    """What a departed sender still has under way counts."""

    def _on_data(self, source: Member, data: Data, now: int, out: Effects) -> None:
        window = self._estate_window(source)
        if window is not None and data.stream is Stream.UNIFORM:
            window.add_run(data.first, data.payloads)
        else:
            super()._on_data(source, data, now, out)

    def _on_commit(self, source: Member, commit: Commit, now: int) -> None:
        window = self._estate_window(source)
        if window is not None:
            window.open_gate(commit.seqno)
        else:
            super()._on_commit(source, commit, now)

    def _estate_window(self, sender: Member) -> ReceiveWindow | None:
        estate = self.uniform.estates.get(sender)
        return None if estate is None else estate.window


class Hasty(Uniform):
    """A taker commits before all hold what is committed: it delivers what nobody else has, and
    dies."""

    def _step(self, sender: Member, out: Effects) -> bool:
        estate = self.estates[sender]
        if estate.stage is Stage.HOLD and estate.window is not None and estate.goal is not None:
            estate.stage = Stage.COMMIT
            estate.window.open_gate(estate.goal)
            return True
        return super()._step(sender, out)


class OpenHandedSender(MulticastSender):
    """Commits what it has sent before anybody holds it."""

    def _hold(self, out: Effects) -> None:
        super()._hold(out)
        if self.window.high > self.window.gate:
            self.window.gate = self.window.high
            out.datagram(None, self.commitment())


class LateCountingSender(MulticastSender):
    """New members do not count until their first ack comes: the sender purges what a joiner is
    about to need."""

    def set_members(self, view: View, reunited: Collection[Member], now: int, out: Effects) -> None:
        known = [member for member, _, _ in self.acks.entries()]
        super().set_members(view, reunited, now, out)
        self.acks.set_members([who for who in view if who in known], self.window.low)
        self._commit(out)
        self._purge(now, out)

    def on_ack(self, source: Member, ack: Ack, now: int, out: Effects) -> None:
        known = [member for member, _, _ in self.acks.entries()]
        if source not in known:
            self.acks.set_members([*known, source], ack.delivered)
        super().on_ack(source, ack, now, out)

    def check_invariants(self, view: View) -> None:
        self.window.check_invariants()


class FoundersSender(MulticastSender):
    """Commits what the members of its first view hold: what is delivered may be unknown to a
    joiner, and it may be the last to survive."""

    def __init__(self, me: Member, stream: Stream, config: MulticastConfig, view: View, *rest: Any):
        super().__init__(me, stream, config, view, *rest)
        self._founders = view.members

    def _received_by_all(self) -> int:
        return min(received for who, received, _ in self.acks.entries() if who in self._founders)


class NewestOnly(Uniform):
    """A new taker sees to whoever departed last: what the first of two had sent is forgotten when
    the second departs."""

    def install_view(self, view: View, now: int, out: Effects) -> None:
        before = self.group.previous
        if view.coordinator == self.me and before is not None and len(self.estates) > 1:
            departed = [who for who in before if who not in view]
            for sender in [sender for sender in self.estates if sender not in departed]:
                del self.estates[sender]
        super().install_view(view, now, out)


class AnswersEarly(ReliableMulticast):
    """A taker is answered by whoever has not installed its view yet."""

    def receive(self, source: Member, frames: Sequence[Frame], now: int, out: Effects) -> None:
        for frame in frames:
            counter = 0 if self.group.view is None else self.group.view.counter
            if isinstance(frame, Takeover) and 0 < counter < frame.view_id.counter:
                origins = [Origin(claim.sender, Stream.UNIFORM) for claim in frame.claims]
                windows = {
                    o.sender: self._receivers[o].window for o in origins if o in self._receivers
                }
                shares = tuple(
                    ReceivedRange(sender, w.delivered, w.received, True, w.low)
                    for sender, w in windows.items()
                )
                out.datagram(source, Standing(frame.view_id, True, shares))
            else:
                super().receive(source, [frame], now, out)


class Ablation(NamedTuple):
    protocol: type
    scenario: Scenario
    """Where the rule is missed."""
    finding: str
    """What is found there."""


def _multicast(scenario: Scenario, finding: str, **parts: object) -> Ablation:
    """Reliable multicast with these parts in place of its own."""
    return Ablation(type("BrokenMulticast", (ReliableMulticast,), parts), scenario, finding)


def _unicast(scenario: Scenario, finding: str, **parts: object) -> Ablation:
    return Ablation(type("BrokenUnicast", (ReliableUnicast,), parts), scenario, finding)


_GROUP, _JOIN, _PAIR, _SYNC, _UNIFORM = SCENARIOS.values()
_PURGED = "a sender purged what a member of its view has not delivered (N5, N9)"
_NEVER_GOT = "a receiver counts as delivered what its application never got (S2)"
_WENT_BACK = "a receiver went back to an older connection (S6)"
_TOO_MANY = "more new connections than reasons to ask for one (Y4)"
_TWICE = "a message was delivered twice (S1, Y3)"
_UNTOLD = "a connection ended, and what it left undone is not told (S8)"
_NOT_ALL = "delivered by somebody, and not by every survivor (U1)"

_OF_UNICAST = {
    "ack-conn": _unicast(_PAIR["stale"], LATE_EFFECT, sender=CredulousSender),
    "close-conn": Ablation(AnyClose, _PAIR["stale"], LATE_EFFECT),
    "first": Ablation(AnyFirst, _PAIR["loss"], _NEVER_GOT),
    "nonce": _unicast(_SYNC["drop"], _TOO_MANY, sender=RestlessSender),
    # Another connection than the one at hand is taken for a newer one.
    "order": _unicast(_PAIR["stale"], _TWICE, _known=lambda self, peer: None),
    "outstanding": Ablation(AnyAnswer, _SYNC["drop"], _WENT_BACK),
    "reack": _unicast(_PAIR["loss"], STALL, receiver=OnceAckingReceiver),
    "report": _unicast(_PAIR["crash"], _UNTOLD, sender=SecretiveSender),
    "resend": _unicast(_PAIR["loss"], STALL, sender=SilentSender),
    "sync-ack": Ablation(ConfirmingOnce, _SYNC["drop and loss"], STALL),
    # A dropped window takes with it how far it was: what was not acknowledged comes again.
    "tombstone": _unicast(
        _SYNC["drop"], _TWICE, _delivered_before=lambda self, source, epoch: None
    ),
}

ABLATIONS = {
    "multicast": {
        "highest": _multicast(_GROUP["loss"], STALL, sending=SilentMulticastSender),
        "reack": _multicast(_GROUP["loss"], STALL, receiver=OnceAckingMulticastReceiver),
        # Not the protocol's rule, but the coordinator's.
        "freeze": _multicast(replace(_GROUP["join"], digest_first=True), _PURGED),
    },
    "join": {"freeze": Ablation(EarlyDigest, _JOIN["quiet"], _PURGED)},
    "unicast": _OF_UNICAST,
    "sync": _OF_UNICAST,
    "uniform": {
        "all-departed": _multicast(_UNIFORM["two crashes"], THROWN_AWAY, estates=NewestOnly),
        # A joiner is let in at once, below what others have committed and delivered.
        "catch-up": _multicast(_UNIFORM["join"], _NOT_ALL, _unsettled=lambda self: []),
        "deafness": Ablation(HearsTheDeparted, _UNIFORM["late"], _NOT_ALL),
        "defer": Ablation(AnswersEarly, _UNIFORM["crash"], THROWN_AWAY),
        "freeze": _multicast(_UNIFORM["alone"], _NOT_ALL, sending=LateCountingSender),
        "hold": _multicast(_UNIFORM["crash"], _NOT_ALL, sending=OpenHandedSender),
        "joiners": _multicast(_UNIFORM["alone"], _NOT_ALL, sending=FoundersSender),
        "memory": _multicast(_UNIFORM["loss"], STALL, estates=Forgetful),
        "restart": _multicast(_UNIFORM["two crashes"], STALL, estates=Stubborn),
        "taker-hold": _multicast(_UNIFORM["two crashes"], _NOT_ALL, estates=Hasty),
    },
}
"""By command: what is taken away → the protocol without it, and what comes of it."""
