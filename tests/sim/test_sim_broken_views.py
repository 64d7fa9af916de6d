"""View changes that are broken on purpose, one rule at a time: a few seeds must catch each."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from seeded import Plan, check_caught

from ringcast.core.view_change import OWN, order
from ringcast.explore.ablations import ABLATIONS as ALL_ABLATIONS
from ringcast.model import Stream
from ringcast.node import build_node
from ringcast.protocols.failure import FailureDetector
from ringcast.protocols.multicast_sender import MulticastSender
from ringcast.protocols.views.change import ViewChange
from ringcast.protocols.views.discovery import Meeting
from ringcast.protocols.views.follower import Follower, Phase
from ringcast.protocols.views.layer import GroupViews
from ringcast.protocols.views.proposer import Proposer
from ringcast.protocols.views.streams import Standing, ViewStreams
from ringcast.wire.changes import InView

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ringcast.core.effects import Effects
    from ringcast.core.view_change import Begin, Cut
    from ringcast.model import Member, View
    from ringcast.node import Node
    from ringcast.protocols.views.frames import Propose, Wishes
    from ringcast.wire.frames import Data, Frame

ABLATIONS = ALL_ABLATIONS["views"]
MULTICAST, GROUP, UNIFORM = Plan("multicast"), Plan("group"), Plan("uniform")
RETAINED = Plan("multicast", "stability")
PARTED = Plan("group", partitions=True)


# Both sides of a change


class AnswersLower(Follower):
    """What was promised last counts, higher or not."""

    def on_propose(self, source: Member, proposal: Propose, out: Wishes) -> None:
        is_new = proposal.id != self.promised and order(proposal.id) > order(self.view.id)
        if is_new and self.phase is not Phase.OUT and self.me in proposal.members:
            self.promised, self.proposal = proposal.id, proposal
            self._freeze(out)
        else:
            super().on_propose(source, proposal, out)


class FollowsAnyPart(Follower):
    def _is_mine(self, cut: Cut) -> bool:
        return True


class CutsUniformAtOwn(Proposer):
    """Of a departed sender's uniform messages, too, each keeps what it has."""

    def _make_cut(self) -> Cut:
        cut = super()._make_cut()
        parts = [
            part._replace(
                cuts={
                    origin: seqno if origin.sender in part.members else OWN
                    for origin, seqno in part.cuts.items()
                }
            )
            for part in cut.parts
        ]
        return replace(cut, parts=tuple(parts))


class LeavesOutUnderTheSameId(Proposer):
    """Who does not flush is left out of the view that the others have flushed."""

    def repeat(self, out: Wishes) -> None:
        if self.step.name == "CUT" and self.proposal is not None:
            staying = tuple(m for m in self.proposal.members if m not in self.awaited)
            if self.proposal.id.creator in staying:
                self.proposal = replace(self.proposal, members=staying)
                self._tell(out)
                return
        super().repeat(out)


class NeverTakesOver(ViewChange):
    """Who has promised waits for its proposer for ever."""

    def _on_stalled(self, now: int, out: Effects) -> None:
        self.waiting.times = 0
        super()._on_stalled(now, out)


def changing(change: type[ViewChange]) -> type[GroupViews]:
    class Broken(GroupViews):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.change.__class__ = change

    return Broken


def machines(**parts: type) -> type[GroupViews]:
    return type("Broken", (GroupViews,), parts)


class NeverMeets(GroupViews):
    """Parts that find each other stay apart."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.meeting.__class__ = Shy


class Shy(Meeting):
    def note(self, source: Member, hello: Any, now: int) -> bool:
        return len(hello.members) == 1 and super().note(source, hello, now)


class WaitsForEver(GroupViews):
    """Does not leave without an answer."""

    def _go(self, reason: str, out: Effects, *, is_flushed: bool = False) -> None:
        if reason != "left without an answer":
            super()._go(reason, out, is_flushed=is_flushed)
        else:
            self._timers.arm(next(iter(self._timers_of_leave())), self._gone_by + 10**12)

    def _timers_of_leave(self) -> Iterable[Any]:
        from ringcast.protocols.views.layer import Timer

        yield Timer.LEAVE


# Streams


class SendsWhileFrozen(MulticastSender):
    """Seqnos are given between a promise and the view."""

    def freeze(self) -> None:
        self._timers.disarm_all()


class HearsWhileFrozen(ViewStreams):
    """What comes after the snapshot counts for the view that ends."""

    def _on_late(self, source: Member, data: Data, now: int, out: Effects) -> None:
        if self.standing is Standing.FROZEN:
            self._on_data(source, data, now, out)
        else:
            super()._on_late(source, data, now, out)


class DeliversWhatItFetches(ViewStreams):
    """What a flush brings does not wait for the view."""

    def _fetch(self, now: int, out: Effects) -> None:
        super()._fetch(now, out)
        if self.standing is Standing.FLUSHED:
            for receiver in self.receivers.values():
                receiver.window.open_gate(receiver.window.received)
                self._note_ready(receiver)


class HeedsNoTag(ViewStreams):
    """What was said in whatever view is taken to be of this one."""

    def receive(self, source: Member, frames: Any, now: int, out: Effects) -> None:
        heard: list[Frame] = [
            replace(frame, tag=self._tag) if isinstance(frame, InView) else frame
            for frame in frames
        ]
        super().receive(source, heard, now, out)


class OpensWindowsAtZero(ViewStreams):
    """Whoever comes from elsewhere has said nothing yet, it seems."""

    def _begin(self, begin: Begin, now: int, out: Effects) -> None:
        part = begin.cut.part_of(self.me)
        starts = {
            origin: seqno if origin.sender in part.members else 0
            for origin, seqno in begin.cut.starts.items()
        }
        super()._begin(replace(begin, cut=replace(begin.cut, starts=starts)), now, out)


class ForgetsNewcomers(MulticastSender):
    """Who is new need not acknowledge anything."""

    def begin(self, view: View, together: Any, now: int, out: Effects) -> None:
        super().begin(view, together, now, out)
        for member in view:
            if member not in together:
                self.acks.update(member, self.window.high, self.window.high)
                self._newcomers = {*getattr(self, "_newcomers", ()), member}

    def _purge(self, now: int, out: Effects) -> None:
        for member in getattr(self, "_newcomers", ()):
            if member in self.acks.members:
                self.acks.update(member, self.window.high, self.window.high)
        super()._purge(now, out)


def streams(**parts: type) -> type[ViewStreams]:
    return type("Broken", (ViewStreams,), parts)


def node_of(plan: Plan, **layers: type) -> Any:
    """As the plan's own nodes are, but for these layers."""

    def factory(*args: Any, **kwargs: Any) -> Node:
        has_uniform = plan.protocol == "uniform"
        return build_node(
            *args,
            **kwargs,
            **layers,
            detector=None if plan.protocol == "multicast" else FailureDetector,
            streams=(Stream.FIFO, Stream.UNIFORM) if has_uniform else (Stream.FIFO,),
        )

    return factory


CASES: dict[str, tuple[Plan, dict[str, type], set[str]]] = {
    "answers a lower proposal": (
        MULTICAST,
        {"membership": machines(following=AnswersLower)},
        {"VS1"},
    ),
    "sends while frozen": (MULTICAST, {"multicast": streams(sending=SendsWhileFrozen)}, {"VS9"}),
    "hears while frozen": (UNIFORM, {"multicast": HearsWhileFrozen}, {"VS5", "VS6", "U3", "G7"}),
    "delivers what a flush brings before the view": (
        RETAINED._replace(kept=(120,)),
        {"multicast": DeliversWhatItFetches},
        {"VS5"},
    ),
    "cuts without the origin's own": (
        MULTICAST,
        {"membership": machines(proposing=ABLATIONS["own"].parts["system"].proposer)},
        {"VS3", "VS4", "G7"},
    ),
    "cuts at what the first holds": (
        RETAINED,
        {"membership": machines(proposing=ABLATIONS["most held"].parts["system"].proposer)},
        {"VS5", "VS6", "G7"},
    ),
    "cuts uniform messages where each has them": (
        UNIFORM,
        {"membership": machines(proposing=CutsUniformAtOwn)},
        {"VS5", "VS6"},
    ),
    "installs when not all have flushed": (
        MULTICAST,
        {"membership": machines(proposing=ABLATIONS["all flushed"].parts["system"].proposer)},
        {"VS1", "VS3", "VS4", "V-L1", "V-L5", "G7"},
    ),
    "completes no view": (
        MULTICAST._replace(kept=(112,)),
        {"membership": machines(proposing=ABLATIONS["finish"].parts["system"].proposer)},
        {"VS7"},
    ),
    "tells parts by memory": (
        MULTICAST._replace(kept=(83,)),
        {
            "membership": machines(
                proposing=ABLATIONS["parts"].parts["system"].proposer, following=FollowsAnyPart
            )
        },
        {"VS1", "VS3", "VS4", "VS5", "G7"},
    ),
    "opens windows at zero": (MULTICAST, {"multicast": OpensWindowsAtZero}, {"VS3", "N1", "N-L1"}),
    "heeds no tag": (
        Plan("uniform", partitions=True, kept=(114,)),
        {"multicast": HeedsNoTag},
        {"VS2", "VS3", "VS6", "U3", "N1", "N8", "G7", "G1", "N5"},
    ),
    "leaves out under the same id": (
        MULTICAST._replace(kept=(37,)),
        {"membership": machines(proposing=LeavesOutUnderTheSameId)},
        {"VS1", "VS4", "VS7", "V-L1", "G7"},
    ),
    "does not count newcomers": (
        MULTICAST,
        {"multicast": streams(sending=ForgetsNewcomers)},
        {"N5", "N7"},
    ),
    "shows a view before the rest of the last": (
        MULTICAST,
        ABLATIONS["order"].parts,
        {"VS2", "N8", "VS5"},
    ),
    "goes on with fragments that a newcomer lacks": (
        MULTICAST._replace(kept=(45,)),
        ABLATIONS["start over"].parts,
        {"N1", "VS3", "VS4", "VS5", "N-L1", "G1"},
    ),
    "begins without what nobody has committed": (
        UNIFORM,
        ABLATIONS["commit"].parts,
        {"VS4", "VS5", "VS6", "G7"},
    ),
    "asks nothing of who leaves": (UNIFORM, ABLATIONS["leave"].parts, {"V-L3"}),
    "waits for a proposer for ever": (
        MULTICAST,
        {"membership": changing(NeverTakesOver)},
        {"V-L5", "V-L1"},
    ),
    "never meets another part": (PARTED, {"membership": NeverMeets}, {"V-L1"}),
    "does not leave without an answer": (
        MULTICAST._replace(kept=(31,)),
        {"membership": WaitsForEver},
        {"V-L3"},
    ),
}


@pytest.mark.proof
@pytest.mark.parametrize("case", CASES)
def test_a_broken_view_change_is_caught(case: str) -> None:
    plan, layers, rules = CASES[case]
    check_caught(plan, node_of(plan, **layers), rules, (*plan.kept, *range(30)))
