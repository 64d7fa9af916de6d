"""What total order promises, as a model without a protocol: groups whose messages and views come in
one order, in parts that divide and merge as a test says.

Spaces are tested on it where every step has to be at a test's command, or a schedule at random. A
member's messages wait until the test orders them, and events wait until its reader asks. What was
ordered while a member was away is known when it is back; what was not comes along.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ringcast.errors import GroupClosed
from ringcast.events import Delivered, StateLost, ViewInstalled
from ringcast.model import Address, Headers, Member, Run, Stream, View, ViewId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from ringcast.replicated import Space


def member(number: int, incarnation: int = 0) -> Member:
    return Member(Address("127.0.0.1", 7800 + number), incarnation or number + 1, f"m{number}")


@dataclass(slots=True)
class Given:
    """A state that is to come."""

    chunks: list[bytes] | None = None


@dataclass(slots=True)
class Wanted:
    """A state is to be given here to this group."""

    taker: OrderedGroup
    given: Given


@dataclass(slots=True)
class Part:
    """Groups that are in one view."""

    view: View
    position: int
    groups: list[OrderedGroup]
    marks: dict[Member, int] = field(default_factory=dict)


class OrderedGroup:
    """What a Space uses of a Group."""

    state_lost: str | None = None

    def __init__(self, order: Order, me: Member, space: Space) -> None:
        self.me = me
        self.space = space
        self.pending: deque[tuple[int, bytes, str]] = deque()
        self.part: Part | None = None
        self._order = order
        self._sent = 0
        self._queue: deque[Any] = deque()
        self._changed = asyncio.Event()
        self._is_closed = False

    async def send(self, payload: bytes, *, guarantee: str, channel: str = "") -> None:
        assert guarantee == "total"
        if self._is_closed:
            raise GroupClosed("it has left")
        self._sent += 1
        self.pending.append((self._sent, payload, channel))
        if self._order.is_prompt:
            self._order.order_all()

    async def events(self) -> AsyncIterator[Delivered | ViewInstalled | StateLost]:
        while True:
            for _ in range(self._order.lag()):
                await asyncio.sleep(0)
            if not self._queue:
                if self._is_closed:
                    return
                self._changed.clear()
                await self._changed.wait()
                continue
            match self._queue[0]:
                case Wanted(taker, given):
                    given.chunks = list(self.space.give_state())
                    taker.wake()
                case Given(None):
                    if (view := self._next_view()) is not None:
                        yield view  # which come at any time
                        continue
                    self._changed.clear()
                    await self._changed.wait()
                    continue
                case Given(chunks):
                    await self.space.take_state(_each(chunks or []))
                case event:
                    yield event
                    if not self._queue or self._queue[0] is not event:
                        continue  # the test has taken it back
            self._queue.popleft()

    def _next_view(self) -> ViewInstalled | None:
        for event in self._queue:
            if isinstance(event, ViewInstalled):
                self._queue.remove(event)
                return event
        return None

    async def leave(self) -> None:
        if not self._is_closed:
            self._order.order_all()
            self._order.remove(self)
            self.close()

    def close(self) -> None:
        self._is_closed = True
        self._changed.set()

    def put(self, event: Any) -> None:
        self._queue.append(event)
        self._changed.set()

    @property
    def awaited(self) -> Given | None:
        """The state that is to come."""
        for event in self._queue:
            if isinstance(event, Given) and event.chunks is None:
                return event
        return None

    def takers(self) -> list[OrderedGroup]:
        """Who is to get the state from here, and does not get it any more."""
        return [event.taker for event in self._queue if isinstance(event, Wanted)]

    def wake(self) -> None:
        self._changed.set()

    def lose_state(self) -> None:
        given = self.awaited
        assert given is not None
        self._queue[self._queue.index(given)] = StateLost("nobody has it")
        self._changed.set()

    def begin_anew(self) -> None:
        """The state that comes has all that came before it."""
        self._queue = deque(event for event in self._queue if not isinstance(event, Delivered))


class Order:
    """All groups of one name."""

    def __init__(self, *, is_prompt: bool = True, lag: Callable[[], int] = lambda: 0) -> None:
        self.is_prompt = is_prompt
        """What is sent is ordered at once."""
        self.lag = lag
        """So many turns of the loop until a reader has what it may read."""
        self.parts: list[Part] = []
        self._counter = 0

    async def join(self, me: Member, space: Space) -> OrderedGroup:
        """Start the group, or come to its first part with that one's state."""
        group = OrderedGroup(self, me, space)
        if not self.parts:
            group.part = Part(self._view([me]), 0, [group])
            self.parts.append(group.part)
            group.put(ViewInstalled(group.part.view, came=(me,)))
            return group
        lead = self.parts[0]
        given = self._bring([group], lead)[0]
        await settle(lambda: given.chunks is not None)
        await space.take_state(_each(given.chunks or []))
        group._queue.remove(given)
        return group

    def order_all(self) -> None:
        for part in self.parts:
            for group in list(part.groups):
                while group.pending:
                    self.order(group)

    def order(self, group: OrderedGroup, *, at: Iterable[OrderedGroup] | None = None) -> None:
        """The oldest message that waits there takes its place. `at`: only these take it, because
        the others are about to depart."""
        part = group.part
        assert part is not None
        takers = part.groups if at is None else list(at)
        mark = part.marks.get(group.me, 0)
        sent = number, payload, channel = next(each for each in group.pending if each[0] > mark)
        part.position += 1
        part.marks[group.me] = number
        if group in takers:
            group.pending.remove(sent)
        for taker in takers:
            run = Run(Stream.TOTAL, number, [payload], [Headers({}, channel)] if channel else None)
            delivered = Delivered(group.me, run, part.view.id, position=part.position)
            taker.put(delivered)

    def remove(self, group: OrderedGroup) -> None:
        """It leaves, or is killed."""
        part = group.part
        assert part is not None
        part.groups.remove(group)
        group.part = None
        if not part.groups:
            self.parts.remove(part)
            return
        self._install(part, self._view([each.me for each in part.groups]), gone=(group.me,))
        takers = [taker for taker in group.takers() if taker in part.groups]
        provider = next((each for each in part.groups if each.awaited is None), None)
        if takers and provider is None:  # it is lost, and the first goes on without
            provider = takers.pop(0)
            provider.lose_state()
        for taker in takers:
            given = taker.awaited
            assert provider is not None
            assert given is not None
            taker.begin_anew()
            provider.put(Wanted(taker, given))

    def kill(self, group: OrderedGroup) -> None:
        self.remove(group)
        group._queue.clear()

    def divide(self, *groups: OrderedGroup) -> Part:
        """These make a part of their own; the others of their part go on too."""
        old = groups[0].part
        assert old is not None
        rest = [each for each in old.groups if each not in groups]
        new = Part(old.view, old.position, list(groups), dict(old.marks))
        self.parts.append(new)
        for part, stay, go in ((old, rest, groups), (new, list(groups), rest)):
            part.groups = stay
            for group in stay:
                group.part = part
            view = self._view([each.me for each in stay])
            self._install(part, view, gone=tuple(each.me for each in go))
        return new

    def merge(self, lead: Part, other: Part) -> None:
        """The state of `lead` counts."""
        self.parts.remove(other)
        self._bring(other.groups, lead, parts=(lead.view, other.view))

    def _bring(self, groups: list[OrderedGroup], lead: Part, **more: Any) -> list[Given]:
        before = list(lead.groups)
        provider = next(group for group in before if group.awaited is None)
        came = tuple(each.me for each in groups)
        view = self._view([each.me for each in (*before, *groups)])
        self._install(lead, view, came=came, **more)
        givens = []
        for group in groups:
            group.part = lead
            mark = lead.marks.get(group.me, 0)
            group.pending = deque(each for each in group.pending if each[0] > mark)
            group.put(ViewInstalled(view, position=lead.position, came=came))
            group.put(given := Given())
            givens.append(given)
            provider.put(Wanted(group, given))
        lead.groups = [*before, *groups]
        return givens

    def _install(self, part: Part, view: View, **more: Any) -> None:
        part.view = view
        for group in part.groups:
            group.put(ViewInstalled(view, position=part.position, **more))

    def _view(self, members: list[Member]) -> View:
        self._counter += 1
        return View(ViewId(members[0], self._counter), tuple(members))


async def _each(chunks: list[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def settle(condition: Callable[[], object], turns: int = 2000) -> None:
    """Let tasks run until this holds."""
    for _ in range(turns):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it does not come")
