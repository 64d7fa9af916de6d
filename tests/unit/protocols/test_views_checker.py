"""The checker of virtual synchrony finds what each rule forbids, and counts what it judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ringcast.events import Delivered, ViewInstalled
from ringcast.model import Address, Member, Run, Stream, View, ViewId
from support.virtual_synchrony import RULES, Observed

if TYPE_CHECKING:
    from collections.abc import Callable

A, B, C = (Member(Address("h", n), 1, name) for n, name in enumerate("ABC"))
FIFO, UNIFORM = Stream.FIFO, Stream.UNIFORM


def view(counter: int, *members: Member, by: Member = A) -> View:
    return View(ViewId(by, counter), members)


ABC, AB, BACK = view(1, A, B, C), view(2, A, B), view(3, A, B, C)


class History:
    """Short names for what happens; payloads are single letters."""

    def __init__(self) -> None:
        self.observed = Observed()
        self._seen: dict[Member, View] = {}
        self._counts: dict[tuple[Member, Member, Stream], int] = {}

    def see(self, what: View, *whos: Member, parts: tuple[View, ...] = ()) -> None:
        for who in whos:
            self.observed.installed(who, ViewInstalled(what, parts))
            self._seen[who] = what

    def send(self, who: Member, payloads: str, stream: Stream = FIFO) -> None:
        for payload in payloads:
            self.observed.sent(who, stream, payload.encode(), self._seen[who].id)

    def get(
        self,
        who: Member,
        sender: Member,
        payloads: str,
        stream: Stream = FIFO,
        *,
        by_commit: bool = False,
    ) -> None:
        run = Run(stream, 1, [payload.encode() for payload in payloads])
        event = Delivered(sender, run, self._seen[who].id)
        self.observed.delivered(who, event, by_commit=by_commit)


def whole() -> History:
    """A, B, C in one view; C goes; it comes back. Nothing is wrong."""
    history = History()
    history.see(ABC, A, B, C)
    history.send(A, "abc")
    history.send(C, "xy", UNIFORM)
    for who in (A, B):
        history.get(who, A, "abc")
    history.get(C, A, "ab")
    history.get(A, C, "x", UNIFORM, by_commit=True)
    history.get(B, C, "x", UNIFORM)
    history.observed.proposed(AB.id, [A, B])
    history.see(AB, A, B)
    history.get(C, C, "xy", UNIFORM)
    history.see(BACK, A, B, C, parts=(view(2, A, B), view(1, C)))
    return history


def test_nothing_is_wrong_with_a_member_that_goes_and_comes_back() -> None:
    history = whole()
    history.observed.offered(A, 0, is_frozen=True)
    history.observed.proposed(BACK.id, [A, B, C])
    assert history.observed.violations() == []
    premises = dict(history.observed.premises)
    assert {rule for rule in RULES if premises.get(rule)} == {*RULES} - {"VS7"}


def same_id_other_order(history: History) -> None:
    history.see(view(4, A, B, C), A)
    history.see(view(4, B, A, C), B)


def counter_goes_back(history: History) -> None:
    history.see(view(2, A, B, C, by=B), A)


def sees_a_view_of_others(history: History) -> None:
    history.see(view(4, A, B), C)


def delivers_in_a_later_view(history: History) -> None:
    history.get(C, A, "c")


def delivers_in_a_view_that_is_over(history: History) -> None:
    history.observed.delivered(A, Delivered(A, Run(FIFO, 1, []), AB.id))


def delivers_twice(history: History) -> None:
    history.send(A, "d")
    history.get(B, A, "dd")


def skips_one(history: History) -> None:
    history.send(A, "de")
    history.get(B, A, "e")


def misses_a_live_sender(history: History) -> None:
    history.send(A, "d")
    history.see(view(4, A, B, C), A, B, C)


def misses_who_left(history: History) -> None:
    history.send(C, "d")
    history.observed.ended(C, "left", ViewId(A, 4))
    history.see(view(4, A, B), A, B)


def differs_of_the_dead(history: History) -> None:
    history.send(C, "z", UNIFORM)
    history.get(A, C, "z", UNIFORM)
    history.see(view(4, A, B), A, B)


def lacks_what_was_committed(history: History) -> None:
    history.send(C, "z", UNIFORM)
    history.get(C, C, "z", UNIFORM, by_commit=True)
    history.see(view(4, A, B), A, B)


def lacks_what_a_cut_gave_another(history: History) -> None:
    """B came along into the view that A has, and goes another way."""
    history.send(C, "z", UNIFORM)
    history.get(A, C, "z", UNIFORM)
    history.see(view(4, A, B), A)
    history.see(view(5, B, by=B), B)


def lacks_what_a_leaver_was_handed(history: History) -> None:
    history.send(C, "z", UNIFORM)
    history.get(C, C, "z", UNIFORM)
    history.observed.ended(C, "left", ViewId(A, 4))
    history.get(A, C, "z", UNIFORM)
    history.see(view(4, A, B), A, B)


def misses_a_view_of_a_peer(history: History) -> None:
    history.see(view(4, A, B), A)
    history.see(view(5, A, B), A, B)


def sends_while_frozen(history: History) -> None:
    history.observed.offered(A, 1, is_frozen=True)


@pytest.mark.parametrize(
    ("rule", "plant"),
    [
        ("VS1", same_id_other_order),
        ("VS1", counter_goes_back),
        ("VS1", sees_a_view_of_others),
        ("VS2", delivers_in_a_later_view),
        ("VS2", delivers_in_a_view_that_is_over),
        ("VS3", delivers_twice),
        ("VS3", skips_one),
        ("VS4", misses_a_live_sender),
        ("VS4", misses_who_left),
        ("VS5", differs_of_the_dead),
        ("VS6", lacks_what_was_committed),
        ("VS6", lacks_what_a_cut_gave_another),
        ("VS6", lacks_what_a_leaver_was_handed),
        ("VS7", misses_a_view_of_a_peer),
        ("VS9", sends_while_frozen),
    ],
)
def test_what_a_rule_forbids_is_found(rule: str, plant: Callable[[History], None]) -> None:
    history = whole()
    plant(history)
    found = history.observed.violations()
    assert rule in {violation[:3] for violation in found}
