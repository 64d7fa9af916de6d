"""Which group a member is in, as all its layers read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.core.effects import Effects, Layer
from ringcast.core.shared import DEPARTED_MAX, GroupState
from ringcast.model import Address, Member, View, ViewId

if TYPE_CHECKING:
    from ringcast.core.effects import Effects as Out

A, B, C = (Member(Address("x", n), 1, name) for n, name in enumerate("ABC"))


def view(counter: int, *members: Member) -> View:
    return View(ViewId(members[0], counter), members)


class Reader(Layer):
    """Writes down what the group is when it hears of a view, and when it closes."""

    def __init__(self) -> None:
        self.read: list[tuple[View | None, View | None]] = []

    def install_view(self, view: View, now: int, out: Out) -> None:
        self.read.append((self.group.previous, self.group.view))

    def close(self, reason: str, now: int, out: Out) -> None:
        self.read.append((self.group.previous, self.group.view))


def with_reader() -> tuple[GroupState, Reader]:
    group, reader = GroupState(A), Reader()
    reader.group = group
    return group, reader


def test_layers_read_the_new_view_and_the_one_before() -> None:
    group, reader = with_reader()
    first, second = view(1, A, B), view(2, A, C)
    for each in (first, second, first):  # the last is older, and changes nothing
        group.change(each, [reader], 0, Effects())
    assert reader.read == [(None, first), (first, second)]
    assert group.departed == {B: 2}


def test_who_is_left_out_reads_the_old_view_and_then_none() -> None:
    group, reader = with_reader()
    first = view(1, A, B)
    group.change(first, [reader], 0, Effects())
    group.change(view(2, B), [reader], 0, Effects())
    assert reader.read == [(None, first), (None, first)]
    assert group.view is None
    assert not group.accepts(view(3, A, B))


def test_who_has_closed_is_in_no_view_any_more() -> None:
    group, reader = with_reader()
    group.change(view(1, A), [reader], 0, Effects())
    group.close("left", [reader], 0, Effects())
    assert group.view is None
    assert not group.accepts(view(2, A))


def test_the_last_to_depart_are_remembered() -> None:
    group, _ = with_reader()
    passers_by = [C._replace(incarnation=n) for n in range(DEPARTED_MAX + 2)]
    for counter, member in enumerate(passers_by, 1):
        group.change(view(counter, A, member), [], 0, Effects())
    assert list(group.departed) == passers_by[1:-1]
    group.change(view(1000, A, passers_by[1]), [], 0, Effects())
    group.change(view(1001, A), [], 0, Effects())  # it departs once more
    assert list(group.departed)[-1] == passers_by[1]
    assert group.departed[passers_by[1]] == 1001
