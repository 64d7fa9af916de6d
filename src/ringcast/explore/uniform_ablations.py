"""BROKEN on purpose, not for use: uniform delivery with one of its rules taken away.

Each shows that the rule is needed: the exploration finds what it prevents. What goes well without
its rule would be a rule too many, or an exploration that sees too little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ringcast.explore.uniform import ALONE, CRASH, JOIN, LATE, LOSS, TWO_CRASHES
from ringcast.model import Origin, Stream
from ringcast.protocols.multicast import ReliableMulticast
from ringcast.protocols.multicast_sender import MulticastSender
from ringcast.protocols.uniform import Uniform
from ringcast.wire.frames import ReceivedRange, Stage, Standing, Takeover

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ringcast.config import MulticastConfig
    from ringcast.core.effects import Effects
    from ringcast.explore.uniform import Scenario
    from ringcast.model import Member, View
    from ringcast.window.windows import ReceiveWindow
    from ringcast.wire.frames import Ack, Commit, Data, Frame


class WithoutCatchUp(ReliableMulticast):
    """BROKEN (C1). A joiner is let in at once, below what others have committed and delivered."""

    def _unsettled(self) -> list[str]:
        return []


class Forgetful(Uniform):
    """BROKEN. That a sender is resolved is said once; whoever missed it gets no answer."""

    def on_standing(self, source: Member, told: Standing, now: int, out: Effects) -> None:
        if not any(share.sender in self._round.resolved for share in told.shares):
            super().on_standing(source, told, now, out)


class WithoutMemory(ReliableMulticast):
    """BROKEN (C2). Whoever missed that a sender is resolved keeps its estate for ever."""

    estates: ClassVar[type[Uniform]] = Forgetful


class Stubborn(Uniform):
    """BROKEN. A taker goes on after a view where it was before."""

    def _begin_anew(self) -> None:
        if not self._is_taker:
            super()._begin_anew()


class WithoutRestart(ReliableMulticast):
    """BROKEN (C3). It waits for what only somebody had who has died since."""

    estates: ClassVar[type[Uniform]] = Stubborn


class HearsTheDeparted(ReliableMulticast):
    """BROKEN (C4). What a departed sender still has under way counts."""

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
    """BROKEN. A taker commits before all hold what is committed."""

    def _step(self, sender: Member, out: Effects) -> bool:
        estate = self.estates[sender]
        if estate.stage is Stage.HOLD and estate.window is not None and estate.goal is not None:
            estate.stage = Stage.COMMIT
            estate.window.open_gate(estate.goal)
            return True
        return super()._step(sender, out)


class WithoutWaiting(ReliableMulticast):
    """BROKEN. It delivers what nobody else has, and dies."""

    estates: ClassVar[type[Uniform]] = Hasty


class OpenHandedSender(MulticastSender):
    """BROKEN. Commits what it has sent before anybody holds it."""

    def _hold(self, out: Effects) -> None:
        super()._hold(out)
        if self.window.high > self.window.gate:
            self.window.gate = self.window.high
            out.datagram(None, self.commitment())


class CommitsEarly(ReliableMulticast):
    """BROKEN. COMMIT before all hold."""

    sending: ClassVar[type[MulticastSender]] = OpenHandedSender


class LateCountingSender(MulticastSender):
    """BROKEN. New members do not count until their first ack comes."""

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


class WithoutFreeze(ReliableMulticast):
    """BROKEN. The sender purges what a joiner is about to need."""

    sending: ClassVar[type[MulticastSender]] = LateCountingSender


class FoundersSender(MulticastSender):
    """BROKEN. Commits what the members of its first view hold: whoever joins later is not asked."""

    def __init__(self, me: Member, stream: Stream, config: MulticastConfig, view: View, *rest: Any):
        super().__init__(me, stream, config, view, *rest)
        self._founders = view.members

    def _received_by_all(self) -> int:
        return min(received for who, received, _ in self.acks.entries() if who in self._founders)


class WithoutJoiners(ReliableMulticast):
    """BROKEN. What is delivered may be unknown to a joiner, and it may be the last to survive."""

    sending: ClassVar[type[MulticastSender]] = FoundersSender


class NewestOnly(Uniform):
    """BROKEN. A new taker sees to whoever departed last, and to nobody else."""

    def install_view(self, view: View, now: int, out: Effects) -> None:
        before = self.group.previous
        if view.coordinator == self.me and before is not None and len(self.estates) > 1:
            departed = [who for who in before if who not in view]
            for sender in [sender for sender in self.estates if sender not in departed]:
                del self.estates[sender]
        super().install_view(view, now, out)


class WithoutTheOthers(ReliableMulticast):
    """BROKEN. What the first of two had sent is forgotten when the second departs."""

    estates: ClassVar[type[Uniform]] = NewestOnly


class AnswersEarly(ReliableMulticast):
    """BROKEN. A taker is answered by whoever has not installed its view yet."""

    def receive(self, source: Member, frames: Sequence[Frame], now: int, out: Effects) -> None:
        for frame in frames:
            counter = 0 if self.group.view is None else self.group.view.counter
            if isinstance(frame, Takeover) and 0 < counter < frame.view_id.counter:
                shares = tuple(
                    ReceivedRange(
                        claim.sender,
                        box.window.delivered,
                        box.window.received,
                        True,
                        box.window.low,
                    )
                    for claim in frame.claims
                    if (box := self._receivers.get(Origin(claim.sender, Stream.UNIFORM)))
                )
                out.datagram(source, Standing(frame.view_id, True, shares))
            else:
                super().receive(source, [frame], now, out)


class Ablation(NamedTuple):
    multicast: type[ReliableMulticast]
    scenario: Scenario
    """Where the rule is missed."""


UNIFORM_ABLATIONS: Mapping[str, Ablation] = {
    "all-departed": Ablation(WithoutTheOthers, TWO_CRASHES),
    "catch-up": Ablation(WithoutCatchUp, JOIN),
    "deafness": Ablation(HearsTheDeparted, LATE),
    "defer": Ablation(AnswersEarly, CRASH),
    "freeze": Ablation(WithoutFreeze, ALONE),
    "hold": Ablation(CommitsEarly, CRASH),
    "joiners": Ablation(WithoutJoiners, ALONE),
    "memory": Ablation(WithoutMemory, LOSS),
    "restart": Ablation(WithoutRestart, TWO_CRASHES),
    "taker-hold": Ablation(WithoutWaiting, TWO_CRASHES),
}
"""What is taken away → the protocol without it."""
