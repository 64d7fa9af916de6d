"""Greetings: what a member says of itself to others, and what it makes of what they say.

whose Hello it is                            then
of my view, in a later one by now            it is in another view; so are those it names
of a group that has not what I asked for     I cannot join it
of one that asked for what mine has not      it cannot join; if it asks, it is told what mine has
of somebody, and I do not coordinate         answer if it asks: that names who does
of a member that does not coordinate         say Hello to who does there
of a coordinator, of a better part           tell it who is in my view, and leave it to that one
of a coordinator, of a lesser part           if it asks, ask it; if it answers, so that it hears
                                             me, note who is in its view

Whenever somebody is met all others are asked at once, so that all come in by one change.

Who is not in my view, and does not bring a cookie of mine, is given one, and nothing is kept of it
(cookies.py). Every Hello carries a cookie, and every answer brings back that of the question: so an
answer counts at once, and a question after one round trip more.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ringcast.core.effects import Effects, VerifyWanted
from ringcast.core.shared import Phase
from ringcast.core.view_change import order
from ringcast.protocols.views.discovery import GREET_NS, STRANGER_NS, rank_of
from ringcast.wire.changes import Cookie, Hello, tag_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringcast.model import Address, Member, View
    from ringcast.protocols.views.layer import GroupViews


COPIES_NS = 10_000_000
ASKED_MAX = 1024
"""Within so long nobody is asked twice for one reason; and of how many that is remembered."""


class Greetings:
    """Those of one member."""

    def __init__(self, owner: GroupViews) -> None:
        self.challenged = 0  # Hellos of strangers that were answered with a cookie
        self._owner = owner
        self._asked: dict[tuple[str, Address], int] = {}  # when, lately, and why

    def hello(
        self, to: Address, now: int, *, is_asking: bool = False, with_members: bool = False
    ) -> Hello:
        """Who is alone says who it is; others only to who is to make one view of both."""
        owner, change = self._owner, self._owner.change
        view = change.view
        return Hello(
            owner.agreement.settings,
            is_asking,
            change.follower.has_state,
            change.highest,
            owner.coordinator if owner.is_member else None,
            view.id,
            len(view),
            view.members if with_members or len(view) == 1 else (),
            owner.cookies.make(to, now),
        )

    def answer(self, source: Member, cookie: int, now: int, out: Effects, **says: bool) -> None:
        """Who has given this cookie. Whoever is told who is in my view may propose to it."""
        hello = self.hello(source.address, now, **says)
        permit = self._owner.change.permit(source) if hello.members else 0
        out.datagram(source, replace(hello, echo=cookie, permit=permit))

    def say_hello(self, now: int, out: Effects) -> None:
        """To all who may be there and are not in my view."""
        owner = self._owner
        with_us = {member.address for member in owner.change.view}
        for address in owner.discovery.candidates:
            if address not in with_us:
                out.datagram(address, self.hello(address, now, is_asking=True))

    def tell_left_out(self, view: View, now: int, out: Effects) -> None:
        """Those who were to come into this view, and whose part did not answer whole: they have
        promised it, and wait for nothing."""
        invited, self._owner.meeting.invited = self._owner.meeting.invited, []
        for member in invited:
            if member not in view:
                out.datagram(member, self.hello(member.address, now))

    def on_cookie(self, source: Member, frame: Cookie, now: int, out: Effects) -> None:
        """It heard what I said, and wants to know whether I hear it."""
        if not self._owner.cookies.is_mine(frame.echo, source.address, now):
            self._owner.ignored += 1
            return
        self._owner.meeting.answered_at = now
        if self._is_due("cookie", source.address, now):
            self.answer(source, frame.cookie, now, out, is_asking=True)

    def _is_due(self, why: str, to: Address, now: int, every: int = COPIES_NS) -> bool:
        """Whether that one is to be asked now, for this reason. Copies of what somebody says must
        not become more at every step."""
        last = self._asked.get((why, to))
        if last is not None and now - last < every:
            return False
        if len(self._asked) >= ASKED_MAX:
            self._asked.clear()
        self._asked[why, to] = now
        return True

    def on_hello(self, source: Member, hello: Hello, now: int, out: Effects) -> None:
        owner, change = self._owner, self._owner.change
        is_proved = owner.cookies.is_mine(hello.echo, source.address, now)
        if source not in change.view and not is_proved:
            self.challenged += 1
            is_starting = owner.phase is Phase.LOOKING and owner.meeting.has_just_started(now)
            if is_starting and rank_of(hello, source) < change.rank:
                owner.meeting.give_way(now)
            out.datagram(source, Cookie(owner.cookies.make(source.address, now), hello.cookie))
            return
        if not change.may_reach(hello.highest, now):
            return
        owner.discovery.learn([source.address], now, STRANGER_NS)
        owner.requests.pairs.hear(source)
        if hello.view_id is not None:
            change.on_tag(source, tag_of(hello.view_id), now, out)
            change.on_later_view(source, hello.view_id, now, out)
            owner.follow(now, out)
            if order(hello.view_id) > order(change.view.id):
                self._note_ahead(source, hello, now, out)
        view, answer = change.view, partial(self.answer, source, hello.cookie, now, out)
        if source in view:
            if hello.is_asking:
                answer()
            return
        for member in view:
            if member.address == source.address:
                out.signal(VerifyWanted(member))  # restarted, it seems
        is_looking = owner.phase is Phase.LOOKING
        is_better = rank_of(hello, source) < change.rank
        if owner.agreement.is_compatible(
            source, hello, now, is_looking=is_looking, is_better=is_better
        ):
            change.reach(hello.highest, now)
            if hello.coordinator is not None:
                owner.meeting.group_at = now
            self._meet(source, hello, answer, now, out)
            return
        if hello.is_asking:
            answer()
        if owner.agreement.refusal is not None:
            owner.decide_soon(now)

    def _note_ahead(self, source: Member, hello: Hello, now: int, out: Effects) -> None:
        """A member of my view knows who is elsewhere with it. On the word of anybody else nobody is
        excluded: those are asked."""
        owner, view = self._owner, self._owner.change.view
        if source in view:
            gone = (source, *hello.members)
            assert hello.view_id is not None
            owner.requests.ahead(gone, hello.view_id.counter, now, out)
            return
        for member in hello.members:
            if member in view and member != owner.me:
                out.datagram(member, self.hello(member.address, now, is_asking=True))

    def _meet(
        self, source: Member, hello: Hello, answer: Callable[..., None], now: int, out: Effects
    ) -> None:
        """Somebody who could be in one view with us."""
        owner, me = self._owner, self._owner.me
        is_better = rank_of(hello, source) < owner.change.rank
        if owner.coordinator != me or owner.phase is Phase.LEAVING:
            if hello.is_asking:
                answer()
        elif hello.coordinator is not None and hello.coordinator != source:
            if hello.is_asking:
                answer()
            first = hello.coordinator.address
            if first != me.address and self._is_due("coordinator", first, now):
                out.datagram(hello.coordinator, self.hello(first, now, is_asking=True))
                if is_better:
                    owner.meeting.give_way(now)
                self._ask_others(now, out)
        elif is_better:
            answer(with_members=True)
            owner.meeting.give_way(now)
        elif owner.phase is Phase.LOOKING and owner.must_exist:
            owner.ignored += 1  # this member founds nothing
        elif owner.requests.pairs.is_barred(hello.members, owner.change.view, now):
            owner.ignored += 1  # somebody of the view does not hear it
        elif hello.is_asking and hello.coordinator is not None:
            answer(is_asking=True)  # its answer shows that it hears us
            self._ask_others(now, out)
        elif any(member in owner.change.view for member in hello.members):
            if self._is_due("behind", source.address, now, GREET_NS):  # it answers this one, too
                answer(with_members=True)
        elif owner.meeting.note(source, hello, now):
            owner.note_part(now)
            if hello.is_asking:
                answer()
            self._ask_others(now, out)

    def _ask_others(self, now: int, out: Effects) -> None:
        """Somebody is there: who else is may come along."""
        if self._owner.phase is Phase.MEMBER and self._owner.meeting.may_greet(now):
            self.say_hello(now, out)
