"""What the applications of a small group send, and what they are told: for the rules of views."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING

from ringcast.events import Closed, Delivered, StateBegun, StateChunk, ViewInstalled
from ringcast.explore.view_rules import History, Lived, violations
from ringcast.model import Origin, Stream

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Sequence

    from ringcast.events import Event
    from ringcast.model import Member, ViewId
    from ringcast.node import Node
    from ringcast.protocols.views.change import ViewChange

STREAMS = (Stream.FIFO, Stream.UNIFORM)


class Application:
    """One member's: what it wants to send, which views it has seen, and its state."""

    def __init__(self, streams: int) -> None:
        self.backlog: dict[Stream, deque[bytes]] = {stream: deque() for stream in STREAMS}
        self.lived: list[Lived] = []
        self.state: set[bytes] = set()
        self._nothing = (0,) * streams
        self._is_renewed = False

    def renew(self) -> None:
        """A state comes: what was sent before its cut is in it. If it is cut at the next view,
        nothing is delivered before that."""
        self.state.clear()
        self.lived = self.lived[-1:]
        self._is_renewed = True

    def enter(self, view: ViewId) -> None:
        if self._is_renewed:
            self.lived.clear()
        self._is_renewed = False
        self.lived.append(Lived(view, self._nothing, self._nothing, self._nothing))

    def deliver(self, i: int, number: int, *, by_commit: bool) -> bool:
        """Message `number` of stream `i`; whether it is the next one in this view."""
        self._is_renewed = False
        view, *counts = self.lived[-1]
        starts, delivered, committed = map(list, counts)
        if delivered[i] and number != delivered[i] + 1:
            return False
        starts[i] = starts[i] if delivered[i] else number - 1
        delivered[i] = number
        committed[i] = number if by_commit else committed[i]
        self.lived[-1] = Lived(view, tuple(starts), tuple(delivered), tuple(committed))
        return True


class Watch:
    """Of a whole group."""

    def __init__(self, members: Sequence[Member], *, retains: bool) -> None:
        self.wrong: list[str] = []
        self._origins = [Origin(member, stream) for member in members for stream in STREAMS]
        self.applications = {member: Application(len(self._origins)) for member in members}
        self._kept = [retains or origin.stream is Stream.UNIFORM for origin in self._origins]
        self._numbers: dict[bytes, tuple[int, int]] = {}  # of each message: its stream, its number
        self._left: list[Member] = []
        self._wanted = [0] * len(self._origins)
        self._sent: list[list[ViewId]] = [[] for _ in self._origins]
        self._members: dict[ViewId, tuple[Member, ...]] = {}
        self._asked: dict[ViewId, tuple[Member, ...]] = {}  # in every proposal
        self._along: dict[tuple[ViewId, ViewId], tuple[Member, ...]] = {}

    def want(self, member: Member, stream: Stream, size: int) -> None:
        """One more message, unlike any other."""
        i = self._origins.index(Origin(member, stream))
        self._wanted[i] += 1
        payload = f"{member}{stream.name}{self._wanted[i]}".encode().ljust(size, b".")
        self._numbers[payload] = i, self._wanted[i]
        self.applications[member].backlog[stream].append(payload)

    def see(self, node: Node, event: Event) -> None:
        """What the application of this member is told."""
        application = self.applications[node.me]
        match event:
            case ViewInstalled(view):
                if self._members.setdefault(view.id, view.members) != view.members:
                    self.wrong.append("VS1: one id, two lists of members")
                self._asked.setdefault(view.id, view.members)  # nobody else was
                application.enter(view.id)
            case Delivered():
                by_commit = node.view is not None and event.view_id == node.view.id
                application.state.update(event.run.payloads)
                for payload in event.run.payloads:
                    if payload not in self._numbers:
                        self.wrong.append("G1: delivered what nobody has sent")
                    elif not application.deliver(*self._numbers[payload], by_commit=by_commit):
                        self.wrong.append("VS3: delivered twice, or one before it was not")
            case StateBegun():
                application.renew()
            case StateChunk(payload):
                application.state.update(filter(None, payload.split(b"\n")))
            case Closed():
                assert node.membership is not None
                view = node.membership.change.view
                self._left.append(node.me)
                if node.me not in view:
                    self._members[view.id] = view.members
                    application.enter(view.id)

    def look(self, node: Node, change: ViewChange) -> None:
        """After an input. Messages whose last fragment has its seqno by now were sent in the view
        that it is in."""
        for proposal in (change.proposer.proposal, change.follower.proposal):
            if proposal is not None:
                self._asked[proposal.id] = proposal.members
        for _, cut in change.follower._flushed:
            for part in cut.parts:
                self._along[part.view, cut.id] = part.members
        backlog = self.applications[node.me].backlog
        for stream, sending in node.multicast.senders.items() if node.view else ():
            i = self._origins.index(Origin(node.me, stream))
            count = self._wanted[i] - len(backlog[stream]) - bool(sending.fragments.rest)
            assert node.view is not None
            self._sent[i] += [node.view.id] * (count - len(self._sent[i]))

    # What must hold

    def judge(self, living: Sequence[Member], premises: Counter[str], *, has_state: bool) -> None:
        """After a run, at whose end these are in the group. With a state theirs are the same, but
        for what the departed have sent and nobody retains."""
        lived = {who: tuple(each.lived) for who, each in self.applications.items()}
        kept, sent = self._kept, [tuple(tags) for tags in self._sent]
        history = History(self._origins, kept, lived, sent, self._members, self._asked, self._along)
        self.wrong += violations(history, premises)
        self.wrong += self._left_out(living, premises)
        self.wrong += self._left_behind(living, premises)
        for member in living:
            last = lived[member][-1]
            if any(tags.count(last.view) > last.count(i) for i, tags in enumerate(sent)):
                self.wrong.append("N-L1: not all that was sent in the last view was delivered")
        lost = {
            payload
            for payload, (i, _) in self._numbers.items()
            if not kept[i] and self._origins[i].sender not in living
        }
        states = [self.applications[member].state - lost for member in living]
        if has_state:
            premises["T1"] += 1
            if any(state != states[0] for state in states):
                self.wrong.append("T1: members have not the same state")

    def _left_out(self, living: Sequence[Member], premises: Counter[str]) -> Iterator[str]:
        for member in living:
            views = [lived.view for lived in self.applications[member].lived]
            for before, after in pairwise(views):
                premises["VL"] += 1
                together = set(living).intersection(self._members[before])
                if not together.issubset(self._members[after]):
                    yield "VL: a member goes on without another that lives and was with it"

    def _left_behind(self, living: Sequence[Member], premises: Counter[str]) -> Iterator[str]:
        for who in self._left:
            for i, origin in enumerate(self._origins):
                tags = self._sent[i] if origin.sender == who else []
                for member in living if tags else ():
                    for lived in self.applications[member].lived:
                        premises["R8"] += lived.view == tags[-1]
                        if lived.view == tags[-1] and tags.count(lived.view) > lived.count(i):
                            yield "R8: a member left, and not all that it sent was delivered"
