"""The coordinator: views, joins and digests, as membership will do it, played by the simulator.

A crash is known after a while; every view takes its own time to every member, so that members
may see them late, and the second before the first. A join has an order that matters (N9): the
view first, at all old members, each of which stops purging for the joiner's sake; only when all
of them have installed it the coordinator takes the digest; then the joiner gets view and digest,
and the others open their windows for it. If the coordinator dies on the way the next one repeats
it. One join view at a time; several joiners may share it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ringcast.model import Digest, Origin, Stream, View, ViewId
from ringcast.window.windows import SendWindow

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringcast.model import Member
    from ringcast.sim.harness import Harness


PartsAt: TypeAlias = "Callable[[Origin, int], tuple[bytes, ...]]"


class Seat(Protocol):
    """A member as the coordinator knows it."""

    harness: Harness

    @property
    def can_act(self) -> bool:
        """Pong, running and not closed."""
        ...

    @property
    def is_alive(self) -> bool: ...


@dataclass(slots=True)
class _Join:
    """Joiners on their way in."""

    joiners: tuple[Member, ...]
    counter: int  # of the first view with them in it
    answered_by: Member | None = None
    early_digest: Digest | None = None  # only where the order is broken on purpose


class Coordinator:
    """Makes views for the group. `post` hands something to a member, after a delay of its own.
    `parts_at`: where members retain messages, and take over from the departed, it tells which
    fragments of a message that is not whole yet stand before a place."""

    def __init__(
        self,
        seat_of: Callable[[Member], Seat],
        post_view: Callable[[Seat, View], None],
        post_join: Callable[[Seat, View | None, Digest], None],
        *,
        has_windows: bool = True,
        parts_at: PartsAt | None = None,
        digest_before_freeze: bool = False,
    ) -> None:
        self.view: View
        self._seat_of = seat_of
        self._post_view = post_view
        self._post_join = post_join
        self._has_windows = has_windows
        self._parts_at = parts_at
        self._digest_before_freeze = digest_before_freeze
        self._counter = 1
        self._gone: list[Member] = []
        self._waiting: list[Member] = []
        self._join: _Join | None = None
        self._strangers: list[Member] = []  # in the view, but not answered yet
        self._has_split = False

    def begin(self, members: tuple[Member, ...]) -> None:
        """The first view, at everybody."""
        self.view = View(ViewId(members[0], self._counter), members)
        digest = Digest({Origin(member, Stream.FIFO): 0 for member in members})
        for member in members:
            self._post_join(self._seat_of(member), self.view, digest)

    def members(self) -> list[Member]:
        return list(self.view)

    def remove(self, *members: Member) -> None:
        """These have crashed, left, or are believed to have."""
        self._waiting = [member for member in self._waiting if member not in members]
        self._gone += [m for m in members if m in self.view and m not in self._gone]
        self.step()

    def admit(self, member: Member) -> None:
        """This one wants to join."""
        self._waiting.append(member)
        self.step()

    def swap(self, leaver: Member, joiner: Member) -> None:
        """One leaves and one joins, in one view if no join is on its way."""
        self._waiting.append(joiner)
        self.remove(leaver)

    def renew(self) -> None:
        """Another view with the same members."""
        maker = self._maker()
        if maker is not None:
            self._make_view(maker, self.view.members, ())

    def resend(self, seat: Seat) -> None:
        """The current view once more, to one member."""
        if seat.harness.me in self.view and seat.harness.me not in self._strangers:
            self._post_view(seat, self.view)

    def split(self, seat: Seat, away: Member) -> None:
        """This member alone believes that `away` has gone; nobody else notices."""
        self._has_split = True
        self._post_own(seat, tuple(member for member in self.view if member != away))

    def reunite(self, seat: Seat) -> None:
        """This member sees everybody again."""
        if seat.harness.me in self.view:
            self._post_own(seat, self.view.members)

    def gather(self) -> None:
        """After splits: one view for all."""
        if self._has_split:
            self._has_split = False
            self.renew()

    def step(self) -> None:
        """Do what can be done now. Called whenever something has changed."""
        maker = self._maker()
        if maker is None:
            return
        self._end_join()
        joiners = tuple(self._waiting) if self._join is None else ()
        # A restarted member takes the place of its predecessor: one address, one member.
        taken = [joiner.address for joiner in joiners]
        leavers = [m for m in self.view if m in self._gone or m.address in taken]
        if leavers or joiners:
            self._waiting = [member for member in self._waiting if member not in joiners]
            early = None
            if joiners and self._digest_before_freeze:
                early = self._seat_of(maker).harness.node.digest()
            stay = tuple(member for member in self.view if member not in leavers)
            self._make_view(maker, (*stay, *joiners), joiners)
            if joiners:
                self._join = _Join(joiners, self.view.counter, early_digest=early)
        self._answer(maker)

    @property
    def has_one_view(self) -> bool:
        """Nobody waits, everybody is in the current view, and all windows are open."""
        return (
            not self._waiting
            and self._join is None
            and all(self._is_settled(member) for member in self.view)
        )

    def is_member(self, member: Member) -> bool:
        """Fully in: others may depend on it."""
        return (
            member in self.view
            and member not in self._gone
            and member not in self._strangers
            and (self._join is None or member not in self._join.joiners)
        )

    def _is_settled(self, member: Member) -> bool:
        seat = self._seat_of(member)
        return (
            seat.can_act and seat.harness.node.view == self.view and self._has_all_windows(member)
        )

    def _has_all_windows(self, member: Member) -> bool:
        if not self._has_windows:
            return True  # only multicast opens them by digests
        windows = self._seat_of(member).harness.node.multicast.windows()
        return all(Origin(other, Stream.FIFO) in windows for other in self.view)

    def _maker(self) -> Member | None:
        """Whose turn it is to make views; None while that one is dead and nobody knows, or sleeps,
        or has not got its own last view yet."""
        for member in self.view:
            if member not in self._gone:
                return member if self._seat_of(member).can_act else None
        return None

    def _make_view(
        self, maker: Member, members: tuple[Member, ...], joiners: tuple[Member, ...]
    ) -> None:
        old = self.view
        self._counter += 1
        self.view = View(ViewId(maker, self._counter), members)
        self._gone = [member for member in self._gone if member in self.view]
        # Those who are not in it any more hear of it too, if they still live. Joiners that stay
        # hear nothing before their answer.
        told = [m for m in old if m not in self._strangers or m not in self.view]
        self._strangers = [m for m in (*self._strangers, *joiners) if m in self.view]
        for member in told:
            seat = self._seat_of(member)
            if seat.is_alive:
                self._post_view(seat, self.view)

    def _post_own(self, seat: Seat, members: tuple[Member, ...]) -> None:
        """A view of this member's own making. No other bears its id, and a later one counts."""
        self._counter += 1
        self._post_view(seat, View(ViewId(seat.harness.me, self._counter), members))

    def _answer(self, maker: Member) -> None:
        join = self._join
        if join is None or join.answered_by == maker:
            return
        for member in self.view:
            if member in join.joiners:
                continue
            seen = self._seat_of(member).harness.node.view
            if seen is None or seen.counter < join.counter:
                return
        node = self._seat_of(maker).harness.node
        if not node.multicast.retained.is_settled:
            return  # a joiner begins after what the departed have left
        join.answered_by = maker
        digest = join.early_digest or node.digest()
        if self._parts_at is not None:
            digest = self._received_by_all(digest, join.joiners, self._parts_at)
        zeros = {Origin(joiner, Stream.FIFO): 0 for joiner in join.joiners}
        for member in self.view:
            seat = self._seat_of(member)
            if member in join.joiners:
                answer = Digest({**digest.entries, **zeros}, digest.partials)
                self._post_join(seat, self.view, answer)
            else:
                self._post_join(seat, None, Digest(zeros))
        self._strangers = []

    def _received_by_all(
        self, digest: Digest, joiners: tuple[Member, ...], parts_at: PartsAt
    ) -> Digest:
        """Where what the departed left is taken over: a joiner counts as having what is below its
        digest. So all who could pass that on must have it."""
        old = [member for member in self.view if member not in joiners]
        entries, partials = dict(digest.entries), dict(digest.partials)
        for sender in old:
            origin = Origin(sender, Stream.FIFO)
            received = min(_held(self._seat_of(member), origin) for member in old)
            if received < entries[origin]:
                entries[origin] = received
                partials[origin] = parts_at(origin, received)
        return Digest(entries, {origin: parts for origin, parts in partials.items() if parts != ()})

    def _end_join(self) -> None:
        join = self._join
        if join is None:
            return
        are_dead = all(joiner not in self.view for joiner in join.joiners)
        is_answered = join.answered_by is not None
        if are_dead or (is_answered and all(map(self._has_all_windows, self.view))):
            self._join = None


def _held(seat: Seat, origin: Origin) -> int:
    window = seat.harness.node.multicast.windows()[origin]
    return window.high if isinstance(window, SendWindow) else window.received
