"""Virtual synchrony, judged by what applications did and saw.

V→V′ at p: p is shown V and then, next, V′. Members go *together* from V if V′ says that they come
from one part.

    VS1  one view id: the same members in the same order; counters grow; who sees a view is in it
    VS2  what is delivered in V was sent in V; a large message in the view of its last fragment
    VS3  of each origin a prefix of what it sent in V is delivered: in order, once, without a gap
    VS4  p and o both V→V′: p delivered all that o sent in V. The same if o left with V′
    VS5  p and q both V→V′: they delivered the same in V, of all origins on kept streams, of those
         that go together with them on others
    VS6  p delivered a uniform message by Commit in V: so has everybody who leaves V. By the cut of
         V′: so has everybody who is together with p into V′ and leaves V, by whatever way
    VS7  p was in V′; q, a member of it, goes from V to V″ with p and never saw V′: then some
         proposal after V had one of the two without the other
    VS9  while a member is frozen no message is accepted

Each rule counts how often its premise was true: a rule that never had a chance proves nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from ringcast.core.effects import Left
from ringcast.core.view_change import Begin, order
from ringcast.events import Closed, Delivered, ViewInstalled
from ringcast.model import Origin, Stream
from ringcast.protocols.views.layer import GroupViews
from ringcast.protocols.views.proposer import Proposer
from ringcast.protocols.views.streams import Standing, ViewStreams

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from ringcast.core.view_change import Freeze
    from ringcast.events import Event
    from ringcast.model import Member, View, ViewId
    from ringcast.node import Node
    from ringcast.protocols.views.frames import Propose, Wishes

RULES = ("VS1", "VS2", "VS3", "VS4", "VS5", "VS6", "VS7", "VS9")


class Step(NamedTuple):
    """V→V′ at one member."""

    who: Member
    view: View
    next: View
    together: frozenset[Member]


class Observed:
    """What the applications of one group did and saw, and which rules that breaks."""

    def __init__(self, kept: Collection[Stream] = (Stream.UNIFORM,)) -> None:
        """`kept`: streams of which survivors hold what a departed sender has sent."""
        self.premises: Counter[str] = Counter()
        self.closed: dict[Member, str] = {}
        self._kept = frozenset(kept)
        self._at_once: list[str] = []
        self._sent: dict[tuple[ViewId, Origin], list[bytes]] = defaultdict(list)
        self._views: dict[Member, list[ViewInstalled]] = defaultdict(list)
        self._got: dict[tuple[Member, ViewId, Origin], list[bytes]] = defaultdict(list)
        self._committed: Counter[tuple[Member, ViewId, Origin]] = Counter()
        self._left_with: dict[Member, ViewId] = {}
        self._proposals: list[tuple[ViewId, frozenset[Member]]] = []

    # What applications do and see

    def sent(self, who: Member, stream: Stream, payload: bytes, view: ViewId) -> None:
        """No two messages of one sender are the same."""
        self._sent[view, Origin(who, stream)].append(payload)

    def offered(self, who: Member, accepted: int, *, is_frozen: bool) -> None:
        self.premises["VS9"] += is_frozen
        if is_frozen and accepted:
            self._at_once.append(f"VS9: {who} is frozen and sends")

    def installed(self, who: Member, event: ViewInstalled) -> None:
        views = self._views[who]
        if views and event.view.counter <= views[-1].view.counter:
            self._at_once.append(f"VS1: {who} sees {event.view} after {views[-1].view}")
        if who not in event.view:
            self._at_once.append(f"VS1: {who} is not in {event.view}")
        views.append(event)

    def delivered(self, who: Member, event: Delivered, *, by_commit: bool = False) -> None:
        """`by_commit`: the view that it is read in has not ended yet."""
        seen = self._views[who]
        if not seen or seen[-1].view.id != event.view_id:
            now = seen[-1].view.id if seen else "no view"
            self._at_once.append(f"VS2: {who} is in {now} and delivers in {event.view_id}")
        key = (who, event.view_id, Origin(event.sender, event.run.stream))
        self._got[key] += event.run.payloads
        if by_commit and event.run.stream is Stream.UNIFORM:
            self._committed[key] = len(self._got[key])

    def ended(self, who: Member, reason: str, left_with: ViewId | None = None) -> None:
        """Closed; `left_with`: the view that began without it, as it had asked for."""
        self.closed[who] = reason
        if left_with is not None:
            self._left_with[who] = left_with

    def proposed(self, id: ViewId, members: Sequence[Member]) -> None:
        self._proposals.append((id, frozenset(members)))

    # What it comes to

    def violations(self) -> list[str]:
        """All there are so far; `premises` are counted anew."""
        self.premises = Counter({"VS9": self.premises["VS9"]})
        found = list(self._at_once)
        for rule in (self._vs1, self._vs2, self._vs3, self._vs4, self._vs5, self._vs6, self._vs7):
            found += rule()
        return found

    def views_of(self, who: Member) -> list[View]:
        return [event.view for event in self._views[who]]

    def got(self, who: Member, view: ViewId, origin: Origin) -> list[bytes]:
        return self._got.get((who, view, origin), [])

    def sent_in(self, view: ViewId, origin: Origin) -> list[bytes]:
        return self._sent.get((view, origin), [])

    def in_words(self) -> list[str]:
        """Who saw which views."""
        return [
            f"{who}: " + "; ".join(str(event.view) for event in events)
            for who, events in self._views.items()
        ]

    def _vs1(self) -> Iterator[str]:
        members: dict[ViewId, View] = {}
        for who, events in self._views.items():
            for event in events:
                self.premises["VS1"] += event.view.id in members
                first = members.setdefault(event.view.id, event.view)
                if first.members != event.view.members:
                    yield f"VS1: {who} sees {event.view} as {event.view.id}, others {first}"

    def _vs2(self) -> Iterator[str]:
        for (who, view, origin), payloads in self._got.items():
            sent = set(self.sent_in(view, origin))
            self.premises["VS2"] += len(payloads)
            for payload in payloads:
                if payload not in sent:
                    yield f"VS2: {who} delivers {_short(payload)} of {origin} in {view}, not sent"

    def _vs3(self) -> Iterator[str]:
        for (who, view, origin), payloads in self._got.items():
            self.premises["VS3"] += len(payloads) > 1
            if payloads != self.sent_in(view, origin)[: len(payloads)]:
                first = ", ".join(map(_short, payloads[:5]))
                yield f"VS3: {who} delivers {first} of {origin} in {view}: no prefix"

    def _vs4(self) -> Iterator[str]:
        for (view, later), whos in self._steps().items():
            leavers = [
                who
                for who, left_with in self._left_with.items()
                if left_with == later and self._views[who] and self._last(who) == view
            ]
            for sender in [*whos, *leavers]:
                for origin in self._origins(sender):
                    sent = self.sent_in(view, origin)
                    for who in whos if sent else ():
                        self.premises["VS4"] += who != sender
                        got = len(self.got(who, view, origin))
                        if got < len(sent):
                            counts = f"{got} of {len(sent)}"
                            yield f"VS4: {who} delivers {counts} of {origin} in {view} → {later}"

    def _vs5(self) -> Iterator[str]:
        for (view, later), whos in self._steps().items():
            steps = list(whos.values())
            for sender in steps[0].view:
                for origin in self._origins(sender):
                    if origin.stream in self._kept or sender in steps[0].together:
                        got = {who: self.got(who, view, origin) for who in whos}
                        most = max(got.values(), key=len)
                        self.premises["VS5"] += bool(most) and sender not in whos and len(got) > 1
                        for who, payloads in got.items():
                            if payloads != most:
                                counts = f"{len(payloads)} and {len(most)}"
                                yield f"VS5: {who}, others: {counts} of {origin}, {view} → {later}"

    def _vs6(self) -> Iterator[str]:
        leaving = defaultdict(list)
        for step in self._each_step():
            leaving[step.view.id].append(step.who)
        for (who, view, origin), count in self._committed.items():
            yield from self._lacking(who, view, origin, count, leaving[view], "Commit")
        for step in self._each_step():
            others = [other for other in leaving[step.view.id] if other in step.together]
            for sender in step.view:
                origin = Origin(sender, Stream.UNIFORM)
                count = len(self.got(step.who, step.view.id, origin))
                reason = f"the cut of {step.next.id}"
                yield from self._lacking(step.who, step.view.id, origin, count, others, reason)
        for who, later in self._left_with.items():
            if self._views[who]:
                view = self._last(who)
                staying = list(self._steps().get((view, later), {}))
                origin = Origin(who, Stream.UNIFORM)
                count = len(self.got(who, view, origin))
                yield from self._lacking(who, view, origin, count, staying, f"leaving with {later}")

    def _lacking(
        self,
        who: Member,
        view: ViewId,
        origin: Origin,
        count: int,
        others: Collection[Member],
        reason: str,
    ) -> Iterator[str]:
        for other in others if count else ():
            self.premises["VS6"] += other != who
            got = len(self.got(other, view, origin))
            if got < count:
                yield (
                    f"VS6: {other} leaves {view} with {got} of {origin}; {who} has {count} "
                    f"by {reason}"
                )

    def _vs7(self) -> Iterator[str]:
        seen = {who: {event.view.id for event in events} for who, events in self._views.items()}
        for step in self._each_step():
            for peer in step.next:
                for event in self._views.get(peer, ()):
                    missed = event.view
                    is_between = order(step.view.id) < order(missed.id) < order(step.next.id)
                    if not is_between or step.who not in missed or missed.id in seen[step.who]:
                        continue
                    if step.next.id not in seen[peer]:
                        continue
                    self.premises["VS7"] += 1
                    if not any(
                        order(id) > order(step.view.id) and len({peer, step.who} & members) == 1
                        for id, members in self._proposals
                    ):
                        yield f"VS7: {step.who} misses {missed.id} of {peer}; nobody parted them"

    def _each_step(self) -> Iterator[Step]:
        for who, events in self._views.items():
            for before, after in pairwise(events):
                together = next((part for part in after.parts if who in part), after.view)
                yield Step(who, before.view, after.view, frozenset(together))

    def _steps(self) -> dict[tuple[ViewId, ViewId], dict[Member, Step]]:
        """By the two views, who went from the one to the other."""
        found: dict[tuple[ViewId, ViewId], dict[Member, Step]] = defaultdict(dict)
        for step in self._each_step():
            found[step.view.id, step.next.id][step.who] = step
        return found

    def _last(self, who: Member) -> ViewId:
        return self._views[who][-1].view.id

    def _origins(self, sender: Member) -> list[Origin]:
        return [Origin(sender, stream) for stream in Stream]


class Watch:
    """The observer of one node: it tells `Observed` what its application does and sees."""

    def __init__(
        self,
        node: Node,
        observed: Observed,
        see: Callable[[Member, Event], None] | None = None,
    ) -> None:
        node.observer = self
        self._node = node
        self._observed = observed
        self._see = see
        self._view: ViewId | None = None
        self._begun: dict[Stream, bytes] = {}  # large messages whose last fragment has no seqno

    def received(self, *_: object) -> None: ...
    def transmitted(self, *_: object) -> None: ...
    def before_take(self, *_: object, **__: object) -> None: ...

    def offered(
        self, to: Member | None, stream: Stream, payloads: Sequence[bytes], accepted: int, now: int
    ) -> None:
        if to is not None:
            return
        is_frozen = self._streams.standing is not Standing.OPEN
        self._observed.offered(self._node.me, accepted, is_frozen=is_frozen)
        for payload in payloads[:accepted]:
            self._end_large(stream)
            self._begun[stream] = payload
        self._note_sent()

    def before_change(self, change: Freeze | Begin | Left, now: int) -> None:
        """What has its seqnos was sent in the view that ends here."""
        self._note_sent()
        if isinstance(change, Begin):
            self._view = change.view.id
        elif isinstance(change, Left) and change.is_flushed:
            self._view = None  # what is its own is delivered by the cut of the view without it

    def took(self, events: Sequence[Event], now: int, *, buffered: bool) -> None:
        self._note_sent()
        if buffered:
            return  # the application has not seen them yet
        me, observed = self._node.me, self._observed
        for event in events:
            match event:
                case Delivered(epoch=0):
                    observed.delivered(me, event, by_commit=event.view_id == self._view)
                case ViewInstalled():
                    observed.installed(me, event)
                case Closed(reason):
                    observed.ended(me, reason, self._left_with())
            if self._see is not None:
                self._see(me, event)

    def after_input(self, now: int) -> None:
        self._note_sent()

    @property
    def _streams(self) -> ViewStreams:
        streams = self._node.multicast
        assert isinstance(streams, ViewStreams)
        return streams

    def _note_sent(self) -> None:
        senders = self._streams._senders
        for stream in list(self._begun):
            if stream in senders and not senders[stream].fragments.rest:
                self._end_large(stream)

    def _end_large(self, stream: Stream) -> None:
        payload = self._begun.pop(stream, None)
        if payload is not None:
            assert self._view is not None
            self._observed.sent(self._node.me, stream, payload, self._view)

    def _left_with(self) -> ViewId | None:
        layer = self._node.membership
        assert isinstance(layer, GroupViews)
        view = layer.change.view
        return None if self._node.me in view else view.id


def watched(observed: Observed) -> type[GroupViews]:
    """Members whose proposals are told, too."""

    class ToldProposer(Proposer):
        def propose(self, proposal: Propose, out: Wishes) -> None:
            observed.proposed(proposal.id, proposal.members)
            super().propose(proposal, out)

    class ToldViews(GroupViews):
        proposing = ToldProposer

    return ToldViews


def _short(payload: bytes) -> str:
    return payload[:20].decode(errors="replace").strip()
